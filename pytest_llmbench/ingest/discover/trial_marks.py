"""Marks that say that a log is of an A/B or a search over builds, and so of no night of its recipe."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import is_remote
from pytest_llmbench.core.models.logs import NO_JOB, TRIALS_FILE, VARIANT_MARK
from pytest_llmbench.ingest.discover.names import strip_compression
from pytest_llmbench.ingest.sources.stores import Stores

LEVELS = 6
"""A launcher puts a log into folders that only it knows, so many below the last that is known before."""

LARGEST_BYTES = 1 << 24

CLOCKS_DIFFER = 3600.0  # seconds by which the clocks of a session and of a file system may be apart


@dataclass(frozen=True, slots=True)
class TrialsFile:
    """What the file in a folder says of the jobs whose logs lie below it. Times are seconds since the epoch."""

    jobs: Mapping[str, float] = field(default_factory=dict)  # their ids, and when each was submitted
    pending: float = math.inf  # since when a job may run of which nothing says the id


def is_mark(name: str) -> bool:
    """Whether a file of this name says of logs that they are of an A/B."""
    return name == TRIALS_FILE or name.endswith(VARIANT_MARK)


@dataclass(slots=True)
class TrialMarks:
    """The marks that one walk meets, on this machine, in archives and in remote places, and those above it."""

    stores: Stores
    _met: dict[str, frozenset[str]] = field(default_factory=dict)  # by folder the marks in it: their whole paths
    _files: dict[str, TrialsFile | None] = field(default_factory=dict)  # by folder; None: there is no such file

    def note(self, folder: str, marks: Iterable[str]) -> None:
        """Take what a folder holds that was read."""
        self._met[folder] = frozenset(marks)

    def find(self, logs: Sequence[Path], job: str, modified: float) -> str:
        """Return why logs are of an A/B; empty where nothing says so. `job` is their job id, `modified` when the newest
        was written (seconds since the epoch)."""
        for log in logs:
            for name in dict.fromkeys((log.name, strip_compression(log.name))):
                if self._is_there(str(log.parent), f"{name}{VARIANT_MARK}"):
                    return f"{name}{VARIANT_MARK} lies beside its log: a run of an A/B"
        for folder in dict.fromkeys(folder for log in logs for folder in _list_folders(str(log))):
            marks = self._read_once(folder)
            if marks is None:
                continue
            file = Path(folder, TRIALS_FILE)
            # one of long before has the same number where Slurm was set up anew
            if modified > marks.jobs.get(job, math.inf) - CLOCKS_DIFFER:
                return f"{file} names its job: a run of an A/B"
            if modified > marks.pending - CLOCKS_DIFFER:
                return f"{file} has a run of an A/B without its job, which may be this: --llmb-resume finds it out"
        return ""

    def _read_once(self, folder: str) -> TrialsFile | None:
        if folder not in self._files:
            there = self._is_there(folder, TRIALS_FILE)
            self._files[folder] = self._read(Path(folder, TRIALS_FILE)) if there else None
        return self._files[folder]

    def _is_there(self, folder: str, name: str) -> bool:
        path = os.path.join(folder, name)  # not a Path: of thousands of folders hardly one has any
        if folder in self._met:
            return path in self._met[folder]
        return not is_remote(Path(folder)) and os.path.exists(path)  # above what was given, or where a link leads

    def _read(self, file: Path) -> TrialsFile:
        """Return what a file says; one that cannot be read may speak of any job."""
        try:
            return _parse(self.stores.read_small(file, LARGEST_BYTES).decode("utf-8", "replace"))
        except LogError:
            return TrialsFile(pending=0.0)


def _list_folders(log: str) -> Iterator[str]:
    """Yield the folders above a log, the nearest first."""
    for _ in range(LEVELS):
        folder = os.path.dirname(log)
        if folder == log:
            return
        yield folder
        log = folder


def _parse(text: str) -> TrialsFile:
    begun: dict[str, float] = {}
    jobs: dict[str, float] = {}
    for line in filter(None, text.splitlines()):
        token, _, rest = line.partition(" ")
        moment, _, became = rest.partition(" ")
        seconds = float(moment) if moment.isdecimal() else 0.0  # a line that was cut is of any time
        if not became:
            begun[token] = seconds
            continue
        # Its log may be older than what became of it, and that of another run in the same allocation is.
        seconds = min(seconds, begun.pop(token, seconds))
        if became != NO_JOB:
            jobs[became] = min(seconds, jobs.get(became, seconds))
    return TrialsFile(jobs, min(begun.values(), default=math.inf))
