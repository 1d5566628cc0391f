"""Find the runs under the given paths.

Each run contains its training logs and the facts in its names and metadata.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.run_records import (
    AttemptFiles,
    Clock,
    Discovery,
    Hint,
    LoglessJob,
    RunFiles,
    StartCandidate,
    UnnamedFiles,
)
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.evidence import (
    TWINS,
    OwnedRun,
    add_reports,
    find_companion,
    find_exclusion,
)
from pytest_llmbench.runs.discover.folder_times import (
    read_filing_date,
    read_stamp,
    read_start,
)
from pytest_llmbench.runs.discover.folder_walk import RENAMED, Folder, Walk, WalkedFile
from pytest_llmbench.runs.discover.job_folders import (
    LONE_ERROR,
    NOT_READ,
    Assignment,
    FolderJobs,
    JobDraft,
    JobFolder,
    assign_metadata,
    find_empty_launches,
    find_job_folders,
    find_log_folders,
    group_files,
    list_nameless,
)
from pytest_llmbench.runs.discover.path_patterns import find_job_number
from pytest_llmbench.runs.layouts.folder_layouts import (
    Layout,
    find_launcher,
    find_layout,
    find_surroundings,
)
from pytest_llmbench.runs.layouts.metadata import NO_METADATA, Metadata, read_metadata

_UNPRINTABLE = re.compile(r"[^\w./+~=,@-]+")
_NUMBER = re.compile(r"\d+")
_LAYOUT_WORDS = ("experiments", "results", "workloads", "nemo_run")


def find_runs(paths: Sequence[Path], stores: Stores | None = None) -> Discovery:
    """Find the runs under the paths, each once, in the order of their folders.

    Never raises. Folders are searched recursively; each linked folder is searched once.
    A path to a file makes that file a log, whatever its name. A job that left only
    metadata is a run without attempts. Times are in UTC; times without a zone are taken
    as local time of this machine. With `stores`, archives are read as folders, and
    `stores` opens the files found in them. Metrics files are runs only if no log is
    found under the same given path.
    """
    return RunSearch(paths, stores).discovery


class RunSearch:
    """A search for runs under the given paths.

    `discovery` contains the runs whose logs are named like logs. `find_unnamed_runs`
    returns runs with other logs, which the caller identified by their content.
    """

    def __init__(self, paths: Sequence[Path], stores: Stores | None = None) -> None:
        self._walk = Walk(stores or Stores(), opens_archives=stores is not None).run(
            paths
        )
        self.discovery = _find_named_runs(self._walk)

    def find_unnamed_runs(self, accepted: Collection[Path]) -> tuple[RunFiles, ...]:
        """Return the runs whose logs are these files.

        Each log comes with the other output stream of its job.
        """
        by_folder: dict[str, set[str]] = defaultdict(set)
        for path in accepted:
            by_folder[str(path.parent)].add(path.name)
        taken = [run.id for run in (*self.discovery.runs, *self.discovery.metrics)]
        owned: list[OwnedRun] = []
        for folder in (
            folder for folder in self._walk.folders if folder.text in by_folder
        ):
            chosen = frozenset(by_folder[folder.text])
            job_folder = _make_unnamed_folder(folder, chosen, self._walk.stores)
            owned += [
                (run, job_folder.layout.inside)
                for run in _make_runs(job_folder, {}, self._walk)
            ]
        return _make_ids_unique(add_reports(owned, self._walk.reports, ()), taken)


def _make_unnamed_folder(
    folder: Folder, chosen: frozenset[str], stores: Stores
) -> JobFolder:
    """Return a folder that contains only the chosen files and their jobs' other
    streams."""
    streams = {names.name_paired_stream(name, "stderr") for name in chosen}
    selected = chosen | (
        streams & {*folder.unnamed, *(file.name for file in folder.files)}
    )
    reduced = replace(folder, files=[], unnamed=[], chosen=chosen, only_chosen=True)
    for name in sorted(selected):
        with suppress(OSError):  # gone since it was found
            status = stores.stat(os.path.join(folder.text, name))
            reduced.files.append(
                WalkedFile(name, status.st_mtime, (status.st_dev, status.st_ino))
            )
    return JobFolder(reduced, group_files(reduced), find_layout(reduced.parts))


def _list_unnamed_files(walk: Walk) -> Iterator[UnnamedFiles]:
    """Yield the files that may be logs despite their names.

    Only on this machine and in archives: elsewhere each file would have to be fetched.
    """
    ignored_names = defaultdict(list)
    for path, reason in walk.ignored:
        if reason == LONE_ERROR or (
            reason == NOT_READ
            and names.may_be_log(path.name)
            and not RENAMED.fullmatch(path.name)
        ):
            ignored_names[str(path.parent)].append(path.name)
    for folder in walk.folders:
        candidates = (*folder.unnamed, *ignored_names.get(folder.text, ()))
        if candidates and (
            os.path.isabs(folder.text)
            or walk.stores.find_archive(folder.path) is not None
        ):
            yield UnnamedFiles(folder.path, candidates, folder.given_path)
        elif candidates:  # remote: each file would have to be fetched
            walk.ignored += [
                (folder.path / name, NOT_READ)
                for name in folder.unnamed
                if names.has_log_word(name)
            ]


def _list_lone_errors(walk: Walk) -> Iterator[tuple[Path, float, str]]:
    """Yield standard error files without a log if their folder has similar logs.

    Names are similar if they differ only in numbers and in the suffix.
    """
    lone_errors = {path for path, reason in walk.ignored if reason == LONE_ERROR}
    parents = {path.parent for path in lone_errors}
    for folder in (
        folder for folder in walk.folders if parents and folder.path in parents
    ):
        plain_names = {
            file: names.strip_compression(file.name) for file in folder.files
        }
        logs = {
            _mask_numbers(name)
            for name in plain_names.values()
            if names.is_log_name(name.lower())
        }
        for file, name in plain_names.items():
            if folder.path / file.name in lone_errors and _mask_numbers(name) in logs:
                yield folder.path / file.name, file.modified, LONE_ERROR


def _mask_numbers(name: str) -> str:
    return _NUMBER.sub("#", names.strip_suffix(name))


def _find_named_runs(walk: Walk) -> Discovery:
    """Find all runs of a walk whose files are logs or metrics files by name.

    Also lists unnamed files, and those that were ignored, unreadable or hidden.
    """
    emptied = _drop_repeated_files(walk)
    job_folders = find_job_folders(walk.folders)
    job_folders = (*job_folders, *find_empty_launches(walk, job_folders, emptied))
    logged = find_log_folders(job_folders)
    twin_folders = frozenset(
        folder.text for folder in walk.folders if folder.text.endswith(tuple(TWINS))
    )
    owned: list[OwnedRun] = [
        (_mark_twin(run, job_folder, twin_folders), job_folder.layout.inside)
        for job_folder in job_folders
        for run in _make_runs(job_folder, logged, walk)
    ]
    folders_with_other_jobs = {
        job_folder.folder.path
        for job_folder in job_folders
        if job_folder.folder.only_chosen and len(job_folder.jobs.drafts) > 1
    }
    runs = _make_ids_unique(add_reports(owned, walk.reports, folders_with_other_jobs))
    metrics: list[OwnedRun] = [
        (_make_run(draft, job_folder, None, None, walk), job_folder.layout.inside)
        for job_folder in job_folders
        for draft in job_folder.metrics
        if not job_folder.folder.only_chosen
    ]
    metrics_runs = _make_ids_unique(
        add_reports(metrics, walk.reports, folders_with_other_jobs),
        [run.id for run in runs],
    )
    marker_problems = tuple(walk.trial_markers.list_problems())
    hidden_files = [*walk.hidden, *_list_lone_errors(walk)]
    dated = (
        (path, _convert_time(modified), description)
        for path, modified, description in hidden_files
    )
    hidden = tuple(
        (path, modified, description)
        for path, modified, description in dated
        if modified is not None
    )
    unnamed = tuple(_list_unnamed_files(walk))
    return Discovery(
        runs,
        unnamed,
        metrics_runs,
        tuple(walk.ignored),
        tuple(walk.unreadable),
        hidden,
        marker_problems,
    )


def _mark_twin(
    run: RunFiles, job_folder: JobFolder, folders: Collection[str]
) -> RunFiles:
    """Mark a run whose folder is the companion of another run's, with the reason."""
    reason, explanation = find_companion(
        job_folder.folder.parts, len(job_folder.layout.inside), folders
    )
    return (
        replace(run, companion_of=reason, companion_because=explanation)
        if reason
        else run
    )


