"""The committed examples get their designed verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from generator.experiments import EXPERIMENTS, verdicts
from support.sessions import Judge

pytestmark = pytest.mark.wheel

LOGS = "--llmb-logs={}".format
STATUSES = {
    "PASS": "passed",
    "IMPROVEMENT": "passed",
    "REGRESSION": "failed",
    "INCONCLUSIVE": "failed",
    "INVALID": "failed",
    "unmatched": "failed",
    "MISSING": "skipped",
}


def expected() -> dict[str, str]:
    return {identifier: str(verdict) for identifier, (verdict, _) in verdicts().items()}


@pytest.mark.slow
def test_examples_get_their_designed_verdicts(judged: Judge, examples: Path) -> None:
    session = judged(LOGS(examples))
    found = {
        name: verdict
        for name, verdict in session.verdicts.items()
        if name in expected()
    }
    assert found == expected()
    assert session.statuses == {
        name: STATUSES[verdict] for name, verdict in session.verdicts.items()
    }
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    absent = {
        verdict for name, verdict in session.verdicts.items() if name not in expected()
    }
    assert absent == {"MISSING", "unmatched"}
    assert len(session.verdicts) == 82 + 1
    for name, (_, reason) in verdicts().items():
        assert session.described[name]["reason"] == str(reason)


@pytest.mark.slow
def test_each_run_can_have_its_own_item(judged: Judge, examples: Path) -> None:
    session = judged(LOGS(examples), "--llmb-runs=each")
    for experiment in EXPERIMENTS:
        if experiment.expected is None:
            continue
        names = [
            name
            for name in session.verdicts
            if name.startswith(f"{experiment.configuration}-")
        ]
        own = [name for name in names if experiment.job_id in name] or [
            f"{experiment.configuration}-run"
        ]
        assert session.verdicts[own[0]] == str(experiment.expected), own
