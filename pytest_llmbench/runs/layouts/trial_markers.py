"""Marks that say that a log is of an A/B or a search over builds, and so of no night of
its recipe."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import is_remote
from pytest_llmbench.core.log_records import NO_JOB, TRIALS_FILE, VARIANT_MARK
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover.names import strip_compression

LEVELS = 6
"""A launcher puts a log into folders that only it knows, so many below the last that is
known before."""

LARGEST_BYTES = 1 << 24

CLOCKS_DIFFER = (
    3600.0  # seconds by which the clocks of a session and of a file system may be apart
)


_ENTRY = re.compile(r"(?P<token>[!-~]+) (?P<time>\d+)(?: (?P<job>[!-~]+))?")

FIRST_TIME = 10**9
"""A time in 2001 (seconds since the epoch): a smaller one at the end of a line was
truncated, or never a time."""


@dataclass(frozen=True, slots=True)
class TrialsFile:
    """What the file in a folder says of the jobs whose logs lie below it. Times are
    seconds since the epoch."""

    jobs: Mapping[str, float] = field(
        default_factory=dict
    )  # their ids, and when each was submitted
    pending: tuple[float, ...] = ()  # since when each job may run whose id is unknown
    problem: str = ""  # what of the file cannot be read; empty if all of it is


class TrialMarker(NamedTuple):
    """Why logs are of an A/B, or may be."""

    because: str
    pending_since: float | None = (
        # since when a job of unknown id may run, which may be this; None if it is named
        None
    )


def is_marker(name: str) -> bool:
    """Whether a file of this name says of logs that they are of an A/B."""
    return name == TRIALS_FILE or name.endswith(VARIANT_MARK)


@dataclass(slots=True)
class TrialMarkers:
    """The marks that one walk meets, on this machine, in archives and in remote places,
    and those above it."""

    stores: Stores
    _met: dict[str, frozenset[str]] = field(
        default_factory=dict
    )  # by folder the marks in it: their whole paths
    _files: dict[str, TrialsFile | None] = field(
        default_factory=dict
    )  # by folder; None: there is no such file
    _broken: dict[Path, str] = field(
        default_factory=dict
    )  # names of marks beside a log that are no files, and why

    def note(self, folder: str, marks: Iterable[str]) -> None:
        """Take what a folder holds that was read."""
        self._met[folder] = frozenset(marks)

    def find(
        self, logs: Sequence[Path], job: str, modified: float
    ) -> TrialMarker | None:
        """Return the mark that says that logs are of an A/B, or may be; None without
        one.

        `job` is their job id, `modified` when the newest was written (seconds since the
        epoch).
        """
        for log in logs:
            for name in dict.fromkeys((log.name, strip_compression(log.name))):
                mark = f"{name}{VARIANT_MARK}"
                if self._is_there(str(log.parent), mark) and self._is_file(
                    log.with_name(mark)
                ):
                    return TrialMarker(f"{mark} lies beside its log: a run of an A/B")
        folders = dict.fromkeys(
            folder for log in logs for folder in _list_folders(str(log))
        )
        marks = [
            (Path(folder, TRIALS_FILE), file)
            for folder in folders
            if (file := self._read_once(folder))
        ]
        for path, file in marks:
            # one of long before has the same number where Slurm was set up anew
            if modified > file.jobs.get(job, math.inf) - CLOCKS_DIFFER:
                return TrialMarker(f"{path} names its job: a run of an A/B")
        for path, file in marks:
            since = max(
                (since for since in file.pending if modified > since - CLOCKS_DIFFER),
                default=None,
            )
            if since is not None:
                text = f"{path} has a run of an A/B without its job, which may be this: --llmb-resume finds it out"
                return TrialMarker(text, since)
        return None

    def list_problems(self) -> Iterator[tuple[Path, str]]:
        """Yield the files that were looked at for a run and cannot be read, with the
        reason."""
        yield from self._broken.items()
        for folder, file in self._files.items():
            if file and file.problem:
                yield Path(folder, TRIALS_FILE), file.problem

    def _read_once(self, folder: str) -> TrialsFile | None:
        if folder not in self._files:
            there = self._is_there(folder, TRIALS_FILE)
            self._files[folder] = (
                self._read(Path(folder, TRIALS_FILE)) if there else None
            )
        return self._files[folder]

    def _is_there(self, folder: str, name: str) -> bool:
        path = os.path.join(
            folder, name
        )  # not a Path: of thousands of folders hardly one has any
        if folder in self._met:
            return path in self._met[folder]
        return not is_remote(Path(folder)) and os.path.exists(
            path
        )  # above what was given, or where a link leads

    def _is_file(self, mark: Path) -> bool:
        """True if a mark beside a log is a file; a folder or a broken link in its place
        takes no run out."""
        try:
            regular = S_ISREG(self.stores.stat(mark).st_mode)
        except OSError as error:
            self._broken[mark] = str(error.strerror or error)
            return False
        if not regular:
            self._broken[mark] = "not a regular file"
        return regular

    def _read(self, file: Path) -> TrialsFile:
        """Return what a file says; one that cannot be read names no job."""
        try:
            content = self.stores.read_small(file, LARGEST_BYTES + 1)
        except LogError as error:
            return TrialsFile(problem=str(error))
        if len(content) > LARGEST_BYTES:
            return TrialsFile(problem=f"it is larger than {LARGEST_BYTES} bytes")
        return _parse(content.decode("ascii", "replace"))


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
    ended: set[str] = set()
    jobs: dict[str, float] = {}
    damaged: list[tuple[int, str]] = []
    lines = text.split("\n")
    for number, line in enumerate(map(str.strip, lines), 1):
        entry = (
            _ENTRY.fullmatch(line) if number < len(lines) else None
        )  # without a line feed at its end it was cut
        if entry is None or not (entry["job"] or float(entry["time"]) >= FIRST_TIME):
            damaged += [(number, line.partition(" ")[0])] if line else []
            continue
        token, seconds, job = entry["token"], float(entry["time"]), entry["job"]
        if not job:
            begun[token] = seconds
            continue
        # Its log may be older than what became of it, and that of another run in the
        # same allocation is.
        seconds = min(seconds, begun.pop(token, seconds))
        ended.add(token)
        if job != NO_JOB:
            jobs[job] = min(seconds, jobs.get(job, seconds))
    # a line that was cut says no more than that a job began: a later line of the same
    # job says which it became
    open_lines = (
        number
        for number, token in damaged
        if not any(map(str.startswith, ended, repeat(token)))
    )
    problem = next(
        (
            f"line {number} is neither `TOKEN TIME` nor `TOKEN TIME JOB`"
            for number in open_lines
        ),
        "",
    )
    return TrialsFile(jobs, tuple(begun.values()), problem)
