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
    # 3.25 is "3.250000000000e+00": 2 decimals without the zeros, hence 10 ** (0 - 2).
    mantissa, _, exponent = f"{value:.{PRINTED_DIGITS}e}".partition("e")
    _, _, decimals = mantissa.rstrip("0").partition(".")
    return 10.0 ** (int(exponent) - len(decimals))


def refine_units(values: Sequence[float], units: Sequence[float]) -> list[float]:
    """Return the resolution of each number, inferred from all numbers.

    A log prints a fixed number of decimal places or of digits. So a short number may
    only lack its trailing zeros: next to 1.25, the resolution of 1.3 is 0.01, not 0.1.
    `values` are finite and not zero. `units` are one unit in the last printed place of
    each value, a power of ten. Results are at most `units`.
    """
    # Decimal exponents of the first and the last digit: 1.99 has 0 and -2.
    first_exponents = [math.floor(math.log10(abs(value))) for value in values]
    last_exponents = [round(math.log10(unit)) for unit in units]
    finest = min(last_exponents, default=0)
    digit_counts = [
        first - last + 1
        for first, last in zip(first_exponents, last_exponents, strict=True)
    ]
    most_digits = max(digit_counts, default=1)
    refined = []
    for first, last, unit in zip(first_exponents, last_exponents, units, strict=True):
        # As many decimal places, or as many digits, as the most precise number has.
        finer = min(last, max(finest, first - most_digits + 1))
        refined.append(10.0**finer if finer < last else unit)
    return refined
