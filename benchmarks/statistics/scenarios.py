"""Inputs of the judgement of a simulated fleet: past days, current runs, and baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from fleet import WINDOW, Expected, trimmed_means
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import (
    Architecture,
    Baseline,
    BaselineKind,
    Configuration,
    Key,
    Parallelism,
    Recording,
    Source,
    Tolerance,
    Window,
)
from pytest_llmbench.core.judgement_records import Evidence
from pytest_llmbench.core.run_records import Identity, Measurement, Run, RunFiles
from pytest_llmbench.judge import noise
from pytest_llmbench.judge.estimate import estimate_prior
from pytest_llmbench.judge.run_selection import list_before_newest

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

TOLERANCE = Tolerance(0.05)
ASSUMED_CV = 0.01
NIGHTS = 20
ATTEMPTS = 3
RECORDED = 5
RUNS = NIGHTS + ATTEMPTS + RECORDED + 1
"""Simulated runs of a configuration: its nights, tonight's attempts, those of its
baseline, one for Welch's test."""

NOW = datetime(2025, 11, 20, 6, 0, tzinfo=UTC)
KEY = Key("simulated", "1b", "25.11", "h100", "bf16", 8)
CONFIGURATION = Configuration(
    KEY, Architecture("llama:3", 8192, 32, 4096, 128256), Parallelism(), 128
)
BASELINE = Baseline(
    configuration=CONFIGURATION,
    kind=BaselineKind.RECORDED,
    step_seconds=math.nan,
    cells=(),
    window=Window(11, 44, "trimmed_mean"),
    timed="mean",
    steps=50,
    dialect="nemo2",
    peak_tflops=989.0,
    source=Source("simulated"),
)
STEP_NUMBERS = tuple(range(11, 45))
STEP_LINES = tuple(range(111, 145))


def _run(started: datetime) -> Run:
    found = RunFiles(f"{started:%m-%d_%H}", "/simulated", (), (), build=("one",))
    return Run(found, (), Identity(KEY, "simulated"), started)


