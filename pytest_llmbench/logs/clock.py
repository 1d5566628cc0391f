"""Time stamps of lines, pauses between lines, and step times derived from clocks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_llmbench.core.log_records import HOUR, SLACK, DropReason, PauseKind
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.scan import REACH_BACK, ByteChunk, find_line_begin
from pytest_llmbench.logs.step_records import (
    GET_FIELD,
    NAN,
    RecordOrigin,
    StepRecord,
    Tally,
    find_line_stop,
    find_median,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_llmbench.core.log_records import Flags, Floats

_TIME = rb"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?"
_ZONE = rb"(?: ?(?P<zone>[+-]\d\d):?(?P<zone_minute>\d\d)(?!\d))?"
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

STAMPS = tuple(
    compile_on_use(pattern)
    for pattern in (
        # "2026-01-31 12:00:00,123" or "2026/01/31T12:00:00 +01:00"
        rb"(?<!\d)(?P<year>20\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]"
        + _TIME
        + _ZONE,
        # "01/31/2026, 12:00:00"
        rb"(?<!\d)(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>20\d\d),? " + _TIME,
        # "I0131 12:00:00.123456", as glog and absl print
        rb"[DIWEF](?P<month>\d\d)(?P<day>\d\d) " + _TIME,
        # "01-31 12:00:00"
        rb"(?<!\d)(?P<month>\d\d)[-/](?P<day>\d\d) " + _TIME,
        # "Jan 31 12:00:00" or "Jan 31 2026 12:00:00"
        rb"(?P<name>"
        + b"|".join(_MONTHS)
        + rb") {1,2}(?P<day>\d{1,2}) (?:(?P<year>20\d\d) )?"
        + _TIME,
        # "[12:00:00"
        rb"\A[^\w\r\n]{0,3}" + _TIME,
    )
)
"""Formats of time stamps, the most specific first.

A stamp without a year, or without a day, wraps around: `read_stamps` unwraps it.
"""

_DAY = 86_400.0
_LEAP_YEAR = 2000
_PERIODS = (0.0, 0.0, 366 * _DAY, 366 * _DAY, 366 * _DAY, _DAY)
"""Seconds after which each format wraps around, 0 for never."""

PAUSES = {
    PauseKind.EVALUATION: (b"alidat", b"valuat", b"eval", b"Eval"),
    PauseKind.SAVE: (b"heckpoint", b"sav", b"Sav"),
}
"""Parts of words in lines about evaluations and saves."""

# A gap between two lines is examined if it exceeds the time of its steps by this factor
# and these seconds.
LONG, LONG_SECONDS = 1.2, 2.0

GET_RANK = itemgetter(RecordOrigin._fields.index("rank"))

# Bytes at the end of a chunk that are searched for a pause before the first step of the
# next chunk.
TAIL_BYTES = 1 << 16


def read_stamps(
    prefixes: Sequence[bytes], kind: int | None = None
) -> tuple[list[float], int | None]:
    """Read the time stamp in each text before a record, in seconds.

    Returns the stamps (NaN if there is none) and the index of their format in STAMPS.
    Without `kind`, the first text with a stamp decides the format: a log prints all
    stamps alike.
    """
    if kind is None:
        formats = map(find_format, dict.fromkeys(prefixes))
        kind = next((index for index in formats if index is not None), None)
    if kind is None:
        return [NAN] * len(prefixes), None
    matches = map(STAMPS[kind].search, prefixes)
    stamps = [NAN if match is None else _count_seconds(match) for match in matches]
    period = _PERIODS[kind]
    if period:
        stamps = _unwrap(stamps, period)
    return stamps, kind


def find_format(prefix: bytes) -> int | None:
    """Return the index in STAMPS of the format of a text's time stamp, or None."""
    if b":" not in prefix:
        return None
    return next(
        (kind for kind, stamp in enumerate(STAMPS) if stamp.search(prefix)), None
    )


