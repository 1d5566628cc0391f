"""Outcomes of configurations as sessions have them, and documents of them, for tests of
the history."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.outcome_records import Case, Outcome, Status
from pytest_llmbench.history import record
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.describe_outcome import describe
from pytest_llmbench.report.outcome_documents import ConfigurationOutcome, make_plain
from pytest_llmbench.runs.measure.run_metrics import make_metric
from support import builders

START = datetime(2025, 11, 1, 2, tzinfo=UTC)
ID = builders.KEY.id


def outcome(
    seconds: float | None = 7.4,
    night: int = 0,
    *,
    key: Key = builders.KEY,
    job: str = "",
    logs: str = "00ff",
    **run: Any,
) -> dict[str, Any]:
    """Return what a session says of a run: of `night` days after START; None seconds is
    no run."""
    configuration = replace(builders.BASELINE.configuration, key=key)
    baseline = replace(builders.BASELINE, configuration=configuration)
    found = {
        "started": START + timedelta(days=night),
        "key": key,
        "job_id": job or f"{1000 + night}",
        **run,
    }
    log = replace(
        builders.log(builders.segment()),
        fingerprint=logs if logs != "00ff" else f"{night:x}-00ff",
    )
    runs = []
    if seconds:
        metrics = (
            make_metric("step_time_seconds", seconds, 0.0741),
            make_metric("mfu", 0.25),
        )
        runs = [
            builders.noisy(
                seconds,
                run=builders.run(log, **found),
                baseline=baseline,
                metrics=metrics,
            )
        ]
    evidence = builders.evidence(*runs, baseline=baseline)
    judgement = judge(evidence)
    status = Status.SKIPPED if judgement.verdict is Verdict.MISSING else Status.PASSED
    told = Outcome(Case(key.id, key), status, judgement)
    plain: dict[str, Any] = json.loads(
        json.dumps(make_plain(describe(told, builders.NOW, Path("/runs"))))
    )
    return plain


def restore(plain: dict[str, Any]) -> ConfigurationOutcome:
    """Restore the outcome of a configuration."""
    return msgspec.convert(plain, ConfigurationOutcome)


def document(
    *outcomes: dict[str, Any], began: datetime = builders.NOW, **session: Any
) -> dict[str, Any]:
    """Return what a session with these outcomes stores."""
    fields: dict[str, Any] = {
        "host": "ci",
        "program": "0.1.0",
        "options": ["-q"],
        "environment": {},
        **session,
    }
    return record.make_document(
        record.describe_session(uuid.uuid4().hex, began, **fields), outcomes
    )


def nights(seconds: Sequence[float], **run: Any) -> list[dict[str, Any]]:
    """Return the outcomes of a run a night, oldest first."""
    return [outcome(value, night, **run) for night, value in enumerate(seconds)]
