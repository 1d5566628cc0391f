"""Find slow nodes among the runs of one verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.core.statements import NodeCause, NodeFinding
from pytest_llmbench.judge.estimate import MAX_SPREAD, estimate_noise, estimate_sigma
from pytest_llmbench.judge.run_selection import list_previous_daily_runs

if TYPE_CHECKING:
    from pytest_llmbench.core.statements import RunOnNodes


def judge_nodes(
    judgement: Judgement,
    evidence: Evidence,
    nodes: Mapping[str, Sequence[str]],
    confirmations: Sequence[Measurement] = (),
    known_slow: frozenset[str] = frozenset(),
) -> NodeFinding:
    """Find slow nodes among the runs of a verdict.

    `nodes` maps run ids to node names. `confirmations` are runs on suspect nodes that
    do not count for the verdict. `known_slow` are nodes that were slow in earlier daily
    runs. Empty if the verdict has no estimate.
    """
    if judgement.measurement is None or judgement.estimate is None:
        return NodeFinding()
    runs = judgement.runs
    # Estimated without these runs: a slow node would hide in the spread that it causes.
    sigma = estimate_sigma(
        runs, estimate_noise(evidence, list_previous_daily_runs(runs, evidence))
    )
    valid_runs = (*runs, *(run for run in confirmations if run.valid))
    node_runs = [
        (
            run.run.id,
            run.statistic_seconds or math.nan,
            tuple(nodes.get(run.run.id, ())),
        )
        for run in valid_runs
    ]
    return find_slow_nodes(node_runs, sigma, judgement.bound_seconds, known_slow)


def find_slow_nodes(
    runs: Sequence[RunOnNodes],
    sigma: float,
    bound_seconds: float,
    known_slow: frozenset[str] = frozenset(),
) -> NodeFinding:
    """Find the slow nodes among runs of one configuration.

    `sigma` is the run-to-run standard deviation of log(step time); `bound_seconds` is
    the largest passing step time. Nodes are reported only if a run is slower than a run
    on other nodes by more than 3 sigma sqrt(2). Nodes of fast runs are never reported.
    Nodes of two slow runs are to be excluded, nodes of one slow run are suspects.

    A slow run with `known_slow` nodes is attributed to these nodes alone, and the
    earlier finding counts as a second slow run. If all runs are slow and share no node,
    nodes are not the cause. Empty if a run has unknown nodes or no step time, or if
    there is no clear gap between slow and fast runs.
    """
    is_known = all(
        nodes and math.isfinite(seconds) and seconds > 0 for _, seconds, nodes in runs
    )
    if len(runs) < 2 or not is_known or not (math.isfinite(sigma) and sigma > 0):
        return NodeFinding()
    limit = MAX_SPREAD * sigma
    fastest = min(seconds for _, seconds, _ in runs)
    slow = [run for run in runs if math.log(run[1] / fastest) > limit]
    if not slow:
        return _explain_alike(runs, bound_seconds)
    fast = [run for run in runs if run not in slow]
    if min(math.log(run[1] / other[1]) for run in slow for other in fast) <= limit:
        return NodeFinding()  # no clear gap between slow and fast runs
    return _explain_apart(slow, fast, bound_seconds, known_slow)


def _explain_alike(runs: Sequence[RunOnNodes], bound_seconds: float) -> NodeFinding:
    """Explain runs of similar speed.

    Empty unless all runs exceed the bound.
    """
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
    known_slow: frozenset[str],
) -> NodeFinding:
    """Explain clearly separated slow and fast runs by their nodes."""
    cleared = set(chain.from_iterable(nodes for _, _, nodes in fast))
    if any(cleared.issuperset(nodes) for _, _, nodes in slow):
        return NodeFinding(NodeCause.SAME_NODES, tuple(slow), tuple(fast))
    blamed = [known_slow.intersection(nodes) - cleared or nodes for _, _, nodes in slow]
    counts = Counter(
        node
        for nodes in (*blamed, known_slow & set().union(*blamed))
        for node in nodes
        if node not in cleared
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
