"""What the commands share: printing without secrets, exit codes, and the options of
those that read runs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.option import name_destination
from pytest_llmbench.core.redaction import make_redactor, redact_text
from pytest_llmbench.core.runtime import STANDARD_ERROR, discard_output

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Recipe
    from pytest_llmbench.session.settings import Settings

WIDTH = 79

ACKNOWLEDGED = name_destination("--llmb-acknowledged")
"""The ini key."""

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"
"""Where a subcommand adds its own parser."""


class Output(NamedTuple):
    """What a subcommand prints, also to standard error (`aside`), and its exit code: 1
    where something is wrong."""

    text: str
    code: int = 0
    aside: str = ""
    redacted: bool = False
    """Whether the text was made of values without secrets (`redact_values`), as JSON
    and tables are: hidden in the text itself, a password with a quote or a comma would
    take the next value with it."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors quote no secret that was typed."""

    def error(self, message: str) -> NoReturn:
        """End the process with the usage and the message."""
        super().error(redact_text(message))


def redact_values(values: Any, kept: Collection[str] = ()) -> Any:
    """Return nested dictionaries and lists without secrets, but for what stands under
    the `kept` keys."""
    return make_redactor().redact_values(values, kept)


def tell(text: str, *, redacted: bool = False) -> None:
    """Print a text without secrets, and be quiet when the reader (`| head`) has
    gone."""
    shown = text if redacted else redact_text(text)
    try:
        print(
            shown.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(
                sys.stdout.encoding or "utf-8"
            )
        )
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def print_to_stderr(text: str) -> None:
    """Print a text to standard error, or nothing where nobody reads it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard_output(STANDARD_ERROR)


# --- the file of acknowledged changes -------------------------------------------------


def add_acknowledged(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare the file of acknowledged changes; `what` is done with it."""
    parser.add_argument(
        "--acknowledged",
        metavar="FILE",
        type=Path,
        help=f"As pytest's --llmb-acknowledged: {what} (default: {ACKNOWLEDGED} in the configuration file that pytest "
        "reads here).",
    )


def find_acknowledged(typed: Path | None) -> Path | None:
    """Return the file that was typed, or that pytest's configuration names; None for
    none."""
    from pytest_llmbench.core.ini_file import find_file_value

    written = None if typed else find_file_value(ACKNOWLEDGED, Path.cwd())
    return written[1].parent / written[0] if written else typed


def read_recipes_in(directories: Sequence[Path]) -> tuple[Recipe, ...]:
    """Return the shipped recipes, those of the tables too, and those of a user's
    directories."""
    from pytest_llmbench.baseline.read import find_shipped_baselines, read_recipes

    return read_recipes([find_shipped_baselines(), *directories])


# --- the options of subcommands that read runs ----------------------------------------


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Declare which runs are read."""
    parser.add_argument(
        "logs", metavar="LOGS", nargs="+", help="Files or folders with runs."
    )
    add_baselines(parser)


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """Declare the options that decide of which configurations runs are."""
    for flag, metavar in (
        ("--baselines", "DIR"),
        ("--release", "RELEASE"),
        ("--gpu", "TYPE"),
    ):
        parser.add_argument(
            flag,
            metavar=metavar,
            help=f"As pytest's --llmb-{flag[2:]} (default: none).",
        )


def resolve_settings(arguments: argparse.Namespace, **others: object) -> Settings:
    """Return the settings that say which runs are read, and others by the name of
    pytest's option."""
    from pytest_llmbench.core.option import refuse_blank
    from pytest_llmbench.session.settings import resolve

    values = {
        "llmb_logs": arguments.logs,
        "llmb_baselines": [arguments.baselines]
        if arguments.baselines is not None
        else None,
        "llmb_release": arguments.release,
        "llmb_gpu": arguments.gpu,
    }
    values |= others
    refuse_blank(values)
    return resolve(values, Path.cwd())


@contextmanager
def rename_flags() -> Iterator[None]:
    """Name options in messages as this command does: --release, not --llmb-release."""
    try:
        yield
    except SettingsError as error:
        text = (
            str(error).replace("--llmb-logs=", "LOGS ").replace("--llmb-logs", "LOGS")
        )
        text = re.sub(
            r"\bllmb_(\w+)(?==)", lambda key: "--" + key[1].replace("_", "-"), text
        )
        raise SettingsError(text.replace("--llmb-", "--")) from None
