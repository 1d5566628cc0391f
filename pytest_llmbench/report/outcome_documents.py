"""The document of a session and of its outcomes as records: what each report is made
from, and --llmb-json writes.

The fields stand in the order of their keys in JSON. `scripts/json_schema` writes
`session.schema.json` from these records; the text below a field is its description
there. A field with a default is absent from JSON if it has that value. msgspec converts
and checks the records.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

SCHEMA = 1
"""Raised when a field changes its meaning; fields may be added."""

Number: TypeAlias = int | float

Status: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["passed", "failed", "skipped"]})
]

Timed: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["window", "document"]})
]

VERDICTS = (
    *(
        "PASS",
        "REGRESSION",
        "IMPROVEMENT",
        "INCONCLUSIVE",
        "INVALID",
        "NOT_COMPARABLE",
        "MISSING",
    ),
    *("RECORDED", "TEST_FAILED", "NOT_ASSERTED"),
)

Verdict: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": VERDICTS})]

Environment: TypeAlias = dict[str, str | None]
"""Versions of the software of a run, such as driver, nccl, pytorch, container,
commit."""


class Document(Struct, frozen=True, omit_defaults=True):
    """A record of the document."""


# --- a judgement ----------------------------------------------------------------------


class ReportedNote(Document, frozen=True, kw_only=True):
    """A note on a run, or a problem of it."""

    code: str
    text: str
    line: int
    """Of the log, 1-based; 0 for none."""


class ReportedMetric(Document, frozen=True, kw_only=True):
    """A metric of a run."""

    value: Number | None
    standard_deviation: Number | None
    """Over the steps of the window."""
    unit: str


class ReportedNoise(Document, frozen=True, kw_only=True):
    """How much the step time of a configuration varies from run to run."""

    sigma: Number
    degrees_of_freedom: Number | None
    source: str
    measured: bool


class ReportedEstimate(Document, frozen=True, kw_only=True):
    """How well the difference is known."""

    difference: Number
    """Fraction of the baseline's step time, slower is positive; so are low, high and
    margin."""
    low: Number | None
    high: Number | None
    margin: Number | None
    level: Number
    """The probability that the true difference is above the high end."""
    regression_level: Number
    """The same of the low end, below it."""
    standard_error: Number | None
    degrees_of_freedom: Number | None
    """Null: infinitely many."""
    runs: int
    run_to_run: ReportedNoise
    within_run_error: Number | None
    effective_sample_size: Number | None
    baseline_rounding: Number | None
    detectable: Number | None
    """The smallest slowdown that such a run shows."""
    repeats_needed: int | None
    p_slower: Number | None
    threshold_only: bool


class ReportedWindow(Document, frozen=True, kw_only=True):
    """The steps that count, both ends included."""

    first: int
    last: int
    statistic: str
    text: str


class FirstRecorded(Document, frozen=True, kw_only=True):
    """The value that the drift of a recorded baseline is counted from."""

    date: str
    seconds: Number
    by: str
    reason: str


class ReportedRecording(Document, frozen=True, kw_only=True):
    """Who recorded a baseline and when, and the value that its drift is counted
    from."""

    date: str
    by: str
    environment: dict[str, str]
    reason: str
    earlier: int
    """The number of values that it replaced."""
    runs: int
    groups: int | None
    """How many of its runs are independent (k0)."""
    levels: str
    """Why the mean of runs of several levels may stand."""
    first: FirstRecorded


class ReportedBaseline(Document, frozen=True, kw_only=True):
    """The baseline that a run was judged against, and its place."""

    kind: str
    """published, recorded or recipe."""
    timed: str
    document: str
    table: str
    file: str
    line: int
    published_seconds: Number | None
    """Of a recorded baseline, the step time of its document; null if there is none."""
    cells: dict[str, str]
    """The printed cells, verbatim."""
    recorded: ReportedRecording | None


class ComparedFactsOfRuns(Document, frozen=True, kw_only=True):
    """What two runs state: the names of what is the same, and both values of what
    differs, the earlier one first."""

    same: tuple[str, ...]
    differs: dict[str, tuple[str, str]]


class ComparedNodes(Document, frozen=True, kw_only=True):
    """The nodes of the last good run, and those of the judged run."""

    before: tuple[str, ...]
    now: tuple[str, ...]


class ReportedLastGood(Document, frozen=True, kw_only=True):
    """The last green run of the configuration before a red one, if it is known."""

    started: str
    job_id: str
    verdict: str
    days: int
    """On which it ran since, the judged run's own included."""
    source: Annotated[str, Meta(extra_json_schema={"enum": ["folder", "history"]})]
    """What knows it."""
    step_time_seconds: Number
    difference: Number | None
    """Of the judged run, a fraction; slower is positive. null if it has no step time
    that counts."""
    software: ComparedFactsOfRuns
    settings: ComparedFactsOfRuns
    nodes: ComparedNodes | None
    """As the history and the launch know them; null if they are unknown for one of the
    two runs."""
    steps: tuple[str, str] | None
    """The shape of its steps and of those of the judged run, in words."""


