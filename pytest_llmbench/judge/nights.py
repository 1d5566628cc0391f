"""Which runs are tonight's, and which are history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

from pytest_llmbench.models import Evidence, Measurement

ADJACENT = timedelta(days=4)
"""Nights this near to each other are running: a weekend may lie between them."""


def repeats(newest: Measurement, evidence: Evidence) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
    """Return the newest run with its repeats, and repeats that cannot be judged.

    Repeats of a run that was launched are exactly the others of its launch. Those of a run found on disk are runs found
    on disk, of its build, that started within the repeat window before it.
    """
    if newest.run.found.launch:
        others = of_launch(newest, evidence)[1:]
        return (newest, *(one for one in others if one.valid)), tuple(one for one in others if not one.valid)
    window, started = evidence.repeat_window, newest.run.started
    if not window or started is None:
        return (newest,), ()
    older = evidence.measurements[evidence.measurements.index(newest) + 1 :]
    near = [
        one
        for one in older
        if one.run.started is not None
        and not one.run.found.launch
        and started - one.run.started <= window
        and build(one) == build(newest) != ""
        and one.window_seconds != newest.window_seconds  # a copy is no second run
    ]
    return (newest, *(one for one in near if one.valid)), tuple(one for one in near if one.problems)


def of_launch(one: Measurement, evidence: Evidence) -> tuple[Measurement, ...]:
    """Return a run and all others of its launch, valid or not; one that was found on disk is alone."""
    launch = one.run.found.launch
    same = (other for other in evidence.measurements if other.run.found.launch == launch and other is not one)
    return (one, *same) if launch else (one,)


def build(measurement: Measurement) -> str:
    """Return what says which build a run is of; empty where nothing but its release does."""
    parts = [part for part in measurement.run.found.build.split("; ") if part]
    return "; ".join(parts) if any(not part.startswith("release=") for part in parts) else ""


def history(tonight: Sequence[Measurement], evidence: Evidence) -> list[Measurement]:
    """Return one valid run for each earlier night (day, UTC), oldest first: the newest of that day.

    Runs of one day share what changes from night to night, so that they would make the noise look small.
    """
    started = max((one.run.started for one in tonight if one.run.started), default=None)
    nights: dict[object, Measurement] = {}
    known = [one for one in (*evidence.measurements, *evidence.history) if one.valid and one.run.started is not None]
    for one in sorted(known, key=when):
        if started is not None and when(one) <= started.timestamp() and not any(one is run for run in tonight):
            nights[_day(one)] = one
    return list(nights.values())


def running(older: Sequence[Measurement], newest: Measurement, count: int) -> list[Measurement]:
    """Return the newest run and the last nights before it, `count` together; empty where they are not in a row."""
    row = [*older[1 - count :], newest]
    apart = [when(later) - when(earlier) for earlier, later in pairwise(row)]
    return row if len(row) == count and all(seconds <= ADJACENT.total_seconds() for seconds in apart) else []


def when(measurement: Measurement) -> float:
    """Return the start of a run in seconds, NaN where nothing says it."""
    started = measurement.run.started
    return started.timestamp() if started else math.nan


def _day(measurement: Measurement) -> object:
    return measurement.run.started.date() if measurement.run.started else None
