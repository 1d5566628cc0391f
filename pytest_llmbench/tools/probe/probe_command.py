"""`llmbench probe`: for `git bisect run`, is this build as slow as the bad end, or as
fast as the good one?"""

from __future__ import annotations

import argparse
import math
import os
import textwrap
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import LaunchError, SettingsError
from pytest_llmbench.core.formatting import escape
from pytest_llmbench.core.trial_records import ProbeOutcome
from pytest_llmbench.tools.command_line import (
    WIDTH,
    Output,
    Subparsers,
    add_baselines,
    print_to_stderr,
    rename_flags,
)

if TYPE_CHECKING:
    from pytest_llmbench.tools.probe.probe_runs import ProbeAnswer

NAME = "probe"

# git bisect run takes 0 for good, 1 to 127 for bad but 125, which skips; above 127 it
# stops. So nothing that goes wrong here may end with less.
UNTESTABLE, STOP, USAGE = 125, 128, 129

CODES = {
    ProbeOutcome.NOT_SLOWER: 0,
    ProbeOutcome.SLOWER: 1,
    ProbeOutcome.CANNOT_TELL: UNTESTABLE,
    ProbeOutcome.DOES_NOT_RUN: UNTESTABLE,
    ProbeOutcome.ENDS_ALIKE: STOP,
    ProbeOutcome.STOPPED: STOP,
}

SENTENCES = {
    ProbeOutcome.NOT_SLOWER: "not slower: shown to be below the middle of both ends",
    ProbeOutcome.SLOWER: "slower: shown to be above the middle of both ends",
    ProbeOutcome.CANNOT_TELL: "cannot tell on which side of the middle of both ends it is",
    ProbeOutcome.DOES_NOT_RUN: "does not run: no run of it counts",
    ProbeOutcome.ENDS_ALIKE: "the bad end is not shown to be slower than the good one: nothing to search",
    ProbeOutcome.STOPPED: "its command was ended from outside: the cluster, a budget, or somebody",
}

EXIT_CODES = (
    "Exit code, as `git bisect run` takes it: 0 not slower than the middle of both ends, 1 slower, 125 does not run or "
    "cannot be told, 128 it cannot go on (the ends are alike, or the command was ended), 129 usage error."
)


def add(commands: Subparsers) -> None:
    """Declare `llmbench probe`."""
    parser = commands.add_parser(
        NAME,
        help="For `git bisect run`: is a build as slow as the bad end, or as fast as the good one?",
        description="For `git bisect run`: is a build as slow as the bad end, or as fast as the good one?",
        epilog=EXIT_CODES,
        usage="%(prog)s --good RUNS --bad RUNS (RUNS | --runs DIR -- COMMAND...)",
    )
    parser.add_argument(
        "--good",
        metavar="RUNS",
        required=True,
        help="Runs of the good end: a folder, log or archive.",
    )
    parser.add_argument(
        "--bad", metavar="RUNS", required=True, help="Runs of the bad end."
    )
    parser.add_argument(
        "--runs",
        metavar="DIR",
        type=Path,
        help="Where COMMAND leaves its runs: each start gets a folder of its own below, named in {LLMBENCH_RUN} and in "
        "the variable LLMBENCH_RUN.",
    )
    parser.add_argument(
        "--configuration",
        metavar="ID",
        default="",
        help="Which one, where both ends have runs of several.",
    )
    add_baselines(parser)
    parser.add_argument(
        "words",
        metavar="RUNS | COMMAND",
        nargs="+",
        help="Runs of the build; with --runs the command that makes one, started up to 4 times.",
    )
    parser.set_defaults(command=_run)


def guard_exit(run: Callable[[], int]) -> int:
    """Return the exit code of a command line that git may read: no mistake may seem to
    say that a build is bad."""
    try:
        code = run()
    except SystemExit as error:
        code = (
            error.code
            if isinstance(error.code, int)
            else 0
            if error.code is None
            else USAGE
        )
    except Exception:  # noqa: BLE001 (a fault of this program says nothing of the build)
        traceback.print_exc()
        return STOP
    return USAGE if code == 2 else code  # as argparse and `main` have usage errors


def _run(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.session.settings import find_readable
    from pytest_llmbench.tools.command_line import resolve_settings
    from pytest_llmbench.tools.probe.candidate import (
        make_candidate_folder,
        run_candidate,
    )
    from pytest_llmbench.tools.probe.probe_runs import ProbeRequest, probe

    directory = Path.cwd()
    if arguments.runs is None and len(arguments.words) > 1:
        raise SettingsError(
            "several places of runs: give one folder, or --runs=DIR -- COMMAND"
        )
    with rename_flags():
        good, bad = (
            find_readable(flag, getattr(arguments, flag[2:]), directory)
            for flag in ("--good", "--bad")
        )
        if arguments.runs is None:
            new = find_readable("RUNS", arguments.words[0], directory)
        else:
            new = make_candidate_folder(directory / arguments.runs)
        arguments.logs = [
            arguments.good,
            arguments.bad,
            str(new),
        ]  # where they lie says of which configuration they are
        settings = resolve_settings(arguments)
    request = ProbeRequest(good, bad, new, arguments.configuration)

    def make_run(number: int) -> int:
        return run_candidate(arguments.words, new / f"run_{number}", os.environ)

    try:
        answer = probe(
            request,
            settings,
            make_run if arguments.runs is not None else None,
            _read_clock,
        )
    except LaunchError as error:
        print_to_stderr(f"llmbench: {error}")
        return Output("probe: it cannot go on", STOP)
    return Output(_describe(answer), CODES[answer.outcome])


def _read_clock() -> datetime:
    return datetime.now(UTC)


def _describe(answer: ProbeAnswer) -> str:
    lines = [
        f"probe: {SENTENCES[answer.outcome]}",
        f"  {answer.configuration}, {answer.runs} of its runs count",
    ]
    if answer.estimate is not None:
        estimate = answer.estimate
        values = (
            100 * math.expm1(value)
            for value in (estimate.difference, estimate.low, estimate.high)
        )
        what = (
            "bad beside good"
            if answer.outcome is ProbeOutcome.ENDS_ALIKE
            else "beside the middle"
        )
        lines.append("  {}: {:+.2f} % ({:+.2f} to {:+.2f} %)".format(what, *values))
    lines += [f"no data: {escape(line)}" for line in answer.no_data]
    rest = (textwrap.wrap(line.strip(), WIDTH - 4) for line in lines[1:])
    return "\n".join([lines[0], *("  " + "\n    ".join(parts) for parts in rest)])
