"""One file of this machine: what it says, and in which state it was read."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import Ending, ParsedLog, RegexDialect
from pytest_llmbench.ingest.sources.local import State, file_numbers, state_of

Said: TypeAlias = ParsedLog | Ending | LogError | None
"""What a file says: a log; a standard error that tells of an ending, or of none; or why it cannot be read."""

SETTLED_NS = 2_000_000_000
"""What changed this shortly before it was read may change again and look the same: there are file systems that keep
times in steps of two seconds."""


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
    return said, state if state is not None and state[:-1] == file_numbers(before) else None


def _said(wanted: Wanted, definitions: Sequence[RegexDialect]) -> Said:
    from pytest_llmbench.ingest.parse.read import read_ending, read_log

    path = Path(wanted.path)
    try:
        return read_log(path, definitions) if wanted.is_log else read_ending(path)
    except LogError as error:
        return error


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # reading it says why
        return None
