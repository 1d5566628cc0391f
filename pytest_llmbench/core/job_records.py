"""What launching hands around: how a recipe is launched, what a job is to do, and what
became of it. Records only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pytest_llmbench.core.baseline_records import Key
    from pytest_llmbench.core.stall_limits import Stall

Pairs = tuple[tuple[str, str], ...]
"""Names with their values, in order."""

_SLURM = "pytest_llmbench.launch.schedulers.slurm.slurm_scheduler:SlurmScheduler"
SCHEDULERS = {
    "sbatch": _SLURM,
    "script": _SLURM,
    "llmb-run": _SLURM,
    "local": "pytest_llmbench.launch.schedulers.local:LocalScheduler",
    "allocation": _SLURM,
}
"""The scheduler that runs a job, by the way in which it is submitted (`via`)."""

JOB_VARIABLES = ("SLURM_JOB_ID",)
"""The variables that schedulers give their jobs; a process with one of them was not
started by this program."""

LAUNCHERS = tuple(via for via in SCHEDULERS if via != "allocation")
"""The ways that a command in a baseline file may name; runs in an allocation are made
by an A/B or a search."""


class Purpose(StrEnum):
    """What a job is started for; only the first kind is judged for speed."""

    MEASURE = "measure"
    PROFILE = "profile"
    NCCL_TRACE = "nccl-trace"
    SAVE_CHECKPOINT = "checkpoint-save"
    LOAD_CHECKPOINT = "checkpoint-load"
    COMPARE_VARIANTS = "ab"  # one of the runs of an A/B
    BISECT = "bisect"  # one of the runs of a search over builds
    CONFIRM_NODES = "node-confirmation"  # one more run on nodes that may be slow
    CHECK_NODES = "node-check"  # the site's own check of them
    ALLOCATION = "allocation"  # nodes that are held for the runs of an A/B or a search


PURPOSE_FLAGS = {
    Purpose.PROFILE: "--llmb-profile",
    Purpose.NCCL_TRACE: "--llmb-nccl-trace",
    Purpose.SAVE_CHECKPOINT: "--llmb-save-checkpoint",
    Purpose.LOAD_CHECKPOINT: "--llmb-load-checkpoint",
    Purpose.COMPARE_VARIANTS: "--llmb-ab",
    Purpose.BISECT: "--llmb-bisect",
}
"""The options that ask for a purpose."""


class PreflightCheck(StrEnum):
    """What is checked before a launch, by the names that people read and that
    --llmb-ignore takes."""

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
    SCHEDULER = "slurm"  # whether it answers, whatever its name
    ACCOUNT = "account"
    PARTITION = "partition"
    NODES = "nodes"
    TIME_LIMIT = "time-limit"
    GPUS = "gpus"


NEVER_IGNORED = {
    PreflightCheck.TOKEN: "it is about a secret; a recipe that needs none takes any text in its place",
    PreflightCheck.FORBIDDEN_VARIABLES: "what a recipe forbids makes it run something else, which could pass for it",
    PreflightCheck.SCHEDULER: "while Slurm does not answer nothing tells what was submitted, and a job could start twice",
}
"""The checks that nobody can overrule, with the reason."""

TRIALS = (Purpose.COMPARE_VARIANTS, Purpose.BISECT)
"""What jobs are for of which each run decides which one follows."""

BESIDE = (Purpose.CONFIRM_NODES, Purpose.CHECK_NODES)
"""What jobs are for that no verdict waits for."""

STEPLESS = (Purpose.CHECK_NODES, Purpose.ALLOCATION)
"""What jobs are for that make no steps of their own, and have a time limit."""


class Phase(StrEnum):
    """Where a job stands."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    # nothing knows it (yet, or any more), which does not mean that it failed
    UNKNOWN = "unknown"


class Blame(StrEnum):
    """Whose failure the end of a job is."""

    NONE = "none"  # it ended well
    INFRASTRUCTURE = "infrastructure"
    RUN = "run"
    CANCELLED = "cancelled"  # somebody stopped it
    # it stood still, and nobody knows why: new software deadlocks as a broken fabric
    # does
    HUNG = "hung"


class SubmissionState(StrEnum):
    """How far the submission of a job came."""

    INTENDED = "intended"
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not-submitted"
    UNCERTAIN = "uncertain"  # nothing tells, so it may run and is not submitted again
    UNAFFORDABLE = "unaffordable"  # the GPU-hours of its session are used up
    # it came to nothing, and another job of the session took its place
    SUPERSEDED = "superseded"
    # somebody ended it, or its build, before it was submitted: a session that goes on
    # makes it
    STOPPED = "stopped"


# a session that goes on plans these anew
NEVER_MADE = (
    SubmissionState.SUPERSEDED,
    SubmissionState.UNAFFORDABLE,
    SubmissionState.STOPPED,
)


