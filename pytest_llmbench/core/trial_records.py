"""Trials: runs that are made to find out something, what is to be run next, and what
they say in the end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.judgement_records import Noise

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_llmbench.core.job_records import Pairs

__all__ = [
    "BisectAnswer",
    "BisectOutcome",
    "BuildRange",
    "LocatedChange",
    "NextTrial",
    "PairedAnswer",
    "PairedEstimate",
    "PairedOutcome",
    "ProbeOutcome",
    "Trial",
    "TrialOutcome",
    "TrialReport",
    "TrialTime",
    "Variant",
]


@dataclass(frozen=True, slots=True)
class Variant:
    """One arm of an A/B, or build of a search: what it has in place of what the cluster
    file says, or besides."""

    name: str
    image: str = ""
    commit: str = ""  # of the recipe's folder, which is a git repository, or in one
    folder: Path | None = None  # in place of the recipe's
    environment: Pairs = ()
    arguments: tuple[str, ...] = ()  # behind the words of the launcher


class TrialOutcome(StrEnum):
    """What became of a run: a stable code."""

    MEASURED = "measured"
    DOES_NOT_RUN = "does-not-run"  # its own failure: the same build would fail again
    LOST = "lost"  # infrastructure: it is made again


@dataclass(frozen=True, slots=True)
class Trial:
    """A run that was made, in the order in which they were made."""

    variant: int  # its place in the list of arms or builds
    outcome: TrialOutcome
    step_time_ms: (
        float | None
    )  # the statistic of its window; None unless it was measured
    discarded: bool = False  # a warm-up, which no estimate holds
    allocation: int = 0  # the allocation that it ran in, where several runs share one
    rounding: float = (
        0.0  # how far its printed digits may move the statistic, a fraction
    )


class TrialTime(NamedTuple):
    """What was measured of a run that stands for itself."""

    seconds: float | None  # of a step; None where it has none
    problem: str = ""  # the reason
    rounding: float = 0.0  # how far the printed digits may move it, a fraction


@dataclass(frozen=True, slots=True)
class NextTrial:
    """The run that is to be made next."""

    variant: int
    discarded: bool = False


class PairedOutcome(StrEnum):
    """What is said of an arm beside the reference: a stable code."""

    SLOWER = "slower"
    FASTER = "faster"
    ALIKE = "alike"
    CANNOT_TELL = "cannot-tell"
    DOES_NOT_RUN = "does-not-run"
    REFERENCE_DOES_NOT_RUN = "reference-does-not-run"
    LOST = "lost"  # infrastructure failed twice in a row, before anything was shown


@dataclass(frozen=True, slots=True)
class PairedEstimate:
    """How far a variant is from another one on the same nodes. Logarithms of step
    times; slower is positive."""

    difference: float
    low: float  # of the interval of this look: two-sided, at twice `level`
    high: float
    level: float  # one-sided
    # the smallest difference, a fraction, that is shown four times out of five
    smallest: float
    standard_error: float
    degrees_of_freedom: float
    noise: Noise  # from run to run; not measured where 1 % was assumed beside what was
    runs: tuple[int, int]  # of both that it rests on
    own_noise: Noise | None = None  # the same of these runs alone


@dataclass(frozen=True, slots=True)
class PairedAnswer:
    """What is said of one arm beside arm 0."""

    variant: int
    outcome: PairedOutcome
    pairs: int  # whole ones
    estimate: PairedEstimate | None  # None before the first look


REFERENCE = 0
"""The arm of an A/B with which the others are compared."""

MARGIN = 0.01
"""Arms that differ by less are alike."""

UNANSWERED = (
    PairedOutcome.DOES_NOT_RUN,
    PairedOutcome.REFERENCE_DOES_NOT_RUN,
    PairedOutcome.LOST,
)
"""The outcomes of an arm that was not compared."""


class ProbeOutcome(StrEnum):
    """On which side of the middle of two ends a build is: a stable code."""

    NOT_SLOWER = "not-slower"
    SLOWER = "slower"
    CANNOT_TELL = "cannot-tell"
    DOES_NOT_RUN = "does-not-run"
    ENDS_ALIKE = "ends-alike"  # the bad end is not shown to be slower than the good one
    STOPPED = "stopped"  # what makes its runs was ended from outside


class BisectOutcome(StrEnum):
    """How a search over an ordered list of builds ended: a stable code."""

    FOUND = "found"  # each change is named
    # the most runs were made, and at least one change lies in a range of builds
    RANGE = "range"
    NO_CHANGE_BETWEEN_ENDS = "no-change-between-ends"
    GOOD_DOES_NOT_RUN = "good-does-not-run"
    BAD_DOES_NOT_RUN = "bad-does-not-run"
    LOST = "lost"  # infrastructure failed twice in a row


@dataclass(frozen=True, slots=True)
class LocatedChange:
    """A change that was found: the first slow build is one of `first` to `last`, all
    but the last of which do not run.

    `size`, `low`, `high` (95 %) and the rest are logarithms.
    """

    first: int
    last: int
    probability: float
    size: float
    low: float
    high: float
    share: float  # of the difference of the ends
    # what is shown to lie before and after it besides, at 5 %; 0 where nothing is
    rest_before: float = 0.0
    rest_after: float = 0.0


@dataclass(frozen=True, slots=True)
class BuildRange:
    """The first slow build is one of `first` to `last`, with this probability."""

    first: int
    last: int
    probability: float


@dataclass(frozen=True, slots=True)
class BisectAnswer:
    """What a search ended with; changes in the order of the builds."""

    outcome: BisectOutcome
    ends: (
        PairedEstimate | None
    )  # how far the last build is from the first one; None before the first look
    runs: int  # so many were measured
    skipped: tuple[int, ...] = ()  # builds that do not run
    changes: tuple[LocatedChange, ...] = ()
    ranges: tuple[BuildRange, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What the runs of variants say in the end: the answers of an A/B, or that of a
    search over builds."""

    names: tuple[str, ...]
    answers: tuple[PairedAnswer, ...] = ()
    search: BisectAnswer | None = None
    nodes: tuple[str, ...] = ()  # on which all of them ran
    cluster: str = ""  # empty: nothing tells
    earlier: Noise | None = (
        None  # of earlier A/Bs of the configuration on the cluster, which was pooled in
    )
    # how many held these nodes, one after another; 0: each run was a job of its own
    allocations: int = 0
    separate_because: str = ""  # why there was none, or none any more

    @property
    def noise(self) -> Noise | None:
        """What the runs of an A/B themselves say of the noise; None where they are too
        few."""
        estimates = (
            answer.estimate.own_noise for answer in self.answers if answer.estimate
        )
        measured = [
            noise for noise in estimates if noise and noise.degrees_of_freedom > 0
        ]
        return max(measured, key=lambda noise: noise.degrees_of_freedom, default=None)
