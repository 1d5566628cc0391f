"""--llmb-selftest: the gate proves on the user's own runs that it sees damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from generator.experiments import EXPERIMENTS
from sessions import Judge, Write

from pytest_llmbench.measure import validity
from pytest_llmbench.pipeline import selftest

NAME = "grok1_314b-25.05-gb200-bf16-128"


@pytest.mark.slow
def test_every_run_that_passed_is_damaged_and_every_damage_is_caught(judged: Judge, examples: Path) -> None:
    session = judged(f"--llmb-logs={examples}", "--llmb-selftest", "--llmb-unmatched=list")
    tested = {one["id"]: one for one in session.reports if one.get("check") == "selftest"}
    passed = {name for name, verdict in session.verdicts.items() if verdict in ("PASS", "IMPROVEMENT")}
    assert set(tested) == passed
    assert len(tested) > 10
    assert {one["verdict"] for one in tested.values()} == {"CAUGHT"}
    for one in tested.values():
        lines = " ".join(one["lines"])
        assert "slowed to +" in lines
        assert "REGRESSION" in lines
        assert all(name in lines for name in selftest.CHANGES)


@pytest.mark.slow
def test_what_a_log_cannot_express_is_listed_as_not_testable(judged: Judge, examples: Path) -> None:
    silent = next(one for one in EXPERIMENTS if one.configuration == "llama3.1_405b-25.04-h100-fp8-32")
    session = judged(f"--llmb-logs={examples}", "--llmb-selftest", "-k", f"{silent.configuration} or {NAME}")
    texts = {one["id"]: one["text"] for one in session.reports if one.get("check") == "selftest"}
    assert "not testable" not in texts[NAME]
    assert texts[NAME].startswith("caught 9 of 9; shows +")


def test_a_surviving_mutant_fails(judged: Judge, generated: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test can fail: a gate that does not look at losses lets one mutant through."""
    monkeypatch.setattr(validity, "find_not_finite", lambda steps: iter(()))
    session = judged(f"--llmb-logs={generated(NAME)}", "--llmb-selftest", "-k", NAME)
    (told,) = [one for one in session.reports if one.get("check") == "selftest"]
    assert (told["verdict"], told["status"]) == ("SURVIVED", "failed")
    assert "survived: NaN loss" in told["text"]
    assert session.ret == pytest.ExitCode.TESTS_FAILED


def test_without_the_flag_nothing_is_damaged(judged: Judge, generated: Write) -> None:
    session = judged(f"--llmb-logs={generated(NAME)}", "-k", NAME)
    assert [one["kind"] for one in session.reports] == ["configuration"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_the_same_under_workers(pytester: pytest.Pytester, generated: Write, workers: str) -> None:
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", workers, f"--llmb-logs={generated(NAME)}", "--llmb-selftest", "-k", NAME
    )
    result.assert_outcomes(passed=3, deselected=0 if workers == "-n1" else 81)
    result.stdout.fnmatch_lines([f"  {NAME}: caught 9 of 9; shows +*"])
