"""What `llmbench history` shows, exports and removes."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_llmbench.core.errors import HistoryError, did_you_mean
from pytest_llmbench.history.store import StoreLocation, connect

if TYPE_CHECKING:
    from sqlalchemy import Select

Rows = list[dict[str, Any]]

# The columns that hold lists and dictionaries, besides `metrics`.
NESTED = ("nodes", "jobs", "log_fingerprints", "environment", "mean_of", "log_sha256", "options")


class Extent(NamedTuple):
    """The sessions before a moment."""

    sessions: int
    oldest: datetime | None  # None, as the next one, where there is none
    newest: datetime | None
    stay: int  # so many others


_NEVER = datetime.min.replace(tzinfo=UTC)


def list_runs(place: StoreLocation, words: str, since: datetime | None, limit: int) -> Rows:
    """Return the last `limit` runs of each configuration as they were judged last, by configuration, oldest first.

    A configuration has to hold what `words` ask for, as in `grok1 and not fp8 or llama`; those without any run are left
    out.
    """
    from sqlalchemy import select

    from pytest_llmbench.history.tables import RUN, SESSION, VERDICT, convert_to_stored

    of_run = (RUN.c.id.label("number"), RUN.c.configuration, RUN.c.started, RUN.c.job_id)
    judgement = (VERDICT.c.verdict, VERDICT.c.step_time_seconds, VERDICT.c.log_difference)
    joined = select(*of_run, *judgement).join_from(VERDICT, RUN, RUN.c.id == VERDICT.c.run)
    query = joined.join(SESSION, SESSION.c.id == VERDICT.c.session).order_by(SESSION.c.started, VERDICT.c.id)
    if since is not None:
        query = query.where(RUN.c.started >= convert_to_stored(since))
    newest = {row["number"]: row for row in _fetch_rows(place, query) if _is_wanted(row["configuration"], words)}
    by_configuration: dict[str, Rows] = {}
    for row in sorted(newest.values(), key=_get_start):
        by_configuration.setdefault(row["configuration"], []).append(row)
    return [row for name in sorted(by_configuration) for row in by_configuration[name][-limit:]]


def list_verdicts(place: StoreLocation, wanted: str) -> Rows:
    """Return all verdicts on a run (its number), or on the last run of a configuration (its id), oldest first.

    HistoryError, with the nearest id, for one that the history does not know.
    """
    from sqlalchemy import select

    from pytest_llmbench.history.tables import RUN

    number = wanted if wanted.isdecimal() else None
    if number is None:
        of_one = _fetch_rows(
            place, select(RUN.c.id, RUN.c.started).where(RUN.c.configuration == wanted).order_by(RUN.c.id)
        )
        number = max(of_one, key=_get_start)["id"] if of_one else None
    rows = [] if number is None else _fetch_rows(place, _join_tables().where(RUN.c.id == int(number)))
    if not rows:
        ids = [row["configuration"] for row in _fetch_rows(place, select(RUN.c.configuration).distinct())]
        nearest = did_you_mean(wanted, ids)
        raise HistoryError(f"{place.shown}: no run {wanted}{nearest}; `llmbench history list` shows all of them")
    return [_decode(row) for row in rows]


def list_everything(place: StoreLocation) -> Rows:
    """Return every verdict with its run and session, those without a run too: columns for a table, oldest first."""
    return [_decode(row) for row in _fetch_rows(place, _join_tables())]


def prune(place: StoreLocation, before: datetime, *, dry_run: bool) -> dict[str, int]:
    """Remove the sessions that began before a moment, with their verdicts and the runs that are left without one.

    Return how many of each are gone, or would be.
    """
    from sqlalchemy import delete, func, select

    from pytest_llmbench.history.tables import RUN, SESSION, VERDICT, convert_to_stored, drop_digests, ensure_tables

    old = select(SESSION.c.id).where(SESSION.c.started < convert_to_stored(before))
    steps = (
        ("verdicts", VERDICT, VERDICT.c.session.in_(old)),
        ("sessions", SESSION, SESSION.c.id.in_(old)),
        ("runs", RUN, RUN.c.id.not_in(select(VERDICT.c.run).where(VERDICT.c.run.is_not(None)))),
    )
    removed = {}
    with connect(place, writes=True) as connection:
        ensure_tables(connection, place.shown)
        drop_digests(connection)
        for name, table, which in steps:
            removed[name] = connection.execute(select(func.count()).select_from(table).where(which)).scalar_one()
            connection.execute(delete(table).where(which))
        if dry_run:
            connection.rollback()
    return removed


def measure_extent(place: StoreLocation, before: datetime) -> Extent:
    """Return which sessions `prune` removes, and how many stay."""
    from sqlalchemy import func, select

    from pytest_llmbench.history.tables import SESSION, convert_to_stored, has_tables

    began = SESSION.c.started
    with connect(place, writes=False) as connection:
        if not has_tables(connection, place.shown):
            return Extent(0, None, None, 0)
        gone = select(func.count(), func.min(began), func.max(began)).where(began < convert_to_stored(before))
        count, oldest, newest = connection.execute(gone).one()
        stay = connection.execute(select(func.count()).where(began >= convert_to_stored(before))).scalar_one()
    return Extent(count, oldest, newest, stay)


def _is_wanted(configuration: str, words: str) -> bool:
    return any(all(_fits(configuration, word.strip()) for word in each.split(" and ")) for each in words.split(" or "))


def _fits(configuration: str, word: str) -> bool:
    return (word.removeprefix("not ").strip().lower() in configuration.lower()) is not word.startswith("not ")


# --- reading ----------------------------------------------------------------------------------------------


def _fetch_rows(place: StoreLocation, query: Select[Any]) -> Rows:
    """Return what a query finds; nothing in a store without tables."""
    from pytest_llmbench.history.tables import has_tables

    with connect(place, writes=False) as connection:
        if not has_tables(connection, place.shown):
            return []
        return [_mark_utc(dict(row)) for row in connection.execute(query).mappings()]


def _mark_utc(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose times say that they are UTC."""
    return {**row, **{name: row[name].replace(tzinfo=UTC) for name in ("started", "judged") if row.get(name)}}


