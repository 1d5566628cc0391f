"""Whether the mean and the trimmed mean of a run say the same: where they do not, a few steps decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Baseline, Estimate, Evidence, Measurement
from pytest_llmbench.core.robust import HICCUP, compute_mean, compute_trimmed_mean, winsorise
from pytest_llmbench.judge.estimate import EQUAL, Answer

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Floats

    Statistic = Callable[[Floats, Sequence[int]], float]

STALLS = 1.25  # what slow steps may add to a mean: more in a baseline excuses nothing, and more in a run is no hiccup


def find_doubt(own_answer: Answer, current: Sequence[Measurement], evidence: Evidence) -> str:
    """Return why an answer is not shared by the other statistic; empty where it is."""
    trimmed = evidence.baseline.window.statistic == "trimmed_mean"
    name, statistic = ("mean", compute_mean) if trimmed else ("20 % trimmed mean", compute_trimmed_mean)
    expected = _expect_seconds(evidence.baseline, trimmed=not trimmed)
    difference = _average_difference(current, statistic, expected)
    beyond = difference > math.log(evidence.tolerance.factor) + EQUAL
    if beyond is (own_answer is Answer.BEYOND):
        return ""
    side = "beyond" if beyond else "within"
    slower = formatting.format_difference(math.exp(difference))
    return f"the {name} is {side} the bound ({slower} against {formatting.format_seconds(expected)}): few steps decide"


def meets_point(current: Sequence[Measurement], evidence: Evidence, estimate: Estimate) -> bool:
    """Return the literal rule: measured <= bound.

    A trimmed mean alone would pass a run in which every sixth step stalls: there the mean has to meet it too, with the
    slowest steps (5 %, a hiccup) set to the next slowest, and without that by no more than a quarter.
    """
    meets = estimate.difference <= estimate.margin + EQUAL and not explain_coarseness(current, evidence)
    if not meets or evidence.baseline.window.statistic == "mean":
        return meets
    expected = _expect_seconds(evidence.baseline, trimmed=False)
    averaged = max(run.moving_mean for run in current)
    usual = _average_difference(
        current, lambda window, steps: _average_without_hiccup(window, steps, averaged), expected
    )
    with_hiccups = _average_difference(current, compute_mean, expected)
    return usual <= estimate.margin + EQUAL and with_hiccups <= estimate.margin + math.log(STALLS)


def explain_coarseness(current: Sequence[Measurement], evidence: Evidence) -> str:
    """Return that a run may be beyond the bound and print the same times, as a rate of one or two digits does."""
    for run in current:
        seconds, slowest = run.statistic_seconds or math.nan, _find_slowest(run, evidence)
        if slowest > evidence.baseline.step_seconds * evidence.tolerance.factor * (1 + EQUAL):
            shown = formatting.format_seconds(seconds), formatting.format_seconds(slowest)
            return f"printed too coarsely: {shown[0]} may be up to {shown[1]}, which no repeat would show"
    return ""


def _find_slowest(run: Measurement, evidence: Evidence) -> float:
    """Return the slowest statistic that is printed as that of a run, where one printed unit is more than the margin.

    Steps that differ by as much are rounded up as often as down.
    """
    half, seconds = run.resolution_seconds / 2, run.statistic_seconds or math.nan
    spread = float(np.std(winsorise(np.array(run.window_seconds))))
    fine = 2 * half <= seconds * (evidence.tolerance.factor - 1) or spread >= half
    return math.nan if fine else seconds + half


def _average_difference(current: Sequence[Measurement], statistic: Statistic, expected: float) -> float:
    windows = [(np.array(run.window_seconds), run.mean_of) for run in current]
    return sum(math.log(statistic(window, steps) / expected) for window, steps in windows) / len(windows)


def _expect_seconds(baseline: Baseline, *, trimmed: bool) -> float:
    """Return the baseline's value of a statistic; a document prints only one."""
    recording = baseline.recording
    if recording is None:
        return baseline.step_seconds
    stalled = recording.trimmed_mean_seconds * STALLS
    return recording.trimmed_mean_seconds if trimmed else min(recording.mean_seconds, stalled)


def _average_without_hiccup(window: Floats, mean_of: Sequence[int], averaged: int) -> float:
    """Return the mean with the slowest steps set to the next slowest; in moving means one shows in several values.

    A mean of several steps is set so only if all of them are no more than those few.
    """
    order = np.argsort(window)[::-1]
    steps = np.array(mean_of or [1] * len(window), dtype=float)
    few = math.ceil(HICCUP * float(steps.sum())) + averaged - 1
    slow = min(int(np.count_nonzero(np.cumsum(steps[order]) <= few)), len(window) - 1)
    return compute_mean(np.minimum(window, window[order[slow]]), mean_of)
