"""Whether another run may be the newest: job ids, times of files and launches that
contradict the order of the logs.

The order of runs rests on clocks of other machines (`runs/ordering.py`). A
contradiction alone is ordinary: jobs wait in queues, and files are copied. It fails an
item only if the two runs would not have the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np

from pytest_llmbench.core.codes import JUDGED, NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.run_records import (
    LONGEST_QUEUE,
    Clock,
    Measurement,
    Note,
    Run,
    StartCandidate,
)
from pytest_llmbench.core.statements import CodedStatement, OrderedRun, StatementCode
from pytest_llmbench.judge.acknowledged import find_accepted, make_accepted_note
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.item_status import is_red

# Runs that began no further apart are of one time: either of them may stand for it.
TOGETHER = timedelta(minutes=10)

# Clocks of one machine, and the time between the last line of a log and its last byte,
# differ by less.
CLOCK_ERROR = timedelta(minutes=30)

# Local time and UTC differ by at most this.
ZONES = timedelta(hours=14)

# A file that was written later than this after the last step was copied, or changed by
# hand.
WRITTEN_AFTER = timedelta(days=2)
# Files of one copy lie nearer to each other than this part of the time between their
# runs, and than a copy takes.
COPIED = 0.5
LONGEST_COPY = timedelta(hours=2)

# A job id that falls by more than this, and by more than half, was counted from 1
# again.
FEWEST_IDS = 100

# Where more of the neighbouring runs have falling ids, and at least so many, ids do not
# follow time: several clusters.
DISORDERED = 0.2
FEWEST_FALLS = 2

LONGEST_ID = 18

_LONG_NUMBER = re.compile(r"\d{4,}(?:[-_.T:]?\d+)*|(?<![a-zA-Z\d])\d+(?![a-zA-Z\d])")
_ANY_NUMBER = re.compile(r"\d+")
_JOB = re.compile(r"(?:^|[^a-z])job[-_]?(\d{1,18})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OrderDoubt:
    """Another run that may be the newest, and why."""

    rival: Measurement
    because: CodedStatement


def with_order_doubt(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Return a verdict that rests on no uncertain order: INVALID if another run may be
    the newest and is red.

    A verdict that is red itself stays, and so does one beside a run with the same
    result: both with a note.
    """
    newest = judgement.measurement
    if (
        newest is None
        or newest.run.found.launch
        or judgement.verdict not in (*JUDGED, Verdict.INVALID)
    ):
        return judgement
    doubts = list(find_order_doubts(newest, evidence.measurements))
    if not doubts:
        return judgement
    red = is_red(judgement, evidence.rules)
    pairs = [(doubt, judge(_put_first(doubt.rival, evidence))) for doubt in doubts]
    differing = [pair for pair in pairs if is_red(pair[1], evidence.rules) != red]
    doubt, rival = (differing or pairs)[0]
    order = CodedStatement(
        StatementCode.AMBIGUOUS_ORDER,
        newest=_state_run(newest.run, judgement),
        rival=_state_run(doubt.rival.run, rival),
        doubt=doubt.because,
    )
    entry = find_accepted(Reason.ORDER_AMBIGUOUS, newest, evidence.accepted)
    note = Note(NoteCode.ORDER_AMBIGUOUS, order)
    if not differing:
        return judgement.add_notes(note)
    if not red and entry is None:
        statements = (order, *judgement.statements)
        return judgement.overrule(Verdict.INVALID, Reason.ORDER_AMBIGUOUS, *statements)
    if not red and entry is not None:
        note = make_accepted_note(entry, order)
    return judgement.add_statements(note).add_notes(note)


def _put_first(rival: Measurement, evidence: Evidence) -> Evidence:
    """Return the evidence as if a run were the newest; its age is as uncertain as its
    place."""
    others = (
        run
        for run in evidence.measurements
        if run is not rival and run.excluded is None
    )
    return replace(evidence, measurements=(rival, *others), max_age=None)


def _state_run(run: Run, judgement: Judgement) -> OrderedRun:
    return OrderedRun(
        run.id, run.found.job_id, run.started, run.order_source, judgement.verdict
    )


# --- what contradicts the order -------------------------------------------------------


def find_order_doubts(
    newest: Measurement, runs: Sequence[Measurement]
) -> Iterator[OrderDoubt]:
    """Yield the runs that positive evidence orders after the newest: by job id, by file
    time, by their launch.

    Two runs that began together are of one time. Job ids are compared within one name
    pattern and one count from 1. File times are compared if both are of about the end
    of their log, and not of one copy.
    """
    others = [
        run
        for run in runs
        if run is not newest
        and run.excluded is None
        and not run.run.found.launch
        and not _began_together(run, newest)
    ]
    if newest.run.started is None or not others:
        return
    finders = (_find_by_job, _find_by_file, _find_by_launch)
    doubts = [doubt for find in finders if (doubt := find(newest, others)) is not None]
    yield from {doubt.rival.run.id: doubt for doubt in reversed(doubts)}.values()


