"""One file of this machine: what it says, and in which state it was read."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import Ending, ParsedLog, RegexDialect
from pytest_llmbench.ingest.sources.local import FileState, read_state, select_numbers

ReadResult: TypeAlias = ParsedLog | Ending | LogError | None
"""What a file says: a log; a standard error that tells of an ending, or of none; or why it cannot be read."""

SETTLED_NS = 2_000_000_000
"""What changed this shortly before it was read may change again and look the same: there are file systems that keep
times in steps of two seconds."""


class FileToRead(NamedTuple):
    """A file to be read: as a log, or as a standard error, of which only the ending counts. The path is a text."""

    path: str
    is_log: bool


def read_file(
    wanted: FileToRead, definitions: Sequence[RegexDialect], *, keep: bool
) -> tuple[ReadResult, FileState | None]:
    """Return what a file says, and where that may be kept its state: it is the same before and after, and settled."""
    began = time.time_ns()
    before = _stat(wanted.path) if keep else None
    result = _parse(wanted, definitions)
    if (
        before is None
        or isinstance(result, LogError)
        or began - max(before.st_mtime_ns, before.st_ctime_ns) < SETTLED_NS
    ):
        return result, None
    state = read_state(wanted.path)
    return result, state if state is not None and state[:-1] == select_numbers(before) else None


def _parse(wanted: FileToRead, definitions: Sequence[RegexDialect]) -> ReadResult:
    from pytest_llmbench.ingest.parse.read import read_ending, read_log

    path = Path(wanted.path)
    try:
        return read_log(path, definitions) if wanted.is_log else read_ending(path)
    except LogError as error:
        return error


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # reading it says why
        return None
