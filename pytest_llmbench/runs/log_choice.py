"""Choose the log of a job if several files contain its steps.

Candidates are standard output, standard error, and metrics files. A file without step
times never replaces a file with step times. Metrics replace a log if they contain many
more step times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from pytest_llmbench.core.log_records import ParsedLog, Segment, Steps
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.run_records import Attempt, AttemptFiles, RunFiles

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats

# Metrics replace a log if they contain this many times its number of step times. A few
# steps more, due to earlier flushing, do not suffice: otherwise the log would be judged
# on one day and the metrics on the next.
OUTDONE = 2

# A log and metrics last modified further apart belong to different launches.
SAME_LAUNCH = timedelta(days=1)

LEFT_OUT = "metrics, not read because there are logs; to read them, give their own path"

# A log last modified this long after metrics may belong to a later launch.
WRITTEN_ALONG = timedelta(hours=1)

# Largest relative difference of the median step times of one run in two files: one of
# them may contain means over more steps.
SAME_RUN = 0.02

# Largest relative difference of the losses of one run in two files (rounding).
SAME_LOSS = 0.01
FEWEST_LOSSES = 5


class ReadRun(Struct, frozen=True):
    """A run with its parsed logs."""

    files: RunFiles
    attempts: tuple[Attempt, ...]

    @property
    def logs(self) -> list[ParsedLog]:
        """The log of each attempt."""
        return [attempt.log for attempt in self.attempts]


def count_times(logs: Iterable[ParsedLog]) -> int:
    """Count the printed step times in logs; a mean over several steps is one time."""
    return sum(
        len(_drop_missing(segment.steps.seconds))
        for log in logs
        for segment in log.segments
    )


def count_trained_steps(logs: Iterable[ParsedLog]) -> int:
    """Count the steps in logs; a mean over n steps counts as n."""
    return sum(
        int(segment.steps.mean_of.sum()) for log in logs for segment in log.segments
    )


def _drop_missing(seconds: Floats) -> Floats:
    """Return the times that are finite."""
    import numpy as np

    return seconds[np.isfinite(seconds)]


def may_metrics_have_more(logs: Sequence[ParsedLog]) -> bool:
    """True if metrics of the run may contain many more step times than the logs.

    This is so if the logs print means over several steps. Without any step time in the
    logs, the result is False.
    """
    return 0 < OUTDONE * count_times(logs) <= count_trained_steps(logs)


def swap_streams(files: AttemptFiles) -> AttemptFiles | None:
    """Exchange log and standard error of an attempt; None without standard error."""
    if not files.err_name:
        return None
    return replace(files, log_name=files.err_name, err_name=files.log_name)


def swap_silent_streams(run: ReadRun) -> RunFiles | None:
    """Use standard error as the log of each attempt whose log has no steps.

    Returns None if nothing changes. The returned files are not read yet.
    """
    attempts = [
        attempt.files
        if attempt.log.segments
        else swap_streams(attempt.files) or attempt.files
        for attempt in run.attempts
    ]
    changed = any(
        files is not attempt.files
        for files, attempt in zip(attempts, run.attempts, strict=True)
    )
    return replace(run.files, attempts=tuple(attempts)) if changed else None


def choose_streams(run: ReadRun, swapped: ReadRun) -> ReadRun:
    """Return `run`, with the attempts of `swapped` where only these contain steps."""
    pairs = zip(run.attempts, swapped.attempts, strict=True)
    attempts = tuple(
        other if other.log.segments and not original.log.segments else original
        for original, other in pairs
    )
    return ReadRun(
        replace(run.files, attempts=tuple(attempt.files for attempt in attempts)),
        attempts,
    )


class Neighbours:
    """Runs indexed by folder and given path.

    The given path is the path on the command line under which a run was found. Unless
    a method says otherwise, it finds only runs with the same given path.
    """

    def __init__(self, runs: Iterable[RunFiles]) -> None:
        self._at: dict[Path, dict[Path | None, list[RunFiles]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._under: dict[Path, dict[Path | None, list[RunFiles]]] = defaultdict(
            lambda: defaultdict(list)
        )
        # the newest run by location: a given path, ("in", folder, given path) or
        # ("under", folder, given path)
        self._newest: dict[object, RunFiles] = {}
        for run in runs:
            self._at[run.folder][run.given_path].append(run)
            for folder in run.folder.parents:
                self._under[folder][run.given_path].append(run)
            under = (("under", folder, run.given_path) for folder in run.folder.parents)
            for location in (
                run.given_path,
                ("in", run.folder, run.given_path),
                *under,
            ):
                self._newest[location] = max(
                    self._newest.get(location, run), run, key=_get_modified
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
        """True if a run of any given path is in the folder."""
        return folder in self._at

    def list_in(self, folder: Path) -> list[RunFiles]:
        """Return the runs in a folder, of all given paths."""
        return list(chain.from_iterable(self._at.get(folder, {}).values()))

    def is_near(self, folder: Path, given_path: Path) -> bool:
        """True if a run is near a folder.

        This is any run below the folder, or a run of `given_path` in the folder or in
        one above.
        """
        above = (self._at.get(candidate, {}) for candidate in (folder, *folder.parents))
        return folder in self._under or any(given_path in runs for runs in above)

    def has_inside(self, folder: Path) -> bool:
        """True if a run of any given path is in the folder or below it."""
        return folder in self._at or folder in self._under

    def find_newest(self, run: RunFiles) -> RunFiles | None:
        """Return the newest run in, above or below the folder of a run, or None."""
        above = (
            ("in", folder, run.given_path)
            for folder in (run.folder, *run.folder.parents)
        )
        locations = (*above, ("under", run.folder, run.given_path))
        near = (
            self._newest[location] for location in locations if location in self._newest
        )
        return max(near, key=_get_modified, default=None)

    def find_newest_of_given_path(self, run: RunFiles) -> RunFiles | None:
        """Return the newest run that was found with the `given_path` of `run`, or None."""
        return self._newest.get(run.given_path)


class Claim(Enum):
    """The relation of metrics to the logs near them."""

    RUN = "run"  # the metrics are a separate run: no log has these steps
    CONTESTED = "contested"  # the log next to the metrics has few step times
    # the log next to the metrics has no steps; a log elsewhere may be of the same run
    DOUBTFUL = "doubtful"
    HIDDEN = "hidden"  # a log has these steps


class Surroundings(Struct, frozen=True):
    """The runs and logs found near metrics."""

    runs: Neighbours
    silent: Neighbours  # logs without steps
    # the ids of the runs with so few step times that metrics may replace their logs
    outdone: frozenset[str] = field(default_factory=frozenset)

    def classify(
        self, metrics: RunFiles, *, is_at_baseline_path: bool, is_recorded: bool = False
    ) -> Claim:
        """Classify metrics by their relation to the runs and logs near them.

        `is_at_baseline_path` is true if the metrics match a baseline's path,
        `is_recorded` if the session records baselines.
        """
        # runs with a log in, above or below the metrics' folder
        near = self.runs.find(metrics)
        if near:
            contested = len(near) == 1 and near[0].id in self.outdone
            return Claim.CONTESTED if contested else Claim.HIDDEN
        # no run nearby, and a baseline's path or no run at all under the given path
        if is_at_baseline_path or not self.runs.find_newest_of_given_path(metrics):
            return Claim.RUN
        # Runs elsewhere may have these steps. Doubtful metrics are read and compared
        # with them; others are hidden without reading. A recording session reads all.
        if is_recorded:
            return Claim.DOUBTFUL
        silent_folders = (log.folder for log in self.silent.find_above(metrics))
        has_silent_log = any(
            not self.runs.has_inside(folder) for folder in silent_folders
        )
        return Claim.DOUBTFUL if has_silent_log else Claim.HIDDEN

    def is_later(self, metrics: RunFiles) -> bool:
        """True if metrics were modified long after the newest log.

        They may belong to a later run than this log, which is near the metrics or, if
        no log is near, of the same given path.
        """
        newest = self.runs.find_newest(metrics) or self.runs.find_newest_of_given_path(
            metrics
        )
        return bool(
            metrics.modified
            and newest
            and metrics.modified - _get_modified(newest) > WRITTEN_ALONG
        )

    def find_rival(self, metrics: RunFiles) -> RunFiles:
        """Return the only run near contested metrics (see `classify`)."""
        return self.runs.find(metrics)[0]


def has_many_more_times(metrics: ReadRun, run: ReadRun) -> bool:
    """True if metrics contain many more step times than the log of the same launch."""
    written, log_written = metrics.files.modified, run.files.modified
    together = (
        written is None
        or log_written is None
        or abs(written - log_written) <= SAME_LAUNCH
    )
    return together and count_times(metrics.logs) >= OUTDONE * count_times(run.logs)


def find_failed_launches(
    metrics: Sequence[ReadRun], silent: Iterable[ReadRun]
) -> Iterator[tuple[ReadRun, str]]:
    """Yield (failed launch, id of older metrics near it).

    `silent` are runs whose logs have no steps. Such a run is a failed launch if its log
    reports a failure and was modified much later than the newest metrics in, above
    or below its folder. The older metrics must not be judged in place of this launch.
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
    """Return the modification time of a run, the earliest possible time if unknown."""
    return files.modified or datetime.min.replace(tzinfo=UTC)


