"""What a log says once, besides its steps: when it started, and the first line of a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from pytest_llmbench.ingest.parse.scan import REACH_BACK, ByteChunk, Hit

NCCL_OPERATION = b": opCount "
MARKERS = (NCCL_OPERATION,)

BEFORE = {NCCL_OPERATION: re.compile(rb"NCCL INFO \w{1,40}\Z")}
BEFORE_LENGTH = 64

TIMESTAMP = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
TIMESTAMP_LENGTH = 26

# What may stand between the beginning of a line or bar and its time: blanks, colours, labels of ranks, an opening.
HEAD = re.compile(
    rb"(?:[ \t]|\x1b\[[\d;]*m|\d{1,9}: |[\w.-]{1,99}/\d{1,9} |\[(?:rank|default)\d{1,9}\]:?"
    rb"|\([^()]{0,99}\bpid=\d{1,9}[^()]{0,99}\))*"
    rb"(?:\[|--|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):)?"
)
# What stands before the time of a log record, wherever the record stands.
MARK = re.compile(rb"(?:\[NeMo [A-Z] |\[titan\] |\bDLL |\] datetime: )\Z")

# No log is silent for longer: what is older than the next time by more is the age of an image or a data set.
STALE = timedelta(days=30)


def is_confirmed(hit: Hit) -> bool:
    """Tell whether a marker of this module stands where it means what it says."""
    pattern = BEFORE.get(hit.marker)
    return pattern is None or bool(pattern.search(hit.text[max(0, hit.start - BEFORE_LENGTH) : hit.start]))


# Bytes in which a log says when it started: a later time is not that of its start.
FARTHEST = 64 << 20


class StartTime:
    """Finds when a log starts: the first time of a log record that is not STALE. `time` is None where there is none."""

    def __init__(self) -> None:
        self.time: datetime | None = None
        self.looks = True

    def take(self, chunk: ByteChunk) -> None:
        """Look through the new part of a chunk, until the time is sure."""
        self.looks = self.looks and chunk.offset < FARTHEST
        if not self.looks:
            return
        for time in iterate_timestamps(chunk):
            self.looks = self.time is None or time - self.time > STALE
            if not self.looks:
                return
            self.time = time


def iterate_timestamps(chunk: ByteChunk) -> Iterator[datetime]:
    """Yield the times of log records that begin in the new part of a chunk, as printed: without a time zone."""
    limit = min(chunk.stop + TIMESTAMP_LENGTH, len(chunk.text))
    for match in TIMESTAMP.finditer(chunk.text, chunk.start, limit):
        if match.start() >= chunk.stop:
            return
        if not _begins_record(chunk, match.start()):
            continue
        try:
            yield datetime.fromisoformat(match[0].decode("ascii"))
        except ValueError:
            continue  # digits that are no date


def _begins_record(chunk: ByteChunk, place: int) -> bool:
    """Tell whether a time stands where log records have it, and not inside a sentence."""
    earliest = max(0, place - REACH_BACK)
    prefix = chunk.text[earliest:place]
    begin = max(prefix.rfind(b"\n"), prefix.rfind(b"\r")) + 1
    if begin == 0 and chunk.offset + place > REACH_BACK:
        return bool(MARK.search(prefix))  # further on in a long line
    return bool(HEAD.fullmatch(prefix, begin) or MARK.search(prefix))
