"""The times of steps that print none of their own, but a clock: a time stamp, or the
time since training began."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.logs.step_records import NAN, StepRecord, Tally

# How much faster than others the steps behind a restart of the clock may be.
FASTER = 0.9

HOUR = 3600.0
# By how many seconds a jump of the clock may differ from an hour, beside the time of a
# step.
SLACK = 2.0


def mark_evaluations(records: Sequence[StepRecord]) -> Iterator[StepRecord]:
    """Yield the training steps of one rank; the time of one after an evaluation
    (mean_of 0) counts from that one's end on: it is no part of a step."""
    since: tuple[int, float] | None = None
    for record in records:
        if record.mean_of == 0:
            since = record.step, record.stamp
        else:
            yield record._replace(since=since)
            since = None


def mark_restarts(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Return the steps of one rank, those that a clock which began anew times since the
    step before it.

    A resumed run counts on where it was, and its time so far is short again: nearer to
    that of its own steps than to what the step before it shows. Untimed if it made its
    steps faster than others: it began behind that step then.
    """
    falls = [
        place
        for place, (before, record) in enumerate(pairwise(records), 1)
        if _falls(before, record)
    ]
    if not falls:
        return list(records)
    usual = _compute_usual(records)
    marked = list(records)
    for place in falls:
        before, record = records[place - 1], records[place]
        steps = record.step - before.step
        if record.stamp >= before.stamp / 2 + usual * steps:
            continue  # the clock of the machine was set
        text = f"step {record.step} at {record.stamp:g} s, step {before.step} at {before.stamp:g} s"
        tally.add(DropReason.CLOCK_RESTARTED, record.origin.line, text)
        if record.stamp + record.resolution >= FASTER * usual * steps:
            marked[place] = record._replace(since=(before.step, 0.0))
    return marked


def _falls(before: StepRecord, record: StepRecord) -> bool:
    return record.step > before.step and record.stamp < before.stamp


def _compute_usual(records: Sequence[StepRecord]) -> float:
    """Return the median time of a step by the clock, 0 without any two lines that show
    it."""
    seconds = [
        (record.stamp - before.stamp) / (record.step - before.step)
        for before, record in pairwise(records)
        if record.step > before.step and record.stamp > before.stamp
    ]
    return sorted(seconds)[len(seconds) // 2] if seconds else 0.0


def time_steps(
    records: Sequence[StepRecord], *, first_step: int | None = None
) -> list[StepRecord]:
    """Return the steps of one attempt with their times: the time since the line before,
    shared by the steps between.

    `stamp` is the clock of a line, and `resolution` one unit in its last place. The
    line before is that of a step, or of an evaluation after it. The time is NaN for the
    first one, and where a line has no stamp or an earlier one than the line before.
    With `first_step`, the number of a run's first step, the clock began with the
    training: then the first line has a time, too, unless it stands for more steps than
    others do, which a resumed run did not make.
    """
    gaps = sorted(record.step - before.step for before, record in pairwise(records))
    if not gaps:
        return [record._replace(resolution=0.0) for record in records]
    place, jump = find_set_clock(records) if first_step is None else (0, 0.0)
    usual = gaps[len(gaps) // 2]
    first = records[0]._replace(mean_of=min(records[0].step, usual) or 1)
    if (
        first_step is not None and first.since is not None and first.since[1] == 0
    ):  # its clock began anew there
        first = _time_step(first, *first.since, 0.0)
    elif first_step is not None and 0 < first.step - first_step + 1 <= usual:
        first = _time_step(first, first_step - 1, 0.0, 0.0)
    else:
        first = first._replace(resolution=0.0)
    timed = [
        first,
        *(_time_after(record, before) for before, record in pairwise(records)),
    ]
    if jump:
        before, after = records[place - 1], records[place]
        timed[place] = _time_after(
            after._replace(stamp=after.stamp - jump), before
        )._replace(stamp=after.stamp)
    return timed


def find_set_clock(records: Sequence[StepRecord]) -> tuple[int, float]:
    """Return the place of the record before which the clock was set by an hour, and by
    how many seconds; 0 and 0 where it was not.

    One single jump of an hour, give or take the time of its steps, is a clock that was
    set if time cannot have passed: it goes back, or the rate of its line is as ever.
    Any other jump, and a second one, is none.
    """
    stamps = [record.stamp for record in records]
    if all(0 <= after - before < HOUR - SLACK for before, after in pairwise(stamps)):
        return 0, 0.0
    passed = [
        record.stamp - _get_begin(record, before)[1]
        for before, record in pairwise(records)
    ]
    jumps = [
        number
        for number, seconds in enumerate(passed, 1)
        if not 0 <= seconds < HOUR - SLACK
    ]
    jumps = [number for number in jumps if not math.isnan(passed[number - 1])]
    if len(jumps) != 1:
        return 0, 0.0
    place = jumps[0]
    jump = math.copysign(HOUR, passed[place - 1])
    usual = _estimate_gap(
        [seconds for number, seconds in enumerate(passed, 1) if number != place],
        records,
        place,
    )
    likely = abs(passed[place - 1] - jump - usual) <= SLACK + usual < HOUR / 3
    if not likely or (jump > 0 and not _is_as_fast(records, place)):
        return 0, 0.0
    return place, jump


def _estimate_gap(
    passed: Sequence[float], records: Sequence[StepRecord], place: int
) -> float:
    """Return how long the steps before a record take by the other gaps, infinite
    without any."""
    known = sorted(seconds for seconds in passed if math.isfinite(seconds))
    steps = [record.step - before.step for before, record in pairwise(records)]
    typical = sorted(steps)[len(steps) // 2]
    return known[len(known) // 2] * steps[place - 1] / typical if known else math.inf


def _is_as_fast(records: Sequence[StepRecord], place: int) -> bool:
    """Tell whether the rate that a record prints is at least half of what the others
    print."""
    rates = [
        record.throughput if math.isnan(record.tokens) else record.tokens
        for record in records
    ]
    known = sorted(rate for rate in rates if math.isfinite(rate))
    return bool(known) and rates[place] >= 0.5 * known[len(known) // 2]


def count_usual_gap(records: Sequence[StepRecord]) -> int:
    """Return how many steps most lines stand for: those since the line before."""
    counts = Counter(after.step - before.step for before, after in pairwise(records))
    return min(counts, key=lambda gap: (-counts[gap], gap), default=1)


def _time_after(record: StepRecord, before: StepRecord) -> StepRecord:
    if record.since is None:
        return _time_step(record, before.step, before.stamp, before.resolution)
    return _time_step(record, *_get_begin(record, before), before.resolution)


def _get_begin(record: StepRecord, before: StepRecord) -> tuple[int, float]:
    """Return the step and the clock from which on the time of a record counts."""
    if record.since and before.step <= record.since[0] < record.step:
        return record.since
    return before.step, before.stamp


def _time_step(
    record: StepRecord, step: int, stamp: float, other_unit: float
) -> StepRecord:
    steps = record.step - step
    unit = max(record.resolution, other_unit)
    seconds = _round(record.stamp - stamp, unit) / steps
    if not 0 < seconds < math.inf:
        return record._replace(mean_of=steps, seconds=NAN, resolution=0.0)
    return record._replace(seconds=seconds, resolution=unit / steps, mean_of=steps)


def _round(difference: float, unit: float) -> float:
    """Return a difference of two clocks without the digits that a float makes of
    them."""
    return (
        round(difference, 1 + math.ceil(-math.log10(unit)))
        if unit > 0 and math.isfinite(difference)
        else difference
    )
