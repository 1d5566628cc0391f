"""A shift that most configurations share is found; quiet days report none.

Also the adjustment of p-values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats
from support.builders import KEY, evidence, measurement, nights, noisy
from support.estimates import make_estimate

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import Estimate, Noise
from pytest_llmbench.core.run_records import Problem
from pytest_llmbench.core.statements import SharedShift
from pytest_llmbench.judge import noise
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.run_selection import list_previous_daily_runs
from pytest_llmbench.judge.shared_shift import (
    ConfigurationShift,
    adjust_p_values,
    find_shared_shift,
    measure_shift,
)
from pytest_llmbench.report.wording import phrase

KEYS = [replace(KEY, gpus=gpus) for gpus in range(1, 81)]


def estimate(difference: float, noise: Noise, within: float = 0.0) -> Estimate:
    """Make the estimate of one run against an exact baseline."""
    error = noise.sigma if noise.measured else math.hypot(noise.sigma, within)
    freedom = noise.degrees_of_freedom
    return make_estimate(
        difference, standard_error=error, degrees_of_freedom=freedom, noise=noise
    )


def make_fleet(
    differences: Sequence[float],
    older: Sequence[float] = (0.0,) * 7,
    sigma: float = 0.004,
    with_older: int = 80,
) -> list[ConfigurationShift]:
    """Make configurations with a current difference to the baseline.

    The first `with_older` of them have last runs.
    """
    known = Noise(sigma, 20.0, "nights", measured=True)
    return [
        ConfigurationShift(
            key,
            estimate(difference, known),
            tuple(older) if position < with_older else (),
        )
        for position, (key, difference) in enumerate(
            zip(KEYS, differences, strict=False)
        )
    ]


def find_existing_shift(configurations: Sequence[ConfigurationShift]) -> SharedShift:
    """Return the shared shift, which must exist."""
    shared = find_shared_shift(configurations)
    assert shared is not None
    return shared


def test_slowdown_shared_by_most_configurations_is_reported_with_its_size() -> None:
    shared = find_existing_shift(make_fleet([0.03] * 14 + [0.0] * 2))
    assert shared.configurations == tuple(KEYS[:14])
    assert (shared.of, shared.against) == (16, "their last runs")
    assert shared.low < shared.shift < shared.high
    assert shared.shift == pytest.approx(math.expm1(0.03 * 14 / 16))
    assert phrase(shared) == (
        "14 of 16 configurations are slower than their last runs; all 16 together by 2.7 % (2.2 to 3.1 %): "
        "a cluster-wide change (driver, image, fabric, power, file system)"
    )


def test_speed_up_shared_by_all_configurations_is_reported() -> None:
    shared = find_existing_shift(make_fleet([-0.03] * 16))
    assert shared.shift == pytest.approx(math.expm1(-0.03))
    assert phrase(shared).startswith(
        "16 of 16 configurations are faster than their last runs by 3.0 % (2.8 to 3.1 %): a"
    )


@pytest.mark.parametrize(
    "differences",
    [
        [0.03, 0.03],
        [0.03] * 8 + [0.0] * 8,
        [0.2] + [0.0] * 15,
        [0.274, 0.024, 0.033, 0.0],
        [0.009] * 16,
        [0.0] * 16,
        [],
    ],
    ids=["two", "half", "one", "unlike", "small", "nothing", "empty"],
)
def test_shift_of_a_minority_is_not_shared(differences: list[float]) -> None:
    assert find_shared_shift(make_fleet(differences, sigma=0.001)) is None


def test_shift_below_one_percent_is_not_reported() -> None:
    assert find_shared_shift(make_fleet([math.log(1.0099)] * 16, sigma=0.001)) is None
    assert find_existing_shift(
        make_fleet([math.log(1.0101)] * 16, sigma=0.001)
    ).shift == pytest.approx(0.0101)


def test_shift_is_measured_against_the_last_runs() -> None:
    assert find_shared_shift(make_fleet([0.06] * 16, older=(0.06,) * 3)) is None
    assert find_existing_shift(
        make_fleet([0.06] * 16, older=(0.02,) * 3)
    ).shift == pytest.approx(math.expm1(0.04))


def test_shared_shift_is_measured_against_the_median_of_the_last_seven_runs() -> None:
    assert (
        find_shared_shift(
            make_fleet([0.03] * 16, older=(0.0, 0.03, 0.0, 0.03, 0.03, 0.0, 0.03))
        )
        is None
    )


@pytest.mark.parametrize(
    ("with_older", "of", "against"),
    [
        (16, 16, "their last runs"),
        (8, 8, "their last runs"),
        (7, 16, "their baselines"),
        (0, 16, "their baselines"),
    ],
)
def test_shared_shift_never_mixes_last_runs_and_baselines(
    with_older: int, of: int, against: str
) -> None:
    shared = find_existing_shift(make_fleet([0.05] * 16, with_older=with_older))
    assert (shared.of, len(shared.configurations), shared.against) == (of, of, against)
    assert against in phrase(shared)
    assert ("cluster-wide change" in phrase(shared)) is (against == "their last runs")


def test_shared_shift_uses_baselines_if_too_few_configurations_have_last_runs() -> None:
    assert find_existing_shift(make_fleet([0.08] * 4, with_older=2)).of == 4


@pytest.mark.parametrize("count", [1, 4])
def test_shared_shift_interval_includes_the_error_of_the_median_of_last_runs(
    count: int,
) -> None:
    """The claimed error is slightly larger: a median of few values is nearly as
    efficient as a mean."""
    shared = find_existing_shift(
        make_fleet([0.04] * 16, older=(0.0,) * count, sigma=0.004)
    )
    half_width = (math.log1p(shared.high) - math.log1p(shared.low)) / 2
    claimed = half_width / stats.t.ppf(0.95, 15) * math.sqrt(16) / 0.004
    values = np.random.default_rng(count).standard_normal((20000, count + 1))
    actual = float(np.std(values[:, 0] - np.median(values[:, 1:], axis=1)))
    assert 0.99 < claimed / actual < 1.05


def test_configuration_with_equal_printed_times_does_not_dominate_the_shared_shift() -> (
    None
):
    """Equal printed values look noiseless."""
    several = make_fleet([0.03] * 15)
    exact = ConfigurationShift(
        KEYS[15],
        estimate(0.012, Noise(1e-5, 20.0, "copies", measured=True)),
        (0.0,) * 7,
    )
    assert find_existing_shift([*several, exact]).shift > 0.02


# --- quiet days -----------------------------------------------------------------------


def make_quiet_fleet(
    generator: np.random.Generator, count: int, days_before: int
) -> list[ConfigurationShift]:
    """Make a fleet without changes.

    Run-to-run noise of 0.3 to 1.5 %, estimated as for verdicts.
    """
    sigmas = generator.uniform(0.003, 0.015, count)
    series = [generator.normal(0, sigma, days_before) for sigma in sigmas]
    estimates = [
        noise.estimate_from_daily_runs(estimated.tolist()) for estimated in series
    ]
    known = [estimated or noise.assume_noise(0.01) for estimated in estimates]
    return [
        ConfigurationShift(
            key,
            estimate(generator.normal(0, sigma), estimated, 0.002),
            tuple(last[-7:].tolist()),
        )
        for key, sigma, estimated, last in zip(
            KEYS, sigmas, known, series, strict=False
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("configurations", "days_before", "trials"),
    [(3, 20, 1000), (7, 4, 1000), (16, 1, 300)],
)
def test_days_without_a_shift_report_no_shared_shift(
    configurations: int, days_before: int, trials: int
) -> None:
    """At most one alarm in 1000; a level of 5 % for each of three configurations alone
    would raise 14."""
    generator = np.random.default_rng(configurations)
    alarms = sum(
        find_shared_shift(make_quiet_fleet(generator, configurations, days_before))
        is not None
        for _ in range(trials)
    )
    assert alarms <= trials / 1000


# --- from judgements ------------------------------------------------------------------


def test_shift_is_computed_from_judgement_and_last_runs() -> None:
    older = nights(*(7.325 * 1.01,) * 9)
    given_evidence = evidence(noisy(7.325 * 1.04), *older)
    judgement = judge(given_evidence)
    assert judgement.measurement is not None
    shift = measure_shift(
        judgement, list_previous_daily_runs([judgement.measurement], given_evidence)
    )
    assert shift is not None
    assert shift.key == KEY
    assert shift.older == pytest.approx([math.log(1.01)] * 7)
    assert shift.estimate is judgement.estimate


def test_shift_of_a_configuration_uses_its_seven_newest_valid_runs() -> None:
    judgement = judge(evidence(noisy(7.325)))
    diverged = Problem(Reason.DIVERGED, "loss is nan")
    older = [measurement(7.325 * factor) for factor in range(1, 10)]
    older[8] = measurement(99.0, problems=(diverged,))
    shift = measure_shift(judgement, [measurement(None), *older])
    assert shift is not None
    assert shift.older == pytest.approx([math.log(factor) for factor in range(2, 9)])


@pytest.mark.parametrize(
    "verdict", [Verdict.INVALID, Verdict.MISSING, Verdict.NOT_COMPARABLE]
)
def test_verdict_without_a_valid_run_has_no_shift(verdict: Verdict) -> None:
    assert (
        measure_shift(replace(judge(evidence(noisy(7.325))), verdict=verdict), [])
        is None
    )


def test_difference_of_unknown_error_is_no_shared_shift() -> None:
    judgement = judge(evidence(noisy(7.325)))
    assert judgement.estimate is not None
    assert measure_shift(replace(judgement, estimate=None), []) is None
    for bad in (
        {"threshold_only": True},
        {"standard_error": 0.0},
        {"standard_error": math.nan},
        {"difference": math.nan},
    ):
        assert (
            measure_shift(
                replace(judgement, estimate=replace(judgement.estimate, **bad)), []
            )
            is None
        )


# --- laws -----------------------------------------------------------------------------

# --- many warnings --------------------------------------------------------------------


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=80))
def test_adjusted_p_values_follow_benjamini_and_hochberg(values: list[float]) -> None:
    adjusted = adjust_p_values(dict(zip(KEYS, values, strict=False)))
    assert list(adjusted.values()) == pytest.approx(
        stats.false_discovery_control(values)
    )
    assert list(adjusted) == KEYS[: len(values)]


def test_missing_p_values_do_not_count() -> None:
    values: dict[Key, float | None] = {KEYS[0]: 0.04, KEYS[1]: None, KEYS[2]: math.nan}
    assert adjust_p_values(values) == {KEYS[0]: 0.04}
    assert adjust_p_values({}) == {}
