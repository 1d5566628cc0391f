"""The statements of a verdict: the comparison, how well it is known, and the notes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_llmbench.core.baseline_records import Baseline, TimedBy
from pytest_llmbench.core.codes import NoteCode, Verdict
from pytest_llmbench.core.judgement_records import Estimate, Evidence, Judgement
from pytest_llmbench.core.run_records import Clock, Measurement, Note
from pytest_llmbench.core.statements import (
    FewMeans,
    FewRecorded,
    Figure,
    FigureStatement,
    ImplausibleTime,
    NewerRuns,
    NoisyRuns,
    NoisySteps,
    Remark,
    RunsNeeded,
    ShiftBesides,
    StepTimeComparison,
    TimedStatement,
)
from pytest_llmbench.judge.agreement import ENOUGH_GROUPS, FEWEST_GROUPS
from pytest_llmbench.judge.estimate import count_recorded_groups
from pytest_llmbench.judge.noise import ENOUGH
from pytest_llmbench.judge.pattern import ShapeKind
from pytest_llmbench.judge.run_selection import select_launch
from pytest_llmbench.judge.shape import FEWEST, Shape

if TYPE_CHECKING:
    from pytest_llmbench.core.run_records import VerdictStatement

# Notes on what nothing in a run confirms: there another configuration would not show.
UNVERIFIED = frozenset(
    (
        NoteCode.UNVERIFIED_BATCH,
        NoteCode.UNVERIFIED_LOSS,
        NoteCode.LOSS_STANDS_STILL,
        NoteCode.ASSUMED,
        NoteCode.PADDED,
    )
)

# Single slow steps: they do not make a regression, or the trimmed mean would not agree.
SPIKES = (ShapeKind.ONE_SPIKE, ShapeKind.SPIKES)

# a baseline whose rounding is a larger part of the margin than this is worth a warning
COARSE = 0.1

# The note on an order of runs that rests on no time which they state themselves.
WEAK_ORDER = {
    Clock.FILE_TIME: Note(NoteCode.ORDER_FILE_TIME, Remark.NEWEST_BY_FILE_TIME),
    Clock.MIXED: Note(NoteCode.ORDER_MIXED, Remark.NEWEST_BY_MIXED_CLOCKS),
}


def state_comparison(
    verdict: Verdict, estimate: Estimate, newest: Measurement
) -> Iterator[VerdictStatement]:
    """Yield the comparison with the baseline, and the bound if it matters."""
    expected = newest.baseline.step_seconds
    averaged = expected * math.exp(estimate.difference)
    measured = newest.statistic_seconds if estimate.runs == 1 else averaged
    yield StepTimeComparison(measured or math.nan, expected, estimate)
    if verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
        yield FigureStatement(Figure.ALLOWED_TIME, expected * math.exp(estimate.margin))


def state_slowdown(shape: Shape, newest: Measurement) -> tuple[VerdictStatement, ...]:
    """Return the shape of a regression.

    One or two steps have none: the run may be slow, or only they.
    """
    if len(newest.window_seconds) < FEWEST:
        return (FigureStatement(Figure.FEW_TIMES, len(newest.window_seconds)),)
    if shape.kind is ShapeKind.EVEN:
        return (Remark.UNIFORM_SHIFT, *shape.statements)
    if shape.kind in SPIKES:
        return (ShiftBesides(shape.statements),)
    return shape.statements


def advise_refresh(baseline: Baseline) -> Remark:
    """Return what follows from an improvement: nothing from the time of one step."""
    if baseline.timed_by is TimedBy.DOCUMENT:
        return Remark.FASTER_AS_TIMED
    return Remark.REFRESH_BASELINE


def count_runs_needed(estimate: Estimate) -> RunsNeeded:
    """Return how many runs would decide what these do not."""
    needed = estimate.repeats_needed
    return RunsNeeded(
        estimate.runs, None if needed is None else max(needed, estimate.runs + 1)
    )


def count_means(run: Measurement) -> FewMeans:
    """Return the number of printed means, if they are too few to differ from each
    other."""
    return FewMeans(len(run.window_seconds), sum(run.mean_of))


def state_implausible(
    estimate: Estimate, newest: Measurement, evidence: Evidence
) -> ImplausibleTime:
    """Return what would explain an implausibly fast run: similar configurations,
    unverified facts."""
    seconds = evidence.baseline.step_seconds * math.exp(estimate.difference)
    near = [
        name
        for name, expected in evidence.relatives
        if abs(math.log(seconds / expected)) <= estimate.margin
    ]
    unverified = [note for note in newest.notes if note.code in UNVERIFIED]
    return ImplausibleTime(evidence.plausible or 0, tuple(near), tuple(unverified))


def list_doubts(estimate: Estimate, assumed_cv: float) -> Iterator[Note]:
    """Yield what makes the estimate worse than it could be."""
    if estimate.threshold_only:
        yield Note(NoteCode.THRESHOLD_ONLY, Remark.COMPARED_WITHOUT_ERROR)
    if estimate.rounding > COARSE * estimate.margin:
        yield Note(
            NoteCode.COARSE_BASELINE,
            FigureStatement(Figure.BASELINE_ROUNDING, estimate.rounding),
        )
    if noise := _find_unexpected_noise(estimate, assumed_cv):
        yield Note(NoteCode.NOISIER, noise)


def _find_unexpected_noise(
    estimate: Estimate, assumed_cv: float
) -> NoisyRuns | NoisySteps | None:
    """Return the noise that is larger than assumed, None if it is not or is well
    known."""
    known = estimate.noise
    if (
        known.measured
        and known.degrees_of_freedom < ENOUGH
        and known.sigma > assumed_cv
    ):
        return NoisyRuns(known.sigma, assumed_cv)
    if not known.measured and estimate.within_run_error > known.sigma:
        return NoisySteps(estimate.within_run_error, known.sigma)
    return None


def list_baseline_doubts(baseline: Baseline) -> Iterator[Note]:
    """Yield that a recorded baseline rests on fewer runs than it seems."""
    recording, groups = baseline.recording, count_recorded_groups(baseline)
    if recording is not None and groups < FEWEST_GROUPS:
        few = FewRecorded(
            recording.runs, groups, recording.groups is not None, ENOUGH_GROUPS
        )
        yield Note(NoteCode.FEW_RECORDED, few)


# --- what is added to a verdict -------------------------------------------------------


def with_order_note(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a judgement with a note if the order of the runs rests on no time which
    they state themselves."""
    measurement = judgement.measurement
    others = sum(not run.run.found.launch for run in evidence.measurements) > 1
    note = (
        WEAK_ORDER.get(measurement.run.order_source)
        if measurement is not None and others
        else None
    )
    if note is None:
        return judgement
    return replace(
        judgement,
        statements=(*judgement.statements, note),
        notes=(*judgement.notes, note),
    )


