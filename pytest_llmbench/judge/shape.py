"""Describe the shape of a window: pattern, drift, warm-up and stragglers."""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

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
from pytest_llmbench.judge.distributions import compute_t_upper_tail
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

MIN_STEPS = 3  # fewer steps have no shape
# smallest relative difference of mean and trimmed mean that is noted
MEAN_DIFFERENCE = 0.01


class Shape(Struct, frozen=True):
    """Shape of a window, with the notes that follow from it."""

    statements: tuple[VerdictStatement, ...]
    kind: ShapeKind
    notes: tuple[Note, ...] = ()  # do not change the verdict
    # set if the first third is slower; not contained in `notes`
    warming_up: Note | None = None
    # excess of the first third, as a fraction; 0 if it is not significant
    warm_up: float = 0.0
    # relative change from the first to the last step; None without a drift
    drift: float | None = None


def find_shape(measurement: Measurement) -> Shape:
    """Find how the step times vary in the measured window.

    For example, they are even, contain slow steps or two levels, or drift. The shape
    does not depend on the unit of time. Fewer than three steps are EVEN.
    """
    window = _make_columns(measurement)
    if len(window.steps) < MIN_STEPS:
        moving_mean_note = _note_moving_mean(window)
        too_few = CodedStatement(StatementCode.TOO_FEW_STEPS)
        return Shape(
            statements=(too_few,),
            kind=ShapeKind.EVEN,
            notes=(moving_mean_note,) if moving_mean_note else (),
        )
    resolution = measurement.resolution_seconds
    pattern = find_pattern(window, resolution)
    slope = find_slope(window.seconds, window.moving_mean)
    warm_up = find_warm_up(window.seconds, window.moving_mean, resolution)
    warm_up_note = _note_warm_up(window, warm_up)
    notes: tuple[Note | None, ...] = (
        _note_stragglers(window, pattern),
        _note_levels(window, pattern),
        _note_drift(window, slope),
        _note_means(window),
        _note_moving_mean(window),
    )
    kind, statements = _name_shape(pattern, slope, warm_up_note)
    slow = pattern.levels.slow if pattern.levels else pattern.stragglers
    save = find_save(measurement, slow)
    return Shape(
        statements=(*statements, save) if save else statements,
        kind=kind,
        notes=tuple(filter(None, notes)),
        warming_up=warm_up_note,
        warm_up=warm_up.excess if warm_up else 0.0,
        drift=slope.change if slope else None,
    )


def _make_columns(measurement: Measurement) -> WindowColumns:
    """Return the window of a run as columns, with defaults for those not recorded."""
    count, first = len(measurement.window_seconds), measurement.baseline.window.first
    return WindowColumns(
        seconds=np.array(measurement.window_seconds, dtype=float),
        steps=measurement.window_steps or tuple(range(first, first + count)),
        lines=measurement.window_lines or (0,) * count,
        moving_mean=measurement.moving_mean,
        mean_of=measurement.mean_of or (1,) * count,
        averaged=bool(measurement.mean_of),
    )


def _name_shape(
    pattern: Pattern, slope: Slope | None, warm_up: Note | None
) -> tuple[ShapeKind, tuple[VerdictStatement, ...]]:
    """Return the kind of the shape and its statements.

    Levels and periods explain a slope. A slope takes precedence over stragglers.
    """
    slow_steps = () if pattern.kind is ShapeKind.EVEN else (pattern.statement,)
    explains_slope = pattern.kind in (
        ShapeKind.PERIODIC,
        ShapeKind.SLOW_STRETCH,
        ShapeKind.TWO_LEVELS,
    )
    if slope and not explains_slope:
        drift = CodedStatement(StatementCode.DRIFTING_STEPS, change=slope.change)
        return ShapeKind.DRIFT, (drift, *slow_steps)
    if warm_up and not explains_slope:
        return ShapeKind.DRIFT, (warm_up, *slow_steps)
    return pattern.kind, (pattern.statement,)


def _note_stragglers(window: WindowColumns, pattern: Pattern) -> Note | None:
    """Build the note on slow steps: their share of the time and their effect on the mean."""
    slow, seconds = pattern.stragglers, window.seconds
    count = int(np.count_nonzero(slow))
    if not count:
        return None
    weights = np.array(window.mean_of, dtype=float)
    share = float(seconds[slow] @ weights[slow] / (seconds @ weights))
    mean = np.average(seconds, weights=weights)
    mean_without = np.average(seconds[~slow], weights=weights[~slow])
    added = float(mean / mean_without) - 1
    stragglers = CodedStatement(
        StatementCode.STRAGGLERS,
        count=count,
        averaged=window.averaged,
        share=share,
        added=added,
        steps=list_steps(window, slow),
        slowest=find_slowest(window, slow),
        moving_mean=window.moving_mean,
    )
    return Note(NoteCode.STRAGGLERS, stragglers, window.lines[int(np.argmax(seconds))])


