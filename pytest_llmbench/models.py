"""What the stages hand to each other: frozen records, tuples and columns; no behaviour beyond names and ids."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from pytest_llmbench.jobs import Launched

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]


class Verdict(StrEnum):
    """What is said of one configuration."""

    PASS = "PASS"
    REGRESSION = "REGRESSION"
    IMPROVEMENT = "IMPROVEMENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    MISSING = "MISSING"


JUDGED = frozenset({Verdict.PASS, Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE})
"""The verdicts that rest on a valid run."""


class Reason(StrEnum):
    """Why a verdict was reached: stable codes, for machines."""

    WITHIN_TOLERANCE = "within-tolerance"
    SLOWER_THAN_BOUND = "slower-than-bound"
    FASTER_THAN_BASELINE = "faster-than-baseline"
    CANNOT_TELL = "cannot-tell"
    WARMING_UP = "warming-up"
    FEW_STEPS_DECIDE = "few-steps-decide"
    DIVERGED = "diverged"
    LOSS_MISSING = "loss-missing"
    INCOMPLETE = "incomplete"
    STILL_RUNNING = "still-running"
    NO_STEPS = "no-steps"
    WINDOW_INCOMPLETE = "window-incomplete"
    IMPOSSIBLE_SAMPLE = "impossible-sample"
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    WRONG_CONFIGURATION = "wrong-configuration"
    PROFILED = "profiled"
    TRACED = "traced"
    CHECKPOINT_LOAD = "checkpoint-load"
    NO_RUN = "no-run"
    TOO_OLD = "too-old"
    START_UNKNOWN = "start-unknown"
    ONLY_NOT_COMPARABLE = "only-not-comparable"
    UNMATCHED = "unmatched"
    AMBIGUOUS = "ambiguous"
    UNREADABLE = "unreadable"
    REPEATS_DISAGREE = "repeats-disagree"
    NO_BASELINE = "no-baseline"
    NOT_ON_CLUSTER = "not-on-cluster"
    NOT_LAUNCHED = "not-launched"
    NOT_SUBMITTED = "not-submitted"
    NEVER_STARTED = "never-started"
    JOB_FAILED = "job-failed"
    FAILED_STEP = "failed-step"
    CANCELLED = "cancelled"
    JOB_LOST = "job-lost"
    LOG_MISSING = "log-missing"
    OVER_BUDGET = "over-budget"
    BUDGET_UNKNOWN = "budget-unknown"
    PURPOSE_DONE = "not-judged"
    PURPOSE_MISSED = "nothing-left"


# --- configurations and baselines -------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that count, in the log's own step numbers, both ends included."""

    first: int
    last: int
    statistic: str = "mean"

    def __str__(self) -> str:
        return f"{self.statistic.replace('_', ' ')} of steps {self.first} to {self.last}"


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

    name: as in `dialects.regex_name`. find: stands in the line of every step. pattern: its groups are those of
    `patterns.GROUPS`. unit: of the group `seconds`, see `patterns.UNITS`. averages: "interval" where the time is the
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
class Recording:
    """How a recorded baseline was measured; durations in seconds."""

    date: str
    runs: int
    mean_seconds: float
    trimmed_mean_seconds: float
    standard_deviation_seconds: float
    run_seconds: tuple[float, ...]
    log_sha256: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The expected values of a configuration. `cells` are the printed texts; `timed` is what the document timed.

    `kind` is published, recorded, or recipe: a configuration that has no value yet, whose `step_seconds` is NaN.
    `resolution_seconds` is one unit in the last place that its table prints of a step time, 0 where nothing is rounded;
    `tolerances` and `budgets` are those of its file and row, each metric once. `log` is the dialect that the file
    defines, None for a built-in one.
    """

    configuration: Configuration
    kind: str
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

    @property
    def key(self) -> Key:
        """The key of its configuration."""
        return self.configuration.key


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
    """One baseline file: a workload in one release of the documents."""

    name: str
    release: str
    kind: str
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


# --- logs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of one segment as columns of equal length n, ordered by step.

    index: the log's own step numbers. seconds: step time as printed, so also NaN, infinite, zero or negative.
    resolution_seconds: one unit in the last significant
    place that was printed (0.1 for NeMo 1's `24.00`, 0 where nothing was rounded). line: 1-based line in the log.
    mean_of: how many steps `seconds` is the mean of, up to and with this one, where a log prints only every n-th step;
    1 where it is the time of that step alone. asynchronous: the time is that of dispatching the step only.
    loss, grad_norm, tflops_per_gpu, tokens_per_second_per_gpu, global_batch_size, peak_memory_bytes: NaN where the
    log does not print them; `has_loss` and `has_grad_norm` tell a printed NaN from a missing field.
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

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Records that were read but not kept: how many, why, and where the first one stands."""

    reason: str
    count: int
    first_line: int
    example: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A dialect of a baseline file that finds no step in a log: in how many lines its `find` stands, and the first of
    them that its pattern does not match; 0 and empty where no line holds it."""

    dialect: str
    find: str
    count: int = 0
    first_line: int = 0
    example: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a log that is one attempt. `total_steps` is the log's own total, `finished` its end marker,
    `first_step` the number that its dialect gives to the first step of a run."""

    steps: Steps
    first_line: int
    last_line: int
    rank: str = ""
    total_steps: int | None = None
    finished: bool = False
    first_step: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a log says it ended: a short code ("time-limit", "traceback", ...), the text that says so, and its line.

    file: the name of the file of that line where it is not the log itself. rank: which process wrote it, in words.
    beside: what else happened, before it or because of it. went_on: steps follow, so it may be no more than a warning.
    """

    code: str
    text: str
    line: int
    file: str = ""
    rank: str = ""
    beside: Ending | None = None
    went_on: bool = False


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
        return next((one.line for one in self.records if one.action == LOAD), 0)

    @property
    def save_line(self) -> int:
        """The first line that says that a checkpoint was saved, 0 for none."""
        return next((one.line for one in self.records if one.action == SAVE), 0)


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """What one log says. Lines are 1-based, 0 where there is none; between the first and the last NCCL line (not always
    the very last) every part is traced. `readings` is the log as other dialects read it, where baseline files define
    some: which one counts is known when the run is. `prints_loss`: its dialect prints the loss of each step.
    `begun_again_line`: where a process started behind the last step of a finished run. `unread`:
    why the dialects of baseline files find none, of a log without any step."""

    dialect: str | None
    segments: tuple[Segment, ...]
    dropped: tuple[Dropped, ...] = ()
    ending: Ending | None = None
    started: datetime | None = None
    nccl_line: int = 0
    nccl_last_line: int = 0
    checkpoints: Checkpoints = Checkpoints()
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
        return frozenset(one.dialect for one in (self, *self.readings) if one.dialect)

    def read_as(self, *dialects: str) -> ParsedLog:
        """Return the log as the first of these dialects reads it, as it is where none of them does."""
        by_name = {one.dialect: one for one in (self, *self.readings)}
        read = next((by_name[name] for name in dialects if name in by_name), self)
        return replace(read, fingerprint=self.fingerprint, size_bytes=self.size_bytes, readings=())


# --- runs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clue:
    """One thing that a name or metadata says about a run: `field` is a Key field, or global_batch_size, tp, ..."""

    field: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The files of one attempt: its log, its standard error where it stands apart, and its restart count."""

    number: int
    log: Path
    err: Path | None = None


