"""Many parsed logs as one piece of bytes and back: for other processes and for the cache.

A header, a JSON text, and the columns of all steps side by side, one array for each type. That takes a tenth of the
time of pickling, and nothing in it is ever executed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import MISSING, fields
from datetime import datetime
from operator import itemgetter
from typing import Any

import numpy as np

from pytest_llmbench.errors import LogError
from pytest_llmbench.models import (
    CheckpointRecord,
    Checkpoints,
    Dropped,
    Ending,
    ParsedLog,
    RegexDialect,
    Segment,
    Steps,
    Unread,
)

_HEADER = struct.Struct("=QQ")
"""Bytes of the JSON text, and steps of all segments together."""

_RECORDS: tuple[type[Any], ...] = (
    ParsedLog,
    Segment,
    Ending,
    Dropped,
    CheckpointRecord,
    Checkpoints,
    Unread,
    RegexDialect,
)
_FIELDS = {record: tuple((one.name, one.default) for one in fields(record)) for record in _RECORDS}
_TYPES = {"Floats": np.float64, "Integers": np.int64, "Flags": np.bool_}
_COLUMNS = {kind: tuple(one.name for one in fields(Steps) if one.type == kind) for kind in _TYPES}
_STORED = [name for names in _COLUMNS.values() for name in names]
_AS_FIELDS = itemgetter(*(_STORED.index(one.name) for one in fields(Steps)))
"""From the columns in the order in which they are stored to the order of their fields."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_KIND = ""
_ARGUMENTS = "*"
"""The keys under which the JSON text names the record that a dictionary stands for, and what it is made from where
that is not its fields."""


def pack(value: object) -> bytes:
    """Return nested tuples of parsed logs, endings, LogErrors, definitions, texts and numbers as bytes.

    TypeError for anything else. Fields that have their default are left out.
    """
    packer = _Packer()
    text = json.dumps(packer.plain(value), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    columns = (
        bytes(np.concatenate([getattr(one, name) for one in packer.steps], dtype=_TYPES[kind]))
        for kind, names in _COLUMNS.items()
        for name in names
        if packer.steps
    )
    return b"".join((_HEADER.pack(len(text), packer.count), text, *columns))


def unpack(data: bytes) -> Any:
    """Return what `pack` was given, lists as tuples; the columns are read-only views of `data`.

    KeyError, TypeError, ValueError or struct.error for bytes that `pack` did not make.
    """
    size, count = _HEADER.unpack_from(data)
    if max(size, count) > len(data):
        raise ValueError(f"found {len(data)} bytes, expected {size} of text and the columns of {count} steps")
    blocks = []
    offset = _HEADER.size + size
    for kind, names in _COLUMNS.items():
        block: Any = np.frombuffer(data, _TYPES[kind], len(names) * count, offset).reshape(len(names), count)
        offset += block.nbytes
        blocks.append(block)
    floats, integers, flags = blocks

    def steps(at: int, to: int) -> Steps:
        return Steps(*_AS_FIELDS((*floats[:, at:to], *integers[:, at:to], *flags[:, at:to])))

    makers: dict[str, Callable[..., Any]] = {one.__name__: one for one in _RECORDS}
    makers |= {"Steps": steps, "datetime": datetime.fromisoformat, "LogError": LogError}

    def made(told: dict[str, Any]) -> Any:
        make = makers[told.pop(_KIND)]
        if _ARGUMENTS in told:
            return make(*told[_ARGUMENTS])
        return make(**{name: _tuples(one) if type(one) is list else one for name, one in told.items()})

    found = json.loads(data[_HEADER.size : _HEADER.size + size], object_hook=made)
    return _tuples(found) if type(found) is list else found


def _tuples(values: list[Any]) -> tuple[Any, ...]:
    return tuple([_tuples(one) if type(one) is list else one for one in values])


class _Packer:
    """Values as JSON knows them; the columns of steps are set aside, and stand in JSON as their place there."""

    def __init__(self) -> None:
        self.steps: list[Steps] = []
        self.count = 0

    def plain(self, value: Any) -> Any:
        """Return a value as JSON knows it."""
        kind = type(value)
        if kind in _FIELDS:
            told: dict[str, Any] = {_KIND: kind.__name__}
            for name, default in _FIELDS[kind]:
                one = getattr(value, name)
                if one is not default and (default is MISSING or one != default):
                    told[name] = one if type(one) in _SCALARS else self.plain(one)
            return told
        if kind is tuple or kind is list:
            return [one if type(one) in _SCALARS else self.plain(one) for one in value]
        if kind is Steps:
            self.steps.append(value)
            self.count += len(value)
            return {_KIND: "Steps", _ARGUMENTS: [self.count - len(value), self.count]}
        if isinstance(value, datetime | LogError):
            text = value.isoformat() if isinstance(value, datetime) else str(value)
            return {_KIND: kind.__name__, _ARGUMENTS: [text]}
        return value
