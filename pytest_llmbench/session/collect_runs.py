"""From paths to runs: find them, read their logs, and say which configuration each one
is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import MEGATRON_BRIDGE, Key, Recipe
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import (
    NO_QUOTE,
    Ending,
    EndingCode,
    ParsedLog,
    Segment,
    Steps,
)
from pytest_llmbench.core.outcome_records import UnmatchedRun
from pytest_llmbench.core.run_records import (
    Attempt,
    AttemptFiles,
    Clock,
    Dating,
    Identity,
    IgnoredFile,
    Run,
    RunFiles,
    UnnamedFiles,
)
from pytest_llmbench.core.userfile import is_there
from pytest_llmbench.runs.discover.names import is_like_log
from pytest_llmbench.runs.duplicates import (
    CLOCK_SKEW,
    FILE_TIME,
    LAUNCHED,
    count_steps,
    drop_attached,
    drop_copies,
    drop_ranks,
    drop_tracked,
    mark_copies,
)
from pytest_llmbench.runs.log_choice import (
    LEFT_OUT,
    WRITTEN_ALONG,
    Claim,
    Neighbours,
    ReadRun,
    Surroundings,
    can_be_outdone,
    choose_streams,
    count_times,
    count_trained_steps,
    find_died,
    find_unlike,
    outdoes,
    swap_silent_streams,
)
from pytest_llmbench.runs.ordering import (
    drop_future_datings,
    drop_superseded,
    order_runs,
)
from pytest_llmbench.runs.unnamed_logs import FEWEST_STEPS, Looker
from pytest_llmbench.session.catalog import Catalog, read_tables
from pytest_llmbench.session.settings import Settings

NO_STEP = "no training step in it that docs/parsing.md knows, and not the name of a launched job"

if TYPE_CHECKING:
    from pytest_llmbench.logs.reading.run_reader import ReadCounts, Reading
    from pytest_llmbench.logs.sources.stores import Stores
    from pytest_llmbench.runs.discover.baseline_matches import Matching
    from pytest_llmbench.runs.discover.discovery import RunSearch
    from pytest_llmbench.runs.layouts.megatron_bridge import Tables


LONGEST_WAIT = timedelta(days=1)
"""A run that starts so long after the submission of a job of an A/B is taken for
another: the job hardly waited so long, and each night after it would be out of
judgement."""


FIRST_DATE = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
"""Clocks of lines that show less are no dates: they begin anew with each attempt."""


ZONES_DIFFER = timedelta(hours=14)
"""A log may print its times in the zone of another place."""


@dataclass(frozen=True, slots=True)
class IngestedRuns:
    """The runs under the given paths, newest first, what could not be read, and what is
    no run, with the reason."""

    runs: tuple[Run, ...]
    unreadable: tuple[UnmatchedRun, ...]
    ignored: tuple[IgnoredFile, ...]
    tables: tuple[Recipe, ...] = ()
    """What was read because a run may be of it, and is in no catalog yet."""
    copies: tuple[tuple[Run, Run], ...] = ()
    """Runs that were left out as copies, each with the one that was kept."""
    hidden: tuple[IgnoredFile, ...] = ()
    """Files that are not read, and were written after the runs around them began."""


def ingest(
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    tell: Callable[[ReadCounts], None] | None = None,
) -> IngestedRuns:
    """Find, read and identify everything under the given paths; copies of one run count
    once.

    `tell` is called with how far reading is, whenever something was read.
    """
    from pytest_llmbench.logs.reading.cache import LogCache
    from pytest_llmbench.logs.reading.run_reader import Reading
    from pytest_llmbench.logs.sources.stores import Stores
    from pytest_llmbench.runs.discover.baseline_matches import cache_matches
    from pytest_llmbench.runs.discover.discovery import RunSearch
    from pytest_llmbench.runs.discover.run_facts import lies_at_own_place

    stores = Stores()
    search = RunSearch(settings.logs, stores)
    discovery = search.discovery
    cache = (
        LogCache(settings.cache, settings.logs, catalog.definitions)
        if settings.cache
        else None
    )
    find = cache_matches()
    ignored = [
        IgnoredFile(path.name, why)
        for path, why in discovery.ignored
        if path.name != "nsys_profile"
    ]
    tables = _open_tables(catalog, stores)

    def read_all(
        found: Sequence[RunFiles], tell: Callable[[ReadCounts], None] | None = None
    ) -> list[ReadRun]:
        reading = Reading(stores, found, catalog.definitions, cache=cache, tell=tell)
        return [_read_run(files, reading) for files in found]

    def identify_run(run: ReadRun) -> Run:
        identified = _identify(
            run.files, run.attempts, settings, catalog, now, find=find, tables=tables
        )
        shown = (
            identified if _may_be_trial(identified) else _drop_pending_mark(identified)
        )
        return _read_as_known(shown, catalog, tables)

    runs: list[Run] = []
    lone: list[ReadRun] = []
    for run in _choose_streams(read_all(discovery.runs, tell), read_all):
        if (
            _is_run(run.files, run.attempts)
            or _is_unread(run.files, run.attempts, catalog)
            or lies_at_own_place(run.files, catalog.recipes)
        ):
            runs.append(identify_run(run))
        else:
            lone.append(run)
    filled = {run.found.folder for run in runs}
    for run in lone:
        if run.files.folder not in filled and _has_died(
            run.files
        ):  # the only log of a launch, whatever it is called
            runs.append(identify_run(run))
        else:
            why = _describe_unread(run.attempts, catalog)
            ignored.append(IgnoredFile(run.files.id, NO_STEP + why))
    records = settings.record is not None
    choice = _choose_metrics(
        discovery.metrics, runs, lone, catalog, read_all, records=records
    )
    later = list(choice.later)
    runs = [run for run in runs if run.id not in choice.displaced] + [
        identify_run(run) for run in choice.runs
    ]
    ignored += choice.ignored
    runs += _identify_died(choice.died, runs, identify_run)
    choice = _choose_unnamed(search, runs, catalog, read_all, stores)
    later += choice.later
    unnamed = {run.files.id for run in choice.runs}
    runs += [identify_run(run) for run in choice.runs]
    ignored = [file for file in ignored if file.name not in choice.displaced] + list(
        choice.ignored
    )
    kept, copies, left_out = _keep_once(runs, unnamed, now)
    ignored += left_out
    unreadable = [
        _make_unreadable(path, why, settings, catalog)
        for path, why in discovery.unreadable
    ]
    unreadable += [
        _make_unreadable_mark(path, why, settings, catalog)
        for path, why in discovery.unreadable_marks
    ]
    return IngestedRuns(
        tuple(kept),
        tuple(_make_ids_unique(unreadable)),
        tuple(ignored),
        tables.recipes,
        copies,
        tuple(_find_hidden([*discovery.hidden, *later], kept)),
    )


def _keep_once(
    runs: Sequence[Run], unnamed: Collection[str], now: datetime
) -> tuple[list[Run], tuple[tuple[Run, Run], ...], list[IgnoredFile]]:
    """Return each run once, newest first, the copies with what each is a copy of, and
    what is left out.

    `unnamed` are the ids of runs whose logs are not called so.
    """
    own, attached = drop_attached(runs)
    own, tracked = drop_tracked(own, unnamed)
    own, ranks = drop_ranks(own)
    once, copies = drop_copies(order_runs(own, now))
    kept, superseded = drop_superseded(order_runs(once, now), now)
    kept, repeated = mark_copies(kept)
    notes = [
        *superseded,
        *(
            IgnoredFile(copy.id, f"a copy of {original.id}")
            for copy, original in (*attached, *tracked, *copies, *repeated)
        ),
        *(
            IgnoredFile(run.id, f"another process of the run that {first.id} logs")
            for run, first in ranks
        ),
    ]
    return kept, (*copies, *repeated), notes


HiddenFile = tuple[Path, datetime, str]
"""A file that is not read, when it was written, and what it is."""


def _hide(metrics: RunFiles) -> HiddenFile:
    modified = metrics.modified or datetime.min.replace(tzinfo=UTC)
    return (
        metrics.attempts[-1].log,
        modified,
        "metrics, written after the logs beside them",
    )


def _find_hidden(
    hidden: Sequence[HiddenFile], runs: Sequence[Run]
) -> Iterator[IgnoredFile]:
    """Yield the files that are not read, and may be of a newer run than all in the
    nearest folder with runs."""
    newest: dict[Path, datetime] = {}
    for run in runs if hidden else ():
        if run.started is not None:
            for folder in (run.found.folder, *run.found.folder.parents):
                newest[folder] = max(newest.get(folder, run.started), run.started)
    logs = (
        {attempt.files.log for run in runs for attempt in run.attempts}
        if hidden
        else set()
    )
    by_path = {
        path: (modified, what) for path, modified, what in hidden if path not in logs
    }
    for path, (modified, what) in by_path.items():
        around = next(
            (newest[folder] for folder in path.parents if folder in newest), None
        )
        if around is not None and modified > around:
            yield IgnoredFile(path.name, what)


def _make_ids_unique(entries: Iterable[UnmatchedRun]) -> Iterator[UnmatchedRun]:
    """Yield entries whose id is that of an earlier one with a number: each is an item
    of its own."""
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[entry.id] += 1
        number = counts[entry.id]
        yield (
            dataclasses.replace(entry, id=f"{entry.id}~{number}")
            if number > 1
            else entry
        )


def _may_be_trial(run: Run) -> bool:
    """Whether a run may be the one of the unknown job of an A/B: it started around the
    time of its submission."""
    since = run.found.trial_pending_since
    return (
        run.started is None
        or since is None
        or -ZONES_DIFFER < run.started - since <= LONGEST_WAIT
    )


def _drop_pending_mark(run: Run) -> Run:
    """Return a run that is not the one of the unknown job of an A/B, with its other
    marks."""
    if (
        run.found.excluded is not Reason.VARIANT
        or run.found.trial_pending_since is None
    ):
        return run
    found = dataclasses.replace(
        run.found, excluded=None, excluded_because="", trial_pending_since=None
    )
    return dataclasses.replace(run, found=found)


def _make_unreadable_mark(
    path: Path, why: str, settings: Settings, catalog: Catalog
) -> UnmatchedRun:
    """Return a mark that cannot be read: which runs of its folder are of an A/B is
    unknown."""
    entry = _make_unreadable(path, why, settings, catalog)
    text = f"{formatting.escape(str(path))} should name the runs of an A/B, and cannot be read: {why}"
    name = f"{path.parent.name}/{path.name}"  # all such files have the same name
    return dataclasses.replace(
        entry,
        id=f"unreadable-{name}",
        reason=Reason.MARK_UNREADABLE,
        text=text,
        summary=text,
    )


def _read_run(files: RunFiles, reading: Reading) -> ReadRun:
    return ReadRun(
        files,
        tuple(Attempt(attempt, _parse(attempt, reading)) for attempt in files.attempts),
    )


ReadAll = Callable[[Sequence[RunFiles]], list[ReadRun]]
"""Reads the logs of runs."""


def _choose_streams(runs: Sequence[ReadRun], read_all: ReadAll) -> list[ReadRun]:
    """Return runs with standard error as the log if it holds steps and standard output
    does not."""
    swapped = {
        run.files.id: files for run in runs if (files := swap_silent_streams(run))
    }
    by_id = (
        {run.files.id: run for run in read_all(list(swapped.values()))}
        if swapped
        else {}
    )
    return [
        choose_streams(run, by_id[run.files.id]) if run.files.id in by_id else run
        for run in runs
    ]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Further files that are runs, the runs or ignored files whose place they take, and
    what was left out."""

    runs: tuple[ReadRun, ...] = ()
    displaced: frozenset[str] = frozenset()
    ignored: tuple[IgnoredFile, ...] = ()
    died: tuple[
        tuple[ReadRun, str], ...
    ] = ()  # later launches without a step, each with the run of the one before
    later: tuple[
        HiddenFile, ...
    ] = ()  # what was left out, and may be of a later run than the logs beside it


