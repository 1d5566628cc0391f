"""The cells of an exported CSV file, compared with the module csv."""

from __future__ import annotations

import csv
import struct
from io import StringIO
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmbench.tools.stored_runs.export_command import _format_cells

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.lists(st.none() | FLOATS | st.floats(1e-5, 1e17), min_size=1)
STEPS = st.lists(st.lists(FLOATS | st.just(float("nan")) | st.floats(0.1, 9)))


def write_rows(cells: list[Any]) -> str:
    """Write the cells as a column with an empty second column."""
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([cell, ""] for cell in cells)
    return buffer.getvalue()


def join_rows(cells: list[Any], kind: type) -> str:
    return "".join(f"{cell},\n" for cell in _format_cells(cells, kind))


@given(st.lists(st.none() | st.text(st.sampled_from("a,\"\r\n' \t\0é"))))
def test_texts_are_quoted_like_csv(texts: list[str | None]) -> None:
    assert join_rows(texts, str) == write_rows(texts)


@given(NUMBERS)
@example([0.0, -0.0, 1e-4, 9.999e-5, None])
@example([1e16, 9999999999999998.0, 1e15])
@example([None, None])
def test_numbers_are_formatted_like_csv(numbers: list[float | None]) -> None:
    assert join_rows(numbers, float) == write_rows(numbers)


@given(STEPS)
@example([[7.4, float("nan"), 7.5], [], [7.4], [1e-5]])
@example([[7.4, float("nan"), 7.5], [], [7.4]])
def test_steps_are_formatted_like_csv(steps: list[list[float]]) -> None:
    packed = [struct.pack(f"<{len(seconds)}d", *seconds) for seconds in steps]
    assert join_rows(packed, bytes) == write_rows(steps)


def test_integers_and_booleans_are_formatted_like_csv() -> None:
    for cells, kind in (([1, None, -5], int), ([True, False], bool)):
        assert join_rows(cells, kind) == write_rows(cells)
