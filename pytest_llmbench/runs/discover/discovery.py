"""Finding runs: every training log under the given paths, with what its names and
metadata say of it."""

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
    find_exclusion,
    find_twin,
)
from pytest_llmbench.runs.discover.folder_times import (
    read_filing_date,
    read_stamp,
    read_start,
)
from pytest_llmbench.runs.discover.folder_walk import RENAMED, Folder, Walk, WalkedFile
from pytest_llmbench.runs.discover.job_folders import (
    ERROR_ALONE,
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
    """Return the runs under the paths in the order of their folders, each once; nothing
    that is met raises.

    A folder is searched with all below it; links to folders are followed once. A path
    to a file makes that file a log, whatever its name. A job of which only metadata is
    left is a run without attempts. Times are UTC; what is written without a zone is
    taken as local time of this machine. Archives are read as folders where `stores` are
    given, which then open the files that were found in them. Files of metrics are runs
    if no log is found under the path that leads to them.
    """
    return RunSearch(paths, stores).discovery


class RunSearch:
    """A search for runs, which files can be added to whose text shows that they are
    logs."""

    def __init__(self, paths: Sequence[Path], stores: Stores | None = None) -> None:
        """Search the paths."""
        self._walk = Walk(stores or Stores(), opens_archives=stores is not None).run(
            paths
        )
        self.discovery = _find_named_runs(self._walk)

    def find_unnamed_runs(self, accepted: Collection[Path]) -> tuple[RunFiles, ...]:
        """Return the runs whose logs are these files, each with the other stream of its
        job."""
        by_folder: dict[str, set[str]] = defaultdict(set)
        for path in accepted:
            by_folder[str(path.parent)].add(path.name)
        taken = [run.id for run in (*self.discovery.runs, *self.discovery.metrics)]
        owned: list[OwnedRun] = []
        for folder in (
            folder for folder in self._walk.folders if folder.text in by_folder
        ):
            chosen = frozenset(by_folder[folder.text])
            place = _make_unnamed_folder(folder, chosen, self._walk.stores)
            owned += [
                (run, place.where.inside) for run in _make_runs(place, {}, self._walk)
            ]
        return _make_ids_unique(add_reports(owned, self._walk.reports, ()), taken)


def _make_unnamed_folder(
    folder: Folder, chosen: frozenset[str], stores: Stores
) -> JobFolder:
    """Return a folder with the chosen files and the other streams of their jobs
    alone."""
    streams = {names.name_paired_stream(name, "stderr") for name in chosen}
    wanted = chosen | (
        streams & {*folder.unnamed, *(file.name for file in folder.files)}
    )
    alone = replace(folder, files=[], unnamed=[], chosen=chosen, only_chosen=True)
    for name in sorted(wanted):
        with suppress(OSError):  # gone since it was found
            status = stores.stat(os.path.join(folder.text, name))
            alone.files.append(
                WalkedFile(name, status.st_mtime, (status.st_dev, status.st_ino))
            )
    return JobFolder(alone, group_files(alone), find_layout(alone.parts))


def _list_unnamed(walk: Walk) -> Iterator[UnnamedFiles]:
    """Yield the files on this machine and in archives that may be logs although they
    are not called so."""
    alone = defaultdict(list)
    for path, why in walk.ignored:
        if why == ERROR_ALONE or (
            why == NOT_READ
            and names.may_be_log(path.name)
            and not RENAMED.fullmatch(path.name)
        ):
            alone[str(path.parent)].append(path.name)
    for folder in walk.folders:
        found = (*folder.unnamed, *alone.get(folder.text, ()))
        if found and (
            os.path.isabs(folder.text)
            or walk.stores.find_archive(folder.path) is not None
        ):
            yield UnnamedFiles(folder.path, found, folder.given_path)
        elif found:  # elsewhere each file would have to be fetched
            walk.ignored += [
                (folder.path / name, NOT_READ)
                for name in folder.unnamed
                if names.is_like_log(name)
            ]


def _list_lone_errors(walk: Walk) -> Iterator[tuple[Path, float, str]]:
    """Yield the standard errors without a log that are called as those of the logs
    beside them, but for numbers."""
    alone = {path for path, why in walk.ignored if why == ERROR_ALONE}
    parents = {path.parent for path in alone}
    for folder in (
        folder for folder in walk.folders if parents and folder.path in parents
    ):
        plain = {file: names.strip_compression(file.name) for file in folder.files}
        logs = {
            _mask_numbers(name)
            for name in plain.values()
            if names.is_called_log(name.lower())
        }
        for file, name in plain.items():
            if folder.path / file.name in alone and _mask_numbers(name) in logs:
                yield folder.path / file.name, file.modified, ERROR_ALONE


def _mask_numbers(name: str) -> str:
    return _NUMBER.sub("#", names.strip_suffix(name))


def _find_named_runs(walk: Walk) -> Discovery:
    emptied = _drop_doubles(walk)
    job_folders = find_job_folders(walk.folders)
    job_folders = (*job_folders, *find_empty_launches(walk, job_folders, emptied))
    logged = find_log_folders(job_folders)
    met = frozenset(
        folder.text for folder in walk.folders if folder.text.endswith(tuple(TWINS))
    )
    owned: list[OwnedRun] = [
        (_mark_twin(run, place, met), place.where.inside)
        for place in job_folders
        for run in _make_runs(place, logged, walk)
    ]
    crowded = {
        place.folder.path
        for place in job_folders
        if place.folder.only_chosen and len(place.jobs.drafts) > 1
    }
    runs = _make_ids_unique(add_reports(owned, walk.reports, crowded))
    metrics: list[OwnedRun] = [
        (_make_run(draft, place, None, None, walk), place.where.inside)
        for place in job_folders
        for draft in place.metrics
        if not place.folder.only_chosen
    ]
    beside_logs = _make_ids_unique(
        add_reports(metrics, walk.reports, crowded), [run.id for run in runs]
    )
    marks = tuple(walk.marks.list_problems())
    hidden_files = [*walk.hidden, *_list_lone_errors(walk)]
    dated = (
        (path, _convert_time(modified), what) for path, modified, what in hidden_files
    )
    hidden = tuple(
        (path, modified, what) for path, modified, what in dated if modified is not None
    )
    unnamed = tuple(_list_unnamed(walk))
    return Discovery(
        runs,
        unnamed,
        beside_logs,
        tuple(walk.ignored),
        tuple(walk.unreadable),
        hidden,
        marks,
    )


def _mark_twin(run: RunFiles, place: JobFolder, folders: Collection[str]) -> RunFiles:
    reason, because = find_twin(place.folder.parts, len(place.where.inside), folders)
    return replace(run, twin_of=reason, twin_because=because) if reason else run


def _drop_doubles(walk: Walk) -> list[Folder]:
    """Keep each file once: a second name of one file (a link, a snapshot's hard link)
    is no second run.

    Returns the folders that lost one.
    """
    places = [(file, folder) for folder in walk.folders for file in folder.files]
    if len({file.identity for file, _ in places}) == len(places):
        return []
    emptied = []
    doubles: set[int] = set()
    places.sort(
        key=lambda place: (
            place[0].link,
            -len(place[1].parts),
            place[1].parts,
            place[0].name,
        )
    )
    first: dict[tuple[int, int], tuple[WalkedFile, Folder]] = {}
    for file, folder in places:
        original, beside = first.setdefault(file.identity, (file, folder))
        if original is not file:
            doubles.add(id(file))
            emptied.append(folder)
            walk.ignored.append(
                (
                    folder.path / file.name,
                    f"another name of {beside.path / original.name}",
                )
            )
            if file.name in folder.chosen:
                beside.chosen |= {original.name}
    for folder in {id(folder): folder for folder in emptied}.values():
        folder.files = [file for file in folder.files if id(file) not in doubles]
    return emptied


def _make_runs(
    place: JobFolder, logged: Mapping[str, Sequence[Path]], walk: Walk
) -> Iterator[RunFiles]:
    """Yield the runs of one folder; what is left over in it goes to the walk's
    notes."""
    folder, jobs = place.folder, place.jobs
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
    _note_undecided(assigned, jobs, walk)
    for position, draft in enumerate(jobs.drafts):
        if draft.attempts:
            path = assigned.of_draft.get(position)
            record = _read_record(path, walk)
            yield _make_run(draft, place, record, path if record else None, walk)
        elif draft.remains and not folder.only_chosen:
            yield from _make_logless_job(
                draft, place, assigned.of_draft.get(position), logged, walk
            )
    if not folder.only_chosen:
        for job, path in assigned.without_log.items():
            yield from _make_logless(job, path, place, logged, walk)


def _make_logless_job(
    draft: JobDraft,
    place: JobFolder,
    metadata: Path | None,
    logged: Mapping[str, Sequence[Path]],
    walk: Walk,
) -> Iterator[RunFiles]:
    """Yield the run of a job that left no log but its standard error, or the folder of
    its launch alone."""
    home = next(iter(logged.get(draft.job, ())), None) if draft.job else None
    if home:
        walk.ignored.append(
            (
                draft.remains_at or place.folder.path,
                f"the log of job {draft.job} stands in {home}",
            )
        )
        return
    record = _read_record(metadata, walk)
    run = _make_run(draft, place, record, metadata if record else None, walk)
    if {"recipe", "size"} <= {hint.field for hint in run.hints}:
        yield run
    elif draft.remains is LoglessJob.STANDARD_ERROR:
        walk.ignored.append((draft.remains_at or place.folder.path, ERROR_ALONE))


def _make_logless(
    job: str,
    path: Path,
    place: JobFolder,
    logged: Mapping[str, Sequence[Path]],
    walk: Walk,
) -> Iterator[RunFiles]:
    """Yield the run of a job of which only metadata is left: the newest job must not be
    passed over because it died."""
    home = next(
        (
            home
            for home in logged.get(job, ())
            if home in path.parents or path.parent in home.parents
        ),
        None,
    )
    if home:
        walk.ignored.append((path, f"the log of job {job} stands elsewhere, in {home}"))
        return
    modified = place.folder.get_file(path.name).modified
    draft = JobDraft(
        job,
        "llmb-config",
        modified=modified,
        remains=LoglessJob.METADATA,
        remains_at=path,
    )
    yield _make_run(draft, place, _read_record(path, walk), path, walk)


def _note_undecided(assigned: Assignment, jobs: FolderJobs, walk: Walk) -> None:
    """Report the metadata that may speak of one of several logs: ignored, it could not
    contradict a wrong one."""
    logs = [
        attempt.log.name
        for draft in list_nameless(jobs.drafts)
        for attempt in draft.attempts.values()
    ]
    for job, path in assigned.undecided.items():
        if logs:
            named = f"no job id in the name of {join_first(logs)}"
            walk.unreadable.append(
                (path, f"cannot be told which log, if any, is of job {job}: {named}")
            )


def _read_record(path: Path | None, walk: Walk) -> Metadata | None:
    """Read a metadata file; what in it cannot be used is noted as unreadable."""
    if path is None:
        return None
    try:
        record = read_metadata(path, walk.stores.read_small)
    except LogError as error:
        walk.unreadable.append((path, str(error)))
        return None
    walk.unreadable += [
        (path, f"{odd}; only the rest of it is used") for odd in record.odd
    ]
    return record


def _list_places(
    attempts: Sequence[AttemptFiles], folder: Folder, walk: Walk
) -> list[Path]:
    """Return where logs lie, those that are links, or lie behind one, also where these
    lead."""
    logs = [files.log for files in attempts]
    behind_link = folder.given_path in walk.linked
    linked = (log for log in logs if behind_link or folder.get_file(log.name).link)
    return [*logs, *(Path(os.path.realpath(log)) for log in linked)]


def _make_run(
    draft: JobDraft,
    place: JobFolder,
    record: Metadata | None,
    metadata: Path | None,
    walk: Walk,
) -> RunFiles:
    folder, where = place.folder, place.where
    attempts = tuple(attempt for _, attempt in sorted(draft.attempts.items()))
    spoken_for = draft.spoken_for and (
        draft.launched or _is_run_folder(folder.name, where)
    )
    inside = where.inside if spoken_for else ()
    stated = record or NO_METADATA
    job = draft.job or stated.job
    logs = [names.strip_compression(files.log.name) for files in attempts]
    own_names = (*map(names.strip_suffix, logs), *reversed(inside))
    excluded, because = find_exclusion(record, own_names)
    # what else excludes a run counts in its A/B, too, and stays
    mark = (
        walk.marks.find(_list_places(attempts, folder, walk), job, draft.modified)
        if excluded is None
        else None
    )
    if mark is not None:
        excluded, because = Reason.VARIANT, mark.because
    hints = _collect_hints(draft, folder, where if spoken_for else None, record)
    datings = tuple(_list_start_candidates(record, where, folder))
    by_clock = {dating.clock: dating for dating in datings}
    start = by_clock.get(Clock.METADATA) or by_clock.get(Clock.FOLDER_NAME)
    filed = None if start else by_clock.get(Clock.FOLDER_ABOVE)
    return RunFiles(
        id=_make_id(draft, folder, where, job),
        folder=folder.path,
        attempts=attempts,
        hints=hints,
        job_id=job,
        number="" if job or not attempts else find_job_number(attempts[-1].log.parts),
        layout=where.name if spoken_for else "",
        metadata=metadata,
        started=start.moment if start else None,
        started_from=start.source if start else "",
        dated=filed.moment if filed else None,
        dated_from=filed.source if filed else "",
        datings=datings,
        remains=draft.remains,
        remains_at=draft.remains_at,
        modified=_convert_time(draft.modified),
        excluded=excluded,
        excluded_because=because,
        trial_pending_since=_convert_time(mark.pending_since)
        if mark and mark.pending_since
        else None,
        build=_describe_build(record, hints),
        launcher=find_launcher(stated.launcher, logs, folder.name, where),
        saves=stated.saves,
        environment=stated.environment,
        given_path=folder.given_path,
    )


def _list_start_candidates(
    record: Metadata | None, where: Layout, folder: Folder
) -> Iterator[StartCandidate]:
    """Yield all times that names and metadata give, each with what says it, the most
    certain first."""
    if record and record.started:
        yield StartCandidate(
            Clock.METADATA,
            record.started,
            "the launch time in the metadata",
            record.zoned,
        )
    yield from filter(
        None, (read_start(where.experiment), read_filing_date(folder.relative_names))
    )


def _convert_time(modified: float) -> datetime | None:
    """Return the time of a file; None for 0, which archives have where it is left out,
    and for what no calendar has."""
    try:
        return datetime.fromtimestamp(modified, UTC) if modified else None
    except (ValueError, OverflowError, OSError):
        return None


def _describe_build(record: Metadata | None, hints: Sequence[Hint]) -> tuple[str, ...]:
    """Return the container, the versions and the release of a run, sorted; of sources
    that differ, all."""
    releases = {
        f"release={hint.value.removeprefix('v')}"
        for hint in hints
        if hint.field == "release"
    }
    return tuple(sorted(releases.union(record.build if record else ())))


def _is_run_folder(name: str, where: Layout) -> bool:
    """Whether a folder is a run's own by its name, so that a log of any name in it
    belongs to that run."""
    ends = (
        where.name == "results"
        and where.inside[-1].isdecimal()
        and len(where.inside) <= 4
    )
    return (
        ends
        or names.read_experiment(name, typed=False) is not None
        or read_stamp(name) is not None
    )


def _collect_hints(
    draft: JobDraft, folder: Folder, where: Layout | None, record: Metadata | None
) -> tuple[Hint, ...]:
    """Return what folders, file name and metadata say, each thing once; of the
    surroundings, what nothing else says."""
    source = (
        f"file {draft.attempts[min(draft.attempts)].log.name}" if draft.attempts else ""
    )
    hints = list(where.hints) if where else []
    of_layout = {(hint.field, hint.value): hint for hint in reversed(hints)}
    hints += [of_layout.get(pair) or Hint(*pair, source) for pair in draft.pairs]
    hints += record.hints if record else ()
    fields = {hint.field for hint in hints}
    hints += [
        hint for hint in find_surroundings(folder.parts) if hint.field not in fields
    ]
    return tuple(
        {(hint.field, hint.value.casefold()): hint for hint in reversed(hints)}.values()
    )[::-1]


def _make_id(draft: JobDraft, folder: Folder, where: Layout, job: str) -> str:
    """Return a name without a machine's paths: the folders below the given path that
    tell runs apart, and the job.

    The given folder itself is named only where nothing stands below it: its name may
    change from day to day.
    """
    below = folder.relative_names
    parts = _drop_layout_words(below[1:]) or _drop_layout_words(below)
    stem = names.strip_suffix(draft.base).removeprefix("log-")
    tail = f"{stem}_{job}" if where.name == "results" and job else job or stem
    return _make_printable("/".join([*parts, tail]))


@lru_cache(1024)
def _drop_layout_words(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Drop layout words, the workload above an experiment, and of an experiment's
    nested folders all but the first."""
    experiment = next(
        (part for part in parts if names.read_experiment(part, typed=False)), ""
    )
    above = parts[: parts.index(experiment)] if experiment else ()
    return tuple(
        part
        for place, part in enumerate(parts)
        if part
        and part.lower() not in _LAYOUT_WORDS
        and not (place < len(above) and names.read_workload(part))
        and not (place > len(above) and experiment and part.startswith(experiment))
    )


def _make_printable(text: str) -> str:
    return _UNPRINTABLE.sub("_", text)


def _make_ids_unique(
    runs: Sequence[RunFiles], taken: Sequence[str] = ()
) -> tuple[RunFiles, ...]:
    """Tell runs of one id apart by the names of their logs, then by number, in the
    order of their paths.

    `taken` are ids of other runs, which stay.
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
    named = _extend_ids(
        ordered, taken, lambda _, run: _make_printable(_find_file(run).stem)
    )
    return tuple(_extend_ids(named, taken, lambda number, _: f"~{number}"))


def _find_file(run: RunFiles) -> Path:
    """Return the first log of a run, or the metadata that is all that is left of it."""
    return run.attempts[0].log if run.attempts else run.metadata or run.folder


def _extend_ids(
    runs: Sequence[RunFiles],
    taken: Sequence[str],
    addition: Callable[[int, RunFiles], str],
) -> list[RunFiles]:
    """Append what its number and itself make of it to the id of each run that shares
    its id with another."""
    counts = Counter((*taken, *(run.id for run in runs)))
    numbered = enumerate(runs, start=1)
    return [
        replace(run, id=f"{run.id}/{addition(n, run)}") if counts[run.id] > 1 else run
        for n, run in numbered
    ]
