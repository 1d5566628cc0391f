"""The words of a verdict: what is said of a configuration, and why."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What is said of one configuration."""

    PASS = "PASS"
    REGRESSION = "REGRESSION"
    IMPROVEMENT = "IMPROVEMENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    MISSING = "MISSING"


JUDGED = frozenset({Verdict.PASS, Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE})
"""The verdicts that rest on a valid run."""


class Reason(StrEnum):
    """Why a verdict was reached: stable codes, for machines."""

    WITHIN_TOLERANCE = "within-tolerance"
    SLOWER_THAN_BOUND = "slower-than-bound"
    FASTER_THAN_BASELINE = "faster-than-baseline"
    IMPLAUSIBLY_FAST = "implausibly-fast"
    CANNOT_TELL = "cannot-tell"
    WARMING_UP = "warming-up"
    FEW_STEPS_DECIDE = "few-steps-decide"
    DIVERGED = "diverged"
    DID_NOT_TRAIN = "did-not-train"
    LOSS_MISSING = "loss-missing"
    INCOMPLETE = "incomplete"
    STILL_RUNNING = "still-running"
    NO_STEPS = "no-steps"
    WINDOW_INCOMPLETE = "window-incomplete"
    IMPOSSIBLE_SAMPLE = "impossible-sample"
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    COPIED = "copied"
    WRONG_CONFIGURATION = "wrong-configuration"
    PROFILED = "profiled"
    TRACED = "traced"
    CHECKPOINT_LOAD = "checkpoint-load"
    NO_RUN = "no-run"
    TOO_OLD = "too-old"
    TOO_FEW_RUNS = "too-few-runs"
    START_UNKNOWN = "start-unknown"
    ONLY_NOT_COMPARABLE = "only-not-comparable"
    UNMATCHED = "unmatched"
    AMBIGUOUS = "ambiguous"
    UNREADABLE = "unreadable"
    REPEATS_DISAGREE = "repeats-disagree"
    NO_BASELINE = "no-baseline"
    NOT_ON_CLUSTER = "not-on-cluster"
    NOT_LAUNCHED = "not-launched"
    NOT_SUBMITTED = "not-submitted"
    NEVER_STARTED = "never-started"
    JOB_FAILED = "job-failed"
    FAILED_STEP = "failed-step"
    CANCELLED = "cancelled"
    JOB_LOST = "job-lost"
    LOG_MISSING = "log-missing"
    OVER_BUDGET = "over-budget"
    BUDGET_UNKNOWN = "budget-unknown"
    DRIFTED = "drifted"
    PURPOSE_DONE = "not-judged"
    PURPOSE_MISSED = "nothing-left"
