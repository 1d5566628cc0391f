"""The ways to submit a job. Whatever became of a submission, it is tried again only if certainly no job came of it.

On this machine the command itself is the job, its output the log, and one runs after another. Beside the log lies a
record in the recipe launcher's layout, so that a later `--llmb-logs=.llmbench/jobs` finds and identifies the run.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.models.jobs import Job, JobSpec, JobStatus, Phase, Purpose
from pytest_llmbench.launch import redact
from pytest_llmbench.launch.slurm import SlurmAway
from pytest_llmbench.launch.submit import process, submissions
from pytest_llmbench.launch.submit.submissions import Submission, SubmitError, describe_doubt

if TYPE_CHECKING:
    from pytest_llmbench.launch.journal import Journal
    from pytest_llmbench.launch.slurm import Slurm

SUBMIT_SECONDS = 600.0
OUTPUT = "submit.out"
EXIT = "submit.exit"
GRACE_SECONDS = 5.0
KILLED = 128  # a shell's exit code above this is a signal: what the command had done by then, nothing tells
JOB_EXIT = "job.exit"
JOB_CANCELLED = "job.cancelled"
JOB_GRACE_SECONDS = 10.0
JUST_KILLED_SECONDS = 0.5  # how long a wrapper may take to see that whoever started it is gone

# the variables that say that a run is not for comparison, as the recipe launcher records them
_TELLING = ("ENABLE_PROFILE", "ENABLE_NCCLTRACE", "ENABLE_NCCL_TRACE", "LOAD_CHECKPOINT_PATH")

CLOCKS_DIFFER = timedelta(hours=1)  # how far the clocks of Slurm and of the file system are trusted to differ


class Scheduler(Protocol):
    """Who runs jobs and knows what became of them."""

    at_once: int | None  # how many it takes at a time; None: any number

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Return what is known of each job, by number; SlurmAway if nobody answers."""

    def cancel(self, jobs: Sequence[Job]) -> str:
        """Cancel jobs that were submitted; return what went wrong, or nothing."""


class Launcher(Protocol):
    """Submits one kind of job."""

    @property
    def scheduler(self) -> Scheduler:
        """Who runs its jobs."""

    def submit(self, job: Job) -> Submission:
        """Submit a job and wait for the end of its submission.

        SubmitError: it was refused, or nothing tells (`uncertain`); SlurmAway: it was not submitted, or what became of
        it has to be asked with `recover` when Slurm answers again.
        """

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Return what became of a submission that was begun before; None: it is certain that nothing was submitted.

        One that still runs gets `seconds` to end. Errors as for `submit`.
        """


@dataclass(frozen=True, slots=True)
class Tools:
    """What launchers need."""

    journal: Journal  # for the processes that they start
    slurm: Slurm
    sleep: Callable[[float], None] = time.sleep
    submit_seconds: float = SUBMIT_SECONDS


class SlurmJobs:
    """Jobs that Slurm runs, whatever submitted them."""

    at_once: int | None = None

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Ask Slurm for all jobs at once; one that it does not mention is unknown."""
        statuses = self._slurm.poll({job.job_id: estimate_submission(job) for job in jobs})
        return {job.number: statuses[job.job_id] for job in jobs if job.job_id in statuses}

    def cancel(self, jobs: Sequence[Job]) -> str:
        """Cancel all jobs with one scancel."""
        return self._slurm.cancel([job.job_id for job in jobs])


