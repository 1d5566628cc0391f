"""Runs: what was found of them, what they are, what tells one from another, and what
was measured of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pytest_llmbench.core.codes import EXCLUDING, INVALIDATING, Reason
from pytest_llmbench.core.log_records import Checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date, datetime
    from pathlib import Path

    from pytest_llmbench.core.baseline_records import Baseline, Key, Window
    from pytest_llmbench.core.codes import NoteCode
    from pytest_llmbench.core.job_records import Pairs
    from pytest_llmbench.core.log_records import ParsedLog, Segment
    from pytest_llmbench.core.records import Record


@dataclass(frozen=True, slots=True)
class Hint:
    """One thing that a name or metadata says about a run."""

    field: str  # a Key field, or global_batch_size, tp, ...
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The files of one attempt."""

    number: int  # its restart count
    log: Path
    err: Path | None = None  # its standard error where it stands apart


@dataclass(frozen=True, slots=True)
class Shards:
    """How many *.distcp files stand below a folder of a run."""

    folder: str  # relative to that of its log
    count: int
    partial: bool = False  # there may be more


class Clock(StrEnum):
    """What says when a run started: a stable code. Runs of one configuration are
    ordered by one of them."""

    METADATA = "metadata"
    FOLDER_NAME = "folder-name"
    LOG = "log"
    FOLDER_ABOVE = "folder-above"
    FILE_TIME = "file-time"
    MIXED = "mixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StartCandidate:
    """One time at which a run may have started, in UTC, and what says so."""

    clock: Clock
    moment: datetime
    source: str  # in words
    # it names its zone, or counts seconds; else it is taken as local time of this
    # machine, which another cluster need not have
    zoned: bool


# No job waits longer between its submission and its first step. A job of which only
# metadata is left after that had a log that was pruned, or died long ago.
LONGEST_QUEUE = timedelta(days=7)


class LoglessJob(StrEnum):
    """What a job left that left no log."""

    METADATA = "metadata"
    STANDARD_ERROR = "standard-error"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Files on disk that are one execution, and what their names and metadata say."""

    id: str
    folder: Path
    attempts: tuple[AttemptFiles, ...]
    hints: tuple[Hint, ...]
    job_id: str = ""
    number: str = ""  # without a job id, the number in its names that may be one
    layout: str = ""  # results, experiments, workloads or empty
    metadata: Path | None = None
    started: datetime | None = None  # what its metadata or its own folder says
    started_from: str = ""
    dated: datetime | None = None  # what only a folder above or a bare day says
    dated_from: str = ""
    datings: tuple[StartCandidate, ...] = ()  # all such times
    remains: LoglessJob | None = None  # what is left of a job without a log
    remains_at: Path | None = None  # where
    modified: datetime | None = None
    excluded: Reason | None = None  # positive evidence that the run is not comparable
    excluded_because: str = ""
    # since when a job of an A/B may run whose id is unknown, and which may be this run:
    # then `excluded` is VARIANT
    trial_pending_since: datetime | None = None
    # why a run is not comparable that was launched together with this one: if this one
    # is short, it is its twin
    twin_of: Reason | None = None
    twin_because: str = ""
    # names of profiler's reports that may be of this run or of another one of its
    # folder
    loose_reports: tuple[str, ...] = ()
    # what its metadata says of container, commit and framework: equal ones are one
    # build, empty is unknown
    build: tuple[str, ...] = ()
    # the launch that started it, one text for the runs that count for one verdict;
    # empty for a run found on disk
    launch: str = ""
    # what started it (sbatch, nemo-run, configured-sbatch, ...), empty where nothing
    # tells
    launcher: str = ""
    saves: str = ""  # positive evidence that it was to save a checkpoint
    shards: Shards | None = (
        None  # what of a checkpoint is on disk, None where nothing was looked at
    )
    # what its metadata say of container, versions and commits, by the names of the
    # reports
    environment: Pairs = ()
    given_path: Path | None = None  # the path among those given that led to it


class UnnamedFiles(NamedTuple):
    """The files of a folder that may be logs although they are not called so."""

    folder: Path
    names: tuple[str, ...]
    given_path: Path  # the path among those given that led to them


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found below the paths of a user."""

    runs: tuple[RunFiles, ...]
    unnamed: tuple[
        UnnamedFiles, ...
    ] = ()  # their text alone shows whether they are logs
    metrics: tuple[
        RunFiles, ...
    ] = ()  # files of metrics under paths that lead to logs: they may be of the same runs
    ignored: tuple[
        tuple[Path, str], ...
    ] = ()  # files that are no runs, with the reason
    unreadable: tuple[tuple[Path, str], ...] = ()  # with what went wrong
    # logs under names that are not read, and links that lead nowhere: when each was
    # written, and what it is
    hidden: tuple[tuple[Path, datetime, str], ...] = ()
    unreadable_marks: tuple[
        tuple[Path, str], ...
    ] = ()  # marks of an A/B above runs, with what is wrong with them


