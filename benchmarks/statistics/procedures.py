"""The compared procedures: the engine as used in a session, and simpler rules of other
gates."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import numpy as np
from fleet import WINDOW
from msgspec.structs import replace
from scenarios import ASSUMED_CV, ATTEMPTS, TOLERANCE, Case

from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.judgement_records import (
    DecisionRule,
    Evidence,
    Judgement,
    Noise,
)
from pytest_llmbench.judge import noise
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.distributions import compute_t_upper_tail
from pytest_llmbench.launch.policies.repeat_policy import (
    ONE_ANALYSIS,
    RepeatPolicy,
    choose_decision_rule,
    count_next_runs,
)

LEVEL = 0.05
REPEAT_WINDOW = timedelta(hours=5)
NO_BETWEEN = Noise(0.0, 1e6, "no run-to-run variance", measured=True)
"""What a gate believes that takes the steps of one run for its sample."""


class Result(NamedTuple):
    """A verdict, and True if its test fails.

    A test fails for a REGRESSION, or for an INCONCLUSIVE beyond the bound (literal
    rule).
    """

    verdict: Verdict
    failed: bool
    runs: int = 1


# --- the engine -----------------------------------------------------------------------


def judged(
    case: Case, attempts: int = 1, decision_rule: DecisionRule = ONE_ANALYSIS
) -> Judgement:
    """Return the engine's verdict on the first attempts of the current session, found
    on disk."""
    tonight = case.attempts[attempts - 1 :: -1]
    window = REPEAT_WINDOW if attempts > 1 else None
    return judge(
        replace(
            case.evidence,
            measurements=(*tonight, *case.evidence.measurements),
            repeat_window=window,
            decision_rule=decision_rule,
        )
    )


def one_run(case: Case) -> Result:
    """Judge one run with the engine."""
    return _result(judged(case))


def up_to_three(case: Case) -> Result:
    """Launch as a session does: one run after the other, until the product's rule
    stops."""
    return launched(case, RepeatPolicy(ATTEMPTS))


def up_to_three_at_once(case: Case) -> Result:
    """Launch with --llmb-repeats-at-once."""
    return launched(case, RepeatPolicy(ATTEMPTS, at_once=True))


def launched(case: Case, plan: RepeatPolicy) -> Result:
    """Return the verdict of a launch on a configuration, and its number of runs."""
    runs = [
        replace(
            one, run=replace(one.run, found=replace(one.run.found, launch="tonight"))
        )
        for one in case.attempts
    ]
    done, more = 0, 1
    while more:
        done += more
        measurements = (*runs[done - 1 :: -1], *case.evidence.measurements)
        judgement = judge(
            replace(
                case.evidence,
                measurements=measurements,
                decision_rule=choose_decision_rule(plan),
            )
        )
        more = count_next_runs(plan, judgement, done)
    return _result(judgement)._replace(runs=done)


def without_history(case: Case) -> Result:
    """Judge one run with the engine, without measured noise."""
    return _result(judge(_alone(case, noise.assume_noise(ASSUMED_CV))))


def within_run_error_only(case: Case) -> Result:
    """Judge one run with an engine that ignores run-to-run noise (a mutant)."""
    return _result(judge(replace(_alone(case, NO_BETWEEN), assumed_cv=0.0)))


def _alone(case: Case, believed: Noise) -> Evidence:
    return replace(case.evidence, measurements=case.attempts[:1], prior=believed)


def _result(judgement: Judgement) -> Result:
    inconclusive = judgement.verdict is Verdict.INCONCLUSIVE
    return Result(
        judgement.verdict,
        judgement.verdict is Verdict.REGRESSION
        or (inconclusive and not judgement.meets_point),
    )


# --- the rules of other gates ---------------------------------------------------------


def mean_threshold(case: Case) -> Result:
    """Compare the plain mean of the window with the bound."""
    return _threshold(float(np.mean(case.seconds[WINDOW])), case.mean)


def last_step_threshold(case: Case) -> Result:
    """Compare the last step with the bound."""
    return _threshold(float(case.seconds[-1]), case.last_step)


def welch(case: Case) -> Result:
    """Test whether the current steps are slower than those of an earlier run (Welch,
    Biometrika 34, 1947)."""
    old, new = case.reference[WINDOW], case.seconds[WINDOW]
    parts = np.var(old, ddof=1) / len(old), np.var(new, ddof=1) / len(new)
    freedom = sum(parts) ** 2 / (
        parts[0] ** 2 / (len(old) - 1) + parts[1] ** 2 / (len(new) - 1)
    )
    statistic = (np.mean(new) - np.mean(old)) / math.sqrt(sum(parts))
    return _plain(compute_t_upper_tail(float(statistic), float(freedom)) < LEVEL)


def _threshold(measured: float, expected: float) -> Result:
    return _plain(not measured <= expected * TOLERANCE.factor)


def _plain(slower: bool) -> Result:
    return Result(Verdict.REGRESSION if slower else Verdict.PASS, slower)


PROCEDURES: dict[str, Callable[[Case], Result]] = {
    "engine, one run": one_run,
    "engine, up to three runs": up_to_three,
    "engine, up to three runs, two at once": up_to_three_at_once,
    "engine, no history (1 % assumed)": without_history,
    "margin test, within-run error only": within_run_error_only,
    "mean of steps 11 to 44 over threshold": mean_threshold,
    "last step over threshold": last_step_threshold,
    "Welch's test over steps, one baseline run": welch,
}
