"""The steps of many segments as bytes, and back: each column is one array, in which what repeats is kept once.

Most columns of most logs hold one value again and again, or numbers that grow evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytest_llmbench.core.models import Steps

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""By name the columns of all steps."""

StepSpan: TypeAlias = tuple[Columns, int, int]
"""Columns, and the first and the last, not included, of their values that belong to one segment."""

StepLayout: TypeAlias = tuple[list[int], list[int]]
"""How many steps each segment has, and of how many runs each column is, 0 where all its values are kept."""

_TYPES = {"Floats": np.float64, "Integers": np.int64, "Flags": np.bool_}
_COLUMNS = {one.name: np.dtype(_TYPES[str(one.type)]) for one in fields(Steps)}
"""The type of each column."""

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
        values = np.concatenate([getattr(one, name) for one in pieces], dtype=kind)
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
    for one in steps:
        place: StepSpan | None = getattr(one, "_place", None)  # copies have none
        if before and place and place[0] is before[0] and place[1] == before[2]:
            place = before[0], before[1], place[2]
            joined[-1] = _make_lazy(place)
        else:
            joined.append(one)
        before = place
    return joined


def _make_lazy(place: StepSpan) -> LazySteps:
    made = LazySteps.__new__(LazySteps)
    object.__setattr__(made, "_place", place)
    return made
