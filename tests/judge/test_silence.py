"""Which configurations missed their turn: those with a rhythm, while others had
theirs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.builders import KEY

from pytest_llmbench.judge.silence import find_rhythm, find_silences

MONDAY = datetime(2026, 11, 2, 2, tzinfo=UTC)
DAY = timedelta(days=1)


def nights(*days: float) -> list[datetime]:
    return [MONDAY + day * DAY for day in days]


def find_silent(now: float, **starts: list[datetime]) -> set[str]:
    by_key = {replace(KEY, recipe=name): of_key for name, of_key in starts.items()}
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
def test_gap_is_the_longest_but_one(days: list[float], gap: float | None) -> None:
    rhythm = find_rhythm(nights(*days))
    assert (rhythm and rhythm.gap / DAY) == (gap and pytest.approx(gap))


def test_configuration_is_silent_when_others_ran() -> None:
    assert find_silent(4.1, a=nights(0, 1, 2, 3), b=nights(0, 1, 2, 3, 4)) == {"a"}
    assert find_silent(
        4.1, a=nights(0, 1, 2), b=nights(1, 2, 3, 4), c=nights(2, 3, 4)
    ) == {"a"}
    assert find_silent(
        4.1, a=nights(0, 1, 2, 3), b=nights(0, 1, 2, 3), c=nights(2, 3, 4)
    ) == {"a", "b"}


@pytest.mark.parametrize(
    ("now", "starts"),
    [
        (4.1, {"a": nights(0, 1, 2, 3, 4), "b": nights(0, 1, 2, 3, 4)}),
        (30, {"a": nights(0, 1, 2, 3, 4), "b": nights(0, 1, 2, 3, 4)}),
        (6.3, {"a": nights(0, 1, 2, 3, 4), "b": nights(0.1, 1.1, 2.1, 3.1, 4.1)}),
        (7.3, {"a": nights(0, 1, 2, 3, 4, 7), "b": nights(0, 1, 2, 3, 4, 7)}),
        (10.1, {"weekly": nights(-14, -7, 0, 6), "nightly": nights(6, 7, 8, 9, 10)}),
        (20, {"weekly": nights(-14, -7, 0), "nightly": nights(2, 3, 4, 5, 6)}),
        (4.05, {"late": nights(0.2, 1.2, 2.2, 3.2), "early": nights(0, 1, 2, 3, 4)}),
        (6, {"a": nights(0, 1, 2, 3, 4), "by_hand": nights(-30, -20, -3, 5.5)}),
        (4.1, {"new": nights(3), "a": nights(0, 1, 2, 3, 4)}),
        (60, {"retired": nights(0, 1, 2, 3), "a": nights(56, 57, 58, 59)}),
        (4.1, {"a": nights(0, 1, 2, 3)}),
        (4.1, {}),
    ],
    ids=[
        "all ran",
        "nobody has run since",
        "a weekend",
        "the Monday after it",
        "weekly beside nightly",
        "weekly beside nightly, judged later",
        "its turn comes later in the night",
        "another one is run by hand",
        "its first night",
        "it is run no more",
        "alone",
        "none",
    ],
)
def test_honest_night_has_no_silence(
    now: float, starts: dict[str, list[datetime]]
) -> None:
    assert find_silent(now, **starts) == set()


def test_weekly_configuration_is_silent_after_its_week() -> None:
    weekly, nightly = nights(-21, -14, -7), nights(-3, -2, -1, 0)
    assert find_silent(-0.5, weekly=weekly, nightly=nightly[:-1]) == set()
    assert find_silent(0.1, weekly=weekly, nightly=nightly) == {"weekly"}
