"""Serialise file readings to bytes and back, for worker processes and the cache.

The types of the records define the encoding, so the bytes contain no type names and no
code. The layout is a header, a JSON text with one list for each field of all records of
a type, and the columns of each segment's steps.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
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
from msgspec.structs import replace
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
    Segment,
    StatedField,
    Statement,
    Steps,
)
from pytest_llmbench.core.run_records import share_facts
from pytest_llmbench.core.runtime import pause_garbage_collection
from pytest_llmbench.logs.sources.files import FileState

ReadResult: TypeAlias = ParsedLog | Ending | LogError | None
"""Result of reading a file: a log, the ending on a standard error (None without an
ending), or the error that prevented reading."""


class FileToRead(NamedTuple):
    """A file to read."""

    path: str
    is_log: bool  # False for a standard error: only its ending is read


class FileReading(NamedTuple):
    """The result of reading one file, with the state of the file."""

    file: FileToRead
    result: ReadResult
    state: FileState | None  # state of the parsed bytes; None if it must not be cached


_NUMPY_TYPES = {"Floats": np.float64, "Integers": np.int64, "Flags": np.bool_}
# Flags come last, so every other column is aligned to its item size if the first column
# is.
_DECLARED_COLUMNS = {
    column.name: np.dtype(_NUMPY_TYPES[str(column.type)]) for column in fields(Steps)
}
_COLUMNS = {
    name: _DECLARED_COLUMNS[name]
    for name in sorted(
        _DECLARED_COLUMNS, key=lambda name: -_DECLARED_COLUMNS[name].itemsize
    )
}
_NUMBERS = {name: number for number, name in enumerate(_COLUMNS)}
_FLAGS = [name for name, kind in _COLUMNS.items() if kind == np.bool_]
_ALIGNED = 8  # bytes
# A segment begins with the bytes of one value of each column, 0 for a column that is
# stored as one value because it is the same for all steps. Two thirds of the columns of
# most logs are, so the results of 100,000 logs fit into memory.
_REPEATED = 0
# This column is never stored as one value. Its length in the bytes thus proves the
# number of steps, and limits the size of every other column.
_COUNTED = "index"
_COUNTED_NUMBER = _NUMBERS[_COUNTED]
# Logs print few digits. Columns of floats that differ from run to run are stored as
# integers of 2 or 4 bytes, in thousandths or millionths, if that is exact.
_SCALES = {2: 1e3, 4: 1e6}
# Fewer integers could take as many bytes as one repeated float.
_FEWEST_INTEGERS = 5


@lru_cache(1024)
def _compute_layout(
    count: int, widths: bytes
) -> tuple[Mapping[str, tuple[int, int]], int]:
    """Return the (begin, end) offsets of each column, and the size of the segment.

    `count` is the number of steps, `widths` are the bytes of one value of each column.
    Raises ValueError for an impossible width.
    """
    offsets = {}
    end = len(_COLUMNS)
    for width, (name, kind) in zip(widths, _COLUMNS.items(), strict=True):
        has_integers = width in _SCALES and _may_have_integers(name, count)
        if width not in (_REPEATED, kind.itemsize) and not has_integers:
            raise ValueError(f"{width} bytes for a value of {name}")
        size = width * count if width else min(count, 1) * kind.itemsize
        begin, end = end, end + size
        offsets[name] = begin, end
    return offsets, _pad(end)


# Longer columns are not shared: they would fill the memory, and few segments have the
# same length.
_LONGEST_SHARED = 1000
# Columns of floats that differ from run to run. Most runs of a configuration have the
# same other columns.
_DIFFERENT = {
    "seconds",
    "loss",
    "grad_norm",
    "tflops_per_gpu",
    "tokens_per_second_per_gpu",
    "samples_per_second",
    "stamp",
    "since",
    "throughput",
}
_OWN_WIDTH = 8  # bytes of a float


def _may_have_integers(name: str, count: int) -> bool:
    """True if a column may be stored as integers."""
    return name in _DIFFERENT and _FEWEST_INTEGERS <= count <= _LONGEST_SHARED


@lru_cache(8192)
def _share(column: bytes) -> bytes:
    """Return bytes that equal columns of several segments share."""
    return column


class _OwnColumn(NamedTuple):
    """The position of a column in the bytes of `_PackedSteps`."""

    begin: int
    width: int  # bytes of one value


class _PackedSteps(Steps):
    """Steps of one segment that decode a column on access.

    Decoding all columns at once takes longer than all other unpacking, and most are
    never used.
    """

    __slots__ = ("_columns", "_own")
    # For each column, in the order of _COLUMNS: its bytes (of one value if the column
    # repeats it), or its position in `_own`.
    _columns: tuple[bytes | _OwnColumn, ...]
    # the columns that differ from run to run, one after the other
    _own: bytes

    def __len__(self) -> int:
        return _count_steps(cast("bytes", self._columns[_COUNTED_NUMBER]))

    def __getattr__(self, name: str) -> NDArray[Any]:
        """Decode the read-only column `name`."""
        number = _NUMBERS.get(name)
        if number is None:
            raise AttributeError(f"steps have no {name}", name=name, obj=self)
        columns = self._columns
        column, counted = columns[number], columns[_COUNTED_NUMBER]
        if type(column) is bytes:
            return _decode_column(column, name, cast("bytes", counted))
        return _decode_own(
            self._own, cast("_OwnColumn", column), cast("bytes", counted)
        )

    def list_columns(self) -> list[bytes]:
        """Return the bytes of each column: of one value if the column repeats it."""
        count = len(self)
        return [
            column
            if isinstance(column, bytes)
            else self._own[column.begin : column.begin + column.width * count]
            for column in self._columns
        ]


def _count_steps(counted: bytes) -> int:
    """Return the number of steps, given the column of their numbers."""
    return len(counted) // _COLUMNS[_COUNTED].itemsize


@lru_cache(256)
def _decode_own(own: bytes, column: _OwnColumn, counted: bytes) -> NDArray[Any]:
    """Decode a column of `own`; `counted` is the column of step numbers."""
    (begin, width), count = column, _count_steps(counted)
    if width == _OWN_WIDTH:
        return np.frombuffer(own, np.float64, count, begin)
    values = np.frombuffer(own, f"i{width}", count, begin) / _SCALES[width]
    values.flags.writeable = False
    return values


class _LongSteps(LazySteps):
    """Steps of a long segment, whose decoded columns end with them.

    The caches of `_PackedSteps` would keep the columns of logs that are forgotten.
    """

    __slots__ = ("_packed",)
    _packed: Mapping[str, bytes]  # the bytes of each column, as in `_PackedSteps`

    def __len__(self) -> int:
        return _count_steps(self._packed[_COUNTED])

    def _make_column(self, name: str) -> NDArray[Any]:
        return _decode_values(self._packed[name], name, len(self))


@lru_cache(1024)
def _decode_column(column: bytes, name: str, counted: bytes) -> NDArray[Any]:
    """Decode the bytes of column `name`; `counted` is the column of step numbers."""
    return _decode_values(column, name, _count_steps(counted))


def _decode_values(column: bytes, name: str, count: int) -> NDArray[Any]:
    """Decode the bytes of column `name`, which may repeat one value."""
    kind = _COLUMNS[name]
    if not count:
        return np.empty(0, kind)
    is_repeated = len(column) != count * kind.itemsize
    return np.frombuffer(column * count if is_repeated else column, kind)


def _encode_column(values: NDArray[Any], name: str, count: int) -> bytes:
    """Return the bytes of column `name`: of one value if it repeats that."""
    kind = _COLUMNS[name]
    column = np.asarray(values, kind).tobytes()
    value = column[: kind.itemsize]
    if count > 1 and name != _COUNTED and column == value * count:
        return value
    return (
        _encode_decimals(values, column) if _may_have_integers(name, count) else column
    )


def _encode_decimals(values: NDArray[Any], column: bytes) -> bytes:
    """Return the bytes of integers from which the values are computed exactly.

    Returns `column`, the bytes of the values, if there are no such integers.
    """
    largest = float(np.abs(values).max())
    for width, scale in _SCALES.items():
        if largest * scale < (1 << (8 * width - 1)) - 0.5:  # False for NaN
            integers = np.rint(values * scale).astype(f"i{width}")
            if (integers / scale).tobytes() == column:
                return integers.tobytes()
    return column


def _make_packed_steps(packed: Sequence[bytes], count: int) -> Steps:
    """Make steps of the bytes of each column, in the order of _COLUMNS."""
    by_name = dict(zip(_COLUMNS, packed, strict=True))
    if count > _LONGEST_SHARED:
        long_steps = _LongSteps.__new__(_LongSteps)
        # The classes are frozen, and their `__init__` would need all columns.
        object.__setattr__(long_steps, "_packed", by_name)
        return long_steps
    own_names = [
        name
        for name in by_name
        if name in _DIFFERENT and len(by_name[name]) > _OWN_WIDTH
    ]
    # the widest values first, so that all are aligned
    own_names.sort(key=lambda name: -len(by_name[name]))
    positions: dict[str, _OwnColumn] = {}
    end = 0
    for name in own_names:
        size = len(by_name[name])
        positions[name] = _OwnColumn(end, size // count)
        end += size
    columns = tuple(
        [positions.get(name) or _share(column) for name, column in by_name.items()]
    )
    steps = _PackedSteps.__new__(_PackedSteps)
    object.__setattr__(steps, "_columns", share_facts(columns))
    object.__setattr__(steps, "_own", b"".join([by_name[name] for name in own_names]))
    return steps


class _StepReader:
    """Decoder of consecutive segments' steps."""

    def __init__(self, data: bytes, begin: int) -> None:
        self._data = data
        self.offset = begin
        # Limit for one column, because a repeated value takes no space in the data.
        self.most_values = max(len(data), 1 << 20)

    def read_steps(self, count: int) -> Steps:
        """Decode the next `count` steps. Raises ValueError if the data contain fewer."""
        begin = self.offset
        widths = self._data[begin : begin + len(_COLUMNS)]
        offsets, size = _compute_layout(count, widths)
        self.offset = begin + size
        # The column of step numbers proves the number of steps.
        counted_begin, counted_end = offsets[_COUNTED]
        is_whole = counted_end - counted_begin == count * _COLUMNS[_COUNTED].itemsize
        if count < 0 or self.offset > len(self._data) or not is_whole:
            raise ValueError(f"no {count} steps in {len(self._data)} bytes")
        flags_begin, _ = offsets[_FLAGS[0]]
        _, flags_end = offsets[_FLAGS[-1]]
        flags = self._data[begin + flags_begin : begin + flags_end]
        if flags.strip(b"\0\1"):
            raise ValueError("flags that are neither true nor false")
        packed = [
            self._data[begin + first : begin + end] for first, end in offsets.values()
        ]
        return _make_packed_steps(packed, count)


