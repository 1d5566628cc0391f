"""A launch compares its configurations with each other, as a session on disk does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from generator import write_run
from support.fake_recipe import write_recipe
from support.sessions import Judge, JudgedSession

from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.settings import Settings

SMALL, LARGE, FP8 = (
    f"fake_8b-24.11-h100-{rest}" for rest in ("bf16-8", "bf16-16", "fp8-8")
)
FAMILY = "fake_8b-24.11-h100-bf16"
FURTHER = (
    {"size": "8b", "gpus": 16, "gbs": 256},
    {"size": "8b", "gpus": 8, "dtype": "fp8"},
)
NIGHTS = 10
START = datetime.now(UTC).replace(
    hour=3, minute=0, second=0, microsecond=0
) - timedelta(days=NIGHTS)
WOBBLE = (0, 1, -1, 2, 0, -2, 1, 0, -1, 1)
"""Per mille of the step time, night by night."""

JOB = """case $DTYPE-$JOB_TOTAL_GPUS in
bf16-8) seconds={small} ;;
bf16-16) seconds={large} batch=256 ;;
fp8-8) seconds={fp8} ;;
esac
echo ran >> $STAGE_PATH/ran
steps $seconds"""

OWN_TESTS = """
def test_mine(llmb_verdict):
    assert not llmb_verdict.failed

def test_scaling(llmb_weak_scaling):
    assert False, "nothing is known of it when tests are made"
"""

LAUNCH = ("--llmb-launch", "--llmb-logs=old", "--llmb-repeats=1")

Launch = Callable[..., JudgedSession]


@pytest.fixture
def jobs(pytester: pytest.Pytester) -> Callable[..., None]:
    """Write three configurations with these seconds per step, and daily runs of 1 s in
    `old`."""

    def write(**seconds: float) -> None:
        job = JOB.format(**{"small": 1.0, "large": 1.0, "fp8": 1.0, **seconds})
        write_recipe(pytester.path, {"8b": job}, kind="local", further=FURTHER)
        if not (pytester.path / "old").exists():
            quiet_nights(pytester)

    return write


@pytest.fixture
def launch(jobs: Callable[..., None], judged: Judge) -> Launch:
    """Launch the three configurations with the old runs and these arguments."""

    def run(*arguments: str, **seconds: float) -> JudgedSession:
        jobs(**seconds)
        return judged(*LAUNCH, *(arguments or ("-k", "fake")))

    return run


def quiet_nights(pytester: pytest.Pytester) -> None:
    baselines = load(Settings(baselines=(pytester.path / "baselines",))).baselines
    fake_baselines = [
        candidates[0] for key, candidates in baselines.items() if key.recipe == "fake"
    ]
    for day in range(NIGHTS):
        for number, baseline in enumerate(fake_baselines):
            factor = 1 + 0.001 * WOBBLE[(day + 3 * number) % 10]
            job: dict[str, Any] = {
                "started": START + timedelta(days=day),
                "job_id": str(1000 + 10 * day + number),
            }
            write_run(
                pytester.path / "old", baseline, factor=factor, layout="results", **job
            )


def checks(session: JudgedSession, kind: str) -> Mapping[str, dict[str, Any]]:
    return {
        report["id"]: report
        for report in session.reports
        if report.get("check") == kind
    }


@pytest.mark.slow
def test_worse_scaling_fails_if_requested(
    launch: Launch, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both runs are within their tolerances: only the comparison fails."""
    session = launch(
        "--llmb-scaling=fail",
        "-k",
        "fake",
        "--junitxml=junit.xml",
        small=0.96,
        large=1.04,
    )
    printed = capsys.readouterr().out
    assert session.verdicts == dict.fromkeys((SMALL, LARGE, FP8), "PASS")
    (check,) = checks(session, "weak-scaling").values()
    assert (check["id"], check["verdict"], check["status"], check["decides"]) == (
        FAMILY,
        "REGRESSION",
        "failed",
        True,
    )
    assert check["text"].startswith(
        "16 GPUs reach 92.3 % of the per-GPU throughput of 8 GPUs, published 100.0 %"
    )
    assert [report["status"] for report in checks(session, "fp8-speedup").values()] == [
        "passed"
    ]
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert f"test_weak_scaling[{FAMILY}]" in printed
    assert "weak-scaling: 1 REGRESSION" in printed
    assert "--lf" not in printed  # --lf would launch nothing
    suite = ElementTree.parse(pytester.path / "junit.xml").getroot()[0]  # noqa: S314 (our own file)
    assert (suite.get("tests"), suite.get("failures")) == ("6", "1")
    (red,) = [case.get("name") for case in suite if case.find("failure") is not None]
    assert red == f"test_weak_scaling[{FAMILY}]"


