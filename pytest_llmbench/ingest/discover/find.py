"""Finding runs: every training log under the given paths, with what its names and metadata say of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.models import Clock, Dating, Discovery, Hint, Remains, RunFiles
from pytest_llmbench.ingest.discover import names
from pytest_llmbench.ingest.discover.evidence import OwnedRun, exclusion, twin, with_reports
from pytest_llmbench.ingest.discover.folders import Layout, surroundings
from pytest_llmbench.ingest.discover.group import ERROR_ALONE, Draft, Group
from pytest_llmbench.ingest.discover.launcher import launcher
from pytest_llmbench.ingest.discover.leftovers import empty_launches
from pytest_llmbench.ingest.discover.metadata import Metadata, read_metadata
from pytest_llmbench.ingest.discover.places import Assignment, Place, assign, homes, places, without_job_id
from pytest_llmbench.ingest.discover.stamps import NAME_OF, dated_by_name, is_zoned, stamp, started_by_name
from pytest_llmbench.ingest.discover.walk import File, Folder, Walk
from pytest_llmbench.ingest.sources.stores import Stores

_UNPRINTABLE = re.compile(r"[^\w./+~=,@-]+")
LAUNCHED_AT = "the launch time in the metadata"
_LAYOUT_WORDS = ("experiments", "results", "workloads", "nemo_run")


def find_runs(paths: Sequence[Path], stores: Stores | None = None) -> Discovery:
    """Return the runs under the paths in the order of their folders, each once; nothing that is met raises.

    A folder is searched with all below it; links to folders are followed once. A path to a file makes that file a log,
    whatever its name. A job of which only metadata is left is a run without attempts. Times are UTC; what is written
    without a zone is taken as local time of this machine. Archives are read as folders where `stores` are given, which
    then open the files that were found in them.
    """
    walk = Walk(stores or Stores(), opens_archives=stores is not None).run(paths)
    emptied = _drop_doubles(walk)
    found = places(walk.folders)
    found = (*found, *empty_launches(walk, found, emptied))
    logged = homes(found)
    met = frozenset(folder.text for folder in walk.folders)
    owned: list[OwnedRun] = [
        (_with_twin(run, place, met), place.where.inside) for place in found for run in _runs(place, logged, walk)
    ]
    crowded = {place.folder.path for place in found if place.folder.only_chosen and len(place.group.drafts) > 1}
    runs = with_reports(owned, walk.reports, crowded)
    return Discovery(_with_unique_ids(runs), tuple(walk.ignored), tuple(walk.unreadable))


def _with_twin(run: RunFiles, place: Place, folders: Collection[str]) -> RunFiles:
    reason, because = twin(place.folder.parts, len(place.where.inside), folders)
    return replace(run, twin_of=reason, twin_because=because) if reason else run


def _drop_doubles(walk: Walk) -> list[Folder]:
    """Keep each file once: a second name of one file (a link, a snapshot's hard link) is no second run.

    Returns the folders that lost one.
    """
    places = [(file, folder) for folder in walk.folders for file in folder.files]
    if len({file.identity for file, _ in places}) == len(places):
        return []
    emptied = []
    places.sort(key=lambda place: (place[0].link, -len(place[1].parts), place[1].parts, place[0].name))
    first: dict[tuple[int, int], tuple[File, Folder]] = {}
    for file, folder in places:
        known, beside = first.setdefault(file.identity, (file, folder))
        if known is not file:
            folder.files.remove(file)
            emptied.append(folder)
            walk.ignored.append((folder.path / file.name, f"another name of {beside.path / known.name}"))
            if file.name in folder.chosen:
                beside.chosen |= {known.name}
    return emptied


def _runs(place: Place, logged: Mapping[str, Sequence[Path]], walk: Walk) -> Iterator[RunFiles]:
    """Yield the runs of one folder; what is left over in it goes to the walk's notes."""
    folder, found = place.folder, place.group
    assigned = assign(found)
    if folder.only_chosen:
        for draft in found.drafts:
            draft.attempts = {n: one for n, one in draft.attempts.items() if one.log.name in folder.chosen}
    else:
        walk.ignored += found.ignored
    _note_undecided(assigned, found, walk)
    for position, draft in enumerate(found.drafts):
        if draft.attempts:
            path = assigned.of_draft.get(position)
            record = _record(path, walk)
            yield _found(draft, place, record, path if record else None)
        elif draft.remains and not folder.only_chosen:
            yield from _left(draft, place, assigned.of_draft.get(position), logged, walk)
    if not folder.only_chosen:
        for job, path in assigned.without_log.items():
            yield from _without_log(job, path, place, logged, walk)


def _left(
    draft: Draft, place: Place, metadata: Path | None, logged: Mapping[str, Sequence[Path]], walk: Walk
) -> Iterator[RunFiles]:
    """Yield the run of a job that left no log but its standard error, or the folder of its launch alone."""
    home = next(iter(logged.get(draft.job, ())), None) if draft.job else None
    if home:
        walk.ignored.append((draft.remains_at or place.folder.path, f"the log of job {draft.job} stands in {home}"))
        return
    record = _record(metadata, walk)
    run = _found(draft, place, record, metadata if record else None)
    if {"recipe", "size"} <= {hint.field for hint in run.hints}:
        yield run
    elif draft.remains is Remains.STANDARD_ERROR:
        walk.ignored.append((draft.remains_at or place.folder.path, ERROR_ALONE))


def _without_log(
    job: str, path: Path, place: Place, logged: Mapping[str, Sequence[Path]], walk: Walk
) -> Iterator[RunFiles]:
    """Yield the run of a job of which only metadata is left: the newest job must not be passed over because it died."""
    home = next((home for home in logged.get(job, ()) if home in path.parents or path.parent in home.parents), None)
    if home:
        walk.ignored.append((path, f"the log of job {job} stands elsewhere, in {home}"))
        return
    modified = next(file.modified for file in place.folder.files if file.name == path.name)
    draft = Draft(job, "llmb-config", modified=modified, remains=Remains.METADATA, remains_at=path)
    yield _found(draft, place, _record(path, walk), path)


def _note_undecided(assigned: Assignment, found: Group, walk: Walk) -> None:
    """Report the metadata that may speak of one of several logs: ignored, it could not contradict a wrong one."""
    logs = [attempt.log.name for draft in without_job_id(found.drafts) for attempt in draft.attempts.values()]
    for job, path in assigned.undecided.items():
        if logs:
            named = f"no job id in the name of {join_first(logs)}"
            walk.unreadable.append((path, f"cannot be told which log, if any, is of job {job}: {named}"))


def _record(path: Path | None, walk: Walk) -> Metadata | None:
    """Read a metadata file; what in it cannot be used is noted as unreadable."""
    if path is None:
        return None
    try:
        record = read_metadata(path, walk.stores.small)
    except LogError as error:
        walk.unreadable.append((path, str(error)))
        return None
    walk.unreadable += [(path, f"{odd}; only the rest of it is used") for odd in record.odd]
    return record


def _found(draft: Draft, place: Place, record: Metadata | None, metadata: Path | None) -> RunFiles:
    folder, where = place.folder, place.where
    attempts = tuple(attempt for _, attempt in sorted(draft.attempts.items()))
    spoken_for = draft.spoken_for and (draft.launched or _is_run_folder(folder.name, where))
    inside = where.inside if spoken_for else ()
    job = draft.job or (record.job if record else "")
    logs = [names.uncompressed(one.log.name) for one in attempts]
    own_names = (*map(names.stem, logs), *reversed(inside))
    excluded, because = exclusion(record, own_names)
    started, started_from = started_by_name(where.experiment)
    if record and record.started:
        started, started_from = record.started, LAUNCHED_AT
    dated, dated_from = (None, "") if started else dated_by_name(folder.below_given)
    hints = _collect_hints(draft, folder, where if spoken_for else None, record)
    datings = tuple(_datings(record, where, folder))
    return RunFiles(
        id=_short_id(draft, folder, where, job),
        folder=folder.path,
        attempts=attempts,
        hints=hints,
        job_id=job,
        layout=where.name if spoken_for else "",
        metadata=metadata,
        started=started,
        started_from=started_from,
        dated=dated,
        dated_from=dated_from,
        datings=datings,
        remains=draft.remains,
        remains_at=draft.remains_at,
        modified=_moment(draft.modified),
        excluded=excluded,
        excluded_because=because,
        build=_build(record, hints),
        launcher=launcher(record.launcher if record else "", logs, folder.name, where),
        saves=record.saves if record else "",
        environment=record.environment if record else (),
    )


def _datings(record: Metadata | None, where: Layout, folder: Folder) -> Iterator[Dating]:
    """Yield all times that names and metadata give, each with what says it, the most certain first."""
    if record and record.started:
        yield Dating(Clock.METADATA, record.started, LAUNCHED_AT, record.zoned)
    for clock, (moment, source) in (
        (Clock.FOLDER_NAME, started_by_name(where.experiment)),
        (Clock.FOLDER_ABOVE, dated_by_name(folder.below_given)),
    ):
        if moment is not None:
            yield Dating(clock, moment, source, is_zoned(source.removeprefix(NAME_OF)))


def _moment(modified: float) -> datetime | None:
    """Return the time of a file; None for 0, which archives have where it is left out, and for what no calendar has."""
    try:
        return datetime.fromtimestamp(modified, UTC) if modified else None
    except (ValueError, OverflowError, OSError):
        return None


def _build(record: Metadata | None, hints: Sequence[Hint]) -> str:
    """Return the container, the versions and the release of a run as one text; sources that differ are all in it."""
    releases = {f"release={hint.value.removeprefix('v')}" for hint in hints if hint.field == "release"}
    return "; ".join(sorted(releases.union(record.build if record else ())))


def _is_run_folder(name: str, where: Layout) -> bool:
    """Whether a folder is a run's own by its name, so that a log of any name in it belongs to that run."""
    ends = where.name == "results" and where.inside[-1].isdecimal() and len(where.inside) <= 4
    return ends or names.experiment(name, typed=False) is not None or stamp(name) is not None


def _collect_hints(draft: Draft, folder: Folder, where: Layout | None, record: Metadata | None) -> tuple[Hint, ...]:
    """Return what folders, file name and metadata say, each thing once; of the surroundings, what nothing else says."""
    source = f"file {draft.attempts[min(draft.attempts)].log.name}" if draft.attempts else ""
    said = list(where.hints) if where else []
    known = {(hint.field, hint.value): hint for hint in reversed(said)}
    said += [known.get(pair) or Hint(*pair, source) for pair in draft.said]
    said += record.hints if record else ()
    fields = {hint.field for hint in said}
    said += [hint for hint in surroundings(folder.parts) if hint.field not in fields]
    return tuple({(hint.field, hint.value.casefold()): hint for hint in reversed(said)}.values())[::-1]


def _short_id(draft: Draft, folder: Folder, where: Layout, job: str) -> str:
    """Return a name without a machine's paths: the folders below the given path that tell runs apart, and the job.

    The given folder itself is named only where nothing stands below it: its name may change from night to night.
    """
    below = folder.below_given
    parts = _distinct(below[1:]) or _distinct(below)
    stem = names.stem(draft.base).removeprefix("log-")
    tail = f"{stem}_{job}" if where.name == "results" and job else job or stem
    return _printable("/".join([*parts, tail]))


@lru_cache(1024)
def _distinct(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Drop layout words, the workload above an experiment, and of an experiment's nested folders all but the first."""
    experiment = next((part for part in parts if names.experiment(part, typed=False)), "")
    above = parts[: parts.index(experiment)] if experiment else ()
    return tuple(
        part
        for place, part in enumerate(parts)
        if part
        and part.lower() not in _LAYOUT_WORDS
        and not (place < len(above) and names.workload(part))
        and not (place > len(above) and experiment and part.startswith(experiment))
    )


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("_", text)


def _with_unique_ids(runs: Sequence[RunFiles]) -> tuple[RunFiles, ...]:
    """Tell runs of one id apart by the names of their logs, then by number, in the order of their paths."""
    ordered = sorted(runs, key=lambda run: (run.folder.parts, len(run.job_id), run.job_id, _file(run).name))
    named = _retold(ordered, lambda _, run: _printable(_file(run).stem))
    return tuple(_retold(named, lambda number, _: f"~{number}"))


def _file(run: RunFiles) -> Path:
    """Return the first log of a run, or the metadata that is all that is left of it."""
    return run.attempts[0].log if run.attempts else run.metadata or run.folder


def _retold(runs: Sequence[RunFiles], addition: Callable[[int, RunFiles], str]) -> list[RunFiles]:
    """Append what its number and itself make of it to the id of each run that shares its id with another."""
    counts = Counter(run.id for run in runs)
    numbered = enumerate(runs, start=1)
    return [replace(run, id=f"{run.id}/{addition(n, run)}") if counts[run.id] > 1 else run for n, run in numbered]
