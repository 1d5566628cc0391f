"""The Slurm scheduler. A submission is retried only if it certainly created no job."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Cluster, Job, JobSpec, JobStatus, Purpose
from pytest_llmbench.launch.plan.cluster_file import LearnedCluster
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight.problems import JobProblem
from pytest_llmbench.launch.schedulers import process
from pytest_llmbench.launch.schedulers.scheduler import Scheduler
from pytest_llmbench.launch.schedulers.shared_allocation import AllocationPlan
from pytest_llmbench.launch.schedulers.slurm import (
    allocation,
    client,
    sbatch,
    slurm_checks,
)
from pytest_llmbench.launch.schedulers.slurm.allocation import plan_allocation
from pytest_llmbench.launch.schedulers.slurm.client import Slurm, learn_cluster
from pytest_llmbench.launch.schedulers.slurm.sbatch import SBATCH
from pytest_llmbench.launch.schedulers.submission import (
    KILLED,
    OUTPUT,
    SUBMIT_SECONDS,
    SchedulerAway,
    Submission,
    SubmitError,
    Tools,
    describe_doubt,
    describe_refusal,
    estimate_submission,
    hide_secrets,
    read_pattern,
    resume_command,
    run_command,
)

ACCOUNTING_LAG = 5.0  # seconds after the end of a run until slurmdbd has its steps


class NotReachedError(SchedulerAway):
    """A submission did not reach Slurm: nothing was submitted."""


class SlurmScheduler(Scheduler):
    """Scheduler for Slurm jobs.

    Jobs are submitted by sbatch, a recipe's script, llmb-run or a shared allocation.
    """

    name = "Slurm"
    program = SBATCH
    gpu_inquiry = "sinfo -o '%P %a %D %G'"
    jobs_inquiry = "squeue --me"
    configuration_variables = ("SLURM_CONF",)
    cluster_variables = sbatch.VARIABLES

    # methods that need no cluster are functions of other modules
    runs_in_recipe = staticmethod(sbatch.runs_in_recipe)
    list_variables = staticmethod(sbatch.list_variables)
    drop_misread_variables = staticmethod(sbatch.drop_misread_variables)
    complete_command = staticmethod(sbatch.complete_command)
    list_options = staticmethod(sbatch.list_cluster_options)
    pin_nodes = staticmethod(sbatch.pin_nodes)
    is_pinned = staticmethod(sbatch.is_pinned)
    build_node_check = staticmethod(sbatch.build_node_check)
    format_cancel = staticmethod(sbatch.format_cancel)
    format_inquiry = staticmethod(sbatch.format_inquiry)
    format_on_node = staticmethod(sbatch.format_on_node)
    find_output = staticmethod(sbatch.find_output)
    read_submissions = staticmethod(sbatch.read_submissions)
    expand_nodes = staticmethod(client.expand_hosts)
    check_script = staticmethod(slurm_checks.check_script)
    find_phase = staticmethod(client.find_phase)
    explain_end = staticmethod(client.explain_end)
    explain_stuck = staticmethod(client.explain_stuck)
    explain_unavailable = staticmethod(client.explain_unavailable)
    is_refused = staticmethod(client.is_refused)

    def __init__(
        self,
        tools: Tools,
        slurm: Slurm | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(tools)
        self._slurm = slurm or Slurm(tools.run, tools.environment)
        self._clock = clock
        # whether `llmb-run submit` exists, by (program, PATH)
        self._has_submit: dict[tuple[str, str], bool] = {}
        # when the end of a run in an allocation was first seen, by job number
        self._first_seen_ended: dict[int, float] = {}

    # --- the cluster ------------------------------------------------------------------

    def check_jobs(
        self, jobs: Sequence[PlannedJob], cluster: Cluster
    ) -> Iterator[tuple[PlannedJob, JobProblem]]:
        """Yield jobs that Slurm would refuse or never start, with the problem.

        Slurm is queried once for all jobs.
        """
        return slurm_checks.check_slurm(jobs, cluster, self._slurm)

    def learn_cluster(self, gpu: str = "") -> LearnedCluster | None:
        """Describe the cluster from Slurm, or return None if it has no GPUs."""
        return learn_cluster(self._slurm, gpu)

    def adapt_command(self, spec: JobSpec) -> JobSpec:
        """Replace `llmb-run single` by `llmb-run submit` if that is installed.

        llmb-run 25.12 deprecates `single`, and 26.06.01 removed it. Both subcommands
        take the same options.
        """
        if spec.via != "llmb-run" or spec.command[1:2] != ("single",):
            return spec
        program, _, *options = spec.command
        environment = dict(spec.environment)
        key = (program, environment.get("PATH", ""))
        if key not in self._has_submit:
            done = self._tools.run(
                (program, "submit", "--help"), timeout=60.0, environment=environment
            )
            self._has_submit[key] = done.code == 0
        subcommand = "submit" if self._has_submit[key] else "single"
        return replace(spec, command=(program, subcommand, *options))

    def find_cluster_name(self) -> str:
        """Return the name of the Slurm cluster."""
        return self._slurm.find_cluster_name()

    def list_node_remarks(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Return the reasons that `sinfo -R` reports, by node name."""
        reasons = self._slurm.list_node_reasons(nodes)
        return {node: f"sinfo -R: {node}: {text}" for node, text in reasons.items()}

    def plan_allocation(self, jobs: Sequence[PlannedJob], runs: int) -> AllocationPlan:
        """Plan a shared allocation for at most `runs` runs of these variants.

        The first job is the reference. The plan contains a reason if there is no
        allocation.
        """
        return plan_allocation(jobs, runs, self._slurm)

    # --- job states -------------------------------------------------------------------

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Return the status of each job, by number, with one query for all jobs."""
        # read the markers before Slurm is queried: the state of an allocation is then
        # not older than the end of a run in it
        markers_by_number = {
            job.number: allocation.read_markers(job)
            for job in jobs
            if job.spec.allocation
        }
        status_by_id = self._slurm.poll(
            {job.scheduler_id: estimate_submission(job) for job in jobs}
        )
        statuses = {}
        for job in jobs:
            # the status of a run's allocation, or of the job itself
            status = status_by_id.get(job.scheduler_id)
            if status is None:
                continue
            markers = markers_by_number.get(job.number)
            if markers is not None:
                status = self._describe_run(job, markers, status)
            statuses[job.number] = status
        return statuses

    def _describe_run(
        self, job: Job, markers: allocation.RunMarkers, status: JobStatus
    ) -> JobStatus:
        """Return the status of a run; `status` is that of its allocation."""
        return allocation.describe_run(
            job, markers, status, self._slurm, settled=self._is_settled(job, markers)
        )

    def _is_settled(self, job: Job, markers: allocation.RunMarkers) -> bool:
        """True if accounting has all steps of a run in an allocation.

        Assumed ACCOUNTING_LAG seconds after the end of the run was first seen.
        """
        if markers.ended is None:
            return False
        now = self._clock()
        first_seen = self._first_seen_ended.setdefault(job.number, now)
        return now - first_seen >= ACCOUNTING_LAG

    def cancel(self, jobs: Sequence[Job]) -> str:
        """Cancel all jobs with one scancel. Cancelling a run cancels its allocation."""
        job_ids = dict.fromkeys(job.scheduler_id for job in jobs)
        return self._slurm.cancel(list(job_ids))

    # --- submission -------------------------------------------------------------------

    def submit(self, job: Job) -> Submission:
        """Queue a run in its allocation, or run the submission command of a job."""
        if job.spec.allocation:
            return allocation.submit_run(job, self._tools.records)
        try:
            environment = _prepare_submission(job)
        except LaunchError as error:
            raise SubmitError(f"{job.spec.case_id}: {error}") from error
        code = run_command(job, _build_arguments(job), environment, self._tools)
        return self._find_submission(job, code)

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Find the result of a submission that was begun earlier.

        Without a process in the journal the command did not run.
        """
        if job.spec.allocation:
            return allocation.recover_run(job, self._tools.records)
        code = resume_command(job, self._tools, seconds)
        if code == process.NEVER_RAN:
            return None
        try:
            return self._find_submission(job, code)
        except NotReachedError:
            return None

    def _find_submission(self, job: Job, code: int | None) -> Submission:
        """Return the job that a submission command submitted.

        `code` is the command's exit code; None if it did not end by itself. Redacts
        secrets in the output of the command. Raises SubmitError or SchedulerAway.
        """
        output = job.folder / OUTPUT
        text = hide_secrets(output, job)
        # 1. The job id in the launcher's output, which also contains the folder; else
        # in the answers of sbatch that our wrapper recorded.
        answers = sbatch.read_answers(job)
        printed = sbatch.require_single(
            _read_submissions(job, text) or answers, job, output
        )
        if printed:
            used_wrapper = printed.job_id in [answer.job_id for answer in answers]
            if not used_wrapper:
                self._require_placement(job, printed)
            return printed
        # 2. No job id was printed, but Slurm may have the job.
        if submission := self._find_by_token(job):
            return submission
        raise _explain_missing(job, code, text)

    def _find_by_token(self, job: Job) -> Submission | None:
        """Find the Slurm job with the token of this job."""
        if not _has_token(job):
            return None
        try:
            job_ids = self._slurm.find([job.token], estimate_submission(job))
        except SchedulerAway:
            raise
        except LaunchError as error:  # two jobs have the token
            raise SubmitError(f"{job.spec.case_id}: {error}", uncertain=True) from error
        job_id = job_ids.get(job.token)
        return Submission(job_id) if job_id else None

    def _require_placement(self, job: Job, submission: Submission) -> None:
        """Cancel a job that was submitted without its placement options.

        Placement options determine the nodes and the account of a job. They are missing
        if a launcher bypasses the wrapper of sbatch, which adds them. Raises
        SubmitError if they are missing.
        """
        placement = sbatch.list_placement(job.spec)
        if _calls_sbatch(job) or not placement:
            return
        # the wrapper of sbatch passes the token together with the placement options
        if self._find_by_token(job) == Submission(submission.job_id):
            return
        problem = self._slurm.cancel([submission.job_id])
        state = f"it may still run ({problem})" if problem else "it was cancelled"
        raise SubmitError(
            f"{job.spec.case_id}: {job.spec.command[0]} submitted job {submission.job_id} with another sbatch than the "
            f"first on its PATH, so that {' '.join(placement)} did not reach Slurm: {state}. Choose a launcher that "
            "calls sbatch by its name (--llmb-launcher)",
            uncertain=bool(problem),
        )


