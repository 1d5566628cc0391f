"""Everything that is found on one way through a log, and what it adds up to."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.models import ParsedLog, Unread
from pytest_llmbench.ingest.parse import checkpoints, environment, facts, stated, uniform
from pytest_llmbench.ingest.parse.dialect_table import DIALECTS, NO_TOTAL, SEPARATORS, Dialect, Grammar, grammar
from pytest_llmbench.ingest.parse.dialects import regex
from pytest_llmbench.ingest.parse.dropped import OTHER_DIALECT, REPEATED, TORN, Tally, printable
from pytest_llmbench.ingest.parse.endings import NEEDLES as ENDING_NEEDLES
from pytest_llmbench.ingest.parse.endings import Endings, decisive_lines
from pytest_llmbench.ingest.parse.ranks import rank_of
from pytest_llmbench.ingest.parse.records import StepRecord, Unmatched
from pytest_llmbench.ingest.parse.scan import Hit, Needles, Window, hits, searcher
from pytest_llmbench.ingest.parse.segments import Marks, segments, uniform_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_llmbench.core.models import RegexDialect, Segment

STEP_NEEDLES = {needle: name for name, dialect in DIALECTS.items() for needle in dialect.needles}
MARKS = frozenset(needle for dialect in DIALECTS.values() for needle in dialect.starts + dialect.ends)
KNOWN = (*STEP_NEEDLES, *ENDING_NEEDLES, *checkpoints.NEEDLES, *sorted(MARKS), stated.PROFILED)
STATED = frozenset((*stated.MARKERS, stated.PROFILED))


class Mark(NamedTuple):
    """A place where a process starts or training ends; `total` is the number of steps that it says."""

    needle: bytes
    offset: int
    line: int
    total: int | None


class Found:
    """One dialect's records of a log, in its order, with what was dropped of them."""

    def __init__(self, name: str, rules: Grammar) -> None:
        self.name = name
        self.rules = rules
        self.tally = Tally()
        self.records: list[StepRecord] = []
        self.unmatched: list[Unmatched] = []
        self.lines = 0
        self.parts: uniform.Parts = ()
        self.segments: tuple[Segment, ...] = ()

    def add(self, hit: Hit, rank: str) -> bool:
        """Read what belongs to a needle; tell whether that is a record, if only a torn one."""
        taken = self.rules.take(hit, rank)
        self.lines += bool(taken)
        for record in taken:
            if isinstance(record, StepRecord):
                self.records.append(record)
            elif isinstance(record, Unmatched):
                self.unmatched = self.unmatched or [record]
            else:
                self.tally.add(TORN, hit.line, printable(record.text))
        return any(not isinstance(record, Unmatched) for record in taken)

    def unread(self, find: str) -> Unread:
        """Return in how many lines a text stands, and the first of them that the pattern does not match."""
        if not self.unmatched:
            return Unread(self.name, find, self.lines)
        first = self.unmatched[0]
        return Unread(self.name, find, self.lines, first.origin.line, printable(first.text), first.group)

    def divide(self, marks: Sequence[Mark]) -> int:
        """Divide the records into segments; return how many steps they hold."""
        rules, dialect = self.rules, self.rules.dialect
        starts = [mark for mark in marks if mark.needle in dialect.starts]
        places = Marks(
            starts=[mark.offset for mark in starts],
            ends=[mark.offset for mark in marks if mark.needle in dialect.ends],
            totals=[(mark.offset, mark.total) for mark in starts if mark.total is not None],
            ends_divide=dialect.ends_divide,
        )
        if self.parts:
            self.segments = uniform_segments(self.parts, places, rules.first_step)
            return sum(len(part.steps) for part in self.parts)
        self.segments = segments(
            rules.join(self.records, self.tally),
            places,
            rules.settle,
            self.tally,
            first_step=rules.first_step,
            time_steps=rules.time_steps,
        )
        return sum(len(segment.steps) for segment in self.segments)


