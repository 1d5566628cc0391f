"""What is stored comes back, the same from both databases."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import builders
import pytest
from remembered import ID, START, document, nights, outcome
from sqlalchemy import Connection, Table, inspect

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import digests, look, migrations, store
from pytest_llmbench.history.location import StoreLocation
from pytest_llmbench.history.store import connect
from pytest_llmbench.history.stored_runs import LAST, read_stored_runs
from pytest_llmbench.history.tables import METADATA, RUN, SESSION, VERDICT
from pytest_llmbench.history.write import prepare, write

pytestmark = pytest.mark.slow

OTHER = replace(builders.KEY, dtype="fp8")


def past(place: StoreLocation, *ids: str) -> list[Any]:
    return [one for runs in read_stored_runs(place, ids or (ID,)).values() for one in runs]


def test_a_night_comes_back_with_all_its_digits(place: StoreLocation) -> None:
    told = outcome(7.4 * (1 + 2**-50))
    told["window_seconds"][3] = None  # what is no number
    told["environment"] = {"driver": "580.1", "nccl": "2.27"}
    assert write(place, document(told)) == 1
    (night,) = past(place)
    assert (night.started, night.job_id, night.valid, night.verdict) == (START, "1000", True, "PASS")
    assert night.statistic_seconds == told["statistic_seconds"] == 7.4 * (1 + 2**-50)
    assert night.log_difference == told["log_difference"]
    assert night.environment == told["environment"]
    (row,) = look.list_verdicts(place, ID)
    assert row["step_seconds"] == told["window_seconds"]
    assert row["metrics"] == {name: [of["value"], of["standard_deviation"]] for name, of in told["metrics"].items()}
    assert (row["log_fingerprints"], row["attempts"], row["gpus"]) == (["0-00ff"], 1, 128)
    assert (row["recipe"], row["size"], row["release"], row["gpu"], row["dtype"]) == (
        *("grok1", "314b", "25.05", "gb200", "bf16"),
    )


def test_text_of_any_kind_is_kept(place: StoreLocation) -> None:
    told = {**outcome(), "text": "Müller's \\x1b \U0001f600 %s {x} :name ?"}
    write(place, document(told, options=["--x=%(y)s"], host="hôte"))
    (row,) = look.list_verdicts(place, ID)
    assert (row["text"], row["options"], row["host"]) == (told["text"], ["--x=%(y)s"], "hôte")


def test_a_run_that_is_judged_again_is_one_night_with_its_last_verdict(place: StoreLocation) -> None:
    write(place, document(outcome(7.4)))
    first = past(place)
    write(place, document({**outcome(7.4), "verdict": "REGRESSION"}))
    (night,) = past(place)
    assert (len(first), night.verdict) == (1, "REGRESSION")
    assert [row["verdict"] for row in look.list_verdicts(place, ID)] == ["PASS", "REGRESSION"]


def test_a_session_that_is_added_after_later_ones_says_no_last_word(place: StoreLocation) -> None:
    """What could not be stored at the time is kept, in its order: the newer verdict and log still stand for the run."""
    early = {**outcome(7.9, logs="1-aa"), "verdict": "INVALID", "reason": "incomplete"}
    write(place, document(outcome(7.5, logs="2-bb"), began=START + timedelta(hours=9)))
    assert write(place, document(early, began=START + timedelta(hours=1))) == 1
    (night,) = past(place)
    assert (night.verdict, night.statistic_seconds, night.logs) == ("PASS", 7.5, "2-bb")
    (shown,) = look.list_runs(place, "", None, 10)
    assert shown["verdict"] == "PASS"
    assert [one["verdict"] for one in look.list_verdicts(place, ID)] == ["INVALID", "PASS"]
    assert [one["verdict"] for one in look.list_everything(place)] == ["INVALID", "PASS"]
    write(place, document(early, began=START + timedelta(hours=10)))
    (night,) = past(place)
    assert (night.verdict, night.logs) == ("INVALID", "1-aa")


def test_a_run_whose_log_has_grown_is_the_same_run(place: StoreLocation) -> None:
    """It was judged while it ran, and its end is another verdict on it."""
    early = {**outcome(7.4, logs="1-aa"), "verdict": "INVALID", "problems": [{"code": "still-running"}]}
    write(place, document(early))
    assert [(one.valid, one.verdict) for one in past(place)] == [(False, "INVALID")]
    write(place, document(outcome(7.4, logs="2-bb")))
    assert [(one.valid, one.verdict) for one in past(place)] == [(True, "PASS")]


def test_a_copy_of_a_log_that_is_dated_otherwise_is_the_same_run(place: StoreLocation) -> None:
    for night in (0, 3):
        write(place, document(outcome(7.4, night, job="7", logs="1-aa")))
    assert len(past(place)) == 1


def test_runs_of_one_job_that_began_together_keep_their_verdicts(place: StoreLocation) -> None:
    """The members of an array, or logs without a job id in a folder of the day: the verdict of one is not another's."""
    slow = {**outcome(7.9, job="7", logs="2-bb"), "verdict": "REGRESSION"}
    for _ in range(2):
        write(place, document(outcome(7.4, job="7", logs="1-aa"), slow))
        assert sorted((one.logs, one.verdict) for one in past(place)) == [("1-aa", "PASS"), ("2-bb", "REGRESSION")]
    write(
        place,
        document(outcome(7.4, job="7", logs="1-aa"), {**slow, "run": {**slow["run"], "log_fingerprint": ["3-cc"]}}),
    )
    assert sorted((one.logs, one.verdict) for one in past(place)) == [("1-aa", "PASS"), ("3-cc", "REGRESSION")]


