"""How tolerances are written, on the command line, in an ini file and in a baseline file, and which of them count."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.metric_definitions import METRICS
from pytest_llmbench.core.models import Tolerance

LARGEST = 0.5
"""A gate that lets a run take twice as long is a typing error: `5` for `5%`."""

TIME = "time"
"""The slot of `time`, `perf` and `step_time_seconds`: three ways to limit the step time itself."""

NAMES = ("time", "perf", *(name for name, definition in METRICS.items() if definition.of_step_time))
"""What may stand before the colon."""

_WORDS = {"time": "time", "perf": "performance", "performance": "performance", "step_time_seconds": "time"}
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,24})?|\.\d{1,24}", re.ASCII)
_DECIMAL_COMMA = re.compile(r"(?:\w+\s*:)?\s*\d+,\d+\s*%?", re.ASCII)


def parse_tolerances(text: str, source: str) -> tuple[Tolerance, ...]:
    """Read tolerances separated by commas: `5%`, `0.025`, `perf:5%` (less performance: 5.26 % more time), `mfu:3%`.

    Each metric may stand once, and those of the step time itself are one (TIME). Raises ValueError for anything else,
    and outside of 0 (excluded) to 50 %. `source` is kept with each of them, for messages.
    """
    if _DECIMAL_COMMA.fullmatch(text.strip()):
        raise ValueError(f"found {text.strip()!r} with a comma, expected a decimal point: {text.replace(',', '.')}")
    by_slot: dict[str, Tolerance] = {}
    for part in text.split(","):
        tolerance = _tolerance(part, source)
        other = by_slot.setdefault(get_slot(tolerance), tolerance)
        if other is not tolerance:
            synonyms = " (time, perf and step_time_seconds are one)" if get_slot(tolerance) == TIME else ""
            raise ValueError(f"found {other} and {tolerance}, expected each metric once{synonyms}")
    return merge_tolerances(by_slot.values())


def merge_tolerances(*layers: Iterable[Tolerance]) -> tuple[Tolerance, ...]:
    """Return one tolerance for each slot, that of the last layer which has one; the step time's stands first."""
    slots = {get_slot(tolerance): tolerance for layer in layers for tolerance in layer}
    return tuple(slots[name] for name in sorted(slots, key=lambda name: (name != TIME, name)))


def get_slot(tolerance: Tolerance) -> str:
    """Return what a tolerance limits, for which only one can hold: TIME, or a metric's name."""
    return TIME if tolerance.of in ("time", "performance") else tolerance.of


def parse_fraction(text: str, expected: str, largest: float = LARGEST) -> float:
    """Read `5%`, `2.5 %` or `0.025` as a fraction above 0, at most `largest`; ValueError says what was `expected`."""
    number = text.strip()
    digits = number.removesuffix("%").strip()
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"found {number!r}, expected {expected}")
    fraction = float(digits) / 100 if number.endswith("%") else float(digits)
    if not 0 < fraction <= largest:
        hint = f"; write {digits}% for {digits} percent" if not number.endswith("%") and fraction > LARGEST else ""
        limits = f"expected above 0 and at most {largest * 100:g} %{hint}"
        raise ValueError(f"found {number!r}, that is {fraction * 100:g} %, {limits}")
    return fraction


def _tolerance(text: str, source: str) -> Tolerance:
    name, colon, number = text.rpartition(":")
    of = _of(name.strip().lower()) if colon else "time"
    fraction = parse_fraction(number, "a tolerance such as 5%, 2.5%, 0.05, perf:5% or mfu:3%")
    larger_is_better = of == "performance" or (of in METRICS and METRICS[of].larger_is_better is True)
    return Tolerance(fraction, of, larger_is_better, source)


def _of(name: str) -> str:
    if name in _WORDS or name in NAMES:
        return _WORDS.get(name, name)
    valid = ", ".join(NAMES)
    if name in METRICS:
        why = "it does not follow from the step time, so a baseline expects no value of it"
        raise ValueError(f"found {name} before the colon: {why}; expected one of {valid}")
    raise ValueError(f"found {name!r} before the colon, expected one of {valid}{did_you_mean(name, NAMES)}")
