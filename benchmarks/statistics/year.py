"""Changes found in a year of simulated days, the delay until then, and false alarms.

    python benchmarks/statistics/year.py --jobs 2

A fleet has 82 configurations, each with one run per day for 365 days. Most differ by 1
% from run to run, every fourth by 0.3 %; 3 % of the days are 5 to 30 % slow. Every
second configuration has one planted change of random size on a random day. Each day is
searched with the days and the noise known by then. A fleet's random numbers depend on
the seed and its own number, so the table does not depend on the number of jobs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.judge import noise
from pytest_llmbench.judge.change_points import (
    LevelShift,
    find_drift,
    find_level_shifts,
)
from pytest_llmbench.judge.noise import estimate_fleet_correlation

if TYPE_CHECKING:
    from pytest_llmbench.core.judgement_records import Noise
    from pytest_llmbench.core.log_records import Floats

CONFIGURATIONS = 82
NIGHTS = 365
MONTHS = 12
SIZES = (0.01, 0.02, 0.03, 0.05)
CV = (0.01, 0.003)
QUIET = 4
"""Every so many-th configuration is the quieter kind."""

SLOW_NIGHTS, SLOWER = 0.03, (0.05, 0.30)
EARLIEST, LATEST = 60, 300
NEAR = 7
"""Two changes that are found within so many nights of each other are one."""

PLACED = 11
"""The night of a change is found, with 95 %, within 11 (sigma / size)^2 nights (Bai,
Review of Economics and Statistics 79, 1997); what is found as near, or a week, to a
planted change is that change."""

WAYS = ("scan", "drift")


class Planted(NamedTuple):
    """A planted change: its size as a fraction and its first day; size 0 for none."""

    size: float
    night: int


class Found(NamedTuple):
    """Detection of a planted change by each method: delay in days (None: never),
    interval correct."""

    cv: float
    size: float
    delays: tuple[int | None, ...]
    covered: bool | None


class Year(NamedTuple):
    """Results of one fleet: planted changes, false alarms by method, and those that
    fail an item."""

    found: tuple[Found, ...]
    alarms: tuple[int, ...]
    failing: int


def year(number: int, seed: int, correlation: float = 0.0) -> Year:
    """Simulate the year of one fleet. `correlation` is that of a day with the next."""
    random = np.random.default_rng([seed, number])
    cvs = [CV[one % QUIET == 1] for one in range(CONFIGURATIONS)]
    planted = [_plant(random, one) for one in range(CONFIGURATIONS)]
    series = [
        _series(random, cv, one, correlation)
        for cv, one in zip(cvs, planted, strict=True)
    ]
    reports = [_Reports(one, cv) for one, cv in zip(planted, cvs, strict=True)]
    for day in range(noise.FEWEST_DAYS, NIGHTS + 1):
        days = [values[:day] for values in series]
        alike = estimate_fleet_correlation(days)
        for one, values, known in zip(reports, days, _noises(days), strict=True):
            one.hear(values, known, alike)
    found = tuple(one.result() for one in reports if one.planted.size)
    alarms = tuple(sum(len(one.false[way]) for one in reports) for way in WAYS)
    return Year(found, alarms, sum(one.failing for one in reports))


class _Reports:
    """Collected reports on one configuration, day after day."""

    def __init__(self, planted: Planted, cv: float) -> None:
        self.planted = planted
        self.cv = cv
        self.near = NEAR + PLACED * (cv / planted.size) ** 2 if planted.size else 0.0
        self.first: dict[str, int] = {}
        self.last: LevelShift | None = None
        self.false: dict[str, list[int]] = {way: [] for way in WAYS}
        self.failing = 0

    def hear(self, values: Floats, known: Noise, correlation: float) -> None:
        found = find_level_shifts(values, known, correlation=correlation)
        for one in found:
            self._note("scan", one, len(values))
        slow = (
            None
            if any(one.difference > 0 for one in found)
            else find_drift(values, known, correlation=correlation)
        )
        if slow is not None:
            self._note("drift", slow, len(values))

    def _note(self, way: str, one: LevelShift, night: int) -> None:
        size, began = self.planted
        if (
            size
            and night > began
            and (way == "drift" or abs(one.position - began) <= self.near)
        ):
            self.first.setdefault(way, night - began)
            self.last = one if way == "scan" else self.last
        elif all(abs(one.position - other) > NEAR for other in self.false[way]):
            self.false[way].append(one.position)
            self.failing += one.difference > math.log1p(0.01)

    def result(self) -> Found:
        truth = math.log1p(self.planted.size)
        covered = (
            None if self.last is None else self.last.low <= truth <= self.last.high
        )
        return Found(
            self.cv,
            self.planted.size,
            tuple(self.first.get(way) for way in WAYS),
            covered,
        )


def _plant(random: np.random.Generator, number: int) -> Planted:
    size = SIZES[int(random.integers(len(SIZES)))] if number % 2 else 0.0
    return Planted(size, int(random.integers(EARLIEST, LATEST)))


def _series(
    random: np.random.Generator, cv: float, planted: Planted, correlation: float
) -> Floats:
    values = random.standard_normal(NIGHTS)
    for day in range(1, NIGHTS):
        values[day] = (
            correlation * values[day - 1] + math.sqrt(1 - correlation**2) * values[day]
        )
    values *= cv
    slow = random.random(NIGHTS) < SLOW_NIGHTS
    values[slow] += np.log1p(random.uniform(*SLOWER, int(slow.sum())))
    values[planted.night :] += math.log1p(planted.size)
    return np.asarray(values)


def _noises(series: Sequence[Floats]) -> Iterator[Noise]:
    """Yield the noise of each configuration as the gate knows it: its own and that of
    the others."""
    own = [noise.estimate_from_daily_runs(values.tolist()) for values in series]
    prior = noise.estimate_from_fleet([one for one in own if one is not None])
    for one in own:
        yield noise.with_prior(one, prior or noise.assume_noise(CV[0]), CV[0])


# --- words ----------------------------------------------------------------------------


def table(years: Sequence[Year]) -> str:
    """Return the results as two Markdown tables: planted changes, and false alarms."""
    lines = [
        "| run to run | change | planted | found by the scan | nights until then: median, 90 % | by the drift alone "
        "| within its 95 % interval |",
        "|---|---|---|---|---|---|---|",
    ]
    every = [one for fleet in years for one in fleet.found]
    for cv in CV:
        lines += [
            _row(cv, size, [one for one in every if one.cv == cv and one.size == size])
            for size in SIZES
        ]
    lines += ["", "| false alarms of the fleet in a month | |", "|---|---|"]
    for position, way in enumerate(WAYS):
        lines.append(f"| {way} | {monthly(years, position):.2f} |")
    lines.append(
        f"| of both, slower by 1 % or more: what `--llmb-trend=fail` fails | {failing(years):.2f} |"
    )
    return "\n".join(lines)


def monthly(years: Sequence[Year], way: int) -> float:
    """Return the false alarms per fleet and month of one method."""
    return sum(one.alarms[way] for one in years) / len(years) / MONTHS


def failing(years: Sequence[Year]) -> float:
    """Return the false alarms per fleet and month that would fail an item."""
    return sum(one.failing for one in years) / len(years) / MONTHS


def _row(cv: float, size: float, found: Sequence[Found]) -> str:
    scan = sorted(one.delays[0] for one in found if one.delays[0] is not None)
    only = [one for one in found if one.delays[0] is None and one.delays[1] is not None]
    covered = [one.covered for one in found if one.covered is not None]
    delays = f"{np.median(scan):.0f}, {np.quantile(scan, 0.9):.0f}" if scan else "-"
    held = f"{100 * np.mean(covered):.0f} %" if covered else "-"
    share = f"{100 * len(scan) / max(len(found), 1):.0f} %"
    alone = f"{100 * len(only) / max(len(found), 1):.0f} %"
    return f"| {cv * 100:g} % | +{size * 100:g} % | {len(found)} | {share} | {delays} | {alone} | {held} |"


def promises(years: Sequence[Year]) -> list[tuple[str, bool]]:
    """Return the documented promises, and whether they hold."""
    three = [
        one.delays[0] for fleet in years for one in fleet.found if one.size == 0.03
    ]
    late = [math.inf if delay is None else delay for delay in three]
    alarms = sum(monthly(years, way) for way in range(len(WAYS)))
    return [
        (f"at most one false alarm of the fleet in a month: {alarms:.2f}", alarms <= 1),
        (
            f"+3 % found by night 7 in the median: {np.median(late):.0f}",
            bool(np.median(late) <= 7),
        ),
        (
            "every change of 3 and 5 % found",
            all(_all_found(years, size) for size in (0.03, 0.05)),
        ),
    ]


def _all_found(years: Sequence[Year], size: float) -> bool:
    return all(
        one.delays[0] is not None
        for fleet in years
        for one in fleet.found
        if one.size == size
    )


def main() -> int:
    """Print the tables and the promises. Returns 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--years",
        type=int,
        default=4,
        metavar="N",
        help="Fleets (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="Of the random numbers (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="Processes (default: %(default)s)",
    )
    parser.add_argument(
        "--correlation",
        type=float,
        default=0.0,
        metavar="R",
        help="Of a night with the next (default: %(default)s)",
    )
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        one = partial(year, seed=options.seed, correlation=options.correlation)
        years = list(pool.map(one, range(options.years)))
    print(table(years))
    print("\n| promise | kept |\n|---|---|")
    for text, kept in promises(years):
        print(f"| {text} | {'yes' if kept else 'NO'} |")
    return 0 if all(kept for _, kept in promises(years)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
