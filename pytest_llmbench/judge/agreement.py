"""Check whether mean, trimmed mean and printed digits support a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import Estimate, Evidence
from pytest_llmbench.core.robust import (
    HICCUP,
    MOST_STALLS,
    compute_mean,
    compute_trimmed_mean,
    winsorise,
)
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.distributions import compute_quantile
from pytest_llmbench.judge.estimate import (
    EPSILON,
    Answer,
    bound_run_rounding,
    estimate_window_error,
)
from pytest_llmbench.judge.noise import MIN_STEPS_FOR_REACH

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

    Statistic = Callable[[Floats, Sequence[int]], float]

# Largest factor by which the steps of a run may vary more than the recorded ones.
MAX_VARIATION_RATIO = 1.5

# widest within-run interval that meets the literal rule, in tolerances
MAX_INTERVAL = 4

# Largest factor by which slow steps may raise a mean. A larger ratio in a baseline
# excuses nothing, and a larger ratio in a run is not a transient stall.
STALLS = 1.25


def find_doubt(
    own_answer: Answer, current: Sequence[Measurement], evidence: Evidence
) -> CodedStatement | None:
    """Return the other statistic if it contradicts the baseline's statistic, or None.

    The other statistic is the trimmed mean if the baseline uses the mean, and vice
    versa. `own_answer` is the result for the baseline's statistic. The two contradict
    each other if only one of them exceeds the tolerance.
    """
    trimmed = evidence.baseline.window.statistic != "trimmed_mean"
    statistic = compute_trimmed_mean if trimmed else compute_mean
    expected = _expect_seconds(evidence.baseline, trimmed=trimmed)
    difference = _average_difference(current, statistic, expected)
    beyond = difference > math.log(evidence.tolerance.factor) + EPSILON
    if beyond is (own_answer is Answer.BEYOND):
        return None
    return CodedStatement(
        StatementCode.OTHER_STATISTIC,
        trimmed=trimmed,
        beyond=beyond,
        difference=difference,
        expected=expected,
    )


class LiteralRule(NamedTuple):
    """Result of the literal rule, which decides the status of an INCONCLUSIVE run."""

    meets: bool
    # set if the rule is not met although the statistic is within the bound
    reason: Reason | None = None
    because: CodedStatement | None = None


def apply_literal_rule(
    current: Sequence[Measurement], evidence: Evidence, estimate: Estimate
) -> LiteralRule:
    """Apply the literal rule: measured <= bound.

    Two more conditions apply. The plain mean must also be within the bound, after at
    most two transient stalls (5 % of the records if fewer) are replaced by the next
    slowest record. It is compared with the plain mean of the recorded runs, so that
    recorded checkpoint saves are not stalls. And the steps must determine the
    statistic: the interval from the within-run error alone is at most four tolerances
    wide. Assumed noise does not widen this interval.
    """
    exceeds_bound = estimate.difference > estimate.margin + EPSILON
    if exceeds_bound or find_quantised_time(current, evidence):
        return LiteralRule(meets=False)
    slow_mean = _find_slow_mean(current, evidence, estimate.margin)
    if slow_mean:
        reason = Reason.FEW_STEPS_DECIDE
        return LiteralRule(meets=False, reason=reason, because=slow_mean)
    wide_interval = _find_wide_interval(current, estimate)
    if wide_interval:
        reason = Reason.INTERVAL_TOO_WIDE
        return LiteralRule(meets=False, reason=reason, because=wide_interval)
    return LiteralRule(meets=True)


def _find_slow_mean(
    current: Sequence[Measurement], evidence: Evidence, margin: float
) -> CodedStatement | None:
    """Return the plain mean if it exceeds the bound.

    None if it is within the bound, or if the baseline uses the mean itself.
    """
    if evidence.baseline.window.statistic == "mean":
        return None
    expected = _expect_seconds(evidence.baseline, trimmed=False)
    moving_mean = max(run.moving_mean for run in current)
    without_stalls = _average_difference(
        current,
        lambda window, mean_of: _average_without_stall(window, mean_of, moving_mean),
        expected,
    )
    with_stalls = _average_difference(current, compute_mean, expected)
    is_within_bound = without_stalls <= margin + EPSILON
    are_stalls_transient = with_stalls <= margin + math.log(STALLS)
    if is_within_bound and are_stalls_transient:
        return None
    return CodedStatement(
        StatementCode.SLOW_MEAN,
        difference=with_stalls,
        expected=expected,
        forgiven=0 if is_within_bound else MOST_STALLS,
    )


def _find_wide_interval(
    current: Sequence[Measurement], estimate: Estimate
) -> CodedStatement | None:
    """Return the within-run interval if it is too wide.

    None if the steps determine their statistic, vary as usual (`_varies_as_usual`), or
    are too few to estimate an error.
    """
    largest_width = MAX_INTERVAL * estimate.margin
    # The interval of the verdict is at least as wide as the within-run interval.
    if estimate.threshold_only or estimate.high - estimate.low <= largest_width:
        return None
    within_runs = [estimate_window_error(run) for run in current]
    count = len(within_runs)
    error = math.sqrt(sum(within.error**2 for within in within_runs)) / count
    # Correlated steps widen the error, but do not make that error less certain: with
    # the effective sample size, t would be that of two steps.
    freedom = max(sum(len(run.window_seconds) for run in current) - count, 1)
    half_width = compute_quantile(1 - estimate.level, freedom) * error
    below = min(half_width, sum(within.reach for within in within_runs) / count)
    above = min(half_width, sum(map(_compute_reach_up, current)) / count)
    if below + above <= largest_width + EPSILON:
        return None
    if all(map(_varies_as_usual, current)):
        return None
    return CodedStatement(
        StatementCode.WIDE_INTERVAL, low=-below, high=above, tolerances=MAX_INTERVAL
    )


def find_quantised_time(
    current: Sequence[Measurement], evidence: Evidence
) -> CodedStatement | None:
    """Report a run whose true time may exceed the bound despite its printed time.

    Only rates that are printed with one or two digits allow this. None if there is no
    such run.
    """
    for run in current:
        slowest = _compute_slowest_true_time(run, evidence)
        bound = evidence.baseline.step_seconds * evidence.tolerance.factor
        if slowest > bound * (1 + EPSILON):
            seconds = run.statistic_seconds or math.nan
            return CodedStatement(
                StatementCode.COARSE_TIME, seconds=seconds, slowest=slowest
            )
    return None


def _compute_slowest_true_time(run: Measurement, evidence: Evidence) -> float:
    """Return the slowest true statistic that would be printed as the same value.

    NaN if one printed unit is within the margin, or if the steps differ by a unit,
    because they are then rounded up as often as down.
    """
    seconds = run.statistic_seconds or math.nan
    rounding = bound_run_rounding(run)  # half a unit
    if not 2 * rounding > evidence.tolerance.factor - 1:
        return math.nan
    return seconds * (1 + rounding)


def _varies_as_usual(run: Measurement) -> bool:
    """True if the steps vary hardly more than the steps of the recorded runs.

    The variation in a document's runs is unknown. There, any variation of ten or more
    records is accepted.
    """
    recording, window = run.baseline.recording, np.array(run.window_seconds)
    if recording is None:
        return len(window) >= MIN_STEPS_FOR_REACH
    recorded_variation = recording.standard_deviation_seconds / recording.mean_seconds
    variation = float(np.std(window, ddof=1)) / compute_mean(window, run.mean_of)
    return variation <= MAX_VARIATION_RATIO * recorded_variation


def _compute_reach_up(run: Measurement) -> float:
    """Return the log distance from the statistic up to the slowest step.

    No mean of such steps exceeds it. Infinite for few steps, which may all be fast by
    chance.
    """
    window, statistic = np.array(run.window_seconds), run.statistic_seconds or math.nan
    if len(window) < MIN_STEPS_FOR_REACH:
        return math.inf
    if run.baseline.window.statistic != "mean":
        window = winsorise(window)
    return math.log(float(window.max()) / statistic)


def _average_difference(
    current: Sequence[Measurement], statistic: Statistic, expected: float
) -> float:
    """Return the mean log difference of a statistic of the runs to `expected`."""
    differences = []
    for run in current:
        measured = statistic(np.array(run.window_seconds), run.mean_of)
        differences.append(math.log(measured / expected))
    return sum(differences) / len(differences)


def _expect_seconds(baseline: Baseline, *, trimmed: bool) -> float:
    """Return the baseline's value of a statistic.

    A document has one value for both. A recorded mean is capped at `STALLS` times the
    recorded trimmed mean.
    """
    recording = baseline.recording
    if recording is None:
        return baseline.step_seconds
    if trimmed:
        return recording.trimmed_mean_seconds
    return min(recording.mean_seconds, recording.trimmed_mean_seconds * STALLS)


def _average_without_stall(
    window: Floats, mean_of: Sequence[int], moving_mean: int
) -> float:
    """Return the mean with its few slowest records replaced by the next slowest.

    In moving means over `moving_mean` steps, a stall appears in as many records. If the
    records are means themselves, at most one in twenty is replaced.
    """
    share = HICCUP * len(window)
    has_means = any(steps > 1 for steps in mean_of)
    stalls = min(MOST_STALLS, int(share) if has_means else math.ceil(share))
    replaced_count = min(stalls + moving_mean - 1, len(window) - 1)
    slowest_first = np.sort(window)[::-1]
    next_slowest = slowest_first[replaced_count]
    return compute_mean(np.minimum(window, next_slowest), mean_of)
