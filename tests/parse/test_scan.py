"""The scanner: the same result wherever the log is cut into blocks, in bounded memory."""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parse.written import bar, dll, maxtext_run, nemo2, nemo2_run, parse, steps

from pytest_llmbench.models import ParsedLog
from pytest_llmbench.parse.read import parse_blocks
from pytest_llmbench.parse.scan import PIECE, REACH, REACH_BACK, find, windows

FILLER = b"text without any meaning that stands between the steps\n" * 60
LOGS = {
    "nemo1": "".join("\r" + bar(n + 1, f"{n}.000", "2.000") + dll(n, "2.0012") + "\n" * (n % 3 == 0) for n in range(4)),
    "nemo2": "[NeMo I 2025-04-11 14:48:45 x] start\n"
    + nemo2_run(0, 1, "0: ")
    + nemo2(2, more="")
    + nemo2_run(0, 1, "0: "),
    "maxtext": "Config param steps: 3\n" + maxtext_run(0, 2) + "Config param steps: 9\n" + maxtext_run(0, 3),
    "endings": "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2021-05-27T21:42:11 DUE TO TIME LIMIT ***\n",
}
LONG = b"".join(text.encode() + FILLER for text in LOGS.values()) * 2


def described(log: ParsedLog) -> object:
    """A log as something that compares: columns as lists."""
    segments = [
        (
            [
                np.asarray(getattr(segment.steps, column.name)).astype(str).tolist()
                for column in dataclasses.fields(segment.steps)
            ],
            dataclasses.replace(segment, steps=None),  # type: ignore[arg-type]
        )
        for segment in log.segments
    ]
    return segments, dataclasses.replace(log, segments=())


def cut(data: bytes, *places: int) -> list[bytes]:
    bounds = [0, *sorted(places), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("name", LOGS)
def test_a_cut_at_any_byte_changes_nothing(name: str) -> None:
    data = LOGS[name].encode()
    whole = described(parse_blocks([data]))
    for place in range(len(data) + 1):
        assert described(parse_blocks(cut(data, place))) == whole


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, REACH - 1, REACH, REACH + 1, 3 * REACH])
def test_blocks_of_any_size_change_nothing(size: int) -> None:
    data = LONG if size > 50 else LONG[: REACH + 6000]
    blocks = [data[begin : begin + size] for begin in range(0, len(data), size)]
    assert described(parse_blocks(blocks)) == described(parse_blocks([data]))


@settings(max_examples=60, deadline=None)
@given(places=st.lists(st.integers(0, len(LONG)), max_size=8))
def test_blocks_of_mixed_sizes_change_nothing(places: list[int]) -> None:
    assert described(parse_blocks(cut(LONG, *places))) == WHOLE


WHOLE = described(parse_blocks([LONG]))


def test_every_byte_is_new_in_one_window_and_seen_with_its_surroundings() -> None:
    data = bytes(range(256)) * 200
    offset = 0
    for window in windows(data[begin : begin + 5000] for begin in range(0, len(data), 5000)):
        assert window.offset + window.start == offset
        assert window.text == data[window.offset : window.offset + len(window.text)]
        assert window.start >= min(REACH_BACK, offset)
        assert (
            len(window.text) - window.stop >= min(REACH, len(data) - window.offset - window.stop)
            or window.start == window.stop
        )
        offset = window.offset + window.stop
    assert offset == len(data)


def test_needles_across_a_cut_are_found_once_with_their_line() -> None:
    data = b"a\nneedle b\n" * 4000
    hits = [hit for window in windows(cut(data, 9000, 9003, 20001)) for hit in find(window, [b"needle", b"b\n"])]
    assert [hit.line for hit in hits if hit.needle == b"needle"] == list(range(2, 8001, 2))
    assert [hit.offset for hit in hits] == sorted(hit.offset for hit in hits)


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
