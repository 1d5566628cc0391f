"""Whether a green verdict rests on a baseline that contradicts itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from pytest_llmbench.core.codes import JUDGED, NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.run_records import Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.acknowledged import find_accepted, note_accepted

# A contradiction of at most this part of the tolerance, as a logarithm, is rounding or
# a spreadsheet's.
SMALLEST = 0.5


def with_contradiction(
    judgement: Judgement, evidence: Evidence, is_red: Callable[[Judgement], bool]
) -> Judgement:
    """Return a verdict, INVALID if its baseline's step time is longer than another
    number of the baseline allows.

    A step time that is shorter passes nothing that is too slow: such a contradiction is
    a note. So is one below half of the tolerance, and any beside a verdict that is red
    by itself.
    """
    contradiction, run = evidence.contradiction, judgement.measurement
    if contradiction is None or run is None or judgement.verdict not in JUDGED:
        return judgement
    contradicted = CodedStatement(
        StatementCode.BASELINE_CONTRADICTS,
        baseline=evidence.baseline,
        contradiction=contradiction,
    )
    excess = math.log(evidence.baseline.step_seconds / contradiction.seconds)
    if is_red(judgement) or excess <= SMALLEST * math.log(evidence.tolerance.factor):
        return _add(judgement, Note(NoteCode.BASELINE_CONTRADICTS, contradicted))
    entry = find_accepted(Reason.BASELINE_CONTRADICTS, run, evidence.accepted)
    if entry is not None:
        return _add(judgement, note_accepted(entry, contradicted))
    return replace(
        judgement,
        verdict=Verdict.INVALID,
        reason=Reason.BASELINE_CONTRADICTS,
        statements=(contradicted, *judgement.statements),
    )


def _add(judgement: Judgement, note: Note) -> Judgement:
    return replace(judgement, notes=(*judgement.notes, note))
