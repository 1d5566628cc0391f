"""The charts of a run's steps: their times in order, and their distribution in the window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.html.chart import BEYOND, FEWEST, Chart, expected, lines, named_lines, sentence, span
from pytest_llmbench.report.html.drawing import Even, Picture, numbers, padded

BINS = 12
"""Bars of the values of a window, about."""

MOST_BINS = 120
"""Bars of a whole chart: narrower ones could not be seen."""

Points = list[tuple[int, float]]


def steps(one: dict[str, Any], name: str) -> Chart | None:
    """Draw the times of the steps, with the window, the slow steps of it, the baseline and the bound."""
    told = one.get("steps") or {"index": (), "seconds": (), "slow": ()}
    index, seconds = told["index"], told["seconds"]
    points = [(step, value) for step, value in zip(index, seconds, strict=True) if value is not None]
    if len(points) < FEWEST:
        return None
    y = numbers(*padded([*_core(one, points), *lines(one)]))
    slow = [(index[at], seconds[at]) for at in told["slow"] if seconds[at] is not None]
    above = [(step, value) for step, value in points if value > y.high and (step, value) not in slow]
    picture = Picture(numbers(min(index), max(index)), y, "step", "seconds")
    first, last = max(one["window"]["first"], min(index)), min(one["window"]["last"], max(index))
    if first < last:
        picture.band(first, last)
    picture.line(zip(index, seconds, strict=True))
    picture.points(slow, "triangle", "slow")
    picture.points(above, "triangle", "hollow")
    for kind, text, value in named_lines(one):
        picture.across(value, kind, text, below=kind == "expected")
    signs = ["\N{BLACK UP-POINTING TRIANGLE} slow"] if slow else []
    signs += ["\N{WHITE UP-POINTING TRIANGLE} above the scale"] if above else []
    return Chart(name, "Step times", _of_steps(one, points, slow, y), picture.svg(name), ", ".join(signs))


def _core(one: dict[str, Any], points: Points) -> list[float]:
    """Return the times that the scale is made for: those of the window, as the first steps compile; and not all of what
    a straggler took."""
    window = one["window"]
    inside = [value for step, value in points if window["first"] <= step <= window["last"]]
    core = sorted(inside or [value for _, value in points])
    highest = BEYOND * max([core[len(core) // 2], *lines(one)])
    return [min(value, highest) for value in core]


def _of_steps(one: dict[str, Any], points: Points, slow: Points, y: Even) -> str:
    values = [value for _, value in points]
    above, below = sum(value > y.high for value in values), sum(value < y.low for value in values)
    listed = formatting.join_first([step for step, _ in slow])
    return sentence(
        [
            f"{formatting.count_noun(len(values), 'step')}, {span(values)}",
            f"window {one['window']['first']} to {one['window']['last']}",
            f"{formatting.count_noun(len(slow), 'slow step')} ({listed})" if slow else "",
            f"{above} above the scale, which ends at {formatting.format_seconds(y.high)}" if above else "",
            f"{below} below the scale, which begins at {formatting.format_seconds(y.low)}" if below else "",
            *expected(one),
        ]
    )


def distribution(one: dict[str, Any], name: str) -> Chart | None:
    """Draw how many values of the window fell where, beside the baseline and the bound."""
    found = sorted(value for value in one.get("window_seconds", ()) if value is not None and value > 0)
    if len(found) < FEWEST or one.get("problems"):
        return None
    highest = BEYOND * max([found[len(found) // 2], *lines(one)])
    shown = [min(value, highest) for value in found]
    x = numbers(*padded([*shown, *lines(one)], 0.03))
    width = _width(x.high - x.low, shown[-1] - shown[0])
    counts = Counter(int((value - x.low) / width) for value in shown)
    picture = Picture(x, numbers(0, max(counts.values()) * 1.25), "seconds", "steps")
    for place, count in sorted(counts.items()):
        picture.box(x.low + place * width, x.low + (place + 0.92) * width, 0, count)
    for row, (kind, text, value) in enumerate(named_lines(one)):
        picture.upright(value, kind, text, row)
    return Chart(name, "Distribution in the window", _of_distribution(one, found), picture.svg(name))


def _width(whole: float, spread: float) -> float:
    """Return how wide a bar is, in seconds, on a scale of this length for values of this spread."""
    return whole / MOST_BINS if spread * MOST_BINS <= whole * BINS else min(spread, whole) / BINS


def _of_distribution(one: dict[str, Any], found: Sequence[float]) -> str:
    count = len(found)
    median, low, high = (formatting.format_seconds(found[int(count * part)]) for part in (0.5, 0.25, 0.75))
    values = formatting.count_noun(count, "mean" if one.get("window_mean_of") else "step")
    middle = f"median {median}, half of them from {low} to {high}"
    return sentence(
        [f"{values} of the window: {middle}, slowest {formatting.format_seconds(found[-1])}", *expected(one)]
    )