def _choose_metrics(
    metrics: Sequence[RunFiles],
    runs: Sequence[Run],
    lone: Sequence[ReadRun],
    catalog: Catalog,
    read_all: ReadAll,
    *,
    records: bool,
) -> _Choice:
    """Return which files of metrics are runs although logs were found under the same
    path."""
    from pytest_llmbench.runs.discover.run_facts import lies_at_own_place

    if not metrics:
        return _Choice()
    logged = {run.id: ReadRun(run.found, run.attempts) for run in runs}
    outdone = (
        run.id
        for run in runs
        # a run of a known configuration stays at the log that its baseline was recorded
        # from
        if run.identity.key is None
        and not run.identity.candidates
        and can_be_outdone(logged[run.id].logs)
    )
    surroundings = Surroundings(
        Neighbours(run.found for run in runs),
        Neighbours(run.files for run in lone),
        frozenset(outdone),
    )
    claims = {
        files.id: surroundings.classify(
            files, is_own=lies_at_own_place(files, catalog.recipes), is_recorded=records
        )
        for files in metrics
    }
    read = {
        run.files.id: run
        for run in read_all(
            [files for files in metrics if claims[files.id] is not Claim.HIDDEN]
        )
    }
    by_claim = {
        claim: [read[name] for name in read if claims[name] is claim] for claim in Claim
    }
    rivals = {
        run.files.id: surroundings.find_rival(run.files).id
        for run in by_claim[Claim.CONTESTED]
    }
    winners = [
        run
        for run in by_claim[Claim.CONTESTED]
        if outdoes(run, logged[rivals[run.files.id]])
    ]
    displaced = {rivals[run.files.id]: run for run in winners}
    unlike = find_unlike(by_claim[Claim.DOUBTFUL], list(logged.values()))
    chosen = [*by_claim[Claim.RUN], *winners, *unlike]
    with_steps = [run for run in chosen if _is_run(run.files, run.attempts)]
    kept = {run.files.id for run in with_steps}
    ignored = [
        IgnoredFile(run.files.id, NO_STEP) for run in chosen if run.files.id not in kept
    ]
    names = {run.files.id for run in chosen}
    left_out = (
        attempt.log
        for files in metrics
        if files.id not in names
        for attempt in files.attempts
    )
    later = [
        files
        for files in metrics
        if files.id not in names and surroundings.is_later(files)
    ]
    ignored += [IgnoredFile(log.name, LEFT_OUT) for log in left_out]
    ignored += [
        IgnoredFile(name, _describe_displaced(logged[name], winner))
        for name, winner in displaced.items()
    ]
    return _Choice(
        tuple(with_steps),
        frozenset(displaced),
        tuple(ignored),
        tuple(find_died(with_steps, lone)),
        tuple(
            _hide(run.files)
            for run in read_all(later)
            if _is_run(run.files, run.attempts)
        )
        if later
        else (),
    )


