"""A noisy search over builds: the chosen builds, the end, and the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from msgspec.structs import replace
from support.run_histories import (
    CANCELLED,
    TRIAL,
    ended,
    ended_trial,
    list_variants,
    make_history,
    trial_history,
)

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import Purpose
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    BisectAnswer,
    BisectOutcome,
    NextTrial,
    Trial,
    TrialOutcome,
)
from pytest_llmbench.launch.policies.run_history import Conclusion, EndedJob, NextRuns
from pytest_llmbench.launch.policies.search_policy import (
    count_most_runs,
    next_runs,
    next_step,
)
from pytest_llmbench.launch.policies.trial_ledger import TrialPlan
from pytest_llmbench.launch.schedulers.shared_allocation import AllocationPlan

FAILED = TrialOutcome.DOES_NOT_RUN


class Builds:
    """Simulated builds with step changes, some of which do not run."""

    def __init__(
        self,
        changes: Mapping[int, float],
        cv: float = 0.003,
        broken: Sequence[int] = (),
        seed: int = 1,
    ) -> None:
        self.changes, self.cv, self.broken = changes, cv, broken
        self.random = np.random.default_rng(seed)

    def run(self, build: int) -> Trial:
        if build in self.broken:
            return Trial(build, FAILED, None)
        level = sum(
            math.log1p(size) for place, size in self.changes.items() if build >= place
        )
        return Trial(
            build,
            TrialOutcome.MEASURED,
            1000 * math.exp(level + self.cv * self.random.standard_normal()),
        )


def complete(
    builds: Builds,
    number: int = 32,
    cap: int | None = None,
    trials: Sequence[Trial] = (),
) -> tuple[list[Trial], BisectAnswer]:
    so_far = list(trials)
    for _ in range(300):
        step = next_step(so_far, number, cap)
        if isinstance(step, BisectAnswer):
            return so_far, step
        so_far.append(builds.run(step.variant))
    raise AssertionError("it never ends")


def test_search_ignores_a_change_within_one_printed_unit_of_step_time() -> None:
    class Printed(Builds):
        def run(self, build: int) -> Trial:
            return replace(super().run(build), rounding=0.01)

    _, answer = complete(Printed({13: 0.02}, cv=0.0001))
    assert answer.outcome is BisectOutcome.NO_CHANGE_BETWEEN_ENDS
    _, answer = complete(Printed({13: 0.05}, cv=0.0001))
    (change,) = answer.changes
    assert change.first == change.last == 13
    assert change.high - change.low > 0.04


@pytest.mark.parametrize("first_slow", [1, 13, 31])
def test_search_finds_the_first_slow_build_and_the_size_of_its_change(
    first_slow: int,
) -> None:
    trials, answer = complete(Builds({first_slow: 0.03}))
    assert answer.outcome is BisectOutcome.FOUND
    (change,) = answer.changes
    assert (change.first, change.last) == (first_slow, first_slow)
    assert change.low < math.log1p(0.03) < change.high
    assert change.probability >= 0.95
    assert change.share == pytest.approx(1, abs=0.25)
    assert (change.rest_before, change.rest_after) == (0, 0)
    assert len(trials) == answer.runs <= 13
    runs = [trial.variant for trial in trials]
    assert min(runs.count(first_slow - 1), runs.count(first_slow)) >= 2


def test_equally_fast_end_builds_end_the_search_after_four_pairs() -> None:
    trials, answer = complete(Builds({}, seed=3))
    assert answer.outcome is BisectOutcome.NO_CHANGE_BETWEEN_ENDS
    assert [trial.variant for trial in trials] == [0, 31, 31, 0, 31, 0, 0, 31]
    assert answer.ends is not None
    assert answer.ends.low < 0 < answer.ends.high
    assert (answer.changes, answer.ranges) == ((), ())


def test_search_ends_after_two_pairs_if_the_bad_build_is_faster() -> None:
    trials, answer = complete(Builds({10: -0.05}))
    assert (answer.outcome, len(trials)) == (BisectOutcome.NO_CHANGE_BETWEEN_ENDS, 4)


def test_search_runs_a_failing_build_once_and_reports_skipped_builds() -> None:
    trials, answer = complete(Builds({16: 0.05}, broken=[14, 15, 16, 20]))
    (change,) = answer.changes
    assert (change.first, change.last) == (14, 17)
    assert set(answer.skipped) <= {14, 15, 16, 20}
    failed = [trial.variant for trial in trials if trial.outcome is FAILED]
    assert len(failed) == len(set(failed))


@pytest.mark.parametrize(
    ("broken", "outcome"),
    [(0, BisectOutcome.GOOD_DOES_NOT_RUN), (31, BisectOutcome.BAD_DOES_NOT_RUN)],
)
def test_end_build_that_fails_twice_ends_the_search(
    broken: int, outcome: BisectOutcome
) -> None:
    trials, answer = complete(Builds({}, broken=[broken]))
    assert answer.outcome is outcome
    assert sum(trial.outcome is FAILED for trial in trials) == 2


def test_earlier_measurement_of_a_build_still_counts_if_a_later_run_fails() -> None:
    builds = Builds({16: 0.05})
    trials, _ = complete(builds)
    cut = (
        next(index for index, trial in enumerate(trials) if trial.variant in (15, 16))
        + 1
    )
    repeated = trials[cut - 1].variant
    _, answer = complete(builds, trials=[*trials[:cut], Trial(repeated, FAILED, None)])
    (change,) = answer.changes
    assert change.first <= 16 <= change.last


def test_search_finds_two_slowdowns_in_one_range_of_builds() -> None:
    trials, answer = complete(Builds({8: 0.03, 22: 0.03}))
    assert [(change.first, change.last) for change in answer.changes] == [
        (8, 8),
        (22, 22),
    ]
    assert sum(change.share for change in answer.changes) == pytest.approx(1, abs=0.2)
    assert len(trials) <= count_most_runs(32)


def test_search_at_the_limit_of_runs_reports_a_range_and_can_continue() -> None:
    builds = Builds({20: 0.03}, cv=0.004)
    trials, answer = complete(builds, cap=6)
    assert (answer.outcome, len(trials), answer.changes) == (BisectOutcome.RANGE, 6, ())
    (where,) = answer.ranges
    assert where.first <= 20 <= where.last
    assert where.probability >= 0.94
    more, answer = complete(builds, trials=trials)
    assert more[:6] == trials
    assert answer.outcome is BisectOutcome.FOUND


def test_search_repeats_a_lost_run_and_pauses_after_two() -> None:
    builds = Builds({20: 0.05})
    trials, answer = complete(builds)
    cut = trials[:6]
    step = next_step(cut, 32)
    assert isinstance(step, NextTrial)
    lost = Trial(step.variant, TrialOutcome.LOST, None)
    assert next_step([*cut, lost], 32) == step
    ended = next_step([*cut, lost, lost], 32)
    assert isinstance(ended, BisectAnswer)
    assert ended.outcome is BisectOutcome.LOST
    assert next_step(cut, 32) == step
    _, resumed = complete(Builds({20: 0.05}, seed=2), trials=cut)
    assert resumed.changes[0].first == answer.changes[0].first


def test_resumed_comparison_plans_the_same_next_run() -> None:
    trials, answer = complete(Builds({8: 0.03, 22: 0.03}, broken=[9, 15]))
    for cut in range(0, len(trials), 3):
        assert next_step(trials[:cut], 32) == NextTrial(trials[cut].variant)
    assert next_step(trials, 32) == answer


def test_equal_times_cause_no_division_by_zero() -> None:
    _, answer = complete(Builds({5: 0.02}, cv=0))
    assert [(change.first, change.last) for change in answer.changes] == [(5, 5)]


def test_search_over_two_builds_ends_after_four_runs() -> None:
    trials, answer = complete(Builds({1: 0.05}), 2)
    (change,) = answer.changes
    assert (change.first, change.last, len(trials)) == (1, 1, 4)


def test_search_reports_adjacent_failing_builds_as_one_range() -> None:
    _, answer = complete(Builds({2: 0.05}, broken=range(1, 7)), 8)
    (change,) = answer.changes
    assert (change.first, change.last, answer.skipped) == (1, 7, tuple(range(1, 7)))


def test_number_of_runs_is_known_before_the_search() -> None:
    assert [count_most_runs(builds) for builds in (8, 32, 128)] == [28, 36, 44]
    assert count_most_runs(32, cap=9) == 9


@pytest.mark.parametrize("seed", [14, 32])
def test_search_finds_two_slowdowns_if_builds_between_them_are_of_middle_speed(
    seed: int,
) -> None:
    """The build next to the first located change is slower than one end and faster than
    the other."""
    _, answer = complete(Builds({8: 0.02, 22: 0.02}, seed=seed))
    assert [(change.first, change.last) for change in answer.changes] == [
        (8, 8),
        (22, 22),
    ]


# --- next_runs ------------------------------------------------------------------------

BUILDS = list_variants(
    (f"c{number}" for number in range(9)), replace(TRIAL, purpose=Purpose.BISECT)
)
HOLDER = replace(TRIAL, purpose=Purpose.ALLOCATION, command=("sbatch", "./launch.sh"))
NINE = TrialPlan(BUILDS, most=40)
SHARED = replace(NINE, allocation=AllocationPlan(HOLDER, "", 600.0))


def timed(build: int, seconds: float) -> Trial:
    return Trial(build, TrialOutcome.MEASURED, seconds * 1000)


def search(slower: float, policy: TrialPlan = NINE) -> tuple[list[Trial], Conclusion]:
    """Search builds that take longer by this factor from c5 on."""
    trials: list[Trial] = []
    while isinstance(
        step := next_runs(trial_history(BUILDS, trials), policy), NextRuns
    ):
        build = int(step.runs[-1].spec.variant[1:])
        trials.append(timed(build, slower if build >= 5 else 1.0))
    assert isinstance(step, Conclusion)
    return trials, step


def test_search_names_the_first_slow_build() -> None:
    trials, conclusion = search(1.05)
    assert (conclusion.reason, conclusion.done) == (Reason.PURPOSE_DONE, True)
    assert conclusion.text.startswith("first slow: c5: +5.00 % (95 %: ")
    assert conclusion.text.endswith(f"; {len(trials)} runs (on n[1-2])")


def test_noise_of_earlier_comparisons_shortens_the_search() -> None:
    """A small difference of the ends is significant at once, and fewer runs locate the
    build."""
    noise = Noise(0.001, 10.0, "2 earlier A/Bs", measured=True)
    alone, _ = search(1.01)
    trials, conclusion = search(1.01, replace(NINE, earlier=noise))
    assert conclusion.text.startswith("first slow: c5: +1.00 %")
    assert conclusion.text.endswith(
        "runs; noise from 2 earlier A/Bs (10 degrees of freedom) (on n[1-2])"
    )
    assert len(trials) < len(alone)


def test_search_ends_at_the_limit_of_runs_in_the_variants_file() -> None:
    trials, conclusion = search(1.01, replace(NINE, cap=9))
    assert len(trials) == 9
    assert (conclusion.reason, conclusion.done) == (Reason.RANGE, True)


@pytest.mark.parametrize(
    ("trials", "reason", "done", "text"),
    [
        (
            [timed(build, 1.0) for build in (0, 8, 8, 0, 8, 0, 0, 8)],
            Reason.NO_CHANGE_BETWEEN_ENDS,
            True,
            "no change between c0 and c8, so ",
        ),
        (
            [timed(build, 1.0 if build else 1.05) for build in (0, 8, 8, 0)],
            Reason.NO_CHANGE_BETWEEN_ENDS,
            True,
            "c8, the bad end, is faster than c0, the good end: swap them",
        ),
        (
            [Trial(0, TrialOutcome.DOES_NOT_RUN, None)] * 2,
            Reason.PURPOSE_MISSED,
            False,
            "not searched: c0 does not run; 0 runs; exit code 1",
        ),
    ],
    ids=["alike", "faster", "does not run"],
)
def test_search_ends_if_the_bad_build_is_not_slower(
    trials: list[Trial], reason: Reason, done: bool, text: str
) -> None:
    step = next_runs(trial_history(BUILDS, trials), NINE)
    assert isinstance(step, Conclusion)
    assert (step.reason, step.done) == (reason, done)
    assert step.text.startswith(text)


def test_first_runs_in_an_allocation_are_discarded_as_warm_up() -> None:
    """A second allocation begins with them, too; their times do not count."""
    jobs: list[EndedJob] = []
    so_far: list[Trial] = []
    while isinstance(
        step := next_runs(make_history(*jobs, spec=BUILDS[0]), SHARED), NextRuns
    ):
        spec = step.runs[-1].spec
        build = int(spec.variant[1:])
        seconds = 9.0 if spec.warm_up else 1.05 if build >= 5 else 1.0
        so_far.append(
            replace(
                timed(build, seconds),
                is_warm_up=spec.warm_up,
                allocation=spec.allocation,
            )
        )
        jobs.append(ended_trial(len(so_far), BUILDS[build], so_far[-1]))
        if len(so_far) == 9:
            jobs.append(ended(1, CANCELLED, spec=HOLDER))
    assert [trial.variant for trial in so_far[:6]] == [0, 8, 0, 8, 8, 0]
    assert [index for index, trial in enumerate(so_far) if trial.is_warm_up] == [
        0,
        1,
        9,
        10,
    ]
    assert isinstance(step, Conclusion)
    assert step.text.startswith("first slow: c5: +5.00 % (95 %: ")


@pytest.mark.parametrize("outcome", [TrialOutcome.LOST, TrialOutcome.DOES_NOT_RUN])
def test_end_build_that_fails_again_in_another_allocation_ends_the_search(
    outcome: TrialOutcome,
) -> None:
    times = [
        replace(timed(build, 1.05 if build else 1.0), allocation=1)
        for build in (0, 8, 8, 0)
    ]
    jobs = [
        ended_trial(number, BUILDS[trial.variant], trial)
        for number, trial in enumerate(times, 1)
    ]
    jobs.append(ended(1, CANCELLED, spec=HOLDER))
    for number in range(5, 45):
        step = next_runs(make_history(*jobs, spec=BUILDS[0]), SHARED)
        if isinstance(step, Conclusion):
            break
        assert isinstance(step, NextRuns)
        spec = step.runs[-1].spec
        trial = Trial(
            int(spec.variant[1:]), TrialOutcome.MEASURED, 1000.0, spec.warm_up, 2
        )
        if trial.variant == 8:
            trial = replace(trial, outcome=outcome)
        job = ended_trial(number, BUILDS[trial.variant], trial)
        exit_code = replace(job.job.status, exit_code="1:0") if job.job.status else None
        jobs.append(replace(job, job=replace(job.job, status=exit_code)))
    assert isinstance(step, Conclusion)
