"""Blocks of bytes in, places of needles out: a window that slides over a log of any size in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

REACH = 8192
"""Bytes that can be seen from the first byte of a record on: longer records are torn."""

REACH_BACK = 512
"""Bytes that can be seen before a record: a longer prefix names no rank."""

PIECE = 1 << 20


class Window(NamedTuple):
    """A part of a log. New in it are the bytes `start` to `stop` of `text`; the rest is context, seen before or again.

    `offset` is the place of `text[0]` in the log, `line` the 1-based line that `start` stands on.
    """

    text: bytes
    start: int
    stop: int
    offset: int
    line: int


class Hit(NamedTuple):
    """A needle that was found: `kind` is what it was filed under, `text[start:end]` all that may be looked at."""

    kind: str
    text: bytes
    start: int
    end: int
    offset: int
    line: int


def windows(blocks: Iterable[bytes]) -> Iterator[Window]:
    """Yield windows whose new parts cover the log once, in order, however it was cut into blocks.

    From every new byte on, REACH bytes can be seen, and REACH_BACK before it, or as many as the log has. A line
    without an end is no special case: nothing waits for a line break.
    """
    text, start, offset, line = b"", 0, 0, 1
    for block in (*_pieces(blocks), None) if isinstance(blocks, tuple) else _ended(_pieces(blocks)):
        text += block or b""
        stop = len(text) if block is None else max(start, len(text) - REACH)
        yield Window(text, start, stop, offset, line)
        line += text.count(b"\n", start, stop)
        kept = max(0, stop - REACH_BACK)
        text, start, offset = text[kept:], stop - kept, offset + kept


def _pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        for begin in range(0, len(block), PIECE):
            yield block[begin : begin + PIECE]


def _ended(pieces: Iterable[bytes]) -> Iterator[bytes | None]:
    yield from pieces
    yield None
