"""All that one session found and judged, before it is known which items were selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_llmbench.core.models import Case, Check, Evidence, Judgement, Key, Measurement, UnmatchedRun
from pytest_llmbench.core.models.jobs import LaunchedJob

if TYPE_CHECKING:
    from pytest_llmbench.judge.shift import SharedShift


@dataclass(frozen=True, slots=True)
class ConfigurationResult:
    """The verdict that decides an item, those against further baselines, and the jobs that it was launched as."""

    case: Case
    judgement: Judgement
    others: tuple[Judgement, ...] = ()
    jobs: tuple[LaunchedJob, ...] = ()
    nodes: str = ""
    """What is said of the nodes on which the jobs ran."""
    done: str = ""
    """What a job did that was not to be judged, such as a profile; empty for all others."""

    def pick_deciding(self, evidence: Sequence[Evidence]) -> Evidence:
        """Return which evidence, of that against each baseline, the verdict that decides was reached from."""
        return next(of_baseline for of_baseline in evidence if of_baseline.baseline is self.judgement.baseline)


@dataclass(frozen=True, slots=True)
class JudgedConfigurations:
    """The results of a session, each with the evidence against each of its baselines.

    The passes that look at all configurations together return a changed copy (`map`, `map_newest`).
    """

    by_id: Mapping[str, tuple[ConfigurationResult, tuple[Evidence, ...]]]
    """By item id; of several runs of one configuration the newest comes first."""
    shift: SharedShift | None = None
    """What most of them have in common, once somebody has looked for it."""

    @property
    def results(self) -> dict[str, ConfigurationResult]:
        """The results by item id."""
        return {name: result for name, (result, _) in self.by_id.items()}

    @property
    def newest(self) -> dict[Key, tuple[ConfigurationResult, Evidence]]:
        """For each key the result of its newest run, and the evidence that its deciding verdict was reached from."""
        newest: dict[Key, tuple[ConfigurationResult, Evidence]] = {}
        for result, evidence in self.by_id.values():
            if result.case.key not in newest:
                newest[result.case.key] = (result, result.pick_deciding(evidence))
        return newest

    @property
    def judgements(self) -> dict[Key, tuple[Judgement, ...]]:
        """For each key the judgements of its newest run, that which decides first."""
        return {key: (result.judgement, *result.others) for key, (result, _) in self.newest.items()}

    def map(
        self, change: Callable[[ConfigurationResult, tuple[Evidence, ...]], ConfigurationResult]
    ) -> JudgedConfigurations:
        """Return these configurations with each result changed; the evidence stays."""
        return replace(
            self, by_id={name: (change(result, evidence), evidence) for name, (result, evidence) in self.by_id.items()}
        )

    def map_newest(self, change: Callable[[Judgement, Evidence], Judgement]) -> JudgedConfigurations:
        """Return these configurations with the deciding judgement of each one's newest run changed."""
        newest = {result.case.id for result, _ in self.newest.values()}

        def change_newest(result: ConfigurationResult, evidence: tuple[Evidence, ...]) -> ConfigurationResult:
            if result.case.id not in newest:
                return result
            return replace(result, judgement=change(result.judgement, result.pick_deciding(evidence)))

        return self.map(change_newest)


@dataclass(frozen=True, slots=True)
class SessionResults:
    """Results by item id, and the runs behind them."""

    configurations: Mapping[str, ConfigurationResult]
    unmatched: tuple[UnmatchedRun, ...]
    runs_found: int
    runs_before_since: int
    ignored: tuple[str, ...]
    measurements: Mapping[Key, tuple[Measurement, ...]]
    """Newest first, every run of a configuration against the baseline that decides. They stay with the process that
    read the logs: a worker gets none."""
    checks: tuple[Check, ...] = ()
    """What is said of several configurations together, or of the gate itself."""
    remarks: tuple[str, ...] = ()
    """Lines for the summary."""
    required: frozenset[Key] = frozenset()
    """The configurations that a suite file asks for."""
