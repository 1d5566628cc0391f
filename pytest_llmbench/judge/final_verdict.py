"""Apply doubts about the order of runs and the baseline to a verdict."""

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

# A contradiction up to this fraction of the log tolerance is rounding, or the
# imprecision of a spreadsheet.
IGNORED_SHARE = 0.5


def judge_evidence(evidence: Evidence, *, alone: bool = False) -> Judgement:
    """Judge a configuration for a session, or only its newest run (`alone`)."""
    judgement = judge_alone(evidence) if alone else judge(evidence)
    # A recording averages all runs in any order and gives no verdict.
    if evidence.rules.records:
        return judgement
    if not alone:
        judgement = with_order_doubt(judgement, evidence)
    return _apply_contradiction(judgement, evidence)


def _apply_contradiction(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Overrule a verdict with INVALID if its baseline contradicts itself.

    The stated step time is then longer than another stated value implies, so that a
    slow run could pass. The contradiction is only a note if it is at most half of the
    tolerance, if the stated step time is the shorter one, or if the verdict fails
    anyway.
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
    # also small if the stated step time is the shorter one: a negative excess
    is_small = excess <= IGNORED_SHARE * math.log(evidence.tolerance.factor)
    if is_small or is_red(judgement, evidence.rules):
        return judgement.add_notes(Note(NoteCode.BASELINE_CONTRADICTS, contradicted))
    entry = find_accepted(Reason.BASELINE_CONTRADICTS, run, evidence.accepted)
    if entry is not None:
        return judgement.add_notes(make_accepted_note(entry, contradicted))
    statements = (contradicted, *judgement.statements)
    reason = Reason.BASELINE_CONTRADICTS
    return judgement.overrule(Verdict.INVALID, reason, *statements)
