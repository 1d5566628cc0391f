"""Records and texts of launched jobs, and of the attempts in the logs of a run."""

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
"""The purpose of jobs whose speed is judged."""

PROPERTIES = ("job_id", "nodes", "attempts", "runs", "failed_attempts")
"""Additional JUnit properties of a launched test case, in their order."""

MOST_FILES = 5
"""Maximum number of files of a configuration on the terminal; reports list all."""

MOST_TRIES = 6
"""Maximum number of attempts in a message; other reports list `MOST_KEPT`."""

MOST_KEPT = 1000
"""Maximum number of attempts in a report; a log may contain 100,000."""


def pick(record: object, *names: str) -> dict[str, Any]:
    """Return the given fields of a record as a dict."""
    return {name: getattr(record, name) for name in names}


def describe(job: LaunchedJob, now: datetime, directory: Path) -> ReportedJob:
    """Convert a job into its record; files in `directory` become relative to it."""
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
    """Convert the resume command of a collecting session into its record.

    Returns None for other sessions.
    """
    if resumption is None:
        return None
    return ReportedResumption(
        command=resumption.command,
        due=resumption.due,
        secrets=tuple(resumption.secrets),
    )


def list_attempts(outcome: ConfigurationOutcome) -> list[ReportedJob]:
    """Return the jobs whose speed is judged, else the jobs of the first purpose.

    A launch that only profiles, for example, has no judged job.
    """
    if not outcome.jobs:
        return []
    purposes = [job.purpose for job in outcome.jobs]
    purpose = MEASURE if MEASURE in purposes else purposes[0]
    return [job for job in outcome.jobs if job.purpose == purpose]


def list_last_attempts(outcome: ConfigurationOutcome) -> list[ReportedJob]:
    """Return the last attempt of each repeat; a retry replaces earlier attempts."""
    attempts = sorted(list_attempts(outcome), key=lambda job: job.attempt)
    last_by_repeat = {job.repeat: job for job in attempts}
    return [last_by_repeat[repeat] for repeat in sorted(last_by_repeat)]


def list_failed_attempts(outcome: ConfigurationOutcome) -> list[ReportedJob]:
    """Return the attempts that were retried."""
    last = list_last_attempts(outcome)
    return [job for job in list_attempts(outcome) if job not in last]


def find_age(outcome: ConfigurationOutcome) -> tuple[str, str | None]:
    """Return the age and start of the run, or of the last started job without a run.

    Returns ("-", None) if neither exists.
    """
    if outcome.run:
        return outcome.run.age, outcome.run.started
    started = [job for job in outcome.jobs if job.started]
    if not started:
        return "-", None
    # ISO times sort as text.
    last = max(started, key=lambda job: str(job.started))
    return last.age, last.started


def format_nodes(outcome: ConfigurationOutcome) -> str:
    """Return the nodes of the last attempts, folded (`n[3-4]`); "" if unknown."""
    return formatting.fold_nodes(
        {node for job in list_last_attempts(outcome) for node in job.nodes}
    )


def list_properties(outcome: ConfigurationOutcome) -> dict[str, str]:
    """Return the JUnit properties of the jobs; no properties without a launch."""
    last_attempts = list_last_attempts(outcome)
    if not last_attempts:
        return {}
    job_id = last_attempts[-1].job_id
    if outcome.run and outcome.run.job_id:
        # The judged run may be an earlier run from --llmb-logs.
        job_id = outcome.run.job_id
    failed = "; ".join(_format_result(job) for job in list_failed_attempts(outcome))
    values = {
        "job_id": job_id,
        "nodes": format_nodes(outcome),
        "attempts": str(len(list_attempts(outcome))),
        "runs": str(len(last_attempts)),
        "failed_attempts": failed,
    }
    properties = {name: values[name] for name in PROPERTIES if values[name]}
    return properties | list_cost_properties(outcome.jobs)


def summarize(outcome: ConfigurationOutcome) -> str:
    """Summarise the jobs: `on n[3-4], 2 attempts: job 12 on n1: FAILED`."""
    nodes = format_nodes(outcome)
    runs = len(list_last_attempts(outcome))
    failed = list_failed_attempts(outcome)
    texts = [f"on {nodes}"] if nodes else []
    if runs > 1:
        texts.append(f"{runs} runs")
    if failed:
        results = "; ".join(map(_format_result, failed))
        texts.append(f"{runs + len(failed)} attempts: {results}")
    return ", ".join(texts)


