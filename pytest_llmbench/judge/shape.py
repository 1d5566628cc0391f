"""What the step times of a window look like, whether they have settled, and what a
reader should know of them."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.codes import NoteCode
from pytest_llmbench.core.robust import (
    TRIMMED,
    compute_mean,
    compute_median,
    compute_trimmed_mean,
    winsorise,
)
from pytest_llmbench.core.run_records import Measurement, Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.distributions import compute_probability
from pytest_llmbench.judge.noise import LARGEST_CORRELATION
from pytest_llmbench.judge.pattern import (
    Pattern,
    ShapeKind,
    WindowColumns,
    find_pattern,
    find_save,
    find_slowest,
    list_steps,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers
    from pytest_llmbench.core.run_records import VerdictStatement

FEWEST = 3  # fewer steps have no shape
# the mean and the trimmed mean say different things if they differ by more than this
DISAGREE = 0.01


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a window."""

    statements: tuple[VerdictStatement, ...]
    kind: ShapeKind
    notes: tuple[Note, ...] = ()  # which change no verdict
    warming_up: Note | None = (
        None  # not among the notes: there if the first third is slower than the rest
    )
    warm_up: float = (
        0.0  # how much slower that third is, as a fraction; 0 if it is not shown to be
    )
    drift: float | None = (
        # the change from the first to the last step as a fraction, None if there is
        # none
        None
    )


def find_shape(measurement: Measurement) -> Shape:
    """Return the shape of the measured window; it is the same in another unit of time.

    Less than three steps are even: nothing can be told.
    """
    window = _make_columns(measurement)
    if len(window.steps) < FEWEST:
        moving = tuple(filter(None, [_note_moving_mean(window)]))
        too_few = CodedStatement(StatementCode.TOO_FEW_STEPS)
        return Shape((too_few,), ShapeKind.EVEN, moving)
    resolution = measurement.resolution_seconds
    pattern = find_pattern(window, resolution)
    drifting = find_slope(window.seconds, window.moving_mean)
    warm_up = find_warm_up(window.seconds, window.moving_mean, resolution)
    warming = _note_warm_up(window, warm_up)
    notes: tuple[Note | None, ...] = (
        _note_stragglers(window, pattern),
        _note_levels(window, pattern),
        _note_drift(window, drifting),
        _note_means(window),
    )
    kind, statements = _name_shape(pattern, drifting, warming)
    slow = pattern.levels.slow if pattern.levels else pattern.stragglers
    statements = (*statements, *filter(None, [find_save(measurement, slow)]))
    change = drifting.change if drifting else None
    excess = warm_up.excess if warm_up else 0.0
    notes = (*notes, _note_moving_mean(window))
    return Shape(statements, kind, tuple(filter(None, notes)), warming, excess, change)


def _make_columns(measurement: Measurement) -> WindowColumns:
    count, first = len(measurement.window_seconds), measurement.baseline.window.first
    return WindowColumns(
        np.array(measurement.window_seconds, dtype=float),
        measurement.window_steps or tuple(range(first, first + count)),
        measurement.window_lines or (0,) * count,
        measurement.moving_mean,
        measurement.mean_of or (1,) * count,
        averaged=bool(measurement.mean_of),
    )


def _name_shape(
    pattern: Pattern, drifting: Slope | None, warming: Note | None
) -> tuple[ShapeKind, tuple[VerdictStatement, ...]]:
    """Return the kind of the shape and its statements.

    Levels explain a slope; a slope comes before the stragglers on it.
    """
    slow = () if pattern.kind is ShapeKind.EVEN else (pattern.statement,)
    if pattern.kind not in (
        ShapeKind.PERIODIC,
        ShapeKind.SLOW_STRETCH,
        ShapeKind.TWO_LEVELS,
    ):
        if drifting:
            drift = CodedStatement(StatementCode.DRIFTING_STEPS, change=drifting.change)
            return ShapeKind.DRIFT, (drift, *slow)
        if warming:
            return ShapeKind.DRIFT, (warming, *slow)
    return pattern.kind, (pattern.statement,)


