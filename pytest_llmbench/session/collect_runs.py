"""Find the runs under the given paths, read their logs and identify their
configurations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

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
from pytest_llmbench.core.runtime import return_freed_memory
from pytest_llmbench.core.userfile import path_exists
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

NO_STEPS = "no training step in a supported format (docs/reference/dialects.md), and not named like a job log"

if TYPE_CHECKING:
    from pytest_llmbench.logs.reading.run_reader import ReadAhead, ReadCounts, Reading
    from pytest_llmbench.logs.sources.stores import Stores
    from pytest_llmbench.runs.discover.discovery import RunSearch


LONGEST_WAIT = timedelta(days=1)
"""Longest expected time from submission to start of an A/B job with an unknown id.

A run that starts later is not considered to be that job. Otherwise one lost job would
exclude the runs of all later days.
"""


FIRST_DATE = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
"""Earlier timestamps of lines are not dates: they restart with each attempt."""


LARGEST_ZONE_DIFFERENCE = timedelta(hours=14)
"""Largest difference between a log's time zone and the local one."""


class IngestedRuns(Struct, frozen=True):
    """The runs under the given paths, newest first, and the files that are not runs."""

    runs: tuple[Run, ...]
    unreadable: tuple[UnmatchedRun, ...]
    ignored: tuple[IgnoredFile, ...]
    tables: tuple[Recipe, ...] = ()
    """The shipped tables that were read because a run may belong to them."""
    copies: tuple[tuple[Run, Run], ...] = ()
    """Runs that were dropped as copies, each with the run that was kept."""
    hidden: tuple[IgnoredFile, ...] = ()
    """Files that were not read although they are newer than the runs next to them."""


HiddenFile = tuple[Path, datetime, str]
"""A file that was not read, with its modification time and the reason."""


def ingest(
    settings: Settings,
    catalog: Catalog,
    now: datetime,
    tell: Callable[[ReadCounts], None] | None = None,
) -> IngestedRuns:
    """Find, read and identify all runs under the given paths.

    Copies of a run count once. `tell` is called with the progress of reading.
    """
    with closing(_RunReader(settings, catalog, now)) as reader:
        collection = _Collection(reader)
        collection.add_logs(tell)
    collection.add_metrics()
    collection.add_unnamed()
    return_freed_memory()
    runs = collection.finish()
    return_freed_memory()
    return runs


def ingest_job(
    paths: Sequence[Path],
    job_id: str,
    key: Key,
    catalog: Catalog,
    now: datetime,
    *,
    since: datetime | None,
) -> Run | None:
    """Return the run of a job from the logs under `paths`, or None if there is no log.

    A path is searched only if no earlier path contains steps of the job. Files from
    before `since` are ignored. The run is assigned to `key`, the launched
    configuration, unless the run's contents contradict this.
    """
    from pytest_llmbench.runs.discover.discovery import find_runs

    reader = _RunReader(Settings(release=key.release, gpu=key.gpu), catalog, now)
    best_run: Run | None = None
    for path in filter(path_exists, paths):
        for files in find_runs([path]).runs:
            if files.job_id != job_id or not files.attempts:
                continue
            # A newly installed Slurm restarts at job id 1: older files belong to
            # another job.
            if since and files.modified and files.modified < since:
                continue
            (read_run,) = reader.read_streams([files])
            run = reader.identify(read_run)
            if best_run is None or count_steps(run) > count_steps(best_run):
                best_run = run
        if best_run is not None and count_steps(best_run):
            break
    if best_run is None:
        return None
    # If the id of an A/B job is unknown, all runs since its submission are excluded. This
    # run has another job id.
    return reader.read_in_known_dialect(_drop_pending_mark(_identify_as(best_run, key)))


