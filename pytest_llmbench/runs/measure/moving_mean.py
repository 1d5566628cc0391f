"""Detect whether printed step times are moving means of the last few steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.runs.measure.window import LONGEST_SECONDS

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

KNOWN_WIDTH = 5  # the width of moving means in NeMo 1, in steps

LARGEST_WIDTH = 20  # the largest width to search for, in steps

# Values are moving means above this log-likelihood ratio; the tests simulate its effect
CONVINCING = 6.0

# steps to examine: the reconstruction of later steps accumulates rounding errors
EXAMINED_STEPS = 60

# the largest lag-1 correlation of distances from the steady level
STEADIEST = 0.99

# seconds squared: floating-point error of a difference between equal numbers
EXACT = 1e-24


def detect_moving_mean(steps: Steps) -> int:
    """Return the width of the printed moving mean in steps, 1 for single step times.

    A moving mean of w steps begins with the means of the first 1, 2, ..., w steps, so
    the single steps can be reconstructed: 23, 13, 9.7, 8, 7, 3 are one step of 23 and
    five of 3. If the values are single times, the reconstruction yields negative steps,
    or errors that recur every w steps. Under each hypothesis, every value is predicted
    from the values before it, and the better prediction wins. The tested widths are 5,
    and the width (2 to 20) that the largest drop suggests.

    Returns 1 as well if the log states the width of its means, or if the width is
    unknown. The width is unknown if the first steps of the attempt are missing (a
    resumed attempt starts a new mean), if no first step is slow and values are rounded
    to three digits, or if there are fewer than 2 w steps.
    """
    # In those cases only the correlation of neighbours is left. In a few dozen steps
    # the correlation of a mean of 5 (0.8, 0.6, 0.4, 0.2, 0) looks like noise, and a
    # correction for the lag-1 correlation of 0.8 would divide the number of independent
    # steps by 9, not by 5.
    if (steps.mean_of > 1).any():  # the log states the width of its means
        return 1
    count = _count_leading_steps(steps)
    printed, unit = steps.seconds[:count], steps.resolution_seconds[:count]
    for width in dict.fromkeys((KNOWN_WIDTH, _suggest_width(printed))):
        if _weigh_evidence(printed, unit, width) > CONVINCING:
            return width
    return 1


def _count_leading_steps(steps: Steps) -> int:
    """Return the number of leading steps that are consecutive and have a time."""
    seconds, index = steps.seconds[:EXAMINED_STEPS], steps.index[:EXAMINED_STEPS]
    valid = (seconds > 0) & (seconds < LONGEST_SECONDS)
    valid[1:] &= index[1:] - index[:-1] == 1
    return len(seconds) if valid.all() else int(np.argmin(valid))


def _suggest_width(printed: Floats) -> int:
    """Suggest the width after which a slow first step seems to leave the mean."""
    # The mean of the first k steps contains 1/k of the first step's excess; after w
    # steps the remaining 1/w disappears at once.
    widths = np.arange(2, min(LARGEST_WIDTH + 1, len(printed)))
    if not len(widths):
        return KNOWN_WIDTH
    # for each width, the excess of the first step that the drop after w steps implies
    implied_excess = (printed[widths - 1] - printed[widths]) * widths
    largest = int(np.argmax(implied_excess))
    width = int(widths[largest])
    excess = printed[0] - printed[width]
    if excess / 2 < implied_excess[largest] < 2 * excess:
        return width
    return KNOWN_WIDTH


def _weigh_evidence(printed: Floats, unit: Floats, width: int) -> float:
    """Return the log-likelihood ratio of means of `width` steps to single steps.

    -infinity if the values cannot be means, or are too few.

    printed, unit: seconds of the first n steps, and one unit in their last digit.
    """
    if len(printed) < 2 * width:
        return -math.inf
    counts = np.minimum(np.arange(1, len(printed) + 1), width)
    # Each mean times its count is the sum of the last `width` steps. Sums that are
    # `width` apart add up to the sum of all steps so far.
    totals = _sum_strided(width, counts * printed)
    # the single step times if the printed values are means of them
    reconstructed = np.concatenate((totals[:1], totals[1:] - totals[:-1]))
    if reconstructed.min() <= 0:  # step times are positive: the values are not means
        return -math.inf
    # Errors are assumed to be Cauchy distributed, so that no single step decides. Their
    # scale is the typical error of the better reading plus the rounding error.
    as_single = _predict_errors(printed)
    as_mean = _predict_errors(reconstructed) / counts[1:]
    typical_error = min(
        _compute_upper_median(as_single), _compute_upper_median(as_mean)
    )
    rounding = _sum_strided(width, unit**2)[1:]
    scale = typical_error**2 + rounding + EXACT
    return float(np.log((as_single**2 + scale) / (as_mean**2 + scale)).sum())


def _sum_strided(width: int, values: Floats) -> Floats:
    """Return the sum of each value and every `width`-th value before it, shape (n,).

    With width 2, the values 1, 2, 3, 4 give 1, 2, 4, 6.
    """
    rows = -(-len(values) // width)
    padded = np.zeros(rows * width)
    padded[: len(values)] = values
    return padded.reshape(rows, width).cumsum(axis=0).ravel()[: len(values)]


def _predict_errors(values: Floats) -> Floats:
    """Return the prediction errors of values of shape (n,), shape (n - 1,).

    Each value is predicted from the previous one.
    """
    # The distance from the steady level shrinks as in the warm-up, or as in the noise
    # of the second half; the better prediction counts.
    middle = len(values) // 2
    steady_level = _compute_upper_median(values[middle:])
    distance = values - steady_level
    before, after = distance[:-1], distance[1:]
    shrinkage = _estimate_correlation(distance)
    noise_shrinkage = _estimate_correlation(distance[middle:])
    return np.minimum(
        np.abs(after - shrinkage * before), np.abs(after - noise_shrinkage * before)
    )


def _estimate_correlation(distance: Floats) -> float:
    """Return the lag-1 correlation around zero, 0 to 0.99; 0 for constant values."""
    sum_of_squares = float(distance[:-1] @ distance[:-1])
    if not sum_of_squares > 0:
        return 0.0
    correlation = float(distance[1:] @ distance[:-1]) / sum_of_squares
    return min(max(correlation, 0.0), STEADIEST)


def _compute_upper_median(values: Floats) -> float:
    """Return the upper median: the larger of the two middle values of an even count."""
    # numpy.median takes twenty times as long for a few dozen values
    return float(np.sort(values)[len(values) // 2])
