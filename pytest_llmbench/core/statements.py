"""What a verdict states: a record or a code for each sentence, with its numbers.

`report/wording` phrases them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from pytest_llmbench.core.records import Record

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pytest_llmbench.core.baseline_records import (
        AcceptedValue,
        Baseline,
        BaselineKind,
        Budget,
        Contradiction,
        Key,
        Tolerance,
        Window,
    )
    from pytest_llmbench.core.codes import Verdict
    from pytest_llmbench.core.judgement_records import Estimate, RequiredRuns
    from pytest_llmbench.core.log_records import CheckpointAction
    from pytest_llmbench.core.run_records import (
        Acknowledgement,
        Clock,
        Note,
        Problem,
        VerdictStatement,
    )


class Remark(StrEnum):
    """A statement without a number."""

    RUNS_APART = "runs-apart"
    REPEAT_BUILD_UNKNOWN = "repeat-build-unknown"
    BEYOND_ACCEPTED_LEVEL = "beyond-accepted-level"
    FASTER_AS_TIMED = "faster-as-timed"
    REFRESH_BASELINE = "refresh-baseline"
    UNIFORM_SHIFT = "uniform-shift"
    TOO_FEW_STEPS = "too-few-steps"
    COMPARED_WITHOUT_ERROR = "compared-without-error"
    ERROR_UNKNOWN = "error-unknown"
    NEWEST_BY_FILE_TIME = "newest-by-file-time"
    NEWEST_BY_MIXED_CLOCKS = "newest-by-mixed-clocks"


class Figure(StrEnum):
    """What a single number is."""

    ALLOWED_TIME = "allowed-time"  # the largest step time that passes, in seconds
    UNCONFIRMED_RUNS = "unconfirmed-runs"  # beyond the bound, too few for a regression
    FEW_TIMES = "few-times"  # they do not distinguish a slow run from a slow step
    BASELINE_ROUNDING = "baseline-rounding"  # of the baseline's time, as a fraction
    OLDER_RUNS = "older-runs"  # of the configuration
    DRIFTING_STEPS = "drifting-steps"  # from the first to the last step, as a fraction
    ACCEPTED_IN_ALL = "accepted-in-all"  # changes together, a logarithm; not all counts


class FigureStatement(Record):
    """A statement with a single number."""

    of: Figure
    value: float


# --- the comparison with the baseline -------------------------------------------------


class StepTimeComparison(Record):
    """The step time of the runs against that of the baseline."""

    measured: float
    expected: float
    estimate: Estimate


class TimedStatement(Record):
    """A statement on a step time that was timed as the baseline's document did."""

    window: Window
    assumed: bool  # the document does not state how it timed
    statement: VerdictStatement


class RunsNeeded(Record):
    """So many runs are inconclusive, and so many would decide; None: no number
    would."""

    runs: int
    needed: int | None


class CoarseTime(Record):
    """A time that is printed with too few digits, and the slowest one that prints
    so."""

    seconds: float
    slowest: float


class FewMeans(Record):
    """Too few printed means of several steps to differ from each other."""

    means: int
    steps: int


class OtherStatistic(Record):
    """The statistic that does not share the answer: the (trimmed) mean of the steps."""

    trimmed: bool
    beyond: bool
    difference: float
    expected: float


class SlowMean(Record):
    """The mean of all steps is beyond the bound, also if a few stalls are
    `forgiven`."""

    difference: float
    expected: float
    forgiven: int


class WideInterval(Record):
    """The steps fix the step time to this interval, wider than so many tolerances."""

    low: float
    high: float
    tolerances: int


class ShiftBesides(Record):
    """All steps are slower, and a few of them slower still."""

    shape: tuple[VerdictStatement, ...]


class ImplausibleTime(Record):
    """A run is faster than `share`: other configurations as fast, unverified facts."""

    share: float
    near: tuple[str, ...]
    unverified: tuple[Note, ...]


class PooledDays(Record):
    """Inconclusive days that are a regression together."""

    days: int
    estimate: Estimate


class NoisyRuns(Record):
    """Earlier runs differ by more than is assumed."""

    sigma: float
    assumed: float


class NoisySteps(Record):
    """The steps fix the mean of their run less well than the noise from run to run."""

    error: float
    sigma: float


class FewRecorded(Record):
    """A recorded baseline rests on few independent runs."""

    runs: int
    groups: float
    grouped: bool  # the recording states its groups
    recommended: int


# --- runs that were not compared ------------------------------------------------------


class LastValidRun(Record):
    """The newest valid run of a configuration: so many days, or `age`, ago."""

    days: int
    age: timedelta
    started: datetime
    job_id: str


class StaleRun(Record):
    """The newest run is older than allowed."""

    age: timedelta
    limit: timedelta
    last_valid: LastValidRun | None


class UnusableRun(Record):
    """A run that cannot be judged, one of `runs` that count together."""

    run: str
    runs: int
    problem: Problem
    last_valid: LastValidRun | None


