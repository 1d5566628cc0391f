"""Outcome dictionaries of every kind, and the schema of their document, for the tests of reports."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.outcome_records import Case, Check, CheckKind, Outcome, Status, UnmatchedRun
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.outcome import describe, describe_check, describe_stray
from pytest_llmbench.runs.measure.measurement import measure
from support.builders import BASELINE, KEY, NOW, evidence, log, run, segment, steps

FOLDER = Path("/runs")

SCHEMA = json.loads(resources.files("pytest_llmbench.report").joinpath("session.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


def faults(value: Any) -> list[str]:
    """Return what the schema finds wrong with a document."""
    return [error.message for error in VALIDATOR.iter_errors(value)]


def told(status: str = "passed", identifier: str = KEY.id, seconds: float = 7.33, **changes: Any) -> dict[str, Any]:
    """Return the dictionary of a complete run at this step time."""
    measured = measure(run(log(segment(steps(seconds)))), BASELINE, NOW)
    outcome = Outcome(Case(identifier, KEY), Status(status), judge(evidence(measured)))
    return {**describe(outcome, NOW, FOLDER), **changes}


def slow(identifier: str = "slow", **changes: Any) -> dict[str, Any]:
    """Return the dictionary of a regression by 20 %."""
    return told("failed", identifier, 8.79, **changes)


def doubtful(status: str = "passed", identifier: str = "doubtful") -> dict[str, Any]:
    """Return the dictionary of a run that cannot tell."""
    return told(status, identifier, 7.6)


def killed(identifier: str = "killed") -> dict[str, Any]:
    """Return the dictionary of a run that did not finish."""
    measured = measure(run(log(segment(steps([7.3] * 28), finished=False))), BASELINE, NOW)
    return describe(Outcome(Case(identifier, KEY), Status.FAILED, judge(evidence(measured))), NOW, FOLDER)


def missing(identifier: str = "missing", status: str = "skipped", context: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the dictionary of a configuration without a run."""
    outcome = Outcome(Case(identifier, KEY), Status(status), judge(evidence()), context=context)
    return describe(outcome, NOW, FOLDER)


def stray(identifier: str = "run_7", text: str = "no baseline of release 26.01") -> dict[str, Any]:
    """Return the dictionary of a run that matches nothing."""
    return describe_stray(UnmatchedRun(identifier, Reason.UNMATCHED, text, Path("/runs/log_7.out")), FOLDER)


def check(status: str = "passed", verdict: Verdict = Verdict.PASS, identifier: str = "family") -> dict[str, Any]:
    """Return the dictionary of a look at a family."""
    return describe_check(
        Check(CheckKind.WEAK_SCALING, identifier, Status(status), verdict, "93.1 % of the throughput")
    )
