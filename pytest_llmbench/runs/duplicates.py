"""Which of the runs that were found are duplicates: logs that were copied, or that a
launcher wrote along.

Two logs are records of one run if no step that both print differs in time or loss, and
their equal steps print `DIFFERENT_TIMES` times or more (or `MANY_STEPS` steps few
different ones, in turn). Constant times, few steps and logs without times prove nothing
then, and losses never do: runs with one seed print the same.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.log_records import Steps
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

# A start that lies further ahead than this is not believed, or an old run would be the
# newest for ever.
CLOCK_SKEW = timedelta(days=1)

# Times that lie no further apart do not tell which of two files was there first.
WRITTEN_TOGETHER = timedelta(seconds=2)

# Names of logs that a launcher writes: a job of this name was there even if it left no
# step.
LAUNCHED = re.compile(r"log-|slurm-|(combined|stdout)\.log$")

# Where tools keep what a process prints: W&B's and SwanLab's folders, and torchrun's
# `--log-dir`.
TRACKED = re.compile(
    r"/(?:wandb|swanlog)/[^/]+/(?:.*/)?[^/]+\Z|/attempt_\d+/\d+/std(?:out|err)\.log\Z"
)

# Steps with equal times that make a tool's log a copy. With fewer, the whole run has to
# take as long to its digits, and the two were last written together.
BEGUN_ALIKE = 10
SAME_ELAPSED = 1e-6
WRITTEN_ALONG = timedelta(hours=1)

# So many runs at most are compared with one that shares steps with all of them: more
# are copies of the same log.
MOST_ALIKE = 64

# Processes of one run begin within this, and their steps take as long, but for what
# each waits for the others.
BEGUN_TOGETHER = timedelta(minutes=10)
SAME_PACE = 0.005

# Logs of nodes may be of tests of each node.
_OF_PROCESS = re.compile(
    r"(?:rank|worker|workerlog|proc|process)[-_.]?#", re.IGNORECASE
)


Kept = tuple[list[Run], list[tuple[Run, Run]]]
"""The runs that count, and the left out ones, each with the run that it repeats."""


def _leave_out(runs: Sequence[Run], copies: Mapping[str, tuple[Run, Run]]) -> Kept:
    return [run for run in runs if run.id not in copies], list(copies.values())


def drop_attached(runs: Sequence[Run]) -> Kept:
    """Leave out the logs that a launcher wrote along with its own.

    Such a log has any other name, lies in the same folder, and has the same steps and
    times from the first on. If its name says a job, it is the same one.
    """
    launched: dict[Path, list[Run]] = defaultdict(list)
    others: list[Run] = []
    for run in runs:
        if _is_launched(run):
            launched[run.found.folder].append(run)
        else:
            others.append(run)
    beside = [run for run in others if run.found.folder in launched]
    logs: dict[object, list[Run]] = defaultdict(list)  # a folder may hold thousands
    for folder in {run.found.folder for run in beside}:
        for run in launched[folder]:
            logs[folder, *_list_timings(run)[:1]].append(run)
    copies: dict[str, tuple[Run, Run]] = {}
    for run in beside:
        timings = _list_timings(run)
        for other in logs[run.found.folder, *timings[:1]] if timings else ():
            same_job = run.found.job_id in ("", other.found.job_id)
            if same_job and timings == _list_timings(other)[: len(timings)]:
                copies[run.id] = (run, other)
                break
    return _leave_out(runs, copies)


def _is_launched(run: Run) -> bool:
    return any(LAUNCHED.match(attempt.files.log.name) for attempt in run.attempts)


def drop_tracked(runs: Sequence[Run], unnamed: Collection[str] = ()) -> Kept:
    """Leave out the logs that a tool kept of another run's console.

    W&B and torchrun keep what a process prints in folders of their own: the log outside
    of them counts. Rank 0's file of torchrun may lack what the console has from
    standard error, as the number of steps, and so print other times. `unnamed` are the
    ids of runs whose logs are not called so: another log counts before them, too. So
    does a log above one of no known configuration and job.
    """
    weak = {run.id for run in runs if _is_tracked(run) or run.id in unnamed}
    nameless = {
        run.id for run in runs if run.identity.key is None and not run.found.job_id
    } - weak
    if not (weak or nameless):
        return list(runs), []
    consoles: dict[object, list[Run]] = defaultdict(list)
    copies: dict[str, tuple[Run, Run]] = {}
    for run in sorted(
        runs, key=lambda run: (run.id in weak, run.id in unnamed, run.id in nameless)
    ):
        original = None
        if run.id in weak or run.id in nameless:
            others = chain.from_iterable(
                consoles.get((run.found.given_path, key), ())
                for key in _list_console_keys(run, around=1)
            )
            original = next(
                (
                    other
                    for other in others
                    if (
                        run.id in weak or other.found.folder in run.found.folder.parents
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
    return _leave_out(runs, copies)


def _is_tracked(run: Run) -> bool:
    """True if a tool wrote the log of a run into a folder of its own."""
    return bool(run.attempts) and bool(TRACKED.search(str(run.attempts[0].files.log)))


def _list_console_keys(run: Run, around: int = 0) -> Iterator[object]:
    """Yield what the console and a tool's copy of it share: the first times of each
    part, or its last loss and how long it took, to within `around` units."""
    for steps in list_steps(run):
        yield tuple(_list_part_timings(steps)[:BEGUN_ALIKE])
        losses = [loss for loss in steps.loss.tolist() if not math.isnan(loss)]
        taken = _measure_elapsed(steps)
        if losses and taken > 0:
            unit = round(math.log(taken) / SAME_ELAPSED)
            for near in range(unit - around, unit + around + 1):
                yield losses[-1], near


def _is_console(other: Run, run: Run) -> bool:
    """True if the log of another run is the console that a tool's log was taken from:
    it has all its parts, which are the attempts of a launch."""
    jobs = {run.found.job_id, other.found.job_id} - {""}
    if len(jobs) > 1:
        return False
    written = run.found.modified, other.found.modified
    together = (
        written[0] is None
        or written[1] is None
        or abs(written[0] - written[1]) <= WRITTEN_ALONG
    )
    parts, wholes = list_steps(run), list_steps(other)
    if not together:
        # The times of honest runs agree if few digits are printed.
        equal = all(
            any(_begins_alike(part, whole) for whole in wholes) for part in parts
        )
        return equal and is_equal_enough(find_equal_steps(run, other))
    return all(
        any(
            _begins_alike(part, whole) or _takes_as_long(part, whole)
            for whole in wholes
        )
        for part in parts
    )


def _begins_alike(steps: Steps, other: Steps) -> bool:
    part, whole = _list_part_timings(steps), _list_part_timings(other)
    shared = min(len(part), len(whole))
    return shared >= BEGUN_ALIKE and part[:shared] == whole[:shared]


def _takes_as_long(steps: Steps, other: Steps) -> bool:
    taken, took = _measure_elapsed(steps), _measure_elapsed(other)
    return taken > 0 and math.isclose(taken, took, rel_tol=SAME_ELAPSED)


def _measure_elapsed(steps: Steps) -> float:
    """Return the seconds that all steps took together, 0 if one has no time."""
    elapsed = float((steps.seconds * steps.mean_of).sum())
    return elapsed if math.isfinite(elapsed) else 0.0


def drop_ranks(runs: Sequence[Run]) -> Kept:
    """Leave out the logs of further processes of one run, whose first process counts.

    Each process writes the same steps at the same pace into a file beside the others
    that its rank distinguishes. One of another pace stays: it is of a run of its own.
    """
    groups: dict[tuple[Path, str], list[tuple[int, Run]]] = defaultdict(list)
    for run in runs:
        rank = names.read_rank(_get_log_name(run))
        if rank and _OF_PROCESS.search(rank[0]) and count_steps(run):
            groups[run.found.folder, rank[0]].append((rank[1], run))
    further: dict[str, tuple[Run, Run]] = {}
    for group in groups.values():
        (_, first), *others = sorted(group, key=lambda ranked: ranked[0])
        further |= {
            run.id: (run, first) for _, run in others if _is_same_pace(run, first)
        }
    return _leave_out(runs, further)


def _get_log_name(run: Run) -> str:
    return run.attempts[0].files.log.name if len(run.attempts) == 1 else ""


def _is_same_pace(run: Run, other: Run) -> bool:
    """True if two runs have the same parts, with the same steps in about the same time,
    and began together."""
    parts, others = list_steps(run), list_steps(other)
    if (
        run.started
        and other.started
        and abs(run.started - other.started) > BEGUN_TOGETHER
    ):
        return False
    return [len(steps) for steps in parts] == [len(steps) for steps in others] and all(
        math.isclose(_sum_times(steps), _sum_times(whole), rel_tol=SAME_PACE)
        for steps, whole in zip(parts, others, strict=True)
    )


def _sum_times(steps: Steps) -> float:
    """Return the seconds that the steps with a time took; NaN, which is like no other,
    without any."""
    elapsed = steps.seconds * steps.mean_of
    finite = elapsed[elapsed < math.inf]
    return float(finite.sum()) if len(finite) else math.nan


def drop_duplicates(runs: Sequence[Run]) -> Kept:
    """Leave out all but one of each group of copies.

    Copies are runs of one configuration and job with equal logs, compressed or not; and
    with an equal start and the beginning of another's steps, as a copy has that was
    taken while the job ran.
    """
    groups: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_make_duplicate_key(run)].append(run)
    originals = [_merge_dates(group) for group in groups.values()]
    copies = [(copy, group[-1]) for group in groups.values() for copy in group[:-1]]
    of_job: dict[object, list[Run]] = defaultdict(list)
    for run in sorted(originals, key=_measure_extent, reverse=True):
        # without a job id it is no part of another
        of_job[run.identity.key, run.found.job_id or run.id].append(run)
    kept: list[Run] = []
    for of_one in of_job.values():
        if len(of_one) == 1:
            kept += of_one
            continue
        # by the first step: a job may have thousands of logs
        begun: dict[object, list[Run]] = defaultdict(list)
        for run in of_one:
            first = tuple(_list_timings(run)[:1])
            others = begun[first] if first else chain.from_iterable(begun.values())
            original = next((other for other in others if _is_part(run, other)), None)
            if original is None:
                kept.append(run)
                begun[first].append(run)
            else:
                copies.append((run, original))
    return kept, copies


def _make_duplicate_key(run: Run) -> object:
    if not count_steps(run):
        return run.id
    logs = [attempt.log for attempt in run.attempts]
    times = (
        segment.steps.seconds.tobytes() for log in logs for segment in log.segments
    )
    return (
        run.identity.key,
        run.found.job_id,
        tuple(log.fingerprint for log in logs),
        *times,
    )


def _merge_dates(copies: Sequence[Run]) -> Run:
    """Return one of several copies, with the start that they agree on: the earliest of
    the best source."""
    last = copies[-1]
    if len(copies) == 1:
        return last
    weak = (Clock.FILE_TIME, Clock.FOLDER_ABOVE)
    sure = [run for run in copies if run.started and run.order_source not in weak]
    if sure:
        first = min(sure, key=lambda run: (run.started, run.started_from))
        return dataclasses.replace(
            last,
            started=first.started,
            started_from=first.started_from,
            datings=first.datings,
            order_source=first.order_source,
        )
    # A copy is never written before its original, so the earliest file time is right;
    # but a folder above may be dated for another reason. Where it contradicts the file
    # times, the start is not known.
    written = [run.found.modified for run in copies if run.found.modified is not None]
    stated = [run.started for run in copies if run.started is not None]
    if not written or (
        _lie_apart(written)
        and any(run.found.dated for run in copies)
        and _lie_apart([*written, *stated])
    ):
        return dataclasses.replace(
            last,
            started=None,
            started_from="its copies contradict each other",
            datings=(),
        )
    first_written = StartCandidate(Clock.FILE_TIME, min(written), FILE_TIME, zoned=True)
    return dataclasses.replace(
        last, started=min(written), started_from=FILE_TIME, datings=(first_written,)
    )


def _lie_apart(moments: Sequence[datetime]) -> bool:
    return max(moments) - min(moments) > CLOCK_SKEW


def _is_part(run: Run, other: Run) -> bool:
    """Whether a run is a copy of what another one of its configuration and job was when
    it was taken."""
    if not run.found.job_id or run.found.folder == other.found.folder:
        return False
    if not count_steps(
        run
    ):  # without an attempt only its metadata stands here, and its log elsewhere
        return bool(
            not run.attempts and count_steps(other) and _started_near(run, other)
        )
    if not _share_start(run, other):
        return False
    part, whole = _list_timings(run), _list_timings(other)
    return part == whole[: len(part)]


def _started_near(run: Run, other: Run) -> bool:
    """Whether two runs may be one job, by every clock of the submission that both have,
    else by their starts."""
    submitted = (Clock.METADATA, Clock.FOLDER_NAME)
    both = [
        abs(mine.moment - theirs.moment)
        for mine in run.datings
        for theirs in other.datings
        if mine.clock is theirs.clock in submitted
    ]
    if both:
        return max(both) <= LONGEST_QUEUE
    return bool(
        run.started
        and other.started
        and abs(run.started - other.started) <= LONGEST_QUEUE
    )


def _share_start(run: Run, other: Run) -> bool:
    """Whether two runs state one start; a copy may lack the attempts that dated the
    other."""
    return run.started == other.started or not _list_starts(run).isdisjoint(
        _list_starts(other)
    )


def _list_starts(run: Run) -> set[datetime]:
    stated = {
        dating.moment
        for dating in run.datings
        if dating.clock in (Clock.METADATA, Clock.FOLDER_NAME)
    }
    return stated | {
        attempt.log.started
        for attempt in run.attempts
        if attempt.log.started is not None
    }


def _list_timings(run: Run) -> list[tuple[int, float | None]]:
    """Return steps and times, None where a log prints none: a NaN would make every copy
    a run of its own."""
    return [timing for steps in list_steps(run) for timing in _list_part_timings(steps)]


def _list_part_timings(steps: Steps) -> list[tuple[int, float | None]]:
    rows = zip(steps.index.tolist(), read_times(steps).tolist(), strict=True)
    return [
        (index, None if math.isnan(seconds) else seconds) for index, seconds in rows
    ]


def _measure_extent(run: Run) -> tuple[int, int, int]:
    """Return how much of a job a run tells: of two with the same steps one may know of
    an attempt that died later."""
    return (
        count_steps(run),
        len(run.attempts),
        sum(attempt.log.lines for attempt in run.attempts),
    )


def count_steps(run: Run) -> int:
    """Return how many steps all attempts of a run printed."""
    return sum(map(len, list_steps(run)))


def mark_duplicates(runs: Sequence[Run]) -> Kept:
    """Return runs, newest first, with those marked that have the steps of another job;
    and copies that are none.

    The newer of two such runs of one configuration is the copy, of different
    configurations the one that was written later, or both where nothing says which. The
    second kind, with what each repeats, is left out: a second log of one job and
    configuration elsewhere, and a log that names no job and has no start of its own.
    """
    earlier = _EarlierRuns()
    of_key: dict[Key | None, list[Run]] = defaultdict(list)
    for run in runs:
        of_key[run.identity.key].append(run)
    copies: dict[str, DuplicateOf] = {}
    left_out: dict[str, tuple[Run, Run]] = {}
    for run in reversed(runs):
        if run.identity.key is None or not count_steps(run):
            continue
        for other in earlier.find_alike(run):
            if (
                run.id not in copies
                and run.id not in left_out
                and other.id not in left_out
            ):
                _compare(run, other, of_key[run.identity.key], copies, left_out)
    kept, dropped = _leave_out(runs, left_out)
    marked = [
        run
        if run.copy_of == copies.get(run.id)
        else dataclasses.replace(run, copy_of=copies.get(run.id))
        for run in kept
    ]
    return marked, dropped


class _EarlierRuns:
    """The runs that were seen, by what a copy of them shares: all their steps, their
    text, or a few places of a log."""

    def __init__(self) -> None:
        self._whole: dict[object, Run] = {}
        self._marks: dict[int, list[Run]] = defaultdict(list)

    def find_alike(self, run: Run) -> list[Run]:
        """Return the runs seen before that this one may be a copy of, the oldest first;
        it is seen itself then."""
        hashes = [hash_steps(steps) for steps in list_steps(run)]
        steps = tuple(whole for whole, _ in hashes)
        keys = (steps, (steps, run.identity.key), (steps, _hash_logs(run)))
        near = {
            earlier.id: earlier
            for earlier in (self._whole.setdefault(key, run) for key in keys)
            if earlier is not run
        }
        marks = {mark for _, of_part in hashes for mark in of_part}
        shared = {
            other.id: other for mark in marks for other in self._marks.get(mark, ())
        }
        # A part of a log is looked for only if its times could make it a copy: coarse
        # logs agree with each other in many places.
        if not shared or is_equal_enough(list_all_steps(run)):
            near |= shared
            for mark in marks:
                if len(self._marks[mark]) < MOST_ALIKE:
                    self._marks[mark].append(run)
        return list(near.values())


def mark_past_duplicates(
    runs: Sequence[Run], past: Mapping[Key, Sequence[StoredRun]]
) -> Sequence[Run]:
    """Return runs with those marked whose logs were, to the letter, those of another
    job's valid run in the history."""
    originals = {
        past_run.logs: (past_run, key)
        for key, of_key in past.items()
        for past_run in of_key
        if past_run.logs and past_run.valid
    }
    if not originals:
        return runs
    marked = []
    for run in runs:
        original, key = originals.get(_hash_logs(run), (None, None))
        marked.append(_mark_past_duplicate(run, original, key) if original else run)
    return marked


