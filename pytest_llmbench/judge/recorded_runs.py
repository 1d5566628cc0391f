"""The runs of a baseline: how many are independent, and whether they are of one
level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.judge.estimate import FEWEST_STEPS
from pytest_llmbench.judge.noise import estimate_within_run

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

# Runs that start within so long after the first of a day are of that day, also beyond
# midnight (UTC).
SAME_DAY = timedelta(hours=12)

FEWEST_GROUPS = 3  # a baseline from fewer days or sets of nodes is warned about
ENOUGH_GROUPS = 5  # so many are recommended


@dataclass(frozen=True, slots=True)
class Occasion:
    """When a run started, and on which nodes."""

    started: datetime | None
    nodes: frozenset[str] = frozenset()  # empty where nothing says it


def count_groups(occasions: Iterable[Occasion]) -> int:
    """Return how many of the runs are independent."""
    return len(group_occasions(tuple(occasions)))


def group_occasions(occasions: Sequence[Occasion]) -> list[list[int]]:
    """Return the places of the runs of each group: those of one day on one set of nodes
    share what made them fast or slow and count once. What nothing is known of is not
    taken to differ."""
    groups: list[list[int]] = []
    for place in sorted(
        range(len(occasions)), key=lambda place: _make_order_key(occasions[place])
    ):
        occasion = occasions[place]
        firsts = (occasions[group[0]] for group in groups)
        same = (
            _is_same_day(occasion, first) and _share_nodes(occasion, first)
            for first in firsts
        )
        number = next((number for number, is_same in enumerate(same) if is_same), None)
        if number is None:
            groups.append([place])
        else:
            groups[number].append(place)
    return groups


def _make_order_key(occasion: Occasion) -> tuple[bool, float]:
    """Return the order of occasions: those without a start come last, they belong to
    whatever is there."""
    started = occasion.started
    return started is None, started.timestamp() if started else 0.0


def _is_same_day(occasion: Occasion, other: Occasion) -> bool:
    if occasion.started is None or other.started is None:
        return True
    return (
        occasion.started.date() == other.started.date()
        or abs(occasion.started - other.started) < SAME_DAY
    )


def _share_nodes(occasion: Occasion, other: Occasion) -> bool:
    """Whether two sets of nodes are one: more than half of the smaller is in the other,
    or one is not known."""
    smaller = min(len(occasion.nodes), len(other.nodes))
    return 2 * len(occasion.nodes & other.nodes) > smaller or not smaller


# --- levels ---------------------------------------------------------------------------

# Levels count as several from here on: so much slower than the faster one would the
# mean be, as a fraction.
SMALLEST_HARM = 0.01

ALONE = 6  # of so many runs a single one is a bad day, and no level

# From this ratio on 2, 3, ... runs (the last stands for more) are of two levels, one
# after the other in time or in any order: what lies between the two over what lies
# within them, squared, with two degrees of half the expected noise. Each is what the
# noisiest runs of one level (twice the expected noise) reach in 0.4 % of recordings;
# docs/baselines.md.
IN_TIME = (66.9, 48.0, 31.0, 18.8, 10.5, 7.3, 5.3, 4.2, 3.3)
AT_ALL = (66.9, 53.5, 39.3, 29.4, 21.4, 16.9, 13.9, 11.9, 10.3)


@dataclass(frozen=True, slots=True)
class RunLevels:
    """Two levels among runs."""

    fast_runs: int
    slow_runs: int
    fast_seconds: float  # a geometric mean, as the other one
    slow_seconds: float


def find_run_levels(
    seconds: Sequence[float], expected_noise: float, *, ordered: bool
) -> RunLevels | None:
    """Return the two levels that runs are of; None where they may as well be of one.

    `seconds` are the statistics of the runs, in their order in time where they are
    `ordered`, `expected_noise` is the standard deviation of log(seconds) from run to
    run. Of runs of one level with up to twice that noise fewer than 1 % are taken for
    two; runs of one day that share what the day added may be.
    """
    logarithms = np.log(np.array(seconds, dtype=float))
    if len(logarithms) < 2:
        return None
    in_time = _split(logarithms, expected_noise, IN_TIME) if ordered else None
    return in_time or _split(np.sort(logarithms), expected_noise, AT_ALL)


def _split(
    logarithms: Floats, expected_noise: float, limits: Sequence[float]
) -> RunLevels | None:
    """Return the two parts of a sequence that differ most beside what they hold, if
    they differ by enough."""
    count = len(logarithms)
    fewest = 1 if count < ALONE else 2
    places = range(fewest, count - fewest + 1)
    place = max(places, key=lambda cut: _sum_between(logarithms, cut))
    between = _sum_between(logarithms, place)
    within = count * float(np.var(logarithms)) - between
    limit = limits[min(count, len(limits) + 1) - 2]
    fast, slow = sorted(
        (logarithms[:place], logarithms[place:]), key=lambda part: float(np.mean(part))
    )
    low, high = float(np.mean(fast)), float(np.mean(slow))
    harm = (high - low) * len(slow) / count
    if harm < SMALLEST_HARM or between <= limit * (
        within + 2 * (expected_noise / 2) ** 2
    ):
        return None
    return RunLevels(len(fast), len(slow), math.exp(low), math.exp(high))


def _sum_between(logarithms: Floats, place: int) -> float:
    """Return the sum of squares between the two parts of a sequence."""
    count = len(logarithms)
    difference = float(np.mean(logarithms[:place]) - np.mean(logarithms[place:]))
    return place * (count - place) / count * difference**2


def expect_noise(runs: Sequence[Measurement], assumed_cv: float) -> float:
    """Return how much the trimmed means of runs are expected to differ: what is
    assumed, and what happens within."""
    errors = [_estimate_error_within(run) for run in runs]
    return math.hypot(
        assumed_cv, math.sqrt(sum(error**2 for error in errors) / len(errors))
    )


def _estimate_error_within(run: Measurement) -> float:
    if len(run.window_seconds) < FEWEST_STEPS:
        return 0.0
    window = np.array(run.window_seconds)
    half_unit = run.resolution_seconds / 2 / float(np.mean(window))
    inside = estimate_within_run(window, "trimmed_mean", run.moving_mean, run.mean_of)
    return math.hypot(inside.error, half_unit / math.sqrt(3))
