"""Apply budgets: drift of recorded values, and duration of checkpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import AcceptedValue, Budget, Recording
from pytest_llmbench.core.codes import MAY_PASS, NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Estimate, Evidence, Judgement
from pytest_llmbench.core.log_records import CheckpointAction, CheckpointRecord
from pytest_llmbench.core.run_records import Measurement, Note, Problem
from pytest_llmbench.core.statements import (
    CodedStatement,
    DriftLimits,
    LogLine,
    StatementCode,
)
from pytest_llmbench.core.tolerance import (
    EQUAL,
    FASTER,
    find_reference,
    find_starting_value,
    is_beyond,
    list_accepted,
)
from pytest_llmbench.judge.estimate import Answer, compare_interval

# Reasons for which a run does not determine how fast the software is.
UNDECIDED = (
    Reason.FEW_STEPS_DECIDE,
    Reason.WARMING_UP,
    Reason.REPEATS_DISAGREE,
    Reason.UNCONFIRMED,
)

# fraction of the budget from which on the distance is also reported for passing runs
NOTABLE_SHARE = 0.5

# The checkpoint action that each budget limits.
DISPATCH = "checkpoint_save_dispatch_seconds"
ACTIONS = {
    "checkpoint_save_seconds": CheckpointAction.SAVE,
    DISPATCH: CheckpointAction.SAVE,
    "checkpoint_load_seconds": CheckpointAction.LOAD,
}

FAILED = (Verdict.REGRESSION, Verdict.INVALID)
WITHOUT_CURRENT_RUN = (Reason.NO_RUN, Reason.TOO_OLD)


# --- drift of recorded values ---------------------------------------------------------


def apply_drift_budget(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Overrule a verdict if the run exceeds the drift budget.

    The run is compared with the accepted reference value (`find_reference`). The limit
    is the budget, or the tolerance if larger.

    - REGRESSION (drifted): the run is shown to exceed the limit, however close it is to
      later recorded values. Also if the recorded value itself exceeds the budget (the
      file was edited or the budget reduced) and the run is not shown to be within the
      limit.
    - INCONCLUSIVE, which fails: only the measured value exceeds the limit. Repeated
      recording thus cannot move the level further than the reference allows.
    - Other verdicts are kept, with a note on the distance.
    """
    recording, estimate = judgement.baseline.recording, judgement.estimate
    if recording is None or not recording.earlier or estimate is None:
        return judgement
    drift = _measure_drift(recording, estimate, evidence)
    noted = judgement.add_notes(
        _note_distance(recording, drift, evidence),
        *_note_moves(recording, evidence.drift_budget),
    )
    meets = (
        _compute_largest_drift(judgement, drift) <= drift.limit + EQUAL
        and drift.answered is not Answer.BEYOND
        and not drift.edited
    )
    if judgement.verdict not in MAY_PASS or meets:
        return noted
    if judgement.reason in UNDECIDED:
        return replace(noted, meets_point=False)
    unconfirmed = len(judgement.runs) < evidence.decision_rule.fewest
    verdict, reason = _decide_drifted(drift, unconfirmed=unconfirmed)
    drifted = _state_drift(recording, drift, evidence)
    against = CodedStatement(
        StatementCode.AGAINST_RECORDED, statements=judgement.statements
    )
    overruled = judgement.overrule(verdict, reason, drifted, against)
    return replace(overruled, meets_point=False)


class _Drift(Struct, frozen=True):
    """Distance of a run from the accepted value, in logarithms.

    Positive is slower.
    """

    first: AcceptedValue
    difference: float
    limit: float
    answered: Answer  # position of the run's interval relative to the limit
    edited: bool  # True if the recorded value itself exceeds the budget


def _measure_drift(
    recording: Recording, estimate: Estimate, evidence: Evidence
) -> _Drift:
    """Measure the distance of a run from the accepted reference value.

    `estimate` compares the run with the recorded value.
    """
    first = find_reference(recording)
    recorded_drift = math.log(recording.trimmed_mean_seconds / first.seconds)
    limit = math.log(max(1 + evidence.drift_budget, evidence.tolerance.factor))
    low, high = estimate.low + recorded_drift, estimate.high + recorded_drift
    answered = compare_interval(low, high, limit)
    exceeds_budget = recorded_drift > math.log1p(evidence.drift_budget) + EQUAL
    return _Drift(
        first=first,
        difference=estimate.difference + recorded_drift,
        limit=limit,
        answered=answered,
        edited=exceeds_budget and answered is not Answer.WITHIN,
    )


def _compute_largest_drift(judgement: Judgement, drift: _Drift) -> float:
    """Return the log difference of the measured time to the reference value.

    If launched runs differ too much to be averaged, the slowest run is used.
    """
    if judgement.reason is not Reason.REPEATS_DISAGREE:
        return drift.difference
    seconds = (run.statistic_seconds or math.nan for run in judgement.runs)
    return max(math.log(run_seconds / drift.first.seconds) for run_seconds in seconds)


