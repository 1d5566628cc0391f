"""Detect a shift that most configurations share, and adjust p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import Struct

from pytest_llmbench.core.baseline_records import Baseline, Key
from pytest_llmbench.core.codes import JUDGED
from pytest_llmbench.core.judgement_records import Estimate, Judgement
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.run_records import Measurement, StoredRun
from pytest_llmbench.core.statements import (
    SharedShift,
    ShiftReference,
)
from pytest_llmbench.judge.distributions import (
    compute_beta_lower_tail,
    compute_quantile,
    compute_t_upper_tail,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats

Name = TypeVar("Name")

# a current run is compared with the median of this many earlier runs
REFERENCE_RUNS = 7
MIN_CONFIGURATIONS = 3  # fewer configurations cannot share a shift

# One-sided level at which a configuration has moved. Stricter if few configurations are
# compared.
LEVEL = 0.05

# share of days on which chance may move most configurations in one direction
FALSE_ALARMS = 0.0001
SMALLEST = 0.01  # smallest shared shift worth a message, as a fraction


class ConfigurationShift(Struct, frozen=True):
    """Estimate of a configuration's current runs, with its last runs."""

    key: Key
    estimate: Estimate
    # log(statistic / baseline) of the last runs, oldest first
    older: tuple[float, ...] = ()


def measure_shift(
    judgement: Judgement, older: Sequence[Measurement | StoredRun]
) -> ConfigurationShift | None:
    """Return the contribution of one configuration to a shared shift.

    `older` are the runs before the current ones, oldest first; invalid runs are
    ignored. None if the verdict or the error of the estimate is unknown.
    """
    estimate = judgement.estimate
    if judgement.verdict not in JUDGED or estimate is None or not _is_known(estimate):
        return None
    logarithms = (
        _compute_log_ratio(run, judgement.baseline)
        for run in reversed(older)
        if run.valid
    )
    newest_first = tuple(islice(filter(math.isfinite, logarithms), REFERENCE_RUNS))
    return ConfigurationShift(
        judgement.baseline.key, estimate, older=newest_first[::-1]
    )


def find_shared_shift(
    configurations: Sequence[ConfigurationShift],
) -> SharedShift | None:
    """Find a shift that more than half of the configurations share.

    If at least half of the configurations (and MIN_CONFIGURATIONS) have earlier runs,
    only these configurations are used, each compared with its last earlier run.
    Otherwise all configurations are compared with their baselines. A configuration has
    moved if its shift is significant. With few configurations the significance level is
    stricter, so that chance alone moves most of them on fewer than one in 10,000 days.

    None if no shift of 1 % or more is shared, or if the interval of the common shift
    contains 0. None does not prove that there is no shift.
    """
    ordered = sorted(configurations, key=lambda configuration: configuration.key)
    with_earlier_runs = [
        configuration for configuration in ordered if configuration.older
    ]
    if len(with_earlier_runs) >= max(MIN_CONFIGURATIONS, len(ordered) / 2):
        shifts = list(map(_subtract_last, with_earlier_runs))
        return _summarise(with_earlier_runs, shifts, ShiftReference.LAST_RUNS)
    shifts = [
        (configuration.estimate.difference, configuration.estimate.standard_error)
        for configuration in ordered
    ]
    return _summarise(ordered, shifts, ShiftReference.BASELINES)


def adjust_p_values(p_values: Mapping[Name, float | None]) -> dict[Name, float]:
    """Adjust the p-values of "slower than the baseline" for their number.

    Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995: of the
    warnings at an adjusted 5 %, 5 % are expected to be false. None and NaN are dropped.
    """
    known = {
        name: p_value
        for name, p_value in p_values.items()
        if p_value is not None and math.isfinite(p_value)
    }
    values = np.array(list(known.values()))
    largest_first = np.argsort(values)[::-1]
    ranks = np.arange(len(values), 0, -1)
    scaled = values[largest_first] * len(values) / ranks
    adjusted = np.empty(len(values))
    adjusted[largest_first] = np.minimum.accumulate(scaled)
    return dict(zip(known, adjusted.tolist(), strict=True))


# --- arithmetic -----------------------------------------------------------------------