class IgnoredFile(NamedTuple):
    """A file or folder that is no run, or a run that counts for nothing."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Which configuration a run is."""

    key: Key | None  # None when nothing or more than one fits
    because: str  # why, in words
    candidates: tuple[Key, ...] = ()
    nearest: tuple[Key, ...] = ()
    assumed: tuple[
        str, ...
    ] = ()  # what nothing said and only one candidate allowed (release, gpu)
    contradicted: tuple[
        str, ...
    ] = ()  # the fields of which its sources say several things
    may_be: tuple[
        Key, ...
    ] = ()  # the configurations that it may be a run of, whatever is wrong with it
    # of `because` what a list of runs shows: what is wrong, and what nothing says
    summary: str = ""
    advice: str = ""  # the options that would match the run
    fits_none: bool = (
        False  # names leave candidates, and its log is that of none of them
    )
    # what it states otherwise than the baseline that it matches by its place, though it
    # is of that configuration
    changes: tuple[str, ...] = ()
    one_sided: tuple[str, ...] = ()  # what only it or only that baseline states


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One attempt, read."""

    files: AttemptFiles
    log: ParsedLog


RunKeys = frozenset[tuple[str, "str | datetime"]]
"""What tells a run from others of its configuration: two runs that share a mark are
one, however often it was read."""


def join_fingerprints(fingerprints: Sequence[str]) -> str:
    """Return the fingerprints of a run's logs as one text; empty where one is not
    known."""
    return " ".join(fingerprints) if all(fingerprints) else ""


def make_run_keys(job_id: str, logs: str, started: datetime | None) -> RunKeys:
    """Return the marks of a run: its job with its logs, and its job with its start, as
    its log may still grow."""
    return frozenset((job_id, mark) for mark in (logs, started) if mark)


@dataclass(frozen=True, slots=True)
class DuplicateOf:
    """Another run whose steps and losses a run has, too."""

    job_id: str
    name: str  # what it is called
    steps: int  # how many are equal
    different_times: int  # of these steps
    certain: bool  # it is a copy, and no coincidence


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One execution: what was found, what its logs say, and which configuration it
    is."""

    found: RunFiles
    attempts: tuple[Attempt, ...]
    identity: Identity
    started: datetime | None = None
    started_from: str = ""
    copy_of: DuplicateOf | None = None  # the run that has the same steps
    datings: tuple[
        StartCandidate, ...
    ] = ()  # all times at which it may have started, the most certain first
    order_source: Clock = (
        Clock.UNKNOWN
    )  # the clock by which the runs of its configuration are ordered
    starting: tuple[str, ...] = ()  # newer jobs of it that had no time to write a log

    @property
    def id(self) -> str:
        """A short name that is unique in its session."""
        return self.found.id

    @property
    def same_run_keys(self) -> RunKeys:
        """What tells it from other runs of its configuration, in any session."""
        logs = join_fingerprints([attempt.log.fingerprint for attempt in self.attempts])
        return make_run_keys(self.found.job_id, logs, self.started)


# --- what was measured of them --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A change of step time, or a reason to fail, that somebody accepted from one day
    to another (both included)."""

    configuration: str  # an id or a shell pattern
    fraction: float  # the change, slower is positive; 0 if a reason is accepted
    since: date
    expires: date
    reason: str
    by: str
    place: str  # where it stands
    accepts: Reason | None = None  # the reason that fails no run, one of `ACCEPTABLE`


class RecordingRule(StrEnum):
    """A rule of recording that a user may waive with a reason."""

    DRIFT = "drift"  # a value is at most the drift budget slower than the accepted one
    LEVELS = "levels"  # the recorded runs are of one level


@dataclass(frozen=True, slots=True)
class AcceptedRecording:
    """A rule of recording that a user waived for some configurations."""

    configuration: str  # an id or a shell pattern
    accepts: RecordingRule
    since: date | None  # the first day on which it counts; None: for one recording
    expires: date  # the last day on which it counts
    reason: str  # without secrets, since the baseline file keeps it


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured quantity; its unit and direction are declared once, in
    core.metric_definitions."""

    name: str
    value: float
    standard_deviation: float | None = None
    unit: str = ""
    larger_is_better: bool | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something a reader should know that changes no verdict, with the log line it
    stands on (0: none)."""

    code: NoteCode
    statement: VerdictStatement
    line: int = 0
    acknowledgement: Acknowledgement | None = None
    """The entry that it is about, where there is one."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run cannot be judged."""

    reason: Reason  # one of `INVALIDATING` or `EXCLUDING`
    text: str
    line: int = 0

    def __post_init__(self) -> None:
        """Refuse a reason that makes no run INVALID or NOT_COMPARABLE."""
        if self.reason not in INVALIDATING and self.reason not in EXCLUDING:
            raise ValueError(f"{self.reason} invalidates no run")


