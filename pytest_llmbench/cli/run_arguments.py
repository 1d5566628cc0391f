"""The options of subcommands that read runs, and the settings that they make."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import SettingsError

if TYPE_CHECKING:
    from pytest_llmbench.pipeline.settings import Settings


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Declare which runs are read."""
    parser.add_argument("logs", metavar="LOGS", nargs="+", help="Files or folders with runs.")
    for flag, metavar in (("--baselines", "DIR"), ("--release", "RELEASE"), ("--gpu", "TYPE")):
        parser.add_argument(flag, metavar=metavar, help=f"As pytest's --llmb-{flag[2:]} (default: none).")


def resolve_settings(arguments: argparse.Namespace, **others: object) -> Settings:
    """Return the settings that say which runs are read, and others by the name of pytest's option."""
    from pytest_llmbench.pipeline.settings import resolve

    values = {
        "llmb_logs": arguments.logs,
        "llmb_baselines": [arguments.baselines] if arguments.baselines else None,
        "llmb_release": arguments.release,
        "llmb_gpu": arguments.gpu,
    }
    return resolve({**values, **others}, Path.cwd())


@contextmanager
def rename_flags() -> Iterator[None]:
    """Name options in messages as this command does: --release, not --llmb-release."""
    try:
        yield
    except SettingsError as error:
        raise SettingsError(str(error).replace("--llmb-logs=", "LOGS ").replace("--llmb-", "--")) from None
