"""Slow steps: stragglers, two levels, stretches and periods."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.core.robust import find_stragglers
from pytest_llmbench.judge.pattern import find_period, find_step_levels, find_stretches


@pytest.mark.parametrize(
    ("seconds", "resolution", "slow"),
    [
        ([1.0] * 9 + [1.029], 0.0, 0),
        ([1.0] * 9 + [1.031], 0.0, 1),
        (
            [1.0] * 9 + [1.031],
            0.001,
            0,
        ),  # up to 3 % plus one unit in the last place may be rounding
        ([0.012] * 9 + [0.013], 0.001, 0),
        ([0.012] * 9 + [0.014], 0.001, 1),
        ([1.0] * 9 + [0.2], 0.0, 0),
        ([1.0] * 6 + [2.0] * 4, 0.0, 4),
    ],
)
def test_straggler_exceeds_three_percent_and_the_noise(
    seconds: list[float], resolution: float, slow: int
) -> None:
    assert np.count_nonzero(find_stragglers(np.array(seconds), resolution)) == slow


def test_step_times_alternating_between_two_levels_are_detected() -> None:
    seconds = 1 + 0.005 * np.random.default_rng(1).standard_normal(34)
    slow = np.arange(34) % 3 == 0
    levels = find_step_levels(np.where(slow, 1.1 * seconds, seconds), 0.0)
    assert levels is not None
    assert [levels.lower, levels.upper] == pytest.approx([1, 1.1], abs=0.005)
    assert levels.slow.tolist() == slow.tolist()


@pytest.mark.parametrize(
    ("seconds", "resolution"),
    [
        ([1.0] * 34, 0.0),
        ([1.0, 1.009] * 17, 0.0),  # less than 1 % apart
        ([0.011, 0.012] * 17, 0.001),  # one unit in the last place
        ([1.0] * 29 + [2.0] * 5, 0.0),  # 15 % of 34 are 6
        ([1.0] * 5 + [2.0] * 4, 0.0),
        (np.linspace(1, 2, 34).tolist(), 0.0),
        ((1 + 2 * np.exp(-np.arange(34) / 4)).tolist(), 0.0),
    ],
)
def test_rounding_ramp_or_stragglers_in_step_times_are_not_two_levels(
    seconds: list[float], resolution: float
) -> None:
    assert find_step_levels(np.array(seconds), resolution) is None


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ("", []),
        ("....", []),
        ("#", [(0, 1)]),
        ("##.#", [(0, 2), (3, 4)]),
        (".###", [(1, 4)]),
    ],
)
def test_consecutive_slow_steps_are_one_stretch(
    slow: str, expected: list[tuple[int, int]]
) -> None:
    mask = np.array([sign == "#" for sign in slow], dtype=bool)
    assert [
        (stretch.start, stretch.stop) for stretch in find_stretches(mask)
    ] == expected


@pytest.mark.parametrize(
    ("starts", "distance"),
    [
        ([4, 14, 24], 10),
        ([4, 5, 14, 24], 10),  # one start is not part of the period
        ([4, 14], None),  # two are no period
        ([4, 24], None),
        ([2, 7, 12, 22, 27, 32], None),  # step 17 is not slow
        ([], None),
    ],
)
def test_slow_steps_are_periodic_if_three_follow_at_equal_distance(
    starts: list[int], distance: int | None
) -> None:
    period = find_period(sorted(starts), 34)
    assert (period.step if period else None) == distance
