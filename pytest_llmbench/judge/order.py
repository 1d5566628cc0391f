"""Detect runs that may be newer than the newest one.

The order of runs relies on clocks of other machines (`runs/ordering.py`). Job ids, file
times and launches may contradict it. A contradiction alone is ordinary, because jobs
wait in queues and files are copied. It fails an item only if the two runs have
different results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.codes import JUDGED, NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import Evidence, Judgement
from pytest_llmbench.core.patterns import compile_on_use
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

# Runs that started this close together are simultaneous; times of files that differ by
# less are equal.
TOGETHER = timedelta(minutes=10)

# Largest difference between clocks of one machine, and between the last log line and
# the last write.
CLOCK_ERROR = timedelta(minutes=30)

# Largest difference between local time and UTC.
ZONES = timedelta(hours=14)

# A file written later than this after the last step was copied or edited.
WRITTEN_AFTER = timedelta(days=2)
# Files of one copy operation are closer together than this fraction of the time between
# their runs, and than the duration of a copy.
COPIED = 0.5
LONGEST_COPY = timedelta(hours=2)

# A job id that falls by more than this, and by more than half, follows a restart of the
# numbering.
FEWEST_IDS = 100

# If more than this fraction of neighbouring runs have falling ids, and at least this
# many, ids do not follow time: they come from several clusters.
DISORDERED = 0.2
FEWEST_FALLS = 2

LONGEST_ID = 18

# matches dates, long numbers and lone numbers: 20240131-1200, 123456, and 7 in "run_7_a"
_LONG_NUMBER = compile_on_use(
    r"\d{4,}(?:[-_.T:]?\d+)*|(?<![a-zA-Z\d])\d+(?![a-zA-Z\d])"
)
_ANY_NUMBER = compile_on_use(r"\d+")
# matches "job_1234.log" and "slurm-job-1234"
_JOB = compile_on_use(r"(?:^|[^a-z])job[-_]?(\d{1,18})(?!\d)", re.IGNORECASE)


class OrderDoubt(Struct, frozen=True):
    """A run that may be the newest, with the reason."""

    rival: Measurement
    because: CodedStatement


def with_order_doubt(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Overrule a verdict with INVALID if another run may be the newest and fails.

    The verdict is kept and gets a note if it fails already, if both runs have the same
    result, or if the ambiguity is accepted.
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
    fails = is_red(judgement, evidence.rules)
    # the verdict that each rival would have as the newest run
    rival_judgements = [
        (doubt, judge(_put_first(doubt.rival, evidence))) for doubt in doubts
    ]
    with_other_result = [
        (doubt, rival_judgement)
        for doubt, rival_judgement in rival_judgements
        if is_red(rival_judgement, evidence.rules) != fails
    ]
    doubt, rival_judgement = (with_other_result or rival_judgements)[0]
    order = CodedStatement(
        StatementCode.AMBIGUOUS_ORDER,
        newest=_state_run(newest.run, judgement),
        rival=_state_run(doubt.rival.run, rival_judgement),
        doubt=doubt.because,
    )
    entry = find_accepted(Reason.ORDER_AMBIGUOUS, newest, evidence.accepted)
    note = Note(NoteCode.ORDER_AMBIGUOUS, order)
    if not with_other_result:
        return judgement.add_notes(note)
    if not fails and entry is None:
        statements = (order, *judgement.statements)
        return judgement.overrule(Verdict.INVALID, Reason.ORDER_AMBIGUOUS, *statements)
    if not fails and entry is not None:
        note = make_accepted_note(entry, order)
    return judgement.add_statements(note).add_notes(note)


def _put_first(rival: Measurement, evidence: Evidence) -> Evidence:
    """Return the evidence as if `rival` were the newest run.

    Its age is as uncertain as its order, so no age limit applies.
    """
    others = (
        run
        for run in evidence.measurements
        if run is not rival and run.excluded is None
    )
    return replace(evidence, measurements=(rival, *others), max_age=None)


def _state_run(run: Run, judgement: Judgement) -> OrderedRun:
    """Make the record of a run for the statement on the order, with its verdict."""
    return OrderedRun(
        run.id, run.found.job_id, run.started, run.order_source, judgement.verdict
    )


# --- contradictions of the order ------------------------------------------------------


def find_order_doubts(
    newest: Measurement, runs: Sequence[Measurement]
) -> Iterator[OrderDoubt]:
    """Yield the runs that job ids, file times or launches date after the newest.

    Runs that started together with the newest are skipped. Job ids are compared only
    within one path pattern and one numbering. File times are compared only if each file
    was last written at about the end of its run, and not by one copy operation.
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
    # one doubt for each run: job ids replace file times, which replace launches
    doubts: dict[str, OrderDoubt] = {}
    for find in (_find_by_launch, _find_by_file, _find_by_job):
        doubt = find(newest, others)
        if doubt is not None:
            doubts[doubt.rival.run.id] = doubt
    yield from doubts.values()


