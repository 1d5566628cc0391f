"""What follows from a verdict: nothing that is unknown, untold or required is green by itself."""

from __future__ import annotations

from itertools import product

import pytest
from builders import BASELINE, measurement

from pytest_llmbench.core.models import Judgement, Reason, Status, Tolerance, Verdict
from pytest_llmbench.judge.decide import SEVERITY, decide_status, pick_worst


def judgement(verdict: Verdict, meets: bool | None = True) -> Judgement:
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
def test_what_follows_from_a_verdict(verdict: Verdict, required: bool, status: Status) -> None:
    assert decide_status(judgement(verdict), required=required) is status


@pytest.mark.parametrize(
    ("inconclusive", "required", "meets", "status"),
    [
        ("literal", False, True, Status.PASSED),
        ("literal", False, False, Status.FAILED),
        ("literal", False, None, Status.FAILED),
        ("literal", True, True, Status.PASSED),
        ("literal", True, False, Status.FAILED),
        ("fail", False, True, Status.FAILED),
        ("fail", True, True, Status.FAILED),
        ("skip", False, True, Status.SKIPPED),
        ("skip", False, False, Status.SKIPPED),
        ("skip", True, True, Status.FAILED),
        ("skip", True, False, Status.FAILED),
        ("ignore", False, True, Status.FAILED),
        ("", False, True, Status.FAILED),
    ],
)
def test_a_run_that_cannot_tell_follows_the_mode_and_is_never_skipped_where_it_is_required(
    inconclusive: str, required: bool, meets: bool | None, status: Status
) -> None:
    found = judgement(Verdict.INCONCLUSIVE, meets)
    assert decide_status(found, required=required, inconclusive=inconclusive) is status


def test_without_a_mode_the_literal_rule_decides() -> None:
    assert decide_status(judgement(Verdict.INCONCLUSIVE, meets=True), required=False) is Status.PASSED
    assert decide_status(judgement(Verdict.INCONCLUSIVE, meets=False), required=False) is Status.FAILED


@pytest.mark.parametrize(
    ("improvement", "status"), [("pass", Status.PASSED), ("fail", Status.FAILED), ("", Status.FAILED)]
)
def test_an_improvement_follows_the_mode(improvement: str, status: Status) -> None:
    assert decide_status(judgement(Verdict.IMPROVEMENT), required=False, improvement=improvement) is status


@pytest.mark.parametrize(
    ("required", "inconclusive", "improvement"),
    list(product((False, True), ("literal", "fail", "skip"), ("pass", "fail"))),
)
def test_no_mode_makes_a_regression_or_an_invalid_run_green(
    required: bool, inconclusive: str, improvement: str
) -> None:
    modes = {"required": required, "inconclusive": inconclusive, "improvement": improvement}
    for verdict in (Verdict.REGRESSION, Verdict.INVALID):
        assert decide_status(judgement(verdict), **modes) is Status.FAILED  # type: ignore[arg-type]
    assert decide_status(judgement("UNKNOWN"), **modes) is Status.FAILED  # type: ignore[arg-type]


def test_every_verdict_has_a_severity_and_the_worst_one_decides() -> None:
    assert set(SEVERITY) == set(Verdict)
    good, bad = judgement(Verdict.PASS), judgement(Verdict.REGRESSION)
    decides, others = pick_worst([good, bad], lambda one: decide_status(one, required=False))
    assert decides is bad
    assert others == (good,)


def test_of_two_inconclusive_verdicts_the_red_one_decides() -> None:
    green, red = judgement(Verdict.INCONCLUSIVE, True), judgement(Verdict.INCONCLUSIVE, False)
    assert pick_worst([green, red], lambda one: decide_status(one, required=False))[0] is red
