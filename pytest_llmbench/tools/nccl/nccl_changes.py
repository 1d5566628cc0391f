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


def compare(trace: Trace, earlier: Trace) -> TraceComparison:
    """List the changes from the trace `earlier` to `trace`.

    Raises LogError if one of them has NCCL CALL records only.
    """
    if trace.from_calls != earlier.from_calls:
        raise LogError(
            "one of the traces contains only NCCL CALL records: record both with NCCL_DEBUG_SUBSYS=COLL"
        )
    tolerance = max(TOLERANCE, trace.damage, earlier.damage)
    new, old = _count_all_records(trace), _count_all_records(earlier)
    # Without a known rank, the records count as those of one rank.
    new_ranks, old_ranks = max(trace.ranks, 1), max(earlier.ranks, 1)
    # Records per rank, new / old, of each operation in both traces.
    ratios = {
        name: (new[name] / new_ranks) / (old[name] / old_ranks)
        for name in sorted(new & old)
    }
    # A trace of more steps has more records of every operation: not a change.
    scale = _find_scale(list(ratios.values()), tolerance)
    at_scale = "" if scale == 1 else " at this scale"
    changes = []
    if trace.ranks != earlier.ranks:
        text = f"{count_noun(trace.ranks, 'rank')}, was {earlier.ranks}"
        changes.append(TraceChange("ranks", operation="", text=text))
    for name in sorted({*new, *old}):
        if name not in ratios:  # only one of the traces has records of it
            text = f"gone, had {old[name]:,} records"
            if new[name]:
                text = f"new, {new[name]:,} records"
            changes.append(TraceChange("operation", name, text))
            continue
        scaled_ratio = ratios[name] / scale
        if abs(scaled_ratio - 1) > tolerance:
            difference = format_difference(scaled_ratio)
            text = (
                f"{difference} for each rank{at_scale} ({old[name]:,} -> {new[name]:,})"
            )
            changes.append(TraceChange("count", name, text))
        for facet in FACETS:
            changes += _compare_shares(name, facet, trace, earlier, tolerance)
        changes += _compare_sizes(name, trace, earlier, tolerance)
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

    def rank_candidate(candidate: float) -> tuple[int, float]:
        """Return (number of operations with this ratio, negative distance from 1)."""
        supporters = sum(abs(ratio / candidate - 1) <= tolerance for ratio in ratios)
        distance_from_1 = max(candidate, 1 / candidate)
        return supporters, -distance_from_1

    scale = max(ratios, key=rank_candidate, default=1.0)
    return 1.0 if abs(scale - 1) <= tolerance else scale


def _compare_shares(
    name: str, facet: Facet, trace: Trace, earlier: Trace, tolerance: float
) -> list[TraceChange]:
    """List the values of a property, such as a datatype, whose share changed.

    Compares the shares of the records of one operation in two traces.
    """
    new, old = _get_shares(name, facet, trace), _get_shares(name, facet, earlier)
    if not new or not old:
        return []  # every record is damaged
    changes = []
    for label in dict.fromkeys((*old, *new)):
        limit = tolerance
        if label not in new or label not in old:
            # Any new or missing value counts, unless its few records may be damaged.
            limit = max(trace.damage, earlier.damage)
        if abs(new.get(label, 0) - old.get(label, 0)) > limit:
            change = _describe_share_change(new.get(label), old.get(label))
            changes.append(TraceChange(facet.what, name, f"{label}: {change}"))
    return changes


def _describe_share_change(new: float | None, old: float | None) -> str:
    """Describe the change of a share; None for a value without records."""
    if old is None:
        return f"new, {format_percent(new or 0)} of its records"
    if new is None:
        return f"gone, had {format_percent(old)} of its records"
    return f"{format_percent(new)} of its records, had {format_percent(old)}"


def _get_shares(name: str, facet: Facet, trace: Trace) -> dict[str, float]:
    """Return the share of an operation's records by label, ordered by value."""
    rows = [row for row in trace.rows if row.kind.operation == name]
    records: Counter[str] = Counter()
    for row in sorted(rows, key=lambda row: facet.value(row.kind)):
        records[facet.label(row.kind)] += row.records
    return {label: number / records.total() for label, number in records.items()}


def _compare_sizes(
    name: str, trace: Trace, earlier: Trace, tolerance: float
) -> list[TraceChange]:
    """Return a change if the mean buffer size of an operation changed, else []."""
    new, old = _get_mean_size(name, trace), _get_mean_size(name, earlier)
    if not new or not old or abs(new / old - 1) <= tolerance:
        return []
    text = f"{format_bytes(new)} on average, was {format_bytes(old)} ({format_difference(new / old)})"
    return [TraceChange("size", name, text)]


def _get_mean_size(name: str, trace: Trace) -> float:
    """Return the mean buffer size of an operation in bytes; 0.0 if unknown."""
    rows_of_operation = [row for row in trace.rows if row.kind.operation == name]
    rows = [row for row in rows_of_operation if row.kind.from_bytes >= 0]
    if not rows:
        return 0.0
    return sum(row.bytes for row in rows) / sum(row.records for row in rows)


def format_bytes(size: float) -> str:
    """Format a size with up to four digits: `512 B`, `1.5 KiB`, `96 MiB`."""
    last = len(UNITS) - 1
    power = 0
    while size >= 1024 ** (power + 1) and power < last:
        power += 1
    return f"{size / 1024**power:.4g} {UNITS[power]}"


def format_percent(share: float) -> str:
    """Format a fraction as a percentage."""
    return f"{share * 100:.1f} %"


def format_sizes(from_bytes: int) -> str:
    """Format the range of buffer sizes that begins at `from_bytes`: `1 KiB to 2 KiB`.

    Ranges are powers of two (`get_kind`); -1 represents an unknown size.
    """
    if from_bytes < 0:
        return "buffers of unknown size"
    if from_bytes == 0:
        return "empty buffers"
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