class _RunReader:
    """Reads the logs of runs and identifies their configurations."""

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
        self._identities: dict[Identity, Identity] = {}
        self._cache = (
            LogCache(settings.cache, settings.logs, catalog.definitions)
            if settings.cache
            else None
        )
        self._ahead: ReadAhead | None = None

    def close(self) -> None:
        """Stop the workers that the search started."""
        if self._ahead:
            self._ahead.close()
            self._ahead = None

    def search(self) -> RunSearch:
        """Search for runs. Workers may read logs already while others are found."""
        from pytest_llmbench.logs.reading.run_reader import start_reading_ahead
        from pytest_llmbench.runs.discover.discovery import RunSearch

        self._ahead = start_reading_ahead(self.catalog.definitions, self._cache)
        on_log = self._ahead.add_log if self._ahead else None
        return RunSearch(self.settings.logs, self.stores, on_log)

    def read(
        self,
        runs: Sequence[RunFiles],
        tell: Callable[[ReadCounts], None] | None = None,
    ) -> list[ReadRun]:
        """Read the logs of runs."""
        from pytest_llmbench.logs.reading.run_reader import Reading

        reading = Reading(
            self.stores,
            runs,
            self.catalog.definitions,
            cache=self._cache,
            report=tell,
            ahead=self._ahead,
        )
        self.close()  # later reads use other logs
        return [
            ReadRun(
                files,
                tuple(
                    Attempt(attempt, _parse(attempt, reading))
                    for attempt in files.attempts
                ),
            )
            for files in runs
        ]

    def read_streams(
        self,
        run_files: Sequence[RunFiles],
        tell: Callable[[ReadCounts], None] | None = None,
    ) -> list[ReadRun]:
        """Read the logs of runs, or their standard error if only that contains steps."""
        runs = self.read(run_files, tell)
        error_files = [files for run in runs if (files := swap_silent_streams(run))]
        if not error_files:
            return runs
        error_runs = {run.files.id: run for run in self.read(error_files)}
        return [
            choose_streams(run, error_runs[run.files.id])
            if run.files.id in error_runs
            else run
            for run in runs
        ]

    def identify(self, read: ReadRun) -> Run:
        """Determine the configuration and the start of a run.

        Also counts the files of its checkpoints if the log reports that one was saved.
        """
        from pytest_llmbench.runs.discover.checkpoint_shards import count_shards
        from pytest_llmbench.runs.discover.identify import identify

        files, logs = read.files, read.logs
        saves = any(log.checkpoints.save_line for log in logs)
        # In the layout "results", one folder contains the files of many jobs.
        if saves and files.layout != "results":
            files = structs.replace(files, shards=count_shards(files.folder))
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
        # Runs of one configuration share one record.
        identity = self._identities.setdefault(identity, identity)
        candidates = tuple(_list_start_candidates(files, logs))
        start = next(iter(drop_future_starts(candidates, self.now)), None)
        if start is None:
            reason = "all its start times are in the future"
            return Run(
                files,
                read.attempts,
                identity,
                None,
                reason,
                start_candidates=candidates,
            )
        return Run(
            files,
            read.attempts,
            identity,
            start.timestamp,
            start.source,
            start_candidates=candidates,
            order_source=start.clock,
        )

    def read_in_known_dialect(self, run: Run) -> Run:
        """Return a run with its logs read in the dialects of its baselines.

        Custom dialects may have read a log differently (`ParsedLog.readings`). If the
        configuration has no baseline, uses the dialects of all tables. A run without a
        known configuration is returned unchanged.
        """
        key = run.identity.key
        has_readings = any(attempt.log.readings for attempt in run.attempts)
        if key is None or not has_readings:
            return run
        dialects = [
            baseline.dialect for baseline in self.catalog.baselines.get(key, ())
        ] or [recipe.dialect for recipe in self.tables.recipes]
        attempts = (
            structs.replace(attempt, log=attempt.log.read_as(*dialects))
            for attempt in run.attempts
        )
        return structs.replace(run, attempts=tuple(attempts))

    def make_unreadable(self, path: Path, reason: str) -> UnmatchedRun:
        """Build the unmatched run that reports an unreadable file.

        `about` are the configurations to which the file may belong, according to its
        path.
        """
        from pytest_llmbench.runs.discover.identify import identify
        from pytest_llmbench.runs.layouts.folder_layouts import read_path_hints

        identity = identify(
            RunFiles(path.name, str(path.parent), (), read_path_hints(path.parts)),
            (),
            self.catalog.recipes,
            release=self.settings.release,
            gpu=self.settings.gpu,
        )
        return UnmatchedRun(
            f"unreadable-{path.name}",
            Reason.UNREADABLE,
            reason,
            path,
            about=(identity.key,) if identity.key else identity.may_be,
            summary=reason.partition("; ")[0],  # without the consequences
        )

    def make_unreadable_marker(self, path: Path, reason: str) -> UnmatchedRun:
        """Build the unmatched run that reports an unreadable marker file of an A/B test.

        Without the marker, the runs of the test cannot be distinguished from others.
        """
        text = f"{formatting.escape(str(path))} lists the runs of an A/B, but cannot be read: {reason}"
        # All marker files have the same name, so the id contains the folder.
        name = f"{path.parent.name}/{path.name}"
        return structs.replace(
            self.make_unreadable(path, reason),
            id=f"unreadable-{name}",
            reason=Reason.MARK_UNREADABLE,
            text=text,
            summary=text,
        )


