"""The small tables of a configuration: metrics, changes of level, attempts, jobs, files, environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report import explain
from pytest_llmbench.report import job_text as jobs
from pytest_llmbench.report.gpu_hours import format_job_cost
from pytest_llmbench.report.html.charts import format_change
from pytest_llmbench.report.verdicts import locate_log

ENVIRONMENT_FIRST = ("container", "driver", "cuda", "nccl", "pytorch")

ShownTable = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A small table: what it is of, its heads, and its rows of texts."""


def list_tables(outcome: dict[str, Any]) -> Iterator[ShownTable]:
    """Yield the tables of an outcome; those without a row say nothing."""
    yield "Metrics", ("metric", "measured", "baseline", "difference"), explain.compare_metrics(outcome)
    changes = [_list_change(change) for change in outcome.get("changes") or ()]
    yield "Changes of level", ("from", "difference", "interval", "what changed", "state"), changes
    attempts = [_list_attempt(attempt) for attempt in outcome.get("tries", ())]
    left_out = outcome["tries"][-1]["number"] - len(attempts) if attempts else 0
    attempts += [("others", "", f"{left_out} more, not judged and not listed", "")] if left_out else []
    yield "Attempts in the logs", ("attempt", "steps", "end", "log"), attempts if len(attempts) > 1 else ()
    launched = [
        (
            job["job_id"] or "not submitted",
            job["purpose"],
            formatting.fold_nodes(job["nodes"]) or "-",
            format_job_cost(job),
            jobs.format_job(outcome, job),
        )
        for job in outcome.get("jobs", ())
    ]
    yield "Jobs", ("job", "purpose", "nodes", "GPU-hours", "result"), launched
    yield "Files", ("file",), [(file,) for file in jobs.list_files(outcome)]
    environment = outcome.get("environment") or {}
    first = [name for name in ENVIRONMENT_FIRST if name in environment]
    names = (*first, *sorted(set(environment) - set(first)))
    yield "Environment", ("name", "value"), [(name, str(environment[name])) for name in names]


def _list_change(change: dict[str, Any]) -> tuple[str, ...]:
    environment = sorted((change.get("environment") or {}).items())
    return (
        str(change.get("started"))[:10],
        format_change(change.get("difference")),
        " to ".join(format_change(change.get(end)) for end in ("low", "high")),
        "; ".join(f"{name}: {before} to {after}" for name, (before, after) in environment) or "nothing that is known",
        _format_state(change),
    )


def _format_state(change: dict[str, Any]) -> str:
    acknowledged = change.get("acknowledged")
    if not acknowledged:
        return "open" if change.get("stands", True) else "taken back since"
    until = f" until {acknowledged['expires']}" if acknowledged.get("expires") else ""
    by = f" by {acknowledged['by']}" if acknowledged.get("by") else ""
    return f"acknowledged{by}{until}: {acknowledged.get('reason', '')}"


def _list_attempt(attempt: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{attempt['number']}{', judged' if attempt['judged'] else ''}",
        "none" if attempt["last_step"] is None else f"{attempt['first_step']} to {attempt['last_step']}",
        attempt["ended"],
        locate_log(attempt),
    )
