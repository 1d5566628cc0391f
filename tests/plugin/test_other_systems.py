"""Systems without Linux's calls: runs are judged, launches and Windows refused."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401 (pytester forgets what a session imports)
from support.sessions import Judge, Write

from pytest_llmbench.cli.main import main
from pytest_llmbench.core import runtime
from pytest_llmbench.logs import log_reader as read

GROK = "grok1_314b-25.05-gb200-bf16-128"

ONLY_LINUX = {
    os: (
        *(
            "sched_getaffinity",
            "sched_setaffinity",
            "posix_fadvise",
            "posix_fallocate",
            "memfd_create",
            "getrandom",
        ),
        *(
            "copy_file_range",
            "fdatasync",
            "pipe2",
            "splice",
            "eventfd",
            "pidfd_open",
            "getresuid",
            "unshare",
            "setns",
        ),
        *("O_PATH", "O_DIRECT", "O_NOATIME", "O_LARGEFILE", "POSIX_FADV_DONTNEED"),
    ),
    signal: (
        "sigtimedwait",
        "sigwaitinfo",
        "pidfd_send_signal",
        "SIGPWR",
        "SIGRTMIN",
        "SIGRTMAX",
    ),
    select: ("epoll",),
}
"""What macOS lacks of the modules that talk to the system."""


@pytest.fixture
def _macos(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in ONLY_LINUX.items():
        for name in names:
            monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(runtime, "PROCESS", "/no/such/file")


@pytest.mark.slow
@pytest.mark.usefixtures("_macos")
def test_judging_and_storing_work_without_linux_only_calls(
    judged: Judge,
    generated: Write,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        read, "LARGE", 1000
    )  # as a log of gigabytes, by several threads
    reports = (
        "--llmb-json=a.json",
        "--llmb-html=a.html",
        "--llmb-junit=a.xml",
        "--llmb-history=h.db",
    )
    session = judged(f"--llmb-logs={generated(GROK)}", "-k", GROK, *reports)
    assert session.verdicts == {GROK: "PASS"}
    assert {path.name for path in pytester.path.iterdir()} >= {
        "a.json",
        "a.html",
        "a.xml",
        "h.db",
    }


@pytest.mark.usefixtures("_macos")
def test_processors_are_counted_where_the_system_has_no_cpu_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert runtime.count_processors() == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert runtime.count_processors() == 1


@pytest.mark.usefixtures("_macos")
def test_launch_needs_linux(
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = pytester.runpytest_inprocess("-k", "tiny", "--llmb-launch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: --llmb-launch: a launch follows its processes in /proc, *: launch on Linux"
        ]
    )
    monkeypatch.chdir(pytester.path)
    assert main(["setup", "grok1", "--release=25.05", "--folder=."]) == 2
    assert "launch on Linux" in capsys.readouterr().err


ON_WINDOWS = """
import sys
sys.modules["fcntl"] = None
system, sys.platform = sys.platform, "win32"
import pytest_llmbench.core.runtime
sys.platform = system  # the standard library asks, too
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import pytest\nsys.exit(pytest.main(['--llmb-logs=.']))", 4),
        (
            "from pytest_llmbench.cli.main import main\nsys.exit(main(['summary', '.']))",
            2,
        ),
    ],
)
def test_commands_on_windows_end_with_a_one_line_error(
    tmp_path: Path, program: str, code: int
) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST")
    }
    command = [sys.executable, "-c", ON_WINDOWS + program]
    process = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == code, process.stderr
    assert "but not Windows: use it in WSL" in process.stderr
    assert "Traceback" not in process.stderr
