"""Find markers in blocks of bytes.

A chunk slides over a log of any size in bounded memory.
"""

from __future__ import annotations

import sys
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate, chain, pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from pytest_llmbench.logs.sources.files import slice_blocks

# Context in bytes from the first byte of a record on. A longer record is truncated.
REACH = 8192

# Context in bytes before a record. A rank in a longer prefix is not found.
REACH_BACK = 512

PIECE = 1 << 20

# Texts per automaton. Up to 64 patterns are compared by vector instructions (Teddy of
# the Rust crate `aho-corasick`); one automaton for more is four times as slow as two.
AT_ONCE = 64

# Number of leading bytes used to look up markers, at most.
KEY = 3

# Length of a substring that several markers must share to be searched for together.
# Shorter substrings occur in too many unrelated lines: `iteration ` (10) in every step
# of NeMo 2, `heckpoint` (9) in paths.
LEAST_SHARED = 11

# A search switches to Hyperscan after BYTES_BEFORE_HYPERSCAN: loading it and compiling
# the texts takes about as long as it then saves on as many bytes. Small texts contain
# more markers per byte: their bytes count SMALL_FACTOR times, up to SMALL_SIZE. Bytes
# decide, not a clock, so that a session on a busy machine behaves the same.
BYTES_BEFORE_HYPERSCAN = 64 << 20
SMALL_FACTOR, SMALL_SIZE = 8, 1 << 17

# Minimum number of texts for Hyperscan. With fewer than about 260 it samples every
# fourth byte only, and stops at most lines to compare (2.4 GB/s, against 3.3 with 300
# or 2,000). The filler texts occur in no log.
LEAST_TEXTS = 320

# Bytes from which on numpy counts line feeds faster than `bytes.count`.
LONG_SPAN = 4096

# With more matches in one text the automaton is faster: Hyperscan calls Python for each
# match.
MOST_MATCHES = 1024

# Substrings of the markers that are searched in the whole of a large log, at most
# AT_ONCE. Each of these markers contains one. The vector instructions compare the first
# four bytes of each text, and reject most lines if these are rare: 7 GB/s, against 4 of
# Hyperscan. The texts and their order (text n is in group n modulo 16) were chosen by
# simulated annealing on lines of NeMo, Megatron, torch and NCCL. They decide the speed
# only.
RARE_TEXTS = (
    *(b"l_step", b"ped: `max_", b"Time : ", b"o initialize megatron (seconds): "),
    *(b"aram steps: ", b"rly: ", b"RFLOW! ", b" metrics after step: ", b"p_i: "),
    *(b"'max_steps'", b'ime": ', b"::MLLOG ", b"m after ", b'nt_steps": ', b"aining "),
    *(b"etected", b': "run_st', b"ofil", b"in_runtime': ", b"t_count="),
    b"- arguments --------------------",
    *(b"ompleted step", b"kpoint", b"0:00<?, ?it/s]", b"ror: "),
    *(b"lective operation timeout", b"alidation, and test datasets ..."),
    *(b" with local batch size ", b"Killed", b"DLL ", b"async_", b"ronous save "),
    *(b"lmb scalar: ", b"on fault", b"k (most recent call last)", b"ook ", b"r_second"),
    *(b"tps: ", b"lue: ", b"RM: Xid", b"och ", b"lization time took", b"teration "),
    *(b"Elapsed time ", b"learning_rate"),
)

# Length of the shortest text that is searched for RARE_TEXTS first, the most markers with
# which that is faster, and the bytes per match from which on it is slower than to search
# for the markers themselves.
LEAST_SPARSE = 1 << 16
MOST_SPARSE = 2 * AT_ONCE
BYTES_PER_RARE_TEXT = 2048


class ByteChunk(NamedTuple):
    """A section of a log with its context.

    The bytes `start` to `stop` of `text` are new; the other bytes are context, seen
    twice.
    """

    text: bytes
    start: int
    stop: int
    offset: int  # offset of `text[0]` in the log
    line: int  # 1-based line number at `start`
    next_line: int  # line number at `stop`
    whole: bool = False  # True if the chunk is the whole log


class Hit(NamedTuple):
    """A marker at `text[start]`."""

    marker: bytes
    text: bytes
    start: int
    end: int  # end of the context that may belong to the marker
    offset: int  # offset in the log
    line: int


