"""Readers of dialects: one record at a time, or all of a log by columns."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise
from operator import ge, gt, sub
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.logs.clock import find_pauses, mark_long_gaps
from pytest_llmbench.logs.dialect_table import DIALECTS, Dialect
from pytest_llmbench.logs.scan import REACH, REACH_BACK, Hit
from pytest_llmbench.logs.step_records import (
    COLUMNS,
    NAN,
    NOT_FINITE,
    RecordOrigin,
    StepParser,
    StepRecord,
    Tally,
    TruncatedRecord,
    Unmatched,
    count_digits,
    read_labels,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_llmbench.core.log_records import Flags, Integers

Records = Sequence[StepRecord]


class DialectReader(ABC):
    """Reader of one dialect: parses records, then resolves them into steps.

    `read_columns` reads all records of a log at once if they have the same layout. It
    is None if the dialect has no column reader.
    """

    read_columns: ColumnReader | None = None

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    @abstractmethod
    def read_records(
        self, hit: Hit, rank: str
    ) -> Sequence[StepRecord | TruncatedRecord | Unmatched]:
        """Parse the records at a marker; `rank` is the rank of its line.

        Returns several records if they were printed on one line.
        """

    def merge_records(self, records: Records, tally: Tally) -> list[StepRecord]:
        """Merge the records of the same step, in the order of the log.

        Runs before the records are grouped by rank.
        """
        return list(records)

    def resolve_steps(self, records: Records, tally: Tally) -> list[StepRecord]:
        """Resolve the records of one rank into numbered steps.

        Uses neighbouring records.
        """
        return list(records)

    def time_steps(self, records: Records) -> list[StepRecord]:
        """Complete the times of one attempt's steps.

        Computes missing times, and the number of steps that each time covers. `records`
        contains each step once, in order.
        """
        return list(records)


class ModuleReader(DialectReader):
    """Reader of a built-in dialect.

    Calls `read_step` of the dialect's module, and the optional functions that the
    module defines.
    """

    def __init__(self, name: str) -> None:
        super().__init__(DIALECTS[name])
        module = import_module(f"pytest_llmbench.logs.dialects.{name}")
        self._read_step: StepParser = module.read_step
        optional_functions = {
            "read_columns",
            "merge_records",
            "resolve_steps",
            "time_steps",
        }
        # Those that the module defines replace the methods of `DialectReader`.
        for function in optional_functions & vars(module).keys():
            setattr(self, function, getattr(module, function))

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleReader:
        """Return the reader itself: it has no mutable state."""
        return self

    def read_records(
        self, hit: Hit, rank: str
    ) -> Sequence[StepRecord | TruncatedRecord]:
        """Parse the record at a marker; empty if there is none."""
        record = self._read_step(
            hit.text, hit.start, hit.end, RecordOrigin(hit.offset, hit.line, rank)
        )
        return () if record is None else (record,)


@cache
def load_reader(name: str) -> ModuleReader:
    """Return the reader of a built-in dialect.

    The dialect's module is imported on first use.
    """
    return ModuleReader(name)


Numbers = Sequence[float]


class Repeated(NamedTuple):
    """The records of a segment that repeat a step: the first, and their number."""

    first: int  # index of the first record in its segment, later its line
    text: str
    times: int


class StepColumns(NamedTuple):
    """The numbers of all records of a log, in log order.

    Fields as in `StepRecord`; None for a field that no record prints. The last record
    is a step.
    """

    step: Sequence[int]
    seconds: Numbers
    resolution: Numbers
    total: int | None = None
    loss: Numbers | None = None
    grad_norm: Numbers | None = None
    tflops: Numbers | None = None
    tokens: Numbers | None = None
    batch: Numbers | None = None
    memory: Numbers | None = None
    rate: Numbers | None = None
    consumed: Numbers | None = None
    targets: Numbers | None = None
    stamp: Numbers | None = None
    loss_digits: int = 0
    # the first index, and the index after the last
    asynchronous: tuple[int, int] = (0, 0)
    kept: Sequence[int] | None = None  # the records that are steps; None means all
    repeated: Repeated | None = None  # the records that repeat a step


class UniformSegment(NamedTuple):
    """An attempt that was read by columns."""

    steps: Steps
    rank: str
    total: int | None
    begin: tuple[int, int]  # byte offset and line of the first record
    end: tuple[int, int]  # byte offset and line of the last record
    repeated: Repeated | None
    loss_digits: int = 0


UniformSegments = tuple[UniformSegment, ...]

# Reads the records at these offsets (text, offsets, stops), each on its own line.
# Returns None if their layouts differ.
ColumnReader = Callable[[bytes, Sequence[int], Sequence[int]], StepColumns | None]


def read_segments(
    reader: ColumnReader,
    text: bytes,
    offsets: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
) -> UniformSegments | None:
    """Read the records at these offsets of a whole log by columns.

    Each start between two records begins a new segment. Returns None if the records
    have to be read one by one, for example if new steps follow an end.
    """
    if b"\r" in text:
        return None
    bounds = sorted(
        {0, len(offsets), *(bisect_left(offsets, start) for start in starts)}
    )
    segments = [
        _read_segment(reader, text, offsets[begin:end], ends)
        for begin, end in pairwise(bounds)
    ]
    uniform = tuple(segment for segment in segments if segment is not None)
    has_one_rank = len({segment.rank for segment in uniform}) == 1
    return uniform if len(uniform) == len(segments) and has_one_rank else None


def _read_segment(
    reader: ColumnReader, text: bytes, offsets: Sequence[int], ends: Sequence[int]
) -> UniformSegment | None:
    """Read one attempt by columns.

    Returns None if its records are not alike, or if the last line is incomplete.
    """
    stops = [text.find(b"\n", offset) for offset in offsets]
    if stops[-1] < 0 or any(map(gt, stops, offsets[1:])):
        return None  # the last line is incomplete, or two records share a line
    rank = _read_rank(text, offsets)
    if rank is None or max(map(sub, stops, offsets)) >= REACH:
        return None  # several ranks, or a record that is longer than the context
    columns = reader(text, offsets, stops)
    if columns is None or any(map(ge, columns.step, columns.step[1:])):
        return None  # several layouts, or step numbers that do not ascend
    lines = _number_lines(text, offsets, stops)
    kept_rows = columns.kept if columns.kept is not None else range(len(offsets))
    first, last_kept, last = kept_rows[0], kept_rows[-1], len(offsets) - 1
    if any(offsets[first] < end < offsets[last_kept] for end in ends):
        return None  # training ended before the last step
    repeated = columns.repeated and columns.repeated._replace(
        first=lines[columns.repeated.first]
    )
    paused = _find_pauses(
        columns,
        text,
        offsets=[offsets[row] for row in kept_rows],
        stops=[stops[row] for row in kept_rows],
    )
    kept_lines = lines if columns.kept is None else [lines[row] for row in kept_rows]
    return UniformSegment(
        _build_steps(columns, kept_lines, paused),
        rank,
        columns.total,
        begin=(offsets[first], lines[first]),
        end=(offsets[last], lines[last]),
        repeated=repeated,
        loss_digits=columns.loss_digits,
    )


def _find_pauses(
    columns: StepColumns, text: bytes, offsets: Sequence[int], stops: Sequence[int]
) -> Integers:
    """Return the kinds of the announced pauses before each step, 0 for none.

    A pause counts only if the gap before the step is longer than the steps take.
    """
    if columns.stamp is None:
        return _fill(len(columns.step), 0)
    paused = np.zeros(len(columns.step), dtype=np.int64)
    step_seconds = np.diff(columns.step) * np.array(columns.seconds[1:])
    is_long = mark_long_gaps(np.diff(columns.stamp), step_seconds)
    for row in np.flatnonzero(is_long).tolist():
        # The announcement is between the two records.
        paused[row + 1] = find_pauses(text, stops[row], offsets[row + 1])
    return paused


def _number_lines(
    text: bytes, offsets: Sequence[int], stops: Sequence[int]
) -> list[int]:
    """Return the 1-based line numbers of the records from `offsets` to `stops`."""
    lines = [text.count(b"\n", 0, offsets[0]) + 1]
    # the end of each record, and the beginning of the next one
    for stop, offset in zip(stops, offsets[1:], strict=False):
        between = text.count(b"\n", stop + 1, offset) if stop + 1 < offset else 0
        lines.append(lines[-1] + 1 + between)
    return lines


class PrintedField(NamedTuple):
    """A field of a record, by its printed name."""

    name: bytes
    column: str  # of `StepRecord` and `StepColumns`
    finite: bytes  # a pattern of complete, finite numbers
    convert: Callable[[bytes], float] = float
    required: bool = True  # a damaged number makes the record truncated


class FieldTable:
    """The fields of a dialect, shared by its record and column readers.

    If several fields fill the same column, the first printed one is used.
    """

    def __init__(self, *fields: PrintedField) -> None:
        """Compile the patterns of the numbers, which may be NaN or infinite."""
        self.fields = fields
        self.by_name = {field.name: field for field in fields}
        self.numbers = {
            field.name: re.compile(rb"%b|-?%b" % (field.finite, NOT_FINITE))
            for field in fields
        }
        # each field with the check for a complete number
        self._checked = tuple(
            (field, self.numbers[field.name].fullmatch) for field in fields
        )

    def parse_record(self, values: Mapping[bytes, bytes]) -> dict[str, Any] | None:
        """Parse the numbers of one record, by column.

        Returns None if a required number is damaged. Damaged optional numbers are left
        out.
        """
        numbers: dict[str, Any] = {}
        for (name, column, _, convert, required), is_complete in self._checked:
            if name in values:
                printed = values[name]
                if is_complete(printed):
                    numbers.setdefault(column, convert(printed))
                elif required:
                    return None
        return numbers

    def parse_columns(self, columns: Mapping[bytes, Sequence[bytes]]) -> dict[str, Any]:
        """Parse the numbers of all records, like `parse_record`."""
        numbers: dict[str, Any] = {}
        for field in self.fields:
            if field.name in columns and field.column not in numbers:
                numbers[field.column] = _parse_numbers(
                    columns[field.name], field.convert
                )
        return numbers

    def name_columns(
        self, names: Sequence[bytes], columns: Sequence[Sequence[bytes]]
    ) -> dict[bytes, Sequence[bytes]]:
        """Map the names that the table reads to their columns.

        `columns` contains the groups of a layout, in the order of `names`.
        """
        read = [name for name in names if name in self.by_name]
        return dict(zip(read, columns, strict=True))

    def describe(
        self, names: Sequence[bytes], assign: bytes, other: bytes
    ) -> list[bytes]:
        """Return a pattern for each name and its value.

        The pattern has a group if the name is a field of the table. `assign` separates
        name and value; `other` matches the value of any other field.
        """
        patterns = []
        for name in names:
            field = self.by_name.get(name)
            value = b"(%b)" % field.finite if field else other
            patterns.append(re.escape(name) + assign + value)
        return patterns


def _parse_numbers(
    printed: Sequence[bytes], convert: Callable[[bytes], float] = float
) -> Numbers:
    """Convert the values of a column.

    Many columns print the same value in every record: it is converted once.
    """
    if printed.count(printed[0]) == len(printed):
        return [convert(printed[0])] * len(printed)
    return list(map(convert, printed))


@lru_cache(maxsize=64)
def share_names(names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return equal tuples of names as the same object.

    Most records of a log have the same names.
    """
    return names