@pytest.mark.parametrize(
    "other",
    [
        {"night": 1},
        {"job": "8", "logs": "1-aa"},
        {"key": OTHER, "job": "1000", "logs": "0-00ff"},
    ],
    ids=["another night", "another job", "another configuration"],
)
def test_another_run_is_another_night(place: StoreLocation, other: dict[str, Any]) -> None:
    write(place, document(outcome(7.4), outcome(7.4, **other)))
    write(place, document(outcome(7.4, **other), outcome(7.4)))
    assert len(past(place, ID, OTHER.id)) == 2


def test_runs_without_a_start_or_a_fingerprint_are_never_taken_for_each_other(place: StoreLocation) -> None:
    for _ in range(2):
        write(place, document(outcome(7.4, started=None, logs="")))
    assert len(look.list_runs(place, "", None, 10)) == 2
    assert past(place) == []  # nothing says which night


def test_what_is_missing_is_covered_and_is_no_run(place: StoreLocation) -> None:
    write(place, document(outcome(None), outcome(7.4, key=OTHER)))
    told = {row["configuration"]: (row["verdict"], row["number"]) for row in look.list_everything(place)}
    assert told == {ID: ("MISSING", None), OTHER.id: ("PASS", 1)}
    assert past(place) == []
    assert [row["configuration"] for row in look.list_runs(place, "", None, 10)] == [OTHER.id]


def test_only_what_was_judged_as_itself_counts_as_a_night(place: StoreLocation) -> None:
    borrowed = {**outcome(7.4, 1), "notes": [{"code": "other-release", "text": "", "line": 0}]}
    invalid = {**outcome(7.4, 2), "verdict": "INVALID"}
    failed = {**outcome(7.4, 3), "verdict": "TEST_FAILED", "overruled": "PASS"}
    profiled = {**outcome(7.4, 4), "verdict": "NOT_COMPARABLE"}
    write(place, document(outcome(7.4), borrowed, invalid, failed, profiled))
    assert [(one.job_id, one.valid) for one in past(place)] == [
        ("1000", True),
        ("1001", False),
        ("1002", False),
        ("1003", True),
    ]


def test_nights_of_another_window_stay_apart(place: StoreLocation) -> None:
    """A baseline that was recorded since has a trimmed mean: both are known of the run."""
    told = outcome(7.4)
    trimmed = {**told, "statistic_seconds": 7.3, "window": {**told["window"], "statistic": "trimmed_mean"}}
    write(place, document(told))
    write(place, document(trimmed))
    seconds = {one.window.statistic: one.statistic_seconds for one in past(place)}
    assert seconds == {"mean": 7.4, "trimmed_mean": 7.3}


