"""Estimate how much slower than its baseline a configuration is.

The estimate is a log difference with its standard error and interval; the margin test
compares the interval with the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.judgement_records import (
    DecisionRule,
    Estimate,
    Evidence,
    Noise,
)
from pytest_llmbench.core.robust import winsorise
from pytest_llmbench.core.run_records import Measurement, StoredRun
from pytest_llmbench.judge import noise
from pytest_llmbench.judge.distributions import compute_quantile, compute_t_upper_tail
from pytest_llmbench.judge.noise import WithinRun, estimate_within_run

if TYPE_CHECKING:
    from pytest_llmbench.core.judgement_records import PreviousRun, PreviousRuns
    from pytest_llmbench.core.log_records import Floats

# attrgetter is faster than a lambda: a year of daily runs of 82 configurations is
# 30,000 runs.
_GET_STATISTIC: Callable[[PreviousRun], float | None] = attrgetter("statistic_seconds")

FEWEST_STEPS = 3  # a shorter window does not determine its spread
# repeats differ by at most this many standard deviations of a single run
MAX_SPREAD = 3 * math.sqrt(2)


def estimate_difference(
    runs: Sequence[Measurement], evidence: Evidence, run_noise: Noise
) -> Estimate:
    """Estimate the log difference of repeated, valid runs to the baseline.

    The difference is the mean of log(statistic / baseline). Its variance is the
    variance of the mean of the runs plus the variance of the baseline.
    """
    baseline = evidence.baseline
    difference = average_difference(runs, baseline)
    margin = math.log(evidence.tolerance.factor)
    within_runs = [estimate_window_error(run) for run in runs]
    threshold_only = (
        not run_noise.measured
        and len(runs) == 1
        and len(runs[0].window_seconds) < FEWEST_STEPS
    )
    per_run = combine_sigma(run_noise, within_runs)
    rounding = compute_rounding_error(baseline)
    error = DifferenceError(0.0, 0.0, 0.0, 0.0)
    if not threshold_only:
        baseline_variance = rounding**2 + per_run**2 / count_recorded_groups(baseline)
        error = compute_error(
            run_noise, within_runs, baseline_variance, evidence.decision_rule
        )
    estimate = Estimate(
        difference=difference,
        standard_error=error.standard_error,
        degrees_of_freedom=error.degrees_of_freedom,
        low=difference - error.low_width,
        high=difference + error.half_width,
        margin=margin,
        level=evidence.decision_rule.passing,
        regression_level=evidence.decision_rule.regression,
        runs=len(runs),
        noise=run_noise,
        within_run_error=_compute_root_mean_square(
            [within.error for within in within_runs]
        ),
        effective_sample_size=sum(
            within.effective_sample_size for within in within_runs
        ),
        rounding=rounding,
        detectable=math.expm1(margin),
        repeats_needed=None,
        p_slower=None,
        threshold_only=threshold_only,
    )
    if threshold_only:
        return estimate
    detectable = compute_detectable(error, margin)
    t_statistic = difference / error.standard_error
    return replace(
        estimate,
        detectable=formatting.compute_bounded_exp(detectable) - 1,
        repeats_needed=count_repeats_needed(per_run, difference - margin),
        p_slower=compute_t_upper_tail(t_statistic, error.degrees_of_freedom),
    )


def average_difference(runs: Sequence[Measurement], baseline: Baseline) -> float:
    """Return the mean log difference of valid runs to the baseline.

    Positive if the runs are slower.
    """
    differences = [math.log(_get_seconds(run) / baseline.step_seconds) for run in runs]
    return sum(differences) / len(differences)


def estimate_noise(
    evidence: Evidence, previous: PreviousRuns, current: Sequence[Measurement] = ()
) -> Noise:
    """Estimate the run-to-run noise of a configuration.

    Pools the daily runs, the repeats and the prior of all configurations. Falls back to
    the assumed noise if nothing was measured; then few days, or the recorded runs, can
    only raise the estimate.
    """
    repeat_seconds = [_get_seconds(run) for run in current]
    estimates = [
        *list_noise_sources(evidence.baseline, previous),
        noise.estimate_from_repeats(repeat_seconds, "repeats"),
    ]
    pooled = noise.with_prior(
        noise.pool(estimates), evidence.prior, evidence.assumed_cv
    )
    # Few days show only that the assumed noise is too small.
    if not pooled.measured and len(previous) < noise.FEWEST_DAYS:
        few_days = noise.estimate_from_few_days(_list_logarithms(previous))
        if few_days is not None and noise.is_noisier(few_days, pooled):
            return few_days
    # Runs of one day differ less than runs of different days, so recorded runs may only
    # raise the estimate.
    recorded = _estimate_recorded_noise(evidence.baseline)
    if pooled.measured or recorded is None or recorded.sigma <= pooled.sigma:
        return pooled
    return noise.pool([recorded, pooled]) or pooled


def list_noise_sources(
    baseline: Baseline, previous: PreviousRuns
) -> list[Noise | None]:
    """Estimate the noise from a configuration's daily runs and its recorded runs.

    An entry is None if it has too few runs. Recorded runs count only if they come from
    several days or node sets, with (groups - 1) degrees of freedom: runs that share a
    day and nodes do not show how days and nodes differ.
    """
    groups = count_recorded_groups(baseline)
    recorded = _estimate_recorded_noise(baseline) if 1 < groups < math.inf else None
    if recorded is not None:
        recorded = replace(recorded, degrees_of_freedom=groups - 1.0)
    return [estimate_daily_noise(previous), recorded]


def estimate_daily_noise(previous: PreviousRuns) -> Noise | None:
    """Estimate the run-to-run noise from earlier daily runs.

    None if there are too few.
    """
    # faster than a generator expression
    stored_count = list(map(type, previous)).count(StoredRun)
    unit = "days" if not stored_count else "days of history"
    if 0 < stored_count < len(previous):
        unit = f"days, {stored_count} of them from the history"
    return noise.estimate_from_daily_runs(_list_logarithms(previous), unit)


def _list_logarithms(previous: PreviousRuns) -> Floats:
    """Return the log step times of daily runs, shape (n,); NaN if unknown."""
    seconds = np.array(list(map(_GET_STATISTIC, previous)), dtype=float)
    logarithms: Floats = np.log(seconds)
    return logarithms


def count_recorded_groups(baseline: Baseline) -> float:
    """Return the number of independent groups in a recorded baseline.

    A group is a day or a node set. If the file states no groups, all runs count as one
    group, since they may share a day. A published value is exact: infinity.
    """
    recording = baseline.recording
    if recording is None:
        return math.inf
    return min(recording.groups or 1, recording.runs)


def _estimate_recorded_noise(baseline: Baseline) -> Noise | None:
    """Estimate the noise from the recorded runs; None for fewer than two."""
    seconds = baseline.recording.run_seconds if baseline.recording else ()
    return noise.estimate_from_repeats(seconds, "recorded runs")


def disagree(runs: Sequence[Measurement], run_noise: Noise) -> bool:
    """True if the runs differ too much to be repeats of each other.

    The limit is 3 sigma sqrt(2).
    """
    logarithms = [math.log(_get_seconds(run)) for run in runs]
    limit = MAX_SPREAD * estimate_sigma(runs, run_noise)
    return max(logarithms) - min(logarithms) > limit


def estimate_sigma(runs: Sequence[Measurement], run_noise: Noise) -> float:
    """Return the standard deviation of one run's log step time."""
    return combine_sigma(run_noise, [estimate_window_error(run) for run in runs])


