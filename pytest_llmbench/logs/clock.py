"""The clocks of a log: the stamps of its lines, the pauses that they show, and the times
of steps that print a clock and no time."""

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
    re.compile(pattern)
    for pattern in (
        rb"(?<!\d)(?P<year>20\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]"
        + _TIME
        + _ZONE,
        rb"(?<!\d)(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>20\d\d),? " + _TIME,
        rb"[DIWEF](?P<month>\d\d)(?P<day>\d\d) " + _TIME,
        rb"(?<!\d)(?P<month>\d\d)[-/](?P<day>\d\d) " + _TIME,
        rb"(?P<name>"
        + b"|".join(_MONTHS)
        + rb") {1,2}(?P<day>\d{1,2}) (?:(?P<year>20\d\d) )?"
        + _TIME,
        rb"\A[^\w\r\n]{0,3}" + _TIME,
    )
)
"""How stamps are printed, the most certain first. Days and months without a year, and
times without a day, begin again: `read_stamps` counts on."""

_DAY = 86_400.0
_LEAP_YEAR = 2000
_PERIODS = (0.0, 0.0, 366 * _DAY, 366 * _DAY, 366 * _DAY, _DAY)
"""After how many seconds each kind of stamp begins again, 0 for one that never does."""

PAUSES = {
    PauseKind.EVALUATION: (b"alidat", b"valuat", b"eval", b"Eval"),
    PauseKind.SAVE: (b"heckpoint", b"sav", b"Sav"),
}
"""Parts of the words in lines about evaluations and saves."""

# A gap between two lines that is longer than its steps by more than this factor, and
# these seconds, is looked into.
LONG, LONG_SECONDS = 1.2, 2.0

GET_RANK = itemgetter(RecordOrigin._fields.index("rank"))

# Bytes at the end of a chunk that are looked at for the pause before the first step of
# the next one.
TAIL = 1 << 16


def read_stamps(
    prefixes: Sequence[bytes], kind: int | None = None
) -> tuple[list[float], int | None]:
    """Return the stamp in each of the texts before records, NaN without one, and which
    of STAMPS they are printed as.

    The first text with a stamp decides the kind, unless it is given: a log writes all
    of them alike.
    """
    if kind is None:
        kind = next(
            (found for prefix in prefixes if (found := _find_kind(prefix)) is not None),
            None,
        )
    if kind is None:
        return [NAN] * len(prefixes), None
    search, period = STAMPS[kind].search, _PERIODS[kind]
    stamps = [
        NAN if (match := search(prefix)) is None else _count_seconds(match)
        for prefix in prefixes
    ]
    return _count_on(stamps, period) if period else stamps, kind


def _find_kind(prefix: bytes) -> int | None:
    if b":" not in prefix:
        return None
    return next(
        (kind for kind, stamp in enumerate(STAMPS) if stamp.search(prefix)), None
    )


def _count_on(stamps: Sequence[float], period: float) -> list[float]:
    """Return stamps that go on where those that are printed begin again."""
    counted = []
    ahead, before = 0.0, NAN
    for stamp in stamps:
        if before - stamp > period / 2:
            ahead += period
        before = before if math.isnan(stamp) else stamp
        counted.append(stamp + ahead)
    return counted


def _count_seconds(match: re.Match[bytes]) -> float:
    """Return a stamp in seconds since a fixed moment, NaN for digits that are no date
    or time."""
    groups = match.groupdict()
    days = _count_days(
        groups.get("year"), groups.get("month") or groups.get("name"), groups.get("day")
    )
    seconds = (
        int(groups["hour"]) * 3600 + int(groups["minute"]) * 60 + int(groups["second"])
    )
    part = groups["part"]
    zone = groups.get("zone")
    ahead = (
        (int(zone) * 3600 + int(zone[:1] + (groups["zone_minute"] or b"0")) * 60)
        if zone
        else 0
    )
    return days * _DAY + seconds - ahead + (float(b"." + part) if part else 0.0)


@lru_cache(maxsize=64)
def _count_days(year: bytes | None, month: bytes | None, day: bytes | None) -> float:
    if month is None or day is None:
        return 0.0
    number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
    try:
        return float(
            date(int(year) if year else _LEAP_YEAR, number, int(day)).toordinal()
        )
    except ValueError:
        return NAN


def find_pauses(text: bytes, begin: int, end: int) -> int:
    """Return the kinds of pauses (`PauseKind`) that a part of a text announces, 0 for
    none."""
    return sum(
        kind
        for kind, words in PAUSES.items()
        if any(text.find(word, begin, end) >= 0 for word in words)
    )


