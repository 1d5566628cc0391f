"""From evidence to a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.models import (
    Clock,
    Estimate,
    Evidence,
    Judgement,
    Measurement,
    Noise,
    Note,
    Problem,
    Reason,
    TimedBy,
    Verdict,
)
from pytest_llmbench.judge import agreement, nights, words
from pytest_llmbench.judge.acknowledged import takes_no_improvement
from pytest_llmbench.judge.budgets import held, held_runs
from pytest_llmbench.judge.drift import drifted
from pytest_llmbench.judge.estimate import disagree, estimate, noise_of
from pytest_llmbench.judge.margin import EQUAL, Answer, answer
from pytest_llmbench.judge.seen import is_stale, last_valid
from pytest_llmbench.judge.shape import Shape
from pytest_llmbench.judge.tonight import shape_of, tonight_of

WEAK_ORDER = {
    Clock.FILE_TIME: "that it is the newest run, only the times of the files say, which copying may change",
    Clock.MIXED: "that it is the newest run, only clocks say that cannot be compared",
}
"""What is said where the order of the runs rests on no time that they tell themselves."""

POOLED_NIGHTS = 3
"""A configuration that is INCONCLUSIVE for so many nights running is judged on them together."""


def judge(evidence: Evidence) -> Judgement:
    """Return the verdict on a configuration from its measurements, newest first.

    The newest comparable run is judged, together with its repeats; where runs were launched, those of the newest launch
    and nothing that was found on disk. PASS: shown to be at most baseline x (1 + tolerance). REGRESSION: shown to be
    slower than that. IMPROVEMENT: shown to be faster than baseline / (1 + tolerance), or by more than is plausible.
    INCONCLUSIVE: none of these can be shown. A run that cannot be judged is INVALID, whatever older runs say, and
    so is a launch with such a run, and one against a baseline without a value; a configuration without a comparable
    run is MISSING. Last the drift of its recorded baseline and its budgets are held against it.
    """
    return _labelled(_held(_ordered(_of_newest(evidence), evidence), evidence))


def _ordered(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a judgement with what the order of the runs rests on, where that is no time which they tell themselves."""
    measurement = judgement.measurement
    others = sum(not one.run.found.launch for one in evidence.measurements) > 1
    words = WEAK_ORDER.get(measurement.run.order_source) if measurement is not None and others else None
    if words is None or measurement is None:
        return judgement
    note = Note(f"order-{measurement.run.order_source}", words)
    return replace(judgement, text=f"{judgement.text}; {words}", notes=(*judgement.notes, note))


def _of_newest(evidence: Evidence) -> Judgement:
    launched = next((one for one in evidence.measurements if one.run.found.launch), None)
    if launched is not None:
        return _judged(evidence, launched)
    comparable = [measurement for measurement in evidence.measurements if measurement.excluded is None]
    if not comparable:
        return _missing(evidence)
    newest = comparable[0]
    if newest.run.started is None and len(comparable) > 1:
        return _start_unknown(evidence, newest)
    return _judged(evidence, newest)


def judge_alone(evidence: Evidence) -> Judgement:
    """Return the verdict on the first run, which has an item of its own; the others are its history.

    NOT_COMPARABLE where positive evidence excludes it. The drift and its budgets are held against it, too.
    """
    return _labelled(_held(_of_first(evidence), evidence))


def _labelled(judgement: Judgement) -> Judgement:
    """Return a judgement of a run whose text says so where its time is what the document timed."""
    if judgement.baseline.timed_by is not TimedBy.DOCUMENT or judgement.measurement is None:
        return judgement
    return replace(judgement, text=f"{words.by_document(judgement.baseline)}: {judgement.text}")


def _held(judgement: Judgement, evidence: Evidence) -> Judgement:
    judgement = drifted(_remarked(judgement, evidence), evidence)
    return held(judgement, held_runs(evidence, judgement))


