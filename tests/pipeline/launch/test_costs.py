"""What a job used, and what a session may still start: nothing is made up, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import KEY, NOW

from pytest_llmbench.core.models.jobs import EndedBy, Job, JobSpec, JobStatus, Phase, Purpose, SubmissionState
from pytest_llmbench.launch.follow import NextJob
from pytest_llmbench.launch.journal import Journal
from pytest_llmbench.pipeline.launch.costs import HoursBudget, describe_used, measure_cost, measure_held

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


# --- in an allocation -------------------------------------------------------------------------------------

HELD = replace(SPEC, purpose=Purpose.ALLOCATION, gpu_hours=100.0)
RUN = replace(SPEC, via="allocation", allocation=1)


def test_what_an_allocation_has_used_so_far_is_the_time_since_it_started(tmp_path: Path) -> None:
    """One that waits has used nothing, and of one that has ended its job tells."""
    clock, journal = [NOW], Journal(tmp_path / ".llmbench", tmp_path / "index")
    journal.begin("llmbench", NOW, {})

    def measure() -> list[float]:
        return list(measure_held(journal, clock[0]).values())

    for number, spec in enumerate([HELD, RUN, SPEC], 1):
        journal.record_submission(journal.intend(spec, NOW).number, f"471{number}", None, NOW)
    held, *_ = journal.list_jobs()
    journal.record_status(held.number, JobStatus(Phase.WAITING, "PENDING", started=NOW - timedelta(hours=9)))
    assert measure() == []
    journal.record_status(held.number, JobStatus(Phase.RUNNING, "RUNNING", started=NOW))
    clock[0] = NOW + timedelta(minutes=30)
    assert measure_held(journal, clock[0]) == {held.identity: 8.0}
    clock[0] = NOW - timedelta(minutes=1)  # the clocks of two machines
    assert measure() == [0.0]
    journal.record_end(held.number, JobStatus(Phase.ENDED, "COMPLETED"), "", NOW)
    assert measure() == []
    journal.close()


class SharedHours:
    """A budget with one allocation, whose runs end one after the other, on a clock."""

    def __init__(self, limit: float) -> None:
        self.now: datetime = NOW
        self.ended = False
        self.held = job(spec=HELD)
        self.budget = HoursBudget(limit, self.measure)
        self.budget.plan([HELD, RUN])
        assert self.budget.admit(self.held) == ""

    def measure(self) -> dict[tuple[str, str, int, int], float]:
        hours = (self.now - NOW).total_seconds() / HOUR * HELD.occupied_gpus
        return {} if self.ended else {self.held.identity: hours}

    def run(self, repeat: int, minutes: int, state: str = "COMPLETED") -> None:
        """Let a run end, and a minute pass before the next one."""
        self.now += timedelta(minutes=minutes)
        assert self.budget.admit(job(2, RUN, repeat=repeat)) == ""
        self.budget.settle(job(2, RUN, repeat=repeat, state=state, elapsed_seconds=60.0 * minutes))
        self.now += timedelta(minutes=1)

    def reserve(self, repeat: int, spec: JobSpec = RUN) -> str:
        return self.budget.reserve([NextJob(spec, 1, repeat)])


def test_what_an_allocation_has_used_is_held_against_what_is_allowed_before_each_run() -> None:
    shared = SharedHours(61.0)
    shared.run(1, 75)
    assert shared.budget.used == 20.0
    assert shared.reserve(2) == ""
    shared.run(2, 74)  # beside the minute between both
    assert shared.budget.used == 40.0
    assert shared.reserve(3) == ""
    shared.run(3, 14)
    assert shared.reserve(4) == "1 run takes 20.0 GPU-hours, and of the 61 allowed 44.0 are used"
    assert shared.reserve(1, OTHER) == ""  # what is shorter still fits


@pytest.mark.parametrize(
    ("minutes", "state", "estimate", "used"),
    [
        (15, "COMPLETED", "10.0", "4.0"),
        (75, "COMPLETED", "20.0", "20.0"),
        (75, "FAILED", "10.0", "20.0"),
        (75, "CANCELLED", "10.0", "20.0"),
    ],
)
def test_the_next_run_takes_as_long_as_the_longest_one_that_ended_well(
    minutes: int, state: str, estimate: str, used: str
) -> None:
    """At least as long as is estimated; one that stood still, or failed late, says nothing of the next one."""
    shared = SharedHours(13.0)
    shared.run(1, minutes, state)
    assert shared.reserve(2) == f"1 run takes {estimate} GPU-hours, and of the 13 allowed {used} are used"


def test_what_an_allocation_used_in_the_end_takes_the_place_of_what_it_had_used() -> None:
    """Also where the run that ended with it is told of behind it."""
    shared = SharedHours(100.0)
    shared.run(1, 60)
    shared.ended = True
    shared.budget.settle(replace(shared.held, status=JobStatus(Phase.ENDED, "CANCELLED", elapsed_seconds=2 * HOUR)))
    shared.budget.settle(job(2, RUN, repeat=2, state="CANCELLED", elapsed_seconds=None))
    assert shared.budget.used == 32.0


def test_a_new_allocation_reserves_its_next_run() -> None:
    shared = SharedHours(25.0)
    shared.run(1, 60)
    following = [NextJob(HELD, 1, 2), NextJob(RUN, 1, 2)]
    assert shared.budget.reserve(following) == "1 run takes 16.0 GPU-hours, and of the 25 allowed 16.0 are used"


def test_a_session_that_goes_on_counts_what_its_allocation_has_used_while_nobody_looked() -> None:
    budget = HoursBudget(46.0, lambda: {job(spec=HELD).identity: 24.0})
    budget.take_up([job(spec=HELD), job(2, RUN, elapsed_seconds=HOUR)], {1})
    assert budget.used == 24.0
    assert budget.reserve([NextJob(RUN, 1, 2)]) == ""
    assert budget.reserve([NextJob(RUN, 1, 3)])
