"""Group the files of a folder into jobs and attempts, and assign their metadata.

Only names are used. Metadata and launches without a log also depend on other folders.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from pytest_llmbench.core.log_records import VARIANT_MARK
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import AttemptFiles, LoglessJob
from pytest_llmbench.logs.sources.stores import has_archive_name
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.folder_times import read_stamp
from pytest_llmbench.runs.discover.folder_walk import (
    RENAMED,
    REPORT,
    Folder,
    Note,
    Walk,
    WalkedFile,
)
from pytest_llmbench.runs.discover.metrics_files import choose_metrics, is_metrics
from pytest_llmbench.runs.layouts.folder_layouts import Layout, find_layout
from pytest_llmbench.runs.layouts.metadata import FILE_NAME

# `slurm-1234.out`, `slurm-1234_5.out` of a job array
_SLURM = compile_on_use(r"slurm-(\d+(?:[_+]\d+)?)\.out", re.IGNORECASE)
_SKIPPED = {
    "sbatch_": "the launcher's duplicate of a job's output",
    "nsys_": "a profiler's output",
    "import_ckpt": "a checkpoint import, no training",
    "prepare_": "a preparation, no training",
}
# `sbatch_x.out`, `log-import_ckpt.out`, `log-team-team.prepare_x_12_0.out`
_SKIPPED_LOG = compile_on_use(rf"(?:log-(?:.*\.)?)?({'|'.join(_SKIPPED)})", re.DOTALL)
# the task of a launched training: `log-team-team.pretrain_x.out`
_TRAINING = compile_on_use(rf"\.(?:{names.TYPE})_")
# files of a framework next to its log
_WRITTEN_BESIDE = ("cmd-args.log", "git-info.log")
NOT_READ = "not read: not named like a log; give the file's own path to read it"
LONE_ERROR = "standard error without a log next to it"
# logs of a local executor, best first
_STREAMS = ("combined.log", "stdout.log", "stderr.log")
# in the name of a renamed log, followed by another suffix
_RENAMED_SUFFIX = compile_on_use(r"\.(?:out|log)(?=\.)")
_SEPARATOR = compile_on_use(r"[-_.]")


class JobDraft(Struct, gc=False):
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


_NO_METADATA: Mapping[str, str] = {}


class FolderJobs(Struct, frozen=True, gc=False):
    """The jobs of one folder, its metadata by job id, and its other files with reasons."""

    drafts: tuple[JobDraft, ...]
    metadata: Mapping[str, str]  # names of files by job id
    ignored: Sequence[Note]


def group_files(folder: Folder) -> FolderJobs:
    """Group the files of a folder into jobs and attempts.

    If a log exists plain and compressed, the plain file is used.
    """
    files = {file.name: file for file in sorted(folder.files, key=_is_compressed)}
    metadata: dict[str, str] = {}  # names by job id
    for file in folder.files:
        metadata_match = FILE_NAME.fullmatch(file.name)
        if metadata_match:
            metadata[metadata_match[1]] = file.name
    plain_by_name = {
        file.name: names.strip_compression(file.name).lower() for file in folder.files
    }
    plain_names = frozenset(plain_by_name.values())
    # the reason to ignore each file, "" for a file that is used; the steps below add to
    # the reasons
    reasons = {
        name: _explain_skip(plain_name, plain_names, folder)
        for name, plain_name in plain_by_name.items()
        if name not in folder.chosen
    }
    logs = [
        file
        for name, file in files.items()
        if not reasons.get(name) and _is_log(name, folder)
    ]
    # jobs with a log
    path_by_name = _index_names(files)
    drafts = _draft_jobs(folder, logs, metadata, path_by_name, reasons)
    _add_slurm_outputs(folder, files.values(), drafts, path_by_name, reasons)
    # jobs that left only standard error
    used_names: set[str] = set()
    for draft in drafts:
        for attempt in draft.attempts.values():
            used_names |= {attempt.log_name, attempt.err_name}
    lone_errors = [
        name
        for name, plain_name in plain_by_name.items()
        if plain_name.endswith(".err") and name not in used_names
    ]
    error_drafts = _draft_error_jobs(
        folder, lone_errors, files, {draft.job for draft in drafts}
    )
    # several error files of one job share a draft
    drafts += {draft.job: draft for draft in error_drafts.values()}.values()
    reasons |= {name: LONE_ERROR for name in lone_errors if name not in error_drafts}
    # the job of the metrics files
    drafts += _draft_metrics(folder, files.values(), reasons)
    ignored = [
        (folder.path / name, reason) for name, reason in reasons.items() if reason
    ]
    # Thousands of folders share the empty values.
    return FolderJobs(tuple(drafts), metadata or _NO_METADATA, tuple(ignored))


def _draft_metrics(
    folder: Folder, files: Collection[WalkedFile], reasons: dict[str, str]
) -> list[JobDraft]:
    """Draft one job from the metrics files of a folder, or none without such files.

    Each file is an attempt. Adds to `reasons` the metrics files that are not used.
    """
    modified_by_name = {
        file.name: file.modified for file in files if is_metrics(file.name)
    }
    if not modified_by_name:
        return []
    metrics_names, skip_reasons = choose_metrics(
        folder.name, modified_by_name.keys() - folder.chosen
    )
    reasons |= skip_reasons
    if not metrics_names:
        return []
    attempts = {
        number: AttemptFiles(number, folder.text, name)
        for number, name in enumerate(metrics_names)
    }
    modified = max(modified_by_name[name] for name in metrics_names)
    return [
        JobDraft(
            "",
            metrics_names[0],
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
    """Draft the jobs that left only standard error. Returns drafts by file name.

    `jobs` contains the ids of jobs with logs. Only files named like a launcher's count,
    and only if their log was not renamed.
    """
    if not lone_errors:
        return {}
    draft_by_job: dict[str, JobDraft] = {}
    draft_by_name: dict[str, JobDraft] = {}
    # `log-x_12.out.bak`: the log of `log-x_12.err` exists under another name
    renamed_stems = {
        file_name[: suffix.start()]
        for file_name in files
        for suffix in _RENAMED_SUFFIX.finditer(file_name)
    }
    for name in lone_errors:
        stem = names.strip_suffix(names.strip_compression(name))
        if stem in renamed_stems or not names.is_launched(f"{stem}.out"):
            continue
        slurm_match = _SLURM.fullmatch(f"{stem}.out")
        log_name = names.read_log_name(stem, folder.name)
        job = slurm_match[1] if slurm_match else log_name.job
        if job and job not in jobs:
            new_draft = JobDraft(
                job,
                log_name.base,
                log_name.pairs,
                logless_job=LoglessJob.STANDARD_ERROR,
                logless_path=folder.path / name,
            )
            draft = draft_by_job.setdefault(job, new_draft)
            draft.modified = max(draft.modified, files[name].modified)
            draft_by_name[name] = draft
    return draft_by_name


def is_relevant(name: str) -> bool:
    """True if a file of this name in a folder would be read, or is evidence of a
    profile."""
    if name.startswith("."):
        return False
    plain = names.strip_compression(name).lower()
    return (
        names.is_log_name(plain)
        or plain.endswith((".err", REPORT))
        or is_metrics(name)
        or has_archive_name(name)
        or FILE_NAME.fullmatch(name) is not None
    )


def _is_log(name: str, folder: Folder) -> bool:
    """True if a file is chosen, or named like a log other than Slurm's output."""
    plain = names.strip_compression(name)
    return name in folder.chosen or (
        names.is_log_name(plain.lower()) and not _SLURM.fullmatch(plain)
    )


