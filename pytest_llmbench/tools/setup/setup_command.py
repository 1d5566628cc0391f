"""Commands to run before the first launch.

`llmbench setup` runs the setup step of a recipe. `llmbench cluster` drafts cluster.yaml
from Slurm's description of the cluster.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.job_records import Cluster, LaunchFacts
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.runtime import describe_missing_proc
from pytest_llmbench.report.output_files import NEW, write_atomically
from pytest_llmbench.tools.command_line import (
    Output,
    Subparsers,
    print_to_stdout,
    read_shipped_and_custom_recipes,
)

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Recipe
    from pytest_llmbench.launch.plan.planned_job import PlannedJob

HOURS = 4.0
"""Time limit of a setup step. Importing an image takes up to an hour."""


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench setup`."""
    parser = commands.add_parser(
        "setup", help="Run the setup step of a recipe and wait until it ends."
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="Name of the recipe as in `llmbench baselines list`, such as grok1.",
    )
    parser.add_argument(
        "--release",
        metavar="RELEASE",
        default="",
        help="Release of the recipe (default: the installed release, else the only release).",
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        type=Path,
        help="The cluster file, as pytest's --llmb-cluster (default: cluster.yaml in the current folder).",
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        type=Path,
        help="Folder with the recipe's setup.sh (default: as in the cluster file).",
    )
    parser.add_argument(
        "--baselines",
        metavar="DIR",
        action="append",
        type=Path,
        default=[],
        help="Folder of baseline files, added to the shipped files; may be repeated (default: none).",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Print the setup command without running it.",
    )
    parser.set_defaults(command=_run_setup)


def _run_setup(arguments: argparse.Namespace) -> Output:
    """Run `llmbench setup`. The exit code is 1 if the setup failed."""
    options = SetupOptions(
        recipe=arguments.recipe,
        release=arguments.release,
        cluster=arguments.cluster,
        folder=arguments.folder,
        dry_run=arguments.dry_run,
    )
    recipes = read_shipped_and_custom_recipes(arguments.baselines)
    message, has_succeeded = set_up(
        options, recipes, Path.cwd(), caller=os.environ, print_text=print_to_stdout
    )
    return Output(message, code=0 if has_succeeded else 1)


class SetupOptions(Struct, frozen=True):
    """The options of `llmbench setup`."""

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
    print_text: Callable[[str], None],
) -> tuple[str, bool]:
    """Run the setup step of a recipe.

    `caller` is the environment of the caller. `print_text` prints progress. Returns the
    final message, and True if the step succeeded. A dry run only checks the step and
    returns its command, and True if no problem was found. Raises LaunchError if the step
    cannot start, for example for an unknown recipe or a missing folder.
    """
    from pytest_llmbench.launch.jobs.setup_step import (
        build_setup_step,
        check_setup,
        describe_import,
    )

    cluster = _read_cluster(options.cluster, directory)
    facts = choose_recipe(options.recipe, options.release, recipes, cluster)
    folder = directory / options.folder if options.folder else None
    step = build_setup_step(facts, cluster, caller, folder)
    problems = describe_missing_proc() or check_setup(step)
    if options.dry_run:
        texts = (_format_step(step, caller), describe_import(step), problems)
        return "\n".join(filter(None, texts)), not problems
    if problems:
        raise LaunchError(problems)
    return _run(step, directory, caller, print_text)


def _run(
    step: PlannedJob,
    directory: Path,
    caller: Mapping[str, str],
    print_text: Callable[[str], None],
) -> tuple[str, bool]:
    """Run a setup step and wait until it ends.

    Writes its log to `.llmbench/setup` in `directory`. Returns the final message, and
    True if the step succeeded.
    """
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
    log_name = f"{facts.recipe}-{facts.release}-{read_clock():%Y%m%d-%H%M%S}.log"
    log = directory / ".llmbench" / "setup" / log_name
    schedulers = Schedulers(Tools(run, dict(step.spec.environment)))
    scheduler = schedulers.find(step.spec) if is_cluster_job(step) else None
    print_text(_format_step(step, caller))
    host = SetupHost(print_text, read_clock, time.sleep, log, HOURS * 3600, scheduler)
    problem = run_setup(step, host)
    if problem:
        return problem, False
    hint = f"pytest -k {facts.recipe} --llmb-launch --llmb-dry-run"
    return f"{facts.recipe} {facts.release} is set up. Next: {hint}", True


