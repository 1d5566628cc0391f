"""Reading a file of this machine that others may be writing: what was there when it was opened, and nothing else."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import TypeAlias

from pytest_llmbench.core.errors import LogError

BLOCK = 1 << 20

FileState: TypeAlias = tuple[int, ...]
"""Size, inode, device, time of the last writing and of the last change of anything (ns), checksum of samples.

No program sets the time of the last change: what was copied with the times of another file, or restored from a backup,
has a new one. Where a file system keeps none, or clocks were set back, the samples tell.
"""

# How many bytes the samples at both ends of a file have, a sixteenth of it; there are two short ones between them.
SAMPLES = range(512, 4097)
SHORT_SAMPLE = 256

_CHANGED = "changed while it was read ({what}): read it again when nobody writes it"


class File:
    """A regular file as it was when it was opened: what is appended later is left out. Several threads may read it.

    LogError where it is no regular file (nothing else is ever opened to wait for a writer) or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Open it; to be used with `with`."""
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _make_error(path, error) from error
        self._opened = os.fstat(self._handle)
        self.size = self._opened.st_size
        self.identity = self._opened.st_dev, self._opened.st_ino
        if not S_ISREG(self._opened.st_mode):
            os.close(self._handle)
            raise LogError(f"cannot read {path}: not a regular file")

    def __enter__(self) -> File:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._handle)

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a part; LogError where they are not there any more."""
        data = b""
        while len(data) < end - begin:
            try:
                more = os.pread(self._handle, end - begin - len(data), begin + len(data))
            except OSError as error:
                raise _make_error(self.path, error) from error
            if not more:
                self._refuse_short(begin + len(data))
            data = data + more if data else more
        return data

    def blocks(self) -> Iterator[bytes]:
        """Yield all of it; LogError, too, where it changed meanwhile other than by growing."""
        head = b""
        for begin in range(0, self.size, BLOCK):
            block = self.read(begin, min(begin + BLOCK, self.size))
            head = head or block
            yield block
        self.refuse_changed(head)

    def refuse_changed(self, head: bytes) -> None:
        """LogError where it was shortened, replaced, deleted or written anew; `head` is what was read at its begin."""
        try:
            change = self._find_change(head)
        except OSError as error:
            raise _make_error(self.path, error) from error
        if change:
            raise LogError(f"{self.path}: {_CHANGED.format(what=change)}")

    def _find_change(self, head: bytes) -> str:
        """Return what became of the file since it was opened, empty where it is the same or has only grown."""
        try:
            named = self.path.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return "it was deleted or moved"
            raise
        if (named.st_dev, named.st_ino) != self.identity:
            return "another file has its name"
        if os.fstat(self._handle).st_size < self.size:
            return "it was shortened"
        if os.pread(self._handle, len(head), 0) != head:  # shortened and written beyond its old size again
            return "it begins otherwise"
        return ""

    def _refuse_short(self, place: int) -> None:
        missing = f"it is {self.size - place} bytes shorter than at its opening"
        raise LogError(f"{self.path}: {_CHANGED.format(what=missing)}")


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes that a file had when it was opened, which is when the first block is asked for.

    LogError where it cannot be read, or changed meanwhile other than by growing.
    """
    with File(path) as file:
        yield from file.blocks()


def _make_error(path: Path, error: OSError) -> LogError:
    return LogError(f"cannot read {path}: {error.strerror or error}")


def read_state(path: str) -> FileState | None:
    """Return the state of a file; None where it cannot be opened, or is nothing that can be read again."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            size = status.st_size
            sample = min(max(SAMPLES[0], size // 16), SAMPLES[-1])
            check = zlib.crc32(os.pread(handle, sample, 0))
            if size > sample:
                check = zlib.crc32(os.pread(handle, SHORT_SAMPLE, size // 3), check)
                check = zlib.crc32(os.pread(handle, SHORT_SAMPLE, size * 2 // 3), check)
                check = zlib.crc32(os.pread(handle, sample, size - sample), check)
        finally:
            os.close(handle)
    except OSError:
        return None
    return (*select_numbers(status), check)


def select_numbers(status: os.stat_result) -> FileState:
    """Return what the operating system says of the state of a file."""
    return status.st_size, status.st_ino, status.st_dev, status.st_mtime_ns, status.st_ctime_ns
