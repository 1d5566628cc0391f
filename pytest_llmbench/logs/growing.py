"""Read a log while it grows: its last step, and signs that the run is alive."""

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

# Number of last steps whose median is the current step time.
RECENT = 5


# Texts that a process prints as it starts. Separators are excluded: they also occur in
# records of steps.
STARTING = tuple(sorted(STARTS.difference(SEPARATORS)))

# Texts that prove that a run is alive although it prints no step: progress bars, and
# evaluations of Megatron, torchtitan, MaxText and NeMo.
LIVING = (
    *sorted(BARS),
    b"validation loss at iteration",
    b"validate step: ",
    b"Completed eval ",
    b"eval metrics after step",
    b"Validation: iteration ",
)


class ReachedStep(NamedTuple):
    """Progress of a run."""

    done: int
    total: int | None  # None if the log does not print the total
    seconds: float  # seconds per step


class Growing:
    """Reader of one growing, uncompressed log on this machine.

    Bytes that were read are not read again. A file that was replaced, shortened or
    rewritten is read from its beginning.
    """

    def __init__(self, path: Path, extra: Iterable[RegexDialect] = ()) -> None:
        """`extra` are the dialects that baseline files define for the log."""
        self.path = path
        self.read_bytes = 0
        self._extra = tuple(extra)
        self._identity: tuple[int, int] | None = None
        self._progress: LogProgress | None = None
        # Offsets of the last process start and of the last sign of life.
        self._latest: tuple[int, int]
        self._cutter: ChunkCutter
        self._collector: LogCollector
        self._start_over()

    def read(self) -> ParsedLog:
        """Parse the log as it is now, as if its last line were complete.

        Raises LogError if the log cannot be read.
        """
        with files.File(self.path) as file:
            self._read_new(file)
        # A copy parses the last bytes, since the next bytes may change what their line
        # means.
        tail, collector = self._cutter.finish(), deepcopy(self._collector)
        collector.search(tail)
        return collector.result()

    def find_last_step(self) -> ReachedStep | None:
        """Return the progress of the run, or None without a possible step time.

        Steps are counted from the first step of the run: `global_step: 22` of NeMo is
        step 23. The step time is the median of the last RECENT steps, without
        impossible times. Raises LogError if the log cannot be read.
        """
        segments = (
            self.read().read_as(*(dialect.name for dialect in self._extra)).segments
        )
        if not segments:
            return None
        last_segment = segments[-1]
        steps = last_segment.steps
        recent = steps.seconds[-RECENT:]
        possible_seconds = recent[np.isfinite(recent) & (recent > 0)]
        if not len(possible_seconds):
            return None
        # Some programs count from 0, others with the same dialect from 1: a step below
        # the dialect's first step shows the former.
        first_step = min(last_segment.first_step, int(steps.index[0]))
        done = int(steps.index[-1]) + 1 - first_step
        total = last_segment.total_steps
        if total is not None and total < done:  # not the total of this run
            total = None
        return ReachedStep(done, total, float(np.median(possible_seconds)))

    def find_life_signs(self) -> LogProgress:
        """Return the signs that the run is alive.

        Does not read a log that has not grown. Raises LogError if the log cannot be
        read.
        """
        with files.File(self.path) as file:
            modified = datetime.fromtimestamp(file.modified, UTC)
            previous = self._progress
            if previous:
                state = (file.identity, file.size, modified)
                if state == (self._identity, self.read_bytes, previous.modified):
                    return previous
            self._read_new(file)
        # the bytes after the last complete line; not a whole log
        tail = self._cutter.finish()._replace(whole=False)
        self._latest = _find_latest_signs(tail, self._latest)
        # A new collector for the last bytes: a copy of all records would become slower
        # with every step.
        collector = LogCollector(self._extra)
        collector.search(tail)
        steps = [
            record
            for record in (*self._collector.records, *collector.records)
            if record.mean_of == 0 or record.has_value  # evaluations, and timed steps
        ]
        gaps = list(_list_gaps(steps))
        last_step = max((record.origin.offset for record in steps), default=-1)
        last_start, _last_sign = self._latest
        checkpoints = self._collector.checkpoint_lines + collector.checkpoint_lines
        self._progress = LogProgress(
            path=self.path,
            steps=len(steps),
            marks=(len(steps), checkpoints, *self._latest),
            starting=last_start > last_step >= 0,  # restarted after its last step
            slowest_seconds=max(gaps, default=0.0),
            taken_seconds=sum(gaps),
            modified=modified,
        )
        return self._progress

    def _read_new(self, file: files.File) -> None:
        """Read the bytes added since the last call.

        Reads the whole file if it was replaced.
        """
        if not self._is_continued(file):
            self._start_over()
        self._identity = file.identity
        while self.read_bytes < file.size:
            end = min(self.read_bytes + PIECE, file.size)
            chunk = self._cutter.push(file.read(self.read_bytes, end))
            self.read_bytes = end
            self._latest = _find_latest_signs(chunk, self._latest)
            self._collector.search(chunk)

    def _start_over(self) -> None:
        """Forget everything that was read, to read the file from its beginning."""
        self.read_bytes = 0
        self._latest = (-1, -1)
        self._cutter = ChunkCutter()
        self._collector = LogCollector(self._extra)

    def _is_continued(self, file: files.File) -> bool:
        """True if this is the file read before and its last bytes are unchanged."""
        if file.identity != self._identity or file.size < self.read_bytes:
            return False
        return file.read(self._cutter.offset, self.read_bytes) == self._cutter.text


def _find_latest_signs(chunk: ByteChunk, before: tuple[int, int]) -> tuple[int, int]:
    """Return the offsets of the last process start and sign of life.

    `before` are the offsets up to this chunk. An offset is -1 if there is none.
    """

    def find_last(markers: Iterable[bytes]) -> int:
        """Return the offset in the log of the last marker in the chunk, or -1."""
        offset = max(map(chunk.text.rfind, markers))
        return chunk.offset + offset if offset >= 0 else -1

    start_before, life_before = before
    return max(find_last(STARTING), start_before), max(find_last(LIVING), life_before)


def _list_gaps(steps: Sequence[StepRecord]) -> Iterator[float]:
    """Yield the seconds from each step to the next.

    Uses the timestamps of the lines, else the printed step time multiplied by the
    number of steps between the two lines.
    """
    for before, step in pairwise(steps):
        passed = step.stamp - before.stamp
        printed = (
            step.seconds * max(1, step.step - before.step) if step.possible else 0.0
        )
        yield max(passed, 0.0) if math.isfinite(passed) else printed
