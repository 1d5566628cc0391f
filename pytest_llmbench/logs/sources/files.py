"""A file of this machine that others may be writing, as it was when it was opened."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import NamedTuple

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.runtime import keep_freed_memory

BLOCK = 1 << 20

# Files of more bytes are not compared whole: to hash one takes longer than to search it
# for steps with several threads.
COMPARED_WHOLE = 8 << 20

# What is written through `mmap` into a page that is still to be written back moves no
# time: measured on ext4, after 36 s it did again, the 30 s of
# `vm.dirty_expire_centisecs` and the 5 s of its timer. Laptops keep pages for 10
# minutes, clients of NFS the times of a file for one. A file that changed longer ago
# than this has no such page.
LATE_WRITES_NS = 3600 * 10**9

# Nothing is written back there, so no time moves after the first writing, however late
# the next one is.
IN_MEMORY = frozenset(("tmpfs", "ramfs"))
MOUNTS = "/proc/self/mountinfo"  # which file systems there are


# Bytes that may come out of a file at any ratio.
UNSUSPECTED = 1 << 30

# Beyond UNSUSPECTED, more bytes of text than this for one compressed byte are no log's
# but a bomb's.
RATIO = 500


class FileState(NamedTuple):
    """What has to be the same for a file to count as unchanged."""

    size: int
    digest: str  # of all its bytes; of a file of more than COMPARED_WHOLE, of samples
    # of such a file its inode, device, and times of the last writing and of the last
    # change of anything (ns)
    numbers: tuple[int, ...] = ()


# How many bytes the samples of a large file have.
SAMPLES = 4096

_CHANGED = "changed while it was read ({what}): read it again when nobody writes it"


class File:
    """A regular file as it was when it was opened, without later additions. Several
    threads may read it.

    LogError if it is not a regular file (a pipe would wait for a writer) or cannot be
    read.
    """

    def __init__(self, path: Path) -> None:
        """Open it; to be used with `with`."""
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _make_error(path, error) from error
        try:
            self._opened = os.fstat(self._handle)
        except OSError as error:
            self._close()
            raise _make_error(path, error) from error
        self.size = self._opened.st_size
        self.identity = self._opened.st_dev, self._opened.st_ino
        self.modified = (
            self._opened.st_mtime
        )  # seconds since 1970, by the clock of its file system
        if not S_ISREG(self._opened.st_mode):
            self._close()
            raise LogError(f"cannot read {path}: not a regular file")
        if self.size > BLOCK:
            keep_freed_memory()
        if self.size > UNSUSPECTED and not _holds_data(
            self._handle, self.size // RATIO
        ):
            self._close()
            raise LogError(
                f"{path} has {self.size} bytes, of which less than a {RATIO}th were ever written: the rest are holes, "
                f"and a log of more than {UNSUSPECTED} has none like that"
            )

    def __enter__(self) -> File:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        with suppress(OSError):  # all was read by then, and checked
            os.close(self._handle)

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a part; LogError where they are not there any more."""
        data = b""
        while len(data) < end - begin:
            try:
                more = os.pread(
                    self._handle, end - begin - len(data), begin + len(data)
                )
            except OSError as error:
                raise _make_error(self.path, error) from error
            if not more:
                self._refuse_short(begin + len(data))
            data = data + more if data else more
        return data

    def blocks(self) -> Iterator[bytes]:
        """Yield all of it; LogError, too, where it changed meanwhile other than by
        growing."""
        head = b""
        for begin in range(0, self.size, BLOCK):
            block = self.read(begin, min(begin + BLOCK, self.size))
            head = head or block
            yield block
        self.refuse_changed(head)

    def refuse_changed(self, head: bytes) -> None:
        """LogError where it was shortened, replaced, deleted or written anew; `head` is
        what was read at its begin."""
        try:
            change = self._find_change(head)
        except OSError as error:
            raise _make_error(self.path, error) from error
        if change:
            raise LogError(f"{self.path}: {_CHANGED.format(what=change)}")

    def _find_change(self, head: bytes) -> str:
        """Return what became of the file since it was opened, empty where it is the
        same or has only grown."""
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
        if (
            os.pread(self._handle, len(head), 0) != head
        ):  # shortened and written beyond its old size again
            return "it begins otherwise"
        return ""

    def _refuse_short(self, place: int) -> None:
        missing = f"it is {self.size - place} bytes shorter than at its opening"
        raise LogError(f"{self.path}: {_CHANGED.format(what=missing)}")


