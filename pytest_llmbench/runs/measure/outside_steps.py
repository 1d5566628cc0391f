"""Find slow steps outside the window, and their share of the run.

The step time of the window does not contain such a level, ramp or stall.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

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
    count_warm_up,
    get_first_steps,
    select_rows,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Steps

LONG_SHARE = 1 / 3  # a larger share of slow steps is a level, not a stall
STALL_SECONDS = 10.0  # shorter stalls are ignored
ONE_STEP = 0.9  # a step that costs this share of its range is reported alone
# The warm-up may take WARM_UP_FACTOR times as long as recorded plus WARM_UP_SECONDS,
# because compiler caches differ
WARM_UP_SECONDS = 300.0
WARM_UP_FACTOR = 2.0
WORTH_A_NOTE = 1 / 3  # share of the tolerance from which a loss is noted

# Largest share of its time that a step of a longer run may lose, regardless of the
# recorded runs
MOST_OUTSIDE = 0.5
MOST_STALLED = 0.05  # the same if most recorded steps lost nothing


class RunShare(Struct, frozen=True):
    """The steps of a run after its warm-up, in total and outside the window."""

    first: int  # the first step after the warm-up
    steps: int
    outside: int
    step_seconds: float  # the 20 % trimmed mean of the window, NaN without one

    def to_fraction(self, seconds: float) -> float:
        """Convert seconds to a fraction of the run, if all steps took the window's step
        time."""
        if not self.steps or not self.step_seconds > 0:
            return 0.0
        return seconds / (self.steps * self.step_seconds)

    def to_seconds(self, fraction: float) -> float:
        """Convert a fraction of the total time of these steps to seconds."""
        return fraction * self.steps * self.step_seconds

    def allow_seconds(
        self, recorded: float, baseline: Baseline, usual: float = 0.0
    ) -> float:
        """Return the seconds the run may lose outside the window, given the recorded
        fraction.

        A longer run has more steps outside the window. Each of them may lose the
        fraction `usual`, up to MOST_OUTSIDE. A stall of a short recorded run may recur
        in a longer run, up to MOST_STALLED.
        """
        window = baseline.window
        recorded_steps = baseline.steps - count_warm_up(baseline.steps)
        if baseline.steps == sys.maxsize or self.steps <= recorded_steps:
            return self.to_seconds(recorded)  # unknown, or no longer than recorded
        recorded_outside = max(0, recorded_steps - (window.last - window.first + 1))
        additional_steps = max(0, self.outside - recorded_outside)
        fraction_per_step = 0.0
        if recorded > 0:
            fraction_per_step = max(
                min(usual, MOST_OUTSIDE), min(recorded, MOST_STALLED)
            )
        lost_steps = recorded * recorded_steps + fraction_per_step * additional_steps
        return lost_steps * self.step_seconds


def measure_share(timing: Timing, window: Window, extra: int = 0) -> RunShare:
    """Count the steps after the warm-up, in all and outside the window.

    `extra` steps are added to the warm-up if the times are moving means.
    """
    steps = timing.steps
    first, last = int(get_first_steps(steps)[0]), int(steps.index[-1])
    after_warm_up = first + count_warm_up(last - first + 1) + extra
    inside = max(0, min(last, window.last) - max(after_warm_up, window.first) + 1)
    count = max(0, last - after_warm_up + 1)
    return RunShare(
        first=after_warm_up,
        steps=count,
        outside=count - inside,
        step_seconds=_compute_window_level(timing),
    )


def _compute_window_level(timing: Timing) -> float:
    """Return the trimmed mean of the window, NaN if it is empty.

    Independent of the window's statistic, so that recorded and judged runs compare.
    """
    seconds = timing.window.seconds
    if not len(seconds):
        return float("nan")
    mean_of = timing.window.mean_of
    weights = tuple(mean_of.tolist()) if (mean_of > 1).any() else ()
    return compute_trimmed_mean(seconds, weights)


class SlowRange(Struct, frozen=True):
    """The costliest consecutive steps outside the window (steps inside it are skipped)."""

    first: int
    last: int
    line: int
    steps: int  # the number of steps outside the window
    step_seconds: float
    usual_seconds: float  # step time without the slowest times, which are stalls
    lost_seconds: float  # time beyond that of as many steps of the window


class OutsideCheck(Struct, frozen=True):
    """The cost of the steps outside the window."""

    share: RunShare
    # relative slowdown of the median step outside the window
    level: float
    warm_up_seconds: float  # lost in the warm-up after its first step
    slow_range: SlowRange | None  # None if no step is slower than the window

    @property
    def lost_seconds(self) -> float:
        """Seconds lost in the slow range."""
        return self.slow_range.lost_seconds if self.slow_range else 0.0


def check_outside(
    timing: Timing, window: Window, width: int = 1
) -> OutsideCheck | None:
    """Find the slow range outside the window; None if there are no steps to compare.

    `width` is the number of steps in each moving mean, which extends the warm-up.
    """
    share = measure_share(timing, window, width - 1)
    if not share.outside or not share.step_seconds > 0:
        return None
    steps = timing.steps
    first = get_first_steps(steps)
    out_of_window = (steps.index < window.first) | (first > window.last)
    outside = timing.usable & out_of_window & (first >= share.first)
    if not outside.any():
        return None
    # without the first step, which is always slow
    warm_up = timing.usable & (first < share.first) & (first > int(first[0]))
    excess = steps.seconds[warm_up] - share.step_seconds
    warm_up_loss = excess * steps.mean_of[warm_up]
    return OutsideCheck(
        share=share,
        level=compute_median(steps.seconds[outside]) / share.step_seconds - 1,
        warm_up_seconds=float(np.maximum(warm_up_loss, 0.0).sum()),
        slow_range=_find_slow_range(select_rows(steps, outside), share.step_seconds),
    )


def _find_slow_range(steps: Steps, window_seconds: float) -> SlowRange | None:
    """Return the costliest range of steps, None if no step is slower than the window.

    `window_seconds` is the step time of the window.
    """
    lost = (steps.seconds - window_seconds) * steps.mean_of
    begin, end = find_largest_sum(lost)
    costliest = int(np.argmax(lost))
    # If one step costs nearly as much as the whole range, it is reported alone.
    if lost[costliest] > ONE_STEP * lost[begin:end].sum() > 0:
        begin, end = costliest, costliest + 1
    if end <= begin:
        return None
    count = int(steps.mean_of[begin:end].sum())
    lost_seconds = float(lost[begin:end].sum())
    return SlowRange(
        first=int(get_first_steps(steps)[begin]),
        last=int(steps.index[end - 1]),
        line=int(steps.line[begin]),
        steps=count,
        step_seconds=window_seconds + lost_seconds / count,
        usual_seconds=_compute_usual(steps.seconds[begin:end]),
        lost_seconds=lost_seconds,
    )


def _compute_usual(seconds: Floats) -> float:
    """Return the mean of the times without the MOST_STALLS largest, NaN for too few."""
    usual = np.sort(seconds)[:-MOST_STALLS]
    return float(usual.mean()) if len(usual) else float("nan")


def find_largest_sum(values: Floats) -> tuple[int, int]:
    """Return the bounds of the consecutive values with the largest sum.

    The bounds are those of a slice; they are equal if no value is positive.
    """
    sums = np.concatenate(([0.0], np.cumsum(values)))  # of the values before each bound
    gains = sums - np.minimum.accumulate(sums)
    end = int(np.argmax(gains))
    return int(np.argmin(sums[: end + 1])), end


def observe(check: OutsideCheck | None) -> Iterator[tuple[Observed, float]]:
    """Yield the cost of the steps outside the window, to be recorded with a baseline."""
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
    """Yield a problem if steps outside the window are slower than in recorded runs.

    Yields nothing if the recorded runs state no cost of such steps.
    """
    recorded_loss = recorded.get(Observed.OUTSIDE_LOSS)
    if recorded_loss is None or check is None or check.slow_range is None:
        return
    slow_range = check.slow_range
    excess = check.lost_seconds - _allow_seconds(check, recorded_loss, baseline)
    costs_too_much = is_too_slow(check, slow_range, excess, tolerance)
    if costs_too_much or has_risen(check, recorded, tolerance):
        text = f"{_describe_slow_range(check, slow_range, baseline.window)}; recorded runs lost {recorded_loss * 100:.3g} %"
        yield Problem(Reason.SLOW_OUTSIDE_WINDOW, text, slow_range.line)


def _allow_seconds(check: OutsideCheck, recorded: float, baseline: Baseline) -> float:
    """Return the seconds the run may lose outside the window, given the recorded
    fraction."""
    usual = baseline.observed.get(Observed.OUTSIDE_LEVEL, 0.0)
    recording = baseline.recording
    if recording is not None:  # the window's stalls occur outside it, too
        usual = max(usual, recording.mean_seconds / recording.trimmed_mean_seconds - 1)
    return check.share.allow_seconds(recorded, baseline, usual)


def is_too_slow(
    check: OutsideCheck, slow_range: SlowRange, excess: float, tolerance: float
) -> bool:
    """True if a range costs more than the tolerance allows.

    `excess` is the part of its cost, in seconds, that exceeds the recorded cost.
    Allowed is

    - a third of the run's tolerance for a range of at least a third of the run whose
      usual step exceeds the tolerance,
    - otherwise the tolerance of the whole run, and at least STALL_SECONDS.
    """
    allowed = check.share.to_seconds(tolerance)
    has_slow_level = slow_range.usual_seconds > check.share.step_seconds * (
        1 + tolerance
    )
    is_long = slow_range.steps >= LONG_SHARE * check.share.steps
    if has_slow_level and is_long:
        return excess > allowed * LONG_SHARE
    return excess > max(allowed, STALL_SECONDS)


def has_risen(
    check: OutsideCheck, recorded: Mapping[str, float], tolerance: float
) -> bool:
    """True if most steps outside the window are slower than in the recorded runs.

    The cost alone does not show this if the recorded runs stalled.
    """
    recorded_level = recorded.get(Observed.OUTSIDE_LEVEL)
    if recorded_level is None or check.share.outside < LONG_SHARE * check.share.steps:
        return False
    return check.level - recorded_level > tolerance


def list_notes(
    check: OutsideCheck | None,
    baseline: Baseline,
    recorded: Mapping[str, float],
    tolerance: float,
) -> Iterator[Note]:
    """Yield notes on slow steps outside the window that are not a problem."""
    if check is None:
        return
    yield from _list_warm_up_notes(check, recorded, tolerance)
    slow_range = check.slow_range
    if slow_range is None:
        return
    recorded_loss = recorded.get(Observed.OUTSIDE_LOSS)
    allowed = 0.0
    if recorded_loss is not None:
        allowed = _allow_seconds(check, recorded_loss, baseline)
    excess = check.lost_seconds - allowed
    costs_too_much = is_too_slow(check, slow_range, excess, tolerance)
    text = _describe_slow_range(check, slow_range, baseline.window)
    if costs_too_much or has_risen(check, recorded, tolerance):
        if recorded_loss is None:  # with a recording it is a problem
            text = f"{text}; no recording to compare it with"
            yield Note(NoteCode.SLOW_OUTSIDE_UNCOMPARED, text, slow_range.line)
    elif excess > check.share.to_seconds(tolerance) * WORTH_A_NOTE:
        yield Note(NoteCode.SLOW_OUTSIDE_WINDOW, text, slow_range.line)


def _list_warm_up_notes(
    check: OutsideCheck, recorded: Mapping[str, float], tolerance: float
) -> Iterator[Note]:
    """Yield a note on a warm-up that takes much longer than recorded."""
    recorded_loss = recorded.get(Observed.WARM_UP_LOSS)
    if recorded_loss is None:
        return
    excess = check.warm_up_seconds - WARM_UP_FACTOR * recorded_loss
    if excess > max(WARM_UP_SECONDS, check.share.to_seconds(tolerance)):
        text = (
            f"the steps of the warm-up, before step {check.share.first}, take {format_seconds(check.warm_up_seconds)} "
            f"more than as many steps of the window, in the recorded runs {format_seconds(recorded_loss)}"
        )
        yield Note(NoteCode.SLOW_WARM_UP, text)


def _describe_slow_range(
    check: OutsideCheck, slow_range: SlowRange, window: Window
) -> str:
    """Describe slow steps outside the window, with the time that they cost."""
    change = slow_range.step_seconds / check.share.step_seconds - 1
    steps = f"steps {slow_range.first} to {slow_range.last}"
    took = f"took {format_seconds(slow_range.step_seconds)} each"
    if slow_range.first == slow_range.last:
        steps = f"step {slow_range.first}"
        took = f"took {format_seconds(slow_range.step_seconds)}"
    return (
        f"{steps} outside the window ({window.first} to {window.last}) {took}, {change * 100:.3g} % more than inside "
        f"it: {format_seconds(slow_range.lost_seconds)}, {check.share.to_fraction(slow_range.lost_seconds) * 100:.3g} % of the run"
    )
