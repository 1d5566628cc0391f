"""Markers that exclude a log: it belongs to an A/B comparison or a search over builds.

Such a log is not a daily run of its recipe.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from msgspec import Struct, field

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import is_remote
from pytest_llmbench.core.log_records import NO_JOB, TRIALS_FILE, VARIANT_MARK
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover.names import strip_compression

LEVELS = 6
"""Largest number of folder levels from a trials file down to the log.

The trials file is in the last folder that is known before the launch.
"""

LARGEST_BYTES = 1 << 24

# seconds by which the clocks of a session and of a file system may differ
CLOCKS_DIFFER = 3600.0

# `TOKEN TIME` at the start of a job, `TOKEN TIME JOB` once its job id is known
_ENTRY = compile_on_use(r"(?P<token>[!-~]+) (?P<time>\d+)(?: (?P<job>[!-~]+))?")

FIRST_TIME = 10**9
"""Smallest valid time, in 2001 (seconds since the epoch).

A smaller number at the end of a line was truncated, or is not a time.
"""


class TrialsFile(Struct, frozen=True):
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


NO_MARKERS: frozenset[str] = frozenset()


def is_marker(name: str) -> bool:
    """True if the file name is that of a trials file or of a marker next to a log."""
    return name == TRIALS_FILE or name.endswith(VARIANT_MARK)


class TrialMarkers(Struct):
    """The markers found by one walk (local, archived, remote), and those in parent
    folders."""

    stores: Stores
    # paths of the markers in each folder
    _markers_by_folder: dict[str, frozenset[str]] = field(default_factory=dict)
    # trials file of each folder, None if it has none
    _files: dict[str, TrialsFile | None] = field(default_factory=dict)
    # the folder of the last log, with the path and contents of the trials files at and
    # above it
    _files_above: tuple[str | None, tuple[tuple[Path, TrialsFile], ...]] = (None, ())
    # markers next to a log that are not files, with the reason
    _broken: dict[Path, str] = field(default_factory=dict)

    def add_folder(self, folder: str, markers: Iterable[str]) -> None:
        """Add the markers of a folder that was read."""
        # Nearly all folders have none and share one empty set, which takes 216 bytes.
        self._markers_by_folder[folder] = frozenset(markers) or NO_MARKERS

    def find(
        self, locations: Sequence[tuple[str, str]], job: str, modified: float
    ) -> TrialMarker | None:
        """Return the marker that concerns the logs at these locations, or None.

        A location is a folder, "" for the current one, and the name of a log.

        A marker next to a log takes precedence over a trials file that lists the job,
        and such a file over one that lists a job with an unknown id. `job` is the job
        id of the logs, `modified` the modification time of the newest log (seconds
        since the epoch).
        """
        # a marker next to a log, named like the log or like the uncompressed log
        for folder, log_name in locations:
            for name in dict.fromkeys((log_name, strip_compression(log_name))):
                marker_name = f"{name}{VARIANT_MARK}"
                if self._exists(folder or os.curdir, marker_name) and self._is_file(
                    Path(folder, marker_name)
                ):
                    return TrialMarker(
                        f"{marker_name} is next to its log: a run of an A/B"
                    )
        # a trials file in a folder above the logs that lists the job
        trials_files = dict(
            trials_file
            for folder, _ in locations
            for trials_file in self._find_trials_files(folder)
        )
        for path, trials_file in trials_files.items():
            # a log written before this start is of an old job with the same number,
            # from before Slurm was set up anew
            start = trials_file.jobs.get(job, math.inf)
            if modified > start - CLOCKS_DIFFER:
                return TrialMarker(f"{path} lists its job: a run of an A/B")
        # a trials file that lists a job with an unknown id, started before the log
        for path, trials_file in trials_files.items():
            possible_starts = [
                start
                for start in trials_file.pending
                if modified > start - CLOCKS_DIFFER
            ]
            if possible_starts:
                text = f"{path} lists a run of an A/B without a job id, which may be this one: --llmb-resume finds it out"
                return TrialMarker(text, pending_since=max(possible_starts))
        return None

    def list_problems(self) -> Iterator[tuple[Path, str]]:
        """Yield the marker files that could not be read, with the reason."""
        yield from self._broken.items()
        for folder, trials_file in self._files.items():
            if trials_file and trials_file.problem:
                yield Path(folder, TRIALS_FILE), trials_file.problem

    def _find_trials_files(self, folder: str) -> tuple[tuple[Path, TrialsFile], ...]:
        """Return the trials files in a folder and its parents, nearest first.

        Each file is read once: thousands of logs may be below it.
        """
        last_folder, files_above = self._files_above
        if folder == last_folder:
            return files_above
        files = {parent: self._read_once(parent) for parent in _list_folders(folder)}
        files_above = tuple(
            (Path(parent, TRIALS_FILE), file)
            for parent, file in files.items()
            if file is not None
        )
        self._files_above = folder, files_above
        return files_above

    def _read_once(self, folder: str) -> TrialsFile | None:
        """Return the trials file of a folder, None if it has none."""
        if self._markers_by_folder.get(folder) is NO_MARKERS:
            return None
        if folder not in self._files:
            exists = self._exists(folder, TRIALS_FILE)
            self._files[folder] = (
                self._read(Path(folder, TRIALS_FILE)) if exists else None
            )
        return self._files[folder]

    def _exists(self, folder: str, name: str) -> bool:
        """True if a folder contains a marker of that name.

        A folder that the walk did not read is examined only if it is local.
        """
        # not a Path, for speed: hardly any of thousands of folders has a marker
        if folder in self._markers_by_folder:
            markers = self._markers_by_folder[folder]
            return bool(markers) and os.path.join(folder, name) in markers
        # a parent of the given path, or the target of a link
        return not is_remote(Path(folder)) and os.path.exists(
            os.path.join(folder, name)
        )

    def _is_file(self, marker: Path) -> bool:
        """True if a marker is a regular file; a folder or broken link excludes no run.

        Remembers the reason for any other marker in `_broken`.
        """
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


def _list_folders(folder: str) -> Iterator[str]:
    """Yield the folder of a log and its parents, nearest first."""
    for _ in range(LEVELS):
        yield folder
        parent, _, _ = folder.rpartition("/")
        if not parent or parent.endswith("/"):  # near the root
            parent = os.path.dirname(folder)
        if parent == folder:
            return
        folder = parent


def _parse(text: str) -> TrialsFile:
    """Parse a trials file.

    Each job has a token, and up to two lines: `TOKEN TIME` before it is submitted, and
    `TOKEN TIME JOB` once its id is known. Reports the first damaged line, unless a
    later line of its token contains the job id.
    """
    pending: dict[str, float] = {}  # start by token, for jobs with an unknown id
    completed_tokens: set[str] = set()
    jobs: dict[str, float] = {}
    damaged_lines: list[tuple[int, str]] = []  # line number and token
    lines = text.split("\n")
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        is_truncated = number == len(lines)  # no line feed follows
        entry = None if is_truncated else _ENTRY.fullmatch(line)
        if entry and not entry["job"] and float(entry["time"]) < FIRST_TIME:
            entry = None  # `TOKEN 17`: the time was truncated
        if entry is None:
            token, _, _ = line.partition(" ")
            damaged_lines.append((number, token))
            continue
        token, seconds, job = entry["token"], float(entry["time"]), entry["job"]
        if not job:
            pending[token] = seconds
            continue
        # Use the earlier time: the log may be older than the line with its job id.
        seconds = min(seconds, pending.pop(token, seconds))
        completed_tokens.add(token)
        if job != NO_JOB:
            jobs[job] = min(seconds, jobs.get(job, seconds))
    problem = ""
    for number, token in damaged_lines:
        # a truncated line, with all or the start of its token, only records the start
        # of a job; ignore it if a later line of the token contains the job id
        if not any(completed.startswith(token) for completed in completed_tokens):
            problem = f"line {number} is neither `TOKEN TIME` nor `TOKEN TIME JOB`"
            break
    return TrialsFile(jobs, tuple(pending.values()), problem)
