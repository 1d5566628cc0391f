"""Divide a history into batches of a few thousand verdicts.

The memory of an export is then bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import func, select

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history.paired_noise import NOISE_TYPES, Noises
from pytest_llmbench.history.queries import Row, fetch_rows, parse_metrics
from pytest_llmbench.history.store import UNEXPECTED, StoreLocation
from pytest_llmbench.history.tables import SESSION, VERDICT, list_order
from pytest_llmbench.history.verdict_columns import (
    MetricsByName,
    decode_metrics,
    fetch_columns,
)

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
    location: StoreLocation, batches: Sequence[SessionBatch], noises: Noises
) -> dict[str, type]:
    """Return the additional columns (metrics and A/Bs) with their types, in verdict
    order.

    A metric is an integer if each verdict has it and all values are integers. `noises`
    are those of `list_noises`. Raises HistoryError for a value that is not a number.
    """
    types: dict[str, type] = {}
    whole: Collection[str] | None = None  # columns with an integer in every verdict
    for batch in batches:
        columns = _read_further_columns(location, batch, noises)
        for name in columns:
            types.setdefault(name, NOISE_TYPES.get(name, float))
        candidates = columns if whole is None else whole
        whole = {name for name in candidates if _has_integers(columns.get(name, ()))}
    return {**types, **dict.fromkeys(whole or (), int)}


def _has_integers(values: Sequence[Any]) -> bool:
    """True if a column has an integer of at most 64 bits in each verdict."""
    if set(map(type, values)) != {int}:
        return False
    return all(-LARGEST <= value < LARGEST for value in values)


def _read_further_columns(
    location: StoreLocation, batch: SessionBatch, noises: Noises
) -> dict[str, Sequence[Any]]:
    """Read the columns of metrics and A/Bs. Raises HistoryError."""
    columns = (VERDICT.c.session, VERDICT.c.configuration, VERDICT.c.metrics)
    query = (
        select(*columns)
        .join_from(VERDICT, SESSION, SESSION.c.id == VERDICT.c.session)
        .where(VERDICT.c.session.in_(batch.sessions))
        .order_by(*list_order(location))
    )
    try:
        sessions, configurations, texts = fetch_columns(location, query).values()
        metrics = decode_metrics(texts)
    except (HistoryError, *UNEXPECTED):
        # Reading by rows finds the first invalid row, and its session.
        fetch_rows(location, query, _parse_metrics)
        raise
    keys = zip(sessions, configurations, strict=True)
    return list_further_columns([noises.get(key, {}) for key in keys], metrics)


def _parse_metrics(row: Row) -> Row:
    """Return a row with its metrics parsed."""
    return {**row, "metrics": parse_metrics(row["metrics"])}


_ABSENT = (None, None)


def list_further_columns(
    noises: Sequence[Mapping[str, Any]], metrics: Sequence[MetricsByName]
) -> dict[str, Sequence[Any]]:
    """Return the columns of A/Bs and metrics, with None for missing cells.

    `noises` and `metrics` have one entry for each verdict. The order of the columns is
    that in the rows of the verdicts: A/Bs, metrics, standard deviations (see
    `flatten_metrics`); a column begins with the first verdict that has it.
    """
    columns: dict[str, Sequence[Any]] = {}
    firsts = set()  # indexes of the verdicts with which a column begins
    for name in dict.fromkeys(chain.from_iterable(noises)):
        columns[name] = [noise.get(name) for noise in noises]
        firsts.add(next(i for i, noise in enumerate(noises) if name in noise))
    all_deviations = {}
    for name in dict.fromkeys(chain.from_iterable(metrics)):
        pairs = [values.get(name, _ABSENT) for values in metrics]
        columns[f"metric_{name}"] = [value for value, _ in pairs]
        all_deviations[f"metric_{name}_sd"] = [deviation for _, deviation in pairs]
        firsts.add(next(i for i, pair in enumerate(pairs) if pair is not _ABSENT))
    for title, deviations in all_deviations.items():
        known = (i for i, deviation in enumerate(deviations) if deviation is not None)
        first = next(known, None)
        if first is not None:
            columns[title] = _cover(deviations, columns.get(title))
            firsts.add(first)
    rows = [{**noises[i], **flatten_metrics(metrics[i])} for i in sorted(firsts)]
    return {name: columns[name] for name in dict.fromkeys(chain.from_iterable(rows))}


def _cover(deviations: Sequence[Any], values: Sequence[Any] | None) -> Sequence[Any]:
    """Replace values of a metric that is named like the deviations of another one."""
    if values is None:
        return deviations
    pairs = zip(deviations, values, strict=True)
    return [value if deviation is None else deviation for deviation, value in pairs]


def flatten_metrics(metrics: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return a column for each metric's value and one for its standard deviation."""
    values = {f"metric_{name}": value for name, (value, _) in metrics.items()}
    deviations = {
        f"metric_{name}_sd": deviation
        for name, (_, deviation) in metrics.items()
        if deviation is not None
    }
    return {**values, **deviations}
