"""What was measured of a run, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.models.logs import Checkpoints
from pytest_llmbench.core.models.runs import make_run_keys

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path

    from pytest_llmbench.core.models.baselines import Baseline, Window
    from pytest_llmbench.core.models.judgements import Acknowledgement, NoteCode, Reason
    from pytest_llmbench.core.models.runs import Run, RunKeys


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured quantity; its unit and direction are declared once, in core.metric_definitions."""

    name: str
    value: float
    standard_deviation: float | None = None
    unit: str = ""
    larger_is_better: bool | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something a reader should know that changes no verdict, with the log line it stands on (0: none)."""

    code: NoteCode
    text: str
    line: int = 0
    acknowledgement: Acknowledgement | None = None
    """The entry that it is about, where there is one."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run cannot be judged."""

    reason: Reason
    text: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """One of the attempts that the logs of a run tell of: a part of a log, or a log without any step."""

    number: int  # from 1
    log: Path
    line: int  # its first one, 0: none
    first_step: int | None  # the log's own number, None without steps
    last_step: int | None
    finished: bool  # it reached its last step
    ended: str  # how, in words
    starts_over: bool = False  # it began anew after one that had finished, so it is another run and no restart
    judged: bool = False  # the one that counts


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """What one run measured against one baseline's window."""

    run: Run
    baseline: Baseline
    log: Path | None
    attempt: int
    segment: int
    statistic_seconds: float | None  # None where the window could not be measured
    last_step_seconds: float | None
    window_seconds: tuple[float, ...]  # the step times in the window
    metrics: tuple[Metric, ...] = ()
    window_steps: tuple[int, ...] = ()  # their numbers
    window_lines: tuple[int, ...] = ()  # and where the log prints them
    # of how many steps, up to its number, each time is the mean; empty where all are single steps
    mean_of: tuple[int, ...] = ()
    moving_mean: int = 1  # of how many steps each time is a moving mean; 1: it is that of its own step
    resolution_seconds: float = 0.0  # one unit in the last place of most of them
    expected: tuple[Metric, ...] = ()  # the metrics at the baseline's step time
    problems: tuple[Problem, ...] = ()  # empty for a valid run
    notes: tuple[Note, ...] = ()
    excluded: Problem | None = None
    # what the log says of them in the part that was measured
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    attempts: tuple[AttemptSummary, ...] = ()  # all that the logs of the run tell of
    step_time_only: bool = False  # an older run, whose metrics and notes nobody asked for: it is not to be shown

    @property
    def environment(self) -> dict[str, str]:
        """What the attempt that was measured ran on, by name: what its log says, and rather what its metadata say, for
        a launcher records every job in the same words."""
        logs = (attempt.log for attempt in self.run.attempts if attempt.files.log == self.log)
        environment = next((log.environment for log in logs), ())
        return dict(sorted({**dict(environment), **dict(self.run.found.environment)}.items()))

    @property
    def valid(self) -> bool:
        """Whether it can stand for a night: measured, and nothing wrong with it."""
        return self.statistic_seconds is not None and not self.problems and self.excluded is None

    @property
    def started(self) -> datetime | None:
        """When its run started, None where nothing says it."""
        return self.run.started

    def metric(self, name: str) -> Metric:
        """The metric of that name; KeyError, with the names that there are, for one that the run does not have."""
        by_name = {metric.name: metric for metric in self.metrics}
        if name not in by_name:
            raise KeyError(f"{name!r} is not among the metrics of this run: {', '.join(by_name)}")
        return by_name[name]


class StoredRun(NamedTuple):
    """A run as the history knows it: only a night among others, never the run that is judged."""

    started: datetime
    job_id: str
    logs: str  # what `join_fingerprints` returns
    window: Window
    environment: dict[str, str]
    valid: bool  # whether it may stand for a night of its configuration: `statistic_seconds` is then a number
    statistic_seconds: float | None
    verdict: str = ""  # from here on what was said of it last, with its repeats, if it was judged
    reason: str = ""
    step_time_seconds: float | None = None
    expected_seconds: float | None = None
    log_difference: float | None = None


def exclude_same_runs(past: Iterable[StoredRun], marks: RunKeys) -> list[StoredRun]:
    """Return the runs that are none of those that have these marks."""
    jobs = {job_id for job_id, _ in marks}
    return [
        stored
        for stored in past
        if stored.job_id not in jobs or marks.isdisjoint(make_run_keys(stored.job_id, stored.logs, stored.started))
    ]
