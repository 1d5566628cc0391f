"""Attempts in a log: where one ends and the next begins, which rank speaks for it,
which print of a step counts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import DropReason, Quote, Segment, Steps
from pytest_llmbench.logs.clock import LineClocks, collect_column
from pytest_llmbench.logs.dialect_reader import DialectReader, UniformSegments
from pytest_llmbench.logs.step_records import (
    COLUMNS,
    FEWEST_REPEATS,
    GET_FIELD,
    NAN,
    RecordOrigin,
    StepRecord,
    Tally,
    add_divergence,
    choose_print,
    get_rank_order,
    has_diverged,
    have_same_time,
    make_printable,
    tally_repeats,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers

# An attempt takes 6 kB of memory. A job that restarts twice a minute makes 20,000 in a
# week.
MOST_ATTEMPTS = 50_000

# How far back a step may lie without being a restart: repeated by another process
# without a prefix, or printed late, where two lines were exchanged.
LATE_STEPS = 2

GET_LINE = itemgetter(RecordOrigin._fields.index("line"))

# Seconds: a larger number is a time of day, since 1970 or so, and not the time since a
# run began.
LONGEST_RUN = 1e8

# The columns whose value a record may lack; the others are NaN then.
MAY_LACK = ("loss", "grad_norm")


class BoundaryOffsets(NamedTuple):
    """Places in a log (bytes, ascending) where a process starts or training ends."""

    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    totals: Sequence[tuple[int, int]] = ()  # place and number of steps
    ends_divide: bool = True  # whether a new step after an end is of another attempt


@dataclass(slots=True)
class SegmentDraft:
    """One rank's part of one attempt, while it is read."""

    rank: str
    first: StepRecord
    last: StepRecord
    top: int
    total: int | None = None
    kept: dict[int, StepRecord] = field(default_factory=dict)
    loss_digits: int = 0
    layout: tuple[bytes, ...] = ()  # of the last record that was whole

    @property
    def begin(self) -> int:
        """Where its first record stands."""
        return self.first.origin.offset

    @property
    def end(self) -> int:
        """Where its last record stands."""
        return self.last.origin.offset

    @property
    def possible_steps(self) -> int:
        """How many of its steps have a time that a step can take."""
        return sum(record.possible for record in self.kept.values())


def divide_segments(
    records: Sequence[StepRecord],
    marks: BoundaryOffsets,
    reader: DialectReader,
    tally: Tally,
    clocks: LineClocks | None = None,
) -> tuple[Segment, ...]:
    """Divide the records of a log, in its order, into attempts; `tally` counts the
    others.

    Ranks are separated first, so that their interleaved lines are no restarts. If
    several ranks printed an attempt, the rank with most possible steps is kept, then
    the lowest. LogError for more than MOST_ATTEMPTS attempts.
    """
    ranks = [
        reader.resolve_steps(rank, tally)
        for rank in group_by_rank(reader.merge_records(records, tally))
    ]
    parts = (
        attempt for rank in ranks for attempt in split_attempts(rank, marks, tally)
    )
    attempts = select_rank((_add_times(attempt, reader) for attempt in parts), tally)
    clocks = clocks or LineClocks()
    steps = (build_steps(attempt.kept.values(), clocks) for attempt in attempts)
    return _build_segments(attempts, steps, marks, reader.dialect.first_step)


def divide_uniform(
    parts: UniformSegments, marks: BoundaryOffsets, first_step: int
) -> tuple[Segment, ...]:
    """Return the attempts in a log of one rank, which were read by columns; LogError
    for more than MOST_ATTEMPTS."""
    attempts = []
    for part in parts:
        top = int(part.steps.index[-1])
        first, last = (
            StepRecord(RecordOrigin(*place, part.rank), top)
            for place in (part.begin, part.end)
        )
        attempts.append(
            SegmentDraft(
                part.rank, first, last, top, part.total, loss_digits=part.loss_digits
            )
        )
    steps = (part.steps for part in parts)
    return _build_segments(attempts, steps, marks, first_step)