def is_long(passed: Floats, seconds: Floats) -> Flags:
    """Return a mask of shape (n,): where more time passed between two lines than the
    steps between them took."""
    long: Flags = passed > LONG * seconds + LONG_SECONDS
    return long


def collect_column(
    records: Sequence[StepRecord], field: str, kind: Any = np.float64
) -> NDArray[Any]:
    """Return a field of records as a column."""
    return np.fromiter(map(GET_FIELD[field], records), kind, len(records))


class LineClocks:
    """Takes the records of one dialect, chunk after chunk; keeps what their lines show
    besides them."""

    def __init__(self) -> None:
        """Begin before the first chunk."""
        self.stamps: dict[int, float] = {}
        """The stamps of records that have none of their own, by the place of the record
        in the log."""
        self.paused: dict[int, int] = {}
        """The kinds of the pauses that are announced before records and took their
        time, by the place of the record."""
        self._last: dict[str, _Clocked] = {}  # of each rank
        self._kind: int | None = None
        self._counted = NAN
        self._pause_ahead: dict[
            str, int
        ] = {}  # of each rank the kinds that are announced after its last step

    def add(self, chunk: ByteChunk, records: Sequence[StepRecord]) -> None:
        """Take the records that a chunk holds."""
        seconds = collect_column(records, "seconds")
        possible = (seconds > 0) & (seconds < np.inf)
        if possible.any():
            stamps = collect_column(records, "stamp")
            bare = np.flatnonzero(np.isnan(stamps) & possible)
            if len(bare):
                stamps[bare] = self._read_stamps(
                    chunk, [records[place].origin.offset for place in bare.tolist()]
                )
            timed = np.flatnonzero(possible & ~np.isnan(stamps)).tolist()
            ranks = list(map(GET_RANK, map(GET_FIELD["origin"], records)))
            by_rank = (
                {ranks[0]: timed}
                if ranks.count(ranks[0]) == len(ranks)
                else _group_rows(timed, ranks)
            )
            for rank, rows in by_rank.items():
                of_rank = (
                    records
                    if len(rows) == len(records)
                    else [records[row] for row in rows]
                )
                if of_rank:
                    self._find_pauses(rank, chunk, of_rank, seconds[rows], stamps[rows])
        self._look_behind(chunk)

    def _read_stamps(self, chunk: ByteChunk, offsets: Sequence[int]) -> Sequence[float]:
        """Return the stamps before records, NaN without one."""
        prefixes = [_cut_prefix(chunk, offset) for offset in offsets]
        if not any(prefixes):
            return [NAN] * len(offsets)
        stamps, self._kind = read_stamps(prefixes, self._kind)
        if (
            self._kind is not None and _PERIODS[self._kind]
        ):  # it goes on from the chunk before
            stamps = _count_on([self._counted, *stamps], _PERIODS[self._kind])[1:]
            self._counted = next(
                (stamp for stamp in reversed(stamps) if not math.isnan(stamp)),
                self._counted,
            )
        self.stamps.update(
            pair
            for pair in zip(offsets, stamps, strict=True)
            if not math.isnan(pair[1])
        )
        return stamps

    def _find_pauses(
        self,
        rank: str,
        chunk: ByteChunk,
        records: Sequence[StepRecord],
        seconds: Floats,
        stamps: Floats,
    ) -> None:
        """Find the pauses before records of one rank, which have a time and a stamp."""
        before = self._last.get(rank)
        steps = collect_column(records, "step", np.int64)
        if before:
            steps, stamps = (
                np.append(before.step, steps),
                np.append(before.stamp, stamps),
            )
        late = 0 if before else 1  # the record behind the first gap
        took = np.maximum(1, np.diff(steps)) * seconds[late:]
        for gap in np.flatnonzero(is_long(np.diff(stamps), took)).tolist():
            record = records[gap + late]
            place = record.origin.offset - chunk.offset
            if gap == 0 and before:
                begin = max(0, before.stop - chunk.offset)
                announced = (
                    self._pause_ahead.get(rank, 0)
                    if before.stop < chunk.offset + chunk.start
                    else 0
                )
            else:
                begin = _find_stop(chunk, records[gap + late - 1])
                announced = 0
            kinds = announced | find_pauses(
                chunk.text, begin, find_line_begin(chunk.text, begin, place)
            )
            if kinds:
                self.paused[record.origin.offset] = kinds
        self._last[rank] = _Clocked(
            int(steps[-1]),
            float(stamps[-1]),
            chunk.offset + _find_stop(chunk, records[-1]),
        )

    def _look_behind(self, chunk: ByteChunk) -> None:
        """Note which pauses are announced behind the last step of each rank, for the
        first one of the next chunk."""
        if chunk.whole or not self._last:
            return
        begin = max(chunk.stop - TAIL, chunk.start)
        announced = {
            kind: max(chunk.text.rfind(word, begin, chunk.stop) for word in words)
            for kind, words in PAUSES.items()
        }
        for rank, clocked in self._last.items():
            stop = clocked.stop - chunk.offset
            goes_on = (
                self._pause_ahead.get(rank, 0) if stop < chunk.start else 0
            )  # the chunk has no step of the rank
            behind = sum(
                kind for kind, place in announced.items() if place >= max(stop, begin)
            )
            self._pause_ahead[rank] = goes_on | behind


