"""Tables of a history, as created and as used by queries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    inspect,
    or_,
    select,
    text,
    true,
)

from pytest_llmbench.core.errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from pytest_llmbench.history.store import StoreLocation

# Increased if tables change.
SCHEMA_VERSION = 4

# Stores of version 3 are used unchanged: they have one more table, `llmb_digest`, which
# is ignored here. Programs that need the table refuse version 4 with a clear message.
OLDEST_VERSION = 3

METADATA = MetaData()


def _make_required(
    kind: type[Text | Integer | DateTime], *names: str
) -> Iterator[Column[object]]:
    """Yield NOT NULL columns of one type."""
    return (Column(name, kind, nullable=False) for name in names)


def _make_number() -> Column[int]:
    """Create the primary key of a table, which the database numbers."""
    return Column("id", Integer, Identity(), primary_key=True)


VERSION = Table("llmb_version", METADATA, *_make_required(Integer, "version"))

# One session of pytest.
SESSION = Table(
    "llmb_session",
    METADATA,
    Column("id", Text, primary_key=True),
    *_make_required(DateTime, "started"),  # UTC, like all times
    *_make_required(Text, "host", "program"),
    *_make_required(Text, "options"),  # a JSON list
    *_make_required(Text, "git_commit", "ci_url"),
)

# A run, however often it was judged.
RUN = Table(
    "llmb_run",
    METADATA,
    _make_number(),
    *_make_required(Text, "configuration"),
    Column("started", DateTime),
    *_make_required(
        Text, "job_id", "fingerprint", "recipe", "size", "release", "gpu", "dtype"
    ),
    *_make_required(Integer, "gpus"),
    *_make_required(Text, "name", "launcher", "log"),
    *_make_required(Integer, "attempts"),
    *_make_required(Text, "nodes", "jobs", "log_fingerprints", "environment"),  # JSON
    Index("llmb_run_started", "configuration", "started"),
    Index("llmb_run_fingerprint", "fingerprint"),
)

# The verdict of one session on a configuration.
VERDICT = Table(
    "llmb_verdict",
    METADATA,
    _make_number(),
    Column("session", Text, ForeignKey(SESSION.c.id), nullable=False),
    Column("run", Integer, ForeignKey(RUN.c.id)),  # NULL without a run
    *_make_required(Text, "configuration", "verdict", "reason", "status"),
    Column("counts", Boolean, nullable=False),  # True if the run may represent its day
    Column("run_seconds", Double),  # the statistic of this run alone
    Column("step_time_seconds", Double),  # the mean with its repeats
    Column("expected_seconds", Double),
    Column("bound_seconds", Double),
    Column("log_difference", Double),
    *_make_required(Integer, "first_step", "last_step"),
    *_make_required(Text, "statistic", "baseline", "tolerance", "item", "text"),
    *_make_required(Text, "metrics"),  # JSON: value and standard deviation by name
    *_make_required(Text, "mean_of"),
    # Step times in the window: 64-bit floats, little-endian, NaN if missing.
    Column("step_seconds", LargeBinary, nullable=False),
    # JSON list of the hash of each log as this session read it, null if unknown, empty
    # if not requested. A column of the verdict, not of the run: a log that was edited
    # and judged again must not replace the first hash.
    Column("log_sha256", Text, nullable=False, server_default=text("'[]'")),
    Index("llmb_verdict_session", "session"),
    Index("llmb_verdict_run", "run"),
)


def has_tables(connection: Connection, label: str) -> bool:
    """True if the store has the tables that this program reads and writes.

    Raises HistoryError for a store of another version or with missing tables, and for
    another program's file.
    """
    names = inspect(connection).get_table_names()
    if VERSION.name not in names:
        # A server's database may contain other tables, a file may not.
        if names and connection.dialect.name == "sqlite":
            raise HistoryError(
                f"{label}: found the tables of another program ({names[0]}): give another file"
            )
        return False
    version = int(connection.execute(select(VERSION.c.version)).scalar_one())
    if version > SCHEMA_VERSION:
        raise HistoryError(
            f"{label}: found version {version}, expected at most {SCHEMA_VERSION}: a newer pytest-llmbench wrote it; "
            "install that version here, or give another location"
        )
    if version < OLDEST_VERSION:
        raise HistoryError(
            f"{label}: found version {version}, expected at least {OLDEST_VERSION}: a pytest-llmbench from before its "
            "first release wrote it, which this version cannot read: give another location"
        )
    missing = METADATA.tables.keys() - set(names)
    if missing:
        raise HistoryError(
            f"{label}: found no table {min(missing)}: restore a backup, or give another location"
        )
    return True


def ensure_tables(connection: Connection, label: str) -> None:
    """Create the tables if they are missing, in the open transaction.

    Raises HistoryError like `has_tables`.
    """
    if not has_tables(connection, label):
        METADATA.create_all(connection)
        connection.execute(VERSION.insert().values(version=SCHEMA_VERSION))


def drop_digests(connection: Connection) -> None:
    """Empty the table `llmb_digest` of a file of version 3, before verdicts change.

    The table contains digests by the number of their verdict. SQLite reuses the numbers
    of removed verdicts, so an older program would read the digest of a removed verdict
    for a new verdict. A server never reuses numbers.
    """
    if (
        connection.dialect.name == "sqlite"
        and "llmb_digest" in inspect(connection).get_table_names()
    ):
        connection.execute(text("DELETE FROM llmb_digest"))


def is_in_time(location: StoreLocation, table: Table) -> ColumnElement[bool]:
    """Build the condition that a session or run is not in the future.

    True for rows without a start, and always if `location.latest` is unknown.
    """
    if location.latest is None:
        return true()
    started = table.c.started
    return or_(started.is_(None), started <= convert_to_stored(location.latest))


def list_order(location: StoreLocation) -> list[ColumnElement[Any]]:
    """Return the sort order of verdicts, oldest first.

    Sessions in the future come first, so that none of them is the newest.
    """
    in_time = [is_in_time(location, SESSION)] if location.latest else []
    return [*in_time, SESSION.c.started, VERDICT.c.id]


def convert_to_stored(time: datetime) -> datetime:
    """Convert a time for storage: UTC, without a time zone."""
    return time.astimezone(UTC).replace(tzinfo=None)