def compress_log(log: ParsedLog) -> ParsedLog:
    """Return a log whose short segments take as little memory as unpacked ones."""
    return replace(
        log,
        segments=tuple(map(_compress_segment, log.segments)),
        environment=share_facts(log.environment),
        readings=tuple(map(compress_log, log.readings)),
    )


def _compress_segment(segment: Segment) -> Segment:
    if len(segment.steps) > _LONGEST_SHARED:
        return segment
    return replace(
        segment,
        steps=_compress_steps(segment.steps),
        stated=share_facts(segment.stated),
    )


def _compress_steps(steps: Steps) -> Steps:
    """Return steps as the bytes of their columns; packed steps are unchanged."""
    if isinstance(steps, _PackedSteps):
        return steps
    return _make_packed_steps(_encode_columns(steps), len(steps))


def _encode_columns(steps: Steps) -> list[bytes]:
    """Return the bytes of each column, in the order of _COLUMNS."""
    if isinstance(steps, _PackedSteps):
        return steps.list_columns()
    count = len(steps)
    return [_encode_column(getattr(steps, name), name, count) for name in _COLUMNS]


def _pack_steps(steps: Steps) -> bytes:
    """Encode the steps of one segment."""
    columns, count = _encode_columns(steps), len(steps)
    widths = bytes(
        [
            len(column) // count if count and len(column) > kind.itemsize else 0
            for column, kind in zip(columns, _COLUMNS.values(), strict=True)
        ]
    )
    segment = b"".join((widths, *columns))
    return segment.ljust(_pad(len(segment)), b"\0")


