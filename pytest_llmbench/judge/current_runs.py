"""The runs that are averaged tonight, with their hiccups forgiven."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Evidence, Measurement, Note, NoteCode, Reason, StoredRun
from pytest_llmbench.core.robust import HICCUP, compute_mean, compute_median
from pytest_llmbench.judge.daily_runs import PreviousRun, PreviousRuns, list_previous_daily_runs
from pytest_llmbench.judge.estimate import disagree, estimate_noise
from pytest_llmbench.judge.shape import Shape, find_shape

LARGE = 1.5  # medians from which on a step is no straggler of the kind that a published mean holds as well
HANG = 20.0  # medians beyond which a step is no hiccup: the run hung, and nobody knows what it waited for
WEEK = timedelta(days=6)  # seven nights, tonight included
OFTEN = 3  # so many runs in seven nights with a hiccup are no chance: they are told, and forgiven no more

SAME = 1e-6


@dataclass(frozen=True, slots=True)
class CurrentRuns:
    """The runs that are averaged."""

    runs: tuple[Measurement, ...]  # the one that is shown comes first
    counted: tuple[Measurement, ...]  # the same as they are compared, with hiccups forgiven
    previous: PreviousRuns
    notes: tuple[Note, ...] = ()
    apart: bool = False  # they differ too much to be of one state


def select_current_runs(newest: Measurement, evidence: Evidence) -> CurrentRuns:
    """Return the runs that are averaged with the newest.

    All runs of a launch count whatever they say; of runs found on disk that differ too much only the newest does.
    """
    runs, lost = find_repeats(newest, evidence)
    older = list_previous_daily_runs(runs, evidence)
    counted, notes = _forgive_hiccups(runs, older, evidence)
    notes = (
        *notes,
        *(Note(NoteCode.REPEAT_LOST, f"a repeat cannot be judged: {run.problems[0].text}") for run in lost),
    )
    if len(runs) == 1:
        return CurrentRuns(runs, counted, older, (*notes, *_note_unknown_build(newest, evidence)))
    shown = formatting.join_first([formatting.format_seconds(run.statistic_seconds) for run in runs])
    apart = disagree(counted, estimate_noise(evidence, older))
    if apart and not newest.run.found.launch:
        text = f"{len(runs)} repeats differ too much, the newest decides: {shown}"
        return CurrentRuns(
            (newest,),
            counted[:1],
            list_previous_daily_runs((newest,), evidence),
            (Note(NoteCode.REPEATS_DISAGREE, text), *notes),
        )
    text = f"the mean of {len(runs)} repeats: {shown}"
    return CurrentRuns(runs, counted, older, (Note(NoteCode.REPEATS, text), *notes), apart)


def _note_unknown_build(newest: Measurement, evidence: Evidence) -> tuple[Note, ...]:
    if evidence.repeat_window and not newest.run.found.launch and not identify_build(newest):
        return (Note(NoteCode.BUILD_UNKNOWN, "nothing says which build it is of, so it has no repeats"),)
    return ()


def find_current_shape(together: CurrentRuns) -> Shape:
    """Return the shape of the newest run. Of launched runs, whose order is chance, half have to be warming up; a hiccup
    in the first steps is no warm-up."""
    newest = find_shape(together.runs[0])
    if newest.warming_up is None and len(together.runs) == 1:
        return newest
    launched = bool(together.runs[0].run.found.launch)
    shapes = [find_shape(run) for run in (together.counted if launched else together.counted[:1])]
    warming = [shape.warming_up for shape in shapes if shape.warming_up]
    return replace(newest, warming_up=warming[0] if warming and 2 * len(warming) >= len(shapes) else None)


def find_repeats(newest: Measurement, evidence: Evidence) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
    """Return the newest run with its repeats, and repeats that cannot be judged.

    Repeats of a run that was launched are exactly the others of its launch. Those of a run found on disk are runs found
    on disk, of its build, that started within the repeat window before it.
    """
    if newest.run.found.launch:
        others = select_launch(newest, evidence)[1:]
        return (newest, *(run for run in others if run.valid)), tuple(run for run in others if not run.valid)
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
    return (newest, *(run for run in near if run.valid)), tuple(run for run in near if run.problems)


def select_launch(run: Measurement, evidence: Evidence) -> tuple[Measurement, ...]:
    """Return a run and all others of its launch, valid or not; one that was found on disk is alone."""
    launch = run.run.found.launch
    same = (other for other in evidence.measurements if other.run.found.launch == launch and other is not run)
    return (run, *same) if launch else (run,)


def identify_build(measurement: Measurement) -> tuple[str, ...]:
    """Return what says which build a run is of; empty where nothing but its release does."""
    build = measurement.run.found.build
    return build if any(not part.startswith("release=") for part in build) else ()


# --- hiccups -------------------------------------------------------------------------------------------------


def _forgive_hiccups(
    runs: tuple[Measurement, ...], older: PreviousRuns, evidence: Evidence
) -> tuple[tuple[Measurement, ...], tuple[Note, ...]]:
    """Return runs with their hiccups forgiven, and what is to be said of them; the runs as they are where too many
    nights of the last week had some."""
    slow = [_find_hiccup(run, evidence) for run in runs]
    if not any(slow):
        return runs, ()
    before = _count_recent(older, runs[0], evidence)
    notes = [_note_hiccup(run, steps) for run, steps in zip(runs, slow, strict=True) if steps]
    number = before + len(notes)
    if number >= OFTEN:
        text = f"{number} runs in seven nights had such steps: a hiccup is forgiven no more; {notes[0].text}"
        return runs, (replace(notes[0], code=NoteCode.HICCUPS_OFTEN, text=text),)
    forgiven = tuple(replace(note, text=f"a hiccup: {note.text}") for note in notes)
    return tuple(map(_replace_steps, runs, slow)), forgiven


def _find_hiccup(run: Measurement, evidence: Evidence) -> tuple[int, ...]:
    """Return the places of the steps of a run that are a hiccup, the slowest first. More of them than that are none; of
    a mean of several steps all count."""
    window, baseline = np.array(run.window_seconds), evidence.baseline
    if baseline.recording is not None or baseline.window.statistic != "mean" or not len(window):
        return ()
    if (
        sum(attempt.finished for attempt in run.attempts) > 1
    ):  # it is judged as the slowest: forgiven, it would hide the others
        return ()
    steps = np.array(run.mean_of or [1] * len(window))
    large = window >= LARGE * compute_median(window)
    if HICCUP * int(steps.sum()) < 1:  # of so few steps even one is more than one of twenty
        return ()
    if int(steps[large].sum()) > math.ceil(HICCUP * int(steps.sum())) or window.max() > HANG * compute_median(window):
        return ()
    slow = tuple(place for place in np.argsort(-window, kind="stable").tolist() if large[place])
    usual = _replace_steps(run, slow).statistic_seconds
    return slow if usual and usual * evidence.tolerance.factor >= baseline.step_seconds else ()


def _replace_steps(run: Measurement, slow: Sequence[int]) -> Measurement:
    if not slow:
        return run
    window = np.array(run.window_seconds)
    window[list(slow)] = np.delete(window, list(slow)).max()
    return replace(run, window_seconds=tuple(window.tolist()), statistic_seconds=compute_mean(window, run.mean_of))


def _count_recent(older: PreviousRuns, current: Measurement, evidence: Evidence) -> int:
    """Return how many of the six nights before tonight had a hiccup."""
    started = current.started
    if started is None:
        return 0
    first = started.date() - WEEK
    return sum(_had_hiccup(run, evidence) for run in older if run.started is not None and run.started.date() >= first)


def _had_hiccup(run: PreviousRun, evidence: Evidence) -> bool:
    """Whether a night had a hiccup. Of one that only the history knows: its step time is more than what it was judged
    by, or a few steps decided."""
    if not isinstance(run, StoredRun):
        return bool(_find_hiccup(run, evidence))
    if run.reason == Reason.FEW_STEPS_DECIDE:
        return True
    if not run.step_time_seconds or not run.expected_seconds or run.log_difference is None:
        return False
    return math.log(run.step_time_seconds / run.expected_seconds) > run.log_difference + SAME


def _note_hiccup(run: Measurement, slow: Sequence[int]) -> Note:
    """Return which steps were how slow, on which lines, and what the run would be without."""
    middle, first = compute_median(np.array(run.window_seconds)), run.baseline.window.first
    steps = []
    for place in sorted(slow):
        number = run.window_steps[place] if run.window_steps else first + place
        line = f" (line {run.window_lines[place]})" if run.window_lines else ""
        steps.append(f"step {number}{line} took {run.window_seconds[place] / middle:.3g} x the median")
    usual = formatting.format_seconds(_replace_steps(run, slow).statistic_seconds)
    mean_of_all = f"the mean is {formatting.format_seconds(run.statistic_seconds)}"
    text = f"{formatting.join_first(steps)}; {mean_of_all}, {usual} with the next slowest in their place"
    return Note(NoteCode.HICCUP, text, run.window_lines[slow[0]] if run.window_lines else 0)
