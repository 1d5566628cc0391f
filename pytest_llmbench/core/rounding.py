"""The resolution of printed numbers whose trailing zeros may be missing.

For example `2K` next to `1.99K`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PRINTED_DIGITS = 12  # beyond these a float has digits that no log printed


def find_last_unit(value: float) -> float:
    """Return one unit in the last place of a finite, non-zero number.

    0.01 for 3.25, 1000 for 7000.
    """
    mantissa, _, exponent = f"{value:.{PRINTED_DIGITS}e}".partition("e")
    return 10.0 ** (int(exponent) - len(mantissa.rstrip("0").partition(".")[2]))


def refine_units(values: Sequence[float], units: Sequence[float]) -> list[float]:
    """Return the resolution of each number, inferred from all numbers.

    A log prints a fixed number of decimal places or of digits: a number with trailing
    zeros is as precise as the finest other number allows. `values` are finite and not
    zero. `units` are one unit in the last printed place of each value, a power of ten.
    Results are at most `units`.
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
