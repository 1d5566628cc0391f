"""What the files of a folder are in the light of the other folders, and whose metadata is whose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.models import Remains
from pytest_llmbench.ingest.discover import names
from pytest_llmbench.ingest.discover.folders import Layout, find_layout
from pytest_llmbench.ingest.discover.group import FolderJobs, JobDraft, group_files
from pytest_llmbench.ingest.discover.stamps import read_stamp
from pytest_llmbench.ingest.discover.walk import RENAMED, Folder, Walk
from pytest_llmbench.ingest.sources.stores import is_called_archive


@dataclass(frozen=True, slots=True)
class JobFolder:
    """One folder, its jobs, and the layout it stands in."""

    folder: Folder
    jobs: FolderJobs
    where: Layout


@dataclass(frozen=True, slots=True)
class Assignment:
    """The metadata files of one folder."""

    of_draft: Mapping[int, Path]  # by the position of the draft they belong to
    without_log: Mapping[str, Path]  # by job id, of jobs that have no log here
    undecided: Mapping[str, Path]  # by job id, of which nobody can tell


def find_job_folders(folders: Iterable[Folder]) -> tuple[JobFolder, ...]:
    """Sort the files of all folders into jobs.

    A stray file in or above the folder of an experiment's launched logs speaks for itself: the names of its folders
    speak of those logs.
    """
    job_folders = tuple(
        JobFolder(folder, group_files(folder), find_layout(folder.parts)) for folder in folders if folder.files
    )
    strays = [
        (draft, place) for place in job_folders for draft in place.jobs.drafts if not (draft.launched or draft.job)
    ]
    taken = {
        parts for place in job_folders if strays and _is_launched(place) for parts in _list_experiment_folders(place)
    }
    for draft, place in strays:
        if place.folder.parts in taken:
            draft.spoken_for = False
    return job_folders


def find_log_folders(job_folders: Iterable[JobFolder]) -> Mapping[str, Sequence[Path]]:
    """Return the folders in which logs of each job stand."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for place in job_folders:
        for draft in place.jobs.drafts:
            if draft.attempts:
                folders[draft.job].append(place.folder.path)
    return folders


def assign_metadata(folder: FolderJobs) -> Assignment:
    """Give each metadata file to the log of its job, or the only one to the only log, if that has no job id.

    Only logs that their folder speaks for can have metadata without a job id in their names.
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
    if len(free) == 1 and sum(bool(draft.spoken_for and draft.attempts) for draft in folder.drafts) == 1:
        return Assignment({**own, folder.drafts.index(nameless[0]): next(iter(free.values()))}, {}, {})
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


# What the launcher's own output is called: it is there although the training left no log.
COPIED_OUTPUT = "sbatch_"

Parts = tuple[str, ...]


def find_empty_launches(
    walk: Walk, job_folders: Iterable[JobFolder], emptied: Collection[Folder]
) -> Iterator[JobFolder]:
    """Yield the folders of launches, `E/E_<time>` and `E/<epoch seconds>`, with no log in or below them, each with a
    job that left nothing.

    `emptied` are folders all of whose files are other names of files elsewhere. What was put away, packed or cannot be
    read is a log: a user did that, or another item says so.
    """
    filled: set[Parts] = set()
    for place in job_folders:
        if place.jobs.drafts or place.jobs.metadata or any(map(_is_log, (file.name for file in place.folder.files))):
            _add_folders(filled, place.folder.parts)
    for folder in emptied:
        _add_folders(filled, folder.parts)
    for path, _ in walk.unreadable:
        _add_folders(filled, path.parts)
    for folder in walk.folders:
        if folder.parts not in filled and not folder.only_chosen and _is_launch(folder):
            where = find_layout(folder.parts)
            left = JobDraft("", f"{folder.name}.out", remains=Remains.FOLDER, remains_at=folder.path)
            if where.experiment and folder.name in where.experiment[:2]:
                yield JobFolder(folder, FolderJobs((left,), {}, []), where)


def _is_launch(folder: Folder) -> bool:
    """Whether a folder is called as that of one launch: it bears a time, and its experiment's name or no other."""
    if read_stamp(folder.name) is None:
        return False
    above = names.read_experiment(folder.parts[-2], typed=False) if len(folder.parts) > 1 else None
    return above is not None and (folder.name.isdecimal() or folder.name.startswith(f"{folder.parts[-2]}_"))


def _is_log(name: str) -> bool:
    plain = names.strip_compression(name).lower()
    logged = plain.endswith((".out", ".log")) or RENAMED.fullmatch(name) is not None or is_called_archive(name)
    return logged and not plain.startswith(COPIED_OUTPUT)


def _add_folders(filled: set[Parts], parts: Parts) -> None:
    """Add a folder and all above it."""
    while parts and parts not in filled:
        filled.add(parts)
        parts = parts[:-1]
