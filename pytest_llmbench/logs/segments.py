"""Divide the records of a log into attempts.

Each attempt has the records of one rank, and one record per step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import (
    ArraySteps,
    DropReason,
    Quote,
    Segment,
    Steps,
)
from pytest_llmbench.logs.clock import LineClocks, collect_column, keep_one_clock
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

# An attempt takes 6 kB of memory. A job that restarts twice a minute makes 20,000
# attempts in a week.
MOST_ATTEMPTS = 50_000

# How far a step number may fall without being a restart: another process without a
# prefix may repeat a step, or two lines may be exchanged.
LATE_STEPS = 2

GET_LINE = itemgetter(RecordOrigin._fields.index("line"))

# Columns of optional values, NaN if missing.
MAY_LACK = ("loss", "grad_norm")


class BoundaryOffsets(NamedTuple):
    """Offsets in a log (bytes, ascending) where a process starts or training ends."""

    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    totals: Sequence[tuple[int, int]] = ()  # offset and number of steps
    ends_divide: bool = True  # True if a new step after an end starts another attempt


class SegmentDraft(Struct):
    """One rank's records of one attempt, while the log is divided."""

    rank: str
    first: StepRecord  # in log order
    last: StepRecord
    top: int  # the highest step number
    total: int | None = None
    kept: dict[int, StepRecord] = field(default_factory=dict)  # by step number
    loss_digits: int = 0
    layout: tuple[bytes, ...] = ()  # of the last complete record

    @property
    def begin(self) -> int:
        """Offset of the first record."""
        return self.first.origin.offset

    @property
    def end(self) -> int:
        """Offset of the last record."""
        return self.last.origin.offset

    @property
    def possible_steps(self) -> int:
        """Number of steps with a possible step time."""
        return sum(record.possible for record in self.kept.values())


def divide_segments(
    records: Sequence[StepRecord],
    boundaries: BoundaryOffsets,
    reader: DialectReader,
    tally: Tally,
    clocks: LineClocks | None = None,
) -> tuple[Segment, ...]:
    """Divide the records of a log into attempts. `tally` counts dropped records.

    Ranks are separated first, so that their interleaved lines are not restarts. If
    several ranks printed an attempt, one rank is kept: the one with the most possible
    steps, then the lowest. A rank with as many possible steps and slower times replaces
    it. Raises LogError for more than MOST_ATTEMPTS attempts.
    """
    records_of_ranks = [
        reader.resolve_steps(rank_records, tally)
        for rank_records in group_by_rank(reader.merge_records(records, tally))
    ]
    attempts_of_ranks = (
        _add_times(attempt, reader)
        for rank_records in records_of_ranks
        for attempt in split_attempts(rank_records, boundaries, tally)
    )
    attempts = select_rank(attempts_of_ranks, tally)
    clocks = clocks or LineClocks()
    steps = (build_steps(attempt.kept.values(), clocks) for attempt in attempts)
    return _build_segments(attempts, steps, boundaries, reader.dialect.first_step)


def divide_uniform(
    parts: UniformSegments, boundaries: BoundaryOffsets, first_step: int
) -> tuple[Segment, ...]:
    """Build the attempts of a log that was read by columns.

    Raises LogError for more than MOST_ATTEMPTS attempts.
    """
    attempts = []
    for part in parts:
        top = int(part.steps.index[-1])
        first, last = (
            StepRecord(RecordOrigin(*origin, part.rank), top)
            for origin in (part.begin, part.end)
        )
        attempts.append(
            SegmentDraft(
                part.rank, first, last, top, part.total, loss_digits=part.loss_digits
            )
        )
    steps = (part.steps for part in parts)
    return _build_segments(attempts, steps, boundaries, first_step)


def _build_segments(
    attempts: Sequence[SegmentDraft],
    steps: Iterable[Steps],
    boundaries: BoundaryOffsets,
    first_step: int,
) -> tuple[Segment, ...]:
    """Build a segment from each attempt and its steps.

    Raises LogError for more than MOST_ATTEMPTS attempts.
    """
    if len(attempts) > MOST_ATTEMPTS:
        raise LogError(
            f"found {len(attempts):,} attempts, expected at most {MOST_ATTEMPTS:,}: the"
            " log restarts constantly or is not a log; remove it, or keep the lines of"
            " the run"
        )
    limits = [*(attempt.begin for attempt in attempts[1:]), None]
    return tuple(
        _build_segment(attempt, columns, boundaries, limit, first_step)
        for attempt, columns, limit in zip(attempts, steps, limits, strict=False)
    )


