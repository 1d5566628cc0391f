"""The tables of a history, as they are made and as queries name them."""

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

# Raised when tables change.
SCHEMA_VERSION = 4

# Stores of version 3 are used as they are: they hold one table more, `llmb_digest`,
# which nothing reads here. A program that needs it refuses version 4 with a clear word.
OLDEST_VERSION = 3

METADATA = MetaData()


def _make_required(
    kind: type[Text | Integer | DateTime], *names: str
) -> Iterator[Column[object]]:
    """Yield columns of one kind that are never NULL."""
    return (Column(name, kind, nullable=False) for name in names)


def _make_number() -> Column[int]:
    return Column("id", Integer, Identity(), primary_key=True)


VERSION = Table("llmb_version", METADATA, *_make_required(Integer, "version"))

# One session of pytest.
SESSION = Table(
    "llmb_session",
    METADATA,
    Column("id", Text, primary_key=True),
    *_make_required(DateTime, "started"),  # all times are UTC
    *_make_required(Text, "host", "program"),
    *_make_required(Text, "options"),  # a JSON list
    *_make_required(Text, "git_commit", "ci_url"),
)

# One run, however often it was judged.
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

# What one session said of a configuration.
VERDICT = Table(
    "llmb_verdict",
    METADATA,
    _make_number(),
    Column("session", Text, ForeignKey(SESSION.c.id), nullable=False),
    Column("run", Integer, ForeignKey(RUN.c.id)),  # NULL where there was none
    *_make_required(Text, "configuration", "verdict", "reason", "status"),
    Column("counts", Boolean, nullable=False),  # whether the run may stand for a night
    Column("run_seconds", Double),  # the statistic of that run alone
    Column("step_time_seconds", Double),  # the mean of its repeats with it
    Column("expected_seconds", Double),
    Column("bound_seconds", Double),
    Column("log_difference", Double),
    *_make_required(Integer, "first_step", "last_step"),
    *_make_required(Text, "statistic", "baseline", "tolerance", "item", "text"),
    *_make_required(
        Text, "metrics"
    ),  # JSON, by name the value and its standard deviation
    *_make_required(Text, "mean_of"),
    Column(
        "step_seconds", LargeBinary, nullable=False
    ),  # the window's: 64-bit floats, little-endian, NaN for no number
    # A JSON list: the hash of each log as this session read it, null for one that
    # nobody could tell, empty where none was asked for. Of a verdict and not of its
    # run: a log that was edited and judged again must not take the place of the first
    # one.
    Column("log_sha256", Text, nullable=False, server_default=text("'[]'")),
    Index("llmb_verdict_session", "session"),
    Index("llmb_verdict_run", "run"),
)


def has_tables(connection: Connection, shown: str) -> bool:
    """Whether there is a store that this program reads and writes, not only room for
    one.

    HistoryError for one of another version, and for the file of another program.
    """
    names = inspect(connection).get_table_names()
    if VERSION.name not in names:
        if (
            names and connection.dialect.name == "sqlite"
        ):  # a server's database may hold other tables
            raise HistoryError(
                f"{shown}: found the tables of another program ({names[0]}): give another file"
            )
        return False
    version = int(connection.execute(select(VERSION.c.version)).scalar_one())
    if version > SCHEMA_VERSION:
        raise HistoryError(
            f"{shown}: found version {version}, expected at most {SCHEMA_VERSION}: a newer pytest-llmbench wrote it; "
            "install that one here, or give another place"
        )
    if version < OLDEST_VERSION:
        raise HistoryError(
            f"{shown}: found version {version}, expected at least {OLDEST_VERSION}: a pytest-llmbench from before its "
            "first release wrote it, and this one cannot read it: give another place"
        )
    missing = METADATA.tables.keys() - set(names)
    if missing:
        raise HistoryError(
            f"{shown}: found no table {min(missing)}: restore a copy of it, or give another place"
        )
    return True


def ensure_tables(connection: Connection, shown: str) -> None:
    """Make the tables where there are none, in the transaction that is open."""
    if not has_tables(connection, shown):
        METADATA.create_all(connection)
        connection.execute(VERSION.insert().values(version=SCHEMA_VERSION))


def drop_digests(connection: Connection) -> None:
    """Empty what a file of version 3 holds beside its verdicts, before verdicts are
    added or removed.

    SQLite gives the numbers of removed verdicts again, and the program that made
    digests would take theirs for them. On a server numbers are never given again.
    """
    if (
        connection.dialect.name == "sqlite"
        and "llmb_digest" in inspect(connection).get_table_names()
    ):
        connection.execute(text("DELETE FROM llmb_digest"))


def is_in_time(place: StoreLocation, table: Table) -> ColumnElement[bool]:
    """Return the condition that a session or run begins at `place.latest` or before, or
    has no start."""
    if place.latest is None:
        return true()
    return or_(
        table.c.started.is_(None), table.c.started <= convert_to_stored(place.latest)
    )


def list_order(place: StoreLocation) -> list[ColumnElement[Any]]:
    """Return the order of verdicts, oldest first: those of a session that begins later
    than now come before all."""
    in_time = [is_in_time(place, SESSION)] if place.latest else []
    return [*in_time, SESSION.c.started, VERDICT.c.id]


def convert_to_stored(moment: datetime) -> datetime:
    """Return a time as it is stored: UTC, without saying so."""
    return moment.astimezone(UTC).replace(tzinfo=None)
