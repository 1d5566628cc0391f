"""Which node is slow: what the runs of many nights, each on nodes of its own, say of
every node.

A synchronous job runs at the speed of its slowest node: y = level + the largest
slowness among its nodes + noise. So one fast run clears all of its nodes, and a slow
run suspects each of them.
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
from pytest_llmbench.judge.change_points import find_level_shifts, find_slow_change
from pytest_llmbench.judge.noise import (
    AROUND,
    FEWEST_DAYS,
    compute_running_median,
    estimate_fleet_correlation,
    estimate_from_daily_runs,
    estimate_from_fleet,
    with_prior,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers

HELD = 0.95  # the suspects hold so much of the posterior
NAMED = 0.99
# levels and changes are estimated, so what is named has to be likelier than what is
# evident
SURE = 1000.0

BAD = 0.03  # so many runs are slow for other causes
WORST = math.log1p(0.35)  # by up to so much, evenly
# so many runs after a bad one, until one is fast: what makes a night bad stays for some
# nights
AGAIN = 0.5
SLOWNESS = np.log1p([0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.125, 0.16])
LARGEST = float(
    SLOWNESS[-1]
)  # a node that is slower still is as suspect: what lies beyond counts as "at least that"
OFTEN = (
    0.98,
    0.5,
)  # a slow node is slow always (but for what a fast run may hide), or on half of the nights

# A configuration may be slower, or faster, from one of its nights on, and nobody told
# it yet: no node.
UNTOLD = 0.2
SHIFTS = np.log1p([-0.01, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12])

PAIRS = 0.02  # two nodes are slow at once, rather than one
# so many suspects are paired with each other: those beyond are far from suspicion
MOST_PAIRED = 32

JOBS = (
    3  # from so many jobs a night on, a regression of all of them shows, and is no node
)
# so many of them, but the fastest, tell it: a quarter, for slow nodes are in few jobs
# of a night
FEW = 4
FAR = 2.0  # a run within so many standard deviations of its level is fast

# The variance of a median, as a part of one value's: pi / 2 for the mean of many.
MEDIAN = 1.57

EQUAL = 1e-12  # a share of pairs below this is none: all nodes are one group

FINE = np.log1p(
    np.arange(0.001, 0.5, 0.001)
)  # where the slowness of a named node is looked for


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run: how slow it was beside its level, and which nodes it had."""

    id: str
    configuration: str
    night: date
    logarithm: float  # of its step time
    level: float  # the median of its configuration's nights, a logarithm
    nights: int  # that the level is the median of
    # the standard deviation of the logarithm from run to run, and how well it is known
    sigma: float
    degrees_of_freedom: float
    nodes: frozenset[str] = frozenset()  # empty where nothing says it
    segment: int = 0  # so many changes of its level were told before this run
    software: Software = frozenset()  # empty where nothing says it


def find_slow_node(runs: Sequence[NodeRun]) -> NodeEvidence:
    """Return what runs say of their nodes; those on unknown nodes only tell what all
    jobs of a night share.

    Evident: the mean over all nodes of the likelihood that this node is slow is at
    least 100 times that of "no node is" (in one history of a hundred chance does that,
    by Ville's inequality, if the noise is known). A node is named with 0.99 of the
    posterior where it is 1000 times, and only where the runs without it leave no other
    cause (`_find_doubt`). Nothing named means that it cannot be told, never that all
    nodes are sound.
    """
    ordered = sorted(runs, key=lambda run: (run.night, run.id))
    groups = _group_nodes(ordered)
    names = frozenset().union(*groups)
    counted = sum(bool(run.nodes) for run in ordered)
    evidence = NodeEvidence(
        len(ordered),
        counted,
        len({run.night for run in ordered}),
        len(names),
        -math.inf,
    )
    if not groups:
        return evidence
    model = _make_model(ordered, groups)
    shares = np.array([len(group) for group in groups]) / len(names)
    single = _average(_add_up(model)) + np.log(shares) + _compare_unstated(model)
    log_ratio = float(np.logaddexp.reduce(single))
    differences = dict(
        zip((run.id for run in ordered), np.expm1(model.rest).tolist(), strict=True)
    )
    evidence = replace(evidence, log_ratio=log_ratio, differences=differences)
    if not evidence.evident:
        return evidence
    suspects = _find_suspects(
        model, ordered, groups, single, shares, log_ratio=log_ratio
    )
    sure = log_ratio >= math.log(SURE)
    named = tuple(
        suspect
        for suspect in suspects
        if sure and suspect.probability >= NAMED and not suspect.doubt
    )
    cleared = len(names) - sum(len(suspect.nodes) for suspect in suspects)
    return replace(evidence, suspects=suspects, named=named, cleared=cleared)