def _choose_unnamed(
    search: RunSearch,
    runs: Sequence[Run],
    catalog: Catalog,
    read_all: ReadAll,
    stores: Stores,
) -> _Choice:
    """Return which files are runs although they are not called logs: they hold steps
    that no other log of them does."""
    from pytest_llmbench.runs.discover.path_patterns import matches
    from pytest_llmbench.runs.discover.run_facts import list_own_places

    if not search.discovery.unnamed:
        return _Choice()
    own = list_own_places(catalog.recipes)
    look = Looker(catalog.definitions, stores)
    logged = Neighbours(
        run.found for run in runs if count_times(ReadRun(run.found, run.attempts).logs)
    )
    accepted: list[Path] = []
    ignored: list[IgnoredFile] = []
    later: list[HiddenFile] = []
    for files in search.discovery.unnamed:
        later += _list_later_outputs(files, logged.list_in(files.folder), look, stores)
        choice = look.choose(
            files,
            own=[
                name
                for name in files.names
                if any(matches(place, (*files.folder.parts, name)) for place in own)
            ],
            has_log=logged.has_in(files.folder),
            has_log_near=logged.is_near(files.folder, files.given_path),
        )
        accepted += [files.folder / name for name in choice.accepted]
        ignored += [IgnoredFile(name, why) for name, why in choice.ignored]
    read = (
        _choose_streams(read_all(search.find_unnamed_runs(accepted)), read_all)
        if accepted
        else []
    )
    jobs = {run.found.job_id for run in runs if run.found.job_id and count_steps(run)}
    kept: list[ReadRun] = []
    for run in read:
        steps = count_trained_steps(run.logs)
        if run.files.job_id in jobs:
            why = (
                f"{steps} steps, and the log of job {run.files.job_id} has another name"
            )
        elif steps < FEWEST_STEPS and not any(
            matches(place, run.files.attempts[0].log.parts) for place in own
        ):
            why = f"not called as a log, and {steps} steps: expected {FEWEST_STEPS} or more"
        else:
            kept.append(run)
            continue
        ignored.append(IgnoredFile(run.files.id, why))
    return _Choice(
        tuple(kept),
        frozenset(path.name for path in accepted),
        tuple(ignored),
        later=tuple(later),
    )


