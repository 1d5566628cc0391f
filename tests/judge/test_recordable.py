"""What the runs of a configuration are as a baseline: how many are independent, and whether they are of one level."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import permutations

import numpy as np
import pytest
from builders import measurement
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.judge.recordable import Occasion, count_groups, expect_noise, find_run_levels

pytestmark = pytest.mark.slow

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


def logarithmic(levels: Sequence[float], cv: float, seed: int) -> list[list[float]]:
    """Return 1,500 recordings of runs at these levels, with noise."""
    noise = np.random.default_rng(seed).standard_normal((1500, len(levels)))
    seconds = 7.3 * np.array(levels) * np.exp(cv * noise)
    return [list(map(float, row)) for row in seconds]


@pytest.mark.parametrize("runs", [2, 3, 4, 5, 6, 8, 10, 14])
@pytest.mark.parametrize("cv", [0.002, 0.01, 0.02])
def test_runs_of_one_level_are_rarely_taken_for_two(runs: int, cv: float) -> None:
    """Fewer than 1 % are, up to twice the expected noise: docs/baselines.md has the numbers of 200,000 each."""
    refused = sum(find_run_levels(one, 0.01, ordered=True) is not None for one in logarithmic((1.0,) * runs, cv, runs))
    assert refused <= 1500 * 0.014  # 0.8 % and three standard deviations of the count
    assert refused == 0 or cv > 0.002


@pytest.mark.parametrize(
    ("levels", "ordered", "least"),
    [
        ((1.0, 1.0, 1.0, 1.04, 1.04, 1.04), True, 0.99),
        ((1.04, 1.04, 1.04, 1.0, 1.0, 1.0), True, 0.99),
        ((1.0, 1.04, 1.04, 1.0, 1.04, 1.0), True, 0.98),
        ((1.0, 1.04, 1.04, 1.0, 1.04, 1.0), False, 0.98),
        ((1.0, 1.0, 1.08, 1.08), True, 0.99),
        ((1.0, 1.08, 1.0, 1.08), False, 0.99),
        ((1.0,) * 5 + (1.03,) * 5, True, 0.99),
        ((1.0, 1.03) * 5, False, 0.98),
    ],
)
def test_two_levels_are_found_in_any_order(levels: tuple[float, ...], ordered: bool, least: float) -> None:
    found = [find_run_levels(one, 0.01, ordered=ordered) for one in logarithmic(levels, 0.002, 1)]
    assert sum(one is not None for one in found) >= least * len(found)
    half = len(levels) // 2
    assert all(one is None or (one.fast_runs, one.slow_runs) == (half, half) for one in found)
    assert found[0]
    assert found[0].slow_seconds / found[0].fast_seconds == pytest.approx(max(levels), rel=0.006)


@pytest.mark.parametrize(
    "levels",
    [
        pytest.param((1.0, 1.0, 1.0, 1.0, 1.0, 1.06), id="a single bad night"),
        pytest.param((1.0, 1.0, 1.0, 1.008, 1.008, 1.008), id="levels that move the mean by little"),
        pytest.param((1.0,), id="one run"),
        pytest.param((1.0,) * 6, id="equal runs"),
    ],
)
def test_what_is_no_second_level(levels: tuple[float, ...]) -> None:
    assert find_run_levels([7.3 * level for level in levels], 0.01, ordered=True) is None


@given(st.permutations([7.3, 7.31, 7.28, 7.6, 7.59, 7.61, 7.3]))
def test_neither_the_unit_nor_the_order_decides(seconds: list[float]) -> None:
    for unit in (1e-3, 1.0, 1e4):
        found = find_run_levels([unit * one for one in seconds], 0.01, ordered=False)
        assert found
        assert (found.fast_runs, found.slow_runs) == (4, 3)


def test_runs_that_are_noisy_within_are_expected_to_differ() -> None:
    steady, noisy = measurement(7.3), measurement(7.3, window_seconds=tuple(7.3 + (step % 7) for step in range(34)))
    assert expect_noise([steady], 0.01) == pytest.approx(0.01)
    assert expect_noise([steady, noisy], 0.01) > 0.02
    assert expect_noise([measurement(7.3, window_seconds=(7.3, 9.0))], 0.01) == 0.01
