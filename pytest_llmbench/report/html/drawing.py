"""Drawing a chart: leather draws axes and lays the picture out, scales and what is shown in the plot are made here.

Every shape has presentation attributes that read without a style sheet (Jenkins serves artifacts without one), and a
class by which the page's own gives it a colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import leather

from pytest_llmbench.core import formatting

WIDTH, HEIGHT = 460, 250
"""Of a chart with leather's margin around it, in pixels at its natural size."""

EDGE = 12
"""What is left of that margin, for the ends of texts at the axes."""

FADED = {"stroke": "currentColor", "stroke-opacity": ".18"}

DOTS = {"fill": "none", "stroke": "currentColor", "stroke-width": "5", "stroke-linecap": "round"}

# Jenkins serves artifacts without their style sheet, so every shape has attributes of its own.
STYLES = {
    "line": {"fill": "none", "stroke": "currentColor", "stroke-width": "1.5", "stroke-linejoin": "round"},
    "expected": {"fill": "none", "stroke": "currentColor", "stroke-width": "1"},
    "documented": {"fill": "none", "stroke": "currentColor", "stroke-dasharray": "5 3"},
    "recorded": {"fill": "none", "stroke": "currentColor", "stroke-dasharray": "1 3"},
    "bound": {"fill": "none", "stroke": "currentColor", "stroke-dasharray": "6 3"},
    "change": {"fill": "none", "stroke": "currentColor", "stroke-dasharray": "2 2"},
    "window": {"fill": "currentColor", "fill-opacity": ".08"},
    "bar": {"fill": "currentColor", "fill-opacity": ".45"},
    "pass": DOTS,
    "measured": DOTS,
    "hollow": {"fill": "none", "stroke": "currentColor", "stroke-width": "1.5"},
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
class Even:
    """A scale without leather's own ticks: from `low` to `high`, with texts at some of its values."""

    low: float
    high: float
    texts: Sequence[tuple[float, str]]

    def contains(self, value: float) -> bool:
        """Whether a value lies on the scale."""
        return self.low <= value <= self.high

    def project(self, value: float, begin: float, end: float) -> float:
        """Return where a value lies between two places."""
        return begin + (end - begin) * (float(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return the values that have a text."""
        return [value for value, _ in self.texts]

    def format_tick(self, value: float, position: int, count: int) -> str:
        """Return the text of a tick."""
        return self.texts[position][1]


ROUND = tuple(map(Decimal, ("1", "2", "2.5", "5", "10")))

ALIKE = 1e-6
"""Values that differ by less than this fraction are one value on a scale."""


def make_number_scale(low: float, high: float, *, percent: bool = False) -> Even:
    """Return a scale of round numbers, which holds both ends; all of its texts have as many digits."""
    if not high - low > ALIKE * max(abs(low), abs(high)):
        low, high = low - (abs(low) / 20 or 0.05), high + (abs(high) / 20 or 0.05)
    ticks = _choose_ticks(_round_to_decimal(low), _round_to_decimal(high))
    digits = max(0, *(-int(tick.normalize().as_tuple().exponent) for tick in ticks))
    form = f".{max(0, digits - 2)}%" if percent else f".{digits}f"
    texts = [(float(tick), format(tick, form)) for tick in ticks]
    return Even(texts[0][0], texts[-1][0], texts)


def _round_to_decimal(value: float) -> Decimal:
    """Return a value with a dozen digits: those that only a binary fraction has make no rounder numbers."""
    return Decimal(f"{value:.12g}")


def _choose_ticks(low: Decimal, high: Decimal) -> list[Decimal]:
    """Return four to eight multiples of 1, 2, 2.5 or 5 times a power of ten, between which both ends lie."""
    # Leather's own search takes a hundred times as long.
    rough = (high - low) / 5
    step = next(step for factor in ROUND if (step := factor.scaleb(rough.adjusted())) >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]


class Picture:
    """A chart that is being drawn, in the units of its axes. It is leather's only layer, and so has no legend."""

    def __init__(self, x: Even, y: Even, x_name: str, y_name: str) -> None:
        """Take the scales, and what stands beside the axes."""
        self._scales = x, y
        self._names = x_name, y_name
        self._marks: list[Callable[[Plot], Element]] = []

    def draw_line(self, points: Iterable[tuple[float, float | None]], kind: str = "line") -> None:
        """Draw a line through the points; it is interrupted where one has no value."""
        ends = list(points)

        def draw(plot: Plot) -> Element:
            return _make_shape(kind, _make_path([None if y is None else plot.locate(x, y) for x, y in ends]))

        self._marks.append(draw)

    def fill_band(self, first: float, last: float) -> None:
        """Fill everything between two values of x, the window."""
        (_, bottom), (_, top) = self._ends()
        self.fill_box(first, last, bottom, top, "window")

    def fill_box(self, first: float, last: float, bottom: float, top: float, kind: str = "bar") -> None:
        """Fill a rectangle."""

        def draw(plot: Plot) -> Element:
            (left, low), (right, high) = plot.locate(first, bottom), plot.locate(last, top)
            return _make_shape(kind, f"M{left} {low}H{right}V{high}H{left}z")

        self._marks.append(draw)

    def draw_across(self, value: float, kind: str, text: str = "", below: bool = False) -> None:
        """Draw a horizontal line with a text at its end."""
        (left, _), (right, _) = self._ends()
        self.draw_line([(left, value), (right, value)], kind)
        self.write_text(right, value, text, down=13 if below else -4, anchor="end")

    def draw_upright(self, value: float, kind: str, text: str = "", row: int = 0) -> None:
        """Draw a vertical line with a text beside its top."""
        (_, bottom), (_, top) = self._ends()
        self.draw_line([(value, bottom), (value, top)], kind)
        (left, _), (right, _) = self._ends()
        anchor = "start" if value < (left + right) / 2 else "end"
        self.write_text(value, top, text, down=11 + 13 * row, anchor=anchor, aside=4)

    def write_text(
        self, x: float, y: float, text: str, *, down: float = 0, anchor: str = "start", aside: float = 0
    ) -> None:
        """Write a text beside a point."""

        def draw(plot: Plot) -> Element:
            left, top = plot.locate(x, y)
            moved = left + (aside if anchor == "start" else -aside)
            element = Element("text", {"x": f"{moved:g}", "y": f"{top + down:g}", "text-anchor": anchor})
            element.text = text
            return element

        if text:
            self._marks.append(draw)

    def draw_points(self, points: Sequence[tuple[float, float]], symbol: str, kind: str) -> None:
        """Draw a symbol at each of the points."""

        def draw(plot: Plot) -> Element:
            # One path for all points of a kind: 90 nights are one element and not 90.
            places = (plot.locate(x, y) for x, y in points)
            return _make_shape(kind, "".join(f"M{left} {top}{SYMBOLS[symbol]}" for left, top in places))

        if points:
            self._marks.append(draw)

    def make_svg(self, labelled_by: str) -> str:
        """Return the chart as an element of a page; the element with the id `labelled_by` says what it shows."""
        chart = leather.Chart()
        chart.set_x_scale(self._scales[0])
        chart.set_y_scale(self._scales[1])
        chart.add_x_axis(name=self._names[0] or None)
        chart.add_y_axis(name=self._names[1])
        # A single layer: leather draws a legend beside two.
        chart.add_series(leather.Series(self._ends()), Layer(self._marks))
        margin = leather.theme.margin * WIDTH
        drawn = chart.to_svg_group(WIDTH, HEIGHT)
        drawn.remove(drawn.find("rect"))  # its background
        _restyle(drawn)
        width, height = WIDTH - 2 * (margin - EDGE), HEIGHT - 2 * (margin - EDGE)
        attributes = {"role": "img", "aria-labelledby": labelled_by, "width": f"{width:g}", "height": f"{height:g}"}
        attributes["viewBox"] = f"{margin - EDGE:g} {margin - EDGE:g} {width:g} {height:g}"
        root = Element("svg", {**attributes, "fill": "currentColor", "font-size": "11", "font-family": "sans-serif"})
        root.append(drawn)
        return ElementTree.tostring(root, encoding="unicode")

    def _ends(self) -> list[tuple[float, float]]:
        x, y = self._scales
        return [(x.low, y.low), (x.high, y.high)]


@dataclass(frozen=True, slots=True)
class Plot:
    """Where values lie in the plot, in pixels; what lies outside of it is moved to its edge."""

    width: float
    height: float
    x: Even
    y: Even

    def locate(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point, to a tenth of a pixel."""
        left, top = self.x.project(x, 0, self.width), self.y.project(y, self.height, 0)
        return round(min(max(left, 0), self.width), 1), round(min(max(top, 0), self.height), 1)


class Layer:
    """What leather calls a shape: it draws the marks of a picture."""

    def __init__(self, marks: Sequence[Callable[[Plot], Element]]) -> None:
        """Take the marks, in the order in which they cover each other."""
        self._marks = marks

    def validate_series(self, series: object) -> None:
        """Accept every series: the marks bring their own values."""

    def to_svg(self, width: Any, height: Any, x: Even, y: Even, *series_and_palette: object) -> Element:
        """Return the marks."""
        group = Element("g")
        group.extend(mark(Plot(float(width), float(height), x, y)) for mark in self._marks)
        return group


def _make_shape(kind: str, path: str) -> Element:
    return Element("path", {"class": kind, **STYLES.get(kind, {}), "d": path})


def _make_path(places: Sequence[tuple[float, float] | None]) -> str:
    """Return a path through the places; a point between two gaps is drawn as a short stroke."""
    parts, broken = [], True
    for place in places:
        if place is not None:
            parts.append(f"{'M' if broken else 'L'}{place[0]:g} {place[1]:g}{'h.1' if broken else ''}")
        broken = place is None
    return "".join(parts)


def _restyle(drawn: Element) -> None:
    """Replace leather's colours and fonts, which suit one theme only, and round its places."""
    for element in drawn.iter():
        ours = element.tag == "path" or "class" in element.attrib
        for name in ("fill", "font-family", "font-size", "stroke", "stroke-width") if not ours else ():
            element.attrib.pop(name, None)
        for name in ("x", "y", "x1", "x2", "y1", "y2"):
            if name in element.attrib:
                element.set(name, f"{round(float(element.attrib[name]), 1):g}")
        if element.tag == "line":
            element.attrib |= FADED
        for name in [name for name, value in element.attrib.items() if value == ""]:
            del element.attrib[name]


def pad(values: Iterable[float], share: float = 0.08) -> tuple[float, float]:
    """Return the smallest and the largest value with some room around them."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room


# --- what the charts of a configuration share ------------------------------------------------------------

BEYOND = 1.5
"""What takes longer than the bound, or the median, times this is drawn at the edge: the others stay readable."""

FEWEST = 2
"""Steps, nights or sizes of which a chart says more than a number."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart: what it is of, a sentence for those who do not see it, the element, and what its symbols mean;
    `id` is the sentence's."""

    id: str
    title: str
    sentence: str
    svg: str
    key: str = ""


def list_lines(outcome: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield kind, text and seconds of the baseline and the bound, as far as there are."""
    for kind, text, value in (
        ("expected", "baseline", outcome.get("expected_seconds")),
        ("bound", "bound", outcome.get("bound_seconds")),
    ):
        if value:
            yield kind, text, value


def list_line_seconds(outcome: dict[str, Any]) -> list[float]:
    """Return the seconds of these lines."""
    return [value for _, _, value in list_lines(outcome)]


def list_lines_in_words(outcome: dict[str, Any]) -> Iterator[str]:
    """Yield these lines in words."""
    for _, text, value in list_lines(outcome):
        yield f"{text} {formatting.format_seconds(value)}"


def format_span(values: Sequence[float]) -> str:
    """Return the smallest and the largest of some seconds."""
    return f"{formatting.format_seconds(min(values))} to {formatting.format_seconds(max(values))}"


def make_sentence(parts: Sequence[str]) -> str:
    """Return the parts that say something as one sentence."""
    return f"{'; '.join(part for part in parts if part)}."
