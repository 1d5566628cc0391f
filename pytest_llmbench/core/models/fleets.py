"""A fleet over its nights, as a history knows it: what the pages of `llmbench site` show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.core.models.baselines import Window
    from pytest_llmbench.core.models.judgements import LevelChange


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What one session said of a configuration, with what is known of the run; times are UTC."""

    configuration: str  # an id
    run: int | None  # the number of the run, None where there was none
    started: datetime | None
    judged: datetime  # when that session began
    session: str
    verdict: str
    reason: str
    status: str
    text: str
    counts: bool  # whether the run may stand for a night: `run_seconds` is then a number
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
        """The day of its night: that on which the run started; without a start that of the session."""
        return (self.started or self.judged).date()


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session that is in a history."""

    id: str
    started: datetime
    host: str
    program: str  # the version of pytest-llmbench
    options: tuple[str, ...]
    git_commit: str
    ci_url: str


@dataclass(frozen=True, slots=True)
class FleetRow:
    """The nights of a configuration, oldest first, and the changes of level in them."""

    configuration: str
    nights: tuple[StoredVerdict, ...]  # one a day, never empty
    seconds: tuple[float | None, ...]  # of each night the step time that the series has; None where none counts
    changes: tuple[LevelChange, ...]  # `first_run` counts the nights with seconds
    total: float | None  # the sum of the changes, a fraction; None where the nights are too few to show any
    current: bool  # whether the last night is of the newest sessions: otherwise its verdict is an old one
    last_good: StoredVerdict | None  # before the last night, where that is red


@dataclass(frozen=True, slots=True)
class FleetNights:
    """All configurations of a history over some nights."""

    days: tuple[date, ...]  # on which anything was judged, oldest first
    rows: tuple[FleetRow, ...]
    session: StoredSession  # the newest one
    place: str  # the history, as it may be shown
    future: str = ""  # which sessions have a wrong clock and are left out
    damaged: tuple[str, ...] = ()  # a line for each session with values that no session stored, which are left out
