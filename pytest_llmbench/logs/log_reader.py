"""Read a whole log from bytes into columns of steps.

The result includes dropped records and the ending.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.log_records import NO_QUOTE, Ending, EndingCode, ParsedLog
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.runtime import count_processors
from pytest_llmbench.logs.dialect_reader import load_reader
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.logs.endings import (
    LATE_STEPS,
    Decisive,
    Endings,
    get_line_before,
    set_file_name,
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
from pytest_llmbench.logs.sources.compressed import Stream, is_converted
from pytest_llmbench.logs.sources.metric_files import FIRST_LINE
from pytest_llmbench.logs.step_records import StepRecord

if TYPE_CHECKING:
    from concurrent.futures import Future

# Several threads search a file of at least this many bytes.
LARGE = 8 << 20

# Files of at least this many bytes are worth preparing Hyperscan, whatever they
# contain.
SURELY_LARGE = 64 << 20

# Larger logs are not read again with the shipped definitions: traces have gigabytes.
LARGEST_TRIED = 256 << 20

# Block size in bytes: a block stays in the cache of a core while it is read, searched
# and counted.
BLOCK = 1 << 19

# Bytes that a thread scans per task.
STRIDE = 8 * BLOCK

# Strides that each thread may be ahead of the collector. Only the offsets of markers
# are kept of a scanned stride.
AHEAD = 2

# The fingerprint covers the first WHOLE bytes of a text, then the first SAMPLE bytes of
# each SPAN. It detects copies without hashing gigabytes.
WHOLE = 1 << 20
SPAN = 1 << 18
SAMPLE = 4096

STARTS = frozenset(start for dialect in DIALECTS.values() for start in dialect.starts)
BARS = frozenset((b"it/s", b"s/it"))
TRAINING_MARKERS = frozenset((*STEP_MARKERS, *STARTS, *BARS))

# A progress bar of Lightning, with or without values.
EPOCH = compile_on_use(rb"Epoch \d{1,9}:[: ]*\d{1,3}%")
# A bar without a description, as the Trainer prints. Bars of downloads and data sets
# begin with a description.
BAR = compile_on_use(rb"[ \t]*\d{1,3}%\|[^|\r\n]*\| *\d{1,15}/\d{1,15} \[")


def parse_blocks(
    blocks: Iterable[bytes], extra: Iterable[RegexDialect] = ()
) -> ParsedLog:
    """Parse a log from blocks of bytes, without fingerprint and size.

    `extra` are the dialects that baseline files define. Invalid content raises no
    error: an unreadable record is counted in `dropped`. Raises LogError only if the log
    has more attempts than fit into memory.
    """
    collector = LogCollector(extra)
    for chunk in iterate_chunks(blocks):
        collector.search(chunk)
    return collector.result()


def read_log(
    source: Path | Stream, extra: Iterable[RegexDialect] = (), *, threads: int = 0
) -> ParsedLog:
    """Read a log with the fingerprint and size of its text.

    Raises LogError if the log cannot be read. Compressed logs are decompressed,
    whatever their name, so all copies of a log have the same fingerprint. If the
    compressed data are truncated, the ending is CUT unless the log itself states how it
    ended. `extra` are the dialects that baseline files define and those shipped with
    the package; the shipped ones are only tried if no step is found. `threads` search a
    large file, by default one per core.
    """
    attempts = _list_definitions(tuple(extra))
    if isinstance(source, Stream):
        return _read_stream(source, attempts)
    with files.File(source) as file:
        # The text of a compressed file or a table differs from its bytes: its blocks
        # cannot be searched by several threads.
        streamed = file.size < LARGE or is_converted(
            source.name, file.read(0, min(file.size, FIRST_LINE))
        )
        logs = []
        for definitions in attempts:
            if streamed:
                log = _read_stream(Stream(file.blocks(), source), [definitions])
            else:
                log = _read_large(file, definitions, threads or count_processors())
            logs.append(log)
            if log.dialect is not None or log.size_bytes > LARGEST_TRIED:
                break
        return _choose_reading(logs)


def _read_large(
    file: files.File, definitions: Sequence[RegexDialect], threads: int
) -> ParsedLog:
    """Read a large file, which several threads search."""
    collector = LogCollector(definitions)
    fingerprint = _collect_file(file, collector, threads)
    return replace(
        collector.result(),
        fingerprint=fingerprint.digest(file.size),
        size_bytes=file.size,
    )


def _choose_reading(logs: Sequence[ParsedLog]) -> ParsedLog:
    """Return the last log if it has steps, else the first.

    The last log was read with the shipped definitions, which the user did not request:
    their errors would only confuse.
    """
    first, last = logs[0], logs[-1]
    return last if last.dialect is not None else first


def _list_definitions(
    definitions: Sequence[RegexDialect],
) -> list[tuple[RegexDialect, ...]]:
    """Return the definitions to use in each pass over a log.

    The first pass uses the user's definitions. The second pass, if the first finds no
    step, uses all of them, including the shipped ones.
    """
    custom = tuple(definition for definition in definitions if not definition.shipped)
    if len(custom) == len(definitions):
        return [custom]
    return [custom, tuple(definitions)]


def read_ending(source: Path | Stream) -> Ending | None:
    """Read how a job ended from its standard error, None if not stated.

    Lines before training started cannot end a run with steps. Raises LogError if the
    file cannot be read.
    """
    stream = (
        source
        if isinstance(source, Stream)
        else Stream(files.read_blocks(source), source)
    )
    endings, training = Endings(), Training()
    for chunk in iterate_chunks(stream):
        hits = find_markers(chunk, (*ENDING_MARKERS, *TRAINING_MARKERS))
        endings.feed(chunk, [hit for hit in hits if hit.marker in ENDING_MARKERS])
        training.add(hit for hit in hits if hit.marker in TRAINING_MARKERS)
    ending = endings.result(training.find_decisive()) or endings.find_before_training()
    return ending and set_file_name(ending, stream.path.name)


def _read_stream(
    stream: Stream, attempts: Sequence[tuple[RegexDialect, ...]]
) -> ParsedLog:
    """Read a log from a stream with the definitions of the first attempt.

    `attempts` contains the definitions of one or two attempts. If the first attempt
    finds no step in a small log, the second one reads its blocks again.
    """
    fingerprint = Fingerprint()
    size = 0
    kept: list[bytes] = []  # for the second attempt: a stream cannot be read twice
    first_definitions, *second_attempt = attempts

    def tee_blocks() -> Iterator[bytes]:
        """Yield the blocks; count, hash and keep them meanwhile."""
        nonlocal size
        for block in stream:
            fingerprint.update(hash_sample(size, block))
            size += len(block)
            if second_attempt and size <= LARGE:
                kept.append(bytes(block))
            yield block

    blocks = tee_blocks()
    first_block = next(blocks, None)
    if first_block is None:
        log = _parse_empty_log(first_definitions)
    else:
        log = parse_blocks(chain((first_block,), blocks), first_definitions)
        if log.dialect is None and 0 < size <= LARGE and second_attempt:
            (all_definitions,) = second_attempt
            log = _choose_reading((log, parse_blocks(kept, all_definitions)))
        log = replace(log, fingerprint=fingerprint.digest(size), size_bytes=size)
    return _add_truncation_ending(log, stream) if stream.is_truncated else log


@lru_cache(8)  # a folder may contain thousands of empty logs
def _parse_empty_log(definitions: tuple[RegexDialect, ...]) -> ParsedLog:
    """Parse a log without a byte, with its fingerprint."""
    return replace(parse_blocks((), definitions), fingerprint=Fingerprint().digest(0))


def _add_truncation_ending(log: ParsedLog, stream: Stream) -> ParsedLog:
    """Set the ending to CUT, unless the log states how it ended."""
    problem = f"the {stream.method} data of {stream.path.name} are truncated: copy or compress the log again"
    cut = Ending(EndingCode.CUT, NO_QUOTE, log.lines, problem)
    readings = tuple(
        replace(reading, ending=reading.ending or cut) for reading in log.readings
    )
    return replace(log, ending=log.ending or cut, readings=readings)


class Training:
    """Line numbers of the first and the last few training lines in a file.

    A training line is a step, a progress bar or the start of a process.
    """

    def __init__(self) -> None:
        self._first = 0
        self._last: deque[int] = deque(maxlen=LATE_STEPS + 1)

    def add(self, hits: Iterable[Hit]) -> None:
        """Add the hits that are on training lines."""
        for hit in hits:
            if self._is_training(hit):
                self._first = self._first or hit.line
                self._last.append(hit.line)

    def find_decisive(self) -> Decisive:
        """Return the lines from which on an ending concerns the last attempt.

        Like `endings.find_decisive_lines`, for a file without steps.
        """
        has_enough_lines = len(self._last) > LATE_STEPS
        near = self._last[0] if has_enough_lines else self._first
        return Decisive(self._first, near)

    def _is_training(self, hit: Hit) -> bool:
        """True if a marker is on the line of a step, a progress bar or a start."""
        if hit.marker in STARTS:
            return True
        if hit.marker in BARS:
            return bool(BAR.match(get_line_before(hit)))
        if EPOCH.match(hit.text, hit.start):
            return True
        records = load_reader(STEP_MARKERS[hit.marker]).read_records(hit, "")
        return any(isinstance(record, StepRecord) for record in records)


class Fingerprint:
    """Size and checksum of samples of a text.

    Copies of a text have the same fingerprint, however compressed. Different texts of
    the same size have different fingerprints if they differ in a sample, which long
    texts need not do. Code that searches for duplicates therefore also compares the
    parsed logs.
    """

    def __init__(self) -> None:
        self._checksum = 0

    def update(self, sample: bytes) -> None:
        """Add the next sample."""
        self._checksum = zlib.crc32(sample, self._checksum)

    def digest(self, size: int) -> str:
        """Return the fingerprint of a text of `size` bytes."""
        return f"{size:x}-{self._checksum:08x}"


def hash_sample(offset: int, data: bytes | memoryview) -> bytes:
    """Return the sampled bytes of `data`, which begin at `offset` of the text."""
    # the beginning of the data, and of each further span
    begins = (offset, *range(offset - offset % SPAN + SPAN, offset + len(data), SPAN))
    return b"".join(
        data[begin - offset : begin - offset + _count_bytes(begin)] for begin in begins
    )


def _count_bytes(offset: int) -> int:
    """Return the number of sampled bytes from `offset` to the end of its span."""
    offset_in_span = offset % SPAN
    if offset < WHOLE:
        return SPAN - offset_in_span
    return max(0, SAMPLE - offset_in_span)


class ScannedPiece(NamedTuple):
    """Result of scanning the bytes `begin` to `stop` of a file in a thread."""

    begin: int
    stop: int
    markers: MarkerSearch
    matches: list[tuple[int, bytes]]  # offsets of markers, relative to `begin`
    line_feeds: int
    ended: bool  # True if the last byte is a line feed
    sample: bytes  # the sampled bytes, for the fingerprint


def _collect_file(
    file: files.File, collector: LogCollector, threads: int
) -> Fingerprint:
    """Collect a large file, which threads search ahead of the collector.

    Returns the fingerprint. Blocks without markers are not split into lines. Raises
    LogError if the file changes meanwhile.
    """
    head = file.read(0, min(file.size, BLOCK))
    fingerprint = Fingerprint()
    line = 1
    for piece in _iterate_pieces(file, collector, threads):
        fingerprint.update(piece.sample)
        next_line = line + piece.line_feeds
        markers = collector.choose_markers(piece.begin)
        if piece.markers is not markers:
            # The collector has changed its markers since a thread scanned the block:
            # search it again.
            chunk = _cut_chunk(file, piece, line, next_line)
            collector.feed(
                chunk, markers.find_matches(chunk.text, chunk.start, chunk.stop)
            )
        elif piece.matches or collector.needs_all_lines:
            chunk = _cut_chunk(file, piece, line, next_line)
            collector.feed(
                chunk,
                [(chunk.start + offset, marker) for offset, marker in piece.matches],
            )
        else:
            collector.skip(next_line, piece.ended)
        line = next_line
    file.refuse_changed(head)
    return fingerprint


def _iterate_pieces(
    file: files.File, collector: LogCollector, threads: int
) -> Iterator[ScannedPiece]:
    """Yield the scanned blocks in file order."""
    from concurrent.futures import ThreadPoolExecutor  # only needed for large logs

    waiting: deque[Future[list[ScannedPiece]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        if file.size >= SURELY_LARGE:
            # Settings are searched only at the beginning, but by the slowest automata.
            pool.submit(collector.choose_markers(0).prepare)
        try:
            for begin in range(0, file.size, STRIDE):
                markers = collector.choose_markers(begin)
                waiting.append(pool.submit(_scan_stride, file, begin, markers))
                if len(waiting) > AHEAD * threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _scan_stride(
    file: files.File, begin: int, markers: MarkerSearch
) -> list[ScannedPiece]:
    """Scan the blocks of the stride at `begin`."""
    return [
        _scan_block(file, offset, markers)
        for offset in range(begin, min(begin + STRIDE, file.size), BLOCK)
    ]


def _scan_block(file: files.File, begin: int, markers: MarkerSearch) -> ScannedPiece:
    """Scan the block at `begin`."""
    stop = min(begin + BLOCK, file.size)
    length = stop - begin
    # A marker may begin in this block and end in the next.
    text = file.read(begin, min(stop + markers.longest - 1, file.size))
    block_bytes = np.frombuffer(text, np.uint8, length)
    return ScannedPiece(
        begin,
        stop,
        markers,
        matches=markers.find_matches(text, 0, length),
        line_feeds=int(np.count_nonzero(block_bytes == ord("\n"))),
        ended=text[length - 1] == ord("\n"),
        sample=hash_sample(begin, memoryview(text)[:length]),
    )


def _cut_chunk(
    file: files.File, piece: ScannedPiece, line: int, next_line: int
) -> ByteChunk:
    """Read a block with its context before and after."""
    offset = max(0, piece.begin - REACH_BACK)
    text = file.read(offset, min(piece.stop + REACH, file.size))
    return ByteChunk(
        text, piece.begin - offset, piece.stop - offset, offset, line, next_line
    )
