"""The words of a verdict, what it is reached from, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date, datetime, timedelta

    from pytest_llmbench.core.models.baselines import Baseline, Tolerance
    from pytest_llmbench.core.models.measurements import Measurement, Note, StoredRun


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
    IMPLAUSIBLY_FAST = "implausibly-fast"
    CANNOT_TELL = "cannot-tell"
    WARMING_UP = "warming-up"
    FEW_STEPS_DECIDE = "few-steps-decide"
    DIVERGED = "diverged"
    DID_NOT_TRAIN = "did-not-train"
    LOSS_MISSING = "loss-missing"
    INCOMPLETE = "incomplete"
    STILL_RUNNING = "still-running"
    NO_STEPS = "no-steps"
    WINDOW_INCOMPLETE = "window-incomplete"
    IMPOSSIBLE_SAMPLE = "impossible-sample"
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    COPIED = "copied"
    WRONG_CONFIGURATION = "wrong-configuration"
    PROFILED = "profiled"
    TRACED = "traced"
    CHECKPOINT_LOAD = "checkpoint-load"
    NO_RUN = "no-run"
    TOO_OLD = "too-old"
    TOO_FEW_RUNS = "too-few-runs"
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
    DRIFTED = "drifted"
    PURPOSE_DONE = "not-judged"
    PURPOSE_MISSED = "nothing-left"


class NoteCode(StrEnum):
    """What a note is about: stable codes, for machines."""

    ACKNOWLEDGED = "acknowledged"
    ACKNOWLEDGEMENT_EXPIRED = "acknowledgement-expired"
    ACKNOWLEDGEMENT_IDLE = "acknowledgement-idle"
    ASSUMED = "assumed"
    ASYNCHRONOUS_DISPATCH = "asynchronous-dispatch"
    ATTEMPTS = "attempts"
    BEGUN_AGAIN = "begun-again"
    BUDGET_UNKNOWN = "budget-unknown"
    BUDGET_UNUSED = "budget-unused"
    BUILD_UNKNOWN = "build-unknown"
    CHECKPOINT_MISSING = "checkpoint-missing"
    CHECKPOINT_SAVED = "checkpoint-saved"
    COARSE_BASELINE = "coarse-baseline"
    DRIFT = "drift"
    FEW_RECORDED = "few-recorded"
    FEWER_RUNS = "fewer-runs"
    HICCUP = "hiccup"
    HICCUPS_OFTEN = "hiccups-often"
    IMPOSSIBLE_STEPS = "impossible-steps"
    INTERLEAVED = "interleaved"
    INTERVAL_MEAN = "interval-mean"
    LOSS_MISSING_BEFORE = "loss-missing-before"
    LOSS_STANDS_STILL = "loss-stands-still"
    MEAN_AND_TRIMMED = "mean-and-trimmed"
    MOVING_MEAN = "moving-mean"
    MOVING_MEAN_WARM_UP = "moving-mean-warm-up"
    NEWER_JOB = "newer-job"
    NORM_UNKNOWN = "norm-unknown"
    NOT_COMPARABLE = "not-comparable"
    OLDER_RUNS = "older-runs"
    ORDER_FILE_TIME = "order-file-time"
    ORDER_MIXED = "order-mixed"
    OTHER_DIALECT = "other-dialect"
    OTHER_RANK = "other-rank"
    OTHER_RELEASE = "other-release"
    OVER_BUDGET = "over-budget"
    PADDED = "padded"
    PROFILER_REPORT = "profiler-report"
    RAMPED_UP = "ramped-up"
    RATE_OF_SAMPLES = "rate-of-samples"
    RECORDED_AGAINST_PUBLISHED = "recorded-against-published"
    RECORDED_DRIFT = "recorded-drift"
    RECORDED_DRIFT_LITTLE = "recorded-drift-little"
    RECORDED_FEW_GROUPS = "recorded-few-groups"
    RECORDED_GROUPS = "recorded-groups"
    RECORDED_LEVELS = "recorded-levels"
    RECORDED_REPLACED = "recorded-replaced"
    REPEAT_DISAGREES = "repeat-disagrees"
    REPEAT_LOST = "repeat-lost"
    REPEATED = "repeated"
    REPEATS = "repeats"
    REPEATS_DISAGREE = "repeats-disagree"
    RUNNING_AVERAGE = "running-average"
    SAME_STEPS = "same-steps"
    SEGMENTS = "segments"
    SKIPPED_STEPS = "skipped-steps"
    SLOWER_THAN_BASELINE = "slower-than-baseline"
    SLOWEST_ATTEMPT = "slowest-attempt"
    STEPS = "steps"
    STRAGGLERS = "stragglers"
    THRESHOLD_ONLY = "threshold-only"
    TIME_FROM_TOKENS = "time-from-tokens"
    TORN = "torn"
    TWO_LEVELS = "two-levels"
    TWO_WRITERS = "two-writers"
    UNKNOWN_STEP = "unknown-step"
    UNTIMED_STEPS = "untimed-steps"
    UNVERIFIED_BATCH = "unverified-batch"
    UNVERIFIED_LOSS = "unverified-loss"
    WARM_UP = "warm-up"


SHOWN = 0.005
"""A smaller part of a change, as a fraction, is not worth a message."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How much the logarithm of a run's statistic varies from run to run."""

    sigma: float  # a standard deviation
    degrees_of_freedom: float
    source: str  # what says so
    measured: bool  # False for an assumption, which holds nothing of what happens within a run


