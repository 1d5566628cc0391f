"""All that the page says of one configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report import explain, jobs
from pytest_llmbench.report.advice import advice
from pytest_llmbench.report.html.chart import Chart
from pytest_llmbench.report.html.history_chart import change_in_words, history
from pytest_llmbench.report.html.step_charts import distribution, steps
from pytest_llmbench.report.html.verdicts import Badge, badge

TABLES = ("attempt", "job", "file", "software")
"""Facts of a message that have a table here."""

ENVIRONMENT_FIRST = ("container", "driver", "cuda", "nccl", "pytorch")


@dataclass(frozen=True, slots=True)
class Table:
    """A small table: what it is of, its heads, and its rows of texts."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log, numbered from 1; `blamed` is the one that the failure is told of."""

    number: int
    text: str
    blamed: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some lines of a log; `what` is the blamed one where its text does not say so."""

    log: str
    what: str
    lines: Sequence[Line]


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
    tables: Sequence[Table]
    charts: Sequence[Chart]
    notes: Sequence[str]
    excerpt: Excerpt | None
    log: str


def details(one: dict[str, Any], anchor: str) -> Details:
    """Return what the page says of the outcome of a configuration."""
    return Details(
        anchor=anchor,
        id=explain.named(one),
        suite=one["suite"],
        badge=badge(one),
        short=one["reason"],
        texts=[text for text in (one["text"], one.get("context")) if text],
        advice=advice(one) if one["status"] != "passed" else "",
        facts=[fact for fact in explain.facts(one) if fact[0] not in TABLES],
        tables=[table for table in _tables(one) if table.rows],
        charts=list(_charts(one, anchor)),
        notes=[_note(note) for note in one.get("notes", ())],
        excerpt=_excerpt(one.get("excerpt")),
        log=explain.where(one) if one.get("log") else "",
    )


def _tables(one: dict[str, Any]) -> Iterator[Table]:
    yield Table("Metrics", ("metric", "measured", "baseline", "difference"), explain.compared(one))
    yield Table("Changes of level", ("from", "difference", "interval", "what changed", "state"), _changes(one))
    tries = one.get("tries", ())
    yield Table("Attempts in the logs", ("attempt", "steps", "end", "log"), _tries(tries) if len(tries) > 1 else ())
    yield Table("Jobs", ("job", "purpose", "nodes", "result"), [_job(one, job) for job in one.get("jobs", ())])
    yield Table("Files", ("file",), [(file,) for file in jobs.files(one)])
    yield Table("Environment", ("name", "value"), _environment(one.get("environment") or {}))


def _charts(one: dict[str, Any], anchor: str) -> Iterator[Chart]:
    drawn = (
        steps(one, f"{anchor}-steps"),
        distribution(one, f"{anchor}-spread"),
        history(one, f"{anchor}-history"),
    )
    yield from (chart for chart in drawn if chart is not None)


def _changes(one: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(change.get("started"))[:10],
            change_in_words(change.get("difference")),
            " to ".join(change_in_words(change.get(end)) for end in ("low", "high")),
            "; ".join(
                f"{name}: {before} to {after}"
                for name, (before, after) in sorted((change.get("environment") or {}).items())
            )
            or "nothing that is known",
            _state(change),
        )
        for change in one.get("changes") or ()
    ]


def _state(change: dict[str, Any]) -> str:
    acknowledged = change.get("acknowledged")
    if not acknowledged:
        return "open" if change.get("stands", True) else "taken back since"
    until = f" until {acknowledged['expires']}" if acknowledged.get("expires") else ""
    by = f" by {acknowledged['by']}" if acknowledged.get("by") else ""
    return f"acknowledged{by}{until}: {acknowledged.get('reason', '')}"


def _tries(tries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            f"{one['number']}{', judged' if one['judged'] else ''}",
            "none" if one["last_step"] is None else f"{one['first_step']} to {one['last_step']}",
            one["ended"],
            f"{one['log']}:{one['line']}" if one["line"] else one["log"],
        )
        for one in tries
    ]


def _job(one: dict[str, Any], job: dict[str, Any]) -> tuple[str, ...]:
    told = jobs.line(one, job)
    return job["job_id"] or "not submitted", job["purpose"], formatting.fold_nodes(job["nodes"]) or "-", told


def _environment(values: dict[str, Any]) -> list[tuple[str, str]]:
    first = [name for name in ENVIRONMENT_FIRST if name in values]
    return [(name, str(values[name])) for name in (*first, *sorted(set(values) - set(first)))]


def _note(note: dict[str, Any]) -> str:
    return f"{note['text']} (line {note['line']})" if note["line"] else str(note["text"])


def _excerpt(found: dict[str, Any] | None) -> Excerpt | None:
    if not found or not found.get("lines"):
        return None
    numbered = enumerate(found["lines"], start=found["first_line"])
    lines = [Line(number, text, number == found.get("line")) for number, text in numbered]
    return Excerpt(found["log"], found.get("what", ""), lines)
