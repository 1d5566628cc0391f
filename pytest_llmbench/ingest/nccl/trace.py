"""What a trace says in sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from pytest_llmbench.ingest.nccl.records import MEMBERS, Counts, Kind


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A kind of operation, its records, and the bytes of all their buffers."""

    kind: Kind
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace says in sum.

    `damaged`: records that begin and are not whole, by operation; they are in no row. `communicators`: how many there
    are of each size, one for each rank in it; `limited` says that there are more, or more ranks, than were told apart.
    `calls` (NCCL CALL) tell the same operations again; without records the rows are made of them (`from_calls`).
    `unnamed` records name no process; Of the `files` `traced` ones hold records, and `cut` ones are
    compressed and end early; `bytes` of all their text.
    """

    rows: tuple[TraceRow, ...]
    damaged: tuple[tuple[str, int], ...]
    communicators: tuple[tuple[int, int], ...]
    ranks: int
    hosts: int
    limited: bool
    unnamed: int
    calls: int
    from_calls: bool
    files: int
    traced: int
    bytes: int
    cut: int

    @property
    def records(self) -> int:
        """Number of whole records."""
        return sum(row.records for row in self.rows)

    @property
    def begun(self) -> int:
        """Number of records, whole or damaged."""
        return self.records + sum(number for _, number in self.damaged)

    @property
    def damage(self) -> float:
        """Share of the records that are damaged."""
        return 1 - self.records / self.begun if self.begun else 0.0


def sum_counts(counts: Counts) -> Trace:
    """Return what was counted."""
    from_calls = not counts.whole.records and not counts.damaged
    counted = counts.calls if from_calls else counts.whole
    ranks, communicators = _drop_unnamed(counts.ranks), _drop_unnamed(counts.communicators)
    return Trace(
        rows=tuple(TraceRow(kind, counted.records[kind], counted.volume[kind]) for kind in sorted(counted.records)),
        damaged=tuple(sorted(counts.damaged.items())),
        communicators=tuple(sorted(Counter(counts.communicators[key] for key in communicators).items())),
        ranks=len(ranks),
        hosts=len({host for host, colon, _ in (rank.partition(b":") for rank in ranks) if colon}),
        limited=max(len(counts.ranks), len(counts.communicators)) > MEMBERS,
        unnamed=counts.unnamed,
        calls=counts.calls.records.total(),
        from_calls=from_calls,
        files=counts.files,
        traced=len(counts.traced),
        bytes=counts.size,
        cut=counts.cut,
    )


def _drop_unnamed(keys: Collection[bytes]) -> list[bytes]:
    """Leave out what names no process beside others that do, and hosts with torn text before their names (`0stone:7 0`
    where there is `stone:7 0`)."""
    named = {key for key in keys if not key.startswith(b" ")} or set(keys)
    return [key for key in named if not any(key[cut:] in named for cut in range(1, key.find(b":")))]
