"""What changed between two traces of one configuration, which may be of different
length.

The number of steps in a trace is not known. So records are compared for each rank and
at the scale that most operations share; of everything else the shares within an
operation are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.formatting import count_noun, format_difference
from pytest_llmbench.tools.nccl.nccl_records import Kind
from pytest_llmbench.tools.nccl.nccl_trace import SCHEMA, Trace

# Smaller changes of a share or a ratio are not told: traces begin and end within a
# step.
TOLERANCE = 0.01


UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class TraceChange(NamedTuple):
    """A difference between two traces."""

    what: str  # ranks, operation, count, size, communicator or datatype
    operation: str  # empty: of none
    text: str


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """What changed from one trace to another."""

    changes: tuple[TraceChange, ...]
    # how many records a rank has for one of the other trace, as most operations have
    # them
    scale: float
    tolerance: float  # what was not told: 0.01, or the larger share of damaged records


class Facet(NamedTuple):
    """A property of records whose distribution within an operation is compared."""

    what: str
    value: Callable[[Kind], int | str]
    label: Callable[[Kind], str]  # in words


def compare(trace: Trace, other: Trace) -> TraceComparison:
    """Return what changed from another trace to this one; LogError where only one of
    them has whole records."""
    if trace.from_calls != other.from_calls:
        raise LogError(
            "one of the traces holds NCCL CALL records only: record both with NCCL_DEBUG_SUBSYS=COLL"
        )
    tolerance = max(TOLERANCE, trace.damage, other.damage)
    new, old = _count_begun(trace), _count_begun(other)
    ratios = {
        name: (new[name] / max(trace.ranks, 1)) / (old[name] / max(other.ranks, 1))
        for name in sorted(new & old)
    }
    scale = _find_scale(list(ratios.values()), tolerance)
    changes = []
    if trace.ranks != other.ranks:
        changes.append(
            TraceChange(
                "ranks", "", f"{count_noun(trace.ranks, 'rank')}, was {other.ranks}"
            )
        )
    for name in sorted({*new, *old}):
        if name not in ratios:
            text = (
                f"new, {new[name]:,} records"
                if new[name]
                else f"gone, had {old[name]:,} records"
            )
            changes.append(TraceChange("operation", name, text))
            continue
        if abs(ratios[name] / scale - 1) > tolerance:
            ratio = format_difference(ratios[name] / scale)
            text = f"{ratio} for each rank{'' if scale == 1 else ' at this scale'} ({old[name]:,} -> {new[name]:,})"
            changes.append(TraceChange("count", name, text))
        for facet in FACETS:
            changes += _compare_shares(name, facet, trace, other, tolerance)
        changes += _compare_sizes(name, trace, other, tolerance)
    return TraceComparison(tuple(changes), scale, tolerance)


def _count_begun(trace: Trace) -> Counter[str]:
    """Return records by operation, with those that are damaged, whose operation is
    known too."""
    begun = Counter({name: number for name, number in trace.damaged if name != "other"})
    for row in trace.rows:
        begun[row.kind.operation] += row.records
    return begun


def _find_scale(ratios: list[float], tolerance: float) -> float:
    """Return the ratio that most operations have, of several the one nearest to 1; 1
    where it differs by nothing."""

    def count_support(ratio: float) -> tuple[int, float]:
        return sum(abs(share / ratio - 1) <= tolerance for share in ratios), -max(
            ratio, 1 / ratio
        )

    scale = max(ratios, key=count_support, default=1.0)
    return 1.0 if abs(scale - 1) <= tolerance else scale


def _compare_shares(
    name: str, facet: Facet, trace: Trace, other: Trace, tolerance: float
) -> list[TraceChange]:
    """Return the values of a property whose share of an operation's records changed."""
    new, old = _get_shares(name, facet, trace), _get_shares(name, facet, other)
    if not new or not old:
        return []  # every record is damaged
    lost = max(
        trace.damage, other.damage
    )  # what is rare may be missing since it is damaged
    return [
        TraceChange(
            facet.what,
            name,
            f"{label}: {_describe_turn(new.get(label), old.get(label))}",
        )
        for label in dict.fromkeys((*old, *new))
        if abs(new.get(label, 0) - old.get(label, 0))
        > (tolerance if label in new and label in old else lost)
    ]


def _describe_turn(new: float | None, old: float | None) -> str:
    """Return what became of a share, None where there was none."""
    if old is None:
        return f"new, {format_percent(new or 0)} of its records"
    if new is None:
        return f"gone, had {format_percent(old)} of its records"
    return f"{format_percent(new)} of its records, had {format_percent(old)}"


def _get_shares(name: str, facet: Facet, trace: Trace) -> dict[str, float]:
    kinds: Counter[str] = Counter()
    for row in sorted(
        (row for row in trace.rows if row.kind.operation == name),
        key=lambda row: facet.value(row.kind),
    ):
        kinds[facet.label(row.kind)] += row.records
    return {label: number / kinds.total() for label, number in kinds.items()}


def _compare_sizes(
    name: str, trace: Trace, other: Trace, tolerance: float
) -> list[TraceChange]:
    """Return whether the buffers of an operation have another mean size."""
    new, old = _get_mean_size(name, trace), _get_mean_size(name, other)
    if not new or not old or abs(new / old - 1) <= tolerance:
        return []
    text = f"{format_bytes(new)} on average, was {format_bytes(old)} ({format_difference(new / old)})"
    return [TraceChange("size", name, text)]


def _get_mean_size(name: str, trace: Trace) -> float:
    rows = [
        row
        for row in trace.rows
        if row.kind.operation == name and row.kind.from_bytes >= 0
    ]
    return (
        sum(row.bytes for row in rows) / sum(row.records for row in rows)
        if rows
        else 0.0
    )


def format_bytes(size: float) -> str:
    """Return bytes in the largest unit with up to four digits: `512 B`, `1.5 KiB`, `96
    MiB`."""
    power = next(
        (power for power in range(len(UNITS)) if size < 1024 ** (power + 1)),
        len(UNITS) - 1,
    )
    return f"{size / 1024**power:.4g} {UNITS[power]}"


def format_percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{share * 100:.1f} %"


def format_sizes(from_bytes: int) -> str:
    """Return a range of buffer sizes in words."""
    if from_bytes < 1:
        return "empty buffers" if from_bytes == 0 else "buffers of unknown size"
    return f"{format_bytes(from_bytes)} to {format_bytes(2 * from_bytes)}"


def format_communicator(nranks: int) -> str:
    """Return the size of a communicator in words."""
    return f"communicators of {nranks}" if nranks else "communicators of unknown size"


FACETS = (
    Facet(
        "communicator",
        lambda kind: kind.nranks,
        lambda kind: format_communicator(kind.nranks),
    ),
    Facet("datatype", lambda kind: kind.datatype, lambda kind: kind.datatype),
    Facet(
        "size", lambda kind: kind.from_bytes, lambda kind: format_sizes(kind.from_bytes)
    ),
)


def build_document(
    trace: Trace, comparison: TraceComparison | None = None
) -> dict[str, Any]:
    """Return a trace as JSON holds it, with what changed where it was compared."""
    rows = [
        {**row.kind._asdict(), "records": row.records, "bytes": row.bytes}
        for row in trace.rows
    ]
    values = {"llmbench_nccl": SCHEMA, **asdict(trace), "rows": rows}
    if comparison:
        listed = [change._asdict() for change in comparison.changes]
        values["comparison"] = {
            "scale": comparison.scale,
            "tolerance": comparison.tolerance,
            "changes": listed,
        }
    return values
