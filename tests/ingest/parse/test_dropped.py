"""The tally of what was read and not kept."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.models import DroppedRecords
from pytest_llmbench.ingest.parse.dropped import REASONS, Tally, make_printable


def test_a_tally_keeps_the_example_that_stands_first_in_the_log() -> None:
    tally, other = Tally(), Tally()
    tally.add("repeated", 9, "a")
    tally.add("torn", 7, "later", 2)
    other.add("torn", 3, "first")
    other.add("torn", 5, "in between")
    tally.merge(other)
    assert tally.result() == (DroppedRecords("torn", 4, 3, "first"), DroppedRecords("repeated", 1, 9, "a"))


def test_the_reasons_are_a_fixed_set() -> None:
    assert len(set(REASONS)) == len(REASONS)
    with pytest.raises(KeyError):
        Tally().add("something else", 1, "")


@pytest.mark.parametrize(
    ("text", "shown"),
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
def test_examples_are_short_and_printable(text: bytes, shown: str) -> None:
    assert make_printable(text) == shown
