"""Whether numbers agree: the mean of a run with its trimmed mean, and the runs of a
baseline with each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import Estimate, Evidence
from pytest_llmbench.core.robust import (
    HICCUP,
    MOST_STALLS,
    compute_mean,
    compute_trimmed_mean,
    winsorise,
)
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.distributions import compute_quantile
from pytest_llmbench.judge.estimate import (
    EQUAL,
    FEWEST_STEPS,
    Answer,
    bound_run_rounding,
    estimate_within,
)
from pytest_llmbench.judge.noise import REACHING, estimate_within_run

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

    Statistic = Callable[[Floats, Sequence[int]], float]

# how much more than those of the recorded runs the steps of a run differ that is
# noisier
NOISIER = 1.5

# tolerances: a statistic that the steps fix to no better than this passes nothing
WIDEST = 4

# what slow steps may add to a mean: more in a baseline excuses nothing, and more in a
# run is no hiccup
STALLS = 1.25


def find_doubt(
    own_answer: Answer, current: Sequence[Measurement], evidence: Evidence
) -> CodedStatement | None:
    """Return the other statistic if it does not share an answer, None if it does."""
    trimmed = evidence.baseline.window.statistic != "trimmed_mean"
    statistic = compute_trimmed_mean if trimmed else compute_mean
    expected = _expect_seconds(evidence.baseline, trimmed=trimmed)
    difference = _average_difference(current, statistic, expected)
    beyond = difference > math.log(evidence.tolerance.factor) + EQUAL
    if beyond is (own_answer is Answer.BEYOND):
        return None
    return CodedStatement(
        StatementCode.OTHER_STATISTIC,
        trimmed=trimmed,
        beyond=beyond,
        difference=difference,
        expected=expected,
    )


class LiteralRule(NamedTuple):
    """The answer of the literal rule, which decides what becomes of an INCONCLUSIVE
    run."""

    meets: bool
    reason: Reason | None = (
        None  # the reason that it is not met although the statistic is within the bound
    )
    because: CodedStatement | None = None


def apply_literal_rule(
    current: Sequence[Measurement], evidence: Evidence, estimate: Estimate
) -> LiteralRule:
    """Return the answer of the literal rule: measured <= bound.

    A statistic within the bound is not enough. The plain mean has to be within it too,
    after at most two transient stalls (5 % of the records if that is less) are set to
    the next slowest record: against the recorded runs' own plain mean, so that saves
    that were recorded are no stalls. And the steps have to fix the statistic at all:
    its interval by them alone is at most four tolerances wide. Assumed noise is no part
    of that interval.
    """
    if estimate.difference > estimate.margin + EQUAL or find_coarse_time(
        current, evidence
    ):
        return LiteralRule(meets=False)
    if mean := _find_slow_mean(current, evidence, estimate.margin):
        return LiteralRule(meets=False, reason=Reason.FEW_STEPS_DECIDE, because=mean)
    if interval := _find_wide_interval(current, estimate):
        return LiteralRule(
            meets=False, reason=Reason.INTERVAL_TOO_WIDE, because=interval
        )
    return LiteralRule(meets=True)


def meets_point(
    current: Sequence[Measurement], evidence: Evidence, estimate: Estimate
) -> bool:
    """Return True if the runs meet the literal rule (`apply_literal_rule`)."""
    return apply_literal_rule(current, evidence, estimate).meets


def _find_slow_mean(
    current: Sequence[Measurement], evidence: Evidence, margin: float
) -> CodedStatement | None:
    """Return the plain mean if it is beyond the bound, None if it is within it or
    decides the verdict itself."""
    if evidence.baseline.window.statistic == "mean":
        return None
    expected = _expect_seconds(evidence.baseline, trimmed=False)
    averaged = max(run.moving_mean for run in current)
    usual = _average_difference(
        current,
        lambda window, steps: _average_without_hiccup(window, steps, averaged),
        expected,
    )
    with_hiccups = _average_difference(current, compute_mean, expected)
    if usual <= margin + EQUAL and with_hiccups <= margin + math.log(STALLS):
        return None
    return CodedStatement(
        StatementCode.SLOW_MEAN,
        difference=with_hiccups,
        expected=expected,
        forgiven=0 if usual <= margin + EQUAL else MOST_STALLS,
    )


def _find_wide_interval(
    current: Sequence[Measurement], estimate: Estimate
) -> CodedStatement | None:
    """Return the interval if the steps do not fix their statistic, None if they do or
    are too few to show it."""
    # The interval of the verdict is at least as wide.
    if (
        estimate.threshold_only
        or estimate.high - estimate.low <= WIDEST * estimate.margin
    ):
        return None
    inside = [estimate_within(run) for run in current]
    count = len(inside)
    error = math.sqrt(sum(within.error**2 for within in inside)) / count
    # Correlated steps widen the error. They are no reason to know that error less well:
    # t would be that of two steps.
    freedom = max(sum(len(run.window_seconds) for run in current) - count, 1)
    half = compute_quantile(1 - estimate.level, freedom) * error
    below = min(half, sum(within.reach for within in inside) / count)
    above = min(half, sum(map(_reach_up, current)) / count)
    width = below + above
    if width <= WIDEST * estimate.margin + EQUAL or all(map(_varies_as_usual, current)):
        return None
    return CodedStatement(
        StatementCode.WIDE_INTERVAL, low=-below, high=above, tolerances=WIDEST
    )


def find_coarse_time(
    current: Sequence[Measurement], evidence: Evidence
) -> CodedStatement | None:
    """Return the time of a run that may be beyond the bound and print the same, as a
    rate of one or two digits does.

    None without such a run.
    """
    for run in current:
        slowest = _find_slowest(run, evidence)
        bound = evidence.baseline.step_seconds * evidence.tolerance.factor
        if slowest > bound * (1 + EQUAL):
            seconds = run.statistic_seconds or math.nan
            return CodedStatement(
                StatementCode.COARSE_TIME, seconds=seconds, slowest=slowest
            )
    return None


def _find_slowest(run: Measurement, evidence: Evidence) -> float:
    """Return the slowest statistic that is printed as that of a run, where one printed
    unit is more than the margin.

    Steps that differ by as much are rounded up as often as down.
    """
    seconds = run.statistic_seconds or math.nan
    half = bound_run_rounding(run)
    return (
        seconds * (1 + half) if 2 * half > evidence.tolerance.factor - 1 else math.nan
    )


def _varies_as_usual(run: Measurement) -> bool:
    """Return True if the steps of a run differ hardly more than those of the recorded
    runs did.

    How much those of a document differ is unknown: ten records or more may be as noisy
    as they are.
    """
    recording, window = run.baseline.recording, np.array(run.window_seconds)
    if recording is None:
        return len(window) >= REACHING
    recorded = recording.standard_deviation_seconds / recording.mean_seconds
    return (
        float(np.std(window, ddof=1)) / compute_mean(window, run.mean_of)
        <= NOISIER * recorded
    )


def _reach_up(run: Measurement) -> float:
    """Return the log difference of the slowest step that counts to the statistic: no
    mean of such steps lies above it.

    Infinite for few steps, all of which may be fast by chance.
    """
    window, statistic = np.array(run.window_seconds), run.statistic_seconds or math.nan
    if len(window) < REACHING:
        return math.inf
    slowest = window if run.baseline.window.statistic == "mean" else winsorise(window)
    return math.log(float(slowest.max()) / statistic)


def _average_difference(
    current: Sequence[Measurement], statistic: Statistic, expected: float
) -> float:
    windows = [(np.array(run.window_seconds), run.mean_of) for run in current]
    return sum(
        math.log(statistic(window, steps) / expected) for window, steps in windows
    ) / len(windows)


def _expect_seconds(baseline: Baseline, *, trimmed: bool) -> float:
    """Return the baseline's value of a statistic; a document prints only one."""
    recording = baseline.recording
    if recording is None:
        return baseline.step_seconds
    stalled = recording.trimmed_mean_seconds * STALLS
    return (
        recording.trimmed_mean_seconds
        if trimmed
        else min(recording.mean_seconds, stalled)
    )


