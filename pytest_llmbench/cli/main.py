"""The command `llmbench`: look at baselines, at runs, at their history, and at NCCL traces."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from pytest_llmbench import __version__
from pytest_llmbench.cli import baselines, chat, history, nccl, replay, setup, summary
from pytest_llmbench.cli.command import Output, discard_output, tell
from pytest_llmbench.core.errors import LlmbenchError

CommandFunction = Callable[[argparse.Namespace], Output]

COMMANDS = (baselines, summary, replay, nccl, chat, history, setup)
"""In the order in which `--help` lists them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 good, 1 lint findings, 2 input that cannot be used."""
    arguments = _make_parser().parse_args(argv)
    command: CommandFunction = arguments.command
    try:
        output = command(arguments)
        tell(output.text)
        if output.aside:
            print(output.aside, file=sys.stderr)
    except LlmbenchError as error:
        print(f"llmbench: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        discard_output()
        print(f"llmbench: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("llmbench: interrupted", file=sys.stderr)
        return 130
    return output.code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llmbench", description="Look at baselines and runs of LLM training benchmarks."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
