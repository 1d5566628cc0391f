"""The chart of a configuration's nights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.html.chart import BEYOND, FEWEST, Chart, sentence, span
from pytest_llmbench.report.html.drawing import Even, Picture, numbers, padded

DATES = 5
"""Dates under a history, at most."""

SYMBOLS = {
    "PASS": "dot",
    "IMPROVEMENT": "dot",
    "RECORDED": "dot",
    "INCONCLUSIVE": "diamond",
    "REGRESSION": "cross",
    "TEST_FAILED": "cross",
}
"""The symbols of the nights with these verdicts, and a square for all others."""

MEANINGS = {
    "dot": ("pass", "\N{BLACK CIRCLE} pass"),
    "diamond": ("unclear", "\N{BLACK DIAMOND} unclear"),
    "cross": ("regression", "\N{MULTIPLICATION X} regression"),
    "square": ("other", "\N{BLACK SQUARE} not judged"),
}
"""The class of a symbol, and what it means."""


def history(one: dict[str, Any], name: str) -> Chart | None:
    """Draw a symbol for each night by its verdict, tonight's in a ring, and where the level changed."""
    earlier = [*(one.get("history") or ())]
    nights = [*earlier, _tonight(one)]
    times = [_seconds(night) for night in nights]
    known = [value for value in times if value is not None]
    if not earlier or len(known) < FEWEST:
        return None
    changes = [change for change in one.get("changes") or () if 0 <= change.get("night", -1) < len(nights)]
    expected = [night.get("expected_seconds") for night in nights]
    picture = Picture(_dates(earlier), _scale(known, [value for value in expected if value]), "", "seconds")
    picture.line(_corners(expected), "expected")
    shown = _draw_nights(picture, nights, times)
    for row, change in enumerate(changes):
        known_already = " known" if change.get("acknowledged") else ""
        text = f"{change_in_words(change.get('difference'))}{known_already}"
        picture.upright(change["night"] - 0.5, "change", text, row % 3)
    return Chart(name, "History", _in_words(earlier, times, changes), picture.svg(name), ", ".join(shown))


def _corners(values: Sequence[float | None]) -> Iterator[tuple[float, float | None]]:
    """Yield the points of a line that runs straight while a value stays."""
    for at, value in enumerate(values):
        if at in (0, len(values) - 1) or not values[at - 1] == value == values[at + 1]:
            yield at, value


def _tonight(one: dict[str, Any]) -> dict[str, Any]:
    """Return tonight's run as a night, without a step time where that means nothing."""
    counts = not one.get("problems") and one["verdict"] not in ("MISSING", "NOT_COMPARABLE")
    seconds = one.get("metrics", {}).get("step_time_seconds", {}).get("value") if counts else None
    return {"step_time_seconds": seconds, "expected_seconds": one.get("expected_seconds"), "verdict": one["verdict"]}


def _seconds(night: dict[str, Any]) -> float | None:
    value = night.get("step_time_seconds")
    return value if value is not None and value > 0 else None


def _scale(known: Sequence[float], expected: Sequence[float]) -> Even:
    """Return a scale on which one night that went wrong does not make the others one line."""
    highest = BEYOND * max([sorted(known)[len(known) // 2], *expected])
    return numbers(*padded([*(min(value, highest) for value in known), *expected], 0.12))


def _draw_nights(picture: Picture, nights: Sequence[dict[str, Any]], times: Sequence[float | None]) -> list[str]:
    """Draw the nights that have a time; return what the symbols mean that were used."""
    points: dict[str, list[tuple[float, float]]] = {symbol: [] for symbol in MEANINGS}
    for at, (night, value) in enumerate(zip(nights, times, strict=True)):
        if value is not None:
            points[SYMBOLS.get(str(night.get("verdict")), "square")].append((at, value))
    for symbol, of_symbol in points.items():
        picture.points(of_symbol, symbol, MEANINGS[symbol][0])
    shown = [MEANINGS[symbol][1] for symbol, of_symbol in points.items() if of_symbol]
    if times[-1] is None:
        return shown
    picture.points([(len(nights) - 1, times[-1])], "ring", "hollow")
    return [*shown, "\N{LARGE CIRCLE} tonight"]


def _dates(earlier: Sequence[dict[str, Any]]) -> Even:
    """Return a scale of nights, with the dates of some; the last place is tonight's."""
    stride = math.ceil(len(earlier) / DATES)
    texts = [(float(at), _date(earlier[at])[5:]) for at in range(0, len(earlier), stride)]
    return Even(-1, len(earlier) + 1, texts)


def _date(night: dict[str, Any]) -> str:
    return str(night.get("started") or "unknown")[:10]


def _in_words(
    earlier: Sequence[dict[str, Any]], times: Sequence[float | None], changes: Sequence[dict[str, Any]]
) -> str:
    known = [value for value in times if value is not None]
    untimed = times[:-1].count(None)
    now = " and tonight" if times[-1] is not None else ", not tonight"
    levels = [f"{change_in_words(change.get('difference'))} from {_date(change)} on" for change in changes]
    nights = f"{formatting.count_noun(len(earlier), 'night')} from {_date(earlier[0])} to {_date(earlier[-1])}"
    return sentence(
        [
            f"{nights}{now}, {span(known)}",
            f"{untimed} without a step time" if untimed else "",
            f"{formatting.count_noun(len(levels), 'change')} of level: {formatting.join_first(levels)}"
            if levels
            else "",
        ]
    )


def change_in_words(difference: float | None) -> str:
    """Return a fraction, slower is positive, as a signed percentage."""
    return formatting.format_difference(None if difference is None else 1 + difference)
