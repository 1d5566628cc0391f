"""Which of the runs that were found are copies of others: logs that were copied, or that a launcher wrote along."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pytest_llmbench.models import Run

FILE_TIME = "the time of the file"

LONGEST_QUEUE = timedelta(days=7)
"""A job of which only metadata is left waits in the queue for no longer: its log was pruned, or it died long ago."""

CLOCK_SKEW = timedelta(days=1)
"""A start that lies further ahead than this is not believed, or an old run would be the newest for ever."""

LAUNCHED = re.compile(r"log-|slurm-|(combined|stdout)\.log$")
"""Names of logs that a launcher writes: a job of this name was there even if it left no step."""


def without_attached(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return runs without those that a launcher wrote along, and these with the ones that they repeat.

    That is a log of any other name beside the log of a launcher, with the same steps and times from the first on, and
    of the same job where its name says one.
    """
    logs: dict[Path, list[Run]] = defaultdict(list)
    for run in runs:
        if _is_launched(run):
            logs[run.found.folder].append(run)
    kept: list[Run] = []
    copies: list[tuple[Run, Run]] = []
    for run in runs:
        beside = () if _is_launched(run) else logs[run.found.folder]
        original = next((other for other in beside if _is_written_along(run, other)), None)
        if original is None:
            kept.append(run)
        else:
            copies.append((run, original))
    return kept, copies


def _is_launched(run: Run) -> bool:
    return any(LAUNCHED.match(attempt.files.log.name) for attempt in run.attempts)


def _is_written_along(run: Run, other: Run) -> bool:
    part, whole = _timings(run), _timings(other)
    return bool(part) and run.found.job_id in ("", other.found.job_id) and part == whole[: len(part)]


def without_copies(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return runs with one of each group of copies, and the copies with the one that was kept.

    Copies are runs of one configuration and job with equal logs, compressed or not; and with an equal start and the
    beginning of another's steps, as a copy has that was taken while the job ran.
    """
    groups: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_identical(run)].append(run)
    kept = [_dated_by_all(group) for group in groups.values()]
    copies = [(copy, group[-1]) for group in groups.values() for copy in group[:-1]]
    of_job: dict[object, list[Run]] = defaultdict(list)
    for run in sorted(kept, key=steps_in, reverse=True):
        others = of_job[run.identity.key, run.found.job_id or run.id]  # without a job id it is no part of another
        original = next((other for other in others if _is_part(run, other)), None)
        if original is None:
            others.append(run)
        else:
            copies.append((run, original))
    return [run for runs in of_job.values() for run in runs], copies


def _identical(run: Run) -> object:
    if not steps_in(run):
        return run.id
    logs = [attempt.log for attempt in run.attempts]
    times = (segment.steps.seconds.tobytes() for log in logs for segment in log.segments)
    return run.identity.key, run.found.job_id, tuple(log.fingerprint for log in logs), *times


def _dated_by_all(copies: Sequence[Run]) -> Run:
    """Return one of several copies, with the start that they agree on: the earliest of the best source.

    A copy is never written before its original, so the earliest file time is right; but a folder above may be dated for
    another reason. Where it contradicts the file times, the start is not known.
    """
    kept = copies[-1]
    if len(copies) == 1:
        return kept
    weak = {FILE_TIME, *(run.found.dated_from for run in copies)}
    sure = [(run.started, run.started_from) for run in copies if run.started and run.started_from not in weak]
    if sure:
        started, source = min(sure)
        return dataclasses.replace(kept, started=started, started_from=source)
    written = [run.found.modified for run in copies if run.found.modified is not None]
    stated = [run.started for run in copies if run.started is not None]
    if not written or (_apart(written) and any(run.found.dated for run in copies) and _apart([*written, *stated])):
        return dataclasses.replace(kept, started=None, started_from="its copies contradict each other")
    return dataclasses.replace(kept, started=min(written), started_from=FILE_TIME)


def _apart(moments: Sequence[datetime]) -> bool:
    return max(moments) - min(moments) > CLOCK_SKEW


def _is_part(run: Run, other: Run) -> bool:
    """Whether a run is a copy of what another one of its configuration and job was when it was taken."""
    if not run.found.job_id or run.found.folder == other.found.folder:
        return False
    near = run.started and other.started and abs(run.started - other.started) <= LONGEST_QUEUE
    if not steps_in(run):  # without an attempt only its metadata stands here, and its log elsewhere
        return bool(not run.attempts and near and steps_in(other))
    part, whole = _timings(run), _timings(other)
    return run.started == other.started and part == whole[: len(part)]


def _timings(run: Run) -> list[tuple[int, float | None]]:
    """Return steps and times, None where a log prints none: a NaN would make every copy a run of its own."""
    segments = [segment for attempt in run.attempts for segment in attempt.log.segments]
    rows = (row for one in segments for row in zip(one.steps.index.tolist(), one.steps.seconds.tolist(), strict=True))
    return [(index, None if math.isnan(seconds) else seconds) for index, seconds in rows]


def steps_in(run: Run) -> int:
    """Return how many steps all attempts of a run printed."""
    return sum(len(segment.steps) for attempt in run.attempts for segment in attempt.log.segments)
