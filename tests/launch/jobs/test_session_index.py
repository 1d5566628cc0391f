"""The index of sessions, and hints for sessions in other folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.job_specs import START

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.launch.jobs import journal as places
from pytest_llmbench.launch.jobs.journal import Journal


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "sessions.jsonl"


def begin_session(folder: Path, index: Path, *, finish: bool = False) -> str:
    """Begin a session, and return its id."""
    journal = Journal(folder, index)
    session = journal.begin("llmbench", START)
    if finish:
        journal.finish(START)
    journal.close()
    return session


def explain(index: Path | None, session: str, folder: Path) -> str:
    with pytest.raises(LaunchError) as caught:
        places.require_journal(index, session, folder)
    return str(caught.value)


def test_missing_journal_error_names_the_folder_of_the_newest_unfinished_session(
    tmp_path: Path, index: Path
) -> None:
    begin_session(tmp_path / "old", index)
    session = begin_session(tmp_path / "a folder", index)
    finished = begin_session(tmp_path / "new", index, finish=True)
    assert explain(index, "", tmp_path / "here") == (
        f"no session found: {tmp_path}/here does not exist\n"
        "  choose the folder of the session with --llmb-journal=DIR; --llmb-submit-only prints it\n"
        f"  session {session} is in\n"
        f"    --llmb-journal='{tmp_path}/a folder'"
    )
    assert explain(index, finished, tmp_path / "here").endswith(
        f"{finished} is in\n    --llmb-journal={tmp_path}/new"
    )
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    "content", [b"", b'\xff\n[1]\n{}\nnull\n["x"', b'["20261121-0545-3f9a", "/gone"]\n']
)
def test_damaged_index_is_ignored(tmp_path: Path, index: Path, content: bytes) -> None:
    index.parent.mkdir()
    index.write_bytes(content)
    (tmp_path / "here").mkdir()
    text = explain(index, "", tmp_path / "here")
    assert text.startswith(
        f"no session found: there is no journal in {tmp_path}/here\n"
    )
    assert "is in" not in text
    begin_session(tmp_path / "new", index)
    assert "is in" in explain(index, "", tmp_path / "here")


def test_unwritable_index_is_ignored(tmp_path: Path) -> None:
    for path in (None, tmp_path, Path("/proc/sessions.jsonl")):
        begin_session(tmp_path / "here", path or tmp_path)
        places.require_journal(path, "", tmp_path / "here")


def test_parent_of_the_journal_folder_is_refused_with_the_correct_folder(
    tmp_path: Path, index: Path
) -> None:
    begin_session(tmp_path / ".llmbench", index)
    text = explain(index, "", tmp_path)
    assert f"did you mean --llmb-journal={tmp_path}/.llmbench?" in text
    assert text.count(str(tmp_path / ".llmbench")) == 1


def test_error_names_the_journal_folder_that_contains_the_requested_session(
    tmp_path: Path, index: Path
) -> None:
    session = begin_session(tmp_path / "one", index)
    begin_session(tmp_path / "two", index)
    journal = Journal(tmp_path / "two", index)
    with pytest.raises(
        LaunchError,
        match=rf"is not in .*unfinished sessions: (?s:.*)--llmb-journal={tmp_path}/one",
    ):
        journal.resume(session)
    journal.close()
