"""The job engine on a real Slurm: job ends, and no lost or duplicate submissions."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.clusters import Cluster
from support.fake_schedulers import FakeSchedulers
from support.job_specs import job_spec

from pytest_llmbench.core.commands import CommandOutput, run
from pytest_llmbench.core.job_records import Blame, Job, JobEnd, JobSpec, Phase
from pytest_llmbench.launch.jobs.builds import Builder
from pytest_llmbench.launch.jobs.job_engine import Engine, NextJob
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.jobs.submitter import Submitter
from pytest_llmbench.launch.jobs.watch import Limits
from pytest_llmbench.launch.schedulers.slurm.client import Slurm
from pytest_llmbench.launch.schedulers.slurm.slurm_scheduler import SlurmScheduler
from pytest_llmbench.launch.schedulers.submission import Tools

QUICK = Limits(first_poll=0.1, longest_poll=0.5, away_seconds=60.0, lost_seconds=180.0)


class Session:
    """An engine on the cluster, with its results and a count of its commands."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            **cluster.environment,
        }
        self.commands: list[str] = []
        self.told: list[str] = []
        self.ends: list[tuple[Job, JobEnd]] = []
        self.following: list[NextJob] = []
        self.journal = Journal(folder / ".llmbench")
        self.journal.begin("test", datetime.now(UTC))
        self.engine = self.make()

    def make(
        self, limits: Limits = QUICK, timeout: float = 60.0, **fields: Any
    ) -> Engine:
        slurm = Slurm(self.runner, self.environment, timeout=timeout)
        tools = Tools(self.runner, self.environment, self.journal, submit_seconds=60.0)
        scheduler = SlurmScheduler(tools, slurm)
        schedulers = FakeSchedulers(
            dict.fromkeys(("sbatch", "script", "allocation"), scheduler)
        )
        self.engine = Engine(
            self.journal,
            Submitter(
                schedulers, Builder(self.journal.session, time.sleep, self.told.append)
            ),
            self.told.append,
            now=lambda: datetime.now(UTC),
            sleep=time.sleep,
            limits=limits,
            **fields,
        )
        return self.engine

    def runner(
        self,
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        self.commands.append(arguments[0])
        return run(arguments, timeout=timeout, environment=environment)

    def spec(self, case: str, script: str, *options: str, **changes: Any) -> JobSpec:
        path = self.folder / f"{case}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        command = (
            "sbatch",
            f"--output={self.folder}/{case}-%j.out",
            *options,
            str(path),
        )
        fields = {
            "case_id": case,
            "via": "sbatch",
            "command": command,
            "environment": tuple(self.environment.items()),
        }
        return job_spec(self.folder, **{**fields, **changes})

    def finished(self, job: Job, end: JobEnd) -> Sequence[NextJob]:
        self.ends.append((job, end))
        following, self.following = self.following, []
        return following

    def run(self, *specs: JobSpec) -> dict[str, tuple[Job, JobEnd]]:
        self.engine.run(specs, self.finished)
        return {job.spec.case_id: (job, end) for job, end in self.ends}

    def again(self, **fields: Any) -> Engine:
        """Resume the session as a new process with the same journal."""
        self.journal.close()
        self.journal = Journal(self.folder / ".llmbench")
        self.journal.resume()
        self.ends = []
        return self.make(**fields)

    def meanwhile(
        self, act: Callable[[], object], when: Callable[[], bool]
    ) -> threading.Thread:
        """Call a function once a condition holds, while the engine runs."""

        def wait() -> None:
            end = time.monotonic() + 180
            while not when() and time.monotonic() < end:
                time.sleep(0.03)
            act()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def submissions(self) -> list[str]:
        """Return the ids of all jobs that Slurm got from this folder."""
        lines = self.cluster.run(
            "squeue", "--states=all", "--noheader", "--format=%A|%Z"
        ).splitlines()
        return sorted(
            (
                line.partition("|")[0]
                for line in lines
                if line.endswith(f"|{self.folder}")
            ),
            key=int,
        )


@pytest.fixture
def session(tmp_path: Path, cluster: Cluster) -> Iterator[Session]:
    created = Session(tmp_path, cluster)
    yield created
    created.journal.close()


def blames(ends: Mapping[str, tuple[Job, JobEnd]]) -> dict[str, Blame]:
    return {case: end.blame for case, (_, end) in ends.items()}


