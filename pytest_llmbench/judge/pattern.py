"""Which steps of a window are slow, in what pattern, and which contain a save."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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

# A level holds at least this share of the steps, and at least so many: fewer are
# stragglers.
SMALLEST_SHARE = 0.15
FEWEST_STEPS = 5

# Two levels are apart by more than so many deviations of the steps within them. At 3,
# correlated normal noise with stragglers has two levels in less than 0.1 % of windows
# of 34 steps, and in 3 % of windows of 15.
GAP = 3

SMALLEST_DIFFERENCE = 0.01

# A period shows at least three times, and in at least this share of the slow steps.
FEWEST_TIMES = 3
MOST_TIMES = 0.75

# A stretch is at least so many consecutive steps, and at least this share of the slow
# ones.
STRETCH = 3
STRETCH_SHARE = 0.75


SHOWN = 5  # how many stretches of steps a statement lists


@dataclass(frozen=True, slots=True, eq=False)
class WindowColumns:
    """A window as columns of equal length."""

    seconds: Floats
    steps: tuple[int, ...]
    lines: tuple[int, ...]  # 0 for one that is not known
    moving_mean: int  # over so many steps each value is one
    mean_of: tuple[int, ...]  # of how many steps of its own each value is the mean
    averaged: bool  # whether the log prints such means

    def begin(self, position: int) -> int:
        """The first step that a value covers."""
        return self.steps[position] - self.mean_of[position] + 1


class ShapeKind(StrEnum):
    """What the step times of a window look like."""

    EVEN = "even"
    ONE_SPIKE = "one-spike"
    SPIKES = "spikes"
    PERIODIC = "periodic"
    DRIFT = "drift"
    TWO_LEVELS = "two-levels"  # slow steps among the others
    SLOW_STRETCH = "slow-stretch"  # slow steps in a row


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What the slow steps of a window look like, and what that rests on."""

    kind: ShapeKind  # never DRIFT
    statement: CodedStatement
    stragglers: Flags
    levels: StepLevels | None


def find_pattern(window: WindowColumns, resolution: float) -> Pattern:
    """Return the pattern of the slow steps: the upper one of two levels where there are
    two, else the stragglers."""
    slow_steps, two = (
        find_stragglers(window.seconds, resolution),
        find_step_levels(window.seconds, resolution),
    )
    kind, statement = _name_pattern(window, two.slow if two else slow_steps, two)
    return Pattern(kind, statement, slow_steps, two)


def _name_pattern(
    window: WindowColumns, slow: Flags, two: StepLevels | None
) -> tuple[ShapeKind, CodedStatement]:
    """Return the kind of the pattern and its statement.

    A single slow step shows in as many values as a moving mean has.
    """
    parts = find_stretches(slow)
    if not parts:
        even = CodedStatement(StatementCode.EVEN_STEPS, averaged=window.averaged)
        return ShapeKind.EVEN, even
    longest = max(parts, key=len)
    single = len(longest) <= window.moving_mean
    # Which steps within a mean were slow is not known, and so no period.
    regular = (
        find_period([part.start for part in parts], len(slow))
        if single and not window.averaged
        else None
    )
    if regular:
        return ShapeKind.PERIODIC, _measure_period(window, slow, regular)
    if len(longest) >= max(
        STRETCH, window.moving_mean + 1, STRETCH_SHARE * np.count_nonzero(slow)
    ):
        return ShapeKind.SLOW_STRETCH, _measure_stretch(window, longest)
    if two and (not single or window.averaged):
        return ShapeKind.TWO_LEVELS, _measure_levels(window, two)
    line = window.lines[int(np.argmax(window.seconds))]
    slowest = find_slowest(window, slow)
    if single and len(parts) == 1:
        return ShapeKind.ONE_SPIKE, CodedStatement(
            StatementCode.ONE_SPIKE, slowest=slowest, line=line
        )
    steps = list_steps(window, slow)
    return ShapeKind.SPIKES, CodedStatement(
        StatementCode.SPIKES, steps=steps, slowest=slowest, line=line
    )


