"""Records of judgements: the evidence, the estimate and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from pytest_llmbench.core.baseline_records import (
        Baseline,
        Contradiction,
        Key,
        Tolerance,
    )
    from pytest_llmbench.core.codes import Reason, Verdict
    from pytest_llmbench.core.run_records import (
        Acknowledgement,
        Measurement,
        Note,
        StoredRun,
        VerdictStatement,
    )


SHOWN = 0.005
"""The smallest change, as a fraction, that is worth a message."""


class Noise(Struct, frozen=True):
    """The run-to-run variation of the logarithm of a run's statistic."""

    sigma: float  # a standard deviation
    degrees_of_freedom: float
    source: str  # the source of the value, in words
    # False for an assumption, which does not include the variation within a run
    measured: bool


class DailyRun(NamedTuple):
    """The run that represents one day of a configuration."""

    started: datetime
    statistic_seconds: float
    environment: Mapping[str, str] = MappingProxyType({})


class RunSource(StrEnum):
    """The source of an earlier run: a stable code."""

    FOLDER = "folder"
    HISTORY = "history"


class ComparedFacts(NamedTuple):
    """The facts that two runs state; facts stated by only one run are not compared."""

    same: tuple[str, ...] = ()  # names
    differs: tuple[tuple[str, str, str], ...] = ()  # name, earlier value, later value


NOT_COMPARED = ComparedFacts()


class ComparedNodes(NamedTuple):
    """The nodes of two runs, if both are known."""

    before: tuple[str, ...]
    now: tuple[str, ...]

    @property
    def others(self) -> tuple[str, ...]:
        """The nodes of the later run that the earlier run did not use."""
        return tuple(node for node in self.now if node not in self.before)


class LastGoodRun(Struct, frozen=True):
    """The last passed run of a configuration before a failed one, with their
    differences."""

    started: datetime
    job_id: str  # "": unknown
    source: RunSource
    verdict: str
    seconds: float
    # the slowdown of the failed run, a fraction; None if it has no valid step time
    slower: float | None
    days: int  # the days with runs since then, including that of the failed run
    software: ComparedFacts = NOT_COMPARED
    settings: ComparedFacts = NOT_COMPARED
    nodes: ComparedNodes | None = None
    # the shape of the steps of this run and of the failed run
    steps: tuple[tuple[VerdictStatement, ...], tuple[VerdictStatement, ...]] | None = (
        None
    )


DailyRuns: TypeAlias = "Sequence[DailyRun | StoredRun]"
"""The daily runs of a configuration in order, parsed from logs or read from the
history."""

PreviousRun: TypeAlias = "Measurement | StoredRun"
"""A run before the current ones, parsed from its log or read from the history."""

PreviousRuns: TypeAlias = "tuple[PreviousRun, ...]"
"""The daily runs before the current ones, oldest first."""


class RequiredRuns(Struct, frozen=True, order=True):
    """The required number of valid runs of a configuration.

    `place` is the file and line of the requirement.
    """

    runs: int
    place: str


class ChangeKind(StrEnum):
    """The shape of a level change: from one run to the next, or gradual."""

    STEP = "step"
    DRIFT = "drift"


class LevelChange(Struct, frozen=True):
    """A change of level in the daily runs of a configuration.

    Values are fractions of the step time; slower is positive.
    """

    kind: ChangeKind
    first_run: int  # the index of the first run after the change, oldest run first
    started: datetime
    difference: float
    low: float  # `low` to `high` is the 95 % interval
    high: float
    # the differences between the two sides: name, value before, value after
    environment: tuple[tuple[str, str, str], ...] = ()
    stands: bool = True  # False if the change was reverted later
    lasting: float = 0.0  # the remaining change; 0 if it was reverted
    acknowledged: Acknowledgement | None = None  # the entry that accepts it now
    expired: Acknowledgement | None = None  # the entry that accepted it before

    @property
    def partly_taken_back(self) -> bool:
        """True if a visible part of the change was reverted later.

        Also true if the whole change was reverted.
        """
        return abs(self.difference - self.lasting) >= SHOWN


class OnBound(NamedTuple):
    """The recent results of a configuration that flips around its bound.

    Of the last `runs` daily runs, `passed` passed.
    """

    passed: int
    runs: int


class DecisionRule(Struct, frozen=True):
    """Error probabilities and the number of runs required for a REGRESSION."""

    passing: float = 0.05  # the probability of a wrong PASS
    regression: float = 0.05  # the probability of a wrong REGRESSION
    # a REGRESSION needs this many runs that are each beyond the bound
    fewest: int = 1


class SessionRules(NamedTuple):
    """The options of a session that affect verdicts, by their names."""

    inconclusive: str = "literal"
    improvement: str = "pass"
    certify: bool = False
    against: str = "both"
    records: bool = False  # baselines are recorded, so that verdicts have no effect


