"""Which runs are averaged tonight, and what is to be said of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import Evidence, Measurement, Note, NoteCode
from pytest_llmbench.judge import hiccup, nights
from pytest_llmbench.judge.estimate import disagree, estimate_noise
from pytest_llmbench.judge.shape import Shape, find_shape


@dataclass(frozen=True, slots=True)
class CurrentRuns:
    """The runs that are averaged, the one that is shown first, and these as they are compared: `counted`, with a hiccup
    forgiven. `apart`: they differ too much to be of one state."""

    runs: tuple[Measurement, ...]
    counted: tuple[Measurement, ...]
    previous: nights.PreviousRuns
    """The runs of the nights before."""
    notes: tuple[Note, ...] = ()
    apart: bool = False


def select_current_runs(newest: Measurement, evidence: Evidence) -> CurrentRuns:
    """Return the runs that are averaged with the newest.

    All runs of a launch count whatever they say; of runs found on disk that differ too much only the newest does.
    """
    runs, lost = nights.find_repeats(newest, evidence)
    older = nights.previous_daily_runs(runs, evidence)
    usual = hiccup.forgive_hiccups(runs, older, evidence)
    notes = (
        *usual.notes,
        *(Note(NoteCode.REPEAT_LOST, f"a repeat cannot be judged: {run.problems[0].text}") for run in lost),
    )
    if len(runs) == 1:
        return CurrentRuns(runs, usual.runs, older, (*notes, *_note_unknown_build(newest, evidence)))
    shown = formatting.join_first([formatting.format_seconds(run.statistic_seconds) for run in runs])
    apart = disagree(usual.runs, estimate_noise(evidence, older))
    if apart and not newest.run.found.launch:
        text = f"{len(runs)} repeats differ too much, the newest decides: {shown}"
        return CurrentRuns(
            (newest,),
            usual.runs[:1],
            nights.previous_daily_runs((newest,), evidence),
            (Note(NoteCode.REPEATS_DISAGREE, text), *notes),
        )
    text = f"the mean of {len(runs)} repeats: {shown}"
    return CurrentRuns(runs, usual.runs, older, (Note(NoteCode.REPEATS, text), *notes), apart)


def _note_unknown_build(newest: Measurement, evidence: Evidence) -> tuple[Note, ...]:
    if evidence.repeat_window and not newest.run.found.launch and not nights.identify_build(newest):
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
