"""The margin test: a log ratio, what is known of its error, and the bound, to one of three answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_llmbench.core.models import Noise
from pytest_llmbench.judge.sample import WithinRun

POWER = 0.8
"""The probability with which a detectable slowdown is detected."""

Z_LEVEL = 1.645
Z_POWER = 0.8416

EQUAL = 1e-9
"""Difference of logarithms below which two step times are the same number: float arithmetic, not measurement."""


class Answer(Enum):
    """Where the interval lies: below the bound, above it, or across it."""

    WITHIN = "within"
    BEYOND = "beyond"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class DifferenceError:
    """The error of a log difference: standard error, degrees of freedom, and the half-width of its interval.

    `low_width` is how far the interval reaches down, which is no further than the fastest step.
    """

    standard_error: float
    degrees_of_freedom: float
    half_width: float
    low_width: float


def compute_error(noise: Noise, runs: Sequence[WithinRun], baseline_variance: float, level: float) -> DifferenceError:
    """Return the error of the mean log difference of k runs against a baseline with its own variance.

    Measured noise holds what happens within a run; assumed noise does not, and both are added. Whichever of the two
    says less of the difference counts: the spread within the runs is a floor.
    """
    count = len(runs)
    inside = sum(run.error**2 for run in runs) / count**2
    freedom = max(sum(run.effective_sample_size for run in runs) - count, 1.0)
    between = _make_error(noise.sigma**2 / count + baseline_variance, noise.degrees_of_freedom, level)
    within = _make_error(inside + baseline_variance, freedom, level)
    both = within
    if not noise.measured:
        both = _make_error(between.standard_error**2 + inside, noise.degrees_of_freedom, level)
    widest = max(between, within, both, key=lambda error: error.half_width)
    reach = math.hypot(between.half_width, sum(run.reach for run in runs) / count)
    return replace(widest, low_width=min(widest.half_width, reach))


def _make_error(variance: float, freedom: float, level: float) -> DifferenceError:
    standard_error = math.sqrt(variance)
    half_width = compute_quantile(1 - level, freedom) * standard_error
    return DifferenceError(standard_error, freedom, half_width, half_width)


def compute_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, probability))


def compute_probability(statistic: float, degrees_of_freedom: float) -> float:
    """Return the probability of a larger value of Student's t distribution."""
    from scipy.special import stdtr

    return float(stdtr(degrees_of_freedom, -statistic))


def answer(low: float, high: float, margin: float) -> Answer:
    """Compare the interval from low to high with the margin; all are logarithms, slower is positive.

    WITHIN: shown to be at most the margin. BEYOND: shown to be more. Anything else, NaN included, cannot be told.
    """
    if high < margin or (low == high <= margin + EQUAL):
        return Answer.WITHIN
    if low > margin:
        return Answer.BEYOND
    return Answer.CANNOT_TELL


def compute_detectable(error: DifferenceError, margin: float) -> float:
    """Return the slowdown, as a log difference to the baseline, that such a run shows to be beyond with 80 %."""
    return margin + error.low_width + compute_quantile(POWER, error.degrees_of_freedom) * error.standard_error


def count_repeats_needed(sigma: float, distance: float) -> int | None:
    """Return how many runs would settle a difference this far from the margin; None at the margin itself."""
    if abs(distance) < EQUAL:
        return None
    return max(math.ceil(((Z_LEVEL + Z_POWER) * sigma / abs(distance)) ** 2), 1)
