"""`llmbench nodes`: find the nodes that slow down jobs, from the runs of a history."""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import HistoryError, describe_os_error
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.redaction import IDENTIFYING
from pytest_llmbench.tools.command_line import (
    Output,
    Subparsers,
    add_acknowledged_option,
    find_acknowledged_file,
    redact_values,
)

if TYPE_CHECKING:
    from pytest_llmbench.history.store import StoreLocation

HELP = (
    "Find nodes that slow down jobs, by comparing the runs of many days on many nodes."
)

EXIT_CODES = "Exit code: 0 no slow node found, 1 slow node found, 2 usage error, 3 no run with known nodes."

KEPT = IDENTIFYING | {"exclude", "too_few_nights"}
"""Keys whose values are identifiers and are not redacted."""


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench nodes`."""
    from pytest_llmbench.tools.history_options import add_history_option

    parser = commands.add_parser(
        "nodes", help=HELP, description=HELP, epilog=EXIT_CODES
    )
    parser.add_argument(
        "--since",
        metavar="DATE",
        type=_parse_day,
        help="Use only runs from this day (UTC) on, for example after a repair (default: the last 60 days with runs).",
    )
    add_history_option(parser)
    add_acknowledged_option(parser, "runs before the last repair of a node are ignored")
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="Write the complete result as JSON to this file.",
    )
    parser.set_defaults(command=_run)


def _parse_day(text: str) -> date:
    """Parse a day such as `2025-11-20`. Raises ArgumentTypeError."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"found {text!r}: expected a day such as 2025-11-20"
        ) from None


def _run(arguments: argparse.Namespace) -> Output:
    """Run `llmbench nodes`. The exit codes are those of EXIT_CODES."""
    from msgspec import convert, structs, to_builtins

    from pytest_llmbench.history.details import has_nodes
    from pytest_llmbench.report.node_text import NodesDocument, describe, format_text
    from pytest_llmbench.session.acknowledgements import read_acknowledged
    from pytest_llmbench.session.node_history import search_history, search_runs
    from pytest_llmbench.tools.history_options import locate_history

    store = locate_history(arguments.history)
    _refuse_history(arguments.json, store)
    now = datetime.now(UTC)
    acknowledged = find_acknowledged_file(arguments.acknowledged)
    last_repair: date | None = None
    if acknowledged:
        last_repair = read_acknowledged(
            acknowledged, (), now.date(), allow_unknown=True
        ).last_repair
    # The later of both days, if any is known.
    since = max(filter(None, (arguments.since, last_repair)), default=None)
    if has_nodes(store):
        search = search_history(store, since)
    else:
        # A history without nodes has no answer: do not compare a year of runs for it.
        search = search_runs((), store.shown, since)
    document = structs.replace(describe(search), searched=now.isoformat())
    redacted_values: dict[str, Any] = redact_values(to_builtins(document), KEPT)
    problem = _write(redacted_values, arguments.json)
    redacted_document = convert(redacted_values, NodesDocument)
    return Output(
        format_text(redacted_document),
        code=2 if problem else redacted_document.exit_code,
        stderr=problem,
        redacted=True,
    )


def _refuse_history(output: Path | None, store: StoreLocation) -> None:
    """Raise HistoryError if the output file is the history itself."""
    if output is None or not store.file:
        return
    if output.resolve() == Path(store.file).resolve():
        raise HistoryError(
            f"--json {output}: this file is the history and would be replaced: give another file name"
        )


def _write(content: dict[str, Any], output: Path | None) -> str:
    """Write the JSON document; return the error message, or "".

    The result is printed even if the file cannot be written.
    """
    from pytest_llmbench.report import document
    from pytest_llmbench.report.output_files import JSON, write_atomically

    try:
        if output is not None:
            write_atomically(output, document.render(content), JSON)
    except OSError as error:
        return f"llmbench: cannot write the result: {escape(describe_os_error(error))}"
    return ""
