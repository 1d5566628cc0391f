"""What a verdict says: the difference, how well it is known, and what a reader should know besides."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Baseline, TimedBy
from pytest_llmbench.core.codes import NoteCode, Verdict
from pytest_llmbench.core.judgement_records import Estimate, Evidence, Judgement
from pytest_llmbench.core.run_records import Clock, Measurement, Note
from pytest_llmbench.judge.agreement import ENOUGH_GROUPS, FEWEST_GROUPS
from pytest_llmbench.judge.estimate import count_recorded_groups
from pytest_llmbench.judge.noise import ENOUGH
from pytest_llmbench.judge.pattern import ShapeKind
from pytest_llmbench.judge.run_selection import select_launch
from pytest_llmbench.judge.shape import FEWEST, Shape

# Notes on what nothing in a run confirms: there another configuration would not show.
UNVERIFIED = frozenset(
    (NoteCode.UNVERIFIED_BATCH, NoteCode.UNVERIFIED_LOSS, NoteCode.LOSS_STANDS_STILL, NoteCode.ASSUMED, NoteCode.PADDED)
)

# Single slow steps: they do not make a regression, or the trimmed mean would not agree.
SPIKES = (ShapeKind.ONE_SPIKE, ShapeKind.SPIKES)

COARSE = 0.1  # a baseline whose rounding is a larger part of the margin than this is worth a warning

# What is said where the order of the runs rests on no time that they tell themselves.
WEAK_ORDER = {
    Clock.FILE_TIME: Note(
        NoteCode.ORDER_FILE_TIME,
        "that it is the newest run, only the times of the files say, which copying may change",
    ),
    Clock.MIXED: Note(NoteCode.ORDER_MIXED, "that it is the newest run, only clocks say that cannot be compared"),
}


def describe_verdict(verdict: Verdict, because: str, estimate: Estimate, newest: Measurement) -> tuple[str, ...]:
    """Say what was compared and how well the difference is known; then the bound, where it matters, and why."""
    expected = newest.baseline.step_seconds
    measured = newest.statistic_seconds if estimate.runs == 1 else expected * math.exp(estimate.difference)
    slower = formatting.format_difference(math.exp(estimate.difference))
    against = f"{formatting.format_seconds(expected)} ({format_interval(estimate)})"
    bound = ""
    if verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
        bound = f"the bound is {formatting.format_seconds(expected * math.exp(estimate.margin))}"
    return f"{formatting.format_seconds(measured)} is {slower} against {against}", *filter(None, (bound, because))


def format_interval(estimate: Estimate) -> str:
    """Return the bounds of the difference: `+5.7 to +10.3 %`."""
    if estimate.threshold_only:
        return "threshold only: nothing is known of the error"
    low, high = (
        formatting.format_difference(formatting.compute_bounded_exp(bound)) for bound in (estimate.low, estimate.high)
    )
    return f"{low.removesuffix(' %')} to {high}" if low.endswith("%") and high.endswith("%") else f"{low} to {high}"


def describe_slowdown(shape: Shape, newest: Measurement) -> str:
    """Say what a regression looks like.

    One or two steps look like nothing: the run may be slow, or only they.
    """
    if len(newest.window_seconds) < FEWEST:
        return f"{formatting.count_noun(len(newest.window_seconds), 'time')} cannot tell a slow run from a slow step"
    if shape.kind is ShapeKind.EVEN:
        return f"uniform shift; {shape.words}"
    return f"uniform shift; besides, {shape.words}" if shape.kind in SPIKES else shape.words


def advise_refresh(baseline: Baseline) -> str:
    """Say what an improvement asks for: one step asks for nothing."""
    if baseline.timed_by is TimedBy.DOCUMENT:
        return "by what its document timed, which is never recorded"
    return "refresh the baseline, or it will hide the next regression"


def advise_repeats(estimate: Estimate) -> str:
    """Say how many runs would settle what these cannot tell."""
    runs = formatting.count_noun(estimate.runs, "run")
    if estimate.repeats_needed is None:
        return f"{runs} cannot tell, and no number would: it lies at the bound"
    needed = max(estimate.repeats_needed, estimate.runs + 1)
    enough = f"about {needed}" if needed <= formatting.MANY else f"more than {formatting.MANY}"
    return f"{runs} cannot tell; {enough} would"


def explain_few_means(run: Measurement) -> str:
    """Say why means of several steps show nothing where there are too few of them to differ from each other."""
    means = formatting.count_noun(len(run.window_seconds), "printed mean")
    return f"{means} of {sum(run.mean_of)} steps: within them a warm-up or a stall stays unseen, and how much they vary"


def explain_implausible(estimate: Estimate, newest: Measurement, evidence: Evidence) -> str:
    """Say what would explain a run that is faster than is plausible: what it is like, and what its log leaves open."""
    share = f"{(evidence.plausible or 0) * 100:.3g} %"
    reasons = [f"more than {share} faster is more likely another configuration"]
    seconds = evidence.baseline.step_seconds * math.exp(estimate.difference)
    near = [name for name, expected in evidence.relatives if abs(math.log(seconds / expected)) <= estimate.margin]
    if near:
        reasons.append(f"it is as fast as {formatting.join_first(near)}")
    reasons += [note.text for note in newest.notes if note.code in UNVERIFIED]
    return "; ".join(reasons)


def list_doubts(estimate: Estimate, assumed_cv: float) -> list[Note]:
    """Return what makes the estimate worse than it could be."""
    notes = []
    if estimate.threshold_only:
        notes.append(Note(NoteCode.THRESHOLD_ONLY, "too few steps and no history: compared with the bound as it is"))
    if estimate.rounding > COARSE * estimate.margin:
        text = f"the baseline's rounding ({estimate.rounding:.1%}) is more than a tenth of the margin"
        notes.append(Note(NoteCode.COARSE_BASELINE, text))
    if text := _describe_unexpected_noise(estimate, assumed_cv):
        notes.append(Note(NoteCode.NOISIER, text))
    return notes


def _describe_unexpected_noise(estimate: Estimate, assumed_cv: float) -> str:
    """Return that runs look noisier than is assumed, "" if they do not or their noise is well known."""
    known = estimate.noise
    if known.measured and known.degrees_of_freedom < ENOUGH and known.sigma > assumed_cv:
        return (
            f"earlier runs differ by {known.sigma:.1%}, more than the {assumed_cv:.1%} that is assumed between runs: "
            "the interval is wider until 8 nights are known (--llmb-history)"
        )
    if not known.measured and estimate.within_run_error > known.sigma:
        return (
            f"the steps of the run fix its mean to {estimate.within_run_error:.1%} only, less well than the "
            f"{known.sigma:.1%} that is assumed from run to run: the interval is wider"
        )
    return ""


def list_baseline_doubts(baseline: Baseline) -> list[Note]:
    """Return that a recorded baseline rests on less than its number of runs lets one think."""
    recording, groups = baseline.recording, count_recorded_groups(baseline)
    if recording is None or groups >= FEWEST_GROUPS:
        return []
    runs = formatting.count_noun(recording.runs, "run")
    counted = "as one" if groups == 1 else f"as {groups:.0f}"
    if recording.groups is None and recording.runs > 1:
        text = f"nothing says on how many nights or nodes the {runs} of the baseline were: they count as one"
    elif recording.runs > groups:
        text = f"the {runs} of the baseline count {counted}: they share nights and nodes"
    else:
        text = f"the baseline is of {runs}"
    return [Note(NoteCode.FEW_RECORDED, f"{text}; {ENOUGH_GROUPS} on as many nights or sets of nodes are recommended")]


# --- what stands beside a verdict ----------------------------------------------------------------------------


def with_order_note(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a judgement with what the order of the runs rests on, where that is no time which they tell themselves."""
    measurement = judgement.measurement
    others = sum(not run.run.found.launch for run in evidence.measurements) > 1
    note = WEAK_ORDER.get(measurement.run.order_source) if measurement is not None and others else None
    if note is None:
        return judgement
    return replace(judgement, sentences=(*judgement.sentences, note.text), notes=(*judgement.notes, note))


