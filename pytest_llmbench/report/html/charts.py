"""The charts of the page: daily runs, steps, their distribution, and loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

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
    median = sorted(values)[len(values) // 2]
    highest = BEYOND * max([median, *lines])
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
    low, high = min(values), max(values)
    return f"{formatting.format_seconds(low)} to {formatting.format_seconds(high)}"


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


# A site of a year has 125,000, which dataclasses would take four times as long to make.
class DrawnDay(Struct, frozen=True):
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
    current = times[-1]
    if current is not None:
        picture.draw_points([(len(days) - 1, current)], "ring", "hollow")
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
    # None is the step time of the current run, which does not exist here.
    sentence = _describe_history(days, [*times, None], changes)
    sentence = sentence.replace(", without this run", "")
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
    baselines = [value for value in expected if value]
    measured = [value for value in times if value is not None]
    low, high = pad([*_clip(measured, baselines), *baselines], share=0.12)
    y = make_number_scale(low, high)
    picture = Picture(dates, y, x_name="", y_name="seconds", width=width)
    picture.draw_line(_list_corners(expected), "expected")
    key = _draw_daily_runs(picture, days, times)
    for row, change in enumerate(changes):
        acknowledged = " known" if change.acknowledged else ""
        text = f"{formatting.format_fraction(change.difference)}{acknowledged}"
        # Between two runs; the labels of successive changes must not overlap.
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
    is_meaningless = outcome.problems or outcome.verdict in (
        "MISSING",
        "NOT_COMPARABLE",
    )
    seconds = None if is_meaningless else outcome.get_metric("step_time_seconds")
    return DrawnDay("", outcome.verdict, seconds, outcome.expected_seconds)


def _draw_daily_runs(
    picture: Picture, days: Sequence[DrawnDay], times: Sequence[float | None]
) -> list[str]:
    """Draw the daily runs with a step time; return the legend of the symbols used."""
    points_by_symbol: dict[str, list[tuple[float, float]]] = {}
    for index, (day, value) in enumerate(zip(days, times, strict=True)):
        if value is not None:
            symbol = SYMBOLS.get(day.verdict, "square")
            points_by_symbol.setdefault(symbol, []).append((index, value))
    legend = []
    for symbol, (kind, meaning) in MEANINGS.items():
        if symbol in points_by_symbol:
            picture.draw_points(points_by_symbol[symbol], symbol, kind)
            legend.append(meaning)
    return legend


def _make_date_scale(earlier: Sequence[DrawnDay]) -> Scale:
    """Create the x axis of daily runs, with a position for the current run at the end.

    At most about `DATES` of the runs are labelled with their date.
    """
    stride = math.ceil(len(earlier) / DATES)
    ticks = []
    for index in range(0, len(earlier), stride):
        month_and_day = _format_date(earlier[index])[5:]
        ticks.append((float(index), month_and_day))
    return Scale(-1, len(earlier) + 1, ticks)


def _format_date(dated: DrawnDay | DrawnChange) -> str:
    """Return the date of a run or a change: `2025-11-20`."""
    return dated.started[:10] or "unknown"


def _describe_history(
    earlier: Sequence[DrawnDay],
    times: Sequence[float | None],
    changes: Sequence[DrawnChange],
) -> str:
    """Describe the chart of daily runs in a sentence.

    `times` are the step times of the earlier runs, and last that of the current run.
    """
    *earlier_times, current = times
    first_date, last_date = _format_date(earlier[0]), _format_date(earlier[-1])
    runs = formatting.count_noun(len(earlier), "daily run")
    this_run = " and this run" if current is not None else ", without this run"
    span = _format_span([value for value in times if value is not None])
    texts = [f"{runs} from {first_date} to {last_date}{this_run}, {span}"]
    untimed = earlier_times.count(None)
    if untimed:
        texts.append(f"{untimed} without a step time")
    if changes:
        count = formatting.count_noun(len(changes), "level change")
        levels = [
            f"{formatting.format_fraction(change.difference)} from {_format_date(change)} on"
            for change in changes
        ]
        texts.append(f"{count}: {formatting.join_first(levels)}")
    return make_sentence(texts)


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
    """Draw step times with the window, its slow steps, the baseline and the limit.

    Returns None if there are fewer than `FEWEST` step times.
    """
    columns = outcome.steps
    if columns is None:
        return None
    index, seconds = columns.index, columns.seconds
    points = _list_points(index, seconds)
    if len(points) < FEWEST:
        return None
    core_seconds = _select_core(outcome, points)
    low, high = pad([*core_seconds, *_list_line_seconds(outcome)])
    y = make_number_scale(low, high)
    slow_points = _list_points(
        [index[position] for position in columns.slow],
        [seconds[position] for position in columns.slow],
    )
    # Times above the scale are drawn at its upper edge.
    points_above = [
        (step, value)
        for step, value in points
        if value > y.high and (step, value) not in slow_points
    ]
    first_step, last_step = min(index), max(index)
    x = make_number_scale(first_step, last_step)
    picture = Picture(x, y, x_name="step", y_name="seconds")
    first = max(outcome.window.first, first_step)
    last = min(outcome.window.last, last_step)
    if first < last:
        picture.fill_band(first, last)
    picture.draw_line(zip(index, seconds, strict=True))
    picture.draw_points(slow_points, "triangle", "slow")
    picture.draw_points(points_above, "triangle", "hollow")
    for kind, text, value in _list_lines(outcome):
        picture.draw_horizontal(value, kind, text, below=kind == "expected")
    return Chart(
        name,
        "Step times",
        _describe_steps(outcome, points, slow_points, y),
        picture.make_svg(name),
        _join_key({SLOW: slow_points, ABOVE: points_above}),
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
    values = [value for step, value in points if window.first <= step <= window.last]
    if not values:
        values = [value for _, value in points]
    return _clip(values, _list_line_seconds(outcome))


def _describe_steps(
    outcome: ConfigurationOutcome, points: Points, slow: Points, y: Scale
) -> str:
    """Describe the chart of step times in a sentence."""
    values = [value for _, value in points]
    texts = [
        f"{formatting.count_noun(len(values), 'step')}, {_format_span(values)}",
        f"window {outcome.window.first} to {outcome.window.last}",
    ]
    if slow:
        steps = formatting.join_first([step for step, _ in slow])
        texts.append(f"{formatting.count_noun(len(slow), 'slow step')} ({steps})")
    above = sum(value > y.high for value in values)
    if above:
        end = formatting.format_seconds(y.high)
        texts.append(f"{above} above the scale, which ends at {end}")
    below = sum(value < y.low for value in values)
    if below:
        start = formatting.format_seconds(y.low)
        texts.append(f"{below} below the scale, which begins at {start}")
    return make_sentence([*texts, *_describe_lines(outcome)])


def draw_distribution(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw a histogram of the step times in the window, with baseline and limit.

    Returns None for an invalid run and for fewer than `FEWEST` values.
    """
    times = sorted(
        value for value in outcome.window_seconds if value is not None and value > 0
    )
    if len(times) < FEWEST or outcome.problems:
        return None
    lines = _list_line_seconds(outcome)
    shown = _clip(times, lines)
    low, high = pad([*shown, *lines], share=0.03)
    x = make_number_scale(low, high)
    width = _choose_width(length=x.high - x.low, spread=shown[-1] - shown[0])
    counts = Counter(int((value - x.low) / width) for value in shown)
    # The space above the highest bar is for the labels of the lines.
    y = make_number_scale(0, max(counts.values()) * 1.25)
    picture = Picture(x, y, x_name="seconds", y_name="steps")
    for position, count in sorted(counts.items()):
        start = x.low + position * width
        end = x.low + (position + 0.92) * width  # a gap before the next bar
        picture.fill_box(start, end, bottom=0, top=count)
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
    # BINS bars for the values, unless the whole scale then had more than MOST_BINS.
    if spread * MOST_BINS <= length * BINS:
        return length / MOST_BINS
    return min(spread, length) / BINS


