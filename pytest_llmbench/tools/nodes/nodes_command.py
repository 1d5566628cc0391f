"""`llmbench nodes`: which nodes make jobs slow, by the runs of a history."""

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
    add_acknowledged,
    find_acknowledged,
    redact_values,
)

if TYPE_CHECKING:
    from pytest_llmbench.history.store import StoreLocation

WHAT = (
    "Which nodes make jobs slow, by the runs of many nights, each on nodes of its own."
)

EXIT_CODES = "Exit code: 0 no node is named, 1 a node is, 2 usage error, 3 nothing to tell: no run with nodes."

KEPT = IDENTIFYING | {"exclude", "too_few_nights"}
"""What identifies something: no secret is looked for there."""


def add(commands: Subparsers) -> None:
    """Declare `llmbench nodes`."""
    from pytest_llmbench.tools.history_options import add_history

    parser = commands.add_parser(
        "nodes", help=WHAT, description=WHAT, epilog=EXIT_CODES
    )
    parser.add_argument(
        "--since",
        metavar="DATE",
        type=_parse_day,
        help="Only runs from this day (UTC) on say something of nodes, as after a repair (default: of the last 60 "
        "nights).",
    )
    add_history(parser)
    add_acknowledged(parser, "what is said of nodes begins with the last repair of one")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="Write all of it as a JSON document."
    )
    parser.set_defaults(command=_run)


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"found {text!r}: expected a day such as 2025-11-20"
        ) from None


def _run(arguments: argparse.Namespace) -> Output:
    from msgspec import convert, structs, to_builtins

    from pytest_llmbench.history.details import has_nodes
    from pytest_llmbench.report.node_text import NodesDocument, describe, format_text
    from pytest_llmbench.session.acknowledgements import read_acknowledged
    from pytest_llmbench.session.node_history import search_history, search_runs
    from pytest_llmbench.tools.history_options import open_history

    place = open_history(arguments.history)
    _refuse_history(arguments.json, place)
    now = datetime.now(UTC)
    acknowledged = find_acknowledged(arguments.acknowledged)
    repaired = (
        read_acknowledged(acknowledged, (), now.date(), others=True).last_repair
        if acknowledged
        else None
    )
    since = max(filter(None, (arguments.since, repaired)), default=None)
    # Without any node, all runs of a year would be compared only to report that.
    search = (
        search_history(place, since)
        if has_nodes(place)
        else search_runs((), place.shown, since)
    )
    found = structs.replace(describe(search), searched=now.isoformat())
    plain: dict[str, Any] = redact_values(to_builtins(found), KEPT)
    problem = _write(plain, arguments.json)
    shown = convert(plain, NodesDocument)
    return Output(
        format_text(shown), 2 if problem else shown.exit_code, problem, redacted=True
    )


def _refuse_history(output: Path | None, place: StoreLocation) -> None:
    if (
        output is not None
        and place.file
        and output.resolve() == Path(place.file).resolve()
    ):
        raise HistoryError(
            f"--json {output}: found the history itself, which it would replace: give another name"
        )


def _write(described: dict[str, Any], output: Path | None) -> str:
    """Write the document, and return what went wrong: the answer is printed all the
    same."""
    from pytest_llmbench.report import document
    from pytest_llmbench.report.output_files import JSON, write_atomically

    try:
        if output is not None:
            write_atomically(output, document.render(described), JSON)
    except OSError as error:
        return f"llmbench: it cannot be written: {escape(describe_os_error(error))}"
    return ""
