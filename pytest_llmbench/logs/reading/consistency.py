"""Whether what a cache file says of a log can have been read from it: numbers that
contradict each other cannot.

A reading that is refused here is read again, so nothing is lost where a check is too
strict.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import lt

from pytest_llmbench.core.log_records import Ending, ParsedLog, Segment, Steps
from pytest_llmbench.logs.reading.codec import FileReading
from pytest_llmbench.logs.sources.compressed import is_compressed


def is_consistent(reading: FileReading) -> bool:
    """Whether the parts of a reading fit each other and its file."""
    file, result, state = reading
    if state is None:
        return False
    if not file.is_log:
        return result is None or (
            isinstance(result, Ending)
            and all(line >= 0 for line in _list_endings(result))
        )
    if not isinstance(result, ParsedLog) or (
        result.size_bytes != state.size and not is_compressed(file.path)
    ):
        return False
    return _fits_text(result, result.size_bytes)


def _fits_text(log: ParsedLog, size: int) -> bool:
    """Whether a log of so many bytes can hold what was read, in each of the ways that
    it was read."""
    return (
        0 <= log.lines <= size + 1
        and log.fingerprint.partition("-")[0] in ("", f"{log.size_bytes:x}")
        and bool(log.dialect) == bool(log.segments)
        and log.nccl_line <= log.nccl_last_line
        and all(0 <= line <= log.lines for line in _list_lines(log))
        and all(
            map(
                _fits_segment,
                log.segments,
                (0, *(segment.last_line for segment in log.segments)),
            )
        )
        and all(_fits_text(reading, size) for reading in log.readings)
    )


def _list_lines(log: ParsedLog) -> Iterator[int]:
    """Yield every number of a line that a log names, besides those of its steps."""
    yield from (log.nccl_line, log.nccl_last_line, log.begun_again_line)
    yield from (record.line for record in log.checkpoints.records)
    yield from (record.first_line for record in log.dropped)
    yield from (dialect.first_line for dialect in log.unread)
    yield from _list_endings(log.ending)
    for segment in log.segments:
        yield from (segment.first_line, segment.last_line)
        yield from (statement.line for statement in segment.stated)


def _list_endings(ending: Ending | None) -> Iterator[int]:
    while ending is not None:
        yield ending.line
        ending = ending.beside


def _fits_segment(segment: Segment, after: int) -> bool:
    """Whether a segment stands behind a line, and its steps in it, in their order."""
    steps: Steps = segment.steps
    if not len(steps) or segment.first_line <= after:
        return False
    # Lists: of the fifty steps of most logs numpy takes twice as long.
    index, line = steps.index.tolist(), steps.line.tolist()
    return bool(
        segment.first_line <= min(line)
        and max(line) <= segment.last_line
        and all(map(lt, index, index[1:]))
        and min(steps.mean_of.tolist()) >= 1
    )
