"""Follow the logs of running jobs: find each log, then read only its new lines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.job_records import Job
from pytest_llmbench.core.stall_limits import LogProgress
from pytest_llmbench.core.userfile import path_exists
from pytest_llmbench.launch.launched_runs import list_log_paths
from pytest_llmbench.launch.schedulers.submission import estimate_submission
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.dialect_table import get_dialect
from pytest_llmbench.logs.growing import Growing
from pytest_llmbench.logs.sources.compressed import is_compressed
from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.session.catalog import Catalog

# A folder may contain the runs of months, and hundreds of jobs may have no step yet: the
# pause before the next search doubles, from the first value up to the second.
FIRST_SEARCH_SECONDS, LONGEST_SEARCH_SECONDS = 1.0, 60.0


class _FollowedLog(Struct):
    """The log of one start of a job, and the time of the last search for it."""

    searched_at: datetime | None = None
    pause_seconds: float = 0.0  # until the next search
    log: Growing | None = None
    has_steps: bool = False


class RunningLogs:
    """Reads the progress of running jobs from their logs."""

    def __init__(self, catalog: Catalog, now: Callable[[], datetime]) -> None:
        """The baselines in `catalog` define the log format of each configuration."""
        self._catalog = catalog
        self._now = now
        # by job number and number of restarts
        self._logs: dict[tuple[int, int], _FollowedLog] = {}

    def read_progress(self, job: Job) -> LogProgress:
        """Read the progress that the log of a job shows.

        A log that is missing or cannot be read is not an error: the result contains the
        searched paths and the problem.
        """
        searched_paths = join_first([str(path) for path in list_log_paths(job)], 2)
        # True if the steps appear only at the end of the run, in every possible format
        prints_late = all(
            get_dialect(baseline.dialect).prints_late
            for baseline in self._catalog.baselines[job.spec.key]
        )
        no_progress = LogProgress(place=searched_paths, prints_late=prints_late)
        try:
            log = self._find_log(job)
            if log is None:
                return no_progress
            if is_compressed(str(log.path)):
                problem = f"{log.path} is compressed while it grows"
                return replace(no_progress, problem=problem)
            progress = log.find_life_signs()
        except (LogError, OSError) as error:
            return replace(no_progress, problem=str(error))
        self._get_followed(job).has_steps |= progress.steps > 0
        return replace(progress, place=searched_paths, prints_late=prints_late)

    def read_last_step(self, job: Job) -> tuple[int, int | None, float] | None:
        """Return the last step in a job's log, or None.

        The result consists of the number of the step, the number of all steps (None if
        unknown) and the seconds per step.
        """
        try:
            log = self._find_log(job)
            step = log.find_last_step() if log else None
        except (LogError, OSError):
            return None
        self._get_followed(job).has_steps |= step is not None
        return step

    def _get_followed(self, job: Job) -> _FollowedLog:
        """Return the state of the log of the latest start of a job.

        A requeued job may write another log.
        """
        restarts = job.status.restarts if job.status else 0
        return self._logs.setdefault((job.number, restarts), _FollowedLog())

    def _find_log(self, job: Job) -> Growing | None:
        """Find the log of a job, or return None.

        The search is repeated after growing pauses, until the log has steps, because
        another file may turn out to be the log. After a requeue it is always repeated,
        because the job may write another log. Between two searches, returns the result
        of the last search.
        """
        followed, now = self._get_followed(job), self._now()
        was_requeued = job.status is not None and job.status.restarts > 0
        if followed.has_steps and not was_requeued:
            return followed.log
        if followed.searched_at is not None:
            waited_seconds = (now - followed.searched_at).total_seconds()
            # negative if the clock was set back, which must not stop the search
            if 0 <= waited_seconds < followed.pause_seconds:
                return followed.log
        longer_pause = max(2 * followed.pause_seconds, FIRST_SEARCH_SECONDS)
        followed.pause_seconds = min(longer_pause, LONGEST_SEARCH_SECONDS)
        followed.searched_at = now
        path = _search_log(job)
        if path and (followed.log is None or followed.log.path != path):
            baselines = self._catalog.baselines[job.spec.key]
            definitions = (
                baseline.log or load_definitions().get(baseline.dialect)
                for baseline in baselines
            )
            followed.log = Growing(path, tuple(filter(None, definitions)))
        return followed.log


def _search_log(job: Job) -> Path | None:
    """Search the log of a job's latest attempt. Returns None if there is none."""
    since = estimate_submission(job)
    runs = find_runs([path for path in list_log_paths(job) if path_exists(path)]).runs
    logs = []
    for run in runs:
        if run.job_id != job.scheduler_id or not run.attempts:
            continue
        # a scheduler that was set up again restarts at job id 1: older files belong to
        # another job
        if since and run.modified and run.modified < since:
            continue
        logs.append(run.attempts[-1].log)
    # a run in an allocation also has the output of its script, which is a log only if
    # there is no other
    training_logs = [log for log in logs if job.folder not in log.parents]
    candidates = training_logs or logs
    return candidates[-1] if candidates else None
