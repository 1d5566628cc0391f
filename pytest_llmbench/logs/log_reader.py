"""Read a whole log: bytes in, columns of steps out, with what was dropped and how it
ended."""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.log_records import NO_QUOTE, Ending, EndingCode, ParsedLog
from pytest_llmbench.core.runtime import count_processors
from pytest_llmbench.logs.dialect_reader import load_reader
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.logs.endings import (
    LATE_STEPS,
    Decisive,
    Endings,
    get_line_before,
    name_file,
)
from pytest_llmbench.logs.endings import MARKERS as ENDING_MARKERS
from pytest_llmbench.logs.log_collector import STEP_MARKERS, LogCollector
from pytest_llmbench.logs.scan import (
    REACH,
    REACH_BACK,
    ByteChunk,
    Hit,
    MarkerSearch,
    find_markers,
    iterate_chunks,
)
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.compressed import Stream, is_made_text
from pytest_llmbench.logs.sources.metric_files import FIRST_LINE
from pytest_llmbench.logs.step_records import StepRecord

if TYPE_CHECKING:
    from concurrent.futures import Future

# Bytes of a file from which on it is searched by several threads.
LARGE = 8 << 20

# Bytes of a file from which on the engine for large ones pays whatever stands in it.
SURELY_LARGE = 64 << 20

# Bytes of a log from which on it is not searched again for the dialects that are
# shipped: traces have gigabytes.
LARGEST_TRIED = 256 << 20

# Bytes that are searched at once: they stay in the cache of a core while they are read,
# searched and counted.
BLOCK = 1 << 19

# What a thread looks at before it asks for more.
STRIDE = 8 * BLOCK

# So many strides each thread may be ahead: of what it saw only the places of markers
# are kept.
AHEAD = 2

# So many bytes at the beginning of a text are all in its fingerprint, and then the
# first SAMPLE of every SPAN: copies are told apart without hashing gigabytes.
WHOLE = 1 << 20
SPAN = 1 << 18
SAMPLE = 4096

STARTS = frozenset(start for dialect in DIALECTS.values() for start in dialect.starts)
BARS = frozenset((b"it/s", b"s/it"))
TRAINING_MARKERS = frozenset((*STEP_MARKERS, *STARTS, *BARS))

# A progress bar of Lightning, also one without values.
EPOCH = re.compile(rb"Epoch \d{1,9}:[: ]*\d{1,3}%")
# One that says nothing of what it is of: Trainer's. Those of downloads and data have a
# word before them.
BAR = re.compile(rb"[ \t]*\d{1,3}%\|[^|\r\n]*\| *\d{1,15}/\d{1,15} \[")


def parse_blocks(
    blocks: Iterable[bytes], extra: Iterable[RegexDialect] = ()
) -> ParsedLog:
    """Parse a log from its bytes, in blocks of any size, without fingerprint and size.

    `extra` are the dialects that baseline files define. No content is an error: a
    record that cannot be read is counted in `dropped`. LogError only for more attempts
    than fit into memory.
    """
    collector = LogCollector(extra)
    for chunk in iterate_chunks(blocks):
        collector.search(chunk)
    return collector.result()


def read_log(
    source: Path | Stream, extra: Iterable[RegexDialect] = (), *, threads: int = 0
) -> ParsedLog:
    """Read a log, with the fingerprint and size of its text; LogError if that fails.

    A compressed log is decompressed, whatever its name, so that all copies of a log
    have one fingerprint. If its data are cut, the rest is read and the ending is CUT,
    unless the log itself states how it ended. `threads` search a large file, by default
    one for each core. If no step is found, the shipped definitions are tried.
    """
    tries = _list_tries(tuple(extra))
    if isinstance(source, Stream):
        return _read_stream(source, tries)
    with files.File(source) as file:
        streamed = file.size < LARGE or is_made_text(
            source.name, file.read(0, min(file.size, FIRST_LINE))
        )
        logs = []
        for tried in tries:
            if streamed:
                logs.append(_read_stream(Stream(file.blocks(), source), [tried]))
            else:
                logs.append(_read_large(file, tried, threads or count_processors()))
            if logs[-1].dialect is not None or logs[-1].size_bytes > LARGEST_TRIED:
                break
        return _choose_log(logs)


