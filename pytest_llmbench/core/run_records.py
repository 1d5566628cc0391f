"""Records of runs: their files, their identity and their measurements.

Records that exist once per run have `gc=False`, which saves 16 bytes each: frozen
records of values cannot be in a cycle, so the garbage collector need not know them.
"""

from __future__ import annotations

import math
import os
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct, field

from pytest_llmbench.core.codes import EXCLUDING, INVALIDATING, Reason
from pytest_llmbench.core.log_records import Checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date, datetime

    from pytest_llmbench.core.baseline_records import Baseline, Key, Window
    from pytest_llmbench.core.codes import NoteCode
    from pytest_llmbench.core.job_records import Pairs
    from pytest_llmbench.core.log_records import ParsedLog, Segment
    from pytest_llmbench.core.records import Record


class Hint(Struct, frozen=True, gc=False):
    """A value that a name or metadata states about a run."""

    field: str  # a Key field, or global_batch_size, tp, ...
    value: str
    source: str


@lru_cache(8192)
def share_facts(facts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one shared tuple for equal facts.

    Most runs of a configuration state the same facts.
    """
    return facts


@lru_cache(1024)
def _make_path(folder: str, name: str) -> Path:
    """Return the path of a file in a folder; the name may be empty."""
    return Path(folder, name)


def _join_names(folder: str, name: str) -> str:
    """Return the text of `_make_path`."""
    return name if folder == os.curdir else os.path.join(folder, name)


class AttemptFiles(Struct, frozen=True, gc=False):
    """The files of one attempt, in one folder.

    Only few of thousands of runs need a Path, which takes five times as much memory.
    """

    number: int  # its restart count
    folder_text: str
    log_name: str
    err_name: str = ""  # standard error, if it is a separate file

    @property
    def log_text(self) -> str:
        """The path of the log, as text."""
        return _join_names(self.folder_text, self.log_name)

    @property
    def err_text(self) -> str:
        """The path of the standard error, "" if it is in the log."""
        return _join_names(self.folder_text, self.err_name) if self.err_name else ""

    @property
    def log(self) -> Path:
        """The path of the log."""
        return _make_path(self.folder_text, self.log_name)

    @property
    def err(self) -> Path | None:
        """The path of the standard error, None if it is in the log."""
        return _make_path(self.folder_text, self.err_name) if self.err_name else None


class Shards(Struct, frozen=True):
    """The number of *.distcp files in a folder of a run."""

    folder: str  # relative to the folder of the log
    count: int
    partial: bool = False  # there may be more


class Clock(StrEnum):
    """The source of a run's start time: a stable code.

    Runs of one configuration are ordered by one of these clocks.
    """

    METADATA = "metadata"
    FOLDER_NAME = "folder-name"
    LOG = "log"
    FOLDER_ABOVE = "folder-above"
    FILE_TIME = "file-time"
    MIXED = "mixed"
    UNKNOWN = "unknown"


class StartCandidate(Struct, frozen=True, gc=False):
    """A possible start time of a run, in UTC, with its source."""

    clock: Clock
    timestamp: datetime
    source: str  # in words
    # True for a time with a zone or in seconds since the epoch. Other times are
    # interpreted as local time of this machine, which may be wrong for another cluster.
    zoned: bool


# The longest expected time from submission to the first step. If a job has only
# metadata after that time, its log was pruned or it died long ago.
LONGEST_QUEUE = timedelta(days=7)


class LoglessJob(StrEnum):
    """The files left by a job without a log."""

    METADATA = "metadata"
    STANDARD_ERROR = "standard-error"
    FOLDER = "folder"


class RunFiles(Struct, frozen=True, gc=False):
    """The files of one execution, with the facts from their names and metadata."""

    id: str
    folder_text: str
    attempts: tuple[AttemptFiles, ...]
    hints: tuple[Hint, ...]
    job_id: str = ""
    number: str = ""  # without a job id: a number in its names that may be the id
    layout: str = ""  # results, experiments, workloads or ""
    metadata_name: str = ""  # of a file in its folder
    # all possible start times in its names and metadata, the most certain first
    start_candidates: tuple[StartCandidate, ...] = ()
    logless_job: LoglessJob | None = None  # the files left by a job without a log
    logless_path: Path | None = None  # the path of those files
    modified: datetime | None = None
    excluded: Reason | None = None  # positive evidence that the run is not comparable
    excluded_because: str = ""
    # An A/B job with an unknown id was submitted at this time and may be this run.
    # `excluded` is then VARIANT.
    trial_pending_since: datetime | None = None
    # The reason for which a run of the same launch is not comparable. If this run is
    # short, it is treated as the companion of that run.
    companion_of: Reason | None = None
    companion_because: str = ""
    # names of profiler reports that belong to this run or to another run in its folder
    loose_reports: tuple[str, ...] = ()
    # container, commit and framework from the metadata, which identify a build;
    # empty: unknown
    build: tuple[str, ...] = ()
    # a text shared by the runs of one launch that count for one verdict; "" for a run
    # found on disk
    launch: str = ""
    # sbatch, nemo-run, configured-sbatch, ...; "": unknown
    launcher: str = ""
    saves: str = ""  # positive evidence that the run should save a checkpoint
    shards: Shards | None = None  # of a checkpoint on disk; None: not checked
    # container, versions and commits from the metadata, by the names used in reports
    environment: Pairs = ()
    given_path: Path | None = None  # the user's path that led to the run

    @property
    def started(self) -> datetime | None:
        """The start according to its metadata or its own folder."""
        return self._find_time(Clock.METADATA, Clock.FOLDER_NAME)

    @property
    def dated(self) -> datetime | None:
        """The date of a parent folder if the start is unknown."""
        return None if self.started else self._find_time(Clock.FOLDER_ABOVE)

    def _find_time(self, *clocks: Clock) -> datetime | None:
        """Return the first time by one of the clocks, or None."""
        times = (
            candidate.timestamp
            for candidate in self.start_candidates
            if candidate.clock in clocks
        )
        return next(times, None)

    @property
    def folder(self) -> Path:
        """The path of its folder."""
        return _make_path(self.folder_text, "")

    @property
    def metadata(self) -> Path | None:
        """The path of its metadata, or None without metadata."""
        if not self.metadata_name:
            return None
        return _make_path(self.folder_text, self.metadata_name)


class UnnamedFiles(NamedTuple):
    """Files of a folder that may be logs although their names do not match."""

    folder: Path
    names: tuple[str, ...]
    given_path: Path  # the user's path that led to the files


class Discovery(Struct, frozen=True):
    """Everything found under the paths of a user."""

    runs: tuple[RunFiles, ...]
    unnamed: tuple[
        UnnamedFiles, ...
    ] = ()  # logs or not: this depends on their contents
    # metrics files under paths that also contain logs, perhaps of the same runs
    metrics: tuple[RunFiles, ...] = ()
    ignored: tuple[tuple[Path, str], ...] = ()  # files that are not runs, and reasons
    unreadable: tuple[tuple[Path, str], ...] = ()  # paths with error messages
    # logs with names that are not read, and dangling links: modification time, description
    hidden: tuple[tuple[Path, datetime, str], ...] = ()
    # marker files of an A/B in parent folders of runs, with error messages
    unreadable_marks: tuple[tuple[Path, str], ...] = ()


class IgnoredFile(NamedTuple):
    """A file or folder that is not a run, or a run that is not used."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Identity(Struct, frozen=True, gc=False):
    """The configuration of a run."""

    key: Key | None  # None unless exactly one configuration fits
    because: str  # the reason, in words
    candidates: tuple[Key, ...] = ()
    nearest: tuple[Key, ...] = ()
    # fields (release, gpu) that are not stated, but have one value in all candidates
    assumed: tuple[str, ...] = ()
    contradicted: tuple[str, ...] = ()  # fields with different values in the sources
    # the possible configurations, even if the run has defects
    may_be: tuple[Key, ...] = ()
    # the short form of `because` for lists of runs: defects and missing facts
    summary: str = ""
    advice: str = ""  # the options that would match the run
    fits_none: bool = False  # names leave candidates, but the log fits none of them
    # settings that differ from the baseline with the same path, although the run belongs
    # to its configuration
    changes: tuple[str, ...] = ()
    one_sided: tuple[str, ...] = ()  # settings stated only by the run or that baseline


class Attempt(Struct, frozen=True, gc=False, eq=False):
    """The parsed log of one attempt."""

    files: AttemptFiles
    log: ParsedLog


RunKeys = frozenset[tuple[str, "str | datetime"]]
"""Keys that identify a run among the runs of its configuration.

Two records that share a key are the same run, even if its log was read several times.
"""


def join_fingerprints(fingerprints: Sequence[str]) -> str:
    """Join the fingerprints of a run's logs, or return "" if one is unknown."""
    return " ".join(fingerprints) if all(fingerprints) else ""


def make_run_keys(job_id: str, logs: str, started: datetime | None) -> RunKeys:
    """Return the keys of a run: its job id with its logs, and its job id with its
    start.

    `logs` are the joined fingerprints of its logs. Unknown values (empty or None) make
    no key. The start identifies a run whose log is still growing.
    """
    return frozenset(
        (job_id, identifier) for identifier in (logs, started) if identifier
    )


class DuplicateOf(Struct, frozen=True):
    """Another run with the same steps and losses."""

    job_id: str
    name: str
    steps: int  # the number of equal steps
    different_times: int  # the number of equal steps with different times
    certain: bool  # True for a duplicate, False for a possible coincidence


class Run(Struct, frozen=True, gc=False, eq=False):
    """One execution: its files, its logs and its configuration."""

    found: RunFiles
    attempts: tuple[Attempt, ...]
    identity: Identity
    started: datetime | None = None
    started_from: str = ""
    duplicate_of: DuplicateOf | None = None  # the run with the same steps
    # all possible start times, the most certain first
    start_candidates: tuple[StartCandidate, ...] = ()
    # the clock by which the runs of the configuration are ordered
    order_source: Clock = Clock.UNKNOWN
    # newer jobs of the configuration, which have not written a log yet
    starting: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """A short name, unique in the session."""
        return self.found.id

    @property
    def same_run_keys(self) -> RunKeys:
        """The keys that identify the run in any session."""
        logs = join_fingerprints([attempt.log.fingerprint for attempt in self.attempts])
        return make_run_keys(self.found.job_id, logs, self.started)


# --- measurements ---------------------------------------------------------------------


class Acknowledgement(Struct, frozen=True):
    """An accepted change of step time, or an accepted reason to fail.

    Valid from `since` to `expires`, both included.
    """

    configuration: str  # an id or a shell pattern
    fraction: float  # the change, slower is positive; 0 if a reason is accepted
    since: date
    expires: date
    reason: str
    by: str
    place: str  # file and line of the entry
    accepts: Reason | None = None  # the accepted reason to fail, one of `ACCEPTABLE`


class RecordingRule(StrEnum):
    """A recording rule that a user may waive with a reason."""

    DRIFT = "drift"  # a value is at most the drift budget slower than the accepted one
    LEVELS = "levels"  # the step times of the recorded runs are on one level


class AcceptedRecording(Struct, frozen=True):
    """A waived recording rule for some configurations."""

    configuration: str  # an id or a shell pattern
    accepts: RecordingRule
    since: date | None  # the first valid day; None: valid for one recording
    expires: date  # the last valid day
    reason: str  # without secrets, since it is stored in the baseline file


class Metric(Struct, frozen=True):
    """A measured quantity.

    Units and directions are defined in `core.metric_definitions`.
    """

    name: str
    value: float
    standard_deviation: float | None = None
    unit: str = ""
    larger_is_better: bool | None = None


class Note(Struct, frozen=True):
    """Information for the reader that changes no verdict.

    `line` is the log line, or 0.
    """

    code: NoteCode
    statement: VerdictStatement
    line: int = 0
    acknowledgement: Acknowledgement | None = None
    """The entry that the note is about, if any."""


class Problem(Struct, frozen=True):
    """A reason for which a run cannot be judged."""

    reason: Reason  # one of `INVALIDATING` or `EXCLUDING`
    text: str
    line: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError unless the reason makes a run INVALID or NOT_COMPARABLE."""
        if self.reason not in INVALIDATING and self.reason not in EXCLUDING:
            raise ValueError(f"{self.reason} invalidates no run")


VerdictStatement: TypeAlias = "Record | str | Note | Problem | Acknowledgement"
"""A statement of a verdict: a record or code of `statements`, or a plain text."""

UNMEASURED = Problem(Reason.WINDOW_INCOMPLETE, "no step time was measured")


class AttemptSummary(Struct, frozen=True, gc=False):
    """One attempt of a run: a segment of a log, or a log without steps."""

    number: int  # from 1
    files: AttemptFiles
    line: int  # the first line, or 0
    first_step: int | None  # the log's own number; None without steps
    last_step: int | None
    finished: bool  # True if it reached its last step
    ended: str  # the ending, in words
    # True if it starts at the first step after a finished attempt: not a restart
    starts_over: bool = False
    judged: bool = False  # True for the judged attempt

    @property
    def log(self) -> Path:
        """The path of its log."""
        return self.files.log


@lru_cache(1024)
def _merge_environments(of_log: Pairs, of_metadata: Pairs) -> Mapping[str, str]:
    """Return the values by name. Runs with the same environment share the result."""
    return dict(sorted({**dict(of_log), **dict(of_metadata)}.items()))


class Measurement(Struct, frozen=True, gc=False, eq=False):
    """The measurement of one run in the window of one baseline."""

    run: Run
    baseline: Baseline
    files: AttemptFiles | None  # of the measured attempt
    attempt: int
    segment: int
    statistic_seconds: float | None  # None if the window could not be measured
    last_step_seconds: float | None
    window_seconds: tuple[float, ...]  # the step times in the window
    metrics: tuple[Metric, ...] = ()
    window_steps: tuple[int, ...] = ()  # the step numbers in the window
    window_lines: tuple[int, ...] = ()  # the log lines of these steps
    # the number of steps whose mean each time is; empty if all are single steps
    mean_of: tuple[int, ...] = ()
    moving_mean: int = 1  # the number of steps in each moving mean; 1: no moving mean
    resolution_seconds: float = 0.0  # one unit in the last place of most step times
    expected: tuple[Metric, ...] = ()  # the metrics at the baseline's step time
    problems: tuple[Problem, ...] = ()  # empty for a valid run
    notes: tuple[Note, ...] = ()
    excluded: Problem | None = None
    # the checkpoint records in the measured segment
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    attempts: tuple[AttemptSummary, ...] = ()  # all attempts in the logs of the run
    # the statistic over the steps that the document probably timed; None if these are
    # the steps of the window
    timed_seconds: float | None = None
    # the values that a recording stores, by the names of `Observed`
    observed: tuple[tuple[str, float], ...] = ()
    # True for an older run measured without metrics and notes; it is never displayed
    step_time_only: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        """Software environment of the measured attempt, by name.

        Metadata override the log, because launchers name versions uniformly.
        """
        log = self.measured_log
        of_log = () if log is None else log.environment
        return _merge_environments(of_log, self.run.found.environment)

    @property
    def log(self) -> Path | None:
        """The path of the measured log."""
        return None if self.files is None else self.files.log

    @property
    def measured_log(self) -> ParsedLog | None:
        """The log that was measured."""
        logs = (
            attempt.log
            for attempt in self.run.attempts
            if attempt.files is self.files or attempt.files == self.files
        )
        return next(logs, None)

    @property
    def measured_segment(self) -> Segment | None:
        """The segment that was measured."""
        log = self.measured_log
        if log is None or not 0 < self.segment <= len(log.segments):
            return None
        return log.segments[self.segment - 1]

    @property
    def valid(self) -> bool:
        """True if the run has a finite step time, no problems and is not excluded.

        A valid run may represent its day.
        """
        seconds = self.statistic_seconds
        is_measured = seconds is not None and 0 < seconds < math.inf
        return is_measured and not self.problems and self.excluded is None

    @property
    def started(self) -> datetime | None:
        """The start of the run, or None if it is undated."""
        return self.run.started

    def metric(self, name: str) -> Metric:
        """Return the metric with this name.

        Raises KeyError with the available names if the run does not have the metric.
        """
        by_name = {metric.name: metric for metric in self.metrics}
        if name not in by_name:
            raise KeyError(
                f"{name!r} is not among the metrics of this run: {', '.join(by_name)}"
            )
        return by_name[name]


class StoredRun(NamedTuple):
    """A run stored in the history, used only as an earlier run and never judged."""

    started: datetime
    job_id: str
    logs: str  # the result of `join_fingerprints`
    window: Window
    environment: dict[str, str]
    # True if the run may represent its day; `statistic_seconds` is then finite
    valid: bool
    statistic_seconds: float | None
    # The remaining fields are the last verdict on the run and its repeats, if any.
    verdict: str = ""
    reason: str = ""
    step_time_seconds: float | None = None
    expected_seconds: float | None = None
    log_difference: float | None = None
    status: str = ""  # of the test item

    @property
    def same_run_keys(self) -> RunKeys:
        """The keys that identify the run, as for `Run`."""
        return make_run_keys(self.job_id, self.logs, self.started)


class StoredDetails(NamedTuple):
    """Further data of a stored run, read only when needed."""

    launcher: str  # "": unknown
    nodes: tuple[str, ...]  # of its own job if that is known; empty: unknown
    step_seconds: tuple[float, ...]  # of the window; NaN for invalid values
    mean_of: tuple[int, ...]


def exclude_same_runs(past: Iterable[StoredRun], keys: RunKeys) -> list[StoredRun]:
    """Return the stored runs that match none of `keys`."""
    job_ids = {job_id for job_id, _ in keys}
    # Every key contains the job id, so most runs need not make their keys.
    return [
        stored
        for stored in past
        if stored.job_id not in job_ids or keys.isdisjoint(stored.same_run_keys)
    ]
