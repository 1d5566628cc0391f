"""A/B of a configuration: its runs in the order of `judge.paired`, and what they say in the end."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import NextTrial, PairedAnswer, PairedOutcome, Trial, TrialReport
from pytest_llmbench.launch.trial_runs import TrialAnswer, TrialProgress, describe_noise, format_change

WORDS = {
    PairedOutcome.SLOWER: "is slower than {reference}",
    PairedOutcome.FASTER: "is faster than {reference}",
    PairedOutcome.ALIKE: "is within {margin} of {reference}",
    PairedOutcome.CANNOT_TELL: "cannot be told from {reference}",
    PairedOutcome.DOES_NOT_RUN: "does not run, and is not compared with {reference}",
    PairedOutcome.REFERENCE_DOES_NOT_RUN: "is not compared: {reference} does not run",
    PairedOutcome.LOST: "is not compared with {reference}: two starts in a row were lost",
}

WITHOUT_ANSWER = (PairedOutcome.DOES_NOT_RUN, PairedOutcome.REFERENCE_DOES_NOT_RUN, PairedOutcome.LOST)


class PairedProgress(TrialProgress):
    """The progress of A/Bs: red where an arm is shown to be slower than the reference, or has no answer."""

    what = "A/B"

    def choose_step(
        self,
        trials: Sequence[Trial],
        names: Sequence[str],
        allocation: int | None = None,
        earlier: Noise | None = None,
    ) -> NextTrial | TrialAnswer:
        """Return which arm runs next, or what is said of each but the reference."""
        from pytest_llmbench.launch.policies.ab_policy import PairedSettings, next_step

        step = next_step(trials, PairedSettings(len(names), allocation, noise=earlier))
        if isinstance(step, NextTrial):
            return step
        outcomes = {answer.outcome for answer in step}
        text = "; ".join([*(describe_answer(answer, names) for answer in step), *describe_noise(earlier)])
        report = TrialReport(tuple(names), answers=step)
        if not outcomes.isdisjoint(WITHOUT_ANSWER):
            return TrialAnswer(text, Reason.PURPOSE_MISSED, failed=True, report=report)
        reason = Reason.VARIANT_SLOWER if PairedOutcome.SLOWER in outcomes else Reason.PURPOSE_DONE
        return TrialAnswer(text, reason, report=report)


def describe_answer(answer: PairedAnswer, names: Sequence[str]) -> str:
    """Return what is said of an arm beside the reference, as `new is slower than good: +2.1 % (...), 3 pairs`."""
    from pytest_llmbench.launch.policies.ab_policy import MARGIN, REFERENCE

    words = WORDS[answer.outcome].format(reference=names[REFERENCE], margin=f"{100 * MARGIN:g} %")
    text = f"{names[answer.variant]} {words}"
    estimate = answer.estimate
    if estimate is None or answer.outcome in WITHOUT_ANSWER:  # what an earlier look said is no answer
        return text
    low, middle, high = map(format_change, (estimate.low, estimate.difference, estimate.high))
    sure = f"{100 * (1 - 2 * estimate.level):.3g} %"
    smallest = f"; {100 * estimate.smallest:.2g} % would be shown in 4 of 5 A/Bs"
    return f"{text}: {middle} ({sure}: {low} to {high}), {formatting.count_noun(answer.pairs, 'pair')}" + (
        smallest if answer.outcome is PairedOutcome.CANNOT_TELL else ""
    )
