"""From evidence to a verdict."""

from __future__ import annotations

import math

from pytest_llmbench import wording
from pytest_llmbench.models import Evidence, Judgement, Measurement, Note, Reason, Verdict

EQUAL = 1e-9
"""Relative difference below which two step times are the same number: float arithmetic, not measurement."""


def judge(evidence: Evidence) -> Judgement:
    """Return the verdict on a configuration from its measurements, newest first.

    The newest comparable run is judged. PASS: its statistic is at most baseline x (1 + tolerance). IMPROVEMENT: it is
    faster than baseline / (1 + tolerance). REGRESSION: anything else, NaN included. A run that cannot be judged is
    INVALID, whatever older runs say; a configuration without a comparable run is MISSING.
    """
    comparable = [measurement for measurement in evidence.measurements if measurement.excluded is None]
    if not comparable:
        return _missing(evidence)
    newest = comparable[0]
    started = newest.run.started
    if started is None and (len(comparable) > 1 or evidence.max_age is not None):
        text = f"nothing says when {newest.run.id} started: {newest.run.started_from}"
        return _verdict(evidence, Verdict.INVALID, Reason.START_UNKNOWN, text, newest)
    if started is not None and evidence.max_age is not None and evidence.now - started > evidence.max_age:
        age, limit = wording.age(evidence.now - started), wording.age(evidence.max_age)
        text = f"the newest run is {age} old; at most {limit} is allowed"
        return _verdict(evidence, Verdict.MISSING, Reason.TOO_OLD, text, newest)
    if not newest.valid:
        problem = newest.problems[0]
        return _verdict(evidence, Verdict.INVALID, problem.reason, problem.text, newest)
    return _compared(evidence, newest)


def judge_alone(evidence: Evidence) -> Judgement:
    """Return the verdict on a run with an item of its own: NOT_COMPARABLE where positive evidence excludes it."""
    measurement = evidence.measurements[0]
    if measurement.excluded is None:
        return judge(evidence)
    problem = measurement.excluded
    return _verdict(evidence, Verdict.NOT_COMPARABLE, problem.reason, problem.text, measurement)


def _missing(evidence: Evidence) -> Judgement:
    if not evidence.measurements:
        return _verdict(evidence, Verdict.MISSING, Reason.NO_RUN, "no run of this configuration")
    excluded = evidence.measurements[0].excluded
    kinds = f"{excluded.reason} runs: {excluded.text}" if excluded else "runs that cannot be compared"
    text = f"only {kinds}"
    return _verdict(evidence, Verdict.MISSING, Reason.ONLY_NOT_COMPARABLE, text, evidence.measurements[0])


def _compared(evidence: Evidence, newest: Measurement) -> Judgement:
    measured = newest.statistic_seconds
    expected = evidence.baseline.step_seconds
    if measured is None or not (math.isfinite(measured) and measured > 0):
        return _verdict(evidence, Verdict.INVALID, Reason.WINDOW_INCOMPLETE, "no step time was measured", newest)
    bound = expected * evidence.tolerance.factor
    slower = wording.difference(measured / expected)
    told = f"{wording.seconds(measured)} is {slower} against {wording.seconds(expected)}"
    if not measured <= bound * (1 + EQUAL):
        text = f"{told}; the bound is {wording.seconds(bound)}"
        return _verdict(evidence, Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND, text, newest)
    if measured < expected / evidence.tolerance.factor * (1 - EQUAL):
        text = f"{told}: refresh the baseline, or it will hide the next regression"
        return _verdict(evidence, Verdict.IMPROVEMENT, Reason.FASTER_THAN_BASELINE, text, newest)
    return _verdict(evidence, Verdict.PASS, Reason.WITHIN_TOLERANCE, told, newest)


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
    if newer:
        told = (
            f"{wording.counted(len(newer), 'newer run')} cannot be compared: {newer[0].excluded.text}"
            if newer[0].excluded
            else ""
        )
        notes = (*notes, Note("not-comparable", told))
    older = len(evidence.measurements) - len(newer) - 1
    if measurement and older:
        notes = (*notes, Note("older-runs", f"{wording.counted(older, 'older run')} of this configuration not judged"))
    return notes
