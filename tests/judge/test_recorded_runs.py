"""Recorded baselines: a few steps the verdict, quantised times, unknown errors and several levels."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import BASELINE, HISTORY, evidence, measurement, noisy

from pytest_llmbench.core.baseline_records import Baseline, BaselineKind, Recording
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.robust import compute_trimmed_mean
from pytest_llmbench.core.run_records import Acknowledgement, Measurement
from pytest_llmbench.judge.acknowledged import accept_reasons
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.recorded_runs import (
    Occasion,
    count_groups,
    expect_noise,
    find_run_levels,
)
from pytest_llmbench.report.wording import phrase

RECORDED = replace(
    BASELINE,
    kind=BaselineKind.RECORDED,
    window=BASELINE.window._replace(statistic="trimmed_mean"),
    recording=Recording(
        "2025-11-01", 4, 7.325, 7.325, 0.05, (7.31, 7.32, 7.33, 7.34), ()
    ),
)


def make_stalled(every: int, factor: float, first: int = 0) -> Measurement:
    """Make a run against the recorded baseline in which every n-th step is slower."""
    window = np.full(34, 7.325) * (
        1 + 0.002 * np.random.default_rng(0).standard_normal(34)
    )
    window[first::every] *= factor
    return measurement(
        compute_trimmed_mean(window),
        window_seconds=tuple(window.tolist()),
        baseline=RECORDED,
    )


def test_run_that_stalls_at_every_sixth_step_is_inconclusive_and_fails() -> None:
    judgement = judge(evidence(make_stalled(6, 3.0), baseline=RECORDED))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INCONCLUSIVE,
        Reason.FEW_STEPS_DECIDE,
    )
    assert judgement.meets_point is False


def test_stalls_in_the_recorded_baseline_excuse_no_stalls_of_the_run() -> None:
    recording = Recording(
        "2025-11-01", 4, 11.0, 7.325, 0.05, (7.31, 7.32, 7.33, 7.34), ()
    )
    judgement = judge(
        evidence(make_stalled(6, 3.0), baseline=replace(RECORDED, recording=recording))
    )
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INCONCLUSIVE,
        Reason.FEW_STEPS_DECIDE,
    )


def test_one_stall_is_inconclusive_and_meets_the_literal_rule() -> None:
    judgement = judge(evidence(make_stalled(34, 5.0, first=20), baseline=RECORDED))
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INCONCLUSIVE,
        Reason.FEW_STEPS_DECIDE,
    )
    assert judgement.meets_point is True


def make_long_run(
    *stalls: tuple[int, float], steps: int = 500, mean_of: int = 1
) -> Measurement:
    """Make a run of many records against the recorded baseline.

    `stalls` are records and the factors by which they are slower.
    """
    window = np.full(steps, 7.325) * (
        1 + 0.002 * np.random.default_rng(1).standard_normal(steps)
    )
    for record, factor in stalls:
        window[record] *= factor
    numbers = tuple(range(1, steps + 1))
    run = measurement(
        compute_trimmed_mean(window),
        window_seconds=tuple(window.tolist()),
        window_steps=numbers,
        window_lines=numbers,
        baseline=RECORDED,
    )
    return replace(run, mean_of=(mean_of,) * steps if mean_of > 1 else ())


@pytest.mark.parametrize("mean_of", [1, 10])
def test_two_stalls_are_forgiven_and_three_are_not_in_a_long_run(mean_of: int) -> None:
    two, three = [(100, 20.0), (300, 20.0)], [(100, 20.0), (200, 20.0), (300, 20.0)]
    assert (
        judge(
            evidence(make_long_run(*two, mean_of=mean_of), baseline=RECORDED)
        ).meets_point
        is True
    )
    judgement = judge(
        evidence(make_long_run(*three, mean_of=mean_of), baseline=RECORDED)
    )
    assert (judgement.reason, judgement.meets_point) == (Reason.FEW_STEPS_DECIDE, False)


def test_run_that_stalls_at_every_twentieth_step_fails_the_literal_rule() -> None:
    judgement = judge(
        evidence(
            make_long_run(*((step, 5.0) for step in range(9, 500, 20))),
            baseline=RECORDED,
        )
    )
    assert (judgement.reason, judgement.meets_point) == (Reason.FEW_STEPS_DECIDE, False)


def test_periodic_slow_saves_are_no_stalls_if_the_recorded_baseline_contains_them() -> (
    None
):
    saves = [(step, 2.0) for step in range(9, 500, 20)]
    baseline = replace(
        RECORDED,
        recording=replace(RECORDED.recording, mean_seconds=7.325 * 1.05),  # type: ignore[type-var]
    )
    judgement = judge(
        evidence(replace(make_long_run(*saves), baseline=baseline), baseline=baseline)
    )
    assert judgement.meets_point is True


def make_few_means(*seconds: float) -> Measurement:
    numbers = tuple(10 * number for number in range(1, len(seconds) + 1))
    statistic = compute_trimmed_mean(np.array(seconds))
    run = measurement(
        statistic,
        window_seconds=seconds,
        window_steps=numbers,
        window_lines=numbers,
        baseline=RECORDED,
    )
    return replace(run, mean_of=(10,) * len(seconds))


@pytest.mark.parametrize(
    ("factors", "meets"),
    [
        ((1.14, 1.14, 0.75), False),
        ((0.6, 1.2, 1.2, 1.1), False),
        ((1.0, 1.01, 0.99), True),
        ((1.02, 1.05, 1.03), True),
    ],
)
def test_printed_means_too_far_apart_fail_the_literal_rule(
    factors: tuple[float, ...], meets: bool
) -> None:
    judgement = judge(
        evidence(
            make_few_means(*(7.325 * factor for factor in factors)), baseline=RECORDED
        )
    )
    assert judgement.meets_point is meets
    assert (judgement.reason is Reason.INTERVAL_TOO_WIDE) is not meets


@pytest.mark.parametrize("reason", [Reason.FEW_STEPS_DECIDE, Reason.INTERVAL_TOO_WIDE])
def test_accepted_inconclusive_reason_leaves_the_mean_step_time_to_decide(
    reason: Reason,
) -> None:
    """The message still states the problem."""
    run = (
        make_stalled(6, 3.0)
        if reason is Reason.FEW_STEPS_DECIDE
        else make_few_means(7.325 * 1.14, 7.325 * 1.14, 7.325 * 0.75)
    )
    entry = Acknowledgement(
        RECORDED.key.id,
        0.0,
        date(2025, 1, 1),
        date(2027, 1, 1),
        "known",
        "A. Person",
        "a.yaml:3",
        accepts=reason,
    )
    refused = judge(evidence(run, baseline=RECORDED))
    accepted = judge(accept_reasons(evidence(run, baseline=RECORDED), [entry]))
    assert (refused.reason, refused.meets_point, accepted.meets_point) == (
        reason,
        False,
        True,
    )
    assert [
        note.acknowledgement for note in accepted.notes if note.code == "acknowledged"
    ] == [entry]


def compute_width(baseline: Baseline, *previous: Measurement) -> float:
    current = noisy(7.4, 0.002, statistic="trimmed_mean", baseline=baseline)
    estimate = judge(evidence(current, *previous, baseline=baseline)).estimate
    assert estimate is not None
    return estimate.high - estimate.low


def make_recorded(groups: int | None, *seconds: float) -> Baseline:
    runs = seconds or (7.31, 7.32, 7.33, 7.34)
    recording = Recording(
        "2025-11-01", len(runs), 7.325, 7.325, 0.05, runs, (), groups=groups
    )
    return replace(RECORDED, recording=recording)


def test_recorded_runs_of_one_day_or_unknown_date_narrow_the_interval_as_one() -> None:
    single = replace(
        RECORDED,
        recording=Recording(
            "2025-11-01", 1, 7.325, 7.325, 0.05, (7.325,), (), groups=1
        ),
    )
    previous = [replace(daily_run, baseline=RECORDED) for daily_run in HISTORY]
    assert (
        compute_width(make_recorded(1), *previous)
        == compute_width(make_recorded(None), *previous)
        == pytest.approx(compute_width(single, *previous))
    )
    assert (
        compute_width(make_recorded(1), *previous)
        > compute_width(make_recorded(2), *previous)
        > compute_width(make_recorded(4), *previous)
    )
    equal, wide = (7.325, 7.3251, 7.3249, 7.325), (7.0, 7.2, 7.4, 7.6)
    assert (
        compute_width(make_recorded(1, *wide))
        > compute_width(make_recorded(1, *equal))
        == compute_width(single)
        > compute_width(make_recorded(4, *equal))
    )


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (
            1,
            "the 4 runs of the baseline count as one: they share days and nodes; record 5 runs on",
        ),
        (
            None,
            "the 4 runs of the baseline count as one: their days or nodes are unknown; record 5",
        ),
        (3, ""),
    ],
)
def test_baseline_of_few_days_is_noted(groups: int | None, text: str) -> None:
    baseline = make_recorded(groups)
    judgement = judge(
        evidence(
            noisy(7.4, 0.002, statistic="trimmed_mean", baseline=baseline),
            baseline=baseline,
        )
    )
    texts = [phrase(note) for note in judgement.notes if note.code == "few-recorded"]
    assert len(texts) == bool(text)
    assert all(note_text.startswith(text) for note_text in texts)


def test_quantised_baseline_widens_the_interval_and_is_noted() -> None:
    sharp = judge(evidence(measurement(7.4)))
    quantised = judge(
        evidence(measurement(7.4), baseline=replace(BASELINE, resolution_seconds=0.5))
    )
    assert sharp.estimate is not None
    assert quantised.estimate is not None
    assert quantised.estimate.high > sharp.estimate.high
    assert [note.code for note in quantised.notes] == ["coarse-baseline"]
    assert sharp.notes == ()


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.04, Verdict.PASS), (1.06, Verdict.REGRESSION)]
)
def test_window_of_two_steps_without_history_is_compared_without_interval(
    factor: float, verdict: Verdict
) -> None:
    two = measurement(
        7.325 * factor,
        window_seconds=(7.325 * factor,) * 2,
        window_steps=(1, 2),
        window_lines=(1, 2),
    )
    judgement = judge(evidence(two))
    assert judgement.verdict is verdict
    assert judgement.estimate is not None
    assert judgement.estimate.threshold_only
    assert judgement.estimate.p_slower is None
    assert "threshold only" in phrase(judgement)


def test_unfinished_warm_up_is_inconclusive() -> None:
    decay = (
        7.0
        * (1 + 0.03 * np.exp(-np.arange(34) / 6))
        * (1 + 0.001 * np.random.default_rng(0).standard_normal(34))
    )
    judgement = judge(
        evidence(
            measurement(float(decay.mean()), window_seconds=tuple(decay.tolist())),
            *HISTORY,
        )
    )
    assert (judgement.verdict, judgement.reason) == (
        Verdict.INCONCLUSIVE,
        Reason.WARMING_UP,
    )
    assert judgement.meets_point is True


# --- the runs of a baseline -----------------------------------------------------------


RECORDINGS = 500
EVENING = datetime(2026, 3, 1, 21, tzinfo=UTC)
RACK, OTHER_RACK = (
    frozenset({"n1", "n2", "n3", "n4"}),
    frozenset({"n5", "n6", "n7", "n8"}),
)
MOSTLY_RACK = frozenset({"n1", "n2", "n3", "n8"})


def make_occasion(hours: float, nodes: frozenset[str] = frozenset()) -> Occasion:
    return Occasion(EVENING + timedelta(hours=hours), nodes)


@pytest.mark.parametrize(
    ("occasions", "groups"),
    [
        pytest.param(
            [make_occasion(hour) for hour in range(5)],
            1,
            id="five runs of one day, across midnight",
        ),
        pytest.param(
            [make_occasion(24 * day, RACK) for day in range(5)],
            5,
            id="five days on one node set",
        ),
        pytest.param(
            [make_occasion(0, RACK), make_occasion(1, OTHER_RACK)],
            2,
            id="two node sets on one day",
        ),
        pytest.param(
            [make_occasion(0, RACK), make_occasion(1, MOSTLY_RACK)],
            1,
            id="one node was exchanged",
        ),
        pytest.param(
            [make_occasion(0, RACK), make_occasion(1)], 1, id="nodes of one are unknown"
        ),
        pytest.param(
            [make_occasion(0), make_occasion(24), Occasion(None)],
            2,
            id="one start is unknown",
        ),
        pytest.param(
            [make_occasion(5 * run) for run in range(24)],
            6,
            id="around the clock, six days (UTC)",
        ),
    ],
)
def test_runs_of_one_day_on_same_nodes_count_once(
    occasions: list[Occasion], groups: int
) -> None:
    assert count_groups(occasions) == groups
    for order in list(permutations(occasions[:5]))[::17]:
        assert count_groups([*occasions[5:], *order]) == groups


def make_recordings(levels: Sequence[float], cv: float, seed: int) -> list[list[float]]:
    """Make RECORDINGS recordings of runs at these levels, with noise."""
    noise = np.random.default_rng(seed).standard_normal((RECORDINGS, len(levels)))
    seconds = 7.3 * np.array(levels) * np.exp(cv * noise)
    return [list(map(float, row)) for row in seconds]


@pytest.mark.slow
@pytest.mark.parametrize("runs", [2, 6, 14])
@pytest.mark.parametrize("cv", [0.002, 0.02])
def test_recorded_runs_at_one_step_time_are_rarely_reported_as_two_levels(
    runs: int, cv: float
) -> None:
    """Fewer than 1 % are split, up to twice the expected noise. docs/reference/recorded-baselines.md lists
    the numbers for 200,000 recordings each."""
    refused = sum(
        find_run_levels(recording, 0.01, ordered=True) is not None
        for recording in make_recordings((1.0,) * runs, cv, runs)
    )
    # 0.8 % expected; the count has a standard deviation of 0.4 %
    assert refused <= RECORDINGS * 0.014
    assert refused == 0 or cv > 0.002


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "ordered", "least"),
    [
        ((1.0, 1.0, 1.0, 1.04, 1.04, 1.04), True, 0.99),
        ((1.0, 1.04, 1.04, 1.0, 1.04, 1.0), False, 0.98),
        ((1.0, 1.0, 1.08, 1.08), True, 0.99),
    ],
)
def test_recorded_runs_at_two_step_time_levels_are_detected(
    levels: tuple[float, ...], ordered: bool, least: float
) -> None:
    run_levels = [
        find_run_levels(levels_found, 0.01, ordered=ordered)
        for levels_found in make_recordings(levels, 0.002, 1)
    ]
    assert sum(levels_found is not None for levels_found in run_levels) >= least * len(
        run_levels
    )
    half = len(levels) // 2
    assert all(
        levels_found is None
        or (levels_found.fast_runs, levels_found.slow_runs) == (half, half)
        for levels_found in run_levels
    )
    assert run_levels[0]
    assert run_levels[0].slow_seconds / run_levels[0].fast_seconds == pytest.approx(
        max(levels), rel=0.006
    )


@pytest.mark.parametrize(
    "levels",
    [
        pytest.param((1.0, 1.0, 1.0, 1.0, 1.0, 1.06), id="a single bad day"),
        pytest.param(
            (1.0, 1.0, 1.0, 1.008, 1.008, 1.008),
            id="levels that move the mean by little",
        ),
        pytest.param((1.0,), id="one run"),
    ],
)
def test_small_shift_or_single_slow_recorded_run_is_no_second_level(
    levels: tuple[float, ...],
) -> None:
    assert (
        find_run_levels([7.3 * level for level in levels], 0.01, ordered=True) is None
    )


@pytest.mark.slow
@given(st.permutations([7.3, 7.31, 7.28, 7.6, 7.59, 7.61, 7.3]))
def test_unit_and_order_do_not_change_run_levels(seconds: list[float]) -> None:
    for unit in (1e-3, 1.0, 1e4):
        run_levels = find_run_levels(
            [unit * value for value in seconds], 0.01, ordered=False
        )
        assert run_levels
        assert (run_levels.fast_runs, run_levels.slow_runs) == (4, 3)


def test_noisy_steps_raise_the_expected_noise() -> None:
    steady, noisy = (
        measurement(7.3),
        measurement(7.3, window_seconds=tuple(7.3 + (step % 7) for step in range(34))),
    )
    assert expect_noise([steady], 0.01) == pytest.approx(0.01)
    assert expect_noise([steady, noisy], 0.01) > 0.02
    assert expect_noise([measurement(7.3, window_seconds=(7.3, 9.0))], 0.01) == 0.01
