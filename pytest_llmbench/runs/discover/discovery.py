"""Find the runs under the given paths.

Each run contains its training logs and the facts in its names and metadata.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import (
    AttemptFiles,
    Clock,
    Discovery,
    Hint,
    LoglessJob,
    RunFiles,
    StartCandidate,
    UnnamedFiles,
    share_facts,
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
from pytest_llmbench.runs.discover.folder_walk import (
    RENAMED,
    FileId,
    Folder,
    Walk,
    WalkedFile,
    identify_file,
)
from pytest_llmbench.runs.discover.job_folders import (
    LONE_ERROR,
    NOT_READ,
    Assignment,
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

_UNPRINTABLE = compile_on_use(r"[^\w./+~=,@-]+")
_NUMBER = compile_on_use(r"\d+")
_LAYOUT_WORDS = ("experiments", "results", "workloads", "nemo_run")


def find_runs(
    paths: Sequence[Path],
    stores: Stores | None = None,
    on_log: Callable[[str, int], None] | None = None,
) -> Discovery:
    """Find the runs under the paths, each once, in the order of their folders.

    Never raises. Folders are searched recursively; each linked folder is searched once.
    A path to a file makes that file a log, whatever its name. A job that left only
    metadata is a run without attempts. Times are in UTC; times without a zone are taken
    as local time of this machine. With `stores`, archives are read as folders, and
    `stores` opens the files found in them. Metrics files are runs only if no log is
    found under the same given path. `on_log` is called with the path and the size
    in bytes of each file of this machine that is named like a log, as soon as it is
    found.
    """
    return RunSearch(paths, stores, on_log).discovery


class RunSearch:
    """A search for runs under the given paths.

    `discovery` contains the runs whose logs are named like logs. `find_unnamed_runs`
    returns runs with other logs, which the caller identified by their content.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        stores: Stores | None = None,
        on_log: Callable[[str, int], None] | None = None,
    ) -> None:
        walk = Walk(
            stores or Stores(), opens_archives=stores is not None, on_log=on_log
        )
        self._walk = walk.run(paths)
        self.discovery = _find_named_runs(self._walk)

    def find_unnamed_runs(self, log_paths: Collection[Path]) -> tuple[RunFiles, ...]:
        """Return the runs whose logs are these files.

        Each log comes with the other output stream of its job.
        """
        log_names_by_folder: dict[str, set[str]] = defaultdict(set)
        for path in log_paths:
            log_names_by_folder[str(path.parent)].add(path.name)
        owned_runs: list[OwnedRun] = []
        for folder in self._walk.folders:
            if folder.text not in log_names_by_folder:
                continue
            chosen = frozenset(log_names_by_folder[folder.text])
            job_folder = _make_unnamed_folder(folder, chosen, self._walk.stores)
            owned_runs += [
                (run, len(job_folder.layout.inside))
                for run in _make_runs(job_folder, {}, self._walk)
            ]
        runs = add_reports(owned_runs, self._walk.reports)
        named_runs = (*self.discovery.runs, *self.discovery.metrics)
        return _make_ids_unique(runs, taken_ids=[run.id for run in named_runs])


def _make_unnamed_folder(
    folder: Folder, chosen: frozenset[str], stores: Stores
) -> JobFolder:
    """Return a folder that contains only the chosen files and their jobs' other
    streams."""
    existing = {*folder.unnamed, *(file.name for file in folder.files)}
    error_names = {names.name_paired_stream(name, "stderr") for name in chosen}
    selected = chosen | (error_names & existing)
    files = []
    for name in sorted(selected):
        with suppress(OSError):  # gone since it was found
            status = stores.stat(os.path.join(folder.text, name))
            files.append(WalkedFile(name, status.st_mtime, identify_file(status)))
    reduced = dataclasses.replace(
        folder,
        files=tuple(files),
        unnamed=(),
        links=frozenset(),
        chosen=chosen,
        only_chosen=True,
    )
    return JobFolder(reduced, group_files(reduced), find_layout(reduced.parts))