def _unwrap(stamps: Sequence[float], period: float) -> list[float]:
    """Unwrap stamps that start again after `period` seconds.

    Adds the period to all stamps after each restart. Example: 23:59, 00:01 becomes
    23:59, 24:01, in seconds.
    """
    unwrapped = []
    shift, before = 0.0, NAN
    for stamp in stamps:
        # False if one of the stamps is NaN. A small fall is no new period.
        if before - stamp > period / 2:
            shift += period
        before = before if math.isnan(stamp) else stamp
        unwrapped.append(stamp + shift)
    return unwrapped


def _count_seconds(match: re.Match[bytes]) -> float:
    """Return a matched stamp in seconds since a fixed epoch of its format.

    NaN if the digits are not a date or time.
    """
    groups = match.groupdict()
    days = _count_days(
        groups.get("year"), groups.get("month") or groups.get("name"), groups.get("day")
    )
    seconds = (
        int(groups["hour"]) * 3600 + int(groups["minute"]) * 60 + int(groups["second"])
    )
    fraction = float(b"." + groups["part"]) if groups["part"] else 0.0
    zone_seconds = 0
    zone = groups.get("zone")
    if zone:  # "-05" and "30": the minutes have the sign of the hours
        zone_minutes = zone[:1] + (groups["zone_minute"] or b"0")
        zone_seconds = int(zone) * 3600 + int(zone_minutes) * 60
    return days * _DAY + seconds - zone_seconds + fraction


@lru_cache(maxsize=64)
def _count_days(year: bytes | None, month: bytes | None, day: bytes | None) -> float:
    """Return the day number of a date, 0 without a date, NaN for an invalid date.

    A date without a year counts as one of a leap year, so that February 29 is valid.
    """
    if month is None or day is None:
        return 0.0
    year_number = int(year) if year else _LEAP_YEAR
    month_number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
    try:
        return float(date(year_number, month_number, int(day)).toordinal())
    except ValueError:
        return NAN


def find_pauses(text: bytes, begin: int, end: int) -> int:
    """Return the kinds of pauses announced in `text[begin:end]`, or 0.

    Several kinds of `PauseKind` are added up.
    """
    return sum(
        kind
        for kind, words in PAUSES.items()
        if any(text.find(word, begin, end) >= 0 for word in words)
    )


def mark_long_gaps(passed: Floats, seconds: Floats) -> Flags:
    """Return a mask of the gaps between lines that are longer than their steps.

    `passed` are the gaps, `seconds` the times of the steps in them, in seconds,
    shape (n,).
    """
    long: Flags = passed > LONG * seconds + LONG_SECONDS
    return long


# Seconds. A larger timestamp is a date and time, a smaller one the time since the run
# started.
LONGEST_RUN = 1e8


def keep_one_clock(stamps: Floats) -> Floats:
    """Replace the timestamps of the less frequent clock by NaN.

    Progress bars have the elapsed time, records next to them the time of day.
    """
    is_time_of_day = stamps > LONGEST_RUN
    count = np.count_nonzero(np.isfinite(stamps))
    count_of_day = np.count_nonzero(is_time_of_day)
    if count_of_day in (0, count):
        return stamps
    is_rarer = is_time_of_day if 2 * count_of_day < count else ~is_time_of_day
    return np.where(is_rarer, NAN, stamps)


def collect_column(
    records: Sequence[StepRecord], field: str, kind: Any = np.float64
) -> NDArray[Any]:
    """Return one field of all records as an array."""
    return np.fromiter(map(GET_FIELD[field], records), kind, len(records))


