"""Formatting of values for messages."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest

from pytest_llmbench.core import formatting


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
def test_age_is_formatted_in_its_largest_unit(elapsed: timedelta, text: str) -> None:
    assert formatting.format_age(elapsed) == text


def test_numbers_are_formatted_with_their_unit() -> None:
    assert [
        formatting.format_seconds(value)
        for value in (7.325, 10.0, 0.42719, 12345.67, None, math.nan)
    ] == [
        "7.325 s",
        "10.00 s",
        "0.4272 s",
        "12345.7 s",
        "-",
        "nan",
    ]
    assert [
        formatting.format_difference(value) for value in (1.062, 0.93, 0.9999, None)
    ] == [
        "+6.2 %",
        "-7.0 %",
        "0.0 %",
        "-",
    ]
    assert [formatting.count_noun(number, "run") for number in (0, 1, 2)] == [
        "0 runs",
        "1 run",
        "2 runs",
    ]


def test_long_list_is_shortened_to_five_items() -> None:
    assert formatting.join_first(range(5)) == "0, 1, 2, 3, 4"
    assert formatting.join_first(range(14)) == "0, 1, 2, 3, 4 and 9 more"


def test_path_is_relative_to_the_directory() -> None:
    assert formatting.format_path(Path("/a/b/c.out"), Path("/a")) == "b/c.out"
    assert formatting.format_path(Path("/x/c.out"), Path("/a")) == "/x/c.out"


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ("", ""),
        ("n1 n2 n3 n4 n7", "n[1-4,7]"),
        ("n7 n2 n4 n3 n1 n1", "n[1-4,7]"),
        ("n08 n09 n10 n99 n100", "n[08-10,99-100]"),
        ("n1 n01", "n[1,01]"),
        ("rack1-n1 rack1-n2 rack2-n1", "rack1-n[1-2],rack2-n1"),
        ("gpu1a gpu2a gpu3b", "gpu[1-2]a,gpu3b"),
        ("n1.cluster7 n2.cluster7", "n[1-2].cluster7"),
        ("7 8", "[7-8]"),
        ("n n0 n1", "n,n[0-1]"),
        ("n[1-2]", "n[1-2]"),
    ],
)
def test_node_names_are_compressed(nodes: str, text: str) -> None:
    assert formatting.fold_nodes(nodes.split()) == text
