"""What happened to a configuration over its nights: changes of level, what differs around each, and who accepted it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import NamedTuple

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Acknowledgement, ChangeKind, DailyRuns, LevelChange, Noise
from pytest_llmbench.judge.acknowledged import describe_acknowledgement
from pytest_llmbench.judge.changes import SMALLEST, LevelShift, find_level_shifts
from pytest_llmbench.judge.coverage import assign_acknowledgements, compute_lasting
from pytest_llmbench.judge.slow_change import find_slow_change

NEAR = 3
"""Of the surroundings of a change, so many nights on each side are compared."""


def find_changes(
    daily_runs: DailyRuns,
    noise: Noise,
    acknowledged: Sequence[Acknowledgement],
    today: date,
    *,
    coarse: float = 0.0,
    correlation: float = 0.0,
) -> tuple[LevelChange, ...]:
    """Return the changes in the nights of one configuration, oldest first; where none to slower stands, the drift.

    `acknowledged` are those that cover the configuration. `coarse` is one printed unit of the times, as a fraction,
    where their noise is smaller: a change has to be larger. `correlation` is that of a night with the next, of all
    configurations. Empty: nothing can be shown.
    """
    values = np.log(np.array([run.statistic_seconds for run in daily_runs], dtype=float))
    shifts = find_level_shifts(values, noise, max(SMALLEST, coarse), correlation)
    series = _Series(daily_runs, acknowledged, today)
    changes = _make_changes(ChangeKind.STEP, shifts, series)
    anchored = max((change.first_run for change in changes if change.acknowledged or change.difference < 0), default=0)
    slow = find_slow_change(values[anchored:], noise, coarse, correlation)
    if slow is None or any(change.stands and not change.acknowledged and change.difference > 0 for change in changes):
        return tuple(changes)
    place = slow.position + anchored
    moved = LevelShift(place, anchored, len(daily_runs), slow.difference, slow.low, slow.high)
    return (*changes, *_make_changes(ChangeKind.DRIFT, (moved,), series))


class _Series(NamedTuple):
    nights: DailyRuns
    acknowledged: Sequence[Acknowledgement]
    today: date


def _make_changes(kind: ChangeKind, shifts: Sequence[LevelShift], series: _Series) -> list[LevelChange]:
    entries = assign_acknowledgements(kind, shifts, *series)
    return [_make_change(kind, *parts, series) for parts in zip(shifts, compute_lasting(shifts), entries, strict=True)]


def _make_change(
    kind: ChangeKind, shift: LevelShift, left: float, entry: Acknowledgement | None, series: _Series
) -> LevelChange:
    daily_runs = series.nights
    expired = entry is not None and series.today > entry.expires
    change = LevelChange(
        kind=kind,
        first_run=shift.position,
        started=daily_runs[shift.position].started,
        difference=math.expm1(shift.difference),
        low=math.expm1(shift.low),
        high=math.expm1(shift.high),
        environment=compare_environments(daily_runs, shift.position) if kind is ChangeKind.STEP else (),
        stands=left != 0,
        lasting=math.expm1(left),
        acknowledged=None if expired else entry,
        expired=entry if expired else None,
    )
    return _with_text(change)


def compare_environments(daily_runs: DailyRuns, position: int) -> tuple[tuple[str, str, str], ...]:
    """Return what differs around a change whose first night is at `position`: name, value before, value after.

    A value counts that is the same on three nights before and on three after, so that what differs every night is not
    blamed; noise may have put the change a night too early or too late. Nights that do not tell it are passed over.
    """
    environments = [run.environment for run in daily_runs]
    names = dict.fromkeys(name for environment in environments for name in environment)
    return tuple((name, *pair) for name in names if (pair := _find_difference(environments, name, position)))


def _find_difference(environments: Sequence[Mapping[str, str]], name: str, position: int) -> tuple[str, str] | None:
    for place in (position, position - 1, position + 1):
        before = [environment[name] for environment in environments[:place] if name in environment][-NEAR:]
        after = [environment[name] for environment in environments[place:] if name in environment][:NEAR]
        if before and after and len(set(before)) == len(set(after)) == 1 and before[0] != after[0]:
            return before[0], after[0]
    return None


def _with_text(change: LevelChange) -> LevelChange:
    low, high = (formatting.format_difference(1 + bound).removesuffix(" %") for bound in (change.low, change.high))
    size = f"{formatting.format_difference(1 + change.difference)} ({low} to {high} %)"
    text = f"{size} {'since' if change.kind is ChangeKind.STEP else 'drifted since'} {change.started:%Y-%m-%d}"
    differs = [
        f"{name} {formatting.shorten_setting(name, before)} -> {formatting.shorten_setting(name, after)}"
        for name, before, after in change.environment
    ]
    parts = [text]
    if differs:
        parts.append(formatting.join_first(differs))
    elif change.kind is ChangeKind.STEP:
        parts.append("nothing known differs")
    if change.acknowledged:
        parts.append(describe_acknowledgement(change.acknowledged))
    elif change.expired:
        gone = change.expired
        size = formatting.format_difference(1 + gone.fraction)
        parts.append(f"the acknowledgement expired on {gone.expires}: {size} by {gone.by}: {gone.reason}")
    if not change.stands:
        parts.append("taken back since")
    elif change.partly_taken_back:
        parts.append(f"{formatting.format_difference(1 + change.lasting)} of it is left")
    return replace(change, text="; ".join(parts))
