"""Build the job of a configuration from its recipe: command, folders and environment.

Only selected variables of the caller's environment reach a job.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

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
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.redaction import find_secret_names
from pytest_llmbench.launch.plan import fit
from pytest_llmbench.launch.plan.cluster_file import fill_references
from pytest_llmbench.launch.plan.purpose import list_switches
from pytest_llmbench.launch.schedulers.registry import list_schedulers, load_scheduler
from pytest_llmbench.launch.schedulers.scheduler import Scheduler

# the caller's variables that every job inherits, in addition to the variables that the
# recipe's document lists
_MACHINE_VARIABLES = (
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

# the caller's virtual environment, for a recipe that requires an active one and has
# none in the cluster file
ACTIVE_ENVIRONMENT = ("VIRTUAL_ENV", "CONDA_PREFIX")

# the variable that overrides the container image of a recipe's document
IMAGE = "RUN_CONF_IMAGE"

# the variables for the stage folder, which contains a recipe's image and the results
STAGES = ("STAGE_PATH", "LLMB_INSTALL")

MAX_IMAGE_CHARACTERS = 200

# the largest size of a variable in bytes, with its name and a NUL byte: Linux starts no
# process with a longer string (MAX_ARG_STRLEN)
MAX_VARIABLE_BYTES = 131_072

_VARIABLE_NAME = compile_on_use(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# `{{` and `}}` (a literal brace), `{account}`, `$STAGE_PATH` and `${STAGE_PATH}`
_PLACEHOLDER = compile_on_use(
    r"(?P<brace>\{\{|\}\})|\{(?P<placeholder>\w+)\}|\$(?:(?P<plain>\w+)|\{(?P<braced>\w+)\})",
    re.ASCII,
)
# placeholders that may be empty: the option with an empty placeholder is dropped
_OPTIONAL_PLACEHOLDERS = ("account", "partition")

# the placeholders of a log path that are unknown before the job was submitted
_LATER_PLACEHOLDER = compile_on_use(
    r"\{(?:experiment|timestamp|job|restart|checkpoint)\}"
)


class JobInputs(Struct, frozen=True):
    """The inputs from which a job is built."""

    key: Key
    facts: LaunchFacts
    cluster: Cluster
    command: Command
    installed: InstalledRecipe
    caller: Mapping[str, str]  # the environment of this process

    @property
    def scheduler(self) -> type[Scheduler]:
        """The class of the scheduler that will run the job."""
        return load_scheduler(self.command.via)

    @property
    def documented_variables(self) -> frozenset[str]:
        """The names of the variables that the recipe's document lists."""
        pairs = (*self.facts.required, *self.facts.optional)
        return frozenset(name for name, _ in pairs)


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
    """Build the complete job of a configuration.

    `caller` is the environment of this process, `variables` are those of the job's
    purpose, and `launcher` is the value of --llmb-launcher.

    The environment is merged from these sources, later ones override earlier ones:
    selected variables of the caller; account, partition and GPUs of the cluster;
    `environment` of the cluster file and of the installed recipe; facts of the
    configuration; variables that the command fixes; `variables`. Variables that the
    document forbids, or that belong to another purpose, are removed.

    Raises LaunchError for a launcher that the recipe does not have, GPUs that do not
    fill whole nodes, an unset `${NAME}`, and names or values that no process accepts.
    Use `list_missing` to find required variables that are not set.
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
    _check_variables(job, environment)
    secret_names = (*cluster.secrets, *_list_secret_references(job))
    steps = fit.count_steps(baseline, facts, purpose, environment)
    gpus_per_node = fit.count_gpus_per_node(key, facts, cluster)
    spec = JobSpec(
        case_id=key.id,
        key=key,
        purpose=purpose,
        via=command.via,
        command=build_arguments(job, values, environment),
        directory=directory,
        environment=tuple(environment.items()),
        secrets=find_secret_names(environment, secret_names),
        nodes=nodes,
        gpus=key.gpus,
        gpu_hours=fit.estimate_gpu_hours(baseline, steps),
        gpus_per_node=0 if job.scheduler.is_local else gpus_per_node,
        log_folders=find_log_folders(job, purpose, values, environment, directory),
        experiment=name_experiment(key),
        exclude=tuple(dict.fromkeys(cluster.exclude)),
        scheduler_options=_list_options(job),
        job_id=command.job_id,
    )
    # a job on a cluster occupies all GPUs of its nodes, even if it uses only some
    return replace(spec, gpu_hours=spec.gpu_hours * spec.occupied_gpus / spec.gpus)


def find_container_image(spec: JobSpec) -> dict[str, str]:
    """Return the container image of a job as {"container": name}.

    Empty if the job's variables set no image, or if the name is secret, unprintable or
    too long.
    """
    image = dict(spec.environment).get(IMAGE, "").strip()
    is_printable = (
        0 < len(image) <= MAX_IMAGE_CHARACTERS
        and image.isprintable()
        and IMAGE not in spec.secrets
    )
    return {"container": image} if is_printable else {}


def list_missing(spec: JobSpec, facts: LaunchFacts) -> list[str]:
    """List the variables that a job requires but lacks, or has empty.

    The document requires them, or the configuration's arguments refer to them.
    """
    environment = dict(spec.environment)
    required = [name for name, _ in facts.required]
    if facts.needs_token:
        required.append("HF_TOKEN")
    # the variables in the arguments for other launchers are not required
    commands = {command.name for command in facts.commands if command.via == spec.via}
    for command, arguments in dict(facts.arguments).get(spec.key, ()):
        if command not in commands:
            continue
        for match in _PLACEHOLDER.finditer(arguments):
            variable = match["plain"] or match["braced"]
            if variable:
                required.append(variable)
    return [name for name in dict.fromkeys(required) if not environment.get(name)]


# --- environment ----------------------------------------------------------------------


def _build_environment(job: JobInputs, nodes: int, variables: Pairs) -> dict[str, str]:
    """Build the variables of a job.

    Later sources override earlier ones: caller, cluster, installed recipe,
    configuration, command, virtual environment, scheduler, `variables`. Variables that
    the document forbids, or that belong to another purpose, are removed before
    `variables` are added.
    """
    recipe_source = f"installed: {job.installed.recipe}: environment"
    environment = {
        **_take_from_caller(job),
        **_take_from_cluster(job),
        **_fill_variables(job.cluster.environment, job, "environment"),
        **_fill_variables(job.installed.environment, job, recipe_source),
    }
    environment |= _select_documented(job, _take_from_configuration(job, nodes))
    environment |= _build_workload_variable(job, environment)
    values = find_placeholders(job, nodes, environment)
    # fills {placeholders}, and keeps $VARIABLES as written
    environment |= {
        name: fill(job, text, values, {}) for name, text in job.command.fixed
    }
    environment |= activate(job, environment)
    environment |= job.scheduler.list_variables(job.command.via)
    unwanted = _list_unwanted(job.facts)
    allowed = {
        name: value for name, value in environment.items() if name not in unwanted
    }
    return allowed | dict(variables)


def _select_documented(job: JobInputs, variables: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that the recipe's document lists."""
    return {
        name: value
        for name, value in variables.items()
        if name in job.documented_variables
    }


