"""Local jobs: processes that are recovered, followed and ended."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.job_specs import START, job_spec

from pytest_llmbench.core.commands import run
from pytest_llmbench.core.job_records import Job, JobStatus, Phase, Purpose
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.schedulers.local import LocalScheduler
from pytest_llmbench.launch.schedulers.submission import Submission, SubmitError, Tools
from pytest_llmbench.runs.discover.names import read_log_name
from pytest_llmbench.runs.layouts.metadata import read_metadata


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    new_journal = Journal(tmp_path / ".llmbench")
    new_journal.begin("test", START)
    yield new_journal
    new_journal.close()


def start(
    journal: Journal, folder: Path, text: str, **changes: Any
) -> tuple[LocalScheduler, Job]:
    scheduler = LocalScheduler(Tools(run, {}, journal))
    spec = job_spec(
        folder,
        command=("/bin/sh", "-c", text),
        **{"experiment": "pretrain_grok1_314b_bf16_128", **changes},
    )
    job = journal.intend(spec, START)
    submission = scheduler.submit(job)
    return scheduler, journal.record_submission(
        job.number, submission.job_id, submission.folder, START
    )


def followed(scheduler: LocalScheduler, job: Job) -> JobStatus:
    for _ in range(200):
        status = scheduler.poll([job])[job.number]
        if status.phase is Phase.ENDED:
            return status
        assert status == replace(
            status, phase=Phase.RUNNING, state="RUNNING", exit_code=""
        )
        time.sleep(0.05)
    pytest.fail("the job does not end")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "state", "code"),
    [
        ("exit 0", "COMPLETED", "0:0"),
        ("exit 7", "FAILED", "7:0"),
        ("kill -SEGV $$", "FAILED", "0:11"),
    ],
)
def test_local_job_runs_as_a_process_of_this_machine(
    journal: Journal, tmp_path: Path, text: str, state: str, code: str
) -> None:
    scheduler, job = start(journal, tmp_path, f"sleep 0.2; {text}")
    status = followed(scheduler, job)
    assert (status.state, status.exit_code, status.nodes, status.seen_by) == (
        state,
        code,
        (socket.gethostname(),),
        "process",
    )
    assert status.elapsed_seconds is not None
    assert 0 <= status.elapsed_seconds < 20
    assert status.started
    assert status.ended
    assert status.started <= status.ended


def test_log_name_and_metadata_of_a_local_job_identify_its_configuration(
    journal: Journal, tmp_path: Path
) -> None:
    scheduler, job = start(journal, tmp_path, "echo hello")
    followed(scheduler, job)
    log = job.folder / f"log-pretrain_grok1_314b_bf16_128_{job.number}_0.out"
    assert log.read_text() == "hello\n"
    assert read_log_name(log.stem).job == job.job_id == str(job.number)
    record = read_metadata(job.folder / f"llmb-config_{job.number}.yaml")
    assert record.problems == ()
    assert record.job == job.job_id
    assert record.excluded is None
    assert record.started
    assert abs((record.started - datetime.now(UTC)).total_seconds()) < 60
    assert {hint.field: hint.value for hint in record.hints} == {
        "recipe": "grok1",
        "size": "314b",
        "dtype": "bf16",
        "gpus": "128",
        "gpu": "gb200",
        "release": "25.05",
        "scaling": "weak",
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"purpose": Purpose.PROFILE}, "profiled"),
        (
            {"environment": (("PATH", "/usr/bin:/bin"), ("ENABLE_NCCLTRACE", "true"))},
            "traced",
        ),
    ],
)
def test_metadata_of_a_local_job_excludes_a_run_that_is_not_measured(
    journal: Journal, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    scheduler, job = start(journal, tmp_path, "true", **changes)
    followed(scheduler, job)
    assert (
        read_metadata(job.folder / f"llmb-config_{job.number}.yaml").excluded == reason
    )


def test_no_file_of_a_local_job_contains_a_secret(
    journal: Journal, tmp_path: Path
) -> None:
    environment = (("PATH", "/usr/bin:/bin"), ("HF_TOKEN", "hf_verysecret"))
    scheduler, job = start(
        journal, tmp_path, "true", environment=environment, secrets=("HF_TOKEN",)
    )
    followed(scheduler, job)
    texts = [
        path.read_bytes()
        for path in job.folder.parent.parent.parent.rglob("*")
        if path.is_file()
    ]
    assert texts
    assert not [text for text in texts if b"verysecret" in text]


def test_cancelled_job_leaves_no_process(journal: Journal, tmp_path: Path) -> None:
    scheduler, job = start(journal, tmp_path, "sleep 61 & echo $! > child; sleep 62")
    while not (tmp_path / "child").exists():
        time.sleep(0.02)
    assert scheduler.cancel([job]) == ""
    status = followed(scheduler, job)
    assert (status.state, status.cancelled_by) == ("CANCELLED", str(os.getuid()))
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_ended_job_is_not_cancelled(journal: Journal, tmp_path: Path) -> None:
    scheduler, job = start(journal, tmp_path, "true")
    followed(scheduler, job)
    assert scheduler.cancel([job]) == ""
    assert followed(scheduler, job).state == "COMPLETED"


def test_local_job_killed_without_an_exit_code_counts_as_failed(
    journal: Journal, tmp_path: Path
) -> None:
    scheduler, job = start(journal, tmp_path, "kill -9 $PPID; kill -9 $$")
    status = followed(scheduler, job)
    assert (status.state, status.exit_code) == ("FAILED", "")


@pytest.mark.slow
def test_killed_local_submission_is_recovered(journal: Journal, tmp_path: Path) -> None:
    scheduler = LocalScheduler(Tools(run, {}, journal))
    waits = (
        "echo x >> runs; for i in $(seq 400); do test -e end && break; sleep 0.05; done"
    )
    job = journal.intend(job_spec(tmp_path, command=("/bin/sh", "-c", waits)), START)
    assert scheduler.recover(job) is None
    scheduler.submit(job)
    assert scheduler.recover(job) == Submission(str(job.number), job.folder)
    (tmp_path / "end").touch()
    followed(scheduler, job)
    assert scheduler.recover(job) == Submission(str(job.number), job.folder)
    assert (tmp_path / "runs").read_text() == "x\n"


@pytest.mark.parametrize("name", ["../x", "a b", "-x", "x" * 300])
def test_log_name_cannot_leave_the_job_folder(
    journal: Journal, tmp_path: Path, name: str
) -> None:
    with pytest.raises(SubmitError, match="cannot be the name of a log"):
        start(journal, tmp_path, "true", experiment=name)
