"""A history: where it is, and connections to it in short transactions, with what goes
wrong put into words."""

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
from pytest_llmbench.core.userfile import expand_home, is_there

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import DBAPIError

EXPECTED = "expected a file such as history.db, sqlite:///history.db, or postgresql://user@host/database"
SQLITE_HEADER = b"SQLite format 3\x00"

# how long other processes may hold the store; each of ours does for less than a second
PATIENCE_SECONDS = 20

CONNECT_SECONDS = 10

AHEAD = timedelta(
    days=1
)  # clocks of one cluster differ by less, as do times that were stored without a zone

# the advisory lock of those who write to one PostgreSQL database: `llmb`
LOCK = 0x6C6C6D62

OLDEST_SQLALCHEMY = (
    "2.0.10"  # the first that returns the numbers of new rows in their order
)
OLDEST_SQLITE = "3.35"  # the first that returns them at all

# `.recover` does nothing at all in the shell of Debian 12. `.dump` ends with ROLLBACK
# where it met damage.
SAVE = "restore a copy, or save what can be read: sqlite3 {} .dump | sed 's/^ROLLBACK.*/COMMIT;/' | sqlite3 {}"

# of all pages and all indices: `quick_check` misses a row that its index has lost
CHECK = "PRAGMA integrity_check(1)"

LOOK = "restore a copy, or see which session it is of: llmbench history export --history {}"