@pytest.mark.slow
def test_success_failure_and_failed_step_are_distinguished(session: Session) -> None:
    ends = session.run(
        session.spec("good", "echo hello", "--time=30"),
        session.spec("bad", "exit 7"),
        session.spec("step", "srun -n1 sh -c 'exit 7'; exit 0"),
        session.spec("refused", "true", "--partition=nowhere"),
    )
    assert blames(ends) == {
        "good": Blame.NONE,
        "bad": Blame.RUN,
        "step": Blame.RUN,
        "refused": Blame.RUN,
    }
    good, _ = ends["good"]
    assert good.status
    assert good.status.nodes
    assert good.status.limit_seconds == 1800.0
    assert (session.folder / f"good-{good.job_id}.out").read_text() == "hello\n"
    refused, end = ends["refused"]
    assert refused.problem == end.text
    assert "invalid partition" in end.text
    assert "`partition` in the cluster file" in end.text
    assert len(session.submissions()) == 3


@pytest.mark.slow
def test_job_id_and_log_folder_are_parsed_from_a_submitting_script(
    session: Session,
) -> None:
    inner = session.spec("inner", "true").command
    script = f"id=$({' '.join(inner[:1])} --parsable {' '.join(inner[1:])}) && printf '%s\\n' 'Task 0: train' "
    script += f'"- Job id: $id" "- Local Directory: {session.folder}"'
    outer = session.spec(
        "outer", script, via="script", command=(str(session.folder / "outer.sh"),)
    )
    job, end = session.run(outer)["outer"]
    assert end.blame is Blame.NONE
    assert [job.job_id] == session.submissions()
    assert job.log_folder == session.folder


@pytest.mark.slow
def test_two_jobs_that_need_all_nodes_run_one_after_the_other(session: Session) -> None:
    session.following = [NextJob(session.spec("b", "true"), repeat=2)]
    specs = [session.spec(case, "sleep 1", "-N4", "--exclusive") for case in "ab"]
    ends = session.run(*specs)
    assert blames(ends) == {"a": Blame.NONE, "b": Blame.NONE}
    assert len(session.submissions()) == len(session.ends) == 3


@pytest.mark.slow
def test_job_cancelled_by_others_is_reported(session: Session) -> None:
    def act() -> None:
        session.cluster.run("scancel", session.submissions()[0])

    thread = session.meanwhile(
        act, lambda: any(job.status for job in session.journal.list_jobs())
    )
    job, end = session.run(session.spec("a", "sleep 600"))["a"]
    thread.join()
    assert end.blame is Blame.CANCELLED
    assert job.status
    assert job.status.state == "CANCELLED"


