"""Find duplicate runs: copied logs, and logs that a launcher wrote additionally.

Two logs record the same run if no shared step differs in time or loss, and the shared
steps have at least `DIFFERENT_TIMES` different times. With `MANY_STEPS` shared steps,
it is enough that no time occurs in more than a third of them. Constant times, few steps
and logs without times prove nothing. Losses prove nothing either: runs with the same
seed print the same losses.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.log_records import Steps, stack_column
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import (
    LONGEST_QUEUE,
    Clock,
    DuplicateOf,
    Run,
    StartCandidate,
    StoredRun,
    join_fingerprints,
)
from pytest_llmbench.logs.dialect_table import get_dialect
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.measure.window import WARM_UP_STEPS

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Floats, Integers

FILE_TIME = "the time of the file"

# A start further in the future is ignored, or an old run would be the newest for ever.
CLOCK_SKEW = timedelta(days=1)

# Times closer than this do not show which of two files was written first.
WRITTEN_TOGETHER = timedelta(seconds=2)

# Names of logs written by launchers: such a job existed even if it made no step.
LAUNCHED = compile_on_use(r"log-|slurm-|(combined|stdout)\.log$")

# Folders in which tools store process output: W&B's and SwanLab's folders, and
# torchrun's `--log-dir`.
TRACKED = compile_on_use(
    r"/(?:wandb|swanlog)/[^/]+/(?:.*/)?[^/]+\Z|/attempt_\d+/\d+/std(?:out|err)\.log\Z"
)

# Number of equal leading step times that make a tool's log a duplicate. With fewer, the
# whole runs have to take equally long and be last modified together.
BEGUN_ALIKE = 10
SAME_ELAPSED = 1e-6
WRITTEN_ALONG = timedelta(hours=1)

# Limit of runs to compare with a run that shares steps with all of them: more of them
# are duplicates of the same log.
MOST_ALIKE = 64

# Processes of one run start within this interval, and their steps take equally long
# (except for waiting on each other).
BEGUN_TOGETHER = timedelta(minutes=10)
SAME_PACE = 0.005

# Names with a node are excluded: these may be tests of each node.
_OF_PROCESS = compile_on_use(
    r"(?:rank|worker|workerlog|proc|process)[-_.]?#", re.IGNORECASE
)


Kept = tuple[list[Run], list[tuple[Run, Run]]]
"""The runs that count, and the dropped runs paired with the run that each repeats."""


def _drop(runs: Sequence[Run], dropped: Mapping[str, tuple[Run, Run]]) -> Kept:
    """Remove the dropped runs, given by id as (dropped run, kept run), from `runs`."""
    return [run for run in runs if run.id not in dropped], list(dropped.values())


def drop_attached(runs: Sequence[Run]) -> Kept:
    """Drop attached logs: copies of a launcher's log in the same folder.

    A log is attached to a launcher's log if it is not named like a launcher's log and
    contains the first steps of that log, with equal times. If it has a job id, this
    must be the launcher's.
    """
    others = [run for run in runs if not _is_launched(run)]
    other_folders = {run.found.folder_text for run in others}
    # by folder and first timing, because a folder may contain thousands of logs
    launched_by_start: dict[object, list[Run]] = defaultdict(list)
    launched_folders: set[str] = set()
    for run in runs:
        folder = run.found.folder_text
        if folder in other_folders and _is_launched(run):
            launched_by_start[folder, *_list_timings(run)[:1]].append(run)
            launched_folders.add(folder)
    candidates = [run for run in others if run.found.folder_text in launched_folders]
    attached: dict[str, tuple[Run, Run]] = {}
    for run in candidates:
        timings = _list_timings(run)
        if not timings:
            continue
        for other in launched_by_start[run.found.folder_text, timings[0]]:
            same_job = run.found.job_id in ("", other.found.job_id)
            if same_job and timings == _list_timings(other)[: len(timings)]:
                attached[run.id] = (run, other)
                break
    return _drop(runs, attached)


def _is_launched(run: Run) -> bool:
    """True if a log of the run is named like a launcher's log."""
    return any(LAUNCHED.match(attempt.files.log_name) for attempt in run.attempts)


