"""What the runs of one configuration are as a baseline: how many of them are independent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

NIGHT = timedelta(hours=12)
"""Runs that start within so long after the first of a night are of that night, also beyond midnight (UTC)."""

FEWEST_GROUPS = 3
"""A baseline from fewer nights or sets of nodes is warned about."""

ENOUGH_GROUPS = 5
"""So many are recommended."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """When a run started, and on which nodes; None and no nodes where nothing says it."""

    started: datetime | None
    nodes: frozenset[str] = frozenset()


def count_groups(occasions: Iterable[Occasion]) -> int:
    """Return how many of the runs are independent: those of one night on one set of nodes share what made them fast
    or slow and count once. What nothing is known of is not taken to differ."""
    groups: list[Occasion] = []
    for occasion in sorted(occasions, key=_begin):
        if not any(_is_same_night(occasion, group) and _share_nodes(occasion, group) for group in groups):
            groups.append(occasion)
    return len(groups)


def _begin(occasion: Occasion) -> tuple[bool, float]:
    """Return the order of occasions: those without a start come last, they belong to whatever is there."""
    started = occasion.started
    return started is None, started.timestamp() if started else 0.0


def _is_same_night(one: Occasion, other: Occasion) -> bool:
    if one.started is None or other.started is None:
        return True
    return one.started.date() == other.started.date() or abs(one.started - other.started) < NIGHT


def _share_nodes(one: Occasion, other: Occasion) -> bool:
    """Whether two sets of nodes are one: more than half of the smaller is in the other, or one is not known."""
    smaller = min(len(one.nodes), len(other.nodes))
    return 2 * len(one.nodes & other.nodes) > smaller or not smaller
