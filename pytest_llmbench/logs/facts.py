"""The facts of a log besides its steps: its start, the versions of its run, what it
states of the run, its checkpoints, and whether it trains.

The rows of `recognisers` read them; here they are collected and added to the segments.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.log_records import (
    CheckpointRecord,
    Checkpoints,
    Segment,
    StatedField,
    Statement,
    Steps,
)
from pytest_llmbench.logs.printed_settings import compile_pattern, read_settings
from pytest_llmbench.logs.recognisers import (
    BAD_VALIDATIONS,
    CHECKPOINTS,
    DECISIVE_PATTERNS,
    EARLY,
    LINE_HEAD,
    LOAD,
    PREAMBLE,
    PREAMBLE_MARKERS,
    PROFILER,
    SETTINGS_BY_NAME,
    SKIP_COUNT_ROWS,
    SKIPPED_UPDATES,
    STATED_MARKERS,
    VERSIONS,
    Meaning,
    SkipCount,
    SkippedUpdate,
    VersionRow,
)
from pytest_llmbench.logs.scan import (
    REACH_BACK,
    ByteChunk,
    Hit,
    build_search,
    find_line_begin,
    locate_hits,
)
from pytest_llmbench.logs.step_records import find_line_stop, read_rank

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers


# Bytes in which a log prints when it started: later times may be of another run.
FARTHEST = 64 << 20

TIMESTAMP = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
TIMESTAMP_LENGTH = 26

HEAD = re.compile(LINE_HEAD)
# What stands before the time of a log record, wherever the record stands.
MARK = re.compile(rb"(?:\[NeMo [A-Z] |\[titan\] |\bDLL |\] datetime: )\Z")

# No log is silent for longer: what is older than the next time by more is the age of an
# image or a data set.
STALE = timedelta(days=30)


class StartTime:
    """Finds when a log starts: the first time of a log record that is not STALE. `time`
    is None where there is none."""

    def __init__(self) -> None:
        self.time: datetime | None = None
        self.looks = True

    def take(self, chunk: ByteChunk) -> None:
        """Look through the new part of a chunk, until the time is sure."""
        self.looks = self.looks and chunk.offset < FARTHEST
        if not self.looks:
            return
        for time in iterate_timestamps(chunk):
            self.looks = self.time is None or time - self.time > STALE
            if not self.looks:
                return
            self.time = time


def iterate_timestamps(chunk: ByteChunk) -> Iterator[datetime]:
    """Yield the times of log records that begin in the new part of a chunk, as printed:
    without a time zone."""
    limit = min(chunk.stop + TIMESTAMP_LENGTH, len(chunk.text))
    for match in TIMESTAMP.finditer(chunk.text, chunk.start, limit):
        if match.start() >= chunk.stop:
            return
        if not _begins_record(chunk, match.start()):
            continue
        try:
            yield datetime.fromisoformat(match[0].decode("ascii"))
        except ValueError:
            continue  # digits that are no date


def _begins_record(chunk: ByteChunk, place: int) -> bool:
    """Tell whether a time stands where log records have it, and not inside a
    sentence."""
    prefix = chunk.text[max(0, place - REACH_BACK) : place]
    begin = find_line_begin(prefix, 0, len(prefix))
    in_long_line = begin == 0 and chunk.offset + place > REACH_BACK
    return bool(
        (not in_long_line and HEAD.fullmatch(prefix, begin)) or MARK.search(prefix)
    )


class Versions:
    """The versions that one log states.

    The first statement counts; if a later one contradicts it, neither does.
    """

    def __init__(self) -> None:
        self._values: dict[VersionRow, tuple[str, ...] | None] = {}

    def add(self, hit: Hit) -> None:
        """Add the versions at a marker, unless it is so far into the log that another
        run may print them."""
        for row, values in VERSIONS.read(hit):
            if self._values.setdefault(row, values) != values:
                self._values[row] = None

    def result(self) -> tuple[tuple[str, str], ...]:
        """Return names with their values, sorted by name."""
        if not self._values:
            return ()
        values: dict[str, str] = {}
        for row in VERSIONS.rows:
            for name, value in zip(row.fact, self._values.get(row) or (), strict=False):
                values.setdefault(name, value)
        return tuple(sorted(values.items()))


# --- what a log states of its run: GPUs, model, precision, settings, a profiler --------

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
                    carried.select(end, segment.first_line),
                    _cut(profiler, begin, stop),
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


# --- checkpoints: their times, and whether training continued --------------------------

# Records of one log that are kept. More are counted, and the slowest is unknown then.
KEPT_CHECKPOINTS = 10_000


class CheckpointLines:
    """Collects the lines about checkpoints, at most KEPT_CHECKPOINTS."""

    def __init__(self) -> None:
        self._records: list[tuple[Meaning, CheckpointRecord]] = []
        self._unread = 0
        self._modes: set[Meaning] = set()

    def add(self, hit: Hit) -> None:
        """Add the line of a marker, if it is about a checkpoint."""
        record = _read_line(hit)
        if record is None:
            return
        meaning = record[0]
        if meaning in (Meaning.ASYNCHRONOUS, Meaning.SYNCHRONOUS):
            self._modes.add(meaning)
        elif len(self._records) < KEPT_CHECKPOINTS:
            self._records.append(record)
        else:
            self._unread += 1

    @property
    def count(self) -> int:
        """The number of lines about a saved or loaded checkpoint."""
        return len(self._records) + self._unread

    def result(self, parts: Sequence[Segment]) -> Checkpoints:
        """Return the records, each with the part of the log that it belongs to; `parts`
        are all parts with steps."""
        first_lines, last_lines = (
            [part.first_line for part in parts],
            [part.last_line for part in parts],
        )
        placed = [
            (meaning, replace(record, part=_find_part(record, first_lines, last_lines)))
            for meaning, record in self._records
        ]
        loaded = {
            record.part
            for meaning, record in placed
            if meaning is Meaning.HAPPENED and record.action == LOAD
        }
        records = (
            replace(record, dispatched=self._is_dispatch(meaning))
            for meaning, record in placed
            if meaning is not Meaning.TIMER or record.part in loaded
        )
        return Checkpoints(tuple(records), self._unread)

    def _is_dispatch(self, meaning: Meaning) -> bool:
        if meaning is Meaning.STAGING_UNLESS_SYNCHRONOUS:
            return self._modes != {Meaning.SYNCHRONOUS}
        return (
            meaning is Meaning.WHOLE_UNLESS_ASYNCHRONOUS
            and Meaning.ASYNCHRONOUS in self._modes
        )


def _read_line(hit: Hit) -> tuple[Meaning, CheckpointRecord] | None:
    """Return the record of a line that prints one at a marker, and its meaning."""
    for row, time in CHECKPOINTS.read(hit):
        action, meaning = row.fact
        timed = meaning.value <= Meaning.TIMER.value
        return meaning, CheckpointRecord(
            action=action,
            line=hit.line,
            seconds=time.seconds,
            torn=timed and time.seconds is None,
            rank=read_rank(hit) or time.rank,
        )
    return None


def _find_part(
    record: CheckpointRecord, first_lines: Sequence[int], last_lines: Sequence[int]
) -> int:
    """Return the 1-based number of the part that a checkpoint was saved in or after, or
    loaded for; 0 for none."""
    if record.action == LOAD:
        number = bisect_left(last_lines, record.line) + 1
        return number if number <= len(last_lines) else 0
    return bisect_right(first_lines, record.line)


# --- whether a run trains: validation losses without a number, skipped updates ---------

_GET_LINE = itemgetter(0)

TRAINING_MARKERS = (*BAD_VALIDATIONS.markers, *SKIPPED_UPDATES.markers)

# Bytes before a text beside a step that its pattern may look at.
BEFORE_TEXT = 300


class TrainingLines:
    """The lines of one log, in its order."""

    def __init__(self) -> None:
        self._bad_validations: list[int] = []
        self._counts: list[tuple[int, SkipCount]] = []
        self._skips: list[int] = []
        self._rank: bytes | None = None
        self._last_scale = b""

    def add(self, hit: Hit) -> None:
        """Add the line of a marker, if it shows that an update or a validation
        failed."""
        for _, update in SKIPPED_UPDATES.read(hit):
            self._add_skip(hit.line, update)
        if any(BAD_VALIDATIONS.read(hit)):
            self._bad_validations.append(hit.line)

    def add_near_step(self, hit: Hit) -> None:
        """Add the facts in the line of a step, or shortly before it."""
        begin = max(0, hit.start - REACH_BACK)
        end = find_line_stop(hit.text, hit.start, hit.end)
        for row in SKIP_COUNT_ROWS:
            place = hit.text.rfind(row.marker, begin, end)
            matches = (
                compile_pattern(row.pattern).finditer(
                    hit.text, max(begin, place - BEFORE_TEXT), end
                )
                if place >= 0
                else ()
            )
            for match in deque(matches, maxlen=1):  # the last one
                count = row.convert(match)
                if count.total is not None:
                    self._counts.append((hit.line, count))
                elif b"\n" not in hit.text[match.start() : hit.start] and self._skips[
                    -1:
                ] != [hit.line]:
                    self._skips.append(hit.line)

    def add_to_segments(
        self, segments: Sequence[Segment], bad_validations: Sequence[int] = ()
    ) -> tuple[Segment, ...]:
        """Return segments with what the lines behind the one before show of each, to
        the first of the next one.

        `bad_validations` are lines of records that print a validation loss that is NaN
        or infinite.
        """
        self._skips.sort()
        self._counts.sort(key=_GET_LINE)
        lines = sorted({*self._bad_validations, *bad_validations})
        if not (lines or self._counts or self._skips):
            return tuple(segments)
        begins = [0, *(segment.last_line for segment in segments[:-1])]
        ends = [*(segment.first_line for segment in segments[1:]), math.inf]
        return tuple(
            self._add_to(segment, begin, end, lines)
            for segment, begin, end in zip(segments, begins, ends, strict=True)
        )

    def _add_to(
        self, segment: Segment, begin: int, end: float, lines: Sequence[int]
    ) -> Segment:
        first = segment.progress[0].line if segment.progress else segment.first_line
        bad = next(iter(lines[bisect_left(lines, first) : bisect_left(lines, end)]), 0)
        steps = segment.steps
        after = bisect_right(self._counts, begin, key=_GET_LINE)
        counts = self._counts[after : bisect_left(self._counts, end, key=_GET_LINE)]
        skips = self._skips[
            bisect_right(self._skips, begin) : bisect_left(self._skips, end)
        ]
        if len(steps) and (counts or skips):
            # Records may count them, too: GPT-NeoX, under those of DeepSpeed.
            skipped = np.fmax(steps.skipped_steps, _count_skipped(steps, counts, skips))
            steps = replace(steps, skipped_steps=skipped)
            if counts and np.isnan(steps.learning_rate).all():
                steps = replace(steps, learning_rate=_place_rates(steps, counts))
        return replace(segment, steps=steps, bad_validation_line=bad)

    def _add_skip(self, line: int, update: SkippedUpdate) -> None:
        """Add a skipped update, once if every rank prints it."""
        if update.rank is not None:
            self._rank = self._rank or update.rank
            if update.rank != self._rank:
                return
        elif update.scale and update.scale == self._last_scale and update.halved:
            return  # no loss scale is reduced twice from the same value
        self._last_scale = update.scale
        self._skips.append(line)


def _find_rows(steps: Steps, lines: Sequence[int]) -> Integers:
    """Return the row of the step on each line, or after it; the last one at most."""
    return np.searchsorted(steps.line, lines).clip(max=len(steps) - 1)


def _place_rates(steps: Steps, counts: Sequence[tuple[int, SkipCount]]) -> Floats:
    """Return the learning rate that is printed with each step, NaN where none is."""
    rates = np.full(len(steps), math.nan)
    rates[_find_rows(steps, [line for line, _ in counts])] = [
        count.rate for _, count in counts
    ]
    return rates


def _count_skipped(
    steps: Steps, counts: Sequence[tuple[int, SkipCount]], skips: Sequence[int]
) -> Floats:
    """Return how many updates were skipped since the line before, for each step; counts
    rather than single lines."""
    most: Integers = steps.mean_of
    if not counts:
        skipped = np.bincount(_find_rows(steps, skips), minlength=len(steps))
        return np.minimum(skipped, most).astype(float)
    totals = np.zeros(len(steps))
    rows = _find_rows(steps, [line for line, _ in counts])
    np.maximum.at(totals, rows, [count.total or 0 for _, count in counts])
    since_start = np.maximum.accumulate(totals)
    return np.minimum(np.diff(since_start, prepend=0.0), most)


# --- one collector for all of them ------------------------------------------------


class Facts:
    """The facts of one log beside its steps: a collector for each kind."""

    def __init__(self) -> None:
        self.statements = Statements()
        self.versions = Versions()
        self.checkpoints = CheckpointLines()
        self.training = TrainingLines()
        self._adders: Mapping[bytes, Callable[[Hit], None]] = (
            dict.fromkeys(STATED_MARKERS, self.statements.add)
            | dict.fromkeys(VERSIONS.markers, self.versions.add)
            | dict.fromkeys(CHECKPOINTS.markers, self.checkpoints.add)
            | dict.fromkeys(TRAINING_MARKERS, self.training.add)
        )

    def add(self, hit: Hit) -> None:
        """Add the facts at a marker."""
        add = self._adders.get(hit.marker)
        if add is not None:
            add(hit)
