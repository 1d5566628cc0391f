"""How a recipe is launched, which configurations this cluster can run, and what they
cost."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from types import MappingProxyType
from typing import Any

from pytest_llmbench.core.baseline_records import Baseline, Configuration, Key, Recipe
from pytest_llmbench.core.errors import LaunchError, did_you_mean
from pytest_llmbench.core.formatting import count_noun, join_first
from pytest_llmbench.core.job_records import (
    Checkpointing,
    Cluster,
    Command,
    InstalledRecipe,
    LaunchFacts,
    Pairs,
    Profiling,
    Purpose,
)

GIGABYTE = 10**9

DEFAULT_HOURS = 50.0
ARGUMENTS = "{arguments}"  # of a command: the words that only its configuration has
SHOWN = 5
WIDTH = 79


def read_facts(recipe: Recipe) -> LaunchFacts | None:
    """Return how a recipe is launched; None where its file does not say it, as a
    recorded one. The file was checked when it was read: nothing is checked again."""
    if not recipe.launch:
        return None
    launch = dict(recipe.launch)
    environment, needs, image = (
        _get_mapping(launch, name) for name in ("environment", "needs", "image")
    )
    return LaunchFacts(
        recipe=recipe.name,
        release=recipe.release,
        kind=str(launch["kind"]),
        commands=tuple(
            _read_command(name, dict(command))
            for name, command in _get_mapping(launch, "commands").items()
        ),
        gpus_per_node=tuple(_get_mapping(launch, "gpus_per_node").items()),
        arguments=tuple(
            (base.key, base.configuration.arguments) for base in recipe.baselines
        ),
        gsw_version=_get_text(launch, "gsw_version"),
        required=_get_pairs(environment, "required"),
        optional=_get_pairs(environment, "optional"),
        forbidden=_get_pairs(environment, "forbidden"),
        log=_get_text(launch, "log"),
        setup=_get_text(launch, "setup"),
        image=_get_text(image, "file"),
        image_source=_get_text(image, "source"),
        needs_token=bool(needs.get("hf_token", False)),
        python=_get_text(needs, "python"),
        modules=tuple(needs.get("modules", ())),
        virtual_environment=bool(needs.get("virtual_environment", False)),
        profiling=_read_profiling(_get_mapping(launch, "profiling")),
        nccl_trace=_get_pairs(launch, "nccl_trace"),
        short_runs=tuple(_get_mapping(launch, "short_runs").items()),
        checkpoint=_read_checkpointing(_get_mapping(launch, "checkpoint")),
        file=recipe.path,
    )


def _read_command(name: str, command: Mapping[str, Any]) -> Command:
    return Command(
        name=name,
        via=_get_text(command, "via") or name,
        command=_get_text(command, "command"),
        folder=_get_text(command, "folder"),
        fixed=_get_pairs(command, "fixed"),
        job_id=_get_text(command, "job_id"),
        otherwise=_get_text(command, "otherwise"),
    )


def _read_profiling(profiling: Mapping[str, Any]) -> Profiling | None:
    if not profiling:
        return None
    return Profiling(
        enable=_get_pairs(profiling, "enable"),
        **{
            name: _get_text(profiling, name)
            for name in ("start", "stop", "ranks", "gpu_metrics", "cpu")
        },
        default_start=int(profiling.get("default_start", 0)),
        default_stop=int(profiling.get("default_stop", 0)),
    )


def _read_checkpointing(checkpoint: Mapping[str, Any]) -> Checkpointing | None:
    if not checkpoint:
        return None
    return Checkpointing(
        save=_get_pairs(checkpoint, "save"),
        load=_get_pairs(checkpoint, "load"),
        size_bytes=tuple(
            (size, int(count) * GIGABYTE)
            for size, count in _get_mapping(checkpoint, "disk_gb").items()
        ),
        save_gpus=_read_limits(checkpoint, "save_gpus"),
        load_gpus=_read_limits(checkpoint, "load_gpus"),
    )


def _read_limits(
    checkpoint: Mapping[str, Any], name: str
) -> tuple[tuple[str, tuple[int, int | None]], ...]:
    """Return by model size the smallest and the largest number of GPUs; a list of one
    number has no largest."""
    limits = _get_mapping(checkpoint, name).items()
    return tuple(
        (size, (gpus[0], gpus[1] if len(gpus) > 1 else None)) for size, gpus in limits
    )


def _get_mapping(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(facts.get(name, ()))


def _get_pairs(facts: Mapping[str, Any], name: str) -> Pairs:
    return tuple((key, str(value)) for key, value in facts.get(name, ()))


def _get_text(facts: Mapping[str, Any], name: str) -> str:
    return str(facts.get(name, ""))


def explain_unfit(
    configuration: Configuration,
    facts: LaunchFacts | None,
    cluster: Cluster,
    launcher: str = "",
) -> str:
    """Return why this cluster cannot run a configuration, without its id: many share a
    reason. Empty where nothing that is known of the cluster speaks against it.
    `launcher` is what the option says."""
    key = configuration.key
    if facts is None:
        return f"nothing says how {key.recipe} {key.release} is launched: no baseline file of it has a `launch:`"
    return (
        _explain_wrong_type(key, cluster)
        or _explain_too_large(key, cluster)
        or _explain_not_installed(key, cluster)
        or _explain_no_command(key, facts, cluster, launcher)
        or _explain_no_nodes(key, facts, cluster)
    )


def _explain_wrong_type(key: Key, cluster: Cluster) -> str:
    if not cluster.gpu:
        return "nothing says which GPUs this cluster has: set `gpu` in the cluster file, or give --llmb-gpu"
    return (
        f"for {key.gpu}, and this cluster has {cluster.gpu}"
        if key.gpu != cluster.gpu
        else ""
    )


def _explain_too_large(key: Key, cluster: Cluster) -> str:
    if not cluster.largest or key.gpus <= cluster.largest:
        return ""
    return f"larger than {count_noun(cluster.largest, 'GPU')}, the largest job of this cluster"


def _explain_not_installed(key: Key, cluster: Cluster) -> str:
    if not cluster.installed or find_installed(key, cluster) is not None:
        return ""
    names = sorted({_name_installed(installed) for installed in cluster.installed})
    name, like = (
        f"{key.recipe}-{key.release}",
        [
            _name_installed(installed)
            for installed in cluster.installed
            if _is_alike(installed, key)
        ],
    )
    return f"{name} is not installed here: there is {join_first(names)}{did_you_mean(name, like)}"


def _is_alike(installed: InstalledRecipe, key: Key) -> bool:
    """Whether the recipe may be meant by its name: an equal release alone makes no two
    names similar."""
    return bool(did_you_mean(key.recipe, [installed.recipe]))


def find_installed(key: Key, cluster: Cluster) -> InstalledRecipe | None:
    """Return how a recipe is installed here: the first entry of its release, or of all
    its releases; None: not, or the cluster file lists nothing."""
    wanted = (f"{key.recipe}-{key.release}", key.recipe)
    return next(
        (
            installed
            for installed in cluster.installed
            if _name_installed(installed) in wanted
        ),
        None,
    )


def _name_installed(installed: InstalledRecipe) -> str:
    return (
        f"{installed.recipe}-{installed.release}"
        if installed.release
        else installed.recipe
    )


def _explain_no_command(
    key: Key, facts: LaunchFacts, cluster: Cluster, launcher: str
) -> str:
    name = choose_launcher(key, facts, cluster, launcher)
    names = [command.name for command in facts.commands]
    if name in names:
        return explain_no_arguments(key, facts, facts.commands[names.index(name)])
    return f"{key.recipe} {key.release} is not launched by {name!r}, but by {join_first(names)}{did_you_mean(name, names)}"


def find_arguments(key: Key, facts: LaunchFacts, command: str) -> str | None:
    """Return what a configuration states for a command; None: nothing."""
    return dict(dict(facts.arguments).get(key, ())).get(command)


def explain_no_arguments(key: Key, facts: LaunchFacts, command: Command) -> str:
    """Return why a command cannot launch a configuration: it needs what no row states.
    Empty where it can."""
    if (
        ARGUMENTS not in command.command
        or find_arguments(key, facts, command.name) is not None
    ):
        return ""
    return command.otherwise or f"its row states no `arguments` for {command.name!r}"


def choose_launcher(
    key: Key, facts: LaunchFacts, cluster: Cluster, option: str = ""
) -> str:
    """Return the name of the command that launches a recipe here: what the option says,
    else the installed recipe's, the cluster's, the document's."""
    installed = find_installed(key, cluster)
    return (
        option
        or (installed.launcher if installed else "")
        or cluster.launcher
        or facts.kind
    )