def _read_large(
    file: files.File, definitions: Sequence[RegexDialect], threads: int
) -> ParsedLog:
    collector = LogCollector(definitions)
    fingerprint = _take_file(file, collector, threads)
    return replace(
        collector.result(),
        fingerprint=fingerprint.digest(file.size),
        size_bytes=file.size,
    )


def _choose_log(logs: Sequence[ParsedLog]) -> ParsedLog:
    """Return the one with steps, else the first: why a definition that nobody asked for
    finds none tells nobody anything."""
    return logs[-1] if logs[-1].dialect is not None else logs[0]


def _list_tries(definitions: Sequence[RegexDialect]) -> list[tuple[RegexDialect, ...]]:
    """Return what to read a log with, and then, if no step was found, once more."""
    own = tuple(definition for definition in definitions if not definition.shipped)
    return [own] if len(own) == len(definitions) else [own, tuple(definitions)]


def read_ending(source: Path | Stream) -> Ending | None:
    """Read the ending of a job from its standard error, None without one.

    Lines before training began end no run with steps. LogError if the file cannot be
    read.
    """
    stream = (
        source
        if isinstance(source, Stream)
        else Stream(files.read_blocks(source), source)
    )
    endings, training = Endings(), Training()
    for chunk in iterate_chunks(stream):
        hits = find_markers(chunk, (*ENDING_MARKERS, *TRAINING_MARKERS))
        endings.take(chunk, [hit for hit in hits if hit.marker in ENDING_MARKERS])
        training.take(hit for hit in hits if hit.marker in TRAINING_MARKERS)
    ending = endings.result(training.find_decisive()) or endings.find_before_training()
    return ending and name_file(ending, stream.path.name)


def _read_stream(
    stream: Stream, tries: Sequence[tuple[RegexDialect, ...]]
) -> ParsedLog:
    fingerprint = Fingerprint()
    size = 0
    kept: list[bytes] = []  # nothing of a stream can be read twice else
    first, *others = tries

    def take_blocks() -> Iterator[bytes]:
        nonlocal size
        for block in stream:
            fingerprint.take(hash_sample(size, block))
            size += len(block)
            if others and size <= LARGE:
                kept.append(bytes(block))
            yield block

    log = parse_blocks(take_blocks(), first)
    if log.dialect is None and 0 < size <= LARGE and others:
        log = _choose_log((log, parse_blocks(kept, others[0])))
    log = replace(log, fingerprint=fingerprint.digest(size), size_bytes=size)
    return _add_cut_ending(log, stream) if stream.cut else log


def _add_cut_ending(log: ParsedLog, stream: Stream) -> ParsedLog:
    """Return a log with what became of its file as its ending, unless it says itself
    how it ended."""
    problem = f"the {stream.method} data of {stream.path.name} end before their end: copy or compress the log again"
    cut = Ending(EndingCode.CUT, NO_QUOTE, log.lines, problem)
    readings = tuple(
        replace(reading, ending=reading.ending or cut) for reading in log.readings
    )
    return replace(log, ending=log.ending or cut, readings=readings)


class Training:
    """The lines of one file that tell of training, in order: the first of them, and the
    last few."""

    def __init__(self) -> None:
        self._first = 0
        self._last: deque[int] = deque(maxlen=LATE_STEPS + 1)

    def take(self, hits: Iterable[Hit]) -> None:
        """Take the lines of markers."""
        for hit in hits:
            if self._tells(hit):
                self._first = self._first or hit.line
                self._last.append(hit.line)

    def find_decisive(self) -> Decisive:
        """Return from which line on an ending counts, as `endings.find_decisive_lines`
        does for a log with steps."""
        full = len(self._last) > LATE_STEPS
        return Decisive(self._first, self._last[0] if full else self._first)

    def _tells(self, hit: Hit) -> bool:
        if hit.marker in STARTS:
            return True
        if hit.marker in BARS:
            return bool(BAR.match(get_line_before(hit)))
        records = load_reader(STEP_MARKERS[hit.marker]).read_records(hit, "")
        return any(isinstance(record, StepRecord) for record in records) or bool(
            EPOCH.match(hit.text, hit.start)
        )


class Fingerprint:
    """Size and a checksum of samples of a text that is taken in order: equal for copies
    of it, however compressed.

    Others of the same size differ with near certainty where they differ in a sample; in
    a longer text they need not, so whoever looks for copies compares what was read from
    them as well.
    """

    def __init__(self) -> None:
        """Begin with an empty text."""
        self._checksum = 0

    def take(self, sample: bytes) -> None:
        """Take the sample of the next bytes."""
        self._checksum = zlib.crc32(sample, self._checksum)

    def digest(self, size: int) -> str:
        """Return it as one word, now that the size of the text is known."""
        return f"{size:x}-{self._checksum:08x}"


