"""What a session leaves in the history: from its outcome dictionaries to a document of plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pytest_llmbench.core import ci_environment, formatting
from pytest_llmbench.core.models import JUDGED, NoteCode
from pytest_llmbench.history.place import hide_passwords

SCHEMA = 1
"""Of the document; raised when a key of it changes its meaning."""


def describe_session(
    identifier: str,
    started: datetime,
    *,
    host: str,
    program: str,
    options: Sequence[str],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return what is kept of a session; `options` are what was typed, `environment` the variables of its process."""
    return {
        "id": identifier,
        "started": started.isoformat(),
        "host": formatting.escape(host),
        "program": program,
        "options": [hide_passwords(option) for option in options],
        "git_commit": ci_environment.read_commit(environment),
        "ci_url": formatting.escape(hide_passwords(ci_environment.read_job_url(environment))),
    }


def make_document(of_session: dict[str, Any], described: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a session with its verdicts: one for each outcome of a configuration, which are plain values."""
    configurations = [outcome for outcome in described if outcome["kind"] == "configuration"]
    return {
        "schema": SCHEMA,
        "session": of_session,
        "verdicts": [dict(_list_verdict_values(outcome)) for outcome in configurations],
    }


def _list_verdict_values(outcome: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    own = outcome.get("overruled") or outcome["verdict"]
    seconds = outcome.get("statistic_seconds")
    timed = seconds is not None and seconds > 0 and not outcome["problems"]
    yield "item", outcome["id"]
    yield "configuration", outcome["configuration"]
    for name in ("status", "verdict", "reason", "text", "tolerance"):
        yield name, outcome[name]
    yield "counts", bool(timed and own in JUDGED and not _is_of_another_release(outcome))
    yield "run_seconds", seconds
    yield "step_time_seconds", outcome["metrics"].get("step_time_seconds", {}).get("value")
    for name in ("expected_seconds", "bound_seconds", "log_difference"):
        yield name, outcome[name]
    yield "window", {name: outcome["window"][name] for name in ("first", "last", "statistic")}
    yield "baseline", outcome["baseline"]["kind"]
    yield "metrics", {name: [of["value"], of["standard_deviation"]] for name, of in outcome["metrics"].items()}
    yield "step_seconds", outcome["window_seconds"]
    yield "mean_of", outcome.get("window_mean_of") or []
    yield "log_sha256", outcome.get("log_sha256", [])
    yield "run", _describe_run(outcome) if outcome["run"] and own != "MISSING" else None


def _is_of_another_release(outcome: dict[str, Any]) -> bool:
    """Whether it was judged as a release that it is not, as was asked for: such a run is no night of that release."""
    return any(note["code"] == NoteCode.OTHER_RELEASE for note in outcome["notes"])


def _describe_run(outcome: dict[str, Any]) -> dict[str, Any]:
    run = outcome["run"]
    return {
        "name": run["id"],
        "job_id": run["job_id"],
        "launcher": run["launcher"],
        "started": run["started"],
        "log": outcome["log"] or "",
        "attempts": run["attempts"],
        "log_fingerprints": run["log_fingerprint"],
        "nodes": sorted({node for job in outcome.get("jobs", ()) for node in job["nodes"]}),
        "jobs": outcome.get("jobs", []),
        "environment": outcome.get("environment") or {},
    }
