"""Divide a history into parts of some thousand verdicts, so that memory does not grow
with the store."""

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
"""So many verdicts are read at once, or those of one session."""

LARGEST = 2**63
"""Whole numbers of 64 bits are smaller."""


class Part(NamedTuple):
    """Sessions (their ids) that are read at once, and the number of their verdicts."""

    sessions: tuple[str, ...]
    verdicts: int


def list_parts(place: StoreLocation) -> list[Part]:
    """Return all sessions with verdicts in parts, oldest first; sessions that began
    together are in one."""
    columns = (
        SESSION.c.id,
        SESSION.c.started,
        func.count(VERDICT.c.id).label("verdicts"),
    )
    joined = select(*columns).join_from(
        SESSION, VERDICT, SESSION.c.id == VERDICT.c.session
    )
    order = list_order(place)[:-1]  # without the verdict
    sessions = fetch_rows(
        place, joined.group_by(SESSION.c.id, SESSION.c.started).order_by(*order), dict
    )
    parts: list[Part] = []
    for _, rows in groupby(sessions, key=itemgetter("started")):
        names, counts = zip(
            *((row["id"], row["verdicts"]) for row in rows), strict=True
        )
        if not parts or parts[-1].verdicts >= VERDICTS:
            parts.append(Part((), 0))
        parts[-1] = Part(
            (*parts[-1].sessions, *names), parts[-1].verdicts + sum(counts)
        )
    return parts


def find_further_columns(
    place: StoreLocation, parts: Sequence[Part]
) -> dict[str, type]:
    """Return the columns that not every verdict has, metrics and A/Bs, with their
    types, in the order of the verdicts.

    A metric is of whole numbers if each verdict has it and all values are whole.
    HistoryError for what is no number.
    """
    noises = list_noises(place)
    columns = (VERDICT.c.session, VERDICT.c.configuration, VERDICT.c.metrics)
    query = (
        select(*columns)
        .join_from(VERDICT, SESSION, SESSION.c.id == VERDICT.c.session)
        .order_by(*list_order(place))
    )
    found: dict[str, type] = {}
    counts: Counter[str] = Counter()
    verdicts = sum(part.verdicts for part in parts)
    for part in parts:
        for row in fetch_rows(
            place, query.where(VERDICT.c.session.in_(part.sessions)), _parse_metrics
        ):
            noise = noises.get((row["session"], row["configuration"]), {})
            values = {**noise, **flatten_metrics(row["metrics"])}
            found.update(
                {
                    name: _find_type(value)
                    for name, value in values.items()
                    if found.get(name) in (None, int)
                }
            )
            counts.update(values.keys())
    for name, kind in found.items():
        if kind is not str and not (kind is int and counts[name] == verdicts):
            found[name] = float
    return found


def _find_type(value: object) -> type:
    """Return the type of a value; a whole number beyond 64 bits is a float."""
    return (
        float
        if isinstance(value, int) and not -LARGEST <= value < LARGEST
        else type(value)
    )


def _parse_metrics(row: Row) -> Row:
    return {**row, "metrics": parse_metrics(row["metrics"])}


def flatten_metrics(metrics: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return a column for the value of each metric, and one for each standard
    deviation."""
    values = {f"metric_{name}": value for name, (value, _) in metrics.items()}
    return {
        **values,
        **{
            f"metric_{name}_sd": sd
            for name, (_, sd) in metrics.items()
            if sd is not None
        },
    }