def drop_tracked(runs: Sequence[Run], unnamed: Collection[str] = ()) -> Kept:
    """Drop logs in which a tool recorded the console output of another run.

    The original is the console log of the same run. Three kinds of runs are dropped if
    their original is found: runs whose log is in a folder of W&B or torchrun, runs in
    `unnamed` (ids), whose logs are not named like logs, and runs without a known
    configuration and job. The original of the third kind must be in a folder above.

    torchrun's file of rank 0 may lack the standard error, such as the number of steps,
    and therefore show other times.
    """
    # the first two kinds
    secondary = {run.id for run in runs if _is_tracked(run) or run.id in unnamed}
    unidentified = {
        run.id for run in runs if run.identity.key is None and not run.found.job_id
    } - secondary
    if not (secondary or unidentified):
        return list(runs), []
    # the runs kept so far, by given path and console key
    consoles: dict[object, list[Run]] = defaultdict(list)
    copies: dict[str, tuple[Run, Run]] = {}
    # possible originals first, so that they are indexed before their copies
    for run in sorted(
        runs,
        key=lambda run: (
            run.id in secondary,
            run.id in unnamed,
            run.id in unidentified,
        ),
    ):
        original = None
        if run.id in secondary or run.id in unidentified:
            others = chain.from_iterable(
                consoles.get((run.found.given_path, key), ())
                for key in _list_console_keys(run, tolerance=1)
            )
            original = next(
                (
                    other
                    for other in others
                    if (
                        run.id in secondary
                        or other.found.folder in run.found.folder.parents
                    )
                    and _is_console(other, run)
                ),
                None,
            )
        if original is not None:
            copies[run.id] = (run, original)
            continue
        for key in _list_console_keys(run):
            consoles[run.found.given_path, key].append(run)
    return _drop(runs, copies)


def _is_tracked(run: Run) -> bool:
    """True if the log of a run is in a tool's folder."""
    return bool(run.attempts) and bool(TRACKED.search(run.attempts[0].files.log_text))


def _list_console_keys(run: Run, tolerance: int = 0) -> Iterator[object]:
    """Yield keys by which to find the console log that a tool recorded.

    The two logs share at least one key. A key contains the first times of a segment, or
    its last loss and rounded duration. Also yields the keys of durations that differ by
    up to `tolerance` rounding units.
    """
    for steps in list_steps(run):
        yield tuple(_list_segment_timings(steps)[:BEGUN_ALIKE])
        losses = [loss for loss in steps.loss.tolist() if not math.isnan(loss)]
        elapsed = _measure_elapsed(steps)
        if losses and elapsed > 0:
            # adjacent integers: a relative difference of SAME_ELAPSED
            rounded = round(math.log(elapsed) / SAME_ELAPSED)
            for duration in range(rounded - tolerance, rounded + tolerance + 1):
                yield losses[-1], duration


def _is_console(other: Run, run: Run) -> bool:
    """True if `other` is the console log from which a tool recorded the log of `run`.

    The console log contains all segments (attempts) of `run`. If the two logs were
    last modified at different times, equal beginnings do not suffice: the equal steps
    must prove a duplicate.
    """
    known_jobs = {run.found.job_id, other.found.job_id} - {""}
    if len(known_jobs) > 1:  # two different jobs
        return False
    written, other_written = run.found.modified, other.found.modified
    together = (
        written is None
        or other_written is None
        or abs(written - other_written) <= WRITTEN_ALONG
    )
    segments, other_segments = list_steps(run), list_steps(other)
    if not together:
        # The times of different runs may agree if few digits are printed.
        equal = all(
            any(
                _begins_alike(segment, other_segment)
                for other_segment in other_segments
            )
            for segment in segments
        )
        return equal and is_equal_enough(find_equal_steps(run, other))
    return all(
        any(
            _begins_alike(segment, other_segment)
            or _takes_as_long(segment, other_segment)
            for other_segment in other_segments
        )
        for segment in segments
    )


def _begins_alike(steps: Steps, other: Steps) -> bool:
    """True if one segment begins with all steps and times of the other one.

    The shorter segment must have at least `BEGUN_ALIKE` steps.
    """
    timings, other_timings = _list_segment_timings(steps), _list_segment_timings(other)
    shared = min(len(timings), len(other_timings))
    return shared >= BEGUN_ALIKE and timings[:shared] == other_timings[:shared]


def _takes_as_long(steps: Steps, other: Steps) -> bool:
    """True if all steps of two segments have times, with equal sums."""
    elapsed, other_elapsed = _measure_elapsed(steps), _measure_elapsed(other)
    return elapsed > 0 and math.isclose(elapsed, other_elapsed, rel_tol=SAME_ELAPSED)


def _measure_elapsed(steps: Steps) -> float:
    """Return the seconds that all steps took, 0 if a step has no time."""
    elapsed = float((steps.seconds * steps.mean_of).sum())
    return elapsed if math.isfinite(elapsed) else 0.0


