"""Slow steps outside the window: a level, a ramp or a stall that the step time of the
window does not contain, and its share of the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.codes import NoteCode, Observed, Reason
from pytest_llmbench.core.formatting import format_seconds
from pytest_llmbench.core.robust import (
    MOST_STALLS,
    compute_median,
    compute_trimmed_mean,
)
from pytest_llmbench.core.run_records import Note, Problem
from pytest_llmbench.runs.measure.window import (
    Timing,
    begins,
    count_warm_up,
    select_rows,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Steps

LONG_SHARE = 1 / 3  # of a run's steps: so many that are slow are a level, and no stall
STALL_SECONDS = 10.0  # a shorter stall is none
ONE_STEP = 0.9  # a step that costs so much of what a part costs is named alone
WARM_UP_SECONDS = 300.0  # so much more may the warm-up take than in recorded runs,
WARM_UP_FACTOR = 2.0  # and so many times as much: compilers find other caches
WORTH_A_NOTE = 1 / 3  # of the tolerance

# No step of a longer run is allowed to lose more than this share of its time, however
# much those of recorded runs lost
MOST_OUTSIDE = 0.5
MOST_STALLED = 0.05  # if most of their steps lost nothing


@dataclass(frozen=True, slots=True)
class RunShare:
    """The steps of a run after its warm-up, and how many of them lie outside the
    window."""

    first: int  # the first step after the warm-up
    steps: int
    outside: int
    step_seconds: float  # the 20 % trimmed mean of the window, NaN without one

    def to_fraction(self, seconds: float) -> float:
        """Return seconds as a fraction of the run's step time, if all steps were like
        those of the window."""
        return (
            seconds / (self.steps * self.step_seconds)
            if self.steps and self.step_seconds > 0
            else 0.0
        )

    def to_seconds(self, fraction: float) -> float:
        """Return a fraction of the run's step time as seconds."""
        return fraction * self.steps * self.step_seconds

    def allow_seconds(
        self, recorded: float, baseline: Baseline, usual: float = 0.0
    ) -> float:
        """Return the seconds that this run may lose outside the window if recorded runs
        lost this fraction.

        A longer run has more steps outside the window, and may lose of each what those
        of recorded runs usually lost (`usual`, a fraction), up to MOST_OUTSIDE. A stall
        of a short run is no level of a long one: it may come back, up to MOST_STALLED.
        """
        of_run = self.to_seconds(recorded)
        if baseline.steps == sys.maxsize:
            return of_run
        window = baseline.window
        steps = baseline.steps - count_warm_up(baseline.steps)
        if self.steps <= steps:
            return of_run
        outside = max(0, steps - (window.last - window.first + 1))
        level = (
            max(min(usual, MOST_OUTSIDE), min(recorded, MOST_STALLED))
            if recorded > 0
            else 0.0
        )
        return (
            recorded * steps + level * max(0, self.outside - outside)
        ) * self.step_seconds


def measure_share(timed: Timing, window: Window, extra: int = 0) -> RunShare:
    """Return the steps after the warm-up; `extra` more belong to it where each time is
    a mean of several."""
    steps = timed.steps
    first, last = int(begins(steps)[0]), int(steps.index[-1])
    late = first + count_warm_up(last - first + 1) + extra
    inside = max(0, min(last, window.last) - max(late, window.first) + 1)
    count = max(0, last - late + 1)
    return RunShare(late, count, count - inside, _compute_level(timed))


def _compute_level(timed: Timing) -> float:
    """Return the trimmed mean of the window, whatever its statistic: runs are recorded
    and judged by the same level."""
    seconds = timed.window.seconds
    if not len(seconds):
        return float("nan")
    mean_of = timed.window.mean_of
    return compute_trimmed_mean(
        seconds, tuple(mean_of.tolist()) if (mean_of > 1).any() else ()
    )


@dataclass(frozen=True, slots=True)
class SlowRange:
    """The steps outside the window that cost most in a row, the window left out."""

    first: int
    last: int
    line: int
    steps: int  # how many of them lie outside the window
    step_seconds: float
    usual_seconds: (
        float  # the same without its slowest times, which are stalls and no level
    )
    lost_seconds: float  # more than as many steps of the window take