def _decide_drifted(drift: _Drift, *, unconfirmed: bool) -> tuple[Verdict, Reason]:
    """Return the verdict on a run that exceeds the drift budget, and its reason.

    `unconfirmed`: fewer runs exceed it than the decision rule demands.
    """
    if drift.edited:
        return Verdict.REGRESSION, Reason.DRIFTED
    if drift.answered is not Answer.BEYOND:
        return Verdict.INCONCLUSIVE, Reason.DRIFTED
    if unconfirmed:  # a single slow node must not cause a regression
        return Verdict.INCONCLUSIVE, Reason.UNCONFIRMED
    return Verdict.REGRESSION, Reason.DRIFTED


def _state_drift(
    recording: Recording, drift: _Drift, evidence: Evidence
) -> CodedStatement:
    """State the drift of a run, or of an edited recording, with its limits."""
    limits = DriftLimits(evidence.drift_budget, evidence.tolerance)
    first = drift.first
    if drift.edited:
        return CodedStatement(
            StatementCode.DRIFTED_RECORDING,
            recorded=(recording.trimmed_mean_seconds, first),
            limits=limits,
        )
    return CodedStatement(
        StatementCode.DRIFTED_RUN,
        tonight=(first.seconds * math.exp(drift.difference), first),
        allowed=first.seconds * math.exp(drift.limit),
        limits=limits,
    )


def _note_distance(recording: Recording, drift: _Drift, evidence: Evidence) -> Note:
    """Note the distance of run and recorded value from the reference value.

    Notable from half the budget on.
    """
    reference = drift.first
    run_seconds = reference.seconds * math.exp(drift.difference)
    recorded_ratio = recording.trimmed_mean_seconds / reference.seconds
    larger_difference = max(drift.difference, math.log(recorded_ratio))
    is_notable = larger_difference > NOTABLE_SHARE * math.log1p(evidence.drift_budget)
    distance = CodedStatement(
        StatementCode.VALUE_DRIFT,
        tonight=(run_seconds, reference),
        recorded=recorded_ratio,
        limits=DriftLimits(evidence.drift_budget, evidence.tolerance),
    )
    code = NoteCode.RECORDED_DRIFT if is_notable else NoteCode.RECORDED_DRIFT_LITTLE
    return Note(code, distance)


def _note_moves(recording: Recording, budget: float) -> Iterator[Note]:
    """Note that accepted slowdowns moved the recorded value by more than the budget.

    Each accepted reason restarts the budget, so that several of them may add up.
    """
    origin, now = find_starting_value(recording), recording.trimmed_mean_seconds
    if is_beyond(now, origin, budget) and origin != find_reference(recording):
        reasons = [value.reason for value in list_accepted(recording)]
        # the accepted slowdowns: values with a reason other than a faster level
        moves = sum(bool(reason) and reason != FASTER for reason in reasons)
        moved = CodedStatement(
            StatementCode.MOVED_RECORDING, recorded=(now, origin), moves=moves
        )
        yield Note(NoteCode.RECORDED_MOVED, moved)


# --- checkpoints ----------------------------------------------------------------------


def apply_checkpoint_budgets(
    judgement: Judgement, runs: Iterable[Measurement]
) -> Judgement:
    """Overrule a verdict if a run violates a checkpoint budget.

    A run over a budget is a REGRESSION (over-budget). A run that saved or loaded a
    checkpoint in an unknown time is INVALID (budget-unknown). A verdict that fails for
    another reason is kept, with a note.
    """
    findings: list[Note] = []
    for run in runs:
        newest = run is judgement.measurement
        for budget in judgement.baseline.budgets:
            finding = _check_budget(run, budget, newest=newest)
            if finding is not None:
                findings.append(finding)
    decisive = () if judgement.verdict in FAILED else _select_decisive(findings)
    notes = [finding for finding in findings if finding not in decisive]
    judgement = judgement.add_notes(*notes)
    if not decisive:
        return judgement
    verdict, reason = Verdict.INVALID, Reason.BUDGET_UNKNOWN
    if decisive[0].code is NoteCode.OVER_BUDGET:
        verdict, reason = Verdict.REGRESSION, Reason.OVER_BUDGET
    return judgement.overrule(verdict, reason, *decisive, *judgement.statements)


def _select_decisive(findings: Sequence[Note]) -> Sequence[Note]:
    """Select the findings over a budget, else those with an unknown time."""
    over_budget = [
        finding for finding in findings if finding.code is NoteCode.OVER_BUDGET
    ]
    if over_budget:
        return over_budget
    return [finding for finding in findings if finding.code is NoteCode.BUDGET_UNKNOWN]


def select_budgeted_runs(
    evidence: Evidence, judgement: Judgement
) -> Iterator[Measurement]:
    """Yield the runs that the checkpoint budgets apply to.

    These are the judged runs, and newer runs that only load a checkpoint.
    """
    newest = judgement.measurement
    if newest is None or judgement.reason in WITHOUT_CURRENT_RUN:
        return
    if newest.excluded is None or _is_only_loading(newest, evidence):
        yield newest
    yield from judgement.repeats
    index = next(
        (index for index, run in enumerate(evidence.measurements) if run is newest), 0
    )
    for newer in evidence.measurements[:index]:
        if _is_only_loading(newer, evidence):
            yield newer