def _drop_repeated_files(walk: Walk) -> list[Folder]:
    """Keep each file once: a link or hard link to it is not a second run.

    Returns the folders that lost a file.
    """
    locations = [(file, folder) for folder in walk.folders for file in folder.files]
    if len({file.identity for file, _ in locations}) == len(locations):
        return []
    emptied = []
    repeated: set[int] = set()
    locations.sort(
        key=lambda location: (
            location[0].link,
            -len(location[1].parts),
            location[1].parts,
            location[0].name,
        )
    )
    first: dict[tuple[int, int], tuple[WalkedFile, Folder]] = {}
    for file, folder in locations:
        original, original_folder = first.setdefault(file.identity, (file, folder))
        if original is not file:
            repeated.add(id(file))
            emptied.append(folder)
            walk.ignored.append(
                (
                    folder.path / file.name,
                    f"another name of {original_folder.path / original.name}",
                )
            )
            if file.name in folder.chosen:
                original_folder.chosen |= {original.name}
    for folder in {id(folder): folder for folder in emptied}.values():
        folder.files = [file for file in folder.files if id(file) not in repeated]
    return emptied


def _make_runs(
    job_folder: JobFolder, logged: Mapping[str, Sequence[Path]], walk: Walk
) -> Iterator[RunFiles]:
    """Yield the runs of one folder; record its other files in the walk.

    A draft is a job of the folder: with logs, or (`logless_job`) only with files that a
    job without a log left. Metadata without any other file of the job also make a run.
    If only some files were chosen, the others are ignored.
    """
    folder, jobs = job_folder.folder, job_folder.jobs
    assigned = assign_metadata(jobs)
    if folder.only_chosen:
        for draft in jobs.drafts:
            draft.attempts = {
                n: attempt
                for n, attempt in draft.attempts.items()
                if attempt.log.name in folder.chosen
            }
    else:
        walk.ignored += jobs.ignored
    _record_undecided_metadata(assigned, jobs, walk)
    for position, draft in enumerate(jobs.drafts):
        if draft.attempts:
            path = assigned.of_draft.get(position)
            record = _read_record(path, walk)
            yield _make_run(draft, job_folder, record, path if record else None, walk)
        elif draft.logless_job and not folder.only_chosen:
            yield from _make_logless_job(
                draft, job_folder, assigned.of_draft.get(position), logged, walk
            )
    if not folder.only_chosen:
        for job, path in assigned.without_log.items():
            yield from _make_metadata_run(job, path, job_folder, logged, walk)


