"""One file of this machine: what it says, and in which state it was read."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import Ending, ParsedLog, RegexDialect

Said: TypeAlias = ParsedLog | Ending | LogError | None
"""What a file says: a log; a standard error that tells of an ending, or of none; or why it cannot be read."""

State: TypeAlias = tuple[int, ...]
"""Size, inode, device, time of the last writing and of the last change of anything (ns), checksum of samples.

No program sets the time of the last change: what was copied with the times of another file, or restored from a backup,
has a new one. Where a file system keeps none, or clocks were set back, the samples tell.
"""

SETTLED_NS = 2_000_000_000
"""What changed this shortly before it was read may change again and look the same: there are file systems that keep
times in steps of two seconds."""

SAMPLES = range(512, 4097)
"""How many bytes the samples at both ends of a file have, a sixteenth of it; there are two short ones between them."""
SHORT_SAMPLE = 256


class Wanted(NamedTuple):
    """A file to be read: as a log, or as a standard error, of which only the ending counts. The path is a text."""

    path: str
    is_log: bool


def read_file(wanted: Wanted, definitions: Sequence[RegexDialect], *, keep: bool) -> tuple[Said, State | None]:
    """Return what a file says, and where that may be kept its state: it is the same before and after, and settled."""
    began = time.time_ns()
    before = _status(wanted.path) if keep else None
    said = _said(wanted, definitions)
    if before is None or isinstance(said, LogError) or began - max(before.st_mtime_ns, before.st_ctime_ns) < SETTLED_NS:
        return said, None
    state = state_of(wanted.path)
    return said, state if state is not None and state[:-1] == _numbers(before) else None


def _said(wanted: Wanted, definitions: Sequence[RegexDialect]) -> Said:
    from pytest_llmbench.ingest.parse.read import read_ending, read_log

    path = Path(wanted.path)
    try:
        return read_log(path, definitions) if wanted.is_log else read_ending(path)
    except LogError as error:
        return error


def state_of(path: str) -> State | None:
    """Return the state of a file; None where it cannot be opened, or is nothing that can be read again."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            size = found.st_size
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
    return (*_numbers(found), check)


def _numbers(status: os.stat_result) -> State:
    return status.st_size, status.st_ino, status.st_dev, status.st_mtime_ns, status.st_ctime_ns


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # reading it says why
        return None