class SlurmLauncher:
    """A command that ends when it has submitted a job to Slurm."""

    marked: ClassVar[bool] = False  # whether the comment of the job holds its token

    def __init__(self, tools: Tools, scheduler: Scheduler, read: submissions.Reader) -> None:
        """Take Slurm, the same for all that submit to it, and what finds the jobs in the output of this command."""
        self.scheduler = scheduler
        self._tools = tools
        self._read_output = read

    def build_arguments(self, job: Job) -> tuple[str, ...]:
        """Return the command of a job."""
        return job.spec.command

    def submit(self, job: Job) -> Submission:
        """Run the submission command to its end, at most `submit_seconds`."""
        begun = _start(job, self.build_arguments(job), job.folder / OUTPUT, job.folder / EXIT, self._tools.journal)
        return self._conclude(job, self._wait_for_end(job, begun, self._tools.submit_seconds))

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Find out what became of a submission; without a process in the journal its command did not run."""
        begun = self._tools.journal.find_process(job.number)
        if begun is None or not (job.folder / OUTPUT).exists():
            return None
        code = process.read_exit_code(job.folder / EXIT)
        if code is None:
            code = self._wait_for_end(job, begun, seconds)
        if code == process.NEVER_RAN:
            return None
        try:
            return self._conclude(job, code)
        except NotReachedError:
            return None

    def _wait_for_end(self, job: Job, begun: process.Process, seconds: float) -> int | None:
        code = process.wait(begun, job.folder / EXIT, seconds, self._tools.sleep)
        if code is not None:
            return code
        try:
            process.stop(begun, GRACE_SECONDS, self._tools.sleep)
        except LaunchError as error:
            raise SubmitError(f"{job.spec.case_id}: its submission: {error}", uncertain=True) from error
        return None

    def _conclude(self, job: Job, code: int | None) -> Submission:
        """Return the job that a submission command left, which ended with `code` (None: it did not by itself)."""
        output = job.folder / OUTPUT
        text = submissions.hide_secrets(output, job)
        submission = submissions.require_single(self._read(job, text), job, output) or self._find_marked(job)
        if submission:
            return submission
        doubtful = submissions.DOUBTFUL.search(text) is not None
        if submissions.NOT_REACHED.search(text):
            if self.marked and code and not doubtful:  # and Slurm knows no job with this token
                raise NotReachedError(submissions.describe_refusal(job, code, text, output))
            doubtful = True
        if code is None or doubtful or code > KILLED or (code == 0 and not submissions.is_refused(text)):
            raise SubmitError(submissions.describe_doubt(job, output, marked=self.marked, text=text), uncertain=True)
        raise SubmitError(submissions.describe_refusal(job, code, text, output))

    def _read(self, job: Job, text: str) -> Sequence[Submission]:
        return submissions.read_pattern(job.spec.job_id, text) if job.spec.job_id else self._read_output(text)

    def _find_marked(self, job: Job) -> Submission | None:
        """Return the job that carries the token of this one, where the command says it to Slurm."""
        if not self.marked:
            return None
        try:
            job_id = self._tools.slurm.find([job.token], estimate_submission(job)).get(job.token)
        except SlurmAway:
            raise
        except LaunchError as error:  # two jobs carry it
            raise SubmitError(f"{job.spec.case_id}: {error}", uncertain=True) from error
        return Submission(job_id) if job_id else None


class Sbatch(SlurmLauncher):
    """A recipe's launch.sh, given to sbatch; the job carries its token as a comment."""

    marked = True

    def build_arguments(self, job: Job) -> tuple[str, ...]:
        """Return the command with our own options right behind the program, where they win over none of its own."""
        program, *others = job.spec.command
        exclude = (f"--exclude={','.join(job.spec.exclude)}",) if job.spec.exclude else ()
        return (program, f"--comment=llmb:{job.token}", *exclude, *others)


class NotReachedError(SlurmAway):
    """A submission that did not reach Slurm: nothing was submitted."""


# --- on this machine ----------------------------------------------------------------------------------------


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
        _start(job, job.spec.command, log, job.folder / JOB_EXIT, self._journal)
        return self._describe_submission(job)

    def recover(self, job: Job, seconds: float = 0.0) -> Submission | None:
        """Return a job that was started although pytest was killed just then; None if it was not."""
        begun = self._journal.find_process(job.number)
        if begun is None or not find_log(job).exists():
            return None
        code = process.wait(begun, job.folder / JOB_EXIT, JUST_KILLED_SECONDS, self._sleep)
        if code == process.NEVER_RAN:
            return None
        if code is None and not (job.folder / JOB_CANCELLED).exists() and not process.is_alive(begun):
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
        phase, state, exit_code = _find_state(running, code, cancelled=(job.folder / JOB_CANCELLED).exists())
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


def _start(job: Job, command: Sequence[str], output: Path, exit_file: Path, journal: Journal) -> process.Process:
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


# --- all of them --------------------------------------------------------------------------------------------


def build_launchers(tools: Tools) -> dict[str, Launcher]:
    """Return one launcher for each `via` that a command may have; those that submit to Slurm share what asks it."""
    slurm = SlurmJobs(tools.slurm)
    return {
        "sbatch": Sbatch(tools, slurm, submissions.read_sbatch),
        "script": SlurmLauncher(tools, slurm, submissions.read_script),
        "llmb-run": SlurmLauncher(tools, slurm, submissions.read_llmb_run),
        "local": LocalLauncher(tools.journal, tools.sleep),
    }


def find_launcher(spec: JobSpec, launchers: Mapping[str, Launcher]) -> Launcher:
    """Return the launcher of a job; LaunchError if there is none of that name."""
    if spec.via in launchers:
        return launchers[spec.via]
    raise LaunchError(
        f"{spec.case_id}: no launcher {spec.via!r}{did_you_mean(spec.via, launchers)}; "
        f"expected one of {', '.join(launchers)}"
    )


def group_by_scheduler(jobs: Iterable[Job], launchers: Mapping[str, Launcher]) -> dict[Scheduler, list[Job]]:
    """Return jobs by who runs them."""
    groups: dict[Scheduler, list[Job]] = {}
    for job in jobs:
        groups.setdefault(find_launcher(job.spec, launchers).scheduler, []).append(job)
    return groups


def estimate_submission(job: Job) -> datetime:
    """Return a moment before a job was submitted (UTC), for bounding what Slurm looks through."""
    reported = job.status.submitted if job.status else None
    try:
        file = datetime.fromtimestamp((job.folder / OUTPUT).stat().st_mtime, UTC)
    except OSError:
        file = datetime.now(UTC)
    return min(file, reported.astimezone(UTC) if reported else file) - CLOCKS_DIFFER
