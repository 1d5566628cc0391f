"""Run-to-run noise: estimates, pooling, and the fallback without measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.builders import evidence, measurement, nights

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.judge import noise
from pytest_llmbench.judge.decide import judge


def make_series(sigma: float, days: int, seed: int = 0) -> list[float]:
    values: list[float] = (
        math.log(7) + sigma * np.random.default_rng(seed).standard_normal(days)
    ).tolist()
    return values


def test_fewer_than_eight_days_measure_no_noise() -> None:
    assert noise.estimate_from_daily_runs(make_series(0.01, 7)) is None
    few = noise.estimate_from_daily_runs(make_series(0.01, 8))
    assert few is not None
    assert few.degrees_of_freedom == pytest.approx(2.8)
    assert few.measured
    many = noise.estimate_from_daily_runs(make_series(0.01, 20))
    assert many is not None
    assert many.degrees_of_freedom == pytest.approx(7.6)


def test_level_shift_or_bad_day_hardly_changes_the_noise() -> None:
    quiet = make_series(0.005, 20)
    shifted = [value + (0.1 if day >= 10 else 0.0) for day, value in enumerate(quiet)]
    spiked = [value + (0.3 if day == 5 else 0.0) for day, value in enumerate(quiet)]
    before = noise.estimate_from_daily_runs(quiet)
    for changed in (shifted, spiked):
        after = noise.estimate_from_daily_runs(changed)
        assert before is not None
        assert after is not None
        assert after.sigma < 1.6 * before.sigma


def test_equal_days_have_the_smallest_noise() -> None:
    equal = noise.estimate_from_daily_runs([math.log(7)] * 20)
    assert equal is not None
    assert equal.sigma == noise.MIN_SIGMA


def test_noise_of_three_repeats_has_two_degrees_of_freedom() -> None:
    assert noise.estimate_from_repeats([7.0], "repeats") is None
    repeats = noise.estimate_from_repeats([7.0, 7.07, 7.14], "repeats")
    assert repeats is not None
    assert repeats.degrees_of_freedom == 2
    assert repeats.sigma == pytest.approx(np.std(np.log([7.0, 7.07, 7.14]), ddof=1))
    assert repeats.source == "3 repeats"


def test_estimates_are_pooled_by_degrees_of_freedom() -> None:
    pooled = noise.pool(
        [
            Noise(0.01, 3.0, "a", measured=True),
            None,
            Noise(0.02, 1.0, "b", measured=True),
        ]
    )
    assert pooled is not None
    assert pooled.sigma**2 == pytest.approx((3 * 0.01**2 + 0.02**2) / 4)
    assert (pooled.degrees_of_freedom, pooled.source) == (4.0, "a and b")
    assert noise.pool([None, None]) is None


@pytest.mark.parametrize(("freedom", "sigma"), [(4.0, 0.01), (30.0, 0.02)])
def test_other_configurations_estimate_the_noise(freedom: float, sigma: float) -> None:
    random = np.random.default_rng(5)
    variances = sigma**2 * freedom / random.chisquare(freedom, 2000)
    degrees = 7.6
    estimates = [
        Noise(
            math.sqrt(variance * random.chisquare(degrees) / degrees),
            degrees,
            "nights",
            measured=True,
        )
        for variance in variances
    ]
    prior = noise.estimate_from_fleet(estimates)
    assert prior is not None
    assert prior.sigma == pytest.approx(sigma, rel=0.05)
    assert prior.degrees_of_freedom == pytest.approx(freedom, rel=0.3)


def test_noise_prior_needs_estimates_of_at_least_five_configurations() -> None:
    estimate = Noise(0.01, 7.6, "20 days", measured=True)
    assert noise.estimate_from_fleet([estimate] * 4) is None
    prior = noise.estimate_from_fleet([estimate] * 5)
    assert prior is not None
    assert prior.degrees_of_freedom == pytest.approx(5 * 7.6)
    assert prior.sigma == pytest.approx(0.01, rel=0.1)


def test_noisier_configuration_keeps_its_noise() -> None:
    others, assumed = (
        Noise(0.005, 30.0, "40 configurations", measured=True),
        noise.assume_noise(0.01),
    )
    alike, loud = (
        Noise(sigma, 7.6, "20 days", measured=True) for sigma in (0.006, 0.03)
    )
    assert noise.with_prior(loud, others, 0.01) == loud
    assert noise.with_prior(loud, assumed, 0.01) == loud
    pooled = noise.with_prior(alike, others, 0.01)
    assert pooled.degrees_of_freedom == pytest.approx(37.6)
    assert 0.005 < pooled.sigma < 0.006


def test_configuration_without_measured_noise_gets_the_larger_of_fleet_and_assumed_noise() -> (
    None
):
    others, assumed = (
        Noise(0.005, 30.0, "40 configurations", measured=True),
        noise.assume_noise(0.01),
    )
    assert noise.with_prior(None, others, 0.001) == others
    assert noise.with_prior(None, others, 0.01) == assumed
    assert noise.with_prior(None, assumed, 0.01) == assumed


@pytest.mark.parametrize(("own", "expected"), [(0.002, 0.002), (0.0, noise.MIN_SIGMA)])
def test_configuration_keeps_its_measured_noise_if_the_fleet_has_zero_noise(
    own: float, expected: float
) -> None:
    """Coarsely printed step times may all be equal."""
    quiet = Noise(0.0, 100.0, "10 configurations", measured=True)
    assert (
        noise.with_prior(Noise(own, 4.0, "5 days", measured=True), quiet, 0.01).sigma
        == expected
    )


@pytest.mark.parametrize(
    ("sigma", "noisy"), [(0.002, False), (0.008, False), (0.04, True), (0.1, True)]
)
def test_noise_measured_on_five_days_is_preferred_to_smaller_assumed_noise(
    sigma: float, noisy: bool
) -> None:
    few = noise.estimate_from_few_days(make_series(sigma, 5))
    assert few is not None
    assert noise.is_noisier(few, noise.assume_noise(0.01)) is noisy


def test_rough_noise_is_estimated_from_two_to_seven_days() -> None:
    assert [
        noise.estimate_from_few_days(make_series(0.02, days)) is None
        for days in (0, 1, 2, 7, 8)
    ] == [
        True,
        True,
        False,
        False,
        True,
    ]


def test_two_noisy_days_widen_the_interval_and_are_noted() -> None:
    current = measurement(7.325 * 1.02)
    quiet = judge(evidence(current, *nights(7.30, 7.35, first=1)))
    noisy = judge(evidence(current, *nights(7.0, 7.7, first=1)))
    assert quiet.estimate is not None
    assert noisy.estimate is not None
    assert noisy.estimate.high - noisy.estimate.low > 2 * (
        quiet.estimate.high - quiet.estimate.low
    )
    assert [
        "noisier" in [note.code for note in judgement.notes]
        for judgement in (quiet, noisy)
    ] == [False, True]
