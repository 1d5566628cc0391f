"""What files said as one piece of bytes and back: for other processes and for the
cache.

The types of the records say how each is kept, so nothing in the bytes names a type, and
nothing in them is executed. A header, a JSON text with one list for each field of all
records of a type, and the columns of each segment's steps.
"""

from __future__ import annotations

import json
import struct
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache, lru_cache
from itertools import chain, islice, repeat
from operator import attrgetter, is_
from types import NoneType, UnionType
from typing import (
    Any,
    NamedTuple,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.job_records import Pairs
from pytest_llmbench.core.log_records import (
    CheckpointAction,
    DropReason,
    Ending,
    EndingCode,
    LazySteps,
    ParsedLog,
    StatedField,
    Steps,
)
from pytest_llmbench.core.runtime import pause_garbage_collection
from pytest_llmbench.logs.sources.files import FileState

ReadResult: TypeAlias = ParsedLog | Ending | LogError | None
"""What a file says: a log; a standard error that tells of an ending, or of none; or why
it cannot be read."""


class FileToRead(NamedTuple):
    """A file to be read."""

    path: str
    is_log: bool  # else it is a standard error, of which only the ending counts


class FileReading(NamedTuple):
    """What a file said when it was read."""

    file: FileToRead
    result: ReadResult
    state: (
        FileState | None
    )  # that of the bytes that said it; None where it may not be kept


_NUMPY_TYPES = {"Floats": np.float64, "Integers": np.int64, "Flags": np.bool_}
# Flags stand last: so every other column begins at a multiple of its own size, if the
# first one does.
_COLUMNS = dict(
    sorted(
        (
            (column.name, np.dtype(_NUMPY_TYPES[str(column.type)]))
            for column in fields(Steps)
        ),
        key=lambda column: -column[1].itemsize,
    )
)
_FLAGS = [name for name, kind in _COLUMNS.items() if kind == np.bool_]
_ALIGNED = 8
# Before the columns of a segment stands a bit for each that is kept as one value,
# because all steps have it: so have two thirds of the columns of most logs, and what is
# kept of 100,000 logs stays in memory.
_REPEATED = struct.Struct("=Q")
# Never kept as one value: as many numbers of steps as are said are in the bytes, so
# that no column outgrows them.
_COUNTED = "index"


@lru_cache(1024)
def _lay_out(count: int, repeated: int) -> tuple[Mapping[str, tuple[int, int]], int]:
    """Return from where to where each column stands in a segment of so many steps, and
    how many bytes that has."""
    places = {}
    end = _REPEATED.size
    for number, (name, kind) in enumerate(_COLUMNS.items()):
        begin, end = end, end + kind.itemsize * (1 if repeated >> number & 1 else count)
        places[name] = begin, end
    return places, _pad(end)


def _fill(value: bytes, name: str, count: int) -> NDArray[Any]:
    """Return a column of one value, read-only."""
    return np.frombuffer(value * count, _COLUMNS[name])


_share = lru_cache(1024)(_fill)
# Longer columns are not shared: so many of them would fill the memory, and few segments
# have as many steps.
_LONGEST_SHARED = 1000


class _PackedSteps(LazySteps):
    """The steps of one segment in the bytes of many: making all columns takes longer
    than the rest of unpacking."""

    __slots__ = ("_place",)
    _place: tuple[
        bytes, int, int, int
    ]  # the bytes, where the segment begins in them, its steps, its repeated columns

    def _make_column(self, name: str) -> NDArray[Any]:
        data, offset, count, repeated = self._place
        begin, end = _lay_out(count, repeated)[0][name]
        if end - begin == count * _COLUMNS[name].itemsize:
            return np.frombuffer(data, _COLUMNS[name], count, offset + begin)
        fill = _share if count <= _LONGEST_SHARED else _fill
        return fill(data[offset + begin : offset + end], name, count)


class _StepReader:
    """Takes the steps of segment after segment out of bytes."""

    def __init__(self, data: bytes, begin: int) -> None:
        self._data = data
        self.place = begin
        self.most_values = max(
            len(data), 1 << 20
        )  # of one column: one value may stand for all, so bytes do not limit it

    def take(self, count: int) -> Steps:
        """Return the next steps; ValueError where there are not as many."""
        begin = self.place
        (repeated,) = _REPEATED.unpack_from(self._data, begin)
        places, size = _lay_out(count, repeated)
        self.place = begin + size
        whole = (
            places[_COUNTED][1] - places[_COUNTED][0]
            == count * _COLUMNS[_COUNTED].itemsize
        )
        if count < 0 or self.place > len(self._data) or not whole:
            raise ValueError(f"no {count} steps in {len(self._data)} bytes")
        flags = self._data[begin + places[_FLAGS[0]][0] : begin + places[_FLAGS[-1]][1]]
        if flags.strip(b"\0\1"):
            raise ValueError("flags that are neither true nor false")
        steps = _PackedSteps.__new__(_PackedSteps)
        object.__setattr__(steps, "_place", (self._data, begin, count, repeated))
        return steps


def _pack_steps(steps: Steps) -> bytes | memoryview:
    if place := getattr(
        steps, "_place", None
    ):  # what was unpacked stands in its bytes; copies of it have none
        data, begin, count, repeated = place
        return memoryview(data)[begin : begin + _lay_out(count, repeated)[1]]
    columns, repeated, count = [], 0, len(steps)
    for number, (name, kind) in enumerate(_COLUMNS.items()):
        column = np.asarray(getattr(steps, name), kind).tobytes()
        value = column[: kind.itemsize]
        if count > 1 and name != _COUNTED and column == value * count:
            repeated |= 1 << number
            column = value
        columns.append(column)
    segment = b"".join((_REPEATED.pack(repeated), *columns))
    return segment.ljust(_pad(len(segment)), b"\0")


def _pad(size: int) -> int:
    return size + -size % _ALIGNED


# Bytes of the JSON text.
_HEADER = struct.Struct("=Q")

# What JSON keeps as it is. An int may stand where a float is declared, as it may for
# type checkers.
_SCALARS: dict[Any, set[type]] = {
    str: {str},
    int: {int},
    float: {float, int},
    bool: {bool},
    NoneType: {NoneType},
}
# What is kept as a text, and made from it.
_TEXTS: dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: (datetime.isoformat, datetime.fromisoformat),
    **{
        code: (str, code)
        for code in (CheckpointAction, DropReason, EndingCode, StatedField)
    },
    LogError: (str, LogError),
}
# Where all values are one object, it is kept once: most of what a log may hold most
# logs do not hold.
_SAME = "same"
# What the models import for type checkers only.
_NAMES = {"datetime": datetime, "Pairs": Pairs}


