"""What a verdict states: codes with their values, and the records of two findings.

`report/wording` has the sentence of each code.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_llmbench.core.records import Record

if TYPE_CHECKING:
    from datetime import datetime

    from pytest_llmbench.core.baseline_records import Key, Tolerance
    from pytest_llmbench.core.codes import Verdict
    from pytest_llmbench.core.run_records import Clock


class StatementCode(Enum):
    """What is stated; the fields of a template in `report/wording` are its values."""

    # the comparison with the baseline
    STEP_TIME = auto()
    ALLOWED_TIME = auto()
    TIMED_AS_DOCUMENT = auto()  # a statement on such a step time
    RUNS_NEEDED = auto()
    NO_RUNS_SUFFICE = auto()
    COARSE_TIME = auto()  # printed with too few digits
    FEW_MEANS = auto()  # too few printed means to differ from each other
    FEW_TIMES = auto()
    OTHER_STATISTIC = auto()  # the (trimmed) mean does not share the answer
    SLOW_MEAN = auto()
    WIDE_INTERVAL = auto()
    UNIFORM_SHIFT = auto()
    SHIFT_BESIDES = auto()  # all steps are slower, and a few of them slower still
    IMPLAUSIBLE_TIME = auto()
    RUNS_APART = auto()
    UNCONFIRMED_RUNS = auto()  # beyond the bound, too few for a regression
    POOLED_DAYS = auto()  # inconclusive days that are a regression together
    BEYOND_ACCEPTED_LEVEL = auto()
    FASTER_AS_TIMED = auto()
    REFRESH_BASELINE = auto()
    COMPARED_WITHOUT_ERROR = auto()
    BASELINE_ROUNDING = auto()
    NOISY_RUNS = auto()  # earlier runs differ by more than is assumed
    NOISY_STEPS = auto()  # the steps fix the mean less well than runs differ
    FEW_RECORDED = auto()
    BASELINE_CONTRADICTS = auto()

    # the runs that were compared, or not
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

    # what was accepted, recorded and budgeted
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

    # what a session adds
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
        return hash(self.code)  # not all values have one


# --- values of several numbers --------------------------------------------------------


class SlowStep(Record):
    """A slow step, its line (0: unknown) and its time over the median."""

    number: int
    line: int
    ratio: float


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


class DriftLimits(Record):
    """What limits the drift of a recorded value: a budget, a fraction, and a
    tolerance."""

    budget: float
    tolerance: Tolerance


class LogLine(Record):
    """A line of a log; `log` is empty for the log of the judged run."""

    log: str
    line: int


class OrderedRun(Record):
    """A run that may be the newest, and its verdict."""

    id: str
    job_id: str
    started: datetime | None
    clock: Clock
    verdict: Verdict


# --- the cluster and its nodes --------------------------------------------------------


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
