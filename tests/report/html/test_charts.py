"""What charts say and show: the sentences word for word, and no value that breaks them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmbench.report.html.charts import draw_distribution, draw_history, draw_loss, draw_nights, draw_steps
from pytest_llmbench.report.html.curves import draw_curve
from pytest_llmbench.report.html.drawing import Picture, Scale, make_number_scale

WINDOW = {"first": 11, "last": 44, "statistic": "mean", "text": ""}


def ran(seconds: Sequence[float | None], slow: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    """Return what a chart reads of an outcome whose steps took so long."""
    told = {"index": list(range(len(seconds))), "seconds": seconds, "slow": slow or []}
    counted = [value for value in seconds[11:45] if value]
    lines = {"expected_seconds": 10.0, "bound_seconds": 10.5}
    usual = {"steps": told, "window": WINDOW, "window_seconds": counted, "problems": [], "verdict": "PASS"}
    return {**usual, **lines, "metrics": {"step_time_seconds": {"value": 10.0}}, **changes}


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("text")]  # noqa: S314 (our own)


def shapes(svg: str, kind: str) -> list[str]:
    """Return the paths of a kind."""
    root = ElementTree.fromstring(svg)  # noqa: S314 (our own)
    return [element.attrib["d"] for element in root.iter("path") if element.attrib["class"] == kind]


def night(seconds: float | None = 10.0, verdict: str = "PASS", day: int = 1, **changes: Any) -> dict[str, Any]:
    started = f"2025-10-{day:02}T03:00:00+00:00"
    return {"started": started, "verdict": verdict, "step_time_seconds": seconds, "expected_seconds": 10.0, **changes}


# --- steps ------------------------------------------------------------------------------------------------


def test_the_sentence_of_the_steps() -> None:
    chart = draw_steps(ran([31.0, *[10.0] * 22, 12.5, *[10.1] * 26], slow=[23]), "a")
    assert chart is not None
    assert chart.sentence == (
        "50 steps, 10.00 s to 31.00 s; window 11 to 44; 1 slow step (23); 1 above the scale, which ends at 13.00 s; "
        "baseline 10.00 s; bound 10.50 s."
    )
    assert chart.key == "▲ slow, △ above the scale"
    assert 'aria-labelledby="a"' in chart.svg


def test_the_chart_shows_window_stragglers_baseline_and_bound() -> None:
    chart = draw_steps(ran([*[10.0] * 23, 12.5, 30.0, *[10.1] * 25], slow=[23, 24]), "a")
    assert chart is not None
    for kind in ("window", "line", "slow", "expected", "bound"):
        assert len(shapes(chart.svg, kind)) == 1, kind
    assert shapes(chart.svg, "slow")[0].count("M") == 2
    assert {"baseline", "bound", "step", "seconds"} <= set(texts(chart.svg))


def test_a_step_without_a_time_interrupts_the_line() -> None:
    whole, torn = (draw_steps(ran([10.0, 10.1, value, 10.2, 10.0]), "a") for value in (10.0, None))
    assert whole is not None
    assert torn is not None
    assert shapes(whole.svg, "line")[0].count("M") == 1
    assert shapes(torn.svg, "line")[0].count("M") == 2


def test_a_run_that_ended_before_its_window_shows_none() -> None:
    chart = draw_steps(ran([10.0] * 8), "a")
    assert chart is not None
    assert shapes(chart.svg, "window") == []


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_steps_are_no_chart(count: int) -> None:
    assert draw_steps(ran([10.0] * count), "a") is None
    assert draw_distribution(ran([10.0] * count), "a") is None


TIMES = st.lists(st.none() | st.floats(1e-6, 1e6), min_size=2, max_size=60)


@pytest.mark.slow
@given(times=TIMES, expected=st.none() | st.floats(1e-6, 1e6), tonight=st.none() | st.floats(1e-6, 1e6))
def test_every_time_stays_within_the_chart(
    times: list[float | None], expected: float | None, tonight: float | None
) -> None:
    one = ran(times, expected_seconds=expected, bound_seconds=expected and expected * 1.05)
    one["metrics"] = {"step_time_seconds": {"value": tonight}}
    one["history"] = [night(value) for value in times]
    for chart in (draw_steps(one, "a"), draw_distribution(one, "a"), draw_history(one, "a")):
        if chart is not None:
            width, height = (float(ElementTree.fromstring(chart.svg).attrib[name]) for name in ("width", "height"))  # noqa: S314
            for path in itertools.chain.from_iterable(shapes(chart.svg, kind) for kind in ("line", "expected", "bar")):
                for left, top in re.findall(r"[ML](\S+?) ([\d.]+)", path):
                    assert 0 <= float(left) <= width
                    assert 0 <= float(top) <= height


# --- distribution -----------------------------------------------------------------------------------------


def test_the_sentence_of_the_distribution() -> None:
    chart = draw_distribution(ran([10.0] * 20 + [10.2] * 30), "a")
    assert chart is not None
    assert chart.sentence == (
        "34 steps of the window: median 10.20 s, half of them from 10.00 s to 10.20 s, slowest 10.20 s; "
        "baseline 10.00 s; bound 10.50 s."
    )
    assert len(shapes(chart.svg, "bar")) == 2


def test_the_bars_count_every_step() -> None:
    chart = draw_distribution(ran([10.0] * 20 + [12.0] * 10 + [99.0] * 20), "a")
    assert chart is not None
    heights = [float(low) - float(high) for low, high in re.findall(r"M\S+ (\S+?)H\S+?V(\S+?)H", chart.svg)]
    assert [value / heights[0] for value in heights] == pytest.approx([1, 10 / 9, 15 / 9], abs=0.01)


def test_a_run_that_means_nothing_has_no_distribution() -> None:
    assert draw_distribution(ran([10.0] * 50, problems=[{"code": "diverged", "text": "", "line": 0}]), "a") is None


# --- history ----------------------------------------------------------------------------------------------


def test_the_sentence_of_the_history() -> None:
    nights = [night(day=1), night(None, "INVALID", 2), night(10.8, "REGRESSION", 3)]
    change = {"started": "2025-10-03T03:00:00+00:00", "night": 2, "difference": 0.08}
    chart = draw_history(ran([], history=nights, changes=[change]), "a")
    assert chart is not None
    assert chart.sentence == (
        "3 nights from 2025-10-01 to 2025-10-03 and tonight, 10.00 s to 10.80 s; 1 without a step time; "
        "1 change of level: +8.0 % from 2025-10-03 on."
    )
    assert chart.key == "● pass, ✕ regression, ◯ tonight"
    assert texts(chart.svg).count("+8.0 %") == 1


def test_the_line_of_the_baseline_has_its_corners_only() -> None:
    nights = [{**night(day=day), "expected_seconds": 10.0 if day < 9 else 9.0} for day in range(1, 21)]
    chart = draw_history(ran([], history=nights, expected_seconds=9.0), "a")
    assert chart is not None
    (line,) = shapes(chart.svg, "expected")
    places = [float(x) for x in re.findall(r"[ML](\S+)", line)]
    assert len(places) == 4
    assert places[2] - places[1] == pytest.approx((places[3] - places[0]) / 20, abs=0.2)


def test_every_verdict_has_its_symbol_and_tonight_a_ring() -> None:
    verdicts = ("PASS", "INCONCLUSIVE", "REGRESSION", "NOT_COMPARABLE", "something new")
    chart = draw_history(ran([], history=[night(verdict=verdict) for verdict in verdicts]), "a")
    assert chart is not None
    counts = {kind: sum(path.count("M") for path in shapes(chart.svg, kind)) for kind in ("pass", "unclear", "other")}
    assert counts == {"pass": 2, "unclear": 1, "other": 2}
    assert len(shapes(chart.svg, "regression")) == len(shapes(chart.svg, "hollow")) == 1


def test_tonights_run_counts_only_if_it_means_something() -> None:
    nights = [night(), night()]
    chart = draw_history(ran([], history=nights, problems=[{"code": "diverged", "text": "", "line": 0}]), "a")
    assert chart is not None
    assert ", not tonight, 10.00 s" in chart.sentence
    assert shapes(chart.svg, "hollow") == []


def test_a_change_tonight_and_one_that_is_known() -> None:
    changes = [
        {"started": "2025-10-03", "night": 2, "difference": 0.03, "acknowledged": {"reason": "driver"}},
        {"started": "2025-10-04", "night": 9, "difference": 0.03},
    ]
    chart = draw_history(ran([], history=[night(), night()], changes=changes), "a")
    assert chart is not None
    assert "+3.0 % known" in texts(chart.svg)
    assert len(shapes(chart.svg, "change")) == 1  # the other one is of no night that is known here


def test_without_older_nights_there_is_no_history() -> None:
    assert draw_history(ran([10.0] * 50), "a") is None


# --- scaling ----------------------------------------------------------------------------------------------

ROW = {"id": "f-16", "gpus": 16, "reference": "f-8", "reference_gpus": 8, "baseline": "published"}


def member(gpus: int, seconds: float) -> dict[str, Any]:
    return {
        "id": f"f-{gpus}",
        "configuration": {"gpus": gpus},
        "expected_seconds": seconds,
        "baseline": {"kind": "published"},
    }


def test_a_family_shows_measured_and_documented_sizes() -> None:
    check = {
        "check": "weak-scaling",
        "members": ["f-8", "f-16", "f-32"],
        "compared": [{**ROW, "measured": 0.931, "documented": 0.987, "verdict": "REGRESSION"}],
    }
    chart = draw_curve(check, {one["id"]: one for one in (member(8, 10.0), member(32, 12.5))}, "a")
    assert chart is not None
    assert chart.sentence == (
        "Against the smallest size that was compared: 8 GPUs 100.0% (documented 100.0%), "
        "16 GPUs 93.1% (documented 98.7%)."
    )
    assert shapes(chart.svg, "hollow")[0].count("M") == 3  # 32 GPUs: documented, 80 %, not measured
    assert shapes(chart.svg, "measured")[0].count("M") == 2
    assert {"8", "16", "32"} <= set(texts(chart.svg))


def test_a_family_against_its_own_recorded_baselines_shows_the_documented_ones_beside_them() -> None:
    row = {**ROW, "baseline": "recorded", "measured": 0.931, "documented": 0.97, "verdict": "REGRESSION"}
    check = {"check": "weak-scaling", "members": ["f-8", "f-16", "f-32"], "compared": [row]}
    own = [
        {**member(gpus, 9.0), "baseline": {"kind": "recorded", "published_seconds": seconds}}
        for gpus, seconds in ((8, 10.0), (16, 10.2), (32, None))
    ]
    chart = draw_curve(check, {one["id"]: one for one in own}, "a")
    assert chart is not None
    assert "16 GPUs 93.1% (recorded 97.0%, documented 98.0%)" in chart.sentence
    assert [text.split(" ")[1] for text in chart.key.split(", ")] == ["measured", "recorded", "documented"]
    alone = draw_curve(check, {}, "a")
    assert alone is not None
    assert "documented" not in alone.sentence + alone.key


@pytest.mark.parametrize("changes", [{"check": "fp8-speedup"}, {"compared": []}])
def test_other_checks_have_no_curve(changes: dict[str, Any]) -> None:
    row = {**ROW, "measured": 0.9, "documented": 1.0, "verdict": "PASS"}
    assert draw_curve({"check": "weak-scaling", "members": [], "compared": [row], **changes}, {}, "a") is None


# --- drawing ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(low=st.floats(-1e9, 1e9), high=st.floats(-1e9, 1e9))
@example(low=-5e-324, high=-5e-324)  # the smallest number there is: to a chart it is 0
def test_a_scale_holds_both_ends_and_its_texts_are_its_ticks(low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    scale = make_number_scale(low, high)
    assert scale.low <= low or math.isclose(scale.low, low, rel_tol=1e-9, abs_tol=1e-300)
    assert scale.high >= high or math.isclose(scale.high, high, rel_tol=1e-9, abs_tol=1e-300)
    ticks = [(value, float(text)) for value, text in scale.texts]
    assert 3 <= len(ticks) <= 10
    assert all(value == pytest.approx(shown, rel=1e-12, abs=1e-300) for value, shown in ticks)


def test_percentages_have_the_digits_that_tell_them_apart() -> None:
    assert [text for _, text in make_number_scale(0.985, 1.005, percent=True).texts] == [
        "98.5%",
        "99.0%",
        "99.5%",
        "100.0%",
        "100.5%",
    ]


GOLDEN = (
    '<path class="line" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round" '
    'd="M0 170h.1L180 0L360 170" />'
)


def test_a_line_is_drawn_in_the_units_of_its_axes() -> None:
    picture = Picture(Scale(0, 2, [(0, "a"), (2, "<b>")]), Scale(0, 1, [(0, ""), (1, "")]), "", "")
    picture.draw_line([(0, 0.0), (1, 1.0), (2, 0.0)])
    drawn = picture.make_svg("told")
    assert '<text x="' in drawn
    assert "&lt;b&gt;" in drawn
    assert re.sub(r"[\d.]+", "N", GOLDEN) in re.sub(r"[\d.]+", "N", drawn)
    points = re.findall(r"[ML]([\d.]+) ([\d.]+)", shapes(drawn, "line")[0])
    (left, bottom), (middle, top), (right, again) = [(float(x), float(y)) for x, y in points]
    assert (left, top, bottom) == (0, 0, again)
    assert middle == right / 2


# --- the loss of a run that did not train -------------------------------------------------------------------------


def lost(losses: Sequence[float | None], no_loss: Sequence[int] = ()) -> dict[str, Any]:
    columns = {"index": list(range(len(losses))), "seconds": [10.0] * len(losses), "slow": [], "loss": list(losses)}
    return {"steps": {**columns, "no_loss": list(no_loss)}}


def test_the_loss_of_a_diverged_run_says_where_it_ended() -> None:
    chart = draw_loss(lost([9.5, 7.0, 5.0, None, None, 4.0], [3, 4]), "loss")
    assert chart is not None
    assert chart.sentence == ("6 steps; loss 9.5 at step 0, 4 at step 5; no finite number at 2 steps, first at step 3.")
    assert chart.key == "\N{MULTIPLICATION X} no finite number"


def test_a_loss_that_ran_away_is_drawn_at_the_edge() -> None:
    chart = draw_loss(lost([5.0, 4.0, 3.0, 1e30]), "loss")
    assert chart is not None
    assert chart.key == "\N{WHITE UP-POINTING TRIANGLE} above the scale"


@pytest.mark.parametrize("losses", [[None, None], [None, 3.0]])
def test_losses_that_are_hardly_there_are_drawn_or_nothing(losses: list[float | None]) -> None:
    """All are no number, or one of two was not printed."""
    no_loss = [0, 1] if losses == [None, None] else []
    chart = draw_loss(lost(losses, no_loss), "loss")
    assert (chart is None) is (not no_loss)


def test_a_run_that_trained_has_no_chart_of_its_loss() -> None:
    assert draw_loss({"steps": {"index": [1, 2], "seconds": [1.0, 1.0], "slow": []}}, "loss") is None
    assert draw_loss({}, "loss") is None


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)), max_size=30))
def test_no_loss_breaks_the_chart(losses: list[float | None]) -> None:
    draw_loss(lost(losses, [place for place, loss in enumerate(losses) if loss is None]), "loss")


# --- nights without tonight ----------------------------------------------------------------------------------------


def test_the_nights_of_a_site_have_no_tonight() -> None:
    nights = [
        {"started": f"2026-01-{day:02}", "verdict": "PASS", "step_time_seconds": value, "expected_seconds": 10.0}
        for day, value in enumerate((10.0, 10.1, None, 10.8), 1)
    ]
    changes = [{"night": 3, "difference": 0.08, "started": "2026-01-04"}]
    chart = draw_nights(nights, changes, "chart")
    assert chart is not None
    assert chart.sentence == (
        "4 nights from 2026-01-01 to 2026-01-04, 10.00 s to 10.80 s; 1 without a step time; "
        "1 change of level: +8.0 % from 2026-01-04 on."
    )
    assert "tonight" not in chart.key
    assert draw_nights(nights[2:], [], "chart") is None
