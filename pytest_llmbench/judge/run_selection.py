"""Select the runs that a verdict rests on.

Current runs are averaged, with transient stalls replaced; the daily runs before them
estimate the noise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.codes import NoteCode, Reason
from pytest_llmbench.core.judgement_records import (
    DailyRun,
    DailyRuns,
    Evidence,
    PreviousRun,
    PreviousRuns,
)
from pytest_llmbench.core.robust import (
    HICCUP,
    MOST_STALLS,
    compute_mean,
    compute_median,
)
from pytest_llmbench.core.run_records import (
    UNMEASURED,
    Measurement,
    Note,
    Problem,
    StoredRun,
)
from pytest_llmbench.core.statements import CodedStatement, SlowStep, StatementCode
from pytest_llmbench.judge.estimate import disagree, estimate_noise
from pytest_llmbench.judge.shape import Shape, find_shape

# A step of at least this many medians is a stall, not a straggler as a published mean
# contains as well.
STALL_MEDIANS = 1.5
# A step of more than this many medians is a hang with an unknown cause, not a stall.
HANG_MEDIANS = 20.0
WEEK = timedelta(days=6)  # seven days, including the current day
# This many runs with a stall in seven days are not chance: they are reported and no
# longer forgiven.
FREQUENT_STALLS = 3

EQUAL_LOGS = 1e-6  # log step times that differ by less are equal


class CurrentRuns(Struct, frozen=True):
    """The runs that are averaged into one result."""

    runs: tuple[Measurement, ...]  # the displayed run first
    # the same runs as compared, with transient stalls replaced
    counted: tuple[Measurement, ...]
    previous: PreviousRuns
    notes: tuple[Note, ...] = ()
    apart: bool = False  # True if they differ too much to be averaged


def select_current_runs(newest: Measurement, evidence: Evidence) -> CurrentRuns:
    """Select the newest run and the repeats that are averaged with it.

    All runs of a launch count, however much they differ. If runs found on disk differ
    too much, only the newest counts.
    """
    runs, unusable_repeats = find_repeats(newest, evidence)
    previous = list_previous_daily_runs(runs, evidence)
    counted, stall_notes = _replace_stalls(runs, previous, evidence)
    notes = (*stall_notes, *_note_lost_repeats(unusable_repeats))
    if len(runs) == 1:
        notes = (*notes, *_note_unknown_build(newest, evidence))
        return CurrentRuns(runs, counted, previous, notes)
    seconds = tuple(run.statistic_seconds for run in runs)
    apart = disagree(counted, estimate_noise(evidence, previous))
    if apart and not newest.run.found.launch:
        spread = CodedStatement(
            StatementCode.REPEATS_DIFFER, runs=len(runs), seconds=seconds
        )
        return CurrentRuns(
            runs=(newest,),
            counted=counted[:1],
            previous=list_previous_daily_runs((newest,), evidence),
            notes=(Note(NoteCode.REPEATS_DISAGREE, spread), *notes),
        )
    repeats = CodedStatement(StatementCode.REPEATS, runs=len(runs), seconds=seconds)
    notes = (Note(NoteCode.REPEATS, repeats), *notes)
    return CurrentRuns(runs, counted, previous, notes, apart=apart)


def _note_lost_repeats(unusable_repeats: Sequence[Measurement]) -> Iterator[Note]:
    """Yield a note on the problem of each repeat without a usable time."""
    for problem in map(find_unusable, unusable_repeats):
        if problem is not None:
            statement = CodedStatement(StatementCode.LOST_REPEAT, problem=problem)
            yield Note(NoteCode.REPEAT_LOST, statement)


def _note_unknown_build(newest: Measurement, evidence: Evidence) -> tuple[Note, ...]:
    """Note that repeats cannot be found because the build of the run is unknown."""
    if (
        evidence.repeat_window
        and not newest.run.found.launch
        and not identify_build(newest)
    ):
        unknown = CodedStatement(StatementCode.BUILD_UNKNOWN)
        return (Note(NoteCode.BUILD_UNKNOWN, unknown),)
    return ()


def find_current_shape(current: CurrentRuns) -> Shape:
    """Return the shape of the newest run, with the warm-up of the current runs.

    The newest run decides whether a warm-up is reported. For launched runs, whose order
    is random, at least half of the runs must be warming up instead. Stalls are replaced
    before testing for warm-up, so that a stall in the first steps is not mistaken for
    it.
    """
    shape = find_shape(current.runs[0])
    if shape.warming_up is None and len(current.runs) == 1:
        return shape  # there is no warm-up to test again without stalls
    is_launched = bool(current.runs[0].run.found.launch)
    tested_runs = current.counted if is_launched else current.counted[:1]
    tested_shapes = [find_shape(run) for run in tested_runs]
    warm_ups = [tested.warming_up for tested in tested_shapes if tested.warming_up]
    warming_up = None
    if warm_ups and 2 * len(warm_ups) >= len(tested_shapes):
        warming_up = warm_ups[0]
    return replace(shape, warming_up=warming_up)


def find_repeats(
    newest: Measurement, evidence: Evidence
) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
    """Return the newest run with its valid repeats, and its invalid repeats.

    Repeats of a launched run are the other runs of its launch. Repeats of a run found
    on disk are other runs found on disk with the same known build that started within
    `evidence.repeat_window` before it.
    """
    if newest.run.found.launch:
        _, *others = select_launch(newest, evidence)
        valid = [run for run in others if run.valid]
        return (newest, *valid), tuple(run for run in others if not run.valid)
    window, started = evidence.repeat_window, newest.run.started
    if not window or started is None:
        return (newest,), ()
    older = evidence.measurements[evidence.measurements.index(newest) + 1 :]
    candidates = [
        run
        for run in older
        if run.run.started is not None
        and not run.run.found.launch
        and started - run.run.started <= window
        # the same build, which must be known
        and identify_build(run) == identify_build(newest) != ()
        and run.window_seconds != newest.window_seconds  # a duplicate is no repeat
    ]
    valid = [run for run in candidates if run.valid]
    # A run that is only excluded, such as a profiled one, was not meant as a repeat.
    invalid = [
        run
        for run in candidates
        if not run.valid and (run.problems or not run.excluded)
    ]
    return (newest, *valid), tuple(invalid)


def select_launch(run: Measurement, evidence: Evidence) -> tuple[Measurement, ...]:
    """Return a run and the other runs of its launch, valid or not.

    Only the run itself if it was not launched.
    """
    launch = run.run.found.launch
    if not launch:
        return (run,)
    others = (
        other
        for other in evidence.measurements
        if other.run.found.launch == launch and other is not run
    )
    return (run, *others)


def find_unusable(run: Measurement) -> Problem | None:
    """Return the problem that makes a run unusable, or None."""
    problem = next(iter(run.problems), run.excluded)
    if problem is not None:
        return problem
    measured = run.statistic_seconds
    if measured is None or not (math.isfinite(measured) and measured > 0):
        return UNMEASURED
    return None


def identify_build(measurement: Measurement) -> tuple[str, ...]:
    """Return the facts that identify the build of a run.

    Empty if only the release is known.
    """
    build = measurement.run.found.build
    return build if any(not fact.startswith("release=") for fact in build) else ()


# --- transient stalls -----------------------------------------------------------------


def _replace_stalls(
    runs: tuple[Measurement, ...], previous: PreviousRuns, evidence: Evidence
) -> tuple[tuple[Measurement, ...], tuple[Note, ...]]:
    """Replace the stalls of runs, and note them.

    Returns the runs unchanged if too many runs of the last week had a stall.
    """
    stalls = [_find_stalled_steps(run, evidence) for run in runs]
    if not any(stalls):
        return runs, ()
    stalled = [(run, rows) for run, rows in zip(runs, stalls, strict=True) if rows]
    week_count = _count_recent_stalls(previous, runs[0], evidence) + len(stalled)
    if week_count >= FREQUENT_STALLS:
        run, rows = stalled[0]
        return runs, (_make_stall_note(run, rows, week_count=week_count),)
    notes = tuple(_make_stall_note(run, rows) for run, rows in stalled)
    return tuple(map(_replace_steps, runs, stalls)), notes


def _find_stalled_steps(run: Measurement, evidence: Evidence) -> tuple[int, ...]:
    """Return the rows of the stalled steps in the window of a run, slowest first.

    Empty if there are more slow steps than a transient stall explains, if the baseline
    is recorded or not a mean, or if the run is fast even with its stall removed. A
    record that is a mean of several steps counts as all of them.
    """
    window, baseline = np.array(run.window_seconds), evidence.baseline
    if (
        baseline.recording is not None
        or baseline.window.statistic != "mean"
        or not len(window)
    ):
        return ()
    # A run with several finished attempts is judged by the slowest: its stalls count.
    if sum(attempt.finished for attempt in run.attempts) > 1:
        return ()
    step_counts = np.array(run.mean_of or [1] * len(window))
    median = compute_median(window)
    slow = window >= STALL_MEDIANS * median
    # one stall is in as many values as a moving mean averages
    too_many_values = np.count_nonzero(slow) > MOST_STALLS + run.moving_mean - 1
    forgiven_steps = HICCUP * int(step_counts.sum())
    too_few_steps = forgiven_steps < 1  # one step is more than 5 %
    too_many_steps = int(step_counts[slow].sum()) > math.ceil(forgiven_steps)
    hangs = window.max() > HANG_MEDIANS * median
    if too_many_values or too_few_steps or too_many_steps or hangs:
        return ()
    slowest_first = np.argsort(-window, kind="stable").tolist()
    stalled = tuple(row for row in slowest_first if slow[row])
    without_stall = _replace_steps(run, stalled).statistic_seconds
    # A run that would be an IMPROVEMENT without its stall keeps the stall.
    improves = (
        not without_stall
        or without_stall * evidence.tolerance.factor < baseline.step_seconds
    )
    return () if improves else stalled


def _replace_steps(run: Measurement, rows: Sequence[int]) -> Measurement:
    """Replace the steps at `rows` by the slowest other step of the window."""
    if not rows:
        return run
    window = np.array(run.window_seconds)
    window[list(rows)] = np.delete(window, list(rows)).max()
    return replace(
        run,
        window_seconds=tuple(window.tolist()),
        statistic_seconds=compute_mean(window, run.mean_of),
    )


def _count_recent_stalls(
    previous: PreviousRuns, current: Measurement, evidence: Evidence
) -> int:
    """Count the runs with a stall in the six days before the current run."""
    started = current.started
    if started is None:
        return 0
    first = started.date() - WEEK
    return sum(
        _had_stall(run, evidence)
        for run in previous
        if run.started is not None and run.started.date() >= first
    )


def _had_stall(run: PreviousRun, evidence: Evidence) -> bool:
    """True if a daily run had a transient stall.

    A stored run had a stall if its step time exceeds the time that was judged, from
    which stalls are removed, or if its verdict is FEW_STEPS_DECIDE.
    """
    if not isinstance(run, StoredRun):
        return bool(_find_stalled_steps(run, evidence))
    if run.reason == Reason.FEW_STEPS_DECIDE:
        return True
    if (
        not run.step_time_seconds
        or not run.expected_seconds
        or run.log_difference is None
    ):
        return False
    printed_difference = math.log(run.step_time_seconds / run.expected_seconds)
    return printed_difference > run.log_difference + EQUAL_LOGS


def _make_stall_note(
    run: Measurement, rows: Sequence[int], week_count: int = 0
) -> Note:
    """Make the note on the stalled steps of a run, at the log line of the slowest.

    `week_count` is the number of runs with a stall in the last week if there are too
    many, else 0.
    """
    median = compute_median(np.array(run.window_seconds))
    first = run.baseline.window.first
    steps = [
        SlowStep(
            number=run.window_steps[row] if run.window_steps else first + row,
            line=run.window_lines[row] if run.window_lines else 0,
            ratio=run.window_seconds[row] / median,
        )
        for row in sorted(rows)
    ]
    mean = run.statistic_seconds
    without_stalls = _replace_steps(run, rows).statistic_seconds
    line = max(steps, key=lambda step: step.ratio).line
    if week_count:
        repeated = CodedStatement(
            StatementCode.HICCUPS_OFTEN,
            runs=week_count,
            steps=steps,
            mean=mean,
            usual=without_stalls,
        )
        return Note(NoteCode.HICCUPS_OFTEN, repeated, line)
    stall = CodedStatement(
        StatementCode.HICCUP, steps=steps, mean=mean, usual=without_stalls
    )
    return Note(NoteCode.HICCUP, stall, line)


# --- daily runs: one per day, before the current runs ---------------------------------


# a change of exactly one printed unit must not exceed the unit by its rounding error
UNIT_MARGIN = 1.01

# days this close count as consecutive: a weekend may lie between them
ADJACENT = timedelta(days=4)

# For dated runs only. attrgetter is faster than a lambda: a year of daily runs of 82
# configurations is 30,000 runs.
_GET_START: Callable[[PreviousRun], datetime] = attrgetter("started")


def list_before_newest(evidence: Evidence) -> PreviousRuns:
    """List the daily runs before the newest valid run.

    If no run is valid, lists all daily runs, or none if the history is empty.
    """
    newest = next((run for run in evidence.measurements if run.valid), None)
    if newest is None and not evidence.stored_runs:
        return ()
    return list_previous_daily_runs([newest] if newest else [], evidence)


def list_previous_daily_runs(
    current: Sequence[Measurement], evidence: Evidence
) -> PreviousRuns:
    """List one valid run per earlier day (UTC), oldest first.

    The newest run of a day is used. Runs of one day share day-to-day effects and would
    make the noise look small; the day of the current runs is excluded for the same
    reason. Undated current runs count as runs of the present day. If `current` is
    empty, no day is excluded.
    """
    started = max((run.started for run in current if run.started), default=evidence.now)
    day = started.toordinal() if current else None
    measured = [
        run
        for run in (*evidence.measurements, *evidence.excluded_by_since)
        if run.valid and run.started is not None and run not in current
    ]
    ordered: list[PreviousRun] = sorted(
        (*measured, *evidence.stored_runs), key=_GET_START
    )
    before = ordered[: bisect_right(ordered, started, key=_GET_START)]
    days = map(datetime.toordinal, map(_GET_START, before))
    by_day = dict(zip(days, before, strict=True))  # the newest run of a day remains
    if day is not None:  # an earlier run of the current day is not an earlier day
        by_day.pop(day, None)
    return tuple(by_day.values())


def get_job_id(run: PreviousRun) -> str:
    """Return the job id of a run, or "" if it is unknown."""
    return run.job_id if isinstance(run, StoredRun) else run.run.found.job_id


def select_consecutive(
    previous: Sequence[Measurement], newest: Measurement, count: int
) -> list[Measurement]:
    """Return the newest run preceded by the last daily runs, `count` in total.

    Empty if the days are not consecutive.
    """
    runs = [*previous[1 - count :], newest]
    if len(runs) != count or newest.started is None:
        return []
    for earlier, later in pairwise(runs):
        if _GET_START(later) - _GET_START(earlier) > ADJACENT:
            return []
    return runs


def find_last_valid(evidence: Evidence) -> CodedStatement | None:
    """Describe the newest dated valid run, or None."""
    newest = _find_newest_valid(evidence)
    if newest is None or newest.started is None:
        return None
    days = (evidence.now.date() - newest.started.date()).days
    return CodedStatement(
        StatementCode.LAST_VALID_RUN,
        days=days,
        age=evidence.now - newest.started,
        started=newest.started,
        job_id=get_job_id(newest),
    )


def is_stale(evidence: Evidence) -> bool:
    """True if the newest valid run is older than allowed.

    False if no valid run is known or no age limit applies.
    """
    newest = _find_newest_valid(evidence)
    return newest is not None and evidence.is_too_old(newest.started)


def _find_newest_valid(evidence: Evidence) -> PreviousRun | None:
    """Return the newest dated valid run, or None."""
    return max(list_valid_runs(evidence), key=_GET_START, default=None)


def list_valid_runs(evidence: Evidence) -> list[PreviousRun]:
    """List all valid runs with a known start, oldest first."""
    all_runs: tuple[PreviousRun, ...] = (
        *evidence.measurements,
        *evidence.excluded_by_since,
        *evidence.stored_runs,
    )
    return sorted(
        (run for run in all_runs if run.valid and run.started is not None),
        key=_GET_START,
    )


def list_starts(evidence: Evidence) -> list[datetime]:
    """List the start times of all known comparable runs.

    Measured runs count whether valid or not, stored runs only if valid.
    """
    measured = (*evidence.measurements, *evidence.excluded_by_since)
    starts = [
        run.started
        for run in measured
        if run.excluded is None and run.started is not None
    ]
    return [*starts, *map(_GET_START, evidence.stored_runs)]


def list_daily_runs(older: Sequence[PreviousRun]) -> DailyRuns:
    """Convert runs with a finite step time to daily runs, keeping their order."""
    return [
        run
        if isinstance(run, StoredRun)
        else _make_daily_run(run, run.statistic_seconds or math.nan)
        for run in older
        if 0 < (run.statistic_seconds or 0) < math.inf
    ]


def average_current_runs(current: Sequence[Measurement]) -> list[DailyRun]:
    """Average the current runs into one daily run.

    Uses the geometric mean. Empty without runs, or if the first has no known start.
    """
    if not current or current[0].run.started is None:
        return []
    logarithms = [math.log(run.statistic_seconds or math.nan) for run in current]
    mean = math.exp(sum(logarithms) / len(logarithms))
    return [_make_daily_run(current[0], mean)] if math.isfinite(mean) else []


def find_quantisation_unit(runs: Sequence[PreviousRun]) -> float:
    """Return one printed unit relative to the step time, or 0.

    The largest value of all runs counts. A run contributes only if its steps differ by
    less than a unit: its level then moves by a whole unit when it crosses a rounding
    boundary, however small the change.
    """
    largest = 0.0
    for run in runs:
        if isinstance(run, StoredRun):
            continue
        unit, seconds = run.resolution_seconds, run.statistic_seconds
        fastest = min(run.window_seconds, default=0.0)
        slowest = max(run.window_seconds, default=0.0)
        if seconds and slowest - fastest < unit:
            largest = max(largest, UNIT_MARGIN * unit / seconds)
    return largest


def _make_daily_run(run: Measurement, seconds: float) -> DailyRun:
    """Make a daily run with the given step time; raises if its start is unknown."""
    if run.started is None:
        raise ValueError(f"the start of {run} is unknown")
    return DailyRun(run.started, seconds, run.environment)