def find_slowest(window: WindowColumns, slow: Flags) -> SlowestSteps:
    """Return the slowest step, or the values of a moving mean that contain it."""
    position = int(np.argmax(window.seconds))
    ratio = float(window.seconds[position] / compute_median(window.seconds))
    averaged = window.mean_of[position] > 1
    smoothed = window.moving_mean > 1 and not averaged
    values = range(position, position + 1)
    if smoothed:
        values = next(
            stretch for stretch in find_stretches(slow) if position in stretch
        )
    return SlowestSteps(_list_spans(window, [values]), ratio, averaged, smoothed)


def list_steps(window: WindowColumns, which: Flags) -> StepList:
    """Return these steps, consecutive ones as one span, at most five spans."""
    return _list_spans(window, find_stretches(which))


def _list_spans(window: WindowColumns, stretches: Sequence[range]) -> StepList:
    spans = [
        StepSpan(
            window.begin(stretch[0]),
            window.steps[stretch[-1]],
            _count_steps(window, [stretch]),
        )
        for stretch in stretches[:SHOWN]
    ]
    return StepList(
        tuple(spans),
        _count_steps(window, stretches[SHOWN:]),
        _count_steps(window, stretches),
    )


def _count_steps(window: WindowColumns, parts: Sequence[range]) -> int:
    return sum(window.mean_of[position] for part in parts for position in part)


def _measure_period(
    window: WindowColumns, slow: Flags, regular: range
) -> CodedStatement:
    excess = (
        compute_median(window.seconds[regular.start :: regular.step])
        / compute_median(window.seconds[~slow])
        - 1
    )
    steps = _list_spans(window, [range(position, position + 1) for position in regular])
    return CodedStatement(
        StatementCode.PERIODIC_STEPS,
        period=regular.step,
        excess=float(excess),
        steps=steps,
    )


def _measure_stretch(window: WindowColumns, stretch: range) -> CodedStatement:
    inside = np.zeros(len(window.steps), dtype=bool)
    inside[stretch.start : stretch.stop] = True
    upper, lower = (compute_median(window.seconds[side]) for side in (inside, ~inside))
    return CodedStatement(
        StatementCode.SLOW_STRETCH,
        steps=_list_spans(window, [stretch]),
        upper=upper,
        lower=lower,
    )


def _measure_levels(window: WindowColumns, two: StepLevels) -> CodedStatement:
    """Return the levels with the steps of the smaller one."""
    few, level, other = two.slow, two.upper, two.lower
    if 2 * np.count_nonzero(few) > len(few):
        few, level, other = ~two.slow, two.lower, two.upper
    return CodedStatement(
        StatementCode.TWO_LEVELS,
        count=int(np.count_nonzero(few)),
        total=len(few),
        averaged=window.averaged,
        level=level,
        other=other,
        steps=list_steps(window, few),
    )


# --- levels, stretches and periods ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepLevels:
    """Two levels of step time."""

    lower: float  # seconds
    upper: float
    slow: Flags  # the steps at the upper one, shape (n,)


def find_step_levels(seconds: Floats, resolution: float) -> StepLevels | None:
    """Return the two levels that the step times, shape (n,), fall into; None for one
    level, or where it is not clear.

    They are split at the widest gap that leaves each side its share. It must be wider
    than what rounding makes, than the noise on both sides, and than a quarter of the
    difference (or it is the tail of a decay).
    """
    count = len(seconds)
    fewest = max(FEWEST_STEPS, math.ceil(SMALLEST_SHARE * count))
    if count < 2 * fewest:
        return None
    ordered = np.sort(seconds)
    gaps = (ordered[1:] - ordered[:-1])[fewest - 1 : count - fewest]
    split = fewest + int(np.argmax(gaps))
    gap = float(gaps[split - fewest])
    lower, upper = compute_median(ordered[:split]), compute_median(ordered[split:])
    slow: Flags = seconds >= ordered[split]
    noise = NORMAL * compute_median(np.abs(seconds - np.where(slow, upper, lower)))
    clear = gap > max(GAP * max(noise, resolution / 2), (upper - lower) / 4)
    return (
        StepLevels(lower, upper, slow)
        if clear and upper - lower > SMALLEST_DIFFERENCE * lower
        else None
    )


