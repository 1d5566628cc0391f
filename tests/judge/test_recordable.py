"""What the runs of a configuration are as a baseline: how many are independent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from pytest_llmbench.judge.recordable import Occasion, count_groups

EVENING = datetime(2026, 3, 1, 21, tzinfo=UTC)
RACK, OTHER_RACK = frozenset({"n1", "n2", "n3", "n4"}), frozenset({"n5", "n6", "n7", "n8"})
MOSTLY_RACK = frozenset({"n1", "n2", "n3", "n8"})


def at(hours: float, nodes: frozenset[str] = frozenset()) -> Occasion:
    return Occasion(EVENING + timedelta(hours=hours), nodes)


@pytest.mark.parametrize(
    ("occasions", "groups"),
    [
        pytest.param([at(0)], 1, id="one run"),
        pytest.param([at(hour) for hour in range(5)], 1, id="five runs of one night, beyond midnight"),
        pytest.param([at(hour, RACK) for hour in range(5)], 1, id="five runs of one night on one set of nodes"),
        pytest.param([at(24 * day, RACK) for day in range(5)], 5, id="five nights on one set of nodes"),
        pytest.param([at(24 * day) for day in range(5)], 5, id="five nights, nodes unknown"),
        pytest.param([at(0, RACK), at(1, OTHER_RACK)], 2, id="two sets of nodes in one night"),
        pytest.param([at(0, RACK), at(1, MOSTLY_RACK)], 1, id="one node was exchanged"),
        pytest.param([at(0, RACK), at(1)], 1, id="nodes of one are unknown"),
        pytest.param([Occasion(None), Occasion(None)], 1, id="no start known"),
        pytest.param([at(0), at(24), Occasion(None)], 2, id="the start of one unknown"),
        pytest.param([at(5 * run) for run in range(24)], 6, id="around the clock, six days (UTC)"),
    ],
)
def test_runs_of_one_night_on_one_set_of_nodes_count_once(occasions: list[Occasion], groups: int) -> None:
    assert count_groups(occasions) == groups
    for order in list(permutations(occasions[:5]))[::17]:
        assert count_groups([*occasions[5:], *order]) == groups