@pytest.mark.slow
def test_worse_scaling_is_only_reported_by_default(launch: Launch) -> None:
    session = launch(small=0.96, large=1.04)
    (check,) = checks(session, "weak-scaling").values()
    assert (check["verdict"], check["status"], check["decides"]) == (
        "REGRESSION",
        "passed",
        False,
    )
    efficiency = {
        name: report["metrics"].get("weak_scaling_efficiency")
        for name, report in session.described.items()
    }
    assert efficiency[LARGE]["value"] == pytest.approx(0.96 / 1.04)
    assert efficiency[FP8] is None
    assert session.ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_documented_scaling_passes(launch: Launch) -> None:
    session = launch("--llmb-scaling=fail", "-k", "fake")
    assert [
        (report["check"], report["verdict"], report["status"])
        for report in session.reports
        if report["kind"] == "check"
    ] == [
        ("weak-scaling", "PASS", "passed"),
        ("fp8-speedup", "PASS", "passed"),
    ]
    assert session.ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_custom_tests_do_not_hide_worse_scaling(
    launch: Launch, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_mine=OWN_TESTS)
    session = launch(
        "--llmb-scaling=fail",
        "-k",
        "fake or scaling",
        "test_mine.py",
        small=0.96,
        large=1.04,
    )
    assert [
        report["status"] for report in checks(session, "weak-scaling").values()
    ] == ["failed"]
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_scaling_check_of_a_launch_compares_no_older_runs(launch: Launch) -> None:
    """Older runs of the other precision in --llmb-logs are not compared."""
    session = launch("--llmb-scaling=fail", "-k", "fake and bf16", fp8=1.2)
    assert (session.verdicts, session.ret) == (
        dict.fromkeys((SMALL, LARGE), "PASS"),
        pytest.ExitCode.OK,
    )
    assert [
        (report["check"], report["id"])
        for report in session.reports
        if report["kind"] == "check"
    ] == [("weak-scaling", FAMILY)]


@pytest.mark.slow
def test_slowdown_of_all_configurations_is_one_item_and_mentioned_in_each_regression(
    launch: Launch,
) -> None:
    session = launch(
        "--llmb-scaling=fail", "-k", "fake", small=1.08, large=1.08, fp8=1.08
    )
    (check,) = checks(session, "cluster-change").values()
    assert (check["id"], check["verdict"], check["status"]) == (
        "slower",
        "SLOWER",
        "failed",
    )
    assert check["text"].startswith(
        "3 of 3 configurations are slower than their last runs by "
    )
    for name in (SMALL, LARGE, FP8):
        assert session.verdicts[name] == "REGRESSION"
        assert session.described[name]["text"].endswith(check["text"])
        assert session.described[name]["jobs"]


@pytest.mark.slow
def test_rerun_of_a_failed_scaling_check_that_needs_a_launch_is_a_usage_error(
    jobs: Callable[..., None], pytester: pytest.Pytester
) -> None:
    jobs(small=0.96, large=1.04)
    command = (*LAUNCH, "-k", "fake and bf16", "--llmb-scaling=fail")
    pytester.runpytest(*command).assert_outcomes(passed=3, failed=1)
    refused = pytester.runpytest(*command, "--lf")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    message = f"test_weak_scaling[[]{FAMILY}] failed, which needs a launch: remove --lf to launch again"
    refused.stderr.fnmatch_lines([f"*nothing is launched; {message}"])
    ran = (pytester.path / "stage" / "ran").read_text()
    assert ran.count("ran") == 2
