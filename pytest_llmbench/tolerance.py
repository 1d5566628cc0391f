"""How a tolerance is written, on the command line, in an ini file and in a baseline file."""

from __future__ import annotations

import re

from pytest_llmbench.errors import did_you_mean
from pytest_llmbench.models import Tolerance

LARGEST = 0.5
"""A gate that lets a run take twice as long is a typing error: `5` for `5%`."""

_OF = {"time": "time", "perf": "performance", "performance": "performance"}
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,24})?|\.\d{1,24}", re.ASCII)
_EXAMPLES = "such as 5%, 2.5%, 0.05 or perf:5%"


def parse_tolerance(text: str) -> Tolerance:
    """Read `5%`, `2.5 %`, `0.025`, `perf:5%` (5 % less performance, so 5.26 % more time) or `time:5%`.

    Raises ValueError for anything else, and outside of 0 (excluded) to 50 %.
    """
    kind, colon, rest = text.strip().rpartition(":")
    return Tolerance(_fraction(rest.strip(), text), _of(kind.strip().lower()) if colon else "time")


def _of(kind: str) -> str:
    if kind not in _OF:
        raise ValueError(f"found {kind!r} before the colon, expected time or perf{did_you_mean(kind, _OF)}")
    return _OF[kind]


def _fraction(number: str, text: str) -> float:
    digits = number.removesuffix("%").strip()
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"found {text.strip()!r}, expected a tolerance {_EXAMPLES}")
    fraction = float(digits) / 100 if number.endswith("%") else float(digits)
    if not 0 < fraction <= LARGEST:
        hint = f"; write {digits}% for {digits} percent" if not number.endswith("%") and fraction > LARGEST else ""
        raise ValueError(
            f"found {text.strip()!r}, that is {fraction * 100:g} %, expected above 0 and at most 50 %{hint}"
        )
    return fraction
