"""Before the first launch: `llmbench cluster` writes down what Slurm knows, `llmbench
setup` runs a recipe's setup."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.job_records import Cluster, LaunchFacts
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.runtime import describe_missing_proc
from pytest_llmbench.report.output_files import NEW, write_atomically
from pytest_llmbench.tools.command_line import Output, Subparsers, read_recipes_in, tell

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Recipe
    from pytest_llmbench.launch.plan.planned_job import PlannedJob

# a setup step that takes longer is ended: importing an image takes up to an hour
HOURS = 4.0


def add(commands: Subparsers) -> None:
    """Declare `llmbench setup`."""
    parser = commands.add_parser(
        "setup", help="Run a recipe's own setup step, and wait for it."
    )
    parser.add_argument(
        "recipe", metavar="RECIPE", help="As `baselines list` names it, such as grok1."
    )
    parser.add_argument(
        "--release",
        metavar="RELEASE",
        default="",
        help="Default: the one that is installed.",
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        type=Path,
        help="As pytest's --llmb-cluster (default: cluster.yaml here).",
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        type=Path,
        help="Where the recipe's setup.sh lies (default: the cluster file's).",
    )
    parser.add_argument(
        "--baselines",
        metavar="DIR",
        action="append",
        type=Path,
        default=[],
        help="As in `baselines list`.",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="Print what would run, and run nothing."
    )
    parser.set_defaults(command=_run_setup)


def _run_setup(arguments: argparse.Namespace) -> Output:
    asked = SetupOptions(
        arguments.recipe,
        arguments.release,
        arguments.cluster,
        arguments.folder,
        arguments.dry_run,
    )
    text, is_good = set_up(
        asked, read_recipes_in(arguments.baselines), Path.cwd(), os.environ, tell
    )
    return Output(text, code=0 if is_good else 1)


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """What is set up, and how: the options of the command."""

    recipe: str
    release: str = ""
    cluster: Path | None = None
    folder: Path | None = None
    dry_run: bool = False


def set_up(
    options: SetupOptions,
    recipes: Sequence[Recipe],
    directory: Path,
    caller: Mapping[str, str],
    tell: Callable[[str], None],
) -> tuple[str, bool]:
    """Run the setup step of a recipe; return what to say at the end, and whether it
    went well.

    Raises LaunchError where it cannot even begin: an unknown recipe, no folder,
    something missing.
    """
    from pytest_llmbench.launch.jobs.setup_step import (
        build_setup_step,
        check_setup,
        describe_import,
    )

    cluster = _read_cluster(options.cluster, directory)
    facts = choose_recipe(options.recipe, options.release, recipes, cluster)
    step = build_setup_step(
        facts, cluster, caller, directory / options.folder if options.folder else None
    )
    problems = describe_missing_proc() or check_setup(step)
    if options.dry_run:
        shown = (_format_step(step, caller), describe_import(step), problems)
        return "\n".join(filter(None, shown)), not problems
    if problems:
        raise LaunchError(problems)
    return _run(step, directory, caller, tell)


def _run(
    step: PlannedJob,
    directory: Path,
    caller: Mapping[str, str],
    tell: Callable[[str], None],
) -> tuple[str, bool]:
    from pytest_llmbench.core.commands import run
    from pytest_llmbench.launch.jobs.setup_step import (
        SetupHost,
        is_cluster_job,
        run_setup,
    )
    from pytest_llmbench.launch.schedulers.registry import Schedulers
    from pytest_llmbench.launch.schedulers.submission import Tools

    def read_clock() -> datetime:
        return datetime.now(UTC)

    facts = step.facts
    log = (
        directory
        / ".llmbench"
        / "setup"
        / f"{facts.recipe}-{facts.release}-{read_clock():%Y%m%d-%H%M%S}.log"
    )
    schedulers = Schedulers(Tools(run, dict(step.spec.environment)))
    scheduler = schedulers.find(step.spec) if is_cluster_job(step) else None
    tell(_format_step(step, caller))
    problem = run_setup(
        step, SetupHost(tell, read_clock, time.sleep, log, HOURS * 3600, scheduler)
    )
    if problem:
        return problem, False
    hint = f"pytest -k {facts.recipe} --llmb-launch --llmb-dry-run"
    return f"{facts.recipe} {facts.release} is set up. Next: {hint}", True


def _format_step(step: PlannedJob, caller: Mapping[str, str]) -> str:
    """Return the variables, folder and command of a step as a shell takes them."""
    from pytest_llmbench.launch.jobs.setup_step import list_setup_variables
    from pytest_llmbench.launch.preflight.dry_run import format_command, quote_word

    variables = [
        f"{name}={quote_word(value)}"
        for name, value in list_setup_variables(step, caller)
    ]
    return "\n".join(
        [
            *variables,
            f"cd {quote_word(str(step.spec.directory))}",
            format_command(step.spec),
        ]
    )


def choose_recipe(
    name: str, release: str, recipes: Sequence[Recipe], cluster: Cluster
) -> LaunchFacts:
    """Return how the named recipe is launched, in the only release or the one that is
    installed or asked for."""
    from pytest_llmbench.launch.plan.fit import read_facts

    with_setup = [
        facts
        for recipe in recipes
        if (facts := read_facts(recipe)) is not None and facts.setup
    ]
    names = sorted({facts.recipe for facts in with_setup})
    if name not in names:
        raise LaunchError(
            f"no recipe {name!r} with a setup step{did_you_mean(name, names)}: expected {_join_alternatives(names)}"
        )
    own = {facts.release: facts for facts in with_setup if facts.recipe == name}
    if release and release not in own:
        raise LaunchError(
            f"--release {release}: {name} has {_join_alternatives(list(own))}{did_you_mean(release, own)}"
        )
    installed = {
        entry.release for entry in cluster.installed if entry.recipe == name
    } & own.keys()
    fitting = (
        [release] if release else sorted(installed if len(installed) == 1 else own)
    )
    if len(fitting) > 1:
        raise LaunchError(
            f"{name} has several releases: give --release, one of {', '.join(fitting)}"
        )
    return own[fitting[0]]


def _join_alternatives(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _read_cluster(path: Path | None, directory: Path) -> Cluster:
    from pytest_llmbench.launch.plan.cluster_file import read_cluster

    file = directory / (path or "cluster.yaml")
    if file.exists():
        return read_cluster(file)
    if file != directory / "cluster.yaml":
        raise LaunchError(f"--cluster {file}: no such file")
    return Cluster()


# --- the cluster file -----------------------------------------------------------------


def add_cluster(commands: Subparsers) -> None:
    """Declare `llmbench cluster`."""
    parser = commands.add_parser(
        "cluster",
        help="Write cluster.yaml with what Slurm says of this cluster, and why.",
    )
    parser.add_argument(
        "--gpu",
        metavar="TYPE",
        default="",
        help="Of several GPU types this one, such as h100.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="A new file, such as cluster.yaml (default: print it).",
    )
    parser.set_defaults(command=_run_cluster)


def _run_cluster(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.core.commands import run
    from pytest_llmbench.launch.plan.cluster_file import format_cluster_file
    from pytest_llmbench.launch.schedulers.registry import Schedulers
    from pytest_llmbench.launch.schedulers.submission import Tools

    schedulers = Schedulers(Tools(run, os.environ))
    learned = schedulers.learn_cluster(arguments.gpu.lower())
    if learned is None:
        asked = schedulers.list_clusters()
        names, looks = (
            " and ".join(each.name for each in asked),
            ", ".join(each.gpu_inquiry for each in asked),
        )
        which = (
            f"no GPUs of type {arguments.gpu}"
            if arguments.gpu
            else "no GPUs in a partition that takes jobs"
        )
        raise LaunchError(
            f"{names} knows {which} ({looks}): write cluster.yaml by hand, docs/reference/cluster.md"
        )
    text, path = format_cluster_file(learned), arguments.output
    if path is None:
        return Output(text)
    try:
        write_atomically(path, redact_text(text).encode(), NEW, make_folders=False)
    except FileExistsError as error:
        raise LaunchError(
            f"{path}: there is one already, and it is not replaced"
        ) from error
    except OSError as error:
        raise LaunchError(
            f"{path}: cannot be written: {error.strerror or error}"
        ) from error
    return Output(f"{path}: {learned.describe()}")
