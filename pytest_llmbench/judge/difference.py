"""The difference of two sets of runs, with its interval: the sets of an A/B, a search
over builds or a probe."""

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
    """A difference of two variants by least squares."""

    difference: float
    factor: float  # the variance of the difference is this times that of a run
    squares: float  # of the residuals
    freedom: float
    runs: tuple[int, int]
    floor: float = 0.0  # its standard error by what happens within the runs alone
    rounding: float = (
        0.0  # how far the printed digits may move it, however many runs there are
    )


def estimate_difference(
    fit: Fit, level: float, earlier: Noise | None
) -> PairedEstimate:
    """Return a difference with the interval at a one-sided level.

    `earlier` is what earlier A/Bs of the configuration say of the noise, and is pooled
    in; without it the assumed noise is, where the residuals have fewer than 2.8 degrees
    of freedom. What rounding may do is added to both ends.
    """
    run_noise, own = (
        pool_noise(fit.squares, fit.freedom, earlier),
        _measure_noise(fit.squares, fit.freedom),
    )
    error = max(run_noise.sigma * math.sqrt(fit.factor), fit.floor)
    freedom = run_noise.degrees_of_freedom
    width = compute_quantile(1 - level, freedom) * error + fit.rounding
    return PairedEstimate(
        difference=fit.difference,
        low=fit.difference - width,
        high=fit.difference + width,
        level=level,
        # Rounding may hide as much of a difference as the interval allows for it.
        smallest=formatting.compute_bounded_exp(
            width + compute_quantile(POWER, freedom) * error + fit.rounding
        )
        - 1,
        standard_error=error,
        degrees_of_freedom=freedom,
        noise=run_noise,
        runs=fit.runs,
        own_noise=own,
    )


def pool_noise(squares: float, freedom: float, earlier: Noise | None) -> Noise:
    """Return the noise that residuals tell (their sum of squares), with what is pooled
    in."""
    own = _measure_noise(squares, freedom)
    if earlier is not None:
        return noise.pool([own, earlier]) or earlier
    assumed = noise.assume_noise(ASSUMED_CV)
    if freedom >= noise.ENOUGH:
        return noise.pool([own]) or assumed
    both = noise.pool([own, assumed]) or assumed
    return Noise(
        both.sigma,
        both.degrees_of_freedom,
        "these runs, and 1 % assumed",
        measured=False,
    )


def _measure_noise(squares: float, freedom: float) -> Noise:
    return Noise(
        math.sqrt(squares / freedom) if freedom else 0.0,
        freedom,
        "these runs",
        measured=True,
    )