def with_timing_label(judgement: Judgement) -> Judgement:
    """Return a judgement whose first statement is marked if the run is timed as the
    document did."""
    baseline = judgement.baseline
    if baseline.timed_by is not TimedBy.DOCUMENT or judgement.measurement is None:
        return judgement
    first, *others = judgement.statements
    timed = TimedStatement(baseline.window, baseline.timed_window is not None, first)
    return replace(judgement, statements=(timed, *others))


def with_remarks(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a judgement of a run with what was acknowledged, last in its statements
    and first in its notes."""
    if judgement.measurement is None or not evidence.remarks:
        return judgement
    statements = (*judgement.statements, *evidence.remarks)
    return replace(
        judgement, statements=statements, notes=(*evidence.remarks, *judgement.notes)
    )


def list_notes(evidence: Evidence, measurement: Measurement | None) -> Iterator[Note]:
    """Yield the notes on a run, the newer runs that cannot be compared, and the older
    ones."""
    if measurement is None:
        return
    yield from measurement.notes
    newer = evidence.measurements[: evidence.measurements.index(measurement)]
    if newer and newer[0].excluded:
        yield Note(NoteCode.NOT_COMPARABLE, NewerRuns(len(newer), newer[0].excluded))
    same = (*newer, *select_launch(measurement, evidence))
    older = sum(
        not any(run is other for other in same) for run in evidence.measurements
    )
    if older:
        yield Note(NoteCode.OLDER_RUNS, FigureStatement(Figure.OLDER_RUNS, older))
