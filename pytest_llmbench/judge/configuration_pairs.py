"""Compare configurations with each other: weak scaling and FP8 speed-up.

The measured ratio of two step times is compared with the ratio of their baselines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _JudgedMember:
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
    groups = _group_members(configurations, judgements)
    rows = tuple(
        _compare_pair(member, group[0]) for group in groups for member in group[1:]
    )
    worst = min(
        rows,
        key=lambda row: (SEVERITY.index(row.verdict), row.difference),
        default=None,
    )
    slow = (
        group[0].configuration.key
        for group in groups
        if group[0].judgement.verdict is Verdict.REGRESSION
    )
    return ConfigurationComparison(
        kind,
        identifier,
        tuple(configurations),
        worst.verdict if worst else Verdict.MISSING,
        rows,
        worst,
        next(slow, None),
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
            if estimate is not None and _counts(judgement, estimate, configuration):
                by_kind[judgement.baseline.kind].append(
                    _JudgedMember(configuration, judgement, estimate)
                )
    return [group for _, group in sorted(by_kind.items()) if len(group) > 1]


def _counts(
    judgement: Judgement, estimate: Estimate, configuration: Configuration
) -> bool:
    same_work = _identify_work(judgement.baseline.configuration) == _identify_work(
        configuration
    )
    return (
        judgement.verdict in JUDGED and math.isfinite(estimate.difference) and same_work
    )


def _identify_work(configuration: Configuration) -> tuple[object, ...]:
    return configuration.architecture, configuration.global_batch_size


def _compare_pair(member: _JudgedMember, reference: _JudgedMember) -> ComparisonRow:
    """Compare two log differences.

    The loss is the member's difference minus the reference's: the negative log of the
    measured over the documented ratio.
    """
    ours, theirs = member.estimate, reference.estimate
    loss = ours.difference - theirs.difference
    half_width = _combine_widths(ours, theirs)
    documented = (
        reference.judgement.baseline.step_seconds
        / member.judgement.baseline.step_seconds
    )
    at_baseline = _is_at_baseline(ours)
    return ComparisonRow(
        key=member.configuration.key,
        reference=reference.configuration.key,
        baseline=member.judgement.baseline.kind,
        measured=documented * math.exp(-loss),
        documented=documented,
        bound=documented * math.exp(-ours.margin),
        difference=math.expm1(-loss),
        low=math.expm1(-loss - half_width),
        high=math.expm1(-loss + half_width),
        verdict=Verdict.PASS
        if at_baseline
        else VERDICTS[
            compare_interval(loss - half_width, loss + half_width, ours.margin)
        ],
        threshold_only=ours.threshold_only or theirs.threshold_only,
    )


def _is_at_baseline(estimate: Estimate) -> bool:
    """True if a member is not shown to be slower than its own baseline."""
    return estimate.difference <= EPSILON or (
        estimate.p_slower is not None and estimate.p_slower > estimate.level
    )


def _combine_widths(ours: Estimate, theirs: Estimate) -> float:
    """Return the half-width of the interval of a difference of two estimates.

    Variances add. Degrees of freedom follow Welch (Biometrika 34, 1947) and
    Satterthwaite (Biometrics Bulletin 2, 1946). If both errors use the same noise
    estimate, their degrees of freedom do not add: the smaller is used. 0 if neither
    error is known.
    """
    estimates = [estimate for estimate in (ours, theirs) if not estimate.threshold_only]
    if not estimates:
        return 0.0
    variances = [estimate.standard_error**2 for estimate in estimates]
    freedom = min(estimate.degrees_of_freedom for estimate in estimates)
    if ours.noise != theirs.noise and sum(variances) > 0:
        pairs = zip(variances, estimates, strict=True)
        freedom = sum(variances) ** 2 / sum(
            variance**2 / estimate.degrees_of_freedom for variance, estimate in pairs
        )
    return compute_quantile(1 - min(ours.level, theirs.level), freedom) * math.sqrt(
        sum(variances)
    )


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
    return tuple(
        compare(
            CheckKind.FP8_SPEEDUP,
            _make_id(pair[0].key, str(pair[0].key.gpus)),
            pair,
            judgements,
        )
        for pair in pairs
    )


def _make_id(key: Key, *suffixes: str) -> str:
    head = (f"{key.recipe}_{key.size}", key.release, key.gpu)
    return "-".join(
        filter(None, (*head, *suffixes, key.task, key.scaling, key.variant))
    )


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
    """Return the facts that distinguish a family from those with the same id.

    Adds the smallest size, which always differs, if the facts are not unique.
    """
    facts = [_list_facts(other) for other in namesakes]
    differing = [
        fact
        for position, fact in enumerate(_list_facts(configuration))
        if len({other[position] for other in facts}) > 1
    ]
    return (
        differing
        if len(set(facts)) == len(facts)
        else [*differing, f"from{configuration.key.gpus}"]
    )


def _list_facts(configuration: Configuration) -> tuple[str, ...]:
    architecture = configuration.architecture
    return (
        f"layers{architecture.layers}",
        f"seq{architecture.sequence_length}",
        f"mbs{configuration.micro_batch_size}",
        f"gbs{configuration.global_batch_size / configuration.key.gpus:.6g}",
    )