class MarkerSearch:
    """Search for many literal texts at once, including overlapping matches.

    Three engines return the same matches. A long text is searched for substrings that
    few lines contain. If it contains too many of them, or the markers have too many,
    automata search for the markers themselves. Hyperscan, if installed, takes over
    from the automata after BYTES_BEFORE_HYPERSCAN or some hundreds of small logs.
    """

    def __init__(self, markers: Sequence[bytes]) -> None:
        """`markers` are distinct, non-empty texts."""
        self.longest = max(map(len, markers), default=1)
        self._markers = markers
        self._automata = _Automata(share_substrings(markers))
        self._searched = 0
        self._database: _Database | None = None
        self._compiling = Lock()

    @property
    def passes(self) -> int:
        """Number of automata, each of which searches the whole text."""
        return len(self._automata.automata)

    @cached_property
    def _rare_automata(self) -> _Automata:
        return _Automata(group_by_rare_text(self._markers))

    def find_matches(
        self, text: bytes, start: int, stop: int
    ) -> list[tuple[int, bytes]]:
        """Return the (offset, marker) matches that begin in `start:stop`, ordered by
        offset.

        Matches may end after `stop`. Other threads can run during the search.
        """
        matches = self._find_rare(text, start, stop)
        if matches is None:
            matches = self._find_frequent(text, start, stop)
        matches.sort()
        while matches and matches[-1][0] >= stop:
            matches.pop()
        return matches

    def prepare(self) -> None:
        """Compile the Hyperscan database, once. Other threads use automata meanwhile."""
        # the lock is never released, so that only one call compiles
        if self._compiling.acquire(blocking=False):
            self._database = compile_database(self._markers)

    def _find_rare(
        self, text: bytes, start: int, stop: int
    ) -> list[tuple[int, bytes]] | None:
        """Return unordered (offset, marker) matches, found by their rare substrings.

        Returns None if the text is short or contains many of these substrings, or if
        the markers need too many of them.
        """
        size = stop - start
        if size < LEAST_SPARSE or len(self._markers) > MOST_SPARSE:
            return None
        reach, most = stop + self.longest - 1, size // BYTES_PER_RARE_TEXT
        return self._rare_automata.find_matches(text, start, reach, most)

    def _find_frequent(
        self, text: bytes, start: int, stop: int
    ) -> list[tuple[int, bytes]]:
        """Return unordered (offset, marker) matches, whatever their number."""
        reach, size = stop + self.longest - 1, stop - start
        self._searched += max(size, min(SMALL_FACTOR * size, SMALL_SIZE))
        if self._searched > BYTES_BEFORE_HYPERSCAN:
            self.prepare()
        matches = (
            self._database.find_matches(text, start, reach) if self._database else None
        )
        if matches is None:
            matches = self._automata.find_matches(text, start, reach, sys.maxsize) or []
        return matches


