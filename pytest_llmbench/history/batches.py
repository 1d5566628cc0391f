"""Divide a history into batches of a few thousand verdicts.

The memory of an export is then bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import func, select

from pytest_llmbench.history.paired_noise import list_noises
from pytest_llmbench.history.queries import Row, fetch_rows, parse_metrics
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.history.tables import SESSION, VERDICT, list_order

VERDICTS = 2_000
"""Number of verdicts that are read at once. A session is not divided."""

LARGEST = 2**63
"""Limit of 64-bit integers."""


class SessionBatch(NamedTuple):
    """Ids of sessions that are read at once, and their number of verdicts."""

    sessions: tuple[str, ...]
    verdicts: int


def list_batches(location: StoreLocation) -> list[SessionBatch]:
    """Return all sessions with verdicts in batches, oldest first.

    Sessions that began at the same time are in one batch.
    """
    columns = (
        SESSION.c.id,
        SESSION.c.started,
        func.count(VERDICT.c.id).label("verdicts"),
    )
    joined = select(*columns).join_from(
        SESSION, VERDICT, SESSION.c.id == VERDICT.c.session
    )
    order = list_order(location)[:-1]  # without the verdict
    sessions = fetch_rows(
        location,
        joined.group_by(SESSION.c.id, SESSION.c.started).order_by(*order),
        dict,
    )
    batches: list[SessionBatch] = []
    for _, rows in groupby(sessions, key=itemgetter("started")):
        names, counts = zip(
            *((row["id"], row["verdicts"]) for row in rows), strict=True
        )
        if not batches or batches[-1].verdicts >= VERDICTS:
            batches.append(SessionBatch((), 0))
        batches[-1] = SessionBatch(
            (*batches[-1].sessions, *names), batches[-1].verdicts + sum(counts)
        )
    return batches


def find_further_columns(
    location: StoreLocation, batches: Sequence[SessionBatch]
) -> dict[str, type]:
    """Return the additional columns (metrics and A/Bs) with their types, in verdict
    order.

    A metric is an integer if each verdict has it and all values are integers. Raises
    HistoryError for a value that is not a number.
    """
    noises = list_noises(location)
    columns = (VERDICT.c.session, VERDICT.c.configuration, VERDICT.c.metrics)
    query = (
        select(*columns)
        .join_from(VERDICT, SESSION, SESSION.c.id == VERDICT.c.session)
        .order_by(*list_order(location))
    )
    types: dict[str, type] = {}
    counts: Counter[str] = Counter()
    verdicts = sum(batch.verdicts for batch in batches)
    for batch in batches:
        for row in fetch_rows(
            location, query.where(VERDICT.c.session.in_(batch.sessions)), _parse_metrics
        ):
            noise = noises.get((row["session"], row["configuration"]), {})
            values = {**noise, **flatten_metrics(row["metrics"])}
            types.update(
                {
                    name: _find_type(value)
                    for name, value in values.items()
                    if types.get(name) in (None, int)
                }
            )
            counts.update(values.keys())
    for name, kind in types.items():
        if kind is not str and not (kind is int and counts[name] == verdicts):
            types[name] = float
    return types


def _find_type(value: object) -> type:
    """Return the type of a value; float for integers beyond 64 bits."""
    return (
        float
        if isinstance(value, int) and not -LARGEST <= value < LARGEST
        else type(value)
    )


def _parse_metrics(row: Row) -> Row:
    return {**row, "metrics": parse_metrics(row["metrics"])}


def flatten_metrics(metrics: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return a column for each metric's value and one for its standard deviation."""
    values = {f"metric_{name}": value for name, (value, _) in metrics.items()}
    return {
        **values,
        **{
            f"metric_{name}_sd": sd
            for name, (_, sd) in metrics.items()
            if sd is not None
        },
    }
