"""Records of a comparison of two sets of runs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from pytest_llmbench.core.codes import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pytest_llmbench.core.baseline_records import Window
    from pytest_llmbench.core.judgement_records import Noise
    from pytest_llmbench.core.run_records import RunKeys


STARTED = "started"
"""Fact name of the day a run started (UTC)."""

NODES = "nodes"
"""Fact name of the nodes of a run."""

ON_BOTH_SIDES = "both sides contain it, so it cannot show a difference"
"""Explanation for a run that both sides contain."""


class SideAnswer(StrEnum):
    """Answer on B relative to A. The values are stable codes."""

    SLOWER = "slower"
    FASTER = "faster"
    ALIKE = "alike"
    CANNOT_TELL = "cannot-tell"


class SideRun(Struct, frozen=True):
    """A usable run of one side."""

    id: str
    statistic_seconds: float
    # standard error of the log step time from the variation within the run
    within_error: float = 0.0
    # largest shift by rounding of the printed times, equal for all runs of a side
    rounding: float = 0.0
    started: datetime | None = None
    nodes: frozenset[str] = frozenset()  # empty if unknown
    # facts that the run states: versions, settings, batch
    facts: Mapping[str, str] = field(default_factory=dict)
    job_id: str = ""
    log: str = ""
    same_run_keys: RunKeys = frozenset()


class SideEstimate(Struct, frozen=True):
    """Difference of B from A.

    All values except `smallest` are logarithms of step times; positive if B is slower.
    """

    answer: SideAnswer
    difference: float
    low: float  # `low` and `high`: two-sided 95 % interval
    high: float
    standard_error: float
    degrees_of_freedom: float
    noise: Noise
    margin: float
    within_margin: bool  # True if the interval is within the margin
    # smallest difference detected with a probability of 80 %, as a fraction
    smallest: float
    runs: tuple[int, int]  # of A and B
    groups: tuple[int, int]  # number of independent groups of runs
    # Additional runs per side that would show a difference of the margin. 0 if the
    # answer is decided, or if rounding hides such a difference.
    runs_needed: tuple[int, int]
    same_nodes: bool | None  # True if all runs used the same nodes, None if unknown
    # largest shift of the difference by rounding, for any number of runs
    rounding: float


class FactDifference(Struct, frozen=True):
    """Fact that is constant within each side and differs between them."""

    name: str
    a: str
    b: str


class VaryingFact(Struct, frozen=True):
    """Fact that varies within a side."""

    name: str
    a: tuple[str, ...]  # distinct values
    b: tuple[str, ...]


class UnknownFact(Struct, frozen=True):
    """Fact that some runs do not state."""

    name: str
    sides: str  # sides with such runs: A, B, or A and B


class SideDifferences(Struct, frozen=True):
    """Known differences between two sides, and unknown facts."""

    between: tuple[FactDifference, ...]
    varying: tuple[VaryingFact, ...]
    # facts that are missing in a run, so that equality is unknown
    unknown: tuple[UnknownFact, ...]

    @property
    def candidate(self) -> str:
        """Name of the only differing fact; empty if there are none or several.

        The start day is ignored, because it nearly always differs.
        """
        names = [fact.name for fact in self.between if fact.name != STARTED]
        return names[0] if len(names) == 1 else ""


# --- parts of a comparison ------------------------------------------------------------


class NoData(Struct, frozen=True):
    """Run that is not used, with the reason."""

    side: str  # A or B
    run: str
    configuration: str  # empty if it is unknown
    reason: str  # a Reason
    text: str
    log: str = ""


class ComparedSide(Struct, frozen=True):
    """Input of one side, with its runs."""

    label: str  # A or B
    place: str  # as given on the command line
    # by configuration id and window; stored runs may have several windows
    runs: Mapping[tuple[str, Window], tuple[SideRun, ...]]
    no_data: tuple[NoData, ...] = ()

    @property
    def configurations(self) -> frozenset[str]:
        """Ids of the configurations with a usable run."""
        return frozenset(name for name, _ in self.runs)

    @property
    def counted(self) -> int:
        """Number of usable runs."""
        return len(
            {(name, run.id) for (name, _), runs in self.runs.items() for run in runs}
        )


class SideComparison(Struct, frozen=True):
    """Comparison of one configuration."""

    configuration: str
    window: Window
    a: tuple[SideRun, ...]
    b: tuple[SideRun, ...]
    estimate: SideEstimate
    differences: SideDifferences


class NotCompared(Struct, frozen=True):
    """Configuration without a usable run on at least one side."""

    configuration: str
    counts_on: str  # A, B, or empty
    text: str


class SidesCompared(Struct, frozen=True):
    """Result of one comparison of A and B."""

    a: ComparedSide
    b: ComparedSide
    margin: float  # a fraction
    comparisons: tuple[SideComparison, ...]
    not_compared: tuple[NotCompared, ...]
    history: str  # URL of the history without its password; "" without a history

    @property
    def no_data(self) -> tuple[NoData, ...]:
        """Runs of both sides that are not used."""
        return (*self.a.no_data, *self.b.no_data)

    @property
    def complete(self) -> bool:
        """True if every configuration was compared and answered.

        Also requires that every run without data, except duplicates, has a known
        configuration.
        """
        answers = [comparison.estimate.answer for comparison in self.comparisons]
        has_unidentified_run = any(
            not run.configuration and run.reason != Reason.COPIED
            for run in self.no_data
        )
        return (
            SideAnswer.CANNOT_TELL not in answers
            and not self.not_compared
            and not has_unidentified_run
        )
