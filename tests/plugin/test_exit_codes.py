"""The exit codes of docs/how-to/run-every-night.md: only a judged, green session exits with 0."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.fake_recipe import WELL, write_recipe
from support.sessions import Write, wait_until

pytestmark = pytest.mark.wheel

BF16, FP8 = "grok1_314b-25.05-gb200-bf16-128", "grok1_314b-25.05-gb200-fp8-128"


def get_exit_code(pytester: pytest.Pytester, *arguments: object) -> int:
    return int(
        pytester.runpytest_inprocess("-p", "no:cacheprovider", *map(str, arguments)).ret
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-k", FP8], 0),
        (["-k", f"{FP8} or 24.11"], 0),  # missing ones are skipped beside it
        ([], 1),  # a regression
        (["-k", "24.11"], 1),  # nothing of it was judged
        (["-k", FP8, "--llmb-json=/dev/full"], 1),
        (["--llmb-tolerance=much"], 4),
        (
            ["pytest_llmbench/suite/test_performance.py::test_performance[no-such-id]"],
            4,
        ),
        (["-k", "nothing_has_this_name"], 5),
    ],
)
def test_session_over_logs_has_the_documented_exit_code(
    pytester: pytest.Pytester, generated: Write, arguments: list[str], code: int
) -> None:
    generated(BF16, factor=1.3)
    assert get_exit_code(pytester, f"--llmb-logs={generated(FP8)}", *arguments) == code


@pytest.mark.slow
def test_exit_code_is_one_if_a_conftest_hides_failure(
    pytester: pytest.Pytester, generated: Write
) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            report.outcome, report.longrepr = "passed", None
            return report
    """)
    assert get_exit_code(pytester, f"--llmb-logs={generated(FP8)}", "-k", FP8) == 0
    assert (
        get_exit_code(
            pytester, f"--llmb-logs={generated(BF16, factor=1.3)}", "-k", BF16
        )
        == 1
    )


@pytest.mark.slow
def test_exit_code_of_an_internal_error_is_three(
    pytester: pytest.Pytester, generated: Write
) -> None:
    pytester.makeconftest(
        "def pytest_collection_finish(session): raise RuntimeError('broken plugin')"
    )
    assert get_exit_code(pytester, f"--llmb-logs={generated(FP8)}") == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "behaviour", "code"),
    [
        (["--llmb-launch"], WELL, 0),
        (["--llmb-launch"], "exit 3", 1),
        (["--llmb-dry-run"], WELL, 0),
        (["--llmb-dry-run", "--llmb-gpu-hours=0.001"], WELL, 1),
        (["--llmb-resume"], WELL, 4),
        (["--llmb-launch", "-k", "nothing_has_this_name"], WELL, 5),
    ],
)
def test_launch_has_the_documented_exit_code(
    pytester: pytest.Pytester, arguments: list[str], behaviour: str, code: int
) -> None:
    write_recipe(pytester.path, {"one": behaviour}, kind="local")
    options = ["-k", "fake", *arguments]
    assert int(pytester.runpytest_inprocess(*options).ret) == code


@pytest.mark.slow
def test_exit_code_of_a_stopped_launch_is_two(pytester: pytest.Pytester) -> None:
    write_recipe(
        pytester.path, {"one": "touch $STAGE_PATH/started; sleep 600"}, kind="local"
    )
    stop(
        pytester,
        signal.SIGTERM,
        pytester.path / "stage" / "started",
        "-k",
        "fake",
        "--llmb-launch",
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_session_stopped_by_signal_writes_exit_code_two_into_its_reports(
    pytester: pytest.Pytester, generated: Write, number: int
) -> None:
    pytester.makeconftest("""
        import faulthandler, pathlib, time
        def pytest_runtest_call(item):
            faulthandler.dump_traceback_later(45)
            pathlib.Path("started").touch()
            while True:
                time.sleep(0.1)  # a long sleep could begin just after the signal
    """)
    options = [
        f"--llmb-logs={generated(FP8)}",
        "-k",
        FP8,
        "--llmb-json=o.json",
        "--junitxml=j.xml",
    ]
    document = stop(pytester, number, pytester.path / "started", *options)
    assert "Traceback" not in document
    assert '"exit_code": 2,\n "green": false' in (pytester.path / "o.json").read_text()
    assert (pytester.path / "j.xml").exists()


def stop(pytester: pytest.Pytester, number: int, started: Path, *arguments: str) -> str:
    """Send a signal to a session once a file is there, and return what it printed; it
    ends with 2."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (pytester.path / "printed").open("w") as printed:
        command = [sys.executable, "-m", "pytest", *arguments]
        process = subprocess.Popen(
            command, cwd=pytester.path, env=environment, stdout=printed, stderr=printed
        )
        try:
            wait_until(started.exists, seconds=60)
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
    output = (pytester.path / "printed").read_text()
    assert process.returncode == 2, output
    return output
