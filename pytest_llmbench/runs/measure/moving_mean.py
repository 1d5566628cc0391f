"""Whether the times that a log prints are those of single steps, or each the mean of
the last few."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.runs.measure.window import LONGEST_SECONDS

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

KNOWN_WIDTH = 5  # the number of steps in a mean that has been seen (NeMo 1)

LARGEST_WIDTH = 20  # the largest number of steps in a mean that is looked for

# The log-likelihood ratio from which on values are moving means; what it gives is
# simulated in the tests
CONVINCING = 6.0

# steps that are looked at: rounding adds up in what is reconstructed of later ones
ENOUGH = 60

# no distance from the steady level is expected to last longer than with this lag-1
# correlation
STEADIEST = 0.99

# seconds squared: what computing leaves of a difference between equal numbers
EXACT = 1e-24


def detect_moving_mean(steps: Steps) -> int:
    """Return how many steps each printed time is a moving mean of: 1 where it is the
    time of that step alone.

    A moving mean of w steps begins with the means of the first 1, 2, ..., w steps, so
    that the single steps follow from the printed values: 23, 13, 9.7, 8, 7, 3 are one
    step of 23 and five of 3. Of values that are no such means this makes steps that are
    negative, or wrong again every w steps. Both readings predict each value from those
    before it, and the better one counts. It looks for means of 5, and of as many steps
    (2 to 20) as the largest drop suggests.

    1 also means that nothing tells: without the first steps of the attempt (lost lines;
    a resumed attempt starts anew), without a slow one among them in values rounded to
    three digits, or before 2 w steps.
    """
    # What is left there is the correlation of neighbours, and in a few dozen steps that
    # of a mean of 5 (0.8, 0.6, 0.4, 0.2, 0) cannot be told from noise; whoever corrects
    # for the lag-1 correlation of 0.8 divides the number of independent steps by 9, not
    # by 5.
    if (steps.mean_of > 1).any():  # the log says itself what its times are means of
        return 1
    count = _count_unbroken(steps)
    printed, unit = steps.seconds[:count], steps.resolution_seconds[:count]
    for width in dict.fromkeys((KNOWN_WIDTH, _suggest_width(printed))):
        if _weigh_evidence(printed, unit, width) > CONVINCING:
            return width
    return 1


def _count_unbroken(steps: Steps) -> int:
    """Return the number of first steps that follow each other and have a time."""
    seconds, index = steps.seconds[:ENOUGH], steps.index[:ENOUGH]
    whole = (seconds > 0) & (seconds < LONGEST_SECONDS)
    whole[1:] &= index[1:] - index[:-1] == 1
    return len(seconds) if whole.all() else int(np.argmin(whole))


def _suggest_width(printed: Floats) -> int:
    """Return the number of steps after which a slow first one seems to leave the
    mean."""
    # Of its excess, the mean of the first k steps holds 1/k; when w steps have passed,
    # the last 1/w is gone at once.
    places = np.arange(2, min(LARGEST_WIDTH + 1, len(printed)))
    if not len(places):
        return KNOWN_WIDTH
    drops = (printed[places - 1] - printed[places]) * places
    row = int(np.argmax(drops))
    excess = printed[0] - printed[places[row]]
    return int(places[row]) if excess / 2 < drops[row] < 2 * excess else KNOWN_WIDTH


def _weigh_evidence(printed: Floats, unit: Floats, width: int) -> float:
    """Return the log-likelihood ratio of means of `width` steps to single steps.

    printed, unit: seconds of the first n steps and one unit in their last place.
    """
    if len(printed) < 2 * width:
        return -math.inf
    held = np.minimum(np.arange(1, len(printed) + 1), width)
    totals = _sum_every(width, held * printed)
    single = np.concatenate((totals[:1], totals[1:] - totals[:-1]))
    if single.min() <= 0:  # no step takes less than no time, so these are no means
        return -math.inf
    # Errors are taken to be Cauchy, so that no single step decides; their scale is the
    # typical error of the better reading, and what rounding can add to it.
    as_single, as_mean = _predict_errors(printed), _predict_errors(single) / held[1:]
    scale = (
        min(_take_median(as_single), _take_median(as_mean)) ** 2
        + _sum_every(width, unit**2)[1:]
        + EXACT
    )
    return float(np.log((as_single**2 + scale) / (as_mean**2 + scale)).sum())


def _sum_every(width: int, values: Floats) -> Floats:
    """Return the sum of each value and of every `width`-th before it, shape (n,)."""
    rows = -(-len(values) // width)
    padded = np.zeros(rows * width)
    padded[: len(values)] = values
    return padded.reshape(rows, width).cumsum(axis=0).ravel()[: len(values)]


def _predict_errors(values: Floats) -> Floats:
    """Return by how much values of shape (n,) miss what the ones before them predict,
    shape (n - 1,)."""
    # The distance from the steady level is expected to shrink as in the warm-up, or as
    # in the noise of the second half, whichever is nearer.
    half = len(values) // 2
    distance = values - _take_median(values[half:])
    before, after = distance[:-1], distance[1:]
    as_warm_up, as_noise = (
        _estimate_correlation(distance),
        _estimate_correlation(distance[half:]),
    )
    return np.minimum(
        np.abs(after - as_warm_up * before), np.abs(after - as_noise * before)
    )


def _estimate_correlation(distance: Floats) -> float:
    """Return the lag-1 correlation around zero, 0 to 0.99; 0 where there is no
    distance."""
    total = float(distance[:-1] @ distance[:-1])
    return (
        min(max(float(distance[1:] @ distance[:-1]) / total, 0.0), STEADIEST)
        if total > 0
        else 0.0
    )


def _take_median(values: Floats) -> float:
    """Return the upper median."""
    # numpy's own takes twenty times as long for a few dozen values
    return float(np.sort(values)[len(values) // 2])
