"""The times of steps that print none of their own, but a clock: a time stamp, or the time since training began."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_llmbench.ingest.parse.records import NAN, StepRecord


def mark_evaluations(records: Sequence[StepRecord]) -> Iterator[StepRecord]:
    """Yield the training steps of one rank; the time of one after an evaluation (mean_of 0) counts from that one's end
    on: it is no part of a step."""
    since: tuple[int, float] | None = None
    for record in records:
        if record.mean_of == 0:
            since = record.step, record.stamp
        else:
            yield record._replace(since=since)
            since = None


def time_steps(records: Sequence[StepRecord], *, first_step: int | None = None) -> list[StepRecord]:
    """Return the steps of one attempt with their times: the time since the line before, shared by the steps between.

    `stamp` is the clock of a line, and `resolution` one unit in its last place. The line before is that of a step, or
    of an evaluation after it. The time is NaN for the first one, and where a line has no stamp or an earlier one than
    the line before. With `first_step`, the number of a run's first step, the clock began with the training: then the
    first line has a time, too, unless it stands for more steps than others do, which a resumed run did not make.
    """
    gaps = sorted(record.step - before.step for before, record in pairwise(records))
    if not gaps:
        return [record._replace(resolution=0.0) for record in records]
    usual = gaps[len(gaps) // 2]
    first = records[0]._replace(mean_of=min(records[0].step, usual) or 1)
    if first_step is not None and 0 < first.step - first_step + 1 <= usual:
        first = _time_step(first, first_step - 1, 0.0, 0.0)
    else:
        first = first._replace(resolution=0.0)
    return [first, *(_time_after(record, before) for before, record in pairwise(records))]


def count_usual_gap(records: Sequence[StepRecord]) -> int:
    """Return how many steps most lines stand for: those since the line before."""
    counts = Counter(after.step - before.step for before, after in pairwise(records))
    return min(counts, key=lambda gap: (-counts[gap], gap), default=1)


def _time_after(record: StepRecord, before: StepRecord) -> StepRecord:
    if record.since and before.step <= record.since[0] < record.step:
        return _time_step(record, *record.since, before.resolution)
    return _time_step(record, before.step, before.stamp, before.resolution)


def _time_step(record: StepRecord, step: int, stamp: float, other_unit: float) -> StepRecord:
    steps = record.step - step
    unit = max(record.resolution, other_unit)
    seconds = _round(record.stamp - stamp, unit) / steps
    if not 0 < seconds < math.inf:
        return record._replace(mean_of=steps, seconds=NAN, resolution=0.0)
    return record._replace(seconds=seconds, resolution=unit / steps, mean_of=steps)


def _round(difference: float, unit: float) -> float:
    """Return a difference of two clocks without the digits that a float makes of them."""
    return round(difference, 1 + math.ceil(-math.log10(unit))) if unit > 0 and math.isfinite(difference) else difference
