"""The charts of the page: daily runs, steps, their distribution, and loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.core import formatting
from pytest_llmbench.report.html.drawing import (
    WIDE,
    WIDTH,
    Picture,
    Scale,
    make_number_scale,
    pad,
)
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    ReportedDay,
    get_set,
)

BEYOND = 1.5
"""Values above this multiple of the limit or the median are drawn at the edge."""

FEWEST = 2
"""Minimum number of steps, daily runs or sizes for a chart."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart as an SVG element.

    `sentence` describes the chart for screen readers; `id` is the element id of the
    sentence. `key` explains the symbols.
    """

    id: str
    title: str
    sentence: str
    svg: str
    key: str = ""


def _list_lines(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str, float]]:
    """Yield class, label and seconds of the baseline and the limit, if known."""
    for kind, text, value in (
        ("expected", "baseline", outcome.expected_seconds),
        ("bound", "limit", outcome.bound_seconds),
    ):
        if value:
            yield kind, text, value


def _clip(values: Sequence[float], lines: Sequence[float]) -> list[float]:
    """Clip values far above `lines` and the median, before the scale is chosen.

    A single outlier would otherwise compress all other values into one line.
    """
    highest = BEYOND * max([sorted(values)[len(values) // 2], *lines])
    return [min(value, highest) for value in values]


def _list_line_seconds(outcome: ConfigurationOutcome) -> list[float]:
    """Return the step times of the baseline and the limit, if known."""
    return [value for _, _, value in _list_lines(outcome)]


def _describe_lines(outcome: ConfigurationOutcome) -> Iterator[str]:
    """Yield `baseline 7.325 s` and `limit 7.691 s`, if known."""
    for _, text, value in _list_lines(outcome):
        yield f"{text} {formatting.format_seconds(value)}"


def _format_span(values: Sequence[float]) -> str:
    """Format the range of step times: `7.3 s to 7.5 s`."""
    return f"{formatting.format_seconds(min(values))} to {formatting.format_seconds(max(values))}"


def make_sentence(texts: Sequence[str]) -> str:
    """Join the non-empty texts into one sentence."""
    return f"{'; '.join(text for text in texts if text)}."


# --- daily runs -----------------------------------------------------------------------

DATES = 5
"""Maximum number of dates on the axis of a history."""


SYMBOLS = {
    "PASS": "dot",
    "IMPROVEMENT": "dot",
    "RECORDED": "dot",
    "INCONCLUSIVE": "diamond",
    "REGRESSION": "cross",
    "TEST_FAILED": "cross",
}
"""The symbols of daily runs by verdict; a square for all other verdicts."""


MEANINGS = {
    "dot": ("pass", "\N{BLACK CIRCLE} pass"),
    "diamond": ("unclear", "\N{BLACK DIAMOND} unclear"),
    "cross": ("regression", "\N{MULTIPLICATION X} regression"),
    "square": ("other", "\N{BLACK SQUARE} not judged"),
}
"""The class of each symbol, and its entry in the legend."""


@dataclass(frozen=True, slots=True)
class DrawnDay:
    """A daily run in a chart."""

    started: str
    verdict: str
    step_seconds: float | None
    expected_seconds: float | None

    @property
    def seconds(self) -> float | None:
        """The step time; None if it is unknown or not positive."""
        seconds = self.step_seconds
        return seconds if seconds is not None and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class DrawnChange:
    """A level change in a chart; `night` is the position of the first run after it."""

    night: int
    started: str
    difference: float
    acknowledged: bool


def draw_history(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw the daily runs with the current run in a ring, and the level changes.

    Returns None if there are fewer than `FEWEST` step times.
    """
    earlier = list(map(_convert_day, outcome.history))
    days = [*earlier, _convert_current_run(outcome)]
    times = [day.seconds for day in days]
    measured = [value for value in times if value is not None]
    if not earlier or len(measured) < FEWEST:
        return None
    changes = [
        DrawnChange(
            change.night,
            change.started,
            change.difference,
            change.acknowledged is not None,
        )
        for change in outcome.changes
        if 0 <= change.night < len(days)
    ]
    picture, key = _draw_series(days, times, changes, _make_date_scale(earlier))
    if times[-1] is not None:
        picture.draw_points([(len(days) - 1, times[-1])], "ring", "hollow")
        key = [*key, "\N{LARGE CIRCLE} this run"]
    return Chart(
        name,
        "History",
        _describe_history(earlier, times, changes),
        picture.make_svg(name),
        ", ".join(key),
    )


