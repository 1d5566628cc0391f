"""Comparable forms of records, exact to the last bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pytest_llmbench.core.log_records import ParsedLog, Steps


def to_bits(value: Any) -> Any:
    """Convert nested records to values that are equal only bit for bit.

    The values contain all types, texts, numbers and columns.
    """
    if dataclasses.is_dataclass(value):
        fields = [
            (field.name, to_bits(getattr(value, field.name)))
            for field in dataclasses.fields(value)
        ]
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
                np.asarray(getattr(segment.steps, column.name)).astype(str).tolist()
                for column in dataclasses.fields(segment.steps)
            ],
            dataclasses.replace(segment, steps=None),  # type: ignore[arg-type]
        )
        for segment in log.segments
    ]
    return segments, dataclasses.replace(log, segments=())
