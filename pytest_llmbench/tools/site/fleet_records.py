"""The fleet over its days, as the pages of `llmbench site` show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.core.judgement_records import LevelChange
    from pytest_llmbench.history.session_record import StoredSession
    from pytest_llmbench.history.stored_verdicts import StoredVerdict


@dataclass(frozen=True, slots=True)
class FleetRow:
    """The nights of a configuration, oldest first, and the changes of level in them."""

    configuration: str
    nights: tuple[StoredVerdict, ...]  # one a day, never empty
    seconds: tuple[
        float | None, ...
    ]  # of each night the step time that the series has; None where none counts
    changes: tuple[LevelChange, ...]  # `first_run` counts the nights with seconds
    total: (
        float | None
    )  # the sum of the changes, a fraction; None where the nights are too few to show any
    # whether the last night is of the newest sessions: otherwise its verdict is an old
    # one
    current: bool
    last_good: StoredVerdict | None  # before the last night, where that is red


@dataclass(frozen=True, slots=True)
class FleetDays:
    """All configurations of a history over some nights."""

    days: tuple[date, ...]  # on which anything was judged, oldest first
    rows: tuple[FleetRow, ...]
    session: StoredSession  # the newest one
    place: str  # the history, as it may be shown
    future: str = ""  # which sessions have a wrong clock and are left out
    damaged: tuple[
        str, ...
    ] = ()  # a line for each session with values that no session stored, which are left out
