"""Comparing two sets of baselines, and the causes of a change of MFU."""

from __future__ import annotations

import math

import pytest
from generator.__main__ import shipped
from msgspec.structs import replace
from support.builders import BASELINE

from pytest_llmbench.core.baseline_records import (
    AcceptedValue,
    Baseline,
    BaselineKind,
    Budget,
    Recording,
    RegexDialect,
    Tolerance,
)
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.tools.baselines.baseline_pages import (
    BaselineDifference,
    compare_baselines,
    format_differences,
)

SHIPPED = tuple(shipped().values())


def change(baseline: Baseline = BASELINE, **changes: object) -> Baseline:
    """Change fields of a baseline, its configuration, architecture or parallelism."""
    configuration = baseline.configuration
    for name in ("architecture", "parallelism"):
        fields = {
            key: value
            for key, value in changes.items()
            if key in getattr(configuration, name).__struct_fields__
        }
        configuration = replace(
            configuration, **{name: replace(getattr(configuration, name), **fields)}
        )
        changes = {key: value for key, value in changes.items() if key not in fields}
    fields = {
        key: value
        for key, value in changes.items()
        if key in configuration.__struct_fields__
    }
    others = {key: value for key, value in changes.items() if key not in fields}
    return replace(baseline, configuration=replace(configuration, **fields), **others)


def compare_one(before: Baseline, after: Baseline) -> BaselineDifference:
    (difference,) = compare_baselines([before], [after])
    return difference


def test_diff_of_a_shipped_file_with_itself_is_empty() -> None:
    differences = compare_baselines(SHIPPED, SHIPPED)
    assert len(differences) == 82
    assert not any(difference.has_changed for difference in differences)
    assert (
        format_differences(differences, "A", "B")
        == "82 configurations in both, 0 of them changed"
    )


def test_two_baselines_without_step_time_have_no_difference() -> None:
    untimed = replace(
        BASELINE, kind=BaselineKind.RECIPE, step_seconds=math.nan, cells=()
    )
    assert not compare_one(untimed, replace(untimed)).has_changed
    assert compare_one(untimed, replace(untimed, step_seconds=7.3)).has_changed
    assert compare_one(replace(untimed, step_seconds=7.3), untimed).has_changed


@pytest.mark.parametrize(
    ("name", "value"),
    [("unit", "ms"), ("first_step", 1)],
)
def test_diff_lists_a_changed_unit_or_first_step_of_the_log_definition(
    name: str, value: str | int
) -> None:
    log = RegexDialect("regex:mine", "find", "a")
    before = replace(BASELINE, log=log)
    after = replace(BASELINE, log=replace(log, **{name: value}))
    difference = compare_one(before, after)
    assert difference.has_changed
    assert [(name, new) for name, _, new in difference.changed_facts] == [
        (f"log {name}", str(value))
    ]
    assert "dialect" in str(compare_one(before, BASELINE).changed_facts)


UNPRINTED = replace(BASELINE, cells=())

MFU_CAUSES = {
    "step time": (change(UNPRINTED, step_seconds=6.9), 7.325 / 6.9),
    "FLOPs formula": (change(UNPRINTED, formula="grok", layers=32), None),
    "batch": (change(UNPRINTED, global_batch_size=512), 2.0),
    "peak": (change(UNPRINTED, peak_tflops=2500.0), 2450 / 2500),
}


@pytest.mark.parametrize("cause", MFU_CAUSES)
def test_mfu_change_is_attributed_to_its_only_cause(cause: str) -> None:
    after, ratio = MFU_CAUSES[cause]
    moved = compare_one(UNPRINTED, after).utilization
    assert moved
    assert moved.after / moved.before == pytest.approx(
        math.exp(moved.log_ratios[cause])
    )
    assert ratio is None or moved.after / moved.before == pytest.approx(ratio)
    assert [name for name, share in moved.log_ratios.items() if abs(share) > 1e-12] == [
        cause
    ]


def test_mfu_is_not_compared_if_the_gpu_peak_is_unknown() -> None:
    assert (
        compare_one(UNPRINTED, change(UNPRINTED, peak_tflops=math.nan)).utilization
        is None
    )


