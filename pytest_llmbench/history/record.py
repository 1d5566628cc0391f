"""Store a session in the history, completely or not at all."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.run_records import join_fingerprints, make_run_keys
from pytest_llmbench.history.paired_noise import store_noises
from pytest_llmbench.history.session_record import (
    KeyRecord,
    RunRecord,
    SessionRecord,
    VerdictRecord,
)
from pytest_llmbench.history.store import StoreLocation, connect, refuse_damaged
from pytest_llmbench.history.tables import (
    METADATA,
    RUN,
    SESSION,
    VERDICT,
    convert_to_stored,
    drop_digests,
    ensure_tables,
    is_in_time,
)

KEY = ("recipe", "size", "release", "gpu", "dtype", "gpus")
PLAIN = (
    *("verdict", "reason", "status", "counts", "run_seconds", "step_time_seconds"),
    *("expected_seconds", "bound_seconds", "log_difference", "baseline", "tolerance"),
    *("item", "text"),
)


# --- in the store ---------------------------------------------------------------------


def prepare(
    location: StoreLocation, is_sound: Callable[[], bool] = lambda: False
) -> None:
    """Create the store if it is missing.

    Raises HistoryError if the store is damaged, unusable or not writable. `is_sound`
    returns True if the check for damage is unnecessary.
    """
    if not is_sound():
        refuse_damaged(location)
    with connect(location, writes=True) as connection:
        ensure_tables(connection, location.shown)
        if (
            connection.dialect.name == "postgresql"
        ):  # file permissions were checked before
            for name in METADATA.tables:
                allowed = connection.execute(
                    text("SELECT has_table_privilege(:name, 'INSERT')"), {"name": name}
                )
                if not allowed.scalar_one():
                    raise HistoryError(
                        f"{location.shown}: this user may not write to {name}: grant the permission, or use another user"
                    )


def write(location: StoreLocation, record: SessionRecord) -> int:
    """Store a session in one transaction. Returns the number of added verdicts.

    Returns 0 if the session was stored before. Raises HistoryError if the session
    cannot be stored; the store is then unchanged.
    """
    session = record.session
    with connect(location, writes=True) as connection:
        ensure_tables(connection, location.shown)
        if connection.execute(
            select(SESSION.c.id).where(SESSION.c.id == session.id)
        ).first():
            return 0
        drop_digests(connection)
        began = convert_to_stored(session.started)
        values = asdict(session) | {
            "started": began,
            "options": json.dumps(session.options),
        }
        connection.execute(insert(SESSION), values)
        in_time = is_in_time(location, SESSION)
        runs = _store_runs(connection, record.verdicts, began, in_time)
        rows = [
            _make_row(verdict, session.id, run)
            for verdict, run in zip(record.verdicts, runs, strict=True)
        ]
        if rows:
            connection.execute(insert(VERDICT), rows)
        store_noises(connection, record)
    return len(rows)


def _make_row(verdict: VerdictRecord, session: str, run: int | None) -> dict[str, Any]:
    """Return the columns of a verdict."""
    seconds = [math.nan if value is None else value for value in verdict.step_seconds]
    return {
        "session": session,
        "run": run,
        "configuration": verdict.configuration.id,
        **{name: getattr(verdict, name) for name in PLAIN},
        "first_step": verdict.window.first,
        "last_step": verdict.window.last,
        "statistic": verdict.window.statistic,
        "metrics": json.dumps(verdict.metrics),
        "mean_of": json.dumps(verdict.mean_of),
        "log_sha256": json.dumps(verdict.log_sha256),
        "step_seconds": struct.pack(f"<{len(seconds)}d", *seconds),
    }


_OF_LAUNCH, _NONE = (
    ("nodes", "jobs"),
    "[]",
)  # only the session that launched a run knows these

# --- runs -----------------------------------------------------------------------------


def _store_runs(
    connection: Connection,
    verdicts: Sequence[VerdictRecord],
    began: datetime,
    in_time: ColumnElement[bool],
) -> list[int | None]:
    """Store the runs of verdicts. Returns each run's number, None without a run.

    Runs that are not stored yet are added. Stored runs are updated, unless a later
    session has already judged them. The nodes and jobs of the launching session are
    stored even then, and sessions without jobs do not replace them.
    """
    rows = [
        _make_run_row(verdict.configuration, verdict.run) if verdict.run else None
        for verdict in verdicts
    ]
    candidates = _find_candidates(connection, [row for row in rows if row])
    numbers = _match_runs(rows, candidates)
    last = _find_last_judged(
        connection, [number for number in numbers if number], in_time
    )
    stored = {candidate["id"]: candidate for candidate in candidates}
    pairs = [
        (row, stored[number])
        for row, number in zip(rows, numbers, strict=True)
        if row and number
    ]
    newer, late = [], []
    for row, before in pairs:
        if last.get(before["id"], began) <= began:
            newer.append(_join_with_stored(row, before))
        elif before["jobs"] == _NONE != row["jobs"]:
            late.append(
                {**{name: row[name] for name in _OF_LAUNCH}, "number": before["id"]}
            )
    for changed in filter(None, (newer, late)):
        values: dict[str, Any] = {
            name: bindparam(name) for name in changed[0] if name != "number"
        }
        connection.execute(
            update(RUN).where(RUN.c.id == bindparam("number")).values(values), changed
        )
    new = [row for row, number in zip(rows, numbers, strict=True) if row and not number]
    added: Iterator[int] = iter(())
    if new:
        statement_of_new = insert(RUN).returning(RUN.c.id, sort_by_parameter_order=True)
        added = iter(connection.execute(statement_of_new, new).scalars().all())
    return [
        next(added) if row and not number else number
        for row, number in zip(rows, numbers, strict=True)
    ]


def _join_with_stored(row: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Merge a run's new row with its stored row.

    Keeps the stored nodes and jobs if the new row has no jobs, and the stored start if
    the log is unchanged.
    """
    launch = stored if row["jobs"] == _NONE else row
    # A log without a time zone keeps its first start time, even if it is read in
    # another zone.
    is_same_log = (
        stored["started"] is not None and stored["fingerprint"] == row["fingerprint"]
    )
    kept = {
        "started": (stored if is_same_log else row)["started"],
        **{name: launch[name] for name in _OF_LAUNCH},
    }
    return {**row, **kept, "number": stored["id"]}


