"""Hugging Face Trainer: `{'train_runtime': 2577.7505, ..., 'train_steps_per_second': 0.745, 'train_loss': 1.5}`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from pytest_llmbench.ingest.parse.dropped import REPEATED, Tally
from pytest_llmbench.ingest.parse.records import (
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Torn,
    find_line_stop,
    get_printed_unit,
    get_significant_unit,
)
from pytest_llmbench.ingest.parse.scan import REACH_BACK

RESUMED = re.compile(rb"Continuing training from global step (\d{1,15})[ \t]*[\r\n]")
FIELD = re.compile(
    rb"\s*(['\"])([A-Za-z][ !#-&(-z|~]{0,99})\1: ('[^'\r\n]{0,99}'|\"[^\"\r\n]{0,99}\"|[^\s,{}'\"]{1,40})\s*([,}])"
)
FINITE = re.compile(rb"\d{1,18}(?:\.\d{1,18})?(?:e[+-]\d\d)?")
NUMBER = re.compile(rb"-?(?:%b|%b)" % (FINITE.pattern, NOT_FINITE))
QUOTES = b"'\""
BAR = re.compile(rb"\| *(\d{1,15})/(\d{1,15}) \[\d")

RUNTIME, RATE, LOSS = b"train_runtime", b"train_steps_per_second", b"train_loss"
UNITS = {RUNTIME: 0.0001, RATE: 0.001}
"""To what Trainer rounds a number; newer versions then print it as a text of four significant digits."""
DIGITS = 4

LATE_SECONDS = 1.0
"""What a bar may be behind: it is not drawn at every step."""


def read_step(text: bytes, start: int, end: int, origin: RecordOrigin) -> StepRecord | Torn | None:
    """Return the mean of a whole run as one record: its last step, the mean of all its steps.

    The number of steps is time x rate, which leaves a choice where the rate has few digits: then the progress bar
    before it decides, and without one the time of a step is as uncertain as that. Trainer divides all steps that were
    planned by the time, even if it stopped early; where the bar shows that, the segment is not finished.
    """
    if text.startswith(b"Continuing", start):
        resumed = RESUMED.match(text, start, end)
        return StepRecord(origin, int(resumed[1]), NAN, 0.0, rounded=True) if resumed else None
    values = _read_values(text, start, end)
    if values is None:
        return Torn(origin, text[start : find_line_stop(text, start, end)])
    (runtime, unit), (rate, rate_unit) = (_parse_printed(values[name], UNITS[name]) for name in (RUNTIME, RATE))
    planned = Span((runtime - unit / 2) * (rate - rate_unit / 2), (runtime + unit / 2) * (rate + rate_unit / 2))
    done, total, known = _count_steps(text[max(0, start - REACH_BACK) : start], runtime, planned)
    if runtime <= 0 or done <= 0:
        return Torn(origin, text[start : find_line_stop(text, start, end)])
    seconds = runtime / done
    resolution = unit / done if known else seconds * (planned.most - planned.least) / total
    return StepRecord(origin, done, seconds, resolution, total, loss=_read_loss(values), mean_of=done)


def join(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return each run once; the mean of one that was resumed is of the steps that were left to it.

    Its rates are of all steps, but its time is that of the later ones only.
    """
    runs: list[StepRecord] = []
    seen: StepRecord | None = None
    resumed = 0
    for record in records:
        if record.rounded:
            resumed = record.step
        elif seen and _is_same_run(seen, record):
            tally.add(REPEATED, record.origin.line, f"run of {record.step} steps again: {record.seconds:g} s")
        else:
            runs.append(_divide_resumed(record, resumed))
            seen, resumed = record, 0
    return runs


class Span(NamedTuple):
    """How many steps there can be, by what is printed in few digits."""

    least: float
    most: float


def _count_steps(before: bytes, runtime: float, planned: Span) -> tuple[int, int, bool]:
    """Return the steps that were done, those that were planned, and whether that is certain."""
    for bar in reversed(list(BAR.finditer(before))):
        done, total = int(bar[1]), int(bar[2])
        if planned.least <= total <= planned.most and done <= total:
            late = (total - done) * runtime / total <= LATE_SECONDS
            return total if late else done, total, True
    total = round((planned.least + planned.most) / 2)
    return total, total, math.floor(planned.most) == math.ceil(planned.least) == total


def _divide_resumed(record: StepRecord, first: int) -> StepRecord:
    done = record.step - first
    if done <= 0:
        return record._replace(seconds=NAN)
    return record._replace(
        seconds=record.seconds * record.step / done,
        resolution=record.resolution * record.step / done,
        mean_of=done,
    )


def _is_same_run(old: StepRecord, new: StepRecord) -> bool:
    """Tell whether a run is printed again, as a dictionary and as JSON perhaps, its loss with fewer digits."""
    return (old.step, old.seconds) == (new.step, new.seconds) and (
        repr(old.loss) == repr(new.loss)
        or (old.loss is not None and new.loss is not None and math.isclose(old.loss, new.loss, rel_tol=1e-6))
    )


def _read_values(text: bytes, start: int, end: int) -> dict[bytes, bytes] | None:
    """Return the fields from the marker to the end of the record, with every number whole; None if it is torn."""
    values: dict[bytes, bytes] = {}
    closing = b","
    while closing == b",":
        field = FIELD.match(text, start, end)
        if field is None or field[2] in values:
            return None
        values[field[2]] = field[3]
        start, closing = field.end(), field[4]
    whole = all(FINITE.fullmatch(values.get(name, b"").strip(QUOTES)) for name in (RUNTIME, RATE))
    return values if whole and (LOSS not in values or NUMBER.fullmatch(values[LOSS].strip(QUOTES))) else None


def _parse_printed(value: bytes, unit: float) -> tuple[float, float]:
    """Return a number and one unit in its last place, which is not printed where it is a zero."""
    text = value.strip(QUOTES)
    number = float(text)
    rounded = unit if text == value else max(unit, get_significant_unit(number, DIGITS))
    return number, min(rounded, get_printed_unit(text))


def _read_loss(values: dict[bytes, bytes]) -> float | None:
    return float(values[LOSS].strip(QUOTES)) if LOSS in values else None
