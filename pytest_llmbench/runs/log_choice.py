"""Which file of a job is its log, if several hold steps: standard error, or metrics
beside a console.

A file without any time of a step displaces none that has them. Of a log and the metrics
beside it the one with more times of steps counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.log_records import ParsedLog, Segment, Steps
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.run_records import Attempt, AttemptFiles, RunFiles

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

# Metrics count before a log if they hold so many times as many times of steps. A few
# more steps, which were flushed earlier, do not: one night the log would be judged, and
# the metrics the next.
OUTDONE = 2

# A log and metrics that were last written further apart are of two launches.
SAME_LAUNCH = timedelta(days=1)

LEFT_OUT = "metrics, where there are logs; to read them, give their own path"

# A log that was last written so long after metrics may be of a later launch.
WRITTEN_ALONG = timedelta(hours=1)

# Medians of the steps of one run in two files are no further apart: one of them holds
# means over more steps.
SAME_RUN = 0.02

# Losses of one run in two files differ by their digits only.
SAME_LOSS = 0.01
FEWEST_LOSSES = 5


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A run that was found, and what its logs contain."""

    files: RunFiles
    attempts: tuple[Attempt, ...]

    @property
    def logs(self) -> list[ParsedLog]:
        """The log of each attempt."""
        return [attempt.log for attempt in self.attempts]


def count_times(logs: Iterable[ParsedLog]) -> int:
    """Count the times of steps in logs: of single steps, or means over several."""
    return sum(
        len(_read_seconds(segment.steps.seconds))
        for log in logs
        for segment in log.segments
    )


def count_trained_steps(logs: Iterable[ParsedLog]) -> int:
    """Count the steps that the records of logs are about."""
    return sum(
        int(segment.steps.mean_of.sum()) for log in logs for segment in log.segments
    )


def _read_seconds(seconds: Floats) -> Floats:
    import numpy as np

    return seconds[np.isfinite(seconds)]


def can_be_outdone(logs: Sequence[ParsedLog]) -> bool:
    """True if logs hold times of steps, and those of so few steps that metrics may hold
    more."""
    return 0 < OUTDONE * count_times(logs) <= count_trained_steps(logs)


def swap_streams(files: AttemptFiles) -> AttemptFiles | None:
    """Return an attempt with its standard error as the log; None if it has no other
    file."""
    return AttemptFiles(files.number, files.err, files.log) if files.err else None


def swap_silent_streams(run: ReadRun) -> RunFiles | None:
    """Return a run with standard error as the log of each attempt whose log has no
    step; None if nothing changes."""
    attempts = [
        (None if attempt.log.segments else swap_streams(attempt.files)) or attempt.files
        for attempt in run.attempts
    ]
    changed = any(
        files is not attempt.files
        for files, attempt in zip(attempts, run.attempts, strict=True)
    )
    return replace(run.files, attempts=tuple(attempts)) if changed else None


def choose_streams(run: ReadRun, swapped: ReadRun) -> ReadRun:
    """Return a run with the attempts of another reading of it that hold steps, if its
    own have none."""
    pairs = zip(run.attempts, swapped.attempts, strict=True)
    attempts = tuple(
        other if other.log.segments and not own.log.segments else own
        for own, other in pairs
    )
    return ReadRun(
        replace(run.files, attempts=tuple(attempt.files for attempt in attempts)),
        attempts,
    )


