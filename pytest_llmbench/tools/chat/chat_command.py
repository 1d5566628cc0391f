"""`llmbench chat`: make a short message from the JSON report of a session."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.tools.command_line import Output, Subparsers


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench chat`."""
    parser = commands.add_parser(
        "chat",
        help="Summarize a session in at most ten lines, for a chat or an email.",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="The JSON report of the session (pytest --llmb-json=FILE).",
    )
    parser.add_argument(
        "--format",
        choices=("text", "slack"),
        default="text",
        help="text, or slack: JSON for an incoming webhook of Slack (default: text).",
    )
    parser.add_argument(
        "--link",
        metavar="URL",
        help="Link to the full report (default: the current CI job, if any).",
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> Output:
    """Run `llmbench chat`."""
    from pytest_llmbench.core import runtime
    from pytest_llmbench.report import document, notifications

    link = arguments.link
    if link is None:  # not typed; an empty link means no link
        link = runtime.read_job_url(os.environ)
    session = document.read(arguments.file)
    try:
        text = redact_text(notifications.make_message(session, link))
    # In a file that was edited, or written by another version, any value may have an
    # unexpected type.
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise ReportError(
            f"{arguments.file}: unexpected content; the file was edited or written by another version: {error!r}"
        ) from None
    if arguments.format == "slack":
        text = notifications.convert_to_slack(text)
    return Output(text, redacted=True)
