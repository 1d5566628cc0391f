"""Metrics of an event file, a table or JSON lines: `llmb scalar: 2/15 1774532589.120000
0.53 iteration-time`.

`sources/metric_files.py` makes these lines; each holds one value of a step.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.logs.clock import count_usual_gap
from pytest_llmbench.logs.sources.metric_files import (
    METRIC_NAMES,
    STEP_TIMES,
    MetricKind,
)
from pytest_llmbench.logs.step_records import (
    NAN,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    find_line_stop,
)

LINE = re.compile(
    rb"llmb scalar: (\d{1,15})/(\d{0,15}) (\S{1,40}) (-?(?:\d\S{0,39}|nan|inf)) ([ -~]{1,100})"
)

FIELDS = {
    MetricKind.LOSS: "loss",
    MetricKind.GRAD_NORM: "grad_norm",
    MetricKind.TFLOPS: "tflops",
    MetricKind.FLOPS: "tflops",
    MetricKind.TOKENS: "tokens",
    MetricKind.BATCH: "batch",
    MetricKind.LEARNING_RATE: "rate",
    MetricKind.CONSUMED: "consumed",
    MetricKind.SAMPLES: "samples",
    MetricKind.STEP_TOKENS: "step_tokens",
    MetricKind.TARGETS: "targets",
}
TERA = 1e12


def read_step(
    text: bytes, start: int, end: int, origin: RecordOrigin
) -> StepRecord | TruncatedRecord | None:
    """Return one value of a step, for `merge_records`; its name stands in `layout`."""
    stop = find_line_stop(text, start, end)
    match = LINE.fullmatch(text, start, stop)
    if match is None:
        return TruncatedRecord(origin, text[start:stop])
    try:
        moment, value = float(match[3]), float(match[4])
    except ValueError:
        return TruncatedRecord(origin, text[start:stop])
    total = int(match[2]) if match[2] else None
    # A clock makes it a sign of life, wherever its run is.
    bad = (
        not math.isfinite(value)
        and METRIC_NAMES.get(match[5].decode("ascii")) is MetricKind.VALIDATION_LOSS
    )
    return StepRecord(
        origin,
        int(match[1]),
        value,
        0.0,
        total,
        stamp=moment,
        bad_validation=bad,
        layout=(match[5],),
    )


def merge_records(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return one record for each step that has a time, with the other values of that
    step; steps that fall are of another run."""
    joined: list[StepRecord] = []
    run: list[StepRecord] = []
    last = -1
    for record in records:
        if record.step < last:
            joined += _join_run(run, tally)
            run, last = [], -1
        run.append(record)
        last = record.step if _get_name(record) in STEP_TIMES else last
    return [*joined, *_join_run(run, tally)]


