"""A launched session looks at its configurations together, as one over runs on disk
does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from generator import write_run
from support.fake_recipe import write_recipe
from support.sessions import Judge, Judged

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

Launch = Callable[..., Judged]


@pytest.fixture
def jobs(pytester: pytest.Pytester) -> Callable[..., None]:
    """Write three configurations, whose jobs take so many seconds a step, with quiet
    nights at 1 s below `old`."""

    def write(**seconds: float) -> None:
        job = JOB.format(**{"small": 1.0, "large": 1.0, "fp8": 1.0, **seconds})
        write_recipe(pytester.path, {"8b": job}, kind="local", further=FURTHER)
        if not (pytester.path / "old").exists():
            quiet_nights(pytester)

    return write


@pytest.fixture
def launch(jobs: Callable[..., None], judged: Judge) -> Launch:
    """Launch the three with the old nights, and these arguments."""

    def run(*arguments: str, **seconds: float) -> Judged:
        jobs(**seconds)
        return judged(*LAUNCH, *(arguments or ("-k", "fake")))

    return run


def quiet_nights(pytester: pytest.Pytester) -> None:
    baselines = load(Settings(baselines=(pytester.path / "baselines",))).baselines
    own = [of_key[0] for key, of_key in baselines.items() if key.recipe == "fake"]
    for night in range(NIGHTS):
        for number, baseline in enumerate(own):
            factor = 1 + 0.001 * WOBBLE[(night + 3 * number) % 10]
            job: dict[str, Any] = {
                "started": START + timedelta(days=night),
                "job_id": str(1000 + 10 * night + number),
            }
            write_run(
                pytester.path / "old", baseline, factor=factor, layout="results", **job
            )


def checks(session: Judged, kind: str) -> Mapping[str, dict[str, Any]]:
    return {one["id"]: one for one in session.reports if one.get("check") == kind}


@pytest.mark.slow
def test_worse_scaling_fails_if_asked(
    launch: Launch, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the two is within its own tolerance: without the comparison the launch
    would be green."""
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
    (told,) = checks(session, "weak-scaling").values()
    assert (told["id"], told["verdict"], told["status"], told["decides"]) == (
        FAMILY,
        "REGRESSION",
        "failed",
        True,
    )
    assert told["text"].startswith(
        "16 GPUs have 92.3 % of the throughput per GPU of 8, published 100.0 %"
    )
    assert [one["status"] for one in checks(session, "fp8-speedup").values()] == [
        "passed"
    ]
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert f"test_weak_scaling[{FAMILY}]" in printed
    assert "weak-scaling: 1 REGRESSION" in printed
    assert "--lf" not in printed  # it would launch nothing
    suite = ElementTree.parse(pytester.path / "junit.xml").getroot()[0]  # noqa: S314 (our own file)
    assert (suite.get("tests"), suite.get("failures")) == ("6", "1")
    (red,) = [case.get("name") for case in suite if case.find("failure") is not None]
    assert red == f"test_weak_scaling[{FAMILY}]"


@pytest.mark.slow
def test_worse_scaling_is_only_reported_by_default(launch: Launch) -> None:
    session = launch(small=0.96, large=1.04)
    (told,) = checks(session, "weak-scaling").values()
    assert (told["verdict"], told["status"], told["decides"]) == (
        "REGRESSION",
        "passed",
        False,
    )
    efficiency = {
        name: one["metrics"].get("weak_scaling_efficiency")
        for name, one in session.described.items()
    }
    assert efficiency[LARGE]["value"] == pytest.approx(0.96 / 1.04)
    assert efficiency[FP8] is None
    assert session.ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_what_is_as_documented_is_green(launch: Launch) -> None:
    session = launch("--llmb-scaling=fail", "-k", "fake")
    assert [
        (one["check"], one["verdict"], one["status"])
        for one in session.reports
        if one["kind"] == "check"
    ] == [
        ("weak-scaling", "PASS", "passed"),
        ("fp8-speedup", "PASS", "passed"),
    ]
    assert session.ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_own_tests_do_not_hide_a_worse_scaling(
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
    assert [one["status"] for one in checks(session, "weak-scaling").values()] == [
        "failed"
    ]
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_only_what_the_launch_judged_is_compared(launch: Launch) -> None:
    """The runs of the other precision below --llmb-logs are of earlier nights."""
    session = launch("--llmb-scaling=fail", "-k", "fake and bf16", fp8=1.2)
    assert (session.verdicts, session.ret) == (
        dict.fromkeys((SMALL, LARGE), "PASS"),
        pytest.ExitCode.OK,
    )
    assert [
        (one["check"], one["id"]) for one in session.reports if one["kind"] == "check"
    ] == [("weak-scaling", FAMILY)]


@pytest.mark.slow
def test_shared_shift_is_one_item_named_in_each_regression(launch: Launch) -> None:
    session = launch(
        "--llmb-scaling=fail", "-k", "fake", small=1.08, large=1.08, fp8=1.08
    )
    (told,) = checks(session, "cluster-change").values()
    assert (told["id"], told["verdict"], told["status"]) == (
        "slower",
        "SLOWER",
        "failed",
    )
    assert told["text"].startswith(
        "3 of 3 configurations are slower than their last runs by "
    )
    for name in (SMALL, LARGE, FP8):
        assert session.verdicts[name] == "REGRESSION"
        assert session.described[name]["text"].endswith(told["text"])
        assert session.described[name]["jobs"]


@pytest.mark.slow
def test_last_failed_comparison_says_how_to_launch_again(
    jobs: Callable[..., None], pytester: pytest.Pytester
) -> None:
    jobs(small=0.96, large=1.04)
    command = (*LAUNCH, "-k", "fake and bf16", "--llmb-scaling=fail")
    pytester.runpytest(*command).assert_outcomes(passed=3, failed=1)
    refused = pytester.runpytest(*command, "--lf")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    told = f"test_weak_scaling[[]{FAMILY}] failed, and follows from what was launched: leave out --lf to launch it again"
    refused.stderr.fnmatch_lines([f"*nothing is launched; {told}"])
    ran = (pytester.path / "stage" / "ran").read_text()
    assert ran.count("ran") == 2
