"""Checkpoint budgets: a violation fails, and an unknown duration never passes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import BASELINE, NOW, at, evidence, measurement, run

from pytest_llmbench.core.baseline_records import Budget
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.log_records import (
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
)
from pytest_llmbench.core.run_records import Measurement, Problem
from pytest_llmbench.judge.decide import judge, judge_alone
from pytest_llmbench.report.wording import phrase

SAVES, DISPATCH, LOADS = (
    "checkpoint_save_seconds",
    "checkpoint_save_dispatch_seconds",
    "checkpoint_load_seconds",
)
LIMITED = at(
    BASELINE,
    budgets=(Budget(SAVES, 60.0, "own.yaml:33"), Budget(LOADS, 120.0, "own.yaml:34")),
)
DISPATCH_LIMITED = at(BASELINE, budgets=(Budget(DISPATCH, 5.0, "own.yaml:33"),))


def save(
    seconds: float | None = None, line: int = 812, **fields: Any
) -> CheckpointRecord:
    return CheckpointRecord(CheckpointAction.SAVE, line, seconds, **fields)


def load(
    seconds: float | None = None, line: int = 9, **fields: Any
) -> CheckpointRecord:
    return CheckpointRecord(CheckpointAction.LOAD, line, seconds, **fields)


def with_records(
    *records: CheckpointRecord, unread: int = 0, **fields: Any
) -> Measurement:
    """Make a run within the tolerance whose log states these checkpoints."""
    seconds = fields.pop("seconds", 7.33)
    return measurement(seconds, checkpoints=Checkpoints(records, unread), **fields)


def loading(*records: CheckpointRecord, days: float = 0.1) -> Measurement:
    """Make a run that only loads a checkpoint."""
    excluded = Problem(
        Reason.CHECKPOINT_LOAD, "it loaded a checkpoint and ran 1 step", 9
    )
    started = run(started=NOW - timedelta(days=days))
    return measurement(
        None, excluded=excluded, run=started, checkpoints=Checkpoints(records)
    )


def judge_runs(
    *measurements: Measurement, baseline: Any = LIMITED, **fields: Any
) -> Judgement:
    return judge(evidence(*measurements, baseline=baseline, **fields))


def list_codes(judgement: Judgement) -> list[str]:
    return [note.code for note in judgement.notes if "budget" in note.code]


def test_save_over_its_budget_is_a_regression() -> None:
    judgement = judge_runs(with_records(save(4.4, 100), save(75.3)))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.REGRESSION,
        Reason.OVER_BUDGET,
    )
    assert phrase(judgement).startswith(
        "checkpoint save took 75.3 s (line 812); the budget is 60 s (own.yaml:33); step time 7.330 s,"
    )
    assert (
        judge_runs(with_records(save(75.3)), baseline=BASELINE).verdict
        is not Verdict.REGRESSION
    )


@pytest.mark.parametrize(
    ("records", "verdict", "reason"),
    [
        ([save(60.0)], None, None),
        ([save(60.0001)], Verdict.REGRESSION, Reason.OVER_BUDGET),
        (
            [save(4.0, rank="0"), save(61.0, rank="7")],
            Verdict.REGRESSION,
            Reason.OVER_BUDGET,
        ),
        ([load(120.5)], Verdict.REGRESSION, Reason.OVER_BUDGET),
        ([load(119.5), save(59.5)], None, None),
        ([save(4.0, dispatched=True)], Verdict.INVALID, Reason.BUDGET_UNKNOWN),
        ([save(75.3, dispatched=True)], Verdict.REGRESSION, Reason.OVER_BUDGET),
        ([save(torn=True)], Verdict.INVALID, Reason.BUDGET_UNKNOWN),
        ([save(4.0), save(torn=True)], Verdict.INVALID, Reason.BUDGET_UNKNOWN),
        ([save(75.3), save(torn=True)], Verdict.REGRESSION, Reason.OVER_BUDGET),
        ([save()], Verdict.INVALID, Reason.BUDGET_UNKNOWN),
        ([save(), save(4.0)], None, None),
        ([save(), save(4.0), save()], Verdict.INVALID, Reason.BUDGET_UNKNOWN),
        ([load()], Verdict.INVALID, Reason.BUDGET_UNKNOWN),
        ([load(130.0), save()], Verdict.REGRESSION, Reason.OVER_BUDGET),
    ],
)
def test_logged_checkpoints_decide_the_verdict(
    records: list[CheckpointRecord], verdict: Verdict | None, reason: Reason | None
) -> None:
    plain = judge_runs(with_records(), baseline=BASELINE)
    judgement = judge_runs(with_records(*records))
    assert (judgement.verdict, judgement.reason) == (
        verdict or plain.verdict,
        reason or plain.reason,
    )


def test_run_with_unread_checkpoint_records_is_invalid_under_a_save_budget() -> None:
    judgement = judge_runs(with_records(save(4.0), unread=3))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INVALID,
        Reason.BUDGET_UNKNOWN,
    )


def test_asynchronous_save_cannot_meet_a_save_budget() -> None:
    judgement = judge_runs(with_records(save(0.14, dispatched=True)))
    assert phrase(judgement).startswith(
        "checkpoint save cannot be judged: it is or may be asynchronous"
    )
    assert (
        f"use the budget {DISPATCH} (line 812); the budget is 60 s (own.yaml:33)"
        in phrase(judgement)
    )


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([save(0.14, dispatched=True)], None),
        ([save(5.1, dispatched=True)], Reason.OVER_BUDGET),
        ([save(0.14)], Reason.BUDGET_UNKNOWN),
        ([save(75.3)], Reason.BUDGET_UNKNOWN),
        (
            [save(0.1, dispatched=True), save(dispatched=True, torn=True)],
            Reason.BUDGET_UNKNOWN,
        ),
    ],
)
def test_save_dispatch_budget_ignores_the_duration_of_the_save(
    records: list[CheckpointRecord], reason: Reason | None
) -> None:
    plain = judge_runs(with_records(), baseline=BASELINE)
    assert judge_runs(with_records(*records), baseline=DISPATCH_LIMITED).reason is (
        reason or plain.reason
    )


def test_unused_checkpoint_budget_is_noted_if_the_run_has_no_checkpoint() -> None:
    plain, judgement = (
        judge_runs(with_records(), baseline=BASELINE),
        judge_runs(with_records()),
    )
    assert (judgement.verdict, judgement.reason, phrase(judgement)) == (
        plain.verdict,
        plain.reason,
        phrase(plain),
    )
    assert list_codes(judgement) == ["budget-unused", "budget-unused"]


def test_run_configured_to_save_without_a_save_is_invalid() -> None:
    judgement = judge_runs(
        with_records(run=run(saves="llmb-config_1.yaml: ENABLE_CHECKPOINT=true"))
    )
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INVALID,
        Reason.BUDGET_UNKNOWN,
    )
    assert (
        "no checkpoint save, though llmb-config_1.yaml: ENABLE_CHECKPOINT=true"
        in phrase(judgement)
    )


def test_regression_in_step_time_also_notes_the_exceeded_save_budget() -> None:
    judgement = judge_runs(with_records(save(75.3), seconds=9.0))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.REGRESSION,
        Reason.SLOWER_THAN_BOUND,
    )
    assert list_codes(judgement) == ["over-budget", "budget-unused"]


def test_invalid_run_also_notes_its_exceeded_save_budget() -> None:
    broken = with_records(
        save(75.3), problems=(Problem(Reason.DIVERGED, "loss is nan"),)
    )
    judgement = judge_runs(broken)
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, Reason.DIVERGED)
    assert "over-budget" in list_codes(judgement)


# --- runs that only load a checkpoint -------------------------------------------------


def judge_loading(run: Measurement) -> Judgement:
    return judge_alone(evidence(run, baseline=LIMITED))


def test_checkpoint_load_run_over_its_load_budget_is_a_regression() -> None:
    over, kept = (
        judge_loading(loading(load(130.0))),
        judge_loading(loading(load(110.0))),
    )
    assert (over.verdict, over.reason) == (Verdict.REGRESSION, Reason.OVER_BUDGET)
    assert (kept.verdict, kept.reason) == (
        Verdict.NOT_COMPARABLE,
        Reason.CHECKPOINT_LOAD,
    )
    assert (
        judge_alone(evidence(loading(load(130.0)))).verdict is Verdict.NOT_COMPARABLE
    )  # without a budget


def test_loading_run_of_unknown_duration_is_invalid() -> None:
    for records in ((), (load(),), (load(torn=True),)):
        judgement = judge_loading(loading(*records))
        assert (judgement.verdict, judgement.reason) == (
            Verdict.INVALID,
            Reason.BUDGET_UNKNOWN,
        )


def test_newest_checkpoint_load_run_decides_if_no_other_kind_of_run_exists() -> None:
    over = judge_runs(loading(load(130.0)), loading(load(1.0), days=2))
    kept = judge_runs(loading(load(1.0)), loading(load(130.0), days=2))
    assert (over.verdict, kept.verdict) == (Verdict.REGRESSION, Verdict.MISSING)


def test_checkpoint_load_run_newer_than_the_judged_run_can_exceed_the_budget() -> None:
    good, slow = with_records(), loading(load(130.0))
    over = judge_runs(slow, good)
    assert (over.verdict, over.reason) == (Verdict.REGRESSION, Reason.OVER_BUDGET)
    assert "(log-x_1_0.out:9)" in phrase(over)
    assert judge_runs(good, slow).reason is not Reason.OVER_BUDGET


def test_checkpoint_load_run_older_than_max_age_is_not_judged() -> None:
    old = loading(load(130.0), days=9)
    assert judge_runs(old, max_age=timedelta(days=2)).verdict is Verdict.MISSING


def test_profiled_run_has_no_budget() -> None:
    profiled = replace(
        with_records(save(75.3)), excluded=Problem(Reason.PROFILED, "profiled")
    )
    judgement = judge_loading(profiled)
    assert (judgement.verdict, judgement.reason) == (
        Verdict.NOT_COMPARABLE,
        Reason.PROFILED,
    )


def test_every_repeat_is_judged_by_the_budgets() -> None:
    launched = [
        run(launch="l", job_id=job, started=NOW - timedelta(hours=2))
        for job in ("1", "2")
    ]
    first, second = (
        with_records(run=launched[0]),
        with_records(save(75.3), run=launched[1]),
    )
    judgement = judge_runs(first, second)
    assert (judgement.verdict, judgement.reason) == (
        Verdict.REGRESSION,
        Reason.OVER_BUDGET,
    )
