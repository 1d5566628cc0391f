"""What a log says once, besides its steps: when it started, on which versions its run ran, and a trace of NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from pytest_llmbench.logs.scan import REACH_BACK, ByteChunk, Hit, find_line_begin

NCCL_OPERATION = b": opCount "
_BEFORE_OPERATION = re.compile(rb"NCCL INFO \w{1,40}\Z")
_BEFORE_LENGTH = 64

# Bytes in which a log says when it started and with which versions: what stands later may be of another run.
FARTHEST = 64 << 20

TIMESTAMP = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
TIMESTAMP_LENGTH = 26

# What may stand between the beginning of a line or bar and its time: blanks, colours, labels of ranks, an opening.
HEAD = re.compile(
    rb"(?:[ \t]|\x1b\[[\d;]*m|\d{1,9}: |[\w.-]{1,99}/\d{1,9} |\[(?:rank|default)\d{1,9}\]:?"
    rb"|\((?=[^()]{0,99}\bpid=\d)[^()]{0,200}\))*"
    rb"(?:\[|--|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):)?"
)
# What stands before the time of a log record, wherever the record stands.
MARK = re.compile(rb"(?:\[NeMo [A-Z] |\[titan\] |\bDLL |\] datetime: )\Z")

# No log is silent for longer: what is older than the next time by more is the age of an image or a data set.
STALE = timedelta(days=30)


def is_operation(hit: Hit) -> bool:
    """Tell whether the marker of an operation of NCCL stands in a record of a trace."""
    return bool(_BEFORE_OPERATION.search(hit.text[max(0, hit.start - _BEFORE_LENGTH) : hit.start]))


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
    prefix = chunk.text[max(0, place - REACH_BACK) : place]
    begin = find_line_begin(prefix, 0, len(prefix))
    in_long_line = begin == 0 and chunk.offset + place > REACH_BACK
    return bool((not in_long_line and HEAD.fullmatch(prefix, begin)) or MARK.search(prefix))


_VERSION = rb"(\d{1,5}(?:\.[\w+-]{1,40}){1,7})"
_LINE_ENDS = rb"[ \t]*[\r\n]"
_LINE_BEGINS = HEAD.pattern


class VersionPattern(NamedTuple):
    """One way to say versions."""

    names: tuple[str, ...]
    marker: bytes
    before: re.Pattern[bytes]  # what stands in the line before the marker
    after: re.Pattern[bytes]
    """What stands behind it to the end of the line, without which a value may be cut; its groups are the values."""


def _compile_pattern(names: str, marker: bytes, before: bytes, after: bytes) -> VersionPattern:
    return VersionPattern(tuple(names.split()), marker, re.compile(before), re.compile(after))


# Of several that say one name the first one here counts.
VERSION_PATTERNS = (
    _compile_pattern("nccl", b"L version ", rb"(?:%s|[^\r\n]*NCCL INFO )NCC" % _LINE_BEGINS, _VERSION + _LINE_ENDS),
    # DeepSpeed's report, and the `datasets` package of Hugging Face, which may not know the local part
    _compile_pattern("pytorch", b"rch version ", _LINE_BEGINS + b"to", rb"\.{2,60} " + _VERSION + _LINE_ENDS),
    _compile_pattern("pytorch", b"rch version ", rb"[^\r\n]*\bPyTo", _VERSION + rb" available\." + _LINE_ENDS),
    # MaxText
    _compile_pattern("jax", b"Version: ", rb"[^\r\n]*\bSystem Information: Jax ", _VERSION + _LINE_ENDS),
    # nvidia-smi, of which "CUDA Version" is the newest that the driver supports
    _compile_pattern(
        "driver cuda_driver",
        b"Version: ",
        rb"[^\r\n]*\| NVIDIA-SMI [\d.]+ +Driver ",
        _VERSION + rb" +CUDA Version: " + _VERSION + rb" +\|" + _LINE_ENDS,
    ),
    # the greeting of NVIDIA's containers: `25.01 (build 134983853)`, of NeMo's perhaps the build alone
    _compile_pattern(
        "nvidia_release",
        b"NVIDIA Release ",
        _LINE_BEGINS,
        rb"([\w.-]{1,20}(?: \(build \d{1,12}\))?|\(build \d{1,12}\))" + _LINE_ENDS,
    ),
    # Slurm's plugin for containers, when it fetches one
    _compile_pattern(
        "container", b"porting docker image: ", rb"[^\r\n]*\bpyxis: im", rb"([\w.:/@#+-]{1,200})" + _LINE_ENDS
    ),
    # what any training script may print of itself, one line for each name
    *(
        _compile_pattern(
            name, b"llmb environment: ", _LINE_BEGINS, name.encode() + rb": ([!-~](?:[ -~]{0,198}[!-~])?)" + _LINE_ENDS
        )
        for name in ("device", "power_limit", "clocks", "driver", "cuda", "nccl", "pytorch")
    ),
)

# None begins with a blank: such a marker makes the search of a log half as fast again.
VERSION_MARKERS = tuple(dict.fromkeys(pattern.marker for pattern in VERSION_PATTERNS))


class Versions:
    """The versions that one log says. What it says first counts; where it contradicts that later nothing does."""

    def __init__(self) -> None:
        self._values: dict[VersionPattern, tuple[str, ...] | None] = {}

    def add(self, hit: Hit) -> None:
        """Take what is said at a marker, unless it is so far into the log that another run may say it."""
        for pattern in VERSION_PATTERNS if hit.offset < FARTHEST else ():
            values = _read_versions(pattern, hit) if pattern.marker == hit.marker else None
            if values and self._values.setdefault(pattern, values) != values:
                self._values[pattern] = None

    def result(self) -> tuple[tuple[str, str], ...]:
        """Return names with their values, sorted by name."""
        if not self._values:
            return ()
        values: dict[str, str] = {}
        for pattern in VERSION_PATTERNS:
            for name, value in zip(pattern.names, self._values.get(pattern) or (), strict=False):
                values.setdefault(name, value)
        return tuple(sorted(values.items()))


def _read_versions(pattern: VersionPattern, hit: Hit) -> tuple[str, ...] | None:
    """Return the values at a marker, None where it stands in another sentence or is damaged."""
    prefix = hit.text[max(0, hit.start - REACH_BACK) : hit.start]
    match = pattern.after.match(hit.text, hit.start + len(pattern.marker))
    if match is None or not pattern.before.fullmatch(prefix, find_line_begin(prefix, 0, len(prefix))):
        return None
    return tuple(value.decode("ascii") for value in match.groups())