class _Collection:
    """Collects runs from logs, then from metrics, then from files not named like logs."""

    def __init__(self, reader: _RunReader) -> None:
        self._reader = reader
        self._recipes = reader.catalog.recipes
        search = reader.search()
        self._found = search.discovery
        # A search keeps each folder that it visited: as much memory as the runs take.
        self._search = search if self._found.unnamed else None
        self._runs: list[Run] = []
        self._without_steps: list[ReadRun] = []
        # ids of runs whose logs are not named like logs
        self._unnamed_ids: set[str] = set()
        # files that are not read, but may belong to a newer run than the logs next to them
        self._hidden: list[HiddenFile] = list(self._found.hidden)
        self._ignored = [
            IgnoredFile(path.name, reason)
            for path, reason in self._found.ignored
            if path.name != "nsys_profile"
        ]

    def add_logs(self, tell: Callable[[ReadCounts], None] | None) -> None:
        """Add the runs with steps and the launches that died before their first step.

        The other logs are added to the ignored files, with the reason.
        """
        from pytest_llmbench.runs.discover.run_facts import is_at_baseline_path

        for run in self._reader.read_streams(self._found.runs, tell):
            if (
                _is_run(run)
                or _has_unread_lines(run, self._reader.catalog)
                or is_at_baseline_path(run.files, self._recipes)
            ):
                self._runs.append(self._identify(run))
            else:
                self._without_steps.append(run)
        folders_with_runs = {run.found.folder_text for run in self._runs}
        for run in self._without_steps:
            # If the folder of a launch contains no run, the log belongs to the launch,
            # whatever its name.
            has_run = run.files.folder_text in folders_with_runs
            if not has_run and _is_launch_log(run.files):
                self._runs.append(self._identify(run))
            else:
                reason = _describe_unread(run, self._reader.catalog)
                self._ignore(run.files.id, NO_STEPS + reason)

    def add_metrics(self) -> None:
        """Add the runs that metrics files contain.

        A framework may write its metrics, such as step times, to a file near the log of
        a run. Drops the logs that contain far fewer step times than the metrics of the
        same runs. Metrics that are not used are added to the ignored or hidden files.
        """
        metrics = self._found.metrics
        if not metrics:
            return
        logged_runs = {run.id: ReadRun(run.found, run.attempts) for run in self._runs}
        surroundings = Surroundings(
            Neighbours(run.found for run in self._runs),
            Neighbours(run.files for run in self._without_steps),
            frozenset(run.id for run in self._runs if _can_be_replaced(run)),
        )
        chosen_metrics, replacements = self._choose_metrics(logged_runs, surroundings)
        # Report the files that become no run: metrics without steps, other metrics, and
        # the logs that metrics replace.
        with_steps: list[ReadRun] = []
        for run in chosen_metrics:
            if _is_run(run):
                with_steps.append(run)
            else:
                self._ignore(run.files.id, NO_STEPS)
        chosen_ids = {run.files.id for run in chosen_metrics}
        left_out = [files for files in metrics if files.id not in chosen_ids]
        for attempt in chain.from_iterable(files.attempts for files in left_out):
            self._ignore(attempt.log_name, LEFT_OUT)
        for run_id, replacement in replacements.items():
            self._ignore(run_id, _describe_replaced(logged_runs[run_id], replacement))
        self._hide_later_metrics(left_out, surroundings)
        # Add the runs of the metrics, and the launches that failed after them.
        self._runs = [run for run in self._runs if run.id not in replacements]
        self._runs += map(self._identify, with_steps)
        self._add_failed_launches(with_steps)

    def _choose_metrics(
        self, logged_runs: Mapping[str, ReadRun], surroundings: Surroundings
    ) -> tuple[list[ReadRun], dict[str, ReadRun]]:
        """Select the metrics files to use as runs.

        Returns the metrics to use, and the metrics that replace the log of a run, by
        the id of that run. Metrics replace a log if they contain many more step times.
        """
        from pytest_llmbench.runs.discover.run_facts import is_at_baseline_path

        claims = {
            files.id: surroundings.classify(
                files,
                is_at_baseline_path=is_at_baseline_path(files, self._recipes),
                is_recorded=self._reader.settings.record is not None,
            )
            for files in self._found.metrics
        }
        visible_metrics = [
            files
            for files in self._found.metrics
            if claims[files.id] is not Claim.HIDDEN
        ]
        by_claim: dict[Claim, list[ReadRun]] = defaultdict(list)
        for run in self._reader.read(visible_metrics):
            by_claim[claims[run.files.id]].append(run)
        # Metrics next to a log with few step times: replace the log if they have more.
        with_more_times: list[ReadRun] = []
        replacements: dict[str, ReadRun] = {}
        for run in by_claim[Claim.CONTESTED]:
            log_id = surroundings.find_rival(run.files).id
            if has_many_more_times(run, logged_runs[log_id]):
                with_more_times.append(run)
                replacements[log_id] = run
        # Metrics whose steps may be in a log elsewhere: compare their steps.
        without_log = find_unmatched_metrics(
            by_claim[Claim.DOUBTFUL], list(logged_runs.values())
        )
        return [*by_claim[Claim.RUN], *with_more_times, *without_log], replacements

    def _hide_later_metrics(
        self, metrics: Sequence[RunFiles], surroundings: Surroundings
    ) -> None:
        """Add metrics with steps to the hidden files if they may belong to a later run
        than the logs next to them."""
        later_metrics = [files for files in metrics if surroundings.is_later(files)]
        for run in self._reader.read(later_metrics) if later_metrics else ():
            if _is_run(run):
                modified = run.files.modified or datetime.min.replace(tzinfo=UTC)
                description = "metrics, written after the logs next to them"
                self._hidden.append((run.files.attempts[-1].log, modified, description))

    def _add_failed_launches(self, metrics: Sequence[ReadRun]) -> None:
        """Add launches that died before their first step, in folders with metrics.

        Their configuration is that of the preceding launch in the same folder, which
        wrote the metrics.
        """
        by_id = {run.id: run for run in self._runs}
        for console, previous_id in find_failed_launches(metrics, self._without_steps):
            identity = by_id[previous_id].identity
            if identity.key is not None:
                run = self._identify(console)
                self._runs.append(structs.replace(run, identity=identity))

    def add_unnamed(self) -> None:
        """Add the runs of files that are not named like logs.

        Ignores runs of jobs that have a log with steps, and runs with few steps, unless
        a baseline file names their path.
        """
        from pytest_llmbench.runs.discover.run_facts import is_at_baseline_path

        if self._search is None:
            return
        accepted_files = self._search_unnamed()
        if not accepted_files:
            return
        jobs_with_log = {
            run.found.job_id
            for run in self._runs
            if run.found.job_id and count_steps(run)
        }
        for run in self._reader.read_streams(
            self._search.find_unnamed_runs(accepted_files)
        ):
            steps, job = count_trained_steps(run.logs), run.files.job_id
            if job in jobs_with_log:
                reason = f"{steps} steps, but job {job} has another log with steps"
                self._ignore(run.files.id, reason)
            elif steps < FEWEST_STEPS and not is_at_baseline_path(
                run.files, self._recipes
            ):
                reason = f"not named like a log, and {steps} steps: expected {FEWEST_STEPS} or more"
                self._ignore(run.files.id, reason)
            else:
                self._unnamed_ids.add(run.files.id)
                self._runs.append(self._identify(run))

    def _search_unnamed(self) -> list[Path]:
        """Return the files that are not named like logs but contain steps.

        The other files that are not named like logs become ignored or hidden files.
        """
        from pytest_llmbench.runs.discover.path_patterns import matches
        from pytest_llmbench.runs.discover.run_facts import list_baseline_paths

        baseline_paths = list_baseline_paths(self._recipes)
        stores = self._reader.stores
        detector = LogDetector(self._reader.catalog.definitions, stores)
        logged_runs = Neighbours(
            run.found
            for run in self._runs
            if count_times(attempt.log for attempt in run.attempts)
        )
        accepted_files: list[Path] = []
        ignored_files: list[IgnoredFile] = []
        for files in self._found.unnamed:
            folder = files.folder
            self._hidden += _list_later_outputs(
                files, logged_runs.list_in(folder), detector, stores
            )
            choice = detector.choose(
                files,
                at_baseline_path=[
                    name
                    for name in files.names
                    if any(
                        matches(pattern, (*folder.parts, name))
                        for pattern in baseline_paths
                    )
                ],
                has_log=logged_runs.has_in(folder),
                has_log_near=logged_runs.is_near(folder, files.given_path),
            )
            accepted_files += [folder / name for name in choice.accepted]
            ignored_files += [
                IgnoredFile(name, reason) for name, reason in choice.ignored
            ]
        # The search listed these files as ignored before they were examined.
        accepted_names = {path.name for path in accepted_files}
        self._ignored = [
            file for file in self._ignored if file.name not in accepted_names
        ]
        self._ignored += ignored_files
        return accepted_files

    def finish(self) -> IngestedRuns:
        """Drop the duplicates; return the runs and the files that are not runs.

        Hidden metrics files (see `_hidden`) are returned only if newer than all runs.
        """
        kept, copies, left_out = _drop_all_duplicates(
            self._take_runs(), self._unnamed_ids, self._reader.now
        )
        unreadable_files = [
            *starmap(self._reader.make_unreadable, self._found.unreadable),
            *starmap(self._reader.make_unreadable_marker, self._found.unreadable_marks),
        ]
        return IngestedRuns(
            tuple(kept),
            tuple(_make_ids_unique(unreadable_files)),
            (*self._ignored, *left_out),
            self._reader.tables.recipes,
            copies,
            tuple(_select_newer(self._hidden, kept)),
        )

    def _take_runs(self) -> list[Run]:
        """Return the runs and forget them; dated and marked runs replace them."""
        runs, self._runs = self._runs, []
        return runs

    def _identify(self, read: ReadRun) -> Run:
        """Determine the configuration of a run, and read its logs in known dialects.

        A run is not excluded if it cannot be the A/B job with an unknown id.
        """
        run = self._reader.identify(read)
        if not _may_be_trial(run):
            run = _drop_pending_mark(run)
        return self._reader.read_in_known_dialect(run)

    def _ignore(self, name: str, reason: str) -> None:
        self._ignored.append(IgnoredFile(name, reason))