def _remarked(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a judgement of a run with what was acknowledged, in its text and first among its notes."""
    if judgement.measurement is None or not evidence.remarks:
        return judgement
    text = "; ".join((judgement.text, *(note.text for note in evidence.remarks)))
    return replace(judgement, text=text, notes=(*evidence.remarks, *judgement.notes))


def _of_first(evidence: Evidence) -> Judgement:
    measurement = evidence.measurements[0]
    problem = measurement.excluded
    if problem is not None:
        return _verdict(evidence, Verdict.NOT_COMPARABLE, problem.reason, problem.text, measurement)
    alone = _without_launch(measurement)
    return _judged(replace(evidence, measurements=(alone, *evidence.measurements[1:]), repeat_window=None), alone)


def _without_launch(measurement: Measurement) -> Measurement:
    run = measurement.run
    if not run.found.launch:  # a copy of it would count as an earlier night
        return measurement
    return replace(measurement, run=replace(run, found=replace(run.found, launch="")))


def _judged(evidence: Evidence, newest: Measurement) -> Judgement:
    started = newest.run.started
    if started is None and evidence.max_age is not None:
        return _start_unknown(evidence, newest)
    if started is not None and evidence.max_age is not None and evidence.now - started > evidence.max_age:
        age, limit = formatting.format_age(evidence.now - started), formatting.format_age(evidence.max_age)
        seen = last_valid(evidence) or "no valid run is known"
        text = f"stale: the newest run is {age} old, at most {limit} is allowed; {seen}"
        return _verdict(evidence, Verdict.MISSING, Reason.TOO_OLD, text, newest)
    together = nights.of_launch(newest, evidence)
    for one in together:
        problem = unusable(one)
        if problem is not None:
            # Left out, a run that ended badly could turn a launch green; what it would have measured nobody knows.
            whose = f"{one.run.id}, one of {len(together)} runs that count: " if len(together) > 1 else ""
            text = _and_last_valid(whose + problem.text, evidence)
            return _verdict(evidence, Verdict.INVALID, problem.reason, text, one)
    if not math.isfinite(evidence.baseline.step_seconds):
        return _nothing_to_compare_with(evidence, together)
    return _compared(evidence, newest)


def unusable(one: Measurement) -> Problem | None:
    """Return why a run has no step time that counts; None for one that may be compared with a baseline."""
    problem = next(iter(one.problems), one.excluded)
    if problem is not None:
        return problem
    measured = one.statistic_seconds
    if measured is None or not (math.isfinite(measured) and measured > 0):
        return Problem(Reason.WINDOW_INCOMPLETE, "no step time was measured")
    return None


def _nothing_to_compare_with(evidence: Evidence, runs: Sequence[Measurement]) -> Judgement:
    measured = formatting.join_first([formatting.format_seconds(one.statistic_seconds) for one in runs])
    text = f"nothing to compare with yet: {measured} measured; record it with --llmb-record=DIR"
    return _verdict(evidence, Verdict.INVALID, Reason.NO_BASELINE, text, runs[0])


def _start_unknown(evidence: Evidence, newest: Measurement) -> Judgement:
    text = f"nothing says when {newest.run.id} started: {newest.run.started_from}"
    return _verdict(evidence, Verdict.INVALID, Reason.START_UNKNOWN, text, newest)


def _and_last_valid(text: str, evidence: Evidence) -> str:
    return "; ".join(filter(None, (text, last_valid(evidence))))


def _missing(evidence: Evidence) -> Judgement:
    if not evidence.measurements:
        told = f"{'stale: ' if is_stale(evidence) else ''}no run of this configuration"
        return _verdict(evidence, Verdict.MISSING, Reason.NO_RUN, _and_last_valid(told, evidence))
    excluded = evidence.measurements[0].excluded
    kinds = f"{excluded.reason} runs: {excluded.text}" if excluded else "runs that cannot be compared"
    text = _and_last_valid(f"only {kinds}", evidence)
    return _verdict(evidence, Verdict.MISSING, Reason.ONLY_NOT_COMPARABLE, text, evidence.measurements[0])


# --- the comparison ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Finding:
    """A verdict with its reason, and what a reader should know besides."""

    verdict: Verdict
    reason: Reason
    because: str = ""


def _compared(evidence: Evidence, newest: Measurement) -> Judgement:
    together = tonight_of(newest, evidence)
    tonight, counted = together.runs, together.counted
    older = nights.history(tonight, evidence)
    noise = noise_of(evidence, older, counted)
    found = estimate(counted, evidence, noise)
    shape = shape_of(together)
    finding = _finding(found, counted, evidence, shape)
    meets = agreement.meets_point(counted, evidence, found)
    if together.apart:
        finding = _apart(finding)
        meets = all(_meets_alone(one, evidence, noise) for one in counted)
    if finding.reason is Reason.CANNOT_TELL and len(tonight) == 1:
        finding = _over_nights(evidence, counted[0], older, meets) or finding
    told = words.told(finding.verdict, finding.because, found, counted[0])
    judgement = _verdict(evidence, finding.verdict, finding.reason, told, newest)
    return replace(
        judgement,
        log_difference=found.difference,
        meets_point=meets,
        notes=(
            *together.notes,
            *words.doubts(found),
            *words.baseline_doubts(evidence.baseline),
            *filter(None, [shape.warming_up]),
            *shape.notes,
            *judgement.notes,
        ),
        estimate=found,
        repeats=tonight[1:],
    )


def _apart(finding: _Finding) -> _Finding:
    """Return what launched runs say that differ too much: a REGRESSION, or nothing.

    "The newest decides" would be launching until it is green, and a mean of two states is that of none.
    """
    if finding.verdict is Verdict.REGRESSION:
        return finding
    return _Finding(Verdict.INCONCLUSIVE, Reason.REPEATS_DISAGREE, "the runs differ too much to be of one state")


def _meets_alone(one: Measurement, evidence: Evidence, noise: Noise) -> bool:
    return agreement.meets_point([one], evidence, estimate([one], evidence, noise))


def _finding(found: Estimate, tonight: Sequence[Measurement], evidence: Evidence, shape: Shape) -> _Finding:
    told = _answered(found)
    few = found.threshold_only and told is Answer.WITHIN
    coarse = agreement.too_coarse(tonight, evidence) if few or told is Answer.CANNOT_TELL else ""
    few_means = few and tonight[0].mean_of
    if told is Answer.CANNOT_TELL or few_means or coarse:
        because = coarse or (words.how_few_means(tonight[0]) if few_means else words.how_many(found))
        seen = "" if shape.kind == "even" else f"; {shape.words}"
        return _Finding(Verdict.INCONCLUSIVE, Reason.CANNOT_TELL, because + seen)
    doubt = agreement.doubt(told, tonight, evidence)
    if doubt:
        return _Finding(Verdict.INCONCLUSIVE, Reason.FEW_STEPS_DECIDE, f"{doubt}; {shape.words}")
    if told is Answer.BEYOND:
        return _Finding(Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND, words.how_slower(shape, tonight[0]))
    if shape.warming_up:
        return _Finding(Verdict.INCONCLUSIVE, Reason.WARMING_UP, shape.warming_up.text)
    return _improvement(found, tonight, evidence) or _Finding(Verdict.PASS, Reason.WITHIN_TOLERANCE)


def _improvement(found: Estimate, tonight: Sequence[Measurement], evidence: Evidence) -> _Finding | None:
    """Return that runs are shown to be faster than the tolerance, or than is plausible; None where they are not."""
    if evidence.plausible is not None and found.high < math.log1p(-evidence.plausible):
        because = words.how_implausible(found, tonight[0], evidence)
        return _Finding(Verdict.IMPROVEMENT, Reason.IMPLAUSIBLY_FAST, because)
    if answer(found.low, found.high, -found.margin) is Answer.WITHIN:
        return _faster(evidence)
    return None


def _faster(evidence: Evidence) -> _Finding:
    if takes_no_improvement(evidence):
        because = "faster than the acknowledged level by more than the tolerance"
        return _Finding(Verdict.PASS, Reason.WITHIN_TOLERANCE, because)
    return _Finding(Verdict.IMPROVEMENT, Reason.FASTER_THAN_BASELINE, words.how_much_faster(evidence.baseline))


def _over_nights(evidence: Evidence, newest: Measurement, older: nights.EarlierNights, meets: bool) -> _Finding | None:
    """Return what three INCONCLUSIVE nights running say together of a run that does not meet the literal rule.

    Only a REGRESSION: two good nights must not average away that something changed tonight.
    """
    found = [one for one in older if isinstance(one, Measurement) and one in evidence.measurements]
    row = nights.running(found, newest, POOLED_NIGHTS)
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
    because = f"{POOLED_NIGHTS} nights running could not tell; together they do: {words.interval(together)}"
    return _Finding(Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND, because)


def _answered(found: Estimate) -> Answer:
    return answer(found.low, found.high, found.margin)


# --- records -------------------------------------------------------------------------------------------------


def _verdict(
    evidence: Evidence, verdict: Verdict, reason: Reason, text: str, measurement: Measurement | None = None
) -> Judgement:
    expected = evidence.baseline.step_seconds
    bound = expected * evidence.tolerance.factor
    measured = measurement.statistic_seconds if measurement else None
    comparable = measured is not None and math.isfinite(measured) and measured > 0 and math.isfinite(expected)
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
    notes = tuple(measurement.notes) if measurement else ()
    newer = evidence.measurements[: evidence.measurements.index(measurement)] if measurement else ()
    if newer and newer[0].excluded:
        told = f"{formatting.count_noun(len(newer), 'newer run')} cannot be compared: {newer[0].excluded.text}"
        notes = (*notes, Note("not-comparable", told))
    same = (*newer, *(nights.of_launch(measurement, evidence) if measurement else ()))
    older = sum(not any(one is other for other in same) for one in evidence.measurements)
    if measurement and older:
        notes = (
            *notes,
            Note("older-runs", f"{formatting.count_noun(older, 'older run')} of this configuration"),
        )
    return notes
