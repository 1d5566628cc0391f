"""Two sets of runs beside each other: what each side holds, how far they differ, and
what differs besides."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_llmbench.core.codes import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pytest_llmbench.core.baseline_records import Window
    from pytest_llmbench.core.judgement_records import Noise
    from pytest_llmbench.core.run_records import RunKeys


STARTED = "started"
"""The name of the fact on which day a run started (UTC)."""

NODES = "nodes"
"""The name of the fact on which nodes it ran."""

ON_BOTH_SIDES = "it lies on both sides, and says nothing of a difference"
"""The text of a run that is not compared, since both sides contain it."""


class SideAnswer(StrEnum):
    """What is said of B beside A: a stable code."""

    SLOWER = "slower"
    FASTER = "faster"
    ALIKE = "alike"
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True, slots=True)
class SideRun:
    """A run that counts on its side."""

    id: str
    statistic_seconds: float
    within_error: float = (
        0.0  # the standard error of its logarithm by what happens within the run
    )
    # how far that may be off by the printed digits, in all runs of a side alike
    rounding: float = 0.0
    started: datetime | None = None
    nodes: frozenset[str] = frozenset()  # empty where nothing says it
    facts: Mapping[str, str] = field(
        default_factory=dict
    )  # what it tells of itself, by name: versions, settings, batch
    job_id: str = ""
    log: str = ""
    same_run_keys: RunKeys = frozenset()


@dataclass(frozen=True, slots=True)
class SideEstimate:
    """How far B is from A. All but `smallest` are logarithms of step times; B slower is
    positive."""

    answer: SideAnswer
    difference: float
    low: float  # of the 95 % interval, two-sided
    high: float
    standard_error: float
    degrees_of_freedom: float
    noise: Noise
    margin: float
    within_margin: bool  # the whole interval lies within the margin
    # the smallest difference, a fraction, that is shown four times out of five
    smallest: float
    runs: tuple[int, int]  # of A and B
    groups: tuple[int, int]  # so many of them are independent
    # so many more on each side would show a difference of the margin; 0 where answered,
    # and where the times are printed too coarsely for that
    runs_needed: tuple[int, int]
    same_nodes: (
        bool | None
    )  # whether all runs were on one set of nodes, None where that is not known
    # how far the printed digits may move the difference, however many runs there are
    rounding: float


@dataclass(frozen=True, slots=True)
class FactDifference:
    """Something that is constant within each side and differs between them."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class VaryingFact:
    """Something that varies within a side."""

    name: str
    a: tuple[str, ...]  # each value once
    b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnknownFact:
    """Something that not every run states."""

    name: str
    sides: str  # of those runs: A, B, or A and B


@dataclass(frozen=True, slots=True)
class SideDifferences:
    """What is known to differ between two sides, and what is not known."""

    between: tuple[FactDifference, ...]
    varying: tuple[VaryingFact, ...]
    # neither the same nor different
    unknown: tuple[UnknownFact, ...]

    @property
    def candidate(self) -> str:
        """The name of the only thing that differs, empty where nothing or more than one
        does. The day does not count: but for sides of one night it always differs."""
        others = [fact.name for fact in self.between if fact.name != STARTED]
        return others[0] if len(others) == 1 else ""


# --- what a comparison is made of -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoData:
    """A run that counts for nothing, with the reason."""

    side: str  # A or B
    run: str
    configuration: str  # empty if it is unknown
    reason: str  # a Reason
    text: str
    log: str = ""


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """What was given for one side, and what it holds."""

    label: str  # A or B
    place: str  # as it was given
    # by the id of the configuration and the window that they were measured over; a run
    # of a history may have several
    runs: Mapping[tuple[str, Window], tuple[SideRun, ...]]
    no_data: tuple[NoData, ...] = ()

    @property
    def configurations(self) -> frozenset[str]:
        """The ids of the configurations of which it holds a run that counts."""
        return frozenset(name for name, _ in self.runs)

    @property
    def counted(self) -> int:
        """How many runs count."""
        return len(
            {(name, run.id) for (name, _), runs in self.runs.items() for run in runs}
        )


@dataclass(frozen=True, slots=True)
class SideComparison:
    """One configuration on both sides."""

    configuration: str
    window: Window
    a: tuple[SideRun, ...]
    b: tuple[SideRun, ...]
    estimate: SideEstimate
    differences: SideDifferences


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A configuration that has no run that counts on one of the sides, or on both."""

    configuration: str
    counts_on: str  # A, B, or empty
    text: str


@dataclass(frozen=True, slots=True)
class SidesCompared:
    """All that one comparison of A and B says."""

    a: ComparedSide
    b: ComparedSide
    margin: float  # a fraction
    comparisons: tuple[SideComparison, ...]
    not_compared: tuple[NotCompared, ...]
    history: str  # the store of earlier runs, without a password; "" without one

    @property
    def no_data(self) -> tuple[NoData, ...]:
        """The runs of both sides that count for nothing."""
        return (*self.a.no_data, *self.b.no_data)

    @property
    def complete(self) -> bool:
        """Whether every configuration that was found was compared and answered, and
        every run but copies has one."""
        answered = all(
            each.estimate.answer is not SideAnswer.CANNOT_TELL
            for each in self.comparisons
        )
        return (
            answered
            and not self.not_compared
            and all(
                run.configuration or run.reason == Reason.COPIED for run in self.no_data
            )
        )
