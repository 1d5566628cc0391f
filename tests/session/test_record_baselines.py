"""Recording of baselines (--llmb-record): values, refusals and accepted reasons."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generator import write_run
from generator.__main__ import shipped
from msgspec.structs import replace
from scipy import stats
from support.accepted_recordings import accept_recordings
from support.builders import KEY, NOW, measurement, run

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.baseline.write import lock_folder
from pytest_llmbench.core.baseline_records import AcceptedValue, Baseline, Recording
from pytest_llmbench.core.errors import RecordError
from pytest_llmbench.core.outcome_records import Caution, CautionCode, Outcome
from pytest_llmbench.core.run_records import AcceptedRecording, RecordingRule
from pytest_llmbench.core.tolerance import parse_tolerances
from pytest_llmbench.plugin.outputs import render_terminal
from pytest_llmbench.plugin.session_state import Session
from pytest_llmbench.report.advice import advise
from pytest_llmbench.report.outcome_documents import ConfigurationOutcome
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.session.record_baselines import is_used, record
from pytest_llmbench.session.recordings import make_recording
from pytest_llmbench.session.settings import Settings

STALLED = tuple(14.6 if step % 6 == 0 else 7.3 for step in range(50))
"""Every sixth step takes twice as long."""


def test_recording_weights_each_printed_mean_by_its_number_of_steps() -> None:
    weighted = measurement(1.0, window_seconds=(8.0, 6.0, 7.0), mean_of=(10, 30, 20))
    single = measurement(1.0, window_seconds=(5.0, 5.0, 5.0, 5.0, 9.0))
    recording = make_recording([weighted, single], NOW)
    trimmed = stats.trim_mean([8.0] * 10 + [6.0] * 30 + [7.0] * 20, 0.2)
    assert recording.mean_seconds == pytest.approx((400 / 60 + 29 / 5) / 2)
    assert recording.run_seconds == pytest.approx((trimmed, 5.0))
    assert recording.trimmed_mean_seconds == pytest.approx((trimmed + 5.0) / 2)
    assert (recording.date, recording.runs) == (NOW.date().isoformat(), 2)


def record_runs(folder: Path, start: datetime, *runs: tuple[float, ...]) -> Session:
    """Return a session that recorded one stalling run, or these runs."""
    for number, seconds in enumerate(runs or (STALLED,)):
        began = start + timedelta(hours=number)
        write_run(
            folder / "runs",
            shipped()[KEY.id],
            seconds=seconds,
            started=began,
            job_id=str(500 + number),
        )
    session = Session(
        Settings(logs=(folder / "runs",), record=folder / "own"), lambda: NOW, folder
    )
    session.decide_outcomes([KEY.id])
    return session


def read_recorded_baseline(folder: Path) -> Baseline:
    """Return the only baseline that a session recorded."""
    (baseline,) = read_recipe(folder / "own" / "grok1" / "25.05.yaml").baselines
    return baseline


@pytest.mark.slow
def test_recorded_value_is_the_trimmed_mean(tmp_path: Path) -> None:
    session = record_runs(tmp_path, NOW - timedelta(hours=5))
    outcome = session.get_outcome(session.results.configurations[KEY.id].case)
    baseline = read_recorded_baseline(tmp_path)
    assert baseline.recording is not None
    assert (
        outcome.recorded_seconds
        == baseline.step_seconds
        == baseline.recording.trimmed_mean_seconds
    )
    assert baseline.step_seconds == pytest.approx(7.3, rel=1e-3)
    assert baseline.recording.mean_seconds > 8
    assert outcome.recorded.startswith("recorded 7.300 s (trimmed mean; the mean is 8.")
    assert outcome.skipped


@pytest.mark.slow
def test_concurrent_recordings_keep_each_others_values(
    tmp_path: Path,
) -> None:
    """The session waits while another one locks the folder, then adds to its file."""
    other_session = record_runs(tmp_path / "other", NOW - timedelta(hours=5))
    written = tmp_path / "other" / "own" / "grok1" / "25.05.yaml"
    text = (
        written.read_text(encoding="utf-8")
        .replace("gpus: 128", "gpus: 256")
        .replace("dp: 32", "dp: 64")
    )
    file = tmp_path / "own" / "grok1" / "25.05.yaml"
    with ThreadPoolExecutor() as threads:
        with lock_folder(tmp_path / "own"):
            session = threads.submit(record_runs, tmp_path, NOW - timedelta(hours=5))
            wait(
                [session], timeout=0.5
            )  # it would finish in this time without the lock
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert (
            session.result()
            .get_outcome(other_session.results.configurations[KEY.id].case)
            .skipped
        )
    assert [baseline.key.gpus for baseline in read_recipe(file).baselines] == [128, 256]


def test_recording_fails_if_the_folder_stays_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.import_module("pytest_llmbench.baseline.write"),
        "PATIENCE_SECONDS",
        0.1,
    )
    outcome_document = r"another session has been recording here for 0\.1 s"
    with (
        lock_folder(tmp_path),
        pytest.raises(RecordError, match=outcome_document),
        lock_folder(tmp_path),
    ):
        pytest.fail("both locked the folder")
    with lock_folder(tmp_path):
        pass  # it is unlocked again


def test_recorded_environment_contains_common_values() -> None:
    first, second = (
        measurement(
            7.3, run=run(environment=(("container", "nemo:25.04\x07"), ("nccl", nccl)))
        )
        for nccl in ("2.25.1", "2.26.2")
    )
    container = ("container", "nemo:25.04\\x07")
    assert make_recording([first, first], NOW, "alice").environment == (
        container,
        ("nccl", "2.25.1"),
    )
    assert make_recording([first, second], NOW, "alice").environment == (container,)
    assert make_recording([first, measurement(7.3)], NOW, "alice").environment == ()
    assert make_recording([first], NOW, "alice").by == "alice"


def test_recording_contains_the_date_of_its_newest_run_if_all_are_dated() -> None:
    runs = [
        measurement(7.3, run=run(started=NOW - timedelta(days=days)))
        for days in (3, 2, 9)
    ]
    assert (
        make_recording(runs, NOW).newest_run
        == (NOW - timedelta(days=2)).date().isoformat()
    )
    assert (
        make_recording([*runs, measurement(7.3, run=run(started=None))], NOW).newest_run
        == ""
    )


def test_runs_of_one_day_on_the_same_nodes_are_one_recorded_group() -> None:
    """Five runs of one day contain no more information on other days than one run."""
    same_day = [measurement(7.3, run=run(job_id=str(job))) for job in range(5)]
    racks = {str(job): frozenset({f"n{job}", f"m{job}"}) for job in range(5)}
    daily_runs = [
        measurement(7.3, run=run(started=NOW - timedelta(days=day))) for day in range(5)
    ]
    assert make_recording(same_day, NOW).groups == 1
    assert make_recording(same_day, NOW, "alice", racks).groups == 5
    assert make_recording(daily_runs, NOW).groups == 5


@pytest.mark.slow
@pytest.mark.parametrize(("tolerance", "recorded_files"), [("perf:30%", 1), ("20%", 0)])
def test_recording_accepts_runs_that_differ_within_the_tolerance_of_their_baseline(
    tmp_path: Path, tolerance: str, recorded_files: int
) -> None:
    session = record_runs(tmp_path, NOW - timedelta(hours=5), (7.3,) * 50, (9.0,) * 50)
    tolerant = parse_tolerances(tolerance, "baseline file")
    runs = tuple(
        replace(run, baseline=replace(run.baseline, tolerances=tolerant))
        for run in session.results.measurements[KEY]
    )
    results = replace(session.results, measurements={KEY: runs})
    result = record(
        results,
        [KEY.id],
        session.settings,
        session.catalog,
        NOW,
        author="",
        guarded=False,
    )
    (outcome,) = result.outcomes
    assert len(result.files) == recorded_files
    assert ("differ by more than 20 %" in phrase(outcome.judgement)) == (
        not recorded_files
    )


@pytest.mark.slow
def test_runs_on_two_levels_are_refused(
    tmp_path: Path,
) -> None:
    """Their mean would hide a regression as large as its distance from the better
    level."""
    write_levels(tmp_path, (1.0,) * 14 + (1.05,) * 10, 0.003)
    since = NOW - timedelta(days=10)
    refused, outcome_document = recording_outcome(tmp_path)
    assert (refused.failed, outcome_document.reason) == (True, "repeats-disagree")
    assert (
        f"since {since:%Y-%m-%d}; use --llmb-since={since:%Y-%m-%d} to record the last level"
        in outcome_document.text
    )
    assert not (tmp_path / "own").exists()
    recording_outcome(tmp_path, since=since)
    baseline = read_recorded_baseline(tmp_path)
    assert baseline.step_seconds == pytest.approx(7.3 * 1.05, rel=0.003)


@pytest.mark.slow
def test_first_recording_notes_the_difference_from_the_published_value(
    tmp_path: Path,
) -> None:
    """A value 30 % above its document is recorded with notes in the text, summary and
    JSON."""
    session = record_runs(
        tmp_path, NOW - timedelta(hours=5), (7.325 * 1.3,) * 50, (7.325 * 1.302,) * 50
    )
    outcome_document = session.get_outcome(
        session.results.configurations[KEY.id].case
    ).document
    notes = {note.code: note.text for note in outcome_document.notes}
    assert (
        notes["recorded-against-published"] == "+30.1 % against the published 7.325 s"
    )
    assert notes["recorded-few-groups"].startswith(
        "k0 = 1: one day on one set of nodes; record 5 runs on 5 days"
    )
    assert outcome_document.text.endswith(
        f"; {notes['recorded-against-published']}; {notes['recorded-few-groups']}"
    )
    session.finished_outcomes.append(outcome_document)
    summary = " ".join(" ".join(render_terminal(session, 0)).split())
    assert notes["recorded-against-published"] in summary
    assert notes["recorded-few-groups"] in summary


LEVELS = {
    "three and three": (1.0, 1.0, 1.0, 1.04, 1.04, 1.04),
    "two and two, now and then": (1.0, 1.08, 1.08, 1.0),
}


def write_levels(folder: Path, levels: Sequence[float], cv: float = 0.002) -> None:
    """Write one run per day on these levels, with some noise."""
    noise = np.random.default_rng(7).standard_normal(len(levels))
    for day, (level, noise_value) in enumerate(
        zip(levels, noise.tolist(), strict=True)
    ):
        began = NOW - timedelta(days=len(levels) - day)
        seconds = (7.3 * level * (1 + cv * noise_value),) * 50
        write_run(
            folder / "runs",
            shipped()[KEY.id],
            seconds=seconds,
            started=began,
            job_id=str(500 + day),
        )


def recording_outcome(
    folder: Path, **options: Any
) -> tuple[Outcome, ConfigurationOutcome]:
    """Return the outcome of recording the runs in a folder."""
    session = Session(
        Settings(logs=(folder / "runs",), record=folder / "own", **options),
        lambda: NOW,
        folder,
    )
    session.decide_outcomes([KEY.id])
    outcome = session.get_outcome(session.results.configurations[KEY.id].case)
    return outcome, outcome.document


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [{"expires": NOW.date() - timedelta(days=1)}, {"configuration": "nemotron*"}],
)
def test_recording_two_levels_is_refused_with_an_expired_or_unrelated_entry(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    write_levels(tmp_path, LEVELS["three and three"])
    outcome, outcome_document = recording_outcome(
        tmp_path,
        acknowledged=accept_recordings(
            tmp_path, "levels", "two pools", **{"expires": NOW.date(), **other}
        ),
    )
    assert (outcome.failed, outcome_document.reason) == (True, "repeats-disagree")
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_two_levels_are_recorded_with_an_accepted_reason(
    tmp_path: Path, levels: tuple[float, ...]
) -> None:
    write_levels(tmp_path, levels)
    outcome, outcome_document = recording_outcome(tmp_path)
    assert (outcome.failed, outcome_document.verdict, outcome_document.reason) == (
        True,
        "INVALID",
        "repeats-disagree",
    )
    count = len(levels) // 2
    expected = rf"not recorded: its runs are on two levels, {count} at 7\.\d+ s and {count} at 7\.\d+ s "
    match = re.match(
        rf"{expected}\(\+(\d\.\d) %; 7\.\d+ s to 7\.\d+ s\)", outcome_document.text
    )
    assert match
    assert float(match[1]) == pytest.approx((max(levels) - 1) * 100, abs=0.4)
    assert (
        "`accept: levels` in the file of --llmb-acknowledged" in outcome_document.text
    )
    assert "`accept: levels` in the file of --llmb-acknowledged" in advise(
        outcome_document
    )
    assert not (tmp_path / "own").exists()
    outcome, outcome_document = recording_outcome(
        tmp_path,
        acknowledged=accept_recordings(
            tmp_path, "levels", "two pools of nodes", expires=NOW.date()
        ),
    )
    assert (outcome.skipped, outcome_document.verdict) == (True, "RECORDED")
    assert "on several levels" in outcome_document.text
    assert "two pools of nodes" in outcome_document.text
    baseline = read_recorded_baseline(tmp_path)
    assert baseline.recording
    assert baseline.recording.levels == "two pools of nodes"


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "cv"), [(3, 0.02), (5, 0.002)])
def test_consistent_runs_are_recorded_without_a_reason(
    tmp_path: Path, runs: int, cv: float
) -> None:
    write_levels(tmp_path, (1.0,) * runs, cv)
    _, outcome_document = recording_outcome(
        tmp_path,
        acknowledged=accept_recordings(
            tmp_path, "levels", "not needed", expires=NOW.date()
        ),
    )
    assert outcome_document.verdict == "RECORDED"
    assert f"k0 = {runs}: {runs} days or sets of nodes" in outcome_document.text
    assert "recorded-few-groups" not in {
        note.code for note in outcome_document.notes
    }, "three are enough"
    baseline = read_recorded_baseline(tmp_path)
    assert baseline.recording
    assert baseline.recording.levels == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "reason", "message"),
    [
        (
            [(7.3,) * 50, (9.0,) * 50],
            "repeats-disagree",
            "its runs differ by more than 10 %",
        ),
        (
            [tuple(40.0 if step % 6 == 0 else 7.3 for step in range(50))],
            "few-steps-decide",
            "a few slow steps take more than a fifth",
        ),
        (
            [tuple(7.3 * (1 + 0.005 * step) for step in range(50))],
            "cannot-tell",
            "the step time of",
        ),
        (
            [tuple(7.3 * (1.3 - 0.005 * step) for step in range(50))],
            "warming-up",
            "the step time of",
        ),
        (
            [tuple(7.3 * (1.2 if step < 25 else 1) for step in range(50))],
            "warming-up",
            "the step time of",
        ),
    ],
)
def test_unsuitable_runs_are_refused_with_a_reason(
    tmp_path: Path, runs: list[tuple[float, ...]], reason: str, message: str
) -> None:
    """The item fails with the reason, and does not state that the runs would pass."""
    session = record_runs(tmp_path, NOW - timedelta(hours=5), *runs)
    outcome = session.get_outcome(session.results.configurations[KEY.id].case)
    outcome_document = outcome.document
    assert outcome.failed
    assert (
        outcome_document.verdict,
        outcome_document.reason,
        outcome_document.context,
    ) == ("INVALID", reason, "")
    assert outcome_document.text.startswith(f"not recorded: {message}")
    session.finished_outcomes.append(outcome_document)
    summary = " ".join(" ".join(render_terminal(session, 0)).split())
    assert f"not recorded: {message}" in summary
    assert "1 red: 1 INVALID" in summary
    assert "Next: " not in summary  # a recording session has no advice on judging
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "code"),
    [
        (tuple(7.3 * (1.1 if step % 2 else 1) for step in range(50)), "two-levels"),
        (tuple(7.3 * (1 + 0.001 * step) for step in range(50)), "drift"),
    ],
)
def test_unusual_steps_are_recorded_with_a_note(
    tmp_path: Path, seconds: tuple[float, ...], code: str
) -> None:
    session = record_runs(tmp_path, NOW - timedelta(hours=5), seconds)
    outcome = session.get_outcome(session.results.configurations[KEY.id].case)
    outcome_document = outcome.document
    assert outcome.skipped
    assert code in {note.code for note in outcome_document.notes}
    assert read_recorded_baseline(tmp_path).recording


@pytest.mark.slow
def test_drifting_minority_is_recorded_with_a_note(tmp_path: Path) -> None:
    drifting = tuple(7.3 * (0.96 + 0.0025 * step) for step in range(50))
    session = record_runs(
        tmp_path, NOW - timedelta(hours=5), (7.4,) * 50, (7.5,) * 50, drifting
    )
    outcome = session.get_outcome(session.results.configurations[KEY.id].case)
    outcome_document = outcome.document
    assert outcome.skipped
    assert "drift" in {note.code for note in outcome_document.notes}


# --- accepted drift -------------------------------------------------------------------


def record_run(
    folder: Path, day: int, factor: float, acknowledged: Path
) -> tuple[Session, ConfigurationOutcome]:
    """Record one run on a day, in a session of that day."""
    now = NOW + timedelta(days=day)
    runs = folder / f"runs{day}"
    write_run(
        runs,
        shipped()[KEY.id],
        seconds=(7.3 * factor,) * 50,
        started=now - timedelta(hours=5),
        job_id=str(500 + day),
    )
    settings = Settings(
        logs=(runs,), record=folder / "own", acknowledged=acknowledged, cache=None
    )
    session = Session(settings, lambda: now, folder)
    session.decide_outcomes([KEY.id])
    return session, session.get_outcome(
        session.results.configurations[KEY.id].case
    ).document


@pytest.mark.slow
@pytest.mark.parametrize("since", [NOW.date() + timedelta(days=1), None])
def test_second_drift_within_one_accepted_recording_entry_is_refused(
    tmp_path: Path, since: date | None
) -> None:
    """Two moves by 8 % within the validity of one entry."""
    file = accept_recordings(
        tmp_path,
        "drift",
        "driver 570",
        since=since,
        expires=NOW.date() + timedelta(days=9),
    )
    first, _ = record_run(tmp_path, 0, 1.0, file)
    second, moved = record_run(tmp_path, 1, 1.08, file)
    third, refused = record_run(tmp_path, 2, 1.08**2, file)
    assert first.noticed == []
    assert second.noticed == [
        Caution(
            CautionCode.DRIFT_ACCEPTED, f"drift of {KEY.id} is accepted: driver 570"
        )
    ]
    assert third.noticed == []
    assert (moved.verdict, refused.verdict, refused.reason) == (
        "RECORDED",
        "REGRESSION",
        "drifted",
    )
    assert "the entry 'driver 570' accepted an earlier value" in refused.text
    baseline = read_recorded_baseline(tmp_path)
    assert baseline.recording
    assert baseline.recording.reason == "driver 570"
    assert baseline.step_seconds == pytest.approx(7.3 * 1.08, rel=1e-3)


DAY_4, DAY_5, DAY_6 = (date(2025, 11, day) for day in (4, 5, 6))


def make_recorded(*accepted: tuple[date, str]) -> Recording:
    *earlier, (day, reason) = accepted
    return Recording(
        day.isoformat(),
        1,
        7.3,
        7.3,
        0.0,
        (7.3,),
        ("0" * 64,),
        reason=reason,
        earlier=tuple(
            AcceptedValue(day.isoformat(), 7.3, reason=reason)
            for day, reason in earlier
        ),
    )


@pytest.mark.parametrize(
    ("since", "accepted", "used"),
    [
        (DAY_5, [(DAY_4, "")], False),
        (DAY_5, [(DAY_4, ""), (DAY_6, "")], False),
        (DAY_5, [(DAY_4, "driver 570")], False),
        (DAY_5, [(DAY_5, "")], False),
        (DAY_5, [(DAY_4, ""), (DAY_5, "other")], False),
        (DAY_5, [(DAY_4, ""), (DAY_5, "driver 570")], True),
        (DAY_5, [(DAY_4, ""), (DAY_5, "driver 570"), (DAY_5, "other")], True),
        (DAY_5, [(DAY_4, ""), (DAY_6, "driver 570"), (DAY_6, "")], True),
        (DAY_5, [(DAY_4, ""), (DAY_6, "other")], True),
        (DAY_5, [(DAY_6, "")], True),
        (None, [(DAY_4, ""), (DAY_6, "other")], False),
        (None, [(DAY_4, "driver 570"), (DAY_6, "other")], True),
    ],
)
def test_accepted_recording_entry_is_used_up_by_one_drift_after_its_date(
    since: date | None, accepted: list[tuple[date, str]], *, used: bool
) -> None:
    """Values before `since`, and values within the budget, do not use the entry."""
    entry = AcceptedRecording("*", RecordingRule.DRIFT, since, DAY_6, "driver 570")
    assert is_used(entry, make_recorded(*accepted)) is used
