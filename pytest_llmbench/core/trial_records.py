"""Records of A/B comparisons and bisections: variants, runs and results.

A trial is one run that is launched for such a comparison.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

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


class Variant(Struct, frozen=True):
    """One variant of an A/B or one build of a bisection.

    Its values replace or extend the values of the cluster file.
    """

    name: str
    image: str = ""
    commit: str = ""  # in the git repository that contains the recipe's folder
    folder: Path | None = None  # replaces the recipe's folder
    environment: Pairs = ()
    arguments: tuple[str, ...] = ()  # appended to the command of the launcher


class TrialOutcome(StrEnum):
    """The outcome of a trial: a stable code."""

    MEASURED = "measured"
    DOES_NOT_RUN = "does-not-run"  # a failure that would occur again with this build
    LOST = "lost"  # an infrastructure failure; the trial is repeated


class Trial(Struct, frozen=True):
    """A run of a variant; trials are in launch order."""

    variant: int  # the index in the list of variants or builds
    outcome: TrialOutcome
    step_time_ms: float | None  # the statistic of the window; None unless measured
    is_warm_up: bool = False  # a warm-up, which is not used in any estimate
    allocation: int = 0  # the number of the allocation, if several runs share one
    rounding: float = 0.0  # the largest rounding error of the statistic, a fraction


class TrialTime(NamedTuple):
    """The measured step time of a single trial."""

    seconds: float | None  # the step time, or None
    problem: str = ""  # the reason for a missing step time
    rounding: float = 0.0  # the largest rounding error of the step time, a fraction


class NextTrial(Struct, frozen=True):
    """The trial to launch next."""

    variant: int
    is_warm_up: bool = False


class PairedOutcome(StrEnum):
    """The result of comparing a variant with the reference: a stable code."""

    SLOWER = "slower"
    FASTER = "faster"
    ALIKE = "alike"
    CANNOT_TELL = "cannot-tell"
    DOES_NOT_RUN = "does-not-run"
    REFERENCE_DOES_NOT_RUN = "reference-does-not-run"
    LOST = "lost"  # infrastructure failed twice in a row, before there was a result


class PairedEstimate(Struct, frozen=True):
    """The estimated difference between two variants on the same nodes.

    Values are logarithms of step times; slower is positive.
    """

    difference: float
    low: float  # bound of the two-sided interval of this analysis, at twice `level`
    high: float
    level: float  # one-sided
    # the smallest difference, a fraction, that is detected with 80 % probability
    smallest: float
    standard_error: float
    degrees_of_freedom: float
    noise: Noise  # between runs; `measured` is False if it includes the assumed 1 %
    runs: tuple[int, int]  # the number of runs of each variant
    own_noise: Noise | None = None  # the noise of these runs alone


class PairedAnswer(Struct, frozen=True):
    """The result for one variant compared with variant 0."""

    variant: int
    outcome: PairedOutcome
    pairs: int  # the number of complete pairs
    estimate: PairedEstimate | None  # None before the first interim analysis


REFERENCE = 0
"""Index of the reference variant of an A/B."""

MARGIN = 0.01
"""Variants that differ by less than this fraction are alike."""

UNANSWERED = (
    PairedOutcome.DOES_NOT_RUN,
    PairedOutcome.REFERENCE_DOES_NOT_RUN,
    PairedOutcome.LOST,
)
"""Outcomes of a variant that was not compared."""


class ProbeOutcome(StrEnum):
    """The position of a build relative to the midpoint of both ends: a stable code."""

    NOT_SLOWER = "not-slower"
    SLOWER = "slower"
    CANNOT_TELL = "cannot-tell"
    DOES_NOT_RUN = "does-not-run"
    ENDS_ALIKE = (
        "ends-alike"  # no evidence that the bad end is slower than the good one
    )
    STOPPED = "stopped"  # the command that makes its runs was stopped from outside


class BisectOutcome(StrEnum):
    """The result of a bisection over an ordered list of builds: a stable code."""

    FOUND = "found"  # all changes are located
    # the limit of runs is reached, and at least one change is only known as a range
    RANGE = "range"
    NO_CHANGE_BETWEEN_ENDS = "no-change-between-ends"
    GOOD_DOES_NOT_RUN = "good-does-not-run"
    BAD_DOES_NOT_RUN = "bad-does-not-run"
    LOST = "lost"  # infrastructure failed twice in a row


class LocatedChange(Struct, frozen=True):
    """A located change: the first slow build is one of `first` to `last`.

    If these are several builds, all of them except `last` do not run. `size`, its 95 %
    interval `low` to `high`, and `rest_before` and `rest_after` are logarithms.
    """

    first: int
    last: int
    probability: float
    size: float
    low: float
    high: float
    share: float  # the fraction of the difference between the ends
    # further changes before and after this one, significant at 5 %; 0: none
    rest_before: float = 0.0
    rest_after: float = 0.0


class BuildRange(Struct, frozen=True):
    """A range of builds that contains the first slow build with a given probability."""

    first: int
    last: int
    probability: float


class BisectAnswer(Struct, frozen=True):
    """The result of a bisection; changes are in the order of the builds."""

    outcome: BisectOutcome
    # the difference between the last and the first build; None before the first
    # interim analysis
    ends: PairedEstimate | None
    runs: int  # the number of measured runs
    skipped: tuple[int, ...] = ()  # builds that do not run
    changes: tuple[LocatedChange, ...] = ()
    ranges: tuple[BuildRange, ...] = ()


class TrialReport(Struct, frozen=True):
    """The results of an A/B (`answers`) or of a bisection (`search`)."""

    names: tuple[str, ...]
    answers: tuple[PairedAnswer, ...] = ()
    search: BisectAnswer | None = None
    nodes: tuple[str, ...] = ()  # the nodes of all runs
    cluster: str = ""  # "": unknown
    # the pooled noise of earlier A/Bs of the configuration on the cluster
    earlier: Noise | None = None
    # the number of consecutive allocations; 0: each run was a separate job
    allocations: int = 0
    separate_because: str = ""  # the reason for runs outside of an allocation

    @property
    def noise(self) -> Noise | None:
        """The noise estimated from the runs of an A/B alone, or None if there are too
        few."""
        estimates = (
            answer.estimate.own_noise for answer in self.answers if answer.estimate
        )
        measured = [
            noise for noise in estimates if noise and noise.degrees_of_freedom > 0
        ]
        return max(measured, key=lambda noise: noise.degrees_of_freedom, default=None)
