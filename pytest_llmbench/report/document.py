"""A session as one JSON document (`--llmb-json`): what it was asked, how it ended, and the dictionary of each outcome.

Its schema is `session.schema.json` beside this file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.core.job_records import PlannedHours
from pytest_llmbench.core.outcome_records import Caution
from pytest_llmbench.core.userfile import parse_json, read_bytes
from pytest_llmbench.report.gpu_hours import sum_session
from pytest_llmbench.report.verdicts import SessionState, count_verdicts, format_counts, format_findings, select_worst

SCHEMA = 1
"""Raised when a field of the document changes its meaning; fields may be added."""

PARTS = ("context_begin", "remainder")
"""The parts of a text that the terminal shows alone: no schema promises them."""

LARGEST_BYTES = 1 << 30
"""Bytes of a document that is read: 5000 configurations with a year of nights each take a third of that."""

KEYS = ("schema", "version", "started", "exit_code", "green", "count", "counts", "failures", "outcomes")
"""What has to stand in a document that is read."""


@dataclass(frozen=True, slots=True)
class SessionEnding:
    """How a session ended: the exit code of pytest, what made it red besides its items, and what to know besides."""

    exit_code: int
    failures: Sequence[str] = ()
    cautions: Sequence[Caution] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What made the session red besides its items; never empty where it did not run to its end."""
        unsaid = self.exit_code not in (0, 1) and not self.failures
        return (*self.failures, *([f"the session ended with exit code {self.exit_code}"] if unsaid else ()))

    def describe(self, outcomes: Sequence[dict[str, Any]], *, green: bool) -> tuple[SessionState, str]:
        """Return it in a word, and what stands behind that: the exit code of an error, what is known to be worse.

        It is `green` only where nothing is red and the exit code says so too.
        """
        # Without `green` a 0 is an exit code that another plugin has changed.
        judged = SessionState.GREEN if green else SessionState.RED
        states = {0: judged, 1: SessionState.RED, 2: SessionState.INTERRUPTED}
        state = states.get(self.exit_code, SessionState.ERROR)
        code = f" (exit code {self.exit_code})" if state is SessionState.ERROR else ""
        return state, f"{code}{format_findings(state, outcomes)}"


def make_document(
    described: Sequence[dict[str, Any]],
    asked: Mapping[str, Any],
    ending: SessionEnding,
    started: datetime,
    planned: PlannedHours | None = None,
) -> dict[str, Any]:
    """Return a session as plain values, each id once, its worst outcome, sorted; `asked`: the version and settings."""
    outcomes = sorted(select_worst(described), key=lambda outcome: (outcome["kind"], outcome["suite"], outcome["id"]))
    red = ending.failures or any(outcome["status"] == "failed" for outcome in outcomes)
    return {
        "schema": SCHEMA,
        **asked,
        "started": started.isoformat(),
        "exit_code": ending.exit_code,
        "green": ending.exit_code == 0 and not red,
        "count": format_counts(described),
        "counts": count_verdicts(described),
        "failures": list(ending.failures),
        "cautions": [{"code": str(caution.code), "text": caution.text} for caution in ending.cautions],
        "gpu_hours": sum_session(outcomes, planned) or None,
        "outcomes": [_drop_repeated_environments(_drop_parts(outcome)) for outcome in outcomes],
    }


def _drop_parts(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome without what only the terminal shows: it stands in `text` and `context`, too."""
    return {name: value for name, value in outcome.items() if name not in PARTS}


def _drop_repeated_environments(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome whose nights name their environment only where it is not that of the night before."""
    if "history" not in outcome:
        return outcome
    nights: list[dict[str, Any]] = []
    last: object = None
    for night in outcome["history"]:
        # A year of nights of one container repeats the same environment 365 times.
        same, last = night.get("environment") == last, night.get("environment")
        nights.append({name: value for name, value in night.items() if name != "environment"} if same else night)
    return {**outcome, "history": nights}


def render(session: Mapping[str, Any]) -> bytes:
    """Return the document as UTF-8 text that every JSON reader accepts: a number that is none is null."""
    text = "{\n" + ",\n".join(f" {_dump(name)}: {_dump_by_line(value)}" for name, value in session.items()) + "\n}\n"
    return text.encode("utf-8", "backslashreplace")


def _dump_by_line(value: Any) -> str:
    """Return a value as JSON; a list of objects with a line for each."""
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return _dump(value)
    return "[\n" + ",\n".join(f"  {_dump(record)}" for record in value) + "\n ]"


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)  # indented it would take ten times as long
    except ValueError:
        return json.dumps(_replace_non_finite(value), allow_nan=False, ensure_ascii=False)


def read(path: Path) -> dict[str, Any]:
    """Return the document in a file; ReportError where there is none that this version understands."""
    data = read_bytes(path, "file that --llmb-json wrote", LARGEST_BYTES, ReportError)
    if not data.strip():
        raise ReportError(
            f"{path}: empty: the session that was to write it was cut off, or had no room on the disk, "
            "and its verdicts are unknown; look at its output and exit code, and judge again"
        )
    try:
        # Python would take NaN, which no other reader of JSON does.
        session = parse_json(data, _refuse)
    except ValueError as error:  # also bytes that are no UTF-8
        raise ReportError(f"{path}: no JSON ({error}); give the file that --llmb-json wrote") from None
    missing = [key for key in KEYS if key not in session] if isinstance(session, dict) else list(KEYS)
    if missing:
        raise ReportError(f"{path}: no {missing[0]!r} in it: this is no file that --llmb-json wrote")
    if session["schema"] != SCHEMA:
        raise ReportError(
            f"{path}: schema {session['schema']}, expected {SCHEMA}: another version of llmbench wrote it"
        )
    return dict(session)


def _refuse(constant: str) -> None:
    raise ValueError(f"found {constant}")


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _replace_non_finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
