"""Read a log: bytes in, columns of steps out, with what was dropped and how it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.files import local
from pytest_llmbench.files.compressed import Stream
from pytest_llmbench.models import Ending, ParsedLog, RegexDialect
from pytest_llmbench.parse.collect import Collector
from pytest_llmbench.parse.endings import NEEDLES, Endings, of_file
from pytest_llmbench.parse.scan import find, windows

CUT = "cut"
"""The code of the ending of a log whose compressed data end before their end."""


def parse_blocks(blocks: Iterable[bytes], extra: Iterable[RegexDialect] = ()) -> ParsedLog:
    """Return what a log says, from its bytes in blocks of any size; sha256 and size_bytes are left empty.

    `extra` are the dialects that baseline files define.

    No content is an error: what cannot be read as a step is no step, and is in `dropped` if it looks like one.
    """
    collector = Collector(extra)
    for window in windows(blocks):
        collector.take(window, collector.needles.places(window.text, window.start, window.stop))
    return collector.result()


def read_log(source: Path | Stream, extra: Iterable[RegexDialect] = ()) -> ParsedLog:
    """Return what a log says, with the sha256 and size of its text; LogError if it cannot be read.

    A compressed log is decompressed, whatever its name, so that all copies of a log have one sha256. Where its data are
    cut, what was left of them is read, and its ending says so unless the log itself says how it ended.
    """
    stream = _opened(source)
    digest = hashlib.sha256()
    size = 0

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for block in stream:
            digest.update(block)
            size += len(block)
            yield block

    log = replace(parse_blocks(hashed(), extra), sha256=digest.hexdigest(), size_bytes=size)
    return _without_end(log, stream) if stream.cut else log


def read_ending(source: Path | Stream) -> Ending | None:
    """Return how a standard error says that the job ended, or None; LogError if it cannot be read."""
    stream = _opened(source)
    found = Endings()
    for window in windows(stream):
        found.take(window, find(window, NEEDLES))
    ending = found.result()
    return ending and of_file(ending, stream.path.name)


def _opened(source: Path | Stream) -> Stream:
    return source if isinstance(source, Stream) else Stream(local.blocks(source), source)


def _without_end(log: ParsedLog, stream: Stream) -> ParsedLog:
    """Return a log with what became of its file as its ending, unless it says itself how it ended."""
    text = f"the {stream.method} data of {stream.path.name} end before their end: copy or compress the log again"
    cut = Ending(CUT, text, log.lines)
    readings = tuple(replace(one, ending=one.ending or cut) for one in log.readings)
    return replace(log, ending=log.ending or cut, readings=readings)
