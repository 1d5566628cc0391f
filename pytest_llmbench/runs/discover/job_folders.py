"""Which files of a folder are the attempts of one job, which are no logs of their own,
and whose metadata is whose.

Names alone decide that, the last of it in the light of the other folders.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_llmbench.core.log_records import VARIANT_MARK
from pytest_llmbench.core.run_records import AttemptFiles, LoglessJob
from pytest_llmbench.logs.sources.stores import is_called_archive
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
    "sbatch_": "the launcher's second copy of a job's output",
    "nsys_": "a profiler's output",
    "import_ckpt": "a checkpoint import, no training",
    "prepare_": "a preparation, no training",
}
_SKIPPED_LOG = re.compile(rf"(?:log-(?:.*\.)?)?({'|'.join(_SKIPPED)})", re.DOTALL)
_TRAINING = re.compile(rf"\.(?:{names.TYPE})_")
_WRITTEN_BESIDE = ("cmd-args.log", "git-info.log")
NOT_READ = "not read, by its name; give the file itself to read it as a log"
ERROR_ALONE = "standard error without a log beside it"
_STREAMS = ("combined.log", "stdout.log", "stderr.log")
_PUT_AWAY = re.compile(
    r"\.(?:out|log)(?=\.)"
)  # stands behind the name of a log that is renamed
_SEPARATOR = re.compile(r"[-_.]")


@dataclass(slots=True)
class JobDraft:
    """The files of one job in one folder."""

    job: str
    base: str
    pairs: names.NamePairs = ()
    # Whether the names of its folders speak of it too; not so for a file of any other
    # name beside a launcher's logs.
    spoken_for: bool = True
    launched: bool = True
    attempts: dict[int, AttemptFiles] = field(default_factory=dict)
    modified: float = 0.0
    metrics: bool = (
        False  # its files are of metrics, which count if no log has their steps
    )
    remains: LoglessJob | None = None  # what is left of a job without attempts
    remains_at: Path | None = None


@dataclass(frozen=True, slots=True)
class FolderJobs:
    """The jobs of one folder, its metadata files by job id, and its files that are no
    logs, with the reason."""

    drafts: tuple[JobDraft, ...]
    metadata: dict[str, Path]
    ignored: Notes


def group_files(folder: Folder) -> FolderJobs:
    """Sort the files of a folder into jobs and attempts; a plain file comes before a
    compressed one."""
    files = {file.name: file for file in sorted(folder.files, key=_is_compressed)}
    metadata = {
        match[1]: folder.path / file.name
        for file in folder.files
        if (match := FILE_NAME.fullmatch(file.name))
    }
    plain = {
        file.name: names.strip_compression(file.name).lower() for file in folder.files
    }
    plain_names = frozenset(plain.values())
    reasons = {
        name: _explain_skip(plain[name], plain_names, folder)
        for name in plain
        if name not in folder.chosen
    }
    logs = [
        file
        for name, file in files.items()
        if not reasons.get(name) and _is_log(name, folder)
    ]
    beside = _map_names(files)
    drafts = _draft_jobs(folder, logs, metadata, beside, reasons)
    _add_slurm(folder, files.values(), drafts, beside, reasons)
    used = {
        path.name
        for draft in drafts
        for attempt in draft.attempts.values()
        for path in (attempt.log, attempt.err)
        if path
    }
    alone = [
        name
        for name, known_as in plain.items()
        if known_as.endswith(".err") and name not in used
    ]
    remains = _find_logless(folder, alone, files, {draft.job for draft in drafts})
    drafts += {draft.job: draft for draft in remains.values()}.values()
    reasons |= {name: ERROR_ALONE for name in alone if name not in remains}
    drafts += _draft_metrics(folder, files.values(), reasons)
    ignored = [
        (folder.path / name, reason) for name, reason in reasons.items() if reason
    ]
    return FolderJobs(tuple(drafts), metadata, ignored)


def _draft_metrics(
    folder: Folder, files: Collection[WalkedFile], reasons: dict[str, str]
) -> list[JobDraft]:
    """Return the run of which a folder holds metrics, each file an attempt."""
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


def _find_logless(
    folder: Folder,
    alone: Collection[str],
    files: Mapping[str, WalkedFile],
    jobs: Collection[str],
) -> dict[str, JobDraft]:
    """Return by the names of files the jobs of which only standard error is left,
    beside `jobs`, which have logs: such a file is called as a launcher calls a
    log's."""
    by_job: dict[str, JobDraft] = {}
    by_name: dict[str, JobDraft] = {}
    put_away = (
        {other[: end.start()] for other in files for end in _PUT_AWAY.finditer(other)}
        if alone
        else ()
    )
    for name in alone:
        stem = names.strip_suffix(names.strip_compression(name))
        if stem in put_away or not names.is_launched(f"{stem}.out"):
            continue
        slurm = _SLURM.fullmatch(f"{stem}.out")
        log_name = names.read_log_name(stem, folder.name)
        job = slurm[1] if slurm else log_name.job
        if job and job not in jobs:
            at = folder.path / name
            draft = JobDraft(
                job,
                log_name.base,
                log_name.pairs,
                remains=LoglessJob.STANDARD_ERROR,
                remains_at=at,
            )
            by_name[name] = by_job.setdefault(job, draft)
            by_name[name].modified = max(by_name[name].modified, files[name].modified)
    return by_name