def _drop_all_duplicates(
    remaining: Sequence[Run], unnamed: Collection[str], now: datetime
) -> tuple[list[Run], tuple[tuple[Run, Run], ...], list[IgnoredFile]]:
    """Drop copies, logs of other ranks, and jobs without a log that are superseded.

    Returns the runs, newest first; (copy, original) pairs of copied logs; and a note on
    each dropped run. `unnamed` are the ids of runs whose logs are not named like logs.
    """
    # Other logs of a launched run, in the folder of its log.
    remaining, other_logs = drop_attached(remaining)
    # Logs in which a tool such as W&B recorded the output of a run.
    remaining, tracker_logs = drop_tracked(remaining, unnamed)
    # Logs of the other processes of a run.
    remaining, rank_logs = drop_ranks(remaining)
    # Equal or partial logs of one job.
    remaining = order_runs(remaining, now)
    remaining, copies = drop_duplicates(remaining)
    # Jobs without a log that are too old or followed by newer runs.
    kept, superseded_jobs = drop_superseded(order_runs(remaining, now), now)
    # Logs with the steps of another run.
    kept, copied_runs = mark_duplicates(kept)
    notes = [
        *superseded_jobs,
        *(
            IgnoredFile(copy.id, f"a copy of {original.id}")
            for copy, original in (*other_logs, *tracker_logs, *copies, *copied_runs)
        ),
        *(
            IgnoredFile(run.id, f"the log of another process of {first.id}")
            for run, first in rank_logs
        ),
    ]
    return kept, (*copies, *copied_runs), notes