def _mark_past_duplicate(run: Run, original: StoredRun, key: Key | None) -> Run:
    job = run.found.job_id
    same_job = not job or original.job_id in ("", job)
    if run.copy_of or run.identity.key is None or same_job:
        return run
    if run.started is not None and original.started > run.started:
        # what the history knows is the copy, and was judged before it was known as one
        return run
    equal = list_all_steps(run)
    stamped = all(attempt.log.started is not None for attempt in run.attempts)
    certain = stamped or is_equal_enough(equal)
    if not certain and key != run.identity.key:
        return run
    name = f"of {original.started:%Y-%m-%d} in the history"
    copy_of = DuplicateOf(
        original.job_id, name, count_steps(run), len(count_times(equal)), certain
    )
    return dataclasses.replace(run, copy_of=copy_of)


def _hash_logs(run: Run) -> str:
    return (
        join_fingerprints([attempt.log.fingerprint for attempt in run.attempts])
        if count_steps(run)
        else ""
    )


def _compare(
    run: Run,
    other: Run,
    of_key: Sequence[Run],
    copies: dict[str, DuplicateOf],
    left_out: dict[str, tuple[Run, Run]],
) -> None:
    """Add what a run is in the light of an older one to the copies, or to what is left
    out.

    `of_key` are all runs of its configuration.
    """
    equal = find_equal_steps(run, other)
    if not equal:
        return
    alike = run.identity.key == other.identity.key
    certain = is_equal_enough(equal)
    if alike and certain:
        witnesses = (
            candidate
            for candidate in of_key[:MOST_ALIKE]
            if not find_equal_steps(run, candidate)
        )
        certain = not _follow_from_numbers(equal, islice(witnesses, WITNESSES))
    certain = certain or _is_same_text(run, other)
    if not certain and not alike:
        return
    nameless = [side for side in (run, other) if _is_nameless(side, run, other)]
    if certain and nameless:
        left_out[nameless[0].id] = (nameless[0], other if nameless[0] is run else run)
    elif alike and run.found.job_id and run.found.job_id == other.found.job_id:
        if certain and run.found.folder != other.found.folder:
            left_out[run.id] = (run, other)
    else:
        times = len(count_times(equal))
        for copy, original in _order_duplicates(run, other):
            name = original.found.job_id, original.id
            copies.setdefault(
                copy.id, DuplicateOf(*name, _count(equal), times, certain)
            )


