"""`python -m generator DIR` writes the examples; with `--configuration ID` one run of
any documented configuration."""

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


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m generator", description=__doc__)
    line.add_argument(
        "folder", metavar="DIR", nargs="?", type=Path, help="where to write"
    )
    line.add_argument(
        "--force",
        action="store_true",
        help="write the examples over what is in the folder",
    )
    line.add_argument(
        "--table", action="store_true", help="print the table of the examples instead"
    )
    line.add_argument(
        "--configuration",
        metavar="ID",
        help="write one run of this configuration instead",
    )
    line.add_argument(
        "--factor",
        type=float,
        default=1.0,
        help="step time over the documented one (default: 1.0)",
    )
    line.add_argument(
        "--last-step-factor",
        type=float,
        default=1.0,
        help="last step over the others (default: 1.0)",
    )
    line.add_argument(
        "--noise",
        type=float,
        default=0.005,
        help="relative noise of a step (default: 0.005)",
    )
    line.add_argument(
        "--ending",
        choices=get_args(Ending),
        default="finished",
        help="how it ends (default: finished)",
    )
    line.add_argument(
        "--job-id", metavar="N", help="Slurm's job id (default: from the configuration)"
    )
    line.add_argument(
        "--started",
        metavar="TIME",
        type=moment,
        help="start, in UTC (default: from the configuration)",
    )
    return line


def moment(text: str) -> datetime:
    """Return an ISO 8601 time, UTC unless it says otherwise."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@cache
def shipped() -> dict[str, Baseline]:
    """Return the documented baselines by id."""
    recipes = read_recipes(list_shipped_baselines())
    return {
        baseline.key.id: baseline for recipe in recipes for baseline in recipe.baselines
    }


def write_one(
    folder: Path, arguments: argparse.Namespace, baselines: dict[str, Baseline]
) -> str:
    """Write one run as asked; return its log's path, LlmbenchError where the
    configuration is not known."""
    name = arguments.configuration
    if name not in baselines:
        hint = (
            did_you_mean(name, baselines) or "; `llmbench baselines list` prints them"
        )
        raise LlmbenchError(f"configuration {name!r} is not documented{hint}")
    names = ("factor", "last_step_factor", "noise", "ending", "job_id", "started")
    given = {
        option: getattr(arguments, option)
        for option in names
        if getattr(arguments, option) is not None
    }
    return str(write_run(folder, baselines[name], **given))


def write_all(folder: Path, force: bool, baselines: dict[str, Baseline]) -> str:
    """Write the examples; LlmbenchError where something is in the way."""
    if folder.exists() and any(folder.iterdir()) and not force:
        raise LlmbenchError(
            f"{folder} is not empty; name another folder, or add --force"
        )
    write_experiments(folder, baselines, replace=force)
    return str(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or 2 with a message where nothing
    could be written."""
    given = parser().parse_args(arguments)
    if given.folder is None and not given.table:
        parser().error("DIR is missing: the folder to write to")
    try:
        baselines = shipped()
        if given.table:
            print(table(baselines), end="")
        elif given.configuration:
            print(write_one(given.folder, given, baselines))
        else:
            print(write_all(given.folder, given.force, baselines))
    except FileExistsError as error:
        print(
            f"{error.filename} exists; give another --job-id and --started",
            file=sys.stderr,
        )
        return 2
    except LlmbenchError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
