"""Records of A/B and bisect results in the JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

import msgspec
import pytest
from jsonschema import Draft202012Validator

from pytest_llmbench.core.trial_records import (
    NextTrial,
    Trial,
    TrialOutcome,
    TrialReport,
)
from pytest_llmbench.launch.policies import ab_policy as paired
from pytest_llmbench.launch.policies import search_policy as bisect
from pytest_llmbench.report.describe_trials import describe
from pytest_llmbench.report.outcome_documents import ReportedTrials

SCHEMA = json.loads(
    files("pytest_llmbench.report").joinpath("session.schema.json").read_text("utf-8")
)


def find_faults(described: ReportedTrials) -> list[str]:
    """Validate a record against the schema; return the errors."""
    properties = next(
        definition["properties"]["trials"]
        for definition in SCHEMA["$defs"].values()
        if "trials" in definition.get("properties", {})
    )
    return [
        error.message
        for error in Draft202012Validator(
            {**properties, "$defs": SCHEMA["$defs"]}
        ).iter_errors(json.loads(msgspec.json.encode(described)))
    ]


def measured(variant: int, seconds: float) -> Trial:
    return Trial(variant, TrialOutcome.MEASURED, seconds * 1000)


def compare(*seconds: float) -> ReportedTrials:
    trials: list[Trial] = []
    while isinstance(step := paired.next_step(trials, len(seconds)), NextTrial):
        trials.append(measured(step.variant, seconds[step.variant]))
    return describe(
        TrialReport(
            tuple(f"v{number}" for number in range(len(seconds))),
            step,
            nodes=("n1", "n2"),
        )
    )


def test_ab_document_has_difference_and_interval_as_fractions() -> None:
    described = compare(1.0, 1.05)
    assert find_faults(described) == []
    assert (described.variants, described.nodes) == (("v0", "v1"), ("n1", "n2"))
    assert described.answers
    (answer,) = described.answers
    assert (
        answer.variant,
        answer.reference,
        answer.answer,
        answer.pairs,
    ) == ("v1", "v0", "slower", 2)
    estimate = answer.estimate
    assert estimate
    assert estimate.low is not None
    assert estimate.difference == pytest.approx(0.05)
    assert 0 < estimate.low < 0.05 < (estimate.high or 0)
    assert estimate.confidence == pytest.approx(0.976)
    assert estimate.runs == (2, 2)


def test_ab_report_states_its_number_of_slurm_allocations() -> None:
    report = TrialReport(
        ("a", "b"),
        nodes=("n1",),
        allocations=2,
        separate_because="none could be held any more",
    )
    described = describe(report)
    assert find_faults(described) == []
    assert (described.allocations, described.separate_because) == (
        2,
        "none could be held any more",
    )
    assert compare(1.0, 1.05).separate_because is None


def test_variant_without_a_run_has_no_estimate() -> None:
    failed = [
        Trial(0, TrialOutcome.MEASURED, 1000.0),
        *[Trial(1, TrialOutcome.DOES_NOT_RUN, None)] * 2,
    ]
    step = paired.next_step(failed)
    assert not isinstance(step, NextTrial)
    described = describe(TrialReport(("a", "b"), step))
    assert find_faults(described) == []
    assert described.answers
    assert (described.answers[0].answer, described.answers[0].estimate) == (
        "does-not-run",
        None,
    )


def search(seconds: Sequence[float | None]) -> ReportedTrials:
    trials: list[Trial] = []
    while isinstance(step := bisect.next_step(trials, len(seconds)), NextTrial):
        taken = seconds[step.variant]
        trials.append(
            Trial(step.variant, TrialOutcome.DOES_NOT_RUN, None)
            if taken is None
            else measured(step.variant, taken)
        )
    return describe(
        TrialReport(tuple(f"b{number}" for number in range(len(seconds))), search=step)
    )


def test_build_search_report_states_the_builds_around_each_change() -> None:
    described = search([1.0, 1.0, 1.0, None, 1.04, 1.04, 1.04])
    assert find_faults(described) == []
    summary = described.search
    assert summary
    assert (summary.answer, summary.do_not_run, summary.ranges) == (
        "found",
        ("b3",),
        (),
    )
    (change,) = summary.changes
    assert (change.first, change.last) == ("b3", "b4")
    assert change.difference == pytest.approx(0.04, abs=1e-3)
    assert change.before == change.after == 0
