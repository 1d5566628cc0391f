"""What only a server can do: refuse a user, and go away."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import builders
import pytest
from databases import SCRIPT, missing, new_database, running
from remembered import document, outcome

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import queries
from pytest_llmbench.history.record import prepare, write
from pytest_llmbench.history.store import connect, locate_store
from pytest_llmbench.pipeline import session_history as remembering
from pytest_llmbench.pipeline.fleet_nights import collect_nights
from pytest_llmbench.pipeline.session_history import SessionHistory


def test_a_user_who_may_not_write_is_told_at_the_start(postgresql: Path, tmp_path: Path) -> None:
    """One that may not even see the tables, and one that may only read them."""
    url = new_database(postgresql)
    owner = locate_store(url, tmp_path)
    prepare(owner)
    with connect(owner, writes=True) as connection:
        name = url.partition("@/")[2].partition("?")[0]
        connection.exec_driver_sql(f"CREATE ROLE r{name} LOGIN")
    reader = locate_store(url.replace("llmb@", f"r{name}@"), tmp_path)
    with pytest.raises(HistoryError, match="permission denied for table llmb_version; the user may not use its tables"):
        prepare(reader)
    with connect(owner, writes=True) as connection:
        connection.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO r{name}")
    with pytest.raises(HistoryError, match="this user may not write to llmb_version: grant it, or use another"):
        prepare(reader)
    assert queries.list_everything(reader) == []


def test_other_tables_of_the_database_are_left_alone(postgresql: Path, tmp_path: Path) -> None:
    place = locate_store(new_database(postgresql), tmp_path)
    with connect(place, writes=True) as connection:
        connection.exec_driver_sql("CREATE TABLE session (id TEXT)")
        connection.exec_driver_sql("INSERT INTO session VALUES ('mine')")
    write(place, document(outcome(7.4)))
    with connect(place, writes=False) as connection:
        assert connection.exec_driver_sql("SELECT id FROM session").all() == [("mine",)]


def test_a_user_who_may_not_delete_stores(postgresql: Path, tmp_path: Path) -> None:
    url = new_database(postgresql)
    owner, name = locate_store(url, tmp_path), f"i{url.partition('@/')[2].partition('?')[0]}"
    prepare(owner)
    with connect(owner, writes=True) as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {name}")
    place = locate_store(url.replace("llmb@", f"{name}@"), tmp_path)
    for night in range(4):
        assert write(place, document(outcome(7.4, night))) == 1
    assert len(SessionHistory(place, [builders.KEY]).past[builders.KEY]) == 4


def stored(remembered: SessionHistory, folder: Path) -> tuple[str, str]:
    return remembered.store([outcome(7.4)], builders.NOW, ["-q"], {}, [folder])


def test_a_server_that_comes_back_gets_the_session_once(
    postgresql: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it had stored the session, and the word of it was lost."""
    place = locate_store(new_database(postgresql), tmp_path)
    remembered = SessionHistory(place, [builders.KEY])
    tries = []

    def interrupted(*arguments: object) -> int:
        tries.append(write(*arguments))  # type: ignore[arg-type]
        if len(tries) == 1:
            raise HistoryError("the connection was lost")
        return tries[-1]

    monkeypatch.setattr(remembering, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr("pytest_llmbench.history.record.write", interrupted)
    told, problem = stored(remembered, tmp_path)
    assert (told, problem, tries) == (f"history: 1 verdict stored in {place.shown}", "", [1, 0])
    assert len(queries.list_everything(place)) == 1


@pytest.mark.slow
def test_a_server_that_is_gone_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if absent := missing():
        pytest.skip(absent)
    monkeypatch.setattr(remembering, "PAUSES", (0.0, 0.0))
    with running() as folder:
        place = locate_store(new_database(folder), tmp_path)
        remembered = SessionHistory(place, [builders.KEY])
    told, problem = stored(remembered, tmp_path)
    assert told == ""
    assert "history: 1 verdict not stored (no verdict depends on it): postgresql://llmb@/" in problem
    assert "see that the server runs and lets this user in; they are kept: llmbench history add llmb-history" in problem
    assert len(list(tmp_path.glob("llmb-history-unsaved-*.json"))) == 1
    with pytest.raises(HistoryError, match="see that the server runs"):
        SessionHistory(place, [builders.KEY])


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason="needs PostgreSQL")
def test_a_server_that_does_not_start_prints_its_log() -> None:
    """Found with the PATH of cron, too; the path of its socket is too long."""
    folder = Path(tempfile.mkdtemp(prefix=f"llmb-pg-{'x' * 100}", dir="/tmp"))
    folder.chmod(0o755)
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [SCRIPT, "serve", folder], env=environment, input="", capture_output=True, text=True, check=False, timeout=90
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "could not create any Unix-domain sockets" in done.stderr
    assert not folder.exists()


@pytest.mark.slow
def test_the_pages_of_a_server_are_those_of_a_file(postgresql: Path, tmp_path: Path) -> None:
    places = [locate_store(url, tmp_path) for url in (new_database(postgresql), "h.db")]
    documents = [document(outcome(7.4 + night % 2, night)) for night in range(9)]
    rows = []
    for place in places:
        for each in (*documents, document(outcome(None))):
            write(place, each)
        fleet = collect_nights(place, None, builders.NOW)
        rows.append([(night.day, night.verdict, night.mfu, night.window) for night in fleet.rows[0].nights])
        assert fleet.rows[0].total is not None
    assert rows[0] == rows[1]
    assert len(rows[0]) >= 9
