"""Detection of moving means by the values alone: error rates on simulated runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.builders import steps, without
from support.shared_data import shared

from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.logs.log_reader import read_log
from pytest_llmbench.runs.measure.moving_mean import detect_moving_mean

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

Random = np.random.Generator
Simulation = Callable[[Random], "Floats"]

RUNS = 250
COUNT = 50
NEMO1 = ("nemo1/carriage_returns.out", "nemo1/stale_bars_dllogger.out")


def average(single: Floats, width: int) -> Floats:
    """Return the mean of the last `width` steps, or of all steps if there are fewer."""
    return np.array(
        [
            single[max(0, last - width) : last].mean()
            for last in range(1, len(single) + 1)
        ]
    )


def round_steps(seconds: Floats, digits: int, first: int = 0) -> Steps:
    """Return steps printed with this many significant digits; 0 prints all digits."""
    if not digits:
        return steps(seconds.tolist(), first, resolution_seconds=np.zeros(len(seconds)))
    unit = 10.0 ** (np.floor(np.log10(seconds)) - digits + 1)
    return steps(
        (np.round(seconds / unit) * unit).tolist(), first, resolution_seconds=unit
    )


def simulate_noise(random: Random, correlation: float | None = None) -> Floats:
    """Return noise of lag-1 correlation 0 to 0.8 and cv 0.05 to 3 %, with up to 3 % of
    drift."""
    rho = random.uniform(0, 0.8) if correlation is None else correlation
    values = random.normal(size=COUNT)
    for step in range(1, COUNT):
        values[step] = rho * values[step - 1] + (1 - rho**2) ** 0.5 * values[step]
    slow = random.random(COUNT) < random.uniform(0, 0.03)
    cv = np.exp(random.uniform(np.log(0.0005), np.log(0.03)))
    return np.asarray(1 + cv * values + slow * random.uniform(0.05, 0.5, COUNT))


def simulate_slow_first(random: Random) -> Floats:
    """Return steps with a first step that takes 1.3 to 11 times as long."""
    return np.asarray(
        simulate_noise(random) + random.uniform(0.3, 10) * (np.arange(COUNT) == 0)
    )


def simulate_decay(random: Random, correlation: float | None = None) -> Floats:
    """Return steps whose warm-up decays exponentially, within a third of a step to 6
    steps."""
    decaying = np.exp(
        -np.arange(COUNT) / np.exp(random.uniform(np.log(0.3), np.log(6)))
    )
    return np.asarray(
        simulate_noise(random, correlation) + random.uniform(0.3, 10) * decaying
    )


def simulate_periodic(random: Random) -> Floats:
    values = simulate_slow_first(random)
    values[random.integers(5) :: random.choice([2, 5, 10])] *= random.uniform(1.05, 1.6)
    return values


def simulate_asynchronous(random: Random) -> Floats:
    """Return steps as MaxText prints them: a slow first step, then one or two too fast."""
    values = simulate_slow_first(random)
    values[1 : 2 + random.integers(2)] *= random.uniform(0.05, 0.9)
    return values


ORDINARY: dict[str, Simulation] = {
    "noise": simulate_noise,
    "correlated noise": lambda random: simulate_noise(random, 0.8),
    "slow first step": simulate_slow_first,
    "decay": simulate_decay,
    "periodic slow steps": simulate_periodic,
    "asynchronous dispatch": simulate_asynchronous,
}


def detect_widths(simulation: Simulation, digits: int, width: int = 1) -> Floats:
    """Return the widths detected in many runs of 1 to 100 s per step.

    The runs print means of `width` steps.
    """
    random = np.random.default_rng(20250611)
    scaled = (
        simulation(random) * np.exp(random.uniform(0, np.log(100))) for _ in range(RUNS)
    )
    return np.array(
        [
            detect_moving_mean(round_steps(average(single, width), digits))
            for single in scaled
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("digits", [0, 3])
@pytest.mark.parametrize("simulation", ORDINARY.values(), ids=ORDINARY)
def test_times_of_single_steps_are_not_taken_for_moving_means(
    simulation: Simulation, digits: int
) -> None:
    assert np.mean(detect_widths(simulation, digits) != 1) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("simulation", "width", "digits", "missed"),
    [
        *(
            (simulate_slow_first, 5, digits, missed)
            for digits, missed in ((0, 0.0), (4, 0.0), (3, 0.04))
        ),
        *(
            (simulate_decay, 5, digits, missed)
            for digits, missed in ((0, 0.0), (4, 0.0), (3, 0.06))
        ),
        (simulate_slow_first, 2, 4, 0.1),
        (simulate_slow_first, 8, 4, 0.02),
        (simulate_slow_first, 20, 4, 0.02),
        (simulate_noise, 5, 0, 0.1),
    ],
)
def test_moving_means_are_detected(
    simulation: Simulation, width: int, digits: int, missed: float
) -> None:
    """With three digits some are missed; with all digits nine in ten without a slow
    first step."""
    assert np.mean(detect_widths(simulation, digits, width) != width) <= missed


@pytest.mark.parametrize("width", [2, 5, 20])
def test_moving_mean_of_every_width_is_detected_without_noise(width: int) -> None:
    single = np.full(COUNT, 7.3)
    single[0] = 60.0
    assert detect_moving_mean(round_steps(average(single, width), 4)) == width


def test_moving_mean_is_detected_in_an_attempt_resumed_at_a_later_step() -> None:
    seconds = average(simulate_slow_first(np.random.default_rng(1)), 5)
    assert detect_moving_mean(round_steps(seconds, 0, first=1000)) == 5


INCONCLUSIVE = {
    "no step": steps([]),
    "one step": steps([7.0]),
    "equal steps": steps(7.0),
    "an endless step": steps([np.inf, 60.0, *[7.0] * 48]),
    "a step of no time": steps([60.0, 0.0, *[7.0] * 48]),
    "hardly any time": steps([60.0, 20.0, 11.0, *[1e-308] * 47]),
    "gaps between all steps": steps(
        [60.0, 33.5, 24.67, 20.25, 17.6, *[7.0] * 45], index=np.arange(0, 150, 3)
    ),
}


@pytest.mark.parametrize("content", INCONCLUSIVE.values(), ids=INCONCLUSIVE)
def test_inconclusive_times_are_no_moving_mean(content: Steps) -> None:
    assert detect_moving_mean(content) == 1


def test_moving_mean_is_detected_unless_steps_are_missing_early() -> None:
    seconds = average(simulate_slow_first(np.random.default_rng(1)), 5)
    assert detect_moving_mean(without(round_steps(seconds, 0), *range(15, 50, 2))) == 5
    assert detect_moving_mean(without(round_steps(seconds, 0), 3)) == 1


@pytest.mark.parametrize("digits", [0, 3])
@pytest.mark.parametrize("name", NEMO1)
def test_nemo_1_logs_print_means_of_five(name: str, digits: int) -> None:
    """Progress bars round the full values to three digits."""
    (segment,) = read_log(shared(f"logs/{name}")).segments
    assert detect_moving_mean(round_steps(segment.steps.seconds, digits)) == 5


@pytest.mark.parametrize("dialect", ["nemo2", "maxtext", "llmb_install"])
def test_logs_of_other_dialects_print_times_of_single_steps(dialect: str) -> None:
    logs = [read_log(path) for path in sorted(shared(f"logs/{dialect}").rglob("*.out"))]
    widths = [
        detect_moving_mean(segment.steps) for log in logs for segment in log.segments
    ]
    assert widths
    assert set(widths) == {1}
