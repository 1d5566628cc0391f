"""The charts of the page: a run's steps, their distribution and loss, and the nights
before it."""

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
"""What takes longer than the bound, or the median, times this is drawn at the edge: the
others stay readable."""

FEWEST = 2
"""Steps, nights or sizes of which a chart says more than a number."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart: what it is of, a sentence for those who do not see it, the
    element, and what its symbols mean; `id` is the sentence's."""

    id: str
    title: str
    sentence: str
    svg: str
    key: str = ""


def _list_lines(outcome: ConfigurationOutcome) -> Iterator[tuple[str, str, float]]:
    """Yield kind, text and seconds of the baseline and the bound, as far as there
    are."""
    for kind, text, value in (
        ("expected", "baseline", outcome.expected_seconds),
        ("bound", "bound", outcome.bound_seconds),
    ):
        if value:
            yield kind, text, value


def _clip(values: Sequence[float], lines: Sequence[float]) -> list[float]:
    """Return values of which none is far beyond the bound or their median: the scale is
    made for these."""
    # The median, so that a single night of ten times the time does not press all others
    # into one line.
    highest = BEYOND * max([sorted(values)[len(values) // 2], *lines])
    return [min(value, highest) for value in values]


def _list_line_seconds(outcome: ConfigurationOutcome) -> list[float]:
    """Return the seconds of these lines."""
    return [value for _, _, value in _list_lines(outcome)]


def _list_lines_in_words(outcome: ConfigurationOutcome) -> Iterator[str]:
    """Yield these lines in words."""
    for _, text, value in _list_lines(outcome):
        yield f"{text} {formatting.format_seconds(value)}"


def _format_span(values: Sequence[float]) -> str:
    """Return the smallest and the largest of some seconds."""
    return f"{formatting.format_seconds(min(values))} to {formatting.format_seconds(max(values))}"


def make_sentence(parts: Sequence[str]) -> str:
    """Return the parts that say something as one sentence."""
    return f"{'; '.join(part for part in parts if part)}."


# --- the nights before ----------------------------------------------------------------

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


@dataclass(frozen=True, slots=True)
class DrawnDay:
    """A night of a history as it is drawn."""

    started: str
    verdict: str
    step_seconds: float | None
    expected_seconds: float | None

    @property
    def seconds(self) -> float | None:
        """The step time, None if it is not above 0."""
        seconds = self.step_seconds
        return seconds if seconds is not None and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class DrawnChange:
    """A change of level in a history: the position of the night after it, and its
    date."""

    night: int
    started: str
    difference: float
    acknowledged: bool


def draw_history(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw a symbol for each night by its verdict, tonight's in a ring, and where the
    level changed."""
    earlier = list(map(_draw_day, outcome.history))
    nights = [*earlier, _draw_current_run(outcome)]
    times = [night.seconds for night in nights]
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
        if 0 <= change.night < len(nights)
    ]
    picture, shown = _draw_series(nights, times, changes, _make_date_scale(earlier))
    if times[-1] is not None:
        picture.draw_points([(len(nights) - 1, times[-1])], "ring", "hollow")
        shown = [*shown, "\N{LARGE CIRCLE} tonight"]
    return Chart(
        name,
        "History",
        _describe_history(earlier, times, changes),
        picture.make_svg(name),
        ", ".join(shown),
    )


def draw_days(
    nights: Sequence[DrawnDay], changes: Sequence[DrawnChange], name: str
) -> Chart | None:
    """Draw a symbol for each of some nights, none of which is tonight, and where the
    level changed."""
    times = [night.seconds for night in nights]
    if len(times) - times.count(None) < FEWEST:
        return None
    picture, shown = _draw_series(
        nights, times, changes, _make_date_scale(nights), WIDE
    )
    sentence = _describe_history(nights, [*times, None], changes).replace(
        ", not tonight", ""
    )
    return Chart(name, "Nights", sentence, picture.make_svg(name), ", ".join(shown))


def _draw_series(
    nights: Sequence[DrawnDay],
    times: Sequence[float | None],
    changes: Sequence[DrawnChange],
    dates: Scale,
    width: int = WIDTH,
) -> tuple[Picture, list[str]]:
    """Return a chart of nights with their baseline and changes, and what its symbols
    mean."""
    expected = [night.expected_seconds for night in nights]
    lines = [value for value in expected if value]
    y = make_number_scale(
        *pad(
            [*_clip([value for value in times if value is not None], lines), *lines],
            0.12,
        )
    )
    picture = Picture(dates, y, "", "seconds", width)
    picture.draw_line(_list_corners(expected), "expected")
    shown = _draw_daily_runs(picture, nights, times)
    for row, change in enumerate(changes):
        known_already = " known" if change.acknowledged else ""
        text = f"{format_change(change.difference)}{known_already}"
        picture.draw_vertical(change.night - 0.5, "change", text, row % 3)
    return picture, shown


def _list_corners(
    values: Sequence[float | None],
) -> Iterator[tuple[float, float | None]]:
    """Yield the points of a line that runs straight while a value stays."""
    for at, value in enumerate(values):
        if at in (0, len(values) - 1) or not values[at - 1] == value == values[at + 1]:
            yield at, value


def _draw_day(night: ReportedDay) -> DrawnDay:
    return DrawnDay(
        night.started,
        night.verdict,
        get_set(night.step_time_seconds),
        get_set(night.expected_seconds),
    )


def _draw_current_run(outcome: ConfigurationOutcome) -> DrawnDay:
    """Draw the current run as a night, without a step time if that means nothing."""
    counts = not outcome.problems and outcome.verdict not in (
        "MISSING",
        "NOT_COMPARABLE",
    )
    seconds = outcome.get_metric("step_time_seconds") if counts else None
    return DrawnDay("", outcome.verdict, seconds, outcome.expected_seconds)


def _draw_daily_runs(
    picture: Picture, nights: Sequence[DrawnDay], times: Sequence[float | None]
) -> list[str]:
    """Draw the nights that have a time; return what the symbols mean that were used."""
    points: dict[str, list[tuple[float, float]]] = {symbol: [] for symbol in MEANINGS}
    for at, (night, value) in enumerate(zip(nights, times, strict=True)):
        if value is not None:
            points[SYMBOLS.get(night.verdict, "square")].append((at, value))
    for symbol, of_symbol in points.items():
        picture.draw_points(of_symbol, symbol, MEANINGS[symbol][0])
    return [MEANINGS[symbol][1] for symbol, of_symbol in points.items() if of_symbol]


def _make_date_scale(earlier: Sequence[DrawnDay]) -> Scale:
    """Return a scale of nights, with the dates of some; the last place is tonight's."""
    stride = math.ceil(len(earlier) / DATES)
    texts = [
        (float(at), _format_date(earlier[at])[5:])
        for at in range(0, len(earlier), stride)
    ]
    return Scale(-1, len(earlier) + 1, texts)


def _format_date(dated: DrawnDay | DrawnChange) -> str:
    return dated.started[:10] or "unknown"


def _describe_history(
    earlier: Sequence[DrawnDay],
    times: Sequence[float | None],
    changes: Sequence[DrawnChange],
) -> str:
    measured = [value for value in times if value is not None]
    untimed = times[:-1].count(None)
    now = " and tonight" if times[-1] is not None else ", not tonight"
    levels = [
        f"{format_change(change.difference)} from {_format_date(change)} on"
        for change in changes
    ]
    nights = f"{formatting.count_noun(len(earlier), 'night')} from {_format_date(earlier[0])} to {_format_date(earlier[-1])}"
    return make_sentence(
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


# --- the steps of a run, and their distribution ---------------------------------------

BINS = 12
"""Bars of the values of a window, about."""


MOST_BINS = 120
"""Bars of a whole chart: narrower ones could not be seen."""


Points = list[tuple[int, float]]

SLOW = "\N{BLACK UP-POINTING TRIANGLE} slow"
ABOVE = "\N{WHITE UP-POINTING TRIANGLE} above the scale"
NO_NUMBER = "\N{MULTIPLICATION X} no finite number"
"""The symbols of steps, with what they mean."""


def draw_steps(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw the times of the steps, with the window, the slow steps of it, the baseline
    and the bound."""
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
        [index[at] for at in columns.slow], [seconds[at] for at in columns.slow]
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
        _join_signs({SLOW: slow, ABOVE: above}),
    )


def _list_points(index: Sequence[int], values: Sequence[float | None]) -> Points:
    """Return the steps with their values, without those that have none."""
    return [
        (step, value)
        for step, value in zip(index, values, strict=True)
        if value is not None
    ]


def _join_signs(drawn: Mapping[str, Sequence[object]]) -> str:
    """Return the meanings of the symbols that were drawn."""
    return ", ".join(meaning for meaning, points in drawn.items() if points)


def _select_core(outcome: ConfigurationOutcome, points: Points) -> list[float]:
    """Return the times that the scale is made for: those of the window, as the first
    steps compile; and not all of what a straggler took."""
    window = outcome.window
    inside = [value for step, value in points if window.first <= step <= window.last]
    # Without a window all steps: the first ones compile, and would stretch the scale.
    return _clip(inside or [value for _, value in points], _list_line_seconds(outcome))


def _describe_steps(
    outcome: ConfigurationOutcome, points: Points, slow: Points, y: Scale
) -> str:
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
            *_list_lines_in_words(outcome),
        ]
    )


def draw_distribution(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw how many values of the window fell where, beside the baseline and the
    bound."""
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
    for place, count in sorted(counts.items()):
        picture.fill_box(
            x.low + place * width, x.low + (place + 0.92) * width, 0, count
        )
    for row, (kind, text, value) in enumerate(_list_lines(outcome)):
        picture.draw_vertical(value, kind, text, row)
    return Chart(
        name,
        "Distribution in the window",
        _describe_distribution(outcome, times),
        picture.make_svg(name),
    )


def _choose_width(whole: float, spread: float) -> float:
    """Return how wide a bar is, in seconds, on a scale of this length for values of
    this spread."""
    return (
        whole / MOST_BINS
        if spread * MOST_BINS <= whole * BINS
        else min(spread, whole) / BINS
    )


def _describe_distribution(
    outcome: ConfigurationOutcome, times: Sequence[float]
) -> str:
    count = len(times)
    median, low, high = (
        formatting.format_seconds(times[int(count * part)])
        for part in (0.5, 0.25, 0.75)
    )
    values = formatting.count_noun(count, "mean" if outcome.window_mean_of else "step")
    middle = f"median {median}, half of them from {low} to {high}"
    return make_sentence(
        [
            f"{values} of the window: {middle}, slowest {formatting.format_seconds(times[-1])}",
            *_list_lines_in_words(outcome),
        ]
    )


# --- the loss of a run that did not train ---------------------------------------------

LARGEST_LOSS = 3
"""What is more than this multiple of the median is drawn at the edge."""


BOUNDLESS = 1e12
"""No scale reaches further: a run that diverges may print 1e308."""


def draw_loss(outcome: ConfigurationOutcome, name: str) -> Chart | None:
    """Draw the loss of the steps of a run that diverged or did not train; None for any
    other, and without losses."""
    columns = outcome.steps
    if columns is None or columns.loss is None:
        return None
    index, losses = columns.index, columns.loss
    points = _list_points(index, losses)
    no_numbers = [index[place] for place in columns.no_loss or ()]
    if len(points) + len(no_numbers) < FEWEST:
        return None
    values = sorted(loss for _, loss in points) or [1.0]
    highest = min(LARGEST_LOSS * abs(values[len(values) // 2]), BOUNDLESS)
    y = make_number_scale(
        *pad([max(min(value, highest), -BOUNDLESS) for value in values])
    )
    picture = Picture(make_number_scale(min(index), max(index)), y, "step", "loss")
    picture.draw_line(zip(index, losses, strict=True))
    picture.draw_points([(step, y.high) for step in no_numbers], "cross", "regression")
    above = [(step, y.high) for step, loss in points if loss > y.high]
    picture.draw_points(above, "triangle", "hollow")
    return Chart(
        name,
        "Loss",
        _describe_loss(points, no_numbers, index),
        picture.make_svg(name),
        _join_signs({NO_NUMBER: no_numbers, ABOVE: above}),
    )


def _describe_loss(
    points: Points, no_numbers: Sequence[int], index: Sequence[int]
) -> str:
    losses = [loss for _, loss in points]
    first = f", first at step {no_numbers[0]}" if no_numbers else ""
    return make_sentence(
        [
            f"{formatting.count_noun(len(index), 'step')}",
            f"loss {losses[0]:.4g} at step {points[0][0]}, {losses[-1]:.4g} at step {points[-1][0]}"
            if losses
            else "",
            f"no finite number at {formatting.count_noun(len(no_numbers), 'step')}{first}"
            if no_numbers
            else "",
        ]
    )
