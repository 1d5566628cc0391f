"""Whether the mean of a run, its trimmed mean and its printed digits allow an
answer."""

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
    EQUAL,
    Answer,
    bound_run_rounding,
    estimate_within,
)
from pytest_llmbench.judge.noise import REACHING

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

    Statistic = Callable[[Floats, Sequence[int]], float]

# how much more than those of the recorded runs the steps of a run differ that is
# noisier
NOISIER = 1.5

# tolerances: a statistic that the steps fix to no better than this passes nothing
WIDEST = 4

# what slow steps may add to a mean: more in a baseline excuses nothing, and more in a
# run is no hiccup
STALLS = 1.25


def find_doubt(
    own_answer: Answer, current: Sequence[Measurement], evidence: Evidence
) -> CodedStatement | None:
    """Return the other statistic if it does not share an answer, None if it does."""
    trimmed = evidence.baseline.window.statistic != "trimmed_mean"
    statistic = compute_trimmed_mean if trimmed else compute_mean
    expected = _expect_seconds(evidence.baseline, trimmed=trimmed)
    difference = _average_difference(current, statistic, expected)
    beyond = difference > math.log(evidence.tolerance.factor) + EQUAL
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
    """The answer of the literal rule, which decides what becomes of an INCONCLUSIVE
    run."""

    meets: bool
    reason: Reason | None = (
        None  # the reason that it is not met although the statistic is within the bound
    )
    because: CodedStatement | None = None


def apply_literal_rule(
    current: Sequence[Measurement], evidence: Evidence, estimate: Estimate
) -> LiteralRule:
    """Return the answer of the literal rule: measured <= bound.

    A statistic within the bound is not enough. The plain mean has to be within it too,
    after at most two transient stalls (5 % of the records if that is less) are set to
    the next slowest record: against the recorded runs' own plain mean, so that saves
    that were recorded are no stalls. And the steps have to fix the statistic at all:
    its interval by them alone is at most four tolerances wide. Assumed noise is no part
    of that interval.
    """
    if estimate.difference > estimate.margin + EQUAL or find_quantised_time(
        current, evidence
    ):
        return LiteralRule(meets=False)
    if mean := _find_slow_mean(current, evidence, estimate.margin):
        return LiteralRule(meets=False, reason=Reason.FEW_STEPS_DECIDE, because=mean)
    if interval := _find_wide_interval(current, estimate):
        return LiteralRule(
            meets=False, reason=Reason.INTERVAL_TOO_WIDE, because=interval
        )
    return LiteralRule(meets=True)


def _find_slow_mean(
    current: Sequence[Measurement], evidence: Evidence, margin: float
) -> CodedStatement | None:
    """Return the plain mean if it is beyond the bound, None if it is within it or
    decides the verdict itself."""
    if evidence.baseline.window.statistic == "mean":
        return None
    expected = _expect_seconds(evidence.baseline, trimmed=False)
    averaged = max(run.moving_mean for run in current)
    usual = _average_difference(
        current,
        lambda window, steps: _average_without_stall(window, steps, averaged),
        expected,
    )
    with_hiccups = _average_difference(current, compute_mean, expected)
    if usual <= margin + EQUAL and with_hiccups <= margin + math.log(STALLS):
        return None
    return CodedStatement(
        StatementCode.SLOW_MEAN,
        difference=with_hiccups,
        expected=expected,
        forgiven=0 if usual <= margin + EQUAL else MOST_STALLS,
    )


