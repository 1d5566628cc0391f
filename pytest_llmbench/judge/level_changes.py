"""Find the changes of level in the daily runs of a configuration.

Each change has the environment facts that differ around it, and the acknowledgement
that covers it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import accumulate, pairwise

import numpy as np
from msgspec.structs import replace

from pytest_llmbench.core.judgement_records import (
    ChangeKind,
    DailyRuns,
    LevelChange,
    Noise,
    OnBound,
)
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.judge.change_points import (
    MIN_CHANGE,
    LevelShift,
    find_drift,
    find_level_shifts,
)
from pytest_llmbench.judge.estimate import EPSILON

SURROUNDING_DAYS = 3  # compare environments on this many days on each side of a change

# Largest distance between the day of an acknowledgement and of its change, because
# noise shifts the detected day.
MAX_DAY_OFFSET = timedelta(days=7)

# An uncertain change is not covered if it exceeds the accepted size by more than this
# fraction.
UNCERTAIN = 0.5
# flips are counted in this many last days, and need at least this many
FLIP_DAYS, MIN_FLIP_DAYS = 10, 8

# A configuration that meets its bound on 19 of 20 days flips this often by chance in 1
# % of such series.
MIN_FLIPS = 3


def find_changes(
    daily_runs: DailyRuns,
    noise: Noise,
    acknowledged: Sequence[Acknowledgement],
    today: date,
    *,
    quantisation_unit: float = 0.0,
    correlation: float = 0.0,
) -> tuple[LevelChange, ...]:
    """Find the changes of level in the daily runs of one configuration.

    Ordered oldest first. A drift is added if no unacknowledged slowdown persists. Empty
    if no change can be shown.

    `acknowledged` are the entries that cover the configuration. `quantisation_unit` is
    one printed unit of the times, as a fraction, if their noise is smaller; a change
    must exceed it. `correlation` is the lag-1 correlation of days of the fleet.
    """
    values = np.log(
        np.array([run.statistic_seconds for run in daily_runs], dtype=float)
    )
    shifts = find_level_shifts(
        values, noise, max(MIN_CHANGE, quantisation_unit), correlation
    )
    changes = _make_changes(ChangeKind.STEP, shifts, daily_runs, acknowledged, today)
    # A drift is searched after the last change that is acknowledged or faster.
    settled_starts = [
        change.first_run
        for change in changes
        if change.acknowledged or change.difference < 0
    ]
    begin = max(settled_starts, default=0)
    drift = find_drift(values[begin:], noise, quantisation_unit, correlation)
    has_slowdown = any(
        change.stands and not change.acknowledged and change.difference > 0
        for change in changes
    )
    if drift is None or has_slowdown:
        return tuple(changes)
    drift = replace(
        drift, position=drift.position + begin, first=begin, last=len(daily_runs)
    )
    drifts = _make_changes(ChangeKind.DRIFT, (drift,), daily_runs, acknowledged, today)
    return (*changes, *drifts)


def _make_changes(
    kind: ChangeKind,
    shifts: Sequence[LevelShift],
    daily_runs: DailyRuns,
    acknowledged: Sequence[Acknowledgement],
    today: date,
) -> list[LevelChange]:
    """Build the level changes of shifts, with environment and acknowledgement."""
    entries = assign_acknowledgements(kind, shifts, daily_runs, acknowledged, today)
    remaining_shifts = compute_remaining_shifts(shifts)
    changes = []
    for shift, remaining, entry in zip(shifts, remaining_shifts, entries, strict=True):
        # A drift has no day whose surroundings could be compared.
        environment: tuple[tuple[str, str, str], ...] = ()
        if kind is ChangeKind.STEP:
            environment = compare_environments(daily_runs, shift.position)
        expired = entry is not None and today > entry.expires
        change = LevelChange(
            kind=kind,
            first_run=shift.position,
            started=daily_runs[shift.position].started,
            difference=math.expm1(shift.difference),
            low=math.expm1(shift.low),
            high=math.expm1(shift.high),
            environment=environment,
            stands=remaining != 0,
            lasting=math.expm1(remaining),
            acknowledged=None if expired else entry,
            expired=entry if expired else None,
        )
        changes.append(change)
    return changes


def compare_environments(
    daily_runs: DailyRuns, position: int
) -> tuple[tuple[str, str, str], ...]:
    """Return the facts that differ around a change: (name, before, after).

    `position` is the index of the first day after the change. A fact must be constant
    on three days before and on three days after the change, so that facts that differ
    every day are not blamed. The positions one day earlier and later are tried too,
    because noise shifts the detected day. Days without the fact are skipped.
    """
    environments = [run.environment for run in daily_runs]
    names = dict.fromkeys(name for environment in environments for name in environment)
    differences = []
    for name in names:
        difference = _find_difference(environments, name, position)
        if difference is not None:
            before, after = difference
            differences.append((name, before, after))
    return tuple(differences)


def _find_difference(
    environments: Sequence[Mapping[str, str]], name: str, position: int
) -> tuple[str, str] | None:
    """Return the values of a setting before and after a change, or None.

    Both must be constant over the surrounding days.
    """
    for index in (position, position - 1, position + 1):
        before = [
            environment[name]
            for environment in environments[:index]
            if name in environment
        ][-SURROUNDING_DAYS:]
        after = [
            environment[name]
            for environment in environments[index:]
            if name in environment
        ][:SURROUNDING_DAYS]
        are_constant = len(set(before)) == len(set(after)) == 1
        if are_constant and before[0] != after[0]:
            return before[0], after[0]
    return None


# --- acknowledgements of changes ------------------------------------------------------


def compute_remaining_shifts(shifts: Sequence[LevelShift]) -> list[float]:
    """Return the remaining part of each change (log, signed), oldest first.

    For example, of the changes +0.05, +0.03 and -0.04, there remain +0.04, 0 and -0.04:
    a change in the opposite direction cancels the newest changes first, and a cancelled
    change never counts again. The remaining part is the smallest offset of any later
    level from the level before the change, 0 if the change was reverted.
    """
    remaining_shifts = []
    for index, shift in enumerate(shifts):
        sign = math.copysign(1.0, shift.difference)
        # the offset of each level since then, positive in the direction of the change
        offsets = accumulate(sign * later.difference for later in shifts[index:])
        smallest = min(offsets)
        remaining_shifts.append(sign * smallest if smallest >= MIN_CHANGE else 0.0)
    return remaining_shifts


def assign_acknowledgements(
    kind: ChangeKind,
    shifts: Sequence[LevelShift],
    daily_runs: DailyRuns,
    acknowledged: Sequence[Acknowledgement],
    today: date,
) -> list[Acknowledgement | None]:
    """Assign an acknowledgement to each change, oldest first.

    None if a change was not acknowledged. An acknowledgement covers changes near its
    day and in its direction, as long as their sum is not shown to exceed it. Opposite
    changes in between reduce the sum. Only the lasting part of a partly reverted change
    needs to be covered. If several acknowledgements fit, those that have not expired
    (`today`) are preferred, then the nearest day.
    """
    # for each acknowledgement: the changes that it covers so far
    covered: list[list[LevelShift]] = [[] for _ in acknowledged]
    chosen: list[Acknowledgement | None] = []
    remaining_shifts = compute_remaining_shifts(shifts)
    for shift, remaining_shift in zip(shifts, remaining_shifts, strict=True):
        candidates = [
            index
            for index, entry in enumerate(acknowledged)
            if _is_near(entry, kind, shift, daily_runs)
        ]
        lasting = _with_difference(shift, remaining_shift or shift.difference)
        started = daily_runs[shift.position].started.date()
        preference_keys = {
            index: _make_preference_key(acknowledged[index], started, today)
            for index in candidates
            if _covers_changes(acknowledged[index], [*covered[index], lasting])
        }
        best = min(preference_keys, key=preference_keys.__getitem__, default=None)
        chosen.append(None if best is None else acknowledged[best])
        for index in candidates:
            is_opposite = shift.difference * acknowledged[index].fraction < 0
            # an opposite change reduces the sum of the covered changes
            if index == best or (covered[index] and is_opposite):
                covered[index].append(shift)
    return chosen


def _make_preference_key(
    entry: Acknowledgement, started: date, today: date
) -> tuple[bool, timedelta]:
    """Return the sort key of an entry for a change on the day `started`.

    Entries that have not expired come first, then those of the nearest day.
    """
    return today > entry.expires, abs(entry.since - started)


def _with_difference(shift: LevelShift, difference: float) -> LevelShift:
    """Return a change of another size with an interval of the same width."""
    moved = difference - shift.difference
    return replace(
        shift, difference=difference, low=shift.low + moved, high=shift.high + moved
    )


def _is_near(
    entry: Acknowledgement, kind: ChangeKind, shift: LevelShift, daily_runs: DailyRuns
) -> bool:
    """True if an acknowledgement begins near the days of a change.

    The days of a change are the last day before it and the first day after it. Those of
    a drift reach to the last day of all. Near means at most MAX_DAY_OFFSET from them.
    """
    first = daily_runs[max(shift.position - 1, 0)].started.date()
    last = daily_runs[shift.position].started.date()
    if kind is ChangeKind.DRIFT:
        last = daily_runs[-1].started.date()
    return first - MAX_DAY_OFFSET <= entry.since <= last + MAX_DAY_OFFSET


def _covers_changes(entry: Acknowledgement, changes: Sequence[LevelShift]) -> bool:
    """True if an acknowledgement covers the sum of changes.

    The last change must have the direction of the acknowledgement. The sum may exceed
    the accepted size by the half-width of its interval, but by at most UNCERTAIN x that
    size.
    """
    sign = math.copysign(1.0, entry.fraction)
    accepted = abs(math.log1p(entry.fraction))
    total = sign * sum(shift.difference for shift in changes)
    half_width = math.hypot(*(shift.difference - shift.low for shift in changes))
    has_direction = sign * changes[-1].difference > 0
    allowance = min(half_width, UNCERTAIN * accepted)
    return has_direction and total - allowance <= accepted


# --- days on the bound ----------------------------------------------------------------


def find_flips(
    daily_runs: DailyRuns, bound_seconds: float, since: int = 0
) -> OnBound | None:
    """Count the passing days of a configuration that flips around its bound.

    A flip is a change from a passing to a failing day, or back. Uses the literal rule
    on the last ten days of the present level, which begins with the index `since`. None
    unless there are at least eight days, three flips and three days on each side. Fewer
    flips mean an occasional bad day, or a configuration that became slower and stays
    beyond its bound.
    """
    passed = [
        run.statistic_seconds <= bound_seconds * (1 + EPSILON)
        for run in daily_runs[since:][-FLIP_DAYS:]
        if run.statistic_seconds is not None
    ]
    flips = sum(before != after for before, after in pairwise(passed))
    passed_days, all_days = sum(passed), len(passed)
    fewer_days = min(passed_days, all_days - passed_days)  # of the two sides
    if all_days < MIN_FLIP_DAYS or flips < MIN_FLIPS or fewer_days < MIN_FLIPS:
        return None
    return OnBound(passed_days, all_days)
