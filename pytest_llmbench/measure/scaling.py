"""Weak scaling: throughput per GPU against the smallest size of a family."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pytest_llmbench.models import Configuration, Key


def families(configurations: Sequence[Configuration]) -> tuple[tuple[Configuration, ...], ...]:
    """Group configurations that differ in size only: equal layers, sequence length, MBS and GBS per GPU; no proxies."""
    groups: dict[tuple[object, ...], list[Configuration]] = defaultdict(list)
    for configuration in configurations:
        if not configuration.proxy:
            groups[_family(configuration)].append(configuration)
    ordered = (sorted(group, key=lambda member: member.key.gpus) for group in groups.values())
    return tuple(tuple(group) for group in ordered if len(group) > 1)


def weak_scaling_efficiency(family: Sequence[Key], seconds: Mapping[Key, float]) -> dict[Key, float]:
    """Return tokens/s/GPU over that of the family's smallest size, for step times in seconds by key.

    Within a family the work per GPU is the same, so this is the ratio of step times; empty without the smallest size.
    """
    reference = seconds.get(min(family, key=lambda member: member.gpus))
    return {key: reference / seconds[key] for key in family if key in seconds} if reference else {}


def _family(configuration: Configuration) -> tuple[object, ...]:
    key = configuration.key
    return (
        (key.recipe, key.size, key.release, key.gpu, key.dtype, key.task, key.scaling, key.variant),
        configuration.architecture,
        configuration.micro_batch_size,
        configuration.global_batch_size / key.gpus,
    )
