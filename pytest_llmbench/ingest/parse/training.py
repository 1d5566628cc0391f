"""Where a standard error shows that its run trained: starts, steps and progress bars that stand in it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from pytest_llmbench.core.dialects import DIALECTS
from pytest_llmbench.ingest.parse.dialect_reader import load_reader
from pytest_llmbench.ingest.parse.endings import LATE_STEPS, Decisive
from pytest_llmbench.ingest.parse.records import StepRecord
from pytest_llmbench.ingest.parse.scan import Hit
from pytest_llmbench.ingest.parse.tracebacks import get_line_before

STEPS = {marker: name for name, dialect in DIALECTS.items() for marker in dialect.markers}
STARTS = frozenset(start for dialect in DIALECTS.values() for start in dialect.starts)

BARS = frozenset((b"it/s", b"s/it"))
MARKERS = frozenset((*STEPS, *STARTS, *BARS))

EPOCH = re.compile(rb"Epoch \d{1,9}:[: ]*\d{1,3}%")
"""A progress bar of Lightning, also one without values."""
BAR = re.compile(rb"[ \t]*\d{1,3}%\|[^|\r\n]*\| *\d{1,15}/\d{1,15} \[")
"""One that says nothing of what it is of: Trainer's. Those of downloads and data have a word before them."""


class Training:
    """The lines of one file that tell of training, in order: the first of them, and the last few."""

    def __init__(self) -> None:
        self._first = 0
        self._last: deque[int] = deque(maxlen=LATE_STEPS + 1)

    def take(self, hits: Iterable[Hit]) -> None:
        """Take the lines of markers."""
        for hit in hits:
            if self._tells(hit):
                self._first = self._first or hit.line
                self._last.append(hit.line)

    def decisive(self) -> Decisive:
        """Return from which line on an ending counts, as `endings.decisive_lines` does for a log with steps."""
        full = len(self._last) > LATE_STEPS
        return Decisive(self._first, self._last[0] if full else self._first)

    def _tells(self, hit: Hit) -> bool:
        if hit.marker in STARTS:
            return True
        if hit.marker in BARS:
            return bool(BAR.match(get_line_before(hit)))
        if hit.marker not in STEPS:
            return False
        records = load_reader(STEPS[hit.marker]).read_records(hit, "")
        return any(isinstance(record, StepRecord) for record in records) or bool(EPOCH.match(hit.text, hit.start))
