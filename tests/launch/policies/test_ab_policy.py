"""A/B on the same nodes: the order of the runs, when it ends, and with which answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import NextTrial, PairedAnswer, PairedOutcome, Trial, TrialOutcome
from pytest_llmbench.launch.policies.ab_policy import PairedSettings, count_runs, next_step

SEPARATE = PairedSettings()
SHARED = PairedSettings(allocation=0)

Runner = Callable[[int, NextTrial], Trial]


def measured(variant: int, milliseconds: float, *, discarded: bool = False) -> Trial:
    return Trial(variant, TrialOutcome.MEASURED, milliseconds, discarded)


def complete(
    settings: PairedSettings, run: Runner, trials: Sequence[Trial] = ()
) -> tuple[list[Trial], tuple[PairedAnswer, ...]]:
    """Run what is asked for until there is an answer."""
    made = list(trials)
    for _ in range(100):
        step = next_step(made, settings)
        if not isinstance(step, NextTrial):
            return made, step
        made.append(run(len(made), step))
    raise AssertionError("it never ends")


def steady(difference: float = 0.0, cv: float = 0.003, seed: int = 1) -> Runner:
    random = np.random.default_rng(seed)

    def run(_: int, step: NextTrial) -> Trial:
        logarithm = difference * (step.variant > 0) + cv * random.standard_normal()
        return measured(step.variant, 1000 * math.exp(logarithm), discarded=step.discarded)

    return run


def order(trials: Sequence[Trial]) -> str:
    return "".join("abc"[trial.variant] if trial.discarded else "ABC"[trial.variant] for trial in trials)


def test_pairs_are_ab_ba_ba_ab_after_warm_up() -> None:
    trials, (answer,) = complete(SHARED, steady(cv=0.02))
    assert (order(trials), answer.outcome) == ("abABBABAAB", PairedOutcome.CANNOT_TELL)
    assert len(trials) == count_runs(SHARED).most
    trials, _ = complete(SEPARATE, steady(cv=0.02))
    assert order(trials) == "ABBABAAB"


@pytest.mark.parametrize("difference", [0.05, -0.05])
def test_clear_difference_ends_the_comparison_early(difference: float) -> None:
    trials, (answer,) = complete(SHARED, steady(difference))
    assert answer.outcome is (PairedOutcome.SLOWER if difference > 0 else PairedOutcome.FASTER)
    assert (len(trials), answer.pairs) == (count_runs(SHARED).least, 2)
    assert answer.estimate is not None
    assert answer.estimate.low < difference < answer.estimate.high
    assert not answer.estimate.noise.measured  # two pairs tell too little


def test_alike_is_answered_at_the_last_analysis() -> None:
    trials, (answer,) = complete(SEPARATE, steady(cv=0.001, seed=2))
    assert (answer.outcome, answer.pairs, len(trials)) == (PairedOutcome.ALIKE, 4, 8)
    assert answer.estimate is not None
    assert answer.estimate.runs == (4, 4)


@pytest.mark.parametrize(("unit", "outcome"), [(0.0, PairedOutcome.SLOWER), (0.004, PairedOutcome.CANNOT_TELL)])
def test_printed_unit_of_both_arms_is_no_difference(unit: float, outcome: PairedOutcome) -> None:
    """Every run of an arm is rounded one way: 0.4 % may be any difference from 0 to 0.8 %."""

    def run(_: int, step: NextTrial) -> Trial:
        milliseconds = 1000 * math.exp(0.004 * step.variant)
        return replace(measured(step.variant, milliseconds), rounding=unit / 2)

    settings = PairedSettings(margin=0.005)
    _, (answer,) = complete(settings, run)
    assert answer.outcome is outcome
    assert answer.estimate is not None
    assert answer.estimate.low == pytest.approx(0.004 - unit, abs=5e-4)


def test_linear_drift_is_no_difference() -> None:
    """0.1 % a run, without noise: the trend is fitted."""
    _, (answer,) = complete(SEPARATE, lambda place, step: measured(step.variant, 1000 * math.exp(0.001 * place)))
    assert answer.outcome is PairedOutcome.ALIKE
    assert answer.estimate is not None
    assert answer.estimate.difference == pytest.approx(0, abs=1e-9)


def test_new_allocation_warms_up_again_and_continues() -> None:
    trials, _ = complete(SHARED, steady(cv=0.02))
    killed = trials[:5]
    resumed, _ = complete(
        PairedSettings(allocation=1),
        lambda _, step: Trial(step.variant, TrialOutcome.MEASURED, 1000.0, step.discarded, allocation=1),
        killed,
    )
    assert order(resumed) == "abABB" + "ab" + "ABAAB"


def test_lost_run_is_repeated_after_its_pair() -> None:
    normal = steady(cv=0.02)

    def run(place: int, step: NextTrial) -> Trial:
        return Trial(step.variant, TrialOutcome.LOST, None) if place == 2 else normal(place, step)

    trials, (answer,) = complete(SEPARATE, run)
    assert order(trials) == "AB" + "BAB" + "BAAB"
    assert answer.pairs == 4
    assert next_step([trial for trial in trials if trial.outcome is not TrialOutcome.LOST], SEPARATE) == (answer,)


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
def test_arm_lost_or_failing_twice_ends_the_comparison(
    variant: int, trial: TrialOutcome, outcome: PairedOutcome
) -> None:
    normal = steady()

    def run(place: int, step: NextTrial) -> Trial:
        return Trial(variant, trial, None) if step.variant == variant else normal(place, step)

    trials, (answer,) = complete(SEPARATE, run)
    assert (answer.outcome, answer.estimate) == (outcome, None)
    assert sum(made.outcome is trial for made in trials) == 2


def test_answered_or_failing_arm_stops_no_other() -> None:
    settings = PairedSettings(arms=3)
    normal = steady(cv=0.001, seed=3)

    def run(place: int, step: NextTrial) -> Trial:
        return measured(1, 1100.0) if step.variant == 1 else normal(place, step)

    trials, (first, second) = complete(settings, run)
    assert (first.outcome, first.pairs, second.outcome) == (PairedOutcome.SLOWER, 2, PairedOutcome.ALIKE)
    assert order(trials) == "ABC" + "CBA" + "CA" + "AC"

    def fail(place: int, step: NextTrial) -> Trial:
        return Trial(1, TrialOutcome.DOES_NOT_RUN, None) if step.variant == 1 else normal(place, step)

    _, (first, second) = complete(settings, fail)
    assert (first.outcome, second.outcome) == (PairedOutcome.DOES_NOT_RUN, PairedOutcome.ALIKE)


def test_several_arms_share_the_level() -> None:
    _, (alone,) = complete(SEPARATE, steady(0.05))
    _, (first, _) = complete(PairedSettings(arms=3), steady(0.05))
    assert alone.estimate is not None
    assert first.estimate is not None
    assert first.estimate.level == alone.estimate.level / 2


def test_noise_of_earlier_comparisons_is_pooled() -> None:
    earlier = Noise(0.003, 10.0, "2 earlier A/Bs", measured=True)
    _, (answer,) = complete(PairedSettings(noise=earlier), steady(0.02))
    assert answer.estimate is not None
    assert (answer.pairs, answer.estimate.level, answer.estimate.noise.measured) == (2, 0.010, True)
    assert answer.estimate.degrees_of_freedom == 11


def test_resumed_trials_give_the_same_step() -> None:
    trials, answers = complete(SHARED, steady(0.01, cv=0.004, seed=5))
    for cut in range(len(trials)):
        step = next_step(trials[:cut], SHARED)
        assert step == NextTrial(trials[cut].variant, trials[cut].discarded)
    assert next_step(trials, SHARED) == answers