VerdictStatement: TypeAlias = "Record | str | Note | Problem | Acknowledgement"
"""What a verdict states: a record or code of `statements`, or a text of another
stage."""

UNMEASURED = Problem(Reason.WINDOW_INCOMPLETE, "no step time was measured")


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """One of the attempts that the logs of a run tell of: a part of a log, or a log
    without any step."""

    number: int  # from 1
    log: Path
    line: int  # its first one, 0: none
    first_step: int | None  # the log's own number, None without steps
    last_step: int | None
    finished: bool  # it reached its last step
    ended: str  # how, in words
    # it began anew after one that had finished, so it is another run and no restart
    starts_over: bool = False
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
    # of how many steps, up to its number, each time is the mean; empty where all are
    # single steps
    mean_of: tuple[int, ...] = ()
    moving_mean: int = (
        1  # of how many steps each time is a moving mean; 1: it is that of its own step
    )
    resolution_seconds: float = 0.0  # one unit in the last place of most of them
    expected: tuple[Metric, ...] = ()  # the metrics at the baseline's step time
    problems: tuple[Problem, ...] = ()  # empty for a valid run
    notes: tuple[Note, ...] = ()
    excluded: Problem | None = None
    # what the log says of them in the part that was measured
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    attempts: tuple[AttemptSummary, ...] = ()  # all that the logs of the run tell of
    # over the steps that the document is believed to have timed, None where nothing
    # says others than the window
    timed_seconds: float | None = None
    observed: tuple[
        tuple[str, float], ...
    ] = ()  # what a recording keeps beside the step time, by a name of `Observed`
    # an older run, whose metrics and notes nobody asked for: it is not to be shown
    step_time_only: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """What the attempt that was measured ran on, by name: what its log says, and
        rather what its metadata say, for a launcher records every job in the same
        words."""
        log = self.measured_log
        environment = () if log is None else log.environment
        return dict(
            sorted({**dict(environment), **dict(self.run.found.environment)}.items())
        )

    @property
    def measured_log(self) -> ParsedLog | None:
        """The log that was measured."""
        logs = (
            attempt.log
            for attempt in self.run.attempts
            if attempt.files.log == self.log
        )
        return next(logs, None)

    @property
    def measured_segment(self) -> Segment | None:
        """The segment of the log that was measured."""
        log = self.measured_log
        if log is None or not 0 < self.segment <= len(log.segments):
            return None
        return log.segments[self.segment - 1]

    @property
    def valid(self) -> bool:
        """Whether it can stand for a day: a time was measured, which is a number, and
        nothing is wrong with it."""
        measured = (
            self.statistic_seconds is not None and 0 < self.statistic_seconds < math.inf
        )
        return measured and not self.problems and self.excluded is None

    @property
    def started(self) -> datetime | None:
        """When its run started, None where nothing says it."""
        return self.run.started

    def metric(self, name: str) -> Metric:
        """The metric of that name; KeyError, with the names that there are, for one
        that the run does not have."""
        by_name = {metric.name: metric for metric in self.metrics}
        if name not in by_name:
            raise KeyError(
                f"{name!r} is not among the metrics of this run: {', '.join(by_name)}"
            )
        return by_name[name]


class StoredRun(NamedTuple):
    """A run as the history knows it: only a night among others, never the run that is
    judged."""

    started: datetime
    job_id: str
    logs: str  # what `join_fingerprints` returns
    window: Window
    environment: dict[str, str]
    # whether it may stand for a night of its configuration: `statistic_seconds` is then
    # a number
    valid: bool
    statistic_seconds: float | None
    verdict: str = (
        ""  # from here on what was said of it last, with its repeats, if it was judged
    )
    reason: str = ""
    step_time_seconds: float | None = None
    expected_seconds: float | None = None
    log_difference: float | None = None
    status: str = ""  # what became of its item

    @property
    def same_run_keys(self) -> RunKeys:
        """What tells it from other runs, as of a `Run`."""
        return make_run_keys(self.job_id, self.logs, self.started)


class StoredDetails(NamedTuple):
    """What else the history knows of a run: it is read for few of them."""

    launcher: str  # empty where nothing told it
    nodes: tuple[
        str, ...
    ]  # of its own job where that is known; empty where nothing told them
    step_seconds: tuple[float, ...]  # those of the window, NaN for no number
    mean_of: tuple[int, ...]


def exclude_same_runs(past: Iterable[StoredRun], marks: RunKeys) -> list[StoredRun]:
    """Return the runs that are none of those that have these marks."""
    jobs = {job_id for job_id, _ in marks}
    return [
        stored
        for stored in past
        if stored.job_id not in jobs or marks.isdisjoint(stored.same_run_keys)
    ]
