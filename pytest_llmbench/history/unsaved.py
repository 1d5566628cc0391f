"""What could not be stored: a session with its verdicts in a file, and what has to
stand in one to be stored later."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.userfile import parse_json, read_bytes
from pytest_llmbench.history.record import SCHEMA

NAME = "llmb-history-unsaved-{}.json"

LARGEST_BYTES = 1 << 30  # of a file that is read

GIVE = f"give a file that {NAME.format('*')} names"


def write_unsaved(document: dict[str, Any], folders: Iterable[Path]) -> Path:
    """Write a document to the first folder that takes it, whole and on disk; OSError of
    the last where none does."""
    problem: OSError | None = None
    content = json.dumps(document).encode("ascii")
    for folder in folders:
        path = folder / NAME.format(document["session"]["id"])
        try:
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            problem = error
            with suppress(
                OSError
            ):  # a disk that is gone does not keep the next folder from being tried
                path.unlink(missing_ok=True)
        else:
            return path
    raise problem or FileNotFoundError("no folder")


def read_unsaved(path: Path) -> dict[str, Any]:
    """Return the document in a file; HistoryError, with the place in it, for what no
    session left."""
    data = read_bytes(
        path, f"file that {NAME.format('*')} names", LARGEST_BYTES, HistoryError
    )
    try:
        document = parse_json(data, lambda _: None)
    except ValueError as error:
        raise HistoryError(f"{path}: no JSON ({error}): {GIVE}") from None
    if not isinstance(document, dict) or not {"session", "verdicts"} <= document.keys():
        raise HistoryError(f"{path}: no session with verdicts: {GIVE}")
    if document.get("schema") != SCHEMA:
        schema = document.get("schema")
        raise HistoryError(
            f"{path}: found schema {schema!r}, expected {SCHEMA}: use the pytest-llmbench that wrote it"
        )
    try:
        _check(document, DOCUMENT, "")
    except ValueError as error:
        raise HistoryError(
            f"{path}: {formatting.escape(str(error))}: nothing of it was stored; {GIVE}, as it was left"
        ) from None
    return document


# --- the schema -----------------------------------------------------------------------

# No package of JSON Schema: `history add` alone would need it, and it cannot say what a
# time or a step time is.


class Value(NamedTuple):
    """A value that has no parts: what it has to be, in words and as a function."""

    expected: str
    accept: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Each:
    """A list, or with `named` an object with any names, all of whose values are
    alike."""

    part: Schema
    named: bool = False
    least: int = 0


@dataclass(frozen=True, slots=True)
class Optional:
    """A key that may be missing, as in what an older version left; where it holds
    something, it is of this kind."""

    part: Schema
    nullable: bool = False
    """Whether `null` may stand there; the key is then always there."""


Schema = Value | Each | Optional | dict[str, "Schema"]

DEEPEST = 8
"""Levels of nesting in what is stored as it is: an export writes no more than some
hundreds."""

LARGEST = 2**31
"""Whole numbers are smaller: PostgreSQL's columns hold no others."""


def _is_text(value: Any) -> bool:
    # A lone surrogate is no UTF-8, and PostgreSQL keeps no NUL.
    return (
        isinstance(value, str)
        and "\0" not in value
        and not any("\ud800" <= sign <= "\udfff" for sign in value)
    )


def _is_whole(value: Any) -> bool:
    return type(value) is int and -LARGEST <= value < LARGEST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e300 < value < 1e300


def _is_number_or_null(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_moment(value: Any) -> bool:
    try:
        moment = datetime.fromisoformat(value)
        moment.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return False
    return moment.tzinfo is not None


def _is_hash(value: Any) -> bool:
    return value is None or (
        isinstance(value, str)
        and len(value) == 64
        and not set(value) - set("0123456789abcdef")
    )


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(map(_is_number_or_null, value))
    )


def _is_plain(value: Any, deepest: int = DEEPEST) -> bool:
    """Whether a value can be written again, whatever it holds."""
    if isinstance(value, dict):
        return deepest > 0 and all(
            _is_text(name) and _is_plain(part, deepest - 1)
            for name, part in value.items()
        )
    if isinstance(value, list):
        return deepest > 0 and all(_is_plain(part, deepest - 1) for part in value)
    return (
        value is None or isinstance(value, bool) or _is_number(value) or _is_text(value)
    )