def _is_known(estimate: Estimate) -> bool:
    """True if an estimate has a difference and an error."""
    error = estimate.standard_error
    are_finite = math.isfinite(estimate.difference) and math.isfinite(error)
    return are_finite and error > 0 and not estimate.threshold_only


def _compute_log_ratio(
    measurement: Measurement | StoredRun, baseline: Baseline
) -> float:
    """Return log(step time / baseline), NaN if the step time is unknown."""
    seconds = measurement.statistic_seconds
    if not seconds or not seconds > 0:
        return math.nan
    return math.log(seconds / baseline.step_seconds)


def _subtract_last(configuration: ConfigurationShift) -> tuple[float, float]:
    """Return the shift since the last runs and its standard error.

    The baseline cancels. The variance of a median is pi / 2 times that of the mean; for
    one or two values they are equal.
    """
    estimate, count = configuration.estimate, len(configuration.older)
    inefficiency = 1.0 if count < 3 else math.pi / 2
    inflation = math.sqrt(1 + estimate.runs * inefficiency / count)
    shift = estimate.difference - compute_median(np.array(configuration.older))
    return shift, estimate.standard_error * inflation


def _summarise(
    configurations: Sequence[ConfigurationShift],
    shifts_with_errors: Sequence[tuple[float, float]],
    against: ShiftReference,
) -> SharedShift | None:
    """Return the shift that most configurations share, or None.

    `shifts_with_errors` are those of each configuration, as logarithms.
    """
    if len(configurations) < MIN_CONFIGURATIONS:
        return None
    shifts, errors = np.array(shifts_with_errors).T
    freedom = np.array(
        [configuration.estimate.degrees_of_freedom for configuration in configurations]
    )
    common, half_width = _pool_shifts(shifts, errors)
    statistics = math.copysign(1, common) * shifts / errors
    have_moved = _find_moved(statistics, freedom)
    keys = tuple(
        configuration.key
        for configuration, has_moved in zip(configurations, have_moved, strict=True)
        if has_moved
    )
    have_most_moved = 2 * len(keys) > len(configurations)
    if not have_most_moved or not abs(math.expm1(common)) >= SMALLEST:
        return None
    shift, low, high = (
        math.expm1(common + offset) for offset in (0, -half_width, half_width)
    )
    if low * high <= 0:  # most have moved, but by different amounts
        return None
    recipes = {configuration.key.recipe for configuration in configurations}
    return SharedShift(
        shift, low, high, keys, len(configurations), against, len(recipes) > 1
    )


def _find_moved(statistics: Floats, freedom: Floats) -> Flags:
    """Return flags, shape (n,), of the configurations that have moved up.

    `statistics` are t statistics, shape (n,). The level is chosen so that chance moves
    a majority with a probability of FALSE_ALARMS / 2 (two directions). That is a
    quantile of the beta distribution, which is the tail of the binomial distribution.
    """
    count = len(statistics)
    majority = count // 2 + 1

    def compute_chance(tail: float) -> float:
        """Return the probability that chance moves a majority beyond this level."""
        return compute_beta_lower_tail(tail, majority, count - majority + 1)

    tails = map(compute_t_upper_tail, statistics.tolist(), freedom.tolist())
    return np.array(
        [tail < LEVEL and compute_chance(tail) < FALSE_ALARMS / 2 for tail in tails]
    )


def _pool_shifts(shifts: Floats, errors: Floats) -> tuple[float, float]:
    """Pool n shifts, weighted by precision, and the half-width of their interval.

    Random effects: the variance between configurations is added to the variance of each
    (DerSimonian and Laird, Controlled Clinical Trials 7, 1986).
    """
    weights = errors**-2
    mean = np.sum(weights * shifts) / np.sum(weights)
    excess = np.sum(weights * (shifts - mean) ** 2) - (len(shifts) - 1)
    scale = np.sum(weights) - np.sum(weights**2) / np.sum(weights)
    between_variance = max(excess / scale, 0.0)
    weights = 1 / (errors**2 + between_variance)
    common = float(np.sum(weights * shifts) / np.sum(weights))
    quantile = compute_quantile(1 - LEVEL, len(shifts) - 1.0)
    return common, quantile / math.sqrt(np.sum(weights))
