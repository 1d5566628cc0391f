"""Which of the runs that were found are copies of others: logs that were copied, or
that a launcher wrote along."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from pathlib import Path

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.core.run_records import (
    LONGEST_QUEUE,
    Clock,
    CopyOf,
    Dating,
    Run,
    StoredRun,
    join_fingerprints,
)
from pytest_llmbench.runs.coincidence import (
    CERTAIN,
    WITNESSES,
    estimate_chance,
    find_shared_steps,
    hash_steps,
    list_parts,
    read_times,
)
from pytest_llmbench.runs.discover import names

FILE_TIME = "the time of the file"

# A start that lies further ahead than this is not believed, or an old run would be the
# newest for ever.
CLOCK_SKEW = timedelta(days=1)

# What says when a run started.
STARTED = ("started", "started_from", "datings", "order_source")

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
FIRST_STEPS = 10
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


def drop_attached(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return runs without those that a launcher wrote along, and these with the ones
    that they repeat.

    That is a log of any other name beside the log of a launcher, with the same steps
    and times from the first on, and of the same job where its name says one.
    """
    launched: dict[Path, list[Run]] = defaultdict(list)
    others: dict[Path, list[Run]] = defaultdict(list)
    for run in runs:
        (launched if _is_launched(run) else others)[run.found.folder].append(run)
    logs: dict[object, list[Run]] = defaultdict(
        list
    )  # by their first step, too: a folder may hold thousands
    for run in (run for folder in others for run in launched.get(folder, ())):
        for job in {"", run.found.job_id}:
            logs[run.found.folder, job, *_list_timings(run)[:1]].append(run)
    originals: list[Run] = []
    copies: list[tuple[Run, Run]] = []
    for run in runs:
        first = (
            _list_timings(run)[:1]
            if run.found.folder in launched and not _is_launched(run)
            else ()
        )
        beside = (
            logs.get((run.found.folder, run.found.job_id, *first), ()) if first else ()
        )
        original = next(
            (other for other in beside if _is_written_along(run, other)), None
        )
        if original is None:
            originals.append(run)
        else:
            copies.append((run, original))
    return originals, copies


def _is_launched(run: Run) -> bool:
    return any(LAUNCHED.match(attempt.files.log.name) for attempt in run.attempts)


def _is_written_along(run: Run, other: Run) -> bool:
    part, whole = _list_timings(run), _list_timings(other)
    return part == whole[: len(part)]


