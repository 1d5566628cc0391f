"""Search over builds of a configuration: its runs in the order of `judge.bisect`, and which build made it slower."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_llmbench.core import formatting
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
    TrialReport,
)
from pytest_llmbench.launch.trial_runs import TrialAnswer, TrialProgress, describe_noise, format_change

REASONS = {
    BisectOutcome.FOUND: Reason.PURPOSE_DONE,
    BisectOutcome.RANGE: Reason.RANGE,
    BisectOutcome.NO_CHANGE_BETWEEN_ENDS: Reason.NO_CHANGE_BETWEEN_ENDS,
}
"""PURPOSE_MISSED for every other."""

WORDS = {
    BisectOutcome.NO_CHANGE_BETWEEN_ENDS: "no change is shown between {good} and {bad}: nothing to search",
    BisectOutcome.GOOD_DOES_NOT_RUN: "nothing is searched: {good} does not run",
    BisectOutcome.BAD_DOES_NOT_RUN: "nothing is searched: {bad} does not run",
    BisectOutcome.LOST: "two starts in a row were lost",
}

SWAPPED = "{bad}, the bad end, is faster than {good}, the good one: nothing to search, unless they are swapped"

MOST_SURE = 99.9  # is said, in percent: that there is a change at all is not certain either


class BisectProgress(TrialProgress):
    """The progress of searches: red unless each change between the ends has its build."""

    what = "search"

    def __init__(self, *further: Any, cap: int | None = None, **settings: Any) -> None:
        """Take what all trials take, and the most runs where the file says them."""
        super().__init__(*further, **settings)
        self._cap = cap

    def choose_step(
        self,
        trials: Sequence[Trial],
        names: Sequence[str],
        allocation: int | None = None,
        earlier: Noise | None = None,
    ) -> NextTrial | TrialAnswer:
        """Return which build runs next, or where the change is."""
        from pytest_llmbench.launch.policies.search_policy import BisectSettings, next_step
        from pytest_llmbench.launch.policies.trial_statistics import choose_warm_up

        step = next_step(trials, BisectSettings(len(names), self._cap, earlier))
        if isinstance(step, NextTrial):
            return choose_warm_up(trials, (0, len(names) - 1), allocation) or step
        reason = REASONS.get(step.outcome, Reason.PURPOSE_MISSED)
        report = TrialReport(tuple(names), search=step)
        failed = reason is Reason.PURPOSE_MISSED
        text = "; ".join([describe_search(step, names), *describe_noise(earlier)])
        return TrialAnswer(text, reason, failed=failed, report=report)


def describe_search(answer: BisectAnswer, names: Sequence[str]) -> str:
    """Return what a search ended with: `first slow: c7 (+2.1 %, 95 %: +1.6 % to +2.6 %), 99 % sure; 13 runs`."""
    parts = [*_describe_changes(answer, names), formatting.count_noun(answer.runs, "run")]
    if answer.outcome in WORDS:
        is_swapped = answer.outcome is BisectOutcome.NO_CHANGE_BETWEEN_ENDS and answer.ends and answer.ends.high < 0
        words = (SWAPPED if is_swapped else WORDS[answer.outcome]).format(good=names[0], bad=names[-1])
        parts.insert(0, words + _describe_ends(answer.ends))
    if answer.skipped:
        parts.append(f"do not run: {formatting.join_first([names[build] for build in answer.skipped])}")
    return "; ".join(parts)


def _describe_ends(ends: PairedEstimate | None) -> str:
    if ends is None:
        return ""
    low, high = format_change(ends.low), format_change(ends.high)
    return f" ({100 * (1 - 2 * ends.level):.3g} %: {low} to {high})"


def _describe_changes(answer: BisectAnswer, names: Sequence[str]) -> Iterator[str]:
    results: list[FoundChange | BuildRange] = sorted((*answer.changes, *answer.ranges), key=lambda each: each.first)
    for result in results:
        which = names[result.last]
        if result.first < result.last:
            which = f"one of {names[result.first]} to {names[result.last]}"
        sure = f"{min(math.floor(1000 * result.probability) / 10, MOST_SURE):g} % sure"
        if isinstance(result, BuildRange):
            yield f"the first slow build is {which}, {sure}; the most runs were made"
            continue
        size, low, high = map(format_change, (result.size, result.low, result.high))
        share = f"{100 * result.share:.0f} % of the ends' difference"
        yield f"first slow: {which}: {size} (95 %: {low} to {high}), {sure}, {share}"
        for rest, where in ((result.rest_before, "before"), (result.rest_after, "after")):
            if rest:
                yield f"another {format_change(rest)} lies {where} it"