def _list_unnamed_files(walk: Walk) -> Iterator[UnnamedFiles]:
    """Yield the files that may be logs despite their names, by folder.

    Only on this machine and in archives: elsewhere each file would have to be fetched.
    Files elsewhere are recorded as ignored if their names contain a word for a log.
    """
    ignored_names = defaultdict(list)
    for path, reason in walk.ignored:
        # a renamed log (`.out.bak`) is listed as hidden instead
        may_be_unnamed_log = (
            reason == NOT_READ
            and names.may_be_log(path.name)
            and not RENAMED.fullmatch(path.name)
        )
        if reason == LONE_ERROR or may_be_unnamed_log:
            ignored_names[str(path.parent)].append(path.name)
    for folder in walk.folders:
        candidates = (*folder.unnamed, *ignored_names.get(folder.text, ()))
        if not candidates:
            continue
        is_local = os.path.isabs(folder.text)
        if is_local or walk.stores.find_archive(folder.path) is not None:
            yield UnnamedFiles(folder.path, candidates, folder.given_path)
        else:
            walk.ignored += [
                (folder.path / name, NOT_READ)
                for name in folder.unnamed
                if names.has_log_word(name)
            ]


def _list_lone_errors(walk: Walk) -> Iterator[tuple[Path, float, str]]:
    """Yield standard error files without a log if their folder has similar logs.

    Names are similar if they differ only in numbers and in the suffix. Each item is the
    path, the modification time (epoch seconds) and the reason.
    """
    lone_errors = {path for path, reason in walk.ignored if reason == LONE_ERROR}
    if not lone_errors:
        return
    error_folders = {path.parent for path in lone_errors}
    for folder in walk.folders:
        if folder.path not in error_folders:
            continue
        plain_names = {
            file: names.strip_compression(file.name) for file in folder.files
        }
        masked_log_names = {
            _mask_numbers(plain_name)
            for plain_name in plain_names.values()
            if names.is_log_name(plain_name.lower())
        }
        for file, plain_name in plain_names.items():
            path = folder.path / file.name
            if path in lone_errors and _mask_numbers(plain_name) in masked_log_names:
                yield path, file.modified, LONE_ERROR


def _mask_numbers(name: str) -> str:
    """Return `log-x_#_#` for `log-x_12_0.err`."""
    return _NUMBER.sub("#", names.strip_suffix(name))


def _find_named_runs(walk: Walk) -> Discovery:
    """Find all runs of a walk whose files are logs or metrics files by name.

    Also lists unnamed files, and those that were ignored, unreadable or hidden.
    """
    # folders with their jobs, and launch folders without a log
    emptied = _drop_repeated_files(walk)
    job_folders = find_job_folders(walk.folders)
    job_folders = (*job_folders, *find_empty_launches(walk, job_folders, emptied))
    # runs with a log, or of a job without a log
    log_folders = find_log_folders(job_folders)
    twin_folders = frozenset(
        folder.text for folder in walk.folders if folder.text.endswith(tuple(TWINS))
    )
    # only these folders may contain logs whose file names are not log names
    folders_with_ignored = {
        job_folder.folder.text for job_folder in job_folders if _may_ignore(job_folder)
    }
    walk.folders = [
        folder
        for folder in walk.folders
        if folder.unnamed or (folder.files and folder.text in folders_with_ignored)
    ]
    # folders of given files next to other jobs, which a report may belong to
    folders_with_other_jobs = {
        job_folder.folder.path
        for job_folder in job_folders
        if job_folder.folder.only_chosen and len(job_folder.jobs.drafts) > 1
    }
    folders_with_metrics = [
        job_folder
        for job_folder in job_folders
        if job_folder.metrics and not job_folder.folder.only_chosen
    ]
    # drop each folder and its drafts once its runs are made: all take much memory
    waiting = list(reversed(job_folders))
    del job_folders
    owned_runs: list[OwnedRun] = []
    while waiting:
        job_folder = waiting.pop()
        owned_runs += [
            (_mark_twin(run, job_folder, twin_folders), len(job_folder.layout.inside))
            for run in _make_runs(job_folder, log_folders, walk)
        ]
    runs = _make_ids_unique(
        add_reports(owned_runs, walk.reports, folders_with_other_jobs)
    )
    # metrics that may repeat the runs of logs
    owned_metrics_runs: list[OwnedRun] = [
        (_make_run(draft, job_folder, None, "", walk), len(job_folder.layout.inside))
        for job_folder in folders_with_metrics
        for draft in job_folder.metrics
    ]
    metrics_runs = _make_ids_unique(
        add_reports(owned_metrics_runs, walk.reports, folders_with_other_jobs),
        taken_ids=[run.id for run in runs],
    )
    marker_problems = tuple(walk.trial_markers.list_problems())
    # files that may hide a newer run
    hidden: list[tuple[Path, datetime, str]] = []
    for path, seconds, description in (*walk.hidden, *_list_lone_errors(walk)):
        modified = _convert_time(seconds)
        if modified is not None:
            hidden.append((path, modified, description))
    unnamed = tuple(_list_unnamed_files(walk))  # adds to walk.ignored
    return Discovery(
        runs,
        unnamed,
        metrics_runs,
        ignored=tuple(walk.ignored),
        unreadable=tuple(walk.unreadable),
        hidden=tuple(hidden),
        unreadable_marks=marker_problems,
    )


