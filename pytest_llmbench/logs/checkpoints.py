"""The checkpoints of a log: the times of saving and loading, and whether training
continued."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.core.log_records import CheckpointRecord, Checkpoints, Segment
from pytest_llmbench.logs.recognisers import CHECKPOINTS, LOAD, Meaning
from pytest_llmbench.logs.scan import Hit
from pytest_llmbench.logs.step_records import read_rank

# Records of one log that are kept. More are counted, and the slowest is unknown then.
KEPT = 10_000


class CheckpointLines:
    """Collects the lines about checkpoints, at most KEPT."""

    def __init__(self) -> None:
        self._records: list[tuple[Meaning, CheckpointRecord]] = []
        self._unread = 0
        self._modes: set[Meaning] = set()

    def add(self, hit: Hit) -> None:
        """Add the line of a marker, if it is about a checkpoint."""
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
        """The number of lines about a saved or loaded checkpoint."""
        return len(self._records) + self._unread

    def result(self, parts: Sequence[Segment]) -> Checkpoints:
        """Return the records, each with the part of the log that it belongs to; `parts`
        are all parts with steps."""
        first_lines, last_lines = (
            [part.first_line for part in parts],
            [part.last_line for part in parts],
        )
        placed = [
            (meaning, replace(record, part=_find_part(record, first_lines, last_lines)))
            for meaning, record in self._records
        ]
        loaded = {
            record.part
            for meaning, record in placed
            if meaning is Meaning.HAPPENED and record.action == LOAD
        }
        records = (
            replace(record, dispatched=self._is_dispatch(meaning))
            for meaning, record in placed
            if meaning is not Meaning.TIMER or record.part in loaded
        )
        return Checkpoints(tuple(records), self._unread)

    def _is_dispatch(self, meaning: Meaning) -> bool:
        if meaning is Meaning.STAGING_UNLESS_SYNCHRONOUS:
            return self._modes != {Meaning.SYNCHRONOUS}
        return (
            meaning is Meaning.WHOLE_UNLESS_ASYNCHRONOUS
            and Meaning.ASYNCHRONOUS in self._modes
        )


def _read_line(hit: Hit) -> tuple[Meaning, CheckpointRecord] | None:
    """Return the record of a line that prints one at a marker, and its meaning."""
    for row, time in CHECKPOINTS.read(hit):
        action, meaning = row.fact
        timed = meaning.value <= Meaning.TIMER.value
        return meaning, CheckpointRecord(
            action=action,
            line=hit.line,
            seconds=time.seconds,
            torn=timed and time.seconds is None,
            rank=read_rank(hit) or time.rank,
        )
    return None


def _find_part(
    record: CheckpointRecord, first_lines: Sequence[int], last_lines: Sequence[int]
) -> int:
    """Return the 1-based number of the part that a checkpoint was saved in or after, or
    loaded for; 0 for none."""
    if record.action == LOAD:
        number = bisect_left(last_lines, record.line) + 1
        return number if number <= len(last_lines) else 0
    return bisect_right(first_lines, record.line)
