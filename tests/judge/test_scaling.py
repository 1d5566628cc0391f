"""Across configurations: the arithmetic of two estimates, which way it points, and what is no scaling regression."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from builders import BASELINE, at, evidence, measurement
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes
from pytest_llmbench.core.models import (
    Baseline,
    BaselineKind,
    Estimate,
    Judgement,
    Key,
    Noise,
    Verdict,
)
from pytest_llmbench.judge.comparison import (
    SEVERITY,
    ConfigurationComparison,
    compare_speed_ups,
    compare_weak_scaling,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.distributions import compute_probability
from pytest_llmbench.measure.metrics import find_pairs, group_families

MARGIN = math.log(1.05)
KNOWN = Noise(0.002, 30.0, "20 nights", measured=True)
OTHER = Noise(0.003, 12.0, "repeats", measured=True)


def estimate(difference: float, **fields: Any) -> Estimate:
    """Return an estimate with a small error that is well known."""
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
    error, freedom = (fields.get(name, made[name]) for name in ("standard_error", "degrees_of_freedom"))
    made["p_slower"] = compute_probability(difference / error, freedom) if math.isfinite(error) and error > 0 else None
    return Estimate(**{**made, **fields})


def baseline(gpus: int, seconds: float = 7.325, dtype: str = "bf16", **fields: Any) -> Baseline:
    """Return a baseline of the Grok 1 family: GBS 2 per GPU."""
    shape = fields.pop("configuration", {})
    configuration = replace(
        BASELINE.configuration,
        key=replace(BASELINE.key, gpus=gpus, dtype=dtype),
        **{"global_batch_size": 2 * gpus, **shape},
    )
    return at(BASELINE, configuration=configuration, step_seconds=seconds, **fields)


def judged(one: Baseline, found: Estimate | float | None, verdict: Verdict = Verdict.PASS) -> Judgement:
    """Return a verdict that rests on an estimate, or on that difference to the baseline."""
    found = estimate(found) if isinstance(found, float) else found
    return replace(judge(evidence(baseline=one)), verdict=verdict, estimate=found)


def judgements(*all_of_them: Judgement) -> dict[Key, list[Judgement]]:
    by_key: dict[Key, list[Judgement]] = {}
    for one in all_of_them:
        by_key.setdefault(one.baseline.key, []).append(one)
    return by_key


SIZES = (baseline(128), baseline(256, 7.39), baseline(512, 7.6))
FAMILY = tuple(one.configuration for one in SIZES)
BF16, FP8 = baseline(128, 7.325), baseline(128, 5.298, dtype="fp8")


def compared(*differences: Estimate | float | None) -> ConfigurationComparison:
    """Compare the three sizes of the family."""
    found = [judged(one, difference) for one, difference in zip(SIZES, differences, strict=True)]
    (comparison,) = compare_weak_scaling([FAMILY], judgements(*found))
    return comparison


def paired(bf16: Estimate | float, fp8: Estimate | float) -> ConfigurationComparison:
    (comparison,) = compare_speed_ups(
        [(BF16.configuration, FP8.configuration)], judgements(judged(BF16, bf16), judged(FP8, fp8))
    )
    return comparison


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((0.0, 0.0, 0.0), Verdict.PASS),
        ((0.0, 0.0, 0.08), Verdict.REGRESSION),
        ((-0.04, 0.0, 0.04), Verdict.REGRESSION),
        ((0.0, 0.05, 0.0), Verdict.INCONCLUSIVE),
        ((0.10, 0.0, 0.0), Verdict.PASS),
        ((-0.2, -0.01, 0.01), Verdict.REGRESSION),
        ((None, 0.0, 0.08), Verdict.REGRESSION),
        ((None, None, 0.08), Verdict.MISSING),
        ((math.nan, 0.0, math.nan), Verdict.MISSING),
    ],
)
def test_size_losing_more_than_its_margin_is_a_regression(
    differences: tuple[float | None, ...], verdict: Verdict
) -> None:
    comparison = compared(*differences)
    assert comparison.verdict is verdict
    assert comparison.members == tuple(one.key for one in FAMILY)


def test_smallest_judged_size_is_the_reference() -> None:
    comparison = compared(None, 0.0, 0.08)
    assert [(row.key.gpus, row.reference.gpus) for row in comparison.rows] == [(512, 256)]
    assert comparison.text.endswith("not compared: 128 GPUs")


@pytest.mark.parametrize("verdict", [Verdict.INVALID, Verdict.NOT_COMPARABLE])
def test_size_without_a_valid_run_is_not_compared(verdict: Verdict) -> None:
    found = judgements(judged(SIZES[0], 0.0), judged(SIZES[1], 0.0), judged(SIZES[2], 0.5, verdict))
    (comparison,) = compare_weak_scaling([FAMILY], found)
    assert comparison.verdict is Verdict.PASS
    assert "not compared: 512 GPUs" in comparison.text


def test_scaling_text_is_computed_from_step_times() -> None:
    """From step times to the text, with the assumed noise of one run each."""
    found = [
        judge(evidence(measurement(one.step_seconds * factor, baseline=one), baseline=one))
        for one, factor in zip(SIZES, (0.95, 1.0, 1.04), strict=True)
    ]
    (comparison,) = compare_weak_scaling([FAMILY], judgements(*found))
    assert comparison.id == "grok1_314b-25.05-gb200-bf16"
    assert comparison.verdict is Verdict.REGRESSION
    assert comparison.rows[-1].measured == pytest.approx(7.325 * 0.95 / (7.6 * 1.04))
    assert comparison.text == (
        "512 GPUs have 88.0 % of the throughput per GPU of 128, published 96.4 %: -8.7 % (-11.4 % to -5.9 %); "
        "at least 91.8 % passes; the lowest of 3 sizes, GBS 2 per GPU, sequence length 8192, 64 layers"
    )


def test_pair_text_states_ratio_interval_and_work() -> None:
    comparison = paired(0.0, 0.08)
    assert (comparison.kind, comparison.id) == ("fp8-speedup", "grok1_314b-25.05-gb200-128")
    assert comparison.verdict is Verdict.REGRESSION
    assert comparison.text == (
        "FP8 is 1.276 times as fast as BF16, published 1.383: -7.7 % (-8.1 % to -7.2 %); at least 1.317 passes; "
        "step times at GBS 256, sequence length 8192, 64 layers"
    )
    apart = replace(FP8.configuration, parallelism=replace(FP8.configuration.parallelism, pp=8))
    (comparison,) = compare_speed_ups([(BF16.configuration, apart)], judgements(judged(BF16, 0.0), judged(FP8, 0.0)))
    assert comparison.text.endswith("64 layers, another parallelism")


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ((-0.2, 0.0, 0.0), "not slower than its own baseline, so no loss: its reference is faster than documented"),
        ((estimate(0.0, threshold_only=True), 0.0, 0.0), "threshold only: of some of the numbers the error is unknown"),
        ((None, None, 0.0), "fewer than two of 128 GPUs, 256 GPUs, 512 GPUs were judged against baselines of one kind"),
    ],
)
def test_text_states_missing_evidence(differences: tuple[Any, ...], words: str) -> None:
    assert words in compared(*differences).text


def test_slow_reference_is_named() -> None:
    found = [judged(SIZES[0], 0.2, Verdict.REGRESSION), judged(SIZES[1], 0.0), judged(SIZES[2], 0.0)]
    (comparison,) = compare_weak_scaling([FAMILY], judgements(*found))
    assert "128 GPUs is a regression itself, which flatters what is compared with it" in comparison.text


def test_published_and_recorded_baselines_are_never_mixed() -> None:
    recorded = [at(one, kind=BaselineKind.RECORDED, step_seconds=one.step_seconds * 1.1) for one in SIZES]
    mixed = judgements(judged(SIZES[0], 0.0), judged(recorded[1], 0.2), judged(SIZES[2], 0.0))
    (comparison,) = compare_weak_scaling([FAMILY], mixed)
    assert [row.key.gpus for row in comparison.rows] == [512]
    assert "not compared: 256 GPUs" in comparison.text
    both = judgements(
        *(judged(one, 0.0) for one in SIZES), *(judged(one, 0.08 * (one is recorded[2])) for one in recorded)
    )
    (comparison,) = compare_weak_scaling([FAMILY], both)
    told = [(row.baseline, row.key.gpus, row.verdict) for row in comparison.rows]
    assert told == [
        ("published", 256, Verdict.PASS),
        ("published", 512, Verdict.PASS),
        ("recorded", 256, Verdict.PASS),
        ("recorded", 512, Verdict.REGRESSION),
    ]


def test_baseline_of_other_work_is_not_compared() -> None:
    other = baseline(512, configuration={"global_batch_size": 512})
    found = judgements(judged(SIZES[0], 0.0), judged(SIZES[1], 0.0), judged(other, 0.5))
    assert compare_weak_scaling([FAMILY], found)[0].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("ours", "theirs", "freedom"),
    [
        (estimate(0.03), estimate(0.0), 30.0),
        (estimate(0.03), estimate(0.0, degrees_of_freedom=4.0), 4.0),
        (estimate(0.03), estimate(0.0, standard_error=0.006, degrees_of_freedom=5.0, noise=OTHER), None),
        (estimate(0.03), estimate(0.0, noise=OTHER, level=0.025), None),
    ],
)
def test_interval_follows_welch_and_satterthwaite(ours: Estimate, theirs: Estimate, freedom: float | None) -> None:
    """Except where both rest on one estimate of the noise, which then knows no more than once."""
    (row,) = paired(theirs, ours).rows
    variances = ours.standard_error**2, theirs.standard_error**2
    parts = variances[0] ** 2 / ours.degrees_of_freedom + variances[1] ** 2 / theirs.degrees_of_freedom
    half_width = stats.t.ppf(1 - theirs.level, freedom or sum(variances) ** 2 / parts) * math.sqrt(sum(variances))
    assert row.low == pytest.approx(math.exp(-0.03 - half_width) - 1)
    assert row.high == pytest.approx(math.exp(-0.03 + half_width) - 1)


def test_unknown_error_compares_plain_numbers() -> None:
    unknown = {"threshold_only": True, "standard_error": 0.0, "degrees_of_freedom": 0.0}
    for loss, verdict in ((MARGIN, Verdict.PASS), (MARGIN + 1e-6, Verdict.REGRESSION)):
        comparison = paired(estimate(0.0, **unknown), estimate(loss, **unknown))
        assert comparison.verdict is verdict
        assert comparison.rows[0].threshold_only
    half_known = paired(estimate(0.0, **unknown), estimate(MARGIN + 1e-6))
    assert half_known.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_infinite_error_never_passes(error: float) -> None:
    assert paired(0.0, estimate(0.001, standard_error=error)).verdict is Verdict.INCONCLUSIVE


# --- which configurations ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_shipped_families_and_pairs_have_different_ids() -> None:
    shipped = [one.configuration for recipe in read_recipes(list_shipped_baselines()) for one in recipe.baselines]
    families, pairs = compare_weak_scaling(group_families(shipped), {}), compare_speed_ups(find_pairs(shipped), {})
    assert len({family.id for family in families}) == len(families) == 14
    assert len({pair.id for pair in pairs}) == len(pairs) == 41
    assert all([key.dtype for key in pair.members] == ["bf16", "fp8"] for pair in pairs)


@pytest.mark.parametrize(
    "change",
    [
        {"global_batch_size": 512},
        {"architecture": replace(BASELINE.configuration.architecture, layers=32)},
        {"architecture": replace(BASELINE.configuration.architecture, sequence_length=4096)},
        {"proxy": True},
        {"key": replace(FP8.key, gpus=256)},
        {"key": replace(FP8.key, release="25.07")},
    ],
)
def test_other_work_makes_no_pair(change: dict[str, Any]) -> None:
    bf16, fp8 = BF16.configuration, FP8.configuration
    assert find_pairs([fp8, bf16]) == ((bf16, fp8),)
    assert find_pairs([bf16, replace(fp8, **change)]) == ()
    otherwise = replace(fp8, micro_batch_size=2, gradient_accumulation=4)
    assert find_pairs([bf16, otherwise]) == ((bf16, otherwise),)


def test_families_of_equal_keys_get_distinct_ids() -> None:
    def make_ids(*sizes: Baseline) -> list[str]:
        families = group_families([size.configuration for size in sizes])
        return [comparison.id for comparison in compare_weak_scaling(families, {})]

    half = {"configuration": {"global_batch_size": 16}}, {"configuration": {"global_batch_size": 32}}
    batches = baseline(8), baseline(16), baseline(32, **half[0]), baseline(64, **half[1])
    assert make_ids(*batches) == ["grok1_314b-25.05-gb200-bf16-gbs2", "grok1_314b-25.05-gb200-bf16-gbs0.5"]
    wide = {"configuration": {"architecture": replace(BASELINE.configuration.architecture, hidden_size=8192)}}
    widths = baseline(8), baseline(16), baseline(32, **wide), baseline(64, **wide)
    assert make_ids(*widths) == ["grok1_314b-25.05-gb200-bf16-from8", "grok1_314b-25.05-gb200-bf16-from32"]


# --- laws -------------------------------------------------------------------------------------------------

difference = st.floats(-0.3, 0.3)
errors = st.floats(1e-4, 0.05)
estimates = st.builds(estimate, difference, standard_error=errors, degrees_of_freedom=st.floats(1, 100))


@pytest.mark.slow
@given(estimates, estimates, estimates, st.integers(0, 2), st.floats(0, 1))
def test_slower_size_never_looks_better(one: Estimate, two: Estimate, three: Estimate, which: int, more: float) -> None:
    """A slower reference does: the others lose less beside it, and its own item tells that it is slow."""
    before = compared(one, two, three)
    changed = [one, two, three]
    changed[which] = replace(changed[which], difference=changed[which].difference + more)
    after = compared(*changed)
    if which:
        assert SEVERITY.index(after.verdict) <= SEVERITY.index(before.verdict)
    else:
        assert all(late.measured >= early.measured for late, early in zip(after.rows, before.rows, strict=True))


@pytest.mark.slow
@given(st.lists(estimates, min_size=3, max_size=3))
def test_sizes_at_or_above_baseline_pass(found: list[Estimate]) -> None:
    fine = [replace(one, difference=-abs(one.difference)) for one in found]
    assert compared(*fine).verdict is Verdict.PASS
    assert paired(fine[0], fine[1]).verdict is Verdict.PASS


@pytest.mark.slow
@given(st.permutations(range(3)), st.lists(estimates, min_size=3, max_size=3))
def test_order_of_configurations_does_not_matter(order: list[int], found: list[Estimate]) -> None:
    all_of_them = [judged(one, difference) for one, difference in zip(SIZES, found, strict=True)]
    shuffled = judgements(*(all_of_them[position] for position in order))
    assert compare_weak_scaling([[FAMILY[position] for position in order]], shuffled) == (compared(*found),)


@pytest.mark.parametrize(("ours", "theirs", "verdict"), [(0.1, 0.02, Verdict.PASS), (0.02, 0.1, Verdict.REGRESSION)])
def test_margin_of_the_member_decides(ours: float, theirs: float, verdict: Verdict) -> None:
    assert paired(estimate(0.0, margin=theirs), estimate(0.05, margin=ours)).verdict is verdict
