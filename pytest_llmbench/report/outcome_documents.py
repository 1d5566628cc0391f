"""Records of the session document: the source of all reports and of --llmb-json.

The fields are in the order of the JSON keys. `scripts/json_schema` writes
`session.schema.json` from these records; the docstring of a field is its description
there. A field with a default is absent from JSON if it has the default value. msgspec
converts and validates the records.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

SCHEMA = 1
"""Increased when a field changes its meaning; fields may be added."""

Number: TypeAlias = int | float

Status: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["passed", "failed", "skipped"]})
]

Timed: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["window", "document"]})
]

VERDICTS = (
    "PASS",
    "REGRESSION",
    "IMPROVEMENT",
    "INCONCLUSIVE",
    "INVALID",
    "NOT_COMPARABLE",
    "MISSING",
    "RECORDED",
    "TEST_FAILED",
    "NOT_ASSERTED",
)

Verdict: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": VERDICTS})]

Environment: TypeAlias = dict[str, str | None]
"""Software versions of a run, such as driver, nccl, pytorch, container, commit."""


class Document(Struct, frozen=True, omit_defaults=True, gc=False):
    """Base class of the records in a session document."""


# --- a judgement ----------------------------------------------------------------------


class ReportedNote(Document, frozen=True, kw_only=True):
    """A note or a problem of a run."""

    code: str
    text: str
    line: int
    """Line of the log, 1-based; 0 without a line."""


class ReportedMetric(Document, frozen=True, kw_only=True):
    """A metric of a run."""

    value: Number | None
    standard_deviation: Number | None
    """Over the steps of the window."""
    unit: str


class ReportedNoise(Document, frozen=True, kw_only=True):
    """The variation of a configuration's step time between runs."""

    sigma: Number
    degrees_of_freedom: Number | None
    source: str
    measured: bool


class ReportedEstimate(Document, frozen=True, kw_only=True):
    """The estimated difference from the baseline, and its uncertainty."""

    difference: Number
    """Fraction of the baseline's step time, slower is positive; also low, high and
    margin."""
    low: Number | None
    high: Number | None
    margin: Number | None
    level: Number
    """Probability that the true difference is above `high`."""
    regression_level: Number
    """Probability that the true difference is below `low`."""
    standard_error: Number | None
    degrees_of_freedom: Number | None
    """Null for infinitely many."""
    runs: int
    run_to_run: ReportedNoise
    within_run_error: Number | None
    effective_sample_size: Number | None
    baseline_rounding: Number | None
    detectable: Number | None
    """The smallest slowdown that a run like this detects."""
    repeats_needed: int | None
    p_slower: Number | None
    threshold_only: bool


class ReportedWindow(Document, frozen=True, kw_only=True):
    """The judged steps, `first` and `last` included."""

    first: int
    last: int
    statistic: str
    text: str


class FirstRecorded(Document, frozen=True, kw_only=True):
    """The value from which the drift of a recorded baseline is measured."""

    date: str
    seconds: Number
    by: str
    reason: str


class ReportedRecording(Document, frozen=True, kw_only=True):
    """Author, date and history of a recorded baseline."""

    date: str
    by: str
    environment: dict[str, str]
    reason: str
    earlier: int
    """Number of earlier values that it replaced."""
    runs: int
    groups: int | None
    """Number of independent runs (k0)."""
    levels: str
    """Reason to accept the mean of runs at several levels."""
    first: FirstRecorded


class ReportedBaseline(Document, frozen=True, kw_only=True):
    """The baseline that a run was judged against, and its location."""

    kind: str
    """published, recorded or recipe."""
    timed: str
    document: str
    table: str
    file: str
    line: int
    published_seconds: Number | None
    """Documented step time of a recorded baseline; null without a document."""
    cells: dict[str, str]
    """Table cells of the document, verbatim."""
    recorded: ReportedRecording | None


class ComparedFactsOfRuns(Document, frozen=True, kw_only=True):
    """Names of the equal facts of two runs, and both values of the differing facts.

    The value of the earlier run comes first.
    """

    same: tuple[str, ...]
    differs: dict[str, tuple[str, str]]


