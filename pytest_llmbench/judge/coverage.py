"""Which acknowledgement covers which change: no more of them than what was accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import accumulate

from pytest_llmbench.core.models import Acknowledgement, ChangeKind, DailyRuns
from pytest_llmbench.judge.changes import SMALLEST, LevelShift

PLACED = timedelta(days=7)
"""An acknowledgement may name a day so far from that of the change: noise decides which night is found."""

UNCERTAIN = 0.5
"""A drift of which hardly anything is known is still no other one than twice as much as was accepted."""


def compute_lasting(shifts: Sequence[LevelShift]) -> list[float]:
    """Return what is left of each change, oldest first, as a logarithm of its own sign; 0 where it was taken back.

    That is the least by which the level stood away from the one before it at any time since. So what goes the other way
    takes back the changes nearest before it, and a later change of the same way is one of its own: it never makes a
    change stand again that had been taken back.
    """
    left = []
    for place, shift in enumerate(shifts):
        way = math.copysign(1.0, shift.difference)
        least = min(accumulate(way * later.difference for later in shifts[place:]))
        left.append(way * least if least >= SMALLEST else 0.0)
    return left


def assign_acknowledgements(
    kind: ChangeKind,
    shifts: Sequence[LevelShift],
    daily_runs: DailyRuns,
    acknowledged: Sequence[Acknowledgement],
    today: date,
) -> list[Acknowledgement | None]:
    """Return for each change, oldest first, the acknowledgement that covers it; None for one that nobody accepted.

    An acknowledgement covers changes of its direction that are found near its day, and together, with what went the
    other way between them, are not shown to be larger than it. Of a change of which a part was taken back only the rest
    has to be accepted. Of several that could, one that has not expired (`today`) comes first, then the one whose day is
    nearest.
    """
    spent: list[list[LevelShift]] = [[] for _ in acknowledged]
    chosen: list[Acknowledgement | None] = []
    for shift, left in zip(shifts, compute_lasting(shifts), strict=True):
        near = [place for place, entry in enumerate(acknowledged) if _is_near(entry, kind, shift, daily_runs)]
        rest = _with_difference(shift, left or shift.difference)
        fits = [place for place in near if _is_enough(acknowledged[place], [*spent[place], rest])]

        def order(place: int, began: datetime = daily_runs[shift.position].started) -> tuple[bool, timedelta]:
            entry = acknowledged[place]
            return today > entry.expires, abs(entry.since - began.date())

        best = min(fits, key=order, default=None)
        chosen.append(None if best is None else acknowledged[best])
        for place in near:
            if place == best or (spent[place] and shift.difference * acknowledged[place].fraction < 0):
                spent[place].append(shift)
    return chosen


def _with_difference(shift: LevelShift, difference: float) -> LevelShift:
    """Return a change of another size that is known as well."""
    moved = difference - shift.difference
    return replace(shift, difference=difference, low=shift.low + moved, high=shift.high + moved)


def _is_near(entry: Acknowledgement, kind: ChangeKind, shift: LevelShift, daily_runs: DailyRuns) -> bool:
    last = daily_runs[-1] if kind is ChangeKind.DRIFT else daily_runs[shift.position]
    first = daily_runs[max(shift.position - 1, 0)]
    return first.started.date() - PLACED <= entry.since <= last.started.date() + PLACED


def _is_enough(entry: Acknowledgement, changes: Sequence[LevelShift]) -> bool:
    """Whether the last of these changes is of the direction of an acknowledgement, and their sum not beyond it: not
    shown to be larger, and, however uncertain it is, not larger by more than UNCERTAIN of it."""
    way = math.copysign(1.0, entry.fraction)
    accepted, total = abs(math.log1p(entry.fraction)), way * sum(shift.difference for shift in changes)
    half = math.hypot(*(shift.difference - shift.low for shift in changes))
    return way * changes[-1].difference > 0 and total - min(half, UNCERTAIN * accepted) <= accepted
