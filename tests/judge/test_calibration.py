"""The short form of benchmarks/calibration.py: how often the engine is wrong on simulated fleets, with a fixed seed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial

import calibration
import numpy as np
import pytest
from calibration import MARGIN, ONE, PROMISES, THREE, Cell, Promise, Tally, added, fleet_tally, simulated_fleet
from fleet import Fleet, draw, expected, runs, trimmed_means
from procedures import PROCEDURES, judged
from scenarios import RUNS, SCENARIOS, cases

from pytest_llmbench.core.models import Noise, Verdict
from pytest_llmbench.core.robust import compute_trimmed_mean

SEED = 11
WITHIN_RUN = "margin test, within-run error only"


def counted(procedure: str, change: float, fleets: int, scenario: str = "fleet") -> Counter[str]:
    tallies = (fleet_tally(number, (change,), scenario, SEED, (procedure,)) for number in range(fleets))
    return added(tallies)[Cell(procedure, change)]


def share(counts: Counter[str], what: str) -> float:
    return 100 * counts[what] / counts[""]


# --- the engine -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_has_changed_and_no_run_is_a_regression() -> None:
    counts = counted(ONE, 0.0, 10)
    assert counts[""] == 800
    assert counts["REGRESSION"] == 0
    assert share(counts, "failed") <= 0.15
    assert share(counts, "PASS") > 90


@pytest.mark.slow
def test_a_run_at_the_margin_passes_as_often_as_the_level_says() -> None:
    assert 2 <= share(counted(ONE, MARGIN, 8), "PASS") <= 7


@pytest.mark.slow
def test_ignoring_how_runs_differ_breaks_that_promise() -> None:
    """A gate that takes the steps of one run for its sample passes far more: the check above can fail."""
    counts = counted(WITHIN_RUN, MARGIN, 3)
    promise = next(one for one in PROMISES if one.cell == Cell(ONE, MARGIN))
    assert share(counts, "PASS") > 15
    assert not calibration.kept(promise._replace(cell=Cell(WITHIN_RUN, MARGIN)), {Cell(WITHIN_RUN, MARGIN): counts})


@pytest.mark.slow
def test_ten_percent_more_never_passes() -> None:
    counts = counted(ONE, 0.10, 5)
    assert counts["PASS"] == 0
    assert share(counts, "REGRESSION") > 90


@pytest.mark.slow
def test_up_to_three_runs_tell_nearly_all_that_one_cannot() -> None:
    assert share(counted(THREE, 0.0, 2), "PASS") > 99
    counts = counted(THREE, 0.10, 2)
    assert counts["PASS"] == 0
    assert share(counts, "REGRESSION") >= 98


@pytest.mark.slow
def test_the_detectable_slowdown_is_detected_with_80_percent() -> None:
    detected = []
    for number in range(3):
        truth, simulated = simulated_fleet(number, SEED)
        told = [judged(case).estimate for case in cases(SCENARIOS["fleet"], truth, simulated, 0.0)]
        detectable = np.array([one.detectable for one in told if one])
        slowed = cases(SCENARIOS["fleet"], truth, simulated, detectable)
        others = [replace(case, attempts=case.attempts[1:]) for case in slowed]
        detected += [judged(case).verdict is Verdict.REGRESSION for case in others]
    assert len(detected) == 240
    assert np.mean(detected) == pytest.approx(0.80, abs=0.06)


def test_the_standard_error_falls_with_the_root_of_the_runs_once_the_noise_is_known() -> None:
    random = np.random.default_rng(SEED)
    quiet = Fleet(*(np.full(20, value) for value in (5.0, 0.002, 0.0, 0.0, 0.01)))
    known = Noise(0.01, 1e9, "known", measured=True)
    errors = []
    for case in cases(SCENARIOS["fleet"], expected(quiet, random), runs(quiet, RUNS, random), 0.0):
        informed = replace(case, evidence=replace(case.evidence, measurements=(), prior=known))
        told = [judged(informed, attempts).estimate for attempts in (1, 2, 3)]
        errors.append([one.standard_error * math.sqrt(one.runs) for one in told if one])
    assert np.median(errors, axis=0) == pytest.approx([0.01] * 3, rel=1e-4)  # one in 100 repeats is far noisier


# --- kinds of baselines -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["single", "recorded", "published", "hard"])
def test_a_run_at_the_margin_passes_as_often_as_the_level_says_against_every_kind(scenario: str) -> None:
    assert 1 <= share(counted(ONE, MARGIN, 4, scenario), "PASS") <= 7


@pytest.mark.slow
def test_five_runs_of_one_night_keep_that_promise_because_they_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share(counted(ONE, MARGIN, 4, "one-night"), "PASS") <= 7
    monkeypatch.setattr(
        "pytest_llmbench.judge.estimate.count_recorded_groups", lambda baseline: baseline.recording.runs
    )
    assert share(counted(ONE, MARGIN, 4, "one-night"), "PASS") > 9


@pytest.mark.slow
def test_a_hiccup_fails_few_runs_against_a_published_mean_and_without_forgiving_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = counted(ONE, 0.0, 2, "hiccup")
    assert share(counts, "failed") <= 8
    assert counts["REGRESSION"] == 0
    monkeypatch.setattr("pytest_llmbench.judge.run_selection.LARGE", 9.0)
    assert share(counted(ONE, 0.0, 2, "hiccup"), "failed") > 90


def test_every_kind_of_baseline_has_promises_that_a_gate_needs() -> None:
    assert set(calibration.OF_KIND) == set(SCENARIOS) - {"fleet", "lasting", "slow-node"}
    for promises in (PROMISES, *calibration.OF_KIND.values()):
        told = {(one.cell, one.what): (one.low, one.high) for one in promises}
        for procedure in (ONE, THREE):
            assert told[Cell(procedure, 0.0), "REGRESSION"] == told[Cell(procedure, 0.10), "PASS"] == (0, 0)
            assert told[Cell(procedure, MARGIN), "PASS"][1] == 7


# --- the simulation ---------------------------------------------------------------------------------------


def test_expected_values_are_what_runs_measure_in_the_long_run() -> None:
    random = np.random.default_rng(SEED)
    fleet = draw(random, 10)
    truth, simulated = expected(fleet, random), runs(fleet, 4000, random)
    assert np.exp(np.log(trimmed_means(simulated)).mean(axis=1)) == pytest.approx(truth.trimmed_mean, rel=1.5e-3)
    assert simulated[..., 11:45].mean(axis=(1, 2)) == pytest.approx(truth.mean, rel=1.5e-3)
    assert simulated[..., -1].mean(axis=1) == pytest.approx(truth.last_step, rel=3e-3)


def test_runs_are_as_noisy_as_their_fleet_says() -> None:
    fleet = Fleet(*(np.full(1, value) for value in (5.0, 0.02, 0.6, 0.0, 0.01)))
    steps = np.log(runs(fleet, 20_000, np.random.default_rng(SEED))[0, :, 30:])
    level = steps.mean(axis=1)
    assert np.cov(steps[:, 5], steps[:, 6])[0, 1] == pytest.approx(0.6 * 0.02**2 + 0.01**2, rel=0.05)
    assert steps[:, 5].std() == pytest.approx(math.hypot(0.02, 0.01), rel=0.02)
    assert level.std() > 0.01


def test_the_trimmed_mean_is_the_engines() -> None:
    simulated = runs(draw(np.random.default_rng(SEED), 3), 4, np.random.default_rng(SEED))
    alone = [[compute_trimmed_mean(run[11:45]) for run in of_one] for of_one in simulated]
    assert trimmed_means(simulated) == pytest.approx(np.array(alone))


@pytest.mark.slow
def test_a_fleet_follows_from_the_seed_and_its_number() -> None:
    """So the table is the same for any number of processes."""
    procedure = ["Welch's test over steps, one baseline run"]
    told = [fleet_tally(number, (0.0,), "fleet", SEED, procedure) for number in (3, 3, 4)]
    assert told[0] == told[1] != told[2]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_gives_every_procedure_something_to_say(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "draw", partial(draw, count=8))
    told = fleet_tally(0, (0.03,), scenario, SEED)
    assert [cell.procedure for cell in told] == list(PROCEDURES)
    assert {counts[""] for counts in told.values()} == {8}


# --- the promises -----------------------------------------------------------------------------------------


def tallied(**counts: int) -> Tally:
    return {Cell(ONE, 0.0): Counter({"" if what == "runs" else what: count for what, count in counts.items()})}


@pytest.mark.parametrize(
    ("counts", "low", "high", "answer"),
    [
        (tallied(runs=1000, failed=1), 0, 0.15, True),
        (tallied(runs=1000, failed=2), 0, 0.15, False),
        (tallied(runs=1000, failed=19), 2, 7, False),
        (tallied(runs=1000, failed=20), 2, 7, True),
        (tallied(runs=1000), 0, 0, True),
        (tallied(runs=100_000, failed=1), 0, 0, False),
        (tallied(runs=0), 0, 0, False),
    ],
)
def test_a_promise_is_kept_within_its_limits_and_not_without_runs(
    counts: Tally, low: float, high: float, answer: bool
) -> None:
    promise = Promise("as said", Cell(ONE, 0.0), "failed", low, high)
    assert calibration.kept(promise, counts) is answer


@pytest.mark.parametrize(
    ("count", "total", "text"),
    [(0, 10, "0"), (10, 10, "100"), (1, 100_000, "0.0010"), (99_999, 100_000, "99.9990"), (53, 1000, "5.3")],
)
def test_only_none_reads_0_and_only_all_reads_100(count: int, total: int, text: str) -> None:
    assert calibration.percent(count, total) == text


def test_a_broken_promise_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["calibration.py"])
    whole = Counter({"": 1000, "REGRESSION": 1000, "failed": 1000})
    cells = {Cell(name, change): whole for name in PROCEDURES for change in calibration.CHANGES}
    monkeypatch.setattr(calibration, "tally", lambda *_: cells)
    assert calibration.main() == 1
    assert "| no REGRESSION verdict at zero change, one run | NO | 1,000 of 1,000, 100 % |" in capsys.readouterr().out
