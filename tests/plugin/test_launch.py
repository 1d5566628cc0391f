"""Launching on this machine without Slurm: started jobs, refusals and messages."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from support.fake_recipe import WELL, write_recipe
from support.forked_processes import Programs
from support.outcomes import list_schema_errors
from support.sessions import Judge, JudgedSession, wait_until

COUNTED = f"echo ran >> $STAGE_PATH/ran; {WELL}"
"""A job that leaves a line for each time that it ran."""

BEGAN = "touch -d '61 seconds ago' $STAGE_PATH/../.llmbench/jobs/*/*/llmb-config_*.yaml"
"""A job that began over a minute ago: a local one began when its record was written."""

Launch = Callable[..., JudgedSession]


@pytest.fixture
def launch(pytester: pytest.Pytester, judged: Judge) -> Launch:
    """Write a recipe with these behaviours by size, and run pytest with these
    arguments."""

    def run(*arguments: str, **behaviours: str) -> JudgedSession:
        if behaviours:
            write_recipe(pytester.path, behaviours, kind="local")
        return judged(*arguments)

    return run


@pytest.fixture
def ran(pytester: pytest.Pytester) -> Callable[[], int]:
    """Return the number of jobs that ran."""
    file = pytester.path / "stage" / "ran"
    return lambda: len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.slow
def test_every_report_states_estimated_and_used_gpu_hours(
    launch: Launch, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = ("--llmb-json=s.json", "--llmb-junit=l.xml", "--llmb-html=p.html")
    ok, bad = f"{BEGAN}; {WELL}", f"{BEGAN}; steps 1.0 0 20; exit 3"
    session = launch(
        "--llmb-launch", "--llmb-repeats=2", *reports, "-k", "fake", ok=ok, bad=bad
    )
    text = " ".join(capsys.readouterr().out.split())
    assert "2 jobs, 0.2 GPU-hours of steps; limit 1,000" in text
    assert (
        "at most 1.3 GPU-hours: 2 runs of each configuration, 2 starts of each run, 1 retry after a stall, 1 run on slow nodes"
        in text
    )
    document = json.loads((pytester.path / "s.json").read_text())
    assert list_schema_errors(document) == []
    used, lost = document["gpu_hours"]["used"], document["gpu_hours"]["lost"]["failed"]
    assert 2 * 8 * 60 / 3600 <= used < 1
    assert 8 * 60 / 3600 <= lost < used
    assert document["gpu_hours"]["limit"] == 1000
    head = f"GPU-hours: {used:.2g} used"
    assert (
        f"{head} (0.22 estimated, 1,000 allowed); {lost:.2g} of them lost: failed"
        in text
    )
    failed = session.described["fake_bad-24.11-h100-bf16-8"]
    assert failed["gpu_hours"]["lost"]["failed"] == lost
    assert (failed["run"]["started_from"], failed["run"]["age"]) == (
        "job 1",
        failed["jobs"][0]["age"],
    )
    assert "gpu_hours_lost_failed" in (pytester.path / "l.xml").read_text()
    assert head in (pytester.path / "p.html").read_text()


@pytest.mark.slow
def test_slow_run_with_a_failed_repeat_is_invalid(
    launch: Launch, ran: Callable[[], int]
) -> None:
    """The first run alone would pass as INCONCLUSIVE below the limit."""
    commands = (
        "echo ran >> $STAGE_PATH/ran; steps 1.045; [ $(wc -l < $STAGE_PATH/ran) != 2 ]"
    )
    session = launch("--llmb-launch", "-k", "fake", close=commands)
    assert session.verdicts == {"fake_close-24.11-h100-bf16-8": "INVALID"}
    assert ran() == 2
    assert [
        job["repeat"]
        for job in session.described["fake_close-24.11-h100-bf16-8"]["jobs"]
    ] == [1, 2]
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_failed_job_is_explained_and_not_retried(
    launch: Launch, ran: Callable[[], int]
) -> None:
    commands = (
        "echo ran >> $STAGE_PATH/ran; steps 1.0 0 20; echo 'no such image' >&2; exit 3"
    )
    session = launch("--llmb-launch", "-k", "fake", bad=commands)
    assert session.verdicts == {"fake_bad-24.11-h100-bf16-8": "INVALID"}
    assert "no such image" in session.described["fake_bad-24.11-h100-bf16-8"]["text"]
    assert ran() == 1
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_launched_job_that_exits_successfully_with_half_its_steps_is_invalid(
    launch: Launch,
) -> None:
    session = launch("--llmb-launch", "-k", "fake", half="steps 1.0 0 20")
    assert session.verdicts == {"fake_half-24.11-h100-bf16-8": "INVALID"}


KILLED = """
import os, signal
import pytest
from pytest_llmbench.launch.jobs.journal import Journal

