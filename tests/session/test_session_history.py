"""What one session makes of its history: the nights of an outcome, and the evidence of
a verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from support import builders
from support.remembered import ID, START, document, nights, outcome, restore

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.judgement_records import DecisionRule
from pytest_llmbench.core.run_records import Measurement, StoredRun
from pytest_llmbench.history.queries import read_stored_runs
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.judge import estimate
from pytest_llmbench.judge.run_selection import list_previous_daily_runs
from pytest_llmbench.launch.launched_runs import LaunchedRuns
from pytest_llmbench.plugin.session_state import Session
from pytest_llmbench.session.catalog import Catalog, load
from pytest_llmbench.session.evaluate import collect_evidence
from pytest_llmbench.session.outcomes import SessionResults
from pytest_llmbench.session.session_history import SessionHistory
from pytest_llmbench.session.settings import Settings


@pytest.fixture
def place(tmp_path: Path) -> StoreLocation:
    """An empty store."""
    return StoreLocation("history.db", tmp_path / "history.db")


def shown(place: StoreLocation, told: dict[str, Any]) -> list[dict[str, Any]]:
    remembered = SessionHistory(place, [builders.KEY])
    found: list[dict[str, Any]] = json.loads(
        json.dumps(to_builtins(remembered.add_daily_runs(restore(told)).history))
    )
    return found


def past(seconds: float, night: int, **fields: Any) -> StoredRun:
    """Return a run of the history, `night` days before NOW."""
    made: dict[str, Any] = {
        "started": builders.NOW - timedelta(days=night),
        "job_id": str(night),
        "logs": f"{night:x}-ff",
        "window": builders.BASELINE.window,
        "valid": True,
        "statistic_seconds": seconds,
        "environment": {},
    }
    return StoredRun(**{**made, **fields})


# --- the nights of an outcome ---------------------------------------------------------


def test_an_outcome_gets_the_nights_before_its_run(place: StoreLocation) -> None:
    """Oldest first, without its own run and what came later, as plain values."""
    write(place, document(*reversed(nights([7.4, 7.5, 7.6, 7.7]))))
    told = shown(place, outcome(7.6, 2))
    assert told == [
        {
            "started": (START + timedelta(days=night)).isoformat(),
            "verdict": "PASS",
            "reason": "within-tolerance",
            "step_time_seconds": seconds,
            "expected_seconds": 7.325,
            "log_difference": outcome(seconds, night)["log_difference"],
            "job_id": f"{1000 + night}",
            "environment": {},
        }
        for night, seconds in ((0, 7.4), (1, 7.5))
    ]


def test_a_night_is_the_newest_valid_run_of_its_day(place: StoreLocation) -> None:
    early, late = START + timedelta(hours=1), START + timedelta(hours=2)
    invalid = {**outcome(9.0, job="3", started=late, logs="3-3"), "verdict": "INVALID"}
    runs = (outcome(7.4), outcome(7.5, job="2", started=early, logs="2-2"), invalid)
    write(place, document(*runs))
    assert [one["job_id"] for one in shown(place, outcome(7.4, 5))] == ["2"]
    alone = {**outcome(9.0, 1), "verdict": "INVALID"}
    write(place, document(alone))
    assert [one["verdict"] for one in shown(place, outcome(7.4, 5))] == [
        "PASS",
        "INVALID",
    ]


def test_what_has_no_run_gets_all_nights(place: StoreLocation) -> None:
    write(place, document(*nights([7.4, 7.5])))
    assert len(shown(place, outcome(None))) == 2


def test_nights_of_another_window_are_no_nights_of_this_baseline(
    place: StoreLocation,
) -> None:
    write(place, document(outcome(7.4)))
    told = outcome(7.4, 5)
    assert len(shown(place, told)) == 1
    assert shown(place, {**told, "window": {**told["window"], "first": 12}}) == []


# --- the evidence ---------------------------------------------------------------------


def evidence(past_runs: tuple[StoredRun, ...], *found: Measurement) -> Any:
    baseline = builders.BASELINE
    catalog = Catalog(baselines={builders.KEY: (baseline,)}, recipes=())
    measured = {builders.KEY: (found,)}
    (made,) = collect_evidence(
        measured, Settings(), catalog, builders.NOW, {builders.KEY: past_runs}
    )[builders.KEY]
    return made


def test_only_valid_nights_of_the_window_that_were_not_found_are_recalled() -> None:
    log = replace(builders.log(builders.segment()), fingerprint="2-ff")
    found = builders.measurement(
        run=builders.run(log, job_id="2", started=builders.NOW)
    )
    kept = past(7.4, 1)
    runs = (
        past(7.4, 2),  # with the logs of the one that was found
        past(7.4, 5, job_id="2", started=builders.NOW),  # with its start
        past(7.4, 3, valid=False),
        past(7.4, 4, window=Window(12, 44)),
        kept,
    )
    assert evidence(runs, found).stored_runs == (kept,)


def test_a_run_that_lies_in_the_folder_has_the_commit_of_the_session_that_judged_it_first() -> (
    None
):
    """So what differs between two nights is known wherever their runs are, and whoever
    judges them again."""
    runs = [
        builders.run(job_id=str(night), started=past(7.4, night).started)
        for night in (1, 2)
    ]
    known = past(
        7.4,
        2,
        environment={"commit": "0a1b", "nccl": "of the log, which says it itself"},
    )
    newer, older = evidence(
        (known,), *(builders.measurement(run=one) for one in runs)
    ).measurements
    assert (newer.environment, older.environment) == ({}, {"commit": "0a1b"})


def test_another_job_with_an_equal_log_or_start_is_another_run() -> None:
    """Deterministic short runs, or the members of an array that begin together."""
    log = replace(builders.log(builders.segment()), fingerprint="2-ff")
    found = builders.measurement(
        run=builders.run(log, job_id="9", started=past(7.4, 2).started)
    )
    assert len(evidence((past(7.4, 2),), found).stored_runs) == 1


def test_nights_of_both_kinds_are_one_series() -> None:
    recalled = tuple(past(7.3 + 0.01 * number, number) for number in range(9, 5, -1))
    found = builders.nights(*(7.3 + 0.01 * number for number in range(1, 6)))
    tonight = builders.measurement(7.4, run=builders.run(started=builders.NOW))
    known = builders.evidence(tonight, *found, stored_runs=recalled)
    older = list_previous_daily_runs([tonight], known)
    assert [one.statistic_seconds for one in older] == [
        7.3 + 0.01 * number for number in range(9, 0, -1)
    ]
    (noise, _) = estimate.list_noise_sources(known.baseline, older)
    assert noise is not None
    assert noise.source == "9 nights, 4 of them from the history"
    alone = builders.evidence(
        tonight, *builders.nights(*(7.3 + 0.01 * number for number in range(1, 10)))
    )
    (same, _) = estimate.list_noise_sources(
        alone.baseline, list_previous_daily_runs([tonight], alone)
    )
    assert same == replace(noise, source="9 nights")


def test_one_day_is_one_night_wherever_it_is_known_from() -> None:
    tonight = builders.measurement(7.4, run=builders.run(started=builders.NOW))
    (found,) = builders.nights(7.4)
    later = past(7.5, 1, started=found.run.started + timedelta(hours=1))  # type: ignore[operator]
    known = builders.evidence(tonight, found, stored_runs=(later,))
    assert [
        one.statistic_seconds for one in list_previous_daily_runs([tonight], known)
    ] == [7.5]


def test_launched_runs_are_judged_with_the_noise_of_the_history() -> None:
    """Without a folder of older runs."""
    known = {
        builders.KEY: tuple(
            past(7.3 + 0.01 * number, number) for number in range(9, 0, -1)
        )
    }
    settings = Settings()
    runs = LaunchedRuns(
        settings,
        load(settings),
        "session",
        lambda _key: DecisionRule(0.025, 0.025),
        lambda: builders.NOW,
        past=known,
    )
    one = builders.run(
        builders.log(builders.segment()),
        job_id="99",
        launch="session",
        started=builders.NOW,
    )
    judgement = runs.judge(builders.KEY, [one]).judgement
    assert judgement.estimate is not None
    assert (judgement.estimate.noise.source, judgement.estimate.runs) == (
        "9 nights of history",
        1,
    )


# --- the session ----------------------------------------------------------------------


def test_workers_get_no_url(tmp_path: Path) -> None:
    """It may hold a password."""
    given = StoreLocation("shown", url="postgresql://u:secret@h/d")
    session = Session(
        Settings(history=given),
        lambda: builders.NOW,
        tmp_path,
        results=SessionResults({}, (), 0, 0, (), {}),
    )
    assert b"secret" not in session.pack_for_workers()
    assert (
        Session.unpack_from_controller(session.pack_for_workers()).settings.history
        is None
    )


def test_an_unreadable_part_of_the_past_is_not_needed(place: StoreLocation) -> None:
    """Configurations that no baseline knows any more are left alone."""
    write(place, document(outcome(7.4)))
    assert read_stored_runs(place, ["another"]) == {}
    assert set(read_stored_runs(place, ["another", ID])) == {ID}
