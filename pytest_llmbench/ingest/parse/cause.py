"""Which of the things that a log says of its end is the cause, and what is worth telling with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.core.models import Ending, ParsedLog
from pytest_llmbench.ingest.parse.dropped import make_printable
from pytest_llmbench.ingest.parse.tracebacks import HEAD

CODES = (
    *("time-limit", "node-failure", "gpu-failure", "out-of-memory", "gpu-out-of-memory", "diverged", "preempted"),
    *("requeued", "cancelled", "exited"),
    *("segfault", "traceback", "nccl-timeout", "aftermath", "task-failure", "step-cancelled"),
)
"""All of them, the stronger cause first; of a crash, an exception and NCCL's time-out in one log the first counts."""

DECISIONS = ("time-limit", "node-failure", "preempted", "requeued", "cancelled")
"""Somebody ended the whole run."""

FAILURES = ("gpu-failure", "out-of-memory", "gpu-out-of-memory", "diverged", "segfault", "traceback")
"""A process died of itself; others can fail for that reason."""

ORDERLY = ("exited",)
"""The program ended itself: of a run that finished it says nothing."""

CRASHES = ("segfault", "traceback", "nccl-timeout")

PLACES = {code: place for place, code in enumerate(CODES)}
"""The lower, the stronger."""


def choose_cause(endings: Sequence[Ending]) -> Ending | None:
    """Return the cause among what a log says, with the most telling one of the others beside it."""
    if not endings:
        return None
    waited = min((each.line for each in endings if each.code == "nccl-timeout"), default=0)
    first: dict[str, Ending] = {}
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
    if _is_word_of_framework(main) and other.code == "step-cancelled":
        main, other = other, main
    telling = other.code in (*FAILURES, "nccl-timeout") and other.code != main.code and not other.went_on
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
    return PLACES["cancelled"] + 0.5 if _is_word_of_framework(ending) else PLACES[ending.code]


def _is_word_of_framework(ending: Ending) -> bool:
    return ending.code == "preempted" and "Preemption detected" in ending.text


def _find_cause(first: Mapping[str, Ending]) -> Ending:
    strongest = min(first.values(), key=_get_strength)
    cancelled = first.get("step-cancelled")
    if cancelled is not None and (_is_word_of_framework(strongest) or _follows(strongest, cancelled, first)):
        return cancelled
    if strongest.code not in CRASHES:
        return strongest
    earliest = min((first[code] for code in CRASHES if code in first), key=lambda each: each.line)
    failed = first.get("task-failure")
    if earliest.code == "nccl-timeout" and failed is not None and failed.line < earliest.line:
        return failed
    return earliest


def _follows(strongest: Ending, cancelled: Ending, first: Mapping[str, Ending]) -> bool:
    """Whether all that is said besides a cancelled step is what follows from it."""
    told = [first[code].line for code in ("aftermath", "task-failure") if code in first]
    return strongest.code in ("aftermath", "task-failure") and cancelled.line < min(told)


def _find_last_raised(main: Ending, endings: Sequence[Ending]) -> Ending | None:
    """Return the last exception of another kind than that of the cause: the run may have survived the first."""
    if main.code != "traceback":
        return None
    later = [each for each in endings if each.code == main.code and each.line > main.line]
    others = [each for each in later if _get_kind(each) not in (_get_kind(main), make_printable(HEAD))]
    return max(others, key=lambda each: each.line, default=None)


def _get_kind(ending: Ending) -> str:
    return re.split(r": | in `", ending.text, maxsplit=1)[0]


def _find_beside(main: Ending, first: Mapping[str, Ending]) -> Ending | None:
    """Return what is worth telling with a cause: what failed before a decision, and what followed from a failure."""
    if main.code in DECISIONS:
        told = [first[code] for code in (*FAILURES, "nccl-timeout") if code in first]
        return min((each for each in told if each.line < main.line), key=lambda each: each.line, default=None)
    if main.code == "nccl-timeout":
        return min((first[code] for code in FAILURES if code in first), key=lambda each: each.line, default=None)
    after = ("preempted", "requeued", "cancelled", "nccl-timeout") if main.code != "step-cancelled" else ()
    return next((first[code] for code in after if code in first), None)
