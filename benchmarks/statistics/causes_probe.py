"""Error rates of `llmbench probe`: simulated runs through the real function.

    python benchmarks/statistics/causes_probe.py --jobs 2

A build has the level of one of the two ends, and gets up to four runs, one after the
other, until the probe decides. Exit code 1 if more than 5 % of the builds at one end
are assigned to the other. The table also has the rate among builds whose ends are shown
to differ, since the probe does not decide for others. A cell's random numbers depend on
the seed and its name.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from pytest_llmbench.core.trial_records import ProbeOutcome
from pytest_llmbench.tools.probe.probe_decision import MOST_RUNS, decide_probe

PROMISED = 0.05


class Cell(NamedTuple):
    """Run-to-run noise, slowdown of the bad end, and number of runs of each end."""

    cv: float
    change: float
    runs: int


CELLS = tuple(
    map(
        Cell._make,
        product((0.002, 0.005, 0.01, 0.02), (0.01, 0.02, 0.03, 0.05, 0.1), (2, 3, 4)),
    )
)


class Count(NamedTuple):
    """The counts of a cell, for bad and for good builds."""

    wrong: tuple[
        int, int
    ]  # a bad build that was called good, a good one that was called bad
    right: tuple[int, int]
    told: tuple[int, int]  # those whose ends were shown to differ
    runs: int  # of both


def simulate(cell: Cell, total: int, seed: int) -> Count:
    """Return the answers for this number of bad and good builds, each with its own
    ends."""
    random = np.random.default_rng([seed, zlib.crc32(repr(tuple(cell)).encode())])
    counts: Counter[tuple[bool, ProbeOutcome]] = Counter()
    runs = 0
    for is_bad in (True, False):
        for _ in range(total):
            outcome, number = probe(cell, is_bad, random)
            counts[is_bad, outcome] += 1
            runs += number if outcome is not ProbeOutcome.ENDS_ALIKE else 0
    answers = {True: ProbeOutcome.SLOWER, False: ProbeOutcome.NOT_SLOWER}
    return Count(
        (counts[True, answers[False]], counts[False, answers[True]]),
        (counts[True, answers[True]], counts[False, answers[False]]),
        (
            total - counts[True, ProbeOutcome.ENDS_ALIKE],
            total - counts[False, ProbeOutcome.ENDS_ALIKE],
        ),
        runs,
    )


def probe(
    cell: Cell, is_bad: bool, random: np.random.Generator
) -> tuple[ProbeOutcome, int]:
    """Return the final answer for a build, and the number of its runs."""
    slower = math.log1p(cell.change)
    good = (cell.cv * random.standard_normal(cell.runs)).tolist()
    bad = (slower + cell.cv * random.standard_normal(cell.runs)).tolist()
    new: list[float] = []
    while True:
        new.append(slower * is_bad + cell.cv * random.standard_normal())
        outcome = decide_probe(good, bad, new)[0]
        if outcome is not ProbeOutcome.CANNOT_TELL or len(new) >= MOST_RUNS:
            return outcome, len(new)


def is_kept(count: Count, total: int) -> bool:
    """True if the error rate is as promised, within chance."""
    return max(count.wrong) <= PROMISED * total + 3 * math.sqrt(
        PROMISED * (1 - PROMISED) * total
    )


def _make_row(cell: Cell, count: Count, total: int) -> str:
    kind = f"cv {100 * cell.cv:g} %, {100 * cell.change:+g} %, {cell.runs} runs an end"
    wrong = " | ".join(
        f"{100 * number / total:.2g} ({100 * binomtest(number, total).proportion_ci(0.95, 'exact').high:.2g})"
        for number in count.wrong
    )
    decided = sum(count.told)
    of_told = " | ".join(
        f"{100 * number / of:.2g}" if of else "-"
        for number, of in zip(count.wrong, count.told, strict=True)
    )
    right = 100 * sum(count.right) / (2 * total)
    taken = f"{count.runs / decided:.2f}" if decided else "-"
    alike = 100 - 100 * decided / (2 * total)
    kept = "yes" if is_kept(count, total) else "NO"
    return f"| {kind} | {wrong} | {of_told} | {right:.3g} | {alike:.3g} | {taken} | {kept} |"


def main() -> int:
    """Print the table. Returns 1 if there are more errors than promised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--cases",
        type=int,
        default=4_000,
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
    print(
        f"a build at the level of one end, up to {MOST_RUNS} runs, %, n {options.cases:,} of each kind a cell\n"
    )
    heads = "bad called good (95 %) | good called bad (95 %) | of those told | the same | right | ends alike | runs"
    print(f"| what holds | {heads} | kept |\n|---|---|---|---|---|---|---|---|---|")
    print(
        "\n".join(
            _make_row(cell, count, options.cases)
            for cell, count in zip(CELLS, counts, strict=True)
        )
    )
    return int(not all(is_kept(count, options.cases) for count in counts))


if __name__ == "__main__":
    raise SystemExit(main())
