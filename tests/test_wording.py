"""How values read."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest

from pytest_llmbench import wording


@pytest.mark.parametrize(
    ("elapsed", "text"),
    [
        (timedelta(seconds=20), "0m"),
        (timedelta(hours=-3), "0m"),
        (timedelta(minutes=119), "119m"),
        (timedelta(hours=36), "36h"),
        (timedelta(days=9), "9d"),
        (timedelta(days=730), "2.0y"),
    ],
)
def test_ages(elapsed: timedelta, text: str) -> None:
    assert wording.age(elapsed) == text


def test_numbers() -> None:
    assert [wording.seconds(value) for value in (7.325, 10.0, 0.42719, 12345.67, None, math.nan)] == [
        "7.325 s",
        "10.00 s",
        "0.4272 s",
        "12345.7 s",
        "-",
        "nan",
    ]
    assert [wording.difference(value) for value in (1.062, 0.93, 0.9999, None)] == ["+6.2 %", "-7.0 %", "0.0 %", "-"]
    assert [wording.counted(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


def test_lists_show_five_and_a_count() -> None:
    assert wording.listed(range(5)) == "0, 1, 2, 3, 4"
    assert wording.listed(range(14)) == "0, 1, 2, 3, 4 and 9 more"


def test_paths_read_as_typed() -> None:
    assert wording.place(Path("/a/b/c.out"), Path("/a")) == "b/c.out"
    assert wording.place(Path("/x/c.out"), Path("/a")) == "/x/c.out"