NIGHT_RUNS = tuple(_run(NOW - timedelta(days=1 + night)) for night in range(NIGHTS))
ATTEMPT_RUNS = tuple(
    _run(NOW - timedelta(hours=3 - attempt)) for attempt in range(ATTEMPTS)
)


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration in the current session.

    `evidence` contains its past days without the current runs, and the fleet's noise.
    `attempts` are the current runs in launch order. `seconds` are the steps of the
    first, and `reference` those of an earlier run, shape (50,). `mean` and `last_step`
    are the limits of the simpler rules.
    """

    evidence: Evidence
    attempts: tuple[Measurement, ...]
    seconds: Floats
    reference: Floats
    mean: float
    last_step: float


def exact(truth: Expected, one: int, runs: Floats) -> Baseline:
    """Return a baseline with the true value, from so many runs that it has no error,
    without noise."""
    return _recorded(float(truth.mean[one]), float(truth.trimmed_mean[one]), (), 10**9)


def recorded(
    truth: Expected, one: int, runs: Floats, count: int = RECORDED
) -> Baseline:
    """Return a baseline recorded from runs of as many days."""
    chosen = runs[one, -count:]
    trimmed = trimmed_means(chosen)
    return _recorded(
        float(np.mean(chosen[:, WINDOW])),
        float(np.mean(trimmed)),
        tuple(trimmed.tolist()),
        count,
    )


def of_one_night(truth: Expected, one: int, runs: Floats) -> Baseline:
    """Return a baseline recorded from five runs of one day on one set of nodes, which
    share their deviation."""
    alone = recorded(truth, one, runs, 1)
    (seconds,) = alone.recording.run_seconds if alone.recording else (math.nan,)
    return _recorded(
        float(np.mean(runs[one, -1, WINDOW])), seconds, (seconds,) * RECORDED, 1
    )


def published(truth: Expected, one: int, runs: Floats) -> Baseline:
    """Return a plain mean as printed in a document: four digits."""
    printed, window = round(float(truth.mean[one]), 3), Window(11, 44, "mean")
    return replace(
        BASELINE,
        kind=BaselineKind.PUBLISHED,
        step_seconds=printed,
        resolution_seconds=0.001,
        window=window,
    )


def _recorded(
    mean: float, trimmed_mean: float, run_seconds: tuple[float, ...], groups: int
) -> Baseline:
    runs = max(len(run_seconds), groups)
    recording = Recording(
        "2025-10-01", runs, mean, trimmed_mean, math.nan, run_seconds, (), groups=groups
    )
    return replace(BASELINE, step_seconds=trimmed_mean, recording=recording)


# --- what happens to runs -------------------------------------------------------------


def as_they_are(runs: Floats, random: np.random.Generator) -> Floats:
    """Return the runs unchanged."""
    return runs


def hard(runs: Floats, random: np.random.Generator) -> Floats:
    """Return runs of a harder cluster, shape (c, RUNS, 50).

    Days are correlated (0.3), every second run is on nodes that are 1 % slower, and a
    tenth of the runs have ten consecutive steps that are 10 % slower. The past days
    come newest first before the current runs, so that they are neighbours in time.
    """
    count, each = runs.shape[:2]
    level = 0.005 * random.standard_normal((count, each))
    order = [*range(NIGHTS - 1, -1, -1), *range(NIGHTS, each)]
    for before, after in pairwise(order):
        level[:, after] = (
            0.3 * level[:, before] + math.sqrt(1 - 0.3**2) * level[:, after]
        )
    level += np.where(random.random((count, each)) < 0.5, 0.005, -0.005)
    slower = runs * np.exp(level)[..., None]
    begin = random.integers(11, 35, (count, each))[..., None]
    steps = np.arange(runs.shape[2])
    stretch = (
        (random.random((count, each, 1)) < 0.1)
        & (steps >= begin)
        & (steps < begin + 10)
    )
    return np.asarray(slower * np.where(stretch, 1.1, 1.0))


def hiccups(runs: Floats, random: np.random.Generator) -> Floats:
    """Return runs whose first current run has one step of 3 times its time, and another
    of 1.6 times."""
    slower = runs.copy()
    for one in range(len(runs)):
        first, second = random.choice(np.arange(11, 45), 2, replace=False)
        slower[one, NIGHTS, first] *= 3.0
        slower[one, NIGHTS, second] *= 1.6
    return slower


def slow_first(runs: Floats, random: np.random.Generator) -> Floats:
    """Return runs whose first current run is on slow nodes, by 4 to 12 %."""
    slower = runs.copy()
    slower[:, NIGHTS] *= 1 + random.uniform(0.04, 0.12, (len(runs), 1))
    return slower


def noisier(runs: Floats, random: np.random.Generator) -> Floats:
    """Return runs with an additional noise of 1.8 %: about 2 % in total, twice the
    assumption."""
    return np.asarray(
        runs * np.exp(0.018 * random.standard_normal((*runs.shape[:2], 1)))
    )


def stalls(runs: Floats, random: np.random.Generator) -> Floats:
    """Return runs whose first current run takes 2.5 times as long in every seventh
    step.

    Its mean is 22 % slower.
    """
    slower = runs.copy()
    slower[:, NIGHTS, 12:45:7] *= 2.5
    return slower


class Scenario(NamedTuple):
    """How a fleet is judged: baselines, age of the current change, disturbances, and
    known past days."""

    baseline: Callable[[Expected, int, Floats], Baseline]
    nights_changed: int = 0
    happens: Callable[[Floats, np.random.Generator], Floats] = as_they_are
    nights: int = NIGHTS


SCENARIOS = {
    "fleet": Scenario(exact),
    "recorded": Scenario(recorded),
    "three": Scenario(partial(recorded, count=3)),
    "single": Scenario(partial(recorded, count=1)),
    "one-night": Scenario(of_one_night),
    "published": Scenario(published),
    "hard": Scenario(exact, happens=hard),
    "hard-published": Scenario(published, happens=hard),
    "hiccup": Scenario(published, happens=hiccups),
    "lasting": Scenario(exact, nights_changed=2),
    "slow-node": Scenario(exact, happens=slow_first),
    "noisier": Scenario(exact, happens=noisier, nights=3),
    "stalls": Scenario(exact, happens=stalls),
}


def cases(
    scenario: Scenario, truth: Expected, runs: Floats, change: float | Floats
) -> list[Case]:
    """Return the configurations of a fleet from simulated runs of shape (c, RUNS, 50).

    The current runs are slowed by the fraction `change`, of shape (c,) if it differs
    between configurations.
    """
    slowed = runs.copy()
    for changed in (
        slice(0, scenario.nights_changed),
        slice(NIGHTS, NIGHTS + ATTEMPTS),
    ):
        slowed[:, changed] *= 1 + np.reshape(change, (-1, 1, 1))
    baselines = [scenario.baseline(truth, one, runs) for one in range(len(runs))]
    made = [
        list(_measurements(baseline, own))
        for baseline, own in zip(baselines, slowed, strict=True)
    ]
    nothing = noise.assume_noise(ASSUMED_CV)
    alone = [
        Evidence(baseline, tuple(own[: scenario.nights]), TOLERANCE, NOW, nothing)
        for baseline, own in zip(baselines, made, strict=True)
    ]
    first = [
        replace(one, measurements=(own[NIGHTS], *one.measurements))
        for one, own in zip(alone, made, strict=True)
    ]
    fleet_noise = estimate_prior(
        ((one.baseline, list_before_newest(one)) for one in first), ASSUMED_CV
    )
    return [
        Case(
            evidence=replace(evidence, prior=fleet_noise),
            attempts=tuple(made[one][NIGHTS:]),
            seconds=slowed[one, NIGHTS],
            reference=slowed[one, NIGHTS + ATTEMPTS],
            mean=float(truth.mean[one]),
            last_step=float(truth.last_step[one]),
        )
        for one, evidence in enumerate(alone)
    ]


def _measurements(baseline: Baseline, seconds: Floats) -> Iterator[Measurement]:
    """Yield a measurement for each past day, newest first, and for each current
    attempt."""
    windows = seconds[: NIGHTS + ATTEMPTS]
    trimmed = baseline.window.statistic == "trimmed_mean"
    statistics = trimmed_means(windows) if trimmed else windows[:, WINDOW].mean(axis=1)
    for run, own, statistic in zip(
        (*NIGHT_RUNS, *ATTEMPT_RUNS), windows, statistics.tolist(), strict=True
    ):
        yield Measurement(
            run=run,
            baseline=baseline,
            files=None,
            attempt=0,
            segment=1,
            statistic_seconds=statistic,
            last_step_seconds=float(own[-1]),
            window_seconds=tuple(own[WINDOW].tolist()),
            metrics=(),
            window_steps=STEP_NUMBERS,
            window_lines=STEP_LINES,
        )
