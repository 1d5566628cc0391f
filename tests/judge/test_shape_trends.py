"""Warm-ups and drifts are found, and rarely reported for noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_llmbench.judge.shape import (
    compute_kendall,
    compute_theil_sen,
    condense,
    find_slope,
    find_warm_up,
)

lists = st.lists(
    st.floats(0.1, 100).map(lambda value: round(value, 2)), min_size=3, max_size=60
).map(np.array)


def windows(
    runs: int, count: int, correlation: float, cv: float, seed: int = 1
) -> np.ndarray:
    """Make step times of shape (runs, count).

    AR(1) noise, with 3 % of the steps 5 to 50 % slower.
    """
    random = np.random.default_rng(seed)
    noise = random.standard_normal((runs, count))
    for step in range(1, count):
        noise[:, step] = (
            correlation * noise[:, step - 1]
            + math.sqrt(1 - correlation**2) * noise[:, step]
        )
    slow = random.random((runs, count)) < 0.03
    return np.asarray(
        (1 + cv * noise) * (1 + slow * random.uniform(0.05, 0.5, (runs, count)))
    )


@pytest.mark.slow
@given(lists)
def test_theil_sen_slope_and_kendall_score_match_scipy(values: np.ndarray) -> None:
    assert compute_theil_sen(values) == pytest.approx(
        stats.theilslopes(values).slope, abs=1e-12
    )
    score, variance = compute_kendall(values)
    if np.ptp(values) == 0:
        assert (score, variance) == (0, 0)
        return
    expected = stats.kendalltau(np.arange(len(values)), values, method="asymptotic")
    assert math.erfc(abs(score) / math.sqrt(2 * variance)) == pytest.approx(
        expected.pvalue, abs=1e-12
    )
    assert np.sign(score) == np.sign(round(expected.statistic, 12))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "cv"), [(15, 0.03), (34, 0.005)])
@pytest.mark.parametrize(
    ("correlation", "most"), [(0.0, 0.018), (0.5, 0.026), (0.8, 0.036)]
)
def test_false_change_alarms_are_rare(
    count: int, cv: float, correlation: float, most: float
) -> None:
    noise = windows(1000, count, correlation, cv)
    assert np.mean([find_warm_up(run) is not None for run in noise]) <= most
    assert np.mean([find_slope(run) is not None for run in noise]) <= most


@pytest.mark.parametrize(
    ("size", "decay", "cv", "least"),
    [(0.1, 5, 0.01, 0.6), (0.05, 10, 0.003, 0.9), (0.5, 4, 0.005, 0.95)],
)
def test_warm_up_within_the_window_is_found(
    size: float, decay: float, cv: float, least: float
) -> None:
    settling = 1 + size * np.exp(-np.arange(34) / decay)
    warm_ups = [find_warm_up(run * settling) for run in windows(300, 34, 0.4, cv)]
    assert np.mean([warm_up is not None for warm_up in warm_ups]) >= least


@pytest.mark.parametrize(
    ("cv", "change", "least"), [(0.002, 0.02, 0.9), (0.005, -0.05, 0.85)]
)
def test_drift_is_found_with_its_size(cv: float, change: float, least: float) -> None:
    slopes = [
        find_slope(run * np.linspace(1, 1 + change, 34))
        for run in windows(300, 34, 0.3, cv)
    ]
    assert np.mean([slope is not None for slope in slopes]) >= least
    assert np.median([slope.change for slope in slopes if slope]) == pytest.approx(
        change, rel=0.1
    )


@pytest.mark.parametrize("position", [0, 5, 10])
def test_early_spike_is_neither_warm_up_nor_drift(position: int) -> None:
    run = 7 * (1 + 0.003 * np.random.default_rng(3).standard_normal(34))
    run[position] *= 10
    assert find_warm_up(run) is None
    assert find_slope(run) is None


def test_slow_step_in_moving_mean_is_no_warm_up() -> None:
    steps = 7 * (1 + 0.003 * np.random.default_rng(4).standard_normal(38))
    steps[7] *= 1.5
    means = np.convolve(steps, np.ones(5) / 5, "valid")
    assert means[:11].max() > 1.08 * np.median(means)
    assert find_warm_up(means, 5) is None
    assert find_slope(means, 5) is None


@pytest.mark.parametrize(("moving_mean", "expected"), [(5, True), (300, False)])
def test_moving_mean_over_many_steps_shows_no_trend(
    moving_mean: int, expected: bool
) -> None:
    noise = windows(1, 34, 0.0, 0.003)[0]
    slow_first = noise * np.where(np.arange(34) < 11, 1.03, 1)
    rising = noise * np.linspace(1, 1.03, 34)
    assert (find_warm_up(slow_first, moving_mean) is not None) is expected
    assert (find_slope(rising, moving_mean) is not None) is expected


@pytest.mark.parametrize("count", [1, 5, 9, 250])
def test_constant_steps_have_no_trend(count: int) -> None:
    assert find_warm_up(np.full(count, 7.325)) is None
    assert find_slope(np.full(count, 7.325)) is None


def test_slow_first_steps_are_a_warm_up() -> None:
    warm_up = find_warm_up(np.array([1.2] * 11 + [1.0] * 23))
    assert warm_up is not None
    assert warm_up.steps == 11
    assert warm_up.excess == pytest.approx(0.2)


@pytest.mark.parametrize(("first", "warming"), [(0.012, False), (0.015, True)])
def test_first_steps_slower_by_one_printed_unit_are_no_warm_up(
    first: float, warming: bool
) -> None:
    run = np.array([first, 0.011, first] * 4 + [0.011] * 12 + [0.012, 0.011] * 6)
    assert (find_warm_up(run, resolution=0.001) is not None) is warming


def test_long_step_windows_are_averaged_into_at_most_100_blocks() -> None:
    seconds = np.arange(1.0, 1001.0)
    points, block = condense(seconds)
    assert (len(points), block) == (100, 10)
    assert points[:2].tolist() == [5.5, 15.5]
    odd, block = condense(seconds[:205])
    assert (len(odd), block) == (69, 3)
    assert odd[-1] == 204  # the last block overlaps
    assert condense(seconds[:100])[1] == 1
