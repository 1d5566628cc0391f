"""The command line program `llmbench`, with the commands of all tools."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from pytest_llmbench import __version__
from pytest_llmbench.core.errors import LlmbenchError, describe_os_error
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.runtime import describe_unfit_system, discard_output
from pytest_llmbench.core.stop_signals import StopSignals
from pytest_llmbench.tools.command_line import (
    Output,
    Parser,
    print_to_stderr,
    print_to_stdout,
)

CommandFunction = Callable[[argparse.Namespace], Output]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: success, 1: findings, 2: unusable input, 128 + number: stopped by a signal. The
    exit codes of `probe` are the exit codes that `git bisect run` expects.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["probe"]:
        from pytest_llmbench.tools.probe.probe_command import guard_exit

        return guard_exit(lambda: _run_stoppable(argv))
    try:
        return _run_stoppable(argv)
    except Exception:  # noqa: BLE001 (exit code 1 would mean findings)
        import traceback

        text = "llmbench: internal error; this is a bug of llmbench, not a result"
        print_to_stderr(f"{redact_text(traceback.format_exc())}{text}")
        return 2


def _run_stoppable(argv: Sequence[str] | None) -> int:
    """Run a command that signals may stop, and return its exit code.

    First replaces closed output streams, and refuses an unfit system with exit code 2.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed with `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the process ends)
    if unfit := describe_unfit_system():
        print_to_stderr(f"llmbench: {unfit}")
        return 2
    stop = StopSignals()
    stop.install()
    try:
        with stop.keep_raised():
            return _run(argv)
    except KeyboardInterrupt:
        stop.hold()
        print_to_stderr("llmbench: interrupted")
        return 128 + (stop.number or signal.SIGINT)
    finally:
        _flush()
        if argv is None:
            stop.end()  # the program ends now
        else:
            stop.restore()


def _flush() -> None:
    """Write buffered output; ignore a reader that has closed its end of the pipe."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()


def _run(argv: Sequence[str] | None) -> int:
    """Run a command, print its output or error, and return the exit code."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # called by a shell for completions only
        _complete(parser)
        return 0
    arguments = parser.parse_args(argv)
    command: CommandFunction = arguments.command
    try:
        output = command(arguments)
        if output.text:
            print_to_stdout(output.text, redacted=output.redacted)
        if output.stderr:
            print_to_stderr(redact_text(output.stderr))
    except LlmbenchError as error:
        from pytest_llmbench.core.formatting import escape_lines

        print_to_stderr(f"llmbench: {escape_lines(redact_text(str(error)))}")
        return 2
    except OSError as error:
        discard_output()
        problem = (
            "cannot write the output" if error.filename is None else "stopped early"
        )
        print_to_stderr(f"llmbench: {problem}: {redact_text(describe_os_error(error))}")
        return 2
    except MemoryError:
        print_to_stderr("llmbench: out of memory: give fewer or smaller files")
        return 2
    return output.code


def _complete(parser: argparse.ArgumentParser) -> None:
    """Print completions for the shell and end the process.

    Does nothing without the extra `completion`.
    """
    with suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser)


def make_parser() -> argparse.ArgumentParser:
    """Build the parser with the commands of all tools, which are imported here."""
    from pytest_llmbench.tools.baselines import baselines_command as baselines
    from pytest_llmbench.tools.chat import chat_command as chat
    from pytest_llmbench.tools.compare import compare_command as compare
    from pytest_llmbench.tools.import_tables import import_command as import_tables
    from pytest_llmbench.tools.nccl import nccl_command as nccl
    from pytest_llmbench.tools.nodes import nodes_command as nodes
    from pytest_llmbench.tools.probe import probe_command as probe
    from pytest_llmbench.tools.replay import replay_command as replay
    from pytest_llmbench.tools.setup import setup_command as setup
    from pytest_llmbench.tools.site import site_command as site
    from pytest_llmbench.tools.stored_runs import history_command as history
    from pytest_llmbench.tools.summary import summary_command as summary

    parser = Parser(
        prog="llmbench",
        description="Inspect baselines and runs of LLM training benchmarks.",
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # In the order in which `--help` lists them.
    for add in (
        partial(baselines.add, add_import=import_tables.add),
        summary.add,
        replay.add,
        compare.add,
        probe.add,
        nccl.add,
        chat.add,
        history.add,
        site.add,
        nodes.add,
        setup.add_cluster,
        setup.add,
    ):
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