class NothingToCompare(Record):
    """Runs were measured against a baseline without a value."""

    seconds: tuple[float | None, ...]


class UndatedRun(Record):
    """A run whose start is unknown."""

    run: str
    source: str


class MissingRun(Record):
    """There is no run of the configuration."""

    stale: bool
    last_valid: LastValidRun | None


class OnlyExcluded(Record):
    """No run of the configuration can be compared, for this reason."""

    problem: Problem | None
    last_valid: LastValidRun | None


class NewerRuns(Record):
    """Newer runs that cannot be compared."""

    count: int
    problem: Problem


class Repeats(Record):
    """The step times of runs that are repeats of each other; `apart`: too different."""

    seconds: tuple[float | None, ...]
    apart: bool = False


class LostRepeat(Record):
    """A repeat that cannot be judged."""

    problem: Problem


class SlowStep(Record):
    """A slow step, its line (0: unknown) and its time over the median."""

    number: int
    line: int
    ratio: float


class Hiccup(Record):
    """Transient stalls in a run: its mean, and its mean without them.

    `runs`: so many runs of a week had some, and they are not forgiven; 0 if they are.
    """

    steps: tuple[SlowStep, ...]
    mean: float | None
    usual: float | None
    runs: int = 0


# --- the shape of a window ------------------------------------------------------------


class StepSpan(Record):
    """Consecutive steps, by their numbers, and how many they are."""

    first: int
    last: int
    count: int


class StepList(Record):
    """The first spans of some steps, how many `more` follow, and how many all are."""

    spans: tuple[StepSpan, ...]
    more: int
    count: int


class SlowestSteps(Record):
    """The slowest step, or the printed values that contain it, over the median."""

    steps: StepList
    ratio: float
    averaged: bool  # one value, the mean of several steps
    smoothed: bool  # several values of a moving mean


class EvenSteps(Record):
    """No step (or no printed mean) is slower than the others."""

    averaged: bool


class SlowSteps(Record):
    """Slow steps without a pattern; `single`: one of them."""

    steps: StepList
    slowest: SlowestSteps
    line: int
    single: bool


class PeriodicSteps(Record):
    """Every so many steps one is slower than the others, by a fraction."""

    period: int
    excess: float
    steps: StepList


class SlowStretch(Record):
    """Consecutive slow steps, in seconds, and the others."""

    steps: StepList
    upper: float
    lower: float


class TwoLevels(Record):
    """Steps of two levels: `count` of `total` at one of them, which are `steps`."""

    count: int
    total: int
    averaged: bool
    level: float
    other: float
    steps: StepList


class SaveInStep(Record):
    """A slow step that contains the save of a checkpoint, one of `held` slow steps."""

    step: int
    seconds: float
    save_seconds: float | None
    line: int
    held: int
    slow: int


class Stragglers(Record):
    """Slow steps, their share of the time, and what they add to the mean."""

    count: int
    averaged: bool
    share: float
    added: float
    steps: StepList
    slowest: SlowestSteps
    moving_mean: int


class StepDrift(Record):
    """A drift from one step to another, with its p value."""

    change: float
    first: int
    last: int
    p: float


class WarmUpSteps(Record):
    """The first steps are slower than the rest."""

    first: int
    last: int
    excess: float
    z: float


class MeanAndTrimmed(Record):
    """The mean and the 20 % trimmed mean of a window, if they differ."""

    mean: float
    trimmed: float


class MovingMeans(Record):
    """The log prints moving means of `steps` steps."""

    steps: int
    values: int
    independent: int


# --- what was accepted, recorded and budgeted -----------------------------------------


class AcceptedReason(Record):
    """A reason to fail that an entry accepts."""

    statement: VerdictStatement
    entry: Acknowledgement


class IdleCause(StrEnum):
    """Why an acknowledgement has no effect."""

    CERTIFIED = "certified"
    EXPIRED = "expired"
    RECORDED = "recorded"
    FASTER = "faster"


class IdleAcknowledgement(Record):
    """An acknowledgement without effect; `recorded`: the day of the last recorded
    run."""

    entry: Acknowledgement
    cause: IdleCause
    recorded: str = ""


class DriftLimits(Record):
    """What limits the drift of a recorded value: a budget, a fraction, and a
    tolerance."""

    budget: float
    tolerance: Tolerance


class ValueDrift(Record):
    """How far a run and the recorded value are from the accepted value."""

    seconds: float
    recorded: float
    first: AcceptedValue
    limits: DriftLimits


class DriftedRun(Record):
    """A run is further from the accepted value than allowed."""

    seconds: float
    allowed: float
    first: AcceptedValue
    limits: DriftLimits


class DriftedRecording(Record):
    """The recorded value is further from the accepted value than allowed."""

    recorded: float
    first: AcceptedValue
    limits: DriftLimits


class AgainstRecorded(Record):
    """What was stated of a run against the recorded value."""

    statements: tuple[VerdictStatement, ...]


