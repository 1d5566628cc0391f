"""Whether a window has settled: a first third that is slower than the rest, and a drift over the whole."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.robust import TRIMMED, median, winsorise
from pytest_llmbench.judge.margin import compute_probability
from pytest_llmbench.judge.sample import LARGEST_CORRELATION

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Floats, Integers

SMALLEST_CHANGE = 0.01
LEVEL = 0.01
"""A change counts if it is more than 1 % of the step time and chance has less than 1 % of producing it."""

FEWEST = 9
"""A first third of less than three steps cannot tell a warm-up from a straggler."""

MOST = 100
"""Longer windows are looked at in this many blocks: pairs of steps grow with the square."""

CAUTION = 1.25
"""How many standard errors are added to a correlation. With none, windows of 34 steps with a lag-1 correlation of 0.8
raise a false alarm two to three times as often."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How much slower the first `steps` of a window are than the rest, as a fraction, and in standard errors."""

    steps: int
    excess: float
    z: float


@dataclass(frozen=True, slots=True)
class Slope:
    """The change from the first to the last step, as a fraction of the median, and its two-sided p-value."""

    change: float
    p: float


def find_warm_up(seconds: Floats, moving_mean: int = 1, resolution: float = 0.0) -> WarmUp | None:
    """Return by how much the first third of step times, shape (n,), is slower than the rest.

    None: it is not, or by no more than 1 % and a unit in the last place, or by no more than chance makes (one-sided,
    1 %), or n < 9. Medians are compared: a slow step, which a moving mean shows in five values, is no warm-up. The
    error is that of the rest alone, less its decline: what a warm-up leaves there would hide it. Steps that are slow at
    first for another reason look the same.
    """
    points, block = condense(seconds)
    third = len(points) // 3
    if len(points) < FEWEST:
        return None
    first, rest = points[:third], points[third:]
    level = median(rest)
    excess = median(first) / level - 1
    if not excess > SMALLEST_CHANGE + resolution / level:
        return None
    residuals = _centre(winsorise(_remove_decline(rest)))
    spread = math.sqrt(float(residuals @ residuals) / (len(rest) - 1)) / (1 - 2 * TRIMMED) / level
    inflation = max(_inflate(residuals), moving_mean / block)
    z = excess / (spread * math.sqrt(inflation * (1 / third + 1 / len(rest)))) if spread > 0 else math.inf
    freedom = len(rest) - 2 * int(TRIMMED * len(rest)) - 1
    return WarmUp(third * block, excess, z) if compute_probability(z, freedom) < LEVEL else None


def find_slope(seconds: Floats, moving_mean: int = 1) -> Slope | None:
    """Return the drift of step times, shape (n,), by the Theil-Sen slope and Kendall's test.

    None: no more than 1 % of the median, or no more than chance makes (two-sided, 1 %), or n < 9. The variance of S is
    inflated for the correlation of neighbours (Hamed and Rao, Journal of Hydrology 204, 1998), here by the sum of an
    AR(1) process, (1 + r) / (1 - r): single correlations of a few dozen steps say too little.
    """
    points, block = condense(seconds)
    if len(points) < FEWEST:
        return None
    slope = theil_sen(points)
    change = slope * (len(points) - 1) / median(points)
    if not abs(change) > SMALLEST_CHANGE:
        return None
    residuals = _centre(winsorise(points - slope * np.arange(len(points))))
    inflation = max(_inflate(residuals), moving_mean / block)
    score, variance = kendall(points)
    p = math.erfc(abs(score) / math.sqrt(2 * variance * inflation))
    return Slope(change, p) if p < LEVEL else None


def theil_sen(values: Floats) -> float:
    """Return the median slope, per position, of all pairs of values of shape (n,), n > 1."""
    earlier, later = _list_pairs(len(values))
    return median((values[later] - values[earlier]) / (later - earlier))


def kendall(values: Floats) -> tuple[float, float]:
    """Return Kendall's S of values of shape (n,), n > 1, and its variance for independent ones, corrected for ties."""
    count = len(values)
    earlier, later = _list_pairs(count)
    score = float(np.sum(np.sign(values[later] - values[earlier])))
    tied = sum(tie * (tie - 1) * (2 * tie + 5) for tie in Counter(values.tolist()).values())
    return score, (count * (count - 1) * (2 * count + 5) - tied) / 18


def condense(seconds: Floats) -> tuple[Floats, int]:
    """Return step times of shape (n,) as at most 100 medians of consecutive blocks, and the number of steps in each.

    The last block reaches back where n is no multiple.
    """
    count = len(seconds)
    block = -(-count // MOST)
    if block <= 1:
        return seconds, 1
    starts = np.minimum(np.arange(0, count, block), count - block)
    return np.median(seconds[starts[:, None] + np.arange(block)], axis=1), block


@functools.lru_cache(maxsize=8)
def _list_pairs(count: int) -> tuple[Integers, Integers]:
    """Return the two positions of each pair, earlier and later."""
    earlier, later = np.triu_indices(count, 1)
    return earlier, later


def _remove_decline(values: Floats) -> Floats:
    """Return the values less the straight line through them, if it falls; outliers are drawn in for the line."""
    position = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(winsorise(values) @ position) / float(position @ position)
    return values - min(slope, 0.0) * position


def _centre(values: Floats) -> Floats:
    return values - float(values.sum()) / len(values)


def _inflate(residuals: Floats) -> float:
    """Return how many correlated values, centred, say as much of their mean as one independent: (1 + r) / (1 - r).

    r is the lag-1 correlation, corrected for its bias where a level and a slope were fitted, (n r + 2) / (n - 5), and
    for caution 1.25 of its standard errors larger.
    """
    count = len(residuals)
    total = float(residuals @ residuals)
    if total <= 0:
        return 1.0
    corrected = (count * float(residuals[1:] @ residuals[:-1]) / total + 2) / (count - 5)
    upper = corrected + CAUTION * math.sqrt(max(1 - corrected**2, 0.1) / count)
    correlation = min(max(upper, 0.0), LARGEST_CORRELATION)
    return (1 + correlation) / (1 - correlation)