def hash_sample(offset: int, data: bytes | memoryview) -> bytes:
    """Return what counts of the bytes at a place of a text."""
    begins = (offset, *range(offset - offset % SPAN + SPAN, offset + len(data), SPAN))
    return b"".join(
        data[begin - offset : begin - offset + _count_bytes(begin)] for begin in begins
    )


def _count_bytes(offset: int) -> int:
    """Return how many bytes from a place on, up to the end of its span, count."""
    inside = offset % SPAN
    return SPAN - inside if offset < WHOLE else max(0, SAMPLE - inside)


class ScannedPiece(NamedTuple):
    """What a thread saw of the bytes `begin` to `stop` of a file."""

    begin: int
    stop: int
    markers: MarkerSearch
    places: list[tuple[int, bytes]]  # of markers, counted from `begin`
    line_feeds: int
    ended: bool  # whether its last byte is a line feed
    sample: bytes  # what the file's fingerprint wants


def _take_file(file: files.File, collector: LogCollector, threads: int) -> Fingerprint:
    """Give a collector all that matters in a large file, which threads search ahead of
    it; return its fingerprint.

    Parts without markers are never read as lines. LogError where the file changed
    meanwhile.
    """
    head = file.read(0, min(file.size, BLOCK))
    fingerprint = Fingerprint()
    line = 1
    for look in _iterate_analyses(file, collector, threads):
        fingerprint.take(look.sample)
        next_line = line + look.line_feeds
        markers = collector.choose_markers(look.begin)
        if (
            look.markers is not markers
        ):  # the reader came to know meanwhile what else it needs
            chunk = _cut_chunk(file, look, line, next_line)
            collector.take(
                chunk, markers.find_places(chunk.text, chunk.start, chunk.stop)
            )
        elif look.places or collector.follows:
            chunk = _cut_chunk(file, look, line, next_line)
            collector.take(
                chunk, [(chunk.start + place, marker) for place, marker in look.places]
            )
        else:
            collector.pass_over(next_line, look.ended)
        line = next_line
    file.refuse_changed(head)
    return fingerprint


def _iterate_analyses(
    file: files.File, collector: LogCollector, threads: int
) -> Iterator[ScannedPiece]:
    """Yield what threads saw of each block, in the order of the file."""
    from concurrent.futures import ThreadPoolExecutor  # no other log needs it

    waiting: deque[Future[list[ScannedPiece]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        if file.size >= SURELY_LARGE:
            for search in {
                collector.choose_markers(0),
                collector.choose_markers(file.size),
            }:
                pool.submit(search.prepare)
        try:
            for begin in range(0, file.size, STRIDE):
                waiting.append(
                    pool.submit(
                        _look_along, file, begin, collector.choose_markers(begin)
                    )
                )
                if len(waiting) > AHEAD * threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _look_along(
    file: files.File, begin: int, markers: MarkerSearch
) -> list[ScannedPiece]:
    """Return what stands in the blocks of the stride that begins there."""
    return [
        _look_at(file, place, markers)
        for place in range(begin, min(begin + STRIDE, file.size), BLOCK)
    ]


def _look_at(file: files.File, begin: int, markers: MarkerSearch) -> ScannedPiece:
    """Return what stands in the block that begins there."""
    stop = min(begin + BLOCK, file.size)
    text = file.read(begin, min(stop + markers.longest - 1, file.size))
    new = np.frombuffer(text, np.uint8, stop - begin)
    return ScannedPiece(
        begin,
        stop,
        markers,
        markers.find_places(text, 0, stop - begin),
        int(np.count_nonzero(new == ord("\n"))),
        text[stop - begin - 1] == ord("\n"),
        hash_sample(begin, memoryview(text)[: stop - begin]),
    )


def _cut_chunk(
    file: files.File, look: ScannedPiece, line: int, next_line: int
) -> ByteChunk:
    """Return a block with what can be seen around it."""
    offset = max(0, look.begin - REACH_BACK)
    text = file.read(offset, min(look.stop + REACH, file.size))
    return ByteChunk(
        text, look.begin - offset, look.stop - offset, offset, line, next_line
    )
