"""The short form of benchmarks/year.py: it counts what is found and what is not, and its promises can be broken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import year
from year import Year, failing, monthly, promises, table

from pytest_llmbench.core.models import Noise
from pytest_llmbench.judge.changes import LevelShift


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a fleet of 12 with 100 nights, and changes that are easily found."""
    for name, value in {
        "CONFIGURATIONS": 12,
        "NIGHTS": 100,
        "EARLIEST": 50,
        "LATEST": 70,
        "SIZES": (0.03, 0.05),
    }.items():
        monkeypatch.setattr(year, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_planted_changes_are_found_within_days_and_nothing_else_is() -> None:
    fleet = year.year(0, seed=1)
    assert len(fleet.found) == 6
    assert all(one.delays[0] is not None and one.delays[0] <= 12 for one in fleet.found)
    assert sum(fleet.alarms) <= 1
    few_alarms, _, all_found = (kept for _, kept in promises([fleet]))
    assert few_alarms
    assert all_found
    assert table([fleet]).count("100 %") >= 2


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_search_that_finds_nothing_breaks_the_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(year, "find_level_shifts", lambda values, noise, correlation: ())
    monkeypatch.setattr(year, "find_slow_change", lambda values, noise, correlation: None)
    kept = [kept for _, kept in promises([year.year(0, seed=1)])]
    assert kept == [True, False, False]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_search_that_cries_wolf_breaks_the_promise_of_false_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    def wolf(values: Sequence[float], noise: Noise, correlation: float) -> tuple[LevelShift, ...]:
        return (LevelShift(10, 0, len(values), 0.05, 0.04, 0.06),)

    monkeypatch.setattr(year, "find_level_shifts", wolf)
    fleet = year.year(0, seed=1)
    assert monthly([fleet], 0) == failing([fleet]) == 1
    assert Year((), (12, 0), 12).alarms == fleet.alarms
    assert monthly([fleet, Year((), (100, 0), 100)], 0) > 1
