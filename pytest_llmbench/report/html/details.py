"""All that the page says of one configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report import explain, jobs
from pytest_llmbench.report.advice import advise
from pytest_llmbench.report.html.drawing import Chart
from pytest_llmbench.report.html.history_chart import draw_history, format_change
from pytest_llmbench.report.html.step_charts import draw_distribution, draw_steps
from pytest_llmbench.report.html.verdicts import Badge, make_badge

TABLES = ("attempt", "job", "file", "software")
"""Facts of a message that have a table here."""

ENVIRONMENT_FIRST = ("container", "driver", "cuda", "nccl", "pytorch")


@dataclass(frozen=True, slots=True)
class DetailTable:
    """A small table: what it is of, its heads, and its rows of texts."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log, numbered from 1; `blamed` is the one that the failure is told of."""

    number: int
    text: str
    blamed: bool


@dataclass(frozen=True, slots=True)
class ShownExcerpt:
    """Some lines of a log; `what` is the blamed one where its text does not say so."""

    log: str
    what: str
    lines: Sequence[LogLine]


@dataclass(frozen=True, slots=True)
class Details:
    """One configuration: texts, tables, charts, and the lines of the log of a failure."""

    anchor: str
    id: str
    suite: str
    badge: Badge
    short: str
    texts: Sequence[str]
    advice: str
    facts: Sequence[tuple[str, str]]
    tables: Sequence[DetailTable]
    charts: Sequence[Chart]
    notes: Sequence[str]
    excerpt: ShownExcerpt | None
    log: str


def make_details(outcome: dict[str, Any], anchor: str) -> Details:
    """Return what the page says of the outcome of a configuration."""
    return Details(
        anchor=anchor,
        id=explain.name_outcome(outcome),
        suite=outcome["suite"],
        badge=make_badge(outcome),
        short=outcome["reason"],
        texts=[text for text in (outcome["text"], outcome.get("context")) if text],
        advice=advise(outcome) if outcome["status"] != "passed" else "",
        facts=[fact for fact in explain.list_facts(outcome) if fact[0] not in TABLES],
        tables=[table for table in _make_tables(outcome) if table.rows],
        charts=list(_draw_charts(outcome, anchor)),
        notes=[_format_note(note) for note in outcome.get("notes", ())],
        excerpt=_make_excerpt(outcome.get("excerpt")),
        log=explain.locate_log(outcome) if outcome.get("log") else "",
    )


def _make_tables(outcome: dict[str, Any]) -> Iterator[DetailTable]:
    yield DetailTable("Metrics", ("metric", "measured", "baseline", "difference"), explain.compare_metrics(outcome))
    yield DetailTable(
        "Changes of level", ("from", "difference", "interval", "what changed", "state"), _list_changes(outcome)
    )
    tries = outcome.get("tries", ())
    yield DetailTable(
        "Attempts in the logs", ("attempt", "steps", "end", "log"), _list_tries(tries) if len(tries) > 1 else ()
    )
    yield DetailTable(
        "Jobs", ("job", "purpose", "nodes", "result"), [_list_job(outcome, job) for job in outcome.get("jobs", ())]
    )
    yield DetailTable("Files", ("file",), [(file,) for file in jobs.list_files(outcome)])
    yield DetailTable("Environment", ("name", "value"), _list_environment(outcome.get("environment") or {}))


def _draw_charts(outcome: dict[str, Any], anchor: str) -> Iterator[Chart]:
    drawn = (
        draw_steps(outcome, f"{anchor}-steps"),
        draw_distribution(outcome, f"{anchor}-spread"),
        draw_history(outcome, f"{anchor}-history"),
    )
    yield from (chart for chart in drawn if chart is not None)


def _list_changes(outcome: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(change.get("started"))[:10],
            format_change(change.get("difference")),
            " to ".join(format_change(change.get(end)) for end in ("low", "high")),
            "; ".join(
                f"{name}: {before} to {after}"
                for name, (before, after) in sorted((change.get("environment") or {}).items())
            )
            or "nothing that is known",
            _format_state(change),
        )
        for change in outcome.get("changes") or ()
    ]


def _format_state(change: dict[str, Any]) -> str:
    acknowledged = change.get("acknowledged")
    if not acknowledged:
        return "open" if change.get("stands", True) else "taken back since"
    until = f" until {acknowledged['expires']}" if acknowledged.get("expires") else ""
    by = f" by {acknowledged['by']}" if acknowledged.get("by") else ""
    return f"acknowledged{by}{until}: {acknowledged.get('reason', '')}"


def _list_tries(tries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            f"{attempt['number']}{', judged' if attempt['judged'] else ''}",
            "none" if attempt["last_step"] is None else f"{attempt['first_step']} to {attempt['last_step']}",
            attempt["ended"],
            f"{attempt['log']}:{attempt['line']}" if attempt["line"] else attempt["log"],
        )
        for attempt in tries
    ]


def _list_job(outcome: dict[str, Any], job: dict[str, Any]) -> tuple[str, ...]:
    result = jobs.format_job(outcome, job)
    return job["job_id"] or "not submitted", job["purpose"], formatting.fold_nodes(job["nodes"]) or "-", result


def _list_environment(values: dict[str, Any]) -> list[tuple[str, str]]:
    first = [name for name in ENVIRONMENT_FIRST if name in values]
    return [(name, str(values[name])) for name in (*first, *sorted(set(values) - set(first)))]


def _format_note(note: dict[str, Any]) -> str:
    return f"{note['text']} (line {note['line']})" if note["line"] else str(note["text"])


def _make_excerpt(excerpt: dict[str, Any] | None) -> ShownExcerpt | None:
    if not excerpt or not excerpt.get("lines"):
        return None
    numbered = enumerate(excerpt["lines"], start=excerpt["first_line"])
    lines = [LogLine(number, text, number == excerpt.get("line")) for number, text in numbered]
    return ShownExcerpt(excerpt["log"], excerpt.get("what", ""), lines)