def list_inherited_variables(via: str) -> tuple[str, ...]:
    """List the caller's variables that every job with this launcher gets."""
    scheduler = load_scheduler(via)
    # a command on a login node may call the commands of its cluster's scheduler
    schedulers = list_schedulers() if scheduler.is_local else [scheduler]
    names = (name for source in schedulers for name in source.configuration_variables)
    return (*_MACHINE_VARIABLES, *names)


def _take_from_caller(job: JobInputs) -> dict[str, str]:
    """Select the caller's variables that a job may receive."""
    active_environment = ACTIVE_ENVIRONMENT if job.facts.virtual_environment else ()
    names = (
        *list_inherited_variables(job.command.via),
        *job.scheduler.device_variables,
        *active_environment,
        *sorted(job.documented_variables),
    )
    variables = {name: job.caller[name] for name in names if name in job.caller}
    for scheduler in list_schedulers():
        variables = scheduler.drop_misread_variables(variables)
    return variables


def _take_from_cluster(job: JobInputs) -> dict[str, str]:
    """Return account, partition, GPUs and time limit as documented variables."""
    return _select_documented(job, name_settings(job.cluster))


def name_settings(cluster: Cluster) -> dict[str, str]:
    """Return account, partition, GPUs and time limit under all known variables.

    Empty settings are omitted.
    """
    settings = {
        "account": cluster.account,
        "partition": cluster.partition,
        "gres": cluster.gres.removeprefix("gpu:"),
        "time_limit": cluster.time_limit,
    }
    variables: dict[str, str] = {}
    for scheduler in list_schedulers():
        for key, names in scheduler.cluster_variables.items():
            if settings[key]:
                variables |= dict.fromkeys(names, settings[key])
    return variables