def draw_days(
    days: Sequence[DrawnDay], changes: Sequence[DrawnChange], name: str
) -> Chart | None:
    """Draw stored daily runs and the level changes, without a current run.

    Returns None if there are fewer than `FEWEST` step times.
    """
    times = [day.seconds for day in days]
    if len(times) - times.count(None) < FEWEST:
        return None
    picture, key = _draw_series(days, times, changes, _make_date_scale(days), WIDE)
    sentence = _describe_history(days, [*times, None], changes).replace(
        ", without this run", ""
    )
    return Chart(name, "Daily runs", sentence, picture.make_svg(name), ", ".join(key))


def _draw_series(
    days: Sequence[DrawnDay],
    times: Sequence[float | None],
    changes: Sequence[DrawnChange],
    dates: Scale,
    width: int = WIDTH,
) -> tuple[Picture, list[str]]:
    """Draw daily runs with their baselines and level changes.

    Returns the picture and the entries of its legend.
    """
    expected = [day.expected_seconds for day in days]
    lines = [value for value in expected if value]
    y = make_number_scale(
        *pad(
            [*_clip([value for value in times if value is not None], lines), *lines],
            0.12,
        )
    )
    picture = Picture(dates, y, "", "seconds", width)
    picture.draw_line(_list_corners(expected), "expected")
    key = _draw_daily_runs(picture, days, times)
    for row, change in enumerate(changes):
        acknowledged = " known" if change.acknowledged else ""
        text = f"{format_change(change.difference)}{acknowledged}"
        picture.draw_vertical(change.night - 0.5, "change", text, row % 3)
    return picture, key


def _list_corners(
    values: Sequence[float | None],
) -> Iterator[tuple[float, float | None]]:
    """Yield (index, value) points without the inner ones of equal successive values."""
    last = len(values) - 1
    for index, value in enumerate(values):
        if index in (0, last) or not values[index - 1] == value == values[index + 1]:
            yield index, value


def _convert_day(day: ReportedDay) -> DrawnDay:
    return DrawnDay(
        day.started,
        day.verdict,
        get_set(day.step_time_seconds),
        get_set(day.expected_seconds),
    )


def _convert_current_run(outcome: ConfigurationOutcome) -> DrawnDay:
    """Convert the current run, without its step time if that is meaningless."""
    counts = not outcome.problems and outcome.verdict not in (
        "MISSING",
        "NOT_COMPARABLE",
    )
    seconds = outcome.get_metric("step_time_seconds") if counts else None
    return DrawnDay("", outcome.verdict, seconds, outcome.expected_seconds)


def _draw_daily_runs(
    picture: Picture, days: Sequence[DrawnDay], times: Sequence[float | None]
) -> list[str]:
    """Draw the daily runs with a step time; return the legend of the symbols used."""
    points: dict[str, list[tuple[float, float]]] = {symbol: [] for symbol in MEANINGS}
    for index, (day, value) in enumerate(zip(days, times, strict=True)):
        if value is not None:
            points[SYMBOLS.get(day.verdict, "square")].append((index, value))
    for symbol, symbol_points in points.items():
        picture.draw_points(symbol_points, symbol, MEANINGS[symbol][0])
    return [
        MEANINGS[symbol][1] for symbol, symbol_points in points.items() if symbol_points
    ]


def _make_date_scale(earlier: Sequence[DrawnDay]) -> Scale:
    """Create a scale with some dates; its last position is for the current run."""
    stride = math.ceil(len(earlier) / DATES)
    texts = [
        (float(index), _format_date(earlier[index])[5:])
        for index in range(0, len(earlier), stride)
    ]
    return Scale(-1, len(earlier) + 1, texts)


def _format_date(dated: DrawnDay | DrawnChange) -> str:
    return dated.started[:10] or "unknown"


