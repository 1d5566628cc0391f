"""Dialects of baseline files: a regular expression for lines with a literal text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from itertools import pairwise
from typing import Any, NamedTuple

from pytest_llmbench.core.baseline_records import RegexDialect, TimesOf
from pytest_llmbench.core.log_records import DropReason
from pytest_llmbench.core.patterns import compile_on_use
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

# A colour code within a number.
COLOURED_NUMBER = compile_on_use(rb"[\d.,]\x1b\[[\d;]*m[\d.,]")

# "500", "1,500" or "500.0"
COUNT = compile_on_use(rb"(?:\d{1,15}|\d{1,3}(?:,\d{3}){1,4})(?:\.0{0,9})?")
# Follows a count that is printed as a float.
POINT_ZERO = compile_on_use(rb"\.0{1,9}(?![\d.])")
# "12.5", "1,234.5", ".5", "1.2e-05", "nan"
NUMBER = compile_on_use(
    rb"[+-]?(?:(?:\d{1,18}|\d{1,3}(?:,\d{3}){1,5})(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,3})?"
    rb"|[+-]?(?i:nan|inf(?:inity)?)"
)
# The number in "12.5ms" or "1.99K/s"; the letters may also be a micro sign.
BARE = compile_on_use(
    rb"[+-]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?=(?:[A-Za-z/]|[\xc2\xce][\xb5\xbc])*\Z)"
)
# Times that a line prints as one number.
SECONDS, ELAPSED = ("seconds",), ("elapsed",)
PRINTED = (SECONDS, ELAPSED)
# Groups that contain integers, and groups that contain no number.
COUNTS = ("step", "total")
TEXTS = ("stamp", "unit")
# Optional groups: they are only used for comparisons.
CONSUMED = "consumed_tokens"
OPTIONAL = ("throughput", "learning_rate", "step_tokens", "target_tokens", CONSUMED)
# Placeholders of missing values. `nan` is a value.
ABSENT = frozenset((b"", b"-", b"--", b"n/a", b"na", b"none", b"null"))

# The end of the text before a number that began earlier: "12" before "34", "1e-", "-".
STARTS_EARLIER = compile_on_use(
    rb"(?:\d|\d[eE][+-]?|(?<![A-Za-z_])\.|(?:\A|[^\w)\]-])-)\Z"
)
# The continuation of a number, or the label of another process whose line is inserted.
CONTINUES = compile_on_use(rb"\d|\.\d|[eE][+-]?\d|\[(?:rank|default)\d")
# "1," before "234", or ",234" after "1": thousands separators.
THOUSANDS_BEFORE = compile_on_use(rb"\d,\Z")
THOUSANDS = compile_on_use(rb",\d{3}(?!\d)")
THREE_DIGITS = compile_on_use(rb"\d{3}(?!\d)")
# The end of a truncated line, after which a number may continue: "", ".5", "e-".
MAY_CONTINUE = compile_on_use(rb"(?:[.,]\d{0,3}|[eE][+-]?)?\Z")
# A line that only contains the end of a number.
NUMBER_END_BELOW = compile_on_use(
    rb"\r?\n[\d.]{1,18}(?:[eE][+-]?\d{1,3})?[ \t\r]*(?:\n|\Z)"
)


class GroupValues(NamedTuple):
    """The groups of one match that have a value, by name."""

    values: dict[str, bytes]  # as printed
    numbers: dict[str, bytes]  # without letters
    factors: dict[str, float]  # the factors of the letters
    invalid: list[str]  # the names of groups with an invalid number


class RegexReader(DialectReader):
    """Reader of one log in a dialect that a baseline file defines.

    Reads each line once, even if it contains the marker several times.
    """

    def __init__(self, definition: RegexDialect) -> None:
        """Compile the pattern, which was validated with its file."""
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
        self._group_numbers: dict[str, int] = self._pattern.groupindex
        self._unit = definition.unit
        self._time_groups = find_time_groups(self._groups)
        self._required = ("step", *self._time_groups)
        self._read_to = 0  # offset of the end of the last line that was read
        self._first_missing: str | None = None
        # Number of lines with steps, by the number of markers in the line.
        self._counts: Counter[int] = Counter()
        # Number of markers in each line that contains a second time, by offset.
        self._doubtful: dict[int, int] = {}
        self._notation = TimeNotation(definition)
        self._non_training_seconds: dict[int, float] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> RegexReader:
        """Return a reader with its own state.

        Compiled patterns are shared.
        """
        reader = copy(self)
        reader._counts, reader._doubtful = Counter(self._counts), dict(self._doubtful)
        reader._notation = deepcopy(self._notation)
        reader._non_training_seconds = dict(self._non_training_seconds)
        return reader

    def read_records(
        self, hit: Hit, _rank: str
    ) -> Sequence[StepRecord | TruncatedRecord | Unmatched]:
        """Parse the steps in the line around a marker.

        Returns () if the line was read before.
        """
        if hit.offset < self._read_to:
            return ()
        stop = find_line_stop(hit.text, hit.start, hit.end)
        self._read_to = hit.offset + stop - hit.start
        origin = RecordOrigin(hit.offset, hit.line, "")
        earliest = max(0, hit.start - REACH_BACK)
        begin = find_line_begin(hit.text, earliest, hit.start)
        # the beginning of the line is out of reach
        if begin == earliest and hit.offset - hit.start + begin > 0:
            return (TruncatedRecord(origin, hit.text[hit.start : stop]),)
        raw = hit.text[begin:stop]
        if COLOURED_NUMBER.search(raw):
            return (TruncatedRecord(origin, raw),)
        text = _make_readable(COLOUR.sub(b"", raw))
        matches = self._find_matches(text)
        if matches is None:
            missing = self._list_missing(text)
            described = _prefix_invalid_group(missing, values={}, text=text)
            return (TruncatedRecord(origin, described),)
        if not matches:
            # Only the first such line is reported.
            if self._first_missing is None:
                self._first_missing = self._find_first_missing(text)
            return (Unmatched(origin, text, self._first_missing),)
        number_continues = bool(NUMBER_END_BELOW.match(hit.text, stop, hit.end))
        line = RecordLine(text, stop < hit.end, number_continues)
        self._record_markers(hit, text, matches)
        return tuple(
            self._build_record(hit, index, line, match)
            for index, match in enumerate(matches)
        )

    def merge_records(
        self, records: Sequence[StepRecord], tally: Tally
    ) -> list[StepRecord]:
        """Drop records whose times may be wrong, judged by the other records.

        A line may contain the time of another line: then the pattern matches a second
        time in it, and the line contains the literal text more often than other lines.
        Or the time may be truncated, or have another unit (`TimeNotation`).
        """
        # the most frequent number of markers in a line, the lowest of several
        usual_count = min(
            self._counts, key=lambda count: (-self._counts[count], count), default=0
        )
        kept = []
        for record in records:
            if self._doubtful.get(record.origin.offset, 0) > usual_count:
                doubt = "two times in a line"
            else:
                doubt = self._notation.explain_doubt(record.origin.offset)
            if doubt:
                text = f"step {record.step}: {doubt}"
                tally.add(DropReason.TORN, record.origin.line, text)
            else:
                kept.append(record)
        self._notation.tally_doubts(kept, tally)
        return self._subtract_non_training(self._refine_resolutions(kept), tally)

    def _subtract_non_training(
        self, records: list[StepRecord], tally: Tally
    ) -> list[StepRecord]:
        """Subtract evaluation and checkpoint time from the step times, in place.

        The step times stay unchanged if they already exclude this time. They exclude it
        if steps with an evaluation take no longer than other steps.
        """
        rows = [
            row
            for row, record in enumerate(records)
            if record.origin.offset in self._non_training_seconds and record.possible
        ]
        non_training = [
            self._non_training_seconds[records[row].origin.offset] for row in rows
        ]
        if not rows or not _times_include(records, rows, non_training):
            return records
        for row, seconds in zip(rows, non_training, strict=True):
            record = records[row]
            if 0 < seconds < record.seconds:
                text = f"step {record.step}: {seconds:.6g} of {record.seconds:.6g} s"
                tally.add(DropReason.LEFT_OUT, record.origin.line, text)
                records[row] = record._replace(seconds=record.seconds - seconds)
        return records

    def _refine_resolutions(self, records: list[StepRecord]) -> list[StepRecord]:
        """Reduce resolutions to the precision that the whole log shows, in place.

        A framework that prints three digits drops trailing zeros: `2K` next to `1.99K`
        has the resolution 0.01K, too.
        """
        if self._time_groups not in PRINTED or "unit" in self._groups:
            return records
        # A time in seconds is a printed number times `scale`, or 1 / a printed rate. A
        # small change of a rate changes the time by that change times time squared.
        is_rate = self._unit == RATE
        scale = 1.0 if is_rate else UNITS[self._unit]
        values = [
            (record.stamp if self._time_groups == ELAPSED else record.seconds) / scale
            for record in records
        ]
        rows = [
            row
            for row, value in enumerate(values)
            if 0 < value < math.inf and records[row].resolution > 0
        ]
        # the unit of the last digit of each printed number
        units = [
            records[row].resolution / (values[row] ** 2 if is_rate else scale)
            for row in rows
        ]
        if not is_rate and len(set(units)) < 2:
            return records  # all numbers have the same unit in the last digit
        printed = [1 / values[row] if is_rate else values[row] for row in rows]
        for row, unit in zip(rows, refine_units(printed, units), strict=True):
            resolution = unit * (values[row] ** 2 if is_rate else scale)
            if resolution < records[row].resolution:
                records[row] = records[row]._replace(resolution=resolution)
        return records

    def resolve_steps(
        self, records: Sequence[StepRecord], tally: Tally
    ) -> list[StepRecord]:
        """Find restarts of the elapsed time within one rank."""
        if "elapsed" in self._time_groups:
            return clock.mark_restarts(records, tally)
        return list(records)

    def time_steps(self, records: Sequence[StepRecord]) -> list[StepRecord]:
        """Compute times from clocks, and set the number of steps that a time covers.

        If the pattern reads a clock (`elapsed` or `stamp`), the difference of two lines
        is the time. Otherwise the time is printed. A printed time per interval covers
        the steps since the line before. A gap larger than usual is a lost line: its
        time is the mean of the usual number of steps. Other printed times, and the time
        of a single line, cover one step.
        """
        if CONSUMED in self._groups:
            records = count_step_tokens(records)
        if self._time_groups in CLOCKS:
            has_elapsed = "elapsed" in self._time_groups
            first_step = self.dialect.first_step if has_elapsed else None
            return clock.time_steps(records, first_step=first_step)
        gaps = [after.step - before.step for before, after in pairwise(records)]
        if not (gaps and self._means_of_intervals):
            return list(records)
        usual_gap = clock.count_usual_gap(records)
        first_gap = records[0].step - self.dialect.first_step + 1
        return [
            record._replace(mean_of=max(1, min(gap, usual_gap)))
            for record, gap in zip(records, [first_gap, *gaps], strict=True)
        ]

    def _list_missing(self, text: bytes) -> list[str]:
        """Return the required groups that are missing in a line's first match."""
        match = self._pattern.search(text)
        return [
            name
            for name in self._required
            if match.start(self._group_numbers[name]) < 0
        ]

    def _find_first_missing(self, text: bytes) -> str:
        """Return the first group of the pattern that a line does not match.

        All groups before it match. Returns "" if all groups match: then only the text
        after the last group differs.
        """
        missing = ""
        # from the prefix that ends with the last group to the one with the first group
        for group in reversed(self._groups.values()):
            try:
                prefix = compile_pattern(group.prefix_pattern, shipped=self._shipped)
                match = prefix.search(text)
            except ValueError:  # a prefix of a pattern need not be a valid pattern
                continue
            if match is not None:
                break
            missing = group.name
        return missing

    def _record_markers(self, hit: Hit, text: bytes, matches: Sequence[Any]) -> None:
        """Count the markers of a line with steps.

        Remembers the line as doubtful if the pattern also matches another time in it.
        """
        count = text.count(hit.marker)
        self._counts[count] += 1
        if len(matches) == 1:
            (match,) = matches
            time_group = self._group_numbers[self._time_groups[0]]
            begin, end = match.span(time_group)
            without_time = text[:begin] + b" " * (end - begin) + text[end:]
            if self._pattern.search(without_time, match.start()) is not None:
                self._doubtful[hit.offset] = count

    def _find_matches(self, text: bytes) -> list[Any] | None:
        """Find the matches in a line.

        Returns None if a match may contain parts of two records: a record that begins
        inside another record, after its first number, shows that two lines were joined.
        Also returns None if a required group of a match has no value.
        """
        records = []
        match = self._pattern.search(text)
        while match is not None:
            # -1 if a required group has no value: the match then follows itself.
            first_end = min(
                match.end(self._group_numbers[name]) for name in self._required
            )
            following = match
            if first_end >= 0:
                following = self._pattern.search(text, first_end)
            # at least one byte, so that a match that follows itself is inside
            record_end = max(match.end(), match.start() + 1)
            if following is not None and following.start() < record_end:
                return None
            records.append(match)
            match = following
        return records

    def _build_record(
        self, hit: Hit, index: int, line: RecordLine, match: Any
    ) -> StepRecord | TruncatedRecord:
        """Build the step of one match, the match number `index` of its line.

        Also remembers the notation and the non-training time of the step. Returns a
        TruncatedRecord if a number is incomplete or invalid.
        """
        begins = [match.start(number) for number in self._group_numbers.values()]
        first_begin = min(begin for begin in begins if begin >= 0)
        rank = read_labels(line.text[: min(first_begin, REACH_BACK)])
        origin = RecordOrigin(hit.offset + index, hit.line, rank)
        values, numbers, factors, invalid = self._read_groups(line, match)
        invalid += [name for name in self._required if name not in values]
        if invalid or HOLE in match[0]:
            described = _prefix_invalid_group(invalid, values, line.text)
            return TruncatedRecord(origin, described)
        texts = {name: values[name] for name in TEXTS if name in values}
        time = read_line_time(self._time_groups, numbers | texts, factors, self._unit)
        if time is None:
            described = _prefix_invalid_group(list(texts), texts, line.text)
            return TruncatedRecord(origin, described)
        step = _build_step(origin, numbers, factors, time)
        if self._time_groups == SECONDS:
            if "unit" not in texts:
                begin = match.start(self._group_numbers["seconds"])
                self._notation.add(origin.offset, line, begin, numbers["seconds"])
                self._record_non_training(origin.offset, numbers, factors)
            if math.isnan(step.step_tokens):
                # the tokens of this step: its rate times its seconds
                step = step._replace(
                    step_tokens=step.throughput * step.seconds, throughput=NAN
                )
        return step._replace(rewards=True) if self._rewards else step

    def _read_groups(self, line: RecordLine, match: Any) -> GroupValues:
        """Read the groups of a match that have a value.

        Leaves out incomplete or invalid numbers of OPTIONAL groups.
        """
        read = GroupValues(values={}, numbers={}, factors={}, invalid=[])
        for name, group in self._group_numbers.items():
            begin, end = match.span(group)
            value = line.text[begin:end].rstrip(b",; \t")
            if value.lower() in ABSENT:
                continue
            if name in TEXTS:
                read.values[name] = value
                continue
            number = _strip_unit(value)
            is_complete = self._is_complete(line, name, begin, value)
            if name in OPTIONAL and not (is_complete and NUMBER.fullmatch(number)):
                continue
            scale = self._get_scale(line, name, begin, value, number)
            pattern = COUNT if name in COUNTS else NUMBER
            # an invalid value is kept for the message
            if scale is None or not is_complete or not pattern.fullmatch(number):
                read.invalid.append(name)
            read.values[name], read.numbers[name] = value, number
            read.factors[name] = scale or 1.0
        return read

    def _record_non_training(
        self, offset: int, numbers: Mapping[str, bytes], factors: Mapping[str, float]
    ) -> None:
        """Remember the evaluation and checkpoint time within a step."""
        printed = [
            float(numbers[name].replace(b",", b"")) * factors[name]
            for name in NON_TRAINING_GROUPS
            if name in numbers
        ]
        if printed and self._unit != RATE:
            self._non_training_seconds[offset] = sum(printed) * UNITS[self._unit]

    def _get_scale(
        self, line: RecordLine, name: str, begin: int, value: bytes, number: bytes
    ) -> float | None:
        """Return the factor of the letters after a number.

        Returns None if the letters are ambiguous.
        """
        if name in ("seconds", "elapsed") and "unit" in self._groups:
            return 1.0  # the unit has its own group
        letters = value[len(number) :]
        if not letters:
            after = line.text[begin + len(value) :]
            letters = printed_times.read_unit_characters(after)
        if not number[-1:].isdigit() and number[-1:] != b".":
            return 1.0  # not a number but a word, such as nan
        # True if the pattern itself continues with these letters.
        is_expected = letters[:1].decode("latin-1") == self._groups[name].after
        return printed_times.get_scale(name, letters, self._unit, expected=is_expected)

    def _is_complete(
        self, line: RecordLine, name: str, begin: int, value: bytes
    ) -> bool:
        """True unless the text around a number shows that digits are missing."""
        group = self._groups[name]
        before = line.text[:begin]
        after = line.text[begin + len(value) :]
        zeros = POINT_ZERO.match(after) if name in COUNTS else None
        if zeros:  # "500.0": these digits do not continue the count
            after = after[zeros.end() :]
        if STARTS_EARLIER.search(before[-4:]) or CONTINUES.match(after):
            return False
        # "234" in "1,234", unless the pattern itself has a comma there
        if (
            group.before != ","
            and THOUSANDS_BEFORE.search(before[-4:])
            and THREE_DIGITS.match(value)
        ):
            return False
        if group.after != "," and value[-1:].isdigit() and THOUSANDS.match(after):
            return False
        if not line.has_end and MAY_CONTINUE.match(after):
            return False
        is_last_in_line = not after.strip()
        return not (line.number_continues and is_last_in_line)


