"""The command of a job, the folder where it runs and those of its log: templates of the document, filled."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.models import Key
from pytest_llmbench.core.models.jobs import Cluster, Command, InstalledRecipe, LaunchFacts, Purpose
from pytest_llmbench.launch.recipe import fit
from pytest_llmbench.launch.recipe.cluster import fill_references

_PARTS = re.compile(r"(\{\{|\}\})|\{(\w+)\}|\$(?:(\w+)|\{(\w+)\})", re.ASCII)
_OPTIONAL = ("account", "partition")
"""Placeholders that may be empty: the option that one stands for is left out."""

_UNKNOWN = re.compile(r"\{(?:experiment|timestamp|job|restart|checkpoint)\}")
"""What is known of a log's place only after the job was submitted."""


@dataclass(frozen=True, slots=True)
class JobParts:
    """What the parts of a job are made from."""

    key: Key
    facts: LaunchFacts
    cluster: Cluster
    command: Command
    installed: InstalledRecipe
    caller: Mapping[str, str]

    @property
    def documented(self) -> frozenset[str]:
        """The variables that the document names."""
        return frozenset(name for name, _ in (*self.facts.required, *self.facts.optional))


def find_placeholders(job: JobParts, nodes: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the placeholders of a command stand for."""
    key, cluster = job.key, job.cluster
    return {
        "account": cluster.account or find_first(environment, "SBATCH_ACCOUNT", "SLURM_ACCOUNT"),
        "partition": cluster.partition or find_first(environment, "SBATCH_PARTITION", "SLURM_PARTITION"),
        "nodes": str(nodes),
        "stage": find_first(environment, "STAGE_PATH", "LLMB_INSTALL"),
        "gpus_per_node": str(count_gpus_on_node(job)),
        "recipe": key.recipe,
        "size": key.size,
        "gpu": key.gpu,
        "dtype": key.dtype,
        "gpus": str(key.gpus),
        "gsw_version": job.facts.gsw_version,
        "experiment": name_experiment(key),
    }


def find_first(environment: Mapping[str, str], *names: str) -> str:
    """Return the first of some variables that is set, else nothing."""
    return next((environment[name] for name in names if environment.get(name)), "")


def count_gpus_on_node(job: JobParts) -> int:
    """Return how many GPUs of a node a job uses: all, or as many as it has."""
    return min(job.key.gpus, fit.count_gpus_per_node(job.key, job.facts, job.cluster))


def name_experiment(key: Key) -> str:
    """Return `pretrain_grok1_314b_bf16_256`, as the documents call an experiment."""
    return f"pretrain_{key.recipe}_{key.size}_{key.dtype}_{key.gpus}"


def fill(job: JobParts, template: str, values: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return one word of a template with its placeholders and $VARIABLES, in one pass: a value is never read as a
    template. A variable that is not set stays as it is written."""

    def value(match: re.Match[str]) -> str:
        brace, placeholder, plain, braced = match.groups()
        if brace:
            return str(brace[0])
        if placeholder is None:
            return environment.get(plain or braced, match[0])
        if placeholder not in values:
            where = f"{job.facts.file or job.facts.recipe}: launch: commands: {job.command.name}"
            raise LaunchError(f"{where}: {{{placeholder}}} is not known before a job is submitted")
        return values[placeholder]

    return _PARTS.sub(value, template)


def build_arguments(job: JobParts, values: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command as an argument list: the template is split first, so that a value stays one argument."""
    words: list[str] = []
    for template in _split(job):
        if any(template.endswith(f"{{{name}}}") and not values[name] for name in _OPTIONAL):
            if not template.startswith("-") and words and words[-1].startswith("-"):
                words.pop()
            continue
        words.append(fill(job, template, values, environment))
    if "\0" in "".join(words):
        raise LaunchError(f"{job.key.id}: its command holds a NUL, which no argument can carry")
    return (*words[:1], *_list_sbatch_options(job, words), *words[1:])


def _split(job: JobParts) -> list[str]:
    try:
        words = shlex.split(job.command.command)
    except ValueError as error:
        words = []
        reason = f"{error}: {job.command.command!r}"
    else:
        reason = "found no program in it"
    if not words:
        where = f"{job.facts.file or job.facts.recipe}: launch: commands: {job.command.name}: command"
        raise LaunchError(f"{where}: {reason}")
    return words


def _list_sbatch_options(job: JobParts, words: Sequence[str]) -> tuple[str, ...]:
    """Return what the cluster file adds to a command of sbatch; what the command itself says comes later, and wins."""
    if job.command.via != "sbatch" or Path(words[0]).name != "sbatch":
        return ()
    options = {"--gres": job.cluster.gres, "--time": job.cluster.time_limit}
    return tuple(f"{name}={value}" for name, value in options.items() if value)


def find_directory(job: JobParts, values: Mapping[str, str], environment: Mapping[str, str]) -> Path:
    """Return where the command runs: llmb-run where its document says, others in the installed recipe's folder, else
    where the document says, else beside the baseline file."""
    if job.installed.folder and job.command.via != "llmb-run":
        return Path(
            fill_references(
                str(job.installed.folder), job.caller, f"{name_source(job)}: folder of {job.installed.recipe}"
            )
        )
    if job.command.folder:
        return Path(fill(job, job.command.folder, values, environment))
    return job.facts.file.absolute().parent if job.facts.file else Path()


def find_log_folders(
    job: JobParts, purpose: Purpose, values: Mapping[str, str], environment: Mapping[str, str], directory: Path
) -> tuple[Path, ...]:
    """Return where the log will lie, down to the last folder that is known before the job is submitted.

    None for a job on this machine: its output lies in a folder of its own, and a log of an earlier job of Slurm with
    the same number must not be taken for it.
    """
    if job.command.via == "local" or not job.facts.log:
        return ()
    root = Path(find_first(environment, "LLMB_WORKLOAD", "STAGE_PATH") or directory)
    versions = [values["gsw_version"]]
    if purpose is Purpose.NCCL_TRACE:
        versions.insert(0, f"{versions[0]}-nccl-trace")
    return tuple(
        dict.fromkeys(root / _find_known_part(job, {**values, "gsw_version": version}) for version in versions)
    )


def _find_known_part(job: JobParts, values: Mapping[str, str]) -> Path:
    parts = job.facts.log.split("/")[:-1]
    unknown = (number for number, part in enumerate(parts) if _UNKNOWN.search(part))
    return Path(*(fill(job, part, values, {}) for part in parts[: next(unknown, len(parts))]))


def name_source(job: JobParts) -> str:
    """Return the cluster file for a message."""
    return str(job.cluster.source or "cluster")
