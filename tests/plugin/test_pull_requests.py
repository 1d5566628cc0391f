"""Influence of an untrusted checkout on a session, and SECURITY.md's remedies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.sessions import Write

BF16 = "grok1_314b-25.05-gb200-bf16-128"

STRANGE = """
import json
from pathlib import Path
import pytest

Path({ran!r}).touch()

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    yield
    session.exitstatus = 0

def pytest_unconfigure(config):
    Path(config.getoption("llmb_json")).write_text(json.dumps({{"green": True}}))
"""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that the stranger's code makes."""
    return tmp_path / "ran"


@pytest.fixture
def checkout(tmp_path: Path, generated: Write, ran: Path) -> Path:
    """A pull request with a slow run, a conftest beside it and above it, and a plugin
    that its ini file loads."""
    logs = Path(generated(BF16, factor=1.3))
    folder = tmp_path / "pull_request"
    folder.mkdir()
    logs.rename(folder / "logs")
    for name in ("conftest.py", "logs/conftest.py", "strange.py"):
        (folder / name).write_text(STRANGE.format(ran=str(ran)))
    (folder / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\naddopts = -p strange\n"
    )
    return folder


@pytest.fixture
def main_branch(tmp_path: Path) -> Path:
    folder = tmp_path / "main"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def judge(folder: Path, logs: Path, *words: str) -> tuple[int, bool]:
    """Return the exit code of a session in a folder, and whether its report is
    green."""
    program = [
        str(Path(sys.executable).with_name("pytest")),
        "-p",
        "no:cacheprovider",
        "-q",
        "-k",
        BF16,
    ]
    options: Sequence[str] = (f"--llmb-logs={logs}", "--llmb-json=o.json", *words)
    code = subprocess.run(
        [*program, *options], cwd=folder, check=False, capture_output=True
    ).returncode
    return code, json.loads((folder / "o.json").read_text())["green"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--noconftest",), ("-c", "/dev/null")])
def test_conftest_of_a_checkout_from_a_pull_request_is_executed(
    checkout: Path, ran: Path, words: tuple[str, ...]
) -> None:
    """Why SECURITY.md says not to: exit code and report are green. Each option alone
    leaves the other way open."""
    assert judge(checkout, checkout / "logs", *words) == (0, True)
    assert ran.exists()


@pytest.mark.slow
def test_session_started_outside_the_log_folder_executes_no_files_in_it(
    checkout: Path, main_branch: Path, ran: Path
) -> None:
    assert judge(main_branch, checkout / "logs") == (1, False)
    assert not ran.exists()


@pytest.mark.slow
def test_noconftest_with_another_ini_file_executes_no_files_of_the_log_folder(
    checkout: Path, main_branch: Path, ran: Path
) -> None:
    words = ("-c", str(main_branch / "pytest.ini"), "--noconftest")
    assert judge(checkout, checkout / "logs", *words) == (1, False)
    assert not ran.exists()
