"""How lines print times: their units and numbers, what one line states of the time of a
step, and which lines print it otherwise than their siblings."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from pytest_llmbench.core.baseline_records import RegexDialect, TimesOf
from pytest_llmbench.core.log_records import DropReason, Quote
from pytest_llmbench.logs.dialect_table import RATE, UNITS
from pytest_llmbench.logs.step_records import (
    NAN,
    StepRecord,
    Tally,
    get_printed_unit,
    make_printable,
)

# How frameworks shorten large numbers: `4.71K`.
MULTIPLES = {b"K": 1e3, b"k": 1e3, b"M": 1e6, b"G": 1e9}

# Groups whose numbers are exact: a shortened one is rounded.
COUNTED = frozenset(("step", "total", "batch"))

# The words of each unit of time, by its name in UNITS; those of a rate are of
# steps.
UNIT_WORDS = {
    "s": re.compile(rb"(?i)s(?:ecs?|econds?)?(?:/[a-z]+)?"),
    "ms": re.compile(rb"(?i)m(?:s|secs?|illis(?:econds?)?|illiseconds?)(?:/[a-z]+)?"),
    "us": re.compile(
        "(?i)(?:u|\u00b5|\u03bc)s(?:ecs?)?(?:/[a-z]+)?|microseconds?".encode()
    ),
    "min": re.compile(rb"(?i)m(?:ins?|inutes?)?(?:/[a-z]+)?"),
    RATE: re.compile(
        rb"(?i)(?:it(?:er(?:ation)?)?s?|steps?|batch(?:es)?|updates?)(?:/s(?:ec(?:onds?)?)?|ps)|hz"
    ),
}

BYTES = re.compile(rb"([KMGT])(i?)B")
FLOPS = re.compile(rb"([GTP])(?:(?i:flops?)(?:/s)?)?")
TERA = {b"G": 1e-3, b"T": 1.0, b"P": 1e3}

WORD = re.compile(rb"(?:[A-Za-z]|\xc2\xb5|\xce\xbc)+(?:/[A-Za-z]+)?")
SPACED_WORD = re.compile(rb" ?(%b)" % WORD.pattern)


def read_unit_characters(text: bytes) -> bytes:
    """Return the letters that a text begins with, with those behind a slash."""
    word = WORD.match(text)
    return word[0] if word else b""


def get_scale(group: str, letters: bytes, unit: str, *, expected: bool) -> float | None:
    """Return the factor of the letters after a number, None for ambiguous letters.

    `unit` is the unit of the group `seconds`. `expected` is true if the pattern
    contains the letter.
    """
    if not letters:
        return 1.0
    if group == "tflops" and (flops := FLOPS.fullmatch(letters)):
        return TERA[flops[1]]
    if group == "memory_bytes" and (size := BYTES.fullmatch(letters)):
        return (1024.0 if size[2] else 1000.0) ** (b"KMGT".index(size[1]) + 1)
    if letters in MULTIPLES:
        return None if group in COUNTED else MULTIPLES[letters]
    if expected or group in COUNTED:
        return 1.0
    return (
        1.0
        if group in ("seconds", "elapsed") and UNIT_WORDS[unit].fullmatch(letters)
        else None
    )


@lru_cache(maxsize=256)
def read_unit(text: bytes) -> str:
    """Return the unit of time that a text begins with, after a blank perhaps; an empty
    text where there is none."""
    word = SPACED_WORD.match(text)
    return next(
        (
            unit
            for unit, words in UNIT_WORDS.items()
            if word and words.fullmatch(word[1])
        ),
        "",
    )


# Bytes before and behind a time that say what it is.
BEFORE, BEHIND = 48, 24

AVERAGE = re.compile(rb"(?i)(?:avg|average|mean)[^\d|,;]{0,24}\Z")
CUMULATIVE = re.compile(
    rb"(?i)(?:running|cumul|overall|so_?far|moving|smooth|train_speed)[^\d|,;]{0,32}\Z"
)
OF_SAMPLES = rb"(?:samples?|sequences?|seqs?|examples?|images?|imgs?|tok(?:en)?s?)"
SAMPLES_BEHIND = re.compile(rb"(?i) ?%b ?(?:/|per|a) ?s" % OF_SAMPLES)
SAMPLES_BEFORE = re.compile(
    rb"(?i)%b_? ?(?:/|per|a)_? ?s(?:ec(?:ond)?s?)?[^\d|,;a-z]{0,16}\Z" % OF_SAMPLES
)

# Added to the decimals of a number with an exponent.
EXPONENT_SHAPE = 1000

# So many lines of a log are looked at for what they call their times: the others call
# them the same.
ALIKE = 50

# Times of one process from which on their course shows that they are means since the
# start.
FEWEST = 20
# The share of the variance that 1/step explains in the second half of such means; of
# single times it is near zero.
LIKE_AN_AVERAGE = 0.98


class RecordLine(NamedTuple):
    """The line around a marker without its colours."""

    text: bytes
    whole: bool  # it ends
    cut: bool  # a number was cut at its end


class Prints:
    """What the lines of one log have in common: decimals of their times, what follows
    them, their unit."""

    def __init__(self, definition: RegexDialect) -> None:
        """Take the definition that they are read with."""
        self._unit = definition.unit
        self._interval = definition.averages == TimesOf.INTERVAL
        self._shapes: Counter[int] = Counter()
        self._units: Counter[str] = Counter()
        self._other_unit: dict[int, str] = {}
        self._last: dict[int, int] = {}
        self._padded = False
        self._words: dict[DropReason, tuple[int, Quote]] = {}

    def add(self, offset: int, line: RecordLine, begin: int, number: bytes) -> None:
        """Take the time of the record at an offset, and what stands around it."""
        before = line.text[max(0, begin - BEFORE) : begin]
        behind = line.text[begin + len(number) :]
        shape = _get_shape(number)
        self._shapes[shape] += 1
        self._padded |= b"." in number and number.endswith(b"0")
        if not behind.strip():
            self._last[offset] = shape
        unit = read_unit(behind[:BEHIND])
        self._units[unit] += 1
        if unit and unit != self._unit:
            self._other_unit[offset] = unit
        reason = (
            self._read_doubt(before, behind[:BEHIND])
            if self._shapes.total() <= ALIKE
            else None
        )
        if reason:
            self._words.setdefault(reason, (offset, make_printable(line.text)))

    def explain_doubt(self, offset: int) -> str:
        """Return in words why the time of a record may be another one, by what its
        siblings print; else nothing."""
        if self._units[self._unit] and offset in self._other_unit:
            return (
                f"its time is in {self._other_unit[offset]}, others are in {self._unit}"
            )
        if offset in self._last and self._may_be_cut(self._last[offset]):
            return "it ends where others go on, or have more decimals"
        return ""

    def tell(self, records: Sequence[StepRecord], tally: Tally) -> None:
        """Count what the records look like otherwise than as the time of one step
        each."""
        if not records:
            return
        for reason, (offset, line) in self._words.items():
            first = next(
                (record for record in records if record.origin.offset >= offset),
                records[0],
            )
            tally.add(reason, first.origin.line, count=len(records), quote=line)
        if (
            DropReason.RUNNING_AVERAGE not in self._words
            and not self._interval
            and is_running_average(records)
        ):
            text = f"step {records[-1].step}: {records[-1].seconds:g} s"
            tally.add(
                DropReason.RUNNING_AVERAGE, records[-1].origin.line, text, len(records)
            )

    def _read_doubt(self, before: bytes, behind: bytes) -> DropReason | None:
        if self._unit == RATE and (
            SAMPLES_BEHIND.match(behind) or SAMPLES_BEFORE.search(before)
        ):
            return DropReason.RATE_OF_SAMPLES
        if CUMULATIVE.search(before) or (not self._interval and AVERAGE.search(before)):
            return DropReason.RUNNING_AVERAGE
        return None

    def _may_be_cut(self, shape: int) -> bool:
        """True if a number at the end of its line has fewer digits than its siblings.

        If most lines continue after the number, it lacks usual decimals, or is a whole
        number like all others. If no line continues, all others have the same decimals
        and zeros at their end: none were left out.
        """
        usual = max(self._shapes, key=lambda each: (self._shapes[each], each))
        every = self._shapes.total()
        if 2 * len(self._last) < every:
            return shape < usual or usual == 0
        fixed = (
            self._padded
            and self._shapes[usual] + self._shapes[shape] == every
            and self._shapes[shape] * 2 < every
        )
        return fixed and shape < usual


def is_running_average(records: Sequence[StepRecord]) -> bool:
    """Tell whether times are means since the first step: a slow first step then fades
    away as 1/step does.

    Only the second half is looked at, where the single times of a run are level. False
    also where nothing shows it.
    """
    run = [(record.step, record.seconds) for record in records if record.possible]
    if len(run) < FEWEST or any(
        before[0] >= after[0] for before, after in pairwise(run)
    ):
        return False
    half = run[len(run) // 2 :]
    x = [1 / (step + 1) for step, _ in half]
    y = [seconds for _, seconds in half]
    if min(y) == max(y):
        return False
    from statistics import correlation  # few logs need it

    return correlation(x, y) ** 2 >= LIKE_AN_AVERAGE


def _get_shape(number: bytes) -> int:
    """Return how many decimals a number has, more where it has an exponent."""
    mantissa, exponent, _ = number.lower().partition(b"e")
    return len(mantissa.partition(b".")[2]) + (EXPONENT_SHAPE if exponent else 0)


# --- what one line states of the time of a step ----------------------------------------

STAMP = re.compile(
    rb"(?P<date>20\d\d-\d\d-\d\d|\d\d/\d\d/20\d\d)[T ](?P<time>\d\d:\d\d:\d\d)"
    rb"(?:[.,](?P<part>\d{1,6}))?(?:Z|[+-]00:?00)?"
)
CLOCKS = (("elapsed",), ("stamp",))
"""The groups of which only two lines together say how long a step took."""


class LineTime(NamedTuple):
    """The time of a step, or a clock, and one unit in the last place of either."""

    seconds: float
    resolution: float
    stamp: float = NAN


def read_line_time(
    timed: tuple[str, ...],
    values: Mapping[str, bytes],
    scales: Mapping[str, float],
    unit: str,
) -> LineTime | None:
    """Read the time of a line from the groups of a row of TIMED; None for an invalid
    stamp or unit.

    values: the numbers without their letters, and the texts of `stamp` and `unit`.
    scales: the factors of the letters. unit: that of a line without a unit.
    """
    if timed == ("stamp",):
        return read_stamp(values["stamp"])
    name = timed[0]
    text, scale = values[name].replace(b",", b"").lower(), scales[name]
    number, place = float(text) * scale, get_printed_unit(text) * scale
    if name == "rate":
        amount = float(values["amount"].replace(b",", b"")) * scales["amount"]
        seconds = amount / number if number else math.inf
        return LineTime(seconds, seconds * place / number if number else 0.0)
    unit = read_unit(values["unit"]) if "unit" in values else unit
    if unit not in (*UNITS, RATE):
        return None
    seconds, resolution = convert_seconds(number, place, unit)
    return (
        LineTime(NAN, resolution, seconds)
        if name == "elapsed"
        else LineTime(seconds, resolution)
    )


def read_stamp(text: bytes) -> LineTime | None:
    """Return a date and time as seconds since a fixed moment; None for what is none, or
    is of a named time zone."""
    match = STAMP.fullmatch(text)
    if match is None:
        return None
    date, part = match["date"], match["part"] or b""
    if b"/" in date:
        date = b"%b-%b-%b" % (date[6:], date[:2], date[3:5])
    seconds = read_timestamp(b"%b %b" % (date, match["time"]))
    if math.isnan(seconds):
        return None
    return LineTime(NAN, 10.0 ** -len(part), seconds + float(b"0.%b0" % part))


def read_timestamp(text: bytes) -> float:
    """Return a date and time in the ISO format as seconds, NaN for digits that are no
    date."""
    try:
        moment = datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        return NAN
    return moment.replace(tzinfo=UTC).timestamp()


def convert_seconds(value: float, place: float, unit: str) -> tuple[float, float]:
    """Return a printed time or rate as seconds, with one unit in its last place; a rate
    of zero never ends a step."""
    if not math.isfinite(value):
        return (value if unit != RATE else NAN), 0.0
    if unit != RATE:
        return value * UNITS[unit], place * UNITS[unit]
    seconds = 1 / value if value else math.inf
    resolution = place * seconds * seconds
    return seconds, resolution if math.isfinite(resolution) else 0.0
