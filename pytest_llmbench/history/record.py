"""What a session leaves in the history: a document of plain values, in a file where it could not be stored."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_llmbench.core import formatting, runtime
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.models import JUDGED, NoteCode
from pytest_llmbench.history.location import hide_passwords

SCHEMA = 1
"""Of the document; raised when a key of it changes its meaning."""

UNSAVED_NAME = "llmb-history-unsaved-{}.json"


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
        "git_commit": runtime.read_commit(environment),
        "ci_url": formatting.escape(hide_passwords(runtime.read_job_url(environment))),
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


# --- what could not be stored ----------------------------------------------------------------------------


def write_unsaved(document: dict[str, Any], folders: Iterable[Path]) -> Path:
    """Write a document to the first folder that takes it, whole and on disk; OSError of the last where none does."""
    problem: OSError | None = None
    content = json.dumps(document).encode("ascii")
    for folder in folders:
        path = folder / UNSAVED_NAME.format(document["session"]["id"])
        try:
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            problem = error
            path.unlink(missing_ok=True) if os.access(folder, os.W_OK) else None
        else:
            return path
    raise problem or FileNotFoundError("no folder")


def read_unsaved(path: Path) -> dict[str, Any]:
    """Return the document in a file; HistoryError where it is none."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise HistoryError(f"{path}: no JSON ({error}): give a file that {UNSAVED_NAME.format('*')} names") from None
    if not isinstance(document, dict) or not {"session", "verdicts"} <= document.keys():
        raise HistoryError(f"{path}: no session with verdicts: give a file that {UNSAVED_NAME.format('*')} names")
    if document.get("schema") != SCHEMA:
        schema = document.get("schema")
        raise HistoryError(f"{path}: found schema {schema!r}, expected {SCHEMA}: use the pytest-llmbench that wrote it")
    return document
