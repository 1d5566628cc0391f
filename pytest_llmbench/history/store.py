"""Locate a history and connect to it in short transactions, with explained errors."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import sqlite3
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import HistoryError, did_you_mean
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.redaction import hide_password_of
from pytest_llmbench.core.userfile import expand_home, path_exists

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import DBAPIError

EXPECTED = "expected a file such as history.db, sqlite:///history.db, or postgresql://user@host/database"
SQLITE_HEADER = b"SQLite format 3\x00"

# Time to wait for other processes that lock the store. Our own processes lock it for
# less than a second.
PATIENCE_SECONDS = 20

CONNECT_SECONDS = 10

# Clocks of a cluster differ by less, and so do times stored without a time zone.
AHEAD = timedelta(days=1)

# the advisory lock for writing to a PostgreSQL database: `llmb`
LOCK = 0x6C6C6D62

OLDEST_SQLALCHEMY = "2.0.10"  # the first to return the numbers of new rows in order
OLDEST_SQLITE = "3.35"  # the first to return them at all

# `.recover` does nothing in the shell of Debian 12. `.dump` ends with ROLLBACK if it
# found damage.
SAVE = "restore a backup, or save the readable rows: sqlite3 {} .dump | sed 's/^ROLLBACK.*/COMMIT;/' | sqlite3 {}"

# Checks all pages and all indices: `quick_check` misses a row that its index has lost.
CHECK = "PRAGMA integrity_check(1)"

LOOK = "restore a backup, or find the session with llmbench history export --history {}"

# Remedies by the beginning of SQLite's error name, or by PostgreSQL's code.
BUSY = f"another process locked it for {PATIENCE_SECONDS} s: wait for that process, and try again"
REMEDIES = {
    "READONLY": "make the file and its folder writable",
    "FULL": "the disk or the quota is full: make room",
    "IOERR": "the disk or the quota may be full, or the file system has a fault: make room, or use another folder",
    "CANTOPEN": "check that the folder exists, and that it and the file can be read and written",
    "PERM": "check that the file can be read and written",
    "BUSY": BUSY,
    "PROTOCOL": "the file system does not lock files correctly: use another file system, or PostgreSQL",
    "NOTADB": "restore a backup, or give another name",
    "55P03": BUSY,  # lock_not_available
    # insufficient_privilege
    "42501": "the user may not use its tables: grant the permission, or give another database",
}

UNEXPECTED = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
"""Exceptions raised by invalid values: SQLite stores a text even in a numeric column.
"""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Location of a store: a SQLite file, or a server."""

    shown: str  # safe to print: without a password
    file: Path | None = None
    url: str = field(default="", repr=False)  # URL of the server, with the password
    latest: datetime | None = field(default=None, compare=False)
    """Sessions and runs that begin later had a wrong clock and are ignored."""

    def until(self, now: datetime) -> StoreLocation:
        """Return the store with `latest` set to AHEAD after `now`.

        Sessions and runs that begin later are ignored, because their clock was wrong.
        """
        return replace(self, latest=now + AHEAD)


def locate_store(text: str, directory: Path, *, writes: bool = True) -> StoreLocation:
    """Parse the location of a store. Relative paths are under `directory`.

    Raises HistoryError if the text is invalid, a package is missing, or the store is
    visibly unusable for reading (or for writing with `writes`): no folder, another kind
    of file, no permission.
    """
    scheme, separator, remainder = text.partition("://")
    if not separator:
        if re.match(r"(sqlite|postgres)\w*:", text):
            raise HistoryError(
                f"{hide_password_of(text)}: no scheme with ://; {EXPECTED}"
            )
        if re.match(
            r"\s*(host|hostaddr|port|dbname|user|password|passfile|service)\s*=", text
        ):
            raise HistoryError(
                f"{hide_password_of(text)}: a connection string, not a URL; {EXPECTED}"
            )
        return _locate_file(directory / expand_home(text), text, writes)
    if scheme == "sqlite":
        return _locate_file(
            directory / _parse_sqlite_path(text, remainder), text, writes
        )
    if scheme in ("postgresql", "postgresql+psycopg"):
        return _locate_server(text, remainder)
    hint = did_you_mean(scheme, ("sqlite", "postgresql"))
    raise HistoryError(
        f"{hide_password_of(text)}: found the scheme {scheme!r}{hint}; {EXPECTED}"
    )


