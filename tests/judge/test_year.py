"""The short form of benchmarks/statistics/year.py: it counts what is found and what is
not, and its promises can be broken."""

from __future__ import annotations

import pytest
import year
from year import promises, table


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
def test_planted_changes_are_found_within_days() -> None:
    fleet = year.year(0, seed=1)
    assert len(fleet.found) == 6
    assert all(one.delays[0] is not None and one.delays[0] <= 12 for one in fleet.found)
    assert sum(fleet.alarms) <= 1
    few_alarms, _, all_found = (kept for _, kept in promises([fleet]))
    assert few_alarms
    assert all_found
    assert table([fleet]).count("100 %") >= 2
