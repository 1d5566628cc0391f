"""Hiccups: what is forgiven, what never is, and for how long. And which run stands for a day."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from builders import BASELINE, HISTORY, NOW, evidence, measurement, nights, run
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.models import (
    BaselineKind,
    Judgement,
    Measurement,
    Problem,
    Reason,
    Recording,
    StoredRun,
    Verdict,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.run_selection import (
    average_current_runs,
    describe_last_valid,
    find_coarse_unit,
    list_daily_runs,
    list_previous_daily_runs,
)


def with_steps(slow: dict[int, float], level: float = 1.0, seed: int = 0, **fields: Any) -> Measurement:
    """Return a run at a level of the baseline, with some steps so many times slower; step 11 is the first."""
    window = 7.325 * level * (1 + 0.002 * np.random.default_rng(seed).standard_normal(34))
    for step, factor in slow.items():
        window[step - 11] *= factor
    return measurement(float(window.mean()), window_seconds=tuple(window.tolist()), **fields)


def codes(judgement: Judgement) -> list[str]:
    return [note.code for note in judgement.notes]


def test_two_slow_steps_of_34_are_forgiven_for_the_rule_and_the_interval_alike() -> None:
    """A x 3 and a x 1.55 step make the mean 7.5 % slower, at no change."""
    told = judge(evidence(with_steps({20: 3.0, 33: 1.55}), *HISTORY))
    assert (told.verdict, told.meets_point) == (Verdict.PASS, True)
    assert told.estimate is not None
    assert told.estimate.difference == pytest.approx(0.0, abs=0.002)
    (note,) = [one for one in told.notes if one.code == "hiccup"]
    assert note.text.startswith("a hiccup: step 20 (line 120) took 2.99 x")
    assert "step 33 (line 133) took 1.55 x the median; the mean is 7.8" in note.text
    assert note.line == 120


def test_what_was_measured_is_shown_as_it_was() -> None:
    told = judge(evidence(with_steps({20: 3.0}), *HISTORY))
    assert told.measurement is not None
    assert max(told.measurement.window_seconds) > 20


def test_one_of_four_steps_is_more_than_one_of_twenty() -> None:
    window = (12.0, 12.1, 120.0, 12.0)
    short = replace(with_steps({}), window_seconds=window, window_steps=(41, 42, 43, 44), window_lines=(1, 2, 3, 4))
    told = judge(evidence(replace(short, statistic_seconds=float(np.mean(window))), *HISTORY))
    assert told.verdict is Verdict.REGRESSION or told.meets_point is False
    assert "hiccup" not in codes(told)


@pytest.mark.parametrize(
    "slow",
    [{20: 1.45, 33: 1.45}, {20: 3.0, 28: 3.0, 33: 3.0}, dict.fromkeys(range(11, 45, 6), 1.6)],
    ids=["stragglers of the usual kind", "three of 34", "every sixth"],
)
def test_what_is_no_hiccup_counts_as_it_is(slow: dict[int, float]) -> None:
    one = with_steps(slow)
    told = judge(evidence(one, *HISTORY))
    assert told.estimate is not None
    assert told.estimate.difference == pytest.approx(np.log((one.statistic_seconds or 0) / 7.325))
    assert Verdict.PASS is not told.verdict or one.statistic_seconds == pytest.approx(7.325 * 1.026, rel=0.01)


def test_a_run_that_is_slower_stays_a_regression() -> None:
    told = judge(evidence(with_steps({20: 3.0, 33: 1.55}, level=1.10), *HISTORY))
    assert told.verdict is Verdict.REGRESSION
    assert judge(evidence(with_steps({20: 3.0}, level=1.06), *HISTORY)).meets_point is False


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(11, 44), st.floats(1.0, 6.0), max_size=6),
    st.floats(0.95, 1.2),
    st.integers(11, 44),
    st.floats(1.0, 3.0),
)
def test_more_of_a_stall_never_makes_a_failure_green(
    slow: dict[int, float], level: float, step: int, more: float
) -> None:
    """A step that grows beyond 1.5 medians is forgiven, but then the run passes at that level without it, too."""
    usual = judge(evidence(with_steps({}, level), *HISTORY))
    told = judge(evidence(with_steps({**slow, step: slow.get(step, 1.0) * more}, level), *HISTORY))
    if told.meets_point:
        assert usual.meets_point
    if told.verdict is Verdict.PASS:
        assert usual.verdict in (Verdict.PASS, Verdict.IMPROVEMENT)


def test_against_a_recorded_baseline_nothing_changes() -> None:
    recorded = replace(
        BASELINE,
        kind=BaselineKind.RECORDED,
        window=BASELINE.window._replace(statistic="trimmed_mean"),
        recording=Recording("2025-11-01", 5, 7.325, 7.325, 0.05, (7.31, 7.32, 7.33, 7.34, 7.325), (), groups=5),
    )
    one = with_steps({20: 5.0}, baseline=recorded)
    one = replace(one, statistic_seconds=7.325)
    told = judge(evidence(one, baseline=recorded))
    assert "hiccup" not in codes(told)
    assert told.verdict is Verdict.INCONCLUSIVE


def test_a_step_among_means_of_several_is_forgiven_and_a_mean_is_not() -> None:
    window, steps = [7.325] * 5, (1, 10, 10, 10, 3)
    alone = measurement(0.0, window_seconds=tuple(window), mean_of=steps)
    for place, code in ((0, ["hiccup"]), (1, [])):
        values = [value * (2 if at == place else 1) for at, value in enumerate(window)]
        mean = float(np.average(values, weights=steps))
        told = judge(evidence(replace(alone, statistic_seconds=mean, window_seconds=tuple(values)), *HISTORY))
        assert [one for one in codes(told) if one == "hiccup"] == code


# --- how often ----------------------------------------------------------------------------------------------


def week(*days: int) -> list[Measurement]:
    """Return nine earlier nights, those so many days ago with a hiccup."""
    slow = {day: {20: 3.0} if day in days else {} for day in range(1, 10)}
    return [with_steps(slow[day], seed=day, run=run(started=NOW - timedelta(days=day))) for day in range(1, 10)]


@pytest.mark.parametrize(
    ("days", "forgiven"), [((), True), ((1,), True), ((1, 3), False), ((5, 6), False), ((6, 7), True), ((7, 8), True)]
)
def test_the_third_run_in_seven_nights_is_told_and_forgiven_no_more(days: tuple[int, ...], forgiven: bool) -> None:
    told = judge(evidence(with_steps({20: 3.0, 33: 1.55}), *week(*days)))
    assert codes(told).count("hiccup") == forgiven
    assert codes(told).count("hiccups-often") == (not forgiven)
    assert told.meets_point is forgiven


def test_what_only_the_history_knows_counts_as_well() -> None:
    """Its step time is more than what it was judged by."""

    def past(day: int, difference: float, reason: str = "") -> StoredRun:
        started, seconds = NOW - timedelta(days=day), 7.325 * 1.07
        judged = (True, seconds, "PASS", reason, seconds, 7.325, difference)
        return StoredRun(started, str(day), "f", BASELINE.window, {}, *judged)

    tonight = with_steps({20: 3.0, 33: 1.55})
    forgiven = (past(4, 0.001), past(2, 0.0))
    assert "hiccups-often" in codes(judge(evidence(tonight, stored_runs=forgiven)))
    plain = tuple(past(day, float(np.log(1.07))) for day in (4, 2))
    assert "hiccup" in codes(judge(evidence(tonight, stored_runs=plain)))
    refused = tuple(past(day, float(np.log(1.07)), "few-steps-decide") for day in (4, 2))
    assert "hiccups-often" in codes(judge(evidence(tonight, stored_runs=refused)))


def test_nights_without_a_hiccup_say_nothing_of_it() -> None:
    assert codes(judge(evidence(with_steps({}), *nights(*[7.325] * 8)))) == ["older-runs"]


# --- the daily runs before ---------------------------------------------------------------------------------


DIVERGED = Problem(Reason.DIVERGED, "the loss is NaN")


def test_repeats_of_tonight_are_one_night_and_say_what_they_ran_with() -> None:
    older = tuple(reversed(nights(7.4, 7.3)))
    tonight = [
        measurement(value, run=run(environment=(("commit", "0a1b"), ("container", "a:1")))) for value in (7.0, 7.7)
    ]
    seen = [*list_daily_runs(older), *average_current_runs(tonight)]
    assert [one.statistic_seconds for one in seen] == pytest.approx([7.3, 7.4, (7.0 * 7.7) ** 0.5])
    assert [one.started for one in seen] == sorted(one.started for one in seen)
    assert seen[-1].environment == {"commit": "0a1b", "container": "a:1"}
    assert len(list_daily_runs(older)) == 2


def test_one_printed_unit_matters_only_where_the_steps_do_not_differ_by_as_much() -> None:
    same = measurement(24.0, resolution_seconds=0.1)
    differing = measurement(24.0, resolution_seconds=0.1, window_seconds=(23.9, 24.1) * 17)
    assert find_coarse_unit([same, differing]) == pytest.approx(0.1 / 24, rel=0.02)
    assert find_coarse_unit([differing]) == find_coarse_unit([]) == 0


def test_the_last_valid_run_is_named_with_its_night_and_job() -> None:
    older = nights(7.4, 7.3, first=12)
    broken = measurement(7.3, problems=(DIVERGED,))
    day = (NOW - timedelta(days=12)).strftime("%Y-%m-%d %H:%M")
    assert describe_last_valid(evidence(broken, *older)) == f"last valid run 12 nights ago ({day}, job 1)"
    assert describe_last_valid(evidence(broken, excluded_by_since=older)).startswith("last valid run 12 nights ago")
    assert describe_last_valid(evidence(measurement(7.3))).startswith("last valid run 3h ago (")
    assert describe_last_valid(evidence(broken)) == ""
    assert describe_last_valid(evidence(measurement(7.3, run=run(started=None)))) == ""


def test_what_has_no_run_any_more_says_when_it_had_one_and_from_when_on_that_is_too_long_ago() -> None:
    """A nightly folder holds tonight's runs only: what no longer starts is known from the history alone."""
    gone = StoredRun(NOW - timedelta(days=4), "7", "ff", BASELINE.window, {}, valid=True, statistic_seconds=7.4)
    seen = f"no run of this configuration; last valid run 4 nights ago ({gone.started:%Y-%m-%d %H:%M}, job 7)"
    assert judge(evidence(stored_runs=(gone,))).text == seen
    assert judge(evidence(stored_runs=(gone,), max_age=timedelta(days=5))).text == seen
    assert judge(evidence(stored_runs=(gone,), max_age=timedelta(days=3))).text == f"stale: {seen}"
    assert judge(evidence(max_age=timedelta(days=3))).text == "no run of this configuration"


def test_a_night_is_a_day_and_none_is_that_of_tonight() -> None:
    """Runs of one day share its conditions: of other days the newest counts, of tonight's own day none besides it."""
    hours = (0, 2, 5, 20, 22, 44, 46)  # before six in the morning
    newest, *older = (measurement(7.4, run=run(started=NOW - timedelta(hours=one))) for one in hours)
    found = list_previous_daily_runs([newest], evidence(newest, *older))
    assert list(found) == [older[4], older[2]]
    assert list(list_previous_daily_runs([], evidence(newest, *older))) == [older[4], older[2], newest]
