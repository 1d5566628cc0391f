"""`llmbench site`: write a history as static HTML pages."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import socket
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench import __version__
from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import HistoryError, describe_os_error
from pytest_llmbench.core.redaction import hide_password_of, redact_text
from pytest_llmbench.core.runtime import pause_garbage_collection
from pytest_llmbench.report.site_names import INDEX
from pytest_llmbench.tools.command_line import (
    Output,
    Subparsers,
    add_acknowledged_option,
    find_acknowledged_file,
)
from pytest_llmbench.tools.history_options import (
    add_history_option,
    locate_history,
    parse_count,
)
from pytest_llmbench.tools.site.site_folder import (
    COMPARISONS,
    CONFIGURATIONS,
    name_page,
    write_site,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_llmbench.comparison.comparison_records import SidesCompared
    from pytest_llmbench.tools.site.fleet_days import DayPair
    from pytest_llmbench.tools.site.fleet_records import FleetDays

DEFAULT_DAYS = 365


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench site`."""
    parser = commands.add_parser(
        "site",
        help="Write a history as static HTML pages: all configurations by day.",
    )
    add_history_option(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        required=True,
        help="Write the pages to this folder.",
    )
    parser.add_argument(
        "--days",
        metavar="N",
        type=parse_count,
        default=DEFAULT_DAYS,
        help=f"Show the runs of the last N days (default: {DEFAULT_DAYS}).",
    )
    add_acknowledged_option(
        parser, "changes in it are marked as acknowledged and not listed as recent"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> Output:
    """Run `llmbench site`."""
    from pytest_llmbench.comparison.unpaired import MARGIN
    from pytest_llmbench.session.settings import Settings
    from pytest_llmbench.tools.site.fleet_days import (
        collect_days,
        compare_with_last_good,
    )

    if importlib.util.find_spec("jinja2") is None:
        raise HistoryError(
            "llmbench site needs the package jinja2: pip install 'pytest-llmbench[html]'"
        )
    if formatting.is_remote(arguments.output):
        raise HistoryError(
            f"-o {arguments.output}: found a URL, expected a folder on this machine"
        )
    store = locate_history(arguments.history, reports_future=False)
    now = datetime.now(UTC)
    since = now - timedelta(days=arguments.days)
    acknowledged = find_acknowledged_file(arguments.acknowledged)
    with pause_garbage_collection():
        fleet = collect_days(store, since, now, acknowledged)
        compared = compare_with_last_good(fleet, store, Settings(), MARGIN)
        try:
            pages = _render(fleet, compared, now)
            write_site(arguments.output, _list_names(fleet, compared), pages)
        except OSError as error:
            raise HistoryError(
                f"-o {arguments.output}: some pages cannot be written: {describe_os_error(error)}"
            ) from None
    days = formatting.count_noun(len(fleet.days), "day")
    configurations = formatting.count_noun(len(fleet.rows), "configuration")
    notes = [note for note in (fleet.future, *fleet.damaged) if note]
    return Output(
        f"{configurations}, {days}: {arguments.output / INDEX}",
        stderr="\n".join(f"llmbench: {note}" for note in notes),
    )


def _list_names(
    fleet: FleetDays, compared: dict[DayPair, SidesCompared]
) -> Iterator[str]:
    """Yield the file names of all pages that `_render` makes."""
    yield from map(_name_comparison, compared)
    for row in fleet.rows:
        yield f"{CONFIGURATIONS}/{name_page(row.configuration)}"
    yield INDEX


def _name_comparison(days: DayPair) -> str:
    """Return the file name of the comparison of two days."""
    good_day, failed_day = days
    return f"{COMPARISONS}/{good_day}_{failed_day}.html"


def _render(
    fleet: FleetDays, compared: dict[DayPair, SidesCompared], now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield file name and HTML of each comparison page, then those of the site.

    The index page is the last one.
    """
    from pytest_llmbench.comparison.comparison_document import describe
    from pytest_llmbench.comparison.comparison_page import render_sides
    from pytest_llmbench.tools.site.site_page import SiteFacts, render_site

    page_of_configuration: dict[str, str] = {}
    for days, sides in compared.items():
        name = _name_comparison(days)
        for comparison in sides.comparisons:
            page_of_configuration[comparison.configuration] = name
        document = describe(sides, now, strict=False)
        yield name, render_sides(document, now, of_site=True)
    command = redact_text(
        shlex.join(["llmbench", *map(hide_password_of, sys.argv[1:])])
    )
    yield from render_site(
        fleet,
        page_of_configuration,
        SiteFacts(now, command, __version__, socket.gethostname()),
    )
