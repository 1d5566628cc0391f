"""Slurm as a scheduler. Whatever became of a submission, it is tried again only if
certainly no job came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

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

ACCOUNTING_LAG = 5.0  # seconds after which slurmdbd has the steps of a run that ended


class NotReachedError(SchedulerAway):
    """A submission that did not reach Slurm: nothing was submitted."""


class SlurmScheduler(Scheduler):
    """Jobs that Slurm runs, whatever submits them: sbatch, a recipe's script, llmb-run,
    or an allocation."""

    name = "Slurm"
    program = SBATCH
    gpu_inquiry = "sinfo -o '%P %a %D %G'"
    jobs_inquiry = "squeue --me"
    configuration_variables = ("SLURM_CONF",)
    cluster_variables = sbatch.VARIABLES

    # what needs no cluster stands in modules of functions
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
        self._submits: dict[
            tuple[str, str], bool
        ] = {}  # by llmb-run and the PATH that it is found on
        self._ended: dict[
            int, float
        ] = {}  # when the end of each run in an allocation was first seen, by its number

    # --- the cluster ------------------------------------------------------------------

    def check_jobs(
        self, jobs: Sequence[PlannedJob], cluster: Cluster
    ) -> Iterator[tuple[PlannedJob, JobProblem]]:
        """Yield what Slurm would refuse, or keep in its queue for ever; it is asked
        once for all jobs."""
        return slurm_checks.check_slurm(jobs, cluster, self._slurm)

    def learn_cluster(self, gpu: str = "") -> LearnedCluster | None:
        """Return the cluster that Slurm has GPUs in; None if it has none."""
        return learn_cluster(self._slurm, gpu)

    def adapt_command(self, spec: JobSpec) -> JobSpec:
        """Return a job with `llmb-run submit` for the `single` of its document where
        that is installed: 25.12 calls `single` deprecated, and 26.06.01 does not have
        it. Both take the same options."""
        if spec.via != "llmb-run" or spec.command[1:2] != ("single",):
            return spec
        program, _, *options = spec.command
        environment = dict(spec.environment)
        known = (program, environment.get("PATH", ""))
        if known not in self._submits:
            done = self._tools.run(
                (program, "submit", "--help"), timeout=60.0, environment=environment
            )
            self._submits[known] = done.code == 0
        subcommand = "submit" if self._submits[known] else "single"
        return replace(spec, command=(program, subcommand, *options))

    def find_cluster_name(self) -> str:
        """Return what Slurm calls the cluster."""
        return self._slurm.find_cluster_name()

    def list_node_remarks(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Return why nodes are out of service, as `sinfo -R` shows it."""
        reasons = self._slurm.list_node_reasons(nodes)
        return {node: f"sinfo -R: {node}: {text}" for node, text in reasons.items()}

    def plan_allocation(self, jobs: Sequence[PlannedJob], runs: int) -> AllocationPlan:
        """Return the allocation for at most `runs` of these variants, the reference
        first, or why there is none."""
        return plan_allocation(jobs, runs, self._slurm)

    # --- what became of jobs ----------------------------------------------------------

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Ask Slurm for all jobs at once; one that it does not mention is unknown."""
        # before Slurm: what it says of an allocation is then not older than the end of
        # a run in it
        marks = {
            job.number: allocation.read_markers(job)
            for job in jobs
            if job.spec.allocation
        }
        by_id = self._slurm.poll(
            {job.scheduler_id: estimate_submission(job) for job in jobs}
        )
        answers = {
            job.number: by_id[job.scheduler_id]
            for job in jobs
            if job.scheduler_id in by_id
        }
        held = [job for job in jobs if job.number in marks and job.number in answers]
        return answers | {
            job.number: self._describe_held(job, marks[job.number], answers[job.number])
            for job in held
        }

    def _describe_held(
        self, job: Job, marks: allocation.RunMarkers, status: JobStatus
    ) -> JobStatus:
        return allocation.describe_run(
            job, marks, status, self._slurm, settled=self._is_settled(job, marks)
        )

    def _is_settled(self, job: Job, marks: allocation.RunMarkers) -> bool:
        """Return True if a run in an allocation ended so long ago that accounting has
        all its steps."""
        if marks.ended is None:
            return False
        now = self._clock()
        return now - self._ended.setdefault(job.number, now) >= ACCOUNTING_LAG

    def cancel(self, jobs: Sequence[Job]) -> str:
        """Cancel all jobs with one scancel; a run in an allocation ends with that."""
        return self._slurm.cancel(list(dict.fromkeys(job.scheduler_id for job in jobs)))

    # --- submitting -------------------------------------------------------------------

    def submit(self, job: Job) -> Submission:
        """Leave a run to its allocation, or run the submission command of a job to its
        end."""
        if job.spec.allocation:
            return allocation.submit_run(job, self._tools.records)
        try:
            environment = _prepare(job)
        except LaunchError as error:
            raise SubmitError(f"{job.spec.case_id}: {error}") from error
        code = run_command(job, _build_arguments(job), environment, self._tools)
        return self._conclude(job, code)

    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Find out what became of a submission; without a process in the journal its
        command did not run."""
        if job.spec.allocation:
            return allocation.recover_run(job, self._tools.records)
        code = resume_command(job, self._tools, seconds)
        if code == process.NEVER_RAN:
            return None
        try:
            return self._conclude(job, code)
        except NotReachedError:
            return None

    def _conclude(self, job: Job, code: int | None) -> Submission:
        """Return the job that a submission command left, which ended with `code` (None:
        it did not by itself)."""
        output = job.folder / OUTPUT
        text = hide_secrets(output, job)
        answers = sbatch.read_answers(job)
        # what the launcher printed comes first: it names the folder, too
        printed = sbatch.require_single(_read_output(job, text) or answers, job, output)
        if printed:
            if printed.job_id not in [answer.job_id for answer in answers]:
                self._require_placed(job, printed)
            return printed
        if submission := self._find_marked(job):
            return submission
        raise _explain_missing(job, code, text)

    def _find_marked(self, job: Job) -> Submission | None:
        """Return the job that carries the token of this one."""
        if not _is_marked(job):
            return None
        try:
            job_id = self._slurm.find([job.token], estimate_submission(job)).get(
                job.token
            )
        except SchedulerAway:
            raise
        except LaunchError as error:  # two jobs carry it
            raise SubmitError(f"{job.spec.case_id}: {error}", uncertain=True) from error
        return Submission(job_id) if job_id else None

    def _require_placed(self, job: Job, submission: Submission) -> None:
        """Cancel a job that was to run on some nodes and not on others, and that was
        submitted past our own sbatch."""
        placement = sbatch.list_placement(job.spec)
        if (
            _calls_sbatch(job)
            or not placement
            or self._find_marked(job) == Submission(submission.job_id)
        ):
            return
        problem = self._slurm.cancel([submission.job_id])
        became = f"it may still run ({problem})" if problem else "it was cancelled"
        raise SubmitError(
            f"{job.spec.case_id}: {job.spec.command[0]} submitted job {submission.job_id} with another sbatch than the "
            f"first on its PATH, so that {' '.join(placement)} did not reach Slurm: {became}. Choose a launcher that "
            "calls sbatch by its name (--llmb-launcher)",
            uncertain=bool(problem),
        )


