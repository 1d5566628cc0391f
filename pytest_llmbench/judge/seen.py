"""What was seen of a configuration: its nights in order, and its last valid run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import DailyRun, DailyRuns, Evidence, Measurement, OnBound, StoredRun
from pytest_llmbench.judge.margin import EQUAL
from pytest_llmbench.judge.nights import PreviousRun, start_seconds

LAST, FEWEST = 10, 8
"""Of so many last nights, and of no fewer, is told that they flip."""

FLIPS = 3
"""Chance lets a configuration that meets its bound on 19 of 20 nights flip so often in one of a hundred such rows."""


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
    all_runs: tuple[PreviousRun, ...] = (*evidence.measurements, *evidence.excluded_by_since, *evidence.stored_runs)
    return max((run for run in all_runs if run.valid and run.started is not None), key=start_seconds, default=None)


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


def find_flips(daily_runs: DailyRuns, bound_seconds: float, since: int = 0) -> OnBound | None:
    """Return how many of the last ten nights passed by the literal rule, where they flip from one side of the bound to
    the other: at least three times, with three on each side. None where they do not, or where fewer than eight are of
    the present level, which begins with the night at `since`: a configuration within its bound has a bad night now and
    then, and one that became slower is beyond it for good.
    """
    passed = [
        run.statistic_seconds <= bound_seconds * (1 + EQUAL)
        for run in daily_runs[since:][-LAST:]
        if run.statistic_seconds is not None
    ]
    flips = sum(before != after for before, after in pairwise(passed))
    few = min(sum(passed), len(passed) - sum(passed))
    return OnBound(sum(passed), len(passed)) if len(passed) >= FEWEST and flips >= FLIPS and few >= FLIPS else None


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
