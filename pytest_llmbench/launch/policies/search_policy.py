"""Bisect an ordered list of builds by noisy runs on the same nodes.

Finds the build that made a configuration slower. Build 0 is the good end, the last
build the bad end. The model has one level before the change and one after it. Every run
of every build updates the posterior of the change's position, so an unclear run is
neither discarded nor trusted on its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    BisectAnswer,
    BisectOutcome,
    BuildRange,
    LocatedChange,
    NextTrial,
    PairedEstimate,
    Trial,
    TrialOutcome,
    TrialReport,
)
from pytest_llmbench.judge.difference import (
    ASSUMED_CV,
    Fit,
    estimate_difference,
    pool_noise,
)
from pytest_llmbench.judge.distributions import compute_quantile
from pytest_llmbench.launch.policies.run_history import Conclusion, NextRuns, RunHistory
from pytest_llmbench.launch.policies.trial_ledger import (
    FIRST_ANALYSIS,
    MOST_PAIRS,
    TrialPlan,
    choose_in_round,
    choose_warm_up,
    conclude_trials,
    conclude_without_hours,
    count_measured,
    find_failure,
    find_round_end,
    get_level,
    list_measured,
    plan_trial,
    read_ledger,
)
from pytest_llmbench.report.trial_wording import describe_search

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats, Integers

REQUIRED_PROBABILITY = (
    0.95  # posterior probability required to report a build or a range
)
REQUIRED_RUNS = 2  # runs required of each build next to a change before it is reported
PRIOR_FREEDOM = 1.0  # degrees of freedom of the noise prior
# log posterior penalty of a change after which runs are faster
FASTER_PENALTY = 20.0
TWO_CHANGES = math.log(20)  # log evidence required for two changes instead of one
# one-sided significance levels
MIDDLE_LEVEL = 0.01  # of a middle level that differs from both ends
# of a build next to a change that differs from both ends; tested whether or not two
# changes fit better
NEIGHBOUR_LEVEL = 0.005
REMAINDER_LEVEL = 0.025  # of a further rise on each side of a change
COMPARED_DECIMALS = 9  # decimals to which posterior probabilities are compared


REASONS = {
    BisectOutcome.FOUND: Reason.PURPOSE_DONE,
    BisectOutcome.RANGE: Reason.RANGE,
    BisectOutcome.NO_CHANGE_BETWEEN_ENDS: Reason.NO_CHANGE_BETWEEN_ENDS,
}
"""The reason by outcome; PURPOSE_MISSED for all other outcomes."""


def next_runs(history: RunHistory, policy: TrialPlan) -> NextRuns | Conclusion:
    """Choose the build to run next, or report the build that is slower."""
    if history.pending:
        return NextRuns()
    ledger = read_ledger(history, policy)
    if not history.may_start:
        return conclude_without_hours(ledger, history.spec.purpose)
    builds = len(policy.names)
    trials = ledger.ordered_trials
    step = next_step(trials, builds, cap=policy.cap, noise=policy.earlier)
    if isinstance(step, NextTrial):
        good_end, bad_end = 0, builds - 1
        warm_up = choose_warm_up(trials, (good_end, bad_end), ledger.allocation)
        return plan_trial(ledger, warm_up or step)
    reason = REASONS.get(step.outcome, Reason.PURPOSE_MISSED)
    failed = reason is Reason.PURPOSE_MISSED
    text = describe_search(step, policy.names, policy.earlier)
    report = TrialReport(policy.names, search=step)
    return conclude_trials(ledger, text, reason, report, failed=failed)


def count_most_runs(builds: int, cap: int | None = None) -> int:
    """Return the maximum number of measured runs of a search.

    `cap` is the number in the variants file, if the file sets it. Failed and lost runs
    are not counted.
    """
    if cap is not None:
        return cap
    # a perfect bisection needs log2(builds) steps
    return 16 + 4 * math.ceil(math.log2(builds))


def next_step(
    trials: Sequence[Trial],
    builds: int,
    cap: int | None = None,
    noise: Noise | None = None,
) -> NextTrial | BisectAnswer:
    """Choose the next run, or return the answer of the search.

    Requires at least two `builds`. `noise` is the noise of earlier A/Bs of the
    configuration.

    FOUND: each change has a posterior probability of at least 0.95, and both
    neighbouring builds have two runs. NO_CHANGE_BETWEEN_ENDS: four pairs of the end
    builds do not show that the last build is slower. RANGE: the maximum number of runs
    is reached. An inner build that fails is skipped for good; an end build that fails
    twice ends the search. Two infrastructure failures in a row end it with LOST; a
    resumed session omits the lost trials and continues.
    """
    ends_difference = _compare_ends(trials, builds, noise)
    if isinstance(ends_difference, NextTrial | BisectAnswer):
        return ends_difference
    # the infrastructure lost the last run and the run of this build before it
    last = trials[-1]
    is_lost = last.outcome is TrialOutcome.LOST
    if is_lost and find_failure(trials, last.variant) is TrialOutcome.LOST:
        return _build_answer(BisectOutcome.LOST, trials, builds, ends_difference)
    table = _tabulate(trials, builds, noise)
    may_run = int(table.counts.sum()) < count_most_runs(builds, cap)
    results: list[LocatedChange | BuildRange] = []
    for result in _search(table, 0, builds, may_run=may_run):
        if isinstance(result, NextTrial):
            return result
        results.append(result)
    is_range = any(isinstance(result, BuildRange) for result in results)
    outcome = BisectOutcome.RANGE if is_range else BisectOutcome.FOUND
    return _build_answer(outcome, trials, builds, ends_difference, results)


def _build_answer(
    outcome: BisectOutcome,
    trials: Sequence[Trial],
    builds: int,
    ends_difference: PairedEstimate | None,
    results: Sequence[LocatedChange | BuildRange] = (),
) -> BisectAnswer:
    """Build the answer of a search from its trials and located changes.

    `ends_difference` is the difference of the end builds, if known.
    """
    changes = tuple(result for result in results if isinstance(result, LocatedChange))
    ranges = tuple(result for result in results if isinstance(result, BuildRange))
    skipped = {
        trial.variant for trial in trials if trial.outcome is TrialOutcome.DOES_NOT_RUN
    }
    good_end, bad_end = 0, builds - 1
    return BisectAnswer(
        outcome=outcome,
        ends=ends_difference,
        runs=len(list_measured(trials)),
        skipped=tuple(sorted(skipped - {good_end, bad_end})),
        changes=changes,
        ranges=ranges,
    )


# --- the end builds -------------------------------------------------------------------


def _compare_ends(
    trials: Sequence[Trial], builds: int, noise: Noise | None
) -> NextTrial | BisectAnswer | PairedEstimate:
    """Return the difference of the end builds if the bad end is significantly slower.

    Returns the next run if more pairs are needed, or the answer if the search ends
    here: the bad end is not shown to be slower, or an end build gets no further run.
    """
    ends = (0, builds - 1)
    estimate = None
    for rounds in range(1, MOST_PAIRS + 1):
        trial_count = find_round_end(trials, ends, rounds)
        if trial_count is None:  # the round is unfinished
            outcome = _find_failed_end(trials, ends, rounds)
            if outcome:
                return _build_answer(outcome, trials, builds, estimate)
            return NextTrial(choose_in_round(trials, ends, rounds))
        if rounds < FIRST_ANALYSIS:
            continue
        fit = _fit_ends(trials[:trial_count], ends)
        estimate = estimate_difference(fit, get_level(rounds, noise), noise)
        if estimate.low > 0:  # the bad end is slower
            return estimate
        if estimate.high < 0:  # the bad end is faster
            break
    return _build_answer(BisectOutcome.NO_CHANGE_BETWEEN_ENDS, trials, builds, estimate)


def _find_failed_end(
    trials: Sequence[Trial], ends: tuple[int, int], rounds: int
) -> BisectOutcome | None:
    """Return the outcome if an end build gets no further run, or None."""
    does_not_run = (BisectOutcome.GOOD_DOES_NOT_RUN, BisectOutcome.BAD_DOES_NOT_RUN)
    for variant, outcome in zip(ends, does_not_run, strict=True):
        if count_measured(trials, variant) >= rounds:
            continue
        failure = find_failure(trials, variant)
        if failure is TrialOutcome.LOST:
            return BisectOutcome.LOST
        if failure:
            return outcome
    return None


def _fit_ends(trials: Sequence[Trial], ends: tuple[int, int]) -> Fit:
    """Estimate the difference of the mean logarithms of both end builds.

    After n pairs the residuals have 2n - 2 degrees of freedom.
    """
    measured = list_measured(trials)
    good_end, bad_end = ends
    good = [run for run in measured if run.variant == good_end]
    bad = [run for run in measured if run.variant == bad_end]
    good_mean = _mean([run.logarithm for run in good])
    bad_mean = _mean([run.logarithm for run in bad])
    squares = sum(
        [
            *((run.logarithm - good_mean) ** 2 for run in good),
            *((run.logarithm - bad_mean) ** 2 for run in bad),
        ]
    )
    # all runs of one end may be rounded up, and all runs of the other end down
    rounding = _mean([run.rounding for run in good]) + _mean(
        [run.rounding for run in bad]
    )
    return Fit(
        difference=bad_mean - good_mean,
        factor=1 / len(good) + 1 / len(bad),
        squares=squares,
        freedom=len(good) + len(bad) - 2.0,
        runs=(len(good), len(bad)),
        rounding=rounding,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- the inner builds -----------------------------------------------------------------


class RunTable(Struct, frozen=True):
    """Sums over the runs of each build, as columns of shape (builds,).

    The logarithms of the step times are centred on their mean.
    """

    counts: Floats
    sums: Floats
    squares: Floats
    failed: Flags  # builds that do not run; their earlier measurements still count
    noise: Noise | None  # of earlier A/Bs
    ends_difference: float  # of the mean logarithms of both end builds
    # the largest error of a difference of two builds from rounding in the log
    rounding: float = 0.0

    @property
    def prior_squares(self) -> float:
        """The sum of squares of the noise prior."""
        sigma = self.noise.sigma if self.noise else ASSUMED_CV
        return PRIOR_FREEDOM * sigma**2


def _tabulate(trials: Sequence[Trial], builds: int, noise: Noise | None) -> RunTable:
    """Build the table of runs per build from the measured trials."""
    measured = list_measured(trials)
    variants = np.array([run.variant for run in measured])
    logarithms = np.array([run.logarithm for run in measured])
    logarithms -= logarithms.mean()
    failed = np.zeros(builds, dtype=bool)
    for trial in trials:
        failed[trial.variant] |= trial.outcome is TrialOutcome.DOES_NOT_RUN
    counts, sums, squares = (
        np.bincount(variants, weights, minlength=builds).astype(float)
        for weights in (np.ones(len(measured)), logarithms, logarithms**2)
    )
    good_mean, bad_mean = sums[0] / counts[0], sums[-1] / counts[-1]
    return RunTable(
        counts,
        sums,
        squares,
        failed,
        noise,
        ends_difference=float(bad_mean - good_mean),
        # one build may be rounded up, and the other build down
        rounding=2 * max(run.rounding for run in measured),
    )


def _search(
    table: RunTable, first: int, stop: int, *, may_run: bool
) -> Iterator[NextTrial | LocatedChange | BuildRange]:
    """Search the builds `first:stop`, whose end builds differ.

    Yields the located changes and ranges, or the next run if more data is needed.
    """
    # 1. Several changes: if a build lies between the levels of the end builds, search
    # both sides of it.
    middle = _find_middle(table, first, stop)
    if middle is not None:
        if _needs_runs(table, middle):
            if may_run:
                yield NextTrial(middle)
                return
        elif _is_between(table, (first, middle, stop - 1), MIDDLE_LEVEL):
            yield from _search_both_sides(table, first, middle, stop, may_run=may_run)
            return
    # 2. One change: report it if it is probable enough and both builds next to it have
    # enough runs.
    posterior = compute_posterior(table, first, stop)
    before, after, probability = _find_likeliest_change(table, posterior, first, stop)
    if probability >= REQUIRED_PROBABILITY:
        undersampled = [build for build in (before, after) if _needs_runs(table, build)]
        if not undersampled:
            # a neighbour with a level of its own: changes lie on both of its sides
            middle_builds = [
                build
                for build in (before, after)
                if _is_between(table, (first, build, stop - 1), NEIGHBOUR_LEVEL)
            ]
            if middle_builds:
                yield from _search_both_sides(
                    table, first, middle_builds[0], stop, may_run=may_run
                )
            else:
                yield _describe_change(table, (first, before, after, stop), probability)
            return
        if may_run:
            yield NextTrial(
                min(undersampled, key=lambda build: (table.counts[build], build))
            )
            return
    # 3. No answer yet: run the most uncertain build. If no run is left, report a range.
    if may_run:
        yield _choose_uncertain_build(table, posterior, first, stop)
    else:
        yield _find_range(posterior, first)


def _needs_runs(table: RunTable, build: int) -> bool:
    """True if a build has too few runs for a report, and has not failed."""
    return bool(table.counts[build] < REQUIRED_RUNS and not table.failed[build])


def _search_both_sides(
    table: RunTable, first: int, middle: int, stop: int, *, may_run: bool
) -> Iterator[NextTrial | LocatedChange | BuildRange]:
    """Search both sides of build `middle`, which belongs to both."""
    yield from _search(table, first, middle + 1, may_run=may_run)
    yield from _search(table, middle, stop, may_run=may_run)


def compute_posterior(table: RunTable, first: int, stop: int) -> Floats:
    """Return the posterior probability of each build to be the first slow one.

    Shape (stop - first - 1,), without the build `first`. Priors: flat on both levels;
    scaled inverse chi-square with PRIOR_FREEDOM degrees of freedom on the variance.
    """
    counts, sums = table.counts[first:stop], table.sums[first:stop]
    # of the runs before each possible change, and of the runs after it
    count_before = np.cumsum(counts)[:-1]
    count_after = np.cumsum(counts[::-1])[::-1][1:]
    sum_before = np.cumsum(sums)[:-1]
    sum_after = sums.sum() - sum_before
    # sum of squared deviations from the mean before, and from the mean after the change
    residuals = (
        table.squares[first:stop].sum()
        - sum_before**2 / count_before
        - sum_after**2 / count_after
    )
    spread = table.prior_squares + np.maximum(residuals, 0)
    power = (PRIOR_FREEDOM + counts.sum() - 2) / 2
    # log likelihood of each change, with both levels and the variance integrated out
    logarithms = -np.log(count_before * count_after) / 2 - power * np.log(spread)
    is_faster_after = sum_after / count_after < sum_before / count_before
    logarithms = logarithms - FASTER_PENALTY * is_faster_after
    weights = np.exp(logarithms - logarithms.max())
    return np.asarray(weights / weights.sum())


def _list_runnable(table: RunTable, first: int, stop: int) -> Integers:
    """List the builds of `first:stop` that have a measured run or have not failed."""
    has_runs = table.counts[first:stop] > 0
    is_runnable = has_runs | ~table.failed[first:stop]
    return np.flatnonzero(is_runnable) + first


def _accumulate(posterior: Floats) -> Floats:
    """Return the probability that each build is slow: the cumulative posterior.

    A build is slow if it is the first slow build, or follows it. The first build is the
    good end, whose probability is 0.
    """
    return np.concatenate([[0.0], np.cumsum(posterior)])


def _find_likeliest_change(
    table: RunTable, posterior: Floats, first: int, stop: int
) -> tuple[int, int, float]:
    """Return the builds before and after the most probable change, and its probability.

    All builds between the two neighbours failed, so that the change cannot be located
    more precisely.
    """
    runnable = _list_runnable(table, first, stop)
    cumulative = _accumulate(posterior)
    # that the change lies between each runnable build and the next one
    probabilities = np.diff(cumulative[runnable - first])
    best = int(np.argmax(probabilities))
    before, after = int(runnable[best]), int(runnable[best + 1])
    return before, after, float(probabilities[best])


def _choose_uncertain_build(
    table: RunTable, posterior: Floats, first: int, stop: int
) -> NextTrial:
    """Choose the build whose state (fast or slow) is least certain.

    Ties go to the build with fewer runs.
    """
    slow_probabilities = _accumulate(posterior)
    usable = np.flatnonzero(~table.failed[first:stop])
    distances = np.round(np.abs(slow_probabilities[usable] - 0.5), COMPARED_DECIMALS)
    run_counts = table.counts[first:stop][usable]
    # lexsort sorts by its last key first
    (best, *_) = np.lexsort((usable, run_counts, distances))
    return NextTrial(int(usable[best]) + first)


def _find_range(posterior: Floats, first: int) -> BuildRange:
    """Return the shortest range of builds with 95 % of the posterior."""
    cumulative = _accumulate(posterior)
    total = len(posterior)
    # For each possible start of a range: the end (exclusive) of the shortest range with
    # enough probability.
    starts = np.arange(total)
    tolerance = 10.0**-COMPARED_DECIMALS  # for rounding errors of the sums
    required = cumulative[:-1] + REQUIRED_PROBABILITY - tolerance
    stops = np.minimum(np.searchsorted(cumulative, required), total)
    probabilities = cumulative[stops] - cumulative[:-1]
    is_enough = probabilities >= REQUIRED_PROBABILITY - 2 * tolerance
    lengths = np.where(is_enough, stops - starts, total + 1)
    # the shortest range; of several, the most probable (lexsort: last key first)
    (best, *_) = np.lexsort((-probabilities, lengths))
    # element i of the posterior belongs to build first + 1 + i
    return BuildRange(
        first=first + int(best) + 1,
        last=first + int(stops[best]),
        probability=min(float(probabilities[best]), 1.0),
    )


# --- several changes ------------------------------------------------------------------


def _find_middle(table: RunTable, first: int, stop: int) -> int | None:
    """Find a level between those of the end builds, as two changes leave it.

    It exists if two rising steps fit the runs much better than one step. Returns its
    build with the most runs, or None if there is no such level.
    """
    # only builds with runs; a level consists of neighbouring builds
    builds = np.flatnonzero(table.counts[first:stop]) + first
    if len(builds) < 3:
        return None
    counts, sums = (
        np.concatenate([[0.0], np.cumsum(column[builds])])
        for column in (table.counts, table.sums)
    )
    total = float(table.squares[builds].sum())
    start, end = 0, len(builds)  # of the cumulative columns
    # one step, at each possible index
    inner = np.arange(1, len(builds))
    explained_by_one = _sum_explained(counts, sums, start, inner) + _sum_explained(
        counts, sums, inner, end
    )
    one_step_residuals = total - float(np.max(explained_by_one))
    # two steps, at each possible pair of indices
    left, right = (indices + 1 for indices in np.triu_indices(len(builds) - 1, 1))
    bounds_of_levels = ((start, left), (left, right), (right, end))
    low, middle, high = (
        _compute_means(counts, sums, *bounds) for bounds in bounds_of_levels
    )
    is_rising = (low < middle) & (middle < high)
    explained_by_two = sum(
        _sum_explained(counts, sums, *bounds) for bounds in bounds_of_levels
    )
    residuals = np.where(is_rising, total - explained_by_two, math.inf)
    best = int(np.argmin(residuals))
    two_step_residuals = float(residuals[best])
    if not math.isfinite(two_step_residuals):  # no pair of steps rises
        return None
    run_count = float(counts[end])
    ratio = (table.prior_squares + max(one_step_residuals, 0)) / (
        table.prior_squares + max(two_step_residuals, 0)
    )
    gain = (PRIOR_FREEDOM + run_count) / 2 * math.log(ratio)
    # log evidence for two steps: the better fit, less a penalty for two more
    # parameters, the level and the position of the second step
    evidence = gain - math.log(run_count) / 2 - math.log(stop - first)
    if evidence <= TWO_CHANGES:
        return None
    middle_builds = builds[left[best] : right[best]]
    most_runs = np.argmax(table.counts[middle_builds])
    return int(middle_builds[most_runs])


def _compute_means(
    counts: Floats, sums: Floats, start: Integers | int, stop: Integers | int
) -> Floats:
    """Return the means of the levels `start:stop` from cumulative columns."""
    return np.asarray((sums[stop] - sums[start]) / (counts[stop] - counts[start]))


def _sum_explained(
    counts: Floats, sums: Floats, start: Integers | int, stop: Integers | int
) -> Floats:
    """Return the sums of squares explained by the levels `start:stop`."""
    return np.asarray((sums[stop] - sums[start]) ** 2 / (counts[stop] - counts[start]))


def _estimate_noise(table: RunTable, first: int, stop: int) -> Noise:
    """Estimate the noise from the spread within each build of `first:stop`."""
    inside = slice(first, stop)
    has_several = table.counts[inside] > 1
    counts, sums, squares = (
        column[inside][has_several]
        for column in (table.counts, table.sums, table.squares)
    )
    residuals = float(np.maximum(squares - sums**2 / counts, 0).sum())
    return pool_noise(residuals, float((counts - 1).sum()), table.noise)


def _is_between(table: RunTable, builds: tuple[int, int, int], level: float) -> bool:
    """True if the second of three builds lies significantly between the others.

    It must be slower than the first, and faster than the third.
    """
    all_builds = np.arange(len(table.counts))
    first, middle, last = (all_builds == build for build in builds)
    return (
        _find_significant_rise(table, first, middle, level) > 0
        and _find_significant_rise(table, middle, last, level) > 0
    )


def _find_significant_rise(
    table: RunTable, before: Flags, after: Flags, level: float
) -> float:
    """Return the rise from the builds `before` to the builds `after`, or 0.

    0 if the rise is not significant at the one-sided `level`.
    """
    count_before = float(table.counts[before].sum())
    count_after = float(table.counts[after].sum())
    if not count_before or not count_after:
        return 0.0
    mean_before = float(table.sums[before].sum()) / count_before
    mean_after = float(table.sums[after].sum()) / count_after
    rise = mean_after - mean_before
    run_noise = _estimate_noise(table, 0, len(table.counts))
    error = run_noise.sigma * math.sqrt(1 / count_before + 1 / count_after)
    quantile = compute_quantile(1 - level, run_noise.degrees_of_freedom)
    threshold = quantile * error + table.rounding
    return rise if rise > threshold else 0.0


def _describe_change(
    table: RunTable, bounds: tuple[int, int, int, int], probability: float
) -> LocatedChange:
    """Describe a change between two neighbouring builds.

    `bounds` are the indices (first, before, after, stop): the change lies between
    `before` and `after`, estimated from the runs of `first:stop`.
    """
    first, before, after, stop = bounds
    fast, slow = slice(first, before + 1), slice(after, stop)
    count_fast = float(table.counts[fast].sum())
    count_slow = float(table.counts[slow].sum())
    mean_fast = float(table.sums[fast].sum()) / count_fast
    mean_slow = float(table.sums[slow].sum()) / count_slow
    residuals_fast = float(table.squares[fast].sum()) - count_fast * mean_fast**2
    residuals_slow = float(table.squares[slow].sum()) - count_slow * mean_slow**2
    residuals = residuals_fast + residuals_slow
    freedom = PRIOR_FREEDOM + (count_fast + count_slow) - 2
    sigma = math.sqrt((table.prior_squares + max(residuals, 0)) / freedom)
    factor = math.sqrt(1 / count_fast + 1 / count_slow)
    width = compute_quantile(0.975, freedom) * sigma * factor + table.rounding
    size = mean_slow - mean_fast
    builds = np.arange(len(table.counts))
    # `rest_before` and `rest_after`: a further rise between the end build and the other
    # builds of its side, which a second change there would cause
    return LocatedChange(
        first=before + 1,
        last=after,
        probability=min(probability, 1.0),
        size=size,
        low=size - width,
        high=size + width,
        share=size / table.ends_difference,
        rest_before=_find_significant_rise(
            table,
            builds == first,
            (builds > first) & (builds <= before),
            REMAINDER_LEVEL,
        ),
        rest_after=_find_significant_rise(
            table,
            (builds >= after) & (builds < stop - 1),
            builds == stop - 1,
            REMAINDER_LEVEL,
        ),
    )