def _is_only_loading(run: Measurement, evidence: Evidence) -> bool:
    """True if a run only loads a checkpoint and is recent enough to count."""
    recent = not evidence.is_too_old(run.run.started)
    return recent and _find_load(run) is not None


def _find_load(run: Measurement) -> Problem | None:
    """Return the problem that excludes a run as checkpoint load, or None."""
    problem = run.excluded
    is_load = problem is not None and problem.reason is Reason.CHECKPOINT_LOAD
    return problem if is_load else None


def _check_budget(run: Measurement, budget: Budget, *, newest: bool) -> Note | None:
    """Check one checkpoint budget of a run.

    Returns a note if the budget is exceeded, cannot be checked or is not exercised.
    None if it is met.
    """
    action = ACTIONS[budget.metric]
    records = [record for record in run.checkpoints.records if record.action == action]
    timed = [
        record
        for record in records
        if record.seconds is not None and _is_timed(record, budget)
    ]
    slowest = max(timed, key=lambda record: record.seconds or 0.0, default=None)
    if slowest is not None and (slowest.seconds or 0.0) > budget.largest:
        log_line = _find_log_line(run, slowest.line, newest=newest)
        over = CodedStatement(
            StatementCode.OVER_BUDGET,
            action=action,
            budget=budget,
            seconds=slowest.seconds,
            dispatched=slowest.dispatched,
            place=log_line,
        )
        return Note(NoteCode.OVER_BUDGET, over, slowest.line)
    if not records and not run.checkpoints.unread:
        return _note_unstated(run, action, budget)
    doubt_at = _find_doubt(records, timed, budget, run.checkpoints.unread)
    if doubt_at is None:
        return None
    doubt, line = doubt_at
    unknown = CodedStatement(
        StatementCode.BUDGET_UNKNOWN,
        action=action,
        budget=budget,
        doubt=doubt,
        place=_find_log_line(run, line, newest=newest),
    )
    return Note(NoteCode.BUDGET_UNKNOWN, unknown, line)


def _is_timed(record: CheckpointRecord, budget: Budget) -> bool:
    """True if the time of a record can be compared with a budget.

    A budget of dispatches compares only the times of asynchronous saves.
    """
    return record.dispatched or budget.metric != DISPATCH


def _find_log_line(run: Measurement, line: int, *, newest: bool) -> LogLine:
    """Return a line of a run's log; the log is named unless the run is the newest."""
    log_name = "" if newest or run.log is None else run.log.name
    return LogLine(log_name, line)


def _note_unstated(run: Measurement, action: CheckpointAction, budget: Budget) -> Note:
    """Note that the log reports no save or no load (`action`).

    The note is BUDGET_UNKNOWN if the run was meant to save or load, else BUDGET_UNUSED.
    """
    # the text that shows that the run was meant to save or load, "" if there is none
    meant = run.run.found.saves if action == CheckpointAction.SAVE else ""
    load = _find_load(run) if action == CheckpointAction.LOAD else None
    if load is not None:
        meant = load.text
    code = NoteCode.BUDGET_UNKNOWN if meant else NoteCode.BUDGET_UNUSED
    unstated = CodedStatement(
        StatementCode.UNSTATED_CHECKPOINT, action=action, budget=budget, meant=meant
    )
    return Note(code, unstated)


def _find_doubt(
    records: Sequence[CheckpointRecord],
    timed: Sequence[CheckpointRecord],
    budget: Budget,
    unread: int,
) -> tuple[CodedStatement, int] | None:
    """Return a reason to doubt that a budget is met, with its line.

    None if the times prove that the budget is met. `timed` are the `records` whose
    times are compared with the budget. `unread` counts the records that were not kept.
    """
    truncated = next((record for record in records if record.torn), None)
    if truncated is not None:
        return CodedStatement(StatementCode.TIME_TRUNCATED), truncated.line
    untimed = [record for record in records if record.seconds is None]
    timed_records = [record for record in records if record.seconds is not None]
    # A log may print each save twice: with and without its time.
    if _count_per_rank(untimed) > _count_per_rank(timed_records):
        return CodedStatement(StatementCode.TIME_MISSING), untimed[-1].line
    # The time to dispatch an asynchronous save does not contain the save itself.
    dispatched = next((record for record in timed if record.dispatched), None)
    if dispatched is not None and budget.metric != DISPATCH:
        return CodedStatement(StatementCode.DISPATCH_ONLY), dispatched.line
    if unread:
        line = records[-1].line if records else 0
        return CodedStatement(StatementCode.RECORDS_UNREAD, records=unread), line
    if not timed:  # a budget of dispatches, but the saves were synchronous
        return CodedStatement(StatementCode.SYNCHRONOUS), timed_records[0].line
    return None


def _count_per_rank(records: Sequence[CheckpointRecord]) -> int:
    """Return the largest number of records of any rank."""
    return max(Counter(record.rank for record in records).values(), default=0)
