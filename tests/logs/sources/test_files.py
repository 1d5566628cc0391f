"""Reading a file that changes meanwhile."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.sources import files

SIZE = 3 * files.BLOCK


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of three blocks."""
    path = tmp_path / "x.log"
    path.write_bytes(b"a" * files.BLOCK + b"b" * files.BLOCK + b"c" * files.BLOCK)
    return path


def test_log_is_read_to_its_last_byte(log: Path) -> None:
    assert b"".join(files.read_blocks(log)) == log.read_bytes()


def test_bytes_appended_during_reading_are_ignored(log: Path) -> None:
    complete = log.read_bytes()
    reading = files.read_blocks(log)
    text = next(reading)
    with log.open("ab") as file:
        file.write(b"more")
    assert text + b"".join(reading) == complete


def shorten(log: Path) -> None:
    os.truncate(log, SIZE - 1)


def rotate(log: Path) -> None:
    log.rename(log.with_suffix(".1"))
    log.touch()


def rewrite(log: Path) -> None:
    """Rewrite the file with more text than before, as `copytruncate` does."""
    log.write_bytes(b"x" * SIZE * 2)


def replace(log: Path) -> None:
    other = log.with_suffix(".new")
    other.write_bytes(log.read_bytes())
    other.replace(log)


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (shorten, "shorter than at its opening|it was shortened"),
        (rotate, "another file has its name"),
        (replace, "another file has its name"),
        (Path.unlink, "it was deleted or moved"),
        (rewrite, "its beginning changed"),
    ],
)
def test_log_that_changes_during_reading_raises_an_error(
    log: Path, change: Callable[[Path], object], what: str, after: int
) -> None:
    reading = files.read_blocks(log)
    for _ in range(after):
        next(reading)
    change(log)
    with pytest.raises(
        LogError, match=rf"x\.log: changed while it was read \(.*({what})"
    ):
        b"".join(reading)


def test_read_error_in_the_middle_is_reported(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = files.read_blocks(log)
    next(reading)

    def read(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", read)
    with pytest.raises(LogError, match=r"cannot read .*x\.log: Input/output error"):
        next(reading)


@pytest.mark.parametrize("call", ["fstat", "close"])
def test_file_error_is_reported_from_stat_but_not_from_close(
    log: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    complete = log.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        if call == "close":
            assert b"".join(files.read_blocks(log)) == complete
        else:
            with pytest.raises(
                LogError, match=r"cannot read .*x\.log: Input/output error"
            ):
                next(files.read_blocks(log))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def server(path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.close()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (fifo, "not a regular file"),
        (server, "No such device or address"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_pipe_or_socket_is_refused_without_waiting(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(LogError, match=f"cannot read .*x: {why}"):
        b"".join(files.read_blocks(path))
