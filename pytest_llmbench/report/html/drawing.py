"""Drawing a chart: an SVG element of a page, with its axes, from values in their units.

Every shape has presentation attributes that read without a style sheet (Jenkins serves
artifacts without one), and a class by which the page's own gives it a colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

WIDTH, HEIGHT = 438, 228
"""Of a chart, in pixels at its natural size."""

WIDE = 900
"""The width of one that has a page of its own."""

EDGE = 12
"""The margin around it, for the ends of texts at the axes."""

TICK = 4
"""The end of a line of the grid, beyond the axis, and the gap between it and its
text."""

SIGN_WIDTH, LINE_HEIGHT = 8, 14
"""Of the texts at the axes, about."""

NAME_GAP = 16
"""Between these texts and the name of the axis."""

FADED = {"stroke": "currentColor", "stroke-opacity": ".18"}

STROKE = {"fill": "none", "stroke": "currentColor"}
DOTS = {**STROKE, "stroke-width": "5", "stroke-linecap": "round"}

# Jenkins serves artifacts without their style sheet, so every shape has attributes of
# its own.
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
"""The attributes of a kind of shape; those that are not listed are filled."""

SYMBOLS = {
    "dot": "h0",  # all of it is the round end of a broad line
    "ring": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
    "triangle": "m-4 3.5h8l-4-7.5z",
    "cross": "m-3.5-3.5l7 7m0-7l-7 7",
    "diamond": "m0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
    "square": "m-2.5-2.5h5v5h-5z",
}
"""Paths around a point, so that no symbol is told by its colour alone."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: from `low` to `high`, with texts at some of its values."""

    low: float
    high: float
    texts: Sequence[tuple[float, str]]

    def project(self, value: float, begin: float, end: float) -> float:
        """Return where a value lies between two places, to a tenth of a pixel; what
        lies beyond them is at the edge."""
        place = begin + (end - begin) * (float(value) - self.low) / (
            self.high - self.low
        )
        return round(min(max(place, min(begin, end)), max(begin, end)), 1)


ROUND = tuple(map(Decimal, ("1", "2", "2.5", "5", "10")))

ALIKE = 1e-6
"""Values that differ by less than this fraction are one value on a scale."""


def make_number_scale(low: float, high: float, *, percent: bool = False) -> Scale:
    """Return a scale of round numbers, which holds both ends; all of its texts have as
    many digits."""
    if not high - low > ALIKE * max(abs(low), abs(high)):
        low, high = low - (abs(low) / 20 or 0.05), high + (abs(high) / 20 or 0.05)
    ticks = _choose_ticks(_round_to_decimal(low), _round_to_decimal(high))
    digits = max(0, *(-int(tick.normalize().as_tuple().exponent) for tick in ticks))
    form = f".{max(0, digits - 2)}%" if percent else f".{digits}f"
    texts = [(float(tick), format(tick, form)) for tick in ticks]
    return Scale(texts[0][0], texts[-1][0], texts)


def _round_to_decimal(value: float) -> Decimal:
    """Return a value with a dozen digits: those that only a binary fraction has make no
    rounder numbers."""
    return Decimal(f"{value:.12g}")


def _choose_ticks(low: Decimal, high: Decimal) -> list[Decimal]:
    """Return four to eight multiples of 1, 2, 2.5 or 5 times a power of ten, between
    which both ends lie."""
    rough = (high - low) / 5
    step = next(
        step for factor in ROUND if (step := factor.scaleb(rough.adjusted())) >= rough
    )
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]


