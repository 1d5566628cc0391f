"""The daily runs of a configuration, one a day: those before the current ones, and what is known of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import DailyRun, DailyRuns, Evidence, Measurement, Noise, StoredRun
from pytest_llmbench.judge.noise import estimate_from_daily_runs

# A run that stands for an earlier night: one that was found, or one that only the history knows.
PreviousRun = Measurement | StoredRun

ADJACENT = timedelta(days=4)  # nights this near to each other are running: a weekend may lie between them

PreviousRuns = tuple[PreviousRun, ...]  # the runs of the nights before tonight, oldest first, one each

# A year of nights of 82 configurations is 30,000 runs: these are called for each of them.
_STATISTIC: Callable[[PreviousRun], float | None] = attrgetter("statistic_seconds")
_BEGUN: Callable[[PreviousRun], datetime] = attrgetter("started")  # of those that have one


def estimate_daily_noise(previous: PreviousRuns) -> Noise | None:
    """Return what the runs of earlier nights say of the noise from run to run; None where they are too few."""
    stored = sum(isinstance(run, StoredRun) for run in previous)
    source = "nights" if not stored else "nights of history"
    if 0 < stored < len(previous):
        source = f"nights, {stored} of them of the history"
    return estimate_from_daily_runs(np.log(np.array(list(map(_STATISTIC, previous)), dtype=float)), source)


def list_previous_daily_runs(current: Sequence[Measurement], evidence: Evidence) -> PreviousRuns:
    """Return one valid run for each earlier night (day, UTC), oldest first: the newest of that day.

    Runs of one day share what changes from night to night, so that they would make the noise look small; those of
    tonight's own day are none. Where nothing ran tonight, all nights are earlier ones, and so they are for a run whose
    start nothing says: it counts as the newest.
    """
    started = max((run.started for run in current if run.started), default=evidence.now)
    day = started.toordinal() if current else None
    measured = [
        run
        for run in (*evidence.measurements, *evidence.excluded_by_since)
        if run.valid and run.started is not None and run not in current
    ]
    ordered: list[PreviousRun] = sorted((*measured, *evidence.stored_runs), key=_BEGUN)
    before = ordered[: bisect_right(ordered, started, key=_BEGUN)]
    by_day = dict(zip(map(datetime.toordinal, map(_BEGUN, before)), before, strict=True))
    if day is not None:  # an earlier run of its day is no earlier night
        by_day.pop(day, None)
    return tuple(by_day.values())


def select_consecutive(older: Sequence[Measurement], newest: Measurement, count: int) -> list[Measurement]:
    """Return the newest run and the last nights before it, `count` together; empty where they are not in a row."""
    row = [*older[1 - count :], newest]
    if len(row) != count or newest.started is None:
        return []
    return row if all(_BEGUN(later) - _BEGUN(earlier) <= ADJACENT for earlier, later in pairwise(row)) else []


def describe_last_valid(evidence: Evidence) -> str:
    """Return `last valid run 12 nights ago (2025-11-08 02:00, job 123)`; empty where none is known that says when."""
    newest = _find_newest_valid(evidence)
    if newest is None or newest.started is None:
        return ""
    ago = (evidence.now.date() - newest.started.date()).days
    job_id = newest.job_id if isinstance(newest, StoredRun) else newest.run.found.job_id
    job = f", job {job_id}" if job_id else ""
    before = formatting.count_noun(ago, "night") if ago > 0 else formatting.format_age(evidence.now - newest.started)
    return f"last valid run {before} ago ({newest.started:%Y-%m-%d %H:%M}{job})"


def is_stale(evidence: Evidence) -> bool:
    """Whether the last valid run that is known is older than allowed: not where none is known, or nothing limits it."""
    newest = _find_newest_valid(evidence)
    if newest is None or newest.started is None or evidence.max_age is None:
        return False
    return evidence.now - newest.started > evidence.max_age


def _find_newest_valid(evidence: Evidence) -> PreviousRun | None:
    return max(list_valid_runs(evidence), key=_BEGUN, default=None)


def list_valid_runs(evidence: Evidence) -> list[PreviousRun]:
    """Return all valid runs of which something says when they began, oldest first."""
    all_runs: tuple[PreviousRun, ...] = (*evidence.measurements, *evidence.excluded_by_since, *evidence.stored_runs)
    return sorted((run for run in all_runs if run.valid and run.started is not None), key=_BEGUN)


def list_daily_runs(older: Sequence[PreviousRun]) -> DailyRuns:
    """Return measured nights, oldest first, as what happened on them."""
    measured = [run for run in older if 0 < (run.statistic_seconds or 0) < math.inf]
    return [
        run if isinstance(run, StoredRun) else _make_daily_run(run, run.statistic_seconds or math.nan)
        for run in measured
    ]


def average_current_runs(current: Sequence[Measurement]) -> list[DailyRun]:
    """Return tonight's repeats as one night, their mean; empty where there is no run, or nothing says when it began."""
    if not current or current[0].run.started is None:
        return []
    logarithms = [math.log(run.statistic_seconds or math.nan) for run in current]
    mean = math.exp(sum(logarithms) / len(logarithms))
    return [_make_daily_run(current[0], mean)] if math.isfinite(mean) else []


def find_coarse_unit(runs: Sequence[PreviousRun]) -> float:
    """Return one printed unit of the step times of runs, as a fraction, where their steps do not differ by as much: a
    level that crosses a rounding bound then moves by a unit, however small the change was. Else 0."""
    units = []
    for run in runs:
        if isinstance(run, StoredRun):
            continue
        spread = max(run.window_seconds, default=0.0) - min(run.window_seconds, default=0.0)
        seconds = run.statistic_seconds
        units.append(1.01 * run.resolution_seconds / seconds if seconds and spread < run.resolution_seconds else 0.0)
    return max(units, default=0.0)


def _make_daily_run(run: Measurement, seconds: float) -> DailyRun:
    if run.started is None:
        raise ValueError(f"nothing says when {run} started")
    return DailyRun(run.started, seconds, run.environment)
