"""Two sides compared: every configuration with a run on both of them, and what was not
compared, with the reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING

from pytest_llmbench.comparison.comparison_records import (
    ON_BOTH_SIDES,
    ComparedSide,
    NoData,
    NotCompared,
    SideComparison,
    SideRun,
    SidesCompared,
)
from pytest_llmbench.comparison.sides import (
    LABELS,
    SideRequest,
    read_paths,
    read_stored_side,
)
from pytest_llmbench.comparison.unpaired import Sides, compare_all
from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.run_records import StoredRun, exclude_same_runs
from pytest_llmbench.judge.noise import estimate_from_daily_runs
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.history.store import StoreLocation


def compare_paths(
    requests: tuple[SideRequest, SideRequest],
    settings: Settings,
    history: StoreLocation | None,
    margin: float,
    now: datetime,
) -> SidesCompared:
    """Return what a comparison of two places says; `margin` is a fraction.

    A configuration is compared with itself only: the same model, release, GPU type,
    precision, number of GPUs, and the same steps. What is known of its noise are the
    runs of both sides, the nights of the history, other configurations.
    """
    a, b = _read_sides(requests, settings, history, now)
    return compare_sides(a, b, settings, history, margin)


def compare_sides(
    a: ComparedSide,
    b: ComparedSide,
    settings: Settings,
    history: StoreLocation | None,
    margin: float,
) -> SidesCompared:
    """Return what a comparison of two sides that were read says; `margin` is a
    fraction."""
    a, b = _drop_shared_runs(a, b)
    windows = choose_windows(a, b)
    a, b = _list_other_windows(a, windows), _list_other_windows(b, windows)
    pairs = {
        name: (a.runs[name, window], b.runs[name, window])
        for name, window in windows.items()
    }
    past = _read_past(history, windows) if history else {}
    if history:
        pairs = _add_nodes(pairs, history)
    sides = {
        name: Sides(*runs, _estimate_days(past.get(name, ()), windows[name], runs))
        for name, runs in pairs.items()
    }
    answers = compare_all(sides, margin, settings.assumed_cv)
    return SidesCompared(
        a,
        b,
        margin,
        tuple(
            SideComparison(name, windows[name], *pairs[name], *answers[name])
            for name in sorted(answers)
        ),
        tuple(_list_not_compared(a, b, windows)),
        history.shown if history else "",
    )


def _read_sides(
    requests: Sequence[SideRequest],
    settings: Settings,
    history: StoreLocation | None,
    now: datetime,
) -> list[ComparedSide]:
    paths = [request for request in requests if request.path is not None]
    sides = read_paths(paths, settings, load(settings), now) if paths else ()
    by_label = {side.label: side for side in sides}
    if history is not None:
        by_label |= {
            request.label: read_stored_side(request, history)
            for request in requests
            if request.path is None
        }
    return [by_label[label] for label in LABELS]


def _drop_shared_runs(
    a: ComparedSide, b: ComparedSide
) -> tuple[ComparedSide, ComparedSide]:
    """Drop the measured runs of a configuration that both sides contain, as one of a
    history may."""
    marks = [
        {
            mark
            for (name, _), runs in side.runs.items()
            for run in runs
            for mark in _list_marks(name, run)
        }
        for side in (a, b)
    ]
    shared = marks[0] & marks[1]
    return _drop(a, shared), _drop(b, shared)


def _list_marks(name: str, run: SideRun) -> set[tuple[str, str, object]]:
    # A start alone is no mark of a run without a job: two may start together.
    return {
        (name, job, mark)
        for job, mark in run.same_run_keys
        if job or isinstance(mark, str)
    }


def _drop(side: ComparedSide, shared: set[tuple[str, str, object]]) -> ComparedSide:
    kept, dropped = {}, {}
    for (name, window), runs in side.runs.items():
        own = tuple(run for run in runs if shared.isdisjoint(_list_marks(name, run)))
        dropped.update({run.id: (name, run) for run in runs if run not in own})
        if own:
            kept[name, window] = own
    no_data = (
        NoData(side.label, run.id, name, Reason.COPIED, ON_BOTH_SIDES, run.log)
        for name, run in dropped.values()
    )
    return dataclasses.replace(side, runs=kept, no_data=(*side.no_data, *no_data))


def choose_windows(a: ComparedSide, b: ComparedSide) -> dict[str, Window]:
    """Return for each configuration the window over which runs of both sides were
    measured, of several that with most of them."""
    windows: dict[str, Window] = {}
    for name, window in sorted(a.runs.keys() & b.runs.keys()):
        most = windows.setdefault(name, window)
        if _count(a, b, name, window) > _count(a, b, name, most):
            windows[name] = window
    return windows


def _list_other_windows(
    side: ComparedSide, windows: Mapping[str, Window]
) -> ComparedSide:
    """Return a side that lists the runs that were measured over other steps than those
    that are compared."""
    counted = {
        (name, run.id)
        for name, window in windows.items()
        for run in side.runs.get((name, window), ())
    }
    text = "it was measured over other steps, or in another way, than the runs of the other side"
    others = {
        (name, run.id): NoData(
            side.label, run.id, name, Reason.WINDOW_INCOMPLETE, text, run.log
        )
        for (name, _), runs in side.runs.items()
        for run in runs
        if name in windows and (name, run.id) not in counted
    }
    return dataclasses.replace(side, no_data=(*side.no_data, *others.values()))


def _count(a: ComparedSide, b: ComparedSide, name: str, window: Window) -> int:
    return len(a.runs[name, window]) + len(b.runs[name, window])


def _list_not_compared(
    a: ComparedSide, b: ComparedSide, compared: Mapping[str, Window]
) -> Iterator[NotCompared]:
    """Yield the configurations that were found and not compared, with the reason."""
    invalid = {
        side.label: {run.configuration for run in side.no_data} for side in (a, b)
    }
    names = {*a.configurations, *b.configurations, *invalid["A"], *invalid["B"]} - {
        "",
        *compared,
    }
    for name in sorted(names):
        counts = [side.label for side in (a, b) if name in side.configurations]
        if len(counts) == len(LABELS):
            yield NotCompared(
                name, "", "A and B were measured over other steps, or in another way"
            )
        elif not counts:
            yield NotCompared(name, "", "neither side has a run of it that counts")
        else:
            other = "B" if counts == ["A"] else "A"
            why = (
                "has no run of it that counts"
                if name in invalid[other]
                else "has no run of it"
            )
            yield NotCompared(name, counts[0], f"only in {counts[0]}: {other} {why}")


# --- what a history adds --------------------------------------------------------------


def _read_past(
    history: StoreLocation, windows: Mapping[str, Window]
) -> Mapping[str, Sequence[StoredRun]]:
    from pytest_llmbench.history.queries import read_stored_runs

    return read_stored_runs(history, windows.keys())


def _estimate_days(
    past: Sequence[StoredRun],
    window: Window,
    sides: tuple[Sequence[SideRun], Sequence[SideRun]],
) -> Noise | None:
    """Return what the nights of a history say of the noise from run to run, without
    those of the sides themselves."""
    runs = [run for side in sides for run in side]
    others = exclude_same_runs(
        past, frozenset(mark for run in runs for mark in run.same_run_keys)
    )
    days = {run.started.date() for run in runs if run.started is not None}
    nights: dict[date, float] = {}
    for stored in others:
        seconds = stored.statistic_seconds
        if (
            stored.valid
            and seconds
            and stored.window == window
            and stored.started.date() not in days
        ):
            nights[stored.started.date()] = math.log(seconds)
    return estimate_from_daily_runs(list(nights.values()), "nights of history")


Pairs = Mapping[str, tuple[tuple[SideRun, ...], tuple[SideRun, ...]]]
"""The runs of A and B by configuration."""


def _add_nodes(
    pairs: Pairs, history: StoreLocation
) -> dict[str, tuple[tuple[SideRun, ...], tuple[SideRun, ...]]]:
    """Return runs with the nodes that the history knows of them: no log tells these."""
    from pytest_llmbench.history.details import map_nodes

    nodes = map_nodes(history, list(pairs))

    def add(runs: tuple[SideRun, ...]) -> tuple[SideRun, ...]:
        return tuple(
            run
            if run.nodes
            else dataclasses.replace(
                run,
                nodes=next(
                    (nodes[mark] for mark in run.same_run_keys if mark in nodes),
                    run.nodes,
                ),
            )
            for run in runs
        )

    return {name: (add(a), add(b)) for name, (a, b) in pairs.items()}
