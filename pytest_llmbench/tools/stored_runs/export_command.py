"""`llmbench history export`: write all verdicts as a table, part by part.

One part of the history is in memory at a time.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.redaction import Redactor, make_redactor
from pytest_llmbench.core.runtime import discard_output, pause_garbage_collection
from pytest_llmbench.core.userfile import is_stream
from pytest_llmbench.report.document import IDENTIFIERS
from pytest_llmbench.report.output_files import EXPORT, open_atomically
from pytest_llmbench.tools.command_line import Output

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import ArrayLike

    from pytest_llmbench.history.batches import SessionBatch
    from pytest_llmbench.history.store import StoreLocation
    from pytest_llmbench.history.verdict_columns import MetricsByName

Columns = Mapping[str, type]
"""The columns of a table in order: names and types of values."""

FORMATS = ("csv", "parquet", "json", "jsonl")
TIMES = ("started", "judged")
WHOLE = ("number", "gpus", "attempts")
"""The integer columns that may have empty cells."""

STEPS = "step_seconds"
KEPT = IDENTIFIERS | {"session", "metrics"}
"""The columns that are not redacted."""

MAY_BE_QUOTED = ',"\r\n'
"""The characters of cells of a CSV file that the module csv may quote."""

_PLAIN_TEXT = r'"[ !#-\[\]-~]*"'
PLAIN_LIST = compile_on_use(rf"\[(?:{_PLAIN_TEXT}(?:, {_PLAIN_TEXT})*)?\]")
"""Matches lists of ASCII texts without escapes, written as `json.dumps` does."""

SMALLEST_PLAIN, LARGEST_PLAIN = 1e-4, 1e16
"""Numbers in this range are written without an exponent."""

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


class _Part(NamedTuple):
    """The redacted verdicts of one part.

    `columns` are those of `list_columns`; times have no time zone, lists and
    dictionaries are JSON texts, and step times are packed. `noises` and `metrics` have
    one entry for each verdict.
    """

    columns: Mapping[str, Sequence[Any]]
    noises: Sequence[Mapping[str, Any]]
    metrics: Sequence[MetricsByName]


def _read(store: StoreLocation, parts: Sequence[SessionBatch]) -> Iterator[_Part]:
    """Yield the redacted verdicts of each part."""
    from pytest_llmbench.history.paired_noise import list_noises
    from pytest_llmbench.history.queries import NESTED, list_columns
    from pytest_llmbench.history.verdict_columns import read_columns

    redactor = make_redactor()
    kinds = list_columns()
    noises = list_noises(store)
    redacted_noises = {
        key: redactor.redact_values(noise, KEPT) for key, noise in noises.items()
    }
    for part in parts:
        verdicts = read_columns(store, part.sessions, redacted_noises)
        columns: dict[str, Sequence[Any]] = {}
        for name, values in verdicts.columns.items():
            if name in NESTED:
                formatted = _redact_nested(redactor, name, verdicts.nested[name])
                columns[name] = list(map(formatted.__getitem__, values))
            elif name in KEPT or kinds[name] is not str:  # only texts contain secrets
                columns[name] = values
            else:
                columns[name] = redactor.redact_texts(name, values)
        yield _Part(columns, verdicts.noises, verdicts.metrics)


def _redact_nested(
    redactor: Redactor, name: str, values: Mapping[str | None, Any]
) -> dict[str | None, str]:
    """Redact the texts in lists or dictionaries, and format these as JSON."""
    redacted: dict[str | None, str] = {}
    for text, value in values.items():
        shown = value if name in KEPT else redactor.redact_values(value, KEPT)
        if text is not None and shown == value and PLAIN_LIST.fullmatch(text):
            redacted[text] = text
        else:
            redacted[text] = json.dumps(shown)
    return redacted


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
    for part in _read(store, parts):
        yield prefix + separator.join(map(format_row, _list_rows(part)))
        prefix = separator
    yield closing if parts else empty


def _list_rows(part: _Part) -> Iterator[dict[str, Any]]:
    """Yield each verdict as a plain dictionary, with None for missing step times."""
    from pytest_llmbench.history.batches import flatten_metrics
    from pytest_llmbench.history.queries import NESTED, unpack_steps

    parsed = {name: list(map(json.loads, part.columns[name])) for name in NESTED}
    times = {name: _format_times(part.columns[name]) for name in TIMES}
    columns = {**part.columns, **parsed, **times}
    for values, noise, metrics in zip(
        zip(*columns.values(), strict=True), part.noises, part.metrics, strict=True
    ):
        row = dict(zip(columns, values, strict=True))
        row[STEPS] = [
            None if math.isnan(seconds) else seconds
            for seconds in unpack_steps(row[STEPS])
        ]
        yield {**row, **noise, **flatten_metrics(metrics)}


def _format_times(times: Sequence[datetime | None]) -> list[str | None]:
    """Format UTC times without a time zone as ISO texts."""
    texts = {
        time: time.replace(tzinfo=UTC).isoformat()
        for time in set(times)
        if time is not None
    }
    return [None if time is None else texts[time] for time in times]


def _format_indented(row: dict[str, Any]) -> str:
    """Format a row as indented JSON inside a list."""
    return json.dumps(row, indent=1).replace("\n", "\n ")


def _format_csv(store: StoreLocation, parts: Sequence[SessionBatch]) -> Iterator[str]:
    """Yield the rows as CSV text, one part at a time."""
    columns = _find_columns(store, parts)
    yield ",".join(_quote(list(columns))) + "\n"
    for part in _read(store, parts):
        cells = [
            _format_cells(values, kind)
            for values, kind in zip(
                _list_cells(part, columns), columns.values(), strict=True
            )
        ]
        rows = map(",".join, zip(*cells, strict=True))
        yield "\n".join([*rows, ""])


def _format_cells(values: Sequence[Any], kind: type) -> Sequence[str]:
    """Format the cells of a column whose values are of a type, as the module csv does."""
    if kind is bytes:
        texts = _format_steps(values)
        return [f'"{text}"' if "," in text else text for text in texts]
    if kind is float:
        return _format_numbers(values)
    if kind is datetime:
        values = _format_times(values)
    elif kind is not str:
        if None not in values:
            return list(map(str, values))
        return ["" if value is None else str(value) for value in values]
    distinct = set(values)
    texts = [value or "" for value in distinct]
    quoted = _quote(texts)
    if quoted is texts and None not in distinct:
        return values
    cells = dict(zip(distinct, quoted, strict=True))
    return list(map(cells.__getitem__, values))


def _quote(texts: Sequence[str]) -> Sequence[str]:
    """Quote the cells of a column if needed."""
    # The module csv is slow: it compares each character with the end of the line.
    joined = "".join(texts)
    special_characters = [mark for mark in MAY_BE_QUOTED if mark in joined]
    if not special_characters:
        return texts
    special = {
        text for text in texts if any(mark in text for mark in special_characters)
    }
    lines = _Lines()
    csv.writer(lines, lineterminator="\n").writerows([text] for text in special)
    quoted = {
        text: line.removesuffix("\n") for text, line in zip(special, lines, strict=True)
    }
    return [quoted.get(text, text) for text in texts]


class _Lines(list[str]):
    """Collects the rows that a writer of the module csv writes."""

    def write(self, line: str) -> None:
        self.append(line)


def _format_numbers(values: Sequence[float | None]) -> list[str]:
    """Format numbers as `str` does; empty for None."""
    known_values = [value for value in values if value is not None]
    if not known_values or not _are_plain(known_values):
        return ["" if value is None else str(value) for value in values]
    texts = msgspec.json.encode(values).decode().strip("[]").split(",")
    return ["" if text == "null" else text for text in texts]


def _format_steps(packed: Sequence[bytes]) -> list[str]:
    """Format lists of step times as `str` does."""
    from pytest_llmbench.history.verdict_columns import join_steps

    joined_steps = join_steps(packed)
    numbers = joined_steps.tolist()
    ends = accumulate((len(steps) // 8 for steps in packed), initial=0)
    steps = [numbers[begin:end] for begin, end in pairwise(ends)]
    if not steps or not _are_plain(joined_steps):
        return list(map(str, steps))
    # All lists at once: `[[7.3,null],[],[7.4]]`.
    joined = msgspec.json.encode(steps).decode().replace("null", "nan")
    texts = joined.removeprefix("[[").removesuffix("]]").replace(",", ", ")
    return [f"[{text}]" for text in texts.split("], [")]


def _are_plain(numbers: ArrayLike) -> bool:
    """True if msgspec writes these numbers as Python does: without an exponent.

    For example 1e-05 is written in another way. NaN is `null`.
    """
    import numpy as np

    sizes = np.abs(np.asarray(numbers, dtype=float))
    is_usual = (sizes >= SMALLEST_PLAIN) & (sizes < LARGEST_PLAIN)
    return bool((is_usual | (sizes == 0) | np.isnan(sizes)).all())


def _find_columns(store: StoreLocation, parts: Sequence[SessionBatch]) -> Columns:
    """List the columns of the table: verdict columns, then A/B tests and metrics."""
    from pytest_llmbench.history.batches import find_further_columns
    from pytest_llmbench.history.paired_noise import list_noises
    from pytest_llmbench.history.queries import list_columns

    further_columns = find_further_columns(store, parts, list_noises(store))
    return {**list_columns(), **further_columns}


def _list_cells(part: _Part, columns: Columns) -> Iterator[Sequence[Any]]:
    """Yield the values of each of these columns."""
    from pytest_llmbench.history.batches import list_further_columns

    further = list_further_columns(part.noises, part.metrics)
    empty = [None] * len(part.metrics)
    for name, kind in columns.items():
        values = part.columns.get(name, further.get(name, empty))
        if kind is float and int in set(map(type, values)):
            values = [None if value is None else float(value) for value in values]
        yield values


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
    # Numbers rarely repeat: a dictionary of them takes more time and space.
    texts = [name for name, kind in columns.items() if kind is str]
    with pq.ParquetWriter(file, schema, use_dictionary=texts) as writer:
        for part in _read(store, parts):
            arrays = [
                _make_array(values, kind)
                for values, kind in zip(
                    _list_cells(part, columns), schema.types, strict=True
                )
            ]
            pending.append(pa.table(arrays, schema=schema))
            if sum(len(table) for table in pending) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(pending))
                pending = []
        writer.write_table(
            pa.concat_tables(pending) if pending else schema.empty_table()
        )


def _make_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Make the array of a column; packed step times become lists."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return _make_step_array(values)
    return pa.array(values, kind)


def _make_step_array(packed: Sequence[bytes]) -> pa.Array:
    """Make the array of step times, NaN if missing."""
    import numpy as np
    import pyarrow as pa

    from pytest_llmbench.history.verdict_columns import join_steps

    joined = join_steps(packed)
    counts = [len(steps) // 8 for steps in packed]
    ends = np.cumsum([0, *counts], dtype=np.int32)
    # One kind of NaN.
    seconds = np.where(np.isnan(joined), math.nan, joined)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(seconds))


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
