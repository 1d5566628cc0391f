"""Group the runs of a recorded baseline, and test them for several levels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.judge.estimate import FEWEST_STEPS
from pytest_llmbench.judge.noise import estimate_within_run

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

# Runs that start within this time of the first run of a day belong to that day, also
# after midnight (UTC).
SAME_DAY = timedelta(hours=12)

FEWEST_GROUPS = 3  # warn about a baseline from fewer days or node sets
ENOUGH_GROUPS = 5  # recommended number of groups


class Occasion(Struct, frozen=True):
    """Start time and nodes of a run."""

    started: datetime | None
    nodes: frozenset[str] = frozenset()  # empty if unknown


def count_groups(occasions: Iterable[Occasion]) -> int:
    """Count the independent groups of runs."""
    return len(group_occasions(tuple(occasions)))


def group_occasions(occasions: Sequence[Occasion]) -> list[list[int]]:
    """Group run indices that share a day and a node set.

    Such runs share causes of being fast or slow and count once. Unknown days or nodes
    match any.
    """
    groups: list[list[int]] = []
    oldest_first = sorted(
        range(len(occasions)), key=lambda index: _make_order_key(occasions[index])
    )
    for index in oldest_first:
        occasion = occasions[index]
        for group in groups:
            first = occasions[group[0]]  # represents the group
            if _is_same_day(occasion, first) and _share_nodes(occasion, first):
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def _make_order_key(occasion: Occasion) -> tuple[bool, float]:
    """Return the sort key of an occasion.

    Undated occasions come last, so that they can join an existing group.
    """
    started = occasion.started
    return started is None, started.timestamp() if started else 0.0


def _is_same_day(occasion: Occasion, other: Occasion) -> bool:
    """True if two occasions count as one day (SAME_DAY), or a start is unknown."""
    if occasion.started is None or other.started is None:
        return True
    return (
        occasion.started.date() == other.started.date()
        or abs(occasion.started - other.started) < SAME_DAY
    )


def _share_nodes(occasion: Occasion, other: Occasion) -> bool:
    """True if two node sets count as the same.

    More than half of the smaller set must be in the other set. An unknown set matches
    any set.
    """
    smaller = min(len(occasion.nodes), len(other.nodes))
    return 2 * len(occasion.nodes & other.nodes) > smaller or not smaller


# --- levels of runs -------------------------------------------------------------------

# Report several levels if they make the mean slower than the fast level by this
# fraction.
SMALLEST_HARM = 0.01

# from this many runs on, a single run is an outlier and not a level
MIN_RUNS_WITH_OUTLIER = 6

# Limits of a variance ratio for 2, 3, ... runs; the last one also for more. Runs have
# two levels if the ratio exceeds the limit. The ratio is the sum of squares between the
# two parts over the sum of squares within them plus 2 (noise / 2)^2, a prior of half
# the expected noise with two degrees of freedom. ORDERED_LIMITS are for splits in time
# order, SORTED_LIMITS for splits by duration. Runs of one level with twice the expected
# noise exceed each limit in 0.4 % of recordings; see docs/reference/recorded-baselines.md.
ORDERED_LIMITS = (66.9, 48.0, 31.0, 18.8, 10.5, 7.3, 5.3, 4.2, 3.3)
SORTED_LIMITS = (66.9, 53.5, 39.3, 29.4, 21.4, 16.9, 13.9, 11.9, 10.3)


class RunLevels(Struct, frozen=True):
    """Two levels among runs; their times are geometric means."""

    fast_runs: int
    slow_runs: int
    fast_seconds: float
    slow_seconds: float


def find_run_levels(
    seconds: Sequence[float], expected_noise: float, *, ordered: bool
) -> RunLevels | None:
    """Split runs into two levels, or return None if they may have one.

    `seconds` are the statistics of the runs, in time order if `ordered`.
    `expected_noise` is the run-to-run standard deviation of log(seconds). Fewer than
    1 % of recordings with one level and up to twice that noise are split. Runs of
    several days may be split if the runs of each day share an effect.
    """
    logarithms = np.log(np.array(seconds, dtype=float))
    if len(logarithms) < 2:
        return None
    in_time = _split(logarithms, expected_noise, ORDERED_LIMITS) if ordered else None
    return in_time or _split(np.sort(logarithms), expected_noise, SORTED_LIMITS)


def _split(
    logarithms: Floats, expected_noise: float, limits: Sequence[float]
) -> RunLevels | None:
    """Split a sequence where its parts differ most.

    None if the parts do not differ enough.
    """
    count = len(logarithms)
    fewest = 1 if count < MIN_RUNS_WITH_OUTLIER else 2  # runs in each part
    cuts = range(fewest, count - fewest + 1)
    split = max(cuts, key=lambda cut: _sum_between(logarithms, cut))
    between = _sum_between(logarithms, split)
    within = count * float(np.var(logarithms)) - between
    limit = limits[min(count, len(limits) + 1) - 2]  # the first limit is for two runs
    parts = (logarithms[:split], logarithms[split:])
    fast, slow = sorted(parts, key=lambda part: float(np.mean(part)))
    low, high = float(np.mean(fast)), float(np.mean(slow))
    # how much slower the mean of all runs is than the fast level
    harm = (high - low) * len(slow) / count
    prior = 2 * (expected_noise / 2) ** 2
    if harm < SMALLEST_HARM or between <= limit * (within + prior):
        return None
    return RunLevels(len(fast), len(slow), math.exp(low), math.exp(high))


def _sum_between(logarithms: Floats, split: int) -> float:
    """Return the sum of squares between the two parts of a sequence."""
    count = len(logarithms)
    difference = float(np.mean(logarithms[:split]) - np.mean(logarithms[split:]))
    return split * (count - split) / count * difference**2


def expect_noise(runs: Sequence[Measurement], assumed_cv: float) -> float:
    """Return the expected standard deviation of the runs' log trimmed means.

    Combines the assumed run-to-run noise with the within-run errors.
    """
    errors = [_estimate_within_run_error(run) for run in runs]
    within_run = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return math.hypot(assumed_cv, within_run)


def _estimate_within_run_error(run: Measurement) -> float:
    """Return the relative standard error of a run's trimmed mean, with its rounding."""
    if len(run.window_seconds) < FEWEST_STEPS:
        return 0.0
    window = np.array(run.window_seconds)
    half_unit = run.resolution_seconds / 2 / float(np.mean(window))
    within = estimate_within_run(window, "trimmed_mean", run.moving_mean, run.mean_of)
    return math.hypot(within.error, half_unit / math.sqrt(3))
