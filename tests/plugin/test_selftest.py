"""--llmb-selftest: the gate detects damage of the user's own runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sessions import Judge, Write

from pytest_llmbench.runs.measure import validity
from pytest_llmbench.session import selftest

NAME = "grok1_314b-25.05-gb200-bf16-128"


@pytest.mark.slow
def test_selftest_detects_damage_of_each_passed_run(
    judged: Judge, examples: Path
) -> None:
    session = judged(
        f"--llmb-logs={examples}", "--llmb-selftest", "--llmb-unmatched=list"
    )
    tested = {
        report["id"]: report
        for report in session.reports
        if report.get("check") == "selftest"
    }
    passed = {
        name
        for name, verdict in session.verdicts.items()
        if verdict in ("PASS", "IMPROVEMENT")
    }
    assert set(tested) == passed
    assert len(tested) > 10
    assert {mutant["verdict"] for mutant in tested.values()} == {"CAUGHT"}
    for mutant in tested.values():
        lines = " ".join(mutant["lines"])
        assert "slowed to +" in lines
        assert "REGRESSION" in lines
        assert all(name in lines for name in selftest.CHANGES)


@pytest.mark.slow
def test_selftest_fails_if_a_damaged_run_still_passes(
    judged: Judge, generated: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate that ignores losses fails the self-test."""
    monkeypatch.setattr(validity, "find_not_finite", lambda steps: iter(()))
    session = judged(f"--llmb-logs={generated(NAME)}", "--llmb-selftest", "-k", NAME)
    (check,) = [
        report for report in session.reports if report.get("check") == "selftest"
    ]
    assert (check["verdict"], check["status"]) == ("SURVIVED", "failed")
    assert "survived: NaN loss" in check["text"]
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_reported_result_is_the_same_with_an_xdist_worker(
    pytester: pytest.Pytester, generated: Write
) -> None:
    result = pytester.runpytest_inprocess(
        "-p",
        "no:cacheprovider",
        "-n1",
        f"--llmb-logs={generated(NAME)}",
        "--llmb-selftest",
        "-k",
        NAME,
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([f"  {NAME}: caught 9 of 9; detects +*"])