class ComparedNodes(Document, frozen=True, kw_only=True):
    """The nodes of the last good run and of the judged run."""

    before: tuple[str, ...]
    now: tuple[str, ...]


class ReportedLastGood(Document, frozen=True, kw_only=True):
    """The last good run of the configuration before a slow run."""

    started: str
    job_id: str
    verdict: str
    days: int
    """Number of days with a run since then, including the judged run."""
    source: Annotated[str, Meta(extra_json_schema={"enum": ["folder", "history"]})]
    """The source of the run."""
    step_time_seconds: Number
    difference: Number | None
    """Difference of the judged run from this run, a fraction; slower is positive. Null
    if the judged run has no meaningful step time."""
    software: ComparedFactsOfRuns
    settings: ComparedFactsOfRuns
    nodes: ComparedNodes | None
    """From the history and the launch; null if unknown for either run."""
    steps: tuple[str, str] | None
    """Descriptions of the step pattern of this run and of the judged run."""


class TimedWindow(Document, frozen=True, kw_only=True):
    """The steps that a document presumably timed, and their mean."""

    text: str
    seconds: Number | None


ORDER_SOURCES = (
    "metadata",
    "folder-name",
    "log",
    "folder-above",
    "file-time",
    "mixed",
    "unknown",
)


class ReportedRun(Document, frozen=True, kw_only=True):
    """The run that was judged."""

    id: str
    job_id: str
    launcher: str
    identified: str
    started: str | None
    started_from: str
    order_source: Annotated[str, Meta(extra_json_schema={"enum": ORDER_SOURCES})]
    """The clock that orders the runs of the configuration, by which this is the
    newest."""
    age: str
    attempt: int
    attempts: int
    segment: int
    log_fingerprint: tuple[str, ...]


class LogAttempt(Document, frozen=True, kw_only=True):
    """An attempt in the logs of a run."""

    number: int
    log: str
    line: int
    first_step: int | None
    last_step: int | None
    finished: bool
    ended: str
    starts_over: bool
    judged: bool


class ReportedJudgement(Document, frozen=True, kw_only=True):
    """A verdict, its evidence, and the judged run."""

    verdict: Verdict
    reason: str
    """A stable code."""
    text: str
    expected_seconds: Number | None
    """The baseline's step time."""
    bound_seconds: Number | None
    """The limit: the largest step time that passes."""
    tolerance: str
    tolerance_source: str
    log_difference: Number | None
    """ln(measured / expected), slower is positive."""
    estimate: ReportedEstimate | None
    repeats: tuple[str, ...]
    """Ids of the runs that were judged together with this run."""
    meets_point: bool | None
    """True if measured <= limit."""
    window: ReportedWindow
    timed: Timed
    """Judged steps: the window of the baseline, or those that its document timed
    (--llmb-timed=document)."""
    baseline: ReportedBaseline
    notes: tuple[ReportedNote, ...]
    last_good: ReportedLastGood | None
    metrics: dict[str, ReportedMetric]
    """By name, which includes the unit; meaningful only if the verdict depends on
    them."""
    expected_metrics: dict[str, Number | None] | UnsetType = UNSET
    statistic_seconds: Number | UnsetType | None = UNSET
    """The compared value: mean or trimmed mean of the window."""
    last_step_seconds: Number | UnsetType | None = UNSET
    timed_window: TimedWindow | UnsetType = UNSET
    window_seconds: tuple[Number | None, ...]
    """The step times in the window."""
    window_mean_of: tuple[int, ...] | UnsetType = UNSET
    """Number of steps in each of these values if they are means; empty for single
    steps."""
    problems: tuple[ReportedNote, ...]
    """Reasons why the run is invalid."""
    log: str | None
    """The log, relative to the folder of the session if it is in that folder."""
    line: int | UnsetType = UNSET
    """Line of the log that explains a problem; 0 if unknown."""
    run: ReportedRun | None
    tries: tuple[LogAttempt, ...] | UnsetType = UNSET
    """The attempts in the logs; if more than 1,000: the last ones, the judged one and
    the first of each file."""

    def get_metric(self, name: str) -> Number | None:
        """Return the value of a metric, or None if it is unknown."""
        metric = self.metrics.get(name)
        return metric.value if metric else None


