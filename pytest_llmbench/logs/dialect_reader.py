"""Readers of dialects: one record at a time, or all of a log by columns."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise, repeat
from operator import lt, sub
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_llmbench.core.log_records import ArraySteps, Steps
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.clock import (
    find_format,
    find_pauses,
    keep_one_clock,
    mark_long_gaps,
    read_stamps,
)
from pytest_llmbench.logs.dialect_table import DIALECTS, Dialect
from pytest_llmbench.logs.scan import REACH, REACH_BACK, Hit, find_line_begin
from pytest_llmbench.logs.step_records import (
    COLUMNS,
    HOLE,
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

DIGITS = b"0123456789"


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
    rank: str = ""
    loss: Numbers | None = None
    grad_norm: Numbers | None = None
    tflops: Numbers | None = None
    tokens: Numbers | None = None
    batch: Numbers | None = None
    memory: Numbers | None = None
    rate: Numbers | None = None
    consumed: Numbers | None = None
    targets: Numbers | None = None
    skipped: Numbers | None = None
    samples: Numbers | None = None
    step_tokens: Numbers | None = None
    stamp: Numbers | None = None
    # False if the records print no times, but only stamps
    finds_pauses: bool = True
    loss_digits: int = 0
    # the first index, and the index after the last
    asynchronous: tuple[int, int] = (0, 0)
    mean_of: Sequence[int] | None = None  # None means 1 for all records
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
    loss_digits: int
    stop: int  # the byte offset of the end of the last step's line


class RecordLines(NamedTuple):
    """The records of a log, each on its own line, in order."""

    text: bytes  # of the whole log
    begins: Sequence[int]  # offsets of the beginnings of their lines
    offsets: Sequence[int]  # of their markers
    stops: Sequence[int]  # of the ends of their lines
    prefixes: Sequence[bytes]  # the texts before the records in their lines
    numbers: Sequence[int]  # of their lines, from 1
    companions: Sequence[int] = ()  # offsets of the companion markers


UniformSegments = tuple[UniformSegment, ...]

# Reads all records of an attempt. Returns None if their layouts differ.
ColumnReader = Callable[[RecordLines], StepColumns | None]

# Bytes between the beginning of a record and its inner marker, at most.
INNER_REACH = 400


def locate_lines(
    text: bytes, markers: Sequence[tuple[int, bytes]], dialect: Dialect
) -> RecordLines | None:
    """Locate the lines of the records of a whole log.

    `markers` are the (offset, marker) matches of the dialect. Returns None if the
    records have to be read one by one: if the last line is incomplete, two markers
    share a line, a record or its prefix is longer than the context that is read, or an
    inner marker is missing or outside a record.
    """
    inner, companions = [], []
    offsets = [offset for offset, _ in markers]
    if dialect.inner_markers or dialect.companion_markers:
        others = {*dialect.inner_markers, *dialect.companion_markers}
        offsets = [offset for offset, marker in markers if marker not in others]
        inner, companions = (
            [offset for offset, marker in markers if marker in kind]
            for kind in (dialect.inner_markers, dialect.companion_markers)
        )
    line_feeds = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    rows = line_feeds.searchsorted(offsets)  # the line feeds before each record
    if not offsets or rows[-1] == len(line_feeds) or not (rows[1:] > rows[:-1]).all():
        return None
    stops = line_feeds[rows].tolist()
    begins = (np.append(-1, line_feeds)[rows] + 1).tolist()
    heads = offsets
    if dialect.opening:
        opening = dialect.opening
        heads = list(map(text.rfind, repeat(opening), begins, offsets))
    if (
        min(heads) < 0
        or max(map(sub, offsets, begins)) >= REACH_BACK
        or max(map(sub, stops, offsets)) >= REACH
        or any(text.find(sign, begins[0], stops[-1]) >= 0 for sign in (b"\r", HOLE))
    ):
        return None
    if dialect.inner_markers and not (
        len(inner) == len(offsets)
        and all(map(lt, offsets, inner))
        and all(map(lt, inner, stops))
        and max(map(sub, inner, offsets)) < INNER_REACH
    ):
        return None
    if companions:
        other_rows = set(line_feeds.searchsorted(companions).tolist())
        has_own_lines = len(other_rows) == len(companions)
        if not has_own_lines or not other_rows.isdisjoint((len(line_feeds), *rows)):
            return None
    if heads == begins:
        prefixes = [b""] * len(heads)
    else:
        prefixes = [text[begin:head] for begin, head in zip(begins, heads, strict=True)]
    numbers = (rows + 1).tolist()
    return RecordLines(text, begins, offsets, stops, prefixes, numbers, companions)


def read_segments(
    reader: ColumnReader,
    lines: RecordLines,
    starts: Sequence[int],
    ends: Sequence[int],
) -> UniformSegments | None:
    """Read all records of a log by columns.

    Each start between two records begins a new segment. Returns None if the records
    have to be read one by one, for example if new steps follow an end.
    """
    parts = list(_split_lines(lines, starts))
    columns = _read_columns(reader, parts)
    if columns is None:
        return None
    segments: list[UniformSegment] = []
    for part, part_columns in zip(parts, columns, strict=True):
        before = segments[-1] if segments else None
        segment = _build_segment(part_columns, part, ends, before)
        if segment is None:
            return None
        segments.append(segment)
    return tuple(segments)


def _split_lines(lines: RecordLines, starts: Sequence[int]) -> Iterator[RecordLines]:
    """Yield the lines of each attempt."""
    if not starts:
        yield lines
        return
    text, begins, offsets, stops, prefixes, numbers, companions = lines
    # the first row of each attempt, and the last start before it
    start_of_row = {bisect_left(offsets, start): start for start in starts}
    start_of_row = {0: 0} | start_of_row | {len(offsets): len(text)}
    for begin, end in pairwise(sorted(start_of_row)):
        rows = slice(begin, end)
        first, stop = (
            bisect_left(companions, start_of_row[row]) for row in (begin, end)
        )
        if begin == 0:
            first = 0
        yield RecordLines(
            text,
            begins[rows],
            offsets[rows],
            stops[rows],
            prefixes[rows],
            numbers[rows],
            companions[first:stop],
        )


def _read_columns(
    reader: ColumnReader, parts: Sequence[RecordLines]
) -> list[StepColumns] | None:
    """Read the columns of each attempt, with the time stamps of its lines.

    Returns None if the records of an attempt are not alike, if its steps do not ascend,
    or if attempts differ in their rank or in their kind of time stamps.
    """
    columns = []
    for part in parts:
        rank = _read_rank(part.prefixes)
        part_columns = None if rank is None else reader(part)
        if rank is None or part_columns is None or not ascends(part_columns.step):
            return None
        columns.append(part_columns._replace(rank=rank))
    if any(not part_columns.finds_pauses for part_columns in columns):
        return columns if _have_one_rank(columns) else None
    if all(part_columns.stamp is None for part_columns in columns):
        columns = _add_line_stamps(columns, parts)
    has_stamps = {part_columns.stamp is not None for part_columns in columns}
    return columns if len(has_stamps) == 1 and _have_one_rank(columns) else None


def _have_one_rank(columns: Sequence[StepColumns]) -> bool:
    """True if all attempts have the same rank."""
    return len({part_columns.rank for part_columns in columns}) == 1


def _add_line_stamps(
    columns: list[StepColumns], parts: Sequence[RecordLines]
) -> list[StepColumns]:
    """Add the time stamps before the records of each attempt, if there are any."""
    prefixes = [prefix for part in parts for prefix in part.prefixes]
    kinds = map(find_format, dict.fromkeys(prefixes))
    kind = next((kind for kind in kinds if kind is not None), None)
    if kind is None:
        return columns
    remaining, _ = read_stamps(prefixes, kind)
    stamped = []
    for part, part_columns in zip(parts, columns, strict=True):
        count = len(part.offsets)
        stamps, remaining = np.array(remaining[:count]), remaining[count:]
        if part_columns.kept is not None:
            stamps = stamps[part_columns.kept]
        stamp = None if np.isnan(stamps).all() else keep_one_clock(stamps).tolist()
        stamped.append(part_columns._replace(stamp=stamp))
    return stamped


def _build_segment(
    columns: StepColumns,
    lines: RecordLines,
    ends: Sequence[int],
    before: UniformSegment | None,
) -> UniformSegment | None:
    """Build one attempt; `before` is the attempt before it.

    Returns None if training ended before the last step, or if only some steps have a
    time stamp or a possible time.
    """
    offsets, stops = lines.offsets, lines.stops
    if columns.kept is not None:
        offsets = [offsets[row] for row in columns.kept]
        stops = [stops[row] for row in columns.kept]
    if any(offsets[0] < end < offsets[-1] for end in ends):
        return None
    if columns.stamp is not None and columns.finds_pauses:
        has_stamps = not any(map(math.isnan, columns.stamp))
        has_times = 0 < min(columns.seconds) <= max(columns.seconds) < math.inf
        if not (has_stamps and has_times):
            return None
    kept_numbers = numbers = lines.numbers
    if columns.kept is not None:
        kept_numbers = [numbers[row] for row in columns.kept]
    paused = _find_pauses(columns, lines.text, offsets, stops, before)
    return UniformSegment(
        _build_steps(columns, kept_numbers, paused),
        columns.rank,
        columns.total,
        begin=(offsets[0], kept_numbers[0]),
        end=(lines.offsets[-1], numbers[-1]),
        repeated=columns.repeated
        and columns.repeated._replace(first=numbers[columns.repeated.first]),
        loss_digits=columns.loss_digits,
        stop=stops[-1],
    )


def _find_pauses(
    columns: StepColumns,
    text: bytes,
    offsets: Sequence[int],
    stops: Sequence[int],
    before: UniformSegment | None,
) -> Integers:
    """Return the kinds of the announced pauses before each step, 0 for none.

    `offsets` and `stops` are those of the steps, `before` is the attempt before, whose
    last step precedes the first one. A pause counts only if the gap before the step is
    longer than the steps take.
    """
    if columns.stamp is None or not columns.finds_pauses:
        return _fill(len(columns.step), 0)
    steps, stamps, seconds = columns.step, columns.stamp, columns.seconds[1:]
    first_row = 1  # the first record after a gap
    if before:
        steps = [int(before.steps.index[-1]), *steps]
        stamps = [float(before.steps.stamp[-1]), *stamps]
        stops = [before.stop, *stops]
        seconds = columns.seconds
        first_row = 0
    paused = np.zeros(len(columns.step), dtype=np.int64)
    step_seconds = np.maximum(1, np.diff(steps)) * np.array(seconds)
    is_long = mark_long_gaps(np.diff(stamps), step_seconds)
    for gap in np.flatnonzero(is_long).tolist():
        # The announcement is between the lines of the two records.
        row = gap + first_row
        line_begin = find_line_begin(text, stops[gap], offsets[row])
        paused[row] = find_pauses(text, stops[gap], line_begin)
    return paused


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
                numbers[field.column] = parse_numbers(
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


def parse_numbers(
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


def ascends(steps: Sequence[int]) -> bool:
    """True if each step number is larger than the one before."""
    return all(map(lt, steps, steps[1:]))


def match_rows(
    layout: re.Pattern[bytes], lines: RecordLines
) -> list[tuple[bytes, ...]] | None:
    """Return the groups of a layout in each line.

    Returns None if a record has another layout. The layout matches within one line, and
    contains the marker of the record.
    """
    begin, stop = lines.begins[0], lines.stops[-1] + 1
    rows: list[tuple[bytes, ...]] = layout.findall(lines.text, begin, stop)
    return rows if len(rows) == len(lines.offsets) else None


# Every prefix with a rank label matches this without its digits.
LABEL_FORM = compile_on_use(rb"\A[ \t\r]*: |/ |\[(?:rank|default)\]|pid=")


def _read_rank(prefixes: Sequence[bytes]) -> str | None:
    """Return the rank label of all records, None if they differ.

    The prefixes, which may contain time stamps, may only differ in their digits.
    """
    distinct = set(prefixes)
    form, *other_forms = {prefix.translate(None, DIGITS) for prefix in distinct}
    if other_forms:
        return None
    if not LABEL_FORM.search(form):
        return ""
    labels = set(map(read_labels, distinct))
    return labels.pop() if len(labels) == 1 else None


def _build_steps(columns: StepColumns, lines: Sequence[int], paused: Integers) -> Steps:
    """Build the columns of a segment; columns that are not printed are NaN."""
    count = len(columns.step)
    numbers = {name: getattr(columns, field, None) for name, field in COLUMNS.items()}
    numbers["stamp"] = columns.stamp
    return ArraySteps(
        index=np.array(columns.step, dtype=np.int64),
        line=np.array(lines, dtype=np.int64),
        mean_of=_fill(count, 1)
        if columns.mean_of is None
        else np.array(columns.mean_of, dtype=np.int64),
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
