"""Compare configurations with each other: weak scaling and FP8 speed-up.

The measured ratio of two step times is compared with the ratio of their baselines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from pytest_llmbench.core.baseline_records import BaselineKind, Configuration, Key
from pytest_llmbench.core.codes import JUDGED, Verdict
from pytest_llmbench.core.configuration_comparisons import (
    ComparisonRow,
    ConfigurationComparison,
)
from pytest_llmbench.core.judgement_records import Estimate, Judgement
from pytest_llmbench.core.outcome_records import CheckKind
from pytest_llmbench.judge.distributions import compute_quantile
from pytest_llmbench.judge.estimate import EPSILON, Answer, compare_interval

# Worst first.
VERDICTS = {
    Answer.BEYOND: Verdict.REGRESSION,
    Answer.INCONCLUSIVE: Verdict.INCONCLUSIVE,
    Answer.WITHIN: Verdict.PASS,
}

SEVERITY = tuple(VERDICTS.values())


class _JudgedMember(Struct, frozen=True):
    """A configuration that was judged against a baseline of one kind."""

    configuration: Configuration
    judgement: Judgement
    estimate: Estimate


def compare(
    kind: CheckKind,
    identifier: str,
    configurations: Sequence[Configuration],
    judgements: Mapping[Key, Sequence[Judgement]],
) -> ConfigurationComparison:
    """Compare configurations with the first judged one by their step time ratios.

    `judgements` contains one judgement for each baseline of a key. Judgements against
    baselines of the same kind are compared with each other.

    - REGRESSION: a configuration is shown to lose more of the documented ratio than its
      margin.
    - INCONCLUSIVE: the interval contains the margin.
    - PASS: otherwise, and always if the configuration is not slower than its own
      baseline, because a faster reference is no loss.
    """
    rows: list[ComparisonRow] = []
    slow_references: list[Key] = []
    for reference, *members in _group_members(configurations, judgements):
        rows += [_compare_pair(member, reference) for member in members]
        if reference.judgement.verdict is Verdict.REGRESSION:
            slow_references.append(reference.configuration.key)
    worst = min(
        rows,
        key=lambda row: (SEVERITY.index(row.verdict), row.difference),
        default=None,
    )
    return ConfigurationComparison(
        kind,
        identifier,
        tuple(configurations),
        worst.verdict if worst else Verdict.MISSING,
        tuple(rows),
        worst,
        slow_references[0] if slow_references else None,
    )


def _group_members(
    configurations: Sequence[Configuration],
    judgements: Mapping[Key, Sequence[Judgement]],
) -> list[list[_JudgedMember]]:
    """Group the comparable configurations by the kind of their baseline.

    Each group has at least two members, in the given order.
    """
    by_kind: dict[BaselineKind, list[_JudgedMember]] = defaultdict(list)
    for configuration in configurations:
        for judgement in judgements.get(configuration.key, ()):
            estimate = judgement.estimate
            if estimate is not None and _is_comparable(
                judgement, estimate, configuration
            ):
                member = _JudgedMember(configuration, judgement, estimate)
                by_kind[judgement.baseline.kind].append(member)
    return [group for _, group in sorted(by_kind.items()) if len(group) > 1]


def _is_comparable(
    judgement: Judgement, estimate: Estimate, configuration: Configuration
) -> bool:
    """True if a configuration was judged, against a baseline of the same work."""
    baseline_work = _identify_work(judgement.baseline.configuration)
    is_judged = judgement.verdict in JUDGED and math.isfinite(estimate.difference)
    return is_judged and baseline_work == _identify_work(configuration)


def _identify_work(configuration: Configuration) -> tuple[object, ...]:
    """Return the facts that determine the work of a step."""
    return configuration.architecture, configuration.global_batch_size


def _compare_pair(member: _JudgedMember, reference: _JudgedMember) -> ComparisonRow:
    """Compare the step time ratio of two configurations with the documented ratio.

    The loss is the member's log difference to its baseline minus that of the reference:
    the log of the documented ratio over the measured ratio.
    """
    estimate, reference_estimate = member.estimate, reference.estimate
    loss = estimate.difference - reference_estimate.difference
    half_width = _combine_widths(estimate, reference_estimate)
    documented = (
        reference.judgement.baseline.step_seconds
        / member.judgement.baseline.step_seconds
    )
    verdict = Verdict.PASS
    if not _is_at_baseline(estimate):
        low, high = loss - half_width, loss + half_width
        verdict = VERDICTS[compare_interval(low, high, estimate.margin)]
    return ComparisonRow(
        key=member.configuration.key,
        reference=reference.configuration.key,
        baseline=member.judgement.baseline.kind,
        measured=documented * math.exp(-loss),
        documented=documented,
        bound=documented * math.exp(-estimate.margin),
        difference=math.expm1(-loss),
        low=math.expm1(-loss - half_width),
        high=math.expm1(-loss + half_width),
        verdict=verdict,
        threshold_only=estimate.threshold_only or reference_estimate.threshold_only,
    )


def _is_at_baseline(estimate: Estimate) -> bool:
    """True if a member is not shown to be slower than its own baseline."""
    return estimate.difference <= EPSILON or (
        estimate.p_slower is not None and estimate.p_slower > estimate.level
    )


def _combine_widths(member: Estimate, reference: Estimate) -> float:
    """Return the half-width of the interval of a difference of two estimates.

    Variances add. Degrees of freedom follow Welch (Biometrika 34, 1947) and
    Satterthwaite (Biometrics Bulletin 2, 1946). If both errors use the same noise
    estimate, their degrees of freedom do not add: the smaller is used. 0 if neither
    error is known.
    """
    # a `threshold_only` estimate has no error
    estimates = [
        estimate for estimate in (member, reference) if not estimate.threshold_only
    ]
    if not estimates:
        return 0.0
    variance = sum(estimate.standard_error**2 for estimate in estimates)
    freedom = min(estimate.degrees_of_freedom for estimate in estimates)
    if member.noise != reference.noise and variance > 0:
        freedom = variance**2 / sum(
            (estimate.standard_error**2) ** 2 / estimate.degrees_of_freedom
            for estimate in estimates
        )
    level = min(member.level, reference.level)
    return compute_quantile(1 - level, freedom) * math.sqrt(variance)


# --- comparisons and their ids --------------------------------------------------------


def compare_weak_scaling(
    families: Sequence[Sequence[Configuration]],
    judgements: Mapping[Key, Sequence[Judgement]],
) -> tuple[ConfigurationComparison, ...]:
    """Compare the sizes of each family by weak scaling efficiency.

    The members of a family do the same work per GPU. The reference is the smallest
    judged size; verdicts are those of `compare`.
    """
    ordered = [
        sorted(family, key=lambda member: member.key.gpus) for family in families
    ]
    ids = _make_family_ids([family[0] for family in ordered])
    return tuple(
        compare(CheckKind.WEAK_SCALING, identifier, family, judgements)
        for identifier, family in zip(ids, ordered, strict=True)
    )


def compare_speed_ups(
    pairs: Sequence[tuple[Configuration, Configuration]],
    judgements: Mapping[Key, Sequence[Judgement]],
) -> tuple[ConfigurationComparison, ...]:
    """Compare each (BF16, FP8) pair of equal work by the speed-up of FP8.

    The verdicts have the same meaning as those of `compare`.
    """
    comparisons = []
    for bf16, fp8 in pairs:
        identifier = _make_id(bf16.key, str(bf16.key.gpus))
        comparisons.append(
            compare(CheckKind.FP8_SPEEDUP, identifier, (bf16, fp8), judgements)
        )
    return tuple(comparisons)


def _make_id(key: Key, *suffixes: str) -> str:
    """Join the components of a key that all compared configurations share."""
    head = (f"{key.recipe}_{key.size}", key.release, key.gpu)
    components = (*head, *suffixes, key.task, key.scaling, key.variant)
    return "-".join(filter(None, components))


def _make_family_ids(smallest: Sequence[Configuration]) -> list[str]:
    """Return an id for each family, named by its smallest size.

    Families with equal names are distinguished by further facts.
    """
    stems = [
        _make_id(configuration.key, configuration.key.dtype)
        for configuration in smallest
    ]
    same_stem = defaultdict(list)
    for stem, configuration in zip(stems, smallest, strict=True):
        same_stem[stem].append(configuration)
    return [
        "-".join([stem, *_list_distinguishing_facts(configuration, same_stem[stem])])
        for stem, configuration in zip(stems, smallest, strict=True)
    ]


def _list_distinguishing_facts(
    configuration: Configuration, namesakes: Sequence[Configuration]
) -> list[str]:
    """Return the facts that distinguish a family from its namesakes.

    A family is one configuration on several numbers of GPUs. `namesakes` are all
    families with its id, including the family itself. If the facts are not unique, the smallest number of GPUs is added (such as
    `from8`), which always differs.
    """
    facts_of_namesakes = [_list_facts(namesake) for namesake in namesakes]
    differing = []
    for index, fact in enumerate(_list_facts(configuration)):
        values = {facts[index] for facts in facts_of_namesakes}
        if len(values) > 1:
            differing.append(fact)
    are_unique = len(set(facts_of_namesakes)) == len(facts_of_namesakes)
    if not are_unique:
        differing.append(f"from{configuration.key.gpus}")
    return differing


def _list_facts(configuration: Configuration) -> tuple[str, ...]:
    """List the facts that may distinguish families, as components of an id."""
    architecture = configuration.architecture
    return (
        f"layers{architecture.layers}",
        f"seq{architecture.sequence_length}",
        f"mbs{configuration.micro_batch_size}",
        f"gbs{configuration.global_batch_size / configuration.key.gpus:.6g}",
    )
