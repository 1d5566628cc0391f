"""Read values from the text around tables: peak FLOPS, model sizes, timed window."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from msgspec import Struct

from pytest_llmbench.core import formatting
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.tools.import_tables.labels import UnreadCell, read_caption
from pytest_llmbench.tools.import_tables.mappings import DocumentMapping
from pytest_llmbench.tools.import_tables.markdown_tables import DocumentTable

# `TFLOPS` or `PFLOP/s`
_UNIT = compile_on_use(r"\b([TP])FLOP", re.IGNORECASE)
_DIALECTS = {
    name: compile_on_use(dialect.documented)
    for name, dialect in DIALECTS.items()
    if dialect.documented
}


class ProseValue(NamedTuple):
    """A value with its source: a line of the document, or a mapping file."""

    value: str
    line: int
    file: str = ""

    @property
    def source(self) -> str:
        """The source for comments and messages: `line 12`, or a file name."""
        return self.file or f"line {self.line}"


class ProseKey(NamedTuple):
    """The meaning of a value."""

    kind: str
    """`peak`, `model` or `about` (the measurement)."""

    owner: str
    """GPU type of a `peak`, size of a `model` ("" if unknown), "" for `about`."""

    name: str
    """Precision of a `peak`, dimension or sum of a `model`, file key of `about`."""


ProseValues = Mapping[str, ProseValue]
"""The values of one `kind` and `owner`, by name."""


class Prose(Struct, frozen=True):
    """The values that a document states in its text."""

    values: Mapping[ProseKey, ProseValue]
    unread: Sequence[UnreadCell] = ()
    """The values that contradict each other."""

    def select(self, kind: str, owner: str = "") -> ProseValues:
        """Select the values of a kind and owner (see ProseKey), by name."""
        return {
            key.name: value
            for key, value in self.values.items()
            if (key.kind, key.owner) == (kind, owner)
        }


def read_prose(
    mapping: DocumentMapping,
    lines: Sequence[str],
    peak_tables: Iterable[DocumentTable] = (),
) -> Prose:
    """Read the values of a document's text and of its tables of peak FLOPS.

    If the text states several values of a key, all of them are unread. The values of the
    mapping's section `document` override the text.
    """
    values_of: dict[ProseKey, list[ProseValue]] = defaultdict(list)
    for key, value in _find_values(mapping, lines):
        values_of[key].append(value)
    for table in peak_tables:
        for key, value in _read_peaks(table):
            values_of[key].append(value)
    agreed: dict[ProseKey, ProseValue] = {}
    unread: list[UnreadCell] = []
    for key, values in values_of.items():
        texts = list(dict.fromkeys(value.value for value in values))
        if len(texts) == 1:
            agreed[key] = values[0]
            continue
        # `peak h100 bf16`, but only `steps` for a value of the kind `about`.
        name = " ".join(filter(None, key)).removeprefix("about ")
        reason = (
            f"the text gives several values of {name}: {formatting.join_first(texts)}"
        )
        for value in dict.fromkeys(values):
            unread.append(UnreadCell(value.line, value.value, reason))
    for name, text in mapping.document.items():
        agreed[ProseKey("about", "", name)] = ProseValue(str(text), 0, mapping.source)
    return Prose(agreed, unread)


def _find_values(
    mapping: DocumentMapping, lines: Sequence[str]
) -> Iterator[tuple[ProseKey, ProseValue]]:
    """Yield all peaks, model dimensions and facts of the measurement in the text."""
    # The model size of the worked example that the current line belongs to.
    example_size = ""
    for number, line in enumerate(lines, 1):
        # Lines about measurements contain TFLOPS, too, so require the word.
        if "peak" in line:
            for key, value in _find_peaks(mapping, line):
                yield key, ProseValue(value, number)
        # A worked example names its model in its first line only.
        facts = read_caption(mapping, line).facts
        line_size = "" if "proxy" in facts else str(facts.get("size", ""))
        if line.rstrip().endswith("calculation:"):
            example_size = line_size
        for text_pattern in mapping.models:
            match = text_pattern.pattern.fullmatch(line.strip())
            if match is None:
                continue
            size = line_size if text_pattern.has_size else example_size
            values = {**text_pattern.stated, **match.groupdict()}
            for group, value in values.items():
                if value:  # not an optional group without a match
                    name = group.replace("worked_", "worked ")
                    yield ProseKey("model", size, name), ProseValue(value, number)
        for name, value in _find_measurement(mapping, line):
            yield ProseKey("about", "", name), ProseValue(value, number)


def _find_measurement(mapping: DocumentMapping, line: str) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of the measurement in a line, such as window and dialect."""
    for text_pattern in mapping.about:
        match = text_pattern.pattern.search(line)
        if match:
            yield from {**text_pattern.stated, **match.groupdict()}.items()
    for name, pattern in _DIALECTS.items():
        if pattern.search(line):
            yield "dialect", name


def _find_peaks(mapping: DocumentMapping, line: str) -> Iterator[tuple[ProseKey, str]]:
    """Yield the peaks in a line, in TFLOP/s; each belongs to the GPU type before it."""
    # "peak of an H100: BF16 = 989 TFLOPS, FP8 = 1979 TFLOPS": H100 owns both peaks.
    gpu = ""
    for match in mapping.peaks.finditer(line):
        if match["gpu"]:
            gpu = match["gpu"].lower()
        elif gpu:
            key = ProseKey("peak", gpu, match["dtype"].lower())
            yield key, _to_tera(match["number"], match["prefix"])


def _read_peaks(table: DocumentTable) -> Iterator[tuple[ProseKey, ProseValue]]:
    """Yield the peaks of a table whose rows are GPU types and columns precisions.

    Rows and columns may be exchanged. Yields nothing for a table without a FLOPS unit.
    """
    header = table.header.cells
    texts = (table.heading, table.lead, *(label.text for label in header))
    unit = _UNIT.search(" ".join(texts))
    if unit is None:
        return
    prefix = unit[1]
    _, *column_labels = header
    for row in table.rows:
        row_label, *cells = row.cells
        for column_label, cell in zip(column_labels, cells, strict=False):
            # Any other word, such as `sparse`, means another kind of peak.
            if column_label.caption.rest or row_label.caption.rest:
                continue
            merged = column_label.facts | row_label.facts
            facts = {name: str(value) for name, value in merged.items() if value}
            if facts.keys() != {"gpu", "dtype"}:
                continue
            if re.fullmatch(r"\d+(\.\d+)?", cell.text, re.ASCII):
                key = ProseKey("peak", facts["gpu"], facts["dtype"])
                yield key, ProseValue(_to_tera(cell.text, prefix), row.line)


def _to_tera(number: str, prefix: str) -> str:
    """Convert a number of TFLOPS or PFLOPS (by prefix) to TFLOPS."""
    factor = 1000 if prefix.upper() == "P" else 1
    return f"{(Decimal(number) * factor).normalize():f}"
