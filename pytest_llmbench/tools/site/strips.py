"""Draw the days of a configuration as a small SVG: step times above verdict bars."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from pytest_llmbench.core import formatting
from pytest_llmbench.report.html.drawing import shorten_path
from pytest_llmbench.tools.site.fleet_records import FleetRow

WIDTH, HEIGHT = 220, 36
"""Natural size of a drawing, in pixels."""

FEWEST_COLUMNS = 30
"""Minimum number of columns, so that a few days are not stretched."""

TOP, BOTTOM = 2, 21
"""Upper and lower edge of the line of step times; the verdict bars are below it."""

HEIGHTS = {"red": 13, "unclear": 9, "green": 5, "skipped": 2}
"""Heights of the verdict bars, so that verdicts do not differ by colour alone."""

BEYOND = 1.3
"""Step times are clipped to their median times and divided by this factor."""

Columns = Mapping[date, int]
"""The column of each day of the fleet."""


def draw_strip(row: FleetRow, colours: Sequence[str], day_columns: Columns) -> str:
    """Draw a configuration as an SVG element; `colours` has one entry for each day.

    All days of one colour are one path, and adjacent days one box. So a year of 343
    configurations needs 1,400 elements instead of 125,000.
    """
    width = max(len(day_columns), FEWEST_COLUMNS)
    # A few days are drawn at the right edge.
    empty_columns = width - len(day_columns)
    columns = [empty_columns + day_columns[verdict.day] for verdict in row.verdicts]
    root = Element("svg", _list_attributes(row, colours, width))
    line = _draw_line(columns, row.seconds)
    if line:
        style = {
            "class": "line",
            "fill": "none",
            "stroke": "currentColor",
            "vector-effect": "non-scaling-stroke",
        }
        SubElement(root, "path", {**style, "d": line})
    for colour, height in HEIGHTS.items():
        matching = [
            column
            for column, day_colour in zip(columns, colours, strict=True)
            if day_colour == colour
        ]
        boxes = "".join(_draw_boxes(matching, height))
        if boxes:
            SubElement(root, "path", {"class": colour, "d": boxes})
    return ElementTree.tostring(root, encoding="unicode")


def _list_attributes(
    row: FleetRow, colours: Sequence[str], width: int
) -> dict[str, str]:
    """Return the SVG attributes of a strip."""
    return {
        "class": "strip",
        "role": "img",
        "aria-label": describe_strip(row, colours),
        "width": f"{WIDTH}",
        "height": f"{HEIGHT}",
        "viewBox": f"0 0 {width} {HEIGHT}",
        "preserveAspectRatio": "none",
        "fill": "currentColor",
    }


def describe_strip(row: FleetRow, colours: Sequence[str]) -> str:
    """Return the text alternative: `90 days: 2 red, 88 green; 7.325 s to 7.950 s`."""
    counts = Counter(colours)
    by_colour = [f"{counts[colour]} {colour}" for colour in HEIGHTS if counts[colour]]
    days = formatting.count_noun(len(row.verdicts), "day")
    description = f"{days}: {', '.join(by_colour)}"
    step_times = [seconds for seconds in row.seconds if seconds is not None]
    if step_times:
        shortest = formatting.format_seconds(min(step_times))
        longest = formatting.format_seconds(max(step_times))
        description += f"; {shortest} to {longest}"
    return description


def _draw_boxes(columns: Sequence[int], height: int) -> Iterator[str]:
    """Yield the path of a box for each group of adjacent columns."""

    def subtract_index(pair: tuple[int, int]) -> int:
        """Return column - index, which is constant in a group of adjacent columns."""
        index, column = pair
        return column - index

    for _, group in groupby(enumerate(columns), key=subtract_index):
        adjacent = [column for _, column in group]
        left, width = adjacent[0], len(adjacent)
        yield f"M{left} {HEIGHT}v-{height}h{width}v{height}z"


def _draw_line(columns: Sequence[int], seconds: Sequence[float | None]) -> str:
    """Return the path of the line; days without a step time are skipped."""
    points = [
        (column, value)
        for column, value in zip(columns, seconds, strict=True)
        if value is not None
    ]
    if not points:
        return ""
    median = statistics.median(value for _, value in points)
    clipped = [min(max(value, median / BEYOND), median * BEYOND) for _, value in points]
    low, high = min(clipped), max(clipped)
    # At least 2 %, so that noise does not fill the drawing.
    span = max(high - low, 0.02 * median)
    centre = (low + high) / 2
    # Pairs after a relative move are relative lines, which are short: `m0.5 2 1 0.4`.
    pairs = []
    last_x, last_y = 0.0, 0.0
    for (column, _), value in zip(points, clipped, strict=True):
        x = column + 0.5  # the middle of the column
        y = round((TOP + BOTTOM) / 2 - (value - centre) / span * (BOTTOM - TOP), 1)
        pairs.append(f"{x - last_x:g} {y - last_y:.3g}")
        last_x, last_y = x, y
    path = shorten_path(f"m{' '.join(pairs)}")
    # A line without length is not drawn.
    return path if len(points) > 1 else f"{path}h.1"