def _describe_history(
    earlier: Sequence[DrawnDay],
    times: Sequence[float | None],
    changes: Sequence[DrawnChange],
) -> str:
    """Describe the chart of daily runs in a sentence."""
    measured = [value for value in times if value is not None]
    untimed = times[:-1].count(None)
    now = " and this run" if times[-1] is not None else ", without this run"
    levels = [
        f"{format_change(change.difference)} from {_format_date(change)} on"
        for change in changes
    ]
    runs = f"{formatting.count_noun(len(earlier), 'daily run')} from {_format_date(earlier[0])} to {_format_date(earlier[-1])}"
    return make_sentence(
        [
            f"{runs}{now}, {_format_span(measured)}",
            f"{untimed} without a step time" if untimed else "",
            f"{formatting.count_noun(len(levels), 'level change')}: {formatting.join_first(levels)}"
            if levels
            else "",
        ]
    )


def format_change(difference: float | None) -> str:
    """Format a fraction as a signed percentage; slower is positive."""
    return formatting.format_difference(None if difference is None else 1 + difference)


# --- the steps of a run, and their distribution ---------------------------------------

BINS = 12
"""Approximate number of bars for the values of a window."""


MOST_BINS = 120
"""Maximum number of bars across a chart; narrower bars would be invisible."""


Points = list[tuple[int, float]]

SLOW = "\N{BLACK UP-POINTING TRIANGLE} slow"
ABOVE = "\N{WHITE UP-POINTING TRIANGLE} above the scale"
NON_FINITE = "\N{MULTIPLICATION X} not finite"
"""Key entries for the symbols of steps."""