def _note_stragglers(window: WindowColumns, pattern: Pattern) -> Note | None:
    slow, seconds = pattern.stragglers, window.seconds
    number = int(np.count_nonzero(slow))
    if not number:
        return None
    weights = np.array(window.mean_of, dtype=float)
    share = float(seconds[slow] @ weights[slow] / (seconds @ weights))
    added = (
        float(
            np.average(seconds, weights=weights)
            / np.average(seconds[~slow], weights=weights[~slow])
        )
        - 1
    )
    stragglers = CodedStatement(
        StatementCode.STRAGGLERS,
        count=number,
        averaged=window.averaged,
        share=share,
        added=added,
        steps=list_steps(window, slow),
        slowest=find_slowest(window, slow),
        moving_mean=window.moving_mean,
    )
    return Note(NoteCode.STRAGGLERS, stragglers, window.lines[int(np.argmax(seconds))])


def _note_levels(window: WindowColumns, pattern: Pattern) -> Note | None:
    """Return the note on slow steps that are more than stragglers; a moving mean makes
    levels of a few of those."""
    in_levels = pattern.levels and pattern.kind is ShapeKind.PERIODIC
    if (
        pattern.kind not in (ShapeKind.SLOW_STRETCH, ShapeKind.TWO_LEVELS)
        and not in_levels
    ):
        return None
    slow = pattern.levels.slow if pattern.levels else pattern.stragglers
    return Note(
        NoteCode.TWO_LEVELS, pattern.statement, window.lines[int(np.argmax(slow))]
    )


def _note_drift(window: WindowColumns, drifting: Slope | None) -> Note | None:
    if drifting is None:
        return None
    drift = CodedStatement(
        StatementCode.STEP_DRIFT,
        change=drifting.change,
        first=window.begin(0),
        last=window.steps[-1],
        p=drifting.p,
    )
    return Note(NoteCode.DRIFT, drift, window.lines[0])


def _note_warm_up(window: WindowColumns, warm_up: WarmUp | None) -> Note | None:
    if warm_up is None:
        return None
    steps = CodedStatement(
        StatementCode.WARM_UP_STEPS,
        first=window.begin(0),
        last=window.steps[warm_up.steps - 1],
        excess=warm_up.excess,
        z=warm_up.z,
    )
    return Note(NoteCode.WARM_UP, steps, window.lines[0])


def _note_means(window: WindowColumns) -> Note | None:
    """Return the note that the mean and the trimmed mean differ by more than 1 %, and
    which steps do it."""
    middle, trimmed = (
        compute_mean(window.seconds, window.mean_of),
        compute_trimmed_mean(window.seconds, window.mean_of),
    )
    if abs(middle / trimmed - 1) <= DISAGREE:
        return None
    means = CodedStatement(
        StatementCode.MEAN_AND_TRIMMED,
        mean=middle,
        trimmed=trimmed,
        slow=middle > trimmed,
    )
    return Note(NoteCode.MEAN_AND_TRIMMED, means)


