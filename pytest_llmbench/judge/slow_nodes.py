"""Identify slow nodes from the runs of many days on changing nodes.

A synchronous job runs at the speed of its slowest node: y = level + max(slowness of its
nodes) + noise. One fast run therefore clears all of its nodes, and a slow run makes
each of them suspect.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.node_records import NodeDoubt, NodeEvidence, Software, Suspect
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.judge.change_points import find_drift, find_level_shifts
from pytest_llmbench.judge.noise import (
    FEWEST_DAYS,
    RUNNING_MEDIAN_DAYS,
    compute_running_median,
    estimate_fleet_correlation,
    estimate_from_daily_runs,
    estimate_from_fleet,
    with_prior,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers

CREDIBLE_SHARE = 0.95  # the suspects contain this share of the posterior
NAMED_PROBABILITY = 0.99  # the posterior probability that a node needs to be named
# Likelihood ratio for naming a node. It is larger than that of evident slowness,
# because levels and changes are estimated.
NAMED_RATIO = 1000.0

BAD_SHARE = 0.03  # share of runs that are slow for other causes
# largest log slowness of such runs, uniformly distributed
MAX_BAD_SLOWNESS = math.log1p(0.35)
# Probability of another such run after a bad one, until a run is fast: causes persist
# for some days.
BAD_PERSISTENCE = 0.5
SLOWNESS = np.log1p([0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.125, 0.16])
# A slower node is as suspect: larger values count as "at least this much".
MAX_SLOWNESS = float(SLOWNESS[-1])
# Share of its runs in which a slow node is slow: always, except for an occasional fast
# run, or half of them.
DUTY_CYCLES = (0.98, 0.5)

# Prior probability that a configuration shifted on one of its days and that this is not
# reported yet, so that no node is the cause.
UNREPORTED_SHIFT = 0.2
SHIFTS = np.log1p([-0.01, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12])

PAIR_PRIOR = 0.02  # prior probability that two nodes are slow at once
# number of suspects that are paired; further ones are unlikely
MOST_PAIRED = 32

# the fewest jobs a day that can show a regression of all of them
MIN_DAY_JOBS = 3
# A shared slowdown is read from the fastest 1/4 of the jobs, without the very fastest:
# slow nodes are in few jobs of a day.
FAST_DIVISOR = 4
FAST_SIGMAS = 2.0  # a run within this many standard deviations of its level is fast

# Variance of a median over the variance of a mean: pi / 2 in the limit.
MEDIAN_VARIANCE = 1.57

MIN_PAIR_SHARE = 1e-12  # smallest share of pairs: below, all nodes are one group

# grid of the log slowness of a suspect
SLOWNESS_GRID = np.log1p(np.arange(0.001, 0.5, 0.001))


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run, with the level of its configuration and its nodes."""

    id: str
    configuration: str
    day: date
    logarithm: float  # log step time
    level: float  # median log step time of the configuration's days
    days: int  # number of days in that median
    # run-to-run standard deviation of the log step time, and its degrees of freedom
    sigma: float
    degrees_of_freedom: float
    nodes: frozenset[str] = frozenset()  # empty if unknown
    segment: int = 0  # number of level changes reported before this run
    software: Software = frozenset()  # empty if unknown


def find_slow_node(runs: Sequence[NodeRun]) -> NodeEvidence:
    """Compute the evidence that runs contain for a slow node.

    Runs on unknown nodes only contribute to the shared slowdown of their day.

    The evidence for a slow node is the mean over all nodes of the likelihood that this
    node is slow, over the likelihood that no node is. A slow node is evident from a
    ratio of 100 on: by Ville's inequality, chance reaches it in one of a hundred
    histories, if the noise is known. A node is named if the ratio is at least 1000, its
    posterior probability at least 0.99, and no other cause remains (`_find_doubt`). If
    no node is named, the result is inconclusive; the nodes are not shown to be sound.
    """
    ordered = sorted(runs, key=lambda run: (run.day, run.id))
    groups = _group_nodes(ordered)
    names = frozenset().union(*groups)
    counted = sum(bool(run.nodes) for run in ordered)
    evidence = NodeEvidence(
        len(ordered),
        counted,
        len({run.day for run in ordered}),
        len(names),
        -math.inf,
    )
    if not groups:
        return evidence
    model = _make_model(ordered, groups)
    shares = np.array([len(group) for group in groups]) / len(names)
    single = (
        _average_likelihood(_sum_over_runs(model))
        + np.log(shares)
        + _compute_shift_evidence(model)
    )
    log_ratio = float(np.logaddexp.reduce(single))
    differences = dict(
        zip(
            (run.id for run in ordered), np.expm1(model.residuals).tolist(), strict=True
        )
    )
    evidence = replace(evidence, log_ratio=log_ratio, differences=differences)
    if not evidence.evident:
        return evidence
    suspects = _find_suspects(
        model, ordered, groups, single, shares, log_ratio=log_ratio
    )
    sure = log_ratio >= math.log(NAMED_RATIO)
    named = tuple(
        suspect
        for suspect in suspects
        if sure and suspect.probability >= NAMED_PROBABILITY and not suspect.doubt
    )
    cleared = len(names) - sum(len(suspect.nodes) for suspect in suspects)
    return replace(evidence, suspects=suspects, named=named, cleared=cleared)


