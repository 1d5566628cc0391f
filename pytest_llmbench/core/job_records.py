"""Records of launches: launch commands, the cluster, jobs and their states."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import astuple, replace

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pytest_llmbench.core.baseline_records import Key
    from pytest_llmbench.core.stall_limits import Stall

Pairs = tuple[tuple[str, str], ...]
"""Ordered names with values."""

_SLURM = "pytest_llmbench.launch.schedulers.slurm.slurm_scheduler:SlurmScheduler"
SCHEDULERS = {
    "sbatch": _SLURM,
    "script": _SLURM,
    "llmb-run": _SLURM,
    "local": "pytest_llmbench.launch.schedulers.local:LocalScheduler",
    "allocation": _SLURM,
}
"""Scheduler class of a job, by the method of submission (`via`)."""

JOB_VARIABLES = ("SLURM_JOB_ID",)
"""Environment variables that schedulers set in jobs.

A process with one of them was started by a scheduler, not by this program.
"""

LAUNCHERS = tuple(via for via in SCHEDULERS if via != "allocation")
"""The methods that a launch command in a baseline file may use.

Only an A/B or a bisection runs jobs in an allocation.
"""


class Purpose(StrEnum):
    """The purpose of a job; only MEASURE is judged for speed."""

    MEASURE = "measure"
    PROFILE = "profile"
    NCCL_TRACE = "nccl-trace"
    SAVE_CHECKPOINT = "checkpoint-save"
    LOAD_CHECKPOINT = "checkpoint-load"
    COMPARE_VARIANTS = "ab"  # a run of an A/B
    BISECT = "bisect"  # a run of a bisection over builds
    CONFIRM_NODES = "node-confirmation"  # another run on nodes that may be slow
    CHECK_NODES = "node-check"  # the site's command (--llmb-node-checks) on such nodes
    ALLOCATION = "allocation"  # reserves nodes for the runs of an A/B or a bisection


PURPOSE_FLAGS = {
    Purpose.PROFILE: "--llmb-profile",
    Purpose.NCCL_TRACE: "--llmb-nccl-trace",
    Purpose.SAVE_CHECKPOINT: "--llmb-save-checkpoint",
    Purpose.LOAD_CHECKPOINT: "--llmb-load-checkpoint",
    Purpose.COMPARE_VARIANTS: "--llmb-ab",
    Purpose.BISECT: "--llmb-bisect",
}
"""The option for each purpose."""


class PreflightCheck(StrEnum):
    """A check before a launch, by the name in messages and in --llmb-ignore."""

    VARIABLES = "variables"
    TOKEN = "token"
    FORBIDDEN_VARIABLES = "forbidden-variables"
    STAGE_FOLDER = "stage-folder"
    SCRIPT = "script"
    IMAGE = "image"
    PROGRAMS = "programs"
    VIRTUAL_ENVIRONMENT = "virtual-environment"
    PYTHON_VERSION = "python-version"
    PYTHON_MODULES = "python-modules"
    CHECKPOINT = "checkpoint"
    DISK_SPACE = "disk-space"
    SCHEDULER = "slurm"  # that the scheduler answers; it may be another than Slurm
    ACCOUNT = "account"
    PARTITION = "partition"
    NODES = "nodes"
    TIME_LIMIT = "time-limit"
    GPUS = "gpus"


NEVER_IGNORED = {
    PreflightCheck.TOKEN: "the recipe may need this secret; if it does not, set the variable to any text",
    PreflightCheck.FORBIDDEN_VARIABLES: "a forbidden variable makes the recipe run another workload, which could be taken for this one",
    PreflightCheck.SCHEDULER: "while Slurm does not answer, submitted jobs cannot be seen, and a job could start twice",
}
"""The checks that cannot be ignored, with the reason."""

TRIALS = (Purpose.COMPARE_VARIANTS, Purpose.BISECT)
"""Purposes of jobs whose result decides which run follows."""

BESIDE = (Purpose.CONFIRM_NODES, Purpose.CHECK_NODES)
"""Purposes of jobs that run alongside the others: no verdict waits for them."""

STEPLESS = (Purpose.CHECK_NODES, Purpose.ALLOCATION)
"""Purposes of jobs that have a time limit but no training steps."""


class Phase(StrEnum):
    """The phase of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    # not known to the scheduler (yet, or any longer); the job need not have failed
    UNKNOWN = "unknown"


