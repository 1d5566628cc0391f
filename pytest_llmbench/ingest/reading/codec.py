"""Many parsed logs as one piece of bytes and back: for other processes and for the cache.

Everything is turned into columns: each field of all records of one type becomes one list, and each column of all steps
one array, so that little is done for each log. A header, the lists as a JSON text, and the arrays; nothing in it is
ever executed.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import accumulate, chain, islice, pairwise, repeat
from operator import is_
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import (
    CheckpointRecord,
    Checkpoints,
    DroppedRecords,
    DropReason,
    Ending,
    EndingCode,
    ParsedLog,
    RegexDialect,
    Segment,
    Statement,
    Steps,
    Unread,
)
from pytest_llmbench.core.runtime import pause_garbage_collection

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""By name the columns of all steps."""

StepSpan: TypeAlias = tuple[Columns, int, int]
"""Columns, and the first and the last, not included, of their values that belong to one segment."""

StepLayout: TypeAlias = tuple[list[int], list[int]]
"""How many steps each segment has, and of how many runs each column is, 0 where all its values are kept."""

_TYPES = {"Floats": np.float64, "Integers": np.int64, "Flags": np.bool_}
# The type of each column.
_COLUMNS = {column.name: np.dtype(_TYPES[str(column.type)]) for column in fields(Steps)}

_LENGTH = np.dtype(np.int64)
_ALIGNED = 8


class LazySteps(Steps):
    """A part of many steps that lie side by side: a column is cut out when it is first looked at.

    Most columns of most logs never are, and cutting them all takes longer than anything else of unpacking.
    """

    __slots__ = ("_place",)
    _place: StepSpan

    def __getattr__(self, name: str) -> NDArray[Any]:
        """Return a column that was not looked at before, and keep it as the field that it is."""
        if name not in _COLUMNS:
            raise AttributeError(f"steps have no {name}", name=name, obj=self)
        columns, first, last = self._place
        column = columns[name][first:last]
        object.__setattr__(self, name, column)
        return column


def pack_steps(steps: Sequence[Steps]) -> tuple[StepLayout, list[bytes]]:
    """Return the layout and the bytes of steps.

    Those of a column with runs are their lengths, and then the value of each. Of integers the differences are kept.
    """
    runs: list[int] = []
    data: list[bytes] = []
    pieces = _join(steps)
    for name, kind in _COLUMNS.items() if steps else ():
        values = np.concatenate([getattr(part, name) for part in pieces], dtype=kind)
        if kind == np.int64:
            values[1:] -= values[:-1]
        bounds = _find_run_bounds(values)
        several = len(bounds) - 1
        if several * (_LENGTH.itemsize + kind.itemsize) < values.nbytes:
            runs.append(several)
            data.append((bounds[1:] - bounds[:-1]).tobytes())
            values = values[bounds[:-1]]
        else:
            runs.append(0)
        data.append(values.tobytes() + bytes(-values.nbytes % _ALIGNED))
    return (list(map(len, steps)), runs), data


def unpack_steps(data: bytes, offset: int, layout: StepLayout) -> list[Steps]:
    """Return the steps whose bytes begin at an offset; ValueError where there are not as many bytes.

    The columns are read-only.
    """
    lengths, runs = layout
    if not lengths:
        return []
    columns = dict(zip(_COLUMNS, _read_columns(data, offset, sum(lengths), runs), strict=True))
    return [_make_lazy((columns, first, last)) for first, last in pairwise(accumulate(lengths, initial=0))]


def _read_columns(data: bytes, offset: int, count: int, runs: Sequence[int]) -> Iterator[NDArray[Any]]:
    """Yield the columns of so many steps."""
    for kind, several in zip(_COLUMNS.values(), runs, strict=True):
        if several:
            lengths = np.frombuffer(data, _LENGTH, several, offset)
            offset += lengths.nbytes
        values: NDArray[Any] = np.frombuffer(data, kind, several or count, offset)
        offset += values.nbytes + -values.nbytes % _ALIGNED
        if several:
            values = values.repeat(lengths)
        if kind == np.int64:
            values = values.cumsum()
        values.flags.writeable = False
        yield values


