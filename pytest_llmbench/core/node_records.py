"""Records of the search for slow nodes in the runs of many days."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date, datetime

    from pytest_llmbench.core.baseline_records import Window

Software = frozenset[tuple[str, str]]
"""Container, versions and commits of a run, by the names used in reports."""

EVIDENT = 100.0
"""The likelihood ratio at which a slow node is evident.

Chance exceeds this ratio in at most one of 100 histories, even with repeated analyses.
"""


class MeasuredRun(Struct, frozen=True):
    """One stored or current run with its step time and its nodes."""

    # the number in `llmbench history show`, of this run or of the judged run of its
    # launch; 0 for a run of the current session
    number: int
    configuration: str
    window: Window
    started: datetime
    job_id: str
    seconds: float
    nodes: frozenset[str] = frozenset()  # empty: unknown
    software: Software = frozenset()  # empty: unknown
    # according to the scheduler; None if only the log contains a start time
    job_started: datetime | None = None

    @property
    def id(self) -> str:
        """A text that identifies the run in a search."""
        return f"{self.number} {self.configuration} {self.job_id}"

    @property
    def key(self) -> tuple[str, str, datetime]:
        """A key that identifies the run even if it was stored by two launches.

        The job id is not sufficient: each cluster, and locally each journal folder,
        starts counting anew.
        """
        return (
            self.configuration,
            self.job_id or str(self.number),
            self.job_started or self.started,
        )


class NodeDoubt(StrEnum):
    """Another possible cause for slow runs on a node: a stable code."""

    # in half of the cases, the configuration has not been fast since the slow run
    NOTHING_FAST_SINCE = "nothing-fast-since"
    # too few pairs of slow days have a fast run of the configuration between them
    NEIGHBOURS = "neighbouring-nights"
    # all slow runs share a software version that no fast run without the node has
    ONE_SOFTWARE = "one-software"


class Suspect(Struct, frozen=True):
    """A node that may be slow, or several nodes that were always used together."""

    nodes: tuple[str, ...]
    probability: float  # that it is slow, if any node is
    slowness: float  # a fraction; the 95 % interval reaches from `low` to `high`
    low: float
    high: float
    slow_runs: tuple[str, ...]  # ids of its slow runs
    fast_runs: tuple[str, ...]  # ids of its other runs
    doubt: NodeDoubt | None  # None if runs without the node exclude other causes


class NodeEvidence(Struct, frozen=True):
    """Evidence for slow nodes from a set of runs."""

    runs: int  # the number of analysed runs
    runs_with_nodes: int  # the number of runs with known nodes
    nights: int  # the number of days
    nodes: int  # the number of distinct nodes
    # log likelihood ratio of "one node is slow" over "no node is slow"
    log_ratio: float
    # the most probable first; empty unless a slow node is evident
    suspects: tuple[Suspect, ...] = ()
    # the suspects that are slow with 99 % probability and without a doubt
    named: tuple[Suspect, ...] = ()
    cleared: int = 0  # the number of other nodes, if a slow node is evident
    # slowness of each run by its id, as a fraction of its level
    differences: Mapping[str, float] | None = None

    @property
    def evident(self) -> bool:
        """True if the runs show that some node is slow.

        `log_ratio` is at least the logarithm of the ratio EVIDENT. False if no node is
        slow, or if the runs are inconclusive.
        """
        return self.log_ratio >= math.log(EVIDENT)


class NodeAnswer(StrEnum):
    """The result of a search for slow nodes: a stable code."""

    NAMED = "named"
    EVIDENT = "evident"  # some node is slow, but it is not identified yet
    NONE = "none"  # no evidence of a slow node; slow nodes are still possible
    # no run with known nodes could be compared with other runs
    NOTHING_TO_TELL = "nothing-to-tell"


class NodeSearch(Struct, frozen=True):
    """The evidence for slow nodes in a history."""

    history: str  # the URL of the history, for display
    evidence: NodeEvidence
    runs: Mapping[str, MeasuredRun]  # the analysed runs, by id
    # runs before this day are used only for the usual speed of configurations
    since: date | None = None
    too_few: tuple[str, ...] = ()  # configurations with fewer than `fewest_nights` days
    fewest_nights: int = 0

    @property
    def answer(self) -> NodeAnswer:
        """The result as a code.

        NAMED: nodes are identified as slow. EVIDENT: some node is slow, but which one is
        uncertain. NONE: there is no evidence of a slow node. NOTHING_TO_TELL: the nodes
        of no run are known.
        """
        if self.evidence.named:
            return NodeAnswer.NAMED
        if not self.evidence.runs_with_nodes:  # nothing to compare
            return NodeAnswer.NOTHING_TO_TELL
        return NodeAnswer.EVIDENT if self.evidence.evident else NodeAnswer.NONE