class Blame(StrEnum):
    """The cause of a job's end."""

    NONE = "none"  # it ended well
    INFRASTRUCTURE = "infrastructure"
    RUN = "run"
    CANCELLED = "cancelled"  # by a user
    # for an unknown cause: software and a broken fabric may both deadlock
    HUNG = "hung"


class SubmissionState(StrEnum):
    """The state of a job's submission."""

    INTENDED = "intended"
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not-submitted"
    UNCERTAIN = "uncertain"  # unknown; it may run, so it is not submitted again
    UNAFFORDABLE = "unaffordable"  # the GPU-hours of the session are used up
    SUPERSEDED = "superseded"  # it failed, and another job of the session replaced it
    # it was stopped before its submission; a resumed session submits it
    STOPPED = "stopped"


# Jobs in these states are planned again when a session is resumed.
NEVER_MADE = (
    SubmissionState.SUPERSEDED,
    SubmissionState.UNAFFORDABLE,
    SubmissionState.STOPPED,
)


class Loss(StrEnum):
    """The reason GPU-hours of a job were wasted."""

    FAILED = "failed"  # the job was restarted, or its run could not be judged
    HUNG = "hung"  # as FAILED, because the job hung
    REQUEUED = "requeued"  # the scheduler requeued the job, and it started again


class EndedBy(StrEnum):
    """The party that ended a job."""

    OTHERS = "others"  # the job itself, the scheduler or a user, see its state
    PYTEST = "pytest"  # this program cancelled it or stopped waiting for it


# --- how a recipe is launched (from the baseline file) --------------------------------


class Command(Struct, frozen=True):
    """One way to launch a recipe."""

    name: str
    via: str  # one of LAUNCHERS
    command: str  # a template with {placeholders} and $VARIABLES
    folder: str = ""  # a template; "" for the recipe's folder
    fixed: Pairs = ()  # variables of this command
    # a regular expression for its output with a group `job` (optionally `folder`); ""
    # for the default of `via`
    job_id: str = ""
    # the message if a configuration defines no {arguments} for this command
    otherwise: str = ""


class Profiling(Struct, frozen=True):
    """The variables that control profiling; "" if the recipe has no such variable."""

    enable: Pairs  # the variables that enable profiling, with values
    # names of variables
    start: str = ""  # the first profiled step
    stop: str = ""
    ranks: str = ""
    gpu_metrics: str = ""
    cpu: str = ""
    default_start: int = 0  # from the document; 0: not stated
    default_stop: int = 0


class Checkpointing(Struct, frozen=True):
    """The variables for saving and loading checkpoints."""

    save: Pairs  # variables, whose values may contain {checkpoint}
    load: Pairs
    size_bytes: tuple[tuple[str, int], ...] = ()  # on disk, by model size
    # by model size the smallest and largest number of GPUs (None: no limit)
    save_gpus: tuple[tuple[str, tuple[int, int | None]], ...] = ()
    load_gpus: tuple[tuple[str, tuple[int, int | None]], ...] = ()


