"""What the cluster explains: a shift that most configurations share, slow nodes; and
warnings counted together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline, Key
from pytest_llmbench.core.codes import JUDGED
from pytest_llmbench.core.judgement_records import Estimate, Evidence, Judgement
from pytest_llmbench.core.run_records import Measurement, StoredRun
from pytest_llmbench.core.statements import (
    NodeCause,
    NodeFinding,
    SharedShift,
    ShiftReference,
)
from pytest_llmbench.judge.distributions import (
    compute_beta_probability,
    compute_probability,
    compute_quantile,
)
from pytest_llmbench.judge.estimate import APART, estimate_noise, estimate_sigma
from pytest_llmbench.judge.run_selection import list_previous_daily_runs

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats
    from pytest_llmbench.core.statements import RunOnNodes

Name = TypeVar("Name")

COMPARED = 7  # a current run is compared with the median of so many earlier runs
FEWEST = 3  # fewer configurations share nothing

# A configuration has moved if that is significant at this level, one-sided; stricter
# where few are looked at.
LEVEL = 0.05

# the share of days on which chance may move most configurations in one direction
FALSE_ALARMS = 0.0001
SMALLEST = 0.01  # a smaller shared shift is not worth a message


@dataclass(frozen=True, slots=True)
class ConfigurationShift:
    """A configuration with its current runs."""

    key: Key
    estimate: Estimate
    older: tuple[float, ...] = ()  # log(statistic / baseline) of its last runs


def measure_shift(
    judgement: Judgement, older: Sequence[Measurement | StoredRun]
) -> ConfigurationShift | None:
    """Return what one configuration says of a shared shift; None where nothing is known
    of its error.

    `older` are those before the current ones, oldest first; those that are not valid
    tell nothing.
    """
    estimate = judgement.estimate
    if judgement.verdict not in JUDGED or estimate is None or not _is_known(estimate):
        return None
    logarithms = (
        _take_logarithm(run, judgement.baseline) for run in reversed(older) if run.valid
    )
    last = islice(
        (logarithm for logarithm in logarithms if math.isfinite(logarithm)), COMPARED
    )
    return ConfigurationShift(judgement.baseline.key, estimate, tuple(last)[::-1])


def find_shared_shift(
    configurations: Sequence[ConfigurationShift],
) -> SharedShift | None:
    """Return the shift that more than half of the configurations share, None where
    there is none of 1 % or more, or where they moved so unlike that its interval holds
    0.

    Each is compared with its own last runs where at least half have any, and those
    without do not count; else all with their baselines. One has moved if it did so
    significantly; with few configurations at a level that makes chance move most of
    them on fewer than one of 10 000 days. None also means that it cannot be told.
    """
    ordered = sorted(configurations, key=lambda configuration: configuration.key)
    with_older = [configuration for configuration in ordered if configuration.older]
    if len(with_older) >= max(FEWEST, len(ordered) / 2):
        return _summarise(
            with_older, list(map(_subtract_last, with_older)), ShiftReference.LAST_RUNS
        )
    moves = [
        (each.estimate.difference, each.estimate.standard_error) for each in ordered
    ]
    return _summarise(ordered, moves, ShiftReference.BASELINES)


def adjust_p_values(p_values: Mapping[Name, float | None]) -> dict[Name, float]:
    """Return the p-values of "slower than the baseline", adjusted for their number;
    None and NaN are left out.

    Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995: of the
    warnings at an adjusted 5 %, 5 % are expected to be false.
    """
    p_values_known = {
        key: value
        for key, value in p_values.items()
        if value is not None and math.isfinite(value)
    }
    values = np.array(list(p_values_known.values()))
    order = np.argsort(values)[::-1]
    scaled = values[order] * len(values) / np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum.accumulate(scaled)
    return dict(zip(p_values_known, adjusted.tolist(), strict=True))


# --- arithmetic -----------------------------------------------------------------------


def _is_known(estimate: Estimate) -> bool:
    finite = math.isfinite(estimate.difference) and math.isfinite(
        estimate.standard_error
    )
    return finite and estimate.standard_error > 0 and not estimate.threshold_only


def _take_logarithm(measurement: Measurement | StoredRun, baseline: Baseline) -> float:
    seconds = measurement.statistic_seconds
    return (
        math.log(seconds / baseline.step_seconds)
        if seconds and seconds > 0
        else math.nan
    )


def _subtract_last(configuration: ConfigurationShift) -> tuple[float, float]:
    """Return the shift since the last runs and its standard error; the baseline
    cancels.

    The variance of a median is pi / 2 times that of the mean; of one or two values the
    two are the same.
    """
    count = len(configuration.older)
    inefficiency = 1.0 if count < 3 else math.pi / 2
    error = configuration.estimate.standard_error * math.sqrt(
        1 + configuration.estimate.runs * inefficiency / count
    )
    return configuration.estimate.difference - float(
        np.median(configuration.older)
    ), error


def _summarise(
    configurations: Sequence[ConfigurationShift],
    moves: Sequence[tuple[float, float]],
    against: ShiftReference,
) -> SharedShift | None:
    if len(configurations) < FEWEST:
        return None
    shifts, errors = np.array(moves).T
    freedom = np.array(
        [configuration.estimate.degrees_of_freedom for configuration in configurations]
    )
    common, half_width = _pool_shifts(shifts, errors)
    moved = _find_moved(math.copysign(1, common) * shifts / errors, freedom)
    keys = tuple(
        configuration.key
        for configuration, has_moved in zip(configurations, moved, strict=True)
        if has_moved
    )
    if 2 * len(keys) <= len(configurations) or not abs(math.expm1(common)) >= SMALLEST:
        return None
    shift, low, high = (
        math.expm1(common + part) for part in (0, -half_width, half_width)
    )
    if low * high <= 0:  # most have moved, and each by something of its own
        return None
    several = len({configuration.key.recipe for configuration in configurations}) > 1
    return SharedShift(shift, low, high, keys, len(configurations), against, several)


def _find_moved(statistics: Floats, freedom: Floats) -> Flags:
    """Return which of n configurations have moved up, from t statistics of shape (n,),
    as flags of shape (n,).

    The level is that at which chance gives a majority with half the probability
    FALSE_ALARMS (two directions): the quantile of a beta distribution, which is the
    tail of the binomial one.
    """
    majority = len(statistics) // 2 + 1
    tails = map(compute_probability, statistics.tolist(), freedom.tolist())

    def is_beyond(tail: float) -> bool:
        by_chance = compute_beta_probability(
            tail, majority, len(statistics) - majority + 1
        )
        return tail < LEVEL and by_chance < FALSE_ALARMS / 2

    return np.array([is_beyond(tail) for tail in tails])


def _pool_shifts(shifts: Floats, errors: Floats) -> tuple[float, float]:
    """Return the mean of n shifts, weighted by their precision, and the half-width of
    its interval.

    Configurations do not move alike: what they differ by beyond their errors adds to
    each variance (DerSimonian and Laird, Controlled Clinical Trials 7, 1986).
    """
    weights = errors**-2
    mean = np.sum(weights * shifts) / np.sum(weights)
    excess = np.sum(weights * (shifts - mean) ** 2) - (len(shifts) - 1)
    between = max(
        excess / (np.sum(weights) - np.sum(weights**2) / np.sum(weights)), 0.0
    )
    weights = 1 / (errors**2 + between)
    half_width = compute_quantile(1 - LEVEL, len(shifts) - 1.0) / math.sqrt(
        np.sum(weights)
    )
    return float(np.sum(weights * shifts) / np.sum(weights)), half_width


# --- slow nodes -----------------------------------------------------------------------


def judge_nodes(
    judgement: Judgement,
    evidence: Evidence,
    nodes: Mapping[str, Sequence[str]],
    confirmations: Sequence[Measurement] = (),
    named: frozenset[str] = frozenset(),
) -> NodeFinding:
    """Return what the runs behind a verdict say of their nodes, which `nodes` gives by
    the id of a run.

    `confirmations` are runs that were made on suspect nodes, and count for no verdict,
    `named` nodes that earlier nights show. Nothing where the verdict compared nothing.
    """
    if judgement.measurement is None or judgement.estimate is None:
        return NodeFinding()
    runs = judgement.runs
    # The runs themselves tell no noise here: slow nodes among them would hide behind
    # the spread that they make.
    sigma = estimate_sigma(
        runs, estimate_noise(evidence, list_previous_daily_runs(runs, evidence))
    )
    placed = (*runs, *(run for run in confirmations if run.valid))
    node_runs = [
        (
            run.run.id,
            run.statistic_seconds or math.nan,
            tuple(nodes.get(run.run.id, ())),
        )
        for run in placed
    ]
    return find_slow_nodes(node_runs, sigma, judgement.bound_seconds, named)


def find_slow_nodes(
    runs: Sequence[RunOnNodes],
    sigma: float,
    bound_seconds: float,
    named: frozenset[str] = frozenset(),
) -> NodeFinding:
    """Return which nodes are slow, given runs of one configuration.

    `sigma` is the standard deviation of log(step time) from run to run, `bound_seconds`
    the largest step time that passes. Nodes are named only where a run is slower than
    one on other nodes by more than 3 sigma sqrt(2), and only those that no fast run
    had: to be left out are those of two slow runs, suspect those of one. A slow run
    with `named` nodes, which were slow on earlier nights, is theirs, and their second.
    Where all are slow and no node was in all of them, it is not the nodes. With a run
    on unknown nodes, or without a step time, nothing is said.
    """
    is_known = all(
        nodes and math.isfinite(seconds) and seconds > 0 for _, seconds, nodes in runs
    )
    if len(runs) < 2 or not is_known or not (math.isfinite(sigma) and sigma > 0):
        return NodeFinding()
    limit = APART * sigma
    fastest = min(seconds for _, seconds, _ in runs)
    slow = [run for run in runs if math.log(run[1] / fastest) > limit]
    if not slow:
        return _explain_alike(runs, bound_seconds)
    fast = [run for run in runs if run not in slow]
    if min(math.log(run[1] / other[1]) for run in slow for other in fast) <= limit:
        return NodeFinding()  # one in between: where the border lies is a guess
    return _explain_apart(slow, fast, bound_seconds, named)


def _explain_alike(runs: Sequence[RunOnNodes], bound_seconds: float) -> NodeFinding:
    """Return what runs that do not differ say, where all of them are slow."""
    if not all(seconds > bound_seconds for _, seconds, _ in runs):
        return NodeFinding()
    in_all = set.intersection(*(set(nodes) for _, _, nodes in runs))
    return NodeFinding(
        NodeCause.SHARED_NODES if in_all else NodeCause.ALWAYS_SLOW, tuple(runs)
    )


def _explain_apart(
    slow: Sequence[RunOnNodes],
    fast: Sequence[RunOnNodes],
    bound_seconds: float,
    named: frozenset[str],
) -> NodeFinding:
    sound = set(chain.from_iterable(nodes for _, _, nodes in fast))
    if any(sound.issuperset(nodes) for _, _, nodes in slow):
        return NodeFinding(NodeCause.SAME_NODES, tuple(slow), tuple(fast))
    blamed = [named.intersection(nodes) - sound or nodes for _, _, nodes in slow]
    counts = Counter(
        node
        for nodes in (*blamed, named & set().union(*blamed))
        for node in nodes
        if node not in sound
    )
    exclude = tuple(sorted(node for node, count in counts.items() if count > 1))
    suspects = tuple(sorted(node for node, count in counts.items() if count == 1))
    slowest = max(
        (run for run in slow if not counts.keys().isdisjoint(run[2])),
        key=lambda run: run[1],
    )
    return NodeFinding(
        NodeCause.SLOW_NODES,
        tuple(slow),
        tuple(fast),
        exclude,
        suspects,
        again=tuple(sorted(slowest[2])) if suspects else (),
        fast_beyond_bound=all(seconds > bound_seconds for _, seconds, _ in fast),
    )