def _calls_sbatch(job: Job) -> bool:
    """True if a job's command is sbatch, not a script that calls sbatch."""
    return job.spec.via == SBATCH


def _has_token(job: Job) -> bool:
    """True if the Slurm comment of a submitted job contains its token."""
    return _calls_sbatch(job) or sbatch.is_wrapped(job)


def _build_arguments(job: Job) -> tuple[str, ...]:
    """Return the command of a job.

    Our options come first in an sbatch command, so that they override none of its
    options.
    """
    if not _calls_sbatch(job):
        return job.spec.command
    program, *words = job.spec.command
    if job.spec.purpose is Purpose.ALLOCATION:
        # the batch script of the allocation replaces the script of the recipe
        *words, _script = words
        output = job.folder.absolute() / allocation.HELD
        holder = allocation.find_holder(job)
        words += [f"--output={output}", f"--error={output}", str(holder)]
    return (program, *sbatch.list_job_options(job), *words)


def _prepare_submission(job: Job) -> Mapping[str, str]:
    """Write the files that a job's command needs, and return its environment.

    For a launcher that calls sbatch itself, the PATH begins with the folder of our
    wrapper of sbatch. Raises LaunchError.
    """
    try:
        if job.spec.purpose is Purpose.ALLOCATION:
            allocation.write_holder(job)
        if _calls_sbatch(job):
            return dict(job.spec.environment)
        environment = sbatch.install_wrapper(job)
    except OSError as error:
        raise LaunchError(f"{error.filename}: {error.strerror}") from error
    placement = sbatch.list_placement(job.spec)
    if placement and not sbatch.is_wrapped(job):
        options = " ".join(placement)
        raise LaunchError(
            f"no sbatch on the PATH of {job.spec.command[0]}, so {options} cannot be passed to Slurm"
        )
    return environment


