"""The answers of an A/B and of a bisect search, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_llmbench.core import formatting
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    MARGIN,
    REFERENCE,
    UNANSWERED,
    BisectAnswer,
    BisectOutcome,
    BuildRange,
    LocatedChange,
    PairedAnswer,
    PairedEstimate,
    PairedOutcome,
)

ANSWERS = {
    PairedOutcome.SLOWER: "is slower than {reference}",
    PairedOutcome.FASTER: "is faster than {reference}",
    PairedOutcome.ALIKE: "is within {margin} of {reference}",
    PairedOutcome.CANNOT_TELL: "cannot be distinguished from {reference}",
    PairedOutcome.DOES_NOT_RUN: (
        "does not run, so it was not compared with {reference}"
    ),
    PairedOutcome.REFERENCE_DOES_NOT_RUN: (
        "was not compared: {reference} does not run"
    ),
    PairedOutcome.LOST: (
        "was not compared with {reference}: two jobs in a row were lost"
    ),
}

ENDS = {
    BisectOutcome.NO_CHANGE_BETWEEN_ENDS: (
        "no change between {good} and {bad}, so there is nothing to search"
    ),
    BisectOutcome.GOOD_DOES_NOT_RUN: "not searched: {good} does not run",
    BisectOutcome.BAD_DOES_NOT_RUN: "not searched: {bad} does not run",
    BisectOutcome.LOST: "two jobs in a row were lost",
}

SWAPPED = "{bad}, the bad end, is faster than {good}, the good end: swap them to search"

MOST_SURE = 99.9
"""The highest probability that is printed, in percent: no change is certain."""


def describe_answers(
    answers: Sequence[PairedAnswer], names: Sequence[str], earlier: Noise | None
) -> str:
    """Describe the answers of an A/B, followed by the pooled noise of earlier A/Bs."""
    texts = [describe_answer(answer, names) for answer in answers]
    return "; ".join([*texts, *_describe_noise(earlier)])


def describe_answer(answer: PairedAnswer, names: Sequence[str]) -> str:
    """Describe a variant: `new is slower than good: +2.1 % (...), 3 pairs`."""
    margin = f"{100 * MARGIN:g} %"
    reference = names[REFERENCE]
    words = ANSWERS[answer.outcome].format(reference=reference, margin=margin)
    text = f"{names[answer.variant]} {words}"
    estimate = answer.estimate
    if estimate is None or answer.outcome in UNANSWERED:
        return text  # the estimate is from an earlier interim analysis
    pairs = formatting.count_noun(answer.pairs, "pair")
    interval = _format_interval(estimate)
    text = f"{text}: {_format_change(estimate.difference)} ({interval}), {pairs}"
    if answer.outcome is not PairedOutcome.CANNOT_TELL:
        return text
    return f"{text}; 4 of 5 A/Bs would detect {100 * estimate.smallest:.2g} %"


def describe_search(
    answer: BisectAnswer, names: Sequence[str], earlier: Noise | None
) -> str:
    """Describe the result of a search: `first slow: c7: +2.1 %, 99 % sure; 13 runs`."""
    texts = []
    if answer.outcome in ENDS:
        texts.append(_describe_ends(answer, names))
    texts += _describe_changes(answer, names)
    texts.append(formatting.count_noun(answer.runs, "run"))
    if answer.skipped:
        skipped = formatting.join_first([names[build] for build in answer.skipped])
        texts.append(f"do not run: {skipped}")
    return "; ".join([*texts, *_describe_noise(earlier)])


def _describe_ends(answer: BisectAnswer, names: Sequence[str]) -> str:
    """Return the reason not to search, with the interval between the ends if known."""
    ends = answer.ends
    words = ENDS[answer.outcome]
    is_alike = answer.outcome is BisectOutcome.NO_CHANGE_BETWEEN_ENDS
    if is_alike and ends is not None and ends.high < 0:  # the bad end is faster
        words = SWAPPED
    text = words.format(good=names[0], bad=names[-1])
    return f"{text} ({_format_interval(ends)})" if ends else text


def _describe_changes(answer: BisectAnswer, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each located change or range, in the order of the builds."""
    results: list[LocatedChange | BuildRange] = [*answer.changes, *answer.ranges]
    for result in sorted(results, key=lambda result: result.first):
        build = names[result.last]
        if result.first < result.last:
            build = f"one of {names[result.first]} to {names[result.last]}"
        rounded_down = math.floor(1000 * result.probability) / 10
        confidence = f"{min(rounded_down, MOST_SURE):g} % sure"
        if isinstance(result, LocatedChange):
            yield from _describe_change(result, build, confidence)
        else:
            yield (
                f"the first slow build is {build}, {confidence}; "
                "stopped at the maximum number of runs"
            )


def _describe_change(
    change: LocatedChange, build: str, confidence: str
) -> Iterator[str]:
    """Yield the sentences on one located change.

    `build` names the first slow build, or a range that contains it.
    """
    limits = f"{_format_change(change.low)} to {_format_change(change.high)}"
    share = f"{100 * change.share:.0f} % of the difference between the ends"
    size = _format_change(change.size)
    yield f"first slow: {build}: {size} (95 %: {limits}), {confidence}, {share}"
    if change.rest_before:
        yield f"another {_format_change(change.rest_before)} occurred before it"
    if change.rest_after:
        yield f"another {_format_change(change.rest_after)} occurred after it"


def _describe_noise(noise: Noise | None) -> list[str]:
    """Describe the pooled noise: `noise from 3 earlier A/Bs (10 degrees of freedom)`."""
    if noise is None:
        return []
    degrees = formatting.count_noun(round(noise.degrees_of_freedom), "degree")
    return [f"noise from {noise.source} ({degrees} of freedom)"]


def _format_interval(estimate: PairedEstimate) -> str:
    """Return `95 %: +1.20 % to +3.10 %`."""
    confidence = f"{100 * (1 - 2 * estimate.level):.3g} %"
    limits = f"{_format_change(estimate.low)} to {_format_change(estimate.high)}"
    return f"{confidence}: {limits}"


def _format_change(logarithm: float) -> str:
    """Format a log ratio as `+2.10 %`."""
    return f"{math.expm1(logarithm):+.2%}".replace("%", " %")
