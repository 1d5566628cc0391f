"""What baseline files say: configurations, their documented numbers, and who vouches
for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

MEGATRON_BRIDGE = "megatron_bridge"
"""The recipe of the shipped tables, whose runs are told by more than names."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What makes two runs the same benchmark; unique among the baselines of one
    kind."""

    recipe: str
    size: str
    release: str
    gpu: str
    dtype: str
    gpus: int  # 0 where nothing says it, and nothing is computed of one GPU
    task: str = ""
    scaling: str = ""
    variant: str = ""

    @property
    def id(self) -> str:
        """`grok1_314b-25.05-gb200-bf16-128`, with task, scaling and variant appended
        where they are set."""
        gpus = self.gpus or "unknown"
        head = (
            f"{self.recipe}_{self.size}-{self.release}-{self.gpu}-{self.dtype}-{gpus}"
        )
        return "-".join([head, *filter(None, (self.task, self.scaling, self.variant))])


@dataclass(frozen=True, slots=True)
class Architecture:
    """The model as one configuration trains it (a proxy has fewer layers, a shorter
    sequence).

    A size of 0 is one that nothing states: no formula counts the FLOPs of such a model.
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
    head_size: int | None = (
        # of keys and queries; the hidden size over the heads where nothing is stated
        None
    )
    mlp_matrices: int | None = None  # 3 where nothing is stated: a gated MLP
    expert_ffn_size: int | None = None  # of one routed expert
    shared_ffn_size: int | None = None  # of all experts that each token goes through
    dense_layers: int | None = None  # layers without experts, in a model with experts
    mtp_layers: int | None = None  # which predict further tokens
    q_rank: int | None = None  # of multi-head latent attention, as the next four
    kv_rank: int | None = None
    qk_head_size: int | None = None  # without the part that is rotated
    rope_size: int | None = None
    v_head_size: int | None = None
    attention_layers: int | None = (
        None  # of a hybrid; its other layers are those of Mamba
    )
    mlp_layers: int | None = None
    expert_layers: int | None = None
    expert_latent_size: int | None = (
        None  # of the hidden states that routed experts work on, where it is another
    )
    mamba_state_size: int | None = None
    mamba_groups: int | None = None
    mamba_heads: int | None = None


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the parallel groups; None where the document prints NA or nothing."""

    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    vp: int | None = None
    fsdp: int | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """One parametrized test: a recipe on a GPU type, precision and number of GPUs."""

    key: Key
    architecture: Architecture
    parallelism: Parallelism
    global_batch_size: int = 0  # 0 where nothing states it
    micro_batch_size: int | None = None
    gradient_accumulation: int | None = None
    proxy: bool = False
    logged_tflop: float | None = (
        None  # of a step on one GPU, as its framework counts and logs it
    )
    arguments: tuple[
        tuple[str, str], ...
    ] = ()  # by the name of a command that launches it, what is its alone


class Window(NamedTuple):
    """The steps that count, in the log's own step numbers, both ends included."""

    first: int
    last: int
    statistic: str = "mean"

    def __str__(self) -> str:
        if self.first == self.last:
            return f"step {self.first}"
        return (
            f"{self.statistic.replace('_', ' ')} of steps {self.first} to {self.last}"
        )


USUAL_WINDOW = Window(11, 44)
"""The steps that the documents of releases 25.05 to 25.07 average: the default of
baseline files."""

USUAL_STEPS = 50
"""The steps of a run in those documents."""


class BaselineKind(StrEnum):
    """Who vouches for the numbers of a baseline file, if anybody does."""

    PUBLISHED = "published"
    RECORDED = "recorded"
    RECIPE = (
        "recipe"  # a configuration that has no value yet: its `step_seconds` is NaN
    )


class TimedBy(StrEnum):
    """What decides a verdict: the mean over the window that the baseline file pins, or
    what its document timed."""

    WINDOW = "window"
    DOCUMENT = "document"


class ToleranceSource(StrEnum):
    """What decided a tolerance, as messages and reports name it."""

    DEFAULT = "default"
    FILE = "baseline file"
    INI = "ini"
    OPTION = "--llmb-tolerance"
    CERTIFICATE = "--llmb-certify"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much worse than its baseline a run may be in one metric that follows from its
    step time."""

    fraction: float
    # "time" (5 % more time), "performance" (5 % less), or the name of a metric
    of: str = "time"
    larger_is_better: bool = False  # the direction of that metric
    source: str = (
        ""  # what decided: a `ToleranceSource`, empty where nothing was written
    )

    @property
    def factor(self) -> float:
        """The bound on the step time, as a multiple of the baseline's."""
        return 1 / (1 - self.fraction) if self.larger_is_better else 1 + self.fraction

    def __str__(self) -> str:
        percent = f"{self.fraction * 100:.10g} %"
        if self.of == "time":
            return percent
        same_time = (
            f" (+{(self.factor - 1) * 100:.3g} % time)" if self.larger_is_better else ""
        )
        return f"{percent} of {self.of}{same_time}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest value of a metric that a run may have."""

    metric: str
    largest: float  # in the metric's unit
    place: str = field(default="", compare=False)  # where it was written


