"""Step times: warm-up, steady noise, and a given mean over the window."""

from __future__ import annotations

from decimal import Decimal
from math import fsum
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Window

PRINTED_DIGITS = {"nemo1": 3, "nemo2": 4}
MAXTEXT_DECIMALS = 3
FULL_PRECISION_DECIMALS = 6
WARM_UP_STEPS = 11
FIRST_STEP = 2.5
WARM_UP_EXCESS = 0.6
WARM_UP_DECAY = 0.55


def printed_decimals(dialect: str, seconds: float) -> int:
    """Return the number of decimals that a dialect prints of a step time.

    NeMo 1 prints three significant digits, NeMo 2 four.
    """
    if dialect not in PRINTED_DIGITS:
        return MAXTEXT_DECIMALS
    return max(0, PRINTED_DIGITS[dialect] - 1 - Decimal(seconds).adjusted())


def steady_units(
    steps: int, window: range, mean: float, noise: float, random: Random
) -> list[int]:
    """Return integers with the given mean and relative noise.

    Their sum over the window is exactly the integer nearest to mean x length: rounding
    and drift are distributed evenly.
    """
    units = [round(mean * (1 + noise * spread(random))) for _ in range(steps)]
    inside = [step for step in window if step < steps]
    missing = round(mean * len(inside)) - sum(units[step] for step in inside)
    for index, step in enumerate(inside):
        units[step] += missing * (index + 1) // len(inside) - missing * index // len(
            inside
        )
    return units


def spread(random: Random) -> float:
    """Return noise with mean 0 and standard deviation 1, within 3.5.

    It is the same on every machine and Python version: logarithms may differ in the
    last bit, and so does `sum` since 3.12.
    """
    return (fsum(random.random() for _ in range(4)) - 2) * 1.7320508


def warm_up(step: int, length: int) -> float:
    """Return the slowdown of a warm-up step: compilation, then a decay to 1.

    `length` is the number of warm-up steps.
    """
    if step >= length:
        return 1.0
    excess = WARM_UP_EXCESS
    for _ in range(step):
        excess *= WARM_UP_DECAY
    return FIRST_STEP if step == 0 else 1 + excess


def step_seconds(
    steps: int,
    window: Window,
    mean: float,
    decimals: int,
    *,
    noise: float = 0.0,
    last_step_factor: float = 1.0,
    seed: str = "",
) -> tuple[float, ...]:
    """Return the seconds of `steps` steps with a given printed mean over the window.

    With 34 steps the mean of the printed values is within 1/68 of a printed unit of
    `mean`, because neighbouring values are mixed: a NeMo 1 log of 24.03 s mixes `24.00`
    and `24.10`. Steps before the window warm up; the last step is `last_step_factor` as
    long. Values are a thousandth of a unit above the printed value, because a measured
    time is never an integer (`10.0`, not `10`).
    """
    scale = 10**decimals
    units = steady_units(
        steps, range(window.first, window.last + 1), mean * scale, noise, Random(seed)
    )
    length = min(WARM_UP_STEPS, window.first)
    units = [round(value * warm_up(step, length)) for step, value in enumerate(units)]
    units[-1] = round(units[-1] * last_step_factor)
    return tuple((1000 * value + 1) / (1000 * scale) for value in units)


def falling_loss(step: int, start: float) -> float:
    """Return a loss that falls from `start` towards a fifth of it."""
    return start * (0.2 + 0.8 * 24 / (24 + step))