def drop_ranks(runs: Sequence[Run]) -> Kept:
    """Drop the logs of all processes of a run except the first process.

    The processes write the same steps at the same pace into files whose names differ
    only in the rank. A file with another pace is a separate run.
    """
    groups: dict[tuple[str, str], list[tuple[int, Run]]] = defaultdict(list)
    for run in runs:
        name_and_rank = names.read_rank(_get_log_name(run))
        if name_and_rank is None:
            continue
        shared_name, rank = name_and_rank
        if _OF_PROCESS.search(shared_name) and count_steps(run):
            groups[run.found.folder_text, shared_name].append((rank, run))
    dropped: dict[str, tuple[Run, Run]] = {}
    for group in groups.values():
        (_, first), *others = sorted(group, key=lambda ranked: ranked[0])
        dropped |= {
            run.id: (run, first) for _, run in others if _is_same_pace(run, first)
        }
    return _drop(runs, dropped)


def _get_log_name(run: Run) -> str:
    """Return the name of the log of a run with a single attempt, else ""."""
    return run.attempts[0].files.log_name if len(run.attempts) == 1 else ""


def _is_same_pace(run: Run, other: Run) -> bool:
    """True if two runs have equally long segments with about equal times, started
    together."""
    if (
        run.started
        and other.started
        and abs(run.started - other.started) > BEGUN_TOGETHER
    ):
        return False
    segments, other_segments = list_steps(run), list_steps(other)
    if list(map(len, segments)) != list(map(len, other_segments)):
        return False
    return all(
        math.isclose(_sum_times(steps), _sum_times(other_steps), rel_tol=SAME_PACE)
        for steps, other_steps in zip(segments, other_segments, strict=True)
    )


def _sum_times(steps: Steps) -> float:
    """Return the seconds of the timed steps, NaN (never equal) if there are none."""
    elapsed = steps.seconds * steps.mean_of
    finite = elapsed[elapsed < math.inf]
    return float(finite.sum()) if len(finite) else math.nan


def drop_duplicates(runs: Sequence[Run]) -> Kept:
    """Drop all but one of each group of duplicates of one job.

    Duplicates are runs of one configuration and job whose logs are equal, compressed or
    not. A log that was copied while the job ran is a duplicate, too: such a run has the
    same start, and its steps are the first steps of the complete run.
    """
    originals, dropped = _drop_equal_logs(runs)
    # drop partial duplicates of a more complete run of the same job
    runs_by_job: dict[object, list[Run]] = defaultdict(list)
    for run in sorted(originals, key=_measure_extent, reverse=True):
        # a run without a job id is never a partial duplicate
        runs_by_job[run.identity.key, run.found.job_id or run.id].append(run)
    kept: list[Run] = []
    for job_runs in runs_by_job.values():
        if len(job_runs) == 1:
            kept += job_runs
            continue
        # indexed by the first step, since a job may have thousands of logs
        kept_by_first: dict[object, list[Run]] = defaultdict(list)
        for run in job_runs:
            first = tuple(_list_timings(run)[:1])  # () without steps
            others = (
                kept_by_first[first]
                if first
                else chain.from_iterable(kept_by_first.values())
            )
            original = next(
                (other for other in others if _is_partial_duplicate(run, other)), None
            )
            if original is None:
                kept.append(run)
                kept_by_first[first].append(run)
            else:
                dropped.append((run, original))
    return kept, dropped


def _drop_equal_logs(runs: Sequence[Run]) -> Kept:
    """Keep the last run of each group of runs of one job with equal logs."""
    keys = [_make_duplicate_key(run) for run in runs]
    key_counts = Counter(keys)
    groups: dict[object, list[Run]] = defaultdict(list)
    for run, key in zip(runs, keys, strict=True):
        # Nearly all keys are unique: the times of thousands of runs need not be kept.
        full_key = (key, *_list_times(run)) if key_counts[key] > 1 else key
        groups[full_key].append(run)
    originals = [_merge_dates(group) for group in groups.values()]
    dropped = [
        (duplicate, group[-1]) for group in groups.values() for duplicate in group[:-1]
    ]
    return originals, dropped


def _make_duplicate_key(run: Run) -> object:
    """Return a key that only runs of one configuration and job with equal texts share.

    A run without steps shares its key with no other run.
    """
    if not count_steps(run):
        return run.id
    fingerprints = [attempt.log.fingerprint for attempt in run.attempts]
    return run.identity.key, run.found.job_id, *fingerprints


def _list_times(run: Run) -> list[bytes]:
    """Return the bytes of the step times of each segment."""
    return [
        segment.steps.seconds.tobytes()
        for attempt in run.attempts
        for segment in attempt.log.segments
    ]


