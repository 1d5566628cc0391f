"""`llmbench history export`: every verdict as a row of a table, read and written in
parts."""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO, StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.runtime import discard_output, pause_garbage_collection
from pytest_llmbench.core.userfile import is_stream
from pytest_llmbench.report.document import IDENTIFIERS
from pytest_llmbench.report.output_files import EXPORT, open_atomically
from pytest_llmbench.tools.command_line import Output, redact_values

if TYPE_CHECKING:
    import pyarrow as pa

    from pytest_llmbench.history.batches import SessionBatch
    from pytest_llmbench.history.store import StoreLocation

Rows = list[dict[str, Any]]
Columns = Mapping[str, type]
"""The columns of a table in their order, with the type of what they hold."""

FORMATS = ("csv", "parquet", "json", "jsonl")
TIMES = ("started", "judged")
WHOLE = ("number", "gpus", "attempts")
"""The columns of whole numbers that may be empty."""

STEPS = "step_seconds"
KEPT = IDENTIFIERS | {"session", "metrics"}
"""The columns in which no secret is looked for."""

ROW_GROUP = 16_384
"""So many rows of a Parquet file are compressed together; its end describes each
group."""


def export(place: StoreLocation, arguments: argparse.Namespace) -> Output:
    """Write every verdict to a file, whole or not at all, or print it."""
    from pytest_llmbench.history.batches import list_batches
    from pytest_llmbench.history.store import explain_errors

    output = arguments.output
    kind = arguments.format or _choose_format(output)
    if kind == "parquet":
        _require_parquet(output)
    if (
        output
        and place.file
        and os.path.realpath(output) == os.path.realpath(place.file)
    ):
        raise HistoryError(
            f"-o {output}: found the history itself, which it would replace: give another name"
        )
    parts = list_batches(place)
    if output is None:
        _print(_format(place, parts, kind))
        return Output("")
    try:
        with (
            pause_garbage_collection(),
            explain_errors(place),
            open_atomically(output, EXPORT, make_folders=False) as file,
        ):
            if kind != "parquet":
                file.writelines(
                    text.encode(errors="backslashreplace")
                    for text in _format(place, parts, kind)
                )
            elif is_stream(output):  # a pipe, which has no position
                content = BytesIO()
                _write_parquet(place, parts, content)
                file.write(content.getvalue())
            else:
                _write_parquet(place, parts, file)
    except OSError as error:
        raise HistoryError(
            f"{output}: cannot be written: {error.strerror or error}"
        ) from None
    return Output(
        f"{formatting.count_noun(sum(part.verdicts for part in parts), 'verdict')} written to {output}"
    )


def _choose_format(output: Path | None) -> str:
    """Return the format that the ending of a file's name asks for."""
    ending = output.suffix.removeprefix(".").lower() if output else ""
    return ending if ending in FORMATS else "csv"


def _require_parquet(output: Path | None) -> None:
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise HistoryError(
            "--format parquet needs pyarrow: pip install 'pytest-llmbench[parquet]'"
        )
    if output is None:
        raise HistoryError("--format parquet is no text: give a file with -o FILE")


def _print(texts: Iterator[str]) -> None:
    """Print texts, which hold no secrets, until the reader (`| head`) has gone."""
    import sys

    encoding = sys.stdout.encoding or "utf-8"
    try:
        for text in texts:
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def _read(place: StoreLocation, parts: Sequence[SessionBatch]) -> Iterator[Rows]:
    """Yield the rows of each part, without secrets, with times as ISO texts and a
    column for each metric."""
    from pytest_llmbench.history.batches import flatten_metrics
    from pytest_llmbench.history.queries import list_columns, list_everything

    numbers = {name for name, kind in list_columns().items() if kind is not str}
    for part in parts:
        rows = redact_values(list_everything(place, part.sessions), KEPT | numbers)
        for row in rows:
            row.update(
                {name: row[name].isoformat() if row[name] else None for name in TIMES}
            )
            row.update(flatten_metrics(row.pop("metrics")))
        yield rows