def _note_levels(window: WindowColumns, pattern: Pattern) -> Note | None:
    """Make the note on slow steps that form a level, at the first of these steps.

    None if they form no level. Stragglers in a moving mean look like a level, and are
    noted only as stragglers.
    """
    forms_level = pattern.kind in (ShapeKind.SLOW_STRETCH, ShapeKind.TWO_LEVELS)
    # slow steps that recur periodically, if they are numerous enough for a level
    is_periodic_level = pattern.kind is ShapeKind.PERIODIC and pattern.levels
    if not forms_level and not is_periodic_level:
        return None
    slow = pattern.levels.slow if pattern.levels else pattern.stragglers
    first_line = window.lines[int(np.argmax(slow))]
    return Note(NoteCode.TWO_LEVELS, pattern.statement, first_line)


def _note_drift(window: WindowColumns, slope: Slope | None) -> Note | None:
    """Make the note on a drift of the step time within the window, or return None."""
    if slope is None:
        return None
    drift = CodedStatement(
        StatementCode.STEP_DRIFT,
        change=slope.change,
        first=window.get_first_step(0),
        last=window.steps[-1],
        p=slope.p,
    )
    return Note(NoteCode.DRIFT, drift, window.lines[0])


def _note_warm_up(window: WindowColumns, warm_up: WarmUp | None) -> Note | None:
    """Make the note on a slower first third of the window, or return None."""
    if warm_up is None:
        return None
    steps = CodedStatement(
        StatementCode.WARM_UP_STEPS,
        first=window.get_first_step(0),
        last=window.steps[warm_up.steps - 1],
        excess=warm_up.excess,
        z=warm_up.z,
    )
    return Note(NoteCode.WARM_UP, steps, window.lines[0])


def _note_means(window: WindowColumns) -> Note | None:
    """Note that mean and trimmed mean differ by more than 1 %."""
    mean = compute_mean(window.seconds, window.mean_of)
    trimmed = compute_trimmed_mean(window.seconds, window.mean_of)
    if abs(mean / trimmed - 1) <= MEAN_DIFFERENCE:
        return None
    means = CodedStatement(
        StatementCode.MEAN_AND_TRIMMED,
        mean=mean,
        trimmed=trimmed,
        slow=mean > trimmed,
    )
    return Note(NoteCode.MEAN_AND_TRIMMED, means)


def _note_moving_mean(window: WindowColumns) -> Note | None:
    """Make the note that the values are moving means, or return None."""
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


# A change must exceed this fraction of the step time, and be significant at LEVEL.
SMALLEST_CHANGE = 0.01
LEVEL = 0.01

FLOAT_ERROR = 1e-12  # relative to the value

# With fewer steps, the first third has fewer than three, which do not distinguish a
# warm-up from a straggler.
MIN_STEPS_FOR_TREND = 9
# Longer windows are condensed to this many blocks, because the number of pairs grows
# quadratically.
MAX_BLOCKS = 100

# Standard errors added to a correlation. Without them, windows of 34 steps with a lag-1
# correlation of 0.8 raise two to three times as many false alarms.
CAUTION = 1.25


class WarmUp(Struct, frozen=True):
    """Excess of the first steps of a window over the others."""

    steps: int
    excess: float  # as a fraction
    z: float  # in standard errors


class Slope(Struct, frozen=True):
    """Change from the first to the last step of a window."""

    change: float  # as a fraction of the median
    p: float  # two-sided


def find_warm_up(
    seconds: Floats, moving_mean: int = 1, resolution: float = 0.0
) -> WarmUp | None:
    """Test whether the first third of step times, shape (n,), is slower.

    None if it is not slower by more than 1 % and a unit in the last place, if the
    excess is not significant (one-sided, 1 %), or if n < 9. Medians are compared, so
    that a single slow step, which affects five values of a moving mean, is not a
    warm-up. The error is that of the remaining two thirds without their decline,
    because the tail of a warm-up would otherwise hide it. Steps that are slow at first
    for another reason are reported too.
    """
    points, block = condense(seconds)
    if len(points) < MIN_STEPS_FOR_TREND:
        return None
    third = len(points) // 3
    first, later = points[:third], points[third:]
    level = compute_median(later)
    excess = compute_median(first) / level - 1
    if not excess > SMALLEST_CHANGE + resolution / level:
        return None
    residuals = _subtract_centre(winsorise(_remove_decline(later)))
    deviation = math.sqrt(float(residuals @ residuals) / (len(later) - 1))
    # Winsorising reduces the deviation: the factor and `freedom` are those of Yuen's
    # test for trimmed means.
    spread = deviation / (1 - 2 * TRIMMED) / level
    inflation = max(_compute_inflation(residuals), moving_mean / block)
    z = math.inf
    if spread > 0:
        z = excess / (spread * math.sqrt(inflation * (1 / third + 1 / len(later))))
    freedom = len(later) - 2 * int(TRIMMED * len(later)) - 1
    if not compute_t_upper_tail(z, freedom) < LEVEL:
        return None
    return WarmUp(steps=third * block, excess=excess, z=z)


