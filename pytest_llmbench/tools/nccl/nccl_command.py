"""`llmbench nccl`: summarize or compare NCCL traces, for a terminal of 80 columns."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import RecordError
from pytest_llmbench.core.formatting import clip, count_noun, escape
from pytest_llmbench.report.output_files import TRACE, write_atomically
from pytest_llmbench.tools.command_line import (
    WIDTH,
    Output,
    Subparsers,
    redact_values,
    rename_flags,
)

if TYPE_CHECKING:
    from pytest_llmbench.tools.nccl.nccl_changes import TraceChange, TraceComparison
    from pytest_llmbench.tools.nccl.nccl_trace import Trace, TraceRow

# `main` imports this module for every command, so functions import the trace readers.

HINTS = {
    "ranks": "another number of GPUs, or missing files of some ranks",
    "operation": "another way to shard (DDP or a distributed optimizer or FSDP; pipeline stages; expert parallelism), "
    "another version of the framework or of NCCL",
    "count": "gradient accumulation, number of layers or buckets, overlap settings",
    "communicator": "parallelism (TP, PP, CP, EP, DP)",
    "datatype": "precision, and the precision of gradient reduction; old versions of NCCL print int8 and bytes for "
    "AllGather and Broadcast",
    "size": "micro batch, sequence length, bucket size, hidden size, precision",
}
"""Possible causes in the run, by changed property of the trace."""


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench nccl`."""
    parser = commands.add_parser(
        "nccl",
        help="Summarize an NCCL trace: operations, volume, sizes, ranks; or list its changes from another trace.",
    )
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        help="The files of one trace, a folder or archive of them, or - for standard input.",
    )
    parser.add_argument(
        "--against",
        metavar="LOG|FILE",
        help="List the changes since this trace: a log, or a file written by --save.",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        type=Path,
        help="Write the summary of the trace to this file, for a later --against.",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="Output format (default: text).",
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> Output:
    """Run `llmbench nccl`. The exit code is 1 if the traces differ."""
    import json

    from pytest_llmbench.session.settings import find_readable
    from pytest_llmbench.tools.nccl.nccl_changes import build_document, compare
    from pytest_llmbench.tools.nccl.nccl_trace import read_saved_or_logs

    directory = Path.cwd()
    against: Path | None = None
    with rename_flags():
        paths = [
            find_readable("--llmb-logs", path, directory) for path in arguments.logs
        ]
        if arguments.against:
            against = find_readable("--llmb-against", arguments.against, directory)
    trace = read_saved_or_logs(paths)
    earlier = read_saved_or_logs([against]) if against else None
    if arguments.save:
        _save(redact_values(build_document(trace)), arguments.save)
    comparison = compare(trace, earlier) if earlier else None
    code = 1 if comparison and comparison.changes else 0
    if arguments.format == "json":
        document = redact_values(build_document(trace, comparison))
        return Output(json.dumps(document, indent=1), code, redacted=True)
    if comparison and earlier:
        return Output(render_changes(comparison, trace, earlier), code)
    return Output(render_page(trace), code)


def _save(document: dict[str, Any], path: Path) -> None:
    """Write the summary of a trace; replace an older summary. Raises RecordError."""
    import json

    try:
        write_atomically(
            path,
            (json.dumps(document, indent=1) + "\n").encode("ascii"),
            TRACE,
            make_folders=False,
        )
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}") from error


# --- for a terminal -------------------------------------------------------------------


def render_page(trace: Trace) -> str:
    """Format the summary of a trace: head, operations, buffer sizes and notes."""
    sections = [
        _render_head(trace),
        _render_operations(trace.rows),
        _render_histogram(trace.rows),
        _render_notes(trace),
    ]
    return "\n\n".join(filter(None, sections))


def render_changes(comparison: TraceComparison, trace: Trace, earlier: Trace) -> str:
    """Format the changes from the trace `earlier` to `trace`, with possible causes."""
    from pytest_llmbench.tools.nccl.nccl_changes import format_percent

    ratio = "as many"
    if comparison.scale != 1:
        ratio = (
            f"{comparison.scale:.4g} times as many: counts are compared at this scale"
        )
    # Damaged records have raised the tolerance above its usual value.
    is_damaged = max(trace.damage, earlier.damage) == comparison.tolerance
    cause = ", because so many records are damaged" if is_damaged else ""
    summary = (
        f"{trace.begun:,} records of {count_noun(trace.ranks, 'rank')} against {earlier.begun:,} of {earlier.ranks}; "
        f"for each rank {ratio}. "
        f"Changes up to {format_percent(comparison.tolerance)} are not listed{cause}."
    )
    lines = [_wrap(summary)]
    if not comparison.changes:
        return "\n".join([*lines, "", "nothing changed"])
    lines += ["", f"{count_noun(len(comparison.changes), 'change')}:"]
    lines += [_wrap(_format_change(change), "  ") for change in comparison.changes]
    changed_properties = {change.what for change in comparison.changes}
    lines += ["", "possible causes:"]
    for what, hint in HINTS.items():
        if what in changed_properties:
            lines.append(_wrap(f"{hint} ({what})", "  "))
    return "\n".join(lines)


def _format_change(change: TraceChange) -> str:
    if not change.operation:  # a change of the whole trace
        return change.text
    return f"{escape(change.operation)}: {change.text}"


