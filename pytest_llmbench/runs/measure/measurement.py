"""Measure a run against a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

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
    count_steps,
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
    """Measure `run` over the baseline's window.

    The measurement contains the problems that prevent judging the run. Steps faster
    than 100 % MFU, and steps timed only until their dispatch, are set aside and noted;
    inside the window they make the run invalid. A missing step time is computed from
    tokens/s if possible.

    `step_time_only` skips the metrics and notes, which take half of the time of this
    function and which older runs do not need. It also skips all checks that need more
    than the step times of the window: contradicting clocks, and steps outside the
    window that are slower by more than `tolerance`.
    """
    # A valid run must contain the window of `required`; the candidates are compared over
    # the window of `baseline`.
    required = baseline.required
    choice, candidate_seconds = choose_judged(run, required, now, ranked=baseline)
    excluded = validity.find_exclusion(run, choice) or _exclude_short_companion(
        run, choice, required
    )
    if choice is None:
        problems: tuple[Problem, ...] = ()
        if excluded is None:
            problems = (validity.explain_no_steps(run, baseline, now),)
        return _make_unmeasured(run, baseline, problems, excluded)
    timing, problems = _compute_window_timing(run, choice, baseline, now, excluded)
    steps, counted = timing.steps, timing.counted
    seconds, mean_of = _compute_statistic(timing, baseline.window)
    usable_seconds = steps.seconds[timing.usable]
    measurement = Measurement(
        run=run,
        baseline=baseline,
        files=choice.attempt.files,
        attempt=choice.attempt.files.number,
        segment=choice.number,
        statistic_seconds=seconds,
        last_step_seconds=float(usable_seconds[-1]) if len(usable_seconds) else None,
        window_seconds=tuple(steps.seconds[counted].tolist()),
        window_steps=decode_shared(steps.index[counted].tobytes()),
        window_lines=decode_shared(steps.line[counted].tobytes()),
        mean_of=mean_of,
        moving_mean=detect_moving_mean(choice.segment.steps),
        resolution_seconds=_compute_median_or_zero(steps.resolution_seconds[counted]),
        problems=problems,
        excluded=excluded,
        attempts=attempts.list_attempts(run, choice, baseline.steps),
        checkpoints=select_segment_checkpoints(
            choice.attempt.log.checkpoints, choice.number
        ),
        timed_seconds=_compute_documented_mean(timing, baseline),
        step_time_only=step_time_only,
    )
    if step_time_only:
        return measurement
    return _add_details(measurement, choice, candidate_seconds, timing, tolerance)


def _compute_window_timing(
    run: Run,
    choice: Choice,
    baseline: Baseline,
    now: datetime,
    excluded: Problem | None,
) -> tuple[Timing, tuple[Problem, ...]]:
    """Return the step timing of the window, and the problems of the run.

    No problems are returned for an `excluded` run.
    """
    required = baseline.required
    timing = compute_timing(choice.segment.steps, required)
    problems: tuple[Problem, ...] = ()
    if not excluded:
        problems = (
            *_find_duplicate(run),
            *validity.find_problems(run, choice, timing, required, now),
        )
    if required is baseline:
        return timing, problems
    # A baseline that is timed as in its document has two windows: the statistic uses
    # the document's steps, validity the usual window (`required`).
    timing = compute_timing(choice.segment.steps, baseline)
    if not problems and not excluded:
        problems = tuple(find_gaps(timing, baseline))
    return timing, problems


def _add_details(
    measurement: Measurement,
    choice: Choice,
    candidate_seconds: tuple[float, ...],
    timing: Timing,
    tolerance: float,
) -> Measurement:
    """Add metrics, notes and the checks beyond the step times of the window."""
    run, baseline = measurement.run, measurement.baseline
    window, recorded = baseline.window, baseline.observed
    checkpoints, width = measurement.checkpoints, measurement.moving_mean
    pauses_announced = get_dialect(choice.attempt.log.dialect).announces_pauses
    clocks = wall_clock.compare_clocks(
        timing, window, checkpoints, announced=pauses_announced
    )
    outside = outside_steps.check_outside(timing, window, width)
    problems: tuple[Problem, ...] = ()
    if not measurement.excluded:
        problems = (
            *wall_clock.find_problems(clocks, timing, baseline, recorded, tolerance),
            *outside_steps.find_problems(outside, baseline, recorded, tolerance),
        )
    work = dict(configuration.observe(timing))
    observed = (
        *wall_clock.observe(clocks),
        *outside_steps.observe(outside),
        *training.observe(run, choice, timing, baseline),
        *work.items(),
    )
    return structs.replace(
        measurement,
        problems=(*measurement.problems, *problems),
        observed=tuple((name.value, value) for name, value in observed),
        metrics=(
            *_list_metrics(baseline, timing, measurement.statistic_seconds),
            *metrics.compute_checkpoint_metrics(checkpoints),
        ),
        expected=metrics.expect_metrics(baseline),
        notes=(
            *attempts.make_attempt_notes(measurement.attempts),
            *attempts.make_slowest_attempt_note(candidate_seconds, window.statistic),
            *notes.list_notes(run, choice, timing, baseline, work),
            *notes.list_moving_mean_notes(choice.segment.steps, window, width),
            *wall_clock.list_notes(clocks, timing, window, recorded, tolerance),
            *outside_steps.list_notes(outside, baseline, recorded, tolerance),
            *notes.list_run_notes(run, checkpoints),
        ),
    )


@lru_cache(1024)
def decode_shared(encoded: bytes) -> tuple[int, ...]:
    """Decode 64-bit integers into a tuple that equal inputs share.

    Most runs have the same step numbers, and there may be 100,000 runs.
    """
    return tuple(np.frombuffer(encoded, np.int64).tolist())


def choose_judged(
    run: Run, baseline: Baseline, now: datetime, ranked: Baseline | None = None
) -> tuple[Choice | None, tuple[float, ...]]:
    """Choose the segment of a run to judge, None if it has no steps.

    Also returns the statistics of all candidates, or () if the last segment is judged.

    A candidate has finished, covers the window and has no problems. The slowest
    candidate is chosen, and the last if several are equally slow. `baseline` determines
    the candidates. `ranked` is the baseline whose statistic compares them if it has
    another window.
    """
    last = choose_segment(run.attempts, baseline.window, baseline.steps)
    if last is None or not last.other_candidates:
        return last, ()
    ranked = ranked or baseline
    measured: list[tuple[float, Choice]] = []
    # a profiled segment is slower, so it is no candidate
    comparable = (
        candidate
        for candidate in last.other_candidates
        if validity.find_exclusion(run, candidate) is None
    )
    for choice in (*comparable, last):
        timing = compute_timing(choice.segment.steps, baseline)
        problems = validity.find_problems(run, choice, timing, baseline, now)
        if problems or not timing.counted.any():
            if choice is last:
                # an older segment must not hide the problems of the newest
                return last, ()
            continue
        ranked_timing = compute_timing(choice.segment.steps, ranked)
        seconds, _ = _compute_statistic(ranked_timing, ranked.window)
        if seconds is None:  # a candidate of unknown speed may be the slowest
            return choice, ()
        measured.append((seconds, choice))
    # Repeating the steps until they are fast does not make a slow job fast.
    all_seconds = tuple(seconds for seconds, _ in measured)
    slowest = max(all_seconds)
    judged = next(
        choice for seconds, choice in reversed(measured) if seconds == slowest
    )
    return judged, () if judged is last else all_seconds


def _compute_statistic(
    timing: Timing, window: Window
) -> tuple[float | None, tuple[int, ...]]:
    """Return the window's statistic and the number of steps in each time.

    The statistic is None without times. The numbers are () if no time is a mean of
    several steps.
    """
    seconds = timing.steps.seconds[timing.counted]
    step_counts = timing.steps.mean_of[timing.counted]
    mean_of = tuple(step_counts.tolist()) if (step_counts > 1).any() else ()
    if not len(seconds):
        return None, mean_of
    return compute_statistic(seconds, window.statistic, mean_of), mean_of


def _compute_documented_mean(timing: Timing, baseline: Baseline) -> float | None:
    """Return the mean of the steps that the document probably timed, None if unknown."""
    window = baseline.timed_window
    if window is None:
        return None
    index = timing.steps.index
    in_window = (index >= window.first) & (index <= window.last)
    seconds = timing.steps.seconds[timing.usable & in_window]
    return float(seconds.mean()) if len(seconds) else None


def _compute_median_or_zero(values: Floats) -> float:
    """Return the median, or 0 without values."""
    # Not the maximum: one slow step prints fewer digits, which must not reduce the
    # resolution of the others.
    return compute_median(values) if len(values) else 0.0


def _make_unmeasured(
    run: Run,
    baseline: Baseline,
    problems: tuple[Problem, ...],
    excluded: Problem | None,
) -> Measurement:
    """Build the measurement of a run without usable steps."""
    last_files = run.attempts[-1].files if run.attempts else None
    return Measurement(
        run=run,
        baseline=baseline,
        files=last_files,
        attempt=last_files.number if last_files else 0,
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
    baseline: Baseline, timing: Timing, seconds: float | None
) -> tuple[Metric, ...]:
    """List the metrics of a window; empty if it has no statistic (`seconds`)."""
    if seconds is None:
        return ()
    return metrics.compute_window_metrics(baseline, timing, seconds)


def select_segment_checkpoints(checkpoints: Checkpoints, number: int) -> Checkpoints:
    """Select the checkpoint records of one segment (1-based `number`)."""
    if not checkpoints.records:
        return checkpoints
    return structs.replace(
        checkpoints,
        records=tuple(
            record for record in checkpoints.records if record.part == number
        ),
    )


def _find_duplicate(run: Run) -> Iterator[Problem]:
    """Yield a problem if a run is certainly a duplicate of another."""
    # Its log repeats the steps of another job, so those of its own job are unknown.
    duplicate = run.duplicate_of
    if duplicate is not None and duplicate.certain:
        job = notes.name_job(run.found.job_id, run.id)
        text = f"{job} is a duplicate of {notes.describe_duplicate(duplicate)}"
        yield Problem(Reason.COPIED, text)


def _exclude_short_companion(
    run: Run, choice: Choice | None, baseline: Baseline
) -> Problem | None:
    """Return the exclusion of a short companion of an excluded run, or None.

    A companion was launched together with a profiled or traced run. It is not short if
    it was to make all steps of the recipe.
    """
    reason = run.found.companion_of
    if reason is None:
        return None
    # planned for all steps of the recipe: judged like any other run
    if choice is not None and count_steps(choice.segment) >= baseline.steps:
        return None
    return Problem(reason, run.found.companion_because)
