"""Store the run-to-run noise measured by A/Bs, for later A/Bs on the same cluster.

The table is created when the first A/B is stored. Stores without the table are valid,
and older programs, which do not know the table, can still use a store that has it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from msgspec.structs import asdict
from sqlalchemy import (
    Column,
    Connection,
    Double,
    Index,
    MetaData,
    Select,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
)

from pytest_llmbench.history.session_record import SessionRecord
from pytest_llmbench.history.store import StoreLocation, connect
from pytest_llmbench.history.tables import SESSION, has_tables, is_in_time

NEWEST = 10
"""Number of A/Bs that are read per configuration: older noise is outdated."""

OPTIONAL = MetaData()
# No foreign key, so programs that do not know this table can remove sessions.
NOISE = Table(
    "llmb_noise",
    OPTIONAL,
    Column("session", Text, nullable=False),
    Column("configuration", Text, nullable=False),
    Column("cluster", Text, nullable=False),
    # Of the logarithm of the step time, between runs on the same nodes.
    Column("sigma", Double, nullable=False),
    Column("degrees_of_freedom", Double, nullable=False),
    Index("llmb_noise_configuration", "configuration", "cluster"),
)


class StoredNoise(NamedTuple):
    """Noise measured by one A/B.

    `sigma` is the standard deviation of the logarithm of the step time between runs.
    """

    sigma: float
    degrees_of_freedom: float


def store_noises(connection: Connection, record: SessionRecord) -> None:
    """Store the noise of a session's A/Bs, in the open transaction."""
    rows = [
        {
            "session": record.session.id,
            "configuration": verdict.configuration.id,
            **asdict(verdict.noise),
        }
        for verdict in record.verdicts
        if verdict.noise
    ]
    if rows:
        OPTIONAL.create_all(connection)
        connection.execute(insert(NOISE), rows)


def remove_noises(connection: Connection, sessions: Select[tuple[str]]) -> None:
    """Remove the noise of sessions, in the open transaction."""
    if _has_noises(connection):
        connection.execute(delete(NOISE).where(NOISE.c.session.in_(sessions)))


def read_noises(
    location: StoreLocation, cluster: str, configurations: Collection[str]
) -> dict[str, tuple[StoredNoise, ...]]:
    """Map configurations (ids) to the noise of their last A/Bs on a cluster.

    Newest first. Raises HistoryError if the store cannot be read or contains invalid
    values.
    """
    columns = (NOISE.c.configuration, NOISE.c.sigma, NOISE.c.degrees_of_freedom)
    joined = select(*columns).join_from(NOISE, SESSION, SESSION.c.id == NOISE.c.session)
    query = joined.where(
        NOISE.c.configuration.in_(configurations), NOISE.c.cluster == cluster
    )
    query = query.where(is_in_time(location, SESSION))
    query = query.order_by(SESSION.c.started.desc())
    noises_by_id: dict[str, list[StoredNoise]] = {}
    with connect(location, writes=False) as connection:
        if has_tables(connection, location.shown) and _has_noises(connection):
            for name, sigma, degrees_of_freedom in connection.execute(query):
                noise = _make_noise(sigma, degrees_of_freedom)
                noises_by_id.setdefault(name, []).append(noise)
    # A resumed session stores its A/B again: identical noise is from the same A/B.
    return {
        name: tuple(dict.fromkeys(noises))[:NEWEST]
        for name, noises in noises_by_id.items()
    }


NOISE_TYPES = {
    "ab_cluster": str,
    "ab_run_to_run": float,
    "ab_degrees_of_freedom": float,
}
"""The exported columns of A/Bs with their types."""

Noises = Mapping[tuple[str, str], Mapping[str, Any]]
"""The exported columns of A/Bs by (session id, configuration id)."""


def list_noises(location: StoreLocation) -> Noises:
    """Return the exported columns of A/Bs by (session id, configuration id)."""
    columns = {}
    with connect(location, writes=False) as connection:
        if not _has_noises(connection):
            return {}
        for row in connection.execute(select(NOISE)):
            noise = _make_noise(row.sigma, row.degrees_of_freedom)
            columns[row.session, row.configuration] = {
                "ab_cluster": row.cluster,
                "ab_run_to_run": noise.sigma,
                "ab_degrees_of_freedom": noise.degrees_of_freedom,
            }
    return columns


def _has_noises(connection: Connection) -> bool:
    """True if the store has the table, which is missing before the first A/B."""
    return inspect(connection).has_table(NOISE.name)


def _make_noise(sigma: float, degrees_of_freedom: float) -> StoredNoise:
    """Validate a noise. Raises ValueError for invalid numbers: SQLite columns can hold
    any value."""
    if not all(
        type(number) is float and math.isfinite(number) and number > 0
        for number in (sigma, degrees_of_freedom)
    ):
        raise ValueError(
            f"the noise of an A/B is {sigma!r} with {degrees_of_freedom!r} degrees of freedom"
        )
    return StoredNoise(sigma, degrees_of_freedom)