def _is_nameless(run: Run, *pair: Run) -> bool:
    """Whether a run of a pair says neither a job nor a start of its own: it claims to
    be no other run."""
    starts = {side.found.started for side in pair}
    return not run.found.job_id and (run.found.started is None or len(starts) == 1)


def _is_same_text(run: Run, other: Run) -> bool:
    """Whether two runs have the same logs to the letter, which say when they were
    written: no second job does that."""
    logs, others = ([attempt.log for attempt in side.attempts] for side in (run, other))
    stamped = all(log.started is not None and log.fingerprint for log in logs)
    return stamped and [log.fingerprint for log in logs] == [
        log.fingerprint for log in others
    ]


def _order_duplicates(run: Run, other: Run) -> list[tuple[Run, Run]]:
    """Return which of two runs is the copy of which, the newer one first."""
    if run.identity.key == other.identity.key:
        return [(run, other)]
    begun = [side.found.started for side in (run, other)]
    written = [side.found.modified for side in (run, other)]
    for first, second in (begun, written):
        if (
            first is not None
            and second is not None
            and abs(first - second) > WRITTEN_TOGETHER
        ):
            return [(run, other)] if first > second else [(other, run)]
    return [(run, other), (other, run)]


# --- equal steps ----------------------------------------------------------------------

