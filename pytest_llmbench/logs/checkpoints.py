"""What a log says of checkpoints: how long saving and loading took, and whether training went on meanwhile."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from enum import Enum
from typing import NamedTuple

from pytest_llmbench.core.log_records import CheckpointAction, CheckpointRecord, Checkpoints, Segment
from pytest_llmbench.logs.scan import Hit
from pytest_llmbench.logs.step_records import find_line_stop, read_rank

# Records of one log that are kept: more are counted, and then nothing is said of the slowest.
KEPT = 10_000


class Meaning(Enum):
    """What a form says."""

    WHOLE = 1  # the time of a save or load, whatever the mode
    WHOLE_UNLESS_ASYNCHRONOUS = 2  # of a save, where other lines tell of asynchronous ones
    STAGING_UNLESS_SYNCHRONOUS = 3  # of a save, where only the configuration tells them apart
    TIMER = 4  # a load: printed, too, where there was nothing to load
    HAPPENED = 5
    ASYNCHRONOUS = 6
    SYNCHRONOUS = 7


class Form(NamedTuple):
    """One line that speaks of a checkpoint. A match without a time is a record that was cut off."""

    before: bytes  # stands right before the marker
    rest: re.Pattern[bytes]  # begins with the marker
    action: CheckpointAction
    meaning: Meaning
    divisor: int = 1  # what a printed time has to be divided by to be in seconds


SAVE, LOAD = CheckpointAction.SAVE, CheckpointAction.LOAD
CHECKPOINT, SYNCHRONOUS_SAVE = b"heckpoint", b"ynchronous save "
ASYNC, FINALIZATION = b"async_", b"Async finalization time took"

_DIGITS = rb"(?P<seconds>\d{1,9}(?:\.\d{1,9})?)"
_RANK = rb"[^\n]{0,9}?Rank ?: (?P<rank>\d{1,9})"
_END = rb"[ \t\r]*\Z"


def _compile_nemo(verb: bytes, label: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"heckpoint %b\b(?:%b)?(?:.{0,200}?%b: %bs%b)?" % (verb, _RANK, label, _DIGITS, _END), re.DOTALL)


def _compile_timer() -> re.Pattern[bytes]:
    """A timer of Megatron in milliseconds: `....: (min, max)`, `....: max`, or `: max` among others of its line."""
    value = rb"(?:\(\d{1,12}(?:\.\d{1,9})?, %b\)|%b(?=%b| \|))" % (
        _DIGITS,
        _DIGITS.replace(b"seconds", b"single"),
        _END,
    )
    return re.compile(rb"heckpoint(?: \.{3,99})?:(?: %b)?" % value)


FORMS: dict[bytes, tuple[Form, ...]] = {
    CHECKPOINT: (
        Form(b"Global C", _compile_nemo(b"Save", b"Save duration"), SAVE, Meaning.WHOLE_UNLESS_ASYNCHRONOUS),
        Form(b"Global C", _compile_nemo(b"Load", b"Time spent in load_checkpoint"), LOAD, Meaning.WHOLE),
        Form(b"save-c", _compile_timer(), SAVE, Meaning.WHOLE_UNLESS_ASYNCHRONOUS, 1000),
        Form(b"load-c", _compile_timer(), LOAD, Meaning.TIMER, 1000),
        Form(b"uccessfully saved c", re.compile(rb"heckpoint (?:from|at) iteration"), SAVE, Meaning.HAPPENED),
        Form(b"uccessfully loaded c", re.compile(rb"heckpoint from "), LOAD, Meaning.HAPPENED),
        Form(
            b"Finished saving the c",
            re.compile(rb"heckpoint(?: \(or staging if async is enabled\))? ?in (?:%b seconds)?" % _DIGITS),
            SAVE,
            Meaning.STAGING_UNLESS_SYNCHRONOUS,
        ),
        Form(b"Finished loading the c", re.compile(rb"heckpoint in (?:%b seconds)?" % _DIGITS), LOAD, Meaning.WHOLE),
        Form(
            b"Finished restoring c", re.compile(rb"heckpoint in (?:%b seconds from )?" % _DIGITS), LOAD, Meaning.WHOLE
        ),
        Form(b"saved a c", re.compile(rb"heckpoint at step \d"), SAVE, Meaning.HAPPENED),
        Form(b"Saving a full c", re.compile(rb"heckpoint at last step"), SAVE, Meaning.HAPPENED),
        Form(b"cheduled async c", re.compile(rb"heckpoint save for"), SAVE, Meaning.ASYNCHRONOUS),
        Form(b"cheduled an async c", re.compile(rb"heckpoint save"), SAVE, Meaning.ASYNCHRONOUS),
        Form(b"Async c", re.compile(rb"heckpoint save for|heckpointing detected"), SAVE, Meaning.ASYNCHRONOUS),
        Form(b"Pending async c", re.compile(rb"heckpoint saves"), SAVE, Meaning.ASYNCHRONOUS),
    ),
    SYNCHRONOUS_SAVE: (
        Form(
            b"Finished as",
            re.compile(rb"ynchronous save \(blocking \+ background\) in (?:%b seconds)?" % _DIGITS),
            SAVE,
            Meaning.WHOLE,
        ),
        Form(b"Finished s", re.compile(rb"ynchronous save in (?:%b seconds)?" % _DIGITS), SAVE, Meaning.WHOLE),
    ),
    ASYNC: (
        Form(
            b"Finished ",
            re.compile(rb"async_save \(blocking \+ background\)\. Time taken: (?:%bs\.)?" % _DIGITS),
            SAVE,
            Meaning.WHOLE,
        ),
        Form(b"", re.compile(rb"(?i:async_save['\"]?[ \t.:=]{1,99}true\b)"), SAVE, Meaning.ASYNCHRONOUS),
        Form(b"", re.compile(rb"(?i:async_mode['\"]?[ \t:=]{1,9}['\"]?disabled\b)"), SAVE, Meaning.SYNCHRONOUS),
        Form(b"", re.compile(rb"(?i:async_mode['\"]?[ \t:=]{1,9}['\"]?async)"), SAVE, Meaning.ASYNCHRONOUS),
    ),
    FINALIZATION: (Form(b"", re.compile(re.escape(FINALIZATION)), SAVE, Meaning.ASYNCHRONOUS),),
}
# What stands before is asked for only where this was found: one marker does for three forms. (Another cut of these
# texts made the automaton twice as slow: measure before changing them.)
ASYNCHRONOUS = b" async c"


def _get_marker(before: bytes) -> bytes:
    return (ASYNCHRONOUS if before.endswith(ASYNCHRONOUS) else before) + CHECKPOINT


_OF_CHECKPOINT = {
    marker: tuple(form for form in FORMS[CHECKPOINT] if _get_marker(form.before) == marker)
    for marker in (_get_marker(form.before) for form in FORMS[CHECKPOINT])
}
# The word alone stands in too many lines that say nothing of this kind.
MARKERS = (*_OF_CHECKPOINT, *(marker for marker in FORMS if marker != CHECKPOINT))


class CheckpointLines:
    """Collects the lines that speak of checkpoints, at most KEPT."""

    def __init__(self) -> None:
        self._records: list[tuple[Meaning, CheckpointRecord]] = []
        self._unread = 0
        self._modes: set[Meaning] = set()

    def add(self, hit: Hit) -> None:
        """Take the line of a marker, if it says something of a checkpoint."""
        record = _read_line(hit)
        if record is None:
            return
        meaning = record[0]
        if meaning in (Meaning.ASYNCHRONOUS, Meaning.SYNCHRONOUS):
            self._modes.add(meaning)
        elif len(self._records) < KEPT:
            self._records.append(record)
        else:
            self._unread += 1

    @property
    def count(self) -> int:
        """How many lines said that a checkpoint was saved or loaded."""
        return len(self._records) + self._unread

    def result(self, parts: Sequence[Segment]) -> Checkpoints:
        """Return the records, each with the part of the log that it belongs to; `parts` are all parts with steps."""
        first_lines, last_lines = [part.first_line for part in parts], [part.last_line for part in parts]
        placed = [
            (meaning, replace(record, part=_find_part(record, first_lines, last_lines)))
            for meaning, record in self._records
        ]
        loaded = {record.part for meaning, record in placed if meaning is Meaning.HAPPENED and record.action == LOAD}
        records = (
            replace(record, dispatched=self._is_dispatch(meaning))
            for meaning, record in placed
            if meaning is not Meaning.TIMER or record.part in loaded
        )
        return Checkpoints(tuple(records), self._unread)

    def _is_dispatch(self, meaning: Meaning) -> bool:
        if meaning is Meaning.STAGING_UNLESS_SYNCHRONOUS:
            return self._modes != {Meaning.SYNCHRONOUS}
        return meaning is Meaning.WHOLE_UNLESS_ASYNCHRONOUS and Meaning.ASYNCHRONOUS in self._modes


def _read_line(hit: Hit) -> tuple[Meaning, CheckpointRecord] | None:
    forms = _OF_CHECKPOINT.get(hit.marker)
    begin = hit.start + (len(hit.marker) - len(CHECKPOINT) if forms else 0)
    for form in forms or FORMS[hit.marker]:
        if not hit.text.endswith(form.before, 0, begin):
            continue
        match = form.rest.match(hit.text, begin, find_line_stop(hit.text, begin, hit.end))
        if match:
            return form.meaning, _build_record(form, match, hit)
    return None


def _build_record(form: Form, match: re.Match[bytes], hit: Hit) -> CheckpointRecord:
    groups = match.groupdict()
    digits = groups.get("seconds") or groups.get("single")
    timed = form.meaning.value <= Meaning.TIMER.value
    return CheckpointRecord(
        action=form.action,
        line=hit.line,
        seconds=float(Decimal(digits.decode("ascii")) / form.divisor) if digits else None,
        torn=timed and not digits,
        rank=read_rank(hit) or (groups.get("rank") or b"").decode("ascii"),
    )


def _find_part(record: CheckpointRecord, first_lines: Sequence[int], last_lines: Sequence[int]) -> int:
    """Return the 1-based number of the part that a checkpoint was saved in or after, or loaded for; 0 for none."""
    if record.action == LOAD:
        number = bisect_left(last_lines, record.line) + 1
        return number if number <= len(last_lines) else 0
    return bisect_right(first_lines, record.line)