def _calls_sbatch(job: Job) -> bool:
    """Return True if the command of a job is sbatch itself, with a recipe's
    launch.sh."""
    return job.spec.via == SBATCH


def _is_marked(job: Job) -> bool:
    """Return True if the comment of the job holds its token, once it was submitted."""
    return _calls_sbatch(job) or sbatch.is_wrapped(job)


def _build_arguments(job: Job) -> tuple[str, ...]:
    """Return the command of a job; one of sbatch with our options first, where they win
    over none of its own."""
    if not _calls_sbatch(job):
        return job.spec.command
    program, *others = job.spec.command
    if job.spec.purpose is Purpose.ALLOCATION:
        held = job.folder.absolute() / allocation.HELD
        others[-1:] = [
            f"--output={held}",
            f"--error={held}",
            str(allocation.find_holder(job)),
        ]
    return (program, *sbatch.list_job_options(job), *others)


def _prepare(job: Job) -> Mapping[str, str]:
    """Write what the command of a job needs, and return its variables; our own sbatch
    is first on the PATH of a launcher."""
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
        placed = " ".join(placement)
        raise LaunchError(
            f"there is no sbatch on the PATH of {job.spec.command[0]} that could get {placed}"
        )
    return environment


def _read_output(job: Job, text: str) -> Sequence[Submission]:
    if job.spec.job_id:
        return read_pattern(job.spec.job_id, text)
    return sbatch.read_submissions(job.spec.via, text)


def _explain_missing(job: Job, code: int | None, text: str) -> LaunchError:
    """Return the error of a submission that left no job id, and whether a job may have
    come of it."""
    output = job.folder / OUTPUT
    doubtful = sbatch.DOUBTFUL.search(text) is not None
    refusal = describe_refusal(job, code, text, output, sbatch.find_remedy(text))
    if sbatch.NOT_REACHED.search(text):
        if (
            _calls_sbatch(job) and code and not doubtful
        ):  # and Slurm knows no job with this token
            return NotReachedError(refusal)
        doubtful = True
    ended_well = code == 0 and not sbatch.is_refused(text)
    if code is None or doubtful or code > KILLED or ended_well:
        look, mark = "squeue --me -t all -o '%i %T %j %V'", ""
        if _is_marked(job):
            look, mark = (
                "squeue --me -t all -o '%i %T %j %k'",
                f" (its comment would be llmb:{job.token})",
            )
        return SubmitError(
            describe_doubt(job, output, look, mark=mark, text=text), uncertain=True
        )
    return SubmitError(refusal)