def draw_steps(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw step times with the window, its slow steps, the baseline and the limit."""
    columns = outcome.steps
    if columns is None:
        return None
    index, seconds = columns.index, columns.seconds
    points = _list_points(index, seconds)
    if len(points) < FEWEST:
        return None
    y = make_number_scale(
        *pad([*_select_core(outcome, points), *_list_line_seconds(outcome)])
    )
    slow = _list_points(
        [index[position] for position in columns.slow],
        [seconds[position] for position in columns.slow],
    )
    above = [point for point in points if point[1] > y.high and point not in slow]
    picture = Picture(make_number_scale(min(index), max(index)), y, "step", "seconds")
    first = max(outcome.window.first, min(index))
    last = min(outcome.window.last, max(index))
    if first < last:
        picture.fill_band(first, last)
    picture.draw_line(zip(index, seconds, strict=True))
    picture.draw_points(slow, "triangle", "slow")
    picture.draw_points(above, "triangle", "hollow")
    for kind, text, value in _list_lines(outcome):
        picture.draw_horizontal(value, kind, text, below=kind == "expected")
    return Chart(
        name,
        "Step times",
        _describe_steps(outcome, points, slow, y),
        picture.make_svg(name),
        _join_key({SLOW: slow, ABOVE: above}),
    )


def _list_points(index: Sequence[int], values: Sequence[float | None]) -> Points:
    """Return (step, value) points, without missing values."""
    return [
        (step, value)
        for step, value in zip(index, values, strict=True)
        if value is not None
    ]


def _join_key(drawn: Mapping[str, Sequence[object]]) -> str:
    """Join the key entries of the symbols that have points."""
    return ", ".join(meaning for meaning, points in drawn.items() if points)


def _select_core(outcome: ConfigurationOutcome, points: Points) -> list[float]:
    """Return the step times that determine the scale.

    These are the times in the window with stragglers clipped: the first steps include
    compilation and would stretch the scale. Without steps in the window, all times.
    """
    window = outcome.window
    inside = [value for step, value in points if window.first <= step <= window.last]
    return _clip(inside or [value for _, value in points], _list_line_seconds(outcome))


def _describe_steps(
    outcome: ConfigurationOutcome, points: Points, slow: Points, y: Scale
) -> str:
    """Describe the chart of step times in a sentence."""
    values = [value for _, value in points]
    above = sum(value > y.high for value in values)
    below = sum(value < y.low for value in values)
    listed = formatting.join_first([step for step, _ in slow])
    return make_sentence(
        [
            f"{formatting.count_noun(len(values), 'step')}, {_format_span(values)}",
            f"window {outcome.window.first} to {outcome.window.last}",
            f"{formatting.count_noun(len(slow), 'slow step')} ({listed})"
            if slow
            else "",
            f"{above} above the scale, which ends at {formatting.format_seconds(y.high)}"
            if above
            else "",
            f"{below} below the scale, which begins at {formatting.format_seconds(y.low)}"
            if below
            else "",
            *_describe_lines(outcome),
        ]
    )


def draw_distribution(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw a histogram of the step times in the window, with baseline and limit.

    Returns None for an invalid run and for fewer than `FEWEST` values.
    """
    times = sorted(
        value for value in outcome.window_seconds if value is not None and value > 0
    )
    if len(times) < FEWEST or outcome.problems:
        return None
    shown = _clip(times, _list_line_seconds(outcome))
    x = make_number_scale(*pad([*shown, *_list_line_seconds(outcome)], 0.03))
    width = _choose_width(x.high - x.low, shown[-1] - shown[0])
    counts = Counter(int((value - x.low) / width) for value in shown)
    picture = Picture(
        x, make_number_scale(0, max(counts.values()) * 1.25), "seconds", "steps"
    )
    for position, count in sorted(counts.items()):
        picture.fill_box(
            x.low + position * width, x.low + (position + 0.92) * width, 0, count
        )
    for row, (kind, text, value) in enumerate(_list_lines(outcome)):
        picture.draw_vertical(value, kind, text, row)
    return Chart(
        name,
        "Distribution in the window",
        _describe_distribution(outcome, times),
        picture.make_svg(name),
    )


def _choose_width(length: float, spread: float) -> float:
    """Choose the width of a bar in seconds.

    `length` is the range of the scale, `spread` the range of the values.
    """
    return (
        length / MOST_BINS
        if spread * MOST_BINS <= length * BINS
        else min(spread, length) / BINS
    )


def _describe_distribution(
    outcome: ConfigurationOutcome, times: Sequence[float]
) -> str:
    """Describe the chart of the distribution in a sentence."""
    count = len(times)
    median, low, high = (
        formatting.format_seconds(times[int(count * quantile)])
        for quantile in (0.5, 0.25, 0.75)
    )
    values = formatting.count_noun(count, "mean" if outcome.window_mean_of else "step")
    middle = f"median {median}, half of them from {low} to {high}"
    return make_sentence(
        [
            f"{values} of the window: {middle}, slowest {formatting.format_seconds(times[-1])}",
            *_describe_lines(outcome),
        ]
    )


# --- the loss of a run that did not train ---------------------------------------------

LARGEST_LOSS = 3
"""A loss above this multiple of the median is drawn at the edge."""


LARGEST_VALUE = 1e12
"""Limit of the scale: a diverging run may print a loss of 1e308."""


def draw_loss(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw the loss of a run that diverged or did not train; None for other runs."""
    columns = outcome.steps
    if columns is None or columns.loss is None:
        return None
    index, losses = columns.index, columns.loss
    points = _list_points(index, losses)
    non_finite = [index[position] for position in columns.no_loss or ()]
    if len(points) + len(non_finite) < FEWEST:
        return None
    values = sorted(loss for _, loss in points) or [1.0]
    highest = min(LARGEST_LOSS * abs(values[len(values) // 2]), LARGEST_VALUE)
    y = make_number_scale(
        *pad([max(min(value, highest), -LARGEST_VALUE) for value in values])
    )
    picture = Picture(make_number_scale(min(index), max(index)), y, "step", "loss")
    picture.draw_line(zip(index, losses, strict=True))
    picture.draw_points([(step, y.high) for step in non_finite], "cross", "regression")
    above = [(step, y.high) for step, loss in points if loss > y.high]
    picture.draw_points(above, "triangle", "hollow")
    return Chart(
        name,
        "Loss",
        _describe_loss(points, non_finite, index),
        picture.make_svg(name),
        _join_key({NON_FINITE: non_finite, ABOVE: above}),
    )


def _describe_loss(
    points: Points, non_finite: Sequence[int], index: Sequence[int]
) -> str:
    """Describe the chart of losses in a sentence."""
    losses = [loss for _, loss in points]
    first = f", first at step {non_finite[0]}" if non_finite else ""
    return make_sentence(
        [
            f"{formatting.count_noun(len(index), 'step')}",
            f"loss {losses[0]:.4g} at step {points[0][0]}, {losses[-1]:.4g} at step {points[-1][0]}"
            if losses
            else "",
            f"not finite at {formatting.count_noun(len(non_finite), 'step')}{first}"
            if non_finite
            else "",
        ]
    )
