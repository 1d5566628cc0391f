"""What logs say: columns of steps, and what else a reader of a log has to know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntFlag, StrEnum
from typing import TYPE_CHECKING, Any, NewType

if TYPE_CHECKING:  # numpy too: who hands records around need not wait for it
    from collections.abc import Callable
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from pytest_llmbench.core.job_records import Pairs

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

Quote = NewType("Quote", str)
"""Text as it stands in a log: it may show a secret. Every other text of these records
is in our own words, or a short value that a pattern took out of its line."""

NO_QUOTE = Quote("")

HOUR = 3600.0
"""Seconds by which a clock is set."""

SLACK = 2.0
"""Seconds by which a jump may differ from an hour, beside the time of a step."""

VARIANT_MARK = ".ab"
"""A file of the name of a log with this at its end says that the log is of an arm of an
A/B."""

TRIALS_FILE = ".llmbench-ab"
"""A file that says the same of logs below its folder: a line `TOKEN TIME` for each job
that is about to be submitted, then `TOKEN TIME JOB` with its id, or NO_JOB where none
came of it."""

NO_JOB = "-"


class PauseKind(IntFlag):
    """What the time between two steps went into."""

    EVALUATION = 1
    SAVE = 2
    REGULAR = (
        4  # unannounced, but after every so many steps: event files announce nothing
    )


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of one segment as columns of equal length n, ordered by step; NaN where
    a log prints no value."""

    index: Integers  # the log's own step numbers
    seconds: Floats  # as printed, so also NaN, infinite, zero or negative
    # one unit in the last significant place printed: 0.1 for NeMo 1's `24.00`, 0 where
    # nothing was rounded
    resolution_seconds: Floats
    line: Integers  # 1-based line in the log
    # how many steps `seconds` is the mean of, up to and with this one, where a log
    # prints only every n-th step
    mean_of: Integers
    asynchronous: Flags  # the time is that of dispatching the step only
    loss: Floats
    has_loss: Flags  # tells a printed NaN from a missing field
    grad_norm: Floats
    has_grad_norm: Flags  # so does this
    tflops_per_gpu: Floats
    tokens_per_second_per_gpu: Floats
    global_batch_size: Floats
    peak_memory_bytes: Floats
    learning_rate: Floats
    consumed_samples: Floats  # the samples of the run up to and with this step
    target_tokens: Floats  # those tokens of the step whose loss counts
    skipped_steps: Floats  # how many of the steps since the line before moved no weight
    step_tokens: Floats  # the tokens of a step, as the log counts them
    samples_per_second: Floats  # of all GPUs
    # the clock of the line: seconds since any moment that is one for the segment
    stamp: Floats
    # from when on the clock of the line counts, where that is not the stamp of the line
    # before
    since: Floats
    # the evaluations and saves (`PauseKind`) that are printed between the line before
    # and this one, if more time passed than the steps took; 0 for none
    paused: Integers
    # work per second by a timer of the log's own, in any unit, beside times that follow
    # from stamps
    throughput: Floats

    def __len__(self) -> int:
        return len(self.index)


