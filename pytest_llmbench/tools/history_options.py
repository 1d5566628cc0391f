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

HISTORY_VARIABLE = "LLMB_HISTORY"
"""The environment variable that names the history store."""

HISTORY_KEY = name_destination("--llmb-history")
"""The ini key for the history store."""

LARGEST_COUNT = 100_000
"""Largest number of days or runs that an option accepts (273 years of days)."""


def add_history_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --history."""
    metavar = get_option("--llmb-history").metavar
    default = f"default: the environment variable {HISTORY_VARIABLE}, else {HISTORY_KEY} in pytest's configuration file"
    parser.add_argument(
        "--history",
        metavar=metavar,
        help=f"The history store to use, as pytest's --llmb-history ({default}).",
    )


def locate_history(
    typed: str | None,
    *,
    writes: bool = False,
    creates: bool = False,
    reports_future: bool = True,
) -> StoreLocation:
    """Locate the history store and check that it can be used.

    Uses the typed store, else the store that the environment or pytest's configuration
    names; prints a name that was not typed. Writes nothing to the store. The returned
    store omits sessions dated more than a day in the future.

    `writes`: the caller will write to the store. `creates`: the store need not exist
    yet. `reports_future`: warn of sessions dated in the future. Raises HistoryError if no
    store is named, or if the store is unusable.
    """
    from pytest_llmbench.history.store import locate_store, refuse_damaged

    name_and_source = find_history_name(typed, Path.cwd())
    if name_and_source is None:
        raise HistoryError(
            f"no history is named: give --history, set the environment variable {HISTORY_VARIABLE}, or set {HISTORY_KEY} in pytest's "
            "configuration"
        )
    name, source = name_and_source
    store = locate_store(name, Path.cwd(), writes=writes)
    if source:  # not typed, so print the store that is read or pruned
        print_to_stderr(f"history: {formatting.escape(store.shown)} ({source})")
    if writes and not creates:
        # Raises HistoryError if the store does not exist: a mistyped name must not pass as
        # an empty store.
        locate_store(name, Path.cwd(), writes=False)
    refuse_damaged(store)
    store = store.until(datetime.now(UTC))
    if reports_future:
        print_future_sessions(store)
    return store


def print_future_sessions(store: StoreLocation) -> None:
    """Warn on standard error of sessions dated in the future (by a wrong clock)."""
    from pytest_llmbench.history.prune import describe_future

    note = describe_future(store)
    if note:
        print_to_stderr(
            f"llmbench: {formatting.escape(store.shown)}: {redact_text(note)}"
        )


def find_history_name(typed: str | None, directory: Path) -> tuple[str, str] | None:
    """Return (name, source) of the history; None if no history is named.

    The source is "" for a typed name, else the environment variable, or the ini key with
    its file.
    """
    from pytest_llmbench.core.ini_file import find_file_value

    if typed is not None:
        return typed, ""
    name_in_environment = os.environ.get(HISTORY_VARIABLE)
    if name_in_environment:
        return name_in_environment, HISTORY_VARIABLE
    configured = find_file_value(HISTORY_KEY, directory)
    if configured is None:
        return None
    name, configuration_file = configured
    return name, f"{HISTORY_KEY} in {configuration_file}"


def parse_count(text: str) -> int:
    """Parse an integer from 1 to LARGEST_COUNT, else raise ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= LARGEST_COUNT):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a number from 1 to {LARGEST_COUNT:,}"
        )
    return int(text)