@pytest.hookimpl
def pytest_configure(config):
    def killed(self, number, process):
        os.kill(os.getpid(), signal.SIGKILL)
    if not config.getoption("llmb_resume"):
        Journal.record_process = killed
"""


@pytest.mark.slow
def test_resume_after_a_killed_session_does_not_run_its_started_job_again(
    programs: Programs,
    launch: Launch,
    ran: Callable[[], int],
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(KILLED)
    write_recipe(pytester.path, {"ok": COUNTED}, kind="local")
    output = pytester.path / "output"
    assert (
        programs.run(
            "pytest", ["-k", "fake", "--llmb-launch"], pytester.path, output, output
        )
        == -signal.SIGKILL
    )
    jobs_folder = pytester.path / ".llmbench" / "jobs"
    wait_until(lambda: list(jobs_folder.rglob("job.exit")))
    session = launch("--llmb-resume", "-k", "fake")
    assert session.verdicts == {"fake_ok-24.11-h100-bf16-8": "PASS"}
    assert ran() == 1


@pytest.mark.slow
def test_only_selected_configurations_are_launched(
    launch: Launch, pytester: pytest.Pytester
) -> None:
    behaviours = {
        size: f"touch $STAGE_PATH/{size}; {WELL}" for size in ("one", "two", "three")
    }
    session = launch(
        "--llmb-launch",
        "-k",
        "fake_one or fake_two",
        "--deselect",
        DESELECTED,
        **behaviours,
    )
    assert session.verdicts == {"fake_one-24.11-h100-bf16-8": "PASS"}
    assert {path.name for path in (pytester.path / "stage").iterdir()} == {"one"}


DESELECTED = "pytest_llmbench/suite/test_performance.py::test_performance[fake_two-24.11-h100-bf16-8]"


@pytest.mark.slow
def test_custom_test_launches_its_configuration(
    launch: Launch, ran: Callable[[], int], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_mine(llmb_measurement):
            assert llmb_measurement.metric("step_time_seconds").value < 2

        @pytest.mark.skip(reason="not tonight")
        def test_skipped(llmb_verdict):
            pass
        """
    )
    assert (
        launch(
            "--llmb-launch",
            "-k",
            "fake and skipped",
            "test_custom_test_launches_its_configuration.py",
            ok=COUNTED,
        ).ret
        != pytest.ExitCode.OK
    )
    assert ran() == 0
    session = launch(
        "--llmb-launch", "-k", "fake", "test_custom_test_launches_its_configuration.py"
    )
    assert session.verdicts == {"fake_ok-24.11-h100-bf16-8": "PASS"}
    assert ran() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marker", "runs"),
    [
        ("skipif(True, reason='x')", 0),
        ("skipif(False, reason='x')", 1),
        ("xfail(run=False)", 0),
    ],
)
def test_skipped_test_launches_no_job(
    launch: Launch,
    ran: Callable[[], int],
    pytester: pytest.Pytester,
    marker: str,
    runs: int,
) -> None:
    body = "def test_mine(llmb_verdict):\n    assert not llmb_verdict.failed\n"
    pytester.makepyfile(test_mine=f"import pytest\n@pytest.mark.{marker}\n{body}")
    launch("--llmb-launch", "-k", "fake", "test_mine.py", ok=COUNTED)
    assert ran() == runs


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan", "--llmb-dry-run"])
def test_informational_option_launches_no_job(
    launch: Launch, ran: Callable[[], int], option: str
) -> None:
    launch("--llmb-launch", "-k", "fake", option, ok=COUNTED)
    assert ran() == 0


