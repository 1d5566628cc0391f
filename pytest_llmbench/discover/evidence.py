"""Positive evidence that a run is not comparable: profiled, traced, or made to load a checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pytest_llmbench.discover import names
from pytest_llmbench.discover.metadata import Metadata
from pytest_llmbench.discover.stamps import stamp
from pytest_llmbench.models import FoundRun, Reason

_REPORT_JOB = re.compile(r"_\d+g_(\d+)_\d+_\d+\.nsys-rep$", re.IGNORECASE)
_NUMBER = re.compile(r"(?<!\d)\d+(?!\d)")

CERTAIN_DIGITS = 5
"""A number of so many digits in the name of a report is the id of a job of that number; a shorter one may be a size or
a rank, and only the documents' form of a name says which number is the job's."""

SAME_LAUNCH = timedelta(days=1)
"""A report without a job id that was written this long before a log's last line is of an earlier run: once it stands
there, it must not silence every later night."""

OwnedRun = tuple[FoundRun, Sequence[str]]
"""A run, and the names of the folders that are its own, outermost first."""


def exclusion(record: Metadata | None, own_names: Sequence[str]) -> tuple[Reason | None, str]:
    """Return why a run is not comparable and what says so, or None and an empty string.

    `own_names` are the names of the run's folders and log.
    """
    if record and record.excluded:
        return record.excluded, record.excluded_because
    for name in own_names:
        if names.is_profiled(name):
            return Reason.PROFILED, f"the name {name} ends in _nsys"
        if names.is_traced(name):
            return Reason.TRACED, f"the name {name} says nccltrace"
    return None, ""


def twin(parts: Sequence[str], own: int, folders: Collection[str]) -> tuple[Reason | None, str]:
    """Return why a run may be the short twin of one that is not comparable: NeMo-Run launches `E` beside `E_nsys`.

    `parts` are the names of its path, of which the last `own` are its own folders; `folders` are the paths of all that
    were met. Such a twin makes as few steps as the profiled run does; what it measures nobody asked for. Both stand in
    the folder of one launch, which bears its time.
    """
    for count in range(len(parts), len(parts) - own, -1):
        if count < 2 or stamp(parts[count - 2]) is None:
            continue
        for ending, reason in (("_nsys", Reason.PROFILED), ("_nccltrace", Reason.TRACED)):
            if str(Path(*parts[:count])) + ending in folders:
                return reason, f"launched together with {parts[count - 1]}{ending}, and as short"
    return None, ""


def with_reports(runs: Sequence[OwnedRun], reports: Mapping[str, float]) -> list[FoundRun]:
    """Return the runs with what the profiler's reports say: their paths, and when each was written (epoch seconds).

    A report marks the run whose job id stands in its name, in the nearest folder of such a run above it. One without an
    id (`profile_<process>`) marks the only run of its folder; where it has several, it is named in a remark of each,
    unless one of them is known to be profiled and explains it.
    """
    owners: dict[Path, list[int]] = defaultdict(list)
    for place, (run, inside) in enumerate(runs):
        for folder in (run.folder, *run.folder.parents)[: max(len(inside), 1)]:
            owners[folder].append(place)
    found = [run for run, _ in runs]
    nameless: list[tuple[Path, list[int]]] = []
    for path in map(Path, reports):
        above = [owners[folder] for folder in path.parents if folder in owners]
        owner = _of_job(path.name, above, found)
        if owner is not None:
            found[owner] = _profiled(found[owner], path)
        elif above:
            nameless.append((path, above[0]))
    for path, places in nameless:  # behind all that bear a job id: those may explain them
        for place, run in _nameless(path, reports[str(path)], {place: found[place] for place in places}):
            found[place] = run
    return found


def _of_job(name: str, above: Iterable[Sequence[int]], runs: Sequence[FoundRun]) -> int | None:
    """Return the place of the run whose job id stands in the name of a report, in the nearest folder that has one."""
    documented = _REPORT_JOB.search(name)
    numbers = _NUMBER.findall(name)
    jobs = {documented[1]} if documented else {number for number in numbers if len(number) >= CERTAIN_DIGITS}
    return next((place for places in above for place in places if runs[place].job_id in jobs), None)


def _nameless(path: Path, written: float, runs: Mapping[int, FoundRun]) -> Iterable[tuple[int, FoundRun]]:
    """Yield the runs of a folder that a report changes which bears the id of none of them."""
    if any(run.excluded is Reason.PROFILED for run in runs.values()):
        return
    bears_another = _REPORT_JOB.search(path.name) is not None
    for place, run in runs.items():
        if bears_another and run.job_id:
            continue
        if len(runs) == 1 and _is_of_its_time(written, run):
            yield place, _profiled(run, path)
        else:
            yield place, replace(run, loose_reports=(*run.loose_reports, path.name))


def _is_of_its_time(written: float, run: FoundRun) -> bool:
    if not written or run.modified is None:
        return True
    return run.modified - datetime.fromtimestamp(written, UTC) <= SAME_LAUNCH


def _profiled(run: FoundRun, report: Path) -> FoundRun:
    """Return a run that a report marks; what is known of it already stays."""
    if run.excluded is not None:
        return run
    where = report.relative_to(run.folder) if report.is_relative_to(run.folder) else report.name
    beside = "stands beside it" if report.parent == run.folder else "is of it"
    return replace(run, excluded=Reason.PROFILED, excluded_because=f"the profiler's report {where} {beside}")