class LineClocks:
    """Stamps and pauses of the records of one dialect, chunk by chunk."""

    def __init__(self) -> None:
        self.stamps: dict[int, float] = {}
        """Stamps of records whose dialect reads none.

        The key is the offset of the record in the log.
        """
        self.paused: dict[int, int] = {}
        """Kinds of the announced pauses before records, by offset.

        Only pauses in a gap that is longer than its steps.
        """
        self._last: dict[str, _LastRecord] = {}  # by rank
        self._kind: int | None = None
        self._last_stamp = NAN
        # by rank: the pauses announced after its last step
        self._announced: dict[str, int] = {}

    def add(self, chunk: ByteChunk, records: Sequence[StepRecord]) -> None:
        """Read the stamps of the records of a chunk, and find the pauses before them.

        Only considers records with a possible time.
        """
        seconds = collect_column(records, "seconds")
        possible = (seconds > 0) & (seconds < np.inf)
        if possible.any():
            stamps = collect_column(records, "stamp")
            # the dialect reads no stamp of these: read the text before the record
            without_stamp = np.flatnonzero(np.isnan(stamps) & possible)
            if len(without_stamp):
                stamps[without_stamp] = self._read_stamps(
                    chunk,
                    [records[row].origin.offset for row in without_stamp.tolist()],
                )
            timed = np.flatnonzero(possible & ~np.isnan(stamps)).tolist()
            ranks = list(map(GET_RANK, map(GET_FIELD["origin"], records)))
            has_one_rank = ranks.count(ranks[0]) == len(ranks)
            by_rank = {ranks[0]: timed} if has_one_rank else _group_rows(timed, ranks)
            for rank, rows in by_rank.items():
                rank_records = records
                if len(rows) < len(records):
                    rank_records = [records[row] for row in rows]
                if rank_records:
                    self._find_pauses(
                        rank, chunk, rank_records, seconds[rows], stamps[rows]
                    )
        self._find_announced_pauses(chunk)

    def _read_stamps(self, chunk: ByteChunk, offsets: Sequence[int]) -> Sequence[float]:
        """Return the stamps before the records at `offsets`, NaN if missing.

        Also adds them to `self.stamps`. A stamp without a year or a day starts again
        after a year or a day (`_PERIODS`): then a period is added to the later stamps.
        """
        prefixes = [_cut_prefix(chunk, offset) for offset in offsets]
        if not any(prefixes):
            return [NAN] * len(offsets)
        stamps: Sequence[float]
        stamps, self._kind = read_stamps(prefixes, self._kind)
        period = 0.0 if self._kind is None else _PERIODS[self._kind]
        if period:
            stamps = self._continue_stamps(stamps, period)
        self.stamps.update(
            (offset, stamp)
            for offset, stamp in zip(offsets, stamps, strict=True)
            if not math.isnan(stamp)
        )
        return stamps

    def _continue_stamps(
        self, stamps: Sequence[float], period: float
    ) -> Sequence[float]:
        """Continue stamps of a format that starts again after `period` seconds.

        Adds the periods that have passed before this chunk, including one that ends
        between the last stamp of the chunk before and the first one of this chunk.
        """
        known_stamps = [stamp for stamp in stamps if not math.isnan(stamp)]
        if not known_stamps:
            return stamps
        shift = 0.0
        while self._last_stamp - (known_stamps[0] + shift) > period / 2:
            shift += period
        self._last_stamp = known_stamps[-1] + shift
        return [stamp + shift for stamp in stamps]

    def _find_pauses(
        self,
        rank: str,
        chunk: ByteChunk,
        records: Sequence[StepRecord],
        seconds: Floats,
        stamps: Floats,
    ) -> None:
        """Find the pauses before records of one rank, and remember the last record.

        A pause is a gap between two records that is longer than their steps and in
        which the log mentions an evaluation or a save. All records have a time and a
        stamp.
        """
        before = self._last.get(rank)
        steps = collect_column(records, "step", np.int64)
        if before:
            steps = np.append(before.step, steps)
            stamps = np.append(before.stamp, stamps)
        first_row = 0 if before else 1  # index of the record after the first gap
        step_seconds = np.maximum(1, np.diff(steps)) * seconds[first_row:]
        is_long = mark_long_gaps(np.diff(stamps), step_seconds)
        for gap in np.flatnonzero(is_long).tolist():
            row = gap + first_row
            record = records[row]
            announced = 0
            # `begin` is the end of the record before the gap
            if gap == 0 and before:
                begin = max(0, before.stop - chunk.offset)
                if before.stop < chunk.offset + chunk.start:
                    # The last record is in an earlier chunk, and its pause may be, too.
                    announced = self._announced.get(rank, 0)
            else:
                begin = _find_record_stop(chunk, records[row - 1])
            offset = record.origin.offset - chunk.offset
            line_begin = find_line_begin(chunk.text, begin, offset)
            kinds = announced | find_pauses(chunk.text, begin, line_begin)
            if kinds:
                self.paused[record.origin.offset] = kinds
        self._last[rank] = _LastRecord(
            int(steps[-1]),
            float(stamps[-1]),
            chunk.offset + _find_record_stop(chunk, records[-1]),
        )

    def _find_announced_pauses(self, chunk: ByteChunk) -> None:
        """Remember the pauses announced after the last step of each rank.

        They precede the rank's first step in the next chunk.
        """
        if chunk.whole or not self._last:  # no next chunk, or no step yet
            return
        begin = max(chunk.stop - TAIL_BYTES, chunk.start)
        # the last offset of each kind, -1 if not announced
        last_offsets = {
            kind: max(chunk.text.rfind(word, begin, chunk.stop) for word in words)
            for kind, words in PAUSES.items()
        }
        for rank, last in self._last.items():
            stop = last.stop - chunk.offset
            # earlier announcements still count if this chunk has no step of the rank
            carried_over = self._announced.get(rank, 0) if stop < chunk.start else 0
            earliest = max(stop, begin)
            after_step = sum(
                kind for kind, offset in last_offsets.items() if offset >= earliest
            )
            self._announced[rank] = carried_over | after_step