def count_most_digits(printed: Sequence[bytes] | None) -> int:
    """Return the largest number of digits of printed numbers, or 0."""
    if not printed:
        return 0
    digits = b" ".join(printed).translate(None, b".-")
    if digits.translate(None, b" ").isdigit():  # no exponents: ten times as fast
        return max(map(len, digits.split(b" ")))
    return max(map(count_digits, set(printed)))


def list_names(fields: Sequence[bytes], assign: bytes) -> tuple[bytes, ...]:
    """Return the field names of a record.

    `fields` are the parts of its text, such as `loss: 2.5` for the separator `: ` in
    `assign`. Returns () if a part is not a field, or if two fields have the same name.
    """
    names = tuple(field.partition(assign)[0] for field in fields if assign in field)
    return names if len(set(names)) == len(fields) else ()


def match_rows(
    layout: re.Pattern[bytes], text: bytes, offsets: Sequence[int], stops: Sequence[int]
) -> list[tuple[bytes, ...]] | None:
    """Return the groups of a layout at each offset.

    Returns None if a record has another layout. `text` contains the literal beginning
    of the layout only at `offsets`.
    """
    rows: list[tuple[bytes, ...]] = layout.findall(text, offsets[0], stops[-1] + 1)
    return rows if len(rows) == len(offsets) else None


