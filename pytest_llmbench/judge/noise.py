"""How much step times differ when nothing has changed: from run to run, within a run,
and from day to day."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.robust import (
    TRIMMED,
    compute_mean,
    compute_median,
    compute_median_deviation,
    winsorise,
)
from pytest_llmbench.judge.distributions import compute_f_probability, compute_polygamma

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

FEWEST_DAYS = 8  # history shorter than this many days says too little of its spread
# from this many configurations with a spread of their own on, they say something of
# each other
CONFIGURATIONS = 5

# Degrees of freedom of the shortest history; two or three repeats alone have fewer, and
# t would be useless.
ENOUGH = 0.4 * (FEWEST_DAYS - 1)

# no cluster repeats itself better than to 0.01 %: equal numbers come from rounding or
# copies
SMALLEST = 1e-4

ASSUMED_FREEDOM = 4.0

CERTAIN = 1e6  # degrees of freedom of a number without an error of its own


def assume_noise(cv: float) -> Noise:
    """Return the noise that is assumed where nothing was measured: a coefficient of
    variation with 4 degrees."""
    return Noise(cv, ASSUMED_FREEDOM, "assumed, nothing was measured", measured=False)


def estimate_from_daily_runs(
    logarithms: Sequence[float] | Floats, unit: str = "nights"
) -> Noise | None:
    """Return the noise of daily runs (log seconds, in order); None for less than 8 of
    them.

    `unit` is what the daily runs are called.

    The median absolute deviation of successive differences, over the root of 2: level
    shifts and single bad days hardly move it. Degrees of freedom 0.4 (H - 1): its
    efficiency at the normal distribution.
    """
    if len(logarithms) < FEWEST_DAYS:
        return None
    sigma = compute_median_deviation(np.diff(logarithms)) / math.sqrt(2)
    return _make_noise(sigma, 0.4 * (len(logarithms) - 1), f"{len(logarithms)} {unit}")


def estimate_from_few_days(logarithms: Sequence[float] | Floats) -> Noise | None:
    """Return the noise of 2 to 7 daily runs (log seconds, in order); None for fewer or
    more.

    The root mean square of successive differences, over the root of 2 (von Neumann et
    al., Annals of Mathematical Statistics 12(2), 1941): a change of level counts once.
    Degrees of freedom 2 (H - 1)^2 / (3 H - 4).
    """
    count = len(logarithms)
    if not 2 <= count < FEWEST_DAYS:
        return None
    differences = np.diff(np.array(logarithms, dtype=float))
    sigma = math.sqrt(float(np.mean(differences**2)) / 2)
    freedom = 2 * (count - 1) ** 2 / (3 * count - 4)
    return _make_noise(sigma, freedom, f"{count} nights, noisier than is assumed")


def is_noisier(measured: Noise, assumed: Noise) -> bool:
    """Return True if an estimate is larger than an assumption by more than chance makes
    (5 %)."""
    ratio = (measured.sigma / assumed.sigma) ** 2
    return (
        ratio > 1
        and compute_f_probability(ratio, measured.degrees_of_freedom, CERTAIN) < 0.05
    )


def estimate_from_repeats(seconds: Sequence[float], what: str) -> Noise | None:
    """Return the noise of runs that are repeats of each other (seconds); None for less
    than two."""
    if len(seconds) < 2:
        return None
    sigma = float(np.std(np.log(np.array(seconds)), ddof=1))
    return _make_noise(sigma, len(seconds) - 1.0, f"{len(seconds)} {what}")


def estimate_from_sides(sides: Sequence[Sequence[float]]) -> Noise | None:
    """Return the noise of groups (log seconds) about the mean of their own side; None
    without two of one side."""
    freedom = sum(len(side) - 1 for side in sides if side)
    if freedom < 1:
        return None
    squares = sum(float(np.var(np.array(side))) * len(side) for side in sides if side)
    groups = sum(len(side) for side in sides)
    return _make_noise(
        math.sqrt(squares / freedom), float(freedom), f"{groups} groups of both sides"
    )


def pool(parts: Sequence[Noise | None]) -> Noise | None:
    """Return several estimates as one, weighted by their degrees of freedom; None
    without any."""
    measured = [part for part in parts if part is not None]
    if not measured:
        return None
    freedom = sum(part.degrees_of_freedom for part in measured)
    variance = (
        sum(part.degrees_of_freedom * part.sigma**2 for part in measured) / freedom
    )
    return _make_noise(
        math.sqrt(variance), freedom, " and ".join(part.source for part in measured)
    )


def with_prior(own: Noise | None, prior: Noise, assumed_cv: float) -> Noise:
    """Return what is known of a configuration's noise from its own runs and from
    others.

    One that is significantly noisier than the others (F test, 1 %) is of another kind,
    and is not made to look quieter by them; a quieter one stays pooled. Without runs of
    its own nothing tells which kind it is: it is not taken to be quieter, or better
    known, than what is assumed. An assumption only helps out where its own runs are too
    few.
    """
    if own is None:
        return assume_noise(assumed_cv) if prior.sigma < assumed_cv else prior
    if not prior.measured:
        return own if own.degrees_of_freedom >= ENOUGH else pool([own, prior]) or own
    ratio = (own.sigma / prior.sigma) ** 2 if prior.sigma else math.inf * own.sigma
    differs = (
        compute_f_probability(ratio, own.degrees_of_freedom, prior.degrees_of_freedom)
        < 0.01
    )
    return own if differs else pool([own, prior]) or prior


def estimate_from_fleet(estimates: Sequence[Noise]) -> Noise | None:
    """Return what many configurations say of the noise of any one; None for less than
    5.

    Empirical Bayes: their variances are taken as drawn from a scaled inverse
    chi-squared distribution, fitted by the moments of the logarithms (Smyth,
    Statistical Applications in Genetics and Molecular Biology 3(1), 2004).
    """
    if len(estimates) < CONFIGURATIONS:
        return None
    half = np.array([estimate.degrees_of_freedom for estimate in estimates]) / 2
    digamma, trigamma, _ = np.array(list(map(compute_polygamma, half))).T
    logs = (
        np.log(np.array([estimate.sigma for estimate in estimates]) ** 2)
        - digamma
        + np.log(half)
    )
    mean = float(np.mean(logs))
    excess = float(np.var(logs, ddof=1) - np.mean(trigamma))
    most = 2 * float(np.sum(half))
    freedom = min(2 * _invert_trigamma(excess), most) if excess > 0 else most
    variance = math.exp(
        mean + compute_polygamma(freedom / 2)[0] - math.log(freedom / 2)
    )
    return _make_noise(math.sqrt(variance), freedom, f"{len(estimates)} configurations")


def _make_noise(sigma: float, freedom: float, source: str) -> Noise:
    return Noise(max(sigma, SMALLEST), freedom, source, measured=True)


def _invert_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value, by Newton's method on 1 / trigamma, which is
    nearly linear."""
    if value > 1e7:
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


