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
    step = next_step(
        ledger.ordered_trials,
        variant_count=len(policy.names),
        noise=policy.earlier,
        allocation=ledger.allocation,
    )
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

    `variant_count` includes the reference. `noise` is the noise of earlier A/Bs.
    `allocation` is the number of the current allocation, in which the first run of each
    variant is a warm-up; None if each run is a separate job.

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
        # 1. Answer the variants that get no further run.
        for variant in undecided:
            if outcome := _find_failed_outcome(trials, variant, rounds):
                pairs = _count_pairs(trials, variant)
                answers[variant] = PairedAnswer(
                    variant, outcome, pairs, estimates.get(variant)
                )
        undecided = [variant for variant in undecided if variant not in answers]
        if not undecided:
            break
        # 2. Complete the round: one run of the reference and of each undecided variant.
        in_round = [REFERENCE, *undecided]
        trial_count = find_round_end(trials, in_round, rounds)
        if trial_count is None:  # the round is unfinished
            warm_up = choose_warm_up(trials, in_round, allocation)
            return warm_up or NextTrial(choose_in_round(trials, in_round, rounds))
        if rounds < FIRST_ANALYSIS:
            continue
        # 3. Interim analysis, without the runs of later rounds: they follow from its
        # result, and a resumed session must repeat it exactly.
        fits = _fit_differences(list_measured(trials[:trial_count]))
        level = get_level(rounds, noise, comparisons=variant_count - 1)
        for variant in undecided:
            estimates[variant] = estimate_difference(fits[variant], level, noise)
            if outcome := _decide_outcome(
                estimates[variant], is_last=rounds == MOST_PAIRS
            ):
                answers[variant] = PairedAnswer(
                    variant, outcome, rounds, estimates[variant]
                )
        undecided = [variant for variant in undecided if variant not in answers]
    return tuple(answers[variant] for variant in sorted(answers))


def _find_failed_outcome(
    trials: Sequence[Trial], variant: int, rounds: int
) -> PairedOutcome | None:
    """Return the outcome of a variant that gets no further pair, or None.

    The reference or the variant failed before it had `rounds` runs.
    """
    for side, outcome in (
        (REFERENCE, PairedOutcome.REFERENCE_DOES_NOT_RUN),
        (variant, PairedOutcome.DOES_NOT_RUN),
    ):
        if count_measured(trials, side) >= rounds:
            continue
        failure = find_failure(trials, side)
        if failure is TrialOutcome.LOST:
            return PairedOutcome.LOST
        if failure:
            return outcome
    return None


def _count_pairs(trials: Sequence[Trial], variant: int) -> int:
    """Count the pairs of a run of the reference and a run of the variant."""
    return min(count_measured(trials, REFERENCE), count_measured(trials, variant))


def _decide_outcome(estimate: PairedEstimate, *, is_last: bool) -> PairedOutcome | None:
    """Return the outcome of an interim analysis, or None if another pair may decide."""
    if estimate.low > 0:
        return PairedOutcome.SLOWER
    if estimate.high < 0:
        return PairedOutcome.FASTER
    if not is_last:
        return None
    margin = math.log1p(MARGIN)  # estimates are differences of logarithms
    is_within_margin = -margin < estimate.low and estimate.high < margin
    return PairedOutcome.ALIKE if is_within_margin else PairedOutcome.CANNOT_TELL


def _fit_differences(measured: Sequence[CountedRun]) -> dict[int, Fit]:
    """Estimate the difference of each variant from the reference by least squares.

    The model has a constant, a linear trend over the runs and one effect per variant.
    With n runs of each of two variants the residuals have 2n - 3 degrees of freedom.
    """
    compared = sorted({run.variant for run in measured} - {REFERENCE})
    logarithms = np.array([run.logarithm for run in measured])
    variants = np.array([run.variant for run in measured])
    positions = np.array([run.position for run in measured], dtype=float)
    constant = np.ones(len(measured))
    trend = positions - positions.mean()
    effects = [variants == variant for variant in compared]
    design = np.stack([constant, trend, *effects], axis=1)
    first_effect = 2  # the column of the first effect
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ (design.T @ logarithms)
    # All runs of one variant may be rounded up, and all runs of another variant down.
    roundings_of_runs = np.array([run.rounding for run in measured])
    roundings = np.abs(inverse @ design.T) @ roundings_of_runs
    residuals = logarithms - design @ coefficients
    sum_of_squares = float(residuals @ residuals)
    degrees_of_freedom = float(len(measured) - design.shape[1])
    counts = {
        variant: int(np.sum(variants == variant)) for variant in (REFERENCE, *compared)
    }
    return {
        variant: Fit(
            difference=float(coefficients[column]),
            factor=float(inverse[column, column]),
            squares=sum_of_squares,
            freedom=degrees_of_freedom,
            runs=(counts[REFERENCE], counts[variant]),
            rounding=float(roundings[column]),
        )
        for column, variant in enumerate(compared, start=first_effect)
    }
