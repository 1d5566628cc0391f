"""The job of a configuration: its command, folders and environment, from its recipe and
never the caller's own."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.core.baseline_records import Baseline, Key
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    Cluster,
    Command,
    InstalledRecipe,
    JobSpec,
    LaunchFacts,
    Pairs,
    Purpose,
)
from pytest_llmbench.core.redaction import find_secret_names
from pytest_llmbench.launch.plan import fit
from pytest_llmbench.launch.plan.cluster_file import fill_references
from pytest_llmbench.launch.plan.purpose import list_switches
from pytest_llmbench.launch.schedulers.registry import list_schedulers, load_scheduler
from pytest_llmbench.launch.schedulers.scheduler import Scheduler

# what a command needs of the machine that it runs on; nothing else of the caller's but
# what the document names
_OF_MACHINE = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
)

# the caller's virtual environment, for a recipe that wants one to be active where the
# cluster file names none
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")

# the variable by which recipes take another container image than their document's
IMAGE = "RUN_CONF_IMAGE"

STAGES = (
    "STAGE_PATH",
    "LLMB_INSTALL",
)  # the variables of the folder that holds a recipe's image, and the results

LONGEST_IMAGE = 200

# bytes of one variable with its name and a NUL: Linux starts no process with a longer
# one (MAX_ARG_STRLEN)
LONGEST = 131_072

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_PARTS = re.compile(r"(\{\{|\}\})|\{(\w+)\}|\$(?:(\w+)|\{(\w+)\})", re.ASCII)
_OPTIONAL = (
    "account",
    "partition",
)  # placeholders that may be empty: the option that one stands for is left out

# what is known of a log's place only after the job was submitted
_UNKNOWN = re.compile(r"\{(?:experiment|timestamp|job|restart|checkpoint)\}")


@dataclass(frozen=True, slots=True)
class JobInputs:
    """What the parts of a job are made from."""

    key: Key
    facts: LaunchFacts
    cluster: Cluster
    command: Command
    installed: InstalledRecipe
    caller: Mapping[str, str]  # the environment of this process

    @property
    def scheduler(self) -> type[Scheduler]:
        """What will run the job."""
        return load_scheduler(self.command.via)

    @property
    def documented(self) -> frozenset[str]:
        """The variables that the document names."""
        return frozenset(
            name for name, _ in (*self.facts.required, *self.facts.optional)
        )


def build_job(
    baseline: Baseline,
    facts: LaunchFacts,
    cluster: Cluster,
    *,
    caller: Mapping[str, str],
    purpose: Purpose = Purpose.MEASURE,
    variables: Pairs = (),
    launcher: str = "",
) -> JobSpec:
    """Return the complete job of a configuration. `caller` is the environment of this
    process, `variables` are those of its purpose, and `launcher` is what the option
    says.

    Later wins: a short list of the caller's variables and those that the document
    names; account, partition and GPUs of the cluster; its `environment`, that of the
    installed recipe; what the command fixes; `variables`. What the document forbids,
    and what belongs to another purpose, is removed. Raises LaunchError for a launcher
    that the recipe does not have, GPUs that are no whole nodes, a `${NAME}` that is not
    set, and names and values that no process can have; what is required and not set is
    left to `list_missing`.
    """
    key = baseline.key
    command = fit.choose_command(key, facts, cluster, launcher)
    installed = fit.find_installed(key, cluster) or InstalledRecipe(
        key.recipe, key.release
    )
    job = JobInputs(key, facts, cluster, command, installed, caller)
    nodes = fit.count_nodes(key, facts, cluster)
    environment = _build_environment(job, nodes, variables)
    values = find_placeholders(job, nodes, environment)
    directory = find_directory(job, values, environment)
    _check(job, environment)
    scheduler = job.scheduler
    spec = JobSpec(
        case_id=key.id,
        key=key,
        purpose=purpose,
        via=command.via,
        command=build_arguments(job, values, environment),
        directory=directory,
        environment=tuple(environment.items()),
        secrets=find_secret_names(
            environment, (*cluster.secrets, *_list_carriers(job))
        ),
        nodes=nodes,
        gpus=key.gpus,
        gpu_hours=fit.estimate_gpu_hours(
            baseline, fit.count_steps(baseline, facts, purpose, environment)
        ),
        gpus_per_node=0
        if scheduler.here
        else fit.count_gpus_per_node(key, facts, cluster),
        log_folders=find_log_folders(job, purpose, values, environment, directory),
        experiment=name_experiment(key),
        exclude=tuple(dict.fromkeys(cluster.exclude)),
        scheduler_options=_list_options(job),
        job_id=command.job_id,
    )
    return replace(spec, gpu_hours=spec.gpu_hours * spec.occupied_gpus / spec.gpus)


def find_container_image(spec: JobSpec) -> dict[str, str]:
    """Return the container image that a job was told to use, as `container`; nothing
    where none was named."""
    image = dict(spec.environment).get(IMAGE, "").strip()
    shown = (
        0 < len(image) <= LONGEST_IMAGE
        and image.isprintable()
        and IMAGE not in spec.secrets
    )
    return {"container": image} if shown else {}


def list_missing(spec: JobSpec, facts: LaunchFacts) -> list[str]:
    """Return the variables that the document requires, or the words of its own
    configuration name, and a job does not have, or has empty."""
    environment = dict(spec.environment)
    token = (("HF_TOKEN", ""),) if facts.needs_token else ()
    launchers = {command.name for command in facts.commands if command.via == spec.via}
    own = (
        text
        for name, text in dict(facts.arguments).get(spec.key, ())
        if name in launchers
    )
    named = (
        match[3] or match[4]
        for text in own
        for match in _PARTS.finditer(text)
        if match[3] or match[4]
    )
    wanted = dict.fromkeys((*(name for name, _ in (*facts.required, *token)), *named))
    return [name for name in wanted if not environment.get(name)]


# --- environment ----------------------------------------------------------------------


def _build_environment(job: JobInputs, nodes: int, variables: Pairs) -> dict[str, str]:
    environment = {
        **_take_from_caller(job),
        **_take_from_cluster(job),
        **_fill_own(job.cluster.environment, job, "environment"),
        **_fill_own(
            job.installed.environment,
            job,
            f"installed: {job.installed.recipe}: environment",
        ),
    }
    environment |= {
        name: value
        for name, value in _take_from_configuration(job, nodes).items()
        if name in job.documented
    }
    environment |= _name_workload(job, environment)
    values = find_placeholders(job, nodes, environment)
    environment |= {
        name: fill(job, text, values, {}) for name, text in job.command.fixed
    }
    environment |= activate(job, environment)
    environment |= job.scheduler.list_variables(job.command.via)
    unwanted = _list_unwanted(job.facts)
    return {
        **{name: value for name, value in environment.items() if name not in unwanted},
        **dict(variables),
    }


def list_passed(via: str) -> tuple[str, ...]:
    """Return the variables of the caller that every job gets which is submitted in this
    way."""
    scheduler = load_scheduler(via)
    # a command on a login node may ask the scheduler of its cluster
    asked = list_schedulers() if scheduler.here else [scheduler]
    names = (name for each in asked for name in each.configuration_variables)
    return (*_OF_MACHINE, *names)


def _take_from_caller(job: JobInputs) -> dict[str, str]:
    active = ACTIVE if job.facts.virtual_environment else ()
    names = (
        *list_passed(job.command.via),
        *job.scheduler.device_variables,
        *active,
        *sorted(job.documented),
    )
    variables = {name: job.caller[name] for name in names if name in job.caller}
    for scheduler in list_schedulers():
        variables = scheduler.drop_misread_variables(variables)
    return variables


def _take_from_cluster(job: JobInputs) -> dict[str, str]:
    """Return account, partition, GPUs and time limit under the names that the document
    has for them."""
    return {
        name: value
        for name, value in name_settings(job.cluster).items()
        if name in job.documented
    }


def name_settings(cluster: Cluster) -> dict[str, str]:
    """Return account, partition, GPUs and time limit under all names that a document
    may have for them."""
    settings = {
        "account": cluster.account,
        "partition": cluster.partition,
        "gres": cluster.gres.removeprefix("gpu:"),
        "time_limit": cluster.time_limit,
    }
    return {
        name: settings[key]
        for scheduler in list_schedulers()
        for key, names in scheduler.cluster_variables.items()
        for name in names
        if settings[key]
    }


def _fill_own(pairs: Pairs, job: JobInputs, where: str) -> dict[str, str]:
    """Return variables of the cluster file, with `${NAME}` taken from the caller."""
    return {
        name: fill_references(value, job.caller, f"{name_source(job)}: {where}: {name}")
        for name, value in pairs
    }


def _list_carriers(job: JobInputs) -> tuple[str, ...]:
    """Return the variables of the cluster file that take their value from a secret of
    the caller."""
    pairs = (*job.cluster.environment, *job.installed.environment)
    secrets = find_secret_names(job.caller, job.cluster.secrets)
    return tuple(
        name
        for name, value in pairs
        if any(f"${{{secret}}}" in value for secret in secrets)
    )


def _take_from_configuration(job: JobInputs, nodes: int) -> dict[str, str]:
    key = job.key
    return {
        "DTYPE": key.dtype,
        "MODEL_SIZE": key.size,
        "JOB_TOTAL_GPUS": str(key.gpus),
        "GPU_TYPE": key.gpu,
        "GPUS_PER_NODE": str(count_gpus_on_node(job)),
        "NUM_NODES": str(nodes),
    }


def _name_workload(job: JobInputs, environment: Mapping[str, str]) -> dict[str, str]:
    """Return LLMB_WORKLOAD, where the document has it: what the caller has may be
    another recipe's."""
    own = dict((*job.cluster.environment, *job.installed.environment))
    install = environment.get("LLMB_INSTALL")
    if "LLMB_WORKLOAD" not in job.documented or "LLMB_WORKLOAD" in own or not install:
        return {}
    return {"LLMB_WORKLOAD": f"{install}/workloads/pretrain_{job.key.recipe}"}


