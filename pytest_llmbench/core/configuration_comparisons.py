"""Records of comparisons between configurations: weak scaling and FP8 speed-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import BaselineKind, Configuration, Key
    from pytest_llmbench.core.codes import Verdict
    from pytest_llmbench.core.outcome_records import CheckKind


class ComparisonRow(Struct, frozen=True):
    """One configuration compared with its reference, using baselines of one kind.

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
    # True if the error of one configuration is unknown and left out of the interval
    threshold_only: bool = False


class ConfigurationComparison(Struct, frozen=True):
    """The comparison of a family or a pair of configurations.

    The verdict is that of the worst row, or MISSING without rows.
    """

    kind: CheckKind  # of the check that reports the comparison
    id: str
    configurations: tuple[Configuration, ...]  # judged and unjudged ones
    verdict: Verdict
    rows: tuple[ComparisonRow, ...] = ()
    worst: ComparisonRow | None = None
    regressed: Key | None = None  # a reference with the verdict REGRESSION

    @property
    def members(self) -> tuple[Key, ...]:
        """The keys of all configurations."""
        return tuple(configuration.key for configuration in self.configurations)

    @property
    def compared(self) -> frozenset[Key]:
        """The keys of the compared configurations and their references."""
        return frozenset(key for row in self.rows for key in (row.key, row.reference))
