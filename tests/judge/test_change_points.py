"""Changes of level in a series of nights: found where they are, and nothing where there
is none."""

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
    choose_level,
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


def series(
    *levels: tuple[float, int], seed: int = 1, sigma: float = 0.01
) -> list[float]:
    """Return nights at these levels (logarithm, number of nights), with noise."""
    values = np.concatenate([np.full(count, level) for level, count in levels])
    noisy = values + sigma * np.random.default_rng(seed).standard_normal(len(values))
    return [float(value) for value in noisy]


def following(correlation: float, seed: int, count: int = 150) -> Floats:
    """Return nights with a spread of 1 %, each of which is like the one before it."""
    values = np.random.default_rng([3, seed]).standard_normal(count)
    for night in range(1, count):
        values[night] = (
            correlation * values[night - 1]
            + math.sqrt(1 - correlation**2) * values[night]
        )
    return 0.01 * values


def positions(found: tuple[LevelShift, ...]) -> list[int]:
    return [one.position for one in found]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "after"), [(0.05, 4), (-0.05, 4), (0.02, 40)])
def test_lasting_change_is_found_at_its_day(size: float, after: int, seed: int) -> None:
    (one,) = find_level_shifts(series((0.0, 60), (size, after), seed=seed), KNOWN)
    assert abs(one.position - 60) <= (1 if abs(size) > 0.02 else 4)
    assert one.difference == pytest.approx(size, abs=0.02)
    assert one.low < one.difference < one.high


def test_change_has_its_size_with_an_interval() -> None:
    (one,) = find_level_shifts(series((0.0, 100), (0.04, 100)), KNOWN)
    assert one.difference == pytest.approx(0.04, abs=0.004)
    assert one.high - one.low == pytest.approx(
        2 * 1.98 * 0.01 * math.sqrt(2 / 100), rel=0.3
    )


def test_stairs_are_found_one_by_one() -> None:
    found = find_level_shifts(
        series((0.0, 40), (0.04, 40), (0.08, 40), (0.02, 40)), KNOWN
    )
    assert positions(found) == pytest.approx([40, 80, 120], abs=1)
    assert [one.difference for one in found] == pytest.approx(
        [0.04, 0.04, -0.06], abs=0.01
    )
    assert [(one.first, one.last) for one in found[1:-1]] == [
        (found[0].position, found[2].position)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "slope"), [(0.08, -0.08), (-0.06, 0.1)])
def test_slow_drift_hides_no_earlier_change(
    seed: int, size: float, slope: float
) -> None:
    """What drifts back lies far apart and follows each other, which is no reason to
    doubt the change."""
    values = np.array(series((0.0, 30), (size, 170), seed=seed, sigma=0.003))
    values[60:] += np.linspace(0, slope, 140)
    first, *later = find_level_shifts(
        values.tolist(), Noise(0.003, 30.0, "nights", measured=True)
    )
    assert first.position == 30
    assert first.difference == pytest.approx(size, abs=0.012)
    assert later
    assert all(
        math.copysign(1, one.difference) == math.copysign(1, slope) for one in later
    )


@pytest.mark.parametrize("bad", [1, 2])
def test_two_bad_days_are_no_level(bad: int) -> None:
    assert find_level_shifts([*series((0.0, 60)), *[0.3] * bad], KNOWN) == ()


def test_three_different_bad_days_are_no_level() -> None:
    assert find_level_shifts([*series((0.0, 120)), 0.05, 0.28, 0.12], KNOWN) == ()
    assert positions(
        find_level_shifts([*series((0.0, 120)), 0.15, 0.16, 0.15, 0.16], KNOWN)
    ) == [120]


def test_single_bad_days_are_no_changes() -> None:
    values = series((0.0, 120))
    for night in (20, 21, 60, 90, 118):
        values[night] += 0.25
    assert find_level_shifts(values, KNOWN) == ()


def test_equal_days_and_ties_are_no_changes() -> None:
    assert find_level_shifts([0.0] * 50, QUIET) == ()
    assert find_level_shifts([0.0, 0.004] * 25, QUIET) == ()


def test_few_days_assumed_noise_or_nan_show_nothing() -> None:
    values = series((0.0, 30), (0.2, 30))
    assert find_level_shifts(values, Noise(0.01, 4.0, "assumed", measured=False)) == ()
    assert find_level_shifts(values[27 : 27 + FEWEST - 1], KNOWN) == ()
    assert find_level_shifts([*values, math.nan], KNOWN) == ()
    assert find_level_shifts([], KNOWN) == ()