def _group_rows(rows: Sequence[int], ranks: Sequence[str]) -> dict[str, list[int]]:
    """Group row indices by rank."""
    by_rank: dict[str, list[int]] = {}
    for row in rows:
        by_rank.setdefault(ranks[row], []).append(row)
    return by_rank


class _LastRecord(NamedTuple):
    """The last record of a rank: step, stamp, and end of its line in the log."""

    step: int
    stamp: float
    stop: int


def _find_record_stop(chunk: ByteChunk, record: StepRecord) -> int:
    """Return the end of a record's line in the text of a chunk."""
    return find_line_stop(
        chunk.text, record.origin.offset - chunk.offset, len(chunk.text)
    )


def _cut_prefix(chunk: ByteChunk, offset: int) -> bytes:
    """Return the text before a record in its line."""
    start = offset - chunk.offset
    # most records are at the beginning of a line
    if start and chunk.text[start - 1] in b"\n\r":
        return b""
    begin = find_line_begin(chunk.text, max(0, start - REACH_BACK), start)
    return chunk.text[begin:start]


# --- times of steps that print a stamp, or the time since the start -------------------

# Steps after a restart of the clock may take this share of the usual time.
FASTER = 0.9


def drop_evaluations(records: Sequence[StepRecord]) -> Iterator[StepRecord]:
    """Yield the training steps of one rank, without evaluations (mean_of 0).

    The time of the step after an evaluation counts from the end of the evaluation.
    """
    since: tuple[int, float] | None = None
    for record in records:
        if record.mean_of == 0:
            since = record.step, record.stamp
        else:
            yield record._replace(since=since) if since else record
            since = None


