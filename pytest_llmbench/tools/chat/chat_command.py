"""`llmbench chat`: a message from the file that --llmb-json wrote."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.tools.command_line import Output, Subparsers


def add(commands: Subparsers) -> None:
    """Declare `llmbench chat`."""
    parser = commands.add_parser(
        "chat", help="A session in at most ten lines, for a chat or a mail."
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="What pytest's --llmb-json wrote."
    )
    parser.add_argument(
        "--format",
        choices=("text", "slack"),
        default="text",
        help="slack is JSON for an incoming webhook. Default: text.",
    )
    parser.add_argument(
        "--link",
        metavar="URL",
        help="Where all of it is (default: the CI job that runs, if one does).",
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.core import runtime
    from pytest_llmbench.report import document, notifications

    link = (
        runtime.read_job_url(os.environ) if arguments.link is None else arguments.link
    )
    session = document.read(arguments.file)
    try:
        text = redact_text(notifications.make_message(session, link))
    # Somebody edited the file, or another version wrote it: any part of it may be of
    # another kind.
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise ReportError(
            f"{arguments.file}: changed since it was written: {error!r}"
        ) from None
    return Output(
        notifications.convert_to_slack(text) if arguments.format == "slack" else text,
        redacted=True,
    )
