"""A slow drift is found relative to the beginning of a series.

Quiet series, bad days and repaired drifts are not drifts.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.judge.change_points import ANCHOR, find_drift

KNOWN = Noise(0.01, 100.0, "nights", measured=True)


def make_days(
    count: int, seed: int = 1
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 0.01 * np.random.default_rng(seed).standard_normal(count)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("seed", range(2))
def test_drift_of_a_twentieth_percent_per_day_is_found(seed: int, sign: int) -> None:
    values = make_days(120, seed) + sign * 5e-4 * np.maximum(np.arange(120) - 40, 0)
    drift = find_drift(values.tolist(), KNOWN)
    assert drift is not None
    assert drift.difference == pytest.approx(sign * 0.038, abs=0.02)
    assert drift.low < drift.difference < drift.high
    assert 20 < drift.position < 110


@pytest.mark.parametrize("seed", range(4))
def test_days_without_drift_report_none(seed: int) -> None:
    assert find_drift(make_days(200, seed).tolist(), KNOWN) is None


def test_isolated_bad_days_are_no_drift() -> None:
    values = make_days(150)
    values[::25] += 0.3
    assert find_drift(values.tolist(), KNOWN) is None


def test_drift_is_not_reported_after_the_step_time_has_recovered() -> None:
    values = make_days(200) + np.where(
        (np.arange(200) > 40) & (np.arange(200) < 120), 0.03, 0.0
    )
    assert find_drift(values[:110].tolist(), KNOWN) is not None
    assert find_drift(values.tolist(), KNOWN) is None


def test_drift_below_one_percent_is_not_reported() -> None:
    quiet = Noise(0.002, 100.0, "nights", measured=True)
    assert (
        find_drift((make_days(100) / 5 + np.linspace(0, 0.008, 100)).tolist(), quiet)
        is None
    )


def test_few_days_assumed_noise_or_nan_have_no_drift() -> None:
    values = (make_days(80) + np.linspace(0, 0.2, 80)).tolist()
    assert find_drift(values, KNOWN) is not None
    assert find_drift(values, Noise(0.01, 4.0, "assumed", measured=False)) is None
    assert find_drift(values[: ANCHOR + 6], KNOWN) is None
    assert find_drift([*values, math.nan], KNOWN) is None
    assert find_drift([0.0] * 80, Noise(1e-4, 100.0, "nights", measured=True)) is None