class LaunchFacts(Struct, frozen=True):
    """The launch instructions of one recipe in one release, from its document."""

    recipe: str
    release: str
    kind: str  # the name of the default command
    commands: tuple[Command, ...]
    gpus_per_node: tuple[tuple[str, int], ...]
    # the arguments of each configuration, by the name of the command
    arguments: tuple[tuple[Key, Pairs], ...] = ()
    gsw_version: str = ""
    required: Pairs = ()  # environment variables with their meaning
    optional: Pairs = ()
    forbidden: Pairs = ()
    log: str = ""  # a template
    setup: str = ""
    image: str = ""
    image_source: str = ""
    needs_token: bool = False
    python: str = ""
    modules: tuple[str, ...] = ()  # required Python modules for runs on this machine
    virtual_environment: bool = False
    profiling: Profiling | None = None
    nccl_trace: Pairs = ()
    # the number of steps by purpose, if it differs from that of a measured run
    short_runs: tuple[tuple[str, int], ...] = ()
    checkpoint: Checkpointing | None = None
    file: Path | None = None


# --- the cluster (from cluster.yaml and options) --------------------------------------


class InstalledRecipe(Struct, frozen=True):
    """A recipe installed on this cluster; empty fields default to the cluster's."""

    recipe: str
    release: str
    folder: Path | None = None  # of its launch.sh
    launcher: str = ""
    environment: Pairs = ()
    virtual_environment: Path | None = None


class Cluster(Struct, frozen=True):
    """The description of this cluster. Empty text, None or 0 means unknown."""

    name: str = ""
    gpu: str = ""
    gpus_per_node: int = 0
    largest: int = 0
    gpu_hours: float | None = None  # the limit of one session
    launcher: str = ""
    account: str = ""
    partition: str = ""
    gres: str = ""
    time_limit: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    segment: int = 0  # nodes per block, in a network of blocks
    nodelist: str = ""
    exclude: tuple[str, ...] = ()
    # variables of every job with their values; may include secrets, so never print them
    environment: Pairs = ()
    secrets: tuple[str, ...] = ()  # names of further variables with secret values
    installed: tuple[InstalledRecipe, ...] = ()
    source: Path | None = None  # the file it was read from


# --- jobs -----------------------------------------------------------------------------


class JobSpec(Struct, frozen=True):
    """A complete description of one job.

    The job's environment is `environment` alone; the caller's variables are not added.
    """

    case_id: str  # the id of the configuration
    key: Key
    purpose: Purpose
    via: str  # a key of SCHEDULERS; "allocation": in an existing allocation
    command: tuple[str, ...]  # an argument list
    directory: Path
    environment: Pairs
    secrets: tuple[str, ...]  # the names of variables whose values are never shown
    nodes: int
    gpus: int
    gpu_hours: float  # estimated for its steps and all GPUs that it occupies
    # on the nodes that it gets exclusively; 0 for a job on this machine
    gpus_per_node: int = 0
    # the folders that may contain its log; a folder printed by the launcher comes first
    log_folders: tuple[Path, ...] = ()
    experiment: str = ""  # the name of its files
    exclude: tuple[str, ...] = ()  # nodes that it must not get
    # additional options for the scheduler: time limit, qos, nodes
    scheduler_options: tuple[str, ...] = ()
    job_id: str = ""  # the regular expression of the command
    variant: str = ""  # the name of its variant or build, in an A/B or a bisection
    # a command that must succeed in `checkout` before the submission
    build: tuple[str, ...] = ()
    checkout: Path | None = None  # of the commit that is run
    # the number of the configuration's allocation, from 1; 0: a separate job
    allocation: int = 0
    warm_up: bool = False  # the run is not used in any estimate
    # digests of secrets, by which the journal detects a changed value
    digests: Pairs = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobSpec) and self._key_values == other._key_values

    def __hash__(self) -> int:
        return hash(self._key_values)

    @property
    def _key_values(self) -> tuple[Any, ...]:
        """The values that distinguish two jobs: all but the digests."""
        return astuple(replace(self, digests=()))

    @property
    def occupied_gpus(self) -> int:
        """The GPUs that the job blocks: all GPUs of its nodes, which it gets
        exclusively."""
        return max(self.gpus, self.nodes * self.gpus_per_node)


