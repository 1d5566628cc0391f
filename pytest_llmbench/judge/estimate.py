"""How much slower than its baseline a configuration is, how well that is known, and
where the bound lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

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
from pytest_llmbench.judge.distributions import compute_probability, compute_quantile
from pytest_llmbench.judge.noise import WithinRun, estimate_within_run

if TYPE_CHECKING:
    from pytest_llmbench.core.judgement_records import PreviousRun, PreviousRuns
    from pytest_llmbench.core.log_records import Floats

# A year of daily runs of 82 configurations is 30,000 runs: this is called for each of
# them.
_STATISTIC: Callable[[PreviousRun], float | None] = attrgetter("statistic_seconds")

FEWEST_STEPS = 3  # a window with fewer steps says nothing of its own spread
APART = (
    3 * math.sqrt(2)
)  # two runs of one state lie no further apart than so many of their standard deviations


def estimate_difference(
    runs: Sequence[Measurement], evidence: Evidence, run_noise: Noise
) -> Estimate:
    """Return the estimate from valid runs that are repeats of each other.

    theta is the mean of log(statistic / baseline); the errors of the runs and of the
    baseline add.
    """
    baseline = evidence.baseline
    difference = average_difference(runs, baseline)
    bound = math.log(evidence.tolerance.factor)
    inside = [estimate_within(run) for run in runs]
    threshold_only = (
        not run_noise.measured
        and len(runs) == 1
        and len(runs[0].window_seconds) < FEWEST_STEPS
    )
    per_run = combine_sigma(run_noise, inside)
    rounding = compute_rounding_error(baseline)
    error = DifferenceError(0.0, 0.0, 0.0, 0.0)
    if not threshold_only:
        baseline_variance = rounding**2 + per_run**2 / count_recorded_groups(baseline)
        error = compute_error(run_noise, inside, baseline_variance, evidence.look)
    estimate = Estimate(
        difference=difference,
        standard_error=error.standard_error,
        degrees_of_freedom=error.degrees_of_freedom,
        low=difference - error.low_width,
        high=difference + error.half_width,
        margin=bound,
        level=evidence.look.passing,
        regression_level=evidence.look.regression,
        runs=len(runs),
        noise=run_noise,
        within_run_error=_compute_root_mean_square([within.error for within in inside]),
        effective_sample_size=sum(within.effective_sample_size for within in inside),
        rounding=rounding,
        detectable=math.expm1(bound),
        repeats_needed=None,
        p_slower=None,
        threshold_only=threshold_only,
    )
    if threshold_only:
        return estimate
    return replace(
        estimate,
        detectable=formatting.compute_bounded_exp(compute_detectable(error, bound)) - 1,
        repeats_needed=count_repeats_needed(per_run, difference - bound),
        p_slower=compute_probability(
            difference / error.standard_error, error.degrees_of_freedom
        ),
    )


def average_difference(runs: Sequence[Measurement], baseline: Baseline) -> float:
    """Return the mean log difference of valid runs to the baseline; slower is
    positive."""
    return sum(
        math.log(_get_seconds(run) / baseline.step_seconds) for run in runs
    ) / len(runs)


def estimate_noise(
    evidence: Evidence, older: PreviousRuns, current: Sequence[Measurement] = ()
) -> Noise:
    """Return the run-to-run noise of a configuration, pooled from all that was
    measured; else what is assumed."""
    own = [
        *list_noise_sources(evidence.baseline, older),
        noise.estimate_from_repeats([_get_seconds(run) for run in current], "repeats"),
    ]
    together = noise.with_prior(noise.pool(own), evidence.prior, evidence.assumed_cv)
    few = None
    if not together.measured and len(older) < noise.FEWEST_DAYS:
        few = noise.estimate_from_few_days(_list_logarithms(older))
    if few is not None and noise.is_noisier(few, together):
        return few
    # Runs of one day differ by less than days: only more of it counts.
    alike = _estimate_recorded_noise(evidence.baseline)
    if together.measured or alike is None or alike.sigma <= together.sigma:
        return together
    return noise.pool([alike, together]) or together


def list_noise_sources(baseline: Baseline, older: PreviousRuns) -> list[Noise | None]:
    """Return what a configuration's own daily runs and its recorded runs say of its
    noise; None where they are too few.

    Of recorded runs only those of different days or nodes do, with as many degrees of
    freedom as they have groups but one: runs that share them say nothing of what
    differs between them.
    """
    groups = count_recorded_groups(baseline)
    recorded = _estimate_recorded_noise(baseline) if 1 < groups < math.inf else None
    return [
        estimate_daily_noise(older),
        replace(recorded, degrees_of_freedom=groups - 1.0) if recorded else None,
    ]


def estimate_daily_noise(previous: PreviousRuns) -> Noise | None:
    """Return what earlier daily runs say of the noise from run to run; None where they
    are too few."""
    stored = list(map(type, previous)).count(
        StoredRun
    )  # a sum over a loop takes as long as all the rest
    source = "nights" if not stored else "nights of history"
    if 0 < stored < len(previous):
        source = f"nights, {stored} of them of the history"
    return noise.estimate_from_daily_runs(_list_logarithms(previous), source)


def _list_logarithms(previous: PreviousRuns) -> Floats:
    logarithms: Floats = np.log(np.array(list(map(_STATISTIC, previous)), dtype=float))
    return logarithms


def count_recorded_groups(baseline: Baseline) -> float:
    """Return how many independent values a recorded baseline is the mean of: its days
    or sets of nodes.

    Where the file does not say it, its runs may all be of one day, and count once. A
    published value is exact.
    """
    recording = baseline.recording
    return math.inf if recording is None else min(recording.groups or 1, recording.runs)


def _estimate_recorded_noise(baseline: Baseline) -> Noise | None:
    return noise.estimate_from_repeats(
        baseline.recording.run_seconds if baseline.recording else (), "recorded runs"
    )


def disagree(runs: Sequence[Measurement], run_noise: Noise) -> bool:
    """Whether runs lie further apart than repeats of each other do: by more than 3
    sigma sqrt(2)."""
    logarithms = [math.log(_get_seconds(run)) for run in runs]
    return max(logarithms) - min(logarithms) > APART * estimate_sigma(runs, run_noise)


def estimate_sigma(runs: Sequence[Measurement], run_noise: Noise) -> float:
    """Return the standard deviation of the logarithm of one of these runs."""
    return combine_sigma(run_noise, [estimate_within(run) for run in runs])


def combine_sigma(run_noise: Noise, inside: Sequence[WithinRun]) -> float:
    """Return the standard deviation of one run's logarithm: an assumption does not hold
    what happens within a run."""
    floor = _compute_root_mean_square([within.error for within in inside])
    return (
        max(run_noise.sigma, floor)
        if run_noise.measured
        else math.hypot(run_noise.sigma, floor)
    )


def compute_rounding_error(baseline: Baseline) -> float:
    """Return the standard error of a printed value, relative: half a unit in its last
    place, evenly distributed."""
    return baseline.resolution_seconds / 2 / baseline.step_seconds / math.sqrt(3)


def estimate_within(run: Measurement) -> WithinRun:
    """Return how well the window of a run fixes its own statistic; nothing is known of
    one of fewer than 3 steps."""
    if len(run.window_seconds) < FEWEST_STEPS:
        return WithinRun(0.0, float(len(run.window_seconds)))
    inside = estimate_within_run(
        np.array(run.window_seconds),
        run.baseline.window.statistic,
        run.moving_mean,
        run.mean_of,
    )
    # All steps may be rounded the same way, so that more of them do not make it
    # smaller.
    half_unit = run.resolution_seconds / 2 / _get_seconds(run)
    return replace(
        inside,
        error=math.hypot(inside.error, half_unit / math.sqrt(3)),
        reach=inside.reach + half_unit,
    )


def bound_rounding(seconds: Floats, unit: float, statistic_seconds: float) -> float:
    """Return how far rounding may move the statistic of a run with steps of shape (n,),
    relative: half a printed unit.

    Runs of one speed are all rounded the same way, so that more of them do not make it
    smaller. 0 where the steps of a run differ by half a unit: they are rounded up as
    often as down.
    """
    spread = float(np.std(winsorise(seconds))) if len(seconds) else 0.0
    return 0.0 if spread >= unit / 2 else unit / 2 / statistic_seconds


def bound_run_rounding(run: Measurement) -> float:
    """Return the same of a measured run."""
    return bound_rounding(
        np.array(run.window_seconds), run.resolution_seconds, _get_seconds(run)
    )


def split_within_error(run: Measurement) -> tuple[float, float]:
    """Return the within-run error that becomes smaller with more runs, and how far
    rounding may move all of them."""
    rounding = bound_run_rounding(run)
    return estimate_within(
        replace(run, resolution_seconds=0.0) if rounding else run
    ).error, rounding


def _get_seconds(run: PreviousRun) -> float:
    return run.statistic_seconds or math.nan


def _compute_root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))


# --- the margin test ------------------------------------------------------------------


POWER = 0.8  # the probability with which a detectable slowdown is detected

Z_LEVEL = 1.645  # the normal quantile of 95 %
Z_POWER = 0.8416  # and that of POWER

# Difference of logarithms below which two step times are the same number: float
# arithmetic, not measurement.
EQUAL = 1e-9


class Answer(Enum):
    """Where the interval lies: below the bound, above it, or across it."""

    WITHIN = "within"
    BEYOND = "beyond"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class DifferenceError:
    """The error of a log difference."""

    standard_error: float
    degrees_of_freedom: float
    half_width: float  # how far the interval reaches up, at the level of a PASS
    # how far it reaches down, at that of a REGRESSION: no further than the fastest step
    low_width: float


def compute_error(
    noise: Noise,
    runs: Sequence[WithinRun],
    baseline_variance: float,
    look: DecisionRule,
) -> DifferenceError:
    """Return the error of the mean log difference of k runs against a baseline with its
    own variance.

    Measured noise holds what happens within a run; assumed noise does not, and both are
    added. Whichever of the two says less of the difference counts: the spread within
    the runs is a floor.
    """
    between, widest = _compare_errors(noise, runs, baseline_variance, look.passing)
    if look.regression != look.passing:
        between, lower = _compare_errors(
            noise, runs, baseline_variance, look.regression
        )
    else:
        lower = widest
    reach = math.hypot(between.half_width, sum(run.reach for run in runs) / len(runs))
    return replace(widest, low_width=min(lower.half_width, reach))


def _compare_errors(
    noise: Noise, runs: Sequence[WithinRun], baseline_variance: float, level: float
) -> tuple[DifferenceError, DifferenceError]:
    """Return the error by what differs from run to run, and the widest of all, at a
    level."""
    count = len(runs)
    inside = sum(run.error**2 for run in runs) / count**2
    freedom = max(sum(run.effective_sample_size for run in runs) - count, 1.0)
    between = _make_error(
        noise.sigma**2 / count + baseline_variance, noise.degrees_of_freedom, level
    )
    within = _make_error(inside + baseline_variance, freedom, level)
    both = within
    if not noise.measured:
        both = _make_error(
            between.standard_error**2 + inside, noise.degrees_of_freedom, level
        )
    return between, max(between, within, both, key=lambda error: error.half_width)


def _make_error(variance: float, freedom: float, level: float) -> DifferenceError:
    standard_error = math.sqrt(variance)
    half_width = compute_quantile(1 - level, freedom) * standard_error
    return DifferenceError(standard_error, freedom, half_width, half_width)


def answer(low: float, high: float, margin: float) -> Answer:
    """Compare the interval from low to high with the margin; all are logarithms, slower
    is positive.

    WITHIN: shown to be at most the margin. BEYOND: shown to be more. Anything else, NaN
    included, cannot be told.
    """
    if high < margin or (low == high <= margin + EQUAL):
        return Answer.WITHIN
    if low > margin:
        return Answer.BEYOND
    return Answer.CANNOT_TELL


def compute_detectable(error: DifferenceError, margin: float) -> float:
    """Return the slowdown, as a log difference to the baseline, that such a run shows
    to be beyond with 80 %."""
    return (
        margin
        + error.low_width
        + compute_quantile(POWER, error.degrees_of_freedom) * error.standard_error
    )


def count_repeats_needed(sigma: float, distance: float) -> int | None:
    """Return how many runs would settle a difference this far from the margin; None at
    the margin itself, or where one of the two is no number."""
    if not (abs(distance) >= EQUAL and math.isfinite(sigma)):
        return None
    return max(math.ceil(((Z_LEVEL + Z_POWER) * sigma / abs(distance)) ** 2), 1)


# --- what configurations say of each other --------------------------------------------


def estimate_prior(
    configurations: Iterable[tuple[Baseline, PreviousRuns]], assumed_cv: float
) -> Noise:
    """Return what the earlier daily runs of configurations say of each other's noise;
    the assumed one if too few can.

    `assumed_cv` is the coefficient of variation from run to run. The runs that are
    judged tell nothing here, so that a regression does not widen its own interval.
    """
    measured = [
        own
        for baseline, previous in configurations
        if (own := noise.pool(list_noise_sources(baseline, previous)))
    ]
    return noise.estimate_from_fleet(measured) or noise.assume_noise(assumed_cv)
