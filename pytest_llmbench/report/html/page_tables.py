"""The detail tables of a configuration on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_llmbench.core import formatting
from pytest_llmbench.report import explain
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.gpu_hours import format_job_cost
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    LogAttempt,
    ReportedChange,
    ReportedJob,
)
from pytest_llmbench.report.verdicts import locate_log

ENVIRONMENT_FIRST = ("container", "driver", "cuda", "nccl", "pytorch")


class ShownTable(NamedTuple):
    """A table of texts on the page."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def list_tables(outcome: ConfigurationOutcome) -> Iterator[ShownTable]:
    """Yield all detail tables of an outcome; a table may have no rows."""
    yield ShownTable(
        "Metrics",
        ("metric", "measured", "baseline", "difference"),
        explain.compare_metrics(outcome),
    )
    yield ShownTable(
        "Changes of level",
        ("from", "difference", "interval", "environment", "state"),
        [_list_change(change) for change in outcome.changes],
    )
    yield ShownTable(
        "Attempts in the logs",
        ("attempt", "steps", "end", "log"),
        _list_attempts(outcome.tries or ()),
    )
    yield ShownTable(
        "Jobs",
        ("job", "purpose", "nodes", "GPU-hours", "result"),
        [_list_job(outcome, job) for job in outcome.jobs],
    )
    files = jobs.list_files(outcome)
    yield ShownTable("Files", ("file",), [(file,) for file in files])
    environment = outcome.environment
    main_names = [name for name in ENVIRONMENT_FIRST if name in environment]
    names = [*main_names, *sorted(environment.keys() - set(main_names))]
    rows = [(name, str(environment[name])) for name in names]
    yield ShownTable("Environment", ("name", "value"), rows)


def _list_job(outcome: ConfigurationOutcome, job: ReportedJob) -> tuple[str, ...]:
    """Return the cells of a job."""
    return (
        job.job_id or "not submitted",
        job.purpose,
        formatting.fold_nodes(job.nodes) or "-",
        format_job_cost(job),
        jobs.format_job(outcome, job),
    )


def _list_change(change: ReportedChange) -> tuple[str, ...]:
    """Return the cells of a level change."""
    environment = "; ".join(
        f"{name}: {before} to {after}"
        for name, (before, after) in sorted(change.environment.items())
    )
    return (
        change.started[:10],
        formatting.format_fraction(change.difference),
        f"{formatting.format_fraction(change.low)} to {formatting.format_fraction(change.high)}",
        environment or "no known change",
        _format_state(change),
    )


def _format_state(change: ReportedChange) -> str:
    """Return `open`, `reverted since`, or `acknowledged by alice until ...: reason`."""
    acknowledged = change.acknowledged
    if not acknowledged:
        return "open" if change.stands else "reverted since"
    until = f" until {acknowledged.expires}" if acknowledged.expires else ""
    by = f" by {acknowledged.by}" if acknowledged.by else ""
    return f"acknowledged{by}{until}: {acknowledged.reason}"


def _list_attempts(attempts: Sequence[LogAttempt]) -> list[tuple[str, ...]]:
    """Return the cells of several attempts; no rows for a single attempt.

    If the report lacks earlier attempts, the last row counts them.
    """
    if not attempts:
        return []
    rows = [_list_attempt(attempt) for attempt in attempts]
    omitted_count = attempts[-1].number - len(attempts)
    if omitted_count:
        text = f"{omitted_count} more, not judged and not listed"
        rows.append(("others", "", text, ""))
    return rows if len(rows) > 1 else []


def _list_attempt(attempt: LogAttempt) -> tuple[str, ...]:
    """Return the cells of an attempt."""
    number, steps = str(attempt.number), "none"
    if attempt.judged:
        number += ", judged"
    if attempt.last_step is not None:
        steps = f"{attempt.first_step} to {attempt.last_step}"
    return number, steps, attempt.ended, locate_log(attempt)
