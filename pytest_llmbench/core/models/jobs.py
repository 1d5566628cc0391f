"""What launching hands around: how a recipe is launched, what a job is to do, and what became of it. Records only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pytest_llmbench.core.models.baselines import Key

Pairs = tuple[tuple[str, str], ...]
"""Names with their values, in order."""


class Purpose(StrEnum):
    """What a job is started for; only the first kind is judged for speed."""

    MEASURE = "measure"
    PROFILE = "profile"
    NCCL_TRACE = "nccl-trace"
    SAVE_CHECKPOINT = "checkpoint-save"
    LOAD_CHECKPOINT = "checkpoint-load"


class Phase(StrEnum):
    """Where a job stands. UNKNOWN: nothing knows it (yet, or any more), which does not mean that it failed."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


class Blame(StrEnum):
    """Whose failure the end of a job is. NONE: it ended well. CANCELLED: somebody stopped it."""

    NONE = "none"
    INFRASTRUCTURE = "infrastructure"
    RUN = "run"
    CANCELLED = "cancelled"


class SubmissionState(StrEnum):
    """How far the submission of a job came. UNCERTAIN: nothing tells, so it may run and is not submitted again.

    SUPERSEDED: it came to nothing, and another job of the session took its place.
    """

    INTENDED = "intended"
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not-submitted"
    UNCERTAIN = "uncertain"
    SUPERSEDED = "superseded"


class EndedBy(StrEnum):
    """Who decided that a job is over.

    OTHERS: itself, Slurm or a user, as its state says. PYTEST: this program cancelled it, or gave it up.
    """

    OTHERS = "others"
    PYTEST = "pytest"


# --- how a recipe is launched (from the baseline file) ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """One way to launch a recipe. `command` and `folder` are templates with {placeholders} and $VARIABLES."""

    name: str
    via: str  # sbatch, script, llmb-run or local
    command: str
    folder: str = ""  # empty: the recipe's own
    fixed: Pairs = ()  # variables of this command
    job_id: str = ""  # a pattern over what it prints, with a group `job` (and perhaps `folder`); empty: that of `via`


@dataclass(frozen=True, slots=True)
class Profiling:
    """How a recipe is profiled: names of variables are empty where it has none."""

    enable: Pairs  # the variables that switch it on
    start: str = ""  # the variable of the first step
    stop: str = ""
    ranks: str = ""
    gpu_metrics: str = ""
    cpu: str = ""
    default_start: int = 0  # the document's own steps; 0: it states none
    default_stop: int = 0


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How checkpoints are saved and loaded; sizes and numbers of GPUs are by model size."""

    save: Pairs  # variables; values may hold {checkpoint}
    load: Pairs
    size_bytes: tuple[tuple[str, int], ...] = ()
    save_gpus: tuple[
        tuple[str, tuple[int, int | None]], ...
    ] = ()  # the smallest and the largest number, None: no limit
    load_gpus: tuple[tuple[str, tuple[int, int | None]], ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """How one recipe in one release is launched, as its document says."""

    recipe: str
    release: str
    kind: str  # the name of the command that is the default
    commands: tuple[Command, ...]
    gpus_per_node: tuple[tuple[str, int], ...]
    gsw_version: str = ""
    required: Pairs = ()  # environment variables with what they mean
    optional: Pairs = ()
    forbidden: Pairs = ()
    log: str = ""  # a template
    setup: str = ""
    image: str = ""
    image_source: str = ""
    needs_token: bool = False
    python: str = ""
    virtual_environment: bool = False
    profiling: Profiling | None = None
    nccl_trace: Pairs = ()
    checkpoint: Checkpointing | None = None
    file: Path | None = None


# --- the cluster (from cluster.yaml and options) ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstalledRecipe:
    """A recipe in one release as it is installed here; empty fields are the cluster's."""

    recipe: str
    release: str
    folder: Path | None = None  # holds its launch.sh
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
    exclude: tuple[str, ...] = ()
    environment: Pairs = ()  # of every job, secrets included: never print it
    secrets: tuple[str, ...] = ()  # the names of further variables whose values must not be printed
    installed: tuple[InstalledRecipe, ...] = ()
    source: Path | None = None  # the file that it was read from


# --- jobs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, complete and explicit: nothing of the caller's environment is added to `environment`."""

    case_id: str  # the id of the configuration
    key: Key
    purpose: Purpose
    via: str  # the class of launcher
    command: tuple[str, ...]
    directory: Path
    environment: Pairs
    secrets: tuple[str, ...]  # the names of variables whose values are never shown
    nodes: int
    gpus: int
    gpu_hours: float  # the estimate for its steps
    log_folders: tuple[Path, ...] = ()  # where its log will lie; a folder that its launcher prints comes before them
    experiment: str = ""  # a name for files of its own
    exclude: tuple[str, ...] = ()  # nodes that it must not get, where its launcher can say so
    job_id: str = ""  # the command's own pattern


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known of a job."""

    phase: Phase
    state: str  # Slurm's word without its suffix: COMPLETED, CANCELLED, ...
    reason: str = ""  # why it is pending; of a job that `ended_by` PYTEST why this program ended it
    nodes: tuple[str, ...] = ()
    exit_code: str = ""  # `7:0`; empty: unknown
    derived_exit_code: str = ""  # the worst of its steps
    elapsed_seconds: float | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    cancelled_by: str = ""  # a uid
    restarts: int = 0  # how often it was requeued
    seen_by: str = ""  # sacct, squeue or process
    ended_by: EndedBy = EndedBy.OTHERS


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the journal."""

    number: int  # unique in its journal
    token: str  # marks the job at Slurm
    spec: JobSpec
    folder: Path  # its own, below `.llmbench/`
    attempt: int = 1  # counts what was started again after a failure of the infrastructure
    repeat: int = 1  # counts what one verdict rests on
    job_id: str = ""
    log_folder: Path | None = None  # what its launcher printed
    status: JobStatus | None = None
    problem: str = ""  # why it was not submitted
    submission: SubmissionState = SubmissionState.INTENDED


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, in words."""

    blame: Blame
    text: str = ""  # empty for one that ended well


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """One job behind a verdict, for the reports: what it was, where it ran, how it ended, which files it left."""

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
