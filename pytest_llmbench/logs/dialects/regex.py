"""Dialects that baseline files define: a pattern over the lines that hold a literal
text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from itertools import pairwise
from typing import Any, NamedTuple

from pytest_llmbench.core.baseline_records import RegexDialect, TimesOf
from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.core.rounding import refine_units
from pytest_llmbench.logs import clock, printed_times
from pytest_llmbench.logs.dialect_reader import DialectReader
from pytest_llmbench.logs.dialect_table import (
    NON_TRAINING_GROUPS,
    RATE,
    UNITS,
    Dialect,
    compile_pattern,
    find_groups,
    find_time_groups,
)
from pytest_llmbench.logs.printed_times import (
    CLOCKS,
    LineTime,
    RecordLine,
    TimeNotation,
    read_line_time,
)
from pytest_llmbench.logs.scan import REACH_BACK, Hit, find_line_begin
from pytest_llmbench.logs.step_records import (
    COLOUR,
    HOLE,
    NAN,
    RecordOrigin,
    StepRecord,
    Tally,
    TruncatedRecord,
    Unmatched,
    count_digits,
    count_step_tokens,
    find_line_stop,
    find_median,
    read_labels,
)

COLOURED_NUMBER = re.compile(rb"[\d.,]\x1b\[[\d;]*m[\d.,]")

COUNT = re.compile(rb"(?:\d{1,15}|\d{1,3}(?:,\d{3}){1,4})(?:\.0{0,9})?")
# Behind a count that is printed as a float.
POINT_ZERO = re.compile(rb"\.0{1,9}(?![\d.])")
NUMBER = re.compile(
    rb"[+-]?(?:(?:\d{1,18}|\d{1,3}(?:,\d{3}){1,5})(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,3})?"
    rb"|[+-]?(?i:nan|inf(?:inity)?)"
)
BARE = re.compile(
    rb"[+-]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?=(?:[A-Za-z/]|[\xc2\xce][\xb5\xbc])*\Z)"
)
# What stands in a line as one number.
SECONDS, ELAPSED = ("seconds",), ("elapsed",)
PRINTED = (SECONDS, ELAPSED)
COUNTS = ("step", "total")
TEXTS = ("stamp", "unit")
# A line without one of them is whole: it is only compared with others.
CONSUMED = "consumed_tokens"
BESIDE = ("throughput", "learning_rate", "step_tokens", "target_tokens", CONSUMED)
# What frameworks print where they have no value; a `nan` is one.
ABSENT = frozenset((b"", b"-", b"--", b"n/a", b"na", b"none", b"null"))

BEGAN_BEFORE = re.compile(rb"(?:\d|\d[eE][+-]?|(?<![A-Za-z_])\.|(?:\A|[^\w)\]-])-)\Z")
# The rest of a number, or the label of another process that cut in.
GOES_ON = re.compile(rb"\d|\.\d|[eE][+-]?\d|\[(?:rank|default)\d")
THOUSANDS_BEFORE = re.compile(rb"\d,\Z")
THOUSANDS = re.compile(rb",\d{3}(?!\d)")
THREE_DIGITS = re.compile(rb"\d{3}(?!\d)")
MAY_GO_ON = re.compile(rb"(?:[.,]\d{0,3}|[eE][+-]?)?\Z")
# A line that is nothing but the rest of a number.
REST_BELOW = re.compile(rb"\r?\n[\d.]{1,18}(?:[eE][+-]?\d{1,3})?[ \t\r]*(?:\n|\Z)")


class GroupValues(NamedTuple):
    """The groups of one match that print a value, by name."""

    values: dict[str, bytes]  # as they are printed
    numbers: dict[str, bytes]  # without letters
    factors: dict[str, float]  # what the letters multiply them with
    wrong: list[str]  # the names of those that are no whole number


class RegexReader(DialectReader):
    """Reads one log as a baseline file says: each line once, however often the marker
    stands in it."""

    def __init__(self, definition: RegexDialect) -> None:
        """Compile the pattern, which was checked with its file."""
        dialect = Dialect(
            definition.first_step,
            markers=(definition.find.encode(),),
            starts=(definition.start.encode(),) if definition.start else (),
            ends=(definition.end.encode(),) if definition.end else (),
            prints_loss=any(
                group.name == "loss" for group in find_groups(definition.pattern)
            ),
        )
        super().__init__(dialect)
        self._means_of_intervals = definition.averages == TimesOf.INTERVAL
        self._pattern = compile_pattern(definition.pattern, shipped=definition.shipped)
        self._shipped, self._rewards = definition.shipped, definition.rewards
        self._groups = {group.name: group for group in find_groups(definition.pattern)}
        self._numbers: dict[str, int] = self._pattern.groupindex
        self._unit = definition.unit
        self._timed = find_time_groups(self._groups)
        self._required = ("step", *self._timed)
        self._read_to = 0
        self._lacking: str | None = None
        self._counts: Counter[int] = Counter()
        self._doubtful: dict[int, int] = {}
        self._prints = TimeNotation(definition)
        self._apart: dict[int, float] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> RegexReader:
        """Return one that goes on from here by itself; what was compiled is shared."""
        other = copy(self)
        other._counts, other._doubtful = Counter(self._counts), dict(self._doubtful)
        other._prints, other._apart = deepcopy(self._prints), dict(self._apart)
        return other

    def read_records(
        self, hit: Hit, _rank: str
    ) -> Sequence[StepRecord | TruncatedRecord | Unmatched]:
        """Return the steps of the line around a marker; nothing where it was read
        before."""
        if hit.offset < self._read_to:
            return ()
        stop = find_line_stop(hit.text, hit.start, hit.end)
        self._read_to = hit.offset + stop - hit.start
        origin = RecordOrigin(hit.offset, hit.line, "")
        earliest = max(0, hit.start - REACH_BACK)
        begin = find_line_begin(hit.text, earliest, hit.start)
        if (
            begin == earliest and hit.offset - hit.start + begin > 0
        ):  # it begins farther back than can be seen
            return (TruncatedRecord(origin, hit.text[hit.start : stop]),)
        raw = hit.text[begin:stop]
        if COLOURED_NUMBER.search(raw):
            return (TruncatedRecord(origin, raw),)
        text = _make_readable(COLOUR.sub(b"", raw))
        matches = self._find_matches(text)
        if matches is None:
            return (
                TruncatedRecord(origin, _name_group(self._list_absent(text), {}, text)),
            )
        if not matches:
            if (
                self._lacking is None
            ):  # of the first such line: it is the one that is told
                self._lacking = self._find_first_lacking(text)
            return (Unmatched(origin, text, self._lacking),)
        line = RecordLine(
            text, stop < hit.end, bool(REST_BELOW.match(hit.text, stop, hit.end))
        )
        self._note(hit, text, matches)
        return tuple(
            self._build_record(hit, place, line, match)
            for place, match in enumerate(matches)
        )

    def merge_records(
        self, records: Sequence[StepRecord], tally: Tally
    ) -> list[StepRecord]:
        """Return the records without those whose siblings show that their time may be
        wrong.

        A line may contain the time of another line: the pattern matches a second time
        in it, and it has the literal text more often than other lines. Or the time may
        be truncated, or have another unit (`Prints`).
        """
        usual = min(
            self._counts, key=lambda count: (-self._counts[count], count), default=0
        )
        kept = []
        for record in records:
            if self._doubtful.get(record.origin.offset, 0) > usual:
                tally.add(
                    DropReason.TORN,
                    record.origin.line,
                    f"step {record.step}: two times in a line",
                )
            elif doubt := self._prints.explain_doubt(record.origin.offset):
                tally.add(
                    DropReason.TORN, record.origin.line, f"step {record.step}: {doubt}"
                )
            else:
                kept.append(record)
        self._prints.tally_doubts(kept, tally)
        return self._leave_out_apart(self._refine_resolutions(kept), tally)

    def _leave_out_apart(
        self, records: list[StepRecord], tally: Tally
    ) -> list[StepRecord]:
        """Return the records, each time without the evaluation and the checkpoint that
        it contains.

        They may be printed beside a time that lacks them: then the other steps are as
        long as those with them.
        """
        rows = [
            row
            for row, record in enumerate(records)
            if record.origin.offset in self._apart and record.possible
        ]
        apart = [self._apart[records[row].origin.offset] for row in rows]
        if not rows or not _contains(records, rows, apart):
            return records
        for row, seconds in zip(rows, apart, strict=True):
            record = records[row]
            if 0 < seconds < record.seconds:
                text = f"step {record.step}: {seconds:.6g} of {record.seconds:.6g} s"
                tally.add(DropReason.LEFT_OUT, record.origin.line, text)
                records[row] = record._replace(seconds=record.seconds - seconds)
        return records

    def _refine_resolutions(self, records: list[StepRecord]) -> list[StepRecord]:
        """Return the records, each time as precise as the log prints: `2K` beside
        `1.99K` has three digits, too."""
        if self._timed not in PRINTED or "unit" in self._groups:
            return records
        of_rates = self._unit == RATE
        scale = 1.0 if of_rates else UNITS[self._unit]
        values = [
            (record.stamp if self._timed == ELAPSED else record.seconds) / scale
            for record in records
        ]
        rows = [
            row
            for row, value in enumerate(values)
            if 0 < value < math.inf and records[row].resolution > 0
        ]
        units = [
            records[row].resolution / (values[row] ** 2 if of_rates else scale)
            for row in rows
        ]
        if not of_rates and len(set(units)) < 2:
            return records
        printed = [1 / values[row] if of_rates else values[row] for row in rows]
        for row, unit in zip(rows, refine_units(printed, units), strict=True):
            resolution = unit * (values[row] ** 2 if of_rates else scale)
            if resolution < records[row].resolution:
                records[row] = records[row]._replace(resolution=resolution)
        return records

    def resolve_steps(
        self, records: Sequence[StepRecord], tally: Tally
    ) -> list[StepRecord]:
        """Return the steps of one rank; those behind a restart of the time so far count
        from there."""
        return (
            clock.mark_restarts(records, tally)
            if "elapsed" in self._timed
            else list(records)
        )

    def time_steps(self, records: Sequence[StepRecord]) -> list[StepRecord]:
        """Return the steps of an attempt with how many each time is the mean of: those
        since the line before.

        A gap that is larger than the usual one lost a line: its time is the mean of the
        usual number. Of a single line nothing says how many steps it stands for, so it
        stands for itself.
        """
        if CONSUMED in self._groups:
            records = count_step_tokens(records)
        if self._timed in CLOCKS:
            begins = self.dialect.first_step if "elapsed" in self._timed else None
            return clock.time_steps(records, first_step=begins)
        gaps = [after.step - before.step for before, after in pairwise(records)]
        if not (gaps and self._means_of_intervals):
            return list(records)
        usual = clock.count_usual_gap(records)
        every = [records[0].step - self.dialect.first_step + 1, *gaps]
        return [
            record._replace(mean_of=max(1, min(gap, usual)))
            for record, gap in zip(records, every, strict=True)
        ]

    def _list_absent(self, text: bytes) -> list[str]:
        """Return which of the groups that a step needs are not in the first match of a
        line."""
        match = self._pattern.search(text)
        return [name for name in self._required if match.start(self._numbers[name]) < 0]

    def _find_first_lacking(self, text: bytes) -> str:
        """Return the group of the pattern that a line is the first to lack: those
        before it match."""
        lacking = ""
        for group in reversed(self._groups.values()):
            try:
                if (
                    compile_pattern(group.prefix_pattern, shipped=self._shipped).search(
                        text
                    )
                    is not None
                ):
                    break
            except (
                ValueError
            ):  # what stands before a group need not be a pattern by itself
                continue
            lacking = group.name
        return lacking

    def _note(self, hit: Hit, text: bytes, matches: Sequence[Any]) -> None:
        """Keep how often the marker stands in a line with steps, and where a match
        could have taken another time."""
        count = text.count(hit.marker)
        self._counts[count] += bool(matches)
        if len(matches) == 1:
            begin, end = matches[0].span(self._numbers[self._timed[0]])
            others = text[:begin] + b" " * (end - begin) + text[end:]
            if self._pattern.search(others, matches[0].start()) is not None:
                self._doubtful[hit.offset] = count

    def _find_matches(self, text: bytes) -> list[Any] | None:
        """Find the matches in a line, None if one may contain parts of two records.

        A record that begins inside another record, after its first number, shows that
        two lines were glued.
        """
        records = []
        match = self._pattern.search(text)
        while match is not None:
            first = min(match.end(self._numbers[name]) for name in self._required)
            inner = self._pattern.search(text, first) if first >= 0 else match
            if inner is not None and inner.start() < max(
                match.end(), match.start() + 1
            ):
                return None
            records.append(match)
            match = inner
        return records

    def _build_record(
        self, hit: Hit, place: int, line: RecordLine, match: Any
    ) -> StepRecord | TruncatedRecord:
        """Return the step of one match; torn if a number is not whole, or is none."""
        begins = [match.start(number) for number in self._numbers.values()]
        prefix = line.text[: min(begin for begin in begins if begin >= 0)]
        rank = read_labels(prefix[:REACH_BACK])
        origin = RecordOrigin(hit.offset + place, hit.line, rank)
        values, numbers, factors, wrong = self._read_groups(line, match)
        wrong += [name for name in self._required if name not in values]
        if wrong or HOLE in match[0]:
            return TruncatedRecord(origin, _name_group(wrong, values, line.text))
        texts = {name: values[name] for name in TEXTS if name in values}
        time = read_line_time(self._timed, numbers | texts, factors, self._unit)
        if time is None:
            return TruncatedRecord(origin, _name_group([*texts], texts, line.text))
        step = _build_step(origin, numbers, factors, time)
        if self._timed == SECONDS:
            if "unit" not in texts:
                begin = match.start(self._numbers["seconds"])
                self._prints.add(origin.offset, line, begin, numbers["seconds"])
                self._keep_apart(origin.offset, numbers, factors)
            if math.isnan(step.step_tokens):
                step = step._replace(
                    step_tokens=step.throughput * step.seconds, throughput=NAN
                )
        return step._replace(rewards=True) if self._rewards else step

    def _read_groups(self, line: RecordLine, match: Any) -> GroupValues:
        """Read the groups of a match that print a value."""
        read = GroupValues({}, {}, {}, [])
        for name, group in self._numbers.items():
            begin, end = match.span(group)
            value = line.text[begin:end].rstrip(b",; \t")
            if value.lower() in ABSENT:
                continue
            if name in TEXTS:
                read.values[name] = value
                continue
            number = _strip_characters(value)
            whole = self._is_whole(line, name, begin, value)
            if name in BESIDE and not (whole and NUMBER.fullmatch(number)):
                continue
            scale = self._get_scale(line, name, begin, value, number)
            pattern = COUNT if name in COUNTS else NUMBER
            if scale is None or not whole or not pattern.fullmatch(number):
                read.wrong.append(name)
            read.values[name], read.numbers[name] = value, number
            read.factors[name] = scale or 1.0
        return read

    def _keep_apart(
        self, offset: int, numbers: Mapping[str, bytes], factors: Mapping[str, float]
    ) -> None:
        """Keep the time in that of a step which trains nothing."""
        printed = [
            float(numbers[name].replace(b",", b"")) * factors[name]
            for name in NON_TRAINING_GROUPS
            if name in numbers
        ]
        if printed and self._unit != RATE:
            self._apart[offset] = sum(printed) * UNITS[self._unit]

    def _get_scale(
        self, line: RecordLine, name: str, begin: int, value: bytes, number: bytes
    ) -> float | None:
        """Return what the letters behind a number multiply it with; None where they
        leave it uncertain."""
        if name in ("seconds", "elapsed") and "unit" in self._groups:
            return 1.0  # the unit is read by itself
        letters = value[len(number) :] or printed_times.read_unit_characters(
            line.text[begin + len(value) :]
        )
        if not number[-1:].isdigit() and number[-1:] != b".":
            return 1.0  # a word, such as nan
        expected = letters[:1].decode("latin-1") == self._groups[name].after
        return printed_times.get_scale(name, letters, self._unit, expected=expected)

    def _is_whole(self, line: RecordLine, name: str, begin: int, value: bytes) -> bool:
        """Tell whether a number is no part of a longer one, as far as what stands
        beside it can show."""
        group, before, after = (
            self._groups[name],
            line.text[:begin],
            line.text[begin + len(value) :],
        )
        if name in COUNTS and (zeros := POINT_ZERO.match(after)):
            after = after[zeros.end() :]
        if BEGAN_BEFORE.search(before[-4:]) or GOES_ON.match(after):
            return False
        if (
            group.before != ","
            and THOUSANDS_BEFORE.search(before[-4:])
            and THREE_DIGITS.match(value)
        ):
            return False
        if group.after != "," and value[-1:].isdigit() and THOUSANDS.match(after):
            return False
        if not line.whole and MAY_GO_ON.match(after):
            return False
        return not (line.cut and not after.strip())


def _contains(
    records: Sequence[StepRecord], rows: Sequence[int], apart: Sequence[float]
) -> bool:
    """Tell whether the times of rows contain what is printed apart: without it they are
    like the others."""
    containing = set(rows)
    others = [
        record.seconds
        for row, record in enumerate(records)
        if row not in containing and record.possible
    ]
    if not others:
        return all(
            seconds < records[row].seconds
            for row, seconds in zip(rows, apart, strict=True)
        )
    usual = find_median(others)
    times = [records[row].seconds for row in rows]
    whole = (abs(time - usual) for time in times)
    rest = (
        abs(time - seconds - usual) for time, seconds in zip(times, apart, strict=True)
    )
    return find_median(rest) < find_median(whole)


def _make_readable(text: bytes) -> bytes:
    """Return text that a pattern can read on in after bytes that are no character."""
    return text if text.isascii() else text.decode("utf-8", "replace").encode()


def _strip_characters(value: bytes) -> bytes:
    """Return the number that a value begins with; a value that begins with none as it
    is."""
    number = BARE.match(value)
    return number[0] if number else value


def _name_group(
    groups: Sequence[str], values: Mapping[str, bytes], text: bytes
) -> bytes:
    """Return a line that is torn, with the group to which it gives no number."""
    if not groups:
        return text
    value = values.get(groups[0])
    what = b"is missing" if value is None else b"reads %b" % value
    return b"group %b %b: %b" % (groups[0].encode(), what, text)


def _build_step(
    origin: RecordOrigin,
    values: Mapping[str, bytes],
    scales: Mapping[str, float],
    time: LineTime,
) -> StepRecord:
    plain = {name: value.replace(b",", b"").lower() for name, value in values.items()}
    number = {name: float(value) * scales[name] for name, value in plain.items()}
    return StepRecord(
        origin,
        int(float(plain["step"])),
        time.seconds,
        time.resolution,
        int(float(plain["total"])) if "total" in plain else None,
        loss=number.get("loss"),
        loss_digits=count_digits(plain.get("loss", b"")),
        grad_norm=number.get("grad_norm"),
        tflops=number.get("tflops", NAN),
        tokens=number.get("tokens", NAN),
        batch=number.get("batch", NAN),
        memory=number.get("memory_bytes", NAN),
        stamp=time.stamp,
        throughput=number.get("throughput", NAN),
        rate=number.get("learning_rate", NAN),
        step_tokens=number.get("step_tokens", number.get("amount", NAN)),
        targets=number.get("target_tokens", NAN),
        consumed_tokens=(number[CONSUMED], count_digits(plain[CONSUMED]))
        if CONSUMED in number
        else None,
    )
