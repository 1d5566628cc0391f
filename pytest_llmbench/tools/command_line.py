"""Code shared by all commands: redacted printing, exit codes and common options."""

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

ACKNOWLEDGED_KEY = name_destination("--llmb-acknowledged")
"""The ini key for the file of acknowledged changes."""

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"
"""The argparse object to which a subcommand adds its parser."""


class Output(NamedTuple):
    """The printed text and the exit code of a subcommand."""

    text: str
    """Text for standard output."""

    code: int = 0
    """Exit code: 0 if all is well, 1 if the command found a problem."""

    stderr: str = ""
    """Text for standard error."""

    redacted: bool = False
    """True if the text was made of redacted values (`redact_values`).

    JSON and tables need this. If the finished text were redacted instead, a password
    that contains a quote or a comma would remove the next value, too.
    """


class Parser(argparse.ArgumentParser):
    """An argument parser that redacts secrets in its error messages."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the redacted message, then exit."""
        super().error(redact_text(message))


def redact_values(values: Any, kept: Collection[str] = ()) -> Any:
    """Redact secrets in nested dictionaries and lists; copy the values of `kept` keys."""
    return make_redactor().redact_values(values, kept)


def print_to_stdout(text: str, *, redacted: bool = False) -> None:
    """Print a text to standard output, redacted unless it already is.

    A closed pipe (`| head`) is not an error.
    """
    printed = text if redacted else redact_text(text)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        # Characters that the terminal cannot show become `\u2713`.
        print(printed.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def print_to_stderr(text: str) -> None:
    """Print a text to standard error; ignore a closed stream."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard_output(STANDARD_ERROR)


# --- the file of acknowledged changes -------------------------------------------------


def add_acknowledged_option(parser: argparse.ArgumentParser, effect: str) -> None:
    """Add the option --acknowledged; `effect` describes its use in the help text."""
    parser.add_argument(
        "--acknowledged",
        metavar="FILE",
        type=Path,
        help=f"File of acknowledged changes, as for pytest's --llmb-acknowledged: {effect} "
        f"(default: {ACKNOWLEDGED_KEY} in pytest's configuration file).",
    )


def find_acknowledged_file(typed: Path | None) -> Path | None:
    """Return the typed file of acknowledged changes, else that of pytest's configuration.

    Returns None if neither names a file. A path in a configuration file is relative to
    the folder of that file.
    """
    from pytest_llmbench.core.ini_file import find_file_value

    if typed:
        return typed
    configured = find_file_value(ACKNOWLEDGED_KEY, Path.cwd())
    if configured is None:
        return None
    file_name, configuration_file = configured
    return configuration_file.parent / file_name


def read_shipped_and_custom_recipes(directories: Sequence[Path]) -> tuple[Recipe, ...]:
    """Read the recipes of all shipped baseline files and of the user's `directories`."""
    from pytest_llmbench.baseline.read import find_shipped_baselines, read_recipes

    return read_recipes([find_shipped_baselines(), *directories])


# --- the options of subcommands that read runs ----------------------------------------


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument LOGS and the options that identify configurations."""
    parser.add_argument(
        "logs",
        metavar="LOGS",
        nargs="+",
        help="Log files, archives or folders with runs.",
    )
    add_baseline_options(parser)


def add_baseline_options(parser: argparse.ArgumentParser) -> None:
    """Add --baselines, --release and --gpu, which identify the configuration of a run."""
    for flag, metavar, meaning in (
        ("--baselines", "DIR", "Folder of baseline files, added to the shipped files"),
        ("--release", "RELEASE", "Release of runs that do not state it"),
        ("--gpu", "TYPE", "GPU type of runs that do not state it"),
    ):
        parser.add_argument(
            flag,
            metavar=metavar,
            help=f"{meaning}, as pytest's --llmb-{flag.removeprefix('--')} (default: none).",
        )


def resolve_settings(
    arguments: argparse.Namespace, **further_values: object
) -> Settings:
    """Build the settings from LOGS, --baselines, --release and --gpu.

    `further_values` are values of other options of pytest, such as `llmb_json=FILE`.
    Raises SettingsError.
    """
    from pytest_llmbench.core.option import refuse_blank
    from pytest_llmbench.session.settings import resolve

    baselines = None if arguments.baselines is None else [arguments.baselines]
    values = {
        "llmb_logs": arguments.logs,
        "llmb_baselines": baselines,
        "llmb_release": arguments.release,
        "llmb_gpu": arguments.gpu,
    }
    values |= further_values
    refuse_blank(values)  # raises SettingsError for an empty value
    return resolve(values, Path.cwd())


@contextmanager
def rename_flags() -> Iterator[None]:
    """Replace pytest's option names in errors by those of `llmbench`.

    `--llmb-release` becomes `--release`, and `--llmb-logs` becomes the argument LOGS.
    """
    try:
        yield
    except SettingsError as error:
        text = (
            str(error).replace("--llmb-logs=", "LOGS ").replace("--llmb-logs", "LOGS")
        )
        # An ini key, such as `llmb_max_age=`, becomes `--max-age=`.
        text = re.sub(
            r"\bllmb_(?P<key>\w+)(?==)",
            lambda match: "--" + match["key"].replace("_", "-"),
            text,
        )
        raise SettingsError(text.replace("--llmb-", "--")) from None