def _render_head(trace: Trace) -> str:
    """Format the first lines: files and records, damage, communicators."""
    from pytest_llmbench.tools.nccl.nccl_changes import format_percent

    more_than = "more than " if trace.limited else ""
    in_files = f" in {trace.traced}" if trace.traced < trace.files else ""
    head = f"{count_noun(trace.files, 'file')}, {trace.bytes:,} bytes; {trace.records:,} records{in_files}"
    if trace.ranks:
        on_hosts = f" on {count_noun(trace.hosts, 'host')}" if trace.hosts else ""
        head += f" of {more_than}{count_noun(trace.ranks, 'rank')}{on_hosts}"
    lines = [head]
    if trace.damaged:
        by_operation = ", ".join(f"{number:,} {name}" for name, number in trace.damaged)
        lines.append(
            f"damaged: {trace.begun - trace.records:,} records ({format_percent(trace.damage)}: {by_operation}), "
            "not counted below"
        )
    if trace.communicators:
        by_size = ", ".join(
            f"{number:,} of {nranks} ranks" for nranks, number in trace.communicators
        )
        lines.append(
            f"communicators, counted once per member rank: {more_than}{by_size}"
        )
    return "\n".join(map(_wrap, lines))


def _render_operations(rows: Sequence[TraceRow]) -> str:
    """Format a line for each operation, communicator size and datatype."""
    from pytest_llmbench.tools.nccl.nccl_changes import format_bytes

    records: Counter[tuple[str, int, str]] = Counter()
    volume: Counter[tuple[str, int, str]] = Counter()
    for row in rows:
        key = (row.kind.operation, row.kind.nranks, row.kind.datatype)
        records[key] += row.records
        volume[key] += row.bytes
    lines = [
        f"{'operation':<22}{'ranks':>6}  {'datatype':<12}{'records':>13}{'volume':>12}{'mean':>12}"
    ]
    for key in sorted(records):
        name, nranks, datatype = key
        total_bytes, mean_bytes = "-", "-"
        if volume[key]:
            total_bytes = format_bytes(volume[key])
            mean_bytes = format_bytes(volume[key] / records[key])
        lines.append(
            f"{clip(escape(name), 21):<22}{nranks or '?':>6}  {clip(escape(datatype), 11):<12}{records[key]:>13,}"
            f"{total_bytes:>12}{mean_bytes:>12}"
        )
    total = format_bytes(sum(volume.values()))
    lines.append(f"{'all':<22}{'':>6}  {'':<12}{records.total():>13,}{total:>12}")
    return "\n".join(lines)


def _render_histogram(rows: Sequence[TraceRow]) -> str:
    """Format a histogram of buffer sizes with the operations of each size."""
    from pytest_llmbench.tools.nccl.nccl_changes import format_sizes

    # By the lower limit of the buffer size.
    records: Counter[int] = Counter()
    names: dict[int, set[str]] = {}
    for row in rows:
        records[row.kind.from_bytes] += row.records
        names.setdefault(row.kind.from_bytes, set()).add(row.kind.operation)
    most_records = max(records.values(), default=1)
    lines = [f"{'buffer size':<22}{'records':>13}"]
    for from_bytes, count in sorted(records.items()):
        bar = "#" * max(1, round(count / most_records * 10))
        operations = clip(escape(", ".join(sorted(names[from_bytes]))), 31)
        line = f"{format_sizes(from_bytes):<22}{count:>13,}  {bar:<10} {operations}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _render_notes(trace: Trace) -> str:
    """Render the notes on what was counted, and what was not."""
    from pytest_llmbench.tools.nccl.nccl_records import MEMBERS, PER_RANK

    operations = {row.kind.operation for row in trace.rows}
    per_rank = sorted(name for name in operations if name.lower() in PER_RANK)
    exception = ""
    if per_rank:
        exception = (
            f", x ranks for {', '.join(per_rank)}, whose count is the share of one rank"
        )
    lines = [
        "A record is one rank's share of an operation. "
        f"Volume is the size of its buffer: count x bytes of the datatype{exception}."
    ]
    if trace.from_calls:
        lines.append(
            "Only NCCL CALL records: they do not contain communicators, so volume is not multiplied by ranks."
        )
    elif trace.calls:
        lines.append(
            f"{trace.calls:,} NCCL CALL records repeat the same operations and are not counted."
        )
    unsized = sum(row.records for row in trace.rows if row.kind.from_bytes < 0)
    if unsized:
        lines.append(
            f"{unsized:,} records have a datatype of unknown size: no volume includes them."
        )
    if trace.unnamed:
        # If other records name a process, these are dropped (`_drop_unnamed`).
        consequence = " and belong to no rank here"
        if not trace.hosts:
            consequence = ": ranks are identified by the number of their GPU alone"
        lines.append(f"{trace.unnamed:,} records name no process{consequence}.")
    if trace.limited:
        lines.append(
            f"At most {MEMBERS:,} ranks, and as many communicators, are counted."
        )
    if trace.cut:
        lines.append(
            f"{count_noun(trace.cut, 'compressed file')} truncated: the text before the end is counted."
        )
    return "\n".join(map(_wrap, lines))


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent and indent + "  "
    )
