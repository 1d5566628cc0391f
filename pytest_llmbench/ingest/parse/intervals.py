"""How many steps a printed time is the mean of, where a log prints every n-th step only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pytest_llmbench.ingest.parse.records import StepRecord

LEAST_GAPS = 3
"""So many equal gaps show an interval: fewer may be lost lines."""

CLOCK_SHARE = 0.05
"""How much of the time between two lines is not spent in steps, at most, where lines are to tell what a time is of."""


def add_means(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of one attempt, in their order, with `mean_of`.

    An interval of n shows by prints at multiples of n only. A gap in a log of every step is lost lines, never a mean.
    """
    every = find_interval([record.step for record in records])
    means = [every] * len(records)
    if means and records[0].step % every:
        means[0] = 1
    if len(records) > 1:
        means[1] = _count_steps_of_second(records[0], records[1], every)
    return [record._replace(mean_of=mean) for record, mean in zip(records, means, strict=True)]


def find_interval(steps: Sequence[int]) -> int:
    """Return every how many steps a log prints, from the ascending steps it prints; 1 where that cannot be told.

    The first print may be out of turn: versions of 2026 print the first step of a process, whatever the interval.
    """
    gap = min((after - before for before, after in pairwise(steps[1:])), default=1)
    turns = [step for step in steps if step % gap == 0]
    if gap == 1 or not turns or len(steps) - len(turns) > bool(steps[0] % gap):
        return 1
    gaps = [after - before for before, after in pairwise([0, *turns] if turns[0] == gap else turns)]
    equal = gaps.count(gap)
    return gap if equal >= LEAST_GAPS and 2 * equal > len(gaps) else 1


def _count_steps_of_second(first: StepRecord, second: StepRecord, every: int) -> int:
    """Return how many steps the second print of a process is of.

    Versions of 2026 print the first step of a process and go on summing, so that the second print is the mean of that
    step too. Where the first print was out of turn, it was such a one. Else the time between the two lines tells; where
    it does not, and every step is printed, the fraction of a second in the time stamps, which came with those versions.
    """
    steps = second.step - first.step
    if steps > every:
        return every
    if first.step % every:
        return steps + 1
    if not (first.possible and second.possible) or (steps + 1) * second.seconds <= first.seconds:
        return steps
    passed = second.stamp - first.stamp
    if math.isnan(passed):
        return steps
    fractions = bool(first.stamp % 1 or second.stamp % 1)
    newer = fractions and every == 1
    slack = CLOCK_SHARE * passed + (0 if fractions else 1)
    alone = abs(steps * second.seconds - passed) <= slack
    together = abs((steps + 1) * second.seconds - first.seconds - passed) <= slack
    return steps + (together if alone != together else newer)
