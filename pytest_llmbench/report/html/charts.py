"""The charts of the page: a run's steps and their distribution, the nights before it, a family's scaling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.report.html.drawing import WIDE, WIDTH, Picture, Scale, make_number_scale, pad

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


def _list_lines(outcome: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield kind, text and seconds of the baseline and the bound, as far as there are."""
    for kind, text, value in (
        ("expected", "baseline", outcome.get("expected_seconds")),
        ("bound", "bound", outcome.get("bound_seconds")),
    ):
        if value:
            yield kind, text, value


def _clip(values: Sequence[float], lines: Sequence[float]) -> list[float]:
    """Return values of which none is far beyond the bound or their median: the scale is made for these."""
    # The median, so that a single night of ten times the time does not press all others into one line.
    highest = BEYOND * max([sorted(values)[len(values) // 2], *lines])
    return [min(value, highest) for value in values]


def _list_line_seconds(outcome: dict[str, Any]) -> list[float]:
    """Return the seconds of these lines."""
    return [value for _, _, value in _list_lines(outcome)]


def _list_lines_in_words(outcome: dict[str, Any]) -> Iterator[str]:
    """Yield these lines in words."""
    for _, text, value in _list_lines(outcome):
        yield f"{text} {formatting.format_seconds(value)}"


def _format_span(values: Sequence[float]) -> str:
    """Return the smallest and the largest of some seconds."""
    return f"{formatting.format_seconds(min(values))} to {formatting.format_seconds(max(values))}"


def _make_sentence(parts: Sequence[str]) -> str:
    """Return the parts that say something as one sentence."""
    return f"{'; '.join(part for part in parts if part)}."


# --- weak scaling ------------------------------------------------------------------------------------------------

Shares = Sequence[tuple[int, float]]
"""GPUs of a size, and its throughput per GPU as a share of the reference's."""


DRAWN = {
    "measured": ("line", "dot", "measured", "\N{BLACK CIRCLE}"),
    "recorded": ("recorded", "triangle", "hollow", "\N{WHITE UP-POINTING TRIANGLE}"),
    "documented": ("documented", "diamond", "hollow", "\N{WHITE DIAMOND}"),
}
"""Of a curve: the kind of its line, the symbol and kind of its points, and the symbol in the key."""


def draw_curve(check: dict[str, Any], by_id: Mapping[str, dict[str, Any]], name: str) -> Chart | None:
    """Return the chart of a weak-scaling check; None for other checks, and where nothing was compared.

    `by_id` are the outcomes of the session. Those of its members that were not compared show what is documented.
    """
    if check["check"] != "weak-scaling" or not check.get("compared"):
        return None
    rows = [row for row in check["compared"] if row["baseline"] == check["compared"][0]["baseline"]]
    smallest = (rows[0]["reference_gpus"], 1.0)  # by definition
    measured = sorted([smallest, *((row["gpus"], row["measured"]) for row in rows if row["measured"])])
    expected = {
        label: sorted({smallest, *shares.items()})
        for label, shares in _collect_shares(check, rows, by_id).items()
        if shares
    }
    return _draw(expected, measured, name) if len(measured) >= FEWEST else None


def _collect_shares(
    check: dict[str, Any], rows: Sequence[dict[str, Any]], by_id: Mapping[str, dict[str, Any]]
) -> dict[str, dict[int, float]]:
    """Return what the baselines say of the compared sizes, and of the others where their outcomes are there; beside
    recorded ones what is documented, too."""
    kind, reference = rows[0]["baseline"], by_id.get(rows[0]["reference"])
    members = [by_id[name] for name in check.get("members", ()) if name in by_id]

    def get_expected(outcome: dict[str, Any]) -> float | None:
        return outcome["expected_seconds"] if outcome["baseline"]["kind"] == kind else None

    own = _compute_shares(members, reference, get_expected) | {
        row["gpus"]: row["documented"] for row in rows if row["documented"]
    }
    if kind != "recorded":
        return {"documented": own}
    return {"recorded": own, "documented": _compute_shares(members, reference, _get_published_seconds)}


def _get_published_seconds(outcome: dict[str, Any]) -> float | None:
    seconds: float | None = outcome["baseline"].get("published_seconds")
    return outcome["expected_seconds"] if outcome["baseline"]["kind"] == "published" else seconds


def _compute_shares(
    members: Sequence[dict[str, Any]],
    reference: dict[str, Any] | None,
    seconds: Callable[[dict[str, Any]], float | None],
) -> dict[int, float]:
    """Return by GPUs the throughput per GPU of the members as a share of the reference's, where both have a time."""
    whole = seconds(reference) if reference else None
    times = {outcome["configuration"]["gpus"]: seconds(outcome) for outcome in members} if whole else {}
    return {gpus: whole / time for gpus, time in times.items() if whole and time}


def _draw(expected: Mapping[str, Shares], measured: Shares, name: str) -> Chart | None:
    """Draw the throughput per GPU of a family's sizes, measured and what is told of them by who tells it."""
    curves = {"measured": measured, **expected}
    sizes = sorted({size for shares in curves.values() for size, _ in shares})
    places = {size: float(at) for at, size in enumerate(sizes)}
    x = Scale(-0.5, len(sizes) - 0.5, [(places[size], str(size)) for size in sizes])
    y = make_number_scale(*pad([share for shares in curves.values() for _, share in shares], 0.2), percent=True)
    picture = Picture(x, y, "GPUs", "of the smallest")
    for label, shares in reversed(curves.items()):
        line, symbol, points, _ = DRAWN[label]
        placed = [(places[size], share) for size, share in shares]
        picture.draw_line(placed, line)
        picture.draw_points(placed, symbol, points)
    key = ", ".join(f"{DRAWN[label][3]} {label}" for label in curves)
    return Chart(name, "Throughput per GPU", _describe_scaling(expected, measured), picture.make_svg(name), key)


def _describe_scaling(expected: Mapping[str, Shares], measured: Shares) -> str:
    by_size = {label: dict(shares) for label, shares in expected.items()}
    texts = []
    for size, share in measured:
        beside = ", ".join(f"{label} {shares[size]:.1%}" for label, shares in by_size.items() if size in shares)
        texts.append(f"{size} GPUs {share:.1%}" + (f" ({beside})" if beside else ""))
    return _make_sentence([f"Against the smallest size that was compared: {', '.join(texts)}"])


# --- the nights before -------------------------------------------------------------------------------------------

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
    picture, shown = _draw_series(nights, times, changes, _make_date_scale(earlier))
    if times[-1] is not None:
        picture.draw_points([(len(nights) - 1, times[-1])], "ring", "hollow")
        shown = [*shown, "\N{LARGE CIRCLE} tonight"]
    return Chart(name, "History", _describe_history(earlier, times, changes), picture.make_svg(name), ", ".join(shown))


def draw_nights(nights: Sequence[dict[str, Any]], changes: Sequence[dict[str, Any]], name: str) -> Chart | None:
    """Draw a symbol for each of some nights, none of which is tonight, and where the level changed."""
    times = [_get_seconds(night) for night in nights]
    if len(times) - times.count(None) < FEWEST:
        return None
    picture, shown = _draw_series(nights, times, changes, _make_date_scale(nights), WIDE)
    sentence = _describe_history(nights, [*times, None], changes).replace(", not tonight", "")
    return Chart(name, "Nights", sentence, picture.make_svg(name), ", ".join(shown))


def _draw_series(
    nights: Sequence[dict[str, Any]],
    times: Sequence[float | None],
    changes: Sequence[dict[str, Any]],
    dates: Scale,
    width: int = WIDTH,
) -> tuple[Picture, list[str]]:
    """Return a chart of nights with their baseline and changes, and what its symbols mean."""
    expected = [night.get("expected_seconds") for night in nights]
    lines = [value for value in expected if value]
    y = make_number_scale(*pad([*_clip([value for value in times if value is not None], lines), *lines], 0.12))
    picture = Picture(dates, y, "", "seconds", width)
    picture.draw_line(_list_corners(expected), "expected")
    shown = _draw_daily_runs(picture, nights, times)
    for row, change in enumerate(changes):
        known_already = " known" if change.get("acknowledged") else ""
        text = f"{format_change(change.get('difference'))}{known_already}"
        picture.draw_upright(change["night"] - 0.5, "change", text, row % 3)
    return picture, shown


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


def _draw_daily_runs(picture: Picture, nights: Sequence[dict[str, Any]], times: Sequence[float | None]) -> list[str]:
    """Draw the nights that have a time; return what the symbols mean that were used."""
    points: dict[str, list[tuple[float, float]]] = {symbol: [] for symbol in MEANINGS}
    for at, (night, value) in enumerate(zip(nights, times, strict=True)):
        if value is not None:
            points[SYMBOLS.get(str(night.get("verdict")), "square")].append((at, value))
    for symbol, of_symbol in points.items():
        picture.draw_points(of_symbol, symbol, MEANINGS[symbol][0])
    return [MEANINGS[symbol][1] for symbol, of_symbol in points.items() if of_symbol]


def _make_date_scale(earlier: Sequence[dict[str, Any]]) -> Scale:
    """Return a scale of nights, with the dates of some; the last place is tonight's."""
    stride = math.ceil(len(earlier) / DATES)
    texts = [(float(at), _format_date(earlier[at])[5:]) for at in range(0, len(earlier), stride)]
    return Scale(-1, len(earlier) + 1, texts)


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
    return _make_sentence(
        [
            f"{nights}{now}, {_format_span(measured)}",
            f"{untimed} without a step time" if untimed else "",
            f"{formatting.count_noun(len(levels), 'change')} of level: {formatting.join_first(levels)}"
            if levels
            else "",
        ]
    )


def format_change(difference: float | None) -> str:
    """Return a fraction, slower is positive, as a signed percentage."""
    return formatting.format_difference(None if difference is None else 1 + difference)


# --- the steps of a run, and their distribution ------------------------------------------------------------------

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
    y = make_number_scale(*pad([*_select_core(outcome, points), *_list_line_seconds(outcome)]))
    slow = [(index[at], seconds[at]) for at in columns["slow"] if seconds[at] is not None]
    above = [(step, value) for step, value in points if value > y.high and (step, value) not in slow]
    picture = Picture(make_number_scale(min(index), max(index)), y, "step", "seconds")
    first, last = max(outcome["window"]["first"], min(index)), min(outcome["window"]["last"], max(index))
    if first < last:
        picture.fill_band(first, last)
    picture.draw_line(zip(index, seconds, strict=True))
    picture.draw_points(slow, "triangle", "slow")
    picture.draw_points(above, "triangle", "hollow")
    for kind, text, value in _list_lines(outcome):
        picture.draw_across(value, kind, text, below=kind == "expected")
    signs = ["\N{BLACK UP-POINTING TRIANGLE} slow"] if slow else []
    signs += ["\N{WHITE UP-POINTING TRIANGLE} above the scale"] if above else []
    return Chart(
        name, "Step times", _describe_steps(outcome, points, slow, y), picture.make_svg(name), ", ".join(signs)
    )


def _select_core(outcome: dict[str, Any], points: Points) -> list[float]:
    """Return the times that the scale is made for: those of the window, as the first steps compile; and not all of what
    a straggler took."""
    window = outcome["window"]
    inside = [value for step, value in points if window["first"] <= step <= window["last"]]
    # Without a window all steps: the first ones compile, and would stretch the scale.
    return _clip(inside or [value for _, value in points], _list_line_seconds(outcome))


def _describe_steps(outcome: dict[str, Any], points: Points, slow: Points, y: Scale) -> str:
    values = [value for _, value in points]
    above, below = sum(value > y.high for value in values), sum(value < y.low for value in values)
    listed = formatting.join_first([step for step, _ in slow])
    return _make_sentence(
        [
            f"{formatting.count_noun(len(values), 'step')}, {_format_span(values)}",
            f"window {outcome['window']['first']} to {outcome['window']['last']}",
            f"{formatting.count_noun(len(slow), 'slow step')} ({listed})" if slow else "",
            f"{above} above the scale, which ends at {formatting.format_seconds(y.high)}" if above else "",
            f"{below} below the scale, which begins at {formatting.format_seconds(y.low)}" if below else "",
            *_list_lines_in_words(outcome),
        ]
    )


def draw_distribution(outcome: dict[str, Any], name: str) -> Chart | None:
    """Draw how many values of the window fell where, beside the baseline and the bound."""
    times = sorted(value for value in outcome.get("window_seconds", ()) if value is not None and value > 0)
    if len(times) < FEWEST or outcome.get("problems"):
        return None
    shown = _clip(times, _list_line_seconds(outcome))
    x = make_number_scale(*pad([*shown, *_list_line_seconds(outcome)], 0.03))
    width = _choose_width(x.high - x.low, shown[-1] - shown[0])
    counts = Counter(int((value - x.low) / width) for value in shown)
    picture = Picture(x, make_number_scale(0, max(counts.values()) * 1.25), "seconds", "steps")
    for place, count in sorted(counts.items()):
        picture.fill_box(x.low + place * width, x.low + (place + 0.92) * width, 0, count)
    for row, (kind, text, value) in enumerate(_list_lines(outcome)):
        picture.draw_upright(value, kind, text, row)
    return Chart(name, "Distribution in the window", _describe_distribution(outcome, times), picture.make_svg(name))


def _choose_width(whole: float, spread: float) -> float:
    """Return how wide a bar is, in seconds, on a scale of this length for values of this spread."""
    return whole / MOST_BINS if spread * MOST_BINS <= whole * BINS else min(spread, whole) / BINS


def _describe_distribution(outcome: dict[str, Any], times: Sequence[float]) -> str:
    count = len(times)
    median, low, high = (formatting.format_seconds(times[int(count * part)]) for part in (0.5, 0.25, 0.75))
    values = formatting.count_noun(count, "mean" if outcome.get("window_mean_of") else "step")
    middle = f"median {median}, half of them from {low} to {high}"
    return _make_sentence(
        [
            f"{values} of the window: {middle}, slowest {formatting.format_seconds(times[-1])}",
            *_list_lines_in_words(outcome),
        ]
    )
