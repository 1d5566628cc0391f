"""Scheduler that runs commands on this machine, one after another.

The output of a job is its log. A record in the recipe launcher's layout is written next
to it, so that a later `--llmb-logs=.llmbench/jobs` finds and identifies the run.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Cluster, Job, JobStatus, Phase, Purpose
from pytest_llmbench.core.userfile import path_exists
from pytest_llmbench.launch.schedulers import process
from pytest_llmbench.launch.schedulers.scheduler import Scheduler
from pytest_llmbench.launch.schedulers.submission import (
    Submission,
    SubmitError,
    describe_doubt,
    start_command,
)

SHOW_PROCESSES = "ps -ef"  # shows whether an untracked command runs

JOB_EXIT = "job.exit"
JOB_CANCELLED = "job.cancelled"
JOB_GRACE_SECONDS = 10.0
# how long a wrapper may take to notice that its parent died
JUST_KILLED_SECONDS = 0.5

# variables that make a run unsuitable for comparison; the recipe launcher records them
_RECORDED_VARIABLES = (
    "ENABLE_PROFILE",
    "ENABLE_NCCLTRACE",
    "ENABLE_NCCL_TRACE",
    "LOAD_CHECKPOINT_PATH",
)


class LocalScheduler(Scheduler):
    """This machine, which runs one command at a time.

    The job id is the number of the job in the journal.
    """

    name = "this machine"
    is_local = True
    device_variables = ("CUDA_VISIBLE_DEVICES",)
    at_once = 1

    @classmethod
    def list_options(cls, via: str, cluster: Cluster) -> tuple[str, ...]:
        """Return no options. Raises LaunchError if the cluster file names nodes."""
        if cluster.nodelist:
            raise LaunchError(
                f"`{via}` runs it on this machine, but `nodelist` names {cluster.nodelist}"
            )
        return ()

    @classmethod
    def find_log(cls, job: Job) -> Path:
        """Return the path of a job's output.

        Raises SubmitError if the experiment's name cannot be a file name.
        """
        name = job.spec.experiment or job.spec.case_id
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}", name):
            raise SubmitError(
                f"{name!r} cannot be the name of a log: expected letters, digits and `_.+-`"
            )
        return job.folder / f"log-{name}_{job.number}_0.out"

    def find_cluster_name(self) -> str:
        """Return the name of this host."""
        return socket.gethostname()

    def submit(self, job: Job) -> Submission:
        """Start a job. Raises SubmitError if it cannot be started."""
        log = self.find_log(job)
        _write_record(job, datetime.now(UTC))
        start_command(
            job, job.spec.command, log, job.folder / JOB_EXIT, self._tools.records
        )
        return self._describe_submission(job)

    def recover(self, job: Job, seconds: float = 0.0) -> Submission | None:
        """Find a job that was started just before pytest was killed, or return None."""
        job_process = self._tools.records.find_process(job.number)
        if job_process is None:
            return None
        log = self.find_log(job)
        if not path_exists(log):
            return None
        code = process.wait(
            job_process, job.folder / JOB_EXIT, JUST_KILLED_SECONDS, self._tools.sleep
        )
        if code == process.NEVER_RAN:
            return None
        was_cancelled = path_exists(job.folder / JOB_CANCELLED)
        if code is None and not was_cancelled and not process.is_alive(job_process):
            # the wrapper was killed, perhaps before the command ran
            raise SubmitError(describe_doubt(job, log, SHOW_PROCESSES), uncertain=True)
        return self._describe_submission(job)

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Return the status of each job, by number."""
        return {job.number: self._find_status(job) for job in jobs}

    def cancel(self, jobs: Sequence[Job]) -> str:
        """End jobs with all their processes; return the problems, or ""."""
        problems = [self._end_job(job) for job in jobs]
        return "\n".join(problem for problem in problems if problem)

    def _end_job(self, job: Job) -> str:
        """End a job and record that it was cancelled; return the problem, or ""."""
        job_process = self._tools.records.find_process(job.number)
        if job_process is None:
            return f"job {job.number}: the journal has no process for it"
        try:
            if process.read_exit_code(job.folder / JOB_EXIT) is None:  # still runs
                (job.folder / JOB_CANCELLED).touch()
            process.stop(job_process, JOB_GRACE_SECONDS, self._tools.sleep)
        except (LaunchError, OSError) as error:
            return f"job {job.number}: {error}"
        return ""

    def _find_status(self, job: Job) -> JobStatus:
        """Return the status of a local job from its process and its exit file."""
        job_process = self._tools.records.find_process(job.number)
        running = job_process is not None and process.is_alive(job_process)
        # read after is_alive: the process writes its exit code last, so that a missing
        # exit code means that it was killed
        code = process.read_exit_code(job.folder / JOB_EXIT)
        phase, state, exit_code = _find_state(
            running, code, cancelled=path_exists(job.folder / JOB_CANCELLED)
        )
        started = _read_modified(_find_record(job))  # written just before the start
        ended = _read_modified(job.folder / JOB_EXIT) if phase is Phase.ENDED else None
        elapsed_seconds = None
        if started and ended:
            elapsed_seconds = (ended - started).total_seconds()
        return JobStatus(
            phase=phase,
            state=state,
            nodes=(socket.gethostname(),),
            exit_code=exit_code,
            elapsed_seconds=elapsed_seconds,
            submitted=started,
            started=started,
            ended=ended,
            cancelled_by=str(os.getuid()) if state == "CANCELLED" else "",
            seen_by="process",
        )

    def _describe_submission(self, job: Job) -> Submission:
        return Submission(str(job.number), job.folder)


