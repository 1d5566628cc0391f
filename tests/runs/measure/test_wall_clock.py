"""Step times against the timestamps: data loading, stalls, changed clocks, and pauses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.builders import BASELINE, NOW, log, means_of, run, segment, steps

from pytest_llmbench.core.baseline_records import Baseline, BaselineKind, Recording
from pytest_llmbench.core.codes import NoteCode, Observed, Reason
from pytest_llmbench.core.log_records import PauseKind, Steps
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.report.wording import phrase
from pytest_llmbench.runs.measure.measurement import measure

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Integers

SECONDS = 2.0
QUIET = {
    Observed.WALL_CLOCK_RATIO: 1.0,
    Observed.RUN_CLOCK_RATIO: 1.0,
    Observed.OUTSIDE_GAPS: 0.0,
    Observed.LONGEST_EVALUATION: 0.0,
    Observed.LONGEST_SAVE: 0.0,
    Observed.OUTSIDE_LOSS: 0.0,
}


def make_recorded_baseline(
    observed: dict[Observed, float] | None = None, mean_seconds: float = SECONDS
) -> Baseline:
    """Return a baseline with a step time of 2 s and these recorded values."""
    values = tuple(
        (str(name), value)
        for name, value in (QUIET if observed is None else observed).items()
    )
    recording = Recording(
        "2026-11-01", 1, mean_seconds, SECONDS, 0.0, (SECONDS,), (), observed=values
    )
    kind = BaselineKind.RECORDED
    return replace(
        BASELINE,
        kind=kind,
        step_seconds=SECONDS,
        recording=recording,
        peak_tflops=math.nan,
    )


def make_clocked_steps(
    lost: dict[int, float] | Sequence[float] = (),
    unit: float = 0.0,
    count: int = 50,
    **columns: Any,
) -> Steps:
    """Return 2 s steps, with additional time on the clock before some of them.

    Timestamps are rounded to `unit`.
    """
    extra = np.zeros(count)
    for step, seconds in lost.items() if isinstance(lost, dict) else enumerate(lost):
        extra[step] = seconds
    stamp = 1.7e9 + np.cumsum(np.full(count, SECONDS) + extra)
    made = steps(
        [SECONDS] * count,
        stamp=np.floor(stamp / unit) * unit if unit else stamp,
        **columns,
    )
    return dataclasses.replace(made, resolution_seconds=np.full(count, 0.0001))


def measure_steps(columns: Steps, baseline: Baseline | None = None) -> Measurement:
    many = len(columns)
    return measure(
        run(log(segment(columns, total=many))),
        baseline or make_recorded_baseline(),
        NOW,
    )


def list_reasons(measured: Measurement) -> list[Reason]:
    return [problem.reason for problem in measured.problems]


def repeat(first: int, last: int, seconds: float) -> dict[int, float]:
    return dict.fromkeys(range(first, last + 1), seconds)


def make_pauses(*steps: int, kind: PauseKind = PauseKind.EVALUATION) -> Integers:
    """Return the kinds of pauses before each of 50 steps."""
    return np.where(np.isin(np.arange(50), steps), int(kind), 0)


@pytest.mark.parametrize(
    "lost",
    [
        repeat(0, 49, 0.6),
        repeat(11, 44, 0.4),
        repeat(20, 40, 1.0),
        {31: 2400.0},
        {30: 40.0},
        {47: 2400.0},
        {6: 0.0, 47: 200.0, 48: 200.0},
        {13: 3600.0, 40: 3600.0},
        {5: 2400.0},  # in the warm-up
        {48: 1200.0, 8: 200.0},
    ],
)
@pytest.mark.parametrize("unit", [0.0, 1.0])
def test_lost_time_between_steps_makes_a_run_invalid(
    lost: dict[int, float], unit: float
) -> None:
    measured = measure_steps(make_clocked_steps(lost, unit))
    assert list_reasons(measured) == [Reason.WALL_CLOCK]
    assert measured.problems[0].line


@pytest.mark.parametrize(
    "columns",
    [
        make_clocked_steps(),
        make_clocked_steps(unit=1.0),
        make_clocked_steps(repeat(0, 49, 0.04)),
        make_clocked_steps({0: 300.0, 1: 60.0}),  # compilation
        make_clocked_steps({20: 12.0}),  # a short stall
        make_clocked_steps({47: 200.0}),
        make_clocked_steps(
            dict.fromkeys((10, 20, 30, 40), 60.0), paused=make_pauses(10, 20, 30, 40)
        ),
        make_clocked_steps(
            {10: 60.0, 20: 75.0, 30: 50.0, 40: 80.0}, paused=make_pauses(10, 20, 30, 40)
        ),
        make_clocked_steps({31: 3600.0}),
        make_clocked_steps({31: -3600.0}),
        make_clocked_steps({48: 3600.0}, unit=1.0),
        dataclasses.replace(
            make_clocked_steps(),
            stamp=make_clocked_steps().stamp[
                np.minimum(np.arange(50) // 6 * 6 + 5, 49)
            ],
        ),  # written in bursts
        steps([SECONDS] * 50),  # without stamps
    ],
)
def test_ordinary_run_is_valid(columns: Steps) -> None:
    assert measure_steps(columns).problems == ()


def test_changed_clock_is_noted() -> None:
    notes = {
        note.code: note
        for note in measure_steps(make_clocked_steps({31: 3600.0})).notes
    }
    assert phrase(notes[NoteCode.CLOCK_SET]).startswith(
        "the clock was changed by an hour before step 31"
    )


@pytest.mark.parametrize(
    ("step", "jump", "red"),
    [(47, -600.0, True), (30, -600.0, True), (47, -7200.0, True), (47, -8.0, False)],
)
def test_clock_set_back_makes_a_run_invalid_because_it_may_hide_a_gap(
    step: int, jump: float, red: bool
) -> None:
    """A clock set back by an hour and a gap of 50 minutes are one jump of 10 minutes."""
    measured = measure_steps(make_clocked_steps({step: jump}))
    assert list_reasons(measured) == [Reason.WALL_CLOCK] * red
    assert NoteCode.CLOCK_SET in {note.code for note in measured.notes}


def test_gaps_for_announced_pauses_are_counted_in_a_note() -> None:
    columns = make_clocked_steps({20: 60.0, 40: 60.0}, paused=make_pauses(20, 40))
    notes = {note.code: note for note in measure_steps(columns).notes}
    assert phrase(notes[NoteCode.PAUSES]).startswith("2 gaps of 120.0 s in all")


HUNG: dict[int, float] = {10: 40.0, 20: 40.0, 30: 2400.0, 40: 40.0}
RECORDED_SAVES = {**QUIET, Observed.LONGEST_SAVE: 60.0}


@pytest.mark.parametrize(
    ("lost", "kind", "observed", "red"),
    [
        (HUNG, PauseKind.EVALUATION, QUIET, True),
        (HUNG, PauseKind.SAVE, QUIET, True),
        (HUNG, PauseKind.SAVE, RECORDED_SAVES, True),
        ({20: 1500.0, 40: 1500.0}, PauseKind.SAVE, RECORDED_SAVES, True),  # both hung
        ({20: 1500.0}, PauseKind.SAVE, RECORDED_SAVES, True),
        ({20: 1500.0}, PauseKind.SAVE, QUIET, False),  # cannot be compared
        ({20: 1500.0, 40: 1500.0}, PauseKind.SAVE, QUIET, False),
        (
            {20: 150.0, 40: 160.0},
            PauseKind.SAVE,
            RECORDED_SAVES,
            False,
        ),  # another file system
        ({10: 40.0, 20: 40.0, 30: 300.0, 40: 40.0}, PauseKind.EVALUATION, QUIET, False),
        (
            {20: 600.0, 40: 650.0},
            PauseKind.SAVE | PauseKind.EVALUATION,
            RECORDED_SAVES,
            True,
        ),
    ],
)
def test_pause_is_invalid_if_much_longer_than_other_or_recorded_pauses(
    lost: dict[int, float], kind: PauseKind, observed: dict[Observed, float], red: bool
) -> None:
    measured = measure_steps(
        make_clocked_steps(lost, paused=make_pauses(*lost, kind=kind)),
        make_recorded_baseline(observed),
    )
    assert list_reasons(measured) == ([Reason.WALL_CLOCK] if red else [])


@pytest.mark.parametrize("observed", [QUIET, {}])
@pytest.mark.parametrize("lost", [{20: 1500.0}, {20: 1500.0, 40: 1500.0}])
def test_long_single_pause_is_noted(
    lost: dict[int, float], observed: dict[Observed, float]
) -> None:
    measured = measure_steps(
        make_clocked_steps(lost, paused=make_pauses(*lost)),
        make_recorded_baseline(observed),
    )
    assert NoteCode.WALL_CLOCK in {note.code for note in measured.notes}


def test_long_regular_evaluations_that_recorded_runs_lack_are_noted() -> None:
    steps_before = (10, 20, 30, 40)
    for seconds, noted in ((60.0, False), (120.0, True)):
        columns = make_clocked_steps(
            dict.fromkeys(steps_before, seconds), paused=make_pauses(*steps_before)
        )
        measured = measure_steps(columns)
        assert measured.problems == ()
        assert (NoteCode.WALL_CLOCK in {note.code for note in measured.notes}) is noted
        assert NoteCode.WALL_CLOCK not in {
            note.code
            for note in measure_steps(columns, make_recorded_baseline({})).notes
        }


def test_work_announced_each_step_is_no_pause() -> None:
    columns = make_clocked_steps(repeat(1, 49, 3.0), paused=make_pauses(*range(1, 50)))
    assert list_reasons(measure_steps(columns)) == [Reason.WALL_CLOCK]


@pytest.mark.parametrize(
    ("lost", "red"),
    [
        (dict.fromkeys((10, 20, 30, 40), 60.0), False),
        ({15: 60.0, 30: 60.0, 45: 60.0}, False),
        ({20: 60.0, 40: 60.0}, False),
        ({20: 1500.0, 33: 40.0}, True),
        ({10: 60.0, 20: 60.0, 30: 60.0, 40: 1500.0}, True),
        ({10: 60.0, 20: 60.0, 27: 400.0, 30: 60.0, 40: 60.0}, True),
        (dict.fromkeys(range(0, 50, 4), 20.0), True),  # too often for an evaluation
        (repeat(0, 49, 5.0), True),
    ],
)
def test_regular_gaps_in_event_file_are_pauses(
    lost: dict[int, float], red: bool
) -> None:
    part = segment(make_clocked_steps(lost), total=50)
    measured = measure(
        run(replace(log(part), dialect="metrics")), make_recorded_baseline(), NOW
    )
    assert list_reasons(measured) == ([Reason.WALL_CLOCK] if red else [])


def test_gap_after_the_clock_was_set_back_is_invalid() -> None:
    measured = measure_steps(make_clocked_steps({20: -1800.0, 30: 1800.0}))
    assert list_reasons(measured) == [Reason.WALL_CLOCK]
    notes = {
        note.code: note
        for note in measure_steps(make_clocked_steps({20: -1800.0})).notes
    }
    assert phrase(notes[NoteCode.CLOCK_SET]).startswith(
        "the clock goes back by 1800.0 s before step 20"
    )


@pytest.mark.parametrize(("seconds", "noted"), [(0.08, False), (0.17, True)])
def test_small_steady_excess_of_clock_over_step_times_is_noted(
    seconds: float, noted: bool
) -> None:
    columns = make_clocked_steps([seconds] * 400, count=400)
    baseline = replace(
        make_recorded_baseline(),
        window=BASELINE.window._replace(first=201, last=399),
        steps=400,
    )
    measured = measure_steps(columns, baseline)
    assert measured.problems == ()
    assert (NoteCode.WALL_CLOCK in {note.code for note in measured.notes}) is noted


@pytest.mark.parametrize(
    "observed",
    [{}, {**QUIET, Observed.WALL_CLOCK_RATIO: 1.3, Observed.RUN_CLOCK_RATIO: 1.3}],
)
def test_ratio_of_clock_to_step_times_is_compared_with_recorded_runs(
    observed: dict[Observed, float],
) -> None:
    measured = measure_steps(
        make_clocked_steps(repeat(0, 49, 0.62)), make_recorded_baseline(observed)
    )
    assert measured.problems == ()
    assert (NoteCode.WALL_CLOCK in {note.code for note in measured.notes}) is not bool(
        observed
    )


def test_clock_of_a_run_agrees_with_a_baseline_recorded_from_this_run() -> None:
    columns = make_clocked_steps(repeat(0, 49, 0.7) | {47: 900.0}, unit=1.0)
    observed = {
        Observed(name): value
        for name, value in measure_steps(columns, make_recorded_baseline({})).observed
    }
    assert observed[Observed.WALL_CLOCK_RATIO] == pytest.approx(1.35, abs=0.03)
    assert measure_steps(columns, make_recorded_baseline(observed)).problems == ()


def test_clock_is_compared_with_printed_means_of_ten_steps() -> None:
    def make(factor: float) -> Steps:
        return means_of(10, [SECONDS] * 5, stamp=1.7e9 + np.arange(1, 6) * 20 * factor)

    baseline = replace(
        make_recorded_baseline(), window=BASELINE.window._replace(first=11, last=40)
    )
    assert measure_steps(make(1.0), baseline).problems == ()
    assert list_reasons(measure_steps(make(1.6), baseline)) == [Reason.WALL_CLOCK]


def test_time_since_the_end_of_an_evaluation_is_no_gap() -> None:
    columns = make_clocked_steps({20: 60.0})
    since = np.where(np.arange(50) == 20, columns.stamp - SECONDS, np.nan)
    assert measure_steps(dataclasses.replace(columns, since=since)).problems == ()


def test_step_time_only_measurement_does_not_check_the_clock() -> None:
    columns = segment(make_clocked_steps(repeat(0, 49, 0.6)))
    measured = measure(
        run(log(columns)), make_recorded_baseline(), NOW, step_time_only=True
    )
    assert (measured.problems, measured.observed) == ((), ())


def make_stamped_steps(
    seconds: float, rate_seconds: float, batch: float = 64.0
) -> Steps:
    """Return steps timed by their timestamps, with a rate from another timer."""
    stamp = 1.7e9 + np.cumsum(np.full(50, seconds))
    return steps(
        [seconds] * 50, stamp=stamp, throughput=np.full(50, batch / rate_seconds)
    )


def test_printed_rate_reveals_step_times_from_a_clock_that_runs_slow() -> None:
    baseline = make_recorded_baseline({**QUIET, Observed.WORK_PER_STEP: 64.0})
    assert measure_steps(make_stamped_steps(2.0, 2.0), baseline).problems == ()
    assert list_reasons(measure_steps(make_stamped_steps(2.0, 2.24), baseline)) == [
        Reason.TIMES_DISAGREE
    ]
    assert (
        measure_steps(make_stamped_steps(2.0, 1.8), baseline).problems == ()
    )  # data loading, in the step time


def test_low_rate_in_every_tenth_step_does_not_contradict_step_times() -> None:
    baseline = make_recorded_baseline({**QUIET, Observed.WORK_PER_STEP: 64.0})
    every_tenth = make_stamped_steps(2.0, 2.0)
    rate = np.where(np.arange(50) % 10 == 2, 8.0, 32.0)
    assert (
        measure_steps(
            dataclasses.replace(every_tenth, throughput=rate), baseline
        ).problems
        == ()
    )


def test_higher_sample_rate_than_recorded_is_no_contradiction() -> None:
    baseline = make_recorded_baseline({**QUIET, Observed.WORK_PER_STEP: 64.0 * 1.1})
    assert measure_steps(make_stamped_steps(1.8, 1.8), baseline).problems == ()


def test_zero_rates_are_invalid_if_recorded_runs_print_rates() -> None:
    zero = make_stamped_steps(2.0, 2.0, batch=0.0)
    baseline = make_recorded_baseline({**QUIET, Observed.WORK_PER_STEP: 64.0})
    (problem,) = measure_steps(zero, baseline).problems
    assert problem.reason is Reason.TIMES_DISAGREE
    assert problem.text.startswith("each step of the window prints a rate of 0 ")
    partly = np.where(np.arange(50) % 2 == 0, 32.0, 0.0)
    assert (
        measure_steps(dataclasses.replace(zero, throughput=partly), baseline).problems
        == ()
    )
    tokens = np.full(50, 8192.0)
    other = dataclasses.replace(zero, tokens_per_second_per_gpu=tokens)
    assert measure_steps(other, baseline).problems == ()


def test_zero_rates_are_valid_if_recorded_rates_are_missing_or_too_small() -> None:
    zero = make_stamped_steps(2.0, 2.0, batch=0.0)
    assert (
        measure_steps(zero, make_recorded_baseline()).problems == ()
    )  # the recorded runs printed none
    coarse = make_recorded_baseline({**QUIET, Observed.WORK_PER_STEP: 1.5})
    assert (
        measure_steps(zero, coarse).problems == ()
    )  # 0.75 a second may be printed as 0
    own_times = make_clocked_steps()  # not derived from the timestamps
    printed = dataclasses.replace(
        own_times, seconds=own_times.seconds * 0.9, throughput=np.zeros(50)
    )
    baseline = make_recorded_baseline({**QUIET, Observed.WORK_PER_STEP: 64.0})
    assert Reason.TIMES_DISAGREE not in list_reasons(measure_steps(printed, baseline))


@pytest.mark.parametrize("factor", [1000.0, 0.01])
def test_times_in_other_unit_are_invalid(factor: float) -> None:
    columns = make_clocked_steps()
    stamp = columns.stamp[0] + factor * (columns.stamp - columns.stamp[0])
    assert Reason.TIMES_DISAGREE in list_reasons(
        measure_steps(dataclasses.replace(columns, stamp=stamp))
    )


@pytest.mark.parametrize("decimals", [50, 5])
def test_equal_timestamps_of_buffered_lines_do_not_contradict_step_times(
    decimals: int,
) -> None:
    columns = make_clocked_steps()
    stamp = columns.stamp[0] + np.arange(50) // decimals * SECONDS * decimals
    assert Reason.TIMES_DISAGREE not in list_reasons(
        measure_steps(dataclasses.replace(columns, stamp=stamp))
    )
