"""The nights of a configuration as one small drawing: its step times, and below them
the verdict of each night."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from pytest_llmbench.core import formatting
from pytest_llmbench.tools.site.fleet_records import FleetRow

WIDTH, HEIGHT = 220, 36
"""Of a drawing, in pixels at its natural size."""

FEWEST_PLACES = 30
"""Nights that fill a drawing, at least: a few are not stretched over all of it."""

TOP, BOTTOM = 2, 21
"""Between these the line of step times runs; below it stand the bars of the
verdicts."""

RISES = {"red": 13, "unclear": 9, "green": 5, "skipped": 2}
"""The heights of the bars by colour, so that no verdict is told by its colour alone."""

BEYOND = 1.3
"""Step times beyond this multiple of their median, or below its inverse, are drawn at
the edge."""

Places = Mapping[date, int]
"""The column of each night that any configuration has."""


def draw_strip(row: FleetRow, colours: Sequence[str], places: Places) -> str:
    """Return the drawing of a configuration as an element of a page; `colours` has one
    for each of its nights.

    All nights of one colour are one path, and neighbours one box: a year of 343
    configurations is 1,400 elements and not 125,000.
    """
    width = max(len(places), FEWEST_PLACES)
    first = width - len(places)
    columns = [first + places[night.day] for night in row.nights]
    root = Element("svg", _list_attributes(row, colours, width))
    lines = "".join(_draw_line(columns, row.seconds))
    if lines:
        style = {
            "class": "line",
            "fill": "none",
            "stroke": "currentColor",
            "vector-effect": "non-scaling-stroke",
        }
        SubElement(root, "path", {**style, "d": lines})
    for colour, rise in RISES.items():
        taken = [
            column
            for column, own in zip(columns, colours, strict=True)
            if own == colour
        ]
        boxes = "".join(_draw_boxes(taken, rise))
        if boxes:
            SubElement(root, "path", {"class": colour, "d": boxes})
    return ElementTree.tostring(root, encoding="unicode")


def _list_attributes(
    row: FleetRow, colours: Sequence[str], width: int
) -> dict[str, str]:
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
    """Return a sentence for those who do not see it: `90 nights: 88 green, 2 red; 7.325
    s to 7.950 s`."""
    counts = Counter(colours)
    parts = [f"{counts[colour]} {colour}" for colour in RISES if counts[colour]]
    values = [value for value in row.seconds if value is not None]
    span = (
        f"; {formatting.format_seconds(min(values))} to {formatting.format_seconds(max(values))}"
        if values
        else ""
    )
    return (
        f"{formatting.count_noun(len(row.nights), 'night')}: {', '.join(parts)}{span}"
    )


def _draw_boxes(columns: Sequence[int], rise: int) -> Iterator[str]:
    """Yield a box for each stretch of columns."""
    for _, stretch in groupby(enumerate(columns), key=lambda pair: pair[1] - pair[0]):
        taken = [column for _, column in stretch]
        yield f"M{taken[0]} {HEIGHT}v-{rise}h{len(taken)}v{rise}z"


def _draw_line(
    columns: Sequence[int], seconds: Sequence[float | None]
) -> Iterator[str]:
    """Yield the parts of a line through the step times; a night without one interrupts
    nothing."""
    points = [
        (column, value)
        for column, value in zip(columns, seconds, strict=True)
        if value is not None
    ]
    if not points:
        return
    middle = statistics.median(value for _, value in points)
    held = [min(max(value, middle / BEYOND), middle * BEYOND) for _, value in points]
    low, high = min(held), max(held)
    room = max(high - low, 0.02 * middle)  # noise of a percent is no mountain
    centre = (low + high) / 2
    last_x, last_y = 0.0, 0.0
    for at, ((column, _), value) in enumerate(zip(points, held, strict=True)):
        x, y = (
            column + 0.5,
            round((TOP + BOTTOM) / 2 - (value - centre) / room * (BOTTOM - TOP), 1),
        )
        # Steps from point to point are shorter to write than places.
        yield f"M{x:g} {y:g}" if at == 0 else f"l{x - last_x:g} {y - last_y:.3g}"
        last_x, last_y = x, y
    if len(points) == 1:
        yield "h.1"
