"""Runs that are averaged, and runs that only estimate the noise."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import HISTORY, NOW, evidence, measurement, nights, run

from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.run_records import Measurement, Problem
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.report.wording import phrase

DIVERGED = Problem(Reason.DIVERGED, "loss is nan from step 9 on", 109)


def make_repeats(*factors: float, build: str = "image=a") -> list[Measurement]:
    """Make runs an hour apart, newest first, at these multiples of the baseline."""
    return [
        measurement(
            7.325 * factor,
            run=run(
                started=NOW - timedelta(hours=hour), build=(build,) if build else ()
            ),
        )
        for hour, factor in enumerate(factors)
    ]


def test_runs_of_one_day_are_not_averaged_by_default() -> None:
    judgement = judge(evidence(*make_repeats(1.10, 1.0)))
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.repeats == ()


def test_repeats_are_averaged_and_narrow_the_interval() -> None:
    single = judge(evidence(*make_repeats(1.02), *HISTORY))
    judgement = judge(
        evidence(
            *make_repeats(1.02, 1.015, 1.025),
            *HISTORY,
            repeat_window=timedelta(hours=3),
        )
    )
    assert judgement.log_difference == pytest.approx(math.log(1.02), abs=1e-4)
    assert len(judgement.repeats) == 2
    assert judgement.estimate is not None
    assert single.estimate is not None
    assert judgement.estimate.standard_error < single.estimate.standard_error
    assert "mean of 3 repeats" in phrase(judgement.notes[0])


def test_runs_of_two_builds_are_not_repeats() -> None:
    bad, good = (
        make_repeats(1.10, build="image=b")[0],
        make_repeats(1.0, 1.0, build="image=a")[1],
    )
    judgement = judge(evidence(bad, good, repeat_window=timedelta(hours=3)))
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.repeats == ()


def test_repeats_that_disagree_are_not_averaged() -> None:
    judgement = judge(
        evidence(*make_repeats(1.10, 1.0), repeat_window=timedelta(hours=3))
    )
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.log_difference == pytest.approx(math.log(1.10))
    assert judgement.notes[0].code == "repeats-disagree"


def test_daily_run_without_a_step_time_does_not_change_the_noise() -> None:
    (newest,) = make_repeats(1.0)
    untimed = replace(nights(7.325)[0], statistic_seconds=math.nan)
    assert (
        judge(evidence(newest, untimed, *HISTORY[1:])).estimate
        == judge(evidence(newest, *HISTORY[1:])).estimate
    )


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ({"statistic_seconds": math.nan}, "no step time was measured"),
        ({"statistic_seconds": None}, "no step time was measured"),
        ({"problems": (DIVERGED,)}, "loss is nan from step 9 on"),
    ],
)
def test_invalid_repeat_is_noted_and_not_averaged(
    damage: dict[str, Any], text: str
) -> None:
    good, bad = make_repeats(1.0, 1.001)
    judgement = judge(
        evidence(
            good, replace(bad, **damage), *HISTORY, repeat_window=timedelta(hours=3)
        )
    )
    assert (judgement.verdict, judgement.repeats) == (Verdict.PASS, ())
    assert f"a repeat cannot be judged: {text}" in [
        phrase(note) for note in judgement.notes
    ]


@given(st.permutations([1.01, 1.005, 1.013, 1.002]))
def test_order_of_repeats_does_not_matter(factors: list[float]) -> None:
    judgement = judge(
        evidence(*make_repeats(*factors), *HISTORY, repeat_window=timedelta(hours=5))
    )
    assert judgement.verdict is Verdict.PASS
    assert judgement.log_difference == pytest.approx(sum(map(math.log, factors)) / 4)


@pytest.mark.parametrize("older", [0.9, 1.2])
def test_older_runs_are_not_averaged(older: float) -> None:
    judgement = judge(evidence(measurement(7.325 * 1.2), *nights(*[7.325 * older] * 2)))
    assert judgement.log_difference == pytest.approx(math.log(1.2))
    assert judgement.verdict is Verdict.REGRESSION


def test_runs_of_one_day_measure_no_noise() -> None:
    same_day = [
        measurement(7.325, run=run(started=NOW - timedelta(days=1, minutes=minute)))
        for minute in range(20)
    ]
    few = judge(evidence(measurement(7.4), *same_day)).estimate
    excluded = judge(evidence(measurement(7.4), excluded_by_since=HISTORY)).estimate
    assert few is not None
    assert excluded is not None
    assert not few.noise.measured
    assert excluded.noise.source == "12 days"


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((1.03, 1.03, 1.03), Verdict.INCONCLUSIVE),
        ((1.067, 1.067, 1.067), Verdict.REGRESSION),
        (
            (1.0499, 1.075, 1.075),
            Verdict.INCONCLUSIVE,
        ),  # the newest run meets the literal rule
        ((1.04, 1.04, 1.0), Verdict.INCONCLUSIVE),
    ],
)
def test_three_consecutive_inconclusive_days_are_judged_together(
    factors: tuple[float, ...], verdict: Verdict
) -> None:
    """Only a REGRESSION results, and only if the newest run does not meet the literal
    rule and each of the three is inconclusive."""
    newest, *older = (7.325 * factor for factor in factors)
    judgement = judge(evidence(measurement(newest), *nights(*older)))
    assert judgement.verdict is verdict
    if verdict is not Verdict.INCONCLUSIVE:
        assert "inconclusive on 3 days in a row" in phrase(judgement)


def test_runs_days_apart_are_not_judged_together() -> None:
    judgement = judge(
        evidence(
            measurement(7.325 * 1.067), *nights(7.325 * 1.067, 7.325 * 1.067, first=20)
        )
    )
    assert judgement.verdict is Verdict.INCONCLUSIVE
