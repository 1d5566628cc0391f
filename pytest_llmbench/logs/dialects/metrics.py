"""Metrics of an event file, a table or JSON lines: one value per line.

`llmb scalar: 2/15 1774532589.120000 0.53 iteration-time`

`sources/metric_files.py` writes these lines.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.core.patterns import compile_on_use
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

# "llmb scalar: 2/15 1774532589.120000 0.53 iteration-time": step, total, stamp, value,
# name
LINE = compile_on_use(
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
    """Parse one value of a step, for `merge_records`.

    The result has the value in `seconds`, whatever it is, and its name in `layout`.
    """
    stop = find_line_stop(text, start, end)
    match = LINE.fullmatch(text, start, stop)
    if match is None:
        return TruncatedRecord(origin, text[start:stop])
    step, total, printed_stamp, printed_value, name = match.groups()
    try:
        stamp, value = float(printed_stamp), float(printed_value)
    except ValueError:
        return TruncatedRecord(origin, text[start:stop])
    # A value of any name gives a record: its time stamp shows that the job is alive.
    is_bad_validation = (
        not math.isfinite(value)
        and METRIC_NAMES.get(name.decode("ascii")) is MetricKind.VALIDATION_LOSS
    )
    return StepRecord(
        origin,
        int(step),
        value,
        0.0,
        int(total) if total else None,
        stamp=stamp,
        bad_validation=is_bad_validation,
        layout=(name,),
    )


def merge_records(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Merge the values of each step that has a time into one record.

    If step numbers fall, another run begins.
    """
    merged: list[StepRecord] = []
    run: list[StepRecord] = []
    last_timed_step = -1
    for record in records:
        if record.step < last_timed_step:
            merged += _merge_run(run, tally)
            run, last_timed_step = [], -1
        run.append(record)
        if _get_name(record) in STEP_TIMES:
            last_timed_step = record.step
    return [*merged, *_merge_run(run, tally)]