def _merge_dates(duplicates: Sequence[Run]) -> Run:
    """Return the last of several duplicates, dated by the earliest start.

    Starts in metadata, logs or the run's own folder names are reliable and used first.
    Without them, the start is the earliest file time. It is unknown if file times and
    the dates of parent folders contradict each other.
    """
    last = duplicates[-1]
    if len(duplicates) == 1:
        return last
    unreliable_clocks = (Clock.FILE_TIME, Clock.FOLDER_ABOVE)
    reliably_dated = [
        run
        for run in duplicates
        if run.started and run.order_source not in unreliable_clocks
    ]
    if reliably_dated:
        earliest = min(reliably_dated, key=lambda run: (run.started, run.started_from))
        return structs.replace(
            last,
            started=earliest.started,
            started_from=earliest.started_from,
            start_candidates=earliest.start_candidates,
            order_source=earliest.order_source,
        )
    # A duplicate is never written before its original, so the earliest file time is
    # right. But a parent folder may carry an unrelated date: if it contradicts the file
    # times, the start is unknown.
    written = [
        run.found.modified for run in duplicates if run.found.modified is not None
    ]
    stated = [run.started for run in duplicates if run.started is not None]
    if not written or (
        _contradict(written)
        and any(run.found.dated for run in duplicates)
        and _contradict([*written, *stated])
    ):
        return structs.replace(
            last,
            started=None,
            started_from="the copies of the log contradict each other",
            start_candidates=(),
        )
    first_written = StartCandidate(Clock.FILE_TIME, min(written), FILE_TIME, zoned=True)
    return structs.replace(
        last,
        started=min(written),
        started_from=FILE_TIME,
        start_candidates=(first_written,),
    )


def _contradict(times: Sequence[datetime]) -> bool:
    """True if the times differ by more than clocks do."""
    return max(times) - min(times) > CLOCK_SKEW


def _is_partial_duplicate(run: Run, other: Run) -> bool:
    """True if a run is an earlier copy of another run of its configuration and job."""
    # a copied log is in another folder, and has the job id of its original
    if not run.found.job_id or run.found.folder_text == other.found.folder_text:
        return False
    # without attempts, this is the metadata of a job whose log is elsewhere
    if not count_steps(run):
        return bool(
            not run.attempts and count_steps(other) and _started_close(run, other)
        )
    if not _share_start(run, other):
        return False
    timings, other_timings = _list_timings(run), _list_timings(other)
    return timings == other_timings[: len(timings)]


def _started_close(run: Run, other: Run) -> bool:
    """True if two runs may be the same job, by their times.

    Compares the submission times if both runs have them, else the starts.
    """
    submission_clocks = (Clock.METADATA, Clock.FOLDER_NAME)
    differences = [
        abs(candidate.timestamp - other_candidate.timestamp)
        for candidate in run.start_candidates
        for other_candidate in other.start_candidates
        if candidate.clock is other_candidate.clock
        and candidate.clock in submission_clocks
    ]
    if differences:
        return max(differences) <= LONGEST_QUEUE
    return bool(
        run.started
        and other.started
        and abs(run.started - other.started) <= LONGEST_QUEUE
    )


def _share_start(run: Run, other: Run) -> bool:
    """True if two runs have a start in common.

    All starts are compared, because a duplicate may lack the attempt whose start dates
    the original.
    """
    return run.started == other.started or not _list_starts(run).isdisjoint(
        _list_starts(other)
    )


def _list_starts(run: Run) -> set[datetime]:
    """Return the starts in metadata, in folder names and in the logs."""
    stated = {
        candidate.timestamp
        for candidate in run.start_candidates
        if candidate.clock in (Clock.METADATA, Clock.FOLDER_NAME)
    }
    return stated | {
        attempt.log.started
        for attempt in run.attempts
        if attempt.log.started is not None
    }


def _list_timings(run: Run) -> list[tuple[int, float | None]]:
    """Return (step number, time) of all steps; the time is None if missing."""
    return [
        timing for steps in list_steps(run) for timing in _list_segment_timings(steps)
    ]


def _list_segment_timings(steps: Steps) -> list[tuple[int, float | None]]:
    # NaN never compares equal, None does
    rows = zip(steps.index.tolist(), read_times(steps).tolist(), strict=True)
    return [
        (index, None if math.isnan(seconds) else seconds) for index, seconds in rows
    ]


def _measure_extent(run: Run) -> tuple[int, int, int]:
    """Return a sort key that is larger for a more complete run.

    If the numbers of steps are equal, attempts and lines decide: an early copy of a log
    may lack a later attempt that failed.
    """
    return (
        count_steps(run),
        len(run.attempts),
        sum(attempt.log.lines for attempt in run.attempts),
    )


def count_steps(run: Run) -> int:
    """Count the printed steps of all attempts."""
    return sum(map(len, list_steps(run)))


