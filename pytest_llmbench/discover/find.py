"""Finding runs: every training log under the given paths, with what its names and metadata say of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmbench.discover import names
from pytest_llmbench.discover.evidence import exclusion
from pytest_llmbench.discover.folders import Layout, layout, surroundings
from pytest_llmbench.discover.group import Draft, Group, group
from pytest_llmbench.discover.metadata import Metadata, read_metadata
from pytest_llmbench.discover.stamps import stamp, started_by_name
from pytest_llmbench.discover.walk import File, Folder, Walk
from pytest_llmbench.errors import LogError
from pytest_llmbench.models import Clue, Discovery, FoundRun

_LAYOUT_WORDS = ("experiments", "results", "workloads", "nemo_run")


def find_runs(paths: Sequence[Path]) -> Discovery:
    """Return the runs under the paths in the order of their folders, each once; nothing that is met raises.

    A folder is searched with all below it; links to folders are followed once. A path to a file makes that file a log,
    whatever its name. Times are UTC; what is written without a zone is taken as local time of this machine.
    """
    walk = Walk().run(paths)
    _drop_doubles(walk)
    runs = [run for folder in walk.folders for run in _runs(folder, walk)]
    return Discovery(_with_unique_ids(runs), tuple(walk.ignored), tuple(walk.unreadable))


def _drop_doubles(walk: Walk) -> None:
    """Keep each file once: a second name of one file (a link, a snapshot's hard link) is no second run."""
    places = [(file, folder) for folder in walk.folders for file in folder.files]
    places.sort(key=lambda place: (place[0].link, -len(place[1].path.parts), place[1].path, place[0].name))
    first: dict[tuple[int, int], tuple[File, Folder]] = {}
    for file, folder in places:
        known, beside = first.setdefault(file.identity, (file, folder))
        if known is not file:
            folder.files.remove(file)
            walk.ignored.append((folder.path / file.name, f"another name of {beside.path / known.name}"))
            if file.name in folder.chosen:
                beside.chosen |= {known.name}


def _runs(folder: Folder, walk: Walk) -> Iterator[FoundRun]:
    """Yield the runs of one folder; what is left over in it goes to the walk's notes."""
    found = group(folder)
    where = layout(folder.path.parts)
    paths = _metadata_paths(found)
    if not folder.only_chosen:
        walk.ignored += found.ignored
        without = (path for path in found.metadata.values() if path not in paths.values())
        walk.ignored += [(path, "no log of its job stands beside it") for path in without]
    for position, draft in enumerate(found.drafts):
        if folder.only_chosen:
            draft.attempts = {n: one for n, one in draft.attempts.items() if one.log.name in folder.chosen}
        if draft.attempts:
            record = _record(paths.get(position), walk)
            run = _found(draft, folder, where, record, alone=len(found.drafts) == 1)
            yield replace(run, metadata=paths[position]) if record else run


def _metadata_paths(found: Group) -> dict[int, Path]:
    """Return the metadata file of each job by its position: the one of its id, or the only one for the only run."""
    if len(found.drafts) == len(found.metadata) == 1 and not found.drafts[0].job:
        return dict(enumerate(found.metadata.values()))
    jobs = ((position, draft.job) for position, draft in enumerate(found.drafts))
    return {position: found.metadata[job] for position, job in jobs if job in found.metadata}


def _record(path: Path | None, walk: Walk) -> Metadata | None:
    """Read a metadata file; what in it cannot be used is noted as unreadable."""
    if path is None:
        return None
    try:
        record = read_metadata(path)
    except LogError as error:
        walk.unreadable.append((path, str(error)))
        return None
    walk.unreadable += [(path, f"{odd}; only the rest of it is used") for odd in record.odd]
    return record


def _found(draft: Draft, folder: Folder, where: Layout, record: Metadata | None, *, alone: bool) -> FoundRun:
    attempts = tuple(attempt for _, attempt in sorted(draft.attempts.items()))
    spoken_for = draft.spoken_for and (draft.launched or _is_run_folder(folder.path, where))
    inside = where.inside if spoken_for else ()
    job = draft.job or (record.job if record else "")
    own_names = (*(attempt.log.stem for attempt in attempts), *reversed(inside))
    excluded, because = exclusion(record, own_names, folder.reports, job, alone=alone)
    modified = datetime.fromtimestamp(draft.modified, UTC)
    above = (folder.given.name, *folder.path.relative_to(folder.given).parts)
    started, started_from = started_by_name(where.inside, above, modified)
    if record and record.started:
        started, started_from = record.started, "the launch time in the metadata"
    return FoundRun(
        id=_short_id(draft, folder, where, job),
        folder=folder.path,
        attempts=attempts,
        clues=_clues(draft, folder, where if spoken_for else None, record),
        job_id=job,
        layout=where.name if spoken_for else "",
        started=started,
        started_from=started_from,
        modified=modified,
        excluded=excluded,
        excluded_because=because,
    )


def _is_run_folder(path: Path, where: Layout) -> bool:
    """Whether a folder is a run's own by its name, so that a log of any name in it belongs to that run."""
    ends = where.name == "results" and where.inside[-1].isdecimal() and len(where.inside) <= 4
    return ends or names.experiment(path.name, typed=False) is not None or stamp(path.name) is not None


def _clues(draft: Draft, folder: Folder, where: Layout | None, record: Metadata | None) -> tuple[Clue, ...]:
    """Return what folders, file name and metadata say, each thing once; of the surroundings, what nothing else says."""
    source = f"file {min(draft.attempts.items())[1].log.name}"
    said = [*(where.clues if where else ()), *(Clue(field, value, source) for field, value in draft.said)]
    said += record.clues if record else ()
    fields = {clue.field for clue in said}
    said += [clue for clue in surroundings(folder.path.parts) if clue.field not in fields]
    return tuple({(clue.field, clue.value.casefold()): clue for clue in reversed(said)}.values())[::-1]


def _short_id(draft: Draft, folder: Folder, where: Layout, job: str) -> str:
    """Return a name without a machine's paths: the folders below the given path that tell runs apart, and the job."""
    parts = _distinct([folder.given.name, *folder.path.relative_to(folder.given).parts])
    stem = Path(draft.base).stem.removeprefix("log-")
    tail = f"{stem}_{job}" if where.name == "results" and job else job or stem
    return _printable("/".join([*parts, tail]))


def _distinct(parts: Sequence[str]) -> list[str]:
    """Drop layout words, the workload above an experiment, and of an experiment's nested folders all but the first."""
    experiment = next((part for part in parts if names.experiment(part, typed=False)), "")
    above = parts[: parts.index(experiment)] if experiment else ()
    return [
        part
        for place, part in enumerate(parts)
        if part
        and part.lower() not in _LAYOUT_WORDS
        and not (place < len(above) and names.workload(part))
        and not (place > len(above) and experiment and part.startswith(experiment))
    ]


def _printable(text: str) -> str:
    return re.sub(r"[^\w./+~=,@-]+", "_", text)


def _with_unique_ids(runs: Sequence[FoundRun]) -> tuple[FoundRun, ...]:
    """Tell runs of one id apart by the names of their logs, then by number, in the order of their paths."""
    ordered = sorted(runs, key=lambda run: (run.folder, len(run.job_id), run.job_id, run.attempts[0].log.name))
    named = _retold(ordered, [_printable(run.attempts[0].log.stem) for run in ordered])
    return tuple(_retold(named, [f"~{number}" for number in range(1, len(named) + 1)]))


def _retold(runs: Sequence[FoundRun], additions: Sequence[str]) -> list[FoundRun]:
    """Append its addition to the id of each run that shares its id with another."""
    counts = Counter(run.id for run in runs)
    pairs = zip(runs, additions, strict=True)
    return [replace(run, id=f"{run.id}/{more}") if counts[run.id] > 1 else run for run, more in pairs]
