"""Order the runs of a configuration by start time, using one clock for all of them.

Metadata, folder names, logs and files use different clocks: that of a login node in
another zone, of the user who moved the log, of the last copy. Two runs are never
compared by different clocks. Also drops jobs that are superseded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby

import numpy as np
from msgspec import structs

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

# A time with a zone that is further in the future is ignored: clocks differ by seconds.
EXACT_SKEW = timedelta(minutes=10)

# A launch younger than this may not have a log yet.
FRESH = timedelta(minutes=10)

# In digits. Slurm's largest job id is 67 million.
LONGEST_JOB_NUMBER = 18

LOGLESS_JOB_TEXTS = {
    None: "this job left no log",
    LoglessJob.METADATA: "this job left only its metadata",
    LoglessJob.STANDARD_ERROR: "this job left only standard error",
    LoglessJob.FOLDER: "a launch without a log",
}

# Most certain first. Metadata and folder names contain the submission time, and a job
# submitted first may run last.
CLOCKS = (
    Clock.LOG,
    Clock.METADATA,
    Clock.FOLDER_NAME,
    Clock.FOLDER_ABOVE,
    Clock.FILE_TIME,
)


def drop_future_starts(
    candidates: Iterable[StartCandidate], now: datetime
) -> list[StartCandidate]:
    """Drop start times in the future, except within the clock skew.

    Local times of another zone may be hours ahead.
    """
    return [
        candidate
        for candidate in candidates
        if candidate.timestamp - now <= (EXACT_SKEW if candidate.zoned else CLOCK_SKEW)
    ]


def order_runs(runs: Sequence[Run], now: datetime) -> list[Run]:
    """Sort runs, newest first, using one clock for each configuration.

    An undated run is the newest.
    """
    runs_by_key: dict[Key | None, list[Run]] = defaultdict(list)
    for run in runs:
        runs_by_key[run.identity.key].append(run)
    ordered = runs_by_key.pop(None, [])  # unidentified runs keep their starts
    for group in runs_by_key.values():
        ordered += _date_group(group, now) if len(group) > 1 else group
    get_primary_key = partial(_make_primary_key, now=now)
    ordered.sort(key=get_primary_key, reverse=True)
    fully_ordered: list[Run] = []
    for _, equal_runs in groupby(ordered, get_primary_key):
        together = list(equal_runs)
        if len(together) > 1:
            together.sort(key=partial(_make_secondary_key, now=now), reverse=True)
        fully_ordered += together
    return fully_ordered


def _make_primary_key(
    run: Run, now: datetime
) -> tuple[datetime, bool, tuple[int, str]]:
    """Return the primary sort key: start, True if without steps, job id as a number."""
    # An undated run sorts after all dated ones: it has to be judged, and an older good
    # run must not replace it.
    return (
        run.started or now + 2 * CLOCK_SKEW,
        not count_steps(run),
        _read_job_number(run),
    )


def _make_secondary_key(run: Run, now: datetime) -> tuple[float, datetime, str]:
    """Return the sort key of runs with equal primary keys: slowness, file time, id.

    Of two logs of one job with different step times the slower sorts as the later,
    since it has to be judged.
    """
    return _measure_slowness(run), run.found.modified or now, run.id


def _measure_slowness(run: Run) -> float:
    """Return the median step time of a run's last segment, 0 if a time is missing."""
    segments = [segment for attempt in run.attempts for segment in attempt.log.segments]
    if (
        not segments
        or not len(segments[-1].steps)
        or np.isnan(segments[-1].steps.seconds).any()
    ):
        return 0.0
    return compute_median(segments[-1].steps.seconds)


def _read_job_number(run: Run) -> tuple[int, str]:
    """Return a sort key of the job id: its number (0 if it has none) and its text."""
    job = run.found.job_id
    return (
        (int(job), job)
        if job.isdecimal() and len(job) <= LONGEST_JOB_NUMBER
        else (0, job)
    )


