"""What becomes of the jobs of a launch that somebody stops, and what is said of
them."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import TRIALS
from pytest_llmbench.launch.continuation import format_resume
from pytest_llmbench.launch.hours_budget import describe_used
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.plan.planner import Host
from pytest_llmbench.launch.schedulers import load_scheduler
from pytest_llmbench.launch.schedulers.scheduler import Scheduler

if TYPE_CHECKING:
    from pytest_llmbench.launch.jobs.job_engine import Engine
    from pytest_llmbench.launch.jobs.journal import Journal


class Interrupted(Exception):  # noqa: N818 (no error: somebody stopped the session)
    """The session was stopped while it launched; the message says what became of its
    jobs."""


def stop_jobs(
    engine: Engine, journal: Journal, launch: LaunchSettings, host: Host
) -> str:
    """Cancel the jobs of this session, or leave them (`--llmb-keep-jobs`), and say
    so."""
    try:
        before = sum(
            bool(job.job_id) and not job.spec.allocation for job in journal.list_live()
        )
        if launch.keep_jobs:
            kept = f"{formatting.count_noun(before, 'job')} left running"
            return f"{kept}: --llmb-resume goes on with {journal.session}; {describe_left(journal, launch, host)}"
        host.tell("llmbench: stopped; cancelling the jobs of this session ...")
        left = engine.cancel()
        if not left:
            journal.finish(host.now())
    except KeyboardInterrupt:
        return f"stopped while cancelling; {describe_left(journal, launch, host)}"
    except LaunchError as error:
        return f"{error}\n{describe_left(journal, launch, host)}"
    if left:
        return f"could not be cancelled: {formatting.join_first(left)}; {describe_left(journal, launch, host)}"
    if (
        not before and journal.list_jobs()
    ):  # they ended while nobody looked, and what they brought is not lost
        chain = launch.purpose in TRIALS  # each run decides which one follows
        command = format_resume(journal.session, host.command, collect=not chain)
        does = "goes on" if chain else "is judged"
        return f"no job of session {journal.session} was running; it {does} with\n  {command}"
    return f"{formatting.count_noun(before, 'job')} cancelled, {describe_used(journal.list_jobs())}"


def tell_left(journal: Journal, launch: LaunchSettings, host: Host) -> None:
    """Say which jobs go on where a session ends in an error; without a terminal there
    is nobody to tell."""
    with suppress(OSError):
        if journal.list_live():
            host.tell(
                f"llmbench: session {journal.session}: {describe_left(journal, launch, host)}"
            )


def describe_left(journal: Journal, launch: LaunchSettings, host: Host) -> str:
    """Say which jobs of a session may run on, how to end them, and with which command
    the session goes on."""
    live = journal.list_live()
    submitted = [(load_scheduler(job.spec.via), job) for job in live if job.job_id]
    ids: dict[type[Scheduler], list[str]] = {}
    for scheduler, job in submitted:
        known = ids.setdefault(scheduler, [])
        known += (
            [job.scheduler_id]
            if not scheduler.here and job.scheduler_id not in known
            else []
        )
    here = [
        f"{job.spec.case_id} on {scheduler.name}"
        for scheduler, job in submitted
        if scheduler.here
    ]
    unknown = [
        f"{job.spec.case_id} was perhaps being submitted"
        for job in live
        if not job.job_id
    ]
    commands = filter(
        None, (scheduler.format_cancel(own) for scheduler, own in ids.items())
    )
    ends = "".join(f"`{command}` ends them, " for command in commands)
    elsewhere = (f"job {job_id}" for own in ids.values() for job_id in own)
    named = formatting.join_first([*elsewhere, *here, *unknown], 20) or "no job"
    command = format_resume(journal.session, host.command, collect=launch.collect)
    return (
        f"may still run: {named}; {ends}--llmb-resume goes on with them:\n  {command}"
    )


def describe_untouched(launch: LaunchSettings, host: Host) -> str:
    """Say what goes on where a session was stopped before it had begun, or taken up,
    any job."""
    from pytest_llmbench.launch.jobs.journal import Journal
    from pytest_llmbench.launch.jobs.session_index import require_journal

    if not launch.goes_on:
        return "interrupted before anything was submitted"
    try:
        require_journal(host.index, launch.session, host.folder)
        with closing(Journal(host.folder, host.index)) as journal:
            session = journal.resume(launch.session)
            return f"interrupted before session {session} was taken up; {describe_left(journal, launch, host)}"
    except LaunchError as error:
        return f"interrupted before a session was taken up: {error}"