def _average_without_hiccup(
    window: Floats, mean_of: Sequence[int], averaged: int
) -> float:
    """Return the mean with the few slowest records set to the next slowest.

    In moving means of `averaged` steps a stall shows in as many records. Of few records
    that are means themselves, one in twenty at most is set so.
    """
    order = np.argsort(window)[::-1]
    share = HICCUP * len(window)
    few = min(
        MOST_STALLS,
        int(share) if any(steps > 1 for steps in mean_of) else math.ceil(share),
    )
    slow = min(few + averaged - 1, len(window) - 1)
    return compute_mean(np.minimum(window, window[order[slow]]), mean_of)


# --- the runs of a baseline: how many are independent, and whether they are of one leve


# Runs that start within so long after the first of a day are of that day, also beyond
# midnight (UTC).
SAME_DAY = timedelta(hours=12)

FEWEST_GROUPS = 3  # a baseline from fewer days or sets of nodes is warned about
ENOUGH_GROUPS = 5  # so many are recommended


@dataclass(frozen=True, slots=True)
class Occasion:
    """When a run started, and on which nodes."""

    started: datetime | None
    nodes: frozenset[str] = frozenset()  # empty where nothing says it


def count_groups(occasions: Iterable[Occasion]) -> int:
    """Return how many of the runs are independent."""
    return len(group_occasions(tuple(occasions)))


def group_occasions(occasions: Sequence[Occasion]) -> list[list[int]]:
    """Return the places of the runs of each group: those of one day on one set of nodes
    share what made them fast or slow and count once. What nothing is known of is not
    taken to differ."""
    groups: list[list[int]] = []
    for place in sorted(
        range(len(occasions)), key=lambda place: _make_order_key(occasions[place])
    ):
        occasion = occasions[place]
        firsts = (occasions[group[0]] for group in groups)
        same = (
            _is_same_day(occasion, first) and _share_nodes(occasion, first)
            for first in firsts
        )
        number = next((number for number, is_same in enumerate(same) if is_same), None)
        if number is None:
            groups.append([place])
        else:
            groups[number].append(place)
    return groups


