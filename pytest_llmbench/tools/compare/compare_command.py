"""`llmbench compare`: compare two runs, folders, archives or periods of a history."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import HistoryError, SettingsError, describe_os_error
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.options import get_option
from pytest_llmbench.tools.command_line import (
    Output,
    Subparsers,
    add_baseline_options,
    rename_flags,
    resolve_settings,
)

if TYPE_CHECKING:
    from pytest_llmbench.comparison.comparison_document import ComparisonDocument
    from pytest_llmbench.history.store import StoreLocation
    from pytest_llmbench.session.settings import Settings

EXIT_CODES = (
    "Exit code: 0 alike, faster or inconclusive, 1 slower, 2 usage error, 3 nothing comparable, 4 inconclusive or not "
    "compared, with --strict."
)

SIDE_HELP = (
    "The first side: a log, folder or archive of runs; or, from a history, a day, a range of days such as "
    "2026-11-01..2026-11-07, or a session."
)


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench compare`."""
    parser = commands.add_parser(
        "compare",
        help="Is B slower than A? Compares each configuration that both have, and lists other differences.",
        description="Is B slower than A? Compares each configuration that both have, and lists other differences.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("a", metavar="A", help=SIDE_HELP)
    parser.add_argument(
        "b", metavar="B", help="The second side, which may be slower; as A."
    )
    parser.add_argument(
        "--margin",
        metavar="PERCENT",
        default="1%",
        help="A and B count as alike if their step times differ by less than this (default: 1%%).",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="Exit with 4 if a comparison is inconclusive or a configuration was not compared.",
    )
    parser.add_argument(
        "--history",
        metavar=get_option("--llmb-history").metavar,
        help="The history with the days and sessions, and with the day-to-day noise and the nodes of runs (default: as "
        "for `llmbench history`).",
    )
    add_baseline_options(parser)
    for flag, meaning in (
        ("--json", "Write the complete comparison as JSON to this file."),
        ("--html", "Write the comparison as an HTML page to this file."),
    ):
        parser.add_argument(flag, metavar="FILE", help=meaning)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> Output:
    """Run `llmbench compare`."""
    from pytest_llmbench.comparison.compare_sides import compare_paths
    from pytest_llmbench.comparison.comparison_document import describe
    from pytest_llmbench.comparison.comparison_text import format_text
    from pytest_llmbench.comparison.sides import parse_side, refuse_same
    from pytest_llmbench.core.option import parse_percentage

    try:
        margin = parse_percentage(arguments.margin)
        # A bare 0.5 is ambiguous: a percentage or a fraction.
        if not arguments.margin.rstrip().endswith("%"):
            raise ValueError(
                f"found {arguments.margin!r}, expected a percentage such as 1% or 0.5%"
            )
    except ValueError as error:
        raise SettingsError(f"--margin={arguments.margin}: {error}") from None
    now = datetime.now(UTC)
    with rename_flags():
        history = _locate_history_if_named(arguments.history)
        a = parse_side("A", arguments.a, history, Path.cwd())
        b = parse_side("B", arguments.b, history, Path.cwd())
        refuse_same(a, b)
        arguments.logs = [side.text for side in (a, b) if side.path is not None]
        settings = _resolve_settings(arguments, history)
        compared = compare_paths((a, b), settings, history, margin, now)
    document = describe(compared, now, strict=arguments.strict)
    problem = _write_files(document, settings, now)
    return Output(
        format_text(document),
        2 if problem else document.exit_code,
        problem,
        redacted=True,
    )


def _locate_history_if_named(typed: str | None) -> StoreLocation | None:
    """Locate the history store; None if no history is named.

    Uses the typed store, else the store that the environment or pytest's configuration
    names. Raises HistoryError, with the name's source, if the store is unusable.
    """
    from pytest_llmbench.tools.history_options import find_history_name, locate_history

    if typed is not None and not typed.strip():
        raise SettingsError(
            "--history= is empty: give a value, or leave the option out"
        )
    name_and_source = find_history_name(typed, Path.cwd())
    if name_and_source is None:
        return None
    _, source = name_and_source
    try:
        return locate_history(typed)
    except HistoryError as error:
        raise HistoryError(f"{source or '--history'}: {error}") from None


def _resolve_settings(
    arguments: argparse.Namespace, history: StoreLocation | None
) -> Settings:
    """Build the settings. Raises SettingsError if an output file is also an input."""
    from pytest_llmbench.session.settings import list_outputs, refuse_shared

    settings = resolve_settings(
        arguments, llmb_json=arguments.json, llmb_html=arguments.html
    )
    refuse_shared(
        {"--history": history.file if history else None}, list_outputs(settings)
    )
    return settings


def _write_files(
    compared: ComparisonDocument, settings: Settings, now: datetime
) -> str:
    """Write the requested JSON and HTML files; return the error message, or "".

    Raises no error, so that the comparison is still printed.
    """
    import msgspec

    from pytest_llmbench.report import document
    from pytest_llmbench.report.output_files import HTML, JSON, write_atomically

    try:
        if settings.json is not None:
            content = document.render(msgspec.to_builtins(compared))
            write_atomically(settings.json, content, JSON)
        if settings.html is not None:
            from pytest_llmbench.comparison.comparison_page import render_sides

            page = render_sides(compared, now).encode("utf-8", "backslashreplace")
            write_atomically(settings.html, page, HTML)
    except OSError as error:
        return (
            f"llmbench: cannot write the comparison: {escape(describe_os_error(error))}"
        )
    return ""
