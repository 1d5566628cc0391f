"""Group the files of a folder into jobs and attempts, and assign their metadata.

Only names are used. Metadata and launches without a log also depend on other folders.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_llmbench.core.log_records import VARIANT_MARK
from pytest_llmbench.core.run_records import AttemptFiles, LoglessJob
from pytest_llmbench.logs.sources.stores import has_archive_name
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.folder_times import read_stamp
from pytest_llmbench.runs.discover.folder_walk import (
    RENAMED,
    REPORT,
    Folder,
    Notes,
    Walk,
    WalkedFile,
)
from pytest_llmbench.runs.discover.metrics_files import choose_metrics, is_metrics
from pytest_llmbench.runs.layouts.folder_layouts import Layout, find_layout
from pytest_llmbench.runs.layouts.metadata import FILE_NAME

_SLURM = re.compile(r"slurm-(\d+(?:[_+]\d+)?)\.out", re.IGNORECASE)
_SKIPPED = {
    "sbatch_": "the launcher's duplicate of a job's output",
    "nsys_": "a profiler's output",
    "import_ckpt": "a checkpoint import, no training",
    "prepare_": "a preparation, no training",
}
_SKIPPED_LOG = re.compile(rf"(?:log-(?:.*\.)?)?({'|'.join(_SKIPPED)})", re.DOTALL)
_TRAINING = re.compile(rf"\.(?:{names.TYPE})_")
_WRITTEN_BESIDE = ("cmd-args.log", "git-info.log")
NOT_READ = "not read: not named like a log; give the file's own path to read it"
LONE_ERROR = "standard error without a log next to it"
_STREAMS = ("combined.log", "stdout.log", "stderr.log")
# in the name of a renamed log, followed by another suffix
_RENAMED_SUFFIX = re.compile(r"\.(?:out|log)(?=\.)")
_SEPARATOR = re.compile(r"[-_.]")


@dataclass(slots=True)
class JobDraft:
    """The files of one job in one folder."""

    job: str
    base: str
    pairs: names.NamePairs = ()
    # True if the names of its folders describe it, too. They do not describe other
    # files next to a launcher's logs.
    described_by_folders: bool = True
    launched: bool = True
    attempts: dict[int, AttemptFiles] = field(default_factory=dict)
    modified: float = 0.0
    metrics: bool = False  # True if its files are metrics, used if no log has the steps
    logless_job: LoglessJob | None = None  # the kind of a job without attempts
    logless_path: Path | None = None


@dataclass(frozen=True, slots=True)
class FolderJobs:
    """The jobs of one folder, its metadata by job id, and its other files with reasons."""

    drafts: tuple[JobDraft, ...]
    metadata: dict[str, Path]
    ignored: Notes


def group_files(folder: Folder) -> FolderJobs:
    """Group the files of a folder into jobs and attempts, plain files before
    compressed."""
    files = {file.name: file for file in sorted(folder.files, key=_is_compressed)}
    metadata = {
        match[1]: folder.path / file.name
        for file in folder.files
        if (match := FILE_NAME.fullmatch(file.name))
    }
    plain_by_name = {
        file.name: names.strip_compression(file.name).lower() for file in folder.files
    }
    plain_names = frozenset(plain_by_name.values())
    reasons = {
        name: _explain_skip(plain_by_name[name], plain_names, folder)
        for name in plain_by_name
        if name not in folder.chosen
    }
    logs = [
        file
        for name, file in files.items()
        if not reasons.get(name) and _is_log(name, folder)
    ]
    path_by_name = _index_names(files)
    drafts = _draft_jobs(folder, logs, metadata, path_by_name, reasons)
    _add_slurm_outputs(folder, files.values(), drafts, path_by_name, reasons)
    used = {
        path.name
        for draft in drafts
        for attempt in draft.attempts.values()
        for path in (attempt.log, attempt.err)
        if path
    }
    lone_errors = [
        name
        for name, plain_name in plain_by_name.items()
        if plain_name.endswith(".err") and name not in used
    ]
    error_jobs = _draft_error_jobs(
        folder, lone_errors, files, {draft.job for draft in drafts}
    )
    drafts += {draft.job: draft for draft in error_jobs.values()}.values()
    reasons |= {name: LONE_ERROR for name in lone_errors if name not in error_jobs}
    drafts += _draft_metrics(folder, files.values(), reasons)
    ignored = [
        (folder.path / name, reason) for name, reason in reasons.items() if reason
    ]
    return FolderJobs(tuple(drafts), metadata, ignored)


def _draft_metrics(
    folder: Folder, files: Collection[WalkedFile], reasons: dict[str, str]
) -> list[JobDraft]:
    """Return the run that the metrics files of a folder describe, one attempt for each
    file."""
    written = {file.name: file.modified for file in files}
    kept, others = choose_metrics(folder.name, written.keys() - folder.chosen)
    reasons |= others
    if not kept:
        return []
    attempts = {
        number: AttemptFiles(number, folder.path / name, None)
        for number, name in enumerate(kept)
    }
    modified = max(written[name] for name in kept)
    return [
        JobDraft(
            "",
            kept[0],
            launched=False,
            attempts=attempts,
            modified=modified,
            metrics=True,
        )
    ]


def _draft_error_jobs(
    folder: Folder,
    lone_errors: Collection[str],
    files: Mapping[str, WalkedFile],
    jobs: Collection[str],
) -> dict[str, JobDraft]:
    """Return the jobs that left only standard error, by file name.

    `jobs` contains the ids of jobs with logs. Only files named like a launcher's count,
    and only if their log was not renamed.
    """
    by_job: dict[str, JobDraft] = {}
    by_name: dict[str, JobDraft] = {}
    renamed_stems = (
        {
            file_name[: suffix.start()]
            for file_name in files
            for suffix in _RENAMED_SUFFIX.finditer(file_name)
        }
        if lone_errors
        else ()
    )
    for name in lone_errors:
        stem = names.strip_suffix(names.strip_compression(name))
        if stem in renamed_stems or not names.is_launched(f"{stem}.out"):
            continue
        slurm_match = _SLURM.fullmatch(f"{stem}.out")
        log_name = names.read_log_name(stem, folder.name)
        job = slurm_match[1] if slurm_match else log_name.job
        if job and job not in jobs:
            path = folder.path / name
            draft = JobDraft(
                job,
                log_name.base,
                log_name.pairs,
                logless_job=LoglessJob.STANDARD_ERROR,
                logless_path=path,
            )
            by_name[name] = by_job.setdefault(job, draft)
            by_name[name].modified = max(by_name[name].modified, files[name].modified)
    return by_name


def is_relevant(name: str) -> bool:
    """True if a file of this name in a folder would be read, or is evidence of a
    profile."""
    plain = names.strip_compression(name).lower()
    logged = names.is_log_name(plain) or plain.endswith((".err", REPORT))
    is_input = logged or is_metrics(name) or has_archive_name(name)
    return not name.startswith(".") and (is_input or bool(FILE_NAME.fullmatch(name)))


def _is_log(name: str, folder: Folder) -> bool:
    plain = names.strip_compression(name)
    return name in folder.chosen or (
        names.is_log_name(plain.lower()) and not _SLURM.fullmatch(plain)
    )


def _is_compressed(file: WalkedFile) -> bool:
    return names.strip_compression(file.name) != file.name


def _explain_skip(name: str, others: Collection[str], folder: Folder) -> str:
    """Return the reason a file is not a log, or "".

    No reason is given for logs, standard error, metadata, markers and metrics.
    """
    if name.endswith((".yaml", ".yml", ".err", VARIANT_MARK)) or is_metrics(name):
        return ""
    if not names.is_log_name(name):
        return NOT_READ
    match = _SKIPPED_LOG.match(name)
    if match and (match.start(1) == 0 or not _TRAINING.search(name)):
        return _SKIPPED[match[1]]
    if name in _WRITTEN_BESIDE:
        return "written by the framework next to its log"
    return _explain_stream(name, others, folder) if name in _STREAMS else ""


def _explain_stream(name: str, others: Collection[str], folder: Folder) -> str:
    """Return the reason a local executor's file is not the log, or "".

    Another stream may be the better log, or process 0 has the log.
    """
    if folder.name.isdecimal() and folder.name != "0":
        return "another process of the run; process 0 has the log"
    better = next(
        (stream for stream in _STREAMS[: _STREAMS.index(name)] if stream in others), ""
    )
    return f"a part or a second stream of {better} next to it" if better else ""


def _draft_jobs(
    folder: Folder,
    logs: Iterable[WalkedFile],
    metadata: Collection[str],
    path_by_name: Mapping[str, str],
    reasons: dict[str, str],
) -> list[JobDraft]:
    """Group the logs of a folder into jobs, with their attempts and standard error.

    Adds to `reasons` the compressed copies that are not read.
    """
    by_name: dict[tuple[str, str], JobDraft] = {}
    for file in logs:
        plain = names.strip_compression(file.name)
        draft, number = _draft_job(plain, folder, metadata)
        same_job = by_name.setdefault((draft.job, draft.base), draft)
        if (
            number in same_job.attempts
            and _is_compressed(file)
            and file.name not in folder.chosen
        ):
            reasons[file.name] = (
                f"a compressed copy of {same_job.attempts[number].log.name} next to it"
            )
            continue
        # `x_12.out` and `x_12_0.out`: two logs that claim to be one attempt
        if number in same_job.attempts:
            same_job = by_name[draft.job, file.name] = draft
        error_name = path_by_name.get(
            f"{names.strip_suffix(plain)}.err"
        ) or path_by_name.get(_name_error_stream(plain))
        # standard error may be the log itself
        error_file = (
            folder.path / error_name if error_name and error_name != file.name else None
        )
        same_job.attempts[number] = AttemptFiles(
            number, folder.path / file.name, error_file
        )
        same_job.modified = max(same_job.modified, file.modified)
    drafts = list(by_name.values())
    beside_launched = any(draft.launched for draft in drafts)
    for draft in drafts:
        draft.described_by_folders = draft.launched or not beside_launched
    return drafts


def _draft_job(
    file: str, folder: Folder, metadata: Collection[str]
) -> tuple[JobDraft, int]:
    """Return the job in a log's name, still without attempts, and the attempt's number."""
    stem = names.strip_suffix(file)
    suffix = file[len(stem) :]
    if file.lower() in _STREAMS:
        parts = folder.parts
        return JobDraft(
            parts[-3] if len(parts) > 3 and parts[-4] == "nemo_run" else "", stem
        ), 0
    if slurm := _SLURM.fullmatch(file):
        return JobDraft(slurm[1], stem), 0
    output, output_job = names.read_output_job(file)
    if output_job:
        return JobDraft(
            output_job, output, names.read_log_name(output).pairs, launched=False
        ), 0
    name = names.read_log_name(stem, folder.name)
    tails = (
        (
            stem[begin:]
            for begin in (
                0,
                *(separator.end() for separator in _SEPARATOR.finditer(stem)),
            )
        )
        if metadata
        else ()
    )
    job = name.job or next((tail for tail in tails if tail in metadata), "")
    return JobDraft(
        job, name.base + suffix, name.pairs, launched=stem.lower().startswith("log-")
    ), name.attempt


def _index_names(files: Iterable[str]) -> dict[str, str]:
    """Map names, with and without their compression suffix, to the first such file."""
    by_name: dict[str, str] = {}
    for name in files:
        by_name.setdefault(name, name)
        by_name.setdefault(names.strip_compression(name), name)
    return by_name


def _name_error_stream(file: str) -> str:
    return names.name_paired_stream(file, "stderr")


def _add_slurm_outputs(
    folder: Folder,
    files: Iterable[WalkedFile],
    drafts: list[JobDraft],
    path_by_name: Mapping[str, str],
    reasons: dict[str, str],
) -> None:
    """Assign Slurm's output files to their jobs, as log or as standard error.

    The file is the log if the job has no other log. It is the standard error if the job
    has a single attempt without standard error and the file is not compressed.
    Otherwise it is skipped with a reason: a requeued job has one such file for all
    attempts.
    """
    drafts_by_job: dict[str, list[JobDraft]] = defaultdict(list)
    for draft in drafts:
        drafts_by_job[draft.job].append(draft)
    for file in files:
        plain = names.strip_compression(file.name)
        slurm = _SLURM.fullmatch(plain)
        if not slurm or file.name in folder.chosen:
            continue
        path = folder.path / file.name
        job_drafts = drafts_by_job[slurm[1]]
        # prefer the launcher's log to a copy next to it
        job_drafts = [draft for draft in job_drafts if draft.launched] or job_drafts
        attempts = [
            (draft, attempt_files)
            for draft in job_drafts
            for attempt_files in draft.attempts.values()
        ]
        if not job_drafts:
            stem = names.strip_suffix(plain)
            err = path_by_name.get(f"{stem}.err")
            attempt = AttemptFiles(0, path, folder.path / err if err else None)
            draft = JobDraft(
                slurm[1], stem, attempts={0: attempt}, modified=file.modified
            )
            drafts.append(draft)
            drafts_by_job[draft.job].append(draft)
        elif (
            len(attempts) == 1
            and attempts[0][1].err is None
            and not _is_compressed(file)
        ):
            draft, attempt = attempts[0]
            draft.attempts[attempt.number] = AttemptFiles(
                attempt.number, attempt.log, path
            )
        else:
            reasons[file.name] = f"the log of job {slurm[1]} is next to it"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """One folder with its jobs and its layout."""

    folder: Folder
    jobs: FolderJobs
    layout: Layout
    metrics: tuple[JobDraft, ...] = ()  # metrics that may repeat the runs of logs


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of the metadata files of one folder."""

    of_draft: Mapping[int, Path]  # by the index of their draft
    without_log: Mapping[str, Path]  # by job id, for jobs without a log in the folder
    undecided: Mapping[str, Path]  # by job id, if their log is ambiguous