def group_by_rank(records: Iterable[StepRecord]) -> list[list[StepRecord]]:
    """Group records by rank.

    If only one rank has a prefix, lines without a prefix belong to it.
    """
    by_rank: dict[str, list[StepRecord]] = {}
    all_records = list(records)
    for record in all_records:
        by_rank.setdefault(record.origin.rank, []).append(record)
    labels = by_rank.keys() - {""}
    return [all_records] if len(labels) <= 1 else list(by_rank.values())


def split_attempts(
    records: Sequence[StepRecord], boundaries: BoundaryOffsets, tally: Tally
) -> list[SegmentDraft]:
    """Split the records of one rank into attempts.

    Counts repeated steps in the tally.
    """
    # Lines without a prefix may belong to this rank: the longest label is the rank.
    rank = max((record.origin.rank for record in records), key=len, default="")
    attempts: list[SegmentDraft] = []
    repeats = Tally()
    for index, record in enumerate(records):
        # a late record is followed by the later steps within these
        following = records[index + 1 : index + 2 + LATE_STEPS]
        if not attempts or _starts_attempt(attempts[-1], record, following, boundaries):
            attempts.append(SegmentDraft(rank, record, record, record.step))
        _add_record(attempts[-1], record, repeats)
    tally_repeats(records, repeats, tally)
    return attempts


def select_rank(attempts: Iterable[SegmentDraft], tally: Tally) -> list[SegmentDraft]:
    """Keep one rank of overlapping attempts, in log order.

    This is the rank with the most possible steps, or a rank with as many and slower
    times. A divergence of a dropped rank is copied to the kept rank.
    """

    def get_preference(draft: SegmentDraft) -> tuple[int, tuple[int, ...], int]:
        """Sort the preferred rank first: the most possible steps, the lowest rank."""
        return -draft.possible_steps, get_rank_order(draft.rank), draft.begin

    kept: list[SegmentDraft] = []
    rejected: list[SegmentDraft] = []
    # Frameworks log on different ranks: Megatron prints `iteration` lines on the last
    # one.
    for attempt in sorted(attempts, key=get_preference):
        if _find_overlapping(attempt, kept):
            rejected.append(attempt)
        else:
            index = bisect_left(kept, attempt.begin, key=lambda draft: draft.begin)
            kept.insert(index, attempt)
    # A rejected attempt may still replace a faster one, which is dropped instead.
    dropped = [_keep_slower(attempt, kept) for attempt in rejected]
    diverged: list[tuple[StepRecord, range]] = []
    for attempt in dropped:
        tally.add(
            DropReason.OTHER_RANK,
            attempt.first.origin.line,
            f"rank {attempt.rank or 'unknown'}: steps {attempt.first.step} to"
            f" {attempt.top}",
            len(attempt.kept),
        )
        overlapping = _find_overlapping(attempt, kept)
        diverged += (
            (record, overlapping)
            for record in attempt.kept.values()
            if has_diverged(record)
        )
    if diverged:
        _copy_divergence(diverged, kept)
    return kept


def _keep_slower(other: SegmentDraft, kept: list[SegmentDraft]) -> SegmentDraft:
    """Replace an overlapping attempt in `kept` by `other` if `other` is slower.

    Returns the dropped attempt: `other`, or the replaced attempt.
    """
    overlapping_indices = _find_overlapping(other, kept)
    if len(overlapping_indices) != 1:
        return other
    (index,) = overlapping_indices
    overlapping = kept[index]
    if not _is_slower(other, overlapping):
        return other
    # The ranks of a run wait for each other. If they print different times, the slower
    # ones count: a gate must not pass on the faster.
    kept[index] = other
    return overlapping


def _is_slower(other: SegmentDraft, attempt: SegmentDraft) -> bool:
    """True if `other` has as many steps as `attempt` and takes longer.

    At least half of the steps of `attempt`, and FEWEST_REPEATS, must be longer in
    `other`.
    """
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
    """Return the range of indices in `others` that overlap an attempt.

    The attempts in `others` do not overlap each other and are in log order.
    """
    first = bisect_left(others, attempt.begin, key=lambda draft: draft.end)
    return range(
        first, bisect_right(others, attempt.end, key=lambda draft: draft.begin)
    )


