"""When a launch stops: a PASS at any look, a REGRESSION only where two runs say it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from support.builders import BASELINE, HISTORY, NOW, evidence, measurement, run

from pytest_llmbench.core.baseline_records import Tolerance
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement, Look
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.judge.decide import decide_status, judge
from pytest_llmbench.launch.policies.repeat_policy import IN_TURN, ONE_LOOK, RunPlan, choose_look, count_next_runs


def judgement(verdict: Verdict, reason: Reason = Reason.CANNOT_TELL) -> Judgement:
    return Judgement(verdict, reason, ("as told",), BASELINE, 7.7, Tolerance(0.05))


def look_at(*factors: float, look: Look = IN_TURN) -> Judgement:
    """Judge the runs of one launch at these multiples of the baseline, newest first."""
    runs = [
        measurement(7.325 * factor, run=run(id=f"x_{hour}", launch="tonight", started=NOW - timedelta(hours=hour)))
        for hour, factor in enumerate(factors)
    ]
    return judge(evidence(*runs, *HISTORY, look=look))


@pytest.mark.parametrize(
    ("plan", "look"),
    [
        (RunPlan(), Look(0.0222, 0.03, 2)),
        (RunPlan(at_once=True), Look(0.0295, 0.05, 2)),
        (RunPlan(asked=2), Look(0.05, 0.05, 2)),
        (RunPlan(1, at_once=True), Look(0.05, 0.05, 1)),
    ],
    ids=["in turn", "at once", "two requested", "one run"],
)
def test_launch_plan_decides_the_levels(plan: RunPlan, look: Look) -> None:
    assert choose_look(plan) == look


@pytest.mark.parametrize(
    ("verdict", "done", "plan", "more"),
    [
        (Verdict.PASS, 1, RunPlan(), 0),
        (Verdict.INCONCLUSIVE, 1, RunPlan(), 1),
        (Verdict.REGRESSION, 1, RunPlan(), 1),
        (Verdict.REGRESSION, 2, RunPlan(), 0),
        (Verdict.INCONCLUSIVE, 2, RunPlan(), 1),
        (Verdict.INCONCLUSIVE, 3, RunPlan(), 0),
        (Verdict.REGRESSION, 1, RunPlan(1), 0),
        (Verdict.INCONCLUSIVE, 2, RunPlan(2), 0),
        (Verdict.INCONCLUSIVE, 1, RunPlan(at_once=True), 2),
        (Verdict.PASS, 1, RunPlan(asked=3), 2),
        (Verdict.INCONCLUSIVE, 2, RunPlan(asked=2), 0),
        (Verdict.INVALID, 1, RunPlan(), 0),
        (Verdict.INVALID, 1, RunPlan(asked=3), 0),
    ],
)
def test_verdict_and_plan_decide_the_next_runs(verdict: Verdict, done: int, plan: RunPlan, more: int) -> None:
    assert count_next_runs(plan, judgement(verdict), done) == more


def test_run_over_its_checkpoint_budget_is_not_repeated() -> None:
    over = judgement(Verdict.REGRESSION, Reason.OVER_BUDGET)
    assert count_next_runs(RunPlan(), over, 1) == count_next_runs(RunPlan(asked=3), over, 1) == 0


# --- one slow run is no regression ------------------------------------------------------------------------


def test_one_run_beyond_the_bound_is_unconfirmed() -> None:
    told = look_at(1.3)
    assert (told.verdict, told.reason) == (Verdict.INCONCLUSIVE, Reason.UNCONFIRMED)
    assert "1 run beyond it: a slow node or slow software, no telling" in told.text
    for inconclusive, required in product(("literal", "fail", "skip"), (True, False)):
        assert decide_status(told, required=required, inconclusive=inconclusive) is Status.FAILED
    assert look_at(1.3, look=ONE_LOOK).verdict is Verdict.REGRESSION


def test_two_slow_runs_that_agree_are_a_regression() -> None:
    assert look_at(1.10, 1.11).verdict is Verdict.REGRESSION
    for factors in ((1.3, 1.0), (1.0, 1.3), (1.2, 1.4)):
        told = look_at(*factors)
        assert (told.verdict, told.meets_point) == (Verdict.INCONCLUSIVE, False)
        assert told.reason in (Reason.UNCONFIRMED, Reason.REPEATS_DISAGREE)
        assert decide_status(told, required=False, inconclusive="literal") is Status.FAILED


def test_two_of_three_slow_runs_are_a_regression() -> None:
    assert look_at(1.2, 1.25, 1.3).verdict is Verdict.REGRESSION
    one_slow = look_at(3.0, 1.0, 1.0, look=Look(0.05, 0.4, fewest=2))  # at any level
    assert (one_slow.verdict, one_slow.reason) == (Verdict.INCONCLUSIVE, Reason.UNCONFIRMED)
    assert decide_status(one_slow, required=False, inconclusive="skip") is Status.FAILED


def test_pass_is_possible_at_every_analysis() -> None:
    for factors in ((1.0,), (1.0, 1.005), (1.0, 1.005, 0.995)):
        assert look_at(*factors).verdict is Verdict.PASS


def test_each_end_of_the_interval_has_its_level() -> None:
    looser = look_at(1.06, 1.07, look=replace(IN_TURN, regression=0.3))
    strict = look_at(1.06, 1.07)
    assert strict.estimate is not None
    assert looser.estimate is not None
    assert strict.estimate.high == looser.estimate.high
    assert strict.estimate.low < looser.estimate.low
    assert (strict.estimate.level, strict.estimate.regression_level) == (0.0222, 0.03)
