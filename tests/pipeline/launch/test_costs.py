"""What a job used, and what a session may still start: nothing is made up, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import KEY, NOW

from pytest_llmbench.core.models.jobs import EndedBy, Job, JobSpec, JobStatus, Phase, Purpose, SubmissionState
from pytest_llmbench.launch.follow import NextJob
from pytest_llmbench.pipeline.launch.costs import HoursBudget, describe_used, measure_cost

SPEC = JobSpec(
    case_id=KEY.id,
    key=KEY,
    purpose=Purpose.MEASURE,
    via="sbatch",
    command=("sbatch", "./launch.sh"),
    directory=Path("/recipe"),
    environment=(),
    secrets=(),
    nodes=2,
    gpus=16,
    gpu_hours=10.0,
    gpus_per_node=8,
)
HOUR = 3600.0


def job(
    number: int = 1, spec: JobSpec = SPEC, attempt: int = 1, repeat: int = 1, refused: str = "", **status: Any
) -> Job:
    submission = SubmissionState(refused or "submitted")
    known = JobStatus(**{"phase": Phase.ENDED, "state": "COMPLETED", **status}) if status else None
    token, job_id = f"token{number}", "" if refused else str(number)
    return Job(number, token, spec, Path("/jobs"), attempt, repeat, job_id, status=known, submission=submission)


@pytest.mark.parametrize(
    ("status", "used", "requeued", "exact"),
    [
        ({"elapsed_seconds": HOUR / 2}, 8.0, 0.0, True),
        ({"elapsed_seconds": 0.0, "state": "CANCELLED"}, 0.0, 0.0, True),
        ({"started": NOW, "ended": NOW + timedelta(hours=2)}, 32.0, 0.0, True),
        ({"started": NOW}, 0.0, 0.0, False),
        ({"elapsed_seconds": HOUR, "earlier_seconds": (HOUR, HOUR / 4), "restarts": 2}, 36.0, 20.0, True),
        ({"elapsed_seconds": HOUR, "restarts": 1}, 16.0, 0.0, False),
        ({"phase": Phase.UNKNOWN, "state": "", "elapsed_seconds": HOUR}, 0.0, 0.0, False),
        ({"state": "RUNNING", "ended_by": EndedBy.PYTEST, "elapsed_seconds": HOUR}, 16.0, 0.0, False),
        ({"state": "CANCELLED", "ended_by": EndedBy.PYTEST, "elapsed_seconds": HOUR}, 16.0, 0.0, True),
        ({"state": "PREEMPTED", "elapsed_seconds": HOUR}, 16.0, 0.0, True),
    ],
    ids=[
        *("half-an-hour", "never-started", "by-its-times", "no-end", "requeued-twice", "requeued-without-accounting"),
        *("purged", "could-not-be-cancelled", "cancelled-by-us", "preempted"),
    ],
)
def test_what_a_job_used(status: dict[str, Any], used: float, requeued: float, exact: bool) -> None:
    cost = measure_cost(job(**status))
    assert (cost.estimated, cost.used, cost.requeued, cost.exact) == (10.0, used, requeued, exact)


@pytest.mark.parametrize(("refused", "exact"), [("not-submitted", True), ("unaffordable", True), ("uncertain", False)])
def test_what_was_not_submitted_used_nothing_and_what_perhaps_was_is_not_known(refused: str, exact: bool) -> None:
    cost = measure_cost(job(refused=refused))
    assert (cost.used, cost.exact) == (0.0, exact)


@pytest.mark.parametrize(
    ("fields", "hours"),
    [
        ({"nodes": 1, "gpus": 2}, 8.0),
        ({"nodes": 1, "gpus": 2, "via": "local"}, 2.0),
        ({"gpus_per_node": 0}, 16.0),
    ],
    ids=["a-whole-node", "this-machine", "a-journal-of-an-earlier-version"],
)
def test_a_job_is_charged_for_all_gpus_of_its_nodes(fields: dict[str, Any], hours: float) -> None:
    assert measure_cost(job(spec=replace(SPEC, **fields), elapsed_seconds=HOUR)).used == hours


def test_what_the_jobs_of_a_session_used_together() -> None:
    ended = job(elapsed_seconds=HOUR)
    assert describe_used([ended, job(refused="not-submitted")]) == "16.0 GPU-hours used"
    assert describe_used([ended, job(phase=Phase.RUNNING, state="RUNNING")]) == "at least 16.0 GPU-hours used"
    assert describe_used([]) == "0.0 GPU-hours used"


# --- the budget -------------------------------------------------------------------------------------------

OTHER = replace(SPEC, case_id="other")


def test_what_was_used_takes_the_place_of_the_estimate() -> None:
    budget = HoursBudget(30.0)
    budget.plan([SPEC])
    assert budget.admit(job()) == ""
    assert budget.reserve([NextJob(SPEC, 1, 2), NextJob(SPEC, 1, 3)]) == ""
    spendthrift = HoursBudget(30.0)
    spendthrift.plan([SPEC])
    spendthrift.settle(job(elapsed_seconds=HOUR))
    assert spendthrift.reserve([NextJob(SPEC, 1, 2)]) == ""
    assert spendthrift.reserve([NextJob(SPEC, 1, 3)]) == (
        "1 run takes 10.0 GPU-hours, and of the 30 allowed 16.0 are used and 10.0 reserved"
    )
    thrifty = HoursBudget(20.5)
    thrifty.plan([SPEC])
    thrifty.settle(job(elapsed_seconds=HOUR / 32))
    assert thrifty.reserve([NextJob(SPEC, 1, 2), NextJob(SPEC, 1, 3)]) == ""


def test_of_a_job_of_which_nothing_is_known_the_estimate_is_counted() -> None:
    budget = HoursBudget(19.0)
    budget.plan([SPEC])
    budget.settle(job(phase=Phase.UNKNOWN, state=""))
    assert budget.used == 10.0
    assert "10.0 are used" in budget.reserve([NextJob(SPEC, 2)])


def test_nothing_new_starts_once_all_is_used_and_what_was_planned_first_is_not_held_against_the_others() -> None:
    budget = HoursBudget(20.0)
    budget.plan([SPEC, OTHER])
    assert budget.admit(job()) == ""
    assert budget.admit(job(2, OTHER)) == ""  # 20 are reserved, 20 are allowed
    budget = HoursBudget(20.0)
    budget.plan([SPEC, OTHER])
    assert budget.admit(job()) == ""
    budget.settle(job(elapsed_seconds=HOUR))
    refused = budget.admit(job(2, OTHER))
    assert refused == "it takes 10.0 GPU-hours, and of the 20 allowed 16.0 are used"


def test_a_session_that_goes_on_begins_with_what_it_used_and_counts_nothing_twice() -> None:
    budget = HoursBudget(46.0)
    ended, live = job(elapsed_seconds=HOUR), job(2, repeat=2)
    gone = job(3, OTHER, refused="superseded")
    budget.take_up([ended, live, gone], {2})
    budget.plan([SPEC, OTHER])
    assert budget.used == 16.0
    # 16 used, 10 for the one that runs, 10 for the one that was not submitted before
    assert budget.reserve([NextJob(SPEC, 1, 2)]) == ""
    assert budget.reserve([NextJob(SPEC, 1, 3)]) == ""
    assert "16.0 are used and 30.0 reserved" in budget.reserve([NextJob(OTHER, 1, 2)])


def test_a_job_that_was_refused_for_want_of_gpu_hours_holds_none() -> None:
    budget = HoursBudget(20.0)
    budget.plan([SPEC])
    assert budget.reserve([NextJob(SPEC, 1, 2)]) == ""
    budget.settle(job(elapsed_seconds=HOUR))
    assert budget.admit(job(2, repeat=2))
    budget.settle(job(2, repeat=2, refused="unaffordable"))
    assert budget.used == 16.0
    assert budget.reserve([NextJob(SPEC, 1, 2)])