def find_job_folders(folders: Iterable[Folder]) -> tuple[JobFolder, ...]:
    """Group the files of all folders into jobs.

    If an experiment has launched logs, its folders' names describe only these logs, and
    not files without a job id in the same folder or its parents.
    """
    all_folders = [
        JobFolder(folder, group_files(folder), find_layout(folder.parts))
        for folder in folders
        if folder.files
    ]
    job_folders = _separate_metrics(all_folders)
    unattributed = [
        (draft, job_folder)
        for job_folder in job_folders
        for draft in job_folder.jobs.drafts
        if not (draft.launched or draft.job)
    ]
    launched_folders = {
        parts
        for job_folder in job_folders
        if unattributed and _is_launched(job_folder)
        for parts in _list_experiment_folders(job_folder)
    }
    for draft, job_folder in unattributed:
        if job_folder.folder.parts in launched_folders:
            draft.described_by_folders = False
    return job_folders


def _separate_metrics(job_folders: Sequence[JobFolder]) -> tuple[JobFolder, ...]:
    """Separate the metrics of folders if their given path also leads to a log."""
    logged = {
        job_folder.folder.given_path
        for job_folder in job_folders
        if any(not draft.metrics for draft in job_folder.jobs.drafts)
    }
    return tuple(
        _split_metrics(job_folder)
        if job_folder.folder.given_path in logged
        else job_folder
        for job_folder in job_folders
    )


