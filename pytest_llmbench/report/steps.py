"""The steps of a judged attempt as plain values, for a report that draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Measurement, Segment
from pytest_llmbench.core.robust import find_stragglers

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Flags, Integers

MOST = 2000
"""Steps that a report is given; of more, the slow ones and as many of the others, evenly apart."""


def describe(measurement: Measurement) -> dict[str, Any]:
    """Return the step numbers and times of the attempt that was measured, also of those outside of the window.

    `slow` are the positions of the stragglers of the window. A time that no step can have is None. Empty where the
    attempt has no step, or is not there any more.
    """
    segment = _find_segment(measurement)
    if segment is None:
        return {}
    counted = dict(zip(measurement.window_steps, measurement.window_seconds, strict=False))
    slow = np.isin(segment.steps.index, _find_slow_steps(measurement))
    positions = _choose_positions(slow)
    numbers, printed = segment.steps.index[positions].tolist(), segment.steps.seconds[positions].tolist()
    seconds = [_replace_impossible(counted.get(number, value)) for number, value in zip(numbers, printed, strict=True)]
    return {"steps": {"index": numbers, "seconds": seconds, "slow": np.flatnonzero(slow[positions]).tolist()}}


def find_telling_line(measurement: Measurement) -> tuple[int, str]:
    """Return the log line of the step that tells most of a slow run, and what it is: the slowest straggler of the
    window, without one its first step; 0 where no line is known."""
    lines, slow = measurement.window_lines, _find_slow_steps(measurement)
    if not lines:
        return 0, ""
    numbers, seconds = measurement.window_steps, measurement.window_seconds
    if not slow:
        return lines[0], f"step {numbers[0]}, the first of the window"
    place = int(np.argmax(seconds))  # a straggler is above all that is none
    return lines[
        place
    ], f"step {numbers[place]}, the slowest of the window: {formatting.format_seconds(seconds[place])}"


def _find_segment(measurement: Measurement) -> Segment | None:
    """Return the part of the log that was measured."""
    of_log = [attempt.log.segments for attempt in measurement.run.attempts if attempt.files.log == measurement.log]
    parts = of_log[-1] if of_log else ()
    return parts[measurement.segment - 1] if 0 < measurement.segment <= len(parts) else None


def _find_slow_steps(measurement: Measurement) -> list[int]:
    """Return the numbers of the steps of the window that stand out of it."""
    if not measurement.window_seconds:
        return []
    is_slow = find_stragglers(np.array(measurement.window_seconds), measurement.resolution_seconds)
    return [number for number, slow in zip(measurement.window_steps, is_slow.tolist(), strict=False) if slow]


def _choose_positions(slow: Flags) -> Integers:
    """Return the positions of the steps that are told: at most MOST, the slow ones first of all."""
    room = max(MOST - int(np.count_nonzero(slow)), 1)
    regular = np.arange(len(slow)) % -(-len(slow) // room) == 0
    return np.flatnonzero(slow | regular)[:MOST]


def _replace_impossible(value: float) -> float | None:
    return formatting.finite_or_none(value) if value > 0 else None
