"""Slow steps outside the window: a level, a ramp or a stall, beside what recorded runs
lost there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from runs.measure.test_wall_clock import QUIET, SECONDS, judge, reasons, recorded
from support.builders import means_of, steps

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.codes import NoteCode, Observed, Reason
from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.runs.measure.outside_steps import find_largest_sum

COUNT = 100


def slow(factors: dict[range, float], count: int = COUNT) -> Steps:
    seconds = np.full(count, SECONDS) * (1 + 0.003 * np.sin(np.arange(count) * 7.0))
    for part, factor in factors.items():
        seconds[list(part)] *= factor
    return steps(seconds.tolist())


@pytest.mark.parametrize(
    "columns",
    [
        slow({range(45, 100): 1.3}),
        slow({range(60, 100): 1.2}),
        slow({range(45, 70): 1.1, range(70, 100): 1.2}),
        slow({range(46, 47): 600.0}, 50),
        slow({range(80, 84): 6.0}),
        steps(
            (SECONDS * (1 + np.maximum(0, np.arange(COUNT) - 45) * 0.01)).tolist()
        ),  # a ramp
    ],
)
def test_slow_steps_outside_the_window_are_red(columns: Steps) -> None:
    assert reasons(judge(columns)) == [Reason.SLOW_OUTSIDE_WINDOW]


@pytest.mark.parametrize(
    "columns",
    [
        slow({}),
        slow({range(10): 3.0}),  # warm-up
        slow({range(50, 52): 2.0}),
        slow({range(46, 50): 1.04}, 50),
        slow({range(45, 100): 1.03}),
        slow({range(45, 100): 0.7}),
    ],
)
def test_other_steps_outside_the_window_are_not(columns: Steps) -> None:
    assert judge(columns).problems == ()


def test_first_half_of_a_long_run_is_looked_at() -> None:
    baseline = replace(recorded(), window=Window(500, 999, "trimmed_mean"), steps=1000)
    assert reasons(judge(slow({range(100, 480): 1.4}, 1000), baseline)) == [
        Reason.SLOW_OUTSIDE_WINDOW
    ]
    assert judge(slow({range(100): 1.4}, 1000), baseline).problems == ()


def test_means_of_ten_steps_are_looked_at() -> None:
    baseline = replace(recorded(), window=Window(11, 40))
    columns = means_of(10, [SECONDS] * 5 + [1.3 * SECONDS] * 5)
    assert reasons(judge(columns, baseline)) == [Reason.SLOW_OUTSIDE_WINDOW]


def test_what_recorded_runs_lost_is_no_change() -> None:
    columns = slow({range(45, 100): 1.2})
    measured = judge(columns, recorded({}))
    assert measured.problems == ()
    assert NoteCode.SLOW_OUTSIDE_UNCOMPARED in {note.code for note in measured.notes}
    observed = {Observed(name): value for name, value in measured.observed}
    assert judge(columns, recorded(observed)).problems == ()


def test_run_of_twice_the_steps_may_lose_the_same_share() -> None:
    observed = {
        Observed(name): value
        for name, value in judge(slow({range(45, 50): 1.1}, 50), recorded({})).observed
    }
    assert judge(slow({range(45, 100): 1.1}), recorded(observed)).problems == ()
    saves = {range(step, step + 1): 4.0 for step in range(9, 50, 10)}
    observed = {
        Observed(name): value
        for name, value in judge(slow(saves, 50), recorded({})).observed
    }
    baseline = recorded(observed, mean_seconds=SECONDS * 1.3)
    assert (
        judge(
            slow({range(step, step + 1): 4.0 for step in range(9, 100, 10)}), baseline
        ).problems
        == ()
    )


def test_stall_of_a_short_run_excuses_no_level() -> None:
    stalled = slow({range(46, 47): 20.0}, 50)
    observed = {
        Observed(name): value for name, value in judge(stalled, recorded({})).observed
    }
    assert judge(slow({range(46, 47): 20.0}), recorded(observed)).problems == ()
    assert (
        judge(
            slow({range(46, 47): 20.0, range(80, 81): 4.0}), recorded(observed)
        ).problems
        == ()
    )
    assert reasons(judge(slow({range(50, 100): 1.24}), recorded(observed))) == [
        Reason.SLOW_OUTSIDE_WINDOW
    ]
    assert reasons(judge(slow({range(200, 1000): 1.15}, 1000), recorded(observed))) == [
        Reason.SLOW_OUTSIDE_WINDOW
    ]


def test_stalls_in_window_do_not_hide_those_outside() -> None:
    stalls = {range(step, step + 1): 3.0 for step in range(20, 200, 20)}
    baseline = replace(recorded(), window=Window(101, 199, "mean"), steps=200)
    observed = {
        Observed(name): value
        for name, value in judge(slow(stalls, 200), baseline).observed
    }
    trimmed = replace(
        recorded(observed), window=Window(101, 199, "trimmed_mean"), steps=200
    )
    assert judge(slow(stalls, 200), trimmed).problems == ()


@pytest.mark.parametrize(("known", "noted"), [(60.0, True), (200.0, False)])
def test_slow_warm_up_is_compared_with_recorded_one(known: float, noted: bool) -> None:
    measured = judge(
        slow({range(5, 6): 300.0}), recorded({**QUIET, Observed.WARM_UP_LOSS: known})
    )
    assert measured.problems == ()
    assert (NoteCode.SLOW_WARM_UP in {note.code for note in measured.notes}) is noted


def test_one_stall_among_noise_is_no_level() -> None:
    noise = {range(step, step + 1): 1.01 + 0.01 * (step % 3) for step in range(45, 100)}
    stalled = {**noise, range(60, 61): 2.9}
    assert judge(slow(stalled)).problems == ()
    assert reasons(judge(slow({**noise, range(60, 63): 2.9}))) == [
        Reason.SLOW_OUTSIDE_WINDOW
    ]


def test_step_that_costs_all_is_named_alone() -> None:
    problem = judge(slow({range(80, 81): 60.0})).problems[0]
    assert problem.text.startswith("step 80 outside the window")


def test_run_is_recorded_and_judged_by_one_level() -> None:
    """Without a baseline its window has the mean, judged by its recording the trimmed
    mean."""
    saves = slow({range(step, step + 1): 6.0 for step in range(18, 200, 20)}, 200)
    window = Window(100, 199)
    drafted = replace(recorded({}), window=window, steps=200)
    observed = {Observed(name): value for name, value in judge(saves, drafted).observed}
    baseline = replace(
        recorded(observed), window=window._replace(statistic="trimmed_mean"), steps=200
    )
    assert judge(saves, baseline).problems == ()


def test_tolerance_of_the_session_counts() -> None:
    from support.builders import NOW, log, run, segment

    from pytest_llmbench.runs.measure.measurement import measure

    part = segment(slow({range(45, 100): 1.2}), total=COUNT)
    assert measure(run(log(part)), recorded(), NOW, tolerance=0.25).problems == ()


def test_largest_sum_is_where_most_is_lost() -> None:
    assert find_largest_sum(np.array([-1.0, 2.0, -0.5, 3.0, -9.0, 4.0])) == (1, 4)
    begin, end = find_largest_sum(np.array([-1.0, -2.0]))
    assert begin == end
