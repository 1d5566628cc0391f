"""A history of a month of nights of two configurations, for tests of its pages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from support import builders
from support.remembered import document, outcome

FP8 = replace(builders.KEY, dtype="fp8")
# The newest night's run is of 2 o'clock, its session of 5, which was less than a day
# ago when this module was imported.
LAST = (datetime.now(UTC) - timedelta(hours=5)).replace(
    hour=2, minute=0, second=0, microsecond=0
)


def night(
    ago: int, seconds: float | None, key: Key = builders.KEY, **fields: Any
) -> dict[str, Any]:
    """Return the outcome of a run so many nights before the last one."""
    told = outcome(seconds, 1000 - ago, key=key, job=f"{1000 - ago}")
    run = told["run"] and {
        **told["run"],
        "started": (LAST - timedelta(days=ago)).isoformat(),
    }
    return {**told, "run": run, **fields}


def began(ago: int) -> datetime:
    """Return when the session of so many nights before the last one began."""
    return LAST - timedelta(days=ago) + timedelta(hours=3)


def store(place: StoreLocation, ago: int, *outcomes: dict[str, Any]) -> None:
    write(place, document(*outcomes, began=began(ago)))


def fill(place: StoreLocation) -> None:
    """Store thirty nights: one configuration becomes 8 % slower and red on the last
    ten, the other one stays."""
    assert place.file is not None
    place.file.write_bytes(_make_store())


@cache
def _make_store() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder, "history.db")
        place = StoreLocation(file.name, file)
        for ago in reversed(range(30)):
            noise = 1 + 0.002 * (-1) ** (ago * ago // 3)
            slow: dict[str, Any] = {
                "verdict": "REGRESSION",
                "status": "failed",
                "reason": "slower-than-bound",
            }
            store(
                place,
                ago,
                night(ago, 7.4 * noise * 1.08, **slow)
                if ago < 10
                else night(ago, 7.4 * noise),
                night(ago, 5.0 * noise, FP8),
            )
        return file.read_bytes()
