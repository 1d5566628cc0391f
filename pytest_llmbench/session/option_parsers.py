"""Values of the text of one option: what `parse` of the table of options names."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.job_records import (
    NEVER_IGNORED,
    NODE_LIST,
    NODE_LIST_EXPECTED,
    PreflightCheck,
)
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.stall_limits import StallLimits
from pytest_llmbench.core.tolerance import parse_fraction

MINUTES = {"m": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60}
"""The units of an age, in minutes."""

LARGEST_SEQUENCE = 3
"""The sequence of looks is calibrated for one run, and three: docs/statistics.md."""


def parse_age(text: str) -> timedelta:
    """Read `90m`, `36h`, `1.5d` or `2w`; ValueError otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", text)
    if not match or float(match[1]) == 0:
        raise ValueError(
            "expected a number above 0 with m, h, d or w (m: minutes), such as 36h"
        )
    return timedelta(minutes=float(match[1]) * MINUTES[match[2]])


def parse_stall_limit(text: str) -> StallLimits:
    """Read `auto`, `none` or an age as `parse_age` does; ValueError otherwise."""
    if text in ("auto", "none"):
        return StallLimits(cancels=text == "auto")
    try:
        return StallLimits(parse_age(text).total_seconds())
    except ValueError:
        raise ValueError("expected auto, none, or a time such as 45m or 2h") from None


def parse_window(text: str) -> timedelta | None:
    """Read an age as `parse_age` does, and `0` (`0h`) as None; ValueError otherwise."""
    return None if re.fullmatch(r"0+\s*[mhdw]?", text, re.ASCII) else parse_age(text)


def parse_moment(text: str) -> datetime:
    """Read an ISO date or time; without a zone it is local time. ValueError
    otherwise."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ValueError(
            "expected a date such as 2025-11-20 or a time such as 2025-11-20T06:00"
        ) from None


def parse_percentage(text: str) -> float:
    """Read `1%` or `0.01` as a fraction; ValueError otherwise."""
    return parse_fraction(text, expected="a percentage such as 1% or 0.5%")


def parse_reason(text: str) -> str:
    """Read a reason that a file keeps: without secrets."""
    return redact_text(text)


def parse_lower(text: str) -> str:
    """Read a name whose letters may be of any case."""
    return text.lower()


def parse_count(text: str, smallest: int = 1, largest: int = 10**6) -> int:
    """Read a whole number between two bounds, both included; ValueError otherwise."""
    if not (text.isascii() and text.isdecimal() and smallest <= int(text) <= largest):
        raise ValueError(f"expected a whole number from {smallest} to {largest}")
    return int(text)


def parse_repeats(text: str) -> int:
    """Read how many runs may count for a verdict; ValueError otherwise."""
    return parse_count(text, largest=LARGEST_SEQUENCE)


def parse_retries(text: str) -> int:
    """Read how often a job is started again; ValueError otherwise."""
    return parse_count(text, smallest=0, largest=10)


def parse_hours(text: str) -> float:
    """Read a number of GPU-hours; ValueError otherwise."""
    number = (
        float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else 0.0
    )
    if not 0 < number < 1e9:
        raise ValueError("expected a number of GPU-hours above 0, such as 200")
    return number


def parse_nodes(text: str) -> str:
    """Read nodes as Slurm writes them, such as `n7,n[12-14]`; ValueError otherwise."""
    if not re.fullmatch(NODE_LIST, text):
        raise ValueError(f"expected {NODE_LIST_EXPECTED}")
    return text


def parse_checks(text: str) -> tuple[PreflightCheck, ...]:
    """Read names of checks with commas between, such as `python-version,image`;
    ValueError for one that there is not, and for one that nobody may overrule."""
    names = [name.strip() for name in text.split(",")]
    allowed = [check.value for check in PreflightCheck if check not in NEVER_IGNORED]
    for name in names:
        if name in NEVER_IGNORED:
            raise ValueError(
                f"{name} cannot be overruled: {NEVER_IGNORED[PreflightCheck(name)]}"
            )
        if name not in allowed:
            raise ValueError(
                f"no check {name!r}{did_you_mean(name, allowed)}: expected some of {', '.join(allowed)}"
            )
    return tuple(PreflightCheck(name) for name in dict.fromkeys(names))
