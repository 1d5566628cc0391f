"""Connections to a history: short transactions, with what goes wrong put into words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import HistoryError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import DBAPIError

    from pytest_llmbench.history.location import StoreLocation

PATIENCE_SECONDS = 20
"""How long other processes may hold the store; each of ours does for less than a second."""

CONNECT_SECONDS = 10

LOCK = 0x6C6C6D62
"""The advisory lock of those who write to one PostgreSQL database: `llmb`."""

BUSY = f"another process held it for {PATIENCE_SECONDS} s: see which one, and try again"
REMEDIES = {
    "READONLY": "make the file and its folder writable",
    "FULL": "the disk or the quota is full: make room",
    "IOERR": "the disk or the quota may be full, or the file system has a fault: make room, or use another folder",
    "CANTOPEN": "see that the folder exists, and that it and the file can be read and written",
    "PERM": "see that the file can be read and written",
    "BUSY": BUSY,
    "PROTOCOL": "the file system does not lock files as it should: use a folder on another one, or PostgreSQL",
    "CORRUPT": "the file is damaged: move it away",
    "NOTADB": "the file is not a database: give another name",
    "55P03": BUSY,  # lock_not_available
    "42501": "the user may not use its tables: grant it, or give another database",  # insufficient_privilege
}
"""What to do, by the beginning of SQLite's error name, or by PostgreSQL's code."""


@contextmanager
def connect(place: StoreLocation, *, writes: bool) -> Iterator[Connection]:
    """Give a connection with a transaction, committed at its end and rolled back on any error.

    Where it `writes`, all others that write wait. HistoryError where the store cannot be used; nothing was stored then.
    """
    with explain_errors(place), _make_engine(place).connect() as connection:
        connection.execution_options(llmb_writes=writes)
        connection.begin()  # now, not with the first statement: whoever writes waits here
        if connection.dialect.name == "postgresql":
            _begin(connection, writes)
        yield connection
        connection.commit()


@contextmanager
def explain_errors(place: StoreLocation) -> Iterator[None]:
    """Turn what the database says into a HistoryError with what to do."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        raise HistoryError(f"{place.shown}: {_format_error(error)}; {_find_remedy(error, place)}") from None


@lru_cache(maxsize=8)
def _make_engine(place: StoreLocation) -> Engine:
    """Return an engine without a pool: a connection that is not used is closed."""
    from sqlalchemy import URL, NullPool, create_engine, event

    if place.file is None:
        return create_engine(place.url, poolclass=NullPool, connect_args={"connect_timeout": CONNECT_SECONDS})
    url = URL.create("sqlite", database=str(place.file))
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": PATIENCE_SECONDS})

    # The default rollback journal and not WAL, which does not work on network file systems. The lock is taken at the
    # beginning: one that is asked for in the middle is refused at once where two sessions write.
    @event.listens_for(engine, "connect")
    def leave_transactions_to_us(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options()["llmb_writes"] else "BEGIN")

    return engine


def _begin(connection: Connection, writes: bool) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE_SECONDS}s'")
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{3 * PATIENCE_SECONDS}s'")
    if not writes:  # all queries see one moment, as they do in a file
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    else:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")


def _format_error(error: DBAPIError) -> str:
    """Return the database's own words in one line; SQLAlchemy's hold the values as well."""
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    first = str(error.orig).strip().partition("\n")[0]
    return f"{first} ({name})" if name else first


def _find_remedy(error: DBAPIError, place: StoreLocation) -> str:
    name = getattr(error.orig, "sqlite_errorname", "") or ""
    code = getattr(error.orig, "sqlstate", "") or ""
    remedies = (text for start, text in REMEDIES.items() if start == code or name.startswith(f"SQLITE_{start}"))
    return next(remedies, "look at the file" if place.file else "see that the server runs and lets this user in")
