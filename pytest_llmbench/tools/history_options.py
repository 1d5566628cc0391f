"""The option of commands that read a history, and the store that it names."""

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
"""The ini key."""

MOST = 100_000
"""Largest number of days or runs that an option accepts (273 years of days)."""


def add_history(parser: argparse.ArgumentParser) -> None:
    """Declare which history is read."""
    metavar = get_option("--llmb-history").metavar
    default = f"default: the variable {VARIABLE}, else {KEY} in the configuration file that pytest reads here"
    parser.add_argument(
        "--history", metavar=metavar, help=f"As pytest's --llmb-history ({default})."
    )


def open_history(
    typed: str | None,
    *,
    writes: bool = False,
    creates: bool = False,
    reports_future: bool = True,
) -> StoreLocation:
    """Return the history that was typed, or that the environment or pytest's
    configuration names; HistoryError for none that can be used. Nothing is written to
    it here; `creates`: it need not be there yet."""
    from pytest_llmbench.history.store import locate_store, refuse_damaged

    stated = find_stated(typed, Path.cwd())
    if stated is None:
        raise HistoryError(
            f"no history is known: give --history, set {VARIABLE}, or {KEY} in pytest's configuration"
        )
    text, source = stated
    place = locate_store(text, Path.cwd(), writes=writes)
    if source:  # nobody typed it: what is read, or removed, is said
        print_to_stderr(f"history: {formatting.escape(place.shown)} ({source})")
    if writes and not creates:
        locate_store(
            text, Path.cwd(), writes=False
        )  # a mistyped name is no empty store
    refuse_damaged(place)
    place = place.until(datetime.now(UTC))
    if reports_future:
        print_future_sessions(place)
    return place


def print_future_sessions(place: StoreLocation) -> None:
    """Print the sessions that a wrong clock dates later than now, to standard error."""
    from pytest_llmbench.history.prune import describe_future

    if future := describe_future(place):
        print_to_stderr(
            f"llmbench: {formatting.escape(place.shown)}: {redact_text(future)}"
        )


def find_stated(typed: str | None, directory: Path) -> tuple[str, str] | None:
    """Return where the history is, and what says so where it was not typed; None where
    nothing names one."""
    from pytest_llmbench.core.ini_file import find_file_value

    if typed is not None:
        return typed, ""
    if text := os.environ.get(VARIABLE):
        return text, VARIABLE
    written = find_file_value(KEY, directory)
    return (written[0], f"{KEY} in {written[1]}") if written else None


def parse_count(text: str) -> int:
    """Read a number from 1 on; ArgumentTypeError otherwise."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a number from 1 to {MOST:,}"
        )
    return int(text)
