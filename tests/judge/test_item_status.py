"""Item status of a verdict: unknown, unacknowledged or missing results never pass."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import BASELINE, measurement

from pytest_llmbench.core.baseline_records import Tolerance
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import (
    DEFAULT_RULES,
    Judgement,
    SessionRules,
)
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.judge.item_status import SEVERITY, decide_status, pick_worst


def make_judgement(verdict: Verdict, meets: bool | None = True) -> Judgement:
    text, bound = "as it says", 7.325 * 1.05
    return Judgement(
        verdict,
        Reason.CANNOT_TELL,
        (text,),
        BASELINE,
        bound,
        Tolerance(0.05),
        measurement=measurement(),
        meets_point=meets,
    )


@pytest.mark.parametrize(
    ("verdict", "required", "status"),
    [
        (Verdict.PASS, False, Status.PASSED),
        (Verdict.PASS, True, Status.PASSED),
        (Verdict.IMPROVEMENT, False, Status.PASSED),
        (Verdict.REGRESSION, False, Status.FAILED),
        (Verdict.INVALID, False, Status.FAILED),
        (Verdict.NOT_COMPARABLE, False, Status.SKIPPED),
        (Verdict.NOT_COMPARABLE, True, Status.FAILED),
        (Verdict.MISSING, False, Status.SKIPPED),
        (Verdict.MISSING, True, Status.FAILED),
    ],
)
def test_verdict_decides_the_item_status(
    verdict: Verdict, required: bool, status: Status
) -> None:
    assert (
        decide_status(make_judgement(verdict), DEFAULT_RULES, required=required)
        is status
    )


@pytest.mark.parametrize(
    ("inconclusive", "required", "meets", "status"),
    [
        ("literal", False, True, Status.PASSED),
        ("literal", False, False, Status.FAILED),
        ("literal", True, False, Status.FAILED),
        ("fail", False, True, Status.FAILED),
        ("skip", False, True, Status.SKIPPED),
        ("skip", True, True, Status.FAILED),
        ("ignore", False, True, Status.FAILED),
        ("", False, True, Status.FAILED),
    ],
)
def test_inconclusive_status_follows_the_option(
    inconclusive: str, required: bool, meets: bool | None, status: Status
) -> None:
    inconclusive_run = make_judgement(Verdict.INCONCLUSIVE, meets)
    assert (
        decide_status(
            inconclusive_run, SessionRules(inconclusive=inconclusive), required=required
        )
        is status
    )


def test_literal_rule_is_the_default() -> None:
    assert (
        decide_status(make_judgement(Verdict.INCONCLUSIVE, meets=True), DEFAULT_RULES)
        is Status.PASSED
    )
    assert (
        decide_status(make_judgement(Verdict.INCONCLUSIVE, meets=False), DEFAULT_RULES)
        is Status.FAILED
    )


@pytest.mark.parametrize(
    ("improvement", "status"),
    [("pass", Status.PASSED), ("fail", Status.FAILED), ("", Status.FAILED)],
)
def test_improvement_status_follows_the_option(
    improvement: str, status: Status
) -> None:
    assert (
        decide_status(
            make_judgement(Verdict.IMPROVEMENT), SessionRules(improvement=improvement)
        )
        is status
    )


@pytest.mark.parametrize("verdict", [Verdict.REGRESSION, Verdict.INVALID, "UNKNOWN"])
@pytest.mark.parametrize("inconclusive", ["literal", "fail", "skip"])
def test_no_option_passes_a_regression_or_invalid_run(
    verdict: Any, inconclusive: str
) -> None:
    for required in (False, True):
        status = decide_status(
            make_judgement(verdict),
            SessionRules(inconclusive=inconclusive),
            required=required,
        )
        assert status is Status.FAILED


def test_worst_verdict_decides_the_status() -> None:
    assert set(SEVERITY) == set(Verdict)
    good, bad = make_judgement(Verdict.PASS), make_judgement(Verdict.REGRESSION)
    decides, others = pick_worst([good, bad], DEFAULT_RULES)
    assert decides is bad
    assert others == (good,)


def test_failing_inconclusive_verdict_outweighs_a_passing_inconclusive_verdict() -> (
    None
):
    passing, failing = (
        make_judgement(Verdict.INCONCLUSIVE, True),
        make_judgement(Verdict.INCONCLUSIVE, False),
    )
    assert pick_worst([passing, failing], DEFAULT_RULES)[0] is failing
