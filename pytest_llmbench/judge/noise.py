"""Estimate the noise of step times: between runs, within a run, between days."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.robust import (
    TRIMMED,
    compute_mean,
    compute_median,
    compute_median_deviation,
    winsorise,
)
from pytest_llmbench.judge.distributions import compute_f_upper_tail, compute_polygamma

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

FEWEST_DAYS = 8  # a shorter history does not determine its spread
# the fewest configurations whose noise estimates can form a prior
MIN_CONFIGURATIONS = 5

# Degrees of freedom of a median absolute deviation per difference: its efficiency
# relative to the standard deviation of normal values
DEVIATION_EFFICIENCY = 0.4

# Degrees of freedom of the shortest history. Two or three repeats alone have fewer, and
# the quantile of t would be uselessly large.
SUFFICIENT_FREEDOM = DEVIATION_EFFICIENCY * (FEWEST_DAYS - 1)

# No cluster repeats itself to better than 0.01 %: equal times are rounded or
# duplicated.
MIN_SIGMA = 1e-4

ASSUMED_FREEDOM = 4.0  # degrees of freedom of assumed noise

# significance levels of F tests: noisier than assumed, and noisier than the fleet
NOISIER_THAN_ASSUMED = 0.05
NOISIER_THAN_FLEET = 0.01

EXACT_FREEDOM = 1e6  # degrees of freedom of an exact value


def assume_noise(cv: float) -> Noise:
    """Return the assumed noise, for configurations without measurements.

    The coefficient of variation `cv` has 4 degrees of freedom.
    """
    return Noise(cv, ASSUMED_FREEDOM, "assumed, nothing was measured", measured=False)


def estimate_from_daily_runs(
    logarithms: Sequence[float] | Floats, unit: str = "days"
) -> Noise | None:
    """Estimate the noise of daily runs, given as log seconds in order.

    None for fewer than 8 runs. `unit` names the runs in the source of the estimate.

    The estimator is the scaled median absolute deviation of successive differences,
    divided by sqrt(2). Level shifts and single outlying days hardly move it. It has 0.4
    (H - 1) degrees of freedom for H runs, its efficiency at the normal distribution.
    """
    if len(logarithms) < FEWEST_DAYS:
        return None
    sigma = compute_median_deviation(np.diff(logarithms)) / math.sqrt(2)
    freedom = DEVIATION_EFFICIENCY * (len(logarithms) - 1)
    return _make_noise(sigma, freedom, f"{len(logarithms)} {unit}")


def estimate_from_few_days(logarithms: Sequence[float] | Floats) -> Noise | None:
    """Estimate the noise of 2 to 7 daily runs, given as log seconds in order.

    None for fewer or more runs.

    The estimator is the root mean square of successive differences, divided by sqrt(2)
    (von Neumann et al., Annals of Mathematical Statistics 12(2), 1941). A level shift
    affects one difference only. It has 2 (H - 1)^2 / (3 H - 4) degrees of freedom for H
    runs.
    """
    count = len(logarithms)
    if not 2 <= count < FEWEST_DAYS:
        return None
    differences = np.diff(np.array(logarithms, dtype=float))
    sigma = math.sqrt(float(np.mean(differences**2)) / 2)
    freedom = 2 * (count - 1) ** 2 / (3 * count - 4)
    return _make_noise(sigma, freedom, f"{count} nights, noisier than assumed")


def is_noisier(measured: Noise, assumed: Noise) -> bool:
    """True if an estimate exceeds an assumption significantly (F test, 5 %)."""
    ratio = (measured.sigma / assumed.sigma) ** 2
    if not ratio > 1:
        return False
    probability = compute_f_upper_tail(
        ratio, measured.degrees_of_freedom, EXACT_FREEDOM
    )
    return probability < NOISIER_THAN_ASSUMED


def estimate_from_repeats(seconds: Sequence[float], unit: str) -> Noise | None:
    """Estimate the noise of repeats, given in seconds.

    None for fewer than two runs. `unit` is what the runs are called in the text of the
    source, such as "repeats".
    """
    if len(seconds) < 2:
        return None
    sigma = float(np.std(np.log(np.array(seconds)), ddof=1))
    return _make_noise(sigma, len(seconds) - 1.0, f"{len(seconds)} {unit}")


def estimate_from_sides(sides: Sequence[Sequence[float]]) -> Noise | None:
    """Estimate the noise within the sides of a comparison.

    Each side is a sequence of group means (log seconds); residuals are taken about the
    mean of the side. None if no side has two groups.
    """
    freedom = sum(len(side) - 1 for side in sides if side)
    if freedom < 1:
        return None
    squares = sum(float(np.var(np.array(side))) * len(side) for side in sides if side)
    sigma = math.sqrt(squares / freedom)
    groups = sum(len(side) for side in sides)
    return _make_noise(sigma, float(freedom), f"{groups} groups of both sides")


def pool(estimates: Sequence[Noise | None]) -> Noise | None:
    """Pool estimates, weighted by their degrees of freedom.

    None if all are None.
    """
    measured = [estimate for estimate in estimates if estimate is not None]
    if not measured:
        return None
    freedom = sum(estimate.degrees_of_freedom for estimate in measured)
    squares = sum(
        estimate.degrees_of_freedom * estimate.sigma**2 for estimate in measured
    )
    source = " and ".join(estimate.source for estimate in measured)
    return _make_noise(math.sqrt(squares / freedom), freedom, source)


def with_prior(own: Noise | None, prior: Noise, assumed_cv: float) -> Noise:
    """Combine a configuration's noise estimate with the fleet's prior.

    `own` is the configuration's estimate, None if it has too few runs. A configuration
    that is significantly noisier than the fleet (F test, 1 %) keeps its own estimate,
    so that the prior cannot make it look quieter. Other estimates are pooled with the
    prior. If `own` is None, the prior is used, but never with less noise than
    `assumed_cv`. An assumed prior is pooled in only if `own` has too few degrees of
    freedom.
    """
    if own is None:
        return assume_noise(assumed_cv) if prior.sigma < assumed_cv else prior
    if not prior.measured:
        if own.degrees_of_freedom >= SUFFICIENT_FREEDOM:
            return own
        return pool([own, prior]) or own
    # infinite for an exact prior; NaN, which is not noisier, if both are exact
    ratio = (own.sigma / prior.sigma) ** 2 if prior.sigma else math.inf * own.sigma
    probability = compute_f_upper_tail(
        ratio, own.degrees_of_freedom, prior.degrees_of_freedom
    )
    if probability < NOISIER_THAN_FLEET:
        return own
    return pool([own, prior]) or prior


def estimate_from_fleet(estimates: Sequence[Noise]) -> Noise | None:
    """Estimate the noise prior of a fleet from its configurations.

    None for fewer than 5 estimates.

    Empirical Bayes: the variances are draws from a scaled inverse chi-squared
    distribution, which is fitted by the moments of their logarithms (Smyth, Statistical
    Applications in Genetics and Molecular Biology 3(1), 2004).
    """
    if len(estimates) < MIN_CONFIGURATIONS:
        return None
    half_freedom = np.array([estimate.degrees_of_freedom for estimate in estimates]) / 2
    digamma, trigamma, _ = np.array(list(map(compute_polygamma, half_freedom))).T
    variances = np.array([estimate.sigma for estimate in estimates]) ** 2
    # log variances without the bias of the logarithm
    logs = np.log(variances) - digamma + np.log(half_freedom)
    mean = float(np.mean(logs))
    # the variation of the logs beyond the error of the estimates
    excess = float(np.var(logs, ddof=1) - np.mean(trigamma))
    freedom = most_freedom = 2 * float(np.sum(half_freedom))
    if excess > 0:
        freedom = min(2 * _invert_trigamma(excess), most_freedom)
    prior_digamma, *_ = compute_polygamma(freedom / 2)
    variance = math.exp(mean + prior_digamma - math.log(freedom / 2))
    return _make_noise(math.sqrt(variance), freedom, f"{len(estimates)} configurations")


def _make_noise(sigma: float, freedom: float, source: str) -> Noise:
    """Make a measured noise of at least MIN_SIGMA."""
    return Noise(max(sigma, MIN_SIGMA), freedom, source, measured=True)


def _invert_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value.

    Newton's method on 1 / trigamma, which is nearly linear.
    """
    if value > 1e7:  # trigamma(x) is nearly 1 / x^2 for small x
        return 1 / math.sqrt(value)
    x = 0.5 + 1 / value
    for _ in range(50):
        _, trigamma, tetragamma = compute_polygamma(x)
        step = trigamma * (1 - trigamma / value) / tetragamma
        x += step
        if -step / x < 1e-8:
            break
    return x


