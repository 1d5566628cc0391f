"""A large file, searched by several threads ahead of the reader: parts without needles are never read as lines."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from pytest_llmbench.files.local import File
from pytest_llmbench.parse.collect import Collector
from pytest_llmbench.parse.fingerprint import Fingerprint
from pytest_llmbench.parse.scan import REACH, REACH_BACK, Needles, Window

BLOCK = 1 << 18
"""Bytes that are searched at once: they stay in the cache of a core while they are read, searched and counted."""

AHEAD = 4
"""Blocks that each thread may be ahead."""


class Look(NamedTuple):
    """What a thread saw of the bytes `begin` to `stop` of a file. Places count from `begin`; `ended`: with a line feed.

    `sample` is what the file's fingerprint wants of them.
    """

    begin: int
    stop: int
    needles: Needles
    places: list[tuple[int, bytes]]
    line_feeds: int
    ended: bool
    sample: bytes


def take_file(file: File, collector: Collector, threads: int) -> Fingerprint:
    """Give a collector all that matters in a file; return its fingerprint. LogError where it changed meanwhile."""
    head = file.read(0, min(file.size, BLOCK))
    fingerprint = Fingerprint()
    line = 1
    for look in _looks(file, collector, threads):
        fingerprint.take(look.begin, look.sample)
        next_line = line + look.line_feeds
        if look.places or collector.follows or look.needles is not collector.needles:
            window = _window(file, look, line, next_line)
            wanted = collector.needles
            collector.take(
                window,
                [(window.start + place, needle) for place, needle in look.places]
                if look.needles is wanted
                else wanted.places(window.text, window.start, window.stop),
            )
        else:
            collector.pass_over(next_line, look.ended)
        line = next_line
    file.refuse_changed(head)
    return fingerprint


def _looks(file: File, collector: Collector, threads: int) -> Iterator[Look]:
    """Yield what threads saw of each block, in the order of the file."""
    looker = _Looker(file)
    waiting: deque[Future[Look]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for begin in range(0, file.size, BLOCK):
                waiting.append(pool.submit(looker.look, begin, collector.needles))
                if len(waiting) > AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Looker:
    """Looks at blocks, with one buffer a thread."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._own = threading.local()

    def look(self, begin: int, needles: Needles) -> Look:
        """Return what stands in the block that begins there."""
        stop = min(begin + BLOCK, self._file.size)
        end = min(stop + needles.longest - 1, self._file.size)
        buffer = self._buffer(end - begin)
        self._file.read_into(memoryview(buffer), begin)
        new = np.frombuffer(buffer, np.uint8, stop - begin)
        return Look(
            begin,
            stop,
            needles,
            needles.places(buffer, 0, stop - begin),
            int(np.count_nonzero(new == ord("\n"))),
            buffer[stop - begin - 1] == ord("\n"),
            Fingerprint.sample(begin, buffer),
        )

    def _buffer(self, size: int) -> bytearray:
        """Return a buffer of exactly this size: that of the thread, but for the last blocks."""
        buffer: bytearray | None = getattr(self._own, "buffer", None)
        if buffer is None or len(buffer) != size:
            buffer = self._own.buffer = bytearray(size)
        return buffer


def _window(file: File, look: Look, line: int, next_line: int) -> Window:
    """Return a block with what can be seen around it."""
    offset = max(0, look.begin - REACH_BACK)
    text = file.read(offset, min(look.stop + REACH, file.size))
    return Window(text, look.begin - offset, look.stop - offset, offset, line, next_line)
