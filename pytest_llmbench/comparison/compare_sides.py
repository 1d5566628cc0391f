"""Compare two sides configuration by configuration.

Lists the configurations that were not compared, with the reason.
"""

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
    """Read and compare two sides. `margin` is a fraction.

    Runs are only compared within a configuration: model, release, GPU type, precision,
    number of GPUs and measured steps must be equal. The noise is estimated from the
    runs of both sides, the daily runs of the history and other configurations.
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
    """Compare two sides that were read already. `margin` is a fraction."""
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
    """Read both sides, from paths or from the stored days of a history."""
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
    """Exclude the runs that both sides contain, per configuration.

    A stored run may be on both sides too.
    """
    keys = [
        {
            key
            for (name, _), runs in side.runs.items()
            for run in runs
            for key in _list_run_keys(name, run)
        }
        for side in (a, b)
    ]
    shared = keys[0] & keys[1]
    return _drop(a, shared), _drop(b, shared)


def _list_run_keys(name: str, run: SideRun) -> set[tuple[str, str, object]]:
    # A start without a job id is ambiguous: two runs may start at the same time.
    return {
        (name, job, key)
        for job, key in run.same_run_keys
        if job or isinstance(key, str)
    }


def _drop(side: ComparedSide, shared: set[tuple[str, str, object]]) -> ComparedSide:
    """Remove the runs with these keys from a side, and list them as without data."""
    kept, dropped = {}, {}
    for (name, window), runs in side.runs.items():
        remaining = tuple(
            run for run in runs if shared.isdisjoint(_list_run_keys(name, run))
        )
        dropped.update({run.id: (name, run) for run in runs if run not in remaining})
        if remaining:
            kept[name, window] = remaining
    no_data = (
        NoData(side.label, run.id, name, Reason.COPIED, ON_BOTH_SIDES, run.log)
        for name, run in dropped.values()
    )
    return dataclasses.replace(side, runs=kept, no_data=(*side.no_data, *no_data))


def choose_windows(a: ComparedSide, b: ComparedSide) -> dict[str, Window]:
    """Choose the window of each configuration, by name.

    The window must occur on both sides. If there are several, the window with most runs
    is chosen.
    """
    windows: dict[str, Window] = {}
    for name, window in sorted(a.runs.keys() & b.runs.keys()):
        most = windows.setdefault(name, window)
        if _count(a, b, name, window) > _count(a, b, name, most):
            windows[name] = window
    return windows


def _list_other_windows(
    side: ComparedSide, windows: Mapping[str, Window]
) -> ComparedSide:
    """List the runs with other windows as runs without data."""
    counted = {
        (name, run.id)
        for name, window in windows.items()
        for run in side.runs.get((name, window), ())
    }
    text = "measured over other steps, or with another statistic, than the other side"
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
    """Yield the configurations that were not compared, with the reason."""
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
                name,
                "",
                "A and B were measured over different steps, or with different statistics",
            )
        elif not counts:
            yield NotCompared(name, "", "neither side has a usable run")
        else:
            other = "B" if counts == ["A"] else "A"
            reason = "has no usable run" if name in invalid[other] else "has no run"
            yield NotCompared(name, counts[0], f"only in {counts[0]}: {other} {reason}")


# --- stored runs ----------------------------------------------------------------------


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
    """Estimate the run-to-run noise from the stored daily runs.

    Days and runs of the two sides are left out.
    """
    runs = [run for side in sides for run in side]
    others = exclude_same_runs(
        past, frozenset(key for run in runs for key in run.same_run_keys)
    )
    days = {run.started.date() for run in runs if run.started is not None}
    daily_runs: dict[date, float] = {}
    for stored in others:
        seconds = stored.statistic_seconds
        if (
            stored.valid
            and seconds
            and stored.window == window
            and stored.started.date() not in days
        ):
            daily_runs[stored.started.date()] = math.log(seconds)
    return estimate_from_daily_runs(list(daily_runs.values()), "days of history")


Pairs = Mapping[str, tuple[tuple[SideRun, ...], tuple[SideRun, ...]]]
"""The runs of A and B by configuration."""


def _add_nodes(
    pairs: Pairs, history: StoreLocation
) -> dict[str, tuple[tuple[SideRun, ...], tuple[SideRun, ...]]]:
    """Add the stored nodes of runs: no log contains node names."""
    from pytest_llmbench.history.details import map_nodes

    nodes = map_nodes(history, list(pairs))

    def add(runs: tuple[SideRun, ...]) -> tuple[SideRun, ...]:
        return tuple(
            run
            if run.nodes
            else dataclasses.replace(
                run,
                nodes=next(
                    (nodes[key] for key in run.same_run_keys if key in nodes),
                    run.nodes,
                ),
            )
            for run in runs
        )

    return {name: (add(a), add(b)) for name, (a, b) in pairs.items()}
