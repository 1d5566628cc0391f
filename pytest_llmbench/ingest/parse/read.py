"""Read a log: bytes in, columns of steps out, with what was dropped and how it ended."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.core.dialects import DIALECTS
from pytest_llmbench.core.models import Ending, EndingCode, ParsedLog, RegexDialect
from pytest_llmbench.ingest.parse.collect import LogCollector
from pytest_llmbench.ingest.parse.dialect_reader import load_reader
from pytest_llmbench.ingest.parse.endings import LATE_STEPS, Decisive, Endings, name_file
from pytest_llmbench.ingest.parse.endings import MARKERS as ENDING_MARKERS
from pytest_llmbench.ingest.parse.fingerprint import Fingerprint, take_sample
from pytest_llmbench.ingest.parse.records import StepRecord
from pytest_llmbench.ingest.parse.scan import Hit, find_markers, iterate_chunks
from pytest_llmbench.ingest.parse.tracebacks import get_line_before
from pytest_llmbench.ingest.sources import local
from pytest_llmbench.ingest.sources.compressed import HEAD, Stream, find_method

# Bytes of a file from which on it is searched by several threads.
LARGE = 8 << 20

STEPS = {marker: name for name, dialect in DIALECTS.items() for marker in dialect.markers}
STARTS = frozenset(start for dialect in DIALECTS.values() for start in dialect.starts)

BARS = frozenset((b"it/s", b"s/it"))
TRAINING_MARKERS = frozenset((*STEPS, *STARTS, *BARS))

# A progress bar of Lightning, also one without values.
EPOCH = re.compile(rb"Epoch \d{1,9}:[: ]*\d{1,3}%")
# One that says nothing of what it is of: Trainer's. Those of downloads and data have a word before them.
BAR = re.compile(rb"[ \t]*\d{1,3}%\|[^|\r\n]*\| *\d{1,15}/\d{1,15} \[")


def parse_blocks(blocks: Iterable[bytes], extra: Iterable[RegexDialect] = ()) -> ParsedLog:
    """Return what a log says, from its bytes in blocks of any size; fingerprint and size_bytes are left empty.

    `extra` are the dialects that baseline files define.

    No content is an error: what cannot be read as a step is no step, and is in `dropped` if it looks like one.
    """
    collector = LogCollector(extra)
    for chunk in iterate_chunks(blocks):
        collector.search(chunk)
    return collector.result()


def read_log(source: Path | Stream, extra: Iterable[RegexDialect] = (), *, threads: int = 0) -> ParsedLog:
    """Return what a log says, with the fingerprint and size of its text; LogError if it cannot be read.

    A compressed log is decompressed, whatever its name, so that all copies of a log have one fingerprint. Where its
    data are cut, what was left of them is read, and its ending says so unless the log itself says how it ended.

    A large file is searched by this many threads, by default one for each core.
    """
    if isinstance(source, Stream):
        return _read_stream(source, extra)
    with local.File(source) as file:
        if file.size < LARGE or find_method(file.read(0, HEAD)):
            return _read_stream(Stream(file.blocks(), source), extra)
        from pytest_llmbench.ingest.parse.ahead import take_file

        collector = LogCollector(extra)
        fingerprint = take_file(file, collector, threads or len(os.sched_getaffinity(0)))
        return replace(collector.result(), fingerprint=fingerprint.digest(file.size), size_bytes=file.size)


def read_ending(source: Path | Stream) -> Ending | None:
    """Return how a standard error says that the job ended, or None; LogError if it cannot be read.

    What stands there only before training began, by the lines that tell of that, ended no run with steps.
    """
    stream = source if isinstance(source, Stream) else Stream(local.read_blocks(source), source)
    endings, training = Endings(), Training()
    for chunk in iterate_chunks(stream):
        hits = find_markers(chunk, (*ENDING_MARKERS, *TRAINING_MARKERS))
        endings.take(chunk, [hit for hit in hits if hit.marker in ENDING_MARKERS])
        training.take(hit for hit in hits if hit.marker in TRAINING_MARKERS)
    ending = endings.result(training.decisive()) or endings.before_training()
    return ending and name_file(ending, stream.path.name)


def _read_stream(stream: Stream, extra: Iterable[RegexDialect]) -> ParsedLog:
    fingerprint = Fingerprint()
    size = 0

    def taken() -> Iterator[bytes]:
        nonlocal size
        for block in stream:
            fingerprint.take(take_sample(size, block))
            size += len(block)
            yield block

    log = replace(parse_blocks(taken(), extra), fingerprint=fingerprint.digest(size), size_bytes=size)
    return _add_cut_ending(log, stream) if stream.cut else log


def _add_cut_ending(log: ParsedLog, stream: Stream) -> ParsedLog:
    """Return a log with what became of its file as its ending, unless it says itself how it ended."""
    text = f"the {stream.method} data of {stream.path.name} end before their end: copy or compress the log again"
    cut = Ending(EndingCode.CUT, text, log.lines)
    readings = tuple(replace(reading, ending=reading.ending or cut) for reading in log.readings)
    return replace(log, ending=log.ending or cut, readings=readings)


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
