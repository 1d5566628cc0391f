"""The jobs of an outcome and the attempts in the logs of its run: their records, and
their texts in reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.job_records import LaunchedJob, Resumption
from pytest_llmbench.core.run_records import AttemptSummary, Measurement
from pytest_llmbench.report.gpu_hours import describe_job_cost, list_cost_properties
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    LogAttempt,
    ReportedJob,
    ReportedResumption,
)

MEASURE = "measure"
"""The purpose of the jobs that are judged for speed."""

PROPERTIES = ("job_id", "nodes", "attempts", "runs", "failed_attempts")
"""The properties of a test case that was launched, in this order, after those of every
test case."""

MOST_FILES = 5
"""Of the files that the jobs of a configuration left, so many are named on the
terminal; reports name all."""

MOST_TRIES = 6
"""Attempts that an explanation lists; other reports list more."""

MOST_KEPT = 1000
"""Attempts that a report lists: a log may have a hundred thousand."""


def pick(record: object, *names: str) -> dict[str, Any]:
    """Return some fields of a record by their names."""
    return {name: getattr(record, name) for name in names}


def describe(job: LaunchedJob, now: datetime, directory: Path) -> ReportedJob:
    """Make the record of a job; files in `directory` become relative to it."""
    return ReportedJob(
        job_id=job.job_id,
        purpose=str(job.purpose),
        attempt=job.attempt,
        repeat=job.repeat,
        state=job.state,
        nodes=tuple(job.nodes),
        step_seconds=formatting.make_finite(job.step_seconds),
        text=job.text,
        files=tuple(formatting.format_path(path, directory) for path in job.files),
        submission=str(job.submission),
        ended_by=str(job.ended_by),
        started=job.started.isoformat() if job.started else None,
        age=formatting.format_age(now - job.started) if job.started else "-",
        gpu_hours=describe_job_cost(job.cost),
    )


def describe_resumption(resumption: Resumption | None) -> ReportedResumption | None:
    """Make the record of how to resume a session; None for a session that did not only
    collect."""
    if resumption is None:
        return None
    return ReportedResumption(
        command=resumption.command,
        due=resumption.due,
        secrets=tuple(resumption.secrets),
    )


def list_attempts(outcome: ConfigurationOutcome) -> list[ReportedJob]:
    """Return the jobs of an outcome that were started to be judged; where none was,
    those of its first purpose."""
    jobs = outcome.jobs
    # A launch that only profiles has no job that is judged; its own jobs are then
    # shown.
    purposes = [job.purpose for job in jobs]
    return [
        job
        for job in jobs
        if job.purpose == (MEASURE if MEASURE in purposes else purposes[0])
    ]


def list_last_attempts(outcome: ConfigurationOutcome) -> list[ReportedJob]:
    """Return the last attempt of each of its runs."""
    # A retry replaces the attempt before it; each repeat counts by its last one.
    last = {
        job.repeat: job
        for job in sorted(list_attempts(outcome), key=lambda job: job.attempt)
    }
    return [last[repeat] for repeat in sorted(last)]


def list_failed_attempts(outcome: ConfigurationOutcome) -> list[ReportedJob]:
    """Return the attempts that were followed by another one."""
    last = list_last_attempts(outcome)
    return [job for job in list_attempts(outcome) if job not in last]


def find_age(outcome: ConfigurationOutcome) -> tuple[str, str | None]:
    """Find the age and start of the run of an outcome; without a run, those of the job
    that ran last."""
    started = [job for job in outcome.jobs if job.started]
    last = outcome.run or max(started, key=lambda job: str(job.started), default=None)
    return (last.age, last.started) if last else ("-", None)


def format_nodes(outcome: ConfigurationOutcome) -> str:
    """Return the nodes of the runs that count, folded; empty where none is known."""
    return formatting.fold_nodes(
        {node for job in list_last_attempts(outcome) for node in job.nodes}
    )


def list_properties(outcome: ConfigurationOutcome) -> dict[str, str]:
    """Return what stands for the jobs in JUnit reports; nothing where none was
    launched."""
    runs = list_last_attempts(outcome)
    if not runs:
        return {}
    # The judged run may be an earlier one: a launch counts those below --llmb-logs.
    judged = (outcome.run and outcome.run.job_id) or runs[-1].job_id
    lost = "; ".join(_format_result(job) for job in list_failed_attempts(outcome))
    counts = str(len(list_attempts(outcome))), str(len(runs))
    values = dict(
        zip(PROPERTIES, (judged, format_nodes(outcome), *counts, lost), strict=True)
    )
    return {
        name: value for name, value in values.items() if value
    } | list_cost_properties(outcome.jobs)


def summarize(outcome: ConfigurationOutcome) -> str:
    """Return where an item ran, how often, and which attempts failed: `on n[3-4], 2
    attempts: job 12 on n1: FAILED`."""
    where, runs, lost = (
        format_nodes(outcome),
        len(list_last_attempts(outcome)),
        list_failed_attempts(outcome),
    )
    parts = [f"on {where}"] if where else []
    parts += [f"{runs} runs"] if runs > 1 else []
    parts += (
        [f"{runs + len(lost)} attempts: {'; '.join(map(_format_result, lost))}"]
        if lost
        else []
    )
    return ", ".join(parts)


def format_job(outcome: ConfigurationOutcome, job: ReportedJob) -> str:
    """Return one job: `attempt 1 of 2: job 12 on n1: NODE_FAIL, retried`, `run 2 of 3:
    job 14 on n[3-4]: 10.05 s`."""
    alike = [other for other in outcome.jobs if other.purpose == job.purpose]
    runs = len({other.repeat for other in alike})
    tried = [other.attempt for other in alike if other.repeat == job.repeat]
    which = [] if job.purpose == MEASURE else [job.purpose]
    which += [f"run {job.repeat} of {runs}"] if runs > 1 else []
    which += [f"attempt {job.attempt} of {len(tried)}"] if len(tried) > 1 else []
    retried = ", retried" if job.attempt < max(tried) else ""
    return ": ".join(
        filter(None, (", ".join(which), f"{_format_result(job)}{retried}"))
    )


def list_files(outcome: ConfigurationOutcome) -> Sequence[str]:
    """Return the files that the jobs left, such as profiles, each once."""
    return list(dict.fromkeys(file for job in outcome.jobs for file in job.files))


def _format_result(job: ReportedJob) -> str:
    name = f"job {job.job_id}" if job.job_id else "a job that was not submitted"
    where = f" on {formatting.fold_nodes(job.nodes)}" if job.nodes else ""
    measured = (
        formatting.format_seconds(job.step_seconds)
        if job.step_seconds is not None
        else job.state
    )
    text = job.text.removeprefix(f"{job.state}: ")
    ended = " ".join(filter(None, (measured, f"({text})" if text else "")))
    return f"{name}{where}: {ended}" if ended else f"{name}{where}"


# --- attempts in the logs -------------------------------------------------------------


def describe_log_attempt(attempt: AttemptSummary, directory: Path) -> LogAttempt:
    """Make the record of an attempt; a log in `directory` becomes relative to it."""
    return LogAttempt(
        number=attempt.number,
        log=formatting.format_path(attempt.log, directory),
        line=attempt.line,
        first_step=attempt.first_step,
        last_step=attempt.last_step,
        finished=attempt.finished,
        ended=attempt.ended,
        starts_over=attempt.starts_over,
        judged=attempt.judged,
    )


def select_attempts(measurement: Measurement) -> list[AttemptSummary]:
    """Return the attempts that reports list: of more than MOST_KEPT the last ones, the
    judged one, and the first of each file."""
    attempts = measurement.attempts
    firsts = {attempt.log: attempt.number for attempt in reversed(attempts)}
    return [
        attempt
        for attempt in attempts
        if attempt.judged
        or attempt.number > len(attempts) - MOST_KEPT
        or firsts[attempt.log] == attempt.number
    ]


def format_log_attempts(attempts: Sequence[LogAttempt]) -> str | None:
    """Return `1 stopped after step 12 (time limit); 2 finished, judged`; None for a
    single attempt."""
    more, shown = _cut_attempts(attempts, MOST_KEPT)
    return (
        "; ".join(
            (*more, *(f"{attempt.number} {_format_end(attempt)}" for attempt in shown))
        )
        or None
    )


def list_log_attempts(attempts: Sequence[LogAttempt]) -> list[str]:
    """Return a line for each of several attempts: its number, its place, its steps, and
    how it ended.

    Of many the last ones stand there, and always the one that is judged.
    """
    more, shown = _cut_attempts(attempts, MOST_TRIES)
    return [*more, *map(_format_try, shown)]


def _cut_attempts(
    attempts: Sequence[LogAttempt], most: int
) -> tuple[list[str], list[LogAttempt]]:
    """Return how many earlier attempts are left out, in words, and the others; nothing
    for a single attempt."""
    if len(attempts) < 2:
        return [], []
    total = attempts[-1].number
    shown = [
        attempt
        for attempt in attempts
        if attempt.judged or attempt.number > total - most
    ]
    return [f"{total - len(shown)} earlier ones, not judged"] if len(
        shown
    ) < total else [], shown


def _format_try(attempt: LogAttempt) -> str:
    place = f"{attempt.log}:{attempt.line}" if attempt.line else attempt.log
    steps = (
        ""
        if attempt.last_step is None
        else f"steps {attempt.first_step} to {attempt.last_step}, "
    )
    return f"{attempt.number}: {steps}{_format_end(attempt)} ({place})"


def _format_end(attempt: LogAttempt) -> str:
    return f"{attempt.ended}, judged" if attempt.judged else str(attempt.ended)
