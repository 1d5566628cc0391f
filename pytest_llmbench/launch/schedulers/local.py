"""Commands on this machine, and the jobs that are such commands, which run one after another.

The output of a job is its log. Beside it lies a record in the recipe launcher's layout, so that a later
`--llmb-logs=.llmbench/jobs` finds and identifies the run.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Job, JobStatus, Phase, Purpose
from pytest_llmbench.core.userfile import is_there
from pytest_llmbench.launch import redact
from pytest_llmbench.launch.jobs import process
from pytest_llmbench.launch.schedulers.slurm.submissions import Submission, SubmitError, describe_doubt

if TYPE_CHECKING:
    from pytest_llmbench.launch.jobs.journal import Journal

JOB_EXIT = "job.exit"
JOB_CANCELLED = "job.cancelled"
JOB_GRACE_SECONDS = 10.0
JUST_KILLED_SECONDS = 0.5  # how long a wrapper may take to see that whoever started it is gone

# the variables that say that a run is not for comparison, as the recipe launcher records them
_TELLING = ("ENABLE_PROFILE", "ENABLE_NCCLTRACE", "ENABLE_NCCL_TRACE", "LOAD_CHECKPOINT_PATH")


class LocalLauncher:
    """Runs commands on this machine; it is its own scheduler. The job id is the number in the journal."""

    at_once: int | None = 1

    def __init__(self, journal: Journal, sleep: Callable[[float], None] = time.sleep) -> None:
        self._journal = journal
        self._sleep = sleep

    @property
    def scheduler(self) -> LocalLauncher:
        """Who knows what became of the jobs."""
        return self

    def submit(self, job: Job) -> Submission:
        """Start a job; SubmitError if it cannot be started."""
        log = find_log(job)
        _write_record(job, datetime.now(UTC))
        start_command(job, job.spec.command, log, job.folder / JOB_EXIT, self._journal)
        return self._describe_submission(job)

    def recover(self, job: Job, seconds: float = 0.0) -> Submission | None:
        """Return a job that was started although pytest was killed just then; None if it was not."""
        begun = self._journal.find_process(job.number)
        if begun is None or not is_there(find_log(job)):
            return None
        code = process.wait(begun, job.folder / JOB_EXIT, JUST_KILLED_SECONDS, self._sleep)
        if code == process.NEVER_RAN:
            return None
        if code is None and not is_there(job.folder / JOB_CANCELLED) and not process.is_alive(begun):
            raise SubmitError(describe_doubt(job, find_log(job)), uncertain=True)
        return self._describe_submission(job)

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Return what became of each job."""
        return {job.number: self._find_status(job) for job in jobs}

    def cancel(self, jobs: Sequence[Job]) -> str:
        """End jobs with everything that they started; return what went wrong, or nothing."""
        return "\n".join(filter(None, map(self._end, jobs)))

    def _end(self, job: Job) -> str:
        begun = self._journal.find_process(job.number)
        if begun is None:
            return f"job {job.number}: the journal knows no process of it"
        try:
            if process.read_exit_code(job.folder / JOB_EXIT) is None:
                (job.folder / JOB_CANCELLED).touch()
            process.stop(begun, JOB_GRACE_SECONDS, self._sleep)
        except (LaunchError, OSError) as error:
            return f"job {job.number}: {error}"
        return ""

    def _find_status(self, job: Job) -> JobStatus:
        begun = self._journal.find_process(job.number)
        running = begun is not None and process.is_alive(begun)
        # after asking for the process, which leaves its exit code as its last act: none then means that it was killed
        code = process.read_exit_code(job.folder / JOB_EXIT)
        phase, state, exit_code = _find_state(running, code, cancelled=is_there(job.folder / JOB_CANCELLED))
        started = _read_modified(_find_record(job))
        ended = _read_modified(job.folder / JOB_EXIT) if phase is Phase.ENDED else None
        return JobStatus(
            phase=phase,
            state=state,
            nodes=(socket.gethostname(),),
            exit_code=exit_code,
            elapsed_seconds=(ended - started).total_seconds() if started and ended else None,
            submitted=started,
            started=started,
            ended=ended,
            cancelled_by=str(os.getuid()) if state == "CANCELLED" else "",
            seen_by="process",
        )

    def _describe_submission(self, job: Job) -> Submission:
        return Submission(str(job.number), job.folder)


def start_command(job: Job, command: Sequence[str], output: Path, exit_file: Path, journal: Journal) -> process.Process:
    """Start a command in a session of its own, with output and exit code in files: it is still understood when pytest
    is killed. SubmitError if it cannot be started."""
    spec = job.spec
    try:
        return process.start(
            command,
            spec.directory,
            dict(spec.environment),
            output,
            exit_file,
            record=lambda started: journal.record_process(job.number, started),
        )
    except LaunchError as error:
        raise SubmitError(f"{spec.case_id}: {redact(str(error), spec)}") from error


def find_log(job: Job) -> Path:
    """Return where the output of a local job lies; SubmitError for a name that is none for a file."""
    name = job.spec.experiment or job.spec.case_id
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,199}", name):
        raise SubmitError(f"{name!r} cannot be the name of a log: expected letters, digits and `_.+-`")
    return job.folder / f"log-{name}_{job.number}_0.out"


def _find_state(running: bool, code: int | None, *, cancelled: bool) -> tuple[Phase, str, str]:
    """Return phase, state and exit code in Slurm's words. A job that left no exit code did not end well."""
    if running and code is None:
        return Phase.RUNNING, "RUNNING", ""
    exit_code = "" if code is None else f"0:{code - 128}" if code > 128 else f"{code}:0"
    if cancelled:
        return Phase.ENDED, "CANCELLED", exit_code
    return Phase.ENDED, "COMPLETED" if code == 0 else "FAILED", exit_code


def _find_record(job: Job) -> Path:
    return job.folder / f"llmb-config_{job.number}.yaml"


def _write_record(job: Job, now: datetime) -> None:
    """Write what the recipe launcher records of a job, as far as it is known here."""
    import yaml

    key, environment = job.spec.key, dict(job.spec.environment)
    record = {
        "job_info": {"job_id": str(job.number), "launcher_type": "local", "launch_time": now.isoformat()},
        "workload_info": {"gsw_version": key.release, "workload_type": key.task or "pretrain"},
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
            "env_overrides": {name: environment[name] for name in _TELLING if environment.get(name)},
        },
    }
    try:
        _find_record(job).write_text(yaml.safe_dump(record, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise SubmitError(f"{_find_record(job)} cannot be written: {error.strerror}") from error


def _read_modified(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None
