"""A session as one JSON document (`--llmb-json`): what it was asked, how it ended, and
each outcome.

Its schema is `session.schema.json` beside this file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET
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
"""Bytes of a document that is read: 5000 configurations with a year of nights each take
a third of that."""

WRITTEN = "file that --llmb-json wrote"

IDENTIFIERS = IDENTIFYING | {
    "id",
    "item",
    "log_fingerprints",
    "log_sha256",
    "git_commit",
}
"""What identifies something in a file: no secret is looked for there."""


@dataclass(frozen=True, slots=True)
class SessionEnding:
    """How a session ended: the exit code of pytest, what made it red besides its items,
    and what to know besides."""

    exit_code: int
    failures: Sequence[str] = ()
    cautions: Sequence[Caution] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What made the session red besides its items; never empty where it did not run
        to its end."""
        unsaid = self.exit_code not in (0, 1) and not self.failures
        return (
            *self.failures,
            *([f"the session ended with exit code {self.exit_code}"] if unsaid else ()),
        )

    def describe(
        self, outcomes: Sequence[OutcomeDocument], *, green: bool
    ) -> tuple[SessionState, str]:
        """Return it in a word, and what stands behind that: the exit code of an error,
        what is known to be worse.

        It is `green` only where nothing is red and the exit code says so too.
        """
        # Without `green` a 0 is an exit code that another plugin has changed.
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
    """Make the document of a session: each id once, its worst outcome, sorted.

    The caller adds what the session was asked: `baselines`, `tolerances`, `header` and
    `timed`.
    """
    worst = sorted(select_worst(outcomes), key=attrgetter("kind", "suite", "id"))
    red = ending.failures or any(outcome.status == "failed" for outcome in worst)
    return SessionDocument(
        schema=SCHEMA,
        version=version,
        started=started.isoformat(),
        exit_code=ending.exit_code,
        green=ending.exit_code == 0 and not red,
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
    """Drop the sentences that only the terminal shows alone, and environments equal to
    that of the night before."""
    if not isinstance(outcome, ConfigurationOutcome):
        return outcome
    nights: list[ReportedDay] = []
    last: object = UNSET
    for night in outcome.history:
        # A year of nights of one container repeats the same environment 365 times.
        nights.append(
            replace(night, environment=UNSET) if night.environment == last else night
        )
        last = night.environment
    return replace(outcome, context_begin=UNSET, remainder=UNSET, history=tuple(nights))


def render_session(session: SessionDocument) -> bytes:
    """Render the document of a session as JSON."""
    head = msgspec.to_builtins(replace(session, outcomes=()))
    return render({**head, "outcomes": list(map(_make_plain, session.outcomes))})


def render(plain: Mapping[str, Any]) -> bytes:
    """Render plain values as UTF-8 text that every JSON reader accepts: a number that
    is not finite is null."""
    text = (
        "{\n"
        + ",\n".join(
            f" {_dump(name)}: {_dump_by_line(value)}" for name, value in plain.items()
        )
        + "\n}\n"
    )
    return text.encode("utf-8", "backslashreplace")


def _make_plain(outcome: OutcomeDocument) -> dict[str, Any]:
    """Convert an outcome; without a run `window_seconds` follows it, as in all
    documents of this schema."""
    plain = make_plain(outcome)
    if isinstance(outcome, ConfigurationOutcome):
        plain["others"] = [_move_window_seconds(other) for other in plain["others"]]
        return _move_window_seconds(plain)
    return plain


def _move_window_seconds(judged: dict[str, Any]) -> dict[str, Any]:
    if judged["run"] is not None:
        return judged
    names = [name for name in judged if name != "window_seconds"]
    names.insert(names.index("run") + 1, "window_seconds")
    return {name: judged[name] for name in names}


def _dump_by_line(value: Any) -> str:
    """Return a value as JSON; a list of objects with a line for each."""
    if not (isinstance(value, list | tuple) and value and isinstance(value[0], dict)):
        return _dump(value)
    return "[\n" + ",\n".join(f"  {_dump(record)}" for record in value) + "\n ]"


def _dump(value: Any) -> str:
    try:
        return json.dumps(
            value, allow_nan=False, ensure_ascii=False
        )  # indented it would take ten times as long
    except ValueError:
        return json.dumps(
            _replace_non_finite(value), allow_nan=False, ensure_ascii=False
        )


def read(path: Path) -> SessionDocument:
    """Read the document in a file; ReportError if it is not one that this version
    understands."""
    return check(load(path, WRITTEN), path)


def load(path: Path, expected: str) -> dict[str, Any]:
    """Load the plain values of a document, without secrets, which an earlier version
    may have left. ReportError if the file is no `expected`."""
    data = read_bytes(path, expected, LARGEST_BYTES, ReportError)
    if not data.strip():
        raise ReportError(
            f"{path}: empty: the session that was to write it was cut off, or had no room on the disk, "
            "and its verdicts are unknown; look at its output and exit code, and judge again"
        )
    constants: list[str] = []
    try:
        plain = parse_json(data, constants.append)
        # Python would take NaN, which no other reader of JSON does.
        if constants and not is_earlier(plain):
            raise ValueError(f"found {constants[0]}")
    except ValueError as error:  # also bytes that are no UTF-8
        raise ReportError(f"{path}: no JSON ({error}); give the {expected}") from None
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema is None:
        raise ReportError(f"{path}: no 'schema' in it: this is no {expected}")
    if schema != SCHEMA:
        raise ReportError(
            f"{path}: schema {schema}, expected {SCHEMA}: another version of llmbench wrote it"
        )
    shown: dict[str, Any] = make_redactor().redact_values(plain, IDENTIFIERS)
    return shown


def is_earlier(plain: Any) -> bool:
    """True for the file of an unsaved session of an earlier version, with verdicts in
    place of outcomes."""
    return isinstance(plain, dict) and {"session", "verdicts"} <= plain.keys()


def check(plain: dict[str, Any], path: Path) -> SessionDocument:
    """Convert plain values into a document; ReportError for a wrong value."""
    try:
        return msgspec.convert(plain, SessionDocument)
    except msgspec.ValidationError as error:
        raise ReportError(f"{path}: changed since it was written: {error}") from None


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _replace_non_finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
