"""Logs as they should be, read by columns: every record whole, of one layout, of one process and in order.

Most logs are so, and are read ten times as fast as record by record. Whatever is otherwise in one of them makes the
dialect read it record by record, with the same result.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from operator import ge
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from pytest_llmbench.models import Steps
from pytest_llmbench.parse.ranks import rank_of
from pytest_llmbench.parse.scan import REACH, REACH_BACK, Hit

if TYPE_CHECKING:
    from pytest_llmbench.models import Flags, Floats, Integers

Values = Sequence[float]
Column = TypeVar("Column", bound="np.ndarray[Any, Any]")


class Columns(NamedTuple):
    """What the records of a log say, in their order; None what none of them prints. Fields as in `StepRecord`, of
    `asynchronous` the first place and the one behind the last. `kept`: of which records these are the steps, None where
    they are of all; `repeated`: the others that repeat a step, in words. The last record is a step."""

    step: Sequence[int]
    seconds: Values
    resolution: Values
    total: int | None = None
    loss: Values | None = None
    grad_norm: Values | None = None
    tflops: Values | None = None
    tokens: Values | None = None
    batch: Values | None = None
    memory: Values | None = None
    asynchronous: tuple[int, int] = (0, 0)
    kept: Sequence[int] | None = None
    repeated: Sequence[tuple[int, str]] = ()


class Part(NamedTuple):
    """One attempt: where its first and its last record stand (bytes, line), and the lines that
    repeat a step, in words."""

    steps: Steps
    rank: str
    total: int | None
    begin: tuple[int, int]
    end: tuple[int, int]
    repeated: tuple[tuple[int, str], ...]


Parts = tuple[Part, ...]

Reader = Callable[[bytes, Sequence[int], Sequence[int]], Columns | None]
"""Reads the records at these places of a text, each on a line of its own that ends there; None where one is not as the
others."""


def read(
    reader: Reader, text: bytes, places: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> Parts | None:
    """Return what the records at these places of a whole log say; None where they have to be read one by one.

    Every start between them begins another part. New steps behind an end are of another part, too, and are not read.
    """
    if b"\r" in text:
        return None
    feeds = (np.frombuffer(text, np.uint8) == ord("\n")).nonzero()[0]
    bounds = sorted({0, len(places), *(bisect_left(places, start) for start in starts)})
    parts = [_part(reader, text, places[begin:end], feeds, ends) for begin, end in pairwise(bounds)]
    sure = tuple(part for part in parts if part is not None)
    return sure if len(sure) == len(parts) and len({part.rank for part in sure}) == 1 else None


def _part(reader: Reader, text: bytes, places: Sequence[int], feeds: Integers, ends: Sequence[int]) -> Part | None:
    at = np.array(places)
    before = feeds.searchsorted(at)
    if before[-1] == len(feeds) or (before[1:] == before[:-1]).any():
        return None  # the last line has no end, or two records share one
    stops = feeds[before]
    if (stops - at).max() >= REACH:
        return None
    begins = np.where(before > 0, feeds[before - 1] + 1, 0)
    rank = _rank(text, places, begins.tolist()) if (begins != at).any() else ""
    columns = reader(text, places, stops.tolist()) if rank is not None else None
    if rank is None or columns is None or any(map(ge, columns.step, columns.step[1:])):
        return None
    lines = before + 1
    kept = columns.kept if columns.kept is not None else range(len(places))
    first, new, last = kept[0], kept[-1], len(places) - 1
    if any(places[first] < end < places[new] for end in ends):
        return None
    repeated = tuple((int(lines[row]), text) for row, text in columns.repeated)
    steps = _steps(columns, lines if columns.kept is None else lines[columns.kept])
    return Part(
        steps, rank, columns.total, (places[first], int(lines[first])), (places[last], int(lines[last])), repeated
    )


def numbers(printed: Sequence[bytes]) -> Values:
    """Return the values of a column; many print the same one in every record."""
    if printed.count(printed[0]) == len(printed):
        return [float(printed[0])] * len(printed)
    return list(map(float, printed))


def rows(
    layout: re.Pattern[bytes], text: bytes, places: Sequence[int], stops: Sequence[int]
) -> list[tuple[bytes, ...]] | None:
    """Return the groups of a layout at each place; None where one of them is of another layout.

    A layout begins with what stands at the places, and nowhere else.
    """
    found: list[tuple[bytes, ...]] = layout.findall(text, places[0], stops[-1] + 1)
    return found if len(found) == len(places) else None


def _rank(text: bytes, places: Sequence[int], begins: Sequence[int]) -> str | None:
    """Return the rank that stands before all records, None where that is not the same before each."""
    prefixes = {text[begin:place] for begin, place in zip(begins, places, strict=True)}
    if len(prefixes) != 1 or places[0] - begins[0] >= REACH_BACK:
        return None
    return rank_of(Hit(b"", text, places[0], len(text), places[0], 0))


def _steps(columns: Columns, lines: Integers) -> Steps:
    count = len(columns.step)
    return Steps(
        index=np.array(columns.step, dtype=np.int64),
        seconds=np.array(columns.seconds),
        resolution_seconds=np.array(columns.resolution),
        line=lines,
        mean_of=_ones(count),
        asynchronous=_flags(count, *columns.asynchronous),
        loss=_floats(columns.loss, count),
        has_loss=_flags(count, 0, count if columns.loss is not None else 0),
        grad_norm=_floats(columns.grad_norm, count),
        has_grad_norm=_flags(count, 0, count if columns.grad_norm is not None else 0),
        tflops_per_gpu=_floats(columns.tflops, count),
        tokens_per_second_per_gpu=_floats(columns.tokens, count),
        global_batch_size=_floats(columns.batch, count),
        peak_memory_bytes=_floats(columns.memory, count),
    )


def _floats(values: Values | None, count: int) -> Floats:
    return _absent(count) if values is None else np.array(values)


def _fixed(column: Column) -> Column:
    """Return a column that logs can share, for nobody can write to it."""
    column.setflags(write=False)
    return column


@cache
def _absent(count: int) -> Floats:
    return _fixed(np.full(count, np.nan))


@cache
def _ones(count: int) -> Integers:
    return _fixed(np.ones(count, dtype=np.int64))


@cache
def _flags(count: int, begin: int, end: int) -> Flags:
    """Return that many flags, those from `begin` and before `end` set."""
    places = np.arange(count)
    return _fixed((begin <= places) & (places < end))
