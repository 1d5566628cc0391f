"""What reads the records of a dialect: one by one, or all of a log by columns where
they are alike."""

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
from pytest_llmbench.logs.clock import find_pauses, is_long
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

    `read_columns` reads all records of a log at once if they are alike; None for a
    dialect without such a reader.
    """

    read_columns: ColumnReader | None = None

    def __init__(self, dialect: Dialect) -> None:
        """Take the row of the dialect."""
        self.dialect = dialect

    @abstractmethod
    def read_records(
        self, hit: Hit, rank: str
    ) -> Sequence[StepRecord | TruncatedRecord | Unmatched]:
        """Return what belongs to a marker, with the rank of its line; several records
        where they were glued."""

    def join(self, records: Records, tally: Tally) -> list[StepRecord]:
        """Return one record for several of a step, in the order of the log, before
        ranks are told apart."""
        return list(records)

    def settle(self, records: Records, tally: Tally) -> list[StepRecord]:
        """Return the steps of one rank, those certain now that only their neighbours
        tell."""
        return list(records)

    def time_steps(self, records: Records) -> list[StepRecord]:
        """Return the steps of one attempt, each once and in order, with what only the
        others tell of their times."""
        return list(records)


class ModuleReader(DialectReader):
    """Reader of a built-in dialect: calls the functions of its module (`read_step`, and
    the others that it has)."""

    def __init__(self, name: str) -> None:
        """Load the module of this name."""
        super().__init__(DIALECTS[name])
        module = import_module(f"pytest_llmbench.logs.dialects.{name}")
        self._read_step: StepParser = module.read_step
        for function in {"read_columns", "join", "settle", "time_steps"} & vars(
            module
        ).keys():
            setattr(self, function, getattr(module, function))

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleReader:
        """Return itself: it never changes."""
        return self

    def read_records(
        self, hit: Hit, rank: str
    ) -> Sequence[StepRecord | TruncatedRecord]:
        """Return the record that begins at a marker, if one does."""
        record = self._read_step(
            hit.text, hit.start, hit.end, RecordOrigin(hit.offset, hit.line, rank)
        )
        return () if record is None else (record,)


@cache
def load_reader(name: str) -> ModuleReader:
    """Return the reader of a built-in dialect; its module is loaded with the first log
    that has a marker of it."""
    return ModuleReader(name)


Numbers = Sequence[float]


class Repeated(NamedTuple):
    """Records that repeat a step."""

    first: int  # the place of the first one among the records of a part, then its line
    text: str
    times: int


class StepColumns(NamedTuple):
    """The numbers of all records of a log, in its order; None for a field that no
    record prints. Fields as in `StepRecord`. The last record is a step."""

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
    asynchronous: tuple[int, int] = (
        0,
        0,
    )  # the first place, and the one behind the last
    kept: Sequence[int] | None = (
        None  # of which records these are the steps, None where they are of all
    )
    repeated: Repeated | None = None  # the others, which repeat a step


class UniformSegment(NamedTuple):
    """One attempt."""

    steps: Steps
    rank: str
    total: int | None
    begin: tuple[int, int]  # where its first record stands: byte and line
    end: tuple[int, int]  # where its last one does
    repeated: Repeated | None
    loss_digits: int = 0


UniformParts = tuple[UniformSegment, ...]

# Reads the records at these places of a text, each on a line of its own that ends
# there; None where one is not as the others.
ColumnReader = Callable[[bytes, Sequence[int], Sequence[int]], StepColumns | None]


def read_segments(
    reader: ColumnReader,
    text: bytes,
    places: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
) -> UniformParts | None:
    """Read the records at these offsets of a whole log by columns, None if they have to
    be read one by one.

    Each start between two records begins another part. A log with new steps after an
    end is read one by one.
    """
    if b"\r" in text:
        return None
    bounds = sorted({0, len(places), *(bisect_left(places, start) for start in starts)})
    parts = [
        _read_part(reader, text, places[begin:end], ends)
        for begin, end in pairwise(bounds)
    ]
    sure = tuple(part for part in parts if part is not None)
    return (
        sure
        if len(sure) == len(parts) and len({part.rank for part in sure}) == 1
        else None
    )


def _read_part(
    reader: ColumnReader, text: bytes, places: Sequence[int], ends: Sequence[int]
) -> UniformSegment | None:
    stops = [text.find(b"\n", place) for place in places]
    if stops[-1] < 0 or any(map(gt, stops, places[1:])):
        return None  # the last line has no end, or two records share one
    rank = _read_rank(text, places)
    if rank is None or max(map(sub, stops, places)) >= REACH:
        return None
    columns = reader(text, places, stops)
    if columns is None or any(map(ge, columns.step, columns.step[1:])):
        return None
    lines = _number_lines(text, places, stops)
    kept = columns.kept if columns.kept is not None else range(len(places))
    first, new, last = kept[0], kept[-1], len(places) - 1
    if any(places[first] < end < places[new] for end in ends):
        return None
    again = columns.repeated and columns.repeated._replace(
        first=lines[columns.repeated.first]
    )
    paused = _find_pauses(
        columns, text, [places[row] for row in kept], [stops[row] for row in kept]
    )
    steps = _build_steps(
        columns, lines if columns.kept is None else [lines[row] for row in kept], paused
    )
    begin, end = ((places[row], lines[row]) for row in (first, last))
    return UniformSegment(
        steps, rank, columns.total, begin, end, again, columns.loss_digits
    )


def _find_pauses(
    columns: StepColumns, text: bytes, places: Sequence[int], stops: Sequence[int]
) -> Integers:
    """Return the kinds of the pauses that are announced before each step and took their
    time, 0 for none."""
    if columns.stamp is None:
        return _fill(len(columns.step), 0)
    paused = np.zeros(len(columns.step), dtype=np.int64)
    took = np.diff(columns.step) * np.array(columns.seconds[1:])
    for row in np.flatnonzero(is_long(np.diff(columns.stamp), took)).tolist():
        paused[row + 1] = find_pauses(text, stops[row], places[row + 1])
    return paused


def _number_lines(
    text: bytes, places: Sequence[int], stops: Sequence[int]
) -> list[int]:
    """Return the numbers of the lines of records that stand at places, each on one that
    ends at its stop."""
    lines = [text.count(b"\n", 0, places[0]) + 1]
    for stop, place in zip(stops, places[1:], strict=False):
        between = text.count(b"\n", stop + 1, place) if stop + 1 < place else 0
        lines.append(lines[-1] + 1 + between)
    return lines


class PrintedField(NamedTuple):
    """A field of a record, by the name that the log prints."""

    name: bytes
    column: str  # of `StepRecord` and `StepColumns`
    finite: bytes  # a pattern of its whole and finite numbers
    convert: Callable[[bytes], float] = float
    required: bool = True  # a record with a damaged number is torn


class FieldTable:
    """The fields of a dialect: one definition for reading by records and by columns.

    If several fields are of one column, the first that is printed counts.
    """

    def __init__(self, *fields: PrintedField) -> None:
        """Compile the patterns of the numbers, which need not be finite."""
        self.fields = fields
        self.by_name = {field.name: field for field in fields}
        self.numbers = {
            field.name: re.compile(rb"%b|-?%b" % (field.finite, NOT_FINITE))
            for field in fields
        }
        self._checked = tuple(
            (field, self.numbers[field.name].fullmatch) for field in fields
        )

    def parse_record(self, values: Mapping[bytes, bytes]) -> dict[str, Any] | None:
        """Return the numbers of one record by column; None if a required one is
        damaged.

        Others are NaN then.
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
        """Return the numbers of all records, as `parse_record` returns those of
        each."""
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
        """Return the columns of a layout by the names that are of the table."""
        read = [name for name in names if name in self.by_name]
        return dict(zip(read, columns, strict=True))

    def describe(
        self, names: Sequence[bytes], assign: bytes, other: bytes
    ) -> list[bytes]:
        """Return a pattern for each name and value, with a group for a field of the
        table.

        `assign` is between the two; `other` matches the value of another field.
        """
        fields = self.by_name
        values = [
            b"(%b)" % fields[name].finite if name in fields else other for name in names
        ]
        return [
            re.escape(name) + assign + value
            for name, value in zip(names, values, strict=True)
        ]


