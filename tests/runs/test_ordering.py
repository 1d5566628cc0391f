"""Runs of one configuration are ordered by one clock, and what left no step by a clock
that it shares."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support.builders import KEY, NOW, log, run, segment

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.run_records import Clock, LoglessJob, Run, StartCandidate
from pytest_llmbench.runs.ordering import (
    drop_future_starts,
    drop_superseded,
    order_runs,
)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ZONED = (Clock.FOLDER_NAME, Clock.FILE_TIME)
WHOLE, DEAD = log(segment()), log()


def made(job: str, content: ParsedLog = WHOLE, /, **clocks: timedelta) -> Run:
    """Return a run that started so long before NOW by each clock (`metadata`,
    `folder_name`, `log`, `file_time`)."""
    datings = tuple(
        StartCandidate(clock, NOW - ago, clock, zoned=clock in ZONED)
        for clock, ago in (
            (Clock(name.replace("_", "-")), ago) for name, ago in clocks.items()
        )
    )
    first = next(iter(drop_future_starts(datings, NOW)), None)
    clock = first.clock if first else Clock.UNKNOWN
    found = run(
        content, key=KEY, id=job, job_id=job, started=first.moment if first else None
    )
    return replace(found, datings=datings, order_source=clock)


def jobs(*runs: Run) -> list[str]:
    """Return the job ids, newest first, whatever the order in which the runs were
    found."""
    found = [one.found.job_id for one in order_runs(runs, NOW)]
    assert [one.found.job_id for one in order_runs(runs[::-1], NOW)] == found
    return found


def source(*runs: Run) -> Clock:
    return order_runs(runs, NOW)[0].order_source


@pytest.mark.parametrize(
    ("first", "second", "newest", "clock"),
    [
        (
            {"metadata": DAY, "log": DAY},
            {"metadata": 2 * DAY, "log": HOUR},
            "2",
            Clock.LOG,
        ),
        ({"metadata": DAY}, {"metadata": 2 * DAY, "log": HOUR}, "1", Clock.METADATA),
        (
            {"metadata": HOUR, "log": 2 * DAY},
            {"folder_name": DAY, "log": DAY},
            "2",
            Clock.LOG,
        ),
        (
            {"folder_name": HOUR, "file_time": DAY},
            {"log": 2 * HOUR, "file_time": HOUR},
            "2",
            Clock.FILE_TIME,
        ),
        (
            {"folder_name": -20 * HOUR, "log": DAY},
            {"folder_name": HOUR, "log": HOUR},
            "2",
            Clock.LOG,
        ),
        ({"metadata": -9 * HOUR}, {"metadata": -8 * HOUR}, "1", Clock.METADATA),
        ({"metadata": DAY}, {"log": HOUR}, "2", Clock.MIXED),
    ],
)
def test_two_runs_are_compared_by_the_first_clock_that_both_have(
    first: dict[str, timedelta], second: dict[str, timedelta], newest: str, clock: Clock
) -> None:
    runs = made("1", **first), made("2", **second)
    assert jobs(*runs)[0] == newest
    assert source(*runs) is clock


@pytest.mark.parametrize(
    ("first", "second", "newest"),
    [
        ({"folder_name": DAY, "log": HOUR}, {"folder_name": DAY, "log": DAY}, "1"),
        ({"folder_name": DAY, "log": DAY}, {"folder_name": DAY, "log": HOUR}, "2"),
        ({"folder_name": DAY, "log": HOUR}, {"folder_name": DAY, "log": HOUR}, "2"),
        ({"folder_name": DAY, "log": HOUR}, {"folder_name": DAY}, "2"),
        (
            {"folder_name": DAY, "file_time": HOUR},
            {"folder_name": DAY, "file_time": DAY},
            "2",
        ),
    ],
    ids=["log", "log and job", "job alone", "one without", "files tell nothing"],
)
def test_of_jobs_of_one_folder_that_is_newest_which_started_last(
    first: dict[str, timedelta], second: dict[str, timedelta], newest: str
) -> None:
    """Numbers of jobs begin anew, and who was submitted first may wait longest."""
    assert jobs(made("1", **first), made("2", **second))[0] == newest


def test_what_died_in_the_folder_of_others_stays_the_newest() -> None:
    runs = (
        made("1", folder_name=DAY, log=HOUR),
        made("2", folder_name=DAY, log=2 * HOUR),
    )
    assert jobs(*runs, made("3", DEAD, folder_name=DAY))[0] == "3"


def test_times_with_and_without_a_zone_are_two_clocks() -> None:
    """One metadata file says its zone, the other one does not: hours may lie between
    them."""
    naive = made("1", metadata=2 * HOUR, log=3 * DAY)
    zoned = made("2", log=DAY)
    aware = StartCandidate(Clock.METADATA, NOW - 3 * HOUR, "metadata", zoned=True)
    zoned = replace(zoned, datings=(aware, *zoned.datings))
    assert (jobs(naive, zoned), source(naive, zoned)) == (["2", "1"], Clock.LOG)


def test_a_third_run_without_a_clock_takes_it_from_the_others() -> None:
    runs = [
        made("1", metadata=DAY, log=3 * DAY),
        made("2", metadata=2 * DAY, log=2 * DAY),
        made("3", log=DAY),
    ]
    assert jobs(*runs) == ["3", "2", "1"]


def test_a_time_ahead_by_minutes_is_believed_and_one_by_hours_only_without_a_zone() -> (
    None
):
    soon = StartCandidate(
        Clock.FOLDER_NAME, NOW + timedelta(minutes=5), "x", zoned=True
    )
    later = replace(soon, moment=NOW + HOUR)
    elsewhere = replace(later, zoned=False)
    wrong = replace(elsewhere, moment=NOW + 2 * DAY)
    assert drop_future_starts((wrong, later, elsewhere, soon), NOW) == [
        elsewhere,
        soon,
    ]


@pytest.mark.parametrize(
    ("dead", "newest"),
    [
        ({"file_time": HOUR}, "9"),  # written after all logs
        (
            {"file_time": 9 * DAY},
            "9",
        ),  # a copy lost the time, and its job id is the highest
        ({"log": HOUR, "file_time": 9 * DAY}, "9"),
        ({"log": 3 * DAY, "file_time": HOUR}, "2"),
    ],
)
def test_what_left_no_step_is_put_where_a_shared_clock_puts_it(
    dead: dict[str, timedelta], newest: str
) -> None:
    """It takes no clock from the runs with steps: those go on to be ordered by their
    logs."""
    runs = [
        made("1", log=DAY, file_time=2 * HOUR),
        made("2", log=2 * HOUR, file_time=3 * HOUR),
    ]
    assert jobs(*runs) == ["2", "1"]
    assert jobs(*runs, made("9", DEAD, **dead))[0] == newest


def test_a_dead_job_of_a_lower_id_and_an_older_file_is_older() -> None:
    runs = [made("11", log=DAY, file_time=DAY), made("12", log=HOUR, file_time=HOUR)]
    assert jobs(*runs, made("10", DEAD, file_time=9 * DAY)) == ["12", "11", "10"]
    assert jobs(*runs, made("10", DEAD, file_time=2 * HOUR)) == ["12", "10", "11"]


def left(job: str, remains: LoglessJob, ago: timedelta) -> Run:
    one = made(job, DEAD, folder_name=ago)
    found = replace(one.found, attempts=(), remains=remains, remains_at=Path("/runs/x"))
    return replace(one, found=found, attempts=())


@pytest.mark.parametrize("remains", list(LoglessJob))
@pytest.mark.parametrize(
    ("ago", "logged", "kept"),
    [
        (HOUR, 2 * HOUR, ["9", "1"]),
        (30 * DAY, 31 * DAY, ["9", "1"]),
        (30 * DAY, 29 * DAY, ["1"]),
        (2 * DAY, HOUR, ["1", "9"]),
        (30 * DAY, None, []),
        (DAY, None, ["9"]),
    ],
)
def test_a_job_without_a_log_counts_in_the_queue_and_where_an_older_run_would_stand_for_it(
    remains: LoglessJob, ago: timedelta, logged: timedelta | None, kept: list[str]
) -> None:
    runs = [left("9", remains, ago)]
    if logged is not None:
        runs.append(made("1", folder_name=logged))
    found, notes = drop_superseded(order_runs(runs, NOW), NOW)
    assert [one.found.job_id for one in found] == kept
    assert bool(notes) is ("9" not in kept)


def test_a_launch_of_the_last_minutes_is_told_with_the_run_that_is_judged() -> None:
    runs = order_runs(
        [
            left("9", LoglessJob.FOLDER, timedelta(minutes=3)),
            made("1", folder_name=DAY),
        ],
        NOW,
    )
    (judged,), notes = drop_superseded(runs, NOW)
    assert judged.starting == ("9",)
    assert list(map(str, notes)) == ["9: launched minutes ago, no log yet"]


def test_one_old_log_without_a_stamp_does_not_make_the_times_of_files_decide() -> None:
    """A copy gave the good run the latest file; the two that bear stamps say which of
    them is the newest."""
    good = made("1", log=DAY, file_time=HOUR)
    slow = made("2", log=2 * HOUR, file_time=3 * HOUR)
    ancient = made("3", file_time=2 * HOUR)
    assert jobs(good, slow, ancient)[0] == "2"
    assert source(good, slow, ancient) is Clock.FILE_TIME