def _group_nodes(runs: Sequence[NodeRun]) -> list[tuple[str, ...]]:
    """Group nodes that were in exactly the same runs.

    Such nodes cannot be distinguished.
    """
    indices: dict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        for node in run.nodes:
            indices[node].append(index)
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for node in sorted(indices):
        groups[tuple(indices[node])].append(node)
    return list(map(tuple, groups.values()))


# --- densities ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeModel:
    """Runs as columns, shape (runs,) or (runs, ...)."""

    # log slowness of each run, minus the shared slowdown of its day
    residuals: Floats
    sigma: Floats
    freedom: Floats
    member: Flags  # shape (runs, groups): True if the run used the nodes of the group
    null_density: Floats  # log density without slowness
    # indices of the runs of each configuration between two level changes, oldest first
    series: tuple[list[int], ...]


def _make_model(
    runs: Sequence[NodeRun], groups: Sequence[tuple[str, ...]]
) -> NodeModel:
    """Build the model of runs and groups of nodes that always ran together."""
    residuals = np.array([run.logarithm - run.level for run in runs])
    sigma = np.array(
        [run.sigma * math.sqrt(1 + MEDIAN_VARIANCE / run.days) for run in runs]
    )
    freedom = np.array([run.degrees_of_freedom for run in runs])
    member = np.array(
        [[group[0] in run.nodes for group in groups] for run in runs], dtype=bool
    )
    residuals = _subtract_shared(residuals, sigma, [run.day for run in runs])
    null_density = _compute_log_density(residuals, sigma, freedom, np.zeros(1))[:, 0]
    series: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        series[run.configuration, run.segment].append(index)
    return NodeModel(
        residuals, sigma, freedom, member, null_density, tuple(series.values())
    )


