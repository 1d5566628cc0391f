"""Error rates of the gate: simulated fleets through the real engine, compared with its
promises.

    python benchmarks/statistics/calibration.py --jobs 2
    python benchmarks/statistics/calibration.py --jobs 2 --scenario kinds --runs 10000

The second command checks the promises of each kind of baseline, and of harder clusters,
with the engine alone. A fleet's random numbers depend on the seed and its own number,
so the table does not depend on the number of jobs.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from fleet import CONFIGURATIONS, Expected, draw, expected, runs
from procedures import PROCEDURES
from scenarios import RUNS, SCENARIOS, TOLERANCE, cases
from scipy.stats import binomtest

from pytest_llmbench.core.codes import Verdict

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

CHANGES = (0.0, 0.02, 0.03, 0.05, 0.07, 0.10)
MARGIN = TOLERANCE.fraction
SHARE = 5
"""Changes other than 0 get one fleet for each so many."""

KINDS = "kinds"
"""All scenarios of OF_KIND, one after the other."""

ONE, THREE, AT_ONCE = list(PROCEDURES)[:3]
VERDICTS = {
    Verdict.PASS: "PASS",
    Verdict.IMPROVEMENT: "PASS",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
    Verdict.REGRESSION: "REGRESSION",
}


class Cell(NamedTuple):
    """One procedure at one size of change."""

    procedure: str
    change: float


Tally = Mapping[Cell, Counter[str]]
"""How many cases there were (""), of each verdict, how many tests failed ("failed"),
and how many runs were made."""


def tally(
    fleets: int,
    scenario: str,
    seed: int,
    jobs: int = 1,
    procedures: Sequence[str] = tuple(PROCEDURES),
) -> Tally:
    """Return the counts over this number of fleets at no change, and a fifth of them at
    other changes."""
    one = partial(fleet_tally, scenario=scenario, seed=seed, procedures=procedures)
    changes = [CHANGES[:1] if number % SHARE else CHANGES for number in range(fleets)]
    with ProcessPoolExecutor(jobs) as pool:
        return added(pool.map(one, range(fleets), changes, chunksize=SHARE))


def fleet_tally(
    number: int,
    changes: Sequence[float],
    scenario: str,
    seed: int,
    procedures: Iterable[str] = PROCEDURES,
) -> Tally:
    """Return the counts of one fleet. Every change slows the same runs."""
    truth, simulated = simulated_fleet(number, seed, scenario)
    counts = {}
    for change in changes:
        fleet_cases = cases(SCENARIOS[scenario], truth, simulated, change)
        for name in procedures:
            cell = counts[Cell(name, change)] = Counter[str]()
            for result in map(PROCEDURES[name], fleet_cases):
                cell.update(("", VERDICTS[result.verdict], *["failed"] * result.failed))
                cell["runs"] += result.runs
    return counts


def simulated_fleet(
    number: int, seed: int, scenario: str = "fleet"
) -> tuple[Expected, Floats]:
    """Return the expected values of a fleet's configurations, and runs of shape (c,
    RUNS, 50)."""
    random = np.random.default_rng([seed, number])
    fleet = draw(random)
    truth, simulated = expected(fleet, random), runs(fleet, RUNS, random)
    return truth, SCENARIOS[scenario].happens(simulated, random)


def added(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of counts."""
    total: dict[Cell, Counter[str]] = {}
    for one in tallies:
        for cell, counts in one.items():
            total.setdefault(cell, Counter()).update(counts)
    return total


# --- promises -------------------------------------------------------------------------


class Promise(NamedTuple):
    """A share of runs in percent with its limits, both included."""

    text: str
    cell: Cell
    what: str
    low: float
    high: float