class JobStatus(Struct, frozen=True):
    """The known state of a job."""

    phase: Phase
    state: str  # COMPLETED, CANCELLED, ...: launch/schedulers/job_states.py
    reason: str = ""  # for waiting, or for being ended by PYTEST
    nodes: tuple[str, ...] = ()
    exit_code: str = ""  # such as `7:0`; "": unknown
    derived_exit_code: str = ""
    elapsed_seconds: float | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    cancelled_by: str = ""  # the uid in Slurm's `CANCELLED by`
    restarts: int = 0  # the number of requeues
    earlier_seconds: tuple[float, ...] = ()  # durations of the earlier starts, if known
    seen_by: str = ""  # the command that reported the state, or `process`
    ended_by: EndedBy = EndedBy.OTHERS
    limit_seconds: float | None = None  # the time limit; None: unlimited or unknown
    stall: Stall | None = None  # set if the job hangs, or hung when it ended


JobIdentity = tuple[str, str, int, int]
"""Configuration, purpose, attempt and repeat, which identify a job in a session."""


class Job(Struct, frozen=True):
    """A job of the journal."""

    number: int  # unique in its folder
    token: str  # identifies the job in its scheduler
    spec: JobSpec
    folder: Path  # the job's folder in `.llmbench/`
    attempt: int = 1  # from 1, increased by a restart after an infrastructure failure
    repeat: int = 1  # from 1, among the runs for one verdict
    job_id: str = ""
    log_folder: Path | None = None  # as printed by the launcher
    status: JobStatus | None = None
    problem: str = ""  # the reason for which it was not submitted
    submission: SubmissionState = SubmissionState.INTENDED

    @property
    def identity(self) -> JobIdentity:
        """The values that identify the job in its session."""
        return self.spec.case_id, self.spec.purpose.value, self.attempt, self.repeat

    @property
    def scheduler_id(self) -> str:
        """The id of the job in the scheduler.

        For a run in an allocation this is the id of the allocation: `4711` for
        `4711-2`.
        """
        if not self.spec.allocation:
            return self.job_id
        allocation_id, _, _ = self.job_id.rpartition("-")
        return allocation_id

    @property
    def refused(self) -> bool:
        """True if the job was not submitted, or if its submission is uncertain.

        Such a job has no id and will not get one.
        """
        may_have_id = (SubmissionState.INTENDED, SubmissionState.SUBMITTED)
        return self.submission not in may_have_id


class JobEnd(Struct, frozen=True):
    """The end of a job: its cause, and a text for messages."""

    blame: Blame
    text: str = ""  # "" for a job that succeeded


class Resumption(Struct, frozen=True):
    """The command to resume a session that only collected."""

    command: str  # a complete shell command
    # True if it would start a repeat or an unsubmitted job of this configuration
    due: bool
    secrets: tuple[str, ...] = ()  # the names of the variables that the command needs


class JobCost(Struct, frozen=True):
    """GPU-hours of a job: the GPUs of its nodes x the time it held them."""

    estimated: float = 0.0  # for its steps, before its submission
    used: float = 0.0  # by all its starts, if known
    requeued: float = 0.0  # the part of `used` by starts before a requeue
    exact: bool = True  # False: it may have used more
    loss: Loss | None = None  # the reason for which its last start was wasted


class PlannedHours(Struct, frozen=True):
    """GPU-hours estimated before the first job of a session is submitted."""

    estimated: float  # for the steps of the runs that are always made
    most: float  # with all repeats and restarts that the settings allow
    limit: float  # of the session


class LaunchedJob(Struct, frozen=True):
    """One job of a verdict, as shown in reports."""

    job_id: str
    purpose: Purpose
    attempt: int
    repeat: int
    state: str
    nodes: tuple[str, ...] = ()
    step_seconds: float | None = None
    text: str = ""
    files: tuple[Path, ...] = ()
    submission: SubmissionState = SubmissionState.SUBMITTED
    ended_by: EndedBy = EndedBy.OTHERS
    started: datetime | None = None  # None: it never ran, or its start is unknown
    cost: JobCost = JobCost()
