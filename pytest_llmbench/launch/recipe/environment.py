"""The job of a configuration: its command, folder and environment, built from its recipe and never the caller's own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.models import Baseline
from pytest_llmbench.core.models.jobs import Cluster, InstalledRecipe, JobSpec, LaunchFacts, Pairs, Purpose
from pytest_llmbench.launch.recipe import fit
from pytest_llmbench.launch.recipe.cluster import fill_references
from pytest_llmbench.launch.recipe.command import (
    JobParts,
    build_arguments,
    count_gpus_on_node,
    fill,
    find_directory,
    find_log_folders,
    find_placeholders,
    name_experiment,
    name_source,
)
from pytest_llmbench.launch.recipe.redaction import find_secret_names

PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "SLURM_CONF")
"""What a command needs of the machine that it runs on; nothing else of the caller's but what the document names."""

PASSED_LOCALLY = ("CUDA_VISIBLE_DEVICES",)
"""The GPUs of this machine that the caller may use."""

ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""The caller's virtual environment, for a recipe that wants one to be active where the cluster file names none."""

WIDE = "400"
"""Launchers wrap what they print at the width of a terminal, in the middle of paths."""

IMAGE = "RUN_CONF_IMAGE"
"""The variable by which recipes take another container image than their document's."""

LONGEST_IMAGE = 200

LONGEST = 131_072
"""Bytes of one variable with its name and a NUL: Linux starts no process with a longer one (MAX_ARG_STRLEN)."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def build_job(
    baseline: Baseline,
    facts: LaunchFacts,
    cluster: Cluster,
    *,
    caller: Mapping[str, str],
    purpose: Purpose = Purpose.MEASURE,
    variables: Pairs = (),
    launcher: str = "",
    exclude: Sequence[str] = (),
) -> JobSpec:
    """Return the complete job of a configuration. `caller` is the environment of this process, `variables` are those of
    its purpose, `launcher` is what the option says, `exclude` nodes that it must not get besides the cluster's.

    Later wins: a short list of the caller's variables and those that the document names; account, partition and GPUs
    of the cluster; its `environment`, that of the installed recipe; what the command fixes; `variables`. What the
    document forbids, and what belongs to another purpose, is removed. Raises LaunchError for a launcher that the recipe
    does not have, GPUs that are no whole nodes, a `${NAME}` that is not set, and names and values that no process can
    have; what is required and not set is left to `list_missing`.
    """
    key = baseline.key
    command = fit.choose_command(key, facts, cluster, launcher)
    installed = fit.find_installed(key, cluster) or InstalledRecipe(key.recipe, key.release)
    job = JobParts(key, facts, cluster, command, installed, caller)
    nodes = fit.count_nodes(key, facts, cluster)
    environment = _build_environment(job, nodes, variables)
    values = find_placeholders(job, nodes, environment)
    directory = find_directory(job, values, environment)
    _check(job, environment)
    return JobSpec(
        case_id=key.id,
        key=key,
        purpose=purpose,
        via=command.via,
        command=build_arguments(job, values, environment),
        directory=directory,
        environment=tuple(environment.items()),
        secrets=find_secret_names(environment, (*cluster.secrets, *_list_carriers(job))),
        nodes=nodes,
        gpus=key.gpus,
        gpu_hours=fit.estimate_gpu_hours(baseline),
        log_folders=find_log_folders(job, purpose, values, environment, directory),
        experiment=name_experiment(key),
        exclude=tuple(dict.fromkeys((*cluster.exclude, *exclude))),
        job_id=command.job_id,
    )


def find_named_image(spec: JobSpec) -> dict[str, str]:
    """Return the container image that a job was told to use, as `container`; nothing where none was named."""
    image = dict(spec.environment).get(IMAGE, "").strip()
    shown = 0 < len(image) <= LONGEST_IMAGE and image.isprintable() and IMAGE not in spec.secrets
    return {"container": image} if shown else {}


def list_missing(spec: JobSpec, facts: LaunchFacts) -> list[str]:
    """Return the variables that the document requires and a job does not have, or has empty."""
    environment = dict(spec.environment)
    token = (("HF_TOKEN", ""),) if facts.needs_token else ()
    wanted = dict.fromkeys(name for name, _ in (*facts.required, *token))
    return [name for name in wanted if not environment.get(name)]


# --- environment ------------------------------------------------------------------------------------------


def _build_environment(job: JobParts, nodes: int, variables: Pairs) -> dict[str, str]:
    environment = {
        **_take_from_caller(job),
        **_take_from_cluster(job),
        **_fill_own(job.cluster.environment, job, "environment"),
        **_fill_own(job.installed.environment, job, f"installed: {job.installed.recipe}: environment"),
    }
    environment |= {
        name: value for name, value in _take_from_configuration(job, nodes).items() if name in job.documented
    }
    environment |= _name_workload(job, environment)
    values = find_placeholders(job, nodes, environment)
    environment |= {name: fill(job, text, values, {}) for name, text in job.command.fixed}
    environment |= _activate(job, environment)
    if job.command.via in ("script", "llmb-run"):
        environment["COLUMNS"] = WIDE
    unwanted = _list_unwanted(job.facts)
    return {**{name: value for name, value in environment.items() if name not in unwanted}, **dict(variables)}


def _take_from_caller(job: JobParts) -> dict[str, str]:
    local = PASSED_LOCALLY if job.command.via == "local" else ()
    active = ACTIVE if job.facts.virtual_environment else ()
    names = (*PASSED, *local, *active, *sorted(job.documented))
    variables = {name: job.caller[name] for name in names if name in job.caller}
    if variables.get("SLURM_GPUS_PER_NODE") == "null":  # srun takes it for a number: see docs/cluster.md
        del variables["SLURM_GPUS_PER_NODE"]
    return variables


def _take_from_cluster(job: JobParts) -> dict[str, str]:
    """Return account, partition, GPUs and time limit under the names that the document has for them."""
    cluster = job.cluster
    values = {
        **dict.fromkeys(("SBATCH_ACCOUNT", "SLURM_ACCOUNT"), cluster.account),
        **dict.fromkeys(("SBATCH_PARTITION", "SLURM_PARTITION"), cluster.partition),
        **dict.fromkeys(("SBATCH_GPUS_PER_NODE", "SLURM_GPUS_PER_NODE"), cluster.gres.removeprefix("gpu:")),
        "TIME_LIMIT": cluster.time_limit,
    }
    return {name: value for name, value in values.items() if value and name in job.documented}


def _fill_own(pairs: Pairs, job: JobParts, where: str) -> dict[str, str]:
    """Return variables of the cluster file, with `${NAME}` taken from the caller."""
    return {name: fill_references(value, job.caller, f"{name_source(job)}: {where}: {name}") for name, value in pairs}


def _list_carriers(job: JobParts) -> tuple[str, ...]:
    """Return the variables of the cluster file that take their value from a secret of the caller."""
    pairs = (*job.cluster.environment, *job.installed.environment)
    secrets = find_secret_names(job.caller, job.cluster.secrets)
    return tuple(name for name, value in pairs if any(f"${{{secret}}}" in value for secret in secrets))


def _take_from_configuration(job: JobParts, nodes: int) -> dict[str, str]:
    key = job.key
    return {
        "DTYPE": key.dtype,
        "MODEL_SIZE": key.size,
        "JOB_TOTAL_GPUS": str(key.gpus),
        "GPU_TYPE": key.gpu,
        "GPUS_PER_NODE": str(count_gpus_on_node(job)),
        "NUM_NODES": str(nodes),
    }


def _name_workload(job: JobParts, environment: Mapping[str, str]) -> dict[str, str]:
    """Return LLMB_WORKLOAD, where the document has it: what the caller has may be another recipe's."""
    own = dict((*job.cluster.environment, *job.installed.environment))
    install = environment.get("LLMB_INSTALL")
    if "LLMB_WORKLOAD" not in job.documented or "LLMB_WORKLOAD" in own or not install:
        return {}
    return {"LLMB_WORKLOAD": f"{install}/workloads/pretrain_{job.key.recipe}"}


