"""Read the description of the cluster: cluster.yaml, llmb-run's file, or this machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.commands import Runner
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import count_noun
from pytest_llmbench.core.gpus import read_gpu_type
from pytest_llmbench.core.job_records import Cluster, InstalledRecipe, Pairs
from pytest_llmbench.core.option import EXPECTED_NODES, NODES
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.userfile import expand_home
from pytest_llmbench.core.yamlfile import (
    ConvertedScalar,
    Fields,
    Items,
    Names,
    Nullable,
    Number,
    Report,
    Text,
    YamlMapping,
    read_document,
    read_entry,
)

LLMB_RUN_FILE = "cluster_config.yaml"

_REFERENCE = compile_on_use(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WORKLOAD = compile_on_use(
    r"(?:pretrain|pretraining|finetune|finetuning|inference)_(.+)"
)


def _expect_text(expected: str, pattern: str) -> Text:
    return Text(expected, rf"(?a:{pattern})")


def _convert_gpu(text: str) -> str:
    """Convert a GPU type to lower case. Raises ValueError if it is invalid."""
    if not re.fullmatch(r"(?a:[a-z0-9][a-z0-9_.]{0,49})", text.lower()):
        raise ValueError(f"found {text!r}, expected a GPU type such as h100, or cpu")
    return text.lower()


def _convert_gres(text: str) -> str:
    """Convert a gres value; a bare number such as `8` means `gpu:8`.

    llmb-run's file contains bare numbers.
    """
    if re.fullmatch(r"[1-9]\d{0,2}", text):
        return f"gpu:{text}"
    if not re.fullmatch(r"(?a:gpu(:[A-Za-z0-9_.-]+)?:[1-9]\d{0,2})", text):
        raise ValueError(
            f"found {text!r}, expected the GPUs of a node as a Slurm gres, such as gpu:8"
        )
    return text


_NODES = _expect_text(EXPECTED_NODES, NODES)
_SLURM_NAME = _expect_text("a name known to Slurm", r"[A-Za-z0-9][A-Za-z0-9_.@+,-]*")
_VARIABLE = _expect_text(
    "the name of an environment variable", r"[A-Za-z_][A-Za-z0-9_]*"
)
_RECIPE = _expect_text(
    "a recipe, alone or with its release, such as grok1-25.05",
    r"[a-z0-9][a-z0-9._+-]{0,199}",
)
_COMMAND = _expect_text(
    "the name of a launch command, such as sbatch", r"[a-z0-9][a-z0-9._+-]{0,99}"
)
_VALUES = Names(Text("a value", r".*"), _VARIABLE)

CLUSTER = Fields(
    {"schema": Number(1, 1, whole=True)},
    {
        "llmb_run": Text(),
        "name": Text(),
        "gpu": ConvertedScalar(_convert_gpu),
        "gpus_per_node": Number(1, 1024, whole=True),
        "largest": Number(1, 10**7, whole=True),
        "gpu_hours": Number(0.001, 10**9),
        "launcher": _COMMAND,
        "account": _SLURM_NAME,
        "partition": _SLURM_NAME,
        "gres": ConvertedScalar(_convert_gres),
        "time_limit": _expect_text(
            'a time limit such as "01:30:00" or "90"',
            r"(\d{1,4}-)?\d{1,6}(:\d{1,2}){0,2}",
        ),
        "qos": _SLURM_NAME,
        "reservation": _SLURM_NAME,
        "constraint": _expect_text(
            'features of nodes such as "h100&nvlink"', r"[A-Za-z0-9_.&|*()\[\],:-]+"
        ),
        "segment": Number(1, 10**5, whole=True),
        "nodelist": _NODES,
        "exclude": Items(_NODES, least=0),
        "environment": _VALUES,
        "secrets": Items(_VARIABLE, least=0),
        "installed": Names(
            Fields(
                {},
                {
                    "folder": Text(),
                    "launcher": _COMMAND,
                    "environment": _VALUES,
                    "virtual_environment": Text(),
                },
            ),
            _RECIPE,
        ),
    },
)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster.yaml, or llmb-run's file.

    docs/reference/cluster.md explains the keys of a cluster.yaml. The key `llmb_run`
    names llmb-run's file; the other keys override its values. Relative folders are
    resolved against the folder of the file. `${NAME}` in folders and variables is kept;
    `fill_references` replaces it. Installed recipes with a release precede recipes
    without a release. Raises LaunchError with file, line, found and expected value.
    """
    if path.is_dir() or path.name == LLMB_RUN_FILE:
        return read_llmb_run(path)
    root = read_document(path, what="cluster file", raises=LaunchError)
    entry = read_entry(path, root, CLUSTER, raises=LaunchError)
    installed = [
        _read_installed(name, entry_of_recipe, path.parent)
        for name, entry_of_recipe in _get_mapping(entry, "installed").items()
    ]
    installed.sort(key=lambda recipe: not recipe.release)  # with a release first
    llmb_run = _resolve_path(entry.get("llmb_run"), path.parent)
    base = read_llmb_run(llmb_run) if llmb_run else Cluster()
    # the other keys have the same names as the fields of Cluster
    converted_keys = ("schema", "llmb_run", "environment", "installed")
    overrides = {
        name: value
        for name, value in entry.values.items()
        if name not in converted_keys and value is not None
    }
    return replace(
        base,
        **overrides,
        environment=(*base.environment, *_read_environment(entry)),
        installed=(*installed, *base.installed),
        source=path,
    )


