"""A history of thirty days with two configurations, for tests of its pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from support import builders
from support.remembered import document, outcome

FP8 = replace(builders.KEY, dtype="fp8")
# The newest run starts at 2 o'clock and its session at 5. Both are less than a day before
# the import of this module.
LAST = (datetime.now(UTC) - timedelta(hours=5)).replace(
    hour=2, minute=0, second=0, microsecond=0
)


def make_outcome(
    days_ago: int, seconds: float | None, key: Key = builders.KEY, **fields: Any
) -> dict[str, Any]:
    """Build the outcome of a run `days_ago` days before the last run."""
    document = outcome(seconds, 1000 - days_ago, key=key, job=f"{1000 - days_ago}")
    run = document["run"] and {
        **document["run"],
        "started": (LAST - timedelta(days=days_ago)).isoformat(),
    }
    return {**document, "run": run, **fields}


def session_start(days_ago: int) -> datetime:
    """Return the start of the session `days_ago` days before the last session."""
    return LAST - timedelta(days=days_ago) + timedelta(hours=3)


def store_session(
    location: StoreLocation, days_ago: int, *outcomes: dict[str, Any]
) -> None:
    write(location, document(*outcomes, began=session_start(days_ago)))


def fill_history(location: StoreLocation) -> None:
    """Store thirty days of two configurations.

    One configuration becomes 8 % slower and fails on the last ten days. The other is
    unchanged.
    """
    assert location.file is not None
    location.file.write_bytes(_make_store())


@cache
def _make_store() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder, "history.db")
        location = StoreLocation(file.name, file)
        for days_ago in reversed(range(30)):
            noise = 1 + 0.002 * (-1) ** (days_ago * days_ago // 3)
            slow: dict[str, Any] = {
                "verdict": "REGRESSION",
                "status": "failed",
                "reason": "slower-than-bound",
            }
            store_session(
                location,
                days_ago,
                make_outcome(days_ago, 7.4 * noise * 1.08, **slow)
                if days_ago < 10
                else make_outcome(days_ago, 7.4 * noise),
                make_outcome(days_ago, 5.0 * noise, FP8),
            )
        return file.read_bytes()
