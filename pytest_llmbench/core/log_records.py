"""Records of parsed logs: columns of steps, endings, checkpoints and statements.

Records that exist for each log have `gc=False`, as in `run_records`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import TYPE_CHECKING, Any, NewType

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:  # numpy too: its import is slow, and passing records needs none
    from collections.abc import Callable, Sequence
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from pytest_llmbench.core.job_records import Pairs

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

Quote = NewType("Quote", str)
"""Text quoted from a log; it may contain a secret.

All other texts of these records are written by this package, or are short values that a
pattern extracted from a line.
"""

NO_QUOTE = Quote("")

HOUR = 3600.0
"""The usual size of a clock change, in seconds."""

SLACK = 2.0
"""Seconds by which a jump of the clock may differ from an hour, plus a step's time."""

VARIANT_MARK = ".ab"
"""Suffix of a marker file next to a log, which shows that the log belongs to an A/B."""

TRIALS_FILE = ".llmbench-ab"
"""Marker file which shows that the logs in its folder belong to an A/B.

It contains one line `TOKEN TIME` for each job that is about to be submitted, then
`TOKEN TIME JOB` with the job's id, or NO_JOB if the submission failed.
"""

NO_JOB = "-"


class PauseKind(IntFlag):
    """The activity between two steps."""

    EVALUATION = 1
    SAVE = 2
    # at a fixed interval of steps, but not logged: event files log no pauses
    REGULAR = 4


@dataclass(init=False, frozen=True, eq=False)
class Steps:
    """The steps of one segment as columns of shape (n,), ordered by step.

    NaN if the log prints no value. A subclass stores the columns.
    """

    __slots__ = ()

    index: Integers  # the log's own step numbers
    seconds: Floats  # as printed, so also NaN, infinite, zero or negative
    # one unit in the last significant digit printed: 0.1 for NeMo 1's `24.00`; 0: exact
    resolution_seconds: Floats
    line: Integers  # 1-based line in the log
    # the number of steps, up to this one, whose mean `seconds` is (every n-th is printed)
    mean_of: Integers
    asynchronous: Flags  # `seconds` is only the time to dispatch the step
    loss: Floats
    has_loss: Flags  # distinguishes a printed NaN from a missing field
    grad_norm: Floats
    has_grad_norm: Flags  # likewise
    tflops_per_gpu: Floats
    tokens_per_second_per_gpu: Floats
    global_batch_size: Floats
    peak_memory_bytes: Floats
    learning_rate: Floats
    consumed_samples: Floats  # the samples of the run up to this step, included
    target_tokens: Floats  # the tokens of the step with a loss
    skipped_steps: Floats  # the skipped updates since the line before
    step_tokens: Floats  # the tokens of the step, as counted by the log
    samples_per_second: Floats  # of all GPUs
    # the timestamp of the line, in seconds since a fixed time of the segment
    stamp: Floats
    # the start of the interval that ends at `stamp`, if it is not the line before
    since: Floats
    # the `PauseKind` flags of evaluations and saves since the line before, if more time
    # passed than the steps took; else 0
    paused: Integers
    # work per second in any unit, printed by the log in addition to timestamps
    throughput: Floats

    def __len__(self) -> int:
        return len(self.index)


@dataclass(repr=False, frozen=True, slots=True, eq=False)
class ArraySteps(Steps):
    """Steps that store each column as an array."""


