"""The nights of a configuration and the changes in them, as plain values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import DailyRun, Judgement, LevelChange, StoredRun

MOST_DAILY_RUNS = 365
"""So many of a history stand in an outcome."""

NOT_JUDGED = "NOT_JUDGED"
"""Stands for the verdict of a night whose run lies in the folder: it only tells the noise and the changes."""


def describe_daily_runs(judgement: Judgement) -> dict[str, Any]:
    """Return the `history` and the `changes` that were judged with."""
    return join_daily_runs(
        [_describe_daily_run(change) for change in judgement.daily_runs],
        [_describe_change(change) for change in judgement.changes],
    )


def join_daily_runs(history: Sequence[dict[str, Any]], changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the last NIGHTS of a history, oldest first, and its changes with their places in it."""
    nights = sorted(history, key=lambda night: str(night["started"]))[-MOST_DAILY_RUNS:]
    begins = [night["started"] for night in nights]
    return {
        "history": nights,
        "changes": [{**change, "night": bisect_left(begins, change["started"])} for change in changes],
    }


def describe_stored_run(past: StoredRun) -> dict[str, Any]:
    """Return a night that the history knows, with what was said of it, as plain values."""
    return {
        "started": past.started.isoformat(),
        "verdict": past.verdict,
        "reason": past.reason,
        "step_time_seconds": past.step_time_seconds,
        "expected_seconds": past.expected_seconds,
        "log_difference": past.log_difference,
        "job_id": past.job_id,
        "environment": past.environment,
    }


def _describe_daily_run(night: DailyRun) -> dict[str, Any]:
    return {
        "started": night.started.isoformat(),
        "verdict": NOT_JUDGED,
        "step_time_seconds": formatting.finite_or_none(night.statistic_seconds),
        "environment": dict(night.environment),
    }


def _describe_change(change: LevelChange) -> dict[str, Any]:
    accepted = change.acknowledged
    return {
        "kind": change.kind,
        "started": change.started.isoformat(),
        "difference": change.difference,
        "low": change.low,
        "high": change.high,
        "environment": {name: [before, after] for name, before, after in change.environment},
        "stands": change.stands,
        "acknowledged": accepted
        and {"reason": accepted.reason, "by": accepted.by, "expires": accepted.expires.isoformat()},
        "text": change.text,
    }