def test_the_runs_of_the_last_days_are_read_oldest_first(place: StoreLocation) -> None:
    """All of a day: a team that runs ten times a day would otherwise forget a change after a month."""
    values = [7.4 + 0.0001 * number for number in range(LAST + 5)]
    day = START + timedelta(days=20)
    later = [outcome(8.0 + hour, logs=f"{hour}", started=day + timedelta(hours=hour)) for hour in range(1, 11)]
    write(place, document(*reversed(nights(values)), *later))
    found = past(place)
    assert [one.statistic_seconds for one in found if one.statistic_seconds < 8] == values[5:]
    same = [one.statistic_seconds for one in found if one.started.date() == day.date()]
    assert same == [values[20], *(8.0 + hour for hour in range(1, 11))]
    assert found[0].started == START + timedelta(days=5)


def test_a_session_is_stored_once_however_often_it_is_tried(place: StoreLocation) -> None:
    told = document(outcome(7.4), outcome(None, key=OTHER))
    assert [write(place, told), write(place, told)] == [2, 0]
    assert len(look.list_everything(place)) == 2


def test_a_session_that_fails_in_the_middle_leaves_nothing(place: StoreLocation) -> None:
    write(place, document(outcome(7.4)))
    broken = document(outcome(7.5, 1), outcome(7.6, 2))
    broken["verdicts"][1]["verdict"] = None  # which no table takes
    with pytest.raises(HistoryError):
        write(place, broken)
    assert [one.statistic_seconds for one in past(place)] == [7.4]
    assert len(look.list_everything(place)) == 1


def test_prune_removes_old_sessions_and_the_runs_that_only_they_judged(place: StoreLocation) -> None:
    old = builders.NOW - timedelta(days=400)
    write(place, document(outcome(7.4), outcome(7.5, 1), outcome(None, key=OTHER), began=old))
    write(place, document(outcome(7.4)))
    before = builders.NOW - timedelta(days=30)
    told = {"verdicts": 3, "sessions": 1, "runs": 1}
    assert look.prune(place, before, dry_run=True) == {**told, "runs": 1}
    assert len(look.list_everything(place)) == 4
    assert look.prune(place, before, dry_run=False) == told
    assert [row["number"] for row in look.list_everything(place)] == [1]
    assert look.prune(place, before, dry_run=False) == {"verdicts": 0, "sessions": 0, "runs": 0}


# --- many at once -----------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from remembered import document, outcome
from pytest_llmbench.history import digests
from pytest_llmbench.history.location import locate_store
from pytest_llmbench.history.write import write

digests.SIZE = 5
place = locate_store({url!r}, Path("."))
for number in range(8):
    write(place, document(outcome(7.4, number), outcome(7.4, {first} + number)))
    print("stored", flush=True)
"""


def writer(url: str, first: int) -> subprocess.Popen[str]:
    code = WRITER.format(path=sys.path, url=url, first=first)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_two_sessions_that_write_at_once_lose_nothing(url: str, place: StoreLocation) -> None:
    """Both make the store and pack it, and half of the runs are judged by both: each is one run with two verdicts."""
    processes = [writer(url, first) for first in (100, 200)]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert said == ["stored\n" * 8] * 2
    rows = look.list_everything(place)
    assert len({row["session"] for row in rows}) == 16
    assert len(rows) == 32
    assert len(past(place)) == 8 + 8 + 8
    with connect(place, writes=False) as connection:
        assert digests.find_covered(connection) == 30


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from remembered import document, outcome
from sqlalchemy import event
from pytest_llmbench.history import store, write
from pytest_llmbench.history.location import locate_store

place = locate_store({url!r}, Path("."))
write.write(place, document(outcome(7.4, 1)))
print("stored", flush=True)
engine_of = store._make_engine

def dying(*arguments):
    engine = engine_of(*arguments)
    event.listen(engine, "commit", lambda connection: os.kill(os.getpid(), signal.SIGKILL))
    return engine

store._make_engine = dying
outcomes = [outcome(7.4, night) for night in range(2, 200)]
write.write(place, document(*outcomes))
"""


