"""Evidence that a run is not comparable: profiled, traced, or only loading a
checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import RunFiles
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.folder_times import read_stamp
from pytest_llmbench.runs.layouts.metadata import Metadata

# `profile_8g_1234_0_3.nsys-rep`: the documented form, with the job id 1234.
_REPORT_JOB = compile_on_use(r"_\d+g_(\d+)_\d+_\d+\.nsys-rep$", re.IGNORECASE)
_NUMBER = compile_on_use(r"(?<!\d)\d+(?!\d)")

# A number of at least this many digits in a report's name can be matched with job ids.
# A shorter number may be a size or a rank, unless the name has the documented form.
CERTAIN_DIGITS = 5

# A report without a job id that is older than this belongs to an earlier run: it must
# not exclude every later run.
SAME_LAUNCH = timedelta(days=1)

# Suffixes of experiment folders that NeMo-Run launches next to the plain experiment,
# and the reason to exclude the latter.
TWINS = {"_nsys": Reason.PROFILED, "_nccltrace": Reason.TRACED}

OwnedRun = tuple[RunFiles, int]
"""A run, and how many innermost folders of its path belong to the run."""


def find_exclusion(
    record: Metadata | None, own_names: Sequence[str]
) -> tuple[Reason | None, str]:
    """Return the reason a run is not comparable, with its evidence, or (None, "").

    `own_names` are the names of the run's folders and log.
    """
    if record and record.excluded:
        return record.excluded, record.excluded_because
    for name in own_names:
        if names.is_profiled(name):
            return Reason.PROFILED, f"the name {name} ends in _nsys"
        if names.is_traced(name):
            return Reason.TRACED, f"the name {name} contains nccltrace"
    return None, ""


def find_companion(
    parts: Sequence[str], own_count: int, twin_folders: Collection[str]
) -> tuple[Reason | None, str]:
    """Return the reason a run may be the short companion of an excluded run, with its
    evidence.

    NeMo-Run launches `E` next to `E_nsys` in a timestamped folder; both make equally
    few steps. `parts` are the components of the run's path; the last `own_count` of
    them are the run's folders. `twin_folders` are all found paths with such a suffix.
    """
    if not twin_folders:
        return None, ""
    # the run's folders, innermost first: `parts[:depth]`
    for depth in range(len(parts), len(parts) - own_count, -1):
        if depth < 2:
            continue
        parent_name, name = parts[depth - 2 : depth]
        if read_stamp(parent_name) is None:
            continue
        for suffix, reason in TWINS.items():
            if f"{Path(*parts[:depth])}{suffix}" in twin_folders:
                return reason, f"launched together with {name}{suffix}, and as short"
    return None, ""


def add_reports(
    runs: Sequence[OwnedRun],
    reports: Mapping[str, float],
    crowded: Collection[Path] = (),
) -> list[RunFiles]:
    """Exclude or annotate the runs that profiler reports belong to.

    `reports` maps paths to modification times (epoch seconds). `crowded` are folders
    that contain further logs outside the search.

    A report whose name contains a job id excludes the runs of that job, in the nearest
    folder above the report that contains any. A report without a job id
    (`profile_<process>`) excludes the only run of its folder if the report may come
    from the run's launch. Otherwise the report is recorded as a possible report of each
    run in the folder, unless a run in it is already known to be profiled.
    """
    results = [run for run, _ in runs]
    if not reports:
        return results
    # indices of the runs in each folder, and in each folder by job id
    indices_by_folder: dict[Path, list[int]] = defaultdict(list)
    indices_by_job: dict[tuple[Path, str], list[int]] = defaultdict(list)
    for index, (run, folder_count) in enumerate(runs):
        depth = max(folder_count, 1)
        for folder in (run.folder, *run.folder.parents)[:depth]:
            indices_by_folder[folder].append(index)
            indices_by_job[folder, run.job_id].append(index)
    reports_without_job: dict[Path, list[Path]] = defaultdict(list)  # by folder
    for report in map(Path, reports):
        run_folders = [
            folder for folder in report.parents if folder in indices_by_folder
        ]
        candidates = (
            (folder, job) for folder in run_folders for job in _list_jobs(report.name)
        )
        profiled: list[int] = next(
            (indices_by_job[pair] for pair in candidates if pair in indices_by_job), []
        )
        for index in profiled:
            results[index] = _mark_profiled(results[index], report)
        if run_folders and not profiled:
            reports_without_job[run_folders[0]].append(report)
    # after the reports with a job id, which may explain those without one
    for folder, folder_reports in reports_without_job.items():
        folder_runs = {index: results[index] for index in indices_by_folder[folder]}
        if any(run.excluded is Reason.PROFILED for run in folder_runs.values()):
            continue
        is_only_run = len(folder_runs) == 1 and folder not in crowded
        for index, run in folder_runs.items():
            results[index] = _attach_reports(
                run, folder_reports, reports, is_only_run=is_only_run
            )
    return results


def _list_jobs(name: str) -> list[str]:
    """Return the numbers in a report's name that may be job ids."""
    documented = _REPORT_JOB.search(name)
    if documented:
        return [documented[1]]
    return [number for number in _NUMBER.findall(name) if len(number) >= CERTAIN_DIGITS]


def _attach_reports(
    run: RunFiles,
    folder_reports: Sequence[Path],
    modified_by_report: Mapping[str, float],
    *,
    is_only_run: bool,
) -> RunFiles:
    """Attach profiler reports whose names carry no known job id.

    Excludes the run if it is the only run and a report may come from its launch, by the
    modification times. Otherwise, records the reports as possible reports of the run.
    """
    # if the run has a job id, a report with an unknown job id is not the run's
    possible_reports = [
        report
        for report in folder_reports
        if not (run.job_id and _REPORT_JOB.search(report.name))
    ]
    if not possible_reports:
        return run
    if is_only_run:
        for report in possible_reports:
            if _is_from_same_launch(modified_by_report[str(report)], run):
                return _mark_profiled(run, report)
    return replace(run, loose_reports=tuple(report.name for report in possible_reports))


def _is_from_same_launch(written: float, run: RunFiles) -> bool:
    """True if a report written at that time (epoch seconds) may be the run's.

    Unknown times (0 or None) count as the same launch.
    """
    if not written or run.modified is None:
        return True
    return run.modified - datetime.fromtimestamp(written, UTC) <= SAME_LAUNCH


def _mark_profiled(run: RunFiles, report: Path) -> RunFiles:
    """Exclude a run because of a profiler report, unless it is excluded already."""
    if run.excluded is not None:
        return run
    shown_path = report.name
    if report.is_relative_to(run.folder):
        shown_path = str(report.relative_to(run.folder))
    relation = "is next to it" if report.parent == run.folder else "belongs to it"
    return replace(
        run,
        excluded=Reason.PROFILED,
        excluded_because=f"the profiler report {shown_path} {relation}",
    )