def _join_run(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the steps of one run; of two times of a step the slower one counts:
    another process wrote the second."""
    steps: dict[int, StepRecord] = {}
    others: dict[int, dict[str, float]] = {}
    validations: dict[int, float] = {}
    restarts = False
    for record in records:
        name = _get_name(record)
        kind = METRIC_NAMES.get(name)
        if name in STEP_TIMES:
            restarts |= kind is MetricKind.RESTARTED_SECONDS
            time = record._replace(
                layout=(), rounded=kind is not MetricKind.STEP_SECONDS
            )
            before = steps.setdefault(record.step, time)
            if before.seconds != time.seconds:
                text = f"step {time.step} again: {time.seconds:g} s, but {before.seconds:g} s before"
                tally.add(DropReason.REPEAT_DISAGREES, time.origin.line, text)
                steps[record.step] = max(before, time, key=lambda each: each.seconds)
        elif kind is MetricKind.VALIDATION_LOSS:
            validations[record.step] = record.stamp
        elif kind in FIELDS:
            value = record.seconds / (TERA if kind is MetricKind.FLOPS else 1.0)
            of_step = others.setdefault(record.step, {})
            if math.isfinite(
                of_step.get(FIELDS[kind], 0.0)
            ):  # what diverged once stays so
                of_step[FIELDS[kind]] = value
    joined = [record._replace(**others.get(step, {})) for step, record in steps.items()]  # type: ignore[arg-type]
    if restarts:
        joined = restore_divisor(joined, validations, tally)
    return convert_unit(joined, tally)


def _get_name(record: StepRecord) -> str:
    return record.layout[0].decode("ascii")


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt with how many steps each time is the mean of.

    The first time is left out where it stands for fewer steps than others do:
    torchtitan divides it by as many.
    """
    if not any(record.rounded for record in records):
        return list(records)
    usual = count_usual_gap(records)
    first = records[0]._replace(mean_of=min(usual, max(1, records[0].step)))
    if len(records) > 1 and first.step < usual:
        first = first._replace(seconds=NAN)
    rest = [
        record._replace(mean_of=max(1, min(record.step - before.step, usual)))
        for before, record in pairwise(records)
    ]
    return [first, *rest]


# --- step times checked against the other numbers of the file -------------------------


# How far a count of steps that follows from tokens may be from a whole number: at
# least, and as a share of it.
WHOLE, WHOLE_SHARE = 0.05, 0.002

# The wall time of an interval may exceed its time by this share, and by so many seconds
# for writing the events.
LATE_SHARE, LATE_SECONDS = 0.05, 0.05

# From this factor on wall times and step times are not of the same unit, or not of the
# same steps.
GROSS = 10.0
FEWEST_INTERVALS = 3
# Events that follow each other faster were written afterwards, from other records.
FASTEST_CLOCK = 0.01
# A clock is regular: so many of its ratios to the step times are within this factor of
# their median.
REGULAR_SHARE, REGULAR_FACTOR = 0.75, 1.5
OTHER_UNITS = {"milliseconds": 1e-3, "microseconds": 1e-6}
# A step takes no longer than the clock shows, and not much less.
LEAST_OF_UNIT, MOST_OF_UNIT = 0.8, 3.0


def restore_divisor(
    records: Sequence[StepRecord], validations: Mapping[int, float], tally: Tally
) -> list[StepRecord]:
    """Return steps with the mean of each log interval, of times that were divided by
    the steps of a whole one.

    torchtitan's clock begins anew after a validation, but its time is divided as if it
    had not. How many steps a time is of follows from the tokens, which are counted
    anew, too, or else from the steps of the validations. `validations` are steps with
    the time when their validation ended.
    """
    interval = _find_interval(records)
    if interval == 1:
        return list(records)
    counts = _count_by_tokens(records, interval)
    restored = [_restore_first(records[0], interval, counts)]
    validated = sorted(validations)
    for place, (before, record) in enumerate(pairwise(records), 1):
        end = bisect_left(validated, record.step)
        starts = [
            step for step in validated[max(0, end - 1) : end] if step >= before.step
        ]  # the last one decides
        since = max((before.step, record.step - interval, *starts))
        count = record.step - since
        if counts is None:
            began = validations[since] if since in starts else before.stamp
            doubt = _compare_clock(
                record, record.seconds * interval, record.stamp - began
            )
        else:
            doubt = _compare_counts(record, counts[place], count) if starts else ""
            count = min(count, counts[place])
        restored.append(_divide(record, interval, count))
        _tell_interval(restored[-1], count, record.step - before.step, doubt, tally)
    return restored


def _find_interval(records: Sequence[StepRecord]) -> int:
    """Return the number of steps of a log interval; the first step is logged besides,
    whatever it is."""
    gaps = [after.step - before.step for before, after in pairwise(records)]
    if not gaps:
        return 1
    if records[0].step == 1 and len(gaps) > 1:
        gaps = gaps[1:]
    elif records[0].step == 1 < gaps[0]:
        gaps = [records[1].step]
    counts = Counter(gaps)
    return min(counts, key=lambda gap: (-counts[gap], gap))


def _count_by_tokens(records: Sequence[StepRecord], interval: int) -> list[int] | None:
    """Return the steps since the clock began for each record, None if tokens do not
    determine them all.

    The rate is of the same clock as the time, so both make the tokens since then; a
    step has always as many.
    """
    amounts = [record.tokens * record.seconds * interval for record in records]
    if not all(0 < amount < math.inf for amount in amounts):
        return None
    first = records[0].step
    most = [
        min(first, interval),
        *(
            min(after.step - before.step, interval)
            for before, after in pairwise(records)
        ),
    ]
    of_step = [amounts[0]] if first == 1 else []
    for tokens in (*of_step, max(amounts) / interval):
        exact = [amount / tokens for amount in amounts]
        counts = [round(count) for count in exact]
        whole = all(
            abs(number - count) <= max(WHOLE, WHOLE_SHARE * number)
            for number, count in zip(exact, counts, strict=True)
        )
        if whole and all(
            1 <= count <= limit for count, limit in zip(counts, most, strict=True)
        ):
            return counts
    return None


def _restore_first(
    record: StepRecord, interval: int, counts: Sequence[int] | None
) -> StepRecord:
    """Return the first record, unchanged where nothing shows how many steps its time is
    of."""
    return (
        record
        if counts is None or record.step < interval
        else _divide(record, interval, counts[0])
    )


def _divide(record: StepRecord, interval: int, count: int) -> StepRecord:
    """Return a record whose time is the mean of `count` steps, not of `interval`."""
    return (
        record
        if count == interval
        else record._replace(seconds=record.seconds * interval / count)
    )


def _compare_counts(record: StepRecord, by_tokens: int, by_validations: int) -> str:
    """Return how tokens and validations contradict each other, "" if they agree."""
    if by_tokens == by_validations:
        return ""
    return (
        f"step {record.step}: its time covers {by_tokens} steps by the tokens, but "
        f"{by_validations} by the last validation"
    )


def _compare_clock(record: StepRecord, seconds: float, passed: float) -> str:
    """Return how the wall time contradicts the time of an interval, "" if it does not
    or there is none."""
    if not passed > seconds * (1 + LATE_SHARE) + LATE_SECONDS:
        return ""
    return f"step {record.step}: its interval took {passed:.4g} s by the event times, but {seconds:.4g} s by its step time"


def _tell_interval(
    record: StepRecord, count: int, steps: int, doubt: str, tally: Tally
) -> None:
    line = record.origin.line
    if doubt:
        tally.add(DropReason.TIMES_DISAGREE, line, doubt, last_line=line)
    elif count < steps:
        text = f"step {record.step}: {record.seconds:.4g} s is the mean of {count} of the {steps} steps before it"
        tally.add(DropReason.PARTLY_TIMED, line, text)


# --- units ----------------------------------------------------------------------------


class Clock(NamedTuple):
    """What the wall times of records show of their step times."""

    ratio: float  # wall time of a step over its printed time, the median
    regular: bool  # the ratios of most intervals are alike
    wall_seconds: float  # the median wall time of a step


def convert_unit(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return steps with times in seconds, where their wall times show that they were
    written in another unit.

    MindFormers writes milliseconds under Megatron's name of seconds. Its rates are no
    TFLOP/s then, and left out. Wall times that differ by a factor of ten or more and
    fit no unit are a contradiction.
    """
    clock = _read_clock(records)
    if clock is None or 1 / GROSS <= clock.ratio <= GROSS:
        return list(records)
    if clock.ratio < 1 and not (clock.regular and clock.wall_seconds >= FASTEST_CLOCK):
        return list(records)  # no clock of the run: all was written at once
    first, last = records[0].origin.line, records[-1].origin.line
    shown = f"{median(record.seconds for record in records):.4g}"
    clock_text = f"the events are {clock.wall_seconds:.4g} s per step apart"
    for name, unit in OTHER_UNITS.items():
        if LEAST_OF_UNIT <= clock.ratio / unit <= MOST_OF_UNIT:
            text = f"{shown} is in {name}: {clock_text}"
            tally.add(DropReason.OTHER_UNIT, first, text, len(records))
            return [_convert(record, unit) for record in records]
    tally.add(
        DropReason.TIMES_DISAGREE,
        first,
        f"a step of {shown} s, but {clock_text}",
        len(records),
        last_line=last,
    )
    return list(records)


def _read_clock(records: Sequence[StepRecord]) -> Clock | None:
    """Return what wall times show, None if there are too few."""
    intervals = [
        ((after.stamp - before.stamp) / (after.step - before.step), after.seconds)
        for before, after in pairwise(records)
        if after.possible
        and after.step > before.step
        and math.isfinite(after.stamp - before.stamp)
    ]
    if len(intervals) < FEWEST_INTERVALS:
        return None
    ratios = [wall / seconds for wall, seconds in intervals]
    ratio = median(ratios)
    alike = sum(
        ratio / REGULAR_FACTOR <= each <= ratio * REGULAR_FACTOR for each in ratios
    )
    return Clock(
        ratio,
        alike >= REGULAR_SHARE * len(ratios),
        median(wall for wall, _ in intervals),
    )


def _convert(record: StepRecord, unit: float) -> StepRecord:
    """Return a record with its time in seconds; a whole number of a unit is rounded to
    it."""
    resolution = unit if record.seconds == int(record.seconds) else record.resolution
    return record._replace(
        seconds=record.seconds * unit, resolution=resolution, tflops=NAN
    )
