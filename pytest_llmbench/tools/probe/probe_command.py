"""`llmbench probe`: classify a build as slow or fast, for `git bisect run`."""

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
    add_baseline_options,
    print_to_stderr,
    rename_flags,
)

if TYPE_CHECKING:
    from pytest_llmbench.tools.probe.probe_runs import ProbeAnswer

NAME = "probe"

# `git bisect run` reads 0 as good, 125 as skip, other codes up to 127 as bad, and stops
# above 127. So an error of this command must exit with more than 127.
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
    ProbeOutcome.NOT_SLOWER: "not slower: the build is faster than the middle of the good and bad ends",
    ProbeOutcome.SLOWER: "slower: the build is slower than the middle of the good and bad ends",
    ProbeOutcome.CANNOT_TELL: "inconclusive: the build may be slower or faster than the middle of the good and bad ends",
    ProbeOutcome.DOES_NOT_RUN: "does not run: the build has no valid run",
    ProbeOutcome.ENDS_ALIKE: "nothing to search: the bad end is not clearly slower than the good end",
    ProbeOutcome.STOPPED: "the command was stopped from outside (by the cluster, a time limit or a user)",
}

EXIT_CODES = (
    "Exit code for `git bisect run`: 0 faster than the middle of the good and bad ends, 1 slower, 125 does not run or "
    "inconclusive, 128 cannot continue (the ends are alike, or the command was stopped), 129 usage error."
)


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench probe`."""
    parser = commands.add_parser(
        NAME,
        help="For `git bisect run`: is a build as slow as the bad end or as fast as the good end?",
        description="For `git bisect run`: is a build as slow as the bad end or as fast as the good end?",
        epilog=EXIT_CODES,
        usage="%(prog)s --good RUNS --bad RUNS (RUNS | --runs DIR -- COMMAND...)",
    )
    parser.add_argument(
        "--good",
        metavar="RUNS",
        required=True,
        help="Runs of the good (fast) end: a folder, log or archive.",
    )
    parser.add_argument(
        "--bad",
        metavar="RUNS",
        required=True,
        help="Runs of the bad (slow) end: a folder, log or archive.",
    )
    parser.add_argument(
        "--runs",
        metavar="DIR",
        type=Path,
        help="Folder for the runs of COMMAND. Each start gets a new folder in it; COMMAND finds its path in the "
        "environment variable LLMBENCH_RUN, and {LLMBENCH_RUN} in COMMAND is replaced by it.",
    )
    parser.add_argument(
        "--configuration",
        metavar="ID",
        default="",
        help="Configuration to compare, if both ends have runs of several.",
    )
    add_baseline_options(parser)
    parser.add_argument(
        "words",
        metavar="RUNS | COMMAND",
        nargs="+",
        help="Runs of the build; or, with --runs, the command that makes one run, started up to 4 times.",
    )
    parser.set_defaults(command=_run)


def guard_exit(run: Callable[[], int]) -> int:
    """Run a command line and return its exit code for git.

    An error of this program must not look like a bad build to git.
    """
    try:
        code = run()
    except SystemExit as error:
        if isinstance(error.code, int):
            code = error.code
        elif error.code is None:
            code = 0
        else:  # an error message
            code = USAGE
    except Exception:  # noqa: BLE001 (a bug of this program is no verdict on the build)
        traceback.print_exc()
        return STOP
    return USAGE if code == 2 else code  # argparse and `main` use 2 for usage errors


def _run(arguments: argparse.Namespace) -> Output:
    """Run `llmbench probe`. The exit codes are those that `git bisect run` expects."""
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
            "found several paths of runs: give one folder, or --runs=DIR -- COMMAND"
        )
    with rename_flags():
        good = find_readable("--good", arguments.good, directory)
        bad = find_readable("--bad", arguments.bad, directory)
        if arguments.runs is None:
            new = find_readable("RUNS", arguments.words[0], directory)
        else:
            new = make_candidate_folder(directory / arguments.runs)
        # The names of these paths help to identify the configuration.
        arguments.logs = [arguments.good, arguments.bad, str(new)]
        settings = resolve_settings(arguments)
    request = ProbeRequest(good, bad, new, arguments.configuration)

    def make_run(number: int) -> int:
        """Run COMMAND in a new folder and return its exit code."""
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
        return Output("probe: cannot continue", STOP)
    return Output(_describe(answer), CODES[answer.outcome])


def _read_clock() -> datetime:
    return datetime.now(UTC)


def _describe(answer: ProbeAnswer) -> str:
    """Format the answer: its sentence, the runs, the interval and the unusable runs."""
    head = f"probe: {SENTENCES[answer.outcome]}"
    details = [f"{answer.configuration}, valid runs of the build: {answer.runs}"]
    estimate = answer.estimate
    if estimate is not None:
        label = "relative to the middle"
        if answer.outcome is ProbeOutcome.ENDS_ALIKE:
            label = "bad relative to good"
        # The estimate is the logarithm of a ratio.
        difference, low, high = (
            100 * math.expm1(logarithm)
            for logarithm in (estimate.difference, estimate.low, estimate.high)
        )
        details.append(f"{label}: {difference:+.2f} % ({low:+.2f} to {high:+.2f} %)")
    details += [f"no data: {escape(line)}" for line in answer.no_data]
    wrapped = [textwrap.wrap(detail.strip(), WIDTH - 4) for detail in details]
    return "\n".join([head, *("  " + "\n    ".join(lines) for lines in wrapped)])
