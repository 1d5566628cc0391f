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

    - SLOWER: the interval lies above the middle. NOT_SLOWER: below it.
    - CANNOT_TELL: the interval contains the middle.
    - ENDS_ALIKE: the bad end is not clearly slower than the good end; the estimate is
      then their difference.

    The noise is pooled from the three sets. With fewer than 2.8 degrees of freedom
    (as many as 8 daily runs have), the assumed noise is pooled, too. `errors` of good, bad and new are lower limits of
    the standard errors.
    """
    good_mean, bad_mean, new_mean = (sum(side) / len(side) for side in (good, bad, new))
    good_runs, bad_runs, new_runs = len(good), len(bad), len(new)
    good_error, bad_error, new_error = errors
    # Residuals of all runs from the means of their sets; each mean costs one degree of
    # freedom.
    sides = zip((good, bad, new), (good_mean, bad_mean, new_mean), strict=True)
    squares = sum((value - mean) ** 2 for side, mean in sides for value in side)
    freedom = good_runs + bad_runs + new_runs - 3.0
    ends_within = math.hypot(good_error.within, bad_error.within)
    ends_rounding = good_error.rounding + bad_error.rounding
    ends = Fit(
        difference=bad_mean - good_mean,
        factor=1 / good_runs + 1 / bad_runs,
        squares=squares,
        freedom=freedom,
        runs=(good_runs, bad_runs),
        floor=ends_within,
        rounding=ends_rounding,
    )
    distance = estimate_difference(ends, LEVEL, None)
    if distance.low <= 0:
        return ProbeOutcome.ENDS_ALIKE, distance
    # The middle is half the sum of two means: half their errors, a quarter of their
    # variances.
    middle = (good_mean + bad_mean) / 2
    from_middle = Fit(
        difference=new_mean - middle,
        factor=1 / new_runs + 1 / (4 * good_runs) + 1 / (4 * bad_runs),
        squares=squares,
        freedom=freedom,
        runs=(good_runs + bad_runs, new_runs),
        floor=math.hypot(ends_within / 2, new_error.within),
        rounding=ends_rounding / 2 + new_error.rounding,
    )
    estimate = estimate_difference(from_middle, LEVEL, None)
    if estimate.low > 0:
        return ProbeOutcome.SLOWER, estimate
    if estimate.high < 0:
        return ProbeOutcome.NOT_SLOWER, estimate
    return ProbeOutcome.CANNOT_TELL, estimate
