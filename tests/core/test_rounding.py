"""The resolution of printed numbers."""

from __future__ import annotations

import pytest

from pytest_llmbench.core.rounding import find_last_unit, refine_units


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (3.25, 0.01),
        (7000, 1000),
        (6990.0, 10),
        (1.99 * 1000, 10),
        (-0.5, 0.1),
        (1e-5, 1e-5),
    ],
)
def test_unit_of_the_last_printed_digit_follows_from_the_text(
    value: float, unit: float
) -> None:
    assert find_last_unit(value) == pytest.approx(unit)


@pytest.mark.parametrize(
    ("numbers", "units"),
    [
        pytest.param({2000: 1000, 1990: 10, 2010: 10}, [10, 10, 10], id="three digits"),
        pytest.param(
            {999: 1, 1010: 10, 1000: 1000},
            [1, 10, 10],
            id="three digits over a power of ten",
        ),
        pytest.param(
            {2.0: 0.1, 12.34: 0.01, 123.45: 0.01}, [0.01, 0.01, 0.01], id="two decimals"
        ),
        pytest.param({7: 1, 12: 1, 105: 1, 30: 1}, [1, 1, 1, 1], id="whole numbers"),
        pytest.param({2000: 1000, 3000: 1000}, [1000, 1000], id="equal units"),
        pytest.param({}, [], id="none"),
    ],
)
def test_resolution_of_a_round_number_is_refined_by_other_numbers_of_its_column(
    numbers: dict[float, float], units: list[float]
) -> None:
    assert refine_units(list(numbers), list(numbers.values())) == pytest.approx(units)
