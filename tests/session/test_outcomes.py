"""Outcomes of items: requirements, required numbers of runs, sessions without verdicts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import KEY, NOW, evidence, measurement, run

from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement, RequiredRuns, SessionRules
from pytest_llmbench.core.outcome_records import Case, Status, UnmatchedRun
from pytest_llmbench.core.run_records import Measurement, Problem
from pytest_llmbench.core.statements import CodedStatement, StatementCode
from pytest_llmbench.judge.final_verdict import judge_evidence
from pytest_llmbench.session.outcomes import (
    JudgedConfigurations,
    SessionResults,
    apply_requirements,
    decide_outcomes,
    judge_case,
)
from pytest_llmbench.session.settings import Settings

CASE = Case(KEY.id, KEY)
DAY = timedelta(days=1)


def make_measurements(*days_ago: float | None) -> list[Measurement]:
    """Return runs at the published step time that started this many days ago (None:
    undated)."""
    starts = [None if days is None else NOW - days * DAY for days in days_ago]
    return [measurement(7.325, run=run(started=started)) for started in starts]


def judge_required(
    measurements: list[Measurement], required: int, **fields: Any
) -> Judgement:
    """Judge runs of a configuration with a required number of runs."""
    collected = evidence(*measurements, **fields)
    judged = JudgedConfigurations(
        {KEY.id: (judge_case(CASE, [collected]), (collected,))}
    )
    return (
        apply_requirements(judged, {KEY: RequiredRuns(required, "suite.yaml:2")})
        .results[KEY.id]
        .judgement
    )


@pytest.mark.parametrize(
    ("days_ago", "verdict"),
    [
        ((0.1, 0.5, 0.9), Verdict.PASS),
        ((0.1, 0.5, 1.1), Verdict.MISSING),
        ((0.1, 1.1, 1.2, 1.3), Verdict.MISSING),
        ((0.1, 0.5, None), Verdict.MISSING),
    ],
)
def test_runs_beyond_max_age_do_not_count_as_required_runs(
    days_ago: tuple[float | None, ...], verdict: Verdict
) -> None:
    judgement = judge_required(make_measurements(*days_ago), required=3, max_age=DAY)
    assert judgement.verdict is verdict
    assert (
        judge_required(make_measurements(*days_ago), required=3).verdict is Verdict.PASS
    )


def make_results(*measurements: Measurement, **fields: Any) -> SessionResults:
    """Return the results of a session with one configuration."""
    result = judge_case(CASE, [evidence(*measurements)])
    defaults = {
        "unmatched": (),
        "runs_found": len(measurements),
        "runs_before_since": 0,
        "ignored": (),
    }
    return SessionResults(
        {KEY.id: result}, measurements={KEY: measurements}, **{**defaults, **fields}
    )


@pytest.mark.parametrize(
    ("require", "keys_only_in_tables", "status"),
    [
        ((), False, Status.SKIPPED),
        (("all",), False, Status.FAILED),
        (("all",), True, Status.SKIPPED),
        ((KEY.id,), True, Status.FAILED),
    ],
)
def test_require_all_ignores_on_demand_configurations(
    require: tuple[str, ...], keys_only_in_tables: bool, status: Status
) -> None:
    """An id requires the configuration."""
    results = make_results(
        keys_only_in_tables=frozenset({KEY} if keys_only_in_tables else ())
    )
    (outcome,) = decide_outcomes(
        results, [KEY.id], Settings(require=require), guarded=True
    )
    assert outcome.status is status


@pytest.mark.parametrize(
    ("runs_found", "runs_before", "words"),
    [
        (
            0,
            0,
            "There is no log (.out or .log) with a training step under the given paths.",
        ),
        (2, 2, "All of the 2 runs started before --llmb-since."),
        (2, 1, "2 runs found: "),
    ],
)
def test_session_without_verdicts_reports_the_reason(
    runs_found: int, runs_before: int, words: str
) -> None:
    results = make_results(runs_found=runs_found, runs_before_since=runs_before)
    (outcome,) = decide_outcomes(results, [KEY.id], Settings())
    assert outcome.status is Status.FAILED
    assert outcome.context[0].startswith(
        "nothing was judged: no valid run of the 1 selected configuration"
    )
    assert outcome.context[1].startswith(words)


def test_session_without_verdicts_lists_unjudged_runs() -> None:
    unmatched = [
        UnmatchedRun(
            name,
            Reason.UNMATCHED,
            "",
            Path("/runs"),
            nearest=(KEY,),
            summary="gpus are 64",
            advice="--x",
        )
        for name in ("a", "b")
    ]
    diverged = measurement(
        problems=(Problem(Reason.DIVERGED, "the loss is not a number"),)
    )
    results = make_results(diverged, unmatched=tuple(unmatched), runs_found=3)
    (outcome,) = decide_outcomes(results, [KEY.id], Settings())
    expected = f"3 runs found: a, b (gpus are 64; nearest {KEY.id}; --x), x_1 ({KEY.id}: INVALID)."
    assert outcome.context[1] == expected


def test_disagreeing_repeats_are_not_certified() -> None:
    newest, slower = (
        measurement(
            seconds, run=run(started=NOW - timedelta(hours=hours), build=("image=a",))
        )
        for hours, seconds in enumerate((7.325, 8.2), start=1)
    )
    rules = SessionRules(certify=True)
    alone = evidence(newest, rules=rules)
    both = evidence(newest, slower, repeat_window=timedelta(hours=3))
    assert judge_evidence(alone).verdict is Verdict.PASS
    assert judge_evidence(both).verdict is Verdict.PASS
    judgement = judge_evidence(replace(both, rules=rules))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    doubt = judgement.notes[0]
    uncertain = CodedStatement(StatementCode.NOT_CERTIFIED, doubt=doubt)
    assert judgement.statements[-1] == uncertain
