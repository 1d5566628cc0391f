"""From paths to runs: find them, read their logs, and say which configuration each one
is."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, starmap
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
    Identity,
    IgnoredFile,
    Run,
    RunFiles,
    StartCandidate,
    UnnamedFiles,
)
from pytest_llmbench.core.userfile import is_there
from pytest_llmbench.runs.discover.names import has_log_word
from pytest_llmbench.runs.duplicates import (
    CLOCK_SKEW,
    FILE_TIME,
    LAUNCHED,
    count_steps,
    drop_attached,
    drop_duplicates,
    drop_ranks,
    drop_tracked,
    mark_duplicates,
)
from pytest_llmbench.runs.log_choice import (
    LEFT_OUT,
    WRITTEN_ALONG,
    Claim,
    Neighbours,
    ReadRun,
    Surroundings,
    choose_streams,
    count_times,
    count_trained_steps,
    find_failed_launches,
    find_unmatched_metrics,
    has_many_more_times,
    may_metrics_have_more,
    swap_silent_streams,
)
from pytest_llmbench.runs.ordering import (
    drop_future_starts,
    drop_superseded,
    order_runs,
)
from pytest_llmbench.runs.unnamed_logs import FEWEST_STEPS, LogDetector
from pytest_llmbench.session.catalog import Catalog, read_tables
from pytest_llmbench.session.settings import Settings

NO_STEP = "no training step in it that docs/parsing.md knows, and not the name of a launched job"

if TYPE_CHECKING:
    from pytest_llmbench.logs.reading.run_reader import ReadCounts, Reading
    from pytest_llmbench.logs.sources.stores import Stores


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


HiddenFile = tuple[Path, datetime, str]
"""A file that is not read, when it was written, and what it is."""


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
    collection = _Collection(_RunReader(settings, catalog, now))
    collection.add_logs(tell)
    collection.add_metrics()
    collection.add_unnamed()
    return collection.finish()


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
    from pytest_llmbench.runs.discover.discovery import find_runs

    reader = _RunReader(Settings(release=key.release, gpu=key.gpu), catalog, now)
    best: Run | None = None
    for place in filter(is_there, places):
        for files in find_runs([place]).runs:
            if files.job_id != job_id or not files.attempts:
                continue
            # A Slurm that was set up anew begins with job id 1 again: what is older is
            # of another job.
            if since and files.modified and files.modified < since:
                continue
            (read,) = reader.read_streams([files])
            run = reader.identify(read)
            if best is None or count_steps(run) > count_steps(best):
                best = run
        if best is not None and count_steps(best):
            break
    if best is None:
        return None
    # its id is known, so it is not the job of unknown id
    return reader.read_as_known(_drop_pending_mark(_identify_as(best, key)))


class _RunReader:
    """Reads the logs of found runs and finds their configurations."""

    def __init__(self, settings: Settings, catalog: Catalog, now: datetime) -> None:
        from pytest_llmbench.logs.reading.cache import LogCache
        from pytest_llmbench.logs.sources.stores import Stores
        from pytest_llmbench.runs.discover.baseline_matches import cache_matches
        from pytest_llmbench.runs.layouts.megatron_bridge import Tables

        self.settings = settings
        self.catalog = catalog
        self.now = now
        self.stores = Stores()
        self.tables = Tables(
            lambda: catalog.tables or read_tables(),
            self.stores.read_small,
            self.stores.scan,
        )
        self._find = cache_matches()
        self._cache = (
            LogCache(settings.cache, settings.logs, catalog.definitions)
            if settings.cache
            else None
        )

    def read(
        self,
        found: Sequence[RunFiles],
        tell: Callable[[ReadCounts], None] | None = None,
    ) -> list[ReadRun]:
        """Read the logs of runs."""
        from pytest_llmbench.logs.reading.run_reader import Reading

        reading = Reading(
            self.stores, found, self.catalog.definitions, cache=self._cache, report=tell
        )
        return [
            ReadRun(
                files,
                tuple(
                    Attempt(attempt, _parse(attempt, reading))
                    for attempt in files.attempts
                ),
            )
            for files in found
        ]

    def read_streams(
        self,
        found: Sequence[RunFiles],
        tell: Callable[[ReadCounts], None] | None = None,
    ) -> list[ReadRun]:
        """Read the logs of runs: standard error if it holds steps and standard output
        does not."""
        runs = self.read(found, tell)
        swapped = [files for run in runs if (files := swap_silent_streams(run))]
        if not swapped:
            return runs
        others = {run.files.id: run for run in self.read(swapped)}
        return [
            choose_streams(run, others[run.files.id]) if run.files.id in others else run
            for run in runs
        ]

    def identify(self, read: ReadRun) -> Run:
        """Find the configuration of a run, and when it started."""
        from pytest_llmbench.runs.discover.checkpoint_shards import count_shards
        from pytest_llmbench.runs.discover.identify import identify

        files, logs = read.files, read.logs
        saves = any(log.checkpoints.save_line for log in logs)
        if saves and files.layout != "results":  # one folder for many jobs
            files = dataclasses.replace(files, shards=count_shards(files.folder))
        identity = identify(
            files,
            logs,
            self.catalog.recipes,
            release=self.settings.release,
            gpu=self.settings.gpu,
            baseline_release=self.settings.baseline_release,
            find=self._find,
            tables=self.tables,
        )
        datings = tuple(_list_start_candidates(files, logs))
        start = next(iter(drop_future_starts(datings, self.now)), None)
        if start is None:
            why = "every time that it states lies in the future"
            return Run(files, read.attempts, identity, None, why, datings=datings)
        return Run(
            files,
            read.attempts,
            identity,
            start.moment,
            start.source,
            datings=datings,
            order_source=start.clock,
        )

    def read_as_known(self, run: Run) -> Run:
        """Return a run with its logs as the dialect of its configuration reads them."""
        key = run.identity.key
        if key is None or not any(attempt.log.readings for attempt in run.attempts):
            return run
        dialects = [
            baseline.dialect for baseline in self.catalog.baselines.get(key, ())
        ] or [recipe.dialect for recipe in self.tables.recipes]
        attempts = (
            dataclasses.replace(attempt, log=attempt.log.read_as(*dialects))
            for attempt in run.attempts
        )
        return dataclasses.replace(run, attempts=tuple(attempts))

    def make_unreadable(self, path: Path, why: str) -> UnmatchedRun:
        """Return an unreadable file with the configurations that its names leave open:
        all if they state nothing."""
        from pytest_llmbench.runs.discover.identify import identify
        from pytest_llmbench.runs.layouts.folder_layouts import read_path_hints

        identity = identify(
            RunFiles(path.name, path.parent, (), read_path_hints(path.parts)),
            (),
            self.catalog.recipes,
            release=self.settings.release,
            gpu=self.settings.gpu,
        )
        return UnmatchedRun(
            f"unreadable-{path.name}",
            Reason.UNREADABLE,
            why,
            path,
            about=(identity.key,) if identity.key else identity.may_be,
            summary=why.partition("; ")[0],  # without what follows from it
        )

    def make_unreadable_marker(self, path: Path, why: str) -> UnmatchedRun:
        """Return an unreadable mark: which runs of its folder are of an A/B is
        unknown."""
        text = f"{formatting.escape(str(path))} should name the runs of an A/B, and cannot be read: {why}"
        name = f"{path.parent.name}/{path.name}"  # all such files have the same name
        return dataclasses.replace(
            self.make_unreadable(path, why),
            id=f"unreadable-{name}",
            reason=Reason.MARK_UNREADABLE,
            text=text,
            summary=text,
        )


class _Collection:
    """The runs under the searched paths, from logs first, then from metrics and from
    files that are not called logs."""

    def __init__(self, reader: _RunReader) -> None:
        from pytest_llmbench.runs.discover.discovery import RunSearch

        self._reader = reader
        self._recipes = reader.catalog.recipes
        self._search = RunSearch(reader.settings.logs, reader.stores)
        self._found = self._search.discovery
        self._runs: list[Run] = []
        self._silent: list[ReadRun] = []  # logs without a step
        self._unnamed: set[str] = set()  # the ids of runs whose logs are not called so
        # files that are not read, and may be of a newer run than the logs beside them
        self._hidden: list[HiddenFile] = list(self._found.hidden)
        self._ignored = [
            IgnoredFile(path.name, why)
            for path, why in self._found.ignored
            if path.name != "nsys_profile"
        ]

    def add_logs(self, tell: Callable[[ReadCounts], None] | None) -> None:
        """Add the logs that are runs, and those that launches left that died."""
        from pytest_llmbench.runs.discover.run_facts import is_at_baseline_path

        for run in self._reader.read_streams(self._found.runs, tell):
            if (
                _is_run(run)
                or _is_unread(run, self._reader.catalog)
                or is_at_baseline_path(run.files, self._recipes)
            ):
                self._runs.append(self._identify(run))
            else:
                self._silent.append(run)
        filled = {run.found.folder for run in self._runs}
        for run in self._silent:
            # the only log of a launch, whatever it is called
            if run.files.folder not in filled and _has_died(run.files):
                self._runs.append(self._identify(run))
            else:
                why = _describe_unread(run, self._reader.catalog)
                self._ignore(run.files.id, NO_STEP + why)

    def add_metrics(self) -> None:
        """Add the metrics that are runs although logs were found under the same path;
        drop the logs that they displace."""
        metrics = self._found.metrics
        if not metrics:
            return
        logged = {run.id: ReadRun(run.found, run.attempts) for run in self._runs}
        surroundings = Surroundings(
            Neighbours(run.found for run in self._runs),
            Neighbours(run.files for run in self._silent),
            frozenset(run.id for run in self._runs if _can_be_displaced(run)),
        )
        chosen, displaced = self._choose_metrics(logged, surroundings)
        with_steps: list[ReadRun] = []
        for run in chosen:
            if _is_run(run):
                with_steps.append(run)
            else:
                self._ignore(run.files.id, NO_STEP)
        names = {run.files.id for run in chosen}
        left_out = [files for files in metrics if files.id not in names]
        for attempt in chain.from_iterable(files.attempts for files in left_out):
            self._ignore(attempt.log.name, LEFT_OUT)
        for name, winner in displaced.items():
            self._ignore(name, _describe_displaced(logged[name], winner))
        self._hide_later(left_out, surroundings)
        self._runs = [run for run in self._runs if run.id not in displaced]
        self._runs += map(self._identify, with_steps)
        self._add_died(with_steps)

    def _choose_metrics(
        self, logged: Mapping[str, ReadRun], surroundings: Surroundings
    ) -> tuple[list[ReadRun], dict[str, ReadRun]]:
        """Return the metrics whose steps no log has, and by the id of each displaced
        log the metrics that hold more of its steps."""
        from pytest_llmbench.runs.discover.run_facts import is_at_baseline_path

        claims = {
            files.id: surroundings.classify(
                files,
                is_policy_job=is_at_baseline_path(files, self._recipes),
                is_recorded=self._reader.settings.record is not None,
            )
            for files in self._found.metrics
        }
        shown = [
            files
            for files in self._found.metrics
            if claims[files.id] is not Claim.HIDDEN
        ]
        by_claim: dict[Claim, list[ReadRun]] = defaultdict(list)
        for run in self._reader.read(shown):
            by_claim[claims[run.files.id]].append(run)
        winners: list[ReadRun] = []
        displaced: dict[str, ReadRun] = {}
        for run in by_claim[Claim.CONTESTED]:
            rival = surroundings.find_rival(run.files).id
            if has_many_more_times(run, logged[rival]):
                winners.append(run)
                displaced[rival] = run
        unlike = find_unmatched_metrics(by_claim[Claim.DOUBTFUL], list(logged.values()))
        return [*by_claim[Claim.RUN], *winners, *unlike], displaced

    def _hide_later(
        self, metrics: Sequence[RunFiles], surroundings: Surroundings
    ) -> None:
        """Remember the metrics with steps that may be of a later run than the logs
        beside them."""
        later = [files for files in metrics if surroundings.is_later(files)]
        for run in self._reader.read(later) if later else ():
            if _is_run(run):
                modified = run.files.modified or datetime.min.replace(tzinfo=UTC)
                what = "metrics, written after the logs beside them"
                self._hidden.append((run.files.attempts[-1].log, modified, what))

    def _add_died(self, metrics: Sequence[ReadRun]) -> None:
        """Add launches that died as runs of the configuration of the metrics that the
        launch before left."""
        by_id = {run.id: run for run in self._runs}
        for console, name in find_failed_launches(metrics, self._silent):
            identity = by_id[name].identity
            if identity.key is not None:
                run = self._identify(console)
                self._runs.append(dataclasses.replace(run, identity=identity))

    def add_unnamed(self) -> None:
        """Add the files that are runs although they are not called logs: they hold
        steps that no other log of them does."""
        from pytest_llmbench.runs.discover.run_facts import is_at_baseline_path

        if not self._found.unnamed:
            return
        accepted = self._look_into_unnamed()
        if not accepted:
            return
        jobs = {
            run.found.job_id
            for run in self._runs
            if run.found.job_id and count_steps(run)
        }
        for run in self._reader.read_streams(self._search.find_unnamed_runs(accepted)):
            steps, job = count_trained_steps(run.logs), run.files.job_id
            if job in jobs:
                why = f"{steps} steps, and the log of job {job} has another name"
                self._ignore(run.files.id, why)
            elif steps < FEWEST_STEPS and not is_at_baseline_path(
                run.files, self._recipes
            ):
                why = f"not called as a log, and {steps} steps: expected {FEWEST_STEPS} or more"
                self._ignore(run.files.id, why)
            else:
                self._unnamed.add(run.files.id)
                self._runs.append(self._identify(run))

    def _look_into_unnamed(self) -> list[Path]:
        """Return the files that hold steps, of those that are not called logs, and list
        the rest as ignored or hidden."""
        from pytest_llmbench.runs.discover.path_patterns import matches
        from pytest_llmbench.runs.discover.run_facts import list_baseline_paths

        own = list_baseline_paths(self._recipes)
        stores = self._reader.stores
        look = LogDetector(self._reader.catalog.definitions, stores)
        logged = Neighbours(
            run.found
            for run in self._runs
            if count_times(attempt.log for attempt in run.attempts)
        )
        accepted: list[Path] = []
        ignored: list[IgnoredFile] = []
        for files in self._found.unnamed:
            folder = files.folder
            self._hidden += _list_later_outputs(
                files, logged.list_in(folder), look, stores
            )
            choice = look.choose(
                files,
                at_baseline_path=[
                    name
                    for name in files.names
                    if any(matches(place, (*folder.parts, name)) for place in own)
                ],
                has_log=logged.has_in(folder),
                has_log_near=logged.is_near(folder, files.given_path),
            )
            accepted += [folder / name for name in choice.accepted]
            ignored += [IgnoredFile(name, why) for name, why in choice.ignored]
        names = {path.name for path in accepted}
        self._ignored = [file for file in self._ignored if file.name not in names]
        self._ignored += ignored
        return accepted

    def finish(self) -> IngestedRuns:
        """Return each run once, and what is no run."""
        kept, copies, left_out = _keep_once(self._runs, self._unnamed, self._reader.now)
        unreadable = [
            *starmap(self._reader.make_unreadable, self._found.unreadable),
            *starmap(self._reader.make_unreadable_marker, self._found.unreadable_marks),
        ]
        return IngestedRuns(
            tuple(kept),
            tuple(_make_ids_unique(unreadable)),
            (*self._ignored, *left_out),
            self._reader.tables.recipes,
            copies,
            tuple(_find_hidden(self._hidden, kept)),
        )

    def _identify(self, read: ReadRun) -> Run:
        run = self._reader.identify(read)
        if not _may_be_trial(run):
            run = _drop_pending_mark(run)
        return self._reader.read_as_known(run)

    def _ignore(self, name: str, why: str) -> None:
        self._ignored.append(IgnoredFile(name, why))


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
    once, copies = drop_duplicates(order_runs(own, now))
    kept, superseded = drop_superseded(order_runs(once, now), now)
    kept, repeated = mark_duplicates(kept)
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


def _list_later_outputs(
    files: UnnamedFiles, logs: Sequence[RunFiles], look: LogDetector, stores: Stores
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
            and has_log_word(name)
            and look.contains_steps(files, name)
        ):
            yield (
                files.folder / name,
                modified,
                "not called as the logs beside it, and written after them",
            )


def _can_be_displaced(run: Run) -> bool:
    """True if metrics that hold more times than the log of a run are to count."""
    # A run of a known configuration stays at the log that its baseline was recorded
    # from.
    unknown = run.identity.key is None and not run.identity.candidates
    return unknown and may_metrics_have_more([attempt.log for attempt in run.attempts])


def _describe_displaced(run: ReadRun, metrics: ReadRun) -> str:
    fewer = formatting.count_noun(count_times(run.logs), "time")
    return f"{fewer} of steps, of which {metrics.files.id} of the same launch holds {count_times(metrics.logs)}"


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


def _is_run(run: ReadRun) -> bool:
    """Whether files are a training run: they hold steps, could not be read, or are what
    a launched job leaves."""
    if any(
        log.segments or (log.ending and log.ending.code is EndingCode.UNREADABLE)
        for log in run.logs
    ):
        return True
    files = run.files
    launched = (
        files.job_id
        or files.metadata
        or files.remains
        or any(LAUNCHED.match(attempt.log.name) for attempt in files.attempts)
    )
    return bool(launched) and _names_workload(files)


def _has_died(files: RunFiles) -> bool:
    """Whether a log without a step stands where a launch writes its own."""
    # Its folders name a workload and a time.
    return files.started is not None and _names_workload(files)


def _names_workload(files: RunFiles) -> bool:
    return {"recipe", "size"} <= {hint.field for hint in files.hints}


def _is_unread(run: ReadRun, catalog: Catalog) -> bool:
    """Whether files are called as a workload whose baseline file says how to read them,
    and hold lines to be read."""
    named = {
        hint.value.casefold() for hint in run.files.hints if hint.field == "recipe"
    }
    called = [
        recipe
        for recipe in catalog.recipes
        if named & {name.casefold() for name in (recipe.name, *recipe.names)}
    ]
    dialects = {recipe.dialect for recipe in called}
    return any(
        reading.count and reading.dialect in dialects
        for log in run.logs
        for reading in log.unread
    )


def _describe_unread(run: ReadRun, catalog: Catalog) -> str:
    """Return why the only dialect that files define, or those whose text stands in a
    log, find no step in it."""
    unread = [
        dialect
        for log in run.logs
        for dialect in log.unread
        if dialect.count or sum(not each.shipped for each in catalog.definitions) == 1
    ]
    return "".join(f"; {formatting.describe_unread(dialect)}" for dialect in unread[:1])


def _list_start_candidates(
    files: RunFiles, logs: Sequence[ParsedLog]
) -> Iterator[StartCandidate]:
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
        yield StartCandidate(Clock.FILE_TIME, files.modified, FILE_TIME, zoned=True)


def _date_by_log(logs: Sequence[ParsedLog]) -> StartCandidate | None:
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
    return StartCandidate(Clock.LOG, began, "the log's first time stamp", zoned)


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
