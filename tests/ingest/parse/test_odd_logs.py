"""Logs as they should not be: whatever was done to one, the mean over its chunk is right, or it says that it is not.

What nobody can tell is left out: digits that are gone from the middle of a number (docs/parsing.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

import pytest
from log_strategies import FRAMEWORKS, Written, write

from pytest_llmbench.core.models import ParsedLog
from pytest_llmbench.ingest.parse.read import parse_blocks

STEPS = 50
WINDOW = range(11, 45)
STEP = 30
DIALECTS = ("nemo1", "nemo1-dllogger", "nemo2", "maxtext", "megatron", "torchtitan")
FOREIGN = b"foreign words of another program\n"
PLACES = 4
"""In so many places all over a line something happens, and at each of its last characters and those of its times."""


def written(name: str) -> Written:
    """A log of one run."""
    how = FRAMEWORKS[name]
    return write(how, first=0 if 0 in how.first else 1, lengths=[STEPS], prefixes=("",), starts=True, seed=7)


LOGS = {name: written(name) for name in DIALECTS}


def line_of(log: Written, step: int) -> int:
    """The line on which a step is printed, by the text of its time."""
    printed = next(one.printed for one in log.truth[0] if one.step == step).encode()
    return next(number for number, line in enumerate(log.lines) if printed in line)


def places(line: bytes) -> list[int]:
    """Where a line is cut: all over it, and around each character of its numbers at the end."""
    spread = range(1, len(line), max(1, len(line) // PLACES))
    time = [match.start() + more for match in re.finditer(rb"\d+\.\d+", line) for more in range(1, len(match[0]) + 1)]
    return sorted({*spread, *time[-9:], *range(max(1, len(line) - 6), len(line))})


def replaced(log: Written, number: int, line: bytes) -> bytes:
    return b"".join((*log.lines[:number], line, *log.lines[number + 1 :]))


def cut(end: bytes) -> Callable[[Written], Iterator[bytes]]:
    """The record of one step is cut, and this stands behind what is left."""

    def damaged(log: Written) -> Iterator[bytes]:
        number = line_of(log, STEP)
        return (replaced(log, number, log.lines[number][:place] + end) for place in places(log.lines[number]))

    return damaged


def inside(what: Callable[[Written], bytes]) -> Callable[[Written], Iterator[bytes]]:
    """Something stands inside the record of one step."""

    def damaged(log: Written) -> Iterator[bytes]:
        number = line_of(log, STEP)
        line = log.lines[number]
        return (replaced(log, number, line[:place] + what(log) + line[place:]) for place in places(line))

    return damaged


def at_the_end(end: bytes) -> Callable[[Written], Iterator[bytes]]:
    """The file ends within its last record."""

    def damaged(log: Written) -> Iterator[bytes]:
        number = line_of(log, log.truth[0][-1].step)
        before = b"".join(log.lines[:number])
        return (before + log.lines[number][:place] + end for place in places(log.lines[number]))

    return damaged


def instead(sign: bytes) -> Callable[[Written], Iterator[bytes]]:
    """One byte of a record became another one."""

    def damaged(log: Written) -> Iterator[bytes]:
        number = line_of(log, STEP)
        line = log.lines[number]
        return (replaced(log, number, line[:place] + sign + line[place + 1 :]) for place in places(line)[:-1])

    return damaged


def whole(change: Callable[[bytes], bytes]) -> Callable[[Written], Iterator[bytes]]:
    """The same is done to the whole log."""
    return lambda log: iter((change(log.data),))


def each_line(change: Callable[[bytes], bytes]) -> Callable[[Written], Iterator[bytes]]:
    """The same is done to every line, without its line feed."""
    return lambda log: iter((b"".join(change(line.rstrip(b"\n")) + b"\n" for line in log.lines),))


def lines_of(order: Callable[[list[bytes], int], list[bytes]]) -> Callable[[Written], Iterator[bytes]]:
    """The lines stand in another order."""
    return lambda log: iter((b"".join(order(list(log.lines), line_of(log, STEP))),))


def exchanged(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


NUMBER = re.compile(rb"(?<![\w.])\d+\.\d+(?![\de.])")
DAMAGED = {
    "cut": cut(b"\n"),
    "cut, CRLF": cut(b"\r\n"),
    "cut, CR": cut(b"\r"),
    "cut, the next line glued": cut(b""),
    "cut, the next line glued behind a blank": cut(b" "),
    "cut, a hole behind": cut(b"\x00" * 64 + b"\n"),
    "cut by Slurm": cut(b"slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-05-04T06:05:54 ***\n"),
    "cut by Slurm on its own line": cut(b"\nslurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-05-04T06:05:54 ***\n"),
    "cut by a colour": cut(b"\x1b[0m\n"),
    "cut with dots": cut(b"...\n"),
    "cut with an ellipsis": cut("\u2026\n".encode()),
    "cut with a backslash": cut(b"\\\n"),
    "cut with a bar": cut(b" |\n"),
    "cut with a comma": cut(b",\n"),
    "cut with a quote": cut(b'"\n'),
    "cut, the rank of another process": cut(b"[rank3]: words\n"),
    "cut, two empty lines": cut(b"\n\n"),
    "the file ends": at_the_end(b""),
    "the file ends with a line feed": at_the_end(b"\n"),
    "the file ends with a hole": at_the_end(b"\x00" * 512),
    "the file ends with words": at_the_end(b"\nsrun: error: n1: task 3: Exited with exit code 1\n"),
    "split": inside(lambda log: b"\n"),
    "split by a line": inside(lambda log: b"\n" + FOREIGN),
    "split by many lines": inside(lambda log: b"\n" + FOREIGN * 12),
    "split by words": inside(lambda log: b" words "),
    "split by a label": inside(lambda log: b"[default3]:"),
    "split by the line before": inside(lambda log: log.lines[line_of(log, STEP - 1)]),
    "split by the line behind": inside(lambda log: log.lines[line_of(log, STEP + 1)]),
    "split by a hole": inside(lambda log: b"\x00"),
    "split by a colour": inside(lambda log: b"\x1b[31m"),
    "split by a tab": inside(lambda log: b"\t"),
    "split by a comma": inside(lambda log: b","),
    "split by a letter": inside(lambda log: b"x"),
    "split by a byte that is no text": inside(lambda log: b"\xff"),
    "a blank for a byte": instead(b" "),
    "a hole for a byte": instead(b"\x00"),
    "a question mark for a byte": instead(b"?"),
    "a line feed for a byte": instead(b"\n"),
    "a line is lost": lines_of(lambda lines, at: [*lines[:at], *lines[at + 1 :]]),
    "the half is printed again": lines_of(lambda lines, at: [*lines, *lines[at:]]),
    "begun in the middle": lines_of(lambda lines, at: [*lines[at:], *lines[:at]]),
    "decimal commas in one line": lines_of(
        lambda lines, at: [*lines[:at], NUMBER.sub(lambda one: one[0].replace(b".", b","), lines[at]), *lines[at + 1 :]]
    ),
    "decimal commas": whole(lambda data: NUMBER.sub(lambda one: one[0].replace(b".", b","), data)),
    "wrapped at 80 columns": each_line(lambda line: b"\n".join(re.findall(rb".{1,80}", line)) or line),
    "cut at 150 columns": each_line(lambda line: line[:150]),
    "without line feeds": whole(lambda data: data.replace(b"\n", b" ")),
    "without a blank": whole(lambda data: data.replace(b" ", b"")),
    "in capitals": whole(bytes.upper),
}
HARMLESS = {
    "as it was": whole(lambda data: data),
    "CRLF": whole(lambda data: data.replace(b"\n", b"\r\n")),
    "empty lines between": whole(lambda data: data.replace(b"\n", b"\n\n")),
    "indented": each_line(lambda line: b"    " + line),
    "a comment": each_line(lambda line: b"# " + line),
    "quoted": each_line(lambda line: b"> " + line),
    "numbered": each_line(lambda line: b"  1234\t" + line),
    "of Kubernetes": each_line(lambda line: b"2025-06-11T05:14:49.562847123Z stdout F " + line),
    "of the journal": each_line(lambda line: b"Jun 11 05:14:49 node1 slurmstepd[123]: " + line),
    "labelled by srun": each_line(lambda line: b"0: " + line),
    "of Ray, coloured": each_line(lambda line: b"\x1b[36m(Worker pid=7, ip=10.0.0.1)\x1b[0m " + line),
    "two lines exchanged": lines_of(exchanged),
    "numbers in colours": whole(lambda data: NUMBER.sub(lambda one: b"\x1b[36m" + one[0] + b"\x1b[0m", data)),
}


def times(log: ParsedLog) -> dict[int, float]:
    """The time of each step of the last attempt."""
    steps = log.segments[-1].steps if log.segments else None
    return {} if steps is None else dict(zip(steps.index.tolist(), steps.seconds.tolist(), strict=True))


def mean_of(seconds: dict[int, float]) -> float:
    """The mean over the chunk; NaN where a step of it has no time that one can take."""
    chunk = [seconds.get(step, math.nan) for step in WINDOW]
    return sum(chunk) / len(chunk) if all(0 < value < math.inf for value in chunk) else math.nan


def told(log: ParsedLog) -> dict[str, int]:
    return {each.reason: each.count for each in log.dropped}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGED)
def test_the_mean_is_right_or_something_is_told(damage: str) -> None:
    wrong = []
    for name, log in LOGS.items():
        truth = mean_of({one.step: one.seconds for one in log.truth[0]})
        sound = told(parse_blocks([log.data]))
        for data in DAMAGED[damage](log):
            found = parse_blocks([data])
            mean = mean_of(times(found))
            if not (math.isnan(mean) or mean == pytest.approx(truth, rel=1e-9) or told(found) != sound):
                wrong.append((name, mean, truth, data))
    assert wrong == []


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("change", HARMLESS)
def test_what_is_harmless_changes_nothing(change: str, name: str) -> None:
    log = LOGS[name]
    sound = told(parse_blocks([log.data])).keys()
    for data in HARMLESS[change](log):
        found = parse_blocks([data])
        assert len(found.segments) == 1
        truth = {one.step: one.seconds for one in log.truth[0] if not math.isnan(one.seconds)}
        assert {step: value for step, value in times(found).items() if step in truth} == pytest.approx(truth)
        assert told(found).keys() == sound
