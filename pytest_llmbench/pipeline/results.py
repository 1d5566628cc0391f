"""All that one session found and judged, before it is known which items were selected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.models import Case, Check, Evidence, Judgement, Key, Measurement, UnmatchedRun
from pytest_llmbench.core.models.jobs import LaunchedJob


@dataclass(frozen=True, slots=True)
class ConfigurationResult:
    """The verdict that decides an item, the verdicts against further baselines, and the jobs that it was launched as.

    `nodes` is what is said of the nodes, `done` what a job did that was not to be judged.
    """

    case: Case
    judgement: Judgement
    others: tuple[Judgement, ...] = ()
    jobs: tuple[LaunchedJob, ...] = ()
    nodes: str = ""
    done: str = ""


def deciding(result: ConfigurationResult, evidence: Sequence[Evidence]) -> Evidence:
    """Return which evidence, of that against each baseline, the verdict that decides was reached from."""
    return next(one for one in evidence if one.baseline is result.judgement.baseline)


Judged = Mapping[str, tuple[ConfigurationResult, tuple[Evidence, ...]]]
"""By item id the result, and the evidence against each baseline."""


@dataclass(frozen=True, slots=True)
class SessionResults:
    """Results by item id, and the runs behind them.

    `checks` are about several of them, or about the gate itself; `remarks` stand in the summary; `required` are those
    that a suite file asks for. `measurements` holds, newest first, every run of a configuration against the baseline
    that decides; it stays with the process that read the logs.
    """

    configurations: Mapping[str, ConfigurationResult]
    unmatched: tuple[UnmatchedRun, ...]
    runs_found: int
    runs_before_since: int
    ignored: tuple[str, ...]
    measurements: Mapping[Key, tuple[Measurement, ...]]
    checks: tuple[Check, ...] = ()
    remarks: tuple[str, ...] = ()
    required: frozenset[Key] = frozenset()
