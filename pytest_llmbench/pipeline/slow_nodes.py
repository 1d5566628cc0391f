"""Which node is slow: the runs of a history, each beside the level of its configuration, and what they say."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from typing import TYPE_CHECKING

from pytest_llmbench.core.models import MeasuredRun, NodeSearch, Window

if TYPE_CHECKING:
    from pytest_llmbench.history.store import StoreLocation


def search_history(place: StoreLocation, since: date | None = None) -> NodeSearch:
    """Return what the runs of a history from `since` on say of their nodes. HistoryError where it cannot be read."""
    from pytest_llmbench.history.details import list_measured_runs

    return search_runs(list_measured_runs(place), place.shown, since)


def search_runs(runs: Iterable[MeasuredRun], history: str, since: date | None = None) -> NodeSearch:
    """Return what runs say of their nodes; those before `since` tell only how fast their configurations are.

    Runs that were measured over other steps are of another series: only like is compared with like.
    """
    from pytest_llmbench.judge.node_levels import PlacedRun, compare_with_levels
    from pytest_llmbench.judge.noise import FEWEST_DAYS
    from pytest_llmbench.judge.slow_nodes import find_slow_node

    by_id = {run.id: run for run in runs}
    series: dict[tuple[str, Window], list[PlacedRun]] = defaultdict(list)
    for run in by_id.values():
        placed = PlacedRun(run.id, run.started.date(), math.log(run.seconds), run.nodes)
        series[run.configuration, run.window].append(placed)
    names = {f"{configuration} {tuple(window)}": configuration for configuration, window in series}
    placed_runs, short = compare_with_levels(dict(zip(names, series.values(), strict=True)), since)
    looked_at = {run.id: by_id[run.id] for run in placed_runs}
    compared = {run.configuration for run in looked_at.values()}
    too_few = {names[name] for name in short} - compared
    return NodeSearch(history, find_slow_node(placed_runs), looked_at, since, tuple(sorted(too_few)), FEWEST_DAYS)
