"""Dialects that baseline files define: a pattern over the lines that hold a literal text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple

from pytest_llmbench.models import RegexDialect
from pytest_llmbench.parse.dialects import Dialect, Grammar, Timer
from pytest_llmbench.parse.dropped import TORN, Tally
from pytest_llmbench.parse.ranks import rank_of
from pytest_llmbench.parse.records import (
    HOLE,
    NAN,
    Origin,
    StepRecord,
    Torn,
    Unmatched,
    digits,
    line_stop,
    printed_unit,
)
from pytest_llmbench.parse.scan import REACH_BACK, Hit
from pytest_llmbench.patterns import RATE, REQUIRED, UNITS, compiled, named_groups

COLOUR = re.compile(rb"\x1b\[[\d;]*m")
COLOURED_NUMBER = re.compile(rb"[\d.,]\x1b\[[\d;]*m[\d.,]")

COUNT = re.compile(rb"\d{1,15}|\d{1,3}(?:,\d{3}){1,4}")
NUMBER = re.compile(
    rb"[+-]?(?:(?:\d{1,18}|\d{1,3}(?:,\d{3}){1,5})(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,3})?"
    rb"|[+-]?(?i:nan|inf(?:inity)?)"
)
ABSENT = frozenset((b"", b"-", b"--", b"n/a", b"na", b"none", b"null"))
"""What frameworks print where they have no value; a `nan` is one."""

BEGAN_BEFORE = re.compile(rb"(?:\d|\d[eE][+-]?|(?<![A-Za-z_])\.|(?:\A|[^\w)\]-])-)\Z")
GOES_ON = re.compile(rb"\d|\.\d|[eE][+-]?\d|\[(?:rank|default)\d")
"""The rest of a number, or the label of another process that cut in."""
THOUSANDS_BEFORE = re.compile(rb"\d,\Z")
THOUSANDS = re.compile(rb",\d{3}(?!\d)")
THREE_DIGITS = re.compile(rb"\d{3}(?!\d)")
MAY_GO_ON = re.compile(rb"(?:[.,]\d{0,3}|[eE][+-]?)?\Z")
REST_BELOW = re.compile(rb"\r?\n[\d.]{1,18}(?:[eE][+-]?\d{1,3})?[ \t\r]*(?:\n|\Z)")
"""A line that is nothing but the rest of a number."""


class Line(NamedTuple):
    """The line around a needle without its colours; `whole` if it ends, `cut` if a number was cut at its end."""

    text: bytes
    whole: bool
    cut: bool


def grammar(definition: RegexDialect) -> Grammar:
    """Return what reads a log as a baseline file says; its state is that of one log."""
    dialect = Dialect(
        needles=(definition.find.encode(),),
        reader="",
        starts=(definition.start.encode(),) if definition.start else (),
        ends=(definition.end.encode(),) if definition.end else (),
        prints_loss=any(group.name == "loss" for group in named_groups(definition.pattern)),
    )
    timer: Timer = averaged(definition.first_step) if definition.averages == "interval" else list
    lines = StepLines(definition)
    return Grammar(dialect, lines.take, lines.without_glued, _unchanged, timer, definition.first_step)


class StepLines:
    """Reads the lines of one log, each once, however often the needle stands in it."""

    def __init__(self, definition: RegexDialect) -> None:
        """Compile the pattern, which was checked with its file."""
        self._pattern = compiled(definition.pattern)
        self._groups = {group.name: group for group in named_groups(definition.pattern)}
        self._numbers: dict[str, int] = self._pattern.groupindex
        self._unit = definition.unit
        self._read_to = 0
        self._counts: Counter[int] = Counter()
        self._doubtful: dict[int, int] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> StepLines:
        """Return one that goes on from here by itself; what was compiled is shared."""
        other = copy(self)
        other._counts, other._doubtful = Counter(self._counts), dict(self._doubtful)
        return other

    def take(self, hit: Hit, _rank: str) -> Sequence[StepRecord | Torn | Unmatched]:
        """Return the steps of the line around a needle; nothing where it was read before."""
        if hit.offset < self._read_to:
            return ()
        stop = line_stop(hit.text, hit.start, hit.end)
        self._read_to = hit.offset + stop - hit.start
        origin = Origin(hit.offset, hit.line, "")
        begin = line_begin(hit)
        if begin is None:
            return (Torn(origin, hit.text[hit.start : stop]),)
        raw = hit.text[begin:stop]
        if COLOURED_NUMBER.search(raw):
            return (Torn(origin, raw),)
        text = _readable(COLOUR.sub(b"", raw))
        matches = self._matches(text)
        if matches is None:
            return (Torn(origin, text),)
        if not matches:
            return (Unmatched(origin, text),)
        line = Line(text, stop < hit.end, bool(REST_BELOW.match(hit.text, stop, hit.end)))
        self._note(hit, text, matches)
        return tuple(self._record(hit, place, line, match) for place, match in enumerate(matches))

    def without_glued(self, records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
        """Return the records without those of which the line may hold the time of another one.

        It holds a second time that the pattern takes as well, and the literal text more often than lines usually do.
        """
        usual = min(self._counts, key=lambda count: (-self._counts[count], count), default=0)
        kept = []
        for record in records:
            if self._doubtful.get(record.origin.offset, 0) > usual:
                tally.add(TORN, record.origin.line, f"step {record.step}: two times in a line")
            else:
                kept.append(record)
        return kept

    def _note(self, hit: Hit, text: bytes, matches: Sequence[Any]) -> None:
        """Keep how often the needle stands in a line with steps, and where a match could have taken another time."""
        count = text.count(hit.needle)
        self._counts[count] += bool(matches)
        for place, match in enumerate(matches):
            begin, end = match.span(self._numbers["seconds"])
            others = text[:begin] + b" " * (end - begin) + text[end:]
            if self._pattern.search(others, match.start()) is not None and len(matches) == 1:
                self._doubtful[hit.offset + place] = count

    def _matches(self, text: bytes) -> list[Any] | None:
        """Return the places that match, None where one of them may hold parts of two records.

        A record that begins inside of another one, after its first number, says that two lines were glued.
        """
        found = []
        match = self._pattern.search(text)
        while match is not None:
            first = min(match.end(self._numbers[name]) for name in REQUIRED)
            inner = self._pattern.search(text, first) if first >= 0 else match
            if inner is not None and inner.start() < max(match.end(), match.start() + 1):
                return None
            found.append(match)
            match = inner
        return found

    def _record(self, hit: Hit, place: int, line: Line, match: Any) -> StepRecord | Torn:
        """Return the step of one match; torn where a number is not whole, or is none."""
        every = {name: match.span(number) for name, number in self._numbers.items()}
        spans = {name: span for name, span in every.items() if span[0] >= 0}
        prefix = line.text[: min(begin for begin, _ in spans.values())][:REACH_BACK]
        rank = rank_of(Hit(hit.needle, prefix, len(prefix), len(prefix), len(prefix), hit.line))
        origin = Origin(hit.offset + place, hit.line, rank)
        values = {name: line.text[begin:end].rstrip(b",; \t") for name, (begin, end) in spans.items()}
        values = {name: value for name, value in values.items() if value.lower() not in ABSENT}
        whole = all(self._is_whole(line, name, spans[name][0], value) for name, value in values.items())
        if not whole or HOLE in match[0] or not _are_numbers(values):
            return Torn(origin, line.text)
        return _step(origin, values, self._unit)

    def _is_whole(self, line: Line, name: str, begin: int, value: bytes) -> bool:
        """Tell whether a number is no part of a longer one, as far as what stands beside it can show."""
        group, before, after = self._groups[name], line.text[:begin], line.text[begin + len(value) :]
        if BEGAN_BEFORE.search(before[-4:]) or GOES_ON.match(after):
            return False
        if group.before != "," and THOUSANDS_BEFORE.search(before[-4:]) and THREE_DIGITS.match(value):
            return False
        if group.after != "," and value[-1:].isdigit() and THOUSANDS.match(after):
            return False
        if not line.whole and MAY_GO_ON.match(after):
            return False
        return not (line.cut and not after.strip())


def line_begin(hit: Hit) -> int | None:
    """Return where the line or bar begins that a needle stands in, None where that is too far back to be seen."""
    earliest = max(0, hit.start - REACH_BACK)
    begin = max(hit.text.rfind(b"\n", earliest, hit.start), hit.text.rfind(b"\r", earliest, hit.start)) + 1
    return begin or (earliest if hit.offset - hit.start + earliest == 0 else None)


def averaged(first_step: int) -> Timer:
    """Return what says of the steps of an attempt how many each time is the mean of: those since the line before.

    A gap that is larger than the usual one lost a line: its time is the mean of the usual number. Of a single line
    nothing says how many steps it stands for, so it stands for itself.
    """

    def time_steps(records: Sequence[StepRecord]) -> list[StepRecord]:
        gaps = [after.step - before.step for before, after in pairwise(records)]
        if not gaps:
            return list(records)
        counts = Counter(gaps)
        usual = min(counts, key=lambda gap: (-counts[gap], gap))
        every = [records[0].step - first_step + 1, *gaps]
        return [record._replace(mean_of=max(1, min(gap, usual))) for record, gap in zip(records, every, strict=True)]

    return time_steps


def _unchanged(records: Sequence[StepRecord], _tally: Tally) -> list[StepRecord]:
    return list(records)


def _readable(text: bytes) -> bytes:
    """Return text that a pattern can read on in after bytes that are no character."""
    return text if text.isascii() else text.decode("utf-8", "replace").encode()


def _are_numbers(values: Mapping[str, bytes]) -> bool:
    """Tell whether every value is a number, steps are counted, and what a step needs is there."""
    counted = all(COUNT.fullmatch(values[name]) for name in ("step", "total") if name in values)
    return counted and set(REQUIRED) <= set(values) and all(NUMBER.fullmatch(value) for value in values.values())


def _step(origin: Origin, values: Mapping[str, bytes], unit: str) -> StepRecord:
    plain = {name: value.replace(b",", b"").lower() for name, value in values.items()}
    number = {name: float(value) for name, value in plain.items()}
    seconds, resolution = _seconds(number["seconds"], plain["seconds"], unit)
    return StepRecord(
        origin,
        int(plain["step"]),
        seconds,
        resolution,
        int(plain["total"]) if "total" in plain else None,
        loss=number.get("loss"),
        loss_digits=digits(plain.get("loss", b"")),
        grad_norm=number.get("grad_norm"),
        tflops=number.get("tflops", NAN),
        tokens=number.get("tokens", NAN),
        batch=number.get("batch", NAN),
        memory=number.get("memory_bytes", NAN),
    )


def _seconds(value: float, printed: bytes, unit: str) -> tuple[float, float]:
    """Return a printed time or rate as seconds, with one unit in its last place; a rate of zero never ends a step."""
    if not math.isfinite(value):
        return (value if unit != RATE else NAN), 0.0
    place = printed_unit(printed)
    if unit != RATE:
        return value * UNITS[unit], place * UNITS[unit]
    seconds = 1 / value if value else math.inf
    resolution = place * seconds * seconds
    return seconds, resolution if math.isfinite(resolution) else 0.0
