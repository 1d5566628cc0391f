"""Compare two sides configuration by configuration.

Lists the configurations that were not compared, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING

from msgspec import structs

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
    # Exclude runs on both sides, and runs with another window than the compared one.
    a, b = _drop_shared_runs(a, b)
    windows = choose_windows(a, b)
    a, b = _list_other_windows(a, windows), _list_other_windows(b, windows)
    pairs = {
        name: (a.runs[name, window], b.runs[name, window])
        for name, window in windows.items()
    }
    # The history adds daily runs, for the noise, and the nodes of the compared runs.
    stored_runs = _read_past(history, windows) if history else {}
    if history:
        pairs = _add_nodes(pairs, history)
    sides = {}
    for name, (runs_a, runs_b) in pairs.items():
        daily_noise = _estimate_daily_noise(
            stored_runs.get(name, ()), windows[name], (runs_a, runs_b)
        )
        sides[name] = Sides(runs_a, runs_b, daily_noise)
    answers = compare_all(sides, margin, settings.assumed_cv)
    comparisons = []
    for name, (estimate, differences) in sorted(answers.items()):
        runs_a, runs_b = pairs[name]
        comparisons.append(
            SideComparison(name, windows[name], runs_a, runs_b, estimate, differences)
        )
    return SidesCompared(
        a,
        b,
        margin,
        tuple(comparisons),
        tuple(_list_not_compared(a, b, windows)),
        history.shown if history else "",
    )


def _read_sides(
    requests: Sequence[SideRequest],
    settings: Settings,
    history: StoreLocation | None,
    now: datetime,
) -> list[ComparedSide]:
    """Read both sides, from paths or from a history. Returns A and B."""
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
    shared = _collect_run_keys(a) & _collect_run_keys(b)
    return _exclude_runs(a, shared), _exclude_runs(b, shared)


def _collect_run_keys(side: ComparedSide) -> set[tuple[str, str, object]]:
    """Return the keys of all runs of a side."""
    keys: set[tuple[str, str, object]] = set()
    for (name, _), runs in side.runs.items():
        for run in runs:
            keys |= _list_run_keys(name, run)
    return keys


def _list_run_keys(name: str, run: SideRun) -> set[tuple[str, str, object]]:
    """Return the keys of a run: (configuration, job id, fingerprint or start)."""
    # A start without a job id is ambiguous: two runs may start at the same time.
    return {
        (name, job_id, key)
        for job_id, key in run.same_run_keys
        if job_id or isinstance(key, str)
    }


def _exclude_runs(
    side: ComparedSide, shared: set[tuple[str, str, object]]
) -> ComparedSide:
    """Remove the runs with these keys from a side, and list them as without data."""
    kept_runs, dropped_runs = {}, {}
    for (name, window), runs in side.runs.items():
        remaining = tuple(
            run for run in runs if shared.isdisjoint(_list_run_keys(name, run))
        )
        dropped_runs.update(
            {run.id: (name, run) for run in runs if run not in remaining}
        )
        if remaining:
            kept_runs[name, window] = remaining
    no_data = (
        NoData(side.label, run.id, name, Reason.COPIED, ON_BOTH_SIDES, run.log)
        for name, run in dropped_runs.values()
    )
    return structs.replace(side, runs=kept_runs, no_data=(*side.no_data, *no_data))


def choose_windows(a: ComparedSide, b: ComparedSide) -> dict[str, Window]:
    """Choose the window of each configuration, by name.

    The window must occur on both sides. If there are several, the window with most runs
    is chosen.
    """
    windows: dict[str, Window] = {}
    for name, window in sorted(a.runs.keys() & b.runs.keys()):
        best = windows.setdefault(name, window)
        if _count(a, b, name, window) > _count(a, b, name, best):
            windows[name] = window
    return windows


def _list_other_windows(
    side: ComparedSide, windows: Mapping[str, Window]
) -> ComparedSide:
    """List the runs that were not measured over the compared window as without data.

    `windows` contains the compared window of each configuration. A run that was also
    measured over the compared window is not listed.
    """
    compared_runs = {
        (name, run.id)
        for name, window in windows.items()
        for run in side.runs.get((name, window), ())
    }
    text = "measured over other steps, or with another statistic, than the other side"
    no_data = {
        (name, run.id): NoData(
            side.label, run.id, name, Reason.WINDOW_INCOMPLETE, text, run.log
        )
        for (name, _), runs in side.runs.items()
        for run in runs
        if name in windows and (name, run.id) not in compared_runs
    }
    return structs.replace(side, no_data=(*side.no_data, *no_data.values()))


def _count(a: ComparedSide, b: ComparedSide, name: str, window: Window) -> int:
    """Count the runs of both sides with a window."""
    return len(a.runs[name, window]) + len(b.runs[name, window])


def _list_not_compared(
    a: ComparedSide, b: ComparedSide, compared: Mapping[str, Window]
) -> Iterator[NotCompared]:
    """Yield the configurations that were not compared, with the reason."""
    names_without_data = {
        side.label: {run.configuration for run in side.no_data} for side in (a, b)
    }
    names = {*a.configurations, *b.configurations, *names_without_data["A"]}
    names |= names_without_data["B"]
    names -= {"", *compared}  # the configuration of a run may be unknown
    for name in sorted(names):
        labels = [side.label for side in (a, b) if name in side.configurations]
        if len(labels) == len(LABELS):
            yield NotCompared(
                name,
                "",
                "A and B were measured over different steps, or with different statistics",
            )
        elif not labels:
            yield NotCompared(name, "", "neither side has a usable run")
        else:
            (label,) = labels
            other = "B" if label == "A" else "A"
            has_unusable_run = name in names_without_data[other]
            reason = "has no usable run" if has_unusable_run else "has no run"
            yield NotCompared(name, label, f"only in {label}: {other} {reason}")


# --- stored runs ----------------------------------------------------------------------


def _read_past(
    history: StoreLocation, windows: Mapping[str, Window]
) -> Mapping[str, Sequence[StoredRun]]:
    from pytest_llmbench.history.queries import read_stored_runs

    return read_stored_runs(history, windows.keys())


def _estimate_daily_noise(
    past: Sequence[StoredRun],
    window: Window,
    sides: tuple[Sequence[SideRun], Sequence[SideRun]],
) -> Noise | None:
    """Estimate the run-to-run noise from the stored daily runs with the same window.

    Leaves out the runs of the two sides, and all other runs on their days.
    """
    compared_runs = [run for side in sides for run in side]
    compared_keys = frozenset(key for run in compared_runs for key in run.same_run_keys)
    compared_days = {run.started.date() for run in compared_runs if run.started}
    logarithm_by_day: dict[date, float] = {}  # the last run of a day counts
    for stored in exclude_same_runs(past, compared_keys):
        day, seconds = stored.started.date(), stored.statistic_seconds
        is_comparable = stored.valid and stored.window == window
        if is_comparable and seconds and day not in compared_days:
            logarithm_by_day[day] = math.log(seconds)
    logarithms = list(logarithm_by_day.values())
    return estimate_from_daily_runs(logarithms, "days of history")


Pairs = Mapping[str, tuple[tuple[SideRun, ...], tuple[SideRun, ...]]]
"""The runs of A and B by configuration."""


def _add_nodes(
    pairs: Pairs, history: StoreLocation
) -> dict[str, tuple[tuple[SideRun, ...], tuple[SideRun, ...]]]:
    """Add the stored nodes of runs: no log contains node names."""
    from pytest_llmbench.history.details import map_nodes

    nodes_by_key = map_nodes(history, list(pairs))

    def add_stored_nodes(run: SideRun) -> SideRun:
        """Return the run with its stored nodes, or unchanged if it has nodes or none
        are stored."""
        for key in run.same_run_keys:
            if not run.nodes and key in nodes_by_key:
                return structs.replace(run, nodes=nodes_by_key[key])
        return run

    return {
        name: (tuple(map(add_stored_nodes, a)), tuple(map(add_stored_nodes, b)))
        for name, (a, b) in pairs.items()
    }
