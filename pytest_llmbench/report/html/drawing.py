"""SVG charts with axes, drawn in the units of their values.

Every shape has presentation attributes, so that it is readable without a style sheet
(Jenkins removes style sheets from artifacts), and a class for the colours of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

WIDTH, HEIGHT = 438, 228
"""Size of a chart in pixels."""

WIDE = 900
"""Width of a chart that has its own page, in pixels."""

EDGE = 12
"""Margin around a chart, for the ends of tick labels."""

TICK = 4
"""Length of a tick, and the gap between a tick and its label."""

CHARACTER_WIDTH, LINE_HEIGHT = 8, 14
"""Approximate size of tick labels."""

NAME_GAP = 16
"""Gap between the tick labels and the name of the axis."""

FADED = {"stroke": "currentColor", "stroke-opacity": ".18"}

STROKE = {"fill": "none", "stroke": "currentColor"}
DOTS = {**STROKE, "stroke-width": "5", "stroke-linecap": "round"}

STYLES = {
    "line": {**STROKE, "stroke-width": "1.5", "stroke-linejoin": "round"},
    "expected": {**STROKE, "stroke-width": "1"},
    "documented": {**STROKE, "stroke-dasharray": "5 3"},
    "recorded": {**STROKE, "stroke-dasharray": "1 3"},
    "bound": {**STROKE, "stroke-dasharray": "6 3"},
    "change": {**STROKE, "stroke-dasharray": "2 2"},
    "window": {"fill": "currentColor", "fill-opacity": ".08"},
    "bar": {"fill": "currentColor", "fill-opacity": ".45"},
    "pass": DOTS,
    "measured": DOTS,
    "hollow": {**STROKE, "stroke-width": "1.5"},
}
"""Presentation attributes by kind of shape; an unlisted kind is filled."""

SYMBOLS = {
    "dot": "h0",  # a wide line of length 0 with round ends
    "ring": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
    "triangle": "m-4 3.5h8l-4-7.5z",
    "cross": "m-3.5-3.5l7 7m0-7l-7 7",
    "diamond": "m0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
    "square": "m-2.5-2.5h5v5h-5z",
}
"""Paths of the symbols, relative to their point; they differ in shape, not only colour."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`, with (value, label) ticks in `texts`."""

    low: float
    high: float
    texts: Sequence[tuple[float, str]]

    def project(self, value: float, start: float, end: float) -> float:
        """Map a value to a coordinate between `start` and `end`, in tenths of a pixel.

        Values outside the axis are clipped.
        """
        length = self.high - self.low
        coordinate = start + (end - start) * (float(value) - self.low) / length
        # On a vertical axis, `start` is larger than `end`.
        smallest, largest = min(start, end), max(start, end)
        return round(min(max(coordinate, smallest), largest), 1)


ROUND = tuple(map(Decimal, ("1", "2", "2.5", "5", "10")))
"""Factors of a power of ten that are distances between ticks."""

ALIKE = 1e-6
"""A scale treats values as equal if they differ by less than this fraction."""


def make_number_scale(low: float, high: float, *, percent: bool = False) -> Scale:
    """Create a scale with round ticks that covers `low` to `high`.

    All labels have the same number of decimals.
    """
    if not high - low > ALIKE * max(abs(low), abs(high)):
        # Almost equal values, or zeros, get a scale around them.
        low -= abs(low) / 20 or 0.05
        high += abs(high) / 20 or 0.05
    ticks = _choose_ticks(_round_to_decimal(low), _round_to_decimal(high))
    # The exponent of 2.50 is -1 after `normalize`: one decimal.
    exponents = [int(tick.normalize().as_tuple().exponent) for tick in ticks]
    decimals = max(0, -min(exponents))
    form = f".{max(0, decimals - 2)}%" if percent else f".{decimals}f"
    labelled_ticks = [(float(tick), format(tick, form)) for tick in ticks]
    return Scale(float(ticks[0]), float(ticks[-1]), labelled_ticks)


def _round_to_decimal(value: float) -> Decimal:
    """Round a value to 12 digits, which removes binary rounding noise."""
    return Decimal(f"{value:.12g}")


def _choose_ticks(low: Decimal, high: Decimal) -> list[Decimal]:
    """Return four to eight round ticks that enclose `low` and `high`.

    They are multiples of 1, 2, 2.5 or 5 times a power of ten.
    """
    smallest_distance = (high - low) / 5
    # 0.034: exponent -2, so the distances are 0.01, 0.02, 0.025, 0.05 and 0.1.
    exponent = smallest_distance.adjusted()
    distances = (factor.scaleb(exponent) for factor in ROUND)
    distance = next(value for value in distances if value >= smallest_distance)
    first, last = math.floor(low / distance), math.ceil(high / distance)
    return [number * distance for number in range(first, last + 1)]