@dataclass(frozen=True, slots=True)
class Shards:
    """How many *.distcp files stand below a folder of a run, which is relative to that of its log; with `partial` there
    may be more."""

    folder: str
    count: int
    partial: bool = False


@dataclass(frozen=True, slots=True)
class FoundRun:
    """Files on disk that are one execution, and what their names and metadata say.

    `layout` is results, experiments, workloads or empty. `started` is what its metadata or its own folder says, `dated`
    what only a folder above or a bare day says. `excluded` is positive evidence that the run is not comparable. `build`
    is what its metadata says of container, commit and framework: equal texts are one build, empty is unknown. `launch`
    is the launch that started it, one text for the runs that count for one verdict; empty for a run found on disk.
    `launcher` is what started it (sbatch, nemo-run, configured-sbatch, ...), empty where nothing tells. `saves` is
    positive evidence that it was to save a checkpoint, and `shards` what of one is on disk, None where nothing was
    looked at.
    """

    id: str
    folder: Path
    attempts: tuple[AttemptFiles, ...]
    clues: tuple[Clue, ...]
    job_id: str = ""
    layout: str = ""
    metadata: Path | None = None
    started: datetime | None = None
    started_from: str = ""
    dated: datetime | None = None
    dated_from: str = ""
    modified: datetime | None = None
    excluded: Reason | None = None
    excluded_because: str = ""
    build: str = ""
    launch: str = ""
    launcher: str = ""
    saves: str = ""
    shards: Shards | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found: runs, files that are no runs (with the reason), and what could not be read."""

    runs: tuple[FoundRun, ...]
    ignored: tuple[tuple[Path, str], ...] = ()
    unreadable: tuple[tuple[Path, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """Which configuration a run is. `key` is None when nothing or more than one fits; `because` says why, in words.
    `assumed` lists what nothing said and only one candidate allowed (release, gpu), `contradicted` the fields of which
    its sources say several things."""

    key: Key | None
    because: str
    candidates: tuple[Key, ...] = ()
    nearest: tuple[Key, ...] = ()
    assumed: tuple[str, ...] = ()
    contradicted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One attempt, read."""

    files: AttemptFiles
    log: ParsedLog


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One execution: what was found, what its logs say, and which configuration it is."""

    found: FoundRun
    attempts: tuple[Attempt, ...]
    identity: Identity
    started: datetime | None = None
    started_from: str = ""

    @property
    def id(self) -> str:
        """A short name that is unique in its session."""
        return self.found.id


# --- measurement and judgement ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured quantity; its unit and direction are declared once, in measure.metrics."""

    name: str
    value: float
    standard_deviation: float | None = None
    unit: str = ""
    larger_is_better: bool | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something a reader should know that changes no verdict, with the log line it stands on (0: none)."""

    code: str
    text: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run cannot be judged."""

    reason: Reason
    text: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Try:
    """One of the attempts that the logs of a run tell of, numbered from 1: a part of a log, or a log without any step.

    `line` is its first one (0: none), `first_step` and `last_step` are the log's own numbers, None without steps;
    `ended` says how it ended in words, `finished` whether it reached its last step. `starts_over`: it began anew after
    one that had finished, so it is another run and no restart. `judged`: the one that counts.
    """

    number: int
    log: Path
    line: int
    first_step: int | None
    last_step: int | None
    finished: bool
    ended: str
    starts_over: bool = False
    judged: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """What one run measured against one baseline's window. `problems` is empty for a valid run; `statistic_seconds` is
    None where the window could not be measured; `window_seconds` are the step times in the window, with their numbers
    and log lines beside them; `mean_of` says of each how many steps, up to its number, it is the mean of, and is empty
    where all are single steps; `moving_mean` is the number of steps that each of them is a moving mean of (1: itself);
    `resolution_seconds` one unit in the last place of most of them; `expected` are the metrics at the baseline's
    step time; `checkpoints` is what the log says of them in the part that was measured; `tries` are all attempts that
    the logs of the run tell of."""

    run: Run
    baseline: Baseline
    log: Path | None
    attempt: int
    segment: int
    statistic_seconds: float | None
    last_step_seconds: float | None
    window_seconds: tuple[float, ...]
    metrics: Sequence[Metric]
    window_steps: tuple[int, ...] = ()
    window_lines: tuple[int, ...] = ()
    mean_of: tuple[int, ...] = ()
    moving_mean: int = 1
    resolution_seconds: float = 0.0
    expected: Sequence[Metric] = ()
    problems: tuple[Problem, ...] = ()
    notes: Sequence[Note] = ()
    excluded: Problem | None = None
    checkpoints: Checkpoints = Checkpoints()
    tries: Sequence[Try] = ()

    @property
    def valid(self) -> bool:
        """Whether it can stand for a night: measured, and nothing wrong with it."""
        return self.statistic_seconds is not None and not self.problems and self.excluded is None

    def metric(self, name: str) -> Metric:
        """The metric of that name; KeyError, with the names that there are, for one that the run does not have."""
        by_name = {metric.name: metric for metric in self.metrics}
        if name not in by_name:
            raise KeyError(f"{name!r} is not among the metrics of this run: {', '.join(by_name)}")
        return by_name[name]