def _build_segments(
    attempts: Sequence[SegmentDraft],
    steps: Iterable[Steps],
    marks: BoundaryOffsets,
    first_step: int,
) -> tuple[Segment, ...]:
    """Build a segment of each attempt and its steps; LogError for too many."""
    if len(attempts) > MOST_ATTEMPTS:
        raise LogError(
            f"found {len(attempts):,} attempts, expected at most {MOST_ATTEMPTS:,}: the"
            " log restarts all the time or is no log; remove it, or keep the part with"
            " the run"
        )
    limits = [*(attempt.begin for attempt in attempts[1:]), None]
    return tuple(
        _build_segment(attempt, columns, marks, limit, first_step)
        for attempt, columns, limit in zip(attempts, steps, limits, strict=False)
    )


def group_by_rank(records: Iterable[StepRecord]) -> list[list[StepRecord]]:
    """Return the records of each rank. Lines without a prefix go to the one rank that
    has one, if one has."""
    ranks: dict[str, list[StepRecord]] = {}
    every = list(records)
    for record in every:
        ranks.setdefault(record.origin.rank, []).append(record)
    return [every] if len(ranks.keys() - {""}) <= 1 else list(ranks.values())


def split_attempts(
    records: Sequence[StepRecord], marks: BoundaryOffsets, tally: Tally
) -> list[SegmentDraft]:
    """Return the attempts of one rank."""
    rank = max((record.origin.rank for record in records), key=len, default="")
    attempts: list[SegmentDraft] = []
    repeats = Tally()
    for place, record in enumerate(records):
        following = records[place + 1 : place + 2 + LATE_STEPS]
        if not attempts or _is_of_another(attempts[-1], record, following, marks):
            attempts.append(SegmentDraft(rank, record, record, record.step))
        _admit(attempts[-1], record, repeats)
    tally_repeats(records, repeats, tally)
    return attempts


def select_rank(attempts: Iterable[SegmentDraft], tally: Tally) -> list[SegmentDraft]:
    """Keep one rank of the attempts that overlap in the log, in its order.

    A divergence of another rank is added to the rank that is kept.
    """
    kept: list[SegmentDraft] = []
    others: list[SegmentDraft] = []
    # Which rank logs differs: that of Megatron's `iteration` lines is the last one.
    for attempt in sorted(
        attempts,
        key=lambda each: (-each.possible_steps, get_rank_order(each.rank), each.begin),
    ):
        if _find_overlapping(attempt, kept):
            others.append(attempt)
        else:
            kept.insert(
                bisect_left(kept, attempt.begin, key=lambda each: each.begin), attempt
            )
    others = [_exchange_faster(other, kept) for other in others]
    diverged: list[tuple[StepRecord, range]] = []
    for other in others:
        text = (
            f"rank {other.rank or 'unknown'}: steps {other.first.step} to {other.top}"
        )
        tally.add(DropReason.OTHER_RANK, other.first.origin.line, text, len(other.kept))
        overlapping = _find_overlapping(other, kept)
        diverged += (
            (record, overlapping)
            for record in other.kept.values()
            if has_diverged(record)
        )
    if diverged:
        _hand_over_divergence(diverged, kept)
    return kept


def _exchange_faster(other: SegmentDraft, kept: list[SegmentDraft]) -> SegmentDraft:
    """Return the attempt that is not kept: `other`, or the one in `kept` whose place it
    takes, being slower."""
    near = _find_overlapping(other, kept)
    if len(near) != 1 or not _is_slower(other, kept[near[0]]):
        return other
    # Ranks of one run wait for each other: where they contradict each other a gate must
    # not pass on the faster.
    faster, kept[near[0]] = kept[near[0]], other
    return faster


def _is_slower(other: SegmentDraft, attempt: SegmentDraft) -> bool:
    """Tell whether a rank prints as many steps, and half of them or more with a longer
    time."""
    pairs = [
        (record, attempt.kept[step])
        for step, record in other.kept.items()
        if step in attempt.kept
    ]
    slower = sum(
        new.seconds > old.seconds and not have_same_time(old, new) for new, old in pairs
    )
    as_many = other.possible_steps >= attempt.possible_steps
    return as_many and slower >= max(FEWEST_REPEATS, len(attempt.kept) / 2)


def _find_overlapping(attempt: SegmentDraft, others: Sequence[SegmentDraft]) -> range:
    """Return the places of those that an attempt overlaps among others, which do not
    overlap each other and are in the order of the log."""
    first = bisect_left(others, attempt.begin, key=lambda each: each.end)
    return range(first, bisect_right(others, attempt.end, key=lambda each: each.begin))


