"""Decide if a build is as slow as the bad end of a bisection or as fast as the good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pytest_llmbench.core.trial_records import PairedEstimate, ProbeOutcome
from pytest_llmbench.judge.difference import Fit, estimate_difference

LEVEL = 0.025
"""One-sided error probability of each decision."""

MOST_RUNS = 4
"""Runs of a build after which it stays undecided."""


class PrintedError(NamedTuple):
    """Errors of the mean log step time of a set of runs, from their logs alone."""

    within: float = 0.0
    """Standard error of the mean from the noise within the runs."""

    rounding: float = 0.0
    """Largest shift of the mean by rounded printed values, for any number of runs."""


EXACT = PrintedError()


def decide_probe(
    good: Sequence[float],
    bad: Sequence[float],
    new: Sequence[float],
    errors: tuple[PrintedError, PrintedError, PrintedError] = (EXACT, EXACT, EXACT),
) -> tuple[ProbeOutcome, PairedEstimate]:
    """Compare a new build with the middle between the good and the bad end.

    `good`, `bad` and `new` are log step times of runs, at least one each. Returns the
    outcome and the estimated distance of the build from the middle:

    - SLOWER, NOT_SLOWER: the interval lies above or below the middle.
    - CANNOT_TELL: the interval contains the middle.
    - ENDS_ALIKE: the bad end is not clearly slower than the good end; the estimate is
      then their difference.

    The noise is pooled from the three sets, and from the assumed noise if they have
    fewer than 2.8 degrees of freedom. `errors` of good, bad and new are lower limits of
    the standard errors.
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
    distance = estimate_difference(ends, LEVEL, None)
    if distance.low <= 0:
        return ProbeOutcome.ENDS_ALIKE, distance
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