@dataclass(frozen=True, slots=True)
class Noise:
    """How much the logarithm of a run's statistic varies from run to run: standard deviation `sigma`, and what says so.

    `measured` is False for an assumption, which holds nothing of what happens within a run.
    """

    sigma: float
    degrees_of_freedom: float
    source: str
    measured: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is reached from: the measurements of one configuration, newest first, and the settings that apply.

    `history` are further, older ones that only tell the noise. `prior` is what other configurations say of it, or an
    assumption; `assumed_cv` the run-to-run variation that one without a history of its own has at least. Runs of one
    launch are repeats of each other; of those found on disk, the ones of one build that started within `repeat_window`
    of the newest. `level` is the probability of a wrong PASS at the bound. `now` is the time of the session; `max_age`
    limits how old the judged run may be.
    """

    baseline: Baseline
    measurements: tuple[Measurement, ...]
    tolerance: Tolerance
    now: datetime
    prior: Noise
    max_age: timedelta | None = None
    history: tuple[Measurement, ...] = ()
    repeat_window: timedelta | None = None
    level: float = 0.05
    assumed_cv: float = 0.01


@dataclass(frozen=True, slots=True)
class Estimate:
    """How well a difference to the baseline is known. All but `detectable` are logarithms, slower is positive.

    `difference` is the mean over `runs` of log(statistic / baseline), `low` and `high` are its one-sided bounds (each
    wrong with probability `level`), `margin` is the bound of the verdict, `p_slower` the p-value of "not slower than
    the baseline". `rounding` is the standard error from the printed baseline's digits, `effective_sample_size` the
    number of independent steps. `detectable` is the smallest slowdown against the baseline, as a fraction, that such a
    run shows with 80 % probability; `repeats_needed` the number of runs that would settle the verdict, None where none
    would. `threshold_only`: nothing is known of the error, and the numbers are compared as they are.
    """

    difference: float
    standard_error: float
    degrees_of_freedom: float
    low: float
    high: float
    margin: float
    level: float
    runs: int
    noise: Noise
    within_run_error: float
    effective_sample_size: float
    rounding: float
    detectable: float
    repeats_needed: int | None
    p_slower: float | None
    threshold_only: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one configuration. `bound_seconds` is the largest step time that passes; `log_difference` is
    log(measured / expected), slower is positive; `meets_point` is the literal rule, measured <= bound; `repeats` are
    the other runs that were averaged with `measurement`; `estimate` is None where nothing was compared. Against a
    baseline without a value `bound_seconds` is NaN."""

    verdict: Verdict
    reason: Reason
    text: str
    baseline: Baseline
    bound_seconds: float
    tolerance: Tolerance
    measurement: Measurement | None = None
    log_difference: float | None = None
    meets_point: bool | None = None
    notes: tuple[Note, ...] = ()
    estimate: Estimate | None = None
    repeats: tuple[Measurement, ...] = ()


