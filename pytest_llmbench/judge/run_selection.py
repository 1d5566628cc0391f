"""Which runs a verdict rests on: those that are averaged, with hiccups forgiven, and
the daily runs before them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter

import numpy as np

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

# medians from which on a step is no straggler of the kind that a published mean holds
# as well
LARGE = 1.5
# medians beyond which a step is no hiccup: the run hung, and nobody knows what it
# waited for
HANG = 20.0
WEEK = timedelta(days=6)  # seven days, the current one included
# so many runs in seven days with a hiccup are no chance: they are told, and forgiven no
# more
OFTEN = 3

SAME = 1e-6


@dataclass(frozen=True, slots=True)
class CurrentRuns:
    """The runs that are averaged."""

    runs: tuple[Measurement, ...]  # the one that is shown comes first
    counted: tuple[
        Measurement, ...
    ]  # the same as they are compared, with hiccups forgiven
    previous: PreviousRuns
    notes: tuple[Note, ...] = ()
    apart: bool = False  # they differ too much to be of one state


def select_current_runs(newest: Measurement, evidence: Evidence) -> CurrentRuns:
    """Return the runs that are averaged with the newest.

    All runs of a launch count whatever they say; of runs found on disk that differ too
    much only the newest does.
    """
    runs, lost = find_repeats(newest, evidence)
    older = list_previous_daily_runs(runs, evidence)
    counted, notes = _ignore_stalls(runs, older, evidence)
    notes = (*notes, *_note_lost_repeats(lost))
    if len(runs) == 1:
        return CurrentRuns(
            runs, counted, older, (*notes, *_note_unknown_build(newest, evidence))
        )
    seconds = tuple(run.statistic_seconds for run in runs)
    apart = disagree(counted, estimate_noise(evidence, older))
    if apart and not newest.run.found.launch:
        differ = CodedStatement(
            StatementCode.REPEATS_DIFFER, runs=len(runs), seconds=seconds
        )
        return CurrentRuns(
            (newest,),
            counted[:1],
            list_previous_daily_runs((newest,), evidence),
            (Note(NoteCode.REPEATS_DISAGREE, differ), *notes),
        )
    repeats = CodedStatement(StatementCode.REPEATS, runs=len(runs), seconds=seconds)
    return CurrentRuns(
        runs, counted, older, (Note(NoteCode.REPEATS, repeats), *notes), apart
    )


def _note_lost_repeats(lost: Sequence[Measurement]) -> Iterator[Note]:
    for problem in map(find_unusable, lost):
        if problem is not None:
            statement = CodedStatement(StatementCode.LOST_REPEAT, problem=problem)
            yield Note(NoteCode.REPEAT_LOST, statement)


def _note_unknown_build(newest: Measurement, evidence: Evidence) -> tuple[Note, ...]:
    if (
        evidence.repeat_window
        and not newest.run.found.launch
        and not identify_build(newest)
    ):
        unknown = CodedStatement(StatementCode.BUILD_UNKNOWN)
        return (Note(NoteCode.BUILD_UNKNOWN, unknown),)
    return ()


def find_current_shape(together: CurrentRuns) -> Shape:
    """Return the shape of the newest run. Of launched runs, whose order is chance, half
    have to be warming up; a hiccup in the first steps is no warm-up."""
    newest = find_shape(together.runs[0])
    if newest.warming_up is None and len(together.runs) == 1:
        return newest
    launched = bool(together.runs[0].run.found.launch)
    shapes = [
        find_shape(run)
        for run in (together.counted if launched else together.counted[:1])
    ]
    warming = [shape.warming_up for shape in shapes if shape.warming_up]
    return replace(
        newest,
        warming_up=warming[0] if warming and 2 * len(warming) >= len(shapes) else None,
    )


def find_repeats(
    newest: Measurement, evidence: Evidence
) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
    """Return the newest run with its repeats, and repeats that cannot be judged.

    Repeats of a run that was launched are exactly the others of its launch. Those of a
    run found on disk are runs found on disk, of its build, that started within the
    repeat window before it.
    """
    if newest.run.found.launch:
        others = select_launch(newest, evidence)[1:]
        return (newest, *(run for run in others if run.valid)), tuple(
            run for run in others if not run.valid
        )
    window, started = evidence.repeat_window, newest.run.started
    if not window or started is None:
        return (newest,), ()
    older = evidence.measurements[evidence.measurements.index(newest) + 1 :]
    near = [
        run
        for run in older
        if run.run.started is not None
        and not run.run.found.launch
        and started - run.run.started <= window
        and identify_build(run) == identify_build(newest) != ()
        and run.window_seconds != newest.window_seconds  # a copy is no second run
    ]
    return (newest, *(run for run in near if run.valid)), tuple(
        run for run in near if not run.valid and (run.problems or not run.excluded)
    )


def select_launch(run: Measurement, evidence: Evidence) -> tuple[Measurement, ...]:
    """Return a run and all others of its launch, valid or not; one that was found on
    disk is alone."""
    launch = run.run.found.launch
    same = (
        other
        for other in evidence.measurements
        if other.run.found.launch == launch and other is not run
    )
    return (run, *same) if launch else (run,)


def find_unusable(run: Measurement) -> Problem | None:
    """Return why a run has no step time that counts; None for one that may be compared
    with a baseline."""
    problem = next(iter(run.problems), run.excluded)
    if problem is not None:
        return problem
    measured = run.statistic_seconds
    if measured is None or not (math.isfinite(measured) and measured > 0):
        return UNMEASURED
    return None


def identify_build(measurement: Measurement) -> tuple[str, ...]:
    """Return what says which build a run is of; empty where nothing but its release
    does."""
    build = measurement.run.found.build
    return build if any(not part.startswith("release=") for part in build) else ()


# --- hiccups --------------------------------------------------------------------------


def _ignore_stalls(
    runs: tuple[Measurement, ...], older: PreviousRuns, evidence: Evidence
) -> tuple[tuple[Measurement, ...], tuple[Note, ...]]:
    """Return runs with their hiccups forgiven, and what is to be said of them; the runs
    as they are where too many days of the last week had some."""
    slow = [_find_stall(run, evidence) for run in runs]
    if not any(slow):
        return runs, ()
    hiccups = [(run, steps) for run, steps in zip(runs, slow, strict=True) if steps]
    number = _count_recent(older, runs[0], evidence) + len(hiccups)
    if number >= OFTEN:
        return runs, (_make_stall_note(*hiccups[0], often=number),)
    forgiven = tuple(_make_stall_note(run, steps) for run, steps in hiccups)
    return tuple(map(_replace_steps, runs, slow)), forgiven


def _find_stall(run: Measurement, evidence: Evidence) -> tuple[int, ...]:
    """Return the places of the steps of a run that are a hiccup, the slowest first.
    More of them than that are none; of a mean of several steps all count."""
    window, baseline = np.array(run.window_seconds), evidence.baseline
    if (
        baseline.recording is not None
        or baseline.window.statistic != "mean"
        or not len(window)
    ):
        return ()
    if (
        sum(attempt.finished for attempt in run.attempts) > 1
    ):  # it is judged as the slowest: forgiven, it would hide the others
        return ()
    steps = np.array(run.mean_of or [1] * len(window))
    large = window >= LARGE * compute_median(window)
    if int(np.count_nonzero(large)) > MOST_STALLS + run.moving_mean - 1:
        return ()
    if (
        HICCUP * int(steps.sum()) < 1
    ):  # of so few steps even one is more than one of twenty
        return ()
    if int(steps[large].sum()) > math.ceil(
        HICCUP * int(steps.sum())
    ) or window.max() > HANG * compute_median(window):
        return ()
    slow = tuple(
        place for place in np.argsort(-window, kind="stable").tolist() if large[place]
    )
    usual = _replace_steps(run, slow).statistic_seconds
    return (
        slow
        if usual and usual * evidence.tolerance.factor >= baseline.step_seconds
        else ()
    )


def _replace_steps(run: Measurement, slow: Sequence[int]) -> Measurement:
    if not slow:
        return run
    window = np.array(run.window_seconds)
    window[list(slow)] = np.delete(window, list(slow)).max()
    return replace(
        run,
        window_seconds=tuple(window.tolist()),
        statistic_seconds=compute_mean(window, run.mean_of),
    )


def _count_recent(older: PreviousRuns, current: Measurement, evidence: Evidence) -> int:
    """Return how many of the six days before the current run had a hiccup."""
    started = current.started
    if started is None:
        return 0
    first = started.date() - WEEK
    return sum(
        _had_stall(run, evidence)
        for run in older
        if run.started is not None and run.started.date() >= first
    )


def _had_stall(run: PreviousRun, evidence: Evidence) -> bool:
    """Whether a daily run had a hiccup. Of one that only the history knows: its step
    time is more than what it was judged by, or a few steps decided."""
    if not isinstance(run, StoredRun):
        return bool(_find_stall(run, evidence))
    if run.reason == Reason.FEW_STEPS_DECIDE:
        return True
    if (
        not run.step_time_seconds
        or not run.expected_seconds
        or run.log_difference is None
    ):
        return False
    return (
        math.log(run.step_time_seconds / run.expected_seconds)
        > run.log_difference + SAME
    )


def _make_stall_note(run: Measurement, slow: Sequence[int], often: int = 0) -> Note:
    """Return the note on the slow steps of a run, at the line of the slowest; `often`:
    one of so many runs."""
    middle = compute_median(np.array(run.window_seconds))
    first = run.baseline.window.first
    steps = [
        SlowStep(
            run.window_steps[row] if run.window_steps else first + row,
            run.window_lines[row] if run.window_lines else 0,
            run.window_seconds[row] / middle,
        )
        for row in sorted(slow)
    ]
    mean, usual = run.statistic_seconds, _replace_steps(run, slow).statistic_seconds
    line = max(steps, key=lambda step: step.ratio).line
    if often:
        repeated = CodedStatement(
            StatementCode.HICCUPS_OFTEN, runs=often, steps=steps, mean=mean, usual=usual
        )
        return Note(NoteCode.HICCUPS_OFTEN, repeated, line)
    hiccup = CodedStatement(StatementCode.HICCUP, steps=steps, mean=mean, usual=usual)
    return Note(NoteCode.HICCUP, hiccup, line)


# --- the daily runs: one a day, those before the current ones -------------------------


ADJACENT = timedelta(
    days=4
)  # days this near to each other are in a row: a weekend may lie between them

# A year of daily runs of 82 configurations is 30,000 runs: this is called for each of
# them.
_BEGUN: Callable[[PreviousRun], datetime] = attrgetter(
    "started"
)  # of those that have one


def list_before_newest(evidence: Evidence) -> PreviousRuns:
    """Return the daily runs before the newest valid run; all where there is none, and
    the history knows some."""
    newest = next((run for run in evidence.measurements if run.valid), None)
    if newest is None and not evidence.stored_runs:
        return ()
    return list_previous_daily_runs([newest] if newest else [], evidence)


def list_previous_daily_runs(
    current: Sequence[Measurement], evidence: Evidence
) -> PreviousRuns:
    """Return one valid run for each earlier day (UTC), oldest first: the newest of that
    day.

    Runs of one day share what changes from day to day, so that they would make the
    noise look small; those of the current runs' own day are none. Where there is no
    current run, all days are earlier ones, and so they are for one whose start nothing
    says: it counts as the newest.
    """
    started = max((run.started for run in current if run.started), default=evidence.now)
    day = started.toordinal() if current else None
    measured = [
        run
        for run in (*evidence.measurements, *evidence.excluded_by_since)
        if run.valid and run.started is not None and run not in current
    ]
    ordered: list[PreviousRun] = sorted((*measured, *evidence.stored_runs), key=_BEGUN)
    before = ordered[: bisect_right(ordered, started, key=_BEGUN)]
    by_day = dict(
        zip(map(datetime.toordinal, map(_BEGUN, before)), before, strict=True)
    )
    if day is not None:  # an earlier run of its day is no earlier day
        by_day.pop(day, None)
    return tuple(by_day.values())


def get_job_id(run: PreviousRun) -> str:
    """Return the job of a run, empty where nothing says it."""
    return run.job_id if isinstance(run, StoredRun) else run.run.found.job_id


def select_consecutive(
    older: Sequence[Measurement], newest: Measurement, count: int
) -> list[Measurement]:
    """Return the newest run and the last daily runs before it, `count` together; empty
    where they are not in a row."""
    row = [*older[1 - count :], newest]
    if len(row) != count or newest.started is None:
        return []
    return (
        row
        if all(
            _BEGUN(later) - _BEGUN(earlier) <= ADJACENT
            for earlier, later in pairwise(row)
        )
        else []
    )


def find_last_valid(evidence: Evidence) -> CodedStatement | None:
    """Return the newest valid run; None if no dated one is known."""
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
    """Whether the last valid run that is known is older than allowed: not where none is
    known, or nothing limits it."""
    newest = _find_newest_valid(evidence)
    return newest is not None and evidence.is_too_old(newest.started)


def _find_newest_valid(evidence: Evidence) -> PreviousRun | None:
    return max(list_valid_runs(evidence), key=_BEGUN, default=None)


def list_valid_runs(evidence: Evidence) -> list[PreviousRun]:
    """Return all valid runs of which something says when they began, oldest first."""
    all_runs: tuple[PreviousRun, ...] = (
        *evidence.measurements,
        *evidence.excluded_by_since,
        *evidence.stored_runs,
    )
    return sorted(
        (run for run in all_runs if run.valid and run.started is not None), key=_BEGUN
    )


def list_starts(evidence: Evidence) -> list[datetime]:
    """Return when the known comparable runs of a configuration started: measured ones,
    valid or not, and the valid ones of the history."""
    measured = (*evidence.measurements, *evidence.excluded_by_since)
    starts = [
        run.started
        for run in measured
        if run.excluded is None and run.started is not None
    ]
    return [*starts, *(stored.started for stored in evidence.stored_runs)]


def list_daily_runs(older: Sequence[PreviousRun]) -> DailyRuns:
    """Return measured runs, oldest first, as daily runs."""
    measured = [run for run in older if 0 < (run.statistic_seconds or 0) < math.inf]
    return [
        run
        if isinstance(run, StoredRun)
        else _make_daily_run(run, run.statistic_seconds or math.nan)
        for run in measured
    ]


def average_current_runs(current: Sequence[Measurement]) -> list[DailyRun]:
    """Return the current runs as one daily run, their mean; empty without one, or where
    nothing says when it began."""
    if not current or current[0].run.started is None:
        return []
    logarithms = [math.log(run.statistic_seconds or math.nan) for run in current]
    mean = math.exp(sum(logarithms) / len(logarithms))
    return [_make_daily_run(current[0], mean)] if math.isfinite(mean) else []


def find_quantisation_unit(runs: Sequence[PreviousRun]) -> float:
    """Return one printed unit of the step times of runs, as a fraction, where their
    steps do not differ by as much: a level that crosses a rounding bound then moves by
    a unit, however small the change was. Else 0."""
    units = []
    for run in runs:
        if isinstance(run, StoredRun):
            continue
        spread = max(run.window_seconds, default=0.0) - min(
            run.window_seconds, default=0.0
        )
        seconds = run.statistic_seconds
        units.append(
            1.01 * run.resolution_seconds / seconds
            if seconds and spread < run.resolution_seconds
            else 0.0
        )
    return max(units, default=0.0)


def _make_daily_run(run: Measurement, seconds: float) -> DailyRun:
    if run.started is None:
        raise ValueError(f"nothing says when {run} started")
    return DailyRun(run.started, seconds, run.environment)
