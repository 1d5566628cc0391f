"""Verdicts as a history shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Window


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What one session said of a configuration, with what is known of the run; times
    are UTC."""

    configuration: str  # an id
    run: int | None  # the number of the run, None where there was none
    started: datetime | None
    judged: datetime  # when that session began
    session: str
    verdict: str
    reason: str
    status: str
    text: str
    counts: (
        bool  # whether the run may stand for a night: `run_seconds` is then a number
    )
    run_seconds: float | None  # the statistic of the run alone
    step_seconds: float | None  # the mean of its repeats with it
    expected_seconds: float | None
    log_difference: float | None
    mfu: float | None  # a fraction
    mfu_logged: bool  # whether its framework has counted the FLOPs
    window: Window
    baseline: str  # its kind
    tolerance: str
    job_id: str
    nodes: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def day(self) -> date:
        """The day of its night: that on which the run started; without a start that of
        the session."""
        return (self.started or self.judged).date()
