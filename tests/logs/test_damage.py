"""Whatever is cut from a log or inserted, no step gets a number that was not printed
for it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_laws import find_problems
from support.written_logs import bar, dll, maxtext, nemo2, nemo2_run, parse

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs.log_reader import parse_blocks

Values = dict[tuple[int, str], set[float]]

COLUMNS = (
    "seconds",
    "loss",
    "grad_norm",
    "tflops_per_gpu",
    "tokens_per_second_per_gpu",
    "global_batch_size",
    "peak_memory_bytes",
)

NEMO2 = (
    "[NeMo I 2025-03-07 22:33:59 x] start\n"
    + nemo2(0, "7.582", more="")
    + nemo2(1, "10.31", more=" | TFLOPS_per_GPU: 1.249e+03")
    + nemo2(
        2,
        "12.39",
        more=" | TFLOPS_per_GPU: 865.7 | grad_norm: 1.234 | consumed_samples: 256",
    )
    + "ining-demo/0 [default0]:Training epoch 0, iteration 3/49 | lr: 1.649e-06 | consumed_samples: 5632 | "
    "global_batch_size: 512 | global_step: 3 | reduced_train_loss: 11.03 | train_step_timing in s: 10.26\n"
    + nemo2(14, "123.4").rstrip("\n")
    + nemo2(15, "1.249e+03")
    + "`Trainer.fit` stopped: `max_steps=50` reached.\n"
)
NEMO1 = (
    "Epoch 0: :   0%|          | 0/50 [00:00<?]\r"
    + bar(1, "0.000", "52.30") + dll(0, "52.33449459075928") + "\n"
    + bar(2, "0.000", "52.30") + "\r" + bar(2, "1.000", "39.90", samples="1024.0") + "\n"
    + bar(13, "12.00", "9.530") + dll(12, "9.5312") + "\n"
    + bar(14, "13.00", "1.9e+3", loss="nan.0") + bar(15, "14.00", "2.030") + "\n"
)  # fmt: skip
MAXTEXT = (
    "Config param steps: 50\n"
    + maxtext(0, "36.350", loss=", loss: 12.038")
    + maxtext(
        1, "7.908", loss=", loss: 9.580, lr: 3.000e-04, grad_norm: 1.234e+01"
    ).rstrip("\n")
    + maxtext(12, "0.427", loss=", loss: nan")
    + "# completed step: 13, seconds: 176.734, TFLOP/s/device: 5.846, loss: 2.008\n"
    + maxtext(14, "11.716")
)
TITAN = "[rank0]:[titan] 2026-05-04 06:{} - root - INFO - "
TITAN_LINE = (
    TITAN
    + "\x1b[31mstep: {:2}  \x1b[32mloss:  {}  \x1b[38;2;180;60;0mgrad_norm: {}  memory: 28.18GiB(89.87%)  "
    "\x1b[34mtps: {}  \x1b[36mtflops: {}  \x1b[35mmfu: 15131.59%\x1b[39m\n"
)
TORCHTITAN = (
    TITAN_LINE.format("05:54,392", 1, "5.97670", "19203.0469", "2,110", "47,210.56")
    + TITAN_LINE.format("05:56,423", 2, "5.96660", "2.2500", "2,110", "12.83").rstrip(
        "\n"
    )
    + TITAN_LINE.format("06:17,892", 12, "nan", "2.2500", "12,110", "12.83")
    + TITAN.format("06:34,642")
    + "\x1b[33mvalidate step: 12  \x1b[32mloss:  3.3315  memory: 26.01GiB(82.96%)  tps: 6,995\x1b[39m\n"
    + TITAN_LINE.format("06:36,517", 13, "5.91230", "1.2500", "2,110", "1,012.83")
)
LOGS = {"nemo1": NEMO1, "nemo2": NEMO2, "maxtext": MAXTEXT, "torchtitan": TORCHTITAN}


def list_values(log: ParsedLog) -> Values:
    """Map each (step, column) to its values.

    Omits times of torchtitan, which are gaps between lines; test_laws.py checks them.
    """
    result: Values = defaultdict(set)
    for segment in log.segments:
        index = segment.steps.index.tolist()
        for column in COLUMNS[log.dialect == "torchtitan" :]:
            for step, value in zip(
                index, getattr(segment.steps, column).tolist(), strict=True
            ):
                if not math.isnan(value):
                    result[step, column].add(value)
    return result


def list_printed(text: str) -> Values:
    """List the numbers of a whole log, and of its bars and records separately.

    One of two records may be lost.
    """
    pieces = text.replace("DLL ", "\nDLL ").replace("\r", "\n").split("\n")
    result: Values = defaultdict(set)
    for piece in chain([text], (line + "\n" for line in pieces)):
        for key, several in list_values(parse(piece)).items():
            result[key] |= several
    return result


PRINTED = {name: list_printed(text) for name, text in LOGS.items()}


def insert(text: bytes) -> Callable[[bytes, int], bytes]:
    return lambda data, offset: data[:offset] + text + data[offset:]


def write_twice(data: bytes, offset: int) -> bytes:
    """Insert a line of the log into another line, as two ranks do that write at once."""
    lines = data.splitlines(keepends=True)
    return data[:offset] + lines[offset % len(lines)] + data[offset:]


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "cut off": lambda data, offset: data[:offset],
    "begun late": lambda data, offset: data[offset:],
    "a line lost": lambda data, offset: (
        data[:offset] + data[offset:].partition(b"\n")[2]
    ),
    "a foreign line": insert(b"\nforeign\n"),
    "foreign text": insert(b"foreign\n"),
    "a letter": insert(b"e"),
    "two writers": write_twice,
}
STRIDE = {"cut off": 1, "two writers": 2}
"""Bytes from one damage to the next: 1 where a number may end at any of its digits,
else 3."""


@pytest.mark.parametrize(
    ("name", "steps"), [("nemo1", 5), ("nemo2", 6), ("maxtext", 5), ("torchtitan", 4)]
)
def test_undamaged_log_gives_all_its_steps(name: str, steps: int) -> None:
    log = parse(LOGS[name])
    assert log.dialect == name
    assert sum(len(segment.steps) for segment in log.segments) == steps


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", LOGS)
def test_damage_never_assigns_a_value_to_another_step(name: str, damage: str) -> None:
    """Missing numbers are allowed."""
    data, printed = LOGS[name].encode(), PRINTED[name]
    for index in range(0, len(data), STRIDE.get(damage, 3)):
        for (step, column), values in list_values(
            parse(DAMAGES[damage](data, index))
        ).items():
            assert values <= printed[step, column], (step, column, values, index)


SCRAPS = [
    *(
        "Training epoch 0, iteration 7/49 | ",
        "global_step: 7 | ",
        "train_step_timing in s: ",
        "12.39",
        " | ",
        "\n",
        "\r",
    ),
    *(
        "e+",
        "nan",
        "Epoch 0: :  10%|",
        "| 2/20 [01:19<11:58",
        ", global_step=1.000",
        "]",
        ", train_step_timing in s=",
    ),
    *(
        "DLL 2025-06-11 05:14:49.562847 - 0 ",
        " : ",
        "completed step: 7, seconds: ",
        ", ",
        "loss: 0.000",
    ),
    *(
        "Config param steps: 50\n",
        "restart_count=1\n",
        "`Trainer.fit` stopped: `max_steps=50` reached.\n",
    ),
    *(
        "error: *** JOB 1 ON n CANCELLED AT ",
        "2025-13-45 99:00:00",
        "9" * 20,
        "0: ",
        "[rank4]:",
        "\0",
        "\ufffd",
    ),
    *(nemo2(3), maxtext(3), bar(4, "3.000", "2.000"), dll(3, "2.0")),
]


@pytest.mark.slow
@settings(max_examples=200)
@given(scraps=st.lists(st.sampled_from(SCRAPS), max_size=25))
def test_log_of_random_pieces_raises_no_error(scraps: list[str]) -> None:
    assert find_problems(parse("".join(scraps))) == []


@pytest.mark.parametrize(
    "lost", [b"\x00", b"\x28\xb5\x2f", b"x\x1f\x8b\x08", b"\xff\xfe", b"\xef\xbb\xbf"]
)
def test_binary_bytes_before_log_hide_no_step(lost: bytes) -> None:
    (segment,) = parse_blocks([lost + nemo2_run(0, 9).encode()]).segments
    assert segment.steps.index.tolist() == list(range(10))
