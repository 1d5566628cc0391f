"""Blocks of bytes in, places of markers out: a chunk that slides over a log of any size
in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from threading import Lock
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from pytest_llmbench.logs.sources.files import slice_blocks

# Bytes that can be seen from the first byte of a record on: a longer record is torn.
REACH = 8192

# Bytes that can be seen before a record: a longer prefix names no rank.
REACH_BACK = 512

PIECE = 1 << 20

# More texts than this are beyond what vector instructions compare (Teddy of the Rust
# crate `aho-corasick` takes 64 patterns): one automaton for all is four times as slow
# as two.
AT_ONCE = 64

# The first bytes by which markers are looked up, at most.
KEY = 3

# Bytes that markers have to share to be looked for as one. Shorter parts stand in many
# lines that say nothing: `iteration ` (10) in every step of NeMo 2, `heckpoint` (9) in
# paths.
LEAST_SHARED = 11

# Bytes that a search goes over before Hyperscan takes it: loading that and compiling
# the texts takes as long as it then gains with so many. To search a small log gains as
# much as with the bytes of the second number. No clock decides: the same session loads
# the same on a busy machine.
WORTH, OF_SMALL = 64 << 20, 1 << 18

# Texts that Hyperscan is given at least: with fewer than some 260 it looks at every
# fourth byte only, and stops at most lines to compare (2.4 GB/s where it has 3.3 with
# 300 or 2,000). Those that fill up stand in no log.
LEAST_TEXTS = 320

# Matches in one text from which on the automaton is faster: for each of them Hyperscan
# calls Python.
MOST_MATCHES = 1024


class ByteChunk(NamedTuple):
    """A part of a log. New in it are the bytes `start` to `stop` of `text`; the rest is
    context, seen twice."""

    text: bytes
    start: int
    stop: int
    offset: int  # the place of `text[0]` in the log
    line: int  # the 1-based line that `start` stands on
    next_line: int  # that of `stop`
    whole: bool = False  # whether there is nothing else in the log


class Hit(NamedTuple):
    """A marker at `text[start]`."""

    marker: bytes
    text: bytes
    start: int
    end: int  # what belongs to it ends before this
    offset: int  # its place in the log
    line: int


class MarkerSearch:
    """Literal texts that are looked for all at once, wherever they stand and however
    they overlap.

    Two engines find the same: automata at once, and Hyperscan, where it is installed,
    in what comes behind the first WORTH bytes, or in the log after some hundreds of
    small ones.
    """

    def __init__(self, markers: Sequence[bytes]) -> None:
        """Take texts of at least one byte, each once."""
        self.longest = max(map(len, markers), default=1)
        self._markers = markers
        groups = share_substrings(markers)
        parts = list(groups)
        self._automata = [
            _Automaton(parts[begin : begin + AT_ONCE])
            for begin in range(0, len(parts), AT_ONCE)
        ]
        # of a part that several share these, each with how far before it they begin
        self._sharing = {
            part: [(marker, marker.index(part)) for marker in group]
            for part, group in groups.items()
            if group != (part,)
        }
        self._searched = 0
        self._database: _Database | None = None
        self._compiling = Lock()

    @property
    def passes(self) -> int:
        """How often a text is searched for all the markers by automata."""
        return len(self._automata)

    def find_places(
        self, text: bytes, start: int, stop: int
    ) -> list[tuple[int, bytes]]:
        """Return which markers begin at `start` or behind it and before `stop`, and
        where, in the order of the text.

        They may end behind `stop`. The search lets other threads run meanwhile.
        """
        reach = stop + self.longest - 1
        self._searched += max(stop - start, OF_SMALL)
        if self._searched > WORTH:
            self.prepare()
        places = (
            self._database.find_places(text, start, reach) if self._database else None
        )
        if places is None:
            places = self._find_by_automata(text, start, reach)
        places.sort()
        while places and places[-1][0] >= stop:
            places.pop()
        return places

    def prepare(self) -> None:
        """Compile what Hyperscan searches with, once; other threads go on with automata
        meanwhile."""
        if self._compiling.acquire(blocking=False):  # never released
            self._database = compile_database(self._markers)

    def _find_by_automata(
        self, text: bytes, start: int, reach: int
    ) -> list[tuple[int, bytes]]:
        places = [
            place
            for each in self._automata
            for place in each.find_places(text, start, reach)
        ]
        sharing = self._sharing
        if not sharing:
            return places
        # Such a part may stand in every line of a step.
        around = [
            (place - before, marker)
            for place, part in places
            if part in sharing
            for marker, before in sharing[part]
            if place - before >= start and text.startswith(marker, place - before)
        ]
        return [place for place in places if place[1] not in sharing] + around


def share_substrings(markers: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
    """Return the texts to search for, each with its markers: the markers themselves, or
    parts that several of them share.

    If a few markers would need another automaton, those with the longest shared parts
    are searched for by these. That costs nothing: few lines contain a part without its
    marker.
    """
    excess = len(markers) % AT_ONCE if len(markers) > AT_ONCE else 0
    groups: dict[bytes, tuple[bytes, ...]] = {}
    left = list(markers)
    for part in _list_shared_parts(markers) if 2 * excess < AT_ONCE and excess else ():
        sharing = tuple(marker for marker in left if part in marker)
        if excess > 0 and len(sharing) > 1:
            groups[part] = sharing
            left = [marker for marker in left if marker not in sharing]
            excess -= len(sharing) - 1
    if excess > 0:
        return {marker: (marker,) for marker in markers}
    return {marker: (marker,) for marker in left} | groups


def _list_shared_parts(markers: Sequence[bytes]) -> list[bytes]:
    """Return the longest parts that two or more markers share, the longest first."""
    owners: dict[bytes, dict[bytes, int]] = {}
    for marker in markers:
        for place in range(len(marker) - LEAST_SHARED + 1):
            owners.setdefault(marker[place : place + LEAST_SHARED], {}).setdefault(
                marker, place
            )
    parts = set()
    for places in owners.values():
        if len(places) > 1:
            before = _get_common_beginning(
                [marker[:place][::-1] for marker, place in places.items()]
            )[::-1]
            parts.add(
                before
                + _get_common_beginning(
                    [marker[place:] for marker, place in places.items()]
                )
            )
    return sorted(parts, key=lambda part: (-len(part), part))


def _get_common_beginning(texts: Sequence[bytes]) -> bytes:
    first, last = min(texts), max(texts)  # in their order all others lie between these
    shortest = min(len(first), len(last))
    return first[
        : next(
            (place for place in range(shortest) if first[place] != last[place]),
            shortest,
        )
    ]


class _Automaton:
    """Texts that one automaton finds: the leftmost one, then the next behind it. What
    begins within is looked at."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = texts
        self._automaton = BytesAhoCorasick(texts, matchkind=MatchKind.LeftmostFirst)
        size = min(KEY, min(map(len, texts), default=KEY))
        by_beginning: dict[bytes, list[bytes]] = {}
        for text in texts:
            for length in range(1, size + 1):
                by_beginning.setdefault(text[:length], []).append(text)
        within = [
            list(_find_beginning_within(text, by_beginning, size)) for text in texts
        ]
        self._within = {
            number: further for number, further in enumerate(within) if further
        }

    def find_places(
        self, text: bytes, start: int, reach: int
    ) -> list[tuple[int, bytes]]:
        """Return where texts begin that lie between two places, in no order."""
        matches = self._automaton.find_matches_as_indexes(memoryview(text)[start:reach])
        places = [(start + begin, self._texts[number]) for number, begin, _ in matches]
        for number, begin, _ in matches:
            if number in self._within:
                places += (
                    (start + begin + further, other)
                    for further, other in self._within[number]
                    if text.startswith(other, start + begin + further)
                )
        return places