def _parse_sqlite_path(text: str, remainder: str) -> str:
    """Return the path in an sqlite:/// URL. Raises HistoryError."""
    if not remainder.startswith("/"):
        raise HistoryError(
            f"{text}: found two slashes; write three for a relative path (sqlite:///history.db), four for an absolute one (sqlite:////tmp/history.db)"
        )
    path = remainder[1:]
    if path in ("", ":memory:"):
        raise HistoryError(
            f"{text}: found no file; a history in memory would be lost; {EXPECTED}"
        )
    if "?" in path:
        raise HistoryError(
            f"{text}: found options after '?', which are not supported for a file; {EXPECTED}"
        )
    return path


def _locate_file(path: Path, text: str, writes: bool) -> StoreLocation:
    """Return the location of a SQLite file. Raises HistoryError if it is unusable."""
    _require("sqlalchemy", "history", text)
    if _read_version(sqlite3.sqlite_version) < _read_version(OLDEST_SQLITE):
        raise HistoryError(
            f"{text}: needs SQLite {OLDEST_SQLITE}, and this Python has {sqlite3.sqlite_version}: use another Python, "
            "or PostgreSQL"
        )
    try:
        _check_file(path, text, writes)
    except OSError as error:
        raise HistoryError(
            f"{text}: {error.filename or path}: {error.strerror}"
        ) from None
    return StoreLocation(text, path)


def _check_file(path: Path, text: str, writes: bool) -> None:
    """Raise HistoryError unless the file can be read, and written if `writes`."""
    if not path.parent.is_dir():
        raise HistoryError(
            f"{text}: the folder {path.parent} does not exist: make it, or give another one"
        )
    if not path_exists(path):
        if not writes:
            raise HistoryError(
                f"{text}: no such file; create it with `pytest --llmb-history=...`"
            )
    elif not path.is_file():
        raise HistoryError(f"{text}: not a regular file: give the name of a file")
    else:
        with path.open("rb") as file:
            if file.read(len(SQLITE_HEADER)) not in (b"", SQLITE_HEADER):
                raise HistoryError(
                    f"{text}: the file is not a database: give another name"
                )
    if not writes:
        return
    # SQLite creates its journal in the folder of the file.
    for written_path in (path.parent, path):
        if path_exists(written_path) and not os.access(written_path, os.W_OK):
            raise HistoryError(
                f"{text}: {written_path} cannot be written: change its permissions, or give another location"
            )


def _locate_server(text: str, remainder: str) -> StoreLocation:
    """Return the location of a PostgreSQL database. Raises HistoryError."""
    _require("sqlalchemy", "postgresql", text)
    _require("psycopg", "postgresql", text)
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(f"postgresql+psycopg://{remainder}")
    except (ArgumentError, ValueError):
        raise HistoryError(f"{hide_password_of(text)}: not a URL; {EXPECTED}") from None
    if not url.database:
        raise HistoryError(f"{hide_password_of(text)}: names no database; {EXPECTED}")
    # The printable URL contains neither the password nor options such as sslpassword.
    printable_options = {
        name: value for name, value in url.query.items() if "pass" not in name.lower()
    }
    printable = URL.create(
        "postgresql",
        url.username,
        None,
        url.host,
        url.port,
        url.database,
        printable_options,
    ).render_as_string()
    return StoreLocation(printable, url=url.render_as_string(hide_password=False))


def _require(package: str, extra: str, text: str) -> None:
    """Raise HistoryError if a package is missing, or if sqlalchemy is too old."""
    if importlib.util.find_spec(package) is None:
        raise HistoryError(
            f"{hide_password_of(text)}: needs {package}: pip install 'pytest-llmbench[{extra}]'"
        )
    version = importlib.metadata.version(package)
    if package == "sqlalchemy" and _read_version(version) < _read_version(
        OLDEST_SQLALCHEMY
    ):
        raise HistoryError(
            f"{hide_password_of(text)}: needs sqlalchemy {OLDEST_SQLALCHEMY}, found {version}: "
            f"pip install 'sqlalchemy>={OLDEST_SQLALCHEMY}'"
        )


def _read_version(text: str) -> tuple[int, ...]:
    """Return the first three numbers of a version: (2, 0, 10) for `2.0.10b1`."""
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


# --- connections ----------------------------------------------------------------------


@contextmanager
def connect(location: StoreLocation, *, writes: bool) -> Iterator[Connection]:
    """Open a connection with a transaction, committed at the end, rolled back on
    errors.

    With `writes`, other writers wait. Raises HistoryError if the store is unusable;
    nothing is stored then.
    """
    with explain_errors(location), _make_engine(location).connect() as connection:
        connection.execution_options(llmb_writes=writes)
        # Begin now, not with the first statement, so that a writer waits here.
        connection.begin()
        if connection.dialect.name == "postgresql":
            _begin(connection, writes)
        yield connection
        connection.commit()


