"""Everything that is found on one way through a log, and what it adds up to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.dialects import FIRST_STEP
from pytest_llmbench.models import ParsedLog
from pytest_llmbench.parse import facts
from pytest_llmbench.parse.dialects import DIALECTS, Dialect, load_joiner, load_reader, load_settler
from pytest_llmbench.parse.dropped import OTHER_DIALECT, TORN, Tally, printable
from pytest_llmbench.parse.endings import NEEDLES as ENDING_NEEDLES
from pytest_llmbench.parse.endings import Endings, decisive_line
from pytest_llmbench.parse.ranks import rank_of
from pytest_llmbench.parse.records import Origin, StepRecord, Torn
from pytest_llmbench.parse.scan import Hit, Window, find
from pytest_llmbench.parse.segments import Marks, segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_llmbench.models import Segment

STEP_NEEDLES = {needle: name for name, dialect in DIALECTS.items() for needle in dialect.needles}
MARK_NEEDLES = tuple({needle: None for dialect in DIALECTS.values() for needle in dialect.starts + dialect.ends})


class Mark(NamedTuple):
    """A place where a process starts or training ends; `total` is the number of steps that it says."""

    needle: bytes
    offset: int
    line: int
    total: int | None


class Found:
    """One dialect's records of a log, in its order, with what was dropped of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tally = Tally()
        self.records: list[StepRecord] = []
        self.segments: tuple[Segment, ...] = ()
        self._read_step = load_reader(name)

    def add(self, hit: Hit, rank: str) -> None:
        """Read the record at a needle, if it is one."""
        record = self._read_step(hit.text, hit.start, hit.end, Origin(hit.offset, hit.line, rank))
        if isinstance(record, StepRecord):
            self.records.append(record)
        elif isinstance(record, Torn):
            self.tally.add(TORN, hit.line, printable(record.text))

    def divide(self, marks: Sequence[Mark]) -> int:
        """Divide the records into segments; return how many steps they hold."""
        dialect = DIALECTS[self.name]
        starts = [mark for mark in marks if mark.needle in dialect.starts]
        places = Marks(
            starts=[mark.offset for mark in starts],
            ends=[mark.offset for mark in marks if mark.needle in dialect.ends],
            totals=[(mark.offset, mark.total) for mark in starts if mark.total is not None],
        )
        records = load_joiner(self.name)(self.records, self.tally)
        self.segments = segments(records, places, load_settler(self.name), self.tally, FIRST_STEP[self.name])
        return sum(len(segment.steps) for segment in self.segments)


class Collector:
    """Takes the windows of one log in order, then says what the log holds."""

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}
        self._marks: list[Mark] = []
        self._endings = Endings()
        self._first_lines: dict[bytes, int] = {}
        self._durations: dict[bytes, float | None] = {}
        self._trace_line = 0
        self._steps_since_trace = False
        self._start = facts.Start()
        self._rank = (0, "")
        self._lines = 0

    def take(self, window: Window) -> None:
        """Search the new part of a window."""
        self._start.take(window)
        once = [needle for needle in facts.NEEDLES if needle not in self._first_lines]
        if self._steps_since_trace:  # a trace may begin again with another part of the log
            once.append(facts.NCCL_OPERATION)
        for hit in find(window, (*STEP_NEEDLES, *MARK_NEEDLES, *ENDING_NEEDLES, *once)):
            self._file(hit)
        if window.stop:
            self._lines = window.next_line - window.text.endswith(b"\n", 0, window.stop)

    def result(self) -> ParsedLog:
        """Return what was found; the dialect with most steps is the log's, None if there is no step."""
        steps = {name: found.divide(self._marks) for name, found in self._found.items()}
        chosen = max((name for name in DIALECTS if steps.get(name)), key=lambda name: steps[name], default=None)
        tally = Tally()
        for name, found in self._found.items():
            if name == chosen or chosen is None:
                tally.merge(found.tally)
            elif found.records:
                first = found.records[0]
                tally.add(OTHER_DIALECT, first.origin.line, f"{name}: step {first.step}", len(found.records))
        return self._parsed(chosen, self._found[chosen].segments if chosen else (), tally)

    def _parsed(self, chosen: str | None, parts: tuple[Segment, ...], tally: Tally) -> ParsedLog:
        ends = DIALECTS[chosen].ends if chosen else ()
        end_lines = [mark.line for mark in self._marks if mark.needle in ends]
        return ParsedLog(
            dialect=chosen,
            segments=parts,
            dropped=tally.result(),
            ending=self._endings.result(decisive_line(parts, end_lines)),
            started=self._start.time,
            nccl_line=self._first_lines.get(facts.NCCL_OPERATION, 0),
            nccl_last_line=self._trace_line,
            checkpoint_load_line=self._first_lines.get(facts.CHECKPOINT_LOAD, 0),
            checkpoint_save_line=self._first_lines.get(facts.CHECKPOINT_SAVE, 0),
            checkpoint_load_seconds=self._durations.get(facts.CHECKPOINT_LOAD),
            checkpoint_save_seconds=self._durations.get(facts.CHECKPOINT_SAVE),
            lines=self._lines,
        )

    def _file(self, hit: Hit) -> None:
        """Put a needle where it belongs."""
        if hit.needle in STEP_NEEDLES:
            self._take_step(hit)
        elif hit.needle in MARK_NEEDLES:
            self._marks.append(Mark(hit.needle, hit.offset, hit.line, total_of(hit, DIALECTS.values())))
        elif hit.needle in ENDING_NEEDLES:
            self._endings.add(hit)
        elif facts.confirms(hit):
            self._take_fact(hit)

    def _take_fact(self, hit: Hit) -> None:
        """Keep the first line of a fact; of a trace also a later one, to tell which parts of the log it is in."""
        if hit.needle == facts.NCCL_OPERATION:
            self._trace_line, self._steps_since_trace = hit.line, False
        if hit.needle not in self._first_lines:
            self._first_lines[hit.needle] = hit.line
            self._durations[hit.needle] = facts.duration_of(hit)

    def _take_step(self, hit: Hit) -> None:
        """Read a step; where a long line of bars hides its beginning, the rank is that of the bar before."""
        self._steps_since_trace = bool(self._trace_line)
        line, rank = self._rank
        rank = rank_of(hit) or (rank if line == hit.line else "")
        self._rank = (hit.line, rank)
        name = STEP_NEEDLES[hit.needle]
        if name not in self._found:
            self._found[name] = Found(name)
        self._found[name].add(hit, rank)


def total_of(hit: Hit, dialects: Iterable[Dialect]) -> int | None:
    """Return the number of steps that a start mark says, or None."""
    matches = (re.match(each.total, hit.text[hit.start : hit.end]) for each in dialects if hit.needle in each.starts)
    return next((int(match[1]) for match in matches if match), None)
