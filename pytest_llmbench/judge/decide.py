"""Reach a verdict from the evidence of one configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.codes import NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import (
    Estimate,
    Evidence,
    Judgement,
    Noise,
    PreviousRuns,
    SessionRules,
)
from pytest_llmbench.core.run_records import Measurement, Note
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge import agreement, explanation
from pytest_llmbench.judge.acknowledged import (
    find_accepted,
    has_accepted_change,
    make_accepted_note,
)
from pytest_llmbench.judge.budgets import (
    apply_checkpoint_budgets,
    apply_drift_budget,
    select_budgeted_runs,
)
from pytest_llmbench.judge.estimate import (
    EPSILON,
    Answer,
    average_difference,
    compare_interval,
    disagree,
    estimate_difference,
    estimate_noise,
)
from pytest_llmbench.judge.pattern import ShapeKind
from pytest_llmbench.judge.run_selection import (
    find_current_shape,
    find_last_valid,
    find_unusable,
    is_stale,
    select_consecutive,
    select_current_runs,
    select_launch,
)
from pytest_llmbench.judge.shape import Shape

if TYPE_CHECKING:
    from pytest_llmbench.core.run_records import VerdictStatement

# Pool a configuration that is INCONCLUSIVE on this many consecutive days.
POOLED_DAYS = 3


def judge(evidence: Evidence) -> Judgement:
    """Judge a configuration by its newest comparable run.

    `evidence.measurements` are ordered newest first. The newest comparable run is
    averaged with its repeats. If the session launched runs, the runs of the newest
    launch are judged and runs found on disk are ignored.

    - PASS: shown to be at most baseline x (1 + tolerance).
    - REGRESSION: shown to be slower than that bound.
    - IMPROVEMENT: shown to be faster than baseline / (1 + tolerance), or faster than is
      plausible.
    - INCONCLUSIVE: the interval allows more than one of these verdicts.
    - INVALID: the newest run, a run of its launch or the baseline has no usable step
      time. Older runs do not replace it.
    - MISSING: no comparable run exists, or the newest is too old.

    Finally, the drift budget of the recorded baseline and the checkpoint budgets are
    applied.
    """
    judgement = explanation.add_order_note(_judge_newest(evidence), evidence)
    return _apply_budgets_and_rules(judgement, evidence)


def _judge_newest(evidence: Evidence) -> Judgement:
    """Judge the newest comparable run, or the run of a launch."""
    launched = next(
        (run for run in evidence.measurements if run.run.found.launch), None
    )
    if launched is not None:
        return _judge_run(evidence, launched)
    comparable = [
        measurement
        for measurement in evidence.measurements
        if measurement.excluded is None
    ]
    if not comparable:
        return _judge_missing(evidence)
    newest = comparable[0]
    if newest.run.started is None and len(comparable) > 1:
        return _judge_undated(evidence, newest)
    return _judge_run(evidence, newest)


def judge_alone(evidence: Evidence) -> Judgement:
    """Judge the first run alone, as the subject of a separate item.

    The other measurements are its history. The verdict is NOT_COMPARABLE if the run was
    excluded. The drift budget and the checkpoint budgets are applied too.
    """
    return _apply_budgets_and_rules(_judge_first(evidence), evidence)


def _apply_budgets_and_rules(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Add acknowledgements, apply the budgets and the rules for certificates."""
    judgement = explanation.with_remarks(judgement, evidence)
    judgement = apply_drift_budget(judgement, evidence)
    runs = select_budgeted_runs(evidence, judgement)
    judgement = apply_checkpoint_budgets(judgement, runs)
    return _certify(explanation.with_timing_label(judgement), evidence.rules)


def _certify(judgement: Judgement, rules: SessionRules) -> Judgement:
    """Overrule a passing verdict with INCONCLUSIVE if it cannot be certified.

    Applies only to sessions that certify.
    """
    doubt = _find_uncertainty(judgement, rules.against) if rules.certify else None
    if doubt is None:
        return judgement
    uncertain = CodedStatement(StatementCode.NOT_CERTIFIED, doubt=doubt)
    statements = (*judgement.statements, uncertain)
    return judgement.overrule(Verdict.INCONCLUSIVE, Reason.CANNOT_TELL, *statements)