# Equal steps with at least so many different times make a copy. Measured with 6.5
# billion simulated pairs of different runs (1.2 to 24 s, noise of 0.005 to 1 %, 1 to 3
# decimals, 10 to 200 steps, checkpoints, drifts): none was called a copy, except runs
# of up to 20 steps whose warm-up is alike to the last digit. 8 equal steps that are not
# constant would call 6 % of the pairs copies; 6 different times would call four times
# as many pairs copies as 8.
DIFFERENT_TIMES = 8

# So do so many equal steps if each time is printed by at most this part of them: two
# such runs agree in a step with a probability of 1/3 or less.
MANY_STEPS, MOST_COMMON = 20, 3

# The warm-up does not count, at most this part of the steps: it may be alike in all
# runs.
FIRST_PART = 5

# Other runs of the configuration, at most: if one prints more than half of the equal
# times, the times follow from the numbers of the steps, as with batches of different lengths.
WITNESSES = 5

# Steps in a row that two runs share before they are compared at all.
SHINGLE = 3

# Hashes of a log that are remembered: the smallest ones, most of which a copy has too.
MARKS = 4

_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


class EqualSteps(NamedTuple):
    """The steps of one part of a log that another run prints, too."""

    numbers: Integers
    times: Floats  # as `read_times` returns them
    averaged: int = 1  # each time is the mean of so many steps, up to its own


