"""How a recipe is launched, from its baseline file to a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_llmbench.core.models import Recipe
from pytest_llmbench.core.models.jobs import Checkpointing, Command, LaunchFacts, Pairs, Profiling

GIGABYTE = 10**9


def read_facts(recipe: Recipe) -> LaunchFacts | None:
    """Return how a recipe is launched; None where its file does not say it, as a recorded one. The file was checked
    when it was read: nothing is checked again."""
    if not recipe.launch:
        return None
    launch = dict(recipe.launch)
    environment, needs, image = (_get_mapping(launch, name) for name in ("environment", "needs", "image"))
    return LaunchFacts(
        recipe=recipe.name,
        release=recipe.release,
        kind=str(launch["kind"]),
        commands=tuple(
            _read_command(name, dict(command)) for name, command in _get_mapping(launch, "commands").items()
        ),
        gpus_per_node=tuple(_get_mapping(launch, "gpus_per_node").items()),
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
        virtual_environment=bool(needs.get("virtual_environment", False)),
        profiling=_read_profiling(_get_mapping(launch, "profiling")),
        nccl_trace=_get_pairs(launch, "nccl_trace"),
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
    )


def _read_profiling(profiling: Mapping[str, Any]) -> Profiling | None:
    if not profiling:
        return None
    return Profiling(
        enable=_get_pairs(profiling, "enable"),
        **{name: _get_text(profiling, name) for name in ("start", "stop", "ranks", "gpu_metrics", "cpu")},
        default_start=int(profiling.get("default_start", 0)),
        default_stop=int(profiling.get("default_stop", 0)),
    )


def _read_checkpointing(checkpoint: Mapping[str, Any]) -> Checkpointing | None:
    if not checkpoint:
        return None
    return Checkpointing(
        save=_get_pairs(checkpoint, "save"),
        load=_get_pairs(checkpoint, "load"),
        size_bytes=tuple((size, int(count) * GIGABYTE) for size, count in _get_mapping(checkpoint, "disk_gb").items()),
        save_gpus=_read_limits(checkpoint, "save_gpus"),
        load_gpus=_read_limits(checkpoint, "load_gpus"),
    )


def _read_limits(checkpoint: Mapping[str, Any], name: str) -> tuple[tuple[str, tuple[int, int | None]], ...]:
    """Return by model size the smallest and the largest number of GPUs; a list of one number has no largest."""
    limits = _get_mapping(checkpoint, name).items()
    return tuple((size, (gpus[0], gpus[1] if len(gpus) > 1 else None)) for size, gpus in limits)


def _get_mapping(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(facts.get(name, ()))


def _get_pairs(facts: Mapping[str, Any], name: str) -> Pairs:
    return tuple((key, str(value)) for key, value in facts.get(name, ()))


def _get_text(facts: Mapping[str, Any], name: str) -> str:
    return str(facts.get(name, ""))
