"""Estimate the difference of two sets of runs, with its interval.

Shared by A/B comparisons, searches over builds and probes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pytest_llmbench.core import formatting
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import PairedEstimate
from pytest_llmbench.judge import noise
from pytest_llmbench.judge.distributions import compute_quantile
from pytest_llmbench.judge.estimate import POWER

ASSUMED_CV = 0.01


class Fit(NamedTuple):
    """Least-squares estimate of the difference of two variants."""

    difference: float
    factor: float  # variance of the difference over the variance of one run
    squares: float  # residual sum of squares
    freedom: float
    runs: tuple[int, int]
    floor: float = 0.0  # standard error caused by the variation within runs alone
    # largest shift by rounding of the printed times, for any number of runs
    rounding: float = 0.0


def estimate_difference(
    fit: Fit, level: float, earlier: Noise | None
) -> PairedEstimate:
    """Return a difference with its interval at a one-sided level.

    `earlier` is the noise of earlier A/Bs of the configuration and is pooled with the
    residuals. Without it, the assumed noise is pooled in if the residuals have fewer
    than 2.8 degrees of freedom. The rounding bound is added to both ends of the
    interval.
    """
    run_noise = pool_noise(fit.squares, fit.freedom, earlier)
    residual_noise = _measure_noise(fit.squares, fit.freedom)
    error = max(run_noise.sigma * math.sqrt(fit.factor), fit.floor)
    freedom = run_noise.degrees_of_freedom
    width = compute_quantile(1 - level, freedom) * error + fit.rounding
    # Rounding may hide as much of a difference as it adds to the interval.
    detectable = width + compute_quantile(POWER, freedom) * error + fit.rounding
    return PairedEstimate(
        difference=fit.difference,
        low=fit.difference - width,
        high=fit.difference + width,
        level=level,
        smallest=formatting.compute_bounded_exp(detectable) - 1,
        standard_error=error,
        degrees_of_freedom=freedom,
        noise=run_noise,
        runs=fit.runs,
        own_noise=residual_noise,
    )


def pool_noise(squares: float, freedom: float, earlier: Noise | None) -> Noise:
    """Pool the noise of residuals with the earlier or assumed noise.

    `squares` is the residual sum of squares.
    """
    residual_noise = _measure_noise(squares, freedom)
    if earlier is not None:
        return noise.pool([residual_noise, earlier]) or earlier
    assumed = noise.assume_noise(ASSUMED_CV)
    if freedom >= noise.SUFFICIENT_FREEDOM:
        return noise.pool([residual_noise]) or assumed
    pooled = noise.pool([residual_noise, assumed]) or assumed
    return Noise(
        pooled.sigma,
        pooled.degrees_of_freedom,
        "these runs, and 1 % assumed",
        measured=False,
    )


def _measure_noise(squares: float, freedom: float) -> Noise:
    """Return the noise of residuals; 0 without degrees of freedom."""
    sigma = math.sqrt(squares / freedom) if freedom else 0.0
    return Noise(sigma, freedom, "these runs", measured=True)
