"""Robust location and spread of a few dozen values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers

TRIMMED = 0.2  # the fraction that is trimmed or winsorised at each end

# the standard deviation of normal values over their median absolute deviation
NORMAL = 1.4826

HICCUP = 0.05  # the largest fraction of steps in transient stalls
MOST_STALLS = 2  # the largest number of forgiven transient stalls

# A straggler exceeds the median by more than this fraction of it, and by more than this
# number of deviations.
EXCESS = 0.03
DEVIATIONS = 5


def compute_mean(values: Floats, weights: Sequence[int] = ()) -> float:
    """Return the weighted mean of values of shape (n,), n > 0.

    Without weights each value counts once.
    """
    if _differ(weights):
        return float(np.average(values, weights=np.array(weights, dtype=float)))
    return float(np.mean(values))


def compute_trimmed_mean(values: Floats, weights: Sequence[int] = ()) -> float:
    """Return the 20 % trimmed mean of values of shape (n,), n > 0.

    Equals scipy.stats.trim_mean(values, 0.2). A weight is the number of
    times that its value counts; equal weights have no effect.
    """
    if _differ(weights):
        return _compute_weighted_trimmed_mean(values, np.array(weights, dtype=float))
    # A sort and a slice: scipy.stats takes longer to import.
    cut = int(TRIMMED * len(values))
    kept = np.sort(values)[cut : len(values) - cut]
    return float(np.mean(kept))


def _differ(weights: Sequence[int]) -> bool:
    """True if at least two weights differ."""
    return bool(len(weights)) and min(weights) != max(weights)


def _compute_weighted_trimmed_mean(values: Floats, weights: Floats) -> float:
    """Return the trimmed mean of repeated values without repeating them."""
    # The weights come from the log and may be arbitrarily large.
    order = np.argsort(values, kind="stable")
    # The sorted value i has the positions `ends[i - 1]` to `ends[i]` among all
    # repeated values, of which `cut` positions at each end are trimmed.
    ends = np.cumsum(weights[order])
    total = ends[-1]
    cut = int(TRIMMED * total)
    kept_ends = np.clip(ends, cut, total - cut)
    kept_counts = np.diff(kept_ends, prepend=cut)
    return float(values[order] @ kept_counts / kept_counts.sum())


def winsorise(values: Floats) -> Floats:
    """Set the outer 20 % of values at each end to the nearest inner value.

    Returns shape (n,) in the original order.
    """
    ordered = np.sort(values)
    cut = int(TRIMMED * len(values))
    return np.clip(values, ordered[cut], ordered[len(values) - cut - 1])


def compute_median(values: Floats | Integers) -> float:
    """Return the median of values of shape (n,), n > 0."""
    # np.median takes ten times as long for a few dozen values, np.sort 1.5 times.
    ordered = values.copy()
    ordered.sort()
    lower, upper = ordered.item((len(values) - 1) // 2), ordered.item(len(values) // 2)
    return float(lower + upper) / 2


def compute_median_deviation(values: Floats) -> float:
    """Return the median absolute deviation from the median.

    It is scaled to the standard deviation of normal values.
    """
    return NORMAL * compute_median(np.abs(values - compute_median(values)))


def find_stragglers(seconds: Floats, resolution: float) -> Flags:
    """Return a mask of shape (n,) of the slow steps.

    A step is slow if it exceeds the median by more than 3 % or 5 median deviations,
    whichever is larger, plus `resolution`: one unit in the last printed place.
    """
    median = compute_median(seconds)
    excess = seconds - median
    median_deviation = compute_median(np.abs(excess))
    # One unit in the last place is added, since 0.013 and 0.012 may differ only by
    # rounding.
    limit = max(EXCESS * median, DEVIATIONS * NORMAL * median_deviation) + resolution
    slow: Flags = excess > limit
    return slow
