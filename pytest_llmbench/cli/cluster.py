"""`llmbench cluster`: the cluster file of this cluster, as far as Slurm knows what stands in it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_llmbench.cli import Output, Subparsers
from pytest_llmbench.core.errors import LaunchError


def add(commands: Subparsers) -> None:
    """Declare `llmbench cluster`."""
    parser = commands.add_parser("cluster", help="Write cluster.yaml with what Slurm says of this cluster, and why.")
    parser.add_argument("--gpu", metavar="TYPE", default="", help="Of several GPU types this one, such as h100.")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="A new file, such as cluster.yaml (default: print it)."
    )
    parser.set_defaults(command=_run_cluster)


def _run_cluster(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.launch.recipe.learned_cluster import learn_cluster, write_cluster_file
    from pytest_llmbench.launch.slurm import Slurm, run

    learned = learn_cluster(Slurm(run, os.environ), arguments.gpu.lower())
    if learned is None:
        which = f"no GPUs of type {arguments.gpu}" if arguments.gpu else "no GPUs in a partition that takes jobs"
        raise LaunchError(f"Slurm knows {which} (sinfo -o '%P %a %D %G'): write cluster.yaml by hand, docs/cluster.md")
    text = write_cluster_file(learned, arguments.output)
    return Output(text if arguments.output is None else f"{arguments.output}: {learned.describe()}")
