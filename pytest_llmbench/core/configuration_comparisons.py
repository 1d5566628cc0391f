"""A configuration compared with another one, against what the baselines of both
state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import BaselineKind, Configuration, Key
    from pytest_llmbench.core.codes import Verdict
    from pytest_llmbench.core.outcome_records import CheckKind


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One configuration beside its reference, against the baselines of one kind.

    Ratios are step times of the reference over those of the configuration: the
    weak-scaling efficiency, or the speed-up.
    """

    key: Key
    reference: Key
    baseline: BaselineKind
    measured: float
    documented: float
    bound: float  # the smallest measured ratio that passes
    difference: float  # measured over documented, less 1
    low: float
    high: float
    verdict: Verdict
    # of one of the two nothing is known of the error: it adds nothing to the interval
    threshold_only: bool = False


@dataclass(frozen=True, slots=True)
class ConfigurationComparison:
    """The comparison of a family or a pair: the verdict of its worst row, MISSING
    without any."""

    kind: CheckKind  # of the check that shows it
    id: str
    configurations: tuple[Configuration, ...]  # judged or not
    verdict: Verdict
    rows: tuple[ComparisonRow, ...] = ()
    worst: ComparisonRow | None = None
    regressed: Key | None = None  # a reference that is a regression itself

    @property
    def members(self) -> tuple[Key, ...]:
        """The keys of the configurations."""
        return tuple(configuration.key for configuration in self.configurations)

    @property
    def compared(self) -> frozenset[Key]:
        """The keys that were compared, the references among them."""
        return frozenset(key for row in self.rows for key in (row.key, row.reference))
