"""Read machine-written tables: CSV, TSV, and records in YAML or JSON."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.userfile import read_text
from pytest_llmbench.core.yamlfile import read_root
from pytest_llmbench.tools.import_tables.mappings import DocumentMapping
from pytest_llmbench.tools.import_tables.markdown_tables import (
    DocumentTable,
    DocumentTables,
    TableRow,
    make_row,
)

LARGEST_BYTES = 16 << 20

NO_VALUE = "-"
"""The text for an empty cell.

Programs do not omit cells, so an empty cell does not mean that the row is shifted.
"""

Scalars = dict[str, str]
"""The scalars of a record by dotted key."""


def _read_separated(
    path: Path, mapping: DocumentMapping, delimiter: str
) -> DocumentTables:
    """Read the table of a file with separated values. The first row is the header."""
    text = read_text(path, "table", LARGEST_BYTES, BaselineError)
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[TableRow] = []
    line = 1
    try:
        for cells in reader:
            if cells:  # not an empty line
                texts = tuple(" ".join(cell.split()) or NO_VALUE for cell in cells)
                rows.append(make_row(mapping, line, texts))
            # A quoted cell may span lines, so the next row begins after the last line read.
            line = reader.line_num + 1
    except csv.Error as error:
        raise BaselineError(
            f"{path}:{reader.line_num}: {error}, expected CSV"
        ) from error
    if not rows:
        return DocumentTables(())
    header, *value_rows = rows
    return DocumentTables((DocumentTable(("",), header, tuple(value_rows)),))


def read_csv(path: Path, mapping: DocumentMapping) -> DocumentTables:
    """Read the table of a CSV file. Raises BaselineError with the line."""
    return _read_separated(path, mapping, ",")


def read_tsv(path: Path, mapping: DocumentMapping) -> DocumentTables:
    """Read the table of a TSV file. Raises BaselineError with the line."""
    return _read_separated(path, mapping, "\t")


def read_records(path: Path, mapping: DocumentMapping) -> DocumentTables:
    """Read a table from each record of a YAML or JSON file.

    A record is a mapping with scalars. The keys of outer mappings become its headings.
    Records in a list inside a record inherit its scalars. Raises BaselineError with the
    line.
    """
    node: Any = read_root(path, what="table", raises=BaselineError)
    # Descend to the records: `results.runs` is the key `runs` inside `results`.
    for key in filter(None, mapping.records.split(".")):
        values_by_key: dict[str, Any] = {}
        if getattr(node, "id", "") == "mapping":
            values_by_key = {name.value: value for name, value in node.value}
        if key not in values_by_key:
            raise BaselineError(
                f"{path}: found no {mapping.records!r}, which the mapping file names as the path of the records"
            )
        node = values_by_key[key]
    tables = _find_records(mapping, node, headings=(), outer_scalars={})
    return DocumentTables(tuple(tables))


def _find_records(
    mapping: DocumentMapping,
    node: Any,
    headings: tuple[str, ...],
    outer_scalars: Scalars,
) -> Iterator[DocumentTable]:
    """Yield a table for each record in a YAML node.

    `headings` are the keys of the outer mappings, and `outer_scalars` the scalars of the
    outer records. A record that contains lists of records is not a table itself.
    """
    kind = getattr(node, "id", "")
    if kind == "sequence":
        for item in node.value:
            yield from _find_records(mapping, item, headings, outer_scalars)
        return
    if kind != "mapping":
        return
    has_scalars = any(_is_plain(value) for _, value in node.value)
    if not has_scalars:  # only keys of records, such as `70b: {...}`
        for name, value in node.value:
            yield from _find_records(
                mapping, value, (*headings, name.value), outer_scalars
            )
        return
    scalars = outer_scalars | dict(_list_scalars(node, ""))
    nested_tables: list[DocumentTable] = []
    for name, records in _list_record_lists(node, ""):
        nested_tables += _find_records(mapping, records, (*headings, name), scalars)
    if nested_tables:
        yield from nested_tables
        return
    # A table with one row: the keys are its header.
    line = node.start_mark.line + 1
    header = make_row(mapping, line, scalars)
    row = make_row(mapping, line, scalars.values())
    yield DocumentTable(headings or ("",), header, (row,))


def _is_plain(node: Any) -> bool:
    """True for a scalar, and for a list without mappings."""
    return node.id == "scalar" or (
        node.id == "sequence" and all(map(_is_plain, node.value))
    )


def _list_scalars(node: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of the scalars of a record and of its nested mappings."""
    for name, value in node.value:
        if value.id == "mapping":
            yield from _list_scalars(value, f"{prefix}{name.value}.")
        elif _is_plain(value):
            yield f"{prefix}{name.value}", _read_plain(value)


def _read_plain(node: Any) -> str:
    """Return the text of a scalar or a list of scalars; NO_VALUE if it is empty."""
    if node.id == "sequence":
        return ", ".join(map(_read_plain, node.value)) or NO_VALUE
    if node.tag.endswith(":null"):
        return NO_VALUE
    return " ".join(node.value.split()) or NO_VALUE


def _list_record_lists(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, node) of the lists of records inside a record."""
    for name, value in node.value:
        if value.id == "mapping":
            yield from _list_record_lists(value, f"{prefix}{name.value}.")
        elif not _is_plain(value):
            yield f"{prefix}{name.value}", value


READERS: dict[str, Callable[[Path, DocumentMapping], DocumentTables]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".json": read_records,
    ".yaml": read_records,
    ".yml": read_records,
}
"""The reader for each file suffix."""