PROMISES = (
    Promise(
        "no REGRESSION verdict at zero change, one run",
        Cell(ONE, 0.0),
        "REGRESSION",
        0,
        0,
    ),
    Promise(
        "no REGRESSION verdict at zero change, up to three runs",
        Cell(THREE, 0.0),
        "REGRESSION",
        0,
        0,
    ),
    Promise(
        "at most 0.15 % failed tests at zero change, one run",
        Cell(ONE, 0.0),
        "failed",
        0,
        0.15,
    ),
    Promise(
        "at most 0.01 % failed tests at zero change, up to three runs",
        Cell(THREE, 0.0),
        "failed",
        0,
        0.01,
    ),
    Promise("2 to 7 % PASS at the margin, one run", Cell(ONE, MARGIN), "PASS", 2, 7),
    Promise(
        "2 to 7 % PASS at the margin, up to three runs",
        Cell(THREE, MARGIN),
        "PASS",
        2,
        7,
    ),
    Promise("no PASS at +10 %, one run", Cell(ONE, 0.10), "PASS", 0, 0),
    Promise("no PASS at +10 %, up to three runs", Cell(THREE, 0.10), "PASS", 0, 0),
    Promise(
        "at least 99 % REGRESSION at +10 %, up to three runs",
        Cell(THREE, 0.10),
        "REGRESSION",
        99,
        100,
    ),
    Promise(
        "2 to 7 % PASS at the margin, two at once", Cell(AT_ONCE, MARGIN), "PASS", 2, 7
    ),
    Promise(
        "at least 99 % REGRESSION at +10 %, two at once",
        Cell(AT_ONCE, 0.10),
        "REGRESSION",
        99,
        100,
    ),
)
"""Of a baseline that is exact."""


def _promises(
    failed: float, regression: float, least: float = 2.0
) -> tuple[Promise, ...]:
    """Return the promises for a kind of baseline.

    They limit the share of tests that fail without a change (one run), of REGRESSIONs
    at +10 % (up to three runs), and of passes at the margin.
    """
    return (
        Promise(
            "no REGRESSION at zero change, one run", Cell(ONE, 0.0), "REGRESSION", 0, 0
        ),
        Promise(
            "no REGRESSION at zero change, up to three runs",
            Cell(THREE, 0.0),
            "REGRESSION",
            0,
            0,
        ),
        Promise(
            f"at most {failed:g} % failed at zero change, one run",
            Cell(ONE, 0.0),
            "failed",
            0,
            failed,
        ),
        Promise(
            f"{least:g} to 7 % PASS at the margin, one run",
            Cell(ONE, MARGIN),
            "PASS",
            least,
            7,
        ),
        Promise(
            f"{least:g} to 7 % PASS at the margin, up to three runs",
            Cell(THREE, MARGIN),
            "PASS",
            least,
            7,
        ),
        Promise("no PASS at +10 %, one run", Cell(ONE, 0.10), "PASS", 0, 0),
        Promise("no PASS at +10 %, up to three runs", Cell(THREE, 0.10), "PASS", 0, 0),
        Promise(
            f"at least {regression:g} % REGRESSION at +10 %, up to three",
            Cell(THREE, 0.10),
            "REGRESSION",
            regression,
            100,
        ),
    )


OF_SLOW_NODES = (
    Promise(
        "no REGRESSION of a first run on slow nodes, up to three",
        Cell(THREE, 0.0),
        "REGRESSION",
        0,
        0,
    ),
    Promise(
        "no REGRESSION of it where two are made at once",
        Cell(AT_ONCE, 0.0),
        "REGRESSION",
        0,
        0,
    ),
    Promise(
        "no PASS at +10 % behind slow nodes, up to three",
        Cell(THREE, 0.10),
        "PASS",
        0,
        0,
    ),
)
"""Of launches whose first run is on slow nodes."""

OF_KIND = {
    "recorded": _promises(0.15, 98),
    "three": _promises(0.4, 97),
    "single": _promises(0.6, 88),
    "one-night": _promises(0.6, 88),
    "published": _promises(0.4, 98),
    "hard": _promises(1.0, 96),
    "hard-published": _promises(2.0, 95, least=1.0),
    "hiccup": _promises(6.0, 97, least=1.0),
    "noisier": (
        Promise(
            "at most 0.1 % REGRESSION at zero change, one run",
            Cell(ONE, 0.0),
            "REGRESSION",
            0,
            0.1,
        ),
        Promise(
            "at most 9 % PASS at the margin, one run", Cell(ONE, MARGIN), "PASS", 0, 9
        ),
        Promise("no PASS at +10 %, one run", Cell(ONE, 0.10), "PASS", 0, 0),
    ),
    "stalls": (
        Promise(
            "at least 99.9 % failed at zero change, one run",
            Cell(ONE, 0.0),
            "failed",
            99.9,
            100,
        ),
    ),
}
"""Of the scenarios in which a baseline is not exact, a cluster harder, or a run has a
hiccup."""


def kept(promise: Promise, counts: Tally) -> bool:
    """True if the share is within the limits; False without any run."""
    cell = counts[promise.cell]
    return (
        cell[""] > 0
        and promise.low <= 100 * cell[promise.what] / cell[""] <= promise.high
    )