def _find_uncertainty(judgement: Judgement, against: str) -> VerdictStatement | None:
    """Return the reason a passing verdict certifies nothing, or None.

    None for a verdict that does not pass.
    """
    if judgement.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT):
        return None
    kind = judgement.baseline.kind
    if against not in ("both", kind):
        return CodedStatement(
            StatementCode.OTHER_BASELINE_KIND, asked=against, kind=kind
        )
    if judgement.estimate is not None and judgement.estimate.threshold_only:
        return CodedStatement(StatementCode.ERROR_UNKNOWN)
    # a repeat that does not count
    lost_codes = (NoteCode.REPEATS_DISAGREE, NoteCode.REPEAT_LOST)
    return next((note for note in judgement.notes if note.code in lost_codes), None)


def _judge_first(evidence: Evidence) -> Judgement:
    """Judge the first run of the evidence as if it had no launch and no repeats."""
    measurement = evidence.measurements[0]
    problem = measurement.excluded
    if problem is not None:
        return _make_judgement(
            evidence, Verdict.NOT_COMPARABLE, problem.reason, problem, measurement
        )
    without_launch = _drop_launch(measurement)
    without_repeats = replace(
        evidence,
        measurements=(without_launch, *evidence.measurements[1:]),
        repeat_window=None,
    )
    return _judge_run(without_repeats, without_launch)


def _drop_launch(measurement: Measurement) -> Measurement:
    """Return the measurement as if its run had been found on disk."""
    run = measurement.run
    if not run.found.launch:  # a duplicate of a launched run would count as a daily run
        return measurement
    return replace(measurement, run=replace(run, found=replace(run.found, launch="")))


def _judge_run(evidence: Evidence, newest: Measurement) -> Judgement:
    """Judge a run together with the other runs of its launch."""
    started = newest.run.started
    if started is None and evidence.max_age is not None:
        return _judge_undated(evidence, newest)
    if started is not None and evidence.is_too_old(started):
        stale = CodedStatement(
            StatementCode.STALE_RUN,
            age=evidence.now - started,
            limit=evidence.max_age,
            last_valid=find_last_valid(evidence),
        )
        return _make_judgement(evidence, Verdict.MISSING, Reason.TOO_OLD, stale, newest)
    launch_runs = select_launch(newest, evidence)
    for run in launch_runs:
        problem = find_unusable(run)
        if problem is not None:
            # Do not ignore a failed run: a launch could then pass although the step
            # time of that run is unknown.
            unusable = CodedStatement(
                StatementCode.UNUSABLE_RUN,
                run=run.run.id,
                runs=len(launch_runs),
                problem=problem,
                last_valid=find_last_valid(evidence),
            )
            return _make_judgement(
                evidence, Verdict.INVALID, problem.reason, unusable, run
            )
    if not math.isfinite(evidence.baseline.step_seconds):
        return _judge_without_baseline(evidence, launch_runs)
    return _compare(evidence, newest)


def _judge_without_baseline(
    evidence: Evidence, runs: Sequence[Measurement]
) -> Judgement:
    """Build the judgement of runs whose baseline has no usable step time."""
    seconds = tuple(run.statistic_seconds for run in runs)
    measured = CodedStatement(StatementCode.NOTHING_TO_COMPARE, seconds=seconds)
    return _make_judgement(
        evidence, Verdict.INVALID, Reason.NO_BASELINE, measured, runs[0]
    )


def _judge_undated(evidence: Evidence, newest: Measurement) -> Judgement:
    """Build the judgement of a run whose start must be known, but is unknown."""
    undated = CodedStatement(
        StatementCode.UNDATED_RUN, run=newest.run.id, source=newest.run.started_from
    )
    return _make_judgement(
        evidence, Verdict.INVALID, Reason.START_UNKNOWN, undated, newest
    )