class Collector:
    """Takes the windows of one log in order, then says what the log holds."""

    def __init__(self, definitions: Iterable[RegexDialect] = ()) -> None:
        """Take the dialects that baseline files define; of those alike the first one is read, and stands for all."""
        self._found: dict[str, Found] = {}
        self._alike: dict[RegexDialect, list[RegexDialect]] = defaultdict(list)
        for definition in definitions:
            self._alike[replace(definition, name="")].append(definition)
        self._defined = [alike[0] for alike in self._alike.values()]
        texts = (text.encode() for one in self._defined for text in (one.find, one.start, one.end))
        self._needles = dict.fromkeys(filter(None, texts))
        self._late = (*KNOWN, *self._needles)
        # behind AT_ONCE needles those are searched for apart that cost least: none of them begins with what is frequent
        self._others = searcher((*self._late, *environment.NEEDLES))
        self._all = searcher((*self._late, *facts.NEEDLES, *environment.NEEDLES))
        # beyond AT_ONCE, and so as long again: for the beginning of a log only
        self._first_others = searcher((*self._late, *environment.NEEDLES, *stated.MARKERS))
        self._first = searcher((*self._late, *facts.NEEDLES, *environment.NEEDLES, *stated.MARKERS))
        self._marks: list[Mark] = []
        self._endings = Endings()
        self._first_lines: dict[bytes, int] = {}
        self._checkpoints = checkpoints.Found()
        self._environment = environment.Found()
        self._stated = stated.Statements()
        self._trace_line = 0
        self._steps_since_trace = False
        self._start = facts.Start()
        self._rank = (0, "")
        self._lines = 0

    def needles(self, offset: int) -> Needles:
        """Return what to look for from this place of the log on.

        A trace repeats its needle in every line, and one of them says enough. Versions stand near the beginning.
        """
        traced = bool(self._first_lines) and not self._steps_since_trace
        if offset < stated.FARTHEST:
            return self._first_others if traced else self._first
        if offset < facts.FARTHEST:
            return self._others if traced else self._all
        return searcher(self._late if traced else (*self._late, *facts.NEEDLES))

    @property
    def follows(self) -> bool:
        """Whether every line matters: the log has not said when it started, or a traceback goes on."""
        return self._start.looks or self._endings.follows

    def search(self, window: Window) -> None:
        """Find the needles in the new part of a window, and take it."""
        needles = self.needles(window.offset + window.start)
        self.take(window, needles.places(window.text, window.start, window.stop))

    def take(self, window: Window, places: Sequence[tuple[int, bytes]]) -> None:
        """Take the new part of a window, with the places of needles that it holds."""
        self._start.take(window)
        if self._first_lines and any(needle in STEP_NEEDLES or needle in self._needles for _, needle in places):
            needles = self._first if window.offset + window.start < stated.FARTHEST else self._all
            places = needles.places(window.text, window.start, window.stop)
        if window.whole:
            places = self._take_uniform(window, places)
        marks, ends = [], []
        for hit in hits(window, places):
            if hit.needle in self._needles:
                self._take_defined(hit)
            self._file(hit)
            if hit.needle in MARKS:
                marks.append(hit)
            if hit.needle in ENDING_NEEDLES:
                ends.append(hit)
        self._endings.take(window, ends)
        if marks:
            counting = self._mark_needles()
            self._marks += (
                Mark(hit.needle, hit.offset, hit.line, total_of(hit, DIALECTS.values()))
                for hit in marks
                if hit.needle in counting
            )
        if window.stop:
            self.pass_over(window.next_line, window.text.endswith(b"\n", 0, window.stop))

    def _take_uniform(self, window: Window, places: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
        """Read the steps of a whole log at once, if they are alike; return the places that are left to be looked at."""
        needles = {needle for _, needle in places}
        names = {STEP_NEEDLES[needle] for needle in needles if needle in STEP_NEEDLES}
        if len(names) != 1 or facts.NCCL_OPERATION in needles or not needles.isdisjoint(self._needles):
            return places
        name = names.pop()
        rules = grammar(name)
        if rules.read_columns is None:
            return places
        starts, ends = (
            [place for place, needle in places if needle in marks]
            for marks in (rules.dialect.starts, rules.dialect.ends)
        )
        steps = [place for place, needle in places if needle in STEP_NEEDLES]
        parts = uniform.read(rules.read_columns, window.text, steps, starts, ends)
        if parts is None:
            return places
        found = self._found[name] = Found(name, rules)
        found.parts = parts
        for again in (part.repeated for part in parts if part.repeated):
            found.tally.add(REPEATED, again.first, again.text, again.times)
        return [each for each in places if each[1] not in STEP_NEEDLES]

    def pass_over(self, next_line: int, ended: bool) -> None:
        """Take a part without needles, which ends on a line of this number and perhaps with its line feed."""
        self._lines = next_line - ended

    def result(self) -> ParsedLog:
        """Return what was found; the dialect with most steps is the log's, None if there is no step.

        Of several with as many, one that a file defines. Where files define some, all the others are in `readings`.
        """
        self._marks.sort(key=lambda mark: mark.offset)
        steps = {name: found.divide(self._marks) for name, found in self._found.items()}
        names = [name for name in (*(one.name for one in self._defined), *DIALECTS) if steps.get(name)]
        if not names:
            return replace(self._parsed(None), unread=tuple(self._unread()))
        chosen, *others = sorted(names, key=lambda name: -steps[name])
        read = {name: self._parsed(name) for name in (chosen, *(others if self._defined else ()))}
        alike = [
            replace(read[first.name], dialect=one.name)
            for first, *more in self._alike.values()
            for one in more
            if first.name in read
        ]
        return replace(read.pop(chosen), readings=(*read.values(), *alike))

    def _dropped(self, chosen: str | None) -> Tally:
        """Return what was dropped if the log is of this dialect; one that a file defines is tried on every log."""
        tally = Tally()
        for name, found in self._found.items():
            if name == chosen or chosen is None:
                tally.merge(found.tally)
            elif name in DIALECTS and (records := [record for record in found.records if record.mean_of]):
                first = records[0]
                tally.add(OTHER_DIALECT, first.origin.line, f"{name}: step {first.step}", len(records))
        return tally

    def _unread(self) -> Iterator[Unread]:
        """Yield why the dialects that baseline files define find no step."""
        for alike in self._alike.values():
            found = self._found.get(alike[0].name)
            for one in alike:
                yield replace(found.unread(one.find), dialect=one.name) if found else Unread(one.name, one.find)

    def _parsed(self, chosen: str | None) -> ParsedLog:
        parts: Sequence[Segment] = ()
        if chosen:
            starts = self._found[chosen].rules.dialect.starts
            lines = [mark.line for mark in self._marks if mark.needle in starts]
            parts = self._stated.of_segments(self._found[chosen].segments, lines)
        ends = self._found[chosen].rules.dialect.ends if chosen else ()
        end_lines = [mark.line for mark in self._marks if mark.needle in ends]
        return ParsedLog(
            dialect=chosen,
            segments=tuple(parts),
            dropped=self._dropped(chosen).result(),
            ending=self._endings.result(decisive_lines(parts, end_lines)),
            started=self._start.time,
            nccl_line=self._first_lines.get(facts.NCCL_OPERATION, 0),
            nccl_last_line=self._trace_line,
            checkpoints=self._checkpoints.result(parts),
            environment=self._environment.result(),
            lines=self._lines,
            prints_loss=self._found[chosen].rules.dialect.prints_loss if chosen else True,
            begun_again_line=self._begun_again(self._found[chosen].rules.dialect, parts) if chosen else 0,
        )

    def _mark_needles(self) -> dict[bytes, None]:
        """Return the marks that can count: what stands before all records of a dialect says its total at most."""
        found = {name for name, one in self._found.items() if one.records or one.parts}
        dialects = [each for name, each in DIALECTS.items() if name in found or each.total != NO_TOTAL]
        return dict.fromkeys(needle for each in dialects for needle in each.starts + each.ends)

    def _begun_again(self, dialect: Dialect, parts: Sequence[Segment]) -> int:
        """Return where a process starts of which there is no step, behind a finished part; 0 where none does."""
        if not parts[-1].finished:
            return 0
        starts = set(dialect.starts).difference(SEPARATORS)
        lines = (mark.line for mark in self._marks if mark.needle in starts)
        return next((line for line in lines if line > parts[-1].last_line), 0)

    def _file(self, hit: Hit) -> None:
        """Put a needle where it belongs."""
        if hit.needle in STATED:
            self._stated.add(hit)
        elif hit.needle in STEP_NEEDLES:
            self._take_step(hit)
        elif hit.needle in checkpoints.NEEDLES:
            self._checkpoints.add(hit)
        elif hit.needle in environment.NEEDLES:
            self._environment.add(hit)
        elif hit.needle in facts.NEEDLES and facts.confirms(hit):
            self._take_fact(hit)

    def _take_fact(self, hit: Hit) -> None:
        """Keep the first line of a fact; of a trace also the first one after each step, to tell how far it goes."""
        if hit.needle not in self._first_lines or self._steps_since_trace:
            self._trace_line, self._steps_since_trace = hit.line, False
        self._first_lines.setdefault(hit.needle, hit.line)

    def _take_defined(self, hit: Hit) -> None:
        """Read what is at a text that a baseline file names."""
        for definition in self._defined:
            if hit.needle == definition.find.encode():
                if definition.name not in self._found:
                    self._found[definition.name] = Found(definition.name, regex.grammar(definition))
                is_record = self._found[definition.name].add(hit, "")
                self._steps_since_trace |= is_record and bool(self._trace_line)
        if any(hit.needle in (one.start.encode(), one.end.encode()) for one in self._defined):
            self._marks.append(Mark(hit.needle, hit.offset, hit.line, None))

    def _take_step(self, hit: Hit) -> None:
        """Read a step; where a long line of bars hides its beginning, the rank is that of the bar before."""
        self._steps_since_trace = bool(self._trace_line)
        line, rank = self._rank
        rank = rank_of(hit) or (rank if line == hit.line else "")
        self._rank = (hit.line, rank)
        name = STEP_NEEDLES[hit.needle]
        if name not in self._found:
            self._found[name] = Found(name, grammar(name))
        self._found[name].add(hit, rank)


def total_of(hit: Hit, dialects: Iterable[Dialect]) -> int | None:
    """Return the number of steps that a start mark says, or None."""
    matches = (re.match(each.total, hit.text[hit.start : hit.end]) for each in dialects if hit.needle in each.starts)
    return next((int(match[1]) for match in matches if match), None)
