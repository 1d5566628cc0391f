"""`llmbench nccl`: what an NCCL trace says, and what changed since another one, for a
terminal of 80 columns."""

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

# What reads traces is imported where it is used: `main` imports this for every command.

HINTS = {
    "ranks": "another number of GPUs, or files of some ranks that are missing",
    "operation": "another way to shard (DDP or a distributed optimizer or FSDP; pipeline stages; expert parallelism), "
    "another version of the framework or of NCCL",
    "count": "gradient accumulation, number of layers or buckets, overlap settings",
    "communicator": "parallelism (TP, PP, CP, EP, DP)",
    "datatype": "precision, and the precision that gradients are reduced in; old versions of NCCL print int8 and bytes "
    "for AllGather and Broadcast",
    "size": "micro batch, sequence length, bucket size, hidden size, precision",
}
"""What may have changed in a run, by what changed in its trace."""


def add(commands: Subparsers) -> None:
    """Declare `llmbench nccl`."""
    parser = commands.add_parser(
        "nccl",
        help="What an NCCL trace says in sum: operations, volume, sizes, ranks; what changed since another one.",
    )
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        help="The files of one trace, a folder or archive of them, or - ; all count.",
    )
    parser.add_argument(
        "--against",
        metavar="LOG|FILE",
        help="Tell what changed since this trace, a log or what --save wrote.",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        type=Path,
        help="Write what the trace says, to keep beside a recorded baseline.",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="Default: text."
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> Output:
    import json

    from pytest_llmbench.session.settings import find_readable
    from pytest_llmbench.tools.nccl.nccl_changes import build_document, compare
    from pytest_llmbench.tools.nccl.nccl_trace import read_saved

    with rename_flags():
        paths = [
            find_readable("--llmb-logs", place, Path.cwd()) for place in arguments.logs
        ]
        against = arguments.against and find_readable(
            "--llmb-against", arguments.against, Path.cwd()
        )
    trace = read_saved(paths)
    other = read_saved([against]) if against else None
    if arguments.save:
        _save(redact_values(build_document(trace)), arguments.save)
    comparison = compare(trace, other) if other else None
    code = 1 if comparison and comparison.changes else 0
    if arguments.format == "json":
        return Output(
            json.dumps(redact_values(build_document(trace, comparison)), indent=1),
            code,
            redacted=True,
        )
    return Output(
        render_changes(comparison, trace, other)
        if comparison and other
        else render_page(trace),
        code,
    )


def _save(document: dict[str, Any], path: Path) -> None:
    """Write what a trace says, in the place of an older one; RecordError says why that
    cannot be."""
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
    """Return everything that a trace says."""
    parts = [
        _render_head(trace),
        _render_operations(trace.rows),
        _render_histogram(trace.rows),
        _render_notes(trace),
    ]
    return "\n\n".join(filter(None, parts))


def render_changes(comparison: TraceComparison, trace: Trace, other: Trace) -> str:
    """Return what changed, and where to look for the reason; `trace` and `other` are
    what was compared."""
    from pytest_llmbench.tools.nccl.nccl_changes import format_percent

    scaled = f"{comparison.scale:.4g} times as many: counts are compared at this scale"
    lost = max(trace.damage, other.damage) == comparison.tolerance
    summary = (
        f"{trace.begun:,} records of {count_noun(trace.ranks, 'rank')} against {other.begun:,} of {other.ranks}; "
        f"for each rank {'as many' if comparison.scale == 1 else scaled}. "
        f"Changes up to {format_percent(comparison.tolerance)} are not told"
        f"{', since so many records are damaged' if lost else ''}."
    )
    lines = [_wrap(summary)]
    if not comparison.changes:
        return "\n".join([*lines, "", "nothing changed"])
    lines += ["", f"{count_noun(len(comparison.changes), 'change')}:"]
    lines += [_wrap(_format_change(change), "  ") for change in comparison.changes]
    kinds = {change.what for change in comparison.changes}
    lines += [
        "",
        "look at:",
        *(
            _wrap(f"{hint} ({what})", "  ")
            for what, hint in HINTS.items()
            if what in kinds
        ),
    ]
    return "\n".join(lines)


def _format_change(change: TraceChange) -> str:
    return (
        f"{escape(change.operation)}: {change.text}"
        if change.operation
        else change.text
    )


def _render_head(trace: Trace) -> str:
    from pytest_llmbench.tools.nccl.nccl_changes import format_percent

    more = "more than " if trace.limited else ""
    members = f" on {count_noun(trace.hosts, 'host')}" if trace.hosts else ""
    held = f" in {trace.traced}" if trace.traced < trace.files else ""
    text = f"{count_noun(trace.files, 'file')}, {trace.bytes:,} bytes; {trace.records:,} records{held}"
    lines = [
        f"{text} of {more}{count_noun(trace.ranks, 'rank')}{members}"
        if trace.ranks
        else text
    ]
    if trace.damaged:
        numbers = ", ".join(f"{number:,} {name}" for name, number in trace.damaged)
        lines.append(
            f"damaged: {trace.begun - trace.records:,} records ({format_percent(trace.damage)}: {numbers}), "
            "in no number below"
        )
    if trace.communicators:
        numbers = ", ".join(
            f"{number:,} of {nranks} ranks" for nranks, number in trace.communicators
        )
        lines.append(f"communicators, one for each rank in it: {more}{numbers}")
    return "\n".join(map(_wrap, lines))


def _render_operations(rows: Sequence[TraceRow]) -> str:
    """Return a line for each operation in communicators of a size and on a datatype."""
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
        cells = (
            (format_bytes(volume[key]), format_bytes(volume[key] / records[key]))
            if volume[key]
            else ("-", "-")
        )
        lines.append(
            f"{clip(escape(name), 21):<22}{nranks or '?':>6}  {clip(escape(datatype), 11):<12}{records[key]:>13,}"
            f"{cells[0]:>12}{cells[1]:>12}"
        )
    total = format_bytes(sum(volume.values()))
    lines.append(f"{'all':<22}{'':>6}  {'':<12}{records.total():>13,}{total:>12}")
    return "\n".join(lines)


def _render_histogram(rows: Sequence[TraceRow]) -> str:
    """Return how many records have buffers of which size, and of which operations they
    are."""
    from pytest_llmbench.tools.nccl.nccl_changes import format_sizes

    records: Counter[int] = Counter()
    names: dict[int, set[str]] = {}
    for row in rows:
        records[row.kind.from_bytes] += row.records
        names.setdefault(row.kind.from_bytes, set()).add(row.kind.operation)
    most = max(records.values(), default=1)
    lines = [f"{'size of a buffer':<22}{'records':>13}"]
    for size in sorted(records):
        bar = "#" * max(1, round(records[size] / most * 10))
        operations = clip(escape(", ".join(sorted(names[size]))), 31)
        lines.append(
            f"{format_sizes(size):<22}{records[size]:>13,}  {bar:<10} {operations}".rstrip()
        )
    return "\n".join(lines)


def _render_notes(trace: Trace) -> str:
    from pytest_llmbench.tools.nccl.nccl_records import MEMBERS, PER_RANK

    names = sorted(
        {
            row.kind.operation
            for row in trace.rows
            if row.kind.operation.lower() in PER_RANK
        }
    )
    lines = [
        "A record is one rank's part of an operation. Volume is the size of its buffer: count x bytes of the datatype"
        + (
            f", x ranks for {', '.join(names)}, whose count is the part of one rank."
            if names
            else "."
        )
    ]
    if trace.from_calls:
        lines.append(
            "Only NCCL CALL records: they do not tell communicators, so volume leaves their size out."
        )
    elif trace.calls:
        lines.append(
            f"{trace.calls:,} NCCL CALL records tell operations a second time and are not counted."
        )
    if unknown := sum(row.records for row in trace.rows if row.kind.from_bytes < 0):
        lines.append(
            f"{unknown:,} records have a datatype of unknown size: they are in no volume."
        )
    if trace.unnamed:
        consequence = (
            " and are of no rank here"
            if trace.hosts
            else ": ranks are told apart by their GPU's number alone"
        )
        lines.append(f"{trace.unnamed:,} records name no process{consequence}.")
    if trace.limited:
        lines.append(
            f"No more than {MEMBERS:,} ranks, and as many communicators, are told apart."
        )
    if trace.cut:
        lines.append(
            f"{count_noun(trace.cut, 'compressed file')} ended early: what was before that is counted."
        )
    return "\n".join(map(_wrap, lines))


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent and indent + "  "
    )