def _times_include(
    records: Sequence[StepRecord], rows: Sequence[int], non_training: Sequence[float]
) -> bool:
    """True if the step times of `rows` include the `non_training` times.

    If so, the step times without these times are closer to the times of other steps.
    """
    row_set = set(rows)
    times_without = [
        record.seconds
        for row, record in enumerate(records)
        if row not in row_set and record.possible
    ]
    if not times_without:  # nothing to compare with: a part is shorter than its whole
        return all(
            seconds < records[row].seconds
            for row, seconds in zip(rows, non_training, strict=True)
        )
    usual_seconds = find_median(times_without)
    times = [records[row].seconds for row in rows]
    differences = (abs(time - usual_seconds) for time in times)
    reduced_differences = (
        abs(time - seconds - usual_seconds)
        for time, seconds in zip(times, non_training, strict=True)
    )
    return find_median(reduced_differences) < find_median(differences)


def _make_readable(text: bytes) -> bytes:
    """Replace invalid UTF-8, so that a pattern can match after it."""
    return text if text.isascii() else text.decode("utf-8", "replace").encode()


def _strip_unit(value: bytes) -> bytes:
    """Return the number at the start of a value, or the value if there is none."""
    number = BARE.match(value)
    return number[0] if number else value


def _prefix_invalid_group(
    groups: Sequence[str], values: Mapping[str, bytes], text: bytes
) -> bytes:
    """Return the text of a truncated record, prefixed with its first invalid group.

    `values` contains the printed values; a group without a value is missing.
    """
    if not groups:
        return text
    name, *_ = groups
    value = values.get(name)
    problem = b"is missing" if value is None else b"reads %b" % value
    return b"group %b %b: %b" % (name.encode(), problem, text)


def _build_step(
    origin: RecordOrigin,
    values: Mapping[str, bytes],
    scales: Mapping[str, float],
    time: LineTime,
) -> StepRecord:
    """Build a step from the printed `values`, to be multiplied by their `scales`."""
    printed = {name: value.replace(b",", b"").lower() for name, value in values.items()}
    number = {name: float(value) * scales[name] for name, value in printed.items()}
    consumed_tokens = None
    if CONSUMED in number:
        consumed_tokens = number[CONSUMED], count_digits(printed[CONSUMED])
    return StepRecord(
        origin,
        int(float(printed["step"])),
        time.seconds,
        time.resolution,
        int(float(printed["total"])) if "total" in printed else None,
        loss=number.get("loss"),
        loss_digits=count_digits(printed.get("loss", b"")),
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
        consumed_tokens=consumed_tokens,
    )
