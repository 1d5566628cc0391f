"""Builds before a submission: made once, and repeated if killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.job_specs import job_spec

from pytest_llmbench.core.job_records import Job, SubmissionState
from pytest_llmbench.launch.jobs.builds import OUTPUT, Builder
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.schedulers.submission import SubmitError

NOW = datetime(2026, 11, 21, 5, 45, tzinfo=UTC)

SECRET = "hf_0123456789abcdef"


class Site:
    """A checkout, and sessions that submit jobs of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder / "journal")
        self.journal.begin("test", NOW)
        self.checkout = folder / "journal" / "checkouts" / "0123456789abcdef"
        self.checkout.mkdir(parents=True)
        (self.checkout / ".git").touch()
        self.submitted: list[int] = []
        self.lines: list[str] = []

    def begin_again(self) -> None:
        """Begin another session."""
        self.journal.close()
        self.journal = Journal(self.folder / "journal")
        self.journal.begin("test", NOW)

    def submit(self, *build: str, sleep: Callable[[float], Any] = time.sleep) -> Job:
        """Submit a job with this build."""
        environment = (("PATH", "/usr/bin:/bin"), ("HF_TOKEN", SECRET))
        spec = job_spec(
            self.folder,
            build=build,
            checkout=self.checkout,
            environment=environment,
            secrets=("HF_TOKEN",),
        )
        job = replace(self.journal.intend(spec, NOW), spec=spec)
        Builder(self.journal.session, sleep, self.lines.append).build(job)
        self.submitted.append(job.number)
        return job

    @property
    def built(self) -> list[str]:
        file = self.checkout / "built"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.journal.close()


NOTE = ("sh", "-c", "echo once >> built")


def test_checkout_is_built_once_before_submitting(site: Site) -> None:
    """Another session reuses the result."""
    first = site.submit(*NOTE)
    assert site.lines == [
        f"llmbench: building 0123456789ab, output in {first.folder / OUTPUT}"
    ]
    site.submit(*NOTE)
    site.begin_again()
    site.submit(*NOTE)
    assert site.built == ["once"]
    assert len(site.submitted) == 3
    assert len(site.lines) == 1


def test_job_without_a_build_is_only_submitted(site: Site) -> None:
    site.submit()
    assert len(site.submitted) == 1
    assert not list(site.checkout.parent.glob("*.build.*"))


def test_changed_command_or_checkout_is_rebuilt(site: Site) -> None:
    site.submit(*NOTE)
    site.submit("sh", "-c", "echo other >> built")
    assert site.built == ["once", "other"]
    (site.checkout / ".git").unlink()
    time.sleep(0.02)
    (site.checkout / ".git").touch()
    site.submit("sh", "-c", "echo other >> built")
    assert site.built == ["once", "other", "other"]


def test_build_command_is_read_by_no_shell(site: Site) -> None:
    job = site.submit("echo", "a; touch b", "$(touch c)", "`touch d`", "*")
    assert (job.folder / OUTPUT).read_text() == "a; touch b $(touch c) `touch d` *\n"
    assert [path.name for path in site.checkout.iterdir()] == [".git"]


def test_failed_build_is_retried_by_another_session(site: Site) -> None:
    """The error quotes the last lines, without secrets."""
    fails = ("sh", "-c", 'echo again >> built; echo "no rule for $HF_TOKEN"; exit 2')
    for _ in range(2):
        with pytest.raises(
            SubmitError, match=r"its build ended with exit code 2: no rule for \*\*\*"
        ) as error:
            site.submit(*fails)
        assert error.value.state is SubmissionState.NOT_SUBMITTED
    assert (site.built, site.submitted) == (["again"], [])
    assert not [
        path for path in site.folder.rglob(OUTPUT) if SECRET in path.read_text()
    ]
    site.begin_again()
    with pytest.raises(SubmitError):
        site.submit(*fails)
    assert site.built == ["again", "again"]


def test_killed_build_is_repeated(site: Site) -> None:
    killed = ("sh", "-c", "echo try >> built; [ $(wc -l < built) = 2 ] || kill -9 $$")
    with pytest.raises(SubmitError, match="its build was killed") as error:
        site.submit(*killed)
    assert error.value.state is SubmissionState.STOPPED
    site.submit(*killed)
    assert (site.built, len(site.submitted)) == (["try", "try"], 1)


def test_interrupt_ends_the_build(site: Site) -> None:
    waits = ("sh", "-c", "echo begun >> built; sleep 600; echo ended >> built")
    interrupts = iter([KeyboardInterrupt])

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, 0.01))
        for interrupt in interrupts if site.built else ():
            raise interrupt

    with pytest.raises(KeyboardInterrupt):
        site.submit(*waits, sleep=sleep)
    assert site.built == ["begun"]
    site.submit("sh", "-c", "echo anew >> built")
    assert site.built == ["begun", "anew"]


@pytest.mark.slow
def test_session_waits_for_a_running_build(site: Site) -> None:
    """The build is not repeated, and its result counts."""

    class Killed(Exception):  # noqa: N818
        pass

    def die(_seconds: float) -> None:
        raise Killed

    slow = ("sh", "-c", "sleep 0.5; echo once >> built")
    with pytest.raises(Killed):
        site.submit(*slow, sleep=die)
    site.begin_again()
    site.submit(*slow)
    assert (site.built, len(site.submitted)) == (["once"], 1)


def test_unreadable_build_record_is_ignored(site: Site) -> None:
    for text in (
        "",
        "[]",
        "{}",
        '{"process": {"pid": 1}}',
        '{"process": 3, "command": []}',
    ):
        site.checkout.with_name(f"{site.checkout.name}.build.json").write_text(text)
        site.submit(*NOTE)
    assert len(site.built) == 5
