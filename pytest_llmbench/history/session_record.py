"""Record of a session in the history: its verdicts, each with its run.

Files of unsaved sessions of earlier versions contain such a record as JSON.
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
"""The range of PostgreSQL's integer columns."""

LARGEST = 1e300
DEEPEST = 16
"""Maximum levels of nesting: an export supports only some hundreds."""


class Record(Struct, frozen=True, kw_only=True):
    """Base class of records. Unknown keys are ignored."""


class StoredSession(Record, frozen=True, kw_only=True):
    """A session that is or will be stored."""

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
    """The measured steps, both ends included."""

    first: Whole
    last: Whole
    statistic: Name


class NoiseRecord(Record, frozen=True, kw_only=True):
    """Run-to-run noise that an A/B measured on a cluster."""

    cluster: Name
    sigma: Positive
    degrees_of_freedom: Positive


class RunRecord(Record, frozen=True, kw_only=True):
    """The run of a verdict."""

    name: str
    job_id: str
    launcher: str
    started: Time | None = None
    log: str
    attempts: Whole
    log_fingerprints: tuple[str, ...]
    nodes: tuple[str, ...]
    jobs: tuple[Any, ...]
    """Plain values, as reported by the launching session."""
    environment: dict[str, str | None]

    def __post_init__(self) -> None:
        if self.started is not None:
            _refuse_without_utc(self.started)


class VerdictRecord(Record, frozen=True, kw_only=True):
    """The verdict of a session on a configuration, with its run."""

    item: Name
    configuration: KeyRecord
    status: Annotated[str, Meta(pattern=r"\A(passed|failed|skipped)\Z")]
    verdict: Name
    reason: Name
    text: str
    tolerance: str
    counts: bool
    """True if the run may represent its day; `run_seconds` is then a number."""
    run_seconds: Number | None
    step_time_seconds: Number | None
    expected_seconds: Number | None
    bound_seconds: Number | None
    log_difference: Number | None
    window: WindowRecord
    baseline: str
    metrics: dict[str, tuple[Number | None, Number | None]]
    """Value and standard deviation by name."""
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
                f"run_seconds: found {self.run_seconds!r}, expected a positive time because `counts` is true"
            )


class SessionRecord(Record, frozen=True, kw_only=True):
    """A session with its verdicts."""

    session: StoredSession
    verdicts: tuple[VerdictRecord, ...]


def _refuse_without_utc(time: datetime) -> None:
    """Raise ValueError for a time whose UTC is outside the years 1 to 9999."""
    try:
        time.astimezone(UTC)
    except OverflowError:
        raise ValueError(
            f"found {time}, expected a time that can be converted to UTC"
        ) from None


def refuse_unstorable(value: Any, path: str = "", levels: int = DEEPEST) -> None:
    """Raise ValueError, with its location, for a plain value that a database cannot
    store."""
    if isinstance(value, dict | list | tuple) and not levels:
        raise ValueError(f"{path}: found more than {DEEPEST} levels of values")
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_text(name, f"a name in {path}")
            inner_path = f"{path}.{name}".removeprefix(".")
            refuse_unstorable(inner, inner_path, levels - 1)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            refuse_unstorable(inner, f"{path}[{number}]", levels - 1)
    elif isinstance(value, str):
        _refuse_text(value, path)
    elif isinstance(value, int | float) and not -LARGEST < value < LARGEST:
        text = value if isinstance(value, float) else "hundreds of digits"
        raise ValueError(f"{path}: found {text}, expected a smaller number")


def _refuse_text(text: str, path: str) -> None:
    """Raise ValueError, with its location, for a text that a database cannot store."""
    try:
        text.encode()  # a lone surrogate is not valid UTF-8
    except UnicodeEncodeError:
        is_storable = False
    else:
        is_storable = "\0" not in text  # PostgreSQL cannot store NUL
    if not is_storable:
        excerpt = ascii(text if len(text) <= 40 else f"{text[:37]}...")
        raise ValueError(f"{path}: found {excerpt}, which a database cannot store")