def _find_wide_interval(
    current: Sequence[Measurement], estimate: Estimate
) -> CodedStatement | None:
    """Return the interval if the steps do not fix their statistic, None if they do or
    are too few to show it."""
    # The interval of the verdict is at least as wide.
    if (
        estimate.threshold_only
        or estimate.high - estimate.low <= WIDEST * estimate.margin
    ):
        return None
    inside = [estimate_within(run) for run in current]
    count = len(inside)
    error = math.sqrt(sum(within.error**2 for within in inside)) / count
    # Correlated steps widen the error. They are no reason to know that error less well:
    # t would be that of two steps.
    freedom = max(sum(len(run.window_seconds) for run in current) - count, 1)
    half = compute_quantile(1 - estimate.level, freedom) * error
    below = min(half, sum(within.reach for within in inside) / count)
    above = min(half, sum(map(_reach_up, current)) / count)
    width = below + above
    if width <= WIDEST * estimate.margin + EQUAL or all(map(_varies_as_usual, current)):
        return None
    return CodedStatement(
        StatementCode.WIDE_INTERVAL, low=-below, high=above, tolerances=WIDEST
    )


def find_quantised_time(
    current: Sequence[Measurement], evidence: Evidence
) -> CodedStatement | None:
    """Return the time of a run that may be beyond the bound and print the same, as a
    rate of one or two digits does.

    None without such a run.
    """
    for run in current:
        slowest = _find_slowest(run, evidence)
        bound = evidence.baseline.step_seconds * evidence.tolerance.factor
        if slowest > bound * (1 + EQUAL):
            seconds = run.statistic_seconds or math.nan
            return CodedStatement(
                StatementCode.COARSE_TIME, seconds=seconds, slowest=slowest
            )
    return None


def _find_slowest(run: Measurement, evidence: Evidence) -> float:
    """Return the slowest statistic that is printed as that of a run, where one printed
    unit is more than the margin.

    Steps that differ by as much are rounded up as often as down.
    """
    seconds = run.statistic_seconds or math.nan
    half = bound_run_rounding(run)
    return (
        seconds * (1 + half) if 2 * half > evidence.tolerance.factor - 1 else math.nan
    )


def _varies_as_usual(run: Measurement) -> bool:
    """Return True if the steps of a run differ hardly more than those of the recorded
    runs did.

    How much those of a document differ is unknown: ten records or more may be as noisy
    as they are.
    """
    recording, window = run.baseline.recording, np.array(run.window_seconds)
    if recording is None:
        return len(window) >= REACHING
    recorded = recording.standard_deviation_seconds / recording.mean_seconds
    return (
        float(np.std(window, ddof=1)) / compute_mean(window, run.mean_of)
        <= NOISIER * recorded
    )


def _reach_up(run: Measurement) -> float:
    """Return the log difference of the slowest step that counts to the statistic: no
    mean of such steps lies above it.

    Infinite for few steps, all of which may be fast by chance.
    """
    window, statistic = np.array(run.window_seconds), run.statistic_seconds or math.nan
    if len(window) < REACHING:
        return math.inf
    slowest = window if run.baseline.window.statistic == "mean" else winsorise(window)
    return math.log(float(slowest.max()) / statistic)


def _average_difference(
    current: Sequence[Measurement], statistic: Statistic, expected: float
) -> float:
    windows = [(np.array(run.window_seconds), run.mean_of) for run in current]
    return sum(
        math.log(statistic(window, steps) / expected) for window, steps in windows
    ) / len(windows)


def _expect_seconds(baseline: Baseline, *, trimmed: bool) -> float:
    """Return the baseline's value of a statistic; a document prints only one."""
    recording = baseline.recording
    if recording is None:
        return baseline.step_seconds
    stalled = recording.trimmed_mean_seconds * STALLS
    return (
        recording.trimmed_mean_seconds
        if trimmed
        else min(recording.mean_seconds, stalled)
    )


def _average_without_stall(
    window: Floats, mean_of: Sequence[int], averaged: int
) -> float:
    """Return the mean with the few slowest records set to the next slowest.

    In moving means of `averaged` steps a stall shows in as many records. Of few records
    that are means themselves, one in twenty at most is set so.
    """
    order = np.argsort(window)[::-1]
    share = HICCUP * len(window)
    few = min(
        MOST_STALLS,
        int(share) if any(steps > 1 for steps in mean_of) else math.ceil(share),
    )
    slow = min(few + averaged - 1, len(window) - 1)
    return compute_mean(np.minimum(window, window[order[slow]]), mean_of)