TEXT = Value("a text", _is_text)
NAMED = Value(
    "a text that is not empty", lambda value: _is_text(value) and bool(value.strip())
)
WHOLE = Value("a whole number", _is_whole)
NUMBER = Value("a number or null", _is_number_or_null)
POSITIVE = Value("a number above 0", lambda value: _is_number(value) and value > 0)
MOMENT = Value("a time with its zone", _is_moment)
PLAIN = Value(f"plain values of at most {DEEPEST} levels", _is_plain)

RUN: Schema = {
    **dict.fromkeys(("name", "job_id", "launcher", "log"), TEXT),
    "started": Optional(MOMENT, nullable=True),
    "attempts": WHOLE,
    **dict.fromkeys(("log_fingerprints", "nodes"), Each(TEXT)),
    "jobs": Each(PLAIN),
    "environment": Each(
        Value("a text or null", lambda value: value is None or _is_text(value)),
        named=True,
    ),
}
VERDICT: Schema = {
    "item": NAMED,
    "configuration": {
        "id": NAMED,
        **dict.fromkeys(("recipe", "size", "release", "gpu", "dtype"), TEXT),
        "gpus": WHOLE,
    },
    **dict.fromkeys(("verdict", "reason"), NAMED),
    "status": Value(
        "passed, failed or skipped",
        lambda value: value in ("passed", "failed", "skipped"),
    ),
    **dict.fromkeys(("text", "tolerance", "baseline"), TEXT),
    "counts": Value("true or false", lambda value: isinstance(value, bool)),
    **dict.fromkeys(
        (
            "run_seconds",
            "step_time_seconds",
            "expected_seconds",
            "bound_seconds",
            "log_difference",
        ),
        NUMBER,
    ),
    "window": {"first": WHOLE, "last": WHOLE, "statistic": NAMED},
    "metrics": Each(
        Value("a list of a number and its deviation", _is_pair), named=True
    ),
    "step_seconds": Each(NUMBER),
    "mean_of": Each(WHOLE),
    "log_sha256": Optional(Each(Value("a sha256 or null", _is_hash))),
    "noise": Optional(
        {"cluster": NAMED, "sigma": POSITIVE, "degrees_of_freedom": POSITIVE}
    ),
    "run": Optional(RUN, nullable=True),
}
SESSION: Schema = {
    "id": NAMED,
    "started": MOMENT,
    **dict.fromkeys(("host", "program", "git_commit", "ci_url"), TEXT),
    "options": Each(TEXT),
}
DOCUMENT: Schema = {"session": SESSION, "verdicts": Each(VERDICT, least=1)}
"""Further keys are passed over: a later version may write them."""


def _check(value: Any, schema: Schema, place: str) -> None:
    """Raise ValueError, with its place, for the first part of a value that is not as
    the schema says."""
    if isinstance(schema, Optional):
        if value is not None or not schema.nullable:
            _check(value, schema.part, place)
    elif isinstance(schema, Value):
        _require(schema.accept(value), value, schema.expected, place)
    elif isinstance(schema, Each):
        _require(
            isinstance(value, dict if schema.named else list),
            value,
            "an object" if schema.named else "a list",
            place,
        )
        _require(len(value) >= schema.least, value, "at least one", place)
        for name, part in value.items() if schema.named else enumerate(value):
            _require(
                not schema.named or _is_text(name), name, "a text", f"a name in {place}"
            )
            _check(
                part,
                schema.part,
                f"{place}.{name}" if schema.named else f"{place}[{name}]",
            )
    else:
        _check_object(value, schema, place)


def _check_object(value: Any, schema: dict[str, Schema], place: str) -> None:
    _require(isinstance(value, dict), value, "an object", place)
    for name, part in schema.items():
        inner = f"{place}.{name}".removeprefix(".")
        if name in value:
            _check(value[name], part, inner)
        elif not isinstance(part, Optional) or part.nullable:
            raise ValueError(f"{inner}: not there")
    if schema is VERDICT and value["counts"] and not (value["run_seconds"] or 0) > 0:
        raise ValueError(
            f"{place}.run_seconds: found {value['run_seconds']!r}, expected a time, since it counts"
        )


def _require(fits: bool, value: Any, expected: str, place: str) -> None:
    if not fits:
        text = ascii(value)
        raise ValueError(
            f"{place}: found {text if len(text) <= 40 else f'{text[:37]}...'}, expected {expected}"
        )