def _describe_distribution(
    outcome: ConfigurationOutcome, times: Sequence[float]
) -> str:
    """Describe the chart of the distribution in a sentence; `times` are sorted."""
    count = len(times)
    median, low, high = (
        formatting.format_seconds(times[int(count * quantile)])
        for quantile in (0.5, 0.25, 0.75)
    )
    slowest = formatting.format_seconds(times[-1])
    values = formatting.count_noun(count, "mean" if outcome.window_mean_of else "step")
    middle = f"median {median}, half of them from {low} to {high}"
    text = f"{values} of the window: {middle}, slowest {slowest}"
    return make_sentence([text, *_describe_lines(outcome)])


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
    # Without a finite loss, the scale does not matter.
    values = sorted(loss for _, loss in points) or [1.0]
    median = values[len(values) // 2]
    highest = min(LARGEST_LOSS * abs(median), LARGEST_VALUE)
    clipped = [max(min(value, highest), -LARGEST_VALUE) for value in values]
    low, high = pad(clipped)
    x, y = make_number_scale(min(index), max(index)), make_number_scale(low, high)
    picture = Picture(x, y, x_name="step", y_name="loss")
    picture.draw_line(zip(index, losses, strict=True))
    picture.draw_points([(step, y.high) for step in non_finite], "cross", "regression")
    points_above = [(step, y.high) for step, loss in points if loss > y.high]
    picture.draw_points(points_above, "triangle", "hollow")
    return Chart(
        name,
        "Loss",
        _describe_loss(points, non_finite, index),
        picture.make_svg(name),
        _join_key({NON_FINITE: non_finite, ABOVE: points_above}),
    )


def _describe_loss(
    points: Points, non_finite: Sequence[int], index: Sequence[int]
) -> str:
    """Describe the chart of losses in a sentence.

    `points` are the finite losses, `non_finite` the other steps of `index`.
    """
    texts = [formatting.count_noun(len(index), "step")]
    if points:
        first_step, first_loss = points[0]
        last_step, last_loss = points[-1]
        texts.append(
            f"loss {first_loss:.4g} at step {first_step}, {last_loss:.4g} at step {last_step}"
        )
    if non_finite:
        count = formatting.count_noun(len(non_finite), "step")
        texts.append(f"not finite at {count}, first at step {non_finite[0]}")
    return make_sentence(texts)
