"""Apply acknowledged changes of step time to the evidence of a configuration.

An acknowledgement moves the level that runs are compared with, or accepts a reason to
fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

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

# number of valid runs before an accepted change whose median is the level before it
LEVEL_RUNS = 7

# Acknowledgements raise a level above its baseline by at most this fraction: each
# entry, and all of them together. A larger slowdown needs a new recording, which keeps
# its reason.
LARGEST = 0.10

# with fewer runs before a change, the level before it is unknown and the baseline
# replaces it
MIN_RUNS = 3


def select_covering(
    configuration: str, entries: Sequence[Acknowledgement]
) -> tuple[Acknowledgement, ...]:
    """Select the acknowledged changes that cover a configuration.

    Entries name a configuration id or a pattern. Entries that accept a reason are left
    out.
    """
    return tuple(
        entry
        for entry in _select_matching(configuration, entries)
        if entry.accepts is None
    )


def _select_matching(
    configuration: str, entries: Sequence[Acknowledgement]
) -> list[Acknowledgement]:
    """Select the entries whose id or pattern matches a configuration."""
    return [
        entry for entry in entries if fnmatchcase(configuration, entry.configuration)
    ]


def accept_reasons(evidence: Evidence, entries: Sequence[Acknowledgement]) -> Evidence:
    """Turn the problems that an entry accepts into notes of their runs.

    The entries in force are kept in `Evidence.accepted`, where verdicts find them with
    `find_accepted`. An entry applies to runs that started on its first day or later,
    until it expires. No entry has an effect under --llmb-certify.
    """
    matching = [
        entry
        for entry in _select_matching(evidence.baseline.key.id, entries)
        if entry.accepts is not None
    ]
    if not matching:
        return evidence
    idle_notes: list[Note] = []
    in_force: list[Acknowledgement] = []
    for entry in matching:
        idle_note = _find_idle_note(entry, evidence)
        if idle_note is None:
            in_force.append(entry)
        else:
            idle_notes.append(idle_note)
    return structs.replace(
        evidence,
        accepted=tuple(in_force),
        measurements=tuple(
            _accept_problems(run, in_force) for run in evidence.measurements
        ),
        excluded_by_since=tuple(
            _accept_problems(run, in_force) for run in evidence.excluded_by_since
        ),
        remarks=(*evidence.remarks, *idle_notes),
    )


def find_accepted(
    reason: Reason, run: Measurement, entries: Sequence[Acknowledgement]
) -> Acknowledgement | None:
    """Return the entry that accepts `reason` for `run`, or None."""
    started = run.run.started
    if started is None:
        return None
    for entry in entries:
        if entry.accepts is reason and entry.since <= started.date():
            return entry
    return None


def make_accepted_note(
    entry: Acknowledgement, statement: VerdictStatement, line: int = 0
) -> Note:
    """Note that a reason to fail, `statement`, was accepted."""
    accepted = CodedStatement(
        StatementCode.ACCEPTED_REASON, statement=statement, entry=entry
    )
    return Note(NoteCode.ACKNOWLEDGED, accepted, line, acknowledgement=entry)


def _accept_problems(
    run: Measurement, entries: Sequence[Acknowledgement]
) -> Measurement:
    """Turn the accepted problems of a run into notes."""
    notes, remaining = [], []
    for problem in run.problems:
        entry = find_accepted(problem.reason, run, entries)
        if entry is None:
            remaining.append(problem)
        else:
            notes.append(make_accepted_note(entry, problem, problem.line))
    if not notes:
        return run
    return structs.replace(run, problems=tuple(remaining), notes=(*run.notes, *notes))


def apply_acknowledgements(
    evidence: Evidence, entries: Sequence[Acknowledgement]
) -> Evidence:
    """Move the baseline to the accepted level, with a remark for each entry.

    The tolerance is unchanged: a run that exceeds the accepted level by more than the
    tolerance is a regression.

    An acknowledgement applies to runs from its day on, until it expires. It does not
    apply to a certificate, nor to a baseline recorded after the change, which already
    contains it.

    The accepted level is the previous level times the accepted change. The previous
    level is the level of the last runs, but at most the level accepted so far (at first
    the baseline): a configuration that was faster before gets no more room than it
    needs. An accepted slowdown never moves the level below the baseline. A run that is
    faster than the accepted level by more than the tolerance, and meets the baseline's
    own bound, is compared with the baseline itself.
    """
    covering = select_covering(evidence.baseline.key.id, entries)
    newest = next((run for run in evidence.measurements if run.excluded is None), None)
    if not covering or newest is None or newest.run.started is None:
        return evidence
    active: list[Acknowledgement] = []
    idle_notes: list[Note] = []
    for entry in covering:
        if entry.since > newest.run.started.date():
            continue
        idle_note = _find_idle_note(entry, evidence)
        if idle_note is None:
            active.append(entry)
        else:
            idle_notes.append(idle_note)
    # All entries together raise the level by at most LARGEST.
    accepted = _compute_shift(evidence, active)
    shift = min(accepted, math.log1p(LARGEST))
    remarks = [
        Note(NoteCode.ACKNOWLEDGED, entry, acknowledgement=entry) for entry in active
    ]
    if accepted > shift:
        capped = CodedStatement(StatementCode.ACCEPTED_IN_ALL, change=accepted)
        remarks.append(Note(NoteCode.ACKNOWLEDGED, capped))
    # A run that no longer needs the raised level is compared with the baseline.
    if shift > 0 and _meets_own_bound(newest, evidence, shift):
        shift = 0.0
        remarks = [
            _make_idle_note(CodedStatement(StatementCode.IDLE_FASTER, entry=entry))
            for entry in active
        ]
    moved = move_baseline(evidence, math.exp(shift)) if shift else evidence
    all_remarks = (*evidence.remarks, *remarks, *idle_notes)
    return structs.replace(moved, remarks=all_remarks)


def has_accepted_change(evidence: Evidence) -> bool:
    """True if an acknowledged change is in effect.

    A run that is faster than the accepted level is then a PASS, not an IMPROVEMENT:
    there is no baseline to refresh.
    """
    return any(note.code is NoteCode.ACKNOWLEDGED for note in evidence.remarks)


def _find_idle_note(entry: Acknowledgement, evidence: Evidence) -> Note | None:
    """Note why an acknowledgement that has begun has no effect, or return None."""
    if evidence.rules.certify:
        return _make_idle_note(
            CodedStatement(StatementCode.IDLE_CERTIFIED, entry=entry)
        )
    if evidence.now.date() > entry.expires:
        expired = CodedStatement(StatementCode.IDLE_EXPIRED, entry=entry)
        return _make_idle_note(expired, NoteCode.ACKNOWLEDGEMENT_EXPIRED)
    if entry.accepts is not None:
        return None
    recording = evidence.baseline.recording
    if recording is None:
        return None
    # A baseline recorded after the change contains it. `date` may include a time.
    last_day = recording.newest_run or recording.date[: len("2024-01-31")]
    if last_day < entry.since.isoformat():
        return None
    recorded = CodedStatement(
        StatementCode.IDLE_RECORDED, entry=entry, recorded=last_day
    )
    return _make_idle_note(recorded)


def _make_idle_note(
    idle: CodedStatement, code: NoteCode = NoteCode.ACKNOWLEDGEMENT_IDLE
) -> Note:
    """Make the note of an entry without effect; `idle` states the entry and why."""
    return Note(code, idle, acknowledgement=idle.values["entry"])


def _compute_shift(evidence: Evidence, active: Sequence[Acknowledgement]) -> float:
    """Return the log difference of the accepted level to the baseline.

    Each change starts from the level of the runs before it, if that is lower than the
    level accepted so far: a slowdown that was reverted since an earlier entry gives a
    later entry no further room.
    """
    if not math.isfinite(evidence.baseline.step_seconds):
        return 0.0
    runs = list_valid_runs(evidence)
    level, previous_since = 0.0, date.min
    for entry in sorted(active, key=lambda acknowledgement: acknowledgement.since):
        runs_before = [
            run
            for run in runs
            if run.started is not None
            and previous_since <= run.started.date() < entry.since
        ]
        level_before = level
        if len(runs_before) >= MIN_RUNS:
            measured = _compute_level(runs_before[-LEVEL_RUNS:], evidence.baseline)
            level_before = min(measured, level)
        accepted = math.log1p(entry.fraction)
        new_level = level_before + accepted
        if accepted > 0:  # a slowdown never moves the level below the baseline
            new_level = max(new_level, min(level, 0.0))
        level, previous_since = new_level, entry.since
    return level


def _compute_level(runs: Sequence[PreviousRun], baseline: Baseline) -> float:
    """Return ln(median step time of the runs / baseline)."""
    differences = [
        math.log((run.statistic_seconds or math.nan) / baseline.step_seconds)
        for run in runs
    ]
    return compute_median(np.array(differences))


def _meets_own_bound(newest: Measurement, evidence: Evidence, shift: float) -> bool:
    """True if a run meets the bound of its unmoved baseline, and is clearly faster than
    the accepted level, which is `shift` above the baseline."""
    seconds = newest.statistic_seconds
    if not seconds or not math.isfinite(seconds):
        return False
    tolerated = math.log(evidence.tolerance.factor)
    difference = math.log(seconds / evidence.baseline.step_seconds)
    return difference < min(shift - tolerated, tolerated)


def move_baseline(evidence: Evidence, factor: float) -> Evidence:
    """Multiply all times of the baseline by a factor.

    Also scales the expected metrics of the measurements.
    """
    baseline = _scale_baseline(evidence.baseline, factor)

    def move_measurement(measurement: Measurement) -> Measurement:
        """Return a measurement with the moved baseline and its expected metrics."""
        expected = tuple(
            _scale_metric(metric, factor) for metric in measurement.expected
        )
        return structs.replace(measurement, baseline=baseline, expected=expected)

    return structs.replace(
        evidence,
        baseline=baseline,
        measurements=tuple(map(move_measurement, evidence.measurements)),
        excluded_by_since=tuple(map(move_measurement, evidence.excluded_by_since)),
    )


def _scale_baseline(baseline: Baseline, factor: float) -> Baseline:
    """Multiply all step times of a baseline by `factor`."""
    recording = baseline.recording
    if recording is not None:
        recording = structs.replace(
            recording,
            mean_seconds=recording.mean_seconds * factor,
            trimmed_mean_seconds=recording.trimmed_mean_seconds * factor,
            run_seconds=tuple(seconds * factor for seconds in recording.run_seconds),
            earlier=tuple(
                structs.replace(accepted, seconds=accepted.seconds * factor)
                for accepted in recording.earlier
            ),
        )
    return structs.replace(
        baseline,
        step_seconds=baseline.step_seconds * factor,
        resolution_seconds=baseline.resolution_seconds * factor,
        recording=recording,
    )


def _scale_metric(metric: Metric, factor: float) -> Metric:
    """Scale a metric that follows from the step time to a step time x `factor`."""
    if not METRICS[metric.name].of_step_time:
        return metric
    # rates fall as the step time grows
    value = metric.value / factor if metric.larger_is_better else metric.value * factor
    return structs.replace(metric, value=value)