def _began_together(run: Measurement, newest: Measurement) -> bool:
    started, other = run.run.started, newest.run.started
    return started is None or other is None or not other - started > TOGETHER


def _find_by_job(
    newest: Measurement, others: Sequence[Measurement]
) -> OrderDoubt | None:
    """Return the run with the highest job id, if that is above the newest run's and no
    file time explains it."""
    number = _read_job_number(newest.run)
    higher = [run for run in others if _read_job_number(run.run) > number > 0]
    if (
        not higher
        or len(newest.run.attempts) > 1
        or newest.run.attempts[-1].files.number > 0
    ):
        return None  # a job that was queued again ran later than its id tells
    same = _select_same_count(newest, others)
    confirmed = [
        run for run in higher if run in same and not _is_confirmed(newest.run, run.run)
    ]
    rival = max(confirmed, key=lambda run: _read_job_number(run.run), default=None)
    if rival is None:
        return None
    by_job = CodedStatement(
        StatementCode.ORDER_BY_JOB, rival=_read_job_number(rival.run), newest=number
    )
    return OrderDoubt(rival, by_job)


def _select_same_count(
    newest: Measurement, others: Sequence[Measurement]
) -> list[Measurement]:
    """Return the runs whose job ids are of one count with the newest run's; none if
    these do not follow time."""
    # A scheduler that was set up anew begins with job 1 again, and two clusters count
    # each by itself.
    patterns = _name_patterns([newest.run, *(run.run for run in others)])
    alike = [
        run
        for run in others
        if patterns[run.run.id] == patterns[newest.run.id] and _read_job_number(run.run)
    ]
    in_time = alike[::-1]
    count: list[Measurement] = []
    top = 0
    for run in [*in_time, newest]:
        number = _read_job_number(run.run)
        if top - number > max(FEWEST_IDS, top // 2):
            count, top = [], 0
        count.append(run)
        top = max(top, number)
    numbers = [_read_job_number(run.run) for run in count[:-1]]
    falls = sum(later < earlier for earlier, later in pairwise(numbers))
    return (
        []
        if falls >= FEWEST_FALLS and falls > DISORDERED * len(numbers)
        else count[:-1]
    )


def _read_job_number(run: Run) -> int:
    """Return the job id of a run as a number, 0 if it is none; else what its names call
    a job, or what may be one."""
    job = run.found.job_id
    if not job:
        parts = reversed(_find_path(run).parts)
        job = next(
            (match[1] for part in parts if (match := _JOB.search(part)) is not None),
            run.found.number,
        )
    return int(job) if job.isdecimal() and len(job) <= LONGEST_ID else 0


def _find_path(run: Run) -> Path:
    return run.attempts[-1].files.log if run.attempts else run.found.folder


def _name_patterns(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return the path of each run's log (by run id) without what differs from run to
    run of one cluster.

    That is its job id, all dates and long numbers, and any number in the name of a
    folder with a single run.
    """
    paths = {run.id: _find_path(run) for run in runs}
    held: dict[tuple[str, ...], int] = {}
    for path in paths.values():
        for depth in range(1, len(path.parts)):
            held[path.parts[:depth]] = held.get(path.parts[:depth], 0) + 1
    patterns = {}
    for run in runs:
        *folders, name = paths[run.id].parts
        masked = [
            (
                _ANY_NUMBER if held[(*folders[:depth], folder)] == 1 else _LONG_NUMBER
            ).sub("#", folder)
            for depth, folder in enumerate(folders)
        ]
        patterns[run.id] = (
            *masked,
            _LONG_NUMBER.sub("#", _mask_job(name, run.found.job_id)),
        )
    return patterns


def _mask_job(name: str, job: str) -> str:
    """Return a file name without the last number that is its job id."""
    places = [
        match.span() for match in _ANY_NUMBER.finditer(name) if job and match[0] == job
    ]
    return f"{name[: places[-1][0]]}#{name[places[-1][1] :]}" if places else name


# --- times of files -------------------------------------------------------------------


def _find_by_file(
    newest: Measurement, others: Sequence[Measurement]
) -> OrderDoubt | None:
    """Return the run that began last by the times of the files, if these are believable
    for it and the newest."""
    began, lag = _date_by_file(newest.run), _measure_lag(newest.run)
    if began is None or lag is None:
        return None
    later: list[tuple[datetime, Measurement]] = []
    for other in others:
        started = _date_by_file(other.run)
        if (
            started is None
            or started <= began
            or _are_duplicates(newest.run, other.run)
        ):
            continue
        other_lag = _measure_lag(other.run)
        if (
            other_lag is not None
            and other_lag - lag > CLOCK_ERROR
            and _is_same_clock(newest.run, other.run)
        ):
            later.append((started, other))
    if not later:
        return None
    _, rival = max(later, key=lambda pair: pair[0])
    by_file = CodedStatement(
        StatementCode.ORDER_BY_FILE,
        rival=rival.run.id,
        rival_written=rival.run.found.modified,
        newest=newest.run.id,
        newest_written=newest.run.found.modified,
    )
    return OrderDoubt(rival, by_file)


def _date_by_file(run: Run) -> datetime | None:
    """Return when a run began its steps if its file was written at their end."""
    return (
        run.found.modified - _sum_steps(run) if run.found.modified is not None else None
    )


def _is_confirmed(newest: Run, rival: Run) -> bool:
    """Whether believable times of files show, too, that the newest run is the
    newest."""
    written, before = newest.found.modified, rival.found.modified
    if (
        written is None
        or before is None
        or not written > before
        or newest.order_source is Clock.FILE_TIME
    ):
        return False
    lags = (_measure_lag(newest), _measure_lag(rival))
    return (
        None not in lags
        and _is_same_clock(newest, rival)
        and not _are_duplicates(newest, rival)
    )


def _are_duplicates(newest: Run, rival: Run) -> bool:
    """Whether the times of two files may be those of one copy: near to each other,
    unlike the runs."""
    written, before = newest.found.modified, rival.found.modified
    if (
        written is None
        or before is None
        or newest.started is None
        or rival.started is None
    ):
        return True
    nearest = min(COPIED * abs(newest.started - rival.started), LONGEST_COPY)
    return abs(written - before) <= max(TOGETHER, nearest)


def _measure_lag(run: Run) -> timedelta | None:
    """Return how long after its last step a log was written; None if that is not to be
    believed.

    After its stamps a log is written at once, or within hours by a clock of another
    zone; without any stamp the last step is counted from the submission, and the job
    may have waited.
    """
    begun = (
        _find_start_candidate(run, Clock.LOG)
        or _find_start_candidate(run, Clock.METADATA)
        or _find_start_candidate(run, Clock.FOLDER_NAME)
    )
    if begun is None or run.found.modified is None:
        return None
    lag = run.found.modified - begun.moment - _sum_steps(run)
    if begun.clock is not Clock.LOG:
        believable = -CLOCK_ERROR <= lag <= LONGEST_QUEUE
    else:
        believable = -(CLOCK_ERROR if begun.zoned else ZONES) <= lag <= WRITTEN_AFTER
    return lag if believable else None


def _is_same_clock(newest: Run, rival: Run) -> bool:
    return (_find_start_candidate(newest, Clock.LOG) is None) == (
        _find_start_candidate(rival, Clock.LOG) is None
    )


def _find_start_candidate(run: Run, clock: Clock) -> StartCandidate | None:
    return next((dating for dating in run.datings if dating.clock is clock), None)


def _sum_steps(run: Run) -> timedelta:
    """Return the time of all steps of the attempt that dates a run, the last with
    any."""
    logs = [attempt.log for attempt in run.attempts if attempt.log.segments]
    if not logs:
        return timedelta(0)
    steps = logs[-1].segments[-1].steps
    seconds = float(
        np.nansum(
            np.where(np.isfinite(steps.seconds), steps.seconds, 0.0)
            * np.maximum(steps.mean_of, 1)
        )
    )
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST_QUEUE.total_seconds()))


# --- launches -------------------------------------------------------------------------


def _find_by_launch(
    newest: Measurement, others: Sequence[Measurement]
) -> OrderDoubt | None:
    """Return a run that was launched after the first stamp of the newest, though its
    own log is stamped before that."""
    # No log begins before its launch: its clock shows the time of another zone, or a
    # wrong one.
    logged, launched = (
        _find_start_candidate(newest.run, Clock.LOG),
        _find_launch(newest.run),
    )
    if logged is None or launched is None or launched.moment - logged.moment > TOGETHER:
        return None
    for other in others:
        stamped, submitted = (
            _find_start_candidate(other.run, Clock.LOG),
            _find_launch(other.run),
        )
        if stamped is None or submitted is None or submitted.zoned != launched.zoned:
            continue
        if (
            submitted.moment - logged.moment
            > TOGETHER
            < submitted.moment - stamped.moment
        ):
            by_launch = CodedStatement(
                StatementCode.ORDER_BY_LAUNCH,
                rival=other.run.id,
                launched=submitted.moment,
            )
            return OrderDoubt(other, by_launch)
    return None


def _find_launch(run: Run) -> StartCandidate | None:
    return _find_start_candidate(run, Clock.METADATA) or _find_start_candidate(
        run, Clock.FOLDER_NAME
    )