def _group_rows(rows: Sequence[int], ranks: Sequence[str]) -> dict[str, list[int]]:
    """Return rows by their ranks."""
    by_rank: dict[str, list[int]] = {}
    for row in rows:
        by_rank.setdefault(ranks[row], []).append(row)
    return by_rank


class _Clocked(NamedTuple):
    """The last record of a rank: its step, its stamp, and where its line ends in the
    log."""

    step: int
    stamp: float
    stop: int


def _find_stop(chunk: ByteChunk, record: StepRecord) -> int:
    """Return where the line of a record ends in the text of a chunk."""
    return find_line_stop(
        chunk.text, record.origin.offset - chunk.offset, len(chunk.text)
    )


def _cut_prefix(chunk: ByteChunk, offset: int) -> bytes:
    """Return what stands before a record in its line."""
    place = offset - chunk.offset
    if place and chunk.text[place - 1] in b"\n\r":  # most records begin their line
        return b""
    return chunk.text[
        find_line_begin(chunk.text, max(0, place - REACH_BACK), place) : place
    ]


# --- times of steps that print a stamp, or the time since the start -------------------

# How much faster than others the steps behind a restart of the clock may be.
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
            yield record._replace(since=since)
            since = None


def mark_restarts(records: Sequence[StepRecord], tally: Tally) -> list[StepRecord]:
    """Mark the steps of one rank before which the clock restarted.

    A resumed run keeps its step numbers, but its clock starts again at zero. Its first
    time counts from the step before, unless that makes its steps faster than others:
    the clock then restarted after that step, and the time is unknown.
    """
    falls = [
        place
        for place, (before, record) in enumerate(pairwise(records), 1)
        if _falls(before, record)
    ]
    if not falls:
        return list(records)
    usual = _compute_usual(records)
    marked = list(records)
    for place in falls:
        before, record = records[place - 1], records[place]
        steps = record.step - before.step
        if record.stamp >= before.stamp / 2 + usual * steps:
            continue  # the clock of the machine was set
        text = f"step {record.step} at {record.stamp:g} s, step {before.step} at {before.stamp:g} s"
        tally.add(DropReason.CLOCK_RESTARTED, record.origin.line, text)
        if record.stamp + record.resolution >= FASTER * usual * steps:
            marked[place] = record._replace(since=(before.step, 0.0))
    return marked


def _falls(before: StepRecord, record: StepRecord) -> bool:
    return record.step > before.step and record.stamp < before.stamp


def _compute_usual(records: Sequence[StepRecord]) -> float:
    """Return the median time of a step by the clock, 0 without any two lines that show
    it."""
    seconds = (
        (record.stamp - before.stamp) / (record.step - before.step)
        for before, record in pairwise(records)
        if record.step > before.step and record.stamp > before.stamp
    )
    return find_median(seconds, 0.0)