def _date_group(runs: Sequence[Run], now: datetime) -> list[Run]:
    """Date the runs of one configuration by one clock.

    This is the first clock of `CLOCKS` that dates all runs with steps. A run without
    steps that lacks this clock is dated relative to the other runs
    (`_place_stepless_run`). If no clock dates all runs with steps, their starts do not
    change, and `order_source` becomes `Clock.MIXED`.
    """
    # {run id: {clock: start candidate}}; reversed, so that the first of several
    # candidates of a clock is kept
    candidates = {
        run.id: {
            candidate.clock: candidate
            for candidate in reversed(drop_future_starts(run.start_candidates, now))
        }
        for run in runs
    }
    with_steps = [run for run in runs if count_steps(run)]
    clock = find_common_clock([candidates[run.id] for run in with_steps])
    if not with_steps:
        return list(runs)
    if clock is None:
        order_source = (
            Clock.MIXED if len(with_steps) > 1 else with_steps[0].order_source
        )
        return [structs.replace(run, order_source=order_source) for run in runs]
    dated = _move_latest_last(
        [_date_run(run, candidates[run.id][clock]) for run in with_steps],
        candidates,
        clock,
    )
    placed = (
        _place_stepless_run(run, dated, candidates, clock)
        for run in runs
        if not count_steps(run)
    )
    return _order_started_together([*dated, *placed], candidates, clock)


def _move_latest_last(
    dated: Sequence[Run],
    candidates: Mapping[str, Mapping[Clock, StartCandidate]],
    clock: Clock,
) -> list[Run]:
    """Move a run to the end if a clock better than `clock` shows that it is the latest.

    `dated` are the runs dated by `clock`. A better clock is earlier in `CLOCKS` and
    dates only some of the runs. It is used if it dates the newest run by `clock`.
    """
    # Otherwise a single old log without a timestamp would make file times decide, which
    # copying changes.
    newest = max(dated, key=lambda run: run.started or datetime.min.replace(tzinfo=UTC))
    for better in CLOCKS[: CLOCKS.index(clock)]:
        if better not in candidates[newest.id]:
            continue
        newest_candidate = candidates[newest.id][better]
        comparable = [
            run
            for run in dated
            if better in candidates[run.id]
            and candidates[run.id][better].zoned == newest_candidate.zoned
        ]
        latest = max(comparable, key=lambda run: candidates[run.id][better].timestamp)
        if latest is newest or newest.started is None:
            return list(dated)
        reason = f"later than {newest.id}, by the times of both"
        moved = structs.replace(
            latest, started=newest.started + timedelta(seconds=1), started_from=reason
        )
        return [moved if run is latest else run for run in dated]
    return list(dated)


def _order_started_together(
    dated: Sequence[Run],
    candidates: Mapping[str, Mapping[Clock, StartCandidate]],
    clock: Clock,
) -> list[Run]:
    """Order runs with equal starts by a clock that is less certain than `clock`.

    This is the next clock of `CLOCKS` that dates all of them. The order is expressed by
    adding microseconds to the starts.
    """
    # Jobs of one folder share its timestamp, and the first submitted may start last.
    # File times are excluded: they are less reliable than job ids.
    groups: dict[datetime | None, list[Run]] = {}
    for run in dated:
        groups.setdefault(run.started, []).append(run)
    ordered: dict[str, Run] = {}
    for started, group in groups.items():
        finer = find_common_clock(
            [candidates[run.id] for run in group], CLOCKS[CLOCKS.index(clock) + 1 : -1]
        )
        if len(group) == 1 or started is None or finer is None:
            continue
        timestamps = sorted({candidates[run.id][finer].timestamp for run in group})
        delays = {
            timestamp: timedelta(microseconds=rank)
            for rank, timestamp in enumerate(timestamps)
        }
        for run in group:
            delay = delays[candidates[run.id][finer].timestamp]
            ordered[run.id] = structs.replace(run, started=started + delay)
    return [ordered.get(run.id, run) for run in dated]


def find_common_clock(
    candidates: Sequence[Mapping[Clock, StartCandidate]],
    clocks: Sequence[Clock] = CLOCKS,
) -> Clock | None:
    """Return the first clock that dates all runs, or None.

    `candidates` contains the start times of each run. A clock is skipped if only some
    of its times have a zone.
    """
    for clock in clocks:
        zones = {
            candidates_by_clock[clock].zoned
            for candidates_by_clock in candidates
            if clock in candidates_by_clock
        }
        if len(zones) == 1 and all(
            clock in candidates_by_clock for candidates_by_clock in candidates
        ):
            return clock
    return None


def _date_run(run: Run, candidate: StartCandidate) -> Run:
    """Return a run that starts at the time of a candidate."""
    if (run.started, run.started_from, run.order_source) == (
        candidate.timestamp,
        candidate.source,
        candidate.clock,
    ):
        return run
    return structs.replace(
        run,
        started=candidate.timestamp,
        started_from=candidate.source,
        order_source=candidate.clock,
    )


