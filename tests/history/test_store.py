"""Locations of stores, and errors for invalid ones, which never print a password."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history.record import prepare
from pytest_llmbench.history.store import SQLITE_HEADER, locate_store


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ("history.db", "history.db"),
        ("./a:b.db", "a:b.db"),
        ("sqlite:///history.db", "history.db"),
        ("sqlite:///sub/../history.db", "sub/../history.db"),
    ],
)
def test_relative_file_is_in_the_session_folder(
    tmp_path: Path, given: str, file: str
) -> None:
    (tmp_path / "sub").mkdir()
    assert locate_store(given, tmp_path).file == tmp_path / file


def test_sqlite_url_with_four_slashes_is_an_absolute_path(tmp_path: Path) -> None:
    assert (
        locate_store(f"sqlite:///{tmp_path}/h.db", Path("/elsewhere")).file
        == tmp_path / "h.db"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "sqlit:///h.db",
            "found the scheme 'sqlit' (did you mean 'sqlite'?); expected a file such as history.db",
        ),
        (
            "postgres://u:secret@h/d",
            "found the scheme 'postgres' (did you mean 'postgresql'?)",
        ),
        ("sqlite:h.db", "no scheme with ://"),
        (
            "sqlite://h.db",
            "found two slashes; write three for a relative path (sqlite:///history.db)",
        ),
        ("sqlite:///", "found no file"),
        ("sqlite:///:memory:", "would be lost"),
        ("sqlite:///h.db?mode=ro", "found options after '?'"),
        ("postgresql://u:secret@h", "names no database"),
        ("postgresql://u:secret@h:port/d", "not a URL"),
        ("nowhere/h.db", "does not exist: make it, or give another one"),
        (".", "not a regular file"),
    ],
)
def test_impossible_store_name_is_reported_with_a_remedy(
    tmp_path: Path, given: str, message: str
) -> None:
    with pytest.raises(HistoryError) as error:
        locate_store(given, tmp_path)
    assert message in str(error.value)
    assert "secret" not in str(error.value)


def test_server_location_hides_the_password(tmp_path: Path) -> None:
    location = locate_store(
        "postgresql://u:secret@h:5432/d?sslmode=require&sslpassword=secret", tmp_path
    )
    assert location.shown == "postgresql://u@h:5432/d?sslmode=require"
    assert "secret" not in repr(location)
    assert "secret" in location.url


def test_unreachable_server_is_reported_without_the_password(tmp_path: Path) -> None:
    location = locate_store(f"postgresql://u:secret@/d?host={tmp_path}", tmp_path)
    with pytest.raises(HistoryError) as error:
        prepare(location)
    assert str(error.value).startswith("postgresql://u@/d?host=")
    assert "check that the server runs and accepts this user" in str(error.value)
    assert "secret" not in str(error.value)


def test_database_of_another_program_is_not_changed(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE users (name TEXT)")
    other.close()
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(
        HistoryError,
        match=r"found the tables of another program \(users\): give another file",
    ):
        prepare(locate_store("other.db", tmp_path))
    assert (tmp_path / "other.db").read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"verdict,seconds\n", b"SQLite format 2\x00" + bytes(100)]
)
def test_file_that_is_no_store_is_not_changed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "h.csv").write_bytes(content)
    with pytest.raises(
        HistoryError, match="the file is not a database: give another name"
    ):
        locate_store("h.csv", tmp_path)
    assert (tmp_path / "h.csv").read_bytes() == content


def test_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """As created by `mktemp`."""
    (tmp_path / "h.db").touch()
    prepare(locate_store("h.db", tmp_path))
    assert (tmp_path / "h.db").read_bytes().startswith(SQLITE_HEADER)


def test_reading_command_does_not_create_a_missing_history_database(
    tmp_path: Path,
) -> None:
    with pytest.raises(HistoryError, match="no such file"):
        locate_store("h.db", tmp_path, writes=False)


def test_missing_sqlalchemy_or_psycopg_is_reported_with_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = importlib.util.find_spec
    for package, options, extra in (
        ("sqlalchemy", "h.db", "history"),
        ("psycopg", "postgresql://u:secret@h/d", "postgresql"),
    ):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, absent=package: None if name == absent else result(name),
        )
        with pytest.raises(
            HistoryError,
            match=rf"needs {package}: pip install 'pytest-llmbench\[{extra}\]'",
        ) as error:
            locate_store(options, tmp_path)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("version", "fits"), [("2.0.9", False), ("2.0.10", True), ("2.1.0b1", True)]
)
def test_old_sqlalchemy_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    if fits:
        locate_store("h.db", tmp_path)
        return
    with pytest.raises(
        HistoryError,
        match=r"^h.db: needs sqlalchemy 2.0.10, found 2.0.9: pip install 'sqlalchemy>=2",
    ):
        locate_store("h.db", tmp_path)


def test_old_sqlite_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.26.0")
    with pytest.raises(
        HistoryError,
        match=r"needs SQLite 3\.35, and this Python has 3\.26\.0: use another Python",
    ):
        locate_store("h.db", tmp_path)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A read-only folder: a read-only mount if root can make one, since root can write
    to any folder."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    if os.getuid() != 0:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)], check=False
    ).returncode:
        pytest.skip("root may not mount here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_read_only_folder_is_reported(read_only: Path) -> None:
    with pytest.raises(
        HistoryError, match=r"sealed cannot be written: change its permissions"
    ):
        locate_store("h.db", read_only)
