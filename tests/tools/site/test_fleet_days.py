"""Selecting daily and current verdicts, and finding level changes, for the site."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support import builders
from support.remembered import ID, document, outcome

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.tools.site.fleet_days import collect_days
from pytest_llmbench.tools.site.fleet_records import FleetRow

FP8 = replace(builders.KEY, dtype="fp8")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> StoreLocation:
    return StoreLocation("h.db", tmp_path / "h.db")


def make_outcome(
    at: datetime, seconds: float = 7.4, key: Key = builders.KEY, **fields: Any
) -> dict[str, Any]:
    """Make the outcome of a run that started at `at`."""
    job_id = f"{int(at.timestamp()):x}"
    document_run = outcome(seconds, key=key, job=job_id, logs=f"{job_id}-1")
    return {
        **document_run,
        "run": {**document_run["run"], "started": at.isoformat()},
        **fields,
    }


def judge(store: StoreLocation, at: datetime, *outcomes: dict[str, Any]) -> None:
    write(store, document(*outcomes, began=at))


def row(
    store: StoreLocation, name: str = ID, since: datetime | None = None
) -> FleetRow:
    fleet = collect_days(store, since, NOON)
    return next(entry for entry in fleet.rows if entry.configuration == name)


def fill(store: StoreLocation, seconds: Sequence[float]) -> None:
    for ago, value in zip(reversed(range(len(seconds))), seconds, strict=True):
        began = NOON - timedelta(days=ago, hours=10)
        judge(store, began + timedelta(hours=4), make_outcome(began, value))


@pytest.mark.parametrize("hours", [(23.5, 24.5), (0.5, 2.0)])
def test_runs_started_before_and_after_midnight_of_one_session_are_all_current(
    store: StoreLocation, hours: tuple[float, float]
) -> None:
    """The jobs start on two days (UTC) and are judged by one session."""
    day = datetime(2026, 5, 31, tzinfo=UTC)
    runs = [
        make_outcome(day + timedelta(hours=at), key=key)
        for at, key in zip(hours, (builders.KEY, FP8), strict=True)
    ]
    judge(store, day + timedelta(hours=30), *runs)
    assert row(store).current
    assert row(store, FP8.id).current


@pytest.mark.parametrize(("hours", "current"), [(17, True), (19, False)])
def test_verdicts_of_sessions_within_18_hours_of_the_newest_session_are_current(
    store: StoreLocation, hours: int, current: bool
) -> None:
    judge(
        store,
        NOON - timedelta(hours=hours),
        make_outcome(NOON - timedelta(hours=hours + 1), key=FP8),
    )
    judge(store, NOON, make_outcome(NOON - timedelta(hours=1)))
    assert row(store, FP8.id).current is current
    assert row(store).current


def test_month_old_run_judged_for_the_first_time_is_not_current(
    store: StoreLocation,
) -> None:
    """For example if a folder with months of runs is added to a new history."""
    judge(
        store,
        NOON,
        make_outcome(NOON - timedelta(days=30), key=FP8),
        make_outcome(NOON - timedelta(hours=2)),
    )
    assert not row(store, FP8.id).current
    assert row(store).current


def test_site_shows_the_last_verdict_of_a_run_that_is_judged_again(
    store: StoreLocation,
) -> None:
    run = make_outcome(NOON - timedelta(days=3))
    for days in (3, 2, 1, 0):
        judge(store, NOON - timedelta(days=days), run)
    judge(
        store,
        NOON + timedelta(minutes=1),
        {**run, "status": "failed", "verdict": "REGRESSION"},
    )
    (verdict,) = row(store).verdicts
    assert verdict.verdict == "REGRESSION"


@pytest.mark.parametrize(("status", "current"), [("failed", True), ("passed", False)])
def test_month_old_run_judged_again_is_current_only_if_it_fails(
    store: StoreLocation, status: str, current: bool
) -> None:
    """An old run that passes again is not current."""
    run = make_outcome(NOON - timedelta(days=30))
    judge(store, NOON - timedelta(days=30), run)
    judge(store, NOON, {**run, "status": status})
    assert row(store).current is current


def test_missing_run_is_shown_only_on_days_without_run(store: StoreLocation) -> None:
    judge(store, NOON - timedelta(days=1), outcome(None))
    judge(store, NOON, make_outcome(NOON - timedelta(hours=3)))
    judge(store, NOON + timedelta(hours=1), outcome(None))
    assert [day.verdict for day in row(store).verdicts] == ["MISSING", "PASS"]
    assert row(store).seconds[0] is None


@pytest.mark.slow
def test_step_times_of_another_window_are_excluded_from_the_drawn_series(
    store: StoreLocation,
) -> None:
    for ago in range(6):
        began = NOON - timedelta(days=ago, hours=3)
        run = make_outcome(began)
        window = (
            {**run["window"], "first": 12, "last": 24} if ago > 2 else run["window"]
        )
        judge(store, began + timedelta(hours=1), {**run, "window": window})
    entry = row(store)
    assert len(entry.verdicts) == 6
    assert [value is None for value in entry.seconds] == [True] * 3 + [False] * 3


@pytest.mark.slow
def test_total_change_on_the_site_sums_small_level_changes_less_reverted_ones(
    store: StoreLocation,
) -> None:
    """The steps are +1 %, +1 %, +1 % and -1 %, each smaller than the tolerance."""
    random = np.random.default_rng(1)
    levels = np.repeat(7.0 * 1.01 ** np.array([0, 1, 2, 3, 2]), 30)
    fill(store, (levels * np.exp(0.001 * random.standard_normal(len(levels)))).tolist())
    entry = row(store)
    assert len(entry.changes) == 4
    assert entry.total == pytest.approx(1.01**2 - 1, abs=0.003)
    assert entry.last_good is None


@pytest.mark.slow
def test_site_shows_no_total_change_for_a_history_of_six_days(
    store: StoreLocation,
) -> None:
    fill(store, [7.0] * 6)
    assert row(store).total is None
    assert row(store).changes == ()


def test_last_good_verdict_is_the_newest_pass_before_the_failures(
    store: StoreLocation,
) -> None:
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
            store,
            began + timedelta(hours=1),
            make_outcome(began, status=status, verdict=verdict),
        )
    last_good = row(store).last_good
    assert last_good is not None
    assert last_good.day == (NOON - timedelta(days=3)).date()


def test_store_without_recent_verdict_is_refused(store: StoreLocation) -> None:
    judge(store, NOON - timedelta(days=9), make_outcome(NOON - timedelta(days=9)))
    with pytest.raises(HistoryError, match=r"h\.db: found no verdict since 2026-05-30"):
        collect_days(store, NOON - timedelta(days=2), NOON)
