"""Reading a file of this machine that others may be writing: what was there when it was opened, and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from pytest_llmbench.errors import LogError

BLOCK = 1 << 20

_CHANGED = "changed while it was read ({what}): read it again when nobody writes it"


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes that a file had when it was opened; what is appended later is left out.

    LogError where it is no regular file (nothing else is ever opened to wait for a writer), cannot be read, or was
    shortened, replaced, deleted or written anew meanwhile.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield from _read(path, handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror or error}") from error


def _read(path: Path, handle: int) -> Iterator[bytes]:
    opened = os.fstat(handle)
    if not S_ISREG(opened.st_mode):
        raise LogError(f"cannot read {path}: not a regular file")
    left = opened.st_size
    head = b""
    while left:
        block = os.read(handle, min(left, BLOCK))
        if not block:
            raise LogError(f"{path}: {_CHANGED.format(what=f'it is {left} bytes shorter than at its opening')}")
        head = head or block
        left -= len(block)
        yield block
    if change := _change(path, handle, opened, head):
        raise LogError(f"{path}: {_CHANGED.format(what=change)}")


def _change(path: Path, handle: int, opened: os.stat_result, head: bytes) -> str:
    """Return what became of a file since it was opened, empty where it is the same or has only grown."""
    try:
        named = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return "it was deleted or moved"
        raise
    if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
        return "another file has its name"
    if os.fstat(handle).st_size < opened.st_size:
        return "it was shortened"
    if os.pread(handle, len(head), 0) != head:  # shortened and written beyond its old size again
        return "it begins otherwise"
    return ""
