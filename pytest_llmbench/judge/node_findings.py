"""The slow nodes of the runs behind one verdict, by their step times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.core.statements import NodeCause, NodeFinding
from pytest_llmbench.judge.estimate import APART, estimate_noise, estimate_sigma
from pytest_llmbench.judge.run_selection import list_previous_daily_runs

if TYPE_CHECKING:
    from pytest_llmbench.core.statements import RunOnNodes


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