@dataclass(frozen=True, slots=True)
class OutsideCheck:
    """What the steps outside the window cost."""

    share: RunShare
    # by how much the median step outside the window is slower than the window
    level: float
    warm_up_seconds: float  # lost in the warm-up behind its first step
    part: SlowRange | None  # None if no step is slower than those of the window

    @property
    def lost_seconds(self) -> float:
        """The seconds that the slow part costs."""
        return self.part.lost_seconds if self.part else 0.0


def check_outside(timed: Timing, window: Window, width: int = 1) -> OutsideCheck | None:
    """Find the slow part outside the window; None without a step there, or in the
    window.

    `width` is of how many steps each time is a moving mean: so much longer is the
    warm-up in its times.
    """
    share = measure_share(timed, window, width - 1)
    if not share.outside or not share.step_seconds > 0:
        return None
    steps = timed.steps
    first = begins(steps)
    beside = (steps.index < window.first) | (first > window.last)
    outside = timed.usable & beside & (first >= share.first)
    if not outside.any():
        return None
    warm_up = timed.usable & (first < share.first) & (first > int(first[0]))
    in_warm_up = (steps.seconds[warm_up] - share.step_seconds) * steps.mean_of[warm_up]
    return OutsideCheck(
        share,
        level=compute_median(steps.seconds[outside]) / share.step_seconds - 1,
        warm_up_seconds=float(np.maximum(in_warm_up, 0.0).sum()),
        part=_find_slow_part(select_rows(steps, outside), share.step_seconds),
    )


def _find_slow_part(steps: Steps, usual_seconds: float) -> SlowRange | None:
    """Return the steps in a row that cost most; None if no step is slower than usual."""
    lost = (steps.seconds - usual_seconds) * steps.mean_of
    begin, end = find_largest_sum(lost)
    longest = int(np.argmax(lost))
    if lost[longest] > ONE_STEP * lost[begin:end].sum() > 0:
        begin, end = longest, longest + 1
    if end <= begin:
        return None
    count = int(steps.mean_of[begin:end].sum())
    seconds = float(lost[begin:end].sum())
    return SlowRange(
        int(begins(steps)[begin]),
        int(steps.index[end - 1]),
        int(steps.line[begin]),
        count,
        usual_seconds + seconds / count,
        _compute_usual(steps.seconds[begin:end]),
        seconds,
    )


def _compute_usual(seconds: Floats) -> float:
    """Return the mean of the times without the MOST_STALLS largest, NaN of so few."""
    usual = np.sort(seconds)[:-MOST_STALLS]
    return float(usual.mean()) if len(usual) else float("nan")