def _list_later_outputs(
    files: UnnamedFiles, logs: Sequence[RunFiles], look: Looker, stores: Stores
) -> Iterator[HiddenFile]:
    """Yield the files with steps that were written long after all logs beside them,
    which are read in their place."""
    newest = max((log.modified for log in logs if log.modified), default=None)
    for name in files.names if newest else ():
        try:
            modified = datetime.fromtimestamp(
                stores.stat(files.folder / name).st_mtime, UTC
            )
        except OSError:  # gone since it was found
            continue
        if (
            newest
            and modified - newest > WRITTEN_ALONG
            and is_like_log(name)
            and look.holds_steps(files, name)
        ):
            yield (
                files.folder / name,
                modified,
                "not called as the logs beside it, and written after them",
            )


def _identify_died(
    died: Sequence[tuple[ReadRun, str]],
    runs: Sequence[Run],
    identify_run: Callable[[ReadRun], Run],
) -> list[Run]:
    """Return launches that died as runs of the configuration of the metrics that the
    launch before left."""
    by_id = {run.id: run for run in runs}
    return [
        dataclasses.replace(identify_run(console), identity=by_id[name].identity)
        for console, name in died
        if by_id[name].identity.key is not None
    ]


def _describe_displaced(run: ReadRun, metrics: ReadRun) -> str:
    fewer = formatting.count_noun(count_times(run.logs), "time")
    return f"{fewer} of steps, of which {metrics.files.id} of the same launch holds {count_times(metrics.logs)}"


