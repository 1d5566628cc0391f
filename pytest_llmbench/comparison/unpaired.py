"""Estimate the difference of two sides whose runs are not paired.

Also lists the facts that differ between the sides.
"""

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

# two-sided level of the interval, and level of each of the two tests for equivalence
LEVEL = 0.05

# Sum of the normal quantiles of 97.5 % and 80 %: a difference of this many standard
# errors is detected with a probability of 80 %.
SHOWN = 2.8

MARGIN = 0.01
"""Default margin: sides that differ by less are alike."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Runs of one configuration on both sides, at least one each.

    `daily_noise` is the noise of its stored daily runs.
    """

    a: tuple[SideRun, ...]
    b: tuple[SideRun, ...]
    daily_noise: Noise | None = None


def compare_all(
    configurations: Mapping[str, Sides], margin: float, assumed_cv: float
) -> dict[str, tuple[SideEstimate, SideDifferences]]:
    """Estimate the differences of all configurations.

    The noise prior is estimated from all of them. `margin` is a fraction.
    """
    grouped = {
        name: (_group(sides.a), _group(sides.b))
        for name, sides in configurations.items()
    }
    estimates = {
        name: estimate_pair_noise(*grouped[name], sides.daily_noise)
        for name, sides in configurations.items()
    }
    prior = noise.estimate_from_fleet(
        [estimate for estimate in estimates.values() if estimate]
    ) or noise.assume_noise(assumed_cv)
    return {
        name: (
            estimate_sides(
                *grouped[name],
                noise.with_prior(estimates[name], prior, assumed_cv),
                margin,
            ),
            find_differences(sides.a, sides.b),
        )
        for name, sides in configurations.items()
    }


Groups = Sequence[Sequence[SideRun]]
"""Runs of a side, grouped by day and node set. A group counts once, with its mean."""


def _group(runs: Sequence[SideRun]) -> Groups:
    groups = group_occasions([Occasion(run.started, run.nodes) for run in runs])
    return [[runs[index] for index in group] for group in groups]


def estimate_pair_noise(
    a: Groups, b: Groups, daily_noise: Noise | None
) -> Noise | None:
    """Pool the noise within both sides with that of the stored daily runs.

    Residuals are taken about the mean of each side, so the difference of the sides does
    not contribute. None if there are too few runs.
    """
    return noise.pool(
        [noise.estimate_from_sides([_average(a), _average(b)]), daily_noise]
    )


def estimate_sides(
    a: Groups, b: Groups, run_noise: Noise, margin: float
) -> SideEstimate:
    """Estimate the difference of B from A, by the means of their groups.

    - SLOWER, FASTER: the 95 % interval excludes 0.
    - ALIKE: the 90 % interval is within the margin (two one-sided tests: Schuirmann,
      Journal of Pharmacokinetics and Biopharmaceutics 15, 1987).
    - CANNOT_TELL: otherwise.

    The within-run error is a floor of the standard error. The rounding bounds of both
    sides are added to both ends of each interval.
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
    group_counts = len(a), len(b)
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
        # Rounding may hide as much of a difference as it adds to the interval.
        smallest=formatting.compute_bounded_exp(
            width + compute_quantile(POWER, freedom) * error + rounding
        )
        - 1,
        runs=(sum(map(len, a)), sum(map(len, b))),
        groups=group_counts,
        runs_needed=_count_needed(error / root, limit - 2 * rounding, group_counts)
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
    """Return the standard error of a side's mean from its within-run errors."""
    runs = [run for group in groups for run in group]
    return math.sqrt(sum(run.within_error**2 for run in runs)) / len(runs)


def average_rounding(groups: Groups) -> float:
    """Return the largest shift of a side's mean by rounding.

    All runs may be rounded in the same direction.
    """
    return sum(
        sum(run.rounding for run in group) / len(group) for group in groups
    ) / len(groups)


def _count_needed(
    sigma: float, limit: float, groups: tuple[int, int]
) -> tuple[int, int]:
    """Count the further runs per side that would show a difference of the margin.

    The runs must be independent: on other nodes or days. (1, 1) if the noise is
    unknown, or if the present runs would suffice by this formula. (0, 0) if no number
    of runs suffices, because rounding may hide the difference.
    """
    if limit <= 0:
        return 0, 0
    needed = math.ceil(2 * (SHOWN * sigma / limit) ** 2) if math.isfinite(sigma) else 0
    more = max(needed - groups[0], 0), max(needed - groups[1], 0)
    return more if any(more) else (1, 1)


def _is_on_same_nodes(a: Groups, b: Groups) -> bool | None:
    nodes = [run.nodes for side in (a, b) for group in side for run in group]
    return len(set(nodes)) == 1 if all(nodes) else None


# --- differing facts ------------------------------------------------------------------

ALWAYS = (
    "container",
    "commit",
    "driver",
    "global batch size",
    "parallelism",
    NODES,
    STARTED,
)
"""Facts that are always listed: as unknown if a run does not state them."""

SIDES = ("A", "B")


def find_differences(a: Sequence[SideRun], b: Sequence[SideRun]) -> SideDifferences:
    """List constant differing facts, varying facts and unknown facts.

    A fact is compared only if every run of both sides states it. A missing fact is
    never assumed to be equal.
    """
    sides = [[_list_facts(run) for run in side] for side in (a, b)]
    names = dict.fromkeys(
        (*sorted({name for side in sides for run in side for name in run}), *ALWAYS)
    )
    between, varying, unknown = [], [], []
    for name in sorted(names, key=lambda name: (name not in ALWAYS, name)):
        missing = [
            label
            for label, side in zip(SIDES, sides, strict=True)
            if any(name not in run for run in side)
        ]
        if missing:
            unknown.append(UnknownFact(name, " and ".join(missing)))
            continue
        values = [tuple(sorted({run[name] for run in side})) for side in sides]
        unified = [
            {formatting.unify_fact(name, value) for value in side_values}
            for side_values in values
        ]
        if any(len(side_values) > 1 for side_values in unified):
            varying.append(VaryingFact(name, values[0], values[1]))
        elif unified[0] != unified[1]:
            between.append(FactDifference(name, values[0][0], values[1][0]))
    return SideDifferences(tuple(between), tuple(varying), tuple(unknown))


def _list_facts(run: SideRun) -> dict[str, str]:
    stated: Iterable[tuple[str, str]] = (
        (name, value) for name, value in run.facts.items() if value
    )
    nodes = {NODES: formatting.fold_nodes(run.nodes)} if run.nodes else {}
    started = {STARTED: f"{run.started:%Y-%m-%d}"} if run.started else {}
    return {**dict(stated), **nodes, **started}
