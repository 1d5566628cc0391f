"""Failures of a server: refused permissions and lost connections."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import builders
from support.databases import missing, new_database, running
from support.remembered import document, outcome, session

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history import queries
from pytest_llmbench.history.record import prepare, write
from pytest_llmbench.history.store import connect, locate_store
from pytest_llmbench.session import session_history as remembering
from pytest_llmbench.session.session_history import SessionHistory


def test_user_without_write_permission_is_reported(
    database: str, tmp_path: Path
) -> None:
    """A user who cannot see the tables, and a user who can only read them."""
    owner = locate_store(database, tmp_path)
    prepare(owner)
    with connect(owner, writes=True) as connection:
        name = database.partition("@/")[2].partition("?")[0]
        connection.exec_driver_sql(f"CREATE ROLE r{name} LOGIN")
    reader = locate_store(database.replace("llmb@", f"r{name}@"), tmp_path)
    with pytest.raises(
        HistoryError,
        match="permission denied for table llmb_version; the user may not use its tables",
    ):
        prepare(reader)
    with connect(owner, writes=True) as connection:
        connection.exec_driver_sql(
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO r{name}"
        )
    with pytest.raises(
        HistoryError,
        match="this user may not write to llmb_version: grant the permission, or use another user",
    ):
        prepare(reader)
    assert queries.list_everything(reader) == []


def test_user_without_delete_permission_stores_sessions(
    database: str, tmp_path: Path
) -> None:
    owner, name = (
        locate_store(database, tmp_path),
        f"i{database.partition('@/')[2].partition('?')[0]}",
    )
    prepare(owner)
    with connect(owner, writes=True) as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        connection.exec_driver_sql(
            f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {name}"
        )
    location = locate_store(database.replace("llmb@", f"{name}@"), tmp_path)
    for day in range(4):
        assert write(location, document(outcome(7.4, day))) == 1
    assert len(SessionHistory(location, [builders.KEY]).past[builders.KEY]) == 4


def test_other_tables_of_the_database_are_kept(database: str, tmp_path: Path) -> None:
    location = locate_store(database, tmp_path)
    with connect(location, writes=True) as connection:
        connection.exec_driver_sql("CREATE TABLE session (id TEXT)")
        connection.exec_driver_sql("INSERT INTO session VALUES ('mine')")
    write(location, document(outcome(7.4)))
    with connect(location, writes=False) as connection:
        assert connection.exec_driver_sql("SELECT id FROM session").all() == [("mine",)]


def stored(remembered: SessionHistory, folder: Path) -> tuple[str, str]:
    return remembered.store(session(outcome(7.4)), [folder])


def test_session_is_stored_once_after_the_server_connection_was_lost(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the server had stored the session, but its reply was lost."""
    location = locate_store(database, tmp_path)
    remembered = SessionHistory(location, [builders.KEY])
    tries = []

    def interrupted(*arguments: object) -> int:
        tries.append(write(*arguments))  # type: ignore[arg-type]
        if len(tries) == 1:
            raise HistoryError("the connection was lost")
        return tries[-1]

    monkeypatch.setattr(remembering, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr("pytest_llmbench.history.record.write", interrupted)
    output, problem = stored(remembered, tmp_path)
    assert (output, problem, tries) == (
        f"history: 1 verdict stored in {location.shown}",
        "",
        [1, 0],
    )
    assert len(queries.list_everything(location)) == 1


@pytest.mark.slow
def test_lost_server_is_reported_and_verdicts_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if absent := missing():
        pytest.skip(absent)
    monkeypatch.setattr(remembering, "PAUSES", (0.0, 0.0))
    with running() as folder, new_database(folder) as url:
        location = locate_store(url, tmp_path)
        remembered = SessionHistory(location, [builders.KEY])
    error, problem = stored(remembered, tmp_path)
    assert error == ""
    assert (
        "history: 1 verdict not stored (no verdict depends on it): postgresql://llmb@/"
        in problem
    )
    assert (
        "check that the server runs and accepts this user; they were saved to a file, add it with: llmbench history add llmb-history"
        in problem
    )
    assert len(list(tmp_path.glob("llmb-history-unsaved-*.json"))) == 1
    with pytest.raises(HistoryError, match="check that the server runs"):
        SessionHistory(location, [builders.KEY])