def mark_duplicates(runs: Sequence[Run]) -> Kept:
    """Mark runs whose steps duplicate the steps of another job.

    `runs` must be sorted, newest first. Returns the runs to judge in this order, and
    the dropped duplicates. If both runs have the same configuration, the newer run is
    the duplicate. Otherwise the duplicate is the run that started later or, if a start
    is unknown, was written later. If the order is unknown, both are marked. Two kinds
    of duplicates are dropped: a second log of the same job and configuration in another
    folder, and a log without a job id whose start is unknown or equal to the start of
    the other run.
    """
    earlier = _EarlierRuns()
    runs_by_key: dict[Key | None, list[Run]] = defaultdict(list)
    for run in runs:
        runs_by_key[run.identity.key].append(run)
    duplicates: dict[str, DuplicateOf] = {}
    dropped_pairs: dict[str, tuple[Run, Run]] = {}
    # oldest first, so that `earlier` contains the originals
    compared = [
        run
        for run in reversed(runs)
        if run.identity.key is not None and list_steps(run)
    ]
    for run, hashes in _hash_runs(_select_similar(compared)):
        for other in earlier.add(run, hashes):
            # the first pair that marks or drops a run decides
            if (
                run.id not in duplicates
                and run.id not in dropped_pairs
                and other.id not in dropped_pairs
            ):
                _classify_pair(
                    run, other, runs_by_key[run.identity.key], duplicates, dropped_pairs
                )
    kept, dropped = _drop(runs, dropped_pairs)
    marked = [
        run
        if run.duplicate_of == duplicates.get(run.id)
        else structs.replace(run, duplicate_of=duplicates.get(run.id))
        for run in kept
    ]
    return marked, dropped


def _select_similar(runs: Sequence[Run]) -> list[Run]:
    """Select the runs that share a hash of their steps with another run.

    Few of thousands of runs do, and only these need to be indexed by their hashes.
    """
    import numpy as np

    if not runs:
        return []
    hashes = array("Q")
    begins: list[int] = []  # of the hashes of each run
    for _, segments in _hash_runs(runs):
        begins.append(len(hashes))
        for segment in segments:
            hashes.extend((segment.whole, *segment.samples))
    values = np.frombuffer(hashes, np.uint64)
    ordered = np.sort(values)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    is_repeated = np.isin(values, repeated)
    is_shared = np.logical_or.reduceat(is_repeated, begins)
    return [run for run, shared in zip(runs, is_shared, strict=True) if shared]


def _hash_runs(runs: Sequence[Run]) -> Iterator[tuple[Run, list[StepHashes]]]:
    """Yield the runs with the hashes of their segments, computed for many at once."""
    for first in range(0, len(runs), HASHED_TOGETHER):
        together = runs[first : first + HASHED_TOGETHER]
        segments_by_count: dict[int, list[Steps]] = defaultdict(list)
        for steps in chain.from_iterable(map(list_steps, together)):
            segments_by_count[len(steps)].append(steps)
        hashes_by_count = {
            count: iter(hash_steps(segments))
            for count, segments in segments_by_count.items()
        }
        for run in together:
            yield run, [next(hashes_by_count[len(steps)]) for steps in list_steps(run)]


class _EarlierRuns:
    """The runs added so far, indexed by hashes of their steps and of their logs.

    A complete duplicate is found by the hashes of all its steps, a partial one by its
    sample hashes (see `hash_steps`).
    """

    def __init__(self) -> None:
        self._by_steps: dict[tuple[int, ...], Run] = {}
        # by the steps with the configuration or the logs, for steps of several runs
        self._by_steps_and_fact: dict[object, Run] = {}
        self._by_sample: dict[int, tuple[Run, ...]] = {}

    def add(self, run: Run, hashes: Sequence[StepHashes]) -> list[Run]:
        """Add a run; return the earlier runs that it may duplicate, oldest first.

        `hashes` are those of its segments.
        """
        step_hashes = tuple(segment.whole for segment in hashes)
        # the oldest runs with these steps: of any kind, of the same configuration, and
        # with identical logs
        oldest = self._by_steps.setdefault(step_hashes, run)
        candidates: dict[str, Run] = {}
        if oldest is not run:
            for side in (oldest, run):
                for fact in (side.identity.key, _hash_logs(side)):
                    self._by_steps_and_fact.setdefault((step_hashes, fact), side)
            facts = (run.identity.key, _hash_logs(run))
            alike = [self._by_steps_and_fact[step_hashes, fact] for fact in facts]
            candidates = {
                earlier.id: earlier
                for earlier in (oldest, *alike)
                if earlier is not run
            }
        samples = set(chain.from_iterable(segment.samples for segment in hashes))
        partial_duplicates = {
            other.id: other
            for sample in samples
            for other in self._by_sample.get(sample, ())
        }
        # Partial duplicates are searched only if the times could prove them: logs with
        # rounded times agree in many steps by chance.
        if not partial_duplicates or is_equal_enough(list_all_steps(run)):
            candidates |= partial_duplicates
            alone = (run,)  # shared by the samples, most of which occur once
            for sample in samples:
                others = self._by_sample.get(sample, ())
                if len(others) < MOST_ALIKE:
                    self._by_sample[sample] = others + alone if others else alone
        return list(candidates.values())


