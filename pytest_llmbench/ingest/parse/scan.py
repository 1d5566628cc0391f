"""Blocks of bytes in, places of needles out: a window that slides over a log of any size in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

REACH = 8192
"""Bytes that can be seen from the first byte of a record on: a longer record is torn."""

REACH_BACK = 512
"""Bytes that can be seen before a record: a longer prefix names no rank."""

PIECE = 1 << 20

AT_ONCE = 64
"""More needles than this are beyond what vector instructions compare: four times as slow as two groups."""


class Window(NamedTuple):
    """A part of a log. New in it are the bytes `start` to `stop` of `text`; the rest is context, seen before or again.

    `offset` is the place of `text[0]` in the log, `line` the 1-based line that `start` stands on, `next_line` that of
    `stop`. `whole`: there is nothing else in the log.
    """

    text: bytes
    start: int
    stop: int
    offset: int
    line: int
    next_line: int
    whole: bool = False


class Hit(NamedTuple):
    """A needle at `text[start]`; what belongs to it ends before `end`. `offset` is its place in the log."""

    needle: bytes
    text: bytes
    start: int
    end: int
    offset: int
    line: int


class Needles:
    """Literal texts that are looked for all at once, wherever they stand and however they overlap."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        """Take texts of at least one byte, each once."""
        self.longest = max(map(len, needles), default=1)
        self._groups = [_Group(needles[begin : begin + AT_ONCE]) for begin in range(0, len(needles), AT_ONCE)]

    def __deepcopy__(self, memo: dict[int, object]) -> Needles:
        """Return itself: it never changes."""
        return self

    def places(self, text: bytes, start: int, stop: int) -> list[tuple[int, bytes]]:
        """Return which needles begin at `start` or behind it and before `stop`, and where, in the order of the text.

        They may end behind `stop`. The search lets other threads run meanwhile.
        """
        places = [place for group in self._groups for place in group.places(text, start, stop)]
        places.sort()
        while places and places[-1][0] >= stop:
            places.pop()
        return places


class _Group:
    """Needles that one automaton finds: the leftmost one, then the next behind it. What begins within is looked at."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        self._needles = needles
        self._longest = max(map(len, needles))
        self._automaton = BytesAhoCorasick(needles, matchkind=MatchKind.LeftmostFirst)
        within = [list(_beginning_within(needle, needles)) for needle in needles]
        self._within = {number: one for number, one in enumerate(within) if one}

    def places(self, text: bytes, start: int, stop: int) -> list[tuple[int, bytes]]:
        """Return where needles begin from `start` on, some behind `stop`, in no order."""
        view = memoryview(text)[start : stop + self._longest - 1]
        found = self._automaton.find_matches_as_indexes(view)
        places = [(start + begin, self._needles[number]) for number, begin, _ in found]
        for number, begin, _ in found:
            if number in self._within:
                places += (
                    (start + begin + further, needle)
                    for further, needle in self._within[number]
                    if text.startswith(needle, start + begin + further)
                )
        return places


@cache
def searcher(needles: tuple[bytes, ...]) -> Needles:
    """Return what finds these needles, built once."""
    return Needles(tuple(dict.fromkeys(needles)))


class Sliding:
    """The window over a log that comes in pieces: what it kept of those before, for the context of the next."""

    def __init__(self) -> None:
        """Begin in front of a log."""
        self.offset = 0
        self.text = b""
        self._start = 0
        self._line = 1

    def push(self, piece: bytes) -> Window:
        """Return the window that more bytes allow: all but the last REACH are new in it."""
        text = self.text + piece
        window = self._window(text, max(self._start, len(text) - REACH))
        kept = max(0, window.stop - REACH_BACK)
        self.text, self.offset = window.text[kept:], self.offset + kept
        self._start, self._line = window.stop - kept, window.next_line
        return window

    def rest(self, piece: bytes = b"") -> Window:
        """Return the last window, as if the log ended with these bytes."""
        text = self.text + piece
        return self._window(text, len(text))._replace(whole=self._start == self.offset == 0)

    def _window(self, text: bytes, stop: int) -> Window:
        next_line = self._line + text.count(b"\n", self._start, stop)
        return Window(text, self._start, stop, self.offset, self._line, next_line)


def windows(blocks: Iterable[bytes]) -> Iterator[Window]:
    """Yield windows whose new parts cover the log once, in order, the same ones wherever the log is cut into blocks.

    REACH bytes can be seen from every new byte on and REACH_BACK before it, as far as the log goes. Nothing waits
    for the end of a line, so a line without one takes no more memory than others.
    """
    sliding = Sliding()
    for piece, following in pairwise(chain(_pieces(blocks), (b"", None))):
        if not following:
            yield sliding.rest(piece or b"")
            return
        yield sliding.push(piece or b"")


def find(window: Window, needles: Iterable[bytes]) -> list[Hit]:
    """Return where the needles stand in the new part of a window, in the order of the log."""
    return hits(window, searcher(tuple(needles)).places(window.text, window.start, window.stop))


def hits(window: Window, places: Iterable[tuple[int, bytes]]) -> list[Hit]:
    """Return what was found at places in the new part of a window, which are in its order, with its lines."""
    found = []
    text, seen, line = window.text, window.start, window.line
    for place, needle in places:
        line += text.count(b"\n", seen, place)
        seen = place
        found.append(Hit(needle, text, place, min(place + REACH, len(text)), window.offset + place, line))
    return found


def _pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    return (block[begin : begin + PIECE] for block in blocks for begin in range(0, len(block), PIECE))


def _beginning_within(outer: bytes, needles: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the needles that can begin where `outer` stands, and how far from its beginning."""
    for place in range(len(outer)):
        for needle in needles:
            rest = outer[place : place + len(needle)]
            if needle.startswith(rest) and (place or needle != outer):
                yield place, needle
