"""Interrupting a launch before it follows its jobs: remaining jobs are reported."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from support.fake_recipe import WELL, write_recipe
from support.sessions import Function, signal_at

from pytest_llmbench.core import stop_signals
from pytest_llmbench.launch.jobs.job_engine import Engine
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.jobs.progress import Progress
from pytest_llmbench.launch.plan.planner import Planner
from pytest_llmbench.plugin import hooks
from pytest_llmbench.session import catalog

ID = "fake_one-24.11-h100-bf16-8"
WAIT = f"while [ ! -e $STAGE_PATH/go ]; do sleep 0.1; done; {WELL}"

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

BEFORE_RESUMING: dict[str, Function] = {
    "the baselines are read": (catalog, "load"),
    "items are selected": (hooks, "select_by_id"),
    "the journal is opened": (Journal, "resume"),
}
BEFORE_FOLLOWING: dict[str, Function] = {
    "its plan is restored": (Journal, "read_journal_value"),
    "a job is planned": (Planner, "plan_job"),
    "following begins": (Engine, "resume"),
}


@pytest.fixture
def kept_session(pytester: pytest.Pytester, capfd: Capture) -> Iterator[str]:
    """Leave a job running and return its session; the job ends afterwards."""
    write_recipe(pytester.path, {"one": WAIT}, kind="local")
    with Patch.context() as patch:
        signal_at(patch, (Progress, "report_submitted"), signal.SIGINT)
        assert stop(pytester, "--llmb-launch", "--llmb-keep-jobs") == 2
    printed = capfd.readouterr().out
    assert "1 job left running" in printed
    assert f"{ID} on this machine" in printed
    yield printed.partition("--llmb-resume --llmb-session=")[2].split()[0]
    (pytester.path / "stage" / "go").touch()


def stop(pytester: pytest.Pytester, *arguments: str) -> int:
    options = ("-p", "no:cacheprovider", "-k", "fake", "--llmb-json=s.json", *arguments)
    return int(pytester.runpytest_inprocess(*options, no_reraise_ctrlc=True).ret)


def read_failures(pytester: pytest.Pytester) -> str:
    session = json.loads((pytester.path / "s.json").read_text())
    assert (session["exit_code"], session["green"]) == (2, False)
    return " ".join(session["failures"])


@pytest.mark.slow
@pytest.mark.parametrize("when", BEFORE_RESUMING)
def test_interrupt_before_resuming_reports_running_jobs(
    pytester: pytest.Pytester, capfd: Capture, kept_session: str, when: str
) -> None:
    with Patch.context() as patch:
        signal_at(patch, BEFORE_RESUMING[when], signal.SIGTERM)
        assert stop(pytester, "--llmb-resume") == 2
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed
    assert f"session {kept_session} was resumed" in printed
    assert f"{ID} on this machine" in printed
    assert (
        f"  pytest -p no:cacheprovider -k fake --llmb-json=s.json --llmb-resume --llmb-session={kept_session}\n"
        in printed
    )
    assert read_failures(pytester)
    (pytester.path / "stage" / "go").touch()
    assert stop(pytester, "--llmb-resume", f"--llmb-session={kept_session}") == 0


@pytest.mark.slow
@pytest.mark.parametrize("when", BEFORE_FOLLOWING)
def test_interrupt_after_resuming_cancels_jobs(
    pytester: pytest.Pytester, capfd: Capture, kept_session: str, when: str
) -> None:
    with Patch.context() as patch:
        signal_at(patch, BEFORE_FOLLOWING[when], signal.SIGTERM)
        assert stop(pytester, "--llmb-resume") == 2
    printed = capfd.readouterr().out
    assert "1 job cancelled" in printed
    assert "interrupted by SIGTERM" in read_failures(pytester)
    assert stop(pytester, "--llmb-resume") == 4  # no session is left to resume
    assert kept_session


@pytest.mark.slow
def test_second_signal_reports_running_jobs(
    pytester: pytest.Pytester, capfd: Capture, kept_session: str
) -> None:
    with Patch.context() as patch:
        signal_at(patch, (Engine, "resume"), signal.SIGTERM)
        patch.setattr(stop_signals, "AT_ONCE_SECONDS", 0.0)
        signal_at(patch, (Engine, "cancel"), signal.SIGINT)
        assert stop(pytester, "--llmb-resume") == 2
    printed = capfd.readouterr().out
    assert "interrupted while cancelling; may still run" in printed
    assert f"{ID} on this machine" in printed
    assert f"--llmb-resume --llmb-session={kept_session}\n" in printed


@pytest.mark.slow
def test_interrupt_before_submission_is_reported(
    pytester: pytest.Pytester, capfd: Capture
) -> None:
    write_recipe(pytester.path, {"one": WELL}, kind="local")
    with Patch.context() as patch:
        signal_at(patch, (Planner, "plan"), signal.SIGINT)
        assert stop(pytester, "--llmb-launch") == 2
    assert "interrupted before anything was submitted" in capfd.readouterr().out
    assert stop(pytester, "--llmb-resume") == 4
    assert stop(pytester, "--llmb-launch") == 0
