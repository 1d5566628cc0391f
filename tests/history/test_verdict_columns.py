"""Reading verdicts by columns, compared with reading them by rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from math import isnan
from typing import Any

import pytest
from support.remembered import START, document, outcome

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import batches, queries
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation, connect
from pytest_llmbench.history.verdict_columns import (
    VerdictColumns,
    decode_metrics,
    read_columns,
)

COLUMNS = (
    "llmb_verdict.metrics",
    "llmb_verdict.step_seconds",
    "llmb_verdict.run_seconds",
    "llmb_verdict.mean_of",
    "llmb_verdict.log_sha256",
    "llmb_verdict.text",
    "llmb_verdict.first_step",
    "llmb_run.started",
    "llmb_run.environment",
    "llmb_run.jobs",
    "llmb_run.nodes",
    "llmb_run.attempts",
    "llmb_session.options",
    "llmb_session.started",
)
VALUES = (
    *("NULL", "''", "x'ff00'", "char(1)", "9e999", "-1", "0", "7.5"),
    *("'word'", "'{'", "'[]'", "'{}'", "'[1]'", "'[null]'", "'[NaN]'", "'null'"),
    *("'{\"mfu\": [1, 2]}'", "'{\"a\": null}'", "x'000000000000f87f'"),
    *("x'000000000000f07f'", "'2025-13-99'", "'2025-01-02 03:04:05.000006'"),
)
METRICS = (
    *("{}", '{"a": [1, null]}', '{"a": [1, 2], "a": [3, 4]}', '{"a": [-0, -0.0]}'),
    *('{"a": [1e-400, 5e-324]}', '{"a": [9007199254740993, 1e15]}'),
    f'{{"a": [{"9" * 400}, 1]}}',
    '{"\\ud800": [1, 2.50]}',
    ' {"a" : [ 1 ,\n2 ]} ',
    *('{"a": [true, 1]}', '{"a": "12"}', '{"a": [1]}', '{"a": [NaN, 1]}', "[]"),
    *('{"a": [1e999, 1]}', '{"a": [01, 1]}', "", "null", '{"a\tb": [1, 1]}'),
)


def list_rows(verdicts: VerdictColumns) -> list[dict[str, Any]]:
    """Build the rows of `list_everything` from columns."""
    rows = []
    values = zip(*verdicts.columns.values(), strict=True)
    for cells, metrics in zip(values, verdicts.metrics, strict=True):
        row = dict(zip(verdicts.columns, cells, strict=True))
        for name in queries.NESTED:
            row[name] = json.loads(row[name] or "null")
        for name in ("started", "judged"):
            row[name] = row[name] and row[name].replace(tzinfo=UTC)
        steps = queries.unpack_steps(row["step_seconds"])
        row["step_seconds"] = [None if isnan(value) else value for value in steps]
        row["metrics"] = make_lists(metrics)
        rows.append(dict(sorted(row.items())))
    return rows


def make_lists(metrics: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: list(pair) for name, pair in metrics.items()}


def read(location: StoreLocation) -> tuple[str, list[dict[str, Any]]]:
    """Return the error, or the rows that are read by columns."""
    try:
        sessions = batches.list_batches(location)[0].sessions
        return "", list_rows(read_columns(location, sessions, {}))
    except HistoryError as error:
        return str(error), []


def read_rows(location: StoreLocation) -> tuple[str, list[dict[str, Any]]]:
    """Return the error, or the rows that are read by rows."""
    try:
        batches.list_batches(location)
        rows = queries.list_everything(location)
        return "", [dict(sorted(row.items())) for row in rows]
    except HistoryError as error:
        return str(error), []


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_equal_rows_for_any_value(location: StoreLocation, column: str) -> None:
    missing_step = {**outcome(7.4, 1), "window_seconds": [7.4, None, 7.5]}
    write(location, document(missing_step, began=START))
    assert read(location) == read_rows(location)
    table, name = column.split(".")
    if location.file is None:
        return
    for value in VALUES:
        with connect(location, writes=True) as connection:
            connection.exec_driver_sql(f"UPDATE OR IGNORE {table} SET {name} = {value}")  # noqa: S608
        assert repr(read(location)) == repr(read_rows(location)), value


@pytest.mark.parametrize("text", METRICS)
def test_decoded_metrics_equal_parsed_metrics(text: str) -> None:
    def decode(text: str) -> dict[str, list[Any]]:
        (metrics,) = decode_metrics([text])
        return make_lists(metrics)

    outcomes = []
    for parse in (decode, queries.parse_metrics):
        try:
            outcomes.append(repr(parse(text)))
        except (ValueError, TypeError, AttributeError) as error:
            outcomes.append(repr(error))
    decoded, parsed = outcomes
    assert decoded == parsed