def _is_compressed(file: WalkedFile) -> bool:
    """True if a log's name has a compression suffix."""
    return names.strip_compression(file.name) != file.name


def _explain_skip(name: str, siblings: Collection[str], folder: Folder) -> str:
    """Return the reason a file is not a log, or "".

    No reason is given for logs, standard error, metadata, markers and metrics.
    `siblings` are the names of all files in the folder, without compression suffixes.
    """
    if name.endswith((".yaml", ".yml", ".err", VARIANT_MARK)) or is_metrics(name):
        return ""
    if not names.is_log_name(name):
        return NOT_READ
    match = _SKIPPED_LOG.match(name)
    if match:
        prefix = match[1]
        # an account may be named so: `log-prepare_team-team.pretrain_...`
        if name.startswith(prefix) or not _TRAINING.search(name):
            return _SKIPPED[prefix]
    if name in _WRITTEN_BESIDE:
        return "written by the framework next to its log"
    return _explain_stream(name, siblings, folder) if name in _STREAMS else ""


def _explain_stream(name: str, siblings: Collection[str], folder: Folder) -> str:
    """Return the reason a local executor's file is not the log, or "".

    Another stream may be the better log, or process 0 has the log.
    """
    if folder.name.isdecimal() and folder.name != "0":
        return "another process of the run; process 0 has the log"
    better_streams = _STREAMS[: _STREAMS.index(name)]
    for stream in better_streams:
        if stream in siblings:
            return f"a part or a second stream of {stream} next to it"
    return ""