def _hand_over_divergence(
    diverged: Iterable[tuple[StepRecord, range]], kept: Sequence[SegmentDraft]
) -> None:
    """Give each loss or gradient norm that is no number to the print of its step that
    is nearest.

    `diverged` are records with the places of the kept attempts that may have such a
    print.
    """
    prints: dict[
        int, list[int]
    ] = {}  # by step the places of the attempts that printed it, ascending
    for place, attempt in enumerate(kept):
        for step in attempt.kept:
            prints.setdefault(step, []).append(place)
    for record, overlapping in diverged:
        step, offset = record.step, record.origin.offset
        places = prints.get(step, [])
        after = bisect_left(
            places, offset, key=lambda place: kept[place].kept[step].origin.offset
        )
        near = [
            kept[place].kept
            for place in places[max(0, after - 1) : after + 1]
            if place in overlapping
        ]
        if near:
            steps = min(near, key=lambda each: abs(each[step].origin.offset - offset))
            steps[step] = add_divergence(steps[step], record)


def _is_of_another(
    attempt: SegmentDraft,
    record: StepRecord,
    following: Sequence[StepRecord],
    marks: BoundaryOffsets,
) -> bool:
    """True if a record belongs to another attempt than the record before it.

    So it is after a start mark, with another total, for a new step after an end mark,
    and for a falling step. Not so for a late step: at most LATE_STEPS back, and either
    printed before and not the first step, or new and followed by later steps (two lines
    were exchanged).
    """
    if _has_between(marks.starts, attempt.end, record.origin.offset):
        return True
    if attempt.total and record.total and attempt.total != record.total:
        return True
    if record.step > attempt.top:
        return marks.ends_divide and _has_between(
            marks.ends, attempt.end, record.origin.offset
        )
    if record.step == attempt.top:
        return False
    # a gap says nothing, for lines get lost; a step that falls by more than late prints
    # do is a restart
    if attempt.top - record.step > LATE_STEPS or record.step == attempt.first.step:
        return True
    return record.step not in attempt.kept and _goes_back(attempt, following)


def _goes_back(attempt: SegmentDraft, following: Sequence[StepRecord]) -> bool:
    """Tell whether the next records repeat steps of an attempt before one goes on
    behind its last: a restart does."""
    for record in following:
        if record.step > attempt.top:
            return False
        if record.step in attempt.kept:
            return True
    return False


def _add_times(attempt: SegmentDraft, reader: DialectReader) -> SegmentDraft:
    """Return an attempt with what its dialect can say of a step's time only now that
    all its steps are known."""
    records = reader.time_steps(
        sorted(attempt.kept.values(), key=lambda record: record.step)
    )
    return replace(attempt, kept={record.step: record for record in records})


def _has_between(places: Sequence[int], begin: int, end: int) -> bool:
    return bisect_left(places, begin) < bisect_left(places, end)


def _admit(attempt: SegmentDraft, record: StepRecord, tally: Tally) -> None:
    """Add a record to an attempt; of two prints of a step one counts, the other is
    tallied.

    A record that ends before the fields of the record before it is truncated, and its
    last number may be, too.
    """
    attempt.last = record
    attempt.total = attempt.total or record.total
    attempt.top = max(attempt.top, record.step)
    if (
        0 < len(record.layout) < len(attempt.layout)
        and attempt.layout[: len(record.layout)] == record.layout
    ):
        rest = make_printable(attempt.layout[len(record.layout)])
        tally.add(
            DropReason.TORN,
            record.origin.line,
            quote=Quote(f"step {record.step} ends where others go on with {rest}"),
        )
        return
    attempt.layout = (
        record.layout or attempt.layout
    )  # bars between DLLogger records have none
    old = attempt.kept.get(record.step)
    if old is None:
        attempt.kept[record.step] = record
        return
    same = have_same_time(old, record)
    other = "" if same else f", but {old.seconds:g} s in line {old.origin.line}"
    text = f"step {record.step} again: {record.seconds:g} s{other}"
    tally.add(
        DropReason.REPEATED if same else DropReason.REPEAT_DISAGREES,
        record.origin.line,
        text,
    )
    attempt.kept[record.step] = choose_print(old, record)


