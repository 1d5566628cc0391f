"""The next run of a configuration, and the end of a launch.

A PASS is possible at any analysis, a REGRESSION only after two slow runs. No run is
retried until it passes, and every run counts.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import (
    BASELINE,
    HISTORY,
    NOW,
    evidence,
    log,
    measurement,
    run,
    segment,
    steps,
)
from support.run_histories import (
    BROKEN,
    CANCELLED,
    CRASHED,
    HUNG,
    REFUSED,
    SPEC,
    describe_step,
    ended,
    judged,
    make_history,
)

from pytest_llmbench.core.baseline_records import Tolerance
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.job_records import (
    EndedBy,
    JobEnd,
    JobStatus,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.judgement_records import (
    DEFAULT_RULES,
    DecisionRule,
    Judgement,
    SessionRules,
)
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.item_status import decide_status
from pytest_llmbench.launch.jobs.job_engine import NextJob
from pytest_llmbench.launch.policies.repeat_policy import (
    ONE_ANALYSIS,
    SEQUENTIAL,
    RepeatPolicy,
    choose_decision_rule,
    count_next_runs,
    next_runs,
)
from pytest_llmbench.launch.policies.run_history import Conclusion, EndedJob
from pytest_llmbench.report.wording import phrase


def judgement(verdict: Verdict, reason: Reason = Reason.CANNOT_TELL) -> Judgement:
    return Judgement(verdict, reason, ("as told",), BASELINE, 7.7, Tolerance(0.05))


def look_at(*factors: float, decision_rule: DecisionRule = SEQUENTIAL) -> Judgement:
    """Judge runs at these multiples of the baseline, newest first."""
    runs = [
        measurement(
            7.325 * factor,
            run=run(
                id=f"x_{hour}", launch="tonight", started=NOW - timedelta(hours=hour)
            ),
        )
        for hour, factor in enumerate(factors)
    ]
    return judge(evidence(*runs, *HISTORY, decision_rule=decision_rule))


@pytest.mark.parametrize(
    ("plan", "decision_rule"),
    [
        (RepeatPolicy(), DecisionRule(0.0222, 0.03, 2)),
        (RepeatPolicy(at_once=True), DecisionRule(0.0295, 0.05, 2)),
        (RepeatPolicy(required=2), DecisionRule(0.05, 0.05, 2)),
        (RepeatPolicy(1, at_once=True), DecisionRule(0.05, 0.05, 1)),
    ],
    ids=["in turn", "at once", "two requested", "one run"],
)
def test_significance_levels_depend_on_how_repeats_are_planned(
    plan: RepeatPolicy, decision_rule: DecisionRule
) -> None:
    assert choose_decision_rule(plan) == decision_rule


@pytest.mark.parametrize(
    ("verdict", "done", "plan", "expected"),
    [
        (Verdict.PASS, 1, RepeatPolicy(), 0),
        (Verdict.INCONCLUSIVE, 1, RepeatPolicy(), 1),
        (Verdict.REGRESSION, 1, RepeatPolicy(), 1),
        (Verdict.REGRESSION, 2, RepeatPolicy(), 0),
        (Verdict.INCONCLUSIVE, 2, RepeatPolicy(), 1),
        (Verdict.INCONCLUSIVE, 3, RepeatPolicy(), 0),
        (Verdict.REGRESSION, 1, RepeatPolicy(1), 0),
        (Verdict.INCONCLUSIVE, 2, RepeatPolicy(2), 0),
        (Verdict.INCONCLUSIVE, 1, RepeatPolicy(at_once=True), 2),
        (Verdict.PASS, 1, RepeatPolicy(required=3), 2),
        (Verdict.INCONCLUSIVE, 2, RepeatPolicy(required=2), 0),
        (Verdict.INVALID, 1, RepeatPolicy(), 0),
        (Verdict.INVALID, 1, RepeatPolicy(required=3), 0),
    ],
)
def test_number_of_next_runs_follows_from_verdict_and_repeat_policy(
    verdict: Verdict, done: int, plan: RepeatPolicy, expected: int
) -> None:
    assert count_next_runs(plan, judgement(verdict), done) == expected


def test_run_over_its_checkpoint_budget_is_not_repeated() -> None:
    over = judgement(Verdict.REGRESSION, Reason.OVER_BUDGET)
    assert (
        count_next_runs(RepeatPolicy(), over, 1)
        == count_next_runs(RepeatPolicy(required=3), over, 1)
        == 0
    )


# --- one slow run is no regression ----------------------------------------------------


def test_single_launched_run_slower_than_the_limit_is_inconclusive() -> None:
    judgement = look_at(1.3)
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INCONCLUSIVE,
        Reason.UNCONFIRMED,
    )
    assert (
        "1 run above the limit may be a slow node or slow software: not confirmed"
        in phrase(judgement)
    )
    for inconclusive, required in product(("literal", "fail", "skip"), (True, False)):
        assert (
            decide_status(
                judgement, SessionRules(inconclusive=inconclusive), required=required
            )
            is Status.FAILED
        )
    assert look_at(1.3, decision_rule=ONE_ANALYSIS).verdict is Verdict.REGRESSION


def test_two_slow_runs_that_agree_are_a_regression() -> None:
    assert look_at(1.10, 1.11).verdict is Verdict.REGRESSION
    for factors in ((1.3, 1.0), (1.0, 1.3), (1.2, 1.4)):
        judgement = look_at(*factors)
        assert (judgement.verdict, judgement.meets_point) == (
            Verdict.INCONCLUSIVE,
            False,
        )
        assert judgement.reason in (Reason.UNCONFIRMED, Reason.REPEATS_DISAGREE)
        assert decide_status(judgement, DEFAULT_RULES) is Status.FAILED


def test_two_of_three_slow_runs_are_a_regression() -> None:
    assert look_at(1.2, 1.25, 1.3).verdict is Verdict.REGRESSION
    one_slow = look_at(
        3.0, 1.0, 1.0, decision_rule=DecisionRule(0.05, 0.4, fewest=2)
    )  # at any level
    assert (one_slow.verdict, one_slow.reason) == (
        Verdict.INCONCLUSIVE,
        Reason.UNCONFIRMED,
    )
    assert decide_status(one_slow, SessionRules(inconclusive="skip")) is Status.FAILED


def test_launched_run_can_pass_at_every_interim_analysis() -> None:
    for factors in ((1.0,), (1.0, 1.005), (1.0, 1.005, 0.995)):
        assert look_at(*factors).verdict is Verdict.PASS


def test_each_end_of_the_interval_has_its_significance_level() -> None:
    looser = look_at(1.06, 1.07, decision_rule=replace(SEQUENTIAL, regression=0.3))
    strict = look_at(1.06, 1.07)
    assert strict.estimate is not None
    assert looser.estimate is not None
    assert strict.estimate.high == looser.estimate.high
    assert strict.estimate.low < looser.estimate.low
    assert (strict.estimate.level, strict.estimate.regression_level) == (0.0222, 0.03)


# --- repeats --------------------------------------------------------------------------

ONE, TWO, THREE = ended(1), ended(2), ended(3)
INCONCLUSIVE, REGRESSION = Verdict.INCONCLUSIVE, Verdict.REGRESSION
STOPPED = ["as told"]
SECOND = "run 2, attempt 1, without n1"
BOTH = ["run 2, attempt 1", "run 3, attempt 1"]


@pytest.mark.parametrize(
    ("runs", "verdict", "policy", "expected"),
    [
        ([ONE], Verdict.PASS, {}, ["PASS", *STOPPED]),
        ([ONE], INCONCLUSIVE, {}, [SECOND]),
        ([ONE, TWO], Verdict.PASS, {}, ["PASS", *STOPPED]),
        ([ONE, TWO], REGRESSION, {}, ["REGRESSION", *STOPPED]),
        ([ONE, TWO], INCONCLUSIVE, {}, ["run 3, attempt 1, without n1 n2"]),
        ([ONE, TWO, THREE], INCONCLUSIVE, {}, ["INCONCLUSIVE", *STOPPED]),
        (
            [ONE],
            INCONCLUSIVE,
            {"at_once": True},
            [SECOND, "run 3, attempt 1, without n1"],
        ),
        ([ONE], REGRESSION, {"most": 1}, ["REGRESSION", *STOPPED]),
        ([ONE, TWO], INCONCLUSIVE, {"most": 2}, ["INCONCLUSIVE", *STOPPED]),
        ([ONE], Verdict.PASS, {"required": 3}, BOTH),
        ([ONE], Verdict.INVALID, {"required": 3}, ["INVALID", *STOPPED]),
        ([ONE], Verdict.INVALID, {"always": True}, BOTH),
        ([ONE, TWO, THREE], REGRESSION, {"always": True}, ["REGRESSION", *STOPPED]),
        ([ONE, THREE], INCONCLUSIVE, {}, ["run 2, attempt 1, without n1 n3"]),
    ],
    ids=[
        *(
            "passes",
            "undecided",
            "passes-at-second-look",
            "slow-twice",
            "undecided-twice",
            "undecided-thrice",
        ),
        *(
            "repeats-at-once",
            "one-allowed",
            "two-allowed",
            "three-required",
            "invalid",
            "recording",
        ),
        *("recorded", "second-was-not-submitted"),
    ],
)
def test_run_is_repeated_until_verdict_is_certain(
    runs: list[EndedJob], verdict: Verdict, policy: dict[str, Any], expected: list[str]
) -> None:
    history = make_history(*runs, verdict=judged(verdict))
    assert describe_step(next_runs(history, RepeatPolicy(**policy))) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"verdict": None}, ["judge"]),
        ({"waiting": [NextJob(SPEC, 1, 2)]}, ["wait"]),
        ({"may_start": False}, ["INCONCLUSIVE", *STOPPED]),
        ({"any_nodes": True}, ["run 2, attempt 1"]),
        ({"excluded": ("n7",)}, ["run 2, attempt 1, without n7 n1"]),
        ({"verdict": judged(REGRESSION, Reason.OVER_BUDGET)}, ["REGRESSION", *STOPPED]),
    ],
    ids=[
        "not judged yet",
        "one is waited for",
        "no hours",
        "no other nodes",
        "slow node",
        "checkpoint budget",
    ],
)
def test_noise_of_the_history_decides_whether_a_run_is_repeated(
    fields: dict[str, Any], expected: list[str]
) -> None:
    history = make_history(ONE, **{"verdict": judged(INCONCLUSIVE), **fields})
    assert describe_step(next_runs(history, RepeatPolicy())) == expected


@pytest.mark.parametrize(
    ("verdict", "end", "expected"),
    [
        (Verdict.IMPROVEMENT, CRASHED, ["INVALID", "exit code 1; as told without it"]),
        (INCONCLUSIVE, CRASHED, ["INVALID", "exit code 1; as told without it"]),
        (REGRESSION, CRASHED, ["REGRESSION", "as told"]),
        (REGRESSION, HUNG, ["INVALID", f"{HUNG.text}; as told without it"]),
        (Verdict.INVALID, HUNG, ["INVALID", "as told"]),
    ],
)
def test_crashed_repeat_makes_every_verdict_except_regression_invalid(
    verdict: Verdict, end: JobEnd, expected: list[str]
) -> None:
    """A slow, a crashed and a fast run are no PASS, and no more runs follow."""
    history = make_history(ONE, ended(2, end), verdict=judged(verdict))
    assert describe_step(next_runs(history, RepeatPolicy(retries=0))) == expected


# --- restarts -------------------------------------------------------------------------

AGAIN = "run 1, attempt 2, without n1"


@pytest.mark.parametrize(
    ("jobs", "retries", "expected"),
    [
        ([ended(1, BROKEN)], 1, [AGAIN]),
        ([ended(1, HUNG)], 1, [AGAIN]),
        (
            [ended(1, BROKEN, nodes=("n6", "n7"), failed_nodes=("n7",))],
            1,
            ["run 1, attempt 2, without n7"],
        ),
        ([ended(1, CRASHED)], 3, ["job-failed", CRASHED.text]),
        ([ended(1, CANCELLED)], 3, ["job-failed", CANCELLED.text]),
        ([ended(1, BROKEN)], 0, ["job-failed", BROKEN.text]),
        ([ended(1, HUNG)], 0, ["hung", HUNG.text]),
        (
            [ended(1, BROKEN), ended(1, BROKEN, attempt=2)],
            1,
            ["job-failed", BROKEN.text],
        ),
        (
            [ended(1, BROKEN), ended(1, BROKEN, attempt=2)],
            2,
            ["run 1, attempt 3, without n1"],
        ),
        ([ended(1, HUNG), ended(1, HUNG, attempt=2)], 3, ["hung", HUNG.text]),
        (
            [ended(1, HUNG), ended(1, BROKEN, attempt=2)],
            1,
            ["run 1, attempt 3, without n1"],
        ),
        (
            [ended(1, BROKEN), ended(1, HUNG, attempt=2)],
            1,
            ["run 1, attempt 3, without n1"],
        ),
        ([ended(1, HUNG), ended(1, attempt=2), ended(2, HUNG)], 3, ["judge"]),
        ([ended(1, BROKEN), ended(1, attempt=2)], 1, ["judge"]),
        ([ended(1, attempt=2), ended(1, BROKEN)], 1, ["judge"]),
    ],
    ids=[
        *(
            "broken",
            "hung",
            "its log names a node",
            "crashed",
            "cancelled",
            "none allowed",
            "hung, none allowed",
        ),
        *(
            "broken twice",
            "two allowed",
            "hung twice",
            "hung, then broken",
            "broken, then hung",
        ),
        *("another repeat hung", "replaced", "replaced before"),
    ],
)
def test_broken_run_is_restarted_on_other_nodes(
    jobs: list[EndedJob], retries: int, expected: list[str]
) -> None:
    assert (
        describe_step(next_runs(make_history(*jobs), RepeatPolicy(retries=retries)))
        == expected
    )


@pytest.mark.parametrize(
    "fields",
    [{"may_retry": False}, {"may_start": False}],
    ids=["withdrawn", "no hours"],
)
def test_refused_retry_leaves_the_failure_before_it(fields: dict[str, Any]) -> None:
    step = next_runs(make_history(ended(1, BROKEN), **fields), RepeatPolicy())
    assert describe_step(step) == ["job-failed", BROKEN.text]


def status(state: str, **fields: Any) -> dict[str, Any]:
    return {"status": JobStatus(Phase.ENDED, state, **fields)}


ELSEWHERE = replace(SPEC, exclude=("n1",))


@pytest.mark.parametrize(
    "refusal",
    [
        REFUSED,
        status("FAILED", exit_code="0:0", seen_by="sacct"),
        status("FAILED", reason="BadConstraints", seen_by="squeue"),
        status("CANCELLED", reason="never started", ended_by=EndedBy.PYTEST),
    ],
    ids=[
        "refused",
        "refused and recorded",
        "refused and still in the queue",
        "waited in vain",
    ],
)
def test_repeat_may_use_the_same_nodes_if_slurm_refuses_to_exclude_them(
    refusal: dict[str, Any],
) -> None:
    history = make_history(ONE, ended(2, CRASHED, spec=ELSEWHERE, **refusal))
    assert describe_step(next_runs(history, RepeatPolicy())) == ["run 2, attempt 2"]


@pytest.mark.parametrize(
    "fields",
    [
        status("CANCELLED", nodes=("n2",), reason="it hung", ended_by=EndedBy.PYTEST),
        status("PENDING", reason="it could not be cancelled", ended_by=EndedBy.PYTEST),
        status("CANCELLED"),
        {**REFUSED, "submission": SubmissionState.UNCERTAIN},
    ],
    ids=[
        "it ran",
        "it may still run",
        "cancelled by others",
        "may have been submitted",
    ],
)
def test_job_that_may_have_run_is_never_submitted_again(fields: dict[str, Any]) -> None:
    history = make_history(ONE, ended(2, CANCELLED, spec=ELSEWHERE, **fields))
    assert describe_step(next_runs(history, RepeatPolicy())) == ["judge"]


@pytest.mark.parametrize(
    ("excluded", "expected"),
    [((), ["job-failed", "no nodes"]), (("n7",), ["run 1, attempt 2, without n9"])],
    ids=["excluded by the site", "confirmed as slow"],
)
def test_refused_first_run_is_retried_including_confirmed_slow_nodes(
    excluded: tuple[str, ...], expected: list[str]
) -> None:
    """Nodes that the site excludes stay excluded."""
    spec = replace(SPEC, exclude=("n9",))
    refused = replace(spec, exclude=("n9", *excluded))
    history = make_history(
        ended(1, CRASHED, spec=refused, **REFUSED), spec=spec, excluded=excluded
    )
    assert describe_step(next_runs(history, RepeatPolicy())) == expected


# --- jobs that are not judged ---------------------------------------------------------

DONE, MISSED = Reason.PURPOSE_DONE.value, Reason.PURPOSE_MISSED.value


@pytest.mark.parametrize(
    ("purpose", "files", "expected"),
    [
        (
            Purpose.PROFILE,
            ("a", "b"),
            [DONE, "profile: left 2 files; not judged for speed"],
        ),
        (
            Purpose.SAVE_CHECKPOINT,
            ("a",),
            [DONE, "checkpoint-save: left 1 checkpoint; not judged for speed"],
        ),
        (
            Purpose.LOAD_CHECKPOINT,
            (),
            [
                MISSED,
                "checkpoint-load: the job succeeded, but left no evidence of it; not judged for speed",
            ],
        ),
        (
            Purpose.NCCL_TRACE,
            (),
            [
                DONE,
                "nccl-trace: the trace begins in line 7 of the log; not judged for speed",
            ],
        ),
    ],
)
def test_profile_or_trace_job_is_skipped_if_its_files_exist_else_invalid(
    purpose: Purpose, files: tuple[str, ...], expected: list[str]
) -> None:
    spec = replace(SPEC, purpose=purpose)
    line = 7 if purpose is Purpose.NCCL_TRACE else None
    job_run = run(
        log(segment(steps([7.3])), nccl_line=line)
        if line
        else log(segment(steps([7.3])))
    )
    job = replace(ended(spec=spec), run=job_run, files=tuple(map(Path, files)))
    step = next_runs(make_history(job, spec=spec), RepeatPolicy())
    assert describe_step(step) == expected
    assert isinstance(step, Conclusion)
    assert step.done is (expected[0] == DONE)
    assert step.lost == (frozenset() if step.done else {1})
    assert bool(step.files) is (purpose is Purpose.NCCL_TRACE), (
        "the log is what was asked for"
    )


def test_failed_profile_job_is_invalid() -> None:
    spec = replace(SPEC, purpose=Purpose.PROFILE)
    step = next_runs(
        make_history(ended(1, CRASHED, spec=spec), spec=spec), RepeatPolicy()
    )
    assert describe_step(step) == ["job-failed", CRASHED.text]