def _draft_jobs(
    folder: Folder,
    logs: Iterable[WalkedFile],
    metadata: Collection[str],
    path_by_name: Mapping[str, str],
    reasons: dict[str, str],
) -> list[JobDraft]:
    """Group the logs of a folder into jobs, with their attempts and standard error.

    `metadata` contains the job ids of the folder's metadata files. Adds to `reasons`
    the compressed copies that are not read.
    """
    draft_by_job: dict[tuple[str, str], JobDraft] = {}  # by job id and base name
    for file in logs:
        plain_name = names.strip_compression(file.name)
        new_draft, number = _draft_job(plain_name, folder, metadata)
        draft = draft_by_job.setdefault((new_draft.job, new_draft.base), new_draft)
        if number in draft.attempts:
            if _is_compressed(file) and file.name not in folder.chosen:
                reasons[file.name] = (
                    f"a compressed copy of {draft.attempts[number].log_name} next to it"
                )
                continue
            # `x_12.out` and `x_12_0.out`: two logs that claim to be one attempt
            draft = new_draft
            draft_by_job[draft.job, file.name] = draft
        error_name = path_by_name.get(f"{names.strip_suffix(plain_name)}.err")
        if error_name is None:
            stderr_name = names.name_paired_stream(plain_name, "stderr")
            error_name = path_by_name.get(stderr_name)
        if error_name == file.name:  # the log itself is standard error
            error_name = None
        draft.attempts[number] = AttemptFiles(
            number, folder.text, file.name, error_name or ""
        )
        draft.modified = max(draft.modified, file.modified)
    drafts = list(draft_by_job.values())
    # next to a launcher's log, other logs are not described by the folders' names
    has_launched_log = any(draft.launched for draft in drafts)
    for draft in drafts:
        draft.described_by_folders = draft.launched or not has_launched_log
    return drafts


def _draft_job(
    file: str, folder: Folder, metadata: Collection[str]
) -> tuple[JobDraft, int]:
    """Return the job in a log's name, still without attempts, and the attempt's number.

    `file` is the name without compression suffix, `metadata` contains the job ids of
    the folder's metadata files.
    """
    stem = names.strip_suffix(file)
    suffix = file[len(stem) :]
    if file.lower() in _STREAMS:
        # NeMo-Run's local executor: `nemo_run/<job>/<task>/<process>/combined.log`
        is_local = len(folder.parts) > 3 and folder.parts[-4] == "nemo_run"
        return JobDraft(folder.parts[-3] if is_local else "", stem), 0
    # `slurm-12.out`
    if slurm := _SLURM.fullmatch(file):
        return JobDraft(slurm[1], stem), 0
    # `train.o12`
    batch_name, batch_job = names.read_output_job(file)
    if batch_job:
        pairs = names.read_log_name(batch_name).pairs
        return JobDraft(batch_job, batch_name, pairs, launched=False), 0
    log_name = names.read_log_name(stem, folder.name)
    job = log_name.job or _find_known_job(stem, metadata)
    draft = JobDraft(
        job,
        log_name.base + suffix,
        log_name.pairs,
        launched=stem.lower().startswith("log-"),
    )
    return draft, log_name.attempt


def _find_known_job(stem: str, metadata: Collection[str]) -> str:
    """Return the job id of a metadata file that a log's name ends with, or "".

    `train_a-7` ends with `train_a-7`, `a-7` and `7`; the longest known id counts.
    """
    if not metadata:
        return ""
    starts = [0, *(separator.end() for separator in _SEPARATOR.finditer(stem))]
    endings = (stem[start:] for start in starts)
    return next((ending for ending in endings if ending in metadata), "")


def _index_names(files: Iterable[str]) -> dict[str, str]:
    """Map names, with and without their compression suffix, to the first such file.

    The first file of `x.err` and `x.err.gz` is found by the name `x.err`.
    """
    file_by_name: dict[str, str] = {}
    for name in files:
        file_by_name.setdefault(name, name)
        file_by_name.setdefault(names.strip_compression(name), name)
    return file_by_name


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
        job = slurm[1]
        job_drafts = drafts_by_job[job]
        # prefer the launcher's log to a copy next to it
        launched_drafts = [draft for draft in job_drafts if draft.launched]
        attempts = [
            (draft, attempt)
            for draft in launched_drafts or job_drafts
            for attempt in draft.attempts.values()
        ]
        if not job_drafts:
            stem = names.strip_suffix(plain)
            error_name = path_by_name.get(f"{stem}.err")
            files_of_job = AttemptFiles(0, folder.text, file.name, error_name or "")
            new_draft = JobDraft(
                job,
                stem,
                attempts={0: files_of_job},
                modified=file.modified,
            )
            drafts.append(new_draft)
            drafts_by_job[job].append(new_draft)
            continue
        if len(attempts) == 1 and not _is_compressed(file):
            [(draft, attempt)] = attempts
            if not attempt.err_name:
                with_error = replace(attempt, err_name=file.name)
                draft.attempts[attempt.number] = with_error
                continue
        # several attempts, standard error exists, or the file is compressed
        reasons[file.name] = f"the log of job {job} is next to it"