# --- within a run ---------------------------------------------------------------------


# relative variances below this are floating-point error: the steps are equal
EQUAL_VARIANCE = 1e-24

MIN_STEPS_FOR_REACH = 10  # with fewer steps, all may be fast by chance

# Within a window of a few dozen steps, a larger lag-1 correlation cannot be
# distinguished from a drift.
LARGEST_CORRELATION = 0.95


class WithinRun(Struct, frozen=True):
    """Precision with which the window of a run determines its statistic."""

    error: float  # standard error of the logarithm of the statistic
    effective_sample_size: float  # number of independent steps
    # Log distance from the statistic down to the fastest step, which no mean of such
    # steps exceeds. It bounds the interval when correlated steps leave few degrees of
    # freedom and t is large. Infinite for fewer than 10 steps, which may all be fast by
    # chance.
    reach: float = math.inf


def estimate_within_run(
    seconds: Floats, statistic: str, moving_mean: int = 1, mean_of: Sequence[int] = ()
) -> WithinRun:
    """Estimate the within-run error of step times.

    `seconds` has shape (n,), n >= 3. `statistic` is "mean" or "trimmed_mean".

    The variance is the winsorised variance for a trimmed mean (Yuen, Biometrika 61,
    1974) and the sample variance, if larger, for a mean. It is inflated by (1 + r) / (1
    - r) for the lag-1 correlation r, and at least by `moving_mean`, the number of steps
    in a moving mean. The error is a floor: it does not contain the differences between
    runs.

    `mean_of` contains the number of steps that each time averages. A mean counts as one
    sample, because the variation of its steps is unknown. Unequal weights reduce the
    effective sample size.
    """
    count = len(seconds)
    clipped = winsorise(seconds)
    spread = float(np.std(clipped, ddof=1)) / (1 - 2 * TRIMMED)
    if statistic == "mean":  # stragglers move a plain mean
        spread = max(spread, float(np.std(seconds, ddof=1)))
    correlation = _correlate_steps(clipped)
    inflation = max((1 + correlation) / (1 - correlation), moving_mean)
    effective = max(count_independent(count, mean_of) / inflation, 1.0)
    clipped_mean = float(np.mean(clipped))
    reach = math.inf
    if count >= MIN_STEPS_FOR_REACH:
        location = clipped_mean
        if statistic == "mean":
            location = compute_mean(seconds, mean_of)
        reach = math.log(location / float(np.min(seconds)))
    return WithinRun(
        error=spread / clipped_mean / effective**0.5,
        effective_sample_size=effective,
        reach=reach,
    )


