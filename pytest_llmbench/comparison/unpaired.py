"""Two sides of runs that share no nodes: how far B is from A, and what of what is known
differs between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.comparison.comparison_records import (
    NODES,
    STARTED,
    FactDifference,
    SideAnswer,
    SideDifferences,
    SideEstimate,
    SideRun,
    UnknownFact,
    VaryingFact,
)
from pytest_llmbench.core import formatting
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.judge import noise
from pytest_llmbench.judge.distributions import compute_quantile
from pytest_llmbench.judge.estimate import POWER
from pytest_llmbench.judge.recorded_runs import Occasion, group_occasions

# of the interval, two-sided; and of each of the two tests that show that sides are
# alike
LEVEL = 0.05

# The sum of the normal quantiles of 97.5 % and 80 %: what shows a difference four times
# out of five.
SHOWN = 2.8

MARGIN = 0.01
"""Sides that differ by less are alike."""


@dataclass(frozen=True, slots=True)
class Sides:
    """One configuration on both sides: at least one run each, and what its nights say
    of the noise."""

    a: tuple[SideRun, ...]
    b: tuple[SideRun, ...]
    nights: Noise | None = None


def compare_all(
    configurations: Mapping[str, Sides], margin: float, assumed_cv: float
) -> dict[str, tuple[SideEstimate, SideDifferences]]:
    """Return for each configuration how far B is from A and what differs; what is known
    of the noise uses all.

    `margin` is a fraction.
    """
    grouped = {
        name: (_group(sides.a), _group(sides.b))
        for name, sides in configurations.items()
    }
    own = {
        name: estimate_pair_noise(*grouped[name], sides.nights)
        for name, sides in configurations.items()
    }
    prior = noise.estimate_from_fleet(
        [each for each in own.values() if each]
    ) or noise.assume_noise(assumed_cv)
    return {
        name: (
            estimate_sides(
                *grouped[name], noise.with_prior(own[name], prior, assumed_cv), margin
            ),
            find_differences(sides.a, sides.b),
        )
        for name, sides in configurations.items()
    }


Groups = Sequence[Sequence[SideRun]]
"""The runs of a side by group: those of one day on one set of nodes are one value,
their mean."""


def _group(runs: Sequence[SideRun]) -> Groups:
    places = group_occasions([Occasion(run.started, run.nodes) for run in runs])
    return [[runs[place] for place in group] for group in places]


def estimate_pair_noise(a: Groups, b: Groups, nights: Noise | None) -> Noise | None:
    """Return what the groups of both sides, each about the mean of its side, and the
    nights of the history say of the noise of a configuration; None where they are too
    few. How far the sides differ says nothing here."""
    return noise.pool([noise.estimate_from_sides([_average(a), _average(b)]), nights])


def estimate_sides(
    a: Groups, b: Groups, run_noise: Noise, margin: float
) -> SideEstimate:
    """Return how far B is from A: the difference of the means of their groups, which
    count alike.

    SLOWER, FASTER: the 95 % interval leaves out 0. ALIKE: the 90 % interval lies within
    the margin (two one-sided tests: Schuirmann, Journal of Pharmacokinetics and
    Biopharmaceutics 15, 1987). CANNOT_TELL: neither. Within-run errors are a floor of
    the standard error. What rounding may do to both sides is added to both ends of an
    interval.
    """
    means_a, means_b = _average(a), _average(b)
    difference = sum(means_b) / len(b) - sum(means_a) / len(a)
    root = math.sqrt(1 / len(a) + 1 / len(b))
    error = max(run_noise.sigma * root, math.hypot(average_error(a), average_error(b)))
    rounding = average_rounding(a) + average_rounding(b)
    freedom = run_noise.degrees_of_freedom
    both_sided, one_sided = (
        compute_quantile(1 - level, freedom) for level in (LEVEL / 2, LEVEL)
    )
    width = both_sided * error + rounding
    low, high = difference - width, difference + width
    limit = math.log1p(margin)
    answer = _choose_answer(
        low, high, abs(difference) + one_sided * error + rounding < limit
    )
    there = len(a), len(b)
    return SideEstimate(
        answer=answer,
        difference=difference,
        low=low,
        high=high,
        standard_error=error,
        degrees_of_freedom=freedom,
        noise=run_noise,
        margin=limit,
        within_margin=-limit < low and high < limit,
        # Rounding may hide as much of a difference as the interval allows for it.
        smallest=formatting.compute_bounded_exp(
            width + compute_quantile(POWER, freedom) * error + rounding
        )
        - 1,
        runs=(sum(map(len, a)), sum(map(len, b))),
        groups=there,
        runs_needed=_count_needed(error / root, limit - 2 * rounding, there)
        if answer is SideAnswer.CANNOT_TELL
        else (0, 0),
        same_nodes=_is_on_same_nodes(a, b),
        rounding=rounding,
    )


def _choose_answer(low: float, high: float, is_within: bool) -> SideAnswer:
    if not (math.isfinite(low) and math.isfinite(high)):
        return SideAnswer.CANNOT_TELL
    if low > 0:
        return SideAnswer.SLOWER
    if high < 0:
        return SideAnswer.FASTER
    return SideAnswer.ALIKE if is_within else SideAnswer.CANNOT_TELL


def _average(groups: Groups) -> list[float]:
    return [
        sum(math.log(run.statistic_seconds) for run in group) / len(group)
        for group in groups
    ]


def average_error(groups: Groups) -> float:
    """Return the standard error of a side's mean by what happens within its runs
    alone."""
    runs = [run for group in groups for run in group]
    return math.sqrt(sum(run.within_error**2 for run in runs)) / len(runs)


def average_rounding(groups: Groups) -> float:
    """Return how far rounding may move a side's mean: it may move all of its runs the
    same way."""
    return sum(
        sum(run.rounding for run in group) / len(group) for group in groups
    ) / len(groups)


def _count_needed(
    sigma: float, limit: float, there: tuple[int, int]
) -> tuple[int, int]:
    """Return how many more runs on each side, on nodes or nights of their own, would
    show a difference of the margin; where the noise is hardly known, as many as there
    should be do not tell, and one more helps. 0 where no number of runs would: rounding
    may hide all of it."""
    if limit <= 0:
        return 0, 0
    needed = math.ceil(2 * (SHOWN * sigma / limit) ** 2) if math.isfinite(sigma) else 0
    more = max(needed - there[0], 0), max(needed - there[1], 0)
    return more if any(more) else (1, 1)


def _is_on_same_nodes(a: Groups, b: Groups) -> bool | None:
    nodes = [run.nodes for side in (a, b) for group in side for run in group]
    return len(set(nodes)) == 1 if all(nodes) else None


# --- what differs ---------------------------------------------------------------------

ALWAYS = (
    "container",
    "commit",
    "driver",
    "global batch size",
    "parallelism",
    NODES,
    STARTED,
)
"""What is always asked for: where a run does not tell it, it is not known to be the
same."""

SIDES = ("A", "B")


def find_differences(a: Sequence[SideRun], b: Sequence[SideRun]) -> SideDifferences:
    """Return what is constant within each side and differs between them, what varies
    within one, and what is unknown.

    A fact counts where every run of both sides tells it. What a run does not tell is
    never taken to be the same.
    """
    sides = [[_list_facts(run) for run in side] for side in (a, b)]
    names = dict.fromkeys(
        (*sorted({name for side in sides for run in side for name in run}), *ALWAYS)
    )
    between, varying, unknown = [], [], []
    for name in sorted(names, key=lambda name: (name not in ALWAYS, name)):
        silent = [
            label
            for label, side in zip(SIDES, sides, strict=True)
            if any(name not in run for run in side)
        ]
        if silent:
            unknown.append(UnknownFact(name, " and ".join(silent)))
            continue
        values = [tuple(sorted({run[name] for run in side})) for side in sides]
        unified = [
            {formatting.unify_fact(name, value) for value in of_side}
            for of_side in values
        ]
        if any(len(of_side) > 1 for of_side in unified):
            varying.append(VaryingFact(name, values[0], values[1]))
        elif unified[0] != unified[1]:
            between.append(FactDifference(name, values[0][0], values[1][0]))
    return SideDifferences(tuple(between), tuple(varying), tuple(unknown))


def _list_facts(run: SideRun) -> dict[str, str]:
    own: Iterable[tuple[str, str]] = (
        (name, value) for name, value in run.facts.items() if value
    )
    nodes = {NODES: formatting.fold_nodes(run.nodes)} if run.nodes else {}
    started = {STARTED: f"{run.started:%Y-%m-%d}"} if run.started else {}
    return {**dict(own), **nodes, **started}
