"""Consistency checks of cached results.

A cached result whose numbers contradict each other cannot come from a log. The log of a
rejected result is read again, so a check that is too strict loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import lt

from pytest_llmbench.core.log_records import Ending, ParsedLog, Segment, Steps
from pytest_llmbench.logs.reading.codec import FileReading
from pytest_llmbench.logs.sources.compressed import is_compressed


def is_consistent(reading: FileReading) -> bool:
    """True if the numbers of a cached result agree with each other and with the file."""
    file, result, state = reading
    if state is None:
        return False
    if not file.is_log:
        if result is None:
            return True
        return isinstance(result, Ending) and all(
            line >= 0 for line in _list_ending_lines(result)
        )
    if not isinstance(result, ParsedLog):
        return False
    if result.size_bytes != state.size and not is_compressed(file.path):
        return False
    return _can_be_result_of(result, result.size_bytes)


def _can_be_result_of(log: ParsedLog, size: int) -> bool:
    """True if a log of `size` bytes can have this result, and its `readings` too."""
    # A fingerprint begins with the size as a hexadecimal number.
    fingerprint_size, _, _ = log.fingerprint.partition("-")
    ends_before = (0, *(segment.last_line for segment in log.segments))
    return (
        0 <= log.lines <= size + 1
        and fingerprint_size in ("", f"{log.size_bytes:x}")
        and bool(log.dialect) == bool(log.segments)
        and log.nccl_line <= log.nccl_last_line
        and all(0 <= line <= log.lines for line in _list_lines(log))
        and all(map(_is_valid_segment, log.segments, ends_before))
        and all(_can_be_result_of(reading, size) for reading in log.readings)
    )


def _list_lines(log: ParsedLog) -> Iterator[int]:
    """Yield every line number in a parsed log, except the lines of its steps."""
    yield from (log.nccl_line, log.nccl_last_line, log.begun_again_line)
    yield from (record.line for record in log.checkpoints.records)
    yield from (record.first_line for record in log.dropped)
    yield from (dialect.first_line for dialect in log.unread)
    yield from _list_ending_lines(log.ending)
    for segment in log.segments:
        yield from (segment.first_line, segment.last_line)
        yield from (statement.line for statement in segment.stated)


def _list_ending_lines(ending: Ending | None) -> Iterator[int]:
    """Yield the line numbers of an ending and of the endings beside it."""
    while ending is not None:
        yield ending.line
        ending = ending.beside


def _is_valid_segment(segment: Segment, line_before: int) -> bool:
    """True if a segment begins after `line_before` and contains its steps in order."""
    steps: Steps = segment.steps
    if not len(steps) or segment.first_line <= line_before:
        return False
    # Lists, because most logs have about fifty steps and numpy takes twice as long for
    # so few.
    index, line = steps.index.tolist(), steps.line.tolist()
    return bool(
        segment.first_line <= min(line)
        and max(line) <= segment.last_line
        and all(map(lt, index, index[1:]))
        and min(steps.mean_of.tolist()) >= 1
    )