class _Database:
    """Texts that Hyperscan finds, however many they are. Several threads may search at
    a time."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Compile them; `hyperscan.error` where it cannot."""
        import hyperscan

        fillers = [
            b"\x01\x02\x03\x04\x05\x06%c%c" % divmod(n, 16)
            for n in range(LEAST_TEXTS - len(texts))
        ]
        self._texts = (*texts, *fillers)
        self._count = len(texts)
        self._module = hyperscan
        self._database = database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        # each byte by its number: the literal mode ends a text at a NUL
        expressions = [
            b"".join(b"\\x%02x" % sign for sign in text) for text in self._texts
        ]
        database.compile(expressions=expressions, ids=list(range(len(expressions))))
        self._scratches: list[
            hyperscan.Scratch
        ] = []  # the memory of one search each, those that none uses

    def find_places(
        self, text: bytes, start: int, reach: int
    ) -> list[tuple[int, bytes]] | None:
        """Return where texts begin that lie between two places, in no order; None where
        they are too many."""
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = self._module.Scratch(self._database)
        ends: list[tuple[int, int]] = []
        try:
            part = memoryview(text)[start:reach]
            self._database.scan(part, _note_end, context=ends, scratch=scratch)  # type: ignore[type-var, arg-type]
        except self._module.ScanTerminated as error:
            if (
                len(ends) < MOST_MATCHES
            ):  # it was not `_note_end` that said so, but a signal while it ran
                raise KeyboardInterrupt from error
            return None
        finally:
            self._scratches.append(scratch)
        texts, count = self._texts, self._count
        return [
            (start + end - len(texts[number]), texts[number])
            for number, end in ends
            if number < count
        ]


