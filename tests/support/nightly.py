"""A history of a month of nights of two configurations, for tests of its pages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import builders
from remembered import document, outcome

from pytest_llmbench.core.models import Key
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation

FP8 = replace(builders.KEY, dtype="fp8")
# The run of the newest night, at 2 o'clock, in a session that began at 5 and so is at most 26 hours old at any time of day.
LAST = (datetime.now(UTC) - timedelta(hours=7)).replace(hour=2, minute=0, second=0, microsecond=0)


def night(ago: int, seconds: float | None, key: Key = builders.KEY, **fields: Any) -> dict[str, Any]:
    """Return the outcome of a run so many nights before the last one."""
    told = outcome(seconds, 1000 - ago, key=key, job=f"{1000 - ago}")
    run = told["run"] and {**told["run"], "started": (LAST - timedelta(days=ago)).isoformat()}
    return {**told, "run": run, **fields}


def store(place: StoreLocation, ago: int, *outcomes: dict[str, Any]) -> None:
    write(place, document(*outcomes, began=LAST - timedelta(days=ago) + timedelta(hours=3)))


def fill(place: StoreLocation) -> None:
    """Store thirty nights: one configuration becomes 8 % slower and red on the last ten, the other one stays."""
    for ago in reversed(range(30)):
        noise = 1 + 0.002 * (-1) ** (ago * ago // 3)
        slow: dict[str, Any] = {"verdict": "REGRESSION", "status": "failed", "reason": "slower-than-bound"}
        store(
            place,
            ago,
            night(ago, 7.4 * noise * 1.08, **slow) if ago < 10 else night(ago, 7.4 * noise),
            night(ago, 5.0 * noise, FP8),
        )
