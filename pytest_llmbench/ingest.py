"""From paths to runs: find them, read their logs, and say which configuration each one is."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pytest_llmbench.catalogue import Catalogue
from pytest_llmbench.errors import LogError
from pytest_llmbench.models import (
    Attempt,
    AttemptFiles,
    Baseline,
    Ending,
    FoundRun,
    ParsedLog,
    Reason,
    Run,
    Stray,
)
from pytest_llmbench.settings import Settings

UNREADABLE = "unreadable"
"""The code of the ending of a log that could not be opened."""

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


def ingest(settings: Settings, catalogue: Catalogue, now: datetime) -> Ingested:
    """Find, read and identify everything under the given paths; copies of one run count once."""
    from pytest_llmbench.discover.find import find_runs

    discovery = find_runs(settings.logs)
    ignored = [f"{path.name}: {why}" for path, why in discovery.ignored]
    runs = []
    for found in discovery.runs:
        attempts = tuple(Attempt(files, _parsed(files)) for files in found.attempts)
        if _is_run(found, attempts):
            runs.append(_identified(found, attempts, settings, catalogue, now))
        else:
            ignored.append(f"{found.id}: no training step in it, and not the name of a launched job")
    kept, copies = _without_copies(sorted(runs, key=lambda run: _recency(run, now), reverse=True))
    ignored += [f"{copy.id}: a copy of {original.id}" for copy, original in copies]
    unreadable = (Stray(f"unreadable-{path.name}", Reason.UNREADABLE, why, path) for path, why in discovery.unreadable)
    return Ingested(tuple(kept), tuple(unreadable), tuple(ignored))


def _parsed(files: AttemptFiles) -> ParsedLog:
    from pytest_llmbench.parse.read import read_ending, read_log

    try:
        log = read_log(files.log)
        ending = read_ending(files.err) if files.err and log.ending is None else None
    except LogError as error:
        return ParsedLog(dialect=None, segments=(), ending=Ending(UNREADABLE, str(error), 0))
    if ending is None or files.err is None:
        return log
    told = dataclasses.replace(ending, text=f"{ending.text} ({files.err.name}:{ending.line})", line=0)
    return dataclasses.replace(log, ending=told)


def _is_run(found: FoundRun, attempts: Sequence[Attempt]) -> bool:
    """Whether files are a training run: they hold steps, could not be read, or are what a launched job leaves."""
    logs = [attempt.log for attempt in attempts]
    if any(log.segments or (log.ending and log.ending.code == UNREADABLE) for log in logs):
        return True
    named = {"recipe", "size"} <= {clue.field for clue in found.clues}
    launched = found.job_id or found.metadata or any(LAUNCHED.match(files.log.name) for files in found.attempts)
    return named and bool(launched)


def _identified(
    found: FoundRun, attempts: tuple[Attempt, ...], settings: Settings, catalogue: Catalogue, now: datetime
) -> Run:
    from pytest_llmbench.discover.identify import identify
    from pytest_llmbench.measure.derive import tflops_per_gpu

    def expected_tflops(baseline: Baseline, step_seconds: float) -> float:
        return tflops_per_gpu(baseline.configuration, step_seconds) * (baseline.logged_tflops_factor or 1.0)

    logs = [attempt.log for attempt in attempts]
    identity = identify(
        found,
        logs,
        catalogue.recipes,
        release=settings.release,
        gpu=settings.gpu,
        baseline_release=settings.baseline_release,
        expected_tflops=expected_tflops,
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
        (found.modified, "the time of the file"),
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


def _without_copies(runs: Iterable[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return runs with one of each group of copies, and the copies with the one that was kept.

    Copies are runs of one configuration and job with equal logs (the earliest start is believed), or with an equal
    start (the one with most steps is kept, in case a copy was taken while the job ran).
    """
    groups: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_identical(run)].append(run)
    by_job: dict[object, list[Run]] = defaultdict(list)
    copies: list[tuple[Run, Run]] = []
    for group in groups.values():
        kept = group[-1]
        copies += [(copy, kept) for copy in group[:-1]]
        by_job[_same_job(kept)].append(kept)
    result = []
    for group in by_job.values():
        kept = max(group, key=_steps)
        copies += [(copy, kept) for copy in group if copy is not kept]
        result.append(kept)
    order = {id(run): position for position, run in enumerate(runs)}
    return sorted(result, key=lambda run: order[id(run)]), copies


def _identical(run: Run) -> object:
    hashes = tuple(attempt.log.sha256 for attempt in run.attempts)
    return (run.identity.key, run.found.job_id, hashes) if _steps(run) else run.id


def _same_job(run: Run) -> object:
    job = run.found.job_id
    return (run.identity.key, job, run.started) if job and run.started and run.identity.key else run.id


def _steps(run: Run) -> int:
    return sum(len(segment.steps) for attempt in run.attempts for segment in attempt.log.segments)