def combine_sigma(run_noise: Noise, within_runs: Sequence[WithinRun]) -> float:
    """Combine the run-to-run noise with the errors within the runs.

    Returns the standard deviation of one run's log step time. Measured noise already
    contains the within-run error, which is then only a floor. Assumed noise does not,
    so the variances are added.
    """
    floor = _compute_root_mean_square([within.error for within in within_runs])
    if run_noise.measured:
        return max(run_noise.sigma, floor)
    return math.hypot(run_noise.sigma, floor)


def compute_rounding_error(baseline: Baseline) -> float:
    """Return the relative standard error of a printed baseline value.

    Half a unit in its last place, uniformly distributed.
    """
    return baseline.resolution_seconds / 2 / baseline.step_seconds / math.sqrt(3)


def estimate_window_error(run: Measurement) -> WithinRun:
    """Estimate the within-run error of a measured run.

    Adds the rounding of its printed times. The error of a window of fewer than 3 steps
    is unknown and is 0.
    """
    if len(run.window_seconds) < FEWEST_STEPS:
        return WithinRun(0.0, float(len(run.window_seconds)))
    within = estimate_within_run(
        np.array(run.window_seconds),
        statistic=run.baseline.window.statistic,
        moving_mean=run.moving_mean,
        mean_of=run.mean_of,
    )
    # All steps may be rounded in the same direction, so averaging does not reduce the
    # rounding error.
    half_unit = run.resolution_seconds / 2 / _get_seconds(run)
    return replace(
        within,
        error=math.hypot(within.error, half_unit / math.sqrt(3)),
        reach=within.reach + half_unit,
    )


