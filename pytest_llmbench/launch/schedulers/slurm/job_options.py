"""How Slurm is told of a job: by variables, by options of sbatch, by the words of a
command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.core.job_records import Cluster, Job, JobSpec, Purpose

SBATCH = "sbatch"  # both the program and the way to submit by it

# launchers wrap what they print at the width of a terminal, in the middle of paths
WIDE = "400"

NODELIST = "--nodelist="

# keys of a cluster file that are options of sbatch by the same names
OPTIONS = ("qos", "reservation", "constraint", "segment", "nodelist")

# sbatch reads the first of each, srun the second
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "account": ("SBATCH_ACCOUNT", "SLURM_ACCOUNT"),
    "partition": ("SBATCH_PARTITION", "SLURM_PARTITION"),
    "gres": ("SBATCH_GPUS_PER_NODE", "SLURM_GPUS_PER_NODE"),
    "time_limit": ("TIME_LIMIT",),
}


def runs_in_recipe(via: str) -> bool:
    """Return False for llmb-run, which runs where its document says."""
    return via != "llmb-run"


def list_variables(via: str) -> dict[str, str]:
    """Return the width of the terminal for launchers that print a job id and a
    folder."""
    return {"COLUMNS": WIDE} if via in ("script", "llmb-run") else {}


def drop_misread_variables(variables: dict[str, str]) -> dict[str, str]:
    """Return variables without SLURM_GPUS_PER_NODE=null, which srun takes for a number:
    see docs/cluster.md."""
    return {
        name: value
        for name, value in variables.items()
        if (name, value) != ("SLURM_GPUS_PER_NODE", "null")
    }


def complete_command(
    via: str, words: Sequence[str], cluster: Cluster
) -> tuple[str, ...]:
    """Return a command of sbatch with GPUs and time limit of the cluster file; its own
    options come later, and win."""
    if via != SBATCH or Path(words[0]).name != SBATCH:
        return tuple(words)
    program, *others = words
    return (
        program,
        *_format_options({"--gres": cluster.gres, "--time": cluster.time_limit}),
        *others,
    )


def list_options(via: str, cluster: Cluster) -> tuple[str, ...]:
    """Return what sbatch gets besides a command, whatever calls it."""
    # a command of sbatch has its time limit, where it can be seen
    limit = cluster.time_limit if via != SBATCH else ""
    return _format_options(
        {"--time": limit, **{f"--{name}": getattr(cluster, name) for name in OPTIONS}}
    )


def format_cancel(job_ids: Sequence[str]) -> str:
    """Return `scancel 4711 4712`; "" without a job."""
    return f"scancel {' '.join(job_ids)}" if job_ids else ""


def format_inquiry(job_id: str) -> str:
    """Return `sacct -j 4711`."""
    return f"sacct -j {job_id}"


def format_on_node(command: str, environment: Mapping[str, str]) -> str:
    """Return the srun that runs a command on a node, with the account and partition of
    an environment."""
    words = []
    for option, name in (
        ("--account", "SBATCH_ACCOUNT"),
        ("--partition", "SBATCH_PARTITION"),
    ):
        if value := environment.get(name):
            words += [option, value]
    return " ".join(["srun", *map(shlex.quote, words), f'bash -c "{command}"'])


def find_output(job: Job) -> Path:
    """Return the file that sbatch names for the output of a job."""
    return job.spec.directory / f"slurm-{job.job_id}.out"


def _format_options(options: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in options.items() if value)


# --- nodes --------------------------------------------------------------------


def pin_nodes(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Return a job that gets exactly these nodes."""
    options = _list_without(spec, NODELIST)
    return replace(spec, scheduler_options=(*options, f"{NODELIST}{','.join(nodes)}"))


def is_pinned(spec: JobSpec) -> bool:
    """Return True if a job names the nodes that it gets."""
    return any(option.startswith(NODELIST) for option in spec.scheduler_options)


def _list_without(spec: JobSpec, *starts: str) -> Iterator[str]:
    return (
        option for option in spec.scheduler_options if not option.startswith(starts)
    )


def build_node_check(
    command: str,
    spec: JobSpec,
    cluster: Cluster,
    nodes: Sequence[str],
    *,
    minutes: int,
    output: Path,
) -> JobSpec:
    """Return the job that runs a command once on each of these nodes, with the account
    and GPUs of a configuration."""
    options = {
        "--account": cluster.account,
        "--partition": cluster.partition,
        "--gres": cluster.gres,
        "--time": f"00:{minutes}:00",
        "--nodes": str(len(nodes)),
        "--ntasks-per-node": "1",
        "--nodelist": ",".join(nodes),
        "--output": str(output).format(job="%j"),
    }
    # blocks of nodes are those of the configuration
    kept = tuple(_list_without(spec, "--time=", NODELIST, "--segment="))
    return replace(
        spec,
        purpose=Purpose.CHECK_NODES,
        via=SBATCH,
        command=(SBATCH, *_format_options(options), f"--wrap={command}"),
        scheduler_options=kept,
    )