def is_read(name: str) -> bool:
    """Whether a file of this name in a folder would be read, or is evidence of a
    profile."""
    plain = names.strip_compression(name).lower()
    logged = names.is_called_log(plain) or plain.endswith((".err", REPORT))
    read = logged or is_metrics(name) or is_called_archive(name)
    return not name.startswith(".") and (read or bool(FILE_NAME.fullmatch(name)))


def _is_log(name: str, folder: Folder) -> bool:
    plain = names.strip_compression(name)
    return name in folder.chosen or (
        names.is_called_log(plain.lower()) and not _SLURM.fullmatch(plain)
    )


def _is_compressed(file: WalkedFile) -> bool:
    return names.strip_compression(file.name) != file.name


def _explain_skip(name: str, others: Collection[str], folder: Folder) -> str:
    """Return why a file is not taken as a log; an empty string where it is, or where
    nobody would expect it to be."""
    if name.endswith((".yaml", ".yml", ".err", VARIANT_MARK)) or is_metrics(name):
        return ""
    if not names.is_called_log(name):
        return NOT_READ
    match = _SKIPPED_LOG.match(name)
    if match and (match.start(1) == 0 or not _TRAINING.search(name)):
        return _SKIPPED[match[1]]
    if name in _WRITTEN_BESIDE:
        return "written by the framework beside its log"
    return _explain_stream(name, others, folder) if name in _STREAMS else ""


def _explain_stream(name: str, others: Collection[str], folder: Folder) -> str:
    """Return why one of a local executor's files is not the log: a better one is there,
    or process 0 has it."""
    if folder.name.isdecimal() and folder.name != "0":
        return "another process of the run that process 0 logs"
    better = next(
        (stream for stream in _STREAMS[: _STREAMS.index(name)] if stream in others), ""
    )
    return f"a part or a second stream of {better} beside it" if better else ""


def _draft_jobs(
    folder: Folder,
    logs: Iterable[WalkedFile],
    metadata: Collection[str],
    beside: Mapping[str, str],
    reasons: dict[str, str],
) -> list[JobDraft]:
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
                f"a compressed copy of {same_job.attempts[number].log.name} beside it"
            )
            continue
        if (
            number in same_job.attempts
        ):  # `x_12.out` and `x_12_0.out`: two logs that claim to be one attempt
            same_job = by_name[draft.job, file.name] = draft
        err = beside.get(f"{names.strip_suffix(plain)}.err") or beside.get(
            _name_second_stream(plain)
        )
        other = (
            folder.path / err if err and err != file.name else None
        )  # standard error may be the log itself
        same_job.attempts[number] = AttemptFiles(number, folder.path / file.name, other)
        same_job.modified = max(same_job.modified, file.modified)
    drafts = list(by_name.values())
    beside_launched = any(draft.launched for draft in drafts)
    for draft in drafts:
        draft.spoken_for = draft.launched or not beside_launched
    return drafts


