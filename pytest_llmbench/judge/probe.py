"""Is a build as slow as the bad end of a bisect, or as fast as the good one? For `git bisect run`."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.core.models import PairedEstimate, ProbeOutcome
from pytest_llmbench.judge.trials import Fit, estimate_difference

LEVEL = 0.025  # one-sided, at each look
MOST_RUNS = 4


def decide_probe(
    good: Sequence[float], bad: Sequence[float], new: Sequence[float]
) -> tuple[ProbeOutcome, PairedEstimate]:
    """Return on which side of the middle of two ends a build is, with how far it is from that middle.

    All are logarithms of step times, at least one each. SLOWER, NOT_SLOWER: its interval lies above, or below, the
    middle. CANNOT_TELL: it holds it. ENDS_ALIKE: the bad end is not shown to be slower than the good one. The noise is
    that within the three, with the assumed one where they have fewer than 2.8 degrees of freedom.
    """
    means = [sum(side) / len(side) for side in (good, bad, new)]
    sides = zip((good, bad, new), means, strict=True)
    squares = sum((value - mean) ** 2 for side, mean in sides for value in side)
    counts = len(good), len(bad), len(new)
    freedom = sum(counts) - 3.0
    ends = Fit(means[1] - means[0], 1 / counts[0] + 1 / counts[1], squares, freedom, counts[:2])
    apart = estimate_difference(ends, LEVEL, None)
    if apart.low <= 0:
        return ProbeOutcome.ENDS_ALIKE, apart
    factor = 1 / counts[2] + 1 / (4 * counts[0]) + 1 / (4 * counts[1])
    fit = Fit(means[2] - (means[0] + means[1]) / 2, factor, squares, freedom, (counts[0] + counts[1], counts[2]))
    estimate = estimate_difference(fit, LEVEL, None)
    if estimate.low > 0:
        return ProbeOutcome.SLOWER, estimate
    if estimate.high < 0:
        return ProbeOutcome.NOT_SLOWER, estimate
    return ProbeOutcome.CANNOT_TELL, estimate
