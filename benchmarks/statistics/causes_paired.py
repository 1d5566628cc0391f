"""Error rates and cost of an A/B on the same nodes: simulated arms through the real
function.

    python benchmarks/statistics/causes_paired.py --jobs 2

Prints each number next to its promise. Exit code 1 if a promise is broken. A cell's
random numbers depend on the seed and its name.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    NextTrial,
    PairedAnswer,
    PairedOutcome,
    Trial,
    TrialOutcome,
    TrialReport,
)
from pytest_llmbench.judge.noise import pool
from pytest_llmbench.launch.policies.ab_policy import next_step


class Cell(NamedTuple):
    """A kind of A/B: run-to-run noise, slowdown of arm 1, and the promise in percent."""

    cv: float
    difference: float
    outcome: PairedOutcome
    promised: float | None
    arms: int = 2
    drift: float = 0.0  # of the logarithm from one run to the next
    # the degrees of freedom of the noise of earlier A/Bs; WHOLE: that of three whole
    # ones
    earlier: float = 0.0
    pairs: float | None = None  # so many are promised on average


WHOLE = -1.0

CVS = (0.002, 0.003, 0.005, 0.01, 0.015, 0.02)


def _make_cells() -> tuple[Cell, ...]:
    slower, faster = PairedOutcome.SLOWER, PairedOutcome.FASTER
    rows: Sequence[tuple[float, PairedOutcome, Sequence[float]]] = (
        (0.0, slower, (4.9, 4.8, 4.8, 5.1, 5.8, 7.6)),
        (0.0, faster, (4.9, 4.6, 4.7, 5.0, 5.9, 7.6)),
        (0.005, slower, (88.1, 59.2, 29.8, 14.2)),
        (0.01, slower, (100, 98.1, 72.8, 30.4)),
        (0.02, slower, (100, 100, 99.8, 73.1)),
        (0.03, slower, (100, 100, 100, 95.7)),
        (0.05, slower, (100, 100, 100, 100)),
        (0.0, PairedOutcome.ALIKE, (90.6, 86.9, 42.9, 2.8)),
    )
    tables = [
        Cell(cv, difference, outcome, value)
        for difference, outcome, values in rows
        for cv, value in zip(CVS, values, strict=False)
    ]
    # Nothing is promised of these but what two arms keep: each A/B of three arms, and a
    # drift of 0.1 % a run.
    more = [Cell(cv, 0.0, slower, None, arms=3) for cv in (0.003, 0.01)]
    earlier = [
        Cell(cv, 0.0, kind, None, earlier=10)
        for cv in CVS[1:4]
        for kind in (slower, faster)
    ]
    shown = zip(CVS[1:4], (99.4, 79.3, 32.0), (2.3, 3.1, 3.7), strict=True)
    earlier += [
        Cell(cv, 0.01, slower, value, earlier=10, pairs=pairs)
        for cv, value, pairs in shown
    ]
    earlier += [Cell(cv, 0.0, slower, None, earlier=WHOLE) for cv in CVS[1:4]]
    earlier += [Cell(cv, 0.01, slower, None, earlier=WHOLE) for cv in CVS[1:4]]
    return (
        *tables,
        *more,
        *earlier,
        Cell(0.003, 0.0, slower, None, drift=0.001),
        Cell(0.003, 0.0, faster, None, drift=0.001),
    )


class Count(NamedTuple):
    """The counts of a cell."""

    outcomes: int
    pairs: int
    below: int  # the truth lies below the interval, and above it
    above: int


def simulate(cell: Cell, total: int, seed: int) -> Count:
    """Return the results of this number of A/Bs of a cell.

    With several arms, counts the A/Bs in which any arm has the result.
    """
    key = repr(
        (cell.cv, cell.difference, cell.arms, cell.drift, *filter(None, [cell.earlier]))
    )
    random = np.random.default_rng([seed, zlib.crc32(key.encode())])
    counts: Counter[str] = Counter()
    truth = math.log1p(cell.difference)
    for _ in range(total):
        answers = run(cell, random)
        counts["outcomes"] += any(answer.outcome is cell.outcome for answer in answers)
        counts["pairs"] += answers[0].pairs
        estimate = answers[0].estimate
        if estimate is not None:
            counts["below"] += truth < estimate.low
            counts["above"] += truth > estimate.high
    return Count(counts["outcomes"], counts["pairs"], counts["below"], counts["above"])


def _draw_noise(cell: Cell, random: np.random.Generator) -> Noise | None:
    """Return the noise of earlier A/Bs: of the cell's kind, or with any degrees of
    freedom."""
    if cell.earlier == WHOLE:
        answers = [run(cell._replace(earlier=0), random) for _ in range(3)]
        return pool([TrialReport(("a", "b"), each).noise for each in answers])
    if not cell.earlier:
        return None
    return Noise(
        cell.cv * math.sqrt(random.chisquare(cell.earlier) / cell.earlier),
        cell.earlier,
        "",
        measured=True,
    )


def run(cell: Cell, random: np.random.Generator) -> tuple[PairedAnswer, ...]:
    """Return the answers of one A/B in a shared allocation."""
    noise, trials = _draw_noise(cell, random), list[Trial]()
    while isinstance(step := next_step(trials, cell.arms, noise, 0), NextTrial):
        level = math.log1p(cell.difference) * (step.variant > 0) + cell.drift * len(
            trials
        )
        milliseconds = 1000 * math.exp(level + cell.cv * random.standard_normal())
        trials.append(
            Trial(step.variant, TrialOutcome.MEASURED, milliseconds, step.is_warm_up)
        )
    return step


def is_kept(cell: Cell, count: Count, total: int) -> bool:
    """True if a rate is as promised, within chance and printed digits."""
    if cell.pairs is not None and abs(count.pairs / total - cell.pairs) > 0.1:
        return False
    if cell.promised is None:
        return True
    rate = min(max(cell.promised, 0.05), 99.95)
    return (
        abs(100 * count.outcomes / total - cell.promised)
        <= 3 * math.sqrt(2 * rate * (100 - rate) / total) + 0.05
    )


def _make_row(cell: Cell, count: Count, total: int) -> str:
    interval = binomtest(count.outcomes, total).proportion_ci(0.95, "exact")
    kind = f"cv {100 * cell.cv:g} %, {100 * cell.difference:+g} %"
    kind += f", {cell.arms} arms" * (
        cell.arms > 2
    ) + f", drift {100 * cell.drift:g} % a run" * bool(cell.drift)
    kind += (
        ", three earlier A/Bs"
        if cell.earlier == WHOLE
        else f", noise of {cell.earlier:g} degrees" * bool(cell.earlier)
    )
    bounds = f"{100 * interval.low:.3g} to {100 * interval.high:.3g}"
    promised = "-" if cell.promised is None else f"{cell.promised:g}"
    values = f"{100 * count.outcomes / total:.3g} | {bounds} | {promised} | {count.pairs / total:.2f}"
    missed = f"{100 * count.below / total:.2g}, {100 * count.above / total:.2g}"
    return f"| {kind} | {cell.outcome} | {values} | {missed} | {'yes' if is_kept(cell, count, total) else 'NO'} |"


def main() -> int:
    """Print the table with the promises. Returns 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--cases",
        type=int,
        default=10_000,
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
    cells = _make_cells()
    with ProcessPoolExecutor(options.jobs) as pool:
        counts = list(
            pool.map(partial(simulate, total=options.cases, seed=options.seed), cells)
        )
    print(f"A/B in a shared allocation, %, n {options.cases:,} a cell\n")
    print(
        "| what holds | answer | found | 95 % interval | promised | pairs | truth below, above | kept |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows = zip(cells, counts, strict=True)
    print("\n".join(_make_row(cell, count, options.cases) for cell, count in rows))
    return int(
        not all(
            is_kept(cell, count, options.cases)
            for cell, count in zip(cells, counts, strict=True)
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