class Neighbours:
    """Runs by their folders: those in, above or below a folder, under the same given
    path."""

    def __init__(self, runs: Iterable[RunFiles]) -> None:
        """Begin with all runs."""
        self._at: dict[Path, dict[Path | None, list[RunFiles]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._under: dict[Path, dict[Path | None, list[RunFiles]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._newest: dict[
            object, RunFiles
        ] = {}  # by given path, also with a folder in or under which they are
        for run in runs:
            self._at[run.folder][run.given_path].append(run)
            for folder in run.folder.parents:
                self._under[folder][run.given_path].append(run)
            under = (("under", folder, run.given_path) for folder in run.folder.parents)
            for place in (run.given_path, ("in", run.folder, run.given_path), *under):
                self._newest[place] = max(
                    self._newest.get(place, run), run, key=_get_modified
                )

    def find(self, run: RunFiles) -> list[RunFiles]:
        """Return the runs in, above and below the folder of a run."""
        return self.find_above(run) + self._under.get(run.folder, {}).get(
            run.given_path, []
        )

    def find_above(self, run: RunFiles) -> list[RunFiles]:
        """Return the runs in and above the folder of a run."""
        folders = (run.folder, *run.folder.parents)
        return list(
            chain.from_iterable(
                self._at.get(folder, {}).get(run.given_path, ()) for folder in folders
            )
        )

    def has_in(self, folder: Path) -> bool:
        """True if a run is in a folder."""
        return folder in self._at

    def list_in(self, folder: Path) -> list[RunFiles]:
        """Return the runs in a folder."""
        return list(chain.from_iterable(self._at.get(folder, {}).values()))

    def is_near(self, folder: Path, given_path: Path) -> bool:
        """True if a run under the same given path is in, above or below a folder."""
        above = (self._at.get(place, {}) for place in (folder, *folder.parents))
        return folder in self._under or any(given_path in runs for runs in above)

    def has_inside(self, folder: Path) -> bool:
        """True if a run is in a folder or below it."""
        return folder in self._at or folder in self._under

    def find_newest(self, run: RunFiles) -> RunFiles | None:
        """Return the run in, above or below the folder of a run that was written last,
        None without any."""
        above = (
            ("in", folder, run.given_path)
            for folder in (run.folder, *run.folder.parents)
        )
        places = (*above, ("under", run.folder, run.given_path))
        near = (self._newest[place] for place in places if place in self._newest)
        return max(near, key=_get_modified, default=None)

    def find_newest_searched(self, run: RunFiles) -> RunFiles | None:
        """Return the run under the given path of a run that was written last, None
        without any."""
        return self._newest.get(run.given_path)


class Claim(Enum):
    """What metrics beside logs may be."""

    RUN = "run"  # no log has their steps
    CONTESTED = "contested"  # the log beside them holds few times
    # the log beside them has no step, and a log elsewhere may be of the same run
    DOUBTFUL = "doubtful"
    HIDDEN = "hidden"  # a log has their steps


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found beside metrics."""

    runs: Neighbours
    silent: Neighbours  # logs without a step
    outdone: frozenset[str] = field(
        default_factory=frozenset
    )  # the ids of the runs that metrics may displace

    def classify(
        self, metrics: RunFiles, *, is_policy_job: bool, is_recorded: bool = False
    ) -> Claim:
        """Return what metrics may be. `is_policy_job`: at the place of a baseline;
        `is_recorded`: no baseline is there yet."""
        near = self.runs.find(metrics)
        if near:
            contested = len(near) == 1 and near[0].id in self.outdone
            return Claim.CONTESTED if contested else Claim.HIDDEN
        if is_policy_job or not self.runs.find_newest_searched(metrics):
            return Claim.RUN
        if is_recorded:
            return Claim.DOUBTFUL
        consoles = (log.folder for log in self.silent.find_above(metrics))
        has_console = any(not self.runs.has_inside(folder) for folder in consoles)
        return Claim.DOUBTFUL if has_console else Claim.HIDDEN

    def is_later(self, metrics: RunFiles) -> bool:
        """True if metrics were written so long after all logs beside them that they may
        be of a later run."""
        newest = self.runs.find_newest(metrics) or self.runs.find_newest_searched(
            metrics
        )
        return bool(
            metrics.modified
            and newest
            and metrics.modified - _get_modified(newest) > WRITTEN_ALONG
        )

    def find_rival(self, metrics: RunFiles) -> RunFiles:
        """Return the run beside contested metrics."""
        return self.runs.find(metrics)[0]


def outdoes(metrics: ReadRun, run: ReadRun) -> bool:
    """True if metrics hold many more times of steps than the log of the same launch."""
    written = metrics.files.modified, run.files.modified
    together = None in written or abs(written[0] - written[1]) <= SAME_LAUNCH  # type: ignore[operator]
    return together and count_times(metrics.logs) >= OUTDONE * count_times(run.logs)


def find_died(
    metrics: Sequence[ReadRun], silent: Iterable[ReadRun]
) -> Iterator[tuple[ReadRun, str]]:
    """Yield logs without a step of launches that died, each with the id of the metrics
    that the launch before it left.

    That is a log that prints a failure and was written much later than the newest
    metrics beside or below it: they must not be judged in its place.
    """
    neighbours = Neighbours(run.files for run in metrics)
    for console in silent:
        written = console.files.modified
        if written is None or not any(log.ending for log in console.logs):
            continue
        newest = neighbours.find_newest(console.files)
        if newest and newest.modified and written - newest.modified > WRITTEN_ALONG:
            yield console, newest.id


def _get_modified(files: RunFiles) -> datetime:
    return files.modified or datetime.min.replace(tzinfo=UTC)


def find_unlike(
    metrics: Sequence[ReadRun], runs: Sequence[ReadRun]
) -> Iterator[ReadRun]:
    """Yield the metrics whose steps are those of none of the runs: by the last step,
    the median time and the losses."""
    by_last: dict[int, list[_Extent]] = defaultdict(list)
    for extent in _list_extents(runs):
        by_last[extent.last].append(extent)
    for run in metrics:
        extents = list(_list_extents([run]))
        others = (
            (extent, other)
            for extent in extents
            for near in (
                extent.last - 1,
                extent.last,
                extent.last + 1,
            )  # one of the two may count from 0
            for other in by_last.get(near, ())
        )
        alike = any(
            abs(extent.median - other.median) <= SAME_RUN * abs(other.median)
            and not _differ_in_loss(extent, other)
            for extent, other in others
        )
        if extents and not alike:
            yield run


class _Extent(NamedTuple):
    last: int
    median: float
    segment: Segment


def _list_extents(runs: Iterable[ReadRun]) -> Iterator[_Extent]:
    """Yield the last step and the median of the times of each part of the logs."""

    segments = (segment for run in runs for log in run.logs for segment in log.segments)
    for segment in segments:
        seconds = _read_seconds(segment.steps.seconds)
        if len(seconds):
            yield _Extent(
                int(segment.steps.index[-1]) - segment.first_step,
                compute_median(seconds),
                segment,
            )


def _differ_in_loss(extent: _Extent, other: _Extent) -> bool:
    """Whether two parts print other losses for the same steps, also if one of them
    counts its steps from 0."""
    differences = [
        _compare_losses(extent.segment.steps, other.segment.steps, offset)
        for offset in (-1, 0, 1)
    ]
    known = [difference for difference in differences if difference is not None]
    return bool(known) and min(known) > SAME_LOSS


def _compare_losses(steps: Steps, others: Steps, offset: int) -> float | None:
    """Return how far the losses of two logs are apart, as a median share; None if they
    share too few steps."""
    import numpy as np

    _, own, other = np.intersect1d(
        steps.index, others.index + offset, return_indices=True
    )
    loss, beside = steps.loss[own], others.loss[other]
    known = np.isfinite(loss) & np.isfinite(beside) & (beside != 0)
    if np.count_nonzero(known) < FEWEST_LOSSES:
        return None
    return compute_median(np.abs(loss[known] / beside[known] - 1))
