"""What one run says by itself: how well its window fixes its own statistic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.robust import TRIMMED, mean, winsorise

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Floats

EVEN = 1e-24
"""Relative variance below which steps are equal, but for float arithmetic."""

REACHING = 10

LARGEST_CORRELATION = 0.95
"""A lag-1 correlation above this cannot be told from a drift in a window of some dozen steps."""


@dataclass(frozen=True, slots=True)
class WithinRun:
    """The standard error of the logarithm of a run's statistic, and the number of independent steps it rests on.

    `reach` is how far below the statistic the fastest step lies: no mean of such steps lies further. After a change of
    level hardly a step is independent, and t is large; infinite for less than 10 steps, which may all be chance.
    """

    error: float
    effective_sample_size: float
    reach: float = math.inf


def estimate_within_run(
    seconds: Floats, statistic: str, moving_mean: int = 1, mean_of: Sequence[int] = ()
) -> WithinRun:
    """Return the within-run error of step times of shape (n,), n >= 3, in seconds.

    The variance is the winsorised one for a trimmed mean (Yuen, Biometrika 61, 1974) and the sample's for a mean, which
    stragglers move; it is inflated by (1 + r) / (1 - r) for the lag-1 correlation r, and at least by the number of
    steps of a moving mean. This is a floor: it knows nothing of how runs differ from each other.

    `mean_of` are the steps that each time is the mean of. Such a mean is one sample, however many steps it holds: what
    happened within it is not known, and means that weigh more than others make the sample smaller.
    """
    count = len(seconds)
    clipped = winsorise(seconds)
    spread = float(np.std(clipped, ddof=1)) / (1 - 2 * TRIMMED)
    if statistic == "mean":
        spread = max(spread, float(np.std(seconds, ddof=1)))
    correlation = _estimate_correlation(clipped)
    inflation = max((1 + correlation) / (1 - correlation), moving_mean)
    effective = max(count_independent(count, mean_of) / inflation, 1.0)
    middle = mean(seconds, mean_of) if statistic == "mean" else float(np.mean(clipped))
    reach = math.log(middle / float(np.min(seconds))) if count >= REACHING else math.inf
    return WithinRun(spread / float(np.mean(clipped)) / effective**0.5, effective, reach)


def count_independent(count: int, mean_of: Sequence[int]) -> float:
    """Return the number of equally weighted values that say as much as `count` weighted ones: (sum w)^2 / sum w^2."""
    weights = [float(weight) for weight in mean_of]
    return sum(weights) ** 2 / sum(weight**2 for weight in weights) if weights else float(count)


def _estimate_correlation(values: Floats) -> float:
    """Return the lag-1 correlation, corrected for its bias in a short series: (n r + 1) / (n - 4)."""
    count = len(values)
    centred = values - np.mean(values)
    total = float(centred @ centred)
    if count < 6 or total <= EVEN * count * float(np.mean(values)) ** 2:
        return 0.0
    plain = float(centred[1:] @ centred[:-1]) / total
    return min(max((count * plain + 1) / (count - 4), 0.0), LARGEST_CORRELATION)