def _build_segment(
    attempt: SegmentDraft,
    steps: Steps,
    marks: BoundaryOffsets,
    limit: int | None,
    first_step: int,
) -> Segment:
    """Return an attempt as a segment; `limit` is where the next one begins."""
    before = bisect_left(marks.totals, attempt.begin, key=itemgetter(0))
    total = attempt.total or (marks.totals[before - 1][1] if before else None)
    return Segment(
        steps,
        attempt.first.origin.line,
        attempt.last.origin.line,
        attempt.rank,
        total,
        finished=_has_end(attempt, marks, limit)
        or (total is not None and attempt.top + 1 - first_step >= total),
        first_step=first_step,
        loss_digits=max(
            (record.loss_digits for record in attempt.kept.values()),
            default=attempt.loss_digits,
        ),
        rewards=any(record.rewards for record in attempt.kept.values()),
        doubt=next(
            (record.doubt for record in attempt.kept.values() if record.doubt), ""
        ),
        progress=attempt.last.progress,
    )


def _has_end(attempt: SegmentDraft, marks: BoundaryOffsets, limit: int | None) -> bool:
    """Tell whether an end mark is this attempt's: before the next one, and before
    another process starts."""
    first = bisect_right(marks.ends, attempt.begin)
    if first == len(marks.ends):
        return False
    end = marks.ends[first]
    return (limit is None or end < limit) and not _has_between(
        marks.starts, attempt.end, end
    )


def build_steps(records: Iterable[StepRecord], clocks: LineClocks) -> Steps:
    """Return the columns of a segment, ordered by step; every step may stand in
    `records` once."""
    rows = sorted(records, key=GET_FIELD["step"])
    (loss, has_loss), (grad_norm, has_grad_norm) = (
        _collect_printed(rows, field) for field in MAY_LACK
    )
    return Steps(
        index=collect_column(rows, "step", np.int64),
        line=np.fromiter(
            map(GET_LINE, map(GET_FIELD["origin"], rows)), np.int64, len(rows)
        ),
        mean_of=collect_column(rows, "mean_of", np.int64),
        asynchronous=collect_column(rows, "asynchronous", np.bool_),
        has_loss=has_loss,
        has_grad_norm=has_grad_norm,
        stamp=_keep_one_clock(_read_stamps(rows, clocks)),
        since=_collect_since(rows),
        paused=_mark_pauses(rows, clocks),
        loss=loss,
        grad_norm=grad_norm,
        **{
            name: collect_column(rows, field)
            for name, field in COLUMNS.items()
            if name not in MAY_LACK
        },
    )


def _collect_printed(rows: Sequence[StepRecord], field: str) -> tuple[Floats, Flags]:
    """Return a field that records may lack as a column, NaN for those, and a mask of
    the others."""
    values = list(map(GET_FIELD[field], rows))
    if None not in values:
        return np.array(values), np.ones(len(rows), dtype=np.bool_)
    if values.count(None) == len(rows):
        return np.full(len(rows), NAN), np.zeros(len(rows), dtype=np.bool_)
    printed = [value is not None for value in values]
    return np.array([NAN if value is None else value for value in values]), np.array(
        printed, dtype=np.bool_
    )


def _collect_since(rows: Sequence[StepRecord]) -> Floats:
    since = list(map(GET_FIELD["since"], rows))
    if not any(since):
        return np.full(len(rows), NAN)
    return np.array([NAN if each is None else each[1] for each in since])


def _read_stamps(rows: Sequence[StepRecord], clocks: LineClocks) -> Floats:
    stamps = collect_column(rows, "stamp")
    if clocks.stamps:
        others = np.array([clocks.stamps.get(row.origin.offset, NAN) for row in rows])
        stamps = np.where(np.isnan(stamps), others, stamps)
    return stamps


def _mark_pauses(rows: Sequence[StepRecord], clocks: LineClocks) -> Integers:
    paused = collect_column(rows, "paused", np.int64)
    if clocks.paused:
        paused |= np.array(
            [clocks.paused.get(row.origin.offset, 0) for row in rows], dtype=np.int64
        )
    return paused


def _keep_one_clock(stamps: Floats) -> Floats:
    """Return stamps without those of the rarer clock: a bar has the time so far, a
    record beside it the time of day."""
    of_day = stamps > LONGEST_RUN
    if not of_day.any() or np.count_nonzero(of_day) == np.count_nonzero(
        np.isfinite(stamps)
    ):
        return stamps
    rarer = (
        of_day
        if 2 * np.count_nonzero(of_day) < np.count_nonzero(np.isfinite(stamps))
        else ~of_day
    )
    return np.where(rarer, NAN, stamps)
