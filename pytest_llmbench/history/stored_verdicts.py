"""Verdicts as shown on the pages of `llmbench site`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

from msgspec import Struct

from pytest_llmbench.core.baseline_records import Window


# A year of a cluster has 125,000, which the garbage collector need not traverse.
class StoredVerdict(Struct, frozen=True, gc=False):
    """The verdict of one session on a configuration, with its run. Times are UTC."""

    id: int  # number of the verdict
    configuration: str  # id of the configuration
    run: int | None  # number of the run, None without a run
    started: datetime | None
    judged: datetime  # start of the session
    day: date  # on which the run, or else the session, started
    session: str
    verdict: str
    reason: str
    status: str
    counts: bool  # True if the run may represent its day; it has `run_seconds` then
    run_seconds: float | None  # the statistic of this run alone
    step_seconds: float | None  # the mean with its repeats
    expected_seconds: float | None
    log_difference: float | None
    mfu: float | None  # as a fraction
    mfu_logged: bool  # True if the framework counted the FLOPs
    window: Window
    baseline: str  # kind of the baseline
    tolerance: str
    job_id: str
    nodes: tuple[str, ...]
    environment: Mapping[str, str]
