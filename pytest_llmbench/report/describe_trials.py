"""Records of the result of an A/B or a bisect search.

Differences are fractions of the step time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import UNSET

from pytest_llmbench.core.formatting import make_finite
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    BisectAnswer,
    PairedAnswer,
    PairedEstimate,
    TrialReport,
)
from pytest_llmbench.report.outcome_documents import (
    BuildChange,
    BuildRange,
    ReportedSearch,
    ReportedTrials,
    TrialAnswer,
    TrialEstimate,
    TrialNoise,
)

LARGEST_LOGARITHM = 700.0
"""Larger log ratios would overflow `math.expm1`, and are reported as this one."""


def describe(report: TrialReport) -> ReportedTrials:
    """Convert the result of an A/B or a bisect search into its record.

    `report.names` contains the names of the compared variants, or of the builds.
    """
    names, search = report.names, report.search
    answers = (_describe_answer(answer, names) for answer in report.answers)
    return ReportedTrials(
        variants=tuple(names),
        nodes=tuple(report.nodes),
        allocations=report.allocations,
        separate_because=report.separate_because or None,
        cluster=report.cluster,
        noise=_describe_noise(report.noise),
        earlier_noise=_describe_noise(report.earlier),
        # An A/B has answers, a bisect search has a search.
        answers=tuple(answers) if search is None else UNSET,
        search=UNSET if search is None else _describe_search(search, names),
    )


def _describe_noise(noise: Noise | None) -> TrialNoise | None:
    if noise is None:
        return None
    return TrialNoise(
        run_to_run=make_finite(noise.sigma),
        degrees_of_freedom=make_finite(noise.degrees_of_freedom),
    )


def _describe_answer(answer: PairedAnswer, names: Sequence[str]) -> TrialAnswer:
    """Build the record of an answer; the first of `names` is the reference."""
    return TrialAnswer(
        variant=names[answer.variant],
        reference=names[0],
        answer=str(answer.outcome),
        pairs=answer.pairs,
        estimate=_describe_estimate(answer.estimate),
    )


def _describe_estimate(estimate: PairedEstimate | None) -> TrialEstimate | None:
    """Build the record of a paired estimate, or None."""
    if estimate is None:
        return None
    return TrialEstimate(
        difference=_convert_to_fraction(estimate.difference),
        low=_convert_to_fraction(estimate.low),
        high=_convert_to_fraction(estimate.high),
        confidence=1 - 2 * estimate.level,
        shown_smallest=make_finite(estimate.smallest),
        run_to_run=make_finite(estimate.noise.sigma),
        degrees_of_freedom=make_finite(estimate.degrees_of_freedom),
        runs=tuple(estimate.runs),
    )


def _describe_search(search: BisectAnswer, names: Sequence[str]) -> ReportedSearch:
    """Build the record of a bisect search.

    A search refers to builds by their index in `names`, the record by their name.
    Differences are logarithms in the search and fractions in the record.
    """
    changes = (
        BuildChange(
            first=names[change.first],
            last=names[change.last],
            probability=change.probability,
            difference=_convert_to_fraction(change.size),
            low=_convert_to_fraction(change.low),
            high=_convert_to_fraction(change.high),
            share=make_finite(change.share),
            # further changes before and after this one
            before=_convert_to_fraction(change.rest_before),
            after=_convert_to_fraction(change.rest_after),
        )
        for change in search.changes
    )
    ranges = (
        BuildRange(
            first=names[builds.first],
            last=names[builds.last],
            probability=builds.probability,
        )
        for builds in search.ranges
    )
    return ReportedSearch(
        answer=str(search.outcome),
        runs=search.runs,
        # the difference between the first and the last build
        ends=_describe_estimate(search.ends),
        do_not_run=tuple(names[build] for build in search.skipped),
        changes=tuple(changes),
        ranges=tuple(ranges),
    )


def _convert_to_fraction(logarithm: float) -> float | None:
    """Convert a log ratio into a fraction; None if it is not finite."""
    return make_finite(math.expm1(min(logarithm, LARGEST_LOGARITHM)))