def list_steps(run: Run) -> list[Steps]:
    """Return the parts of a run's logs that hold steps, in their order."""
    return [steps for steps, _ in _list_parts(run)]


def list_all_steps(run: Run) -> list[EqualSteps]:
    """Return all steps of each part of a run: what a whole copy of it shares."""
    return [
        EqualSteps(steps.index, read_times(steps), averaged)
        for steps, averaged in _list_parts(run)
    ]


def _list_parts(run: Run) -> Iterator[tuple[Steps, int]]:
    """Yield the steps of each part of a run that has some, and how many steps each
    printed time is the mean of."""
    for attempt in run.attempts:
        averaged = get_dialect(attempt.log.dialect).averages
        for segment in attempt.log.segments:
            if len(segment.steps):
                yield segment.steps, averaged


def read_times(steps: Steps) -> Floats:
    """Return the printed time of each step, shape (n,): negative tokens/s if the log
    prints only them."""
    import numpy as np

    absent = np.isnan(steps.seconds)
    if not absent.any():
        return steps.seconds
    times: Floats = np.where(absent, -steps.tokens_per_second_per_gpu, steps.seconds)
    return times


def find_equal_steps(run: Run, other: Run) -> list[EqualSteps]:
    """Return the steps of each part of a run that the other run prints, too.

    Empty if a part has no counterpart. A copy may have lost lines or got some: a
    counterpart shares half of the steps, and contradicts no time and no loss.
    """
    counterparts = list_steps(other)
    equal = []
    for steps, averaged in _list_parts(run):
        rows = _find_equal_rows(steps, counterparts)
        if not len(rows):
            return []
        times = read_times(steps)[rows]
        equal.append(EqualSteps(steps.index[rows], times, averaged))
    return equal


