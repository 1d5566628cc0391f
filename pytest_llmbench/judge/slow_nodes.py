"""Identify slow nodes from the runs of many days on changing nodes.

A synchronous job runs at the speed of its slowest node: y = level + max(slowness of its
nodes) + noise. One fast run therefore clears all of its nodes, and a slow run makes
each of them suspect.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

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


class NodeRun(Struct, frozen=True):
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
    evidence = NodeEvidence(
        runs=len(ordered),
        runs_with_nodes=sum(bool(run.nodes) for run in ordered),
        nights=len({run.day for run in ordered}),
        nodes=len(names),
        log_ratio=-math.inf,
    )
    if not groups:
        return evidence
    model = _make_model(ordered, groups)
    shares = np.array([len(group) for group in groups]) / len(names)
    # the unnormalised log posterior of each group, if it alone is slow
    log_posterior = (
        _average_likelihood(_compute_state_ratios(model))
        + np.log(shares)
        + _compute_shift_evidence(model)
    )
    log_ratio = float(np.logaddexp.reduce(log_posterior))
    ids = [run.id for run in ordered]
    slowness_of_runs = np.expm1(model.residuals).tolist()
    differences = dict(zip(ids, slowness_of_runs, strict=True))
    evidence = replace(evidence, log_ratio=log_ratio, differences=differences)
    if not evidence.evident:  # a ratio below 100 may be chance
        return evidence
    suspects = _find_suspects(
        model, ordered, groups, log_posterior, shares, log_ratio=log_ratio
    )
    named: tuple[Suspect, ...] = ()
    if log_ratio >= math.log(NAMED_RATIO):
        named = tuple(
            suspect
            for suspect in suspects
            if suspect.probability >= NAMED_PROBABILITY and not suspect.doubt
        )
    cleared = len(names) - sum(len(suspect.nodes) for suspect in suspects)
    return replace(evidence, suspects=suspects, named=named, cleared=cleared)


def _group_nodes(runs: Sequence[NodeRun]) -> list[tuple[str, ...]]:
    """Group nodes that were in exactly the same runs.

    Such nodes cannot be distinguished.
    """
    runs_of_node: dict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        for node in run.nodes:
            runs_of_node[node].append(index)
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for node in sorted(runs_of_node):
        groups[tuple(runs_of_node[node])].append(node)
    return list(map(tuple, groups.values()))


# --- densities ------------------------------------------------------------------------


class NodeModel(Struct, frozen=True):
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
    # All nodes of a group were in the same runs, so one represents the group.
    representatives = [group[0] for group in groups]
    member = np.array(
        [[node in run.nodes for node in representatives] for run in runs], dtype=bool
    )
    residuals = _subtract_shared(residuals, sigma, [run.day for run in runs])
    null_density = _compute_log_density(residuals, sigma, freedom, np.zeros(1))[:, 0]
    series: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        series[run.configuration, run.segment].append(index)
    return NodeModel(
        residuals=residuals,
        sigma=sigma,
        freedom=freedom,
        member=member,
        null_density=null_density,
        series=tuple(series.values()),
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
            fastest_first = sorted(indices, key=lambda index: float(residuals[index]))
            fast_job = fastest_first[rank]
            # Blom's (i - 3/8) for i = rank + 1; the job is expected below its level.
            quantile = (rank + 0.625) / (len(indices) + 0.25)
            expected = ndtri(quantile) * sigma[fast_job]
            # Subtract also an insignificant slowdown: days that alternate around a
            # limit would look like a node's.
            remaining[indices] -= max(float(residuals[fast_job] - expected), 0.0)
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
    can_be_bad = (distance > 0) & (distance < MAX_BAD_SLOWNESS)
    bad = np.where(can_be_bad, bad_share / MAX_BAD_SLOWNESS, 0.0)
    # the probability of each part to exceed `largest`
    beyond = largest - shifts
    student_tail = stdtr(nu, -beyond / scale)
    bad_tail = np.clip(1 - beyond / MAX_BAD_SLOWNESS, 0, 1)
    tail = (1 - bad_share) * student_tail + bad_share * bad_tail
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

    One column per state (duty cycle, slowness), shape (runs, states). `slow` has shape
    (runs, slownesses).
    """
    # a run is slow with probability `duty`, otherwise its ratio is 1
    ratios = [
        np.logaddexp(math.log(duty) + slow, math.log1p(-duty)) for duty in DUTY_CYCLES
    ]
    return np.concatenate(ratios, axis=1)