DEFAULT_RULES = SessionRules()


def is_too_old(
    started: datetime | None, now: datetime, max_age: timedelta | None
) -> bool:
    """Return True if a run is older than `max_age`; False for an undated run."""
    return max_age is not None and started is not None and now - started > max_age


class Evidence(Struct, frozen=True):
    """The basis of a verdict: the measurements of one configuration and the settings.

    Runs of one launch are repeats of each other. Runs found on disk are repeats if they
    have the same build and started within `repeat_window` of the newest run.
    """

    baseline: Baseline
    measurements: tuple[Measurement, ...]  # newest first
    tolerance: Tolerance
    now: datetime  # the time of the session
    prior: Noise  # from other configurations, or an assumption
    max_age: timedelta | None = None  # the largest age of the judged run
    excluded_by_since: tuple[
        Measurement, ...
    ] = ()  # older runs, used only for the noise
    repeat_window: timedelta | None = None
    decision_rule: DecisionRule = DecisionRule()
    # the minimum run-to-run variation of a configuration without a history
    assumed_cv: float = 0.01
    drift_budget: float = 0.05  # the largest move of recorded values, a fraction
    # the entries whose reason (`accepts`) does not fail runs in this session
    accepted: tuple[Acknowledgement, ...] = ()
    # notes for the verdict: acknowledged changes that moved the baseline
    remarks: tuple[Note, ...] = ()
    stored_runs: tuple[StoredRun, ...] = ()  # the runs that are only in the history
    # the largest plausible speed-up, as a fraction of the baseline's step time; None:
    # unlimited
    plausible: float | None = None
    # a number of the baseline that contradicts its step time
    contradiction: Contradiction | None = None
    # other configurations of the model with their expected step times; an implausibly
    # fast run may belong to one of them
    relatives: tuple[tuple[Key, float], ...] = ()
    rules: SessionRules = DEFAULT_RULES

    def is_too_old(self, started: datetime | None) -> bool:
        """Return True if a run is older than `max_age`; False for an undated run."""
        return is_too_old(started, self.now, self.max_age)


class Estimate(Struct, frozen=True):
    """The estimated difference from the baseline, with its error.

    All values except `detectable` are logarithms; slower is positive.
    """

    difference: float  # the mean over `runs` of log(statistic / baseline)
    standard_error: float
    degrees_of_freedom: float
    low: float  # a one-sided bound, wrong with probability `regression_level`
    high: float  # a one-sided bound, wrong with probability `level`
    margin: float  # the bound of the verdict
    level: float
    runs: int
    noise: Noise
    within_run_error: float
    effective_sample_size: float  # the number of independent steps
    rounding: float  # the standard error from the printed baseline's digits
    # the smallest slowdown, a fraction, that such a run detects with 80 % probability
    detectable: float
    # the number of runs that would decide the verdict; None if no number would
    repeats_needed: int | None
    p_slower: float | None  # the p-value of "not slower than the baseline"
    # True if the error is unknown and the numbers are compared directly
    threshold_only: bool = False
    regression_level: float = 0.05


class Judgement(Struct, frozen=True):
    """The verdict on one configuration."""

    verdict: Verdict
    reason: Reason
    statements: tuple[VerdictStatement, ...]  # the comparison comes first
    baseline: Baseline
    # the largest step time that passes; NaN if the baseline has no value
    bound_seconds: float
    tolerance: Tolerance
    measurement: Measurement | None = None
    log_difference: float | None = None  # log(measured / expected), slower is positive
    meets_point: bool | None = None  # the literal rule: measured <= bound
    notes: tuple[Note, ...] = ()
    estimate: Estimate | None = None  # None if there was no comparison
    # the other runs that were averaged with `measurement`
    repeats: tuple[Measurement, ...] = ()
    # the earlier valid daily runs whose logs were parsed, oldest first
    daily_runs: tuple[DailyRun, ...] = ()
    changes: tuple[LevelChange, ...] = ()  # in all known daily runs, oldest first
    last_good: LastGoodRun | None = None  # set for a failed run, if known
    on_bound: OnBound | None = None  # set if the last days flip around the bound

    @property
    def runs(self) -> tuple[Measurement, ...]:
        """The judged run followed by its repeats; empty if no run was judged."""
        return () if self.measurement is None else (self.measurement, *self.repeats)

    def add_notes(self, *notes: Note) -> Judgement:
        """Return a copy with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def add_statements(self, *statements: VerdictStatement) -> Judgement:
        """Return a copy with further statements."""
        return replace(self, statements=(*self.statements, *statements))

    def overrule(
        self, verdict: Verdict, reason: Reason, *statements: VerdictStatement
    ) -> Judgement:
        """Return another verdict on the same run, with only these statements."""
        return replace(self, verdict=verdict, reason=reason, statements=statements)
