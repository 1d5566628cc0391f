"""The command line of `llmbench`; and `llmbench chat`, which is one function: a session in a few lines."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_llmbench import __version__
from pytest_llmbench.cli import Output, Parser, Subparsers, tell, tell_aside
from pytest_llmbench.core.errors import LlmbenchError, ReportError, describe_os_error
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.runtime import describe_unfit_system, discard_output
from pytest_llmbench.core.stop_signals import StopSignals

CommandFunction = Callable[[argparse.Namespace], Output]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 good, 1 lint findings, 2 input that cannot be used, 128 and its
    number for a signal. Those of `probe` are git's."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["probe"]:
        from pytest_llmbench.cli.probe import guard_exit

        return guard_exit(lambda: _run_stoppable(argv))
    try:
        return _run_stoppable(argv)
    except Exception:  # noqa: BLE001 (Python would end with 1, which some commands have for an answer)
        import traceback

        what = "llmbench: a fault of llmbench itself, which says nothing of any run"
        tell_aside(f"{redact_text(traceback.format_exc())}{what}")
        return 2


def _run_stoppable(argv: Sequence[str] | None) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the process ends)
    if unfit := describe_unfit_system():
        tell_aside(f"llmbench: {unfit}")
        return 2
    stop = StopSignals()
    stop.install()
    try:
        with stop.keep_raised():
            return _run(argv)
    except KeyboardInterrupt:
        stop.hold()
        tell_aside("llmbench: interrupted")
        return 128 + (stop.number or signal.SIGINT)
    finally:
        _flush()
        stop.end() if argv is None else stop.restore()  # the program ends with this


def _flush() -> None:
    """Write what is left, such as a help text, and be quiet when the reader has gone."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()


def _run(argv: Sequence[str] | None) -> int:
    parser = _make_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may follow, and wants nothing done
        _complete(parser)
        return 0
    arguments = parser.parse_args(argv)
    command: CommandFunction = arguments.command
    try:
        output = command(arguments)
        if output.text:
            tell(output.text, redacted=output.redacted)
        if output.aside:
            tell_aside(redact_text(output.aside))
    except LlmbenchError as error:
        from pytest_llmbench.core.formatting import escape_lines

        tell_aside(f"llmbench: {escape_lines(redact_text(str(error)))}")
        return 2
    except OSError as error:
        discard_output()
        what = "the output cannot be written" if error.filename is None else "it ends here"
        tell_aside(f"llmbench: {what}: {redact_text(describe_os_error(error))}")
        return 2
    except MemoryError:
        tell_aside("llmbench: it takes more memory than there is: give fewer or smaller files")
        return 2
    return output.code


def _complete(parser: argparse.ArgumentParser) -> None:
    """Tell the shell what may stand at the cursor, and end the process; nothing without the extra `completion`."""
    with suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser)


def _make_parser() -> argparse.ArgumentParser:
    from pytest_llmbench.cli import baselines, compare, history, nccl, nodes, probe, replay, setup, site, summary

    parser = Parser(prog="llmbench", description="Look at baselines and runs of LLM training benchmarks.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # In the order in which `--help` lists them.
    rooms = (baselines, summary, replay, compare, probe, nccl)
    for add in (
        *(room.add for room in rooms),
        _add_chat,
        history.add,
        site.add,
        nodes.add,
        setup.add_cluster,
        setup.add,
    ):
        add(commands)
    return parser


def _add_chat(commands: Subparsers) -> None:
    parser = commands.add_parser("chat", help="A session in at most ten lines, for a chat or a mail.")
    parser.add_argument("file", metavar="FILE", type=Path, help="What pytest's --llmb-json wrote.")
    parser.add_argument(
        "--format",
        choices=("text", "slack"),
        default="text",
        help="slack is JSON for an incoming webhook. Default: text.",
    )
    parser.add_argument(
        "--link", metavar="URL", help="Where all of it is (default: the CI job that runs, if one does)."
    )
    parser.set_defaults(command=_run_chat)


def _run_chat(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.core import runtime
    from pytest_llmbench.report import document, notifications

    link = runtime.read_job_url(os.environ) if arguments.link is None else arguments.link
    session = document.read(arguments.file)
    try:
        text = redact_text(notifications.make_message(session, link))
    # Somebody edited the file, or another version wrote it: any part of it may be of another kind.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ReportError(f"{arguments.file}: changed since --llmb-json wrote it: {error!r}") from None
    return Output(notifications.convert_to_slack(text) if arguments.format == "slack" else text, redacted=True)


if __name__ == "__main__":
    sys.exit(main())