Parts = tuple[str, ...]
"""The components of a path."""


class JobFolder(Struct, frozen=True, gc=False):
    """One folder with its jobs and its layout."""

    folder: Folder
    jobs: FolderJobs
    layout: Layout
    metrics: tuple[JobDraft, ...] = ()  # metrics that may repeat the runs of logs


class Assignment(Struct, frozen=True):
    """The assignment of the metadata files of one folder."""

    of_draft: Mapping[int, str]  # names by the index of their draft
    without_log: Mapping[str, str]  # by job id, for jobs without a log in the folder
    undecided: Mapping[str, str]  # by job id, if their log is ambiguous


def find_job_folders(folders: Iterable[Folder]) -> tuple[JobFolder, ...]:
    """Group the files of all folders into jobs.

    The names of an experiment's folders describe the logs in it (recipe, size, GPUs).
    If a launcher wrote logs in the experiment, the names describe only these. Therefore
    `described_by_folders` is cleared for other logs without a job id in the folder of a
    launcher's log, or in its parents up to the experiment's folder.
    """
    all_folders = [
        JobFolder(folder, group_files(folder), find_layout(folder.parts))
        for folder in folders
        if folder.files
    ]
    job_folders = _separate_metrics(all_folders)
    drafts_without_job = [
        (draft, job_folder)
        for job_folder in job_folders
        for draft in job_folder.jobs.drafts
        if not (draft.launched or draft.job)
    ]
    if not drafts_without_job:
        return job_folders
    # the folders of launchers' logs, and their parents within the experiment
    launched_folders: set[Parts] = set()
    for job_folder in job_folders:
        if _is_launched(job_folder):
            launched_folders.update(_list_experiment_folders(job_folder))
    for draft, job_folder in drafts_without_job:
        if job_folder.folder.parts in launched_folders:
            draft.described_by_folders = False
    return job_folders


def _separate_metrics(job_folders: Sequence[JobFolder]) -> tuple[JobFolder, ...]:
    """Separate metrics files from logs if a path of --llmb-logs leads to both.

    The metrics files of a folder get a job folder of their own.
    """
    paths_with_logs = {
        job_folder.folder.given_path
        for job_folder in job_folders
        if any(not draft.metrics for draft in job_folder.jobs.drafts)
    }
    return tuple(
        _split_metrics(job_folder)
        if job_folder.folder.given_path in paths_with_logs
        else job_folder
        for job_folder in job_folders
    )


def _split_metrics(job_folder: JobFolder) -> JobFolder:
    """Move the drafts of metrics files from `jobs` to `metrics`."""
    metrics = tuple(draft for draft in job_folder.jobs.drafts if draft.metrics)
    if not metrics:
        return job_folder
    drafts = tuple(draft for draft in job_folder.jobs.drafts if not draft.metrics)
    return replace(
        job_folder, jobs=replace(job_folder.jobs, drafts=drafts), metrics=metrics
    )


def find_log_folders(
    job_folders: Sequence[JobFolder],
) -> Mapping[str, Sequence[Folder]]:
    """Return, by job id, the log folders of jobs that also have a folder without a log."""
    logless_jobs: set[str] = set()
    for jobs in (job_folder.jobs for job_folder in job_folders):
        jobs_with_log = {draft.job for draft in jobs.drafts if draft.attempts}
        logless_jobs.update(draft.job for draft in jobs.drafts if not draft.attempts)
        logless_jobs.update(jobs.metadata.keys() - jobs_with_log)
    folders: dict[str, list[Folder]] = defaultdict(list)
    for job_folder in job_folders if logless_jobs else ():
        for draft in job_folder.jobs.drafts:
            if draft.attempts and draft.job in logless_jobs:
                folders[draft.job].append(job_folder.folder)
    return folders


