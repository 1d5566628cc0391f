"""Everything that is found on one way through a log, and what it adds up to."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.log_records import DropReason, ParsedLog, Unread
from pytest_llmbench.logs import dialect_reader, facts, recognisers
from pytest_llmbench.logs import progress_bars as bars
from pytest_llmbench.logs.clock import LineClocks
from pytest_llmbench.logs.dialect_reader import DialectReader, load_reader
from pytest_llmbench.logs.dialect_table import DIALECTS, NO_TOTAL, SEPARATORS, Dialect
from pytest_llmbench.logs.dialects.regex import RegexReader
from pytest_llmbench.logs.endings import MARKERS as ENDING_MARKERS
from pytest_llmbench.logs.endings import Endings, find_decisive_lines
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
# What a process prints before its first step: behind one of these, settings may be
# stated again.
PREAMBLES = frozenset(
    (
        *(
            start
            for dialect in DIALECTS.values()
            for start in dialect.starts
            if start not in SEPARATORS
        ),
        *(
            b"device mesh with",
            b"- INFO - Building ",
            b"using world size: ",
            b"NVIDIA ",
        ),
    )
)
NO_DIALECT = Dialect(first_step=0, markers=())


class ProcessBoundary(NamedTuple):
    """A place where a process starts or training ends."""

    marker: bytes
    offset: int
    line: int
    total: int | None  # the number of steps that it says


class DialectRecords:
    """One dialect's records of a log, in its order, with what was dropped of them."""

    def __init__(self, reader: DialectReader) -> None:
        self.reader = reader
        self.tally = Tally()
        self.records: list[StepRecord] = []
        self.unmatched: Unmatched | None = None
        self.lines = 0
        self.bad_validations: list[int] = []
        self.parts: dialect_reader.UniformSegments = ()
        self.segments: tuple[Segment, ...] = ()
        self._clocks = LineClocks()
        self._clocked = 0

    def read_clocks(self, chunk: ByteChunk) -> None:
        """Read the clocks of the lines of the records that were read in this chunk."""
        if self.records:
            self._clocks.add(chunk, self.records[self._clocked :])
            self._clocked = len(self.records)

    def add(self, hit: Hit, rank: str) -> bool:
        """Read what belongs to a marker; tell whether that is a record, if only a torn
        one."""
        taken = self.reader.read_records(hit, rank)
        self.lines += bool(taken)
        for record in taken:
            if isinstance(record, StepRecord):
                self.records.append(record)
                if record.bad_validation:
                    self.bad_validations.append(hit.line)
            elif isinstance(record, Unmatched):
                self.unmatched = self.unmatched or record
            else:
                self.tally.add(DropReason.TORN, hit.line, quote=record.text)
        return any(not isinstance(record, Unmatched) for record in taken)

    def unread(self, dialect: RegexDialect) -> Unread:
        """Return in how many lines the text of a dialect stands, and the first that its
        pattern does not match."""
        unread, first = Unread(dialect.name, dialect.find, self.lines), self.unmatched
        if first is None:
            return unread
        return replace(
            unread,
            first_line=first.origin.line,
            quote=make_printable(first.text),
            group=first.group,
        )

    def divide(
        self, marks: Sequence[ProcessBoundary], begun: Sequence[StepRecord]
    ) -> int:
        """Divide the records into segments; return how many steps they hold.

        `begun` are the beginnings of bars, which only a dialect that prints late has to
        know.
        """
        dialect = self.reader.dialect
        starts = [mark for mark in marks if mark.marker in dialect.starts]
        places = BoundaryOffsets(
            starts=[mark.offset for mark in starts],
            ends=[mark.offset for mark in marks if mark.marker in dialect.ends],
            totals=[
                (mark.offset, mark.total) for mark in starts if mark.total is not None
            ],
            ends_divide=dialect.ends_divide,
        )
        if self.parts:
            self.segments = divide_uniform(self.parts, places, dialect.first_step)
            return sum(len(part.steps) for part in self.parts)
        records = self.records
        if begun and dialect.prints_late:
            records = sorted(
                [*records, *begun], key=lambda record: record.origin.offset
            )
        self.segments = divide_segments(
            records, places, self.reader, self.tally, self._clocks
        )
        return sum(len(segment.steps) for segment in self.segments)