# --- items ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """What one test item is about: a configuration, with `run_id` where every run has an item of its own."""

    id: str
    key: Key
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What one item besides the configurations says: of several of them together, or of the gate itself.

    `kind` is weak-scaling, fp8-speedup, cluster-change or selftest, `verdict` a word for it, `lines` the rows of its
    table, `message` the text of the item. `decides` is False where it only reports.
    """

    kind: str
    id: str
    status: Status
    verdict: str
    text: str
    lines: tuple[str, ...] = ()
    decides: bool = False
    message: str = ""

    @property
    def failed(self) -> bool:
        """Whether the item has to fail."""
        return self.status is Status.FAILED

    @property
    def skipped(self) -> bool:
        """Whether the item has to be skipped."""
        return self.status is Status.SKIPPED


@dataclass(frozen=True, slots=True)
class Stray:
    """A run that no baseline fits, or an entry that could not be read: an item that fails unless it is allowed.

    `candidates` are the configurations that it may be a run of, `nearest` those that differ least, `message` is the
    text of its item.
    """

    id: str
    reason: Reason
    text: str
    path: Path
    candidates: tuple[Key, ...] = ()
    nearest: tuple[Key, ...] = ()
    started: datetime | None = None
    message: str = ""


class Status(StrEnum):
    """What becomes of the item of a verdict."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and what follows from it in this session.

    `others` are the verdicts against further baselines, `context` is what the whole session adds ("nothing was
    judged"), `recorded` and `recorded_seconds` what was written instead of judging, `message` the text of the item.
    `jobs` are those that were launched for it, in order, and `nodes` says what they tell of the nodes.
    """

    case: Case
    status: Status
    judgement: Judgement
    others: tuple[Judgement, ...] = ()
    context: str = ""
    recorded: str = ""
    recorded_seconds: float | None = None
    message: str = ""
    jobs: tuple[Launched, ...] = ()
    nodes: str = ""

    @property
    def judged(self) -> bool:
        """Whether the verdict rests on a valid run, and nothing in the session puts it in doubt."""
        return self.judgement.verdict in JUDGED and not self.context

    @property
    def failed(self) -> bool:
        """Whether the item has to fail."""
        return self.status is Status.FAILED

    @property
    def skipped(self) -> bool:
        """Whether the item has to be skipped."""
        return self.status is Status.SKIPPED
