"""Robust location and spread of a few dozen numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers

TRIMMED = 0.2  # the share that is trimmed or winsorised at each end

# the standard deviation of normal values over their median absolute deviation
NORMAL = 1.4826

HICCUP = 0.05  # the share of steps that a hiccup has at most
MOST_STALLS = (
    2  # transient stalls that are forgiven at most, however many steps there are
)

EXCESS = 0.03  # a straggler is above the median by more than this share of it
DEVIATIONS = 5  # and by more than so many deviations


def compute_mean(values: Floats, weights: Sequence[int] = ()) -> float:
    """Return the mean of values of shape (n,), n > 0, each as often as its weight says;
    without weights once."""
    return float(
        np.average(values, weights=np.array(weights, dtype=float))
        if _differ(weights)
        else np.mean(values)
    )


def compute_trimmed_mean(values: Floats, weights: Sequence[int] = ()) -> float:
    """Return the 20 % trimmed mean of values of shape (n,), n > 0; as
    scipy.stats.trim_mean(values, 0.2).

    With weights that differ it is that of the values repeated so often; equal ones
    change nothing.
    """
    if _differ(weights):
        return _weigh(values, np.array(weights, dtype=float))
    cut = int(
        TRIMMED * len(values)
    )  # a sort and a slice: scipy.stats takes longer to import
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


def _differ(weights: Sequence[int]) -> bool:
    return bool(len(weights)) and min(weights) != max(weights)


def _weigh(values: Floats, weights: Floats) -> float:
    """Return the trimmed mean of repeated values without repeating them."""
    # A log may claim a mean of any number of steps.
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    cut = int(TRIMMED * ends[-1])
    kept = np.clip(ends, cut, ends[-1] - cut)
    parts = np.diff(kept, prepend=cut)
    return float(values[order] @ parts / parts.sum())


def winsorise(values: Floats) -> Floats:
    """Return the values, shape (n,), in their order, with the outer 20 % at each end
    set to the nearest inner one."""
    ordered = np.sort(values)
    cut = int(TRIMMED * len(values))
    return np.clip(values, ordered[cut], ordered[len(values) - cut - 1])


def compute_median(values: Floats | Integers) -> float:
    """Return the median of values of shape (n,), n > 0."""
    # numpy's own spends ten times as long on a few dozen
    ordered = np.sort(values)
    return float(ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def compute_median_deviation(values: Floats) -> float:
    """Return the median absolute deviation from the median, scaled to the standard
    deviation of normal values."""
    return NORMAL * compute_median(np.abs(values - compute_median(values)))


def find_stragglers(seconds: Floats, resolution: float) -> Flags:
    """Return a mask of shape (n,): steps above median x (1 + max(3 %, 5 deviations /
    median)) + resolution."""
    middle = compute_median(seconds)
    excess = seconds - middle
    # One unit in the last place is added: a rounded value of 0.013 beside 0.012 says
    # little.
    slow: Flags = (
        excess
        > max(EXCESS * middle, DEVIATIONS * NORMAL * compute_median(np.abs(excess)))
        + resolution
    )
    return slow
