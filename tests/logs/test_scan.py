"""The scanner gives the same results for any size of blocks, in bounded memory."""

from __future__ import annotations

import gzip
import itertools
import os
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.exact_comparison import to_comparable
from support.written_logs import LOGS, LONG, nemo2_run

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs import log_reader as read
from pytest_llmbench.logs import recognisers, scan
from pytest_llmbench.logs.log_collector import ALL_MARKERS, LogCollector
from pytest_llmbench.logs.log_reader import (
    LARGE,
    Fingerprint,
    hash_sample,
    parse_blocks,
    read_log,
)
from pytest_llmbench.logs.scan import (
    AT_ONCE,
    BYTES_PER_RARE_TEXT,
    LEAST_SPARSE,
    MOST_MATCHES,
    PIECE,
    RARE_TEXTS,
    REACH,
    REACH_BACK,
    MarkerSearch,
    build_search,
    find_markers,
    iterate_chunks,
)

ENGINES: dict[str, dict[str, Any]] = {
    "automaton": {"LEAST_SPARSE": sys.maxsize, "BYTES_BEFORE_HYPERSCAN": sys.maxsize},
    "hyperscan": {"LEAST_SPARSE": sys.maxsize, "BYTES_BEFORE_HYPERSCAN": -1},
    "rare texts": {"LEAST_SPARSE": 0, "BYTES_PER_RARE_TEXT": 1},
}
"""The limits with which an engine searches from the first byte on."""