def _activate(job: JobParts, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what activating the recipe's virtual environment would set."""
    if job.installed.virtual_environment is None:
        return {}
    folder = fill_references(
        str(job.installed.virtual_environment), job.caller, f"{name_source(job)}: virtual_environment"
    )
    name = "CONDA_PREFIX" if os.path.isdir(f"{folder}/conda-meta") else "VIRTUAL_ENV"  # False without permission
    return {name: folder, "PATH": os.pathsep.join(filter(None, (f"{folder}/bin", environment.get("PATH", ""))))}


def _list_unwanted(facts: LaunchFacts) -> frozenset[str]:
    """Return what the document forbids, and the switches of profiles, traces and checkpoints: those are set by the
    purpose of a job alone, or a run could be profiled and judged for its speed."""
    profiling = facts.profiling.enable if facts.profiling else ()
    checkpoint = (*facts.checkpoint.save, *facts.checkpoint.load) if facts.checkpoint else ()
    return frozenset(name for name, _ in (*facts.forbidden, *profiling, *facts.nccl_trace, *checkpoint))


def _check(job: JobParts, environment: Mapping[str, str]) -> None:
    """Refuse what no process can be given; the value may be a secret, and is not shown."""
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise LaunchError(
                f"{job.key.id}: {name!r} in {name_source(job)} is no name of a variable: expected letters, digits and _"
            )
        if "\0" in value:
            raise LaunchError(f"{job.key.id}: the value of {name} holds a NUL, which no environment can carry")
        if (size := len(os.fsencode(f"{name}={value}")) + 1) > LONGEST:
            raise LaunchError(
                f"{job.key.id}: {name} takes {size} bytes, and no process gets more than {LONGEST} in one"
            )
