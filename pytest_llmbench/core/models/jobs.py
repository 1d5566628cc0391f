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
    """One way to launch a recipe. `via` is sbatch, script, llmb-run or local; `command` and `folder` are templates with
    {placeholders} and $VARIABLES (an empty folder is the recipe's own); `fixed` are variables of this command; `job_id`
    is a regular expression with a group `job` (and perhaps `folder`) over what it prints, empty for that of `via`."""

    name: str
    via: str
    command: str
    folder: str = ""
    fixed: Pairs = ()
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class Profiling:
    """How a recipe is profiled: the variables that switch it on, and the names (empty: it has none) of those for the
    first and last step, the ranks, GPU and CPU metrics; the defaults are the document's (0: it states none)."""

    enable: Pairs
    start: str = ""
    stop: str = ""
    ranks: str = ""
    gpu_metrics: str = ""
    cpu: str = ""
    default_start: int = 0
    default_stop: int = 0


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How checkpoints are saved and loaded: variables (values may hold {checkpoint}); by model size the bytes on disk,
    and the smallest and largest number of GPUs (None: no limit)."""

    save: Pairs
    load: Pairs
    size_bytes: tuple[tuple[str, int], ...] = ()
    save_gpus: tuple[tuple[str, tuple[int, int | None]], ...] = ()
    load_gpus: tuple[tuple[str, tuple[int, int | None]], ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """How one recipe in one release is launched, as its document says. `kind` names the command that is the default;
    `required`, `optional` and `forbidden` are environment variables with what they mean; `log` is a template."""

    recipe: str
    release: str
    kind: str
    commands: tuple[Command, ...]
    gpus_per_node: tuple[tuple[str, int], ...]
    gsw_version: str = ""
    required: Pairs = ()
    optional: Pairs = ()
    forbidden: Pairs = ()
    log: str = ""
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
    """A recipe in one release as it is installed here. `folder` holds its launch.sh; empty fields are the cluster's."""

    recipe: str
    release: str
    folder: Path | None = None
    launcher: str = ""
    environment: Pairs = ()
    virtual_environment: Path | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """What this cluster is. Empty text, None or 0: nothing says it. `gpu_hours` is what one session may use;
    `environment` holds the variables of every job with their values (secrets included: never print them), `secrets` the
    names of further variables whose values must not be printed. `source` is the file it was read from."""

    name: str = ""
    gpu: str = ""
    gpus_per_node: int = 0
    largest: int = 0
    gpu_hours: float | None = None
    launcher: str = ""
    account: str = ""
    partition: str = ""
    gres: str = ""
    time_limit: str = ""
    exclude: tuple[str, ...] = ()
    environment: Pairs = ()
    secrets: tuple[str, ...] = ()
    installed: tuple[InstalledRecipe, ...] = ()
    source: Path | None = None


# --- jobs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, complete and explicit: nothing of the caller's environment is added to `environment`.

    `case_id` is the id of the configuration; `via` the class of launcher; `command` an argument list; `secrets` the
    names of variables whose values are never shown; `log_folders` where its log will lie (the folder that a launcher
    prints comes first); `experiment` a name for files of its own. `gpu_hours` is the estimate for its steps. `exclude`
    are nodes that it must not get, where its launcher can say so. `job_id` is the command's own pattern.
    """

    case_id: str
    key: Key
    purpose: Purpose
    via: str
    command: tuple[str, ...]
    directory: Path
    environment: Pairs
    secrets: tuple[str, ...]
    nodes: int
    gpus: int
    gpu_hours: float
    log_folders: tuple[Path, ...] = ()
    experiment: str = ""
    exclude: tuple[str, ...] = ()
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known of a job. `state` is Slurm's word without its suffix (COMPLETED, CANCELLED, ...), `reason` why it
    is pending, exit codes read `7:0` (empty: unknown), `cancelled_by` the uid of a CANCELLED by, `restarts` how often
    it was requeued, `seen_by` what said so (sacct, squeue, scontrol, process)."""

    phase: Phase
    state: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    exit_code: str = ""
    derived_exit_code: str = ""
    elapsed_seconds: float | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    cancelled_by: str = ""
    restarts: int = 0
    seen_by: str = ""
    ended_by: EndedBy = EndedBy.OTHERS


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the journal. `number` is unique in its folder; `token` marks the job at Slurm; `attempt` counts from 1
    what was started again after a failure of the infrastructure, `repeat` from 1 what counts for one verdict. `folder`
    is its own, below `.llmbench/`. `log_folder` is what its launcher printed. `problem`: why it was not submitted."""

    number: int
    token: str
    spec: JobSpec
    folder: Path
    attempt: int = 1
    repeat: int = 1
    job_id: str = ""
    log_folder: Path | None = None
    status: JobStatus | None = None
    problem: str = ""
    submission: SubmissionState = SubmissionState.INTENDED


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, in words. `text` is empty for one that ended well; `place` is `file:line` of what says so."""

    blame: Blame
    text: str = ""
    place: str = ""


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
