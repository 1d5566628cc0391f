"""Build the statements of a verdict: comparison, doubts and notes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Baseline, TimedBy
from pytest_llmbench.core.codes import NoteCode, Verdict
from pytest_llmbench.core.judgement_records import Estimate, Evidence, Judgement
from pytest_llmbench.core.run_records import Clock, Measurement, Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.estimate import count_recorded_groups
from pytest_llmbench.judge.noise import SUFFICIENT_FREEDOM
from pytest_llmbench.judge.pattern import ShapeKind
from pytest_llmbench.judge.recorded_runs import ENOUGH_GROUPS, FEWEST_GROUPS
from pytest_llmbench.judge.run_selection import select_launch
from pytest_llmbench.judge.shape import MIN_STEPS, Shape

if TYPE_CHECKING:
    from pytest_llmbench.core.run_records import VerdictStatement

# Notes on facts that the run does not confirm: another configuration could go
# unnoticed.
UNVERIFIED = frozenset(
    (
        NoteCode.UNVERIFIED_BATCH,
        NoteCode.UNVERIFIED_LOSS,
        NoteCode.LOSS_STANDS_STILL,
        NoteCode.ASSUMED,
        NoteCode.PADDED,
    )
)

# Single slow steps. They cannot cause a regression, because the trimmed mean ignores
# them.
SPIKES = (ShapeKind.ONE_SPIKE, ShapeKind.SPIKES)

# warn if the rounding of a baseline exceeds this fraction of the margin
MAX_ROUNDING_SHARE = 0.1

# Notes for runs whose order does not come from a start time in their logs.
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
    """Yield the comparison with the baseline, and the bound unless the run passed."""
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
    """Describe the shape of a regression.

    A window of one or two steps has no shape.
    """
    count = len(newest.window_seconds)
    if count < MIN_STEPS:
        return (CodedStatement(StatementCode.FEW_TIMES, times=count),)
    if shape.kind is ShapeKind.EVEN:
        return (CodedStatement(StatementCode.UNIFORM_SHIFT), *shape.statements)
    if shape.kind in SPIKES:
        return (CodedStatement(StatementCode.SHIFT_BESIDES, shape=shape.statements),)
    return shape.statements


def advise_refresh(baseline: Baseline) -> CodedStatement:
    """Advise refreshing the baseline after an improvement.

    With --llmb-timed=document a single step was compared. Such a time cannot be
    recorded, so the statement does not advise it.
    """
    if baseline.timed_by is TimedBy.DOCUMENT:
        return CodedStatement(StatementCode.FASTER_AS_TIMED)
    return CodedStatement(StatementCode.REFRESH_BASELINE)


def state_runs_needed(estimate: Estimate) -> CodedStatement:
    """State the number of runs that would decide an INCONCLUSIVE result."""
    runs, needed = estimate.runs, estimate.repeats_needed
    if needed is None:
        return CodedStatement(StatementCode.NO_RUNS_SUFFICE, runs=runs)
    needed = max(needed, runs + 1)
    return CodedStatement(StatementCode.RUNS_NEEDED, runs=runs, needed=needed)


def state_few_means(run: Measurement) -> CodedStatement:
    """Report that the window has too few printed means to compare them."""
    means, steps = len(run.window_seconds), sum(run.mean_of)
    return CodedStatement(StatementCode.FEW_MEANS, means=means, steps=steps)


def state_implausible(
    estimate: Estimate, newest: Measurement, evidence: Evidence
) -> CodedStatement:
    """Explain an implausibly fast run.

    Lists configurations with a similar step time, and unverified facts of the run.
    """
    seconds = evidence.baseline.step_seconds * math.exp(estimate.difference)
    similar = [
        key.id
        for key, expected in evidence.relatives
        if abs(math.log(seconds / expected)) <= estimate.margin
    ]
    unverified = [note for note in newest.notes if note.code in UNVERIFIED]
    return CodedStatement(
        StatementCode.IMPLAUSIBLE_TIME,
        share=evidence.plausible or 0,
        near=tuple(similar),
        unverified=tuple(unverified),
    )


def list_doubts(estimate: Estimate, assumed_cv: float) -> Iterator[Note]:
    """Yield notes on weaknesses of the estimate."""
    if estimate.threshold_only:
        unqualified = CodedStatement(StatementCode.COMPARED_WITHOUT_ERROR)
        yield Note(NoteCode.THRESHOLD_ONLY, unqualified)
    if estimate.rounding > MAX_ROUNDING_SHARE * estimate.margin:
        rounding = CodedStatement(
            StatementCode.BASELINE_ROUNDING, fraction=estimate.rounding
        )
        yield Note(NoteCode.COARSE_BASELINE, rounding)
    unexpected_noise = _find_unexpected_noise(estimate, assumed_cv)
    if unexpected_noise is not None:
        yield Note(NoteCode.NOISIER, unexpected_noise)


def _find_unexpected_noise(
    estimate: Estimate, assumed_cv: float
) -> CodedStatement | None:
    """Report noise that exceeds the assumption.

    None if it does not, or if it was measured well.
    """
    noise = estimate.noise
    if (
        noise.measured
        and noise.degrees_of_freedom < SUFFICIENT_FREEDOM
        and noise.sigma > assumed_cv
    ):
        return CodedStatement(
            StatementCode.NOISY_RUNS, sigma=noise.sigma, assumed=assumed_cv
        )
    error = estimate.within_run_error
    if not noise.measured and error > noise.sigma:
        return CodedStatement(StatementCode.NOISY_STEPS, error=error, sigma=noise.sigma)
    return None


def list_baseline_doubts(baseline: Baseline) -> Iterator[Note]:
    """Note that a recorded baseline rests on few independent groups of runs."""
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


# --- additions to a verdict -----------------------------------------------------------


def add_order_note(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Add a note if the order of the runs does not come from their logs."""
    measurement = judgement.measurement
    runs_on_disk = sum(not run.run.found.launch for run in evidence.measurements)
    if measurement is None or runs_on_disk < 2:  # there is no order
        return judgement
    note = WEAK_ORDER.get(measurement.run.order_source)
    if note is None:
        return judgement
    return judgement.add_statements(note).add_notes(note)


def with_timing_label(judgement: Judgement) -> Judgement:
    """Mark the first statement of a run that is timed as in its document."""
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
    """Add the acknowledgements to a judgement with a measurement.

    They become the last statements and the first notes.
    """
    if judgement.measurement is None or not evidence.remarks:
        return judgement
    remarked = judgement.add_statements(*evidence.remarks)
    return replace(remarked, notes=(*evidence.remarks, *judgement.notes))


def list_notes(evidence: Evidence, measurement: Measurement | None) -> Iterator[Note]:
    """Yield the notes of a run, and notes on newer excluded and older runs."""
    if measurement is None:
        return
    yield from measurement.notes
    newer = evidence.measurements[: evidence.measurements.index(measurement)]
    if newer and newer[0].excluded:
        excluded = CodedStatement(
            StatementCode.NEWER_RUNS, runs=len(newer), problem=newer[0].excluded
        )
        yield Note(NoteCode.NOT_COMPARABLE, excluded)
    newer_or_judged = (*newer, *select_launch(measurement, evidence))
    older_count = sum(
        not any(run is other for other in newer_or_judged)
        for run in evidence.measurements
    )
    if older_count:
        older = CodedStatement(StatementCode.OLDER_RUNS, runs=older_count)
        yield Note(NoteCode.OLDER_RUNS, older)