@pytest.mark.slow
def test_job_that_can_never_start_is_cancelled(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_llmbench.launch.jobs.watch.BLOCKED_SECONDS", 1.0)
    ends = session.run(session.spec("big", "true", "-N5"), session.spec("good", "true"))
    assert blames(ends) == {"big": Blame.CANCELLED, "good": Blame.NONE}
    assert ends["big"][1].text.startswith("never started: ")
    assert session.cluster.jobs() == []


@pytest.mark.slow
def test_job_pending_too_long_is_cancelled(session: Session) -> None:
    blocker = session.cluster.submit("sleep 600", "-N4", "--exclusive")
    session.make(Limits(first_poll=0.1, longest_poll=0.3, pending_seconds=1.0))
    _, end = session.run(session.spec("a", "true"))["a"]
    assert session.cluster.jobs() == [blocker], "exactly ours is cancelled"
    session.cluster.cancel_all()
    assert end.text.startswith("never started: pending (")


@pytest.mark.slow
def test_requeued_job_is_followed_to_its_second_end(session: Session) -> None:
    marker = session.folder / "first"

    def act() -> None:
        [job_id] = session.submissions()
        session.cluster.run("scontrol", "requeue", job_id)
        time.sleep(2)  # a job that restarts in the same second fails on this Slurm
        session.cluster.ask("scontrol", "update", f"JobId={job_id}", "StartTime=now")

    thread = session.meanwhile(act, marker.exists)
    script = f'[ -n "$SLURM_RESTART_COUNT" ] || {{ touch {marker}; sleep 600; }}'
    job, end = session.run(session.spec("a", script, "--requeue", "--begin=now"))["a"]
    thread.join()
    assert end.blame is Blame.NONE
    assert job.status
    assert job.status.restarts == 1
    assert len(set(session.submissions())) == 1


@pytest.mark.slow
def test_jobs_are_submitted_and_polled_once_an_unreachable_controller_returns(
    session: Session,
) -> None:
    goes_on = session.folder / "go"
    session.make(timeout=2.0)

    def act() -> None:
        session.cluster.stop_controller()
        end = time.monotonic() + 180
        while (
            not any("does not answer" in text for text in session.told)
            and time.monotonic() < end
        ):
            time.sleep(0.03)
        session.cluster.start_controller()
        goes_on.touch()

    thread = session.meanwhile(
        act, lambda: any(job.status for job in session.journal.list_jobs())
    )
    session.following = [NextJob(session.spec("b", "true"))]
    waits = f"while [ ! -e {goes_on} ]; do sleep 0.1; done"
    ends = session.run(session.spec("a", "sleep 1"), session.spec("c", waits))
    thread.join()
    assert any("does not answer" in text for text in session.told)
    assert blames(ends) == {"a": Blame.NONE, "b": Blame.NONE, "c": Blame.NONE}
    assert len(session.submissions()) == 3


@pytest.mark.slow
def test_cancelling_ends_all_submitted_jobs_and_no_other_slurm_job(
    session: Session,
) -> None:
    other = session.cluster.submit("sleep 600", "-N1")
    assert (
        session.engine.submit_only([session.spec(case, "sleep 600") for case in "abc"])
        == ()
    )
    assert session.engine.cancel() == ()
    assert session.cluster.jobs() == [other]
    session.cluster.cancel_all()
    assert session.journal.list_live() == ()
    assert {job.status.state for job in session.journal.list_jobs() if job.status} == {
        "CANCELLED"
    }


@pytest.mark.slow
def test_killed_session_resumes_and_submits_jobs_once(
    session: Session,
) -> None:
    specs = [
        session.spec("a", "sleep 1"),
        session.spec("b", "sleep 2"),
        session.spec("c", "true"),
    ]

    class Killed(BaseException):
        """Represents SIGKILL."""

    def killed(job: Job, end: JobEnd) -> Sequence[NextJob]:
        raise Killed

    with pytest.raises(Killed):
        session.engine.run(specs[:2], killed)
    session.again().resume(specs, session.finished)
    assert sorted(job.spec.case_id for job, _ in session.ends) == ["a", "b", "c"]
    assert {end.blame for _, end in session.ends} == {Blame.NONE}
    assert len(session.submissions()) == 3


@pytest.mark.slow
def test_job_is_found_by_its_token_if_its_id_was_never_printed(
    session: Session,
) -> None:
    """The submission was killed after Slurm had accepted the job."""
    spec = session.spec("a", "sleep 2")
    script = session.folder / "kill.sh"
    script.write_text(
        f'#!/bin/bash\n{spec.command[0]} "$@" > /dev/null; kill -9 $PPID $$\n'
    )
    script.chmod(0o755)
    job, end = session.run(
        session.spec("a", "sleep 2", command=(str(script), *spec.command[1:]))
    )["a"]
    assert end.blame is Blame.NONE
    assert [job.job_id] == session.submissions()


def ten_minutes(session: Session, number: int) -> Counter[str]:
    """Count the commands of a session that waits ten minutes for pending jobs.

    Returns the number of calls by program.
    """
    blocker = session.cluster.submit("sleep 600", "-N4", "--exclusive")
    session.make(Limits(max_jobs=500))
    session.engine.submit_only(
        [session.spec(f"c{each}of{number}", "true") for each in range(number)]
    )
    jobs = session.journal.list_live()
    assert len(jobs) == number
    session.commands.clear()
    slept, clock = [0.0], time.time()

    class Enough(BaseException):
        """Represents a user who stops the session."""

    def sleep(seconds: float) -> None:
        slept[0] += seconds
        if slept[0] > 600:
            raise Enough

    engine = session.make(Limits(max_jobs=500))
    engine._sleep = sleep
    engine._now = lambda: datetime.fromtimestamp(clock + slept[0], UTC)
    engine._live = {job.number: job for job in jobs}
    with pytest.raises(Enough):
        engine._follow()
    commands = Counter(session.commands)
    assert session.make().cancel() == ()
    session.cluster.run("scancel", blocker)
    session.cluster.wait(blocker, "CANCELLED")
    assert not [
        job
        for job in session.journal.list_jobs()
        if job.status and job.status.phase is not Phase.ENDED
    ]
    return commands


@pytest.mark.slow
def test_polling_200_jobs_takes_as_few_slurm_commands_as_polling_4(
    session: Session,
) -> None:
    of_few = ten_minutes(session, 4)
    of_many = ten_minutes(session, 200)
    assert of_many == of_few
    assert of_few.keys() == {"sacct", "squeue"}
    assert of_many.total() < 100, "in 10 minutes"