class Picture:
    """A chart that is being drawn, in the units of its axes: what is drawn later covers
    what was there."""

    def __init__(
        self, x: Scale, y: Scale, x_name: str, y_name: str, width: int = WIDTH
    ) -> None:
        """Take the scales, and what stands beside the axes; draw these."""
        self._x, self._y, self._whole = x, y, width
        beside = SIGN_WIDTH * max(len(text) for _, text in y.texts)
        named = LINE_HEIGHT + NAME_GAP
        left = beside + 2 * TICK + (named if y_name else 0)
        self._width = width - 2 * EDGE - left
        self._height = (
            HEIGHT - 2 * EDGE - LINE_HEIGHT - 2 * TICK - (named if x_name else 0)
        )
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
            across, down = -(beside + NAME_GAP), self._height / 2
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
        """Draw a line through the points; it is interrupted where one has no value."""
        self._draw(
            kind,
            _make_path([None if y is None else self._locate(x, y) for x, y in points]),
        )

    def fill_band(self, first: float, last: float) -> None:
        """Fill everything between two values of x, the window."""
        self.fill_box(first, last, self._y.low, self._y.high, "window")

    def fill_box(
        self, first: float, last: float, bottom: float, top: float, kind: str = "bar"
    ) -> None:
        """Fill a rectangle."""
        (left, low), (right, high) = (
            self._locate(first, bottom),
            self._locate(last, top),
        )
        self._draw(kind, f"M{left} {low}H{right}V{high}H{left}z")

    def draw_horizontal(self, value: float, kind: str, text: str, below: bool) -> None:
        """Draw a horizontal line with a text at its end."""
        self.draw_line([(self._x.low, value), (self._x.high, value)], kind)
        right, top = self._locate(self._x.high, value)
        self._write(text, right, top + (13 if below else -4), "end")

    def draw_vertical(self, value: float, kind: str, text: str, row: int) -> None:
        """Draw a vertical line with a text beside its top."""
        self.draw_line([(value, self._y.low), (value, self._y.high)], kind)
        left, top = self._locate(value, self._y.high)
        aside, anchor = (
            (4, "start") if value < (self._x.low + self._x.high) / 2 else (-4, "end")
        )
        self._write(text, left + aside, top + 11 + 13 * row, anchor)

    def draw_points(
        self, points: Sequence[tuple[float, float]], symbol: str, kind: str
    ) -> None:
        """Draw a symbol at each of the points."""
        # One path for all points of a kind: 90 nights are one element and not 90.
        places = [self._locate(x, y) for x, y in points]
        if places:
            self._draw(
                kind, "".join(f"M{left} {top}{SYMBOLS[symbol]}" for left, top in places)
            )

    def make_svg(self, labelled_by: str) -> str:
        """Return the chart as an element of a page; the element with the id
        `labelled_by` says what it shows."""
        attributes = {
            "role": "img",
            "aria-labelledby": labelled_by,
            "width": f"{self._whole}",
            "height": f"{HEIGHT}",
        }
        attributes |= {"viewBox": f"0 0 {self._whole} {HEIGHT}", "fill": "currentColor"}
        root = Element(
            "svg", {**attributes, "font-size": "11", "font-family": "sans-serif"}
        )
        root.append(self._plot)
        return ElementTree.tostring(root, encoding="unicode")

    def _draw_grid(self) -> None:
        for value, text in self._x.texts:
            place, _ = self._locate(value, self._y.low)
            self._draw_grid_line(place, 0, place, self._height + TICK)
            self._write(text, place, self._height + 2 * TICK, "middle", dy="1em")
        for value, text in self._y.texts:
            _, place = self._locate(self._x.low, value)
            self._draw_grid_line(-TICK, place, self._width, place)
            self._write(text, -2 * TICK, place, "end", dy="0.32em")

    def _draw_grid_line(self, *ends: float) -> None:
        places = zip(("x1", "y1", "x2", "y2"), ends, strict=True)
        SubElement(
            self._plot,
            "line",
            {**{name: f"{place:g}" for name, place in places}, **FADED},
        )

    def _draw(self, kind: str, path: str) -> None:
        SubElement(
            self._plot, "path", {"class": kind, **STYLES.get(kind, {}), "d": path}
        )

    def _write(
        self, text: str, left: float, top: float, anchor: str, **attributes: str
    ) -> None:
        if text:
            place = {"x": f"{left:g}", "y": f"{top:g}", "text-anchor": anchor}
            SubElement(self._plot, "text", {**place, **attributes}).text = text

    def _locate(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point in the plot."""
        return self._x.project(x, 0, self._width), self._y.project(y, self._height, 0)


def _make_path(places: Sequence[tuple[float, float] | None]) -> str:
    """Return a path through the places; a point between two gaps is drawn as a short
    stroke."""
    parts, broken = [], True
    for place in places:
        if place is not None:
            parts.append(
                f"{'M' if broken else 'L'}{place[0]:g} {place[1]:g}{'h.1' if broken else ''}"
            )
        broken = place is None
    return "".join(parts)


def pad(values: Iterable[float], share: float = 0.08) -> tuple[float, float]:
    """Return the smallest and the largest value with some room around them."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room
