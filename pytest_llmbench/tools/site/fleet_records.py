"""Records of the daily verdicts that the pages of `llmbench site` show."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pytest_llmbench.core.judgement_records import LevelChange
    from pytest_llmbench.history.session_record import StoredSession
    from pytest_llmbench.history.stored_verdicts import StoredVerdict


class FleetRow(Struct, frozen=True):
    """The daily verdicts of a configuration, oldest first, and its level changes."""

    configuration: str
    verdicts: tuple[StoredVerdict, ...]
    """One verdict for each day, at least one."""

    seconds: tuple[float | None, ...]
    """The step time of each day; None without a valid run."""

    changes: tuple[LevelChange, ...]
    """The level changes; their `first_run` is an index into the days with a time."""

    total: float | None
    """The sum of the changes, as a fraction; None if there are too few days."""

    current: bool
    """True if the last verdict belongs to the newest sessions."""

    last_good: StoredVerdict | None
    """The last good verdict before a failed last one; else None."""

    text: str = ""
    """The redacted text of the last verdict."""


class FleetDays(Struct, frozen=True):
    """The daily verdicts of all configurations of a history."""

    days: tuple[date, ...]
    """The days with a verdict, oldest first."""

    rows: tuple[FleetRow, ...]
    session: StoredSession
    """The newest session."""

    location: str
    """The location of the history, without secrets."""

    future: str = ""
    """A note on omitted sessions that are dated in the future; else ""."""

    damaged: tuple[str, ...] = ()
    """A note for each session with invalid values, which are omitted."""
