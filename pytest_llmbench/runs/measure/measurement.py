"""From a run and a baseline to what the run measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.log_records import Checkpoints
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.run_records import Measurement, Metric, Problem, Run
from pytest_llmbench.core.tolerance import DEFAULT_FRACTION
from pytest_llmbench.logs.dialect_table import get_dialect
from pytest_llmbench.runs.measure import (
    attempts,
    configuration,
    notes,
    outside_steps,
    training,
    validity,
    wall_clock,
)
from pytest_llmbench.runs.measure import run_metrics as metrics
from pytest_llmbench.runs.measure.attempts import Choice, choose_segment
from pytest_llmbench.runs.measure.moving_mean import detect_moving_mean
from pytest_llmbench.runs.measure.window import (
    Timing,
    compute_statistic,
    compute_timing,
    find_gaps,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats


def measure(
    run: Run,
    baseline: Baseline,
    now: datetime,
    *,
    step_time_only: bool = False,
    tolerance: float = DEFAULT_FRACTION,
) -> Measurement:
    """Return what `run` measured over the baseline's window, or why it cannot be
    judged.

    Steps that are faster than 100 % MFU, or only dispatched when their time was taken,
    are set aside and noted; in the window they make the run invalid. A time that the
    log does not print follows from its tokens/s where it can.

    With `step_time_only` metrics and notes, which take as long as all the rest, are
    left out: older runs need none. So is what its log shows besides the step times of
    the window: that clocks contradict each other, or steps outside the window are
    slower by more than `tolerance`.
    """
    required = baseline.required
    choice, rivals = choose_judged(run, required, now, baseline)
    excluded = validity.find_exclusion(run, choice) or _find_short_twin(
        run, choice, required
    )
    if choice is None:
        problem = validity.explain_no_steps(run, baseline, now)
        return _make_unmeasured(
            run, baseline, (problem,) if excluded is None else (), excluded
        )
    timed, problems = _time_window(run, choice, baseline, now, excluded)
    steps, counted = timed.steps, timed.counted
    seconds, mean_of = _compute_statistic(timed, baseline.window)
    sound = steps.seconds[timed.usable]
    measurement = Measurement(
        run=run,
        baseline=baseline,
        log=choice.attempt.files.log,
        attempt=choice.attempt.files.number,
        segment=choice.number,
        statistic_seconds=seconds,
        last_step_seconds=float(sound[-1]) if len(sound) else None,
        window_seconds=tuple(steps.seconds[counted].tolist()),
        window_steps=_share(steps.index[counted].tobytes()),
        window_lines=_share(steps.line[counted].tobytes()),
        mean_of=mean_of,
        moving_mean=detect_moving_mean(choice.segment.steps),
        resolution_seconds=_take_median(steps.resolution_seconds[counted]),
        problems=problems,
        excluded=excluded,
        attempts=attempts.list_attempts(run, choice, baseline.steps),
        checkpoints=_select_part(choice.attempt.log.checkpoints, choice.number),
        timed_seconds=_compute_timed(timed, baseline),
        step_time_only=step_time_only,
    )
    if step_time_only:
        return measurement
    return _add_details(measurement, choice, rivals, timed, tolerance)


def _time_window(
    run: Run,
    choice: Choice,
    baseline: Baseline,
    now: datetime,
    excluded: Problem | None,
) -> tuple[Timing, tuple[Problem, ...]]:
    """Return the times of the steps, and why an unexcluded run cannot be judged by
    them."""
    required = baseline.required
    timed = compute_timing(choice.segment.steps, required)
    problems: tuple[Problem, ...] = ()
    if not excluded:
        problems = (
            *_find_duplicated(run),
            *validity.find_problems(run, choice, timed, required, now),
        )
    if required is baseline:
        return timed, problems
    # By the documents' own rule: which runs count is still decided by the usual window.
    timed = compute_timing(choice.segment.steps, baseline)
    if not problems and not excluded:
        problems = tuple(find_gaps(timed, baseline))
    return timed, problems


def _add_details(
    measurement: Measurement,
    choice: Choice,
    rivals: tuple[float, ...],
    timed: Timing,
    tolerance: float,
) -> Measurement:
    """Return a measurement with its metrics and notes, and with all that the log shows
    besides the step times of the window."""
    run, baseline = measurement.run, measurement.baseline
    window, recorded = baseline.window, baseline.observed
    checkpoints, width = measurement.checkpoints, measurement.moving_mean
    announced = get_dialect(choice.attempt.log.dialect).announces_pauses
    clocks = wall_clock.compare_clocks(timed, window, checkpoints, announced=announced)
    slow = outside_steps.check_outside(timed, window, width)
    problems: tuple[Problem, ...] = ()
    if not measurement.excluded:
        problems = (
            *wall_clock.find_problems(clocks, timed, baseline, recorded, tolerance),
            *outside_steps.find_problems(slow, baseline, recorded, tolerance),
        )
    work = dict(configuration.observe(timed))
    observed = (
        *wall_clock.observe(clocks),
        *outside_steps.observe(slow),
        *training.observe(run, choice, timed, baseline),
        *work.items(),
    )
    return dataclasses.replace(
        measurement,
        problems=(*measurement.problems, *problems),
        observed=tuple((name.value, value) for name, value in observed),
        metrics=(
            *_list_metrics(baseline, timed, measurement.statistic_seconds),
            *metrics.compute_checkpoint_metrics(checkpoints),
        ),
        expected=metrics.expect_metrics(baseline),
        notes=(
            *attempts.make_attempt_notes(measurement.attempts),
            *attempts.make_slowest_attempt_note(rivals, window.statistic),
            *notes.list_notes(run, choice, timed, baseline, work),
            *notes.find_leaks(choice.segment.steps, window, width),
            *wall_clock.list_notes(clocks, timed, window, recorded, tolerance),
            *outside_steps.list_notes(slow, baseline, recorded, tolerance),
            *notes.make_run_notes(run, checkpoints),
        ),
    )


@lru_cache(1024)
def _share(numbers: bytes) -> tuple[int, ...]:
    """Return numbers of 64 bits as one object for all runs that have the same: most
    have, and there may be 100,000."""
    return tuple(np.frombuffer(numbers, np.int64).tolist())


def choose_judged(
    run: Run, baseline: Baseline, now: datetime, ranked: Baseline | None = None
) -> tuple[Choice | None, tuple[float, ...]]:
    """Return the part of a run that is judged, None without any step, and the
    statistics of all that might be where a slower one decides.

    Of several parts that finished, cover the window and have no problem of their own
    the slowest counts, of equal ones the last; `ranked` is what the statistic follows,
    where that is not what the parts have to hold.
    """
    last = choose_segment(run.attempts, baseline.window, baseline.steps)
    if last is None or not last.rivals:
        return last, ()
    measured, ranked = [], ranked or baseline
    comparable = (
        rival for rival in last.rivals if validity.find_exclusion(run, rival) is None
    )  # a profiled part is slower
    for choice in (*comparable, last):
        timed = compute_timing(choice.segment.steps, baseline)
        if (
            validity.find_problems(run, choice, timed, baseline, now)
            or not timed.counted.any()
        ):
            if choice is last:
                return (
                    last,
                    (),
                )  # what is wrong with the newest part is not hidden by an older one
            continue
        value, _ = _compute_statistic(
            compute_timing(choice.segment.steps, ranked), ranked.window
        )
        if value is None:
            return choice, ()
        measured.append((value, choice))
    # A job that was slow, and made its steps once more until they were fast, was slow.
    slowest = max(value for value, _ in measured)
    judged = next(choice for value, choice in reversed(measured) if value == slowest)
    return judged, () if judged is last else tuple(value for value, _ in measured)


def _compute_statistic(
    timed: Timing, window: Window
) -> tuple[float | None, tuple[int, ...]]:
    """Return the statistic of the times that count, None without any, and the steps in
    each, empty for single ones."""
    seconds, several = (
        timed.steps.seconds[timed.counted],
        timed.steps.mean_of[timed.counted],
    )
    mean_of = tuple(several.tolist()) if (several > 1).any() else ()
    return (
        compute_statistic(seconds, window.statistic, mean_of) if len(seconds) else None
    ), mean_of


def _compute_timed(timed: Timing, baseline: Baseline) -> float | None:
    """Return the mean of the steps that the document is believed to have timed, None
    where nothing says which."""
    window = baseline.timed_window
    if window is None:
        return None
    index = timed.steps.index
    inside = timed.steps.seconds[
        timed.usable & (index >= window.first) & (index <= window.last)
    ]
    return float(inside.mean()) if len(inside) else None


def _take_median(values: Floats) -> float:
    """Return the median, 0 without any value."""
    # No maximum: one slow step prints fewer digits, and must not make the others
    # coarse.
    return compute_median(values) if len(values) else 0.0


def _make_unmeasured(
    run: Run,
    baseline: Baseline,
    problems: tuple[Problem, ...],
    excluded: Problem | None,
) -> Measurement:
    return Measurement(
        run=run,
        baseline=baseline,
        log=run.attempts[-1].files.log if run.attempts else None,
        attempt=run.attempts[-1].files.number if run.attempts else 0,
        segment=0,
        statistic_seconds=None,
        last_step_seconds=None,
        window_seconds=(),
        metrics=(),
        problems=problems,
        excluded=excluded,
        attempts=attempts.list_attempts(run, None, baseline.steps),
    )


def _list_metrics(
    baseline: Baseline, timed: Timing, seconds: float | None
) -> tuple[Metric, ...]:
    return (
        metrics.compute_window_metrics(baseline, timed, seconds)
        if seconds is not None
        else ()
    )


def _select_part(checkpoints: Checkpoints, number: int) -> Checkpoints:
    """Return what a log says of checkpoints in one of its parts (1-based)."""
    if not checkpoints.records:
        return checkpoints
    return dataclasses.replace(
        checkpoints,
        records=tuple(
            record for record in checkpoints.records if record.part == number
        ),
    )


def _find_duplicated(run: Run) -> Iterator[Problem]:
    """Yield that a run is a copy of another one."""
    # What its own job measured nobody knows.
    if run.copy_of is not None and run.copy_of.certain:
        yield Problem(
            Reason.COPIED,
            f"{notes.name_job(run.found.job_id, run.id)} is a copy of {notes.describe_duplicate(run.copy_of)}",
        )


def _find_short_twin(
    run: Run, choice: Choice | None, baseline: Baseline
) -> Problem | None:
    """Return why a run that was launched together with a profiled or traced one is no
    measurement: it is as short."""
    reason = run.found.twin_of
    if reason is None:
        return None
    segment = choice.segment if choice else None
    if segment is not None:
        total = (
            segment.total_steps or int(segment.steps.index[-1]) + 1 - segment.first_step
        )
        if (
            total >= baseline.steps
        ):  # it set out for all steps of the recipe: judged like any other
            return None
    return Problem(reason, run.found.twin_because)
