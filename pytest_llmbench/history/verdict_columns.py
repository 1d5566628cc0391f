"""Read verdicts by columns, for `llmbench history export` and `llmbench site`.

The values are those of `list_everything`, whose rows take four times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from msgspec.json import Decoder
from sqlalchemy import Select

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history.paired_noise import Noises
from pytest_llmbench.history.queries import (
    NESTED,
    TEXT_LISTS,
    list_everything,
    parse_environment,
    parse_list,
    parse_metrics,
    require_time_if_counted,
    select_everything,
)
from pytest_llmbench.history.store import UNEXPECTED, StoreLocation, connect
from pytest_llmbench.history.tables import VERDICT, has_tables

Columns = dict[str, Sequence[Any]]

Number = int | float | None

MetricsByName = Mapping[str, Sequence[Any]]
"""Value and standard deviation of each metric."""


class VerdictColumns(NamedTuple):
    """Verdicts with their runs and sessions, oldest first.

    `columns` are those of `list_columns`. Times have no time zone, lists and
    dictionaries are JSON texts, and step times are packed. `nested` has the values of
    these JSON texts, by column. `noises` and `metrics` have one entry for each verdict.
    """

    columns: Columns
    nested: Mapping[str, Mapping[str | None, Any]]
    noises: Sequence[Mapping[str, Any]]
    metrics: Sequence[MetricsByName]


def read_columns(
    location: StoreLocation, sessions: Collection[str], noises: Noises
) -> VerdictColumns:
    """Read all verdicts of these sessions by columns.

    `noises` are those of `list_noises`. Raises HistoryError for an invalid value.
    """
    query = select_everything(location).where(VERDICT.c.session.in_(sessions))
    try:
        columns = fetch_columns(location, query)
        for counts, seconds in zip(
            columns["counts"], columns["run_seconds"], strict=True
        ):
            require_time_if_counted(counts, seconds)
        nested = {name: _parse_nested(name, columns[name]) for name in NESTED}
        _check_steps(columns["step_seconds"])
        metrics = decode_metrics(columns.pop("metrics"))
    except (HistoryError, *UNEXPECTED):
        # Reading by rows finds the first invalid row, and its session.
        list_everything(location, sessions)
        raise
    keys = zip(columns["session"], columns["configuration"], strict=True)
    noises_by_verdict = [noises.get(key, {}) for key in keys]
    return VerdictColumns(columns, nested, noises_by_verdict, metrics)


def fetch_columns(location: StoreLocation, query: Select[Any]) -> Columns:
    """Return the columns of a query on a store that has tables.

    Raises TypeError for a value of another type than its column's, or not finite.
    """
    with connect(location, writes=False) as connection:
        rows = connection.execute(query).all()
    return _make_columns(query, rows)


def iterate_columns(
    location: StoreLocation, query: Select[Any], size: int
) -> Generator[Columns]:
    """Yield the columns of a query for up to `size` rows at a time.

    Yields nothing for a store without tables. Raises HistoryError for a value of
    another type than its column's, or not finite.
    """
    with connect(location, writes=False) as connection:
        if has_tables(connection, location.shown):
            connection.execution_options(yield_per=size)
            with connection.execute(query) as result:
                for rows in result.partitions():
                    yield _make_columns(query, rows)


def _make_columns(query: Select[Any], rows: Sequence[Sequence[Any]]) -> Columns:
    """Return the checked columns of rows."""
    selected = query.selected_columns
    cells = list(chain.from_iterable(rows))  # faster than `zip(*rows)`
    columns: Columns = {}
    for position, column in enumerate(selected):
        values = cells[position :: len(selected)]
        _check_types(column.name, column.type.python_type, values)
        columns[column.name] = values
    return columns


def _check_types(name: str, kind: type[Any], cells: Sequence[Any]) -> None:
    """Raise TypeError for a value of another type than `kind`, or not finite."""
    found_kinds = set(map(type, cells)) - {type(None)}
    if not all(issubclass(found, kind) for found in found_kinds):
        raise TypeError(f"{name} contains {found_kinds}")
    if kind is float:
        numbers = [number for number in cells if number is not None]
        if not all(map(math.isfinite, numbers)):
            raise TypeError(f"{name} is not finite")


def _parse_nested(name: str, texts: Sequence[str | None]) -> dict[str | None, Any]:
    """Return the list or dictionary in each text; None for None.

    Raises TypeError or ValueError if a text is not JSON of the column's type.
    """
    values: dict[str | None, Any] = {None: None}
    for text in set(texts):
        if text is not None:
            values[text] = _parse_one(name, text)
    return values


_decode_texts = Decoder(list[str]).decode


def _parse_one(name: str, text: str) -> Any:
    """Parse a list or dictionary; lists of texts with msgspec, unless it refuses them."""
    if name == "environment":
        return parse_environment(text)
    if name in TEXT_LISTS:
        try:
            return _decode_texts(text)
        except ValueError:
            pass
    return parse_list(name, text)


# --- step times -----------------------------------------------------------------------


def _check_steps(packed: Sequence[bytes]) -> None:
    """Raise ValueError for a truncated or infinite step time."""
    if any(len(steps) % 8 for steps in packed):
        raise ValueError("a step time is truncated")
    if np.isinf(join_steps(packed)).any():
        raise ValueError("a step time is not finite")


def join_steps(packed: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the step times of all verdicts in one array, NaN if missing."""
    return np.frombuffer(b"".join(packed), "<f8")


# --- metrics --------------------------------------------------------------------------

_decode: Callable[[str], MetricsByName]
_decode = Decoder(dict[str, tuple[Number, Number]]).decode


def decode_metrics(texts: Iterable[str]) -> list[MetricsByName]:
    """Parse the metrics of each verdict, like `parse_metrics`.

    Raises TypeError or ValueError for other values.
    """
    return list(map(_decode_one, texts))


def _decode_one(text: str) -> MetricsByName:
    """Parse metrics with msgspec, or with `parse_metrics` if msgspec refuses them."""
    try:
        return _decode(text)
    except ValueError:
        return parse_metrics(text)