def _may_ignore(job_folder: JobFolder) -> bool:
    """True if `_make_runs` may record a file of a folder as ignored."""
    jobs = job_folder.jobs
    return bool(jobs.ignored) or any(draft.logless_job for draft in jobs.drafts)


def _mark_twin(
    run: RunFiles, job_folder: JobFolder, twin_folders: Collection[str]
) -> RunFiles:
    """Mark a run that was launched next to an excluded run, with the reason.

    `twin_folders` are the paths of the excluded runs' folders (`E_nsys`).
    """
    reason, explanation = find_companion(
        job_folder.folder.parts, len(job_folder.layout.inside), twin_folders
    )
    if reason is None:
        return run
    return replace(run, companion_of=reason, companion_because=explanation)


def _drop_repeated_files(walk: Walk) -> list[Folder]:
    """Keep each file once: a link or hard link to it is not a second run.

    Keeps the file itself rather than a link, and then the most deeply nested name. Its
    other names are recorded as ignored. Returns the folders that lost a file.
    """
    locations = [(file, folder) for folder in walk.folders for file in folder.files]
    if len({file.identity for file, _ in locations}) == len(locations):
        return []

    def rank_location(
        location: tuple[WalkedFile, Folder],
    ) -> tuple[bool, int, tuple[str, ...], str]:
        file, folder = location
        is_link = file.name in folder.links
        return is_link, -len(folder.parts), folder.parts, file.name

    locations.sort(key=rank_location)
    emptied = []
    repeated_files: set[int] = set()  # by id(): equal tuples may be different files
    originals: dict[FileId, tuple[WalkedFile, Folder]] = {}
    for file, folder in locations:
        original, original_folder = originals.setdefault(file.identity, (file, folder))
        if original is not file:
            repeated_files.add(id(file))
            emptied.append(folder)
            walk.ignored.append(
                (
                    folder.path / file.name,
                    f"another name of {original_folder.path / original.name}",
                )
            )
            # the user gave the file by this name: now the kept name counts as given
            if file.name in folder.chosen:
                original_folder.chosen |= {original.name}
    for folder in {id(folder): folder for folder in emptied}.values():
        folder.files = tuple(
            file for file in folder.files if id(file) not in repeated_files
        )
    return emptied