def mark_past_duplicates(
    runs: Sequence[Run], history: Mapping[Key, Sequence[StoredRun]]
) -> Sequence[Run]:
    """Mark runs whose logs equal the logs of another job's valid run in the history."""
    if not history:
        return runs
    logs = [_hash_logs(run) for run in runs]
    read_logs = set(logs) - {""}
    originals = {
        past_run.logs: (past_run, key)
        for key, key_runs in history.items()
        for past_run in key_runs
        if past_run.logs in read_logs and past_run.valid
    }
    if not originals:
        return runs
    marked = []
    for run, run_logs in zip(runs, logs, strict=True):
        original, key = originals.get(run_logs, (None, None))
        marked.append(_mark_past_duplicate(run, original, key) if original else run)
    return marked


def _mark_past_duplicate(run: Run, original: StoredRun, key: Key | None) -> Run:
    """Mark a run as a duplicate of a run in the history that has the same logs.

    `key` is the configuration of the run in the history. Returns `run` unchanged if it
    may be of the same job, is unidentified, older or marked already, or if the equality
    may be chance (a log without timestamps, of another configuration, with few times).
    """
    job = run.found.job_id
    same_job = not job or original.job_id in ("", job)
    if run.duplicate_of or run.identity.key is None or same_job:
        return run
    if run.started is not None and original.started > run.started:
        # the run in the history is the duplicate, judged before the original appeared
        return run
    equal = list_all_steps(run)
    has_timestamps = all(attempt.log.started is not None for attempt in run.attempts)
    certain = has_timestamps or is_equal_enough(equal)
    if not certain and key != run.identity.key:
        return run
    name = f"of {original.started:%Y-%m-%d} in the history"
    duplicate_of = DuplicateOf(
        original.job_id, name, count_steps(run), len(count_times(equal)), certain
    )
    return structs.replace(run, duplicate_of=duplicate_of)


def _hash_logs(run: Run) -> str:
    """Return a hash of the texts of all logs of a run, "" if the run has no steps."""
    return (
        join_fingerprints([attempt.log.fingerprint for attempt in run.attempts])
        if count_steps(run)
        else ""
    )


def _classify_pair(
    run: Run,
    other: Run,
    same_key_runs: Sequence[Run],
    duplicates: dict[str, DuplicateOf],
    dropped_pairs: dict[str, tuple[Run, Run]],
) -> None:
    """Record a run as a duplicate of an older run (`other`), or as dropped.

    Adds to `duplicates` or `dropped_pairs`, or to neither if the steps of the two runs
    differ. `same_key_runs` contains all runs of the configuration of `run`.
    """
    equal = find_equal_steps(run, other)
    if not equal:
        return
    # `certain`: the equal steps or identical logs prove a duplicate
    is_same_key = run.identity.key == other.identity.key
    certain = is_equal_enough(equal)
    if is_same_key and certain:
        # if a third run, which differs, has these times, too, they prove nothing
        witnesses = (
            candidate
            for candidate in same_key_runs[:MOST_ALIKE]
            if not find_equal_steps(run, candidate)
        )
        certain = not _depend_on_step_numbers(equal, islice(witnesses, WITNESSES))
    certain = certain or _is_same_text(run, other)
    if not certain and not is_same_key:
        return
    # drop a run without job id and without a start of its own
    unidentified = [side for side in (run, other) if _is_unidentified(side, run, other)]
    if certain and unidentified:
        dropped_pairs[unidentified[0].id] = (
            unidentified[0],
            other if unidentified[0] is run else run,
        )
    # drop a second log of the same job in another folder
    elif is_same_key and run.found.job_id and run.found.job_id == other.found.job_id:
        if certain and run.found.folder_text != other.found.folder_text:
            dropped_pairs[run.id] = (run, other)
    # mark the duplicate of another job
    else:
        different_times = len(count_times(equal))
        for duplicate, original in _order_duplicates(run, other):
            duplicates.setdefault(
                duplicate.id,
                DuplicateOf(
                    original.found.job_id,
                    original.id,
                    _count_steps_in(equal),
                    different_times,
                    certain,
                ),
            )


def _is_unidentified(run: Run, *pair: Run) -> bool:
    """True if a run has no job id, and no start that distinguishes it from the other.

    `pair` are the two runs, including `run`.
    """
    starts = {side.found.started for side in pair}
    return not run.found.job_id and (run.found.started is None or len(starts) == 1)


