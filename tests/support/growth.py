"""How the work of a function grows with its input, without a clock: the lines of the
package that it executes."""

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
"""How many times as large the large input is."""

LINEAR = 1.05 * FACTOR
"""Lines that are executed for the large input, over those for the small one, at most. A
loop of every item over all others would execute far more."""


def count_lines(function: Callable[[], object]) -> int:
    """Return how many lines of the package a function executes; each pass of a
    comprehension counts as one."""
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
    """Return how much more is executed for an input that is FACTOR times as large as a
    small one.

    `make` prepares the input of a size and returns what works on it; what loads once is
    not counted.
    """
    # Hyperscan, which is loaded after some hundreds of logs, calls the package for each
    # match, up to a number of them.
    scan.build_search.cache_clear()
    with patch.object(scan, "WORTH", sys.maxsize):
        make(2)()
        small_count, large_count = (
            count_lines(make(size)) for size in (small, FACTOR * small)
        )
    return large_count / small_count
