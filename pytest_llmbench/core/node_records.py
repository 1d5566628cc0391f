"""Which nodes are slow, by the runs of many nights: the runs, and what they say of
their nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date, datetime

    from pytest_llmbench.core.baseline_records import Window

Software = frozenset[tuple[str, str]]
"""What a run ran on, container, versions and commits, by their names in the reports."""

EVIDENT = 100.0
"""Chance reaches this likelihood ratio at most once in 100 histories, however often it
is looked."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run as the history knows it: when, how fast, and on which nodes."""

    # by which `llmbench history show` knows it, or the run of whose launch it is; 0 for
    # one of tonight
    number: int
    configuration: str
    window: Window
    started: datetime
    job_id: str
    seconds: float
    nodes: frozenset[str] = frozenset()  # empty where nothing says it
    software: Software = frozenset()  # as above
    job_started: datetime | None = (
        None  # as the scheduler said, None where only its log did
    )

    @property
    def id(self) -> str:
        """What tells it from the other runs of a search."""
        return f"{self.number} {self.configuration} {self.job_id}"

    @property
    def key(self) -> tuple[str, str, datetime]:
        """What it shares only with itself, stored with another launch: job ids begin
        anew with each cluster, and on a machine with each folder of a journal."""
        return (
            self.configuration,
            self.job_id or str(self.number),
            self.job_started or self.started,
        )


class NodeDoubt(StrEnum):
    """Why runs that are slow with a node may be slow for another cause: a stable
    code."""

    # after half of its slow runs their configurations were never fast
    NOTHING_FAST_SINCE = "nothing-fast-since"
    # too few of its slow nights have a fast run of theirs between them
    NEIGHBOURS = "neighbouring-nights"
    # all its slow runs had some software that no fast run without it had
    ONE_SOFTWARE = "one-software"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that may be slow; or several, which were always in the same runs."""

    nodes: tuple[str, ...]
    probability: float  # that it is slow, if any node is
    slowness: float  # a fraction; the 95 % interval reaches from `low` to `high`
    low: float
    high: float
    slow_runs: tuple[
        str, ...
    ]  # the ids of the runs with it that are slow, and of the others
    fast_runs: tuple[str, ...]
    doubt: NodeDoubt | None  # None where the runs without it show that it is the node


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What runs say of their nodes."""

    runs: int  # so many were looked at, and of so many the nodes are known
    runs_with_nodes: int
    nights: int
    nodes: int  # so many different ones
    # the logarithm of the likelihood of "one node is slow" over that of "none is"
    log_ratio: float
    suspects: tuple[
        Suspect, ...
    ] = ()  # the most probable first; empty where no slow node is evident
    named: tuple[
        Suspect, ...
    ] = ()  # the suspects that are slow with 99 %, none of them in doubt
    cleared: int = 0  # so many nodes are no suspects, where a slow node is evident
    differences: Mapping[str, float] | None = (
        None  # by the id of a run how slow it was, a fraction of its level
    )

    @property
    def evident(self) -> bool:
        """Whether it is shown that some node is slow; False also means that it cannot
        be told."""
        return self.log_ratio >= math.log(EVIDENT)


class NodeAnswer(StrEnum):
    """What a history says of slow nodes: a stable code."""

    NAMED = "named"
    EVIDENT = "evident"  # some node is slow, and which one cannot be told yet
    NONE = "none"  # none is evident, which does not mean that all are sound
    NOTHING_TO_TELL = (
        "nothing-to-tell"  # no run with nodes that could be compared with others
    )


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """What the runs of a history say of their nodes."""

    history: str  # the store, as it is shown
    evidence: NodeEvidence
    runs: Mapping[str, MeasuredRun]  # those that were looked at, by their ids
    since: date | None = (
        None  # runs before this day tell only how fast configurations are
    )
    too_few: tuple[str, ...] = ()  # the configurations of fewer than `fewest_nights`
    fewest_nights: int = 0

    @property
    def answer(self) -> NodeAnswer:
        """The answer in a word."""
        if self.evidence.named:
            return NodeAnswer.NAMED
        if not self.evidence.runs_with_nodes:
            return NodeAnswer.NOTHING_TO_TELL
        return NodeAnswer.EVIDENT if self.evidence.evident else NodeAnswer.NONE
