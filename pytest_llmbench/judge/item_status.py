"""From verdicts to whether an item passes, fails or is skipped."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement, SessionRules
from pytest_llmbench.core.outcome_records import Status

# Worst first.
SEVERITY = (
    Verdict.REGRESSION,
    Verdict.INVALID,
    Verdict.INCONCLUSIVE,
    Verdict.MISSING,
    Verdict.NOT_COMPARABLE,
    Verdict.PASS,
    Verdict.IMPROVEMENT,
)

RED_ANSWERS = (Reason.VARIANT_SLOWER, Reason.NO_CHANGE_BETWEEN_ENDS, Reason.RANGE)
"""What an A/B or a search over builds ends with that fails its item, although nothing
was held against a baseline."""


def decide_status(
    judgement: Judgement, rules: SessionRules, *, required: bool = False
) -> Status:
    """Return what becomes of an item: it fails unless the verdict is green, or nothing
    was there and none is required.

    INCONCLUSIVE follows the literal rule, measured <= bound; under "fail" it fails, and
    under "skip" it is skipped, unless the configuration is required: then it fails,
    since the answer that was asked for is not there. What only lacks a second run to be
    a REGRESSION (UNCONFIRMED) is never skipped. IMPROVEMENT fails unless `improvement`
    is "pass", and where it is larger than is plausible. Anything unknown fails.
    """
    absent = Status.FAILED if required else Status.SKIPPED
    match judgement.verdict:
        case Verdict.PASS:
            passes = True
        case Verdict.IMPROVEMENT:
            plausible = judgement.reason is not Reason.IMPLAUSIBLY_FAST
            passes = rules.improvement == "pass" and plausible
        case Verdict.INCONCLUSIVE if rules.inconclusive == "literal":
            passes = bool(judgement.meets_point)
        case Verdict.INCONCLUSIVE if rules.inconclusive == "skip":
            unconfirmed = judgement.reason is Reason.UNCONFIRMED
            return Status.FAILED if unconfirmed else absent
        case Verdict.MISSING | Verdict.NOT_COMPARABLE:
            return Status.FAILED if judgement.reason in RED_ANSWERS else absent
        case _:
            passes = False
    return Status.PASSED if passes else Status.FAILED


def is_red(
    judgement: Judgement, rules: SessionRules, *, required: bool = False
) -> bool:
    """Return True if the item of a verdict fails."""
    return decide_status(judgement, rules, required=required) is Status.FAILED


def pick_worst(
    judgements: Sequence[Judgement], rules: SessionRules
) -> tuple[Judgement, tuple[Judgement, ...]]:
    """Return the worst of several verdicts on one configuration, by what follows from
    each, and the others."""
    statuses = (Status.FAILED, Status.SKIPPED, Status.PASSED)
    ordered = sorted(
        judgements,
        key=lambda judgement: (
            statuses.index(decide_status(judgement, rules)),
            SEVERITY.index(judgement.verdict),
        ),
    )
    return ordered[0], tuple(ordered[1:])