def _judge_missing(evidence: Evidence) -> Judgement:
    """Build the judgement of a configuration without a comparable run."""
    last_valid = find_last_valid(evidence)
    if not evidence.measurements:
        missing = CodedStatement(
            StatementCode.MISSING_RUN, stale=is_stale(evidence), last_valid=last_valid
        )
        return _make_judgement(evidence, Verdict.MISSING, Reason.NO_RUN, missing)
    newest = evidence.measurements[0]
    only = CodedStatement(
        StatementCode.ONLY_EXCLUDED, problem=newest.excluded, last_valid=last_valid
    )
    return _make_judgement(
        evidence, Verdict.MISSING, Reason.ONLY_NOT_COMPARABLE, only, newest
    )


# --- the comparison -------------------------------------------------------------------


class _Decision(Struct, frozen=True):
    """A verdict, its reason and further statements."""

    verdict: Verdict
    reason: Reason
    because: tuple[VerdictStatement, ...] = ()


def _compare(evidence: Evidence, newest: Measurement) -> Judgement:
    """Compare the current runs with the baseline, and decide."""
    current_runs = select_current_runs(newest, evidence)
    current, counted = current_runs.runs, current_runs.counted
    previous = current_runs.previous
    noise = estimate_noise(evidence, previous, counted)
    estimate = estimate_difference(counted, evidence, noise)
    shape = find_current_shape(current_runs)
    decision = _decide(estimate, counted, evidence, shape)
    literal = agreement.apply_literal_rule(counted, evidence, estimate)
    # Launched runs that differ too much are not averaged: each must meet the rule.
    if current_runs.apart:
        decision = _decide_apart(decision)
        literals = [_apply_literal_rule_alone(run, evidence, noise) for run in counted]
        literal = agreement.LiteralRule(all(rule.meets for rule in literals))
    decision = _confirm(decision, counted, evidence, apart=current_runs.apart)
    # A single run that decides nothing may decide together with the days before it.
    if decision.reason is Reason.CANNOT_TELL and len(current) == 1:
        pooled = _decide_over_days(evidence, counted[0], previous, literal.meets)
        decision = pooled or decision
    decision, meets, accepted = _report_literal_rule(
        decision, literal, newest, evidence
    )
    compared = explanation.state_comparison(decision.verdict, estimate, counted[0])
    judgement = _make_judgement(
        evidence, decision.verdict, decision.reason, None, newest
    )
    return replace(
        judgement,
        statements=(*compared, *decision.because),
        log_difference=estimate.difference,
        meets_point=meets,
        notes=(
            *current_runs.notes,
            *accepted,
            *explanation.list_doubts(estimate, evidence.assumed_cv),
            *explanation.list_baseline_doubts(evidence.baseline),
            *filter(None, [shape.warming_up]),
            *shape.notes,
            *judgement.notes,
        ),
        estimate=estimate,
        repeats=current[1:],
    )


def _report_literal_rule(
    decision: _Decision,
    literal: agreement.LiteralRule,
    newest: Measurement,
    evidence: Evidence,
) -> tuple[_Decision, bool, tuple[Note, ...]]:
    """Report a violation of the literal rule in an undecided decision.

    Returns the decision, whether it meets the literal rule, and a note if the violation
    was accepted.
    """
    undecided_reasons = (Reason.CANNOT_TELL, Reason.FEW_STEPS_DECIDE)
    if decision.reason not in undecided_reasons:
        return decision, literal.meets, ()
    if literal.reason is None or literal.because is None:  # no violation
        return decision, literal.meets, ()
    entry = find_accepted(literal.reason, newest, evidence.accepted)
    if entry is not None:
        return decision, True, (make_accepted_note(entry, literal.because),)
    if literal.reason is not decision.reason:
        because = (literal.because, *decision.because)
        decision = replace(decision, reason=literal.reason, because=because)
    return decision, literal.meets, ()


def _decide_apart(decision: _Decision) -> _Decision:
    """Decide launched runs that differ too much to be averaged.

    Only a REGRESSION is kept; anything else becomes INCONCLUSIVE. If the newest run
    decided, relaunching until a run passes would be rewarded. The mean of the runs
    describes neither the fast runs nor the slow ones.
    """
    if decision.verdict is Verdict.REGRESSION:
        return decision
    return _Decision(
        Verdict.INCONCLUSIVE,
        Reason.REPEATS_DISAGREE,
        (CodedStatement(StatementCode.RUNS_APART),),
    )


