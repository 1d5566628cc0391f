"""Step times beside the clock of their lines: data loading, stalls, set clocks, and the
ordinary nights beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
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


def recorded(
    observed: dict[Observed, float] | None = None, mean_seconds: float = SECONDS
) -> Baseline:
    """Return a baseline of 2 s that was recorded from runs that showed this."""
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


def clocked(
    lost: dict[int, float] | Sequence[float] = (),
    unit: float = 0.0,
    count: int = 50,
    **columns: Any,
) -> Steps:
    """Return 2 s steps, before some of which the clock advances by more; `unit` is what
    stamps are rounded to."""
    extra = np.zeros(count)
    for step, seconds in lost.items() if isinstance(lost, dict) else enumerate(lost):
        extra[step] = seconds
    stamp = 1.7e9 + np.cumsum(np.full(count, SECONDS) + extra)
    made = steps(
        [SECONDS] * count,
        stamp=np.floor(stamp / unit) * unit if unit else stamp,
        **columns,
    )
    return replace(made, resolution_seconds=np.full(count, 0.0001))


def judge(columns: Steps, baseline: Baseline | None = None) -> Measurement:
    many = len(columns)
    return measure(run(log(segment(columns, total=many))), baseline or recorded(), NOW)


def reasons(measured: Measurement) -> list[Reason]:
    return [problem.reason for problem in measured.problems]


def each(first: int, last: int, seconds: float) -> dict[int, float]:
    return dict.fromkeys(range(first, last + 1), seconds)


def pauses_at(*steps: int, kind: PauseKind = PauseKind.EVALUATION) -> Integers:
    """Return the kinds of pauses before each of 50 steps."""
    return np.where(np.isin(np.arange(50), steps), int(kind), 0)


@pytest.mark.parametrize(
    "lost",
    [
        each(0, 49, 0.6),
        each(11, 44, 0.4),
        each(20, 40, 1.0),
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
def test_time_between_the_steps_is_red(lost: dict[int, float], unit: float) -> None:
    measured = judge(clocked(lost, unit))
    assert reasons(measured) == [Reason.WALL_CLOCK]
    assert measured.problems[0].line


@pytest.mark.parametrize(
    "columns",
    [
        clocked(),
        clocked(unit=1.0),
        clocked(each(0, 49, 0.04)),
        clocked({0: 300.0, 1: 60.0}),  # compilation
        clocked({20: 12.0}),  # a short stall
        clocked({47: 200.0}),
        clocked(
            dict.fromkeys((10, 20, 30, 40), 60.0), paused=pauses_at(10, 20, 30, 40)
        ),
        clocked(
            {10: 60.0, 20: 75.0, 30: 50.0, 40: 80.0}, paused=pauses_at(10, 20, 30, 40)
        ),
        clocked({31: 3600.0}),
        clocked({31: -3600.0}),
        clocked({48: 3600.0}, unit=1.0),
        replace(
            clocked(), stamp=clocked().stamp[np.minimum(np.arange(50) // 6 * 6 + 5, 49)]
        ),  # written in bursts
        steps([SECONDS] * 50),  # without stamps
    ],
)
def test_ordinary_run_stays_valid(columns: Steps) -> None:
    assert judge(columns).problems == ()


def test_set_clock_is_noted() -> None:
    notes = {note.code: note for note in judge(clocked({31: 3600.0})).notes}
    assert phrase(notes[NoteCode.CLOCK_SET]).startswith(
        "the clock was changed by an hour before step 31"
    )


@pytest.mark.parametrize(
    ("step", "jump", "red"),
    [(47, -600.0, True), (30, -600.0, True), (47, -7200.0, True), (47, -8.0, False)],
)
def test_clock_that_goes_back_hides_a_gap(step: int, jump: float, red: bool) -> None:
    """An hour that was set back and a gap of 50 minutes are one jump of 10 minutes."""
    measured = judge(clocked({step: jump}))
    assert reasons(measured) == [Reason.WALL_CLOCK] * red
    assert NoteCode.CLOCK_SET in {note.code for note in measured.notes}


def test_pauses_are_counted() -> None:
    columns = clocked({20: 60.0, 40: 60.0}, paused=pauses_at(20, 40))
    notes = {note.code: note for note in judge(columns).notes}
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
        ({20: 1500.0}, PauseKind.SAVE, QUIET, False),  # nothing to compare it with
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
def test_pause_is_compared_with_others(
    lost: dict[int, float], kind: PauseKind, observed: dict[Observed, float], red: bool
) -> None:
    measured = judge(
        clocked(lost, paused=pauses_at(*lost, kind=kind)), recorded(observed)
    )
    assert reasons(measured) == ([Reason.WALL_CLOCK] if red else [])


@pytest.mark.parametrize("observed", [QUIET, {}])
@pytest.mark.parametrize("lost", [{20: 1500.0}, {20: 1500.0, 40: 1500.0}])
def test_long_pause_without_others_is_noted(
    lost: dict[int, float], observed: dict[Observed, float]
) -> None:
    measured = judge(clocked(lost, paused=pauses_at(*lost)), recorded(observed))
    assert NoteCode.WALL_CLOCK in {note.code for note in measured.notes}


def test_new_evaluations_are_noted_if_they_take_long() -> None:
    steps_before = (10, 20, 30, 40)
    for seconds, noted in ((60.0, False), (120.0, True)):
        columns = clocked(
            dict.fromkeys(steps_before, seconds), paused=pauses_at(*steps_before)
        )
        measured = judge(columns)
        assert measured.problems == ()
        assert (NoteCode.WALL_CLOCK in {note.code for note in measured.notes}) is noted
        assert NoteCode.WALL_CLOCK not in {
            note.code for note in judge(columns, recorded({})).notes
        }


def test_what_is_announced_at_each_step_is_no_pause() -> None:
    columns = clocked(each(1, 49, 3.0), paused=pauses_at(*range(1, 50)))
    assert reasons(judge(columns)) == [Reason.WALL_CLOCK]


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
        (each(0, 49, 5.0), True),
    ],
)
def test_regular_gaps_of_an_event_file_are_pauses(
    lost: dict[int, float], red: bool
) -> None:
    part = segment(clocked(lost), total=50)
    measured = measure(run(replace(log(part), dialect="metrics")), recorded(), NOW)
    assert reasons(measured) == ([Reason.WALL_CLOCK] if red else [])


def test_clock_that_is_set_back_hides_no_gap() -> None:
    measured = judge(clocked({20: -1800.0, 30: 1800.0}))
    assert reasons(measured) == [Reason.WALL_CLOCK]
    notes = {note.code: note for note in judge(clocked({20: -1800.0})).notes}
    assert phrase(notes[NoteCode.CLOCK_SET]).startswith(
        "the clock goes back by 1800.0 s before step 20"
    )


@pytest.mark.parametrize(("seconds", "noted"), [(0.08, False), (0.17, True)])
def test_smaller_rise_of_the_clock_is_noted(seconds: float, noted: bool) -> None:
    columns = clocked([seconds] * 400, count=400)
    baseline = replace(
        recorded(), window=BASELINE.window._replace(first=201, last=399), steps=400
    )
    measured = judge(columns, baseline)
    assert measured.problems == ()
    assert (NoteCode.WALL_CLOCK in {note.code for note in measured.notes}) is noted


@pytest.mark.parametrize(
    "observed",
    [{}, {**QUIET, Observed.WALL_CLOCK_RATIO: 1.3, Observed.RUN_CLOCK_RATIO: 1.3}],
)
def test_ratio_is_compared_with_what_was_recorded(
    observed: dict[Observed, float],
) -> None:
    measured = judge(clocked(each(0, 49, 0.62)), recorded(observed))
    assert measured.problems == ()
    assert (NoteCode.WALL_CLOCK in {note.code for note in measured.notes}) is not bool(
        observed
    )


def test_run_agrees_with_its_own_recording() -> None:
    columns = clocked(each(0, 49, 0.7) | {47: 900.0}, unit=1.0)
    observed = {
        Observed(name): value for name, value in judge(columns, recorded({})).observed
    }
    assert observed[Observed.WALL_CLOCK_RATIO] == pytest.approx(1.35, abs=0.03)
    assert judge(columns, recorded(observed)).problems == ()


def test_means_of_ten_steps_are_compared_like_single_ones() -> None:
    def make(factor: float) -> Steps:
        return means_of(10, [SECONDS] * 5, stamp=1.7e9 + np.arange(1, 6) * 20 * factor)

    baseline = replace(recorded(), window=BASELINE.window._replace(first=11, last=40))
    assert judge(make(1.0), baseline).problems == ()
    assert reasons(judge(make(1.6), baseline)) == [Reason.WALL_CLOCK]


def test_clock_of_a_line_may_begin_behind_an_evaluation() -> None:
    columns = clocked({20: 60.0})
    since = np.where(np.arange(50) == 20, columns.stamp - SECONDS, np.nan)
    assert judge(replace(columns, since=since)).problems == ()


def test_older_runs_are_measured_without_their_clocks() -> None:
    columns = segment(clocked(each(0, 49, 0.6)))
    measured = measure(run(log(columns)), recorded(), NOW, step_time_only=True)
    assert (measured.problems, measured.observed) == ((), ())


def by_stamps(seconds: float, rate_seconds: float, batch: float = 64.0) -> Steps:
    """Return steps whose times follow from their stamps, beside a rate by another
    timer."""
    stamp = 1.7e9 + np.cumsum(np.full(50, seconds))
    return steps(
        [seconds] * 50, stamp=stamp, throughput=np.full(50, batch / rate_seconds)
    )


def test_clock_that_is_set_back_is_found_by_the_rate() -> None:
    baseline = recorded({**QUIET, Observed.WORK_PER_STEP: 64.0})
    assert judge(by_stamps(2.0, 2.0), baseline).problems == ()
    assert reasons(judge(by_stamps(2.0, 2.24), baseline)) == [Reason.TIMES_DISAGREE]
    assert (
        judge(by_stamps(2.0, 1.8), baseline).problems == ()
    )  # data loading, in the step time


def test_rate_of_one_stalled_step_is_no_contradiction() -> None:
    baseline = recorded({**QUIET, Observed.WORK_PER_STEP: 64.0})
    every_tenth = by_stamps(2.0, 2.0)
    rate = np.where(np.arange(50) % 10 == 2, 8.0, 32.0)
    assert judge(replace(every_tenth, throughput=rate), baseline).problems == ()


def test_rate_may_rise_when_steps_load_data_faster() -> None:
    baseline = recorded({**QUIET, Observed.WORK_PER_STEP: 64.0 * 1.1})
    assert judge(by_stamps(1.8, 1.8), baseline).problems == ()


def test_zero_rates_are_invalid_if_recorded_runs_print_rates() -> None:
    zero = by_stamps(2.0, 2.0, batch=0.0)
    baseline = recorded({**QUIET, Observed.WORK_PER_STEP: 64.0})
    (problem,) = judge(zero, baseline).problems
    assert problem.reason is Reason.TIMES_DISAGREE
    assert problem.text.startswith("each step of the window prints a rate of 0 ")
    partly = np.where(np.arange(50) % 2 == 0, 32.0, 0.0)
    assert judge(replace(zero, throughput=partly), baseline).problems == ()
    tokens = np.full(50, 8192.0)
    other = replace(zero, tokens_per_second_per_gpu=tokens)
    assert judge(other, baseline).problems == ()


def test_rates_of_zero_are_accepted_if_nothing_contradicts_them() -> None:
    zero = by_stamps(2.0, 2.0, batch=0.0)
    assert judge(zero, recorded()).problems == ()  # the recorded runs printed none
    coarse = recorded({**QUIET, Observed.WORK_PER_STEP: 1.5})
    assert judge(zero, coarse).problems == ()  # 0.75 a second may be printed as 0
    own_times = clocked()  # they are not those of the stamps
    printed = replace(
        own_times, seconds=own_times.seconds * 0.9, throughput=np.zeros(50)
    )
    baseline = recorded({**QUIET, Observed.WORK_PER_STEP: 64.0})
    assert Reason.TIMES_DISAGREE not in reasons(judge(printed, baseline))


@pytest.mark.parametrize("factor", [1000.0, 0.01])
def test_times_in_another_unit_are_red(factor: float) -> None:
    columns = clocked()
    stamp = columns.stamp[0] + factor * (columns.stamp - columns.stamp[0])
    assert Reason.TIMES_DISAGREE in reasons(judge(replace(columns, stamp=stamp)))


@pytest.mark.parametrize("places", [50, 5])
def test_lines_that_are_written_at_once_are_no_clock(places: int) -> None:
    columns = clocked()
    stamp = columns.stamp[0] + np.arange(50) // places * SECONDS * places
    assert Reason.TIMES_DISAGREE not in reasons(judge(replace(columns, stamp=stamp)))
