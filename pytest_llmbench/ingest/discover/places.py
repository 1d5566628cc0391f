"""What the files of a folder are in the light of the other folders, and whose metadata is whose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.ingest.discover.folders import Layout, layout
from pytest_llmbench.ingest.discover.group import Draft, Group, group
from pytest_llmbench.ingest.discover.walk import Folder


@dataclass(frozen=True, slots=True)
class Place:
    """One folder, its jobs, and the layout it stands in."""

    folder: Folder
    group: Group
    where: Layout


@dataclass(frozen=True, slots=True)
class Assignment:
    """The metadata files of one folder: by the position of the draft they belong to, those whose job has no log here,
    and those of which nobody can tell. The last two are by job id."""

    of_draft: Mapping[int, Path]
    without_log: Mapping[str, Path]
    undecided: Mapping[str, Path]


def places(folders: Iterable[Folder]) -> tuple[Place, ...]:
    """Sort the files of all folders into jobs.

    A stray file in or above the folder of an experiment's launched logs speaks for itself: the names of its folders
    speak of those logs.
    """
    found = tuple(Place(folder, group(folder), layout(folder.parts)) for folder in folders if folder.files)
    strays = [(draft, place) for place in found for draft in place.group.drafts if not (draft.launched or draft.job)]
    taken = {parts for place in found if strays and _is_launched(place) for parts in _experiment_folders(place)}
    for draft, place in strays:
        if place.folder.parts in taken:
            draft.spoken_for = False
    return found


def homes(found: Iterable[Place]) -> Mapping[str, Sequence[Path]]:
    """Return the folders in which logs of each job stand."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for place in found:
        for draft in place.group.drafts:
            if draft.attempts:
                folders[draft.job].append(place.folder.path)
    return folders


def assign(found: Group) -> Assignment:
    """Give each metadata file to the log of its job, or the only one to the only log, if that has no job id.

    Only logs that their folder speaks for can have metadata without a job id in their names.
    """
    own = {place: found.metadata[one.job] for place, one in enumerate(found.drafts) if one.job in found.metadata}
    jobs = {draft.job for draft in found.drafts}
    free = {job: path for job, path in found.metadata.items() if job not in jobs}
    nameless = without_job_id(found.drafts)
    if not nameless:
        return Assignment(own, free, {})
    if len(free) == 1 and sum(bool(draft.spoken_for and draft.attempts) for draft in found.drafts) == 1:
        return Assignment({**own, found.drafts.index(nameless[0]): next(iter(free.values()))}, {}, {})
    return Assignment(own, {}, free)


def without_job_id(drafts: Iterable[Draft]) -> tuple[Draft, ...]:
    """Return the logs whose job nothing tells but perhaps the metadata beside them."""
    return tuple(draft for draft in drafts if draft.spoken_for and not draft.job)


def _is_launched(place: Place) -> bool:
    return any(draft.launched and draft.attempts for draft in place.group.drafts)


def _experiment_folders(place: Place) -> list[tuple[str, ...]]:
    """Return the parts of a folder and of those above it, up to its experiment's."""
    parts = place.folder.parts
    return [parts[: len(parts) - above] for above in range(len(place.where.experiment))]
