"""What a scheduler knows and does; everything else of a launch works on the records
that pass here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

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
    """What runs jobs, found by the way in which a job is submitted (`SCHEDULERS` of
    core/job_records.py).

    A scheduler overrides what it has to say. Class methods need no cluster, and are
    asked of the class.
    """

    name: ClassVar[str]  # for messages
    program: ClassVar[str] = (
        ""  # that submits jobs; the way to submit by it has the same name
    )
    here: ClassVar[bool] = (
        False  # its jobs run on this machine, and their logs lie in their own folders
    )
    # variables that its commands read, and that its jobs get from the caller
    configuration_variables: ClassVar[tuple[str, ...]] = ()
    device_variables: ClassVar[
        tuple[str, ...]
    ] = ()  # with the GPUs that the caller may use
    gpu_inquiry: ClassVar[str] = ""  # the command that shows which GPUs it has
    jobs_inquiry: ClassVar[str] = ""  # the command that lists the jobs of a user
    # by key of a cluster file (account, partition, gres, time_limit) the variables in
    # which documents want it
    cluster_variables: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    at_once: ClassVar[int | None] = None  # so many jobs at a time; None: any number

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    # --- how a job is described -------------------------------------------------------

    @classmethod
    def find_via(cls, program: str) -> str:
        """Return the way in which a program submits a job; "" if it does not."""
        return program if program == cls.program else ""

    @classmethod
    def runs_in_recipe(cls, via: str) -> bool:
        """Return True if a command runs in the folder of its recipe, False if its
        launcher has its own."""
        return True

    @classmethod
    def list_variables(cls, via: str) -> dict[str, str]:
        """Return the variables that a launcher needs."""
        return {}

    @classmethod
    def drop_misread_variables(cls, variables: dict[str, str]) -> dict[str, str]:
        """Return variables of the caller without those that the scheduler would
        misread."""
        return variables

    @classmethod
    def complete_command(
        cls, via: str, words: Sequence[str], cluster: Cluster
    ) -> tuple[str, ...]:
        """Return a command with what the cluster file adds to it."""
        return tuple(words)

    @classmethod
    def list_options(cls, via: str, cluster: Cluster) -> tuple[str, ...]:
        """Return the options of a job besides its command; LaunchError if the cluster
        file asks for the impossible."""
        return ()

    @classmethod
    def pin_nodes(cls, spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
        """Return a job that gets exactly these nodes."""
        return spec

    @classmethod
    def is_pinned(cls, spec: JobSpec) -> bool:
        """Return True if a job can get no other nodes than those that it names."""
        return True

    @classmethod
    def expand_nodes(cls, expression: str) -> tuple[str, ...]:
        """Return the names in a list of nodes as the scheduler writes it."""
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
        """Return a job that runs a command once on each of these nodes; `{job}` in
        `output` is its id."""
        return replace(spec, command=("bash", "-c", command))

    @classmethod
    def check_script(
        cls, planned: PlannedJob, machine: LocalMachine
    ) -> Iterator[JobProblem]:
        """Yield what the folder of a job lacks for its launcher."""
        return iter(())

    @classmethod
    def format_on_node(cls, command: str, environment: Mapping[str, str]) -> str:
        """Return the shell command that runs another one on a node."""
        return command

    @classmethod
    def read_submissions(cls, via: str, text: str) -> Sequence[Submission]:
        """Return the jobs in what a submission command printed."""
        return ()

    @classmethod
    def find_output(cls, job: Job) -> Path:
        """Return where the output of a job lies if its command says nothing else."""
        return job.folder

    @classmethod
    def find_log(cls, job: Job) -> Path | None:
        """Return the log of a job if it is known before its submission. Raises
        SubmitError."""
        return None

    # --- what it says of a job --------------------------------------------------------

    @classmethod
    def find_phase(cls, state: str) -> Phase:
        """Return the phase of a state; UNKNOWN for a word that is not one of its
        states."""
        return PHASES.get(state, Phase.UNKNOWN)

    @classmethod
    def explain_end(cls, status: JobStatus) -> JobEnd:
        """Return how a job ended, and whose failure it is."""
        return explain_by_state(status, cls.name, refused=cls.is_refused(status))

    @classmethod
    def explain_stuck(cls, status: JobStatus) -> str:
        """Return why a waiting job never starts by itself and what to do; "" if it may
        start."""
        return ""

    @classmethod
    def explain_unavailable(cls, status: JobStatus, *, reserved: bool = True) -> str:
        """Return that the nodes which a job names are out of service, with `reserved`
        also reserved; "" if not."""
        return ""

    @classmethod
    def is_refused(cls, status: JobStatus) -> bool:
        """Return True if a job failed because it asked for what no node has."""
        return False

    @classmethod
    def format_cancel(cls, job_ids: Sequence[str]) -> str:
        """Return the command that ends jobs; "" if there is none."""
        return ""

    @classmethod
    def format_inquiry(cls, job_id: str) -> str:
        """Return the command that shows what is known of a job; "" if there is none."""
        return ""

    # --- the cluster ------------------------------------------------------------------

    def check_jobs(
        self, jobs: Sequence[PlannedJob], cluster: Cluster
    ) -> Iterator[tuple[PlannedJob, JobProblem]]:
        """Yield what the scheduler would refuse, or never start; it is asked once for
        all jobs."""
        return iter(())

    def learn_cluster(self, gpu: str = "") -> LearnedCluster | None:
        """Return the cluster with the most GPUs, of type `gpu` if given; None without
        GPUs. Raises SchedulerAway."""
        return None

    def adapt_command(self, spec: JobSpec) -> JobSpec:
        """Return a job as the launcher that is installed here takes its command."""
        return spec

    def find_cluster_name(self) -> str:
        """Return the name of the cluster, "" if unknown. Raises SchedulerAway."""
        return ""

    def list_node_remarks(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Return what is known of nodes that are out of service, by name, with the
        source: `sinfo -R: n1: ECC errors`. Raises SchedulerAway."""
        return {}

    def plan_allocation(self, jobs: Sequence[PlannedJob], runs: int) -> AllocationPlan:
        """Return the allocation for at most `runs` of these variants, the reference
        first, or why there is none."""
        return AllocationPlan()

    # --- jobs -------------------------------------------------------------------------

    @abstractmethod
    def submit(self, job: Job) -> Submission:
        """Submit a job and wait for the end of its submission.

        SubmitError: it was refused, or that is unknown (`uncertain`). SchedulerAway: it
        was not submitted, or `recover` has to find out when the scheduler answers
        again.
        """

    @abstractmethod
    def recover(self, job: Job, seconds: float = SUBMIT_SECONDS) -> Submission | None:
        """Return what became of a submission that was begun before; None: it is certain
        that nothing was submitted.

        One that still runs gets `seconds` to end. Errors as for `submit`.
        """

    @abstractmethod
    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        """Return what is known of each job, by number; SchedulerAway if nobody
        answers."""

    @abstractmethod
    def cancel(self, jobs: Sequence[Job]) -> str:
        """Cancel jobs that were submitted; return what went wrong, or ""."""
