"""Transient stalls: when they are forgiven, and how often. Also the daily runs."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import BASELINE, HISTORY, NOW, evidence, measurement, nights, run

from pytest_llmbench.core.baseline_records import BaselineKind, Recording
from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import Judgement
from pytest_llmbench.core.run_records import Measurement, Problem, StoredRun
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.run_selection import (
    average_current_runs,
    find_last_valid,
    find_quantisation_unit,
    list_daily_runs,
    list_previous_daily_runs,
)
from pytest_llmbench.report.wording import phrase, phrase_all


def with_steps(
    slow: dict[int, float], level: float = 1.0, seed: int = 0, **fields: Any
) -> Measurement:
    """Make a run at a multiple of the baseline, with some slower steps.

    `slow` maps step numbers to factors; step 11 is the first.
    """
    window = (
        7.325 * level * (1 + 0.002 * np.random.default_rng(seed).standard_normal(34))
    )
    for step, factor in slow.items():
        window[step - 11] *= factor
    return measurement(
        float(window.mean()), window_seconds=tuple(window.tolist()), **fields
    )


def list_codes(judgement: Judgement) -> list[str]:
    return [note.code for note in judgement.notes]


def test_two_slow_steps_of_34_are_forgiven() -> None:
    """Two steps, 3 and 1.55 times as long, raise the mean by 7.5 %."""
    judgement = judge(evidence(with_steps({20: 3.0, 33: 1.55}), *HISTORY))
    assert (judgement.verdict, judgement.meets_point) == (Verdict.PASS, True)
    assert judgement.estimate is not None
    assert judgement.estimate.difference == pytest.approx(0.0, abs=0.002)
    (note,) = [note for note in judgement.notes if note.code == "hiccup"]
    assert phrase(note).startswith(
        "transient stalls left out: step 20 (line 120) took 2.99 x"
    )
    assert "step 33 (line 133) took 1.55 x the median; the mean is 7.8" in phrase(note)
    assert note.line == 120
    assert judgement.measurement is not None
    assert (
        max(judgement.measurement.window_seconds) > 20
    )  # the displayed steps are the measured ones


def test_stalled_step_is_not_left_out_of_a_window_of_four_steps() -> None:
    window, few = (12.0, 12.1, 120.0, 12.0), (1, 2, 3, 4)
    short = measurement(
        float(np.mean(window)),
        window_seconds=window,
        window_steps=few,
        window_lines=few,
    )
    judgement = judge(evidence(short, *HISTORY))
    assert judgement.meets_point is False
    assert "hiccup" not in list_codes(judgement)


@pytest.mark.parametrize(
    "slow",
    [{20: 1.45, 33: 1.45}, {20: 3.0, 28: 3.0, 33: 3.0}],
    ids=["small stragglers", "three of 34"],
)
def test_slow_steps_that_are_no_isolated_stalls_are_not_forgiven(
    slow: dict[int, float],
) -> None:
    slow_run = with_steps(slow)
    assert slow_run.statistic_seconds is not None
    estimate = judge(evidence(slow_run, *HISTORY)).estimate
    assert estimate is not None
    assert estimate.difference == pytest.approx(
        np.log(slow_run.statistic_seconds / 7.325)
    )


def test_slower_run_with_stalls_is_a_regression() -> None:
    judgement = judge(evidence(with_steps({20: 3.0, 33: 1.55}, level=1.10), *HISTORY))
    assert judgement.verdict is Verdict.REGRESSION
    assert (
        judge(evidence(with_steps({20: 3.0}, level=1.06), *HISTORY)).meets_point
        is False
    )


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(11, 44), st.floats(1.0, 6.0), max_size=6),
    st.floats(0.95, 1.2),
    st.integers(11, 44),
    st.floats(1.0, 3.0),
)
def test_longer_stall_never_turns_a_failure_into_a_pass(
    slow: dict[int, float], level: float, step: int, more: float
) -> None:
    """A step that exceeds 1.5 medians is forgiven, but then the run passes without that
    step, too."""
    without_stall = judge(evidence(with_steps({}, level), *HISTORY))
    longer = judge(
        evidence(
            with_steps({**slow, step: slow.get(step, 1.0) * more}, level), *HISTORY
        )
    )
    if longer.meets_point:
        assert without_stall.meets_point
    if longer.verdict is Verdict.PASS:
        assert without_stall.verdict in (Verdict.PASS, Verdict.IMPROVEMENT)


def test_stall_against_a_recorded_baseline_is_not_forgiven() -> None:
    window = BASELINE.window._replace(statistic="trimmed_mean")
    recording = Recording(
        "2025-11-01",
        5,
        7.325,
        7.325,
        0.05,
        (7.31, 7.32, 7.33, 7.34, 7.325),
        (),
        groups=5,
    )
    recorded = replace(
        BASELINE, kind=BaselineKind.RECORDED, window=window, recording=recording
    )
    stalled = replace(with_steps({20: 5.0}, baseline=recorded), statistic_seconds=7.325)
    judgement = judge(evidence(stalled, baseline=recorded))
    assert "hiccup" not in list_codes(judgement)
    assert judgement.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("slow", "forgiven"), [(0, True), (1, False)], ids=["one step", "mean of ten steps"]
)
def test_slow_mean_of_several_steps_is_not_forgiven(slow: int, forgiven: bool) -> None:
    window, steps = [7.325] * 5, (1, 10, 10, 10, 3)
    window[slow] *= 2
    mean = float(np.average(window, weights=steps))
    judgement = judge(
        evidence(
            measurement(mean, window_seconds=tuple(window), mean_of=steps), *HISTORY
        )
    )
    assert ("hiccup" in list_codes(judgement)) is forgiven


# --- frequency of stalls --------------------------------------------------------------


def make_week(*days: int) -> list[Measurement]:
    """Make nine earlier daily runs, with a stall on each of `days` (days ago)."""
    slow = {day: {20: 3.0} if day in days else {} for day in range(1, 10)}
    return [
        with_steps(slow[day], seed=day, run=run(started=NOW - timedelta(days=day)))
        for day in range(1, 10)
    ]


@pytest.mark.parametrize(
    ("days", "forgiven"),
    [
        ((), True),
        ((1,), True),
        ((1, 3), False),
        ((5, 6), False),
        ((6, 7), True),
        ((7, 8), True),
    ],
)
def test_third_stall_in_seven_days_is_not_forgiven(
    days: tuple[int, ...], forgiven: bool
) -> None:
    judgement = judge(evidence(with_steps({20: 3.0, 33: 1.55}), *make_week(*days)))
    assert list_codes(judgement).count("hiccup") == forgiven
    assert list_codes(judgement).count("hiccups-often") == (not forgiven)
    assert judgement.meets_point is forgiven


@pytest.mark.parametrize(
    ("difference", "reason", "code"),
    [
        (0.0, "", "hiccups-often"),
        (math.log(1.07), "", "hiccup"),
        (math.log(1.07), "few-steps-decide", "hiccups-often"),
    ],
    ids=["forgiven", "slow", "refused"],
)
def test_stalled_runs_in_the_history_count_towards_too_frequent_stalls(
    difference: float, reason: str, code: str
) -> None:
    """A stall was forgiven if the step time exceeds the time that was compared."""
    seconds = 7.325 * 1.07
    fields = (True, seconds, "PASS", reason, seconds, 7.325, difference)
    stored = [
        StoredRun(
            NOW - timedelta(days=day), str(day), "f", BASELINE.window, {}, *fields
        )
        for day in (4, 2)
    ]
    assert code in list_codes(
        judge(evidence(with_steps({20: 3.0, 33: 1.55}), stored_runs=tuple(stored)))
    )


# --- daily runs -----------------------------------------------------------------------


DIVERGED = Problem(Reason.DIVERGED, "the loss is NaN")


def test_daily_runs_end_with_the_geometric_mean_of_the_current_runs() -> None:
    software = {"commit": "0a1b", "container": "a:1"}
    current = [
        measurement(value, run=run(environment=tuple(software.items())))
        for value in (7.0, 7.7)
    ]
    daily_runs = [
        *list_daily_runs(tuple(reversed(nights(7.4, 7.3)))),
        *average_current_runs(current),
    ]
    assert [day.statistic_seconds for day in daily_runs] == pytest.approx(
        [7.3, 7.4, (7.0 * 7.7) ** 0.5]
    )
    assert [day.started for day in daily_runs] == sorted(
        day.started for day in daily_runs
    )
    assert daily_runs[-1].environment == software


def test_printed_unit_widens_the_error_only_if_all_step_times_are_equal() -> None:
    same = measurement(24.0, resolution_seconds=0.1)
    differing = measurement(
        24.0, resolution_seconds=0.1, window_seconds=(23.9, 24.1) * 17
    )
    assert find_quantisation_unit([same, differing]) == pytest.approx(
        0.1 / 24, rel=0.02
    )
    assert find_quantisation_unit([differing]) == find_quantisation_unit([]) == 0


def test_message_states_day_and_job_of_the_last_valid_run() -> None:
    previous = nights(7.4, 7.3, first=12)
    broken = measurement(7.3, problems=(DIVERGED,))
    day = (NOW - timedelta(days=12)).strftime("%Y-%m-%d %H:%M")
    for known in (
        evidence(broken, *previous),
        evidence(broken, excluded_by_since=previous),
    ):
        assert (
            phrase_all(filter(None, [find_last_valid(known)]))
            == f"last valid run 12 days ago ({day}, job 1)"
        )
    assert phrase_all(
        filter(None, [find_last_valid(evidence(measurement(7.3)))])
    ).startswith("last valid run 3h ago (")
    for unknown in (broken, measurement(7.3, run=run(started=None))):
        assert find_last_valid(evidence(unknown)) is None


def test_message_on_a_missing_configuration_states_its_last_stored_run() -> None:
    """A nightly folder contains only current runs, so a retired configuration is known
    from the history only."""
    last_stored = StoredRun(
        NOW - timedelta(days=4),
        "7",
        "ff",
        BASELINE.window,
        {},
        valid=True,
        statistic_seconds=7.4,
    )
    expected = f"no run of this configuration; last valid run 4 days ago ({last_stored.started:%Y-%m-%d %H:%M}, job 7)"
    assert phrase(judge(evidence(stored_runs=(last_stored,)))) == expected
    assert (
        phrase(judge(evidence(stored_runs=(last_stored,), max_age=timedelta(days=5))))
        == expected
    )
    assert (
        phrase(judge(evidence(stored_runs=(last_stored,), max_age=timedelta(days=3))))
        == f"stale: {expected}"
    )
    assert (
        phrase(judge(evidence(max_age=timedelta(days=3))))
        == "no run of this configuration"
    )


def test_newest_run_of_each_earlier_day_is_its_daily_run() -> None:
    """Runs of one day share its conditions: the newest run of each earlier day counts,
    and no other run of the current day."""
    hours = (0, 2, 5, 20, 22, 44, 46)  # before six in the morning
    newest, *older = (
        measurement(7.4, run=run(started=NOW - timedelta(hours=ago))) for ago in hours
    )
    daily_runs = list_previous_daily_runs([newest], evidence(newest, *older))
    assert list(daily_runs) == [older[4], older[2]]
    assert list(list_previous_daily_runs([], evidence(newest, *older))) == [
        older[4],
        older[2],
        newest,
    ]
