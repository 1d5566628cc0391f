"""Check which configurations a cluster can run, and estimate their GPU-hours."""

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
from pytest_llmbench.core.gpus import read_gpu_type
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
ARGUMENTS = "{arguments}"  # placeholder for the arguments of a configuration
LARGEST_SHOWN = 5
WIDTH = 79


def read_facts(recipe: Recipe) -> LaunchFacts | None:
    """Read the launch facts of a recipe, or return None without a `launch:` section.

    Files of recorded baselines have none. The section was validated when the file was
    read.
    """
    if not recipe.launch:
        return None
    launch = dict(recipe.launch)
    environment = _get_mapping(launch, "environment")
    needs = _get_mapping(launch, "needs")
    image = _get_mapping(launch, "image")
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
    """Read a launch command; its launcher is `via`, or has the command's name."""
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
    """Read the variables of profiles, or return None if the document has none."""
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
    """Read the variables of checkpoints, or return None if the document has none."""
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
    """Read the smallest and largest number of GPUs by model size.

    The largest is None if there is no limit. The document contains `[64]` or
    `[64, 256]` for each size.
    """
    limits = []
    for size, (smallest, *rest) in _get_mapping(checkpoint, name).items():
        largest = rest[0] if rest else None
        limits.append((size, (smallest, largest)))
    return tuple(limits)


