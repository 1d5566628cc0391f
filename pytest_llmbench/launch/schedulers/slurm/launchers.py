"""The ways to submit a job. Whatever became of a submission, it is tried again only if certainly no job came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Protocol

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.job_records import Job, JobSpec, JobStatus, Purpose
from pytest_llmbench.core.userfile import is_there
from pytest_llmbench.launch.jobs import process
from pytest_llmbench.launch.schedulers.local import LocalLauncher, start_command
from pytest_llmbench.launch.schedulers.slurm import allocation, sbatch_wrapper, submissions
from pytest_llmbench.launch.schedulers.slurm.allocation import OUTPUT
from pytest_llmbench.launch.schedulers.slurm.client import SlurmAway
from pytest_llmbench.launch.schedulers.slurm.submissions import Submission, SubmitError

if TYPE_CHECKING:
    from pytest_llmbench.launch.jobs.journal import Journal
    from pytest_llmbench.launch.schedulers.slurm.client import Slurm

SUBMIT_SECONDS = 600.0
EXIT = "submit.exit"
GRACE_SECONDS = 5.0
KILLED = 128  # a shell's exit code above this is a signal: what the command had done by then, nothing tells

ACCOUNTING_LAG = 5.0  # seconds after which slurmdbd has the steps of a run that ended

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

    def __init__(self, slurm: Slurm, clock: Callable[[], float] = time.monotonic) -> None:
        self._slurm = slurm
        self._clock = clock
        self._ended: dict[int, float] = {}  # when the end of each run in an allocation was first seen, by its number

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Ask Slurm for all jobs at once; one that it does not mention is unknown."""
        # before Slurm: what it says of an allocation is then not older than the end of a run in it
        marks = {job.number: allocation.read_marks(job) for job in jobs if job.spec.allocation}
        statuses = self._slurm.poll({job.slurm_id: estimate_submission(job) for job in jobs})
        answers = {job.number: statuses[job.slurm_id] for job in jobs if job.slurm_id in statuses}
        held = [job for job in jobs if job.number in marks and job.number in answers]
        return answers | {job.number: self._describe_held(job, marks[job.number], answers[job.number]) for job in held}

    def _describe_held(self, job: Job, marks: allocation.RunMarks, status: JobStatus) -> JobStatus:
        return allocation.describe_run(job, marks, status, self._slurm, settled=self._is_settled(job, marks))

    def _is_settled(self, job: Job, marks: allocation.RunMarks) -> bool:
        """Whether a run in an allocation was seen to have ended so long ago that accounting has all its steps."""
        if marks.ended is None:
            return False
        now = self._clock()
        return now - self._ended.setdefault(job.number, now) >= ACCOUNTING_LAG

    def cancel(self, jobs: Sequence[Job]) -> str:
        """Cancel all jobs with one scancel; a run in an allocation ends with that."""
        return self._slurm.cancel(list(dict.fromkeys(job.slurm_id for job in jobs)))


