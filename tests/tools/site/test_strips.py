"""The drawing of the days of a configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.history.stored_verdicts import StoredVerdict
from pytest_llmbench.tools.site.fleet_records import FleetRow
from pytest_llmbench.tools.site.strips import (
    HEIGHT,
    HEIGHTS,
    describe_strip,
    draw_strip,
)

FIRST = date(2026, 1, 1)
COLOURS = st.sampled_from([*HEIGHTS])


def verdict(day: int) -> StoredVerdict:
    started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return StoredVerdict(
        id=day,
        configuration="x",
        run=day,
        started=started,
        judged=started,
        day=started.date(),
        session="s",
        verdict="PASS",
        reason="",
        status="passed",
        counts=True,
        run_seconds=1.0,
        step_seconds=1.0,
        expected_seconds=1.0,
        log_difference=0.0,
        mfu=None,
        mfu_logged=False,
        window=Window(11, 44, "mean"),
        baseline="recorded",
        tolerance="5 %",
        job_id="",
        nodes=(),
        environment={},
    )


def row(seconds: Sequence[float | None], days: Sequence[int] | None = None) -> FleetRow:
    verdicts = tuple(map(verdict, days if days is not None else range(len(seconds))))
    return FleetRow(
        "x", verdicts, tuple(seconds), (), None, current=True, last_good=None
    )


def draw(
    colours: Sequence[str],
    number_of_days: int,
    seconds: Sequence[float | None] | None = None,
) -> ElementTree.Element:
    values = [1.0] * len(colours) if seconds is None else seconds
    columns = {FIRST + timedelta(days=day): day for day in range(number_of_days)}
    return ElementTree.fromstring(draw_strip(row(values), colours, columns))  # noqa: S314 (our own)


@pytest.mark.slow
@given(st.lists(COLOURS, min_size=1, max_size=400))
def test_strip_draws_one_box_per_day_in_the_colour_of_its_verdict(
    colours: list[str],
) -> None:
    drawing = draw(colours, len(colours))
    width = max(len(colours), 30)
    drawn: dict[int, str] = {}
    paths = [path for path in drawing if path.get("class") != "line"]
    assert len(paths) == len(set(colours))
    for path in paths:
        colour = str(path.get("class"))
        for begin, height, length in re.findall(
            rf"M(\d+) {HEIGHT}v-(\d+)h(\d+)v\d+z", str(path.get("d"))
        ):
            assert int(height) == HEIGHTS[colour]
            for column in range(int(begin), int(begin) + int(length)):
                assert column not in drawn
                drawn[column] = colour
    first = width - len(colours)
    assert drawn == {first + index: colour for index, colour in enumerate(colours)}


def test_day_without_verdict_is_empty() -> None:
    columns = {FIRST + timedelta(days=day): day for day in range(40)}
    drawing = ElementTree.fromstring(  # noqa: S314
        draw_strip(row([1.0, 1.0], [3, 39]), ["red", "green"], columns)
    )
    assert [path.get("d") for path in drawing][1:] == [
        "M3 36v-13h1v13z",
        "M39 36v-5h1v5z",
    ]


def test_text_alternative_of_a_strip_counts_days_per_colour_and_states_times() -> None:
    assert (
        describe_strip(row([7.0, None, 8.0]), ["green", "red", "green"])
        == "3 days: 1 red, 2 green; 7.000 s to 8.000 s"
    )
    assert describe_strip(row([None]), ["skipped"]) == "1 day: 1 skipped"