# --- launched jobs --------------------------------------------------------------------


class JobHours(Document, frozen=True, kw_only=True):
    """GPU-hours of a job."""

    estimated: Number
    """Estimate for its steps; 0 if their time is unknown."""
    used: Number
    """Known GPU-hours of all its starts."""
    requeued: Number
    """Part of `used` that was spent before a requeue."""
    exact: bool
    """False if it may have used more."""
    lost: Annotated[str, Meta(extra_json_schema={"enum": ["", "failed", "hung"]})]
    """Reason why its last start was wasted; empty if it was not."""


SUBMISSIONS = (
    "intended",
    "submitted",
    "not-submitted",
    "uncertain",
    "unaffordable",
    "superseded",
    "stopped",
)


class ReportedJob(Document, frozen=True, kw_only=True):
    """A job that was launched for a configuration."""

    job_id: str
    purpose: str
    attempt: int
    repeat: int
    state: str
    nodes: tuple[str, ...]
    step_seconds: Number | None
    text: str
    files: tuple[str, ...]
    submission: Annotated[str, Meta(extra_json_schema={"enum": SUBMISSIONS})]
    ended_by: Annotated[str, Meta(extra_json_schema={"enum": ["others", "pytest"]})]
    started: str | None
    """ISO 8601; null if the job never ran or its start is unknown."""
    age: str
    gpu_hours: JobHours


class LostHours(Document, frozen=True, kw_only=True):
    """Wasted GPU-hours by cause."""

    failed: Number
    """Of jobs that were started again, or whose run could not be judged."""
    hung: Number
    """Of jobs that hung."""
    requeued: Number
    """Of jobs before Slurm requeued them."""


class JobsCost(Document, frozen=True, kw_only=True):
    """GPU-hours of jobs: allocated GPUs times allocated hours."""

    used: Number
    """A lower bound if there are unknown_jobs."""
    lost: LostHours
    unknown_jobs: tuple[str, ...]
    """Ids of jobs whose hours are completely or partly unknown; an empty id for a
    possibly submitted job."""


class ConfigurationCost(JobsCost, frozen=True):
    """GPU-hours of the jobs of a configuration."""

    estimated: Number
    """For the steps of one run."""


class SessionCost(JobsCost, frozen=True):
    """GPU-hours of all jobs of a session."""

    estimated: Number | None
    """Estimate for the steps before the first submission. Null under --llmb-collect,
    like `most` and `limit`."""
    most: Number | None
    """Estimate with all repeats and retries that the settings allow."""
    limit: Number | None
    """The budget of the session."""


class ReportedResumption(Document, frozen=True, kw_only=True):
    """How to continue a session that only collected (--llmb-collect)."""

    command: str
    """The complete shell command."""
    due: bool
    """True if the command would start jobs for this configuration."""
    secrets: tuple[str, ...]
    """Names of the environment variables that the command needs."""


# --- an A/B or a bisect search --------------------------------------------------------


class TrialNoise(Document, frozen=True, kw_only=True):
    """Standard deviation of ln(step time) on the same nodes; null if unknown."""

    run_to_run: Number | None
    degrees_of_freedom: Number | None


class TrialEstimate(Document, frozen=True, kw_only=True):
    """The difference as a fraction of the step time, its interval at `confidence`, and
    its noise."""

    difference: Number | None
    low: Number | None
    high: Number | None
    confidence: Number
    shown_smallest: Number | None
    """Smallest difference that four of five A/Bs would detect."""
    run_to_run: Number | None
    degrees_of_freedom: Number | None
    runs: tuple[int, ...]


class TrialAnswer(Document, frozen=True, kw_only=True):
    """The answer on one variant."""

    variant: str
    reference: str
    answer: str
    """slower, faster, alike, cannot-tell, does-not-run, reference-does-not-run, lost"""
    pairs: int
    estimate: TrialEstimate | None
    """Null before the first interim analysis."""