class Picture:
    """A chart under construction; later shapes cover earlier ones.

    Coordinates are in the units of the axes.
    """

    def __init__(
        self, x: Scale, y: Scale, x_name: str, y_name: str, width: int = WIDTH
    ) -> None:
        self._x, self._y, self._total_width = x, y, width
        label_width = CHARACTER_WIDTH * max(len(text) for _, text in y.texts)
        name_height = LINE_HEIGHT + NAME_GAP
        # Space to the left of the plot and below it, for labels and names.
        left = label_width + 2 * TICK
        if y_name:
            left += name_height
        bottom = LINE_HEIGHT + 2 * TICK
        if x_name:
            bottom += name_height
        self._width = width - 2 * EDGE - left
        self._height = HEIGHT - 2 * EDGE - bottom
        self._plot = Element("g", {"transform": f"translate({left + EDGE} {EDGE})"})
        self._draw_grid()
        if x_name:
            self._write(
                x_name,
                self._width / 2,
                self._height + LINE_HEIGHT + 2 * TICK + NAME_GAP,
                "middle",
                dy="1em",
            )
        if y_name:
            across, down = -(label_width + NAME_GAP), self._height / 2
            self._write(
                y_name,
                across,
                down,
                "middle",
                transform=f"rotate(270 {across:g} {down:g})",
            )

    def draw_line(
        self, points: Iterable[tuple[float, float | None]], kind: str = "line"
    ) -> None:
        """Draw a line through the points, with a gap for each missing value."""
        pixels = [None if y is None else self._locate(x, y) for x, y in points]
        self._draw(kind, _make_path(pixels))

    def fill_band(self, first: float, last: float) -> None:
        """Fill the area of the window, from `first` to `last` on the x axis."""
        self.fill_box(first, last, self._y.low, self._y.high, "window")

    def fill_box(
        self, first: float, last: float, bottom: float, top: float, kind: str = "bar"
    ) -> None:
        """Fill a rectangle."""
        left, bottom_pixel = self._locate(first, bottom)
        right, top_pixel = self._locate(last, top)
        self._draw(kind, f"M{left} {bottom_pixel}H{right}V{top_pixel}H{left}z")

    def draw_horizontal(self, value: float, kind: str, text: str, below: bool) -> None:
        """Draw a horizontal line with a label at its right end."""
        self.draw_line([(self._x.low, value), (self._x.high, value)], kind)
        right, top = self._locate(self._x.high, value)
        # 13 pixels below the line (the height of a row), or 4 pixels above.
        self._write(text, right, top + (13 if below else -4), "end")

    def draw_vertical(self, value: float, kind: str, text: str, row: int) -> None:
        """Draw a vertical line with a label next to its top, `row` lines down."""
        self.draw_line([(value, self._y.low), (value, self._y.high)], kind)
        left, top = self._locate(value, self._y.high)
        # The label is 4 pixels from the line, on the side with more space. The first
        # row is written 11 pixels below the top; each row is 13 pixels high.
        offset, anchor = -4, "end"
        if value < (self._x.low + self._x.high) / 2:
            offset, anchor = 4, "start"
        self._write(text, left + offset, top + 11 + 13 * row, anchor)

    def draw_points(
        self, points: Sequence[tuple[float, float]], symbol: str, kind: str
    ) -> None:
        """Draw a symbol at each of the points."""
        # One path element for all points keeps the page small.
        pixels = [self._locate(x, y) for x, y in points]
        if pixels:
            paths = [f"M{left} {top}{SYMBOLS[symbol]}" for left, top in pixels]
            self._draw(kind, "".join(paths))

    def make_svg(self, labelled_by: str) -> str:
        """Return the chart as an SVG element.

        `labelled_by` is the id of the page element that describes the chart.
        """
        attributes = {
            "role": "img",
            "aria-labelledby": labelled_by,
            "width": f"{self._total_width}",
            "height": f"{HEIGHT}",
            "viewBox": f"0 0 {self._total_width} {HEIGHT}",
            "fill": "currentColor",
            "font-size": "11",
            "font-family": "sans-serif",
        }
        root = Element("svg", attributes)
        root.append(self._plot)
        return ElementTree.tostring(root, encoding="unicode")

    def _draw_grid(self) -> None:
        """Draw a line and a label for each tick of both axes."""
        for value, text in self._x.texts:
            left, _ = self._locate(value, self._y.low)
            self._draw_grid_line(left, 0, left, self._height + TICK)
            self._write(text, left, self._height + 2 * TICK, "middle", dy="1em")
        for value, text in self._y.texts:
            _, top = self._locate(self._x.low, value)
            self._draw_grid_line(-TICK, top, self._width, top)
            self._write(text, -2 * TICK, top, "end", dy="0.32em")

    def _draw_grid_line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a faded line between two points in pixels."""
        ends = {"x1": f"{x1:g}", "y1": f"{y1:g}", "x2": f"{x2:g}", "y2": f"{y2:g}"}
        SubElement(self._plot, "line", {**ends, **FADED})

    def _draw(self, kind: str, path: str) -> None:
        """Add an SVG path with the class and the attributes of its kind."""
        attributes = {"class": kind, **STYLES.get(kind, {}), "d": path}
        SubElement(self._plot, "path", attributes)

    def _write(
        self, text: str, left: float, top: float, anchor: str, **attributes: str
    ) -> None:
        """Write a text at a point in pixels; `anchor` is start, middle or end."""
        if text:
            position = {"x": f"{left:g}", "y": f"{top:g}", "text-anchor": anchor}
            SubElement(self._plot, "text", {**position, **attributes}).text = text

    def _locate(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel coordinates of a point in the plot."""
        return self._x.project(x, 0, self._width), self._y.project(y, self._height, 0)


def _make_path(points: Sequence[tuple[float, float] | None]) -> str:
    """Build an SVG path through points, with a gap for each None.

    A point between two gaps becomes a short stroke: `M5 20h.1L6 21M8 23h.1`.
    """
    commands, is_start = [], True
    for point in points:
        if point is not None:
            left, top = point
            command = f"M{left:g} {top:g}h.1" if is_start else f"L{left:g} {top:g}"
            commands.append(command)
        is_start = point is None
    return "".join(commands)


def pad(values: Iterable[float], share: float = 0.08) -> tuple[float, float]:
    """Return the smallest and the largest finite value, with padding.

    `share` is the padding as a fraction of the range.
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    # Equal values are padded by a share of themselves, zeros by 1.
    padding = (high - low) * share or abs(high) * share or 1.0
    return low - padding, high + padding