class MovedRecording(Record):
    """Accepted values add up to more than the budget."""

    recorded: float
    origin: AcceptedValue
    moves: int


class LogPlace(Record):
    """A line of a log; `log` is empty for the log of the judged run."""

    log: str
    line: int


class OverBudget(Record):
    """A checkpoint took longer than its budget."""

    action: CheckpointAction
    budget: Budget
    seconds: float
    dispatched: bool
    place: LogPlace


class BudgetDoubtCode(StrEnum):
    """Why the times of checkpoints do not show that a budget is met."""

    TRUNCATED = "truncated"
    UNTIMED = "untimed"
    DISPATCH_ONLY = "dispatch-only"
    UNREAD = "unread"
    SYNCHRONOUS = "synchronous"


class BudgetDoubt(Record):
    """A budget that cannot be judged; `unread`: so many records were not kept."""

    action: CheckpointAction
    budget: Budget
    code: BudgetDoubtCode
    unread: int
    place: LogPlace


class UnstatedCheckpoint(Record):
    """The log states no checkpoint; `meant`: evidence that the run was to have one."""

    action: CheckpointAction
    budget: Budget
    meant: str = ""


class BaselineContradiction(Record):
    """The step time of a baseline contradicts another number of it."""

    baseline: Baseline
    contradiction: Contradiction


# --- the order of runs ----------------------------------------------------------------


class OrderedRun(Record):
    """A run that may be the newest, and its verdict."""

    id: str
    job_id: str
    started: datetime | None
    clock: Clock
    verdict: Verdict


class OrderByJob(Record):
    """The job ids contradict the order: that of the rival, and that of the newest
    run."""

    rival: int
    newest: int


class OrderByFile(Record):
    """The times of two files contradict the order of their runs."""

    rival: str
    rival_written: datetime | None
    newest: str
    newest_written: datetime | None


class OrderByLaunch(Record):
    """A run was launched after the first stamp of its own log."""

    rival: str
    launched: datetime


class AmbiguousOrder(Record):
    """Either of two runs may be the newest."""

    newest: OrderedRun
    rival: OrderedRun
    doubt: OrderByJob | OrderByFile | OrderByLaunch


# --- what a session adds to a verdict -------------------------------------------------


class ShiftReference(StrEnum):
    """What configurations have moved from."""

    LAST_RUNS = "their last runs"
    BASELINES = "their baselines"


class SharedShift(Record):
    """The shift that most configurations have in common, a fraction; slower is
    positive."""

    shift: float
    low: float  # this bound and `high` are each wrong with a probability of 5 %
    high: float
    configurations: tuple[Key, ...]  # those that moved
    of: int  # so many were compared
    against: ShiftReference
    several_workloads: bool


RunOnNodes: TypeAlias = "tuple[str, float, tuple[str, ...]]"
"""The id of a run, its step time in seconds, and its nodes (none: unknown)."""


class NodeCause(StrEnum):
    """What the times of runs on different nodes show."""

    ALWAYS_SLOW = "always-slow"  # all runs are slow, and no node was in all of them
    SHARED_NODES = (
        "shared-nodes"  # all runs are slow, and some nodes were in all of them
    )
    SAME_NODES = "same-nodes"  # runs on the same nodes are slow and fast
    SLOW_NODES = "slow-nodes"


class NodeFinding(Record):
    """The slow nodes of the runs of one configuration."""

    cause: NodeCause | None = None  # None: unknown
    slow: tuple[RunOnNodes, ...] = ()
    fast: tuple[RunOnNodes, ...] = ()
    exclude: tuple[
        str, ...
    ] = ()  # the nodes that were slow twice: further runs should not get them
    suspects: tuple[str, ...] = ()  # those that were slow once
    again: tuple[
        str, ...
    ] = ()  # the nodes of the slowest run with suspects: a run there confirms them, or clears them
    fast_beyond_bound: bool = False  # the fast runs are slower than allowed as well


class NotCertified(Record):
    """Why a verdict certifies nothing."""

    doubt: VerdictStatement


class OtherBaselineKind(Record):
    """A certificate asks for a kind of baseline that there is not."""

    asked: str
    kind: BaselineKind


class NewerUnmatched(Record):
    """A newer run may be of the configuration."""

    run: str
    text: str


class TooFewRuns(Record):
    """Fewer valid runs than a suite file requires, and what was stated of them."""

    valid: int
    required: RequiredRuns
    statements: tuple[VerdictStatement, ...]


class FewerRuns(Record):
    """Fewer valid runs than a suite file requires, as an option allows."""

    valid: int
    required: RequiredRuns
    repeats: int


class SlowerBeyondChance(Record):
    """A run is slower than its baseline: a p value adjusted for so many runs."""

    p: float
    count: int


class SlowRankReport(Record):
    """Lines that report a slow rank; `log` is empty for the log of the judged run."""

    log: str
    lines: tuple[tuple[str, int], ...]
