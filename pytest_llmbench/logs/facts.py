"""The facts of a log beside its steps; among them its start and the versions of its
run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Protocol

from pytest_llmbench.logs import training_lines
from pytest_llmbench.logs.checkpoints import CheckpointLines
from pytest_llmbench.logs.recognisers import (
    CHECKPOINTS,
    LINE_HEAD,
    STATED_MARKERS,
    VERSIONS,
    VersionRow,
)
from pytest_llmbench.logs.scan import REACH_BACK, ByteChunk, Hit, find_line_begin
from pytest_llmbench.logs.stated_facts import Statements
from pytest_llmbench.logs.training_lines import TrainingLines

# Bytes in which a log prints when it started: later times may be of another run.
FARTHEST = 64 << 20

TIMESTAMP = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
TIMESTAMP_LENGTH = 26

HEAD = re.compile(LINE_HEAD)
# What stands before the time of a log record, wherever the record stands.
MARK = re.compile(rb"(?:\[NeMo [A-Z] |\[titan\] |\bDLL |\] datetime: )\Z")

# No log is silent for longer: what is older than the next time by more is the age of an
# image or a data set.
STALE = timedelta(days=30)


class StartTime:
    """Finds when a log starts: the first time of a log record that is not STALE. `time`
    is None where there is none."""

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
    """Yield the times of log records that begin in the new part of a chunk, as printed:
    without a time zone."""
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
    """Tell whether a time stands where log records have it, and not inside a
    sentence."""
    prefix = chunk.text[max(0, place - REACH_BACK) : place]
    begin = find_line_begin(prefix, 0, len(prefix))
    in_long_line = begin == 0 and chunk.offset + place > REACH_BACK
    return bool(
        (not in_long_line and HEAD.fullmatch(prefix, begin)) or MARK.search(prefix)
    )


class Versions:
    """The versions that one log states.

    The first statement counts; if a later one contradicts it, neither does.
    """

    def __init__(self) -> None:
        self._values: dict[VersionRow, tuple[str, ...] | None] = {}

    def add(self, hit: Hit) -> None:
        """Add the versions at a marker, unless it is so far into the log that another
        run may print them."""
        for row, values in VERSIONS.read(hit):
            if self._values.setdefault(row, values) != values:
                self._values[row] = None

    def result(self) -> tuple[tuple[str, str], ...]:
        """Return names with their values, sorted by name."""
        if not self._values:
            return ()
        values: dict[str, str] = {}
        for row in VERSIONS.rows:
            for name, value in zip(row.fact, self._values.get(row) or (), strict=False):
                values.setdefault(name, value)
        return tuple(sorted(values.items()))


class _Collector(Protocol):
    def add(self, hit: Hit) -> None:
        """Add the facts at a marker."""


class Facts:
    """The facts of one log beside its steps: a collector for each kind."""

    def __init__(self) -> None:
        self.statements = Statements()
        self.versions = Versions()
        self.checkpoints = CheckpointLines()
        self.training = TrainingLines()
        self._collectors: dict[bytes, _Collector] = (
            dict.fromkeys(STATED_MARKERS, self.statements)
            | dict.fromkeys(VERSIONS.markers, self.versions)
            | dict.fromkeys(CHECKPOINTS.markers, self.checkpoints)
            | dict.fromkeys(training_lines.MARKERS, self.training)
        )

    def add(self, hit: Hit) -> None:
        """Add the facts at a marker."""
        collector = self._collectors.get(hit.marker)
        if collector is not None:
            collector.add(hit)
