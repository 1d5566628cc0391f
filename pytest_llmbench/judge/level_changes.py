"""What happened to a configuration over its daily runs: changes of level, what differs
around each, who accepted it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import accumulate, pairwise

import numpy as np

from pytest_llmbench.core.judgement_records import (
    ChangeKind,
    DailyRuns,
    LevelChange,
    Noise,
    OnBound,
)
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.judge.change_points import (
    SMALLEST,
    LevelShift,
    find_level_shifts,
    find_slow_change,
)
from pytest_llmbench.judge.estimate import EQUAL

NEAR = 3  # of the surroundings of a change, so many days on each side are compared

# An acknowledgement may name a day so far from that of the change: noise decides which
# day is found.
PLACED = timedelta(days=7)

# a drift of which hardly anything is known is still no other one than twice as much as
# was accepted
UNCERTAIN = 0.5
LAST, FEWEST = 10, 8  # of so many last days, and of no fewer, is told that they flip

# Chance lets a configuration that meets its bound on 19 of 20 days flip so often in one
# of a hundred such rows.
FLIPS = 3


def find_changes(
    daily_runs: DailyRuns,
    noise: Noise,
    acknowledged: Sequence[Acknowledgement],
    today: date,
    *,
    coarse: float = 0.0,
    correlation: float = 0.0,
) -> tuple[LevelChange, ...]:
    """Return the changes in the daily runs of one configuration, oldest first; where
    none to slower stands, the drift.

    `acknowledged` are those that cover the configuration. `coarse` is one printed unit
    of the times, as a fraction, where their noise is smaller: a change has to be
    larger. `correlation` is that of a day with the next, of all configurations. Empty:
    nothing can be shown.
    """
    values = np.log(
        np.array([run.statistic_seconds for run in daily_runs], dtype=float)
    )
    shifts = find_level_shifts(values, noise, max(SMALLEST, coarse), correlation)
    changes = _make_changes(ChangeKind.STEP, shifts, daily_runs, acknowledged, today)
    anchored = max(
        (
            change.first_run
            for change in changes
            if change.acknowledged or change.difference < 0
        ),
        default=0,
    )
    slow = find_slow_change(values[anchored:], noise, coarse, correlation)
    if slow is None or any(
        change.stands and not change.acknowledged and change.difference > 0
        for change in changes
    ):
        return tuple(changes)
    place = slow.position + anchored
    moved = LevelShift(
        place, anchored, len(daily_runs), slow.difference, slow.low, slow.high
    )
    return (
        *changes,
        *_make_changes(ChangeKind.DRIFT, (moved,), daily_runs, acknowledged, today),
    )


def _make_changes(
    kind: ChangeKind,
    shifts: Sequence[LevelShift],
    daily_runs: DailyRuns,
    acknowledged: Sequence[Acknowledgement],
    today: date,
) -> list[LevelChange]:
    entries = assign_acknowledgements(kind, shifts, daily_runs, acknowledged, today)
    changes = []
    for shift, left, entry in zip(
        shifts, compute_lasting(shifts), entries, strict=True
    ):
        expired = entry is not None and today > entry.expires
        change = LevelChange(
            kind=kind,
            first_run=shift.position,
            started=daily_runs[shift.position].started,
            difference=math.expm1(shift.difference),
            low=math.expm1(shift.low),
            high=math.expm1(shift.high),
            # A drift has no day around which to look.
            environment=compare_environments(daily_runs, shift.position)
            if kind is ChangeKind.STEP
            else (),
            stands=left != 0,
            lasting=math.expm1(left),
            acknowledged=None if expired else entry,
            expired=entry if expired else None,
        )
        changes.append(change)
    return changes


def compare_environments(
    daily_runs: DailyRuns, position: int
) -> tuple[tuple[str, str, str], ...]:
    """Return what differs around a change whose first day is at `position`: name, value
    before, value after.

    A value counts that is the same on three days before and on three after, so that
    what differs every day is not blamed; noise may have put the change a day too early
    or too late. Days that do not tell it are passed over.
    """
    environments = [run.environment for run in daily_runs]
    names = dict.fromkeys(name for environment in environments for name in environment)
    return tuple(
        (name, *pair)
        for name in names
        if (pair := _find_difference(environments, name, position))
    )


def _find_difference(
    environments: Sequence[Mapping[str, str]], name: str, position: int
) -> tuple[str, str] | None:
    for place in (position, position - 1, position + 1):
        before = [
            environment[name]
            for environment in environments[:place]
            if name in environment
        ][-NEAR:]
        after = [
            environment[name]
            for environment in environments[place:]
            if name in environment
        ][:NEAR]
        if (
            before
            and after
            and len(set(before)) == len(set(after)) == 1
            and before[0] != after[0]
        ):
            return before[0], after[0]
    return None


# --- which acknowledgement covers which change ----------------------------------------


def compute_lasting(shifts: Sequence[LevelShift]) -> list[float]:
    """Return what is left of each change, oldest first, as a logarithm of its own sign;
    0 where it was taken back.

    That is the least by which the level stood away from the one before it at any time
    since. So what goes the other way takes back the changes nearest before it, and a
    later change of the same way is one of its own: it never makes a change stand again
    that had been taken back.
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
    """Return for each change, oldest first, the acknowledgement that covers it; None
    for one that nobody accepted.

    An acknowledgement covers changes of its direction that are found near its day, and
    together, with what went the other way between them, are not shown to be larger than
    it. Of a change of which a part was taken back only the rest has to be accepted. Of
    several that could, one that has not expired (`today`) comes first, then the one
    whose day is nearest.
    """
    spent: list[list[LevelShift]] = [[] for _ in acknowledged]
    chosen: list[Acknowledgement | None] = []
    for shift, left in zip(shifts, compute_lasting(shifts), strict=True):
        near = [
            place
            for place, entry in enumerate(acknowledged)
            if _is_near(entry, kind, shift, daily_runs)
        ]
        rest = _with_difference(shift, left or shift.difference)
        fits = [
            place
            for place in near
            if _is_enough(acknowledged[place], [*spent[place], rest])
        ]

        def order(
            place: int, began: datetime = daily_runs[shift.position].started
        ) -> tuple[bool, timedelta]:
            entry = acknowledged[place]
            return today > entry.expires, abs(entry.since - began.date())

        best = min(fits, key=order, default=None)
        chosen.append(None if best is None else acknowledged[best])
        for place in near:
            if place == best or (
                spent[place] and shift.difference * acknowledged[place].fraction < 0
            ):
                spent[place].append(shift)
    return chosen


