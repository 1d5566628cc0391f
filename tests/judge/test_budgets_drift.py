"""A run must stay within the drift budget of the first accepted value."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import (
    BASELINE,
    HISTORY,
    KEY,
    NOW,
    at,
    evidence,
    measurement,
    nights,
    run,
)

from pytest_llmbench.core.baseline_records import (
    AcceptedValue,
    Baseline,
    BaselineKind,
    Recording,
    Window,
)
from pytest_llmbench.core.codes import NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import (
    DEFAULT_RULES,
    DecisionRule,
    Judgement,
    SessionRules,
)
from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.core.tolerance import FASTER
from pytest_llmbench.judge.acknowledged import apply_acknowledgements as acknowledged
from pytest_llmbench.judge.decide import judge, judge_alone
from pytest_llmbench.judge.item_status import decide_status
from pytest_llmbench.report.describe_outcome import describe
from pytest_llmbench.report.explain import explain
from pytest_llmbench.report.wording import phrase

FIRST = AcceptedValue("2025-01-20", 7.325, "alice on login1")


def recorded(seconds: float, *earlier: AcceptedValue, reason: str = "") -> Baseline:
    recording = Recording(
        "2025-11-01",
        1,
        seconds,
        seconds,
        0.01,
        (seconds,),
        ("0" * 64,),
        reason=reason,
        earlier=earlier,
    )
    return at(
        BASELINE,
        kind=BaselineKind.RECORDED,
        step_seconds=seconds,
        recording=recording,
        window=Window(11, 44, "trimmed_mean"),
        timed="trimmed_mean",
        cells=(),
    )


def judge_run(seconds: float, baseline: Baseline, **fields: Any) -> Judgement:
    """Judge a run after twelve daily runs with a noise of 0.3 to 0.4 %."""
    return judge(
        evidence(
            measurement(seconds), excluded_by_since=HISTORY, baseline=baseline, **fields
        )
    )


def test_one_launched_run_never_proves_drift() -> None:
    """A single run may have used slow nodes."""
    crept = recorded(7.325 * 1.03, FIRST)
    for fewest, verdict in ((1, Verdict.REGRESSION), (2, Verdict.INCONCLUSIVE)):
        judgement = judge_run(
            7.325 * 1.075, crept, decision_rule=DecisionRule(fewest=fewest)
        )
        assert judgement.verdict is verdict
        assert judgement.meets_point is False
        assert judgement.reason is (
            Reason.DRIFTED if fewest == 1 else Reason.UNCONFIRMED
        )
        assert (
            decide_status(judgement, SessionRules(inconclusive="skip")) is Status.FAILED
        )


def list_drift_codes(judgement: Judgement) -> list[str]:
    return [
        note.code for note in judgement.notes if note.code.startswith("recorded-drift")
    ]


def test_run_slower_than_first_recorded_value_plus_drift_budget_is_a_regression() -> (
    None
):
    """The baseline was recorded 4 % slower, and the run is another 4 % slower: each is
    within 5 %, the sum of 8.2 % is not."""
    judgement = judge_run(7.325 * 1.04 * 1.04, recorded(7.325 * 1.04, FIRST))
    assert (judgement.verdict, judgement.reason) == (Verdict.REGRESSION, Reason.DRIFTED)
    assert (
        "this run: 7.923 s is +8.2 % from 7.325 s, accepted on 2025-01-20 by alice on login1"
        in phrase(judgement)
    )
    assert "the limit is 7.691 s (drift budget 5 %, tolerance 5 %)" in phrase(judgement)


def test_run_without_drift_of_the_recorded_values_passes() -> None:
    judgement = judge_run(7.325 * 1.04 * 1.04, recorded(7.325 * 1.04))
    assert (judgement.verdict, list_drift_codes(judgement)) == (Verdict.PASS, [])


@pytest.mark.parametrize(
    ("factor", "code"),
    [
        (1.04, "recorded-drift"),
        (1.02, "recorded-drift-little"),
        (0.99, "recorded-drift-little"),
    ],
)
def test_passing_run_notes_its_drift(factor: float, code: str) -> None:
    judgement = judge_run(7.325 * factor, recorded(7.325 * factor, FIRST))
    assert (judgement.verdict, list_drift_codes(judgement)) == (Verdict.PASS, [code])


WALK = tuple(
    AcceptedValue(f"2025-0{n + 1}-20", 7.325 * at_, "cron", "script" if n else "")
    for n, at_ in enumerate((1, 1.06))
)


@pytest.mark.parametrize(
    ("baseline", "sums"),
    [
        pytest.param(
            recorded(7.325 * 1.12, *WALK, reason="script"),
            ["+12.0 %"],
            id="second reason",
        ),
        pytest.param(
            recorded(
                7.325 * 1.13,
                *WALK,
                AcceptedValue("2025-03-20", 7.325 * 1.12, "cron", "script"),
            ),
            ["+13.0 %"],
            id="and a little more",
        ),
        pytest.param(
            recorded(7.325 * 1.06, FIRST, reason="script"),
            ["+6.0 %"],
            id="first reason",
        ),
        pytest.param(recorded(7.325 * 1.02, *WALK), [], id="taken back"),
        pytest.param(recorded(7.325 * 1.03, FIRST), [], id="within the budget"),
        pytest.param(
            recorded(7.325, replace(FIRST, seconds=9.0), replace(FIRST, reason=FASTER)),
            [],
            id="became faster",
        ),
        pytest.param(
            recorded(
                7.325 * 1.12,
                replace(FIRST, seconds=9.0),
                replace(FIRST, reason=FASTER),
                reason="script",
            ),
            ["+12.0 %"],
            id="slower than what became faster",
        ),
    ],
)
def test_accepted_slowdowns_are_summed_since_the_first_value(
    baseline: Baseline, sums: list[str]
) -> None:
    judgement = judge_run(baseline.step_seconds, baseline)
    texts = [
        phrase(note) for note in judgement.notes if note.code is NoteCode.RECORDED_MOVED
    ]
    assert judgement.verdict is Verdict.PASS
    assert [text.partition(" is ")[2].partition(" from")[0] for text in texts] == sums


@pytest.mark.parametrize("alone", [False, True])
def test_edited_recorded_baseline_beyond_the_drift_budget_is_a_regression(
    alone: bool,
) -> None:
    """The file was edited: the run meets its recorded value, which is 9 % slower than
    the first."""
    edited = evidence(
        measurement(7.325 * 1.09),
        excluded_by_since=HISTORY,
        baseline=recorded(7.325 * 1.09, FIRST),
    )
    judgement = judge_alone(edited) if alone else judge(edited)
    assert (judgement.verdict, judgement.reason) == (Verdict.REGRESSION, Reason.DRIFTED)
    assert "the recorded value moved too far: 7.984 s is +9.0 % from 7.325 s" in phrase(
        judgement
    )


def test_run_at_the_first_recorded_value_is_no_regression_despite_baseline_drift() -> (
    None
):
    judgement = judge_run(7.33, recorded(7.325 * 1.09, FIRST))
    assert judgement.verdict is Verdict.IMPROVEMENT


def test_baseline_recorded_with_a_reason_may_exceed_the_drift_budget() -> None:
    assert (
        judge_run(
            7.325 * 1.09, recorded(7.325 * 1.09, FIRST, reason="driver 570")
        ).verdict
        is Verdict.PASS
    )


def test_drift_budget_is_never_narrower_than_the_tolerance() -> None:
    crept = recorded(7.325 * 1.04, FIRST)
    assert judge_run(7.325 * 1.08, crept, drift_budget=0.2).verdict is Verdict.PASS
    assert judge_run(7.325 * 1.08, crept, tolerance=0.1).verdict is Verdict.PASS
    assert judge_run(7.325 * 1.08, crept, drift_budget=0.03).reason is Reason.DRIFTED


@pytest.mark.parametrize("night", [1.0, 1.045, 1.05, 1.055, 1.12])
@pytest.mark.parametrize("recorded_at", [1.0, 1.04, 1.05])
@pytest.mark.parametrize("cv", [0.001, 0.015])
def test_run_beyond_the_drift_budget_fails_at_any_noise_and_recorded_value(
    night: float, recorded_at: float, cv: float
) -> None:
    """Recording again within the budget must not widen the literal rule: a recorded
    1.04 does not allow 1.06."""
    history = nights(
        *(
            7.325 * (1 + cv * sign)
            for sign in (1, -1, 0.3, -0.6, 1.2, -1.1, 0.4, -0.2, 0.8, -0.9)
        )
    )
    drifted = evidence(
        measurement(7.325 * night),
        excluded_by_since=history,
        baseline=recorded(7.325 * recorded_at, FIRST),
    )
    judgement = judge(drifted)
    assert (decide_status(judgement, DEFAULT_RULES) is Status.PASSED) is (night <= 1.05)
    assert judgement.meets_point is (night <= 1.05)


def test_run_slightly_beyond_the_budget_is_inconclusive() -> None:
    """5.5 % exceeds the budget of 5 %, but not significantly: the literal rule
    decides."""
    judgement = judge_run(7.325 * 1.055, recorded(7.325 * 1.04, FIRST))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INCONCLUSIVE,
        Reason.DRIFTED,
    )
    assert phrase(judgement).startswith(
        "this run: 7.728 s is +5.5 % from 7.325 s, accepted on 2025-01-20"
    )
    assert "the limit is 7.691 s (drift budget 5 %, tolerance 5 %)" in phrase(judgement)


def test_run_whose_verdict_depends_on_few_steps_fails_beyond_the_drift_budget() -> None:
    """The reason is kept, and the item still fails."""
    window = (7.325 * 1.055,) * 32 + (7.325 * 2,) * 2
    crept = recorded(7.325 * 1.04, FIRST)
    slow = measurement(7.325 * 1.055, window_seconds=window, baseline=crept)
    judgement = judge(evidence(slow, excluded_by_since=HISTORY, baseline=crept))
    assert judgement.reason is Reason.FEW_STEPS_DECIDE
    assert decide_status(judgement, DEFAULT_RULES) is Status.FAILED


def test_launch_fails_if_one_of_its_runs_exceeds_the_drift_budget() -> None:
    """Their mean is within the budget, but one of them is not."""
    runs = [
        measurement(
            7.325 * factor,
            run=run(launch="a launch", started=NOW - timedelta(hours=hours)),
        )
        for hours, factor in ((1, 1.0), (2, 1.07))
    ]
    judgement = judge(
        evidence(
            *runs, excluded_by_since=HISTORY, baseline=recorded(7.325 * 1.04, FIRST)
        )
    )
    assert judgement.reason is Reason.REPEATS_DISAGREE
    assert judgement.meets_point is False


def test_drift_message_states_who_recorded_the_baseline_and_its_first_value() -> None:
    crept = recorded(7.325 * 1.04, FIRST)
    recording = replace(
        crept.recording or pytest.fail("it is recorded"), by="bob on login2"
    )
    judgement = judge_run(7.325 * 1.04 * 1.04, replace(crept, recording=recording))
    outcome = describe(
        Outcome(ConfigurationResult(Case(KEY.id, KEY), judgement), Status.FAILED),
        NOW,
        Path("/runs"),
    )
    assert outcome.baseline.recorded is not None
    assert outcome.baseline.recorded.first.seconds == 7.325
    text = " ".join(explain(outcome, short=False).split())
    assert "REGRESSION grok1_314b-25.05-gb200-bf16-128 (drifted)" in text
    assert "25.05.yaml:42, of 2025-11-01 by bob on login2" in text
    assert "next: find what made it slower, day by day" in text


def test_acknowledged_change_is_no_drift() -> None:
    """The acknowledged change has its own reason; only a further slowdown counts."""
    yesterday = (NOW - timedelta(days=1)).date()
    entry = Acknowledgement(
        KEY.id,
        0.06,
        yesterday,
        yesterday + timedelta(days=30),
        "a fix",
        "A. Person",
        "a.yaml:3",
    )
    crept = recorded(7.325 * 1.02, FIRST)
    for factor, reason in (
        (1.02 * 1.06, Reason.WITHIN_TOLERANCE),
        (1.02 * 1.06 * 1.02, Reason.DRIFTED),
    ):
        drifted = evidence(
            measurement(7.325 * factor, baseline=crept),
            excluded_by_since=HISTORY,
            baseline=crept,
        )
        assert judge(drifted).verdict is Verdict.REGRESSION
        assert judge(acknowledged(drifted, [entry])).reason is reason