def count_independent(count: int, mean_of: Sequence[int]) -> float:
    """Return the effective sample size of weighted values.

    Kish's formula, (sum w)^2 / sum w^2 for the weights `mean_of`; `count` if there are
    no weights.
    """
    weights = [float(weight) for weight in mean_of]
    if not weights:
        return float(count)
    return sum(weights) ** 2 / sum(weight**2 for weight in weights)


def _correlate_steps(values: Floats) -> float:
    """Return the lag-1 correlation, corrected for its bias in short series.

    The correction is (n r + 1) / (n - 4). 0 for fewer than 6 steps.
    """
    count = len(values)
    centred = values - np.mean(values)
    total = float(centred @ centred)
    if count < 6 or total <= EQUAL_VARIANCE * count * float(np.mean(values)) ** 2:
        return 0.0
    correlation = float(centred[1:] @ centred[:-1]) / total
    corrected = (count * correlation + 1) / (count - 4)
    return min(max(corrected, 0.0), LARGEST_CORRELATION)


# --- from day to day ------------------------------------------------------------------


CORRELATED_DAYS = 20  # a shorter series does not determine its correlation

# Width of the running median, in days, that removes level shifts and slow drifts.
RUNNING_MEDIAN_DAYS = 31

# days further from the running median than this many sigma are outliers
OUTLIER_SIGMAS = 3.5
LARGEST_DAILY = 0.9  # a larger correlation is a drift, and would hide every change