@pytest.mark.slow
def test_collection_error_prevents_the_launch(
    launch: Launch, ran: Callable[[], int], pytester: pytest.Pytester
) -> None:
    good = pytester.makepyfile(
        test_good="def test_good(llmb_verdict):\n    assert not llmb_verdict.failed\n"
    )
    broken = pytester.makepyfile(test_broken="import nothing_of_this_name\n")
    for more in ((), ("--continue-on-collection-errors",)):
        session = launch(
            "--llmb-launch",
            "-k",
            "fake or broken",
            str(good),
            str(broken),
            *more,
            ok=COUNTED,
        )
        assert session.ret != pytest.ExitCode.OK
    assert ran() == 0


@pytest.mark.slow
def test_last_failed_launches_only_failed_configurations(
    pytester: pytest.Pytester, ran: Callable[[], int]
) -> None:
    """pytest runs everything if no failure is known; a launch must not."""
    write_recipe(pytester.path, {"ok": COUNTED, "bad": "exit 1"}, kind="local")
    refused = pytester.runpytest("--llmb-launch", "-k", "fake", "--lf")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*--lf: no selected item failed last time*"])
    assert ran() == 0
    pytester.runpytest("--llmb-launch", "-k", "fake").assert_outcomes(
        passed=2, failed=1
    )
    assert ran() == 1
    result = pytester.runpytest("--llmb-launch", "-k", "fake", "--lf")
    result.assert_outcomes(
        failed=1, skipped=1, deselected=83
    )  # nothing else was judged
    assert ran() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--llmb-launch", "-n2"], "-n cannot be used with a launch"),
        (
            ["--llmb-gpu-hours=5", "--llmb-logs=."],
            "--llmb-gpu-hours has no effect without a launch: add --llmb-launch",
        ),
        (
            ["--llmb-launch", "--llmb-repeats=4"],
            "--llmb-repeats=4: expected a whole number from 1 to 3",
        ),
        (
            ["--llmb-launch", "--llmb-retries=-1"],
            "--llmb-retries=-1: expected a whole number from 0 to 10",
        ),
        (
            ["--llmb-launch", "--llmb-stall-limit=5"],
            "--llmb-stall-limit=5: expected auto, none, or a time such as 45m",
        ),
        (
            ["--llmb-launch", "--llmb-gpu-hours=lots"],
            "--llmb-gpu-hours=lots: expected a number of GPU-hours",
        ),
        (
            ["--llmb-launch", "--llmb-cluster=clutser.yaml"],
            "(did you mean 'cluster.yaml'?)",
        ),
        (
            ["--llmb-launch", "--llmb-profile", "--llmb-nccl-trace"],
            "exclude each other",
        ),
        (
            ["--llmb-collect", "--llmb-resume"],
            "--llmb-collect and --llmb-resume exclude each other",
        ),
        (
            ["--llmb-launch", "--llmb-session=x"],
            "--llmb-session needs --llmb-resume or --llmb-collect",
        ),
        (
            ["--llmb-launch", "--llmb-ignore=pyton-version"],
            "--llmb-ignore=pyton-version: there is no check 'pyton-version' (did you mean 'python-version'?): expected one or more of",
        ),
        (
            ["--llmb-launch", "--llmb-ignore=image,token"],
            "token cannot be ignored: the recipe may need this secret",
        ),
        (["--llmb-launch", "--llmb-ignore=slurm"], "a job could start twice"),
        (
            ["--llmb-launch", "--llmb-ignore=forbidden-variables"],
            "which could be taken for this one",
        ),
        (
            ["--llmb-resume", "--llmb-ignore=image"],
            "--llmb-ignore cannot be used with a resumed or collected session",
        ),
        (["--llmb-launch", "--llmb-selftest"], "--llmb-selftest with a launch"),
        (["--llmb-launch", "--llmb-runs=each"], "--llmb-runs=each with a launch"),
        (["--llmb-resume"], "no session found: "),
        (
            ["--llmb-collect", "--llmb-journal=llmb"],
            "--llmb-journal=llmb does not exist: ",
        ),
        (["--llmb-launch", "--llmb-journal=cluster.yaml"], "cluster.yaml is a file"),
    ],
)
def test_wrong_launch_options_start_no_job(
    pytester: pytest.Pytester,
    ran: Callable[[], int],
    arguments: list[str],
    message: str,
) -> None:
    write_recipe(pytester.path, {"ok": COUNTED}, kind="local")
    result = pytester.runpytest("-k", "fake", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()
    assert ran() == 0


@pytest.mark.slow
def test_preflight_check_is_ignored_by_name(
    pytester: pytest.Pytester, ran: Callable[[], int]
) -> None:
    """The terminal, the header and the cautions show it, also when collecting."""
    write_recipe(
        pytester.path,
        {"ok": COUNTED},
        kind="local",
        purposes='  needs: {python: "3.99 or newer"}\n',
    )
    refused = pytester.runpytest("-k", "fake", "--llmb-launch")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(
        [" 1. ?python-version? fake 24.11 needs Python 3.99 or newer;*"]
    )
    refused.stderr.fnmatch_lines(
        ["to launch anyway, ignore a check: --llmb-ignore=python-version"]
    )
    assert (
        pytester.runpytest("-k", "fake", "--llmb-launch", "--llmb-ignore=image").ret
        == pytest.ExitCode.USAGE_ERROR
    )
    assert ran() == 0
    overruling = ("-k", "fake", "--llmb-launch", "--llmb-ignore=python-version,image")
    result = pytester.runpytest(*overruling, "--llmb-json=night.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "llmbench: ignored preflight checks: python-version, image",
            "ignored: ?python-version? fake 24.11 needs Python 3.99 or newer;*",
            "*ignored preflight problems: python-version (--llmb-ignore)*",
        ]
    )
    document = json.loads((pytester.path / "night.json").read_text())
    assert [caution["code"] for caution in document["cautions"]] == [
        "preflight-overruled"
    ]
    assert "ignored preflight checks: python-version, image" in document["header"]
    (session,) = {
        path.name for path in (pytester.path / ".llmbench" / "jobs").iterdir()
    }
    collected = pytester.runpytest(
        "-k", "fake", "--llmb-collect", f"--llmb-session={session}"
    )
    collected.stdout.fnmatch_lines(
        ["*ignored preflight problems: python-version (--llmb-ignore)*"]
    )


