"""Whether a launch was slow because of its nodes: what runs on different nodes say."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Evidence, Judgement
from pytest_llmbench.judge.daily_runs import list_previous_daily_runs
from pytest_llmbench.judge.estimate import APART, estimate_noise, estimate_sigma

# The id of a run, its step time in seconds, and its nodes (none: unknown).
RunOnNodes = tuple[str, float, tuple[str, ...]]

SHORT = 40  # longer lists of nodes are folded, in quotes: a shell reads brackets as a pattern


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What runs say of their nodes."""

    text: str = ""  # empty where they say nothing
    exclude: tuple[str, ...] = ()  # the nodes that further runs should not get


def judge_nodes(judgement: Judgement, evidence: Evidence, nodes: Mapping[str, Sequence[str]]) -> NodeFinding:
    """Return what the runs behind a verdict say of their nodes, which `nodes` gives by the id of a run.

    Nothing where the verdict compared nothing.
    """
    if judgement.measurement is None or judgement.estimate is None:
        return NodeFinding()
    runs = judgement.runs
    # The runs themselves tell no noise here: slow nodes among them would hide behind the spread that they make.
    sigma = estimate_sigma(runs, estimate_noise(evidence, list_previous_daily_runs(runs, evidence)))
    node_runs = [(run.run.id, run.statistic_seconds or math.nan, tuple(nodes.get(run.run.id, ()))) for run in runs]
    return find_slow_nodes(node_runs, sigma, judgement.bound_seconds)


def find_slow_nodes(runs: Sequence[RunOnNodes], sigma: float, bound_seconds: float) -> NodeFinding:
    """Return which nodes are slow, given runs of one configuration.

    `sigma` is the standard deviation of log(step time) from run to run, `bound_seconds` the largest step time that
    passes. Nodes are named only where a run is slower than one on other nodes by more than 3 sigma sqrt(2), and only
    those that no fast run had. Where all are slow and no node was in all of them, it is not the nodes. With a run on
    unknown nodes, or without a step time, nothing is said.
    """
    is_known = all(nodes and math.isfinite(seconds) and seconds > 0 for _, seconds, nodes in runs)
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
    return _explain_apart(slow, fast, bound_seconds)


def _explain_alike(runs: Sequence[RunOnNodes], bound_seconds: float) -> NodeFinding:
    """Return what runs that do not differ say, where all of them are slow."""
    if not all(seconds > bound_seconds for _, seconds, _ in runs):
        return NodeFinding()
    in_all = set.intersection(*(set(nodes) for _, _, nodes in runs))
    if not in_all:
        where = "; ".join(
            f"{formatting.format_seconds(seconds)} on {formatting.fold_nodes(nodes)}" for _, seconds, nodes in runs
        )
        return NodeFinding(f"slow on different nodes ({where}): the software, or the whole cluster")
    return NodeFinding(
        f"slow each time, each time with {formatting.fold_nodes(in_all)}: the nodes or the software, no telling"
    )


def _explain_apart(slow: Sequence[RunOnNodes], fast: Sequence[RunOnNodes], bound_seconds: float) -> NodeFinding:
    sound = set(_list_nodes(fast))
    if any(sound.issuperset(nodes) for _, _, nodes in slow):
        times = f"{_list_times(slow)}, {_list_times(fast)}"
        return NodeFinding(f"slow and fast on the same nodes ({times}): not the nodes alone")
    suspects = tuple(dict.fromkeys(node for node in _list_nodes(slow) if node not in sound))
    named = f"the nodes {formatting.fold_nodes(suspects)} are" if len(suspects) > 1 else f"the node {suspects[0]} is"
    where = f"{_list_times(slow)} there, {_list_times(fast)} on {formatting.fold_nodes(sound)}"
    text = f"{named} slow ({where}): {format_exclude_option(suspects)}"
    if all(seconds > bound_seconds for _, seconds, _ in fast):
        text += "; the others are slow as well: the software, or the whole cluster"
    return NodeFinding(text, suspects)


def format_exclude_option(nodes: Collection[str]) -> str:
    """Return the option of sbatch that leaves nodes out: `--exclude=n1,n2`."""
    plain = ",".join(nodes)
    return f"--exclude={plain}" if len(plain) <= SHORT else f"--exclude='{formatting.fold_nodes(nodes)}'"


def _list_nodes(runs: Sequence[RunOnNodes]) -> list[str]:
    return sorted(set(chain.from_iterable(nodes for _, _, nodes in runs)))


def _list_times(runs: Sequence[RunOnNodes]) -> str:
    return formatting.join_first([formatting.format_seconds(seconds) for _, seconds, _ in runs])
