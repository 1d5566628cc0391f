"""Find the slow steps of a window, their pattern and the saves they contain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from pytest_llmbench.core.log_records import CheckpointAction, CheckpointRecord
from pytest_llmbench.core.robust import NORMAL, compute_median, find_stragglers
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.core.statements import (
    CodedStatement,
    SlowestSteps,
    StatementCode,
    StepList,
    StepSpan,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats

# Smallest level, as a fraction of the steps and in steps; fewer slow steps are
# stragglers.
MIN_LEVEL_SHARE = 0.15
MIN_LEVEL_STEPS = 5

# Two levels are separated by a gap of more than this many standard deviations within
# them. At 3, correlated normal noise with stragglers has two levels in less than 0.1 %
# of windows of 34 steps, and in 3 % of windows of 15.
MIN_GAP = 3

MIN_LEVEL_DIFFERENCE = 0.01

# A period has at least this many repetitions, and explains at least this fraction of
# the slow steps.
MIN_REPETITIONS = 3
MIN_PERIOD_SHARE = 0.75

# A stretch has at least this many consecutive steps, and at least this fraction of the
# slow steps.
MIN_STRETCH = 3
MIN_STRETCH_SHARE = 0.75


MAX_SPANS = 5  # the number of step spans in a statement


class WindowColumns(Struct, frozen=True, eq=False):
    """Window of a run as columns of equal length."""

    seconds: Floats
    steps: tuple[int, ...]
    lines: tuple[int, ...]  # 0 if unknown
    moving_mean: int  # number of steps in each moving mean, 1 without
    mean_of: tuple[int, ...]  # number of steps that each value averages
    averaged: bool  # True if the log prints such means

    def get_first_step(self, position: int) -> int:
        """Return the first step that a value covers."""
        return self.steps[position] - self.mean_of[position] + 1


class ShapeKind(StrEnum):
    """Kind of pattern in the step times of a window."""

    EVEN = "even"
    ONE_SPIKE = "one-spike"
    SPIKES = "spikes"
    PERIODIC = "periodic"
    DRIFT = "drift"
    TWO_LEVELS = "two-levels"  # slow steps among the others
    SLOW_STRETCH = "slow-stretch"  # slow steps in a row


class Pattern(Struct, frozen=True, eq=False):
    """Pattern of the slow steps of a window."""

    kind: ShapeKind  # never DRIFT
    statement: CodedStatement
    stragglers: Flags
    levels: StepLevels | None


def find_pattern(window: WindowColumns, resolution: float) -> Pattern:
    """Find the pattern of the slow steps in a window.

    The slow steps are those of the upper level if there are two levels, otherwise the
    stragglers.
    """
    stragglers = find_stragglers(window.seconds, resolution)
    levels = find_step_levels(window.seconds, resolution)
    slow = levels.slow if levels else stragglers
    kind, statement = _classify_pattern(window, slow, levels)
    return Pattern(kind, statement, stragglers, levels)


def _classify_pattern(
    window: WindowColumns, slow: Flags, levels: StepLevels | None
) -> tuple[ShapeKind, CodedStatement]:
    """Classify the slow steps and describe them.

    In a moving mean, a single slow step affects as many values as it averages.
    """
    stretches = find_stretches(slow)
    if not stretches:
        even = CodedStatement(StatementCode.EVEN_STEPS, averaged=window.averaged)
        return ShapeKind.EVEN, even
    longest = max(stretches, key=len)
    has_single_steps = len(longest) <= window.moving_mean
    # Means hide which of their steps were slow, so no period can be found.
    if has_single_steps and not window.averaged:
        starts = [stretch.start for stretch in stretches]
        period = find_period(starts, len(slow))
        if period:
            return ShapeKind.PERIODIC, _state_period(window, slow, period)
    slow_count = np.count_nonzero(slow)
    fewest = max(MIN_STRETCH, window.moving_mean + 1, MIN_STRETCH_SHARE * slow_count)
    if len(longest) >= fewest:
        return ShapeKind.SLOW_STRETCH, _state_stretch(window, longest)
    if levels and (not has_single_steps or window.averaged):
        return ShapeKind.TWO_LEVELS, _state_levels(window, levels)
    return _classify_spikes(window, slow, stretches)


def _classify_spikes(
    window: WindowColumns, slow: Flags, stretches: Sequence[range]
) -> tuple[ShapeKind, CodedStatement]:
    """Describe slow steps without a pattern: one spike, or several."""
    line = window.lines[int(np.argmax(window.seconds))]
    slowest = find_slowest(window, slow)
    # A single slow step raises as many moving means as each mean has steps.
    if len(stretches) == 1 and len(stretches[0]) <= window.moving_mean:
        spike = CodedStatement(StatementCode.ONE_SPIKE, slowest=slowest, line=line)
        return ShapeKind.ONE_SPIKE, spike
    steps = list_steps(window, slow)
    spikes = CodedStatement(
        StatementCode.SPIKES, steps=steps, slowest=slowest, line=line
    )
    return ShapeKind.SPIKES, spikes


def find_slowest(window: WindowColumns, slow: Flags) -> SlowestSteps:
    """Return the slowest step, or the moving means that contain it."""
    position = int(np.argmax(window.seconds))
    ratio = float(window.seconds[position] / compute_median(window.seconds))
    averaged = window.mean_of[position] > 1
    smoothed = window.moving_mean > 1 and not averaged
    stretch = range(position, position + 1)
    if smoothed:  # all moving means that contain the step
        stretch = next(
            stretch for stretch in find_stretches(slow) if position in stretch
        )
    steps = _list_spans(window, [stretch])
    return SlowestSteps(steps, ratio, averaged, smoothed)


def list_steps(window: WindowColumns, steps: Flags) -> StepList:
    """List steps as spans of consecutive steps, at most five."""
    return _list_spans(window, find_stretches(steps))


def _list_spans(window: WindowColumns, stretches: Sequence[range]) -> StepList:
    """Return the first MAX_SPANS stretches as spans of step numbers.

    Also returns the number of steps in the other stretches, and in all stretches.
    """
    listed, omitted = stretches[:MAX_SPANS], stretches[MAX_SPANS:]
    spans = []
    for stretch in listed:
        first, last = window.get_first_step(stretch[0]), window.steps[stretch[-1]]
        spans.append(StepSpan(first, last, _count_steps(window, [stretch])))
    return StepList(
        tuple(spans), _count_steps(window, omitted), _count_steps(window, stretches)
    )


def _count_steps(window: WindowColumns, stretches: Sequence[range]) -> int:
    """Return the number of steps in stretches; a mean counts as all of its steps."""
    return sum(
        window.mean_of[position] for stretch in stretches for position in stretch
    )


def _state_period(window: WindowColumns, slow: Flags, period: range) -> CodedStatement:
    """State the period of slow steps, and how much slower they are."""
    periodic_median = compute_median(window.seconds[period.start :: period.step])
    excess = periodic_median / compute_median(window.seconds[~slow]) - 1
    steps = _list_spans(window, [range(position, position + 1) for position in period])
    return CodedStatement(
        StatementCode.PERIODIC_STEPS,
        period=period.step,
        excess=float(excess),
        steps=steps,
    )


def _state_stretch(window: WindowColumns, stretch: range) -> CodedStatement:
    """State a slow stretch, with the medians inside and outside."""
    inside = np.zeros(len(window.steps), dtype=bool)
    inside[stretch.start : stretch.stop] = True
    return CodedStatement(
        StatementCode.SLOW_STRETCH,
        steps=_list_spans(window, [stretch]),
        upper=compute_median(window.seconds[inside]),
        lower=compute_median(window.seconds[~inside]),
    )


def _state_levels(window: WindowColumns, levels: StepLevels) -> CodedStatement:
    """State two levels, with the steps of the level that has fewer."""
    smaller, level, other_level = levels.slow, levels.upper, levels.lower
    if 2 * np.count_nonzero(smaller) > len(smaller):
        smaller, level, other_level = ~levels.slow, levels.lower, levels.upper
    return CodedStatement(
        StatementCode.TWO_LEVELS,
        count=int(np.count_nonzero(smaller)),
        total=len(smaller),
        averaged=window.averaged,
        level=level,
        other=other_level,
        steps=list_steps(window, smaller),
    )


# --- levels, stretches and periods ----------------------------------------------------


class StepLevels(Struct, frozen=True):
    """Two levels of step time, in seconds."""

    lower: float
    upper: float
    slow: Flags  # the steps of the upper level, shape (n,)


def find_step_levels(seconds: Floats, resolution: float) -> StepLevels | None:
    """Split step times, shape (n,), into two levels.

    The split is at the widest gap that leaves each side enough steps. The gap must
    exceed the rounding, the noise on both sides, and a quarter of the difference
    (otherwise it is the tail of a decay). None if the steps have one level or no clear
    gap.
    """
    count = len(seconds)
    fewest = max(MIN_LEVEL_STEPS, math.ceil(MIN_LEVEL_SHARE * count))
    if count < 2 * fewest:
        return None
    ordered = np.sort(seconds)
    # only gaps that leave at least `fewest` steps on each side
    gaps = (ordered[1:] - ordered[:-1])[fewest - 1 : count - fewest]
    widest = int(np.argmax(gaps))
    gap, split = float(gaps[widest]), fewest + widest
    lower, upper = compute_median(ordered[:split]), compute_median(ordered[split:])
    slow: Flags = seconds >= ordered[split]
    noise = NORMAL * compute_median(np.abs(seconds - np.where(slow, upper, lower)))
    difference = upper - lower
    is_clear = gap > max(MIN_GAP * max(noise, resolution / 2), difference / 4)
    if not is_clear or not difference > MIN_LEVEL_DIFFERENCE * lower:
        return None
    return StepLevels(lower, upper, slow)


def find_stretches(slow: Flags) -> list[range]:
    """Return the ranges of consecutive slow positions."""
    stretches: list[range] = []
    for position in np.flatnonzero(slow).tolist():
        if stretches and stretches[-1].stop == position:
            stretches[-1] = range(stretches[-1].start, position + 1)
        else:
            stretches.append(range(position, position + 1))
    return stretches


def find_period(starts: list[int], count: int) -> range | None:
    """Return the positions of a period: `range(2, 20, 5)` for 2, 7, 12 and 17.

    `starts` are the positions of slow steps among `count` steps, ascending. All
    positions of the period are slow. There are at least three, and they are at least
    three quarters of the starts. None if there is no period.
    """
    positions = set(starts)
    fewest = max(MIN_REPETITIONS, MIN_PERIOD_SHARE * len(starts))
    distances = {later - earlier for earlier, later in itertools.pairwise(starts)}
    for distance in sorted(distances):
        for first in sorted({start % distance for start in starts}):
            expected = range(first, count, distance)
            if len(expected) >= fewest and positions.issuperset(expected):
                return expected
    return None


# --- checkpoint saves in slow steps ---------------------------------------------------

# A save explains a slow step if it takes at least this fraction of its extra time.
MIN_SAVE_SHARE = 0.5
# A save longer than its step by more than this factor ran asynchronously.
MAX_SAVE_RATIO = 1.02


class ReportedSave(NamedTuple):
    """A slow step, and the save printed between it and the step before."""

    step: int
    seconds: float  # of the step, or of all steps that its value averages
    save: CheckpointRecord


def find_save(measurement: Measurement, slow: Flags) -> CodedStatement | None:
    """Return the slowest slow step that contains a checkpoint save, or None."""
    saves = [
        record
        for record in measurement.checkpoints.records
        if record.action is CheckpointAction.SAVE
    ]
    if not saves or measurement.moving_mean > 1 or not len(measurement.window_lines):
        return None
    reported = list(_find_saves_in_steps(measurement, slow, saves))
    if not reported:
        return None
    slowest = max(reported, key=lambda reported_save: reported_save.seconds)
    return CodedStatement(
        StatementCode.SAVE_IN_STEP,
        step=slowest.step,
        seconds=slowest.seconds,
        save_seconds=slowest.save.seconds,
        line=slowest.save.line,
        held=len(reported),
        slow=int(np.count_nonzero(slow)),
    )


def _find_saves_in_steps(
    measurement: Measurement, slow: Flags, saves: Sequence[CheckpointRecord]
) -> Iterator[ReportedSave]:
    """Yield the checkpoint saves that explain slow steps, by their time and line.

    A save with an unknown time explains a step by its line alone.
    """
    # row i is between `lines[i]` and `lines[i + 1]`
    lines = (_find_line_before(measurement), *measurement.window_lines)
    step_counts = measurement.mean_of or (1,) * len(measurement.window_seconds)
    median = compute_median(np.array(measurement.window_seconds))
    for row in np.flatnonzero(slow).tolist():
        seconds = measurement.window_seconds[row] * step_counts[row]
        extra = seconds - median * step_counts[row]
        shortest, longest_save = MIN_SAVE_SHARE * extra, MAX_SAVE_RATIO * seconds
        explaining = [
            save
            for save in saves
            if lines[row] < save.line < lines[row + 1]
            and (save.seconds is None or shortest <= save.seconds <= longest_save)
        ]
        if explaining:
            longest = max(explaining, key=lambda save: save.seconds or 0.0)
            yield ReportedSave(measurement.window_steps[row], seconds, longest)


def _find_line_before(measurement: Measurement) -> int:
    """Return the line of the last step before the window.

    If there is none, the line of the first step of the window.
    """
    first = measurement.window_lines[0]
    segment = measurement.measured_segment
    if segment is None:
        return first
    lines = segment.steps.line
    return int(max(lines[lines < first], default=first))
