"""Whether the mean and the trimmed mean of a run say the same: where they do not, a few steps decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from pytest_llmbench import wording
from pytest_llmbench.judge.margin import EQUAL, Answer
from pytest_llmbench.models import Baseline, Estimate, Evidence, Measurement
from pytest_llmbench.robust import trimmed_mean

HICCUP = 0.05
"""The share of steps whose stall does not fail a run by the literal rule against a recorded baseline."""

STALLS = 1.25
"""What slow steps may add to a mean: more in a baseline excuses nothing, and more in a run is no hiccup."""


def doubt(told: Answer, tonight: Sequence[Measurement], evidence: Evidence) -> str:
    """Return why an answer is not shared by the other statistic; empty where it is."""
    trimmed = evidence.baseline.window.statistic == "trimmed_mean"
    name, statistic = ("mean", _mean) if trimmed else ("20 % trimmed mean", trimmed_mean)
    expected = _expected(evidence.baseline, trimmed=not trimmed)
    difference = _difference(tonight, statistic, expected)
    beyond = difference > math.log(evidence.tolerance.factor) + EQUAL
    if beyond is (told is Answer.BEYOND):
        return ""
    side = "beyond" if beyond else "within"
    slower = wording.difference(math.exp(difference))
    return f"the {name} is {side} the bound ({slower} against {wording.seconds(expected)}): few steps decide"


def meets_point(tonight: Sequence[Measurement], evidence: Evidence, found: Estimate) -> bool:
    """Return the literal rule: measured <= bound.

    A trimmed mean alone would pass a run in which every sixth step stalls: there the mean has to meet it too, with the
    slowest steps (5 %, a hiccup) set to the next slowest, and without that by no more than a quarter.
    """
    meets = found.difference <= found.margin + EQUAL
    if not meets or evidence.baseline.window.statistic == "mean":
        return meets
    expected = _expected(evidence.baseline, trimmed=False)
    averaged = max(run.moving_mean for run in tonight)
    usual = _difference(tonight, lambda window: _mean_without_hiccup(window, averaged), expected)
    return usual <= found.margin + EQUAL and _difference(tonight, _mean, expected) <= found.margin + math.log(STALLS)


def _difference(tonight: Sequence[Measurement], statistic: Callable[[np.ndarray], float], expected: float) -> float:
    windows = [np.array(run.window_seconds) for run in tonight]
    return sum(math.log(statistic(window) / expected) for window in windows) / len(windows)


def _expected(baseline: Baseline, *, trimmed: bool) -> float:
    """Return the baseline's value of a statistic; a document prints only one."""
    recording = baseline.recording
    if recording is None:
        return baseline.step_seconds
    stalled = recording.trimmed_mean_seconds * STALLS
    return recording.trimmed_mean_seconds if trimmed else min(recording.mean_seconds, stalled)


def _mean(window: np.ndarray) -> float:
    return float(np.mean(window))


def _mean_without_hiccup(window: np.ndarray, averaged: int) -> float:
    """Return the mean with the slowest steps set to the next slowest; in moving means one shows in several values."""
    ordered = np.sort(window)
    slow = min(math.ceil(HICCUP * len(window)) + averaged - 1, len(window) - 1)
    limit = ordered[-1 - slow]
    return float(np.mean(np.minimum(ordered, limit)))