class TimedWindow(Document, frozen=True, kw_only=True):
    """The steps that a document is believed to have timed, and their mean."""

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
    """The clock by which the runs of the configuration are ordered, so that this is the
    newest."""
    age: str
    attempt: int
    attempts: int
    segment: int
    log_fingerprint: tuple[str, ...]


class LogAttempt(Document, frozen=True, kw_only=True):
    """An attempt that the logs of a run contain."""

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
    """A verdict, what it rests on, and the run that was judged."""

    verdict: Verdict
    reason: str
    """A stable code."""
    text: str
    expected_seconds: Number | None
    """The baseline's step time."""
    bound_seconds: Number | None
    """The largest step time that passes."""
    tolerance: str
    tolerance_source: str
    log_difference: Number | None
    """ln(measured / expected), slower is positive."""
    estimate: ReportedEstimate | None
    repeats: tuple[str, ...]
    """Ids of the runs that were judged together with this one."""
    meets_point: bool | None
    """Whether measured <= bound."""
    window: ReportedWindow
    timed: Timed
    """What decided: the window of the baseline, or what its document timed
    (--llmb-timed=document)."""
    baseline: ReportedBaseline
    notes: tuple[ReportedNote, ...]
    last_good: ReportedLastGood | None
    metrics: dict[str, ReportedMetric]
    """By name, units in the name; they count only if the verdict rests on them."""
    expected_metrics: dict[str, Number | None] | UnsetType = UNSET
    statistic_seconds: Number | UnsetType | None = UNSET
    """What was compared: the mean or trimmed mean of the window."""
    last_step_seconds: Number | UnsetType | None = UNSET
    timed_window: TimedWindow | UnsetType = UNSET
    window_seconds: tuple[Number | None, ...]
    """The step times in the window."""
    window_mean_of: tuple[int, ...] | UnsetType = UNSET
    """The number of steps that each of them is the mean of; empty: of 1."""
    problems: tuple[ReportedNote, ...]
    """Why the run is not valid."""
    log: str | None
    """The log, relative to the folder of the session if it is in that folder."""
    line: int | UnsetType = UNSET
    """Of the log, if a line is to blame; else 0."""
    run: ReportedRun | None
    tries: tuple[LogAttempt, ...] | UnsetType = UNSET
    """The attempts in the logs; of more than 1,000 the last ones, the judged one and
    the first of each file."""

    def get_metric(self, name: str) -> Number | None:
        """Return the value of a metric, None if it is unknown."""
        metric = self.metrics.get(name)
        return metric.value if metric else None


# --- what a launch adds ---------------------------------------------------------------


class JobHours(Document, frozen=True, kw_only=True):
    """GPU-hours of a job."""

    estimated: Number
    """For its steps; 0 if nothing has timed them."""
    used: Number
    """Of all its starts, as far as it is known."""
    requeued: Number
    """Of these, what was before it was requeued."""
    exact: bool
    """False: it may have used more."""
    lost: Annotated[str, Meta(extra_json_schema={"enum": ["", "failed", "hung"]})]
    """Why its last start brought nothing."""


