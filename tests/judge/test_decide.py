"""The verdict: which way the inequality points, what outranks what, and that nothing unknown passes."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from builders import BASELINE, NOW, evidence, measurement, run
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.judge.consequence import SEVERITY, consequence, worst
from pytest_llmbench.judge.decide import judge, judge_alone
from pytest_llmbench.models import Problem, Reason, Status, Tolerance, Verdict

PROFILED = Problem(Reason.PROFILED, "profile_enabled in llmb-config_1.yaml")
DIVERGED = Problem(Reason.DIVERGED, "loss is nan from step 9 on", 109)


@pytest.mark.parametrize(
    ("factor", "verdict", "reason"),
    [
        (0.94, Verdict.IMPROVEMENT, Reason.FASTER_THAN_BASELINE),
        (1 / 1.05, Verdict.PASS, Reason.WITHIN_TOLERANCE),
        (1.0, Verdict.PASS, Reason.WITHIN_TOLERANCE),
        (1.049, Verdict.PASS, Reason.WITHIN_TOLERANCE),
        (1.05, Verdict.PASS, Reason.WITHIN_TOLERANCE),
        (1.0501, Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND),
        (1.08, Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND),
        (1000.0, Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND),
    ],
)
def test_slower_than_the_bound_is_a_regression_and_faster_is_not(
    factor: float, verdict: Verdict, reason: Reason
) -> None:
    judgement = judge(evidence(measurement(7.325 * factor)))
    assert (judgement.verdict, judgement.reason) == (verdict, reason)
    assert judgement.meets_point is (verdict is not Verdict.REGRESSION)
    assert judgement.log_difference == pytest.approx(math.log(factor))
    assert judgement.bound_seconds == pytest.approx(7.325 * 1.05)


def test_a_tolerance_on_performance_allows_more_time_than_the_same_number_on_time() -> None:
    slower = evidence(measurement(7.325 * 1.0515))
    assert judge(slower).verdict is Verdict.REGRESSION
    assert judge(replace(slower, tolerance=Tolerance(0.05, "performance"))).verdict is Verdict.PASS


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_a_step_time_that_is_no_number_never_passes(bad: float) -> None:
    judgement = judge(evidence(measurement(bad)))
    assert judgement.verdict is Verdict.INVALID
    assert consequence(judgement, required=False) is Status.FAILED


def test_the_newest_comparable_run_decides() -> None:
    slow, fast = measurement(9.0), measurement(7.3)
    assert judge(evidence(slow, fast)).verdict is Verdict.REGRESSION
    assert judge(evidence(fast, slow)).verdict is Verdict.PASS


def test_an_invalid_newest_run_is_not_hidden_by_an_older_good_one() -> None:
    judgement = judge(evidence(measurement(7.3, problems=(DIVERGED,)), measurement(7.3)))
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, Reason.DIVERGED)
    assert "1 older run" in judgement.notes[-1].text


def test_a_profiled_run_stands_for_nothing() -> None:
    profiled = measurement(7.3, excluded=PROFILED)
    only = judge(evidence(profiled))
    assert (only.verdict, only.reason) == (Verdict.MISSING, Reason.ONLY_NOT_COMPARABLE)
    beside = judge(evidence(profiled, measurement(9.0)))
    assert beside.verdict is Verdict.REGRESSION
    assert "1 newer run cannot be compared" in beside.notes[0].text
    assert judge_alone(evidence(profiled)).verdict is Verdict.NOT_COMPARABLE


def test_no_run_is_missing() -> None:
    judgement = judge(evidence())
    assert (judgement.verdict, judgement.reason) == (Verdict.MISSING, Reason.NO_RUN)


@pytest.mark.parametrize(("hours", "verdict"), [(35.9, Verdict.PASS), (36.1, Verdict.MISSING), (None, Verdict.INVALID)])
def test_a_run_older_than_allowed_is_missing_and_one_of_unknown_age_is_invalid(
    hours: float | None, verdict: Verdict
) -> None:
    started = NOW - timedelta(hours=hours) if hours else None
    judgement = judge(evidence(measurement(run=run(started=started)), max_age=timedelta(hours=36)))
    assert judgement.verdict is verdict


def test_a_run_whose_start_nothing_says_cannot_be_ordered_among_others() -> None:
    unknown, known = measurement(7.3, run=run(started=None)), measurement(7.3)
    assert judge(evidence(unknown)).verdict is Verdict.PASS
    judgement = judge(evidence(unknown, known))
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, Reason.START_UNKNOWN)


@pytest.mark.parametrize(
    ("verdict", "required", "status"),
    [
        (Verdict.PASS, False, Status.PASSED),
        (Verdict.IMPROVEMENT, False, Status.PASSED),
        (Verdict.REGRESSION, False, Status.FAILED),
        (Verdict.INVALID, False, Status.FAILED),
        (Verdict.NOT_COMPARABLE, False, Status.SKIPPED),
        (Verdict.MISSING, False, Status.SKIPPED),
        (Verdict.MISSING, True, Status.FAILED),
    ],
)
def test_what_follows_from_a_verdict(verdict: Verdict, required: bool, status: Status) -> None:
    judgement = replace(judge(evidence(measurement())), verdict=verdict)
    assert consequence(judgement, required=required) is status


@pytest.mark.parametrize(("meets", "status"), [(True, Status.PASSED), (False, Status.FAILED), (None, Status.FAILED)])
def test_an_inconclusive_run_follows_the_literal_rule(meets: bool | None, status: Status) -> None:
    judgement = replace(judge(evidence(measurement())), verdict=Verdict.INCONCLUSIVE, meets_point=meets)
    assert consequence(judgement, required=False) is status


def test_every_verdict_has_a_severity_and_the_worst_one_decides() -> None:
    assert set(SEVERITY) == set(Verdict)
    good, bad = judge(evidence(measurement(7.3))), judge(evidence(measurement(9.0)))
    decides, others = worst([good, bad])
    assert decides is bad
    assert others == (good,)


seconds = st.floats(0.01, 1e4)


@given(seconds, st.floats(0.0, 0.4), st.floats(1.0, 3.0))
def test_more_slowdown_never_turns_a_regression_into_a_pass(measured: float, tolerance: float, factor: float) -> None:
    before = judge(evidence(measurement(measured), tolerance=tolerance))
    after = judge(evidence(measurement(measured * factor), tolerance=tolerance))
    if before.verdict is Verdict.REGRESSION:
        assert after.verdict is Verdict.REGRESSION


@given(seconds, st.floats(0.0, 0.4), st.floats(0.0, 0.09))
def test_a_wider_tolerance_never_turns_a_pass_into_a_failure(measured: float, tolerance: float, more: float) -> None:
    before = judge(evidence(measurement(measured), tolerance=tolerance))
    after = judge(evidence(measurement(measured), tolerance=tolerance + more))
    if before.verdict is Verdict.PASS:
        assert after.verdict is Verdict.PASS


@given(seconds, seconds)
def test_the_unit_of_time_cancels(measured: float, expected: float) -> None:
    in_seconds = judge(evidence(measurement(measured), baseline=replace(BASELINE, step_seconds=expected)))
    in_milliseconds = judge(
        evidence(measurement(measured * 1000), baseline=replace(BASELINE, step_seconds=expected * 1000))
    )
    assert in_seconds.log_difference == pytest.approx(in_milliseconds.log_difference, abs=1e-9)
