"""In which order the runs of a configuration started: told by one clock for all of
them, and what is left of that.

Metadata, names of folders, logs and files tell the time by different clocks: of a login
node in another zone, of whoever filed the log, of the last copy. Two runs are never
compared by two of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.run_records import (
    LONGEST_QUEUE,
    Clock,
    IgnoredFile,
    LoglessJob,
    Run,
    StartCandidate,
)
from pytest_llmbench.runs.duplicates import CLOCK_SKEW, WRITTEN_TOGETHER, count_steps

# A moment of a stated zone that lies further ahead than this is not believed: clocks
# differ by seconds.
EXACT_SKEW = timedelta(minutes=10)

# A launch this young need not have a log yet.
FRESH = timedelta(minutes=10)

# Digits: Slurm counts to 67 million.
LONGEST_JOB_NUMBER = 18

LEFT = {
    None: "no log is left of this job",
    LoglessJob.METADATA: "only the metadata is left of this job",
    LoglessJob.STANDARD_ERROR: "only standard error is left of this job",
    LoglessJob.FOLDER: "a launch without a log",
}

# From the most certain to the least: metadata and names of folders are of the
# submission, and of two jobs in a queue the one that was submitted first may run last.
CLOCKS = (
    Clock.LOG,
    Clock.METADATA,
    Clock.FOLDER_NAME,
    Clock.FOLDER_ABOVE,
    Clock.FILE_TIME,
)


def drop_future_starts(
    datings: Iterable[StartCandidate], now: datetime
) -> list[StartCandidate]:
    """Return the times that do not lie in the future; local time of another zone may,
    by hours."""
    return [
        dating
        for dating in datings
        if dating.moment - now <= (EXACT_SKEW if dating.zoned else CLOCK_SKEW)
    ]


def order_runs(runs: Sequence[Run], now: datetime) -> list[Run]:
    """Return runs, newest first, those of one configuration by one clock; a run without
    a start is the newest."""
    of_key: dict[Key | None, list[Run]] = defaultdict(list)
    for run in runs:
        of_key[run.identity.key].append(run)
    dated = of_key.pop(None, [])
    for group in of_key.values():
        dated += _date_by_one_clock(group, now) if len(group) > 1 else group
    alike = Counter(_make_first_key(run, now) for run in dated)

    def make_key(
        run: Run,
    ) -> tuple[tuple[datetime, bool, tuple[int, str]], float, datetime, str]:
        first = _make_first_key(run, now)
        # Of two logs of one job that tell different times the slower counts as the
        # later one: it has to be judged.
        return (
            first,
            _measure_slowness(run) if alike[first] > 1 else 0.0,
            run.found.modified or now,
            run.id,
        )

    return sorted(dated, key=make_key, reverse=True)


def _make_first_key(run: Run, now: datetime) -> tuple[datetime, bool, tuple[int, str]]:
    """Return what later runs are sorted last by at first: start, whether it left no
    step, job id as a number."""
    # A run without a start has to be judged: an older good one must not stand for it.
    return (
        run.started or now + 2 * CLOCK_SKEW,
        not count_steps(run),
        _read_job_number(run),
    )


def _measure_slowness(run: Run) -> float:
    """Return the median of the times in the last part of a log, 0 without any."""
    parts = [part for attempt in run.attempts for part in attempt.log.segments]
    if not parts or not len(parts[-1].steps) or np.isnan(parts[-1].steps.seconds).any():
        return 0.0
    return compute_median(parts[-1].steps.seconds)


def _read_job_number(run: Run) -> tuple[int, str]:
    job = run.found.job_id
    return (
        (int(job), job)
        if job.isdecimal() and len(job) <= LONGEST_JOB_NUMBER
        else (0, job)
    )


def _date_by_one_clock(runs: Sequence[Run], now: datetime) -> list[Run]:
    """Return the runs of one configuration, each with its start by the first clock that
    all of those with steps have.

    What left no step may lack that clock: it is put behind the last of the others that
    it is later than by a clock that both have.
    """
    datings = {
        run.id: {
            dating.clock: dating
            for dating in reversed(drop_future_starts(run.datings, now))
        }
        for run in runs
    }
    core = [run for run in runs if count_steps(run)]
    clock = find_common_clock([datings[run.id] for run in core])
    if not core:
        return list(runs)
    if clock is None:
        mixed = Clock.MIXED if len(core) > 1 else core[0].order_source
        return [dataclasses.replace(run, order_source=mixed) for run in runs]
    dated = _move_newest(
        [_date_run(run, datings[run.id][clock]) for run in core], datings, clock
    )
    placed = (
        _place_run(run, dated, datings, clock) for run in runs if not count_steps(run)
    )
    return _order_started_together([*dated, *placed], datings, clock)


def _move_newest(
    dated: Sequence[Run],
    datings: Mapping[str, Mapping[Clock, StartCandidate]],
    clock: Clock,
) -> list[Run]:
    """Return runs, with the newest put behind the others where a better clock, which
    not all have, says so."""
    # One old log without a stamp would make the times of files decide, which a copy has
    # changed.
    newest = max(dated, key=lambda run: run.started or datetime.min.replace(tzinfo=UTC))
    for better in CLOCKS[: CLOCKS.index(clock)]:
        if better not in datings[newest.id]:
            continue
        own = datings[newest.id][better]
        rivals = [
            run
            for run in dated
            if better in datings[run.id] and datings[run.id][better].zoned == own.zoned
        ]
        latest = max(rivals, key=lambda run: datings[run.id][better].moment)
        if latest is newest or newest.started is None:
            return list(dated)
        reason = f"later than {newest.id}, by what both say"
        moved = dataclasses.replace(
            latest, started=newest.started + timedelta(seconds=1), started_from=reason
        )
        return [moved if run is latest else run for run in dated]
    return list(dated)


def _order_started_together(
    dated: Sequence[Run],
    datings: Mapping[str, Mapping[Clock, StartCandidate]],
    clock: Clock,
) -> list[Run]:
    """Return runs, those of one start with the later ones put behind by the next clock
    that all of these have."""
    # Jobs of one folder share its stamp, and a job that was submitted first may start
    # last. Times of files say less than numbers of jobs: copying changes them.
    groups: dict[datetime | None, list[Run]] = {}
    for run in dated:
        groups.setdefault(run.started, []).append(run)
    ordered: dict[str, Run] = {}
    for started, group in groups.items():
        finer = find_common_clock(
            [datings[run.id] for run in group], CLOCKS[CLOCKS.index(clock) + 1 : -1]
        )
        if len(group) == 1 or started is None or finer is None:
            continue
        moments = sorted({datings[run.id][finer].moment for run in group})
        ranks = {
            moment: timedelta(microseconds=rank) for rank, moment in enumerate(moments)
        }
        for run in group:
            rank = ranks[datings[run.id][finer].moment]
            ordered[run.id] = dataclasses.replace(run, started=started + rank)
    return [ordered.get(run.id, run) for run in dated]


def find_common_clock(
    datings: Sequence[Mapping[Clock, StartCandidate]], clocks: Sequence[Clock] = CLOCKS
) -> Clock | None:
    """Return the first clock by which all of these are dated, all in a stated zone or
    all without one; else None."""
    for clock in clocks:
        zones = {of_run[clock].zoned for of_run in datings if clock in of_run}
        if len(zones) == 1 and all(clock in of_run for of_run in datings):
            return clock
    return None


def _date_run(run: Run, dating: StartCandidate) -> Run:
    if (run.started, run.started_from, run.order_source) == (
        dating.moment,
        dating.source,
        dating.clock,
    ):
        return run
    return dataclasses.replace(
        run,
        started=dating.moment,
        started_from=dating.source,
        order_source=dating.clock,
    )


def _place_run(
    run: Run,
    dated: Sequence[Run],
    datings: Mapping[str, Mapping[Clock, StartCandidate]],
    clock: Clock,
) -> Run:
    """Return a run without steps with its start, or one behind the last run that it is
    later than."""
    own = datings[run.id].get(clock)
    if own is not None and own.zoned == datings[dated[0].id][clock].zoned:
        return _date_run(run, own)
    earlier = [other for other in dated if _is_later(run, other, datings)]
    starts = [
        other.started for other in (earlier or dated) if other.started is not None
    ]
    started, name = (
        (max(starts), "later") if earlier else (min(starts) - FRESH, "earlier")
    )
    near = next(other for other in dated if other.started in (started, started + FRESH))
    if earlier:
        started += timedelta(
            microseconds=1
        )  # a job of the same id and start would be a copy
    return dataclasses.replace(
        run,
        started=started,
        started_from=f"{name} than {near.id}, by what both say",
        order_source=clock,
    )


def _is_later(
    run: Run, other: Run, datings: Mapping[str, Mapping[Clock, StartCandidate]]
) -> bool:
    """Whether a run is later than another one by the first clock that both have, or
    else by file time or job id."""
    # In doubt later: what died must not be taken for older than it is.
    mine, others = datings[run.id], datings[other.id]
    for clock in CLOCKS[:-1]:
        if (
            clock in mine
            and clock in others
            and mine[clock].zoned == others[clock].zoned
        ):
            return mine[clock].moment >= others[clock].moment
    written, before = mine.get(Clock.FILE_TIME), others.get(Clock.FILE_TIME)
    if written is not None and before is not None and written.moment >= before.moment:
        together = (
            written.moment - before.moment <= WRITTEN_TOGETHER
        )  # by a copy of the tree: that tells no order
        return not (
            together and 0 < _read_job_number(run)[0] < _read_job_number(other)[0]
        )
    return _read_job_number(run)[0] > _read_job_number(other)[0] > 0


def drop_superseded(
    runs: Sequence[Run], now: datetime
) -> tuple[list[Run], list[IgnoredFile]]:
    """Return runs, newest first, without the jobs that left no log and say nothing; and
    what is said of those.

    Such a job counts as long as it may wait in the queue, and longer where an older run
    would be judged in its place. A launch of the last minutes is told with the run that
    is judged instead.
    """
    places = {run.id: place for place, run in enumerate(runs)}
    newest: dict[Key | None, Run] = {}
    for run in runs:
        if run.attempts:
            newest.setdefault(run.identity.key, run)
    remaining: list[Run] = []
    notes: list[IgnoredFile] = []
    starting: dict[str, tuple[str, ...]] = {}
    for place, run in enumerate(runs):
        if run.attempts:
            remaining.append(run)
            continue
        begun = run.started or run.found.modified
        keys = {run.identity.key} if run.identity.key else set(run.identity.candidates)
        hidden = [
            newest[key]
            for key in keys
            if key in newest and places[newest[key].id] > place
        ]
        nobodys = run.found.remains is LoglessJob.FOLDER and not keys
        if (
            begun is not None
            and now - begun < FRESH
            and run.found.remains is not LoglessJob.METADATA
        ):
            starting |= {
                rival.id: (*starting.get(rival.id, ()), run.id) for rival in hidden
            }
            notes.append(IgnoredFile(run.id, "launched minutes ago, and no log yet"))
        elif not nobodys and (
            hidden or (begun is not None and now - begun <= LONGEST_QUEUE)
        ):
            remaining.append(run)
        else:
            notes.append(IgnoredFile(run.id, LEFT[run.found.remains]))
    return [
        dataclasses.replace(run, starting=starting[run.id])
        if run.id in starting
        else run
        for run in remaining
    ], notes