# What to do, by the beginning of SQLite's error name, or by PostgreSQL's code.
BUSY = f"another process held it for {PATIENCE_SECONDS} s: see which one, and try again"
REMEDIES = {
    "READONLY": "make the file and its folder writable",
    "FULL": "the disk or the quota is full: make room",
    "IOERR": "the disk or the quota may be full, or the file system has a fault: make room, or use another folder",
    "CANTOPEN": "see that the folder exists, and that it and the file can be read and written",
    "PERM": "see that the file can be read and written",
    "BUSY": BUSY,
    "PROTOCOL": "the file system does not lock files as it should: use a folder on another one, or PostgreSQL",
    "NOTADB": "restore a copy of it, or give another name",
    "55P03": BUSY,  # lock_not_available
    # insufficient_privilege
    "42501": "the user may not use its tables: grant it, or give another database",
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
"""What is raised by values that no session stored: SQLite keeps a text in a column of
numbers."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where a store is: a file of SQLite, or else a server."""

    shown: str  # may be printed: it holds no password
    file: Path | None = None
    url: str = field(default="", repr=False)  # of the server, with its password
    latest: datetime | None = field(default=None, compare=False)
    """No session or run can have begun later: one that states so had a wrong clock, and
    counts nowhere."""

    def until(self, now: datetime) -> StoreLocation:
        """Return the same store, in which nothing counts that begins later than `now`
        by more than AHEAD."""
        return replace(self, latest=now + AHEAD)


def locate_store(text: str, directory: Path, *, writes: bool = True) -> StoreLocation:
    """Return the place that a text names; a relative path is below `directory`.

    HistoryError for a text that names none, a package that is missing, and what can be
    seen to be in the way of reading, or of writing where `writes`: no folder, another
    kind of file, no permission.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        if re.match(r"(sqlite|postgres)\w*:", text):
            raise HistoryError(
                f"{hide_password_of(text)}: no scheme with ://; {EXPECTED}"
            )
        if re.match(
            r"\s*(host|hostaddr|port|dbname|user|password|passfile|service)\s*=", text
        ):
            raise HistoryError(
                f"{hide_password_of(text)}: a connection string, and no URL; {EXPECTED}"
            )
        return _locate_file(directory / expand_home(text), text, writes)
    if scheme == "sqlite":
        return _locate_file(directory / _parse_sqlite_path(text, rest), text, writes)
    if scheme in ("postgresql", "postgresql+psycopg"):
        return _locate_server(text, rest)
    hint = did_you_mean(scheme, ("sqlite", "postgresql"))
    raise HistoryError(
        f"{hide_password_of(text)}: found the scheme {scheme!r}{hint}; {EXPECTED}"
    )


def _parse_sqlite_path(text: str, rest: str) -> str:
    if not rest.startswith("/"):
        raise HistoryError(
            f"{text}: found two slashes; write sqlite:///history.db, and sqlite:////tmp/history.db"
        )
    path = rest[1:]
    if path in ("", ":memory:"):
        raise HistoryError(
            f"{text}: found no file; a history in memory would be forgotten; {EXPECTED}"
        )
    if "?" in path:
        raise HistoryError(
            f"{text}: found options behind '?'; a file has none here; {EXPECTED}"
        )
    return path


def _locate_file(path: Path, text: str, writes: bool) -> StoreLocation:
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
    if not path.parent.is_dir():
        raise HistoryError(
            f"{text}: the folder {path.parent} does not exist: make it, or give another one"
        )
    if not is_there(path):
        if not writes:
            raise HistoryError(
                f"{text}: there is no such file; `pytest --llmb-history=...` makes one"
            )
    elif not path.is_file():
        raise HistoryError(
            f"{text}: found something that is no file: give the name of a file in it, or of another"
        )
    else:
        with path.open("rb") as file:
            if file.read(len(SQLITE_HEADER)) not in (b"", SQLITE_HEADER):
                raise HistoryError(
                    f"{text}: the file is not a database: give another name"
                )
    needed = [
        path.parent,
        *([path] if is_there(path) else []),
    ]  # SQLite keeps its journal beside the file
    for path_needed in needed if writes else ():
        if not os.access(path_needed, os.W_OK):
            raise HistoryError(
                f"{text}: {path_needed} cannot be written: change its permissions, or give another place"
            )


def _locate_server(text: str, rest: str) -> StoreLocation:
    _require("sqlalchemy", "postgresql", text)
    _require("psycopg", "postgresql", text)
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(f"postgresql+psycopg://{rest}")
    except (ArgumentError, ValueError):
        raise HistoryError(f"{hide_password_of(text)}: not a URL; {EXPECTED}") from None
    if not url.database:
        raise HistoryError(f"{hide_password_of(text)}: names no database; {EXPECTED}")
    open_query = {
        name: value for name, value in url.query.items() if "pass" not in name.lower()
    }
    shown = URL.create(
        "postgresql", url.username, None, url.host, url.port, url.database, open_query
    ).render_as_string()
    return StoreLocation(shown, url=url.render_as_string(hide_password=False))


def _require(package: str, extra: str, text: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise HistoryError(
            f"{hide_password_of(text)}: needs {package}: pip install 'pytest-llmbench[{extra}]'"
        )
    found = importlib.metadata.version(package)
    if package == "sqlalchemy" and _read_version(found) < _read_version(
        OLDEST_SQLALCHEMY
    ):
        raise HistoryError(
            f"{hide_password_of(text)}: needs sqlalchemy {OLDEST_SQLALCHEMY}, found {found}: "
            f"pip install 'sqlalchemy>={OLDEST_SQLALCHEMY}'"
        )


def _read_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


# --- connections ----------------------------------------------------------------------


@contextmanager
def connect(place: StoreLocation, *, writes: bool) -> Iterator[Connection]:
    """Give a connection with a transaction, committed at its end and rolled back on any
    error.

    Where it `writes`, all others that write wait. HistoryError where the store cannot
    be used; nothing was stored then.
    """
    with explain_errors(place), _make_engine(place).connect() as connection:
        connection.execution_options(llmb_writes=writes)
        # now, not with the first statement: whoever writes waits here
        connection.begin()
        if connection.dialect.name == "postgresql":
            _begin(connection, writes)
        yield connection
        connection.commit()


def refuse_damaged(place: StoreLocation) -> None:
    """Read all pages of a file, and raise HistoryError where SQLite finds one damaged.
    A server sees to that itself."""
    if place.file is None or not is_there(place.file):
        return
    with connect(place, writes=False) as connection:
        damage = str(connection.exec_driver_sql(CHECK).scalar_one())
    if damage != "ok":
        raise HistoryError(
            f"{place.shown}: the file is damaged ({' '.join(damage.split())}); {_advise_saving(place)}"
        )


@contextmanager
def check_meanwhile(place: StoreLocation) -> Iterator[Callable[[], bool]]:
    """Read all pages of a file in a thread, and give what waits for it and tells
    whether the file is sound.

    `refuse_damaged` says what is wrong with one that is not, or could not be read.
    """
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_is_sound, place.file).result


def _is_sound(file: Path | None) -> bool:
    if file is None or not is_there(file):
        return False
    uri = f"{file.absolute().as_uri()}?mode=ro"
    try:
        with closing(
            sqlite3.connect(uri, uri=True, timeout=0)
        ) as connection:  # who has to wait does so once, later
            return bool(connection.execute(CHECK).fetchone() == ("ok",))
    except sqlite3.Error:
        return False


@contextmanager
def explain_errors(place: StoreLocation) -> Iterator[None]:
    """Turn what the database says, and what its values raise, into a HistoryError with
    what to do."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        raise HistoryError(
            f"{place.shown}: {escape(_format_error(error))}; {_find_remedy(error, place)}"
        ) from None
    except (SQLAlchemyError, *UNEXPECTED) as error:
        text = " ".join(repr(error).split())
        raise HistoryError(
            f"{place.shown}: holds what no session stored ({text}): {LOOK.format(place.shown)}"
        ) from None


