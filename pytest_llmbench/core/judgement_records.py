"""What a verdict is reached from, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from pytest_llmbench.core.baseline_records import Baseline, Contradiction, Tolerance
    from pytest_llmbench.core.codes import Reason, Verdict
    from pytest_llmbench.core.run_records import (
        Acknowledgement,
        Measurement,
        Note,
        StoredRun,
        VerdictStatement,
    )


SHOWN = 0.005
"""A smaller part of a change, as a fraction, is not worth a message."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How much the logarithm of a run's statistic varies from run to run."""

    sigma: float  # a standard deviation
    degrees_of_freedom: float
    source: str  # what says so
    # False for an assumption, which holds nothing of what happens within a run
    measured: bool


class DailyRun(NamedTuple):
    """The run that stands for one day of a configuration: when it started, its step
    time, and what it ran with."""

    started: datetime
    statistic_seconds: float
    environment: Mapping[str, str] = MappingProxyType({})


class RunSource(StrEnum):
    """What knows an earlier run: a stable code."""

    FOLDER = "folder"
    HISTORY = "history"


class ComparedFacts(NamedTuple):
    """What two runs say of themselves. What only one of them says is not compared."""

    same: tuple[str, ...] = ()  # names
    differs: tuple[
        tuple[str, str, str], ...
    ] = ()  # name, the earlier value, the later one


NOT_COMPARED = ComparedFacts()


class ComparedNodes(NamedTuple):
    """The nodes of two runs, where both are known."""

    before: tuple[str, ...]
    now: tuple[str, ...]

    @property
    def others(self) -> tuple[str, ...]:
        """Those of now that were not there before."""
        return tuple(node for node in self.now if node not in self.before)


@dataclass(frozen=True, slots=True)
class LastGoodRun:
    """The last green run of its configuration before a red one, and what differs since
    then."""

    started: datetime
    job_id: str  # empty where nothing says it
    source: RunSource
    verdict: str  # its own
    seconds: float
    slower: (
        float | None
    )  # how much slower the red run is, a fraction; None where that has no step time that counts
    days: int  # on which the configuration ran since, the red run's own included
    software: ComparedFacts = NOT_COMPARED
    settings: ComparedFacts = NOT_COMPARED
    nodes: ComparedNodes | None = None
    # the shapes of the steps, its own and that of the red run
    steps: tuple[tuple[VerdictStatement, ...], tuple[VerdictStatement, ...]] | None = (
        None
    )


DailyRuns: TypeAlias = "Sequence[DailyRun | StoredRun]"
"""The daily runs of one configuration in their order: those whose logs were read, and
those that the history knows."""

PreviousRun: TypeAlias = "Measurement | StoredRun"
"""A run before the current ones: its log was read, or the history knows it."""

PreviousRuns: TypeAlias = "tuple[PreviousRun, ...]"
"""The daily runs before the current ones, oldest first."""


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
    """A change of level in the daily runs of a configuration, as fractions of the step
    time; slower is positive."""

    kind: ChangeKind
    first_run: int  # the position of the first run after it, oldest first
    started: datetime
    difference: float
    low: float  # the 95 % interval reaches from here to `high`
    high: float
    environment: tuple[
        tuple[str, str, str], ...
    ] = ()  # what differs between the two sides: name, before, after
    stands: bool = True  # it was not taken back since
    lasting: float = 0.0  # what is left of it, 0 where it was taken back
    acknowledged: Acknowledgement | None = None  # what covers it now
    expired: Acknowledgement | None = None  # what did

    @property
    def partly_taken_back(self) -> bool:
        """Whether so much of it went back that it shows; of one that was taken back as
        a whole everything did."""
        return abs(self.difference - self.lasting) >= SHOWN


class OnBound(NamedTuple):
    """Of a configuration that lies now within its bound and now beyond it: how many of
    its last `runs` passed."""

    passed: int
    runs: int


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """How runs are looked at: how probable a wrong answer may be at the bound, and what
    a REGRESSION takes."""

    passing: float = 0.05  # the probability of a wrong PASS
    regression: float = 0.05  # and of a wrong REGRESSION
    # so many runs have to be beyond the bound, each by itself; of just as many all have
    # to agree
    fewest: int = 1


class SessionRules(NamedTuple):
    """What a session was asked for that decides over verdicts, by the options of the
    same names."""

    inconclusive: str = "literal"
    improvement: str = "pass"
    certify: bool = False
    against: str = "both"
    records: bool = False  # it records baselines, so no verdict counts


DEFAULT_RULES = SessionRules()


