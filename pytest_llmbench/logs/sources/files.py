"""Read a file of this machine as it was when opened.

Other processes may be writing to it.
"""

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

# Larger files are compared by samples: to hash them takes longer than to search them
# for steps with several threads.
COMPARED_WHOLE = 8 << 20

# Writing through `mmap` to a page that is not yet written back changes no timestamp. On
# ext4 it did again after 36 s (measured): the 30 s of `vm.dirty_expire_centisecs` and
# the 5 s of its timer. Laptops keep pages for 10 minutes, NFS clients a file's times
# for one. A file that changed longer ago than this has no such page.
LATE_WRITES_NS = 3600 * 10**9

# File systems without write-back: timestamps change with the first write only, however
# late the next one is.
IN_MEMORY = frozenset(("tmpfs", "ramfs"))
MOUNTS = "/proc/self/mountinfo"  # the mounted file systems


# Bytes of text that a file may have at any compression ratio.
UNSUSPECTED = 1 << 30

# Maximum compression ratio beyond UNSUSPECTED: a higher ratio indicates a decompression
# bomb.
RATIO = 500


class FileState(NamedTuple):
    """The properties that must be equal for a file to count as unchanged."""

    size: int
    digest: str  # of all bytes; of samples if larger than COMPARED_WHOLE
    # For larger files: inode, device, modification time and change time (ns).
    numbers: tuple[int, ...] = ()


# Bytes per sample of a large file.
SAMPLE_BYTES = 4096

_CHANGED = "changed while it was read ({what}): read it again when nothing writes to it"


