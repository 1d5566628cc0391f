"""What a log states of its run before the first step: GPUs, model, precision, what is trained; at any time a profiler.

`stated_rules` and, for the settings of which frameworks print hundreds, `stated_settings` say how.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from pytest_llmbench.core.log_records import Segment, StatedField, Statement
from pytest_llmbench.logs import stated_settings
from pytest_llmbench.logs.scan import ByteChunk, Hit, find_line_begin
from pytest_llmbench.logs.stated_rules import BY_MARKER, CONTINUED

# Bytes in which a log states what its run is.
FARTHEST = 16 << 20
# So often may one marker stand in a line that is looked into: no framework says a thing more often.
MOST_IN_LINE = 20
# So many values of one field are kept, the latest: a framework that states more contradicts itself all the same.
MOST_VALUES = 20
# Bytes before a marker that its pattern may look at.
BEFORE = 300
# Bytes from a marker on that its pattern may look at.
BEHIND = 600

# One marker for all that profilers print: the search takes no further text without a further pass.
PROFILED = b"rofil"
_PROFILED = re.compile(
    rb"completed profiler "  # MaxText, in place of the step at which the profiler is switched on or off
    rb"|\bProfiling active\. Traces will be saved |\bDumping profiler traces at step "  # torchtitan
    rb"|ActivityProfilerController\.cpp:\d{1,5}\] Completed Stage: Collection"  # PyTorch's own, in any framework
    rb"|\bStart nsys profiling"  # NeMo's callback for Nsight Systems
)
# Bytes around the marker that these texts take.
_BEFORE_PROFILED, _BEHIND_PROFILED = 20, 60


def drop_silent(text: bytes, places: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return places of markers without those that state nothing: to look at each line takes twenty times as long."""
    return [
        (place, marker)
        for place, marker in places
        if (marker not in CONTINUED or (rest := CONTINUED[marker])[1](text, place + rest[0]))
        and (marker != PROFILED or _is_profiled(text, place))
    ]


def _is_profiled(text: bytes, place: int) -> bool:
    """Whether the marker of profilers stands in a line that one prints while it is on."""
    found = _PROFILED.search(text, max(0, place - _BEFORE_PROFILED), place + _BEHIND_PROFILED)
    return found is not None and found.start() <= place < found.end()


class Preamble:
    """The parts of a log in which settings are looked for: before the first step of each process."""

    def __init__(self) -> None:
        self.is_open = True
        self._begin = 0
        self._spans: list[tuple[int, int]] = []
        self._locked = False

    def begin(self, chunk: ByteChunk) -> None:
        """Start with the new part of a chunk; settings far into a log are not looked for."""
        self._spans, self._begin, self._locked = [], chunk.start, False
        self.is_open = self.is_open and chunk.offset < FARTHEST

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
        if chunk.offset >= FARTHEST:
            return []
        return [*self._spans, *([(self._begin, chunk.stop)] if self.is_open else [])]


