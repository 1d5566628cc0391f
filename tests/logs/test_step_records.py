"""Step records: the tally of dropped records."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.codes import NoteCode
from pytest_llmbench.core.log_records import DroppedRecords, DropReason
from pytest_llmbench.logs.step_records import Tally, make_printable
from pytest_llmbench.runs.measure.dropped_records import DROPPED


def test_count_of_dropped_records_keeps_the_first_example() -> None:
    tally, other = Tally(), Tally()
    tally.add(DropReason.REPEATED, 9, "a")
    tally.add(DropReason.TORN, 7, "later", 2)
    other.add(DropReason.TORN, 3, "first")
    other.add(DropReason.TORN, 5, "in between")
    tally.merge(other)
    assert tally.result() == (
        DroppedRecords(DropReason.TORN, 4, 3, "first"),
        DroppedRecords(DropReason.REPEATED, 1, 9, "a"),
    )


def test_every_drop_reason_has_a_note() -> None:
    assert DROPPED.keys() == {NoteCode(reason) for reason in DropReason}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"  plain \n", "plain"),
        (b"\x1b[31mred\x00\x07", "[31mred"),
        (b"\xff\xfeok", "ok"),
        ("█ 100%".encode(), "█ 100%"),
        (b"x" * 80, "x" * 80),
        (b"x" * 81, "x" * 79 + "…"),
        ("ü".encode() * 300, "ü" * 79 + "…"),
        (b"", ""),
    ],
)
def test_quoted_lines_are_made_short_and_printable(text: bytes, expected: str) -> None:
    assert make_printable(text) == expected