def is_too_old(
    started: datetime | None, now: datetime, max_age: timedelta | None
) -> bool:
    """Return True if a run is older than allowed; False for an undated run."""
    return max_age is not None and started is not None and now - started > max_age


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is reached from: the measurements of one configuration and the
    settings that apply.

    Runs of one launch are repeats of each other; of those found on disk, the ones of
    one build that started within `repeat_window` of the newest.
    """

    baseline: Baseline
    measurements: tuple[Measurement, ...]  # newest first
    tolerance: Tolerance
    now: datetime  # the time of the session
    prior: Noise  # what other configurations say of the noise, or an assumption
    max_age: timedelta | None = None  # limits how old the judged run may be
    excluded_by_since: tuple[
        Measurement, ...
    ] = ()  # further, older ones that only tell the noise
    repeat_window: timedelta | None = None
    look: DecisionRule = DecisionRule()
    # the run-to-run variation that a configuration without a history of its own has at
    # least
    assumed_cv: float = 0.01
    drift_budget: float = 0.05  # how far recorded values may move, as a fraction
    accepted: tuple[
        Acknowledgement, ...
    ] = ()  # the entries whose reason (`accepts`) fails no run of this session
    remarks: tuple[
        Note, ...
    ] = ()  # said with the verdict: what was acknowledged and moved the baseline
    stored_runs: tuple[StoredRun, ...] = ()  # those that only the history knows
    # the largest part of the baseline's step time that a run may save and still be
    # taken for one of this configuration, None where any may be
    plausible: float | None = None
    contradiction: Contradiction | None = (
        None  # a number of the baseline that its step time contradicts
    )
    # other configurations of the same model with their expected step times: so fast a
    # run may be one of them
    relatives: tuple[tuple[str, float], ...] = ()
    rules: SessionRules = DEFAULT_RULES

    def is_too_old(self, started: datetime | None) -> bool:
        """Return True if a run is older than `max_age`; False for an undated run."""
        return is_too_old(started, self.now, self.max_age)


@dataclass(frozen=True, slots=True)
class Estimate:
    """How well a difference to the baseline is known. All but `detectable` are
    logarithms, slower is positive."""

    difference: float  # the mean over `runs` of log(statistic / baseline)
    standard_error: float
    degrees_of_freedom: float
    low: (
        float  # one-sided bounds: this one is wrong with probability `regression_level`
    )
    high: float  # and this one with probability `level`
    margin: float  # the bound of the verdict
    level: float
    runs: int
    noise: Noise
    within_run_error: float
    effective_sample_size: float  # the number of independent steps
    rounding: float  # the standard error from the printed baseline's digits
    # the smallest slowdown against the baseline, a fraction, that such a run shows with
    # 80 % probability
    detectable: float
    repeats_needed: (
        int | None
    )  # the number of runs that would settle the verdict, None where none would
    p_slower: float | None  # the p-value of "not slower than the baseline"
    threshold_only: bool = (
        False  # nothing is known of the error, and the numbers are compared as they are
    )
    regression_level: float = 0.05


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one configuration."""

    verdict: Verdict
    reason: Reason
    statements: tuple[VerdictStatement, ...]  # what was compared comes first
    baseline: Baseline
    # the largest step time that passes, NaN against a baseline without a value
    bound_seconds: float
    tolerance: Tolerance
    measurement: Measurement | None = None
    log_difference: float | None = None  # log(measured / expected), slower is positive
    meets_point: bool | None = None  # the literal rule, measured <= bound
    notes: tuple[Note, ...] = ()
    estimate: Estimate | None = None  # None where nothing was compared
    repeats: tuple[
        Measurement, ...
    ] = ()  # the other runs that were averaged with `measurement`
    daily_runs: tuple[
        DailyRun, ...
    ] = ()  # the valid ones before this one whose logs were read, oldest first
    changes: tuple[
        LevelChange, ...
    ] = ()  # those of the level over all that are known, oldest first
    last_good: LastGoodRun | None = None  # of a red run, where one is known
    on_bound: OnBound | None = (
        None  # there where the last nights flip from one side of the bound to the other
    )

    @property
    def runs(self) -> tuple[Measurement, ...]:
        """The run that was judged, with its repeats; empty without one."""
        return () if self.measurement is None else (self.measurement, *self.repeats)

    def add_notes(self, *notes: Note) -> Judgement:
        """Return this verdict with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def add_statements(self, *statements: VerdictStatement) -> Judgement:
        """Return this verdict with further statements."""
        return replace(self, statements=(*self.statements, *statements))

    def overrule(
        self, verdict: Verdict, reason: Reason, *statements: VerdictStatement
    ) -> Judgement:
        """Return another verdict on the same run, with these statements alone."""
        return replace(self, verdict=verdict, reason=reason, statements=statements)
