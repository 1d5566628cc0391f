"""Ending the jobs of a session, and seeing that they are gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_llmbench.core.models.jobs import Job, Phase
from pytest_llmbench.launch.slurm.client import SlurmAway
from pytest_llmbench.launch.submit.launchers import Launcher, group_by_scheduler

if TYPE_CHECKING:
    from pytest_llmbench.launch.journal.journal import Journal

CANCEL_SECONDS = 30.0
LONGEST_PAUSE = 3.0


def cancel_jobs(
    jobs: Collection[Job],
    launchers: Mapping[str, Launcher],
    journal: Journal,
    *,
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
    tell: Callable[[str], None],
) -> tuple[str, ...]:
    """Cancel submitted jobs, all at once, and wait until they have ended, at most 30 s; return the ids of the rest.

    It is tried again where cancelling said that something went wrong.
    """
    going = {job.number: job for job in jobs}
    problem = _ask_to_cancel(going.values(), launchers)
    last_problem = ""
    waited, pause = 0.0, 0.25
    while going and waited < CANCEL_SECONDS:
        if problem and problem != last_problem:
            tell(problem)
            last_problem = problem
        sleep(pause)
        waited, pause = waited + pause, min(pause * 1.5, LONGEST_PAUSE)
        _record_ended(going, launchers, journal, now)
        problem = _ask_to_cancel(going.values(), launchers) if problem else ""
    return tuple(job.job_id for job in going.values())


def _ask_to_cancel(going: Collection[Job], launchers: Mapping[str, Launcher]) -> str:
    """Ask each scheduler once to end all of its jobs; return what went wrong, or nothing."""
    problems = []
    for scheduler, jobs in group_by_scheduler(going, launchers).items():
        try:
            problems.append(scheduler.cancel(jobs))
        except SlurmAway as error:
            problems.append(str(error))
    return "\n".join(filter(None, problems))


def _record_ended(
    going: dict[int, Job], launchers: Mapping[str, Launcher], journal: Journal, now: Callable[[], datetime]
) -> None:
    for scheduler, jobs in group_by_scheduler(going.values(), launchers).items():
        try:
            statuses = scheduler.poll(jobs)
        except SlurmAway:
            continue
        for number, status in statuses.items():
            if status.phase is Phase.ENDED:
                del going[number]
                text = "cancelled by pytest" if status.state == "CANCELLED" else ""
                journal.record_end(number, status, text, now())