def _read_installed(name: str, entry: YamlMapping, base: Path) -> InstalledRecipe:
    """Read an installed recipe; relative folders are resolved against `base`."""
    recipe, release = _split_release(name)
    folder, venv = entry.get("folder"), entry.get("virtual_environment")
    return InstalledRecipe(
        recipe=recipe,
        release=release,
        folder=_resolve_path(folder, base),
        launcher=entry.get("launcher", ""),
        environment=_read_environment(entry),
        virtual_environment=_resolve_path(venv, base),
    )


def _split_release(name: str) -> tuple[str, str]:
    """Split `grok1-25.05` into recipe and release.

    A release begins with a digit and contains a dot. Without a release, `name` is the
    recipe and the release is "".
    """
    match = re.fullmatch(r"(.+)-(\d+\.[^-]*)", name)
    return (match[1], match[2]) if match else (name, "")


def _resolve_path(text: str | None, folder: Path) -> Path | None:
    """Resolve a path against a folder.

    A path such as `${STAGE_PATH}/grok1` is kept as written. None without a text.
    """
    if text is None:
        return None
    if text.startswith("${"):
        return Path(text)
    return folder.absolute() / expand_home(text)


def _read_environment(entry: YamlMapping) -> Pairs:
    return tuple(_get_mapping(entry, "environment").items())


def _get_mapping(entry: YamlMapping | None, name: str) -> Mapping[str, Any]:
    """Return the values of a nested mapping; empty if the file does not have it."""
    value = entry.get(name) if entry else None
    return value.values if isinstance(value, YamlMapping) else {}


def fill_references(text: str, caller: Mapping[str, str], where: str) -> str:
    """Replace each `${NAME}` in a text by the caller's variable.

    Raises LaunchError, with `where` and the variable, if it is not set.
    """

    def get_value(match: re.Match[str]) -> str:
        """Return the caller's value for a match of _REFERENCE."""
        if match[1] not in caller:
            raise LaunchError(
                f"{where} refers to ${{{match[1]}}}, which is not set: export {match[1]}, or write the value"
            )
        return caller[match[1]]

    return _REFERENCE.sub(get_value, text)


# --- the file of llmb-run -------------------------------------------------------------


def _convert_null(text: str) -> str:
    """Convert a YAML null, written in any spelling, to ""."""
    return "" if text in ("null", "~", "Null", "NULL") else text


_SCALAR = ConvertedScalar(_convert_null)
_SCALARS = Nullable(Names(_SCALAR))
_GENERAL: dict[str, Any] = dict.fromkeys(
    ("llmb_repo", "llmb_install", "gpu_type", "cluster_name"), _SCALAR
)
_LLMB_RUN_GPU = Fields(
    {}, dict.fromkeys(("partition", "gres", "gpus_per_node"), _SCALAR), closed=False
)
_WORKLOADS = Fields(
    {},
    {
        "installed": Nullable(Items(_SCALAR, least=0)),
        "config": Nullable(
            Names(
                Nullable(
                    Fields(
                        {},
                        {"venv_path": _SCALAR, "environment": _SCALARS},
                        closed=False,
                    )
                )
            )
        ),
    },
    closed=False,
)
_LLMB_RUN = Fields(
    {
        "slurm": Fields(
            {},
            {
                **dict.fromkeys(("account", "gpu_partition", "gpu_gres"), _SCALAR),
                "gpu": _LLMB_RUN_GPU,
            },
            closed=False,
        )
    },
    {
        **_GENERAL,
        "launcher": Fields({}, _GENERAL, closed=False),
        "environment": _SCALARS,
        "workloads": Nullable(_WORKLOADS),
    },
    closed=False,
)


def read_llmb_run(path: Path) -> Cluster:
    """Read llmb-run's cluster_config.yaml in any of its versions.

    `path` is the file or its folder. The installed recipes are launched by llmb-run.
    They match every release, because the file does not contain the installed release.
    Keys that launching does not need are ignored. Raises LaunchError with file and
    line.
    """
    path = path / LLMB_RUN_FILE if path.is_dir() else path
    root = read_document(path, what=f"{LLMB_RUN_FILE} of llmb-run", raises=LaunchError)
    entry = read_entry(path, root, _LLMB_RUN, check=_check_llmb_run, raises=LaunchError)
    general = _get_general_settings(entry)
    slurm: YamlMapping = entry["slurm"]
    gpu = _get_mapping(slurm, "gpu")  # newer files only
    gres = gpu.get("gres") or gpu.get("gpus_per_node") or slurm.get("gpu_gres") or ""
    folders = (
        ("LLMB_INSTALL", general["llmb_install"]),
        ("LLMB_REPO", general.get("llmb_repo", "")),
    )
    return Cluster(
        name=general.get("cluster_name", ""),
        gpu=general["gpu_type"].lower(),
        launcher="llmb-run",
        account=slurm.get("account") or "",
        partition=gpu.get("partition") or slurm.get("gpu_partition") or "",
        gres=_convert_gres(gres) if gres else "",
        environment=(
            *((name, value) for name, value in folders if value),
            *_read_environment(entry),
        ),
        installed=_read_workloads(entry.get("workloads")),
        source=path,
    )