def _select_newer(
    hidden: Sequence[HiddenFile], runs: Sequence[Run]
) -> Iterator[IgnoredFile]:
    """Yield the unread files that are newer than all runs near them.

    The runs near a file are in the innermost folder around the file that contains runs.
    """
    if not hidden:
        return
    newest_start: dict[Path, datetime] = {}  # of the runs in and under each folder
    for run in runs:
        if run.started is not None:
            for folder in (run.found.folder, *run.found.folder.parents):
                newest_start[folder] = max(
                    newest_start.get(folder, run.started), run.started
                )
    logs = {attempt.files.log for run in runs for attempt in run.attempts}
    by_path = {
        path: (modified, description)
        for path, modified, description in hidden
        if path not in logs
    }
    for path, (modified, description) in by_path.items():
        # The innermost folder comes first in `parents`.
        newest_near = next(
            (newest_start[folder] for folder in path.parents if folder in newest_start),
            None,
        )
        if newest_near is not None and modified > newest_near:
            yield IgnoredFile(path.name, description)


def _make_ids_unique(entries: Iterable[UnmatchedRun]) -> Iterator[UnmatchedRun]:
    """Yield the entries; the second entry with an id gets the suffix `~2`, and so on."""
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[entry.id] += 1
        number = counts[entry.id]
        yield (
            structs.replace(entry, id=f"{entry.id}~{number}") if number > 1 else entry
        )


