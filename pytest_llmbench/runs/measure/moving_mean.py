"""Detect whether printed step times are moving means of the last few steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.runs.measure.window import LONGEST_SECONDS

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers

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
    count = count_leading_steps(steps)
    printed, unit = steps.seconds[:count], steps.resolution_seconds[:count]
    return int(detect_moving_means(printed[np.newaxis], unit[np.newaxis])[0])


def detect_moving_means(printed: Floats, unit: Floats) -> Integers:
    """Detect the width of each row's moving mean, shape (m,), as `detect_moving_mean`.

    `printed` and `unit`, of shape (m, n), are the seconds of the first n steps of m
    segments, and one unit in their last digit. Steps after EXAMINED_STEPS are ignored.
    """
    printed, unit = printed[:, :EXAMINED_STEPS], unit[:, :EXAMINED_STEPS]
    widths = np.ones(len(printed), dtype=np.int64)
    suggested = _suggest_widths(printed)
    is_convincing = _weigh_evidence(printed, unit, KNOWN_WIDTH) > CONVINCING
    widths[is_convincing] = KNOWN_WIDTH
    for width in set(suggested[~is_convincing].tolist()) - {KNOWN_WIDTH}:
        rows = np.flatnonzero(~is_convincing & (suggested == width))
        evidence = _weigh_evidence(printed[rows], unit[rows], width)
        widths[rows[evidence > CONVINCING]] = width
    return widths


def count_leading_steps(steps: Steps) -> int:
    """Return the number of leading steps that are consecutive and have a time."""
    seconds, index = steps.seconds[:EXAMINED_STEPS], steps.index[:EXAMINED_STEPS]
    valid = (seconds > 0) & (seconds < LONGEST_SECONDS)
    valid[1:] &= index[1:] - index[:-1] == 1
    return len(seconds) if valid.all() else int(np.argmin(valid))


def _suggest_widths(printed: Floats) -> Integers:
    """Suggest the width after which a slow first step seems to leave each row's mean."""
    # The mean of the first k steps contains 1/k of the first step's excess; after w
    # steps the remaining 1/w disappears at once.
    suggested = np.full(len(printed), KNOWN_WIDTH)
    widths = np.arange(2, min(LARGEST_WIDTH + 1, printed.shape[1]))
    if not len(widths):
        return suggested
    # for each width, the excess of the first step that the drop after w steps implies
    implied_excesses = (printed[:, widths - 1] - printed[:, widths]) * widths
    largest = np.argmax(implied_excesses, axis=1)
    rows = np.arange(len(printed))
    implied_excess = implied_excesses[rows, largest]
    excess = printed[:, 0] - printed[rows, widths[largest]]
    is_plausible = (excess / 2 < implied_excess) & (implied_excess < 2 * excess)
    suggested[is_plausible] = widths[largest][is_plausible]
    return suggested


def _weigh_evidence(printed: Floats, unit: Floats, width: int) -> Floats:
    """Return the log-likelihood ratio of means of `width` steps to single steps.

    The ratio of each row, shape (m,): -infinity if the values cannot be means, or are
    too few.

    printed, unit: seconds of the first n steps of m segments, and one unit in their last
    digit, shape (m, n).
    """
    ratios = np.full(len(printed), -math.inf)
    steps = printed.shape[1]
    if steps < 2 * width:
        return ratios
    counts = np.minimum(np.arange(1, steps + 1), width)
    # Each mean times its count is the sum of the last `width` steps. Sums that are
    # `width` apart add up to the sum of all steps so far.
    totals = _sum_strided(width, counts * printed)
    # the single step times if the printed values are means of them
    reconstructed = np.concatenate(
        (totals[:, :1], totals[:, 1:] - totals[:, :-1]), axis=1
    )
    # Step times are positive: otherwise the values are not means.
    is_possible = ~(reconstructed.min(axis=1) <= 0)
    if not is_possible.any():
        return ratios
    printed, reconstructed = printed[is_possible], reconstructed[is_possible]
    # Errors are assumed to be Cauchy distributed, so that no single step decides. Their
    # scale is the typical error of the better reading plus the rounding error.
    as_single = _predict_errors(printed)
    as_mean = _predict_errors(reconstructed) / counts[1:]
    typical_error = np.minimum(
        _compute_upper_medians(as_single), _compute_upper_medians(as_mean)
    )
    rounding = _sum_strided(width, unit[is_possible] ** 2)[:, 1:]
    scale = typical_error**2 + rounding + EXACT
    quotients = (as_single**2 + scale) / (as_mean**2 + scale)
    ratios[is_possible] = np.log(quotients).sum(axis=1)
    return ratios


def _sum_strided(width: int, values: Floats) -> Floats:
    """Return the sum of each value and every `width`-th value before it in its row.

    With width 2, the row 1, 2, 3, 4 gives 1, 2, 4, 6.
    """
    count, steps = values.shape
    strides = -(-steps // width)
    padded = np.zeros((count, strides * width))
    padded[:, :steps] = values
    sums = padded.reshape(count, strides, width).cumsum(axis=1)
    return sums.reshape(count, strides * width)[:, :steps]


def _predict_errors(values: Floats) -> Floats:
    """Return the prediction errors of values of shape (m, n), shape (m, n - 1).

    Each value is predicted from the previous one.
    """
    # The distance from the steady level shrinks as in the warm-up, or as in the noise
    # of the second half; the better prediction counts.
    middle = values.shape[1] // 2
    steady_level = _compute_upper_medians(values[:, middle:])
    distance = values - steady_level
    before, after = distance[:, :-1], distance[:, 1:]
    shrinkage = _estimate_correlations(distance)
    noise_shrinkage = _estimate_correlations(distance[:, middle:])
    errors: Floats = np.minimum(
        np.abs(after - shrinkage * before), np.abs(after - noise_shrinkage * before)
    )
    return errors


def _estimate_correlations(distance: Floats) -> Floats:
    """Return each row's lag-1 correlation around zero, 0 to 0.99, shape (m, 1).

    0 for constant values.
    """
    before, after = distance[:, :-1], distance[:, 1:]
    sum_of_squares = (before * before).sum(axis=1, keepdims=True)
    products = (after * before).sum(axis=1, keepdims=True)
    correlation = np.divide(
        products,
        sum_of_squares,
        out=np.zeros_like(products),
        where=sum_of_squares > 0,
    )
    clipped: Floats = np.clip(correlation, 0.0, STEADIEST)
    return clipped


def _compute_upper_medians(values: Floats) -> Floats:
    """Return each row's upper median, shape (m, 1).

    This is the larger of the two middle values of an even count.
    """
    # numpy.median takes twenty times as long for a few dozen values
    middle = values.shape[1] // 2
    return np.sort(values, axis=1)[:, middle : middle + 1]
