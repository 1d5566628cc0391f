"""How much runs of one configuration differ from each other when nothing has changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.core.models import Noise
from pytest_llmbench.core.robust import median_deviation

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Floats

NIGHTS = 8
"""History shorter than this many nights says too little of its spread."""

CONFIGURATIONS = 5
"""From this many configurations with a spread of their own on, they say something of each other."""

ENOUGH = 0.4 * (NIGHTS - 1)
"""Degrees of freedom of the shortest history; two or three repeats alone have fewer, and t would be useless."""

SMALLEST = 1e-4
"""No cluster repeats itself better than to 0.01 %: equal numbers come from rounding or copies."""

ASSUMED_FREEDOM = 4.0


def assume_noise(cv: float) -> Noise:
    """Return the noise that is assumed where nothing was measured: a coefficient of variation with 4 degrees."""
    return Noise(cv, ASSUMED_FREEDOM, "assumed, nothing was measured", measured=False)


def estimate_from_history(logarithms: Sequence[float] | Floats, unit: str = "nights") -> Noise | None:
    """Return the noise of a night series (log seconds, one run a night, in order); None for less than 8 nights.

    `told` is what the nights are called.

    The median absolute deviation of successive differences, over the root of 2: level shifts and single bad nights
    hardly move it. Degrees of freedom 0.4 (H - 1): its efficiency at the normal distribution.
    """
    if len(logarithms) < NIGHTS:
        return None
    sigma = median_deviation(np.diff(logarithms)) / math.sqrt(2)
    return _make_noise(sigma, 0.4 * (len(logarithms) - 1), f"{len(logarithms)} {unit}")


def estimate_from_repeats(seconds: Sequence[float], what: str) -> Noise | None:
    """Return the noise of runs that are repeats of each other (seconds); None for less than two."""
    if len(seconds) < 2:
        return None
    sigma = float(np.std(np.log(np.array(seconds)), ddof=1))
    return _make_noise(sigma, len(seconds) - 1.0, f"{len(seconds)} {what}")


def pool(parts: Sequence[Noise | None]) -> Noise | None:
    """Return several estimates as one, weighted by their degrees of freedom; None without any."""
    measured = [part for part in parts if part is not None]
    if not measured:
        return None
    freedom = sum(part.degrees_of_freedom for part in measured)
    variance = sum(part.degrees_of_freedom * part.sigma**2 for part in measured) / freedom
    return _make_noise(math.sqrt(variance), freedom, " and ".join(part.source for part in measured))


def with_prior(own: Noise | None, prior: Noise, assumed_cv: float) -> Noise:
    """Return what is known of a configuration's noise from its own runs and from others.

    One that is significantly noisier than the others (F test, 1 %) is of another kind, and is not made to look quieter
    by them; a quieter one stays pooled. Without runs of its own nothing tells which kind it is: it is not taken to be
    quieter, or better known, than what is assumed. An assumption only helps out where its own runs are too few.
    """
    from scipy.special import fdtri

    if own is None:
        return assume_noise(assumed_cv) if prior.sigma < assumed_cv else prior
    if not prior.measured:
        return own if own.degrees_of_freedom >= ENOUGH else pool([own, prior]) or own
    largest = fdtri(own.degrees_of_freedom, prior.degrees_of_freedom, 0.99)
    differs = own.sigma**2 > largest * prior.sigma**2
    return own if differs else pool([own, prior]) or prior


def estimate_from_others(estimates: Sequence[Noise]) -> Noise | None:
    """Return what many configurations say of the noise of any one; None for less than 5.

    Empirical Bayes: their variances are taken as drawn from a scaled inverse chi-squared distribution, fitted by the
    moments of the logarithms (Smyth, Statistical Applications in Genetics and Molecular Biology 3(1), 2004).
    """
    from scipy.special import digamma, polygamma

    if len(estimates) < CONFIGURATIONS:
        return None
    half = np.array([estimate.degrees_of_freedom for estimate in estimates]) / 2
    logs = np.log(np.array([estimate.sigma for estimate in estimates]) ** 2) - digamma(half) + np.log(half)
    mean = float(np.mean(logs))
    excess = float(np.var(logs, ddof=1) - np.mean(polygamma(1, half)))
    most = 2 * float(np.sum(half))
    freedom = min(2 * _inverse_trigamma(excess), most) if excess > 0 else most
    variance = math.exp(mean + float(digamma(freedom / 2)) - math.log(freedom / 2))
    return _make_noise(math.sqrt(variance), freedom, f"{len(estimates)} configurations")


def _make_noise(sigma: float, freedom: float, source: str) -> Noise:
    return Noise(max(sigma, SMALLEST), freedom, source, measured=True)


def _inverse_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value, by Newton's method on 1 / trigamma, which is nearly linear."""
    from scipy.special import polygamma

    if value > 1e7:
        return 1 / math.sqrt(value)
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x