def group_by_rare_text(markers: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
    """Return the rare texts to search for, each with the markers that contain it.

    A marker without a rare text is searched for itself.
    """
    # One search in all markers at once is faster than a search in each.
    joined = b"\n".join(markers)
    begins = [0, *accumulate(len(marker) + 1 for marker in markers)]
    rare_texts: dict[bytes, bytes] = {}
    for rare_text in RARE_TEXTS:
        offset = joined.find(rare_text)
        while offset >= 0:
            marker = markers[bisect(begins, offset) - 1]
            rare_texts.setdefault(marker, rare_text)
            offset = joined.find(rare_text, offset + 1)
    groups: dict[bytes, list[bytes]] = {}
    for marker in markers:
        groups.setdefault(rare_texts.get(marker, marker), []).append(marker)
    return {
        text: tuple(groups[text]) for text in (*RARE_TEXTS, *markers) if text in groups
    }


def share_substrings(markers: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
    """Return the texts to search for, each with the markers that contain it.

    A text is a marker itself, or a substring that several markers share. An automaton
    takes AT_ONCE texts. If a few markers would need another automaton, the markers with
    the longest shared substrings are searched for by these substrings instead. That
    costs nothing: few lines contain a shared substring without its marker.
    """
    # the number of markers in the last automaton, which are to be saved
    excess = len(markers) % AT_ONCE if len(markers) > AT_ONCE else 0
    substrings: Sequence[bytes] = ()
    if 0 < excess < AT_ONCE / 2:
        substrings = _list_shared_substrings(markers)
    groups: dict[bytes, tuple[bytes, ...]] = {}
    remaining = list(markers)
    for substring in substrings:
        if excess <= 0:
            break
        sharing = tuple(marker for marker in remaining if substring in marker)
        if len(sharing) > 1:
            groups[substring] = sharing
            remaining = [marker for marker in remaining if marker not in sharing]
            excess -= len(sharing) - 1
    if excess > 0:  # too few shared substrings to save an automaton
        return {marker: (marker,) for marker in markers}
    return {marker: (marker,) for marker in remaining} | groups


def _list_shared_substrings(markers: Sequence[bytes]) -> list[bytes]:
    """Return the longest substrings that two or more markers share, longest first."""
    # each text of LEAST_SHARED bytes to the markers that contain it, with its offset
    offsets_by_core: dict[bytes, dict[bytes, int]] = {}
    for marker in markers:
        for offset in range(len(marker) - LEAST_SHARED + 1):
            core = marker[offset : offset + LEAST_SHARED]
            offsets_by_core.setdefault(core, {}).setdefault(marker, offset)
    substrings = set()
    for offsets in offsets_by_core.values():
        if len(offsets) > 1:
            reversed_heads = [
                marker[:offset][::-1] for marker, offset in offsets.items()
            ]
            tails = [marker[offset:] for marker, offset in offsets.items()]
            shared_before_core = _get_common_prefix(reversed_heads)[::-1]
            substrings.add(shared_before_core + _get_common_prefix(tails))
    return sorted(substrings, key=lambda substring: (-len(substring), substring))


def _get_common_prefix(texts: Sequence[bytes]) -> bytes:
    """Return the longest text with which all texts begin."""
    # All other texts sort between these two, so they share the prefix of both.
    first, last = min(texts), max(texts)
    length = 0
    for first_byte, last_byte in zip(first, last, strict=False):
        if first_byte != last_byte:
            break
        length += 1
    return first[:length]


class _Automata:
    """Automata for any number of texts, each with the markers that contain it."""

    def __init__(self, groups: Mapping[bytes, tuple[bytes, ...]]) -> None:
        texts = list(groups)
        # Shared substring to its markers, each with the substring's offset in the
        # marker.
        sharing = {
            substring: [(marker, marker.index(substring)) for marker in group]
            for substring, group in groups.items()
            if group != (substring,)
        }
        self.automata = [
            _Automaton(texts[begin : begin + AT_ONCE], sharing)
            for begin in range(0, len(texts), AT_ONCE)
        ]

    def find_matches(
        self, text: bytes, start: int, reach: int, most: int
    ) -> list[tuple[int, bytes]] | None:
        """Return the unordered (offset, marker) matches in `text[start:reach]`.

        Returns None if an automaton matches more than `most` texts.
        """
        matches: list[tuple[int, bytes]] = []
        for automaton in self.automata:
            found = automaton.find_matches(text, start, reach, most)
            if found is None:
                return None
            matches += found
        return matches


class _Automaton:
    """Automaton for up to AT_ONCE texts: markers, and substrings of markers.

    The automaton reports leftmost, non-overlapping matches. Texts that may begin within
    a match, and markers with a shared substring, are then compared one by one.
    """

    def __init__(
        self,
        texts: Sequence[bytes],
        sharing: Mapping[bytes, Sequence[tuple[bytes, int]]],
    ) -> None:
        """`sharing` maps each substring to its markers, with its offset in each."""
        self._texts = texts
        # Teddy finds the matches, so the automaton only has to be cheap to build: a DFA
        # takes five times as long.
        self._automaton = BytesAhoCorasick(
            texts,
            matchkind=MatchKind.LeftmostFirst,
            implementation=Implementation.ContiguousNFA,
        )
        self._sharing = sharing
        self._key_length = min(KEY, min(map(len, texts), default=KEY))
        self._by_beginning: dict[bytes, list[bytes]] = {}
        for text in texts:
            for length in range(1, self._key_length + 1):
                self._by_beginning.setdefault(text[:length], []).append(text)
        # None for a text that was not found yet: most logs contain few of them.
        self._candidates: list[_Candidates | None] = [None] * len(texts)

    def find_matches(
        self, text: bytes, start: int, reach: int, most: int
    ) -> list[tuple[int, bytes]] | None:
        """Return the unordered (offset, marker) matches in `text[start:reach]`.

        Returns None if more than `most` texts match.
        """
        view = memoryview(text)[start:reach]
        found = self._automaton.find_matches_as_indexes(view)
        if len(found) > most:
            return None
        matches: list[tuple[int, bytes]] = []
        for number, begin, end in found:
            candidates_of_text = self._candidates[number]
            if candidates_of_text is None:
                candidates_of_text = self._list_candidates(self._texts[number])
                self._candidates[number] = candidates_of_text
            is_marker, always, by_next_byte = candidates_of_text
            if is_marker:
                matches.append((start + begin, self._texts[number]))
            candidates = always
            if by_next_byte and start + end < len(text):
                candidates = by_next_byte.get(text[start + end], always)
            for distance, marker in candidates:
                offset = start + begin + distance
                if offset >= start and text.startswith(marker, offset):
                    matches.append((offset, marker))
        return matches

    def _list_candidates(self, text: bytes) -> _Candidates:
        """List the markers that may match where the automaton reports a text."""
        overlapping = _find_overlapping(text, self._by_beginning, self._key_length)
        candidates = [
            (distance - before, marker)
            for distance, other in ((0, text), *overlapping)
            for marker, before in self._sharing.get(other, ((other, 0),))
        ]
        return _group_candidates(text, candidates)


class _Candidates(NamedTuple):
    """The markers to compare at a match of a text, as (distance, marker) pairs.

    A shared substring may occur in every line of a step. The byte after the text rules
    out most of its markers.
    """

    is_marker: bool  # True if the text itself is a marker
    always: list[tuple[int, bytes]]  # they end with the text, or within it
    # they continue after the text with this byte; includes those of `always`
    by_next_byte: dict[int, list[tuple[int, bytes]]]


def _group_candidates(
    text: bytes, candidates: Sequence[tuple[int, bytes]]
) -> _Candidates:
    """Group the markers that may match around a text by the byte after the text."""
    others = [candidate for candidate in candidates if candidate != (0, text)]
    always = []
    continued: dict[int, list[tuple[int, bytes]]] = {}
    for distance, marker in others:
        index = len(text) - distance  # of the byte after the text, in the marker
        if index < len(marker):
            continued.setdefault(marker[index], []).append((distance, marker))
        else:
            always.append((distance, marker))
    by_next_byte = {byte: [*always, *group] for byte, group in continued.items()}
    return _Candidates(len(others) < len(candidates), always, by_next_byte)


class _Database:
    """Hyperscan database for any number of texts, safe to use from several threads."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Compile the texts. Raises `hyperscan.error` if Hyperscan cannot."""
        import hyperscan

        fillers = [
            b"\x01\x02\x03\x04\x05\x06%c%c" % divmod(n, 16)
            for n in range(LEAST_TEXTS - len(texts))
        ]
        self._texts = (*texts, *fillers)
        self._count = len(texts)
        self._module = hyperscan
        self._database = database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        # Every byte is escaped: the literal mode ends a text at a NUL.
        expressions = [
            b"".join(b"\\x%02x" % byte for byte in text) for text in self._texts
        ]
        database.compile(expressions=expressions, ids=list(range(len(expressions))))
        # unused scratch memory, one object per concurrent search
        self._scratches: list[hyperscan.Scratch] = []

    def find_matches(
        self, text: bytes, start: int, reach: int
    ) -> list[tuple[int, bytes]] | None:
        """Return unordered (offset, text) matches in `text[start:reach]`.

        Returns None if there are MOST_MATCHES or more.
        """
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = self._module.Scratch(self._database)
        ends: list[tuple[int, int]] = []
        try:
            view = memoryview(text)[start:reach]
            self._database.scan(view, _record_end, context=ends, scratch=scratch)  # type: ignore[type-var, arg-type]
        except self._module.ScanTerminated as error:
            if len(ends) >= MOST_MATCHES:
                return None
            # The scan was stopped by a signal, not by `_record_end`.
            raise KeyboardInterrupt from error
        finally:
            self._scratches.append(scratch)
        texts, count = self._texts, self._count
        return [
            (start + end - len(texts[number]), texts[number])
            for number, end in ends
            if number < count  # not a filler
        ]


def _record_end(
    number: int, _begin: int, end: int, _flags: int, ends: list[tuple[int, int]]
) -> bool:
    """Record a match in `ends`. Returns True to stop the scan."""
    ends.append((number, end))
    return len(ends) >= MOST_MATCHES


def compile_database(texts: Sequence[bytes]) -> _Database | None:
    """Compile a Hyperscan database.

    Returns None if Hyperscan is not installed or cannot compile a text.
    """
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
    """Build the search for these markers, once."""
    return MarkerSearch(tuple(dict.fromkeys(markers)))


class ChunkCutter:
    """Cutter of a log into chunks with context."""

    def __init__(self) -> None:
        self.offset = 0
        self.text = b""
        self._start = 0
        self._line = 1

    def push(self, piece: bytes) -> ByteChunk:
        """Return the next chunk, after `piece` was added to the log.

        The last REACH bytes are only context, since a record that begins in them may
        continue: they are new in the next chunk.
        """
        text = self.text + piece
        chunk = self._cut_chunk(text, max(self._start, len(text) - REACH))
        kept = max(0, chunk.stop - REACH_BACK)
        self.text, self.offset = chunk.text[kept:], self.offset + kept
        self._start, self._line = chunk.stop - kept, chunk.next_line
        return chunk

    def finish(self, piece: bytes = b"") -> ByteChunk:
        """Return the last chunk, as if the log ended with `piece`."""
        text = self.text + piece
        return self._cut_chunk(text, len(text))._replace(
            whole=self._start == self.offset == 0
        )

    def _cut_chunk(self, text: bytes, stop: int) -> ByteChunk:
        """Return the chunk of `text` whose new part ends at `stop`."""
        next_line = self._line + count_line_feeds(text, self._start, stop)
        return ByteChunk(text, self._start, stop, self.offset, self._line, next_line)


def iterate_chunks(blocks: Iterable[bytes]) -> Iterator[ByteChunk]:
    """Yield chunks whose new parts cover the log once, in order.

    The chunks do not depend on the size of the blocks. Each new byte has REACH bytes of
    context after it and REACH_BACK before it, within the log. The cutter does not wait
    for the end of a line, so a log without line feeds takes no more memory than others.
    """
    cutter = ChunkCutter()
    # An empty piece and None end the pieces, so that the last one finishes the log.
    pieces = chain(slice_blocks(blocks, PIECE), (b"", None))
    for piece, following in pairwise(pieces):
        if not following:
            yield cutter.finish(piece or b"")
            return
        yield cutter.push(piece or b"")


def find_markers(chunk: ByteChunk, markers: Iterable[bytes]) -> list[Hit]:
    """Return the hits in the new part of a chunk, in log order."""
    return locate_hits(
        chunk,
        build_search(tuple(markers)).find_matches(chunk.text, chunk.start, chunk.stop),
    )


def locate_hits(chunk: ByteChunk, matches: Iterable[tuple[int, bytes]]) -> list[Hit]:
    """Convert ordered (offset, marker) matches in the new part of a chunk to hits."""
    hits = []
    text, seen, line = chunk.text, chunk.start, chunk.line
    for offset, marker in matches:
        line += count_line_feeds(text, seen, offset)
        seen = offset
        hits.append(
            Hit(
                marker,
                text,
                offset,
                min(offset + REACH, len(text)),
                chunk.offset + offset,
                line,
            )
        )
    return hits


def find_line_begin(text: bytes, earliest: int, offset: int) -> int:
    """Return the beginning of the line or bar at `offset`, at least `earliest`."""
    begin = max(text.rfind(b"\n", earliest, offset) + 1, earliest)
    return max(text.rfind(b"\r", begin, offset) + 1, begin)


def count_line_feeds(text: bytes, begin: int, stop: int) -> int:
    """Count the line feeds between two offsets of a text."""
    # bytes.count compares byte by byte
    if stop - begin < LONG_SPAN:
        return text.count(b"\n", begin, stop)
    span = np.frombuffer(text, np.uint8, stop - begin, begin)
    return int(np.count_nonzero(span == ord("\n")))


def _find_overlapping(
    outer: bytes, by_beginning: Mapping[bytes, Iterable[bytes]], key_length: int
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, marker) of the other markers that can begin within `outer`.

    `by_beginning` maps each prefix of at most `key_length` bytes to the markers that
    begin with this prefix.
    """
    for offset in range(len(outer)):
        for marker in by_beginning.get(outer[offset : offset + key_length], ()):
            overlap = outer[offset : offset + len(marker)]
            is_outer = offset == 0 and marker == outer
            if marker.startswith(overlap) and not is_outer:
                yield offset, marker