class BuildChange(Document, frozen=True, kw_only=True):
    """A change of the step time between two builds."""

    first: str
    """The first slow build is one of the builds `first` to `last`; all but `last` do
    not run."""
    last: str
    probability: Number
    difference: Number | None
    low: Number | None
    high: Number | None
    share: Number | None
    """Fraction of the difference between the ends."""
    before: Number | None
    """Difference by another change before this change, a fraction; 0 without one."""
    after: Number | None
    """Difference by another change after this change, a fraction; 0 without one."""


class BuildRange(Document, frozen=True, kw_only=True):
    """A range of builds that contains a change."""

    first: str
    last: str
    probability: Number


class ReportedSearch(Document, frozen=True, kw_only=True):
    """The result of a bisect search."""

    answer: str
    """found, range, no-change-between-ends, good-does-not-run, bad-does-not-run,
    lost"""
    runs: int
    ends: TrialEstimate | None
    do_not_run: tuple[str, ...]
    changes: tuple[BuildChange, ...]
    ranges: tuple[BuildRange, ...]


class ReportedTrials(Document, frozen=True, kw_only=True):
    """The result of an A/B (--llmb-ab) or a bisect search (--llmb-bisect)."""

    variants: tuple[str, ...]
    nodes: tuple[str, ...]
    allocations: int
    """Number of successive allocations for all runs; 0 if each run was a separate
    job."""
    separate_because: str | None
    """Reason for separate jobs, even if only the later runs were separate jobs."""
    cluster: str
    """Name of the cluster in Slurm, or host name for local runs; empty if unknown."""
    noise: TrialNoise | None
    """Noise of the runs of this A/B alone, which a history stores."""
    earlier_noise: TrialNoise | None
    """Pooled noise of earlier A/Bs in the history."""
    answers: tuple[TrialAnswer, ...] | UnsetType = UNSET
    search: ReportedSearch | UnsetType = UNSET


# --- daily runs, steps and lines of a log ---------------------------------------------


class ReportedDay(Document, frozen=True, kw_only=True):
    """A daily run: an earlier run of the configuration, one for each day."""

    started: str
    verdict: str
    reason: str | UnsetType = UNSET
    step_time_seconds: Number | UnsetType | None = UNSET
    expected_seconds: Number | UnsetType | None = UNSET
    log_difference: Number | UnsetType | None = UNSET
    job_id: str | UnsetType | None = UNSET
    environment: Environment | UnsetType = UNSET
    """Absent if equal to that of the daily run before."""


class ReportedAcknowledgement(Document, frozen=True, kw_only=True):
    """Acceptance of a change: author, reason, expiry."""

    reason: str
    by: str | None
    expires: str | None


class ReportedChange(Document, frozen=True, kw_only=True):
    """A level change of the step time, and the simultaneous changes of software."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": ["step", "drift"]})]
    """A sudden or a gradual change."""
    started: str
    """Start of the first daily run after the change."""
    difference: Number
    """Fraction, slower is positive."""
    low: Number | None
    high: Number | None
    environment: dict[str, tuple[str | None, str | None]]
    """Differing versions, before and after."""
    stands: bool
    """True if the change persists."""
    acknowledged: ReportedAcknowledgement | None
    text: str
    night: int
    """Position in `history` of the first daily run after the change; the length of
    `history` for the current run."""


MOST_STEPS = 2000
"""Maximum number of steps in a report: slow steps first, others evenly spaced."""

MOST_DAILY_RUNS = 365
"""Maximum number of daily runs in an outcome."""

StepSeconds: TypeAlias = Annotated[
    tuple[Number | None, ...], Meta(extra_json_schema={"maxItems": MOST_STEPS})
]


class ReportedSteps(Document, frozen=True, kw_only=True):
    """The steps of the judged attempt."""

    index: Annotated[tuple[int, ...], Meta(extra_json_schema={"maxItems": MOST_STEPS})]
    seconds: StepSeconds
    slow: tuple[int, ...]
    """Positions of stragglers."""
    loss: StepSeconds | None = None
    """Only for a run that diverged or did not train."""
    no_loss: tuple[int, ...] | None = None
    """Positions of losses that are not finite."""


class DailyRuns(Document, frozen=True, kw_only=True):
    """The daily runs before the judged run, oldest first, and their level changes."""

    history: tuple[ReportedDay, ...]
    changes: tuple[ReportedChange, ...]


class ReportedExcerpt(Document, frozen=True, kw_only=True):
    """The log around a failure."""

    log: str
    line: int
    """The line that best explains the failure, 1-based."""
    what: str
    """Description of that line; empty if it contains the reported problem."""
    first_line: int | UnsetType = UNSET
    lines: tuple[str, ...] | UnsetType = UNSET


# --- outcomes -------------------------------------------------------------------------


class ReportedKey(Document, frozen=True, kw_only=True):
    """The configuration of an outcome."""

    id: str
    recipe: str
    size: str
    release: str
    gpu: str
    dtype: str
    gpus: int


class _ConfigurationHead(ReportedJudgement, frozen=True, kw_only=False):
    """The fields of a configuration's outcome that precede the fields of its judgement."""

    id: str
    suite: str
    configuration: ReportedKey
    status: Status
    """The result of the pytest item."""
    context: str
    """Reason why the session judged nothing; empty if it did."""
    context_begin: str | UnsetType = UNSET
    remainder: str | UnsetType = UNSET