def refuse_damaged(location: StoreLocation) -> None:
    """Check all pages of a file. Raises HistoryError if SQLite finds damage.

    A server checks its own files.
    """
    if location.file is None or not path_exists(location.file):
        return
    with connect(location, writes=False) as connection:
        damage = str(connection.exec_driver_sql(CHECK).scalar_one())
    if damage != "ok":
        raise HistoryError(
            f"{location.shown}: the file is damaged ({' '.join(damage.split())}); {_advise_saving(location)}"
        )


@contextmanager
def check_meanwhile(location: StoreLocation) -> Iterator[Callable[[], bool]]:
    """Check all pages of a file in a thread.

    Yields a function that waits for the result and returns True if the file is sound.
    If it is not, `refuse_damaged` reports the reason.
    """
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_is_sound, location.file).result


def _is_sound(file: Path | None) -> bool:
    """True if SQLite finds no damage; False if the file cannot be checked now."""
    if file is None or not path_exists(file):
        return False
    uri = f"{file.absolute().as_uri()}?mode=ro"
    try:
        # Not waiting: `refuse_damaged` waits for a locked file later.
        with closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
            return bool(connection.execute(CHECK).fetchone() == ("ok",))
    except sqlite3.Error:
        return False


@contextmanager
def explain_errors(location: StoreLocation) -> Iterator[None]:
    """Convert errors of the database and of its values to a HistoryError.

    The message contains a remedy.
    """
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        raise HistoryError(
            f"{location.shown}: {escape(_format_error(error))}; {_find_remedy(error, location)}"
        ) from None
    except (SQLAlchemyError, *UNEXPECTED) as error:
        text = " ".join(repr(error).split())
        raise HistoryError(
            f"{location.shown}: contains an invalid value ({text}): {LOOK.format(location.shown)}"
        ) from None


@lru_cache(maxsize=8)
def _make_engine(location: StoreLocation) -> Engine:
    """Build an engine without a pool, so that unused connections are closed."""
    from sqlalchemy import URL, NullPool, create_engine, event

    if location.file is None:
        return create_engine(
            location.url,
            poolclass=NullPool,
            connect_args={"connect_timeout": CONNECT_SECONDS},
        )
    url = URL.create("sqlite", database=str(location.file))
    engine = create_engine(
        url, poolclass=NullPool, connect_args={"timeout": PATIENCE_SECONDS}
    )

    # The file keeps SQLite's default rollback journal, because WAL does not work on
    # network file systems.
    @event.listens_for(engine, "connect")
    def disable_implicit_transactions(connection: Any, _record: object) -> None:
        """Let `begin_transaction`, and not the driver, begin each transaction."""
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        """Begin a transaction; a writer locks the file immediately.

        If it locked the file later and another session wrote, SQLite would fail at
        once instead of waiting.
        """
        writes = connection.get_execution_options()["llmb_writes"]
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _begin(connection: Connection, writes: bool) -> None:
    """Prepare a transaction of PostgreSQL: timeouts, and a snapshot or the lock."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE_SECONDS}s'")
    connection.exec_driver_sql(
        f"SET LOCAL statement_timeout = '{3 * PATIENCE_SECONDS}s'"
    )
    if not writes:  # all queries see the same snapshot, as in a file
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    else:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")


def _format_error(error: DBAPIError) -> str:
    """Format the database's message in one line. SQLAlchemy's message would contain the
    values."""
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    first = str(error.orig).strip().partition("\n")[0]
    return f"{first} ({name})" if name else first


def _find_remedy(error: DBAPIError, location: StoreLocation) -> str:
    """Return the remedy for a database error."""
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    code = getattr(error.orig, "sqlstate", "") or ""
    for key, remedy in REMEDIES.items():
        # "READONLY" is also the remedy for SQLITE_READONLY_DBMOVED.
        if key == code or name.startswith(f"SQLITE_{key}"):
            return remedy
    if location.file:
        return _advise_saving(location)
    return "check that the server runs and accepts this user"


def _advise_saving(location: StoreLocation) -> str:
    """Return the remedy for damage: save the readable rows of a file.

    For a server the remedy is to restore a backup.
    """
    if location.file is None:
        return "restore a backup of the database"
    saved = location.file.with_name(f"{location.file.stem}-saved{location.file.suffix}")
    return SAVE.format(*(shlex.quote(str(path)) for path in (location.file, saved)))
