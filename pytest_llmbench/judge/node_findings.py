"""Find slow nodes among the runs of one verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter

from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.core.statements import NodeCause, NodeFinding, RunOnNodes
from pytest_llmbench.judge.estimate import MAX_SPREAD, estimate_noise, estimate_sigma
from pytest_llmbench.judge.run_selection import list_previous_daily_runs


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
    previous = list_previous_daily_runs(runs, evidence)
    sigma = estimate_sigma(runs, estimate_noise(evidence, previous))
    valid_runs = (*runs, *(run for run in confirmations if run.valid))
    node_runs = [
        RunOnNodes(
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
    are_runs_known = all(
        run.nodes and math.isfinite(run.seconds) and run.seconds > 0 for run in runs
    )
    is_sigma_known = math.isfinite(sigma) and sigma > 0
    if len(runs) < 2 or not are_runs_known or not is_sigma_known:
        return NodeFinding()
    limit = MAX_SPREAD * sigma
    fastest = min(run.seconds for run in runs)
    slow = [run for run in runs if math.log(run.seconds / fastest) > limit]
    if not slow:
        return _explain_similar_runs(runs, bound_seconds)
    fast = [run for run in runs if run not in slow]
    fastest_slow = min(run.seconds for run in slow)
    slowest_fast = max(run.seconds for run in fast)
    if math.log(fastest_slow / slowest_fast) <= limit:
        return NodeFinding()  # no clear gap between slow and fast runs
    return _explain_separate_runs(slow, fast, bound_seconds, known_slow)


def _explain_similar_runs(
    runs: Sequence[RunOnNodes], bound_seconds: float
) -> NodeFinding:
    """Explain runs of similar speed.

    Empty unless all runs exceed the bound.
    """
    if not all(run.seconds > bound_seconds for run in runs):
        return NodeFinding()
    shared_nodes = set.intersection(*(set(run.nodes) for run in runs))
    cause = NodeCause.SHARED_NODES if shared_nodes else NodeCause.ALWAYS_SLOW
    return NodeFinding(cause, tuple(runs))


def _explain_separate_runs(
    slow: Sequence[RunOnNodes],
    fast: Sequence[RunOnNodes],
    bound_seconds: float,
    known_slow: frozenset[str],
) -> NodeFinding:
    """Explain clearly separated slow and fast runs by their nodes."""
    # a fast run shows that none of its nodes is slow
    cleared = set(chain.from_iterable(run.nodes for run in fast))
    # A run was slow although each of its nodes was in a fast run.
    if any(cleared.issuperset(run.nodes) for run in slow):
        return NodeFinding(NodeCause.SAME_NODES, tuple(slow), tuple(fast))
    # in how many slow runs each node is blamed
    counts: Counter[str] = Counter()
    for run in slow:
        known_slow_nodes = known_slow.intersection(run.nodes) - cleared
        suspect_nodes = [node for node in run.nodes if node not in cleared]
        counts.update(known_slow_nodes or suspect_nodes)
    # An earlier finding about a node counts like one more slow run on this node.
    counts.update(known_slow.intersection(counts))
    exclude = tuple(sorted(node for node, count in counts.items() if count > 1))
    suspects = tuple(sorted(node for node, count in counts.items() if count == 1))
    # One more run on the nodes of the slowest run with such a node tests the suspects.
    with_blamed_node = [run for run in slow if not counts.keys().isdisjoint(run.nodes)]
    slowest = max(with_blamed_node, key=attrgetter("seconds"))
    return NodeFinding(
        NodeCause.SLOW_NODES,
        tuple(slow),
        tuple(fast),
        exclude,
        suspects,
        again=tuple(sorted(slowest.nodes)) if suspects else (),
        fast_beyond_bound=all(run.seconds > bound_seconds for run in fast),
    )
