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
    """Divide all sessions with verdicts into batches that are read at once.

    Oldest first. A batch is complete when it contains at least VERDICTS verdicts.
    Sessions that began at the same time are in the same batch.
    """
    columns = (
        SESSION.c.id,
        SESSION.c.started,
        func.count(VERDICT.c.id).label("verdicts"),
    )
    joined = select(*columns).join_from(
        SESSION, VERDICT, SESSION.c.id == VERDICT.c.session
    )
    *session_order, _verdict = list_order(location)
    query = joined.group_by(SESSION.c.id, SESSION.c.started).order_by(*session_order)
    sessions = fetch_rows(location, query, dict)
    batches: list[SessionBatch] = []
    for _, simultaneous in groupby(sessions, key=itemgetter("started")):
        if not batches or batches[-1].verdicts >= VERDICTS:
            batches.append(SessionBatch((), 0))
        names, verdicts = batches[-1]
        for session in simultaneous:
            names = (*names, session["id"])
            verdicts += session["verdicts"]
        batches[-1] = SessionBatch(names, verdicts)
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
    for batch in batches:
        batch_query = query.where(VERDICT.c.session.in_(batch.sessions))
        for row in fetch_rows(location, batch_query, _parse_metrics):
            noise = noises.get((row["session"], row["configuration"]), {})
            values = {**noise, **flatten_metrics(row["metrics"])}
            for name, value in values.items():
                # The first value that is not an integer determines the type.
                if types.get(name) in (None, int):
                    types[name] = _find_type(value)
            counts.update(values.keys())
    verdict_count = sum(batch.verdicts for batch in batches)
    for name, kind in types.items():
        is_complete = counts[name] == verdict_count
        if kind is not str and not (kind is int and is_complete):
            types[name] = float
    return types


def _find_type(value: object) -> type:
    """Return the type of a value; float for integers beyond 64 bits."""
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        return float
    return type(value)


def _parse_metrics(row: Row) -> Row:
    """Return a row with its metrics parsed."""
    return {**row, "metrics": parse_metrics(row["metrics"])}


def flatten_metrics(metrics: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return a column for each metric's value and one for its standard deviation."""
    values = {f"metric_{name}": value for name, (value, _) in metrics.items()}
    deviations = {
        f"metric_{name}_sd": deviation
        for name, (_, deviation) in metrics.items()
        if deviation is not None
    }
    return {**values, **deviations}