SUBMISSIONS = (
    *("intended", "submitted", "not-submitted", "uncertain"),
    *("unaffordable", "superseded", "stopped"),
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
    """ISO 8601; null: it never ran, or its start is unknown."""
    age: str
    gpu_hours: JobHours


class LostHours(Document, frozen=True, kw_only=True):
    """The GPU-hours that brought nothing, by cause."""

    failed: Number
    """Jobs that were started again, or whose run could not be judged."""
    hung: Number
    """The same, of jobs that hung."""
    requeued: Number
    """What jobs did before Slurm put them back into its queue."""


class JobsCost(Document, frozen=True, kw_only=True):
    """GPU-hours: the GPUs of the nodes of jobs times how long they had them."""

    used: Number
    """At least so many, if there are unknown_jobs."""
    lost: LostHours
    unknown_jobs: tuple[str, ...]
    """Ids of jobs whose hours are unknown, all or in part; empty for a job that was
    perhaps submitted."""


class ConfigurationCost(JobsCost, frozen=True):
    """GPU-hours of the jobs of a configuration."""

    estimated: Number
    """For the steps of one run."""


class SessionCost(JobsCost, frozen=True):
    """GPU-hours of all that was launched."""

    estimated: Number | None
    """For the steps, before the first submission; null, as most and limit, under
    --llmb-collect."""
    most: Number | None
    """With all repeats and new starts that the settings allow."""
    limit: Number | None
    """What the session may use."""


class ReportedResumption(Document, frozen=True, kw_only=True):
    """How to continue a session that only collected (--llmb-collect)."""

    command: str
    """Whole, for a shell."""
    due: bool
    """Whether it would start something for this configuration."""
    secrets: tuple[str, ...]
    """The names of the variables that it needs."""


# --- an A/B or a search over builds ---------------------------------------------------


class TrialNoise(Document, frozen=True, kw_only=True):
    """How much the logarithm of a run's step time varies on the same nodes; null if it
    is unknown."""

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
    """What would be shown four times out of five."""
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
    """Null before the first look."""


class BuildChange(Document, frozen=True, kw_only=True):
    """A change of the step time between two builds."""

    first: str
    """The first slow build is one of this to `last`; all but that do not run."""
    last: str
    probability: Number
    difference: Number | None
    low: Number | None
    high: Number | None
    share: Number | None
    """Of the difference of the ends."""
    before: Number | None
    """What is shown to lie before it besides; 0 if nothing is."""
    after: Number | None


class BuildRange(Document, frozen=True, kw_only=True):
    """Builds that may hold a change."""

    first: str
    last: str
    probability: Number


class ReportedSearch(Document, frozen=True, kw_only=True):
    """The answer of a search over builds."""

    answer: str
    """found, range, no-change-between-ends, good-does-not-run, bad-does-not-run,
    lost"""
    runs: int
    ends: TrialEstimate | None
    do_not_run: tuple[str, ...]
    changes: tuple[BuildChange, ...]
    ranges: tuple[BuildRange, ...]


class ReportedTrials(Document, frozen=True, kw_only=True):
    """What an A/B (--llmb-ab) or a search over builds (--llmb-bisect) found."""

    variants: tuple[str, ...]
    nodes: tuple[str, ...]
    allocations: int
    """How many held the nodes of all runs, one after another; 0: each run was a job of
    its own."""
    separate_because: str | None
    """Why there was none, or none any more."""
    cluster: str
    """As Slurm calls it; of runs on this machine its host. Empty if it is unknown."""
    noise: TrialNoise | None
    """Of the runs of an A/B alone, which a history keeps."""
    earlier_noise: TrialNoise | None
    """Of earlier A/Bs of the history, which was pooled in."""
    answers: tuple[TrialAnswer, ...] | UnsetType = UNSET
    search: ReportedSearch | UnsetType = UNSET


# --- daily runs, steps and lines of a log ---------------------------------------------


class ReportedDay(Document, frozen=True, kw_only=True):
    """An earlier run of the configuration, one for each day."""

    started: str
    verdict: str
    reason: str | UnsetType = UNSET
    step_time_seconds: Number | UnsetType | None = UNSET
    expected_seconds: Number | UnsetType | None = UNSET
    log_difference: Number | UnsetType | None = UNSET
    job_id: str | UnsetType | None = UNSET
    environment: Environment | UnsetType = UNSET
    """Absent if it is that of the night before."""


class ReportedAcknowledgement(Document, frozen=True, kw_only=True):
    """Who accepted a change, and until when."""

    reason: str
    by: str | None
    expires: str | None


class ReportedChange(Document, frozen=True, kw_only=True):
    """A change of the step time, and what changed with it."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": ["step", "drift"]})]
    """A change of level, or one that came slowly."""
    started: str
    """Of the first night after the change."""
    difference: Number
    """Fraction, slower is positive."""
    low: Number | None
    high: Number | None
    environment: dict[str, tuple[str | None, str | None]]
    """Before and after, of what differs."""
    stands: bool
    """Whether it was not taken back since."""
    acknowledged: ReportedAcknowledgement | None
    text: str
    night: int
    """Its position in history; as long as history: the current run."""


MOST_STEPS = 2000
"""Steps that a report is given; of more, the slow ones and as many of the others,
evenly apart."""

MOST_DAILY_RUNS = 365
"""Daily runs that an outcome contains."""

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
    """Of a run that diverged or did not train."""
    no_loss: tuple[int, ...] | None = None
    """Positions of losses that are not finite."""


class DailyRuns(Document, frozen=True, kw_only=True):
    """The daily runs before the judged one, oldest first, and the changes of their step
    time."""

    history: tuple[ReportedDay, ...]
    changes: tuple[ReportedChange, ...]


class ReportedExcerpt(Document, frozen=True, kw_only=True):
    """The log around a failure."""

    log: str
    line: int
    """The most telling line, as in the log."""
    what: str
    """What that line is: empty for the problem that the outcome reports."""
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
    """The fields of a configuration's outcome that precede those of its judgement."""

    id: str
    suite: str
    configuration: ReportedKey
    status: Status
    """What pytest made of the item."""
    context: str
    """Why nothing was judged, if nothing was."""
    context_begin: str | UnsetType = UNSET
    remainder: str | UnsetType = UNSET


class ConfigurationOutcome(
    _ConfigurationHead, frozen=True, kw_only=True, tag_field="kind", tag="configuration"
):
    """What became of the item of a configuration."""

    kind: ClassVar[Literal["configuration"]] = "configuration"

    environment: Environment
    """Versions of the software of the run, such as driver, nccl, pytorch, container,
    commit."""
    baselines: tuple[str, ...] = ()
    """Of what was recorded, the folders with which later sessions judge against it."""
    others: tuple[ReportedJudgement, ...]
    """The verdicts against other baselines."""
    jobs: tuple[ReportedJob, ...]
    """What was launched for it."""
    gpu_hours: ConfigurationCost | None = None
    """Of its jobs; absent if none was launched."""
    nodes: str
    """What the runs show of their nodes."""
    slow_nodes: tuple[str, ...]
    """Nodes that were slow each time, while others were not."""
    resume: ReportedResumption | None
    trials: ReportedTrials | None = None
    steps: ReportedSteps | None = None
    excerpt: ReportedExcerpt | None = None
    history: Annotated[
        tuple[ReportedDay, ...], Meta(extra_json_schema={"maxItems": MOST_DAILY_RUNS})
    ]
    """Earlier nights, oldest first."""
    changes: tuple[ReportedChange, ...]
    """When the step time changed, and what changed with it."""
    own: bool | UnsetType = UNSET
    """Whether a baseline file of the user holds the configuration."""
    log_sha256: tuple[str | None, ...] | UnsetType = UNSET
    """Of each log of the run; null for a log that is gone or changed. Only in the file
    of an unsaved session."""
    overruled: str = ""
    """The verdict, if a test of the user ended otherwise; `verdict` is TEST_FAILED or
    NOT_ASSERTED then."""


class UnmatchedOutcome(
    Document, frozen=True, kw_only=True, tag_field="kind", tag="stray"
):
    """A run that matches no baseline, or cannot be read."""

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
    """Where runs were looked for."""
    verdict: str = ""
    overruled: str = ""


class ReportedComparison(Document, frozen=True, kw_only=True):
    """Throughput per GPU of a configuration, as a share of that of the reference."""

    id: str
    gpus: int
    reference: str
    reference_gpus: int
    baseline: str
    measured: Number | None
    documented: Number | None
    verdict: str


class CheckOutcome(Document, frozen=True, kw_only=True, tag_field="kind", tag="check"):
    """What was found of several configurations together, or of the gate itself."""

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
    """Ids of the configurations that it is about."""
    compared: tuple[ReportedComparison, ...]
    timed: Timed
    next: str = ""
    """What to do, if it depends on the session."""
    overruled: str = ""


OutcomeDocument: TypeAlias = ConfigurationOutcome | UnmatchedOutcome | CheckOutcome
"""What became of an item."""


def select_configurations(
    outcomes: Iterable[OutcomeDocument],
) -> list[ConfigurationOutcome]:
    """Select the outcomes of configurations."""
    return [
        outcome for outcome in outcomes if isinstance(outcome, ConfigurationOutcome)
    ]


def select_unmatched(outcomes: Iterable[OutcomeDocument]) -> list[UnmatchedOutcome]:
    """Select the runs that match no baseline."""
    return [outcome for outcome in outcomes if isinstance(outcome, UnmatchedOutcome)]


def select_checks(outcomes: Iterable[OutcomeDocument]) -> list[CheckOutcome]:
    """Select the checks of several configurations, or of the gate."""
    return [outcome for outcome in outcomes if isinstance(outcome, CheckOutcome)]


# --- a session ------------------------------------------------------------------------


class VerdictCounts(Document, frozen=True, kw_only=True):
    """Numbers of items by what became of them and by verdict; for an item without one,
    its reason in capitals."""

    green: dict[str, int]
    red: dict[str, int]
    skipped: dict[str, int]


class ReportedCaution(Document, frozen=True, kw_only=True):
    """What to know before the light is believed."""

    code: str
    """Stable; docs/ci.md lists them."""
    text: str


class SessionOrigin(Document, frozen=True, kw_only=True):
    """Where a session ran, and what was typed."""

    id: str
    """By which a history knows the session."""
    host: str
    options: tuple[str, ...]
    git_commit: str
    ci_url: str


class SessionDocument(Struct, frozen=True, kw_only=True):
    """A session of pytest-llmbench (--llmb-json)."""

    schema: int
    """Raised when a field changes its meaning."""
    version: str
    """Of pytest-llmbench."""
    baselines: str = ""
    tolerances: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    """What decided, as at the head of the session's output."""
    timed: Timed = "window"
    started: str
    """ISO 8601, UTC."""
    exit_code: int
    """Of pytest, as far as it was known."""
    green: bool
    """Whether the gate is open: exit code 0 and nothing red."""
    count: str
    """The counts in words."""
    counts: VerdictCounts
    failures: tuple[str, ...]
    """What made the session red besides its items."""
    cautions: tuple[ReportedCaution, ...] = ()
    """Of the settings, the selection, and findings that fail nothing."""
    gpu_hours: SessionCost | None = None
    """Of all that was launched; null if nothing was."""
    outcomes: tuple[OutcomeDocument, ...]
    """Each id once, its worst outcome."""
    session: SessionOrigin | UnsetType = UNSET
    """Only in the file of an unsaved session (llmb-history-unsaved-*.json)."""


# --- plain values ---------------------------------------------------------------------


_Value = TypeVar("_Value")


def get_set(value: _Value | UnsetType) -> _Value | None:
    """Return a value, None if it is absent."""
    return None if isinstance(value, UnsetType) else value


def make_plain(outcome: OutcomeDocument) -> dict[str, Any]:
    """Convert an outcome into plain values, as they cross xdist and are written."""
    return {"schema": SCHEMA, **msgspec.to_builtins(outcome)}


def restore_outcome(plain: dict[str, Any]) -> OutcomeDocument:
    """Convert plain values into an outcome. Ignores unknown keys;
    msgspec.ValidationError if a key is missing."""
    restored: OutcomeDocument = msgspec.convert(plain, OutcomeDocument)
    return restored