def _find_run_bounds(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return where another value begins than the one before, and the end of all.

    Values are compared bit for bit: a NaN is equal to itself, 0.0 is not to -0.0.
    """
    bits = values.view(f"u{values.itemsize}")
    changed = np.ones(len(bits) + 1, np.bool_)
    np.not_equal(bits[1:], bits[:-1], out=changed[1:-1])
    return np.flatnonzero(changed)


def _join(steps: Sequence[Steps]) -> list[Steps]:
    """Return steps with those as one that were unpacked side by side."""
    joined: list[Steps] = []
    before: StepSpan | None = None
    for part in steps:
        place: StepSpan | None = getattr(part, "_place", None)  # copies have none
        if before and place and place[0] is before[0] and place[1] == before[2]:
            place = before[0], before[1], place[2]
            joined[-1] = _make_lazy(place)
        else:
            joined.append(part)
        before = place
    return joined


def _make_lazy(place: StepSpan) -> LazySteps:
    steps = LazySteps.__new__(LazySteps)
    object.__setattr__(steps, "_place", place)
    return steps


# Bytes of the JSON text.
_HEADER = struct.Struct("=Q")

_RECORDS = (ParsedLog, Segment, Ending, DroppedRecords, CheckpointRecord, Checkpoints, Statement, Unread, RegexDialect)
# The fields of each type, which get and set the value of one.
_FIELDS: dict[type[Any], tuple[Any, ...]] = {
    record: tuple(getattr(record, column.name) for column in fields(record)) for record in _RECORDS
}
# What is kept as a text.
_TEXTS: dict[type[Any], Callable[[Any], str]] = {
    datetime: datetime.isoformat,
    LogError: str,
    EndingCode: str,
    DropReason: str,
}
_MAKERS: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "LogError": LogError,
    "EndingCode": EndingCode,
    "DropReason": DropReason,
}
_NAMES = {record.__name__: record for record in _RECORDS}

_SCALARS = frozenset({str, int, float, bool, type(None)})

# How often one value stands below another, and a column of this one.
_SAME = "same"
# For each value the number of the column that it is the next one of, and these columns: one for each type.
_MIXED = "mixed"
# Tuples of one length: a column for each place in them.
_ROWS = "rows"
# The lengths of tuples, and a column of what is in them.
_TUPLES = "tuples"
# The place of the first among the steps of all segments, and that behind the last.
_STEPS = "steps"


def pack(value: object) -> bytes:
    """Return nested tuples of parsed logs, endings, LogErrors, definitions, texts and numbers as bytes.

    TypeError for anything else.
    """
    steps: list[Steps] = []
    tree = _to_json([value], steps)
    layout, arrays = pack_steps(steps)
    text = json.dumps([tree, layout], separators=(",", ":"), check_circular=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((_HEADER.pack(len(text)), text, *arrays))


def unpack(data: bytes) -> Any:
    """Return what `pack` was given, lists as tuples; the columns of steps are read-only.

    LookupError, TypeError, ValueError or struct.error for bytes that `pack` did not make.
    """
    (size,) = _HEADER.unpack_from(data)
    with pause_garbage_collection():
        tree, layout = json.loads(data[_HEADER.size : _HEADER.size + size])
        (value,) = _from_json(tree, unpack_steps(data, _HEADER.size + size, layout))
    return value


def _to_json(values: Sequence[Any], steps: list[Steps]) -> Any:
    """Return values as JSON knows them: a list of scalars, or under the name of its kind what is below it.

    Steps are set aside, added to `steps`.
    """
    if len(values) > 1 and all(map(is_, values, repeat(values[0]))):
        return {_SAME: [len(values), _to_json(values[:1], steps)]}
    kinds = set(map(type, values))
    if kinds <= _SCALARS:
        return values
    if len(kinds) > 1:
        return {_MIXED: _kinds_to_json(values, steps)}
    return _kind_to_json(kinds.pop(), values, steps)


def _kind_to_json(kind: type[Any], values: Sequence[Any], steps: list[Steps]) -> dict[str, Any]:
    """Return values of one type, which is no scalar, as JSON knows them."""
    if kind in _FIELDS:
        return _records_to_json(kind, values, steps)
    if kind in _TEXTS:
        return {kind.__name__: list(map(_TEXTS[kind], values))}
    if issubclass(kind, Steps):
        steps += values
        return {_STEPS: [len(steps) - len(values), len(steps)]}
    if issubclass(kind, tuple | list):
        return _tuples_to_json(values, steps)
    raise TypeError(f"found {kind.__name__}, expected tuples of parsed logs, texts and numbers")


def _records_to_json(kind: type[Any], values: Sequence[Any], steps: list[Steps]) -> dict[str, Any]:
    columns = [_to_json(list(map(field.__get__, values)), steps) for field in _FIELDS[kind]]
    if len(values) > 1 and all(type(column) is dict and _SAME in column for column in columns):
        return {_SAME: [len(values), {kind.__name__: [column[_SAME][1] for column in columns]}]}
    return {kind.__name__: columns}


def _kinds_to_json(values: Sequence[Any], steps: list[Steps]) -> list[Any]:
    """Return what stands for values of several types; scalars are one of them."""
    columns: dict[Any, list[Any]] = {}
    kinds = [None if type(value) in _SCALARS else type(value) for value in values]
    for kind, value in zip(kinds, values, strict=True):
        columns.setdefault(kind, []).append(value)
    numbers = {kind: number for number, kind in enumerate(columns)}
    return [[numbers[kind] for kind in kinds], [_to_json(value, steps) for value in columns.values()]]


def _tuples_to_json(values: Sequence[Sequence[Any]], steps: list[Steps]) -> dict[str, Any]:
    lengths = list(map(len, values))
    if 0 < lengths[0] <= len(values) and lengths.count(lengths[0]) == len(values):
        return {_ROWS: [_to_json(column, steps) for column in zip(*values, strict=True)]}
    return {_TUPLES: [lengths, _to_json(list(chain.from_iterable(values)), steps)]}


def _from_json(tree: Any, steps: Sequence[Steps]) -> list[Any]:
    """Return the values that `_column` was given; `steps` are all that it set aside."""
    if isinstance(tree, list):
        return tree
    ((kind, what),) = dict(tree).items()
    if kind == _SAME:
        return _from_json(what[1], steps) * int(what[0])
    if kind == _STEPS:
        return list(steps[what[0] : what[1]])
    if kind == _MIXED:
        parts = [deque(_from_json(column, steps)) for column in what[1]]
        return [parts[number].popleft() for number in what[0]]
    if kind == _TUPLES:
        items = iter(_from_json(what[1], steps))
        return [tuple(islice(items, length)) for length in what[0]]
    return _make_values(kind, what, steps)


def _make_values(kind: str, what: list[Any], steps: Sequence[Steps]) -> list[Any]:
    """Return records or tuples that are made from columns, or what is made from texts."""
    if kind in _MAKERS:
        return list(map(_MAKERS[kind], what))
    columns = [_from_json(part, steps) for part in what]
    if kind == _ROWS:
        return list(zip(*columns, strict=True))
    record = _NAMES[kind]
    records = list(map(object.__new__, repeat(record, len(columns[0]))))
    for field, column in zip(_FIELDS[record], columns, strict=True):
        if len(column) != len(records):
            raise ValueError(f"found {len(column)} values of a {kind}, expected {len(records)}")
        for _ in map(field.__set__, records, column):  # a third of the time of calling the type with all of them
            pass
    return records
