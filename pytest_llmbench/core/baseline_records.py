"""Records of baseline files: configurations, their expected values and their sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from pathlib import Path

MEGATRON_BRIDGE = "megatron_bridge"
"""The recipe of the shipped tables.

Its runs are identified by their names, their logs and the files next to them.
"""


class Key(Struct, frozen=True, order=True):
    """Identity of a benchmark: runs with equal keys are comparable.

    Unique among the baselines of one kind.
    """

    recipe: str
    size: str
    release: str
    gpu: str
    dtype: str
    gpus: int  # 0: unknown; values per GPU are then not computed
    task: str = ""
    scaling: str = ""
    variant: str = ""

    @property
    def id(self) -> str:
        """The id, such as `grok1_314b-25.05-gb200-bf16-128`.

        Task, scaling and variant are appended if they are set.
        """
        gpus = self.gpus or "unknown"
        head = (
            f"{self.recipe}_{self.size}-{self.release}-{self.gpu}-{self.dtype}-{gpus}"
        )
        suffixes = filter(None, (self.task, self.scaling, self.variant))
        return "-".join([head, *suffixes])


class Architecture(Struct, frozen=True):
    """The model as one configuration trains it.

    A proxy has fewer layers or a shorter sequence than the real model. A size of 0 is
    unknown; the FLOPs of such a model are not counted.
    """

    formula: str
    sequence_length: int = 0
    layers: int = 0
    hidden_size: int = 0
    vocabulary_size: int = 0
    ffn_size: int | None = None
    attention_heads: int | None = None
    query_groups: int | None = None
    top_k: int | None = None
    # of keys and queries; the default is the hidden size / attention heads
    head_size: int | None = None
    mlp_matrices: int | None = None  # the default is 3, a gated MLP
    expert_ffn_size: int | None = None  # of one routed expert
    shared_ffn_size: int | None = None  # of all shared experts together
    dense_layers: int | None = None  # layers without experts, in a model with experts
    mtp_layers: int | None = None  # layers for multi-token prediction
    # the next five belong to multi-head latent attention
    q_rank: int | None = None
    kv_rank: int | None = None
    qk_head_size: int | None = None  # without the rotated part
    rope_size: int | None = None
    v_head_size: int | None = None
    # the next three belong to a hybrid; its other layers are Mamba layers
    attention_layers: int | None = None
    mlp_layers: int | None = None
    expert_layers: int | None = None
    # the size of the routed experts' inputs, if it differs from the hidden size
    expert_latent_size: int | None = None
    mamba_state_size: int | None = None
    mamba_groups: int | None = None
    mamba_heads: int | None = None


class Parallelism(Struct, frozen=True):
    """Sizes of the parallel groups; None if the document prints NA or no value."""

    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    vp: int | None = None
    fsdp: int | None = None


class Configuration(Struct, frozen=True):
    """One parametrized test: a recipe with a GPU type, precision and number of GPUs."""

    key: Key
    architecture: Architecture
    parallelism: Parallelism
    global_batch_size: int = 0  # 0: unknown
    micro_batch_size: int | None = None
    gradient_accumulation: int | None = None
    proxy: bool = False
    # TFLOP of one step on one GPU, as the framework counts and logs them
    logged_tflop: float | None = None
    # the arguments of this configuration, by the name of the launch command
    arguments: tuple[tuple[str, str], ...] = ()


class Window(NamedTuple):
    """The judged steps, in the log's own step numbers, both ends included."""

    first: int
    last: int
    statistic: str = "mean"

    def __str__(self) -> str:
        if self.first == self.last:
            return f"step {self.first}"
        statistic = self.statistic.replace("_", " ")
        return f"{statistic} of steps {self.first} to {self.last}"


USUAL_WINDOW = Window(11, 44)
"""The window of the documents of releases 25.05 to 25.07; the default of baseline
files."""

USUAL_STEPS = 50
"""The number of steps of a run in those documents."""


class BaselineKind(StrEnum):
    """The origin of the numbers in a baseline file."""

    PUBLISHED = "published"
    RECORDED = "recorded"
    RECIPE = "recipe"  # no value yet: `step_seconds` is NaN


class TimedBy(StrEnum):
    """The steps that decide a verdict.

    WINDOW is the window that the baseline file defines, DOCUMENT the steps that its
    document timed.
    """

    WINDOW = "window"
    DOCUMENT = "document"


class ToleranceSource(StrEnum):
    """The origin of a tolerance, as messages and reports name it."""

    DEFAULT = "default"
    FILE = "baseline file"
    INI = "ini"
    OPTION = "--llmb-tolerance"
    CERTIFICATE = "--llmb-certify"


class Tolerance(Struct, frozen=True):
    """The allowed deviation from the baseline, in a metric derived from the step time."""

    fraction: float
    # "time" (5 % more time), "performance" (5 % less), or the name of a metric
    of: str = "time"
    larger_is_better: bool = False  # the direction of that metric
    source: str = ""  # a `ToleranceSource`, or "" if no tolerance was written

    @property
    def factor(self) -> float:
        """The largest allowed step time, as a multiple of the baseline's."""
        if self.larger_is_better:
            # 5 % less throughput takes 1 / 0.95 of the time.
            return 1 / (1 - self.fraction)
        return 1 + self.fraction

    def __str__(self) -> str:
        """Format for messages: `5 %`, or `5 % of performance (+5.26 % time)`."""
        percent = f"{self.fraction * 100:.10g} %"
        if self.of == "time":
            return percent
        more_time = ""
        if self.larger_is_better:
            more_time = f" (+{(self.factor - 1) * 100:.3g} % time)"
        return f"{percent} of {self.of}{more_time}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest allowed value of a metric."""

    metric: str
    largest: float  # in the metric's unit
    place: str = field(default="", compare=False)  # file and line of the budget


