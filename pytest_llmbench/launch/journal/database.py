"""The SQLite file of the journal: opened, checked, and its errors put into words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError

NAME = "launch.db"
SCHEMA = 1
PATIENCE_SECONDS = 20.0
"""How long another process may hold the file."""

# the default rollback journal, not WAL: project folders lie on network file systems, where WAL does not work
TABLES = """
CREATE TABLE session (
    id TEXT PRIMARY KEY, label TEXT NOT NULL, started TEXT NOT NULL, finished TEXT
);
CREATE TABLE job (
    number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES session (id), token TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL, attempt INTEGER NOT NULL, repeat INTEGER NOT NULL,
    pid INTEGER, process_started TEXT, mark TEXT,
    job_id TEXT NOT NULL DEFAULT '', log_folder TEXT, status TEXT,
    problem TEXT NOT NULL DEFAULT '', text TEXT,
    intended TEXT NOT NULL, submitted TEXT, over TEXT, submission TEXT
);
CREATE INDEX job_of_session ON job (session);
CREATE TABLE note (
    session TEXT NOT NULL REFERENCES session (id), name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (session, name)
);
"""

MOVE = "move it away; jobs that it followed may still run: look with squeue --me, and in the jobs folder beside it"
REMEDIES = {
    "READONLY": "make the file and its folder writable, and see that nothing removes them while pytest runs",
    "FULL": "the disk or the quota is full: make room",
    "IOERR": "the disk or the quota may be full, or the file system has a fault: make room, or use another folder",
    "CANTOPEN": "see that the folder exists, and that it and the file can be read and written",
    "PERM": "see that the file can be read and written",
    "BUSY": f"another process held it for {PATIENCE_SECONDS:g} s: try again",
    "PROTOCOL": "the file system does not lock files as it should: start pytest in a folder on another one",
    "NOLFS": "the file system does not hold files of this size: start pytest in a folder on another one",
    "CORRUPT": f"the file is damaged: {MOVE}",
    "NOTADB": f"the file is damaged, or not a journal: {MOVE}",
}


def open_database(folder: Path) -> sqlite3.Connection:
    """Return the journal below `folder`, made with its folder if there is none; LaunchError if it cannot be used."""
    try:
        (folder / "sessions").mkdir(parents=True, exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")
    except OSError as error:
        text = f"{folder} cannot be made: {error.strerror}; start pytest in a folder that can be written and has room"
        raise LaunchError(text) from None
    file = folder / NAME
    with explain_errors(file):
        database = sqlite3.connect(file, timeout=PATIENCE_SECONDS, isolation_level=None)
    try:
        _prepare(database, file)
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Do all or nothing, while no other process begins, resumes or writes. One inside another is a part of it."""
    if database.in_transaction:
        yield
        return
    file = Path(database.execute("PRAGMA database_list").fetchone()[2])
    with explain_errors(file), database:
        database.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def explain_errors(file: Path) -> Iterator[None]:
    """Turn what SQLite finds wrong with a file into a LaunchError with what to do."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
        if isinstance(error, sqlite3.ProgrammingError):
            raise
        name = getattr(error, "sqlite_errorname", "") or ""
        remedy = next((text for code, text in REMEDIES.items() if name.startswith(f"SQLITE_{code}")), MOVE)
        raise LaunchError(f"{file}: {error}{f' ({name})' if name else ''}; {remedy}") from None


def _prepare(database: sqlite3.Connection, file: Path) -> None:
    with transaction(database):
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        empty = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and empty:
            for statement in filter(str.strip, TABLES.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {SCHEMA}")
        elif version == SCHEMA:
            columns = {row[1] for row in database.execute("PRAGMA table_info(job)")}
            if "submission" not in columns:  # an earlier version made the file, and may still write it: names suffice
                database.execute("ALTER TABLE job ADD COLUMN submission TEXT")
        else:
            raise LaunchError(
                f"{file} has version {version}, expected {SCHEMA}: another version of pytest-llmbench wrote it, which "
                f"can still follow its jobs, or another program; use that version, or {MOVE}"
            )
        damage = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise LaunchError(f"{file} is damaged ({damage}): {MOVE}")
