"""Accuracy of `llmbench nodes`: false names, and the number of days until a slow node
is named.

    python benchmarks/statistics/causes_nodes.py --jobs 2

Simulates clusters of 64 nodes with the real functions, which search the history every
day. Prints each number next to its promise. Exit code 1 if a promise is broken. A
cell's random numbers depend on the seed and its name.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date, timedelta
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from pytest_llmbench.judge.slow_nodes import (
    ConfigurationRun,
    compare_with_levels,
    find_slow_node,
)

NODES, OF_A_JOB = 64, 16
NODE_CV = 0.003  # a node's own deviation on a night
SLOWEST = (
    1.766 * NODE_CV
)  # the slowest of the nodes of a job, on average: of 16 normal values
BAD, WORST = 0.03, 0.35  # so many runs are slower by up to so much, for another cause
BEFORE = 20  # nights that tell level and noise, on nodes that nobody knows
MONTH = 30
BAD_NIGHTS = (16, 17)  # of the month, from 0
START = date(2025, 11, 1)
SLOW = 5  # the number of the slow node


class NodeCell(NamedTuple):
    """A kind of cluster: jobs per day, noise of a run, and slowdowns.

    Jobs are slower on one node, and all jobs are slower from some day on.
    """

    jobs: int
    cv: float
    slowness: float = 0.0
    regression: float = 0.0
    from_night: int = 8
    # the nodes of the nights before are known, when the node was not slow yet
    nodes_before: bool = False
    nodes: int = NODES
    of_a_job: int = OF_A_JOB
    stay: int = 1  # so many nights a job keeps its nodes
    # all jobs are slower by so much on two neighbouring nights, on the same nodes
    bad: float = 0.0


class NodePromise(NamedTuple):
    """The promise of a cell: false names per month in percent, or the median number of
    days.

    None without a promise.
    """

    cell: NodeCell
    value: float | None


class NodeCount(NamedTuple):
    """The counts of a cell."""

    cell: NodeCell
    total: int
    named: int  # the slow node
    wrong: int  # another one, or any where none is slow
    nights: tuple[float, ...]  # until the slow node is named; infinite where it is not


FALSE = (
    NodePromise(NodeCell(1, 0.005), 0.1),
    NodePromise(NodeCell(1, 0.01), 0.0),
    NodePromise(NodeCell(4, 0.005), 0.0),
    NodePromise(NodeCell(4, 0.01), 0.5),
    NodePromise(NodeCell(1, 0.005, regression=0.05), None),
    NodePromise(NodeCell(4, 0.005, regression=0.02), 0.2),
    NodePromise(NodeCell(4, 0.005, regression=0.05), 0.0),
    NodePromise(NodeCell(1, 0.005, nodes=512, of_a_job=8, stay=2, bad=0.1), 0.0),
    NodePromise(NodeCell(2, 0.005, nodes=512, of_a_job=8, stay=2, bad=0.1), 0.0),
    NodePromise(NodeCell(2, 0.005, stay=2, bad=0.1), 0.0),
)
"""False names in a month in which no node is slow."""

FOUND = (
    NodePromise(NodeCell(1, 0.005, 0.03), 17),
    NodePromise(NodeCell(1, 0.01, 0.03), 32),
    NodePromise(NodeCell(1, 0.005, 0.1), 14),
    NodePromise(NodeCell(1, 0.01, 0.1), 15),
    NodePromise(NodeCell(4, 0.005, 0.03), 5),
    NodePromise(NodeCell(4, 0.01, 0.03), 9),
    NodePromise(NodeCell(4, 0.005, 0.1), 4),
    NodePromise(NodeCell(4, 0.01, 0.1), 4),
    NodePromise(NodeCell(1, 0.005, 0.3), None),
    NodePromise(NodeCell(4, 0.005, 0.1, nodes_before=True), None),
)
"""Nights until the slow node is named."""

WRONG = 2.0  # percent of the cases in which another node than the slow one is named


def simulate(cell: NodeCell, total: int, seed: int) -> NodeCount:
    """Return the results of this number of histories."""
    random = np.random.default_rng([seed, zlib.crc32(repr(cell).encode())])
    ends = [_follow(cell, random) for _ in range(total)]
    named = [days for right, days in ends if right]
    wrong = sum(math.isfinite(days) and not right for right, days in ends)
    return NodeCount(
        cell, total, len(named), wrong, (*named, *[math.inf] * (total - len(named)))
    )


def _follow(cell: NodeCell, random: np.random.Generator) -> tuple[bool, float]:
    """Return True if the slow node is named first, and the days until a node is named
    alone.

    A slow node that always ran together with other nodes is named with them, which is
    correct but does not end the search.
    """
    days = 2 * MONTH if cell.slowness else MONTH
    history = _make_runs(cell, days, random)
    for day in range(1, days + 1):
        end = START + timedelta(days=BEFORE + day)
        past = {
            name: [run for run in runs if run.day < end]
            for name, runs in history.items()
        }
        evidence = find_slow_node(compare_with_levels(past)[0])
        names = [suspect.nodes for suspect in evidence.named]
        if any(cell.slowness == 0 or f"n{SLOW}" not in nodes for nodes in names):
            return False, day
        if names == [(f"n{SLOW}",)]:
            return True, day
    return False, math.inf


def _make_runs(
    cell: NodeCell, nights: int, random: np.random.Generator
) -> dict[str, list[ConfigurationRun]]:
    history: dict[str, list[ConfigurationRun]] = {
        f"job {job}": [] for job in range(cell.jobs)
    }
    for day in range(BEFORE + nights):
        if day % cell.stay == 0:
            order = random.permutation(cell.nodes)
        of_nodes = NODE_CV * random.standard_normal(cell.nodes)
        of_nodes[SLOW] += (
            SLOWEST + math.log1p(cell.slowness)
            if cell.slowness and day >= BEFORE
            else 0.0
        )
        shared = (
            math.log1p(cell.regression) if day >= BEFORE + cell.from_night - 1 else 0.0
        )
        shared += math.log1p(cell.bad) if day - BEFORE in BAD_NIGHTS else 0.0
        for job, (name, runs) in enumerate(history.items()):
            nodes = order[cell.of_a_job * job : cell.of_a_job * (job + 1)]
            logarithm = (
                float(of_nodes[nodes].max())
                + shared
                + cell.cv * random.standard_normal()
            )
            if random.random() < BAD:
                logarithm += random.uniform(0, math.log1p(WORST))
            placed = (
                frozenset(f"n{node}" for node in nodes)
                if day >= BEFORE or cell.nodes_before
                else frozenset()
            )
            runs.append(
                ConfigurationRun(
                    f"{name} {day}", START + timedelta(days=day), logarithm, placed
                )
            )
    return history


# --- words ----------------------------------------------------------------------------


def is_kept(promise: NodePromise, count: NodeCount) -> bool:
    """True if a rate or median is as promised, within chance; medians also within a day
    or 15 %."""
    if promise.cell.slowness:
        median = float(np.median(count.nights))
        wrong = binomtest(count.wrong, count.total).proportion_ci(0.95, "exact").low
        near = promise.value is None or median <= 1.15 * promise.value + 1
        return bool(near and 100 * wrong <= WRONG)
    if promise.value is None:
        return True
    low = binomtest(count.wrong, count.total).proportion_ci(0.95, "exact").low
    return bool(100 * low <= max(promise.value, 0.5))


def _describe_cell(cell: NodeCell) -> str:
    slow = f", one node +{100 * cell.slowness:g} %" if cell.slowness else ""
    before = ", sound on 20 nights before" if cell.nodes_before else ""
    shift = (
        f", all jobs +{100 * cell.regression:g} % from night {cell.from_night} on"
        if cell.regression
        else ""
    )
    size = (
        f", {cell.nodes} nodes, jobs of {cell.of_a_job}" if cell.nodes != NODES else ""
    )
    bad = (
        f", the same nodes for {cell.stay} nights, two bad nights of +{100 * cell.bad:g} %"
        if cell.bad
        else ""
    )
    return f"{cell.jobs} job{'s' * (cell.jobs > 1)} a night, cv {100 * cell.cv:g} %{slow}{before}{shift}{size}{bad}"


def _make_row(promise: NodePromise, count: NodeCount) -> str:
    kept = "yes" if is_kept(promise, count) else "NO"
    promised = "-" if promise.value is None else f"{promise.value:g}"
    interval = binomtest(count.wrong, count.total).proportion_ci(0.95, "exact")
    wrong = f"{100 * count.wrong / count.total:.2g} ({100 * interval.low:.2g} to {100 * interval.high:.2g})"
    name = _describe_cell(count.cell)
    if not count.cell.slowness:
        return f"| {name} | {wrong} | {promised} | {kept} |"
    median, late = np.quantile(count.nights, (0.5, 0.9), method="inverted_cdf")
    shown = [
        f"{value:.0f}" if math.isfinite(value) else "-" for value in (median, late)
    ]
    return f"| {name} | {shown[0]} | {shown[1]} | {promised} | {wrong} | {kept} |"


def _count_all(
    promises: Sequence[NodePromise], total: int, seed: int, jobs: int
) -> list[NodeCount]:
    with ProcessPoolExecutor(jobs) as pool:
        return list(
            pool.map(
                partial(simulate, total=total, seed=seed),
                [promise.cell for promise in promises],
            )
        )


def main() -> int:
    """Print the tables with the promises. Returns 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--months",
        type=int,
        default=1000,
        metavar="N",
        help="Without a slow node (default: 1000)",
    )
    parser.add_argument(
        "--cases",
        type=int,
        default=500,
        metavar="N",
        help="With a slow node (default: 500)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="Of the random numbers (default: 1)",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="Processes (default: 1)"
    )
    options = parser.parse_args()
    false = _count_all(FALSE, options.months, options.seed, options.jobs)
    print(f"Falsely named in a month without a slow node, %, n {options.months}\n")
    print(
        "| 64 nodes, jobs of 16 | named (95 % interval) | promised | kept |\n|---|---|---|---|"
    )
    print("\n".join(map(_make_row, FALSE, false)), flush=True)
    slow = _count_all(FOUND, options.cases, options.seed, options.jobs)
    print(f"\nNights until the slow node is named, n {options.cases}\n")
    print(
        "| 64 nodes, jobs of 16 | median | 90 % | promised | another named, % | kept |\n|---|---|---|---|---|---|"
    )
    print("\n".join(map(_make_row, FOUND, slow)))
    return int(not all(map(is_kept, (*FALSE, *FOUND), (*false, *slow))))


if __name__ == "__main__":
    raise SystemExit(main())