def _match_runs(
    rows: Sequence[dict[str, Any] | None], candidates: Sequence[dict[str, Any]]
) -> list[int | None]:
    """Return the number of the stored run for each row, or None.

    Rows with equal logs are matched first. Otherwise a run whose log has grown could
    match another run of its job that began at the same time.
    """
    logs = {
        (
            candidate["configuration"],
            candidate["job_id"],
            candidate["fingerprint"],
        ): candidate["id"]
        for candidate in reversed(candidates)
    }
    of_logs = [
        logs.get((row["configuration"], row["job_id"], row["fingerprint"]))
        if row and row["fingerprint"]
        else None
        for row in rows
    ]
    others = [candidate for candidate in candidates if candidate["id"] not in of_logs]
    return [
        number
        or next((other["id"] for other in others if row and _is_same(row, other)), None)
        for row, number in zip(rows, of_logs, strict=True)
    ]


def _find_last_judged(
    connection: Connection, numbers: Sequence[int], in_time: ColumnElement[bool]
) -> dict[int, datetime]:
    """Return the start of the last session that judged each run, without wrong clocks."""
    of_runs = select(VERDICT.c.run, func.max(SESSION.c.started)).join_from(
        VERDICT, SESSION, SESSION.c.id == VERDICT.c.session
    )
    judged = of_runs.where(VERDICT.c.run.in_(numbers), in_time).group_by(VERDICT.c.run)
    return {row[0]: row[1] for row in connection.execute(judged)}


def _make_run_row(configuration: KeyRecord, run: RunRecord) -> dict[str, Any]:
    """Return the columns of a run."""
    return {
        "configuration": configuration.id,
        "started": convert_to_stored(run.started) if run.started else None,
        "job_id": run.job_id,
        "fingerprint": join_fingerprints(run.log_fingerprints),
        **{name: getattr(configuration, name) for name in KEY},
        **{
            name: getattr(run, name) for name in ("name", "launcher", "log", "attempts")
        },
        **{
            name: json.dumps(getattr(run, name))
            for name in ("nodes", "jobs", "log_fingerprints", "environment")
        },
    }


def _find_candidates(
    connection: Connection, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the stored runs that may match these rows."""
    columns = (
        RUN.c.id,
        RUN.c.configuration,
        RUN.c.job_id,
        RUN.c.fingerprint,
        RUN.c.started,
        RUN.c.nodes,
        RUN.c.jobs,
    )
    configurations = {row["configuration"] for row in rows}
    begun = RUN.c.started.in_([row["started"] for row in rows if row["started"]])
    condition = or_(  # each condition has its own index
        RUN.c.fingerprint.in_(
            [row["fingerprint"] for row in rows if row["fingerprint"]]
        ),
        RUN.c.configuration.in_(configurations) & begun,
    )
    candidates = (
        connection.execute(select(*columns).where(condition).order_by(RUN.c.id))
        if rows
        else ()
    )
    return [row._asdict() for row in candidates if row.configuration in configurations]


def _is_same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if two rows are the same run.

    They have the same configuration and job, and equal logs or starts.
    """
    keys, other_keys = (
        make_run_keys(row["job_id"], row["fingerprint"], row["started"])
        for row in (row, other)
    )
    return row["configuration"] == other["configuration"] and not keys.isdisjoint(
        other_keys
    )
