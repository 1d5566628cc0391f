"""Collect everything found in one pass through a log, and build the parsed log."""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from pytest_llmbench.core.log_records import DropReason, ParsedLog, Unread
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs import dialect_reader, facts, recognisers
from pytest_llmbench.logs import progress_bars as bars
from pytest_llmbench.logs.clock import LineClocks
from pytest_llmbench.logs.dialect_reader import DialectReader, load_reader
from pytest_llmbench.logs.dialect_table import DIALECTS, NO_TOTAL, SEPARATORS, Dialect
from pytest_llmbench.logs.dialects.regex import RegexReader
from pytest_llmbench.logs.endings import MARKERS as ENDING_MARKERS
from pytest_llmbench.logs.endings import (
    Endings,
    drop_harmless_errors,
    find_decisive_lines,
)
from pytest_llmbench.logs.recognisers import ERROR
from pytest_llmbench.logs.scan import (
    ByteChunk,
    Hit,
    MarkerSearch,
    build_search,
    locate_hits,
)
from pytest_llmbench.logs.segments import (
    BoundaryOffsets,
    divide_segments,
    divide_uniform,
)
from pytest_llmbench.logs.step_records import (
    StepRecord,
    Tally,
    Unmatched,
    make_printable,
    read_rank,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_llmbench.core.baseline_records import RegexDialect
    from pytest_llmbench.core.log_records import Segment

STEP_MARKERS = {
    marker: name for name, dialect in DIALECTS.items() for marker in dialect.markers
}
RECORD_HEADS = {
    marker: compile_on_use(head)
    for dialect in DIALECTS.values()
    for marker, head in dialect.heads.items()
}
PROCESS_MARKERS = frozenset(
    marker for dialect in DIALECTS.values() for marker in dialect.starts + dialect.ends
)
ALL_MARKERS = tuple(
    dict.fromkeys(
        (
            *STEP_MARKERS,
            *ENDING_MARKERS,
            *recognisers.CHECKPOINTS.markers,
            *sorted(PROCESS_MARKERS),
            *recognisers.PROFILER.markers,
            bars.BEGIN,
            *facts.TRAINING_MARKERS,
        )
    )
)
# Texts that a process prints before its first step. Settings may be stated again after
# them.
PREAMBLE_TEXTS = frozenset(
    (
        *(
            start
            for dialect in DIALECTS.values()
            for start in dialect.starts
            if start not in SEPARATORS
        ),
        *recognisers.STARTING_TEXTS,
    )
)
GET_MARKER = itemgetter(1)  # of an (offset, marker) match
NO_DIALECT = Dialect(first_step=0, markers=())

# The patterns of the number of steps that a start marker prints.
TOTALS = {
    marker: tuple(
        dialect.total
        for dialect in DIALECTS.values()
        if marker in dialect.starts and dialect.total != NO_TOTAL
    )
    for marker in PROCESS_MARKERS
}
# The boundary markers of each dialect, and those of the dialects that print the number
# of steps.
BOUNDARIES = {
    name: frozenset(dialect.starts + dialect.ends) for name, dialect in DIALECTS.items()
}
BOUNDARIES_WITH_TOTAL = frozenset(
    marker
    for name, dialect in DIALECTS.items()
    if dialect.total != NO_TOTAL
    for marker in BOUNDARIES[name]
)


@cache
def _build_search(
    defined: tuple[bytes, ...], *, traced: bool, with_versions: bool, with_early: bool
) -> MarkerSearch:
    """Build the search for the markers of a part of a log, once.

    `defined` are the markers of dialects that baseline files define.
    """
    # Markers beyond AT_ONCE need a second automaton, so the cheapest come last:
    # none of them begins with a frequent text. Settings double the time of the
    # search, but occur only at the beginning of a log.
    markers = (*ALL_MARKERS, *defined)
    if not traced:
        markers += recognisers.TRACE.markers
    if with_versions:
        markers += recognisers.VERSIONS.markers
    if with_early:
        markers += recognisers.EARLY.markers
    return build_search(markers)


class ProcessBoundary(NamedTuple):
    """A position where a process starts or training ends."""

    marker: bytes
    offset: int
    line: int
    total: int | None  # the printed number of steps


class DialectRecords:
    """Records of one dialect in a log, with a tally of dropped records."""

    def __init__(self, reader: DialectReader) -> None:
        self.reader = reader
        self.tally = Tally()
        self.records: list[StepRecord] = []
        self.unmatched: Unmatched | None = None
        self.lines = 0  # number of lines with records
        self.bad_validations: list[int] = []  # line numbers
        self.parts: dialect_reader.UniformSegments = ()
        self.segments: tuple[Segment, ...] = ()
        self._clocks = LineClocks()
        self._clocks_read = 0  # number of records whose clocks were read

    def read_clocks(self, chunk: ByteChunk) -> None:
        """Read the timestamps of the lines whose records were read in this chunk."""
        if self.records:
            self._clocks.add(chunk, self.records[self._clocks_read :])
            self._clocks_read = len(self.records)

    def add(self, hit: Hit, rank: str) -> bool:
        """Read the records at a marker.

        Returns True if there is a record, even a truncated one.
        """
        records = self.reader.read_records(hit, rank)
        self.lines += bool(records)
        for record in records:
            if isinstance(record, StepRecord):
                self.records.append(record)
                if record.bad_validation:
                    self.bad_validations.append(hit.line)
            elif isinstance(record, Unmatched):
                self.unmatched = self.unmatched or record
            else:
                self.tally.add(DropReason.TORN, hit.line, quote=record.text)
        return any(not isinstance(record, Unmatched) for record in records)

    def describe_unread_lines(self, dialect: RegexDialect) -> Unread:
        """Count the lines with the dialect's `find` text, and quote an unread one.

        This is the first of these lines that the dialect's pattern does not match.
        """
        unread = Unread(dialect.name, dialect.find, self.lines)
        if self.unmatched is None:
            return unread
        return replace(
            unread,
            first_line=self.unmatched.origin.line,
            quote=make_printable(self.unmatched.text),
            group=self.unmatched.group,
        )

    def divide(
        self, boundaries: Sequence[ProcessBoundary], begun: Sequence[StepRecord]
    ) -> int:
        """Divide the records into segments. Returns the number of steps.

        `begun` are the first states of progress bars, used only for dialects that print
        late.
        """
        dialect = self.reader.dialect
        starts = [
            boundary for boundary in boundaries if boundary.marker in dialect.starts
        ]
        ends = [boundary for boundary in boundaries if boundary.marker in dialect.ends]
        offsets = BoundaryOffsets(
            starts=[boundary.offset for boundary in starts],
            ends=[boundary.offset for boundary in ends],
            totals=[
                (boundary.offset, boundary.total)
                for boundary in starts
                if boundary.total is not None
            ],
            ends_divide=dialect.ends_divide,
        )
        if self.parts:
            self.segments = divide_uniform(self.parts, offsets, dialect.first_step)
            return sum(len(part.steps) for part in self.parts)
        records = self.records
        if begun and dialect.prints_late:
            records = sorted(
                [*records, *begun], key=lambda record: record.origin.offset
            )
        self.segments = divide_segments(
            records, offsets, self.reader, self.tally, self._clocks
        )
        return sum(len(segment.steps) for segment in self.segments)


class LogCollector:
    """Collector of the chunks of a log, in order."""

    def __init__(self, definitions: Iterable[RegexDialect] = ()) -> None:
        """`definitions` are the dialects that baseline files define.

        Definitions that differ only in their names are read once, under the first name.
        """
        self._by_dialect: dict[str, DialectRecords] = {}
        self._duplicates: dict[RegexDialect, list[RegexDialect]] = defaultdict(list)
        for definition in definitions:
            self._duplicates[replace(definition, name="")].append(definition)
        self._defined = [
            definitions_alike[0] for definitions_alike in self._duplicates.values()
        ]
        texts = (
            text.encode()
            for dialect in self._defined
            for text in (dialect.find, dialect.start, dialect.end)
        )
        self._markers = dict.fromkeys(filter(None, texts))
        self._defined_markers = tuple(self._markers)
        self._boundaries: list[ProcessBoundary] = []
        self._bars: list[StepRecord] = []
        self._endings = Endings()
        self._facts = facts.Facts()
        self._preamble = facts.Preamble()
        self._trace_begin = 0  # first line of a trace in the log, 0 without a trace
        self._trace_line = 0  # first line of a trace since the last step
        self._steps_since_trace = False
        self._start = facts.StartTime()
        self._rank = (0, "")  # line and rank of the last step
        self._lines = 0

    def choose_markers(self, offset: int) -> MarkerSearch:
        """Return the search for all markers needed from `offset` on."""
        # A trace repeats its marker in every line, and one line is enough.
        return self._build_search(
            offset, traced=bool(self._trace_begin) and not self._steps_since_trace
        )

    def _build_search(self, offset: int, *, traced: bool) -> MarkerSearch:
        """Return the search from `offset` on.

        `traced` is True if a trace was found, whose markers are then not searched.
        """
        return _build_search(
            self._defined_markers,
            traced=traced,
            with_versions=offset < recognisers.VERSIONS.farthest,
            with_early=offset < recognisers.EARLY.farthest,
        )

    @property
    def records(self) -> list[StepRecord]:
        """All records so far, before they are resolved into steps.

        Grouped by dialect, then in log order.
        """
        return [
            record
            for records in self._by_dialect.values()
            for record in records.records
        ]

    @property
    def checkpoint_lines(self) -> int:
        """Number of lines so far about a saved or loaded checkpoint."""
        return self._facts.checkpoints.count

    @property
    def needs_all_lines(self) -> bool:
        """True if every line matters, not only lines with markers.

        Every line matters until the start time is known and the first step is printed,
        and while a traceback is incomplete.
        """
        return (
            self._start.is_open
            or self._preamble.is_open
            or self._endings.has_open_traceback
        )

    def search(self, chunk: ByteChunk) -> None:
        """Find the markers in the new part of a chunk, and feed the chunk."""
        markers = self.choose_markers(chunk.offset + chunk.start)
        self.feed(chunk, markers.find_matches(chunk.text, chunk.start, chunk.stop))

    def feed(self, chunk: ByteChunk, matches: Sequence[tuple[int, bytes]]) -> None:
        """Add the new part of a chunk with its (offset, marker) matches."""
        self._start.feed(chunk)
        self._preamble.begin(chunk)
        if self._trace_begin and any(
            marker in STEP_MARKERS or marker in self._markers for _, marker in matches
        ):
            # A trace may follow these steps.
            markers = self._build_search(chunk.offset + chunk.start, traced=False)
            matches = markers.find_matches(chunk.text, chunk.start, chunk.stop)
        if self._markers.keys().isdisjoint(recognisers.DECISIVE_PATTERNS):
            matches = facts.drop_unmatched(chunk.text, matches)
        if chunk.whole:
            matches = self._read_uniform(chunk, matches)
        if ERROR not in self._markers:
            matches = drop_harmless_errors(chunk.text, matches)
        self._dispatch_hits(chunk, locate_hits(chunk, matches))
        if chunk.stop:
            self.skip(chunk.next_line, chunk.text.endswith(b"\n", 0, chunk.stop))

    def _dispatch_hits(self, chunk: ByteChunk, hits: Sequence[Hit]) -> None:
        """Pass the hits of a chunk to the collectors, and read clocks and settings."""
        boundaries, endings = [], []
        for hit in hits:
            if hit.marker in self._markers:
                self._read_user_defined(hit)
            self._dispatch(hit)
            if hit.marker in PREAMBLE_TEXTS:
                self._preamble.reopen(hit.start)
            if hit.marker in PROCESS_MARKERS:
                boundaries.append(hit)
            if hit.marker in ENDING_MARKERS:
                endings.append(hit)
        self._read_clocks(chunk)
        self._endings.feed(chunk, endings)
        self._facts.statements.add_settings(chunk, self._preamble.finish(chunk))
        if boundaries:
            self._add_boundaries(boundaries)

    def _read_clocks(self, chunk: ByteChunk) -> None:
        for records in self._by_dialect.values():
            records.read_clocks(chunk)

    def _add_boundaries(self, hits: Sequence[Hit]) -> None:
        """Add the process boundaries that can matter."""
        # A marker before all records of a dialect matters only if it prints the total.
        relevant = BOUNDARIES_WITH_TOTAL.union(
            *(
                BOUNDARIES.get(name, frozenset())
                for name, records in self._by_dialect.items()
                if records.records or records.parts
            )
        )
        self._boundaries += (
            ProcessBoundary(hit.marker, hit.offset, hit.line, read_total(hit))
            for hit in hits
            if hit.marker in relevant
        )

    def _read_uniform(
        self, chunk: ByteChunk, matches: Sequence[tuple[int, bytes]]
    ) -> Sequence[tuple[int, bytes]]:
        """Read all steps of a whole log by columns, if they are alike.

        Returns the matches that are left to read: all of them if the steps differ.
        """
        steps, others = _find_step_markers(chunk.text, matches)
        names = {STEP_MARKERS[marker] for marker in set(map(GET_MARKER, steps))}
        markers = set(map(GET_MARKER, matches))
        # Not for several dialects, a trace, or dialects that baseline files define.
        if (
            len(names) != 1
            or not markers.isdisjoint(recognisers.TRACE.by_marker)
            or not markers.isdisjoint(self._markers)
        ):
            return matches
        name = names.pop()
        reader = load_reader(name)
        if reader.read_columns is None:
            return matches
        dialect = reader.dialect
        lines = dialect_reader.locate_lines(chunk.text, steps, dialect)
        boundaries = [
            (offset, marker) for offset, marker in others if marker in PROCESS_MARKERS
        ]
        starts = [offset for offset, marker in boundaries if marker in dialect.starts]
        ends = [offset for offset, marker in boundaries if marker in dialect.ends]
        parts = lines and dialect_reader.read_segments(
            reader.read_columns, lines, starts, ends
        )
        if parts is None:
            return matches
        records = self._by_dialect[name] = DialectRecords(reader)
        records.parts = parts
        for repeat in (part.repeated for part in parts if part.repeated):
            records.tally.add(
                DropReason.REPEATED, repeat.first, repeat.text, repeat.times
            )
        self._close_preambles([offset for offset, _ in steps], others)
        self._preamble.lock()
        return others

    def _close_preambles(
        self, steps: Sequence[int], others: Iterable[tuple[int, bytes]]
    ) -> None:
        """End the preamble of each process at its first step.

        `steps` are the offsets of all steps, `others` the other matches.
        """
        end = steps[0]
        self._preamble.close(end)
        for offset, marker in others:
            if marker in PREAMBLE_TEXTS and offset > end:
                self._preamble.reopen(offset)
                row = bisect(steps, offset)
                if row < len(steps):
                    end = steps[row]
                    self._preamble.close(end)

    def skip(self, next_line: int, ended: bool) -> None:
        """Skip a block without markers, which ends on line `next_line`.

        `ended` is True if the block ends with a line feed.
        """
        self._lines = next_line - ended

    def result(self) -> ParsedLog:
        """Build the parsed log.

        The dialect with most steps is the log's dialect (None without steps). Dialects
        that baseline files define win a tie. If there are such definitions, the results
        of all other dialects are in `readings`.
        """
        self._boundaries.sort(key=lambda boundary: boundary.offset)
        steps = {
            name: records.divide(self._boundaries, self._bars)
            for name, records in self._by_dialect.items()
        }
        names = [
            name
            for name in (*(dialect.name for dialect in self._defined), *DIALECTS)
            if steps.get(name)
        ]
        if not names:
            return replace(self._build_log(None), unread=tuple(self._list_unread()))
        chosen, *other_names = sorted(names, key=lambda name: -steps[name])
        log = self._build_log(chosen)
        if not self._defined:
            return log
        other_logs = {name: self._build_log(name) for name in other_names}
        logs = {chosen: log, **other_logs}
        duplicate_logs = [
            replace(logs[first.name], dialect=duplicate.name)
            for first, *duplicates in self._duplicates.values()
            for duplicate in duplicates
            if first.name in logs
        ]
        readings = (*other_logs.values(), *duplicate_logs)
        return replace(log, readings=readings) if readings else log

    def _sum_dropped(self, chosen: str | None) -> Tally:
        """Return the tally of dropped records for a log of the dialect `chosen`.

        Records of other user-defined dialects are ignored: these dialects are tried on
        every log.
        """
        tally = Tally()
        for name, dialect_records in self._by_dialect.items():
            if name == chosen or chosen is None:
                tally.merge(dialect_records.tally)
            elif name in DIALECTS:
                timed_records = list(filter(_is_timed, dialect_records.records))
                if timed_records:
                    first = timed_records[0]
                    tally.add(
                        DropReason.OTHER_DIALECT,
                        first.origin.line,
                        f"{name}: step {first.step}",
                        len(timed_records),
                    )
        return tally

    def _list_unread(self) -> Iterator[Unread]:
        """Yield the reasons why the dialects that baseline files define find no step."""
        for definitions in self._duplicates.values():
            # Definitions that differ only in their names are read under the first name.
            records = self._by_dialect.get(definitions[0].name)
            for dialect in definitions:
                if records:
                    yield records.describe_unread_lines(dialect)
                else:
                    yield Unread(dialect.name, dialect.find)

    def _build_log(self, chosen: str | None) -> ParsedLog:
        """Build the log as read in the dialect `chosen`; None means without steps."""
        dialect = self._by_dialect[chosen].reader.dialect if chosen else NO_DIALECT
        starts = self._list_boundary_lines(dialect.starts)
        ends = self._list_boundary_lines(dialect.ends)
        segments: tuple[Segment, ...] = ()
        if chosen:
            records = self._by_dialect[chosen]
            segments = self._facts.statements.add_to_segments(records.segments, starts)
            segments = self._facts.training.add_to_segments(
                segments, records.bad_validations
            )
        prints_loss = dialect.prints_loss
        is_shipped = any(
            definition.name == chosen and definition.shipped
            for definition in self._defined
        )
        if is_shipped:
            # Versions of a framework may differ in printing the loss: the log decides.
            has_all_losses = all(segment.steps.has_loss.all() for segment in segments)
            prints_loss = prints_loss and has_all_losses
        return ParsedLog(
            dialect=chosen,
            segments=segments,
            dropped=self._sum_dropped(chosen).result(),
            ending=self._endings.result(find_decisive_lines(segments, ends)),
            started=self._start.time,
            nccl_line=self._trace_begin,
            nccl_last_line=self._trace_line,
            checkpoints=self._facts.checkpoints.result(segments),
            environment=self._facts.versions.result(),
            lines=self._lines,
            prints_loss=prints_loss,
            begun_again_line=self._find_restart(dialect, segments),
        )

    def _list_boundary_lines(self, markers: Sequence[bytes]) -> list[int]:
        """Return the lines of the process boundaries with these markers."""
        return [
            boundary.line for boundary in self._boundaries if boundary.marker in markers
        ]

    def _find_restart(self, dialect: Dialect, segments: Sequence[Segment]) -> int:
        """Return the line of a process start after a finished last segment, or 0.

        Such a process has not printed a step.
        """
        if not segments or not segments[-1].finished:
            return 0
        starts = set(dialect.starts).difference(SEPARATORS)
        lines = (
            boundary.line for boundary in self._boundaries if boundary.marker in starts
        )
        return next((line for line in lines if line > segments[-1].last_line), 0)

    def _dispatch(self, hit: Hit) -> None:
        """Dispatch a hit to the collector of its marker."""
        if hit.marker in STEP_MARKERS:
            self._read_step(hit)
        elif hit.marker == bars.BEGIN:
            begun = bars.read_beginning(hit)
            if begun:
                self._bars.append(begun)
        elif hit.marker in recognisers.TRACE.by_marker:
            if any(recognisers.TRACE.read(hit)):
                self._add_trace_line(hit)
        else:
            self._facts.add(hit)

    def _add_trace_line(self, hit: Hit) -> None:
        """Record the first trace line of the log, and the first since the last step."""
        if not self._trace_begin or self._steps_since_trace:
            self._trace_line, self._steps_since_trace = hit.line, False
        self._trace_begin = self._trace_begin or hit.line

    def _read_user_defined(self, hit: Hit) -> None:
        """Read the record at a text that a baseline file defines."""
        for definition in self._defined:
            if hit.marker == definition.find.encode():
                if definition.name not in self._by_dialect:
                    self._by_dialect[definition.name] = DialectRecords(
                        RegexReader(definition)
                    )
                is_record = self._by_dialect[definition.name].add(hit, "")
                self._facts.training.add_skips_near_step(hit)
                if is_record:
                    self._preamble.close(hit.start)
                self._steps_since_trace |= is_record and bool(self._trace_line)
        if any(
            hit.marker in (dialect.start.encode(), dialect.end.encode())
            for dialect in self._defined
        ):
            self._boundaries.append(
                ProcessBoundary(hit.marker, hit.offset, hit.line, None)
            )

    def _read_step(self, hit: Hit) -> None:
        """Read a step.

        If the beginning of a long line of bars is out of reach, the rank is that of the
        previous bar.
        """
        self._steps_since_trace = bool(self._trace_line)
        rank = read_rank(hit)
        previous_line, previous_rank = self._rank
        if not rank and previous_line == hit.line:
            rank = previous_rank
        self._rank = (hit.line, rank)
        name = STEP_MARKERS[hit.marker]
        if name not in self._by_dialect:
            self._by_dialect[name] = DialectRecords(load_reader(name))
        if self._by_dialect[name].add(hit, rank):
            self._preamble.close(hit.start)


def _find_step_markers(
    text: bytes, matches: Sequence[tuple[int, bytes]]
) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Divide (offset, marker) matches into those that may begin steps, and others."""
    steps = [match for match in matches if match[1] in STEP_MARKERS]
    others = (
        [match for match in matches if match[1] not in STEP_MARKERS]
        if len(steps) < len(matches)
        else []
    )
    if RECORD_HEADS.keys().isdisjoint(map(GET_MARKER, steps)):
        return steps, others
    kept = [
        (offset, marker)
        for offset, marker in steps
        if marker not in RECORD_HEADS or RECORD_HEADS[marker].match(text, offset)
    ]
    if len(kept) == len(steps):
        return steps, others
    return kept, sorted({*matches}.difference(kept))


def _is_timed(record: StepRecord) -> bool:
    """True if a record is a training step with a time, time stamp or token rate."""
    return record.mean_of > 0 and record.has_value


def read_total(hit: Hit) -> int | None:
    """Return the number of steps that a start marker prints, or None."""
    for pattern in TOTALS.get(hit.marker, ()):
        match = re.match(pattern, hit.text[hit.start : hit.end])
        if match:
            return int(match[1])
    return None