def _copy_divergence(
    diverged: Iterable[tuple[StepRecord, range]], kept: Sequence[SegmentDraft]
) -> None:
    """Copy non-finite losses and gradient norms of dropped ranks to `kept`.

    Each goes to the nearest record of its step. `diverged` are the records of dropped
    ranks, each with the range of overlapping attempts in `kept`.
    """
    # step to ascending indices of the attempts that printed it
    attempts_by_step: dict[int, list[int]] = {}
    for index, attempt in enumerate(kept):
        for step in attempt.kept:
            attempts_by_step.setdefault(step, []).append(index)
    for record, overlapping in diverged:
        step, offset = record.step, record.origin.offset
        indices = attempts_by_step.get(step, [])
        after = bisect_left(
            indices, offset, key=lambda index: kept[index].kept[step].origin.offset
        )
        # the last attempt that printed the step before the record, and the first after
        neighbours = indices[max(0, after - 1) : after + 1]
        candidates = [kept[index].kept for index in neighbours if index in overlapping]
        if candidates:
            nearest = min(
                candidates,
                key=lambda kept_steps: abs(kept_steps[step].origin.offset - offset),
            )
            nearest[step] = add_divergence(nearest[step], record)


def _starts_attempt(
    attempt: SegmentDraft,
    record: StepRecord,
    following: Sequence[StepRecord],
    boundaries: BoundaryOffsets,
) -> bool:
    """True if a record starts another attempt.

    Signs of another attempt are a start marker, another total, a new step after an end
    marker, and a falling step number. A late record is no such sign: its step is at
    most LATE_STEPS back and either repeats a step other than the first, or is new and
    followed by later steps (two lines were exchanged).
    """
    if _has_between(boundaries.starts, attempt.end, record.origin.offset):
        return True
    if attempt.total and record.total and attempt.total != record.total:
        return True
    if record.step > attempt.top:
        return boundaries.ends_divide and _has_between(
            boundaries.ends, attempt.end, record.origin.offset
        )
    if record.step == attempt.top:
        return False
    # A step number that falls further than that of a late record is a restart. So is
    # the first step again.
    if attempt.top - record.step > LATE_STEPS or record.step == attempt.first.step:
        return True
    return record.step not in attempt.kept and _repeats_steps(attempt, following)


def _repeats_steps(attempt: SegmentDraft, following: Sequence[StepRecord]) -> bool:
    """True if the next records repeat steps of an attempt, as after a restart.

    Only records before the first new highest step count.
    """
    for record in following:
        if record.step > attempt.top:
            return False
        if record.step in attempt.kept:
            return True
    return False


def _add_times(attempt: SegmentDraft, reader: DialectReader) -> SegmentDraft:
    """Let the dialect complete the step times of an attempt.

    Some dialects need all steps of the attempt to do so.
    """
    records = reader.time_steps(
        sorted(attempt.kept.values(), key=lambda record: record.step)
    )
    return replace(attempt, kept={record.step: record for record in records})


def _has_between(offsets: Sequence[int], begin: int, end: int) -> bool:
    """True if an ascending offset is in `begin:end`."""
    return bisect_left(offsets, begin) < bisect_left(offsets, end)


def _add_record(attempt: SegmentDraft, record: StepRecord, tally: Tally) -> None:
    """Add a record to an attempt.

    If the step was printed before, one record is kept and the other tallied. A record
    that lacks the last fields of the record before is truncated and dropped, because
    its last number may be truncated, too.
    """
    attempt.last = record
    attempt.total = attempt.total or record.total
    attempt.top = max(attempt.top, record.step)
    # the names of the record's fields are the first names of the record before
    field_count = len(record.layout)
    if (
        0 < field_count < len(attempt.layout)
        and attempt.layout[:field_count] == record.layout
    ):
        missing = make_printable(attempt.layout[field_count])
        tally.add(
            DropReason.TORN,
            record.origin.line,
            quote=Quote(f"step {record.step} lacks {missing}, unlike the step before"),
        )
        return
    # Bars between DLLogger records have no layout.
    attempt.layout = record.layout or attempt.layout
    old = attempt.kept.get(record.step)
    if old is None:
        attempt.kept[record.step] = record
        return
    reason = DropReason.REPEATED
    text = f"step {record.step} again: {record.seconds:g} s"
    if not have_same_time(old, record):
        reason = DropReason.REPEAT_DISAGREES
        text += f", but {old.seconds:g} s in line {old.origin.line}"
    tally.add(reason, record.origin.line, text)
    attempt.kept[record.step] = choose_print(old, record)


