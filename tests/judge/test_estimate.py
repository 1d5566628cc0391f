"""The margin test: its direction, and the meaning of its three answers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_llmbench.core.judgement_records import DecisionRule, Noise
from pytest_llmbench.judge.estimate import (
    Answer,
    compare_interval,
    compute_detectable,
    compute_error,
    count_repeats_needed,
)
from pytest_llmbench.judge.noise import WithinRun

HISTORY = Noise(0.01, 7.6, "20 days", measured=True)
ASSUMED = Noise(0.01, 4.0, "assumed", measured=False)
QUIET = WithinRun(0.001, 30.0)


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (0.0, Answer.WITHIN),
        (0.029, Answer.WITHIN),
        (0.031, Answer.INCONCLUSIVE),
        (0.05, Answer.INCONCLUSIVE),
        (0.069, Answer.INCONCLUSIVE),
        (0.071, Answer.BEYOND),
        (math.nan, Answer.INCONCLUSIVE),
    ],
)
def test_interval_around_the_bound_is_inconclusive(
    difference: float, expected: Answer
) -> None:
    assert compare_interval(difference - 0.02, difference + 0.02, 0.05) is expected


def test_run_with_an_infinite_confidence_interval_is_inconclusive() -> None:
    assert compare_interval(-math.inf, math.inf, 0.05) is Answer.INCONCLUSIVE


@pytest.mark.parametrize("runs", [2, 9])
def test_error_falls_with_the_root_of_the_runs(runs: int) -> None:
    single, several = (
        compute_error(HISTORY, [QUIET], 0.0, DecisionRule()),
        compute_error(HISTORY, [QUIET] * runs, 0.0, DecisionRule()),
    )
    assert several.standard_error == pytest.approx(
        single.standard_error / math.sqrt(runs)
    )
    assert several.half_width == pytest.approx(single.half_width / math.sqrt(runs))


def test_standard_error_is_at_least_the_error_within_the_run() -> None:
    loud = WithinRun(0.05, 30.0)
    error = compute_error(HISTORY, [loud], 0.0, DecisionRule())
    assert error.standard_error == pytest.approx(0.05)
    assert error.half_width == pytest.approx(stats.t.ppf(0.95, 29) * 0.05)


def test_within_run_error_is_added_to_assumed_noise_and_not_to_measured_noise() -> None:
    assert compute_error(
        ASSUMED, [WithinRun(0.01, 30.0)], 0.0, DecisionRule()
    ).standard_error == pytest.approx(0.01 * math.sqrt(2))
    assert compute_error(
        HISTORY, [WithinRun(0.01, 300.0)], 0.0, DecisionRule()
    ).standard_error == pytest.approx(0.01)


@pytest.mark.slow
@given(st.floats(0, 0.05), st.floats(0, 0.05))
def test_rounding_of_the_baseline_widens_the_interval(less: float, more: float) -> None:
    narrow, wide = (
        compute_error(HISTORY, [QUIET], less**2, DecisionRule()),
        compute_error(HISTORY, [QUIET], (less + more) ** 2, DecisionRule()),
    )
    assert narrow.half_width <= wide.half_width


@given(st.floats(-1, 1), st.floats(0, 0.5), st.floats(0.001, 0.4), st.floats(0, 0.5))
def test_slowdown_never_improves_and_tolerance_never_worsens_the_interval_answer(
    difference: float, half_width: float, margin: float, more: float
) -> None:
    before = compare_interval(difference - half_width, difference + half_width, margin)
    slower, wider = (
        compare_interval(
            difference + more - half_width, difference + more + half_width, margin
        ),
        compare_interval(
            difference - half_width, difference + half_width, margin + more
        ),
    )
    order = [Answer.WITHIN, Answer.INCONCLUSIVE, Answer.BEYOND]
    assert order.index(slower) >= order.index(before)
    assert order.index(wider) <= order.index(before)


def test_detectable_slowdown_is_detected_with_80_percent() -> None:
    error = compute_error(HISTORY, [QUIET], 0.0, DecisionRule())
    slowdown = compute_detectable(error, 0.05)
    power = stats.t.cdf(
        (slowdown - 0.05 - error.half_width) / error.standard_error,
        error.degrees_of_freedom,
    )
    assert power == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("distance", "runs"),
    [
        (0.05, 1),
        (0.025, 1),
        (0.02, 2),
        (-0.01, 7),
        (0.001, 619),
        (0.0, None),
        (math.nan, None),
    ],
)
def test_smaller_distance_to_the_bound_needs_more_runs(
    distance: float, runs: int | None
) -> None:
    assert count_repeats_needed(0.01, distance) == runs