@pytest.mark.slow
def test_launch_estimated_above_its_gpu_hours_limit_is_refused(
    pytester: pytest.Pytester, ran: Callable[[], int]
) -> None:
    write_recipe(pytester.path, {"ok": COUNTED}, kind="local", gpus=1024)
    cluster = pytester.path / "cluster.yaml"
    cluster.write_text(
        cluster.read_text().replace("gpu_hours: 1000\n", "gpu_hours: 10\n")
    )
    result = pytester.runpytest("-k", "fake", "--llmb-launch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "14.2" in result.stderr.str()  # 50 steps of a second on 1024 GPUs
    assert ran() == 0
    pytester.runpytest(
        "-k", "fake", "--llmb-launch", "--llmb-gpu-hours=20"
    ).assert_outcomes(passed=2)
    assert ran() == 1


@pytest.mark.slow
def test_configurations_of_another_cluster_are_skipped(launch: Launch) -> None:
    session = launch("--llmb-launch", "-k", "fake or grok1", ok=COUNTED)
    assert session.statuses.pop("fake_ok-24.11-h100-bf16-8") == "passed"
    assert len(session.statuses) == 26
    assert set(session.statuses.values()) == {"skipped"}
    assert {report["reason"] for report in session.reports} == {
        "within-tolerance",
        "not-on-cluster",
    }


@pytest.mark.slow
def test_launch_is_refused_if_no_selected_configuration_fits_the_machine(
    pytester: pytest.Pytester,
) -> None:
    result = pytester.runpytest("-k", "grok1", "--llmb-launch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "none of the 26 selected configurations fits this machine"
        in result.stderr.str()
    )
    assert "cluster.yaml" in result.stderr.str()


@pytest.mark.slow
def test_dry_run_uses_the_cluster_file_of_another_machine(
    pytester: pytest.Pytester,
) -> None:
    pytester.path.joinpath("cluster.yaml").write_text(
        "{schema: 1, gpu: h100, largest: 512}\n"
    )
    result = pytester.runpytest(
        "-k", "grok1_314b-24.11-h100-bf16-512", "--llmb-dry-run"
    )
    result.stdout.fnmatch_lines(["*64 nodes, 512 GPUs*"])