class DailyRun(NamedTuple):
    """The run that stands for one day of a configuration: when it started, its step time, and what it ran with."""

    started: datetime
    statistic_seconds: float
    environment: Mapping[str, str] = MappingProxyType({})


DailyRuns: TypeAlias = "Sequence[DailyRun | StoredRun]"
"""The daily runs of one configuration in their order: those whose logs were read, and those that the history knows."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A change of step time that somebody accepted, from one day to another (both included)."""

    configuration: str  # an id or a shell pattern
    fraction: float  # the change, slower is positive
    since: date
    expires: date
    reason: str
    by: str
    place: str  # where it stands


@dataclass(frozen=True, slots=True, order=True)
class RequiredRuns:
    """So many valid runs of a configuration are required, and where that is written."""

    runs: int
    place: str


class ChangeKind(StrEnum):
    """How the level of the daily runs moved: from one run to the next, or slowly."""

    STEP = "step"
    DRIFT = "drift"


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level in the daily runs of a configuration, as fractions of the step time; slower is positive."""

    kind: ChangeKind
    first_run: int  # the position of the first run after it, oldest first
    started: datetime
    difference: float
    low: float  # the 95 % interval reaches from here to `high`
    high: float
    environment: tuple[tuple[str, str, str], ...] = ()  # what differs between the two sides: name, before, after
    stands: bool = True  # it was not taken back since
    lasting: float = 0.0  # what is left of it, 0 where it was taken back
    acknowledged: Acknowledgement | None = None  # what covers it now
    expired: Acknowledgement | None = None  # what did
    text: str = ""

    @property
    def partly_taken_back(self) -> bool:
        """Whether so much of it went back that it shows; of one that was taken back as a whole everything did."""
        return abs(self.difference - self.lasting) >= SHOWN


class OnBound(NamedTuple):
    """Of a configuration that lies now within its bound and now beyond it: how many of its last `runs` passed."""

    passed: int
    runs: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is reached from: the measurements of one configuration and the settings that apply.

    Runs of one launch are repeats of each other; of those found on disk, the ones of one build that started within
    `repeat_window` of the newest.
    """

    baseline: Baseline
    measurements: tuple[Measurement, ...]  # newest first
    tolerance: Tolerance
    now: datetime  # the time of the session
    prior: Noise  # what other configurations say of the noise, or an assumption
    max_age: timedelta | None = None  # limits how old the judged run may be
    excluded_by_since: tuple[Measurement, ...] = ()  # further, older ones that only tell the noise
    repeat_window: timedelta | None = None
    level: float = 0.05  # the probability of a wrong PASS at the bound
    assumed_cv: float = 0.01  # the run-to-run variation that a configuration without a history of its own has at least
    drift_budget: float = 0.05  # how far recorded values may move, as a fraction
    remarks: tuple[Note, ...] = ()  # said with the verdict: what was acknowledged and moved the baseline
    stored_runs: tuple[StoredRun, ...] = ()  # those that only the history knows
    # the largest part of the baseline's step time that a run may save and still be taken for one of this configuration,
    # None where any may be
    plausible: float | None = None
    # other configurations of the same model with their expected step times: so fast a run may be one of them
    relatives: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """How well a difference to the baseline is known. All but `detectable` are logarithms, slower is positive."""

    difference: float  # the mean over `runs` of log(statistic / baseline)
    standard_error: float
    degrees_of_freedom: float
    low: float  # one-sided bounds, each wrong with probability `level`
    high: float
    margin: float  # the bound of the verdict
    level: float
    runs: int
    noise: Noise
    within_run_error: float
    effective_sample_size: float  # the number of independent steps
    rounding: float  # the standard error from the printed baseline's digits
    # the smallest slowdown against the baseline, a fraction, that such a run shows with 80 % probability
    detectable: float
    repeats_needed: int | None  # the number of runs that would settle the verdict, None where none would
    p_slower: float | None  # the p-value of "not slower than the baseline"
    threshold_only: bool = False  # nothing is known of the error, and the numbers are compared as they are


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one configuration."""

    verdict: Verdict
    reason: Reason
    sentences: tuple[str, ...]  # what was compared first, behind it what else there is to say
    baseline: Baseline
    bound_seconds: float  # the largest step time that passes, NaN against a baseline without a value
    tolerance: Tolerance
    measurement: Measurement | None = None
    log_difference: float | None = None  # log(measured / expected), slower is positive
    meets_point: bool | None = None  # the literal rule, measured <= bound
    notes: tuple[Note, ...] = ()
    estimate: Estimate | None = None  # None where nothing was compared
    repeats: tuple[Measurement, ...] = ()  # the other runs that were averaged with `measurement`
    daily_runs: tuple[DailyRun, ...] = ()  # the valid ones before this one whose logs were read, oldest first
    changes: tuple[LevelChange, ...] = ()  # those of the level over all that are known, oldest first
    on_bound: OnBound | None = None  # there where the last nights flip from one side of the bound to the other

    @property
    def text(self) -> str:
        """The sentences as one."""
        return "; ".join(self.sentences)

    @property
    def runs(self) -> tuple[Measurement, ...]:
        """The run that was judged, with its repeats; empty without one."""
        return () if self.measurement is None else (self.measurement, *self.repeats)
