"""What many configurations show together: a shift that most of them share, and p-values
adjusted for their number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline, Key
from pytest_llmbench.core.codes import JUDGED
from pytest_llmbench.core.judgement_records import Estimate, Judgement
from pytest_llmbench.core.run_records import Measurement, StoredRun
from pytest_llmbench.core.statements import (
    SharedShift,
    ShiftReference,
)
from pytest_llmbench.judge.distributions import (
    compute_beta_probability,
    compute_probability,
    compute_quantile,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats

Name = TypeVar("Name")

COMPARED = 7  # a current run is compared with the median of so many earlier runs
FEWEST = 3  # fewer configurations share nothing

# A configuration has moved if that is significant at this level, one-sided; stricter
# where few are looked at.
LEVEL = 0.05

# the share of days on which chance may move most configurations in one direction
FALSE_ALARMS = 0.0001
SMALLEST = 0.01  # a smaller shared shift is not worth a message


@dataclass(frozen=True, slots=True)
class ConfigurationShift:
    """A configuration with its current runs."""

    key: Key
    estimate: Estimate
    older: tuple[float, ...] = ()  # log(statistic / baseline) of its last runs


def measure_shift(
    judgement: Judgement, older: Sequence[Measurement | StoredRun]
) -> ConfigurationShift | None:
    """Return what one configuration says of a shared shift; None where nothing is known
    of its error.

    `older` are those before the current ones, oldest first; those that are not valid
    tell nothing.
    """
    estimate = judgement.estimate
    if judgement.verdict not in JUDGED or estimate is None or not _is_known(estimate):
        return None
    logarithms = (
        _take_logarithm(run, judgement.baseline) for run in reversed(older) if run.valid
    )
    last = islice(
        (logarithm for logarithm in logarithms if math.isfinite(logarithm)), COMPARED
    )
    return ConfigurationShift(judgement.baseline.key, estimate, tuple(last)[::-1])


def find_shared_shift(
    configurations: Sequence[ConfigurationShift],
) -> SharedShift | None:
    """Return the shift that more than half of the configurations share, None where
    there is none of 1 % or more, or where they moved so unlike that its interval holds
    0.

    Each is compared with its own last runs where at least half have any, and those
    without do not count; else all with their baselines. One has moved if it did so
    significantly; with few configurations at a level that makes chance move most of
    them on fewer than one of 10 000 days. None also means that it cannot be told.
    """
    ordered = sorted(configurations, key=lambda configuration: configuration.key)
    with_older = [configuration for configuration in ordered if configuration.older]
    if len(with_older) >= max(FEWEST, len(ordered) / 2):
        return _summarise(
            with_older, list(map(_subtract_last, with_older)), ShiftReference.LAST_RUNS
        )
    moves = [
        (each.estimate.difference, each.estimate.standard_error) for each in ordered
    ]
    return _summarise(ordered, moves, ShiftReference.BASELINES)


def adjust_p_values(p_values: Mapping[Name, float | None]) -> dict[Name, float]:
    """Return the p-values of "slower than the baseline", adjusted for their number;
    None and NaN are left out.

    Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995: of the
    warnings at an adjusted 5 %, 5 % are expected to be false.
    """
    p_values_known = {
        key: value
        for key, value in p_values.items()
        if value is not None and math.isfinite(value)
    }
    values = np.array(list(p_values_known.values()))
    order = np.argsort(values)[::-1]
    scaled = values[order] * len(values) / np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum.accumulate(scaled)
    return dict(zip(p_values_known, adjusted.tolist(), strict=True))


# --- arithmetic -----------------------------------------------------------------------


def _is_known(estimate: Estimate) -> bool:
    finite = math.isfinite(estimate.difference) and math.isfinite(
        estimate.standard_error
    )
    return finite and estimate.standard_error > 0 and not estimate.threshold_only


def _take_logarithm(measurement: Measurement | StoredRun, baseline: Baseline) -> float:
    seconds = measurement.statistic_seconds
    return (
        math.log(seconds / baseline.step_seconds)
        if seconds and seconds > 0
        else math.nan
    )


def _subtract_last(configuration: ConfigurationShift) -> tuple[float, float]:
    """Return the shift since the last runs and its standard error; the baseline
    cancels.

    The variance of a median is pi / 2 times that of the mean; of one or two values the
    two are the same.
    """
    count = len(configuration.older)
    inefficiency = 1.0 if count < 3 else math.pi / 2
    error = configuration.estimate.standard_error * math.sqrt(
        1 + configuration.estimate.runs * inefficiency / count
    )
    return configuration.estimate.difference - float(
        np.median(configuration.older)
    ), error


def _summarise(
    configurations: Sequence[ConfigurationShift],
    moves: Sequence[tuple[float, float]],
    against: ShiftReference,
) -> SharedShift | None:
    if len(configurations) < FEWEST:
        return None
    shifts, errors = np.array(moves).T
    freedom = np.array(
        [configuration.estimate.degrees_of_freedom for configuration in configurations]
    )
    common, half_width = _pool_shifts(shifts, errors)
    moved = _find_moved(math.copysign(1, common) * shifts / errors, freedom)
    keys = tuple(
        configuration.key
        for configuration, has_moved in zip(configurations, moved, strict=True)
        if has_moved
    )
    if 2 * len(keys) <= len(configurations) or not abs(math.expm1(common)) >= SMALLEST:
        return None
    shift, low, high = (
        math.expm1(common + part) for part in (0, -half_width, half_width)
    )
    if low * high <= 0:  # most have moved, and each by something of its own
        return None
    several = len({configuration.key.recipe for configuration in configurations}) > 1
    return SharedShift(shift, low, high, keys, len(configurations), against, several)


def _find_moved(statistics: Floats, freedom: Floats) -> Flags:
    """Return which of n configurations have moved up, from t statistics of shape (n,),
    as flags of shape (n,).

    The level is that at which chance gives a majority with half the probability
    FALSE_ALARMS (two directions): the quantile of a beta distribution, which is the
    tail of the binomial one.
    """
    majority = len(statistics) // 2 + 1
    tails = map(compute_probability, statistics.tolist(), freedom.tolist())

    def is_beyond(tail: float) -> bool:
        by_chance = compute_beta_probability(
            tail, majority, len(statistics) - majority + 1
        )
        return tail < LEVEL and by_chance < FALSE_ALARMS / 2

    return np.array([is_beyond(tail) for tail in tails])


def _pool_shifts(shifts: Floats, errors: Floats) -> tuple[float, float]:
    """Return the mean of n shifts, weighted by their precision, and the half-width of
    its interval.

    Configurations do not move alike: what they differ by beyond their errors adds to
    each variance (DerSimonian and Laird, Controlled Clinical Trials 7, 1986).
    """
    weights = errors**-2
    mean = np.sum(weights * shifts) / np.sum(weights)
    excess = np.sum(weights * (shifts - mean) ** 2) - (len(shifts) - 1)
    between = max(
        excess / (np.sum(weights) - np.sum(weights**2) / np.sum(weights)), 0.0
    )
    weights = 1 / (errors**2 + between)
    half_width = compute_quantile(1 - LEVEL, len(shifts) - 1.0) / math.sqrt(
        np.sum(weights)
    )
    return float(np.sum(weights * shifts) / np.sum(weights)), half_width
