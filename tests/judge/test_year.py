"""Short form of benchmarks/statistics/year.py: planted changes are found and
counted."""

from __future__ import annotations

import pytest
import year
from year import promises, table


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a fleet of 12 with 100 days, and changes that are easily found."""
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
def test_simulated_changes_are_found_within_days() -> None:
    fleet = year.year(0, seed=1)
    assert len(fleet.found) == 6
    assert all(
        change.delays[0] is not None and change.delays[0] <= 12
        for change in fleet.found
    )
    assert sum(fleet.alarms) <= 1
    few_alarms, _, all_found = (is_kept for _, is_kept in promises([fleet]))
    assert few_alarms
    assert all_found
    assert table([fleet]).count("100 %") >= 2
