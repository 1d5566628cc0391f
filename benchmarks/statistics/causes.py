"""Error rates and sensitivity of `llmbench compare`: simulated sides through the real
functions.

    python benchmarks/statistics/causes.py --jobs 2

Prints each number next to its promise. Exit code 1 if a promise is broken. A cell's
random numbers depend on the seed and its name.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from pytest_llmbench.comparison.comparison_records import (
    SideAnswer,
    SideEstimate,
    SideRun,
)
from pytest_llmbench.comparison.unpaired import MARGIN, Sides, compare_all
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.judge import noise

ASSUMED_CV = 0.01
START = datetime(2025, 11, 1, 2, tzinfo=UTC)
POWER = 0.8


class Cell(NamedTuple):
    """A kind of comparison.

    It has a number of runs per side, days of history, and standard deviations from run
    to run and of the nodes. Each run of a side has its own set of nodes (one per day),
    or all share one if `together`. The analysis knows the nodes if `nodes_told`, else
    it assumes different nodes for each run.
    """

    runs: int
    nights: int
    cv: float
    nodes: float = 0.0
    together: bool = False
    nodes_told: bool = True


class Promise(NamedTuple):
    """The promise of a cell, in percent: false differences, or the smallest difference
    shown.

    None without a promise: with an assumed noise of 1 %, a difference is shown as for a
    cluster with 1 %, whatever the true noise is.
    """

    cell: Cell
    value: float | None


def _promise_row(
    runs: int, nights: int, cvs: Sequence[float], values: Sequence[float | None]
) -> Iterator[Promise]:
    yield from (
        Promise(Cell(runs, nights, cv), value)
        for cv, value in zip(cvs, values, strict=True)
    )


CVS = (0.002, 0.005, 0.01, 0.015, 0.02)
FALSE = (
    *_promise_row(1, 0, CVS, (0, 0, 0.6, 6.1, 16.0)),
    *_promise_row(1, 8, CVS, (5.7, 6.0, 5.4, 5.5, 5.5)),
    *_promise_row(1, 20, CVS, (5.1, 5.1, 5.1, 4.9, 5.2)),
    *_promise_row(2, 0, CVS, (0, 0, 2.0, 8.3, 13.9)),
    *_promise_row(2, 20, CVS, (4.9, 4.9, 5.0, 5.1, 5.0)),
    *_promise_row(3, 0, CVS, (5.1, 5.3, 5.1, 4.8, 5.2)),
)
"""False differences at zero difference, both signs together."""

TOGETHER = tuple(
    Promise(Cell(3, nights, 0.005, nodes, together=True, nodes_told=told), value)
    for told, nights, values in (
        (False, 0, (10.5, 24, 49)),
        (False, 20, (10, 18, 28)),
        (True, 0, (0, 0.01, 0.7)),
        (True, 20, (1.1, 2.3, 4.2)),
    )
    for nodes, value in zip((0.0025, 0.005, 0.01), values, strict=True)
)
"""The same, of three runs a side on one set of nodes each: counted as six, and as two
groups."""

SHOWN_CVS = (0.003, 0.005, 0.01, 0.02)
SHOWN = (
    *_promise_row(1, 0, SHOWN_CVS, (None, None, 5.4, None)),
    *_promise_row(1, 20, SHOWN_CVS, (1.4, 2.3, 4.7, 9.5)),
    *_promise_row(3, 0, SHOWN_CVS, (0.9, 1.5, 3.1, 6.3)),
    *_promise_row(3, 20, SHOWN_CVS, (0.75, 1.3, 2.5, 5.1)),
    *_promise_row(5, 20, SHOWN_CVS, (0.6, 0.95, 1.9, 3.9)),
)
"""The smallest difference that is shown four times out of five."""


class Count(NamedTuple):
    """The counts of a cell."""

    cell: Cell
    false: int  # slower and faster
    total: int
    smallest: float  # the difference that is shown in POWER of the cases, a fraction


def simulate(cell: Cell, total: int, seed: int) -> Count:
    """Return the results of this number of comparisons without a difference."""
    random = np.random.default_rng([seed, zlib.crc32(repr(cell).encode())])
    estimates = [estimate(cell, random) for _ in range(total)]
    false = sum(
        each.answer in (SideAnswer.SLOWER, SideAnswer.FASTER) for each in estimates
    )
    # A difference is shown as soon as it is larger than what the interval reaches below
    # 0.
    smallest = math.expm1(float(np.quantile([-each.low for each in estimates], POWER)))
    return Count(cell, false, total, smallest)


def estimate(cell: Cell, random: np.random.Generator) -> SideEstimate:
    """Return the result of one comparison, as the command prints it."""
    sides = Sides(
        _make_side(cell, "a", random),
        _make_side(cell, "b", random),
        _make_days(cell, random),
    )
    return compare_all({"simulated": sides}, MARGIN, ASSUMED_CV)["simulated"][0]


def _make_side(
    cell: Cell, name: str, random: np.random.Generator
) -> tuple[SideRun, ...]:
    logarithms = cell.cv * random.standard_normal(cell.runs)
    logarithms += cell.nodes * random.standard_normal(1 if cell.together else cell.runs)
    shared = cell.together and cell.nodes_told
    return tuple(
        SideRun(
            f"{name}{place}",
            math.exp(logarithm),
            started=START,
            nodes=frozenset({f"{name}{0 if shared else place}"}),
        )
        for place, logarithm in enumerate(logarithms.tolist())
    )


def _make_days(cell: Cell, random: np.random.Generator) -> Noise | None:
    """Return the results of earlier days, each with its own nodes."""
    return noise.estimate_from_daily_runs(
        math.hypot(cell.cv, cell.nodes) * random.standard_normal(cell.nights)
    )


# --- words ----------------------------------------------------------------------------


def is_kept(promise: Promise, count: Count) -> bool:
    """True if the rate of false differences is as promised, within chance and printed
    digits."""
    if promise.value is None:
        return True
    error = math.sqrt(
        2 * max(promise.value, 0.02) * (100 - promise.value) / count.total
    )  # both were simulated
    return abs(100 * count.false / count.total - promise.value) <= 3 * error + 0.05


def is_shown(promise: Promise, count: Count) -> bool:
    """True if the smallest difference is as promised, within 5 % and a printed digit."""
    return (
        promise.value is None
        or abs(100 * count.smallest - promise.value) <= 0.05 * promise.value + 0.05
    )


def _describe_cell(cell: Cell) -> str:
    history = f"{cell.nights} nights" if cell.nights else "no history"
    of_nodes = f", node effect {100 * cell.nodes:g} %" if cell.together else ""
    counted = (
        f", counted as {'2 groups' if cell.nodes_told else '6 runs'}"
        if cell.together
        else ""
    )
    return f"{cell.runs} run{'s' * (cell.runs > 1)}, {history}, cv {100 * cell.cv:g} %{of_nodes}{counted}"


def _make_row(promise: Promise, count: Count, *, power: bool) -> str:
    answer = "yes" if (is_shown if power else is_kept)(promise, count) else "NO"
    promised = "-" if promise.value is None else f"{promise.value:g}"
    if power:
        return f"| {_describe_cell(count.cell)} | {100 * count.smallest:.3g} | {promised} | {answer} |"
    interval = binomtest(count.false, count.total).proportion_ci(0.95, "exact")
    bounds = f"{100 * interval.low:.2g} to {100 * interval.high:.2g}"
    share = f"{100 * count.false / count.total:.3g}"
    return (
        f"| {_describe_cell(count.cell)} | {share} | {bounds} | {promised} | {answer} |"
    )


def main() -> int:
    """Print the tables with the promises. Returns 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--cases",
        type=int,
        default=20_000,
        metavar="N",
        help="Of each cell (default: %(default)s)",
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
    options = parser.parse_args()
    promises = (*FALSE, *TOGETHER, *SHOWN)
    cells = list(dict.fromkeys(promise.cell for promise in promises))
    with ProcessPoolExecutor(options.jobs) as pool:
        run = partial(simulate, total=options.cases, seed=options.seed)
        counts = {count.cell: count for count in pool.map(run, cells)}
    print(f"False differences at zero difference, %, n {options.cases:,} a cell\n")
    print(
        "| runs a side | false | 95 % interval | promised | kept |\n|---|---|---|---|---|"
    )
    print(
        "\n".join(
            _make_row(promise, counts[promise.cell], power=False)
            for promise in (*FALSE, *TOGETHER)
        )
    )
    print(f"\nSmallest difference shown {POWER:.0%} of the time, %\n")
    print("| runs a side | found | promised | kept |\n|---|---|---|---|")
    print(
        "\n".join(
            _make_row(promise, counts[promise.cell], power=True) for promise in SHOWN
        )
    )
    kept = all(
        is_kept(promise, counts[promise.cell]) for promise in (*FALSE, *TOGETHER)
    )
    return int(
        not (kept and all(is_shown(promise, counts[promise.cell]) for promise in SHOWN))
    )


if __name__ == "__main__":
    raise SystemExit(main())
