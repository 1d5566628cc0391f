"""Damaged or invalid stores are reported in one line with a remedy, and never used."""

from __future__ import annotations

import html
import os
import re
import sqlite3
import subprocess
from pathlib import Path
from random import Random

import pytest
from support import builders
from support.remembered import ID, document, outcome, restore, session

from pytest_llmbench.cli import main as cli
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import queries, record
from pytest_llmbench.history.store import (
    PATIENCE_SECONDS,
    StoreLocation,
    connect,
    locate_store,
)
from pytest_llmbench.session.session_history import SessionHistory
from pytest_llmbench.session.unsaved import write_unsaved

NIGHTS = 20
PLACES = 12


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store of several days."""
    location = StoreLocation("h.db", tmp_path_factory.mktemp("sound") / "h.db")
    for day in range(NIGHTS):
        record.write(location, document(outcome(7.4 + day / 1000, day)))
    assert location.file is not None
    return location.file.read_bytes()


def open_as_session(folder: Path) -> None:
    """Open a store as pytest does before collection, and store a session as it does at
    its end."""
    location = locate_store("h.db", folder)
    history = SessionHistory(location, [builders.KEY])
    history.add_daily_runs(restore(outcome(7.4, NIGHTS)))


def tell(folder: Path) -> str:
    """Return the error that a session gets for an unusable store, "" for a usable one."""
    try:
        open_as_session(folder)
    except HistoryError as error:
        return str(error)
    return ""


def check(path: Path) -> str:
    """Return SQLite's own result of checking a file."""
    try:
        with sqlite3.connect(path) as database:
            return str(database.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        database.close()


def commands(folder: Path) -> list[list[str]]:
    kept = write_unsaved(session(outcome(7.5, NIGHTS)), [folder])
    return [
        ["list"],
        ["show", ID],
        ["show", "1"],
        ["export", "-o", f"{folder}/h.csv"],
        ["export", "--format", "json"],
        ["prune", "--keep", "1d", "--yes"],
        ["add", str(kept)],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PLACES))
