"""A slow node is identified over many days.

Chance, regressions and unknown nodes identify none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import numpy as np
import pytest
from msgspec.structs import replace

from pytest_llmbench.core.node_records import NodeDoubt, NodeEvidence, Software
from pytest_llmbench.judge.slow_nodes import (
    ConfigurationRun,
    NodeRun,
    compare_with_levels,
    find_slow_node,
)

START = date(2025, 11, 1)
CV = 0.005
NODES, OF_A_JOB = 32, 8


def make_runs(
    slow: Mapping[int, float],
    days: int = 30,
    jobs: int = 2,
    *,
    shared: float = 0.0,
    since: int = 20,
    together: Sequence[int] = (),
    seed: int = 1,
) -> list[NodeRun]:
    """Make runs on random nodes.

    `slow` nodes are slower by a fraction, all runs by `shared` from the day `since` on;
    `together` are nodes that are always in the same job.
    """
    random = np.random.default_rng(seed)
    runs = []
    for day in range(days):
        order = random.permutation(NODES).tolist()
        for job in range(jobs):
            nodes = set(order[OF_A_JOB * job : OF_A_JOB * (job + 1)]) - set(together)
            if job == day % jobs:
                nodes |= set(together)
            slowdown = max(math.log1p(slow.get(node, 0.0)) for node in nodes)
            if day >= since:
                slowdown += math.log1p(shared)
            value, names = (
                slowdown + CV * random.standard_normal(),
                frozenset(f"n{node}" for node in nodes),
            )
            runs.append(
                NodeRun(
                    f"{day}.{job}",
                    f"c{job}",
                    START + timedelta(day),
                    value,
                    0.0,
                    20,
                    CV,
                    20.0,
                    names,
                )
            )
    return runs


def name_nodes(evidence: NodeEvidence) -> list[tuple[str, ...]]:
    return [suspect.nodes for suspect in evidence.named]


@pytest.mark.parametrize("slowness", [0.03, 0.1, 0.3])
def test_slow_node_is_named(slowness: float) -> None:
    """Also a node that is slower than the grid of the model."""
    runs = make_runs({5: slowness})
    evidence = find_slow_node(runs)
    assert evidence.evident
    assert name_nodes(evidence) == [("n5",)]
    (suspect,) = evidence.named
    assert suspect.low <= slowness <= suspect.high + 0.002
    with_it = {run.id for run in runs if "n5" in run.nodes}
    assert set(suspect.slow_runs) | set(suspect.fast_runs) == with_it
    assert len(suspect.slow_runs) > 0.9 * len(with_it)
    assert evidence.cleared == evidence.nodes - len(evidence.suspects)


@pytest.mark.parametrize("seed", range(3))
def test_equally_fast_nodes_are_not_named(seed: int) -> None:
    evidence = find_slow_node(make_runs({}, seed=seed))
    assert not evidence.evident
    assert (evidence.suspects, evidence.named, evidence.cleared) == ((), (), 0)


def test_two_slow_nodes_are_named() -> None:
    """The slower node hides the other one in the runs that they share."""
    evidence = find_slow_node(make_runs({5: 0.1, 9: 0.04}, days=40))
    assert sorted(name_nodes(evidence)) == [("n5",), ("n9",)]
    by_name = {suspect.nodes[0]: suspect.slowness for suspect in evidence.named}
    assert by_name["n5"] == pytest.approx(0.1, abs=0.01)
    assert by_name["n9"] == pytest.approx(0.04, abs=0.01)


def test_nodes_always_together_are_one_suspect() -> None:
    evidence = find_slow_node(make_runs({5: 0.05}, together=(5, 6, 7)))
    assert name_nodes(evidence) == [("n5", "n6", "n7")]


def test_nodes_used_by_every_run_are_never_reported_as_slow() -> None:
    """No run was fast without them, so the configuration may be the cause."""
    runs = [
        replace(run, nodes=frozenset({"n1", "n2"}))
        for run in make_runs({5: 0.05}, days=40)
    ]
    evidence = find_slow_node(runs)
    assert evidence.evident
    assert [suspect.nodes for suspect in evidence.suspects] == [("n1", "n2")]
    assert evidence.suspects[0].doubt is NodeDoubt.NOTHING_FAST_SINCE
    assert not evidence.named


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "shared"), [(1, 0.02), (2, 0.2), (4, 0.05)])
def test_regression_of_all_jobs_blames_no_node(jobs: int, shared: float) -> None:
    for seed in range(4):
        assert not find_slow_node(
            make_runs({}, jobs=jobs, shared=shared, since=22, seed=seed)
        ).named


def test_regression_of_a_configuration_on_dedicated_nodes_blames_no_node() -> None:
    """Nodes that always run the same configuration cannot be distinguished from it."""
    runs = []
    for run in make_runs({}, jobs=4):
        slowdown = (
            0.06
            if run.configuration == "c2" and run.day >= START + timedelta(25)
            else 0.0
        )
        own_nodes = frozenset(f"{run.configuration}-{number}" for number in range(4))
        runs.append(replace(run, nodes=own_nodes, logarithm=run.logarithm + slowdown))
    assert not find_slow_node(runs).named


def test_regression_that_is_a_new_level_for_most_configurations_blames_no_node() -> (
    None
):
    """One configuration is above its old level, the others have a new level: no node is
    to blame, whichever nodes it used most."""
    for seed in range(4):
        late = []
        for run in make_runs({}, jobs=4, shared=0.05, seed=seed):
            if run.configuration == "c1":
                late.append(run)
            elif run.day >= START + timedelta(20):
                late.append(
                    replace(run, level=math.log1p(0.05), segment=1)
                    if run.logarithm > 0
                    else run
                )
        assert not find_slow_node(late).named


def test_days_on_which_all_jobs_are_slow_blame_no_node() -> None:
    """One node is used on these days only."""
    runs = []
    for run in make_runs({}, jobs=4):
        slow = (run.day - START).days % 3 == 0
        nodes = (
            run.nodes
            if slow
            else frozenset("spare" if node == "n5" else node for node in run.nodes)
        )
        runs.append(replace(run, nodes=nodes, logarithm=run.logarithm + 0.05 * slow))
    assert not find_slow_node(runs).evident


@pytest.mark.slow
def test_estimated_slowness_of_a_node_excludes_the_slowdown_of_all_jobs() -> None:
    evidence = [
        find_slow_node(
            make_runs({5: 0.04}, days=60, jobs=4, shared=0.05, since=0, seed=seed)
        )
        for seed in (1, 2, 3)
    ]
    slowness = [
        suspect.slowness
        for node_evidence in evidence
        for suspect in node_evidence.named
    ]
    assert slowness == pytest.approx([0.04] * 3, abs=0.0015)


def test_single_bad_day_blames_no_node() -> None:
    runs = make_runs({})
    index = next(index for index, run in enumerate(runs) if "n5" in run.nodes)
    runs[index] = replace(runs[index], logarithm=1.5)
    assert not find_slow_node(runs).named


def make_elsewhere(slow: Mapping[int, str], after: str = "good") -> list[NodeRun]:
    """Make runs of a configuration on nodes `a`, and 10 % slower ones on nodes `b`.

    `slow` maps the days on `b` to their containers; `after` is the container of the
    days after the last of them.
    """
    runs = []
    for day in range(30):
        container = slow.get(day, after if day > max(slow) else "good")
        nodes = frozenset({"b1", "b2"} if day in slow else {"a1", "a2"})
        slowness = 0.1 * (day in slow) + 0.001 * (day % 3)
        software: Software = frozenset(
            {("container", container), ("commit", f"{day:x}")}
        )
        date_of_run = START + timedelta(day)
        runs.append(
            NodeRun(
                f"{day}",
                "c",
                date_of_run,
                slowness,
                0.0,
                20,
                CV,
                20.0,
                nodes,
                software=software,
            )
        )
    return runs


def find_doubts(runs: Sequence[NodeRun]) -> list[NodeDoubt | None]:
    """Return the doubts about the nodes `b`, which are evidently slow."""
    evidence = find_slow_node(runs)
    assert evidence.evident
    assert bool(evidence.named) == (evidence.suspects[0].doubt is None)
    return [
        suspect.doubt for suspect in evidence.suspects if suspect.nodes == ("b1", "b2")
    ]


def test_configuration_slow_since_it_moved_to_other_nodes_blames_no_node() -> None:
    """It moved to other nodes on the day it became slow, so it may have regressed."""
    assert find_doubts(make_elsewhere(dict.fromkeys(range(20, 30), "good"))) == [
        NodeDoubt.NOTHING_FAST_SINCE
    ]


def test_two_consecutive_slow_days_blame_no_node() -> None:
    """Two consecutive bad days may have one cause; a fast run elsewhere between them
    makes them two."""
    assert find_doubts(make_elsewhere({15: "good", 16: "good"})) == [
        NodeDoubt.NEIGHBOURS
    ]
    assert find_doubts(make_elsewhere({15: "good", 17: "good"})) == [None]


@pytest.mark.parametrize(("third", "doubt"), [(17, None), (16, NodeDoubt.NEIGHBOURS)])
def test_neighbouring_slow_day_is_weaker_evidence(
    third: int, doubt: NodeDoubt | None
) -> None:
    runs = make_elsewhere(dict.fromkeys((10, 15, third), "good"))
    assert find_doubts([replace(run, sigma=6.7 * CV) for run in runs]) == [doubt]


def test_fast_run_elsewhere_on_a_slow_day_confirms_the_suspect_nodes() -> None:
    runs = make_elsewhere({15: "good", 16: "good"})
    fast = replace(runs[16], id="fast", logarithm=0.0, nodes=frozenset({"a1", "a2"}))
    assert find_doubts([*runs, fast]) == [None]
    # another configuration proves nothing about the slow one
    other = replace(fast, configuration="other")
    assert find_doubts([*runs, other]) == [NodeDoubt.NEIGHBOURS]
    assert find_doubts([*runs, replace(fast, logarithm=0.1)]) == [NodeDoubt.NEIGHBOURS]
    assert find_doubts([*runs, replace(fast, nodes=frozenset())]) == [
        NodeDoubt.NEIGHBOURS
    ]


def test_nodes_are_cleared_if_only_the_slow_runs_share_a_software_version() -> None:
    """Commits differ every day: only software that all slow runs share may be the
    cause."""
    assert find_doubts(make_elsewhere({12: "bad", 15: "bad", 17: "bad"})) == [
        NodeDoubt.ONE_SOFTWARE
    ]
    assert find_doubts(
        make_elsewhere({12: "bad", 15: "bad", 17: "bad"}, after="bad")
    ) == [None]
    assert find_doubts(make_elsewhere({12: "good", 15: "bad", 17: "bad"})) == [None]


def test_runs_on_unknown_nodes_are_no_evidence() -> None:
    unknown = [replace(run, nodes=frozenset()) for run in make_runs({5: 0.1})]
    evidence = find_slow_node(unknown)
    assert not evidence.evident
    assert (evidence.runs, evidence.runs_with_nodes, evidence.nodes) == (60, 0, 0)
    assert not find_slow_node([]).evident


# --- levels ---------------------------------------------------------------------------


def make_configuration_runs(
    values: Sequence[float], nodes: str = "n1 n2"
) -> list[ConfigurationRun]:
    return [
        ConfigurationRun(
            f"r{day}", START + timedelta(day), value, frozenset(nodes.split())
        )
        for day, value in enumerate(values)
    ]


def noisy(count: int, seed: int = 3) -> list[float]:
    return list(2.0 + CV * np.random.default_rng(seed).standard_normal(count))


def test_slow_node_search_compares_runs_with_the_level_since_the_last_change() -> None:
    values = noisy(40)
    runs, short = compare_with_levels(
        {
            "a": make_configuration_runs(
                [*values[:25], *(value + 0.1 for value in values[25:])]
            )
        }
    )
    assert not short
    assert [run.level for run in runs[:25]] == pytest.approx([2.0] * 25, abs=2 * CV)
    assert [run.level for run in runs[25:]] == pytest.approx([2.1] * 15, abs=2 * CV)
    assert {run.days for run in runs} == {25, 15}


def test_noise_is_estimated_from_days_before_the_run() -> None:
    """A slowdown from a day on does not affect the noise of the days before."""
    values = noisy(30)
    wild = [value + 0.2 * (day % 2) * (day >= 20) for day, value in enumerate(values)]
    quiet, _ = compare_with_levels({"a": make_configuration_runs(values)})
    loud, _ = compare_with_levels({"a": make_configuration_runs(wild)})
    assert [run.sigma for run in loud[:21]] == [run.sigma for run in quiet[:21]]
    assert loud[0].sigma == loud[8].sigma  # of the first 8 days


def test_configuration_of_fewer_than_8_days_is_left_out() -> None:
    runs, short = compare_with_levels(
        {
            "a": make_configuration_runs(noisy(20)),
            "b": make_configuration_runs(noisy(7)),
            "c": (),
        }
    )
    assert short == ("b",)
    assert {run.configuration for run in runs} == {"a"}


@pytest.mark.parametrize(("since", "days"), [(None, 60), (START + timedelta(75), 5)])
def test_slow_node_search_uses_the_runs_of_the_last_60_days_by_default(
    since: date | None, days: int
) -> None:
    runs, _ = compare_with_levels({"a": make_configuration_runs(noisy(80))}, since)
    assert sorted(run.day for run in runs) == [
        START + timedelta(80 - days + day) for day in range(days)
    ]
    assert {run.days for run in runs} == {80}  # all days count for the level


def test_runs_of_one_day_on_same_nodes_are_averaged() -> None:
    runs = make_configuration_runs(noisy(10))
    same_nodes = replace(runs[4], id="again", logarithm=runs[4].logarithm + 0.01)
    other_nodes = replace(same_nodes, id="other", nodes=frozenset({"n3"}))
    node_runs, _ = compare_with_levels({"a": [*runs, same_nodes, other_nodes]})
    logarithms = [run.logarithm for run in node_runs if run.day == runs[4].day]
    assert len(node_runs) == 11
    assert sorted(logarithms) == pytest.approx(
        [runs[4].logarithm + 0.005, runs[4].logarithm + 0.01]
    )


@pytest.mark.parametrize("seed", range(4))
def test_slow_drift_of_a_configuration_blames_no_node(seed: int) -> None:
    runs = [
        ConfigurationRun(
            run.id,
            run.day,
            2.0 + run.logarithm + 0.0015 * max((run.day - START).days - 20, 0),
            run.nodes,
        )
        for run in make_runs({}, days=60, jobs=1, seed=seed)
    ]
    assert not find_slow_node(compare_with_levels({"a": runs})[0]).named
