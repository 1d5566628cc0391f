"""Markers that exclude a log: it belongs to an A/B comparison or a search over builds.

Such a log is not a daily run of its recipe.
"""

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
"""Largest number of folder levels from a trials file down to the log.

The trials file is in the last folder that is known before the launch.
"""

LARGEST_BYTES = 1 << 24

# seconds by which the clocks of a session and of a file system may differ
CLOCKS_DIFFER = 3600.0

_ENTRY = re.compile(r"(?P<token>[!-~]+) (?P<time>\d+)(?: (?P<job>[!-~]+))?")

FIRST_TIME = 10**9
"""Smallest valid time, in 2001 (seconds since the epoch).

A smaller number at the end of a line was truncated, or is not a time.
"""


@dataclass(frozen=True, slots=True)
class TrialsFile:
    """The jobs listed in a trials file, whose logs are below its folder.

    Times are seconds since the epoch.
    """

    # submission time by job id
    jobs: Mapping[str, float] = field(default_factory=dict)
    pending: tuple[float, ...] = ()  # earliest start of each job with an unknown id
    problem: str = ""  # the first unreadable line, or ""


class TrialMarker(NamedTuple):
    """The evidence that logs are, or may be, of an A/B comparison."""

    because: str
    # earliest start of the job of unknown id that may be this one; None if it is listed
    pending_since: float | None = None


def is_marker(name: str) -> bool:
    """True if the file name is that of a trials file or of a marker next to a log."""
    return name == TRIALS_FILE or name.endswith(VARIANT_MARK)


@dataclass(slots=True)
class TrialMarkers:
    """The markers found by one walk (local, archived, remote), and those in parent
    folders."""

    stores: Stores
    # paths of the markers in each folder
    _markers_by_folder: dict[str, frozenset[str]] = field(default_factory=dict)
    # trials file of each folder, None if it has none
    _files: dict[str, TrialsFile | None] = field(default_factory=dict)
    # markers next to a log that are not files, with the reason
    _broken: dict[Path, str] = field(default_factory=dict)

    def add_folder(self, folder: str, markers: Iterable[str]) -> None:
        """Add the markers of a folder that was read."""
        self._markers_by_folder[folder] = frozenset(markers)

    def find(
        self, logs: Sequence[Path], job: str, modified: float
    ) -> TrialMarker | None:
        """Return the marker that concerns these logs, or None.

        `job` is their job id, `modified` the modification time of the newest (seconds
        since the epoch).
        """
        for log in logs:
            for name in dict.fromkeys((log.name, strip_compression(log.name))):
                marker_name = f"{name}{VARIANT_MARK}"
                if self._exists(str(log.parent), marker_name) and self._is_file(
                    log.with_name(marker_name)
                ):
                    return TrialMarker(
                        f"{marker_name} is next to its log: a run of an A/B"
                    )
        folders = dict.fromkeys(
            folder for log in logs for folder in _list_folders(str(log))
        )
        trials_files = [
            (Path(folder, TRIALS_FILE), file)
            for folder in folders
            if (file := self._read_once(folder))
        ]
        for path, file in trials_files:
            # an old job has the same number if Slurm was set up anew
            if modified > file.jobs.get(job, math.inf) - CLOCKS_DIFFER:
                return TrialMarker(f"{path} lists its job: a run of an A/B")
        for path, file in trials_files:
            since = max(
                (since for since in file.pending if modified > since - CLOCKS_DIFFER),
                default=None,
            )
            if since is not None:
                text = f"{path} lists a run of an A/B without a job id, which may be this one: --llmb-resume finds it out"
                return TrialMarker(text, since)
        return None

    def list_problems(self) -> Iterator[tuple[Path, str]]:
        """Yield the marker files that could not be read, with the reason."""
        yield from self._broken.items()
        for folder, file in self._files.items():
            if file and file.problem:
                yield Path(folder, TRIALS_FILE), file.problem

    def _read_once(self, folder: str) -> TrialsFile | None:
        if folder not in self._files:
            exists = self._exists(folder, TRIALS_FILE)
            self._files[folder] = (
                self._read(Path(folder, TRIALS_FILE)) if exists else None
            )
        return self._files[folder]

    def _exists(self, folder: str, name: str) -> bool:
        # not a Path, for speed: hardly any of thousands of folders has a marker
        path = os.path.join(folder, name)
        if folder in self._markers_by_folder:
            return path in self._markers_by_folder[folder]
        # a parent of the given path, or the target of a link
        return not is_remote(Path(folder)) and os.path.exists(path)

    def _is_file(self, marker: Path) -> bool:
        """True if a marker is a regular file; a folder or broken link excludes no run."""
        try:
            regular = S_ISREG(self.stores.stat(marker).st_mode)
        except OSError as error:
            self._broken[marker] = str(error.strerror or error)
            return False
        if not regular:
            self._broken[marker] = "not a regular file"
        return regular

    def _read(self, file: Path) -> TrialsFile:
        """Read a trials file; an unreadable file lists no jobs."""
        try:
            content = self.stores.read_small(file, LARGEST_BYTES + 1)
        except LogError as error:
            return TrialsFile(problem=str(error))
        if len(content) > LARGEST_BYTES:
            return TrialsFile(problem=f"it is larger than {LARGEST_BYTES} bytes")
        return _parse(content.decode("ascii", "replace"))


def _list_folders(log: str) -> Iterator[str]:
    """Yield the folders above a log, nearest first."""
    for _ in range(LEVELS):
        folder = os.path.dirname(log)
        if folder == log:
            return
        yield folder
        log = folder


def _parse(text: str) -> TrialsFile:
    """Parse the marker file of trials.

    Reports the first damaged line, unless a later line of its token completes it.
    """
    started: dict[str, float] = {}
    ended: set[str] = set()
    jobs: dict[str, float] = {}
    damaged: list[tuple[int, str]] = []
    lines = text.split("\n")
    for number, line in enumerate(map(str.strip, lines), 1):
        # a last line without a line feed was truncated
        entry = _ENTRY.fullmatch(line) if number < len(lines) else None
        if entry is None or not (entry["job"] or float(entry["time"]) >= FIRST_TIME):
            if line:
                damaged.append((number, line.partition(" ")[0]))
            continue
        token, seconds, job = entry["token"], float(entry["time"]), entry["job"]
        if not job:
            started[token] = seconds
            continue
        # Use the earlier time: the log may be older than the line with its job id.
        seconds = min(seconds, started.pop(token, seconds))
        ended.add(token)
        if job != NO_JOB:
            jobs[job] = min(seconds, jobs.get(job, seconds))
    # a truncated line only records the start of a job; ignore it if a later line of the
    # same token contains the job id
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
    return TrialsFile(jobs, tuple(started.values()), problem)
