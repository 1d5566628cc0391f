"""`llmbench setup`: a recipe's own setup step."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_llmbench.cli import Output, Subparsers, tell
from pytest_llmbench.cli.baselines import read_recipes_in


def add(commands: Subparsers) -> None:
    """Declare `llmbench setup`."""
    parser = commands.add_parser("setup", help="Run a recipe's own setup step, and wait for it.")
    parser.add_argument("recipe", metavar="RECIPE", help="As `baselines list` names it, such as grok1.")
    parser.add_argument("--release", metavar="RELEASE", default="", help="Default: the one that is installed.")
    parser.add_argument(
        "--cluster", metavar="FILE", type=Path, help="As pytest's --llmb-cluster (default: cluster.yaml here)."
    )
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, help="Where the recipe's setup.sh lies (default: the cluster file's)."
    )
    parser.add_argument(
        "--baselines", metavar="DIR", action="append", type=Path, default=[], help="As in `baselines list`."
    )
    parser.add_argument("--dry-run", action="store_true", help="Print what would run, and run nothing.")
    parser.set_defaults(command=_setup)


def _setup(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.cli.run_setup import SetupOptions, set_up

    asked = SetupOptions(arguments.recipe, arguments.release, arguments.cluster, arguments.folder, arguments.dry_run)
    text, is_good = set_up(asked, read_recipes_in(arguments.baselines), Path.cwd(), os.environ, tell)
    return Output(text, code=0 if is_good else 1)
