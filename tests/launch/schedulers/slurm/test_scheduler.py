"""Submitting to Slurm with real processes and a fake Slurm."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.fake_schedulers import make_slurm
from support.job_specs import START, job_spec

from pytest_llmbench.core.job_records import Job, JobStatus, Phase
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.schedulers import process
from pytest_llmbench.launch.schedulers.slurm.slurm_scheduler import (
    NotReachedError,
    SlurmScheduler,
)
from pytest_llmbench.launch.schedulers.submission import (
    SchedulerAway,
    Submission,
    SubmitError,
)

if TYPE_CHECKING:
    pass


class FakeSlurm:
    """Slurm's answers to a launcher."""

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        self.away = False
        self.queries: list[tuple[Any, ...]] = []

    def find(self, tokens: Collection[str], since: datetime) -> dict[str, str]:
        self.queries.append(("find", since))
        if self.away:
            raise SchedulerAway("Unable to contact slurm controller")
        return {token: self.tokens[token] for token in tokens if token in self.tokens}

    def poll(self, jobs: Mapping[str, datetime]) -> dict[str, JobStatus]:
        self.queries.append(("poll", *jobs))
        return {
            job_id: JobStatus(Phase.RUNNING, "RUNNING")
            for job_id in jobs
            if job_id != "404"
        }

    def cancel(self, job_ids: Sequence[str]) -> str:
        self.queries.append(("cancel", *job_ids))
        return ""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    new_journal = Journal(tmp_path / ".llmbench")
    new_journal.begin("test", START)
    yield new_journal
    new_journal.close()