def _began_together(run: Measurement, newest: Measurement) -> bool:
    """True if a run started at most TOGETHER before the newest, or if unknown."""
    started, newest_started = run.run.started, newest.run.started
    return (
        started is None
        or newest_started is None
        or not newest_started - started > TOGETHER
    )


def _find_by_job(
    newest: Measurement, others: Sequence[Measurement]
) -> OrderDoubt | None:
    """Return the run with the highest job id, if above the newest run's.

    None if believable file times confirm the order.
    """
    number = _read_job_number(newest.run)
    higher = [run for run in others if _read_job_number(run.run) > number > 0]
    if not higher:
        return None
    attempts = newest.run.attempts  # none if the job left no log
    if len(attempts) > 1 or (attempts and attempts[-1].files.number > 0):
        return None  # a requeued job ran later than its id suggests
    same_numbering = _select_same_numbering(newest, others)
    unconfirmed = [
        run
        for run in higher
        if run in same_numbering and not _is_confirmed(newest.run, run.run)
    ]
    rival = max(unconfirmed, key=lambda run: _read_job_number(run.run), default=None)
    if rival is None:
        return None
    by_job = CodedStatement(
        StatementCode.ORDER_BY_JOB, rival=_read_job_number(rival.run), newest=number
    )
    return OrderDoubt(rival, by_job)


