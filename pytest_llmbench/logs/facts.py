"""Collect the facts in a log other than steps.

These are the start time, versions, statements about the run, checkpoints, and signs
that the run does not train. The rows of `recognisers` read them; this module collects
them and adds them to the segments.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pytest_llmbench.core.log_records import (
    CheckpointRecord,
    Checkpoints,
    Segment,
    StatedField,
    Statement,
    Steps,
    replace_columns,
)
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.printed_settings import compile_pattern, read_settings
from pytest_llmbench.logs.recognisers import (
    BAD_VALIDATIONS,
    CHECKPOINTS,
    DECISIVE_PATTERNS,
    EARLY,
    LAST_IN_LINE,
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
    count_line_feeds,
    find_line_begin,
    locate_hits,
)
from pytest_llmbench.logs.step_records import find_line_stop, read_rank

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers


# The start time must be in the first bytes: later times may belong to another run.
FARTHEST = 64 << 20

TIMESTAMP = compile_on_use(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
TIMESTAMP_LENGTH = 26

HEAD = compile_on_use(LINE_HEAD)
# The prefix of a timestamp in a log record that need not begin a line.
RECORD_PREFIX = compile_on_use(rb"(?:\[NeMo [A-Z] |\[titan\] |\bDLL |\] datetime: )\Z")

# A time that is older than the next one by more is not the start but the age of an
# image or data set.
STALE = timedelta(days=30)


class StartTime:
    """Finder of a log's start time.

    The start is the first time of a log record, unless the next time is more than STALE
    later: then the next time is examined. `time` is None if the log has no time.
    """

    def __init__(self) -> None:
        self.time: datetime | None = None
        self.is_open = True

    def feed(self, chunk: ByteChunk) -> None:
        """Search the new part of a chunk, until the time is certain."""
        self.is_open = self.is_open and chunk.offset < FARTHEST
        if not self.is_open:
            return
        for time in iterate_timestamps(chunk):
            # a stale time is replaced by this one, which is then examined itself
            self.is_open = self.time is None or time - self.time > STALE
            if not self.is_open:
                return
            self.time = time


def iterate_timestamps(chunk: ByteChunk) -> Iterator[datetime]:
    """Yield the times of log records in the new part of a chunk.

    They have no time zone.
    """
    limit = min(chunk.stop + TIMESTAMP_LENGTH, len(chunk.text))
    for match in TIMESTAMP.finditer(chunk.text, chunk.start, limit):
        if match.start() >= chunk.stop:
            return
        if not _begins_record(chunk, match.start()):
            continue
        try:
            yield datetime.fromisoformat(match[0].decode("ascii"))
        except ValueError:
            continue  # not a valid date


def _begins_record(chunk: ByteChunk, offset: int) -> bool:
    """True if a time is in the prefix of a log record.

    For example `[NeMo I 2026-01-01 12:00:00` or `[2026-01-01 12:00:00`, but not a time
    within a sentence.
    """
    earliest = max(0, offset - REACH_BACK)
    begin = find_line_begin(chunk.text, earliest, offset)
    # the line begins before the visible text: HEAD cannot match from its beginning
    in_long_line = begin == earliest and chunk.offset + offset > REACH_BACK
    return _is_record_prefix(chunk.text[begin:offset], from_line_begin=not in_long_line)


@lru_cache(1024)  # most lines of all logs begin alike
def _is_record_prefix(prefix: bytes, *, from_line_begin: bool) -> bool:
    """True if a time follows this prefix of a log record.

    `prefix` is the text of its line, with `from_line_begin` the whole text.
    """
    return bool(
        (from_line_begin and HEAD.fullmatch(prefix)) or RECORD_PREFIX.search(prefix)
    )


class Versions:
    """Collector of the versions in a log.

    The first value counts. If a later value contradicts it, the version is unknown.
    """

    def __init__(self) -> None:
        self._values: dict[VersionRow, tuple[str, ...] | None] = {}

    def add(self, hit: Hit) -> None:
        """Add the versions at a marker.

        `VERSIONS` ignores markers far into the log, which another run may have printed.
        """
        if hit.offset >= VERSIONS.farthest:
            return
        for row, values in read_versions(*VERSIONS.cut_line(hit), hit.marker):
            if self._values.setdefault(row, values) != values:
                self._values[row] = None

    def result(self) -> tuple[tuple[str, str], ...]:
        """Return (name, version) pairs, sorted by name."""
        if not self._values:
            return ()
        values: dict[str, str] = {}
        for row in sorted(self._values, key=VERSIONS.rows.index):
            row_values = self._values[row] or ()  # None if contradicted
            for name, value in zip(row.fact, row_values, strict=False):
                values.setdefault(name, value)
        return tuple(sorted(values.items()))


@lru_cache(256)  # runs of one environment print the same
def read_versions(
    line: bytes, offset: int, marker: bytes
) -> tuple[tuple[VersionRow, tuple[str, ...]], ...]:
    """Return the rows of VERSIONS that match at a marker in a line, with their values."""
    return tuple(VERSIONS.read_line(line, offset, marker))


# --- statements about the run: GPUs, model, precision, settings, profiler --------------

# Occurrences of a marker that are read per line: no framework repeats a setting more
# often.
MOST_IN_LINE = 20
# Values of one field that are kept, the latest ones: a framework that prints more
# contradicts itself anyway.
MOST_VALUES = 20

(_PROFILED,) = PROFILER.markers

# The markers that `drop_unmatched` checks.
_CHECKED = frozenset((*DECISIVE_PATTERNS, _PROFILED))

# Bytes after a marker that are looked at before its pattern is tried.
CONTINUATION_BYTES = 16


def drop_unmatched(
    text: bytes, matches: Iterable[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    """Drop frequent markers whose pattern does not match at their offset.

    Checks the markers of DECISIVE_PATTERNS and of profilers, and keeps all others.
    Without this check each of their lines would be read, which takes twenty times as
    long.
    """
    kept = []
    # texts after markers that rule out a match: those of all steps are alike
    continuations: set[bytes] = set()
    for match in matches:
        offset, marker = match
        if marker not in _CHECKED:
            kept.append(match)
            continue
        if marker in LAST_IN_LINE:
            begin = offset + len(marker)
            continuation = text[begin : begin + CONTINUATION_BYTES]
            if continuation in continuations:
                continue
            if not _may_end_line(continuation):
                continuations.add(continuation)
                continue
        if marker in DECISIVE_PATTERNS:
            pattern = compile_pattern(DECISIVE_PATTERNS[marker])
            if pattern.match(text, offset) is None:
                continue
        elif not _is_profiled(text, offset):
            continue
        kept.append(match)
    return kept


def _may_end_line(continuation: bytes) -> bool:
    """False if something else follows a number in its line."""
    after_number = continuation.lstrip(b"0123456789").lstrip(b" \t")
    return after_number[:1] in b"\r\n"  # also if it is empty


def _is_profiled(text: bytes, offset: int) -> bool:
    """True if a profiler printed the line at an offset."""
    hit = Hit(_PROFILED, text, offset, len(text), offset, 0)
    return any(True for _ in PROFILER.read(hit))


class Preamble:
    """Spans of a log that are searched for settings.

    These are the parts before the first step of each process.
    """

    def __init__(self) -> None:
        self.is_open = True
        self._begin = 0
        self._spans: list[tuple[int, int]] = []
        self._locked = False

    def begin(self, chunk: ByteChunk) -> None:
        """Prepare for the new part of a chunk. Ignores settings far into a log."""
        self._spans, self._begin, self._locked = [], chunk.start, False
        self.is_open = self.is_open and chunk.offset < EARLY.farthest

    def close(self, offset: int) -> None:
        """End the span at a step."""
        if self.is_open:
            self._spans.append((self._begin, offset))
            self.is_open = False

    def reopen(self, offset: int) -> None:
        """Begin another span at a text that a process prints as it starts."""
        if not self.is_open and not self._locked:
            self.is_open, self._begin = True, offset

    def lock(self) -> None:
        """Ignore further calls of `reopen` for this chunk: all its spans are known."""
        self._locked = True

    def finish(self, chunk: ByteChunk) -> list[tuple[int, int]]:
        """Return (begin, end) of each span in the chunk."""
        if chunk.offset >= EARLY.farthest:
            return []
        if self.is_open:
            return [*self._spans, (self._begin, chunk.stop)]
        return self._spans


class LineCounter:
    """Counter of the markers on the current line."""

    def __init__(self) -> None:
        self._line = 0
        self._counts: dict[bytes, int] = {}

    def admit(self, hit: Hit) -> bool:
        """Count a marker. True if it is among the first MOST_IN_LINE of its line."""
        if hit.line != self._line:
            self._line, self._counts = hit.line, {}
        self._counts[hit.marker] = count = self._counts.get(hit.marker, 0) + 1
        return count <= MOST_IN_LINE


def find_settings(chunk: ByteChunk, begin: int, stop: int) -> list[Statement]:
    """Find the settings between two offsets of a chunk.

    Each value is returned once, with its last line.
    """
    matches = build_search(PREAMBLE_MARKERS).find_matches(chunk.text, begin, stop)
    statements: dict[tuple[StatedField, str], Statement] = {}
    counter = LineCounter()
    line = chunk.line + count_line_feeds(chunk.text, chunk.start, begin)
    for hit in locate_hits(chunk._replace(start=begin, line=line), matches):
        if not counter.admit(hit):
            continue
        for field, value in read_preamble(*PREAMBLE.cut_line(hit), hit.marker):
            statements.pop((field, value), None)
            statements[field, value] = Statement(field, value, hit.line)
    return list(statements.values())


@lru_cache(4096)  # runs of one configuration print the same
def read_early(
    line: bytes, offset: int, marker: bytes
) -> tuple[tuple[StatedField, str], ...]:
    """Return the (field, value) pairs of EARLY at a marker in a line."""
    return tuple(
        (row.fact, value) for row, value in EARLY.read_line(line, offset, marker)
    )


@lru_cache(4096)  # each rank prints the same
def read_preamble(
    line: bytes, offset: int, marker: bytes
) -> tuple[tuple[StatedField, str], ...]:
    """Return the (field, value) pairs at a marker in a line."""
    return tuple(_read_preamble(line, offset, marker))


def _read_preamble(
    line: bytes, offset: int, marker: bytes
) -> Iterator[tuple[StatedField, str]]:
    if marker in PREAMBLE.by_marker:
        for row, value in PREAMBLE.read_line(line, offset, marker):
            yield row.fact, value
    settings = SETTINGS_BY_NAME.get(marker)
    if settings:
        yield from read_settings(
            settings, line[:offset], marker, line[offset + len(marker) :]
        )


_get_line = attrgetter("line")


class Statements:
    """Collector of the statements in a log, in log order."""

    def __init__(self) -> None:
        self._statements: list[Statement] = []
        self._counter = LineCounter()

    def add(self, hit: Hit) -> None:
        """Add the statements at a marker.

        Ignores a marker that its line has already contained MOST_IN_LINE times, except
        the profiler marker.
        """
        if hit.marker == _PROFILED:
            facts = tuple((row.fact, value) for row, value in PROFILER.read(hit))
        elif not self._counter.admit(hit) or hit.offset >= EARLY.farthest:
            return
        else:
            facts = read_early(*EARLY.cut_line(hit), hit.marker)
        for field, value in facts:
            self._statements.append(Statement(field, value, hit.line))

    def add_settings(self, chunk: ByteChunk, spans: Iterable[tuple[int, int]]) -> None:
        """Add the settings in these spans of a chunk."""
        for begin, stop in spans:
            self._statements += find_settings(chunk, begin, stop)

    def add_to_segments(
        self, segments: Sequence[Segment], starts: Sequence[int]
    ) -> tuple[Segment, ...]:
        """Add to each segment the statements that apply to it.

        These are the statements between the end of the previous segment and the first
        step. A field without a statement between these lines keeps its earlier values:
        a launcher may print them once for several processes. A profiler's statement may
        also be among the steps: it belongs to the process that started last. `starts`
        are the lines of process starts, ascending.
        """
        if not self._statements:
            return tuple(segments)
        profiler: list[Statement] = []
        others: list[Statement] = []
        for statement in sorted(self._statements, key=_get_line):
            is_profiler = statement.field is StatedField.PROFILER
            (profiler if is_profiler else others).append(statement)
        carried = _CarriedStatements(others)
        # the lines of each segment's process: from its start to the next start
        process_starts = [
            _find_start(starts, before, after) for before, after in pairwise(segments)
        ]
        process_lines = pairwise([0, *process_starts, math.inf])
        ends_before = [0, *(segment.last_line for segment in segments)]
        with_statements = []
        for segment, end_before, (begin, stop) in zip(
            segments, ends_before, process_lines, strict=False
        ):
            stated = _merge(
                carried.select(end_before, segment.first_line),
                _select_lines(profiler, begin, stop),
            )
            with_statements.append(replace(segment, stated=stated))
        return tuple(with_statements)


class _CarriedStatements:
    """Selector of the statements for each segment, in log order.

    The values of a field carry over to later segments that do not state the field.
    """

    def __init__(self, statements: Sequence[Statement]) -> None:
        """`statements` are in log order."""
        self._statements = statements
        self._index = 0  # index of the first statement not yet in `_values`
        self._values: dict[StatedField, dict[str, Statement]] = {}
        self._selected: tuple[Statement, ...] = ()
        self._is_current = True  # True if `_selected` matches `_values`

    def select(self, end: int, first_line: int) -> tuple[Statement, ...]:
        """Return the statements for a segment that begins on `first_line`.

        The previous segment ends on line `end`. Statements between these two lines
        replace earlier statements of the same field.
        """
        self._add_up_to(end)
        # Statements after `end` are carried by the next call.
        stop = bisect_right(self._statements, first_line, lo=self._index, key=_get_line)
        replaced: dict[StatedField, dict[str, Statement]] = {}
        for statement in self._statements[self._index : stop]:
            _add_value(replaced, statement)
        if replaced:
            self._is_current = False
            return _flatten(self._values | replaced)
        if not self._is_current:
            self._selected, self._is_current = _flatten(self._values), True
        return self._selected

    def _add_up_to(self, line: int) -> None:
        """Carry the statements up to a line (inclusive) to all later segments."""
        stop = bisect_right(self._statements, line, lo=self._index, key=_get_line)
        for statement in self._statements[self._index : stop]:
            _add_value(self._values, statement)
            self._is_current = False
        self._index = stop


def _add_value(
    values: dict[StatedField, dict[str, Statement]], statement: Statement
) -> None:
    """Append a statement to those of its field, dropping an equal earlier one.

    Also drops the oldest of more than MOST_VALUES values.
    """
    field_values = values.setdefault(statement.field, {})
    field_values.pop(statement.value, None)
    field_values[statement.value] = statement
    if len(field_values) > MOST_VALUES:
        oldest = next(iter(field_values))
        del field_values[oldest]


def _flatten(values: dict[StatedField, dict[str, Statement]]) -> tuple[Statement, ...]:
    """Return all statements of all fields, in log order."""
    statements = (
        statement
        for field_values in values.values()
        for statement in field_values.values()
    )
    return tuple(sorted(statements, key=_get_line))


def _merge(
    stated: tuple[Statement, ...], profiler: Sequence[Statement]
) -> tuple[Statement, ...]:
    """Merge the last profiler statement into the others, in log order."""
    if not profiler:
        return stated
    return tuple(sorted((*stated, profiler[-1]), key=_get_line))


def _select_lines(
    statements: Sequence[Statement], begin: float, stop: float
) -> Sequence[Statement]:
    """Return the statements on the lines `begin` to `stop` (exclusive)."""
    first = bisect_left(statements, begin, key=_get_line)
    after_last = bisect_left(statements, stop, key=_get_line)
    return statements[first:after_last]


def _find_start(starts: Sequence[int], before: Segment, after: Segment) -> int:
    """Return the line on which the process of the segment `after` starts.

    `before` is the previous segment. If unknown, this is the line of its first step.
    """
    index = bisect_right(starts, before.last_line)
    if index == len(starts):
        return after.first_line
    return min(starts[index], after.first_line)


# --- checkpoints: their times, and whether training continued --------------------------

# Records that are kept per log. More are only counted, and the slowest is unknown then.
KEPT_CHECKPOINTS = 10_000


class CheckpointLines:
    """Collector of the lines about checkpoints, at most KEPT_CHECKPOINTS."""

    def __init__(self) -> None:
        self._records: list[tuple[Meaning, CheckpointRecord]] = []
        self._unread = 0
        self._modes: set[Meaning] = set()

    def add(self, hit: Hit) -> None:
        """Add the line of a marker, if it is about a checkpoint."""
        line = _read_line(hit)
        if line is None:
            return
        meaning, record = line
        if meaning in (Meaning.ASYNCHRONOUS, Meaning.SYNCHRONOUS):
            self._modes.add(meaning)
        elif len(self._records) < KEPT_CHECKPOINTS:
            self._records.append((meaning, record))
        else:
            self._unread += 1

    @property
    def count(self) -> int:
        """Number of lines about a saved or loaded checkpoint."""
        return len(self._records) + self._unread

    def result(self, segments: Sequence[Segment]) -> Checkpoints:
        """Return the records, each with the number of its segment.

        `segments` are all segments of the log. Drops timers of loads in segments that
        loaded nothing.
        """
        first_lines = [segment.first_line for segment in segments]
        last_lines = [segment.last_line for segment in segments]
        assigned_lines = []
        for meaning, record in self._records:
            segment = _find_segment(record, first_lines, last_lines)
            assigned_lines.append((meaning, replace(record, part=segment)))
        # The timer of a load is also printed if there was nothing to load.
        loading_segments = {
            record.part
            for meaning, record in assigned_lines
            if meaning is Meaning.HAPPENED and record.action == LOAD
        }
        records = (
            replace(record, dispatched=self._is_dispatch(meaning))
            for meaning, record in assigned_lines
            if meaning is not Meaning.TIMER or record.part in loading_segments
        )
        return Checkpoints(tuple(records), self._unread)

    def _is_dispatch(self, meaning: Meaning) -> bool:
        """True if the time of a save covers only the start of an asynchronous write.

        For some lines this depends on the mode of saving, which other lines state.
        """
        if meaning is Meaning.STAGING_UNLESS_SYNCHRONOUS:
            return self._modes != {Meaning.SYNCHRONOUS}
        return (
            meaning is Meaning.WHOLE_UNLESS_ASYNCHRONOUS
            and Meaning.ASYNCHRONOUS in self._modes
        )


def _read_line(hit: Hit) -> tuple[Meaning, CheckpointRecord] | None:
    """Return the checkpoint record at a marker with its meaning, or None."""
    for row, time in CHECKPOINTS.read(hit):
        action, meaning = row.fact
        # Lines of the meanings up to TIMER print a time, unless they are truncated.
        timed = meaning.value <= Meaning.TIMER.value
        return meaning, CheckpointRecord(
            action=action,
            line=hit.line,
            seconds=time.seconds,
            torn=timed and time.seconds is None,
            rank=read_rank(hit) or time.rank,
        )
    return None


def _find_segment(
    record: CheckpointRecord, first_lines: Sequence[int], last_lines: Sequence[int]
) -> int:
    """Return the 1-based number of the segment that a checkpoint belongs to, or 0.

    A saved checkpoint belongs to the segment in or after which it was saved, a loaded
    one to the segment for which it was loaded.
    """
    if record.action == LOAD:
        number = bisect_left(last_lines, record.line) + 1
        return number if number <= len(last_lines) else 0
    return bisect_right(first_lines, record.line)


# --- whether a run trains: validation losses without a number, skipped updates ---------

_GET_LINE = itemgetter(0)

TRAINING_MARKERS = (*BAD_VALIDATIONS.markers, *SKIPPED_UPDATES.markers)

# Bytes before a marker of SKIP_COUNT_ROWS in which the match of its pattern may begin.
BEFORE_TEXT = 300


class TrainingLines:
    """Collector of the lines that show a failed update or validation."""

    def __init__(self) -> None:
        self._bad_validations: list[int] = []  # lines
        self._counts: list[tuple[int, SkipCount]] = []  # with their lines
        self._skips: list[int] = []  # lines of single skipped updates
        self._rank: bytes | None = None  # the rank whose skipped updates count
        self._last_scale = b""

    def add(self, hit: Hit) -> None:
        """Add the line of a marker, if it shows a failed update or validation."""
        for _, update in SKIPPED_UPDATES.read(hit):
            self._add_skip(hit.line, update)
        if any(BAD_VALIDATIONS.read(hit)):
            self._bad_validations.append(hit.line)

    def add_skips_near_step(self, hit: Hit) -> None:
        """Add the skipped updates printed on the line of a step, or shortly before.

        The line prints either the number of all skipped updates so far, or that the
        update of this step was skipped. If printed several times, the last one counts.
        """
        # Some frameworks print the number on a line above the step, as DeepSpeed does.
        begin = max(0, hit.start - REACH_BACK)
        end = find_line_stop(hit.text, hit.start, hit.end)
        for row in SKIP_COUNT_ROWS:
            offset = hit.text.rfind(row.marker, begin, end)
            if offset < 0:
                continue
            matches = compile_pattern(row.pattern).finditer(
                hit.text, max(begin, offset - BEFORE_TEXT), end
            )
            for match in deque(matches, maxlen=1):  # the last match, if there is one
                count = row.convert(match)
                prints_total = count.total is not None
                if prints_total:
                    self._counts.append((hit.line, count))
                    continue
                # The update of this step was skipped. Each line counts once, although
                # it may contain several markers.
                is_on_line = b"\n" not in hit.text[match.start() : hit.start]
                is_counted = self._skips[-1:] == [hit.line]
                if is_on_line and not is_counted:
                    self._skips.append(hit.line)

    def add_to_segments(
        self, segments: Sequence[Segment], bad_validations: Sequence[int] = ()
    ) -> tuple[Segment, ...]:
        """Add to each segment the skipped updates and failed validations on its lines.

        Skipped updates belong to a segment from the end of the previous segment on,
        failed validations from the first line of the segment on, both up to the next
        segment. `bad_validations` are the lines of records with a non-finite validation
        loss.
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
        """Add the skipped updates and bad validations between two lines to a segment.

        `lines` are the lines of all bad validations. Also adds learning rates that are
        printed with the skipped updates, if no record prints one.
        """
        # A record of a whole run is printed at the end of the run: then the run begins
        # at its first progress record.
        first = segment.progress[0].line if segment.progress else segment.first_line
        bad_lines = lines[bisect_left(lines, first) : bisect_left(lines, end)]
        first_bad_line = bad_lines[0] if bad_lines else 0
        steps = segment.steps
        counts_begin = bisect_right(self._counts, begin, key=_GET_LINE)
        counts_end = bisect_left(self._counts, end, key=_GET_LINE)
        counts = self._counts[counts_begin:counts_end]
        skips_begin = bisect_right(self._skips, begin)
        skips = self._skips[skips_begin : bisect_left(self._skips, end)]
        if len(steps) and (counts or skips):
            # Records may also count skipped steps: GPT-NeoX prints its own under
            # DeepSpeed's.
            skipped = np.fmax(steps.skipped_steps, _count_skipped(steps, counts, skips))
            steps = replace_columns(steps, skipped_steps=skipped)
            if counts and np.isnan(steps.learning_rate).all():
                steps = replace_columns(
                    steps, learning_rate=_place_rates(steps, counts)
                )
        return replace(segment, steps=steps, bad_validation_line=first_bad_line)

    def _add_skip(self, line: int, update: SkippedUpdate) -> None:
        """Add a skipped update. If every rank prints the update, it is added once."""
        if update.rank is not None:  # only the rank that printed the first one counts
            self._rank = self._rank or update.rank
            if update.rank != self._rank:
                return
        elif update.scale and update.scale == self._last_scale and update.halved:
            # a loss scale is not reduced twice from the same value: another rank's line
            return
        self._last_scale = update.scale
        self._skips.append(line)