class LazySteps(Steps):
    """Steps of which a column is made when it is first looked at: most columns of most
    logs never are."""

    __slots__ = ()

    def _make_column(self, name: str) -> NDArray[Any]:
        """Return a column, which nobody writes to."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> NDArray[Any]:
        """Return a column that was not looked at before, and keep it as the field that
        it is."""
        if name not in Steps.__slots__:
            raise AttributeError(f"steps have no {name}", name=name, obj=self)
        column = self._make_column(name)
        object.__setattr__(self, name, column)
        return column


class DropReason(StrEnum):
    """Why records are not kept, or kept with a doubt."""

    TORN = "torn"  # it was cut, or had foreign text in it
    REPEATED = "repeated"  # the step was printed before, with the same time
    # with a time more than 1 % different; the slower one is kept
    REPEAT_DISAGREES = "repeat-disagrees"
    OTHER_RANK = "other-rank"  # another rank printed the same steps
    OTHER_DIALECT = "other-dialect"  # it is of a dialect with fewer steps in the log
    # of steps of which other records are kept: one step of many, or means of all
    OTHER_RECORDS = "other-records"
    UNKNOWN_STEP = (
        "unknown-step"  # its step number is rounded and follows from nothing else
    )
    RAMPED_UP = "ramped-up"  # the batch still grew to the size that it is to have
    # half of all steps come again with another time: another process writes into this
    # file
    TWO_WRITERS = "two-writers"
    # two processes that write into the same file are at different steps
    INTERLEAVED = "interleaved"
    # the time is kept, and looks like a mean since the start of the run
    RUNNING_AVERAGE = "running-average"
    # the time so far is short again, while the steps go on: a resumed run
    CLOCK_RESTARTED = "clock-restarted"
    # the time of a step contains a test or a checkpoint, which is left out
    LEFT_OUT = "left-out"
    # the rate is kept as one of steps, and is printed as one of samples or tokens
    RATE_OF_SAMPLES = "rate-of-samples"
    # the time is kept, and another source in the log contradicts it
    TIMES_DISAGREE = "times-disagree"
    # the time is kept in seconds; by the clock it was written in another unit
    OTHER_UNIT = "other-unit"
    PARTLY_TIMED = (
        "partly-timed"  # the time is kept as the mean of the steps behind a validation
    )


@dataclass(frozen=True, slots=True)
class DroppedRecords:
    """Records that were read but not kept."""

    reason: DropReason
    count: int
    first_line: int  # where the first one stands
    example: str  # the first one, in our words
    quote: Quote = NO_QUOTE  # its line, where that says it
    last_line: int = 0  # where the last one stands, 0 where only the first one matters

    @property
    def shown(self) -> str:
        """The first one, as it is shown."""
        return self.example or self.quote


@dataclass(frozen=True, slots=True)
class Unread:
    """A dialect of a baseline file that finds no step in a log; 0 and empty where no
    line holds its `find`."""

    dialect: str
    find: str
    count: int = 0  # in how many lines its `find` stands
    first_line: int = 0  # the first of them that its pattern does not match
    quote: Quote = NO_QUOTE  # that line
    group: str = ""  # the first group of the pattern that this line lacks


class StatedField(StrEnum):
    """What a log may state of its run."""

    GPUS = "gpus"
    GPU_TYPE = "gpu type"
    LAYERS = "layers"
    HIDDEN = "hidden size"
    HEADS = "attention heads"
    SEQUENCE = "sequence length"
    BATCH = "global batch size"
    MODEL = "model"  # perhaps with its size
    # the numbers that it computes with; `none` says that they are 16 or 32 bit floats
    QUANTIZATION = "quantization"
    NAMED = "named"  # the name of an experiment
    ENGINE = "engine"  # one that keeps values to itself
    OBJECTIVE = "objective"  # rewards or preferences in place of the next token
    PROFILER = "profiler"  # one that was switched
    MICRO_BATCH = "micro batch size"
    LAYOUT = "parallelism"  # the sizes of the parallel groups, as the log lists them
    NUMBERS = (
        "precision"  # the floats that it computes with, where nothing quantizes them
    )
    # Read from the settings before the first step; a value begins with the name of its
    # setting.
    MODEL_SIZES = "model sizes"
    FFN = "ffn size"
    MOE_FFN = "expert ffn size"
    ATTENTION = "attention"
    GROUPS = "query groups"
    WINDOW = "attention window"
    VOCABULARY = "vocabulary"
    EXPERTS = "experts"
    TOP_K = "router top-k"
    BALANCING = "forced balancing"
    MTP = "mtp layers"
    PARAMETERS = "parameters"
    TRAINABLE = "trainable parameters"
    ADAPTER = "trained weights"
    GPU_MEMORY = "gpu memory"
    CAPACITY = "expert capacity"
    DROP_POLICY = "token drop policy"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    DATA = "data kind"
    ATTENTION_BACKEND = "attention backend"
    SHARDING = "sharding"
    POWER_LIMIT = "power limit"
    SEQUENCES = "sequence lengths"
    BATCH_PARTS = "batch of a gpu"
    BITS = (
        "bits"  # of the numbers that weights are loaded as, and that it computes with
    )
    KERNELS = "kernels"
    LISTING = "listing"  # that a dump contains only what is not the default


@dataclass(frozen=True, slots=True)
class Statement:
    """What one line of a log states of its run."""

    field: StatedField
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """What a run prints while it trains, without a step and a time; NaN for what is not
    printed."""

    line: int
    loss: float
    grad_norm: float
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a log that is one attempt."""

    steps: Steps
    first_line: int
    last_line: int
    rank: str = ""
    total_steps: int | None = None  # the log's own total
    finished: bool = False  # its end marker was printed
    first_step: int = 0  # the number that its dialect gives to the first step of a run
    # what the log states of it, in its order, before its first step but for a profiler
    stated: tuple[Statement, ...] = ()
    loss_digits: int = (
        0  # the largest number of digits of a loss, 0 where none is printed
    )
    rewards: bool = False  # its records hold rewards
    doubt: str = ""  # what else in the log contradicts its times, in words
    # what was printed before the record of a whole run, if that is all that its steps
    # are
    progress: tuple[ProgressRecord, ...] = ()
    bad_validation_line: int = (
        0  # the first line with a validation loss that is NaN or infinite, 0 for none
    )


