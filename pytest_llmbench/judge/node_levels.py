"""How slow each run was beside the level of its configuration, for the search for slow
nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.node_records import Software
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.judge.change_points import find_level_shifts, find_slow_change
from pytest_llmbench.judge.noise import (
    AROUND,
    FEWEST_DAYS,
    compute_running_median,
    estimate_fleet_correlation,
    estimate_from_daily_runs,
    estimate_from_others,
    with_prior,
)
from pytest_llmbench.judge.slow_nodes import NodeRun

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

WINDOW = 60  # of so many of the last nights runs are looked at


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """One run of a configuration."""

    id: str
    night: date
    logarithm: float  # of its step time
    nodes: frozenset[str] = frozenset()  # empty where nothing says it
    software: Software = frozenset()  # as above


def compare_with_levels(
    configurations: Mapping[str, Sequence[PlacedRun]], since: date | None = None
) -> tuple[list[NodeRun], tuple[str, ...]]:
    """Return the runs of the last 60 nights beside the level of their configurations;
    and the configurations that cannot be looked at, since they ran on fewer than 8
    nights.

    The level is the median of the nights between two changes, as the nightly judge
    finds them; the noise of a run that of the nights before it (of the first 8 for
    those). Runs before `since` tell level and noise only. Runs of one configuration,
    night and set of nodes are one run, their mean.
    """
    series = {
        name: nights
        for name, runs in configurations.items()
        if (nights := _average_nights(runs))
    }
    long = {
        name: made
        for name, nights in series.items()
        if (made := _make_nights(nights)) is not None
    }
    correlation = estimate_fleet_correlation(nights.values for nights in long.values())
    prior = estimate_from_others([nights.noise for nights in long.values()])
    last = sorted({night for nights in series.values() for night in nights})[-WINDOW:]
    first = max(last[0], since or last[0]) if last else date.max
    placed = [
        run
        for name, nights in long.items()
        for run in _place(
            name,
            _merge_same(configurations[name]),
            _find_levels(nights, prior, correlation),
        )
        if run.night >= first
    ]
    return placed, tuple(sorted(series.keys() - long.keys()))


@dataclass(frozen=True, slots=True)
class ConfigurationNights:
    """The nights of a configuration, oldest first."""

    nights: tuple[date, ...]
    values: Floats  # log seconds, shape (nights,)
    noise: Noise  # of all of them


@dataclass(frozen=True, slots=True)
class NightLevel:
    """What a run of one night is compared with."""

    level: float
    count: int  # of so many nights it is the median
    segment: int  # so many changes lie before it
    noise: Noise


def _make_nights(nights: Mapping[date, float]) -> ConfigurationNights | None:
    """Return nights as columns; None for too few of them."""
    values = np.array(list(nights.values()))
    noise = estimate_from_daily_runs(values)
    return None if noise is None else ConfigurationNights(tuple(nights), values, noise)


def _average_nights(runs: Sequence[PlacedRun]) -> dict[date, float]:
    """Return the mean of each night, oldest first."""
    by_night: dict[date, list[float]] = defaultdict(list)
    for run in _merge_same(runs):
        by_night[run.night].append(run.logarithm)
    return {
        night: sum(of_one) / len(of_one) for night, of_one in sorted(by_night.items())
    }


def _merge_same(runs: Sequence[PlacedRun]) -> Iterator[PlacedRun]:
    """Yield runs, one for those that share their night and nodes, which say no more
    together than one."""
    together: dict[tuple[date, frozenset[str]], list[PlacedRun]] = defaultdict(list)
    for run in runs:
        together[run.night, run.nodes].append(run)
    for (night, nodes), same in together.items():
        mean = sum(run.logarithm for run in same) / len(same)
        yield PlacedRun(same[-1].id, night, mean, nodes, same[-1].software)


def _place(
    name: str, runs: Iterable[PlacedRun], levels: Mapping[date, NightLevel]
) -> Iterator[NodeRun]:
    for run in runs:
        of_night = levels[run.night]
        yield NodeRun(
            id=run.id,
            configuration=name,
            night=run.night,
            logarithm=run.logarithm,
            level=of_night.level,
            nights=of_night.count,
            sigma=of_night.noise.sigma,
            degrees_of_freedom=of_night.noise.degrees_of_freedom,
            nodes=run.nodes,
            segment=of_night.segment,
            software=run.software,
        )


def _find_levels(
    series: ConfigurationNights, prior: Noise | None, correlation: float
) -> dict[date, NightLevel]:
    levels, counts, segments = _compute_levels(series.values, series.noise, correlation)
    of_nights = {}
    for place, night in enumerate(series.nights):
        own = (
            estimate_from_daily_runs(series.values[: max(place, FEWEST_DAYS)])
            or series.noise
        )
        noise = own if prior is None else with_prior(own, prior, prior.sigma)
        of_nights[night] = NightLevel(
            float(levels[place]), int(counts[place]), int(segments[place]), noise
        )
    return of_nights


def _compute_levels(
    values: Floats, noise: Noise, correlation: float
) -> tuple[Floats, Floats, Floats]:
    """Return the level of each night, of how many nights it is the median, and how many
    changes lie before it, shape (nights,) each."""
    shifts = find_level_shifts(values, noise, correlation=correlation)
    cuts = [0, *(shift.position for shift in shifts), len(values)]
    levels, counts, segments = np.empty((3, len(values)))
    for number, (begin, end) in enumerate(pairwise(cuts)):
        segments[begin:end] = number
        levels[begin:end], counts[begin:end] = (
            compute_median(values[begin:end]),
            end - begin,
        )
    if find_slow_change(values[cuts[-2] :], noise, correlation=correlation) is not None:
        # Below a drift the median of all nights is fast in the beginning and slow in
        # the end.
        last = values[cuts[-2] :]
        levels[cuts[-2] :] = compute_running_median(last, AROUND)
        counts[cuts[-2] :] = min(AROUND, len(last))
    return levels, counts, segments
