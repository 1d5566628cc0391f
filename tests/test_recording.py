"""What --llmb-record makes of runs: the trimmed mean decides, and the mean stands beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from builders import KEY, NOW, measurement
from generator import write_run
from generator.__main__ import shipped
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.models import Reason, Verdict
from pytest_llmbench.recording import record, recording_of
from pytest_llmbench.session import Session
from pytest_llmbench.settings import Settings
from pytest_llmbench.tolerance import parse_tolerances

STALLED = tuple(14.6 if step % 6 == 0 else 7.3 for step in range(50))
"""A sixth of the steps takes twice as long."""

windows = st.lists(st.floats(0.1, 100), min_size=3, max_size=40)


@given(st.lists(windows, min_size=1, max_size=4))
def test_a_recording_is_the_mean_over_runs_of_their_means_and_trimmed_means(found: list[list[float]]) -> None:
    recording = recording_of([measurement(1.0, window_seconds=tuple(window)) for window in found], NOW)
    trimmed = [float(stats.trim_mean(window, 0.2)) for window in found]
    assert recording.run_seconds == pytest.approx(trimmed)
    assert recording.trimmed_mean_seconds == pytest.approx(np.mean(trimmed))
    assert recording.mean_seconds == pytest.approx(np.mean([np.mean(window) for window in found]))
    assert (recording.date, recording.runs) == (NOW.date().isoformat(), len(found))


def test_a_recording_of_means_over_several_steps_weighs_them_by_their_steps() -> None:
    one = measurement(1.0, window_seconds=(8.0, 6.0, 7.0), mean_of=(10, 30, 20))
    recording = recording_of([one], NOW)
    assert recording.mean_seconds == pytest.approx((80 + 180 + 140) / 60)
    assert recording.run_seconds == pytest.approx((stats.trim_mean([8.0] * 10 + [6.0] * 30 + [7.0] * 20, 0.2),))


def recorded(folder: Path, start: datetime, *runs: tuple[float, ...]) -> Session:
    """Return a session that recorded one stalling run, or these."""
    for number, seconds in enumerate(runs or (STALLED,)):
        began = start + timedelta(hours=number)
        write_run(folder / "runs", shipped()[KEY.id], seconds=seconds, started=began, job_id=str(500 + number))
    session = Session(Settings(logs=(folder / "runs",), record=folder / "own"), lambda: NOW, folder)
    session.settle([KEY.id])
    return session


def test_the_value_that_decides_is_the_one_that_is_told(tmp_path: Path) -> None:
    session = recorded(tmp_path, NOW - timedelta(hours=5))
    outcome, _ = session.outcome(session.batch.results[KEY.id].case)
    (baseline,) = read_recipe(tmp_path / "own" / "grok1" / "25.05.yaml").baselines
    assert baseline.recording is not None
    assert outcome.recorded_seconds == baseline.step_seconds == baseline.recording.trimmed_mean_seconds
    assert baseline.step_seconds == pytest.approx(7.3, rel=1e-3)
    assert baseline.recording.mean_seconds > 8
    assert outcome.recorded.startswith("recorded 7.300 s (trimmed mean; the mean is 8.")
    assert outcome.skipped


def test_a_refused_recording_does_not_advise_to_record(tmp_path: Path) -> None:
    """Where there is no baseline yet, that is what the verdict says; here it was just tried."""
    session = recorded(tmp_path, NOW - timedelta(hours=5), (7.3,) * 50, (9.0,) * 50)
    result = session.batch.results[KEY.id]
    text = "nothing to compare with yet: 7.3 s, 9 s measured; record it with --llmb-record=DIR"
    judgement = replace(result.judgement, verdict=Verdict.INVALID, reason=Reason.NO_BASELINE, text=text)
    batch = replace(session.batch, results={KEY.id: replace(result, judgement=judgement)})
    (outcome,), _ = record(batch, [KEY.id], session.settings, NOW)
    assert outcome.judgement.reason is Reason.REPEATS_DISAGREE
    assert outcome.judgement.text == "nothing to compare with yet: 7.3 s, 9 s measured"
    assert "its runs differ by more than 10 %" in outcome.context


@pytest.mark.parametrize(("tolerance", "recorded_files"), [("perf:30%", 1), ("20%", 0)])
def test_what_a_file_tolerates_may_lie_between_the_runs_that_it_records(
    tmp_path: Path, tolerance: str, recorded_files: int
) -> None:
    session = recorded(tmp_path, NOW - timedelta(hours=5), (7.3,) * 50, (9.0,) * 50)
    tolerant = parse_tolerances(tolerance, "baseline file")
    runs = tuple(
        replace(run, baseline=replace(run.baseline, tolerances=tolerant)) for run in session.batch.measurements[KEY]
    )
    batch = replace(session.batch, measurements={KEY: runs})
    (outcome,), files = record(batch, [KEY.id], session.settings, NOW)
    assert len(files) == recorded_files
    assert ("differ by more than 20 %" in outcome.context) == (not recorded_files)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([(7.3,) * 50, (9.0,) * 50], "its runs differ by more than 10 %"),
        ([tuple(40.0 if step % 6 == 0 else 7.3 for step in range(50))], "a few slow steps take more than a fifth"),
    ],
)
def test_runs_that_are_the_baseline_of_nothing_are_refused(
    tmp_path: Path, runs: list[tuple[float, ...]], why: str
) -> None:
    session = recorded(tmp_path, NOW - timedelta(hours=5), *runs)
    outcome, told = session.outcome(session.batch.results[KEY.id].case)
    assert outcome.failed
    assert why in told["context"]
    assert not (tmp_path / "own").exists()