def assign_metadata(folder: FolderJobs) -> Assignment:
    """Assign each metadata file of a folder to the log of its job, by the job id.

    If logs without a job id remain (see `list_nameless`), a remaining metadata file may
    belong to them. It is assigned if it is the only one and the folder has only one log
    that its folders describe; otherwise it is undecided.
    """
    name_by_draft = {
        index: folder.metadata[draft.job]
        for index, draft in enumerate(folder.drafts)
        if draft.job in folder.metadata
    }
    jobs = {draft.job for draft in folder.drafts}
    unassigned = {job: name for job, name in folder.metadata.items() if job not in jobs}
    nameless = list_nameless(folder.drafts)
    if not nameless:
        return Assignment(name_by_draft, without_log=unassigned, undecided={})
    # one such log is the only log without a job id
    described_logs = [
        draft
        for draft in folder.drafts
        if draft.described_by_folders and draft.attempts
    ]
    if len(unassigned) == 1 and len(described_logs) == 1:
        [name] = unassigned.values()
        name_by_draft[folder.drafts.index(nameless[0])] = name
        return Assignment(name_by_draft, without_log={}, undecided={})
    return Assignment(name_by_draft, without_log={}, undecided=unassigned)


def list_nameless(drafts: Iterable[JobDraft]) -> tuple[JobDraft, ...]:
    """Return the jobs without an id that are described by their folders.

    The metadata in the folder may be theirs.
    """
    return tuple(
        draft for draft in drafts if draft.described_by_folders and not draft.job
    )


def _is_launched(job_folder: JobFolder) -> bool:
    """True if a folder contains a log of a launcher."""
    return any(draft.launched and draft.attempts for draft in job_folder.jobs.drafts)


def _list_experiment_folders(job_folder: JobFolder) -> list[tuple[str, ...]]:
    """Return a folder and its parents up to the experiment's folder, as components."""
    parts = job_folder.folder.parts
    depth = len(job_folder.layout.experiment)
    return [parts[: len(parts) - level] for level in range(depth)]


# Prefix of the launcher's own output, which exists even if the training left no log.
COPIED_OUTPUT = "sbatch_"


def find_empty_launches(
    walk: Walk, job_folders: Iterable[JobFolder], emptied: Collection[Folder]
) -> Iterator[JobFolder]:
    """Yield launch folders (`E/E_<time>`, `E/<epoch seconds>`) that contain no log.

    Each folder has one job without attempts. The folders in `emptied` lost links to
    files elsewhere and do not count as empty. Renamed, packed and unreadable logs count
    as logs.
    """
    nonempty_folders: set[Parts] = set()
    for job_folder in job_folders:
        if (
            job_folder.jobs.drafts
            or job_folder.jobs.metadata
            or any(_may_be_log(file.name) for file in job_folder.folder.files)
        ):
            _add_folders(nonempty_folders, job_folder.folder.parts)
    for folder in emptied:
        _add_folders(nonempty_folders, folder.parts)
    for path, _ in walk.unreadable:
        _add_folders(nonempty_folders, path.parts)
    # yield the remaining folders that are named like a launch
    for folder in walk.folders:
        if folder.only_chosen or folder.parts in nonempty_folders:
            continue
        if not _is_launch(folder):
            continue
        layout = find_layout(folder.parts)
        draft = JobDraft(
            "",
            f"{folder.name}.out",
            logless_job=LoglessJob.FOLDER,
            logless_path=folder.path,
        )
        # the experiment's folder or the launch below it, not a deeper task's folder
        if folder.name in layout.experiment[:2]:
            yield JobFolder(folder, FolderJobs((draft,), _NO_METADATA, ()), layout)


def _is_launch(folder: Folder) -> bool:
    """True if a folder is named like a launch of its parent: `<time>` or
    `<parent>_<time>`."""
    if len(folder.parts) < 2 or read_stamp(folder.name) is None:
        return False
    parent_name = folder.parts[-2]
    if names.read_experiment(parent_name, typed=False) is None:
        return False
    return folder.name.isdecimal() or folder.name.startswith(f"{parent_name}_")


def _may_be_log(name: str) -> bool:
    """True if a file is, or may contain, a log other than the launcher's own output."""
    plain = names.strip_compression(name).lower()
    if plain.startswith(COPIED_OUTPUT):
        return False
    return (
        plain.endswith((".out", ".log"))
        or RENAMED.fullmatch(name) is not None
        or has_archive_name(name)
    )


def _add_folders(folders: set[Parts], parts: Parts) -> None:
    """Add a folder and its parents to `folders`."""
    # a folder in `folders` was added together with its parents
    while parts and parts not in folders:
        folders.add(parts)
        parts = parts[:-1]
