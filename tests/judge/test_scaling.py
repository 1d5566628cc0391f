"""Across configurations: the arithmetic of two estimates, which way it points, and what
is no scaling regression."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from pytest_llmbench.judge.distributions import compute_probability
from pytest_llmbench.report.wording import phrase_scaling
from pytest_llmbench.runs.measure.run_metrics import find_pairs, group_families

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
    error, freedom = (
        fields.get(name, made[name])
        for name in ("standard_error", "degrees_of_freedom")
    )
    made["p_slower"] = (
        compute_probability(difference / error, freedom)
        if math.isfinite(error) and error > 0
        else None
    )
    return Estimate(**{**made, **fields})


def baseline(
    gpus: int, seconds: float = 7.325, dtype: str = "bf16", **fields: Any
) -> Baseline:
    """Return a baseline of the Grok 1 family: GBS 2 per GPU."""
    shape = fields.pop("configuration", {})
    configuration = replace(
        BASELINE.configuration,
        key=replace(BASELINE.key, gpus=gpus, dtype=dtype),
        **{"global_batch_size": 2 * gpus, **shape},
    )
    return at(BASELINE, configuration=configuration, step_seconds=seconds, **fields)


def judged(
    one: Baseline, found: Estimate | float | None, verdict: Verdict = Verdict.PASS
) -> Judgement:
    """Return a verdict that rests on an estimate, or on that difference to the
    baseline."""
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
    found = [
        judged(one, difference)
        for one, difference in zip(SIZES, differences, strict=True)
    ]
    (comparison,) = compare_weak_scaling([FAMILY], judgements(*found))
    return comparison


def paired(bf16: Estimate | float, fp8: Estimate | float) -> ConfigurationComparison:
    (comparison,) = compare_speed_ups(
        [(BF16.configuration, FP8.configuration)],
        judgements(judged(BF16, bf16), judged(FP8, fp8)),
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
def test_a_size_that_loses_more_than_its_margin_is_a_regression(
    differences: tuple[float | None, ...], verdict: Verdict
) -> None:
    comparison = compared(*differences)
    assert comparison.verdict is verdict
    assert comparison.members == tuple(one.key for one in FAMILY)


def test_the_smallest_size_that_was_judged_is_the_reference_and_what_is_left_out_is_named() -> (
    None
):
    comparison = compared(None, 0.0, 0.08)
    assert [(row.key.gpus, row.reference.gpus) for row in comparison.rows] == [
        (512, 256)
    ]
    assert phrase_scaling(comparison).endswith("not compared: 128 GPUs")


@pytest.mark.parametrize(
    "verdict", [Verdict.INVALID, Verdict.MISSING, Verdict.NOT_COMPARABLE]
)
def test_a_verdict_that_rests_on_no_valid_run_does_not_count(verdict: Verdict) -> None:
    found = [
        judged(SIZES[0], 0.0),
        judged(SIZES[1], 0.0),
        judged(SIZES[2], 0.5, verdict),
    ]
    (comparison,) = compare_weak_scaling([FAMILY], judgements(*found))
    assert comparison.verdict is Verdict.PASS
    assert "not compared: 512 GPUs" in phrase_scaling(comparison)


def test_the_engine_gives_what_is_compared() -> None:
    """From step times to the text, with the assumed noise of one run each."""
    found = [
        judge(
            evidence(measurement(one.step_seconds * factor, baseline=one), baseline=one)
        )
        for one, factor in zip(SIZES, (0.95, 1.0, 1.04), strict=True)
    ]
    (comparison,) = compare_weak_scaling([FAMILY], judgements(*found))
    assert comparison.id == "grok1_314b-25.05-gb200-bf16"
    assert comparison.verdict is Verdict.REGRESSION
    assert comparison.rows[-1].measured == pytest.approx(7.325 * 0.95 / (7.6 * 1.04))
    assert phrase_scaling(comparison) == (
        "512 GPUs have 88.0 % of the throughput per GPU of 128, published 96.4 %: -8.7 % (-11.4 % to -5.9 %); "
        "at least 91.8 % passes; the lowest of 3 sizes, GBS 2 per GPU, sequence length 8192, 64 layers"
    )


def test_the_text_of_a_pair_says_what_was_compared() -> None:
    comparison = paired(0.0, 0.08)
    assert (comparison.kind, comparison.id) == (
        "fp8-speedup",
        "grok1_314b-25.05-gb200-128",
    )
    assert comparison.verdict is Verdict.REGRESSION
    assert phrase_scaling(comparison) == (
        "FP8 is 1.276 times as fast as BF16, published 1.383: -7.7 % (-8.1 % to -7.2 %); at least 1.317 passes; "
        "step times at GBS 256, sequence length 8192, 64 layers"
    )
    apart = replace(
        FP8.configuration, parallelism=replace(FP8.configuration.parallelism, pp=8)
    )
    (comparison,) = compare_speed_ups(
        [(BF16.configuration, apart)], judgements(judged(BF16, 0.0), judged(FP8, 0.0))
    )
    assert phrase_scaling(comparison).endswith("64 layers, another parallelism")


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        (
            (-0.2, 0.0, 0.0),
            "not slower than its own baseline, so no loss: its reference is faster than documented",
        ),
        (
            (estimate(0.0, threshold_only=True), 0.0, 0.0),
            "threshold only: of some of the numbers the error is unknown",
        ),
        (
            (None, None, 0.0),
            "fewer than two of 128 GPUs, 256 GPUs, 512 GPUs were judged against baselines of one kind",
        ),
    ],
)
def test_the_text_says_what_a_verdict_rests_on(
    differences: tuple[Any, ...], words: str
) -> None:
    assert words in phrase_scaling(compared(*differences))


def test_a_reference_that_is_a_regression_itself_is_named() -> None:
    found = [
        judged(SIZES[0], 0.2, Verdict.REGRESSION),
        judged(SIZES[1], 0.0),
        judged(SIZES[2], 0.0),
    ]
    (comparison,) = compare_weak_scaling([FAMILY], judgements(*found))
    assert (
        "128 GPUs is a regression itself, which flatters what is compared with it"
        in phrase_scaling(comparison)
    )


def test_published_and_recorded_baselines_are_never_mixed() -> None:
    recorded = [
        at(one, kind=BaselineKind.RECORDED, step_seconds=one.step_seconds * 1.1)
        for one in SIZES
    ]
    mixed = judgements(
        judged(SIZES[0], 0.0), judged(recorded[1], 0.2), judged(SIZES[2], 0.0)
    )
    (comparison,) = compare_weak_scaling([FAMILY], mixed)
    assert [row.key.gpus for row in comparison.rows] == [512]
    assert "not compared: 256 GPUs" in phrase_scaling(comparison)
    both = judgements(
        *(judged(one, 0.0) for one in SIZES),
        *(judged(one, 0.08 * (one is recorded[2])) for one in recorded),
    )
    (comparison,) = compare_weak_scaling([FAMILY], both)
    told = [(row.baseline, row.key.gpus, row.verdict) for row in comparison.rows]
    assert told == [
        ("published", 256, Verdict.PASS),
        ("published", 512, Verdict.PASS),
        ("recorded", 256, Verdict.PASS),
        ("recorded", 512, Verdict.REGRESSION),
    ]


def test_a_baseline_of_other_work_is_not_compared() -> None:
    other = baseline(512, configuration={"global_batch_size": 512})
    found = judgements(judged(SIZES[0], 0.0), judged(SIZES[1], 0.0), judged(other, 0.5))
    assert compare_weak_scaling([FAMILY], found)[0].verdict is Verdict.PASS


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
def test_the_interval_is_that_of_welch_and_satterthwaite(
    ours: Estimate, theirs: Estimate, freedom: float | None
) -> None:
    """Except where both rest on one estimate of the noise, which then knows no more
    than once."""
    (row,) = paired(theirs, ours).rows
    variances = ours.standard_error**2, theirs.standard_error**2
    parts = (
        variances[0] ** 2 / ours.degrees_of_freedom
        + variances[1] ** 2 / theirs.degrees_of_freedom
    )
    half_width = stats.t.ppf(
        1 - theirs.level, freedom or sum(variances) ** 2 / parts
    ) * math.sqrt(sum(variances))
    assert row.low == pytest.approx(math.exp(-0.03 - half_width) - 1)
    assert row.high == pytest.approx(math.exp(-0.03 + half_width) - 1)


@pytest.mark.slow
def test_the_interval_covers_what_it_should() -> None:
    """Two runs with a run-to-run spread known from 8 and 16 repeats: each bound is
    wrong in 5 % of the cases."""
    generator = stats.norm(0, [0.010, 0.004])
    differences = generator.rvs((4000, 2), random_state=1)
    sigmas = (
        generator.std()
        * (stats.chi2([7, 15]).rvs((4000, 2), random_state=2) / [7, 15]) ** 0.5
    )
    rows = [
        paired(
            estimate(
                theirs, standard_error=second, degrees_of_freedom=15.0, noise=OTHER
            ),
            estimate(ours, standard_error=first, degrees_of_freedom=7.0),
        ).rows[0]
        for (ours, theirs), (first, second) in zip(differences, sigmas, strict=True)
    ]
    assert 0.04 < sum(row.low > 0 for row in rows) / 4000 < 0.06
    assert 0.04 < sum(row.high < 0 for row in rows) / 4000 < 0.06


def test_an_unknown_error_compares_the_numbers_as_they_are() -> None:
    unknown = {"threshold_only": True, "standard_error": 0.0, "degrees_of_freedom": 0.0}
    for loss, verdict in ((MARGIN, Verdict.PASS), (MARGIN + 1e-6, Verdict.REGRESSION)):
        comparison = paired(estimate(0.0, **unknown), estimate(loss, **unknown))
        assert comparison.verdict is verdict
        assert comparison.rows[0].threshold_only
    half_known = paired(estimate(0.0, **unknown), estimate(MARGIN + 1e-6))
    assert half_known.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_an_error_that_is_no_number_never_passes(error: float) -> None:
    assert (
        paired(0.0, estimate(0.001, standard_error=error)).verdict
        is Verdict.INCONCLUSIVE
    )


# --- which configurations -------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped() -> list[Configuration]:
    return [
        one.configuration
        for recipe in read_recipes(list_shipped_baselines())
        for one in recipe.baselines
    ]


@pytest.mark.slow
def test_the_documents_hold_14_families_and_41_pairs_with_ids_of_their_own(
    shipped: Sequence[Configuration],
) -> None:
    found = compare_weak_scaling(group_families(shipped), {})
    assert len({one.id for one in found}) == len(found) == 14
    assert "llama3.1_70b-25.04-h100-bf16" in {one.id for one in found}
    found = compare_speed_ups(find_pairs(shipped), {})
    assert len({one.id for one in found}) == len(found) == 41
    assert all([key.dtype for key in one.members] == ["bf16", "fp8"] for one in found)
    assert {one.verdict for one in found} == {Verdict.MISSING}


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
def test_other_work_is_no_pair(change: dict[str, Any]) -> None:
    bf16, fp8 = BF16.configuration, FP8.configuration
    assert find_pairs([fp8, bf16]) == ((bf16, fp8),)
    assert find_pairs([bf16, replace(fp8, **change)]) == ()


def test_the_same_work_done_otherwise_is_a_pair() -> None:
    other = replace(FP8.configuration, micro_batch_size=2, gradient_accumulation=4)
    assert find_pairs([BF16.configuration, other]) == ((BF16.configuration, other),)


def test_families_that_share_a_key_without_its_size_get_what_differs_in_their_ids() -> (
    None
):
    family = [
        baseline(gpus, configuration={"global_batch_size": gbs})
        for gpus, gbs in ((8, 16), (16, 32), (32, 16), (64, 32))
    ]
    found = compare_weak_scaling(
        group_families([one.configuration for one in family]), {}
    )
    assert [one.id for one in found] == [
        "grok1_314b-25.05-gb200-bf16-gbs2",
        "grok1_314b-25.05-gb200-bf16-gbs0.5",
    ]
    wide = replace(BASELINE.configuration.architecture, hidden_size=8192)
    family = [
        baseline(8),
        baseline(16),
        *(baseline(gpus, configuration={"architecture": wide}) for gpus in (32, 64)),
    ]
    found = compare_weak_scaling(
        group_families([one.configuration for one in family]), {}
    )
    assert [one.id for one in found] == [
        "grok1_314b-25.05-gb200-bf16-from8",
        "grok1_314b-25.05-gb200-bf16-from32",
    ]


def test_task_scaling_and_variant_stay_in_the_id() -> None:
    keys = [replace(one.key, task="finetune", variant="lora") for one in FAMILY]
    family = [replace(one, key=key) for one, key in zip(FAMILY, keys, strict=True)]
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
def test_more_slowdown_of_a_size_never_makes_it_look_better(
    one: Estimate, two: Estimate, three: Estimate, which: int, more: float
) -> None:
    """A slower reference does: the others lose less beside it, and its own item tells
    that it is slow."""
    before = compared(one, two, three)
    changed = [one, two, three]
    changed[which] = replace(
        changed[which], difference=changed[which].difference + more
    )
    after = compared(*changed)
    if which:
        assert SEVERITY.index(after.verdict) <= SEVERITY.index(before.verdict)
    else:
        assert all(
            late.measured >= early.measured
            for late, early in zip(after.rows, before.rows, strict=True)
        )


@pytest.mark.slow
@given(st.lists(estimates, min_size=3, max_size=3))
def test_nothing_at_or_above_its_baseline_is_ever_red(found: list[Estimate]) -> None:
    fine = [replace(one, difference=-abs(one.difference)) for one in found]
    assert compared(*fine).verdict is Verdict.PASS
    assert paired(fine[0], fine[1]).verdict is Verdict.PASS


@pytest.mark.slow
@given(st.permutations(range(3)), st.lists(estimates, min_size=3, max_size=3))
def test_the_order_of_configurations_does_not_matter(
    order: list[int], found: list[Estimate]
) -> None:
    all_of_them = [
        judged(one, difference) for one, difference in zip(SIZES, found, strict=True)
    ]
    shuffled = judgements(*(all_of_them[position] for position in order))
    assert compare_weak_scaling(
        [[FAMILY[position] for position in order]], shuffled
    ) == (compared(*found),)


@pytest.mark.slow
@given(estimates, estimates, st.floats(1e-6, 1e6))
def test_the_unit_of_time_cancels(one: Estimate, two: Estimate, unit: float) -> None:
    scaled = [at(size, step_seconds=size.step_seconds * unit) for size in SIZES[:2]]
    found = judgements(judged(scaled[0], one), judged(scaled[1], two))
    (row,) = compare_weak_scaling([FAMILY], found)[0].rows
    (expected,) = compared(one, two, None).rows
    assert row.verdict is expected.verdict
    for name in ("measured", "documented", "bound", "difference", "low", "high"):
        assert getattr(row, name) == pytest.approx(
            getattr(expected, name), rel=1e-9, abs=1e-9
        )


@pytest.mark.slow
@given(estimates, estimates)
def test_two_members_are_pair_arithmetic(one: Estimate, two: Estimate) -> None:
    """And the ratio that is reported is the documented one times exp(-loss), as step
    times give it."""
    sizes = (
        at(SIZES[0], step_seconds=BF16.step_seconds),
        at(SIZES[1], step_seconds=FP8.step_seconds),
    )
    family = [size.configuration for size in sizes]
    (row,) = compare_weak_scaling(
        [family], judgements(judged(sizes[0], one), judged(sizes[1], two))
    )[0].rows
    (pair,) = paired(one, two).rows
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
def test_the_margin_is_that_of_the_member(
    ours: float, theirs: float, verdict: Verdict
) -> None:
    assert (
        paired(estimate(0.0, margin=theirs), estimate(0.05, margin=ours)).verdict
        is verdict
    )


@pytest.mark.slow
@given(estimates, estimates, st.floats(0, 0.2))
def test_a_wider_margin_never_turns_a_pass_into_anything_else(
    one: Estimate, two: Estimate, more: float
) -> None:
    if paired(one, two).verdict is Verdict.PASS:
        assert (
            paired(one, replace(two, margin=two.margin + more)).verdict is Verdict.PASS
        )


@pytest.mark.slow
def test_false_passes_at_the_margin_are_as_rare_as_promised() -> None:
    """True loss exactly at the margin: 5 % of the comparisons may pass, 5 % may fail,
    the rest cannot be told."""
    noise = stats.norm(0, 0.01).rvs((3000, 2), random_state=3)
    found = Counter(
        paired(
            estimate(0.1 + theirs, standard_error=0.01, degrees_of_freedom=1e6),
            estimate(0.1 + MARGIN + ours, standard_error=0.01, degrees_of_freedom=1e6),
        ).verdict
        for theirs, ours in noise
    )
    assert 0.03 < found[Verdict.PASS] / 3000 < 0.07
    assert 0.03 < found[Verdict.REGRESSION] / 3000 < 0.07


def test_the_assumed_noise_is_known_only_once() -> None:
    """Two configurations with the same assumption: no more degrees of freedom than
    one."""
    one = estimate(0.0, standard_error=0.01, degrees_of_freedom=4.0, noise=ASSUMED)
    (row,) = paired(one, one).rows
    assert math.log1p(row.high) == pytest.approx(
        stats.t.ppf(0.95, 4) * 0.01 * math.sqrt(2)
    )