def choose_command(
    key: Key, facts: LaunchFacts, cluster: Cluster, option: str = ""
) -> Command:
    """Return the command that launches a recipe here; LaunchError for one that it does
    not have."""
    name = choose_launcher(key, facts, cluster, option)
    by_name = {command.name: command for command in facts.commands}
    if name not in by_name:
        names = ", ".join(by_name)
        where = f"--llmb-launcher={name}" if option else f"launcher {name!r}"
        raise LaunchError(
            f"{key.id}: {where}: its recipe has none of that name{did_you_mean(name, by_name)}; expected one of {names}"
        )
    if why := explain_no_arguments(key, facts, by_name[name]):
        raise LaunchError(f"{key.id}: {why}")
    return by_name[name]


def find_images(
    image: str, stages: Mapping[str, Path], override: str = ""
) -> list[Path]:
    """Return where the container image of a recipe may lie; nothing where it has none
    or there is no stage folder."""
    if override:
        return [Path(override)]
    usable = [
        folder
        for folder in stages.values()
        if folder.is_absolute() and os.path.isdir(folder)
    ]
    folders = [folder / below for folder in usable for below in ("", "images")]
    return [folder / image for folder in folders if image]


def find_image(image: str, stages: Mapping[str, Path], override: str = "") -> str:
    """Return the container image as a command takes it: the first that is there, else
    where it should be."""
    places = find_images(image, stages, override) or [
        folder / image for folder in stages.values() if image
    ]
    return (
        str(next((place for place in places if os.path.isfile(place)), places[0]))
        if places
        else ""
    )


