"""The interface of a scheduler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from pytest_llmbench.core.job_records import (
    Cluster,
    Job,
    JobEnd,
    JobSpec,
    JobStatus,
    Phase,
)
from pytest_llmbench.launch.plan.cluster_file import LearnedCluster
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight.problems import JobProblem, LocalMachine
from pytest_llmbench.launch.schedulers.job_states import PHASES, explain_by_state
from pytest_llmbench.launch.schedulers.shared_allocation import AllocationPlan
from pytest_llmbench.launch.schedulers.submission import (
    SUBMIT_SECONDS,
    Submission,
    Tools,
)


class Scheduler(ABC):
    """Base class of schedulers.

    `SCHEDULERS` of core/job_records.py maps a launcher to its scheduler. A subclass
    overrides the methods that it supports. Class methods need no running cluster.
    """

    name: ClassVar[str]  # for messages
    # the program that submits jobs; its launcher has the same name
    program: ClassVar[str] = ""
    # True if jobs run on this machine, with their logs in their job folders
    is_local: ClassVar[bool] = False
    # variables that configure its commands; its jobs inherit them
    configuration_variables: ClassVar[tuple[str, ...]] = ()
    # variables that select GPUs; its jobs inherit them
    device_variables: ClassVar[tuple[str, ...]] = ()
    gpu_inquiry: ClassVar[str] = ""  # the command that lists its GPUs
    jobs_inquiry: ClassVar[str] = ""  # the command that lists the jobs of a user
    # the variables that documents use for a key of a cluster file (account, partition,
    # gres, time_limit)
    cluster_variables: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    at_once: ClassVar[int | None] = None  # jobs at a time; None: any number

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    # --- job specifications -----------------------------------------------------------

    @classmethod
    def find_via(cls, program: str) -> str:
        """Return the launcher of a program, or "" if the program does not submit jobs."""
        return program if program == cls.program else ""

    @classmethod
    def runs_in_recipe(cls, via: str) -> bool:
        """True if a launcher runs in the recipe's folder, False if it has its own."""
        return True

    @classmethod
    def list_variables(cls, via: str) -> dict[str, str]:
        """Return the variables that a launcher needs."""
        return {}

    @classmethod
    def drop_misread_variables(cls, variables: dict[str, str]) -> dict[str, str]:
        """Remove variables of the caller that the scheduler would misread."""
        return variables

    @classmethod
    def complete_command(
        cls, via: str, words: Sequence[str], cluster: Cluster
    ) -> tuple[str, ...]:
        """Add the options of the cluster file to a command."""
        return tuple(words)

    @classmethod
    def list_options(cls, via: str, cluster: Cluster) -> tuple[str, ...]:
        """Return the scheduler options of a job, in addition to its command.

        Raises LaunchError if the cluster file requires something impossible.
        """
        return ()

    @classmethod
    def pin_nodes(cls, spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
        """Return a job that runs on exactly these nodes."""
        return spec

    @classmethod
    def is_pinned(cls, spec: JobSpec) -> bool:
        """True if a job can only run on the nodes that it names."""
        return True

    @classmethod
    def expand_nodes(cls, expression: str) -> tuple[str, ...]:
        """Expand a node list in the scheduler's notation to node names."""
        return tuple(filter(None, expression.split(",")))

    @classmethod
    def build_node_check(
        cls,
        command: str,
        spec: JobSpec,
        cluster: Cluster,
        nodes: Sequence[str],
        *,
        minutes: int,
        output: Path,
    ) -> JobSpec:
        """Build a job that runs a command once on each of `nodes`.

        `{job}` in `output` is replaced by the job id.
        """
        return replace(spec, command=("bash", "-c", command))

    @classmethod
    def check_script(
        cls, planned: PlannedJob, machine: LocalMachine
    ) -> Iterator[JobProblem]:
        """Yield the problems of a job's folder for its launcher."""
        return iter(())

    @classmethod
    def format_on_node(cls, command: str, environment: Mapping[str, str]) -> str:
        """Wrap a shell command so that it runs on a node."""
        return command

    @classmethod
    def read_submissions(cls, via: str, text: str) -> Sequence[Submission]:
        """Find the submitted jobs in the output of a submission command."""
        return ()

    @classmethod
    def find_output(cls, job: Job) -> Path:
        """Return the default path of a job's output."""
        return job.folder

    @classmethod
    def find_log(cls, job: Job) -> Path | None:
        """Return the log of a job if it is known before submission, else None.

        Raises SubmitError.
        """
        return None

    # --- job states -------------------------------------------------------------------

    @classmethod
    def find_phase(cls, state: str) -> Phase:
        """Return the phase of a job state; UNKNOWN for an unknown state."""
        return PHASES.get(state, Phase.UNKNOWN)

    @classmethod
    def explain_end(cls, status: JobStatus) -> JobEnd:
        """Explain how a job ended, and who is to blame."""
        return explain_by_state(status, cls.name, refused=cls.is_refused(status))

    @classmethod
    def explain_stuck(cls, status: JobStatus) -> str:
        """Return the reason a waiting job can never start, with a remedy, or ""."""
        return ""

    @classmethod
    def explain_unavailable(cls, status: JobStatus, *, reserved: bool = True) -> str:
        """Return a message if a waiting job's nodes are out of service, or "".

        With `reserved`, nodes that are only reserved count as out of service.
        """
        return ""

    @classmethod
    def is_refused(cls, status: JobStatus) -> bool:
        """True if a job failed because it requested resources that no node has."""
        return False

    @classmethod
    def format_cancel(cls, job_ids: Sequence[str]) -> str:
        """Return the command that cancels jobs, or ""."""
        return ""

    @classmethod
    def format_inquiry(cls, job_id: str) -> str:
        """Return the command that shows the state of a job, or ""."""
        return ""

    # --- the cluster ------------------------------------------------------------------

    def check_jobs(
        self, jobs: Sequence[PlannedJob], cluster: Cluster
    ) -> Iterator[tuple[PlannedJob, JobProblem]]:
        """Yield jobs that the scheduler would refuse or never start, with the problem.

        The scheduler is queried once for all jobs.
        """
        return iter(())

    def learn_cluster(self, gpu: str = "") -> LearnedCluster | None:
        """Return the cluster with the most GPUs, or None without GPUs.

        `gpu` restricts the GPU type. Raises SchedulerAway.
        """
        return None

    def adapt_command(self, spec: JobSpec) -> JobSpec:
        """Adapt the command of a job to the launcher version that is installed here."""
        return spec

    def find_cluster_name(self) -> str:
        """Return the name of the cluster, or "" if unknown. Raises SchedulerAway."""
        return ""

    def list_node_remarks(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Return remarks on nodes out of service, by node name.

        A remark names its source: `sinfo -R: n1: ECC errors`. Raises SchedulerAway.
        """
        return {}

    def plan_allocation(self, jobs: Sequence[PlannedJob], runs: int) -> AllocationPlan:
        """Plan a shared allocation for at most `runs` runs of these variants.

        The first job is the reference. The plan contains a reason if there is no
        allocation.
        """
        return AllocationPlan()

    # --- jobs -------------------------------------------------------------------------

    @abstractmethod
    def submit(self, job: Job) -> Submission:
        """Submit a job and wait until its submission ends.

        Raises SubmitError if the job was refused, or if that is unknown (`uncertain`).
        Raises SchedulerAway if the scheduler does not answer: the job was not
        submitted, or `recover` must check its submission later.
        """

    @abstractmethod
    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Find the result of a submission that was begun earlier.

        None if certainly nothing was submitted. A submission that still runs gets
        `seconds` to end. Raises the errors of `submit`.
        """

    @abstractmethod
    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Return the status of each job, by number.

        Raises SchedulerAway if the scheduler does not answer.
        """

    @abstractmethod
    def cancel(self, jobs: Sequence[Job]) -> str:
        """Cancel submitted jobs; return the problems, or ""."""
