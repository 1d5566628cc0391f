"""Reports are written whole or not at all."""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_llmbench.report.document import write_whole

CONTENT = b"<testsuites/>" * 20


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file grow beyond this many bytes: writing fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_folders_of_the_report_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "llmb.xml"
    write_whole(path, CONTENT)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["llmb.xml"]


def test_the_report_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    """The CI server often collects it as another user."""
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "llmb.xml", CONTENT)
    finally:
        os.umask(before)
    assert (tmp_path / "llmb.xml").stat().st_mode & 0o777 == 0o644


def test_a_report_that_does_not_fit_leaves_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "llmb.xml"
    path.write_text("old")
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        write_whole(path, CONTENT)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["file/llmb.xml", "file/deeper/llmb.xml", "folder"])
def test_a_path_that_cannot_be_a_report_is_an_os_error_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=name.partition("/")[0]):
        write_whole(tmp_path / name, CONTENT)
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_link_keeps_pointing_at_the_report(tmp_path: Path) -> None:
    (tmp_path / "latest.xml").symlink_to(tmp_path / "monday.xml")
    write_whole(tmp_path / "latest.xml", CONTENT)
    assert (tmp_path / "latest.xml").is_symlink()
    assert (tmp_path / "monday.xml").read_bytes() == CONTENT


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As root, --llmb-junit=/dev/null would otherwise replace the device by a file."""
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, CONTENT)
    reader.join(10)
    assert received == [CONTENT]
    assert pipe.is_fifo()
