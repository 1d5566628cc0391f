"""Damaged logs: the mean is correct, or the reader reports dropped records.

Not covered: digits missing in the middle of a number, which cannot be detected
(docs/reference/dialects.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

import pytest
from support.log_strategies import FRAMEWORKS, Written, write
from support.written_logs import dropped

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs.log_reader import parse_blocks

Change = Callable[[bytes], bytes]
Damage = Callable[[Written], Iterator[bytes]]

STEPS = 50
WINDOW = range(11, 45)
STEP = 30
DIALECTS = ("nemo1", "nemo1-dllogger", "nemo2", "maxtext", "megatron", "torchtitan")
FOREIGN = b"foreign words of another program\n"
KILLED = b"slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-05-04T06:05:54 ***\n"
SPREAD = 4
NUMBER = re.compile(rb"(?<![\w.])\d+\.\d+(?![\de.])")


def write_run(name: str) -> Written:
    """Write a log of one run."""
    mode = FRAMEWORKS[name]
    return write(
        mode,
        first=0 if 0 in mode.first else 1,
        lengths=[STEPS],
        prefixes=("",),
        starts=True,
        seed=7,
    )


LOGS = {name: write_run(name) for name in DIALECTS}


def find_line(log: Written, step: int) -> int:
    """Find the line of a step by the text of its time."""
    printed = next(one.printed for one in log.truth[0] if one.step == step).encode()
    return next(number for number, line in enumerate(log.lines) if printed in line)


def list_offsets(line: bytes) -> list[int]:
    """List offsets all over a line, in its numbers and in its last characters."""
    spread = range(1, len(line), max(1, len(line) // SPREAD))
    numbers = re.finditer(rb"\d+\.\d+", line)
    inside = [
        offset
        for match in numbers
        for offset in range(match.start() + 1, match.end() + 1)
    ]
    return sorted({*spread, *inside[-9:], *range(max(1, len(line) - 6), len(line))})


def at_offsets(change: Callable[[bytes, int], bytes], *, last: bool = False) -> Damage:
    """Apply a change to one record at each of its offsets. `last` ends the log with it."""

    def damage(log: Written) -> Iterator[bytes]:
        number = find_line(log, log.truth[0][-1].step if last else STEP)
        line = log.lines[number]
        before, after = (
            b"".join(log.lines[:number]),
            b"" if last else b"".join(log.lines[number + 1 :]),
        )
        for offset in list_offsets(line):
            yield before + change(line, offset) + after

    return damage


def cut(end: bytes, *, last: bool = False) -> Damage:
    return at_offsets(lambda line, offset: line[:offset] + end, last=last)


def split(piece: bytes) -> Damage:
    return at_offsets(lambda line, offset: line[:offset] + piece + line[offset:])


def replace_byte(sign: bytes) -> Damage:
    return at_offsets(lambda line, offset: line[:offset] + sign + line[offset + 1 :])


def split_by_neighbour(log: Written) -> Iterator[bytes]:
    """Insert the next line of the log into the record, as two processes do that write
    at once."""
    return split(log.lines[find_line(log, STEP + 1)])(log)


def whole(change: Change) -> Damage:
    return lambda log: iter((change(log.data),))


def each_line(change: Change) -> Damage:
    """Change every line, without its line feed."""
    return whole(
        lambda data: b"".join(change(line) + b"\n" for line in data.splitlines())
    )


def reorder(order: Callable[[list[bytes], int], list[bytes]]) -> Damage:
    return lambda log: iter((b"".join(order(list(log.lines), find_line(log, STEP))),))


def write_commas(text: bytes) -> bytes:
    return NUMBER.sub(lambda number: number[0].replace(b".", b","), text)


DAMAGES = {
    "cut": cut(b"\n"),
    "cut, the next line glued": cut(b""),
    "cut, a hole after it": cut(b"\x00" * 64 + b"\n"),
    "cut by Slurm": cut(KILLED),
    "cut by a colour": cut(b"\x1b[0m\n"),
    "cut with dots": cut(b"...\n"),
    "cut with a bar": cut(b" |\n"),
    "the file ends": cut(b"", last=True),
    "the file ends with a line feed": cut(b"\n", last=True),
    "split by a line": split(b"\n" + FOREIGN),
    "split by a label": split(b"[default3]:"),
    "split by the next line": split_by_neighbour,
    "split by a hole": split(b"\x00"),
    "split by a comma": split(b","),
    "split by a letter": split(b"x"),
    "a blank for a byte": replace_byte(b" "),
    "a line feed for a byte": replace_byte(b"\n"),
    "a line is lost": reorder(lambda lines, at: [*lines[:at], *lines[at + 1 :]]),
    "the half is printed again": reorder(lambda lines, at: [*lines, *lines[at:]]),
    "begun in the middle": reorder(lambda lines, at: [*lines[at:], *lines[:at]]),
    "decimal commas in one line": at_offsets(lambda line, _: write_commas(line)),
    "decimal commas": whole(write_commas),
    "wrapped at 80 columns": each_line(
        lambda line: b"\n".join(re.findall(rb".{1,80}", line)) or line
    ),
    "without line feeds": whole(lambda data: data.replace(b"\n", b" ")),
}
HARMLESS = {
    "empty lines between": whole(lambda data: data.replace(b"\n", b"\n\n")),
    "quoted": each_line(lambda line: b"> " + line),
    "numbered": each_line(lambda line: b"  1234\t" + line),
    "of Kubernetes": each_line(
        lambda line: b"2025-06-11T05:14:49.562847123Z stdout F " + line
    ),
    "of the journal": each_line(
        lambda line: b"Jun 11 05:14:49 node1 slurmstepd[123]: " + line
    ),
    "of Ray, coloured": each_line(
        lambda line: b"\x1b[36m(Worker pid=7, ip=10.0.0.1)\x1b[0m " + line
    ),
    "two lines exchanged": reorder(
        lambda lines, at: [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
    ),
    "numbers in colours": whole(
        lambda data: NUMBER.sub(b"\x1b[36m\\g<0>\x1b[0m", data)
    ),
}


def list_times(log: ParsedLog) -> dict[int, float]:
    """Map the steps of the last attempt to their times."""
    if not log.segments:
        return {}
    steps = log.segments[-1].steps
    return dict(zip(steps.index.tolist(), steps.seconds.tolist(), strict=True))


def compute_mean(times: dict[int, float]) -> float:
    """Compute the mean over the window, NaN if a step has no positive, finite time."""
    window = [times.get(step, math.nan) for step in WINDOW]
    return (
        sum(window) / len(window)
        if all(0 < value < math.inf for value in window)
        else math.nan
    )


def test_dllogger_record_without_last_field_is_truncated() -> None:
    record = "DLL 2026-05-04 06:31:2{0}.621000 - {0} global_step : {0}.0  train_step_timing in s : 41.891  epoch : 0 \n"
    complete = "".join(record.format(step) for step in range(5))
    lines = complete.splitlines(keepends=True)
    lines[3] = lines[3].partition(".891")[0] + " Epoch 0: a bar\n"
    cut = "".join(lines)
    assert dropped(parse_blocks([complete.encode()])) == {}
    result = parse_blocks([cut.encode()])
    assert (list(list_times(result)), dropped(result)) == ([0, 1, 2, 4], {"torn": 1})


def test_nemo2_record_interrupted_by_foreign_output_is_dropped_as_truncated() -> None:
    fields = (
        "global_step: {0} | train_step_timing in s: 28.29 | consumed_samples: {1}\n"
    )
    records = [
        f"Training epoch 0, iteration {step}/9 | {fields.format(step, 128 * step)}"
        for step in range(10)
    ]
    records[6] = records[6].replace("28.29", "2\n" + FOREIGN.decode() * 12 + "8.29")
    result = parse_blocks(["".join(records).encode()])
    assert (6 in list_times(result), dropped(result)) == (False, {"torn": 1})


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_log_gives_the_same_mean_step_time_or_reports_dropped_records(
    damage: str,
) -> None:
    wrong = []
    for name, log in LOGS.items():
        truth = compute_mean({step.step: step.seconds for step in log.truth[0]})
        sound = dropped(parse_blocks([log.data]))
        for data in DAMAGES[damage](log):
            result = parse_blocks([data])
            mean = compute_mean(list_times(result))
            if not (
                math.isnan(mean)
                or mean == pytest.approx(truth, rel=1e-9)
                or dropped(result) != sound
            ):
                wrong.append((name, mean, truth, data))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("change", HARMLESS)
def test_harmless_change_of_a_log_keeps_every_step_time(change: str, name: str) -> None:
    log = LOGS[name]
    (data,) = HARMLESS[change](log)
    result = parse_blocks([data])
    assert len(result.segments) == 1
    truth = {
        step.step: step.seconds for step in log.truth[0] if not math.isnan(step.seconds)
    }
    assert {
        step: value for step, value in list_times(result).items() if step in truth
    } == pytest.approx(truth)
    assert dropped(result).keys() == dropped(parse_blocks([log.data])).keys()