class TimesOf(StrEnum):
    """What the times of a defined dialect are of: of one step each, or of all steps
    since the line before."""

    SINGLE = "single"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class RegexDialect:
    """How a baseline file says that its framework writes a step; a text is empty where
    it says none."""

    name: str  # made by `dialect_table.name_regex_dialect`
    find: str  # stands in the line of every step
    pattern: str  # its groups are those of `dialect_table.GROUPS`
    unit: str = "s"  # of the group `seconds`, see `dialect_table.UNITS`
    first_step: int = 0
    averages: TimesOf = TimesOf.SINGLE
    start: str = ""  # lines that hold it begin a process
    end: str = ""  # lines that hold it end its training
    # it comes with this package, and is tried on logs in which nothing else finds a
    # step
    shipped: bool = False
    # its runs learn from rewards: losses may be 0, and tokens of a step differ from run
    # to run
    rewards: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Where a number was read."""

    document: str
    table: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class AcceptedValue:
    """A value that a recorded baseline has or had."""

    date: str  # when it was recorded
    seconds: float
    by: str = ""  # by whom, on which host
    reason: str = ""  # given where it moved further than the drift budget allows


@dataclass(frozen=True, slots=True)
class Recording:
    """How a recorded baseline was measured."""

    date: str
    runs: int
    mean_seconds: float
    trimmed_mean_seconds: float
    standard_deviation_seconds: float
    run_seconds: tuple[float, ...]
    log_sha256: tuple[str, ...]
    # the day (UTC) on which the newest of them started, empty where one does not say
    # when
    newest_run: str = ""
    by: str = ""  # who recorded it, and on which host
    environment: tuple[tuple[str, str], ...] = ()  # what its runs agree on
    reason: str = (
        ""  # why it may stand where it moved further than the drift budget allows
    )
    earlier: tuple[AcceptedValue, ...] = ()  # the values that it replaced, oldest first
    # how many of its runs are independent (another night or set of nodes), None where
    # the file does not say it
    groups: int | None = None
    levels: str = ""  # why the mean of runs of several levels may stand
    observed: tuple[
        tuple[str, float], ...
    ] = ()  # the medians of what its runs observed, by a name of `Observed`


@dataclass(frozen=True, slots=True)
class RunMatch:
    """Which runs a baseline is of, if no name says it: those at such a place that
    contradict nothing of this."""

    # the end of a log's path: `#` stands for digits, `*` for any text of a name
    path: str
    says: tuple[tuple[str, str], ...] = ()  # what log and metadata state, by name


@dataclass(frozen=True, slots=True)
class Baseline:
    """The expected values of a configuration."""

    configuration: Configuration
    kind: BaselineKind
    step_seconds: float
    cells: tuple[tuple[str, str], ...]  # the printed texts
    window: Window
    timed: str  # what the document timed
    steps: int
    dialect: str
    peak_tflops: float
    source: Source
    tolerances: tuple[
        Tolerance, ...
    ] = ()  # those of its file and row, each metric once
    logged_tflops_factor: float | None = None
    recording: Recording | None = None
    # one unit in the last place that its table prints of a step time, 0 where nothing
    # is rounded
    resolution_seconds: float = 0.0
    budgets: tuple[Budget, ...] = ()  # of its file and row, each metric once
    log: RegexDialect | None = (
        None  # the dialect that the file defines, None for a built-in one
    )
    # how far its file lets recorded values move, a fraction, None where it says nothing
    drift_budget: float | None = None
    published_seconds: float | None = (
        None  # beside a recorded value what its document says, None where none does
    )
    timed_by: TimedBy = TimedBy.WINDOW  # why `window` is judged
    # the steps that a run has to hold for it to count, None where those are `window`
    required_window: Window | None = None
    timed_window: Window | None = (
        # the steps of which the document states the mean, None where nothing says it
        None
    )
    match: RunMatch | None = (
        None  # None: the names of a run say whether it is of this configuration
    )

    @property
    def key(self) -> Key:
        """The key of its configuration."""
        return self.configuration.key

    @property
    def observed(self) -> dict[str, float]:
        """What its recorded runs showed beside their step time, by a name of
        `Observed`; empty if nothing was kept."""
        return dict(self.recording.observed) if self.recording else {}

    @property
    def required(self) -> Baseline:
        """The baseline by which it is decided whether a run counts."""
        return (
            self
            if self.required_window is None
            else replace(self, window=self.required_window)
        )


@dataclass(frozen=True, slots=True)
class Erratum:
    """A printed value that does not follow from the others, or a sentence that
    contradicts a table."""

    where: str
    printed: str
    corrected: str
    reason: str
    configuration: str = ""
    cell: str = ""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A printed number of a baseline from which another step time follows than the
    printed one."""

    cell: str
    printed: str
    # the step time nearest to the printed one that the number allows, within its digits
    seconds: float


@dataclass(frozen=True, slots=True)
class Recipe:
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
    dp_excludes_ep: bool = False  # the DP column counts copies of all the experts
