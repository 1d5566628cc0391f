"""Command line of the log generator.

`python -m generator DIR` writes the examples. `--configuration ID` writes a single run
of a documented configuration instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import get_args

from generator.experiments import table, write_experiments
from generator.plan import Ending
from generator.runs import write_run
from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes
from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.errors import LlmbenchError, did_you_mean


def build_parser() -> argparse.ArgumentParser:
    """Build the command line parser."""
    parser = argparse.ArgumentParser(prog="python -m generator", description=__doc__)
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", type=Path, help="folder to write to"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite the examples in the folder",
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table of the examples instead"
    )
    parser.add_argument(
        "--configuration",
        metavar="ID",
        help="write one run of this configuration instead",
    )
    parser.add_argument(
        "--factor",
        type=float,
        default=1.0,
        help="step time / documented step time (default: 1.0)",
    )
    parser.add_argument(
        "--last-step-factor",
        type=float,
        default=1.0,
        help="last step / other steps (default: 1.0)",
    )
    parser.add_argument(
        "--noise",
        type=float,
        default=0.005,
        help="relative noise of a step (default: 0.005)",
    )
    parser.add_argument(
        "--ending",
        choices=get_args(Ending),
        default="finished",
        help="how the run ends (default: finished)",
    )
    parser.add_argument(
        "--job-id", metavar="N", help="Slurm job id (default: from the configuration)"
    )
    parser.add_argument(
        "--started",
        metavar="TIME",
        type=parse_time,
        help="start time, in UTC (default: from the configuration)",
    )
    return parser


def parse_time(text: str) -> datetime:
    """Parse an ISO 8601 time, in UTC unless it has a time zone."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


@cache
def shipped() -> dict[str, Baseline]:
    """Return the documented baselines by id."""
    recipes = read_recipes(list_shipped_baselines())
    return {
        baseline.key.id: baseline for recipe in recipes for baseline in recipe.baselines
    }


def write_single_run(
    folder: Path, arguments: argparse.Namespace, baselines: dict[str, Baseline]
) -> str:
    """Write one run with the given options, and return the path of its log.

    Raises LlmbenchError if the configuration is unknown.
    """
    name = arguments.configuration
    if name not in baselines:
        hint = (
            did_you_mean(name, baselines)
            or ". List them with `llmbench baselines list`"
        )
        raise LlmbenchError(f"configuration {name!r} is not documented{hint}")
    names = ("factor", "last_step_factor", "noise", "ending", "job_id", "started")
    options = {
        option: getattr(arguments, option)
        for option in names
        if getattr(arguments, option) is not None
    }
    return str(write_run(folder, baselines[name], **options))


def write_examples(folder: Path, force: bool, baselines: dict[str, Baseline]) -> str:
    """Write the examples.

    Raises LlmbenchError if the folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()) and not force:
        raise LlmbenchError(
            f"{folder} is not empty. Choose another folder, or add --force"
        )
    write_experiments(folder, baselines, replace=force)
    return str(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0, or 2 after a message if nothing could be written.
    """
    options = build_parser().parse_args(arguments)
    if options.folder is None and not options.table:
        build_parser().error("DIR is missing. Name the folder to write to")
    try:
        baselines = shipped()
        if options.table:
            print(table(baselines), end="")
        elif options.configuration:
            print(write_single_run(options.folder, options, baselines))
        else:
            print(write_examples(options.folder, options.force, baselines))
    except FileExistsError as error:
        print(
            f"{error.filename} exists. Choose another --job-id and --started",
            file=sys.stderr,
        )
        return 2
    except LlmbenchError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
