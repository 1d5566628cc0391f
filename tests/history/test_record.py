"""Stored sessions are read back unchanged, from both databases."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from sqlalchemy import inspect
from support import builders
from support.remembered import ID, START, document, outcome

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import daily_verdicts, prune, queries, store, tables
from pytest_llmbench.history.queries import read_stored_runs
from pytest_llmbench.history.record import prepare, write
from pytest_llmbench.history.store import StoreLocation, connect

pytestmark = pytest.mark.wheel

OTHER = replace(builders.KEY, dtype="fp8")


def past(location: StoreLocation, *ids: str) -> list[Any]:
    return [
        run
        for runs in read_stored_runs(location, ids or (ID,)).values()
        for run in runs
    ]


def test_run_is_read_back_with_all_digits(location: StoreLocation) -> None:
    described = outcome(7.4 * (1 + 2**-50))
    described["window_seconds"][3] = None  # not a number
    described["environment"] = {"driver": "580.1", "nccl": "2.27"}
    assert write(location, document(described)) == 1
    (day,) = past(location)
    assert (day.started, day.job_id, day.valid, day.verdict) == (
        START,
        "1000",
        True,
        "PASS",
    )
    assert day.statistic_seconds == described["statistic_seconds"] == 7.4 * (1 + 2**-50)
    assert day.log_difference == described["log_difference"]
    assert day.environment == described["environment"]
    (row,) = queries.list_verdicts(location, ID)
    assert row.step_seconds == described["window_seconds"]
    assert row.metrics == {
        name: [of["value"], of["standard_deviation"]]
        for name, of in described["metrics"].items()
    }
    assert (row.log_fingerprints, row.attempts, row.gpus) == (
        ["0-00ff"],
        1,
        128,
    )
    assert (row.recipe, row.size, row.release, row.gpu, row.dtype) == (
        *("grok1", "314b", "25.05", "gb200", "bf16"),
    )


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"mfu": 0.25, "mfu_logged": 0.31}, (0.25, False)),
        ({"mfu": 0.25}, (0.25, False)),
        ({"mfu_logged": 0.31}, (0.31, True)),
        ({}, (None, False)),
    ],
)
def test_daily_verdict_prefers_computed_mfu(
    location: StoreLocation, values: dict[str, float], shown: tuple[float | None, bool]
) -> None:
    described = outcome()
    described["metrics"].pop("mfu")
    described["metrics"] |= {
        name: {"value": value, "standard_deviation": None, "unit": ""}
        for name, value in values.items()
    }
    write(location, document(described))
    (day,) = daily_verdicts.read_verdicts(location, None, {})
    assert (day.mfu, day.mfu_logged) == shown


def test_any_text_is_stored_in_the_history(location: StoreLocation) -> None:
    text = "Müller's \\x1b \U0001f600 %s {x} :name ?"
    write(
        location,
        document({**outcome(), "text": text}, options=["--x=%(y)s"], host="hôte"),
    )
    (row,) = queries.list_verdicts(location, ID)
    assert (row.text, row.options, row.host) == (text, ["--x=%(y)s"], "hôte")


def test_session_added_late_does_not_replace_newer_verdicts(
    location: StoreLocation,
) -> None:
    """A session that could not be stored is added later: the newer verdict and log
    still represent the run."""
    early = {**outcome(7.9, logs="1-aa"), "verdict": "INVALID", "reason": "incomplete"}
    write(
        location, document(outcome(7.5, logs="2-bb"), began=START + timedelta(hours=9))
    )
    assert write(location, document(early, began=START + timedelta(hours=1))) == 1
    (day,) = past(location)
    assert (day.verdict, day.statistic_seconds, day.logs) == ("PASS", 7.5, "2-bb")
    (listed,) = queries.list_runs(location, "", None, 10)
    assert listed.verdict == "PASS"
    assert [run.verdict for run in queries.list_verdicts(location, ID)] == [
        "INVALID",
        "PASS",
    ]
    assert [verdict["verdict"] for verdict in queries.list_everything(location)] == [
        "INVALID",
        "PASS",
    ]
    write(location, document(early, began=START + timedelta(hours=10)))
    (day,) = past(location)
    assert (day.verdict, day.logs) == ("INVALID", "1-aa")


def test_grown_log_updates_the_same_run(location: StoreLocation) -> None:
    """The run was judged while running, and again on a machine that dates its log
    differently. The first start is kept."""
    early = {
        **outcome(7.4, job="7", logs="1-aa"),
        "verdict": "INVALID",
        "problems": [{"code": "still-running", "text": "", "line": 0}],
    }
    write(location, document(early))
    assert [(run.valid, run.verdict) for run in past(location)] == [(False, "INVALID")]
    write(location, document(outcome(7.4, job="7", logs="2-bb")))
    write(location, document(outcome(7.4, 3, job="7", logs="2-bb")))
    assert [(run.valid, run.verdict, run.started) for run in past(location)] == [
        (True, "PASS", START)
    ]


def test_simultaneous_runs_of_a_job_keep_their_verdicts(
    location: StoreLocation,
) -> None:
    """Members of a job array, or logs without a job id in one folder."""
    fast = outcome(7.4, job="7", logs="1-aa")
    slow, copied = (
        {**outcome(7.9, job="7", logs=logs), "verdict": "REGRESSION"}
        for logs in ("2-bb", "3-cc")
    )
    for other, logs in ((slow, "2-bb"), (slow, "2-bb"), (copied, "3-cc")):
        write(location, document(fast, other))
        assert sorted((run.logs, run.verdict) for run in past(location)) == [
            ("1-aa", "PASS"),
            (logs, "REGRESSION"),
        ]


@pytest.mark.parametrize(
    "other",
    [
        {"day": 1},
        {"job": "8", "logs": "1-aa"},
        {"key": OTHER, "job": "1000", "logs": "0-00ff"},
    ],
    ids=["another day", "another job", "another configuration"],
)
def test_runs_of_another_day_job_or_configuration_are_stored_separately(
    location: StoreLocation, other: dict[str, Any]
) -> None:
    write(location, document(outcome(7.4), outcome(7.4, **other)))
    write(location, document(outcome(7.4, **other), outcome(7.4)))
    assert len(past(location, ID, OTHER.id)) == 2


def test_runs_without_start_or_fingerprint_stay_separate(
    location: StoreLocation,
) -> None:
    for _ in range(2):
        write(location, document(outcome(7.4, started=None, logs="")))
    assert len(queries.list_runs(location, "", None, 10)) == 2
    assert past(location) == []  # its day is unknown


def test_missing_verdict_of_a_configuration_is_stored_without_a_run(
    location: StoreLocation,
) -> None:
    write(location, document(outcome(None), outcome(7.4, key=OTHER)))
    verdicts = {
        row["configuration"]: (row["verdict"], row["number"])
        for row in queries.list_everything(location)
    }
    assert verdicts == {ID: ("MISSING", None), OTHER.id: ("PASS", 1)}
    assert past(location) == []
    assert [row.configuration for row in queries.list_runs(location, "", None, 10)] == [
        OTHER.id
    ]


def test_stored_run_counts_as_invalid_if_judged_invalid_or_by_another_release(
    location: StoreLocation,
) -> None:
    borrowed = {
        **outcome(7.4, 1),
        "notes": [{"code": "other-release", "text": "", "line": 0}],
    }
    invalid = {**outcome(7.4, 2), "verdict": "INVALID"}
    failed = {**outcome(7.4, 3), "verdict": "TEST_FAILED", "overruled": "PASS"}
    profiled = {**outcome(7.4, 4), "verdict": "NOT_COMPARABLE"}
    write(location, document(outcome(7.4), borrowed, invalid, failed, profiled))
    assert [(run.job_id, run.valid) for run in past(location)] == [
        ("1000", True),
        ("1001", False),
        ("1002", False),
        ("1003", True),
    ]


def test_runs_of_another_window_stay_separate(location: StoreLocation) -> None:
    """A baseline recorded since then has a trimmed mean: the run has both values."""
    described = outcome(7.4)
    trimmed = {
        **described,
        "statistic_seconds": 7.3,
        "window": {**described["window"], "statistic": "trimmed_mean"},
    }
    write(location, document(described))
    write(location, document(trimmed))
    seconds = {run.window.statistic: run.statistic_seconds for run in past(location)}
    assert seconds == {"mean": 7.4, "trimmed_mean": 7.3}


def test_repeated_write_stores_a_session_once(location: StoreLocation) -> None:
    session = document(outcome(7.4), outcome(None, key=OTHER))
    assert [write(location, session), write(location, session)] == [2, 0]
    assert len(queries.list_everything(location)) == 2


def test_failed_write_leaves_store_unchanged(location: StoreLocation) -> None:
    write(location, document(outcome(7.4)))
    sound = document(outcome(7.5, 1), outcome(7.6, 2))
    first, second = sound.verdicts
    no_verdict: Any = None  # invalid in every table
    broken = structs.replace(
        sound, verdicts=(first, structs.replace(second, verdict=no_verdict))
    )
    with pytest.raises(HistoryError):
        write(location, broken)
    assert [run.statistic_seconds for run in past(location)] == [7.4]
    assert len(queries.list_everything(location)) == 1


def test_prune_removes_old_sessions_and_their_runs(location: StoreLocation) -> None:
    old = builders.NOW - timedelta(days=400)
    write(
        location,
        document(outcome(7.4), outcome(7.5, 1), outcome(None, key=OTHER), began=old),
    )
    write(location, document(outcome(7.4)))
    before = builders.NOW - timedelta(days=30)
    removed = {"verdicts": 3, "sessions": 1, "runs": 1}
    assert prune.prune(location, before, dry_run=True) == removed
    assert len(queries.list_everything(location)) == 4
    assert prune.prune(location, before, dry_run=False) == removed
    assert [row["number"] for row in queries.list_everything(location)] == [1]
    assert prune.prune(location, before, dry_run=False) == {
        "verdicts": 0,
        "sessions": 0,
        "runs": 0,
    }


# --- many at once ---------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from support.remembered import document, outcome
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import locate_store

place = locate_store({url!r}, Path("."))
for number in range(8):
    write(place, document(outcome(7.4, number), outcome(7.4, {first} + number)))
    print("stored", flush=True)
"""


