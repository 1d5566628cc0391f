"""Outcomes of every kind, and the schema of session documents, for report tests."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from jsonschema import Draft202012Validator
from msgspec import structs

from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.job_records import PlannedHours
from pytest_llmbench.core.outcome_records import (
    Case,
    Caution,
    Check,
    CheckKind,
    ConfigurationResult,
    Outcome,
    Status,
    UnmatchedRun,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.describe_outcome import (
    describe,
    describe_check,
    describe_unmatched_run,
)
from pytest_llmbench.report.document import SessionEnding, make_document
from pytest_llmbench.report.outcome_documents import (
    CheckOutcome,
    ConfigurationOutcome,
    JobHours,
    OutcomeDocument,
    ReportedJob,
    SessionDocument,
    UnmatchedOutcome,
    make_plain,
)
from pytest_llmbench.runs.measure.measurement import measure
from support.builders import BASELINE, KEY, NOW, evidence, log, run, segment, steps

FOLDER = Path("/runs")

SCHEMA = json.loads(
    resources.files("pytest_llmbench.report")
    .joinpath("session.schema.json")
    .read_text("utf-8")
)
VALIDATOR = Draft202012Validator(SCHEMA)

Changed = TypeVar("Changed", ConfigurationOutcome, UnmatchedOutcome, CheckOutcome)


def list_schema_errors(value: Any) -> list[str]:
    """Validate a document and return the schema errors."""
    return [error.message for error in VALIDATOR.iter_errors(value)]


def with_fields(outcome: Changed, **fields: Any) -> Changed:
    """Replace fields of an outcome. Values may be plain, as in JSON."""
    return msgspec.convert(
        {**make_plain(outcome), **msgspec.to_builtins(fields)}, type(outcome)
    )


def told(
    status: str = "passed",
    identifier: str = KEY.id,
    seconds: float = 7.33,
    **fields: Any,
) -> ConfigurationOutcome:
    """Build the outcome of a complete run with this step time."""
    measured = measure(run(log(segment(steps(seconds)))), BASELINE, NOW)
    outcome = Outcome(
        ConfigurationResult(Case(identifier, KEY), judge(evidence(measured))),
        Status(status),
    )
    return with_fields(describe(outcome, NOW, FOLDER), **fields)


def slow(identifier: str = "slow", **fields: Any) -> ConfigurationOutcome:
    """Build the outcome of a 20 % regression."""
    return told("failed", identifier, 8.79, **fields)


def make_job(**fields: Any) -> ReportedJob:
    """Build the record of a completed job."""
    hours = JobHours(estimated=0.0, used=0.0, requeued=0.0, exact=True, lost="")
    defaults = {
        "job_id": "1",
        "purpose": "measure",
        "attempt": 1,
        "repeat": 1,
        "state": "COMPLETED",
        "nodes": (),
        "text": "",
    }
    other_defaults = {
        "files": (),
        "submission": "submitted",
        "ended_by": "others",
        "started": None,
        "age": "-",
    }
    return ReportedJob(
        **{
            **defaults,
            **other_defaults,
            "step_seconds": None,
            "gpu_hours": hours,
            **fields,
        }
    )


def level_change(difference: float, **fields: Any) -> dict[str, Any]:
    """Build a persisting level change, as plain values."""
    defaults: dict[str, Any] = {
        "kind": "step",
        "started": "2025-11-20T03:00:00+00:00",
        "low": None,
        "high": None,
        "environment": {},
    }
    return {
        **defaults,
        "difference": difference,
        "stands": True,
        "acknowledged": None,
        "text": "",
        "night": 0,
        **fields,
    }


def make_session(
    *outcomes: OutcomeDocument,
    exit_code: int = 1,
    failures: tuple[str, ...] = (),
    cautions: tuple[Caution, ...] = (),
    planned: PlannedHours | None = None,
) -> SessionDocument:
    """Build the document of a session with these outcomes."""
    ending = SessionEnding(exit_code, failures, cautions)
    return structs.replace(
        make_document(outcomes, "0.1.0", ending, NOW, planned),
        baselines="82 configurations in 5 files",
        tolerances=("5 %",),
        header=("tolerance: 5 %",),
    )


def inconclusive(
    status: str = "passed", identifier: str = "doubtful"
) -> ConfigurationOutcome:
    """Build the outcome of an inconclusive run."""
    return told(status, identifier, 7.6)


def incomplete(identifier: str = "killed") -> ConfigurationOutcome:
    """Build the outcome of an incomplete run."""
    measured = measure(
        run(log(segment(steps([7.3] * 28), finished=False))), BASELINE, NOW
    )
    return describe(
        Outcome(
            ConfigurationResult(Case(identifier, KEY), judge(evidence(measured))),
            Status.FAILED,
        ),
        NOW,
        FOLDER,
    )


def missing(
    identifier: str = "missing", status: str = "skipped", context: tuple[str, ...] = ()
) -> ConfigurationOutcome:
    """Build the outcome of a configuration without a run."""
    outcome = Outcome(
        ConfigurationResult(Case(identifier, KEY), judge(evidence())),
        Status(status),
        context=context,
    )
    return describe(outcome, NOW, FOLDER)


def stray(
    identifier: str = "run_7", text: str = "no baseline of release 26.01"
) -> UnmatchedOutcome:
    """Build the outcome of an unmatched run."""
    return describe_unmatched_run(
        UnmatchedRun(identifier, Reason.UNMATCHED, text, Path("/runs/log_7.out")),
        FOLDER,
    )


def check(
    status: str = "passed", verdict: Verdict = Verdict.PASS, identifier: str = "family"
) -> CheckOutcome:
    """Build the outcome of a weak-scaling check."""
    return describe_check(
        Check(
            CheckKind.WEAK_SCALING,
            identifier,
            Status(status),
            verdict,
            "93.1 % of the throughput",
        )
    )
