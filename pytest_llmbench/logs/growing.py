"""Read a log while it grows: how far its run is, and the lines that show that it
lives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.stall_limits import LogProgress
from pytest_llmbench.logs.dialect_table import SEPARATORS
from pytest_llmbench.logs.log_collector import LogCollector
from pytest_llmbench.logs.log_reader import BARS, STARTS
from pytest_llmbench.logs.scan import PIECE, ByteChunk, ChunkCutter
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.step_records import StepRecord

# The last steps whose median is the time that a growing run takes for one.
RECENT = 5


# What a process prints as it starts; separators stand in a record of steps.
STARTING = tuple(sorted(STARTS.difference(SEPARATORS)))

# What shows that a run lives though it prints no step: progress bars, and evaluations
# of Megatron, torchtitan, MaxText and NeMo.
LIVING = (
    *sorted(BARS),
    b"validation loss at iteration",
    b"validate step: ",
    b"Completed eval ",
    b"eval metrics after step",
    b"Validation: iteration ",
)


class ReachedStep(NamedTuple):
    """How far a run is."""

    done: int
    total: int | None  # none: the log does not say of how many
    seconds: float  # of one step


class Growing:
    """One log on this machine, which is not compressed while it grows. What was read of
    it is not read again.

    A file that was replaced, shortened or written anew is read from its beginning.
    """

    def __init__(self, path: Path, extra: Iterable[RegexDialect] = ()) -> None:
        """Take the path, and the dialects that baseline files define for the log."""
        self.path = path
        self.read_bytes = 0
        self._extra = tuple(extra)
        self._file: tuple[int, int] | None = None
        self._signs: LogProgress | None = None
        self._places: tuple[
            int, int
        ]  # where a process last started, and where a line last showed life
        self._cutter: ChunkCutter
        self._collector: LogCollector
        self._begin()

    def read(self) -> ParsedLog:
        """Return what the log says as it is now, its last line as if it ended there;
        LogError if it cannot be read."""
        with files.File(self.path) as file:
            self._take_new(file)
        # a copy reads the rest, for the next bytes may show it to be another line than
        # it looks now
        rest, collector = self._cutter.finish(), deepcopy(self._collector)
        collector.search(rest)
        return collector.result()

    def find_last_step(self) -> ReachedStep | None:
        """Return the last step, None where there is none; LogError if the log cannot be
        read.

        A step is counted from the first one of the run: NeMo's `global_step: 22` is the
        23rd. Its time is the median of the last five, of those that a step can take.
        """
        segments = (
            self.read().read_as(*(dialect.name for dialect in self._extra)).segments
        )
        if not segments:
            return None
        steps = segments[-1].steps
        recent = steps.seconds[-RECENT:]
        possible = recent[np.isfinite(recent) & (recent > 0)]
        if not len(possible):
            return None
        # some count from 0 where others of the same dialect count from 1
        done = (
            int(steps.index[-1]) + 1 - min(segments[-1].first_step, int(steps.index[0]))
        )
        total = segments[-1].total_steps
        return ReachedStep(
            done,
            total if total is None or total >= done else None,
            float(np.median(possible)),
        )

    def find_life_signs(self) -> LogProgress:
        """Return what shows that its run lives; LogError if the log cannot be read. A
        log that has not grown since is not looked into."""
        with files.File(self.path) as file:
            old, modified = self._signs, datetime.fromtimestamp(file.modified, UTC)
            if old and (file.identity, file.size, modified) == (
                self._file,
                self.read_bytes,
                old.modified,
            ):
                return old
            self._take_new(file)
        rest = self._cutter.finish()._replace(whole=False)
        self._places = _find_places(rest, self._places)
        collector = LogCollector(
            self._extra
        )  # the rest alone: a copy of all records would cost more with every step
        collector.search(rest)
        steps = [
            record
            for record in (*self._collector.records, *collector.records)
            if record.mean_of == 0 or record.has_value
        ]
        gaps = list(_list_gaps(steps))
        last = max((record.origin.offset for record in steps), default=-1)
        checkpoints = self._collector.checkpoint_lines + collector.checkpoint_lines
        self._signs = LogProgress(
            path=self.path,
            steps=len(steps),
            marks=(len(steps), checkpoints, *self._places),
            starting=self._places[0] > last >= 0,
            slowest_seconds=max(gaps, default=0.0),
            taken_seconds=sum(gaps),
            modified=modified,
        )
        return self._signs

    def _take_new(self, file: files.File) -> None:
        """Read what a file has more than when it was read before; all of it where it is
        another one."""
        if not self._goes_on(file):
            self._begin()
        self._file = file.identity
        while self.read_bytes < file.size:
            end = min(self.read_bytes + PIECE, file.size)
            chunk = self._cutter.push(file.read(self.read_bytes, end))
            self.read_bytes = end
            self._places = _find_places(chunk, self._places)
            self._collector.search(chunk)

    def _begin(self) -> None:
        self.read_bytes = 0
        self._places = (-1, -1)
        self._cutter = ChunkCutter()
        self._collector = LogCollector(self._extra)

    def _goes_on(self, file: files.File) -> bool:
        """Whether a file is the one that was read before, and what was last read of it
        still stands there."""
        if file.identity != self._file or file.size < self.read_bytes:
            return False
        return file.read(self._cutter.offset, self.read_bytes) == self._cutter.text


def _find_places(chunk: ByteChunk, before: tuple[int, int]) -> tuple[int, int]:
    """Return where a process last started, and where a line last showed life, -1 where
    none did."""
    places = (max(map(chunk.text.rfind, markers)) for markers in (STARTING, LIVING))
    start, life = (chunk.offset + place if place >= 0 else -1 for place in places)
    return max(start, before[0]), max(life, before[1])


def _list_gaps(steps: Sequence[StepRecord]) -> Iterator[float]:
    """Yield the seconds from each step to the next: by the times of the lines, else by
    what the log says that a step takes, times the steps between two lines."""
    for before, step in pairwise(steps):
        passed = step.stamp - before.stamp
        printed = (
            step.seconds * max(1, step.step - before.step) if step.possible else 0.0
        )
        yield max(passed, 0.0) if math.isfinite(passed) else printed
