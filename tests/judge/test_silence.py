"""Configurations are overdue if they ran regularly, and others have run since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from support.builders import KEY

from pytest_llmbench.judge.silence import find_rhythm, find_silences

MONDAY = datetime(2026, 11, 2, 2, tzinfo=UTC)
DAY = timedelta(days=1)


def make_starts(*days: float) -> list[datetime]:
    return [MONDAY + day * DAY for day in days]


def find_silent(now: float, **starts: list[datetime]) -> set[str]:
    by_key = {
        replace(KEY, recipe=name): key_starts for name, key_starts in starts.items()
    }
    return {silence.key.recipe for silence in find_silences(by_key, MONDAY + now * DAY)}


@pytest.mark.parametrize(
    ("days", "gap"),
    [
        ([0, 1], None),
        ([0, 0.1, 0.2, 0.3, 0.4], None),
        ([0, 1, 2], 1),
        ([0, 1, 2, 2.2, 3, 3.1, 3.2], 1),
        ([0, 1, 4, 5, 6], 1),
        ([0, 7, 14, 21], 7),
        ([0, 1, 9, 10, 19], 8),
        ([0, 7, 14, 15, 16, 17, 18], 1),
    ],
)
def test_usual_gap_between_runs_is_the_second_longest_gap(
    days: list[float], gap: float | None
) -> None:
    rhythm = find_rhythm(make_starts(*days))
    assert (rhythm and rhythm.gap / DAY) == (gap and pytest.approx(gap))


def test_configuration_without_a_run_is_reported_when_others_ran() -> None:
    assert find_silent(
        4.1, a=make_starts(0, 1, 2, 3), b=make_starts(0, 1, 2, 3, 4)
    ) == {"a"}
    assert find_silent(
        4.1, a=make_starts(0, 1, 2), b=make_starts(1, 2, 3, 4), c=make_starts(2, 3, 4)
    ) == {"a"}
    assert find_silent(
        4.1,
        a=make_starts(0, 1, 2, 3),
        b=make_starts(0, 1, 2, 3),
        c=make_starts(2, 3, 4),
    ) == {"a", "b"}


@pytest.mark.parametrize(
    ("now", "starts"),
    [
        (4.1, {"a": make_starts(0, 1, 2, 3, 4), "b": make_starts(0, 1, 2, 3, 4)}),
        (30, {"a": make_starts(0, 1, 2, 3, 4), "b": make_starts(0, 1, 2, 3, 4)}),
        (
            6.3,
            {
                "a": make_starts(0, 1, 2, 3, 4),
                "b": make_starts(0.1, 1.1, 2.1, 3.1, 4.1),
            },
        ),
        (7.3, {"a": make_starts(0, 1, 2, 3, 4, 7), "b": make_starts(0, 1, 2, 3, 4, 7)}),
        (
            10.1,
            {
                "weekly": make_starts(-14, -7, 0, 6),
                "nightly": make_starts(6, 7, 8, 9, 10),
            },
        ),
        (
            20,
            {"weekly": make_starts(-14, -7, 0), "nightly": make_starts(2, 3, 4, 5, 6)},
        ),
        (
            4.05,
            {
                "late": make_starts(0.2, 1.2, 2.2, 3.2),
                "early": make_starts(0, 1, 2, 3, 4),
            },
        ),
        (
            6,
            {
                "a": make_starts(0, 1, 2, 3, 4),
                "by_hand": make_starts(-30, -20, -3, 5.5),
            },
        ),
        (4.1, {"new": make_starts(3), "a": make_starts(0, 1, 2, 3, 4)}),
        (60, {"retired": make_starts(0, 1, 2, 3), "a": make_starts(56, 57, 58, 59)}),
        (4.1, {"a": make_starts(0, 1, 2, 3)}),
        (4.1, {}),
    ],
    ids=[
        "all ran",
        "no run since",
        "a weekend",
        "the Monday after it",
        "weekly and daily",
        "weekly and daily, judged later",
        "due later on the same day",
        "another one runs manually",
        "its first day",
        "retired",
        "alone",
        "none",
    ],
)
def test_regular_runs_are_not_reported_as_overdue(
    now: float, starts: dict[str, list[datetime]]
) -> None:
    assert find_silent(now, **starts) == set()


def test_weekly_configuration_is_overdue_after_a_week() -> None:
    weekly, nightly = make_starts(-21, -14, -7), make_starts(-3, -2, -1, 0)
    assert find_silent(-0.5, weekly=weekly, nightly=nightly[:-1]) == set()
    assert find_silent(0.1, weekly=weekly, nightly=nightly) == {"weekly"}
