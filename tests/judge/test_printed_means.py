"""Logs that print means of several steps contain little evidence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import (
    BASELINE,
    HISTORY,
    NOW,
    at,
    evidence,
    log,
    means_of,
    measurement,
    run,
    segment,
    steps,
)

from pytest_llmbench.core.baseline_records import BaselineKind, Recording, Window
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import (
    DEFAULT_RULES,
    Evidence,
    Judgement,
    SessionRules,
)
from pytest_llmbench.core.log_records import Steps
from pytest_llmbench.core.outcome_records import Status
from pytest_llmbench.core.robust import compute_mean, compute_trimmed_mean
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.judge.agreement import apply_literal_rule
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.estimate import estimate_difference
from pytest_llmbench.judge.item_status import decide_status
from pytest_llmbench.judge.shape import find_shape
from pytest_llmbench.report.wording import phrase, phrase_all
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.session.selftest import run_selftest

RECORDED = at(
    BASELINE,
    kind=BaselineKind.RECORDED,
    window=Window(11, 44, "trimmed_mean"),
    recording=Recording("2025-11-01", 1, 7.325, 7.325, 0.0, (7.325,), ()),
)


def make_means(
    seconds: list[float], mean_of: list[int] | int = 10, **fields: Any
) -> Measurement:
    """Make the measurement of a log that prints means, beginning with step 11."""
    widths = mean_of if isinstance(mean_of, list) else [mean_of] * len(seconds)
    last = 10 + np.cumsum(widths)
    baseline = fields.get("baseline", BASELINE)
    statistic = (
        compute_mean if baseline.window.statistic == "mean" else compute_trimmed_mean
    )
    return measurement(
        statistic(np.array(seconds), widths),
        window_seconds=tuple(seconds),
        window_steps=tuple(last.tolist()),
        window_lines=tuple((last + 100).tolist()),
        mean_of=tuple(widths),
        **fields,
    )


@pytest.mark.parametrize("seconds", [[7.6], [6.0, 8.0], [5.0]])
def test_log_with_one_or_two_printed_means_is_inconclusive(
    seconds: list[float],
) -> None:
    """Variation within the means is unknown, so the run meets the bound but cannot
    pass."""
    judgement = judge(evidence(make_means(seconds)))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INCONCLUSIVE,
        Reason.CANNOT_TELL,
    )
    assert judgement.meets_point is True
    assert (
        f" for {10 * len(seconds)} steps: means would hide a warm-up or a stall"
        in phrase(judgement)
    )
    assert judgement.estimate is not None
    assert judgement.estimate.threshold_only


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [([4.0, 4.0], Reason.IMPLAUSIBLY_FAST), ([6.8], Reason.CANNOT_TELL)],
)
def test_implausibly_fast_means_fail(seconds: list[float], reason: Reason) -> None:
    """In a run that was resumed half-way, the time of half of the steps looks like that
    of all steps."""
    judgement = judge(evidence(make_means(seconds), plausible=0.15))
    assert judgement.reason is reason
    passed = decide_status(judgement, DEFAULT_RULES) is Status.PASSED
    assert passed is (reason is Reason.CANNOT_TELL)


def test_one_mean_beyond_the_bound_is_a_regression() -> None:
    judgement = judge(evidence(make_means([7.8])))
    assert (judgement.verdict, judgement.meets_point) == (Verdict.REGRESSION, False)
    assert judge(evidence(make_means([7.8]), *HISTORY)).verdict is Verdict.REGRESSION


def test_run_with_a_single_printed_mean_passes_with_noise_from_history() -> None:
    assert judge(evidence(make_means([7.3]), *HISTORY)).verdict is Verdict.PASS


def test_interval_of_three_printed_means_is_wider_than_that_of_thirty_steps() -> None:
    few, many = make_means([7.3, 7.5, 7.1]), make_means([7.3, 7.5, 7.1] * 10, 1)
    widths = []
    for means in (few, many):
        judgement = judge(evidence(means))
        assert judgement.estimate is not None
        widths.append(judgement.estimate.high - judgement.estimate.low)
    assert widths[0] > 2 * widths[1]
    assert judge(evidence(few)).verdict is Verdict.INCONCLUSIVE


def test_slow_mean_over_ten_steps_is_not_forgiven_like_a_single_slow_step() -> None:
    """One of ten means may contain a stall of all its steps, which is more than one
    slow step in twenty."""
    stalled = [7.3] * 9 + [12.0]
    for width, meets in ((10, False), (1, True)):
        run = make_means(stalled, width, baseline=RECORDED)
        run_evidence = evidence(run, baseline=RECORDED)
        estimate = estimate_difference([run], run_evidence, run_evidence.prior)
        assert apply_literal_rule([run], run_evidence, estimate).meets is meets


def test_pattern_of_printed_means_reports_no_period() -> None:
    """Every second mean is slow, but which of its steps are slow is unknown."""
    shape = find_shape(make_means([7.3, 9.0] * 8))
    assert shape.kind == "two-levels"
    assert "every" not in phrase_all(shape.statements)


@pytest.mark.parametrize(
    ("columns", "window"),
    [
        (means_of(10, [9.0, 7.3, 7.31, 7.29, 7.3]), Window(11, 50)),
        (means_of(50, [7.3]), Window(1, 50)),
        (
            steps(
                [math.nan] * 50,
                first=1,
                tokens_per_second_per_gpu=np.full(50, 8192 * 2 / 7.3),
            ),
            Window(11, 44),
        ),
    ],
    ids=["means", "one mean", "tokens only"],
)
def test_self_test_catches_every_damage_to_a_log_of_printed_means(
    columns: Steps, window: Window
) -> None:
    def decide(damaged: Evidence) -> tuple[Judgement, Status]:
        judgement = judge(damaged)
        return judgement, decide_status(judgement, DEFAULT_RULES)

    baseline = at(BASELINE, window=window)
    undamaged = evidence(
        measure(run(log(replace(segment(columns), first_step=1))), baseline, NOW),
        baseline=baseline,
    )
    judgement, status = decide(undamaged)
    assert status is Status.PASSED
    tested = run_selftest("x", undamaged, judgement, decide)
    assert tested is not None
    assert tested.survivors == ()
    assert {mutant.name for mutant in tested.mutants if mutant.caught} >= {
        "NaN loss",
        "truncated",
        "missing window",
    }


values = st.lists(
    st.tuples(st.floats(6.5, 9.0), st.integers(1, 12)), min_size=1, max_size=12
)


@pytest.mark.slow
@given(values, st.floats(1.0, 2.0), st.sampled_from(["literal", "fail"]), st.booleans())
def test_slower_means_never_turn_a_failure_into_a_pass(
    means: list[tuple[float, int]], factor: float, policy: str, trimmed: bool
) -> None:
    seconds, widths = [run for run, _ in means], [width for _, width in means]
    baseline = RECORDED if trimmed else BASELINE
    statuses = []
    for slower in (1.0, factor):
        run = make_means(
            [slower * value for value in seconds], widths, baseline=baseline
        )
        judgement = judge(evidence(run, baseline=baseline))
        statuses.append(
            decide_status(judgement, SessionRules(inconclusive=policy), required=True)
        )
    assert statuses != [Status.FAILED, Status.PASSED]