class LazySteps(ArraySteps):
    """Steps whose columns are created on first access; most columns are never used."""

    __slots__ = ()

    def _make_column(self, name: str) -> NDArray[Any]:
        """Build a read-only column."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> NDArray[Any]:
        """Build a column on first access and store it."""
        if name not in Steps.__dataclass_fields__:
            raise AttributeError(f"steps have no {name}", name=name, obj=self)
        column = self._make_column(name)
        object.__setattr__(self, name, column)
        return column


def replace_columns(steps: Steps, **columns: NDArray[Any]) -> Steps:
    """Return steps with other values in some columns, given by name."""
    other_columns = {
        name: getattr(steps, name)
        for name in Steps.__dataclass_fields__
        if name not in columns
    }
    return ArraySteps(**other_columns, **columns)


def stack_column(several: Sequence[Steps], name: str) -> NDArray[Any]:
    """Return one column of m segments of n steps each, shape (m, n).

    The shape is (1, n) if all segments have the same column object.
    """
    import numpy as np

    columns: list[NDArray[Any]] = [getattr(steps, name) for steps in several]
    first = columns[0]
    if all(column is first for column in columns):
        return first[np.newaxis]
    return np.concatenate(columns).reshape(len(columns), len(first))


class DropReason(StrEnum):
    """The reason records are dropped, or are kept although they are doubtful."""

    TORN = "torn"  # the line is truncated or mixed with other text
    REPEATED = "repeated"  # the step was printed before with the same time
    # the step was printed before with a time > 1 % different; the slower one is kept
    REPEAT_DISAGREES = "repeat-disagrees"
    OTHER_RANK = "other-rank"  # another rank printed the same steps
    OTHER_DIALECT = "other-dialect"  # the dialect has fewer steps in the log
    # other records of these steps are kept: single steps, or means of all steps
    OTHER_RECORDS = "other-records"
    # the step number is rounded and cannot be inferred
    UNKNOWN_STEP = "unknown-step"
    RAMPED_UP = "ramped-up"  # the batch size was still growing
    # half of all steps appear twice with other times: two processes write to this file
    TWO_WRITERS = "two-writers"
    # two processes that write to the same file are at different steps
    INTERLEAVED = "interleaved"
    # the time is kept, but looks like a mean since the start of the run
    RUNNING_AVERAGE = "running-average"
    # the elapsed time restarted while the steps continued: a resumed run
    CLOCK_RESTARTED = "clock-restarted"
    # the time includes a test or a checkpoint, which was subtracted
    LEFT_OUT = "left-out"
    # the rate is used as steps per second, but printed as samples or tokens
    RATE_OF_SAMPLES = "rate-of-samples"
    # the time is kept, but another value in the log contradicts it
    TIMES_DISAGREE = "times-disagree"
    # the time was converted to seconds; timestamps show that its unit is another one
    OTHER_UNIT = "other-unit"
    # the time is kept as the mean of the steps after a validation
    PARTLY_TIMED = "partly-timed"


class DroppedRecords(Struct, frozen=True):
    """Records that were read but not kept."""

    reason: DropReason
    count: int
    first_line: int  # of the first record
    example: str  # a description of the first record, or ""
    quote: Quote = NO_QUOTE  # the line of the first record, if there is no `example`
    last_line: int = 0  # of the last record; 0 if only the first one matters

    @property
    def shown(self) -> str:
        """The text to show for the first record."""
        return self.example or self.quote


class Unread(Struct, frozen=True):
    """A custom dialect that finds no step in a log.

    Numbers are 0 and texts empty if no line contains `find`.
    """

    dialect: str
    find: str
    count: int = 0  # the number of lines that contain `find`
    first_line: int = 0  # the first such line that the pattern does not match
    quote: Quote = NO_QUOTE  # the text of that line
    group: str = ""  # the first group of the pattern that is missing in that line


class StatedField(StrEnum):
    """A property of the run that a log may state."""

    GPUS = "gpus"
    GPU_TYPE = "gpu type"
    LAYERS = "layers"
    HIDDEN = "hidden size"
    HEADS = "attention heads"
    SEQUENCE = "sequence length"
    BATCH = "global batch size"
    MODEL = "model"  # may include the size
    # the number format of computations; `none` means 16 or 32 bit floats
    QUANTIZATION = "quantization"
    NAMED = "named"  # the name of the experiment
    ENGINE = "engine"  # a training engine that does not print some values
    OBJECTIVE = "objective"  # rewards or preferences instead of the next token
    PROFILER = "profiler"  # a profiler that was switched on or off
    MFU_PEAK = "peak for mfu"  # the TFLOP/s by which the framework divides
    MICRO_BATCH = "micro batch size"
    LAYOUT = "parallelism"  # the sizes of the parallel groups, as the log lists them
    NUMBERS = "precision"  # the floating-point type without quantization
    # The following are read from the settings before the first step. A value begins
    # with the name of its setting.
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
    BITS = "bits"  # of loaded weights and of computations
    KERNELS = "kernels"
    LISTING = "listing"  # the dump contains only settings that are not the default


class Statement(Struct, frozen=True, gc=False):
    """One property of the run, stated by one line of a log."""

    field: StatedField
    value: str
    line: int


class ProgressRecord(Struct, frozen=True):
    """A training record without a step and a time; NaN for missing values."""

    line: int
    loss: float
    grad_norm: float
    learning_rate: float


class Segment(Struct, frozen=True, gc=False):
    """The part of a log that belongs to one attempt."""

    steps: Steps
    first_line: int
    last_line: int
    rank: str = ""
    total_steps: int | None = None  # as printed by the log
    finished: bool = False  # the end marker was printed
    first_step: int = 0  # the number of a run's first step in this dialect
    # the statements before the first step in order, and later ones about profilers
    stated: tuple[Statement, ...] = ()
    loss_digits: int = 0  # the largest number of digits of a loss; 0: no loss
    rewards: bool = False  # the records contain rewards
    doubt: str = ""  # a contradiction of the times in the log, in words
    # the records before the summary of the run, if the only step is that summary
    progress: tuple[ProgressRecord, ...] = ()
    # the first line with a NaN or infinite validation loss, or 0
    bad_validation_line: int = 0


class EndingCode(StrEnum):
    """How a log ended, the strongest cause first.

    The last two codes mean that the log is incomplete.
    """

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


class Ending(Struct, frozen=True, gc=False):
    """The end of a run according to its log: a code, the quoted line and its number."""

    code: EndingCode
    quote: Quote  # empty for CUT and UNREADABLE
    line: int
    problem: str = ""  # the defect of a file that is CUT or UNREADABLE
    file: str = ""  # the name of the line's file, if it is not the log itself
    rank: str = ""  # the process that wrote the line, in words
    nodes: str = ""  # the failed nodes according to the line, in Slurm's notation
    beside: Ending | None = None  # another ending, before this one or caused by it
    went_on: bool = False  # steps follow, so it may be only a warning
    before_training: bool = False  # standard error shows that training began later


class CheckpointAction(StrEnum):
    """An action on a checkpoint."""

    SAVE = "save"
    LOAD = "load"


class CheckpointRecord(Struct, frozen=True, gc=False):
    """One line that reports that a checkpoint was saved or loaded."""

    action: CheckpointAction
    line: int
    seconds: float | None = None
    rank: str = ""
    part: int = 0  # the 1-based number of its segment; 0: in no segment
    # the time may be only that of starting an asynchronous save
    dispatched: bool = False
    torn: bool = False  # the line has a time that cannot be parsed


class Checkpoints(Struct, frozen=True, gc=False):
    """All checkpoint records of a log, in order."""

    records: tuple[CheckpointRecord, ...] = ()
    unread: int = 0  # the number of further records that were not kept

    @property
    def load_line(self) -> int:
        """The line of the first load, or 0."""
        return self._find_first_line(CheckpointAction.LOAD)

    @property
    def save_line(self) -> int:
        """The line of the first save, or 0."""
        return self._find_first_line(CheckpointAction.SAVE)

    def _find_first_line(self, action: CheckpointAction) -> int:
        lines = (record.line for record in self.records if record.action is action)
        return next(lines, 0)


class ParsedLog(Struct, frozen=True, gc=False):
    """The parsed contents of one log. Lines are 1-based; 0 means absent."""

    dialect: str | None
    segments: tuple[Segment, ...]
    dropped: tuple[DroppedRecords, ...] = ()
    ending: Ending | None = None
    started: datetime | None = None
    # All segments from the first to the last NCCL line are traced. The last line may
    # be followed by further NCCL lines.
    nccl_line: int = 0
    nccl_last_line: int = 0
    checkpoints: Checkpoints = Checkpoints()
    environment: Pairs = ()  # versions and container
    fingerprint: str = ""
    size_bytes: int = 0
    lines: int = 0
    prints_loss: bool = True  # the dialect prints the loss of each step
    # the line of a process start after the last step of a finished run, or 0
    begun_again_line: int = 0
    # the log as read by custom dialects; the run's configuration selects one of them
    readings: tuple[ParsedLog, ...] = ()
    # the custom dialects that found no step, if the log has no steps at all
    unread: tuple[Unread, ...] = ()

    @property
    def dialects(self) -> frozenset[str]:
        """All dialects in which the log has steps."""
        return frozenset(log.dialect for log in (self, *self.readings) if log.dialect)

    def read_as(self, *dialects: str) -> ParsedLog:
        """Return the log as read by the first of `dialects` that found steps.

        Returns the log itself if none of them did.
        """
        log_by_dialect = {log.dialect: log for log in (self, *self.readings)}
        readings = (
            log_by_dialect[dialect] for dialect in dialects if dialect in log_by_dialect
        )
        # Only this log, not its readings, has the facts of the file.
        return replace(
            next(readings, self),
            fingerprint=self.fingerprint,
            size_bytes=self.size_bytes,
            readings=(),
        )

    def with_quotes(self, change: Callable[[Quote], Quote]) -> ParsedLog:
        """Return a copy in which `change` was applied to all quotes."""
        # An empty quote is absent and stays empty.
        dropped = tuple(
            replace(records, quote=records.quote and change(records.quote))
            for records in self.dropped
        )
        unread = tuple(
            replace(dialect, quote=dialect.quote and change(dialect.quote))
            for dialect in self.unread
        )
        return replace(
            self,
            ending=change_ending(self.ending, change),
            dropped=dropped,
            unread=unread,
            readings=tuple(reading.with_quotes(change) for reading in self.readings),
        )


def change_ending(
    ending: Ending | None, change: Callable[[Quote], Quote]
) -> Ending | None:
    """Apply `change` to the quotes of an ending and of the ending next to it."""
    if ending is None:
        return None
    quote = ending.quote and change(ending.quote)
    return replace(ending, quote=quote, beside=change_ending(ending.beside, change))
