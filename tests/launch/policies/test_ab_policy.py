"""A/B on the same nodes: the order of the runs, the end, and the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.run_histories import TRIAL, describe_step, list_variants, trial_history

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import Purpose
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    NextTrial,
    PairedAnswer,
    PairedOutcome,
    Trial,
    TrialOutcome,
)
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.policies.ab_policy import (
    count_most_runs,
    next_runs,
    next_step,
)
from pytest_llmbench.launch.policies.run_history import Conclusion, NextRuns
from pytest_llmbench.launch.policies.trial_ledger import TrialPlan
from pytest_llmbench.launch.schedulers.shared_allocation import AllocationPlan

SEPARATE: dict[str, Any] = {}
SHARED: dict[str, Any] = {"allocation": 0}

Runner = Callable[[int, NextTrial], Trial]


def measured(variant: int, milliseconds: float, *, is_warm_up: bool = False) -> Trial:
    return Trial(variant, TrialOutcome.MEASURED, milliseconds, is_warm_up)


def complete(
    settings: dict[str, Any], run: Runner, trials: Sequence[Trial] = ()
) -> tuple[list[Trial], tuple[PairedAnswer, ...]]:
    """Add the requested runs until there is an answer."""
    so_far = list(trials)
    for _ in range(100):
        step = next_step(so_far, **settings)
        if not isinstance(step, NextTrial):
            return so_far, step
        so_far.append(run(len(so_far), step))
    raise AssertionError("it never ends")


def steady(difference: float = 0.0, cv: float = 0.003, seed: int = 1) -> Runner:
    random = np.random.default_rng(seed)

    def run(_: int, step: NextTrial) -> Trial:
        logarithm = difference * (step.variant > 0) + cv * random.standard_normal()
        return measured(
            step.variant, 1000 * math.exp(logarithm), is_warm_up=step.is_warm_up
        )

    return run


def order(trials: Sequence[Trial]) -> str:
    return "".join(
        "abc"[trial.variant] if trial.is_warm_up else "ABC"[trial.variant]
        for trial in trials
    )


def test_comparison_runs_pairs_in_order_ab_ba_ba_ab_after_warm_up() -> None:
    trials, (answer,) = complete(SHARED, steady(cv=0.02))
    assert (order(trials), answer.outcome) == ("abABBABAAB", PairedOutcome.CANNOT_TELL)
    assert len(trials) == count_most_runs(2, shared=True)
    trials, _ = complete(SEPARATE, steady(cv=0.02))
    assert order(trials) == "ABBABAAB"


@pytest.mark.parametrize("difference", [0.05, -0.05])
def test_clear_difference_ends_the_comparison_early(difference: float) -> None:
    trials, (answer,) = complete(SHARED, steady(difference))
    assert answer.outcome is (
        PairedOutcome.SLOWER if difference > 0 else PairedOutcome.FASTER
    )
    assert (len(trials), answer.pairs) == (6, 2)
    assert answer.estimate is not None
    assert answer.estimate.low < difference < answer.estimate.high
    assert not answer.estimate.noise.measured  # too few pairs


def test_variants_are_called_alike_only_at_the_last_analysis() -> None:
    trials, (answer,) = complete(SEPARATE, steady(cv=0.001, seed=2))
    assert (answer.outcome, answer.pairs, len(trials)) == (PairedOutcome.ALIKE, 4, 8)
    assert answer.estimate is not None
    assert answer.estimate.runs == (4, 4)


@pytest.mark.parametrize(
    ("unit", "outcome"),
    [(0.0, PairedOutcome.SLOWER), (0.008, PairedOutcome.CANNOT_TELL)],
)
def test_variants_that_differ_by_one_printed_unit_cannot_be_told_apart(
    unit: float, outcome: PairedOutcome
) -> None:
    """All runs of a variant round the same way: 0.8 % may be any difference from 0 to 1.6
    %."""

    def run(_: int, step: NextTrial) -> Trial:
        milliseconds = 1000 * math.exp(0.008 * step.variant)
        return replace(measured(step.variant, milliseconds), rounding=unit / 2)

    _, (answer,) = complete(SEPARATE, run)
    assert answer.outcome is outcome
    assert answer.estimate is not None
    assert answer.estimate.low == pytest.approx(0.008 - unit, abs=5e-4)


def test_linear_drift_is_no_difference() -> None:
    """0.1 % per run without noise: the trend is fitted."""
    _, (answer,) = complete(
        SEPARATE,
        lambda offset, step: measured(step.variant, 1000 * math.exp(0.001 * offset)),
    )
    assert answer.outcome is PairedOutcome.ALIKE
    assert answer.estimate is not None
    assert answer.estimate.difference == pytest.approx(0, abs=1e-9)


def test_new_allocation_warms_up_again_and_continues() -> None:
    trials, _ = complete(SHARED, steady(cv=0.02))
    killed = trials[:5]
    resumed, _ = complete(
        {"allocation": 1},
        lambda _, step: Trial(
            step.variant, TrialOutcome.MEASURED, 1000.0, step.is_warm_up, allocation=1
        ),
        killed,
    )
    assert order(resumed) == "abABB" + "ab" + "ABAAB"


def test_lost_run_is_repeated_after_its_pair() -> None:
    normal = steady(cv=0.02)

    def run(index: int, step: NextTrial) -> Trial:
        return (
            Trial(step.variant, TrialOutcome.LOST, None)
            if index == 2
            else normal(index, step)
        )

    trials, (answer,) = complete(SEPARATE, run)
    assert order(trials) == "AB" + "BAB" + "BAAB"
    assert answer.pairs == 4
    assert next_step(
        [trial for trial in trials if trial.outcome is not TrialOutcome.LOST],
        **SEPARATE,
    ) == (answer,)


LOST, FAILED = TrialOutcome.LOST, TrialOutcome.DOES_NOT_RUN


@pytest.mark.parametrize(
    ("variant", "trial", "outcome"),
    [
        (0, LOST, PairedOutcome.LOST),
        (1, LOST, PairedOutcome.LOST),
        (0, FAILED, PairedOutcome.REFERENCE_DOES_NOT_RUN),
        (1, FAILED, PairedOutcome.DOES_NOT_RUN),
    ],
)
def test_variant_that_is_lost_or_fails_twice_ends_the_comparison(
    variant: int, trial: TrialOutcome, outcome: PairedOutcome
) -> None:
    normal = steady()

    def run(index: int, step: NextTrial) -> Trial:
        return (
            Trial(variant, trial, None)
            if step.variant == variant
            else normal(index, step)
        )

    trials, (answer,) = complete(SEPARATE, run)
    assert (answer.outcome, answer.estimate) == (outcome, None)
    assert sum(trial_made.outcome is trial for trial_made in trials) == 2


def test_comparison_goes_on_for_other_variants_after_one_is_decided_or_fails() -> None:
    settings = {"variant_count": 3}
    normal = steady(cv=0.001, seed=3)

    def run(index: int, step: NextTrial) -> Trial:
        return measured(1, 1100.0) if step.variant == 1 else normal(index, step)

    trials, (first, second) = complete(settings, run)
    assert (first.outcome, first.pairs, second.outcome) == (
        PairedOutcome.SLOWER,
        2,
        PairedOutcome.ALIKE,
    )
    assert order(trials) == "ABC" + "CBA" + "CA" + "AC"

    def fail(index: int, step: NextTrial) -> Trial:
        return (
            Trial(1, TrialOutcome.DOES_NOT_RUN, None)
            if step.variant == 1
            else normal(index, step)
        )

    _, (first, second) = complete(settings, fail)
    assert (first.outcome, second.outcome) == (
        PairedOutcome.DOES_NOT_RUN,
        PairedOutcome.ALIKE,
    )


def test_several_variants_share_the_significance_level() -> None:
    _, (alone,) = complete(SEPARATE, steady(0.05))
    _, (first, _) = complete({"variant_count": 3}, steady(0.05))
    assert alone.estimate is not None
    assert first.estimate is not None
    assert first.estimate.level == alone.estimate.level / 2


def test_noise_of_earlier_comparisons_is_pooled() -> None:
    earlier = Noise(0.003, 10.0, "2 earlier A/Bs", measured=True)
    _, (answer,) = complete({"noise": earlier}, steady(0.02))
    assert answer.estimate is not None
    assert (answer.pairs, answer.estimate.level, answer.estimate.noise.measured) == (
        2,
        0.010,
        True,
    )
    assert answer.estimate.degrees_of_freedom == 11


def test_resumed_comparison_plans_the_same_next_run() -> None:
    trials, answers = complete(SHARED, steady(0.01, cv=0.004, seed=5))
    for cut in range(len(trials)):
        step = next_step(trials[:cut], **SHARED)
        assert step == NextTrial(trials[cut].variant, trials[cut].is_warm_up)
    assert next_step(trials, **SHARED) == answers


# --- next_runs ------------------------------------------------------------------------

VARIANTS = list_variants(("good", "new", "third"))
TWO = TrialPlan(VARIANTS[:2], most=8)
HELD = AllocationPlan(
    replace(TRIAL, purpose=Purpose.ALLOCATION, command=("sbatch", "./launch.sh")),
    "",
    600.0,
)
BAD_RUN = Trial(1, TrialOutcome.DOES_NOT_RUN, None)
LOST_RUN = Trial(1, TrialOutcome.LOST, None)
GOOD, SLOW, FAST = measured(0, 1000.0), measured(1, 1050.0), measured(1, 950.0)


def conclude(trials: Sequence[Trial], policy: TrialPlan = TWO) -> Conclusion:
    step = next_runs(trial_history(policy.variants, trials), policy)
    assert isinstance(step, Conclusion)
    return step


@pytest.mark.parametrize(
    ("trials", "variant"),
    [
        ([GOOD], "new"),
        ([GOOD, SLOW], "new"),
        ([GOOD, SLOW, SLOW], "good"),
        ([GOOD, LOST_RUN], "new"),
        ([GOOD, BAD_RUN], "new"),
        ([GOOD, SLOW, GOOD, LOST_RUN], "new"),
    ],
)
def test_comparison_runs_follow_the_ab_ba_order_and_repeat_failed_runs(
    trials: list[Trial], variant: str
) -> None:
    step = next_runs(trial_history(VARIANTS[:2], trials), TWO)
    assert isinstance(step, NextRuns)
    (run,) = step.runs
    assert (run.spec.variant, run.repeat, run.attempt) == (variant, len(trials) + 1, 1)


@pytest.mark.parametrize(
    ("trials", "reason", "done", "text"),
    [
        (
            [GOOD, SLOW, SLOW, GOOD],
            Reason.VARIANT_SLOWER,
            True,
            "new is slower than good: +5.00 % (97.6 %: +2.04 % to +8.05 %), 2 pairs (on n[1-2])",
        ),
        (
            [GOOD, LOST_RUN, SLOW, SLOW, GOOD],
            Reason.VARIANT_SLOWER,
            True,
            "new is slower than good: +5.00 % (97.6 %: ",
        ),
        (
            [GOOD, FAST, FAST, GOOD],
            Reason.PURPOSE_DONE,
            True,
            "new is faster than good: -5.00 %",
        ),
        (
            [GOOD, BAD_RUN, BAD_RUN],
            Reason.PURPOSE_MISSED,
            False,
            "new does not run, so it was not compared with good (on n[1-2]); exit code 1",
        ),
        (
            [GOOD, LOST_RUN, LOST_RUN],
            Reason.PURPOSE_MISSED,
            False,
            "new was not compared with good: two jobs in a row were lost (on n[1-2]); node n1 failed",
        ),
        (
            [replace(BAD_RUN, variant=0), SLOW, replace(BAD_RUN, variant=0)],
            Reason.PURPOSE_MISSED,
            False,
            "new was not compared: good does not run (on n[1-2]); exit code 1",
        ),
    ],
    ids=[
        "slower",
        "slower, one run lost",
        "faster",
        "crashed twice",
        "lost twice",
        "reference crashed",
    ],
)
def test_comparison_concludes_if_the_variant_is_slower_faster_or_does_not_run(
    trials: list[Trial], reason: Reason, done: bool, text: str
) -> None:
    conclusion = conclude(trials)
    assert (conclusion.reason, conclusion.done) == (reason, done)
    assert conclusion.text.startswith(text)
    assert conclusion.report is not None
    assert conclusion.report.names == ("good", "new")


def test_comparison_of_three_variants_concludes_for_each_against_the_first() -> None:
    third = measured(2, 900.0)
    policy = TrialPlan(VARIANTS, most=12)
    conclusion = conclude([GOOD, SLOW, third, third, SLOW, GOOD], policy)
    assert "new is slower than good: +5.00 %" in conclusion.text
    assert "third is faster than good: -10.00 %" in conclusion.text


def test_inconclusive_comparison_names_the_detectable_difference() -> None:
    seconds = (1.0, 1.02, 0.99, 1.01, 1.0, 1.02, 0.99, 1.01)
    conclusion = conclude(
        [
            measured(variant, 1000 * time)
            for variant, time in zip((0, 1, 1, 0, 1, 0, 0, 1), seconds, strict=True)
        ]
    )
    assert conclusion.reason is Reason.PURPOSE_DONE
    assert conclusion.text.startswith("new cannot be distinguished from good: ")
    assert conclusion.text.endswith("% (on n[1-2])")


def test_noise_of_earlier_comparisons_is_used_and_reported() -> None:
    """It reveals a difference that four runs alone do not show; the new noise is
    stored."""
    trials = [
        measured(variant, milliseconds)
        for variant, milliseconds in ((0, 1000), (1, 1011), (1, 1013), (0, 1000))
    ]
    noise = Noise(0.002, 10.0, "3 earlier A/Bs", measured=True)
    assert isinstance(next_runs(trial_history(VARIANTS[:2], trials), TWO), NextRuns)
    conclusion = conclude(trials, replace(TWO, earlier=noise))
    assert conclusion.text.startswith("new is slower than good: +1.20 % (98 %: ")
    assert (
        "2 pairs; noise from 3 earlier A/Bs (10 degrees of freedom) (on n[1-2])"
        in conclusion.text
    )
    assert conclusion.report is not None
    assert conclusion.report.earlier == noise
    new_noise = conclusion.report.noise
    assert new_noise is not None
    assert new_noise.degrees_of_freedom == 1.0
    assert new_noise.sigma == pytest.approx(0.001, rel=0.5)


@pytest.mark.parametrize(("made", "warms_up"), [(1, True), (2, False)])
def test_first_run_of_each_variant_is_discarded_as_a_warm_up(
    made: int, warms_up: bool
) -> None:
    warm = [replace(trial, allocation=1, is_warm_up=True) for trial in (GOOD, SLOW)][
        :made
    ]
    step = next_runs(trial_history(VARIANTS[:2], warm), replace(TWO, allocation=HELD))
    assert isinstance(step, NextRuns)
    (run,) = step.runs
    assert (run.spec.allocation, run.spec.warm_up) == (1, warms_up)


def test_comparison_is_incomplete_if_its_next_run_may_not_start() -> None:
    history = trial_history(VARIANTS[:2], [GOOD, SLOW])
    waiting = replace(history, planned=(*history.planned, NextJob(VARIANTS[1], 1, 3)))
    assert describe_step(next_runs(waiting, TWO)) == ["wait"]
    reason, text = describe_step(next_runs(replace(history, may_start=False), TWO))
    assert (reason, text[:19]) == (Reason.PURPOSE_MISSED.value, "the A/B is incomple")