class LogCollector:
    """Takes the chunks of one log in order, then says what the log holds."""

    def __init__(self, definitions: Iterable[RegexDialect] = ()) -> None:
        """Take the dialects that baseline files define; of those alike the first one is
        read, and stands for all."""
        self._by_dialect: dict[str, DialectRecords] = {}
        self._alike: dict[RegexDialect, list[RegexDialect]] = defaultdict(list)
        for definition in definitions:
            self._alike[replace(definition, name="")].append(definition)
        self._defined = [alike[0] for alike in self._alike.values()]
        texts = (
            text.encode()
            for dialect in self._defined
            for text in (dialect.find, dialect.start, dialect.end)
        )
        self._markers = dict.fromkeys(filter(None, texts))
        self._late = (*ALL_MARKERS, *self._markers)
        self._marks: list[ProcessBoundary] = []
        self._bars: list[StepRecord] = []
        self._endings = Endings()
        self._facts = facts.Facts()
        self._preamble = facts.Preamble()
        self._trace_begin = 0
        self._trace_line = 0
        self._steps_since_trace = False
        self._start = facts.StartTime()
        self._rank = (0, "")
        self._lines = 0

    def choose_markers(self, offset: int) -> MarkerSearch:
        """Return what to look for from this place of the log on."""
        # A trace repeats its marker in every line, and one of them says enough.
        return self._build_search(
            offset, traced=bool(self._trace_begin) and not self._steps_since_trace
        )

    def _build_search(self, offset: int, *, traced: bool) -> MarkerSearch:
        # Behind AT_ONCE markers those are searched for apart that cost least: none of
        # them begins with what is frequent. What a log states takes as long again, but
        # stands at its beginning only.
        markers = self._late if traced else (*self._late, *recognisers.TRACE.markers)
        if offset < recognisers.VERSIONS.farthest:
            markers += recognisers.VERSIONS.markers
        return build_search(
            markers + recognisers.EARLY.markers
            if offset < recognisers.EARLY.farthest
            else markers
        )

    @property
    def records(self) -> list[StepRecord]:
        """What was read so far, dialect by dialect, each in the order of the log,
        before anything is settled."""
        return [
            record
            for records in self._by_dialect.values()
            for record in records.records
        ]

    @property
    def checkpoint_lines(self) -> int:
        """How many lines told so far that a checkpoint was saved or loaded."""
        return self._facts.checkpoints.count

    @property
    def follows(self) -> bool:
        """Whether every line matters: the log has not said when it started, no step was
        printed yet, or a traceback goes on."""
        return self._start.looks or self._preamble.is_open or self._endings.follows

    def search(self, chunk: ByteChunk) -> None:
        """Find the markers in the new part of a chunk, and take it."""
        markers = self.choose_markers(chunk.offset + chunk.start)
        self.take(chunk, markers.find_places(chunk.text, chunk.start, chunk.stop))

    def take(self, chunk: ByteChunk, places: Sequence[tuple[int, bytes]]) -> None:
        """Take the new part of a chunk, with the places of markers that it holds."""
        self._start.take(chunk)
        self._preamble.begin(chunk)
        if self._trace_begin and any(
            marker in STEP_MARKERS or marker in self._markers for _, marker in places
        ):
            markers = self._build_search(
                chunk.offset + chunk.start, traced=False
            )  # a trace may follow these steps
            places = markers.find_places(chunk.text, chunk.start, chunk.stop)
        if chunk.whole:
            places = self._take_uniform(chunk, places)
        if self._markers.keys().isdisjoint(recognisers.DECISIVE_PATTERNS):
            places = facts.drop_silent(chunk.text, places)
        self._take_hits(chunk, locate_hits(chunk, places))
        if chunk.stop:
            self.pass_over(chunk.next_line, chunk.text.endswith(b"\n", 0, chunk.stop))

    def _take_hits(self, chunk: ByteChunk, hits: Sequence[Hit]) -> None:
        marks, ends = [], []
        for hit in hits:
            if hit.marker in self._markers:
                self._take_defined(hit)
            self._file(hit)
            if hit.marker in PREAMBLES:
                self._preamble.reopen(hit.start)
            if hit.marker in PROCESS_MARKERS:
                marks.append(hit)
            if hit.marker in ENDING_MARKERS:
                ends.append(hit)
        self._read_clocks(chunk)
        self._endings.take(chunk, ends)
        self._facts.statements.add_settings(chunk, self._preamble.finish(chunk))
        if marks:
            self._add_marks(marks)

    def _read_clocks(self, chunk: ByteChunk) -> None:
        """Read the clocks of the lines with steps."""
        for records in self._by_dialect.values():
            records.read_clocks(chunk)

    def _add_marks(self, marks: Sequence[Hit]) -> None:
        """Keep the marks of processes that can count."""
        counting = self._list_counting_markers()
        self._marks += (
            ProcessBoundary(hit.marker, hit.offset, hit.line, read_total(hit))
            for hit in marks
            if hit.marker in counting
        )

    def _take_uniform(
        self, chunk: ByteChunk, places: Sequence[tuple[int, bytes]]
    ) -> Sequence[tuple[int, bytes]]:
        """Read the steps of a whole log at once, if they are alike; return the places
        that are left to be looked at."""
        markers = {marker for _, marker in places}
        names = {STEP_MARKERS[marker] for marker in markers if marker in STEP_MARKERS}
        if (
            len(names) != 1
            or not markers.isdisjoint(recognisers.TRACE.by_marker)
            or not markers.isdisjoint(self._markers)
        ):
            return places
        name = names.pop()
        reader = load_reader(name)
        if reader.read_columns is None:
            return places
        marks = [each for each in places if each[1] in PROCESS_MARKERS]
        starts, ends = (
            [place for place, marker in marks if marker in of]
            for of in (reader.dialect.starts, reader.dialect.ends)
        )
        steps = [place for place, marker in places if marker in STEP_MARKERS]
        parts = dialect_reader.read_segments(
            reader.read_columns, chunk.text, steps, starts, ends
        )
        if parts is None:
            return places
        records = self._by_dialect[name] = DialectRecords(reader)
        records.parts = parts
        for again in (part.repeated for part in parts if part.repeated):
            records.tally.add(DropReason.REPEATED, again.first, again.text, again.times)
        for place, marker in places:
            if marker in STEP_MARKERS:
                self._preamble.close(place)
            elif marker in PREAMBLES:
                self._preamble.reopen(place)
        self._preamble.lock()
        return [each for each in places if each[1] not in STEP_MARKERS]

    def pass_over(self, next_line: int, ended: bool) -> None:
        """Take a part without markers, which ends on a line of this number and perhaps
        with its line feed."""
        self._lines = next_line - ended

    def result(self) -> ParsedLog:
        """Return what was found; the dialect with most steps is the log's, None if
        there is no step.

        Of several with as many, one that a file defines. Where files define some, all
        the others are in `readings`.
        """
        self._marks.sort(key=lambda mark: mark.offset)
        steps = {
            name: records.divide(self._marks, self._bars)
            for name, records in self._by_dialect.items()
        }
        names = [
            name
            for name in (*(dialect.name for dialect in self._defined), *DIALECTS)
            if steps.get(name)
        ]
        if not names:
            return replace(self._make_log(None), unread=tuple(self._unread()))
        chosen, *others = sorted(names, key=lambda name: -steps[name])
        read = {
            name: self._make_log(name)
            for name in (chosen, *(others if self._defined else ()))
        }
        alike = [
            replace(read[first.name], dialect=dialect.name)
            for first, *more in self._alike.values()
            for dialect in more
            if first.name in read
        ]
        log = read.pop(chosen)
        return replace(log, readings=(*read.values(), *alike)) if read or alike else log

    def _sum_dropped(self, chosen: str | None) -> Tally:
        """Return what was dropped if the log is of this dialect; one that a file
        defines is tried on every log."""
        tally = Tally()
        for name, dialect_records in self._by_dialect.items():
            if name == chosen or chosen is None:
                tally.merge(dialect_records.tally)
            elif name in DIALECTS and (
                records := [each for each in dialect_records.records if _is_timed(each)]
            ):
                first = records[0]
                tally.add(
                    DropReason.OTHER_DIALECT,
                    first.origin.line,
                    f"{name}: step {first.step}",
                    len(records),
                )
        return tally

    def _unread(self) -> Iterator[Unread]:
        """Yield why the dialects that baseline files define find no step."""
        for alike in self._alike.values():
            records = self._by_dialect.get(alike[0].name)
            for dialect in alike:
                yield (
                    records.unread(dialect)
                    if records
                    else Unread(dialect.name, dialect.find)
                )

    def _make_log(self, chosen: str | None) -> ParsedLog:
        dialect = self._by_dialect[chosen].reader.dialect if chosen else NO_DIALECT
        starts, ends = (
            [mark.line for mark in self._marks if mark.marker in of]
            for of in (dialect.starts, dialect.ends)
        )
        parts: tuple[Segment, ...] = ()
        if chosen:
            records = self._by_dialect[chosen]
            parts = self._facts.statements.add_to_segments(records.segments, starts)
            parts = self._facts.training.add_to_segments(parts, records.bad_validations)
        shipped = any(each.name == chosen and each.shipped for each in self._defined)
        # Of a framework whose versions differ the log shows whether it prints the loss.
        silent = shipped and not all(part.steps.has_loss.all() for part in parts)
        return ParsedLog(
            dialect=chosen,
            segments=parts,
            dropped=self._sum_dropped(chosen).result(),
            ending=self._endings.result(find_decisive_lines(parts, ends)),
            started=self._start.time,
            nccl_line=self._trace_begin,
            nccl_last_line=self._trace_line,
            checkpoints=self._facts.checkpoints.result(parts),
            environment=self._facts.versions.result(),
            lines=self._lines,
            prints_loss=dialect.prints_loss and not silent,
            begun_again_line=self._find_restart(dialect, parts),
        )

    def _list_counting_markers(self) -> dict[bytes, None]:
        """Return the marks that can count: what stands before all records of a dialect
        says its total at most."""
        names = {
            name
            for name, records in self._by_dialect.items()
            if records.records or records.parts
        }
        dialects = [
            each
            for name, each in DIALECTS.items()
            if name in names or each.total != NO_TOTAL
        ]
        return dict.fromkeys(
            marker for each in dialects for marker in each.starts + each.ends
        )

    def _find_restart(self, dialect: Dialect, parts: Sequence[Segment]) -> int:
        """Return where a process starts of which there is no step, behind a finished
        part; 0 where none does."""
        if not parts or not parts[-1].finished:
            return 0
        starts = set(dialect.starts).difference(SEPARATORS)
        lines = (mark.line for mark in self._marks if mark.marker in starts)
        return next((line for line in lines if line > parts[-1].last_line), 0)

    def _file(self, hit: Hit) -> None:
        """Put a marker where it belongs."""
        if hit.marker in STEP_MARKERS:
            self._take_step(hit)
        elif hit.marker == bars.BEGIN:
            begun = bars.read_beginning(hit)
            self._bars += [begun] if begun else []
        elif hit.marker in recognisers.TRACE.by_marker:
            if any(recognisers.TRACE.read(hit)):
                self._take_operation(hit)
        else:
            self._facts.add(hit)

    def _take_operation(self, hit: Hit) -> None:
        """Keep the first line of a trace, and the first one after each step, to tell
        how far it goes."""
        if not self._trace_begin or self._steps_since_trace:
            self._trace_line, self._steps_since_trace = hit.line, False
        self._trace_begin = self._trace_begin or hit.line

    def _take_defined(self, hit: Hit) -> None:
        """Read what is at a text that a baseline file names."""
        for definition in self._defined:
            if hit.marker == definition.find.encode():
                if definition.name not in self._by_dialect:
                    self._by_dialect[definition.name] = DialectRecords(
                        RegexReader(definition)
                    )
                is_record = self._by_dialect[definition.name].add(hit, "")
                self._facts.training.add_near_step(hit)
                if is_record:
                    self._preamble.close(hit.start)
                self._steps_since_trace |= is_record and bool(self._trace_line)
        if any(
            hit.marker in (dialect.start.encode(), dialect.end.encode())
            for dialect in self._defined
        ):
            self._marks.append(ProcessBoundary(hit.marker, hit.offset, hit.line, None))

    def _take_step(self, hit: Hit) -> None:
        """Read a step; where a long line of bars hides its beginning, the rank is that
        of the bar before."""
        self._steps_since_trace = bool(self._trace_line)
        line, rank = self._rank
        rank = read_rank(hit) or (rank if line == hit.line else "")
        self._rank = (hit.line, rank)
        name = STEP_MARKERS[hit.marker]
        if name not in self._by_dialect:
            self._by_dialect[name] = DialectRecords(load_reader(name))
        if self._by_dialect[name].add(hit, rank):
            self._preamble.close(hit.start)


def _is_timed(record: StepRecord) -> bool:
    return record.mean_of > 0 and record.has_value


def read_total(hit: Hit) -> int | None:
    """Return the number of steps that a start mark says, or None."""
    matches = (
        re.match(each.total, hit.text[hit.start : hit.end])
        for each in DIALECTS.values()
        if hit.marker in each.starts
    )
    return next((int(match[1]) for match in matches if match), None)