def read_samples(path: Path, size: int) -> tuple[bytes, ...]:
    """Return the beginning, the middle and the end of a file, each of at most `size`
    bytes, as far as they differ.

    LogError if it cannot be read.
    """
    with File(path) as file:
        last = max(0, file.size - size)
        begins = sorted({0, last // 2, last})
        return tuple(file.read(begin, min(begin + size, file.size)) for begin in begins)


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes that a file had when it was opened, which is when the first block
    is asked for.

    LogError where it cannot be read, or changed meanwhile other than by growing.
    """
    with File(path) as file:
        yield from file.blocks()


def slice_blocks(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in blocks of at most so many."""
    return (
        block[begin : begin + size]
        for block in blocks
        for begin in range(0, len(block), size)
    )


def _make_error(path: Path, error: OSError) -> LogError:
    return LogError(f"cannot read {path}: {error.strerror or error}")


def _holds_data(handle: int, least: int) -> bool:
    """Whether so many bytes of a file were written: a hole of terabytes takes no space
    on a disk, and hours to read."""
    if not hasattr(os, "SEEK_DATA"):
        return True
    place = written = 0
    try:
        while written < least:
            place = os.lseek(handle, place, os.SEEK_DATA)
            end = os.lseek(handle, place, os.SEEK_HOLE)
            written, place = written + end - place, end
    except OSError as error:
        return (
            error.errno != errno.ENXIO
        )  # which says that only a hole follows; else it cannot be told
    return True


def read_state(
    path: str, now_ns: int, like: FileState | None = None
) -> FileState | None:
    """Read the state of a file, None if no state can prove that it did not change.

    So it is for a file that cannot be read, has another size than `like`, or is large
    and was changed recently, in the future, or on a file system without reliable times.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            size = status.st_size
            if not S_ISREG(status.st_mode) or (like is not None and like.size != size):
                return None
            if size <= COMPARED_WHOLE:
                return FileState(
                    size, hashlib.sha256(os.pread(handle, size, 0)).hexdigest()
                )
            if now_ns - max(
                status.st_mtime_ns, status.st_ctime_ns
            ) < LATE_WRITES_NS or is_in_memory(status):
                return None
            places = (0, size // 3, size * 2 // 3, size - SAMPLES)
            digest = hashlib.sha256(
                b"".join(os.pread(handle, SAMPLES, place) for place in places)
            )
        finally:
            os.close(handle)
    except OSError:
        return None
    numbers = status.st_ino, status.st_dev, status.st_mtime_ns, status.st_ctime_ns
    return FileState(size, digest.hexdigest(), numbers)


def is_in_memory(status: os.stat_result) -> bool:
    """True if the file system of a file writes nothing back, or is unknown."""
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
        fields = (line.split() for line in mounts)
        return any(
            mount[2] == device and mount[mount.index("-") + 1] in IN_MEMORY
            for mount in fields
        )


class UnchangedFile:
    """The bytes of a file, to be read once as `read_blocks` yields them, and then the
    state that the file had."""

    def __init__(self, path: Path) -> None:
        """Take its path: it is opened when it is iterated."""
        self._path = path
        self._digest = hashlib.sha256()
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        for block in read_blocks(self._path):
            self._digest.update(block)
            self._size += len(block)
            yield block

    @property
    def state(self) -> FileState:
        """The state of the bytes that were read."""
        return FileState(self._size, self._digest.hexdigest())
