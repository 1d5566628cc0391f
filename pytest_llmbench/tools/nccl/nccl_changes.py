"""Compare two NCCL traces of one configuration, possibly of different length.

The number of steps in a trace is unknown. So the comparison counts records per rank,
divided by the ratio that most operations have in common (the scale). Communicators,
datatypes and buffer sizes are compared as shares of an operation's records.
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

TOLERANCE = 0.01
"""Changes of a share or a ratio up to this are ignored.

Traces begin and end in the middle of a step, which causes small differences.
"""


UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class TraceChange(NamedTuple):
    """A difference between two traces."""

    what: str
    """The changed property: ranks, operation, count, size, communicator or datatype."""

    operation: str
    """The operation, or "" for a change of the whole trace."""

    text: str


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """The changes from one trace to another."""

    changes: tuple[TraceChange, ...]
    scale: float
    """The ratio of records per rank that most operations have in common."""

    tolerance: float
    """Largest ignored change: TOLERANCE, or the share of damaged records if larger."""


class Facet(NamedTuple):
    """A property of records whose distribution within an operation is compared."""

    what: str
    """The name of the property in TraceChange."""

    value: Callable[[Kind], int | str]
    """Reads the property; its values sort the labels."""

    label: Callable[[Kind], str]
    """Formats the property."""


def compare(trace: Trace, other: Trace) -> TraceComparison:
    """List the changes from the trace `other` to `trace`.

    Raises LogError if one of them has NCCL CALL records only.
    """
    if trace.from_calls != other.from_calls:
        raise LogError(
            "one of the traces contains only NCCL CALL records: record both with NCCL_DEBUG_SUBSYS=COLL"
        )
    tolerance = max(TOLERANCE, trace.damage, other.damage)
    new, old = _count_all_records(trace), _count_all_records(other)
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


def _count_all_records(trace: Trace) -> Counter[str]:
    """Count the records of each operation, including damaged records.

    Damaged records of unknown operations are left out.
    """
    counts = Counter(
        {name: number for name, number in trace.damaged if name != "other"}
    )
    for row in trace.rows:
        counts[row.kind.operation] += row.records
    return counts


def _find_scale(ratios: list[float], tolerance: float) -> float:
    """Return the ratio that most operations share within the tolerance.

    Ties go to the ratio nearest to 1. A scale within the tolerance of 1 is returned as
    1.0.
    """

    def count_support(ratio: float) -> tuple[int, float]:
        return sum(abs(share / ratio - 1) <= tolerance for share in ratios), -max(
            ratio, 1 / ratio
        )

    scale = max(ratios, key=count_support, default=1.0)
    return 1.0 if abs(scale - 1) <= tolerance else scale


def _compare_shares(
    name: str, facet: Facet, trace: Trace, other: Trace, tolerance: float
) -> list[TraceChange]:
    """List the values of a property whose share of an operation's records changed."""
    new, old = _get_shares(name, facet, trace), _get_shares(name, facet, other)
    if not new or not old:
        return []  # every record is damaged
    lost = max(
        trace.damage, other.damage
    )  # the records of a rare value may all be damaged
    return [
        TraceChange(
            facet.what,
            name,
            f"{label}: {_describe_share_change(new.get(label), old.get(label))}",
        )
        for label in dict.fromkeys((*old, *new))
        if abs(new.get(label, 0) - old.get(label, 0))
        > (tolerance if label in new and label in old else lost)
    ]


def _describe_share_change(new: float | None, old: float | None) -> str:
    """Describe the change of a share; None for a value without records."""
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
    """Return a change if the mean buffer size of an operation changed, else []."""
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
    """Format a size with up to four digits: `512 B`, `1.5 KiB`, `96 MiB`."""
    power = next(
        (power for power in range(len(UNITS)) if size < 1024 ** (power + 1)),
        len(UNITS) - 1,
    )
    return f"{size / 1024**power:.4g} {UNITS[power]}"


def format_percent(share: float) -> str:
    """Format a fraction as a percentage."""
    return f"{share * 100:.1f} %"


def format_sizes(from_bytes: int) -> str:
    """Format a range of buffer sizes: `1 KiB to 2 KiB`."""
    if from_bytes < 1:
        return "empty buffers" if from_bytes == 0 else "buffers of unknown size"
    return f"{format_bytes(from_bytes)} to {format_bytes(2 * from_bytes)}"


def format_communicator(nranks: int) -> str:
    """Format the size of a communicator: `communicators of 8`."""
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
    """Convert a trace, and its comparison if there is one, to JSON values."""
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
