"""The scanner: the same result wherever the log is cut into blocks, in bounded memory."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from compared import described
from hypothesis import given, settings
from hypothesis import strategies as st
from written_logs import LOGS, LONG, bar, nemo2, nemo2_run, parse, steps

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import ParsedLog
from pytest_llmbench.ingest.parse import read, scan
from pytest_llmbench.ingest.parse.collect import LogCollector
from pytest_llmbench.ingest.parse.read import LARGE, Fingerprint, parse_blocks, read_log, take_sample
from pytest_llmbench.ingest.parse.scan import (
    AT_ONCE,
    MOST_MATCHES,
    PIECE,
    REACH,
    REACH_BACK,
    MarkerSearch,
    build_search,
    find_markers,
    iterate_chunks,
)

ENGINES = {"automaton": sys.maxsize, "hyperscan": -1}
"""So many bytes are searched by the automaton first."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both engines, the second one from the first byte on."""
    if request.param == "hyperscan":
        pytest.importorskip("hyperscan")
    monkeypatch.setattr(scan, "WORTH", ENGINES[request.param])
    build_search.cache_clear()
    yield request.param
    build_search.cache_clear()


def cut(data: bytes, *places: int) -> list[bytes]:
    bounds = [0, *sorted(places), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(bounds)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_a_cut_at_any_byte_changes_nothing(name: str) -> None:
    data = LOGS[name].encode()
    whole = described(parse_blocks([data]))
    for place in range(len(data) + 1):
        assert described(parse_blocks(cut(data, place))) == whole


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, REACH - 1, REACH, REACH + 1, 3 * REACH])
def test_blocks_of_any_size_change_nothing(size: int) -> None:
    data = LONG if size > 50 else LONG[: REACH + 6000]
    blocks = [data[begin : begin + size] for begin in range(0, len(data), size)]
    assert described(parse_blocks(blocks)) == described(parse_blocks([data]))


@pytest.mark.slow
@settings(max_examples=60)
@given(places=st.lists(st.integers(0, len(LONG)), max_size=8))
def test_blocks_of_mixed_sizes_change_nothing(places: list[int]) -> None:
    assert described(parse_blocks(cut(LONG, *places))) == WHOLE


WHOLE = described(parse_blocks([LONG]))


def test_every_byte_is_new_in_one_window_and_seen_with_its_surroundings() -> None:
    data = bytes(range(256)) * 200
    offset = 0
    for chunk in iterate_chunks(data[begin : begin + 5000] for begin in range(0, len(data), 5000)):
        assert chunk.offset + chunk.start == offset
        assert chunk.text == data[chunk.offset : chunk.offset + len(chunk.text)]
        assert chunk.start >= min(REACH_BACK, offset)
        assert (
            len(chunk.text) - chunk.stop >= min(REACH, len(data) - chunk.offset - chunk.stop)
            or chunk.start == chunk.stop
        )
        offset = chunk.offset + chunk.stop
    assert offset == len(data)


def test_markers_across_a_cut_are_found_once_with_their_line() -> None:
    data = b"a\nmarker b\n" * 4000
    hits = [
        hit
        for chunk in iterate_chunks(cut(data, 9000, 9003, 20001))
        for hit in find_markers(chunk, [b"marker", b"b\n"])
    ]
    assert [hit.line for hit in hits if hit.marker == b"marker"] == list(range(2, 8001, 2))
    assert [hit.offset for hit in hits] == sorted(hit.offset for hit in hits)


texts = st.text("ab", max_size=60) | st.text("abc", max_size=60)
markers = st.lists(st.text("ab", min_size=1, max_size=6) | st.text("abc", min_size=1, max_size=6), unique=True)


def said_by(engine: str, data: bytes) -> object:
    with patch.object(scan, "WORTH", ENGINES[engine]):
        build_search.cache_clear()
        said = described(parse_blocks([data]))
    build_search.cache_clear()
    return said


@pytest.mark.parametrize("name", LOGS)
def test_a_log_says_the_same_whichever_engine_searches_it(name: str) -> None:
    data = LOGS[name].encode()
    assert said_by("hyperscan", data) == said_by("automaton", data)


class Hunt(NamedTuple):
    """Texts that are looked for between two offsets of `data`."""

    sought: list[bytes]
    data: bytes
    start: int
    stop: int

    def find_with(self, engine: str) -> list[tuple[int, bytes]]:
        with patch.object(scan, "WORTH", ENGINES[engine]):
            return MarkerSearch(self.sought).find_places(self.data, self.start, self.stop)

    def find_slowly(self) -> list[tuple[int, bytes]]:
        places = range(self.start, self.stop)
        return sorted((place, text) for text in self.sought for place in places if self.data.startswith(text, place))


@st.composite
def overlapping_hunts(draw: st.DrawFn) -> Hunt:
    data, wanted = draw(texts).encode(), draw(markers)
    start = min(draw(st.integers(0, 60)), len(data))
    stop = min(start + draw(st.integers(0, 60)), len(data))
    sought = [*(f"x{number}" for number in range(draw(st.sampled_from([0, AT_ONCE])))), *wanted]
    return Hunt([text.encode() for text in sought], data, start, stop)


