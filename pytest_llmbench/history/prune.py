"""Remove old sessions, and sessions that a wrong clock dates later than now."""

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
"""A session that begins so long after the one before it may have a clock that was not
set."""


class Extent(NamedTuple):
    """The sessions that `prune` removes."""

    sessions: int
    oldest: datetime | None  # None, as the next one, where there is none
    newest: datetime | None
    stay: int  # so many others


def prune(
    place: StoreLocation,
    before: datetime | None,
    *,
    dry_run: bool,
    future: bool = False,
) -> dict[str, int]:
    """Remove sessions with their verdicts and the runs that are left without one;
    return how many, or would be.

    Removed are the sessions that began before a moment, and with `future` those that
    begin later than `place.latest`.
    """
    old = select(SESSION.c.id).where(_is_gone(place, before, future))
    steps = (
        ("verdicts", VERDICT, VERDICT.c.session.in_(old)),
        ("sessions", SESSION, SESSION.c.id.in_(old)),
        (
            "runs",
            RUN,
            RUN.c.id.not_in(select(VERDICT.c.run).where(VERDICT.c.run.is_not(None))),
        ),
    )
    removed = {}
    with connect(place, writes=True) as connection:
        ensure_tables(connection, place.shown)
        drop_digests(connection)
        remove_noises(connection, old)
        for name, table, which in steps:
            removed[name] = connection.execute(
                select(func.count()).select_from(table).where(which)
            ).scalar_one()
            connection.execute(delete(table).where(which))
        if dry_run:
            connection.rollback()
    return removed


def measure_extent(
    place: StoreLocation, before: datetime | None, *, future: bool = False
) -> Extent:
    """Return which sessions `prune` removes, and how many stay."""
    began, gone = SESSION.c.started, _is_gone(place, before, future)
    with connect(place, writes=False) as connection:
        if not has_tables(connection, place.shown):
            return Extent(0, None, None, 0)
        found = select(func.count(), func.min(began), func.max(began)).where(gone)
        count, oldest, newest = connection.execute(found).one()
        every = connection.execute(
            select(func.count()).select_from(SESSION)
        ).scalar_one()
    return Extent(count, oldest, newest, every - count)


def _is_gone(
    place: StoreLocation, before: datetime | None, future: bool
) -> ColumnElement[bool]:
    began = SESSION.c.started
    old = began < convert_to_stored(before) if before else false()
    return (
        or_(old, began > convert_to_stored(place.latest))
        if future and place.latest
        else old
    )


# --- clocks that were wrong -----------------------------------------------------------


def describe_future(place: StoreLocation) -> str:
    """Describe the sessions and runs that begin later than `place.latest`; "" if there
    are none.

    HistoryError if the store cannot be read.
    """
    if place.latest is None:
        return ""
    latest = convert_to_stored(place.latest)
    columns = (SESSION.c.id.label("session"), SESSION.c.started, SESSION.c.host)
    sessions = fetch_rows(
        place,
        select(*columns).where(SESSION.c.started > latest).order_by(SESSION.c.started),
        dict,
    )
    runs = fetch_rows(place, select(RUN.c.started).where(RUN.c.started > latest), dict)
    parts = [
        *([count_noun(len(sessions), "session")] if sessions else ()),
        *([count_noun(len(runs), "run")] if runs else ()),
    ]
    if not parts:
        return ""
    verb = "begins" if len(sessions) + len(runs) == 1 else "begin"
    last = (
        sessions[-1]
        if sessions
        else {"session": "", "host": "", **max(runs, key=lambda run: run["started"])}
    )
    named = f"{escape(last['session'])} on {escape(last['host'])}, " if sessions else ""
    remedy = (
        ": `llmbench history prune --future` removes such sessions" if sessions else ""
    )
    return (
        f"{' and '.join(parts)} {verb} later than now ({named}{last['started']:%Y-%m-%d %H:%M} UTC): a clock is or was "
        f"wrong, and nothing that is dated so counts{remedy}"
    )


def describe_clock(place: StoreLocation, session: str, began: datetime) -> str:
    """Describe why the clock of a stored session may be wrong, or was of another one;
    "" if nothing contradicts them.

    Another session begins later than `place.latest`, or this one more than APART after
    all others.
    """
    others = select(func.max(SESSION.c.started)).where(SESSION.c.id != session)
    with connect(place, writes=False) as connection:
        newest = connection.execute(others).scalar()
    if newest is None:
        return ""
    newest = newest.replace(tzinfo=UTC)
    if place.latest is not None and newest > place.latest:
        return describe_future(place)
    if began - newest <= APART:
        return ""
    return (
        f"this session begins {(began - newest).days} days after the newest one before it ({newest:%Y-%m-%d}): look at "
        "the clock of this machine"
    )