def _make_logless_job(
    draft: JobDraft,
    job_folder: JobFolder,
    metadata: Path | None,
    logged: Mapping[str, Sequence[Path]],
    walk: Walk,
) -> Iterator[RunFiles]:
    """Yield the run of a job that left only standard error or a launch folder.

    Yields nothing if its recipe or size is unknown, or if its log is elsewhere.
    """
    log_folder = next(iter(logged.get(draft.job, ())), None) if draft.job else None
    if log_folder:
        walk.ignored.append(
            (
                draft.logless_path or job_folder.folder.path,
                f"the log of job {draft.job} is in {log_folder}",
            )
        )
        return
    record = _read_record(metadata, walk)
    run = _make_run(draft, job_folder, record, metadata if record else None, walk)
    if {"recipe", "size"} <= {hint.field for hint in run.hints}:
        yield run
    elif draft.logless_job is LoglessJob.STANDARD_ERROR:
        walk.ignored.append((draft.logless_path or job_folder.folder.path, LONE_ERROR))


def _make_metadata_run(
    job: str,
    path: Path,
    job_folder: JobFolder,
    logged: Mapping[str, Sequence[Path]],
    walk: Walk,
) -> Iterator[RunFiles]:
    """Yield the run of a job that left only metadata.

    Without this run, an older run would be judged in place of a newest job that died.
    """
    log_folder = next(
        (
            log_folder
            for log_folder in logged.get(job, ())
            if log_folder in path.parents or path.parent in log_folder.parents
        ),
        None,
    )
    if log_folder:
        walk.ignored.append(
            (path, f"the log of job {job} is elsewhere, in {log_folder}")
        )
        return
    modified = job_folder.folder.get_file(path.name).modified
    draft = JobDraft(
        job,
        "llmb-config",
        modified=modified,
        logless_job=LoglessJob.METADATA,
        logless_path=path,
    )
    yield _make_run(draft, job_folder, _read_record(path, walk), path, walk)


def _record_undecided_metadata(
    assigned: Assignment, jobs: FolderJobs, walk: Walk
) -> None:
    """Record metadata that may belong to one of several logs as unreadable.

    Ignoring it would hide a contradiction with a wrong log.
    """
    logs = [
        attempt.log.name
        for draft in list_nameless(jobs.drafts)
        for attempt in draft.attempts.values()
    ]
    for job, path in assigned.undecided.items():
        if logs:
            explanation = f"no job id in the name of {join_first(logs)}"
            walk.unreadable.append(
                (
                    path,
                    f"unclear which log, if any, belongs to job {job}: {explanation}",
                )
            )