def _group_nodes(runs: Sequence[NodeRun]) -> list[tuple[str, ...]]:
    """Return the nodes, those together that were in exactly the same runs: nothing can
    tell them apart."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        for node in run.nodes:
            places[node].append(place)
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for node in sorted(places):
        groups[tuple(places[node])].append(node)
    return list(map(tuple, groups.values()))


# --- densities ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeModel:
    """The runs as columns, shape (runs,) or (runs, ...)."""

    # how slow each run was, a logarithm, less what all jobs of its night share
    rest: Floats
    sigma: Floats
    freedom: Floats
    member: Flags  # (runs, groups): whether a run had the nodes of a group
    usual: Floats  # the log density of no slowness
    series: tuple[
        list[int], ...
    ]  # the runs of each configuration between two changes of its level, oldest first


def _make_model(
    runs: Sequence[NodeRun], groups: Sequence[tuple[str, ...]]
) -> NodeModel:
    rest = np.array([run.logarithm - run.level for run in runs])
    sigma = np.array([run.sigma * math.sqrt(1 + MEDIAN / run.nights) for run in runs])
    freedom = np.array([run.degrees_of_freedom for run in runs])
    member = np.array(
        [[group[0] in run.nodes for group in groups] for run in runs], dtype=bool
    )
    rest = _subtract_shared(rest, sigma, [run.night for run in runs])
    usual = _compute_log_density(rest, sigma, freedom, np.zeros(1))[:, 0]
    series: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        series[run.configuration, run.segment].append(place)
    return NodeModel(rest, sigma, freedom, member, usual, tuple(series.values()))


def _subtract_shared(rest: Floats, sigma: Floats, nights: Sequence[date]) -> Floats:
    """Return what is left of each run where the jobs of its night are slow together: a
    regression is no node.

    The i-th smallest of n values lies z((i - 3/8) / (n + 1/4)) standard deviations
    above their middle: G. Blom, Statistical Estimates and Transformed Beta Variables,
    1958.
    """
    from scipy.special import ndtri

    left = rest.copy()
    by_night: dict[date, list[int]] = defaultdict(list)
    for place, night in enumerate(nights):
        by_night[night].append(place)
    for places in by_night.values():
        if len(places) >= JOBS:
            rank = max(1, len(places) // FEW)  # from 0: never the fastest
            fast = sorted(places, key=lambda place: float(rest[place]))[rank]
            above = -ndtri((rank + 0.625) / (len(places) + 0.25)) * sigma[fast]
            # Not only where it is beyond chance: nights that lie now above, now below a
            # bound look like a node's.
            left[places] -= max(float(rest[fast] + above), 0.0)
    return left


def _compute_log_density(
    rest: Floats,
    sigma: Floats,
    freedom: Floats,
    shifts: Floats,
    largest: float = LARGEST,
    *,
    often: float = BAD,
) -> Floats:
    """Return the log density of each run if it is slower by each of the shifts, shape
    (runs, shifts).

    Student's t about the shift; and any slowness beyond it, for a bad night has other
    causes. What lies beyond `largest` counts as "at least that": its probability stands
    in place of the density. `often` is the share of bad nights.
    """
    from scipy.special import gammaln, stdtr

    nu, scale = freedom[:, None], sigma[:, None]
    away = rest[:, None] - shifts
    student = (
        gammaln((nu + 1) / 2)
        - gammaln(nu / 2)
        - np.log(np.pi * nu) / 2
        - np.log(scale)
        - (nu + 1) / 2 * np.log1p((away / scale) ** 2 / nu)
    )
    bad = np.where((away > 0) & (away < WORST), often / WORST, 0.0)
    beyond = largest - shifts
    tail = (1 - often) * stdtr(nu, -beyond / scale) + often * np.clip(
        1 - beyond / WORST, 0, 1
    )
    with np.errstate(divide="ignore"):
        density = np.logaddexp(math.log1p(-often) + student, np.log(bad))
        return np.where(rest[:, None] > largest, np.log(tail), density)


def _compare_slow(model: NodeModel) -> Floats:
    """Return by how much likelier each run is with each slowness than without, shape
    (runs, slownesses); logarithms."""
    return (
        _compute_log_density(model.rest, model.sigma, model.freedom, SLOWNESS)
        - model.usual[:, None]
    )


def _mix(slow: Floats) -> Floats:
    """Return the same for a node that is slow often, or always: (runs, slownesses x
    OFTEN)."""
    return np.concatenate(
        [np.logaddexp(math.log(often) + slow, math.log1p(-often)) for often in OFTEN],
        axis=1,
    )


def _add_up(model: NodeModel) -> Floats:
    """Return the log likelihood of each state of each group over "no node", shape
    (groups, states)."""
    return np.asarray(model.member.T.astype(float) @ _mix(_compare_slow(model)))


def _average(states: Floats) -> Floats:
    """Return the log of the mean likelihood over the last axis."""
    return np.asarray(np.logaddexp.reduce(states, axis=-1) - math.log(states.shape[-1]))


def _compare_unstated(model: NodeModel) -> Floats:
    """Return for each group how much likelier the runs without it are than all runs are
    where no node is slow, shape (groups,): each configuration may have changed from one
    of its nights on; logarithms.

    Without it an untold regression of one configuration would be the slowness of
    whichever nodes it had most.
    """
    shifted = (
        _compute_log_density(model.rest, model.sigma, model.freedom, SHIFTS)
        - model.usual[:, None]
    )
    gain = np.zeros(model.member.shape[1])
    for places in model.series:
        of_series = shifted[places][:, None, :]
        gain += _mix_shifts(
            of_series * ~model.member[places][:, :, None]
        ) - _mix_shifts(of_series)
    return gain


def _mix_shifts(shifted: Floats) -> Floats:
    """Return the log likelihood of a change from some run on, or none, of (runs,
    groups, shifts)."""
    from_run_on = np.cumsum(shifted[::-1], axis=0)
    changed = _average(np.moveaxis(from_run_on, 1, 0).reshape(from_run_on.shape[1], -1))
    return np.asarray(np.logaddexp(math.log1p(-UNTOLD), math.log(UNTOLD) + changed))


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
    """Return the groups that hold 95 % of the posterior over one group or two at once,
    the most probable first.

    `single` is the log posterior of each group alone, not normalised, and `log_ratio`
    that of all; `shares` are their shares of the nodes.
    """
    chosen = np.argsort(-single, kind="stable")[:MOST_PAIRED]
    alone, both = _compute_posterior(model, chosen, single, shares)
    marginal = alone + both.sum(axis=0) + both.sum(axis=1)
    order = np.argsort(-marginal, kind="stable")
    count = next(
        (
            count
            for count in range(1, len(order))
            if _add_inside(alone, both, order[:count]) >= HELD
        ),
        len(order),
    )
    return tuple(
        _describe_suspect(
            model,
            runs,
            groups[chosen[place]],
            model.member[:, chosen[place]],
            float(marginal[place]),
            log_ratio=log_ratio,
        )
        for place in order[:count].tolist()
    )


def _compute_posterior(
    model: NodeModel, chosen: Integers, single: Floats, shares: Floats
) -> tuple[Floats, Floats]:
    """Return the probabilities of each chosen group alone, and of each pair of them,
    above the diagonal."""
    untold = _compare_unstated(model)[chosen]
    pairs = _compare_pairs(model, chosen) + untold[:, None] + untold + math.log(PAIRS)
    # All pairs of groups share the prior of a pair by the number of their nodes.
    pairs += np.log(np.outer(shares[chosen], shares[chosen])) - math.log(
        max((1 - float(shares @ shares)) / 2, EQUAL)
    )
    alone = single + math.log1p(-PAIRS)
    total = np.logaddexp(
        np.logaddexp.reduce(alone), np.logaddexp.reduce(pairs, axis=None)
    )
    return np.exp(alone[chosen] - total), np.exp(pairs - total)


def _add_inside(alone: Floats, both: Floats, places: Integers) -> float:
    """Return the probability that all that is slow is among these groups."""
    return float(alone[places].sum() + both[np.ix_(places, places)].sum())


def _compare_pairs(model: NodeModel, chosen: Integers) -> Floats:
    """Return the log likelihood of each pair of groups over "no node", above the
    diagonal; elsewhere -infinity.

    A run with one of the two is as slow as that one, a run with both as the slower one
    that is slow then: so the sum of both is right, but for the runs that they share.
    """
    slow = _compare_slow(model)
    mixed, member = _mix(slow), model.member[:, chosen].astype(float)
    sums = member.T @ mixed
    together = _mix_pairs(slow) - (mixed[:, :, None] + mixed[:, None, :]).reshape(
        len(slow), -1
    )
    pairs = np.full((len(chosen), len(chosen)), -np.inf)
    for first in range(len(chosen) - 1):
        others = slice(first + 1, None)
        rows = np.flatnonzero(member[:, first])
        shared = member[rows, others].T @ together[rows]
        states = (sums[first][None, :, None] + sums[others][:, None, :]).reshape(
            len(shared), -1
        ) + shared
        pairs[first, others] = _average(states)
    return pairs


def _mix_pairs(slow: Floats) -> Floats:
    """Return by how much likelier a run with both nodes is, for each pair of states:
    (runs, states x states)."""
    states = [(often, place) for often in OFTEN for place in range(slow.shape[1])]
    columns = []
    for (often, place), (other_often, other) in product(states, states):
        (larger, first), (smaller, second) = sorted(
            ((place, often), (other, other_often)), reverse=True
        )
        rest = math.log1p(-first)
        columns.append(
            np.logaddexp(
                math.log(first) + slow[:, larger],
                rest
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
    slowness, low, high = _estimate_slowness(model, member)
    slow = member & (model.rest > slowness / 2)
    places = range(len(runs))
    return Suspect(
        nodes=nodes,
        probability=min(probability, 1.0),
        slowness=math.expm1(slowness),
        low=math.expm1(low),
        high=math.expm1(high),
        slow_runs=tuple(runs[place].id for place in places if slow[place]),
        fast_runs=tuple(
            runs[place].id for place in places if member[place] and not slow[place]
        ),
        doubt=_find_doubt(model, runs, slow, member, log_ratio),
    )


def _estimate_slowness(model: NodeModel, member: Flags) -> tuple[float, float, float]:
    """Return the median of the posterior of a node's slowness and its 95 % interval,
    from the runs with it."""
    rest, sigma, freedom = (
        model.rest[member],
        model.sigma[member],
        model.freedom[member],
    )
    density = _compute_log_density(rest, sigma, freedom, np.append(FINE, 0.0), math.inf)
    states = np.sum(_mix(density[:, :-1] - density[:, -1:]), axis=0).reshape(
        len(OFTEN), -1
    )
    likelihood = np.logaddexp.reduce(states, axis=0)
    posterior = np.cumsum(np.exp(likelihood - likelihood.max()))
    median, low, high = (
        float(FINE[np.searchsorted(posterior, share * posterior[-1])])
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
    """Return why the slow runs with a node may have another cause; None where fast runs
    without it rule that out.

    Only runs of the configurations that were slow with it count. A regression that
    nobody told yet makes every later run slow. Bad nights are neighbours, as jobs keep
    their nodes over some nights: slow runs are two witnesses only where something was
    fast between them, or in one of their nights. And what all slow runs ran on, and no
    fast one, may be it.
    """
    places = np.flatnonzero(slow).tolist()
    slow_runs = [runs[place] for place in places]
    configurations = {run.configuration for run in slow_runs}
    fast = [
        run
        for place, run in enumerate(runs)
        if run.nodes
        and not member[place]
        and model.rest[place] <= FAR * model.sigma[place]
        if run.configuration in configurations
    ]
    if not any(run.night >= slow_runs[(len(places) - 1) // 2].night for run in fast):
        return NodeDoubt.NOTHING_FAST_SINCE
    again = [
        second
        for first, second in pairwise(places)
        if _is_next(runs[first], runs[second], fast)
    ]
    lost = (
        _compute_log_density(
            model.rest, model.sigma, model.freedom, np.zeros(1), often=AGAIN
        )[:, 0]
        - model.usual
    )
    few = len(again) == len(places) - 1
    if few or (
        again and log_ratio - np.maximum(lost[again], 0.0).sum() < math.log(SURE)
    ):
        return NodeDoubt.NEIGHBOURS
    software = [run.software for run in slow_runs if run.software]
    shared = frozenset.intersection(*software) if software else frozenset()
    return (
        NodeDoubt.ONE_SOFTWARE
        if shared.difference(*(run.software for run in fast))
        else None
    )


def _is_next(first: NodeRun, second: NodeRun, fast: Sequence[NodeRun]) -> bool:
    """Whether none of these fast runs tells two slow ones apart: one of their
    configurations, between them."""
    configurations = (first.configuration, second.configuration)
    return not any(
        run.configuration in configurations and first.night <= run.night <= second.night
        for run in fast
    )


# --- the runs beside the level of their configurations ---------------------------------


WINDOW = 60  # of so many of the last nights runs are looked at


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """One run of a configuration."""

    id: str
    night: date
    logarithm: float  # of its step time
    nodes: frozenset[str] = frozenset()  # empty where nothing says it
    software: Software = frozenset()  # as above


def compare_with_levels(
    configurations: Mapping[str, Sequence[PlacedRun]], since: date | None = None
) -> tuple[list[NodeRun], tuple[str, ...]]:
    """Return the runs of the last 60 nights beside the level of their configurations;
    and the configurations that cannot be looked at, since they ran on fewer than 8
    nights.

    The level is the median of the nights between two changes, as the nightly judge
    finds them; the noise of a run that of the nights before it (of the first 8 for
    those). Runs before `since` tell level and noise only. Runs of one configuration,
    night and set of nodes are one run, their mean.
    """
    series = {
        name: nights
        for name, runs in configurations.items()
        if (nights := _average_days(runs))
    }
    long = {
        name: made
        for name, nights in series.items()
        if (made := _make_days(nights)) is not None
    }
    correlation = estimate_fleet_correlation(nights.values for nights in long.values())
    prior = estimate_from_fleet([nights.noise for nights in long.values()])
    last = sorted({night for nights in series.values() for night in nights})[-WINDOW:]
    first = max(last[0], since or last[0]) if last else date.max
    placed = [
        run
        for name, nights in long.items()
        for run in _place(
            name,
            _merge_same(configurations[name]),
            _find_levels(nights, prior, correlation),
        )
        if run.night >= first
    ]
    return placed, tuple(sorted(series.keys() - long.keys()))


@dataclass(frozen=True, slots=True)
class ConfigurationDays:
    """The nights of a configuration, oldest first."""

    nights: tuple[date, ...]
    values: Floats  # log seconds, shape (nights,)
    noise: Noise  # of all of them


@dataclass(frozen=True, slots=True)
class DayLevel:
    """What a run of one night is compared with."""

    level: float
    count: int  # of so many nights it is the median
    segment: int  # so many changes lie before it
    noise: Noise


def _make_days(nights: Mapping[date, float]) -> ConfigurationDays | None:
    """Return nights as columns; None for too few of them."""
    values = np.array(list(nights.values()))
    noise = estimate_from_daily_runs(values)
    return None if noise is None else ConfigurationDays(tuple(nights), values, noise)


def _average_days(runs: Sequence[PlacedRun]) -> dict[date, float]:
    """Return the mean of each night, oldest first."""
    by_night: dict[date, list[float]] = defaultdict(list)
    for run in _merge_same(runs):
        by_night[run.night].append(run.logarithm)
    return {
        night: sum(of_one) / len(of_one) for night, of_one in sorted(by_night.items())
    }


def _merge_same(runs: Sequence[PlacedRun]) -> Iterator[PlacedRun]:
    """Yield runs, one for those that share their night and nodes, which say no more
    together than one."""
    together: dict[tuple[date, frozenset[str]], list[PlacedRun]] = defaultdict(list)
    for run in runs:
        together[run.night, run.nodes].append(run)
    for (night, nodes), same in together.items():
        mean = sum(run.logarithm for run in same) / len(same)
        yield PlacedRun(same[-1].id, night, mean, nodes, same[-1].software)


def _place(
    name: str, runs: Iterable[PlacedRun], levels: Mapping[date, DayLevel]
) -> Iterator[NodeRun]:
    for run in runs:
        of_night = levels[run.night]
        yield NodeRun(
            id=run.id,
            configuration=name,
            night=run.night,
            logarithm=run.logarithm,
            level=of_night.level,
            nights=of_night.count,
            sigma=of_night.noise.sigma,
            degrees_of_freedom=of_night.noise.degrees_of_freedom,
            nodes=run.nodes,
            segment=of_night.segment,
            software=run.software,
        )


def _find_levels(
    series: ConfigurationDays, prior: Noise | None, correlation: float
) -> dict[date, DayLevel]:
    levels, counts, segments = _compute_levels(series.values, series.noise, correlation)
    of_nights = {}
    for place, night in enumerate(series.nights):
        own = (
            estimate_from_daily_runs(series.values[: max(place, FEWEST_DAYS)])
            or series.noise
        )
        noise = own if prior is None else with_prior(own, prior, prior.sigma)
        of_nights[night] = DayLevel(
            float(levels[place]), int(counts[place]), int(segments[place]), noise
        )
    return of_nights


def _compute_levels(
    values: Floats, noise: Noise, correlation: float
) -> tuple[Floats, Floats, Floats]:
    """Return the level of each night, of how many nights it is the median, and how many
    changes lie before it, shape (nights,) each."""
    shifts = find_level_shifts(values, noise, correlation=correlation)
    cuts = [0, *(shift.position for shift in shifts), len(values)]
    levels, counts, segments = np.empty((3, len(values)))
    for number, (begin, end) in enumerate(pairwise(cuts)):
        segments[begin:end] = number
        levels[begin:end], counts[begin:end] = (
            compute_median(values[begin:end]),
            end - begin,
        )
    if find_slow_change(values[cuts[-2] :], noise, correlation=correlation) is not None:
        # Below a drift the median of all nights is fast in the beginning and slow in
        # the end.
        last = values[cuts[-2] :]
        levels[cuts[-2] :] = compute_running_median(last, AROUND)
        counts[cuts[-2] :] = min(AROUND, len(last))
    return levels, counts, segments