def _pad(size: int) -> int:
    """Round a size up to a multiple of _ALIGNED."""
    return size + -size % _ALIGNED


# The size of the JSON text, in bytes.
_HEADER = struct.Struct("=Q")

# The types that JSON stores unchanged. An int is accepted for a declared float, as type
# checkers do.
_SCALARS: dict[Any, set[type]] = {
    str: {str},
    int: {int},
    float: {float, int},
    bool: {bool},
    NoneType: {NoneType},
}
# The types that are stored as a string: functions to encode and to decode them.
_TEXTS: dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: (datetime.isoformat, datetime.fromisoformat),
    **{
        code: (str, code)
        for code in (CheckpointAction, DropReason, EndingCode, StatedField)
    },
    LogError: (str, LogError),
}
# The types of facts that logs share. They contain texts and integers only, so that equal
# facts are the same.
_SHARED_FACTS = {tuple[Statement, ...], Pairs}
# A value that is the same object in all records is stored once, under this key. In most
# logs most optional values are the same.
_SAME = "same"
# Names that the record modules import for type checkers only.
_NAMES = {"datetime": datetime, "Pairs": Pairs}


def pack(readings: Sequence[FileReading]) -> bytes:
    """Serialise readings. Raises TypeError for a value of an undeclared type."""
    steps: list[Steps] = []
    tree = [len(readings), _to_json(FileReading, readings, steps)]
    text = json.dumps(tree, separators=(",", ":"), check_circular=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return b"".join((_HEADER.pack(len(text)), text, *map(_pack_steps, steps)))


def unpack(data: bytes) -> list[FileReading]:
    """Restore readings from bytes. Raises ValueError if `pack` did not write them."""
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
    """Map the field names of a record type to their types.

    A NewType of str counts as str.
    """
    hints = get_type_hints(kind, localns=_NAMES)
    return {name: getattr(hint, "__supertype__", hint) for name, hint in hints.items()}


@cache
def _list_component_types(kind: Any) -> tuple[Any, ...]:
    """Return the component types of a union, a tuple or a record."""
    return get_args(kind) or tuple(_list_fields(kind).values())


@cache
def _list_scalars(kind: Any) -> frozenset[type]:
    """Return the JSON types of a scalar kind.

    Empty if JSON cannot store each of its values.
    """
    members = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if not all(member in _SCALARS for member in members):
        return frozenset()
    return frozenset(chain.from_iterable(_SCALARS[member] for member in members))


def _is_leaf(kind: Any) -> bool:
    """True if values of a type are encoded without their components."""
    return kind is Steps or kind in _TEXTS or bool(_list_scalars(kind))


def _is_tuple(kind: Any) -> bool:
    """True for a tuple type or a NamedTuple, False for a struct."""
    return issubclass(get_origin(kind) or kind, tuple)


def _to_json(
    kind: Any, values: Sequence[Any], steps: list[Steps]
) -> Sequence[Any] | Mapping[str, Any]:
    """Encode values of one type as a JSON tree.

    Appends steps to `steps`, in the order in which they are unpacked.
    """
    if not values:  # ends the recursion of types that contain themselves
        return []
    if len(values) > 1 and all(map(is_, values, repeat(values[0]))):
        return {_SAME: _to_json(kind, values[:1], steps)}
    if _is_leaf(kind):
        return _encode_leaves(kind, values, steps)
    components = _list_component_types(kind)
    # a union: the index of each value's type, then the values of each type
    if isinstance(kind, UnionType):
        types = [get_origin(component) or component for component in components]
        _check_column(values, len(values), types)
        type_indices = [types.index(type(value)) for value in values]
        values_by_type = [
            [value for value in values if type(value) is member] for member in types
        ]
        trees = [
            _to_json(component, members, steps)
            for component, members in zip(components, values_by_type, strict=True)
        ]
        return [type_indices, *trees]
    if components[-1] is ...:  # tuple[item, ...]
        lengths = list(map(len, values))
        items = list(chain.from_iterable(values))
        return [lengths, _to_json(components[0], items, steps)]
    # a record, or a tuple of fixed length: one column for each component
    columns: Iterable[Sequence[Any]]
    if _is_tuple(kind):
        columns = zip(*values, strict=True)
    else:
        columns = (list(map(attrgetter(name), values)) for name in _list_fields(kind))
    return [
        _to_json(component, column, steps)
        for component, column in zip(components, columns, strict=True)
    ]


def _encode_leaves(
    kind: Any, values: Sequence[Any], steps: list[Steps]
) -> Sequence[Any]:
    """Encode values of a leaf type.

    Of steps only their number is encoded here; they are appended to `steps`.
    """
    if kind is Steps:
        steps += values
        return list(map(len, values))
    if kind in _TEXTS:
        encode, _ = _TEXTS[kind]
        return list(map(encode, values))
    return _check_column(values, len(values), _list_scalars(kind))


def _from_json(kind: Any, tree: Any, count: int, steps: _StepReader) -> list[Any]:
    """Decode `count` values of one type from a JSON tree.

    Raises an error if `_to_json` would not produce the tree for `count` values.
    """
    if not count:
        return _check_column(tree, 0)
    if count > steps.most_values:
        raise ValueError(f"no {count} values")
    if isinstance(tree, dict):
        return _from_json(kind, tree[_SAME], 1, steps) * count
    if _is_leaf(kind):
        return _decode_leaves(kind, tree, count, steps)
    components = _list_component_types(kind)
    if isinstance(kind, UnionType):
        return _decode_union(components, tree, count, steps)
    if components[-1] is ...:  # tuple[item, ...]
        lengths = _check_column(tree[0], count, {int})
        items = iter(_from_json(components[0], tree[1], sum(lengths), steps))
        tuples = [tuple(islice(items, length)) for length in lengths]
        return list(map(share_facts, tuples)) if kind in _SHARED_FACTS else tuples
    columns = [
        _from_json(component, column, count, steps)
        for component, column in zip(components, tree, strict=True)
    ]
    if _is_tuple(kind):
        records = list(map(getattr(kind, "_make", tuple), zip(*columns, strict=True)))
    else:
        records = list(map(kind, *columns))
    return records


def _decode_leaves(kind: Any, tree: Any, count: int, steps: _StepReader) -> list[Any]:
    """Decode `count` values of a leaf type, the reverse of `_encode_leaves`."""
    if kind is Steps:
        return list(map(steps.read_steps, _check_column(tree, count, {int})))
    if kind in _TEXTS:
        _, decode = _TEXTS[kind]
        return list(map(decode, _check_column(tree, count, {str})))
    return _check_column(tree, count, _list_scalars(kind))


def _decode_union(
    components: Sequence[Any], tree: Any, count: int, steps: _StepReader
) -> list[Any]:
    """Decode `count` values of a union of `components`.

    The tree contains the index of each value's type, and a column for each type.
    """
    type_indices = _check_column(tree[0], count, {int})
    counts = Counter(type_indices)
    if not counts.keys() <= set(range(len(components))):
        raise ValueError(
            f"found types {sorted(counts)}, expected fewer than {len(components)}"
        )
    columns = zip(components, tree[1:], strict=True)
    members = [
        iter(_from_json(component, column, counts[index], steps))
        for index, (component, column) in enumerate(columns)
    ]
    return [next(members[index]) for index in type_indices]


def _check_column(values: Any, count: int, kinds: Collection[type] = ()) -> list[Any]:
    """Return `values`. Raises TypeError if their number or their types are wrong."""
    if (
        not isinstance(values, list | tuple)
        or len(values) != count
        or not set(map(type, values)) <= set(kinds)
    ):
        names = ", ".join(kind.__name__ for kind in kinds) or "no type"
        raise TypeError(f"expected {count} values of {names}")
    return cast("list[Any]", values)
