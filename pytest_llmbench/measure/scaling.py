"""Which configurations are compared with each other, and the efficiency of weak scaling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.core.models import Configuration, Key


def group_families(configurations: Sequence[Configuration]) -> tuple[tuple[Configuration, ...], ...]:
    """Group configurations that differ in size only: equal layers, sequence length, MBS and GBS per GPU; no proxies."""
    groups: dict[tuple[object, ...], list[Configuration]] = defaultdict(list)
    for configuration in configurations:
        if not configuration.proxy:
            groups[_family(configuration)].append(configuration)
    ordered = (sorted(group, key=lambda member: member.key.gpus) for group in groups.values())
    return tuple(tuple(group) for group in ordered if len(group) > 1)


def find_pairs(configurations: Sequence[Configuration]) -> tuple[tuple[Configuration, Configuration], ...]:
    """Return (BF16, FP8) of configurations that differ in precision only: equal model, sequence length, layers and GBS.

    MBS, gradient accumulation and parallelism may differ: they are how the same work is done.
    """
    by_key = {configuration.key: configuration for configuration in configurations}
    bf16 = [configuration for configuration in configurations if configuration.key.dtype == "bf16"]
    both = ((configuration, by_key.get(replace(configuration.key, dtype="fp8"))) for configuration in bf16)
    return tuple(
        (configuration, other)
        for configuration, other in both
        if other is not None and _work(configuration) == _work(other)
    )


def compute_efficiency(family: Sequence[Key], seconds: Mapping[Key, float]) -> dict[Key, float]:
    """Return tokens/s/GPU over that of the family's smallest size, for step times in seconds by key.

    Within a family the work per GPU is the same, so this is the ratio of step times; empty without the smallest size.
    """
    reference = seconds.get(min(family, key=lambda member: member.gpus))
    return {key: reference / seconds[key] for key in family if key in seconds} if reference else {}


def _work(configuration: Configuration) -> tuple[object, ...]:
    return configuration.architecture, configuration.global_batch_size, configuration.proxy


def _family(configuration: Configuration) -> tuple[object, ...]:
    key = configuration.key
    return (
        (key.recipe, key.size, key.release, key.gpu, key.dtype, key.task, key.scaling, key.variant),
        configuration.architecture,
        configuration.micro_batch_size,
        configuration.global_batch_size / key.gpus,
    )
