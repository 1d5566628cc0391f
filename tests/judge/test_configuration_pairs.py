"""Comparisons of configurations: arithmetic, direction, and what is not a loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats
from support.builders import ASSUMED, BASELINE, at, evidence, measurement

from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes
from pytest_llmbench.core.baseline_records import (
    Baseline,
    BaselineKind,
    Configuration,
    Key,
)
from pytest_llmbench.core.codes import Verdict
from pytest_llmbench.core.configuration_comparisons import ConfigurationComparison
from pytest_llmbench.core.judgement_records import Estimate, Judgement, Noise
from pytest_llmbench.judge.configuration_pairs import (
    SEVERITY,
    compare_speed_ups,
    compare_weak_scaling,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.distributions import compute_t_upper_tail
from pytest_llmbench.report.wording import phrase_scaling
from pytest_llmbench.runs.measure.run_metrics import find_pairs, group_families

MARGIN = math.log(1.05)
KNOWN = Noise(0.002, 30.0, "20 days", measured=True)
OTHER = Noise(0.003, 12.0, "repeats", measured=True)


def estimate(difference: float, **fields: Any) -> Estimate:
    """Make an estimate with a small, well-known error."""
    made: dict[str, Any] = {
        "difference": difference,
        "standard_error": 0.002,
        "degrees_of_freedom": 30.0,
        "low": difference,
        "high": difference,
        "margin": MARGIN,
        "level": 0.05,
        "runs": 1,
        "noise": KNOWN,
        "within_run_error": 0.001,
        "effective_sample_size": 30.0,
        "rounding": 0.0,
        "detectable": 0.06,
        "repeats_needed": None,
    }
    error, freedom = (
        fields.get(name, made[name])
        for name in ("standard_error", "degrees_of_freedom")
    )
    made["p_slower"] = (
        compute_t_upper_tail(difference / error, freedom)
        if math.isfinite(error) and error > 0
        else None
    )
    return Estimate(**{**made, **fields})


def baseline(
    gpus: int, seconds: float = 7.325, dtype: str = "bf16", **fields: Any
) -> Baseline:
    """Make a baseline of the Grok 1 family, with GBS 2 per GPU."""
    shape = fields.pop("configuration", {})
    configuration = replace(
        BASELINE.configuration,
        key=replace(BASELINE.key, gpus=gpus, dtype=dtype),
        **{"global_batch_size": 2 * gpus, **shape},
    )
    return at(BASELINE, configuration=configuration, step_seconds=seconds, **fields)


def make_judged(
    member: Baseline,
    difference: Estimate | float | None,
    verdict: Verdict = Verdict.PASS,
) -> Judgement:
    """Make a verdict with an estimate, or with this difference to the baseline."""
    difference = estimate(difference) if isinstance(difference, float) else difference
    return replace(
        judge(evidence(baseline=member)), verdict=verdict, estimate=difference
    )


def group_by_key(*judged: Judgement) -> dict[Key, list[Judgement]]:
    by_key: dict[Key, list[Judgement]] = {}
    for judgement in judged:
        by_key.setdefault(judgement.baseline.key, []).append(judgement)
    return by_key


SIZES = (baseline(128), baseline(256, 7.39), baseline(512, 7.6))
FAMILY = tuple(size.configuration for size in SIZES)
BF16, FP8 = baseline(128, 7.325), baseline(128, 5.298, dtype="fp8")


def compare_sizes(*differences: Estimate | float | None) -> ConfigurationComparison:
    """Compare the three sizes of the family."""
    judged = [
        make_judged(size, difference)
        for size, difference in zip(SIZES, differences, strict=True)
    ]
    (comparison,) = compare_weak_scaling([FAMILY], group_by_key(*judged))
    return comparison


def compare_pair(
    bf16: Estimate | float, fp8: Estimate | float
) -> ConfigurationComparison:
    (comparison,) = compare_speed_ups(
        [(BF16.configuration, FP8.configuration)],
        group_by_key(make_judged(BF16, bf16), make_judged(FP8, fp8)),
    )
    return comparison


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((0.0, 0.0, 0.0), Verdict.PASS),
        ((0.01, 0.02, 0.03), Verdict.PASS),
        ((0.0, 0.0, 0.08), Verdict.REGRESSION),
        ((-0.04, 0.0, 0.04), Verdict.REGRESSION),
        ((0.0, 0.05, 0.0), Verdict.INCONCLUSIVE),
        ((0.0, 0.05, 0.08), Verdict.REGRESSION),
        ((0.10, 0.10, 0.10), Verdict.PASS),
        ((0.10, 0.0, 0.0), Verdict.PASS),
        ((-0.2, -0.01, 0.0), Verdict.PASS),
        ((-0.2, -0.01, 0.01), Verdict.REGRESSION),
        ((0.0, None, 0.08), Verdict.REGRESSION),
        ((None, 0.0, 0.08), Verdict.REGRESSION),
        ((None, None, 0.08), Verdict.MISSING),
        ((None, None, None), Verdict.MISSING),
        ((0.0, 0.0, math.nan), Verdict.PASS),
        ((math.nan, 0.0, math.nan), Verdict.MISSING),
    ],
)
def test_weak_scaling_loss_beyond_the_margin_at_one_gpu_count_is_a_regression(
    differences: tuple[float | None, ...], verdict: Verdict
) -> None:
    comparison = compare_sizes(*differences)
    assert comparison.verdict is verdict
    assert comparison.members == tuple(configuration.key for configuration in FAMILY)


def test_smallest_judged_gpu_count_is_the_reference_of_weak_scaling() -> None:
    comparison = compare_sizes(None, 0.0, 0.08)
    assert [(row.key.gpus, row.reference.gpus) for row in comparison.rows] == [
        (512, 256)
    ]
    assert phrase_scaling(comparison).endswith("not compared: 128 GPUs")


@pytest.mark.parametrize(
    "verdict", [Verdict.INVALID, Verdict.MISSING, Verdict.NOT_COMPARABLE]
)
def test_gpu_count_without_a_valid_run_is_left_out_of_weak_scaling(
    verdict: Verdict,
) -> None:
    judged_sizes = [
        make_judged(SIZES[0], 0.0),
        make_judged(SIZES[1], 0.0),
        make_judged(SIZES[2], 0.5, verdict),
    ]
    (comparison,) = compare_weak_scaling([FAMILY], group_by_key(*judged_sizes))
    assert comparison.verdict is Verdict.PASS
    assert "not compared: 512 GPUs" in phrase_scaling(comparison)


def test_weak_scaling_is_computed_from_judged_runs() -> None:
    """From step times to the text, with the assumed noise of one run each."""
    judged = [
        judge(
            evidence(
                measurement(size.step_seconds * factor, baseline=size), baseline=size
            )
        )
        for size, factor in zip(SIZES, (0.95, 1.0, 1.04), strict=True)
    ]
    (comparison,) = compare_weak_scaling([FAMILY], group_by_key(*judged))
    assert comparison.id == "grok1_314b-25.05-gb200-bf16"
    assert comparison.verdict is Verdict.REGRESSION
    assert comparison.rows[-1].measured == pytest.approx(7.325 * 0.95 / (7.6 * 1.04))
    assert phrase_scaling(comparison) == (
        "512 GPUs reach 88.0 % of the per-GPU throughput of 128 GPUs, published 96.4 %: -8.7 % (-11.4 % to -5.9 %); "
        "at least 91.8 % is required; the lowest of 3 sizes, GBS 2 per GPU, sequence length 8192, 64 layers"
    )


def test_text_of_a_configuration_pair_describes_the_comparison() -> None:
    comparison = compare_pair(0.0, 0.08)
    assert (comparison.kind, comparison.id) == (
        "fp8-speedup",
        "grok1_314b-25.05-gb200-128",
    )
    assert comparison.verdict is Verdict.REGRESSION
    assert phrase_scaling(comparison) == (
        "FP8 is 1.276 times as fast as BF16, published 1.383: -7.7 % (-8.1 % to -7.2 %); at least 1.317 is required; "
        "step times at GBS 256, sequence length 8192, 64 layers"
    )
    apart = replace(
        FP8.configuration, parallelism=replace(FP8.configuration.parallelism, pp=8)
    )
    (comparison,) = compare_speed_ups(
        [(BF16.configuration, apart)],
        group_by_key(make_judged(BF16, 0.0), make_judged(FP8, 0.0)),
    )
    assert phrase_scaling(comparison).endswith("64 layers, different parallelism")


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        (
            (-0.2, 0.0, 0.0),
            "no loss: the run meets its baseline, and only the run that it is compared with is faster than documented",
        ),
        (
            (estimate(0.0, threshold_only=True), 0.0, 0.0),
            "threshold only: the error of some numbers is unknown",
        ),
        (
            (None, None, 0.0),
            "fewer than two of 128 GPUs, 256 GPUs, 512 GPUs were judged against baselines of one kind",
        ),
    ],
)
def test_scaling_verdict_text_explains_why_it_was_reached(
    differences: tuple[Any, ...], words: str
) -> None:
    assert words in phrase_scaling(compare_sizes(*differences))


def test_weak_scaling_text_warns_if_the_smallest_size_is_a_regression() -> None:
    judged_sizes = [
        make_judged(SIZES[0], 0.2, Verdict.REGRESSION),
        make_judged(SIZES[1], 0.0),
        make_judged(SIZES[2], 0.0),
    ]
    (comparison,) = compare_weak_scaling([FAMILY], group_by_key(*judged_sizes))
    assert (
        "128 GPUs is itself a regression, so the others look better than they are"
        in phrase_scaling(comparison)
    )


def test_published_and_recorded_baselines_are_never_mixed() -> None:
    recorded = [
        at(size, kind=BaselineKind.RECORDED, step_seconds=size.step_seconds * 1.1)
        for size in SIZES
    ]
    mixed = group_by_key(
        make_judged(SIZES[0], 0.0),
        make_judged(recorded[1], 0.2),
        make_judged(SIZES[2], 0.0),
    )
    (comparison,) = compare_weak_scaling([FAMILY], mixed)
    assert [row.key.gpus for row in comparison.rows] == [512]
    assert "not compared: 256 GPUs" in phrase_scaling(comparison)
    both = group_by_key(
        *(make_judged(size, 0.0) for size in SIZES),
        *(make_judged(size, 0.08 * (size is recorded[2])) for size in recorded),
    )
    (comparison,) = compare_weak_scaling([FAMILY], both)
    rows = [(row.baseline, row.key.gpus, row.verdict) for row in comparison.rows]
    assert rows == [
        ("published", 256, Verdict.PASS),
        ("published", 512, Verdict.PASS),
        ("recorded", 256, Verdict.PASS),
        ("recorded", 512, Verdict.REGRESSION),
    ]


def test_weak_scaling_excludes_a_baseline_of_different_work() -> None:
    other = baseline(512, configuration={"global_batch_size": 512})
    judged_sizes = group_by_key(
        make_judged(SIZES[0], 0.0), make_judged(SIZES[1], 0.0), make_judged(other, 0.5)
    )
    assert compare_weak_scaling([FAMILY], judged_sizes)[0].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("ours", "theirs", "freedom"),
    [
        (estimate(0.03), estimate(0.0), 30.0),
        (estimate(0.03), estimate(0.0, degrees_of_freedom=4.0), 4.0),
        (
            estimate(0.03),
            estimate(0.0, standard_error=0.006, degrees_of_freedom=5.0, noise=OTHER),
            None,
        ),
        (estimate(0.03), estimate(0.0, noise=OTHER, level=0.025), None),
    ],
)
def test_interval_matches_welch_and_satterthwaite(
    ours: Estimate, theirs: Estimate, freedom: float | None
) -> None:
    """Unless both use the same noise estimate, whose degrees of freedom do not add."""
    (row,) = compare_pair(theirs, ours).rows
    variances = ours.standard_error**2, theirs.standard_error**2
    denominator = (
        variances[0] ** 2 / ours.degrees_of_freedom
        + variances[1] ** 2 / theirs.degrees_of_freedom
    )
    half_width = stats.t.ppf(
        1 - theirs.level, freedom or sum(variances) ** 2 / denominator
    ) * math.sqrt(sum(variances))
    assert row.low == pytest.approx(math.exp(-0.03 - half_width) - 1)
    assert row.high == pytest.approx(math.exp(-0.03 + half_width) - 1)


@pytest.mark.slow
def test_interval_has_its_nominal_coverage() -> None:
    """Two runs with noise estimates from 8 and 16 repeats: each bound is exceeded in 5
    % of the cases."""
    generator = stats.norm(0, [0.010, 0.004])
    differences = generator.rvs((4000, 2), random_state=1)
    sigmas = (
        generator.std()
        * (stats.chi2([7, 15]).rvs((4000, 2), random_state=2) / [7, 15]) ** 0.5
    )
    rows = [
        compare_pair(
            estimate(
                theirs, standard_error=second, degrees_of_freedom=15.0, noise=OTHER
            ),
            estimate(ours, standard_error=first, degrees_of_freedom=7.0),
        ).rows[0]
        for (ours, theirs), (first, second) in zip(differences, sigmas, strict=True)
    ]
    assert 0.04 < sum(row.low > 0 for row in rows) / 4000 < 0.06
    assert 0.04 < sum(row.high < 0 for row in rows) / 4000 < 0.06


def test_pair_of_unknown_error_is_decided_by_its_measured_speed_up_alone() -> None:
    unknown = {"threshold_only": True, "standard_error": 0.0, "degrees_of_freedom": 0.0}
    for loss, verdict in ((MARGIN, Verdict.PASS), (MARGIN + 1e-6, Verdict.REGRESSION)):
        comparison = compare_pair(estimate(0.0, **unknown), estimate(loss, **unknown))
        assert comparison.verdict is verdict
        assert comparison.rows[0].threshold_only
    half_known = compare_pair(estimate(0.0, **unknown), estimate(MARGIN + 1e-6))
    assert half_known.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_run_with_an_invalid_error_estimate_never_passes(error: float) -> None:
    assert (
        compare_pair(0.0, estimate(0.001, standard_error=error)).verdict
        is Verdict.INCONCLUSIVE
    )


# --- families and pairs ---------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped() -> list[Configuration]:
    return [
        baseline.configuration
        for recipe in read_recipes(list_shipped_baselines())
        for baseline in recipe.baselines
    ]


@pytest.mark.slow
def test_comparisons_of_shipped_configurations_have_unique_ids(
    shipped: Sequence[Configuration],
) -> None:
    comparisons = compare_weak_scaling(group_families(shipped), {})
    assert len({comparison.id for comparison in comparisons}) == len(comparisons) == 14
    assert "llama3.1_70b-25.04-h100-bf16" in {
        comparison.id for comparison in comparisons
    }
    comparisons = compare_speed_ups(find_pairs(shipped), {})
    assert len({comparison.id for comparison in comparisons}) == len(comparisons) == 41
    assert all(
        [key.dtype for key in comparison.members] == ["bf16", "fp8"]
        for comparison in comparisons
    )
    assert {comparison.verdict for comparison in comparisons} == {Verdict.MISSING}


@pytest.mark.parametrize(
    "change",
    [
        {"global_batch_size": 512},
        {"architecture": replace(BASELINE.configuration.architecture, layers=32)},
        {
            "architecture": replace(
                BASELINE.configuration.architecture, sequence_length=4096
            )
        },
        {"proxy": True},
        {"key": replace(FP8.key, gpus=256)},
        {"key": replace(FP8.key, release="25.07")},
    ],
)
def test_configurations_of_different_work_are_no_pair(change: dict[str, Any]) -> None:
    bf16, fp8 = BF16.configuration, FP8.configuration
    assert find_pairs([fp8, bf16]) == ((bf16, fp8),)
    assert find_pairs([bf16, replace(fp8, **change)]) == ()


def test_bf16_and_fp8_with_different_micro_batch_size_form_a_pair() -> None:
    other = replace(FP8.configuration, micro_batch_size=2, gradient_accumulation=4)
    assert find_pairs([BF16.configuration, other]) == ((BF16.configuration, other),)


def test_weak_scaling_ids_state_how_otherwise_equal_families_differ() -> None:
    family = [
        baseline(gpus, configuration={"global_batch_size": gbs})
        for gpus, gbs in ((8, 16), (16, 32), (32, 16), (64, 32))
    ]
    comparisons = compare_weak_scaling(
        group_families([size.configuration for size in family]), {}
    )
    assert [comparison.id for comparison in comparisons] == [
        "grok1_314b-25.05-gb200-bf16-gbs2",
        "grok1_314b-25.05-gb200-bf16-gbs0.5",
    ]
    wide = replace(BASELINE.configuration.architecture, hidden_size=8192)
    family = [
        baseline(8),
        baseline(16),
        *(baseline(gpus, configuration={"architecture": wide}) for gpus in (32, 64)),
    ]
    comparisons = compare_weak_scaling(
        group_families([size.configuration for size in family]), {}
    )
    assert [comparison.id for comparison in comparisons] == [
        "grok1_314b-25.05-gb200-bf16-from8",
        "grok1_314b-25.05-gb200-bf16-from32",
    ]


def test_weak_scaling_id_contains_task_and_variant() -> None:
    keys = [replace(member.key, task="finetune", variant="lora") for member in FAMILY]
    family = [
        replace(member, key=key) for member, key in zip(FAMILY, keys, strict=True)
    ]
    assert (
        compare_weak_scaling([family], {})[0].id
        == "grok1_314b-25.05-gb200-bf16-finetune-lora"
    )


# --- laws -----------------------------------------------------------------------------

difference = st.floats(-0.3, 0.3)
errors = st.floats(1e-4, 0.05)
estimates = st.builds(
    estimate, difference, standard_error=errors, degrees_of_freedom=st.floats(1, 100)
)


@pytest.mark.slow
@given(estimates, estimates, estimates, st.integers(0, 2), st.floats(0, 1))
def test_slower_size_never_improves_weak_scaling(
    one: Estimate, two: Estimate, three: Estimate, which: int, more: float
) -> None:
    """A slower reference makes the others look better, but its own item reports
    that."""
    before = compare_sizes(one, two, three)
    changed = [one, two, three]
    changed[which] = replace(
        changed[which], difference=changed[which].difference + more
    )
    after = compare_sizes(*changed)
    if which:
        assert SEVERITY.index(after.verdict) <= SEVERITY.index(before.verdict)
    else:
        assert all(
            late.measured >= early.measured
            for late, early in zip(after.rows, before.rows, strict=True)
        )


@pytest.mark.slow
@given(st.lists(estimates, min_size=3, max_size=3))
def test_scaling_passes_if_all_sizes_meet_their_baselines(
    sizes: list[Estimate],
) -> None:
    not_slower = [replace(size, difference=-abs(size.difference)) for size in sizes]
    assert compare_sizes(*not_slower).verdict is Verdict.PASS
    assert compare_pair(not_slower[0], not_slower[1]).verdict is Verdict.PASS


@pytest.mark.slow
@given(st.permutations(range(3)), st.lists(estimates, min_size=3, max_size=3))
def test_order_of_configurations_does_not_matter(
    order: list[int], estimates_drawn: list[Estimate]
) -> None:
    in_order = [
        make_judged(size, difference)
        for size, difference in zip(SIZES, estimates_drawn, strict=True)
    ]
    shuffled = group_by_key(*(in_order[position] for position in order))
    assert compare_weak_scaling(
        [[FAMILY[position] for position in order]], shuffled
    ) == (compare_sizes(*estimates_drawn),)


@pytest.mark.slow
@given(estimates, estimates, st.floats(1e-6, 1e6))
def test_unit_of_step_time_does_not_change_the_verdict(
    one: Estimate, two: Estimate, unit: float
) -> None:
    scaled = [at(size, step_seconds=size.step_seconds * unit) for size in SIZES[:2]]
    judged_sizes = group_by_key(
        make_judged(scaled[0], one), make_judged(scaled[1], two)
    )
    (row,) = compare_weak_scaling([FAMILY], judged_sizes)[0].rows
    (expected,) = compare_sizes(one, two, None).rows
    assert row.verdict is expected.verdict
    for name in ("measured", "documented", "bound", "difference", "low", "high"):
        assert getattr(row, name) == pytest.approx(
            getattr(expected, name), rel=1e-9, abs=1e-9
        )


@pytest.mark.slow
@given(estimates, estimates)
def test_weak_scaling_over_two_sizes_equals_the_pair_comparison(
    one: Estimate, two: Estimate
) -> None:
    """The reported ratio is the documented ratio times exp(-loss), as the step times
    give it."""
    sizes = (
        at(SIZES[0], step_seconds=BF16.step_seconds),
        at(SIZES[1], step_seconds=FP8.step_seconds),
    )
    family = [size.configuration for size in sizes]
    (row,) = compare_weak_scaling(
        [family], group_by_key(make_judged(sizes[0], one), make_judged(sizes[1], two))
    )[0].rows
    (pair,) = compare_pair(one, two).rows
    assert replace(row, key=pair.key, reference=pair.reference) == pair
    reference, member = (
        7.325 * math.exp(one.difference),
        5.298 * math.exp(two.difference),
    )
    assert row.measured == pytest.approx(reference / member)
    assert row.measured == pytest.approx(
        row.documented * math.exp(one.difference - two.difference)
    )
    assert row.low <= row.difference <= row.high


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [(0.1, 0.02, Verdict.PASS), (0.02, 0.1, Verdict.REGRESSION)],
)
def test_configuration_pair_uses_the_margin_of_the_compared_not_the_reference(
    ours: float, theirs: float, verdict: Verdict
) -> None:
    assert (
        compare_pair(estimate(0.0, margin=theirs), estimate(0.05, margin=ours)).verdict
        is verdict
    )


@pytest.mark.slow
@given(estimates, estimates, st.floats(0, 0.2))
def test_wider_margin_keeps_a_scaling_pass(
    one: Estimate, two: Estimate, more: float
) -> None:
    if compare_pair(one, two).verdict is Verdict.PASS:
        assert (
            compare_pair(one, replace(two, margin=two.margin + more)).verdict
            is Verdict.PASS
        )


@pytest.mark.slow
def test_false_passes_at_the_margin_are_rare() -> None:
    """If the true loss equals the margin, 5 % of the comparisons may pass and 5 % may
    fail."""
    noise = stats.norm(0, 0.01).rvs((3000, 2), random_state=3)
    verdicts = Counter(
        compare_pair(
            estimate(0.1 + theirs, standard_error=0.01, degrees_of_freedom=1e6),
            estimate(0.1 + MARGIN + ours, standard_error=0.01, degrees_of_freedom=1e6),
        ).verdict
        for theirs, ours in noise
    )
    assert 0.03 < verdicts[Verdict.PASS] / 3000 < 0.07
    assert 0.03 < verdicts[Verdict.REGRESSION] / 3000 < 0.07


def test_shared_assumed_noise_adds_no_degrees_of_freedom() -> None:
    """Two configurations with the same assumption have no more degrees of freedom than
    one."""
    one = estimate(0.0, standard_error=0.01, degrees_of_freedom=4.0, noise=ASSUMED)
    (row,) = compare_pair(one, one).rows
    assert math.log1p(row.high) == pytest.approx(
        stats.t.ppf(0.95, 4) * 0.01 * math.sqrt(2)
    )