# --- words ----------------------------------------------------------------------------


def table(counts: Tally) -> str:
    """Return the results as two Markdown tables: the verdicts, and the tests that
    fail."""
    names = list(dict.fromkeys(cell.procedure for cell in counts))
    verdicts = [
        _row(name, counts, ("PASS", "INCONCLUSIVE", "REGRESSION")) for name in names
    ]
    failed = [_row(name, counts, ("failed",)) for name in names]
    launches = [
        name
        for name in names
        if counts[Cell(name, 0.0)]["runs"] > counts[Cell(name, 0.0)][""]
    ]
    made = [
        _line(
            name,
            [f"{_average_runs(counts[Cell(name, change)]):.2f}" for change in CHANGES],
        )
        for name in launches
    ]
    return "\n".join(
        [
            *_head("PASS / INCONCLUSIVE / REGRESSION in %", counts),
            *verdicts,
            "",
            *_head("failed tests in %", counts),
            *failed,
            *(["", *_head("runs of a launch", counts), *made] if made else []),
        ]
    )


def _average_runs(cell: Counter[str]) -> float:
    return cell["runs"] / cell[""]


def _head(title: str, counts: Tally) -> list[str]:
    shown = [f"{change * 100:+.0f} %" if change else "no change" for change in CHANGES]
    numbers = [f"{counts[Cell(ONE, change)]['']:,}" for change in CHANGES]
    return [
        _line(title, shown),
        _line("---", ["---"] * len(CHANGES)),
        _line("runs", numbers),
    ]


def _row(name: str, counts: Tally, what: Sequence[str]) -> str:
    cells = [counts[Cell(name, change)] for change in CHANGES]
    return _line(
        name,
        [" / ".join(percent(cell[one], cell[""]) for one in what) for cell in cells],
    )


def _line(first: str, others: Sequence[str]) -> str:
    return f"| {' | '.join((first, *others))} |"


def percent(count: int, total: int) -> str:
    """Format a share in percent, with two digits of the distance to 0 or 100.

    Only none and all are printed as 0 and 100.
    """
    share = 100 * count / total
    rare = min(share, 100 - share)
    decimals = 0 if rare == 0 else max(1, 1 - math.floor(math.log10(rare)))
    return f"{share:.{decimals}f}"


def check_promise(promise: Promise, counts: Tally) -> str:
    """Return whether a promise was kept, with the count and its 95 % interval (Clopper
    and Pearson, Biometrika 26)."""
    cell = counts[promise.cell]
    count, total = cell[promise.what], cell[""]
    interval = binomtest(count, total).proportion_ci(0.95, "exact")
    answer = "yes" if kept(promise, counts) else "NO"
    found = f"{count:,} of {total:,}, {percent(count, total)} %"
    return _line(
        promise.text,
        [answer, found, f"{interval.low * 100:.3g} to {interval.high * 100:.3g} %"],
    )


def main() -> int:
    """Print the requested tables and promises. Returns 1 if a promise is broken."""
    options = _options()
    fleets = math.ceil(options.runs / CONFIGURATIONS)
    broken = False
    for scenario in OF_KIND if options.scenario == KINDS else (options.scenario,):
        few = (
            (ONE, THREE)
            if scenario in OF_KIND
            else (ONE, THREE, AT_ONCE)
            if scenario == "slow-node"
            else ()
        )
        counts = tally(
            fleets, scenario, options.seed, options.jobs, few or tuple(PROCEDURES)
        )
        promises = {"fleet": PROMISES, "slow-node": OF_SLOW_NODES, **OF_KIND}.get(
            scenario, ()
        )
        print(
            f"\n### {scenario}\n" if options.scenario == KINDS else "",
            table(counts),
            sep="\n",
            flush=True,
        )
        if promises:
            print("\n| promise | kept | found | 95 % interval |\n|---|---|---|---|")
            print(
                "\n".join(check_promise(promise, counts) for promise in promises),
                flush=True,
            )
        broken = broken or not all(kept(promise, counts) for promise in promises)
    return int(broken)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--runs",
        type=int,
        default=100_000,
        metavar="N",
        help="Runs at zero change (default: %(default)s); a fifth at the others",
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
        "--scenario",
        choices=(*SCENARIOS, KINDS),
        default="fleet",
        help="How the fleet is judged (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
