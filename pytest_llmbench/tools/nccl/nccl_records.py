"""Count the records of an NCCL trace, read piece by piece.

A record is one rank's share of an operation. The lines of a trace repeat except for the
number of the operation and the addresses of its buffers. So these are removed first, and
each distinct remaining line is parsed once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from pytest_llmbench.core.errors import LogError

PIECE = 1 << 18
"""Bytes that are searched at once: text in a core's cache is searched faster.

A longer line is split and counts as damaged.
"""

FOLD = 1 << 24
"""Bytes of text after which the distinct lines are parsed and dropped."""

KINDS = 100_000
"""Limit of different kinds in a trace; a large run has some thousands."""

MEMBERS = 250_000
"""Limit of counted ranks, and of counted communicators."""

LONGEST = 64
"""Limit of characters in the name of an operation."""

LONGEST_PROCESS = 300
"""Limit of characters in the name of a process with its host."""

_MARK = b"\x1f"
# the number of an operation, or the address of a buffer: (nil) for no buffer
_NUMBER = rb"[0-9a-fx()nil]++"
_VARYING = re.compile(
    rb": opCount %(n)s sendbuff %(n)s recvbuff %(n)s (?:acc %(n)s )?(?=count )"
    % {b"n": _NUMBER}  # newer NCCL has acc
)
# `count 1024 datatype 9 op 0 root 0 comm 0x55d0 [nranks=8]`
_FIELDS = re.compile(
    rb"count (\d{1,20}) datatype (\d{1,9}) op \d+ root -?\d+ comm (0x[0-9a-f]+) \[nranks=(\d{1,9})\]"
)
# `host:pid` in `host:pid:tid`
_PROCESS = re.compile(rb"([^\s:]+:\d+):\d+$")
# `[0]`
_GPU = re.compile(rb"\[(\d+)\]")
_LAST_WORD = re.compile(rb"\w+$")
# `AllReduce: opCount`, the first words of a record
_BEGINNING = re.compile(rb"(?<!\w)(\w++): opCount")
# `NCCL CALL ncclAllReduce(7f30,7f31,1024,9,0,0,0x55d0,`: count 1024, datatype 9
_CALL = re.compile(
    rb"NCCL CALL nccl(\w+)\([0-9a-f]+,[0-9a-f]+,(\d{1,20}),(\d{1,9}),\d+,-?\d+,0x[0-9a-f]+,"
)
_CALL_MARKER = b"NCCL CALL nccl"

DATATYPES = (
    ("int8", 1),
    ("uint8", 1),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("bfloat16", 2),
    ("float8e4m3", 1),
    ("float8e5m2", 1),
)
"""Name and bytes of an element, in the order of `ncclDataType_t`."""

PER_RANK = frozenset({"allgather", "reducescatter", "alltoall", "gather", "scatter"})
"""Operations whose `count` is the share of one rank.

Source: NCCL's user guide, "Collective Communication Functions".
"""

# The names of operations that are accepted from damaged records, whose own name may be
# truncated.
OPERATIONS = frozenset(
    (
        *("AllGather", "AllReduce", "AllToAll", "AlltoAll", "Broadcast", "Gather"),
        *("Recv", "Reduce", "ReduceScatter", "Scatter", "Send", "SendRecv"),
    )
)


@dataclass(slots=True)
class RecordSum:
    """Number of records and bytes of their buffers, by kind."""

    records: Counter[Kind] = field(default_factory=Counter)
    volume: Counter[Kind] = field(default_factory=Counter)

    def add(
        self, name: bytes, nranks: bytes, datatype: bytes, count: bytes, times: int
    ) -> None:
        """Add `times` equal records. Raises LogError for more than KINDS kinds."""
        kind, size = get_kind(name.decode(), int(nranks), int(datatype), int(count))
        self.records[kind] += times
        self.volume[kind] += times * size
        if len(self.records) > KINDS:
            raise LogError(
                f"found more than {KINDS} different operations, communicator sizes and datatypes, which is no NCCL "
                "trace: give the files that NCCL wrote"
            )

    def merge(self, other: RecordSum) -> None:
        """Add the sums of `other`."""
        self.records.update(other.records)
        self.volume.update(other.volume)


@dataclass(slots=True)
class Counts:
    """The counts of a trace while it is read."""

    whole: RecordSum = field(default_factory=RecordSum)
    """The complete records."""

    calls: RecordSum = field(default_factory=RecordSum)
    """The NCCL CALL records, which repeat the same operations."""

    damaged: Counter[str] = field(default_factory=Counter)
    """The incomplete records, by operation."""

    ranks: dict[bytes, int] = field(default_factory=dict)
    """The ranks: process and GPU as keys, 0 as values."""

    communicators: dict[bytes, int] = field(default_factory=dict)
    """The sizes of communicators, by process, address and size."""

    unnamed: int = 0
    """Records that name no process."""

    files: int = 0
    traced: set[int] = field(default_factory=set)
    """The numbers of the files that contain records."""

    size: int = 0
    """Bytes of all files."""

    cut: int = 0
    """Compressed files that are truncated."""

    def merge(self, other: Counts) -> None:
        """Add the counts of other pieces of the same files."""
        self.whole.merge(other.whole)
        self.calls.merge(other.calls)
        self.damaged.update(other.damaged)
        for key in other.ranks:
            _add_member(self.ranks, key, 0)
        for key, nranks in other.communicators.items():
            _add_member(self.communicators, key, nranks)
        self.unnamed += other.unnamed
        self.traced |= other.traced


def count_records(pieces: Iterable[bytes], counts: Counts) -> None:
    """Add the records of `pieces`, which contain whole lines, to the counts."""
    lines: Counter[bytes] = Counter()
    pending_bytes = 0  # the text of `lines`, which are parsed after FOLD bytes
    for piece in pieces:
        if b": opCount" in piece or _CALL_MARKER in piece:
            counts.traced.add(counts.files)
            # Without operation number and addresses, most lines are equal.
            lines.update(_VARYING.sub(_MARK, piece).split(b"\n"))
            pending_bytes += len(piece)
        if pending_bytes >= FOLD:
            _parse_lines(lines, counts)
            lines.clear()
            pending_bytes = 0
    _parse_lines(lines, counts)


def cut_pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a text into pieces of whole lines, of PIECE bytes at most.

    The pieces do not depend on the sizes of the blocks.
    """
    text = b""
    for block in blocks:
        text += block
        start = 0
        while len(text) - start >= PIECE:
            end = text.rfind(b"\n", start, start + PIECE) + 1
            if end == 0:  # a line longer than a piece
                end = start + PIECE
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