def drop_tracked(
    runs: Sequence[Run], unnamed: Collection[str] = ()
) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return runs without the logs that a tool kept of another run's console, and these
    with that run.

    W&B and torchrun keep what a process prints in folders of their own: the log outside
    of them counts. Rank 0's file of torchrun may lack what the console has from
    standard error, as the number of steps, and so print other times. `unnamed` are the
    ids of runs whose logs are not called so: another log counts before them, too. So
    does a log above one of no known configuration and job.
    """
    consoles: dict[object, list[Run]] = defaultdict(list)
    weak = {run.id for run in runs if _is_tracked(run) or run.id in unnamed}
    nameless = {
        run.id for run in runs if run.identity.key is None and not run.found.job_id
    } - weak
    if not (weak or nameless):
        return list(runs), []
    copies: dict[str, tuple[Run, Run]] = {}
    for run in sorted(
        runs, key=lambda run: (run.id in weak, run.id in unnamed, run.id in nameless)
    ):
        marks = [(run.found.given_path, mark) for mark in _list_console_marks(run)]
        others = (
            other
            for mark in (
                _list_console_marks(run, around=1)
                if run.id in weak or run.id in nameless
                else ()
            )
            for other in consoles.get((run.found.given_path, mark), ())
            if run.id in weak or other.found.folder in run.found.folder.parents
        )
        original = next((other for other in others if _is_console(other, run)), None)
        if original is not None:
            copies[run.id] = (run, original)
            continue
        for mark in marks:
            consoles[mark].append(run)
    return [run for run in runs if run.id not in copies], list(copies.values())


def _is_tracked(run: Run) -> bool:
    """True if a tool wrote the log of a run into a folder of its own."""
    return bool(run.attempts) and bool(TRACKED.search(str(run.attempts[0].files.log)))


def _list_console_marks(run: Run, around: int = 0) -> Iterator[object]:
    """Yield what the console and a tool's copy of it share: the first times of each
    part, or its last loss and how long it took, to within `around` marks."""
    for part in list_parts(run):
        yield tuple(_list_part_timings(part.steps)[:FIRST_STEPS])
        losses = [loss for loss in part.steps.loss.tolist() if not math.isnan(loss)]
        taken = _measure_elapsed(part.steps)
        place = round(math.log(taken) / SAME_ELAPSED) if taken > 0 else 0
        yield from (
            (losses[-1], near)
            for near in range(place - around, place + around + 1)
            if losses and taken > 0
        )


def _is_console(other: Run, run: Run) -> bool:
    """True if the log of another run is the console that a tool's log was taken from:
    it has all its parts, which are the attempts of a launch."""
    if (
        run.found.job_id
        and other.found.job_id
        and run.found.job_id != other.found.job_id
    ):
        return False
    written = run.found.modified, other.found.modified
    together = (
        written[0] is None
        or written[1] is None
        or abs(written[0] - written[1]) <= WRITTEN_ALONG
    )
    parts, wholes = ([part.steps for part in list_parts(side)] for side in (run, other))
    equal = all(any(_begins_alike(part, whole) for whole in wholes) for part in parts)
    # The times of honest nights agree if few digits are printed.
    if equal and not together:
        return estimate_chance(find_shared_steps(run, other)) < CERTAIN
    as_long = (
        any(
            _begins_alike(part, whole) or _takes_as_long(part, whole)
            for whole in wholes
        )
        for part in parts
    )
    return together and all(as_long)


def _begins_alike(steps: Steps, other: Steps) -> bool:
    part, whole = _list_part_timings(steps), _list_part_timings(other)
    shared = min(len(part), len(whole))
    return shared >= FIRST_STEPS and part[:shared] == whole[:shared]


def _takes_as_long(steps: Steps, other: Steps) -> bool:
    taken, took = _measure_elapsed(steps), _measure_elapsed(other)
    return taken > 0 and math.isclose(taken, took, rel_tol=SAME_ELAPSED)


def _measure_elapsed(steps: Steps) -> float:
    """Return the seconds that all steps took together, 0 if one has no time."""
    elapsed = float((steps.seconds * steps.mean_of).sum())
    return elapsed if math.isfinite(elapsed) else 0.0


def drop_ranks(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return runs without the logs of further processes of one run, and these with the
    log of its first process.

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
    return [run for run in runs if run.id not in further], list(further.values())


def _get_log_name(run: Run) -> str:
    return run.attempts[0].files.log.name if len(run.attempts) == 1 else ""


def _is_same_pace(run: Run, other: Run) -> bool:
    """True if two runs have the same parts, with the same steps in about the same time,
    and began together."""
    parts, others = ([part.steps for part in list_parts(side)] for side in (run, other))
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


def drop_copies(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return runs with one of each group of copies, and the copies with the one that
    was kept.

    Copies are runs of one configuration and job with equal logs, compressed or not; and
    with an equal start and the beginning of another's steps, as a copy has that was
    taken while the job ran.
    """
    groups: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_make_copy_key(run)].append(run)
    originals = [_merge_dates(group) for group in groups.values()]
    copies = [(copy, group[-1]) for group in groups.values() for copy in group[:-1]]
    of_job: dict[object, list[Run]] = defaultdict(list)
    for run in sorted(originals, key=_measure_extent, reverse=True):
        of_job[run.identity.key, run.found.job_id or run.id].append(
            run
        )  # without a job id it is no part of another
    kept: list[Run] = []
    for of_one in of_job.values():
        if len(of_one) == 1:
            kept += of_one
            continue
        begun: dict[object, list[Run]] = defaultdict(
            list
        )  # by the first step: a job may have thousands of logs
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


def _make_copy_key(run: Run) -> object:
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
            last, **{name: getattr(first, name) for name in STARTED}
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
    first_written = Dating(Clock.FILE_TIME, min(written), FILE_TIME, zoned=True)
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
    return [
        timing for part in list_parts(run) for timing in _list_part_timings(part.steps)
    ]


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
    return sum(
        len(segment.steps)
        for attempt in run.attempts
        for segment in attempt.log.segments
    )