def _confirm(
    decision: _Decision, runs: Sequence[Measurement], evidence: Evidence, *, apart: bool
) -> _Decision:
    """Require a REGRESSION in as many runs as the decision rule demands.

    Otherwise the decision becomes INCONCLUSIVE. A slow node makes one run slow, but not
    a second run on other nodes.
    """
    fewest = evidence.decision_rule.fewest
    if decision.verdict is not Verdict.REGRESSION or fewest == 1:
        return decision
    limit = math.log(evidence.tolerance.factor)
    differences = [average_difference([run], evidence.baseline) for run in runs]
    slow_count = sum(difference > limit for difference in differences)
    # The fewest runs confirm nothing if their results differ too much.
    too_few_apart = apart and len(runs) <= fewest
    if slow_count >= fewest and not too_few_apart:
        return decision
    because = CodedStatement(StatementCode.UNCONFIRMED_RUNS, runs=slow_count)
    if apart:
        because = CodedStatement(StatementCode.RUNS_APART)
    return _Decision(Verdict.INCONCLUSIVE, Reason.UNCONFIRMED, (because,))


def _apply_literal_rule_alone(
    run: Measurement, evidence: Evidence, noise: Noise
) -> agreement.LiteralRule:
    """Apply the literal rule to one run, with its own estimate."""
    estimate = estimate_difference([run], evidence, noise)
    return agreement.apply_literal_rule([run], evidence, estimate)


def _decide(
    estimate: Estimate, current: Sequence[Measurement], evidence: Evidence, shape: Shape
) -> _Decision:
    """Decide by the interval, unless another statistic or a warm-up contradicts it."""
    answered = _compare_interval(estimate)
    few_values = estimate.threshold_only and answered is Answer.WITHIN
    if few_values or answered is Answer.INCONCLUSIVE:
        undecided = _find_undecided(estimate, current, evidence, shape)
        if undecided is not None:
            return undecided
    doubt = agreement.find_doubt(answered, current, evidence)
    if doubt:
        return _Decision(
            Verdict.INCONCLUSIVE, Reason.FEW_STEPS_DECIDE, (doubt, *shape.statements)
        )
    if answered is Answer.BEYOND:
        return _Decision(
            Verdict.REGRESSION,
            Reason.SLOWER_THAN_BOUND,
            explanation.state_slowdown(shape, current[0]),
        )
    if shape.warming_up:
        return _Decision(Verdict.INCONCLUSIVE, Reason.WARMING_UP, (shape.warming_up,))
    implausible = _find_implausible(estimate, current, evidence)
    against_faster = compare_interval(estimate.low, estimate.high, -estimate.margin)
    is_faster = against_faster is Answer.WITHIN  # shown to be below the lower bound
    if implausible is None and is_faster:
        return _decide_faster(evidence)
    return implausible or _Decision(Verdict.PASS, Reason.WITHIN_TOLERANCE)


def _find_undecided(
    estimate: Estimate, current: Sequence[Measurement], evidence: Evidence, shape: Shape
) -> _Decision | None:
    """Decide runs with an inconclusive interval or too few values for an error.

    Returns INCONCLUSIVE, or an implausible IMPROVEMENT. None if the few values can
    decide: they are within the bound, not quantised, and not means of several steps.
    """
    # First reason: printed times with so few digits that the true time may be slower.
    because = agreement.find_quantised_time(current, evidence)
    within = _compare_interval(estimate) is Answer.WITHIN
    # Second reason: few values that are means of several steps.
    if because is None and within and current[0].mean_of:
        # The window of a resumed run may print one mean over all steps, although its
        # time is that of the last steps only.
        implausible = _find_implausible(estimate, current, evidence)
        if implausible is not None:
            return implausible
        because = explanation.state_few_means(current[0])
    # Third reason: an interval that contains the bound.
    if because is None:
        if within:
            return None
        because = explanation.state_runs_needed(estimate)
    pattern = () if shape.kind is ShapeKind.EVEN else shape.statements
    return _Decision(Verdict.INCONCLUSIVE, Reason.CANNOT_TELL, (because, *pattern))


