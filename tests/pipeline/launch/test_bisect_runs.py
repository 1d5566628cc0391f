"""Searches over builds: which run follows, and what their end says in words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pytest_llmbench.pipeline.launch.bisect_runs import BisectProgress, describe_search
from pytest_llmbench.pipeline.launch.costs import HoursBudget

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    BisectAnswer,
    BisectOutcome,
    BuildRange,
    FoundChange,
    NextTrial,
    PairedEstimate,
    Trial,
    TrialOutcome,
)
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.pipeline.launch.trial_runs import TrialAnswer

NAMES = [f"c{number}" for number in range(9)]
ENDS = PairedEstimate(0.0005, -0.002, 0.003, 0.036, 0.01, 0.001, 6.0, Noise(0.002, 6.0, "", measured=True), (4, 4))
CHANGE = FoundChange(5, 5, 0.9987, 0.0208, 0.016, 0.0257, 0.98)


def search(
    trials: Sequence[Trial],
    names: Sequence[str] = NAMES,
    allocation: int | None = None,
    earlier: Noise | None = None,
) -> NextTrial | TrialAnswer:
    progress = BisectProgress(
        {}, None, LaunchSettings(bisect="b.yaml"), budget=HoursBudget(1.0), profile=lambda spec: spec
    )
    return progress.choose_step(trials, names, allocation, earlier)


def measured(variant: int, seconds: float) -> Trial:
    return Trial(variant, TrialOutcome.MEASURED, seconds * 1000)


def test_search_names_the_first_slow_build() -> None:
    trials: list[Trial] = []
    while isinstance(step := search(trials), NextTrial):
        trials.append(measured(step.variant, 1.05 if step.variant >= 5 else 1.0))
    assert step.reason is Reason.PURPOSE_DONE
    assert step.text.startswith("first slow: c5: +5.00 % (95 %: ")
    assert step.text.endswith(f"; {len(trials)} runs")


def test_noise_of_earlier_comparisons_is_used() -> None:
    """Ends that differ by little are apart at once, and fewer runs name the build."""
    noise = Noise(0.001, 10.0, "2 earlier A/Bs", measured=True)
    lengths = []
    for earlier in (None, noise):
        trials: list[Trial] = []
        while isinstance(step := search(trials, earlier=earlier), NextTrial):
            trials.append(measured(step.variant, 1.01 if step.variant >= 5 else 1.0))
        assert step.text.startswith("first slow: c5: +1.00 %")
        lengths.append(len(trials))
        assert step.text.endswith("runs; noise: of 2 earlier A/Bs, 10 degrees" if earlier else "runs")
    assert lengths[1] < lengths[0]


@pytest.mark.parametrize(
    ("trials", "reason", "failed", "text"),
    [
        (
            [measured(build, 1.0) for build in (0, 8, 8, 0, 8, 0, 0, 8)],
            Reason.NO_CHANGE_BETWEEN_ENDS,
            False,
            "no change is shown between c0 and c8: ",
        ),
        (
            [measured(build, 1.0 if build else 1.05) for build in (0, 8, 8, 0)],
            Reason.NO_CHANGE_BETWEEN_ENDS,
            False,
            "c8, the bad end, is faster than c0, the good one: nothing to search, unless they are",
        ),
        (
            [Trial(0, TrialOutcome.DOES_NOT_RUN, None)] * 2,
            Reason.PURPOSE_MISSED,
            True,
            "nothing is searched: c0 does not run; 0 runs",
        ),
    ],
    ids=["alike", "faster", "does not run"],
)
def test_search_ends_without_a_slower_bad_end(trials: list[Trial], reason: Reason, failed: bool, text: str) -> None:
    step = search(trials)
    assert isinstance(step, TrialAnswer)
    assert (step.reason, step.failed) == (reason, failed)
    assert step.text.startswith(text)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            BisectAnswer(BisectOutcome.FOUND, ENDS, 13, changes=(CHANGE,)),
            "first slow: c5: +2.10 % (95 %: +1.61 % to +2.60 %), 99.8 % sure, 98 % of the ends' difference; 13 runs",
        ),
        (
            BisectAnswer(
                BisectOutcome.FOUND,
                ENDS,
                13,
                skipped=(4,),
                changes=(FoundChange(4, 5, 0.96, 0.01, 0.008, 0.012, 0.5, rest_before=0.01),),
            ),
            "first slow: one of c4 to c5: +1.01 % (95 %: +0.80 % to +1.21 %), 96 % sure, 50 % of the ends' difference; "
            "another +1.01 % lies before it; 13 runs; do not run: c4",
        ),
        (
            BisectAnswer(BisectOutcome.RANGE, ENDS, 36, ranges=(BuildRange(3, 6, 0.9999),)),
            "the first slow build is one of c3 to c6, 99.9 % sure; the most runs were made; 36 runs",
        ),
        (
            BisectAnswer(BisectOutcome.NO_CHANGE_BETWEEN_ENDS, ENDS, 8),
            "no change is shown between c0 and c8: nothing to search (92.8 %: -0.20 % to +0.30 %); 8 runs",
        ),
        (BisectAnswer(BisectOutcome.LOST, None, 1), "two starts in a row were lost; 1 run"),
    ],
)
def test_answer_is_described(answer: BisectAnswer, text: str) -> None:
    """What is nearly sure is never said to be sure."""
    assert describe_search(answer, NAMES) == text


def test_allocation_begins_with_discarded_runs() -> None:
    """And again in a further one, in the middle of the search; what they measure moves nothing."""
    trials: list[Trial] = []
    while isinstance(step := search(trials, allocation=1 if len(trials) < 9 else 2), NextTrial):
        seconds = 9.0 if step.discarded else 1.05 if step.variant >= 5 else 1.0
        outcome = TrialOutcome.MEASURED
        trials.append(Trial(step.variant, outcome, seconds * 1000, step.discarded, 1 if len(trials) < 9 else 2))
    assert [trial.variant for trial in trials[:6]] == [0, 8, 0, 8, 8, 0]
    assert [place for place, trial in enumerate(trials) if trial.discarded] == [0, 1, 9, 10]
    assert step.text.startswith("first slow: c5: +5.00 % (95 %: ")


@pytest.mark.parametrize("outcome", [TrialOutcome.LOST, TrialOutcome.DOES_NOT_RUN])
def test_failing_end_in_another_allocation_ends_the_search(outcome: TrialOutcome) -> None:
    trials = [measured(variant, 1.05 if variant else 1.0) for variant in (0, 8, 8, 0)]
    for _ in range(40):
        step = search(trials, allocation=2)
        if isinstance(step, TrialAnswer):
            break
        failed = step.variant == 8
        trials.append(Trial(step.variant, outcome if failed else TrialOutcome.MEASURED, 1000.0, step.discarded, 2))
    assert isinstance(step, TrialAnswer)
