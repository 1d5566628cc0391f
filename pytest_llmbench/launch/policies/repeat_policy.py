"""When a launch stops: at which levels its runs are looked at, and how many more a verdict asks for."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmbench.core.codes import JUDGED, Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement, Look
from pytest_llmbench.session.launch_settings import LaunchSettings

GREEN = (Verdict.PASS, Verdict.IMPROVEMENT)

ONE_LOOK = Look()  # both answers at 5 %
ONE_LOOK_AT_SEVERAL = Look(fewest=2)

# Looks after one, two and three runs. A PASS may come at each of them, a REGRESSION at the second and third: together
# they are wrong at the bound in 4 % of cases (docs/statistics.md). One run never says REGRESSION, as its nodes may be
# slow.
IN_TURN = Look(0.0222, 0.03, fewest=2)

# Looks after one and three runs; a REGRESSION may come at the last one alone.
AT_ONCE = Look(0.0295, 0.05, fewest=2)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How many runs a configuration may have."""

    most: int = 3
    asked: int = 1  # so many are made whatever they say, and judged once
    at_once: bool = False  # those after the first are made together


def plan_runs(settings: LaunchSettings, asked: int = 1) -> RunPlan:
    """Build the plan of a configuration for which a suite file asks for `asked` runs."""
    return RunPlan(settings.repeats, asked, settings.repeats_at_once)


def choose_look(plan: RunPlan) -> Look:
    """Return how the runs of a launch are looked at, each time."""
    if plan.most == 1:
        return ONE_LOOK
    if plan.asked > 1:
        return ONE_LOOK_AT_SEVERAL
    return AT_ONCE if plan.at_once else IN_TURN


def count_next_runs(plan: RunPlan, judgement: Judgement, done: int) -> int:
    """Return how many runs are to follow the `done` ones that a judgement rests on; 0 where it stands.

    A PASS stands at any look, a REGRESSION from the second run on. No run undoes that one could not be judged, or that
    a checkpoint took too long. What was asked for follows whatever the first runs say.
    """
    if judgement.verdict not in JUDGED or judgement.reason is Reason.OVER_BUDGET:
        return 0
    if plan.asked > 1:
        return max(plan.asked - done, 0)
    shown = judgement.verdict in GREEN or (judgement.verdict is Verdict.REGRESSION and done > 1)
    if shown or done >= plan.most:
        return 0
    return plan.most - done if plan.at_once else 1
