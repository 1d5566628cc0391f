"""The detail tables of a configuration on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_llmbench.core import formatting
from pytest_llmbench.report import explain
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.gpu_hours import format_job_cost
from pytest_llmbench.report.html.charts import format_change
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    LogAttempt,
    ReportedChange,
)
from pytest_llmbench.report.verdicts import locate_log

ENVIRONMENT_FIRST = ("container", "driver", "cuda", "nccl", "pytorch")

ShownTable = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A table: its caption, column titles, and rows of texts."""


def list_tables(outcome: ConfigurationOutcome) -> Iterator[ShownTable]:
    """Yield all detail tables of an outcome; a table may have no rows."""
    yield (
        "Metrics",
        ("metric", "measured", "baseline", "difference"),
        explain.compare_metrics(outcome),
    )
    changes = list(map(_list_change, outcome.changes))
    yield (
        "Changes of level",
        ("from", "difference", "interval", "environment", "state"),
        changes,
    )
    attempts = [_list_attempt(attempt) for attempt in outcome.tries or ()]
    omitted = outcome.tries[-1].number - len(attempts) if outcome.tries else 0
    if omitted:
        attempts.append(
            ("others", "", f"{omitted} more, not judged and not listed", "")
        )
    yield (
        "Attempts in the logs",
        ("attempt", "steps", "end", "log"),
        attempts if len(attempts) > 1 else (),
    )
    launched = [
        (
            job.job_id or "not submitted",
            job.purpose,
            formatting.fold_nodes(job.nodes) or "-",
            format_job_cost(job),
            jobs.format_job(outcome, job),
        )
        for job in outcome.jobs
    ]
    yield "Jobs", ("job", "purpose", "nodes", "GPU-hours", "result"), launched
    yield "Files", ("file",), [(file,) for file in jobs.list_files(outcome)]
    environment = outcome.environment
    first = [name for name in ENVIRONMENT_FIRST if name in environment]
    names = (*first, *sorted(set(environment) - set(first)))
    yield (
        "Environment",
        ("name", "value"),
        [(name, str(environment[name])) for name in names],
    )


def _list_change(change: ReportedChange) -> tuple[str, ...]:
    """Return the cells of a level change."""
    environment = sorted(change.environment.items())
    return (
        change.started[:10],
        format_change(change.difference),
        f"{format_change(change.low)} to {format_change(change.high)}",
        "; ".join(
            f"{name}: {before} to {after}" for name, (before, after) in environment
        )
        or "no known change",
        _format_state(change),
    )


def _format_state(change: ReportedChange) -> str:
    acknowledged = change.acknowledged
    if not acknowledged:
        return "open" if change.stands else "reverted since"
    until = f" until {acknowledged.expires}" if acknowledged.expires else ""
    by = f" by {acknowledged.by}" if acknowledged.by else ""
    return f"acknowledged{by}{until}: {acknowledged.reason}"


def _list_attempt(attempt: LogAttempt) -> tuple[str, ...]:
    return (
        f"{attempt.number}{', judged' if attempt.judged else ''}",
        "none"
        if attempt.last_step is None
        else f"{attempt.first_step} to {attempt.last_step}",
        attempt.ended,
        locate_log(attempt),
    )