def _make_unreadable(
    path: Path, why: str, settings: Settings, catalog: Catalog
) -> UnmatchedRun:
    """Return what could not be read, with the configurations that its names leave open:
    all where they say nothing."""
    from pytest_llmbench.runs.discover.identify import identify
    from pytest_llmbench.runs.layouts.folder_layouts import read_path_hints

    files = RunFiles(path.name, path.parent, (), read_path_hints(path.parts))
    identity = identify(
        files, (), catalog.recipes, release=settings.release, gpu=settings.gpu
    )
    about = (identity.key,) if identity.key else identity.may_be
    summary = why.partition("; ")[0]  # without what follows from it
    return UnmatchedRun(
        f"unreadable-{path.name}",
        Reason.UNREADABLE,
        why,
        path,
        about=about,
        summary=summary,
    )


def ingest_job(
    places: Sequence[Path],
    job_id: str,
    key: Key,
    catalog: Catalog,
    now: datetime,
    *,
    since: datetime | None,
) -> Run | None:
    """Return the run that one job left under these files and folders, None where there
    is no log of that job id.

    A later place is looked at only while no earlier one holds a step of that job. What
    its log does not tell, its launch does: it is a run of `key` unless something in it
    says otherwise.
    """
    from pytest_llmbench.logs.reading.run_reader import Reading
    from pytest_llmbench.logs.sources.stores import Stores
    from pytest_llmbench.runs.discover.baseline_matches import match_baselines
    from pytest_llmbench.runs.discover.discovery import find_runs

    stores = Stores()
    reading, tables = (
        Reading(stores, (), catalog.definitions),
        _open_tables(catalog, stores),
    )
    settings = Settings(release=key.release, gpu=key.gpu)

    def read_all(found: Sequence[RunFiles]) -> list[ReadRun]:
        return [_read_run(files, reading) for files in found]

    best: Run | None = None
    for place in (place for place in places if is_there(place)):
        for run_files in find_runs([place]).runs:
            # A Slurm that was set up anew begins with job id 1 again: what is older is
            # of another job.
            earlier = (
                since is not None
                and run_files.modified is not None
                and run_files.modified < since
            )
            if run_files.job_id != job_id or not run_files.attempts or earlier:
                continue
            (read,) = _choose_streams([_read_run(run_files, reading)], read_all)
            run = _identify(
                read.files,
                read.attempts,
                settings,
                catalog,
                now,
                find=match_baselines,
                tables=tables,
            )
            best = run if best is None or count_steps(run) > count_steps(best) else best
        if best is not None and count_steps(best):
            break
    # its id is known, so it is not the job of unknown id
    known = _drop_pending_mark(_identify_as(best, key)) if best is not None else None
    return _read_as_known(known, catalog, tables) if known is not None else None


