"""Acknowledged changes of step time: the level that a run is compared with, moved by
what was acknowledged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from datetime import date
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.codes import NoteCode, Reason
from pytest_llmbench.core.judgement_records import Evidence, PreviousRun
from pytest_llmbench.core.metric_definitions import METRICS
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.run_records import Acknowledgement, Measurement, Metric, Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.run_selection import list_valid_runs

if TYPE_CHECKING:
    from pytest_llmbench.core.run_records import VerdictStatement

# the level before an accepted change is the median of so many valid runs before it
LAST_RUNS = 7

# No level lies further above its baseline because of what was accepted: one entry may
# not say more, and several do not come to more. What is slower needs a new recording,
# with a reason that stays.
LARGEST = 0.10

FEWEST = 3  # fewer runs before it say nothing of that level: the baseline stands for it


def select_covering(
    configuration: str, entries: Sequence[Acknowledgement]
) -> tuple[Acknowledgement, ...]:
    """Return the acknowledged changes of a configuration (its id), by their id or
    pattern."""
    return tuple(
        entry
        for entry in _select_named(configuration, entries)
        if entry.accepts is None
    )


def _select_named(
    configuration: str, entries: Sequence[Acknowledgement]
) -> list[Acknowledgement]:
    return [
        entry for entry in entries if fnmatchcase(configuration, entry.configuration)
    ]


def accept_reasons(evidence: Evidence, entries: Sequence[Acknowledgement]) -> Evidence:
    """Return the evidence without the problems that an entry accepts, each of them now
    a note of its run.

    The entries in force stay in `Evidence.accepted`: verdicts consult them with
    `find_accepted`. An entry counts for runs that started on its first day or later,
    until it expires; it never counts for a certificate.
    """
    named = [
        entry
        for entry in _select_named(evidence.baseline.key.id, entries)
        if entry.accepts is not None
    ]
    if not named:
        return evidence
    unusable = [
        note
        for entry in named
        if (note := _find_idle_reason(entry, evidence)) is not None
    ]
    expired = {note.acknowledgement for note in unusable}
    in_force = tuple(entry for entry in named if entry not in expired)
    return dataclasses.replace(
        evidence,
        accepted=in_force,
        measurements=tuple(
            _accept_problems(run, in_force) for run in evidence.measurements
        ),
        excluded_by_since=tuple(
            _accept_problems(run, in_force) for run in evidence.excluded_by_since
        ),
        remarks=(*evidence.remarks, *unusable),
    )


def find_accepted(
    reason: Reason, run: Measurement, entries: Sequence[Acknowledgement]
) -> Acknowledgement | None:
    """Return the entry that accepts `reason` for `run`, None without one."""
    started = run.run.started
    if started is None:
        return None
    return next(
        (
            entry
            for entry in entries
            if entry.accepts is reason and entry.since <= started.date()
        ),
        None,
    )


def make_accepted_note(
    entry: Acknowledgement, statement: VerdictStatement, line: int = 0
) -> Note:
    """Return the note of a run whose reason to fail, a `statement`, was accepted."""
    accepted = CodedStatement(
        StatementCode.ACCEPTED_REASON, statement=statement, entry=entry
    )
    return Note(NoteCode.ACKNOWLEDGED, accepted, line, acknowledgement=entry)


def _accept_problems(
    run: Measurement, entries: Sequence[Acknowledgement]
) -> Measurement:
    found = [
        (problem, find_accepted(problem.reason, run, entries))
        for problem in run.problems
    ]
    notes = [
        make_accepted_note(entry, problem, problem.line)
        for problem, entry in found
        if entry is not None
    ]
    if not notes:
        return run
    left = tuple(problem for problem, entry in found if entry is None)
    return dataclasses.replace(run, problems=left, notes=(*run.notes, *notes))


def apply_acknowledgements(
    evidence: Evidence, entries: Sequence[Acknowledgement]
) -> Evidence:
    """Return the evidence with its baseline at the level that was accepted, and the
    remarks that say so.

    The tolerance stays: what is slower than the accepted level by more than it is a
    regression. An acknowledgement counts for runs from its day on while it has not
    expired; never for a certificate, and not against a baseline that was recorded from
    runs after the change, which holds it already. The accepted level is that of the
    runs before the change times the change where they were faster than the baseline, or
    than what was accepted before, and never below the baseline because of a slower one:
    a configuration that was faster before gets no more room than it needs. A run that
    is faster than that level by more than the tolerance and meets the baseline's own
    bound does not need it, and is compared with the baseline as it is.
    """
    covering = select_covering(evidence.baseline.key.id, entries)
    newest = next((run for run in evidence.measurements if run.excluded is None), None)
    if not covering or newest is None or newest.run.started is None:
        return evidence
    began = [entry for entry in covering if entry.since <= newest.run.started.date()]
    notes = [_find_idle_reason(entry, evidence) for entry in began]
    idle = [note for note in notes if note is not None]
    active = [entry for entry, note in zip(began, notes, strict=True) if note is None]
    accepted = _compute_shift(evidence, active)
    shift = min(accepted, math.log1p(LARGEST))
    remarks = [
        Note(NoteCode.ACKNOWLEDGED, entry, acknowledgement=entry) for entry in active
    ]
    if accepted > shift:
        in_all = CodedStatement(StatementCode.ACCEPTED_IN_ALL, change=accepted)
        remarks.append(Note(NoteCode.ACKNOWLEDGED, in_all))
    if shift > 0 and _needs_none(newest, evidence, shift):
        shift = 0.0
        remarks = [
            _note_idle(CodedStatement(StatementCode.IDLE_FASTER, entry=entry))
            for entry in active
        ]
    return dataclasses.replace(
        move_baseline(evidence, math.exp(shift)) if shift else evidence,
        remarks=(*evidence.remarks, *remarks, *idle),
    )


def rejects_improvement(evidence: Evidence) -> bool:
    """Whether a run that is faster than the level by more than the tolerance is at best
    a PASS: the level was accepted, and is no baseline to be refreshed."""
    return any(note.code is NoteCode.ACKNOWLEDGED for note in evidence.remarks)


def _find_idle_reason(entry: Acknowledgement, evidence: Evidence) -> Note | None:
    """Return why an acknowledgement that has begun moves nothing; None where it
    does."""
    if evidence.rules.certify:
        return _note_idle(CodedStatement(StatementCode.IDLE_CERTIFIED, entry=entry))
    if evidence.now.date() > entry.expires:
        expired = CodedStatement(StatementCode.IDLE_EXPIRED, entry=entry)
        return _note_idle(expired, NoteCode.ACKNOWLEDGEMENT_EXPIRED)
    if entry.accepts is not None:
        return None
    recording = evidence.baseline.recording
    last = (recording.newest_run or recording.date[:10]) if recording else ""
    if last < entry.since.isoformat():
        return None
    recorded = CodedStatement(StatementCode.IDLE_RECORDED, entry=entry, recorded=last)
    return _note_idle(recorded)


def _note_idle(
    idle: CodedStatement, code: NoteCode = NoteCode.ACKNOWLEDGEMENT_IDLE
) -> Note:
    return Note(code, idle, acknowledgement=idle.values["entry"])


def _compute_shift(evidence: Evidence, active: Sequence[Acknowledgement]) -> float:
    """Return by how much the accepted level lies above the baseline, as a logarithm.

    Each change counts from the level of the runs before it, where that is lower than
    what was accepted so far: what was taken back, or became faster, since an earlier
    entry gives a later one no further room.
    """
    if not math.isfinite(evidence.baseline.step_seconds):
        return 0.0
    runs = list_valid_runs(evidence)
    level, began = 0.0, date.min
    for entry in sorted(active, key=lambda acknowledgement: acknowledgement.since):
        before = [
            run
            for run in runs
            if run.started is not None and began <= run.started.date() < entry.since
        ]
        start = (
            min(_compute_level(before[-LAST_RUNS:], evidence.baseline), level)
            if len(before) >= FEWEST
            else level
        )
        accepted = math.log1p(entry.fraction)
        level = (
            max(start + accepted, min(level, 0.0)) if accepted > 0 else start + accepted
        )
        began = entry.since
    return level


def _compute_level(runs: Sequence[PreviousRun], baseline: Baseline) -> float:
    """Return the median of runs over the baseline, as a logarithm."""
    return compute_median(
        np.array(
            [
                math.log((run.statistic_seconds or math.nan) / baseline.step_seconds)
                for run in runs
            ]
        )
    )


def _needs_none(newest: Measurement, evidence: Evidence, shift: float) -> bool:
    seconds = newest.statistic_seconds
    if not seconds or not math.isfinite(seconds):
        return False
    tolerated = math.log(evidence.tolerance.factor)
    return math.log(seconds / evidence.baseline.step_seconds) < min(
        shift - tolerated, tolerated
    )


def move_baseline(evidence: Evidence, factor: float) -> Evidence:
    """Return the evidence with every time of its baseline multiplied, and what its
    measurements are shown beside."""
    baseline = _scale_baseline(evidence.baseline, factor)

    def move_measurement(measurement: Measurement) -> Measurement:
        expected = tuple(
            _scale_metric(metric, factor) for metric in measurement.expected
        )
        return dataclasses.replace(measurement, baseline=baseline, expected=expected)

    return dataclasses.replace(
        evidence,
        baseline=baseline,
        measurements=tuple(map(move_measurement, evidence.measurements)),
        excluded_by_since=tuple(map(move_measurement, evidence.excluded_by_since)),
    )


def _scale_baseline(baseline: Baseline, factor: float) -> Baseline:
    recording = baseline.recording
    if recording is not None:
        recording = dataclasses.replace(
            recording,
            mean_seconds=recording.mean_seconds * factor,
            trimmed_mean_seconds=recording.trimmed_mean_seconds * factor,
            run_seconds=tuple(seconds * factor for seconds in recording.run_seconds),
            earlier=tuple(
                dataclasses.replace(accepted, seconds=accepted.seconds * factor)
                for accepted in recording.earlier
            ),
        )
    return dataclasses.replace(
        baseline,
        step_seconds=baseline.step_seconds * factor,
        resolution_seconds=baseline.resolution_seconds * factor,
        recording=recording,
    )


def _scale_metric(metric: Metric, factor: float) -> Metric:
    if not METRICS[metric.name].of_step_time:
        return metric
    return dataclasses.replace(
        metric,
        value=metric.value / factor
        if metric.larger_is_better
        else metric.value * factor,
    )
