"""Search for slow nodes in the runs of a history.

Each run is compared with the level of its configuration.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import date
from typing import TYPE_CHECKING

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.node_records import MeasuredRun, NodeSearch

if TYPE_CHECKING:
    from pytest_llmbench.core.outcome_records import ConfigurationResult
    from pytest_llmbench.history.store import StoreLocation


UNSTORED = 0
"""Id of a run that is not in the history."""


def search_history(
    location: StoreLocation, since: date | None, current: Iterable[MeasuredRun] = ()
) -> NodeSearch:
    """Search the stored runs since `since` and the `current` runs for slow nodes.

    Current runs that are stored already count once. Raises HistoryError if the history
    cannot be read.
    """
    from pytest_llmbench.history.details import list_measured_runs

    stored = list_measured_runs(location)
    stored_keys = {run.key for run in stored}
    new = (run for run in current if run.key not in stored_keys)
    return search_runs((*stored, *new), location.shown, since)


def list_current_runs(results: Iterable[ConfigurationResult]) -> Iterator[MeasuredRun]:
    """Yield the runs launched and timed by this session, with their nodes."""
    from pytest_llmbench.history.details import TIMED

    for result in results:
        measurement = result.judgement.measurement
        software = (
            frozenset(measurement.environment.items()) if measurement else frozenset()
        )
        for job in result.jobs:
            if job.purpose in TIMED and job.step_seconds and job.started is not None:
                window = result.judgement.baseline.window
                # The attempts of a requeued job may have run on different nodes.
                is_requeued = job.cost.requeued > 0
                nodes = frozenset() if is_requeued else frozenset(job.nodes)
                of_job = (job.started, job.job_id, job.step_seconds, nodes, software)
                yield MeasuredRun(UNSTORED, result.case.key.id, window, *of_job)


def compare_with_history(
    location: StoreLocation,
    since: date | None,
    run: MeasuredRun,
    nodes: Collection[str],
) -> tuple[float, bool] | None:
    """Compare a run on suspect `nodes` with the usual level of its configuration.

    Returns the slowdown of the run as a fraction, and a flag. The flag is True if a
    search that includes the run names one of `nodes` as slow and counts the run as slow.
    Returns None if there are no comparable days. Raises HistoryError if the history
    cannot be read.
    """
    search = search_history(location, since, [run])
    # If the run was stored before, the search contains it under its id in the history.
    ids = (
        run_id for run_id, searched in search.runs.items() if searched.key == run.key
    )
    run_id = next(ids, run.id)
    difference = (search.evidence.differences or {}).get(run_id)
    if difference is None:
        return None
    named_suspects = [
        suspect
        for suspect in search.evidence.named
        if not set(nodes).isdisjoint(suspect.nodes)
    ]
    return difference, any(run_id in suspect.slow_runs for suspect in named_suspects)


def search_runs(
    runs: Iterable[MeasuredRun], history: str, since: date | None
) -> NodeSearch:
    """Search runs for slow nodes.

    Runs before `since` are used only for the level of their configurations. Runs
    measured in another window are a separate series, since only equal windows are
    comparable.
    """
    from pytest_llmbench.judge.noise import FEWEST_DAYS
    from pytest_llmbench.judge.slow_nodes import (
        ConfigurationRun,
        compare_with_levels,
        find_slow_node,
    )

    by_id = {run.id: run for run in runs}
    series: dict[tuple[str, Window], list[ConfigurationRun]] = defaultdict(list)
    for run in by_id.values():
        configuration_run = ConfigurationRun(
            run.id, run.started.date(), math.log(run.seconds), run.nodes, run.software
        )
        series[run.configuration, run.window].append(configuration_run)
    # A series gets a name, because its configuration may have several windows.
    configuration_by_name = {
        f"{configuration} {tuple(window)}": configuration
        for configuration, window in series
    }
    compared_runs, short_series = compare_with_levels(
        dict(zip(configuration_by_name, series.values(), strict=True)), since
    )
    analysed_runs = {run.id: by_id[run.id] for run in compared_runs}
    with_level = {run.configuration for run in analysed_runs.values()}
    # Another series of the configuration may have enough days.
    too_few = {configuration_by_name[name] for name in short_series} - with_level
    return NodeSearch(
        history,
        find_slow_node(compared_runs),
        analysed_runs,
        since,
        tuple(sorted(too_few)),
        FEWEST_DAYS,
    )
