"""Problems and notes for records that were dropped or are doubtful."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import NoteCode, Reason
from pytest_llmbench.core.log_records import DroppedRecords, DropReason
from pytest_llmbench.core.run_records import Note, Problem
from pytest_llmbench.runs.measure.attempts import Choice
from pytest_llmbench.runs.measure.window import Timing

DROPPED = {
    NoteCode.TORN: ("truncated record", "dropped"),
    NoteCode.REPEATED: ("step", "printed again"),
    NoteCode.REPEAT_DISAGREES: (
        "step",
        "printed again with another time; the slower counts",
    ),
    NoteCode.OTHER_RANK: ("step", "of other ranks"),
    NoteCode.OTHER_DIALECT: ("record", "of another dialect"),
    NoteCode.OTHER_RECORDS: (
        "record",
        "of the same steps, dropped for more detailed ones",
    ),
    NoteCode.UNKNOWN_STEP: ("record", "without a certain step number"),
    NoteCode.RAMPED_UP: ("step", "in which the batch still grew, set aside"),
    NoteCode.TWO_WRITERS: (
        "step",
        "printed again with another time by a second process in this file; the slower counts",
    ),
    NoteCode.INTERLEAVED: (
        "record",
        "of two processes that write into this file at once",
    ),
    NoteCode.RUNNING_AVERAGE: (
        "time",
        "may be means since the start of the run, which hide slow steps",
    ),
    NoteCode.LEFT_OUT: (
        "step",
        "printed with a test or a checkpoint in its time, which is left out",
    ),
    NoteCode.CLOCK_RESTARTED: (
        "restart",
        "without a repeated step, of a run that was resumed: its clock begins anew",
    ),
    NoteCode.RATE_OF_SAMPLES: ("rate", "of samples or tokens, read as rates of steps"),
    NoteCode.TIMES_DISAGREE: (
        "step time",
        "that another number in the log contradicts",
    ),
    NoteCode.OTHER_UNIT: (
        "step time",
        "in another unit, converted by the timestamps of the events",
    ),
    NoteCode.PARTLY_TIMED: (
        "step time",
        "of the steps after a validation only; the steps before it are untimed",
    ),
}
"""For each reason to drop records: what is counted, and what happened to it."""


def find_problems(choice: Choice, timing: Timing) -> Iterator[Problem]:
    """Yield step times of the window that other numbers in the log contradict."""
    for dropped in choice.attempt.log.dropped:
        if _contradicts_window(dropped, timing):
            yield Problem(Reason.TIMES_DISAGREE, _describe(dropped), dropped.first_line)


def list_notes(choice: Choice, timing: Timing) -> Iterator[Note]:
    """Yield a note for each group of dropped records that is not a problem.

    Groups that contradict the window are problems.
    """
    for dropped in choice.attempt.log.dropped:
        if not _contradicts_window(dropped, timing):
            yield Note(NoteCode(dropped.reason), _describe(dropped), dropped.first_line)


def _contradicts_window(dropped: DroppedRecords, timing: Timing) -> bool:
    """True if records contradict other numbers in the log and overlap the window."""
    if dropped.reason is not DropReason.TIMES_DISAGREE:
        return False
    lines = timing.window.line
    last_line = max(dropped.first_line, dropped.last_line)
    return bool(((lines >= dropped.first_line) & (lines <= last_line)).any())


def _describe(dropped: DroppedRecords) -> str:
    noun, fate = DROPPED[NoteCode(dropped.reason)]
    return f"{formatting.count_noun(dropped.count, noun)} {fate}; the first: {dropped.shown}"