def _get_general_settings(entry: YamlMapping) -> Mapping[str, str]:
    """Return the general settings of llmb-run's file.

    Newer files have them at the top level, older files under `launcher`.
    """
    launcher = entry.get("launcher")
    return launcher.values if isinstance(launcher, YamlMapping) else entry.values


def _check_llmb_run(entry: YamlMapping, report: Report) -> None:
    """Report missing keys and invalid gres values of an llmb-run cluster file."""
    general = _get_general_settings(entry)
    for name in ("llmb_install", "gpu_type"):
        if not general.get(name):
            report(
                entry.line,
                f"found no {name!r}, expected it at the top level or in 'launcher'",
            )
    slurm: YamlMapping = entry["slurm"]
    gpu = slurm.get("gpu")
    # newer files have `gpu`, older files have `gpu_gres`
    for block, name in ((gpu, "gres"), (gpu, "gpus_per_node"), (slurm, "gpu_gres")):
        value = block.get(name) if isinstance(block, YamlMapping) else None
        if not value:
            continue
        try:
            _convert_gres(value)
        except ValueError as error:
            report(block.lines[name], str(error))


def _read_workloads(entry: YamlMapping | None) -> tuple[InstalledRecipe, ...]:
    """Read the installed recipes, and the settings that some of them have."""
    if entry is None:
        return ()
    settings = _get_mapping(entry, "config")
    names = entry.get("installed") or ()
    return tuple(_read_workload(name, settings.get(name)) for name in names)


def _read_workload(name: str, entry: YamlMapping | None) -> InstalledRecipe:
    """Read an installed recipe of llmb-run; `entry` contains its settings, if any."""
    match = _WORKLOAD.fullmatch(name)  # `pretrain_grok1`: the recipe grok1
    virtual_environment = entry.get("venv_path") if entry else None
    return InstalledRecipe(
        recipe=match[1] if match else name,
        release="",
        environment=_read_environment(entry) if entry else (),
        virtual_environment=Path(virtual_environment) if virtual_environment else None,
    )


# --- this machine ---------------------------------------------------------------------


def describe_machine(run: Runner) -> Cluster:
    """Describe this machine as a cluster of one node, using nvidia-smi.

    Without GPUs the GPU type is `cpu` and the number of GPUs is 1. If the GPUs differ,
    only the most frequent type is used.
    """
    output = run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout=30.0
    )
    lines = output.out.splitlines() if output.code == 0 else []
    count_by_type = Counter(
        read_gpu_type(line.strip()) for line in lines if line.strip()
    )
    gpu, count = "cpu", 1
    if count_by_type:
        ((gpu, count),) = count_by_type.most_common(1)
    return Cluster(gpu=gpu, gpus_per_node=count, largest=count)


# --- the cluster as its scheduler describes it ----------------------------------------


class LearnedCluster(Struct, frozen=True):
    """A cluster as its scheduler describes it."""

    scheduler: str  # the name
    cluster: Cluster
    sources: tuple[tuple[str, str], ...]  # (key of a cluster file, source of its value)

    def describe(self) -> str:
        """Describe partition, GPUs and account in one line."""
        cluster = self.cluster
        gpus = f"{cluster.gpus_per_node} {cluster.gpu or 'GPUs'} a node, {count_noun(cluster.largest, 'GPU')}"
        account = f", account {cluster.account}" if cluster.account else ""
        return f"partition {cluster.partition}: {gpus}{account}"


_MISSING_KEYS = """\
# Unknown to {scheduler}; docs/reference/cluster.md explains all keys.
# gpu_hours: 50              # the limit of one session
# environment:
#   HF_TOKEN: ${{HF_TOKEN}}    # taken from the shell in which pytest starts
# installed:                 # where the recipes are
#   grok1-25.05: {{folder: /path/to/grok1}}
"""


def format_cluster_file(learned: LearnedCluster) -> str:
    """Format a cluster file with the learned values, their sources, and missing keys."""
    lines = ["schema: 1"]
    for name, source in learned.sources:
        setting = f"{name}: {getattr(learned.cluster, name)}"
        lines.append(f"{setting:<28} # {source}")
    if not learned.cluster.gpu:
        lines.append(
            "# gpu: h100                  # gres names no type: set it here, or with --llmb-gpu"
        )
    return "\n".join([*lines, _MISSING_KEYS.format(scheduler=learned.scheduler)])
