"""Outcomes and documents as sessions store them in the history."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.history.session_record import SessionRecord
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.describe_outcome import describe
from pytest_llmbench.report.document import (
    SessionEnding,
    make_document,
    shorten,
)
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    SessionDocument,
    make_plain,
)
from pytest_llmbench.runs.measure.run_metrics import make_metric
from pytest_llmbench.session.session_history import describe_origin
from pytest_llmbench.session.unsaved import make_record
from support import builders
from support.outcomes import make_job

START = datetime(2025, 11, 1, 2, tzinfo=UTC)
ID = builders.KEY.id


def outcome(
    seconds: float | None = 7.4,
    day: int = 0,
    *,
    key: Key = builders.KEY,
    job: str = "",
    logs: str = "00ff",
    **run: Any,
) -> dict[str, Any]:
    """Build the outcome of a run that started `night` days after START.

    Without `seconds` the configuration has no run.
    """
    configuration = replace(builders.BASELINE.configuration, key=key)
    baseline = replace(builders.BASELINE, configuration=configuration)
    run_facts = {
        "started": START + timedelta(days=day),
        "key": key,
        "job_id": job or f"{1000 + day}",
        **run,
    }
    log = replace(
        builders.log(builders.segment()),
        fingerprint=logs if logs != "00ff" else f"{day:x}-00ff",
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
                run=builders.run(log, **run_facts),
                baseline=baseline,
                metrics=metrics,
            )
        ]
    evidence = builders.evidence(*runs, baseline=baseline)
    judgement = judge(evidence)
    status = Status.SKIPPED if judgement.verdict is Verdict.MISSING else Status.PASSED
    outcome_record = Outcome(ConfigurationResult(Case(key.id, key), judgement), status)
    plain: dict[str, Any] = json.loads(
        json.dumps(make_plain(describe(outcome_record, builders.NOW, Path("/runs"))))
    )
    return plain


def restore(plain: dict[str, Any]) -> ConfigurationOutcome:
    """Restore the outcome of a configuration. Missing fields of its jobs get default
    values."""
    defaults = msgspec.to_builtins(make_job())
    jobs = [{**defaults, **job} for job in plain["jobs"]]
    return msgspec.convert({**plain, "jobs": jobs}, ConfigurationOutcome)


def session(
    *outcomes: dict[str, Any],
    began: datetime = builders.NOW,
    identifier: str = "",
    host: str = "ci",
    program: str = "0.1.0",
    options: Sequence[str] = ("-q",),
    environment: Mapping[str, str] | None = None,
) -> SessionDocument:
    """Build the document of a session with these outcomes, as the history receives
    it."""
    origin = describe_origin(began, options, environment or {})
    origin = msgspec.structs.replace(
        origin, id=identifier or uuid.uuid4().hex, host=host
    )
    document = make_document([], program, SessionEnding(0), began)
    return msgspec.structs.replace(
        document,
        outcomes=tuple(shorten(restore(outcome)) for outcome in outcomes),
        session=origin,
    )


def document(*outcomes: dict[str, Any], **about: Any) -> SessionRecord:
    """Build the record that the history stores for a session with these outcomes."""
    return make_record(session(*outcomes, **about))


def trials(noise: Mapping[str, float] | None, cluster: str = "eos") -> dict[str, Any]:
    """Build the result of an A/B comparison that measured this noise on a cluster."""
    return {
        "variants": ["a", "b"],
        "nodes": ["n1"],
        "allocations": 0,
        "separate_because": None,
        "cluster": cluster,
        "noise": noise,
        "earlier_noise": None,
        "answers": [],
    }


def nights(seconds: Sequence[float], **run: Any) -> list[dict[str, Any]]:
    """Build the outcomes of one run per day, oldest first."""
    return [outcome(value, day, **run) for day, value in enumerate(seconds)]