def _note_end(
    number: int, _begin: int, end: int, _flags: int, ends: list[tuple[int, int]]
) -> bool:
    """Keep a match; tell whether to stop."""
    ends.append((number, end))
    return len(ends) >= MOST_MATCHES


def compile_database(texts: Sequence[bytes]) -> _Database | None:
    """Return what Hyperscan searches with; None where it is not installed, or cannot
    take a text."""
    try:
        import hyperscan
    except ImportError:
        return None
    try:
        return _Database(texts)
    except hyperscan.error:
        return None


@cache
def build_search(markers: tuple[bytes, ...]) -> MarkerSearch:
    """Return what finds these markers, built once."""
    return MarkerSearch(tuple(dict.fromkeys(markers)))


class ChunkCutter:
    """The chunk over a log that comes in pieces: what it kept of those before, for the
    context of the next."""

    def __init__(self) -> None:
        """Begin in front of a log."""
        self.offset = 0
        self.text = b""
        self._start = 0
        self._line = 1

    def push(self, piece: bytes) -> ByteChunk:
        """Return the chunk that more bytes allow: all but the last REACH are new in
        it."""
        text = self.text + piece
        chunk = self._cut_chunk(text, max(self._start, len(text) - REACH))
        kept = max(0, chunk.stop - REACH_BACK)
        self.text, self.offset = chunk.text[kept:], self.offset + kept
        self._start, self._line = chunk.stop - kept, chunk.next_line
        return chunk

    def finish(self, piece: bytes = b"") -> ByteChunk:
        """Return the last chunk, as if the log ended with these bytes."""
        text = self.text + piece
        return self._cut_chunk(text, len(text))._replace(
            whole=self._start == self.offset == 0
        )

    def _cut_chunk(self, text: bytes, stop: int) -> ByteChunk:
        next_line = self._line + text.count(b"\n", self._start, stop)
        return ByteChunk(text, self._start, stop, self.offset, self._line, next_line)


def iterate_chunks(blocks: Iterable[bytes]) -> Iterator[ByteChunk]:
    """Yield chunks whose new parts cover the log once, in order, the same ones wherever
    the log is cut into blocks.

    REACH bytes can be seen from every new byte on and REACH_BACK before it, as far as
    the log goes. Nothing waits for the end of a line, so a line without one takes no
    more memory than others.
    """
    cutter = ChunkCutter()
    for piece, following in pairwise(chain(slice_blocks(blocks, PIECE), (b"", None))):
        if not following:
            yield cutter.finish(piece or b"")
            return
        yield cutter.push(piece or b"")


def find_markers(chunk: ByteChunk, markers: Iterable[bytes]) -> list[Hit]:
    """Return where the markers stand in the new part of a chunk, in the order of the
    log."""
    return locate_hits(
        chunk,
        build_search(tuple(markers)).find_places(chunk.text, chunk.start, chunk.stop),
    )


def locate_hits(chunk: ByteChunk, places: Iterable[tuple[int, bytes]]) -> list[Hit]:
    """Return what was found at places in the new part of a chunk, which are in its
    order, with its lines."""
    hits = []
    text, seen, line = chunk.text, chunk.start, chunk.line
    for place, marker in places:
        line += text.count(b"\n", seen, place)
        seen = place
        hits.append(
            Hit(
                marker,
                text,
                place,
                min(place + REACH, len(text)),
                chunk.offset + place,
                line,
            )
        )
    return hits


def find_line_begin(text: bytes, earliest: int, place: int) -> int:
    """Return where the line or bar begins that a place stands in; `earliest` where it
    begins farther back."""
    return max(
        text.rfind(b"\n", earliest, place) + 1,
        text.rfind(b"\r", earliest, place) + 1,
        earliest,
    )


def _find_beginning_within(
    outer: bytes, by_beginning: Mapping[bytes, Iterable[bytes]], size: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the markers that can begin where `outer` stands, and how far from its
    beginning.

    They are given by their first bytes, 1 to `size` of them.
    """
    for place in range(len(outer)):
        for marker in by_beginning.get(outer[place : place + size], ()):
            rest = outer[place : place + len(marker)]
            if marker.startswith(rest) and (place or marker != outer):
                yield place, marker
