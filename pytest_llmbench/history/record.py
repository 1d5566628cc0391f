"""What a session leaves in the history: from its outcome dictionaries to a document of plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pytest_llmbench.core import ci_environment, formatting
from pytest_llmbench.core.models import JUDGED, NoteCode
from pytest_llmbench.history.place import without_password

SCHEMA = 1
"""Of the document; raised when a key of it changes its meaning."""


def session(
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
        "options": [without_password(one) for one in options],
        "git_commit": ci_environment.read_commit(environment),
        "ci_url": formatting.escape(without_password(ci_environment.read_job_url(environment))),
    }


def document(of_session: dict[str, Any], described: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a session with its verdicts: one for each outcome of a configuration, which are plain values."""
    configurations = [one for one in described if one["kind"] == "configuration"]
    return {"schema": SCHEMA, "session": of_session, "verdicts": [dict(_verdict(one)) for one in configurations]}


def _verdict(one: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    own = one.get("overruled") or one["verdict"]
    seconds = one.get("statistic_seconds")
    timed = seconds is not None and seconds > 0 and not one["problems"]
    yield "item", one["id"]
    yield "configuration", one["configuration"]
    for name in ("status", "verdict", "reason", "text", "tolerance"):
        yield name, one[name]
    yield "counts", bool(timed and own in JUDGED and not _is_of_another_release(one))
    yield "run_seconds", seconds
    yield "step_time_seconds", one["metrics"].get("step_time_seconds", {}).get("value")
    for name in ("expected_seconds", "bound_seconds", "log_difference"):
        yield name, one[name]
    yield "window", {name: one["window"][name] for name in ("first", "last", "statistic")}
    yield "baseline", one["baseline"]["kind"]
    yield "metrics", {name: [of["value"], of["standard_deviation"]] for name, of in one["metrics"].items()}
    yield "step_seconds", one["window_seconds"]
    yield "mean_of", one.get("window_mean_of") or []
    yield "log_sha256", one.get("log_sha256", [])
    yield "run", _run(one) if one["run"] and own != "MISSING" else None


def _is_of_another_release(one: dict[str, Any]) -> bool:
    """Whether it was judged as a release that it is not, as was asked for: such a run is no night of that release."""
    return any(note["code"] == NoteCode.OTHER_RELEASE for note in one["notes"])


def _run(one: dict[str, Any]) -> dict[str, Any]:
    run = one["run"]
    return {
        "name": run["id"],
        "job_id": run["job_id"],
        "launcher": run["launcher"],
        "started": run["started"],
        "log": one["log"] or "",
        "attempts": run["attempts"],
        "log_fingerprints": run["log_fingerprint"],
        "nodes": sorted({node for job in one.get("jobs", ()) for node in job["nodes"]}),
        "jobs": one.get("jobs", []),
        "environment": one.get("environment") or {},
    }
