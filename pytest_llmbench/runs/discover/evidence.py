"""Positive evidence that a run is not comparable: profiled, traced, or made to load a
checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.run_records import RunFiles
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.folder_times import read_stamp
from pytest_llmbench.runs.layouts.metadata import Metadata

_REPORT_JOB = re.compile(r"_\d+g_(\d+)_\d+_\d+\.nsys-rep$", re.IGNORECASE)
_NUMBER = re.compile(r"(?<!\d)\d+(?!\d)")

# A number of so many digits in the name of a report is the id of a job of that number;
# a shorter one may be a size or a rank, and only the documents' form of a name says
# which number is the job's.
CERTAIN_DIGITS = 5

# A report without a job id that was written this long before a log's last line is of an
# earlier run: once it stands there, it must not silence every later run.
SAME_LAUNCH = timedelta(days=1)

# What the names of the folders end in that NeMo-Run launches beside others, and what
# becomes of their runs.
TWINS = {"_nsys": Reason.PROFILED, "_nccltrace": Reason.TRACED}

OwnedRun = tuple[RunFiles, Sequence[str]]
"""A run, and the names of the folders that are its own, outermost first."""


def find_exclusion(
    record: Metadata | None, own_names: Sequence[str]
) -> tuple[Reason | None, str]:
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


def find_twin(
    parts: Sequence[str], own: int, folders: Collection[str]
) -> tuple[Reason | None, str]:
    """Return why a run may be the short twin of one that is not comparable: NeMo-Run
    launches `E` beside `E_nsys`.

    `parts` are the names of its path, of which the last `own` are its own folders;
    `folders` are the paths of all of such a name that were met. Such a twin makes as
    few steps as the profiled run does; what it measures nobody asked for. Both stand in
    the folder of one launch, which bears its time.
    """
    for count in range(len(parts), len(parts) - own, -1) if folders else ():
        if count < 2 or read_stamp(parts[count - 2]) is None:
            continue
        for ending, reason in TWINS.items():
            if str(Path(*parts[:count])) + ending in folders:
                return (
                    reason,
                    f"launched together with {parts[count - 1]}{ending}, and as short",
                )
    return None, ""


def add_reports(
    runs: Sequence[OwnedRun],
    reports: Mapping[str, float],
    crowded: Collection[Path] = (),
) -> list[RunFiles]:
    """Return the runs with what the profiler's reports say: their paths, and when each
    was written (epoch seconds).

    A report marks the runs whose job id stands in its name, in the nearest folder of
    such a run above it. One without an id (`profile_<process>`) marks the only run of
    its folder; where it has several, it is named in a remark of each, unless one of
    them is known to be profiled and explains it. `crowded` are folders with logs that
    nobody asked for.
    """
    results = [run for run, _ in runs]
    if not reports:
        return results
    owners: dict[Path, list[int]] = defaultdict(list)
    of_job: dict[tuple[Path, str], list[int]] = defaultdict(list)
    for place, (run, inside) in enumerate(runs):
        for folder in (run.folder, *run.folder.parents)[: max(len(inside), 1)]:
            owners[folder].append(place)
            of_job[folder, run.job_id].append(place)
    nameless: dict[Path, list[Path]] = defaultdict(list)
    for path in map(Path, reports):
        above = [folder for folder in path.parents if folder in owners]
        marked = next(
            (
                of_job[pair]
                for folder in above
                for pair in _list_jobs(path.name, folder)
                if pair in of_job
            ),
            [],
        )
        for place in marked:
            results[place] = _mark_profiled(results[place], path)
        if above and not marked:
            nameless[above[0]].append(path)
    for (
        folder,
        paths,
    ) in nameless.items():  # behind all that bear a job id: those may explain them
        of_folder = {place: results[place] for place in owners[folder]}
        if not any(run.excluded is Reason.PROFILED for run in of_folder.values()):
            alone = len(of_folder) == 1 and folder not in crowded
            for place, run in of_folder.items():
                results[place] = _add_remark(run, paths, reports, alone=alone)
    return results


def _list_jobs(name: str, folder: Path) -> list[tuple[Path, str]]:
    """Return the job ids that may stand in the name of a report, each with a folder in
    which their runs may be."""
    documented = _REPORT_JOB.search(name)
    numbers = [documented[1]] if documented else _NUMBER.findall(name)
    return [
        (folder, number)
        for number in numbers
        if documented or len(number) >= CERTAIN_DIGITS
    ]


def _add_remark(
    run: RunFiles, paths: Sequence[Path], reports: Mapping[str, float], *, alone: bool
) -> RunFiles:
    """Return a run with what reports say of it that bear the id of no job of its
    folder."""
    own = [
        path for path in paths if not (run.job_id and _REPORT_JOB.search(path.name))
    ]  # others are of another job
    certain = [
        path for path in own if alone and _is_of_its_time(reports[str(path)], run)
    ]
    if certain:
        return _mark_profiled(run, certain[0])
    return replace(run, loose_reports=tuple(path.name for path in own)) if own else run


def _is_of_its_time(written: float, run: RunFiles) -> bool:
    if not written or run.modified is None:
        return True
    return run.modified - datetime.fromtimestamp(written, UTC) <= SAME_LAUNCH


def _mark_profiled(run: RunFiles, report: Path) -> RunFiles:
    """Return a run that a report marks; what is known of it already stays."""
    if run.excluded is not None:
        return run
    where = (
        report.relative_to(run.folder)
        if report.is_relative_to(run.folder)
        else report.name
    )
    beside = "stands beside it" if report.parent == run.folder else "is of it"
    return replace(
        run,
        excluded=Reason.PROFILED,
        excluded_because=f"the profiler's report {where} {beside}",
    )
