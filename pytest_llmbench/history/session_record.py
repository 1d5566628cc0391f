"""The record of a session in the history: its verdicts, each with its run.

The file of an unsaved session of an earlier version is such a record in JSON.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

Name = Annotated[str, Meta(pattern=r"\S")]
Number = int | float
Positive = Annotated[float, Meta(gt=0)]
Time = Annotated[datetime, Meta(tz=True)]

Whole = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
"""PostgreSQL's columns hold no others."""

LARGEST = 1e300
DEEPEST = 16
"""Levels of nesting: an export writes no more than some hundreds."""


class Record(Struct, frozen=True, kw_only=True):
    """A part of what a session leaves; unknown keys are ignored."""


class StoredSession(Record, frozen=True, kw_only=True):
    """A session that is in a history, or will be."""

    id: Name
    started: Time
    host: str
    program: str
    """The version of pytest-llmbench."""
    options: tuple[str, ...]
    git_commit: str
    ci_url: str

    def __post_init__(self) -> None:
        _refuse_without_utc(self.started)


class KeyRecord(Record, frozen=True, kw_only=True):
    """The key of a configuration, with its id."""

    id: Name
    recipe: str
    size: str
    release: str
    gpu: str
    dtype: str
    gpus: Whole


class WindowRecord(Record, frozen=True, kw_only=True):
    """The steps that count, both ends included."""

    first: Whole
    last: Whole
    statistic: Name


class NoiseRecord(Record, frozen=True, kw_only=True):
    """The noise from run to run that an A/B measured on a cluster."""

    cluster: Name
    sigma: Positive
    degrees_of_freedom: Positive


class RunRecord(Record, frozen=True, kw_only=True):
    """The run behind a verdict."""

    name: str
    job_id: str
    launcher: str
    started: Time | None = None
    log: str
    attempts: Whole
    log_fingerprints: tuple[str, ...]
    nodes: tuple[str, ...]
    jobs: tuple[Any, ...]
    """Plain values, as the session that launched them reports them."""
    environment: dict[str, str | None]

    def __post_init__(self) -> None:
        if self.started is not None:
            _refuse_without_utc(self.started)


class VerdictRecord(Record, frozen=True, kw_only=True):
    """The verdict of a session on a configuration."""

    item: Name
    configuration: KeyRecord
    status: Annotated[str, Meta(pattern=r"\A(passed|failed|skipped)\Z")]
    verdict: Name
    reason: Name
    text: str
    tolerance: str
    counts: bool
    """True if the run may represent its day; `run_seconds` is a time then."""
    run_seconds: Number | None
    step_time_seconds: Number | None
    expected_seconds: Number | None
    bound_seconds: Number | None
    log_difference: Number | None
    window: WindowRecord
    baseline: str
    metrics: dict[str, tuple[Number | None, Number | None]]
    """By name the value and its standard deviation."""
    step_seconds: tuple[Number | None, ...]
    mean_of: tuple[Whole, ...]
    log_sha256: tuple[
        Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None, ...
    ] = ()
    noise: NoiseRecord | None = None
    run: RunRecord | None

    def __post_init__(self) -> None:
        if self.counts and not (self.run_seconds or 0) > 0:
            raise ValueError(
                f"run_seconds: found {self.run_seconds!r}, expected a time, since it counts"
            )


class SessionRecord(Record, frozen=True, kw_only=True):
    """A session with its verdicts."""

    session: StoredSession
    verdicts: tuple[VerdictRecord, ...]


def _refuse_without_utc(moment: datetime) -> None:
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"found {moment}, expected a time of this era") from None


def refuse_unstorable(value: Any, place: str = "", deepest: int = DEEPEST) -> None:
    """Raise ValueError, with its place, for a plain value that no database can hold."""
    if isinstance(value, dict | list | tuple) and not deepest:
        raise ValueError(f"{place}: found more than {DEEPEST} levels of values")
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_text(name, f"a name in {place}")
            inner_place = f"{place}.{name}".removeprefix(".")
            refuse_unstorable(inner, inner_place, deepest - 1)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            refuse_unstorable(inner, f"{place}[{number}]", deepest - 1)
    elif isinstance(value, str):
        _refuse_text(value, place)
    elif isinstance(value, int | float) and not -LARGEST < value < LARGEST:
        shown = value if isinstance(value, float) else "hundreds of digits"
        raise ValueError(f"{place}: found {shown}, expected a smaller number")


def _refuse_text(text: str, place: str) -> None:
    try:
        text.encode()  # a lone surrogate is no UTF-8
    except UnicodeEncodeError:
        is_storable = False
    else:
        is_storable = "\0" not in text  # which PostgreSQL does not keep
    if not is_storable:
        shown = ascii(text if len(text) <= 40 else f"{text[:37]}...")
        raise ValueError(f"{place}: found {shown}, which no database can hold")