def _split_metrics(job_folder: JobFolder) -> JobFolder:
    metrics = tuple(draft for draft in job_folder.jobs.drafts if draft.metrics)
    drafts = tuple(draft for draft in job_folder.jobs.drafts if not draft.metrics)
    return (
        replace(
            job_folder, jobs=replace(job_folder.jobs, drafts=drafts), metrics=metrics
        )
        if metrics
        else job_folder
    )


def find_log_folders(job_folders: Iterable[JobFolder]) -> Mapping[str, Sequence[Path]]:
    """Return the folders that contain logs of each job."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for job_folder in job_folders:
        for job in (draft.job for draft in job_folder.jobs.drafts if draft.attempts):
            folders[job].append(job_folder.folder.path)
    return folders


def assign_metadata(folder: FolderJobs) -> Assignment:
    """Assign each metadata file to the log of its job.

    A single remaining metadata file belongs to the single log without a job id, if the
    folders describe that log.
    """
    assigned = {
        index: folder.metadata[job_draft.job]
        for index, job_draft in enumerate(folder.drafts)
        if job_draft.job in folder.metadata
    }
    jobs = {draft.job for draft in folder.drafts}
    unassigned = {job: path for job, path in folder.metadata.items() if job not in jobs}
    nameless = list_nameless(folder.drafts)
    if not nameless:
        return Assignment(assigned, unassigned, {})
    if (
        len(unassigned) == 1
        and sum(
            bool(draft.described_by_folders and draft.attempts)
            for draft in folder.drafts
        )
        == 1
    ):
        return Assignment(
            {
                **assigned,
                folder.drafts.index(nameless[0]): next(iter(unassigned.values())),
            },
            {},
            {},
        )
    return Assignment(assigned, {}, unassigned)


def list_nameless(drafts: Iterable[JobDraft]) -> tuple[JobDraft, ...]:
    """Return the logs without a job id that metadata may identify."""
    return tuple(
        draft for draft in drafts if draft.described_by_folders and not draft.job
    )


def _is_launched(job_folder: JobFolder) -> bool:
    return any(draft.launched and draft.attempts for draft in job_folder.jobs.drafts)


def _list_experiment_folders(job_folder: JobFolder) -> list[tuple[str, ...]]:
    """Return a folder and its parents up to the experiment's folder, as components."""
    parts = job_folder.folder.parts
    return [
        parts[: len(parts) - level]
        for level in range(len(job_folder.layout.experiment))
    ]


