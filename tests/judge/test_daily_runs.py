"""What was seen of a configuration: nights in order, tonight's repeats as one, and when its last valid run was."""

from __future__ import annotations

from datetime import timedelta

import pytest
from builders import BASELINE, NOW, evidence, measurement, nights, run

from pytest_llmbench.core.models import DailyRun, Problem, Reason, StoredRun
from pytest_llmbench.judge.daily_runs import (
    average_current_runs,
    describe_last_valid,
    find_coarse_unit,
    list_daily_runs,
    list_previous_daily_runs,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.series import find_flips

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


@pytest.mark.parametrize(
    ("sides", "since", "told"),
    [
        ("+-+-+-+-+-", 0, (5, 10)),
        ("----------+-+-+-+-+-", 0, (5, 10)),
        ("++-+-+++-+", 0, (7, 10)),
        ("++++-+++++", 0, None),
        ("++++-+++-+", 0, None),
        ("+++++-----", 0, None),
        ("+-+-+-+", 0, None),
        ("+-+-+-+-+-++++++++++", 0, None),
        ("+-+-+-+-+-", 5, None),
    ],
    ids=["every night", "the last ten", "three of ten", "one", "two", "a change", "few", "long ago", "another level"],
)
def test_a_configuration_that_flips_from_one_side_of_its_bound_to_the_other_is_told(
    sides: str, since: int, told: tuple[int, int] | None
) -> None:
    seen = [DailyRun(NOW + timedelta(days=day), 7.6 if side == "+" else 7.8) for day, side in enumerate(sides)]
    assert find_flips(seen, 7.7, since) == told


def test_a_night_at_the_bound_itself_passes() -> None:
    seen = [DailyRun(NOW + timedelta(days=day), (7.7, 7.8)[day % 2]) for day in range(10)]
    assert find_flips(seen, 7.7) == (5, 10)