class Bench:
    """A folder with a journal, a fake Slurm, and a shell script `./sbatch`."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder, self.journal, self.slurm = folder, journal, FakeSlurm()
        self.scheduler = self.patient(180.0)

    def patient(self, seconds: float) -> SlurmScheduler:
        """Return a scheduler with this time limit for a submission."""
        return make_slurm(self.slurm, self.journal, submit_seconds=seconds)

    def intend(self, text: str, *arguments: str, **changes: Any) -> Job:
        """Return a job whose submission command is a script with `text`."""
        program = self.folder / "sbatch"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        command = ("./sbatch", *arguments)
        return self.journal.intend(
            job_spec(self.folder, **{"via": "sbatch", "command": command, **changes}),
            START,
        )

    def submit(self, job: Job) -> Submission:
        return self.scheduler.submit(job)

    def recover(self, job: Job) -> Submission | None:
        return self.scheduler.recover(job)

    def interrupted(self, text: str) -> Job:
        """Return a job whose session was interrupted during its submission; the script
        continues."""

        def interrupt(_seconds: float) -> None:
            raise KeyboardInterrupt

        go = self.folder / "go"
        job = self.intend(f"until [ -e {go} ]; do sleep 0.01; done; {text}")
        with pytest.raises(KeyboardInterrupt):
            make_slurm(self.slurm, self.journal, sleep=interrupt).submit(job)
        go.touch()
        return job


@pytest.fixture
def bench(tmp_path: Path, journal: Journal) -> Bench:
    return Bench(tmp_path, journal)


def test_sbatch_gets_token_nodes_and_arguments_with_shell_syntax_unchanged(
    bench: Bench,
) -> None:
    value = "a b; $(touch hacked) \"'\n`touch hacked`"
    job = bench.intend(
        'printf "%s\\n" "$@" > seen; printf %s "$NAME" > env; echo Submitted batch job 4711',
        "-N",
        value,
        exclude=("n1", "n2"),
        environment=(("PATH", "/usr/bin:/bin"), ("NAME", value)),
    )
    assert bench.submit(job) == Submission("4711")
    assert (
        bench.folder / "seen"
    ).read_text() == f"--comment=llmb:{job.token}\n--exclude=n1,n2\n-N\n{value}\n"
    assert (bench.folder / "env").read_text() == value
    assert not (bench.folder / "hacked").exists()


@pytest.mark.parametrize(
    ("via", "text", "expected"),
    [
        (
            "script",
            "- Job id: 12\n- Local Directory: /lustre/x",
            Submission("12", Path("/lustre/x")),
        ),
        (
            "llmb-run",
            "JobID: 12, Workdir: /lustre/x",
            Submission("12", Path("/lustre/x")),
        ),
        ("script", "Submitted batch job 12", Submission("12")),
    ],
)
def test_commands_other_than_sbatch_run_unchanged(
    bench: Bench, via: str, text: str, expected: Submission
) -> None:
    job = bench.intend(f"echo $# '{text}'; exit 3", "one", via=via)
    assert bench.submit(job) == expected, (
        "a job that was submitted is followed, whatever the exit code"
    )
    assert (job.folder / "submit.out").read_text().startswith("1 ")


def test_job_id_pattern_of_the_user_takes_precedence(bench: Bench) -> None:
    job = bench.intend(
        "echo Submitted batch job 1; echo main job: 2", job_id=r"main job: (?P<job>\d+)"
    )
    assert bench.submit(job) == Submission("2")


@pytest.mark.parametrize(
    ("via", "code"), [("sbatch", 1), ("script", 0), ("llmb-run", 2)]
)
def test_sbatch_error_without_a_job_id_is_a_refused_submission(
    bench: Bench, via: str, code: int
) -> None:
    job = bench.intend(
        f"echo sbatch: error: invalid partition specified: gpux >&2; exit {code}",
        via=via,
    )
    with pytest.raises(
        SubmitError, match=rf"exit code {code} and no job id: check `partition`.*gpux"
    ) as caught:
        bench.submit(job)
    assert not caught.value.uncertain


def test_secrets_reach_neither_message_nor_file(bench: Bench) -> None:
    environment = (("PATH", "/usr/bin:/bin"), ("HF_TOKEN", "hf_verysecret"))
    job = bench.intend(
        'echo "token $HF_TOKEN"; exit 1', environment=environment, secrets=("HF_TOKEN",)
    )
    with pytest.raises(SubmitError, match=r"token \*\*\*") as caught:
        bench.submit(job)
    assert "verysecret" not in str(caught.value)
    assert (job.folder / "submit.out").read_text() == "token ***\n"


@pytest.mark.parametrize("via", ["sbatch", "local"])
def test_missing_program_is_a_refusal(bench: Bench, via: str) -> None:
    with pytest.raises(SubmitError, match="no such program") as caught:
        bench.submit(bench.intend("", command=("program-of-nowhere",), via=via))
    assert not caught.value.uncertain


@pytest.mark.parametrize(
    "text", ["exit 1", "echo sbatch: error: Unable to contact slurm controller; exit 1"]
)
def test_job_of_a_failed_submission_is_followed_if_slurm_lists_its_token(
    bench: Bench, text: str
) -> None:
    job = bench.intend(text)
    bench.slurm.tokens[job.token] = "99"
    assert bench.submit(job) == Submission("99")
    begun = datetime.fromtimestamp(job.folder.stat().st_mtime, UTC)
    assert bench.slurm.queries[0][1] < begun, (
        "Slurm looks from before the submission on"
    )


@pytest.mark.parametrize(
    ("via", "text"),
    [
        (
            "sbatch",
            "echo Batch job submission failed: Socket timed out on send/recv operation; exit 1",
        ),
        ("sbatch", "kill -9 $$"),
        ("script", "echo submitted, probably"),
        ("script", "echo Unable to contact slurm controller; exit 1"),
        ("llmb-run", "kill -9 $$"),
    ],
    ids=[
        "request may have arrived",
        "killed",
        "no id",
        "script may have submitted before",
        "launcher killed",
    ],
)
def test_submission_is_uncertain_if_killed_or_ended_without_a_clear_refusal(
    bench: Bench, via: str, text: str
) -> None:
    with pytest.raises(
        SubmitError, match="it is unknown whether it was submitted"
    ) as caught:
        bench.submit(bench.intend(text, via=via))
    assert caught.value.uncertain


@pytest.mark.slow
def test_endless_submission_is_stopped_and_uncertain(bench: Bench) -> None:
    job = bench.intend("echo $$ > pid; sleep 600")
    begun = time.monotonic()
    with pytest.raises(
        SubmitError, match="it is unknown whether it was submitted"
    ) as caught:
        bench.patient(0.5).submit(job)
    assert caught.value.uncertain
    assert time.monotonic() - begun < 300
    with pytest.raises(ProcessLookupError):
        os.kill(int((bench.folder / "pid").read_text()), 0)


def test_sbatch_that_cannot_reach_slurm_submitted_nothing(bench: Bench) -> None:
    job = bench.intend("echo Unable to contact slurm controller; exit 1")
    with pytest.raises(NotReachedError):
        bench.submit(job)
    assert bench.recover(job) is None
    bench.slurm.away = True
    with pytest.raises(SchedulerAway):
        bench.recover(job)


def test_recovery_finds_that_a_submission_was_never_started(bench: Bench) -> None:
    job = bench.intend("echo Submitted batch job 12")
    assert bench.recover(job) is None
    (
        job.folder / "submit.out"
    ).touch()  # killed after creating the file, before recording the process
    assert bench.recover(job) is None


def test_recovering_reads_the_output_of_a_submission(bench: Bench) -> None:
    job = bench.intend("echo x >> runs; echo Submitted batch job 12")
    bench.submit(job)
    for _ in range(2):
        assert bench.recover(job) == Submission("12")
    assert (bench.folder / "runs").read_text() == "x\n"


@pytest.mark.slow
def test_recovering_waits_for_a_running_submission(bench: Bench) -> None:
    assert bench.recover(
        bench.interrupted("sleep 1; echo Submitted batch job 12")
    ) == Submission("12")


@pytest.mark.parametrize("via", ["sbatch", "script"])
def test_recovering_detects_a_command_that_never_ran(bench: Bench, via: str) -> None:
    """pytest was killed after it recorded the process, and before it released the
    command."""
    job = bench.intend("true", via=via)
    bench.journal.record_process(job.number, process.Process(1, "another start"))
    (job.folder / "submit.out").touch()
    (job.folder / "submit.exit").write_text(f"{process.NEVER_RAN}\n")
    assert bench.recover(job) is None


def test_recovering_a_killed_submission_queries_slurm(bench: Bench) -> None:
    job = bench.interrupted("kill -9 $PPID; kill -9 $$")
    with pytest.raises(
        SubmitError, match="it is unknown whether it was submitted"
    ) as caught:
        bench.recover(job)
    assert caught.value.uncertain
    bench.slurm.tokens[job.token] = "13"
    assert bench.recover(job) == Submission("13")


def test_slurm_is_queried_once_for_all_jobs(bench: Bench) -> None:
    jobs = [
        Job(number, "t", job_spec(bench.folder), bench.folder, job_id=str(400 + number))
        for number in range(6)
    ]
    scheduler = bench.scheduler
    assert sorted(scheduler.poll(jobs)) == [0, 1, 2, 3, 5], (
        "what Slurm does not mention is left out"
    )
    assert scheduler.cancel(jobs[:2]) == ""
    assert bench.slurm.queries == [
        ("poll", *(str(400 + number) for number in range(6))),
        ("cancel", "400", "401"),
    ]