def _find_implausible(
    estimate: Estimate, current: Sequence[Measurement], evidence: Evidence
) -> _Decision | None:
    """Decide runs that are faster than is plausible; None for other runs."""
    if evidence.plausible is None or estimate.high >= math.log1p(-evidence.plausible):
        return None
    because = explanation.state_implausible(estimate, current[0], evidence)
    return _Decision(Verdict.IMPROVEMENT, Reason.IMPLAUSIBLY_FAST, (because,))


def _decide_faster(evidence: Evidence) -> _Decision:
    """Decide runs that are shown to be faster than their baseline.

    A PASS if a changed level was accepted, an IMPROVEMENT otherwise.
    """
    if has_accepted_change(evidence):
        beyond = CodedStatement(StatementCode.BEYOND_ACCEPTED_LEVEL)
        return _Decision(Verdict.PASS, Reason.WITHIN_TOLERANCE, (beyond,))
    advice = explanation.advise_refresh(evidence.baseline)
    return _Decision(Verdict.IMPROVEMENT, Reason.FASTER_THAN_BASELINE, (advice,))


def _decide_over_days(
    evidence: Evidence, newest: Measurement, older: PreviousRuns, meets: bool
) -> _Decision | None:
    """Pool an INCONCLUSIVE run with the INCONCLUSIVE daily runs before it.

    Uses `POOLED_DAYS` consecutive runs, and only if the newest does not meet the
    literal rule (`meets`). Returns a REGRESSION or None: a PASS would let two good runs
    average away a recent change.
    """
    # without stored runs, and without the runs that --llmb-since excludes
    measured = [
        run
        for run in older
        if isinstance(run, Measurement) and run in evidence.measurements
    ]
    daily_runs = select_consecutive(measured, newest, POOLED_DAYS)
    if meets or not daily_runs:
        return None
    noise = estimate_noise(evidence, older)
    if disagree(daily_runs, noise):
        return None
    for run in daily_runs:
        estimate = estimate_difference([run], evidence, noise)
        if _compare_interval(estimate) is not Answer.INCONCLUSIVE:
            return None
    pooled_estimate = estimate_difference(daily_runs, evidence, noise)
    answered = _compare_interval(pooled_estimate)
    if answered is not Answer.BEYOND or any(
        agreement.find_doubt(answered, runs, evidence)
        for runs in ([newest], daily_runs)
    ):
        return None
    pooled = CodedStatement(
        StatementCode.POOLED_DAYS, days=POOLED_DAYS, estimate=pooled_estimate
    )
    return _Decision(Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND, (pooled,))


def _compare_interval(estimate: Estimate) -> Answer:
    """Compare the interval of an estimate with its margin."""
    return compare_interval(estimate.low, estimate.high, estimate.margin)


# --- records --------------------------------------------------------------------------


def _make_judgement(
    evidence: Evidence,
    verdict: Verdict,
    reason: Reason,
    statement: VerdictStatement | None,
    measurement: Measurement | None = None,
) -> Judgement:
    """Build a judgement, with the notes of its measurement."""
    expected = evidence.baseline.step_seconds
    bound = expected * evidence.tolerance.factor
    measured = measurement.statistic_seconds if measurement else None
    log_difference, meets_point = None, None
    if (
        measured is not None
        and math.isfinite(measured)
        and measured > 0
        and math.isfinite(expected)
    ):
        log_difference = math.log(measured / expected)
        meets_point = measured <= bound * (1 + EPSILON)
    return Judgement(
        verdict=verdict,
        reason=reason,
        statements=() if statement is None else (statement,),
        baseline=evidence.baseline,
        bound_seconds=bound,
        tolerance=evidence.tolerance,
        measurement=measurement,
        log_difference=log_difference,
        meets_point=meets_point,
        notes=tuple(explanation.list_notes(evidence, measurement)),
    )