def _find_rows(steps: Steps, lines: Sequence[int]) -> Integers:
    """Return the row of the step on or after each line.

    Lines after the last step get the last row.
    """
    return np.searchsorted(steps.line, lines).clip(max=len(steps) - 1)


def _place_rates(steps: Steps, counts: Sequence[tuple[int, SkipCount]]) -> Floats:
    """Return the learning rate printed with each step, NaN if missing."""
    rates = np.full(len(steps), math.nan)
    rows = _find_rows(steps, [line for line, _ in counts])
    rates[rows] = [count.rate for _, count in counts]
    return rates


def _count_skipped(
    steps: Steps, counts: Sequence[tuple[int, SkipCount]], skips: Sequence[int]
) -> Floats:
    """Return the number of skipped updates since the previous record, for each step.

    Printed totals take precedence over single lines.
    """
    most: Integers = steps.mean_of  # a record skips at most the steps that it covers
    if not counts:
        skipped = np.bincount(_find_rows(steps, skips), minlength=len(steps))
        return np.minimum(skipped, most).astype(float)
    totals = np.zeros(len(steps))
    rows = _find_rows(steps, [line for line, _ in counts])
    np.maximum.at(totals, rows, [count.total or 0 for _, count in counts])
    since_start = np.maximum.accumulate(totals)
    since_before = np.diff(since_start, prepend=0.0)  # the first record counts from 0
    return np.minimum(since_before, most)


# --- all collectors ----------------------------------------------------------------


class Facts:
    """All collectors of the facts in one log."""

    def __init__(self) -> None:
        self.statements = Statements()
        self.versions = Versions()
        self.checkpoints = CheckpointLines()
        self.training = TrainingLines()

    def add(self, hit: Hit) -> None:
        """Add the facts at a marker."""
        collector = _COLLECTORS.get(hit.marker)
        if collector is not None:
            getattr(self, collector).add(hit)


# the attribute of Facts that collects each marker
_COLLECTORS: Mapping[bytes, str] = (
    dict.fromkeys(STATED_MARKERS, "statements")
    | dict.fromkeys(VERSIONS.markers, "versions")
    | dict.fromkeys(CHECKPOINTS.markers, "checkpoints")
    | dict.fromkeys(TRAINING_MARKERS, "training")
)
