"""What one line says of the time of a step: printed, as a rate, as the time so far, or
by its time stamp alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from pytest_llmbench.logs import prints
from pytest_llmbench.logs.dialect_table import RATE, UNITS
from pytest_llmbench.logs.step_records import NAN, get_printed_unit

STAMP = re.compile(
    rb"(?P<date>20\d\d-\d\d-\d\d|\d\d/\d\d/20\d\d)[T ](?P<time>\d\d:\d\d:\d\d)"
    rb"(?:[.,](?P<part>\d{1,6}))?(?:Z|[+-]00:?00)?"
)
CLOCKS = (("elapsed",), ("stamp",))
"""The groups of which only two lines together say how long a step took."""


class LineTime(NamedTuple):
    """The time of a step, or a clock, and one unit in the last place of either."""

    seconds: float
    resolution: float
    stamp: float = NAN


def read_line_time(
    timed: tuple[str, ...],
    values: Mapping[str, bytes],
    scales: Mapping[str, float],
    unit: str,
) -> LineTime | None:
    """Return what the groups of a row of `dialects.TIMED` say; None where the stamp, or
    a unit in the line, is none.

    values: the numbers without their letters, and the texts of `stamp` and `unit`.
    scales: what letters multiply them with. unit: that of a line that names none.
    """
    if timed == ("stamp",):
        return read_stamp(values["stamp"])
    name = timed[0]
    text, scale = values[name].replace(b",", b"").lower(), scales[name]
    number, place = float(text) * scale, get_printed_unit(text) * scale
    if name == "rate":
        amount = float(values["amount"].replace(b",", b"")) * scales["amount"]
        seconds = amount / number if number else math.inf
        return LineTime(seconds, seconds * place / number if number else 0.0)
    unit = prints.read_unit(values["unit"]) if "unit" in values else unit
    if unit not in (*UNITS, RATE):
        return None
    seconds, resolution = convert_seconds(number, place, unit)
    return (
        LineTime(NAN, resolution, seconds)
        if name == "elapsed"
        else LineTime(seconds, resolution)
    )


def read_stamp(text: bytes) -> LineTime | None:
    """Return a date and time as seconds since a fixed moment; None for what is none, or
    is of a named time zone."""
    match = STAMP.fullmatch(text)
    if match is None:
        return None
    date, time, part = (
        match["date"].decode(),
        match["time"].decode(),
        match["part"] or b"",
    )
    if "/" in date:
        date = f"{date[6:]}-{date[:2]}-{date[3:5]}"
    try:
        moment = datetime.fromisoformat(f"{date}T{time}").replace(tzinfo=UTC)
    except ValueError:
        return None  # digits that are no date
    return LineTime(
        NAN,
        10.0 ** -len(part),
        moment.timestamp() + float(b"0." + part if part else b"0"),
    )


def convert_seconds(value: float, place: float, unit: str) -> tuple[float, float]:
    """Return a printed time or rate as seconds, with one unit in its last place; a rate
    of zero never ends a step."""
    if not math.isfinite(value):
        return (value if unit != RATE else NAN), 0.0
    if unit != RATE:
        return value * UNITS[unit], place * UNITS[unit]
    seconds = 1 / value if value else math.inf
    resolution = place * seconds * seconds
    return seconds, resolution if math.isfinite(resolution) else 0.0
