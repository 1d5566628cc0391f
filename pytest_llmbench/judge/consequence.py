"""What follows from a verdict: whether its item passes, fails or is skipped."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.models import Judgement, Status, Verdict

SEVERITY = (
    Verdict.REGRESSION,
    Verdict.INVALID,
    Verdict.INCONCLUSIVE,
    Verdict.MISSING,
    Verdict.NOT_COMPARABLE,
    Verdict.PASS,
    Verdict.IMPROVEMENT,
)
"""Worst first."""


def consequence(judgement: Judgement, *, required: bool) -> Status:
    """Return what becomes of an item: it fails unless the verdict is green, or nothing was there and none is required.

    INCONCLUSIVE follows the literal rule, measured <= bound. Anything unknown fails.
    """
    match judgement.verdict:
        case Verdict.PASS | Verdict.IMPROVEMENT:
            return Status.PASSED
        case Verdict.INCONCLUSIVE:
            return Status.PASSED if judgement.meets_point else Status.FAILED
        case Verdict.MISSING | Verdict.NOT_COMPARABLE:
            return Status.FAILED if required else Status.SKIPPED
        case _:
            return Status.FAILED


def worst(judgements: Sequence[Judgement]) -> tuple[Judgement, tuple[Judgement, ...]]:
    """Return the worst of several verdicts on one configuration, and the others."""
    ordered = sorted(judgements, key=lambda judgement: SEVERITY.index(judgement.verdict))
    return ordered[0], tuple(ordered[1:])