class File:
    """A regular file, limited to the bytes that it had when opened.

    Several threads may share it. Raises LogError if it is not a regular file (a pipe
    would block) or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Use it in a `with` statement."""
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
        # Seconds since 1970, by the clock of the file system.
        self.modified = self._opened.st_mtime
        if not S_ISREG(self._opened.st_mode):
            self._close()
            raise LogError(f"cannot read {path}: not a regular file")
        if self.size > BLOCK:
            keep_freed_memory()
        if self.size > UNSUSPECTED and not _has_data(self._handle, self.size // RATIO):
            self._close()
            raise LogError(
                f"{path} has {self.size} bytes, of which less than 1/{RATIO} was ever written: the rest are holes, "
                f"which no log of more than {UNSUSPECTED} bytes has"
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
        with suppress(OSError):  # everything was read and checked before
            os.close(self._handle)

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes `begin` to `end`. Raises LogError if they no longer exist."""
        data = b""
        while len(data) < end - begin:
            try:
                chunk = os.pread(
                    self._handle, end - begin - len(data), begin + len(data)
                )
            except OSError as error:
                raise _make_error(self.path, error) from error
            if not chunk:
                self._raise_shortened(begin + len(data))
            data = data + chunk if data else chunk
        return data

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes. Raises LogError if the file changed meanwhile other than by
        growing."""
        head = b""
        for begin in range(0, self.size, BLOCK):
            block = self.read(begin, min(begin + BLOCK, self.size))
            head = head or block
            yield block
        self.refuse_changed(head)

    def refuse_changed(self, head: bytes) -> None:
        """Raise LogError if the file was shortened, replaced, deleted or rewritten.

        `head` are the first bytes, as read before.
        """
        try:
            change = self._describe_change(head)
        except OSError as error:
            raise _make_error(self.path, error) from error
        if change:
            raise LogError(f"{self.path}: {_CHANGED.format(what=change)}")

    def _describe_change(self, head: bytes) -> str:
        """Describe how the file changed since it was opened.

        Returns "" if the file is the same or has only grown.
        """
        try:
            status = self.path.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return "it was deleted or moved"
            raise
        if (status.st_dev, status.st_ino) != self.identity:
            return "another file has its name"
        if os.fstat(self._handle).st_size < self.size:
            return "it was shortened"
        # Shortened, then rewritten beyond its old size.
        if os.pread(self._handle, len(head), 0) != head:
            return "its beginning changed"
        return ""

    def _raise_shortened(self, offset: int) -> None:
        """Raise LogError for a file that now ends at `offset`."""
        change = f"it is {self.size - offset} bytes shorter than at its opening"
        raise LogError(f"{self.path}: {_CHANGED.format(what=change)}")


def read_samples(path: Path, size: int) -> tuple[bytes, ...]:
    """Return the distinct samples at the beginning, middle and end of a file.

    Each has at most `size` bytes. Raises LogError if the file cannot be read.
    """
    with File(path) as file:
        last = max(0, file.size - size)
        begins = sorted({0, last // 2, last})
        return tuple(file.read(begin, min(begin + size, file.size)) for begin in begins)


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, which is opened with the first block.

    Raises LogError if it cannot be read, or changed meanwhile other than by growing.
    """
    with File(path) as file:
        yield from file.blocks()


def slice_blocks(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in blocks of at most `size` bytes."""
    return (
        block[begin : begin + size]
        for block in blocks
        for begin in range(0, len(block), size)
    )


def _make_error(path: Path, error: OSError) -> LogError:
    """Convert the error of reading a file to a LogError."""
    return LogError(f"cannot read {path}: {error.strerror or error}")


def _has_data(handle: int, least: int) -> bool:
    """True if at least `least` bytes of a file were written, or if this is unknown.

    A hole of terabytes takes no space on disk, but hours to read.
    """
    if not hasattr(os, "SEEK_DATA"):
        return True
    offset = written = 0
    try:
        while written < least:
            offset = os.lseek(handle, offset, os.SEEK_DATA)
            end = os.lseek(handle, offset, os.SEEK_HOLE)
            written, offset = written + end - offset, end
    except OSError as error:
        # ENXIO: only a hole follows. After other errors the answer is unknown.
        return error.errno != errno.ENXIO
    return True


def read_state(
    path: str, now_ns: int, like: FileState | None = None
) -> FileState | None:
    """Read the state of a file, with which it can be recognised as unchanged.

    `now_ns` is the current time. `like` is an earlier state: a file of another size is
    not read. The state is None if the file cannot be read or its size differs. For a
    large file it is also None if the file was changed recently or in the future, or its
    file system has no reliable timestamps.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            size = status.st_size
            if not S_ISREG(status.st_mode) or (like is not None and like.size != size):
                return None
            if size <= COMPARED_WHOLE:
                digest = hashlib.sha256(os.pread(handle, size, 0))
                return FileState(size, digest.hexdigest())
            # Only samples of a large file are compared, so its timestamps must show any
            # later change.
            last_change_ns = max(status.st_mtime_ns, status.st_ctime_ns)
            if now_ns - last_change_ns < LATE_WRITES_NS or is_in_memory(status):
                return None
            offsets = (0, size // 3, size * 2 // 3, size - SAMPLE_BYTES)
            digest = hashlib.sha256(
                b"".join(os.pread(handle, SAMPLE_BYTES, offset) for offset in offsets)
            )
        finally:
            os.close(handle)
    except OSError:
        return None
    numbers = status.st_ino, status.st_dev, status.st_mtime_ns, status.st_ctime_ns
    return FileState(size, digest.hexdigest(), numbers)


def is_in_memory(status: os.stat_result) -> bool:
    """True if a file is on a mounted in-memory file system.

    Raises OSError if the mounted file systems cannot be listed.
    """
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
        fields = (line.split() for line in mounts)
        # Field 2 is the device; the type of the file system follows the separator "-".
        return any(
            mount[2] == device and mount[mount.index("-") + 1] in IN_MEMORY
            for mount in fields
        )


class HashedFile:
    """The bytes of a file, hashed while they are iterated, which works once.

    The bytes that were read determine `state`.
    """

    def __init__(self, path: Path) -> None:
        """The file is opened on iteration."""
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
