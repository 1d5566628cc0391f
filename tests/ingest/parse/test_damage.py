"""The law of damage: whatever is cut off or written into a log, no step gets a number that was not printed for it."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_logs import bar, dll, maxtext, nemo2, nemo2_run, parse

from pytest_llmbench.core.models import ParsedLog
from pytest_llmbench.ingest.parse.read import parse_blocks

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
    + nemo2(2, "12.39", more=" | TFLOPS_per_GPU: 865.7 | grad_norm: 1.234 | consumed_samples: 256")
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
    + maxtext(1, "7.908", loss=", loss: 9.580, lr: 3.000e-04, grad_norm: 1.234e+01").rstrip("\n")
    + maxtext(12, "0.427", loss=", loss: nan")
    + "# completed step: 13, seconds: 176.734, TFLOP/s/device: 5.846, loss: 2.008\n"
    + maxtext(14, "11.716")
)
LOGS = {"nemo1": NEMO1, "nemo2": NEMO2, "maxtext": MAXTEXT}

FOREIGN = [
    "\nforeign\n",
    "foreign\n",
    "\nW0307 22:33:45 12 api.py:793] many words\nin two lines\n",
    "e",
]


def values(log: ParsedLog) -> Values:
    """Every number that a log gives to a step: (step, column) to its values."""
    found: Values = defaultdict(set)
    for segment in log.segments:
        index = segment.steps.index.tolist()
        for column in COLUMNS:
            for step, value in zip(index, getattr(segment.steps, column).tolist(), strict=True):
                if not math.isnan(value):
                    found[step, column].add(value)
    return found


def printed(text: str) -> Values:
    """The numbers of an undamaged log, its bars and records apart: both were printed, and a record may get lost."""
    parts = text.replace("DLL ", "\nDLL ").replace("\r", "\n").split("\n")
    found: Values = defaultdict(set)
    for part in chain([text], (line + "\n" for line in parts)):
        for key, several in values(parse(part)).items():
            found[key] |= several
    return found


def check(damaged: bytes, truth: Values) -> None:
    """Fail if a step has a number that was not printed for it; a number that is missing is no harm."""
    for (step, column), several in values(parse(damaged)).items():
        assert several <= truth[step, column], (step, column, several)


TRUTH = {name: printed(text) for name, text in LOGS.items()}


@pytest.mark.parametrize("name", LOGS)
def test_the_logs_are_read_in_full(name: str) -> None:
    log = parse(LOGS[name])
    assert log.dialect == name
    assert sum(len(segment.steps) for segment in log.segments) == {"nemo1": 5, "nemo2": 6, "maxtext": 5}[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_a_log_cut_off_at_any_byte(name: str) -> None:
    data, truth = LOGS[name].encode(), TRUTH[name]
    for end in range(len(data)):
        check(data[:end], truth)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_begins_at_any_byte(name: str) -> None:
    data, truth = LOGS[name].encode(), TRUTH[name]
    for begin in range(len(data)):
        check(data[begin:], truth)


@pytest.mark.slow
@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("name", LOGS)
def test_foreign_text_at_any_byte(name: str, foreign: str) -> None:
    """At every third byte: the four texts together stand at each byte."""
    data, truth = LOGS[name].encode(), TRUTH[name]
    for place in range(FOREIGN.index(foreign) % 3, len(data) + 1, 3):
        check(data[:place] + foreign.encode() + data[place:], truth)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_a_line_of_the_same_log_written_into_another(name: str) -> None:
    """Two ranks that write at once: one's line stands inside the other's."""
    data, truth = LOGS[name].encode(), TRUTH[name]
    for number, line in enumerate(data.splitlines(keepends=True)):
        for place in range(number % 11, len(data) + 1, 11):
            check(data[:place] + line + data[place:], truth)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    name=st.sampled_from(sorted(LOGS)),
    bounds=st.tuples(st.integers(0, 2000), st.integers(0, 2000)),
)
def test_whole_lines_that_are_lost_change_no_others(name: str, bounds: tuple[int, int]) -> None:
    lines = LOGS[name].splitlines(keepends=True)
    first, last = sorted(bound % (len(lines) + 1) for bound in bounds)
    check("".join(lines[:first] + lines[last:]).encode(), TRUTH[name])


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.binary(max_size=400))
def test_no_bytes_are_an_error(data: bytes) -> None:
    parse_blocks([data])


SCRAPS = [
    *(scrap.encode() for scrap in (
        "Training epoch 0, iteration 7/49 | ", "Training epoch ", "global_step: 7 | ", "train_step_timing in s: ",
        "12.39", " | ", "\n", "\r", "e+", "nan", "Epoch 0: :  10%|", "| 2/20 [01:19<11:58", ", global_step=1.000",
        "2e+3", "]", ", train_step_timing in s=", "DLL 2025-06-11 05:14:49.562847 - 0 ", " : ", "  ",
        "completed step: 7, seconds: ", ", ", "loss: 0.000", "Config param steps: 50\n", "restart_count=1\n",
        "`Trainer.fit` stopped: `max_steps=50` reached.\n", "error: *** JOB 1 ON n CANCELLED AT ", "srun: error: ",
        "2025-13-45 99:00:00", "9" * 20, "-", "0: ", "[rank4]:", "[default3]: ",
        nemo2(3), maxtext(3), bar(4, "3.000", "2.000"), dll(3, "2.0"),
    )),
    b"\x00",
    b"\xff",
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200)
@given(scraps=st.lists(st.sampled_from(SCRAPS), max_size=25))
def test_no_heap_of_scraps_is_an_error(scraps: list[bytes]) -> None:
    log = parse_blocks([b"".join(scraps)])
    for segment in log.segments:
        assert (np.diff(segment.steps.index) > 0).all()
        assert segment.steps.seconds.dtype == np.float64
        assert len(segment.steps) > 0
        assert (
            segment.first_line <= segment.steps.line.min() <= segment.steps.line.max() <= segment.last_line <= log.lines
        )
    for each in log.dropped:
        assert each.count > 0
        assert each.first_line >= 1
        assert each.shown.isprintable()


@pytest.mark.parametrize("lost", [b"\x00", b"\x1f", b"\x28\xb5\x2f", b"x\x1f\x8b\x08", b"\xff\xfe", b"\xef\xbb\xbf"])
def test_strange_bytes_before_a_log_do_no_harm(lost: bytes) -> None:
    (segment,) = parse_blocks([lost + nemo2_run(0, 9).encode()]).segments
    assert segment.steps.index.tolist() == list(range(10))