def _format_step(step: PlannedJob, caller: Mapping[str, str]) -> str:
    """Format the variables, folder and command of a step as shell code."""
    from pytest_llmbench.launch.jobs.setup_step import list_setup_variables
    from pytest_llmbench.launch.preflight.dry_run import format_command, quote_word

    variables = [
        f"{name}={quote_word(value)}"
        for name, value in list_setup_variables(step, caller)
    ]
    change_folder = f"cd {quote_word(str(step.spec.directory))}"
    return "\n".join([*variables, change_folder, format_command(step.spec)])


def choose_recipe(
    name: str, release: str, recipes: Sequence[Recipe], cluster: Cluster
) -> LaunchFacts:
    """Return the launch facts of a recipe.

    Uses the requested release, else the only installed release, else the only known
    release. Raises LaunchError if the recipe or release is unknown or ambiguous.
    """
    from pytest_llmbench.launch.plan.fit import read_facts

    facts_of_recipes = map(read_facts, recipes)
    facts_with_setup = [
        facts for facts in facts_of_recipes if facts is not None and facts.setup
    ]
    names = sorted({facts.recipe for facts in facts_with_setup})
    if name not in names:
        raise LaunchError(
            f"no recipe {name!r} with a setup step{did_you_mean(name, names)}; expected {_join_alternatives(names)}"
        )
    by_release = {
        facts.release: facts for facts in facts_with_setup if facts.recipe == name
    }
    if release and release not in by_release:
        raise LaunchError(
            f"--release {release}: {name} has no such release; expected "
            f"{_join_alternatives(list(by_release))}{did_you_mean(release, by_release)}"
        )
    installed = [
        entry.release
        for entry in cluster.installed
        if entry.recipe == name and entry.release in by_release
    ]
    if release:
        releases = [release]
    elif len(set(installed)) == 1:  # may be listed more than once
        releases = installed[:1]
    else:
        releases = sorted(by_release)
    if len(releases) > 1:
        raise LaunchError(
            f"{name} has several releases: give --release, one of {', '.join(releases)}"
        )
    return by_release[releases[0]]


def _join_alternatives(names: Sequence[str]) -> str:
    """Join names: `a, b or c`."""
    *first_names, last = names
    if not first_names:
        return last
    return f"{', '.join(first_names)} or {last}"


def _read_cluster(path: Path | None, directory: Path) -> Cluster:
    """Read the cluster file; an empty Cluster if the default file does not exist.

    Raises LaunchError if a named file does not exist.
    """
    from pytest_llmbench.launch.plan.cluster_file import read_cluster

    default_file = directory / "cluster.yaml"
    file = directory / path if path else default_file
    if file.exists():
        return read_cluster(file)
    if file != default_file:
        raise LaunchError(f"--cluster {file}: no such file")
    return Cluster()


# --- the cluster file -----------------------------------------------------------------


def add_cluster(commands: Subparsers) -> None:
    """Add the parser of `llmbench cluster`."""
    parser = commands.add_parser(
        "cluster",
        help="Draft cluster.yaml from Slurm's description of this cluster, with the source of each value.",
    )
    parser.add_argument(
        "--gpu",
        metavar="TYPE",
        default="",
        help="GPU type to use if the cluster has several, such as h100.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="Write to this new file, such as cluster.yaml (default: print it).",
    )
    parser.set_defaults(command=_run_cluster)


def _run_cluster(arguments: argparse.Namespace) -> Output:
    """Run `llmbench cluster`: print the cluster file, or write it with -o."""
    from pytest_llmbench.core.commands import run
    from pytest_llmbench.launch.plan.cluster_file import format_cluster_file
    from pytest_llmbench.launch.schedulers.registry import Schedulers
    from pytest_llmbench.launch.schedulers.submission import Tools

    schedulers = Schedulers(Tools(run, os.environ))
    found_cluster = schedulers.learn_cluster(arguments.gpu.lower())
    if found_cluster is None:
        clusters = schedulers.list_clusters()
        names = " and ".join(cluster.name for cluster in clusters)
        inquiries = ", ".join(cluster.gpu_inquiry for cluster in clusters)
        missing = "no GPUs in a partition that accepts jobs"
        if arguments.gpu:
            missing = f"no GPUs of type {arguments.gpu}"
        raise LaunchError(
            f"{names} reports {missing} ({inquiries}): write cluster.yaml manually, see docs/reference/cluster.md"
        )
    text = format_cluster_file(found_cluster)
    path = arguments.output
    if path is None:
        return Output(text)
    try:
        write_atomically(path, redact_text(text).encode(), NEW, make_folders=False)
    except FileExistsError as error:
        raise LaunchError(
            f"{path}: the file exists and is not replaced: give another name with -o"
        ) from error
    except OSError as error:
        raise LaunchError(
            f"{path}: cannot be written: {error.strerror or error}"
        ) from error
    return Output(f"{path}: {found_cluster.describe()}")