def with_timing_label(judgement: Judgement) -> Judgement:
    """Return a judgement of a run whose text says so where its time is what the document timed."""
    if judgement.baseline.timed_by is not TimedBy.DOCUMENT or judgement.measurement is None:
        return judgement
    first, *others = judgement.sentences
    how = "timed as is assumed of its document" if judgement.baseline.timed_window else "timed as its document does"
    first = f"{how} ({judgement.baseline.window}): {first}"
    return replace(judgement, sentences=(first, *others))


def with_remarks(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a judgement of a run with what was acknowledged, in its text and first among its notes."""
    if judgement.measurement is None or not evidence.remarks:
        return judgement
    sentences = (*judgement.sentences, *(note.text for note in evidence.remarks))
    return replace(judgement, sentences=sentences, notes=(*evidence.remarks, *judgement.notes))


def list_notes(evidence: Evidence, measurement: Measurement | None) -> tuple[Note, ...]:
    """Return the notes on a run, and that there are newer runs which cannot be compared, or older ones."""
    if measurement is None:
        return ()
    notes = [*measurement.notes]
    newer = evidence.measurements[: evidence.measurements.index(measurement)]
    if newer and newer[0].excluded:
        text = f"{formatting.count_noun(len(newer), 'newer run')} cannot be compared: {newer[0].excluded.text}"
        notes.append(Note(NoteCode.NOT_COMPARABLE, text))
    same = (*newer, *select_launch(measurement, evidence))
    older = sum(not any(run is other for other in same) for run in evidence.measurements)
    if older:
        notes.append(Note(NoteCode.OLDER_RUNS, f"{formatting.count_noun(older, 'older run')} of this configuration"))
    return tuple(notes)