def _compute_state_ratios(model: NodeModel) -> Floats:
    """Return the log likelihood ratio of each state of each group, over all its runs.

    Shape (groups, states), relative to "no node is slow".
    """
    ratios_of_runs = _mix_duty_cycles(_compute_slow_ratios(model))
    return np.asarray(model.member.T.astype(float) @ ratios_of_runs)


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
        all_runs = shifted[indices][:, None, :]
        # a run with the group gets the log ratio 0: it contributes nothing
        without_group = all_runs * ~model.member[indices][:, :, None]
        gain += _mix_shifts(without_group) - _mix_shifts(all_runs)
    return gain


def _mix_shifts(shifted: Floats) -> Floats:
    """Return the log likelihood of a shift from some run on, or of none.

    Averages over the shifts and the first run. `shifted` has shape (runs, groups,
    shifts).
    """
    from_run_on = np.cumsum(shifted[::-1], axis=0)
    # one row per group: all first runs and shifts
    by_group = np.moveaxis(from_run_on, 1, 0).reshape(from_run_on.shape[1], -1)
    with_shift = math.log(UNREPORTED_SHIFT) + _average_likelihood(by_group)
    without_shift = math.log1p(-UNREPORTED_SHIFT)
    return np.asarray(np.logaddexp(without_shift, with_shift))


# --- the posterior --------------------------------------------------------------------


def _find_suspects(
    model: NodeModel,
    runs: Sequence[NodeRun],
    groups: Sequence[tuple[str, ...]],
    log_posterior: Floats,
    shares: Floats,
    *,
    log_ratio: float,
) -> tuple[Suspect, ...]:
    """Return the groups that contain 95 % of the posterior, most probable first.

    The posterior covers one slow group, or two at once. `log_posterior` is the
    unnormalised log posterior of each group alone, and `log_ratio` their log sum.
    `shares` are the groups' shares of the nodes.
    """
    # the most probable groups; all others are too unlikely to be paired
    chosen = np.argsort(-log_posterior, kind="stable")[:MOST_PAIRED]
    alone, pairs = _compute_posterior(model, chosen, log_posterior, shares)
    # the probability that a group is slow, alone or with another group
    marginal = alone + pairs.sum(axis=0) + pairs.sum(axis=1)
    order = np.argsort(-marginal, kind="stable")
    count = 1
    while (
        count < len(order)
        and _sum_posterior(alone, pairs, order[:count]) < CREDIBLE_SHARE
    ):
        count += 1
    suspects = []
    for index in order[:count].tolist():
        group = chosen[index]
        suspects.append(
            _describe_suspect(
                model,
                runs,
                groups[group],
                model.member[:, group],
                float(marginal[index]),
                log_ratio=log_ratio,
            )
        )
    return tuple(suspects)


def _compute_posterior(
    model: NodeModel, chosen: Integers, log_posterior: Floats, shares: Floats
) -> tuple[Floats, Floats]:
    """Return the posterior of each chosen group alone, and of each pair of them.

    `chosen` are the indices of the most probable groups. The pairs have the shape
    (chosen, chosen); their values are above the diagonal.
    """
    unreported = _compute_shift_evidence(model)[chosen]
    pairs = (
        _compute_pair_ratios(model, chosen)
        + unreported[:, None]
        + unreported
        + math.log(PAIR_PRIOR)
    )
    # All pairs together have the prior PAIR_PRIOR, in proportion to their nodes.
    pair_shares = np.outer(shares[chosen], shares[chosen])
    # the sum of the products of shares over all pairs of groups, also unlikely ones
    all_pairs_share = max((1 - float(shares @ shares)) / 2, MIN_PAIR_SHARE)
    pairs += np.log(pair_shares) - math.log(all_pairs_share)
    alone = log_posterior + math.log1p(-PAIR_PRIOR)
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
    # the exact ratio of a shared run minus the sum of both groups, per pair of states
    sum_of_both = (mixed[:, :, None] + mixed[:, None, :]).reshape(len(slow), -1)
    correction = _mix_pairs(slow) - sum_of_both
    pairs = np.full((len(chosen), len(chosen)), -np.inf)
    for first in range(len(chosen) - 1):
        later = slice(first + 1, None)
        rows = np.flatnonzero(member[:, first])
        shared_correction = member[rows, later].T @ correction[rows]
        sums_of_pairs = sums[first][None, :, None] + sums[later][:, None, :]
        states = sums_of_pairs.reshape(len(shared_correction), -1) + shared_correction
        pairs[first, later] = _average_likelihood(states)
    return pairs


