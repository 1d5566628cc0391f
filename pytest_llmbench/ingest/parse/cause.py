"""Which of the things that a log says of its end is the cause, and what is worth telling with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.core.models import Ending, EndingCode, ParsedLog
from pytest_llmbench.ingest.parse.dropped import make_printable
from pytest_llmbench.ingest.parse.tracebacks import HEAD

CODES = tuple(code for code in EndingCode if code not in (EndingCode.CUT, EndingCode.UNREADABLE))
"""What a log says, stronger causes first; of a crash, an exception and NCCL's time-out in one log the first counts."""

DECISIONS = (
    EndingCode.TIME_LIMIT,
    EndingCode.NODE_FAILURE,
    EndingCode.PREEMPTED,
    EndingCode.REQUEUED,
    EndingCode.CANCELLED,
)
"""Somebody ended the whole run."""

FAILURES = (
    EndingCode.GPU_FAILURE,
    EndingCode.OUT_OF_MEMORY,
    EndingCode.GPU_OUT_OF_MEMORY,
    EndingCode.DIVERGED,
    EndingCode.SEGFAULT,
    EndingCode.TRACEBACK,
)
"""A process died of itself; others can fail for that reason."""

ORDERLY = (EndingCode.EXITED,)
"""The program ended itself: of a run that finished it says nothing."""

CRASHES = (EndingCode.SEGFAULT, EndingCode.TRACEBACK, EndingCode.NCCL_TIMEOUT)

PLACES: dict[EndingCode, int] = {code: place for place, code in enumerate(CODES)}
"""The lower, the stronger."""


def choose_cause(endings: Sequence[Ending]) -> Ending | None:
    """Return the cause among what a log says, with the most telling one of the others beside it."""
    if not endings:
        return None
    waited = min((each.line for each in endings if each.code == EndingCode.NCCL_TIMEOUT), default=0)
    first: dict[EndingCode, Ending] = {}
    unread = make_printable(HEAD)
    for each in sorted(endings, key=lambda each: (0 < waited < each.line, each.text == unread, each.line)):
        first.setdefault(each.code, each)
    main = _find_cause(first)
    return replace(main, beside=_find_beside(main, first) or _find_last_raised(main, endings))


def combine_endings(log: Ending | None, error: Ending | None) -> Ending | None:
    """Return the ending that a log and its standard error tell together; which line was first cannot be told.

    The failure of a process therefore counts before a time-out of NCCL in the other file.
    """
    if log is None or error is None or log.code not in PLACES:  # a cut log does not know how it ended
        return error if error is not None else log
    main, other = sorted((log, error), key=lambda each: (each.went_on, _get_strength(each)))
    if _is_word_of_framework(main) and other.code == EndingCode.STEP_CANCELLED:
        main, other = other, main
    telling = other.code in (*FAILURES, EndingCode.NCCL_TIMEOUT) and other.code != main.code and not other.went_on
    beside = other if telling else None
    return replace(main, beside=main.beside or beside)


def add_error_ending(log: ParsedLog, error: Ending | None) -> ParsedLog:
    """Return a log with the ending that it and its standard error tell together.

    What happened before training began ended no run with steps.
    """
    if error is None or (error.before_training and log.segments):
        return log
    readings = tuple(replace(reading, ending=combine_endings(reading.ending, error)) for reading in log.readings)
    return replace(log, ending=combine_endings(log.ending, error), readings=readings)


def _get_strength(ending: Ending) -> float:
    """Return a number that is lower for a stronger cause. A framework that is told to end calls any reason preemption:
    Slurm's words say more."""
    return PLACES[EndingCode.CANCELLED] + 0.5 if _is_word_of_framework(ending) else PLACES[ending.code]


def _is_word_of_framework(ending: Ending) -> bool:
    return ending.code == EndingCode.PREEMPTED and "Preemption detected" in ending.text


def _find_cause(first: Mapping[EndingCode, Ending]) -> Ending:
    strongest = min(first.values(), key=_get_strength)
    cancelled = first.get(EndingCode.STEP_CANCELLED)
    if cancelled is not None and (_is_word_of_framework(strongest) or _follows(strongest, cancelled, first)):
        return cancelled
    if strongest.code not in CRASHES:
        return strongest
    earliest = min((first[code] for code in CRASHES if code in first), key=lambda each: each.line)
    failed = first.get(EndingCode.TASK_FAILURE)
    if earliest.code == EndingCode.NCCL_TIMEOUT and failed is not None and failed.line < earliest.line:
        return failed
    return earliest


def _follows(strongest: Ending, cancelled: Ending, first: Mapping[EndingCode, Ending]) -> bool:
    """Whether all that is said besides a cancelled step is what follows from it."""
    lines = [first[code].line for code in (EndingCode.AFTERMATH, EndingCode.TASK_FAILURE) if code in first]
    return strongest.code in (EndingCode.AFTERMATH, EndingCode.TASK_FAILURE) and cancelled.line < min(lines)


def _find_last_raised(main: Ending, endings: Sequence[Ending]) -> Ending | None:
    """Return the last exception of another kind than that of the cause: the run may have survived the first."""
    if main.code != EndingCode.TRACEBACK:
        return None
    later = [each for each in endings if each.code == main.code and each.line > main.line]
    others = [each for each in later if _get_kind(each) not in (_get_kind(main), make_printable(HEAD))]
    return max(others, key=lambda each: each.line, default=None)


def _get_kind(ending: Ending) -> str:
    return re.split(r": | in `", ending.text, maxsplit=1)[0]


def _find_beside(main: Ending, first: Mapping[EndingCode, Ending]) -> Ending | None:
    """Return what is worth telling with a cause: what failed before a decision, and what followed from a failure."""
    if main.code in DECISIONS:
        endings = [first[code] for code in (*FAILURES, EndingCode.NCCL_TIMEOUT) if code in first]
        return min((each for each in endings if each.line < main.line), key=lambda each: each.line, default=None)
    if main.code == EndingCode.NCCL_TIMEOUT:
        return min((first[code] for code in FAILURES if code in first), key=lambda each: each.line, default=None)
    after = (
        (EndingCode.PREEMPTED, EndingCode.REQUEUED, EndingCode.CANCELLED, EndingCode.NCCL_TIMEOUT)
        if main.code != EndingCode.STEP_CANCELLED
        else ()
    )
    return next((first[code] for code in after if code in first), None)