class Loss(StrEnum):
    """Why GPU-hours of a job brought nothing."""

    # nothing of it was used: it was started again, or its run could not be judged
    FAILED = "failed"
    HUNG = "hung"  # the same, since it stood still
    REQUEUED = "requeued"  # its scheduler put it back into its queue, and it began anew


class EndedBy(StrEnum):
    """Who decided that a job is over."""

    OTHERS = "others"  # itself, its scheduler or a user, as its state says
    PYTEST = "pytest"  # this program cancelled it, or gave it up


# --- how a recipe is launched (from the baseline file) --------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """One way to launch a recipe."""

    name: str
    via: str  # one of LAUNCHERS
    command: str  # a template with {placeholders} and $VARIABLES
    folder: str = ""  # a template, too; empty: the recipe's own
    fixed: Pairs = ()  # variables of this command
    # a regular expression with a group `job` (and perhaps `folder`) over what it
    # prints, empty for that of `via`
    job_id: str = ""
    otherwise: str = (
        ""  # why it launches no configuration that states no {arguments} for it
    )


@dataclass(frozen=True, slots=True)
class Profiling:
    """How a recipe is profiled; an empty name: it has no such variable."""

    enable: Pairs  # the variables that switch it on
    start: str = ""  # the name of the variable with the first step
    stop: str = ""
    ranks: str = ""  # the names of those with the ranks, and for GPU and CPU metrics
    gpu_metrics: str = ""
    cpu: str = ""
    default_start: int = 0  # the document's, 0 where it states none
    default_stop: int = 0


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How checkpoints are saved and loaded."""

    save: Pairs  # variables, whose values may hold {checkpoint}
    load: Pairs
    size_bytes: tuple[tuple[str, int], ...] = ()  # on disk, by model size
    # by model size the smallest and largest number of GPUs (None: no limit)
    save_gpus: tuple[tuple[str, tuple[int, int | None]], ...] = ()
    load_gpus: tuple[tuple[str, tuple[int, int | None]], ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """How one recipe in one release is launched, as its document says."""

    recipe: str
    release: str
    kind: str  # the name of the command that is the default
    commands: tuple[Command, ...]
    gpus_per_node: tuple[tuple[str, int], ...]
    arguments: tuple[
        tuple[Key, Pairs], ...
    ] = ()  # what a configuration states for each command, by name
    gsw_version: str = ""
    required: Pairs = ()  # environment variables, with what they mean
    optional: Pairs = ()
    forbidden: Pairs = ()
    log: str = ""  # a template
    setup: str = ""
    image: str = ""
    image_source: str = ""
    needs_token: bool = False
    python: str = ""
    modules: tuple[
        str, ...
    ] = ()  # the Python modules that it imports where it runs on this machine
    virtual_environment: bool = False
    profiling: Profiling | None = None
    nccl_trace: Pairs = ()
    short_runs: tuple[
        tuple[str, int], ...
    ] = ()  # the steps of a job of a purpose, where they are not those of a run
    checkpoint: Checkpointing | None = None
    file: Path | None = None


# --- the cluster (from cluster.yaml and options) --------------------------------------


@dataclass(frozen=True, slots=True)
class InstalledRecipe:
    """A recipe in one release as it is installed here; empty fields are the
    cluster's."""

    recipe: str
    release: str
    folder: Path | None = None  # of its launch.sh
    launcher: str = ""
    environment: Pairs = ()
    virtual_environment: Path | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """What this cluster is. Empty text, None or 0: nothing says it."""

    name: str = ""
    gpu: str = ""
    gpus_per_node: int = 0
    largest: int = 0
    gpu_hours: float | None = None  # what one session may use
    launcher: str = ""
    account: str = ""
    partition: str = ""
    gres: str = ""
    time_limit: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    segment: int = 0  # nodes of a block, in a network of blocks
    nodelist: str = ""
    exclude: tuple[str, ...] = ()
    # the variables of every job with their values (secrets included: never print them)
    environment: Pairs = ()
    secrets: tuple[
        str, ...
    ] = ()  # the names of further variables whose values must not be printed
    installed: tuple[InstalledRecipe, ...] = ()
    source: Path | None = None  # the file it was read from