def _may_be_trial(run: Run) -> bool:
    """True if a run may be the A/B job whose id is unknown.

    The id is unknown if a session ended while it submitted the job. The run may be the
    job if it is undated, or started around the submission.
    """
    since = run.found.trial_pending_since
    return (
        run.started is None
        or since is None
        or -LARGEST_ZONE_DIFFERENCE < run.started - since <= LONGEST_WAIT
    )


def _drop_pending_mark(run: Run) -> Run:
    """Return a run without the exclusion that an A/B job with an unknown id causes.

    A run that is excluded for another reason is returned unchanged.
    """
    if (
        run.found.excluded is not Reason.VARIANT
        or run.found.trial_pending_since is None
    ):
        return run
    found = structs.replace(
        run.found, excluded=None, excluded_because="", trial_pending_since=None
    )
    return structs.replace(run, found=found)


def _list_later_outputs(
    files: UnnamedFiles, logs: Sequence[RunFiles], detector: LogDetector, stores: Stores
) -> Iterator[HiddenFile]:
    """Yield files with steps that were written long after all `logs` next to them.

    Such files are not read, because there are logs, but may be a newer run.
    """
    newest_log_time = max((log.modified for log in logs if log.modified), default=None)
    if newest_log_time is None:
        return
    for name in files.names:
        try:
            modified = datetime.fromtimestamp(
                stores.stat(files.folder / name).st_mtime, UTC
            )
        except OSError:  # deleted in the meantime
            continue
        if (
            modified - newest_log_time > WRITTEN_ALONG
            and has_log_word(name)
            and detector.contains_steps(files, name)
        ):
            yield (
                files.folder / name,
                modified,
                "not named like the logs next to it, and written after them",
            )