class ConfigurationOutcome(
    _ConfigurationHead, frozen=True, kw_only=True, tag_field="kind", tag="configuration"
):
    """The outcome of a configuration's item."""

    kind: ClassVar[Literal["configuration"]] = "configuration"

    environment: Environment
    """Software versions of the run, such as driver, nccl, pytorch, container, commit."""
    baselines: tuple[str, ...] = ()
    """Folders of the recorded baselines, for --llmb-baselines of later sessions."""
    others: tuple[ReportedJudgement, ...]
    """The verdicts against other baselines."""
    jobs: tuple[ReportedJob, ...]
    """The launched jobs."""
    gpu_hours: ConfigurationCost | None = None
    """GPU-hours of its jobs; absent without a launch."""
    nodes: str
    """Evidence about the nodes of the runs, in words."""
    slow_nodes: tuple[str, ...]
    """Nodes that were slow each time, while other nodes were not."""
    resume: ReportedResumption | None
    trials: ReportedTrials | None = None
    steps: ReportedSteps | None = None
    excerpt: ReportedExcerpt | None = None
    history: Annotated[
        tuple[ReportedDay, ...], Meta(extra_json_schema={"maxItems": MOST_DAILY_RUNS})
    ]
    """Earlier daily runs, oldest first."""
    changes: tuple[ReportedChange, ...]
    """Level changes of the step time."""
    own: bool | UnsetType = UNSET
    """True if a baseline file of the user contains the configuration."""
    log_sha256: tuple[str | None, ...] | UnsetType = UNSET
    """SHA-256 of each log of the run; null for a log that is gone or changed. Only in
    the file of an unsaved session."""
    overruled: str = ""
    """The original verdict if a test of the user disagreed with it; `verdict` is then
    TEST_FAILED or NOT_ASSERTED."""


class UnmatchedOutcome(
    Document, frozen=True, kw_only=True, tag_field="kind", tag="stray"
):
    """A run that matches no baseline or cannot be read."""

    kind: ClassVar[Literal["stray"]] = "stray"
    timed: ClassVar[str] = ""
    context: ClassVar[str] = ""
    context_begin: ClassVar[str] = ""

    id: str
    suite: str
    status: Status
    reason: str
    text: str
    log: str
    logs: tuple[str, ...]
    """Paths that were searched for runs."""
    verdict: str = ""
    overruled: str = ""


class ReportedComparison(Document, frozen=True, kw_only=True):
    """Throughput per GPU of a configuration, as a fraction of the reference's."""

    id: str
    gpus: int
    reference: str
    reference_gpus: int
    baseline: str
    measured: Number | None
    documented: Number | None
    verdict: str


