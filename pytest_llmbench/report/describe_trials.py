"""What an A/B or a search over builds found, as plain values: differences are fractions
of the step time."""

from __future__ import annotations

import math
from typing import Any

from pytest_llmbench.core.formatting import make_finite
from pytest_llmbench.core.judgement_records import Noise
from pytest_llmbench.core.trial_records import (
    BisectAnswer,
    PairedAnswer,
    PairedEstimate,
    TrialReport,
)


def describe(report: TrialReport) -> dict[str, Any]:
    """Return the answers of an A/B, or that of a search, with the names of the variants
    and the nodes of all runs."""
    answers = {
        "answers": [_describe_answer(answer, report) for answer in report.answers]
    }
    search = report.search
    return {
        "variants": list(report.names),
        "nodes": list(report.nodes),
        "allocations": report.allocations,
        "separate_because": report.separate_because or None,
        "cluster": report.cluster,
        "noise": _describe_noise(report.noise),
        "earlier_noise": _describe_noise(report.earlier),
        **(answers if search is None else {"search": _describe_search(search, report)}),
    }


def _describe_noise(noise: Noise | None) -> dict[str, Any] | None:
    if noise is None:
        return None
    return {
        "run_to_run": make_finite(noise.sigma),
        "degrees_of_freedom": make_finite(noise.degrees_of_freedom),
    }


def _describe_answer(answer: PairedAnswer, report: TrialReport) -> dict[str, Any]:
    return {
        "variant": report.names[answer.variant],
        "reference": report.names[0],
        "answer": str(answer.outcome),
        "pairs": answer.pairs,
        "estimate": _describe_estimate(answer.estimate),
    }


def _describe_estimate(estimate: PairedEstimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {
        "difference": _convert(estimate.difference),
        "low": _convert(estimate.low),
        "high": _convert(estimate.high),
        "confidence": 1 - 2 * estimate.level,
        "shown_smallest": make_finite(estimate.smallest),
        "run_to_run": make_finite(estimate.noise.sigma),
        "degrees_of_freedom": make_finite(estimate.degrees_of_freedom),
        "runs": list(estimate.runs),
    }


def _describe_search(search: BisectAnswer, report: TrialReport) -> dict[str, Any]:
    names = report.names
    return {
        "answer": str(search.outcome),
        "runs": search.runs,
        "ends": _describe_estimate(search.ends),
        "do_not_run": [names[build] for build in search.skipped],
        "changes": [
            {
                "first": names[change.first],
                "last": names[change.last],
                "probability": change.probability,
                "difference": _convert(change.size),
                "low": _convert(change.low),
                "high": _convert(change.high),
                "share": make_finite(change.share),
                "before": _convert(change.rest_before),
                "after": _convert(change.rest_after),
            }
            for change in search.changes
        ],
        "ranges": [
            {
                "first": names[each.first],
                "last": names[each.last],
                "probability": each.probability,
            }
            for each in search.ranges
        ],
    }


def _convert(logarithm: float) -> float | None:
    """Return a difference of logarithms as a fraction."""
    return make_finite(math.expm1(min(logarithm, 700.0)))