@pytest.fixture(params=ENGINES)
def engine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Run with each engine from the first byte on."""
    if request.param == "hyperscan":
        pytest.importorskip("hyperscan")
    for name, limit in ENGINES[request.param].items():
        monkeypatch.setattr(scan, name, limit)
    build_search.cache_clear()
    yield request.param
    build_search.cache_clear()


def cut(data: bytes, *offsets: int) -> list[bytes]:
    bounds = [0, *sorted(offsets), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_reading_result_is_equal_wherever_blocks_are_split(name: str) -> None:
    data = LOGS[name].encode()
    whole = to_comparable(parse_blocks([data]))
    for index in range(0, len(data) + 1, 3):
        assert to_comparable(parse_blocks(cut(data, index))) == whole


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 1000, REACH - 1, REACH, REACH + 1, 3 * REACH])
def test_reading_result_is_equal_for_blocks_of_any_size(size: int) -> None:
    data = LONG if size > 50 else LONG[: REACH + 6000]
    blocks = [data[start : start + size] for start in range(0, len(data), size)]
    assert to_comparable(parse_blocks(blocks)) == to_comparable(parse_blocks([data]))


def test_every_byte_is_searched_once_with_its_context() -> None:
    data = bytes(range(256)) * 200
    offset = 0
    for chunk in iterate_chunks(
        data[start : start + 5000] for start in range(0, len(data), 5000)
    ):
        assert chunk.offset + chunk.start == offset
        assert chunk.text == data[chunk.offset : chunk.offset + len(chunk.text)]
        assert chunk.start >= min(REACH_BACK, offset)
        assert (
            len(chunk.text) - chunk.stop
            >= min(REACH, len(data) - chunk.offset - chunk.stop)
            or chunk.start == chunk.stop
        )
        offset = chunk.offset + chunk.stop
    assert offset == len(data)


def test_markers_across_chunks_are_found_once_with_their_line() -> None:
    data = b"a\nmarker b\n" * 4000
    hits = [
        hit
        for chunk in iterate_chunks(cut(data, 9000, 9003, 20001))
        for hit in find_markers(chunk, [b"marker", b"b\n"])
    ]
    assert [hit.line for hit in hits if hit.marker == b"marker"] == list(
        range(2, 8001, 2)
    )
    assert [hit.offset for hit in hits] == sorted(hit.offset for hit in hits)


SHARED = "abbabaabbabb"
texts = st.text("ab", min_size=1, max_size=6) | st.text("abc", max_size=3).map(
    lambda around: around + SHARED + around
)


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """Draw overlapping texts with common substrings, for one or more automata, and a
    log."""
    sought = draw(st.lists(texts, min_size=1, unique=True))
    data = "".join(
        draw(
            st.lists(st.sampled_from(sought) | st.text("abc", max_size=9), max_size=12)
        )
    )
    more = draw(st.sampled_from([0, AT_ONCE - len(sought) + 1, AT_ONCE]))
    return [
        text.encode() for text in (*sought, *(f"x{number}" for number in range(more)))
    ], data.encode()


@pytest.mark.slow
@settings(max_examples=80)
@given(search=searches(), start=st.integers(0, 30), length=st.integers(0, 90))
def test_search_finds_every_overlapping_marker(
    search: tuple[list[bytes], bytes], start: int, length: int
) -> None:
    sought, data = search
    stop = min(start + length, len(data))
    offsets = range(start, stop)
    expected = sorted(
        (offset, text)
        for text in sought
        for offset in offsets
        if data.startswith(text, offset)
    )
    rare_texts = (b"bab", b"ca", b"abb", b"x1", b"bb", b"b")
    for limits in ENGINES.values():
        with patch.multiple(scan, RARE_TEXTS=rare_texts, **limits):
            assert MarkerSearch(sought).find_matches(data, start, stop) == expected


def test_markers_of_a_whole_log_contain_rare_texts() -> None:
    search = LogCollector().choose_markers(sys.maxsize)
    groups = scan.group_by_rare_text(search._markers)
    assert [text for text in groups if text not in RARE_TEXTS] == [b": opCount "]
    assert set(groups) >= set(RARE_TEXTS)
    assert len(groups) <= AT_ONCE


@pytest.mark.parametrize("count", [1, BYTES_PER_RARE_TEXT])
def test_markers_are_found_however_frequent_rare_texts_are(count: int) -> None:
    search = LogCollector().choose_markers(sys.maxsize)
    line = b"." * (BYTES_PER_RARE_TEXT // count) + b"ValueError: no\n"
    lines = 2 * count * LEAST_SPARSE // BYTES_PER_RARE_TEXT
    assert search.find_matches(line * lines, 0, len(line) * lines) == [
        (number * len(line) + line.index(b"rror: "), b"rror: ")
        for number in range(lines)
    ]
    assert (search._searched > 0) is (count > 1)


@pytest.mark.usefixtures("engine")
def test_more_matches_than_hyperscan_takes_are_found() -> None:
    count = MOST_MATCHES // 2 + 1
    expected = [
        (9 * number + offset, text)
        for number in range(count)
        for offset, text in ((0, b"a m"), (2, b"marker"))
    ]
    assert (
        MarkerSearch([b"marker", b"a m", b"never"]).find_matches(
            b"a marker " * count, 0, 9 * count
        )
        == expected
    )


@pytest.mark.parametrize("least", [1, 15])
def test_hyperscan_database_is_compiled_only_after_enough_bytes_were_searched(
    monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    compiled: list[list[bytes]] = []
    monkeypatch.setattr(scan, "BYTES_BEFORE_HYPERSCAN", 20)
    monkeypatch.setattr(scan, "SMALL_SIZE", least)
    monkeypatch.setattr(scan, "compile_database", compiled.append)
    search = MarkerSearch([b"marker"])
    for searched in range(1, 5):
        assert search.find_matches(b"a marker", 0, 8) == [(2, b"marker")]
        assert compiled == ([[b"marker"]] if searched * max(8, least) > 20 else [])


def test_search_falls_back_to_automata_if_hyperscan_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "BYTES_BEFORE_HYPERSCAN", -1)
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    assert MarkerSearch([b"marker"]).find_matches(b"a marker", 0, 8) == [(2, b"marker")]
    assert scan.compile_database([b"marker"]) is None


@pytest.mark.slow
def test_search_falls_back_to_automata_for_texts_that_hyperscan_cannot_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "BYTES_BEFORE_HYPERSCAN", -1)
    marker = bytes(range(1, 251)) * 66
    assert scan.compile_database([marker]) is None
    assert MarkerSearch([marker]).find_matches(b"a " + marker, 0, 9) == [(2, marker)]


def test_interrupt_during_hyperscan_search_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("hyperscan")
    monkeypatch.setattr(scan, "BYTES_BEFORE_HYPERSCAN", -1)
    search = MarkerSearch([b"marker"])
    search.find_matches(b"", 0, 0)

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "_record_end":
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            search.find_matches(b"a marker", 0, 8)
    finally:
        sys.setprofile(None)
    assert search.find_matches(b"a marker", 0, 8) == [(2, b"marker")]


def test_threads_search_with_hyperscan_concurrently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "BYTES_BEFORE_HYPERSCAN", -1)
    search = MarkerSearch([b"marker", b"a mark"])
    text = (b"." * 1000 + b"a marker") * 100
    expected = [
        place
        for start in range(1000, len(text), 1008)
        for place in ((start, b"a mark"), (start + 2, b"marker"))
    ]
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(
            lambda _: search.find_matches(text, 0, len(text)), range(50)
        ):
            assert result == expected


@pytest.fixture(scope="module")
def large_log() -> tuple[bytes, ParsedLog]:
    """Return a log larger than LARGE and its result when read in one block.

    The log contains everything that threads could miss: markers across blocks, a
    traceback over several blocks, a start far from the beginning, and a trace that
    continues after steps.
    """
    quiet = b"a line that says nothing of the run\n" * 40_000
    rank = b"gb-1:7:8 [0] NCCL INFO AllReduce: opCount 2 sendbuff 0x7 recvbuff 0x7 count 1 datatype 1 op 0 root 0\n"
    died = (
        b"Traceback (most recent call last):\n"
        + b'  File "train.py", line 1\n' * 40_000
        + b"ValueError: no\n"
    )
    shift = [b"." * number + b"\n" + LONG for number in range(0, 3000, 83)]
    data = b"".join(
        [
            quiet,
            LONG,
            rank * 9000,
            *shift,
            quiet,
            rank,
            quiet,
            LONG,
            died,
            quiet,
            b"the end",
        ]
    )
    data = data.replace(LOGS["endings"].encode(), b"")
    assert len(data) > LARGE
    expected = structs.replace(parse_blocks([data]), size_bytes=len(data))
    assert expected.ending is not None
    assert expected.ending.code == "traceback"
    assert 0 < expected.nccl_line < expected.nccl_last_line
    return data, expected


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("surely", "threads"), [(False, 3), (True, 1), (True, 3)])
def test_large_file_gives_the_same_as_its_blocks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    surely: bool,
    threads: int,
    large_log: tuple[bytes, ParsedLog],
) -> None:
    data, expected = large_log
    path = tmp_path / "log.out"
    path.write_bytes(data)
    monkeypatch.setattr(read, "SURELY_LARGE", len(data) + (not surely))
    log = read_log(path, threads=threads)
    assert to_comparable(structs.replace(log, fingerprint="")) == to_comparable(
        expected
    )


@pytest.mark.slow
def test_large_log_that_shrinks_while_threads_read_it_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.out"
    path.write_bytes(LONG * (2 * LARGE // len(LONG)))
    feed = LogCollector.feed

    def shorten(collector: LogCollector, *chunk: Any) -> None:
        os.truncate(path, LARGE)
        feed(collector, *chunk)

    monkeypatch.setattr(LogCollector, "feed", shorten)
    with pytest.raises(LogError, match=r"shorter than at its opening|it was shortened"):
        read_log(path)


@pytest.mark.slow
def test_fingerprint_does_not_depend_on_how_text_is_read(
    tmp_path: Path,
) -> None:
    data = LONG + b"".join(
        b"line %d says nothing of the run\n" % number for number in range(LARGE // 20)
    )
    assert len(data) > 1.5 * LARGE
    path, packed = tmp_path / "log.out", tmp_path / "log.gz"
    path.write_bytes(data)
    packed.write_bytes(gzip.compress(data, 1))
    fingerprint = read_log(path).fingerprint
    assert fingerprint == read_log(packed).fingerprint
    pieces = Fingerprint()
    for start in range(0, len(data), 70_001):
        pieces.update(hash_sample(start, data[start : start + 70_001]))
    assert pieces.digest(len(data)) == fingerprint


@pytest.mark.slow
def test_huge_block_needs_little_additional_memory() -> None:
    """test_laws.py checks lines of any length."""
    block = (
        nemo2_run(0, 4).encode()
        + b"y" * (16 * PIECE)
        + b"\n"
        + nemo2_run(5, 9).encode()
    )
    tracemalloc.start()
    try:
        log, (_, peak) = parse_blocks([block]), tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.segments[0].steps.line.tolist() == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert peak < 8 * PIECE


def test_markers_around_shared_substrings_are_found_like_by_comparison() -> None:
    tables = (recognisers.VERSIONS, recognisers.EARLY)
    table_markers = [marker for table in tables for marker in table.markers]
    markers = tuple(dict.fromkeys((*ALL_MARKERS, *table_markers)))
    search, random = MarkerSearch(markers), Random(3)  # noqa: S311 (fixed texts)
    for _ in range(300):
        pieces = []
        for marker in random.choices(markers, k=8):
            begin = random.choice((0, 0, random.randrange(len(marker))))
            stop = random.choice((len(marker), random.randrange(len(marker) + 1)))
            pieces.append(marker[begin:stop])
        text = b"".join(pieces)
        start = random.randrange(len(text) + 1)
        stop = random.randrange(start, len(text) + 1)
        expected = sorted(
            (offset, marker)
            for marker in markers
            for offset in range(start, stop)
            if text.startswith(marker, offset)
        )
        assert search.find_matches(text, start, stop) == expected, text
