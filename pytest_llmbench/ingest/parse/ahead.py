"""A large file, searched by several threads ahead of the reader: parts without markers are never read as lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from pytest_llmbench.ingest.parse.collect import LogCollector
from pytest_llmbench.ingest.parse.fingerprint import Fingerprint, take_sample
from pytest_llmbench.ingest.parse.scan import REACH, REACH_BACK, ByteChunk, MarkerSearch
from pytest_llmbench.ingest.sources.local import File

# Bytes that are searched at once: they stay in the cache of a core while they are read, searched and counted.
BLOCK = 1 << 19

# What a thread looks at before it asks for more.
STRIDE = 8 * BLOCK

# So many strides each thread may be ahead: of what it saw only the places of markers are kept.
AHEAD = 2


class Look(NamedTuple):
    """What a thread saw of the bytes `begin` to `stop` of a file. Places count from `begin`; `ended`: with a line feed.

    `sample` is what the file's fingerprint wants of them.
    """

    begin: int
    stop: int
    markers: MarkerSearch
    places: list[tuple[int, bytes]]
    line_feeds: int
    ended: bool
    sample: bytes


def take_file(file: File, collector: LogCollector, threads: int) -> Fingerprint:
    """Give a collector all that matters in a file; return its fingerprint. LogError where it changed meanwhile."""
    head = file.read(0, min(file.size, BLOCK))
    fingerprint = Fingerprint()
    line = 1
    for look in _iterate_looks(file, collector, threads):
        fingerprint.take(look.sample)
        next_line = line + look.line_feeds
        wanted = collector.markers(look.begin)
        if look.markers is not wanted:  # the reader came to know meanwhile what else it needs
            chunk = _cut_chunk(file, look, line, next_line)
            collector.take(chunk, wanted.find_places(chunk.text, chunk.start, chunk.stop))
        elif look.places or collector.follows:
            chunk = _cut_chunk(file, look, line, next_line)
            collector.take(chunk, [(chunk.start + place, marker) for place, marker in look.places])
        else:
            collector.pass_over(next_line, look.ended)
        line = next_line
    file.refuse_changed(head)
    return fingerprint


def _iterate_looks(file: File, collector: LogCollector, threads: int) -> Iterator[Look]:
    """Yield what threads saw of each block, in the order of the file."""
    waiting: deque[Future[list[Look]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for begin in range(0, file.size, STRIDE):
                waiting.append(pool.submit(_look_along, file, begin, collector.markers(begin)))
                if len(waiting) > AHEAD * threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _look_along(file: File, begin: int, markers: MarkerSearch) -> list[Look]:
    """Return what stands in the blocks of the stride that begins there."""
    return [_look_at(file, place, markers) for place in range(begin, min(begin + STRIDE, file.size), BLOCK)]


def _look_at(file: File, begin: int, markers: MarkerSearch) -> Look:
    """Return what stands in the block that begins there."""
    stop = min(begin + BLOCK, file.size)
    text = file.read(begin, min(stop + markers.longest - 1, file.size))
    new = np.frombuffer(text, np.uint8, stop - begin)
    return Look(
        begin,
        stop,
        markers,
        markers.find_places(text, 0, stop - begin),
        int(np.count_nonzero(new == ord("\n"))),
        text[stop - begin - 1] == ord("\n"),
        take_sample(begin, memoryview(text)[: stop - begin]),
    )


def _cut_chunk(file: File, look: Look, line: int, next_line: int) -> ByteChunk:
    """Return a block with what can be seen around it."""
    offset = max(0, look.begin - REACH_BACK)
    text = file.read(offset, min(look.stop + REACH, file.size))
    return ByteChunk(text, look.begin - offset, look.stop - offset, offset, line, next_line)
