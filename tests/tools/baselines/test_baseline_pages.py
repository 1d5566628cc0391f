"""What moved from one set of baselines to another, and what of it moved MFU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from generator.__main__ import shipped
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


def changed(baseline: Baseline = BASELINE, **changes: object) -> Baseline:
    """Return a baseline with another architecture, parallelism, configuration or other
    field."""
    configuration = baseline.configuration
    for name in ("architecture", "parallelism"):
        own = {
            key: value
            for key, value in changes.items()
            if key in getattr(configuration, name).__dataclass_fields__
        }
        configuration = replace(
            configuration, **{name: replace(getattr(configuration, name), **own)}
        )
        changes = {key: value for key, value in changes.items() if key not in own}
    own = {
        key: value
        for key, value in changes.items()
        if key in configuration.__dataclass_fields__
    }
    rest = {key: value for key, value in changes.items() if key not in own}
    return replace(baseline, configuration=replace(configuration, **own), **rest)  # type: ignore[arg-type]


def of(before: Baseline, after: Baseline) -> BaselineDifference:
    (found,) = compare_baselines([before], [after])
    return found


def test_the_shipped_files_do_not_differ_from_themselves() -> None:
    found = compare_baselines(SHIPPED, SHIPPED)
    assert len(found) == 82
    assert not any(one.is_change for one in found)
    assert (
        format_differences(found, "A", "B")
        == "82 configurations in both, 0 of them changed"
    )


def test_what_nothing_has_timed_in_both_sets_did_not_change() -> None:
    untimed = replace(
        BASELINE, kind=BaselineKind.RECIPE, step_seconds=math.nan, cells=()
    )
    assert not of(untimed, replace(untimed)).is_change
    assert of(untimed, replace(untimed, step_seconds=7.3)).is_change
    assert of(replace(untimed, step_seconds=7.3), untimed).is_change


@pytest.mark.parametrize(
    ("name", "value"),
    [("unit", "ms"), ("first_step", 1)],
)
def test_a_log_that_is_read_in_another_way_is_a_change(
    name: str, value: str | int
) -> None:
    log = RegexDialect("regex:mine", "find", "a")
    before = replace(BASELINE, log=log)
    after = replace(BASELINE, log=replace(log, **{name: value}))  # type: ignore[arg-type]
    found = of(before, after)
    assert found.is_change
    assert [(what, new) for what, _, new in found.facts] == [
        (f"log {name}", str(value))
    ]
    assert "dialect" in str(of(before, BASELINE).facts)


UNPRINTED = replace(BASELINE, cells=())

MOVES = {
    "step time": (changed(UNPRINTED, step_seconds=6.9), 7.325 / 6.9),
    "FLOPs formula": (changed(UNPRINTED, formula="grok", layers=32), None),
    "batch": (changed(UNPRINTED, global_batch_size=512), 2.0),
    "peak": (changed(UNPRINTED, peak_tflops=2500.0), 2450 / 2500),
}


@pytest.mark.parametrize("part", MOVES)
def test_mfu_is_moved_by_what_was_changed_and_by_nothing_else(part: str) -> None:
    after, ratio = MOVES[part]
    moved = of(UNPRINTED, after).utilization
    assert moved
    assert moved.after / moved.before == pytest.approx(math.exp(moved.parts[part]))
    assert ratio is None or moved.after / moved.before == pytest.approx(ratio)
    assert [name for name, share in moved.parts.items() if abs(share) > 1e-12] == [part]


def test_mfu_is_not_compared_without_a_peak() -> None:
    assert of(UNPRINTED, changed(UNPRINTED, peak_tflops=math.nan)).utilization is None


def test_a_formula_that_was_corrected_moves_mfu_without_a_change_in_step_time() -> None:
    """As it happened between two releases: the same seconds, another MFU."""
    cells = (("step_time", "7.325"), ("mfu", "47.59%"))
    before = changed(BASELINE, cells=cells)
    after = changed(
        BASELINE,
        cells=(("step_time", "7.325"), ("mfu", "43.83%")),
        query_groups=48,
        top_k=1,
    )
    told = format_differences([of(before, after)], "24.11", "25.01")
    assert "7.325 s    7.325 s     0.0 %   -7.9 %" in told
    assert "MFU 47.59% -> 43.83%, by FLOPs formula" in told
    assert "step time" not in told.splitlines()[2]
    assert "query groups: 8 -> 48" in told


def test_a_printed_mfu_that_follows_from_nothing_is_told() -> None:
    cells = (("step_time", "7.325"), ("mfu", "47.59%"))
    after = changed(BASELINE, cells=(("step_time", "7.325"), ("mfu", "52.35%")))
    told = format_differences([of(changed(BASELINE, cells=cells), after)], "A", "B")
    assert "MFU 47.59% -> 52.35%, by the documents' own sums +10.0 %" in told


@pytest.mark.parametrize(
    ("after", "fact"),
    [
        (changed(tp=8), ("TP", "4", "8")),
        (changed(window=BASELINE.window._replace(first=35)), None),
        (changed(tolerances=(Tolerance(0.02),)), ("tolerance", "the session's", "2 %")),
        (
            changed(budgets=(Budget("checkpoint_save_seconds", 60),)),
            ("budgets", "-", "checkpoint_save_seconds 60 s"),
        ),
        (changed(drift_budget=0.03), ("drift budget", "-", "3 %")),
        (changed(kind=BaselineKind.RECORDED), ("kind", "published", "recorded")),
    ],
)
def test_whatever_else_is_another_is_told(
    after: Baseline, fact: tuple[str, str, str] | None
) -> None:
    found = of(BASELINE, after)
    assert found.is_change
    assert (
        found.facts == (fact,)
        if fact
        else [name for name, _, _ in found.facts] == ["window"]
    )


RECORDED = Recording("2025-11-20", 1, 7.4, 7.4, 0.01, (7.4,), ())


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"mean_seconds": 9.9}, ("mean", "0.0 %", "+33.8 %")),
        (
            {"reason": "why"},
            ("drift from", "7.200 s of 2025-11-01", "7.400 s of 2025-11-20"),
        ),
        (
            {"earlier": ()},
            ("drift from", "7.200 s of 2025-11-01", "7.400 s of 2025-11-20"),
        ),
        ({"mean_seconds": 7.401, "by": "somebody"}, None),
    ],
    ids=["mean", "accepted", "forgotten", "nothing"],
)
def test_what_a_recording_holds_a_run_to_besides_is_told(
    changes: dict[str, object], fact: tuple[str, str, str] | None
) -> None:
    """A recording whose mean allows more, or that forgot the value that drift is
    counted from, is another gate."""
    recording = replace(RECORDED, earlier=(AcceptedValue("2025-11-01", 7.2),))
    before = changed(kind=BaselineKind.RECORDED, recording=recording)
    after = changed(before, recording=replace(recording, **changes))  # type: ignore[arg-type]
    assert of(before, after).facts == ((fact,) if fact else ())


def test_releases_are_compared_without_their_names_and_folders_with_them() -> None:
    old, new = (
        [one for one in SHIPPED if one.key.release == release]
        for release in ("24.11", "25.05")
    )
    shared = [one.id for one in compare_baselines(old, new) if one.before and one.after]
    assert shared == ["grok1_314b-h100-bf16-512", "grok1_314b-h100-fp8-512"]
    assert {one.id for one in compare_baselines(SHIPPED, new) if one.after} == {
        one.key.id for one in new
    }


def test_what_nothing_tells_apart_is_refused() -> None:
    with pytest.raises(BaselineError, match="bf16-128-published twice on one side"):
        compare_baselines([BASELINE, BASELINE], [BASELINE])
