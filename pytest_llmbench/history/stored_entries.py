"""Verdicts with their run and session, as read by `llmbench history` and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct


class ListedRun(Struct, frozen=True, kw_only=True):
    """A run with its latest verdict."""

    number: int | None
    """Number of the run. None without a run, like all fields of the run."""
    configuration: str
    started: datetime | None
    job_id: str
    session: str
    verdict: str
    step_time_seconds: float | None
    log_difference: float | None


class StoredEntry(ListedRun, frozen=True, kw_only=True):
    """A verdict with all stored values of its run and session."""

    recipe: str
    size: str
    release: str
    gpu: str
    dtype: str
    gpus: int
    name: str
    launcher: str
    log: str
    attempts: int
    nodes: Sequence[str]
    jobs: Sequence[Any]
    log_fingerprints: Sequence[str]
    environment: Mapping[str, str]
    reason: str
    status: str
    counts: bool
    run_seconds: float | None
    expected_seconds: float | None
    bound_seconds: float | None
    first_step: int
    last_step: int
    statistic: str
    baseline: str
    tolerance: str
    item: str
    text: str
    metrics: Mapping[str, Sequence[Any]]
    """Value and standard deviation by name."""
    mean_of: Sequence[int]
    step_seconds: Sequence[float | None]
    log_sha256: Sequence[str | None]
    judged: datetime
    host: str
    program: str
    options: Sequence[str]
    git_commit: str
    ci_url: str