EVEN = 1e-24  # relative variance below which steps are equal, but for float arithmetic

REACHING = 10  # fewer steps may all be fast by chance

# a lag-1 correlation above this cannot be told from a drift in a window of some dozen
# steps
LARGEST_CORRELATION = 0.95


@dataclass(frozen=True, slots=True)
class WithinRun:
    """How well the window of one run fixes its own statistic."""

    error: float  # the standard error of its logarithm
    effective_sample_size: float  # the number of independent steps that it rests on
    # How far below the statistic the fastest step lies: no mean of such steps lies
    # further. After a change of level hardly a step is independent, and t is large;
    # infinite for less than 10 steps, which may all be chance.
    reach: float = math.inf


def estimate_within_run(
    seconds: Floats, statistic: str, moving_mean: int = 1, mean_of: Sequence[int] = ()
) -> WithinRun:
    """Return the within-run error of step times of shape (n,), n >= 3, in seconds.

    The variance is the winsorised one for a trimmed mean (Yuen, Biometrika 61, 1974)
    and the sample's for a mean; it is inflated by (1 + r) / (1 - r) for the lag-1
    correlation r, and at least by the number of steps of a moving mean. This is a
    floor: it knows nothing of how runs differ from each other.

    `mean_of` are the steps that each time is the mean of. Such a mean is one sample,
    however many steps it holds: what happened within it is not known, and means that
    weigh more than others make the sample smaller.
    """
    count = len(seconds)
    clipped = winsorise(seconds)
    spread = float(np.std(clipped, ddof=1)) / (1 - 2 * TRIMMED)
    if statistic == "mean":  # which stragglers move
        spread = max(spread, float(np.std(seconds, ddof=1)))
    correlation = _correlate_steps(clipped)
    inflation = max((1 + correlation) / (1 - correlation), moving_mean)
    effective = max(count_independent(count, mean_of) / inflation, 1.0)
    middle = (
        compute_mean(seconds, mean_of)
        if statistic == "mean"
        else float(np.mean(clipped))
    )
    reach = math.log(middle / float(np.min(seconds))) if count >= REACHING else math.inf
    return WithinRun(
        spread / float(np.mean(clipped)) / effective**0.5, effective, reach
    )