def _place_stepless_run(
    run: Run,
    dated: Sequence[Run],
    candidates: Mapping[str, Mapping[Clock, StartCandidate]],
    clock: Clock,
) -> Run:
    """Date a run without steps, by `clock` if possible.

    Otherwise the run is placed among the `dated` runs: just after the last run that is
    earlier according to `_is_later`. If no run is earlier, it starts before all of
    them.
    """
    own_candidate = candidates[run.id].get(clock)
    if (
        own_candidate is not None
        and own_candidate.zoned == candidates[dated[0].id][clock].zoned
    ):
        return _date_run(run, own_candidate)
    earlier = [other for other in dated if _is_later(run, other, candidates)]
    starts = [
        other.started for other in (earlier or dated) if other.started is not None
    ]
    started, relation = (
        (max(starts), "later") if earlier else (min(starts) - FRESH, "earlier")
    )
    # the latest earlier run, or the first of all runs: its start gave `started`
    neighbour = next(
        other for other in dated if other.started in (started, started + FRESH)
    )
    if earlier:
        # a job with the same id and start would be a duplicate
        started += timedelta(microseconds=1)
    return structs.replace(
        run,
        started=started,
        started_from=f"{relation} than {neighbour.id}, by the times of both",
        order_source=clock,
    )


def _is_later(
    run: Run, other: Run, candidates: Mapping[str, Mapping[Clock, StartCandidate]]
) -> bool:
    """True if a run is later than another run.

    Compares the times of the first clock that dates both runs. Otherwise, the run is
    later if its file is. An earlier file proves nothing: then the job ids are compared.
    """
    # Equal times count as later: a failed run must not be ordered too early.
    own_times, other_times = candidates[run.id], candidates[other.id]
    for clock in CLOCKS[:-1]:
        if (
            clock in own_times
            and clock in other_times
            and own_times[clock].zoned == other_times[clock].zoned
        ):
            return own_times[clock].timestamp >= other_times[clock].timestamp
    written = own_times.get(Clock.FILE_TIME)
    other_written = other_times.get(Clock.FILE_TIME)
    if (
        written is not None
        and other_written is not None
        and written.timestamp >= other_written.timestamp
    ):
        # equal times, as after copying the folder, show no order
        together = written.timestamp - other_written.timestamp <= WRITTEN_TOGETHER
        return not (
            together and 0 < _read_job_number(run)[0] < _read_job_number(other)[0]
        )
    return _read_job_number(run)[0] > _read_job_number(other)[0] > 0


def drop_superseded(
    runs: Sequence[Run], now: datetime
) -> tuple[list[Run], list[IgnoredFile]]:
    """Drop logless jobs that are superseded or too old.

    Returns the remaining runs, and a note on each dropped job. `runs` must be sorted,
    newest first. A logless job is kept while it may wait in the queue, and longer if an
    older run would be judged in its place. A launch of the last minutes is dropped, and
    listed in the runs that are judged instead (`Run.starting`).
    """
    indices = {run.id: index for index, run in enumerate(runs)}
    newest_with_log: dict[Key | None, Run] = {}
    for run in runs:
        if run.attempts:
            newest_with_log.setdefault(run.identity.key, run)
    remaining: list[Run] = []
    notes: list[IgnoredFile] = []
    starting: dict[str, tuple[str, ...]] = {}
    for index, run in enumerate(runs):
        if run.attempts:
            remaining.append(run)
            continue
        started = run.started or run.found.modified
        keys = {run.identity.key} if run.identity.key else set(run.identity.candidates)
        # the older runs that would be judged if this job were dropped
        judged_instead = [
            newest_with_log[key]
            for key in keys
            if key in newest_with_log and indices[newest_with_log[key].id] > index
        ]
        is_unidentified = run.found.logless_job is LoglessJob.FOLDER and not keys
        is_fresh = started is not None and now - started < FRESH
        may_be_queued = started is not None and now - started <= LONGEST_QUEUE
        if is_fresh and run.found.logless_job is not LoglessJob.METADATA:
            for judged in judged_instead:
                starting[judged.id] = (*starting.get(judged.id, ()), run.id)
            notes.append(IgnoredFile(run.id, "launched minutes ago, no log yet"))
        elif not is_unidentified and (judged_instead or may_be_queued):
            remaining.append(run)
        else:
            notes.append(IgnoredFile(run.id, LOGLESS_JOB_TEXTS[run.found.logless_job]))
    return [
        structs.replace(run, starting=starting[run.id]) if run.id in starting else run
        for run in remaining
    ], notes
