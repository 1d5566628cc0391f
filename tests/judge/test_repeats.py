"""Which runs are averaged, and which only tell the noise."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from builders import HISTORY, NOW, evidence, measurement, nights, run
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.models import Measurement, Problem, Reason, Verdict
from pytest_llmbench.judge.decide import judge

DIVERGED = Problem(Reason.DIVERGED, "loss is nan from step 9 on", 109)


def tonight(*factors: float, build: str = "image=a") -> list[Measurement]:
    """Return runs an hour apart, newest first, at these multiples of the baseline."""
    return [
        measurement(7.325 * factor, run=run(started=NOW - timedelta(hours=hour), build=(build,) if build else ()))
        for hour, factor in enumerate(factors)
    ]


def test_runs_of_one_night_are_not_averaged_unless_asked() -> None:
    judgement = judge(evidence(*tonight(1.10, 1.0)))
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.repeats == ()


def test_repeats_are_averaged_and_narrow_the_interval() -> None:
    single = judge(evidence(*tonight(1.02), *HISTORY))
    judgement = judge(evidence(*tonight(1.02, 1.015, 1.025), *HISTORY, repeat_window=timedelta(hours=3)))
    assert judgement.log_difference == pytest.approx(math.log(1.02), abs=1e-4)
    assert len(judgement.repeats) == 2
    assert judgement.estimate is not None
    assert single.estimate is not None
    assert judgement.estimate.standard_error < single.estimate.standard_error
    assert "mean of 3 repeats" in judgement.notes[0].text


def test_two_builds_are_not_repeats() -> None:
    bad, good = tonight(1.10, build="image=b")[0], tonight(1.0, 1.0, build="image=a")[1]
    judgement = judge(evidence(bad, good, repeat_window=timedelta(hours=3)))
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.repeats == ()


def test_repeats_that_differ_too_much_are_not_averaged() -> None:
    judgement = judge(evidence(*tonight(1.10, 1.0), repeat_window=timedelta(hours=3)))
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.log_difference == pytest.approx(math.log(1.10))
    assert judgement.notes[0].code == "repeats-disagree"


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, None])
def test_a_repeat_without_a_time_is_told_and_counts_for_nothing(seconds: float | None) -> None:
    good, bad = tonight(1.0, 1.001)
    untimed = replace(bad, statistic_seconds=seconds)
    judgement = judge(evidence(good, untimed, *HISTORY, repeat_window=timedelta(hours=3)))
    assert (judgement.verdict, judgement.repeats) == (Verdict.PASS, ())
    assert "a repeat cannot be judged: no step time was measured" in [note.text for note in judgement.notes]


def test_a_night_without_a_time_tells_nothing_of_the_noise() -> None:
    (newest,) = tonight(1.0)
    untimed = replace(nights(7.325)[0], statistic_seconds=math.nan)
    assert judge(evidence(newest, untimed, *HISTORY[1:])).estimate == judge(evidence(newest, *HISTORY[1:])).estimate


def test_an_invalid_repeat_is_told() -> None:
    good, bad = tonight(1.0, 1.001)
    judgement = judge(evidence(good, replace(bad, problems=(DIVERGED,)), repeat_window=timedelta(hours=3)))
    assert judgement.repeats == ()
    assert "a repeat cannot be judged: loss is nan from step 9 on" in [note.text for note in judgement.notes]


@given(st.permutations([1.01, 1.005, 1.013, 1.002]))
def test_the_order_of_repeats_does_not_matter(factors: list[float]) -> None:
    judgement = judge(evidence(*tonight(*factors), *HISTORY, repeat_window=timedelta(hours=5)))
    assert judgement.verdict is Verdict.PASS
    assert judgement.log_difference == pytest.approx(sum(map(math.log, factors)) / 4)


@pytest.mark.parametrize("older", [0.9, 1.0, 1.2])
def test_older_runs_are_not_averaged_into_tonights_verdict(older: float) -> None:
    judgement = judge(evidence(measurement(7.325 * 1.2), *nights(*[7.325 * older] * 2)))
    assert judgement.log_difference == pytest.approx(math.log(1.2))
    assert judgement.verdict is Verdict.REGRESSION


def test_many_runs_of_one_day_are_one_night() -> None:
    same_day = [measurement(7.325, run=run(started=NOW - timedelta(days=1, minutes=minute))) for minute in range(20)]
    judgement = judge(evidence(measurement(7.4), *same_day))
    assert judgement.estimate is not None
    assert not judgement.estimate.noise.measured


def test_runs_before_since_tell_the_noise() -> None:
    judgement = judge(evidence(measurement(7.4), excluded_by_since=HISTORY))
    assert judgement.estimate is not None
    assert judgement.estimate.noise.source == "12 nights"


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((1.03, 1.03, 1.03), Verdict.INCONCLUSIVE),
        ((1.067, 1.067, 1.067), Verdict.REGRESSION),
        ((1.0495, 1.04, 1.04), Verdict.INCONCLUSIVE),
        ((1.051, 1.03, 1.029), Verdict.INCONCLUSIVE),
        ((1.049, 1.068, 1.068), Verdict.INCONCLUSIVE),
        ((1.04, 1.04, 1.0), Verdict.INCONCLUSIVE),
    ],
)
def test_three_inconclusive_nights_running_are_judged_together(factors: tuple[float, ...], verdict: Verdict) -> None:
    """Only to a REGRESSION, where tonight's run does not meet the literal rule and each of the three could not tell."""
    newest, *older = (7.325 * factor for factor in factors)
    judgement = judge(evidence(measurement(newest), *nights(*older)))
    assert judgement.verdict is verdict
    if verdict is not Verdict.INCONCLUSIVE:
        assert "3 nights running could not tell" in judgement.text


def test_nights_far_apart_are_not_judged_together() -> None:
    judgement = judge(evidence(measurement(7.325 * 1.03), *nights(7.325 * 1.03, 7.325 * 1.03, first=20)))
    assert judgement.verdict is Verdict.INCONCLUSIVE
