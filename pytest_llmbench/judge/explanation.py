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
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.estimate import count_recorded_groups
from pytest_llmbench.judge.noise import ENOUGH
from pytest_llmbench.judge.pattern import ShapeKind
from pytest_llmbench.judge.recorded_runs import ENOUGH_GROUPS, FEWEST_GROUPS
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
    Clock.FILE_TIME: Note(
        NoteCode.ORDER_FILE_TIME, CodedStatement(StatementCode.NEWEST_BY_FILE_TIME)
    ),
    Clock.MIXED: Note(
        NoteCode.ORDER_MIXED, CodedStatement(StatementCode.NEWEST_BY_MIXED_CLOCKS)
    ),
}


def state_comparison(
    verdict: Verdict, estimate: Estimate, newest: Measurement
) -> Iterator[VerdictStatement]:
    """Yield the comparison with the baseline, and the bound if it matters."""
    expected = newest.baseline.step_seconds
    averaged = expected * math.exp(estimate.difference)
    measured = newest.statistic_seconds if estimate.runs == 1 else averaged
    yield CodedStatement(
        StatementCode.STEP_TIME,
        measured=measured or math.nan,
        expected=expected,
        estimate=estimate,
    )
    if verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
        bound = expected * math.exp(estimate.margin)
        yield CodedStatement(StatementCode.ALLOWED_TIME, seconds=bound)


def state_slowdown(shape: Shape, newest: Measurement) -> tuple[VerdictStatement, ...]:
    """Return the shape of a regression.

    One or two steps have none: the run may be slow, or only they.
    """
    count = len(newest.window_seconds)
    if count < FEWEST:
        return (CodedStatement(StatementCode.FEW_TIMES, times=count),)
    if shape.kind is ShapeKind.EVEN:
        return (CodedStatement(StatementCode.UNIFORM_SHIFT), *shape.statements)
    if shape.kind in SPIKES:
        return (CodedStatement(StatementCode.SHIFT_BESIDES, shape=shape.statements),)
    return shape.statements


def advise_refresh(baseline: Baseline) -> CodedStatement:
    """Return what follows from an improvement: nothing from the time of one step."""
    if baseline.timed_by is TimedBy.DOCUMENT:
        return CodedStatement(StatementCode.FASTER_AS_TIMED)
    return CodedStatement(StatementCode.REFRESH_BASELINE)


def count_runs_needed(estimate: Estimate) -> CodedStatement:
    """Return how many runs would decide what these do not."""
    runs, needed = estimate.runs, estimate.repeats_needed
    if needed is None:
        return CodedStatement(StatementCode.NO_RUNS_SUFFICE, runs=runs)
    needed = max(needed, runs + 1)
    return CodedStatement(StatementCode.RUNS_NEEDED, runs=runs, needed=needed)


def count_means(run: Measurement) -> CodedStatement:
    """Return the number of printed means, if they are too few to differ from each
    other."""
    means, steps = len(run.window_seconds), sum(run.mean_of)
    return CodedStatement(StatementCode.FEW_MEANS, means=means, steps=steps)


def state_implausible(
    estimate: Estimate, newest: Measurement, evidence: Evidence
) -> CodedStatement:
    """Return what would explain an implausibly fast run: similar configurations,
    unverified facts."""
    seconds = evidence.baseline.step_seconds * math.exp(estimate.difference)
    near = [
        name
        for name, expected in evidence.relatives
        if abs(math.log(seconds / expected)) <= estimate.margin
    ]
    unverified = [note for note in newest.notes if note.code in UNVERIFIED]
    return CodedStatement(
        StatementCode.IMPLAUSIBLE_TIME,
        share=evidence.plausible or 0,
        near=tuple(near),
        unverified=tuple(unverified),
    )


def list_doubts(estimate: Estimate, assumed_cv: float) -> Iterator[Note]:
    """Yield what makes the estimate worse than it could be."""
    if estimate.threshold_only:
        alone = CodedStatement(StatementCode.COMPARED_WITHOUT_ERROR)
        yield Note(NoteCode.THRESHOLD_ONLY, alone)
    if estimate.rounding > COARSE * estimate.margin:
        rounding = CodedStatement(
            StatementCode.BASELINE_ROUNDING, fraction=estimate.rounding
        )
        yield Note(NoteCode.COARSE_BASELINE, rounding)
    if noise := _find_unexpected_noise(estimate, assumed_cv):
        yield Note(NoteCode.NOISIER, noise)


def _find_unexpected_noise(
    estimate: Estimate, assumed_cv: float
) -> CodedStatement | None:
    """Return the noise that is larger than assumed, None if it is not or is well
    known."""
    known = estimate.noise
    if (
        known.measured
        and known.degrees_of_freedom < ENOUGH
        and known.sigma > assumed_cv
    ):
        return CodedStatement(
            StatementCode.NOISY_RUNS, sigma=known.sigma, assumed=assumed_cv
        )
    error = estimate.within_run_error
    if not known.measured and error > known.sigma:
        return CodedStatement(StatementCode.NOISY_STEPS, error=error, sigma=known.sigma)
    return None


def list_baseline_doubts(baseline: Baseline) -> Iterator[Note]:
    """Yield that a recorded baseline rests on fewer runs than it seems."""
    recording, groups = baseline.recording, count_recorded_groups(baseline)
    if recording is not None and groups < FEWEST_GROUPS:
        few = CodedStatement(
            StatementCode.FEW_RECORDED,
            runs=recording.runs,
            groups=groups,
            grouped=recording.groups is not None,
            recommended=ENOUGH_GROUPS,
        )
        yield Note(NoteCode.FEW_RECORDED, few)


# --- what is added to a verdict -------------------------------------------------------


def add_order_note(judgement: Judgement, evidence: Evidence) -> Judgement:
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
    return judgement.add_statements(note).add_notes(note)


def with_timing_label(judgement: Judgement) -> Judgement:
    """Return a judgement whose first statement is marked if the run is timed as the
    document did."""
    baseline = judgement.baseline
    if baseline.timed_by is not TimedBy.DOCUMENT or judgement.measurement is None:
        return judgement
    first, *others = judgement.statements
    timed = CodedStatement(
        StatementCode.TIMED_AS_DOCUMENT,
        assumed=baseline.timed_window is not None,
        window=baseline.window,
        statement=first,
    )
    return replace(judgement, statements=(timed, *others))


def with_remarks(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a judgement of a run with what was acknowledged, last in its statements
    and first in its notes."""
    if judgement.measurement is None or not evidence.remarks:
        return judgement
    shown = judgement.add_statements(*evidence.remarks)
    return replace(shown, notes=(*evidence.remarks, *judgement.notes))


def list_notes(evidence: Evidence, measurement: Measurement | None) -> Iterator[Note]:
    """Yield the notes on a run, the newer runs that cannot be compared, and the older
    ones."""
    if measurement is None:
        return
    yield from measurement.notes
    newer = evidence.measurements[: evidence.measurements.index(measurement)]
    if newer and newer[0].excluded:
        excluded = CodedStatement(
            StatementCode.NEWER_RUNS, runs=len(newer), problem=newer[0].excluded
        )
        yield Note(NoteCode.NOT_COMPARABLE, excluded)
    same = (*newer, *select_launch(measurement, evidence))
    older = sum(
        not any(run is other for other in same) for run in evidence.measurements
    )
    if older:
        yield Note(
            NoteCode.OLDER_RUNS, CodedStatement(StatementCode.OLDER_RUNS, runs=older)
        )