def format_job(outcome: ConfigurationOutcome, job: ReportedJob) -> str:
    """Format a job: `attempt 1 of 2: job 12 on n1: NODE_FAIL, retried`."""
    same_purpose = [other for other in outcome.jobs if other.purpose == job.purpose]
    runs = len({other.repeat for other in same_purpose})
    attempts = [other.attempt for other in same_purpose if other.repeat == job.repeat]
    labels = [] if job.purpose == MEASURE else [job.purpose]
    if runs > 1:
        labels.append(f"run {job.repeat} of {runs}")
    if len(attempts) > 1:
        labels.append(f"attempt {job.attempt} of {len(attempts)}")
    result = _format_result(job)
    if job.attempt < max(attempts):
        result += ", retried"
    return f"{', '.join(labels)}: {result}" if labels else result


def list_files(outcome: ConfigurationOutcome) -> Sequence[str]:
    """Return the files that the jobs produced, such as profiles, without duplicates."""
    return list(dict.fromkeys(file for job in outcome.jobs for file in job.files))


def _format_result(job: ReportedJob) -> str:
    """Return `job 12 on n1: 7.325 s`, or without a time `job 12: FAILED (text)`."""
    name = f"job {job.job_id}" if job.job_id else "job not submitted"
    if job.nodes:
        name += f" on {formatting.fold_nodes(job.nodes)}"
    result = job.state
    if job.step_seconds is not None:
        result = formatting.format_seconds(job.step_seconds)
    explanation = job.text.removeprefix(f"{job.state}: ")
    if explanation:
        result = f"{result} ({explanation})" if result else f"({explanation})"
    return f"{name}: {result}" if result else name


# --- attempts in the logs -------------------------------------------------------------


def describe_log_attempt(attempt: AttemptSummary, directory: Path) -> LogAttempt:
    """Convert an attempt into its record; a log in `directory` becomes relative."""
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
    """Select at most about MOST_KEPT attempts for reports.

    Of more attempts, selects the last ones, the judged one, and the first one in each
    log file.
    """
    attempts = measurement.attempts
    # Reversed, so that the first attempt of a file is the one that remains.
    first_in_log = {attempt.log: attempt.number for attempt in reversed(attempts)}
    first_kept = len(attempts) - MOST_KEPT + 1  # attempts are numbered from 1
    return [
        attempt
        for attempt in attempts
        if attempt.judged
        or attempt.number >= first_kept
        or attempt.number == first_in_log[attempt.log]
    ]


def format_log_attempts(attempts: Sequence[LogAttempt]) -> str | None:
    """Format attempts: `1 stopped after step 12 (time limit); 2 finished, judged`.

    Returns None for a single attempt.
    """
    omission_texts, shown = _cut_attempts(attempts, MOST_KEPT)
    ends = [f"{attempt.number} {_format_end(attempt)}" for attempt in shown]
    return "; ".join([*omission_texts, *ends]) or None


def list_log_attempts(attempts: Sequence[LogAttempt]) -> list[str]:
    """Return a line for each of several attempts; no lines for a single attempt.

    A line contains the number, the steps, the end and the log position. If there are
    more than MOST_TRIES attempts, only the last ones and the judged one are listed.
    """
    omission_texts, shown = _cut_attempts(attempts, MOST_TRIES)
    return [*omission_texts, *map(_format_attempt, shown)]


def _cut_attempts(
    attempts: Sequence[LogAttempt], most: int
) -> tuple[list[str], list[LogAttempt]]:
    """Return a list with the number of omitted attempts, and the attempts to show.

    Shows the last `most` attempts and the judged one. The first list contains one text,
    or none if no attempt is omitted. Both lists are empty for a single attempt.
    """
    if len(attempts) < 2:
        return [], []
    total = attempts[-1].number  # reports may lack earlier attempts
    shown = [
        attempt
        for attempt in attempts
        if attempt.judged or attempt.number > total - most
    ]
    omitted_count = total - len(shown)
    texts = [f"{omitted_count} earlier ones, not judged"] if omitted_count > 0 else []
    return texts, shown


def _format_attempt(attempt: LogAttempt) -> str:
    """Return `2: steps 12 to 50, finished, judged (run/log.out:831)`."""
    position = f"{attempt.log}:{attempt.line}" if attempt.line else attempt.log
    steps = ""
    if attempt.last_step is not None:
        steps = f"steps {attempt.first_step} to {attempt.last_step}, "
    return f"{attempt.number}: {steps}{_format_end(attempt)} ({position})"


def _format_end(attempt: LogAttempt) -> str:
    return f"{attempt.ended}, judged" if attempt.judged else str(attempt.ended)
