"""Accuracy and cost of a bisect: simulated builds through the real function.

    python benchmarks/statistics/causes_bisect.py --jobs 2

Prints each number next to its promise. Exit code 1 if a promise is broken. A cell's
random numbers depend on the seed and its name.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    BisectAnswer,
    BisectOutcome,
    NextTrial,
    Trial,
    TrialOutcome,
)
from pytest_llmbench.launch.policies.search_policy import next_step


class Cell(NamedTuple):
    """A kind of search, and its promises.

    `right` is the percentage of searches that name all changes and nothing else (or
    report no change). `runs` is the mean number of runs. None without a promise.
    """

    cv: float
    changes: tuple[float, ...]
    right: float | None
    runs: float | None = None
    builds: int = 32
    broken: float = 0.0  # the share of builds that do not run
    drift: float = 0.0  # standard deviation of a slow drift over 50 runs
    earlier: float = (
        0.0  # degrees of freedom of the noise of earlier A/Bs; 0: there were none
    )


CELLS = (
    Cell(0.003, (0.01,), 97.6, 18.5),
    Cell(0.005, (0.01,), 58.2, 21.9),
    Cell(0.01, (0.01,), 5.0, 15.8),
    Cell(0.003, (0.02,), 100, 12.9),
    Cell(0.005, (0.02,), 99.7, 14.3),
    Cell(0.01, (0.02,), 60.8, 20.0),
    Cell(0.005, (0.03,), 100, 11.6),
    Cell(0.01, (0.03,), 94.3, 16.3),
    Cell(0.01, (0.05,), 99.9, 11.5),
    Cell(0.01, (0.10,), 99.9, 10.9),
    Cell(0.003, (0.01,), 97.5, 15.3, builds=8),
    Cell(0.005, (0.02,), 99.7, 11.6, builds=8),
    Cell(0.01, (0.03,), 92.7, 12.9, builds=8),
    Cell(0.003, (0.01,), 98.2, 21.2, builds=128),
    Cell(0.005, (0.02,), 99.8, 16.6, builds=128),
    Cell(0.01, (0.03,), 95.2, 19.2, builds=128),
    Cell(0.005, (0.02,), 99.8, 14.3, broken=0.1),
    Cell(0.01, (0.05,), 99.8, 11.5, broken=0.1),
    Cell(0.005, (0.02,), 99.8, 16.6, builds=128, broken=0.1),
    Cell(0.003, (), 95.5),
    Cell(0.01, (), 95.5),
    Cell(0.02, (), 93),
    # Two changes lie anywhere, also in neighbouring builds.
    Cell(0.003, (0.02, 0.02), 98),
    Cell(0.005, (0.02, 0.02), 63),
    Cell(0.003, (0.05, 0.05), 100),
    Cell(0.01, (0.05, 0.05), 92),
    Cell(0.003, (0.03, 0.01), None),
    Cell(0.005, (0.03, 0.01), None),
    Cell(0.01, (0.03, 0.01), None),
    Cell(0.005, (0.02,), 99.5, drift=0.003),
    Cell(0.003, (0.01,), 90, drift=0.003),
    Cell(0.003, (0.01,), 97.6, earlier=10),
    Cell(0.005, (0.02,), 99.7, earlier=10),
    Cell(0.01, (0.02,), 60.8, earlier=10),
    Cell(0.003, (), 95.5, earlier=10),
    Cell(0.01, (), 95.5, earlier=10),
)

MOST_WRONG = 2.5  # percent, in any cell
RUNS_WITHIN = 0.06  # of the promised mean


class Count(NamedTuple):
    """The counts of a cell."""

    total: int
    right: int
    wrong: int  # any build is named in vain
    ranges: int
    no_change: int
    rest: int  # a change is named, and another one is said to lie before or after it
    largest: int  # the largest change is among those that are named, and nothing else
    runs: float  # mean, and what nine in ten searches need at most
    most_runs: float


def simulate(cell: Cell, total: int, seed: int) -> Count:
    """Return the results of this number of searches of a cell."""
    random = np.random.default_rng(
        [
            seed,
            zlib.crc32(
                repr(
                    cell[:2] + cell[4:] if cell.earlier else cell[:2] + cell[4:7]
                ).encode()
            ),
        ]
    )
    counts: Counter[str] = Counter()
    runs = []
    for _ in range(total):
        places = np.sort(
            random.choice(np.arange(1, cell.builds), len(cell.changes), replace=False)
        ).tolist()
        sizes = random.permutation(cell.changes).tolist()
        answer = search(cell, dict(zip(places, sizes, strict=True)), random)
        runs.append(answer.runs)
        named = [
            [place for place in places if each.first <= place <= each.last]
            for each in answer.changes
        ]
        largest = places[sizes.index(max(sizes))] if sizes else None
        counts["wrong"] += not all(named)
        counts["right"] += (
            all(named) and bool(places) and sum(map(len, named)) == len(places)
        )
        counts["largest"] += all(named) and any(largest in each for each in named)
        counts["no_change"] += answer.outcome is BisectOutcome.NO_CHANGE_BETWEEN_ENDS
        counts["range"] += answer.outcome is BisectOutcome.RANGE
        counts["rest"] += any(
            each.rest_before or each.rest_after for each in answer.changes
        )
    if not cell.changes:
        counts["right"] = counts["no_change"]
    names = ("right", "wrong", "range", "no_change", "rest", "largest")
    right, wrong, ranges, no_change, rest, largest = (counts[name] for name in names)
    mean, most = float(np.mean(runs)), float(np.quantile(runs, 0.9))
    return Count(total, right, wrong, ranges, no_change, rest, largest, mean, most)


def search(
    cell: Cell, changes: dict[int, float], random: np.random.Generator
) -> BisectAnswer:
    """Return the result of one search."""
    levels = np.zeros(cell.builds)
    for place, size in changes.items():
        levels[place:] += math.log1p(size)
    broken = random.random(cell.builds) < cell.broken
    broken[[0, -1]] = False
    noise = cell.cv * random.standard_normal(200) + _make_drift(cell.drift, random)
    spread = (
        math.sqrt(random.chisquare(cell.earlier) / cell.earlier)
        if cell.earlier
        else 0.0
    )
    noise_before = (
        Noise(cell.cv * spread, cell.earlier, "", measured=True)
        if cell.earlier
        else None
    )
    trials = list[Trial]()
    while isinstance(
        step := next_step(trials, cell.builds, noise=noise_before), NextTrial
    ):
        if broken[step.variant]:
            trials.append(Trial(step.variant, TrialOutcome.DOES_NOT_RUN, None))
        else:
            milliseconds = 1000 * math.exp(levels[step.variant] + noise[len(trials)])
            trials.append(Trial(step.variant, TrialOutcome.MEASURED, milliseconds))
    return step


def _make_drift(
    size: float, random: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a drift with this standard deviation and a memory of 50 runs (Ornstein and
    Uhlenbeck)."""
    values = np.zeros(200)
    if size:
        keep = math.exp(-1 / 50)
        steps = size * random.standard_normal(200)
        values[0] = steps[0]
        for place in range(1, 200):
            values[place] = (
                keep * values[place - 1] + math.sqrt(1 - keep**2) * steps[place]
            )
    return values


