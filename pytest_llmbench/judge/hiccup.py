"""A hiccup in a run that is compared with a published plain mean: a few steps far slower than all others.

The document's mean holds its own stragglers and the run's would not, so only what no usual step is may be left out:
steps of 1.5 medians or more, and at most one of twenty. They are set to the next slowest, and named. A step of more
than 20 medians is a hang, and nothing is forgiven. Nor is it where a run would then be faster than the document by more
than the tolerance: the document's mean holds such steps, too; its window has the first step in it, or a stall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Evidence, Measurement, Note, NoteCode, Reason, StoredRun
from pytest_llmbench.core.robust import HICCUP, mean, median
from pytest_llmbench.judge.nights import PreviousRun, PreviousRuns

LARGE = 1.5
"""Medians from which on a step is no straggler of the kind that a published mean holds as well."""

HANG = 20.0
"""Medians beyond which a step is no hiccup: the run hung, and nobody knows what it waited for."""

WEEK = timedelta(days=6)
"""Seven nights, tonight included."""

OFTEN = 3
"""So many runs in seven nights with a hiccup are no chance: they are told, and forgiven no more."""

EQUAL = 1e-6


@dataclass(frozen=True, slots=True)
class ForgivenRuns:
    """Runs as they are compared, in their order, and what is to be said of the steps that do not count as they are."""

    runs: tuple[Measurement, ...]
    notes: tuple[Note, ...] = ()


def forgive_hiccups(runs: Sequence[Measurement], older: PreviousRuns, evidence: Evidence) -> ForgivenRuns:
    """Return runs with their hiccups forgiven; as they are where too many nights of the last week had some."""
    slow = [_find_hiccup(run, evidence) for run in runs]
    if not any(slow):
        return ForgivenRuns(tuple(runs))
    before = _count_recent(older, runs[0], evidence)
    notes = [_note_hiccup(run, steps) for run, steps in zip(runs, slow, strict=True) if steps]
    number = before + len(notes)
    if number >= OFTEN:
        text = f"{number} runs in seven nights had such steps: a hiccup is forgiven no more; {notes[0].text}"
        return ForgivenRuns(tuple(runs), (replace(notes[0], code=NoteCode.HICCUPS_OFTEN, text=text),))
    return ForgivenRuns(
        tuple(map(_replace_steps, runs, slow)), tuple(replace(note, text=f"a hiccup: {note.text}") for note in notes)
    )


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
    large = window >= LARGE * median(window)
    if HICCUP * int(steps.sum()) < 1:  # of so few steps even one is more than one of twenty
        return ()
    if int(steps[large].sum()) > math.ceil(HICCUP * int(steps.sum())) or window.max() > HANG * median(window):
        return ()
    slow = tuple(place for place in np.argsort(-window, kind="stable").tolist() if large[place])
    usual = _replace_steps(run, slow).statistic_seconds
    return slow if usual and usual * evidence.tolerance.factor >= baseline.step_seconds else ()


def _replace_steps(run: Measurement, slow: Sequence[int]) -> Measurement:
    if not slow:
        return run
    window = np.array(run.window_seconds)
    window[list(slow)] = np.delete(window, list(slow)).max()
    return replace(run, window_seconds=tuple(window.tolist()), statistic_seconds=mean(window, run.mean_of))


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
    return math.log(run.step_time_seconds / run.expected_seconds) > run.log_difference + EQUAL


def _note_hiccup(run: Measurement, slow: Sequence[int]) -> Note:
    """Return which steps were how slow, on which lines, and what the run would be without."""
    middle, first = median(np.array(run.window_seconds)), run.baseline.window.first
    steps = []
    for place in sorted(slow):
        number = run.window_steps[place] if run.window_steps else first + place
        line = f" (line {run.window_lines[place]})" if run.window_lines else ""
        steps.append(f"step {number}{line} took {run.window_seconds[place] / middle:.3g} x the median")
    usual = formatting.format_seconds(_replace_steps(run, slow).statistic_seconds)
    mean_of_all = f"the mean is {formatting.format_seconds(run.statistic_seconds)}"
    text = f"{formatting.join_first(steps)}; {mean_of_all}, {usual} with the next slowest in their place"
    return Note(NoteCode.HICCUP, text, run.window_lines[slow[0]] if run.window_lines else 0)
