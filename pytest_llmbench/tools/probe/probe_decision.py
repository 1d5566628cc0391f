"""Is a build as slow as the bad end of a bisect, or as fast as the good one? For `git
bisect run`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pytest_llmbench.core.trial_records import PairedEstimate, ProbeOutcome
from pytest_llmbench.judge.difference import Fit, estimate_difference

LEVEL = 0.025  # one-sided, at each look
MOST_RUNS = 4


class PrintedError(NamedTuple):
    """How well the logs of a set of runs themselves fix the mean of their
    logarithms."""

    within: float = 0.0  # its standard error by what happens within the runs
    rounding: float = (
        0.0  # how far the printed digits may move it, however many runs there are
    )


EXACT = PrintedError()


def decide_probe(
    good: Sequence[float],
    bad: Sequence[float],
    new: Sequence[float],
    errors: tuple[PrintedError, PrintedError, PrintedError] = (EXACT, EXACT, EXACT),
) -> tuple[ProbeOutcome, PairedEstimate]:
    """Return on which side of the middle of two ends a build is, with how far it is
    from that middle.

    All are logarithms of step times, at least one each. SLOWER, NOT_SLOWER: its
    interval lies above, or below, the middle. CANNOT_TELL: it holds it. ENDS_ALIKE: the
    bad end is not shown to be slower than the good one. The noise is that within the
    three, with the assumed one where they have fewer than 2.8 degrees of freedom;
    `errors` are those of good, bad and new by their logs alone: the error is never
    smaller.
    """
    means = [sum(side) / len(side) for side in (good, bad, new)]
    sides = zip((good, bad, new), means, strict=True)
    squares = sum((value - mean) ** 2 for side, mean in sides for value in side)
    counts = len(good), len(bad), len(new)
    freedom = sum(counts) - 3.0
    within = math.hypot(errors[0].within, errors[1].within)
    rounding = errors[0].rounding + errors[1].rounding
    ends = Fit(
        means[1] - means[0],
        1 / counts[0] + 1 / counts[1],
        squares,
        freedom,
        counts[:2],
        within,
        rounding,
    )
    apart = estimate_difference(ends, LEVEL, None)
    if apart.low <= 0:
        return ProbeOutcome.ENDS_ALIKE, apart
    factor = 1 / counts[2] + 1 / (4 * counts[0]) + 1 / (4 * counts[1])
    floor = math.hypot(within / 2, errors[2].within)
    runs = counts[0] + counts[1], counts[2]
    middle = (means[0] + means[1]) / 2
    fit = Fit(
        means[2] - middle,
        factor,
        squares,
        freedom,
        runs,
        floor,
        rounding / 2 + errors[2].rounding,
    )
    estimate = estimate_difference(fit, LEVEL, None)
    if estimate.low > 0:
        return ProbeOutcome.SLOWER, estimate
    if estimate.high < 0:
        return ProbeOutcome.NOT_SLOWER, estimate
    return ProbeOutcome.CANNOT_TELL, estimate
