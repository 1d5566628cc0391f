"""What charts say and show: the sentences word for word, and no value that breaks
them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.outcomes import check, level_change, missing, told, with_fields

from pytest_llmbench.report.html.charts import (
    DrawnChange,
    DrawnDay,
    draw_days,
    draw_distribution,
    draw_history,
    draw_loss,
    draw_steps,
)
from pytest_llmbench.report.html.curves import draw_curve
from pytest_llmbench.report.html.drawing import (
    SYMBOLS,
    Picture,
    make_number_scale,
    shorten_path,
)
from pytest_llmbench.report.outcome_documents import ConfigurationOutcome

WINDOW = {"first": 11, "last": 44, "statistic": "mean", "text": ""}


def ran(
    seconds: Sequence[float | None], slow: list[int] | None = None, **fields: Any
) -> ConfigurationOutcome:
    """Create an outcome with the given step times."""
    steps = {"index": list(range(len(seconds))), "seconds": seconds, "slow": slow or []}
    counted = [value for value in seconds[11:45] if value]
    lines = {"expected_seconds": 10.0, "bound_seconds": 10.5}
    usual = {
        "steps": steps,
        "window": WINDOW,
        "window_seconds": counted,
        "problems": [],
        "verdict": "PASS",
    }
    return told(
        **{
            **usual,
            **lines,
            "metrics": {"step_time_seconds": step_time(10.0)},
            "history": [],
            **fields,
        }
    )


def step_time(seconds: float | None) -> dict[str, Any]:
    return {"value": seconds, "standard_deviation": None, "unit": "s"}


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("text")]  # noqa: S314 (our own)


def shapes(svg: str, kind: str) -> list[str]:
    """Return the SVG paths with a class."""
    root = ElementTree.fromstring(svg)  # noqa: S314 (our own)
    return [
        element.attrib["d"]
        for element in root.iter("path")
        if element.attrib["class"] == kind
    ]


def make_day(
    seconds: float | None = 10.0, verdict: str = "PASS", day: int = 1, **changes: Any
) -> dict[str, Any]:
    started = f"2025-10-{day:02}T03:00:00+00:00"
    return {
        "started": started,
        "verdict": verdict,
        "step_time_seconds": seconds,
        "expected_seconds": 10.0,
        **changes,
    }


# --- steps ----------------------------------------------------------------------------


def test_steps_chart_is_described() -> None:
    chart = draw_steps(ran([31.0, *[10.0] * 22, 12.5, *[10.1] * 26], slow=[23]), "a")
    assert chart is not None
    assert chart.sentence == (
        "50 steps, 10.00 s to 31.00 s; window 11 to 44; 1 slow step (23); 1 above the scale, which ends at 13.00 s; "
        "baseline 10.00 s; limit 10.50 s."
    )
    assert chart.key == "▲ slow, △ above the scale"
    assert 'aria-labelledby="a"' in chart.svg


TIMES = st.lists(st.none() | st.floats(1e-6, 1e6), min_size=2, max_size=60)


@pytest.mark.slow
@given(
    times=TIMES,
    expected=st.none() | st.floats(1e-6, 1e6),
    tonight=st.none() | st.floats(1e-6, 1e6),
)
def test_history_points_stay_within_the_chart(
    times: list[float | None], expected: float | None, tonight: float | None
) -> None:
    described = ran(
        times,
        expected_seconds=expected,
        bound_seconds=expected and expected * 1.05,
        metrics={"step_time_seconds": step_time(tonight)},
        history=[make_day(value) for value in times],
    )
    for chart in (
        draw_steps(described, "a"),
        draw_distribution(described, "a"),
        draw_history(described, "a"),
    ):
        if chart is not None:
            width, height = (
                float(ElementTree.fromstring(chart.svg).attrib[name])  # noqa: S314
                for name in ("width", "height")
            )
            for path in itertools.chain.from_iterable(
                shapes(chart.svg, kind) for kind in ("line", "expected", "bar")
            ):
                for left, top in re.findall(r"[ML](\S+?) ([\d.]+)", path):
                    assert 0 <= float(left) <= width
                    assert 0 <= float(top) <= height


# --- distribution ---------------------------------------------------------------------


def test_distribution_chart_is_described() -> None:
    chart = draw_distribution(ran([10.0] * 20 + [10.2] * 30), "a")
    assert chart is not None
    assert chart.sentence == (
        "34 steps of the window: median 10.20 s, half of them from 10.00 s to 10.20 s, slowest 10.20 s; "
        "baseline 10.00 s; limit 10.50 s."
    )
    assert len(shapes(chart.svg, "bar")) == 2


def test_invalid_run_has_no_distribution_chart() -> None:
    assert (
        draw_distribution(
            ran([10.0] * 50, problems=[{"code": "diverged", "text": "", "line": 0}]),
            "a",
        )
        is None
    )


# --- history --------------------------------------------------------------------------


def test_history_chart_is_described() -> None:
    days = [
        make_day(day=1),
        make_day(None, "INVALID", 2),
        make_day(10.8, "REGRESSION", 3),
    ]
    change = level_change(0.08, started="2025-10-03T03:00:00+00:00", night=2)
    chart = draw_history(ran([], history=days, changes=[change]), "a")
    assert chart is not None
    assert chart.sentence == (
        "3 daily runs from 2025-10-01 to 2025-10-03 and this run, 10.00 s to 10.80 s; 1 without a step time; "
        "1 level change: +8.0 % from 2025-10-03 on."
    )
    assert chart.key == "● pass, ✕ regression, ◯ this run"
    assert texts(chart.svg).count("+8.0 %") == 1


def test_history_symbols_show_verdicts_and_the_current_run() -> None:
    verdicts = ("PASS", "INCONCLUSIVE", "REGRESSION", "NOT_COMPARABLE", "something new")
    chart = draw_history(
        ran([], history=[make_day(verdict=verdict) for verdict in verdicts]), "a"
    )
    assert chart is not None
    counts = {
        kind: sum(path.count(SYMBOLS[symbol]) for path in shapes(chart.svg, kind))
        for kind, symbol in (
            ("pass", "dot"),
            ("unclear", "diamond"),
            ("other", "square"),
        )
    }
    assert counts == {"pass": 2, "unclear": 1, "other": 2}
    assert len(shapes(chart.svg, "regression")) == len(shapes(chart.svg, "hollow")) == 1


def test_history_chart_needs_earlier_runs() -> None:
    assert draw_history(ran([10.0] * 50), "a") is None


# --- scaling --------------------------------------------------------------------------

ROW = {
    "id": "f-16",
    "gpus": 16,
    "reference": "f-8",
    "reference_gpus": 8,
    "baseline": "recorded",
}


def member(gpus: int, seconds: float, published: float | None) -> ConfigurationOutcome:
    """Make an outcome with a recorded baseline of these seconds."""
    described = told(identifier=f"f-{gpus}", expected_seconds=seconds)
    baseline = replace(described.baseline, kind="recorded", published_seconds=published)
    return replace(
        described,
        configuration=replace(described.configuration, gpus=gpus),
        baseline=baseline,
    )


def test_scaling_chart_shows_recorded_and_documented_curves() -> None:
    row = {**ROW, "measured": 0.931, "documented": 0.97, "verdict": "REGRESSION"}
    family = with_fields(check(), members=["f-8", "f-16", "f-32"], compared=[row])
    own = [
        member(gpus, 9.0, seconds)
        for gpus, seconds in ((8, 10.0), (16, 10.2), (32, None))
    ]
    chart = draw_curve(family, {one.id: one for one in own}, "a")
    assert chart is not None
    assert "16 GPUs 93.1% (recorded 97.0%, documented 98.0%)" in chart.sentence
    assert [text.split(" ")[1] for text in chart.key.split(", ")] == [
        "measured",
        "recorded",
        "documented",
    ]
    alone = draw_curve(family, {}, "a")
    assert alone is not None
    assert "documented" not in alone.sentence + alone.key


# --- drawing --------------------------------------------------------------------------


def test_percentage_labels_have_enough_digits() -> None:
    assert [
        text for _, text in make_number_scale(0.985, 1.005, percent=True).texts
    ] == [
        "98.5%",
        "99.0%",
        "99.5%",
        "100.0%",
        "100.5%",
    ]


def find_end(path: str) -> tuple[float, float]:
    """Return the last point of an SVG path of relative commands.

    It begins at (0, 0).
    """
    x = y = start_x = start_y = 0.0
    for command, text in re.findall(r"([a-z])([^a-z]*)", path):
        numbers = [float(number) for number in re.findall(r"-?(?:\d*\.)?\d+", text)]
        if command == "z":
            x, y = start_x, start_y
        elif command == "h":
            x += numbers[0]
        elif command == "v":
            y += numbers[0]
        else:  # an arc has five more numbers before each point
            size = 7 if command == "a" else 2
            assert len(numbers) % size == 0
            for first in range(0, len(numbers), size):
                x += numbers[first + size - 2]
                y += numbers[first + size - 1]
        if command == "m":
            start_x, start_y = x, y
    return x, y


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbol_ends_at_its_point(symbol: str) -> None:
    assert find_end(SYMBOLS[symbol]) == (0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 813), st.integers(0, 186)), min_size=1),
    st.sampled_from(sorted(SYMBOLS)),
)
def test_symbols_are_drawn_at_their_points(
    points: list[tuple[int, int]], symbol: str
) -> None:
    scale = make_number_scale(0, 1000)
    picture = Picture(scale, scale, "", "")
    tenths = [(x + 0.1, y + 0.2) for x, y in points]
    picture.draw_points(tenths, symbol, "pass")
    (path,) = shapes(picture.make_svg("a"), "pass")
    steps = path.split(shorten_path(SYMBOLS[symbol]))
    assert steps.pop() == ""
    expected = [picture._locate(*point) for point in tenths]
    drawn = [find_end("".join(steps[: index + 1])) for index in range(len(steps))]
    assert drawn == [pytest.approx(point) for point in expected]


def test_shortened_path_has_no_needless_spaces_and_zeros() -> None:
    assert shorten_path("m0.5 10.5l1 -0.4 10 0.2 0 -10") == "m0.5 10.5l1-.4 10 .2 0-10"


# --- the loss of a run that did not train ---------------------------------------------


def lost(
    losses: Sequence[float | None], no_loss: Sequence[int] = ()
) -> ConfigurationOutcome:
    columns = {
        "index": list(range(len(losses))),
        "seconds": [10.0] * len(losses),
        "slow": [],
        "loss": list(losses),
    }
    return told(steps={**columns, "no_loss": list(no_loss)})


def test_loss_chart_describes_the_first_non_finite_step() -> None:
    chart = draw_loss(lost([9.5, 7.0, 5.0, None, None, 4.0], [3, 4]), "loss")
    assert chart is not None
    assert chart.sentence == (
        "6 steps; loss 9.5 at step 0, 4 at step 5; not finite at 2 steps, first at step 3."
    )
    assert chart.key == "\N{MULTIPLICATION X} not finite"


def test_run_without_loss_values_has_no_loss_chart() -> None:
    assert (
        draw_loss(
            told(steps={"index": [1, 2], "seconds": [1.0, 1.0], "slow": []}), "loss"
        )
        is None
    )
    assert draw_loss(missing(), "loss") is None


# --- nights without tonight -----------------------------------------------------------


def test_history_chart_on_the_site_marks_no_current_run() -> None:
    days = [
        DrawnDay(f"2026-01-{day:02}", "PASS", value, 10.0)
        for day, value in enumerate((10.0, 10.1, None, 10.8), 1)
    ]
    changes = [DrawnChange(3, "2026-01-04", 0.08, acknowledged=False)]
    chart = draw_days(days, changes, "chart")
    assert chart is not None
    assert chart.sentence == (
        "4 daily runs from 2026-01-01 to 2026-01-04, 10.00 s to 10.80 s; 1 without a step time; "
        "1 level change: +8.0 % from 2026-01-04 on."
    )
    assert "this run" not in chart.key
    assert draw_days(days[2:], [], "chart") is None
