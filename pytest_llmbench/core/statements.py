"""The statements of a verdict: codes with values, and records of findings.

`report/wording` contains the sentence for each code.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_llmbench.core.records import Record

if TYPE_CHECKING:
    from datetime import datetime

    from pytest_llmbench.core.baseline_records import Key, Tolerance
    from pytest_llmbench.core.codes import Verdict
    from pytest_llmbench.core.run_records import Clock


class StatementCode(Enum):
    """The content of a statement.

    The fields of its template in `report/wording` are its values.
    """

    # the comparison with the baseline
    STEP_TIME = auto()
    ALLOWED_TIME = auto()
    TIMED_AS_DOCUMENT = auto()  # wraps a statement on a time measured by that rule
    RUNS_NEEDED = auto()
    NO_RUNS_SUFFICE = auto()
    COARSE_TIME = auto()  # printed with too few digits
    FEW_MEANS = auto()  # too few printed means to estimate their variation
    FEW_TIMES = auto()
    OTHER_STATISTIC = auto()  # mean and trimmed mean lead to different verdicts
    SLOW_MEAN = auto()
    WIDE_INTERVAL = auto()
    UNIFORM_SHIFT = auto()
    SHIFT_BESIDES = auto()  # all steps are slower, and a few are even slower
    IMPLAUSIBLE_TIME = auto()
    RUNS_APART = auto()
    UNCONFIRMED_RUNS = auto()  # beyond the bound, but too few for a regression
    POOLED_DAYS = auto()  # several inconclusive days that form a regression
    BEYOND_ACCEPTED_LEVEL = auto()
    FASTER_AS_TIMED = auto()
    REFRESH_BASELINE = auto()
    COMPARED_WITHOUT_ERROR = auto()
    BASELINE_ROUNDING = auto()
    NOISY_RUNS = auto()  # earlier runs differ by more than the assumed variation
    NOISY_STEPS = auto()  # the error within the run exceeds the run-to-run variation
    FEW_RECORDED = auto()
    BASELINE_CONTRADICTS = auto()

    # compared and uncompared runs
    LAST_VALID_RUN = auto()
    STALE_RUN = auto()
    UNUSABLE_RUN = auto()
    NOTHING_TO_COMPARE = auto()
    UNDATED_RUN = auto()
    MISSING_RUN = auto()
    ONLY_EXCLUDED = auto()
    NEWER_RUNS = auto()
    OLDER_RUNS = auto()
    REPEATS = auto()
    REPEATS_DIFFER = auto()
    LOST_REPEAT = auto()
    BUILD_UNKNOWN = auto()
    HICCUP = auto()
    HICCUPS_OFTEN = auto()
    NEWEST_BY_FILE_TIME = auto()
    NEWEST_BY_MIXED_CLOCKS = auto()
    AMBIGUOUS_ORDER = auto()
    ORDER_BY_JOB = auto()
    ORDER_BY_FILE = auto()
    ORDER_BY_LAUNCH = auto()

    # the shape of a window
    TOO_FEW_STEPS = auto()
    EVEN_STEPS = auto()
    ONE_SPIKE = auto()
    SPIKES = auto()
    PERIODIC_STEPS = auto()
    SLOW_STRETCH = auto()
    TWO_LEVELS = auto()
    DRIFTING_STEPS = auto()
    SAVE_IN_STEP = auto()
    STRAGGLERS = auto()
    STEP_DRIFT = auto()
    WARM_UP_STEPS = auto()
    MEAN_AND_TRIMMED = auto()
    MOVING_MEANS = auto()

    # acknowledgements, recordings and budgets
    ACCEPTED_REASON = auto()
    ACCEPTED_IN_ALL = auto()
    IDLE_CERTIFIED = auto()
    IDLE_EXPIRED = auto()
    IDLE_RECORDED = auto()
    IDLE_FASTER = auto()
    VALUE_DRIFT = auto()
    DRIFTED_RUN = auto()
    DRIFTED_RECORDING = auto()
    AGAINST_RECORDED = auto()
    MOVED_RECORDING = auto()
    OVER_BUDGET = auto()
    BUDGET_UNKNOWN = auto()
    TIME_TRUNCATED = auto()
    TIME_MISSING = auto()
    DISPATCH_ONLY = auto()
    RECORDS_UNREAD = auto()
    SYNCHRONOUS = auto()
    UNSTATED_CHECKPOINT = auto()

    # additions by the session
    ERROR_UNKNOWN = auto()
    NOT_CERTIFIED = auto()
    OTHER_BASELINE_KIND = auto()
    NEWER_UNMATCHED = auto()
    TOO_FEW_RUNS = auto()
    FEWER_RUNS = auto()
    SLOWER_BEYOND_CHANCE = auto()
    SLOW_RANK = auto()


class CodedStatement(Record):
    """A code with its values by name."""

    code: StatementCode
    values: dict[str, Any]

    def __init__(self, code: StatementCode, **values: Any) -> None:
        super().__init__(code, values)

    def __hash__(self) -> int:
        return hash(self.code)  # not all values are hashable


# --- compound values ------------------------------------------------------------------


class SlowStep(Record):
    """A slow step: its number, its line (0: unknown) and its time over the median."""

    number: int
    line: int
    ratio: float


class StepSpan(Record):
    """A range of consecutive steps with their count."""

    first: int
    last: int
    count: int


class StepList(Record):
    """The first spans of a set of steps, the number of `more` spans, and the step
    count."""

    spans: tuple[StepSpan, ...]
    more: int
    count: int


class SlowestSteps(Record):
    """The slowest step, or the printed values that contain it, with their time over the
    median."""

    steps: StepList
    ratio: float
    averaged: bool  # True for one value that is the mean of several steps
    smoothed: bool  # True for several values of a moving mean


class DriftLimits(Record):
    """The limits for the drift of a recorded value: a budget (a fraction) and a
    tolerance."""

    budget: float
    tolerance: Tolerance


class LogLine(Record):
    """A line of a log; `log` is "" for the log of the judged run."""

    log: str
    line: int


class OrderedRun(Record):
    """A run that may be the newest, with its verdict."""

    id: str
    job_id: str
    started: datetime | None
    clock: Clock
    verdict: Verdict


# --- the cluster and its nodes --------------------------------------------------------


class ShiftReference(StrEnum):
    """The reference for a shift of several configurations."""

    LAST_RUNS = "their last runs"
    BASELINES = "their baselines"


class SharedShift(Record):
    """A shift that most configurations share, as a fraction; slower is positive."""

    shift: float
    low: float  # `low` and `high` are each wrong with a probability of 5 %
    high: float
    configurations: tuple[Key, ...]  # the shifted configurations
    of: int  # the number of compared configurations
    against: ShiftReference
    several_workloads: bool


class RunOnNodes(NamedTuple):
    """A run with its step time and its nodes."""

    id: str
    seconds: float  # NaN if the run has no step time
    nodes: tuple[str, ...]  # empty if unknown


class NodeCause(StrEnum):
    """The pattern in the step times of runs on different nodes."""

    ALWAYS_SLOW = "always-slow"  # all runs are slow, but share no node
    SHARED_NODES = "shared-nodes"  # all runs are slow and share some nodes
    SAME_NODES = "same-nodes"  # runs on the same nodes are slow and fast
    SLOW_NODES = "slow-nodes"


class NodeFinding(Record):
    """The slow nodes in the runs of one configuration."""

    cause: NodeCause | None = None  # None: unknown
    slow: tuple[RunOnNodes, ...] = ()
    fast: tuple[RunOnNodes, ...] = ()
    # nodes that were slow twice; further runs should exclude them
    exclude: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()  # nodes that were slow once
    # the nodes of the slowest run with suspects; another run there confirms or clears
    # the suspects
    again: tuple[str, ...] = ()
    fast_beyond_bound: bool = False  # True if the fast runs exceed the bound as well