def _make_runs(
    job_folder: JobFolder, log_folders: Mapping[str, Sequence[Folder]], walk: Walk
) -> Iterator[RunFiles]:
    """Yield the runs of one folder; record its other files in the walk.

    Three kinds of jobs become runs: a job with logs, a job that left only standard
    error or a launch folder (`draft.logless_job`), and a job that left only metadata.
    If the user gave only files of this folder (`only_chosen`), only their jobs count.
    `log_folders` are the folders with logs of each job id.
    """
    folder, jobs = job_folder.folder, job_folder.jobs
    assignment = assign_metadata(jobs)
    if folder.only_chosen:
        for draft in jobs.drafts:
            draft.attempts = {
                number: attempt
                for number, attempt in draft.attempts.items()
                if attempt.log_name in folder.chosen
            }
    else:
        walk.ignored += jobs.ignored
    _record_undecided_metadata(assignment, job_folder, walk)
    for index, draft in enumerate(jobs.drafts):
        name = assignment.of_draft.get(index, "")
        if draft.attempts:
            record = _read_record(folder, name, walk)
            yield _make_run(draft, job_folder, record, name if record else "", walk)
        elif draft.logless_job and not folder.only_chosen:
            yield from _make_logless_job(draft, job_folder, name, log_folders, walk)
    if assignment.without_log and not folder.only_chosen:
        modified_by_name = {file.name: file.modified for file in folder.files}
        for job, name in assignment.without_log.items():
            draft = JobDraft(
                job,
                "llmb-config",
                modified=modified_by_name[name],
                logless_job=LoglessJob.METADATA,
                logless_path=folder.path / name,
            )
            yield from _make_metadata_run(draft, name, job_folder, log_folders, walk)


def _make_logless_job(
    draft: JobDraft,
    job_folder: JobFolder,
    metadata: str,
    log_folders: Mapping[str, Sequence[Folder]],
    walk: Walk,
) -> Iterator[RunFiles]:
    """Yield the run of a job that left only standard error or a launch folder.

    Yields nothing if its log is elsewhere, or if its recipe or size is unknown: then
    it may not be a training. Records its standard error as ignored in these cases.
    """
    logless_path = draft.logless_path or job_folder.folder.path
    if draft.job and log_folders.get(draft.job):
        log_folder = log_folders[draft.job][0].path
        reason = f"the log of job {draft.job} is in {log_folder}"
        walk.ignored.append((logless_path, reason))
        return
    record = _read_record(job_folder.folder, metadata, walk)
    run = _make_run(draft, job_folder, record, metadata if record else "", walk)
    if {"recipe", "size"} <= {hint.field for hint in run.hints}:
        yield run
    elif draft.logless_job is LoglessJob.STANDARD_ERROR:
        walk.ignored.append((logless_path, LONE_ERROR))


def _make_metadata_run(
    draft: JobDraft,
    name: str,
    job_folder: JobFolder,
    log_folders: Mapping[str, Sequence[Folder]],
    walk: Walk,
) -> Iterator[RunFiles]:
    """Yield the run of a job that left only metadata.

    Without this run, an older run would be judged in place of a newest job that died.
    Yields nothing if the log is in a folder above or below the metadata.
    """
    folder = job_folder.folder
    for log_folder in log_folders.get(draft.job, ()):
        if _is_inside(folder, log_folder) or _is_inside(log_folder, folder):
            reason = f"the log of job {draft.job} is elsewhere, in {log_folder.path}"
            walk.ignored.append((folder.path / name, reason))
            return
    record = _read_record(folder, name, walk)
    yield _make_run(draft, job_folder, record, name, walk)


def _record_undecided_metadata(
    assignment: Assignment, job_folder: JobFolder, walk: Walk
) -> None:
    """List each metadata file that may belong to several logs as unreadable.

    If the file were ignored, it could not contradict a log in the wrong folder.
    """
    folder = job_folder.folder
    log_names = [
        attempt.log_name
        for draft in list_nameless(job_folder.jobs.drafts)
        for attempt in draft.attempts.values()
    ]
    if not log_names:
        return
    for job, name in assignment.undecided.items():
        explanation = f"no job id in the name of {join_first(log_names)}"
        walk.unreadable.append(
            (
                folder.path / name,
                f"unclear which log, if any, belongs to job {job}: {explanation}",
            )
        )


def _is_inside(folder: Folder, outer: Folder) -> bool:
    """True if a folder is the other folder or is inside it."""
    return folder.parts[: len(outer.parts)] == outer.parts


def _read_record(folder: Folder, name: str, walk: Walk) -> Metadata | None:
    """Read a metadata file; record unusable values in the walk as unreadable.

    None without a file (an empty name), or if the file cannot be used.
    """
    if not name:
        return None
    path = folder.path / name
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
) -> list[tuple[str, str]]:
    """Return the folders and names of logs, then those of the files that linked logs
    lead to.

    A log is linked if it is a link, or if its given path leads through a link.
    """
    folder_text = "" if folder.text == os.curdir else folder.text
    locations = [(folder_text, attempt.log_name) for attempt in attempts]
    is_path_linked = folder.given_path in walk.linked
    linked_logs = [
        attempt.log
        for attempt in attempts
        if is_path_linked or attempt.log_name in folder.links
    ]
    return [*locations, *(os.path.split(os.path.realpath(log)) for log in linked_logs)]


