"""Times that are not printed, or that are those of dispatching a step: none of them makes a run look fast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import BASELINE, NOW, at, log, means_of, run, segment, steps

from pytest_llmbench.core.models import Baseline, Measurement, Reason, Window
from pytest_llmbench.measure.measurement import measure

TOKENS = 8192 * 256 / 128
"""Tokens of a step on one GPU."""


def only(*numbers: int) -> Any:
    """Return a mask of 50 steps that holds these."""
    return np.isin(np.arange(50), numbers)


def measured(baseline: Baseline = BASELINE, **columns: Any) -> Measurement:
    return measure(run(log(segment(steps(**columns)))), baseline, NOW)


def codes(measurement: Measurement) -> list[str]:
    return [note.code for note in measurement.notes]


def test_a_dispatch_time_outside_the_window_is_set_aside() -> None:
    seconds = np.full(50, 7.325)
    seconds[1:3] = 5.0
    measurement = measured(seconds=seconds, asynchronous=only(1, 2))
    assert measurement.valid
    (note,) = measurement.notes
    assert (note.code, note.line) == ("asynchronous-dispatch", 101)
    assert note.text == "2 steps only dispatched when timed, set aside; first step 1"


@pytest.mark.parametrize("seconds", [0.215, 7.325])
def test_a_dispatch_time_in_the_window_makes_a_run_invalid(seconds: float) -> None:
    times = np.full(50, 7.325)
    times[11] = seconds
    measurement = measured(seconds=times, asynchronous=only(1, 11))
    (problem,) = measurement.problems
    assert (problem.reason, problem.line) == (Reason.ASYNCHRONOUS_DISPATCH, 111)
    assert problem.text.startswith(f"step 11 took {seconds:.4g} s only to be dispatched")
    assert "(1 such step in the window)" in problem.text
    assert 11 not in measurement.window_steps


def test_a_time_that_is_not_printed_follows_from_tokens() -> None:
    seconds, speed = np.full(50, 7.325), np.full(50, round(TOKENS / 7.325))
    seconds[20], speed[20] = np.nan, round(TOKENS / 9.0)
    measurement = measured(seconds=seconds, tokens_per_second_per_gpu=speed, global_batch_size=np.full(50, np.nan))
    assert measurement.valid
    assert measurement.window_seconds[9] == pytest.approx(9.0, rel=1e-3)
    assert measurement.statistic_seconds == pytest.approx((33 * 7.325 + 9.0) / 34, rel=1e-4)
    assert codes(measurement) == ["time-from-tokens"]
    assert measurement.notes[0].text == "1 step without a printed time: it follows from tokens/s, first step 20"


def test_a_printed_time_is_never_replaced() -> None:
    speed = np.full(50, TOKENS / 7.325 * 1.015)
    assert measured(tokens_per_second_per_gpu=speed).statistic_seconds == pytest.approx(7.325, rel=1e-12)


def test_times_that_follow_from_tokens_do_not_vouch_for_the_batch() -> None:
    """Whatever tokens/s are, times made of them agree with them: only printed times tell another batch."""
    unknown = np.full(50, np.nan)
    speed = np.full(50, TOKENS / 7.325)
    alone = measured(seconds=unknown, tokens_per_second_per_gpu=speed, global_batch_size=unknown)
    assert "unverified-batch" in codes(alone)
    first = np.where(only(11), np.nan, 7.325)
    doubled = measured(seconds=first, tokens_per_second_per_gpu=2 * speed, global_batch_size=unknown)
    assert [problem.reason for problem in doubled.problems] == [Reason.WRONG_CONFIGURATION]


def test_a_digit_of_tokens_is_one_of_the_time() -> None:
    speed = np.full(50, 100.0)
    baseline = replace(BASELINE, peak_tflops=float("nan"))
    measurement = measured(baseline, seconds=np.full(50, np.nan), tokens_per_second_per_gpu=speed)
    assert measurement.resolution_seconds == pytest.approx(TOKENS / 100 / 100)


def test_without_time_and_tokens_a_step_is_missing() -> None:
    inside, outside = (np.where(only(number), np.nan, 7.325) for number in (20, 3))
    (problem,) = measured(seconds=inside).problems
    assert problem.text == "1 of the steps 11 to 44 have no time: 20"
    assert (problem.reason, problem.line) == (Reason.WINDOW_INCOMPLETE, 120)
    measurement = measured(seconds=outside)
    assert measurement.valid
    assert codes(measurement) == ["untimed-steps"]


@pytest.mark.parametrize(("step", "valid"), [(0, True), (10, True), (11, False), (44, False), (47, False)])
def test_a_loss_may_be_missing_before_the_window_only(step: int, valid: bool) -> None:
    """In half precision the first steps overflow and are skipped, without a loss."""
    measurement = measured(has_loss=~only(step))
    assert measurement.valid is valid
    assert ("loss-missing-before" in codes(measurement)) is valid


def test_a_gradient_norm_that_is_no_number_is_a_divergence_wherever_it_stands() -> None:
    norm = np.where(only(3), np.nan, 1.0)
    measurement = measured(has_loss=~only(3), grad_norm=norm, has_grad_norm=~only())
    assert [problem.reason for problem in measurement.problems] == [Reason.DIVERGED]


def whole_run(of: int, seconds: float, resolution: float) -> Measurement:
    """Return what a run of 1921 steps in the recipe measured whose log prints a mean of `of` steps."""
    baseline = at(BASELINE, steps=1921, window=Window(1, 1921))
    columns = means_of(of, [seconds], resolution_seconds=np.array([resolution]))
    return measure(run(log(segment(columns, total=of))), baseline, NOW)


def test_the_recipe_says_how_many_steps_a_whole_run_had_where_its_digits_leave_a_choice() -> None:
    measurement = whole_run(1909, 7.4, 7.4 * 24 / 1909)
    assert measurement.valid
    assert measurement.statistic_seconds == pytest.approx(7.4 * 1909 / 1921)
    assert [note.text for note in measurement.notes if note.code == "steps"] == [
        "by its few digits the log has about 1909 steps; taken as the 1921 of the recipe"
    ]


@pytest.mark.parametrize(("of", "choice"), [(1909, 0.9), (1909, 20), (1909, 60), (1000, 24), (1950, 24)])
def test_a_run_of_another_number_of_steps_stays_what_it_is(of: int, choice: float) -> None:
    measurement = whole_run(of, 7.4, 7.4 * choice / of)
    assert measurement.statistic_seconds in (None, pytest.approx(7.4))
    assert not measurement.valid