def find_largest_sum(values: Floats) -> tuple[int, int]:
    """Return where the values begin and end that have the largest sum in a row; the
    same place for none above 0."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    rises = sums - np.minimum.accumulate(sums)
    end = int(np.argmax(rises))
    return int(np.argmin(sums[: end + 1])), end


def observe(check: OutsideCheck | None) -> Iterator[tuple[Observed, float]]:
    """Yield what a recording keeps of the steps outside the window, by a name of
    `Observed`."""
    if check is not None:
        yield Observed.OUTSIDE_LOSS, check.share.to_fraction(check.lost_seconds)
        yield Observed.OUTSIDE_LEVEL, max(0.0, check.level)
        yield Observed.WARM_UP_LOSS, check.warm_up_seconds


def find_problems(
    check: OutsideCheck | None,
    baseline: Baseline,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Problem]:
    """Yield slow steps outside the window that recorded runs did not have; nothing if
    their recording lacks it."""
    known = recorded.get(Observed.OUTSIDE_LOSS)
    if known is None or check is None or check.part is None:
        return
    beyond = check.lost_seconds - _allow_seconds(check, known, baseline)
    if is_slow(check, check.part, beyond, tolerance) or has_risen(
        check, recorded, tolerance
    ):
        text = f"{_describe(check, check.part, baseline.window)}; recorded runs lost {known * 100:.3g} %"
        yield Problem(Reason.SLOW_OUTSIDE_WINDOW, text, check.part.line)


def _allow_seconds(check: OutsideCheck, recorded: float, baseline: Baseline) -> float:
    """Return the seconds that the run may lose outside the window if recorded runs lost
    this fraction."""
    usual, recording = (
        baseline.observed.get(Observed.OUTSIDE_LEVEL, 0.0),
        baseline.recording,
    )
    if recording is not None:  # stalls in the window, as those outside it
        usual = max(usual, recording.mean_seconds / recording.trimmed_mean_seconds - 1)
    return check.share.allow_seconds(recorded, baseline, usual)


def is_slow(
    check: OutsideCheck, part: SlowRange, beyond: float, tolerance: float
) -> bool:
    """Tell whether a part is slower than the tolerance over a third of the run, or
    costs more than it of the run.

    `beyond` are the seconds that it costs more than recorded runs lost.
    """
    allowed = check.share.to_seconds(tolerance)
    all_steps = check.share.steps
    level = part.usual_seconds > check.share.step_seconds * (1 + tolerance)
    if level and part.steps >= LONG_SHARE * all_steps:
        return beyond > allowed * LONG_SHARE
    return beyond > max(allowed, STALL_SECONDS)


def has_risen(
    check: OutsideCheck, recorded: Mapping[str, float], tolerance: float
) -> bool:
    """Tell whether most steps outside the window are slower than in recorded runs,
    which a stall of those hides."""
    known = recorded.get(Observed.OUTSIDE_LEVEL)
    if known is None or check.share.outside < LONG_SHARE * check.share.steps:
        return False
    return check.level - known > tolerance


def list_notes(
    check: OutsideCheck | None,
    baseline: Baseline,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Note]:
    """Yield slow steps outside the window that are worth a word, and no problem."""
    if check is None:
        return
    yield from _note_warm_up(check, recorded, tolerance)
    if check.part is None:
        return
    known = recorded.get(Observed.OUTSIDE_LOSS)
    allowed = 0.0 if known is None else _allow_seconds(check, known, baseline)
    beyond = check.lost_seconds - allowed
    if is_slow(check, check.part, beyond, tolerance) or has_risen(
        check, recorded, tolerance
    ):
        if known is None:
            text = f"{_describe(check, check.part, baseline.window)}; no recording to compare it with"
            yield Note(NoteCode.SLOW_OUTSIDE_UNCOMPARED, text, check.part.line)
    elif beyond > check.share.to_seconds(tolerance) * WORTH_A_NOTE:
        yield Note(
            NoteCode.SLOW_OUTSIDE_WINDOW,
            _describe(check, check.part, baseline.window),
            check.part.line,
        )


def _note_warm_up(
    check: OutsideCheck, recorded: Mapping[str, float], tolerance: float
) -> Iterator[Note]:
    """Yield a warm-up that takes much longer than it did in recorded runs."""
    known = recorded.get(Observed.WARM_UP_LOSS)
    if known is None:
        return
    beyond = check.warm_up_seconds - WARM_UP_FACTOR * known
    if beyond > max(WARM_UP_SECONDS, check.share.to_seconds(tolerance)):
        text = (
            f"the steps of the warm-up, before step {check.share.first}, take {format_seconds(check.warm_up_seconds)} "
            f"more than as many of the window, in recorded runs {format_seconds(known)}"
        )
        yield Note(NoteCode.SLOW_WARM_UP, text)


def _describe(check: OutsideCheck, part: SlowRange, window: Window) -> str:
    change = part.step_seconds / check.share.step_seconds - 1
    one = part.first == part.last
    steps = f"step {part.first}" if one else f"steps {part.first} to {part.last}"
    took = f"took {format_seconds(part.step_seconds)}" + ("" if one else " each")
    return (
        f"{steps} outside the window ({window.first} to {window.last}) {took}, {change * 100:.3g} % more than in "
        f"it: {format_seconds(part.lost_seconds)}, {check.share.to_fraction(part.lost_seconds) * 100:.3g} % of the run"
    )
