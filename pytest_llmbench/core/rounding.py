"""The unit in the last place of printed numbers, where zeros at their end may not be
printed: `2K` beside `1.99K`."""

from __future__ import annotations

import math
from collections.abc import Sequence

PRINTED_DIGITS = 12  # beyond these a float has digits that no log printed


def find_last_unit(value: float) -> float:
    """Return one unit in the last place of a finite number that is not a zero: 0.01 for
    3.25, 1000 for 7000."""
    mantissa, _, exponent = f"{value:.{PRINTED_DIGITS}e}".partition("e")
    return 10.0 ** (int(exponent) - len(mantissa.rstrip("0").partition(".")[2]))


def refine_units(values: Sequence[float], units: Sequence[float]) -> list[float]:
    """Return the unit of each number by what all of them show, at most the unit that
    its own digits have.

    A log prints to a decimal place, or a number of digits: a number that ends in zeros
    is as precise as the finest other one allows. values: finite, not zero. units: one
    in the last printed place of each, a power of ten.
    """
    leading = [math.floor(math.log10(abs(value))) for value in values]
    last = [round(math.log10(unit)) for unit in units]
    finest = min(last, default=0)
    digits = max(
        (lead - end + 1 for lead, end in zip(leading, last, strict=True)), default=1
    )
    refined = []
    for lead, end, unit in zip(leading, last, units, strict=True):
        finer = min(end, max(finest, lead - digits + 1))
        refined.append(10.0**finer if finer < end else unit)
    return refined