def _identify_as(run: Run, key: Key) -> Run:
    """Return a run that is of the configuration that was launched unless something in
    it says otherwise."""
    identity = run.identity
    untold = identity.key is None and not identity.contradicted
    # Beside the log of a row of the tables stands what ran: near others and of none
    # means that it was something else.
    other = any(
        near.recipe == key.recipe == MEGATRON_BRIDGE for near in identity.nearest
    )
    fits = key in identity.candidates or not (identity.candidates or other)
    return (
        dataclasses.replace(run, identity=Identity(key, "it was launched as such"))
        if untold and fits
        else run
    )


def _open_tables(catalog: Catalog, stores: Stores) -> Tables:
    """Return the tables of a catalog, or those that were not read yet."""
    from pytest_llmbench.runs.layouts.megatron_bridge import Tables

    return Tables(
        lambda: catalog.tables or read_tables(), stores.read_small, stores.scan
    )


def _read_as_known(run: Run, catalog: Catalog, tables: Tables) -> Run:
    """Return a run with its logs as the dialect of its configuration reads them."""
    if run.identity.key is None or not any(
        attempt.log.readings for attempt in run.attempts
    ):
        return run
    dialects = [
        baseline.dialect for baseline in catalog.baselines.get(run.identity.key, ())
    ]
    dialects = dialects or [recipe.dialect for recipe in tables.recipes]
    attempts = (
        dataclasses.replace(attempt, log=attempt.log.read_as(*dialects))
        for attempt in run.attempts
    )
    return dataclasses.replace(run, attempts=tuple(attempts))


def _parse(files: AttemptFiles, reading: Reading) -> ParsedLog:
    from pytest_llmbench.logs.endings import add_error_ending

    try:
        log = reading.get_log(files.log)
        error_ending = reading.get_ending(files.err) if files.err else None
    except LogError as error:
        return ParsedLog(
            dialect=None,
            segments=(),
            ending=Ending(EndingCode.UNREADABLE, NO_QUOTE, 0, str(error)),
        )
    return add_error_ending(log, error_ending)


def _is_run(run_files: RunFiles, attempts: Sequence[Attempt]) -> bool:
    """Whether files are a training run: they hold steps, could not be read, or are what
    a launched job leaves."""
    logs = [attempt.log for attempt in attempts]
    if any(
        log.segments or (log.ending and log.ending.code is EndingCode.UNREADABLE)
        for log in logs
    ):
        return True
    named = {"recipe", "size"} <= {hint.field for hint in run_files.hints}
    launched = (
        run_files.job_id
        or run_files.metadata
        or run_files.remains
        or any(LAUNCHED.match(files.log.name) for files in run_files.attempts)
    )
    return named and bool(launched)


def _has_died(files: RunFiles) -> bool:
    """Whether a log without a step stands where a launch writes its own."""
    # Its folders name a workload and a time.
    return files.started is not None and {"recipe", "size"} <= {
        hint.field for hint in files.hints
    }


