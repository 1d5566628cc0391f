"""The history in a session: daily runs of an outcome, and stored runs in the evidence."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
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
def store(tmp_path: Path) -> StoreLocation:
    """An empty store."""
    return StoreLocation("history.db", tmp_path / "history.db")


def list_days(store: StoreLocation, fields: dict[str, Any]) -> list[dict[str, Any]]:
    history = SessionHistory(store, [builders.KEY])
    days: list[dict[str, Any]] = json.loads(
        json.dumps(to_builtins(history.add_daily_runs(restore(fields)).history))
    )
    return days


def make_stored_run(seconds: float, days_ago: int, **fields: Any) -> StoredRun:
    """Return a stored run that started `days_ago` days before NOW."""
    defaults: dict[str, Any] = {
        "started": builders.NOW - timedelta(days=days_ago),
        "job_id": str(days_ago),
        "logs": f"{days_ago:x}-ff",
        "window": builders.BASELINE.window,
        "valid": True,
        "statistic_seconds": seconds,
        "environment": {},
    }
    return StoredRun(**{**defaults, **fields})


# --- daily runs of an outcome ---------------------------------------------------------


def test_stored_history_of_an_outcome_contains_daily_runs_before_its_run(
    store: StoreLocation,
) -> None:
    """Oldest first, without its own run and later runs."""
    write(store, document(*reversed(nights([7.4, 7.5, 7.6, 7.7]))))
    days = list_days(store, outcome(7.6, 2))
    assert days == [
        {
            "started": (START + timedelta(days=index)).isoformat(),
            "verdict": "PASS",
            "reason": "within-tolerance",
            "step_time_seconds": seconds,
            "expected_seconds": 7.325,
            "log_difference": outcome(seconds, index)["log_difference"],
            "job_id": f"{1000 + index}",
            "environment": {},
        }
        for index, seconds in ((0, 7.4), (1, 7.5))
    ]


def test_daily_run_is_the_newest_valid_run(store: StoreLocation) -> None:
    early, late = START + timedelta(hours=1), START + timedelta(hours=2)
    invalid = {**outcome(9.0, job="3", started=late, logs="3-3"), "verdict": "INVALID"}
    runs = (outcome(7.4), outcome(7.5, job="2", started=early, logs="2-2"), invalid)
    write(store, document(*runs))
    assert [entry["job_id"] for entry in list_days(store, outcome(7.4, 5))] == ["2"]
    alone = {**outcome(9.0, 1), "verdict": "INVALID"}
    write(store, document(alone))
    assert [entry["verdict"] for entry in list_days(store, outcome(7.4, 5))] == [
        "PASS",
        "INVALID",
    ]


def test_stored_history_of_a_missing_verdict_contains_all_daily_runs(
    store: StoreLocation,
) -> None:
    write(store, document(*nights([7.4, 7.5])))
    assert len(list_days(store, outcome(None))) == 2


def test_daily_runs_of_another_window_are_ignored(
    store: StoreLocation,
) -> None:
    write(store, document(outcome(7.4)))
    fields = outcome(7.4, 5)
    assert len(list_days(store, fields)) == 1
    assert (
        list_days(store, {**fields, "window": {**fields["window"], "first": 12}}) == []
    )


# --- the evidence ---------------------------------------------------------------------


def evidence(past_runs: tuple[StoredRun, ...], *measurements: Measurement) -> Any:
    baseline = builders.BASELINE
    catalog = Catalog(baselines={builders.KEY: (baseline,)}, recipes=())
    measured = {builders.KEY: (measurements,)}
    (collected,) = collect_evidence(
        measured, Settings(), catalog, builders.NOW, {builders.KEY: past_runs}
    )[builders.KEY]
    return collected


def test_evidence_excludes_stored_runs_that_are_invalid_or_read_from_logs() -> None:
    log = replace(builders.log(builders.segment()), fingerprint="2-ff")
    read_run = builders.measurement(
        run=builders.run(log, job_id="2", started=builders.NOW)
    )
    kept = make_stored_run(7.4, 1)
    runs = (
        make_stored_run(7.4, 2),  # has the logs of the read run
        make_stored_run(7.4, 5, job_id="2", started=builders.NOW),  # has its start
        make_stored_run(7.4, 3, valid=False),
        make_stored_run(7.4, 4, window=Window(12, 44)),
        kept,
    )
    assert evidence(runs, read_run).stored_runs == (kept,)


def test_run_in_the_log_folder_gets_its_commit_from_the_history() -> None:
    """The commit is that of the first session that judged the run.

    Thus changes of the commit are known even if the run is judged again.
    """
    runs = [
        builders.run(
            job_id=str(days_ago), started=make_stored_run(7.4, days_ago).started
        )
        for days_ago in (1, 2)
    ]
    stored = make_stored_run(
        7.4,
        2,
        environment={"commit": "0a1b", "nccl": "stated in the log itself"},
    )
    newer, older = evidence(
        (stored,), *(builders.measurement(run=run) for run in runs)
    ).measurements
    assert (newer.environment, older.environment) == ({}, {"commit": "0a1b"})


def test_stored_run_of_another_job_with_an_equal_log_is_separate() -> None:
    """Deterministic short runs and members of a job array may be equal."""
    log = replace(builders.log(builders.segment()), fingerprint="2-ff")
    read_run = builders.measurement(
        run=builders.run(log, job_id="9", started=make_stored_run(7.4, 2).started)
    )
    assert len(evidence((make_stored_run(7.4, 2),), read_run).stored_runs) == 1


def test_stored_and_read_daily_runs_form_one_series() -> None:
    stored_runs = tuple(
        make_stored_run(7.3 + 0.01 * number, number) for number in range(9, 5, -1)
    )
    read_runs = builders.nights(*(7.3 + 0.01 * number for number in range(1, 6)))
    current = builders.measurement(7.4, run=builders.run(started=builders.NOW))
    collected = builders.evidence(current, *read_runs, stored_runs=stored_runs)
    previous = list_previous_daily_runs([current], collected)
    assert [daily_run.statistic_seconds for daily_run in previous] == [
        7.3 + 0.01 * number for number in range(9, 0, -1)
    ]
    (noise, _) = estimate.list_noise_sources(collected.baseline, previous)
    assert noise is not None
    assert noise.source == "9 days, 4 of them from the history"
    read_only = builders.evidence(
        current, *builders.nights(*(7.3 + 0.01 * number for number in range(1, 10)))
    )
    (same, _) = estimate.list_noise_sources(
        read_only.baseline, list_previous_daily_runs([current], read_only)
    )
    assert same == replace(noise, source="9 days")


def test_each_day_has_one_daily_run() -> None:
    current = builders.measurement(7.4, run=builders.run(started=builders.NOW))
    (read_run,) = builders.nights(7.4)
    later = make_stored_run(7.5, 1, started=read_run.run.started + timedelta(hours=1))  # type: ignore[operator]
    collected = builders.evidence(current, read_run, stored_runs=(later,))
    assert [
        daily_run.statistic_seconds
        for daily_run in list_previous_daily_runs([current], collected)
    ] == [7.5]


def test_launched_runs_use_the_noise_of_the_history() -> None:
    """There is no folder of older runs."""
    stored_runs = {
        builders.KEY: tuple(
            make_stored_run(7.3 + 0.01 * number, number) for number in range(9, 0, -1)
        )
    }
    settings = Settings()
    runs = LaunchedRuns(
        settings,
        load(settings),
        "session",
        lambda _key: DecisionRule(0.025, 0.025),
        lambda: builders.NOW,
        past=stored_runs,
    )
    launched = builders.run(
        builders.log(builders.segment()),
        job_id="99",
        launch="session",
        started=builders.NOW,
    )
    judgement = runs.judge(builders.KEY, [launched]).judgement
    assert judgement.estimate is not None
    assert (judgement.estimate.noise.source, judgement.estimate.runs) == (
        "9 days of history",
        1,
    )


# --- the session ----------------------------------------------------------------------


def test_workers_do_not_get_the_history_url(tmp_path: Path) -> None:
    """The URL may contain a password."""
    location = StoreLocation("shown", url="postgresql://u:secret@h/d")
    session = Session(
        Settings(history=location),
        lambda: builders.NOW,
        tmp_path,
        results=SessionResults({}, (), 0, 0, (), {}),
    )
    assert b"secret" not in session.pack_for_workers()
    assert (
        Session.unpack_from_controller(session.pack_for_workers()).settings.history
        is None
    )


def test_stored_runs_are_read_for_requested_configurations(
    store: StoreLocation,
) -> None:
    """Configurations without a baseline are not read."""
    write(store, document(outcome(7.4)))
    assert read_stored_runs(store, ["another"]) == {}
    assert set(read_stored_runs(store, ["another", ID])) == {ID}
