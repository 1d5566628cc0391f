"""Which runs are tonight's, and which are history."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter

import numpy as np

from pytest_llmbench.core.models import Evidence, Measurement, Noise, StoredRun
from pytest_llmbench.judge.noise import estimate_from_history

PreviousRun = Measurement | StoredRun
"""A run that stands for an earlier night: one that was found, or one that only the history knows."""

ADJACENT = timedelta(days=4)
"""Nights this near to each other are running: a weekend may lie between them."""

PreviousRuns = tuple[PreviousRun, ...]
"""The runs of the nights before tonight, oldest first, one each."""

# A year of nights of 82 configurations is 30,000 runs: these are called for each of them.
_STATISTIC: Callable[[PreviousRun], float | None] = attrgetter("statistic_seconds")
_BEGUN: Callable[[PreviousRun], datetime] = attrgetter("started")  # of those that have one


def estimate_daily_noise(previous: PreviousRuns) -> Noise | None:
    """Return what the runs of earlier nights say of the noise from run to run; None where they are too few."""
    stored = sum(isinstance(run, StoredRun) for run in previous)
    source = "nights" if not stored else "nights of history"
    if 0 < stored < len(previous):
        source = f"nights, {stored} of them of the history"
    return estimate_from_history(np.log(np.array(list(map(_STATISTIC, previous)), dtype=float)), source)


def find_repeats(newest: Measurement, evidence: Evidence) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
    """Return the newest run with its repeats, and repeats that cannot be judged.

    Repeats of a run that was launched are exactly the others of its launch. Those of a run found on disk are runs found
    on disk, of its build, that started within the repeat window before it.
    """
    if newest.run.found.launch:
        others = select_launch(newest, evidence)[1:]
        return (newest, *(run for run in others if run.valid)), tuple(run for run in others if not run.valid)
    window, started = evidence.repeat_window, newest.run.started
    if not window or started is None:
        return (newest,), ()
    older = evidence.measurements[evidence.measurements.index(newest) + 1 :]
    near = [
        run
        for run in older
        if run.run.started is not None
        and not run.run.found.launch
        and started - run.run.started <= window
        and identify_build(run) == identify_build(newest) != ()
        and run.window_seconds != newest.window_seconds  # a copy is no second run
    ]
    return (newest, *(run for run in near if run.valid)), tuple(run for run in near if run.problems)


def select_launch(run: Measurement, evidence: Evidence) -> tuple[Measurement, ...]:
    """Return a run and all others of its launch, valid or not; one that was found on disk is alone."""
    launch = run.run.found.launch
    same = (other for other in evidence.measurements if other.run.found.launch == launch and other is not run)
    return (run, *same) if launch else (run,)


def identify_build(measurement: Measurement) -> tuple[str, ...]:
    """Return what says which build a run is of; empty where nothing but its release does."""
    build = measurement.run.found.build
    return build if any(not part.startswith("release=") for part in build) else ()


def previous_daily_runs(current: Sequence[Measurement], evidence: Evidence) -> PreviousRuns:
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
    apart = [start_seconds(later) - start_seconds(earlier) for earlier, later in pairwise(row)]
    return row if len(row) == count and all(seconds <= ADJACENT.total_seconds() for seconds in apart) else []


def start_seconds(run: PreviousRun) -> float:
    """Return the start of a run in seconds, NaN where nothing says it."""
    return run.started.timestamp() if run.started else math.nan
