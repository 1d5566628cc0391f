"""Profiles, traces and checkpoints, from the command line to the reports.

An item fails unless its job fulfilled the requested purpose. Its speed is never judged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.fake_recipe import PURPOSED, PURPOSES, WELL, write_recipe
from support.sessions import Judge, JudgedSession

CONFIGURATION = "fake_8b-24.11-h100-bf16-8"
HERE = "stage/results/24.11/bf16/8b/8"
REPORT = f"{HERE}/nemo-8b-bf16_8g__0_0.nsys-rep"
WEIGHTS = f"{HERE}/checkpoints/x/weights"

Launch = Callable[..., JudgedSession]


@pytest.fixture
def launch(pytester: pytest.Pytester, judged: Judge) -> Launch:
    """Write a recipe with this behaviour and launch it on this machine."""

    def run(
        *arguments: str, behaviour: str = PURPOSED + WELL, purposes: str = PURPOSES
    ) -> JudgedSession:
        write_recipe(pytester.path, {"8b": behaviour}, kind="local", purposes=purposes)
        return judged("-k", "fake", "--llmb-launch", *arguments)

    return run


def variables(folder: Path) -> set[str]:
    """Return the purpose variables that the last job received."""
    return set((folder / "stage" / "variables").read_text().splitlines())


def checkpoint(folder: Path) -> Path:
    """Write a checkpoint under the stage folder."""
    weights = folder / WEIGHTS
    weights.mkdir(parents=True)
    (weights / "__0_0.distcp").touch()
    return weights.parent


@pytest.mark.slow
def test_environment_variable_without_effect_on_the_recipe_is_reported(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_CONF_PROFILE_RANKS", "0")
    write_recipe(pytester.path, {"8b": WELL}, kind="local", purposes=PURPOSES)
    cluster = pytester.path / "cluster.yaml"
    cluster.write_text(
        cluster.read_text().replace(
            "environment: {", 'environment: {ENABLE_PROFILE: "true", '
        )
    )
    for options in (["--llmb-dry-run"], ["--llmb-launch"]):
        result = pytester.runpytest("-k", "fake", *options)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines_random(
            [
                "RUN_CONF_PROFILE_RANKS has no effect on fake 24.11: the recipe reads*",
                "ENABLE_PROFILE has no effect: --llmb-profile sets it",
            ]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--llmb-profile", {"ENABLE_PROFILE=true"}),
        (
            "--llmb-profile=start:20,stop:30,ranks:0+1,gpu_metrics,cpu",
            {
                "ENABLE_PROFILE=true",
                "PROFILE_START_STEP=20",
                "PROFILE_STOP_STEP=30",
                "PROFILE_RANKS=0,1",
                "PROFILE_GPU_METRICS=true",
                "PROFILE_CPU=true",
            },
        ),
        ("--llmb-nccl-trace", {"ENABLE_NCCL_TRACE=true"}),
        ("--llmb-save-checkpoint", {"ENABLE_CHECKPOINT=true"}),
    ],
)
def test_successful_profiling_trace_or_checkpoint_job_is_skipped(
    launch: Launch, pytester: pytest.Pytester, option: str, expected: set[str]
) -> None:
    session = launch(option)
    assert session.verdicts == {CONFIGURATION: "NOT_COMPARABLE"}
    assert session.statuses == {CONFIGURATION: "skipped"}
    assert session.described[CONFIGURATION]["reason"] == "not-judged"
    assert session.ret == pytest.ExitCode.OK
    assert variables(pytester.path) == expected
    if option == "--llmb-nccl-trace":
        described = session.described[CONFIGURATION]
        assert "the trace begins in line 1 of the log" in described["text"]
        assert described["jobs"][0]["files"] == [described["log"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "file"),
    [("--llmb-profile", REPORT), ("--llmb-save-checkpoint", WEIGHTS)],
)
def test_profile_and_checkpoint_files_are_named_in_terminal_and_junit_reports(
    pytester: pytest.Pytester, option: str, file: str
) -> None:
    write_recipe(
        pytester.path, {"8b": PURPOSED + WELL}, kind="local", purposes=PURPOSES
    )
    result = pytester.runpytest(
        "-k",
        "fake",
        "--llmb-launch",
        option,
        "--junitxml=one.xml",
        "--llmb-junit=two.xml",
    )
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines([f"*{file}"])
    for name in ("one.xml", "two.xml"):
        text = ElementTree.tostring(
            ElementTree.parse(pytester.path / name).getroot(),  # noqa: S314
            "unicode",
        )
        assert file in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        "--llmb-profile",
        "--llmb-nccl-trace",
        "--llmb-save-checkpoint",
        f"--llmb-load-checkpoint={HERE}/checkpoints/x",
    ],
)
def test_profiling_trace_or_checkpoint_job_without_its_result_is_invalid(
    launch: Launch, pytester: pytest.Pytester, option: str
) -> None:
    checkpoint(pytester.path)
    session = launch(option, behaviour=WELL)
    assert session.verdicts == {CONFIGURATION: "INVALID"}
    assert session.described[CONFIGURATION]["reason"] == "nothing-left"
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert "+0.0 %" not in session.messages[CONFIGURATION]
    assert "measured" not in session.messages[CONFIGURATION]  # no measured step time


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps", ["0.5", "3.0", "1.0 0 25"], ids=["fast", "slow", "25 steps"]
)
def test_profiled_run_may_be_slow_or_incomplete(launch: Launch, steps: str) -> None:
    session = launch("--llmb-profile", behaviour=f"{PURPOSED}steps {steps}")
    assert session.verdicts == {CONFIGURATION: "NOT_COMPARABLE"}
    assert len(session.described[CONFIGURATION]["jobs"]) == 1  # nor is it repeated


@pytest.mark.slow
def test_failed_profiled_job_is_invalid(launch: Launch) -> None:
    session = launch(
        "--llmb-profile",
        behaviour=f"{PURPOSED}steps 1.0 0 20; echo 'no such image' >&2; exit 3",
    )
    assert session.verdicts == {CONFIGURATION: "INVALID"}
    assert session.described[CONFIGURATION]["reason"] == "job-failed"
    assert "no such image" in session.described[CONFIGURATION]["text"]


@pytest.mark.slow
def test_profile_of_an_earlier_job_does_not_count(
    launch: Launch, pytester: pytest.Pytester
) -> None:
    assert launch("--llmb-profile").statuses == {CONFIGURATION: "skipped"}
    assert (pytester.path / REPORT).exists()
    assert launch("--llmb-profile", behaviour=WELL).statuses == {
        CONFIGURATION: "failed"
    }


@pytest.mark.slow
def test_load_checkpoint_option_passes_the_absolute_checkpoint_folder_to_the_job(
    launch: Launch, pytester: pytest.Pytester
) -> None:
    folder = checkpoint(pytester.path)
    session = launch(f"--llmb-load-checkpoint={folder.relative_to(pytester.path)}")
    assert session.statuses == {CONFIGURATION: "skipped"}
    assert session.ret == pytest.ExitCode.OK
    assert variables(pytester.path) == {f"LOAD_CHECKPOINT_PATH={folder}"}
    assert "line 1 of the log reports it" in session.described[CONFIGURATION]["text"]


REFUSED: dict[str, dict[str, Any]] = {
    "pass its parent": {"option": f"--llmb-load-checkpoint={WEIGHTS}"},
    "documented for 8b on 8 to 16 GPUs, not on 32": {
        "option": "--llmb-save-checkpoint",
        "gpus": 32,
    },
    "did you mean 'start'?": {"option": "--llmb-profile=strat:30"},
    "omit --llmb-nccl-trace": {"option": "--llmb-nccl-trace", "purposes": ""},
}


@pytest.mark.slow
@pytest.mark.parametrize("message", REFUSED)
def test_impossible_profile_trace_or_checkpoint_option_is_refused_before_launch(
    pytester: pytest.Pytester, message: str
) -> None:
    case: dict[str, Any] = {"gpus": 8, "purposes": PURPOSES} | REFUSED[message]
    option = case.pop("option")
    checkpoint(pytester.path)
    write_recipe(pytester.path, {"8b": "touch $STAGE_PATH/ran"}, kind="local", **case)
    result = pytester.runpytest("-k", "fake", "--llmb-launch", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in " ".join(result.stderr.str().split())
    assert not (pytester.path / "stage" / "ran").exists()


# --- profiles of regressions ----------------------------------------------------------


@pytest.mark.slow
def test_regressed_configuration_is_profiled_once(
    launch: Launch, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    session = launch("--llmb-profile-on-regression", behaviour=f"{PURPOSED}steps 1.2")
    assert "1 profile of each configuration" in " ".join(
        capsys.readouterr().out.split()
    )
    assert session.verdicts == {CONFIGURATION: "REGRESSION"}
    jobs = session.described[CONFIGURATION]["jobs"]
    assert [job["purpose"] for job in jobs] == ["measure"] * 2 + ["profile"]
    assert jobs[-1]["files"] == [REPORT]
    assert REPORT in session.messages[CONFIGURATION]
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert variables(pytester.path) == {"ENABLE_PROFILE=true"}


@pytest.mark.slow
def test_regression_without_a_possible_profile_still_fails(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = launch("--llmb-profile-on-regression", behaviour="steps 1.2", purposes="")
    assert "profile of each" not in " ".join(capsys.readouterr().out.split())
    assert session.verdicts == {CONFIGURATION: "REGRESSION"}
    assert "not profiled: fake 24.11 documents no profiling" in " ".join(
        session.messages[CONFIGURATION].split()
    )


# --- later sessions -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["--llmb-profile", "--llmb-nccl-trace", "--llmb-load-checkpoint"]
)
def test_profiled_traced_or_checkpoint_loading_run_is_not_judged_from_its_log(
    launch: Launch, pytester: pytest.Pytester, judged: Judge, option: str
) -> None:
    value = (
        f"={checkpoint(pytester.path)}" if option == "--llmb-load-checkpoint" else ""
    )
    launch(f"{option}{value}", behaviour=f"{PURPOSED}steps 1.3")
    session = judged("-k", "fake", "--llmb-logs=.llmbench/jobs")
    # nothing was judged
    assert (session.statuses, session.ret) == (
        {CONFIGURATION: "skipped"},
        pytest.ExitCode.TESTS_FAILED,
    )
    assert session.described[CONFIGURATION]["reason"] == "only-not-comparable"
