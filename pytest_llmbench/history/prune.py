"""Remove old sessions, and sessions dated in the future by a wrong clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, false, func, or_, select

from pytest_llmbench.core.formatting import count_noun, escape
from pytest_llmbench.history.paired_noise import remove_noises
from pytest_llmbench.history.queries import fetch_rows
from pytest_llmbench.history.store import StoreLocation, connect
from pytest_llmbench.history.tables import (
    RUN,
    SESSION,
    VERDICT,
    convert_to_stored,
    drop_digests,
    ensure_tables,
    has_tables,
)

APART = timedelta(days=366)
"""A session that begins this long after the previous one may have a wrong clock."""


class Extent(NamedTuple):
    """Number and dates of the sessions that `prune` removes."""

    sessions: int
    oldest: datetime | None  # None, like `newest`, if there is no session
    newest: datetime | None
    stay: int  # number of remaining sessions


def prune(
    location: StoreLocation,
    before: datetime | None,
    *,
    dry_run: bool,
    future: bool = False,
) -> dict[str, int]:
    """Remove sessions with their verdicts, and runs left without verdicts.

    Removes the sessions that began before `before`, and with `future` those that begin
    later than `location.latest`. Returns the numbers of removed rows, which a dry run
    does not remove.
    """
    sessions = select(SESSION.c.id).where(_is_removed(location, before, future))
    runs_with_verdicts = select(VERDICT.c.run).where(VERDICT.c.run.is_not(None))
    # In this order: a verdict refers to its session and its run.
    steps = (
        ("verdicts", VERDICT, VERDICT.c.session.in_(sessions)),
        ("sessions", SESSION, SESSION.c.id.in_(sessions)),
        ("runs", RUN, RUN.c.id.not_in(runs_with_verdicts)),
    )
    removed = {}
    with connect(location, writes=True) as connection:
        ensure_tables(connection, location.shown)
        drop_digests(connection)
        remove_noises(connection, sessions)
        for name, table, condition in steps:
            count = select(func.count()).select_from(table).where(condition)
            removed[name] = connection.execute(count).scalar_one()
            connection.execute(delete(table).where(condition))
        if dry_run:
            connection.rollback()
    return removed


def measure_extent(
    location: StoreLocation, before: datetime | None, *, future: bool = False
) -> Extent:
    """Count the sessions that `prune` removes and those that remain."""
    began, is_removed = SESSION.c.started, _is_removed(location, before, future)
    with connect(location, writes=False) as connection:
        if not has_tables(connection, location.shown):
            return Extent(0, None, None, 0)
        query = select(func.count(), func.min(began), func.max(began)).where(is_removed)
        count, oldest, newest = connection.execute(query).one()
        total = connection.execute(
            select(func.count()).select_from(SESSION)
        ).scalar_one()
    return Extent(count, oldest, newest, total - count)


def _is_removed(
    location: StoreLocation, before: datetime | None, future: bool
) -> ColumnElement[bool]:
    """Build the condition that `prune` removes a session."""
    began = SESSION.c.started
    is_old = began < convert_to_stored(before) if before else false()
    if future and location.latest:
        return or_(is_old, began > convert_to_stored(location.latest))
    return is_old


# --- clocks that were wrong -----------------------------------------------------------


def describe_future(location: StoreLocation) -> str:
    """Describe the sessions and runs that begin later than `location.latest`, or return
    "".

    Raises HistoryError if the store cannot be read.
    """
    if location.latest is None:
        return ""
    latest = convert_to_stored(location.latest)
    columns = (SESSION.c.id.label("session"), SESSION.c.started, SESSION.c.host)
    future_sessions = select(*columns).where(SESSION.c.started > latest)
    sessions = fetch_rows(location, future_sessions.order_by(SESSION.c.started), dict)
    future_runs = select(RUN.c.started).where(RUN.c.started > latest)
    runs = fetch_rows(location, future_runs, dict)
    if not sessions and not runs:
        return ""
    counts = []
    if sessions:
        counts.append(count_noun(len(sessions), "session"))
    if runs:
        counts.append(count_noun(len(runs), "run"))
    verb = "begins" if len(sessions) + len(runs) == 1 else "begin"
    if sessions:
        last = sessions[-1]
        origin = f"{escape(last['session'])} on {escape(last['host'])}, "
        remedy = "; remove the sessions with `llmbench history prune --future`"
    else:
        last = max(runs, key=lambda run: run["started"])
        origin, remedy = "", ""
    example = f"{origin}{last['started']:%Y-%m-%d %H:%M} UTC"
    return (
        f"{' and '.join(counts)} {verb} later than now ({example}): a clock is or was "
        f"wrong; what it dated is ignored{remedy}"
    )


def describe_clock(location: StoreLocation, session: str, began: datetime) -> str:
    """Describe why a session's clock may be wrong, or return "".

    Either another session begins later than `location.latest`, or this session begins
    more than APART after all others.
    """
    others = select(func.max(SESSION.c.started)).where(SESSION.c.id != session)
    with connect(location, writes=False) as connection:
        newest = connection.execute(others).scalar()
    if newest is None:
        return ""
    newest = newest.replace(tzinfo=UTC)
    if location.latest is not None and newest > location.latest:
        return describe_future(location)
    gap = began - newest
    if gap <= APART:
        return ""
    return (
        f"this session begins {gap.days} days after the newest one before it ({newest:%Y-%m-%d}): check "
        "the clock of this machine"
    )