def _with_difference(shift: LevelShift, difference: float) -> LevelShift:
    """Return a change of another size that is known as well."""
    moved = difference - shift.difference
    return replace(
        shift, difference=difference, low=shift.low + moved, high=shift.high + moved
    )


def _is_near(
    entry: Acknowledgement, kind: ChangeKind, shift: LevelShift, daily_runs: DailyRuns
) -> bool:
    last = daily_runs[-1] if kind is ChangeKind.DRIFT else daily_runs[shift.position]
    first = daily_runs[max(shift.position - 1, 0)]
    return first.started.date() - PLACED <= entry.since <= last.started.date() + PLACED


def _is_enough(entry: Acknowledgement, changes: Sequence[LevelShift]) -> bool:
    """Whether the last of these changes is of the direction of an acknowledgement, and
    their sum not beyond it: not shown to be larger, and, however uncertain it is, not
    larger by more than UNCERTAIN of it."""
    way = math.copysign(1.0, entry.fraction)
    accepted, total = (
        abs(math.log1p(entry.fraction)),
        way * sum(shift.difference for shift in changes),
    )
    half = math.hypot(*(shift.difference - shift.low for shift in changes))
    return (
        way * changes[-1].difference > 0
        and total - min(half, UNCERTAIN * accepted) <= accepted
    )


# --- days on the bound ----------------------------------------------------------------


def find_flips(
    daily_runs: DailyRuns, bound_seconds: float, since: int = 0
) -> OnBound | None:
    """Return how many of the last ten days passed by the literal rule, where they flip
    from one side of the bound to the other: at least three times, with three on each
    side. None where they do not, or where fewer than eight are of the present level,
    which begins with the day at `since`: a configuration within its bound has a bad day
    now and then, and one that became slower is beyond it for good.
    """
    passed = [
        run.statistic_seconds <= bound_seconds * (1 + EQUAL)
        for run in daily_runs[since:][-LAST:]
        if run.statistic_seconds is not None
    ]
    flips = sum(before != after for before, after in pairwise(passed))
    few = min(sum(passed), len(passed) - sum(passed))
    return (
        OnBound(sum(passed), len(passed))
        if len(passed) >= FEWEST and flips >= FLIPS and few >= FLIPS
        else None
    )
