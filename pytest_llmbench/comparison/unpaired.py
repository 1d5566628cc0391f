"""Estimate the difference of two sides whose runs are not paired.

Also lists the facts that differ between the sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

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
DETECTION_FACTOR = 2.8

MARGIN = 0.01
"""Default margin: sides that differ by less are alike."""


class Sides(Struct, frozen=True):
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

    The noise prior is estimated from all configurations; it is `assumed_cv` if their
    noise is unknown. `margin` is a fraction.
    """
    groups_by_name = {
        name: (_group(sides.a), _group(sides.b))
        for name, sides in configurations.items()
    }
    noise_by_name = {}
    for name, sides in configurations.items():
        groups_a, groups_b = groups_by_name[name]
        noise_by_name[name] = estimate_pair_noise(groups_a, groups_b, sides.daily_noise)
    known_noises = [estimate for estimate in noise_by_name.values() if estimate]
    prior = noise.estimate_from_fleet(known_noises) or noise.assume_noise(assumed_cv)
    answers = {}
    for name, sides in configurations.items():
        groups_a, groups_b = groups_by_name[name]
        run_noise = noise.with_prior(noise_by_name[name], prior, assumed_cv)
        estimate = estimate_sides(groups_a, groups_b, run_noise, margin)
        answers[name] = estimate, find_differences(sides.a, sides.b)
    return answers


Groups = Sequence[Sequence[SideRun]]
"""Runs of a side, grouped by day and node set. A group counts once, with its mean."""


def _group(runs: Sequence[SideRun]) -> Groups:
    """Group the runs of a side by day and node set."""
    occasions = [Occasion(run.started, run.nodes) for run in runs]
    index_groups = group_occasions(occasions)
    return [[runs[index] for index in indices] for indices in index_groups]


def estimate_pair_noise(
    a: Groups, b: Groups, daily_noise: Noise | None
) -> Noise | None:
    """Pool the noise within both sides with that of the stored daily runs.

    Residuals are taken about the mean of each side, so the difference of the sides does
    not contribute. None if there are too few runs.
    """
    noise_within_sides = noise.estimate_from_sides([_average(a), _average(b)])
    return noise.pool([noise_within_sides, daily_noise])


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
    # Standard error of the difference, if the noise of a single group were 1.
    unit_error = math.sqrt(1 / len(a) + 1 / len(b))
    within_run_error = math.hypot(average_error(a), average_error(b))
    error = max(run_noise.sigma * unit_error, within_run_error)
    rounding = average_rounding(a) + average_rounding(b)
    freedom = run_noise.degrees_of_freedom
    two_sided_quantile = compute_quantile(1 - LEVEL / 2, freedom)
    one_sided_quantile = compute_quantile(1 - LEVEL, freedom)
    half_width = two_sided_quantile * error + rounding
    low, high = difference - half_width, difference + half_width
    limit = math.log1p(margin)
    furthest = abs(difference) + one_sided_quantile * error + rounding
    answer = _choose_answer(low, high, is_within=furthest < limit)
    # Rounding may hide as much of a difference as it adds to the interval.
    smallest = half_width + compute_quantile(POWER, freedom) * error + rounding
    group_counts = len(a), len(b)
    # Only an undecided comparison needs more runs. Rounding counts twice: it widens the
    # interval, and may hide as much of the difference.
    runs_needed = 0, 0
    if answer is SideAnswer.CANNOT_TELL:
        runs_needed = _count_needed(
            error / unit_error, limit - 2 * rounding, group_counts
        )
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
        smallest=formatting.compute_bounded_exp(smallest) - 1,
        runs=(sum(map(len, a)), sum(map(len, b))),
        groups=group_counts,
        runs_needed=runs_needed,
        same_nodes=_is_on_same_nodes(a, b),
        rounding=rounding,
    )


def _choose_answer(low: float, high: float, *, is_within: bool) -> SideAnswer:
    """Choose the answer from the 95 % interval of the difference.

    `is_within` is true if the 90 % interval is within the margin.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return SideAnswer.CANNOT_TELL
    if low > 0:
        return SideAnswer.SLOWER
    if high < 0:
        return SideAnswer.FASTER
    return SideAnswer.ALIKE if is_within else SideAnswer.CANNOT_TELL


def _average(groups: Groups) -> list[float]:
    """Return the mean logarithm of the step times of each group."""
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
    means = [sum(run.rounding for run in group) / len(group) for group in groups]
    return sum(means) / len(groups)


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
    if not math.isfinite(sigma):
        return 1, 1
    needed = math.ceil(2 * (DETECTION_FACTOR * sigma / limit) ** 2)
    groups_a, groups_b = groups
    further_a, further_b = max(needed - groups_a, 0), max(needed - groups_b, 0)
    return (further_a, further_b) if further_a or further_b else (1, 1)


def _is_on_same_nodes(a: Groups, b: Groups) -> bool | None:
    """True if all runs used the same nodes; None if the nodes of a run are unknown."""
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
    """List the facts that differ between the sides, vary within a side, or are unknown.

    A fact is compared only if every run of both sides states it. A missing fact is
    never assumed to be equal.
    """
    facts_a, facts_b = [_list_facts(run) for run in a], [_list_facts(run) for run in b]
    names = {name for facts in (*facts_a, *facts_b) for name in facts} | set(ALWAYS)
    differing_facts, varying_facts, unknown_facts = [], [], []
    for name in sorted(names, key=lambda name: (name not in ALWAYS, name)):
        incomplete_sides = [
            label
            for label, facts_of_side in zip(SIDES, (facts_a, facts_b), strict=True)
            if any(name not in facts for facts in facts_of_side)
        ]
        if incomplete_sides:
            unknown_facts.append(UnknownFact(name, " and ".join(incomplete_sides)))
            continue
        values_a = tuple(sorted({facts[name] for facts in facts_a}))
        values_b = tuple(sorted({facts[name] for facts in facts_b}))
        # Different spellings of the same value do not count as a difference.
        unified_a = {formatting.unify_fact(name, value) for value in values_a}
        unified_b = {formatting.unify_fact(name, value) for value in values_b}
        if len(unified_a) > 1 or len(unified_b) > 1:
            varying_facts.append(VaryingFact(name, values_a, values_b))
        elif unified_a != unified_b:
            differing_facts.append(FactDifference(name, values_a[0], values_b[0]))
    return SideDifferences(
        tuple(differing_facts), tuple(varying_facts), tuple(unknown_facts)
    )


def _list_facts(run: SideRun) -> dict[str, str]:
    """Return the known facts of a run, with its nodes and its start day."""
    facts = {name: value for name, value in run.facts.items() if value}
    if run.nodes:
        facts[NODES] = formatting.fold_nodes(run.nodes)
    if run.started:
        facts[STARTED] = f"{run.started:%Y-%m-%d}"
    return facts
