"""The distributions match scipy over the range that verdicts use."""

from __future__ import annotations

import math
from typing import SupportsFloat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from pytest_llmbench.judge import distributions

pytestmark = pytest.mark.wheel

FREEDOMS = st.floats(0.5, 30_000)
"""One repeat has one degree of freedom; a year of a fleet has twelve thousand."""

STATISTICS = st.floats(-60, 60)
PROBABILITIES = st.one_of(
    st.floats(1e-9, 1 - 1e-9),
    st.sampled_from([0.95, 0.8, 0.975, 1 - 0.0222, 1 - 0.0295]),
)


def close_to(
    expected: SupportsFloat, relative: float = 1e-9, absolute: float = 1e-300
) -> object:
    """Compare with a tolerance for scipy's own error.

    The oldest supported scipy is wrong in the 11th digit; the closed forms below are
    exact.
    """
    return pytest.approx(float(expected), rel=relative, abs=absolute)


@given(STATISTICS, FREEDOMS)
def test_t_tail_matches_scipy(statistic: float, freedom: float) -> None:
    assert distributions.compute_t_upper_tail(statistic, freedom) == close_to(
        special.stdtr(freedom, -statistic)
    )


@given(PROBABILITIES, FREEDOMS)
def test_t_quantile_matches_scipy(probability: float, freedom: float) -> None:
    quantile = distributions.compute_quantile(probability, freedom)
    assert quantile == close_to(special.stdtrit(freedom, probability), absolute=1e-9)


@pytest.mark.parametrize(
    ("statistic", "freedom", "expected"),
    [
        (0.0, 4.0, 0.5),
        (2e-161, 192.0, 0.5),
        (math.inf, 4.0, 0.0),
        (-math.inf, 4.0, 1.0),
        (1.5, math.inf, 0.06680720126885809),
        (math.nan, 4.0, math.nan),
        (1.5, 0.0, math.nan),
    ],
)
def test_t_tail_at_its_limits(
    statistic: float, freedom: float, expected: float
) -> None:
    assert distributions.compute_t_upper_tail(statistic, freedom) == pytest.approx(
        expected, nan_ok=True
    )


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.5, 4.0, 0.0),
        (1.0, 4.0, math.inf),
        (0.0, 4.0, -math.inf),
        (0.95, math.inf, 1.6448536269514722),
        (1.1, 4.0, math.nan),
        (math.nan, 4.0, math.nan),
        (0.95, 0.0, math.nan),
    ],
)
def test_t_quantile_at_its_limits(
    probability: float, freedom: float, expected: float
) -> None:
    assert distributions.compute_quantile(probability, freedom) == pytest.approx(
        expected, nan_ok=True
    )


@pytest.mark.slow
@given(st.floats(0.01, 100), FREEDOMS, FREEDOMS)
def test_f_tail_matches_scipy(ratio: float, freedom: float, below: float) -> None:
    expected = float(special.fdtrc(freedom, below, ratio))
    assert distributions.compute_f_upper_tail(ratio, freedom, below) == pytest.approx(
        expected, rel=1e-8, abs=1e-11
    )


@given(st.floats(1e-6, 1 - 1e-6), st.integers(3, 400))
def test_beta_probability_matches_scipy(level: float, configurations: int) -> None:
    majority = configurations // 2 + 1
    shape = (majority, configurations - majority + 1)
    expected = float(special.betainc(*shape, level))
    assert distributions.compute_beta_lower_tail(level, *shape) == pytest.approx(
        expected, rel=1e-9, abs=1e-250
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (2.0, 1.0), (math.nan, math.nan)],
)
def test_beta_probability_at_its_limits(value: float, expected: float) -> None:
    assert distributions.compute_beta_lower_tail(value, 3, 4) == pytest.approx(
        expected, nan_ok=True
    )


@pytest.mark.slow
@given(st.floats(0.05, 1e6))
def test_polygamma_matches_scipy(x: float) -> None:
    digamma, trigamma, tetragamma = distributions.compute_polygamma(x)
    assert digamma == pytest.approx(float(special.digamma(x)), rel=1e-9, abs=1e-11)
    assert trigamma == pytest.approx(float(special.polygamma(1, x)), rel=1e-9)
    assert tetragamma == pytest.approx(float(special.polygamma(2, x)), rel=1e-9)