def _get_start(row: dict[str, Any]) -> datetime:
    began: datetime = row["started"] or _NEVER
    return began


def _join_tables() -> Select[Any]:
    """Return the query for all that is known of each verdict, oldest first."""
    from sqlalchemy import select

    from pytest_llmbench.history.tables import RUN, SESSION, VERDICT

    of_run = [column for column in RUN.c if column.name not in ("id", "configuration", "fingerprint")]
    of_verdict = [column for column in VERDICT.c if column.name not in ("id", "run", "session")]
    of_session = [
        SESSION.c.id.label("session"),
        SESSION.c.started.label("judged"),
        SESSION.c.host,
        SESSION.c.program,
        SESSION.c.options,
        SESSION.c.git_commit,
        SESSION.c.ci_url,
    ]
    columns = (RUN.c.id.label("number"), *of_run, *of_verdict, *of_session)
    joined = select(*columns).join_from(VERDICT, SESSION, SESSION.c.id == VERDICT.c.session)
    return joined.join(RUN, RUN.c.id == VERDICT.c.run, isouter=True).order_by(SESSION.c.started, VERDICT.c.id)


def _decode(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with lists and dictionaries in place of texts and bytes."""
    packed = bytes(row["step_seconds"])
    steps = struct.unpack(f"<{len(packed) // 8}d", packed)
    return {
        **row,
        **{name: json.loads(row[name]) if row[name] is not None else None for name in (*NESTED, "metrics")},
        "step_seconds": [None if math.isnan(value) else value for value in steps],
    }
