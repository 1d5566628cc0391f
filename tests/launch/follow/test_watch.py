"""How long a job is waited for that no verdict waits for."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from job_specs import START, job, job_spec, waiting

from pytest_llmbench.core.models.jobs import Purpose
from pytest_llmbench.launch.follow.watch import Limits, Watch


@pytest.mark.parametrize(
    ("purpose", "reason", "minutes"),
    [
        (Purpose.MEASURE, "Resources", 24 * 60),
        (Purpose.MEASURE, "ReqNodeNotAvail, UnavailableNodes:n1", 24 * 60),
        (Purpose.CONFIRM_NODES, "Resources", 60),
        (Purpose.CHECK_NODES, "Priority", 60),
        (Purpose.ALLOCATION, "ReqNodeNotAvail, UnavailableNodes:n1", 5),
        (Purpose.BISECT, "ReqNodeNotAvail, UnavailableNodes:n1", 5),
        (Purpose.COMPARE_VARIANTS, "Resources", 24 * 60),
        (Purpose.ALLOCATION, "ReqNodeNotAvail, Reserved for maintenance", 24 * 60),
        (Purpose.CHECK_NODES, "ReqNodeNotAvail, UnavailableNodes:n1", 0),
        (Purpose.CONFIRM_NODES, "(ReqNodeNotAvail, Reserved for maintenance)", 0),
    ],
)
def test_a_job_on_suspect_nodes_is_not_waited_for_all_night(
    tmp_path: Path, purpose: Purpose, reason: str, minutes: int
) -> None:
    watch = Watch(Limits(pending_seconds=24 * 3600.0))
    beside = job(tmp_path, spec=job_spec(tmp_path, purpose=purpose))
    cancelled = [
        passed
        for passed in range(0, 25 * 60, 5)
        if watch.decide(beside, waiting(reason), START + timedelta(minutes=passed)).cancel
    ]
    assert cancelled[0] == minutes + 5


GONE = "ReqNodeNotAvail, UnavailableNodes:n1"


def test_a_time_in_which_nobody_answered_is_none_in_which_nodes_were_gone(tmp_path: Path) -> None:
    watch = Watch(Limits())
    held = job(tmp_path, spec=job_spec(tmp_path, purpose=Purpose.ALLOCATION))
    assert not watch.decide(held, waiting(GONE), START).cancel
    watch.leave_out_pause(900.0, [held])
    assert not watch.decide(held, waiting(GONE), START + timedelta(seconds=901)).cancel
    assert watch.decide(held, waiting(GONE), START + timedelta(seconds=1501)).cancel


def test_a_reason_that_never_clears_is_timed_by_itself(tmp_path: Path) -> None:
    watch = Watch(Limits())
    held = job(tmp_path, spec=job_spec(tmp_path, purpose=Purpose.ALLOCATION))
    assert not watch.decide(held, waiting(GONE), START).cancel
    assert not watch.decide(held, waiting("BadConstraints"), START + timedelta(seconds=30)).cancel
    assert watch.decide(held, waiting("BadConstraints"), START + timedelta(seconds=41)).cancel
