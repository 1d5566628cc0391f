"""Blocks of bytes in, places of needles out: a window that slides over a log of any size in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

REACH = 8192
"""Bytes that can be seen from the first byte of a record on: a longer record is torn."""

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

    @property
    def next_line(self) -> int:
        """The 1-based line that `stop` stands on."""
        return self.line + self.text.count(b"\n", self.start, self.stop)


class Hit(NamedTuple):
    """A needle at `text[start]`; what belongs to it ends before `end`. `offset` is its place in the log."""

    needle: bytes
    text: bytes
    start: int
    end: int
    offset: int
    line: int


def windows(blocks: Iterable[bytes]) -> Iterator[Window]:
    """Yield windows whose new parts cover the log once, in order, the same ones wherever the log is cut into blocks.

    REACH bytes can be seen from every new byte on and REACH_BACK before it, as far as the log goes. Nothing waits
    for the end of a line, so a line without one takes no more memory than others.
    """
    text, start, offset, line = b"", 0, 0, 1
    for piece in chain(_pieces(blocks), (None,)):
        text += piece or b""
        stop = len(text) if piece is None else max(start, len(text) - REACH)
        window = Window(text, start, stop, offset, line)
        yield window
        kept = max(0, stop - REACH_BACK)
        text, start, offset, line = text[kept:], stop - kept, offset + kept, window.next_line


def find(window: Window, needles: Iterable[bytes]) -> list[Hit]:
    """Return where the needles stand in the new part of a window, in the order of the log."""
    places = sorted((place, needle) for needle in needles for place in _places(window, needle))
    hits = []
    seen, line = window.start, window.line
    for place, needle in places:
        line += window.text.count(b"\n", seen, place)
        seen = place
        end = min(place + REACH, len(window.text))
        hits.append(Hit(needle, window.text, place, end, window.offset + place, line))
    return hits


def _pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    return (block[begin : begin + PIECE] for block in blocks for begin in range(0, len(block), PIECE))


def _places(window: Window, needle: bytes) -> Iterator[int]:
    limit = window.stop + len(needle) - 1
    place = window.text.find(needle, window.start, limit)
    while place >= 0:
        yield place
        place = window.text.find(needle, place + 1, limit)
