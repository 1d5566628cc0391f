"""A run does not pass by a baseline value that another value contradicts."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from support.builders import BASELINE, KEY, NOW, at, evidence, measurement

from pytest_llmbench.core.baseline_records import Baseline, Contradiction
from pytest_llmbench.core.codes import NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.judge.final_verdict import judge_evidence
from pytest_llmbench.report.wording import phrase

STATED = 2.17
TYPED = at(
    BASELINE,
    step_seconds=STATED,
    cells=(("step_time", "2.17"), ("tokens_per_second", "524288")),
)


def decide(
    seconds: float, implied: float, baseline: Baseline = TYPED, **fields: Any
) -> Judgement:
    contradiction = Contradiction("tokens_per_second", "524288", implied)
    run = measurement(seconds, baseline=baseline)
    run_evidence = evidence(
        run, baseline=baseline, contradiction=contradiction, **fields
    )
    return judge_evidence(run_evidence)


@pytest.mark.parametrize(
    ("seconds", "implied", "verdict"),
    [
        (2.16, 2.00, Verdict.INVALID),
        (2.20, 2.00, Verdict.INVALID),
        (2.00, 1.50, Verdict.INVALID),
        (2.02, 2.00, Verdict.INVALID),  # also if it passes by either value
        (2.16, 2.10, Verdict.INVALID),
        (2.16, 2.13, Verdict.PASS),  # below half of the tolerance
        (2.16, 2.40, Verdict.PASS),  # a shorter step time cannot pass a slow run
        (2.50, 2.00, Verdict.REGRESSION),
    ],
)
def test_passing_run_is_invalid_if_the_baseline_throughput_implies_a_faster_step(
    seconds: float, implied: float, verdict: Verdict
) -> None:
    judgement = decide(seconds, implied)
    noted = any(note.code is NoteCode.BASELINE_CONTRADICTS for note in judgement.notes)
    assert (judgement.verdict, noted) == (verdict, verdict is not Verdict.INVALID)
    if verdict is Verdict.INVALID:
        assert judgement.reason is Reason.BASELINE_CONTRADICTS
        assert "step_time 2.17, but tokens_per_second 524288" in phrase(judgement)


def test_acknowledgement_accepts_a_baseline_that_contradicts_itself() -> None:
    reason, until = Reason.BASELINE_CONTRADICTS, NOW.date() + timedelta(days=9)
    entry = Acknowledgement(
        KEY.id, 0.0, date(2025, 11, 1), until, "known", "ann", "f:1", reason
    )
    judgement = decide(2.16, 2.00, accepted=(entry,))
    assert judgement.verdict is Verdict.PASS
    assert entry in [note.acknowledgement for note in judgement.notes]