def mark_restarts(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Set `since` on the steps of one rank at which the clock restarted.

    A resumed run keeps its step numbers, but its clock starts again at zero. The time
    of its first step counts from the step before, unless the step would then be faster
    than others. In that case the clock restarted after the step before, and the time is
    unknown.
    """
    resets = [
        index
        for index, (before, record) in enumerate(pairwise(records), 1)
        if _has_restarted(before, record)
    ]
    if not resets:
        return list(records)
    usual_seconds = _compute_usual_seconds(records)
    with_starts = list(records)
    for index in resets:
        before, record = records[index - 1], records[index]
        steps = record.step - before.step
        if record.stamp >= before.stamp / 2 + usual_seconds * steps:
            continue  # fell by less than half: the machine's clock was set back
        text = f"step {record.step} at {record.stamp:g} s, step {before.step} at {before.stamp:g} s"
        tally.add(DropReason.CLOCK_RESTARTED, record.origin.line, text)
        # otherwise the clock restarted after the step before
        if record.stamp + record.resolution >= FASTER * usual_seconds * steps:
            with_starts[index] = record._replace(since=(before.step, 0.0))
    return with_starts


def _has_restarted(before: StepRecord, record: StepRecord) -> bool:
    """True if the clock went back although the step number rose."""
    return record.step > before.step and record.stamp < before.stamp


def _compute_usual_seconds(records: Sequence[StepRecord]) -> float:
    """Return the median time per step by the clock, 0 if unknown."""
    seconds = (
        (record.stamp - before.stamp) / (record.step - before.step)
        for before, record in pairwise(records)
        if record.step > before.step and record.stamp > before.stamp
    )
    return find_median(seconds, 0.0)


def time_steps(
    records: Sequence[StepRecord], *, first_step: int | None = None
) -> list[StepRecord]:
    """Compute the times of one attempt's steps from their clocks.

    The time of a line is the time since the line before, divided by the steps in
    between. `stamp` is the clock of a line, `resolution` one unit in its last digit.
    The line before is the previous step, or an evaluation after that step. The time is
    NaN for the first step, and if a stamp is missing or earlier than the stamp of the
    line before.

    If `first_step` (the number of the first step of a run) is given, the clock started
    with the training. Then the first line has a time, too, unless it covers more steps
    than other lines (a resumed run).
    """
    gaps = sorted(record.step - before.step for before, record in pairwise(records))
    if not gaps:
        return [record._replace(resolution=0.0) for record in records]
    usual_gap = gaps[len(gaps) // 2]
    # at least 1, also for step 0
    first = records[0]._replace(mean_of=min(records[0].step, usual_gap) or 1)
    if first_step is None:
        first = first._replace(resolution=0.0)
    elif first.since is not None and first.since[1] == 0:
        # the clock restarted before the first step
        step_before, stamp_before = first.since
        first = _set_time(first, step_before, stamp_before, other_unit=0.0)
    elif 0 < first.step - first_step + 1 <= usual_gap:
        # the clock started with the training
        first = _set_time(first, first_step - 1, stamp=0.0, other_unit=0.0)
    else:
        first = first._replace(resolution=0.0)
    timed = [
        first,
        *(_time_after(record, before) for before, record in pairwise(records)),
    ]
    index, jump = find_set_clock(records) if first_step is None else (0, 0.0)
    if jump:
        before, after = records[index - 1], records[index]
        without_jump = after._replace(stamp=after.stamp - jump)
        timed[index] = _time_after(without_jump, before)._replace(stamp=after.stamp)
    return timed


def find_set_clock(records: Sequence[StepRecord]) -> tuple[int, float]:
    """Find the record before which the clock was set by an hour.

    Returns its index and the seconds of the jump, or 0 and 0.

    The clock was set if there is a single jump of an hour (plus the time of the steps)
    that cannot be real: the clock went back, or the printed rate did not change. Other
    jumps are kept.
    """
    # most logs have no jump
    stamps = [record.stamp for record in records]
    if all(0 <= after - before < HOUR - SLACK for before, after in pairwise(stamps)):
        return 0, 0.0
    passed = []  # seconds of the clock before each record but the first
    for before, record in pairwise(records):
        _, stamp_before = _get_begin(record, before)
        passed.append(record.stamp - stamp_before)
    jumps = [
        index
        for index, seconds in enumerate(passed, 1)
        if not 0 <= seconds < HOUR - SLACK and not math.isnan(seconds)
    ]
    if len(jumps) != 1:  # the clock is set once at most
        return 0, 0.0
    (index,) = jumps
    jump = math.copysign(HOUR, passed[index - 1])
    passed_elsewhere = [*passed[: index - 1], *passed[index:]]
    usual_seconds = _estimate_gap(passed_elsewhere, records, index)
    seconds_without_jump = passed[index - 1] - jump
    # With long steps, a jump of an hour cannot be distinguished from their time.
    slack = SLACK + usual_seconds
    is_likely = slack < HOUR / 3 and abs(seconds_without_jump - usual_seconds) <= slack
    # A jump forward may be a real pause: then the printed rate is lower.
    if not is_likely or (jump > 0 and not _prints_usual_rate(records, index)):
        return 0, 0.0
    return index, jump


def _estimate_gap(
    passed: Sequence[float], records: Sequence[StepRecord], index: int
) -> float:
    """Return the expected time between a record and the one before.

    Estimated from the other gaps; infinite if there are none.
    """
    steps = [record.step - before.step for before, record in pairwise(records)]
    usual_seconds = find_median(filter(math.isfinite, passed), math.inf)
    return usual_seconds * steps[index - 1] / find_median(steps)


def _prints_usual_rate(records: Sequence[StepRecord], index: int) -> bool:
    """True if a record prints at least half the median rate."""
    rates = [
        record.throughput if math.isnan(record.tokens) else record.tokens
        for record in records
    ]
    return rates[index] >= 0.5 * find_median(filter(math.isfinite, rates))


def count_usual_gap(records: Sequence[StepRecord]) -> int:
    """Return the most frequent number of steps between two lines."""
    counts = Counter(after.step - before.step for before, after in pairwise(records))
    return min(counts, key=lambda gap: (-counts[gap], gap), default=1)


def _time_after(record: StepRecord, before: StepRecord) -> StepRecord:
    """Compute the time of a record since `before`, or since its later `since`."""
    if record.since is None:
        return _set_time(record, before.step, before.stamp, before.resolution)
    return _set_time(record, *_get_begin(record, before), before.resolution)


def _get_begin(record: StepRecord, before: StepRecord) -> tuple[int, float]:
    """Return the step and the clock at which the time of a record begins.

    This is its `since`, if that is not earlier than the record `before`.
    """
    if record.since and before.step <= record.since[0] < record.step:
        return record.since
    return before.step, before.stamp


def _set_time(
    record: StepRecord, step: int, stamp: float, other_unit: float
) -> StepRecord:
    """Set the time per step of a record, counted from `step` at the clock `stamp`.

    `other_unit` is the resolution of `stamp`. The time is NaN if it is impossible.
    """
    steps = record.step - step
    unit = max(record.resolution, other_unit)
    seconds, resolution = _divide_time(record.stamp - stamp, steps, unit)
    return record._replace(mean_of=steps, seconds=seconds, resolution=resolution)


def _divide_time(difference: float, steps: int, unit: float) -> tuple[float, float]:
    """Return the time per step and its resolution, (NaN, 0) if it is impossible.

    `difference` is that of two clocks, `unit` one unit in their last digit.
    """
    seconds = _round_difference(difference, unit) / steps
    return (seconds, unit / steps) if 0 < seconds < math.inf else (NAN, 0.0)


class ClockTimes(NamedTuple):
    """The times of one attempt's steps, by columns; fields as in `StepRecord`."""

    seconds: list[float]
    resolution: list[float]
    mean_of: list[int]


def time_columns(
    steps: Sequence[int], stamps: Sequence[float], unit: float
) -> ClockTimes | None:
    """Compute the times of one attempt's steps, like `time_steps`.

    The resolution of all stamps is `unit`. Returns None if a stamp is missing, or if
    the clock may have been set.
    """
    passed = [after - before for before, after in pairwise(stamps)]
    gaps = [after - before for before, after in pairwise(steps)]
    if not all(0 <= seconds < HOUR - SLACK for seconds in passed):
        return None
    times = [_divide_time(*row, unit) for row in zip(passed, gaps, strict=True)]
    usual_gap = sorted(gaps)[len(gaps) // 2] if gaps else 0
    first_mean = (min(steps[0], usual_gap) or 1) if gaps else 1
    return ClockTimes(
        seconds=[NAN, *(seconds for seconds, _ in times)],
        resolution=[0.0, *(resolution for _, resolution in times)],
        mean_of=[first_mean, *gaps],
    )


def _round_difference(difference: float, unit: float) -> float:
    """Round the difference of two clocks to the digits that both print.

    Keeps one digit more: only the error of the floating-point subtraction is removed.
    """
    if unit > 0 and math.isfinite(difference):
        digits = math.ceil(-math.log10(unit))
        return round(difference, digits + 1)
    return difference
