"""GPU-hours used by jobs, and whether a session may start another job."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import KEY, NOW
from support.job_specs import job_spec

from pytest_llmbench.core.job_records import (
    EndedBy,
    Job,
    JobSpec,
    JobStatus,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.launch.hours_budget import (
    HoursBudget,
    describe_used,
    measure_cost,
    measure_running,
)
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.jobs.journal import Journal

SPEC = job_spec(
    Path("/recipe"),
    case_id=KEY.id,
    key=KEY,
    via="sbatch",
    nodes=2,
    gpus=16,
    gpu_hours=10.0,
    gpus_per_node=8,
)
HOUR = 3600.0


def plan(limit: float, *specs: JobSpec) -> HoursBudget:
    """Return a budget of `limit` GPU-hours, with the first job of each spec reserved."""
    budget = HoursBudget(limit)
    budget.reserve_first(specs)
    return budget


def reserve(budget: HoursBudget, *repeats: int, spec: JobSpec | None = None) -> str:
    """Reserve these repeats together; return the reason they do not fit, or ""."""
    return budget.reserve([NextJob(spec or SPEC, 1, repeat) for repeat in repeats])


def job(
    number: int = 1,
    spec: JobSpec = SPEC,
    attempt: int = 1,
    repeat: int = 1,
    refused: str = "",
    **status: Any,
) -> Job:
    submission = SubmissionState(refused or "submitted")
    job_status = (
        JobStatus(**{"phase": Phase.ENDED, "state": "COMPLETED", **status})
        if status
        else None
    )
    token, job_id = f"token{number}", "" if refused else str(number)
    return Job(
        number,
        token,
        spec,
        Path("/jobs"),
        attempt,
        repeat,
        job_id,
        status=job_status,
        submission=submission,
    )


@pytest.mark.parametrize(
    ("status", "used", "requeued", "exact"),
    [
        ({"elapsed_seconds": 0.0, "state": "CANCELLED"}, 0.0, 0.0, True),
        ({"started": NOW, "ended": NOW + timedelta(hours=2)}, 32.0, 0.0, True),
        ({"started": NOW}, 0.0, 0.0, False),
        (
            {
                "elapsed_seconds": HOUR,
                "earlier_seconds": (HOUR, HOUR / 4),
                "restarts": 2,
            },
            36.0,
            20.0,
            True,
        ),
        ({"elapsed_seconds": HOUR, "restarts": 1}, 16.0, 0.0, False),
        (
            {"phase": Phase.UNKNOWN, "state": "", "elapsed_seconds": HOUR},
            0.0,
            0.0,
            False,
        ),
        (
            {"state": "RUNNING", "ended_by": EndedBy.PYTEST, "elapsed_seconds": HOUR},
            16.0,
            0.0,
            False,
        ),
        (
            {"state": "CANCELLED", "ended_by": EndedBy.PYTEST, "elapsed_seconds": HOUR},
            16.0,
            0.0,
            True,
        ),
    ],
    ids=[
        *(
            "never-started",
            "by-its-times",
            "no-end",
            "requeued-twice",
            "requeued-without-accounting",
        ),
        *("purged", "could-not-be-cancelled", "cancelled-by-us"),
    ],
)
def test_used_gpu_hours_come_from_the_job_status(
    status: dict[str, Any], used: float, requeued: float, exact: bool
) -> None:
    cost = measure_cost(job(**status))
    assert (cost.estimated, cost.used, cost.requeued, cost.exact) == (
        10.0,
        used,
        requeued,
        exact,
    )


@pytest.mark.parametrize(
    ("refused", "exact"),
    [("not-submitted", True), ("unaffordable", True), ("uncertain", False)],
)
def test_unsubmitted_job_used_no_gpu_hours(refused: str, exact: bool) -> None:
    cost = measure_cost(job(refused=refused))
    assert (cost.used, cost.exact) == (0.0, exact)


@pytest.mark.parametrize(
    ("fields", "hours"),
    [
        ({"nodes": 1, "gpus": 2}, 8.0),
        ({"gpus_per_node": 0}, 16.0),
    ],
    ids=["a-whole-node", "this-machine-or-a-journal-of-an-earlier-version"],
)
def test_job_is_charged_for_whole_nodes(fields: dict[str, Any], hours: float) -> None:
    assert (
        measure_cost(job(spec=replace(SPEC, **fields), elapsed_seconds=HOUR)).used
        == hours
    )


def test_message_states_the_gpu_hours_that_a_session_used() -> None:
    ended = job(elapsed_seconds=HOUR)
    assert describe_used([ended, job(refused="not-submitted")]) == "16.0 GPU-hours used"
    assert (
        describe_used([ended, job(phase=Phase.RUNNING, state="RUNNING")])
        == "at least 16.0 GPU-hours used"
    )
    assert describe_used([]) == "0.0 GPU-hours used"


# --- the budget -----------------------------------------------------------------------

OTHER = replace(SPEC, case_id="other")


def test_gpu_hours_used_by_an_ended_job_replace_its_estimate() -> None:
    spendthrift = plan(30.0, SPEC)
    spendthrift.add_ended(job(elapsed_seconds=HOUR))
    assert reserve(spendthrift, 2) == ""
    assert reserve(spendthrift, 3) == (
        "1 run takes 10.0 GPU-hours, but 16.0 of the 30 allowed are used and 10.0 reserved"
    )
    thrifty = plan(20.5, SPEC)
    thrifty.add_ended(job(elapsed_seconds=HOUR / 32))
    assert reserve(thrifty, 2, 3) == ""


def test_job_with_an_unknown_end_counts_its_estimate() -> None:
    budget = plan(19.0, SPEC)
    budget.add_ended(job(phase=Phase.UNKNOWN, state=""))
    assert budget.used == 10.0
    assert "but 10.0 of the 19 allowed are used" in budget.reserve([NextJob(SPEC, 2)])


def test_planned_job_is_refused_once_the_hours_are_used() -> None:
    third = replace(SPEC, case_id="third")
    budget = plan(20.0, SPEC, OTHER, third)
    assert budget.admit(job()) == ""
    assert budget.admit(job(2, OTHER)) == "", "20 are reserved, 20 are allowed"
    assert budget.admit(job(3, third)).endswith(
        "but 0.0 of the 20 allowed are used and 20.0 reserved"
    )
    budget.add_ended(job(elapsed_seconds=HOUR))
    assert (
        budget.admit(job(2, OTHER))
        == "the job takes 10.0 GPU-hours, but 16.0 of the 20 allowed are used"
    )


def test_resumed_session_counts_its_earlier_jobs_once() -> None:
    budget = HoursBudget(46.0)
    ended, live = job(elapsed_seconds=HOUR), job(2, repeat=2)
    superseded = job(3, OTHER, refused="superseded")
    budget.add_resumed([ended, live, superseded], {2})
    budget.reserve_first([SPEC, OTHER])
    assert budget.used == 16.0
    # 16 used, 10 for the live job, 10 for the job that was not submitted
    assert reserve(budget, 2) == reserve(budget, 3) == ""
    assert "16.0 of the 46 allowed are used and 30.0 reserved" in reserve(
        budget, 2, spec=OTHER
    )


def test_unaffordable_job_reserves_nothing() -> None:
    budget = plan(20.0, SPEC)
    assert reserve(budget, 2) == ""
    budget.add_ended(job(elapsed_seconds=HOUR))
    assert budget.admit(job(2, repeat=2))
    budget.add_ended(job(2, repeat=2, refused="unaffordable"))
    assert budget.used == 16.0
    assert reserve(budget, 2)


# --- allocations ----------------------------------------------------------------------

HELD = replace(SPEC, purpose=Purpose.ALLOCATION, gpu_hours=100.0)
RUN = replace(SPEC, via="allocation", allocation=1)


def test_running_allocation_counts_gpu_hours_since_its_start(tmp_path: Path) -> None:
    """A pending allocation has used nothing; an ended allocation is measured by its
    job."""
    journal = Journal(tmp_path / ".llmbench", tmp_path / "index")
    journal.begin("llmbench", NOW, {})
    for number, spec in enumerate([HELD, RUN, SPEC], 1):
        journal.record_submission(
            journal.intend(spec, NOW).number, f"471{number}", None, NOW
        )
    held, *_ = journal.list_jobs()
    journal.record_status(
        held.number,
        JobStatus(Phase.WAITING, "PENDING", started=NOW - timedelta(hours=9)),
    )
    assert measure_running(journal, NOW) == {}
    journal.record_status(held.number, JobStatus(Phase.RUNNING, "RUNNING", started=NOW))
    assert measure_running(journal, NOW + timedelta(minutes=30)) == {held.identity: 8.0}
    clock_of_another_machine = NOW - timedelta(minutes=1)
    assert measure_running(journal, clock_of_another_machine) == {held.identity: 0.0}
    journal.record_end(held.number, JobStatus(Phase.ENDED, "COMPLETED"), "", NOW)
    assert measure_running(journal, NOW) == {}
    journal.close()


class SharedHours:
    """A budget with one allocation, whose runs end one after another, and a clock."""

    def __init__(self, limit: float) -> None:
        self.now: datetime = NOW
        self.ended = False
        self.held = job(spec=HELD)
        self.budget = HoursBudget(limit, self.measure)
        self.budget.reserve_first([HELD, RUN])
        assert self.budget.admit(self.held) == ""

    def measure(self) -> dict[tuple[str, str, int, int], float]:
        hours = (self.now - NOW).total_seconds() / HOUR * HELD.occupied_gpus
        return {} if self.ended else {self.held.identity: hours}

    def run(self, repeat: int, minutes: int, state: str = "COMPLETED") -> None:
        """End a run, and let a minute pass before the next run."""
        self.now += timedelta(minutes=minutes)
        assert self.budget.admit(job(2, RUN, repeat=repeat)) == ""
        self.budget.add_ended(
            job(2, RUN, repeat=repeat, state=state, elapsed_seconds=60.0 * minutes)
        )
        self.now += timedelta(minutes=1)

    def reserve(self, repeat: int, spec: JobSpec = RUN) -> str:
        return reserve(self.budget, repeat, spec=spec)


def test_allocation_counts_its_used_hours_before_each_run() -> None:
    shared = SharedHours(61.0)
    shared.run(1, 75)
    assert shared.budget.used == 20.0
    assert shared.reserve(2) == ""
    shared.run(2, 74)  # plus the minute between the runs
    assert shared.budget.used == 40.0
    assert shared.reserve(3) == ""
    shared.run(3, 14)
    assert (
        shared.reserve(4)
        == "1 run takes 20.0 GPU-hours, but 44.0 of the 61 allowed are used"
    )
    assert shared.reserve(1, OTHER) == ""  # a shorter run still fits


@pytest.mark.parametrize(
    ("minutes", "state", "estimate", "used"),
    [
        (15, "COMPLETED", "10.0", "4.0"),
        (75, "COMPLETED", "20.0", "20.0"),
        (75, "CANCELLED", "10.0", "20.0"),
    ],
)
def test_next_run_in_an_allocation_is_estimated_as_long_as_the_longest(
    minutes: int, state: str, estimate: str, used: str
) -> None:
    """Stalled and failed runs do not change the estimate."""
    shared = SharedHours(13.0)
    shared.run(1, minutes, state)
    assert (
        shared.reserve(2)
        == f"1 run takes {estimate} GPU-hours, but {used} of the 13 allowed are used"
    )


def test_gpu_hours_of_an_ended_allocation_replace_its_running_count() -> None:
    """Also if the run that ended with the allocation is reported after it."""
    shared = SharedHours(100.0)
    shared.run(1, 60)
    shared.ended = True
    shared.budget.add_ended(
        replace(
            shared.held,
            status=JobStatus(Phase.ENDED, "CANCELLED", elapsed_seconds=2 * HOUR),
        )
    )
    shared.budget.add_ended(
        job(2, RUN, repeat=2, state="CANCELLED", elapsed_seconds=None)
    )
    assert shared.budget.used == 32.0


def test_new_allocation_reserves_its_next_run() -> None:
    shared = SharedHours(25.0)
    shared.run(1, 60)
    following = [NextJob(HELD, 1, 2), NextJob(RUN, 1, 2)]
    assert (
        shared.budget.reserve(following)
        == "1 run takes 16.0 GPU-hours, but 16.0 of the 25 allowed are used"
    )


def test_resumed_session_counts_its_running_allocation() -> None:
    budget = HoursBudget(46.0, lambda: {job(spec=HELD).identity: 24.0})
    budget.add_resumed([job(spec=HELD), job(2, RUN, elapsed_seconds=HOUR)], {1})
    assert budget.used == 24.0
    assert reserve(budget, 2, spec=RUN) == ""
    assert reserve(budget, 3, spec=RUN)