def bound_rounding(seconds: Floats, unit: float, statistic_seconds: float) -> float:
    """Bound the relative shift of a statistic by rounding.

    `seconds` are step times, shape (n,). Half a printed unit: steps of equal duration
    are all rounded in the same direction, so averaging does not reduce the shift. 0 if
    the standard deviation of the steps is half a unit or more, because they are then
    rounded up as often as down.
    """
    spread = float(np.std(winsorise(seconds))) if len(seconds) else 0.0
    return 0.0 if spread >= unit / 2 else unit / 2 / statistic_seconds


def bound_run_rounding(run: Measurement) -> float:
    """Bound the relative shift of a run's statistic by rounding."""
    return bound_rounding(
        np.array(run.window_seconds), run.resolution_seconds, _get_seconds(run)
    )


def split_within_error(run: Measurement) -> tuple[float, float]:
    """Split the within-run error into (standard error, rounding bound).

    Averaging more runs reduces only the standard error.
    """
    rounding = bound_run_rounding(run)
    if rounding:  # do not count the rounding twice
        run = replace(run, resolution_seconds=0.0)
    return estimate_window_error(run).error, rounding


def _get_seconds(run: PreviousRun) -> float:
    """Return the step time of a run, NaN if unknown."""
    return run.statistic_seconds or math.nan


def _compute_root_mean_square(values: Sequence[float]) -> float:
    """Return the square root of the mean of the squares."""
    return math.sqrt(sum(value**2 for value in values) / len(values))


# --- the margin test ------------------------------------------------------------------


POWER = 0.8  # the probability with which a detectable slowdown is detected

Z_LEVEL = 1.645  # the normal quantile of 95 %
Z_POWER = 0.8416  # the normal quantile of POWER

# Log differences below this are floating-point error: the step times are equal.
EPSILON = 1e-9


class Answer(Enum):
    """Position of an interval: below the margin, above it, or across it."""

    WITHIN = "within"
    BEYOND = "beyond"
    INCONCLUSIVE = "cannot tell"


class DifferenceError(Struct, frozen=True):
    """Error of a log difference, with the widths of its interval."""

    standard_error: float
    degrees_of_freedom: float
    half_width: float  # upper half of the interval, at the level of a PASS
    # lower half, at the level of a REGRESSION: no wider than the distance to the
    # fastest step
    low_width: float