def _is_same_text(run: Run, other: Run) -> bool:
    """True if two runs have identical logs with timestamps.

    Two jobs never write the same timestamps.
    """
    logs, others = ([attempt.log for attempt in side.attempts] for side in (run, other))
    have_timestamps = all(log.started is not None and log.fingerprint for log in logs)
    return have_timestamps and [log.fingerprint for log in logs] == [
        log.fingerprint for log in others
    ]


def _order_duplicates(run: Run, other: Run) -> list[tuple[Run, Run]]:
    """Return (duplicate, original) for two runs, or both orders if unknown."""
    if run.identity.key == other.identity.key:
        return [(run, other)]
    starts = [side.found.started for side in (run, other)]
    written = [side.found.modified for side in (run, other)]
    # the starts decide, else the file times
    for first, second in (starts, written):
        if (
            first is not None
            and second is not None
            and abs(first - second) > WRITTEN_TOGETHER
        ):
            return [(run, other)] if first > second else [(other, run)]
    return [(run, other), (other, run)]


# --- equal steps ----------------------------------------------------------------------

# Equal steps with at least this many different times prove a duplicate. Measured with
# 6.5 billion simulated pairs of different runs (1.2 to 24 s, noise of 0.005 to 1 %, 1 to
# 3 decimals, 10 to 200 steps, checkpoints, drifts): no pair was classified as duplicate,
# except runs of up to 20 steps with equal warm-up to the last digit. 8 equal steps that
# are not constant would classify 6 % of the pairs as duplicates; 6 different times would
# classify four times as many pairs as 8.
DIFFERENT_TIMES = 8

# This many equal steps also prove a duplicate, if no time occurs in more than a third
# of them: two different runs agree in a step with a probability of 1/3 or less.
MANY_STEPS, MOST_COMMON = 20, 3

# The warm-up does not count, at most a fifth of the steps: it may be equal in all runs.
FIRST_PART = 5

# Limit of other runs of the configuration to examine: if one prints more than half of
# the equal times, the times depend on the step number (batches of different lengths).
WITNESSES = 5

# Number of consecutive steps that two runs must share to be compared.
SHINGLE = 3

# Number of sample hashes per log: the smallest ones, most of which a duplicate shares.
SAMPLES = 4

# Limit of runs whose columns are in memory at once.
HASHED_TOGETHER = 256

# Odd 64-bit multipliers that mix the bits of a hash.
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


class EqualSteps(NamedTuple):
    """The steps of one segment that another run prints, too."""

    numbers: Integers  # the step numbers
    times: Floats  # as `read_times` returns them
    averaged: int = 1  # each time is the mean of this many steps


def list_steps(run: Run) -> list[Steps]:
    """Return the segments with steps, in order."""
    return [steps for steps, _ in _list_segments(run)]


def list_all_steps(run: Run) -> list[EqualSteps]:
    """Return all steps of a run in the form of `find_equal_steps`."""
    return [
        EqualSteps(steps.index, read_times(steps), averaged)
        for steps, averaged in _list_segments(run)
    ]


def _list_segments(run: Run) -> Iterator[tuple[Steps, int]]:
    """Yield the steps of each segment, and the number of steps in each printed time."""
    for attempt in run.attempts:
        averaged = get_dialect(attempt.log.dialect).averages
        for segment in attempt.log.segments:
            if len(segment.steps):
                yield segment.steps, averaged


def read_times(steps: Steps) -> Floats:
    """Return the printed time of each step, shape (n,).

    Missing times are replaced by negative tokens/s.
    """
    import numpy as np

    absent = np.isnan(steps.seconds)
    if not absent.any():
        return steps.seconds
    times: Floats = np.where(absent, -steps.tokens_per_second_per_gpu, steps.seconds)
    return times


def find_equal_steps(run: Run, other: Run) -> list[EqualSteps]:
    """Return the steps of each segment that the other run prints, too.

    The counterpart of a segment is a segment of the other run that has at least half of
    its steps and differs in no time and no loss. (A duplicate may have lost or gained
    lines.) Returns [] if a segment has no counterpart.
    """
    other_segments = list_steps(other)
    equal = []
    for steps, averaged in _list_segments(run):
        rows = _find_equal_rows(steps, other_segments)
        if not len(rows):
            return []
        times = read_times(steps)[rows]
        equal.append(EqualSteps(steps.index[rows], times, averaged))
    return equal


