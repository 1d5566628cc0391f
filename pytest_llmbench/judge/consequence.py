"""What follows from a verdict: whether its item passes, fails or is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_llmbench.core.models import Judgement, Reason, Status, Verdict

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


def decide_status(
    judgement: Judgement, *, required: bool, inconclusive: str = "literal", improvement: str = "pass"
) -> Status:
    """Return what becomes of an item: it fails unless the verdict is green, or nothing was there and none is required.

    INCONCLUSIVE follows the literal rule, measured <= bound; under "fail" it fails, and under "skip" it is skipped,
    unless the configuration is required: then it fails, since the answer that was asked for is not there. IMPROVEMENT
    fails unless `improvement` is "pass", and where it is larger than is plausible. Anything unknown fails.
    """
    match judgement.verdict:
        case Verdict.PASS:
            return Status.PASSED
        case Verdict.IMPROVEMENT:
            plausible = judgement.reason is not Reason.IMPLAUSIBLY_FAST
            return Status.PASSED if improvement == "pass" and plausible else Status.FAILED
        case Verdict.INCONCLUSIVE if inconclusive == "literal":
            return Status.PASSED if judgement.meets_point else Status.FAILED
        case Verdict.INCONCLUSIVE if inconclusive == "skip":
            return _decide_absent(required=required)
        case Verdict.MISSING | Verdict.NOT_COMPARABLE:
            return _decide_absent(required=required)
        case _:
            return Status.FAILED


def _decide_absent(*, required: bool) -> Status:
    return Status.FAILED if required else Status.SKIPPED


def pick_worst(
    judgements: Sequence[Judgement], status: Callable[[Judgement], Status]
) -> tuple[Judgement, tuple[Judgement, ...]]:
    """Return the worst of several verdicts on one configuration, by what follows from each, and the others."""
    statuses = (Status.FAILED, Status.SKIPPED, Status.PASSED)
    ordered = sorted(
        judgements, key=lambda judgement: (statuses.index(status(judgement)), SEVERITY.index(judgement.verdict))
    )
    return ordered[0], tuple(ordered[1:])