def _read_submissions(job: Job, text: str) -> Sequence[Submission]:
    """Find the submitted jobs in the output of a job's submission command.

    Uses the pattern of the recipe's document if there is one.
    """
    if job.spec.job_id:
        return read_pattern(job.spec.job_id, text)
    return sbatch.read_submissions(job.spec.via, text)


def _explain_missing(job: Job, code: int | None, text: str) -> LaunchError:
    """Return the error of a submission that printed no job id.

    The error is uncertain if a job may have been submitted.
    """
    output = job.folder / OUTPUT
    doubtful = sbatch.DOUBTFUL.search(text) is not None
    refusal = describe_refusal(job, code, text, output, sbatch.find_remedy(text))
    if sbatch.NOT_REACHED.search(text):
        # sbatch submits one job, and Slurm has no job with its token either
        if _calls_sbatch(job) and code and not doubtful:
            return NotReachedError(refusal)
        doubtful = True  # a launcher may have retried
    ended_well = code == 0 and not sbatch.is_refused(text)
    was_killed = code is None or code > KILLED
    if was_killed or doubtful or ended_well:
        inquiry, mark = "squeue --me -t all -o '%i %T %j %V'", ""
        if _has_token(job):
            inquiry = "squeue --me -t all -o '%i %T %j %k'"
            mark = f" (its comment would be llmb:{job.token})"
        return SubmitError(
            describe_doubt(job, output, inquiry, mark=mark, text=text), uncertain=True
        )
    return SubmitError(refusal)