def time_steps(
    records: Sequence[StepRecord], *, first_step: int | None = None
) -> list[StepRecord]:
    """Compute the times of the steps of one attempt: the time since the line before,
    shared by the steps between.

    `stamp` is the clock of a line, `resolution` one unit in its last digit. The line
    before is a step, or an evaluation after it. The time is NaN for the first step, and
    if a line has no stamp or an earlier stamp than the line before. With `first_step`,
    the number of the first step of a run, the clock began with the training: the first
    line has a time, too, unless it covers more steps than other lines (a resumed run).
    """
    gaps = sorted(record.step - before.step for before, record in pairwise(records))
    if not gaps:
        return [record._replace(resolution=0.0) for record in records]
    place, jump = find_set_clock(records) if first_step is None else (0, 0.0)
    usual = gaps[len(gaps) // 2]
    first = records[0]._replace(mean_of=min(records[0].step, usual) or 1)
    if (
        first_step is not None and first.since is not None and first.since[1] == 0
    ):  # its clock began anew there
        first = _time_step(first, *first.since, 0.0)
    elif first_step is not None and 0 < first.step - first_step + 1 <= usual:
        first = _time_step(first, first_step - 1, 0.0, 0.0)
    else:
        first = first._replace(resolution=0.0)
    timed = [
        first,
        *(_time_after(record, before) for before, record in pairwise(records)),
    ]
    if jump:
        before, after = records[place - 1], records[place]
        timed[place] = _time_after(
            after._replace(stamp=after.stamp - jump), before
        )._replace(stamp=after.stamp)
    return timed


def find_set_clock(records: Sequence[StepRecord]) -> tuple[int, float]:
    """Find the record before which the clock was set by an hour: its index and the
    seconds of the jump, or 0 and 0.

    A single jump of an hour (plus the time of its steps) is a clock that was set if no
    time can have passed: the clock went back, or the printed rate did not change. Any
    other jump, and a second jump, is not.
    """
    stamps = [record.stamp for record in records]
    if all(0 <= after - before < HOUR - SLACK for before, after in pairwise(stamps)):
        return 0, 0.0
    passed = [
        record.stamp - _get_begin(record, before)[1]
        for before, record in pairwise(records)
    ]
    jumps = [
        number
        for number, seconds in enumerate(passed, 1)
        if not 0 <= seconds < HOUR - SLACK
    ]
    jumps = [number for number in jumps if not math.isnan(passed[number - 1])]
    if len(jumps) != 1:
        return 0, 0.0
    place = jumps[0]
    jump = math.copysign(HOUR, passed[place - 1])
    usual = _estimate_gap(
        [seconds for number, seconds in enumerate(passed, 1) if number != place],
        records,
        place,
    )
    likely = abs(passed[place - 1] - jump - usual) <= SLACK + usual < HOUR / 3
    if not likely or (jump > 0 and not _is_as_fast(records, place)):
        return 0, 0.0
    return place, jump


def _estimate_gap(
    passed: Sequence[float], records: Sequence[StepRecord], place: int
) -> float:
    """Return how long the steps before a record take by the other gaps, infinite
    without any."""
    steps = [record.step - before.step for before, record in pairwise(records)]
    usual = find_median(filter(math.isfinite, passed), math.inf)
    return usual * steps[place - 1] / find_median(steps)


def _is_as_fast(records: Sequence[StepRecord], place: int) -> bool:
    """Tell whether the rate that a record prints is at least half of what the others
    print."""
    rates = [
        record.throughput if math.isnan(record.tokens) else record.tokens
        for record in records
    ]
    return rates[place] >= 0.5 * find_median(filter(math.isfinite, rates))


def count_usual_gap(records: Sequence[StepRecord]) -> int:
    """Return how many steps most lines stand for: those since the line before."""
    counts = Counter(after.step - before.step for before, after in pairwise(records))
    return min(counts, key=lambda gap: (-counts[gap], gap), default=1)


def _time_after(record: StepRecord, before: StepRecord) -> StepRecord:
    if record.since is None:
        return _time_step(record, before.step, before.stamp, before.resolution)
    return _time_step(record, *_get_begin(record, before), before.resolution)


def _get_begin(record: StepRecord, before: StepRecord) -> tuple[int, float]:
    """Return the step and the clock from which on the time of a record counts."""
    if record.since and before.step <= record.since[0] < record.step:
        return record.since
    return before.step, before.stamp


def _time_step(
    record: StepRecord, step: int, stamp: float, other_unit: float
) -> StepRecord:
    steps = record.step - step
    unit = max(record.resolution, other_unit)
    seconds = _round(record.stamp - stamp, unit) / steps
    if not 0 < seconds < math.inf:
        return record._replace(mean_of=steps, seconds=NAN, resolution=0.0)
    return record._replace(seconds=seconds, resolution=unit / steps, mean_of=steps)


def _round(difference: float, unit: float) -> float:
    """Return a difference of two clocks without the digits that a float makes of
    them."""
    return (
        round(difference, 1 + math.ceil(-math.log10(unit)))
        if unit > 0 and math.isfinite(difference)
        else difference
    )
