"""The noise from run to run that A/Bs measured, kept for later ones of the same
configuration and cluster.

Its table is made by the first A/B that is stored: stores without it are as good, and
older programs, which do not know it, go on using a store that has it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
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
"""So many A/Bs of a configuration are read: what a cluster was like long before tells
little."""

OPTIONAL = MetaData()
# Without a foreign key: a program that does not know this table removes sessions all
# the same.
NOISE = Table(
    "llmb_noise",
    OPTIONAL,
    *(
        Column(name, Text, nullable=False)
        for name in ("session", "configuration", "cluster")
    ),
    # of the logarithm of the step time, from run to run on the same nodes
    *(Column(name, Double, nullable=False) for name in ("sigma", "degrees_of_freedom")),
    Index("llmb_noise_configuration", "configuration", "cluster"),
)


class StoredNoise(NamedTuple):
    """What one A/B measured: the standard deviation of the logarithm of a run, and its
    degrees of freedom."""

    sigma: float
    degrees_of_freedom: float


def store_noises(connection: Connection, record: SessionRecord) -> None:
    """Store what the A/Bs of a session measured, in the transaction that is open."""
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
    """Remove what sessions stored, in the transaction that is open."""
    if _has_noises(connection):
        connection.execute(delete(NOISE).where(NOISE.c.session.in_(sessions)))


def read_noises(
    place: StoreLocation, cluster: str, configurations: Collection[str]
) -> dict[str, tuple[StoredNoise, ...]]:
    """Return by configuration (ids) what its last A/Bs on a cluster measured, the
    newest first.

    HistoryError where the store cannot be read, or holds what no session stored.
    """
    columns = (NOISE.c.configuration, NOISE.c.sigma, NOISE.c.degrees_of_freedom)
    joined = select(*columns).join_from(NOISE, SESSION, SESSION.c.id == NOISE.c.session)
    wanted = joined.where(
        NOISE.c.configuration.in_(configurations), NOISE.c.cluster == cluster
    )
    wanted = wanted.where(is_in_time(place, SESSION))
    by_id: dict[str, list[StoredNoise]] = {}
    with connect(place, writes=False) as connection:
        if has_tables(connection, place.shown) and _has_noises(connection):
            for name, *numbers in connection.execute(
                wanted.order_by(SESSION.c.started.desc())
            ):
                by_id.setdefault(name, []).append(_make_noise(*numbers))
    # A session that goes on behind its end stores its A/B again: noise that is equal to
    # the last digit is of one A/B.
    return {
        name: tuple(dict.fromkeys(noises))[:NEWEST] for name, noises in by_id.items()
    }


def list_noises(place: StoreLocation) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what an export has beside the verdict of an A/B, by session and
    configuration."""
    noises = {}
    with connect(place, writes=False) as connection:
        for row in connection.execute(select(NOISE)) if _has_noises(connection) else ():
            noise = _make_noise(row.sigma, row.degrees_of_freedom)
            numbers = {
                "ab_run_to_run": noise.sigma,
                "ab_degrees_of_freedom": noise.degrees_of_freedom,
            }
            noises[row.session, row.configuration] = {
                "ab_cluster": row.cluster,
                **numbers,
            }
    return noises


def _has_noises(connection: Connection) -> bool:
    return inspect(connection).has_table(NOISE.name)


def _make_noise(sigma: float, degrees_of_freedom: float) -> StoredNoise:
    """Return a noise; ValueError for numbers with which nobody can calculate: a column
    of SQLite holds anything."""
    if not all(
        type(number) is float and math.isfinite(number) and number > 0
        for number in (sigma, degrees_of_freedom)
    ):
        raise ValueError(
            f"the noise of an A/B is {sigma!r} with {degrees_of_freedom!r} degrees of freedom"
        )
    return StoredNoise(sigma, degrees_of_freedom)
