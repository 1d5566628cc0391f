"""The chart of a configuration's nights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.html.drawing import (
    BEYOND,
    FEWEST,
    Chart,
    Even,
    Picture,
    format_span,
    make_number_scale,
    make_sentence,
    pad,
)

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


def draw_history(outcome: dict[str, Any], name: str) -> Chart | None:
    """Draw a symbol for each night by its verdict, tonight's in a ring, and where the level changed."""
    earlier = [*(outcome.get("history") or ())]
    nights = [*earlier, _describe_current_run(outcome)]
    times = [_get_seconds(night) for night in nights]
    measured = [value for value in times if value is not None]
    if not earlier or len(measured) < FEWEST:
        return None
    changes = [change for change in outcome.get("changes") or () if 0 <= change.get("night", -1) < len(nights)]
    expected = [night.get("expected_seconds") for night in nights]
    picture = Picture(
        _make_date_scale(earlier), _make_scale(measured, [value for value in expected if value]), "", "seconds"
    )
    picture.line(_list_corners(expected), "expected")
    shown = _draw_daily_runs(picture, nights, times)
    for row, change in enumerate(changes):
        known_already = " known" if change.get("acknowledged") else ""
        text = f"{format_change(change.get('difference'))}{known_already}"
        picture.upright(change["night"] - 0.5, "change", text, row % 3)
    return Chart(name, "History", _describe_history(earlier, times, changes), picture.svg(name), ", ".join(shown))


def _list_corners(values: Sequence[float | None]) -> Iterator[tuple[float, float | None]]:
    """Yield the points of a line that runs straight while a value stays."""
    for at, value in enumerate(values):
        if at in (0, len(values) - 1) or not values[at - 1] == value == values[at + 1]:
            yield at, value


def _describe_current_run(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return tonight's run as a night, without a step time where that means nothing."""
    counts = not outcome.get("problems") and outcome["verdict"] not in ("MISSING", "NOT_COMPARABLE")
    seconds = outcome.get("metrics", {}).get("step_time_seconds", {}).get("value") if counts else None
    return {
        "step_time_seconds": seconds,
        "expected_seconds": outcome.get("expected_seconds"),
        "verdict": outcome["verdict"],
    }


def _get_seconds(night: dict[str, Any]) -> float | None:
    value = night.get("step_time_seconds")
    return value if value is not None and value > 0 else None


def _make_scale(measured: Sequence[float], expected: Sequence[float]) -> Even:
    """Return a scale on which one night that went wrong does not make the others one line."""
    highest = BEYOND * max([sorted(measured)[len(measured) // 2], *expected])
    return make_number_scale(*pad([*(min(value, highest) for value in measured), *expected], 0.12))


def _draw_daily_runs(picture: Picture, nights: Sequence[dict[str, Any]], times: Sequence[float | None]) -> list[str]:
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


def _make_date_scale(earlier: Sequence[dict[str, Any]]) -> Even:
    """Return a scale of nights, with the dates of some; the last place is tonight's."""
    stride = math.ceil(len(earlier) / DATES)
    texts = [(float(at), _format_date(earlier[at])[5:]) for at in range(0, len(earlier), stride)]
    return Even(-1, len(earlier) + 1, texts)


def _format_date(night: dict[str, Any]) -> str:
    return str(night.get("started") or "unknown")[:10]


def _describe_history(
    earlier: Sequence[dict[str, Any]], times: Sequence[float | None], changes: Sequence[dict[str, Any]]
) -> str:
    measured = [value for value in times if value is not None]
    untimed = times[:-1].count(None)
    now = " and tonight" if times[-1] is not None else ", not tonight"
    levels = [f"{format_change(change.get('difference'))} from {_format_date(change)} on" for change in changes]
    nights = (
        f"{formatting.count_noun(len(earlier), 'night')} from {_format_date(earlier[0])} to {_format_date(earlier[-1])}"
    )
    return make_sentence(
        [
            f"{nights}{now}, {format_span(measured)}",
            f"{untimed} without a step time" if untimed else "",
            f"{formatting.count_noun(len(levels), 'change')} of level: {formatting.join_first(levels)}"
            if levels
            else "",
        ]
    )


def format_change(difference: float | None) -> str:
    """Return a fraction, slower is positive, as a signed percentage."""
    return formatting.format_difference(None if difference is None else 1 + difference)
