"""From paths to runs: find them, read their logs, and say which configuration each one is."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench import wording
from pytest_llmbench.catalogue import Catalogue
from pytest_llmbench.errors import LogError
from pytest_llmbench.models import (
    Attempt,
    AttemptFiles,
    Baseline,
    Ending,
    FoundRun,
    Identity,
    Key,
    ParsedLog,
    Reason,
    Run,
    Stray,
)
from pytest_llmbench.settings import Settings

if TYPE_CHECKING:
    from pytest_llmbench.discover.match import Matching
    from pytest_llmbench.reading import Done, Reading

UNREADABLE = "unreadable"
"""The code of the ending of a log that could not be opened."""

FILE_TIME = "the time of the file"

LONGEST_QUEUE = timedelta(days=7)
"""A job of which only metadata is left waits in the queue for no longer: its log was pruned, or it died long ago."""

CLOCK_SKEW = timedelta(days=1)
"""A start that lies further ahead than this is not believed, or an old run would be the newest for ever."""

LAUNCHED = re.compile(r"log-|slurm-|(combined|stdout)\.log$")
"""Names of logs that a launcher writes: a job of this name was there even if it left no step."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """The runs under the given paths, newest first, what could not be read, and what is no run, with the reason."""

    runs: tuple[Run, ...]
    unreadable: tuple[Stray, ...]
    ignored: tuple[str, ...]


def ingest(
    settings: Settings, catalogue: Catalogue, now: datetime, tell: Callable[[Done], None] | None = None
) -> Ingested:
    """Find, read and identify everything under the given paths; copies of one run count once.

    `tell` is called with how far reading is, whenever something was read.
    """
    from pytest_llmbench.discover.find import find_runs
    from pytest_llmbench.discover.match import remembered
    from pytest_llmbench.files.stores import Stores
    from pytest_llmbench.log_cache import LogCache
    from pytest_llmbench.reading import Reading

    stores = Stores()
    discovery = find_runs(settings.logs, stores)
    cache = LogCache(settings.cache, settings.logs, catalogue.definitions) if settings.cache else None
    reading = Reading(stores, discovery.runs, catalogue.definitions, cache=cache, tell=tell)
    find = remembered()
    ignored = [f"{path.name}: {why}" for path, why in discovery.ignored if path.name != "nsys_profile"]
    runs = []
    for found in discovery.runs:
        attempts = tuple(Attempt(files, _parsed(files, reading)) for files in found.attempts)
        launched = found.started or found.dated or found.modified
        if not attempts and (launched is None or now - launched > LONGEST_QUEUE):
            ignored.append(f"{found.id}: only the metadata is left of this job")
        elif _is_run(found, attempts) or _is_unread(found, attempts, catalogue):
            runs.append(_read_as_known(_identified(found, attempts, settings, catalogue, now, find=find), catalogue))
        else:
            why = _unread(attempts, catalogue)
            ignored.append(f"{found.id}: no training step in it, and not the name of a launched job{why}")
    own, attached = _without_attached(runs)
    kept, copies = _without_copies(sorted(own, key=lambda run: _recency(run, now), reverse=True))
    kept.sort(key=lambda run: _recency(run, now), reverse=True)
    ignored += [f"{copy.id}: a copy of {original.id}" for copy, original in (*attached, *copies)]
    unreadable = (Stray(f"unreadable-{path.name}", Reason.UNREADABLE, why, path) for path, why in discovery.unreadable)
    return Ingested(tuple(kept), tuple(unreadable), tuple(ignored))


def ingest_job(
    places: Sequence[Path], job_id: str, key: Key, catalogue: Catalogue, now: datetime, *, since: datetime | None = None
) -> Run | None:
    """Return the run that one job left under these files and folders, None where there is no log of that job id.

    What was last written before `since` is of an earlier job: a Slurm that was set up anew begins with job id 1 again.

    A later place is looked at only while no earlier one holds a step of that job. What its log does
    not tell, its launch does: it is a run of `key` unless something in it says otherwise.
    """
    from pytest_llmbench.discover.find import find_runs
    from pytest_llmbench.discover.match import matches
    from pytest_llmbench.files.stores import Stores
    from pytest_llmbench.reading import Reading

    reading = Reading(Stores(), (), catalogue.definitions)
    settings = Settings(release=key.release, gpu=key.gpu)
    best: Run | None = None
    for place in (place for place in places if place.exists()):
        for found in find_runs([place]).runs:
            earlier = since is not None and found.modified is not None and found.modified < since
            if found.job_id != job_id or not found.attempts or earlier:
                continue
            attempts = tuple(Attempt(files, _parsed(files, reading)) for files in found.attempts)
            run = _identified(found, attempts, settings, catalogue, now, find=matches)
            best = run if best is None or _steps(run) > _steps(best) else best
        if best is not None and _steps(best):
            break
    return _read_as_known(_known_as(best, key), catalogue) if best is not None else None


def _known_as(run: Run, key: Key) -> Run:
    """Return a run that is of the configuration that was launched unless something in it says otherwise."""
    untold = run.identity.key is None and not run.identity.contradicted
    fits = key in run.identity.candidates or not run.identity.candidates
    return dataclasses.replace(run, identity=Identity(key, "it was launched as such")) if untold and fits else run


def _read_as_known(run: Run, catalogue: Catalogue) -> Run:
    """Return a run with its logs as the dialect of its configuration reads them."""
    if run.identity.key is None or not any(one.log.readings for one in run.attempts):
        return run
    dialects = [baseline.dialect for baseline in catalogue.baselines[run.identity.key]]
    attempts = (dataclasses.replace(one, log=one.log.read_as(*dialects)) for one in run.attempts)
    return dataclasses.replace(run, attempts=tuple(attempts))


def _parsed(files: AttemptFiles, reading: Reading) -> ParsedLog:
    from pytest_llmbench.parse.endings import combined

    try:
        log = reading.log(files.log)
        said = reading.ending(files.err) if files.err else None
    except LogError as error:
        return ParsedLog(dialect=None, segments=(), ending=Ending(UNREADABLE, str(error), 0))
    if said is None:
        return log
    readings = tuple(dataclasses.replace(one, ending=combined(one.ending, said)) for one in log.readings)
    return dataclasses.replace(log, ending=combined(log.ending, said), readings=readings)


def _is_run(found: FoundRun, attempts: Sequence[Attempt]) -> bool:
    """Whether files are a training run: they hold steps, could not be read, or are what a launched job leaves."""
    logs = [attempt.log for attempt in attempts]
    if any(log.segments or (log.ending and log.ending.code == UNREADABLE) for log in logs):
        return True
    named = {"recipe", "size"} <= {clue.field for clue in found.clues}
    launched = found.job_id or found.metadata or any(LAUNCHED.match(files.log.name) for files in found.attempts)
    return named and bool(launched)


def _is_unread(found: FoundRun, attempts: Sequence[Attempt], catalogue: Catalogue) -> bool:
    """Whether files are called as a workload whose baseline file says how to read them, and hold lines to be read."""
    named = {clue.value.casefold() for clue in found.clues if clue.field == "recipe"}
    called = [one for one in catalogue.recipes if named & {name.casefold() for name in (one.name, *one.names)}]
    dialects = {recipe.dialect for recipe in called}
    return any(one.count and one.dialect in dialects for attempt in attempts for one in attempt.log.unread)


def _unread(attempts: Sequence[Attempt], catalogue: Catalogue) -> str:
    """Return why the only dialect that files define, or those whose text stands in a log, find no step in it."""
    told = [one for attempt in attempts for one in attempt.log.unread if one.count or len(catalogue.definitions) == 1]
    return "".join(f"; {wording.unread(one)}" for one in told[:1])


def _identified(
    found: FoundRun,
    attempts: tuple[Attempt, ...],
    settings: Settings,
    catalogue: Catalogue,
    now: datetime,
    *,
    find: Matching,
) -> Run:
    from pytest_llmbench.discover.identify import identify
    from pytest_llmbench.discover.shards import shards_of
    from pytest_llmbench.measure.derive import tflops_per_gpu

    def expected_tflops(baseline: Baseline, step_seconds: float) -> float:
        return tflops_per_gpu(baseline.configuration, step_seconds) * (baseline.logged_tflops_factor or 1.0)

    logs = [attempt.log for attempt in attempts]
    if any(log.checkpoints.save_line for log in logs) and found.layout != "results":  # one folder for many jobs
        found = dataclasses.replace(found, shards=shards_of(found.folder))
    identity = identify(
        found,
        logs,
        catalogue.recipes,
        release=settings.release,
        gpu=settings.gpu,
        baseline_release=settings.baseline_release,
        expected_tflops=expected_tflops,
        find=find,
    )
    return Run(found, attempts, identity, *_start(found, logs, now))


def _start(found: FoundRun, logs: Sequence[ParsedLog], now: datetime) -> tuple[datetime | None, str]:
    """Return when a run started and what says so: metadata or its own name, the log, a folder above, the file last.

    What lies in the future is passed over; None where nothing else is left.
    """
    logged = next((log.started.astimezone(UTC) for log in logs if log.started is not None), None)
    stated = (
        (found.started, found.started_from),
        (logged, "the log's first time stamp"),
        (found.dated, found.dated_from),
        (found.modified, FILE_TIME),
    )
    believed = ((moment, source) for moment, source in stated if moment is not None and moment - now <= CLOCK_SKEW)
    return next(believed, (None, "every time that it states lies in the future"))


def _recency(run: Run, now: datetime) -> tuple[datetime, tuple[int, str], datetime, str]:
    """Return a key by which later runs sort last: start, job id as a number, file time; an unknown start is the latest.

    A run that might be the newest has to be judged: an older good one must not stand for it.
    """
    job = run.found.job_id
    number = (int(job), job) if job.isdecimal() else (0, job)
    return run.started or now + CLOCK_SKEW, number, run.found.modified or now, run.id


def _without_attached(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
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


def _without_copies(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
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
    for run in sorted(kept, key=_steps, reverse=True):
        others = of_job[run.identity.key, run.found.job_id or run.id]  # without a job id it is no part of another
        original = next((other for other in others if _is_part(run, other)), None)
        if original is None:
            others.append(run)
        else:
            copies.append((run, original))
    return [run for runs in of_job.values() for run in runs], copies


def _identical(run: Run) -> object:
    if not _steps(run):
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
    if not _steps(run):  # without an attempt only its metadata stands here, and its log elsewhere
        return bool(not run.attempts and near and _steps(other))
    part, whole = _timings(run), _timings(other)
    return run.started == other.started and part == whole[: len(part)]


def _timings(run: Run) -> list[tuple[int, float | None]]:
    """Return steps and times, None where a log prints none: a NaN would make every copy a run of its own."""
    segments = [segment for attempt in run.attempts for segment in attempt.log.segments]
    rows = (row for one in segments for row in zip(one.steps.index.tolist(), one.steps.seconds.tolist(), strict=True))
    return [(index, None if math.isnan(seconds) else seconds) for index, seconds in rows]


def _steps(run: Run) -> int:
    return sum(len(segment.steps) for attempt in run.attempts for segment in attempt.log.segments)
