"""Measures how a function's work grows with its input, without a clock.

The measure is the number of executed lines of the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest_llmbench
from pytest_llmbench.logs import scan

PACKAGE = str(Path(pytest_llmbench.__file__).parent)

FACTOR = 4
"""Size of the large input relative to the small input."""

LINEAR = 1.05 * FACTOR
"""The largest allowed ratio of executed lines between the large and the small input. A
quadratic loop would exceed it by far."""


def count_lines(function: Callable[[], object]) -> int:
    """Count the lines of the package that a function executes.

    Each iteration of a comprehension counts as one line.
    """
    count = 0

    def follow(_frame: Any, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return follow

    def begin(frame: Any, _event: str, _argument: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        count += 1  # a generator is resumed for each of its items
        return follow

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def measure_growth(make: Callable[[int], Callable[[], object]], small: int) -> float:
    """Return the ratio of executed lines between a large and a small input.

    The large input has FACTOR times the size. `make` prepares the input of a size and
    returns the function to measure. Code that runs only once per process does not
    count.
    """
    # Hyperscan is loaded after some hundreds of logs and then calls the package for every
    # match: keep it unloaded.
    scan.build_search.cache_clear()
    with patch.object(scan, "BYTES_BEFORE_HYPERSCAN", sys.maxsize):
        make(2)()
        small_count, large_count = (
            count_lines(make(size)) for size in (small, FACTOR * small)
        )
    return large_count / small_count