class CheckOutcome(Document, frozen=True, kw_only=True, tag_field="kind", tag="check"):
    """The outcome of a check of several configurations, or of the gate itself."""

    kind: ClassVar[Literal["check"]] = "check"
    context: ClassVar[str] = ""
    context_begin: ClassVar[str] = ""

    check: str
    """weak-scaling, fp8-speedup, cluster-change, trend, slow-node, selftest,
    something-was-judged."""
    decides: bool
    id: str
    suite: str
    status: Status
    verdict: str
    reason: str
    text: str
    lines: tuple[str, ...]
    log: str | None
    members: tuple[str, ...]
    """Ids of the configurations that it covers."""
    compared: tuple[ReportedComparison, ...]
    timed: Timed
    next: str = ""
    """The next step, if it depends on the session."""
    overruled: str = ""


OutcomeDocument: TypeAlias = ConfigurationOutcome | UnmatchedOutcome | CheckOutcome
"""The outcome of an item."""


def select_configurations(
    outcomes: Iterable[OutcomeDocument],
) -> list[ConfigurationOutcome]:
    """Select the outcomes of configurations."""
    return [
        outcome for outcome in outcomes if isinstance(outcome, ConfigurationOutcome)
    ]


def select_unmatched(outcomes: Iterable[OutcomeDocument]) -> list[UnmatchedOutcome]:
    """Select the outcomes of unmatched runs."""
    return [outcome for outcome in outcomes if isinstance(outcome, UnmatchedOutcome)]


def select_checks(outcomes: Iterable[OutcomeDocument]) -> list[CheckOutcome]:
    """Select the outcomes of checks."""
    return [outcome for outcome in outcomes if isinstance(outcome, CheckOutcome)]


# --- a session ------------------------------------------------------------------------


class VerdictCounts(Document, frozen=True, kw_only=True):
    """Numbers of items by status and verdict.

    An item without a verdict counts under its reason in capitals.
    """

    green: dict[str, int]
    red: dict[str, int]
    skipped: dict[str, int]


class ReportedCaution(Document, frozen=True, kw_only=True):
    """A caution: a reason to distrust the result of a session."""

    code: str
    """Stable; docs/how-to/run-every-night.md lists all codes."""
    text: str


class SessionOrigin(Document, frozen=True, kw_only=True):
    """Host, command line and commit of a session."""

    id: str
    """Id of the session in a history."""
    host: str
    options: tuple[str, ...]
    git_commit: str
    ci_url: str


class SessionDocument(Struct, frozen=True, kw_only=True):
    """A session of pytest-llmbench (--llmb-json)."""

    schema: int
    """Increased when a field changes its meaning."""
    version: str
    """Version of pytest-llmbench."""
    baselines: str = ""
    tolerances: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    """The settings, as at the head of the session's output."""
    timed: Timed = "window"
    started: str
    """ISO 8601, UTC."""
    exit_code: int
    """Exit code of pytest, as far as it was known when the document was written."""
    green: bool
    """True if the gate is open: exit code 0 and no failed item."""
    count: str
    """The counts in words."""
    counts: VerdictCounts
    failures: tuple[str, ...]
    """Failures of the session itself, in addition to its items."""
    cautions: tuple[ReportedCaution, ...] = ()
    """Cautions about settings and selection, and findings that did not fail."""
    gpu_hours: SessionCost | None = None
    """GPU-hours of all jobs; null without a launch."""
    outcomes: tuple[OutcomeDocument, ...]
    """The worst outcome of each id."""
    session: SessionOrigin | UnsetType = UNSET
    """Only in the file of an unsaved session (llmb-history-unsaved-*.json)."""


# --- plain values ---------------------------------------------------------------------


_Value = TypeVar("_Value")


def get_set(value: _Value | UnsetType) -> _Value | None:
    """Return the value of an optional field, or None if the field is UNSET."""
    return None if isinstance(value, UnsetType) else value


def make_plain(outcome: OutcomeDocument) -> dict[str, Any]:
    """Convert an outcome into plain values for xdist and JSON."""
    return {"schema": SCHEMA, **msgspec.to_builtins(outcome)}


def restore_outcome(plain: dict[str, Any]) -> OutcomeDocument:
    """Convert plain values into an outcome.

    Unknown keys are ignored. Raises msgspec.ValidationError if a key is missing.
    """
    restored: OutcomeDocument = msgspec.convert(plain, OutcomeDocument)
    return restored
