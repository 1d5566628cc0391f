"""`llmbench history export`: write all verdicts as a table, part by part.

One part of the history is in memory at a time.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""The columns of a table in order: names and types of values."""

FORMATS = ("csv", "parquet", "json", "jsonl")
TIMES = ("started", "judged")
WHOLE = ("number", "gpus", "attempts")
"""The integer columns that may have empty cells."""

STEPS = "step_seconds"
KEPT = IDENTIFIERS | {"session", "metrics"}
"""The columns that are not redacted."""

ROW_GROUP = 16_384
"""Rows that are compressed together in a Parquet file."""


def export(store: StoreLocation, arguments: argparse.Namespace) -> Output:
    """Print all verdicts, or write them to a file.

    The file is written completely or not at all. Raises HistoryError.
    """
    from pytest_llmbench.history.batches import list_batches
    from pytest_llmbench.history.store import explain_errors

    output = arguments.output
    kind = arguments.format or _choose_format(output)
    if kind == "parquet":
        _require_parquet(output)
    would_replace_history = (
        output is not None
        and store.file
        and os.path.realpath(output) == os.path.realpath(store.file)
    )
    if would_replace_history:
        raise HistoryError(
            f"-o {output}: this file is the history and would be replaced: give another file name"
        )
    parts = list_batches(store)
    if output is None:
        _print(_format(store, parts, kind))
        return Output("")
    try:
        with (
            pause_garbage_collection(),
            explain_errors(store),
            open_atomically(output, EXPORT, make_folders=False) as file,
        ):
            if kind != "parquet":
                file.writelines(
                    text.encode(errors="backslashreplace")
                    for text in _format(store, parts, kind)
                )
            elif is_stream(output):  # a pipe, which has no position
                content = BytesIO()
                _write_parquet(store, parts, content)
                file.write(content.getvalue())
            else:
                _write_parquet(store, parts, file)
    except OSError as error:
        raise HistoryError(
            f"{output}: cannot be written: {error.strerror or error}"
        ) from None
    verdicts = sum(part.verdicts for part in parts)
    return Output(f"{formatting.count_noun(verdicts, 'verdict')} written to {output}")


def _choose_format(output: Path | None) -> str:
    """Choose the format by the suffix of a file name; csv by default."""
    suffix = output.suffix.removeprefix(".").lower() if output else ""
    return suffix if suffix in FORMATS else "csv"


def _require_parquet(output: Path | None) -> None:
    """Raise HistoryError without pyarrow, or without an output file."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise HistoryError(
            "--format parquet needs pyarrow: pip install 'pytest-llmbench[parquet]'"
        )
    if output is None:
        raise HistoryError(
            "--format parquet cannot be printed: give a file with -o FILE"
        )


def _print(texts: Iterator[str]) -> None:
    """Print texts, which must be redacted already; stop at a closed pipe (`| head`)."""
    import sys

    encoding = sys.stdout.encoding or "utf-8"
    try:
        for text in texts:
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def _read(store: StoreLocation, parts: Sequence[SessionBatch]) -> Iterator[Rows]:
    """Yield the redacted rows of each part.

    Times are ISO texts. Each metric has its own column.
    """
    from pytest_llmbench.history.batches import flatten_metrics
    from pytest_llmbench.history.queries import list_columns, list_everything

    # Only texts may contain secrets.
    not_texts = {name for name, kind in list_columns().items() if kind is not str}
    for part in parts:
        rows = redact_values(list_everything(store, part.sessions), KEPT | not_texts)
        for row in rows:
            for name in TIMES:
                row[name] = row[name].isoformat() if row[name] else None
            row.update(flatten_metrics(row.pop("metrics")))
        yield rows


# --- CSV and JSON ---------------------------------------------------------------------


def _format(
    store: StoreLocation, parts: Sequence[SessionBatch], kind: str
) -> Iterator[str]:
    """Yield the text of a table, part by part, as CSV, JSON or JSON lines."""
    if kind == "csv":
        yield from _format_csv(store, parts)
        return
    if kind == "jsonl":
        prefix, separator, closing, empty = "", "\n", "\n", "\n"
        format_row: Callable[[dict[str, Any]], str] = json.dumps
    else:
        prefix, separator, closing, empty = "[\n ", ",\n ", "\n]\n", "[]\n"
        format_row = _format_indented
    # `prefix` begins the text of a part: later parts continue the list.
    for rows in _read(store, parts):
        yield prefix + separator.join(map(format_row, rows))
        prefix = separator
    yield closing if parts else empty


def _format_indented(row: dict[str, Any]) -> str:
    """Format a row as indented JSON inside a list."""
    return json.dumps(row, indent=1).replace("\n", "\n ")


def _format_csv(store: StoreLocation, parts: Sequence[SessionBatch]) -> Iterator[str]:
    """Yield the rows as CSV text, one part at a time."""
    columns = _find_columns(store, parts)
    buffer = StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(columns)
    for rows in _read(store, parts):
        cells = [_list_cells(rows, name, kind) for name, kind in columns.items()]
        table.writerows(zip(*cells, strict=True))
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    # The header of a table without rows; else empty.
    yield buffer.getvalue()


def _find_columns(store: StoreLocation, parts: Sequence[SessionBatch]) -> Columns:
    """List the columns of the table: verdict columns, then A/B tests and metrics."""
    from pytest_llmbench.history.batches import find_further_columns
    from pytest_llmbench.history.queries import list_columns

    return {**list_columns(), **find_further_columns(store, parts)}


def _list_cells(rows: Rows, name: str, kind: type) -> Iterable[Any]:
    """Return the values of a column.

    Lists and dictionaries are encoded as JSON, except the step times, which stay lists
    with NaN for missing values. `kind` is the type of the values.
    """
    from pytest_llmbench.history.queries import NESTED

    values: list[Any] = [row.get(name) for row in rows]
    if kind is float:
        return [None if value is None else float(value) for value in values]
    if name == STEPS:
        return list(map(_replace_missing, values))
    return map(json.dumps, values) if name in NESTED else values


def _replace_missing(step_times: list[float | None]) -> Sequence[float | None]:
    """Replace None by NaN."""
    if None not in step_times:  # the usual case, without a copy
        return step_times
    return [math.nan if seconds is None else seconds for seconds in step_times]


# --- Parquet --------------------------------------------------------------------------


def _write_parquet(
    store: StoreLocation, parts: Sequence[SessionBatch], file: IO[bytes]
) -> None:
    """Write a Parquet table; all parts use one schema, even if a column is empty."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _find_columns(store, parts)
    schema = _make_schema(columns)
    pending: list[pa.Table] = []
    with pq.ParquetWriter(file, schema) as writer:
        for rows in _read(store, parts):
            arrays = [
                _make_array(_list_cells(rows, name, kind), schema.field(name).type)
                for name, kind in columns.items()
            ]
            pending.append(pa.table(arrays, schema=schema))
            if sum(len(table) for table in pending) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(pending))
                pending = []
        writer.write_table(
            pa.concat_tables(pending) if pending else schema.empty_table()
        )


def _make_array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Make the array of a column; ISO texts become timestamps."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        values = [value and datetime.fromisoformat(value) for value in values]
    return pa.array(values, kind)


def _make_schema(columns: Columns) -> pa.Schema:
    """Build the schema with pandas metadata, so that pandas reads the same types.

    The columns listed in WHOLE are nullable integers, and columns of bytes are lists of
    floats.
    """
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
