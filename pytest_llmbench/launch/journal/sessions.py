"""The sessions of a journal: each one is open until it is finished, and locked by the process that has it."""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.launch.journal import lock


@dataclass(frozen=True, slots=True)
class UnfinishedSession:
    """A session that is not finished: how many of its jobs are not over, whether a process still has it, and which."""

    session: str
    label: str
    started: datetime
    waiting: int
    alive: bool
    holder: str = ""


def begin(database: sqlite3.Connection, folder: Path, label: str, now: datetime) -> tuple[str, int]:
    """Add a session and return its id and its lock.

    This, `reopen` and `list_unfinished` belong in a transaction: one process at a time takes locks or looks at them.
    """
    session = _make_id(database, now)
    row = (session, label, now.isoformat())
    database.execute("INSERT INTO session (id, label, started) VALUES (?, ?, ?)", row)
    return session, _lock_session(folder, session)


def reopen(database: sqlite3.Connection, folder: Path, session: str, *, finished: bool = False) -> tuple[str, int]:
    """Return the id and the lock of an unfinished session, without a name of the newest; with `finished` one that is
    named may be finished. LaunchError if there is none, or a process has it."""
    rows = database.execute("SELECT id, finished IS NULL FROM session ORDER BY rowid DESC").fetchall()
    there = [identifier for identifier, is_open in rows if is_open]
    allowed = [identifier for identifier, is_open in rows if is_open or finished]
    chosen = session or next(iter(there), "")
    if not chosen or chosen not in allowed:
        raise LaunchError(_explain_absent(database, folder, session, there))
    return chosen, _lock_session(folder, chosen)


def list_unfinished(database: sqlite3.Connection, folder: Path) -> tuple[UnfinishedSession, ...]:
    """Return the sessions that are not finished, newest first."""
    query = """SELECT id, label, started, (SELECT count(*) FROM job WHERE job.session = session.id AND over IS NULL)
               FROM session WHERE finished IS NULL ORDER BY rowid DESC"""
    return tuple(_read_session(folder, *row) for row in database.execute(query).fetchall())


def finish(database: sqlite3.Connection, session: str, now: datetime) -> None:
    """Close a session for good."""
    database.execute("UPDATE session SET finished = ? WHERE id = ?", (now.isoformat(), session))


def _read_session(folder: Path, session: str, label: str, started: str, waiting: int) -> UnfinishedSession:
    file = _find_lock_file(folder, session)
    alive = lock.is_held(file)
    return UnfinishedSession(
        session, label, datetime.fromisoformat(started), waiting, alive, lock.read_holder(file) if alive else ""
    )


def _make_id(database: sqlite3.Connection, now: datetime) -> str:
    while True:
        session = f"{now:%Y%m%d-%H%M}-{secrets.token_hex(2)}"
        if not database.execute("SELECT 1 FROM session WHERE id = ?", (session,)).fetchone():
            return session


def _lock_session(folder: Path, session: str) -> int:
    file = _find_lock_file(folder, session)
    handle = lock.take(file)
    if handle is None:
        raise LaunchError(
            f"session {session} is in use by process {lock.read_holder(file)}: wait until it has ended, or end it; "
            "no two share a session"
        )
    return handle


def _find_lock_file(folder: Path, session: str) -> Path:
    return folder / "sessions" / f"{session}.lock"


def _explain_absent(database: sqlite3.Connection, folder: Path, session: str, there: list[str]) -> str:
    rest = f"unfinished are {join_first(there)}{did_you_mean(session, there)}" if there else "none is unfinished"
    if not session:
        return f"there is no session to resume in {folder}: {rest}"
    row = database.execute("SELECT finished FROM session WHERE id = ?", (session,)).fetchone()
    what = f"was finished on {row[0]}" if row else f"is not in {folder}"
    return f"session {session} {what}: {rest}"