def find_unmatched_metrics(
    metrics: Sequence[ReadRun], runs: Sequence[ReadRun]
) -> Iterator[ReadRun]:
    """Yield the metrics that belong to none of the runs.

    Metrics belong to a run if they contain a segment with about the same last step,
    median step time and losses. Metrics without step times are not returned.
    """
    by_last_step: dict[int, list[_Extent]] = defaultdict(list)
    for extent in _list_extents(runs):
        by_last_step[extent.last].append(extent)

    def is_in_a_run(extent: _Extent) -> bool:
        """True if a run has a segment with this end, median step time and losses."""
        # One of the two segments may count its steps from 0.
        for last in (extent.last - 1, extent.last, extent.last + 1):
            for other in by_last_step.get(last, ()):
                difference = abs(extent.median - other.median)
                is_equal_time = difference <= SAME_RUN * abs(other.median)
                if is_equal_time and not _differ_in_loss(extent, other):
                    return True
        return False

    for run in metrics:
        extents = list(_list_extents([run]))
        if extents and not any(map(is_in_a_run, extents)):
            yield run


class _Extent(NamedTuple):
    """A segment with the properties that identify it."""

    last: int  # the last step, counted from the first one
    median: float  # of the step times, in seconds
    segment: Segment


def _list_extents(runs: Iterable[ReadRun]) -> Iterator[_Extent]:
    """Yield the extent of each segment that has step times."""

    segments = (segment for run in runs for log in run.logs for segment in log.segments)
    for segment in segments:
        seconds = _drop_missing(segment.steps.seconds)
        if len(seconds):
            yield _Extent(
                int(segment.steps.index[-1]) - segment.first_step,
                compute_median(seconds),
                segment,
            )


def _differ_in_loss(extent: _Extent, other: _Extent) -> bool:
    """True if two segments print different losses for the same steps.

    One of the segments may count its steps from 0. False if too few losses are shared.
    """
    differences = [
        _compare_losses(extent.segment.steps, other.segment.steps, offset)
        for offset in (-1, 0, 1)
    ]
    known = [difference for difference in differences if difference is not None]
    return bool(known) and min(known) > SAME_LOSS


def _compare_losses(steps: Steps, others: Steps, offset: int) -> float | None:
    """Return the median relative difference of the losses of two segments.

    `offset` is added to the step numbers of `others`. None if fewer than
    `FEWEST_LOSSES` losses are shared.
    """
    import numpy as np

    _, rows, other_rows = np.intersect1d(
        steps.index, others.index + offset, return_indices=True
    )
    loss, other_loss = steps.loss[rows], others.loss[other_rows]
    known = np.isfinite(loss) & np.isfinite(other_loss) & (other_loss != 0)
    if np.count_nonzero(known) < FEWEST_LOSSES:
        return None
    return compute_median(np.abs(loss[known] / other_loss[known] - 1))