class Statements:
    """The statements of one log, in its order."""

    def __init__(self) -> None:
        self._statements: list[Statement] = []
        self._line = 0
        self._in_line: dict[bytes, int] = {}

    def add(self, hit: Hit) -> None:
        """Take what is stated around a marker."""
        if hit.marker == PROFILED:
            if _is_profiled(hit.text, hit.start):
                self._statements.append(Statement(StatedField.PROFILER, "switched", hit.line))
            return
        if hit.line != self._line:
            self._line, self._in_line = hit.line, {}
        self._in_line[hit.marker] = self._in_line.get(hit.marker, 0) + 1
        if hit.offset >= FARTHEST or self._in_line[hit.marker] > MOST_IN_LINE:
            return
        line, place = _find_line(hit)
        for rule in BY_MARKER[hit.marker]:
            matches = (match for match in rule.pattern.finditer(line) if match.start() <= place < match.end())
            match = next(matches, None)
            value = rule.value(match) if match else ""
            if value:
                self._statements.append(Statement(rule.field, value, hit.line))

    def add_settings(self, chunk: ByteChunk, spans: Iterable[tuple[int, int]]) -> None:
        """Take what is stated in these parts of a chunk."""
        for begin, stop in spans:
            self._statements += stated_settings.find_statements(chunk, begin, stop, MOST_IN_LINE)

    def add_to_segments(self, segments: Sequence[Segment], starts: Sequence[int]) -> tuple[Segment, ...]:
        """Return segments with what is stated of each: behind the one before and, but for a profiler, before its steps.

        What no line there states stands as it was stated before: a launcher may say it once for several processes.
        `starts` are the lines on which processes start, ascending: a profiler is of the process that started last.
        """
        if not self._statements:
            return tuple(segments)
        statements = sorted(self._statements, key=_get_line)
        profiler = [each for each in statements if each.field == StatedField.PROFILER]
        bounds = [0, *(_find_start(starts, before, after) for before, after in pairwise(segments)), math.inf]
        ends = [0, *(segment.last_line for segment in segments)]
        places = zip(segments, ends, pairwise(bounds), strict=False)
        carried = _Carried([each for each in statements if each.field != StatedField.PROFILER])
        return tuple(
            replace(
                segment,
                stated=_merge(carried.select(end, segment.first_line), _cut(profiler, begin, stop)),
            )
            for segment, end, (begin, stop) in places
        )


class _Carried:
    """The statements that apply to a segment, for one segment after the other."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        """Begin before the first segment; the statements are in the order of the log."""
        self._statements = statements
        self._place = 0  # of the first statement that is in `_values` not yet
        self._values: dict[StatedField, dict[str, Statement]] = {}
        self._selected: tuple[Statement, ...] = ()
        self._is_current = True  # whether `_selected` is what `_values` hold

    def select(self, end: int, first_line: int) -> tuple[Statement, ...]:
        """Return the statements that apply to the segment from `first_line` on, after one that ends on line `end`.

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


def _keep(values: dict[StatedField, dict[str, Statement]], statement: Statement) -> None:
    """Append a statement to those of its field; an earlier one with the same value is dropped."""
    of_field = values.setdefault(statement.field, {})
    of_field.pop(statement.value, None)
    of_field[statement.value] = statement
    if len(of_field) > MOST_VALUES:
        del of_field[next(iter(of_field))]


def _flatten(values: dict[StatedField, dict[str, Statement]]) -> tuple[Statement, ...]:
    return tuple(sorted((each for of_field in values.values() for each in of_field.values()), key=_get_line))


def _merge(stated: tuple[Statement, ...], profiler: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return statements in the order of the log, the last one of a profiler among them."""
    return tuple(sorted((*stated, profiler[-1]), key=_get_line)) if profiler else stated


def _cut(statements: Sequence[Statement], begin: float, stop: float) -> Sequence[Statement]:
    """Return the statements from a line on and before another one."""
    first, last = (bisect_left(statements, line, key=_get_line) for line in (begin, stop))
    return statements[first:last]


def _get_line(statement: Statement) -> int:
    return statement.line


def _find_start(starts: Sequence[int], before: Segment, after: Segment) -> int:
    """Return the line on which the process of a segment starts, that of its first step where no line says so."""
    first = bisect_right(starts, before.last_line)
    return min(starts[first], after.first_line) if first < len(starts) else after.first_line


def _find_line(hit: Hit) -> tuple[bytes, int]:
    """Return what stands around a marker on its line, and where in it the marker begins."""
    text = hit.text[max(0, hit.start - BEFORE) : min(hit.end, hit.start + BEHIND)]
    place = min(hit.start, BEFORE)
    begin = find_line_begin(text, 0, place)
    end = text.find(b"\n", place)
    return text[begin : end + 1 if end >= 0 else len(text)], place - begin