def test_corrected_formula_changes_mfu_at_equal_step_time() -> None:
    """This happened between two releases."""
    cells = (("step_time", "7.325"), ("mfu", "47.59%"))
    before = change(BASELINE, cells=cells)
    after = change(
        BASELINE,
        cells=(("step_time", "7.325"), ("mfu", "43.83%")),
        query_groups=48,
        top_k=1,
    )
    text = format_differences([compare_one(before, after)], "24.11", "25.01")
    assert "7.325 s    7.325 s     0.0 %   -7.9 %" in text
    assert "MFU 47.59% -> 43.83%, by FLOPs formula" in text
    assert "step time" not in text.splitlines()[2]
    assert "query groups: 8 -> 48" in text


def test_unexplained_mfu_change_is_listed() -> None:
    cells = (("step_time", "7.325"), ("mfu", "47.59%"))
    after = change(BASELINE, cells=(("step_time", "7.325"), ("mfu", "52.35%")))
    text = format_differences(
        [compare_one(change(BASELINE, cells=cells), after)], "A", "B"
    )
    assert "MFU 47.59% -> 52.35%, by the documents' own sums +10.0 %" in text


@pytest.mark.parametrize(
    ("after", "fact"),
    [
        (change(tp=8), ("TP", "4", "8")),
        (change(window=BASELINE.window._replace(first=35)), None),
        (change(tolerances=(Tolerance(0.02),)), ("tolerance", "the session's", "2 %")),
        (
            change(budgets=(Budget("checkpoint_save_seconds", 60),)),
            ("budgets", "-", "checkpoint_save_seconds 60 s"),
        ),
        (change(drift_budget=0.03), ("drift budget", "-", "3 %")),
        (change(kind=BaselineKind.RECORDED), ("kind", "published", "recorded")),
    ],
)
def test_diff_lists_changed_parallelism_window_tolerance_and_budgets(
    after: Baseline, fact: tuple[str, str, str] | None
) -> None:
    difference = compare_one(BASELINE, after)
    assert difference.has_changed
    assert (
        difference.changed_facts == (fact,)
        if fact
        else [name for name, _, _ in difference.changed_facts] == ["window"]
    )


RECORDED = Recording("2025-11-20", 1, 7.4, 7.4, 0.01, (7.4,), ())


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"mean_seconds": 9.9}, ("mean", "0.0 %", "+33.8 %")),
        (
            {"reason": "why"},
            (
                "drift from",
                "7.200 s of 2025-11-01",
                "7.400 s of 2025-11-20",
            ),
        ),
        (
            {"earlier": ()},
            (
                "drift from",
                "7.200 s of 2025-11-01",
                "7.400 s of 2025-11-20",
            ),
        ),
        ({"mean_seconds": 7.401, "by": "somebody"}, None),
    ],
    ids=["mean", "accepted", "forgotten", "nothing"],
)
def test_diff_lists_a_changed_recording_only_if_verdicts_may_change(
    changes: dict[str, object], fact: tuple[str, str, str] | None
) -> None:
    """A larger mean or another drift origin lets slower runs pass."""
    recording = replace(RECORDED, earlier=(AcceptedValue("2025-11-01", 7.2),))
    before = change(kind=BaselineKind.RECORDED, recording=recording)
    after = change(before, recording=replace(recording, **changes))
    assert compare_one(before, after).changed_facts == ((fact,) if fact else ())


def test_configurations_of_two_releases_are_paired_by_ids_without_release() -> None:
    old, new = (
        [baseline for baseline in SHIPPED if baseline.key.release == release]
        for release in ("24.11", "25.05")
    )
    shared = [
        pair.id for pair in compare_baselines(old, new) if pair.before and pair.after
    ]
    assert shared == ["grok1_314b-h100-bf16-512", "grok1_314b-h100-fp8-512"]
    assert {pair.id for pair in compare_baselines(SHIPPED, new) if pair.after} == {
        baseline.key.id for baseline in new
    }


def test_duplicate_baselines_are_refused() -> None:
    with pytest.raises(BaselineError, match="bf16-128-published twice on one side"):
        compare_baselines([BASELINE, BASELINE], [BASELINE])
