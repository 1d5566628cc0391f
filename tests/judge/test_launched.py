"""Runs that were launched for one verdict: all of them count, and none is launched until it is green."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from builders import BASELINE, HISTORY, NOW, evidence, measurement, run
from calibration import simulated_fleet
from hypothesis import given
from hypothesis import strategies as st
from procedures import REPEAT_WINDOW, judged
from scenarios import ATTEMPTS, SCENARIOS, Case, cases

from pytest_llmbench.core.models import BaselineKind, Judgement, Look, Measurement, Problem, Reason, Status, Verdict
from pytest_llmbench.judge import run_selection
from pytest_llmbench.judge.decide import decide_status, judge, judge_alone

DIVERGED = Problem(Reason.DIVERGED, "loss is nan from step 9 on", 109)
PROFILED = Problem(Reason.PROFILED, "profile_enabled in llmb-config_1.yaml")
GREEN = (Verdict.PASS, Verdict.IMPROVEMENT)


def launched(*factors: float, launch: str = "night-7", **fields: Any) -> list[Measurement]:
    """Return the runs of one launch an hour apart, newest first, at these multiples of the baseline."""
    return [
        measurement(
            7.325 * factor, run=run(id=f"x_{hour}", launch=launch, started=NOW - timedelta(hours=hour)), **fields
        )
        for hour, factor in enumerate(factors)
    ]


def status(judgement: Judgement) -> Status:
    return decide_status(judgement, required=False)


# --- which runs count -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, timedelta(minutes=1), timedelta(days=9)])
def test_the_runs_of_a_launch_are_averaged_whatever_the_window_and_the_build_say(window: timedelta | None) -> None:
    runs = launched(1.02, 1.015, 1.025)
    builds = [replace(one, run=run(launch="night-7", build=(f"image={n}",))) for n, one in enumerate(runs)]
    judgement = judge(evidence(*builds, *HISTORY, repeat_window=window))
    assert len(judgement.repeats) == 2
    assert judgement.log_difference == pytest.approx(math.log(1.02), abs=1e-4)


def test_runs_found_on_disk_never_join_a_launch() -> None:
    disk = [replace(one, run=run(build=("image=a",))) for one in launched(1.0, 1.0)]
    slow = replace(launched(1.1)[0], run=run(launch="night-7", build=("image=a",)))
    judgement = judge(evidence(slow, *disk, repeat_window=timedelta(days=1)))
    assert (judgement.verdict, judgement.repeats) == (Verdict.REGRESSION, ())
    found = judge(evidence(disk[0], repeat_window=timedelta(days=1)))
    assert found.repeats == ()


def test_a_launch_does_not_join_runs_found_on_disk() -> None:
    disk, newer = (
        measurement(7.325, run=run(build=("image=a",))),
        measurement(7.33, run=run(build=("image=a",), launch="l")),
    )
    beside = measurement(7.32, run=run(build=("image=a",)))
    assert run_selection.find_repeats(disk, evidence(disk, newer, beside, repeat_window=timedelta(days=1)))[0] == (
        disk,
        beside,
    )


def test_another_launch_is_history() -> None:
    judgement = judge(evidence(*launched(1.1), *launched(1.0, launch="night-6")))
    assert (judgement.verdict, judgement.repeats) == (Verdict.REGRESSION, ())


def test_a_launch_is_judged_on_its_own_runs_though_a_newer_one_lies_on_disk() -> None:
    newer = measurement(7.325, run=run(started=NOW))
    slow = launched(1.1)[0]
    assert judge(evidence(newer, slow)).measurement is slow


def test_the_start_of_a_launched_run_need_not_be_known() -> None:
    unknown = measurement(7.325, run=run(launch="night-7", started=None))
    assert judge(evidence(unknown, *HISTORY)).verdict is Verdict.PASS


# --- what cannot be judged --------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ({"problems": (DIVERGED,)}, Reason.DIVERGED),
        ({"excluded": PROFILED}, Reason.PROFILED),
        ({"statistic_seconds": None}, Reason.WINDOW_INCOMPLETE),
        ({"statistic_seconds": math.nan}, Reason.WINDOW_INCOMPLETE),
        ({"statistic_seconds": 0.0}, Reason.WINDOW_INCOMPLETE),
    ],
)
def test_a_launch_with_a_run_that_cannot_be_judged_is_invalid(
    position: int, lost: dict[str, Any], reason: Reason
) -> None:
    runs = launched(1.0, 1.0, 1.0)
    runs[position] = replace(runs[position], **lost)
    judgement = judge(evidence(*runs, *HISTORY))
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, reason)
    assert judgement.measurement is runs[position]
    assert f"x_{position}, one of 3 runs that count: " in judgement.text
    for inconclusive in ("literal", "fail", "skip"):
        assert decide_status(judgement, required=False, inconclusive=inconclusive) is Status.FAILED


def test_an_item_of_one_run_is_about_that_run() -> None:
    slow, fast = launched(1.1, 1.0)
    assert judge_alone(evidence(slow, fast)).verdict is Verdict.REGRESSION
    assert judge_alone(evidence(fast, slow)).verdict is Verdict.PASS


# --- runs that differ too much ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factors", "verdict", "meets"),
    [
        ((1.0, 1.10), Verdict.INCONCLUSIVE, False),
        ((1.10, 1.0), Verdict.INCONCLUSIVE, False),
        ((1.0, 1.10, 1.0), Verdict.INCONCLUSIVE, False),
        ((1.0, 0.9, 0.9), Verdict.INCONCLUSIVE, True),
        ((1.049, 0.95, 0.95), Verdict.INCONCLUSIVE, True),
        ((1.2, 1.25, 1.3), Verdict.REGRESSION, False),
    ],
)
def test_launched_runs_that_differ_too_much(factors: tuple[float, ...], verdict: Verdict, meets: bool) -> None:
    """The mean of all is compared, and by the literal rule every one of them has to meet the bound."""
    judgement = judge(evidence(*launched(*factors), *HISTORY, look=Look(0.025, 0.025)))
    assert (judgement.verdict, judgement.meets_point) == (verdict, meets)
    assert judgement.log_difference == pytest.approx(sum(map(math.log, factors)) / len(factors))
    assert status(judgement) is (Status.PASSED if meets else Status.FAILED)
    if verdict is Verdict.INCONCLUSIVE:
        assert judgement.reason is Reason.REPEATS_DISAGREE
        assert "the runs differ too much to be of one state" in judgement.text
        assert f"the mean of {len(factors)} repeats: " in judgement.notes[0].text


@pytest.mark.slow
@given(st.permutations([1.07, 1.0, 1.0, 1.0, 0.98]), st.integers(2, 5), st.booleans())
def test_launching_on_never_makes_green_what_disagrees(factors: list[float], count: int, known: bool) -> None:
    """Among the first runs is the slow one: no number of fast ones makes the launch green, in whatever order."""
    runs = launched(*sorted(factors, reverse=True)[:1], *factors[: count - 1])
    judgement = judge(evidence(*runs, *(HISTORY if known else ())))
    assert judgement.verdict not in GREEN
    assert not judgement.meets_point


@pytest.mark.slow
@given(st.lists(st.floats(0.9, 1.2), min_size=2, max_size=4), st.lists(st.floats(0.8, 1.0), max_size=3))
def test_fast_runs_do_not_make_a_launch_green_that_disagrees(first: list[float], more: list[float]) -> None:
    judgement = judge(evidence(*launched(*first, *more), *HISTORY))
    slowest, fastest = max(*first, *more), min(*first, *more)
    if slowest > 1.05 and math.log(slowest / fastest) > 0.05:  # beyond 3 sigma sqrt(2) of this history
        assert judgement.verdict not in GREEN
        assert status(judgement) is Status.FAILED


@pytest.mark.slow
@given(st.permutations([1.06, 1.02, 1.03]), st.permutations([1.12, 1.0, 0.99]))
def test_the_order_of_launched_runs_does_not_matter(near: list[float], apart: list[float]) -> None:
    for factors in (near, apart):
        told, ordered = (judge(evidence(*launched(*row), *HISTORY)) for row in (factors, sorted(factors)))
        assert (told.verdict, told.reason, told.meets_point) == (ordered.verdict, ordered.reason, ordered.meets_point)
        assert told.log_difference == pytest.approx(ordered.log_difference)


WARMING = tuple(np.concatenate([np.full(12, 7.6), np.full(22, 7.325)]).tolist())


@pytest.mark.parametrize(("warming", "reason"), [(1, Reason.WITHIN_TOLERANCE), (2, Reason.WARMING_UP)])
def test_one_launched_run_of_three_that_warms_up_is_chance_and_two_are_not(warming: int, reason: Reason) -> None:
    for first in range(2):
        runs = launched(1.0, 1.0, 1.0)
        for position in range(first, first + warming):
            runs[position] = replace(runs[position], window_seconds=WARMING)
        assert judge(evidence(*runs, *HISTORY)).reason is reason


# --- the sequence -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_launch_is_judged_as_the_repeats_of_the_calibration() -> None:
    """What differs: runs that differ too much are all compared, and one that warms up is not looked at alone."""
    compared = 0
    truth, simulated = simulated_fleet(0, 11)
    for change in (0.0, 0.05, 0.10):
        for case in cases(SCENARIOS["fleet"], truth, simulated, change):
            window, launch = judged(case, ATTEMPTS, Look(0.025, 0.025)), _of_launch(case)
            if any(note.code == "repeats-disagree" for note in window.notes):
                assert launch.reason is not Reason.WITHIN_TOLERANCE
                continue
            if Reason.WARMING_UP not in (window.reason, launch.reason):
                assert (launch.verdict, launch.reason, launch.estimate) == (
                    window.verdict,
                    window.reason,
                    window.estimate,
                )
                compared += 1
    assert compared > 225


def _of_launch(case: Case) -> Judgement:
    runs = tuple(
        replace(one, run=replace(one.run, found=replace(one.run.found, launch="night-7")))
        for one in case.attempts[ATTEMPTS - 1 :: -1]
    )
    found = replace(case.evidence, measurements=(*runs, *case.evidence.measurements), look=Look(0.025, 0.025))
    by_launch = run_selection.find_repeats(runs[0], found)
    attempts = case.attempts[ATTEMPTS - 1 :: -1]
    by_window = run_selection.find_repeats(
        attempts[0], replace(found, measurements=attempts, repeat_window=REPEAT_WINDOW)
    )
    assert [one.window_seconds for one in by_launch[0]] == [one.window_seconds for one in by_window[0]]
    return judge(found)


# --- a configuration without a value ----------------------------------------------------------------------

EMPTY = replace(BASELINE, kind=BaselineKind.RECIPE, step_seconds=math.nan, cells=())


@pytest.mark.parametrize("launch", ["", "night-7"])
def test_without_a_value_to_compare_with_a_measured_run_fails(launch: str) -> None:
    runs = [replace(one, baseline=EMPTY) for one in launched(1.0, 1.01, launch=launch)]
    judgement = judge(evidence(*runs, baseline=EMPTY))
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, Reason.NO_BASELINE)
    assert judgement.text.startswith("nothing to compare with yet: 7.325 s")
    assert judgement.text.endswith(" measured; record it with --llmb-record=DIR")
    assert (judgement.log_difference, judgement.meets_point, judgement.estimate) == (None, None, None)
    for inconclusive in ("literal", "fail", "skip"):
        assert decide_status(judgement, required=False, inconclusive=inconclusive) is Status.FAILED


def test_without_a_value_and_without_a_run_it_is_missing() -> None:
    judgement = judge(evidence(baseline=EMPTY))
    assert (judgement.verdict, judgement.reason) == (Verdict.MISSING, Reason.NO_RUN)


def test_without_a_value_an_invalid_run_stays_one() -> None:
    broken = measurement(7.3, baseline=EMPTY, problems=(DIVERGED,))
    assert judge(evidence(broken, baseline=EMPTY)).reason is Reason.DIVERGED
