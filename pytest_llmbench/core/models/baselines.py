"""What baseline files say: configurations, their documented numbers, and who vouches for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What makes two runs the same benchmark; unique among the baselines of one kind."""

    recipe: str
    size: str
    release: str
    gpu: str
    dtype: str
    gpus: int
    task: str = ""
    scaling: str = ""
    variant: str = ""

    @property
    def id(self) -> str:
        """`grok1_314b-25.05-gb200-bf16-128`, with task, scaling and variant appended where they are set."""
        head = f"{self.recipe}_{self.size}-{self.release}-{self.gpu}-{self.dtype}-{self.gpus}"
        return "-".join([head, *filter(None, (self.task, self.scaling, self.variant))])


@dataclass(frozen=True, slots=True)
class Architecture:
    """The model as one configuration trains it (a proxy has fewer layers, a shorter sequence)."""

    formula: str
    sequence_length: int
    layers: int
    hidden_size: int
    vocabulary_size: int
    ffn_size: int | None = None
    attention_heads: int | None = None
    query_groups: int | None = None
    top_k: int | None = None


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
    global_batch_size: int
    micro_batch_size: int | None = None
    gradient_accumulation: int | None = None
    proxy: bool = False


class Window(NamedTuple):
    """The steps that count, in the log's own step numbers, both ends included."""

    first: int
    last: int
    statistic: str = "mean"

    def __str__(self) -> str:
        if self.first == self.last:
            return f"step {self.first}"
        return f"{self.statistic.replace('_', ' ')} of steps {self.first} to {self.last}"


class BaselineKind(StrEnum):
    """Who vouches for the numbers of a baseline file, if anybody does."""

    PUBLISHED = "published"
    RECORDED = "recorded"
    RECIPE = "recipe"
    """A configuration that has no value yet: its `step_seconds` is NaN."""


class TimedBy(StrEnum):
    """What decides a verdict: the mean over the window that the baseline file pins, or what its document timed."""

    WINDOW = "window"
    DOCUMENT = "document"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much worse than its baseline a run may be in one metric that follows from its step time.

    `of` is "time" (5 % more time), "performance" (5 % less), or a metric's name; `larger_is_better` is that metric's
    direction, `source` what decided (an option, an ini file, a baseline file).
    """

    fraction: float
    of: str = "time"
    larger_is_better: bool = False
    source: str = ""

    @property
    def factor(self) -> float:
        """The bound on the step time, as a multiple of the baseline's."""
        return 1 / (1 - self.fraction) if self.larger_is_better else 1 + self.fraction

    def __str__(self) -> str:
        percent = f"{self.fraction * 100:.10g} %"
        if self.of == "time":
            return percent
        same_time = f" (+{(self.factor - 1) * 100:.3g} % time)" if self.larger_is_better else ""
        return f"{percent} of {self.of}{same_time}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest value of a metric that a run may have, in the metric's unit; `place` is where it was written."""

    metric: str
    largest: float
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class RegexDialect:
    """How a baseline file says that its framework writes a step; every text as in the file, empty where it says none.

    name: as in `dialects.name_regex_dialect`. find: stands in the line of every step. pattern: its groups are those of
    `dialects.GROUPS`. unit: of the group `seconds`, see `dialects.UNITS`. averages: "interval" where the time is the
    mean since the line before, else "single". start, end: lines that hold them begin a process, and end its training.
    """

    name: str
    find: str
    pattern: str
    unit: str = "s"
    first_step: int = 0
    averages: str = "single"
    start: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a number was read."""

    document: str
    table: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class AcceptedValue:
    """A value that a recorded baseline has or had: when it was recorded, by whom, and the reason that was given for it
    where it moved further than the drift budget allows."""

    date: str
    seconds: float
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """How a recorded baseline was measured; durations in seconds.

    `by` is who recorded it, and on which host; `environment` what its runs agree on; `newest_run` the day (UTC) on
    which the newest of them started, empty where one does not say when. `earlier` are the values that it replaced,
    oldest first; `reason` is why it may stand where it moved further from them than the drift budget allows. `groups`
    is how many of its runs are independent (another night or set of nodes), None where the file does not say it.
    `levels` is why the mean of runs of several levels may stand.
    """

    date: str
    runs: int
    mean_seconds: float
    trimmed_mean_seconds: float
    standard_deviation_seconds: float
    run_seconds: tuple[float, ...]
    log_sha256: tuple[str, ...]
    newest_run: str = ""
    by: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    earlier: tuple[AcceptedValue, ...] = ()
    groups: int | None = None
    levels: str = ""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The expected values of a configuration. `cells` are the printed texts; `timed` is what the document timed.

    `resolution_seconds` is one unit in the last place that its table prints of a step time, 0 where nothing is rounded;
    `tolerances` and `budgets` are those of its file and row, each metric once. `log` is the dialect that the file
    defines, None for a built-in one. `drift_budget` is how far its file lets recorded values move, as a fraction, None
    where it says nothing. `published_seconds` is beside a recorded value what its document says, None where none does.
    `timed_by` is why `window` is judged; `required_window` are the steps that a run has to hold for it to count, where
    those are others, None where they are not.
    """

    configuration: Configuration
    kind: BaselineKind
    step_seconds: float
    cells: tuple[tuple[str, str], ...]
    window: Window
    timed: str
    steps: int
    dialect: str
    peak_tflops: float
    source: Source
    tolerances: tuple[Tolerance, ...] = ()
    logged_tflops_factor: float | None = None
    recording: Recording | None = None
    resolution_seconds: float = 0.0
    budgets: tuple[Budget, ...] = ()
    log: RegexDialect | None = None
    drift_budget: float | None = None
    published_seconds: float | None = None
    timed_by: TimedBy = TimedBy.WINDOW
    required_window: Window | None = None

    @property
    def key(self) -> Key:
        """The key of its configuration."""
        return self.configuration.key

    @property
    def required(self) -> Baseline:
        """The baseline by which it is decided whether a run counts."""
        return self if self.required_window is None else replace(self, window=self.required_window)


@dataclass(frozen=True, slots=True)
class Erratum:
    """A printed value that does not follow from the others, or a sentence that contradicts a table."""

    where: str
    printed: str
    corrected: str
    reason: str
    configuration: str = ""
    cell: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One baseline file: a workload in one release of the documents.

    `dp_excludes_ep`: the DP column counts copies of all the experts.
    """

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
    dp_excludes_ep: bool = False
