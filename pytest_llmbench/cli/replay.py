"""`llmbench replay`: the same runs judged under other settings."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from pytest_llmbench.cli.output import Output, Subparsers
from pytest_llmbench.cli.run_arguments import add_runs, rename_flags, resolve_settings
from pytest_llmbench.core.errors import SettingsError

WHAT_IF = (
    "--llmb-tolerance",
    "--llmb-inconclusive",
    "--llmb-improvement",
    "--llmb-against",
    "--llmb-baseline-release",
    "--llmb-max-age",
    "--llmb-repeat-window",
    "--llmb-assumed-cv",
    "--llmb-drift-budget",
    "--llmb-certify",
)
"""The options of pytest that change a verdict and not which runs are read."""


def add(commands: Subparsers) -> None:
    """Declare `llmbench replay`."""
    from pytest_llmbench.core.options import OPTIONS, destination

    parser = commands.add_parser(
        "replay", help="What if: judge the same runs under other settings, and list the verdicts that change."
    )
    add_runs(parser)
    for option in OPTIONS:
        if option.flag in WHAT_IF:
            takes = {"action": "store_true", "default": None} if option.is_flag else {"metavar": option.metavar}
            flag = option.flag.replace("--llmb-", "--")
            parser.add_argument(flag, dest=destination(option.flag), help=option.help, **takes)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.cli.judge_again import format_replay, replay
    from pytest_llmbench.core.options import destination

    values = {name: getattr(arguments, name) for name in map(destination, WHAT_IF)}
    changed = {name: value for name, value in values.items() if value is not None}
    if "" in changed.values():
        raise SettingsError("an option is empty: give it a value, or leave it out")
    if not changed:
        flags = ", ".join(flag.replace("--llmb-", "--") for flag in WHAT_IF)
        raise SettingsError(f"nothing to change: give one of {flags}")
    with rename_flags():
        replayed = replay(resolve_settings(arguments), resolve_settings(arguments, **changed), datetime.now(UTC))
    return Output(format_replay(replayed), code=0 if replayed.judged else 1)
