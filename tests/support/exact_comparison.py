"""Comparable forms of records, exact to the last bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pytest_llmbench.core.log_records import ParsedLog, Steps


def list_columns() -> list[str]:
    """Return the names of the columns of steps."""
    return [column.name for column in dataclasses.fields(Steps)]


def to_bits(value: Any) -> Any:
    """Convert nested records to values that are equal only bit for bit.

    The values contain all types, texts, numbers and columns.
    """
    if isinstance(value, Struct | Steps):
        names = (
            list_columns()
            if isinstance(value, Steps)
            else type(value).__struct_fields__
        )
        fields = [(name, to_bits(getattr(value, name))) for name in names]
        return Steps.__name__ if isinstance(value, Steps) else type(
            value
        ).__name__, fields
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, tuple):
        return tuple(map(to_bits, value))
    return type(value).__name__, value.hex() if isinstance(value, float) else repr(
        value
    )


def to_comparable(log: ParsedLog) -> object:
    """Convert a log to plain values, with its columns as lists of strings."""
    segments = [
        (
            [
                np.asarray(getattr(segment.steps, name)).astype(str).tolist()
                for name in list_columns()
            ],
            structs.replace(segment, steps=None),
        )
        for segment in log.segments
    ]
    return segments, structs.replace(log, segments=())