def _find_equal_rows(steps: Steps, other_segments: Sequence[Steps]) -> Integers:
    """Return the rows of `steps` that the best of the other segments prints, too.

    The best segment shares most steps. Segments that share fewer than half of the
    steps, or differ in a time or a loss, are skipped. Empty if all are skipped.
    """
    import numpy as np

    best: Integers = np.empty(0, dtype=np.int64)
    for other in other_segments:
        _, rows, other_rows = np.intersect1d(
            steps.index, other.index, return_indices=True
        )
        shares_too_few = 2 * len(rows) < min(len(steps), len(other))
        if shares_too_few or len(rows) <= len(best):
            continue
        times = read_times(steps)[rows], read_times(other)[other_rows]
        losses = steps.loss[rows], other.loss[other_rows]
        if all(np.array_equal(*pair, equal_nan=True) for pair in (times, losses)):
            best = rows
    return best


def count_times(equal: Sequence[EqualSteps]) -> Counter[float]:
    """Return the number of equal steps for each printed time, without the warm-up.

    If the times are moving means over n steps, only every n-th value counts.
    """
    times: Counter[float] = Counter()
    for segment in equal:
        later = segment.times[min(WARM_UP_STEPS, len(segment.times) // FIRST_PART) :]
        # consecutive moving means share most of their steps
        independent = later[segment.averaged - 1 :: segment.averaged]
        # tokens/s, which replace missing times, are negative
        times.update(abs(time) for time in independent.tolist())
    return Counter(
        {time: count for time, count in times.items() if 0 < time < math.inf}
    )


def is_equal_enough(equal: Sequence[EqualSteps]) -> bool:
    """True if so many times are equal, with so many distinct values, that chance
    cannot explain them.

    Runs whose times depend only on the step numbers are not recognised here, see
    `_depend_on_step_numbers`.
    """
    times = count_times(equal)
    if len(times) >= DIFFERENT_TIMES:
        return True
    steps = times.total()
    # At most a third of many steps print the same time.
    return steps >= MANY_STEPS and MOST_COMMON * max(times.values()) <= steps


def _depend_on_step_numbers(
    equal: Sequence[EqualSteps], witnesses: Iterable[Run]
) -> bool:
    """True if the equal times of two runs follow from their step numbers alone.

    Then a witness, a run that is no duplicate, prints more than half of the times, too.
    """
    return any(
        2 * _count_agreeing(equal, run) > _count_steps_in(equal) for run in witnesses
    )


def _count_steps_in(equal: Sequence[EqualSteps]) -> int:
    """Return the number of equal steps of all segments."""
    return sum(len(segment.numbers) for segment in equal)


def _count_agreeing(equal: Sequence[EqualSteps], witness: Run) -> int:
    """Count the equal steps with the same time in the last segment of a witness."""
    import numpy as np

    agreeing = 0
    for steps in list_steps(witness)[-1:]:
        for segment in equal:
            _, rows, other_rows = np.intersect1d(
                segment.numbers, steps.index, return_indices=True
            )
            agreeing += int(
                (segment.times[rows] == read_times(steps)[other_rows]).sum()
            )
    return agreeing


class StepHashes(NamedTuple):
    """Hashes of the steps of one segment.

    A complete duplicate has the same hash of all steps. A duplicate with lost or added
    lines still has some of the samples: the smallest hashes of short sequences.
    """

    whole: int
    samples: list[int]


def hash_steps(segments: Sequence[Steps]) -> list[StepHashes]:
    """Return the hashes of each segment; all segments have equally many steps."""
    import numpy as np

    # one hash for each row of step number, time and loss
    factors = [np.uint64(factor) for factor in _FACTORS]
    rows = stack_column(segments, "index").astype(np.uint64) * factors[0]
    seconds = stack_column(segments, "seconds")
    if np.isnan(seconds).any():
        rates = stack_column(segments, "tokens_per_second_per_gpu")
        seconds = np.where(np.isnan(seconds), -rates, seconds)
    losses = stack_column(segments, "loss")
    for values, factor in zip((seconds, losses), factors[1:], strict=True):
        bits = np.where(np.isnan(values), -1.0, values).view(np.uint64) * factor
        rows = rows ^ bits ^ (bits >> np.uint64(29))
    # one hash for each sequence of SHINGLE rows
    steps = rows.shape[1]
    length = min(SHINGLE, steps)
    hashes = rows[:, : steps - length + 1].copy()
    for offset in range(1, length):
        shifted = rows[:, offset : steps - length + 1 + offset]
        hashes = hashes * factors[0] + shifted
    hashes ^= hashes >> np.uint64(31)
    # the smallest hashes: a sample that does not depend on positions in the log
    samples = np.sort(hashes, axis=1)[:, :SAMPLES].tolist()
    wholes = (hashes * factors[1]).sum(axis=1).tolist()
    pairs = map(StepHashes, wholes, samples)
    # Equal segments share all columns, and their hashes.
    return list(pairs) * (len(segments) // len(rows))