def _subtract_shared(residuals: Floats, sigma: Floats, days: Sequence[date]) -> Floats:
    """Subtract the shared slowdown of each day's jobs.

    A regression that all jobs of a day share is not caused by a node. The i-th smallest
    of n normal values is expected at z((i - 3/8) / (n + 1/4)) standard deviations: G.
    Blom, Statistical Estimates and Transformed Beta Variables, 1958.
    """
    from scipy.special import ndtri

    remaining = residuals.copy()
    by_day: dict[date, list[int]] = defaultdict(list)
    for index, day in enumerate(days):
        by_day[day].append(index)
    for indices in by_day.values():
        if len(indices) >= MIN_DAY_JOBS:
            rank = max(1, len(indices) // FAST_DIVISOR)  # from 0: never the fastest job
            fast = sorted(indices, key=lambda index: float(residuals[index]))[rank]
            above = -ndtri((rank + 0.625) / (len(indices) + 0.25)) * sigma[fast]
            # Subtract also an insignificant slowdown: days that alternate around a
            # limit would look like a node's.
            remaining[indices] -= max(float(residuals[fast] + above), 0.0)
    return remaining


def _compute_log_density(
    residuals: Floats,
    sigma: Floats,
    freedom: Floats,
    shifts: Floats,
    largest: float = MAX_SLOWNESS,
    *,
    bad_share: float = BAD_SHARE,
) -> Floats:
    """Return the log density of each run for each shift, shape (runs, shifts).

    A mixture of Student's t about the shift and, with weight `bad_share`, a uniform
    distribution of slowness beyond it for runs that are slow for other causes. Values
    above `largest` are censored: their density is the probability of exceeding it.
    """
    from scipy.special import gammaln, stdtr

    nu, scale = freedom[:, None], sigma[:, None]
    distance = residuals[:, None] - shifts
    student = (
        gammaln((nu + 1) / 2)
        - gammaln(nu / 2)
        - np.log(np.pi * nu) / 2
        - np.log(scale)
        - (nu + 1) / 2 * np.log1p((distance / scale) ** 2 / nu)
    )
    bad = np.where(
        (distance > 0) & (distance < MAX_BAD_SLOWNESS),
        bad_share / MAX_BAD_SLOWNESS,
        0.0,
    )
    beyond = largest - shifts
    tail = (1 - bad_share) * stdtr(nu, -beyond / scale) + bad_share * np.clip(
        1 - beyond / MAX_BAD_SLOWNESS, 0, 1
    )
    with np.errstate(divide="ignore"):
        density = np.logaddexp(math.log1p(-bad_share) + student, np.log(bad))
        return np.where(residuals[:, None] > largest, np.log(tail), density)


def _compute_slow_ratios(model: NodeModel) -> Floats:
    """Return the log likelihood ratio of each slowness, shape (runs, slownesses).

    Relative to no slowness.
    """
    return (
        _compute_log_density(model.residuals, model.sigma, model.freedom, SLOWNESS)
        - model.null_density[:, None]
    )


def _mix_duty_cycles(slow: Floats) -> Floats:
    """Return log likelihood ratios of intermittent slowness.

    One column per (duty cycle, slowness), shape (runs, duty cycles x slownesses).
    """
    return np.concatenate(
        [
            np.logaddexp(math.log(duty) + slow, math.log1p(-duty))
            for duty in DUTY_CYCLES
        ],
        axis=1,
    )


def _sum_over_runs(model: NodeModel) -> Floats:
    """Return the log likelihood ratio of each state of each group.

    Shape (groups, states), relative to "no node is slow".
    """
    return np.asarray(
        model.member.T.astype(float) @ _mix_duty_cycles(_compute_slow_ratios(model))
    )


def _average_likelihood(states: Floats) -> Floats:
    """Return the log of the mean likelihood over the last axis."""
    return np.asarray(np.logaddexp.reduce(states, axis=-1) - math.log(states.shape[-1]))


def _compute_shift_evidence(model: NodeModel) -> Floats:
    """Return the evidence of unreported shifts for each group, shape (groups,).

    Compares the likelihood of the runs without the group with that of all runs, if each
    configuration may have shifted on one of its days; logarithms. Otherwise an
    unreported regression of one configuration would be attributed to the nodes it used
    most.
    """
    shifted = (
        _compute_log_density(model.residuals, model.sigma, model.freedom, SHIFTS)
        - model.null_density[:, None]
    )
    gain = np.zeros(model.member.shape[1])
    for indices in model.series:
        series = shifted[indices][:, None, :]
        gain += _mix_shifts(series * ~model.member[indices][:, :, None]) - _mix_shifts(
            series
        )
    return gain


def _mix_shifts(shifted: Floats) -> Floats:
    """Return the log likelihood of a shift from some run on, or of none.

    Averages over the shifts and the first run. `shifted` has shape (runs, groups,
    shifts).
    """
    from_run_on = np.cumsum(shifted[::-1], axis=0)
    changed = _average_likelihood(
        np.moveaxis(from_run_on, 1, 0).reshape(from_run_on.shape[1], -1)
    )
    return np.asarray(
        np.logaddexp(
            math.log1p(-UNREPORTED_SHIFT), math.log(UNREPORTED_SHIFT) + changed
        )
    )


# --- the posterior --------------------------------------------------------------------


def _find_suspects(
    model: NodeModel,
    runs: Sequence[NodeRun],
    groups: Sequence[tuple[str, ...]],
    single: Floats,
    shares: Floats,
    *,
    log_ratio: float,
) -> tuple[Suspect, ...]:
    """Return the groups that contain 95 % of the posterior, most probable first.

    The posterior covers one slow group, or two at once. `single` is the unnormalised
    log posterior of each group alone, `log_ratio` their log sum, `shares` the groups'
    shares of the nodes.
    """
    chosen = np.argsort(-single, kind="stable")[:MOST_PAIRED]
    alone, pairs = _compute_posterior(model, chosen, single, shares)
    marginal = alone + pairs.sum(axis=0) + pairs.sum(axis=1)
    order = np.argsort(-marginal, kind="stable")
    count = next(
        (
            count
            for count in range(1, len(order))
            if _sum_posterior(alone, pairs, order[:count]) >= CREDIBLE_SHARE
        ),
        len(order),
    )
    return tuple(
        _describe_suspect(
            model,
            runs,
            groups[chosen[index]],
            model.member[:, chosen[index]],
            float(marginal[index]),
            log_ratio=log_ratio,
        )
        for index in order[:count].tolist()
    )


def _compute_posterior(
    model: NodeModel, chosen: Integers, single: Floats, shares: Floats
) -> tuple[Floats, Floats]:
    """Return the posterior of each chosen group alone, and of each pair.

    Pairs are above the diagonal.
    """
    unreported = _compute_shift_evidence(model)[chosen]
    pairs = (
        _compute_pair_ratios(model, chosen)
        + unreported[:, None]
        + unreported
        + math.log(PAIR_PRIOR)
    )
    # All pairs together have the prior PAIR_PRIOR, in proportion to their nodes.
    pairs += np.log(np.outer(shares[chosen], shares[chosen])) - math.log(
        max((1 - float(shares @ shares)) / 2, MIN_PAIR_SHARE)
    )
    alone = single + math.log1p(-PAIR_PRIOR)
    total = np.logaddexp(
        np.logaddexp.reduce(alone), np.logaddexp.reduce(pairs, axis=None)
    )
    return np.exp(alone[chosen] - total), np.exp(pairs - total)


def _sum_posterior(alone: Floats, pairs: Floats, indices: Integers) -> float:
    """Return the probability that all slow groups are among the groups `indices`."""
    return float(alone[indices].sum() + pairs[np.ix_(indices, indices)].sum())


def _compute_pair_ratios(model: NodeModel, chosen: Integers) -> Floats:
    """Return the log likelihood ratio of each pair of groups, above the diagonal.

    Elsewhere -infinity. A run with one group of the pair is as slow as that group; a
    run with both is as slow as the slower one. The sum of the two groups' ratios is
    therefore exact except for shared runs, which are corrected.
    """
    slow = _compute_slow_ratios(model)
    mixed, member = _mix_duty_cycles(slow), model.member[:, chosen].astype(float)
    sums = member.T @ mixed
    correction = _mix_pairs(slow) - (mixed[:, :, None] + mixed[:, None, :]).reshape(
        len(slow), -1
    )
    pairs = np.full((len(chosen), len(chosen)), -np.inf)
    for first in range(len(chosen) - 1):
        others = slice(first + 1, None)
        rows = np.flatnonzero(member[:, first])
        shared = member[rows, others].T @ correction[rows]
        states = (sums[first][None, :, None] + sums[others][:, None, :]).reshape(
            len(shared), -1
        ) + shared
        pairs[first, others] = _average_likelihood(states)
    return pairs


def _mix_pairs(slow: Floats) -> Floats:
    """Return the log likelihood ratio of runs with both nodes of a pair.

    One column per pair of states, shape (runs, states x states).
    """
    states = [(duty, index) for duty in DUTY_CYCLES for index in range(slow.shape[1])]
    columns = []
    for (duty, index), (other_duty, other) in product(states, states):
        (larger, first), (smaller, second) = sorted(
            ((index, duty), (other, other_duty)), reverse=True
        )
        not_first = math.log1p(-first)
        columns.append(
            np.logaddexp(
                math.log(first) + slow[:, larger],
                not_first
                + np.logaddexp(
                    math.log(second) + slow[:, smaller], math.log1p(-second)
                ),
            )
        )
    return np.stack(columns, axis=1)


def _describe_suspect(
    model: NodeModel,
    runs: Sequence[NodeRun],
    nodes: tuple[str, ...],
    member: Flags,
    probability: float,
    *,
    log_ratio: float,
) -> Suspect:
    """Build the record of suspect nodes: slowness, slow and fast runs, doubt."""
    slowness, low, high = _estimate_slowness(model, member)
    slow = member & (model.residuals > slowness / 2)
    indices = range(len(runs))
    return Suspect(
        nodes=nodes,
        probability=min(probability, 1.0),
        slowness=math.expm1(slowness),
        low=math.expm1(low),
        high=math.expm1(high),
        slow_runs=tuple(runs[index].id for index in indices if slow[index]),
        fast_runs=tuple(
            runs[index].id for index in indices if member[index] and not slow[index]
        ),
        doubt=_find_doubt(model, runs, slow, member, log_ratio),
    )


def _estimate_slowness(model: NodeModel, member: Flags) -> tuple[float, float, float]:
    """Return the median slowness of a node, and its 95 % interval.

    From the posterior given the runs with the node.
    """
    residuals = model.residuals[member]
    sigma = model.sigma[member]
    freedom = model.freedom[member]
    density = _compute_log_density(
        residuals, sigma, freedom, np.append(SLOWNESS_GRID, 0.0), math.inf
    )
    states = np.sum(
        _mix_duty_cycles(density[:, :-1] - density[:, -1:]), axis=0
    ).reshape(len(DUTY_CYCLES), -1)
    likelihood = np.logaddexp.reduce(states, axis=0)
    posterior = np.cumsum(np.exp(likelihood - likelihood.max()))
    median, low, high = (
        float(SLOWNESS_GRID[np.searchsorted(posterior, share * posterior[-1])])
        for share in (0.5, 0.025, 0.975)
    )
    return median, low, high


def _find_doubt(
    model: NodeModel,
    runs: Sequence[NodeRun],
    slow: Flags,
    member: Flags,
    log_ratio: float,
) -> NodeDoubt | None:
    """Return another possible cause of the slow runs with a node.

    None if fast runs without the node rule it out. Only runs of the configurations that
    were slow with the node count.

    - NOTHING_FAST_SINCE: an unreported regression makes every later run slow.
    - NEIGHBOURS: jobs keep their nodes over several bad days. Two slow runs are
      independent only if a run was fast between them, or on the same day.
    - ONE_SOFTWARE: all slow runs share software that no fast run used.
    """
    indices = np.flatnonzero(slow).tolist()
    slow_runs = [runs[index] for index in indices]
    configurations = {run.configuration for run in slow_runs}
    fast = [
        run
        for index, run in enumerate(runs)
        if run.nodes
        and not member[index]
        and model.residuals[index] <= FAST_SIGMAS * model.sigma[index]
        if run.configuration in configurations
    ]
    if not any(run.day >= slow_runs[(len(indices) - 1) // 2].day for run in fast):
        return NodeDoubt.NOTHING_FAST_SINCE
    adjacent = [
        second
        for first, second in pairwise(indices)
        if _are_adjacent(runs[first], runs[second], fast)
    ]
    weakened = (
        _compute_log_density(
            model.residuals,
            model.sigma,
            model.freedom,
            np.zeros(1),
            bad_share=BAD_PERSISTENCE,
        )[:, 0]
        - model.null_density
    )
    all_adjacent = len(adjacent) == len(indices) - 1
    if all_adjacent or (
        adjacent
        and log_ratio - np.maximum(weakened[adjacent], 0.0).sum()
        < math.log(NAMED_RATIO)
    ):
        return NodeDoubt.NEIGHBOURS
    software = [run.software for run in slow_runs if run.software]
    shared = frozenset.intersection(*software) if software else frozenset()
    return (
        NodeDoubt.ONE_SOFTWARE
        if shared.difference(*(run.software for run in fast))
        else None
    )


def _are_adjacent(first: NodeRun, second: NodeRun, fast: Sequence[NodeRun]) -> bool:
    """True if no fast run of either configuration lies between two slow runs."""
    configurations = (first.configuration, second.configuration)
    return not any(
        run.configuration in configurations and first.day <= run.day <= second.day
        for run in fast
    )


# --- runs relative to the level of their configurations -------------------------------


WINDOW_DAYS = 60  # number of last days whose runs are analysed


@dataclass(frozen=True, slots=True)
class ConfigurationRun:
    """Run of a configuration, with its nodes and software."""

    id: str
    day: date
    logarithm: float  # log step time
    nodes: frozenset[str] = frozenset()  # empty if unknown
    software: Software = frozenset()  # empty if unknown


def compare_with_levels(
    configurations: Mapping[str, Sequence[ConfigurationRun]], since: date | None = None
) -> tuple[list[NodeRun], tuple[str, ...]]:
    """Return the runs of the last 60 days with the levels of their configurations.

    Also returns the configurations that are not analysed because they have fewer than 8
    days.

    The level is the median of the days between two changes, found as in the nightly
    verdict. The noise of a run is estimated from the days before it, but at least from
    the first 8 days. Runs before `since` contribute to level and noise only. Runs of
    one configuration, day and node set are averaged.
    """
    series = {
        name: days
        for name, runs in configurations.items()
        if (days := _average_days(runs))
    }
    usable = {
        name: columns
        for name, days in series.items()
        if (columns := _make_days(days)) is not None
    }
    correlation = estimate_fleet_correlation(days.values for days in usable.values())
    prior = estimate_from_fleet([days.noise for days in usable.values()])
    last = sorted({day for days in series.values() for day in days})[-WINDOW_DAYS:]
    first = max(last[0], since or last[0]) if last else date.max
    node_runs = [
        run
        for name, days in usable.items()
        for run in _make_node_runs(
            name,
            _merge_same(configurations[name]),
            _find_levels(days, prior, correlation),
        )
        if run.day >= first
    ]
    return node_runs, tuple(sorted(series.keys() - usable.keys()))


@dataclass(frozen=True, slots=True)
class ConfigurationDays:
    """Days of a configuration, oldest first."""

    days: tuple[date, ...]
    values: Floats  # log seconds, shape (days,)
    noise: Noise  # of all days


@dataclass(frozen=True, slots=True)
class DayLevel:
    """Level and noise that the runs of one day are compared with."""

    level: float
    count: int  # number of days in the median
    segment: int  # number of level changes before
    noise: Noise


def _make_days(days: Mapping[date, float]) -> ConfigurationDays | None:
    """Return days as columns, or None if there are too few."""
    values = np.array(list(days.values()))
    noise = estimate_from_daily_runs(values)
    return None if noise is None else ConfigurationDays(tuple(days), values, noise)


def _average_days(runs: Sequence[ConfigurationRun]) -> dict[date, float]:
    """Return the mean of each day, oldest first."""
    by_day: dict[date, list[float]] = defaultdict(list)
    for run in _merge_same(runs):
        by_day[run.day].append(run.logarithm)
    return {
        day: sum(logarithms) / len(logarithms)
        for day, logarithms in sorted(by_day.items())
    }


def _merge_same(runs: Sequence[ConfigurationRun]) -> Iterator[ConfigurationRun]:
    """Merge runs with the same day and nodes, which are not independent."""
    groups: dict[tuple[date, frozenset[str]], list[ConfigurationRun]] = defaultdict(
        list
    )
    for run in runs:
        groups[run.day, run.nodes].append(run)
    for (day, nodes), same in groups.items():
        mean = sum(run.logarithm for run in same) / len(same)
        yield ConfigurationRun(same[-1].id, day, mean, nodes, same[-1].software)


def _make_node_runs(
    name: str, runs: Iterable[ConfigurationRun], levels: Mapping[date, DayLevel]
) -> Iterator[NodeRun]:
    """Yield the runs of a configuration, each with the level and noise of its day."""
    for run in runs:
        day_level = levels[run.day]
        yield NodeRun(
            id=run.id,
            configuration=name,
            day=run.day,
            logarithm=run.logarithm,
            level=day_level.level,
            days=day_level.count,
            sigma=day_level.noise.sigma,
            degrees_of_freedom=day_level.noise.degrees_of_freedom,
            nodes=run.nodes,
            segment=day_level.segment,
            software=run.software,
        )


def _find_levels(
    series: ConfigurationDays, prior: Noise | None, correlation: float
) -> dict[date, DayLevel]:
    """Return the level and the noise of each day of a configuration."""
    levels, counts, segments = _compute_levels(series.values, series.noise, correlation)
    day_levels = {}
    for index, day in enumerate(series.days):
        own_noise = (
            estimate_from_daily_runs(series.values[: max(index, FEWEST_DAYS)])
            or series.noise
        )
        noise = (
            own_noise if prior is None else with_prior(own_noise, prior, prior.sigma)
        )
        day_levels[day] = DayLevel(
            float(levels[index]), int(counts[index]), int(segments[index]), noise
        )
    return day_levels


def _compute_levels(
    values: Floats, noise: Noise, correlation: float
) -> tuple[Floats, Floats, Floats]:
    """Return the level, its number of days and its segment for each day.

    Shape (days,) each.
    """
    shifts = find_level_shifts(values, noise, correlation=correlation)
    cuts = [0, *(shift.position for shift in shifts), len(values)]
    levels, counts, segments = np.empty((3, len(values)))
    for number, (begin, end) in enumerate(pairwise(cuts)):
        segments[begin:end] = number
        levels[begin:end], counts[begin:end] = (
            compute_median(values[begin:end]),
            end - begin,
        )
    if find_drift(values[cuts[-2] :], noise, correlation=correlation) is not None:
        # During a drift, a single median is too slow at first and too fast at the end.
        last = values[cuts[-2] :]
        levels[cuts[-2] :] = compute_running_median(last, RUNNING_MEDIAN_DAYS)
        counts[cuts[-2] :] = min(RUNNING_MEDIAN_DAYS, len(last))
    return levels, counts, segments
