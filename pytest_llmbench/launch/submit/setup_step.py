"""A recipe's own setup step, the documented way: what it is, whether it can run, and what it needs around it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.models import Key
from pytest_llmbench.core.models.jobs import Cluster, InstalledRecipe, JobSpec, LaunchFacts, Pairs, Purpose
from pytest_llmbench.launch.preflight import check_files
from pytest_llmbench.launch.preflight.check_files import STAGES, LocalMachine
from pytest_llmbench.launch.preflight.problems import JobProblem, PlannedJob, describe_problems, group_problems
from pytest_llmbench.launch.recipe.cluster import fill_references
from pytest_llmbench.launch.recipe.redaction import find_secret_names

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPTIONAL = {"{account}": "-A", "{partition}": "-p"}
"""Placeholders that may be empty, with the option that is left out with them."""


@dataclass(frozen=True, slots=True)
class SetupStep:
    """The setup step of one recipe: a complete command, where it runs and with which variables."""

    facts: LaunchFacts
    command: tuple[str, ...]
    directory: Path
    environment: Pairs
    secrets: tuple[str, ...]

    @property
    def submits(self) -> bool:
        """Whether it is a job of Slurm; else it runs where it is started."""
        return self.command[0] == "sbatch"

    @property
    def images(self) -> list[Path]:
        """Where the container image may lie afterwards; nothing for a recipe without one."""
        return check_files.find_images(self.facts.image, check_files.find_stages(self.planned))

    @property
    def planned(self) -> PlannedJob:
        """The step as a job, for the checks that all jobs go through."""
        facts = self.facts
        spec = JobSpec(
            case_id=f"{facts.recipe} {facts.release}",
            key=Key(facts.recipe, "", facts.release, "", "", 0),
            purpose=Purpose.MEASURE,
            via="sbatch" if self.submits else "local",
            command=self.command,
            directory=self.directory,
            environment=self.environment,
            secrets=self.secrets,
            nodes=1,
            gpus=0,
            gpu_hours=0.0,
        )
        return PlannedJob(spec, facts)


def build_setup_step(
    facts: LaunchFacts, cluster: Cluster, caller: Mapping[str, str], folder: Path | None = None
) -> SetupStep:
    """Return the setup step of a recipe; LaunchError where it has none or nothing says where its script lies.

    It runs as the document has it typed into a shell, so the caller's environment is its own (proxies, credentials of
    registries); the cluster file adds to it, and what the recipe forbids is removed.
    """
    if not facts.setup:
        raise LaunchError(f"{facts.recipe} {facts.release} has no setup step: nothing to do")
    installed = _find_installed(facts, cluster)
    environment = _build_environment(facts, cluster, installed, caller)
    command = _build_command(facts.setup, cluster, environment)
    return SetupStep(
        facts=facts,
        command=command,
        directory=_find_directory(facts, command, folder or _find_own_folder(installed, caller)),
        environment=tuple(environment.items()),
        secrets=find_secret_names(environment, cluster.secrets),
    )


def check_setup(step: SetupStep, machine: LocalMachine | None = None) -> str:
    """Return what is in the way of a setup step as one text, empty if nothing is."""
    planned, on = step.planned, machine or LocalMachine()
    needs_own_python = step.facts.virtual_environment or bool(step.facts.python)  # what it installs goes there
    facts = replace(step.facts, virtual_environment=needs_own_python, needs_token=False, required=_select_stages(step))
    checks = (
        check_files.check_variables,
        check_files.check_stage,
        check_files.check_script,
        check_files.check_programs,
        check_files.check_python,
    )
    problems = [(planned, finding) for check in checks for finding in check(replace(planned, facts=facts), on)]
    return describe_problems(group_problems([*problems, *((planned, finding) for finding in _check_sbatch(step))]))


def _check_sbatch(step: SetupStep) -> list[JobProblem]:
    path = dict(step.environment).get("PATH", "")
    if not step.submits or shutil.which("sbatch", path=path):
        return []
    return [JobProblem("there is no Slurm on this machine: no sbatch on the PATH", "use a login node")]


def _select_stages(step: SetupStep) -> Pairs:
    return tuple((name, meaning) for name, meaning in step.facts.required if name in STAGES)


def _find_installed(facts: LaunchFacts, cluster: Cluster) -> InstalledRecipe:
    own = [
        entry for entry in cluster.installed if entry.recipe == facts.recipe and entry.release in (facts.release, "")
    ]
    own.sort(key=lambda entry: entry.release != facts.release)
    return own[0] if own else InstalledRecipe(facts.recipe, facts.release)


# --- its environment and command --------------------------------------------------------------------------


def _build_environment(
    facts: LaunchFacts, cluster: Cluster, installed: InstalledRecipe, caller: Mapping[str, str]
) -> dict[str, str]:
    environment = dict(caller)
    for name, value in (("ACCOUNT", cluster.account), ("PARTITION", cluster.partition)):
        if value:  # sbatch reads the one, srun the other
            environment |= {f"SBATCH_{name}": value, f"SLURM_{name}": value}
    for name, value in (*cluster.environment, *installed.environment):
        environment[name] = fill_references(value, caller, f"{name} in the cluster file")
    if installed.virtual_environment:
        virtual = fill_references(
            str(installed.virtual_environment), caller, "`virtual_environment` in the cluster file"
        )
        path = os.pathsep.join(filter(None, (f"{virtual}/bin", environment.get("PATH", ""))))
        environment |= {"VIRTUAL_ENV": virtual, "PATH": path}
    forbidden = {name for name, _ in facts.forbidden}
    return {name: value for name, value in environment.items() if name not in forbidden}


def _build_command(template: str, cluster: Cluster, environment: dict[str, str]) -> tuple[str, ...]:
    """Fill the template word by word, so that no value becomes two; leading assignments go to the environment."""
    stage = next((environment[name] for name in STAGES if environment.get(name)), "")
    values = {
        "{account}": cluster.account or environment.get("SBATCH_ACCOUNT", environment.get("SLURM_ACCOUNT", "")),
        "{partition}": cluster.partition or environment.get("SBATCH_PARTITION", environment.get("SLURM_PARTITION", "")),
        "{stage}": stage,
    }
    words = _drop_empty(shlex.split(template), values)
    while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
        words.pop(0)
        if value := _fill(assigned[2], values):
            environment[assigned[1]] = value
    command = tuple(_fill(word, values) for word in words)
    gres = [f"--gres={cluster.gres}"] if cluster.gres and command[0] == "sbatch" else []
    return (command[0], *gres, *command[1:])


def _drop_empty(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    rest: list[str] = []
    for word in words:
        if word in _OPTIONAL and not values[word] and rest and rest[-1] == _OPTIONAL[word]:
            rest.pop()
        else:
            rest.append(word)
    return rest


def _fill(word: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(?:account|partition|stage)\}", lambda match: values[match[0]], word)


def _find_own_folder(installed: InstalledRecipe, caller: Mapping[str, str]) -> Path | None:
    return (
        Path(fill_references(str(installed.folder), caller, "`folder` in the cluster file"))
        if installed.folder
        else None
    )


def _find_directory(facts: LaunchFacts, command: Sequence[str], folder: Path | None) -> Path:
    """Return the folder if the script of the step lies in it; never the current one by chance."""
    script = next((word for word in command if word.endswith(".sh")), command[0])
    if folder and (folder / script).is_file():
        return folder.absolute()
    looked = f"there is none in {folder}" if folder else "nothing says where that is"
    raise LaunchError(
        f"{facts.recipe} {facts.release} is set up by {script} in the folder of the recipe, and {looked}: "
        "give it with --folder=DIR, or as `folder` of the recipe under `installed:` in the cluster file"
    )
