"""Hugging Face Trainer: `{'train_runtime': 2577.7505, ..., 'train_steps_per_second': 0.745, 'train_loss': 1.5}`.

While it trains it prints `{'loss': 1.23, 'grad_norm': 0.45, 'learning_rate': 1e-05, 'epoch': 0.1}`: such a record has
no step and no time. What all of a run say together stands in the record of the whole run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from pytest_llmbench.core.models import DropReason
from pytest_llmbench.ingest.parse.records import (
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepRecord,
    Tally,
    Torn,
    find_line_stop,
    get_printed_unit,
    get_significant_unit,
    show_same_time,
)
from pytest_llmbench.ingest.parse.scan import REACH_BACK

RESUMED = re.compile(rb"Continuing training from global step (\d{1,15})[ \t]*[\r\n]")
FIELD = re.compile(
    rb"\s*(['\"])([A-Za-z][ !#-&(-z|~]{0,99})\1: ('[^'\r\n]{0,99}'|\"[^\"\r\n]{0,99}\"|[^\s,{}'\"]{1,40})\s*([,}])"
)
FINITE = re.compile(rb"\d{1,18}(?:\.\d{1,40})?(?:e[+-]\d\d)?")
NUMBER = re.compile(rb"-?(?:%b|%b)" % (FINITE.pattern, NOT_FINITE))
QUOTES = b"'\""
# The step of the record, in trainer_state.json before and in ms-swift behind its time.
STEP_BEFORE = re.compile(rb"\{[^{}]*?\"step\": (\d{1,15}),[^{}]*\Z")
LOSS_BEFORE = re.compile(rb"\{[^{}]*?\"train_loss\": ([^\s,]{1,40}),[^{}]*\Z")
STEP_BEHIND = b"global_step/max_steps"
STEP_OF = re.compile(rb"['\"](\d{1,15})/(\d{1,15})['\"]")
BAR = re.compile(rb"\| *(\d{1,15})/(\d{1,15}) \[\d")

RUNTIME, RATE, LOSS = b"train_runtime", b"train_steps_per_second", b"train_loss"
# To what Trainer rounds a number; newer versions then print it as a text of four significant digits.
UNITS = {RUNTIME: 0.0001, RATE: 0.001}
DIGITS = 4

# So many lines apart processes print their records of one run: bars of another run would stand between them.
CLOSE = 1

# What a bar may be behind: it is not drawn at every step.
LATE_SECONDS = 1.0

LEARNING_RATE = b"'learning_rate': "
LEARNING_RATE_OF_STATE = b'"learning_rate": '

EPOCH = re.compile(rb"'epoch': '?(\d{1,9}(?:\.\d{1,40})?)\b")

# A number; newer versions print it as a text.
VALUE = rb"'?(-?(?:\d{1,18}(?:\.\d{1,40})?(?:e[+-]?\d{1,3})?|%b))'?" % NOT_FINITE
BEFORE = re.compile(rb"\{'loss': %b, (?:[^{}\r\n]*?'grad_norm': %b, )?[^{}\r\n]*\Z" % (VALUE, VALUE))
AFTER = re.compile(rb"'learning_rate': %b[,}]([^{}\r\n]*)" % VALUE)
PROGRESS = (b"loss", b"grad_norm", b"learning_rate")
# Keys that only training on rewards or preferences has.
REWARD_NAMES = re.compile(rb"(?:rewards?(?:_std)?|objective|logps)(?:/|\Z)")
REWARDS = re.compile(rb"'(?:rewards?(?:_std)?|objective|logps)['/]")

# How much smaller the mean of all losses may be than that of the printed ones, which are rounded; and half a unit.
ALIKE = 0.97
LOSS_ROUNDING = 0.00005

# So many last records without a number are a run that diverged; a single one may be a step that was skipped.
LAST_BAD = 2


class Span(NamedTuple):
    """How many steps there can be, by what is printed in few digits."""

    least: float
    most: float


def read_step(text: bytes, start: int, end: int, origin: RecordOrigin) -> StepRecord | Torn | None:
    """Return what a record says, with mean_of 0 where it is of no whole run; see `_read_run`."""
    if text.startswith(LEARNING_RATE_OF_STATE, start):
        return _read_state(text, start, end, origin)
    if not text.startswith(LEARNING_RATE, start):
        return _read_run(text, start, end, origin)
    before, after = BEFORE.search(text[max(0, start - REACH_BACK) : start]), AFTER.match(text, start, end)
    if before is None or after is None:
        return None
    return StepRecord(
        origin,
        0,
        NAN,
        0.0,
        loss=float(before[1]),
        grad_norm=float(before[2]) if before[2] else None,
        rate=float(after[1]),
        mean_of=0,
        rewards=any(map(REWARDS.search, (before[0], after[2]))),
        consumed=float(epoch[1]) if (epoch := EPOCH.search(after[2])) else NAN,
    )


def _read_state(text: bytes, start: int, end: int, origin: RecordOrigin) -> StepRecord | None:
    """Return the record around `text[start]` of a state, over several lines, or of a file with one on each line."""
    begin = text.rfind(b"{", max(0, start - REACH_BACK), start)
    values = read_fields(text, begin + 1, end) if begin >= 0 else None
    numbers = {name: value.strip(QUOTES) for name, value in (values or {}).items() if name in PROGRESS}
    if b"loss" not in numbers or not all(map(NUMBER.fullmatch, numbers.values())):
        return None
    norm, epoch = numbers.get(b"grad_norm"), (values or {}).get(b"epoch", b"")
    return StepRecord(
        origin,
        0,
        NAN,
        0.0,
        loss=float(numbers[b"loss"]),
        grad_norm=float(norm) if norm is not None else None,
        rate=float(numbers.get(b"learning_rate", b"nan")),
        mean_of=0,
        rewards=any(map(REWARD_NAMES.match, values or ())),
        consumed=float(epoch) if FINITE.fullmatch(epoch) else NAN,
    )


def join(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return each run once, with what the records before its own say together."""
    runs = _join_runs([record for record in records if record.mean_of], tally)
    joined = []
    before = -1
    for run in runs:
        own = [record for record in records if not record.mean_of and before < record.origin.offset < run.origin.offset]
        before = run.origin.offset
        if doubt := _find_resumed(run, [record.loss for record in _find_last_start(own) if record.loss is not None]):
            tally.add(DropReason.TORN, run.origin.line, doubt)
        else:
            joined.append(_add_progress(run, own) if own else run)
    return joined


