"""A journal of an earlier version is read correctly, and no job is submitted twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from support.fake_schedulers import TOOLS, FakeSchedulers
from support.job_specs import Clock, ended

from pytest_llmbench.core.job_records import (
    Job,
    JobEnd,
    JobSpec,
    JobStatus,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.launch.jobs.builds import Builder
from pytest_llmbench.launch.jobs.job_engine import Engine, NextJob
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.jobs.submitter import Submitter
from pytest_llmbench.launch.jobs.watch import Limits
from pytest_llmbench.launch.schedulers.slurm.slurm_scheduler import SlurmScheduler
from pytest_llmbench.launch.schedulers.submission import SUBMIT_SECONDS, Submission

DUMP = Path(__file__).parents[2] / "support" / "stored" / "interrupted_launch.sql"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The resumed journal of a killed session."""
    folder = tmp_path / ".llmbench"
    (folder / "sessions").mkdir(parents=True)
    with closing(sqlite3.connect(folder / "launch.db")) as database:
        database.executescript(DUMP.read_text("utf-8"))
    created = Journal(folder)
    created.resume()
    yield created
    created.close()


class Counting(SlurmScheduler):
    """A Slurm that counts submissions, and whose jobs have ended."""

    def __init__(self) -> None:
        super().__init__(TOOLS)
        self.submitted: list[str] = []
        self.recovered: list[str] = []

    def submit(self, job: Job) -> Submission:
        self.submitted.append(job.spec.case_id)
        return Submission("4800")

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        del seconds
        self.recovered.append(job.spec.case_id)
        return None

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        return {job.number: ended() for job in jobs}


def find_specs(journal: Journal) -> dict[str, JobSpec]:
    return {job.job_id or job.spec.case_id: job.spec for job in journal.list_jobs()}


def test_journal_of_an_earlier_version_keeps_job_options_ids_and_states(
    journal: Journal,
) -> None:
    jobs = {job.job_id or job.spec.case_id: job for job in journal.list_jobs()}
    assert jobs["4711"].spec.scheduler_options == ("--qos=high", "--nodelist=n[1-4]")
    assert jobs["4711"].log_folder == Path("/FOLDER/logs")
    assert jobs["doubtful"].submission is SubmissionState.UNCERTAIN
    assert (jobs["4713"].spec.purpose, jobs["4713-5"].scheduler_id) == (
        Purpose.ALLOCATION,
        "4713",
    )
    assert [job.spec.case_id for job in journal.list_live()] == [
        "followed",
        "shared",
        "shared",
        "intended",
    ]


def test_local_job_in_an_old_journal_is_charged_for_requested_gpus_only(
    journal: Journal,
) -> None:
    """Its spec contains the GPUs of a whole node, which it never got."""
    specs = find_specs(journal)
    assert (specs["1"].occupied_gpus, specs["4711"].occupied_gpus) == (4, 8)


def test_resumed_session_submits_only_unsubmitted_jobs(journal: Journal) -> None:
    """Uncertain submissions are looked up first."""
    clock, scheduler = Clock(), Counting()
    schedulers = FakeSchedulers(
        dict.fromkeys(("sbatch", "script", "allocation"), scheduler)
    )
    submitter = Submitter(schedulers, Builder(journal.session, clock.sleep, print))
    engine = Engine(journal, submitter, print, clock.now, clock.sleep, Limits())
    ends: dict[str, str] = {}

    def take(job: Job, end: JobEnd) -> Sequence[NextJob]:
        ends[job.job_id or job.spec.case_id] = end.blame.value
        return ()

    engine.resume([], take)
    assert (scheduler.recovered, scheduler.submitted) == (["intended"], ["intended"])
    assert ends == dict.fromkeys(("1", "4711", "4713", "4713-5", "4800"), "none") | {
        "doubtful": "run"
    }
