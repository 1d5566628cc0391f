"""GPU-hours in every report: used, lost by cause, and unknown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import asdict, replace
from support.builders import KEY, NOW, evidence, log, run, segment, steps
from support.outcomes import list_schema_errors, make_session, told

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import (
    JobCost,
    LaunchedJob,
    Loss,
    PlannedHours,
    Purpose,
)
from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.describe_outcome import (
    describe,
    list_properties,
    list_property_names,
)
from pytest_llmbench.report.document import render_session
from pytest_llmbench.report.explain import explain
from pytest_llmbench.report.gpu_hours import (
    format_cost,
    format_job_cost,
    sum_configuration,
)
from pytest_llmbench.report.html import render as render_page
from pytest_llmbench.report.junit import render
from pytest_llmbench.report.outcome_documents import (
    ConfigurationCost,
    ConfigurationOutcome,
    LostHours,
    OutcomeDocument,
)
from pytest_llmbench.report.terminal import render_summary
from pytest_llmbench.runs.measure.measurement import measure

JOB = LaunchedJob(
    "14",
    Purpose.MEASURE,
    1,
    1,
    "COMPLETED",
    ("n1",),
    started=NOW,
    cost=JobCost(10.0, 11.0),
)
FAILED = replace(
    JOB, job_id="12", state="NODE_FAIL", cost=JobCost(10.0, 2.0, loss=Loss.FAILED)
)
HUNG = replace(
    JOB, job_id="13", state="CANCELLED", cost=JobCost(10.0, 3.0, loss=Loss.HUNG)
)
REQUEUED = replace(JOB, attempt=2, cost=JobCost(10.0, 15.0, 4.0))
PURGED = replace(JOB, job_id="41", state="", cost=JobCost(10.0, 0.0, exact=False))
PLANNED = PlannedHours(10.0, 60.0, 50.0)


def launched(
    *jobs: LaunchedJob, status: Status = Status.PASSED
) -> ConfigurationOutcome:
    measured = measure(
        run(log(segment(steps(7.33))), job_id="14"), evidence().baseline, NOW
    )
    outcome = Outcome(
        ConfigurationResult(Case(KEY.id, KEY), judge(evidence(measured)), jobs=jobs),
        status,
    )
    return describe(outcome, NOW, Path("/runs"))


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        (
            [FAILED, HUNG, REQUEUED],
            "20.0 used (10.0 estimated); 9.0 of them lost: 2.0 failed, 3.0 hung, 4.0 requeued",
        ),
        ([PURGED], "at least 0.0 used (10.0 estimated); unknown: job 41"),
        (
            [JOB, replace(PURGED, job_id="")],
            "at least 11.0 used (10.0 estimated); unknown: a possibly submitted job",
        ),
        ([replace(JOB, cost=JobCost())], "0.0 used"),
    ],
    ids=["every-loss", "purged", "perhaps-submitted", "never-ran"],
)
def test_cost_of_a_configuration_is_described(
    jobs: Sequence[LaunchedJob], told: str
) -> None:
    cost = sum_configuration(launched(*jobs).jobs)
    assert cost is not None
    assert format_cost(cost) == told
    message = " ".join(
        explain(launched(*jobs, status=Status.FAILED), short=False).split()
    )
    assert f"GPU-hours {told}" in message


def test_cost_of_a_job_is_described() -> None:
    texts = [
        format_job_cost(job) for job in launched(JOB, FAILED, REQUEUED, PURGED).jobs
    ]
    assert texts == ["11.0", "2.0, lost: failed", "15.0, 4.0 lost: requeued", "unknown"]


def test_session_cost_is_the_sum_over_its_jobs() -> None:
    lost = LostHours(failed=2.0, hung=3.0, requeued=4.0)
    expected = ConfigurationCost(
        estimated=10.0, used=20.0, lost=lost, unknown_jobs=("41",)
    )
    assert launched(FAILED, HUNG, REQUEUED, PURGED).gpu_hours == expected
    assert tuple(asdict(lost)) == tuple(map(str, Loss))
    assert launched().gpu_hours is None


def test_junit_cost_properties_omit_zero_values() -> None:
    properties = {
        name: value
        for name, value in list_properties(launched(FAILED, REQUEUED))
        if name.startswith("gpu_hours")
    }
    assert properties == {
        "gpu_hours_used": "17",
        "gpu_hours_estimated": "10",
        "gpu_hours_lost_failed": "2",
        "gpu_hours_lost_requeued": "4",
    }
    assert not any(name.startswith("gpu_hours") for name in list_property_names())
    unknown = dict(list_properties(launched(PURGED)))
    assert unknown["gpu_hours_unknown_jobs"] == "41"
    assert "gpu_hours_used" not in unknown
    root = ElementTree.fromstring(render([launched(FAILED, REQUEUED)], NOW))  # noqa: S314 (our own report)
    assert (
        "gpu_hours_lost_failed: 2"
        in (root.findtext(".//system-out") or "").splitlines()
    )


def document(
    *outcomes: OutcomeDocument, planned: PlannedHours | None = None
) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        render_session(make_session(*outcomes, exit_code=0, planned=planned))
    )
    return made


def test_document_with_costs_validates_against_the_schema() -> None:
    with_plan = document(
        launched(FAILED, REQUEUED), told(identifier="other"), planned=PLANNED
    )
    assert list_schema_errors(with_plan) == []
    assert with_plan["gpu_hours"] == {
        "estimated": 10.0,
        "most": 60.0,
        "limit": 50.0,
        "used": 17.0,
        "lost": {"failed": 2.0, "hung": 0.0, "requeued": 4.0},
        "unknown_jobs": [],
    }
    without = document(told())
    assert list_schema_errors(without) == []
    assert without["gpu_hours"] is None


def test_page_head_shows_used_and_allowed_gpu_hours() -> None:
    page = render_page([launched(FAILED, REQUEUED)], NOW, planned=PLANNED)
    assert (
        "GPU-hours: 17.0 used (10.0 estimated, 50 allowed); 6.0 of them lost: 2.0 failed, 4.0 requeued"
        in page
    )
    assert "GPU-hours" not in render_page([told()], NOW)


def without_a_run(*jobs: LaunchedJob) -> ConfigurationOutcome:
    judgement = replace(
        judge(evidence()), reason=Reason.LOG_MISSING, statements=("no log",)
    )
    return describe(
        Outcome(
            ConfigurationResult(Case(KEY.id, KEY), judgement, jobs=jobs), Status.FAILED
        ),
        NOW,
        Path("/runs"),
    )


def test_age_of_a_configuration_without_a_run_is_that_of_its_last_job() -> None:
    old = replace(JOB, started=NOW - timedelta(hours=5))
    new = replace(JOB, job_id="15", attempt=2, started=NOW - timedelta(hours=3))
    described = without_a_run(old, new)
    assert list(render_summary([described], []))[1].endswith(" 3h")
    assert "none; its job started 2025-11-20 03:00, 3h old" in " ".join(
        explain(described, short=False).split()
    )
    assert '<td class="number" data-v="-' in render_page([described], NOW)
    never = without_a_run(replace(JOB, started=None))
    assert list(render_summary([never], []))[1].endswith(" -")
    assert "its job started" not in explain(never, short=False)