def _select_same_numbering(
    newest: Measurement, others: Sequence[Measurement]
) -> list[Measurement]:
    """Return the runs whose job ids share a numbering with the newest run's.

    Empty if the ids do not follow time.
    """
    # A reinstalled scheduler restarts at job 1, and each cluster has its own numbering.
    patterns = _name_patterns([newest.run, *(run.run for run in others)])
    same_pattern = [
        run
        for run in others
        if patterns[run.run.id] == patterns[newest.run.id] and _read_job_number(run.run)
    ]
    oldest_first = same_pattern[::-1]
    same_numbering: list[Measurement] = []
    highest = 0
    for run in [*oldest_first, newest]:
        number = _read_job_number(run.run)
        if highest - number > max(FEWEST_IDS, highest // 2):  # the numbering restarted
            same_numbering, highest = [], 0
        same_numbering.append(run)
        highest = max(highest, number)
    same_numbering.pop()  # the newest run itself
    numbers = [_read_job_number(run.run) for run in same_numbering]
    falls = sum(later < earlier for earlier, later in pairwise(numbers))
    if falls >= FEWEST_FALLS and falls > DISORDERED * len(numbers):
        return []
    return same_numbering


def _read_job_number(run: Run) -> int:
    """Return the job id of a run as a number, or 0 if it is not a number.

    A run without a job id falls back to a job number in its path, then to the number in
    its names that may be a job id (`found.number`).
    """
    job = run.found.job_id
    if not job:
        names = reversed(_find_path(run).parts)
        matches = filter(None, map(_JOB.search, names))
        job = next((match[1] for match in matches), run.found.number)
    return int(job) if job.isdecimal() and len(job) <= LONGEST_ID else 0


def _find_path(run: Run) -> Path:
    """Return the last log of a run, or its folder if it has no log."""
    return run.attempts[-1].files.log if run.attempts else run.found.folder


def _name_patterns(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """Return the path of each run's log with varying numbers masked, by run id.

    Masks the job id, dates and long numbers, and all numbers in the name of a folder
    with a single run.
    """
    paths = {run.id: _find_path(run) for run in runs}
    run_counts: dict[tuple[str, ...], int] = {}
    for path in paths.values():
        for depth in range(1, len(path.parts)):
            folder_path = path.parts[:depth]
            run_counts[folder_path] = run_counts.get(folder_path, 0) + 1
    patterns = {}
    for run in runs:
        *folders, name = paths[run.id].parts
        masked = []
        for depth, folder in enumerate(folders, start=1):
            has_one_run = run_counts[tuple(folders[:depth])] == 1
            numbers = _ANY_NUMBER if has_one_run else _LONG_NUMBER
            masked.append(numbers.sub("#", folder))
        masked.append(_LONG_NUMBER.sub("#", _mask_job(name, run.found.job_id)))
        patterns[run.id] = tuple(masked)
    return patterns


def _mask_job(name: str, job: str) -> str:
    """Mask the last occurrence of the job id in a file name."""
    matches = [match for match in _ANY_NUMBER.finditer(name) if match[0] == job]
    if not matches:  # also if `job` is ""
        return name
    begin, end = matches[-1].span()
    return f"{name[:begin]}#{name[end:]}"


# --- times of files -------------------------------------------------------------------


def _find_by_file(
    newest: Measurement, others: Sequence[Measurement]
) -> OrderDoubt | None:
    """Return the latest of the runs that started after the newest run by file time.

    Runs are skipped if their file times are not believable, or if one copy operation
    may have set them. None if no run is left, or if the file time of the newest run is
    not believable.
    """
    newest_started, lag = _date_by_file(newest.run), _measure_lag(newest.run)
    if newest_started is None or lag is None:
        return None
    later: list[tuple[datetime, Measurement]] = []
    for other in others:
        started = _date_by_file(other.run)
        if started is None or started <= newest_started:
            continue
        if _may_be_copied_together(newest.run, other.run):
            continue
        # Its file time contradicts its start by more than that of the newest run.
        other_lag = _measure_lag(other.run)
        contradicts = other_lag is not None and other_lag - lag > CLOCK_ERROR
        if contradicts and _is_same_clock(newest.run, other.run):
            later.append((started, other))
    if not later:
        return None
    _, rival = max(later, key=lambda dated_run: dated_run[0])
    by_file = CodedStatement(
        StatementCode.ORDER_BY_FILE,
        rival=rival.run.id,
        rival_written=rival.run.found.modified,
        newest=newest.run.id,
        newest_written=newest.run.found.modified,
    )
    return OrderDoubt(rival, by_file)


def _date_by_file(run: Run) -> datetime | None:
    """Return the start of a run, assuming its file was written at its end."""
    if run.found.modified is None:
        return None
    return run.found.modified - _sum_steps(run)


def _is_confirmed(newest: Run, rival: Run) -> bool:
    """True if believable file times confirm that `newest` is newer than `rival`."""
    written, rival_written = newest.found.modified, rival.found.modified
    if (
        written is None
        or rival_written is None
        or not written > rival_written
        or newest.order_source is Clock.FILE_TIME
    ):
        return False
    are_believable = None not in (_measure_lag(newest), _measure_lag(rival))
    return (
        are_believable
        and _is_same_clock(newest, rival)
        and not _may_be_copied_together(newest, rival)
    )


def _may_be_copied_together(newest: Run, rival: Run) -> bool:
    """True if one copy operation may have set both file times.

    The file times are then much closer together than the runs. Also true if a time is
    unknown.
    """
    written, rival_written = newest.found.modified, rival.found.modified
    if (
        written is None
        or rival_written is None
        or newest.started is None
        or rival.started is None
    ):
        return True
    largest_gap = min(COPIED * abs(newest.started - rival.started), LONGEST_COPY)
    return abs(written - rival_written) <= max(TOGETHER, largest_gap)


def _measure_lag(run: Run) -> timedelta | None:
    """Return the time between the last step of a run and its last write.

    None if the time is not believable. For a stamped log it must be short, and may be
    negative by hours if the stamps have no zone. For an unstamped log it may include
    the time in the queue, because the start is then that of the submission.
    """
    start = (
        _find_start_candidate(run, Clock.LOG)
        or _find_start_candidate(run, Clock.METADATA)
        or _find_start_candidate(run, Clock.FOLDER_NAME)
    )
    if start is None or run.found.modified is None:
        return None
    lag = run.found.modified - start.timestamp - _sum_steps(run)
    if start.clock is not Clock.LOG:
        is_believable = -CLOCK_ERROR <= lag <= LONGEST_QUEUE
    else:
        most_negative = CLOCK_ERROR if start.zoned else ZONES
        is_believable = -most_negative <= lag <= WRITTEN_AFTER
    return lag if is_believable else None


def _is_same_clock(newest: Run, rival: Run) -> bool:
    """True if both logs are stamped, or neither is."""
    newest_stamped = _find_start_candidate(newest, Clock.LOG) is not None
    rival_stamped = _find_start_candidate(rival, Clock.LOG) is not None
    return newest_stamped == rival_stamped


def _find_start_candidate(run: Run, clock: Clock) -> StartCandidate | None:
    """Return the start of a run by one clock, or None."""
    for candidate in run.start_candidates:
        if candidate.clock is clock:
            return candidate
    return None


def _sum_steps(run: Run) -> timedelta:
    """Return the total step time of the last attempt with steps."""
    logs = [attempt.log for attempt in run.attempts if attempt.log.segments]
    if not logs:
        return timedelta(0)
    steps = logs[-1].segments[-1].steps
    step_seconds = np.where(np.isfinite(steps.seconds), steps.seconds, 0.0)
    seconds = float(np.nansum(step_seconds * np.maximum(steps.mean_of, 1)))
    # wrong times must not exceed what a timedelta can hold
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST_QUEUE.total_seconds()))


