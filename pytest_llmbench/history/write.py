"""Storing the document of a session: all of it or nothing, and once however often it is tried."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.models import join_fingerprints, make_run_keys
from pytest_llmbench.history import digests
from pytest_llmbench.history.location import StoreLocation
from pytest_llmbench.history.migrations import migrate
from pytest_llmbench.history.store import connect

if TYPE_CHECKING:
    from sqlalchemy import Connection

KEY = ("recipe", "size", "release", "gpu", "dtype", "gpus")
PLAIN = (
    *("verdict", "reason", "status", "counts", "run_seconds", "step_time_seconds", "expected_seconds"),
    *("bound_seconds", "log_difference", "baseline", "tolerance", "item", "text"),
)


def prepare(place: StoreLocation) -> None:
    """Make the store, or bring it to the newest version; HistoryError where it cannot be used or written."""
    from sqlalchemy import text

    from pytest_llmbench.history.tables import METADATA

    with connect(place, writes=True) as connection:
        migrate(connection, place.shown)
        if connection.dialect.name == "postgresql":  # of a file the permissions were looked at
            for name in METADATA.tables:
                allowed = connection.execute(text("SELECT has_table_privilege(:name, 'INSERT')"), {"name": name})
                if not allowed.scalar_one():
                    raise HistoryError(f"{place.shown}: this user may not write to {name}: grant it, or use another")


def write(place: StoreLocation, document: dict[str, Any]) -> int:
    """Store a session with its verdicts in one transaction, and return how many were added; 0 if it was stored before.

    HistoryError where that is impossible; nothing is stored then.
    """
    from sqlalchemy import insert, select

    from pytest_llmbench.history.tables import SESSION, VERDICT, convert_to_stored

    session, verdicts = document["session"], document["verdicts"]
    with connect(place, writes=True) as connection:
        migrate(connection, place.shown)
        if connection.execute(select(SESSION.c.id).where(SESSION.c.id == session["id"])).first():
            return 0
        # Before verdicts are added, to which a file may give the numbers of others that were removed.
        last = digests.remove_stale(connection) if place.file else digests.find_covered(connection)
        began = convert_to_stored(datetime.fromisoformat(session["started"]))
        values = {**session, "started": began, "options": json.dumps(session["options"])}
        connection.execute(insert(SESSION), values)
        runs = _store_runs(connection, verdicts, began)
        rows = [_make_row(verdict, session["id"], run) for verdict, run in zip(verdicts, runs, strict=True)]
        if rows:
            connection.execute(insert(VERDICT), rows)
        due = digests.find_due(connection, last)
    if due is not None:
        digests.renew(place)
    return len(rows)


def _make_row(verdict: dict[str, Any], session: str, run: int | None) -> dict[str, Any]:
    window, seconds = verdict["window"], [math.nan if value is None else value for value in verdict["step_seconds"]]
    return {
        "session": session,
        "run": run,
        "configuration": verdict["configuration"]["id"],
        **{name: verdict[name] for name in PLAIN},
        "first_step": window["first"],
        "last_step": window["last"],
        "statistic": window["statistic"],
        "metrics": json.dumps(verdict["metrics"]),
        "mean_of": json.dumps(verdict["mean_of"]),
        "log_sha256": json.dumps(verdict.get("log_sha256", [])),  # older versions left documents without it
        "step_seconds": struct.pack(f"<{len(seconds)}d", *seconds),
    }


# --- runs -------------------------------------------------------------------------------------------------


def _store_runs(connection: Connection, verdicts: Sequence[dict[str, Any]], began: datetime) -> list[int | None]:
    """Return the number of the run behind each verdict, None where there is none; unknown runs are added.

    What is known of a run is what the last session knew: one that `began` before that adds its verdict alone.
    """
    from sqlalchemy import bindparam, insert, update

    from pytest_llmbench.history.tables import RUN

    rows = [_make_run_row(verdict) if verdict["run"] else None for verdict in verdicts]
    numbers = _match_runs(rows, _find_candidates(connection, [row for row in rows if row]))
    last = _find_last_judged(connection, [number for number in numbers if number])
    again = [
        {**row, "number": number}
        for row, number in zip(rows, numbers, strict=True)
        if row and number and last.get(number, began) <= began
    ]
    if again:  # its log may have grown since
        names = [name for name in again[0] if name != "number"]
        statement = update(RUN).where(RUN.c.id == bindparam("number"))
        connection.execute(statement.values({name: bindparam(name) for name in names}), again)
    new = [row for row, number in zip(rows, numbers, strict=True) if row and not number]
    added: Iterator[int] = iter(())
    if new:
        statement_of_new = insert(RUN).returning(RUN.c.id, sort_by_parameter_order=True)
        added = iter(connection.execute(statement_of_new, new).scalars().all())
    return [next(added) if row and not number else number for row, number in zip(rows, numbers, strict=True)]


def _match_runs(rows: Sequence[dict[str, Any] | None], candidates: Sequence[dict[str, Any]]) -> list[int | None]:
    """Return the number of the stored run that each row is; None for no run, and for one that is not known.

    Equal logs count first: of several runs of a job that began together, one whose log has grown is none of the others.
    """
    logs = {
        (candidate["configuration"], candidate["job_id"], candidate["fingerprint"]): candidate["id"]
        for candidate in reversed(candidates)
    }
    of_logs = [
        logs.get((row["configuration"], row["job_id"], row["fingerprint"])) if row and row["fingerprint"] else None
        for row in rows
    ]
    others = [candidate for candidate in candidates if candidate["id"] not in of_logs]
    return [
        number or next((other["id"] for other in others if row and _is_same(row, other)), None)
        for row, number in zip(rows, of_logs, strict=True)
    ]


def _find_last_judged(connection: Connection, numbers: Sequence[int]) -> dict[int, datetime]:
    """Return when the last session began that judged each of these runs."""
    from sqlalchemy import func, select

    from pytest_llmbench.history.tables import SESSION, VERDICT

    of_runs = select(VERDICT.c.run, func.max(SESSION.c.started)).join_from(
        VERDICT, SESSION, SESSION.c.id == VERDICT.c.session
    )
    judged = of_runs.where(VERDICT.c.run.in_(numbers)).group_by(VERDICT.c.run)
    return {row[0]: row[1] for row in connection.execute(judged)}


def _make_run_row(verdict: dict[str, Any]) -> dict[str, Any]:
    from pytest_llmbench.history.tables import convert_to_stored

    run, configuration = verdict["run"], verdict["configuration"]
    return {
        "configuration": configuration["id"],
        "started": convert_to_stored(datetime.fromisoformat(run["started"])) if run["started"] else None,
        "job_id": run["job_id"],
        "fingerprint": join_fingerprints(run["log_fingerprints"]),
        **{name: configuration[name] for name in KEY},
        **{name: run[name] for name in ("name", "launcher", "log", "attempts")},
        **{name: json.dumps(run[name]) for name in ("nodes", "jobs", "log_fingerprints", "environment")},
    }


def _find_candidates(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the stored runs that may be one of these."""
    from sqlalchemy import or_, select

    from pytest_llmbench.history.tables import RUN

    columns = (RUN.c.id, RUN.c.configuration, RUN.c.job_id, RUN.c.fingerprint, RUN.c.started)
    configurations = {row["configuration"] for row in rows}
    begun = RUN.c.started.in_([row["started"] for row in rows if row["started"]])
    alike = or_(  # each side has an index of its own
        RUN.c.fingerprint.in_([row["fingerprint"] for row in rows if row["fingerprint"]]),
        RUN.c.configuration.in_(configurations) & begun,
    )
    candidates = connection.execute(select(*columns).where(alike).order_by(RUN.c.id)) if rows else ()
    return [row._asdict() for row in candidates if row.configuration in configurations]


def _is_same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows are one run: of one configuration and job, with equal logs or an equal start."""
    marks, of_other = (make_run_keys(row["job_id"], row["fingerprint"], row["started"]) for row in (row, other))
    return row["configuration"] == other["configuration"] and not marks.isdisjoint(of_other)
