"""Folders of launches in which no log stands: the job waits in the queue, or died before it wrote one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pytest_llmbench.core.models import Remains
from pytest_llmbench.ingest.discover import names
from pytest_llmbench.ingest.discover.folders import find_layout
from pytest_llmbench.ingest.discover.group import FolderJobs, JobDraft
from pytest_llmbench.ingest.discover.places import JobFolder
from pytest_llmbench.ingest.discover.stamps import read_stamp
from pytest_llmbench.ingest.discover.walk import RENAMED, Folder, Walk
from pytest_llmbench.ingest.sources.stores import is_called_archive

COPIED_OUTPUT = "sbatch_"
"""What the launcher's own output is called: it is there although the training left no log."""

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