@pytest.mark.slow
@settings(max_examples=300)
@given(hunt=overlapping_hunts())
def test_every_marker_is_found_however_they_overlap(hunt: Hunt) -> None:
    assert hunt.find_with("automaton") == hunt.find_slowly()


@pytest.mark.slow
@settings(max_examples=60)
@given(hunt=overlapping_hunts())
def test_hyperscan_finds_every_overlapping_marker(hunt: Hunt) -> None:
    assert hunt.find_with("hyperscan") == hunt.find_slowly()


@pytest.mark.usefixtures("engine")
def test_more_matches_than_hyperscan_is_left_with_are_found_too() -> None:
    data = b"a marker " * (MOST_MATCHES // 2 + 1)
    search = MarkerSearch([b"marker", b"a m", b"\xff\x00", b"never"])
    for text in (data, b".\xff\x00." + data[: len(data) // 2]):
        expected = sorted(
            (place, marker)
            for marker in (b"marker", b"a m", b"\xff\x00")
            for place in range(len(text))
            if text.startswith(marker, place)
        )
        assert search.find_places(text, 0, len(text)) == expected


@pytest.mark.parametrize("least", [1, 15])
def test_hyperscan_takes_over_once_it_pays(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    pytest.importorskip("hyperscan")
    compiled = []
    compile_database = scan.compile_database

    def note_and_compile(texts: list[bytes]) -> object:
        compiled.append(texts)
        return compile_database(texts)

    monkeypatch.setattr(scan, "WORTH", 20)
    monkeypatch.setattr(scan, "OF_SMALL", least)
    monkeypatch.setattr(scan, "compile_database", note_and_compile)
    search = MarkerSearch([b"marker"])
    for searched in range(1, 5):
        assert search.find_places(b"a marker", 0, 8) == [(2, b"marker")]
        assert compiled == ([[b"marker"]] if searched * max(8, least) > 20 else [])


def test_hyperscan_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[list[bytes]] = []
    monkeypatch.setattr(scan, "compile_database", compiled.append)
    search = MarkerSearch([b"marker"])
    for _ in range(2):
        search.prepare()
        assert search.find_places(b"a marker", 0, 8) == [(2, b"marker")]
    assert compiled == [[b"marker"]]


def test_without_hyperscan_all_is_searched_by_the_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WORTH", -1)
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    assert MarkerSearch([b"marker"]).find_places(b"a marker", 0, 8) == [(2, b"marker")]
    assert scan.compile_database([b"marker"]) is None


@pytest.mark.slow
def test_a_text_that_hyperscan_cannot_take_is_found_by_the_automaton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WORTH", -1)
    marker = bytes(range(1, 251)) * 66
    assert scan.compile_database([marker]) is None
    assert MarkerSearch([marker]).find_places(b"a " + marker, 0, 9) == [(2, marker)]


def test_an_interrupt_while_hyperscan_searches_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hyperscan")
    monkeypatch.setattr(scan, "WORTH", -1)
    search = MarkerSearch([b"marker"])
    search.find_places(b"", 0, 0)

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "_note_end":
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            search.find_places(b"a marker", 0, 8)
    finally:
        sys.setprofile(None)
    assert search.find_places(b"a marker", 0, 8) == [(2, b"marker")]


def test_several_threads_search_with_hyperscan_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WORTH", -1)
    search = MarkerSearch([b"marker", b"a mark"])
    text = (b"." * 1000 + b"a marker") * 100
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: tuple(search.find_places(text, 0, len(text))), range(200)))
    places = [[(begin + 1000, b"a mark"), (begin + 1002, b"marker")] for begin in range(0, len(text), 1008)]
    assert found == {tuple(itertools.chain(*places))}


SHARED = "abbabaabbabb"
around = st.text("abc", max_size=3)
sharing = st.lists(st.builds(lambda before, behind: before + SHARED + behind, around, around), min_size=5, unique=True)


@st.composite
def shared_hunts(draw: st.DrawFn) -> tuple[Hunt, int]:
    """Return a search for texts that share a component, and by how many they exceed an automaton."""
    texts, places = draw(sharing), draw(st.lists(st.integers(0, 9), max_size=6))
    data = "a".join(texts[place % len(texts)] for place in places).encode()
    start, stop = min(draw(st.integers(0, 30)), len(data)), len(data) * 2 // 3
    own, excess = list(dict.fromkeys((*texts, *draw(markers)))), draw(st.integers(1, 3))
    sought = [*own, *(f"x{number}" for number in range(AT_ONCE - len(own) + excess))]
    return Hunt([text.encode() for text in sought], data, start, stop), excess


@pytest.mark.slow
@settings(max_examples=300)
@given(shared=shared_hunts())
def test_every_marker_is_found_where_many_share_a_part(shared: tuple[Hunt, int]) -> None:
    hunt, excess = shared
    assert hunt.find_with("automaton") == hunt.find_slowly()
    assert MarkerSearch(hunt.sought).passes == 1 or excess > 1


@pytest.mark.slow
@settings(max_examples=30)
@given(shared=shared_hunts())
def test_hyperscan_finds_markers_that_share_a_component(shared: tuple[Hunt, int]) -> None:
    hunt, _ = shared
    assert hunt.find_with("hyperscan") == hunt.find_slowly()


@pytest.fixture(scope="module")
def large_log() -> tuple[bytes, ParsedLog]:
    """Return a log above LARGE, and what it contains when read in one block.

    With everything that several threads could lose: markers across their blocks, a traceback over several of them, a
    start far behind the beginning, a trace that goes on after steps.
    """
    quiet = b"a line that says nothing of the run\n" * 40_000
    rank = b"gb-1:7:8 [0] NCCL INFO AllReduce: opCount 2 sendbuff 0x7 recvbuff 0x7 count 1 datatype 1 op 0 root 0\n"
    died = b"Traceback (most recent call last):\n" + b'  File "train.py", line 1\n' * 40_000 + b"ValueError: no\n"
    shift = [b"." * number + b"\n" + LONG for number in range(0, 3000, 83)]
    data = b"".join([quiet, LONG, rank * 9000, *shift, quiet, rank, quiet, LONG, died, quiet, b"the end"])
    data = data.replace(LOGS["endings"].encode(), b"")
    assert len(data) > LARGE
    expected = dataclasses.replace(parse_blocks([data]), size_bytes=len(data))
    assert expected.ending is not None
    assert expected.ending.code == "traceback"
    assert 0 < expected.nccl_line < expected.nccl_last_line
    return data, expected


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("surely", [False, True])
def test_a_large_file_is_read_ahead_as_the_same_bytes_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surely: bool, large_log: tuple[bytes, ParsedLog]
) -> None:
    data, expected = large_log
    path = tmp_path / "log.out"
    path.write_bytes(data)
    monkeypatch.setattr(read, "SURELY_LARGE", len(data) + (not surely))
    for threads in (1, 3):
        build_search.cache_clear()
        log = read_log(path, threads=threads)
        assert described(dataclasses.replace(log, fingerprint="")) == described(expected)


@pytest.mark.slow
def test_a_large_file_that_shrinks_is_an_error_whichever_thread_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.out"
    path.write_bytes(LONG * (2 * LARGE // len(LONG)))
    take = LogCollector.take

    def shorten(collector: LogCollector, *chunk: Any) -> None:
        os.truncate(path, LARGE)
        take(collector, *chunk)

    monkeypatch.setattr(LogCollector, "take", shorten)
    with pytest.raises(LogError, match=r"shorter than at its opening|it was shortened"):
        read_log(path)


@pytest.mark.slow
def test_a_copy_has_the_fingerprint_of_the_text_however_it_is_read(tmp_path: Path) -> None:
    data = LONG + b"".join(b"line %d says nothing of the run\n" % number for number in range(LARGE // 20))
    assert len(data) > 1.5 * LARGE
    path, packed = tmp_path / "log.out", tmp_path / "log.gz"
    path.write_bytes(data)
    packed.write_bytes(gzip.compress(data, 1))
    fingerprint = read_log(path).fingerprint
    assert fingerprint == read_log(packed).fingerprint
    pieces = Fingerprint()
    for begin in range(0, len(data), 70_001):
        pieces.take(take_sample(begin, data[begin : begin + 70_001]))
    assert pieces.digest(len(data)) == fingerprint


def traced(blocks: Iterable[bytes]) -> tuple[ParsedLog, int]:
    tracemalloc.start()
    try:
        return parse_blocks(blocks), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def one_line(megabytes: int) -> Iterator[bytes]:
    """A line without an end, with records in it."""
    for number in range(megabytes):
        yield b"\r" + bar(number + 1, f"{number}.000", "2.000").encode()
        yield b"x" * (PIECE - 1000)


def test_a_line_without_an_end_is_read_in_bounded_memory() -> None:
    log, peak = traced(one_line(24))
    assert steps(log) == [list(range(24))]
    assert log.lines == 1
    assert peak < 8 * PIECE


def test_one_enormous_block_takes_a_few_pieces_more() -> None:
    block = nemo2_run(0, 4).encode() + b"y" * (16 * PIECE) + b"\n" + nemo2_run(5, 9).encode()
    log, peak = traced([block])
    assert steps(log) == [list(range(10))]
    assert log.segments[0].steps.line.tolist() == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert peak < 8 * PIECE


def test_a_record_longer_than_the_reach_is_torn() -> None:
    log = parse(nemo2(3, more=" | note: " + "z" * 100) + nemo2(4).replace("lr: 1.5e-07", "lr: " + "1" * REACH))
    assert steps(log) == [[3]]
    assert [each.reason for each in log.dropped] == ["torn"]
