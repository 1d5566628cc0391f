"""A slow drift of a series of nights away from where it began: what no single change of level shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.models import Noise
from pytest_llmbench.core.robust import median
from pytest_llmbench.judge.changes import REACH, RUNNING, LevelShift, draw_in, estimate_error
from pytest_llmbench.judge.correlation import compute_hidden_spread
from pytest_llmbench.judge.margin import compute_quantile

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Floats

ANCHOR = 20
"""The level that a series is held against is the mean of its first nights, so many; it never moves with the series."""

SLACK = 0.5
"""What each night may lie off the anchor, in sigma, before it adds to the sum: the sum is made for twice as much."""

LIMIT = 15.0
"""The sum, in sigma, from which on a series has drifted; `benchmarks/year.py` counts the false alarms that this makes.
"""

SMALLEST = 0.01
"""A smaller drift, as a logarithm, is not worth a message: nothing is known of one night's cause."""


def find_slow_change(
    values: Sequence[float] | Floats, noise: Noise, smallest: float = 0.0, correlation: float = 0.0
) -> LevelShift | None:
    """Return the drift in which a series stands tonight, one log step time a night, oldest first; slower is positive.

    Two cumulative sums against the first 20 nights (Page, Biometrika 41, 1954), of nights in units of sigma that are
    drawn in as for `changes.steps`. The position is the night from which on the sum grew; the difference is that of the
    last seven nights. `correlation` is that of a night with the next, as there. None: nothing can be shown, also where
    the noise is only assumed or too few nights follow.
    """
    series = np.array(values, dtype=float)
    if len(series) < ANCHOR + RUNNING or not noise.measured or not np.isfinite(series).all():
        return None
    sigma = noise.sigma * compute_hidden_spread(correlation)
    drawn = draw_in(series, sigma)
    anchor = float(np.mean(drawn[:ANCHOR]))
    difference = median(series[-RUNNING:]) - anchor
    if abs(difference) < max(SMALLEST, smallest):
        return None
    error = estimate_error([drawn], sigma) * math.sqrt((1 + correlation) / (1 - correlation))
    units = np.clip((drawn[ANCHOR:] - anchor) / error, -REACH, REACH)
    began = _find_beginning(units if difference > 0 else -units)
    if began is None:
        return None
    half = compute_quantile(0.975, noise.degrees_of_freedom) * error * _compute_error()
    return LevelShift(ANCHOR + began, 0, len(series), difference, difference - half, difference + half)


def _find_beginning(units: Floats) -> int | None:
    """Return since which night, counted from the anchor's last, the sum has grown; None while it is below the limit.

    It is kept below twice the limit, so that it comes down again when a long drift was put right.
    """
    total, began = 0.0, 0
    for day, value in enumerate(units.tolist()):
        total = min(max(total + value - SLACK, 0.0), 2 * LIMIT)
        began = day + 1 if total == 0 else began
    return began if total > LIMIT else None


def _compute_error() -> float:
    """Return the standard error, in sigma, of a median of seven nights against a mean of twenty."""
    return math.sqrt(math.pi / 2 / RUNNING + 1 / ANCHOR)
