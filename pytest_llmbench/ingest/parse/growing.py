"""A log that is still written: read on from where it ended the last time."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pytest_llmbench.core.models import ParsedLog, RegexDialect
from pytest_llmbench.ingest.parse.collect import LogCollector
from pytest_llmbench.ingest.parse.scan import PIECE, ChunkCutter
from pytest_llmbench.ingest.sources.local import File

RECENT = 5


class ReachedStep(NamedTuple):
    """How far a run is: steps done, of how many (None: the log does not say), seconds that one takes."""

    done: int
    total: int | None
    seconds: float


class Growing:
    """One log on this machine, which is not compressed while it grows. What was read of it is not read again.

    A file that was replaced, shortened or written anew is read from its beginning.
    """

    def __init__(self, path: Path, extra: Iterable[RegexDialect] = ()) -> None:
        """Take the path, and the dialects that baseline files define for the log."""
        self.path = path
        self.read_bytes = 0
        self._extra = tuple(extra)
        self._file: tuple[int, int] | None = None
        self._begin()

    def read(self) -> ParsedLog:
        """Return what the log says as it is now, its last line as if it ended there; LogError if it cannot be read."""
        with File(self.path) as file:
            if not self._goes_on(file):
                self._begin()
            self._file = file.identity
            while self.read_bytes < file.size:
                end = min(self.read_bytes + PIECE, file.size)
                chunk = self._cutter.push(file.read(self.read_bytes, end))
                self.read_bytes = end
                self._collector.search(chunk)
        rest, collector = self._cutter.finish(), deepcopy(self._collector)
        collector.search(rest)
        return collector.result()

    def last_step(self) -> ReachedStep | None:
        """Return the last step, None where there is none; LogError if the log cannot be read.

        A step is counted from the first one of the run: NeMo's `global_step: 22` is the 23rd. Its time is the median of
        the last five, of those that a step can take.
        """
        segments = self.read().read_as(*(dialect.name for dialect in self._extra)).segments
        if not segments:
            return None
        steps = segments[-1].steps
        recent = steps.seconds[-RECENT:]
        possible = recent[np.isfinite(recent) & (recent > 0)]
        if not len(possible):
            return None
        done = int(steps.index[-1]) + 1 - segments[-1].first_step
        total = segments[-1].total_steps
        return ReachedStep(done, total if total is None or total >= done else None, float(np.median(possible)))

    def _begin(self) -> None:
        self.read_bytes = 0
        self._cutter = ChunkCutter()
        self._collector = LogCollector(self._extra)

    def _goes_on(self, file: File) -> bool:
        """Whether a file is the one that was read before, and what was last read of it still stands there."""
        if file.identity != self._file or file.size < self.read_bytes:
            return False
        return file.read(self._cutter.offset, self.read_bytes) == self._cutter.text
