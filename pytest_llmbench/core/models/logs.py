"""What logs say: columns of steps, and what else a reader of a log has to know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy too: who hands records around need not wait for it
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from pytest_llmbench.core.models.jobs import Pairs

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of one segment as columns of equal length n, ordered by step.

    index: the log's own step numbers. seconds: step time as printed, so also NaN, infinite, zero or negative.
    resolution_seconds: one unit in the last significant
    place that was printed (0.1 for NeMo 1's `24.00`, 0 where nothing was rounded). line: 1-based line in the log.
    mean_of: how many steps `seconds` is the mean of, up to and with this one, where a log prints only every n-th step;
    1 where it is the time of that step alone. asynchronous: the time is that of dispatching the step only.
    loss, grad_norm, tflops_per_gpu, tokens_per_second_per_gpu, global_batch_size, peak_memory_bytes: NaN where the
    log does not print them; `has_loss` and `has_grad_norm` tell a printed NaN from a missing field. So are
    learning_rate; consumed_samples, the samples of the run up to and with this step; target_tokens, those tokens of the
    step whose loss counts; skipped_steps, how many of the steps since the line before moved no weight.
    """

    index: Integers
    seconds: Floats
    resolution_seconds: Floats
    line: Integers
    mean_of: Integers
    asynchronous: Flags
    loss: Floats
    has_loss: Flags
    grad_norm: Floats
    has_grad_norm: Flags
    tflops_per_gpu: Floats
    tokens_per_second_per_gpu: Floats
    global_batch_size: Floats
    peak_memory_bytes: Floats
    learning_rate: Floats
    consumed_samples: Floats
    target_tokens: Floats
    skipped_steps: Floats

    def __len__(self) -> int:
        return len(self.index)


class DropReason(StrEnum):
    """Why records are not kept, or kept with a doubt."""

    TORN = "torn"
    """It was cut, or had foreign text in it."""
    REPEATED = "repeated"
    """The step was printed before, with the same time."""
    REPEAT_DISAGREES = "repeat-disagrees"
    """The step was printed before, with a time more than 1 % different; the slower one is kept."""
    OTHER_RANK = "other-rank"
    """Another rank printed the same steps."""
    OTHER_DIALECT = "other-dialect"
    """It is of a dialect with fewer steps in the log."""
    UNKNOWN_STEP = "unknown-step"
    """Its step number is rounded and follows from nothing else."""
    RAMPED_UP = "ramped-up"
    """The batch still grew to the size that it is to have."""
    TWO_WRITERS = "two-writers"
    """Half of all steps were printed before with another time: another process writes into the same file."""
    INTERLEAVED = "interleaved"
    """It is of one of two processes that write into the same file and are at different steps."""
    RUNNING_AVERAGE = "running-average"
    """The time is kept, and looks like a mean since the start of the run."""
    RATE_OF_SAMPLES = "rate-of-samples"
    """The rate is kept as one of steps, and is printed as one of samples or tokens."""


