"""Jobs as text and back, without the values of secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_llmbench.core.models import Key
from pytest_llmbench.core.models.jobs import EndedBy, JobSpec, JobStatus, Pairs, Phase, Purpose
from pytest_llmbench.launch.recipe.redaction import MASK, find_secret_values, redact
from pytest_llmbench.launch.slurm.states import OWN

SHORTEST = 4
"""A shorter secret value is only hidden where its variable is: in another text it means nothing, as `1` does."""


def encode_spec(spec: JobSpec, values: Iterable[str] = ()) -> str:
    """Return a spec as JSON: MASK stands for its secrets, and for these secret `values` in its command and variables.

    Other fields are kept as they are: with another case id or folder a job would not be found again.
    """
    long = {value for value in (*values, *find_secret_values(spec)) if len(value) >= SHORTEST}
    environment = [
        (name, MASK if name in spec.secrets and value else redact(value, long)) for name, value in spec.environment
    ]
    command = [redact(argument, long) for argument in spec.command]
    return json.dumps(_make_plain({**asdict(spec), "environment": environment, "command": command}))


def decode_spec(text: str) -> JobSpec:
    """Return the spec; ValueError, TypeError, KeyError or AttributeError for a text that is none."""
    fields = json.loads(text)
    decoded = {
        "key": Key(**fields["key"]),
        "purpose": Purpose(fields["purpose"]),
        "directory": Path(fields["directory"]),
        "environment": _read_pairs(fields["environment"]),
        "log_folders": tuple(map(Path, fields["log_folders"])),
        **{name: tuple(fields[name]) for name in ("command", "secrets", "exclude")},
    }
    return JobSpec(**{**fields, **decoded})


def encode_status(status: JobStatus) -> str:
    """Return a status as JSON."""
    return json.dumps(_make_plain(asdict(status)))


def decode_status(text: str) -> JobStatus:
    """Return the status; errors as of `decode_spec`."""
    fields = json.loads(text)
    times = {name: _read_time(fields[name]) for name in ("submitted", "started", "ended")}
    # a journal of an earlier version says in words alone who ended a job
    by_words = EndedBy.PYTEST if fields["reason"].startswith(OWN) else EndedBy.OTHERS
    ended_by = EndedBy(fields.get("ended_by", by_words))
    codes = {"phase": Phase(fields["phase"]), "ended_by": ended_by}
    return JobStatus(**{**fields, **times, **codes, "nodes": tuple(fields["nodes"])})


def _make_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _make_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_make_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value


def _read_pairs(items: Sequence[Sequence[str]]) -> Pairs:
    return tuple((name, value) for name, value in items)


def _read_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
