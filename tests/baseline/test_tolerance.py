"""Every way to write a tolerance, and every way to write it wrong."""

from __future__ import annotations

import pytest

from pytest_llmbench.models import Tolerance
from pytest_llmbench.tolerance import parse_tolerance


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5%", Tolerance(0.05)),
        ("2.5 %", Tolerance(0.025)),
        (" 2.5% ", Tolerance(0.025)),
        ("0.025", Tolerance(0.025)),
        (".05", Tolerance(0.05)),
        ("50%", Tolerance(0.5)),
        ("0.5", Tolerance(0.5)),
        ("time:5%", Tolerance(0.05)),
        ("perf:5%", Tolerance(0.05, "performance")),
        ("perf: 5 %", Tolerance(0.05, "performance")),
        ("Performance:0.05", Tolerance(0.05, "performance")),
    ],
)
def test_reads(text: str, expected: Tolerance) -> None:
    assert parse_tolerance(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", r"found '5', that is 500 %, expected above 0 and at most 50 %; write 5% for 5 percent"),
        ("51%", "that is 51 %"),
        ("0", "that is 0 %, expected above 0"),
        ("0%", "expected above 0"),
        ("-5%", "expected a tolerance such as 5%"),
        ("+5%", "expected a tolerance"),
        ("2,5%", "expected a tolerance"),
        ("nan", "expected a tolerance"),
        ("inf%", "expected a tolerance"),
        ("1e-2", "expected a tolerance"),
        ("\u0665%", "expected a tolerance"),
        ("", "expected a tolerance"),
        ("%", "expected a tolerance"),
        ("5%%", "expected a tolerance"),
        ("pref:5%", r"found 'pref' before the colon, expected time or perf \(did you mean 'perf'\?\)"),
        (":5%", "before the colon"),
        ("mean:5%", "before the colon"),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tolerance(text)