def _draft_job(
    file: str, folder: Folder, metadata: Collection[str]
) -> tuple[JobDraft, int]:
    """Return the job that a log's name speaks of, still without attempts, and the
    number of this attempt."""
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
    ends = (
        (
            stem[begin:]
            for begin in (0, *(sign.end() for sign in _SEPARATOR.finditer(stem)))
        )
        if metadata
        else ()
    )
    job = name.job or next((end for end in ends if end in metadata), "")
    return JobDraft(
        job, name.base + suffix, name.pairs, launched=stem.lower().startswith("log-")
    ), name.attempt


def _map_names(files: Iterable[str]) -> dict[str, str]:
    """Return by their own names and those before compression the names of files, the
    first of those that share one."""
    by_name: dict[str, str] = {}
    for name in files:
        by_name.setdefault(name, name)
        by_name.setdefault(names.strip_compression(name), name)
    return by_name


def _name_second_stream(file: str) -> str:
    return names.name_paired_stream(file, "stderr")


def _add_slurm(
    folder: Folder,
    files: Iterable[WalkedFile],
    drafts: list[JobDraft],
    beside: Mapping[str, str],
    reasons: dict[str, str],
) -> None:
    """Give Slurm's own output file to its job: as the log where the job has no other,
    else as its standard error.

    A requeued job has one such file for all attempts; which of them it speaks of cannot
    be told, so it is left out.
    """
    of_job: dict[str, list[JobDraft]] = defaultdict(list)
    for draft in drafts:
        of_job[draft.job].append(draft)
    for file in files:
        plain = names.strip_compression(file.name)
        slurm = _SLURM.fullmatch(plain)
        if not slurm or file.name in folder.chosen:
            continue
        path = folder.path / file.name
        own = of_job[slurm[1]]
        own = [
            draft for draft in own if draft.launched
        ] or own  # not a copy beside the launcher's log
        attempts = [
            (draft, attempt_files)
            for draft in own
            for attempt_files in draft.attempts.values()
        ]
        if not own:
            stem = names.strip_suffix(plain)
            err = beside.get(f"{stem}.err")
            attempt = AttemptFiles(0, path, folder.path / err if err else None)
            draft = JobDraft(
                slurm[1], stem, attempts={0: attempt}, modified=file.modified
            )
            drafts.append(draft)
            of_job[draft.job].append(draft)
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
            reasons[file.name] = f"the log of job {slurm[1]} stands beside it"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """One folder, its jobs, and the layout it stands in."""

    folder: Folder
    jobs: FolderJobs
    where: Layout
    metrics: tuple[JobDraft, ...] = ()  # those that may be of the same runs as logs


@dataclass(frozen=True, slots=True)
class Assignment:
    """The metadata files of one folder."""

    of_draft: Mapping[int, Path]  # by the position of the draft they belong to
    without_log: Mapping[str, Path]  # by job id, of jobs that have no log here
    undecided: Mapping[str, Path]  # by job id, of which nobody can tell


def find_job_folders(folders: Iterable[Folder]) -> tuple[JobFolder, ...]:
    """Sort the files of all folders into jobs.

    A stray file in or above the folder of an experiment's launched logs speaks for
    itself: the names of its folders speak of those logs.
    """
    places = [
        JobFolder(folder, group_files(folder), find_layout(folder.parts))
        for folder in folders
        if folder.files
    ]
    job_folders = _set_metrics_apart(places)
    strays = [
        (draft, place)
        for place in job_folders
        for draft in place.jobs.drafts
        if not (draft.launched or draft.job)
    ]
    taken = {
        parts
        for place in job_folders
        if strays and _is_launched(place)
        for parts in _list_experiment_folders(place)
    }
    for draft, place in strays:
        if place.folder.parts in taken:
            draft.spoken_for = False
    return job_folders


def _set_metrics_apart(places: Sequence[JobFolder]) -> tuple[JobFolder, ...]:
    """Return folders with their metrics apart if the path that led there leads to a
    log, too."""
    logged = {
        place.folder.given_path
        for place in places
        if any(not draft.metrics for draft in place.jobs.drafts)
    }
    return tuple(
        _split_metrics(place) if place.folder.given_path in logged else place
        for place in places
    )


def _split_metrics(place: JobFolder) -> JobFolder:
    metrics = tuple(draft for draft in place.jobs.drafts if draft.metrics)
    drafts = tuple(draft for draft in place.jobs.drafts if not draft.metrics)
    return (
        replace(place, jobs=replace(place.jobs, drafts=drafts), metrics=metrics)
        if metrics
        else place
    )


