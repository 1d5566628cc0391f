"""The within-run error scales with the unit, and grows with correlation and
stragglers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_llmbench.core.robust import (
    compute_median_deviation,
    compute_trimmed_mean,
    winsorise,
)
from pytest_llmbench.judge.noise import estimate_within_run

values = st.lists(st.floats(0.1, 100), min_size=5, max_size=60).map(np.array)


@pytest.mark.slow
@given(values)
def test_robust_statistics_match_scipy(window: np.ndarray) -> None:
    assert compute_trimmed_mean(window) == pytest.approx(stats.trim_mean(window, 0.2))
    assert np.sort(winsorise(window)) == pytest.approx(
        np.sort(stats.mstats.winsorize(window, (0.2, 0.2)).data)
    )
    assert compute_median_deviation(window) == pytest.approx(
        1.4826 * stats.median_abs_deviation(window)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statistic", "compute"),
    [("mean", np.mean), ("trimmed_mean", compute_trimmed_mean)],
)
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_error_estimated_within_one_run_equals_the_spread_over_many_runs(
    statistic: str, compute: Any, correlation: float
) -> None:
    noise = np.random.default_rng(2).standard_normal((1000, 34))
    for step in range(1, 34):
        noise[:, step] = (
            correlation * noise[:, step - 1]
            + np.sqrt(1 - correlation**2) * noise[:, step]
        )
    runs = 1 + 0.02 * noise
    errors = [estimate_within_run(run, statistic).error for run in runs]
    assert np.median(errors) == pytest.approx(
        np.std([np.log(compute(run)) for run in runs]), rel=0.3
    )


def test_correlated_step_times_reduce_the_effective_sample_size() -> None:
    independent = np.random.default_rng(3).standard_normal(200)
    walk = 10 + np.convolve(independent, np.ones(5) / 5, "valid")
    assert estimate_within_run(10 + independent, "mean").effective_sample_size > 150
    assert estimate_within_run(walk, "mean").effective_sample_size < 60
    assert (
        estimate_within_run(
            10 + independent, "mean", moving_mean=5
        ).effective_sample_size
        <= 40
    )


def test_straggler_widens_only_the_error_of_a_mean() -> None:
    window = 7 + 0.05 * np.random.default_rng(4).standard_normal(34)
    spiked = window.copy()
    spiked[7] *= 3
    assert (
        estimate_within_run(spiked, "mean").error
        > 10 * estimate_within_run(window, "mean").error
    )
    assert (
        estimate_within_run(spiked, "trimmed_mean").error
        < 1.5 * estimate_within_run(window, "trimmed_mean").error
    )


@pytest.mark.slow
@given(values, st.sampled_from([1e-3, 1e3]), st.sampled_from(["mean", "trimmed_mean"]))
def test_unit_of_step_time_does_not_change_the_verdict(
    window: np.ndarray, unit: float, statistic: str
) -> None:
    original, scaled = (
        estimate_within_run(window, statistic),
        estimate_within_run(window * unit, statistic),
    )
    assert original.error == pytest.approx(scaled.error, rel=1e-6, abs=1e-12)
    assert original.effective_sample_size == pytest.approx(
        scaled.effective_sample_size, rel=1e-3
    )


@pytest.mark.parametrize("count", [3, 34])
def test_constant_steps_have_no_error(count: int) -> None:
    within = estimate_within_run(np.full(count, 7.325), "mean")
    assert within.error == pytest.approx(0, abs=1e-12)
    assert within.effective_sample_size == count


def test_mean_of_several_steps_is_one_sample() -> None:
    window = np.array([7.0, 7.2, 7.1])
    assert estimate_within_run(
        window, "mean", mean_of=(10, 10, 10)
    ) == estimate_within_run(window, "mean")
    assert estimate_within_run(window, "mean").effective_sample_size == 3


def test_printed_mean_over_nearly_all_steps_leaves_one_effective_sample() -> None:
    window = np.array([7.0, 7.2, 7.1, 7.1])
    even, uneven = (
        estimate_within_run(window, "mean", mean_of=steps)
        for steps in ((5, 5, 5, 5), (1, 1, 1, 1000))
    )
    assert even.effective_sample_size == 4
    assert uneven.effective_sample_size == pytest.approx(1, abs=0.01)
    assert uneven.error > even.error
