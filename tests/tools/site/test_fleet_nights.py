"""Which verdict stands for a night, which is of tonight, and which changes a fleet
shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import builders
from support.remembered import ID, document, outcome

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.tools.site.fleet_nights import collect_days
from pytest_llmbench.tools.site.fleet_records import FleetRow

FP8 = replace(builders.KEY, dtype="fp8")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path) -> StoreLocation:
    return StoreLocation("h.db", tmp_path / "h.db")


def ran(
    at: datetime, seconds: float = 7.4, key: Key = builders.KEY, **fields: Any
) -> dict[str, Any]:
    """Return the outcome of a run that began then."""
    mark = f"{int(at.timestamp()):x}"
    told = outcome(seconds, key=key, job=mark, logs=f"{mark}-1")
    return {**told, "run": {**told["run"], "started": at.isoformat()}, **fields}


def judge(place: StoreLocation, at: datetime, *outcomes: dict[str, Any]) -> None:
    write(place, document(*outcomes, began=at))


def row(
    place: StoreLocation, name: str = ID, since: datetime | None = None
) -> FleetRow:
    fleet = collect_days(place, since, NOON)
    return next(each for each in fleet.rows if each.configuration == name)


def fill(place: StoreLocation, seconds: Sequence[float]) -> None:
    for ago, value in zip(reversed(range(len(seconds))), seconds, strict=True):
        began = NOON - timedelta(days=ago, hours=10)
        judge(place, began + timedelta(hours=4), ran(began, value))


@pytest.mark.parametrize("hours", [(23.5, 24.5), (0.5, 2.0)])
def test_a_night_around_midnight_is_one_night(
    place: StoreLocation, hours: tuple[float, float]
) -> None:
    """Its jobs start on two days (UTC), and one session judges them."""
    day = datetime(2026, 5, 31, tzinfo=UTC)
    runs = [
        ran(day + timedelta(hours=at), key=key)
        for at, key in zip(hours, (builders.KEY, FP8), strict=True)
    ]
    judge(place, day + timedelta(hours=30), *runs)
    assert row(place).current
    assert row(place, FP8.id).current


@pytest.mark.parametrize(("hours", "current"), [(17, True), (19, False)])
def test_sessions_of_one_night_are_those_within_18_hours(
    place: StoreLocation, hours: int, current: bool
) -> None:
    judge(
        place,
        NOON - timedelta(hours=hours),
        ran(NOON - timedelta(hours=hours + 1), key=FP8),
    )
    judge(place, NOON, ran(NOON - timedelta(hours=1)))
    assert row(place, FP8.id).current is current
    assert row(place).current


def test_an_old_run_that_is_judged_for_the_first_time_is_none_of_tonight(
    place: StoreLocation,
) -> None:
    """As when a whole folder of nights is judged into a new history."""
    judge(
        place,
        NOON,
        ran(NOON - timedelta(days=30), key=FP8),
        ran(NOON - timedelta(hours=2)),
    )
    assert not row(place, FP8.id).current
    assert row(place).current


def test_a_run_that_is_judged_again_is_no_further_night_and_what_was_said_last_counts(
    place: StoreLocation,
) -> None:
    run = ran(NOON - timedelta(days=3))
    for days in (3, 2, 1, 0):
        judge(place, NOON - timedelta(days=days), run)
    judge(
        place,
        NOON + timedelta(minutes=1),
        {**run, "status": "failed", "verdict": "REGRESSION"},
    )
    (night,) = row(place).nights
    assert night.verdict == "REGRESSION"


@pytest.mark.parametrize(("status", "current"), [("failed", True), ("passed", False)])
def test_an_old_run_that_the_newest_session_failed_is_red_tonight(
    place: StoreLocation, status: str, current: bool
) -> None:
    """And one that it passed again says nothing of tonight."""
    run = ran(NOON - timedelta(days=30))
    judge(place, NOON - timedelta(days=30), run)
    judge(place, NOON, {**run, "status": status})
    assert row(place).current is current


def test_a_missing_run_is_a_night_only_where_none_ran(place: StoreLocation) -> None:
    judge(place, NOON - timedelta(days=1), outcome(None))
    judge(place, NOON, ran(NOON - timedelta(hours=3)))
    judge(place, NOON + timedelta(hours=1), outcome(None))
    assert [night.verdict for night in row(place).nights] == ["MISSING", "PASS"]
    assert row(place).seconds[0] is None


@pytest.mark.slow
def test_runs_of_another_window_are_in_the_grid_and_not_in_the_series(
    place: StoreLocation,
) -> None:
    for ago in range(6):
        began = NOON - timedelta(days=ago, hours=3)
        run = ran(began)
        window = (
            {**run["window"], "first": 12, "last": 24} if ago > 2 else run["window"]
        )
        judge(place, began + timedelta(hours=1), {**run, "window": window})
    shown = row(place)
    assert len(shown.nights) == 6
    assert [value is None for value in shown.seconds] == [True] * 3 + [False] * 3


@pytest.mark.slow
def test_small_changes_add_up_unless_taken_back(place: StoreLocation) -> None:
    """+1 %, +1 %, +1 %, -1 %: no night is slower than the one before by more than the tolerance."""
    random = np.random.default_rng(1)
    levels = np.repeat(7.0 * 1.01 ** np.array([0, 1, 2, 3, 2]), 30)
    fill(place, (levels * np.exp(0.001 * random.standard_normal(len(levels)))).tolist())
    shown = row(place)
    assert len(shown.changes) == 4
    assert shown.total == pytest.approx(1.01**2 - 1, abs=0.003)
    assert shown.last_good is None


@pytest.mark.slow
def test_few_nights_show_no_sum(place: StoreLocation) -> None:
    fill(place, [7.0] * 6)
    assert row(place).total is None
    assert row(place).changes == ()


def test_the_last_good_night_is_that_before_the_red_ones(place: StoreLocation) -> None:
    for ago, (status, verdict) in enumerate(
        [
            ("failed", "REGRESSION"),
            ("failed", "REGRESSION"),
            ("passed", "INCONCLUSIVE"),
            ("passed", "PASS"),
        ]
    ):
        began = NOON - timedelta(days=ago, hours=3)
        judge(
            place,
            began + timedelta(hours=1),
            ran(began, status=status, verdict=verdict),
        )
    last_good = row(place).last_good
    assert last_good is not None
    assert last_good.day == (NOON - timedelta(days=3)).date()


def test_a_store_without_a_verdict_is_an_error(place: StoreLocation) -> None:
    judge(place, NOON - timedelta(days=9), ran(NOON - timedelta(days=9)))
    with pytest.raises(HistoryError, match=r"h\.db: no verdict from 2026-05-30 on"):
        collect_days(place, NOON - timedelta(days=2), NOON)
