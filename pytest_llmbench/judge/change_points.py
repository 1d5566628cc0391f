"""Detect level shifts and slow drifts in a series of daily runs.

Single bad runs mislead the usual detectors. Two guards matter more than the algorithm:
values far from the running median are winsorised, and a level must persist for three
days to be reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.robust import compute_median, compute_median_deviation
from pytest_llmbench.judge.distributions import compute_quantile
from pytest_llmbench.judge.noise import (
    compute_running_median,
    compute_spread_correction,
    compute_variance_inflation,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers

# three days on each side, and one to distinguish the noise from a change
FEWEST = 7
MIN_LEVEL_DAYS = 3  # a level must persist for this many days
# Window of the running median, in days: it withstands three bad days.
MEDIAN_DAYS = 7
WINSOR_SIGMAS = 3.0  # winsorise values beyond this many sigma from the running median

# Standard errors by which the spread of a few days of one level (the median absolute
# deviation; for three days the standard deviation) hardly ever exceeds the error.
MAX_SPREAD_ERRORS = 2.0

# one-sided false alarm probability of the t statistic in a short series
FALSE_ALARM = 1e-5

# From this many days on the probability falls with the third power of their number,
# because as many more segments can be cut out by chance.
LONG_SERIES = 130

MIN_CHANGE = 0.005  # smallest log difference worth a message
TREND_DAYS = 20  # a level of this many days may contain a drift


class LevelShift(Struct, frozen=True):
    """Change of level in a series of daily runs."""

    position: int  # index of the first day after the change
    first: int  # index of the first day of the level before
    last: int  # index after the last day of the level after
    difference: float  # log difference; `low` and `high` bound its 95 % interval
    low: float
    high: float


def find_level_shifts(
    values: Sequence[float] | Floats,
    noise: Noise,
    smallest: float = MIN_CHANGE,
    correlation: float = 0.0,
) -> tuple[LevelShift, ...]:
    """Find the level shifts in a series of daily log step times.

    `values` has shape (n,), oldest first; positive shifts are slower.

    Circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler, Biostatistics
    5, 2004). The segment whose mean differs most from the others by the t statistic is
    cut out while the statistic exceeds its threshold, and each piece is searched again.
    This finds reverted changes as well as lasting ones. Afterwards each cut is tested
    between its two neighbours with the residual spread within the pieces, and the
    weakest cuts are dropped one by one.

    `correlation` is the lag-1 correlation of days (`estimate_fleet_correlation`).
    Correlated days carry less information than independent ones, and their successive
    differences underestimate their standard deviation.

    Empty if no change can be shown, also for fewer than 7 days or assumed noise.
    """
    series = np.array(values, dtype=float)
    if len(series) < FEWEST or not noise.measured or not np.isfinite(series).all():
        return ()
    sigma = noise.sigma * compute_spread_correction(correlation)
    winsorised = winsorise_series(series, sigma)
    false_alarm = choose_false_alarm_probability(len(series))
    threshold = compute_quantile(1 - false_alarm, noise.degrees_of_freedom)
    inner_cuts = _find_cuts(winsorised, 0, threshold * sigma, correlation)
    cuts = [0, *sorted(inner_cuts), len(series)]
    summarise = cache(
        lambda begin, end: _summarise_piece(
            series[begin:end], winsorised[begin:end], correlation
        )
    )
    while len(cuts) > 2:  # each iteration merges two pieces and keeps the others
        pieces = [summarise(begin, end) for begin, end in pairwise(cuts)]
        day_error = _pool_residuals([piece.residuals for piece in pieces], sigma)
        errors = []  # of the level of each piece
        for piece in pieces:
            is_scattered = piece.spread > MAX_SPREAD_ERRORS * day_error
            piece_error = piece.spread if is_scattered else day_error
            errors.append(piece_error * piece.relative_error)
        inner_indices = range(1, len(cuts) - 1)
        strengths = [
            _test_cut(pieces, index, errors, smallest) for index in inner_indices
        ]
        if min(strengths) > threshold:
            quantile = compute_quantile(0.975, noise.degrees_of_freedom)
            shifts = []
            for index in inner_indices:
                half_width = quantile * _combine_errors(errors, index)
                shifts.append(_make_shift(series, cuts, index, half_width, sigma))
            return tuple(shifts)
        weakest = inner_indices[int(np.argmin(strengths))]
        del cuts[weakest]
    return ()


def choose_false_alarm_probability(days: int) -> float:
    """Return the one-sided false alarm probability for a number of days."""
    return FALSE_ALARM * min(1.0, (LONG_SERIES / days) ** 3)


def winsorise_series(series: Floats, sigma: float) -> Floats:
    """Winsorise a series, shape (n,), to 3 sigma around its running median.

    The window is 7 days. The first and last values use the outermost full window, so
    that the last two days alone never look like a level.
    """
    median = compute_running_median(series, MEDIAN_DAYS)
    distance = WINSOR_SIGMAS * sigma
    return np.clip(series, median - distance, median + distance)


def _find_cuts(
    series: Floats, offset: int, least: float, correlation: float
) -> list[int]:
    """Return the indices at which a series, shape (n,), is cut.

    Cuts out the segment that differs most and recurses, unless its statistic is at most
    `least`. `offset` is added to each index.
    """
    segment_bounds = _find_segment(series, least, correlation)
    # a segment at the beginning or end of the series has one cut
    inner_bounds = [bound for bound in segment_bounds if 0 < bound < len(series)]
    if not inner_bounds:
        return []
    cuts = [bound + offset for bound in inner_bounds]
    for begin, end in pairwise([0, *inner_bounds, len(series)]):
        cuts += _find_cuts(series[begin:end], offset + begin, least, correlation)
    return cuts


def _find_segment(series: Floats, least: float, correlation: float) -> tuple[int, ...]:
    """Return the bounds of the segment that differs most, in days.

    Empty unless its statistic exceeds `least`.
    """
    count = len(series)
    if count < 2 * MIN_LEVEL_DAYS:
        return ()
    sums = np.concatenate([[0.0], np.cumsum(series - np.mean(series))])
    starts, ends = _list_bounds(count)
    statistic = sums[ends] - sums[starts][:, None]  # shape (starts, ends)
    np.abs(statistic, out=statistic)
    _multiply_weights(statistic, _compute_weights(count, correlation))
    row, column = divmod(int(np.argmax(statistic)), len(ends))
    if not statistic[row, column] > least:
        return ()
    return int(starts[row]), int(ends[column])


def _list_bounds(count: int) -> tuple[Integers, Integers]:
    """Return the possible first days of a segment, and the days after its last."""
    inner = np.arange(MIN_LEVEL_DAYS, count - MIN_LEVEL_DAYS + 1)
    return np.append(0, inner), np.append(inner, count)


@lru_cache(maxsize=8)
def _compute_weights(count: int, correlation: float) -> Floats:
    """Return the weights of the sums of segments by their length, shape (count + 1,).

    0 if a segment or its complement is too short.
    """
    _, ends = _list_bounds(count)
    inner = ends[:-1].astype(float)
    outer = count - inner
    variance = (
        compute_variance_inflation(inner, correlation) / inner
        + compute_variance_inflation(outer, correlation) / outer
    )
    weights = np.zeros(count + 1)
    weights[ends[:-1]] = count / (inner * outer) / np.sqrt(variance)
    return weights


def _multiply_weights(sums: Floats, weights: Floats) -> None:
    """Multiply the sums of all segments, shape (starts, ends), by their weights.

    `weights` are those of each length; 0 for an end before the start.
    """
    starts, ends = _list_bounds(len(weights) - 1)
    # All bounds but 0 and the last one are successive days. The weights of all pairs
    # are thus one series, of which each start has a section.
    inner = len(ends) - 1
    by_length = np.concatenate([np.zeros(inner - 1), weights[:inner]])
    sums[1:, :-1] *= np.lib.stride_tricks.sliding_window_view(by_length, inner)[::-1]
    sums[1:, -1] *= weights[ends[-1] - starts[1:]]
    sums[0] *= weights[ends]


class _Piece(NamedTuple):
    """Statistics of the days of one level."""

    mean: float  # mean of the winsorised days
    # residuals of the winsorised days, and the number of fitted parameters
    residuals: tuple[Floats, int]
    # Spread of a few days, 0 for longer pieces. Consecutive bad days, which differ from
    # each other, are not a level.
    spread: float
    # standard error of the level over the standard deviation of a day
    relative_error: float


def _summarise_piece(series: Floats, winsorised: Floats, correlation: float) -> _Piece:
    """Compute the statistics of the days of one level, with and without outliers."""
    count = len(series)
    inflation = float(compute_variance_inflation(np.array(float(count)), correlation))
    return _Piece(
        mean=float(np.mean(winsorised)),
        residuals=_remove_trend(winsorised),
        spread=_measure_spread(series) if count < MEDIAN_DAYS else 0.0,
        relative_error=math.sqrt(inflation / count),
    )


def _pool_residuals(pieces: Sequence[tuple[Floats, int]], sigma: float) -> float:
    """Pool the residuals into the standard deviation of one day.

    At least the known noise `sigma`. `pieces` contains the residuals of each level with
    its number of fitted parameters.
    """
    residuals = np.concatenate([values for values, _ in pieces])
    parameters = sum(count for _, count in pieces)
    freedom = max(len(residuals) - parameters, 1)
    return max(sigma, math.sqrt(float(residuals @ residuals) / freedom))


def _remove_trend(piece: Floats) -> tuple[Floats, int]:
    """Return the residuals of one level, and the number of fitted parameters.

    Subtracts the mean, and for long pieces a straight line: a slow drift within a level
    is neither spread nor correlation, and must not hide the changes around it.
    """
    centred = piece - np.mean(piece)
    if len(piece) < TREND_DAYS:
        return centred, 1
    days = np.arange(len(piece)) - (len(piece) - 1) / 2
    line = days * float(days @ centred) / float(days @ days)
    return np.asarray(centred - line), 2


def _measure_spread(piece: Floats) -> float:
    """Return the spread of a few days.

    The median absolute deviation ignores one bad day among four or more. Three days
    need the standard deviation: two equal days would hide that the third belongs to
    another level.
    """
    if len(piece) == MIN_LEVEL_DAYS:
        return float(np.std(piece, ddof=1))
    return compute_median_deviation(piece)


def _combine_errors(errors: Sequence[float], index: int) -> float:
    """Return the standard error of the difference of the two levels at a cut."""
    return math.hypot(errors[index - 1], errors[index])


def _test_cut(
    pieces: Sequence[_Piece], index: int, errors: Sequence[float], smallest: float
) -> float:
    """Return the t statistic of one cut between its neighbours.

    0 if the change is too small to matter.
    """
    difference = abs(pieces[index].mean - pieces[index - 1].mean)
    if difference < smallest:
        return 0.0
    return difference / _combine_errors(errors, index)


def _make_shift(
    series: Floats, cuts: Sequence[int], index: int, half_width: float, sigma: float
) -> LevelShift:
    """Build the level shift at a cut, with its size as the log difference.

    `half_width` is half the width of the interval of this difference.
    """
    first, position, last = cuts[index - 1 : index + 2]
    before = _average_level(series[first:position], sigma)
    difference = _average_level(series[position:last], sigma) - before
    return LevelShift(
        position=position,
        first=first,
        last=last,
        difference=difference,
        low=difference - half_width,
        high=difference + half_width,
    )


def _average_level(level: Floats, sigma: float) -> float:
    """Return the mean of the days of one level, winsorised to their median."""
    median, distance = compute_median(level), WINSOR_SIGMAS * sigma
    return float(np.mean(np.clip(level, median - distance, median + distance)))


# --- slow drifts ----------------------------------------------------------------------


# The reference level is the mean of this many first days. It never moves with the
# series.
ANCHOR = 20

# Slack per day, in sigma, before a deviation adds to the sum. It is optimal for drifts
# of twice this size.
SLACK = 0.5

# Decision limit of the sum, in sigma. `benchmarks/year.py` counts the resulting false
# alarms.
DECISION_LIMIT = 15.0

# A smaller drift, as a log difference, is not worth a message, because the cause of a
# single day is unknown.
SMALLEST_DRIFT = 0.01


def find_drift(
    values: Sequence[float] | Floats,
    noise: Noise,
    smallest: float = 0.0,
    correlation: float = 0.0,
) -> LevelShift | None:
    """Find a drift that persists at the end of a series of days.

    `values` are ln(step time), one value a day, oldest first, shape (n,).

    A cumulative sum of the differences from the mean of the first 20 days detects the
    drift (Page, Biometrika 41, 1954). Days are in units of sigma and winsorised as in
    `find_level_shifts`. The position is the day from which on the sum grew. The
    difference is the median of the last seven days minus the mean of the first 20.
    `correlation` is the lag-1 correlation of days.

    None if no drift can be shown, also for assumed noise or too few days.
    """
    series = np.array(values, dtype=float)
    if (
        len(series) < ANCHOR + MEDIAN_DAYS
        or not noise.measured
        or not np.isfinite(series).all()
    ):
        return None
    sigma = noise.sigma * compute_spread_correction(correlation)
    winsorised = winsorise_series(series, sigma)
    anchor = float(np.mean(winsorised[:ANCHOR]))
    difference = compute_median(series[-MEDIAN_DAYS:]) - anchor
    if abs(difference) < max(SMALLEST_DRIFT, smallest):
        return None
    inflation = math.sqrt((1 + correlation) / (1 - correlation))
    error = _pool_residuals([_remove_trend(winsorised)], sigma) * inflation
    deviations = np.clip(
        (winsorised[ANCHOR:] - anchor) / error, -WINSOR_SIGMAS, WINSOR_SIGMAS
    )
    # `_find_drift_start` looks for upward drifts
    start = _find_drift_start(deviations if difference > 0 else -deviations)
    if start is None:
        return None
    quantile = compute_quantile(0.975, noise.degrees_of_freedom)
    half_width = quantile * error * _compute_drift_error()
    return LevelShift(
        position=ANCHOR + start,
        first=0,
        last=len(series),
        difference=difference,
        low=difference - half_width,
        high=difference + half_width,
    )


def _find_drift_start(deviations: Floats) -> int | None:
    """Return the number of days after the anchor at which the sum began to grow.

    None while the sum is below its limit. The sum is capped at twice the limit, so that
    it falls again after a long drift is repaired. `deviations` are in sigma.
    """
    total, start = 0.0, 0
    for day, deviation in enumerate(deviations.tolist()):
        total = min(max(total + deviation - SLACK, 0.0), 2 * DECISION_LIMIT)
        if total == 0:
            start = day + 1
    return start if total > DECISION_LIMIT else None


def _compute_drift_error() -> float:
    """Return the standard error of a drift, in sigma.

    A drift is the median of seven days minus the mean of twenty.
    """
    return math.sqrt(math.pi / 2 / MEDIAN_DAYS + 1 / ANCHOR)