def _read_record(path: Path | None, walk: Walk) -> Metadata | None:
    """Read a metadata file; record unusable values in the walk as unreadable."""
    if path is None:
        return None
    try:
        record = read_metadata(path, walk.stores.read_small)
    except LogError as error:
        walk.unreadable.append((path, str(error)))
        return None
    walk.unreadable += [
        (path, f"{problem}; the other values are used") for problem in record.problems
    ]
    return record


def _list_log_locations(
    attempts: Sequence[AttemptFiles], folder: Folder, walk: Walk
) -> list[Path]:
    """Return the paths of logs, then the real paths of linked logs.

    A log is linked if it is a link, or if its given path leads through a link.
    """
    logs = [files.log for files in attempts]
    behind_link = folder.given_path in walk.linked
    linked = (log for log in logs if behind_link or folder.get_file(log.name).link)
    return [*logs, *(Path(os.path.realpath(log)) for log in linked)]


def _make_run(
    draft: JobDraft,
    job_folder: JobFolder,
    record: Metadata | None,
    metadata: Path | None,
    walk: Walk,
) -> RunFiles:
    """Build the run of one job from its files, folders and metadata."""
    folder, layout = job_folder.folder, job_folder.layout
    attempts = tuple(attempt for _, attempt in sorted(draft.attempts.items()))
    described_by_folders = draft.described_by_folders and (
        draft.launched or _is_run_folder(folder.name, layout)
    )
    inside = layout.inside if described_by_folders else ()
    metadata_or_empty = record or NO_METADATA
    job = draft.job or metadata_or_empty.job
    logs = [names.strip_compression(files.log.name) for files in attempts]
    run_names = (*map(names.strip_suffix, logs), *reversed(inside))
    excluded, explanation = find_exclusion(record, run_names)
    # other exclusions take precedence: they hold within an A/B, too
    trial_marker = (
        walk.trial_markers.find(
            _list_log_locations(attempts, folder, walk), job, draft.modified
        )
        if excluded is None
        else None
    )
    if trial_marker is not None:
        excluded, explanation = Reason.VARIANT, trial_marker.because
    hints = _collect_hints(
        draft, folder, layout if described_by_folders else None, record
    )
    start_candidates = tuple(_list_start_candidates(record, layout, folder))
    by_clock = {candidate.clock: candidate for candidate in start_candidates}
    start = by_clock.get(Clock.METADATA) or by_clock.get(Clock.FOLDER_NAME)
    filing_date = None if start else by_clock.get(Clock.FOLDER_ABOVE)
    return RunFiles(
        id=_make_id(draft, folder, layout, job),
        folder=folder.path,
        attempts=attempts,
        hints=hints,
        job_id=job,
        number="" if job or not attempts else find_job_number(attempts[-1].log.parts),
        layout=layout.name if described_by_folders else "",
        metadata=metadata,
        started=start.timestamp if start else None,
        started_from=start.source if start else "",
        dated=filing_date.timestamp if filing_date else None,
        dated_from=filing_date.source if filing_date else "",
        start_candidates=start_candidates,
        logless_job=draft.logless_job,
        logless_path=draft.logless_path,
        modified=_convert_time(draft.modified),
        excluded=excluded,
        excluded_because=explanation,
        trial_pending_since=_convert_time(trial_marker.pending_since)
        if trial_marker and trial_marker.pending_since
        else None,
        build=_describe_build(record, hints),
        launcher=find_launcher(metadata_or_empty.launcher, logs, folder.name, layout),
        saves=metadata_or_empty.saves,
        environment=metadata_or_empty.environment,
        given_path=folder.given_path,
    )


def _list_start_candidates(
    record: Metadata | None, layout: Layout, folder: Folder
) -> Iterator[StartCandidate]:
    """Yield all start times in names and metadata with their sources, most certain
    first."""
    if record and record.started:
        yield StartCandidate(
            Clock.METADATA,
            record.started,
            "the launch time in the metadata",
            record.zoned,
        )
    yield from filter(
        None, (read_start(layout.experiment), read_filing_date(folder.relative_names))
    )


def _convert_time(modified: float) -> datetime | None:
    """Convert a file time; None if it is 0 (omitted in archives) or out of range."""
    try:
        return datetime.fromtimestamp(modified, UTC) if modified else None
    except (ValueError, OverflowError, OSError):
        return None


