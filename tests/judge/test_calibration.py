"""The short form of benchmarks/calibration.py: how often the engine is wrong on simulated fleets, with a fixed seed."""

from __future__ import annotations

from collections import Counter

import pytest
from calibration import MARGIN, ONE, THREE, Cell, added, fleet_tally

SEED = 11


def counted(procedure: str, change: float, fleets: int, scenario: str = "fleet") -> Counter[str]:
    tallies = (fleet_tally(number, (change,), scenario, SEED, (procedure,)) for number in range(fleets))
    return added(tallies)[Cell(procedure, change)]


def share(counts: Counter[str], what: str) -> float:
    return 100 * counts[what] / counts[""]


# --- the engine -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_unchanged_runs_are_no_regression() -> None:
    counts = counted(ONE, 0.0, 10)
    assert counts[""] == 800
    assert counts["REGRESSION"] == 0
    assert share(counts, "failed") <= 0.15
    assert share(counts, "PASS") > 90


@pytest.mark.slow
def test_ten_percent_slowdown_never_passes() -> None:
    counts = counted(ONE, 0.10, 5)
    assert counts["PASS"] == 0
    assert share(counts, "REGRESSION") > 90


@pytest.mark.slow
def test_three_runs_decide_nearly_every_case() -> None:
    assert share(counted(THREE, 0.0, 2), "PASS") > 99
    counts = counted(THREE, 0.10, 2)
    assert counts["PASS"] == 0
    assert share(counts, "REGRESSION") >= 98


# --- kinds of baselines -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["fleet", "recorded", "published"])
def test_run_at_the_margin_passes_in_five_percent(scenario: str) -> None:
    assert 1 <= share(counted(ONE, MARGIN, 4, scenario), "PASS") <= 7


@pytest.mark.slow
def test_five_recorded_runs_of_one_day_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share(counted(ONE, MARGIN, 4, "one-night"), "PASS") <= 7
    monkeypatch.setattr(
        "pytest_llmbench.judge.estimate.count_recorded_groups", lambda baseline: baseline.recording.runs
    )
    assert share(counted(ONE, MARGIN, 4, "one-night"), "PASS") > 9


@pytest.mark.slow
def test_forgiving_one_stall_keeps_runs_passing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = counted(ONE, 0.0, 2, "hiccup")
    assert share(counts, "failed") <= 8
    assert counts["REGRESSION"] == 0
    monkeypatch.setattr("pytest_llmbench.judge.run_selection.LARGE", 9.0)
    assert share(counted(ONE, 0.0, 2, "hiccup"), "failed") > 90
