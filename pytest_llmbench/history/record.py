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
"""Columns of a run that contain the key of its configuration."""

PLAIN = (
    "verdict",
    "reason",
    "status",
    "counts",
    "run_seconds",
    "step_time_seconds",
    "expected_seconds",
    "bound_seconds",
    "log_difference",
    "baseline",
    "tolerance",
    "item",
    "text",
)
"""Columns of a verdict that are stored unchanged."""


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
        # The permissions of a file were checked before.
        if connection.dialect.name == "postgresql":
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
        stored = select(SESSION.c.id).where(SESSION.c.id == session.id)
        if connection.execute(stored).first():
            return 0
        drop_digests(connection)
        began = convert_to_stored(session.started)
        values = asdict(session) | {
            "started": began,
            "options": json.dumps(session.options),
        }
        connection.execute(insert(SESSION), values)
        in_time = is_in_time(location, SESSION)
        run_numbers = _store_runs(connection, record.verdicts, began, in_time)
        rows = [
            _make_row(verdict, session.id, run_number)
            for verdict, run_number in zip(record.verdicts, run_numbers, strict=True)
        ]
        if rows:
            connection.execute(insert(VERDICT), rows)
        store_noises(connection, record)
    return len(rows)


def _make_row(
    verdict: VerdictRecord, session: str, run_number: int | None
) -> dict[str, Any]:
    """Return the columns of a verdict."""
    seconds = [math.nan if value is None else value for value in verdict.step_seconds]
    return {
        "session": session,
        "run": run_number,
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


# Only the session that launched a run knows these columns.
_LAUNCH_COLUMNS = ("nodes", "jobs")

_EMPTY_LIST = "[]"

# --- runs -----------------------------------------------------------------------------


def _store_runs(
    connection: Connection,
    verdicts: Sequence[VerdictRecord],
    began: datetime,
    in_time: ColumnElement[bool],
) -> list[int | None]:
    """Store the runs of verdicts. Returns each run's number, None without a run.

    Runs that are not stored yet are added. Stored runs are updated, unless a later
    session has already judged them. In this case, only the nodes and jobs of the session
    that launched the run are added. A session without jobs never deletes them. `began`
    is the start of the session; `in_time` excludes sessions in the future.
    """
    rows = [
        _make_run_row(verdict.configuration, verdict.run) if verdict.run else None
        for verdict in verdicts
    ]
    candidates = _find_candidates(connection, [row for row in rows if row])
    numbers = _match_runs(rows, candidates)
    stored_numbers = [number for number in numbers if number]
    last_judged = _find_last_judged(connection, stored_numbers, in_time)
    stored_by_number = {candidate["id"]: candidate for candidate in candidates}
    complete_updates, launch_updates, new_rows = [], [], []
    for row, number in zip(rows, numbers, strict=True):
        if row is None:
            continue
        if not number:
            new_rows.append(row)
            continue
        stored = stored_by_number[number]
        # No later session has judged the run.
        if last_judged.get(number, began) <= began:
            complete_updates.append(_join_with_stored(row, stored))
        elif stored["jobs"] == _EMPTY_LIST and row["jobs"] != _EMPTY_LIST:
            # A later session has judged the run, but this one launched it.
            launch_values = {name: row[name] for name in _LAUNCH_COLUMNS}
            launch_updates.append({**launch_values, "number": number})
    _update_runs(connection, complete_updates)
    _update_runs(connection, launch_updates)
    # The numbers of the added runs, in the order of `new_rows`.
    new_numbers: Iterator[int] = iter(())
    if new_rows:
        insertion = insert(RUN).returning(RUN.c.id, sort_by_parameter_order=True)
        new_numbers = iter(connection.execute(insertion, new_rows).scalars().all())
    return [
        next(new_numbers) if row and not number else number
        for row, number in zip(rows, numbers, strict=True)
    ]


def _update_runs(connection: Connection, updates: Sequence[dict[str, Any]]) -> None:
    """Update the runs with these numbers. All updates have the same columns."""
    if not updates:
        return
    columns = [name for name in updates[0] if name != "number"]
    values: dict[str, Any] = {name: bindparam(name) for name in columns}
    statement = update(RUN).where(RUN.c.id == bindparam("number")).values(values)
    connection.execute(statement, updates)


def _join_with_stored(row: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Merge a run's new row with its stored row.

    Keeps the stored nodes and jobs if the new row has no jobs, and the stored start if
    the log is unchanged.
    """
    joined = {**row, "number": stored["id"]}
    if row["jobs"] == _EMPTY_LIST:
        for name in _LAUNCH_COLUMNS:
            joined[name] = stored[name]
    # A log without a time zone keeps its first start time, even if it is read in
    # another zone.
    if stored["started"] is not None and stored["fingerprint"] == row["fingerprint"]:
        joined["started"] = stored["started"]
    return joined


def _match_runs(
    rows: Sequence[dict[str, Any] | None], candidates: Sequence[dict[str, Any]]
) -> list[int | None]:
    """Return the number of the stored run for each row, or None.

    Rows with equal logs are matched first. Otherwise a run whose log has grown could
    match another run of its job that began at the same time.
    """
    # Reversed, so that the first of several candidates with equal logs remains.
    number_by_log = {
        _get_log_key(candidate): candidate["id"] for candidate in reversed(candidates)
    }
    numbers = [
        number_by_log.get(_get_log_key(row)) if row and row["fingerprint"] else None
        for row in rows
    ]
    remaining = [
        candidate for candidate in candidates if candidate["id"] not in numbers
    ]
    for index, row in enumerate(rows):
        if row and not numbers[index]:
            numbers_of_same_run = (
                candidate["id"] for candidate in remaining if _is_same(row, candidate)
            )
            numbers[index] = next(numbers_of_same_run, None)
    return numbers


def _get_log_key(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return configuration, job and log fingerprint of a run."""
    return row["configuration"], row["job_id"], row["fingerprint"]


def _find_last_judged(
    connection: Connection, numbers: Sequence[int], in_time: ColumnElement[bool]
) -> dict[int, datetime]:
    """Return the start of the last session that judged each run.

    `in_time` excludes sessions in the future, whose clock was wrong.
    """
    last_judged = func.max(SESSION.c.started).label("last_judged")
    query = select(VERDICT.c.run, last_judged).join_from(
        VERDICT, SESSION, SESSION.c.id == VERDICT.c.session
    )
    query = query.where(VERDICT.c.run.in_(numbers), in_time).group_by(VERDICT.c.run)
    return {row.run: row.last_judged for row in connection.execute(query)}


def _make_run_row(configuration: KeyRecord, run: RunRecord) -> dict[str, Any]:
    """Return the columns of a run."""
    return {
        "configuration": configuration.id,
        "started": convert_to_stored(run.started) if run.started else None,
        "job_id": run.job_id,
        "fingerprint": join_fingerprints(run.log_fingerprints),
        **{name: getattr(configuration, name) for name in KEY},
        "name": run.name,
        "launcher": run.launcher,
        "log": run.log,
        "attempts": run.attempts,
        "nodes": json.dumps(run.nodes),
        "jobs": json.dumps(run.jobs),
        "log_fingerprints": json.dumps(run.log_fingerprints),
        "environment": json.dumps(run.environment),
    }


def _find_candidates(
    connection: Connection, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the stored runs with the log, or the start and configuration, of a row."""
    if not rows:
        return []
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
    fingerprints = [row["fingerprint"] for row in rows if row["fingerprint"]]
    starts = [row["started"] for row in rows if row["started"]]
    condition = or_(  # each condition has its own index
        RUN.c.fingerprint.in_(fingerprints),
        RUN.c.configuration.in_(configurations) & RUN.c.started.in_(starts),
    )
    query = select(*columns).where(condition).order_by(RUN.c.id)
    candidates = connection.execute(query)
    return [row._asdict() for row in candidates if row.configuration in configurations]


def _is_same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if two rows are the same run.

    They have the same configuration and job, and equal logs or starts.
    """
    if row["configuration"] != other["configuration"]:
        return False
    keys = make_run_keys(row["job_id"], row["fingerprint"], row["started"])
    other_keys = make_run_keys(other["job_id"], other["fingerprint"], other["started"])
    return not keys.isdisjoint(other_keys)