def _explain_no_nodes(key: Key, facts: LaunchFacts, cluster: Cluster) -> str:
    per_node = count_gpus_per_node(key, facts, cluster)
    if not per_node:
        return f"nothing says how many {key.gpu} a node has: set `gpus_per_node` in the cluster file"
    if key.gpus > per_node and key.gpus % per_node:
        return f"{key.gpus} GPUs are no whole number of nodes with {per_node}"
    return ""


def count_gpus_per_node(key: Key, facts: LaunchFacts, cluster: Cluster) -> int:
    """Return the GPUs of a node: this cluster's, else the document's; 0 where neither
    says it."""
    return cluster.gpus_per_node or dict(facts.gpus_per_node).get(key.gpu, 0)


def count_nodes(key: Key, facts: LaunchFacts, cluster: Cluster) -> int:
    """Return the number of nodes; a job that is smaller than a node has one.
    LaunchError where they do not divide."""
    if why := _explain_no_nodes(key, facts, cluster):
        raise LaunchError(f"{key.id}: {why}")
    return max(1, key.gpus // count_gpus_per_node(key, facts, cluster))


# --- cost -----------------------------------------------------------------------------


def count_steps(
    baseline: Baseline,
    facts: LaunchFacts,
    purpose: Purpose,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Return how many steps a job makes: those of a run, unless its purpose ends it
    before. Where a profile ends the run, it does so at the step that the variables of
    the job say, whoever set them."""
    short = dict(facts.short_runs).get(purpose)
    if short is None:
        return baseline.steps
    asked = (
        environment.get(facts.profiling.stop, "")
        if facts.profiling and purpose is Purpose.PROFILE
        else ""
    )
    return int(asked) if asked.isascii() and asked.isdecimal() else short


def estimate_gpu_hours(baseline: Baseline, steps: int) -> float:
    """Return the GPU-hours of a job's steps: steps x step time in seconds x GPUs /
    3600; 0 where nothing has timed it yet. Starting up comes on top."""
    seconds = steps * baseline.step_seconds * baseline.key.gpus
    return 0.0 if math.isnan(seconds) else seconds / 3600


def refuse_hours(by_case: Mapping[str, float], limit: float | None) -> None:
    """Raise LaunchError, with the total and the largest five, if GPU-hours by
    configuration (in words) exceed what is allowed: `limit`, or the default where
    nobody set one."""
    total, allowed = sum(by_case.values()), DEFAULT_HOURS if limit is None else limit
    if total <= allowed:  # and not `>`, which NaN would pass
        return
    largest = sorted(by_case.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"  {hours:>9,.1f}  {case_id}" for case_id, hours in largest[:SHOWN]]
    more = len(largest) - SHOWN
    rest = (
        [f"  {sum(hours for _, hours in largest[SHOWN:]):>9,.1f}  {more} more"]
        if more > 0
        else []
    )
    what = count_noun(len(by_case), "configuration")
    limits = (
        "without being told a session uses at most" if limit is None else "allowed are"
    )
    raise LaunchError(
        "\n".join(
            [
                f"the steps of {what} take {total:,.1f} GPU-hours; {limits} {allowed:,.10g}:",
                *lines,
                *rest,
                fill(
                    f"{advise_hours(total)}; --llmb-dry-run shows what would be submitted",
                    WIDTH,
                    break_on_hyphens=False,
                ),
            ]
        )
    )


def advise_hours(hours: float) -> str:
    """Return what to do where so many GPU-hours are more than allowed."""
    needed = math.ceil(hours) if math.isfinite(hours) else "N"
    return (
        f"select fewer with -k or -m, or allow them: --llmb-gpu-hours={needed}, or `gpu_hours: {needed}` in the "
        "cluster file"
    )
