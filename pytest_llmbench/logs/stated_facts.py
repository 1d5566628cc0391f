"""The facts that a log states of its run: GPUs, model, precision, settings, a profiler.

The rows of `recognisers` read them; here they are collected and given to the segments.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from pytest_llmbench.core.log_records import Segment, StatedField, Statement
from pytest_llmbench.logs.notations import compile_pattern, read_settings
from pytest_llmbench.logs.recognisers import (
    DECISIVE_PATTERNS,
    EARLY,
    PREAMBLE,
    PREAMBLE_MARKERS,
    PROFILER,
    SETTINGS_BY_NAME,
)
from pytest_llmbench.logs.scan import ByteChunk, Hit, build_search, locate_hits

# A marker may stand so often in a line that is looked into: no framework states a thing
# more often.
MOST_IN_LINE = 20
# So many values of one field are kept, the latest: a framework that states more
# contradicts itself all the same.
MOST_VALUES = 20

(_PROFILED,) = PROFILER.markers


def drop_silent(
    text: bytes, places: Iterable[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    """Drop the places of markers that state nothing.

    To look at each line takes twenty times as long.
    """
    return [
        (place, marker)
        for place, marker in places
        if (
            marker not in DECISIVE_PATTERNS
            or compile_pattern(DECISIVE_PATTERNS[marker]).match(text, place)
        )
        and (marker != _PROFILED or _is_profiled(text, place))
    ]


def _is_profiled(text: bytes, place: int) -> bool:
    """True if a profiler prints the line at a place."""
    hit = Hit(_PROFILED, text, place, len(text), place, 0)
    return any(True for _ in PROFILER.read(hit))


class Preamble:
    """The parts of a log in which settings are looked for: before the first step of
    each process."""

    def __init__(self) -> None:
        self.is_open = True
        self._begin = 0
        self._spans: list[tuple[int, int]] = []
        self._locked = False

    def begin(self, chunk: ByteChunk) -> None:
        """Start with the new part of a chunk; settings far into a log are not looked
        for."""
        self._spans, self._begin, self._locked = [], chunk.start, False
        self.is_open = self.is_open and chunk.offset < EARLY.farthest

    def close(self, offset: int) -> None:
        """End the part at a step."""
        if self.is_open:
            self._spans.append((self._begin, offset))
            self.is_open = False

    def reopen(self, offset: int) -> None:
        """Begin another part at what a process prints as it starts."""
        if not self.is_open and not self._locked:
            self.is_open, self._begin = True, offset

    def lock(self) -> None:
        """Keep the parts of this chunk as they are."""
        self._locked = True

    def finish(self, chunk: ByteChunk) -> list[tuple[int, int]]:
        """Return the begin and end of each part in the chunk."""
        if chunk.offset >= EARLY.farthest:
            return []
        return [*self._spans, *([(self._begin, chunk.stop)] if self.is_open else [])]


class LineCounter:
    """Counts the markers of the current line."""

    def __init__(self) -> None:
        self._line = 0
        self._counts: dict[bytes, int] = {}

    def admit(self, hit: Hit) -> bool:
        """True if the marker is among the first MOST_IN_LINE of its line."""
        if hit.line != self._line:
            self._line, self._counts = hit.line, {}
        self._counts[hit.marker] = count = self._counts.get(hit.marker, 0) + 1
        return count <= MOST_IN_LINE


def find_settings(chunk: ByteChunk, begin: int, stop: int) -> list[Statement]:
    """Find the facts between two offsets of a chunk: a value once, on its last line."""
    places = build_search(PREAMBLE_MARKERS).find_places(chunk.text, begin, stop)
    statements: dict[tuple[StatedField, str], Statement] = {}
    counter = LineCounter()
    line = chunk.line + chunk.text.count(b"\n", chunk.start, begin)
    for hit in locate_hits(chunk._replace(start=begin, line=line), places):
        if not counter.admit(hit):
            continue
        for field, value in read_preamble(*PREAMBLE.cut_line(hit), hit.marker):
            statements.pop((field, value), None)
            statements[field, value] = Statement(field, value, hit.line)
    return list(statements.values())


@lru_cache(4096)  # each rank prints the same
def read_preamble(
    line: bytes, place: int, marker: bytes
) -> tuple[tuple[StatedField, str], ...]:
    """Return the fields and values that a line states at a marker."""
    return tuple(_read_preamble(line, place, marker))


def _read_preamble(
    line: bytes, place: int, marker: bytes
) -> Iterator[tuple[StatedField, str]]:
    for row, value in PREAMBLE.read_line(line, place, marker):
        yield row.fact, value
    settings = SETTINGS_BY_NAME.get(marker)
    if settings:
        yield from read_settings(
            settings, line[:place], marker, line[place + len(marker) :]
        )


class Statements:
    """The statements of one log, in its order."""

    def __init__(self) -> None:
        self._statements: list[Statement] = []
        self._counter = LineCounter()

    def add(self, hit: Hit) -> None:
        """Add the facts that are stated around a marker."""
        if hit.marker != _PROFILED and not self._counter.admit(hit):
            return
        table = PROFILER if hit.marker == _PROFILED else EARLY
        for row, value in table.read(hit):
            self._statements.append(Statement(row.fact, value, hit.line))

    def add_settings(self, chunk: ByteChunk, spans: Iterable[tuple[int, int]]) -> None:
        """Add the facts that are stated in these parts of a chunk."""
        for begin, stop in spans:
            self._statements += find_settings(chunk, begin, stop)

    def add_to_segments(
        self, segments: Sequence[Segment], starts: Sequence[int]
    ) -> tuple[Segment, ...]:
        """Return segments with what is stated of each: behind the one before and, but
        for a profiler, before its steps.

        What no line there states stands as it was stated before: a launcher may say it
        once for several processes. `starts` are the lines on which processes start,
        ascending: a profiler is of the process that started last.
        """
        if not self._statements:
            return tuple(segments)
        statements = sorted(self._statements, key=_get_line)
        profiler = [each for each in statements if each.field == StatedField.PROFILER]
        bounds = [
            0,
            *(
                _find_start(starts, before, after)
                for before, after in pairwise(segments)
            ),
            math.inf,
        ]
        ends = [0, *(segment.last_line for segment in segments)]
        places = zip(segments, ends, pairwise(bounds), strict=False)
        carried = _Carried(
            [each for each in statements if each.field != StatedField.PROFILER]
        )
        return tuple(
            replace(
                segment,
                stated=_merge(
                    carried.select(end, segment.first_line), _cut(profiler, begin, stop)
                ),
            )
            for segment, end, (begin, stop) in places
        )


class _Carried:
    """The statements that apply to a segment, for one segment after the other."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        """Begin before the first segment; the statements are in the order of the
        log."""
        self._statements = statements
        self._place = 0  # of the first statement that is in `_values` not yet
        self._values: dict[StatedField, dict[str, Statement]] = {}
        self._selected: tuple[Statement, ...] = ()
        self._is_current = True  # whether `_selected` is what `_values` hold

    def select(self, end: int, first_line: int) -> tuple[Statement, ...]:
        """Return the statements that apply to the segment from `first_line` on, after
        one that ends on line `end`.

        Statements between these two lines replace earlier ones of the same field.
        """
        self._add_up_to(end)
        stop = bisect_right(self._statements, first_line, lo=self._place, key=_get_line)
        anew: dict[StatedField, dict[str, Statement]] = {}
        for statement in self._statements[self._place : stop]:
            _keep(anew, statement)
        if anew:
            self._is_current = False
            return _flatten(self._values | anew)
        if not self._is_current:
            self._selected, self._is_current = _flatten(self._values), True
        return self._selected

    def _add_up_to(self, line: int) -> None:
        stop = bisect_right(self._statements, line, lo=self._place, key=_get_line)
        for statement in self._statements[self._place : stop]:
            _keep(self._values, statement)
            self._is_current = False
        self._place = stop


def _keep(
    values: dict[StatedField, dict[str, Statement]], statement: Statement
) -> None:
    """Append a statement to those of its field; an earlier one with the same value is
    dropped."""
    of_field = values.setdefault(statement.field, {})
    of_field.pop(statement.value, None)
    of_field[statement.value] = statement
    if len(of_field) > MOST_VALUES:
        del of_field[next(iter(of_field))]


def _flatten(values: dict[StatedField, dict[str, Statement]]) -> tuple[Statement, ...]:
    return tuple(
        sorted(
            (each for of_field in values.values() for each in of_field.values()),
            key=_get_line,
        )
    )


def _merge(
    stated: tuple[Statement, ...], profiler: Sequence[Statement]
) -> tuple[Statement, ...]:
    """Return statements in the order of the log, the last one of a profiler among
    them."""
    return tuple(sorted((*stated, profiler[-1]), key=_get_line)) if profiler else stated


def _cut(
    statements: Sequence[Statement], begin: float, stop: float
) -> Sequence[Statement]:
    """Return the statements from a line on and before another one."""
    first, last = (
        bisect_left(statements, line, key=_get_line) for line in (begin, stop)
    )
    return statements[first:last]


def _get_line(statement: Statement) -> int:
    return statement.line


def _find_start(starts: Sequence[int], before: Segment, after: Segment) -> int:
    """Return the line on which the process of a segment starts, that of its first step
    where no line says so."""
    first = bisect_right(starts, before.last_line)
    return (
        min(starts[first], after.first_line)
        if first < len(starts)
        else after.first_line
    )