class EndingCode(StrEnum):
    """How a log ended, the stronger cause first, and last what makes that a log does
    not say it."""

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
    """How a log says it ended: a code, the text that says so, and its line."""

    code: EndingCode
    quote: Quote  # empty for CUT and UNREADABLE
    line: int
    problem: str = ""  # what is wrong with a file that is CUT or UNREADABLE
    file: str = ""  # the name of the file of that line where it is not the log itself
    rank: str = ""  # which process wrote it, in words
    nodes: str = ""  # the nodes that the line says failed, as Slurm writes nodes
    beside: Ending | None = None  # what else happened, before it or because of it
    went_on: bool = False  # steps follow, so it may be no more than a warning
    before_training: bool = (
        False  # a standard error shows that training began behind it
    )


class CheckpointAction(StrEnum):
    """What is done with a checkpoint."""

    SAVE = "save"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One line that says that a checkpoint was saved or loaded, and perhaps how long
    that took."""

    action: CheckpointAction
    line: int
    seconds: float | None = None
    rank: str = ""
    part: int = (
        0  # the 1-based number of the segment that it belongs to, 0 where it is none's
    )
    # the time may be that of handing a save over only, while training went on
    dispatched: bool = False
    torn: bool = False  # the line has a time that cannot be read


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What a log says of checkpoints, in its order."""

    records: tuple[CheckpointRecord, ...] = ()
    unread: int = 0  # counts the records beyond those that are kept

    @property
    def load_line(self) -> int:
        """The first line that says that a checkpoint was loaded, 0 for none."""
        return next(
            (
                record.line
                for record in self.records
                if record.action is CheckpointAction.LOAD
            ),
            0,
        )

    @property
    def save_line(self) -> int:
        """The first line that says that a checkpoint was saved, 0 for none."""
        return next(
            (
                record.line
                for record in self.records
                if record.action is CheckpointAction.SAVE
            ),
            0,
        )


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """What one log says. Lines are 1-based, 0 where there is none."""

    dialect: str | None
    segments: tuple[Segment, ...]
    dropped: tuple[DroppedRecords, ...] = ()
    ending: Ending | None = None
    started: datetime | None = None
    # between the first and the last NCCL line (not always the very last) every part is
    # traced
    nccl_line: int = 0
    nccl_last_line: int = 0
    checkpoints: Checkpoints = Checkpoints()
    environment: Pairs = ()  # the versions and the container that it names
    fingerprint: str = ""
    size_bytes: int = 0
    lines: int = 0
    prints_loss: bool = True  # its dialect prints the loss of each step
    begun_again_line: int = (
        0  # where a process started behind the last step of a finished run
    )
    # the log as other dialects read it, where baseline files define some: which one
    # counts is known when the run is
    readings: tuple[ParsedLog, ...] = ()
    unread: tuple[
        Unread, ...
    ] = ()  # why the dialects of baseline files find none, of a log without any step

    @property
    def dialects(self) -> frozenset[str]:
        """Every dialect in which it has steps."""
        return frozenset(log.dialect for log in (self, *self.readings) if log.dialect)

    def read_as(self, *dialects: str) -> ParsedLog:
        """Return the log as the first of these dialects reads it, as it is where none
        of them does."""
        by_name = {log.dialect: log for log in (self, *self.readings)}
        read = next((by_name[name] for name in dialects if name in by_name), self)
        return replace(
            read, fingerprint=self.fingerprint, size_bytes=self.size_bytes, readings=()
        )

    def with_quotes(self, change: Callable[[Quote], Quote]) -> ParsedLog:
        """Return the log with each text changed that is quoted from it."""
        return replace(
            self,
            ending=change_ending(self.ending, change),
            dropped=tuple(
                replace(each, quote=each.quote and change(each.quote))
                for each in self.dropped
            ),
            unread=tuple(
                replace(each, quote=each.quote and change(each.quote))
                for each in self.unread
            ),
            readings=tuple(reading.with_quotes(change) for reading in self.readings),
        )


def change_ending(
    ending: Ending | None, change: Callable[[Quote], Quote]
) -> Ending | None:
    """Return how a log ended with each text changed that is quoted from it."""
    if ending is None:
        return None
    quote = ending.quote and change(ending.quote)
    return replace(ending, quote=quote, beside=change_ending(ending.beside, change))