def _note_moving_mean(window: WindowColumns) -> Note | None:
    if window.moving_mean == 1:
        return None
    count = len(window.steps)
    means = CodedStatement(
        StatementCode.MOVING_MEANS,
        steps=window.moving_mean,
        values=count,
        independent=max(count // window.moving_mean, 1),
    )
    return Note(NoteCode.MOVING_MEAN, means)


# --- warm-ups and slopes --------------------------------------------------------------


# A change counts if it is more than 1 % of the step time and chance has less than 1 %
# of producing it.
SMALLEST_CHANGE = 0.01
LEVEL = 0.01

FLOAT_ERROR = 1e-12  # of a value

FEWEST_TO_SETTLE = (
    9  # a first third of less than three steps cannot tell a warm-up from a straggler
)
# longer windows are looked at in this many blocks: pairs of steps grow with the square
MOST = 100

# How many standard errors are added to a correlation. With none, windows of 34 steps
# with a lag-1 correlation of 0.8 raise a false alarm two to three times as often.
CAUTION = 1.25


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How much slower the first steps of a window are than the rest."""

    steps: int
    excess: float  # as a fraction
    z: float  # in standard errors


@dataclass(frozen=True, slots=True)
class Slope:
    """A change from the first to the last step of a window."""

    change: float  # as a fraction of the median
    p: float  # two-sided


def find_warm_up(
    seconds: Floats, moving_mean: int = 1, resolution: float = 0.0
) -> WarmUp | None:
    """Return by how much the first third of step times, shape (n,), is slower than the
    rest.

    None: it is not, or by no more than 1 % and a unit in the last place, or by no more
    than chance makes (one-sided, 1 %), or n < 9. Medians are compared: a slow step,
    which a moving mean shows in five values, is no warm-up. The error is that of the
    rest alone, less its decline: what a warm-up leaves there would hide it. Steps that
    are slow at first for another reason look the same.
    """
    points, block = condense(seconds)
    third = len(points) // 3
    if len(points) < FEWEST_TO_SETTLE:
        return None
    first, rest = points[:third], points[third:]
    level = compute_median(rest)
    excess = compute_median(first) / level - 1
    if not excess > SMALLEST_CHANGE + resolution / level:
        return None
    residuals = _subtract_centre(winsorise(_remove_decline(rest)))
    spread = (
        math.sqrt(float(residuals @ residuals) / (len(rest) - 1))
        / (1 - 2 * TRIMMED)
        / level
    )
    inflation = max(_inflate(residuals), moving_mean / block)
    z = (
        excess / (spread * math.sqrt(inflation * (1 / third + 1 / len(rest))))
        if spread > 0
        else math.inf
    )
    freedom = len(rest) - 2 * int(TRIMMED * len(rest)) - 1
    return (
        WarmUp(third * block, excess, z)
        if compute_probability(z, freedom) < LEVEL
        else None
    )


def find_slope(seconds: Floats, moving_mean: int = 1) -> Slope | None:
    """Return the drift of step times, shape (n,), by the Theil-Sen slope and Kendall's
    test.

    None: no more than 1 % of the median, or no more than chance makes (two-sided, 1 %),
    or n < 9. The variance of S is inflated for the correlation of neighbours (Hamed and
    Rao, Journal of Hydrology 204, 1998), here by the sum of an AR(1) process, (1 + r) /
    (1 - r): single correlations of a few dozen steps say too little.
    """
    points, block = condense(seconds)
    if len(points) < FEWEST_TO_SETTLE:
        return None
    slope = compute_theil_sen(points)
    change = slope * (len(points) - 1) / compute_median(points)
    if not abs(change) > SMALLEST_CHANGE:
        return None
    residuals = _subtract_centre(winsorise(points - slope * np.arange(len(points))))
    # On an exact line they are errors of floating point, which are correlated.
    residuals[np.abs(residuals) < FLOAT_ERROR * points.max()] = 0.0
    inflation = max(_inflate(residuals), moving_mean / block)
    score, variance = compute_kendall(points)
    p = math.erfc(abs(score) / math.sqrt(2 * variance * inflation))
    return Slope(change, p) if p < LEVEL else None


def compute_theil_sen(values: Floats) -> float:
    """Return the median slope, per position, of all pairs of values of shape (n,), n >
    1."""
    earlier, later = _list_pairs(len(values))
    return compute_median((values[later] - values[earlier]) / (later - earlier))


def compute_kendall(values: Floats) -> tuple[float, float]:
    """Return Kendall's S of values of shape (n,), n > 1, and its variance for
    independent ones, corrected for ties."""
    count = len(values)
    earlier, later = _list_pairs(count)
    score = float(np.sum(np.sign(values[later] - values[earlier])))
    tied = sum(
        tie * (tie - 1) * (2 * tie + 5) for tie in Counter(values.tolist()).values()
    )
    return score, (count * (count - 1) * (2 * count + 5) - tied) / 18


def condense(seconds: Floats) -> tuple[Floats, int]:
    """Return step times of shape (n,) as at most 100 medians of consecutive blocks, and
    the number of steps in each.

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
    """Return the values less the straight line through them, if it falls; outliers are
    drawn in for the line."""
    position = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(winsorise(values) @ position) / float(position @ position)
    return values - min(slope, 0.0) * position


def _subtract_centre(values: Floats) -> Floats:
    return values - float(values.sum()) / len(values)


def _inflate(residuals: Floats) -> float:
    """Return how many correlated values, centred, say as much of their mean as one
    independent: (1 + r) / (1 - r).

    r is the lag-1 correlation, corrected for its bias where a level and a slope were
    fitted, (n r + 2) / (n - 5), and for caution 1.25 of its standard errors larger.
    """
    count = len(residuals)
    total = float(residuals @ residuals)
    if total <= 0:
        return 1.0
    corrected = (count * float(residuals[1:] @ residuals[:-1]) / total + 2) / (
        count - 5
    )
    upper = corrected + CAUTION * math.sqrt(max(1 - corrected**2, 0.1) / count)
    correlation = min(max(upper, 0.0), LARGEST_CORRELATION)
    return (1 + correlation) / (1 - correlation)