@dataclass(frozen=True, slots=True)
class DroppedRecords:
    """Records that were read but not kept: how many, why, and where the first one stands."""

    reason: DropReason
    count: int
    first_line: int
    example: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A dialect of a baseline file that finds no step in a log: in how many lines its `find` stands, and the first of
    them that its pattern does not match; 0 and empty where no line holds it. group: the first group of the pattern that
    this line lacks."""

    dialect: str
    find: str
    count: int = 0
    first_line: int = 0
    example: str = ""
    group: str = ""


GPUS, LAYERS, SEQUENCE, BATCH, MODEL, QUANTIZATION, NAMED, ENGINE, OBJECTIVE, PROFILER = (
    "gpus",
    "layers",
    "sequence length",
    "global batch size",
    "model",
    "quantization",
    "named",
    "engine",
    "objective",
    "profiler",
)
"""What a log may state of its run: a number of GPUs; layers, tokens of a sequence and samples of a step; a model,
perhaps with its size; the numbers that it computes with where they are no 16 or 32 bit floats (`none` says that they
are); the name of an experiment; an engine that keeps values to itself; rewards or preferences in place of the next
token; a profiler that was switched."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one line of a log states of its run: a field, one of those above, and its value."""

    field: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a log that is one attempt. `total_steps` is the log's own total, `finished` its end marker,
    `first_step` the number that its dialect gives to the first step of a run. `stated` is what the log states of it, in
    its order, before its first step but for a profiler; `loss_digits` is the largest number of digits of a loss, 0
    where none is printed; `rewards`: its records hold rewards."""

    steps: Steps
    first_line: int
    last_line: int
    rank: str = ""
    total_steps: int | None = None
    finished: bool = False
    first_step: int = 0
    stated: tuple[Statement, ...] = ()
    loss_digits: int = 0
    rewards: bool = False


class EndingCode(StrEnum):
    """How a log ended, the stronger cause first, and last what makes that a log does not say it."""

    TIME_LIMIT = "time-limit"
    NODE_FAILURE = "node-failure"
    GPU_FAILURE = "gpu-failure"
    OUT_OF_MEMORY = "out-of-memory"
    GPU_OUT_OF_MEMORY = "gpu-out-of-memory"
    DIVERGED = "diverged"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    CANCELLED = "cancelled"
    EXITED = "exited"
    SEGFAULT = "segfault"
    TRACEBACK = "traceback"
    NCCL_TIMEOUT = "nccl-timeout"
    AFTERMATH = "aftermath"
    TASK_FAILURE = "task-failure"
    STEP_CANCELLED = "step-cancelled"
    CUT = "cut"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a log says it ended: a code, the text that says so, and its line.

    file: the name of the file of that line where it is not the log itself. rank: which process wrote it, in words.
    beside: what else happened, before it or because of it. went_on: steps follow, so it may be no more than a warning.
    before_training: a standard error shows that training began behind it.
    """

    code: EndingCode
    text: str
    line: int
    file: str = ""
    rank: str = ""
    beside: Ending | None = None
    went_on: bool = False
    before_training: bool = False


SAVE, LOAD = "save", "load"
"""What is done with a checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One line that says that a checkpoint was saved or loaded, and perhaps how long that took.

    `part` is the 1-based number of the segment that it belongs to, 0 where it is none's. `dispatched`: the time may be
    that of handing a save over only, while training went on. `torn`: the line has a time that cannot be read.
    """

    action: str
    line: int
    seconds: float | None = None
    rank: str = ""
    part: int = 0
    dispatched: bool = False
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What a log says of checkpoints, in its order; `unread` counts the records beyond those that are kept."""

    records: tuple[CheckpointRecord, ...] = ()
    unread: int = 0

    @property
    def load_line(self) -> int:
        """The first line that says that a checkpoint was loaded, 0 for none."""
        return next((record.line for record in self.records if record.action == LOAD), 0)

    @property
    def save_line(self) -> int:
        """The first line that says that a checkpoint was saved, 0 for none."""
        return next((record.line for record in self.records if record.action == SAVE), 0)


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """What one log says. Lines are 1-based, 0 where there is none; between the first and the last NCCL line (not always
    the very last) every part is traced. `readings` is the log as other dialects read it, where baseline files define
    some: which one counts is known when the run is. `prints_loss`: its dialect prints the loss of each step.
    `environment`: the versions and the container that it names. `begun_again_line`: where a process started behind the
    last step of a finished run. `unread`: why the dialects of baseline files find none, of a log without any step."""

    dialect: str | None
    segments: tuple[Segment, ...]
    dropped: tuple[DroppedRecords, ...] = ()
    ending: Ending | None = None
    started: datetime | None = None
    nccl_line: int = 0
    nccl_last_line: int = 0
    checkpoints: Checkpoints = Checkpoints()
    environment: Pairs = ()
    fingerprint: str = ""
    size_bytes: int = 0
    lines: int = 0
    prints_loss: bool = True
    begun_again_line: int = 0
    readings: tuple[ParsedLog, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def dialects(self) -> frozenset[str]:
        """Every dialect in which it has steps."""
        return frozenset(log.dialect for log in (self, *self.readings) if log.dialect)

    def read_as(self, *dialects: str) -> ParsedLog:
        """Return the log as the first of these dialects reads it, as it is where none of them does."""
        by_name = {log.dialect: log for log in (self, *self.readings)}
        read = next((by_name[name] for name in dialects if name in by_name), self)
        return replace(read, fingerprint=self.fingerprint, size_bytes=self.size_bytes, readings=())