def _fill_variables(pairs: Pairs, job: JobInputs, source: str) -> dict[str, str]:
    """Return variables of the cluster file with each `${NAME}` filled from the caller.

    `source` is the path of keys to the variables in the file, for messages. Raises
    LaunchError for a `${NAME}` that is not set.
    """
    location = f"{name_cluster_file(job)}: {source}"
    return {
        name: fill_references(value, job.caller, f"{location}: {name}")
        for name, value in pairs
    }


def _list_secret_references(job: JobInputs) -> tuple[str, ...]:
    """List the cluster file's variables whose value contains a secret of the caller."""
    pairs = (*job.cluster.environment, *job.installed.environment)
    secrets = find_secret_names(job.caller, job.cluster.secrets)
    references = [f"${{{secret}}}" for secret in secrets]  # such as `${HF_TOKEN}`
    return tuple(
        name
        for name, value in pairs
        if any(reference in value for reference in references)
    )


def _take_from_configuration(job: JobInputs, nodes: int) -> dict[str, str]:
    """Return the facts of a configuration under the variables of all documents."""
    key = job.key
    return {
        "DTYPE": key.dtype,
        "MODEL_SIZE": key.size,
        "JOB_TOTAL_GPUS": str(key.gpus),
        "GPU_TYPE": key.gpu,
        "GPUS_PER_NODE": str(count_gpus_on_node(job)),
        "NUM_NODES": str(nodes),
    }


