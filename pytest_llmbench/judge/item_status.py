"""Decide whether the item of a verdict passes, fails or is skipped."""

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
"""Reasons that fail the item of an A/B or of a search over builds.

Their verdicts compare no run with a baseline.
"""


def decide_status(
    judgement: Judgement, rules: SessionRules, *, required: bool = False
) -> Status:
    """Decide the status of the item of a verdict.

    - PASS passes. REGRESSION, INVALID and unknown verdicts fail.
    - MISSING and NOT_COMPARABLE are skipped, or fail if the configuration is
      `required` or the reason is among `RED_ANSWERS`.
    - INCONCLUSIVE follows `rules.inconclusive`. "literal": passes if measured <= bound.
      "fail": fails. "skip": skipped, or fails if `required` or if only a second run is
      missing for a REGRESSION (UNCONFIRMED).
    - IMPROVEMENT passes if `rules.improvement` is "pass" and the speed is plausible.
    """
    not_judged = Status.FAILED if required else Status.SKIPPED
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
            return Status.FAILED if unconfirmed else not_judged
        case Verdict.MISSING | Verdict.NOT_COMPARABLE:
            return Status.FAILED if judgement.reason in RED_ANSWERS else not_judged
        case _:
            passes = False
    return Status.PASSED if passes else Status.FAILED


def is_red(
    judgement: Judgement, rules: SessionRules, *, required: bool = False
) -> bool:
    """True if the item of a verdict fails."""
    return decide_status(judgement, rules, required=required) is Status.FAILED


def pick_worst(
    judgements: Sequence[Judgement], rules: SessionRules
) -> tuple[Judgement, tuple[Judgement, ...]]:
    """Return the worst verdict on a configuration, and the others in order.

    Ordered by item status, then by `SEVERITY`.
    """
    statuses = (Status.FAILED, Status.SKIPPED, Status.PASSED)
    ordered = sorted(
        judgements,
        key=lambda judgement: (
            statuses.index(decide_status(judgement, rules)),
            SEVERITY.index(judgement.verdict),
        ),
    )
    return ordered[0], tuple(ordered[1:])
