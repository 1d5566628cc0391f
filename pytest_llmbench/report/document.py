"""The JSON document of a session (`--llmb-json`): settings, ending and outcomes.

Its schema is `session.schema.json` in this folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.core.job_records import PlannedHours
from pytest_llmbench.core.outcome_records import Caution
from pytest_llmbench.core.redaction import IDENTIFYING, make_redactor
from pytest_llmbench.core.userfile import parse_json, read_bytes
from pytest_llmbench.report.gpu_hours import sum_session
from pytest_llmbench.report.outcome_documents import (
    SCHEMA,
    ConfigurationOutcome,
    OutcomeDocument,
    ReportedCaution,
    ReportedDay,
    SessionDocument,
    make_plain,
)
from pytest_llmbench.report.verdicts import (
    SessionState,
    count_verdicts,
    format_counts,
    format_findings,
    select_worst,
)

LARGEST_BYTES = 1 << 30
"""Maximum size of a document to read: 5000 configurations with a year of daily runs
each take a third of it."""

WRITTEN = "file that --llmb-json wrote"

IDENTIFIERS = IDENTIFYING | {
    "id",
    "item",
    "log_fingerprints",
    "log_sha256",
    "git_commit",
}
"""Fields with identifiers, which are not searched for secrets."""


class SessionEnding(Struct, frozen=True):
    """The ending of a session: pytest's exit code, session failures, and cautions."""

    exit_code: int
    failures: Sequence[str] = ()
    cautions: Sequence[Caution] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Failures of the session itself; never empty if it did not run to its end."""
        # pytest ended with 0 or 1: the session ran to its end.
        if self.failures or self.exit_code in (0, 1):
            return tuple(self.failures)
        return (f"the session ended with exit code {self.exit_code}",)

    def describe(
        self, outcomes: Sequence[OutcomeDocument], *, green: bool
    ) -> tuple[SessionState, str]:
        """Return the state of the session, and a text with details to follow it.

        The details are the exit code of an error, and slowdowns that did not fail the
        session. Pass `green=True` only if the exit code is 0 and no item failed.
        """
        # An exit code of 0 without `green` was set by another plugin.
        judged = SessionState.GREEN if green else SessionState.RED
        states = {0: judged, 1: SessionState.RED, 2: SessionState.INTERRUPTED}
        state = states.get(self.exit_code, SessionState.ERROR)
        code = f" (exit code {self.exit_code})" if state is SessionState.ERROR else ""
        return state, f"{code}{format_findings(state, outcomes)}"


def make_document(
    outcomes: Sequence[OutcomeDocument],
    version: str,
    ending: SessionEnding,
    started: datetime,
    planned: PlannedHours | None = None,
) -> SessionDocument:
    """Build the document of a session, with the worst outcome of each id, sorted.

    The caller adds the settings: `baselines`, `tolerances`, `header` and `timed`.
    """
    worst = sorted(select_worst(outcomes), key=attrgetter("kind", "suite", "id"))
    has_failures = bool(ending.failures) or any(
        outcome.status == "failed" for outcome in worst
    )
    return SessionDocument(
        schema=SCHEMA,
        version=version,
        started=started.isoformat(),
        exit_code=ending.exit_code,
        green=ending.exit_code == 0 and not has_failures,
        count=format_counts(outcomes),
        counts=count_verdicts(outcomes),
        failures=tuple(ending.failures),
        cautions=tuple(
            ReportedCaution(code=str(caution.code), text=caution.text)
            for caution in ending.cautions
        ),
        gpu_hours=sum_session(worst, planned),
        outcomes=tuple(map(shorten, worst)),
    )


def shorten(outcome: OutcomeDocument) -> OutcomeDocument:
    """Drop the terminal's fields, and repeated environments of daily runs."""
    if not isinstance(outcome, ConfigurationOutcome):
        return outcome
    days: list[ReportedDay] = []
    previous_environment: object = UNSET
    for day in outcome.history:
        # A year in one container would repeat the same environment 365 times.
        is_repeated = day.environment == previous_environment
        days.append(replace(day, environment=UNSET) if is_repeated else day)
        previous_environment = day.environment
    return replace(outcome, context_begin=UNSET, remainder=UNSET, history=tuple(days))