def _describe_build(record: Metadata | None, hints: Sequence[Hint]) -> tuple[str, ...]:
    """Return the container, versions and release of a run, sorted.

    Contains all values of sources that differ.
    """
    releases = {
        f"release={hint.value.removeprefix('v')}"
        for hint in hints
        if hint.field == "release"
    }
    return tuple(sorted(releases.union(record.build if record else ())))


def _is_run_folder(name: str, layout: Layout) -> bool:
    """True if the folder belongs to a single run, by its name.

    Every log in such a folder is a log of that run.
    """
    is_results_folder = (
        layout.name == "results"
        and layout.inside[-1].isdecimal()
        and len(layout.inside) <= 4
    )
    return (
        is_results_folder
        or names.read_experiment(name, typed=False) is not None
        or read_stamp(name) is not None
    )


def _collect_hints(
    draft: JobDraft, folder: Folder, layout: Layout | None, record: Metadata | None
) -> tuple[Hint, ...]:
    """Return the distinct hints from folders, file name and metadata.

    The surroundings (folders above the run) add only fields that no other source
    states.
    """
    source = (
        f"file {draft.attempts[min(draft.attempts)].log.name}" if draft.attempts else ""
    )
    hints = list(layout.hints) if layout else []
    layout_hints = {(hint.field, hint.value): hint for hint in reversed(hints)}
    hints += [layout_hints.get(pair) or Hint(*pair, source) for pair in draft.pairs]
    hints += record.hints if record else ()
    fields = {hint.field for hint in hints}
    hints += [
        hint for hint in find_surroundings(folder.parts) if hint.field not in fields
    ]
    return tuple(
        {(hint.field, hint.value.casefold()): hint for hint in reversed(hints)}.values()
    )[::-1]


def _make_id(draft: JobDraft, folder: Folder, layout: Layout, job: str) -> str:
    """Make an id without machine paths: the distinguishing folders and the job.

    The given folder's name is used only if the run has no folder below it, because that
    name may change daily.
    """
    folder_names = folder.relative_names
    parts = _drop_layout_words(folder_names[1:]) or _drop_layout_words(folder_names)
    stem = names.strip_suffix(draft.base).removeprefix("log-")
    last = f"{stem}_{job}" if layout.name == "results" and job else job or stem
    return _make_printable("/".join([*parts, last]))


@lru_cache(1024)
def _drop_layout_words(folder_names: tuple[str, ...]) -> tuple[str, ...]:
    """Drop layout words, the workload's folder, and all but the first experiment
    folder."""
    experiment = next(
        (name for name in folder_names if names.read_experiment(name, typed=False)), ""
    )
    parents = folder_names[: folder_names.index(experiment)] if experiment else ()
    return tuple(
        name
        for index, name in enumerate(folder_names)
        if name
        and name.lower() not in _LAYOUT_WORDS
        and not (index < len(parents) and names.read_workload(name))
        and not (index > len(parents) and experiment and name.startswith(experiment))
    )


def _make_printable(text: str) -> str:
    return _UNPRINTABLE.sub("_", text)


def _make_ids_unique(
    runs: Sequence[RunFiles], taken: Sequence[str] = ()
) -> tuple[RunFiles, ...]:
    """Append log names, then numbers, to ids that several runs share.

    Runs are processed in the order of their paths. `taken` contains the ids of other
    runs, which do not change.
    """
    ordered = sorted(
        runs,
        key=lambda run: (
            run.folder.parts,
            len(run.job_id),
            run.job_id,
            _find_file(run).name,
        ),
    )
    with_log_names = _extend_ids(
        ordered, taken, lambda _, run: _make_printable(_find_file(run).stem)
    )
    return tuple(_extend_ids(with_log_names, taken, lambda number, _: f"~{number}"))


def _find_file(run: RunFiles) -> Path:
    """Return the first log of a run, else its metadata or folder."""
    return run.attempts[0].log if run.attempts else run.metadata or run.folder


def _extend_ids(
    runs: Sequence[RunFiles],
    taken: Sequence[str],
    addition: Callable[[int, RunFiles], str],
) -> list[RunFiles]:
    """Append `addition(number, run)` to each id that several runs share."""
    counts = Counter((*taken, *(run.id for run in runs)))
    numbered = enumerate(runs, start=1)
    return [
        replace(run, id=f"{run.id}/{addition(n, run)}") if counts[run.id] > 1 else run
        for n, run in numbered
    ]