class TimesOf(StrEnum):
    """The meaning of the times in a custom dialect.

    SINGLE is the time of one step, INTERVAL the time of all steps since the line
    before.
    """

    SINGLE = "single"
    INTERVAL = "interval"


class RegexDialect(Struct, frozen=True):
    """A log format that a baseline file defines by a regular expression.

    An empty text means that the file does not define it.
    """

    name: str  # made by `dialect_table.name_regex_dialect`
    find: str  # a text that the line of every step contains
    pattern: str  # its groups are those of `dialect_table.GROUPS`
    unit: str = "s"  # of the group `seconds`, see `dialect_table.UNITS`
    first_step: int = 0
    averages: TimesOf = TimesOf.SINGLE
    start: str = ""  # a line that contains this text starts a process
    end: str = ""  # a line that contains this text ends its training
    # part of this package; tried on logs in which no other dialect finds a step
    shipped: bool = False
    # reinforcement learning: losses may be 0, and tokens per step vary between runs
    rewards: bool = False


class Source(Struct, frozen=True):
    """The origin of a number: a document, table, file and line."""

    document: str
    table: str = ""
    file: str = ""
    line: int = 0


class AcceptedValue(Struct, frozen=True):
    """A current or earlier value of a recorded baseline."""

    date: str  # of the recording
    seconds: float
    by: str = ""  # user and host of the recording
    reason: str = ""  # for accepting a move beyond the drift budget


class Recording(Struct, frozen=True):
    """The measurement behind a recorded baseline."""

    date: str
    runs: int
    mean_seconds: float
    trimmed_mean_seconds: float
    standard_deviation_seconds: float
    run_seconds: tuple[float, ...]
    log_sha256: tuple[str, ...]
    # the day (UTC) on which the newest run started; "" if a run is undated
    newest_run: str = ""
    by: str = ""  # user and host of the recording
    environment: tuple[tuple[str, str], ...] = ()  # the values common to all runs
    reason: str = ""  # for accepting a move beyond the drift budget
    earlier: tuple[AcceptedValue, ...] = ()  # the values that it replaced, oldest first
    # the number of independent runs (other day or node set); None: not in the file
    groups: int | None = None
    levels: str = ""  # the reason for accepting runs of several levels
    # the medians over the runs, by the names of `Observed`
    observed: tuple[tuple[str, float], ...] = ()


class RunMatch(Struct, frozen=True):
    """The rule that matches runs to a baseline if their names do not identify them.

    A run matches if its path fits and it contradicts none of the facts.
    """

    # the end of a log's path: `#` stands for digits, `*` for any text of a name
    path: str
    says: tuple[tuple[str, str], ...] = ()  # facts from log and metadata, by name


class Baseline(Struct, frozen=True):
    """The expected values of a configuration."""

    configuration: Configuration
    kind: BaselineKind
    step_seconds: float
    cells: tuple[tuple[str, str], ...]  # the texts of the table's row
    window: Window
    timed: str  # the steps that the document timed, in words
    steps: int
    dialect: str
    peak_tflops: float
    source: Source
    tolerances: tuple[Tolerance, ...] = ()  # of file and row, each metric once
    logged_tflops_factor: float | None = None
    recording: Recording | None = None
    # one unit in the last place of the table's step times; 0: not rounded
    resolution_seconds: float = 0.0
    budgets: tuple[Budget, ...] = ()  # of file and row, each metric once
    # the dialect that the file defines; None: a built-in dialect
    log: RegexDialect | None = None
    # the drift budget of the file, a fraction; None: not in the file
    drift_budget: float | None = None
    # the published value next to a recorded one; None: there is none
    published_seconds: float | None = None
    timed_by: TimedBy = TimedBy.WINDOW  # the rule that defines `window`
    # the steps that a valid run must contain; None: those of `window`
    required_window: Window | None = None
    # the steps whose mean the document states; None: unknown
    timed_window: Window | None = None
    match: RunMatch | None = None  # None: runs are matched by their names

    @property
    def key(self) -> Key:
        """The key of the configuration."""
        return self.configuration.key

    @property
    def observed(self) -> dict[str, float]:
        """Values besides the step time, measured in the recorded runs.

        By the names of `Observed`, such as losses and time lost between steps.

        Empty if none were stored.
        """
        return dict(self.recording.observed) if self.recording else {}

    @property
    def required(self) -> Baseline:
        """This baseline, with the window that a run must contain to be valid."""
        if self.required_window is None:
            return self
        return replace(self, window=self.required_window)


class Erratum(Struct, frozen=True):
    """An error in a document: a printed value or sentence that contradicts others."""

    where: str
    printed: str
    corrected: str
    reason: str
    configuration: str = ""
    cell: str = ""


class Contradiction(Struct, frozen=True):
    """A printed number that implies another step time than the printed one."""

    cell: str
    printed: str
    # the nearest step time to the printed one that the number's digits allow
    seconds: float


class Recipe(Struct, frozen=True):
    """One baseline file: a workload in one release of the documents."""

    name: str
    release: str
    kind: BaselineKind
    title: str
    framework: str
    dialect: str
    names: tuple[str, ...]
    layout: str
    baselines: tuple[Baseline, ...]
    errata: tuple[Erratum, ...]
    launch: tuple[tuple[str, object], ...]
    path: Path
    log: RegexDialect | None = None
    dp_excludes_ep: bool = False  # the DP column counts replicas of all experts