def writer(url: str, first: int) -> subprocess.Popen[str]:
    code = WRITER.format(path=sys.path, url=url, first=first)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_concurrent_sessions_store_all_verdicts(
    url: str, location: StoreLocation
) -> None:
    """Both sessions create the store and judge half of the runs in common: each such
    run has two verdicts."""
    processes = [writer(url, first) for first in (100, 200)]
    output = [process.communicate(timeout=120)[0] for process in processes]
    assert output == ["stored\n" * 8] * 2
    rows = queries.list_everything(location)
    assert len({row["session"] for row in rows}) == 16
    assert len(rows) == 32
    assert len(past(location)) == 8 + 8 + 8


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from support.remembered import document, outcome
from sqlalchemy import event
from pytest_llmbench.history import record, store
from pytest_llmbench.history.store import locate_store

place = locate_store({url!r}, Path("."))
record.write(place, document(outcome(7.4, 1)))
print("stored", flush=True)
engine_of = store._make_engine

def dying(*arguments):
    engine = engine_of(*arguments)
    event.listen(engine, "commit", lambda connection: os.kill(os.getpid(), signal.SIGKILL))
    return engine

store._make_engine = dying
outcomes = [outcome(7.4, day) for day in range(2, 200)]
record.write(place, document(*outcomes))
"""


@pytest.mark.slow
def test_killed_write_loses_no_stored_session(
    url: str, location: StoreLocation
) -> None:
    """Acknowledged sessions are stored, the killed one is not, and the next session can
    write."""
    write(location, document(outcome(7.4)))
    code = KILLED.format(path=sys.path, url=url)
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (process.returncode, process.stdout) == (-9, "stored\n"), process.stderr
    assert [run.job_id for run in past(location)] == ["1000", "1001"]
    assert write(location, document(outcome(7.4, 300))) == 1
    assert [run.job_id for run in past(location)] == ["1000", "1001", "1300"]


@pytest.mark.slow
def test_locked_store_is_reported(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PATIENCE_SECONDS", 1)
    write(location, document(outcome(7.4)))
    with connect(location, writes=True):
        with pytest.raises(HistoryError, match="another process locked it") as error:
            write(location, document(outcome(7.4, 1)))
        assert str(error.value).startswith(location.shown)
        assert len(past(location)) == 1  # reading still works
    assert write(location, document(outcome(7.4, 1))) == 1


# --- the schema -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (99, "found version 99, expected at most 4: a newer pytest-llmbench wrote it"),
        (
            1,
            "found version 1, expected at least 3: a pytest-llmbench from before its first release .* another location",
        ),
    ],
)
def test_store_of_another_version_is_not_used(
    location: StoreLocation, version: int, message: str
) -> None:
    """Applies to every command. An unreadable store is never shown as empty."""
    prepare(location)
    with connect(location, writes=True) as connection:
        connection.execute(tables.VERSION.update().values(version=version))
    for action in (
        prepare,
        past,
        lambda location: write(location, document(outcome(7.4))),
        queries.list_everything,
        lambda location: queries.list_runs(location, "", None, 9),
        lambda location: queries.list_verdicts(location, ID),
        lambda location: prune.measure_extent(location, builders.NOW),
    ):
        with pytest.raises(HistoryError, match=message):
            action(location)


def test_failed_creation_leaves_no_tables(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either all tables are created or none."""
    monkeypatch.setattr(tables, "SCHEMA_VERSION", None)
    with pytest.raises(HistoryError):
        prepare(location)
    monkeypatch.undo()
    with connect(location, writes=False) as connection:
        assert inspect(connection).get_table_names() == []


def test_times_are_stored_in_utc(location: StoreLocation) -> None:
    """With microseconds, whatever the time zone of the log."""
    begins = datetime.fromisoformat("2025-11-01T23:30:00.000001-08:00")
    write(location, document(outcome(7.4, started=begins)))
    (day,) = past(location)
    assert day.started == begins
    assert day.started.tzinfo is UTC


def test_sqlite_file_has_the_requested_path(tmp_path: Path) -> None:
    location = StoreLocation("history.db", tmp_path / "a#b%20?c d.db")
    write(location, document(outcome(7.4)))
    assert [path.name for path in tmp_path.iterdir()] == ["a#b%20?c d.db"]
