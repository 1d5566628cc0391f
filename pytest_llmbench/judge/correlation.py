"""How alike nights are that follow each other, over a whole fleet, and how much less they say together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.robust import median
from pytest_llmbench.judge.noise import CONFIGURATIONS, estimate_from_history

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Floats

NIGHTS = 20
"""A configuration with fewer nights says nothing of it."""

RUNNING = 31
"""Each night is taken from the median of so many around it: changes of level and slow drifts are no correlation."""

FAR = 3.5
"""A night further from that median than so many sigma is a bad one, of which its neighbours tell nothing."""

LARGEST = 0.9
"""What is beyond this is a drift, and would hide every change."""

CHANCE = 1.645 * 1.25
"""A median of correlations below so many of their standard errors may be chance (1.25: a median instead of a mean)."""


def estimate_fleet_correlation(series: Iterable[Floats]) -> float:
    """Return the correlation of a night with the next one from the nights of all configurations: their logarithms in
    order, one array of shape (nights,) each. 0 where chance may have made it.

    One configuration tells it to 0.1 after a hundred nights, a fleet to 0.01: the median over the configurations that
    have 20 nights or more counts. Between fewer than five of them the spread is not known, and is taken as that of
    independent nights.
    """
    correlations = [
        (_estimate_correlation(daily_runs), len(daily_runs)) for daily_runs in series if len(daily_runs) >= NIGHTS
    ]
    if not correlations:
        return 0.0
    values = np.array([value for value, _ in correlations])
    few = len(correlations) < CONFIGURATIONS
    spread = 1 / math.sqrt(min(count for _, count in correlations)) if few else float(np.std(values, ddof=1))
    middle = median(values)
    return min(middle, LARGEST) if middle > CHANCE * spread / math.sqrt(len(correlations)) else 0.0


def _estimate_correlation(daily_runs: Floats) -> float:
    """Return the lag-1 correlation of nights about their running median; what that and the mean hide is added."""
    count = len(daily_runs)
    own = estimate_from_history(daily_runs)
    if own is None or not np.isfinite(daily_runs).all():
        return 0.0
    rest = daily_runs - _running_median(daily_runs)
    usual = np.abs(rest) <= FAR * own.sigma
    pairs = usual[1:] & usual[:-1]
    if not pairs.any() or not rest[usual].any():
        return 0.0
    plain = float(np.mean((rest[1:] * rest[:-1])[pairs]) / np.mean(rest[usual] ** 2))
    return plain + (1 + 4 * plain) / count


def _running_median(daily_runs: Floats) -> Floats:
    """Return the median of the nights around each, shape (n,); at the ends that of the outer ones."""
    if len(daily_runs) <= RUNNING:
        return np.full(len(daily_runs), median(daily_runs))
    around = np.lib.stride_tricks.sliding_window_view(daily_runs, RUNNING)
    inner = np.partition(around, RUNNING // 2, axis=1)[:, RUNNING // 2]
    return np.pad(inner, RUNNING // 2, mode="edge")


def compute_hidden_spread(correlation: float) -> float:
    """Return by how much the standard deviation of nights is larger than their successive differences let it seem."""
    return 1 / math.sqrt(1 - correlation)


def compute_inflation(daily_runs: Floats, correlation: float) -> Floats:
    """Return how much larger the variance of a mean of so many nights is than that of independent ones; the numbers of
    nights, and the result, are of any shape."""
    if correlation == 0:
        return np.ones_like(daily_runs)
    rest = 1 - correlation
    return np.asarray(
        1 + 2 * correlation / rest - 2 * correlation * (1 - correlation**daily_runs) / (daily_runs * rest**2),
        dtype=float,
    )
