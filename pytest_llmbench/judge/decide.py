"""From evidence to a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_llmbench import wording
from pytest_llmbench.judge import agreement, nights
from pytest_llmbench.judge.estimate import disagree, estimate, noise_of
from pytest_llmbench.judge.margin import EQUAL, Answer, answer
from pytest_llmbench.judge.shape import Shape, look
from pytest_llmbench.models import Estimate, Evidence, Judgement, Measurement, Note, Reason, Verdict

POOLED_NIGHTS = 3
"""A configuration that is INCONCLUSIVE for so many nights running is judged on them together."""

MANY = 100
"""From this many runs on nobody would start them."""

COARSE = 0.1
"""A baseline whose rounding is a larger part of the margin than this is worth a warning."""


def judge(evidence: Evidence) -> Judgement:
    """Return the verdict on a configuration from its measurements, newest first.

    The newest comparable run is judged, together with its repeats. PASS: shown to be at most baseline x (1 +
    tolerance). REGRESSION: shown to be slower than that. IMPROVEMENT: shown to be faster than baseline / (1 +
    tolerance). INCONCLUSIVE: none of these can be shown. A run that cannot be judged is INVALID, whatever older runs
    say; a configuration without a comparable run is MISSING.
    """
    comparable = [measurement for measurement in evidence.measurements if measurement.excluded is None]
    if not comparable:
        return _missing(evidence)
    newest = comparable[0]
    if newest.run.started is None and len(comparable) > 1:
        return _start_unknown(evidence, newest)
    return _judged(evidence, newest)


def judge_alone(evidence: Evidence) -> Judgement:
    """Return the verdict on the first run, which has an item of its own; the others are its history.

    NOT_COMPARABLE where positive evidence excludes it.
    """
    measurement = evidence.measurements[0]
    problem = measurement.excluded
    if problem is not None:
        return _verdict(evidence, Verdict.NOT_COMPARABLE, problem.reason, problem.text, measurement)
    return _judged(replace(evidence, repeat_window=None), measurement)


def _judged(evidence: Evidence, newest: Measurement) -> Judgement:
    started = newest.run.started
    if started is None and evidence.max_age is not None:
        return _start_unknown(evidence, newest)
    if started is not None and evidence.max_age is not None and evidence.now - started > evidence.max_age:
        age, limit = wording.age(evidence.now - started), wording.age(evidence.max_age)
        text = f"the newest run is {age} old; at most {limit} is allowed"
        return _verdict(evidence, Verdict.MISSING, Reason.TOO_OLD, text, newest)
    if not newest.valid:
        problem = newest.problems[0]
        return _verdict(evidence, Verdict.INVALID, problem.reason, problem.text, newest)
    measured = newest.statistic_seconds
    if measured is None or not (math.isfinite(measured) and measured > 0):
        return _verdict(evidence, Verdict.INVALID, Reason.WINDOW_INCOMPLETE, "no step time was measured", newest)
    return _compared(evidence, newest)


def _start_unknown(evidence: Evidence, newest: Measurement) -> Judgement:
    text = f"nothing says when {newest.run.id} started: {newest.run.started_from}"
    return _verdict(evidence, Verdict.INVALID, Reason.START_UNKNOWN, text, newest)


def _missing(evidence: Evidence) -> Judgement:
    if not evidence.measurements:
        return _verdict(evidence, Verdict.MISSING, Reason.NO_RUN, "no run of this configuration")
    excluded = evidence.measurements[0].excluded
    kinds = f"{excluded.reason} runs: {excluded.text}" if excluded else "runs that cannot be compared"
    text = f"only {kinds}"
    return _verdict(evidence, Verdict.MISSING, Reason.ONLY_NOT_COMPARABLE, text, evidence.measurements[0])


# --- the comparison ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Finding:
    """A verdict with its reason, and what a reader should know besides."""

    verdict: Verdict
    reason: Reason
    because: str = ""


def _compared(evidence: Evidence, newest: Measurement) -> Judgement:
    tonight, notes = _tonight(evidence, newest)
    older = nights.history(tonight, evidence)
    noise = noise_of(evidence, older, tonight)
    found = estimate(tonight, evidence, noise)
    shape = look(newest)
    finding = _finding(found, tonight, evidence, shape)
    meets = agreement.meets_point(tonight, evidence, found)
    if finding.reason is Reason.CANNOT_TELL and len(tonight) == 1:
        finding = _over_nights(evidence, newest, older, meets) or finding
    told = _told(finding, found, newest)
    judgement = _verdict(evidence, finding.verdict, finding.reason, told, newest)
    return replace(
        judgement,
        log_difference=found.difference,
        meets_point=meets,
        notes=(*notes, *_doubts(found), *filter(None, [shape.warming_up]), *shape.notes, *judgement.notes),
        estimate=found,
        repeats=tonight[1:],
    )


def _tonight(evidence: Evidence, newest: Measurement) -> tuple[tuple[Measurement, ...], list[Note]]:
    """Return the runs that are averaged, and what is to be said of them."""
    runs, lost = nights.repeats(newest, evidence)
    notes = [Note("repeat-lost", f"a repeat cannot be judged: {one.problems[0].text}") for one in lost]
    if len(runs) == 1:
        return runs, notes + _unknown_build(evidence, newest)
    shown = wording.listed([wording.seconds(run.statistic_seconds) for run in runs])
    if disagree(runs, noise_of(evidence, nights.history(runs, evidence))):
        text = f"{len(runs)} repeats differ too much, the newest decides: {shown}"
        return (newest,), [Note("repeats-disagree", text), *notes]
    return runs, [Note("repeats", f"the mean of {len(runs)} repeats: {shown}"), *notes]


def _unknown_build(evidence: Evidence, newest: Measurement) -> list[Note]:
    if evidence.repeat_window and not nights.build(newest):
        return [Note("build-unknown", "nothing says which build it is of, so it has no repeats")]
    return []


def _finding(found: Estimate, tonight: Sequence[Measurement], evidence: Evidence, shape: Shape) -> _Finding:
    told = _answered(found)
    if told is Answer.CANNOT_TELL:
        because = _how_many(found) + ("" if shape.kind == "even" else f"; {shape.words}")
        return _Finding(Verdict.INCONCLUSIVE, Reason.CANNOT_TELL, because)
    doubt = agreement.doubt(told, tonight, evidence)
    if doubt:
        return _Finding(Verdict.INCONCLUSIVE, Reason.FEW_STEPS_DECIDE, f"{doubt}; {shape.words}")
    if told is Answer.BEYOND:
        return _Finding(Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND, _how_slower(shape))
    if shape.warming_up:
        return _Finding(Verdict.INCONCLUSIVE, Reason.WARMING_UP, shape.warming_up.text)
    if answer(found.low, found.high, -found.margin) is Answer.WITHIN:
        because = "refresh the baseline, or it will hide the next regression"
        return _Finding(Verdict.IMPROVEMENT, Reason.FASTER_THAN_BASELINE, because)
    return _Finding(Verdict.PASS, Reason.WITHIN_TOLERANCE)


def _over_nights(evidence: Evidence, newest: Measurement, older: Sequence[Measurement], meets: bool) -> _Finding | None:
    """Return what three INCONCLUSIVE nights running say together of a run that does not meet the literal rule.

    Only a REGRESSION: two good nights must not average away that something changed tonight.
    """
    row = nights.running([one for one in older if one in evidence.measurements], newest, POOLED_NIGHTS)
    noise = noise_of(evidence, older)
    if meets or not row or disagree(row, noise):
        return None
    alone = [estimate([night], evidence, noise) for night in row]
    if any(_answered(one) is not Answer.CANNOT_TELL for one in alone):
        return None
    together = estimate(row, evidence, noise)
    told = _answered(together)
    if told is not Answer.BEYOND or any(agreement.doubt(told, runs, evidence) for runs in ([newest], row)):
        return None
    because = f"{POOLED_NIGHTS} nights running could not tell; together they do: {_interval(together)}"
    return _Finding(Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND, because)


def _answered(found: Estimate) -> Answer:
    return answer(found.low, found.high, found.margin)


# --- words ------------------------------------------------------------------------------------------------


def _told(finding: _Finding, found: Estimate, newest: Measurement) -> str:
    expected = newest.baseline.step_seconds
    measured = newest.statistic_seconds if found.runs == 1 else expected * math.exp(found.difference)
    slower = wording.difference(math.exp(found.difference))
    told = f"{wording.seconds(measured)} is {slower} against {wording.seconds(expected)} ({_interval(found)})"
    if finding.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
        told += f"; the bound is {wording.seconds(expected * math.exp(found.margin))}"
    return f"{told}; {finding.because}" if finding.because else told


def _interval(found: Estimate) -> str:
    if found.threshold_only:
        return "threshold only: nothing is known of the error"
    low, high = (wording.difference(wording.ratio(bound)) for bound in (found.low, found.high))
    return f"{low.removesuffix(' %')} to {high}" if low.endswith("%") and high.endswith("%") else f"{low} to {high}"


def _how_slower(shape: Shape) -> str:
    """Say what a regression looks like; single slow steps do not make it, or the trimmed mean would not agree."""
    if shape.kind == "even":
        return f"uniform shift; {shape.words}"
    return f"uniform shift; besides, {shape.words}" if shape.kind in ("one-spike", "spikes") else shape.words


def _how_many(found: Estimate) -> str:
    runs = wording.counted(found.runs, "run")
    if found.repeats_needed is None:
        return f"{runs} cannot tell, and no number would: it lies at the bound"
    needed = max(found.repeats_needed, found.runs + 1)
    return f"{runs} cannot tell; {f'about {needed}' if needed <= MANY else f'more than {MANY}'} would"


def _doubts(found: Estimate) -> list[Note]:
    """Return what makes the estimate worse than it could be."""
    notes = []
    if found.threshold_only:
        notes.append(Note("threshold-only", "too few steps and no history: compared with the bound as it is"))
    if found.rounding > COARSE * found.margin:
        text = f"the baseline's rounding ({found.rounding:.1%}) is more than a tenth of the margin"
        notes.append(Note("coarse-baseline", text))
    return notes


def _verdict(
    evidence: Evidence, verdict: Verdict, reason: Reason, text: str, measurement: Measurement | None = None
) -> Judgement:
    expected = evidence.baseline.step_seconds
    bound = expected * evidence.tolerance.factor
    measured = measurement.statistic_seconds if measurement else None
    comparable = measured is not None and math.isfinite(measured) and measured > 0
    return Judgement(
        verdict=verdict,
        reason=reason,
        text=text,
        baseline=evidence.baseline,
        bound_seconds=bound,
        tolerance=evidence.tolerance,
        measurement=measurement,
        log_difference=math.log(measured / expected) if comparable and measured else None,
        meets_point=measured <= bound * (1 + EQUAL) if comparable and measured else None,
        notes=_notes(evidence, measurement),
    )


def _notes(evidence: Evidence, measurement: Measurement | None) -> tuple[Note, ...]:
    notes = measurement.notes if measurement else ()
    newer = evidence.measurements[: evidence.measurements.index(measurement)] if measurement else ()
    if newer and newer[0].excluded:
        told = f"{wording.counted(len(newer), 'newer run')} cannot be compared: {newer[0].excluded.text}"
        notes = (*notes, Note("not-comparable", told))
    older = len(evidence.measurements) - len(newer) - 1
    if measurement and older:
        notes = (
            *notes,
            Note("older-runs", f"{wording.counted(older, 'older run')} of this configuration"),
        )
    return notes