def activate(job: JobInputs, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what activating the recipe's virtual environment would set."""
    if job.installed.virtual_environment is None:
        return {}
    folder = fill_references(
        str(job.installed.virtual_environment),
        job.caller,
        f"{name_source(job)}: virtual_environment",
    )
    name = (
        "CONDA_PREFIX" if os.path.isdir(f"{folder}/conda-meta") else "VIRTUAL_ENV"
    )  # False without permission
    return {
        name: folder,
        "PATH": os.pathsep.join(
            filter(None, (f"{folder}/bin", environment.get("PATH", "")))
        ),
    }


def _list_unwanted(facts: LaunchFacts) -> frozenset[str]:
    """Return what the document forbids, and the switches of profiles, traces and
    checkpoints: those are set by the purpose of a job alone, or a run could be profiled
    and judged for its speed."""
    return frozenset((*(name for name, _ in facts.forbidden), *list_switches(facts)))


def _check(job: JobInputs, environment: Mapping[str, str]) -> None:
    """Refuse what no process can be given; the value may be a secret, and is not
    shown."""
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise LaunchError(
                f"{job.key.id}: {name!r} in {name_source(job)} is no name of a variable: expected letters, digits and _"
            )
        if "\0" in value:
            raise LaunchError(
                f"{job.key.id}: the value of {name} holds a NUL, which no environment can carry"
            )
        if (size := len(os.fsencode(f"{name}={value}")) + 1) > LONGEST:
            raise LaunchError(
                f"{job.key.id}: {name} takes {size} bytes, and no process gets more than {LONGEST} in one"
            )


# --- command and folders --------------------------------------------------------------


def find_placeholders(
    job: JobInputs, nodes: int, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return what the placeholders of a command stand for."""
    key, cluster = job.key, job.cluster
    return {
        "account": cluster.account or _find_setting(environment, "account"),
        "partition": cluster.partition or _find_setting(environment, "partition"),
        "nodes": str(nodes),
        "stage": find_first(environment, *STAGES),
        "image": fit.find_image(
            job.facts.image, list_stages(environment), environment.get(IMAGE, "")
        ),
        "gpus_per_node": str(count_gpus_on_node(job)),
        "recipe": key.recipe,
        "size": key.size,
        "gpu": key.gpu,
        "dtype": key.dtype,
        "gpus": str(key.gpus),
        "gsw_version": job.facts.gsw_version,
        "experiment": name_experiment(key),
    }


def list_stages(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the stage folders that an environment names."""
    return {name: Path(environment[name]) for name in STAGES if environment.get(name)}


def find_first(environment: Mapping[str, str], *names: str) -> str:
    """Return the first of some variables that is set, else nothing."""
    return next((environment[name] for name in names if environment.get(name)), "")


def _find_setting(environment: Mapping[str, str], key: str) -> str:
    """Return what the variables of a key of the cluster file say."""
    names = (
        name
        for scheduler in list_schedulers()
        for name in scheduler.cluster_variables.get(key, ())
    )
    return find_first(environment, *names)


def count_gpus_on_node(job: JobInputs) -> int:
    """Return how many GPUs of a node a job uses: all, or as many as it has."""
    return min(job.key.gpus, fit.count_gpus_per_node(job.key, job.facts, job.cluster))


def name_experiment(key: Key) -> str:
    """Return `pretrain_grok1_314b_bf16_256`, as the documents call an experiment."""
    return f"pretrain_{key.recipe}_{key.size}_{key.dtype}_{key.gpus}"


def fill(
    job: JobInputs,
    template: str,
    values: Mapping[str, str],
    environment: Mapping[str, str],
) -> str:
    """Return one word of a template with its placeholders and $VARIABLES, in one pass:
    a value is never read as a template. A variable that is not set stays as it is
    written."""

    def get_value(match: re.Match[str]) -> str:
        brace, placeholder, plain, braced = match.groups()
        if brace:
            return str(brace[0])
        if placeholder is None:
            return environment.get(plain or braced, match[0])
        if placeholder not in values:
            where = f"{job.facts.file or job.facts.recipe}: launch: commands: {job.command.name}"
            raise LaunchError(
                f"{where}: {{{placeholder}}} is not known before a job is submitted"
            )
        return values[placeholder]

    return _PARTS.sub(get_value, template)


def build_arguments(
    job: JobInputs, values: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the command as an argument list: the template is split first, so that a
    value stays one argument."""
    words: list[str] = []
    for template in _split(job):
        if any(
            template.endswith(f"{{{name}}}") and not values[name] for name in _OPTIONAL
        ):
            if not template.startswith("-") and words and words[-1].startswith("-"):
                words.pop()
            continue
        words.append(fill(job, template, values, environment))
    if "\0" in "".join(words):
        raise LaunchError(
            f"{job.key.id}: its command holds a NUL, which no argument can carry"
        )
    return job.scheduler.complete_command(job.command.via, words, job.cluster)


def _split(job: JobInputs) -> list[str]:
    try:
        own = fit.find_arguments(job.key, job.facts, job.command.name) or ""
        words = shlex.split(job.command.command.replace(fit.ARGUMENTS, own))
    except ValueError as error:
        words = []
        reason = f"{error}: {job.command.command!r}"
    else:
        reason = "found no program in it"
    if not words:
        where = f"{job.facts.file or job.facts.recipe}: launch: commands: {job.command.name}: command"
        raise LaunchError(f"{where}: {reason}")
    return words


def _list_options(job: JobInputs) -> tuple[str, ...]:
    """Return the options of a job besides its command, whatever submits it. Raises
    LaunchError."""
    try:
        return job.scheduler.list_options(job.command.via, job.cluster)
    except LaunchError as error:
        raise LaunchError(f"{job.key.id}: {error}") from None


def find_directory(
    job: JobInputs, values: Mapping[str, str], environment: Mapping[str, str]
) -> Path:
    """Return where a command runs: in the installed recipe's folder, if it runs in one;
    else where its document says; else beside the baseline file."""
    if job.installed.folder and job.scheduler.runs_in_recipe(job.command.via):
        return Path(
            fill_references(
                str(job.installed.folder),
                job.caller,
                f"{name_source(job)}: folder of {job.installed.recipe}",
            )
        )
    if job.command.folder:
        return Path(fill(job, job.command.folder, values, environment))
    return job.facts.file.absolute().parent if job.facts.file else Path()


def find_log_folders(
    job: JobInputs,
    purpose: Purpose,
    values: Mapping[str, str],
    environment: Mapping[str, str],
    directory: Path,
) -> tuple[Path, ...]:
    """Return where the log will lie, down to the last folder that is known before the
    job is submitted.

    None for a job on this machine: its output lies in a folder of its own, and a log of
    an earlier job of a cluster with the same number must not be taken for it.
    """
    if job.scheduler.here or not job.facts.log:
        return ()
    root = Path(find_first(environment, "LLMB_WORKLOAD", "STAGE_PATH") or directory)
    versions = [values["gsw_version"]]
    if purpose is Purpose.NCCL_TRACE:
        versions.insert(0, f"{versions[0]}-nccl-trace")
    return tuple(
        dict.fromkeys(
            root / _find_known_part(job, {**values, "gsw_version": version})
            for version in versions
        )
    )


def _find_known_part(job: JobInputs, values: Mapping[str, str]) -> Path:
    parts = job.facts.log.split("/")[:-1]
    unknown = (number for number, part in enumerate(parts) if _UNKNOWN.search(part))
    return Path(
        *(fill(job, part, values, {}) for part in parts[: next(unknown, len(parts))])
    )


def name_source(job: JobInputs) -> str:
    """Return the cluster file for a message."""
    return str(job.cluster.source or "cluster")


# --- the site's own check of nodes -----------------------------------------------------

# a check that takes longer is ended; it is also what its GPU-hours are counted by
CHECK_MINUTES = 15

CHECK_OUTPUT = (
    "llmbench-node-check-{job}.out"  # in the folder of the recipe, which its nodes see
)


def build_node_check(
    command: str, spec: JobSpec, cluster: Cluster, nodes: Sequence[str]
) -> JobSpec:
    """Return the job that runs a command once on exactly these nodes, with the account
    and GPUs of a configuration."""
    own = replace(
        spec,
        purpose=Purpose.CHECK_NODES,
        nodes=len(nodes),
        gpus=spec.gpus // spec.nodes * len(nodes),
        log_folders=(),
        exclude=(),
        job_id="",
    )
    scheduler, output = load_scheduler(spec.via), spec.directory / CHECK_OUTPUT
    check = scheduler.build_node_check(
        command, own, cluster, nodes, minutes=CHECK_MINUTES, output=output
    )
    return replace(check, gpu_hours=check.occupied_gpus * CHECK_MINUTES / 60)