# --- jobs -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, complete and explicit: nothing of the caller's environment is added to
    `environment`."""

    case_id: str  # the id of the configuration
    key: Key
    purpose: Purpose
    via: str  # the class of launcher; allocation: in one that is held
    command: tuple[str, ...]  # an argument list
    directory: Path
    environment: Pairs
    secrets: tuple[str, ...]  # the names of variables whose values are never shown
    nodes: int
    gpus: int
    gpu_hours: float  # the estimate for its steps, of all GPUs that it occupies
    # of the nodes that it gets whole; 0 for a job on this machine, which gets none
    # whole
    gpus_per_node: int = 0
    log_folders: tuple[
        Path, ...
    ] = ()  # where its log will lie; the folder that a launcher prints comes first
    experiment: str = ""  # a name for files of its own
    exclude: tuple[str, ...] = ()  # nodes that it must not get
    scheduler_options: tuple[
        str, ...
    ] = ()  # what the scheduler gets besides the command: time limit, qos, nodes
    job_id: str = ""  # the command's own pattern
    variant: str = (
        ""  # the name of what it is a run of, in an A/B or a search over builds
    )
    build: tuple[
        str, ...
    ] = ()  # a command that has to end well in `checkout` before it is submitted
    checkout: Path | None = None  # of the commit that it is a run of
    # which of its configuration it runs in, counted from 1; 0: it is a job of its own
    allocation: int = 0
    warm_up: bool = False  # a run that counts for nothing
    digests: Pairs = field(
        default=(), compare=False
    )  # of secrets in the journal: they tell another value, no value

    @property
    def occupied_gpus(self) -> int:
        """The GPUs that nobody else can use while it runs: those of all its nodes,
        which it gets whole."""
        return max(self.gpus, self.nodes * self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known of a job."""

    phase: Phase
    state: str  # COMPLETED, CANCELLED, ...: launch/schedulers/job_states.py
    reason: str = ""  # why it is pending; of a job that PYTEST ended, why it did
    nodes: tuple[str, ...] = ()
    exit_code: str = ""  # reads `7:0`, empty: unknown
    derived_exit_code: str = ""
    elapsed_seconds: float | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    cancelled_by: str = ""  # the uid of a CANCELLED by
    restarts: int = 0  # how often it was requeued
    earlier_seconds: tuple[
        float, ...
    ] = ()  # how long each start before that ran, as far as known
    seen_by: str = ""  # the command that said so, or `process`
    ended_by: EndedBy = EndedBy.OTHERS
    limit_seconds: float | None = (
        None  # its time limit, None: it has none, or nobody says it
    )
    stall: Stall | None = (
        None  # of a running job: it stands still; of one that ended: it did so then
    )


JobIdentity = tuple[str, str, int, int]
"""Configuration, purpose, attempt and repeat: a session has only one job for each."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the journal."""

    number: int  # unique in its folder
    token: str  # marks the job at its scheduler
    spec: JobSpec
    folder: Path  # its own, below `.llmbench/`
    attempt: int = (
        1  # counts from 1 what was started again after a failure of the infrastructure
    )
    repeat: int = 1  # counts from 1 what counts for one verdict
    job_id: str = ""
    log_folder: Path | None = None  # what its launcher printed
    status: JobStatus | None = None
    problem: str = ""  # why it was not submitted
    submission: SubmissionState = SubmissionState.INTENDED

    @property
    def identity(self) -> JobIdentity:
        """What there is only one job for in a session."""
        return self.spec.case_id, self.spec.purpose.value, self.attempt, self.repeat

    @property
    def scheduler_id(self) -> str:
        """The id that the scheduler knows: that of its allocation for a run in one,
        `4711` of `4711-2`."""
        return self.job_id.rpartition("-")[0] if self.spec.allocation else self.job_id

    @property
    def refused(self) -> bool:
        """Whether it has no id and gets none: it was not submitted, or nothing tells
        whether it was."""
        return self.submission not in (
            SubmissionState.INTENDED,
            SubmissionState.SUBMITTED,
        )


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, in words."""

    blame: Blame
    text: str = ""  # empty for one that ended well


@dataclass(frozen=True, slots=True)
class Resumption:
    """How to go on with a session that only collected."""

    command: str  # whole, for a shell
    # whether it would start something for this configuration: a repeat, or what was
    # never submitted
    due: bool
    secrets: tuple[str, ...] = ()  # the names of the variables that it needs for that


@dataclass(frozen=True, slots=True)
class JobCost:
    """GPU-hours of a job: the GPUs of its nodes times how long it had them."""

    estimated: float = 0.0  # for its steps, before it was submitted
    used: float = 0.0  # of all its starts, as far as it is known
    requeued: float = 0.0  # of these, the starts before it was requeued
    exact: bool = True  # False: it may have used more than is known
    loss: Loss | None = None  # why its last start brought nothing


@dataclass(frozen=True, slots=True)
class PlannedHours:
    """GPU-hours that were known before the first job of a session was submitted."""

    estimated: float  # for the steps of the runs that are made in any case
    most: float  # with all repeats and new starts that the settings allow
    limit: float  # what the session may use


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """One job behind a verdict, for the reports: what it was, where it ran, how it
    ended, which files it left."""

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
    started: datetime | None = None  # None: it never ran, or nothing tells when
    cost: JobCost = JobCost()
