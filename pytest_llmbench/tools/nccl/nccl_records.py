"""Pieces of a trace in, counts of its records out; no line is kept.

A record is one rank's part of an operation. Its line repeats but for the number of the
operation and its buffers, so these are taken out first and each distinct line that is
left is looked at once.
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

# Bytes that are searched at once: what stays in a core's cache is searched faster. A
# longer line is torn.
PIECE = 1 << 18

# Bytes of text after which the distinct lines are looked at and forgotten.
FOLD = 1 << 24

# Different kinds of operations that a trace may have: a large run has some thousands.
KINDS = 100_000

# Ranks, and communicators of ranks, that are told apart; what is beyond is not counted.
MEMBERS = 250_000

# Characters that the names of an operation, and of a process with its host, may have.
LONGEST = 64
LONGEST_PROCESS = 300

_MARK = b"\x1f"
# of an operation or a buffer, which is (nil) where there is none
_NUMBER = rb"[0-9a-fx()nil]++"
_VARYING = re.compile(
    rb": opCount %(n)s sendbuff %(n)s recvbuff %(n)s (?:acc %(n)s )?(?=count )"
    % {b"n": _NUMBER}  # newer NCCL has acc
)
_FIELDS = re.compile(
    rb"count (\d{1,20}) datatype (\d{1,9}) op \d+ root -?\d+ comm (0x[0-9a-f]+) \[nranks=(\d{1,9})\]"
)
_PROCESS = re.compile(rb"([^\s:]+:\d+):\d+$")
_GPU = re.compile(rb"\[(\d+)\]")
_LAST_WORD = re.compile(rb"\w+$")
_BEGINNING = re.compile(rb"(?<!\w)(\w++): opCount")
_CALL = re.compile(
    rb"NCCL CALL nccl(\w+)\([0-9a-f]+,[0-9a-f]+,(\d{1,20}),(\d{1,9}),\d+,-?\d+,0x[0-9a-f]+,"
)
_CALL_MARKER = b"NCCL CALL nccl"

# Name and bytes of an element, in the order of `ncclDataType_t`.
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

# Operations whose `count` is the part of one rank (NCCL's user guide, "Collective
# Communication Functions").
PER_RANK = frozenset({"allgather", "reducescatter", "alltoall", "gather", "scatter"})

# Names that a damaged record is believed: a torn one has torn names too.
OPERATIONS = frozenset(
    (
        *("AllGather", "AllReduce", "AllToAll", "AlltoAll", "Broadcast", "Gather"),
        *("Recv", "Reduce", "ReduceScatter", "Scatter", "Send", "SendRecv"),
    )
)


@dataclass(slots=True)
class RecordSum:
    """Records of some kinds and the bytes of their buffers."""

    records: Counter[Kind] = field(default_factory=Counter)
    volume: Counter[Kind] = field(default_factory=Counter)

    def add(
        self, name: bytes, nranks: bytes, datatype: bytes, count: bytes, times: int
    ) -> None:
        """Add equal records."""
        kind, size = get_kind(name.decode(), int(nranks), int(datatype), int(count))
        self.records[kind] += times
        self.volume[kind] += times * size
        if len(self.records) > KINDS:
            raise LogError(
                f"more than {KINDS} different operations, communicator sizes and datatypes: no NCCL trace has so many; "
                "give the files that NCCL wrote"
            )

    def merge(self, other: RecordSum) -> None:
        """Add what another one holds."""
        self.records.update(other.records)
        self.volume.update(other.volume)


@dataclass(slots=True)
class Counts:
    """What was counted."""

    whole: RecordSum = field(default_factory=RecordSum)
    calls: RecordSum = field(
        default_factory=RecordSum
    )  # NCCL CALL, which tells the same operations again
    damaged: Counter[str] = field(default_factory=Counter)  # by operation
    ranks: dict[bytes, int] = field(
        default_factory=dict
    )  # as they name themselves, each with 0
    communicators: dict[bytes, int] = field(
        default_factory=dict
    )  # as they name themselves, with their size
    unnamed: int = 0
    files: int = 0
    traced: set[int] = field(default_factory=set)  # the files that hold records
    size: int = 0  # bytes of all files
    cut: int = 0  # files that are compressed and end early

    def merge(self, other: Counts) -> None:
        """Add what was counted in other pieces of the same files."""
        self.whole.merge(other.whole)
        self.calls.merge(other.calls)
        self.damaged.update(other.damaged)
        for key in other.ranks:
            _remember(self.ranks, key, 0)
        for key, nranks in other.communicators.items():
            _remember(self.communicators, key, nranks)
        self.unnamed += other.unnamed
        self.traced |= other.traced


def count_records(parts: Iterable[bytes], counts: Counts) -> None:
    """Add the records in pieces of whole lines to the counts."""
    lines: Counter[bytes] = Counter()
    pending = 0
    for part in parts:
        if b": opCount" in part or _CALL_MARKER in part:
            counts.traced.add(counts.files)
            lines.update(_VARYING.sub(_MARK, part).split(b"\n"))
            pending += len(part)
        if pending >= FOLD:
            _look_at(lines, counts)
            lines.clear()
            pending = 0
    _look_at(lines, counts)


def cut_pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a text in pieces of whole lines, the same ones wherever it is cut into
    blocks."""
    text = b""
    for block in blocks:
        text += block
        start = 0
        while len(text) - start >= PIECE:
            end = text.rfind(b"\n", start, start + PIECE) + 1 or start + PIECE
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