def _read_rank(text: bytes, offsets: Sequence[int]) -> str | None:
    """Return the rank label of all records, None if they differ."""
    prefixes = {text[text.rfind(b"\n", 0, offset) + 1 : offset] for offset in offsets}
    prefix = prefixes.pop()
    has_other_prefixes = bool(prefixes)
    if has_other_prefixes or len(prefix) >= REACH_BACK:
        return None
    return read_labels(prefix)


def _build_steps(columns: StepColumns, lines: Sequence[int], paused: Integers) -> Steps:
    """Build the columns of a segment; columns that are not printed are NaN."""
    count = len(columns.step)
    numbers = {name: getattr(columns, field, None) for name, field in COLUMNS.items()}
    numbers["stamp"] = columns.stamp
    return Steps(
        index=np.array(columns.step, dtype=np.int64),
        line=np.array(lines, dtype=np.int64),
        mean_of=_fill(count, 1),
        asynchronous=_mark_range(count, *columns.asynchronous),
        has_loss=_fill(count, columns.loss is not None),
        has_grad_norm=_fill(count, columns.grad_norm is not None),
        since=_fill(count, NAN),
        paused=paused,
        **{
            name: _fill(count, NAN) if column is None else np.array(column)
            for name, column in numbers.items()
        },
    )


@lru_cache(maxsize=None, typed=True)
def _fill(count: int, value: float) -> NDArray[Any]:
    """Return a read-only column of one value; logs share it."""
    column = np.full(count, value)
    column.setflags(write=False)
    return column


def _mark_range(count: int, begin: int, end: int) -> Flags:
    """Return `count` flags that are True from `begin` up to `end` (exclusive)."""
    if begin == end:
        return _fill(count, False)
    indices = np.arange(count)
    return (begin <= indices) & (indices < end)