def _find_state(
    running: bool, code: int | None, *, cancelled: bool
) -> tuple[Phase, str, str]:
    """Return phase, state and exit code of a job.

    The state of an ended job without an exit code is FAILED, or CANCELLED.
    """
    if running and code is None:  # a process with an exit code is about to end
        return Phase.RUNNING, "RUNNING", ""
    exit_code = _format_exit_code(code)
    if cancelled:
        return Phase.ENDED, "CANCELLED", exit_code
    return Phase.ENDED, "COMPLETED" if code == 0 else "FAILED", exit_code


def _format_exit_code(code: int | None) -> str:
    """Format an exit code as Slurm does: 7 as `7:0`, 137 (signal 9) as `0:9`."""
    if code is None:
        return ""
    if code > 128:
        return f"0:{code - 128}"
    return f"{code}:0"


def _find_record(job: Job) -> Path:
    """Return the path of a job's record in the recipe launcher's layout."""
    return job.folder / f"llmb-config_{job.number}.yaml"


def _write_record(job: Job, now: datetime) -> None:
    """Write the record of a job in the recipe launcher's layout, as far as known here.

    Raises SubmitError if the record cannot be written.
    """
    import yaml

    key, environment = job.spec.key, dict(job.spec.environment)
    record = {
        "job_info": {
            "job_id": str(job.number),
            "launcher_type": "local",
            "launch_time": now.isoformat(),
        },
        "workload_info": {
            "gsw_version": key.release,
            "workload_type": key.task or "pretrain",
        },
        "model_info": {
            "model_name": key.recipe,
            "model_size": key.size,
            "dtype": key.dtype,
            "scale": key.gpus,
            "gpu_type": key.gpu,
        },
        "job_config": {
            "profile_enabled": job.spec.purpose is Purpose.PROFILE,
            "strong_scaling": key.scaling == "strong",
            "env_overrides": {
                name: environment[name]
                for name in _RECORDED_VARIABLES
                if environment.get(name)
            },
        },
    }
    try:
        _find_record(job).write_text(
            yaml.safe_dump(record, sort_keys=False), encoding="utf-8"
        )
    except OSError as error:
        raise SubmitError(
            f"{_find_record(job)} cannot be written: {error.strerror}"
        ) from error


def _read_modified(path: Path) -> datetime | None:
    """Return the modification time of a file, or None if the file cannot be read."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None