def _can_be_replaced(run: Run) -> bool:
    """True if metrics with more times may replace the log of a run."""
    # For a known configuration the log is kept, since its baseline was recorded from
    # such a log.
    is_unknown = run.identity.key is None and not run.identity.candidates
    return is_unknown and may_metrics_have_more(
        [attempt.log for attempt in run.attempts]
    )


def _describe_replaced(run: ReadRun, metrics: ReadRun) -> str:
    count = formatting.count_noun(count_times(run.logs), "time")
    return f"{count} of steps, but {metrics.files.id} of the same launch contains {count_times(metrics.logs)}"


def _identify_as(run: Run, key: Key) -> Run:
    """Assign a run to the launched configuration unless its contents contradict this."""
    identity = run.identity
    if identity.key is not None or identity.contradicted:
        return run
    # The files next to the log of a table's configuration state what ran. If they
    # resemble other rows of the table but match none, the run was another workload.
    is_other_workload = any(
        neighbour.recipe == key.recipe == MEGATRON_BRIDGE
        for neighbour in identity.nearest
    )
    is_possible = (
        key in identity.candidates if identity.candidates else not is_other_workload
    )
    if not is_possible:
        return run
    return structs.replace(
        run, identity=Identity(key, "it was launched as this configuration")
    )


def _parse(files: AttemptFiles, reading: Reading) -> ParsedLog:
    """Return the parsed log of an attempt, with the ending that its standard error
    shows.

    An unreadable file gives a log without steps whose ending is UNREADABLE.
    """
    from pytest_llmbench.logs.endings import add_error_ending

    try:
        log = reading.get_log(files.log_text)
        error_text = files.err_text
        error_ending = reading.get_ending(error_text) if error_text else None
    except LogError as error:
        return ParsedLog(
            dialect=None,
            segments=(),
            ending=Ending(EndingCode.UNREADABLE, NO_QUOTE, 0, str(error)),
        )
    return add_error_ending(log, error_ending)


def _is_run(run: ReadRun) -> bool:
    """True if the files contain steps or could not be read.

    Also true if their folders name a workload and they belong to a launched job.
    """
    if any(
        log.segments or (log.ending and log.ending.code is EndingCode.UNREADABLE)
        for log in run.logs
    ):
        return True
    files = run.files
    is_launched = (
        files.job_id
        or files.metadata_name
        or files.logless_job
        or any(LAUNCHED.match(attempt.log_name) for attempt in files.attempts)
    )
    return bool(is_launched) and _names_workload(files)


def _is_launch_log(files: RunFiles) -> bool:
    """True if a log without steps is at a path where launches write logs."""
    # The folders of a launch contain a workload and a time.
    return files.started is not None and _names_workload(files)


def _names_workload(files: RunFiles) -> bool:
    return {"recipe", "size"} <= {hint.field for hint in files.hints}


