"""Weak scaling and speed-up: which configurations are compared with which, under what ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pytest_llmbench.core.models import Configuration, Judgement, Key
from pytest_llmbench.judge.comparison import SPEED_UP, WEAK_SCALING, ConfigurationComparison, compare


def compare_weak_scaling(
    families: Sequence[Sequence[Configuration]], judgements: Mapping[Key, Sequence[Judgement]]
) -> tuple[ConfigurationComparison, ...]:
    """Return for each family, which does the same work per GPU at every size, the efficiency of its sizes.

    The reference is the smallest size that was judged; the verdicts are those of `compare`.
    """
    ordered = [sorted(family, key=lambda member: member.key.gpus) for family in families]
    ids = _make_family_ids([family[0] for family in ordered])
    return tuple(
        compare(WEAK_SCALING, identifier, family, judgements) for identifier, family in zip(ids, ordered, strict=True)
    )


def compare_speed_ups(
    pairs: Sequence[tuple[Configuration, Configuration]], judgements: Mapping[Key, Sequence[Judgement]]
) -> tuple[ConfigurationComparison, ...]:
    """Return for each pair (BF16, FP8) of equal work the speed-up of FP8; the verdicts are those of `compare`."""
    return tuple(compare(SPEED_UP, _make_id(pair[0].key, str(pair[0].key.gpus)), pair, judgements) for pair in pairs)


def _make_id(key: Key, *parts: str) -> str:
    head = (f"{key.recipe}_{key.size}", key.release, key.gpu)
    return "-".join(filter(None, (*head, *parts, key.task, key.scaling, key.variant)))


def _make_family_ids(smallest: Sequence[Configuration]) -> list[str]:
    """Return an id for each family, given by its smallest size; where keys differ in size only, with what differs."""
    stems = [_make_id(configuration.key, configuration.key.dtype) for configuration in smallest]
    alike = defaultdict(list)
    for stem, configuration in zip(stems, smallest, strict=True):
        alike[stem].append(configuration)
    return [
        "-".join([stem, *_tell_apart(configuration, alike[stem])])
        for stem, configuration in zip(stems, smallest, strict=True)
    ]


def _tell_apart(configuration: Configuration, alike: Sequence[Configuration]) -> list[str]:
    """Return the facts that tell a family from those alike; where they do not, its smallest size, which always does."""
    facts = [_list_facts(other) for other in alike]
    facts_apart = [
        fact
        for position, fact in enumerate(_list_facts(configuration))
        if len({other[position] for other in facts}) > 1
    ]
    return facts_apart if len(set(facts)) == len(facts) else [*facts_apart, f"from{configuration.key.gpus}"]


def _list_facts(configuration: Configuration) -> tuple[str, ...]:
    architecture = configuration.architecture
    return (
        f"layers{architecture.layers}",
        f"seq{architecture.sequence_length}",
        f"mbs{configuration.micro_batch_size}",
        f"gbs{configuration.global_batch_size / configuration.key.gpus:.6g}",
    )
