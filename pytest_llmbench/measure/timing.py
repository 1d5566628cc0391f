"""Which printed times of a segment count: what stands in for those that are missing, and which no step can have."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core import throughput
from pytest_llmbench.core.models import Baseline, Steps
from pytest_llmbench.measure.window import mask_window

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Flags

LONGEST_SECONDS = 1e6
"""A step time from here on (11 days) is no step time."""

LARGEST_CHOICE = 0.03
"""The share of a run's steps that may be uncertain, at most, for the recipe to say how many there were."""


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """The steps of a segment, all that its log holds, and masks of shape (n,) over them.

    `filled`: the log prints no time there, and the one in `steps` follows from its tokens/s. `usable`: a time that a
    step can take, and not only that of dispatching it. `counted`: usable, and in the window.
    """

    steps: Steps
    filled: Flags
    usable: Flags
    counted: Flags

    @property
    def sound(self) -> Steps:
        """The usable ones."""
        return select_rows(self.steps, self.usable)

    @property
    def window(self) -> Steps:
        """Those that count."""
        return select_rows(self.steps, self.counted)


def compute_timing(steps: Steps, baseline: Baseline) -> Timing:
    """Return which times of a segment count in the baseline's window."""
    complete, filled = _with_times_from_tokens(_apply_plan(steps, baseline), baseline)
    possible = (complete.seconds >= possible_seconds(baseline)) & (complete.seconds < LONGEST_SECONDS)
    usable = possible & ~complete.asynchronous
    counted = np.zeros(len(steps), dtype=np.bool_)
    counted[usable] = mask_window(select_rows(complete, usable), baseline.window)
    return Timing(complete, filled, usable, counted)


def select_rows(steps: Steps, which: Flags) -> Steps:
    """Return the steps of a mask of shape (n,)."""
    if which.all():
        return steps
    return Steps(*(getattr(steps, name)[which] for name in Steps.__slots__))


def possible_seconds(baseline: Baseline) -> float:
    """Return the step time in seconds at 100 % MFU: no step of this configuration can be faster.

    Without a peak the smallest positive number: what can be excluded then is a step that takes no time.
    """
    if math.isnan(baseline.peak_tflops):
        return sys.float_info.min
    return throughput.model_flops_utilization(baseline.configuration, 1.0, baseline.peak_tflops)


def _apply_plan(steps: Steps, baseline: Baseline) -> Steps:
    """Return the mean of a whole run as that of the recipe's number of steps, where its digits leave that choice.

    A log that prints the time of all steps and a rate of few digits says how many there were as roughly as that; the
    resolution of its time is as wide as the choice.
    """
    if len(steps) != 1 or steps.index[0] < 2 or steps.mean_of[0] != steps.index[0]:
        return steps
    nearest = int(steps.index[0])
    numbers = float(steps.resolution_seconds[0] / steps.seconds[0]) * nearest
    if not 1 < numbers <= LARGEST_CHOICE * nearest or abs(baseline.steps - nearest) > (numbers + 1) / 2:
        return steps
    planned = np.array([baseline.steps], dtype=np.int64)
    seconds = steps.seconds * nearest / baseline.steps
    return dataclasses.replace(steps, index=planned, mean_of=planned, seconds=seconds)


def _with_times_from_tokens(steps: Steps, baseline: Baseline) -> tuple[Steps, Flags]:
    """Return the steps with a time where none is printed and tokens/s are, and which those are.

    The tokens of a step are the baseline's, and no time follows where they are not known (0). A digit of tokens/s is
    one of the time.
    """
    speed = steps.tokens_per_second_per_gpu
    filled: Flags = np.isnan(steps.seconds)
    if filled.any():
        filled &= np.isfinite(speed) & (speed > 0)
    if not filled.any():
        return steps, filled
    of_one_gpu = throughput.tokens_per_second(baseline.configuration, 1.0) / baseline.configuration.key.gpus
    if of_one_gpu == 0:
        return steps, np.zeros_like(filled)
    seconds, unit = steps.seconds.copy(), steps.resolution_seconds.copy()
    seconds[filled] = of_one_gpu / speed[filled]
    unit[filled] = seconds[filled] / speed[filled]
    return dataclasses.replace(steps, seconds=seconds, resolution_seconds=unit), filled
