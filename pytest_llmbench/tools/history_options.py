"""The option --history, and the history store that it names."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import HistoryError
from pytest_llmbench.core.option import name_destination
from pytest_llmbench.core.options import get_option
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.tools.command_line import print_to_stderr

if TYPE_CHECKING:
    from pytest_llmbench.history.store import StoreLocation

VARIABLE = "LLMB_HISTORY"
KEY = name_destination("--llmb-history")
"""The ini key for the history store."""

LARGEST_COUNT = 100_000
"""Largest number of days or runs that an option accepts (273 years of days)."""


def add_history(parser: argparse.ArgumentParser) -> None:
    """Add the option --history."""
    metavar = get_option("--llmb-history").metavar
    default = f"default: the environment variable {VARIABLE}, else {KEY} in pytest's configuration file"
    parser.add_argument(
        "--history",
        metavar=metavar,
        help=f"The history store to use, as pytest's --llmb-history ({default}).",
    )


def open_history(
    typed: str | None,
    *,
    writes: bool = False,
    creates: bool = False,
    reports_future: bool = True,
) -> StoreLocation:
    """Locate the history store and check that it can be used.

    The store is the typed one, else the one that the environment or pytest's
    configuration names. Nothing is written here. `writes`: the caller will write to the
    store. `creates`: the store need not exist yet. `reports_future`: warn of sessions
    dated in the future. Raises HistoryError if no store is named or if it is unusable.
    """
    from pytest_llmbench.history.store import locate_store, refuse_damaged

    stated = find_stated(typed, Path.cwd())
    if stated is None:
        raise HistoryError(
            f"no history is named: give --history, set the environment variable {VARIABLE}, or set {KEY} in pytest's "
            "configuration"
        )
    text, source = stated
    store = locate_store(text, Path.cwd(), writes=writes)
    if source:  # not typed: print which store is read or pruned
        print_to_stderr(f"history: {formatting.escape(store.shown)} ({source})")
    if writes and not creates:
        locate_store(
            text, Path.cwd(), writes=False
        )  # a mistyped name must not pass as an empty store
    refuse_damaged(store)
    store = store.until(datetime.now(UTC))
    if reports_future:
        print_future_sessions(store)
    return store


def print_future_sessions(store: StoreLocation) -> None:
    """Warn on standard error of sessions dated in the future (by a wrong clock)."""
    from pytest_llmbench.history.prune import describe_future

    if future := describe_future(store):
        print_to_stderr(
            f"llmbench: {formatting.escape(store.shown)}: {redact_text(future)}"
        )


def find_stated(typed: str | None, directory: Path) -> tuple[str, str] | None:
    """Return the location of the history and its source; None if no history is named.

    The source is "" for a typed location, else the variable or the ini key and file.
    """
    from pytest_llmbench.core.ini_file import find_file_value

    if typed is not None:
        return typed, ""
    if text := os.environ.get(VARIABLE):
        return text, VARIABLE
    configured = find_file_value(KEY, directory)
    return (configured[0], f"{KEY} in {configured[1]}") if configured else None


def parse_count(text: str) -> int:
    """Parse an integer from 1 to LARGEST_COUNT. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= LARGEST_COUNT):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a number from 1 to {LARGEST_COUNT:,}"
        )
    return int(text)
