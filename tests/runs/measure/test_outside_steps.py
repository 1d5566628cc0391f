"""Slow steps outside the window (a level, a ramp or a stall), and recorded runs."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from runs.measure.test_wall_clock import (
    QUIET,
    SECONDS,
    list_reasons,
    make_recorded_baseline,
    measure_steps,
)
from support.builders import means_of, steps

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.codes import NoteCode, Observed, Reason
from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.runs.measure.outside_steps import find_largest_sum

COUNT = 100


def make_slow_steps(factors: dict[range, float], count: int = COUNT) -> Steps:
    seconds = np.full(count, SECONDS) * (1 + 0.003 * np.sin(np.arange(count) * 7.0))
    for step_range, factor in factors.items():
        seconds[list(step_range)] *= factor
    return steps(seconds.tolist())


@pytest.mark.parametrize(
    "columns",
    [
        make_slow_steps({range(45, 100): 1.3}),
        make_slow_steps({range(60, 100): 1.2}),
        make_slow_steps({range(45, 70): 1.1, range(70, 100): 1.2}),
        make_slow_steps({range(46, 47): 600.0}, 50),
        make_slow_steps({range(80, 84): 6.0}),
        steps(
            (SECONDS * (1 + np.maximum(0, np.arange(COUNT) - 45) * 0.01)).tolist()
        ),  # a ramp
    ],
)
def test_slow_steps_outside_window_are_invalid(columns: Steps) -> None:
    assert list_reasons(measure_steps(columns)) == [Reason.SLOW_OUTSIDE_WINDOW]


@pytest.mark.parametrize(
    "columns",
    [
        make_slow_steps({}),
        make_slow_steps({range(10): 3.0}),  # warm-up
        make_slow_steps({range(50, 52): 2.0}),
        make_slow_steps({range(46, 50): 1.04}, 50),
        make_slow_steps({range(45, 100): 1.03}),
        make_slow_steps({range(45, 100): 0.7}),
    ],
)
def test_ordinary_steps_outside_window_are_valid(columns: Steps) -> None:
    assert measure_steps(columns).problems == ()


def test_slow_steps_before_the_window_of_a_long_run_are_invalid() -> None:
    baseline = replace(
        make_recorded_baseline(), window=Window(500, 999, "trimmed_mean"), steps=1000
    )
    assert list_reasons(
        measure_steps(make_slow_steps({range(100, 480): 1.4}, 1000), baseline)
    ) == [Reason.SLOW_OUTSIDE_WINDOW]
    assert (
        measure_steps(make_slow_steps({range(100): 1.4}, 1000), baseline).problems == ()
    )


def test_slow_means_of_ten_steps_outside_the_window_are_invalid() -> None:
    baseline = replace(make_recorded_baseline(), window=Window(11, 40))
    columns = means_of(10, [SECONDS] * 5 + [1.3 * SECONDS] * 5)
    assert list_reasons(measure_steps(columns, baseline)) == [
        Reason.SLOW_OUTSIDE_WINDOW
    ]


def test_slow_steps_outside_the_window_are_valid_if_recorded_ones_were_slow() -> None:
    columns = make_slow_steps({range(45, 100): 1.2})
    measured = measure_steps(columns, make_recorded_baseline({}))
    assert measured.problems == ()
    assert NoteCode.SLOW_OUTSIDE_UNCOMPARED in {note.code for note in measured.notes}
    observed = {Observed(name): value for name, value in measured.observed}
    assert measure_steps(columns, make_recorded_baseline(observed)).problems == ()


def test_longer_run_that_loses_the_recorded_fraction_of_time_is_valid() -> None:
    observed = {
        Observed(name): value
        for name, value in measure_steps(
            make_slow_steps({range(45, 50): 1.1}, 50), make_recorded_baseline({})
        ).observed
    }
    assert (
        measure_steps(
            make_slow_steps({range(45, 100): 1.1}), make_recorded_baseline(observed)
        ).problems
        == ()
    )
    saves = {range(step, step + 1): 4.0 for step in range(9, 50, 10)}
    observed = {
        Observed(name): value
        for name, value in measure_steps(
            make_slow_steps(saves, 50), make_recorded_baseline({})
        ).observed
    }
    baseline = make_recorded_baseline(observed, mean_seconds=SECONDS * 1.3)
    assert (
        measure_steps(
            make_slow_steps({range(step, step + 1): 4.0 for step in range(9, 100, 10)}),
            baseline,
        ).problems
        == ()
    )


def test_recorded_stall_does_not_excuse_a_slow_stretch_outside_the_window() -> None:
    stalled = make_slow_steps({range(46, 47): 20.0}, 50)
    observed = {
        Observed(name): value
        for name, value in measure_steps(stalled, make_recorded_baseline({})).observed
    }
    assert (
        measure_steps(
            make_slow_steps({range(46, 47): 20.0}), make_recorded_baseline(observed)
        ).problems
        == ()
    )
    assert (
        measure_steps(
            make_slow_steps({range(46, 47): 20.0, range(80, 81): 4.0}),
            make_recorded_baseline(observed),
        ).problems
        == ()
    )
    assert list_reasons(
        measure_steps(
            make_slow_steps({range(50, 100): 1.24}), make_recorded_baseline(observed)
        )
    ) == [Reason.SLOW_OUTSIDE_WINDOW]
    assert list_reasons(
        measure_steps(
            make_slow_steps({range(200, 1000): 1.15}, 1000),
            make_recorded_baseline(observed),
        )
    ) == [Reason.SLOW_OUTSIDE_WINDOW]


def test_run_with_the_same_regular_stalls_as_the_recorded_run_is_valid() -> None:
    stalls = {range(step, step + 1): 3.0 for step in range(20, 200, 20)}
    baseline = replace(
        make_recorded_baseline(), window=Window(101, 199, "mean"), steps=200
    )
    observed = {
        Observed(name): value
        for name, value in measure_steps(
            make_slow_steps(stalls, 200), baseline
        ).observed
    }
    trimmed = replace(
        make_recorded_baseline(observed),
        window=Window(101, 199, "trimmed_mean"),
        steps=200,
    )
    assert measure_steps(make_slow_steps(stalls, 200), trimmed).problems == ()


@pytest.mark.parametrize(("recorded_loss", "noted"), [(60.0, True), (200.0, False)])
def test_slow_warm_up_is_noted_if_it_loses_much_more_time_than_recorded(
    recorded_loss: float, noted: bool
) -> None:
    measured = measure_steps(
        make_slow_steps({range(5, 6): 300.0}),
        make_recorded_baseline({**QUIET, Observed.WARM_UP_LOSS: recorded_loss}),
    )
    assert measured.problems == ()
    assert (NoteCode.SLOW_WARM_UP in {note.code for note in measured.notes}) is noted


def test_single_stall_outside_the_window_is_no_slow_stretch() -> None:
    noise = {range(step, step + 1): 1.01 + 0.01 * (step % 3) for step in range(45, 100)}
    stalled = {**noise, range(60, 61): 2.9}
    assert measure_steps(make_slow_steps(stalled)).problems == ()
    assert list_reasons(
        measure_steps(make_slow_steps({**noise, range(60, 63): 2.9}))
    ) == [Reason.SLOW_OUTSIDE_WINDOW]


def test_problem_with_a_single_slow_step_outside_the_window_names_this_step() -> None:
    problem = measure_steps(make_slow_steps({range(80, 81): 60.0})).problems[0]
    assert problem.text.startswith("step 80 outside the window")


def test_periodic_saves_are_valid_if_recorded_with_mean_and_judged_with_trimmed_mean() -> (
    None
):
    """Without a baseline its window has the mean, judged by its recording the trimmed
    mean."""
    saves = make_slow_steps(
        {range(step, step + 1): 6.0 for step in range(18, 200, 20)}, 200
    )
    window = Window(100, 199)
    drafted = replace(make_recorded_baseline({}), window=window, steps=200)
    observed = {
        Observed(name): value for name, value in measure_steps(saves, drafted).observed
    }
    baseline = replace(
        make_recorded_baseline(observed),
        window=window._replace(statistic="trimmed_mean"),
        steps=200,
    )
    assert measure_steps(saves, baseline).problems == ()


def test_steps_outside_the_window_are_judged_by_the_session_tolerance() -> None:
    from support.builders import NOW, log, run, segment

    from pytest_llmbench.runs.measure.measurement import measure

    content = segment(make_slow_steps({range(45, 100): 1.2}), total=COUNT)
    assert (
        measure(
            run(log(content)), make_recorded_baseline(), NOW, tolerance=0.25
        ).problems
        == ()
    )


def test_stretch_of_steps_with_the_largest_sum_is_found() -> None:
    assert find_largest_sum(np.array([-1.0, 2.0, -0.5, 3.0, -9.0, 4.0])) == (1, 4)
    begin, end = find_largest_sum(np.array([-1.0, -2.0]))
    assert begin == end