# A median correlation below this many standard errors may be chance. 1.25 is the
# standard error of a median relative to that of a mean.
SIGNIFICANT_ERRORS = 1.645 * 1.25


def estimate_fleet_correlation(series: Iterable[Floats]) -> float:
    """Estimate the lag-1 correlation of days from all configurations.

    `series` contains one array per configuration: its log step times in order, shape
    (days,). 0 if the correlation may be chance.

    The result is the median over the configurations with at least 20 days. After a
    hundred days one configuration determines the correlation to 0.1, a fleet to 0.01.
    With fewer than five configurations their spread is unknown and that of independent
    days is assumed.
    """
    long_series = [
        daily_runs for daily_runs in series if len(daily_runs) >= CORRELATED_DAYS
    ]
    if not long_series:
        return 0.0
    correlations = np.array([_correlate_days(daily_runs) for daily_runs in long_series])
    if len(correlations) < MIN_CONFIGURATIONS:
        spread = 1 / math.sqrt(min(map(len, long_series)))
    else:
        spread = float(np.std(correlations, ddof=1))
    median = compute_median(correlations)
    limit = SIGNIFICANT_ERRORS * spread / math.sqrt(len(correlations))
    if not median > limit:  # may be chance
        return 0.0
    return min(median, LARGEST_DAILY)


def _correlate_days(daily_runs: Floats) -> float:
    """Return the lag-1 correlation of days about their running median.

    Outliers are excluded. The bias by subtracting the running median and the mean is
    corrected.
    """
    count = len(daily_runs)
    noise = estimate_from_daily_runs(daily_runs)
    if noise is None or not np.isfinite(daily_runs).all():
        return 0.0
    residuals = daily_runs - compute_running_median(daily_runs, RUNNING_MEDIAN_DAYS)
    inliers = np.abs(residuals) <= OUTLIER_SIGMAS * noise.sigma
    are_pairs = inliers[1:] & inliers[:-1]  # two consecutive inliers
    if not are_pairs.any() or not residuals[inliers].any():
        return 0.0
    covariance = np.mean((residuals[1:] * residuals[:-1])[are_pairs])
    correlation = float(covariance / np.mean(residuals[inliers] ** 2))
    return correlation + (1 + 4 * correlation) / count


def compute_running_median(values: Floats, width: int) -> Floats:
    """Return the running median of values, shape (n,).

    The first and last values repeat the outermost full window.
    """
    if len(values) <= width:
        return np.full(len(values), compute_median(values))
    around = np.lib.stride_tricks.sliding_window_view(values, width)
    inner = np.partition(around, width // 2, axis=1)[:, width // 2]
    return np.pad(inner, width // 2, mode="edge")


def compute_spread_correction(correlation: float) -> float:
    """Return the factor that corrects a standard deviation of correlated days.

    Successive differences of correlated days underestimate it.
    """
    return 1 / math.sqrt(1 - correlation)


def compute_variance_inflation(day_counts: Floats, correlation: float) -> Floats:
    """Return the variance inflation of a mean over correlated days.

    Relative to a mean over as many independent days. `day_counts` contains numbers of
    days; the result has the same shape.
    """
    if correlation == 0:
        return np.ones_like(day_counts)
    independent = 1 - correlation
    return np.asarray(
        1
        + 2 * correlation / independent
        - 2
        * correlation
        * (1 - correlation**day_counts)
        / (day_counts * independent**2),
        dtype=float,
    )