def test_a_session_that_is_killed_in_mid_write_takes_nothing_with_it(url: str, place: StoreLocation) -> None:
    """What was acknowledged is there, nothing of the rest is, and the next session writes."""
    write(place, document(outcome(7.4)))
    code = KILLED.format(path=sys.path, url=url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (-9, "stored\n"), done.stderr
    assert [one.job_id for one in past(place)] == ["1000", "1001"]
    assert write(place, document(outcome(7.4, 300))) == 1
    assert [one.job_id for one in past(place)] == ["1000", "1001", "1300"]


def test_a_store_that_another_process_holds_is_told(place: StoreLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PATIENCE_SECONDS", 1)
    write(place, document(outcome(7.4)))
    with connect(place, writes=True):
        with pytest.raises(HistoryError, match="another process held it") as told:
            write(place, document(outcome(7.4, 1)))
        assert str(told.value).startswith(place.shown)
        assert len(past(place)) == 1  # one that reads goes on
    assert write(place, document(outcome(7.4, 1))) == 1


# --- the schema -------------------------------------------------------------------------------------------


def test_the_tables_are_those_that_the_migrations_make(place: StoreLocation) -> None:
    prepare(place)
    with connect(place, writes=False) as connection:
        inspector = inspect(connection)
        for table in METADATA.tables.values():
            made = {column["name"] for column in inspector.get_columns(table.name)}
            assert made == {column.name for column in table.c}, table.name


VERSION_1 = Path(__file__).with_name("version_1.sql")
"""A store of version 1 as the program of that version left it: two sessions, two runs, and one that was missing."""


@pytest.fixture
def first(place: StoreLocation, tmp_path: Path) -> StoreLocation:
    """The same store in both databases: its tables made by the first migration, its rows as they were written."""
    old = sqlite3.connect(":memory:" if place.file is None else place.file)
    old.executescript(VERSION_1.read_text(encoding="utf-8"))
    if place.file is None:
        with connect(place, writes=True) as connection:
            migrations.migrate(connection, place.shown, migrations.MIGRATIONS[:1])
            for table in (SESSION, RUN, VERDICT):
                _copy(old, connection, table)
    old.close()
    return place


def _copy(old: sqlite3.Connection, new: Connection, table: Table) -> None:
    """Copy the rows of a table; the server gives them their numbers, in the same order."""
    found = old.execute(f"SELECT * FROM {table.name} ORDER BY id")  # noqa: S608
    names = [column[0] for column in found.description]
    for row in found:
        values = dict(zip(names, row, strict=True))
        if table is not SESSION:
            del values["id"]
        if table is VERDICT:
            values["counts"] = bool(values["counts"])
        marks = ", ".join(["%s"] * len(values))
        statement = f"INSERT INTO {table.name} ({', '.join(values)}) VALUES ({marks})"  # noqa: S608
        new.exec_driver_sql(statement, tuple(values.values()))


def test_a_store_of_version_1_keeps_its_rows_and_takes_new_ones(first: StoreLocation) -> None:
    """What a run was is known as before; of its logs no hash is, and of a session that comes now it is."""
    prepare(first)
    rows = look.list_everything(first)
    assert [(row["verdict"], row["job_id"], row["run_seconds"]) for row in rows] == [
        ("PASS", "1000", 7.4),
        ("MISSING", None, None),
        ("REGRESSION", "1001", 8.0),
    ]
    assert rows[0]["step_seconds"] == [7.4, None, 7.41]
    assert (rows[0]["environment"], rows[0]["log_fingerprints"]) == ({"driver": "580.1"}, ["0-00ff"])
    assert (rows[0]["git_commit"], rows[0]["started"]) == ("abc", START)
    assert [row["log_sha256"] for row in rows] == [[], [], []]
    assert write(first, document({**outcome(7.4), "log_sha256": ["ab" * 32]})) == 1
    assert [row["number"] for row in look.list_everything(first)] == [1, None, 2, 1]
    assert [row["log_sha256"] for row in look.list_verdicts(first, "1")] == [[], ["ab" * 32]]
    assert [one.job_id for one in past(first)] == ["1000", "1001"]


def test_looking_at_a_store_of_version_1_leaves_it_as_it_is(first: StoreLocation) -> None:
    """An older program may still use it; and a store that cannot be read is never shown as an empty one."""
    for look_at in (
        look.list_everything,
        lambda place: look.list_runs(place, "", None, 9),
        lambda place: look.list_verdicts(place, ID),
    ):
        with pytest.raises(HistoryError, match="found version 1, expected 3: a session with --llmb-history brings it"):
            look_at(first)
    with connect(first, writes=False) as connection:
        assert migrations.read_version(connection, first.shown) == 1
    prepare(first)
    assert len(look.list_everything(first)) == 3


def test_an_older_program_says_that_it_is_too_old(place: StoreLocation) -> None:
    """To whatever it would do, at its start and at its end, and it changes nothing."""
    write(place, document(outcome(7.4)))
    for action in (migrations.migrate, migrations.is_current):
        told = pytest.raises(HistoryError, match="found version 3, expected at most 1: a newer pytest-llmbench wrote")
        with told, connect(place, writes=True) as connection:
            action(connection, place.shown, migrations.MIGRATIONS[:1])
    assert len(past(place)) == 1


def test_each_verdict_keeps_the_hashes_of_the_logs_that_it_rests_on(place: StoreLocation) -> None:
    """A log that was edited and judged again takes nothing from the first verdict."""
    told = outcome(7.4)
    for hashes in (["ab" * 32], ["cd" * 32], [None]):
        write(place, document({**told, "log_sha256": hashes}))
    write(place, document(told))
    rows = look.list_verdicts(place, ID)
    assert [row["log_sha256"] for row in rows] == [["ab" * 32], ["cd" * 32], [None], []]
    assert len({row["number"] for row in rows}) == 1


@pytest.mark.parametrize("version", range(1, len(migrations.MIGRATIONS) + 1))
def test_an_older_store_is_brought_to_the_newest_version(
    place: StoreLocation, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it holds; and so would it be by a version that is still to come."""
    with connect(place, writes=True) as connection:
        migrations.migrate(connection, place.shown, migrations.MIGRATIONS[:version])
    write(place, document(outcome(7.4)))
    to_come = (*migrations.MIGRATIONS, ("ALTER TABLE llmb_run ADD COLUMN rack TEXT", "DROP INDEX llmb_run_fingerprint"))
    monkeypatch.setattr("pytest_llmbench.history.migrations.migrate.__defaults__", (to_come,))
    monkeypatch.setattr("pytest_llmbench.history.migrations.is_current.__defaults__", (to_come,))
    prepare(place)
    with connect(place, writes=False) as connection:
        assert migrations.read_version(connection, place.shown) == len(to_come)
        assert "rack" in {column["name"] for column in inspect(connection).get_columns("llmb_run")}
    assert [one.statistic_seconds for one in past(place)] == [7.4]


def test_a_migration_that_fails_changes_nothing(place: StoreLocation) -> None:
    prepare(place)
    broken = (*migrations.MIGRATIONS, ("ALTER TABLE llmb_run ADD COLUMN rack TEXT", "no statement"))
    with pytest.raises(HistoryError), connect(place, writes=True) as connection:
        migrations.migrate(connection, place.shown, broken)
    with connect(place, writes=False) as connection:
        assert migrations.read_version(connection, place.shown) == len(migrations.MIGRATIONS)
        assert "rack" not in {column["name"] for column in inspect(connection).get_columns("llmb_run")}


def test_the_store_of_a_newer_version_is_left_alone(place: StoreLocation) -> None:
    prepare(place)
    with connect(place, writes=True) as connection:
        connection.exec_driver_sql("UPDATE llmb_version SET version = 99")
    for action in (prepare, past, lambda place: write(place, document(outcome(7.4))), look.list_everything):
        with pytest.raises(HistoryError, match="found version 99, expected at most 3: a newer pytest-llmbench"):
            action(place)


def test_an_empty_store_has_no_past(place: StoreLocation) -> None:
    assert past(place) == []
    assert look.list_everything(place) == []


def test_numbers_that_are_no_numbers_are_none(place: StoreLocation) -> None:
    told = {**outcome(7.4), "expected_seconds": None, "log_difference": None}
    write(place, document(told))
    (night,) = past(place)
    assert (night.expected_seconds, night.log_difference) == (None, None)
    assert math.isfinite(night.statistic_seconds)


def test_times_are_kept_in_utc(place: StoreLocation) -> None:
    """Whatever the zone of the log, and with its microseconds."""
    begins = datetime.fromisoformat("2025-11-01T23:30:00.000001-08:00")
    write(place, document(outcome(7.4, started=begins)))
    (night,) = past(place)
    assert night.started == begins
    assert night.started.tzinfo is UTC


def test_the_files_of_sqlite_lie_where_they_were_asked_for(tmp_path: Path) -> None:
    place = StoreLocation("history.db", tmp_path / "a#b%20?c d.db")
    write(place, document(outcome(7.4)))
    assert [path.name for path in tmp_path.iterdir()] == ["a#b%20?c d.db"]
