"""The files of examples/ci: their commands run, and do what the files say they do.

In the place of what installs the plugin `.venv` holds the plugin under test; the
installation is tried with a wheel of its name, without an index.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.core.option import parse_age

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CI = EXAMPLES / "ci"
CRON = str(CI / "cron.sh")
LOGS = f"--llmb-logs={EXAMPLES / 'experiments'}"
CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


RECORDED = "grok1_314b-25.05-gb200-bf16-128"
"""The configuration of which the cluster of these tests has a baseline of its own."""


@pytest.fixture(scope="module")
def baselines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Baselines that were recorded as docs/how-to/run-every-night.md says."""
    folder = tmp_path_factory.mktemp("cluster")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"--rootdir={folder}",
        LOGS,
        "-k",
        RECORDED,
    ]
    done = subprocess.run(
        [*command, "--llmb-record=baselines"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "baselines"


@pytest.fixture
def home(tmp_path: Path, baselines: Path) -> Path:
    """A folder with a `.venv` that holds the plugin under test, and with baselines of
    the cluster."""
    programs = tmp_path / "home" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, module in (
        ("pytest", "pytest"),
        ("llmbench", "pytest_llmbench.cli.main"),
    ):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    shutil.copytree(baselines, tmp_path / "home" / "baselines")
    return tmp_path / "home"


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a webhook, and what was sent to it."""
    received: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(
                json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret", received
    server.shutdown()
    thread.join()
    server.server_close()


def shell(
    home: Path, command: list[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder as CI does."""
    path = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LLMB_LOGS": str(EXAMPLES / "experiments"),
        "LLMB_HOME": str(home),
    }
    path["LLMB_HISTORY"] = str(home / "history.db")
    path["LLMB_REQUIRE"] = "nightly.txt"
    path["LLMB_BASELINES"] = str(home / "baselines")
    (home / "nightly.txt").write_text(
        "llama3.1_8b-*-fp8-64\ngrok1_314b-25.05-gb200-fp8-512\n"
    )
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "CI_", "CHAT_"))
    }
    return subprocess.run(
        command,
        cwd=home,
        env={**plain, **path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# --- GitHub ---------------------------------------------------------------------------


def github() -> dict[Any, Any]:
    return dict(yaml.safe_load((CI / "github-actions.yml").read_text()))


def step(name: str) -> dict[str, Any]:
    (found,) = (
        one for one in github()["jobs"]["judge"]["steps"] if one.get("name") == name
    )
    return dict(found)


def test_github_workflow_sends_message_and_uploads_reports_even_after_a_failure() -> (
    None
):
    steps = github()["jobs"]["judge"]["steps"]
    after = [
        step.get("name") or step["uses"]
        for step in steps
        if step.get("if") == "always()"
    ]
    assert after == ["Tell the chat", "actions/upload-artifact@v4"]
    for step in steps:
        assert "${{" not in step.get("run", ""), (
            "an expression in a script runs what it holds"
        )


@pytest.mark.slow
@CURL
def test_github_steps_judge_the_runs_and_send_the_message(
    home: Path, hook: tuple[str, list[dict[str, Any]]]
) -> None:
    address, received = hook
    summary = home / "summary.md"
    job = {
        "LLMB_MAX_AGE": "9000d",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": "a/b",
        "GITHUB_RUN_ID": "7",
    }
    done = shell(home, ["bash", "-e", "-c", step("Judge")["run"]], **job)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "::error title=REGRESSION llama3.1_8b-25.04-h100-fp8-64" in done.stdout
    assert "::error title=MISSING grok1_314b-25.05-gb200-fp8-512" in done.stdout
    assert summary.read_text().startswith("### llmbench: red")
    assert (home / "reports" / "junit.xml").exists()
    done = shell(
        home,
        ["bash", "-e", "-c", step("Tell the chat")["run"]],
        CHAT_WEBHOOK=address,
        **job,
    )
    assert done.returncode == 0, done.stderr
    (sent,) = received
    assert sent["text"].startswith("llmbench RED, ")
    assert sent["text"].endswith("\nhttps://github.com/a/b/actions/runs/7")


# --- GitHub and GitLab ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_ci_example_does_not_accept_the_run_of_the_night_before(name: str) -> None:
    (age,) = re.findall(r"LLMB_MAX_AGE: (\S+)", (CI / name).read_text())
    assert parse_age(age) < timedelta(days=1)


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml", "cron.sh"])
def test_ci_examples_judge_against_recorded_baselines_with_trends_as_failures(
    name: str,
) -> None:
    text = (CI / name).read_text()
    assert text.count("--llmb-trend=fail") == 1
    assert re.search(
        r'--llmb-baselines=("\$LLMB_BASELINES"|baselines) --llmb-against=recorded', text
    )


@pytest.mark.slow
def test_cron_script_fails_if_the_baseline_folder_is_empty(home: Path) -> None:
    shutil.rmtree(home / "baselines")
    (home / "baselines").mkdir()
    done = shell(home, ["bash", "-e", "-c", step("Judge")["run"]], LLMB_MAX_AGE="9000d")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "expected baseline files" in done.stderr


def installation(name: str) -> str:
    """Return the commands with which a file installs the plugin."""
    if name == "cron.sh":
        lines = re.findall(
            r"^#   (python3 -m venv .*|\.venv/bin/pip .*)$",
            (CI / name).read_text(),
            re.MULTILINE,
        )
        return "\n".join(lines).replace(
            "file:///lustre/llmb/pytest_llmbench-0.1.0-py3-none-any.whl",
            "$LLMB_PACKAGE",
        )
    if name == "github-actions.yml":
        return str(step("Install")["run"])
    ((_, job),) = yaml.safe_load((CI / name).read_text()).items()
    return "\n".join(job["before_script"])


def test_ci_examples_install_with_the_same_commands() -> None:
    """So the test below runs those of all three."""
    github = installation("github-actions.yml").strip()
    assert installation("cron.sh") == github
    assert installation("gitlab-ci.yml").removeprefix("rm -rf reports\n") == github


@pytest.mark.slow
def test_ci_examples_install_the_package_without_an_index(tmp_path: Path) -> None:
    """Whoever registers the name there would decide what the gate runs."""
    wheel = tmp_path / "pytest_llmbench-0.1.0-py3-none-any.whl"
    told = "Metadata-Version: 2.1\nName: pytest-llmbench\nVersion: 0.1.0\nProvides-Extra: history\nProvides-Extra: html\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pytest_llmbench/__init__.py", "")
        archive.writestr("pytest_llmbench-0.1.0.dist-info/METADATA", told)
        archive.writestr(
            "pytest_llmbench-0.1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nTag: py3-none-any\n",
        )
        archive.writestr("pytest_llmbench-0.1.0.dist-info/RECORD", "")
    environment = {
        **os.environ,
        "LLMB_PACKAGE": wheel.as_uri(),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    environment["PATH"] = (
        f"{Path(sys.base_prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    )
    done = subprocess.run(
        ["bash", "-e", "-c", installation("github-actions.yml")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / ".venv").rglob("site-packages/pytest_llmbench/__init__.py"))


# --- GitLab ---------------------------------------------------------------------------


@pytest.mark.slow
@CURL
def test_gitlab_job_judges_the_runs_and_sends_the_message(
    home: Path, hook: tuple[str, list[dict[str, Any]]]
) -> None:
    address, received = hook
    ((name, job),) = yaml.safe_load((CI / "gitlab-ci.yml").read_text()).items()
    assert name == "llm-benchmarks"
    assert set(job) <= {
        "stage",
        "tags",
        "rules",
        "variables",
        "before_script",
        "script",
        "after_script",
        "artifacts",
    }
    assert job["artifacts"]["when"] == "always"
    done = shell(
        home, ["bash", "-e", "-c", "\n".join(job["script"])], LLMB_MAX_AGE="9000d"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert (home / job["artifacts"]["reports"]["junit"]).exists()
    assert (home / "reports" / "llmb.html").exists()
    assert (home / "history.db").exists()
    told = {"CHAT_WEBHOOK": address, "CI_JOB_URL": "https://gitlab/a/-/jobs/7"}
    done = shell(home, ["bash", "-e", "-c", "\n".join(job["after_script"])], **told)
    assert done.returncode == 0, done.stderr
    assert received[0]["text"].endswith("\nhttps://gitlab/a/-/jobs/7")


# --- cron -----------------------------------------------------------------------------


def reports(home: Path) -> Path:
    (found,) = (home / "reports").iterdir()
    return found


@pytest.mark.slow
@CURL
def test_cron_script_keeps_reports_and_sends_a_chat_message_after_a_regression(
    home: Path, hook: tuple[str, list[dict[str, Any]]]
) -> None:
    address, received = hook
    done = shell(home, [CRON, LOGS], CHAT_WEBHOOK=address)
    assert done.returncode == 1, done.stderr
    kept = reports(home)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{6}", kept.name)
    assert {path.name for path in kept.iterdir()} == {
        "junit.xml",
        "llmb.json",
        "llmb.html",
        "output.txt",
        "chat.json",
    }
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("llmbench RED, ")
    assert last == f"{kept}/output.txt"
    assert received[0]["text"].splitlines() == done.stdout.splitlines()
    assert address not in "".join(path.read_text() for path in kept.iterdir())


@pytest.mark.slow
@CURL
def test_cron_script_exits_with_zero_although_the_chat_is_unreachable(
    home: Path,
) -> None:
    done = shell(
        home, [CRON, LOGS, "-k", RECORDED], CHAT_WEBHOOK="http://127.0.0.1:9/secret"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("llmbench GREEN, ")
    assert "cannot send the message to the chat" in done.stderr
    assert {"junit.xml", "llmb.json", "llmb.html", "output.txt"} <= {
        path.name for path in reports(home).iterdir()
    }


@pytest.mark.slow
@CURL
def test_cron_script_sends_a_chat_message_if_pytest_refuses_its_options(
    home: Path, hook: tuple[str, list[dict[str, Any]]]
) -> None:
    address, received = hook
    done = shell(home, [CRON, LOGS, "--llmb-tolerance=much"], CHAT_WEBHOOK=address)
    assert done.returncode == 4
    assert done.stdout.splitlines()[0] == "llmbench ERROR (exit code 4)"
    assert received == [{"text": "llmbench ERROR (exit code 4)"}]


@pytest.mark.slow
def test_cron_script_refuses_to_start_while_the_last_session_is_running(
    home: Path,
) -> None:
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = shell(home, [CRON, LOGS])
    assert done.returncode == 75
    assert "the last session is still running" in done.stderr
    assert not (home / "reports").exists()


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed"
)
@pytest.mark.parametrize("script", ["cron.sh", "Install", "Judge", "Tell the chat"])
def test_shellcheck_has_no_findings(script: str) -> None:
    text = Path(CRON).read_text() if script.endswith(".sh") else step(script)["run"]
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