def _mix_pairs(slow: Floats) -> Floats:
    """Return the log likelihood ratio of runs with both nodes of a pair.

    One column per pair of states, shape (runs, states x states).
    """
    # A larger index is a larger slowness. The order of states is that of
    # `_mix_duty_cycles`.
    states = [(index, duty) for duty in DUTY_CYCLES for index in range(slow.shape[1])]
    columns = []
    for state, other_state in product(states, states):
        (smaller, smaller_duty), (larger, larger_duty) = sorted((state, other_state))
        # as slow as the slower node; if that node is fast, as slow as the other one
        larger_slow = math.log(larger_duty) + slow[:, larger]
        smaller_slow = math.log(smaller_duty) + slow[:, smaller]
        only_smaller = np.logaddexp(smaller_slow, math.log1p(-smaller_duty))
        columns.append(
            np.logaddexp(larger_slow, math.log1p(-larger_duty) + only_smaller)
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
    is_slow = member & (model.residuals > slowness / 2)
    is_fast = member & ~is_slow
    return Suspect(
        nodes=nodes,
        probability=min(probability, 1.0),
        slowness=math.expm1(slowness),
        low=math.expm1(low),
        high=math.expm1(high),
        slow_runs=tuple(runs[index].id for index in np.flatnonzero(is_slow).tolist()),
        fast_runs=tuple(runs[index].id for index in np.flatnonzero(is_fast).tolist()),
        doubt=_find_doubt(model, runs, is_slow, member, log_ratio),
    )


def _estimate_slowness(model: NodeModel, member: Flags) -> tuple[float, float, float]:
    """Return the median slowness of a node, and its 95 % interval.

    From the posterior given the runs with the node.
    """
    residuals = model.residuals[member]
    sigma = model.sigma[member]
    freedom = model.freedom[member]
    density = _compute_log_density(
        residuals, sigma, freedom, np.append(SLOWNESS_GRID, 0.0), largest=math.inf
    )
    slow_ratios = density[:, :-1] - density[:, -1:]  # relative to the appended 0
    ratios = np.sum(_mix_duty_cycles(slow_ratios), axis=0)
    states = ratios.reshape(len(DUTY_CYCLES), -1)
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
    is_fast = model.residuals <= FAST_SIGMAS * model.sigma
    fast_runs = [
        runs[index]
        for index in np.flatnonzero(is_fast & ~member).tolist()
        if runs[index].nodes and runs[index].configuration in configurations
    ]
    middle = (len(slow_runs) - 1) // 2
    if not any(run.day >= slow_runs[middle].day for run in fast_runs):
        return NodeDoubt.NOTHING_FAST_SINCE
    # the slow runs that are not independent of the slow run before them
    dependent = [
        second
        for first, second in pairwise(indices)
        if _are_adjacent(runs[first], runs[second], fast_runs)
    ]
    if len(dependent) == len(indices) - 1:
        return NodeDoubt.NEIGHBOURS
    if dependent:
        # Such a run is slow for another cause with a higher probability.
        persistent_density = _compute_log_density(
            model.residuals,
            model.sigma,
            model.freedom,
            np.zeros(1),
            bad_share=BAD_PERSISTENCE,
        )[:, 0]
        explained = persistent_density - model.null_density
        weakened_ratio = log_ratio - np.maximum(explained[dependent], 0.0).sum()
        if weakened_ratio < math.log(NAMED_RATIO):
            return NodeDoubt.NEIGHBOURS
    software = [run.software for run in slow_runs if run.software]
    shared = frozenset.intersection(*software) if software else frozenset()
    if shared.difference(*(run.software for run in fast_runs)):
        return NodeDoubt.ONE_SOFTWARE
    return None


def _are_adjacent(first: NodeRun, second: NodeRun, fast: Sequence[NodeRun]) -> bool:
    """True if no fast run of either configuration lies between two slow runs."""
    configurations = (first.configuration, second.configuration)
    return not any(
        run.configuration in configurations and first.day <= run.day <= second.day
        for run in fast
    )


# --- runs relative to the level of their configurations -------------------------------


WINDOW_DAYS = 60  # number of last days whose runs are analysed


class ConfigurationRun(Struct, frozen=True):
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
    # by configuration: the mean of each day, and the same as columns if they suffice
    means_by_name: dict[str, dict[date, float]] = {}
    days_by_name: dict[str, ConfigurationDays] = {}
    for name, runs in configurations.items():
        means = _average_days(runs)
        if means:
            means_by_name[name] = means
            days = _make_days(means)
            if days is not None:
                days_by_name[name] = days
    correlation = estimate_fleet_correlation(
        days.values for days in days_by_name.values()
    )
    prior = estimate_from_fleet([days.noise for days in days_by_name.values()])
    last_days = sorted(set().union(*means_by_name.values()))[-WINDOW_DAYS:]
    first_day = date.max
    if last_days:
        first_day = max(last_days[0], since or last_days[0])
    node_runs: list[NodeRun] = []
    for name, days in days_by_name.items():
        levels = _find_levels(days, prior, correlation)
        merged = _merge_same_day_and_nodes(configurations[name])
        node_runs += [
            run for run in _make_node_runs(name, merged, levels) if run.day >= first_day
        ]
    return node_runs, tuple(sorted(means_by_name.keys() - days_by_name.keys()))


class ConfigurationDays(Struct, frozen=True):
    """Days of a configuration, oldest first."""

    days: tuple[date, ...]
    values: Floats  # log seconds, shape (days,)
    noise: Noise  # of all days


class DayLevel(Struct, frozen=True):
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
    for run in _merge_same_day_and_nodes(runs):
        by_day[run.day].append(run.logarithm)
    return {
        day: sum(logarithms) / len(logarithms)
        for day, logarithms in sorted(by_day.items())
    }


def _merge_same_day_and_nodes(
    runs: Sequence[ConfigurationRun],
) -> Iterator[ConfigurationRun]:
    """Merge runs with the same day and nodes, which are not independent."""
    groups: dict[tuple[date, frozenset[str]], list[ConfigurationRun]] = defaultdict(
        list
    )
    for run in runs:
        groups[run.day, run.nodes].append(run)
    for (day, nodes), same in groups.items():
        mean = sum(run.logarithm for run in same) / len(same)
        last = same[-1]
        yield ConfigurationRun(
            id=last.id, day=day, logarithm=mean, nodes=nodes, software=last.software
        )


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
        earlier_days = series.values[: max(index, FEWEST_DAYS)]
        noise = estimate_from_daily_runs(earlier_days) or series.noise
        if prior is not None:
            noise = with_prior(noise, prior, prior.sigma)
        day_levels[day] = DayLevel(
            level=float(levels[index]),
            count=int(counts[index]),
            segment=int(segments[index]),
            noise=noise,
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
        levels[begin:end] = compute_median(values[begin:end])
        counts[begin:end] = end - begin
    last_begin = cuts[-2]
    last_segment = values[last_begin:]
    if find_drift(last_segment, noise, correlation=correlation) is not None:
        # During a drift, a single median is too slow at first and too fast at the end.
        levels[last_begin:] = compute_running_median(last_segment, RUNNING_MEDIAN_DAYS)
        counts[last_begin:] = min(RUNNING_MEDIAN_DAYS, len(last_segment))
    return levels, counts, segments
