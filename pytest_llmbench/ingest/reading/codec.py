"""Many parsed logs as one piece of bytes and back: for other processes and for the cache.

Everything is turned into columns: each field of all records of one type becomes one list, and each column of all steps
one array, so that little is done for each log. A header, the lists as a JSON text, and the arrays; nothing in it is
ever executed.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import chain, islice, repeat
from operator import is_
from typing import Any

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.garbage_collection import pause_garbage_collection
from pytest_llmbench.core.models import (
    CheckpointRecord,
    Checkpoints,
    DroppedRecords,
    Ending,
    EndingCode,
    ParsedLog,
    RegexDialect,
    Segment,
    Statement,
    Steps,
    Unread,
)
from pytest_llmbench.ingest.reading.step_codec import pack_steps, unpack_steps

_HEADER = struct.Struct("=Q")
"""Bytes of the JSON text."""

_RECORDS = (ParsedLog, Segment, Ending, DroppedRecords, CheckpointRecord, Checkpoints, Statement, Unread, RegexDialect)
_FIELDS: dict[type[Any], tuple[Any, ...]] = {
    record: tuple(getattr(record, one.name) for one in fields(record)) for record in _RECORDS
}
"""The fields of each type, which get and set the value of one."""
_TEXTS: dict[type[Any], Callable[[Any], str]] = {datetime: datetime.isoformat, LogError: str, EndingCode: str}
"""What is kept as a text."""
_MAKERS: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "LogError": LogError,
    "EndingCode": EndingCode,
}
_NAMES = {one.__name__: one for one in _RECORDS}

_SCALARS = frozenset({str, int, float, bool, type(None)})

_SAME = "same"
"""How often one value stands below another, and a column of this one."""
_MIXED = "mixed"
"""For each value the number of the column that it is the next one of, and these columns: one for each type."""
_ROWS = "rows"
"""Tuples of one length: a column for each place in them."""
_TUPLES = "tuples"
"""The lengths of tuples, and a column of what is in them."""
_STEPS = "steps"
"""The place of the first among the steps of all segments, and that behind the last."""


def pack(value: object) -> bytes:
    """Return nested tuples of parsed logs, endings, LogErrors, definitions, texts and numbers as bytes.

    TypeError for anything else.
    """
    steps: list[Steps] = []
    told = _to_json([value], steps)
    layout, arrays = pack_steps(steps)
    text = json.dumps([told, layout], separators=(",", ":"), check_circular=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((_HEADER.pack(len(text)), text, *arrays))


def unpack(data: bytes) -> Any:
    """Return what `pack` was given, lists as tuples; the columns of steps are read-only.

    LookupError, TypeError, ValueError or struct.error for bytes that `pack` did not make.
    """
    (size,) = _HEADER.unpack_from(data)
    with pause_garbage_collection():
        told, layout = json.loads(data[_HEADER.size : _HEADER.size + size])
        (value,) = _from_json(told, unpack_steps(data, _HEADER.size + size, layout))
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
        return {_MIXED: _mixed_to_json(values, steps)}
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
    if len(values) > 1 and all(type(one) is dict and _SAME in one for one in columns):
        return {_SAME: [len(values), {kind.__name__: [one[_SAME][1] for one in columns]}]}
    return {kind.__name__: columns}


def _mixed_to_json(values: Sequence[Any], steps: list[Steps]) -> list[Any]:
    """Return what stands for values of several types; scalars are one of them."""
    columns: dict[Any, list[Any]] = {}
    kinds = [None if type(one) in _SCALARS else type(one) for one in values]
    for kind, one in zip(kinds, values, strict=True):
        columns.setdefault(kind, []).append(one)
    numbers = {kind: number for number, kind in enumerate(columns)}
    return [[numbers[kind] for kind in kinds], [_to_json(one, steps) for one in columns.values()]]


def _tuples_to_json(values: Sequence[Sequence[Any]], steps: list[Steps]) -> dict[str, Any]:
    lengths = list(map(len, values))
    if 0 < lengths[0] <= len(values) and lengths.count(lengths[0]) == len(values):
        return {_ROWS: [_to_json(one, steps) for one in zip(*values, strict=True)]}
    return {_TUPLES: [lengths, _to_json(list(chain.from_iterable(values)), steps)]}


def _from_json(told: Any, steps: Sequence[Steps]) -> list[Any]:
    """Return the values that `_column` was given; `steps` are all that it set aside."""
    if isinstance(told, list):
        return told
    ((kind, what),) = dict(told).items()
    if kind == _SAME:
        return _from_json(what[1], steps) * int(what[0])
    if kind == _STEPS:
        return list(steps[what[0] : what[1]])
    if kind == _MIXED:
        parts = [deque(_from_json(one, steps)) for one in what[1]]
        return [parts[number].popleft() for number in what[0]]
    if kind == _TUPLES:
        items = iter(_from_json(what[1], steps))
        return [tuple(islice(items, length)) for length in what[0]]
    return _make_values(kind, what, steps)


def _make_values(kind: str, what: list[Any], steps: Sequence[Steps]) -> list[Any]:
    """Return records or tuples that are made from columns, or what is made from texts."""
    if kind in _MAKERS:
        return list(map(_MAKERS[kind], what))
    columns = [_from_json(one, steps) for one in what]
    if kind == _ROWS:
        return list(zip(*columns, strict=True))
    record = _NAMES[kind]
    made = list(map(object.__new__, repeat(record, len(columns[0]))))
    for field, column in zip(_FIELDS[record], columns, strict=True):
        if len(column) != len(made):
            raise ValueError(f"found {len(column)} values of a {kind}, expected {len(made)}")
        for _ in map(field.__set__, made, column):  # a third of the time of calling the type with all of them
            pass
    return made