def _build_workload_variable(
    job: JobInputs, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return LLMB_WORKLOAD, the recipe's folder in the installation of llmb-run.

    Overrides the caller's value, which may belong to another recipe. Empty if the
    document does not list the variable, the cluster file sets it, or LLMB_INSTALL is
    not set.
    """
    if "LLMB_WORKLOAD" not in job.documented_variables:
        return {}
    cluster_file_pairs = (*job.cluster.environment, *job.installed.environment)
    if "LLMB_WORKLOAD" in dict(cluster_file_pairs):
        return {}
    install = environment.get("LLMB_INSTALL")
    if not install:
        return {}
    return {"LLMB_WORKLOAD": f"{install}/workloads/pretrain_{job.key.recipe}"}


def activate(job: JobInputs, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that activate the recipe's virtual environment.

    Empty if the cluster file names none.
    """
    if job.installed.virtual_environment is None:
        return {}
    folder = fill_references(
        str(job.installed.virtual_environment),
        job.caller,
        f"{name_cluster_file(job)}: virtual_environment",
    )
    # only a conda environment has conda-meta; isdir is False for an unreadable folder
    name = "CONDA_PREFIX" if os.path.isdir(f"{folder}/conda-meta") else "VIRTUAL_ENV"
    path = f"{folder}/bin"
    if environment.get("PATH"):
        path += f"{os.pathsep}{environment['PATH']}"
    return {name: folder, "PATH": path}


def _list_unwanted(facts: LaunchFacts) -> frozenset[str]:
    """List the variables that a job must not inherit.

    These are the variables that the document forbids, and the switches of profiles,
    traces and checkpoints. Only the purpose of a job sets a switch; otherwise a
    profiled run could be judged for its speed.
    """
    forbidden = [name for name, _ in facts.forbidden]
    return frozenset((*forbidden, *list_switches(facts)))


def _check_variables(job: JobInputs, environment: Mapping[str, str]) -> None:
    """Refuse variables that no process accepts.

    Messages omit the value, which may be secret. Raises LaunchError.
    """
    for name, value in environment.items():
        if not _VARIABLE_NAME.fullmatch(name):
            raise LaunchError(
                f"{job.key.id}: {name!r} in {name_cluster_file(job)} is not a variable name: expected letters, digits and _"
            )
        if "\0" in value:
            raise LaunchError(
                f"{job.key.id}: the value of {name} contains a NUL character, which no variable can contain"
            )
        size = len(os.fsencode(f"{name}={value}\0"))
        if size > MAX_VARIABLE_BYTES:
            raise LaunchError(
                f"{job.key.id}: {name} takes {size} bytes, but a variable can have at most {MAX_VARIABLE_BYTES}"
            )


# --- command and folders --------------------------------------------------------------


def find_placeholders(
    job: JobInputs, nodes: int, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the values of the placeholders of a command, by name."""
    key, cluster = job.key, job.cluster
    return {
        "account": cluster.account or _find_setting(environment, "account"),
        "partition": cluster.partition or _find_setting(environment, "partition"),
        "nodes": str(nodes),
        "stage": find_first_set(environment, *STAGES),
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
    """Return the stage folders that an environment sets, by variable."""
    return {name: Path(environment[name]) for name in STAGES if environment.get(name)}


def find_first_set(environment: Mapping[str, str], *names: str) -> str:
    """Return the value of the first variable that is set, or ""."""
    for name in names:
        if environment.get(name):
            return environment[name]
    return ""


def _find_setting(environment: Mapping[str, str], key: str) -> str:
    """Return a cluster setting from the variables that documents use for it.

    For `account`, for example, the value of SBATCH_ACCOUNT or SLURM_ACCOUNT.
    """
    names: list[str] = []
    for scheduler in list_schedulers():
        names += scheduler.cluster_variables.get(key, ())
    return find_first_set(environment, *names)


def count_gpus_on_node(job: JobInputs) -> int:
    """Count the GPUs that a job uses on each node."""
    return min(job.key.gpus, fit.count_gpus_per_node(job.key, job.facts, job.cluster))


def name_experiment(key: Key) -> str:
    """Name the experiment as the documents do, such as `pretrain_grok1_314b_bf16_256`."""
    return f"pretrain_{key.recipe}_{key.size}_{key.dtype}_{key.gpus}"


def fill(
    job: JobInputs,
    template: str,
    values: Mapping[str, str],
    environment: Mapping[str, str],
) -> str:
    """Fill the placeholders and $VARIABLES of a word of a template.

    A single pass: filled values are not expanded again. An unset variable stays as
    written. Raises LaunchError for a placeholder that is unknown before submission.
    """

    def get_value(match: re.Match[str]) -> str:
        """Return the text that replaces a match of _PLACEHOLDER."""
        brace, placeholder, plain, braced = match.groups()
        if brace:  # `{{` or `}}`: a literal brace
            return str(brace[0])
        if placeholder is None:  # `$NAME` or `${NAME}`
            return environment.get(plain or braced, match[0])
        if placeholder not in values:
            location = f"{job.facts.file or job.facts.recipe}: launch: commands: {job.command.name}"
            raise LaunchError(
                f"{location}: {{{placeholder}}} is unknown before a job is submitted"
            )
        return values[placeholder]

    return _PLACEHOLDER.sub(get_value, template)


def build_arguments(
    job: JobInputs, values: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Build the argument list of a command.

    The template is split before it is filled, so a value with spaces stays one
    argument. An option whose account or partition is empty is dropped.
    """
    # such as `{account}`
    empty_placeholders = tuple(
        f"{{{name}}}" for name in _OPTIONAL_PLACEHOLDERS if not values[name]
    )
    words: list[str] = []
    for template in _split_command(job):
        if template.endswith(empty_placeholders):
            # `--account={account}` is one word; of `--account {account}` the option is
            # the word before
            is_separate_value = not template.startswith("-")
            if is_separate_value and words and words[-1].startswith("-"):
                words.pop()
            continue
        words.append(fill(job, template, values, environment))
    if "\0" in "".join(words):
        raise LaunchError(
            f"{job.key.id}: the command contains a NUL character, which no argument can contain"
        )
    return job.scheduler.complete_command(job.command.via, words, job.cluster)


def _split_command(job: JobInputs) -> list[str]:
    """Split the launch command, with the configuration's arguments, into words.

    Raises LaunchError if the command is invalid or empty.
    """
    arguments = fit.find_arguments(job.key, job.facts, job.command.name) or ""
    words: list[str] = []
    reason = "found no program"
    try:
        words = shlex.split(job.command.command.replace(fit.ARGUMENTS, arguments))
    except ValueError as error:  # such as an unclosed quotation mark
        reason = f"{error}: {job.command.command!r}"
    if not words:
        location = f"{job.facts.file or job.facts.recipe}: launch: commands: {job.command.name}: command"
        raise LaunchError(f"{location}: {reason}")
    return words


def _list_options(job: JobInputs) -> tuple[str, ...]:
    """Return the scheduler options of a job, in addition to its command.

    Raises LaunchError.
    """
    try:
        return job.scheduler.list_options(job.command.via, job.cluster)
    except LaunchError as error:
        raise LaunchError(f"{job.key.id}: {error}") from None


def find_directory(
    job: JobInputs, values: Mapping[str, str], environment: Mapping[str, str]
) -> Path:
    """Find the folder in which a command runs.

    The first of: the installed recipe's folder (if the launcher runs there), the folder
    of the document's command, the folder of the baseline file. Raises LaunchError for
    an unset `${NAME}` or an unknown placeholder in a folder.
    """
    if job.installed.folder and job.scheduler.runs_in_recipe(job.command.via):
        return Path(
            fill_references(
                str(job.installed.folder),
                job.caller,
                f"{name_cluster_file(job)}: folder of {job.installed.recipe}",
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
    """List the folders that may contain the log of a job.

    Their paths end before the first component that is unknown before submission. Empty
    for a local job: its log is in its job folder, and the log of an earlier cluster job
    with the same number must not be mistaken for it.
    """
    if job.scheduler.is_local or not job.facts.log:
        return ()
    root = Path(find_first_set(environment, "LLMB_WORKLOAD", "STAGE_PATH") or directory)
    version = values["gsw_version"]
    versions = [version]
    if purpose is Purpose.NCCL_TRACE:
        # some recipes write runs with a trace to a folder such as `25.05-nccl-trace`
        versions = [f"{version}-nccl-trace", version]
    folders = [
        root / _find_known_folders(job, {**values, "gsw_version": version})
        for version in versions
    ]
    return tuple(dict.fromkeys(folders))


def _find_known_folders(job: JobInputs, values: Mapping[str, str]) -> Path:
    """Return the leading folders of the log path that are known before submission.

    `{gsw_version}/{recipe}/{job}/log.out`: the folders of version and recipe.
    """
    (*folders, _file) = job.facts.log.split("/")
    known = takewhile(lambda folder: not _LATER_PLACEHOLDER.search(folder), folders)
    return Path(*(fill(job, folder, values, {}) for folder in known))


def name_cluster_file(job: JobInputs) -> str:
    """Return the path of the cluster file for a message; `cluster` without a file."""
    return str(job.cluster.source or "cluster")


# --- the node check of the site --------------------------------------------------------

# time limit of a node check; its GPU-hours are computed from it, too
CHECK_MINUTES = 15

# in the folder of the recipe, which the nodes can access
CHECK_OUTPUT = "llmbench-node-check-{job}.out"


def build_node_check(
    command: str, spec: JobSpec, cluster: Cluster, nodes: Sequence[str]
) -> JobSpec:
    """Build the job that runs the site's check command once on each of `nodes`.

    The job uses the account and GPUs of the configuration `spec`.
    """
    gpus_on_node = spec.gpus // spec.nodes
    check_spec = replace(
        spec,
        purpose=Purpose.CHECK_NODES,
        nodes=len(nodes),
        gpus=gpus_on_node * len(nodes),
        log_folders=(),
        exclude=(),
        job_id="",
    )
    check = load_scheduler(spec.via).build_node_check(
        command,
        check_spec,
        cluster,
        nodes,
        minutes=CHECK_MINUTES,
        output=spec.directory / CHECK_OUTPUT,
    )
    return replace(check, gpu_hours=check.occupied_gpus * CHECK_MINUTES / 60)