def _look_at(lines: Counter[bytes], counts: Counts) -> None:
    for line, times in lines.items():
        if _MARK in line or b": opCount" in line:
            _count_line(line, times, counts)
        if _CALL_MARKER in line:
            for name, number, datatype in _CALL.findall(line):
                counts.calls.add(name, b"0", datatype, number, times)


def _count_line(line: bytes, times: int, counts: Counts) -> None:
    """Count the records in a line that was seen so many times: those that begin and are
    not whole are damaged."""
    torn = _BEGINNING.findall(line) if b": opCount" in line else []
    for before, after in pairwise(line.split(_MARK)):
        who, info, name = before.rpartition(b"NCCL INFO ")
        fields = _FIELDS.match(after)
        if fields and info and _LAST_WORD.match(name):
            number, datatype, communicator, nranks = fields.groups()
            counts.whole.add(name, nranks, datatype, number, times)
            _note_rank(who, communicator, nranks, times, counts)
        else:
            torn += _LAST_WORD.findall(before[-LONGEST:])
    for name in torn:
        text = name.decode()
        counts.damaged[text if text in OPERATIONS else "other"] += times


def _note_rank(
    who: bytes, communicator: bytes, nranks: bytes, times: int, counts: Counts
) -> None:
    """Remember the rank and the communicator of a record, of which `who` stands before
    it: `host:pid:tid [GPU] `."""
    words = who.rsplit(None, 3)
    if words and words[-1].isdigit():
        del words[-1]  # RCCL puts a time there
    gpu = _GPU.fullmatch(words[-1]) if words else None
    process = (
        _PROCESS.search(words[-2][-LONGEST_PROCESS:])
        if gpu and len(words) > 1
        else None
    )
    named = process[1] if process else b""
    counts.unnamed += 0 if process else times
    if gpu:
        _remember(counts.ranks, named + b" " + gpu[1], 0)
        _remember(
            counts.communicators, b" ".join((named, communicator, nranks)), int(nranks)
        )


def _remember(values: dict[bytes, int], key: bytes, value: int) -> None:
    if len(values) <= MEMBERS:
        values[key] = value


class Kind(NamedTuple):
    """What is counted together: an operation on one datatype, in communicators and with
    buffers of one size."""

    operation: str
    nranks: int  # 0: not known
    datatype: str
    # Buffers have at least this, a power of two or 0, and less than twice that; -1: the
    # datatype's size is not known.
    from_bytes: int


@lru_cache(maxsize=4096)
def get_kind(
    operation: str, nranks: int, datatype: int, count: int
) -> tuple[Kind, int]:
    """Return the kind of a record and the bytes of its buffer.

    That is `count` elements, and for operations that gather or scatter the part of
    every rank: what nccl-tests call the size of an operation. 0 where the datatype's
    size is not known.
    """
    if datatype >= len(DATATYPES):
        return Kind(operation, nranks, f"type {datatype}", -1), 0
    name, width = DATATYPES[datatype]
    size = count * width * (max(nranks, 1) if operation.lower() in PER_RANK else 1)
    return Kind(
        operation, nranks, name, 1 << size.bit_length() - 1 if size else 0
    ), size