def _find_last_start(own: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """Return the records since the epoch went back: those before are of a run that died."""
    back = (place for place in range(len(own) - 1, 0, -1) if own[place].consumed < own[place - 1].consumed)
    return own[next(back, 0) :]


def _find_resumed(run: StepRecord, losses: Sequence[float]) -> str:
    """Return why the time of a run is not that of all its steps, though nothing says that it was resumed.

    Trainer divides the losses since it was started by all steps, also by those that were done before. The steps behind
    the last printed loss may have had none, and the first loss may be that of a single step.
    """
    if run.loss is None or run.mean_of < run.step or not losses:
        return ""
    least = min(sum(losses) / (len(losses) + 1), sum(losses[1:]) / len(losses))
    if least <= 0 or not run.loss < ALIKE * least - LOSS_ROUNDING:
        return ""
    mean = sum(losses) / len(losses)
    return f"train_loss {run.loss:g} beside losses of {mean:g}: resumed, its time is that of the last steps only"


def _add_progress(run: StepRecord, own: Sequence[StepRecord]) -> StepRecord:
    """Return the record of a run with its largest learning rate, its gradient norm, and a loss that is none at the end.

    Trainer counts a loss that is no number as 0: the mean of the whole run looks sound.
    """
    return run._replace(
        loss=NAN if _ends_badly([record.loss for record in own]) else run.loss,
        grad_norm=_combine_norms([record.grad_norm for record in own if record.grad_norm is not None]),
        rate=max(record.rate for record in own),
        rewards=any(record.rewards for record in own),
    )


def _combine_norms(norms: Sequence[float]) -> float | None:
    """Return one gradient norm for many: NaN where the last ones are none, else the largest that is a number."""
    if not norms:
        return None
    return NAN if _ends_badly(norms) else max(norm for norm in norms if math.isfinite(norm))


def _ends_badly(values: Sequence[float | None]) -> bool:
    last = values[-LAST_BAD:]
    return all(value is not None and not math.isfinite(value) for value in last)


def _read_run(text: bytes, start: int, end: int, origin: RecordOrigin) -> StepRecord | Torn | None:
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
    before = text[max(0, start - REACH_BACK) : start]
    in_state = STEP_BEFORE.search(before)
    behind = STEP_OF.fullmatch(values.get(STEP_BEHIND, b""))
    step = in_state or (behind if behind and planned.least <= int(behind[2]) <= planned.most else None)
    done, total, is_certain = _count_steps(before, runtime, planned, int(step[1]) if step else 0)
    if runtime <= 0 or done <= 0:
        return Torn(origin, text[start : find_line_stop(text, start, end)])
    seconds = runtime / done
    resolution = unit / done if is_certain else seconds * (planned.most - planned.least) / total
    record = StepRecord(origin, done, seconds, resolution, total, loss=_read_loss(values), mean_of=done)
    return record._replace(since=(done, NAN)) if in_state else record


def _join_runs(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
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
            text = f"run of {record.step} steps again: {record.seconds:g} s"
            tally.add(DropReason.REPEATED, record.origin.line, text)
            seen = seen._replace(origin=record.origin)
        else:
            runs.append(_divide_resumed(record, _find_end_before(seen, record) or resumed))
            seen, resumed = record, 0
    return runs


def _find_end_before(old: StepRecord | None, new: StepRecord) -> int:
    """Return the last step of the run that another one went on from, 0 for none: a state holds the records of both."""
    both = old is not None and old.since is not None and new.since is not None
    return old.step if both and old and old.step < new.step else 0


def _count_steps(before: bytes, runtime: float, planned: Span, step: int) -> tuple[int, int, bool]:
    """Return the steps that were done, those that were planned, and whether that is certain.

    `step` is the one that the record itself names, 0 where it names none.
    """
    if 0 < step <= planned.most:
        return step, step if step >= planned.least else round((planned.least + planned.most) / 2), True
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
    """Tell whether a run is printed again: as a dictionary and as JSON perhaps, its loss with fewer digits; or by
    another process, at once, which took nearly as long."""
    lines = new.origin.line - old.origin.line
    if new.step == old.step and lines <= CLOSE and old.possible and show_same_time(old, new):
        return True
    return (old.step, old.seconds) == (new.step, new.seconds) and (
        repr(old.loss) == repr(new.loss)
        or (old.loss is not None and new.loss is not None and math.isclose(old.loss, new.loss, rel_tol=1e-6))
    )


def _read_values(text: bytes, start: int, end: int) -> dict[bytes, bytes] | None:
    """Return the fields from the marker to the end of the record, and the loss of a state, which stands before it; None
    if it is torn."""
    values = read_fields(text, start, end)
    if values is None:
        return None
    before = LOSS_BEFORE.search(text, max(0, start - REACH_BACK), start)
    if before and LOSS not in values:
        values[LOSS] = before[1]
    whole = all(FINITE.fullmatch(values.get(name, b"").strip(QUOTES)) for name in (RUNTIME, RATE))
    return values if whole and (LOSS not in values or NUMBER.fullmatch(values[LOSS].strip(QUOTES))) else None


def read_fields(text: bytes, start: int, end: int) -> dict[bytes, bytes] | None:
    """Return the fields from a place to the end of the record; None if it is torn."""
    values: dict[bytes, bytes] = {}
    closing = b","
    while closing == b",":
        field = FIELD.match(text, start, end)
        if field is None or field[2] in values:
            return None
        values[field[2]] = field[3]
        start, closing = field.end(), field[4]
    return values


def _parse_printed(value: bytes, unit: float) -> tuple[float, float]:
    """Return a number and one unit in its last place, which is not printed where it is a zero."""
    text = value.strip(QUOTES)
    number = float(text)
    rounded = unit if text == value else max(unit, get_significant_unit(number, DIGITS))
    return number, min(rounded, get_printed_unit(text))


def _read_loss(values: dict[bytes, bytes]) -> float | None:
    return float(values[LOSS].strip(QUOTES)) if LOSS in values else None
