"""A/B on the same nodes: choose the next variant, and compare it with the reference.

Variant 0 is the reference; every other variant is compared with it. All comparisons
share the reference's runs and the noise. A round runs the reference and each undecided
variant. The significance levels are divided by the number of comparisons, which keeps
the overall rate of false slowdowns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    MARGIN,
    REFERENCE,
    UNANSWERED,
    NextTrial,
    PairedAnswer,
    PairedEstimate,
    PairedOutcome,
    Trial,
    TrialOutcome,
    TrialReport,
)
from pytest_llmbench.judge.difference import Fit, estimate_difference
from pytest_llmbench.launch.policies.run_history import Conclusion, NextRuns, RunHistory
from pytest_llmbench.launch.policies.trial_ledger import (
    FIRST_ANALYSIS,
    MOST_PAIRS,
    CountedRun,
    TrialPlan,
    choose_in_round,
    choose_warm_up,
    conclude_trials,
    conclude_without_hours,
    count_measured,
    find_failure,
    find_round_end,
    get_level,
    list_measured,
    plan_trial,
    read_ledger,
)
from pytest_llmbench.report.trial_wording import describe_answers


def next_runs(history: RunHistory, policy: TrialPlan) -> NextRuns | Conclusion:
    """Choose the variant to run next, or compare each variant with the reference.

    The conclusion is VARIANT_SLOWER if a variant is slower, and PURPOSE_MISSED if a
    variant has no answer.
    """
    if history.pending:
        return NextRuns()
    ledger = read_ledger(history, policy)
    if not history.may_start:
        return conclude_without_hours(ledger, history.spec.purpose)
    step = next_step(ledger.made, len(policy.names), policy.earlier, ledger.allocation)
    if isinstance(step, NextTrial):
        return plan_trial(ledger, step)
    outcomes = {answer.outcome for answer in step}
    failed = not outcomes.isdisjoint(UNANSWERED)
    reason = Reason.PURPOSE_DONE
    if failed:
        reason = Reason.PURPOSE_MISSED
    elif PairedOutcome.SLOWER in outcomes:
        reason = Reason.VARIANT_SLOWER
    text = describe_answers(step, policy.names, policy.earlier)
    report = TrialReport(policy.names, answers=step)
    return conclude_trials(ledger, text, reason, report, failed=failed)


def count_most_runs(variants: int, *, shared: bool) -> int:
    """Count the maximum number of runs of an A/B without failures, warm-ups included."""
    warm_ups = 1 if shared else 0
    return (MOST_PAIRS + warm_ups) * variants


def next_step(
    trials: Sequence[Trial],
    variant_count: int = 2,
    noise: Noise | None = None,
    allocation: int | None = None,
) -> NextTrial | tuple[PairedAnswer, ...]:
    """Choose the next run, or at the end return the answers for all but the reference.

    `variant_count` includes the reference. `noise` is the noise of earlier A/Bs. `allocation` is
    the number of the current allocation, in which the first run of each variant is a
    warm-up; None if each run is a separate job.

    An interim analysis follows 2, 3 and 4 pairs. A variant is SLOWER or FASTER if its
    interval excludes 0. After the last analysis it is ALIKE if the interval lies within
    the margin, else CANNOT_TELL. A variant is answered at once if it fails twice for a
    cause of its own, or is lost twice in a row. If the reference fails or is lost like
    this, all variants are answered at once.
    """
    answers: dict[int, PairedAnswer] = {}
    estimates: dict[int, PairedEstimate] = {}
    undecided = list(range(1, variant_count))
    for rounds in range(1, MOST_PAIRS + 1):
        for variant in undecided:
            if outcome := _find_end(trials, variant, rounds):
                answers[variant] = PairedAnswer(
                    variant,
                    outcome,
                    _count_pairs(trials, variant),
                    estimates.get(variant),
                )
        undecided = [variant for variant in undecided if variant not in answers]
        if not undecided:
            break
        running = [REFERENCE, *undecided]
        end = find_round_end(trials, running, rounds)
        if end is None:
            warm_up = choose_warm_up(trials, running, allocation)
            return warm_up or NextTrial(choose_in_round(trials, running, rounds))
        if rounds < FIRST_ANALYSIS:
            continue
        fits = _fit(list_measured(trials[:end]))
        level = get_level(rounds, noise, comparisons=variant_count - 1)
        for variant in undecided:
            estimates[variant] = estimate_difference(fits[variant], level, noise)
            if outcome := _answer(estimates[variant], is_last=rounds == MOST_PAIRS):
                answers[variant] = PairedAnswer(
                    variant, outcome, rounds, estimates[variant]
                )
        undecided = [variant for variant in undecided if variant not in answers]
    return tuple(answers[variant] for variant in sorted(answers))


def _find_end(
    trials: Sequence[Trial], variant: int, rounds: int
) -> PairedOutcome | None:
    """Return the outcome of a variant that gets no further pair, or None."""
    for either, outcome in (
        (REFERENCE, PairedOutcome.REFERENCE_DOES_NOT_RUN),
        (variant, PairedOutcome.DOES_NOT_RUN),
    ):
        if count_measured(trials, either) < rounds:
            failure = find_failure(trials, either)
            if failure:
                return PairedOutcome.LOST if failure is TrialOutcome.LOST else outcome
    return None


def _count_pairs(trials: Sequence[Trial], variant: int) -> int:
    return min(count_measured(trials, REFERENCE), count_measured(trials, variant))


def _answer(estimate: PairedEstimate, *, is_last: bool) -> PairedOutcome | None:
    """Return the outcome of an interim analysis, or None if another pair may decide."""
    if estimate.low > 0:
        return PairedOutcome.SLOWER
    if estimate.high < 0:
        return PairedOutcome.FASTER
    if not is_last:
        return None
    limit = math.log1p(MARGIN)
    is_within = -limit < estimate.low and estimate.high < limit
    return PairedOutcome.ALIKE if is_within else PairedOutcome.CANNOT_TELL


def _fit(measured: Sequence[CountedRun]) -> dict[int, Fit]:
    """Estimate the difference of each variant from the reference by least squares.

    The model has a constant, a linear trend over the runs and one effect per variant.
    With n runs of each of two variants the residuals have 2n - 3 degrees of freedom.
    """
    compared = sorted({run.variant for run in measured} - {REFERENCE})
    logarithms = np.array([run.logarithm for run in measured])
    variants = np.array([run.variant for run in measured])
    positions = np.array([run.position for run in measured], dtype=float)
    columns = [
        np.ones(len(measured)),
        positions - positions.mean(),
        *(variants == variant for variant in compared),
    ]
    design = np.stack(columns, axis=1)
    inverse = np.linalg.inv(design.T @ design)
    levels = inverse @ (design.T @ logarithms)
    # All runs of one variant may be rounded up, and all runs of another variant down.
    roundings = np.abs(inverse @ design.T) @ np.array(
        [run.rounding for run in measured]
    )
    residuals = logarithms - design @ levels
    sum_of_squares = float(residuals @ residuals)
    degrees_of_freedom = float(len(measured) - design.shape[1])
    counts = {
        variant: int(np.sum(variants == variant)) for variant in (REFERENCE, *compared)
    }
    return {
        variant: Fit(
            float(levels[column]),
            float(inverse[column, column]),
            sum_of_squares,
            degrees_of_freedom,
            (counts[REFERENCE], counts[variant]),
            rounding=float(roundings[column]),
        )
        # columns 0 and 1 are the constant and the trend
        for column, variant in enumerate(compared, 2)
    }