def compute_error(
    noise: Noise,
    runs: Sequence[WithinRun],
    baseline_variance: float,
    rule: DecisionRule,
) -> DifferenceError:
    """Compute the error of the mean log difference of k runs.

    `baseline_variance` is added to the variance of the mean. Measured noise contains
    the within-run error; assumed noise does not, so the two are added. The widest of
    the candidate intervals is used: the spread within the runs is a floor.
    """
    run_to_run, upper = _compute_run_to_run_and_widest_error(
        noise, runs, baseline_variance, rule.passing
    )
    lower = upper
    if rule.regression != rule.passing:
        run_to_run, lower = _compute_run_to_run_and_widest_error(
            noise, runs, baseline_variance, rule.regression
        )
    # The lower half need not reach further than to the fastest steps.
    mean_reach = sum(run.reach for run in runs) / len(runs)
    reach = math.hypot(run_to_run.half_width, mean_reach)
    return replace(upper, low_width=min(lower.half_width, reach))


def _compute_run_to_run_and_widest_error(
    noise: Noise, runs: Sequence[WithinRun], baseline_variance: float, level: float
) -> tuple[DifferenceError, DifferenceError]:
    """Return the run-to-run error, and the candidate with the widest interval.

    `level` is the one-sided level of the intervals.
    """
    count = len(runs)
    within_variance = sum(run.error**2 for run in runs) / count**2
    freedom = max(sum(run.effective_sample_size for run in runs) - count, 1.0)
    run_to_run = _make_error(
        noise.sigma**2 / count + baseline_variance, noise.degrees_of_freedom, level
    )
    within = _make_error(within_variance + baseline_variance, freedom, level)
    candidates = [run_to_run, within]
    if not noise.measured:
        combined_variance = run_to_run.standard_error**2 + within_variance
        candidates.append(
            _make_error(combined_variance, noise.degrees_of_freedom, level)
        )
    return run_to_run, max(candidates, key=lambda error: error.half_width)


def _make_error(variance: float, freedom: float, level: float) -> DifferenceError:
    """Make the error of a difference with a symmetric interval at `level`."""
    standard_error = math.sqrt(variance)
    half_width = compute_quantile(1 - level, freedom) * standard_error
    return DifferenceError(standard_error, freedom, half_width, half_width)


def compare_interval(low: float, high: float, margin: float) -> Answer:
    """Compare the interval [low, high] with the margin.

    All arguments are logarithms; positive is slower. WITHIN: shown to be at most the
    margin. BEYOND: shown to exceed it. Otherwise, and for NaN, the comparison is
    inconclusive.
    """
    if high < margin or (low == high <= margin + EPSILON):
        return Answer.WITHIN
    if low > margin:
        return Answer.BEYOND
    return Answer.INCONCLUSIVE


def compute_detectable(error: DifferenceError, margin: float) -> float:
    """Return the smallest slowdown detected with a probability of 80 %.

    As a log difference to the baseline.
    """
    power_width = (
        compute_quantile(POWER, error.degrees_of_freedom) * error.standard_error
    )
    return margin + error.low_width + power_width


def count_repeats_needed(sigma: float, distance: float) -> int | None:
    """Return the number of runs needed to decide a difference.

    `distance` is the log difference to the margin. None at the margin itself, and if
    `distance` is NaN or `sigma` is not finite.
    """
    if not (abs(distance) >= EPSILON and math.isfinite(sigma)):
        return None
    runs = ((Z_LEVEL + Z_POWER) * sigma / abs(distance)) ** 2
    return max(math.ceil(runs), 1)


# --- prior of the fleet ---------------------------------------------------------------


def estimate_prior(
    configurations: Iterable[tuple[Baseline, PreviousRuns]], assumed_cv: float
) -> Noise:
    """Estimate the noise prior of a fleet from its earlier daily runs.

    Falls back to the assumed noise (`assumed_cv`, the run-to-run coefficient of
    variation) if too few configurations have enough runs. The judged runs are not used,
    so that a regression does not widen its own interval.
    """
    measured = [
        estimate
        for baseline, previous in configurations
        if (estimate := noise.pool(list_noise_sources(baseline, previous)))
    ]
    return noise.estimate_from_fleet(measured) or noise.assume_noise(assumed_cv)