class SlurmLauncher:
    """A command that ends when it has submitted a job to Slurm, through the `sbatch` that it finds on its PATH."""

    calls_sbatch: ClassVar[bool] = False  # whether the command is sbatch itself

    def __init__(self, tools: Tools, scheduler: Scheduler, read: submissions.Reader) -> None:
        """Take Slurm, the same for all that submit to it, and what finds the jobs in the output of this command."""
        self.scheduler = scheduler
        self._tools = tools
        self._read_output = read

    def build_arguments(self, job: Job) -> tuple[str, ...]:
        """Return the command of a job."""
        return job.spec.command

    def prepare_environment(self, job: Job) -> Mapping[str, str]:
        """Return the variables of the command, with our own sbatch first on its PATH."""
        try:
            environment = sbatch_wrapper.install_wrapper(job)
        except OSError as error:
            raise LaunchError(f"{error.filename}: {error.strerror}") from error
        if sbatch_wrapper.list_placement(job.spec) and not sbatch_wrapper.is_wrapped(job):
            placed = " ".join(sbatch_wrapper.list_placement(job.spec))
            raise LaunchError(f"there is no sbatch on the PATH of {job.spec.command[0]} that could get {placed}")
        return environment

    def is_marked(self, job: Job) -> bool:
        """Whether the comment of the job holds its token, if the command submitted one as it should."""
        return sbatch_wrapper.is_wrapped(job)

    def submit(self, job: Job) -> Submission:
        """Run the submission command to its end, at most `submit_seconds`."""
        begun = self._begin(job)
        return self._conclude(job, self._wait_for_end(job, begun, self._tools.submit_seconds))

    def _begin(self, job: Job) -> process.Process:
        try:
            environment = self.prepare_environment(job)
        except LaunchError as error:
            raise SubmitError(f"{job.spec.case_id}: {error}") from error
        prepared = replace(job, spec=replace(job.spec, environment=tuple(environment.items())))
        command, journal = self.build_arguments(job), self._tools.journal
        return start_command(prepared, command, job.folder / OUTPUT, job.folder / EXIT, journal)

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Find out what became of a submission; without a process in the journal its command did not run."""
        begun = self._tools.journal.find_process(job.number)
        if begun is None or not is_there(job.folder / OUTPUT):
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
        answers = submissions.read_answers(sbatch_wrapper.read_answers(job))
        # what the launcher printed comes first: it names the folder, too
        printed = submissions.require_single(self._read(job, text) or answers, job, output)
        if printed:
            if printed.job_id not in [answer.job_id for answer in answers]:
                self._require_placed(job, printed)
            return printed
        if submission := self._find_marked(job):
            return submission
        marked, doubtful = self.is_marked(job), submissions.DOUBTFUL.search(text) is not None
        if submissions.NOT_REACHED.search(text):
            if self.calls_sbatch and code and not doubtful:  # and Slurm knows no job with this token
                raise NotReachedError(submissions.describe_refusal(job, code, text, output))
            doubtful = True
        if code is None or doubtful or code > KILLED or (code == 0 and not submissions.is_refused(text)):
            raise SubmitError(submissions.describe_doubt(job, output, marked=marked, text=text), uncertain=True)
        raise SubmitError(submissions.describe_refusal(job, code, text, output))

    def _read(self, job: Job, text: str) -> Sequence[Submission]:
        return submissions.read_pattern(job.spec.job_id, text) if job.spec.job_id else self._read_output(text)

    def _find_marked(self, job: Job) -> Submission | None:
        """Return the job that carries the token of this one."""
        if not self.is_marked(job):
            return None
        try:
            job_id = self._tools.slurm.find([job.token], estimate_submission(job)).get(job.token)
        except SlurmAway:
            raise
        except LaunchError as error:  # two jobs carry it
            raise SubmitError(f"{job.spec.case_id}: {error}", uncertain=True) from error
        return Submission(job_id) if job_id else None

    def _require_placed(self, job: Job, submission: Submission) -> None:
        """Cancel a job that was to run on some nodes and not on others, and that was submitted past our own sbatch."""
        placement = sbatch_wrapper.list_placement(job.spec)
        if self.calls_sbatch or not placement or self._find_marked(job) == Submission(submission.job_id):
            return
        problem = self._tools.slurm.cancel([submission.job_id])
        became = f"it may still run ({problem})" if problem else "it was cancelled"
        raise SubmitError(
            f"{job.spec.case_id}: {job.spec.command[0]} submitted job {submission.job_id} with another sbatch than the "
            f"first on its PATH, so that {' '.join(placement)} did not reach Slurm: {became}. Choose a launcher that "
            "calls sbatch by its name (--llmb-launcher)",
            uncertain=bool(problem),
        )


class Sbatch(SlurmLauncher):
    """A recipe's launch.sh, given to sbatch; the job carries its token as a comment."""

    calls_sbatch = True

    def build_arguments(self, job: Job) -> tuple[str, ...]:
        """Return the command with our own options right behind the program, where they win over none of its own."""
        program, *others = job.spec.command
        if job.spec.purpose is Purpose.ALLOCATION:
            held = job.folder.absolute() / allocation.HELD
            others[-1:] = [f"--output={held}", f"--error={held}", str(allocation.find_holder(job))]
        return (program, *sbatch_wrapper.list_options(job), *others)

    def prepare_environment(self, job: Job) -> Mapping[str, str]:
        """Return the variables of the command, as they are."""
        if job.spec.purpose is Purpose.ALLOCATION:
            try:
                allocation.write_holder(job)
            except OSError as error:
                raise LaunchError(f"{error.filename}: {error.strerror}") from error
        return dict(job.spec.environment)

    def is_marked(self, _job: Job) -> bool:
        """Whether the comment of the job holds its token: always."""
        return True


class NotReachedError(SlurmAway):
    """A submission that did not reach Slurm: nothing was submitted."""


# --- all of them --------------------------------------------------------------------------------------------


def build_launchers(tools: Tools) -> dict[str, Launcher]:
    """Return one launcher for each `via` that a command may have; those that submit to Slurm share what asks it."""
    slurm = SlurmJobs(tools.slurm)
    return {
        "sbatch": Sbatch(tools, slurm, submissions.read_sbatch),
        "script": SlurmLauncher(tools, slurm, submissions.read_script),
        "llmb-run": SlurmLauncher(tools, slurm, submissions.read_llmb_run),
        "local": LocalLauncher(tools.journal, tools.sleep),
        "allocation": allocation.AllocationLauncher(tools.journal, slurm),
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