def _build_segment(
    attempt: SegmentDraft,
    steps: Steps,
    boundaries: BoundaryOffsets,
    limit: int | None,
    first_step: int,
) -> Segment:
    """Build a segment from an attempt. `limit` is the offset of the next attempt."""
    total = attempt.total or None
    totals_before = bisect_left(boundaries.totals, attempt.begin, key=itemgetter(0))
    if not total and totals_before:
        _, total = boundaries.totals[totals_before - 1]  # the last before the attempt
    printed_all_steps = total is not None and attempt.top + 1 - first_step >= total
    return Segment(
        steps,
        attempt.first.origin.line,
        attempt.last.origin.line,
        attempt.rank,
        total,
        finished=_has_end(attempt, boundaries, limit) or printed_all_steps,
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


def _has_end(
    attempt: SegmentDraft, boundaries: BoundaryOffsets, limit: int | None
) -> bool:
    """True if an end marker belongs to this attempt.

    The end marker must precede the next attempt and the next start of a process.
    """
    first = bisect_right(boundaries.ends, attempt.begin)
    if first == len(boundaries.ends):
        return False
    end = boundaries.ends[first]
    return (limit is None or end < limit) and not _has_between(
        boundaries.starts, attempt.end, end
    )


def build_steps(records: Iterable[StepRecord], clocks: LineClocks) -> Steps:
    """Build the columns of a segment, ordered by step. Each step must occur once."""
    rows = sorted(records, key=GET_FIELD["step"])
    (loss, has_loss), (grad_norm, has_grad_norm) = (
        _collect_printed(rows, field) for field in MAY_LACK
    )
    return ArraySteps(
        index=collect_column(rows, "step", np.int64),
        line=np.fromiter(
            map(GET_LINE, map(GET_FIELD["origin"], rows)), np.int64, len(rows)
        ),
        mean_of=collect_column(rows, "mean_of", np.int64),
        asynchronous=collect_column(rows, "asynchronous", np.bool_),
        has_loss=has_loss,
        has_grad_norm=has_grad_norm,
        stamp=keep_one_clock(_read_stamps(rows, clocks)),
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
    """Return the column of an optional field and the mask of its values.

    Missing values are NaN.
    """
    values = list(map(GET_FIELD[field], rows))
    if None not in values:
        return np.array(values), np.ones(len(rows), dtype=np.bool_)
    if values.count(None) == len(rows):
        return np.full(len(rows), NAN), np.zeros(len(rows), dtype=np.bool_)
    printed = [value is not None for value in values]
    column = np.array([NAN if value is None else value for value in values])
    return column, np.array(printed, dtype=np.bool_)


def _collect_since(rows: Sequence[StepRecord]) -> Floats:
    """Return when the time of each step began, as a time stamp; NaN if not set.

    A dialect sets `since` to the record from which the time of a step was measured.
    """
    since = list(map(GET_FIELD["since"], rows))  # (step, time stamp), or None
    if not any(since):
        return np.full(len(rows), NAN)
    return np.array([NAN if value is None else value[1] for value in since])


def _read_stamps(rows: Sequence[StepRecord], clocks: LineClocks) -> Floats:
    """Return the stamps of the records, NaN if missing.

    If the dialect reads no stamp, it is the time stamp before the record in its line.
    """
    stamps = collect_column(rows, "stamp")
    if clocks.stamps:
        line_stamps = np.array(
            [clocks.stamps.get(row.origin.offset, NAN) for row in rows]
        )
        stamps = np.where(np.isnan(stamps), line_stamps, stamps)
    return stamps


def _mark_pauses(rows: Sequence[StepRecord], clocks: LineClocks) -> Integers:
    """Return the kinds of the pauses before each record, 0 for none."""
    paused = collect_column(rows, "paused", np.int64)
    if clocks.paused:
        paused |= np.array(
            [clocks.paused.get(row.origin.offset, 0) for row in rows], dtype=np.int64
        )
    return paused
