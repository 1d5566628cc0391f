"""The short form of benchmarks/calibration.py: how often the engine is wrong on simulated fleets, with a fixed seed."""

from __future__ import annotations

from collections import Counter

import calibration
import pytest
from calibration import MARGIN, ONE, PROMISES, THREE, Cell, Promise, Tally, added, fleet_tally
from procedures import PROCEDURES

SEED = 11
WITHIN_RUN = "margin test, within-run error only"


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
def test_error_within_runs_alone_breaks_the_promise() -> None:
    """A gate that takes the steps of one run for its sample passes far more: the check above can fail."""
    counts = counted(WITHIN_RUN, MARGIN, 3)
    promise = next(one for one in PROMISES if one.cell == Cell(ONE, MARGIN))
    assert share(counts, "PASS") > 15
    assert not calibration.kept(promise._replace(cell=Cell(WITHIN_RUN, MARGIN)), {Cell(WITHIN_RUN, MARGIN): counts})


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


# --- the promises -----------------------------------------------------------------------------------------


def tallied(**counts: int) -> Tally:
    return {Cell(ONE, 0.0): Counter({"" if what == "runs" else what: count for what, count in counts.items()})}


@pytest.mark.parametrize(
    ("counts", "low", "high", "answer"),
    [
        (tallied(runs=1000, failed=19), 2, 7, False),
        (tallied(runs=1000, failed=20), 2, 7, True),
        (tallied(runs=1000), 0, 0, True),
        (tallied(runs=100_000, failed=1), 0, 0, False),
        (tallied(runs=0), 0, 0, False),
    ],
)
def test_promise_is_kept_within_its_limits(counts: Tally, low: float, high: float, answer: bool) -> None:
    promise = Promise("as said", Cell(ONE, 0.0), "failed", low, high)
    assert calibration.kept(promise, counts) is answer


def test_broken_promise_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["calibration.py"])
    whole = Counter({"": 1000, "REGRESSION": 1000, "failed": 1000})
    cells = {Cell(name, change): whole for name in PROCEDURES for change in calibration.CHANGES}
    monkeypatch.setattr(calibration, "tally", lambda *_: cells)
    assert calibration.main() == 1
    assert "| no REGRESSION verdict at zero change, one run | NO | 1,000 of 1,000, 100 % |" in capsys.readouterr().out