def is_kept(cell: Cell, count: Count) -> bool:
    """True if a cell is as promised, within chance and printed digits."""
    if 100 * count.wrong / count.total > MOST_WRONG:
        return False
    if cell.runs is not None and abs(
        count.runs / cell.runs - 1
    ) > RUNS_WITHIN + 1.5 / math.sqrt(count.total):
        return False
    if cell.right is None:
        return True
    rate = min(cell.right, 99.8)
    return (
        100 * count.right / count.total
        >= cell.right - 3 * math.sqrt(2 * rate * (100 - rate) / count.total) - 0.5
    )


def _make_row(cell: Cell, count: Count) -> str:
    changes = (
        " and ".join(f"{100 * size:+g}" for size in cell.changes) + " %"
        if cell.changes
        else "no change"
    )
    kind = f"N {cell.builds}, cv {100 * cell.cv:g} %, {changes}"
    kind += ", 10 % do not run" * bool(cell.broken) + ", drift 0.3 %" * bool(cell.drift)
    kind += f", noise of {cell.earlier:g} degrees" * bool(cell.earlier)
    interval = binomtest(count.right, count.total).proportion_ci(0.95, "exact")
    shares = [
        100 * value / count.total
        for value in (count.right, count.wrong, count.ranges, count.no_change)
    ]
    right, wrong, ranges, no_change = (f"{share:.3g}" for share in shares)
    bounds = f"{100 * interval.low:.3g}-{100 * interval.high:.3g}"
    promised = " / ".join(
        "-" if value is None else f"{value:g}" for value in (cell.right, cell.runs)
    )
    rest = f"{100 * count.largest / count.total:.3g} / {100 * count.rest / count.total:.3g}"
    runs = f"{count.runs:.1f} ({count.most_runs:.0f})"
    kept = "yes" if is_kept(cell, count) else "NO"
    return f"| {kind} | {right} ({bounds}) | {wrong} | {ranges} / {no_change} | {runs} | {rest} | {promised} | {kept} |"


def main() -> int:
    """Print the table with the promises. Returns 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--cases",
        type=int,
        default=2_000,
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
    with ProcessPoolExecutor(options.jobs) as pool:
        counts = list(
            pool.map(partial(simulate, total=options.cases, seed=options.seed), CELLS)
        )
    print(f"Bisect, %, n {options.cases:,} a cell\n")
    print(
        "| what holds | right | wrong | range / no change | runs (90 %) | largest / rest | promised | kept |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows = list(zip(CELLS, counts, strict=True))
    print("\n".join(_make_row(cell, count) for cell, count in rows))
    return int(not all(is_kept(cell, count) for cell, count in rows))


if __name__ == "__main__":
    raise SystemExit(main())