# --- texts ----------------------------------------------------------------------------


def _format(
    place: StoreLocation, parts: Sequence[SessionBatch], kind: str
) -> Iterator[str]:
    """Yield the text of a table in parts."""
    if kind == "csv":
        yield from _format_csv(place, parts)
        return
    opening, separator, closing = (
        ("", "\n", "\n") if kind == "jsonl" else ("[\n ", ",\n ", "\n]\n")
    )
    before = opening
    for rows in _read(place, parts):
        texts = [
            json.dumps(row) if kind == "jsonl" else json.dumps(row, indent=1)
            for row in rows
        ]
        lines = (
            separator.join(texts)
            if kind == "jsonl"
            else separator.join(_indent(text) for text in texts)
        )
        yield f"{before}{lines}"
        before = separator
    yield closing if parts else ("\n" if kind == "jsonl" else "[]\n")


def _indent(text: str) -> str:
    return text.replace("\n", "\n ")


def _format_csv(place: StoreLocation, parts: Sequence[SessionBatch]) -> Iterator[str]:
    columns = _find_columns(place, parts)
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    for rows in _read(place, parts):
        table.writerows(
            zip(
                *(_list_cells(rows, name, kind) for name, kind in columns.items()),
                strict=True,
            )
        )
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _find_columns(place: StoreLocation, parts: Sequence[SessionBatch]) -> Columns:
    """Return the columns of the table: those of each verdict, then A/Bs and metrics as
    they come."""
    from pytest_llmbench.history.batches import find_further_columns
    from pytest_llmbench.history.queries import list_columns

    return {**list_columns(), **find_further_columns(place, parts)}


def _list_cells(rows: Rows, name: str, kind: type) -> Iterable[Any]:
    """Return the values of a column; what is a list or dictionary as JSON, but for the
    steps."""
    from pytest_llmbench.history.queries import NESTED

    values: list[Any] = [row.get(name) for row in rows]
    if kind is float:
        return [None if value is None else float(value) for value in values]
    if name == STEPS:
        return [
            [math.nan if value is None else value for value in steps]
            if None in steps
            else steps
            for steps in values
        ]
    return map(json.dumps, values) if name in NESTED else values


# --- Parquet --------------------------------------------------------------------------


def _write_parquet(
    place: StoreLocation, parts: Sequence[SessionBatch], file: IO[bytes]
) -> None:
    """Write a table; each part has the types of all of it, also where a column has no
    value in it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _find_columns(place, parts)
    schema = _make_schema(columns)
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(file, schema) as writer:
        for rows in _read(place, parts):
            arrays = [
                _make_array(_list_cells(rows, name, kind), schema.field(name).type)
                for name, kind in columns.items()
            ]
            waiting.append(pa.table(arrays, schema=schema))
            if sum(len(table) for table in waiting) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        writer.write_table(
            pa.concat_tables(waiting) if waiting else schema.empty_table()
        )


def _make_array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        values = [value and datetime.fromisoformat(value) for value in values]
    return pa.array(values, kind)


def _make_schema(columns: Columns) -> pa.Schema:
    """Return the types of all columns, as pandas reads them again: whole numbers may be
    empty."""
    import pandas as pd
    import pyarrow as pa

    samples = {
        str: "",
        int: 1,
        float: 1.0,
        bool: True,
        bytes: [1.0],
        datetime: datetime(2025, 11, 1, tzinfo=UTC),
    }
    sample = pd.DataFrame({name: [samples[kind]] for name, kind in columns.items()})
    times = dict.fromkeys(TIMES, "datetime64[us, UTC]")
    frame = sample.astype({**times, **dict.fromkeys(WHOLE, "Int64")})
    return pa.Schema.from_pandas(frame, preserve_index=False)
