"""SVG charts with axes, drawn in the units of their values.

Every shape has presentation attributes, so that it is readable without a style sheet
(Jenkins removes style sheets from artifacts), and a class for the colours of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
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

FONT_SIZE = 11
"""Size of all texts of a chart, in pixels."""

NAME_GAP = 16
"""Gap between the tick labels and the name of the axis."""

STROKE = {"fill": "none", "stroke": "currentColor"}
DOTS = {**STROKE, "stroke-width": "5", "stroke-linecap": "round"}

STYLES = {
    "grid": {"stroke": "currentColor", "stroke-opacity": ".18"},
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
    "ring": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0m5 0",
    "triangle": "m-4 3.5h8l-4-7.5zm4-3.5",
    "cross": "m-3.5-3.5l7 7m0-7l-7 7m3.5-3.5",
    "diamond": "m0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5zm0 4.5",
    "square": "m-2.5-2.5h5v5h-5zm2.5 2.5",
}
"""Paths of the symbols, relative to their point, where they also end.

They differ in shape, not only in colour.
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`, with (value, label) ticks in `texts`."""

    low: float
    high: float
    texts: Sequence[tuple[float, str]]

    def project(
        self, values: Iterable[float], start: float, end: float
    ) -> Iterator[float]:
        """Map values to coordinates between `start` and `end`, in tenths of a pixel.

        Values outside the axis are clipped.
        """
        low, high = self.low, self.high
        length, distance = high - low, end - start
        for value in values:
            # Comparisons are faster than `min` and `max`: a site has 125,000 points.
            inside = value
            if value < low:
                inside = low
            elif value > high:
                inside = high
            yield round(start + distance * (inside - low) / length, 1)


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
        if points:
            columns, rows = zip(*points, strict=True)
            pixels = zip(
                self._x.project(columns, 0, self._width),
                self._y.project(rows, self._height, 0),
                strict=True,
            )
            self._draw(kind, _repeat_symbol(SYMBOLS[symbol], pixels))

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
            "font-size": f"{FONT_SIZE}",
            "font-family": "sans-serif",
        }
        root = Element("svg", attributes)
        root.append(self._plot)
        return ElementTree.tostring(root, encoding="unicode")

    def _draw_grid(self) -> None:
        """Draw a line and a label for each tick of both axes."""
        columns = [
            (self._locate(value, self._y.low)[0], text) for value, text in self._x.texts
        ]
        rows = [
            (self._locate(self._x.low, value)[1], text) for value, text in self._y.texts
        ]
        # One element for all lines keeps the page small.
        lines = [f"M{left:g} 0V{self._height + TICK:g}" for left, _ in columns]
        lines += [f"M-{TICK} {top:g}H{self._width:g}" for top, _ in rows]
        self._draw("grid", "".join(lines))
        # The position that the labels of an axis share is that of their group.
        below = self._start_labels(0, self._height + 2 * TICK + FONT_SIZE, "middle")
        for left, text in columns:
            if text:
                SubElement(below, "text", {"x": f"{left:g}"}).text = text
        beside = self._start_labels(-2 * TICK, 0.32 * FONT_SIZE, "end")
        for top, text in rows:
            if text:
                SubElement(beside, "text", {"y": f"{top:g}"}).text = text

    def _start_labels(self, left: float, top: float, anchor: str) -> Element:
        """Add a group of labels that is moved by a distance in pixels."""
        transform = f"translate({left:g} {top:g})"
        attributes = {"transform": transform, "text-anchor": anchor}
        return SubElement(self._plot, "g", attributes)

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
        (left,) = self._x.project([x], 0, self._width)
        (top,) = self._y.project([y], self._height, 0)
        return left, top


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


def _repeat_symbol(symbol: str, points: Iterable[tuple[float, float]]) -> str:
    """Build an SVG path with a symbol at each point.

    A point is relative to the previous one, where its symbol ends: `m5 20h0m2.2-.4h0`.
    """
    commands = []
    last_left, last_top = 0.0, 0.0
    for left, top in points:
        # Four digits: a chart has at most 999.9 pixels.
        commands.append(f"m{left - last_left:.4g} {top - last_top:.4g}{symbol}")
        last_left, last_top = left, top
    return shorten_path("".join(commands))


def shorten_path(path: str) -> str:
    """Remove needless spaces and zeros from an SVG path: `l1 -0.5` is `l1-.5`."""
    return path.replace(" -", "-").replace("-0.", "-.").replace(" 0.", " .")


def pad(values: Iterable[float], share: float = 0.08) -> tuple[float, float]:
    """Return the smallest and the largest finite value, with padding.

    `share` is the padding as a fraction of the range.
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    # Equal values are padded by a share of themselves, zeros by 1.
    padding = (high - low) * share or abs(high) * share or 1.0
    return low - padding, high + padding
