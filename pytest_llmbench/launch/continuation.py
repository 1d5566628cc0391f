"""Stopped sessions: cancel or keep their jobs, and print the commands to continue."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

from msgspec import structs

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import TRIALS, JobSpec, Resumption
from pytest_llmbench.core.options import JUDGING_OPTIONS, LAUNCHING
from pytest_llmbench.core.outcome_records import ConfigurationResult
from pytest_llmbench.core.redaction import hide_password_of
from pytest_llmbench.launch.hours_budget import describe_used
from pytest_llmbench.launch.jobs.job_engine import Engine
from pytest_llmbench.launch.jobs.journal import Journal, require_journal
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.plan.planner import Host
from pytest_llmbench.launch.run_engine import RunEngine
from pytest_llmbench.launch.schedulers.registry import load_scheduler
from pytest_llmbench.launch.schedulers.scheduler import Scheduler

SESSION = "--llmb-session"
ACKNOWLEDGED = "--llmb-acknowledged"
WIDTH = 79  # columns of the terminal
BREAK = 4  # columns kept for the space before a word and ` \` after it

LOCAL_METAVARS = ("PATH", "DIR", "FILE", "URL", "REASON")
"""Metavars of options that are left out of the command to collect a session.

Their values are paths that may not exist elsewhere, or reasons to be recorded.
"""


def format_collect_command(
    session: str, journal: Path, baselines: Sequence[Path], command: Sequence[str]
) -> str:
    """Format the command that collects a session from any folder.

    The command is broken into lines of a terminal. `journal` is the journal folder.
    `command` contains the arguments of the session that submitted the jobs.
    """
    arguments = [
        "pytest",
        *_pick_selection(command),
        *_pick_judging(command),
        "--llmb-collect",
        f"{SESSION}={session}",
        f"--llmb-journal={journal.absolute()}",
        *(f"--llmb-baselines={folder}" for folder in baselines),
    ]
    lines = []
    line = " "  # the first line is indented by two columns, further lines by six
    for argument in map(shlex.quote, arguments):
        is_full = len(line) + len(argument) > WIDTH - BREAK
        if is_full and line.strip():
            lines.append(f"{line} \\")
            line = "     "
        line += f" {argument}"
    return "\n".join([*lines, line])


def format_resume_command(
    session: str, command: Sequence[str], *, collect: bool = False
) -> str:
    """Format the command that resumes a session, or with `collect` only collects it.

    `command` contains the arguments of the session.
    """
    options = [hide_password_of(argument) for argument in _drop_launching(command)]
    return shlex.join(
        [
            "pytest",
            *options,
            "--llmb-collect" if collect else "--llmb-resume",
            f"{SESSION}={session}",
        ]
    )


def _pick_selection(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments `-k` and `-m` with their values."""
    for argument, following in pairwise((*command, "")):
        if argument in ("-k", "-m"):  # `-k llama`
            yield from (argument, following)
        elif argument.startswith(("-k", "-m")):  # `-kllama`
            yield argument