# Prefix of the launcher's own output, which exists even if the training left no log.
COPIED_OUTPUT = "sbatch_"

Parts = tuple[str, ...]


def find_empty_launches(
    walk: Walk, job_folders: Iterable[JobFolder], emptied: Collection[Folder]
) -> Iterator[JobFolder]:
    """Yield launch folders (`E/E_<time>`, `E/<epoch seconds>`) that contain no log.

    Each folder has one job without attempts. `emptied` are folders from
    which links to files elsewhere were dropped; they do not count as empty. Renamed,
    packed and unreadable logs count as logs.
    """
    has_content: set[Parts] = set()
    for job_folder in job_folders:
        if (
            job_folder.jobs.drafts
            or job_folder.jobs.metadata
            or any(_may_be_log(file.name) for file in job_folder.folder.files)
        ):
            _add_folders(has_content, job_folder.folder.parts)
    for folder in emptied:
        _add_folders(has_content, folder.parts)
    for path, _ in walk.unreadable:
        _add_folders(has_content, path.parts)
    for folder in walk.folders:
        if (
            folder.parts not in has_content
            and not folder.only_chosen
            and _is_launch(folder)
        ):
            layout = find_layout(folder.parts)
            draft = JobDraft(
                "",
                f"{folder.name}.out",
                logless_job=LoglessJob.FOLDER,
                logless_path=folder.path,
            )
            if layout.experiment and folder.name in layout.experiment[:2]:
                yield JobFolder(folder, FolderJobs((draft,), {}, []), layout)


def _is_launch(folder: Folder) -> bool:
    """True if a folder is named like a launch of its parent: `<time>` or
    `<parent>_<time>`."""
    if read_stamp(folder.name) is None:
        return False
    experiment = (
        names.read_experiment(folder.parts[-2], typed=False)
        if len(folder.parts) > 1
        else None
    )
    return experiment is not None and (
        folder.name.isdecimal() or folder.name.startswith(f"{folder.parts[-2]}_")
    )


def _may_be_log(name: str) -> bool:
    plain = names.strip_compression(name).lower()
    logged = (
        plain.endswith((".out", ".log"))
        or RENAMED.fullmatch(name) is not None
        or has_archive_name(name)
    )
    return logged and not plain.startswith(COPIED_OUTPUT)


def _add_folders(has_content: set[Parts], parts: Parts) -> None:
    """Add a folder and its parents."""
    while parts and parts not in has_content:
        has_content.add(parts)
        parts = parts[:-1]
