"""Launched jobs in the reports: nodes, attempts, and missing values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from support.builders import (
    BASELINE,
    HISTORY,
    KEY,
    NOW,
    evidence,
    log,
    run,
    segment,
    steps,
)

from pytest_llmbench.core.baseline_records import Baseline, BaselineKind
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.job_records import LaunchedJob, Purpose
from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.outcome_records import (
    Case,
    CheckKind,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.judge.configuration_pairs import compare
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.describe_outcome import (
    describe,
    list_properties,
    list_property_names,
)
from pytest_llmbench.report.explain import explain
from pytest_llmbench.report.junit import render
from pytest_llmbench.report.outcome_documents import ConfigurationOutcome, make_plain
from pytest_llmbench.report.terminal import render_summary
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.session.fleet import (
    find_fleet_shift,
    find_previous_runs,
    with_shift,
    with_warnings,
)
from pytest_llmbench.session.outcomes import JudgedConfigurations
from pytest_llmbench.session.selftest import run_selftest

FOLDER = Path("/runs")
SLOW = run(log(segment(steps(7.911))), job_id="14", launch="l")
GOOD = run(log(segment(steps(7.33))), job_id="14", launch="l")


def job(
    job_id: str, nodes: str = "", state: str = "COMPLETED", **fields: Any
) -> LaunchedJob:
    values = {
        "purpose": Purpose.MEASURE,
        "attempt": 1,
        "repeat": 1,
        "nodes": tuple(nodes.split()),
        **fields,
    }
    return LaunchedJob(job_id=job_id, state=state, **values)


ONE = (job("14", "n1 n2 n3 n4", step_seconds=7.911),)
RETRIED = (
    job("12", "n1 n2", "NODE_FAIL", text="NODE_FAIL: a node failed"),
    job("14", "n3 n4", attempt=2, step_seconds=7.33),
)
SEQUENCE = (
    job("12", "n1 n2", "NODE_FAIL"),
    job("13", "n1 n3", attempt=2, step_seconds=7.911),
    job("14", "n3 n4", repeat=2, step_seconds=7.33),
    job("15", "n5 n6", repeat=3, step_seconds=7.34),
    job(
        "16",
        "n5",
        purpose=Purpose.PROFILE,
        files=(FOLDER / "16/a.nsys-rep", Path("/other/b.nsys-rep")),
    ),
)
SLOW_NODES = "the nodes n[1,3] are slow (7.911 s there, 7.330 s, 7.340 s on n[4-6]): --llmb-exclude=n1,n3"


def launched_outcome(
    content: Run,
    *jobs: LaunchedJob,
    status: Status = Status.FAILED,
    nodes: str = "",
    baseline: Baseline = BASELINE,
) -> ConfigurationOutcome:
    measured = measure(content, baseline, NOW)
    judgement = judge(evidence(measured, *HISTORY, baseline=baseline))
    return describe(
        Outcome(
            ConfigurationResult(Case(KEY.id, KEY), judgement, jobs=jobs, nodes=nodes),
            status,
        ),
        NOW,
        FOLDER,
    )


def lines(outcome: ConfigurationOutcome, label: str) -> list[str]:
    """Return the facts with a label, unwrapped to one line each."""
    text = explain(outcome, short=False).replace("\n" + " " * 12, " ")
    return [
        line[12:] for line in text.splitlines() if line.startswith(f"  {label:<10}")
    ]


def properties_of(outcome: ConfigurationOutcome) -> dict[str, str]:
    return {
        name: value
        for name, value in list_properties(outcome)
        if name not in list_property_names()
    }


def case(*described: ConfigurationOutcome) -> ElementTree.Element:
    root = ElementTree.fromstring(render(described, NOW)).find(".//testcase")  # noqa: S314 (our own report)
    assert root is not None
    return root


# --- a failure ------------------------------------------------------------------------


def test_failure_message_names_its_nodes() -> None:
    one = launched_outcome(SLOW, *ONE)
    assert lines(one, "nodes") == ["n[1-4]"]
    assert lines(one, "job") == []


def test_failure_message_has_a_line_for_each_launched_job() -> None:
    assert lines(launched_outcome(SLOW, *RETRIED), "job") == [
        "attempt 1 of 2: job 12 on n[1-2]: NODE_FAIL (a node failed), retried",
        "attempt 2 of 2: job 14 on n[3-4]: 7.330 s",
    ]
    one = launched_outcome(SLOW, *SEQUENCE, nodes=SLOW_NODES)
    assert lines(one, "nodes") == ["n[1,3-6]", SLOW_NODES]
    assert lines(one, "job") == [
        "run 1 of 3, attempt 1 of 2: job 12 on n[1-2]: NODE_FAIL, retried",
        "run 1 of 3, attempt 2 of 2: job 13 on n[1,3]: 7.911 s",
        "run 2 of 3: job 14 on n[3-4]: 7.330 s",
        "run 3 of 3: job 15 on n[5-6]: 7.340 s",
        "profile: job 16 on n5: COMPLETED",
    ]
    assert lines(one, "file") == ["16/a.nsys-rep", "/other/b.nsys-rep"]


def test_message_reports_an_attempt_that_was_not_submitted() -> None:
    jobs = (
        job("", state="", text="sbatch: error: invalid account"),
        job("3", attempt=2, step_seconds=7.4),
    )
    assert lines(launched_outcome(SLOW, *jobs), "job")[0] == (
        "attempt 1 of 2: job not submitted: (sbatch: error: invalid account), retried"
    )


# --- the summary ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "under"),
    [
        (
            RETRIED,
            ["on n[3-4], 2 attempts: job 12 on n[1-2]: NODE_FAIL (a node failed)"],
        ),
        (
            SEQUENCE,
            [
                "on n[1,3-6], 3 runs, 4 attempts: job 12 on n[1-2]: NODE_FAIL 16/a.nsys-rep /other/b.nsys-rep"
            ],
        ),
        ((job("7", step_seconds=7.3),), []),
    ],
)
def test_summary_line_names_nodes_and_earlier_failed_attempts(
    jobs: tuple[LaunchedJob, ...], under: list[str]
) -> None:
    summary = list(
        render_summary([launched_outcome(GOOD, *jobs, status=Status.PASSED)], [])
    )
    assert summary[1].startswith("PASS ")
    assert [" ".join(" ".join(summary[2:-1]).split())] == (under or [""])


def test_exclude_list_is_not_truncated() -> None:
    summary = " ".join(
        " ".join(
            render_summary([launched_outcome(GOOD, *SEQUENCE, nodes=SLOW_NODES)], [])
        ).split()
    )
    assert SLOW_NODES in summary


def absent(
    identifier: str,
    reason: Reason,
    text: str,
    *jobs: LaunchedJob,
    status: Status = Status.SKIPPED,
) -> Any:
    judgement = replace(judge(evidence()), reason=reason, statements=(text,))
    return describe(
        Outcome(
            ConfigurationResult(Case(identifier, KEY), judgement, jobs=jobs), status
        ),
        NOW,
        FOLDER,
    )


def test_configurations_off_this_cluster_are_grouped_by_reason() -> None:
    described = [
        absent(f"a{n}", Reason.NOT_ON_CLUSTER, "it needs gb200, this cluster has h100")
        for n in range(24)
    ]
    described += [
        absent(f"b{n}", Reason.NOT_ON_CLUSTER, "512 GPUs, the largest size is 16")
        for n in range(2)
    ]
    described += [absent("c", Reason.NO_RUN, "no run of this configuration")]
    summary = list(
        render_summary([*described, launched_outcome(GOOD, status=Status.PASSED)], [])
    )
    assert summary[2:-4] == [
        "MISSING        24 not on this cluster (it needs gb200, this cluster has h100):",
        "               a0, a1, a2, a3, a4 and 19 more",
        "MISSING        2 not on this cluster (512 GPUs, the largest size is 16): b0, b1",
    ]
    assert summary[-4:] == [
        "MISSING        1 without a run: c",
        "next: c without a run: launch it with pytest -k c --llmb-launch; --llmb-dry-run",
        "      shows what that takes",
        "1 green: 1 PASS; 27 skipped: 27 MISSING",
    ]


def test_job_without_a_run_has_its_own_summary_line() -> None:
    lost = absent(
        "a",
        Reason.JOB_FAILED,
        "exit 1: ValueError",
        job("3", "n1", "FAILED"),
        status=Status.FAILED,
    )
    summary = list(render_summary([lost], []))
    assert summary[1].split()[:2] == ["MISSING", "a"]
    assert [line.strip() for line in summary[2:4]] == ["exit 1: ValueError", "on n1"]


# --- JUnit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (
            RETRIED,
            {
                "job_id": "14",
                "nodes": "n[3-4]",
                "attempts": "2",
                "runs": "1",
                "failed_attempts": "job 12 on n[1-2]: NODE_FAIL (a node failed)",
            },
        ),
        (
            SEQUENCE,
            {
                "job_id": "14",
                "nodes": "n[1,3-6]",
                "attempts": "4",
                "runs": "3",
                "failed_attempts": "job 12 on n[1-2]: NODE_FAIL",
            },
        ),
    ],
)
def test_pytest_and_llmb_junit_reports_contain_properties_of_launched_items(
    jobs: tuple[LaunchedJob, ...], expected: dict[str, str]
) -> None:
    one = launched_outcome(GOOD, *jobs, status=Status.PASSED)
    assert properties_of(one) == expected
    output = (case(one).findtext("system-out") or "").splitlines()
    assert {f"{name}: {value}" for name, value in expected.items()} <= set(output)
    assert len([line for line in output if line.startswith("launched: ")]) == len(jobs)


# --- a configuration that has no value yet --------------------------------------------

EMPTY = replace(BASELINE, kind=BaselineKind.RECIPE, step_seconds=math.nan, cells=())


def test_reports_without_baseline_value_show_measurement_and_no_nan() -> None:
    one = launched_outcome(GOOD, *ONE, baseline=EMPTY)
    assert (one.verdict, one.reason, one.expected_seconds, one.bound_seconds) == (
        "INVALID",
        "no-baseline",
        None,
        None,
    )
    json.dumps(make_plain(one), allow_nan=False)
    text = explain(one, short=False)
    assert (
        "no baseline to compare with yet: measured 7.330 s; record it with --llmb-record=DIR"
        in " ".join(text.split())
    )
    assert f"  {'step time':<18}{'7.330 s':>16}{'-':>16}{'-':>13}" in text.splitlines()
    everything = "\n".join(
        (
            text,
            *render_summary([one], []),
            render([one], NOW).decode(),
            str(list_properties(one)),
        )
    )
    assert "nan" not in everything.lower()
    assert case(one).find("failure") is not None


def test_fleet_and_scaling_checks_accept_a_configuration_without_baseline_value() -> (
    None
):
    measured = evidence(measure(GOOD, EMPTY, NOW), baseline=EMPTY)
    judgement = judge(measured)
    judged = JudgedConfigurations(
        {KEY.id: (ConfigurationResult(Case(KEY.id, KEY), judgement), (measured,))}
    )
    assert find_fleet_shift(judged, find_previous_runs(judged)) is None
    assert with_warnings(with_shift(judged, None)) == judged

    def decide(_: Evidence) -> tuple[Judgement, Status]:
        return judgement, Status.PASSED

    assert run_selftest(KEY.id, measured, judgement, decide) is None
    compared = compare(
        CheckKind.WEAK_SCALING, "x", [EMPTY.configuration] * 2, {KEY: [judgement]}
    )
    assert compared.verdict is Verdict.MISSING