def _parse_lines(lines: Counter[bytes], counts: Counts) -> None:
    """Count the records of distinct lines, each with its number of occurrences."""
    for line, times in lines.items():
        if _MARK in line or b": opCount" in line:
            _count_line(line, times, counts)
        if _CALL_MARKER in line:
            for name, number, datatype in _CALL.findall(line):
                counts.calls.add(name, b"0", datatype, number, times)


def _count_line(line: bytes, times: int, counts: Counts) -> None:
    """Count the records of a line that occurs `times` times.

    The caller has replaced the text from `: opCount` to `count` of each complete record
    by `_MARK`. A record that begins without `_MARK` is incomplete and counts as damaged.
    """
    # The names of operations whose record is incomplete.
    damaged = _BEGINNING.findall(line) if b": opCount" in line else []
    # "n1:7:8 [0] NCCL INFO AllReduce" before, "count 1024 datatype 9 ..." after a mark.
    # A damaged line may contain several records.
    for before, after in pairwise(line.split(_MARK)):
        prefix, info, name = before.rpartition(b"NCCL INFO ")
        fields = _FIELDS.match(after)
        if fields and info and _LAST_WORD.match(name):
            number, datatype, communicator, nranks = fields.groups()
            counts.whole.add(name, nranks, datatype, number, times)
            _record_rank(prefix, communicator, nranks, times, counts)
        else:
            damaged += _LAST_WORD.findall(before[-LONGEST:])
    for name in damaged:
        text = name.decode()
        counts.damaged[text if text in OPERATIONS else "other"] += times


def _record_rank(
    prefix: bytes, communicator: bytes, nranks: bytes, times: int, counts: Counts
) -> None:
    """Add the rank and communicator of a record with the prefix `host:pid:tid [GPU] `."""
    words = prefix.rsplit(None, 3)
    if words and words[-1].isdigit():
        del words[-1]  # a time, printed by RCCL
    gpu = _GPU.fullmatch(words[-1]) if words else None
    process = None
    if gpu and len(words) > 1:
        process = _PROCESS.search(words[-2][-LONGEST_PROCESS:])
    process_name = process[1] if process else b""
    if not process:
        counts.unnamed += times
    if gpu:
        gpu_number = gpu[1]
        # Only the keys of `ranks` are counted, so its values are 0.
        _add_member(counts.ranks, process_name + b" " + gpu_number, 0)
        key = b" ".join((process_name, communicator, nranks))
        _add_member(counts.communicators, key, int(nranks))


def _add_member(values: dict[bytes, int], key: bytes, value: int) -> None:
    """Add a value, unless there are more than MEMBERS already."""
    if len(values) <= MEMBERS:
        values[key] = value


class Kind(NamedTuple):
    """The properties by which records are counted."""

    operation: str
    nranks: int
    """Size of the communicator; 0 if unknown."""

    datatype: str
    from_bytes: int
    """Lower limit of the buffer size in bytes: 0 or a power of two; -1 if unknown.

    The upper limit is twice the lower one.
    """


@lru_cache(maxsize=4096)
def get_kind(
    operation: str, nranks: int, datatype: int, count: int
) -> tuple[Kind, int]:
    """Return the kind of a record and the bytes of its buffer.

    The buffer has `count` elements; for operations in PER_RANK, `count` elements per
    rank. nccl-tests call this the size of an operation. It is 0 for an unknown datatype.
    """
    if datatype >= len(DATATYPES):
        return Kind(operation, nranks, f"type {datatype}", -1), 0
    name, element_bytes = DATATYPES[datatype]
    size = count * element_bytes
    if operation.lower() in PER_RANK:
        size *= max(nranks, 1)
    # The largest power of two up to the size.
    from_bytes = 1 << (size.bit_length() - 1) if size else 0
    return Kind(operation, nranks, name, from_bytes), size
