"""Changes of level in a series of daily runs, sudden and slow: when, by how much, and
how well that is known.

A series with single bad runs fools the usual detectors. The guards matter more than the
algorithm: what lies far from the running median is drawn in to it, and a level has to
hold for three days before anything is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.robust import compute_median, compute_median_deviation
from pytest_llmbench.judge.distributions import compute_quantile
from pytest_llmbench.judge.noise import (
    compute_hidden_spread,
    compute_inflation,
    compute_running_median,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers

# fewer days show no change: three on each side, and one to tell the noise from it
FEWEST = 7
HELD = 3  # a level that did not hold for so many days is none
# the running median is that of so many days: three bad ones among them do not move it
RUNNING = 7
REACH = 3.0  # what lies further from its median than so many sigma is set there

# A few days of one level are hardly ever further apart (median absolute deviation; of
# three, standard deviation) than so many times their error.
APART = 2.0

# the probability, on one side, with which chance may make the t statistic of a change
# in few days
LEVEL = 1e-5

# From so many days on that probability falls with the third power of their number: so
# many more parts can be cut out of them, each of which chance may make.
MANY = 130

SMALLEST = 0.005  # a smaller change, as a logarithm, is not worth a message
LONG = 20  # so many days of one level tell whether they drift


@dataclass(frozen=True, slots=True)
class LevelShift:
    """A change of level in a series of daily runs."""

    position: int  # the first day after it
    first: int  # the two levels reach from here
    last: int  # to before this one
    difference: float  # a logarithm, as its bounds, with 95 % between them
    low: float
    high: float


def find_level_shifts(
    values: Sequence[float] | Floats,
    noise: Noise,
    smallest: float = SMALLEST,
    correlation: float = 0.0,
) -> tuple[LevelShift, ...]:
    """Return the changes of level in a series, one log step time a day, oldest first;
    slower is positive.

    Circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler, Biostatistics
    5, 2004): the part whose mean differs most from the rest, by the t statistic, is cut
    out while it is beyond `level`, and each piece is searched again; so a change that
    was taken back is found as well as one that lasts. Then each cut has to hold between
    its two neighbours, with the spread that is left within the pieces, and the weakest
    are dropped first.

    `correlation` is that of a day with the next (`estimate_fleet_correlation`): such
    days say less together than as many independent ones, and vary by more than their
    differences show.

    Empty means that nothing can be shown: also for fewer than 7 days, and where the
    noise is only assumed.
    """
    series = np.array(values, dtype=float)
    if len(series) < FEWEST or not noise.measured or not np.isfinite(series).all():
        return ()
    sigma = noise.sigma * compute_hidden_spread(correlation)
    drawn = winsorise_series(series, sigma)
    threshold = compute_quantile(
        1 - choose_level(len(series)), noise.degrees_of_freedom
    )
    cuts = [
        0,
        *sorted(_find_cuts(drawn, 0, threshold * sigma, correlation)),
        len(series),
    ]
    describe = cache(
        lambda begin, end: _describe_piece(
            series[begin:end], drawn[begin:end], correlation
        )
    )
    while len(cuts) > 2:  # each time two pieces become one, and the others stay
        pieces = [describe(begin, end) for begin, end in pairwise(cuts)]
        error = _pool_rests([piece.rest for piece in pieces], sigma)
        errors = [
            (piece.apart if piece.apart > APART * error else error) * piece.inflated
            for piece in pieces
        ]
        strengths = [
            _test_cut(pieces, at, errors, smallest) for at in range(1, len(cuts) - 1)
        ]
        if min(strengths) > threshold:
            half = compute_quantile(0.975, noise.degrees_of_freedom)
            return tuple(
                _make_shift(series, cuts, at, half * _combine_errors(errors, at), sigma)
                for at in range(1, len(cuts) - 1)
            )
        del cuts[1 + int(np.argmin(strengths))]
    return ()


def choose_level(days: int) -> float:
    """Return the probability, on one side, with which chance may make the t statistic
    of a change in so many days."""
    return LEVEL * min(1.0, (MANY / days) ** 3)


def winsorise_series(series: Floats, sigma: float) -> Floats:
    """Return a series, shape (n,), with what lies further than 3 sigma from the median
    of the 7 days around it set there. At the ends it is the median of the outer 7, so
    that the last two days alone never look like a level."""
    middle = compute_running_median(series, RUNNING)
    return np.clip(series, middle - REACH * sigma, middle + REACH * sigma)


def _find_cuts(
    series: Floats, offset: int, least: float, correlation: float
) -> list[int]:
    """Return where a series, shape (n,), is cut: the part that differs most, then what
    is left; `offset` is added."""
    count = len(series)
    if count < 2 * HELD:
        return []
    sums = np.concatenate([[0.0], np.cumsum(series - np.mean(series))])
    starts, ends = _list_ends(count)
    statistic = sums[ends] - sums[starts][:, None]
    np.abs(statistic, out=statistic)
    statistic *= _compute_weights(count, correlation)
    start, end = divmod(int(np.argmax(statistic)), len(ends))
    if not statistic[start, end] > least:
        return []
    places = [
        0,
        *(int(place) for place in (starts[start], ends[end]) if 0 < place < count),
        count,
    ]
    cuts = [place + offset for place in places[1:-1]]
    for begin, stop in pairwise(places):
        cuts += _find_cuts(series[begin:stop], offset + begin, least, correlation)
    return cuts


def _list_ends(count: int) -> tuple[Integers, Integers]:
    """Return where a part of a series of `count` days may begin, and before which day
    it may end."""
    inner = np.arange(HELD, count - HELD + 1)
    return np.append(0, inner), np.append(inner, count)


@lru_cache(maxsize=8)
def _compute_weights(count: int, correlation: float) -> Floats:
    """Return what the sum of a part is multiplied by, shape (starts, ends); 0 where it
    or the rest is too short."""
    starts, ends = _list_ends(count)
    inner = ends[:-1].astype(float)
    outer = count - inner
    variance = (
        compute_inflation(inner, correlation) / inner
        + compute_inflation(outer, correlation) / outer
    )
    weight = np.zeros(count + 1)
    weight[ends[:-1]] = count / (inner * outer) / np.sqrt(variance)
    return np.asarray(weight[np.maximum(ends - starts[:, None], 0)])


class _Piece(NamedTuple):
    """The days of one level."""

    mean: float  # of the days that are drawn in
    rest: tuple[Floats, int]  # of these, beside the level
    # How far a few days lie apart, 0 for more. Bad days in a row, which differ from
    # each other, are no level that held.
    apart: float
    inflated: float  # the standard error of the level, in standard deviations of a day


def _describe_piece(series: Floats, drawn: Floats, correlation: float) -> _Piece:
    count = len(series)
    inflated = math.sqrt(
        float(compute_inflation(np.array(float(count)), correlation)) / count
    )
    apart = _measure_spread(series) if count < RUNNING else 0.0
    return _Piece(float(np.mean(drawn)), _remove_trend(drawn), apart, inflated)


def _pool_rests(rests: Sequence[tuple[Floats, int]], sigma: float) -> float:
    """Return the standard deviation of one day: at least what is known of it, at least
    the spread within the pieces."""
    rest = np.concatenate([of_piece for of_piece, _ in rests])
    return max(
        sigma,
        math.sqrt(
            float(rest @ rest) / max(len(rest) - sum(taken for _, taken in rests), 1)
        ),
    )


def _remove_trend(piece: Floats) -> tuple[Floats, int]:
    """Return what is left of the days of one level beside their mean, and beside the
    line through them where they are many: a slow drift within a level is neither its
    spread nor a correlation, and must not hide the changes around it. The number is
    that of the parameters that were taken out."""
    centred = piece - np.mean(piece)
    if len(piece) < LONG:
        return centred, 1
    days = np.arange(len(piece)) - (len(piece) - 1) / 2
    return np.asarray(centred - days * float(days @ centred) / float(days @ days)), 2


def _measure_spread(piece: Floats) -> float:
    """Return how far a few days lie apart. One bad day among more than three does not
    count; of three, two that are alike would hide that the third is of another
    level."""
    return (
        float(np.std(piece, ddof=1))
        if len(piece) == HELD
        else compute_median_deviation(piece)
    )


def _combine_errors(errors: Sequence[float], at: int) -> float:
    """Return the standard error of the difference of the two levels beside a cut."""
    return math.hypot(errors[at - 1], errors[at])


def _test_cut(
    pieces: Sequence[_Piece], at: int, errors: Sequence[float], smallest: float
) -> float:
    """Return the t statistic of one cut between its neighbours; 0 for a change that is
    too small to matter."""
    difference = abs(pieces[at].mean - pieces[at - 1].mean)
    return difference / _combine_errors(errors, at) if difference >= smallest else 0.0


def _make_shift(
    series: Floats, cuts: Sequence[int], at: int, half: float, sigma: float
) -> LevelShift:
    """Return a change with its size: here each day is drawn in to the median of its own
    level, not of both."""
    first, position, last = cuts[at - 1 : at + 2]
    levels = []
    for side in (series[first:position], series[position:last]):
        middle = compute_median(side)
        levels.append(
            float(
                np.mean(np.clip(side, middle - REACH * sigma, middle + REACH * sigma))
            )
        )
    difference = levels[1] - levels[0]
    return LevelShift(
        position, first, last, difference, difference - half, difference + half
    )


# --- slow drifts ----------------------------------------------------------------------


# The level that a series is held against is the mean of its first days, so many; it
# never moves with the series.
ANCHOR = 20

# What each day may lie off the anchor, in sigma, before it adds to the sum: the sum is
# made for twice as much.
SLACK = 0.5

# The sum, in sigma, from which on a series has drifted; `benchmarks/year.py` counts the
# false alarms that this makes.
LIMIT = 15.0

# a smaller drift, as a logarithm, is not worth a message: nothing is known of one day's
# cause
SMALLEST_DRIFT = 0.01


def find_slow_change(
    values: Sequence[float] | Floats,
    noise: Noise,
    smallest: float = 0.0,
    correlation: float = 0.0,
) -> LevelShift | None:
    """Return the drift in which a series stands now, one log step time a day, oldest
    first; slower is positive.

    Two cumulative sums against the first 20 days (Page, Biometrika 41, 1954), of days
    in units of sigma that are drawn in as for `find_level_shifts`. The position is the
    day from which on the sum grew; the difference is that of the last seven days.
    `correlation` is that of a day with the next, as there. None: nothing can be shown,
    also where the noise is only assumed or too few days follow.
    """
    series = np.array(values, dtype=float)
    if (
        len(series) < ANCHOR + RUNNING
        or not noise.measured
        or not np.isfinite(series).all()
    ):
        return None
    sigma = noise.sigma * compute_hidden_spread(correlation)
    drawn = winsorise_series(series, sigma)
    anchor = float(np.mean(drawn[:ANCHOR]))
    difference = compute_median(series[-RUNNING:]) - anchor
    if abs(difference) < max(SMALLEST_DRIFT, smallest):
        return None
    error = _pool_rests([_remove_trend(drawn)], sigma) * math.sqrt(
        (1 + correlation) / (1 - correlation)
    )
    units = np.clip((drawn[ANCHOR:] - anchor) / error, -REACH, REACH)
    began = _find_beginning(units if difference > 0 else -units)
    if began is None:
        return None
    half = compute_quantile(0.975, noise.degrees_of_freedom) * error * _compute_error()
    return LevelShift(
        ANCHOR + began, 0, len(series), difference, difference - half, difference + half
    )


def _find_beginning(units: Floats) -> int | None:
    """Return since which day, counted from the anchor's last, the sum has grown; None
    while it is below the limit.

    It is kept below twice the limit, so that it comes down again when a long drift was
    put right.
    """
    total, began = 0.0, 0
    for day, value in enumerate(units.tolist()):
        total = min(max(total + value - SLACK, 0.0), 2 * LIMIT)
        began = day + 1 if total == 0 else began
    return began if total > LIMIT else None


def _compute_error() -> float:
    """Return the standard error, in sigma, of a median of seven days against a mean of
    twenty."""
    return math.sqrt(math.pi / 2 / RUNNING + 1 / ANCHOR)
