"""Slow nodes are reported only if runs on other nodes are faster."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import HISTORY, NOW, evidence, measurement, run

from pytest_llmbench.core.formatting import format_exclude_option
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.core.statements import NodeFinding, RunOnNodes
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.node_findings import find_slow_nodes, judge_nodes
from pytest_llmbench.report.wording import phrase

SIGMA = 0.01
BOUND = 10.5
AT_LIMIT = 10.0 * math.exp(3 * math.sqrt(2) * SIGMA)


def make_runs(*runs: tuple[float, str]) -> list[RunOnNodes]:
    return [
        RunOnNodes(f"run-{number}", seconds, tuple(nodes.split()))
        for number, (seconds, nodes) in enumerate(runs)
    ]


SOFTWARE = "the software or the whole cluster is slow"


@pytest.mark.parametrize(
    ("runs", "text", "exclude"),
    [
        (
            [(10.9, "n1 n2"), (10.0, "n3 n4")],
            "the nodes n[1-2] may be slow (10.90 s there, 10.00 s on n[3-4]): one run proves nothing, "
            "confirm with --llmb-nodelist=n1,n2",
            "",
        ),
        (
            [(10.9, "n1 n2"), (10.0, "n2 n3")],
            "the node n1 may be slow (10.90 s there, 10.00 s on n[2-3]): one run proves nothing, "
            "confirm with --llmb-nodelist=n1,n2",
            "",
        ),
        (
            [(10.9, "n1 n2"), (10.0, "n3 n4"), (11.0, "n1 n2")],
            "the nodes n[1-2] are slow each time (10.90 s, 11.00 s; 10.00 s on n[3-4]): exclude with --llmb-exclude=n1,n2",
            "n1 n2",
        ),
        (
            [(10.9, "n1 n2"), (10.0, "n3 n4"), (11.0, "n2 n5")],
            "the node n2 is slow each time (10.90 s, 11.00 s; 10.00 s on n[3-4]): exclude with --llmb-exclude=n2; the nodes n[1,5] "
            "may be slow (10.90 s, 11.00 s there, 10.00 s on n[3-4]): one run proves nothing, confirm with "
            "--llmb-nodelist=n2,n5",
            "n2",
        ),
        (
            [(10.9, "n1 n2"), (10.0, "n3 n4"), (10.05, "n1 n2")],
            "slow and fast on the same nodes (10.90 s, 10.00 s, 10.05 s): the nodes alone are not the cause, exclude none",
            "",
        ),
        (
            [(12.0, "n1 n2"), (11.0, "n3 n4")],
            "the nodes n[1-2] may be slow (12.00 s there, 11.00 s on n[3-4]): one run proves nothing, "
            f"confirm with --llmb-nodelist=n1,n2; the other nodes are above the limit too: {SOFTWARE}",
            "",
        ),
        (
            [(10.9, "n1 n2"), (10.8, "n3 n4")],
            f"slow on different nodes (10.90 s on n[1-2]; 10.80 s on n[3-4]): {SOFTWARE}",
            "",
        ),
        (
            [(10.9, "n1 n2"), (10.8, "n2 n3")],
            "slow each time, each time with n2: the software or these nodes are slow",
            "",
        ),
        ([(10.9, ""), (10.0, "n3 n4")], "", ""),
        ([(10.9, "n1 n2")], "", ""),
        ([(10.9, "n1 n2"), (math.nan, "n3 n4")], "", ""),
        ([(AT_LIMIT * 0.9999, "n1 n2"), (10.0, "n3 n4")], "", ""),
        (
            [(11.0, "n1"), (10.3, "n2"), (10.0, "n3")],
            "the node n1 may be slow (11.00 s there, ",
            "",
        ),
        ([(10.6, "n1"), (10.3, "n2"), (10.0, "n3")], "", ""),
        ([], "", ""),
    ],
)
def test_slow_node_text_names_suspects_and_nodes_to_exclude(
    runs: list[tuple[float, str]], text: str, exclude: str
) -> None:
    finding = find_slow_nodes(make_runs(*runs), SIGMA, BOUND)
    assert phrase(finding) == text or (
        text.endswith(", ") and phrase(finding).startswith(text)
    )
    assert finding.exclude == tuple(exclude.split())


@pytest.mark.parametrize("sigma", [0.0, math.nan, math.inf])
def test_unknown_noise_of_step_times_makes_no_node_suspect(sigma: float) -> None:
    assert (
        find_slow_nodes(make_runs((10.9, "n1 n2"), (10.0, "n3 n4")), sigma, BOUND)
        == NodeFinding()
    )


def test_exclude_option_compresses_and_quotes_many_nodes() -> None:
    assert (
        format_exclude_option([f"node{number:03}" for number in range(1, 65)])
        == "--llmb-exclude='node[001-064]'"
    )


nodes = st.sets(st.sampled_from([f"n{number}" for number in range(6)]), max_size=4)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(9.0, 13.0), nodes), max_size=5))
def test_node_of_a_fast_run_is_never_a_suspect_or_excluded(
    drawn: list[tuple[float, set[str]]],
) -> None:
    runs = make_runs(*((seconds, " ".join(sorted(names))) for seconds, names in drawn))
    finding = find_slow_nodes(runs, SIGMA, BOUND)
    assert find_slow_nodes(runs[::-1], SIGMA, BOUND).exclude == finding.exclude
    on_known_nodes = [node_run for node_run in runs if node_run[2]]
    for _, seconds, names in on_known_nodes:
        if seconds <= min(other for _, other, _ in on_known_nodes) * AT_LIMIT / 10:
            assert not set(names) & {*finding.exclude, *finding.suspects}
    for name in finding.exclude:
        assert sum(name in names for _, _, names in runs) > 1


def make_launch(**factors: float) -> list[Measurement]:
    """Make the runs of a launch by their ids, newest first.

    `factors` are multiples of the baseline.
    """
    return [
        measurement(
            7.325 * factor,
            run=run(id=name, launch="l", started=NOW - timedelta(hours=hour)),
        )
        for hour, (name, factor) in enumerate(factors.items())
    ]


@pytest.mark.parametrize(
    ("factor", "exclude"), [(1.1, ("n1",)), (1.0, ()), (math.nan, ())]
)
def test_rerun_on_a_suspect_node_decides_its_exclusion_but_not_the_verdict(
    factor: float, exclude: tuple[str, ...]
) -> None:
    slow, fast, again = make_launch(slow=1.1, fast=1.0, again=factor)
    known = evidence(slow, fast, *HISTORY)
    judgement = judge(known)
    nodes = {"slow": ("n1",), "fast": ("n2",), "again": ("n1",)}
    assert judge_nodes(judgement, known, nodes, [again]).exclude == exclude
    assert again not in judgement.runs


def test_slow_node_is_found_with_noise_of_earlier_runs_not_of_the_launch() -> None:
    """The difference between slow and fast nodes would hide the slow ones if it counted
    as noise."""
    known = evidence(*make_launch(c=1.0, b=1.0, a=1.1), *HISTORY)
    finding = judge_nodes(
        judge(known), known, {"a": ("n1",), "b": ("n2",), "c": ("n3",)}
    )
    assert (finding.suspects, finding.exclude, finding.again) == (("n1",), (), ("n1",))
    assert judge_nodes(judge(evidence()), evidence(), {}) == NodeFinding()


def test_slow_run_on_a_node_already_slow_in_history_excludes_that_node() -> None:
    known_slow = frozenset({"n2", "n9"})
    finding = find_slow_nodes(
        make_runs((10.9, "n1 n2"), (10.0, "n3 n4")), SIGMA, BOUND, known_slow
    )
    assert (finding.exclude, finding.suspects) == (("n2",), ())
    assert (
        phrase(finding)
        == "the node n2 is slow each time (10.90 s; 10.00 s on n[3-4]): exclude with --llmb-exclude=n2"
    )
    elsewhere = find_slow_nodes(
        make_runs((10.9, "n1 n5"), (10.0, "n3 n4")), SIGMA, BOUND, known_slow
    )
    assert (elsewhere.exclude, elsewhere.suspects) == ((), ("n1", "n5"))


@pytest.mark.parametrize(
    "other", [(10.8, "n3 n4"), (10.0, "n2 n3")], ids=["others are slow", "fast with it"]
)
def test_node_slow_in_history_is_not_excluded_if_current_runs_clear_it(
    other: tuple[float, str],
) -> None:
    assert (
        "n2"
        not in find_slow_nodes(
            make_runs((10.9, "n1 n2"), other), SIGMA, BOUND, frozenset({"n2"})
        ).exclude
    )
