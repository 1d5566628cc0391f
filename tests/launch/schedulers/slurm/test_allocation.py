"""Runs in an allocation: its batch script, run here as by Slurm, and the status of
runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from support.fake_schedulers import make_slurm
from support.job_specs import START, ended, job_spec, running, waiting

from pytest_llmbench.core.job_records import Job, JobStatus, Phase, Purpose
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.schedulers import shared_allocation
from pytest_llmbench.launch.schedulers.slurm import allocation
from pytest_llmbench.launch.schedulers.slurm.allocation import RunMarkers, describe_run
from pytest_llmbench.launch.schedulers.slurm.client import StepStatus
from pytest_llmbench.launch.schedulers.submission import OUTPUT, SubmitError

if TYPE_CHECKING:
    from pytest_llmbench.launch.schedulers.slurm.client import Slurm

BEGUN = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


class FakeSlurm:
    """A Slurm with these steps in accounting."""

    def __init__(self, *steps: StepStatus) -> None:
        self.steps = steps
        self.cancelled: list[str] = []

    def list_steps(self, job_id: str, since: datetime) -> tuple[StepStatus, ...]:
        assert job_id == "4711"
        assert since < BEGUN
        return self.steps

    def cancel(self, job_ids: list[str]) -> str:
        self.cancelled += job_ids
        return ""


class Held:
    """An allocation in a journal, with its batch script as a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder / ".llmbench")
        self.journal.begin("test", START)
        self.write_script("#SBATCH --exclusive\necho in $PWD; env > $FILE")
        self.scheduler = make_slurm(FakeSlurm(), self.journal)
        self.environment = {
            "PATH": os.environ["PATH"],
            "SAME": "same",
            "GONE": "x",
            "TOKEN": "hf_12345",
        }
        spec = self.make_spec(
            via="sbatch", purpose=Purpose.ALLOCATION, command=("sbatch", "./launch.sh")
        )
        job = self.journal.intend(spec, START)
        (job.folder / OUTPUT).write_text("Submitted batch job 4711\n")
        self.job = self.journal.record_submission(job.number, "4711", None, START)
        allocation.write_holder(self.job)
        self.processes: list[subprocess.Popen[bytes]] = []

    def write_script(self, text: str) -> None:
        (self.folder / "launch.sh").write_text(f"#!/bin/bash\n{text}\n")

    def make_spec(self, **changes: Any) -> Any:
        variables = tuple(
            {**self.environment, "FILE": str(self.folder / "environment")}.items()
        )
        return job_spec(
            self.folder, environment=variables, secrets=("TOKEN",), **changes
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Start the batch script in the allocation's environment, with Slurm's
        variables."""
        environment = {
            **dict(self.job.spec.environment),
            "SLURM_JOB_ID": "4711",
            "SLURM_NNODES": "2",
        }
        command = ["bash", str(allocation.find_holder(self.job))]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        self.processes.append(process)
        return process

    def leave_run(self, **changes: Any) -> Job:
        """Queue a run in the allocation."""
        spec = self.make_spec(
            via="allocation", command=("./launch.sh", "a b"), allocation=1, **changes
        )
        job = self.journal.intend(spec, START, repeat=len(self.journal.list_jobs()))
        submission = self.scheduler.submit(job)
        return self.journal.record_submission(
            job.number, submission.job_id, submission.folder, START
        )

    def wait_for_end(self, job: Job) -> RunMarkers:
        end = time.monotonic() + 180
        while (marks := allocation.read_markers(job)).code is None:
            assert time.monotonic() < end, "the run does not end"
            time.sleep(0.05)
        return marks


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """An allocation that checks for runs every 0.05 s instead of every second."""
    assert "    sleep 1\n" in allocation.HOLDER_SCRIPT
    monkeypatch.setattr(
        allocation,
        "HOLDER_SCRIPT",
        allocation.HOLDER_SCRIPT.replace("sleep 1\n", "sleep 0.05\n"),
    )
    created = Held(tmp_path)
    yield created
    for process in created.processes:
        process.kill()
        process.wait()
    created.journal.close()


def test_run_has_environment_of_variant_and_allocation(held: Held) -> None:
    """Variables that only the reference has are unset; a copy of the script runs in the
    recipe's folder."""
    del held.environment["GONE"]
    held.environment |= {"NEW": "it's $HOME", "TOKEN": "hf_other"}
    job = held.leave_run()
    held.start()
    marks = held.wait_for_end(job)
    variables = dict(
        line.partition("=")[::2]
        for line in (held.folder / "environment").read_text().splitlines()
    )
    assert (
        variables.items()
        >= {
            "SAME": "same",
            "NEW": "it's $HOME",
            "SLURM_NNODES": "2",
            "TOKEN": "hf_12345",
        }.items()
    )
    assert "GONE" not in variables
    assert marks.begun is not None
    assert marks.code == 0
    assert (job.folder / "slurm-4711.out").read_text() == f"in {held.folder}\n"
    assert job.job_id == f"4711-{job.number}"
    assert job.scheduler_id == "4711"


def test_allocation_writes_no_secret(held: Held) -> None:
    held.environment |= {"TOKEN": "hf_other", "URL": "http://me:hf_other@host"}
    held.leave_run()
    texts = [
        path.read_bytes()
        for path in (held.folder / ".llmbench" / "jobs").rglob("*")
        if path.is_file()
    ]
    assert texts
    assert all(b"hf_" not in text for text in texts)


@pytest.mark.slow
def test_runs_follow_each_other_and_leave_no_process(held: Held) -> None:
    """Each run has its exit code; background processes end before the next run begins."""
    held.write_script("sleep 300 & echo $! > left; exit 3")
    first = held.leave_run()
    held.start()
    assert held.wait_for_end(first).code == 3
    # a dead process may still be a zombie
    held.write_script(
        'grep -qs "^State:.[RS]" /proc/$(cat left)/status && exit 9; exit 0'
    )
    assert held.wait_for_end(held.leave_run()).code == 0


def test_allocation_ends_when_released(held: Held) -> None:
    process = held.start()
    shared_allocation.release(held.journal, "another")
    assert process.poll() is None
    shared_allocation.release(held.journal, held.job.spec.case_id)
    assert process.wait(timeout=180) == 0


def test_idle_allocation_ends_by_itself(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session was killed and not resumed."""
    monkeypatch.setattr(allocation, "IDLE_SECONDS", 1)
    allocation.write_holder(held.job)
    assert held.start().wait(timeout=180) == 0


def test_run_ended_with_its_allocation_by_sigterm_leaves_no_exit_code(
    held: Held,
) -> None:
    """SIGTERM reaches all processes at once, as from scancel or at the time limit."""
    held.write_script("trap 'exit 7' TERM; touch here; while :; do sleep 0.05; done")
    job, process = held.leave_run(), held.start()
    end = time.monotonic() + 180
    while not (held.folder / "here").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    children = subprocess.run(
        ["pgrep", "-s", str(process.pid)], capture_output=True, text=True, check=True
    )
    for pid in map(int, children.stdout.split()):
        with suppress(ProcessLookupError):  # a short sleep may have ended
            os.kill(pid, signal.SIGTERM)
    assert process.wait(timeout=180) == 143
    assert allocation.read_markers(job).code is None


def test_run_without_an_allocation_is_refused(held: Held) -> None:
    held.journal.record_end(held.job.number, ended(), "", START)
    with pytest.raises(SubmitError, match="its allocation has ended"):
        held.leave_run()


def test_run_submitted_to_an_allocation_by_a_killed_session_is_recovered(
    held: Held,
) -> None:
    spec = held.make_spec(via="allocation", command=("./launch.sh",), allocation=1)
    job = held.journal.intend(spec, START)
    assert held.scheduler.recover(job) is None
    submission = held.scheduler.submit(job)
    assert held.scheduler.recover(job) == submission
    held.start()
    held.wait_for_end(job)
    assert held.scheduler.recover(job) == submission


def test_cancelling_runs_cancels_their_allocation_once(held: Held) -> None:
    slurm = FakeSlurm()
    make_slurm(slurm).cancel([held.job, held.leave_run()])
    assert slurm.cancelled == ["4711"]


def test_sbatch_directives_precede_the_first_command_of_the_script() -> None:
    lines = [
        "#!/bin/bash",
        "#SBATCH -N 2",
        "",
        "# a comment",
        "#SBATCH --exclusive # why",
        "set -e",
        "#SBATCH -N 3",
    ]
    assert list(allocation.list_directives(lines)) == [
        "#SBATCH -N 2",
        "#SBATCH --exclusive # why",
    ]


UNTIL = BEGUN + timedelta(seconds=90)
NOT_YET, UNDER_WAY = RunMarkers(None, None, None), RunMarkers(BEGUN, None, None)


@pytest.mark.parametrize(
    ("markers", "held_status", "expected"),
    [
        (NOT_YET, waiting(), (Phase.WAITING, "PENDING", "")),
        (UNDER_WAY, running(), (Phase.RUNNING, "RUNNING", "")),
        (UNDER_WAY, JobStatus(Phase.UNKNOWN, ""), (Phase.UNKNOWN, "", "")),
        (RunMarkers(BEGUN, UNTIL, 0), running(), (Phase.ENDED, "COMPLETED", "0:0")),
        (
            RunMarkers(BEGUN, UNTIL, 0),
            ended("TIMEOUT"),
            (Phase.ENDED, "COMPLETED", "0:0"),
        ),
        (RunMarkers(BEGUN, UNTIL, 7), running(), (Phase.ENDED, "FAILED", "7:0")),
        (RunMarkers(BEGUN, UNTIL, 139), running(), (Phase.ENDED, "FAILED", "0:11")),
        (
            RunMarkers(BEGUN, UNTIL, 7),
            ended("CANCELLED"),
            (Phase.ENDED, "CANCELLED", ""),
        ),
        (
            RunMarkers(BEGUN, UNTIL, 7),
            JobStatus(Phase.RUNNING, "COMPLETING"),
            (Phase.RUNNING, "COMPLETING", ""),
        ),
        (UNDER_WAY, ended("NODE_FAIL"), (Phase.ENDED, "NODE_FAIL", "")),
        (NOT_YET, ended("COMPLETED"), (Phase.ENDED, "CANCELLED", "")),
    ],
)
def test_run_status_follows_from_its_exit_code_and_its_allocations_slurm_state(
    held: Held,
    markers: RunMarkers,
    held_status: JobStatus,
    expected: tuple[Phase, str, str],
) -> None:
    """A run that failed while its allocation was ending has no exit code: that may be
    the cause."""
    status = describe_run(held.job, markers, held_status, cast("Slurm", FakeSlurm()))
    assert (status.phase, status.state, status.exit_code) == expected
    assert status.started == markers.begun


BEFORE = StepStatus("FAILED", "9:0", BEGUN - timedelta(seconds=1))


@pytest.mark.parametrize(
    ("steps", "worst", "expected"),
    [
        ([BEFORE, StepStatus("FAILED", "1:0", BEGUN)], "9:0", "1:0"),
        ([BEFORE, StepStatus("CANCELLED", "0:15", UNTIL)], "9:0", ""),
        ([BEFORE, StepStatus("CANCELLED", "0:9", UNTIL)], "9:0", "0:9"),
        ([BEFORE, StepStatus("FAILED", "0:15", UNTIL)], "9:0", "0:15"),
        ([BEFORE, StepStatus("TIMEOUT", "0:0", UNTIL)], "9:0", "9:0"),
        ([BEFORE], "9:0", ""),
        ([BEFORE], "12:0", "12:0"),
        ([], "9:0", "9:0"),
        ([StepStatus("FAILED", "1:0", BEGUN)], "0:0", ""),
    ],
)
def test_failed_slurm_step_in_an_allocation_is_assigned_to_the_right_run(
    held: Held, steps: list[StepStatus], worst: str, expected: str
) -> None:
    """A step that SIGTERM ended belongs to a finished run; a failed step missing in
    accounting to this run."""
    status = describe_run(
        held.job,
        RunMarkers(BEGUN, UNTIL, 0),
        running(derived_exit_code=worst),
        cast("Slurm", FakeSlurm(*steps)),
    )
    assert (status.derived_exit_code, status.elapsed_seconds) == (expected, 90.0)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([], (Phase.RUNNING, Phase.ENDED, "")),
        ([StepStatus("COMPLETED", "0:0", BEGUN)], (Phase.RUNNING, Phase.ENDED, "")),
        ([StepStatus("FAILED", "9:0", BEGUN)], (Phase.ENDED, Phase.ENDED, "9:0")),
    ],
    ids=["no step yet", "another step", "failed step"],
)
def test_failed_job_step_before_the_run_does_not_hide_its_result(
    held: Held, later: list[StepStatus], expected: tuple[Phase, Phase, str]
) -> None:
    """Until accounting is settled, a step with the exit code of an earlier step may be
    missing."""
    slurm, marks = cast("Slurm", FakeSlurm(BEFORE, *later)), RunMarkers(BEGUN, UNTIL, 0)
    at_once, settled = (
        describe_run(
            held.job, marks, running(derived_exit_code="9:0"), slurm, settled=settled
        )
        for settled in (False, True)
    )
    assert (at_once.phase, settled.phase, settled.derived_exit_code) == expected


def test_run_has_not_ended_while_its_slurm_step_runs(held: Held) -> None:
    """Accounting may lag: a failed step would be missed."""
    slurm = FakeSlurm(BEFORE, StepStatus("RUNNING", "0:0", BEGUN))
    status = describe_run(
        held.job,
        RunMarkers(BEGUN, UNTIL, 0),
        running(derived_exit_code="9:0"),
        cast("Slurm", slurm),
    )
    assert status.phase is Phase.RUNNING


def test_logs_are_moved_away_from_later_runs(held: Held) -> None:
    job = held.leave_run()
    log = held.folder / "results" / "bf16" / "8" / "log-x_4711.out"
    log.parent.mkdir(parents=True)
    log.write_text("a step")
    assert not shared_allocation.has_logs_in_folder(job)
    shared_allocation.keep_logs(job, [log], 3)
    assert shared_allocation.has_logs_in_folder(job)
    assert not log.exists()
    assert (job.folder / "bf16" / "8" / log.name).read_text() == "a step"
