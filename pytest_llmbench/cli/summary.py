"""`llmbench summary`: a line for each run."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pytest_llmbench.cli.command import Output, Subparsers, add_runs, rename_flags, resolve_settings

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Window


def add(commands: Subparsers) -> None:
    """Declare `llmbench summary`."""
    parser = commands.add_parser(
        "summary", help="One line for each run: status, step time and TFLOP/s over the window."
    )
    add_runs(parser)
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table", help="Default: table.")
    parser.add_argument(
        "--window",
        metavar="FIRST-LAST",
        type=_parse_window,
        help="Steps that the numbers are of (default: the baseline's, else 11-44, else the last half of a log).",
    )
    parser.set_defaults(command=_run)


def _parse_window(text: str) -> Window:
    from pytest_llmbench.core.models import Window

    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected two step numbers such as 11-44")
    return Window(int(first), int(last))


def _run(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.cli.run_table import format_skipped, format_table, make_rows, make_table
    from pytest_llmbench.pipeline.catalog import load
    from pytest_llmbench.pipeline.find_runs import ingest

    with rename_flags():
        settings = resolve_settings(arguments)
        catalog = load(settings)
    now = datetime.now(UTC)
    ingested = ingest(settings, catalog, now)
    table_rows = make_rows(ingested, catalog, arguments.window, now)
    code, aside = 0 if table_rows else 1, format_skipped(ingested.ignored)
    if arguments.format == "csv":
        return Output(make_table(table_rows).to_csv(index=False).rstrip("\n"), code, aside)
    if arguments.format == "json":
        return Output(make_table(table_rows).to_json(orient="records", date_format="iso", indent=2), code, aside)
    return Output(format_table(table_rows), code, aside)