def _pick_judging(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments that change how runs are judged, with their values.

    Without these arguments a failed run could pass, for example with another tolerance.
    Options with local values (LOCAL_METAVARS) are left out, except the file of
    --llmb-acknowledged, whose path becomes absolute.
    """
    judging = [
        option for option in JUDGING_OPTIONS if option.metavar not in LOCAL_METAVARS
    ]
    options = {option.flag: option for option in judging if option.has_flag}
    # the same settings as ini values, given with -o or --override-ini
    ini_keys = tuple(f"{option.dest}=" for option in judging if option.ini)
    short_overrides = tuple(f"-o{key}" for key in ini_keys)
    long_overrides = tuple(f"--override-ini={key}" for key in ini_keys)
    for argument, following in pairwise((*command, "")):
        is_override = argument in ("-o", "--override-ini")
        if is_override and following.startswith(ini_keys):  # `-o llmb_tolerance=0.1`
            yield from (argument, following)
        elif argument.startswith((*short_overrides, *long_overrides)):
            yield argument  # `-ollmb_tolerance=0.1`
        flag, equals, value = argument.partition("=")
        if flag == ACKNOWLEDGED:
            file = value if equals else following
            yield f"{flag}={Path(file).absolute()}"
        elif flag in options:
            yield argument  # `--llmb-certify`, `--llmb-tolerance=0.1`
            is_value_separate = options[flag].metavar and not equals
            if is_value_separate and not following.startswith("-"):
                yield following  # `--llmb-tolerance 0.1`


def _drop_launching(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments without the options that start a launch or name a session."""
    for previous, argument in pairwise(("", *command)):
        flag, _, _ = argument.partition("=")
        # `--llmb-session=ID`, or ID after `--llmb-session`
        names_session = SESSION in (flag, previous)
        if argument not in LAUNCHING and not names_session:
            yield argument


def add_resumptions(
    results: Mapping[str, ConfigurationResult], engine: RunEngine, command: str
) -> dict[str, ConfigurationResult]:
    """Add `command`, which resumes a collected session, to the results of its jobs.

    The command is marked as due if it would start a run: one that was never submitted,
    or one that its policy requested while the session only collected.
    """
    with_resumptions = dict(results)
    histories = engine.histories
    for case, result in results.items():
        history = histories.get(case)
        never_submitted = (
            result.judgement.reason is Reason.NOT_SUBMITTED and not result.jobs
        )
        if not never_submitted and history is None:  # not part of the session
            continue
        # runs that the policy requested, but that collecting did not start
        has_due_run = history is not None and bool(history.due)
        resumption = Resumption(
            command,
            due=never_submitted or has_due_run,
            secrets=_list_secrets(history.spec) if history else (),
        )
        with_resumptions[case] = structs.replace(result, resumption=resumption)
    return with_resumptions


def _list_secrets(spec: JobSpec) -> tuple[str, ...]:
    """List the names of the secret variables that have a value in a job."""
    environment = dict(spec.environment)
    return tuple(name for name in spec.secrets if environment.get(name))


# --- stopped sessions -----------------------------------------------------------------


class Interrupted(Exception):  # noqa: N818 (not an error: the user stopped it)
    """Raised when the user stops a launching session. The message describes its jobs."""


def stop_jobs(
    engine: Engine, journal: Journal, launch: LaunchSettings, host: Host
) -> str:
    """Cancel the jobs of this session, or leave them running (`--llmb-keep-jobs`).

    Returns a text for the user: what was cancelled, what may still run, and the command
    to continue.
    """
    try:
        # runs in an allocation are not counted in addition to it
        job_count = sum(
            bool(job.job_id) and not job.spec.allocation for job in journal.list_live()
        )
        if launch.keep_jobs:
            kept_text = f"{formatting.count_noun(job_count, 'job')} left running"
            return f"{kept_text}. Resume session {journal.session} with --llmb-resume; {describe_running(journal, launch, host)}"
        host.tell("llmbench: stopped; cancelling the jobs of this session ...")
        uncancelled = engine.cancel()
        if not uncancelled:
            journal.finish(host.now())
    except KeyboardInterrupt:
        return (
            f"interrupted while cancelling; {describe_running(journal, launch, host)}"
        )
    except LaunchError as error:
        return f"{error}\n{describe_running(journal, launch, host)}"
    if uncancelled:
        return f"could not be cancelled: {formatting.join_first(uncancelled)}; {describe_running(journal, launch, host)}"
    # all jobs ended between two polls: their runs can be judged
    if not job_count and journal.list_jobs():
        # an A/B or a search cannot only be collected: each run decides the next run
        is_trial = launch.purpose in TRIALS
        command = format_resume_command(
            journal.session, host.command, collect=not is_trial
        )
        action = "resume" if is_trial else "judge"
        return f"no job of session {journal.session} was running. To {action} it, run\n  {command}"
    return f"{formatting.count_noun(job_count, 'job')} cancelled, {describe_used(journal.list_jobs())}"


def report_running_jobs(journal: Journal, launch: LaunchSettings, host: Host) -> None:
    """Print the jobs that may still run when a session ends in an error.

    Prints nothing without such jobs, or if the terminal is gone.
    """
    with suppress(OSError):
        if journal.list_live():
            host.tell(
                f"llmbench: session {journal.session}: {describe_running(journal, launch, host)}"
            )


def describe_running(journal: Journal, launch: LaunchSettings, host: Host) -> str:
    """List the jobs that may still run, and the commands to cancel and to resume."""
    ids_by_scheduler: dict[type[Scheduler], list[str]] = {}
    local_jobs, uncertain_jobs = [], []
    for job in journal.list_live():
        case, scheduler = job.spec.case_id, load_scheduler(job.spec.via)
        if not job.job_id:
            uncertain_jobs.append(f"{case} may have been submitted")
            continue
        if scheduler.is_local:  # without a command that cancels it
            local_jobs.append(f"{case} on {scheduler.name}")
            continue
        scheduler_ids = ids_by_scheduler.setdefault(scheduler, [])
        # runs in an allocation share its id
        if job.scheduler_id not in scheduler_ids:
            scheduler_ids.append(job.scheduler_id)
    cluster_jobs, cancel_texts = [], ""
    for scheduler, scheduler_ids in ids_by_scheduler.items():
        cluster_jobs += [f"job {job_id}" for job_id in scheduler_ids]
        if cancel_command := scheduler.format_cancel(scheduler_ids):
            cancel_texts += f"cancel with `{cancel_command}`, "
    jobs = [*cluster_jobs, *local_jobs, *uncertain_jobs]
    names = formatting.join_first(jobs, 20) or "no job"
    command = format_resume_command(
        journal.session, host.command, collect=launch.collect
    )
    return f"may still run: {names}; {cancel_texts}or resume the session:\n  {command}"


def describe_early_interrupt(launch: LaunchSettings, host: Host) -> str:
    """Describe the jobs that may still run if a session is interrupted before its launch."""
    if not launch.continues:
        return "interrupted before anything was submitted"
    try:
        require_journal(host.index, launch.session, host.folder)
        with closing(Journal(host.folder, host.index)) as journal:
            session = journal.resume(launch.session)
            return f"interrupted before session {session} was resumed; {describe_running(journal, launch, host)}"
    except LaunchError as error:
        return f"interrupted before a session was resumed: {error}"
