"""Times in lines of user-defined dialects: notations, units, and doubts.

A doubt arises if a line prints its time differently than the other lines of its log, or
if the name of the time reveals an average.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pytest_llmbench.core.baseline_records import RegexDialect, TimesOf
from pytest_llmbench.core.log_records import DropReason, Quote
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.dialect_table import RATE, UNITS
from pytest_llmbench.logs.step_records import (
    NAN,
    StepRecord,
    Tally,
    get_printed_unit,
    make_printable,
)

# How frameworks abbreviate large numbers: `4.71K`.
MULTIPLES = {b"K": 1e3, b"k": 1e3, b"M": 1e6, b"G": 1e9}

# Groups whose numbers are exact, while an abbreviated number is rounded.
COUNTED = frozenset(("step", "total", "batch"))

# Spellings of each unit of time, by its name in UNITS. The spellings of a rate are
# rates of steps.
UNIT_WORDS = {
    "s": compile_on_use(rb"(?i)s(?:ecs?|econds?)?(?:/[a-z]+)?"),
    "ms": compile_on_use(
        rb"(?i)m(?:s|secs?|illis(?:econds?)?|illiseconds?)(?:/[a-z]+)?"
    ),
    "us": compile_on_use(
        "(?i)(?:u|\u00b5|\u03bc)s(?:ecs?)?(?:/[a-z]+)?|microseconds?".encode()
    ),
    "min": compile_on_use(rb"(?i)m(?:ins?|inutes?)?(?:/[a-z]+)?"),
    RATE: compile_on_use(
        rb"(?i)(?:it(?:er(?:ation)?)?s?|steps?|batch(?:es)?|updates?)(?:/s(?:ec(?:onds?)?)?|ps)|hz"
    ),
}

BYTES = compile_on_use(rb"([KMGT])(i?)B")
FLOPS = compile_on_use(rb"([GTP])(?:(?i:flops?)(?:/s)?)?")
TERA = {b"G": 1e-3, b"T": 1.0, b"P": 1e3}

WORD = compile_on_use(rb"(?:[A-Za-z]|\xc2\xb5|\xce\xbc)+(?:/[A-Za-z]+)?")
SPACED_WORD = compile_on_use(rb" ?(%b)" % WORD.pattern)


def read_unit_characters(text: bytes) -> bytes:
    """Return the letters at the start of a text, and those after a slash."""
    word = WORD.match(text)
    return word[0] if word else b""


def get_scale(group: str, letters: bytes, unit: str, *, expected: bool) -> float | None:
    """Return the factor of the letters after a number, such as 1000 for K.

    Returns None if the letters are ambiguous. `unit` is the unit of the group
    `seconds`. `expected` is true if the pattern itself contains the first letter after
    the group, so that the letter is no abbreviation.
    """
    if not letters:
        return 1.0
    flops = FLOPS.fullmatch(letters) if group == "tflops" else None
    if flops:  # "T", "TFLOPs", "GFLOP/s"
        return TERA[flops[1]]
    byte_unit = BYTES.fullmatch(letters) if group == "memory_bytes" else None
    if byte_unit:  # "GB", "GiB"
        prefix, binary = byte_unit.groups()
        base = 1024.0 if binary else 1000.0
        return base ** (b"KMGT".index(prefix) + 1)
    if letters in MULTIPLES:  # an abbreviated count would not be exact
        return None if group in COUNTED else MULTIPLES[letters]
    if expected or group in COUNTED:  # the letters are text after the number
        return 1.0
    is_time = group in ("seconds", "elapsed")
    return 1.0 if is_time and UNIT_WORDS[unit].fullmatch(letters) else None


@lru_cache(maxsize=256)
def read_unit(text: bytes) -> str:
    """Return the unit of time at the start of a text, or "".

    A blank may precede the unit.
    """
    word = SPACED_WORD.match(text)
    if word is None:
        return ""
    for unit, spellings in UNIT_WORDS.items():
        if spellings.fullmatch(word[1]):
            return unit
    return ""


# Bytes before and after a time that may describe it.
CONTEXT_BEFORE, CONTEXT_AFTER = 48, 24

# Each of these patterns ends at the time, or begins after it: "avg time: ",
# "running_mean_step: ", " samples/s", "tokens per sec: ".
AVERAGE = compile_on_use(rb"(?i)(?:avg|average|mean)[^\d|,;]{0,24}\Z")
CUMULATIVE = compile_on_use(
    rb"(?i)(?:running|cumul|overall|so_?far|moving|smooth|train_speed)[^\d|,;]{0,32}\Z"
)
OF_SAMPLES = rb"(?:samples?|sequences?|seqs?|examples?|images?|imgs?|tok(?:en)?s?)"
SAMPLES_AFTER = compile_on_use(rb"(?i) ?%b ?(?:/|per|a) ?s" % OF_SAMPLES)
SAMPLES_BEFORE = compile_on_use(
    rb"(?i)%b_? ?(?:/|per|a)_? ?s(?:ec(?:ond)?s?)?[^\d|,;a-z]{0,16}\Z" % OF_SAMPLES
)

# Added to the decimals of a number with an exponent.
EXPONENT_SHAPE = 1000

# Lines of a log whose names of times are examined: later lines use the same names.
EXAMINED_LINES = 50

# Fewest times of a process that can be tested for being means since the start.
FEWEST_TIMES = 20
# Share of the variance that 1/step explains in the second half of such means. It is
# near zero for single times.
EXPLAINED_SHARE = 0.98


class RecordLine(NamedTuple):
    """The line around a marker, without colours."""

    text: bytes
    has_end: bool  # the log contains the end of the line
    number_continues: bool  # the next line continues the number at its end


class TimeNotation:
    """Notation of the times in one log.

    Collects the decimals of the times, the text around them, and their units.
    """

    def __init__(self, definition: RegexDialect) -> None:
        self._unit = definition.unit
        self._interval = definition.averages == TimesOf.INTERVAL
        self._shapes: Counter[int] = Counter()  # see `_get_shape`
        self._units: Counter[str] = Counter()
        # by offset of the record: the printed unit if the definition has another one
        self._other_unit: dict[int, str] = {}
        # by offset of the record: the shape of a time at the end of its line
        self._line_ends: dict[int, int] = {}
        self._padded = False  # True if a time ends with a zero after the point
        # offset and line of the first record with each doubt
        self._named_doubts: dict[DropReason, tuple[int, Quote]] = {}

    def add(self, offset: int, line: RecordLine, begin: int, number: bytes) -> None:
        """Add the time of the record at an offset, and the text around it."""
        before = line.text[max(0, begin - CONTEXT_BEFORE) : begin]
        after = line.text[begin + len(number) :]
        shape = _get_shape(number)
        self._shapes[shape] += 1
        self._padded |= b"." in number and number.endswith(b"0")
        if not after.strip():
            self._line_ends[offset] = shape
        unit = read_unit(after[:CONTEXT_AFTER])
        self._units[unit] += 1
        if unit and unit != self._unit:
            self._other_unit[offset] = unit
        if self._shapes.total() <= EXAMINED_LINES:
            reason = self._read_doubt(before, after[:CONTEXT_AFTER])
            if reason:
                quote = make_printable(line.text)
                self._named_doubts.setdefault(reason, (offset, quote))

    def explain_doubt(self, offset: int) -> str:
        """Return the reason to doubt the time of a record, or "".

        Compares it with the other times of the log.
        """
        if self._units[self._unit] and offset in self._other_unit:
            return f"the time is in {self._other_unit[offset]}, other times in {self._unit}"
        shape = self._line_ends.get(offset)
        if shape is not None and self._may_be_truncated(shape):
            return "the time may be truncated: other lines continue after it or have more decimals"
        return ""

    def tally_doubts(self, records: Sequence[StepRecord], tally: Tally) -> None:
        """Count the records whose times look like averages or rates of samples."""
        if not records:
            return
        for reason, (offset, line) in self._named_doubts.items():
            first = next(
                (record for record in records if record.origin.offset >= offset),
                records[0],
            )
            tally.add(reason, first.origin.line, count=len(records), quote=line)
        # Without such a name, the times themselves may show that they are averages.
        may_be_average = (
            DropReason.RUNNING_AVERAGE not in self._named_doubts and not self._interval
        )
        if may_be_average and is_running_average(records):
            last = records[-1]
            text = f"step {last.step}: {last.seconds:g} s"
            tally.add(DropReason.RUNNING_AVERAGE, last.origin.line, text, len(records))

    def _read_doubt(self, before: bytes, after: bytes) -> DropReason | None:
        """Return the reason to doubt a time, from the words around it, or None.

        The words name a rate of samples or an average.
        """
        names_samples = SAMPLES_AFTER.match(after) or SAMPLES_BEFORE.search(before)
        if self._unit == RATE and names_samples:
            return DropReason.RATE_OF_SAMPLES
        if CUMULATIVE.search(before) or (not self._interval and AVERAGE.search(before)):
            return DropReason.RUNNING_AVERAGE
        return None

    def _may_be_truncated(self, shape: int) -> bool:
        """True if a time with `shape` decimals at the end of its line may be truncated.

        - If most lines continue after the time: if it has fewer decimals than usual, or
          if most times are whole numbers.
        - If most times end their lines: if it has fewer decimals than usual although
          the log prints a fixed number of them (most times have the same number, and
          trailing zeros are printed).
        """
        usual_shape = max(
            self._shapes, key=lambda candidate: (self._shapes[candidate], candidate)
        )
        total = self._shapes.total()
        has_fewer_decimals = shape < usual_shape
        if 2 * len(self._line_ends) < total:  # most lines continue
            return has_fewer_decimals or usual_shape == 0
        is_fixed_format = (
            self._padded
            and self._shapes[usual_shape] + self._shapes[shape] == total
            and self._shapes[shape] * 2 < total
        )
        return is_fixed_format and has_fewer_decimals


def is_running_average(records: Sequence[StepRecord]) -> bool:
    """True if the times are means since the first step.

    The extra time of a slow first step then decays like 1/step. Only the second half of
    the run is tested, because times of single steps no longer fall there. False if
    inconclusive.
    """
    timed = [record for record in records if record.possible]
    if len(timed) < FEWEST_TIMES:
        return False
    if any(before.step >= after.step for before, after in pairwise(timed)):
        return False
    second_half = timed[len(timed) // 2 :]
    decay = [1 / (record.step + 1) for record in second_half]
    seconds = [record.seconds for record in second_half]
    if min(seconds) == max(seconds):
        return False  # the correlation is undefined
    from statistics import correlation  # few logs need it

    return correlation(decay, seconds) ** 2 >= EXPLAINED_SHARE


def _get_shape(number: bytes) -> int:
    """Return the number of decimals, plus EXPONENT_SHAPE for an exponent.

    Examples: 2 for `12.39`, 1003 for `1.249e+03`.
    """
    mantissa, exponent, _ = number.lower().partition(b"e")
    _, _, decimals = mantissa.partition(b".")
    return len(decimals) + (EXPONENT_SHAPE if exponent else 0)


# --- the time in one line -------------------------------------------------------------

# "2026-01-31T12:00:00.123Z" or "01/31/2026 12:00:00"
STAMP = compile_on_use(
    rb"(?P<date>20\d\d-\d\d-\d\d|\d\d/\d\d/20\d\d)[T ](?P<time>\d\d:\d\d:\d\d)"
    rb"(?:[.,](?P<part>\d{1,6}))?(?:Z|[+-]00:?00)?"
)
CLOCKS = (("elapsed",), ("stamp",))
"""Groups whose times are differences between two lines."""


class LineTime(NamedTuple):
    """The time of a step, or a clock, and the unit of its last digit."""

    seconds: float
    resolution: float
    stamp: float = NAN


def read_line_time(
    timed: tuple[str, ...],
    values: Mapping[str, bytes],
    scales: Mapping[str, float],
    unit: str,
) -> LineTime | None:
    """Read the time of a line from its groups `timed`, one row of TIME_GROUPS.

    `values` contains the numbers without letters, and the texts of `stamp` and `unit`;
    `scales` the factors of the letters. `unit` applies to a line without a unit.
    Returns None if the stamp or unit is invalid.
    """
    if timed == ("stamp",):
        return read_stamp(values["stamp"])
    name, *_ = timed
    text, scale = values[name].replace(b",", b"").lower(), scales[name]
    number, digit_unit = float(text) * scale, get_printed_unit(text) * scale
    if name == "rate":  # the time is the amount of a step divided by its rate
        amount = float(values["amount"].replace(b",", b"")) * scales["amount"]
        seconds = amount / number if number else math.inf
        return LineTime(seconds, seconds * digit_unit / number if number else 0.0)
    unit = read_unit(values["unit"]) if "unit" in values else unit
    if unit not in (*UNITS, RATE):
        return None
    seconds, resolution = convert_seconds(number, digit_unit, unit)
    if name == "elapsed":
        return LineTime(NAN, resolution, stamp=seconds)
    return LineTime(seconds, resolution)


def read_stamp(text: bytes) -> LineTime | None:
    """Read a date and time in seconds since a fixed epoch.

    Returns None if the text is not a stamp or names a time zone other than UTC.
    """
    match = STAMP.fullmatch(text)
    if match is None:
        return None
    date, decimals = match["date"], match["part"] or b""
    if b"/" in date:
        month, day, year = date.split(b"/")
        date = b"%b-%b-%b" % (year, month, day)
    whole_seconds = read_timestamp(b"%b %b" % (date, match["time"]))
    if math.isnan(whole_seconds):
        return None
    stamp = whole_seconds + float(b"0.%b0" % decimals)
    return LineTime(NAN, resolution=10.0 ** -len(decimals), stamp=stamp)


def read_timestamp(text: bytes) -> float:
    """Read an ISO date and time in seconds; NaN if it is not a date."""
    try:
        stamp = datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        return NAN
    return stamp.replace(tzinfo=UTC).timestamp()


# Microseconds up to this number are exact as a float.
MOST_EXACT = 1 << 53


def read_timestamps(printed: Sequence[bytes]) -> list[float]:
    """Read ISO dates and times in seconds, like `read_timestamp`.

    NumPy takes a tenth of the time for a column. It reads some dates that Python does
    not, all of them before 1970.
    """
    text = b"\n".join(printed).replace(b",", b".").decode("ascii")
    try:
        microseconds = np.array(text.split("\n"), "datetime64[us]").astype(np.int64)
    except ValueError:
        return list(map(read_timestamp, printed))
    if not 0 < microseconds.min() <= microseconds.max() < MOST_EXACT:
        return list(map(read_timestamp, printed))
    seconds: list[float] = (microseconds / 1e6).tolist()
    return seconds


def convert_seconds(value: float, digit_unit: float, unit: str) -> tuple[float, float]:
    """Convert a printed time or rate to seconds.

    `digit_unit` is the unit of its last digit. Returns the seconds and their
    resolution. A rate of zero becomes infinity.
    """
    if not math.isfinite(value):
        return (value if unit != RATE else NAN), 0.0
    if unit != RATE:
        return value * UNITS[unit], digit_unit * UNITS[unit]
    seconds = 1 / value if value else math.inf
    resolution = digit_unit * seconds * seconds
    return seconds, resolution if math.isfinite(resolution) else 0.0
