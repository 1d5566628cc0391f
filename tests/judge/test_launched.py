"""Launched runs of one verdict: all of them count, and none is retried until it
passes."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import BASELINE, HISTORY, NOW, evidence, measurement, run

from pytest_llmbench.core.baseline_records import BaselineKind
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import (
    DEFAULT_RULES,
    DecisionRule,
    Judgement,
    SessionRules,
)
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.core.run_records import Measurement, Problem
from pytest_llmbench.judge.decide import judge, judge_alone
from pytest_llmbench.judge.item_status import decide_status
from pytest_llmbench.report.wording import phrase

DIVERGED = Problem(Reason.DIVERGED, "loss is nan from step 9 on", 109)
PROFILED = Problem(Reason.PROFILED, "profile_enabled in llmb-config_1.yaml")
PASSING = (Verdict.PASS, Verdict.IMPROVEMENT)


def make_launch(
    *factors: float, launch: str = "night-7", **fields: Any
) -> list[Measurement]:
    """Make the runs of one launch, an hour apart, newest first.

    `factors` are multiples of the baseline.
    """
    return [
        measurement(
            7.325 * factor,
            run=run(id=f"x_{hour}", launch=launch, started=NOW - timedelta(hours=hour)),
            **fields,
        )
        for hour, factor in enumerate(factors)
    ]


def status(judgement: Judgement) -> Status:
    return decide_status(judgement, DEFAULT_RULES)


# --- runs that count ------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, timedelta(days=9)])
def test_launched_runs_are_averaged_regardless_of_window_and_build(
    window: timedelta | None,
) -> None:
    runs = make_launch(1.02, 1.015, 1.025)
    builds = [
        replace(launched_run, run=run(launch="night-7", build=(f"image={index}",)))
        for index, launched_run in enumerate(runs)
    ]
    judgement = judge(evidence(*builds, *HISTORY, repeat_window=window))
    assert len(judgement.repeats) == 2
    assert judgement.log_difference == pytest.approx(math.log(1.02), abs=1e-4)


def test_runs_found_on_disk_never_join_a_launch() -> None:
    disk = [
        replace(disk_run, run=run(build=("image=a",)))
        for disk_run in make_launch(1.0, 1.0)
    ]
    slow = replace(make_launch(1.1)[0], run=run(launch="night-7", build=("image=a",)))
    judgement = judge(evidence(slow, *disk, repeat_window=timedelta(days=1)))
    assert (judgement.verdict, judgement.repeats) == (Verdict.REGRESSION, ())
    newer = replace(disk[0], run=replace(disk[0].run, started=NOW))
    launch = judge(evidence(newer, slow, repeat_window=timedelta(days=1)))
    assert (launch.measurement, launch.repeats) == (slow, ())


def test_runs_of_an_earlier_launch_are_never_averaged_with_the_judged_launch() -> None:
    judgement = judge(evidence(*make_launch(1.1), *make_launch(1.0, launch="night-6")))
    assert (judgement.verdict, judgement.repeats) == (Verdict.REGRESSION, ())


def test_undated_launched_run_is_judged() -> None:
    unknown = measurement(7.325, run=run(launch="night-7", started=None))
    assert judge(evidence(unknown, *HISTORY)).verdict is Verdict.PASS


# --- invalid runs ---------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ({"problems": (DIVERGED,)}, Reason.DIVERGED),
        ({"excluded": PROFILED}, Reason.PROFILED),
        ({"statistic_seconds": math.nan}, Reason.WINDOW_INCOMPLETE),
    ],
)
def test_launch_with_one_invalid_run_is_invalid(
    position: int, lost: dict[str, Any], reason: Reason
) -> None:
    runs = make_launch(1.0, 1.0, 1.0)
    runs[position] = replace(runs[position], **lost)
    judgement = judge(evidence(*runs, *HISTORY))
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, reason)
    assert judgement.measurement is runs[position]
    assert f"x_{position}, one of 3 judged runs: " in phrase(judgement)
    for inconclusive in ("literal", "fail", "skip"):
        assert (
            decide_status(judgement, SessionRules(inconclusive=inconclusive))
            is Status.FAILED
        )


def test_run_judged_alone_ignores_other_runs() -> None:
    slow, fast = make_launch(1.1, 1.0)
    assert judge_alone(evidence(slow, fast)).verdict is Verdict.REGRESSION
    assert judge_alone(evidence(fast, slow)).verdict is Verdict.PASS


# --- runs that differ too much --------------------------------------------------------


@pytest.mark.parametrize(
    ("factors", "verdict", "meets"),
    [
        ((1.0, 1.10), Verdict.INCONCLUSIVE, False),
        ((1.10, 1.0), Verdict.INCONCLUSIVE, False),
        ((1.0, 0.9, 0.9), Verdict.INCONCLUSIVE, True),
        ((1.2, 1.25, 1.3), Verdict.REGRESSION, False),
    ],
)
def test_launched_runs_that_disagree_do_not_pass(
    factors: tuple[float, ...], verdict: Verdict, meets: bool
) -> None:
    """The mean of all is compared; by the literal rule each of them must meet the
    bound."""
    judgement = judge(
        evidence(
            *make_launch(*factors), *HISTORY, decision_rule=DecisionRule(0.025, 0.025)
        )
    )
    assert (judgement.verdict, judgement.meets_point) == (verdict, meets)
    assert judgement.log_difference == pytest.approx(
        sum(map(math.log, factors)) / len(factors)
    )
    assert status(judgement) is (Status.PASSED if meets else Status.FAILED)
    if verdict is Verdict.INCONCLUSIVE:
        assert judgement.reason is Reason.REPEATS_DISAGREE
        assert "the runs differ too much to be averaged" in phrase(judgement)
        assert f"the mean of {len(factors)} repeats: " in phrase(judgement.notes[0])


@pytest.mark.slow
@given(
    st.lists(st.floats(0.9, 1.2), min_size=2, max_size=4),
    st.lists(st.floats(0.8, 1.0), max_size=3),
)
def test_additional_fast_runs_never_pass_a_launch_with_disagreeing_runs(
    first: list[float], more: list[float]
) -> None:
    judgement = judge(evidence(*make_launch(*first, *more), *HISTORY))
    slowest, fastest = max(*first, *more), min(*first, *more)
    if (
        slowest > 1.05 and math.log(slowest / fastest) > 0.05
    ):  # more than 3 sigma sqrt(2) of this history
        assert judgement.verdict not in PASSING
        assert status(judgement) is Status.FAILED


WARMING = tuple(np.concatenate([np.full(12, 7.6), np.full(22, 7.325)]).tolist())


@pytest.mark.parametrize(
    ("warming", "reason"), [(1, Reason.WITHIN_TOLERANCE), (2, Reason.WARMING_UP)]
)
def test_launch_is_inconclusive_if_two_of_three_runs_are_still_warming_up(
    warming: int, reason: Reason
) -> None:
    for first in range(2):
        runs = make_launch(1.0, 1.0, 1.0)
        for position in range(first, first + warming):
            runs[position] = replace(runs[position], window_seconds=WARMING)
        assert judge(evidence(*runs, *HISTORY)).reason is reason


# --- a configuration without a value --------------------------------------------------

EMPTY = replace(BASELINE, kind=BaselineKind.RECIPE, step_seconds=math.nan, cells=())


@pytest.mark.parametrize("launch", ["", "night-7"])
def test_run_without_a_baseline_value_is_invalid(launch: str) -> None:
    runs = [
        replace(launched_run, baseline=EMPTY)
        for launched_run in make_launch(1.0, 1.01, launch=launch)
    ]
    judgement = judge(evidence(*runs, baseline=EMPTY))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INVALID,
        Reason.NO_BASELINE,
    )
    assert phrase(judgement).startswith(
        "no baseline to compare with yet: measured 7.325 s"
    )
    assert phrase(judgement).endswith("; record it with --llmb-record=DIR")
    assert (judgement.log_difference, judgement.meets_point, judgement.estimate) == (
        None,
        None,
        None,
    )
    for inconclusive in ("literal", "fail", "skip"):
        assert (
            decide_status(judgement, SessionRules(inconclusive=inconclusive))
            is Status.FAILED
        )