def find_stretches(slow: Flags) -> list[range]:
    """Return the positions of the slow steps as ranges of consecutive ones."""
    stretches: list[range] = []
    for position in np.flatnonzero(slow).tolist():
        if stretches and stretches[-1].stop == position:
            stretches[-1] = range(stretches[-1].start, position + 1)
        else:
            stretches.append(range(position, position + 1))
    return stretches


def find_period(starts: list[int], count: int) -> range | None:
    """Return the positions if every p-th of `count` is in `starts` (ascending), from
    the first of them on; else None.

    There are at least three of them, and at most a quarter of the starts stand apart.
    """
    places = set(starts)
    for distance in sorted(
        {later - earlier for earlier, later in itertools.pairwise(starts)}
    ):
        for first in sorted({start % distance for start in starts}):
            expected = range(first, count, distance)
            enough = len(expected) >= max(FEWEST_TIMES, MOST_TIMES * len(starts))
            if enough and all(position in places for position in expected):
                return expected
    return None


# --- the saves of checkpoints that slow steps contain ----------------------------------

# Share of the extra time of a step that a save has to take to explain it.
SHARE = 0.5
# A save that takes longer than its step by more went on beside it.
ROUNDING = 1.02


class ReportedSave(NamedTuple):
    """A slow step, and the save whose line was printed since the step before."""

    step: int
    seconds: float  # of the step, or of all steps that its time is the mean of
    save: CheckpointRecord


def find_save(measurement: Measurement, slow: Flags) -> CodedStatement | None:
    """Return the slowest slow step of the window that contains a save; None without
    one."""
    saves = [
        record
        for record in measurement.checkpoints.records
        if record.action is CheckpointAction.SAVE
    ]
    if not saves or measurement.moving_mean > 1 or not len(measurement.window_lines):
        return None
    held = list(_find_held(measurement, slow, saves))
    if not held:
        return None
    step, seconds, save = max(held, key=lambda each: each.seconds)
    return CodedStatement(
        StatementCode.SAVE_IN_STEP,
        step=step,
        seconds=seconds,
        save_seconds=save.seconds,
        line=save.line,
        held=len(held),
        slow=int(np.count_nonzero(slow)),
    )


def _find_held(
    measurement: Measurement, slow: Flags, saves: Sequence[CheckpointRecord]
) -> Iterator[ReportedSave]:
    lines = (_find_line_before(measurement), *measurement.window_lines)
    means = measurement.mean_of or (1,) * len(measurement.window_seconds)
    median = compute_median(np.array(measurement.window_seconds))
    for row in np.flatnonzero(slow).tolist():
        seconds = measurement.window_seconds[row] * means[row]
        extra = seconds - median * means[row]
        held = [
            save
            for save in saves
            if lines[row] < save.line < lines[row + 1]
            and (
                save.seconds is None
                or SHARE * extra <= save.seconds <= ROUNDING * seconds
            )
        ]
        if held:
            longest = max(held, key=lambda save: save.seconds or 0.0)
            yield ReportedSave(measurement.window_steps[row], seconds, longest)


def _find_line_before(measurement: Measurement) -> int:
    """Return the line of the last step before the window; that of the window's first
    step without one."""
    first = measurement.window_lines[0]
    segment = measurement.measured_segment
    if segment is None:
        return first
    lines = segment.steps.line
    return int(max(lines[lines < first], default=first))