def find_log_folders(job_folders: Iterable[JobFolder]) -> Mapping[str, Sequence[Path]]:
    """Return the folders in which logs of each job stand."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for place in job_folders:
        for job in (draft.job for draft in place.jobs.drafts if draft.attempts):
            folders[job].append(place.folder.path)
    return folders


def assign_metadata(folder: FolderJobs) -> Assignment:
    """Give each metadata file to the log of its job, or the only one to the only log,
    if that has no job id.

    Only logs that their folder speaks for can have metadata without a job id in their
    names.
    """
    own = {
        place: folder.metadata[job_draft.job]
        for place, job_draft in enumerate(folder.drafts)
        if job_draft.job in folder.metadata
    }
    jobs = {draft.job for draft in folder.drafts}
    free = {job: path for job, path in folder.metadata.items() if job not in jobs}
    nameless = list_nameless(folder.drafts)
    if not nameless:
        return Assignment(own, free, {})
    if (
        len(free) == 1
        and sum(bool(draft.spoken_for and draft.attempts) for draft in folder.drafts)
        == 1
    ):
        return Assignment(
            {**own, folder.drafts.index(nameless[0]): next(iter(free.values()))}, {}, {}
        )
    return Assignment(own, {}, free)


def list_nameless(drafts: Iterable[JobDraft]) -> tuple[JobDraft, ...]:
    """Return the logs whose job nothing tells but perhaps the metadata beside them."""
    return tuple(draft for draft in drafts if draft.spoken_for and not draft.job)


def _is_launched(place: JobFolder) -> bool:
    return any(draft.launched and draft.attempts for draft in place.jobs.drafts)


def _list_experiment_folders(place: JobFolder) -> list[tuple[str, ...]]:
    """Return the parts of a folder and of those above it, up to its experiment's."""
    parts = place.folder.parts
    return [parts[: len(parts) - above] for above in range(len(place.where.experiment))]


# What the launcher's own output is called: it is there although the training left no
# log.
COPIED_OUTPUT = "sbatch_"

Parts = tuple[str, ...]


def find_empty_launches(
    walk: Walk, job_folders: Iterable[JobFolder], emptied: Collection[Folder]
) -> Iterator[JobFolder]:
    """Yield the folders of launches, `E/E_<time>` and `E/<epoch seconds>`, with no log
    in or below them, each with a job that left nothing.

    `emptied` are folders all of whose files are other names of files elsewhere. What
    was put away, packed or cannot be read is a log: a user did that, or another item
    says so.
    """
    filled: set[Parts] = set()
    for place in job_folders:
        if (
            place.jobs.drafts
            or place.jobs.metadata
            or any(_may_be_log(file.name) for file in place.folder.files)
        ):
            _add_folders(filled, place.folder.parts)
    for folder in emptied:
        _add_folders(filled, folder.parts)
    for path, _ in walk.unreadable:
        _add_folders(filled, path.parts)
    for folder in walk.folders:
        if folder.parts not in filled and not folder.only_chosen and _is_launch(folder):
            where = find_layout(folder.parts)
            left = JobDraft(
                "",
                f"{folder.name}.out",
                remains=LoglessJob.FOLDER,
                remains_at=folder.path,
            )
            if where.experiment and folder.name in where.experiment[:2]:
                yield JobFolder(folder, FolderJobs((left,), {}, []), where)


def _is_launch(folder: Folder) -> bool:
    """Whether a folder is called as that of one launch: it bears a time, and its
    experiment's name or no other."""
    if read_stamp(folder.name) is None:
        return False
    above = (
        names.read_experiment(folder.parts[-2], typed=False)
        if len(folder.parts) > 1
        else None
    )
    return above is not None and (
        folder.name.isdecimal() or folder.name.startswith(f"{folder.parts[-2]}_")
    )


def _may_be_log(name: str) -> bool:
    plain = names.strip_compression(name).lower()
    logged = (
        plain.endswith((".out", ".log"))
        or RENAMED.fullmatch(name) is not None
        or is_called_archive(name)
    )
    return logged and not plain.startswith(COPIED_OUTPUT)


def _add_folders(filled: set[Parts], parts: Parts) -> None:
    """Add a folder and all above it."""
    while parts and parts not in filled:
        filled.add(parts)
        parts = parts[:-1]
