"""How long the watch waits for jobs, and who ended them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.job_specs import START, ended, job, job_spec, running, waiting

from pytest_llmbench.core.job_records import Blame, EndedBy, Job, JobEnd, Purpose
from pytest_llmbench.core.stall_limits import LogProgress, StallLimits
from pytest_llmbench.launch.jobs.watch import (
    Limits,
    Watch,
    explain_job_end,
    has_moved_on,
)


@pytest.mark.parametrize(
    ("purpose", "reason", "minutes"),
    [
        (Purpose.MEASURE, "Resources", 24 * 60),
        (Purpose.CONFIRM_NODES, "Resources", 60),
        (Purpose.CHECK_NODES, "Priority", 60),
        (Purpose.ALLOCATION, "ReqNodeNotAvail, UnavailableNodes:n1", 5),
        (Purpose.COMPARE_VARIANTS, "Resources", 24 * 60),
        (Purpose.ALLOCATION, "ReqNodeNotAvail, Reserved for maintenance", 24 * 60),
        (Purpose.CHECK_NODES, "ReqNodeNotAvail, UnavailableNodes:n1", 0),
        (Purpose.CONFIRM_NODES, "(ReqNodeNotAvail, Reserved for maintenance)", 0),
    ],
)
def test_pending_job_on_fixed_nodes_is_cancelled_earlier_than_other_jobs(
    tmp_path: Path, purpose: Purpose, reason: str, minutes: int
) -> None:
    watch = Watch(Limits(pending_seconds=24 * 3600.0))
    node_job = job(tmp_path, spec=job_spec(tmp_path, via="sbatch", purpose=purpose))
    cancelled = [
        passed
        for passed in range(0, 25 * 60, 5)
        if watch.decide(
            node_job, waiting(reason), START + timedelta(minutes=passed)
        ).cancel
    ]
    assert cancelled[0] == minutes + 5


GONE = "ReqNodeNotAvail, UnavailableNodes:n1"


def test_slurm_outage_does_not_count_as_unavailable_nodes(tmp_path: Path) -> None:
    watch = Watch(Limits())
    held = job(
        tmp_path, spec=job_spec(tmp_path, via="sbatch", purpose=Purpose.ALLOCATION)
    )
    assert not watch.decide(held, waiting(GONE), START).cancel
    watch.exclude_pause(900.0, [held])
    assert not watch.decide(held, waiting(GONE), START + timedelta(seconds=901)).cancel
    assert watch.decide(held, waiting(GONE), START + timedelta(seconds=1501)).cancel


def test_change_to_a_permanent_pending_reason_starts_a_new_waiting_time(
    tmp_path: Path,
) -> None:
    watch = Watch(Limits())
    held = job(
        tmp_path, spec=job_spec(tmp_path, via="sbatch", purpose=Purpose.ALLOCATION)
    )
    assert not watch.decide(held, waiting(GONE), START).cancel
    assert not watch.decide(
        held, waiting("BadConstraints"), START + timedelta(seconds=30)
    ).cancel
    assert watch.decide(
        held, waiting("BadConstraints"), START + timedelta(seconds=41)
    ).cancel


def hold(folder: Path) -> tuple[Job, Job]:
    """Return an allocation and a run in it, both running."""
    held, spec = (
        job_spec(folder, via="sbatch", purpose=Purpose.ALLOCATION),
        job_spec(folder, via="sbatch", purpose=Purpose.BISECT, allocation=1),
    )
    return job(folder, spec=held, status=running()), job(
        folder, 2, spec=spec, job_id="4711-2", status=running()
    )


STILL = "stalled for 20 min after step 5/50 (x.out)"


def test_cancelled_allocation_of_a_hung_run_is_attributed_to_pytest(
    tmp_path: Path,
) -> None:
    """Slurm reports a cancelling by the user, who is us.

    The job of the run and the allocation both state the reason.
    """
    watch = Watch(Limits(stalls=StallLimits(600.0)), lambda _job: (5, 50, 1.0))
    held, run = hold(tmp_path)
    log = LogProgress(Path("/logs/x.out"), steps=5, marks=(5,))
    for minutes in range(0, 21, 2):
        now = START + timedelta(minutes=minutes)
        assert not watch.decide(held, running(), now).cancel
        decision = watch.decide(run, running(), now, log)
    assert decision.cancel
    ends = []
    for ended_job in (held, replace(run, status=decision.status)):
        status = watch.decide(
            ended_job, ended("CANCELLED", "", cancelled_by="0"), now
        ).status
        assert status
        assert status.ended_by is EndedBy.PYTEST
        ends.append(explain_job_end(replace(ended_job, status=status)))
    assert ends == [
        JobEnd(Blame.CANCELLED, f"cancelled by pytest for job 4711-2 in it: {STILL}"),
        JobEnd(Blame.HUNG, f"it {STILL}"),
    ]


def test_allocation_cancelled_by_somebody_else_is_not_attributed_to_pytest(
    tmp_path: Path,
) -> None:
    watch = Watch(Limits())
    for held_job in hold(tmp_path):
        watch.decide(held_job, running(), START)
        status = watch.decide(
            held_job, ended("CANCELLED", "", cancelled_by="0"), START
        ).status
        assert status
        assert status.ended_by is EndedBy.OTHERS


def test_new_pending_reason_is_no_state_change() -> None:
    pending = waiting("Priority", started=START)
    assert not has_moved_on(pending, waiting("Resources", started=None))
    assert has_moved_on(pending, running())
