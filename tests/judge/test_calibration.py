"""Short form of benchmarks/statistics/calibration.py: error rates on simulated fleets.

The seed is fixed.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from calibration import MARGIN, ONE, THREE, Cell, added, fleet_tally, simulated_fleet
from fleet import Fleet, expected, runs
from msgspec.structs import replace
from procedures import judged
from scenarios import RUNS, SCENARIOS, cases

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.judgement_records import Noise

SEED = 11
WITHIN_RUN = "margin test, within-run error only"


def count_outcomes(
    procedure: str, change: float, fleets: int, scenario: str = "fleet"
) -> Counter[str]:
    tallies = (
        fleet_tally(number, (change,), scenario, SEED, (procedure,))
        for number in range(fleets)
    )
    return added(tallies)[Cell(procedure, change)]


def compute_share(counts: Counter[str], outcome: str) -> float:
    return 100 * counts[outcome] / counts[""]


# --- the engine -----------------------------------------------------------------------


@pytest.mark.slow
def test_unchanged_runs_are_no_regression() -> None:
    counts = count_outcomes(ONE, 0.0, 10)
    assert counts[""] == 800
    assert counts["REGRESSION"] == 0
    assert compute_share(counts, "failed") <= 0.15
    assert compute_share(counts, "PASS") > 90


@pytest.mark.slow
def test_ten_percent_slowdown_never_passes() -> None:
    counts = count_outcomes(ONE, 0.10, 5)
    assert counts["PASS"] == 0
    assert compute_share(counts, "REGRESSION") > 90


@pytest.mark.slow
def test_three_runs_distinguish_ten_percent_slowdown_from_none_in_98_percent() -> None:
    assert compute_share(count_outcomes(THREE, 0.0, 2), "PASS") > 99
    counts = count_outcomes(THREE, 0.10, 2)
    assert counts["PASS"] == 0
    assert compute_share(counts, "REGRESSION") >= 98


# --- kinds of baselines ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario", ["fleet", "single", "recorded", "published", "hard"]
)
def test_run_exactly_at_the_tolerance_passes_in_at_most_seven_percent(
    scenario: str,
) -> None:
    assert 1 <= compute_share(count_outcomes(ONE, MARGIN, 4, scenario), "PASS") <= 7


@pytest.mark.slow
def test_ignoring_run_to_run_noise_would_pass_slow_runs() -> None:
    """A gate that treats the steps of one run as its sample passes far more runs at the
    margin. This shows that the test above can fail."""
    assert compute_share(count_outcomes(WITHIN_RUN, MARGIN, 3), "PASS") > 15


@pytest.mark.slow
def test_detectable_slowdown_is_detected_in_80_percent() -> None:
    detected = []
    for number in range(3):
        truth, simulated = simulated_fleet(number, SEED)
        estimates = [
            judged(case).estimate
            for case in cases(SCENARIOS["fleet"], truth, simulated, 0.0)
        ]
        detectable = np.array(
            [estimate.detectable for estimate in estimates if estimate]
        )
        slowed = cases(SCENARIOS["fleet"], truth, simulated, detectable)
        others = [
            dataclasses.replace(case, attempts=case.attempts[1:]) for case in slowed
        ]
        detected += [judged(case).verdict is Verdict.REGRESSION for case in others]
    assert len(detected) == 240
    assert np.mean(detected) == pytest.approx(0.80, abs=0.06)


def test_standard_error_falls_with_the_root_of_runs() -> None:
    random = np.random.default_rng(SEED)
    quiet = Fleet(*(np.full(20, value) for value in (5.0, 0.002, 0.0, 0.0, 0.01)))
    known = Noise(0.01, 1e9, "known", measured=True)
    errors = []
    for case in cases(
        SCENARIOS["fleet"], expected(quiet, random), runs(quiet, RUNS, random), 0.0
    ):
        informed = dataclasses.replace(
            case, evidence=replace(case.evidence, measurements=(), prior=known)
        )
        estimates = [judged(informed, attempts).estimate for attempts in (1, 2, 3)]
        errors.append(
            [
                estimate.standard_error * math.sqrt(estimate.runs)
                for estimate in estimates
                if estimate
            ]
        )
    # one in 100 cases has far noisier repeats
    assert np.median(errors, axis=0) == pytest.approx([0.01] * 3, rel=1e-4)


@pytest.mark.slow
def test_five_recorded_runs_of_one_day_count_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compute_share(count_outcomes(ONE, MARGIN, 4, "one-night"), "PASS") <= 7
    monkeypatch.setattr(
        "pytest_llmbench.judge.estimate.count_recorded_groups",
        lambda baseline: baseline.recording.runs,
    )
    assert compute_share(count_outcomes(ONE, MARGIN, 4, "one-night"), "PASS") > 9


@pytest.mark.slow
def test_run_with_one_forgiven_stall_still_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = count_outcomes(ONE, 0.0, 2, "hiccup")
    assert compute_share(counts, "failed") <= 8
    assert counts["REGRESSION"] == 0
    monkeypatch.setattr("pytest_llmbench.judge.run_selection.STALL_MEDIANS", 9.0)
    assert compute_share(count_outcomes(ONE, 0.0, 2, "hiccup"), "failed") > 90
