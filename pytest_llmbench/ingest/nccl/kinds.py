"""What an operation of a trace is: its name, the size of its communicator, its datatype, and the size of its buffer."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

DATATYPES = (
    *(("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8)),
    *(("float16", 2), ("float32", 4), ("float64", 8), ("bfloat16", 2), ("float8e4m3", 1), ("float8e5m2", 1)),
)
"""Name and bytes of an element, in the order of `ncclDataType_t`."""

PER_RANK = frozenset({"allgather", "reducescatter", "alltoall", "gather", "scatter"})
"""Operations whose `count` is the part of one rank (NCCL's user guide, "Collective Communication Functions")."""

OPERATIONS = frozenset(
    (
        *("AllGather", "AllReduce", "AllToAll", "AlltoAll", "Broadcast", "Gather"),
        *("Recv", "Reduce", "ReduceScatter", "Scatter", "Send", "SendRecv"),
    )
)
"""Names that a damaged record is believed: a torn one has torn names too."""


class Kind(NamedTuple):
    """What is counted together: an operation in communicators of `nranks` (0: not known) on one datatype, whose buffers
    have at least `from_bytes`, a power of two or 0, and less than twice that (-1: the datatype's size is not known)."""

    operation: str
    nranks: int
    datatype: str
    from_bytes: int


@lru_cache(maxsize=4096)
def get_kind(operation: str, nranks: int, datatype: int, count: int) -> tuple[Kind, int]:
    """Return the kind of a record and the bytes of its buffer.

    That is `count` elements, and for operations that gather or scatter the part of every rank: what nccl-tests call the
    size of an operation. 0 where the datatype's size is not known.
    """
    if datatype >= len(DATATYPES):
        return Kind(operation, nranks, f"type {datatype}", -1), 0
    name, width = DATATYPES[datatype]
    size = count * width * (max(nranks, 1) if operation.lower() in PER_RANK else 1)
    return Kind(operation, nranks, name, 1 << size.bit_length() - 1 if size else 0), size