def _get_mapping(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a nested mapping, which is stored as pairs; empty if it is absent."""
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
    """Return the reason this cluster cannot run a configuration, or "".

    The reason omits the configuration's id, so that equal reasons can be grouped.
    `launcher` is the value of --llmb-launcher.
    """
    key = configuration.key
    if facts is None:
        return f"no launch facts for {key.recipe} {key.release}: no baseline file of this recipe has a `launch:` section"
    return (
        _explain_wrong_type(key, cluster)
        or _explain_too_large(key, cluster)
        or _explain_not_installed(key, cluster)
        or _explain_no_command(key, facts, cluster, launcher)
        or _explain_no_nodes(key, facts, cluster)
    )


def _explain_wrong_type(key: Key, cluster: Cluster) -> str:
    if not cluster.gpu:
        return "the GPU type of this cluster is unknown: set `gpu` in the cluster file, or pass --llmb-gpu"
    if read_gpu_type(key.gpu) == read_gpu_type(cluster.gpu):
        return ""
    return f"for {key.gpu}, but this cluster has {cluster.gpu}"


def _explain_too_large(key: Key, cluster: Cluster) -> str:
    if not cluster.largest or key.gpus <= cluster.largest:
        return ""
    return f"larger than {count_noun(cluster.largest, 'GPU')}, the largest job of this cluster"


def _explain_not_installed(key: Key, cluster: Cluster) -> str:
    """Return the reason if the recipe is not installed on the cluster, or ""."""
    if not cluster.installed or find_installed(key, cluster) is not None:
        return ""
    names = sorted({_name_installed(installed) for installed in cluster.installed})
    name = f"{key.recipe}-{key.release}"
    similar = [
        _name_installed(installed)
        for installed in cluster.installed
        if _is_similar(installed, key)
    ]
    # did_you_mean suggests one of `similar`, or returns ""
    return f"{name} is not installed here; installed: {join_first(names)}{did_you_mean(name, similar)}"


def _is_similar(installed: InstalledRecipe, key: Key) -> bool:
    """True if the installed recipe's name is similar to the configuration's recipe.

    The releases are not compared: another release of the same recipe is similar, too.
    """
    return bool(did_you_mean(key.recipe, [installed.recipe]))


def find_installed(key: Key, cluster: Cluster) -> InstalledRecipe | None:
    """Find the installed recipe of a configuration, or return None.

    Uses the first entry of its recipe with the same release or without a release.
    """
    names = (f"{key.recipe}-{key.release}", key.recipe)
    return next(
        (
            installed
            for installed in cluster.installed
            if _name_installed(installed) in names
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
    """Return the reason if the recipe lacks the command or its arguments, or ""."""
    name = choose_launcher(key, facts, cluster, launcher)
    for command in facts.commands:
        if command.name == name:
            return explain_no_arguments(key, facts, command)
    names = [command.name for command in facts.commands]
    return f"{key.recipe} {key.release} has no launcher {name!r}, only {join_first(names)}{did_you_mean(name, names)}"


def find_arguments(key: Key, facts: LaunchFacts, command: str) -> str | None:
    """Return a configuration's arguments for a command, or None if there are none.

    `command` is the name of the launch command.
    """
    arguments_by_key = dict(facts.arguments)
    arguments_by_command = dict(arguments_by_key.get(key, ()))
    return arguments_by_command.get(command)


def explain_no_arguments(key: Key, facts: LaunchFacts, command: Command) -> str:
    """Return the reason a configuration lacks arguments for a command, or ""."""
    needs_arguments = ARGUMENTS in command.command
    if not needs_arguments or find_arguments(key, facts, command.name) is not None:
        return ""
    return (  # `otherwise` is the reason that the document gives
        command.otherwise
        or f"the row of the configuration has no `arguments` for {command.name!r}"
    )


def choose_launcher(
    key: Key, facts: LaunchFacts, cluster: Cluster, option: str = ""
) -> str:
    """Choose the name of the launch command of a recipe.

    The first of: `option`, the installed recipe's launcher, the cluster's, the
    document's.
    """
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
    """Choose the launch command of a recipe.

    Raises LaunchError if the recipe does not have the command, or the configuration has
    no arguments for it.
    """
    name = choose_launcher(key, facts, cluster, option)
    by_name = {command.name: command for command in facts.commands}
    if name not in by_name:
        names = ", ".join(by_name)
        source = f"--llmb-launcher={name}" if option else f"launcher {name!r}"
        raise LaunchError(
            f"{key.id}: {source}: the recipe has no such launcher{did_you_mean(name, by_name)}; expected one of {names}"
        )
    if reason := explain_no_arguments(key, facts, by_name[name]):
        raise LaunchError(f"{key.id}: {reason}")
    return by_name[name]


def find_images(
    image: str, stages: Mapping[str, Path], override: str = ""
) -> list[Path]:
    """List the paths at which a recipe's container image may be.

    Returns only `override` if it is given. Otherwise empty if the recipe has no image,
    or no stage folder exists.
    """
    if override:
        return [Path(override)]
    if not image:
        return []
    candidates = []
    for stage in stages.values():
        if stage.is_absolute() and os.path.isdir(stage):
            candidates += [stage / image, stage / "images" / image]
    return candidates


def find_image(image: str, stages: Mapping[str, Path], override: str = "") -> str:
    """Return the path of a recipe's container image for its command.

    The first path that exists, else the path at which the image is expected; "" without
    an image or stage folder.
    """
    candidates = find_images(image, stages, override)
    if not candidates and image:  # no stage folder exists (yet)
        candidates = [stage / image for stage in stages.values()]
    if not candidates:
        return ""
    expected = candidates[0]
    return str(next((path for path in candidates if os.path.isfile(path)), expected))


def _explain_no_nodes(key: Key, facts: LaunchFacts, cluster: Cluster) -> str:
    """Return the reason the number of nodes is unknown or not whole, or ""."""
    per_node = count_gpus_per_node(key, facts, cluster)
    if not per_node:
        return f"the number of {key.gpu} per node is unknown: set `gpus_per_node` in the cluster file"
    # a job with fewer GPUs than a node has is allowed
    if key.gpus > per_node and key.gpus % per_node:
        return f"{key.gpus} GPUs do not fill whole nodes of {per_node} GPUs"
    return ""


def count_gpus_per_node(key: Key, facts: LaunchFacts, cluster: Cluster) -> int:
    """Return the GPUs per node: the cluster's, else the document's, else 0."""
    return cluster.gpus_per_node or dict(facts.gpus_per_node).get(key.gpu, 0)


def count_nodes(key: Key, facts: LaunchFacts, cluster: Cluster) -> int:
    """Count the nodes of a job; at least 1.

    Raises LaunchError if the GPUs do not fill whole nodes, or the GPUs per node are
    unknown.
    """
    if reason := _explain_no_nodes(key, facts, cluster):
        raise LaunchError(f"{key.id}: {reason}")
    return max(1, key.gpus // count_gpus_per_node(key, facts, cluster))


# --- cost -----------------------------------------------------------------------------


def count_steps(
    baseline: Baseline,
    facts: LaunchFacts,
    purpose: Purpose,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Count the steps of a job.

    Returns the steps of the baseline, or fewer if the recipe ends jobs with this
    purpose earlier. A profiled run ends at the stop step in `environment`, if it is
    set.
    """
    short_steps = dict(facts.short_runs).get(purpose)
    if short_steps is None:
        return baseline.steps
    stop_step = ""
    if facts.profiling and purpose is Purpose.PROFILE:
        stop_step = environment.get(facts.profiling.stop, "")
    if stop_step.isascii() and stop_step.isdecimal():
        return int(stop_step)
    return short_steps


def estimate_gpu_hours(baseline: Baseline, steps: int) -> float:
    """Estimate the GPU-hours of a job's steps: steps x step time x GPUs / 3600.

    Start-up is not included. 0 if the baseline has no step time yet.
    """
    seconds = steps * baseline.step_seconds * baseline.key.gpus
    return 0.0 if math.isnan(seconds) else seconds / 3600


def refuse_hours(
    hours_by_description: Mapping[str, float], limit: float | None
) -> None:
    """Refuse jobs whose total GPU-hours exceed the limit.

    `hours_by_description` maps a description of a configuration's runs to their
    GPU-hours. A `limit` of None is DEFAULT_HOURS. Raises LaunchError, with the total
    and the largest five.
    """
    total = sum(hours_by_description.values())
    allowed = DEFAULT_HOURS if limit is None else limit
    if total <= allowed:  # not `>`: a NaN total must be refused
        return
    configurations = count_noun(len(hours_by_description), "configuration")
    reason = "by default a session may use" if limit is None else "the limit is"
    lines = [
        f"the steps of {configurations} take {total:,.1f} GPU-hours; {reason} {allowed:,.10g}:"
    ]
    largest_first = sorted(
        hours_by_description.items(), key=lambda item: (-item[1], item[0])
    )
    for description, hours in largest_first[:LARGEST_SHOWN]:
        lines.append(f"  {hours:>9,.1f}  {description}")
    if omitted := largest_first[LARGEST_SHOWN:]:
        omitted_hours = sum(hours for _, hours in omitted)
        lines.append(f"  {omitted_hours:>9,.1f}  {len(omitted)} more")
    advice = f"{advise_hours(total)}; --llmb-dry-run shows what would be submitted"
    lines.append(fill(advice, WIDTH, break_on_hyphens=False))
    raise LaunchError("\n".join(lines))


def advise_hours(hours: float) -> str:
    """Advise what to do if `hours` exceed the limit."""
    needed = math.ceil(hours) if math.isfinite(hours) else "N"
    return (
        f"select fewer with -k or -m, or allow them: --llmb-gpu-hours={needed}, or `gpu_hours: {needed}` in the "
        "cluster file"
    )
