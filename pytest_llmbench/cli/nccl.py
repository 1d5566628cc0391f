"""`llmbench nccl`: what an NCCL trace says."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_llmbench.cli.command import Output, Subparsers, rename_flags
from pytest_llmbench.core.errors import RecordError
from pytest_llmbench.report.whole_file import write_whole


def add(commands: Subparsers) -> None:
    """Declare `llmbench nccl`."""
    parser = commands.add_parser(
        "nccl", help="What an NCCL trace says in sum: operations, volume, sizes, ranks; what changed since another one."
    )
    parser.add_argument(
        "logs", metavar="LOG", nargs="+", help="The files of one trace, a folder or archive of them, or - ; all count."
    )
    parser.add_argument(
        "--against", metavar="LOG|FILE", help="Tell what changed since this trace, a log or what --save wrote."
    )
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="Write what the trace says, to keep beside a recorded baseline."
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="Default: text.")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> Output:
    import json

    from pytest_llmbench.cli import nccl_text as text
    from pytest_llmbench.ingest.nccl.changes import compare
    from pytest_llmbench.ingest.nccl.trace import build_document, read_saved
    from pytest_llmbench.pipeline.option_converters import find_readable

    with rename_flags():
        paths = [find_readable("--llmb-logs", place, Path.cwd()) for place in arguments.logs]
        against = arguments.against and find_readable("--llmb-against", arguments.against, Path.cwd())
    trace = read_saved(paths)
    other = read_saved([against]) if against else None
    if arguments.save:
        _save(build_document(trace), arguments.save)
    comparison = compare(trace, other) if other else None
    code = 1 if comparison and comparison.changes else 0
    if arguments.format == "json":
        return Output(json.dumps(build_document(trace, comparison), indent=1), code)
    return Output(
        text.render_changes(comparison, trace, other) if comparison and other else text.render_page(trace), code
    )


def _save(document: dict[str, Any], path: Path) -> None:
    """Write what a trace says, in the place of an older one; RecordError says why that cannot be."""
    import json

    try:
        write_whole(path, (json.dumps(document, indent=1) + "\n").encode("ascii"), make_folders=False)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}") from error