def find_slope(seconds: Floats, moving_mean: int = 1) -> Slope | None:
    """Estimate the drift of step times, shape (n,).

    The size is the Theil-Sen slope, the test Kendall's. The variance of S is inflated
    for the correlation of neighbours (Hamed and Rao, Journal of Hydrology 204, 1998),
    by the sum of an AR(1) process, (1 + r) / (1 - r), because single correlations of a
    few dozen steps are too uncertain.

    None if the change is at most 1 % of the median, not significant (two-sided, 1 %),
    or n < 9.
    """
    points, block = condense(seconds)
    if len(points) < MIN_STEPS_FOR_TREND:
        return None
    slope = compute_theil_sen(points)
    change = slope * (len(points) - 1) / compute_median(points)
    if not abs(change) > SMALLEST_CHANGE:
        return None
    residuals = _subtract_centre(winsorise(points - slope * np.arange(len(points))))
    # Residuals of an exact line are floating-point errors, which are correlated.
    residuals[np.abs(residuals) < FLOAT_ERROR * points.max()] = 0.0
    inflation = max(_compute_inflation(residuals), moving_mean / block)
    score, variance = compute_kendall(points)
    p = math.erfc(abs(score) / math.sqrt(2 * variance * inflation))
    return Slope(change, p) if p < LEVEL else None


def compute_theil_sen(values: Floats) -> float:
    """Return the Theil-Sen slope of values, shape (n,), n > 1.

    That is the median slope of all pairs, per position.
    """
    earlier, later = _list_pairs(len(values))
    return compute_median((values[later] - values[earlier]) / (later - earlier))


def compute_kendall(values: Floats) -> tuple[float, float]:
    """Return Kendall's S of values, shape (n,), n > 1, and its variance.

    The variance assumes independent values and is corrected for ties.
    """
    count = len(values)
    earlier, later = _list_pairs(count)
    score = float(np.sum(np.sign(values[later] - values[earlier])))
    counts = Counter(values.tolist()).values()  # of equal values
    ties = sum(tied * (tied - 1) * (2 * tied + 5) for tied in counts)
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    return score, variance


def condense(seconds: Floats) -> tuple[Floats, int]:
    """Condense step times, shape (n,), to at most 100 block medians.

    Returns the medians and the number of steps per block. The last block overlaps the
    block before it if n is not a multiple.
    """
    count = len(seconds)
    block = -(-count // MAX_BLOCKS)  # rounded up
    if block <= 1:
        return seconds, 1
    starts = np.minimum(np.arange(0, count, block), count - block)
    return np.median(seconds[starts[:, None] + np.arange(block)], axis=1), block


@functools.lru_cache(maxsize=8)
def _list_pairs(count: int) -> tuple[Integers, Integers]:
    """Return the positions of all pairs, as (earlier, later)."""
    earlier, later = np.triu_indices(count, 1)
    return earlier, later


def _remove_decline(values: Floats) -> Floats:
    """Subtract a falling straight line from values.

    The line is fitted to the winsorised values. A rising line is not subtracted.
    """
    position = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(winsorise(values) @ position) / float(position @ position)
    return values - min(slope, 0.0) * position


def _subtract_centre(values: Floats) -> Floats:
    """Subtract the mean of values."""
    return values - float(values.sum()) / len(values)


def _compute_inflation(residuals: Floats) -> float:
    """Return the variance inflation of the mean of correlated residuals.

    (1 + r) / (1 - r), with the lag-1 correlation r corrected for its bias after fitting
    a level and a slope, (n r + 2) / (n - 5), and increased by 1.25 standard errors.
    """
    count = len(residuals)
    total = float(residuals @ residuals)
    if total <= 0:
        return 1.0
    correlated = count * float(residuals[1:] @ residuals[:-1]) / total
    corrected = (correlated + 2) / (count - 5)
    upper = corrected + CAUTION * math.sqrt(max(1 - corrected**2, 0.1) / count)
    correlation = min(max(upper, 0.0), LARGEST_CORRELATION)
    return (1 + correlation) / (1 - correlation)
