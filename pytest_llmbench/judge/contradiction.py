"""Whether a baseline that contradicts itself made a verdict green."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import (
    Baseline,
    Contradiction,
    Evidence,
    Judgement,
    Note,
    NoteCode,
    Reason,
    Verdict,
)
from pytest_llmbench.judge.acknowledged import find_accepted, move_baseline, note_accepted

# A contradiction of less than this part of the tolerance, as a logarithm, is rounding or a spreadsheet's.
SMALLEST = 0.5


def with_contradiction(
    judgement: Judgement,
    evidence: Evidence,
    judge: Callable[[Evidence], Judgement],
    is_red: Callable[[Judgement], bool],
) -> Judgement:
    """Return a verdict, INVALID if it is green only by the step time that another number of the baseline contradicts.

    A contradiction that decides nothing, or is below half of the tolerance, is a note.
    """
    contradiction, run = evidence.contradiction, judgement.measurement
    if contradiction is None or run is None or is_red(judgement):
        return judgement
    stated = evidence.baseline.step_seconds
    text = _describe(evidence.baseline, contradiction)
    excess = math.log(stated / contradiction.seconds)
    if excess <= SMALLEST * math.log(evidence.tolerance.factor):
        return _add(judgement, Note(NoteCode.BASELINE_CONTRADICTS, text))
    other = judge(move_baseline(evidence, contradiction.seconds / stated))
    if not is_red(other):
        return _add(judgement, Note(NoteCode.BASELINE_CONTRADICTS, text))
    text = f"{text}, by which the run is {other.verdict}"
    entry = find_accepted(Reason.BASELINE_CONTRADICTS, run, evidence.accepted)
    if entry is not None:
        return _add(judgement, note_accepted(entry, text))
    return replace(
        judgement,
        verdict=Verdict.INVALID,
        reason=Reason.BASELINE_CONTRADICTS,
        sentences=(text, *judgement.sentences),
    )


def _add(judgement: Judgement, note: Note) -> Judgement:
    return replace(judgement, notes=(*judgement.notes, note))


def _describe(baseline: Baseline, contradiction: Contradiction) -> str:
    printed = dict(baseline.cells).get("step_time") or f"{baseline.step_seconds:.10g}"
    place = f"{baseline.source.file}:{baseline.source.line}: " if baseline.source.file else ""
    implied = formatting.format_seconds(contradiction.seconds)
    beside = f"beside {contradiction.cell} {contradiction.printed}, which is {implied}"
    return f"the baseline contradicts itself ({place}step_time {printed} {beside})"