@lru_cache(maxsize=8)
def _make_engine(place: StoreLocation) -> Engine:
    """Return an engine without a pool: a connection that is not used is closed."""
    from sqlalchemy import URL, NullPool, create_engine, event

    if place.file is None:
        return create_engine(
            place.url,
            poolclass=NullPool,
            connect_args={"connect_timeout": CONNECT_SECONDS},
        )
    url = URL.create("sqlite", database=str(place.file))
    engine = create_engine(
        url, poolclass=NullPool, connect_args={"timeout": PATIENCE_SECONDS}
    )

    # The default rollback journal and not WAL, which does not work on network file
    # systems. The lock is taken at the beginning: one that is asked for in the middle
    # is refused at once where two sessions write.
    @event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE"
            if connection.get_execution_options()["llmb_writes"]
            else "BEGIN"
        )

    return engine


def _begin(connection: Connection, writes: bool) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE_SECONDS}s'")
    connection.exec_driver_sql(
        f"SET LOCAL statement_timeout = '{3 * PATIENCE_SECONDS}s'"
    )
    if not writes:  # all queries see one moment, as they do in a file
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    else:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")


def _format_error(error: DBAPIError) -> str:
    """Return the database's own words in one line; SQLAlchemy's hold the values as
    well."""
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    first = str(error.orig).strip().partition("\n")[0]
    return f"{first} ({name})" if name else first


def _find_remedy(error: DBAPIError, place: StoreLocation) -> str:
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    code = getattr(error.orig, "sqlstate", "") or ""
    remedies = (
        text
        for start, text in REMEDIES.items()
        if start == code or name.startswith(f"SQLITE_{start}")
    )
    return next(
        remedies,
        _advise_saving(place)
        if place.file
        else "see that the server runs and lets this user in",
    )


def _advise_saving(place: StoreLocation) -> str:
    """Return the command that makes a sound file of what can be read of a damaged
    one."""
    if place.file is None:
        return "restore a copy of the database"
    saved = place.file.with_name(f"{place.file.stem}-saved{place.file.suffix}")
    return SAVE.format(*(shlex.quote(str(path)) for path in (place.file, saved)))