def _find_equal_rows(steps: Steps, counterparts: Sequence[Steps]) -> Integers:
    """Return the rows of the steps that the best counterpart prints, too."""
    import numpy as np

    best: Integers = np.empty(0, dtype=np.int64)
    for other in counterparts:
        _, mine, theirs = np.intersect1d(steps.index, other.index, return_indices=True)
        if 2 * len(mine) < min(len(steps), len(other)) or len(mine) <= len(best):
            continue
        times = read_times(steps)[mine], read_times(other)[theirs]
        losses = steps.loss[mine], other.loss[theirs]
        if all(np.array_equal(*pair, equal_nan=True) for pair in (times, losses)):
            best = mine
    return best


def count_times(equal: Sequence[EqualSteps]) -> Counter[float]:
    """Count how many equal steps print each time, those of the warm-up left out.

    Of means that share steps every n-th counts.
    """
    times: Counter[float] = Counter()
    for part in equal:
        later = part.times[min(WARM_UP_STEPS, len(part.times) // FIRST_PART) :]
        independent = later[part.averaged - 1 :: part.averaged]
        times.update(abs(time) for time in independent.tolist())
    return Counter(
        {time: count for time, count in times.items() if 0 < time < math.inf}
    )


def is_equal_enough(equal: Sequence[EqualSteps]) -> bool:
    """True if two different runs print that many equal times only where the times follow
    from the step numbers."""
    times = count_times(equal)
    if len(times) >= DIFFERENT_TIMES:
        return True
    steps = times.total()
    return steps >= MANY_STEPS and MOST_COMMON * max(times.values()) <= steps


def _follow_from_numbers(equal: Sequence[EqualSteps], witnesses: Iterable[Run]) -> bool:
    """True if another run prints more than half of these times at the same steps."""
    return any(2 * _count_agreeing(equal, run) > _count(equal) for run in witnesses)


def _count(equal: Sequence[EqualSteps]) -> int:
    return sum(len(part.numbers) for part in equal)


def _count_agreeing(equal: Sequence[EqualSteps], witness: Run) -> int:
    import numpy as np

    agreeing = 0
    for steps in list_steps(witness)[-1:]:
        for part in equal:
            _, mine, theirs = np.intersect1d(
                part.numbers, steps.index, return_indices=True
            )
            agreeing += int((part.times[mine] == read_times(steps)[theirs]).sum())
    return agreeing


def hash_steps(steps: Steps) -> tuple[int, list[int]]:
    """Return a hash of a part of a log, and those of a few places of it.

    A copy has the first one; it shares some of the others, though lines were lost or
    added.
    """
    import numpy as np

    factors = [np.uint64(factor) for factor in _FACTORS]
    rows = steps.index.astype(np.uint64) * factors[0]
    for values, factor in zip(
        (read_times(steps), steps.loss), factors[1:], strict=True
    ):
        bits = np.where(np.isnan(values), -1.0, values).view(np.uint64) * factor
        rows ^= bits ^ (bits >> np.uint64(29))
    reach = min(SHINGLE, len(rows))
    hashes = rows[: len(rows) - reach + 1].copy()
    for offset in range(1, reach):
        hashes = hashes * factors[0] + rows[offset : len(rows) - reach + 1 + offset]
    hashes ^= hashes >> np.uint64(31)
    smallest = np.sort(hashes)[:MARKS]
    return int((hashes * factors[1]).sum()), [int(mark) for mark in smallest]
