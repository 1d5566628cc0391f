"""Attempts in a log: where one ends and the next begins, which rank speaks for it, which print of a step counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from pytest_llmbench.models import Segment
from pytest_llmbench.parse.columns import columns
from pytest_llmbench.parse.dropped import IMPOSSIBLE_SAMPLE, OTHER_RANK, REPEAT_DISAGREES, REPEATED, Tally
from pytest_llmbench.parse.ranks import rank_order
from pytest_llmbench.parse.records import StepRecord

LATE_STEPS = 2
"""By how much a repeated step may come late, from another process without a prefix, without being a restart."""

DISAGREEMENT = 0.01


class Marks(NamedTuple):
    """Places in a log (bytes) where a process starts, with the total that it says, and where training ends."""

    starts: tuple[tuple[int, int | None], ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(slots=True)
class Attempt:
    """One rank's part of one attempt while it is read; `seen` holds the impossible samples too."""

    rank: str
    first: StepRecord
    last: StepRecord
    total: int | None = None
    seen: set[int] = field(default_factory=set)
    kept: dict[int, StepRecord] = field(default_factory=dict)

    @property
    def top(self) -> int:
        """The highest step so far."""
        return max(self.seen)


def segments(records: Iterable[StepRecord], marks: Marks, tally: Tally) -> tuple[Segment, ...]:
    """Return the attempts in a log, in its order; what is left out is counted in `tally`.

    `records` stand in the order of the log. Ranks are told apart first, so that their interleaved lines are no
    restarts; where several printed the same attempt, the one with most steps is kept, then the lowest.
    """
    attempts = [attempt for rank in by_rank(records) for attempt in _attempts(rank, marks, tally)]
    spoken = _one_rank_each([attempt for attempt in attempts if attempt.kept], tally)
    after = [attempt.first.origin.offset for attempt in spoken[1:]]
    return tuple(
        _segment(attempt, marks, limit) for attempt, limit in zip(spoken, [*after, None], strict=True)
    )


def by_rank(records: Iterable[StepRecord]) -> list[list[StepRecord]]:
    """Return the records of each rank. Lines without a prefix belong to the only rank that has one, if there is one."""
    ranks: dict[str, list[StepRecord]] = {}
    every = list(records)
    for record in every:
        ranks.setdefault(record.origin.rank, []).append(record)
    return [every] if len(ranks.keys() - {""}) <= 1 and every else list(ranks.values())


def _attempts(records: Sequence[StepRecord], marks: Marks, tally: Tally) -> list[Attempt]:
    """Return the attempts of one rank."""
    rank = max((record.origin.rank for record in records), key=len)
    attempts: list[Attempt] = []
    for record in records:
        attempt = attempts[-1] if attempts else None
        if attempt is None or _is_new_attempt(attempt, record, marks):
            attempt = Attempt(rank, record, record)
            attempts.append(attempt)
        _admit(attempt, record, tally)
    return attempts


def _is_new_attempt(attempt: Attempt, record: StepRecord, marks: Marks) -> bool:
    """Tell whether a record belongs to another attempt than the one before it in the same rank.

    A start mark between them says so, and so do a changed total, a step after the end mark, and a falling step,
    unless it is a late repeat: at most LATE_STEPS back, seen before, and not the first step. A gap says nothing.
    """
    if attempt.total and record.total and attempt.total != record.total:
        return True
    between = attempt.last.origin.offset, record.origin.offset
    if _stands_between([offset for offset, _ in marks.starts], between):
        return True
    if record.step > attempt.top:
        return _stands_between(marks.ends, between)
    late = record.step >= attempt.top - LATE_STEPS and record.step in attempt.seen
    return record.step < attempt.top and (record.step == attempt.first.step or not late)


def _stands_between(offsets: Sequence[int], between: tuple[int, int]) -> bool:
    return bisect_left(offsets, between[0]) < bisect_left(offsets, between[1])


def _admit(attempt: Attempt, record: StepRecord, tally: Tally) -> None:
    """Take a record in: the first print of a step counts, or the precise one."""
    attempt.last = record
    attempt.total = attempt.total or record.total
    attempt.seen.add(record.step)
    line = record.origin.line
    old = attempt.kept.get(record.step)
    if not record.possible:
        tally.add(IMPOSSIBLE_SAMPLE, line, f"step {record.step}: {record.seconds:g} s")
    elif old is None:
        attempt.kept[record.step] = record
    else:
        agrees = abs(record.seconds - old.seconds) <= DISAGREEMENT * min(record.seconds, old.seconds)
        text = f"step {record.step}: {record.seconds:g} s, line {old.origin.line} says {old.seconds:g} s"
        tally.add(REPEATED if agrees else REPEAT_DISAGREES, line, text)
        if record.precise and not old.precise:
            attempt.kept[record.step] = record
