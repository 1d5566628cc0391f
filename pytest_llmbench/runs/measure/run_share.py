"""Shares of a run's step time: what steps outside the window cost, as fractions that
runs of other lengths share."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.robust import compute_trimmed_mean
from pytest_llmbench.runs.measure.window import Timing, begins

WARM_UP_STEPS = 10
WARM_UP_SHARE = 0.1
"""The first steps of a run, at least so many and this share of all, are its warm-up."""

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


def count_warm_up(steps: int) -> int:
    """Return how many of the first steps of a run of so many are its warm-up."""
    return max(WARM_UP_STEPS, int(np.ceil(WARM_UP_SHARE * steps)))


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