def count_independent(count: int, mean_of: Sequence[int]) -> float:
    """Return the number of equally weighted values that say as much as `count` weighted
    ones: (sum w)^2 / sum w^2."""
    weights = [float(weight) for weight in mean_of]
    return (
        sum(weights) ** 2 / sum(weight**2 for weight in weights)
        if weights
        else float(count)
    )


def _correlate_steps(values: Floats) -> float:
    """Return the lag-1 correlation, corrected for its bias in a short series: (n r + 1)
    / (n - 4)."""
    count = len(values)
    centred = values - np.mean(values)
    total = float(centred @ centred)
    if count < 6 or total <= EVEN * count * float(np.mean(values)) ** 2:
        return 0.0
    plain = float(centred[1:] @ centred[:-1]) / total
    return min(max((count * plain + 1) / (count - 4), 0.0), LARGEST_CORRELATION)


# --- from day to day ------------------------------------------------------------------


CORRELATED_DAYS = 20  # a configuration with fewer days says nothing of it

# Each day is taken from the median of so many around it: changes of level and slow
# drifts are no correlation.
AROUND = 31

# a day further from that median than so many sigma is a bad one, of which its
# neighbours tell nothing
FAR = 3.5
LARGEST_DAILY = 0.9  # what is beyond this is a drift, and would hide every change

# A median of correlations below so many of their standard errors may be chance (1.25: a
# median instead of a mean).
CHANCE = 1.645 * 1.25


def estimate_fleet_correlation(series: Iterable[Floats]) -> float:
    """Return the correlation of a day with the next one from the days of all
    configurations: their logarithms in order, one array of shape (days,) each. 0 where
    chance may have made it.

    One configuration tells it to 0.1 after a hundred days, a fleet to 0.01: the median
    over the configurations that have 20 days or more counts. Between fewer than five of
    them the spread is not known, and is taken as that of independent days.
    """
    correlations = [
        (_correlate_days(daily_runs), len(daily_runs))
        for daily_runs in series
        if len(daily_runs) >= CORRELATED_DAYS
    ]
    if not correlations:
        return 0.0
    values = np.array([value for value, _ in correlations])
    few = len(correlations) < CONFIGURATIONS
    spread = (
        1 / math.sqrt(min(count for _, count in correlations))
        if few
        else float(np.std(values, ddof=1))
    )
    middle = compute_median(values)
    return (
        min(middle, LARGEST_DAILY)
        if middle > CHANCE * spread / math.sqrt(len(correlations))
        else 0.0
    )


def _correlate_days(daily_runs: Floats) -> float:
    """Return the lag-1 correlation of days about their running median; what that and
    the mean hide is added."""
    count = len(daily_runs)
    own = estimate_from_daily_runs(daily_runs)
    if own is None or not np.isfinite(daily_runs).all():
        return 0.0
    rest = daily_runs - compute_running_median(daily_runs, AROUND)
    usual = np.abs(rest) <= FAR * own.sigma
    pairs = usual[1:] & usual[:-1]
    if not pairs.any() or not rest[usual].any():
        return 0.0
    plain = float(np.mean((rest[1:] * rest[:-1])[pairs]) / np.mean(rest[usual] ** 2))
    return plain + (1 + 4 * plain) / count


def compute_running_median(values: Floats, width: int) -> Floats:
    """Return the median of so many values around each, shape (n,); at the ends that of
    the outer ones."""
    if len(values) <= width:
        return np.full(len(values), compute_median(values))
    around = np.lib.stride_tricks.sliding_window_view(values, width)
    inner = np.partition(around, width // 2, axis=1)[:, width // 2]
    return np.pad(inner, width // 2, mode="edge")


def compute_hidden_spread(correlation: float) -> float:
    """Return by how much the standard deviation of days is larger than their successive
    differences let it seem."""
    return 1 / math.sqrt(1 - correlation)


def compute_inflation(daily_runs: Floats, correlation: float) -> Floats:
    """Return how much larger the variance of a mean of so many days is than that of
    independent ones; the numbers of days, and the result, are of any shape."""
    if correlation == 0:
        return np.ones_like(daily_runs)
    rest = 1 - correlation
    return np.asarray(
        1
        + 2 * correlation / rest
        - 2 * correlation * (1 - correlation**daily_runs) / (daily_runs * rest**2),
        dtype=float,
    )
