"""The verdict after all doubts: of the order of the runs, and of the baseline itself."""

from __future__ import annotations

import math

from pytest_llmbench.core.codes import JUDGED, NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.run_records import Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.acknowledged import find_accepted, make_accepted_note
from pytest_llmbench.judge.decide import judge, judge_alone
from pytest_llmbench.judge.item_status import is_red
from pytest_llmbench.judge.order import with_order_doubt

# A contradiction of at most this part of the tolerance, as a logarithm, is rounding or
# a spreadsheet's.
SMALLEST = 0.5


def judge_evidence(evidence: Evidence, *, alone: bool = False) -> Judgement:
    """Return the verdict of a session on a configuration, or on its newest run
    `alone`."""
    judgement = judge_alone(evidence) if alone else judge(evidence)
    # A recording takes the mean of all runs in whatever order, and is no verdict.
    if evidence.rules.records:
        return judgement
    if not alone:
        judgement = with_order_doubt(judgement, evidence)
    return _with_contradiction(judgement, evidence)


def _with_contradiction(judgement: Judgement, evidence: Evidence) -> Judgement:
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
    small = excess <= SMALLEST * math.log(evidence.tolerance.factor)
    if small or is_red(judgement, evidence.rules):
        return judgement.add_notes(Note(NoteCode.BASELINE_CONTRADICTS, contradicted))
    entry = find_accepted(Reason.BASELINE_CONTRADICTS, run, evidence.accepted)
    if entry is not None:
        return judgement.add_notes(make_accepted_note(entry, contradicted))
    statements = (contradicted, *judgement.statements)
    reason = Reason.BASELINE_CONTRADICTS
    return judgement.overrule(Verdict.INVALID, reason, *statements)