def _make_order_key(occasion: Occasion) -> tuple[bool, float]:
    """Return the order of occasions: those without a start come last, they belong to
    whatever is there."""
    started = occasion.started
    return started is None, started.timestamp() if started else 0.0


def _is_same_day(occasion: Occasion, other: Occasion) -> bool:
    if occasion.started is None or other.started is None:
        return True
    return (
        occasion.started.date() == other.started.date()
        or abs(occasion.started - other.started) < SAME_DAY
    )


def _share_nodes(occasion: Occasion, other: Occasion) -> bool:
    """Whether two sets of nodes are one: more than half of the smaller is in the other,
    or one is not known."""
    smaller = min(len(occasion.nodes), len(other.nodes))
    return 2 * len(occasion.nodes & other.nodes) > smaller or not smaller


# --- levels ---------------------------------------------------------------------------

# Levels count as several from here on: so much slower than the faster one would the
# mean be, as a fraction.
SMALLEST_HARM = 0.01

ALONE = 6  # of so many runs a single one is a bad day, and no level

# From this ratio on 2, 3, ... runs (the last stands for more) are of two levels, one
# after the other in time or in any order: what lies between the two over what lies
# within them, squared, with two degrees of half the expected noise. Each is what the
# noisiest runs of one level (twice the expected noise) reach in 0.4 % of recordings;
# docs/baselines.md.
IN_TIME = (66.9, 48.0, 31.0, 18.8, 10.5, 7.3, 5.3, 4.2, 3.3)
AT_ALL = (66.9, 53.5, 39.3, 29.4, 21.4, 16.9, 13.9, 11.9, 10.3)


@dataclass(frozen=True, slots=True)
class RunLevels:
    """Two levels among runs."""

    fast_runs: int
    slow_runs: int
    fast_seconds: float  # a geometric mean, as the other one
    slow_seconds: float


def find_run_levels(
    seconds: Sequence[float], expected_noise: float, *, ordered: bool
) -> RunLevels | None:
    """Return the two levels that runs are of; None where they may as well be of one.

    `seconds` are the statistics of the runs, in their order in time where they are
    `ordered`, `expected_noise` is the standard deviation of log(seconds) from run to
    run. Of runs of one level with up to twice that noise fewer than 1 % are taken for
    two; runs of one day that share what the day added may be.
    """
    logarithms = np.log(np.array(seconds, dtype=float))
    if len(logarithms) < 2:
        return None
    in_time = _split(logarithms, expected_noise, IN_TIME) if ordered else None
    return in_time or _split(np.sort(logarithms), expected_noise, AT_ALL)


def _split(
    logarithms: Floats, expected_noise: float, limits: Sequence[float]
) -> RunLevels | None:
    """Return the two parts of a sequence that differ most beside what they hold, if
    they differ by enough."""
    count = len(logarithms)
    fewest = 1 if count < ALONE else 2
    places = range(fewest, count - fewest + 1)
    place = max(places, key=lambda cut: _sum_between(logarithms, cut))
    between = _sum_between(logarithms, place)
    within = count * float(np.var(logarithms)) - between
    limit = limits[min(count, len(limits) + 1) - 2]
    fast, slow = sorted(
        (logarithms[:place], logarithms[place:]), key=lambda part: float(np.mean(part))
    )
    low, high = float(np.mean(fast)), float(np.mean(slow))
    harm = (high - low) * len(slow) / count
    if harm < SMALLEST_HARM or between <= limit * (
        within + 2 * (expected_noise / 2) ** 2
    ):
        return None
    return RunLevels(len(fast), len(slow), math.exp(low), math.exp(high))


def _sum_between(logarithms: Floats, place: int) -> float:
    """Return the sum of squares between the two parts of a sequence."""
    count = len(logarithms)
    difference = float(np.mean(logarithms[:place]) - np.mean(logarithms[place:]))
    return place * (count - place) / count * difference**2


def expect_noise(runs: Sequence[Measurement], assumed_cv: float) -> float:
    """Return how much the trimmed means of runs are expected to differ: what is
    assumed, and what happens within."""
    errors = [_estimate_error_within(run) for run in runs]
    return math.hypot(
        assumed_cv, math.sqrt(sum(error**2 for error in errors) / len(errors))
    )


def _estimate_error_within(run: Measurement) -> float:
    if len(run.window_seconds) < FEWEST_STEPS:
        return 0.0
    window = np.array(run.window_seconds)
    half_unit = run.resolution_seconds / 2 / float(np.mean(window))
    inside = estimate_within_run(window, "trimmed_mean", run.moving_mean, run.mean_of)
    return math.hypot(inside.error, half_unit / math.sqrt(3))