def test_uncertain_noise_shows_less() -> None:
    values = series((0.0, 60), (0.03, 8))
    assert find_level_shifts(values, KNOWN)
    assert find_level_shifts(values, Noise(0.01, 3.0, "8 nights", measured=True)) == ()


def test_change_below_the_smallest_is_not_reported() -> None:
    quiet = Noise(5e-4, 100.0, "nights", measured=True)
    assert (
        find_level_shifts(series((0.0, 60), (0.8 * MIN_CHANGE, 60), sigma=5e-4), quiet)
        == ()
    )
    assert (
        find_level_shifts(series((0.0, 60), (0.01, 60), sigma=5e-4), quiet, 0.02) == ()
    )
    assert len(find_level_shifts(series((0.0, 60), (0.01, 60), sigma=5e-4), quiet)) == 1


@pytest.mark.slow
def test_correlated_days_are_no_changes() -> None:
    """Successive differences make such noise look small."""
    fleet = [following(0.5, seed) for seed in range(40)]
    seen = Noise(0.01 * math.sqrt(0.5), 60.0, "nights", measured=True)
    correlation = estimate_fleet_correlation(fleet)
    assert (
        sum(
            bool(find_level_shifts(values, seen, correlation=correlation))
            for values in fleet
        )
        <= 1
    )
    assert sum(bool(find_level_shifts(values, seen)) for values in fleet) > 10


def test_winsorised_day_stays_within_three_sigma() -> None:
    values = np.array(series((0.0, 30)))
    values[10] = 5.0
    drawn = winsorise_series(values, 0.01)
    assert drawn[10] < 0.06
    assert np.all(np.delete(drawn, 10) == np.delete(values, 10))


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="ruptures has no version for this Python"
)
def test_pelt_search_finds_the_same_changes() -> None:
    """Pelt penalises each change equally; without bad days both searches have to
    agree."""
    import ruptures

    values = series((0.0, 70), (0.05, 50), (0.01, 60))
    pelt = (
        ruptures.Pelt(model="l2", min_size=3, jump=1)
        .fit(np.array(values))
        .predict(pen=25 * 0.01**2)
    )
    assert positions(find_level_shifts(values, KNOWN)) == pytest.approx(
        pelt[:-1], abs=1
    )


# --- how many nights there are, and how alike those that follow each other ------------


@pytest.mark.parametrize(
    ("nights", "expected"),
    [(7, 1e-5), (130, 1e-5), (260, 1e-5 / 8), (365, 1e-5 * (130 / 365) ** 3)],
)
def test_level_is_stricter_for_longer_series(nights: int, expected: float) -> None:
    assert choose_level(nights) == pytest.approx(expected)


def test_same_change_is_found_among_few_days_only() -> None:
    assert (
        len(find_level_shifts(series((0.0, 80), (0.0245, 4), sigma=1e-6), KNOWN)) == 1
    )
    assert find_level_shifts(series((0.0, 500), (0.0245, 4), sigma=1e-6), KNOWN) == ()


def test_two_bad_days_before_slow_one_are_no_level() -> None:
    """Drawn in they would be 2.7 sigma on average, which a change of three nights is
    found for."""
    values = series((0.0, 120), sigma=1e-6)
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
    """Also where every second configuration changes, and nights are bad; CAUSES reads
    0, 0.08, 0.26, 0.44."""
    fleet = [following(correlation, seed, 200) for seed in range(60)]
    for values in fleet[::2]:
        values[120:] += 0.03
    for values in fleet:
        values[::29] += 0.2
    assert low <= estimate_fleet_correlation(fleet) <= high


def test_few_or_equal_days_have_no_correlation() -> None:
    assert estimate_fleet_correlation([]) == 0
    assert (
        estimate_fleet_correlation([following(0.5, seed, 19) for seed in range(50)])
        == 0
    )
    assert estimate_fleet_correlation([np.zeros(50)] * 9) == 0
    assert estimate_fleet_correlation([np.array([math.nan] * 50)] * 9) == 0


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9])
def test_inflation_is_the_variance_of_a_correlated_mean(correlation: float) -> None:
    counts = np.array([1.0, 4.0, 30.0])
    exact = []
    for count in counts.astype(int):
        nights = np.arange(count)
        exact.append(
            float(np.mean(correlation ** np.abs(nights[:, None] - nights)) * count)
        )
    assert compute_variance_inflation(counts, correlation) == pytest.approx(exact)