def _has_unread_lines(run: ReadRun, catalog: Catalog) -> bool:
    """True if the custom dialect of the run's recipe found lines that it cannot read.

    The recipe is known from the folders or file names of the run.
    """
    stated_names = {
        hint.value.casefold() for hint in run.files.hints if hint.field == "recipe"
    }
    matching_recipes = [
        recipe
        for recipe in catalog.recipes
        if stated_names & {name.casefold() for name in (recipe.name, *recipe.names)}
    ]
    dialects = {recipe.dialect for recipe in matching_recipes}
    return any(
        reading.count and reading.dialect in dialects
        for log in run.logs
        for reading in log.unread
    )


def _describe_unread(run: ReadRun, catalog: Catalog) -> str:
    """Explain why a custom dialect finds no step in a log; "" without an explanation.

    Explains the first dialect whose `find` text is in the log, or the user's only
    dialect.
    """
    user_dialects = [
        definition for definition in catalog.definitions if not definition.shipped
    ]
    is_only_dialect = len(user_dialects) == 1
    unread = [
        dialect
        for log in run.logs
        for dialect in log.unread
        if dialect.count or is_only_dialect
    ]
    return "".join(f"; {formatting.describe_unread(dialect)}" for dialect in unread[:1])


def _list_start_candidates(
    files: RunFiles, logs: Sequence[ParsedLog]
) -> Iterator[StartCandidate]:
    """Yield the possible start times of a run, the most reliable first.

    The sources are the metadata and the run's folder name, then the log, other folders,
    and the modification time of the log.
    """
    own_candidates = [
        candidate
        for candidate in files.start_candidates
        if candidate.clock in (Clock.METADATA, Clock.FOLDER_NAME)
    ]
    yield from own_candidates
    from_log = _date_by_log(logs)
    # A log that starts before its launch was written with a wrong clock.
    if from_log is not None and all(
        candidate.timestamp - from_log.timestamp <= CLOCK_SKEW
        for candidate in own_candidates
    ):
        yield from_log
    yield from (
        candidate
        for candidate in files.start_candidates
        if candidate not in own_candidates
    )
    if files.modified is not None:
        yield StartCandidate(Clock.FILE_TIME, files.modified, FILE_TIME, zoned=True)


def _date_by_log(logs: Sequence[ParsedLog]) -> StartCandidate | None:
    """Return the start of the last attempt that has steps and a timestamp.

    If no attempt has both, returns the first timestamp of the logs. None without any.
    """
    # A requeued job may run again days later, so that its last attempt counts. Attempts
    # have a log each, or follow each other in one log (`_measure_restart`).
    stamped_logs = [log for log in logs if log.started is not None]
    chosen_log = next(
        (log for log in reversed(stamped_logs) if log.segments),
        next(iter(stamped_logs), None),
    )
    if chosen_log is None or chosen_log.started is None:
        return None
    zoned = chosen_log.started.tzinfo is not None
    started = chosen_log.started.astimezone(UTC) + _measure_restart(chosen_log.segments)
    return StartCandidate(Clock.LOG, started, "the log's first time stamp", zoned)


def _measure_restart(segments: Sequence[Segment]) -> timedelta:
    """Return the time between the first steps of the first and the last attempt.

    0 if the log contains one attempt, or if its timestamps have no dates.
    """
    if len(segments) < 2:
        return timedelta(0)
    first = _get_first_stamp(segments[0].steps)
    last = _get_first_stamp(segments[-1].steps)
    passed_seconds = last - first if min(first, last) > FIRST_DATE else 0.0
    return timedelta(seconds=max(0.0, passed_seconds))


def _get_first_stamp(steps: Steps) -> float:
    """Return the first timestamp of a segment, or 0."""
    import numpy as np

    stamps = steps.stamp[np.isfinite(steps.stamp)]
    return float(stamps[0]) if len(stamps) else 0.0
