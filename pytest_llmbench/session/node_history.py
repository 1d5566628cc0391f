"""Which node is slow: the runs of a history, each beside the level of its
configuration, and what they say."""

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


def search_history(
    place: StoreLocation, since: date | None, current: Iterable[MeasuredRun] = ()
) -> NodeSearch:
    """Return what the runs of a history from `since` on say of their nodes, with
    `current` ones, which it may not hold yet. HistoryError where it cannot be read."""
    from pytest_llmbench.history.details import list_measured_runs

    stored = list_measured_runs(place)
    known = {run.key for run in stored}
    new = (run for run in current if run.key not in known)
    return search_runs((*stored, *new), place.shown, since)


def list_current_runs(results: Iterable[ConfigurationResult]) -> Iterator[MeasuredRun]:
    """Yield the runs that this session launched and timed, with their nodes."""
    from pytest_llmbench.history.details import TIMED

    for result in results:
        measurement = result.judgement.measurement
        software = (
            frozenset(measurement.environment.items()) if measurement else frozenset()
        )
        for job in result.jobs:
            if job.purpose in TIMED and job.step_seconds and job.started is not None:
                window, requeued = (
                    result.judgement.baseline.window,
                    job.cost.requeued > 0,
                )
                nodes = frozenset() if requeued else frozenset(job.nodes)
                of_job = (job.started, job.job_id, job.step_seconds, nodes, software)
                yield MeasuredRun(0, result.case.key.id, window, *of_job)


def compare_with_history(
    place: StoreLocation, since: date | None, run: MeasuredRun, nodes: Collection[str]
) -> tuple[float, bool] | None:
    """Return how much slower a run on nodes that the history names was than its
    configuration is, a fraction, and whether they are named with it, too, and were slow
    in it; None where no nights compare. HistoryError as above."""
    search = search_history(place, since, [run])
    # a session that is judged once more is in the history already, under another id
    same = (name for name, other in search.runs.items() if other.key == run.key)
    own = next(same, run.id)
    difference = (search.evidence.differences or {}).get(own)
    if difference is None:
        return None
    named = [
        suspect
        for suspect in search.evidence.named
        if not set(nodes).isdisjoint(suspect.nodes)
    ]
    return difference, any(own in suspect.slow_runs for suspect in named)


def search_runs(
    runs: Iterable[MeasuredRun], history: str, since: date | None
) -> NodeSearch:
    """Return what runs say of their nodes; those before `since` tell only how fast
    their configurations are.

    Runs that were measured over other steps are of another series: only like is
    compared with like.
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
        placed = ConfigurationRun(
            run.id, run.started.date(), math.log(run.seconds), run.nodes, run.software
        )
        series[run.configuration, run.window].append(placed)
    names = {
        f"{configuration} {tuple(window)}": configuration
        for configuration, window in series
    }
    placed_runs, short = compare_with_levels(
        dict(zip(names, series.values(), strict=True)), since
    )
    looked_at = {run.id: by_id[run.id] for run in placed_runs}
    compared = {run.configuration for run in looked_at.values()}
    too_few = {names[name] for name in short} - compared
    return NodeSearch(
        history,
        find_slow_node(placed_runs),
        looked_at,
        since,
        tuple(sorted(too_few)),
        FEWEST_DAYS,
    )
