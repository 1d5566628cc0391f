"""Verdicts: direction of the comparison, precedence, and unknown results never pass."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import (
    ASSUMED,
    BASELINE,
    HISTORY,
    NOW,
    evidence,
    measurement,
    noisy,
    run,
)

from pytest_llmbench.core.baseline_records import Key, Tolerance
from pytest_llmbench.core.codes import NoteCode, Reason, Verdict
from pytest_llmbench.core.judgement_records import DEFAULT_RULES, Evidence
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.core.run_records import Note, Problem
from pytest_llmbench.judge.decide import judge, judge_alone
from pytest_llmbench.judge.item_status import decide_status
from pytest_llmbench.report.wording import phrase

PROFILED = Problem(Reason.PROFILED, "profile_enabled in llmb-config_1.yaml")
DIVERGED = Problem(Reason.DIVERGED, "loss is nan from step 9 on", 109)


@pytest.mark.parametrize(
    ("factor", "verdict", "reason"),
    [
        (0.90, Verdict.IMPROVEMENT, Reason.FASTER_THAN_BASELINE),
        (0.94, Verdict.PASS, Reason.WITHIN_TOLERANCE),
        (1.0, Verdict.PASS, Reason.WITHIN_TOLERANCE),
        (1.05, Verdict.INCONCLUSIVE, Reason.CANNOT_TELL),
        (1.07, Verdict.INCONCLUSIVE, Reason.CANNOT_TELL),
        (1.08, Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND),
    ],
)
def test_run_slower_than_the_bound_is_a_regression(
    factor: float, verdict: Verdict, reason: Reason
) -> None:
    judgement = judge(evidence(measurement(7.325 * factor)))
    assert (judgement.verdict, judgement.reason) == (verdict, reason)
    assert judgement.meets_point is (factor <= 1.05)
    assert judgement.log_difference == pytest.approx(math.log(factor))
    assert judgement.bound_seconds == pytest.approx(7.325 * 1.05)


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.04, Verdict.PASS),
        (1.05, Verdict.INCONCLUSIVE),
        (1.06, Verdict.REGRESSION),
        (0.94, Verdict.IMPROVEMENT),
    ],
)
def test_noise_measured_over_12_days_decides_differences_near_the_tolerance(
    factor: float, verdict: Verdict
) -> None:
    judgement = judge(evidence(measurement(7.325 * factor), *HISTORY))
    assert judgement.verdict is verdict
    assert judgement.estimate is not None
    assert "12 days" in judgement.estimate.noise.source


def test_five_percent_tolerance_on_throughput_allows_more_than_on_step_time() -> None:
    slower = evidence(measurement(7.325 * 1.0515))
    assert judge(slower).meets_point is False
    assert (
        judge(
            replace(
                slower, tolerance=Tolerance(0.05, "performance", larger_is_better=True)
            )
        ).meets_point
        is True
    )


@pytest.mark.parametrize("invalid", [math.nan, math.inf, -1.0, 0.0])
def test_invalid_step_time_never_passes(invalid: float) -> None:
    judgement = judge(evidence(measurement(invalid)))
    assert judgement.verdict is Verdict.INVALID
    assert decide_status(judgement, DEFAULT_RULES) is Status.FAILED


def test_newest_comparable_run_decides() -> None:
    slow, fast = (
        measurement(9.0),
        measurement(7.3, run=run(started=NOW - timedelta(days=1))),
    )
    assert judge(evidence(slow, fast)).verdict is Verdict.REGRESSION
    assert judge(evidence(fast, slow)).verdict is Verdict.PASS


def test_invalid_newest_run_makes_the_verdict_invalid_despite_an_older_good_run() -> (
    None
):
    judgement = judge(
        evidence(measurement(7.3, problems=(DIVERGED,)), measurement(7.3))
    )
    assert (judgement.verdict, judgement.reason) == (Verdict.INVALID, Reason.DIVERGED)
    assert "1 older run" in phrase(judgement.notes[-1])


def test_profiled_run_is_not_judged() -> None:
    profiled = measurement(7.3, excluded=PROFILED)
    only = judge(evidence(profiled))
    assert (only.verdict, only.reason) == (Verdict.MISSING, Reason.ONLY_NOT_COMPARABLE)
    with_older = judge(evidence(profiled, measurement(9.0)))
    assert with_older.verdict is Verdict.REGRESSION
    assert "1 newer run cannot be compared" in phrase(with_older.notes[0])
    assert judge_alone(evidence(profiled)).verdict is Verdict.NOT_COMPARABLE


def test_configuration_without_runs_is_missing() -> None:
    judgement = judge(evidence())
    assert (judgement.verdict, judgement.reason) == (Verdict.MISSING, Reason.NO_RUN)


@pytest.mark.parametrize(
    ("hours", "verdict"),
    [(35.9, Verdict.PASS), (36.1, Verdict.MISSING), (None, Verdict.INVALID)],
)
def test_max_age_makes_an_old_run_missing_and_an_undated_run_invalid(
    hours: float | None, verdict: Verdict
) -> None:
    started = NOW - timedelta(hours=hours) if hours else None
    judgement = judge(
        evidence(measurement(run=run(started=started)), max_age=timedelta(hours=36))
    )
    assert judgement.verdict is verdict


def test_undated_run_among_others_is_invalid() -> None:
    undated, dated = measurement(7.3, run=run(started=None)), measurement(7.3)
    assert judge(evidence(undated)).verdict is Verdict.PASS
    judgement = judge(evidence(undated, dated))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INVALID,
        Reason.START_UNKNOWN,
    )


# --- laws -----------------------------------------------------------------------------

seconds = st.floats(0.01, 1e4)
windows = st.lists(st.floats(0.8, 1.4), min_size=5, max_size=40)


def make_evidence(window: list[float], scale: float = 7.325, **fields: Any) -> Evidence:
    """Make evidence of one run with these step times, as multiples of `scale`."""
    values = tuple(value * scale for value in window)
    count = len(values)
    numbers = {"window_steps": tuple(range(count)), "window_lines": tuple(range(count))}
    return evidence(
        measurement(sum(values) / count, window_seconds=values, **numbers),
        *HISTORY,
        **fields,
    )


@pytest.mark.slow
@given(windows, st.floats(0.01, 0.4), st.floats(1.0, 3.0))
def test_larger_slowdown_never_turns_a_regression_into_a_pass(
    window: list[float], tolerance: float, factor: float
) -> None:
    before = judge(make_evidence(window, tolerance=tolerance))
    after = judge(
        make_evidence([value * factor for value in window], tolerance=tolerance)
    )
    if before.verdict is Verdict.REGRESSION:
        assert after.verdict is Verdict.REGRESSION
    assert before.meets_point or not after.meets_point


@pytest.mark.slow
@given(windows, st.floats(0.01, 0.4), st.floats(0.0, 0.09))
def test_wider_tolerance_never_turns_a_pass_into_a_failure(
    window: list[float], tolerance: float, more: float
) -> None:
    before, after = (
        judge(make_evidence(window, tolerance=tolerance)),
        judge(make_evidence(window, tolerance=tolerance + more)),
    )
    if before.verdict in (Verdict.PASS, Verdict.IMPROVEMENT):
        assert after.verdict in (Verdict.PASS, Verdict.IMPROVEMENT)
    if before.meets_point:
        assert after.meets_point


@pytest.mark.slow
@given(windows, st.sampled_from([1e-3, 1e3, 60.0]))
def test_unit_of_step_time_does_not_change_the_verdict(
    window: list[float], unit: float
) -> None:
    before = judge(make_evidence(window))
    scaled = [
        replace(previous, statistic_seconds=previous.statistic_seconds * unit)  # type: ignore[operator]
        for previous in HISTORY
    ]
    baseline = replace(BASELINE, step_seconds=7.325 * unit)
    scaled_evidence = make_evidence(window, 7.325 * unit, baseline=baseline)
    after = judge(
        replace(
            scaled_evidence, measurements=(scaled_evidence.measurements[0], *scaled)
        )
    )
    assert after.verdict is before.verdict
    assert before.estimate is not None
    assert after.estimate is not None
    for name in ("difference", "low", "high", "standard_error", "detectable"):
        assert getattr(after.estimate, name) == pytest.approx(
            getattr(before.estimate, name), rel=1e-9, abs=1e-9
        )


@pytest.mark.parametrize(
    ("factor", "resolution", "steps", "status"),
    [
        # all times from 7.2 to 8.0 s are printed like this
        (1.04, 0.11, 34, Status.FAILED),
        (1.04, 0.04, 34, Status.PASSED),
        # the slowest time with this print meets the bound
        (0.98, 0.11, 34, Status.PASSED),
        (1.04, 0.11, 2, Status.FAILED),
    ],
)
def test_quantised_times_fail_the_literal_rule(
    factor: float, resolution: float, steps: int, status: Status
) -> None:
    seconds = 7.325 * factor
    printed = measurement(
        seconds,
        resolution_seconds=seconds * resolution,
        window_seconds=(seconds,) * steps,
    )
    judgement = judge(evidence(printed))
    assert decide_status(judgement, DEFAULT_RULES) is status
    assert ("the log prints times too coarsely" in phrase(judgement)) is (
        status is Status.FAILED
    )


def test_differing_step_times_in_whole_seconds_can_meet_the_literal_rule() -> None:
    differing = measurement(7.5, resolution_seconds=1.0, window_seconds=(7.0, 8.0) * 17)
    assert judge(evidence(differing)).meets_point


RELATIVES = (
    (Key("grok1", "314b", "25.05", "gb200", "fp8", 128), 5.185),
    (Key("grok1", "314b", "25.05", "gb200", "bf16", 256), 7.4),
)


@pytest.mark.parametrize(
    ("factor", "spread", "reason"),
    [
        (0.81, 0.0, Reason.IMPLAUSIBLY_FAST),
        (
            0.84,
            0.05,
            Reason.FASTER_THAN_BASELINE,
        ),  # the interval reaches plausible times
        (0.86, 0.0, Reason.FASTER_THAN_BASELINE),
    ],
)
def test_improvement_fails_if_its_whole_interval_exceeds_the_plausible_maximum(
    factor: float, spread: float, reason: Reason
) -> None:
    seconds = 7.325 * factor
    fast = noisy(seconds, spread) if spread else measurement(seconds)
    wide: dict[str, Any] = {"prior": replace(ASSUMED, sigma=0.03)} if spread else {}
    judgement = judge(evidence(fast, plausible=0.15, relatives=RELATIVES, **wide))
    assert judgement.reason is reason
    passed = decide_status(judgement, DEFAULT_RULES) is Status.PASSED
    assert passed is (reason is not Reason.IMPLAUSIBLY_FAST)
    assert judge(evidence(fast, **wide)).reason is not Reason.IMPLAUSIBLY_FAST


def test_message_on_an_implausibly_fast_run_lists_configurations_of_that_speed() -> (
    None
):
    judgement = judge(
        evidence(
            measurement(5.2, notes=(Note(NoteCode.UNVERIFIED_BATCH, "no batch size"),)),
            plausible=0.15,
            relatives=RELATIVES,
        )
    )
    assert judgement.verdict is Verdict.IMPROVEMENT
    assert "more than 15 % faster: probably another configuration" in phrase(judgement)
    assert "as fast as grok1_314b-25.05-gb200-fp8-128" in phrase(judgement)
    assert "gb200-bf16-256" not in phrase(judgement)
    assert "no batch size" in phrase(judgement)