def test_flipped_bits_are_reported_or_harmless(
    sound: bytes,
    tmp_path: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At offsets of a seeded generator: if `integrity_check` finds nothing, a value may
    have changed."""
    random, damaged = Random(number), bytearray(sound)  # noqa: S311 (no cryptography)
    for _ in range(1 + number % 5):
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    (tmp_path / "h.db").write_bytes(damaged)
    monkeypatch.chdir(tmp_path)
    output = check(tmp_path / "h.db")
    for command in commands(tmp_path):
        before = (tmp_path / "h.db").read_bytes()
        code = cli.main(["history", *command, "--history", "h.db"])
        error = capsys.readouterr().err
        assert code in ((0, 2) if output == "ok" else (2,)), output
        if code:
            assert error.startswith("llmbench: h.db: ")
            assert error.count("\n") == 1
            assert (tmp_path / "h.db").read_bytes() == before
    raised = tell(tmp_path)
    assert raised.startswith("h.db: ") if raised else output == "ok"


@pytest.mark.parametrize("left", [1, 15, 16, 99, 100, 4095, 4096, 5000, 8192, 20000])
def test_truncated_store_is_reported(sound: bytes, tmp_path: Path, left: int) -> None:
    (tmp_path / "h.db").write_bytes(sound[:left])
    with pytest.raises(HistoryError, match=r"^h\.db: "):
        open_as_session(tmp_path)
    assert (tmp_path / "h.db").read_bytes() == sound[:left]


def test_recovery_command_in_the_error_saves_readable_rows_of_a_damaged_database(
    sound: bytes, tmp_path: Path
) -> None:
    """An index and a page of the verdicts are damaged."""
    path = tmp_path / "the h.db"
    with sqlite3.connect(":memory:") as names:
        names.deserialize(sound)
        pages = dict(names.execute("SELECT name, rootpage FROM sqlite_master"))
    names.close()
    damaged = bytearray(sound)
    at = 4096 * (pages["llmb_run_started"] - 1)
    damaged[at : at + 4096] = bytes(4096)
    path.write_bytes(damaged)
    with pytest.raises(HistoryError, match="the file is damaged") as error:
        record.prepare(locate_store("the h.db", tmp_path))
    command = str(error.value).partition("save the readable rows: ")[2]
    assert command == (
        f"sqlite3 '{path}' .dump | sed 's/^ROLLBACK.*/COMMIT;/' | sqlite3 '{tmp_path}/the h-saved.db'"
    )
    if subprocess.run(
        ["sh", "-c", "command -v sqlite3"], capture_output=True, check=False
    ).returncode:
        pytest.skip("needs the shell of SQLite")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    saved = locate_store("the h-saved.db", tmp_path)
    record.prepare(saved)
    assert len(queries.list_everything(saved)) == NIGHTS
    assert record.write(saved, document(outcome(7.5, NIGHTS))) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM llmb_version", "NoResultFound"),
        ("INSERT INTO llmb_version VALUES (4)", "MultipleResultsFound"),
        ("UPDATE llmb_version SET version = 'four'", "ValueError"),
        ("UPDATE llmb_version SET version = 5", "a newer pytest-llmbench wrote it"),
        ("UPDATE llmb_version SET version = 2", "from before its first release"),
        (
            "DROP TABLE llmb_verdict",
            "found no table llmb_verdict: restore a backup, or give another location",
        ),
        ("ALTER TABLE llmb_verdict DROP COLUMN counts", "no such column"),
        ("UPDATE llmb_verdict SET run_seconds = 'long'", "long"),
        ("UPDATE llmb_verdict SET run_seconds = -1", "a run that counts took -1.0 s"),
        ("UPDATE llmb_verdict SET run_seconds = NULL", "a run that counts took None s"),
        ("UPDATE llmb_verdict SET log_difference = 9e999", "inf"),
        ("UPDATE llmb_verdict SET reason = x'ff'", r"b'\\xff'"),
        ("UPDATE llmb_verdict SET session = CAST(x'ff' AS TEXT)", ""),
        ("UPDATE llmb_run SET environment = '[]'", "environment is []"),
        ("UPDATE llmb_run SET environment = '{'", "JSONDecodeError"),
        ("UPDATE llmb_run SET started = 'noon'", "noon"),
        ("UPDATE llmb_session SET started = 'noon'", "noon"),
    ],
)
def test_impossible_value_in_the_store_is_reported(
    sound: bytes, tmp_path: Path, change: str, message: str
) -> None:
    """SQLite stores a text in a numeric column, and any program may write any value."""
    (tmp_path / "h.db").write_bytes(sound)
    with sqlite3.connect(tmp_path / "h.db") as database:
        database.execute(change)
    database.close()
    if message:
        with pytest.raises(HistoryError, match=rf"^h\.db: .*{re.escape(message)}"):
            open_as_session(tmp_path)
    else:
        open_as_session(tmp_path)


BOTH, EXPORTED = ("history export", "site --days 9999"), ("history export",)

UNKNOWN = (
    (BOTH, "UPDATE llmb_verdict SET run_seconds = 'long'", "run_seconds is 'long'"),
    (
        BOTH,
        "UPDATE llmb_verdict SET run_seconds = NULL",
        "a run that counts took None s",
    ),
    (BOTH, "UPDATE llmb_verdict SET log_difference = 9e999", "log_difference is inf"),
    (BOTH, "UPDATE llmb_run SET environment = '[]'", "environment is []"),
    (BOTH, "UPDATE llmb_verdict SET metrics = '{\"mfu\": 7}'", "non-iterable"),
    (EXPORTED, "UPDATE llmb_verdict SET step_seconds = x'00'", "buffer"),
    (
        BOTH,
        'UPDATE llmb_verdict SET metrics = \'{"mfu": ["much", null]}\'',
        "a metric is 'much'",
    ),
    (BOTH, "UPDATE llmb_verdict SET verdict = x'00'", "verdict is b"),
    (BOTH, "UPDATE llmb_run SET nodes = 'x'", "JSONDecodeError"),
)
"""Which commands read it, what somebody did, and what is said of it: no page shows a
step."""


@pytest.mark.parametrize(
    ("command", "change", "message"),
    [(command, *case) for commands, *case in UNKNOWN for command in commands],
)
def test_command_prints_how_to_delete_the_session_with_an_invalid_value(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    command: str,
    change: str,
    message: str,
) -> None:
    """One invalid entry must not break every export."""
    sound, capsys = request.getfixturevalue("sound"), request.getfixturevalue("capsys")
    arguments = [
        *command.split(),
        "-o",
        str(tmp_path / "out"),
        "--history",
        str(tmp_path / "h.db"),
    ]
    (tmp_path / "h.db").write_bytes(sound)
    path = str(tmp_path / "h.db")
    with sqlite3.connect(path) as database:
        database.execute(f"{change} WHERE id = 3")
        (session,) = database.execute(
            "SELECT session FROM llmb_verdict WHERE id = 3"
        ).fetchone()
    database.close()
    left_out = command.startswith("site")  # a page has the other nights, and a caution
    assert cli.main(arguments) == (0 if left_out else 2)
    error = capsys.readouterr().err
    assert message in error
    assert left_out == (message in read_page(tmp_path / "out"))
    statement = error.partition("remove the verdicts of that session: ")[2]
    assert statement == f"DELETE FROM llmb_verdict WHERE session = '{session}'\n"  # noqa: S608 (what is told)
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    assert cli.main(arguments) == 0
    assert not capsys.readouterr().err
    assert message not in read_page(tmp_path / "out")


def read_page(folder: Path) -> str:
    page = folder / "index.html"
    return html.unescape(page.read_text()) if page.exists() else ""


# --- other files next to a store ------------------------------------------------------


@pytest.mark.slow
def test_write_ahead_log_of_a_killed_program_is_read(
    sound: bytes, tmp_path: Path
) -> None:
    """Another program switched the file to a write-ahead log, which SQLite reads from
    the same folder."""
    path = tmp_path / "h.db"
    path.write_bytes(sound)
    program = (
        "import os, sqlite3; database = sqlite3.connect('h.db'); database.execute('PRAGMA journal_mode = WAL'); "
        "database.execute('UPDATE llmb_verdict SET text = 7 WHERE id = 1'); database.commit(); os._exit(1)"
    )
    subprocess.run(["python3", "-c", program], cwd=tmp_path, check=False)
    assert (tmp_path / "h.db-wal").stat().st_size
    open_as_session(tmp_path)
    rows = queries.list_everything(locate_store("h.db", tmp_path))
    assert [row["text"] for row in rows][:1] == ["7"]
    assert len(rows) == NIGHTS


def test_history_with_an_invalid_sqlite_write_ahead_log_is_read(
    sound: bytes, tmp_path: Path
) -> None:
    damaged = bytearray(sound)
    damaged[18:20] = b"\x02\x02"  # the header states that there is a write-ahead log
    (tmp_path / "h.db").write_bytes(damaged)
    (tmp_path / "h.db-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(50))
    open_as_session(tmp_path)
    assert len(queries.list_everything(locate_store("h.db", tmp_path))) == NIGHTS


def test_sqlite_journal_with_random_bytes_is_ignored(
    sound: bytes, tmp_path: Path
) -> None:
    (tmp_path / "h.db").write_bytes(sound)
    (tmp_path / "h.db-journal").write_bytes(os.urandom(2000))
    open_as_session(tmp_path)
    assert len(queries.list_everything(locate_store("h.db", tmp_path))) == NIGHTS


@pytest.mark.slow
def test_wait_for_a_locked_history_database_lasts_as_documented(
    location: StoreLocation,
) -> None:
    record.prepare(location)
    with connect(location, writes=True) as connection:
        if location.file:
            assert (
                connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
                == PATIENCE_SECONDS * 1000
            )
        else:
            assert (
                connection.exec_driver_sql("SHOW lock_timeout").scalar_one()
                == f"{PATIENCE_SECONDS}s"
            )
    page = (Path(__file__).parents[2] / "docs" / "reference" / "history.md").read_text()
    assert f"wait, for up to {PATIENCE_SECONDS} s" in page
    assert f"holds for {PATIENCE_SECONDS} s" in page