def render_session(session: SessionDocument) -> bytes:
    """Render the document of a session as JSON."""
    head = msgspec.to_builtins(replace(session, outcomes=()))
    outcomes = [_make_plain(outcome) for outcome in session.outcomes]
    return render({**head, "outcomes": outcomes})


def render(plain: Mapping[str, Any]) -> bytes:
    """Render plain values as UTF-8 JSON; non-finite numbers become null.

    Each key begins a line, and so does each object in the list of a key.
    """
    members = [
        f" {_dump(name)}: {_dump_by_line(value)}" for name, value in plain.items()
    ]
    text = "{\n" + ",\n".join(members) + "\n}\n"
    return text.encode("utf-8", "backslashreplace")


def _make_plain(outcome: OutcomeDocument) -> dict[str, Any]:
    """Convert an outcome into plain values.

    If there is no run, `window_seconds` follows the key `run`, as in all documents of
    this schema.
    """
    plain = make_plain(outcome)
    if isinstance(outcome, ConfigurationOutcome):
        plain["others"] = [_move_window_seconds(other) for other in plain["others"]]
        return _move_window_seconds(plain)
    return plain


def _move_window_seconds(judgement: dict[str, Any]) -> dict[str, Any]:
    """Move the key `window_seconds` of a judgement after `run`, if there is no run."""
    if judgement["run"] is not None:
        return judgement
    names = [name for name in judgement if name != "window_seconds"]
    names.insert(names.index("run") + 1, "window_seconds")
    return {name: judgement[name] for name in names}


def _dump_by_line(value: Any) -> str:
    """Convert a value to JSON; a list of objects gets one line for each object."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        lines = [f"  {_dump(record)}" for record in value]
        return "[\n" + ",\n".join(lines) + "\n ]"
    return _dump(value)


def _dump(value: Any) -> str:
    """Convert a value to JSON on one line; non-finite numbers become null."""
    # Indentation would make this ten times slower.
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except ValueError:  # non-finite numbers, which are rare
        finite = _replace_non_finite(value)
        return json.dumps(finite, allow_nan=False, ensure_ascii=False)


def read(path: Path) -> SessionDocument:
    """Read the document of a session from a file.

    Raises ReportError if the file is not a document that this version understands.
    """
    return check(load(path, WRITTEN), path)


def load(path: Path, expected: str) -> dict[str, Any]:
    """Load the plain values of a document, with secrets redacted.

    Earlier versions may have written secrets. `expected` describes the kind of file in
    errors. Raises ReportError for another kind of file, and for the document of another
    schema.
    """
    data = read_bytes(path, expected, LARGEST_BYTES, ReportError)
    if not data.strip():
        raise ReportError(
            f"{path}: the file is empty: its session was killed or the disk was full, so its verdicts are unknown; "
            "look at the output and exit code of that session, and judge again"
        )
    non_finite: list[str] = []  # NaN and Infinity, which only Python accepts in JSON
    try:
        plain = parse_json(data, non_finite.append)
        # An unsaved session of an earlier version may contain NaN.
        if non_finite and not is_earlier(plain):
            raise ValueError(f"found {non_finite[0]}")
    except ValueError as error:  # also invalid UTF-8
        raise ReportError(f"{path}: not JSON ({error}); use the {expected}") from None
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema is None:
        raise ReportError(f"{path}: no key 'schema'; use the {expected}")
    if schema != SCHEMA:
        raise ReportError(
            f"{path}: schema {schema}, expected {SCHEMA}: written by another version of llmbench"
        )
    redacted: dict[str, Any] = make_redactor().redact_values(plain, IDENTIFIERS)
    return redacted


def is_earlier(plain: Any) -> bool:
    """True if an earlier version wrote the file of an unsaved session.

    Such a file contains verdicts instead of outcomes.
    """
    return isinstance(plain, dict) and {"session", "verdicts"} <= plain.keys()


def check(plain: dict[str, Any], path: Path) -> SessionDocument:
    """Convert plain values into a document; raises ReportError for a wrong value."""
    try:
        return msgspec.convert(plain, SessionDocument)
    except msgspec.ValidationError as error:
        raise ReportError(f"{path}: not as llmbench wrote it: {error}") from None


def _replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinite numbers by None in nested dicts and lists."""
    if isinstance(value, dict):
        return {str(name): _replace_non_finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