def _merge_run(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the steps of one run.

    If a step has two times (another process wrote the second), the slower one is kept.
    """
    steps: dict[int, StepRecord] = {}
    values: dict[int, dict[str, float]] = {}  # by step, then by field
    validations: dict[int, float] = {}  # step to the time at which its validation ended
    restarts_clock = False
    for record in records:
        name = _get_name(record)
        kind = METRIC_NAMES.get(name)
        if name in STEP_TIMES:
            restarts_clock |= kind is MetricKind.RESTARTED_SECONDS
            # `rounded` marks a mean of several steps, for `time_steps`
            time = record._replace(
                layout=(), rounded=kind is not MetricKind.STEP_SECONDS
            )
            first_time = steps.setdefault(record.step, time)
            if first_time.seconds != time.seconds:
                text = f"step {time.step} again: {time.seconds:g} s, but {first_time.seconds:g} s before"
                tally.add(DropReason.REPEAT_DISAGREES, time.origin.line, text)
                steps[record.step] = max(
                    first_time, time, key=lambda candidate: candidate.seconds
                )
        elif kind is MetricKind.VALIDATION_LOSS:
            validations[record.step] = record.stamp
        elif kind in FIELDS:
            field = FIELDS[kind]
            value = record.seconds / (TERA if kind is MetricKind.FLOPS else 1.0)
            step_values = values.setdefault(record.step, {})
            # The last value counts, but a non-finite value is kept.
            if math.isfinite(step_values.get(field, 0.0)):
                step_values[field] = value
    merged = [record._replace(**values.get(step, {})) for step, record in steps.items()]  # type: ignore[arg-type]
    if restarts_clock:
        merged = restore_divisor(merged, validations, tally)
    return convert_unit(merged, tally)


def _get_name(record: StepRecord) -> str:
    """Return the name of the value that `read_step` stored in a record."""
    return record.layout[0].decode("ascii")


def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Set `mean_of`, the number of steps that each time covers, in one attempt.

    The first time is dropped if it covers fewer steps than others, because torchtitan
    still divides it by the full interval.
    """
    # A record is `rounded` if its time is the mean of several steps (see `read_step`).
    if not any(record.rounded for record in records):
        return list(records)
    usual_gap = count_usual_gap(records)
    first = records[0]._replace(mean_of=min(usual_gap, max(1, records[0].step)))
    if len(records) > 1 and first.step < usual_gap:
        first = first._replace(seconds=NAN)
    later = [
        record._replace(mean_of=max(1, min(record.step - before.step, usual_gap)))
        for before, record in pairwise(records)
    ]
    return [first, *later]


# --- step times checked against the other numbers of the file -------------------------


# Tolerance of a number of steps that follows from tokens: absolute, and as a share of
# the number.
COUNT_TOLERANCE, COUNT_TOLERANCE_SHARE = 0.05, 0.002

# The wall time of an interval may exceed its step time by this share, and by these
# seconds for writing the events.
LATE_SHARE, LATE_SECONDS = 0.05, 0.05

# From this factor on, wall times and step times are in different units, or cover
# different steps.
MIN_UNIT_FACTOR = 10.0
FEWEST_INTERVALS = 3
# Events at shorter intervals were written afterwards, from other records.
FASTEST_CLOCK = 0.01
# A clock is regular if this share of its ratios to the step times is within this factor
# of their median.
REGULAR_SHARE, REGULAR_FACTOR = 0.75, 1.5
OTHER_UNITS = {"milliseconds": 1e-3, "microseconds": 1e-6}
# Range of the ratio between wall times and step times in the right unit.
LEAST_OF_UNIT, MOST_OF_UNIT = 0.8, 3.0


def restore_divisor(
    records: Sequence[StepRecord], validations: Mapping[int, float], tally: Tally
) -> list[StepRecord]:
    """Return the steps with the true mean time of each log interval.

    torchtitan restarts its clock after a validation, but divides the time by the steps
    of a whole interval. The true number of steps follows from the tokens, which are
    also counted from the restart, or from the steps of the validations. `validations`
    maps steps to the times at which their validations ended.
    """
    interval = _find_interval(records)
    if interval == 1:
        return list(records)
    counts = _count_by_tokens(records, interval)
    restored = [_restore_first(records[0], interval, counts)]
    validated_steps = sorted(validations)
    for index, (before, record) in enumerate(pairwise(records), 1):
        end = bisect_left(validated_steps, record.step)
        # the last validation between the two records, if any
        validations_inside = [
            step
            for step in validated_steps[max(0, end - 1) : end]
            if step >= before.step
        ]
        # The clock started after this step.
        since = max((before.step, record.step - interval, *validations_inside))
        count = record.step - since  # of the steps that the time covers
        doubt = ""
        if counts is None:  # no tokens: the time stamps may contradict the count
            began = validations[since] if since in validations_inside else before.stamp
            doubt = _describe_clock_conflict(
                record,
                seconds=record.seconds * interval,
                passed=record.stamp - began,
            )
        else:
            if validations_inside:
                doubt = _describe_count_conflict(
                    record, by_tokens=counts[index], by_validations=count
                )
            count = min(count, counts[index])
        restored.append(_correct_mean(record, interval, count))
        _tally_interval(restored[-1], count, record.step - before.step, doubt, tally)
    return restored


def _find_interval(records: Sequence[StepRecord]) -> int:
    """Return the number of steps of a log interval.

    The first step is always logged and does not count.
    """
    gaps = [after.step - before.step for before, after in pairwise(records)]
    if not gaps:
        return 1
    if records[0].step == 1:
        if len(gaps) > 1:  # steps 1, 10, 20: only the gap after 10 is an interval
            gaps = gaps[1:]
        elif gaps[0] > 1:  # steps 1 and 10: the interval is 10
            gaps = [records[1].step]
    counts = Counter(gaps)
    return min(counts, key=lambda gap: (-counts[gap], gap))


def _count_by_tokens(records: Sequence[StepRecord], interval: int) -> list[int] | None:
    """Return the steps since the clock started, for each record.

    Returns None if the tokens do not determine every number. Rate and time share a
    clock, so their product is the number of tokens since its start; every step has the
    same number of tokens.
    """
    tokens_since_start = [
        record.tokens * record.seconds * interval for record in records
    ]
    if not all(0 < since_start < math.inf for since_start in tokens_since_start):
        return None
    first_step = records[0].step
    gaps = [after.step - before.step for before, after in pairwise(records)]
    most_steps = [min(gap, interval) for gap in (first_step, *gaps)]
    # Candidates for the tokens per step: those of a first record of one step, or the
    # largest number divided by a whole interval.
    candidates = [tokens_since_start[0]] if first_step == 1 else []
    candidates.append(max(tokens_since_start) / interval)
    for tokens in candidates:
        exact_counts = [since_start / tokens for since_start in tokens_since_start]
        counts = [round(count) for count in exact_counts]
        is_integer = all(
            abs(number - count) <= max(COUNT_TOLERANCE, COUNT_TOLERANCE_SHARE * number)
            for number, count in zip(exact_counts, counts, strict=True)
        )
        is_possible = all(
            1 <= count <= most for count, most in zip(counts, most_steps, strict=True)
        )
        if is_integer and is_possible:
            return counts
    return None


def _restore_first(
    record: StepRecord, interval: int, counts: Sequence[int] | None
) -> StepRecord:
    """Correct the time of the first record.

    Returns it unchanged if the number of its steps is unknown.
    """
    if counts is None or record.step < interval:
        return record
    return _correct_mean(record, interval, counts[0])


def _correct_mean(record: StepRecord, interval: int, count: int) -> StepRecord:
    """Return a record whose time is the mean of `count` steps, not of `interval`."""
    if count == interval:
        return record
    return record._replace(seconds=record.seconds * interval / count)


def _describe_count_conflict(
    record: StepRecord, by_tokens: int, by_validations: int
) -> str:
    """Describe a contradiction between tokens and validations, or return ""."""
    if by_tokens == by_validations:
        return ""
    return (
        f"step {record.step}: the time covers {by_tokens} steps by the tokens, but "
        f"{by_validations} by the last validation"
    )


def _describe_clock_conflict(record: StepRecord, seconds: float, passed: float) -> str:
    """Describe a contradiction between the two durations of an interval.

    `seconds` follows from the step time, `passed` from the event times. Returns "" if
    there is none, or if `passed` is NaN.
    """
    # False if `passed` is NaN
    is_longer = passed > seconds * (1 + LATE_SHARE) + LATE_SECONDS
    if not is_longer:
        return ""
    return f"step {record.step}: the interval took {passed:.4g} s by the event times, but {seconds:.4g} s by the step time"


def _tally_interval(
    record: StepRecord, count: int, steps: int, doubt: str, tally: Tally
) -> None:
    """Count a record with a `doubt`, or whose time covers fewer than its `steps`."""
    line = record.origin.line
    if doubt:
        tally.add(DropReason.TIMES_DISAGREE, line, doubt, last_line=line)
    elif count < steps:
        text = f"step {record.step}: {record.seconds:.4g} s is the mean of {count} of the {steps} steps before it"
        tally.add(DropReason.PARTLY_TIMED, line, text)


# --- units ----------------------------------------------------------------------------


class Clock(NamedTuple):
    """Step times compared with the wall times of the records."""

    ratio: float  # median of wall time per step / printed time
    is_regular: bool  # the ratios of most intervals agree
    wall_seconds: float  # median wall time per step


def convert_unit(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Convert step times to seconds if the wall times show another unit.

    MindFormers writes milliseconds under Megatron's name for seconds. The TFLOP/s of
    such records are wrong, so they are dropped. Wall times that differ by a factor of
    ten or more, and fit no unit, are counted as a contradiction.
    """
    clock = _read_clock(records)
    if clock is None or 1 / MIN_UNIT_FACTOR <= clock.ratio <= MIN_UNIT_FACTOR:
        return list(records)
    is_clock_of_run = clock.is_regular and clock.wall_seconds >= FASTEST_CLOCK
    if clock.ratio < 1 and not is_clock_of_run:
        return list(records)  # everything was written at once
    first, last = records[0].origin.line, records[-1].origin.line
    printed = f"{median(record.seconds for record in records):.4g}"
    clock_text = f"the events are {clock.wall_seconds:.4g} s apart per step"
    for name, unit in OTHER_UNITS.items():
        if LEAST_OF_UNIT <= clock.ratio / unit <= MOST_OF_UNIT:
            text = f"{printed} is in {name}: {clock_text}"
            tally.add(DropReason.OTHER_UNIT, first, text, len(records))
            return [_convert_time(record, unit) for record in records]
    tally.add(
        DropReason.TIMES_DISAGREE,
        first,
        f"a step of {printed} s, but {clock_text}",
        len(records),
        last_line=last,
    )
    return list(records)


def _read_clock(records: Sequence[StepRecord]) -> Clock | None:
    """Compare step times with wall times; None if there are too few."""
    # wall time per step, and printed time
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
    close_ratios = sum(
        ratio / REGULAR_FACTOR <= candidate <= ratio * REGULAR_FACTOR
        for candidate in ratios
    )
    return Clock(
        ratio,
        close_ratios >= REGULAR_SHARE * len(ratios),
        median(wall for wall, _ in intervals),
    )


def _convert_time(record: StepRecord, unit: float) -> StepRecord:
    """Return a record with the time in seconds, from a time in `unit` seconds.

    An integer time was rounded, so `unit` becomes the resolution. TFLOP/s are dropped.
    """
    resolution = unit if record.seconds == int(record.seconds) else record.resolution
    return record._replace(
        seconds=record.seconds * unit, resolution=resolution, tflops=NAN
    )
