"""Checks of several configurations: scaling, speed-up, shared shifts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.sessions import Judge, JudgedSession, Write

FAMILY = [f"llama3.1_8b-25.04-h100-bf16-{gpus}" for gpus in (8, 16, 32, 64)]
BF16, FP8 = "grok1_314b-25.05-gb200-bf16-128", "grok1_314b-25.05-gb200-fp8-128"
START = datetime(2025, 6, 2, 3, tzinfo=UTC)


def checks(session: JudgedSession, kind: str) -> dict[str, dict[str, Any]]:
    return {
        report["id"]: report
        for report in session.reports
        if report.get("check") == kind
    }


def logs(path: Path) -> str:
    return f"--llmb-logs={path}"


def family(generated: Write, *factors: float, day: int = 0) -> Path:
    """Write a run of each size at these multiples of the documented time."""
    for number, (name, factor) in enumerate(zip(FAMILY, factors, strict=True)):
        job = str(1000 * day + number)
        folder = generated(
            name, factor=factor, started=START + timedelta(days=day), job_id=job
        )
    return folder


@pytest.mark.slow
def test_poor_weak_scaling_fails_with_the_scaling_option_set_to_fail(
    judged: Judge, generated: Write
) -> None:
    folder = family(generated, 1.0, 1.0, 1.0, 1.15)
    session = judged(logs(folder))
    (check,) = checks(session, "weak-scaling").values()
    assert (check["id"], check["verdict"], check["status"]) == (
        "llama3.1_8b-25.04-h100-bf16",
        "REGRESSION",
        "passed",
    )
    assert check["text"].startswith("64 GPUs reach 86.")
    assert len(check["lines"]) == 3
    second_session = judged(logs(folder), "--llmb-scaling=fail", "-k", "weak_scaling")
    (check,) = checks(second_session, "weak-scaling").values()
    assert check["status"] == "failed"
    assert second_session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_slow_fp8_run_reports_a_smaller_speed_up_over_bf16(
    judged: Judge, generated: Write
) -> None:
    generated(BF16)
    session = judged(logs(generated(FP8, factor=1.15)))
    (check,) = checks(session, "fp8-speedup").values()
    assert (check["id"], check["verdict"], check["status"]) == (
        "grok1_314b-25.05-gb200-128",
        "REGRESSION",
        "passed",
    )


@pytest.mark.slow
def test_session_with_only_reported_checks_fails(
    judged: Judge, generated: Write
) -> None:
    folder = family(generated, 1.0, 1.0, 1.0, 1.0)
    assert (
        judged(logs(folder), "-k", "weak_scaling").ret == pytest.ExitCode.TESTS_FAILED
    )
    assert (
        judged(logs(folder), "-k", "weak_scaling", "--llmb-scaling=fail").ret
        == pytest.ExitCode.OK
    )


@pytest.fixture
def shifted(generated: Write) -> Path:
    """Nine ordinary days of four configurations, and a day on which all are 8 % slower."""
    for day in range(9):
        family(
            generated,
            *(1 + 0.002 * ((day * 5 + size * 3) % 7 - 3) / 3 for size in range(4)),
            day=day,
        )
    return family(generated, 1.08, 1.085, 1.08, 1.075, day=9)


@pytest.mark.slow
def test_slowdown_of_all_configurations_is_one_item_and_mentioned_in_each_regression(
    judged: Judge, shifted: Path
) -> None:
    session = judged(logs(shifted))
    (check,) = checks(session, "cluster-change").values()
    assert (check["verdict"], check["status"]) == ("SLOWER", "passed")
    assert check["text"].startswith(
        "4 of 4 configurations are slower than their last runs by "
    )
    for name in FAMILY:
        assert session.verdicts[name] == "REGRESSION"
        assert "a cluster-wide change" in session.described[name]["text"]
        assert session.statuses[name] == "failed"


@pytest.mark.slow
def test_selection_changes_neither_verdict_nor_noise(
    judged: Judge, shifted: Path
) -> None:
    everything, one = judged(logs(shifted)), judged(logs(shifted), "-k", FAMILY[2])
    assert (
        one.described[FAMILY[2]]["estimate"]
        == everything.described[FAMILY[2]]["estimate"]
    )
    assert one.described[FAMILY[2]]["text"] == everything.described[FAMILY[2]]["text"]


@pytest.mark.slow
def test_custom_tests_can_request_checks(
    judged: Judge, generated: Write, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        def test_scaling(llmb_weak_scaling):
            assert llmb_weak_scaling.verdict == "PASS"

        def test_speedup(llmb_fp8_speedup):
            assert False, "there is no pair in the folder"
        """
    )
    session = judged(
        logs(family(generated, 1.0, 1.0, 1.0, 1.0)),
        "--llmb-scaling=fail",
        "test_custom_tests_can_request_checks.py",
    )
    assert [report["check"] for report in session.reports] == ["weak-scaling"]
