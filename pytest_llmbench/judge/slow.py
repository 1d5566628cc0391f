"""Which steps of a window are slow, and in what pattern."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.robust import NORMAL, median

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Flags, Floats

SMALLEST_SHARE = 0.15
FEWEST_STEPS = 5
"""A level holds at least this share of the steps, and at least so many: fewer are stragglers."""

GAP = 3
"""Two levels are apart by more than so many deviations of the steps within them. At 3, correlated normal noise with
stragglers has two levels in less than 0.1 % of windows of 34 steps, and in 3 % of windows of 15."""

SMALLEST_DIFFERENCE = 0.01

FEWEST_TIMES = 3
MOST_TIMES = 0.75
"""A period shows at least three times, and in at least this share of the slow steps."""


@dataclass(frozen=True, slots=True)
class StepLevels:
    """Two levels of step time in seconds, and a mask of shape (n,): the steps at the upper one."""

    lower: float
    upper: float
    slow: Flags


def find_step_levels(seconds: Floats, resolution: float) -> StepLevels | None:
    """Return the two levels that the step times, shape (n,), fall into; None for one level, or where it is not clear.

    They are split at the widest gap that leaves each side its share. It must be wider than what rounding makes, than
    the noise on both sides, and than a quarter of the difference (or it is the tail of a decay).
    """
    count = len(seconds)
    fewest = max(FEWEST_STEPS, math.ceil(SMALLEST_SHARE * count))
    if count < 2 * fewest:
        return None
    ordered = np.sort(seconds)
    gaps = (ordered[1:] - ordered[:-1])[fewest - 1 : count - fewest]
    split = fewest + int(np.argmax(gaps))
    gap = float(gaps[split - fewest])
    lower, upper = median(ordered[:split]), median(ordered[split:])
    slow: Flags = seconds >= ordered[split]
    noise = NORMAL * median(np.abs(seconds - np.where(slow, upper, lower)))
    clear = gap > max(GAP * max(noise, resolution / 2), (upper - lower) / 4)
    return StepLevels(lower, upper, slow) if clear and upper - lower > SMALLEST_DIFFERENCE * lower else None


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
    """Return the positions if every p-th of `count` is in `starts` (ascending), from the first of them on; else None.

    There are at least three of them, and at most a quarter of the starts stand apart.
    """
    places = set(starts)
    for distance in sorted({later - earlier for earlier, later in itertools.pairwise(starts)}):
        for first in sorted({start % distance for start in starts}):
            expected = range(first, count, distance)
            enough = len(expected) >= max(FEWEST_TIMES, MOST_TIMES * len(starts))
            if enough and all(position in places for position in expected):
                return expected
    return None