# --- launches -------------------------------------------------------------------------


def _find_by_launch(
    newest: Measurement, others: Sequence[Measurement]
) -> OrderDoubt | None:
    """Return a run that was launched after the newest run had begun, or None.

    The log of the returned run must be stamped before its launch, which shows that the
    log's clock is wrong or in another zone.
    """
    logged = _find_start_candidate(newest.run, Clock.LOG)
    launched = _find_launch(newest.run)
    if (
        logged is None
        or launched is None
        or launched.timestamp - logged.timestamp > TOGETHER
    ):
        return None
    for other in others:
        other_logged = _find_start_candidate(other.run, Clock.LOG)
        other_launched = _find_launch(other.run)
        if (
            other_logged is None
            or other_launched is None
            or other_launched.zoned != launched.zoned
        ):
            continue
        after_newest = other_launched.timestamp - logged.timestamp > TOGETHER
        # its log cannot begin before its launch
        has_wrong_clock = other_launched.timestamp - other_logged.timestamp > TOGETHER
        if after_newest and has_wrong_clock:
            by_launch = CodedStatement(
                StatementCode.ORDER_BY_LAUNCH,
                rival=other.run.id,
                launched=other_launched.timestamp,
            )
            return OrderDoubt(other, by_launch)
    return None


def _find_launch(run: Run) -> StartCandidate | None:
    """Return the launch of a run by its metadata or folder name, or None."""
    return _find_start_candidate(run, Clock.METADATA) or _find_start_candidate(
        run, Clock.FOLDER_NAME
    )