def _is_unread(files: RunFiles, attempts: Sequence[Attempt], catalog: Catalog) -> bool:
    """Whether files are called as a workload whose baseline file says how to read them,
    and hold lines to be read."""
    named = {hint.value.casefold() for hint in files.hints if hint.field == "recipe"}
    called = [
        recipe
        for recipe in catalog.recipes
        if named & {name.casefold() for name in (recipe.name, *recipe.names)}
    ]
    dialects = {recipe.dialect for recipe in called}
    return any(
        reading.count and reading.dialect in dialects
        for attempt in attempts
        for reading in attempt.log.unread
    )


def _describe_unread(attempts: Sequence[Attempt], catalog: Catalog) -> str:
    """Return why the only dialect that files define, or those whose text stands in a
    log, find no step in it."""
    unread = [
        dialect
        for attempt in attempts
        for dialect in attempt.log.unread
        if dialect.count or sum(not each.shipped for each in catalog.definitions) == 1
    ]
    return "".join(f"; {formatting.describe_unread(dialect)}" for dialect in unread[:1])


def _identify(
    files: RunFiles,
    attempts: tuple[Attempt, ...],
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    *,
    find: Matching,
    tables: Tables,
) -> Run:
    from pytest_llmbench.runs.discover.checkpoint_shards import count_shards
    from pytest_llmbench.runs.discover.identify import identify

    logs = [attempt.log for attempt in attempts]
    if (
        any(log.checkpoints.save_line for log in logs) and files.layout != "results"
    ):  # one folder for many jobs
        files = dataclasses.replace(files, shards=count_shards(files.folder))
    identity = identify(
        files,
        logs,
        catalog.recipes,
        release=settings.release,
        gpu=settings.gpu,
        baseline_release=settings.baseline_release,
        find=find,
        tables=tables,
    )
    datings = tuple(_list_datings(files, logs))
    start = next(iter(drop_future_datings(datings, now)), None)
    if start is None:
        return Run(
            files,
            attempts,
            identity,
            None,
            "every time that it states lies in the future",
            datings=datings,
        )
    return Run(
        files,
        attempts,
        identity,
        start.moment,
        start.source,
        datings=datings,
        order_source=start.clock,
    )


def _list_datings(files: RunFiles, logs: Sequence[ParsedLog]) -> Iterator[Dating]:
    """Yield all times at which a run may have started: metadata or its own name, the
    log, a folder above, the file."""
    own = [
        dating
        for dating in files.datings
        if dating.clock in (Clock.METADATA, Clock.FOLDER_NAME)
    ]
    yield from own
    logged = _date_by_log(logs)
    # A log that is older than its own launch was stamped by a clock that was never set.
    if logged is not None and all(
        dating.moment - logged.moment <= CLOCK_SKEW for dating in own
    ):
        yield logged
    yield from (dating for dating in files.datings if dating not in own)
    if files.modified is not None:
        yield Dating(Clock.FILE_TIME, files.modified, FILE_TIME, zoned=True)


def _date_by_log(logs: Sequence[ParsedLog]) -> Dating | None:
    """Return the first time stamp of the last attempt with steps, of any attempt if
    none has both."""
    # A job that was queued again days later ran when its last attempt did.
    stamped = [log for log in logs if log.started is not None]
    logged = next(
        (log for log in reversed(stamped) if log.segments), next(iter(stamped), None)
    )
    if logged is None or logged.started is None:
        return None
    zoned = logged.started.tzinfo is not None
    began = logged.started.astimezone(UTC) + _measure_restart(logged.segments)
    return Dating(Clock.LOG, began, "the log's first time stamp", zoned)


def _measure_restart(segments: Sequence[Segment]) -> timedelta:
    """Return how long after the first attempt in a log the last began; 0 unless their
    stamps have dates."""
    if len(segments) < 2:
        return timedelta(0)
    first, last = (
        _read_first_stamp(segment.steps) for segment in (segments[0], segments[-1])
    )
    passed = last - first if min(first, last) > FIRST_DATE else 0.0
    return timedelta(seconds=max(0.0, passed))


def _read_first_stamp(steps: Steps) -> float:
    """Return the first clock of a line, 0 without any."""
    import numpy as np

    stamps = steps.stamp[np.isfinite(steps.stamp)]
    return float(stamps[0]) if len(stamps) else 0.0
