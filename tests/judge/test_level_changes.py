"""Reported changes: day, size, differing environment and acknowledgement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from pytest_llmbench.core.judgement_records import (
    ChangeKind,
    DailyRun,
    LevelChange,
    Noise,
)
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.judge.change_points import LevelShift
from pytest_llmbench.judge.level_changes import (
    assign_acknowledgements,
    compare_environments,
    find_changes,
    find_flips,
)
from pytest_llmbench.report.wording import phrase

KNOWN = Noise(0.01, 100.0, "nights", measured=True)
BEGAN = datetime(2025, 9, 1, 2, tzinfo=UTC)
CHANGED = date(2025, 10, 11)
TODAY = date(2025, 11, 20)
OLD, NEW = (
    {"driver": "550.54", "container": "25.04"},
    {"driver": "555.42", "container": "25.04"},
)


def make_days(*levels: tuple[float, int], seed: int = 2) -> list[DailyRun]:
    """Make days at these levels (factor, number of days).

    The driver changes with the second level.
    """
    factors = [factor for factor, count in levels for _ in range(count)]
    first = levels[0][1]
    noise = 0.01 * np.random.default_rng(seed).standard_normal(len(factors))
    return [
        DailyRun(
            BEGAN + timedelta(days=day),
            7.0 * factor * math.exp(wobble),
            OLD if day < first else NEW,
        )
        for day, (factor, wobble) in enumerate(
            zip(factors, noise.tolist(), strict=True)
        )
    ]


def acknowledge(
    fraction: float = 0.06, since: date = CHANGED, expires: date = date(2026, 1, 31)
) -> Acknowledgement:
    return Acknowledgement(
        "*",
        fraction,
        since,
        expires,
        "the security fix",
        "A. Person",
        "acknowledged.yaml:3",
    )


def find_known_changes(
    series: Sequence[DailyRun],
    *entries: Acknowledgement,
    quantisation_unit: float = 0.0,
) -> tuple[LevelChange, ...]:
    return find_changes(
        series, KNOWN, entries, TODAY, quantisation_unit=quantisation_unit
    )


def test_level_change_states_its_day_size_and_changed_software() -> None:
    (change,) = find_known_changes(make_days((1.0, 40), (1.06, 20)))
    assert (change.kind, change.first_run, change.started.date()) == (
        "step",
        40,
        CHANGED,
    )
    assert change.low < 0.06 < change.high
    assert change.environment == (("driver", "550.54", "555.42"),)
    assert phrase(change).startswith("+6.2 % (+5.7 to +6.8 %)")
    assert phrase(change).endswith("since 2025-10-11; driver 550.54 -> 555.42")
    assert change.stands
    assert change.acknowledged is None


@pytest.mark.parametrize(
    "entry",
    [
        acknowledge(fraction=-0.06),
        acknowledge(fraction=0.02),
        acknowledge(since=CHANGED - timedelta(days=20)),
        acknowledge(since=CHANGED + timedelta(days=20)),
    ],
    ids=["other direction", "smaller than the change", "too early", "too late"],
)
def test_acknowledgement_of_other_size_or_day_does_not_cover_a_level_change(
    entry: Acknowledgement,
) -> None:
    (change,) = find_known_changes(make_days((1.0, 40), (1.06, 20)), entry)
    assert (change.acknowledged, change.expired) == (None, None)


STEPS = [(0, 40), (0.04, 4), (0.08, 20)]
"""Logarithms and numbers of days: two changes of 4 % within a week."""


def make_exact_days(levels: Sequence[tuple[float, int]]) -> list[DailyRun]:
    """Make days at these levels (logarithms), with a spread of 0.1 %."""
    return [
        DailyRun(
            day.started, 7.0 * math.exp(math.log(day.statistic_seconds / 7.0) / 10)
        )
        for day in make_days(
            *((math.exp(10 * level), count) for level, count in levels)
        )
    ]


def list_acknowledgements(
    *entries: Acknowledgement, levels: Sequence[tuple[float, int]] = STEPS
) -> list[Acknowledgement | None]:
    """Return the acknowledgement of each change of a series with a noise of 0.1 %."""
    noise = Noise(0.001, 100.0, "nights", measured=True)
    return [
        change.acknowledged or change.expired
        for change in find_changes(make_exact_days(levels), noise, entries, TODAY)
    ]


@pytest.mark.parametrize(
    ("difference", "covers"), [(0.05, True), (0.07, True), (0.09, False)]
)
@pytest.mark.parametrize("kind", list(ChangeKind))
def test_uncertain_change_is_not_covered_by_a_much_smaller_acknowledgement(
    kind: ChangeKind, difference: float, covers: bool
) -> None:
    """The interval of an uncertain drift contains both sizes."""
    shift = LevelShift(40, 0, 60, difference, 0.02, 2 * difference - 0.02)
    entry = acknowledge(0.049)
    assert assign_acknowledgements(
        kind, [shift], make_days((1.0, 60)), [entry], TODAY
    ) == [entry if covers else None]


def test_acknowledgement_covers_one_change_of_its_size() -> None:
    entry, of_both = acknowledge(0.041), acknowledge(0.084)
    assert list_acknowledgements(entry) == [entry, None]
    assert list_acknowledgements(of_both) == [of_both, of_both]
    repeated = [(0, 40), (0.04, 4), (0, 4), (0.04, 20)]
    assert list_acknowledgements(entry, levels=repeated) == [entry, None, entry]


def test_acknowledgement_covers_the_change_nearest_its_day() -> None:
    first, second = (
        acknowledge(0.041),
        acknowledge(0.042, since=CHANGED + timedelta(days=8)),
    )
    for entries in ((first, second), (second, first)):
        assert list_acknowledgements(
            *entries, levels=[(0, 40), (0.04, 7), (0.08, 20)]
        ) == [
            first,
            second,
        ]
    gone = acknowledge(0.041, expires=TODAY - timedelta(days=1))
    later = acknowledge(0.042, since=CHANGED + timedelta(days=5))
    assert list_acknowledgements(gone, later) == [later, gone]


def test_expired_acknowledgement_is_reported_without_effect() -> None:
    (change,) = find_known_changes(
        make_days((1.0, 40), (1.06, 20)), acknowledge(expires=date(2025, 11, 19))
    )
    assert change.acknowledged is None
    assert phrase(change).endswith(
        "the acknowledgement expired on 2025-11-19: +6.0 % by A. Person: the security fix"
    )
    (last_day,) = find_known_changes(
        make_days((1.0, 40), (1.06, 20)), acknowledge(expires=TODAY)
    )
    assert last_day.acknowledged is not None


def test_level_change_is_reported_as_reverted_once_the_step_time_returns() -> None:
    slower, faster = find_known_changes(make_days((1.0, 40), (1.06, 20), (1.0, 20)))
    assert not slower.stands
    assert phrase(slower).endswith("reverted since")
    assert faster.difference < 0


def test_drift_is_reported_unless_an_accepted_change_explains_it() -> None:
    slow = [(1 + 0.00006 * day, 1) for day in range(150)]
    (change,) = find_known_changes(make_days((1.0, 30), *slow, seed=2))
    assert change.kind == "drift"
    assert "drifted since" in phrase(change)
    assert change.environment == ()
    *_, last = find_known_changes(make_days((1.0, 40), (1.06, 60)), acknowledge())
    assert last.kind == "step"


@pytest.mark.parametrize(("seed", "count"), [(0, 150), (8, 130)])
def test_improvement_hides_no_later_drift(seed: int, count: int) -> None:
    """Compared with the days before the improvement, nothing is slower yet."""
    slow = [(0.92 * (1 + 0.0001 * day), 1) for day in range(count)]
    faster, slower = find_known_changes(
        make_days((1.0, 40), (0.92, 20), *slow, seed=seed)
    )
    assert (faster.difference < 0, faster.stands) == (True, True)
    assert (slower.kind, slower.stands, slower.acknowledged) == ("drift", True, None)
    assert slower.difference > 0.01


def test_change_within_a_printed_unit_is_not_reported() -> None:
    assert (
        find_known_changes(make_days((1.0, 40), (1.06, 20)), quantisation_unit=0.08)
        == ()
    )


def test_fact_that_changes_every_day_is_no_candidate_cause_of_a_level_change() -> None:
    series = [
        DailyRun(
            daily_run.started,
            daily_run.statistic_seconds,
            {"node": f"n{day}", **(daily_run.environment if day % 2 else {})},
        )
        for day, daily_run in enumerate(make_days((1.0, 40), (1.06, 20)))
    ]
    assert compare_environments(series, 40) == (("driver", "550.54", "555.42"),)


@pytest.mark.parametrize(
    ("sides", "since", "expected"),
    [
        ("+-+-+-+-+-", 0, (5, 10)),
        ("++-+-+++-+", 0, (7, 10)),
        ("++++-+++-+", 0, None),
        ("+++++-----", 0, None),
        ("+-+-+-+", 0, None),
        ("+-+-+-+-+-++++++++++", 0, None),
        ("+-+-+-+-+-", 5, None),
    ],
    ids=[
        "every day",
        "three of ten",
        "two of ten",
        "one change",
        "few days",
        "long ago",
        "other level",
    ],
)
def test_configuration_that_flips_across_its_bound_is_reported(
    sides: str, since: int, expected: tuple[int, int] | None
) -> None:
    daily_runs = [
        DailyRun(BEGAN + timedelta(days=day), 7.7 if side == "+" else 7.8)
        for day, side in enumerate(sides)
    ]
    assert find_flips(daily_runs, 7.7, since) == expected