def pack(readings: Sequence[FileReading]) -> bytes:
    """Return readings as bytes; TypeError for what no file says."""
    steps: list[Steps] = []
    tree = [len(readings), _to_json(FileReading, readings, steps)]
    text = json.dumps(tree, separators=(",", ":"), check_circular=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return b"".join((_HEADER.pack(len(text)), text, *map(_pack_steps, steps)))


def unpack(data: bytes) -> list[FileReading]:
    """Return what `pack` was given; ValueError for bytes that it did not make."""
    try:
        (size,) = _HEADER.unpack_from(data)
        steps = _StepReader(data, _HEADER.size + size)
        with pause_garbage_collection():
            count, tree = json.loads(data[_HEADER.size : _HEADER.size + size])
            return _from_json(FileReading, tree, count, steps)
    except (
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        struct.error,
        ArithmeticError,
        MemoryError,
    ) as error:
        raise ValueError(f"no packed readings: {error}") from error


@cache
def _list_fields(kind: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a record by their names; a text with a name of
    its own is a text."""
    hints = get_type_hints(kind, localns=_NAMES)
    return {name: getattr(hint, "__supertype__", hint) for name, hint in hints.items()}


@cache
def _list_parts(kind: Any) -> tuple[Any, ...]:
    """Return the types of the members of a union, of what is in a tuple, or of the
    fields of a record."""
    return get_args(kind) or tuple(_list_fields(kind).values())


@cache
def _list_scalars(kind: Any) -> frozenset[type]:
    """Return of which types a value is that JSON keeps; none for a kind of which it
    keeps not every value."""
    members = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    kept = all(member in _SCALARS for member in members)
    return (
        frozenset(chain.from_iterable(_SCALARS[member] for member in members))
        if kept
        else frozenset()
    )


def _is_leaf(kind: Any) -> bool:
    return kind is Steps or kind in _TEXTS or bool(_list_scalars(kind))


def _is_tuple(kind: Any) -> bool:
    return issubclass(get_origin(kind) or kind, tuple)


def _to_json(
    kind: Any, values: Sequence[Any], steps: list[Steps]
) -> Sequence[Any] | Mapping[str, Any]:
    """Return values of one type as JSON knows them; steps are set aside in `steps`, in
    the order of unpacking."""
    if not values:  # which ends the types that hold themselves
        return []
    if len(values) > 1 and all(map(is_, values, repeat(values[0]))):
        return {_SAME: _to_json(kind, values[:1], steps)}
    if _is_leaf(kind):
        return _convert_leaves(kind, values, steps)
    parts = _list_parts(kind)
    if isinstance(kind, UnionType):
        types = [get_origin(part) or part for part in parts]
        numbers = [
            types.index(type(value))
            for value in _check_column(values, len(values), types)
        ]
        members = [
            [value for value in values if type(value) is member] for member in types
        ]
        return [
            numbers,
            *(
                _to_json(part, member, steps)
                for part, member in zip(parts, members, strict=True)
            ),
        ]
    if parts[-1] is ...:
        return [
            list(map(len, values)),
            _to_json(parts[0], list(chain.from_iterable(values)), steps),
        ]
    columns: Iterable[Sequence[Any]] = (
        zip(*values, strict=True)
        if _is_tuple(kind)
        else (list(map(attrgetter(name), values)) for name in _list_fields(kind))
    )
    return [
        _to_json(part, column, steps)
        for part, column in zip(parts, columns, strict=True)
    ]


def _convert_leaves(
    kind: Any, values: Sequence[Any], steps: list[Steps]
) -> Sequence[Any]:
    if kind is Steps:
        steps += values
        return list(map(len, values))
    if kind in _TEXTS:
        return list(map(_TEXTS[kind][0], values))
    return _check_column(values, len(values), _list_scalars(kind))


def _from_json(kind: Any, tree: Any, count: int, steps: _StepReader) -> list[Any]:
    """Return so many values of one type; an error for what `_to_json` does not make of
    as many."""
    if not count:
        return _check_column(tree, 0)
    if count > steps.most_values:
        raise ValueError(f"no {count} values")
    if isinstance(tree, dict):
        return _from_json(kind, tree[_SAME], 1, steps) * count
    if _is_leaf(kind):
        return _make_leaves(kind, tree, count, steps)
    parts = _list_parts(kind)
    if isinstance(kind, UnionType):
        return _join_members(parts, tree, count, steps)
    if parts[-1] is ...:
        lengths = _check_column(tree[0], count, {int})
        items = iter(_from_json(parts[0], tree[1], sum(lengths), steps))
        return [tuple(islice(items, length)) for length in lengths]
    columns = [
        _from_json(part, column, count, steps)
        for part, column in zip(parts, tree, strict=True)
    ]
    if _is_tuple(kind):
        records = list(map(getattr(kind, "_make", tuple), zip(*columns, strict=True)))
    else:
        records = _make_records(kind, columns, count)
    return records


def _make_records(kind: Any, columns: Sequence[list[Any]], count: int) -> list[Any]:
    records = list(map(object.__new__, repeat(kind, count)))
    for name, column in zip(_list_fields(kind), columns, strict=True):
        # a third of the time of calling the type with all of them
        deque(map(getattr(kind, name).__set__, records, column), maxlen=0)
    return records


def _make_leaves(kind: Any, tree: Any, count: int, steps: _StepReader) -> list[Any]:
    if kind is Steps:
        return list(map(steps.take, _check_column(tree, count, {int})))
    if kind in _TEXTS:
        return list(map(_TEXTS[kind][1], _check_column(tree, count, {str})))
    return _check_column(tree, count, _list_scalars(kind))


def _join_members(
    parts: Sequence[Any], tree: Any, count: int, steps: _StepReader
) -> list[Any]:
    """Return values of several types: the tree has for each the number of its type, and
    a column for each type."""
    numbers = _check_column(tree[0], count, {int})
    counts = Counter(numbers)
    if not counts.keys() <= set(range(len(parts))):
        raise ValueError(
            f"found types {sorted(counts)}, expected fewer than {len(parts)}"
        )
    columns = zip(parts, tree[1:], strict=True)
    members = [
        iter(_from_json(part, column, counts[n], steps))
        for n, (part, column) in enumerate(columns)
    ]
    return [next(members[number]) for number in numbers]


def _check_column(values: Any, count: int, kinds: Collection[type] = ()) -> list[Any]:
    """Return the values; TypeError where they are not as many, or not of these types
    alone."""
    if (
        not isinstance(values, list | tuple)
        or len(values) != count
        or not set(map(type, values)) <= set(kinds)
    ):
        raise TypeError(
            f"expected {count} values of {', '.join(kind.__name__ for kind in kinds) or 'no type'}"
        )
    return cast("list[Any]", values)