def _parse_numbers(
    printed: Sequence[bytes], convert: Callable[[bytes], float] = float
) -> Numbers:
    """Return the values of a column; many print the same one in every record."""
    if printed.count(printed[0]) == len(printed):
        return [convert(printed[0])] * len(printed)
    return list(map(convert, printed))


@lru_cache(maxsize=64)
def share_names(names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return equal names as one object: most records of a log have the same."""
    return names


def count_most_digits(printed: Sequence[bytes] | None) -> int:
    """Return the largest number of digits of printed numbers, 0 for none."""
    if not printed:
        return 0
    digits = b" ".join(printed).translate(None, b".-")
    if digits.translate(None, b" ").isdigit():  # no exponents: a tenth of the time
        return max(map(len, digits.split(b" ")))
    return max(map(count_digits, set(printed)))


def list_names(fields: Sequence[bytes], assign: bytes) -> tuple[bytes, ...]:
    """Return the names of the fields of a record; empty if one is no field, or two have
    one name."""
    names = tuple(field.partition(assign)[0] for field in fields if assign in field)
    return names if len(set(names)) == len(fields) else ()


def match_rows(
    layout: re.Pattern[bytes], text: bytes, places: Sequence[int], stops: Sequence[int]
) -> list[tuple[bytes, ...]] | None:
    """Return the groups of a layout at each offset, None if a record has another
    layout.

    A layout begins with a text that is at the offsets and nowhere else.
    """
    rows: list[tuple[bytes, ...]] = layout.findall(text, places[0], stops[-1] + 1)
    return rows if len(rows) == len(places) else None


def _read_rank(text: bytes, places: Sequence[int]) -> str | None:
    """Return the rank that stands before all records, None where that is not the same
    before each."""
    prefixes = {text[text.rfind(b"\n", 0, place) + 1 : place] for place in places}
    prefix = prefixes.pop()
    if prefixes or len(prefix) >= REACH_BACK:
        return None
    return read_labels(prefix)


def _build_steps(columns: StepColumns, lines: Sequence[int], paused: Integers) -> Steps:
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
            name: _fill(count, NAN) if each is None else np.array(each)
            for name, each in numbers.items()
        },
    )


@lru_cache(maxsize=None, typed=True)
def _fill(count: int, value: float) -> NDArray[Any]:
    """Return a column of one value, which logs share: it cannot be written to."""
    column = np.full(count, value)
    column.setflags(write=False)
    return column


def _mark_range(count: int, begin: int, end: int) -> Flags:
    """Return that many flags, those from `begin` and before `end` set."""
    if begin == end:
        return _fill(count, False)
    places = np.arange(count)
    return (begin <= places) & (places < end)
