"""The sessions of a journal: each one is open until it is finished, and locked by the process that has it."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.formatting import join_first


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
    alive = is_locked(file)
    return UnfinishedSession(
        session, label, datetime.fromisoformat(started), waiting, alive, read_holder(file) if alive else ""
    )


def _make_id(database: sqlite3.Connection, now: datetime) -> str:
    while True:
        session = f"{now:%Y%m%d-%H%M}-{secrets.token_hex(2)}"
        if not database.execute("SELECT 1 FROM session WHERE id = ?", (session,)).fetchone():
            return session


def _lock_session(folder: Path, session: str) -> int:
    file = _find_lock_file(folder, session)
    handle = take_lock(file)
    if handle is None:
        raise LaunchError(
            f"session {session} is in use by process {read_holder(file)}: wait until it has ended, or end it; "
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


# --- a lock on a file, which the kernel releases when its holder dies, however it dies ----------------------


def take_lock(path: Path) -> int | None:
    """Return an open file that holds the lock until it is closed, None where another has it; LaunchError."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise LaunchError(f"{path} cannot be opened: {error.strerror}; see that the folder can be written") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError as error:
        os.close(handle)
        text = (
            f"{path} cannot be locked: {error.strerror}; start pytest in a folder whose file system has locks and room"
        )
        raise LaunchError(text) from None
    return handle


def is_locked(path: Path) -> bool:
    """Whether somebody has the lock; one who takes it in this moment is refused, so ask where nobody can."""
    handle = os.open(path, os.O_RDONLY) if path.exists() else None
    if handle is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def read_holder(path: Path) -> str:
    """Return who took the lock last: `1234 on login1`."""
    return path.read_text(encoding="utf-8", errors="replace").strip() or "unknown"


def release_lock(handle: int | None) -> None:
    """Give a lock back."""
    if handle is not None:
        os.close(handle)
