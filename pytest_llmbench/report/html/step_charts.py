"""The charts of a run's steps: their times in order, and their distribution in the window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.html.drawing import (
    BEYOND,
    FEWEST,
    Chart,
    Even,
    Picture,
    format_span,
    list_line_seconds,
    list_lines,
    list_lines_in_words,
    make_number_scale,
    make_sentence,
    pad,
)

BINS = 12
"""Bars of the values of a window, about."""

MOST_BINS = 120
"""Bars of a whole chart: narrower ones could not be seen."""

Points = list[tuple[int, float]]


def draw_steps(outcome: dict[str, Any], name: str) -> Chart | None:
    """Draw the times of the steps, with the window, the slow steps of it, the baseline and the bound."""
    columns = outcome.get("steps") or {"index": (), "seconds": (), "slow": ()}
    index, seconds = columns["index"], columns["seconds"]
    points = [(step, value) for step, value in zip(index, seconds, strict=True) if value is not None]
    if len(points) < FEWEST:
        return None
    y = make_number_scale(*pad([*_select_core(outcome, points), *list_line_seconds(outcome)]))
    slow = [(index[at], seconds[at]) for at in columns["slow"] if seconds[at] is not None]
    above = [(step, value) for step, value in points if value > y.high and (step, value) not in slow]
    picture = Picture(make_number_scale(min(index), max(index)), y, "step", "seconds")
    first, last = max(outcome["window"]["first"], min(index)), min(outcome["window"]["last"], max(index))
    if first < last:
        picture.band(first, last)
    picture.line(zip(index, seconds, strict=True))
    picture.points(slow, "triangle", "slow")
    picture.points(above, "triangle", "hollow")
    for kind, text, value in list_lines(outcome):
        picture.across(value, kind, text, below=kind == "expected")
    signs = ["\N{BLACK UP-POINTING TRIANGLE} slow"] if slow else []
    signs += ["\N{WHITE UP-POINTING TRIANGLE} above the scale"] if above else []
    return Chart(name, "Step times", _describe_steps(outcome, points, slow, y), picture.svg(name), ", ".join(signs))


def _select_core(outcome: dict[str, Any], points: Points) -> list[float]:
    """Return the times that the scale is made for: those of the window, as the first steps compile; and not all of what
    a straggler took."""
    window = outcome["window"]
    inside = [value for step, value in points if window["first"] <= step <= window["last"]]
    core = sorted(inside or [value for _, value in points])
    highest = BEYOND * max([core[len(core) // 2], *list_line_seconds(outcome)])
    return [min(value, highest) for value in core]


def _describe_steps(outcome: dict[str, Any], points: Points, slow: Points, y: Even) -> str:
    values = [value for _, value in points]
    above, below = sum(value > y.high for value in values), sum(value < y.low for value in values)
    listed = formatting.join_first([step for step, _ in slow])
    return make_sentence(
        [
            f"{formatting.count_noun(len(values), 'step')}, {format_span(values)}",
            f"window {outcome['window']['first']} to {outcome['window']['last']}",
            f"{formatting.count_noun(len(slow), 'slow step')} ({listed})" if slow else "",
            f"{above} above the scale, which ends at {formatting.format_seconds(y.high)}" if above else "",
            f"{below} below the scale, which begins at {formatting.format_seconds(y.low)}" if below else "",
            *list_lines_in_words(outcome),
        ]
    )


def draw_distribution(outcome: dict[str, Any], name: str) -> Chart | None:
    """Draw how many values of the window fell where, beside the baseline and the bound."""
    times = sorted(value for value in outcome.get("window_seconds", ()) if value is not None and value > 0)
    if len(times) < FEWEST or outcome.get("problems"):
        return None
    highest = BEYOND * max([times[len(times) // 2], *list_line_seconds(outcome)])
    shown = [min(value, highest) for value in times]
    x = make_number_scale(*pad([*shown, *list_line_seconds(outcome)], 0.03))
    width = _choose_width(x.high - x.low, shown[-1] - shown[0])
    counts = Counter(int((value - x.low) / width) for value in shown)
    picture = Picture(x, make_number_scale(0, max(counts.values()) * 1.25), "seconds", "steps")
    for place, count in sorted(counts.items()):
        picture.box(x.low + place * width, x.low + (place + 0.92) * width, 0, count)
    for row, (kind, text, value) in enumerate(list_lines(outcome)):
        picture.upright(value, kind, text, row)
    return Chart(name, "Distribution in the window", _describe_distribution(outcome, times), picture.svg(name))


def _choose_width(whole: float, spread: float) -> float:
    """Return how wide a bar is, in seconds, on a scale of this length for values of this spread."""
    return whole / MOST_BINS if spread * MOST_BINS <= whole * BINS else min(spread, whole) / BINS


def _describe_distribution(outcome: dict[str, Any], times: Sequence[float]) -> str:
    count = len(times)
    median, low, high = (formatting.format_seconds(times[int(count * part)]) for part in (0.5, 0.25, 0.75))
    values = formatting.count_noun(count, "mean" if outcome.get("window_mean_of") else "step")
    middle = f"median {median}, half of them from {low} to {high}"
    return make_sentence(
        [
            f"{values} of the window: {middle}, slowest {formatting.format_seconds(times[-1])}",
            *list_lines_in_words(outcome),
        ]
    )
