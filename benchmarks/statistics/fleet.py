"""Noise model of the calibration: fleets of configurations, and simulated runs.

Each configuration has its own noise, drawn uniformly from ranges seen in practice. The
ranges are an assumption: the spread of a real cluster must be measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

CONFIGURATIONS = 80
STEPS = 50
FIRST, LAST = 11, 44
WINDOW = slice(FIRST, LAST + 1)
KEPT = slice(6, 28)
"""The 20 % trimmed mean of 34 ordered steps keeps these."""

WARM_UP = 0.5 * np.exp(-np.arange(STEPS) / 2)
SLOWDOWN = (0.05, 0.5)
PAIRS = 32
"""Mirrored pairs of runs behind an expected value: it is good to 0.02 %."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Noise of c configurations: columns of shape (c,), fractions except `seconds` and
    `correlation`.

    `within` is the standard deviation of the steps of a run, `correlation` that of a
    step with the next, `slow` the share of slow steps, `between` the standard deviation
    of the logarithm of a run's level.
    """

    seconds: Floats
    within: Floats
    correlation: Floats
    slow: Floats
    between: Floats


@dataclass(frozen=True, slots=True)
class Expected:
    """Long-run measurements of each configuration, in seconds; columns of shape (c,)."""

    trimmed_mean: Floats
    mean: Floats
    last_step: Floats


def draw(random: np.random.Generator, count: int = CONFIGURATIONS) -> Fleet:
    """Draw a fleet: parameters uniformly, step times log-uniformly from 1 to 10 s."""
    return Fleet(
        seconds=np.exp(random.uniform(0, np.log(10), count)),
        within=random.uniform(0.002, 0.03, count),
        correlation=random.uniform(0, 0.8, count),
        slow=random.uniform(0.01, 0.03, count),
        between=random.uniform(0.003, 0.015, count),
    )


def runs(fleet: Fleet, count: int, random: np.random.Generator) -> Floats:
    """Simulate `count` independent runs of each configuration, shape (c, count, 50), in
    seconds."""
    shape = (len(fleet.seconds), count, STEPS)
    levels = np.exp(_column(fleet.between) * random.standard_normal((*shape[:2], 1)))
    return (
        _steps(fleet, _correlated(fleet, shape, random), _slow(fleet, shape, random))
        * levels
    )


def expected(fleet: Fleet, random: np.random.Generator) -> Expected:
    """Return the expected values: simulated for the trimmed mean (of the logarithm),
    exact for the others.

    Each simulated run is paired with a run of the opposite noise, which cancels most of
    the error.
    """
    shape = (len(fleet.seconds), PAIRS, STEPS)
    noise, slow = _correlated(fleet, shape, random), _slow(fleet, shape, random)
    logarithms = [
        np.log(trimmed_means(_steps(fleet, sign * noise, slow))) for sign in (1, -1)
    ]
    slowed = fleet.seconds * (1 + fleet.slow * np.mean(SLOWDOWN))
    return Expected(
        trimmed_mean=np.exp(np.mean(logarithms, axis=(0, 2))),
        mean=slowed * (1 + np.mean(WARM_UP[WINDOW])),
        last_step=slowed * (1 + WARM_UP[-1]),
    )


def trimmed_means(seconds: Floats) -> Floats:
    """Return the 20 % trimmed mean of steps 11 to 44 of runs of shape (..., 50)."""
    return np.asarray(np.sort(seconds[..., WINDOW], axis=-1)[..., KEPT].mean(axis=-1))


def _steps(fleet: Fleet, noise: Floats, slow: Floats) -> Floats:
    return _column(fleet.seconds) * (1 + _column(fleet.within) * noise + WARM_UP) * slow


def _correlated(
    fleet: Fleet, shape: tuple[int, int, int], random: np.random.Generator
) -> Floats:
    """Return stationary first-order autoregressive noise of unit variance."""
    noise = random.standard_normal(shape)
    kept, new = fleet.correlation[:, None], np.sqrt(1 - fleet.correlation**2)[:, None]
    for step in range(1, STEPS):
        noise[..., step] = kept * noise[..., step - 1] + new * noise[..., step]
    return noise


def _slow(
    fleet: Fleet, shape: tuple[int, int, int], random: np.random.Generator
) -> Floats:
    """Return the factor of each step: 1, or 1.05 to 1.5 for a straggler."""
    slow = random.random(shape) < _column(fleet.slow)
    factors = np.ones(shape)
    factors[slow] += random.uniform(*SLOWDOWN, int(slow.sum()))
    return factors


def _column(values: Floats) -> Floats:
    return values[:, None, None]