def _make_run(
    draft: JobDraft,
    job_folder: JobFolder,
    record: Metadata | None,
    metadata: str,
    walk: Walk,
) -> RunFiles:
    """Build the run of one job from its files, folders and metadata.

    `metadata` is the name of the metadata file or "", `record` are its contents.
    """
    # the names that describe the run
    folder, layout = job_folder.folder, job_folder.layout
    attempts = tuple(attempt for _, attempt in sorted(draft.attempts.items()))
    described_by_folders = draft.described_by_folders and (
        draft.launched or _is_run_folder(folder.name, layout)
    )
    inside = layout.inside if described_by_folders else ()
    metadata_or_empty = record or NO_METADATA
    job = draft.job or metadata_or_empty.job
    log_names = [names.strip_compression(attempt.log_name) for attempt in attempts]
    run_names = (*map(names.strip_suffix, log_names), *reversed(inside))
    # reasons not to judge the run
    excluded, explanation = find_exclusion(record, run_names)
    trial_pending_since = None
    # other exclusions take precedence: they hold within an A/B, too
    if excluded is None:
        log_locations = _list_log_locations(attempts, folder, walk)
        trial_marker = walk.trial_markers.find(log_locations, job, draft.modified)
        if trial_marker is not None:
            excluded, explanation = Reason.VARIANT, trial_marker.because
            trial_pending_since = _convert_time(trial_marker.pending_since or 0.0)
    hints = _collect_hints(
        draft, folder, layout if described_by_folders else None, record
    )
    # without a known job id, a number in the path may be the job's
    log_parts = (*folder.parts, attempts[-1].log_name) if attempts else ()
    number = find_job_number(log_parts) if attempts and not job else ""
    return RunFiles(
        id=_make_id(draft, folder, layout, job),
        folder_text=folder.text,
        attempts=attempts,
        hints=hints,
        job_id=job,
        number=number,
        layout=layout.name if described_by_folders else "",
        metadata_name=metadata,
        start_candidates=tuple(_list_start_candidates(record, layout, folder)),
        logless_job=draft.logless_job,
        logless_path=draft.logless_path,
        modified=_convert_time(draft.modified),
        excluded=excluded,
        excluded_because=explanation,
        trial_pending_since=trial_pending_since,
        build=share_facts(_describe_build(record, hints)),
        launcher=find_launcher(
            metadata_or_empty.launcher, log_names, folder.name, layout
        ),
        saves=metadata_or_empty.saves,
        environment=share_facts(metadata_or_empty.environment),
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
    folder_candidates = (
        read_start(layout.experiment),
        read_filing_date(folder.relative_names),
    )
    yield from filter(None, folder_candidates)


def _convert_time(modified: float) -> datetime | None:
    """Convert a file time; None if it is 0 (omitted in archives) or out of range."""
    try:
        return datetime.fromtimestamp(modified, UTC) if modified else None
    except (ValueError, OverflowError, OSError):
        return None


def _describe_build(record: Metadata | None, hints: Sequence[Hint]) -> tuple[str, ...]:
    """Return the container, versions and release of a run, sorted.

    If sources state different releases, the result contains all of them.
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
    # the last folder of `[<release>/]<precision>/<size>/<GPUs>`, not a folder below it
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

    A value that several sources state is a single hint, with the first source. The
    surroundings (folders above the run) add only fields that no other source states.
    """
    source = ""
    if draft.attempts:
        first_attempt = draft.attempts[min(draft.attempts)]
        source = f"file {first_attempt.log_name}"
    hints = list(layout.hints) if layout else []
    # a value that folders and file name both state has the folder as its source
    layout_hints = {(hint.field, hint.value): hint for hint in reversed(hints)}
    hints += [layout_hints.get(pair) or Hint(*pair, source) for pair in draft.pairs]
    hints += record.hints if record else ()
    stated_fields = {hint.field for hint in hints}
    hints += [
        hint
        for hint in find_surroundings(folder.parts)
        if hint.field not in stated_fields
    ]
    # in reverse, so that the first hint of equal hints is kept
    distinct_hints = {
        (hint.field, hint.value.casefold()): hint for hint in reversed(hints)
    }
    return share_facts(tuple(reversed(distinct_hints.values())))


def _make_id(draft: JobDraft, folder: Folder, layout: Layout, job: str) -> str:
    """Make an id without machine paths: the distinguishing folders and the job.

    The given folder's name is used only if the run has no folder below it, because that
    name may change daily.
    """
    _, *names_below = folder.relative_names
    folder_names = _drop_layout_words(tuple(names_below))
    if not folder_names:
        folder_names = _drop_layout_words(folder.relative_names)
    stem = names.strip_suffix(draft.base).removeprefix("log-")
    last_name = job or stem
    if job and layout.name == "results":  # its folders do not name the recipe
        last_name = f"{stem}_{job}"
    return _make_printable("/".join([*folder_names, last_name]))


@lru_cache(1024)
def _drop_layout_words(folder_names: tuple[str, ...]) -> tuple[str, ...]:
    """Drop layout words, the workload's folder, and all but the first experiment
    folder.

    `workloads/pretrain_x/experiments/X/X_<time>` becomes `X`.
    """
    experiment_index, experiment = next(
        (
            (index, name)
            for index, name in enumerate(folder_names)
            if names.read_experiment(name, typed=False)
        ),
        (0, ""),
    )
    kept_names = []
    for index, name in enumerate(folder_names):
        if not name or name.lower() in _LAYOUT_WORDS:
            continue
        if experiment:
            if index < experiment_index and names.read_workload(name):
                continue
            if index > experiment_index and name.startswith(experiment):
                continue
        kept_names.append(name)
    return tuple(kept_names)


def _make_printable(text: str) -> str:
    """Replace the characters that are not allowed in an id by underscores."""
    return _UNPRINTABLE.sub("_", text)


def _make_ids_unique(
    runs: Sequence[RunFiles], taken_ids: Sequence[str] = ()
) -> tuple[RunFiles, ...]:
    """Append log names, then numbers, to ids that several runs share.

    Returns the runs in the order of their paths. `taken_ids` are the ids of other runs,
    which do not change.
    """
    ordered = sorted(
        runs,
        key=lambda run: (
            _make_sort_text(run.folder_text),
            # shorter numbers first: 9 before 10
            len(run.job_id),
            run.job_id,
            _find_file_name(run),
        ),
    )
    with_log_names = _extend_ids(
        ordered,
        taken_ids,
        lambda _, run: _make_printable(Path(_find_file_name(run)).stem),
    )
    return tuple(_extend_ids(with_log_names, taken_ids, lambda number, _: f"~{number}"))


def _make_sort_text(folder_text: str) -> str:
    """Return a text that sorts like the components of a folder's path.

    The components of thousands of paths take much memory.
    """
    if folder_text == os.curdir:
        return ""
    components = folder_text.replace("/", "\0")
    return f"/{components}" if folder_text.startswith("/") else components


def _find_file_name(run: RunFiles) -> str:
    """Return the name of the first log of a run, else of its metadata or folder."""
    if run.attempts:
        return run.attempts[0].log_name
    return run.metadata_name or run.folder.name


def _extend_ids(
    runs: Sequence[RunFiles],
    taken_ids: Sequence[str],
    make_suffix: Callable[[int, RunFiles], str],
) -> list[RunFiles]:
    """Append `/` and `make_suffix(number, run)` to each id that several runs share.

    Runs are numbered from 1.
    """
    counts = Counter((*taken_ids, *(run.id for run in runs)))
    extended_runs = []
    for number, run in enumerate(runs, start=1):
        if counts[run.id] == 1:
            extended_runs.append(run)
        else:
            new_id = f"{run.id}/{make_suffix(number, run)}"
            extended_runs.append(replace(run, id=new_id))
    return extended_runs
