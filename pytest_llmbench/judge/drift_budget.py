"""How far tonight is from the value that was accepted first: what re-recording would hide."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import AcceptedValue, Evidence, Judgement, Note, NoteCode, Reason, Recording, Verdict
from pytest_llmbench.core.tolerance import EQUAL, describe_move, find_reference
from pytest_llmbench.judge.margin import Answer, answer

GREEN = (Verdict.PASS, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE)
UNSETTLED = (Reason.FEW_STEPS_DECIDE, Reason.WARMING_UP, Reason.REPEATS_DISAGREE)
"""Reasons for which a run cannot say how slow the software is."""

NOTABLE = 0.5
"""From this share of the budget on the distance is told under a green line, too."""


def apply_drift_budget(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a verdict that does not follow a recorded baseline further than the drift budget allows.

    A run that is shown to be slower than the value that counts (`acceptance.reference`) by more than the budget, or
    than the tolerance where that is larger, is a REGRESSION (drifted), however near it is to what was recorded since.
    So is one whose recorded value itself is beyond the budget (the file was edited, or the budget is smaller now),
    unless the run is shown to be within it. What was measured holds to the same limit where nothing is shown: recording
    again moves the rule as written no further than the first value lets it. Any other verdict stays, with a note of
    the distance.
    """
    recording, estimate = judgement.baseline.recording, judgement.estimate
    if recording is None or not recording.earlier or estimate is None:
        return judgement
    first = find_reference(recording)
    since = math.log(recording.trimmed_mean_seconds / first.seconds)
    limit = math.log(max(1 + evidence.drift_budget, evidence.tolerance.factor))
    answered = answer(estimate.low + since, estimate.high + since, limit)
    edited = since > math.log1p(evidence.drift_budget) + EQUAL and answered is not Answer.WITHIN
    difference = estimate.difference + since
    noted = replace(judgement, notes=(*judgement.notes, _note_distance(recording, first, difference, evidence)))
    meets = (
        _find_furthest(judgement, difference, first) <= limit + EQUAL and answered is not Answer.BEYOND and not edited
    )
    if judgement.verdict not in GREEN or meets:
        return noted
    if judgement.reason in UNSETTLED:
        return replace(noted, meets_point=False)
    verdict = Verdict.REGRESSION if answered is Answer.BEYOND or edited else Verdict.INCONCLUSIVE
    text = (
        _describe_recorded(recording, first, evidence) if edited else _describe_run(first, difference, limit, evidence)
    )
    return replace(
        judgement,
        verdict=verdict,
        reason=Reason.DRIFTED,
        text=f"{text}; against the recorded value: {judgement.text}",
        meets_point=False,
    )


def _find_furthest(judgement: Judgement, difference: float, first: AcceptedValue) -> float:
    """Return how far what was measured is from the first value: launched runs that differ too much count each alone."""
    if judgement.reason is not Reason.REPEATS_DISAGREE:
        return difference
    seconds = (run.statistic_seconds or math.nan for run in judgement.runs)
    return max(math.log(run_seconds / first.seconds) for run_seconds in seconds)


def _describe_run(first: AcceptedValue, difference: float, limit: float, evidence: Evidence) -> str:
    bound = formatting.format_seconds(first.seconds * math.exp(limit))
    return f"{_describe_distance(first, difference)}; at most {bound} is allowed ({_describe_budget(evidence)})"


def _describe_recorded(recording: Recording, first: AcceptedValue, evidence: Evidence) -> str:
    distance = describe_move(recording.trimmed_mean_seconds, first)
    return f"the recorded value moved too far: {distance} ({_describe_budget(evidence)})"


def _describe_budget(evidence: Evidence) -> str:
    return f"drift budget {evidence.drift_budget * 100:.10g} %, tolerance {evidence.tolerance}"


def _describe_distance(first: AcceptedValue, difference: float) -> str:
    return f"tonight {describe_move(first.seconds * math.exp(difference), first)}"


def _note_distance(recording: Recording, first: AcceptedValue, difference: float, evidence: Evidence) -> Note:
    """Return how far tonight and the recorded value are from what was accepted, notable from half the budget on."""
    recorded = recording.trimmed_mean_seconds / first.seconds
    furthest = max(difference, math.log(recorded))
    is_notable = furthest > NOTABLE * math.log1p(evidence.drift_budget)
    since = f"recorded since: {formatting.format_difference(recorded)} ({_describe_budget(evidence)})"
    text = f"{_describe_distance(first, difference)}; {since}"
    return Note(NoteCode.RECORDED_DRIFT if is_notable else NoteCode.RECORDED_DRIFT_LITTLE, text)