def mark_copies(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
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
    copies: dict[str, CopyOf] = {}
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
    marked = [
        _mark_copy(run, copies.get(run.id)) for run in runs if run.id not in left_out
    ]
    return marked, list(left_out.values())


def _mark_copy(run: Run, copy_of: CopyOf | None) -> Run:
    return run if run.copy_of == copy_of else dataclasses.replace(run, copy_of=copy_of)


class _EarlierRuns:
    """The runs that were seen, by what a copy of them shares: all their steps, their
    text, or a few places of a log."""

    def __init__(self) -> None:
        self._whole: dict[object, Run] = {}
        self._places: dict[int, list[Run]] = defaultdict(list)

    def find_alike(self, run: Run) -> list[Run]:
        """Return the runs seen before that this one may be a copy of, the oldest first;
        it is seen itself then."""
        parts = list_parts(run)
        marks = [hash_steps(part.steps) for part in parts]
        steps = tuple(whole for whole, _ in marks)
        keys = (steps, (steps, run.identity.key), (steps, _hash_logs(run)))
        near = {
            earlier.id: earlier
            for earlier in (self._whole.setdefault(key, run) for key in keys)
            if earlier is not run
        }
        places = {mark for _, of_part in marks for mark in of_part}
        shared = {
            other.id: other for mark in places for other in self._places.get(mark, ())
        }
        # A part of a log is looked for only where its digits leave no room for chance:
        # coarse logs agree with each other in many places, and no part of one could be
        # called a copy.
        if (
            not shared
            or estimate_chance(
                [(part, read_times(part.steps) > -math.inf) for part in parts]
            )
            < CERTAIN
        ):
            near |= shared
            for mark in places:
                if len(self._places[mark]) < MOST_ALIKE:
                    self._places[mark].append(run)
        return list(near.values())


def mark_past_copies(
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
    return (
        [
            _mark_past_copy(run, *originals.get(_hash_logs(run), (None, None)))
            for run in runs
        ]
        if originals
        else runs
    )


def _mark_past_copy(run: Run, original: StoredRun | None, key: Key | None) -> Run:
    job = run.found.job_id
    if (
        original is None
        or run.copy_of
        or run.identity.key is None
        or not job
        or original.job_id in ("", job)
    ):
        return run
    if run.started is not None and original.started > run.started:
        # what the history knows is the copy, and was judged before it was known as one
        return run
    chance = estimate_chance(
        [(part, read_times(part.steps) > -math.inf) for part in list_parts(run)]
    )
    certain = chance < CERTAIN or all(
        attempt.log.started is not None for attempt in run.attempts
    )
    if not certain and key != run.identity.key:
        return run
    name = f"of {original.started:%Y-%m-%d} in the history"
    return dataclasses.replace(
        run, copy_of=CopyOf(original.job_id, name, count_steps(run), chance, certain)
    )


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
    copies: dict[str, CopyOf],
    left_out: dict[str, tuple[Run, Run]],
) -> None:
    """Add what a run is in the light of an older one to the copies, or to what is left
    out.

    `of_key` are all runs of its configuration.
    """
    shared = find_shared_steps(run, other)
    if not shared:
        return
    alike = run.identity.key == other.identity.key
    chance = estimate_chance(shared)
    if alike and chance < CERTAIN:
        others = (
            candidate
            for candidate in of_key[:MOST_ALIKE]
            if not find_shared_steps(run, candidate)
        )
        chance = estimate_chance(shared, tuple(islice(others, WITNESSES)))
    certain = chance < CERTAIN or _is_same_text(run, other)
    if not certain and not alike:
        return
    if certain and (
        nameless := next(
            (
                candidate
                for candidate in (run, other)
                if _is_nameless(candidate, run, other)
            ),
            None,
        )
    ):
        left_out[nameless.id] = (nameless, other if nameless is run else run)
    elif alike and run.found.job_id and run.found.job_id == other.found.job_id:
        if certain and run.found.folder != other.found.folder:
            left_out[run.id] = (run, other)
    else:
        steps = sum(int(mask.sum()) for _, mask in shared)
        for copy, original in _order_copies(run, other):
            copies.setdefault(
                copy.id,
                CopyOf(original.found.job_id, original.id, steps, chance, certain),
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


def _order_copies(run: Run, other: Run) -> list[tuple[Run, Run]]:
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
