"""Level shifts in a series of daily runs are found at their day, and only there."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.judge.change_points import (
    FEWEST,
    MIN_CHANGE,
    LevelShift,
    _compute_weights,
    _list_bounds,
    _multiply_weights,
    choose_false_alarm_probability,
    find_level_shifts,
    winsorise_series,
)
from pytest_llmbench.judge.noise import (
    compute_variance_inflation,
    estimate_fleet_correlation,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

KNOWN = Noise(0.01, 100.0, "nights", measured=True)
QUIET = Noise(1e-4, 100.0, "nights", measured=True)


def make_series(
    *levels: tuple[float, int], seed: int = 1, sigma: float = 0.01
) -> list[float]:
    """Make days at these levels (logarithm, number of days), with noise."""
    values = np.concatenate([np.full(count, level) for level, count in levels])
    noisy = values + sigma * np.random.default_rng(seed).standard_normal(len(values))
    return [float(value) for value in noisy]


def make_correlated(correlation: float, seed: int, count: int = 150) -> Floats:
    """Make days with a spread of 1 % and a lag-1 correlation."""
    values = np.random.default_rng([3, seed]).standard_normal(count)
    for day in range(1, count):
        values[day] = (
            correlation * values[day - 1] + math.sqrt(1 - correlation**2) * values[day]
        )
    return 0.01 * values


def list_positions(shifts: tuple[LevelShift, ...]) -> list[int]:
    return [shift.position for shift in shifts]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "after"), [(0.05, 4), (-0.05, 4), (0.02, 40)])
def test_lasting_change_is_found_at_its_day(size: float, after: int, seed: int) -> None:
    (shift,) = find_level_shifts(
        make_series((0.0, 60), (size, after), seed=seed), KNOWN
    )
    assert abs(shift.position - 60) <= (1 if abs(size) > 0.02 else 4)
    assert shift.difference == pytest.approx(size, abs=0.02)
    assert shift.low < shift.difference < shift.high


def test_level_shift_is_estimated_with_its_size_and_interval() -> None:
    (shift,) = find_level_shifts(make_series((0.0, 100), (0.04, 100)), KNOWN)
    assert shift.difference == pytest.approx(0.04, abs=0.004)
    assert shift.high - shift.low == pytest.approx(
        2 * 1.98 * 0.01 * math.sqrt(2 / 100), rel=0.3
    )


def test_successive_level_shifts_are_found_separately() -> None:
    shifts = find_level_shifts(
        make_series((0.0, 40), (0.04, 40), (0.08, 40), (0.02, 40)), KNOWN
    )
    assert list_positions(shifts) == pytest.approx([40, 80, 120], abs=1)
    assert [shift.difference for shift in shifts] == pytest.approx(
        [0.04, 0.04, -0.06], abs=0.01
    )
    assert [(shift.first, shift.last) for shift in shifts[1:-1]] == [
        (shifts[0].position, shifts[2].position)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "slope"), [(0.08, -0.08), (-0.06, 0.1)])
def test_slow_drift_hides_no_earlier_change(
    seed: int, size: float, slope: float
) -> None:
    """Deviations that drift back are large and correlated, but do not invalidate the
    change."""
    values = np.array(make_series((0.0, 30), (size, 170), seed=seed, sigma=0.003))
    values[60:] += np.linspace(0, slope, 140)
    first, *later = find_level_shifts(
        values.tolist(), Noise(0.003, 30.0, "nights", measured=True)
    )
    assert first.position == 30
    assert first.difference == pytest.approx(size, abs=0.012)
    assert later
    assert all(
        math.copysign(1, shift.difference) == math.copysign(1, slope) for shift in later
    )


@pytest.mark.parametrize("bad", [1, 2])
def test_two_consecutive_bad_days_are_no_level_shift(bad: int) -> None:
    assert find_level_shifts([*make_series((0.0, 60)), *[0.3] * bad], KNOWN) == ()


def test_three_bad_days_of_different_size_are_no_level_shift() -> None:
    assert find_level_shifts([*make_series((0.0, 120)), 0.05, 0.28, 0.12], KNOWN) == ()
    assert list_positions(
        find_level_shifts([*make_series((0.0, 120)), 0.15, 0.16, 0.15, 0.16], KNOWN)
    ) == [120]


def test_isolated_bad_days_are_no_level_shifts() -> None:
    values = make_series((0.0, 120))
    for day in (20, 21, 60, 90, 118):
        values[day] += 0.25
    assert find_level_shifts(values, KNOWN) == ()


def test_constant_or_alternating_days_show_no_level_shift() -> None:
    assert find_level_shifts([0.0] * 50, QUIET) == ()
    assert find_level_shifts([0.0, 0.004] * 25, QUIET) == ()


def test_few_days_assumed_noise_or_nan_yield_no_level_shift() -> None:
    values = make_series((0.0, 30), (0.2, 30))
    assert find_level_shifts(values, Noise(0.01, 4.0, "assumed", measured=False)) == ()
    assert find_level_shifts(values[27 : 27 + FEWEST - 1], KNOWN) == ()
    assert find_level_shifts([*values, math.nan], KNOWN) == ()
    assert find_level_shifts([], KNOWN) == ()


def test_uncertain_noise_raises_the_detectable_slowdown() -> None:
    values = make_series((0.0, 60), (0.03, 8))
    assert find_level_shifts(values, KNOWN)
    assert find_level_shifts(values, Noise(0.01, 3.0, "8 days", measured=True)) == ()


def test_level_shift_below_the_minimum_size_is_not_reported() -> None:
    quiet = Noise(5e-4, 100.0, "nights", measured=True)
    assert (
        find_level_shifts(
            make_series((0.0, 60), (0.8 * MIN_CHANGE, 60), sigma=5e-4), quiet
        )
        == ()
    )
    assert (
        find_level_shifts(make_series((0.0, 60), (0.01, 60), sigma=5e-4), quiet, 0.02)
        == ()
    )
    assert (
        len(find_level_shifts(make_series((0.0, 60), (0.01, 60), sigma=5e-4), quiet))
        == 1
    )


@pytest.mark.slow
def test_random_fluctuation_of_correlated_days_is_no_level_shift() -> None:
    """Successive differences underestimate such noise."""
    fleet = [make_correlated(0.5, seed) for seed in range(40)]
    apparent = Noise(0.01 * math.sqrt(0.5), 60.0, "nights", measured=True)
    correlation = estimate_fleet_correlation(fleet)
    assert (
        sum(
            bool(find_level_shifts(values, apparent, correlation=correlation))
            for values in fleet
        )
        <= 1
    )
    assert sum(bool(find_level_shifts(values, apparent)) for values in fleet) > 10


def test_winsorised_day_stays_within_three_sigma() -> None:
    values = np.array(make_series((0.0, 30)))
    values[10] = 5.0
    winsorised = winsorise_series(values, 0.01)
    assert winsorised[10] < 0.06
    assert np.all(np.delete(winsorised, 10) == np.delete(values, 10))


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="ruptures has no version for this Python"
)
def test_pelt_search_finds_the_same_changes() -> None:
    """Pelt penalises each change equally; without bad days both searches must agree."""
    import ruptures

    values = make_series((0.0, 70), (0.05, 50), (0.01, 60))
    pelt = (
        ruptures.Pelt(model="l2", min_size=3, jump=1)
        .fit(np.array(values))
        .predict(pen=25 * 0.01**2)
    )
    assert list_positions(find_level_shifts(values, KNOWN)) == pytest.approx(
        pelt[:-1], abs=1
    )


# --- length and correlation of the series ---------------------------------------------


@pytest.mark.parametrize(
    ("days", "expected"),
    [(7, 1e-5), (130, 1e-5), (260, 1e-5 / 8), (365, 1e-5 * (130 / 365) ** 3)],
)
def test_false_alarm_level_is_stricter_for_longer_series(
    days: int, expected: float
) -> None:
    assert choose_false_alarm_probability(days) == pytest.approx(expected)


def test_level_shift_of_a_size_found_in_84_days_is_not_found_in_504() -> None:
    assert (
        len(find_level_shifts(make_series((0.0, 80), (0.0245, 4), sigma=1e-6), KNOWN))
        == 1
    )
    assert (
        find_level_shifts(make_series((0.0, 500), (0.0245, 4), sigma=1e-6), KNOWN) == ()
    )


def test_two_bad_days_and_a_slightly_slow_day_are_no_level_shift() -> None:
    """Winsorised, the three days are 2.7 sigma slower on average, which would be enough
    for a level of three days."""
    values = make_series((0.0, 120), sigma=1e-6)
    values[60:63] = [0.25, 0.25, 0.022]
    assert find_level_shifts(values, KNOWN) == ()
    values[60:63] = [0.029, 0.028, 0.027]
    assert len(find_level_shifts(values, KNOWN)) == 2


@pytest.mark.parametrize(
    ("correlation", "low", "high"),
    [(0.0, 0.0, 0.0), (0.1, 0.05, 0.12), (0.5, 0.38, 0.48)],
)
def test_correlation_of_days_is_estimated_from_a_fleet(
    correlation: float, low: float, high: float
) -> None:
    """Also if every second configuration changes and some days are bad. CAUSES.md
    measures 0, 0.08, 0.26 and 0.44."""
    fleet = [make_correlated(correlation, seed, 200) for seed in range(60)]
    for values in fleet[::2]:
        values[120:] += 0.03
    for values in fleet:
        values[::29] += 0.2
    assert low <= estimate_fleet_correlation(fleet) <= high


def test_few_or_equal_days_have_zero_correlation() -> None:
    assert estimate_fleet_correlation([]) == 0
    assert (
        estimate_fleet_correlation(
            [make_correlated(0.5, seed, 19) for seed in range(50)]
        )
        == 0
    )
    assert estimate_fleet_correlation([np.zeros(50)] * 9) == 0
    assert estimate_fleet_correlation([np.array([math.nan] * 50)] * 9) == 0


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9])
def test_variance_inflation_equals_the_exact_value_for_a_mean_of_correlated_days(
    correlation: float,
) -> None:
    counts = np.array([1.0, 4.0, 30.0])
    exact = []
    for count in counts.astype(int):
        days = np.arange(count)
        exact.append(
            float(np.mean(correlation ** np.abs(days[:, None] - days)) * count)
        )
    assert compute_variance_inflation(counts, correlation) == pytest.approx(exact)


@pytest.mark.parametrize("count", [6, 7, 8, 50])
def test_each_segment_is_weighted_by_its_length(count: int) -> None:
    starts, ends = _list_bounds(count)
    sums = np.random.default_rng(count).random((len(starts), len(ends)))
    weights = _compute_weights(count, 0.3)
    lengths = np.maximum(ends - starts[:, np.newaxis], 0)
    expected = sums * weights[lengths]
    _multiply_weights(sums, weights)
    assert (sums == expected).all()
